//! The books of all memory: which addresses are whose, and whether a range may be touched now.

use super::super::table::{Address, Code, MemHandle, code};
use super::host::HostBlock;
use super::mem_pool::MemPool;
use super::os::{self, PAGE, Pages};
use super::peer::Peers;
use super::share::Opened;
use super::small::{self, Small};
use super::vmm::{Handle, Mapping, Space};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, VecDeque};

pub struct Memory {
    books: Mutex<Books>,
    /// Somebody waits in `settle`, and a range was let go.
    let_go: Condvar,
    pub peers: Peers,
}

pub(super) struct Books {
    regions: BTreeMap<Address, Region>,
    pub blocks: BTreeMap<Address, Block>,
    pub host: BTreeMap<Address, HostBlock>,
    pub mappings: BTreeMap<Address, Mapping>,
    pub handles: HashMap<MemHandle, Handle>,
    /// Pages of blocks that another process may have opened, by their start.
    pub shared: HashMap<Address, Pages>,
    pub opened: Vec<Opened>,
    pub next_handle: MemHandle,
    pub pools: Vec<Pool>,
    /// Ranges that work touches at this moment, each with the number of its holder.
    held: Vec<(u64, Address, usize)>,
    next_holder: u64,
    settling: usize,
}

/// A stretch of addresses that belongs to the simulation.
struct Region {
    end: Address,
    kind: RegionKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RegionKind {
    /// Holds blocks of cudaMalloc and cudaMallocAsync.
    Window(usize),
    /// From cuMemAddressReserve.
    Reservation,
}

pub(super) struct Block {
    pub device: usize,
    /// As asked for: beyond it is out of range.
    pub size: usize,
    /// As taken.
    pub room: usize,
    /// What work may touch of it at this moment. Less than `size` while its stream has yet to come to its allocation.
    pub now: usize,
    /// Allocations and frees that their streams have yet to come to.
    pub pending: u32,
    /// By cudaFreeAsync: nobody may ask for it any more.
    pub freed: bool,
    /// It belongs to the device's pool of stream-ordered memory.
    pub ordered: bool,
    /// It is another process's, opened here.
    pub imported: bool,
}

impl Block {
    /// Bytes that may be asked for, or that may be touched now.
    fn extent(&self, now: bool) -> usize {
        match (now, self.freed) {
            (true, _) => self.now,
            (false, true) => 0,
            (false, false) => self.size,
        }
    }
}

/// One device's memory.
pub(super) struct Pool {
    /// What a program sees as the total.
    total: usize,
    /// What can be had; a test may lower it.
    limit: usize,
    used: usize,
    small: Small,
    /// The newest last. Only the newest is carved.
    windows: VecDeque<Window>,
    pub space: Space,
    pub ordered: MemPool,
}

struct Window {
    start: Address,
    end: Address,
    next: Address,
    /// Blocks and pages of small blocks in it.
    live: usize,
}

impl Window {
    fn is_free_for(&self, size: usize) -> bool {
        self.live == 0 && self.end - self.start >= size
    }
}

impl Pool {
    /// One that is longer has a power of two of bytes.
    const WINDOW: usize = 1 << 30;
    /// An emptied window is used again when there are so many: a freed address stays unused for long, and new ones come to an end.
    const KEPT: usize = 4;

    pub fn charge(&mut self, size: usize) -> Result<(), Code> {
        if size > self.limit.saturating_sub(self.used) {
            return Err(code::OUT_OF_MEMORY);
        }
        self.used += size;
        Ok(())
    }

    pub fn refund(&mut self, size: usize) {
        self.used -= size;
    }
}

/// A range of bytes that work is to touch.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub address: Address,
    pub size: usize,
    pub write: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Device(usize),
    Pinned,
    Pageable,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    pub place: Place,
    /// Whether the device that asks may touch it.
    pub ours: bool,
    /// Whether the device that it lies on may touch it.
    pub owners: bool,
}

/// Who touches: a copy may go through the device that owns the memory, a kernel may not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    Copy(usize),
    Kernel(usize),
}

impl Memory {
    pub fn new(devices: usize, size: usize, peers: Peers) -> Memory {
        let pool = || Pool {
            total: size,
            limit: size,
            used: 0,
            small: Small::default(),
            windows: VecDeque::new(),
            space: Space::default(),
            ordered: MemPool::default(),
        };
        let books = Books {
            regions: BTreeMap::new(),
            blocks: BTreeMap::new(),
            host: BTreeMap::new(),
            mappings: BTreeMap::new(),
            handles: HashMap::new(),
            shared: HashMap::new(),
            opened: Vec::new(),
            next_handle: 1,
            pools: (0..devices).map(|_| pool()).collect(),
            held: Vec::new(),
            next_holder: 0,
            settling: 0,
        };
        Memory { books: Mutex::new(books), let_go: Condvar::new(), peers }
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }

