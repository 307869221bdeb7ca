//! A device's memory as a whole. Every method runs under the device's lock and leaves a valid state, whatever it answers; those that
//! look into homes or change what is free need all fronts stopped too.

use super::areas;
use super::block::{self, BlockId, CLEAN, State};
use super::freelist::FreeList;
use super::front::{self, Front, Leaves};
use super::fronts::Fronts;
use super::held::Held;
use super::home::{self, Home, Shelf};
use super::left::Left;
use super::physical::Physical;
use super::policy::{Policy, is_new};
use super::runs::Runs;
use super::segment::Area;
use super::shares::Gathered;
use super::slot::{COMMON, Keys, NOBODY, Slot, slot_of_block};
use super::tls;
use super::{Abilities, StreamSlot};
use crate::base::Result;
use crate::memory::history::{Action, History, texts};
use crate::memory::lookup;
use crate::memory::pools;
use crate::memory::sync::{Mutex, MutexGuard};
use crate::memory::totals::{Shard, Totals};
use crate::runtime::{Address, RawStream};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;

/// Block sizes are multiples of this.
pub const ROUND: usize = block::UNIT;
/// No block is larger: an area has one reservation of so many bytes at most.
pub const LARGEST: usize = 1 << 40;
/// Rounded sizes up to this count as small and live in areas of their own.
pub const SMALL_LIMIT: usize = 1 << 20;
/// So much of others' memory a stream takes for its small blocks where several threads allocate: each time costs them all.
pub const SOME_OF_MANY: usize = 1 << 20;
/// And where one does; in the model of threads, which has less in all, hardly more than it needs.
pub const SOME: usize = if cfg!(test) { 1 << 10 } else { 256 << 10 };

/// A block that was freed while streams other than its own may still use it.
pub struct Pending {
    pub block: BlockId,
    /// Stream and the epoch of it that has to be past.
    pub uses: Vec<(StreamSlot, u32)>,
    pub requested: usize,
    /// What it was for, while the history says so.
    pub annotation: u32,
}

/// Whether all uses of a block that waits are past.
fn is_done(slots: &[Slot], pending: &Pending) -> bool {
    pending.uses.iter().all(|(slot, epoch)| slots[*slot as usize].known.covers(*epoch))
}

pub struct Core {
    /// Of its cache.
    pub number: u32,
    pub device: i32,
    /// How many blocks became another stream's as they were, which may leave records beside others' and borders without a fence.
    pub(super) strays: usize,
    /// How many records a stream has of another one by such blocks.
    pub(super) debts: HashMap<(StreamSlot, StreamSlot), u32>,
    /// By address.
    pub areas: BTreeMap<Address, Area>,
    pub physical: Physical,
    /// Blocks with no memory of their own, by address: unmapped, and moved.
    pub unmapped: BTreeMap<Address, BlockId>,
    pub moved: BTreeMap<Address, BlockId>,
    pub policy: Policy,
    pub runs: Runs,
    /// For who looks at what is free, until the look is over.
    pub(super) gathered: Gathered,
    pub slots: Vec<Slot>,
    /// The slots that may have free memory or be behind, that of what is everybody's first, then those of streams as they came: see `wake`.
    pub awake: Vec<StreamSlot>,
    /// How many streams there are for which memory was asked.
    pub(super) wanting: usize,
    pub(super) keys: Keys,
    pub fronts: Fronts,
    /// For threads without one of their own.
    shard: &'static Shard,
    /// Of blocks not `CLEAN`: the other streams that used them.
    pub uses: HashMap<BlockId, Vec<StreamSlot>>,
    /// Blocks that other processes may use, none of them `CLEAN`.
    pub(super) held: HashMap<BlockId, Held>,
    /// Blocks in use of a pool that serve requests of others, none of them `CLEAN`.
    pub lent: HashSet<BlockId>,
    /// Without those that are held, once their uses are past: nothing can be learned of them.
    pub pending: Vec<Pending>,
    /// A stream is further than when they were looked at last.
    pub(super) advanced: bool,
    pub stats: &'static Totals,
    pub history: &'static History,
    /// Counts what was handed out or became free under the lock.
    pub(super) changes: u64,
    /// `changes()` when nothing was left that could be given back.
    pub(super) spent: Option<u64>,
    /// Of a pool: the device that it is a part of. Under that one's lock too its threads are armed, and blocks are counted.
    pub whole: Option<&'static Lock>,
    /// Threads may keep some of its blocks.
    pub keeps_fronts: bool,
    /// Free memory is handed out as it came from the driver, one block a segment.
    pub no_split: bool,
    /// The memory pool that this is the cache of.
    pub pool: pools::Id,
    /// Of blocks of cudaMallocAsync.
    pub ordered_bytes: usize,
    /// What the driver's pool holds beside them.
    pub ordered_spare: usize,
    /// What is mapped still where nothing is: no memory is mapped there.
    pub(super) left: &'static Left,
    /// A pool without memory behind its blocks: nothing is handed out.
    pub paused: bool,
    /// How many threads are destroying the pool: it is paused no more.
    pub ends: usize,
    /// A pool that was destroyed: it has what is in use, and gives no more.
    pub is_over: bool,
    /// Whether there are streams that look for what is everybody's beside their own.
    as_one: bool,
    /// How many bytes of large blocks had been freed when streams were asked ahead, or what is past was shared, last.
    asked_at: u64,
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
        core.fronts.stop();
        if core.as_one {
            core.go_on_as_one();
        }
        core
    }

    /// While threads go on in their fronts: for what lies under the lock alone.
    pub fn quiet(&self) -> MutexGuard<'_, Core> {
        let mut core = self.0.lock();
        core.fronts.go_on();
        core
    }
}

