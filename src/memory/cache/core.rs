//! A device's memory as a whole. Every method runs under the device's lock and leaves a valid state, whatever it answers; those that
//! look into homes or change what is free need all fronts stopped too.

use super::block::{self, BlockId, CLEAN, Pool, State};
use super::freelist::FreeList;
use super::front::{self, Front, Thread};
use super::home::{Home, Shelf, Sizes};
use super::order::Mark;
use super::physical::Physical;
use super::policy::{Policy, is_new};
use super::segment::Area;
use super::tls;
use super::{Cache, StreamSlot};
use crate::base::{Error, Result, Status};
use crate::memory::history::{Action, History, texts};
use crate::memory::lookup;
use crate::memory::sync::{Mutex, MutexGuard};
use crate::memory::totals::{Shard, Totals};
use crate::runtime::{Address, RawStream};
use crate::stream::{self, Stream};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

/// Block sizes are multiples of this.
pub const ROUND: usize = block::UNIT;
/// No block is larger: an area has one reservation of so many bytes at most.
pub const LARGEST: usize = 1 << 40;
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
    /// How often its epochs began anew.
    pub era: u32,
    pub home: &'static Home,
    /// Stands in the head of blocks that no thread's front handed out.
    pub front: &'static Front,
    /// All frees up to this epoch are past: the device is done with them.
    pub past: u32,
    /// `past` when free memory was last made common.
    shared: u32,
    pub marks: Vec<Mark>,
    /// The stream was destroyed or unregistered; nothing is recorded on it any more.
    pub gone: bool,
}

impl Slot {
    fn new(key: StreamKey, serial: u64, home: &'static Home, front: &'static Front) -> Slot {
        Slot { key, serial, era: 0, home, front, past: 0, shared: 0, marks: Vec::new(), gone: false }
    }

    pub fn serial(&self) -> (u64, u32) {
        (self.serial, self.era)
    }

    /// Whether something was freed that is not known to be past.
    pub fn is_behind(&self) -> bool {
        self.home.freed_in.load(Relaxed) > self.past
    }
}

/// A block that was freed while streams other than its own may still use it.
pub struct Pending {
    pub block: BlockId,
    /// Stream and the epoch of it that has to be past.
    pub uses: Vec<(StreamSlot, u32)>,
    pub requested: usize,
}

pub struct Core {
    /// Of its cache.
    pub number: u32,
    pub device: i32,
    /// For blocks that are made and ended here.
    pub records: Pool,
    /// By address.
    pub areas: BTreeMap<Address, Area>,
    pub physical: Physical,
    /// Blocks with no memory of their own, by address: unmapped, and moved.
    pub unmapped: BTreeMap<Address, BlockId>,
    pub moved: BTreeMap<Address, BlockId>,
    pub policy: Policy,
    pub slots: Vec<Slot>,
    by_key: HashMap<StreamKey, StreamSlot>,
    last_serial: u64,
    /// By thread and stream; those of threads that ended by stream.
    fronts: BTreeMap<(u32, StreamSlot), &'static Front>,
    orphans: HashMap<StreamSlot, Vec<&'static Front>>,
    shards: HashMap<u32, Own>,
    /// Fronts whose threads may be in a region.
    armed: Vec<&'static Front>,
    /// All of them are stopped, by this holder of the lock.
    stopped: bool,
    /// How often they were.
    stops: u64,
    threads: usize,
    /// For threads without one of their own.
    shard: &'static Shard,
    /// Of blocks not `CLEAN`: the other streams that used them.
    pub uses: HashMap<BlockId, Vec<StreamSlot>>,
    /// Blocks that other processes may use, none of them `CLEAN`, and how often each is held.
    pub held: HashMap<BlockId, usize>,
    pub pending: VecDeque<Pending>,
    pub stats: &'static Totals,
    pub history: &'static History,
    /// Counts what was handed out or became free under the lock.
    changes: u64,
    /// Of a pool: the device that it is a part of.
    pub whole: Option<Whole>,
    /// Free memory is handed out as it came from the driver, one block a segment.
    pub no_split: bool,
    /// The memory pool that this is the cache of; 0: the device's own.
    pub pool: u64,
    /// Of blocks of cudaMallocAsync.
    pub ordered_bytes: usize,
    /// What the driver's pool holds beside them.
    pub ordered_spare: usize,
    /// A pool without memory behind its blocks: nothing is handed out.
    pub paused: bool,
}