    /// (free, total) bytes.
    pub fn info(&self, device: usize) -> (usize, usize) {
        let books = self.books();
        let pool = &books.pools[device];
        (pool.limit.saturating_sub(pool.used), pool.total.max(pool.limit))
    }

    pub fn used(&self, device: usize) -> usize {
        self.books().pools[device].used
    }

    /// What can be had from now on. Below what is in use, nothing can until enough was freed.
    pub fn set_limit(&self, device: usize, size: usize) {
        self.books().pools[device].limit = size / PAGE * PAGE;
    }

    pub fn malloc(&self, device: usize, size: usize) -> Result<Address, Code> {
        if size == 0 {
            return Ok(0);
        }
        let mut books = self.books();
        let room = books.room(device, size)?;
        let address = books.take(device, room, false)?;
        books.blocks.insert(address, Block { device, size, room, now: size, pending: 0, freed: false, ordered: false, imported: false });
        Ok(address)
    }

    /// The device of a block that starts there and was not freed.
    pub fn block_device(&self, address: Address) -> Option<usize> {
        self.books().blocks.get(&address).filter(|block| !block.freed && !block.imported).map(|block| block.device)
    }

    pub fn free(&self, address: Address) -> Result<(), Code> {
        let mut books = self.books();
        let room = books.blocks.get(&address).ok_or(code::INVALID_VALUE)?.room;
        self.settle(&mut books, address, room);
        // Another thread may have freed it while this one waited.
        match books.blocks.get(&address).filter(|block| !block.freed).ok_or(code::INVALID_VALUE)?.ordered {
            true => books.free_now(address),
            false => books.give(address),
        }
        Ok(())
    }

    /// Waits until no work is in the middle of touching the range. The books are unlocked meanwhile.
    pub(super) fn settle(&self, books: &mut MutexGuard<'_, Books>, address: Address, size: usize) {
        while books.is_held(address, size) {
            books.settling += 1;
            self.let_go.wait(books);
            books.settling -= 1;
        }
    }

    pub fn find(&self, span: Span, by: usize) -> Result<Found, Code> {
        self.books().find(span, by, &self.peers)
    }

    /// False for mapped memory to which the device has no access.
    pub fn is_mapped_for(&self, span: Span, device: usize) -> Result<bool, Code> {
        let books = self.books();
        match books.region(span.address).map(|region| region.kind) {
            Some(RegionKind::Reservation) => Ok(books.find_mapped(span, device)?.ours),
            _ => Ok(true),
        }
    }

    /// Runs `work` if every range may be touched, and keeps the ranges from being freed until it is done. `brief` work of copies
    /// runs with the books locked; anything else must not.
    pub fn touch<R>(&self, spans: &[Span], by: By, brief: bool, work: impl FnOnce() -> R) -> Result<R, Code> {
        let mut books = self.books();
        for span in spans {
            books.check(*span, by, &self.peers)?;
        }
        if brief {
            let result = work();
            drop(books);
            return Ok(result);
        }
        let holder = books.next_holder;
        books.next_holder += 1;
        books.held.extend(spans.iter().map(|span| (holder, span.address, span.size)));
        drop(books);
        let hold = Hold { memory: self, holder };
        let result = work();
        drop(hold);
        Ok(result)
    }

    pub(super) fn add_reservation(&self, address: Address, size: usize) {
        self.books().regions.insert(address, Region { end: address + size, kind: RegionKind::Reservation });
    }

    pub fn reservations(&self) -> usize {
        self.books().regions.values().filter(|region| region.kind == RegionKind::Reservation).count()
    }

    /// The block, mapping or pinned memory around an address.
    pub fn range_of(&self, address: Address) -> Option<(Address, usize)> {
        let books = self.books();
        let (start, size) = match books.region(address).map(|region| region.kind) {
            Some(RegionKind::Window(_)) => {
                books.blocks.range(..=address).next_back().map(|(start, block)| (*start, block.extent(false)))?
            }
            Some(RegionKind::Reservation) => books.mapping_before(address)?,
            None => books.host.range(..=address).next_back().map(|(start, block)| (*start, block.size))?,
        };
        (address - start < size).then_some((start, size))
    }

