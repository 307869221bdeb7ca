//! Blocks, lists and statistics of a device. Every method runs under the device's lock and leaves a valid state, whatever it answers.

use super::StreamSlot;
use super::block::{Block, BlockId, Blocks, NIL, State};
use super::freelist::FreeList;
use super::order::Mark;
use super::physical::Physical;
use super::policy::Policy;
use super::segment::Area;
use crate::base::{Error, Result, Status};
use crate::memory::lookup;
use crate::memory::stats::{Family, Stats};
use crate::runtime::{Address, RawStream};
use crate::stream::{self, Stream};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Block sizes are multiples of this.
pub const ROUND: usize = 512;
/// Rounded sizes up to this count as small and live in areas of their own.
pub const SMALL_LIMIT: usize = 1 << 20;

/// A stream as the cache sees it: the per-thread default stream is another one in every thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StreamKey {
    pub raw: RawStream,
    /// 0 but for the per-thread default stream.
    pub thread: u64,
}

impl StreamKey {
    #[inline]
    pub fn of(stream: Stream) -> StreamKey {
        let raw = if stream.raw == 1 { stream::DEFAULT } else { stream.raw };
        StreamKey { raw, thread: if raw == stream::PER_THREAD { this_thread(Some(stream)) } else { 0 } }
    }

    /// Whether the calling thread can enqueue work on it.
    pub fn reachable(self) -> bool {
        self.raw != stream::PER_THREAD || self.thread == this_thread(None)
    }
}

/// A number of this thread's own, never used again. When the thread ends, so does its default stream, which has to be there when the
/// number is made: what is made first ends last. 0 for a thread that never used it.
fn this_thread(used: Option<Stream>) -> u64 {
    use std::cell::OnceCell;
    use std::sync::atomic::{AtomicU64, Ordering};
    struct Number(u64);
    impl Drop for Number {
        fn drop(&mut self) {
            crate::memory::thread_ends(self.0);
        }
    }
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static OWN: OnceCell<Number> = const { OnceCell::new() });
    // A plain cell: the other, which is dropped with the thread, is registered only after the stream.
    thread_local!(static KNOWN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
    let known = KNOWN.get();
    let Some(stream) = used.filter(|_| known == 0) else { return known };
    let _ = stream.query();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    KNOWN.set(number);
    let _ = OWN.try_with(|own| own.set(Number(number)));
    number
}

/// The slot of free memory that is past for every stream, and so belongs to none.
pub(super) const COMMON: StreamSlot = 0;
/// The key of `COMMON`: no stream's.
const NOBODY: StreamKey = StreamKey { raw: RawStream::MAX, thread: u64::MAX };

/// What the cache keeps for a stream.
pub struct Slot {
    pub key: StreamKey,
    /// Never used again, as the slot's index is.
    pub serial: u64,
    /// Free blocks: large, small.
    pub lists: [FreeList; 2],
    /// Counts the frees on this stream, and the ends of other blocks' use by it.
    pub now: u64,
    /// All up to this count are past: the device is done with them.
    pub past: u64,
    /// `past` when free memory was last made common.
    shared: u64,
    pub marks: Vec<Mark>,
    /// The stream was destroyed or unregistered; nothing is recorded on it any more.
    pub gone: bool,
}

impl Slot {
    fn new(key: StreamKey, serial: u64) -> Slot {
        Slot { key, serial, lists: Default::default(), now: 0, past: 0, shared: 0, marks: Vec::new(), gone: false }
    }
}

/// A block that was freed while streams other than its own may still use it.
pub struct Pending {
    pub block: BlockId,
    /// Stream and the count of it that has to be past.
    pub uses: Vec<(StreamSlot, u64)>,
}

