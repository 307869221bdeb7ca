//! Stream-ordered memory: cudaMallocAsync, cudaFreeAsync, and each device's default pool.
//!
//! The call names the address; the memory is there when the stream comes to the allocation, and gone when a stream comes to the free. So a
//! block has two faces: what the program may ask for now (`size`, unless it was freed), and what work may touch now (`now`). Work that
//! comes too early or too late is caught, and so is what is asked for after the call of the free, when nothing can order it before that.

use super::super::table::{Address, Code, MemAccess, RawMemPool, RawStream, code};
use super::Sim;
use super::memory::{Block, Books, Memory, Span};
use super::small::Small;
use super::stream::Point;
use std::collections::HashMap;

/// The pool of one device.
#[derive(Default)]
pub(super) struct MemPool {
    /// What may stay reserved at a synchronisation.
    threshold: u64,
    /// In whole pages.
    pub reserved: usize,
    reserved_high: usize,
    used: usize,
    used_high: usize,
    pub small: Small,
    /// Freed blocks, the oldest first. They are still among the blocks.
    spares: Vec<Spare>,
    /// Devices besides its own that reach its memory.
    pub reach: u64,
}

struct Spare {
    address: Address,
    room: usize,
    /// The free's place in its stream.
    freed_at: Point,
    /// Some synchronisation showed that the free is past. cudaFree, which waits too, is none: an H200 gives nothing back for it.
    is_known: bool,
}

/// How far a stream is ordered behind others, by the events that it waited for.
pub type Follows = HashMap<u64, u64>;

impl MemPool {
    pub fn reserve(&mut self, size: usize) {
        self.reserved += size;
        self.reserved_high = self.reserved_high.max(self.reserved);
    }

    fn use_more(&mut self, size: usize) {
        self.used += size;
        self.used_high = self.used_high.max(self.used);
    }
}

impl Books {
    /// A freed block of that size whose free is ordered before what the stream does next. Nothing is made to wait for one.
    fn take_spare(&mut self, device: usize, room: usize, stream: u64, follows: &Follows) -> Option<Spare> {
        let spares = &mut self.pools[device].ordered.spares;
        let at = spares.iter().position(|spare| {
            let (other, count) = spare.freed_at;
            let ordered = || other == stream || follows.get(&other).is_some_and(|reached| *reached >= count);
            spare.room == room && (ordered() || self.blocks[&spare.address].pending == 0)
        })?;
        Some(spares.remove(at))
    }

    /// Gives freed blocks back to the device until no more than `keep` is reserved. Those whose free is not known to be past stay.
    fn trim(&mut self, device: usize, keep: usize) {
        for spare in std::mem::take(&mut self.pools[device].ordered.spares) {
            if self.pools[device].ordered.reserved > keep && spare.is_known && self.blocks[&spare.address].pending == 0 {
                self.give(spare.address);
            } else {
                self.pools[device].ordered.spares.push(spare);
            }
        }
    }

    /// What a synchronisation shows.
    fn learn(&mut self, device: usize) {
        let blocks = &self.blocks;
        self.pools[device].ordered.spares.iter_mut().for_each(|spare| spare.is_known = blocks[&spare.address].pending == 0);
    }

    fn trim_to_threshold(&mut self, device: usize) {
        self.learn(device);
        self.trim(device, self.kept(device));
    }

    /// What may stay reserved.
    fn kept(&self, device: usize) -> usize {
        usize::try_from(self.pools[device].ordered.threshold).unwrap_or(usize::MAX)
    }

    /// A freed block can be used again behind its free.
    fn spare(&mut self, address: Address, freed_at: Point, is_known: bool) {
        if let Some(Block { device, room, .. }) = self.blocks.get(&address) {
            self.pools[*device].ordered.spares.push(Spare { address, room: *room, freed_at, is_known });
        }
    }

    /// A block of the pool that all work is done with becomes free at once.
    pub fn free_now(&mut self, address: Address) {
        let Some(block) = self.blocks.get_mut(&address) else { return };
        (block.freed, block.now, block.pending) = (true, 0, 0);
        let (device, room) = (block.device, block.room);
        self.pools[device].ordered.used -= room;
        self.spare(address, (0, 0), true);
        self.trim(device, self.kept(device));
    }
}