    /// Bytes and number of blocks of a device.
    pub fn blocks_of(&self, device: usize) -> (usize, usize) {
        let books = self.books();
        let blocks = books.blocks.values().filter(|block| block.device == device && !block.freed);
        blocks.fold((0, 0), |(bytes, count), block| (bytes + block.size, count + 1))
    }
}

/// Lets the ranges go, also when the work panicked.
struct Hold<'a> {
    memory: &'a Memory,
    holder: u64,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut books = self.memory.books();
        books.held.retain(|(holder, _, _)| *holder != self.holder);
        if books.settling > 0 {
            self.memory.let_go.notify_all();
        }
    }
}

impl Books {
    /// What a block of that size takes.
    pub fn room(&self, device: usize, size: usize) -> Result<usize, Code> {
        if size > self.pools[device].limit {
            return Err(code::OUT_OF_MEMORY);
        }
        Ok(size.next_multiple_of(if size <= small::MOST { small::GRAIN } else { PAGE }))
    }

    /// `ordered`: for the device's pool of stream-ordered memory, which has pages of its own.
    pub fn take(&mut self, device: usize, room: usize, ordered: bool) -> Result<Address, Code> {
        if room > small::MOST {
            return self.take_pages_for(device, room, ordered);
        }
        if let Some(address) = self.small(device, ordered).take(room) {
            return Ok(address);
        }
        let page = self.take_pages_for(device, PAGE, ordered)?;
        self.small(device, ordered).add_page(page);
        self.small(device, ordered).take(room).ok_or(code::OUT_OF_MEMORY)
    }

    /// Ends a block.
    pub fn give(&mut self, address: Address) {
        let Some(Block { device, room, ordered, .. }) = self.blocks.remove(&address) else { return };
        let pages = match room > small::MOST {
            true => Some((address, room)),
            false => self.small(device, ordered).give(address, room).map(|page| (page, PAGE)),
        };
        if let Some((address, size)) = pages {
            self.give_pages(device, address, size);
            if ordered {
                self.pools[device].ordered.reserved -= size;
            }
        }
    }

    fn small(&mut self, device: usize, ordered: bool) -> &mut Small {
        let pool = &mut self.pools[device];
        if ordered { &mut pool.ordered.small } else { &mut pool.small }
    }

    fn take_pages_for(&mut self, device: usize, size: usize, ordered: bool) -> Result<Address, Code> {
        let address = self.take_pages(device, size)?;
        if ordered {
            self.pools[device].ordered.reserve(size);
        }
        Ok(address)
    }

    /// Whether work is in the middle of touching a range.
    pub fn is_held(&self, address: Address, size: usize) -> bool {
        self.held.iter().any(|(_, held, bytes)| *held < address + size && address < held + bytes)
    }

    fn take_pages(&mut self, device: usize, size: usize) -> Result<Address, Code> {
        self.pools[device].charge(size)?;
        let address = self.carve(device, size).filter(|address| os::commit(*address, size));
        let pool = &mut self.pools[device];
        let Some(address) = address else {
            pool.refund(size);
            return Err(code::OUT_OF_MEMORY);
        };
        if let Some(window) = pool.windows.back_mut() {
            window.next = address + size;
            window.live += 1;
        }
        Ok(address)
    }

    /// Addresses out of the newest window, which a new or an emptied one becomes if need be.
    fn carve(&mut self, device: usize, size: usize) -> Option<Address> {
        let pool = &mut self.pools[device];
        if let Some(window) = pool.windows.back().filter(|window| window.end - window.next >= size) {
            return Some(window.next);
        }
        let emptied = pool.windows.iter().filter(|window| window.is_free_for(size)).count();
        let made = if emptied < Pool::KEPT { self.open_window(device, size) } else { None };
        let window = made.or_else(|| self.emptied_window(device, size))?;
        let start = window.start;
        self.pools[device].windows.push_back(window);
        Some(start)
    }

    /// Where addresses are scarce, as under valgrind, a shorter one than usual.
    fn open_window(&mut self, device: usize, size: usize) -> Option<Window> {
        let usual = size.checked_next_power_of_two()?.max(Pool::WINDOW);
        let lengths = std::iter::successors(Some(usual), |length| Some(length / 2)).take_while(|length| *length > size);
        let (start, length) = lengths.chain([size]).find_map(|length| Some((os::reserve(length, PAGE)?, length)))?;
        self.regions.insert(start, Region { end: start + length, kind: RegionKind::Window(device) });
        Some(Window { start, end: start + length, next: start, live: 0 })
    }