pub struct Core {
    pub device: i32,
    pub blocks: Blocks,
    pub areas: Vec<Option<Area>>,
    pub physical: Physical,
    /// Blocks with no memory of their own, by address: unmapped, and moved.
    pub unmapped: BTreeMap<Address, BlockId>,
    pub moved: BTreeMap<Address, BlockId>,
    pub policy: Policy,
    pub slots: Vec<Slot>,
    by_key: HashMap<StreamKey, StreamSlot>,
    /// The newest answer of `by_key`: most calls ask for the same stream again.
    last: Option<(StreamKey, StreamSlot)>,
    last_serial: u64,
    /// Of blocks marked `used_elsewhere`: the other streams that used them.
    pub uses: HashMap<BlockId, Vec<StreamSlot>>,
    pub pending: VecDeque<Pending>,
    pub stats: Stats,
    /// Counts what was handed out, freed or became free.
    pub changes: u64,
    /// Most bytes that may be held from the driver.
    pub limit: Option<usize>,
}

impl Core {
    pub fn new(device: i32, limit: Option<usize>) -> Core {
        Core {
            device,
            blocks: Blocks::default(),
            areas: Vec::new(),
            physical: Physical::default(),
            unmapped: BTreeMap::new(),
            moved: BTreeMap::new(),
            policy: Policy::default(),
            slots: vec![Slot::new(NOBODY, 0)],
            by_key: HashMap::new(),
            last: None,
            last_serial: 0,
            uses: HashMap::new(),
            pending: VecDeque::new(),
            stats: Stats::default(),
            changes: 0,
            limit,
        }
    }

    pub fn reserved(&self) -> usize {
        self.stats.current(Family::ReservedBytes) as usize
    }

    // ---- streams

    #[inline]
    pub fn slot_of(&mut self, key: StreamKey) -> Result<StreamSlot> {
        if let Some((last, slot)) = self.last
            && last == key
        {
            return Ok(slot);
        }
        let slot = match self.by_key.get(&key) {
            Some(slot) => *slot,
            None => self.new_slot(key)?,
        };
        self.last = Some((key, slot));
        Ok(slot)
    }

    pub fn find_slot(&self, key: StreamKey) -> Option<StreamSlot> {
        self.by_key.get(&key).copied()
    }