/// What the cache keeps for a thread.
struct Own {
    shard: &'static Shard,
    /// How often fronts had been stopped when it came to allocate last.
    allocated_at: u64,
}

/// A thread that did not allocate between so many stops is at rest.
const STOPS: u64 = 64;

/// The device that a pool is a part of: its statistics have the pool's in them.
pub struct Whole {
    pub device: &'static Cache,
    /// Of all pools, used under the device's lock.
    shard: &'static Shard,
}

impl Whole {
    pub fn new(device: &'static Cache) -> Whole {
        let _stopped = device.core.lock();
        Whole { device, shard: device.of_pools.get_or_init(|| device.stats.take_shard(false)) }
    }

    /// With the device's fronts stopped: their ceilings are lower now.
    fn allocated(&self, small: bool, bytes: usize, requested: usize) {
        let _stopped = self.device.core.lock();
        self.shard.allocated(small, bytes, requested);
    }

    fn freed(&self, small: bool, bytes: usize, requested: usize) {
        let _core = self.device.core.quiet();
        self.shard.freed(small, bytes, requested);
    }

    fn freed_later(&self, small: bool, bytes: usize, requested: usize) {
        let _core = self.device.core.quiet();
        self.shard.freed_later(small, bytes, requested);
    }
}

/// The lock of a device.
pub struct Lock(Mutex<Core>);

impl Lock {
    pub fn new(core: Core) -> Lock {
        Lock(Mutex::new(core))
    }

    /// With all fronts of the device stopped: everything is in one hand.
    pub fn lock(&self) -> MutexGuard<'_, Core> {
        let mut core = self.0.lock();
        core.stop();
        core
    }

    /// While threads go on in their fronts: for what lies under the lock alone.
    pub fn quiet(&self) -> MutexGuard<'_, Core> {
        let mut core = self.0.lock();
        core.stopped = core.armed.is_empty();
        core
    }
}

impl Core {
    pub fn new(number: u32, device: i32, stats: &'static Totals, history: &'static History) -> Core {
        let (home, front) = Home::new(COMMON, stats)
            .and_then(|home| Some((home, front::make(number, COMMON, home)?)))
            .expect("the table of blocks and the list of fronts have room for a device");
        Core {
            number,
            device,
            records: Pool::default(),
            areas: BTreeMap::new(),
            physical: Physical::default(),
            unmapped: BTreeMap::new(),
            moved: BTreeMap::new(),
            policy: Policy::default(),
            slots: vec![Slot::new(NOBODY, 0, home, front)],
            by_key: HashMap::new(),
            last_serial: 0,
            fronts: BTreeMap::new(),
            orphans: HashMap::new(),
            shards: HashMap::new(),
            armed: Vec::new(),
            stopped: true,
            stops: STOPS,
            threads: 0,
            shard: stats.take_shard(false),
            uses: HashMap::new(),
            held: HashMap::new(),
            pending: VecDeque::new(),
            stats,
            history,
            changes: 0,
            whole: None,
            no_split: false,
            pool: 0,
            paused: false,
            ordered_bytes: 0,
            ordered_spare: 0,
        }
    }

    /// Rises with all that becomes free.
    pub fn changes(&self) -> u64 {
        self.changes + self.stats.frees()
    }

    /// Held by this cache alone.
    pub fn reserved(&self) -> usize {
        self.stats.reserved_apart()
    }

    // ---- fronts

    fn stop(&mut self) {
        self.stopped = true;
        let armed = std::mem::take(&mut self.armed);
        if armed.is_empty() {
            return;
        }
        self.stops += 1;
        self.threads = self.shards.values().filter(|own| own.allocated_at + STOPS > self.stops).count();
        let own: *const Thread = tls::get();
        let others: Vec<&Front> = armed.iter().copied().filter(|front| !std::ptr::eq(front.thread(), own)).collect();
        armed.iter().for_each(|front| front.disarm());
        let mut wait_for = others;
        while !wait_for.is_empty() {
            front::barrier();
            wait_for.iter().filter_map(|front| front.owner()).for_each(Thread::wait_idle);
            // One that was choosing it when it was disarmed has it chosen now.
            wait_for.retain(|front| front.was_chosen_meanwhile());
            wait_for.iter().for_each(|front| front.disarm());
        }
        armed.iter().for_each(|front| front.home.owner.store(std::ptr::null_mut(), Relaxed));
    }