impl Memory {
    /// The address; and where the block's last free stands, if there was one.
    fn malloc_ordered(&self, device: usize, size: usize, stream: u64, follows: &Follows) -> Result<(Address, Point), Code> {
        let mut books = self.books();
        let room = books.room(device, size)?;
        let (address, freed_at) = match books.take_spare(device, room, stream, follows) {
            Some(spare) => (spare.address, spare.freed_at),
            None => {
                let taken = match books.take(device, room, true) {
                    Err(code::OUT_OF_MEMORY) => {
                        books.learn(device);
                        books.trim(device, 0);
                        books.take(device, room, true)
                    }
                    other => other,
                };
                (taken?, (0, 0))
            }
        };
        let fresh = || Block { device, size, room, now: 0, pending: 0, freed: false, ordered: true, imported: false };
        let block = books.blocks.entry(address).or_insert_with(fresh);
        (block.size, block.freed) = (size, false);
        block.pending += 1;
        books.pools[device].ordered.use_more(room);
        Ok((address, freed_at))
    }

    /// The stream was gone before it had the allocation.
    fn undo_malloc(&self, address: Address, freed_at: Point) {
        let mut books = self.books();
        let Some(block) = books.blocks.get_mut(&address) else { return };
        block.freed = true;
        block.pending -= 1;
        let (device, room) = (block.device, block.room);
        books.pools[device].ordered.used -= room;
        books.spare(address, freed_at, false);
    }

    /// The stream has come to the allocation.
    fn arrive(&self, address: Address, size: usize) -> Result<(), Code> {
        if let Some(block) = self.books().blocks.get_mut(&address) {
            block.now = size;
            block.pending -= 1;
        }
        Ok(())
    }

    /// From now on nobody may ask for it. True: it is the pool's.
    fn free_ordered(&self, address: Address) -> Result<bool, Code> {
        let mut books = self.books();
        let block = books.blocks.get_mut(&address).filter(|block| !block.freed && !block.imported).ok_or(code::INVALID_VALUE)?;
        block.freed = true;
        block.pending += 1;
        let (device, room, ordered) = (block.device, block.room, block.ordered);
        if ordered {
            books.pools[device].ordered.used -= room;
        }
        Ok(ordered)
    }

    /// The stream was gone before it had the free.
    fn undo_free(&self, address: Address) {
        let mut books = self.books();
        let Some(block) = books.blocks.get_mut(&address) else { return };
        block.freed = false;
        block.pending -= 1;
        let (device, room, ordered) = (block.device, block.room, block.ordered);
        if ordered {
            books.pools[device].ordered.use_more(room);
        }
    }

    /// A stream has come to the free. Err: other work is in the middle of touching it, which nothing orders before this.
    fn leave(&self, address: Address) -> Result<(), Code> {
        let mut books = self.books();
        let Some(room) = books.blocks.get(&address).map(|block| block.room) else { return Ok(()) };
        if books.is_held(address, room) {
            return Err(code::ILLEGAL_ADDRESS);
        }
        match books.blocks.get_mut(&address) {
            Some(block) if block.ordered => {
                block.now = 0;
                block.pending -= 1;
            }
            _ => books.give(address),
        }
        Ok(())
    }

    /// The free has its place in a stream, so the block can be used again behind it.
    fn keep(&self, address: Address, freed_at: Point) {
        self.books().spare(address, freed_at, false);
    }

    /// What a synchronisation does.
    pub fn trim_to_threshold(&self, device: usize) {
        self.books().trim_to_threshold(device);
    }

    /// Whether memory that work is enqueued for was freed before: nothing can order that work before the free.
    pub fn was_freed(&self, spans: &[Span]) -> bool {
        let books = self.books();
        spans.iter().any(|span| {
            let block = books.blocks.range(..=span.address).next_back();
            block.is_some_and(|(start, block)| block.freed && span.address < start + block.room)
        })
    }
}

// ---- pools by their handles

const POOLS: usize = 0x5400_0000_0000;

pub fn pool_of(device: usize) -> RawMemPool {
    POOLS + device * 16
}

const RELEASE_THRESHOLD: i32 = 4;
const RESERVED_HIGH: i32 = 6;
const USED_HIGH: i32 = 8;