    #[cold]
    fn new_slot(&mut self, key: StreamKey) -> Result<StreamSlot> {
        self.last_serial += 1;
        let slot = Slot::new(key, self.last_serial);
        let index = match self.abandoned_slot() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                let index = StreamSlot::try_from(self.slots.len()).map_err(|_| {
                    Error::new(Status::TCUDA_ERROR_INVALID_STATE, format!("Device {} holds memory for 65,536 streams.", self.device))
                })?;
                self.slots.push(slot);
                index
            }
        };
        self.by_key.insert(key, index);
        Ok(index)
    }

    /// The slot of a stream that is gone and of whose memory nothing is left. Looked for only when many are gone.
    fn abandoned_slot(&self) -> Option<StreamSlot> {
        const MANY: usize = 16;
        let gone = self.slots.iter().filter(|slot| slot.gone).count();
        if gone < MANY {
            return None;
        }
        let mut in_use = vec![false; self.slots.len()];
        for area in self.areas.iter().flatten() {
            for id in self.blocks.chain(area.first) {
                let block = &self.blocks[id];
                // A moved block says by its stream when its mapping may end.
                let done = matches!(block.state, State::Unmapped | State::Busy) || (block.state == State::Moved && self.is_past(block));
                in_use[block.slot as usize] |= !done;
            }
        }
        self.uses.values().flatten().for_each(|slot| in_use[*slot as usize] = true);
        self.pending.iter().flat_map(|pending| &pending.uses).for_each(|(slot, _)| in_use[*slot as usize] = true);
        (0..self.slots.len()).find(|index| self.slots[*index].gone && !in_use[*index]).map(|index| index as StreamSlot)
    }

    /// The stream ends: its handle may come to mean another one.
    pub fn forget_stream(&mut self, key: StreamKey) {
        self.last = None;
        if let Some(slot) = self.by_key.remove(&key) {
            self.slots[slot as usize].gone = true;
        }
    }

    // ---- lists

    pub fn list_insert(&mut self, id: BlockId) {
        let block = self.blocks[id];
        let small = self.count_split(id, Stats::add);
        self.slots[block.slot as usize].lists[usize::from(small)].insert(&mut self.blocks, id);
    }

    pub fn list_remove(&mut self, id: BlockId) {
        let slot = self.blocks[id].slot;
        let small = self.count_split(id, Stats::sub);
        self.slots[slot as usize].lists[usize::from(small)].remove(&mut self.blocks, id);
    }

    /// torch's inactive split: a free part of a plain segment whose other parts are in use.
    fn count_split(&mut self, id: BlockId, count: impl Fn(&mut Stats, Family, bool, usize)) -> bool {
        let block = self.blocks[id];
        let (small, plain) = (block.small, block.plain);
        if plain && (block.prev != NIL || block.next != NIL) {
            count(&mut self.stats, Family::InactiveSplit, small, 1);
            count(&mut self.stats, Family::InactiveSplitBytes, small, block.size);
        }
        small
    }

    /// A block that is in no list becomes free memory of its stream, joined with what is free beside it.
    pub fn make_free(&mut self, mut id: BlockId) {
        self.changes += 1;
        self.blocks[id].state = State::Free;
        let Block { prev, next, slot, .. } = self.blocks[id];
        let joins = |blocks: &Blocks, other: BlockId| other != NIL && blocks[other].state == State::Free && blocks[other].slot == slot;
        if joins(&self.blocks, next) {
            self.list_remove(next);
            self.blocks.join(id);
        }
        if joins(&self.blocks, prev) {
            self.list_remove(prev);
            self.blocks.join(prev);
            id = prev;
        }
        self.list_insert(id);
    }

    /// Takes `size` bytes at a multiple of `alignment` out of a free block; what is left stays free.
    fn carve(&mut self, mut id: BlockId, size: usize, alignment: usize) -> BlockId {
        self.list_remove(id);
        let offset = self.blocks[id].address.next_multiple_of(alignment) - self.blocks[id].address;
        if offset > 0 {
            let aligned = self.blocks.split(id, offset);
            self.list_insert(id);
            id = aligned;
        }
        if self.blocks[id].size > size {
            let rest = self.blocks.split(id, size);
            self.list_insert(rest);
        }
        id
    }

    // ---- allocate and free

    /// Hands out memory of the stream, or such as is past for all, if some fits. `all` searches to the end.
    #[inline]
    pub fn allocate(&mut self, slot: StreamSlot, request: &Request, all: bool) -> Option<Address> {
        let find = |slot: StreamSlot| self.slots[slot as usize].lists[usize::from(request.small)].find(&self.blocks, request.search, all);
        let id = find(slot).or_else(|| find(COMMON))?;
        let id = self.carve(id, request.size, request.alignment);
        self.changes += 1;
        let block = &mut self.blocks[id];
        block.slot = slot;
        block.state = State::Allocated;
        block.requested = request.requested;
        block.used_elsewhere = false;
        let (address, size) = (block.address, block.size);
        lookup::insert(address, request.small, self.device, id);
        self.stats.add(Family::Allocation, request.small, 1);
        self.stats.add(Family::AllocatedBytes, request.small, size);
        self.stats.add(Family::Active, request.small, 1);
        self.stats.add(Family::ActiveBytes, request.small, size);
        self.stats.add(Family::RequestedBytes, request.small, request.requested);
        Some(address)
    }

    /// Checks what the lookup said: the block starts here and is handed out.
    #[inline]
    pub fn allocated_at(&self, id: BlockId, address: Address) -> Option<BlockId> {
        let block = self.blocks.get(id)?;
        (block.address == address && block.state == State::Allocated).then_some(id)
    }

    /// The handed-out block that holds an address.
    pub fn block_around(&self, address: Address) -> Option<BlockId> {
        let area = self.areas.iter().flatten().find(|area| (area.base..area.base + area.size).contains(&address))?;
        lookup::starts_below(address, area.base).filter(|found| found.device == self.device).find_map(|found| {
            let block = self.blocks.get(found.block)?;
            let holds = block.state == State::Allocated && (block.address..block.end()).contains(&address);
            holds.then_some(found.block)
        })
    }

    /// Gives a block back, to `owner` if that is not the stream that it follows now.
    pub fn free(&mut self, id: BlockId, owner: Option<StreamSlot>) {
        let Block { small, size, .. } = self.blocks[id];
        self.stats.sub(Family::Allocation, small, 1);
        self.stats.sub(Family::AllocatedBytes, small, size);
        let old = self.blocks[id].slot;
        let owner = owner.unwrap_or(old);
        self.blocks[id].slot = owner;
        let mut uses: Vec<(StreamSlot, u64)> = Vec::new();
        if self.blocks[id].used_elsewhere {
            self.blocks[id].used_elsewhere = false;
            for slot in self.uses.remove(&id).unwrap_or_default() {
                if slot != owner {
                    let use_of = &mut self.slots[slot as usize];
                    use_of.now += 1;
                    uses.push((slot, use_of.now));
                }
            }
        }
        let slot = &mut self.slots[owner as usize];
        slot.now += 1;
        self.blocks[id].ticket = slot.now;
        if uses.is_empty() {
            self.finish(id);
        } else {
            self.blocks[id].state = State::Pending;
            self.pending.push_back(Pending { block: id, uses });
        }
    }

    /// All uses of a freed block are past.
    fn finish(&mut self, id: BlockId) {
        let Block { small, size, requested, .. } = self.blocks[id];
        self.stats.sub(Family::Active, small, 1);
        self.stats.sub(Family::ActiveBytes, small, size);
        self.stats.sub(Family::RequestedBytes, small, requested);
        self.make_free(id);
    }

    /// Frees the pending blocks whose uses are past.
    pub fn finish_pending(&mut self) {
        let mut waiting = std::mem::take(&mut self.pending);
        for pending in waiting.drain(..) {
            if pending.uses.iter().all(|(slot, ticket)| self.slots[*slot as usize].past >= *ticket) {
                self.finish(pending.block);
            } else {
                self.pending.push_back(pending);
            }
        }
    }

    /// Notes that a stream uses a block; nothing is done before the block is freed.
    pub fn record_use(&mut self, id: BlockId, slot: StreamSlot) {
        if self.blocks[id].slot == slot {
            return;
        }
        self.blocks[id].used_elsewhere = true;
        let uses = self.uses.entry(id).or_default();
        if !uses.contains(&slot) {
            uses.push(slot);
        }
    }

    // ---- between streams

    /// Whether a free block may be used by any stream now.
    pub fn is_past(&self, block: &Block) -> bool {
        block.ticket <= self.slots[block.slot as usize].past
    }

    /// What is past on a stream becomes memory of none, joined with its like.
    pub fn share_past(&mut self) {
        for slot in COMMON + 1..self.slots.len() as StreamSlot {
            let Slot { past, ref mut shared, .. } = self.slots[slot as usize];
            if std::mem::replace(shared, past) == past && past != u64::MAX {
                continue;
            }
            for small in [false, true] {
                let list = &self.slots[slot as usize].lists[usize::from(small)];
                let past: Vec<BlockId> = list.iter(&self.blocks).filter(|id| self.is_past(&self.blocks[*id])).collect();
                for id in past {
                    self.list_remove(id);
                    self.blocks[id].slot = COMMON;
                    self.blocks[id].ticket = 0;
                    self.make_free(id);
                }
            }
        }
    }

    // ---- for messages

    pub fn largest_free(&self) -> usize {
        let lists = self.slots.iter().flat_map(|slot| &slot.lists);
        lists.map(|list| list.largest(&self.blocks)).max().unwrap_or(0)
    }
}

/// An allocation as the cache sees it.
pub struct Request {
    /// Bytes as asked for.
    pub requested: usize,
    /// Rounded.
    pub size: usize,
    pub alignment: usize,
    /// Bytes that surely hold an aligned block.
    pub search: usize,
    pub small: bool,
}

impl Request {
    /// `alignment` is a power of two; `requested` is not 0.
    pub fn new(requested: usize, alignment: usize) -> Option<Request> {
        const MOST: usize = 1 << 60;
        if requested >= MOST || alignment >= MOST {
            return None;
        }
        let size = requested.next_multiple_of(ROUND);
        let alignment = alignment.max(ROUND);
        Some(Request { requested, size, alignment, search: size + alignment - ROUND, small: size <= SMALL_LIMIT })
    }
}

impl Core {
    /// Whether an area holds an address, with memory there or without.
    pub fn reserves(&self, address: Address) -> bool {
        self.areas.iter().flatten().any(|area| (area.base..area.base + area.size).contains(&address))
    }
}