    /// Makes the thread's front of a stream ready, to allocate too or to free only. None: there is none to be had.
    pub fn arm(&mut self, thread: &'static Thread, slot: StreamSlot, allocates: bool) -> Option<&'static Front> {
        let front = self.front_of(thread, slot)?;
        let Own { shard, allocated_at } = self.shards.get_mut(&thread.number)?;
        let shard = *shard;
        if allocates {
            *allocated_at = self.stops;
            self.stats.allocates(shard, || self.stop());
        }
        if self.armed.iter().any(|armed| std::ptr::eq(*armed, front)) {
            return Some(front);
        }
        let own = std::ptr::from_ref(thread).cast_mut();
        let others: Vec<&Front> = self.armed.iter().copied().filter(|armed| std::ptr::eq(armed.home, front.home)).collect();
        if others.is_empty() {
            front.home.owner.store(own, Relaxed);
        } else if !front.home.owner.load(Relaxed).is_null() {
            // From now on several threads take turns.
            front.home.owner.store(std::ptr::null_mut(), Relaxed);
            front::barrier();
            others.iter().filter_map(|front| front.owner()).filter(|other| !std::ptr::eq(*other, thread)).for_each(Thread::wait_idle);
        }
        self.armed.push(front);
        front.arm(thread, shard, self.history, self.slots[slot as usize].key.raw as u64);
        Some(front)
    }

    /// Those of threads that ended too.
    pub fn all_fronts(&self) -> impl Iterator<Item = &'static Front> {
        self.fronts.values().chain(self.orphans.values().flatten()).copied()
    }