    /// The one that was the newest the longest ago.
    fn emptied_window(&mut self, device: usize, size: usize) -> Option<Window> {
        let windows = &mut self.pools[device].windows;
        let at = windows.iter().position(|window| window.is_free_for(size))?;
        windows.remove(at).map(|window| Window { next: window.start, ..window })
    }

    fn give_pages(&mut self, device: usize, address: Address, size: usize) {
        os::decommit(address, size);
        self.shared.remove(&address);
        let pool = &mut self.pools[device];
        pool.refund(size);
        if let Some(window) = pool.windows.iter_mut().find(|window| (window.start..window.end).contains(&address)) {
            window.live -= 1;
        }
    }

    /// The end and kind of the region that an address lies in.
    fn region(&self, address: Address) -> Option<&Region> {
        self.regions.range(..=address).next_back().map(|(_, region)| region).filter(|region| address < region.end)
    }

    pub fn reservation(&self, address: Address) -> Option<(Address, Address)> {
        let (start, region) = self.regions.range(..=address).next_back()?;
        (address < region.end && region.kind == RegionKind::Reservation).then_some((*start, region.end))
    }

    pub fn remove_reservation(&mut self, address: Address) {
        self.regions.remove(&address);
    }

    /// Memory of another process that was opened here is one block in a window of its own.
    pub fn add_imported(&mut self, device: usize, address: Address, size: usize) {
        self.regions.insert(address, Region { end: address + size, kind: RegionKind::Window(device) });
        let block = Block { device, size, room: size, now: size, pending: 0, freed: false, ordered: false, imported: true };
        self.blocks.insert(address, block);
    }

    /// The block of cudaMalloc that an address lies in, and its start.
    pub fn plain_block(&self, address: Address) -> Option<(Address, &Block)> {
        let (start, block) = self.blocks.range(..=address).next_back()?;
        let is_plain = !block.freed && !block.ordered && !block.imported;
        (is_plain && address - start < block.size).then_some((*start, block))
    }

    pub fn remove_imported(&mut self, address: Address) {
        self.regions.remove(&address);
        self.blocks.remove(&address);
    }

    /// Whether a host range keeps clear of everything that belongs to devices.
    pub fn is_foreign(&self, address: Address, size: usize) -> bool {
        let last = address.saturating_add(size.max(1) - 1);
        self.region(last).is_none() && self.regions.range(address..=last).next().is_none() && self.region(address).is_none()
    }

    /// Where a range lies. Err: in no one thing that lives.
    pub fn find(&self, span: Span, by: usize, peers: &Peers) -> Result<Found, Code> {
        self.look(span, by, peers, false)
    }

    /// `now`: as work sees it at this moment; else as the program may ask for it.
    fn look(&self, span: Span, by: usize, peers: &Peers, now: bool) -> Result<Found, Code> {
        let end = span.address.checked_add(span.size).ok_or(code::INVALID_VALUE)?;
        match self.region(span.address).map(|region| region.kind) {
            Some(RegionKind::Window(_)) => {
                let (start, block) = self.blocks.range(..=span.address).next_back().ok_or(code::INVALID_VALUE)?;
                if end > start + block.extent(now) {
                    return Err(code::INVALID_VALUE);
                }
                // Peer access does not open the pool of stream-ordered memory, which has a list of its own.
                let ours = match block.ordered {
                    true => by == block.device || self.pools[block.device].ordered.reach & 1 << by != 0,
                    false => peers.reaches(by, block.device),
                };
                Ok(Found { place: Place::Device(block.device), ours, owners: true })
            }
            Some(RegionKind::Reservation) => self.find_mapped(span, by),
            None => {
                let pinned = self.host.range(..end.max(span.address + 1)).next_back();
                match pinned.filter(|(start, block)| **start + block.size > span.address) {
                    Some((start, block)) if *start <= span.address && end <= start + block.size => {
                        Ok(Found { place: Place::Pinned, ours: true, owners: true })
                    }
                    None if self.is_foreign(span.address, span.size) => Ok(Found { place: Place::Pageable, ours: false, owners: false }),
                    _ => Err(code::INVALID_VALUE),
                }
            }
        }
    }

    /// At the moment of touching. Everything that is wrong by then is an illegal address.
    fn check(&self, span: Span, by: By, peers: &Peers) -> Result<(), Code> {
        let (By::Copy(device) | By::Kernel(device)) = by;
        let found = self.look(span, device, peers, true).map_err(|_| code::ILLEGAL_ADDRESS)?;
        let may = found.place != Place::Pageable && (found.ours || (found.owners && by == By::Copy(device)));
        if may { Ok(()) } else { Err(code::ILLEGAL_ADDRESS) }
    }
}