impl Sim {
    fn pool(&self, pool: RawMemPool) -> Result<usize, Code> {
        let device = pool.checked_sub(POOLS).filter(|at| at.is_multiple_of(16)).map(|at| at / 16);
        device.filter(|device| *device < self.devices.len()).ok_or(code::INVALID_VALUE)
    }

    /// Those that are a u64; how blocks are used again (1 to 3) cannot be chosen here.
    pub fn pool_attribute(&self, pool: RawMemPool, attribute: i32) -> Result<u64, Code> {
        let device = self.pool(pool)?;
        let books = self.memory.books();
        let pool = &books.pools[device].ordered;
        Ok(match attribute {
            1..=3 => return Err(code::NOT_SUPPORTED),
            RELEASE_THRESHOLD => pool.threshold,
            5 => pool.reserved as u64,
            RESERVED_HIGH => pool.reserved_high as u64,
            7 => pool.used as u64,
            USED_HIGH => pool.used_high as u64,
            _ => return Err(code::INVALID_VALUE),
        })
    }

    pub fn set_pool_attribute(&self, pool: RawMemPool, attribute: i32, value: u64) -> Result<(), Code> {
        let device = self.pool(pool)?;
        let mut books = self.memory.books();
        let pool = &mut books.pools[device].ordered;
        match (attribute, value) {
            (1..=3, _) => return Err(code::NOT_SUPPORTED),
            (RELEASE_THRESHOLD, _) => pool.threshold = value,
            (RESERVED_HIGH, 0) => pool.reserved_high = pool.reserved,
            (USED_HIGH, 0) => pool.used_high = pool.used,
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }

    /// The named devices; the others keep what they have. Its own device always reaches it.
    pub fn set_pool_access(&self, pool: RawMemPool, access: &[MemAccess]) -> Result<(), Code> {
        const ON_DEVICE: i32 = 1;
        let owner = self.pool(pool)?;
        let mut books = self.memory.books();
        let mut reach = books.pools[owner].ordered.reach;
        for wish in access {
            let device = usize::try_from(wish.location.id).ok().filter(|device| *device < self.devices.len());
            let device = device.filter(|_| wish.location.kind == ON_DEVICE).ok_or(code::INVALID_DEVICE)?;
            match wish.flags {
                3 if device == owner => {}
                0 if device != owner => reach &= !(1 << device),
                3 if self.memory.peers.can(device, owner) => reach |= 1 << device,
                3 => return Err(code::INVALID_DEVICE),
                _ => return Err(code::INVALID_VALUE),
            }
        }
        books.pools[owner].ordered.reach = reach;
        Ok(())
    }

    pub fn trim_pool(&self, pool: RawMemPool, keep: usize) -> Result<(), Code> {
        let device = self.pool(pool)?;
        self.devices[device].check()?;
        self.memory.books().trim(device, keep);
        Ok(())
    }

    /// From the pool of the stream's device, whichever is current.
    pub fn malloc_async(&'static self, size: usize, raw: RawStream) -> Result<Address, Code> {
        let (stream, device) = self.stream_for_work(raw)?;
        self.scheduler.line().state.refuse_captured(stream)?;
        if size == 0 {
            return Ok(0);
        }
        let follows = self.scheduler.line().state.follows(stream);
        let (address, freed_at) = self.memory.malloc_ordered(device, size, stream, &follows)?;
        match self.submit(stream, device, "MEM_ALLOC", move |sim| sim.memory.arrive(address, size)) {
            Ok(_) => Ok(address),
            Err(code) => {
                self.memory.undo_malloc(address, freed_at);
                Err(code)
            }
        }
    }

    /// Also memory of cudaMalloc, which goes back to the device when the stream comes to the free.
    pub fn free_async(&'static self, address: Address, raw: RawStream) -> Result<(), Code> {
        let (stream, device) = self.stream_for_work(raw)?;
        self.scheduler.line().state.refuse_captured(stream)?;
        let ordered = self.memory.free_ordered(address)?;
        match self.submit(stream, device, "MEM_FREE", move |sim| sim.memory.leave(address)) {
            Ok(freed_at) => {
                if let (true, Some(freed_at)) = (ordered, freed_at) {
                    self.memory.keep(address, freed_at);
                }
                Ok(())
            }
            Err(code) => {
                self.memory.undo_free(address);
                Err(code)
            }
        }
    }
}