impl Core {
    pub fn new(number: u32, device: i32, stats: &'static Totals, history: &'static History) -> Result<Core> {
        let home = Home::new(COMMON, stats).ok_or_else(block::no_room)?;
        let front = front::make(number, device, COMMON, home, Leaves::Nothing).ok_or_else(front::no_room)?;
        let mut core = Core {
            number,
            device,
            strays: 0,
            debts: HashMap::new(),
            areas: BTreeMap::new(),
            physical: Physical::default(),
            unmapped: BTreeMap::new(),
            moved: BTreeMap::new(),
            policy: Policy::default(),
            runs: Runs::default(),
            gathered: Gathered::default(),
            slots: vec![Slot::new(NOBODY, 0, home, front)],
            awake: Vec::new(),
            wanting: 0,
            keys: Keys::default(),
            fronts: Fronts::new(stats),
            shard: stats.take_shard(0),
            uses: HashMap::new(),
            held: HashMap::new(),
            lent: HashSet::new(),
            pending: Vec::new(),
            advanced: false,
            stats,
            history,
            changes: 0,
            spent: None,
            whole: None,
            keeps_fronts: true,
            no_split: false,
            pool: pools::Id::own(),
            left: Box::leak(Box::default()),
            paused: false,
            ends: 0,
            is_over: false,
            as_one: false,
            asked_at: 0,
            ordered_bytes: 0,
            ordered_spare: 0,
        };
        core.wake(COMMON);
        Ok(core)
    }

    /// Rises with all that becomes free.
    pub fn changes(&self) -> u64 {
        self.changes + self.stats.frees_with_parts()
    }

    /// Held by this cache alone.
    pub fn reserved(&self) -> usize {
        self.stats.reserved_apart()
    }

    /// Whether threads may keep something to themselves, as far as that is for this cache to say.
    pub fn may_have_fronts(&self) -> bool {
        self.keeps_fronts && !self.paused
    }