    /// The thread's front of a stream, if it has one.
    pub fn known_front(&self, thread: &Thread, slot: StreamSlot) -> Option<&'static Front> {
        self.fronts.get(&(thread.number, slot)).copied()
    }

    /// The thread's front of a stream; a new one is made with all fronts stopped only.
    fn front_of(&mut self, thread: &'static Thread, slot: StreamSlot) -> Option<&'static Front> {
        if let Some(front) = self.fronts.get(&(thread.number, slot)) {
            return Some(front);
        }
        if !self.stopped {
            self.stop();
        }
        let orphan = self.orphans.get_mut(&slot).and_then(Vec::pop);
        let front = orphan.or_else(|| front::make(self.number, slot, self.slots[slot as usize].home))?;
        let stats = self.stats;
        self.shards.entry(thread.number).or_insert_with(|| Own { shard: stats.take_shard(true), allocated_at: 0 });
        self.fronts.insert((thread.number, slot), front);
        Some(front)
    }

    /// A thread ends: what it kept is free, what it counted stays.
    pub fn forget_thread(&mut self, thread: &Thread) {
        let own: Vec<(u32, StreamSlot)> = self.fronts.keys().copied().filter(|(number, _)| *number == thread.number).collect();
        for key in own {
            let Some(front) = self.fronts.remove(&key) else { continue };
            self.collect_from(front);
            front.orphan();
            front.unchoose();
            self.orphans.entry(key.1).or_default().push(front);
        }
        if let Some(Own { shard, .. }) = self.shards.remove(&thread.number) {
            self.stats.give_back(shard);
        }
    }

    /// What threads keep, and what they brought each other, is free memory again.
    pub fn collect(&mut self) {
        let fronts: Vec<&Front> = self.fronts.values().copied().collect();
        fronts.into_iter().for_each(|front| self.collect_from(front));
        (0..self.slots.len() as StreamSlot).for_each(|slot| self.let_in(slot));
    }

    /// What was brought to a stream's home is free.
    pub fn let_in(&mut self, slot: StreamSlot) {
        let home = self.slots[slot as usize].home;
        home.brought().collect::<Vec<_>>().into_iter().for_each(|id| self.free_again(slot, id));
    }

    fn collect_from(&mut self, front: &Front) {
        debug_assert!(self.stopped);
        let loose: Vec<BlockId> = if front.has_loose() { front.loose().collect() } else { Vec::new() };
        front.empty().into_iter().chain(loose).for_each(|id| self.free_again(front.slot, id));
    }

    fn free_again(&mut self, slot: StreamSlot, id: BlockId) {
        block::at(id).set_ticket(self.slots[slot as usize].home.note_free());
        self.shelf(slot).make_free(id);
        self.changes += 1;
    }

    /// Brings home what a front holds of other threads' blocks.
    pub fn bring_home(&mut self, front: &Front) {
        if !front.has_loose() {
            return;
        }
        front::barrier();
        front.loose_owners().filter(|thread| !std::ptr::eq(*thread, tls::get())).for_each(Thread::wait_idle);
        front.loose().for_each(|id| front.home.bring(id));
    }

    /// The shard of the calling thread.
    fn shard(&self) -> &'static Shard {
        self.shards.get(&tls::get().number).map_or(self.shard, |own| own.shard)
    }

    pub fn list(&self, slot: StreamSlot, small: bool) -> &FreeList {
        debug_assert!(self.stopped);
        // As in `shelf`.
        unsafe { self.slots[slot as usize].home.shelf() }.list(small)
    }

    #[inline]
    pub fn shelf(&mut self, slot: StreamSlot) -> &mut Shelf {
        debug_assert!(self.stopped);
        // The lock is held (a `Core` lives in it only) and the fronts are stopped.
        unsafe { self.slots[slot as usize].home.shelf() }
    }

    /// The share of a stream's large blocks whose size was not seen lately.
    pub fn new_sizes(&mut self, slot: StreamSlot) -> f64 {
        let (new, seen) = self.shelf(slot).sizes.counts();
        f64::from(new) / f64::from((new + seen).max(1))
    }

    /// Threads that allocate.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Whether a stream had better have memory of its own than what other streams are done with.
    pub fn keeps_apart(&mut self, slot: StreamSlot) -> bool {
        self.threads() > 1 && is_new(self.new_sizes(slot))
    }

    /// Which sizes come back, and which threads are at work, is to be found out anew.
    pub fn forget_habits(&mut self) {
        self.stops += STOPS;
        (0..self.slots.len() as StreamSlot).for_each(|slot| self.shelf(slot).sizes = Sizes::default());
    }

    // ---- streams

    pub fn slot_of(&mut self, key: StreamKey) -> Result<StreamSlot> {
        match self.by_key.get(&key) {
            Some(slot) => Ok(*slot),
            None => self.new_slot(key),
        }
    }

    pub fn find_slot(&self, key: StreamKey) -> Option<StreamSlot> {
        self.by_key.get(&key).copied()
    }

    #[cold]
    fn new_slot(&mut self, key: StreamKey) -> Result<StreamSlot> {
        if !self.stopped {
            self.stop();
        }
        self.last_serial += 1;
        let serial = self.last_serial;
        let index = match self.abandoned_slot() {
            Some(index) => {
                let Slot { home, front, .. } = self.slots[index as usize];
                self.slots[index as usize] = Slot::new(key, serial, home, front);
                home.begin_anew();
                index
            }
            None => {
                let full = || {
                    let text = format!(
                        "Device {} has no room for the memory of one more stream: 65,535 streams of threads are the most.",
                        self.device
                    );
                    Error::new(Status::TCUDA_ERROR_INVALID_STATE, text)
                };
                let index = StreamSlot::try_from(self.slots.len()).map_err(|_| full())?;
                let home = Home::new(index, self.stats).ok_or_else(full)?;
                let front = front::make(self.number, index, home).ok_or_else(full)?;
                self.slots.push(Slot::new(key, serial, home, front));
                index
            }
        };
        self.by_key.insert(key, index);
        Ok(index)
    }

    /// The slot of a stream that is gone and of whose memory nothing is left. Looked for only when many are gone.
    fn abandoned_slot(&mut self) -> Option<StreamSlot> {
        const MANY: usize = 16;
        let gone = self.slots.iter().filter(|slot| slot.gone).count();
        if gone < MANY {
            return None;
        }
        self.collect();
        let mut in_use = vec![false; self.slots.len()];
        for area in self.areas.values() {
            for id in block::chain(area.first) {
                // A moved block says by its stream when its mapping may end.
                let state = block::at(id).state();
                let done = matches!(state, State::Unmapped | State::Busy) || (state == State::Moved && self.is_past(id));
                if !done {
                    in_use[self.slot_of_block(id) as usize] = true;
                }
            }
        }
        self.uses.values().flatten().for_each(|slot| in_use[*slot as usize] = true);
        self.pending.iter().flat_map(|pending| &pending.uses).for_each(|(slot, _)| in_use[*slot as usize] = true);
        (0..self.slots.len()).find(|index| self.slots[*index].gone && !in_use[*index]).map(|index| index as StreamSlot)
    }

    /// The stream whose order a block follows.
    pub fn slot_of_block(&self, id: BlockId) -> StreamSlot {
        let record = block::at(id);
        match record.state() {
            State::Allocated | State::Cached | State::Loose => front::numbered(record.owner()).map_or(0, |front| front.slot),
            _ => record.owner(),
        }
    }

    /// The stream ends: its handle may come to mean another one.
    pub fn forget_stream(&mut self, key: StreamKey) {
        if let Some(slot) = self.by_key.remove(&key) {
            debug_assert!(self.stopped);
            self.fronts.iter().filter(|((_, of), _)| *of == slot).for_each(|(_, front)| front.unchoose());
            self.slots[slot as usize].gone = true;
        }
    }

    // ---- blocks

    pub fn list_insert(&mut self, id: BlockId) {
        self.shelf(block::at(id).owner()).insert(id);
    }

    pub fn list_remove(&mut self, id: BlockId) {
        self.shelf(block::at(id).owner()).remove(id);
    }

    /// Whether the table of blocks has room for what one request can need.
    pub fn has_records(&self) -> bool {
        block::has_room()
    }

    /// Cuts a block that is in no list; the answer is the right part.
    pub fn split(&mut self, id: BlockId, size: usize) -> BlockId {
        self.records.split(block::table(), id, (size >> block::UNIT_SHIFT) as u32).expect("`has_records` was asked")
    }

    /// A block that is in no list becomes free memory of its stream, joined with what is free beside it.
    pub fn make_free(&mut self, id: BlockId) {
        self.changes += 1;
        self.shelf(block::at(id).owner()).make_free(id);
    }

    // ---- allocate and free

    /// Hands out memory of the stream, or such as is past for all, if some fits. `all` searches to the end.
    pub fn allocate(&mut self, slot: StreamSlot, request: &Request, all: bool) -> Option<Address> {
        let Request { size, alignment, search, small, .. } = *request;
        if search > LARGEST || self.paused {
            return None;
        }
        let id = if self.no_split {
            self.take_whole(slot, request)?
        } else if let Some(id) = self.shelf(slot).carve_aligned(size, alignment, search, small, all) {
            id
        } else {
            self.take_common(slot, request, all)?;
            self.shelf(slot).carve_aligned(size, alignment, search, small, true)?
        };
        self.changes += 1;
        let front = self.known_front(tls::get(), slot).unwrap_or(self.slots[slot as usize].front);
        let record = block::at(id);
        record.set(State::Allocated, front.id);
        let size = record.size();
        record.set_rounding(size - request.requested);
        self.uses.remove(&id);
        if self.history.is_on() {
            record.set_annotation(texts::current());
            self.tell(Action::Alloc, record.address(), request.requested, slot);
        }
        lookup::insert(record.address(), small, id);
        let shard = self.shard();
        self.stats.allocates(shard, || ());
        shard.allocated(small, size, request.requested);
        if let Some(whole) = &self.whole {
            whole.allocated(small, size, request.requested);
        }
        Some(record.address())
    }

    /// A free block as it is, if it is not much larger than the request: where segments are not split.
    fn take_whole(&mut self, slot: StreamSlot, request: &Request) -> Option<BlockId> {
        const MORE: usize = 2 << 20;
        let most = request.search + (request.search / 8).max(MORE);
        for owner in [slot, COMMON] {
            let fits = |id: &BlockId| {
                let block = block::at(*id);
                (request.search..=most).contains(&block.size()) && block.address().is_multiple_of(request.alignment)
            };
            let best = self.list(owner, request.small).iter().filter(fits).min_by_key(|id| block::at(*id).size());
            if let Some(id) = best {
                self.list_remove(id);
                block::at(id).set_owner(slot);
                return Some(id);
            }
        }
        None
    }

    /// Common memory with room for the request becomes the stream's; of small blocks more than one request needs, since others follow.
    fn take_common(&mut self, slot: StreamSlot, request: &Request, all: bool) -> Option<()> {
        const SOME: usize = 256 << 10;
        let id = self.shelf(COMMON).list(request.small).find(block::table(), (request.search >> block::UNIT_SHIFT) as u32, all)?;
        self.list_remove(id);
        // Where several threads allocate, each time costs them all.
        let take = match (request.small, self.threads() > 1) {
            (true, _) => request.search.max(SOME),
            (false, true) => request.search.saturating_mul(4),
            (false, false) => request.search,
        };
        if block::at(id).size() > take {
            let rest = self.split(id, take);
            self.list_insert(rest);
        }
        block::at(id).set_owner(slot);
        block::at(id).set_ticket(0);
        self.shelf(slot).make_free(id);
        Some(())
    }

    /// Checks what the lookup said: the block starts here and is handed out.
    #[inline]
    pub fn allocated_at(&self, id: BlockId, address: Address) -> Option<BlockId> {
        let block = block::at(id);
        (block.address() == address && self.handed_out(id)).then_some(id)
    }

    /// The handed-out block that holds an address.
    pub fn block_around(&self, address: Address) -> Option<BlockId> {
        let area = self.area_of(address)?;
        lookup::starts_below(address, area.base).find(|id| {
            let block = block::at(*id);
            (block.address()..block.end()).contains(&address) && self.handed_out(*id)
        })
    }

    /// Whether it is a block that this cache handed out.
    pub fn handed_out(&self, id: BlockId) -> bool {
        let record = block::at(id);
        record.state() == State::Allocated && front::numbered(record.owner()).is_some_and(|front| front.cache == self.number)
    }

    /// Gives a block back, to `owner` if that is not the stream that it follows now. Threads may go on in their fronts meanwhile: it goes
    /// home when the next one looks. False: another thread was faster.
    pub fn free(&mut self, id: BlockId, owner: Option<StreamSlot>) -> bool {
        let record = block::at(id);
        let head = record.head.load(Relaxed);
        let stream = self.slot_of_block(id);
        let owner = owner.unwrap_or(stream);
        if record.state() != State::Allocated {
            return false;
        }
        let (small, size, requested) = (record.small(), record.size(), record.requested());
        let used = head & CLEAN == 0;
        if !record.change(head, State::Pending, owner) {
            return false;
        }
        if let Some(front) = front::numbered((head >> 48) as u16)
            && let Some(thread) = front.owner()
            && !std::ptr::eq(thread, tls::get())
        {
            // Its own thread may be freeing it at this instant; what it does to the block, it has done behind the barrier.
            front::barrier();
            thread.wait_idle();
            if record.state() != State::Pending {
                return false;
            }
        }
        self.changes += 1;
        self.tell(Action::FreeRequested, record.address(), requested, stream);
        let mut uses: Vec<(StreamSlot, u32)> = Vec::new();
        if used {
            for slot in self.uses.remove(&id).unwrap_or_default() {
                if slot != owner {
                    uses.push((slot, self.slots[slot as usize].home.note_free()));
                }
            }
        }
        let home = self.slots[owner as usize].home;
        record.set_ticket(home.note_free());
        if uses.is_empty() && !(used && self.held.contains_key(&id)) {
            self.tell(Action::FreeCompleted, record.address(), requested, stream);
            self.shard().freed(small, size, requested);
            if let Some(whole) = &self.whole {
                whole.freed(small, size, requested);
            }
            if self.stopped { self.make_free(id) } else { home.bring(id) }
        } else {
            self.shard().freed_later(small, size, requested);
            if let Some(whole) = &self.whole {
                whole.freed_later(small, size, requested);
            }
            self.pending.push_back(Pending { block: id, uses, requested });
        }
        true
    }

    /// Frees the pending blocks whose uses are past.
    pub fn finish_pending(&mut self) {
        let mut waiting = std::mem::take(&mut self.pending);
        for pending in waiting.drain(..) {
            let past = pending.uses.iter().all(|(slot, epoch)| self.slots[*slot as usize].past >= *epoch);
            if past && !self.held.contains_key(&pending.block) {
                let record = block::at(pending.block);
                self.tell(Action::FreeCompleted, record.address(), pending.requested, record.owner());
                self.stats.done(record.small(), record.size(), pending.requested);
                if let Some(whole) = &self.whole {
                    whole.device.stats.done(record.small(), record.size(), pending.requested);
                }
                self.make_free(pending.block);
            } else {
                self.pending.push_back(pending);
            }
        }
    }

    /// Notes that a stream uses a block; nothing is done before the block is freed. False: another thread has just freed it.
    pub fn record_use(&mut self, id: BlockId, slot: StreamSlot) -> bool {
        if self.slot_of_block(id) == slot {
            return true;
        }
        let record = block::at(id);
        let head = record.head.load(Relaxed);
        if record.state() != State::Allocated || record.head.compare_exchange(head, head & !CLEAN, Relaxed, Relaxed).is_err() {
            return false;
        }
        let uses = self.uses.entry(id).or_default();
        if !uses.contains(&slot) {
            uses.push(slot);
        }
        true
    }

    // ---- between streams

    /// Whether a free block may be used by any stream now.
    pub fn is_past(&self, id: BlockId) -> bool {
        let block = block::at(id);
        block.ticket() <= self.slots[block.owner() as usize].past
    }

    /// What is past on a stream becomes memory of none, joined with its like.
    pub fn share_past(&mut self) {
        for slot in COMMON + 1..self.slots.len() as StreamSlot {
            let Slot { past, ref mut shared, .. } = self.slots[slot as usize];
            if std::mem::replace(shared, past) == past && past != u32::MAX {
                continue;
            }
            for small in [false, true] {
                let past: Vec<BlockId> = self.list(slot, small).iter().filter(|id| self.is_past(*id)).collect();
                for id in past {
                    self.list_remove(id);
                    block::at(id).set_owner(COMMON);
                    block::at(id).set_ticket(0);
                    self.make_free(id);
                }
            }
        }
    }

    // ---- for messages

    pub fn largest_free(&mut self) -> usize {
        let slots = 0..self.slots.len() as StreamSlot;
        slots.flat_map(|slot| [true, false].map(|small| self.shelf(slot).list(small).largest())).max().unwrap_or(0)
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
        const MOST: usize = 1 << 60; // torch's
        if requested >= MOST || alignment >= MOST {
            return None;
        }
        let size = requested.next_multiple_of(ROUND);
        let alignment = alignment.max(ROUND);
        Some(Request { requested, size, alignment, search: size + alignment - ROUND, small: size <= SMALL_LIMIT })
    }
}