    /// A pool's device, locked: nobody else touches what is counted for threads.
    pub fn whole(&self) -> Option<MutexGuard<'static, Core>> {
        self.whole.map(Lock::quiet)
    }

    /// The same with all threads of the device stopped.
    pub fn whole_stopped(&self) -> Option<MutexGuard<'static, Core>> {
        self.whole.map(Lock::lock)
    }

    /// The shard of the calling thread.
    fn shard(&self) -> &'static Shard {
        self.fronts.shard(tls::get()).unwrap_or(self.shard)
    }

    /// To look at only: nobody wakes.
    fn seen(&self, slot: StreamSlot) -> &Shelf {
        debug_assert!(self.fronts.is_stopped());
        // As in `shelf`, and who changes one has all of this.
        unsafe { self.slots[slot as usize].home.seen() }
    }

    pub fn list(&self, slot: StreamSlot, small: bool) -> &FreeList {
        self.seen(slot).list(small)
    }

    #[inline]
    pub fn shelf(&mut self, slot: StreamSlot) -> &mut Shelf {
        debug_assert!(self.fronts.is_stopped());
        self.wake(slot);
        // The lock is held (a `Core` lives in it only) and the fronts are stopped.
        unsafe { self.slots[slot as usize].home.shelf() }
    }

    fn shelves(&mut self) -> impl Iterator<Item = &mut Shelf> {
        debug_assert!(self.fronts.is_stopped());
        // As in `shelf`, and no two slots have the same.
        self.slots.iter_mut().map(|slot| unsafe { slot.home.shelf() })
    }

    /// The share of a stream's large blocks whose size was not seen lately.
    pub fn new_sizes(&self, slot: StreamSlot) -> f64 {
        let (new, seen) = self.seen(slot).sizes.counts();
        f64::from(new) / f64::from((new + seen).max(1))
    }

    /// Streams for which memory was asked.
    pub fn streams(&self) -> usize {
        self.wanting
    }

    /// As in `Policy`.
    pub fn are_as_one(&self) -> bool {
        self.policy.are_as_one(self.fronts.are_shared())
    }

    /// Whether a stream had better have memory of its own than what other streams are done with: each would take it from the next one, all
    /// the time, and has to ask how far that one is. With one thread only once they had work, and not to go short.
    pub fn keeps_apart(&self, slot: StreamSlot, request: &Request) -> bool {
        let several = self.fronts.threads() > 1 || self.streams() > 1 && !self.policy.is_short();
        let lasts = self.policy.is_restless() || self.policy.is_apart();
        let several = several && !self.are_as_one();
        several && (lasts || is_new(self.new_sizes(slot))) || self.is_small_of_threads(request)
    }

    /// A small block for one of several threads: what it lacks others have, but to take it costs them all. Where memory is scarce that is no matter.
    pub fn is_small_of_threads(&self, request: &Request) -> bool {
        let are_several = self.fronts.threads() > 1 && self.streams() > 1 && !self.are_as_one();
        request.small && are_several && !self.policy.is_scarce() && !self.policy.is_short()
    }

    /// Whether streams that are as one had better be asked before free memory is torn for a request that comes here: nothing fits closely, and much
    /// was freed since they were, of which another stream has what fits, or where sizes do not come back may have it once its pieces are joined
    /// with others. Then they are taken for asked.
    pub fn asks_ahead(&mut self, slot: StreamSlot, request: &Request) -> bool {
        /// Over, of what another stream has, as a part of the request.
        const VERY_CLOSE: u32 = 64;
        if !self.as_one || request.small || request.search > LARGEST {
            return false;
        }
        let freed = self.stats.large_bytes_freed();
        if freed <= self.asks_from() {
            return false;
        }
        (0..self.awake.len()).for_each(|at| self.let_in(self.awake[at]));
        let joins = is_new(self.new_sizes(slot));
        let mut others = self.awake.iter().filter(|slot| **slot != COMMON);
        let fits = |slot, part| self.closest(slot, request, true).is_some_and(|found| home::fits_within(part, found, request.units()));
        let asks = ![slot, COMMON].iter().any(|slot| fits(*slot, home::CLOSE)) && (joins || others.any(|slot| fits(*slot, VERY_CLOSE)));
        if asks {
            self.note_asked(freed);
        }
        asks && self.concerns_others(slot)
    }

    /// Streams are asked ahead once so many bytes of large blocks were freed.
    fn asks_from(&self) -> u64 {
        /// A part of what is held.
        const MUCH: usize = 64;
        if self.policy.asks_ahead() { self.asked_at + (self.reserved() / MUCH) as u64 } else { u64::MAX }
    }

    /// Streams were asked when so many bytes of large blocks had been freed.
    fn note_asked(&mut self, freed: u64) {
        self.asked_at = freed;
        self.shelf(COMMON).asks_from = self.asks_from();
    }

    /// Which sizes come back, also to threads, and which threads and streams are at work, is to be found out anew.
    pub fn forget_habits(&mut self) {
        self.collect();
        self.fronts.all().for_each(Front::forget_sizes);
        self.forget_work();
        self.forget_wants();
        self.shelves().for_each(|shelf| shelf.sizes.clear());
    }

    /// A round is over: the next one finds out what comes back as this one did.
    pub fn align_habits(&mut self) {
        self.collect();
        self.fronts.all().for_each(Front::forget_sizes);
        self.shelves().for_each(|shelf| shelf.sizes.align());
    }

    // ---- blocks

    pub fn list_insert(&mut self, id: BlockId) {
        self.shelf(block::at(id).owner()).insert(id);
    }

    pub fn list_remove(&mut self, id: BlockId) {
        self.shelf(block::at(id).owner()).remove(id);
    }

    /// A block that is in no list becomes free memory of its stream, joined with what is free beside it.
    pub fn make_free(&mut self, id: BlockId) {
        self.changes += 1;
        self.shelf(block::at(id).owner()).make_free(id);
    }

    /// The same of a stream that it comes to, as if it had been freed in that epoch.
    pub fn make_free_of(&mut self, id: BlockId, slot: StreamSlot, ticket: u32) {
        let id = self.hand_over(id, slot);
        block::at(id).set_ticket(ticket);
        self.make_free(id);
    }

    // ---- allocate and free

    /// Hands out memory of the stream, or such as is past for all, if some fits. `all` searches to the end.
    pub fn allocate(&mut self, slot: StreamSlot, request: &Request, all: bool) -> Option<Address> {
        let Request { size, alignment, search, small, .. } = *request;
        if search > LARGEST || self.paused {
            return None;
        }
        self.prefer_common(slot, request, all);
        let id = if self.no_split {
            self.take_whole(slot, request)?
        } else if let Some(id) = self.shelf(slot).carve_aligned(size, alignment, small, all) {
            id
        } else {
            self.take_common(slot, request, all, SOME)?;
            self.shelf(slot).carve_aligned(size, alignment, small, true)?
        };
        self.changes += 1;
        let front = self.fronts.known(tls::get(), slot).unwrap_or(self.slots[slot as usize].front);
        let record = block::at(id);
        record.set(State::Allocated, front.id);
        let size = record.size();
        record.set_rounding(size - request.requested);
        if !self.uses.is_empty() {
            self.uses.remove(&id);
        }
        if self.history.is_on() {
            record.set_annotation(texts::current());
            self.tell(Action::Alloc, record.address(), request.requested, slot);
        }
        // A pool has few most often, and each has its own parts of the table.
        if self.whole.is_some() {
            lookup::expect_few(record.address(), small);
        }
        lookup::insert(record.address(), small, id);
        self.count_allocated(small, size, request.requested);
        Some(record.address())
    }

    fn count(&self, count: impl FnOnce(&'static Shard)) {
        let _whole = self.whole();
        count(self.shard());
    }

    fn count_allocated(&mut self, small: bool, size: usize, requested: usize) {
        let thread = tls::get();
        let shard = self.fronts.shard_of(thread).unwrap_or(self.shard);
        let mut whole = self.whole();
        self.note_at_work(whole.as_deref_mut(), thread, shard);
        if shard.is_common() {
            if let Some(whole) = &mut whole {
                whole.fronts.stop();
            }
        } else {
            thread.begin_turn(self.device, shard);
        }
        shard.allocated(small, size, requested);
    }

    /// Of streams that are as one each that has no work takes what is everybody's where that fits closer than its own, and that not closely.
    fn prefer_common(&mut self, slot: StreamSlot, request: &Request, all: bool) {
        if self.no_split || !self.are_as_one() || self.streams() < 2 {
            self.look_beside_no_more();
            return;
        }
        if !std::mem::replace(&mut self.as_one, true) {
            self.shelf(COMMON).asks_from = self.asks_from();
        }
        if self.leaves_common(slot) {
            return;
        }
        let home = self.slots[COMMON as usize].home;
        home.owner.store(std::ptr::from_ref(tls::get()).cast_mut(), Relaxed);
        self.shelf(slot).beside = Some(home);
        let closer = |own| {
            !home::fits_within(home::CLOSE, own, request.units()) && self.closest(COMMON, request, all).is_some_and(|common| common < own)
        };
        if self.closest(slot, request, all).is_some_and(closer) {
            self.take_common(slot, request, all, request.search);
        }
    }

    /// Units of the free block that a request of a stream would be cut from.
    fn closest(&self, slot: StreamSlot, request: &Request, all: bool) -> Option<u32> {
        let found = self.list(slot, request.small).find(block::table(), request.units(), request.small, all);
        found.map(|id| block::at(id).units())
    }

    /// Whether a thread takes what is everybody's in its region.
    pub(super) fn is_as_one(&self) -> bool {
        self.as_one
    }

    /// Unless they are no more.
    fn go_on_as_one(&mut self) {
        if self.are_as_one() {
            self.shelf(COMMON).asks_from = self.asks_from();
        } else {
            self.look_beside_no_more();
        }
    }

    /// What is everybody's is left to others by a stream that has work: it has its own again at once, and others have nothing else. Bit by bit it would
    /// come to have all.
    fn leaves_common(&mut self, slot: StreamSlot) -> bool {
        let has_work = self.slots[slot as usize].known.is_ahead();
        if has_work {
            self.shelf(slot).beside = None;
        }
        has_work
    }

    /// Each that has work.
    pub(super) fn leave_common(&mut self) {
        (0..self.awake.len()).for_each(|at| _ = self.leaves_common(self.awake[at]));
    }

    fn look_beside_no_more(&mut self) {
        if std::mem::take(&mut self.as_one) {
            self.slots[COMMON as usize].home.owner.store(std::ptr::null_mut(), Relaxed);
            self.shelves().for_each(|shelf| shelf.beside = None);
        }
    }

    /// A free block as it is, if it is not much larger than the request: where segments are not split.
    fn take_whole(&mut self, slot: StreamSlot, request: &Request) -> Option<BlockId> {
        const MORE: usize = 2 << 20;
        // A block's record has 32 bits for what it is larger than was asked for.
        let most = (request.search + (request.search / 8).max(MORE)).min(request.requested + u32::MAX as usize);
        for owner in [slot, COMMON] {
            let fits = |id: &BlockId| {
                let block = block::at(*id);
                (request.search..=most).contains(&block.size()) && block.address().is_multiple_of(request.alignment)
            };
            let best = self.list(owner, request.small).iter().filter(fits).min_by_key(|id| block::at(*id).size());
            if let Some(id) = best {
                self.list_remove(id);
                return Some(self.hand_over(id, slot));
            }
        }
        None
    }

    /// Common memory with room for the request becomes the stream's; of small blocks `some`, or where several threads allocate a MiB, since others
    /// follow.
    fn take_common(&mut self, slot: StreamSlot, request: &Request, all: bool, some: usize) -> Option<()> {
        let Request { search, small, .. } = *request;
        let several = self.fronts.threads() > 1;
        let list = self.list(COMMON, small);
        if request.is_aligned() {
            let units = (request.size >> block::UNIT_SHIFT) as u32;
            let has_room = |id| block::at(id).room_at(request.alignment) >= request.size;
            let found = list.find_where(units, request.units(), all, has_room)?;
            let from = block::at(found).end() - block::at(found).room_at(request.alignment);
            self.take_part(found, from, from + request.size, slot);
            return Some(());
        }
        let find = |more: usize| list.find(block::table(), request.units() + (more >> block::UNIT_SHIFT) as u32, small, all);
        let room = |id: BlockId| block::at(id).range();
        let in_lines = |id: BlockId| Some((id, lookup::lines_within(room(id)))).filter(|(_, lines)| lines.len() >= search);
        let found = find(0)?;
        let by_lines = small && self.fronts.are_shared();
        let lines = if by_lines { in_lines(found).or_else(|| in_lines(find(2 * lookup::LINE)?)) } else { None };
        let (id, from) = lines.unwrap_or_else(|| (found, room(found)));
        let take = match (small, several) {
            (true, true) => search.max(SOME_OF_MANY),
            (true, false) => search.max(some),
            (false, true) => search.saturating_mul(4),
            (false, false) => search,
        };
        let take = if by_lines { take.next_multiple_of(lookup::LINE) } else { take };
        self.take_part(id, from.start, from.end.min(from.start.saturating_add(take)), slot);
        Some(())
    }

    /// A part of a free block becomes free memory of the stream, in no list until then.
    fn take_part(&mut self, id: BlockId, from: Address, to: Address, slot: StreamSlot) {
        let id = self.cut_out(id, from, to);
        let id = self.hand_over(id, slot);
        block::at(id).set_ticket(0);
        self.shelf(slot).make_free(id);
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
        lookup::starts_below(address, area.base).find(|id| block::at(*id).range().contains(&address) && self.handed_out(*id))
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
        let stream = slot_of_block(id);
        let owner = owner.unwrap_or(stream);
        if record.state() != State::Allocated {
            return false;
        }
        let (small, size, requested) = (record.small(), record.size(), record.requested());
        let used = head & CLEAN == 0;
        #[cfg(test)]
        super::model::before_the_change();
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
        if owner != stream {
            self.move_border(id, stream, owner);
        }
        self.changes += 1;
        self.tell(Action::FreeRequested, record.address(), requested, stream);
        let mut uses: Vec<(StreamSlot, u32)> = Vec::new();
        if used {
            self.lent.remove(&id);
            for slot in self.uses.remove(&id).unwrap_or_default() {
                // What was used by a stream that is gone, and past, is past.
                if slot != owner && !self.slots[slot as usize].known.covers(u32::MAX) {
                    uses.push((slot, self.note_free(slot)));
                }
            }
        }
        let epoch = self.note_free(owner);
        if uses.is_empty() && !(used && self.is_held(id)) {
            record.set_ticket(epoch);
            self.tell(Action::FreeCompleted, record.address(), requested, stream);
            self.count(|shard| shard.freed(small, size, requested));
            if self.fronts.is_stopped() { self.make_free(id) } else { self.slots[owner as usize].home.bring(id) }
        } else {
            self.count(|shard| shard.freed_later(small, size, requested));
            let pending = Pending { block: id, uses, requested, annotation: record.annotation() };
            // In the annotation's place.
            record.set_ticket(epoch);
            if is_done(&self.slots, &pending) {
                self.finish(pending);
            } else {
                pending.uses.iter().for_each(|(slot, _)| self.slots[*slot as usize].waiting += 1);
                self.pending.push(pending);
            }
        }
        true
    }

    /// Something of the stream is freed: the epoch that it carries.
    pub(super) fn note_free(&mut self, slot: StreamSlot) -> u32 {
        self.wake(slot);
        self.slots[slot as usize].home.note_free()
    }

    /// Frees the pending blocks whose uses are past.
    pub fn finish_pending(&mut self) {
        // There may be many, of streams that have come no further.
        if !std::mem::take(&mut self.advanced) {
            return;
        }
        let Core { pending, slots, .. } = self;
        for pending in pending.extract_if(.., |pending| is_done(slots, pending)).collect::<Vec<_>>() {
            pending.uses.iter().for_each(|(slot, _)| self.slots[*slot as usize].waiting -= 1);
            self.finish(pending);
        }
    }

    /// One whose uses are past, unless it is held.
    pub(super) fn finish(&mut self, pending: Pending) {
        let Some(pending) = self.keep_held(pending) else { return };
        let record = block::at(pending.block);
        self.tell(Action::FreeCompleted, record.address(), pending.requested, record.owner());
        self.stats.done(record.small(), record.size(), pending.requested);
        self.make_free(pending.block);
    }

    /// Notes that a stream uses a block; nothing is done before the block is freed. False: another thread has just freed it.
    pub fn record_use(&mut self, id: BlockId, slot: StreamSlot) -> bool {
        if slot_of_block(id) == slot {
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

    /// One that was just handed out: its free comes by here.
    pub fn note_lent(&mut self, address: Address) {
        if let Some(id) = lookup::find(address) {
            let head = &block::at(id).head;
            head.store(head.load(Relaxed) & !CLEAN, Relaxed);
            self.lent.insert(id);
        }
    }

    // ---- between streams

    /// Whether a free block may be used by any stream now.
    pub fn is_past(&self, id: BlockId) -> bool {
        let block = block::at(id);
        self.slots[block.owner() as usize].known.covers(block.ticket())
    }

    /// Whether a stream that is gone left something that is not known to be past.
    pub fn has_legacy(&self) -> bool {
        self.awake.iter().map(|slot| &self.slots[*slot as usize]).any(|slot| slot.gone && slot.is_behind())
    }

    /// What is past on a stream becomes memory of none, joined with its like; while streams keep apart, of one that is gone.
    pub fn share_past(&mut self) {
        let apart = self.policy.is_apart();
        self.share_past_of(|slot| !apart || slot.gone);
    }

    pub fn share_all_past(&mut self) {
        self.share_past_of(|_| true);
    }

    fn share_past_of(&mut self, shares: impl Fn(&Slot) -> bool) {
        self.note_asked(self.stats.large_bytes_freed());
        self.give_records_back();
        let mut done = Vec::new();
        for at in 0..self.awake.len() {
            let slot = self.awake[at];
            if slot == COMMON || !shares(&self.slots[slot as usize]) {
                continue;
            }
            let found = &mut self.slots[slot as usize];
            let past = found.known.count();
            if std::mem::replace(&mut found.shared, past) == past && past != u32::MAX {
                continue;
            }
            for small in [false, true] {
                self.list(slot, small).each(usize::MAX, |id| {
                    if self.is_past(id) {
                        done.push(id);
                    }
                });
                for id in done.drain(..) {
                    self.list_remove(id);
                    self.make_free_of(id, COMMON, 0);
                }
            }
        }
    }

    // ---- for messages

    pub fn largest_free(&self) -> usize {
        self.awake.iter().flat_map(|slot| [true, false].map(|small| self.list(*slot, small).largest())).max().unwrap_or(0)
    }
}

/// An allocation as the cache sees it.
pub struct Request {
    /// Bytes as asked for.
    pub requested: usize,
    /// Rounded.
    pub size: usize,
    pub alignment: usize,
    /// Bytes that surely hold an aligned block, wherever they start.
    pub search: usize,
    pub small: bool,
    /// Who asks does without it: nobody is waited for, nor told.
    pub is_modest: bool,
    /// Whose memory it is to be.
    pub pool: pools::Id,
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
        let (search, small) = (size + alignment - ROUND, size <= SMALL_LIMIT);
        Some(Request { requested, size, alignment, search, small, is_modest: false, pool: pools::Id::own() })
    }

    /// To more than any block is.
    pub fn is_aligned(&self) -> bool {
        self.alignment > ROUND
    }

    /// Bytes that have to be there for it: where memory is mapped, at the addresses that it needs.
    pub fn need(&self, abilities: &Abilities) -> usize {
        if abilities.virtual_memory.is_some() { self.size } else { self.search }
    }

    /// Of `search`.
    fn units(&self) -> u32 {
        (self.search >> block::UNIT_SHIFT) as u32
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

    /// The device's memory is gone, and the blocks with it.
    pub fn clear(&mut self) {
        debug_assert!(self.fronts.is_stopped());
        self.collect();
        areas::remove_all(self.number);
        for area in std::mem::take(&mut self.areas).into_values() {
            let ids: Vec<BlockId> = block::chain(area.first).collect();
            for id in ids {
                if block::at(id).state() == State::Free {
                    self.list_remove(id);
                }
                block::fence_behind(id).into_iter().for_each(|fence| self.put_fence(fence));
                self.put_record(id);
            }
        }
        self.physical = Physical::default();
        self.paused = false;
        (self.ordered_bytes, self.ordered_spare) = (0, 0);
        self.unmapped.clear();
        self.moved.clear();
        self.policy = Policy::default();
        self.runs = Runs::default();
        self.gathered = Gathered::default();
        self.look_beside_no_more();
        self.asked_at = 0;
        self.forget_work();
        self.uses.clear();
        self.held.clear();
        self.lent.clear();
        self.pending.clear();
        self.advanced = false;
        self.clear_slots();
        self.fronts.unchoose();
        (self.changes, self.spent) = (0, None);
        let _whole = self.whole_stopped();
        self.stats.clear();
    }
}