impl Core {
    pub fn area_of(&self, address: Address) -> Option<&Area> {
        self.areas.range(..=address).next_back().map(|(_, area)| area).filter(|area| address < area.base + area.size)
    }

    /// Whether an area holds a part of a range.
    pub fn holds_some(&self, base: Address, size: usize) -> bool {
        self.areas.range(..base + size).next_back().is_some_and(|(_, area)| base < area.base + area.size)
    }

    /// Whether the stream of this handle was not destroyed.
    pub fn is_there(&self, raw: RawStream) -> bool {
        self.slots.iter().any(|slot| slot.key.raw == raw && !slot.gone)
    }

    /// Whether an area holds an address, with memory there or without.
    pub fn reserves(&self, address: Address) -> bool {
        self.area_of(address).is_some()
    }

    /// The device's memory is gone, and the blocks with it.
    pub fn clear(&mut self) {
        debug_assert!(self.stopped);
        self.collect();
        for area in std::mem::take(&mut self.areas).into_values() {
            let ids: Vec<BlockId> = block::chain(area.first).collect();
            for id in ids {
                if block::at(id).state() == State::Free {
                    self.list_remove(id);
                }
                self.records.put(block::table(), id);
            }
        }
        self.physical = Physical::default();
        self.paused = false;
        (self.ordered_bytes, self.ordered_spare) = (0, 0);
        self.unmapped.clear();
        self.moved.clear();
        self.policy = Policy::default();
        self.uses.clear();
        self.held.clear();
        self.pending.clear();
        self.slots.iter_mut().skip(1).for_each(|slot| {
            slot.gone = true;
            slot.marks.clear();
            slot.past = u32::MAX;
        });
        self.by_key.clear();
        self.fronts.values().for_each(|front| front.unchoose());
        self.changes = 0;
        self.stats.clear();
    }
}
