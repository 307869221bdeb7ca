//! Where the statistics of a device are counted, read by anybody without a lock.
//!
//! What a thread hands out and takes back it counts alone, in its own shard: sums over time, of which the current figure is the
//! difference. A peak belongs to all shards together, so each has a ceiling: how far its figures may rise before somebody must look
//! whether there is a new peak. While one thread allocates on a device its ceiling is the peak itself, and peaks are exact. With more, a
//! ceiling is `CREDIT` of the device's memory away, twice that at most, and a peak is exact to so much for each thread.

use super::cache::block::UNIT_SHIFT;
use super::stats::{Family, Pool, Stat, Stats};
use super::sync::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicUsize, Mutex};
use std::cell::Cell;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// What is counted of a block: that there is one, its bytes, and those asked for.
const MEASURES: usize = 3;
type Measures = [i64; MEASURES];
const COUNT: usize = 0;
const BYTES: usize = 1;
const REQUESTED: usize = 2;

/// Small and large blocks.
const SIZES: usize = 2;
pub(super) const SMALL: usize = 0;
pub(super) const LARGE: usize = 1;

/// A lane with several threads is the device's memory over this.
const CREDIT: i64 = 512;
const LOOK: i64 = i64::MAX;
const LOOKING: i64 = LOOK - 1;
const NEVER: i64 = i64::MIN;

#[inline(always)]
fn bump(counter: &AtomicI64, amount: i64, order: Ordering) {
    // One writer: a plain addition, which others see whole.
    counter.store(counter.load(Relaxed).wrapping_add(amount), order);
}

/// What one thread counts for one device. Written by that thread in its fronts, or by whoever has stopped them.
#[repr(C, align(128))]
pub struct Shard {
    /// How much more of small blocks may be handed out; at least as low as the ceilings say.
    lanes: [Cell<i64>; MEASURES],
    /// How much more of large blocks; and of large ones that leaves the lanes of small blocks as they are.
    large_lanes: [Cell<i64>; MEASURES],
    spare: [Cell<i64>; MEASURES],
    /// With fewer bytes of its large blocks in use, little may be; `LOOK`: the next free is to find out. Others may write it as they count.
    ebb: AtomicI64,
    allocated: [[AtomicI64; MEASURES]; SIZES],
    freed: [[AtomicI64; MEASURES]; SIZES],
    /// What may be handed out of small, of large and of all blocks.
    ceilings: [[Cell<i64>; MEASURES]; SIZES + 1],
    totals: &'static Totals,
    /// Of the device's lock, beside those of the threads: it keeps no room to itself, and takes from the others'.
    common: bool,
    /// It counts the blocks of parts, in the device.
    of_parts: AtomicBool,
    /// Its thread allocates, not only frees.
    allocates: Cell<bool>,
    /// Some thread counts here; else the next may.
    taken: AtomicBool,
    next: AtomicPtr<Shard>,
}

// Cells are touched by one thread at a time: see `front`.
unsafe impl Sync for Shard {}
unsafe impl Send for Shard {}

impl Shard {
    /// True: a lane has ended, and `look` is to follow.
    #[must_use]
    #[inline(always)]
    pub fn allocated_small(&self, bytes: i64, requested: i64) -> bool {
        self.count(&self.allocated[SMALL], bytes, requested);
        let lanes = &self.lanes;
        let count = lanes[COUNT].get() - 1;
        let size = lanes[BYTES].get() - bytes;
        let asked = lanes[REQUESTED].get() - requested;
        lanes[COUNT].set(count);
        lanes[BYTES].set(size);
        lanes[REQUESTED].set(asked);
        (count | size | asked) < 0
    }

    #[inline(always)]
    pub fn freed_small(&self, bytes: i64, requested: i64) {
        self.count(&self.freed[SMALL], bytes, requested);
        let lanes = &self.lanes;
        lanes[COUNT].set(lanes[COUNT].get() + 1);
        lanes[BYTES].set(lanes[BYTES].get() + bytes);
        lanes[REQUESTED].set(lanes[REQUESTED].get() + requested);
    }

    #[inline(always)]
    pub fn allocated_large(&self, bytes: i64, requested: i64) {
        self.count(&self.allocated[LARGE], bytes, requested);
        if self.drive_large([-1, -bytes, -requested]) < 0 {
            self.look_large();
        }
    }

    /// True, once: little is in use now, which was to be watched for.
    #[inline(always)]
    pub fn freed_large(&self, bytes: i64, requested: i64) -> bool {
        self.count(&self.freed[LARGE], bytes, requested);
        self.drive_large([1, bytes, requested]);
        self.check_room();
        self.is_past_ebb() && self.ebbs()
    }

    #[inline(always)]
    fn is_past_ebb(&self) -> bool {
        self.now(LARGE, BYTES) < self.ebb.load(Relaxed)
    }

    #[cold]
    #[inline(never)]
    fn ebbs(&self) -> bool {
        let told = self.ebb.load(Relaxed) == LOOK;
        let ebbs = self.watch();
        if ebbs {
            self.ebb.store(NEVER, Relaxed);
            // Of two that find it at once one has the floor.
            match self.totals.floor.swap(0, Relaxed) {
                0 => return false,
                floor => self.totals.low.store(floor, Relaxed),
            }
        } else if !told {
            // There is less to free for the others too. What was told stays, and its line with whoever has it.
            let others = self.totals.shards().filter(|other| !std::ptr::eq(*other, self) && other.ebb.load(Relaxed) != LOOK);
            others.for_each(|other| other.ebb.store(LOOK, Relaxed));
        }
        ebbs
    }

    /// Of what has to be freed until less than the floor is in use, one thread at least frees its part: from there on it looks again. True:
    /// less is in use now.
    fn watch(&self) -> bool {
        // What another thread tells from here on stays, but for an instant at the end: then it is noticed a free later, or the next time.
        self.ebb.store(LOOKING, Relaxed);
        let (ebb, ebbs) = match self.totals.floor.load(Relaxed) {
            0 => (NEVER, false),
            floor => {
                let InUse { least, most, threads } = self.totals.large_in_use(floor);
                let ebbs = most < floor;
                // Where it is not clear the next free finds out.
                let part = if ebbs { -1 } else { (least - floor).max(0) / threads };
                (self.now(LARGE, BYTES) - part, ebbs)
            }
        };
        self.ebb.store(if self.ebb.load(Relaxed) == LOOKING { ebb } else { LOOK }, Relaxed);
        ebbs
    }

    /// Negative: a lane has ended.
    #[inline(always)]
    fn drive_large(&self, amounts: Measures) -> i64 {
        let mut signs = 0;
        for ((large, spare), amount) in self.large_lanes.iter().zip(&self.spare).zip(amounts) {
            large.set(large.get() + amount);
            spare.set(spare.get() + amount);
            signs |= large.get() | spare.get();
        }
        signs
    }

    #[inline(always)]
    fn count(&self, sums: &[AtomicI64; MEASURES], bytes: i64, requested: i64) {
        // Whoever sees what was allocated sees what was freed before, so that he finds no peak that was not.
        bump(&sums[COUNT], 1, Release);
        bump(&sums[BYTES], bytes, Release);
        bump(&sums[REQUESTED], requested, Release);
    }

    #[inline(always)]
    fn now(&self, size: usize, measure: usize) -> i64 {
        self.allocated[size][measure].load(Relaxed) - self.freed[size][measure].load(Relaxed)
    }

    /// How far it is to the ceilings of small, of large and of all blocks.
    #[inline(always)]
    fn rooms(&self, measure: usize) -> [i64; SIZES + 1] {
        let (small, large) = (self.now(SMALL, measure), self.now(LARGE, measure));
        let room = |of: usize, now: i64| self.ceilings[of][measure].get() - now;
        [room(SMALL, small), room(LARGE, large), room(SIZES, small + large)]
    }

    /// What small blocks leave is used up: large ones take from their lanes.
    #[inline(never)]
    fn look_large(&self) {
        let mut signs = 0;
        for ((lane, spare), large) in self.lanes.iter().zip(&self.spare).zip(&self.large_lanes) {
            let short = spare.get().min(0);
            lane.set(lane.get() + short);
            spare.set(spare.get() - short);
            signs |= lane.get() | large.get();
        }
        if signs < 0 {
            self.look();
        }
    }

    /// A lane has ended. It goes on where frees of the other size have made room since.
    #[inline(never)]
    pub fn look(&self) {
        if self.draw_lanes() < 0 {
            self.publish();
        }
    }

    /// Lanes as far as the ceilings allow. Negative: something is above a ceiling.
    fn draw_lanes(&self) -> i64 {
        let mut signs = 0;
        for measure in 0..MEASURES {
            let [small, large, all] = self.rooms(measure);
            let lane = small.min(all);
            self.lanes[measure].set(lane);
            self.large_lanes[measure].set(large);
            self.spare[measure].set(all - lane);
            signs |= small | large | all;
        }
        signs
    }

    /// All threads of the device are stopped.
    pub fn allocated(&self, small: bool, bytes: usize, requested: usize) {
        if !small {
            self.allocated_large(bytes as i64, requested as i64);
        } else if self.allocated_small(bytes as i64, requested as i64) {
            self.look();
        }
        if self.common {
            self.totals.renew();
        }
    }

    /// A block that is free at once; else `freed_later` and `done`.
    pub fn freed(&self, small: bool, bytes: usize, requested: usize) {
        if small { self.freed_small(bytes as i64, requested as i64) } else { _ = self.freed_large(bytes as i64, requested as i64) }
    }

    /// A block that other streams may still use: it stays active, and takes its room.
    pub fn freed_later(&self, small: bool, bytes: usize, requested: usize) {
        let size = if small { SMALL } else { LARGE };
        self.count(&self.freed[size], bytes as i64, requested as i64);
        self.totals.pend(size, [1, bytes as i64, requested as i64]);
        // What is pending is active, and no room for more.
        for (measure, amount) in [1, bytes as i64, requested as i64].into_iter().enumerate() {
            for of in [size, SIZES] {
                let ceiling = &self.ceilings[of][measure];
                ceiling.set(ceiling.get() - amount);
            }
        }
    }

    /// A free that should not have counted.
    pub fn unfreed(&self, small: bool, bytes: usize, requested: usize) {
        let sums = &self.freed[if small { SMALL } else { LARGE }];
        bump(&sums[COUNT], -1, Relaxed);
        bump(&sums[BYTES], -(bytes as i64), Relaxed);
        bump(&sums[REQUESTED], -(requested as i64), Relaxed);
        self.close();
    }

    /// With several threads: the room that frees have made is given back in time.
    #[inline(always)]
    pub fn check_room(&self) {
        if !self.totals.alone.load(Relaxed) && self.rooms(BYTES)[SIZES] > 2 * self.totals.credit {
            self.lower();
        }
    }

    /// It looks anew at its next block.
    fn close(&self) {
        self.lanes.iter().chain(&self.large_lanes).chain(&self.spare).for_each(|lane| lane.set(0));
        self.ceilings.iter().flatten().for_each(|ceiling| ceiling.set(i64::MIN / 2));
    }

    /// Raises the peaks to what is handed out now, and makes new room.
    #[cold]
    #[inline(never)]
    fn publish(&self) {
        let rooms = self.totals.raise_peaks();
        if self.totals.alone.load(Relaxed) {
            self.set_ceilings(|of, measure, now| now + rooms[of][measure]);
        } else {
            self.set_ceilings(|_, measure, now| now + self.totals.credit_of(measure));
        }
    }

    /// Frees make no peak: no look at what other threads count. Most of the room stays: what was in use soon is again.
    #[cold]
    #[inline(never)]
    fn lower(&self) {
        self.set_ceilings(|of, measure, now| self.ceilings[of][measure].get().min(now + self.totals.credit_of(measure) / 4 * 7));
    }

    fn set_ceilings(&self, ceiling: impl Fn(usize, usize, i64) -> i64) {
        for measure in 0..MEASURES {
            let (small, large) = (self.now(SMALL, measure), self.now(LARGE, measure));
            for (of, now) in [small, large, small + large].into_iter().enumerate() {
                self.ceilings[of][measure].set(ceiling(of, measure, now));
            }
        }
        self.draw_lanes();
    }
}

/// A figure that is counted under a device's lock, or rarely.
#[derive(Default)]
struct Counter {
    current: AtomicI64,
    peak: AtomicI64,
    allocated: AtomicI64,
    freed: AtomicI64,
}

impl Counter {
    fn add(&self, amount: i64) {
        let now = self.current.fetch_add(amount, Relaxed) + amount;
        self.allocated.fetch_add(amount, Relaxed);
        self.peak.fetch_max(now, Relaxed);
    }

    fn sub(&self, amount: i64) {
        self.current.fetch_sub(amount, Relaxed);
        self.freed.fetch_add(amount, Relaxed);
    }

    fn get(&self) -> Stat {
        let of = |value: &AtomicI64| value.load(Relaxed);
        Stat { current: of(&self.current), peak: of(&self.peak), allocated: of(&self.allocated), freed: of(&self.freed) }
    }
}

/// How often something happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Everything free was given back to the driver to make room.
    AllocRetry,
    Ooms,
    SyncAllStreams,
    DeviceAlloc,
    DeviceFree,
}

/// What is handed out or pending on a device.
pub struct Active {
    pub bytes: usize,
    pub large: usize,
    pub large_bytes: usize,
    /// The most bytes that were.
    pub peak: usize,
}

/// Bytes of large blocks in use, without those of parts, and how many threads may free them. The two differ by what was freed while they
/// were counted: it was no less than the one and no more than the other.
struct InUse {
    least: i64,
    most: i64,
    threads: i64,
}

/// Of a device, or of a part of it. Never freed.
pub struct Totals {
    /// The device that this is a part of, which counts all of it too; and the parts of a device.
    whole: Option<&'static Totals>,
    parts: Mutex<Vec<&'static Totals>>,
    /// Most bytes that the device may hold from the driver; `usize::MAX`: as many as there are.
    limit: AtomicUsize,
    shards: AtomicPtr<Shard>,
    adding: Mutex<()>,
    /// One thread at most allocates.
    alone: AtomicBool,
    /// Large blocks with less bytes in use are what is watched for; 0: nothing is. And the one that it came to.
    floor: AtomicI64,
    low: AtomicI64,
    threads: AtomicU32,
    credit: i64,
    /// Of small, large and all blocks: allocated, and active.
    peaks: [[AtomicI64; MEASURES]; SIZES + 1],
    active_peaks: [[AtomicI64; MEASURES]; SIZES + 1],
    /// Freed, but perhaps in use by other streams.
    pending: [[AtomicI64; MEASURES]; SIZES],
    /// What was allocated, and freed, when the sums over time were reset.
    allocated_before: [[AtomicI64; MEASURES]; SIZES],
    freed_before: [[AtomicI64; MEASURES]; SIZES],
    active_freed_before: [[AtomicI64; MEASURES]; SIZES],
    /// By family, and small, large, all: segments, reserved bytes, inactive splits and their bytes.
    counters: [[Counter; SIZES + 1]; 4],
    events: [AtomicI64; 5],
}

fn counter_of(family: Family) -> Option<usize> {
    match family {
        Family::Segment => Some(0),
        Family::ReservedBytes => Some(1),
        Family::InactiveSplit => Some(2),
        Family::InactiveSplitBytes => Some(3),
        _ => None,
    }
}

fn read(all: &[[AtomicI64; MEASURES]; SIZES]) -> [Measures; SIZES] {
    std::array::from_fn(|size| std::array::from_fn(|measure| all[size][measure].load(Relaxed)))
}

impl Totals {
    /// `memory`: bytes of the device.
    pub fn new(memory: u64) -> Totals {
        Totals {
            whole: None,
            parts: Mutex::new(Vec::new()),
            limit: AtomicUsize::new(usize::MAX),
            shards: AtomicPtr::default(),
            adding: Mutex::new(()),
            alone: AtomicBool::new(true),
            floor: AtomicI64::new(0),
            low: AtomicI64::new(0),
            threads: AtomicU32::new(0),
            credit: (memory as i64 / CREDIT).max(1 << 20),
            peaks: Default::default(),
            active_peaks: Default::default(),
            pending: Default::default(),
            allocated_before: Default::default(),
            freed_before: Default::default(),
            active_freed_before: Default::default(),
            counters: Default::default(),
            events: Default::default(),
        }
    }

    /// A part of a device. Its blocks are counted there by the caller, all else by itself.
    pub fn part_of(whole: &'static Totals, memory: u64) -> &'static Totals {
        let part: &'static Totals = Box::leak(Box::new(Totals { whole: Some(whole), ..Totals::new(memory) }));
        whole.parts.lock().push(part);
        part
    }

    pub fn parts(&self) -> Vec<&'static Totals> {
        self.parts.lock().clone()
    }

    /// Of the device.
    pub fn whole(&'static self) -> &'static Totals {
        self.whole.unwrap_or(self)
    }

    pub fn limit(&'static self) -> Option<usize> {
        Some(self.whole().limit.load(Relaxed)).filter(|limit| *limit != usize::MAX)
    }

    pub fn set_limit(&self, limit: Option<usize>) {
        self.limit.store(limit.unwrap_or(usize::MAX), Relaxed);
    }

    pub fn reserved(&self) -> usize {
        self.current(Family::ReservedBytes) as usize
    }

    /// Without what its parts hold.
    pub fn reserved_apart(&self) -> usize {
        let of_parts: usize = self.parts.lock().iter().map(|part| part.reserved()).sum();
        self.reserved().saturating_sub(of_parts)
    }

    fn shards(&self) -> impl Iterator<Item = &'static Shard> {
        let of = |link: &AtomicPtr<Shard>| unsafe { link.load(Acquire).as_ref() };
        std::iter::successors(of(&self.shards), move |shard| of(&shard.next))
    }

    /// A shard for a thread, or for what is counted under the device's lock. All threads of the device are stopped.
    pub fn take_shard(&'static self, thread: bool) -> &'static Shard {
        let _adding = self.adding.lock();
        let known = self.shards().find(|shard| !shard.taken.load(Relaxed) && shard.common != thread);
        let shard = known.unwrap_or_else(|| {
            let shard = Box::leak(Box::new(Shard {
                lanes: Default::default(),
                large_lanes: Default::default(),
                spare: Default::default(),
                allocated: Default::default(),
                freed: Default::default(),
                ceilings: Default::default(),
                ebb: AtomicI64::new(LOOK),
                totals: self,
                common: !thread,
                of_parts: AtomicBool::new(false),
                allocates: Cell::new(false),
                taken: AtomicBool::new(false),
                next: AtomicPtr::new(self.shards.load(Relaxed)),
            }));
            self.shards.store(shard, Release);
            shard
        });
        shard.taken.store(true, Relaxed);
        shard.close();
        // Who joins takes a part of what the others are to free.
        self.shards().for_each(|shard| shard.ebb.store(LOOK, Relaxed));
        shard
    }

    /// One for the blocks of its parts, which are no use of its own memory.
    pub fn take_shard_of_parts(&'static self) -> &'static Shard {
        let shard = self.take_shard(false);
        shard.of_parts.store(true, Relaxed);
        shard
    }

    /// The thread ends. All threads of the device are stopped.
    pub fn give_back(&self, shard: &Shard) {
        let _adding = self.adding.lock();
        shard.taken.store(false, Relaxed);
        if shard.allocates.take() {
            self.threads.fetch_sub(1, Relaxed);
            self.renew();
        }
    }

    /// The thread of a shard is going to allocate. `stop` stops all threads of the device.
    pub fn allocates(&self, shard: &Shard, stop: impl FnOnce()) {
        if !shard.allocates.get() && !shard.common {
            stop();
            shard.allocates.set(true);
            self.threads.fetch_add(1, Relaxed);
            self.renew();
        }
    }

    /// No shard has room: each looks anew at its next block. All threads of the device are stopped.
    fn renew(&self) {
        self.alone.store(self.threads.load(Relaxed) <= 1, Relaxed);
        self.raise_peaks();
        self.shards().for_each(Shard::close);
    }

    /// It is to be noticed when less than so many bytes of large blocks are in use. All threads of the device are stopped.
    pub fn watch_for(&self, floor: usize) {
        self.low.store(0, Relaxed);
        self.floor.store(floor as i64, Relaxed);
        self.shards().for_each(|shard| _ = shard.watch());
    }

    /// The floor, if it came to that; to be asked once.
    pub fn take_low(&self) -> Option<i64> {
        let some = |floor| (floor != 0).then_some(floor);
        some(self.low.load(Relaxed)).and_then(|_| some(self.low.swap(0, Relaxed)))
    }

    /// Nothing came of it: the next free with as little in use is to notice it once more.
    pub fn watch_again(&self, floor: i64) {
        if self.floor.compare_exchange(0, floor, Relaxed, Relaxed).is_ok() {
            self.shards().for_each(|shard| shard.ebb.store(LOOK, Relaxed));
        }
    }

    /// Counted a few times more while what others free meanwhile makes the difference.
    fn large_in_use(&self, floor: i64) -> InUse {
        let again = |counted: InUse, _| if counted.least < floor && floor <= counted.most { self.count_large() } else { counted };
        (0..3).fold(self.count_large(), again)
    }

    fn count_large(&self) -> InUse {
        let own = || self.shards().filter(|shard| !shard.of_parts.load(Relaxed));
        let sum = |of: fn(&Shard) -> &[[AtomicI64; MEASURES]; SIZES]| own().map(|shard| of(shard)[LARGE][BYTES].load(Acquire)).sum::<i64>();
        let freed_before = sum(|shard| &shard.freed);
        let allocated = sum(|shard| &shard.allocated);
        let freed_after = sum(|shard| &shard.freed);
        let threads = own().filter(|shard| shard.taken.load(Relaxed) && !shard.common).count() as i64;
        InUse { least: allocated - freed_after, most: allocated - freed_before, threads: threads.max(1) }
    }

    /// What is handed out now, of small and of large blocks; and all that ever was.
    fn sums(&self) -> ([Measures; SIZES], [Measures; SIZES]) {
        let mut allocated = [[0; MEASURES]; SIZES];
        let mut freed = [[0; MEASURES]; SIZES];
        // All that was allocated first: while threads go on, what is handed out may come out smaller than it is, and no peak too high.
        let add = |sums: &mut [Measures; SIZES], of: fn(&Shard) -> &[[AtomicI64; MEASURES]; SIZES]| {
            for shard in self.shards() {
                for (sum, counter) in sums.iter_mut().flatten().zip(of(shard).iter().flatten()) {
                    *sum += counter.load(Acquire);
                }
            }
        };
        add(&mut allocated, |shard| &shard.allocated);
        add(&mut freed, |shard| &shard.freed);
        (allocated, freed)
    }

    fn credit_of(&self, measure: usize) -> i64 {
        if measure == COUNT { self.credit >> UNIT_SHIFT } else { self.credit }
    }

    /// Of small, of large and of all blocks: each peak with the current figure of its own, be it of blocks handed out or of active ones.
    #[inline]
    fn each_peak(&self, mut act: impl FnMut(usize, usize, [(&AtomicI64, i64); 2])) {
        let (allocated, freed) = self.sums();
        let pending = read(&self.pending);
        for measure in 0..MEASURES {
            let now = |size: usize| allocated[size][measure] - freed[size][measure];
            let (small, large) = (now(SMALL), now(LARGE));
            let waiting = [pending[SMALL][measure], pending[LARGE][measure]];
            let figures = [(small, waiting[SMALL]), (large, waiting[LARGE]), (small + large, waiting[SMALL] + waiting[LARGE])];
            for (of, (now, waiting)) in figures.into_iter().enumerate() {
                act(of, measure, [(&self.peaks[of][measure], now), (&self.active_peaks[of][measure], now + waiting)]);
            }
        }
    }

    /// How much may be handed out, of small, of large and of all blocks, until there is a new peak.
    fn raise_peaks(&self) -> [Measures; SIZES + 1] {
        let mut rooms = [[0; MEASURES]; SIZES + 1];
        self.each_peak(|of, measure, [handed_out, active]| {
            // Looked at first: most often there is no new peak, and the line stays everybody's.
            let raise = |(peak, now): (&AtomicI64, i64)| match peak.load(Relaxed) {
                high if high >= now => high - now,
                _ => peak.fetch_max(now, Relaxed).max(now) - now,
            };
            rooms[of][measure] = raise(handed_out).min(raise(active));
        });
        rooms
    }

    fn pend(&self, size: usize, amounts: Measures) {
        for (measure, amount) in amounts.into_iter().enumerate() {
            self.pending[size][measure].fetch_add(amount, Relaxed);
        }
    }

    /// A pending block is free.
    pub fn done(&self, small: bool, bytes: usize, requested: usize) {
        self.pend(if small { SMALL } else { LARGE }, [-1, -(bytes as i64), -(requested as i64)]);
    }

    /// Blocks that were ever freed.
    pub fn frees(&self) -> u64 {
        self.shards().flat_map(|shard| &shard.freed).map(|freed| freed[COUNT].load(Relaxed) as u64).sum()
    }

    pub fn has_pending(&self) -> bool {
        self.pending.iter().any(|size| size[COUNT].load(Relaxed) != 0)
    }

    pub fn add(&self, family: Family, small: bool, amount: usize) {
        if let Some(counters) = counter_of(family).map(|at| &self.counters[at]) {
            counters[if small { SMALL } else { LARGE }].add(amount as i64);
            counters[SIZES].add(amount as i64);
        }
        if let Some(whole) = self.whole {
            whole.add(family, small, amount);
        }
    }

    pub fn sub(&self, family: Family, small: bool, amount: usize) {
        if let Some(counters) = counter_of(family).map(|at| &self.counters[at]) {
            counters[if small { SMALL } else { LARGE }].sub(amount as i64);
            counters[SIZES].sub(amount as i64);
        }
        if let Some(whole) = self.whole {
            whole.sub(family, small, amount);
        }
    }

    pub fn count(&self, event: Event) {
        self.events[event as usize].fetch_add(1, Relaxed);
        if let Some(whole) = self.whole {
            whole.count(event);
        }
    }

    /// What is handed out or pending, without its parts.
    pub fn active(&self) -> Active {
        let mut active = self.active_with_parts();
        for part in self.parts() {
            let of_part = part.active();
            active.bytes = active.bytes.saturating_sub(of_part.bytes);
            active.large = active.large.saturating_sub(of_part.large);
            active.large_bytes = active.large_bytes.saturating_sub(of_part.large_bytes);
            // The most at a time is known of all together only.
            active.peak = active.bytes;
        }
        active
    }

    pub fn active_with_parts(&self) -> Active {
        self.raise_peaks();
        let (allocated, freed) = self.sums();
        let pending = read(&self.pending);
        let now = |size: usize, measure: usize| (allocated[size][measure] - freed[size][measure] + pending[size][measure]).max(0) as usize;
        Active {
            bytes: now(SMALL, BYTES) + now(LARGE, BYTES),
            large: now(LARGE, COUNT),
            large_bytes: now(LARGE, BYTES),
            peak: self.active_peaks[SIZES][BYTES].load(Relaxed) as usize,
        }
    }

    pub fn current(&self, family: Family) -> i64 {
        match counter_of(family) {
            Some(at) => self.counters[at][SIZES].current.load(Relaxed),
            None => self.stats().current(family),
        }
    }

    /// All figures. Exact when no thread allocates or frees meanwhile.
    pub fn stats(&self) -> Stats {
        self.raise_peaks();
        let (allocated, freed) = self.sums();
        let pending = read(&self.pending);
        let (allocated_before, freed_before) = (read(&self.allocated_before), read(&self.freed_before));
        let active_freed_before = read(&self.active_freed_before);
        let mut stats = Stats::default();
        let families = [
            (Family::Allocation, COUNT, false),
            (Family::AllocatedBytes, BYTES, false),
            (Family::Active, COUNT, true),
            (Family::ActiveBytes, BYTES, true),
            (Family::RequestedBytes, REQUESTED, true),
        ];
        for (family, measure, active) in families {
            let of = |size: usize| {
                let waiting = if active { pending[size][measure] } else { 0 };
                let before = if active { &active_freed_before } else { &freed_before };
                let gone = freed[size][measure] - waiting;
                Stat {
                    current: allocated[size][measure] - gone,
                    peak: if active { &self.active_peaks } else { &self.peaks }[size][measure].load(Relaxed),
                    allocated: allocated[size][measure] - allocated_before[size][measure],
                    freed: gone - before[size][measure],
                }
            };
            let (small, large) = (of(SMALL), of(LARGE));
            let all = Stat {
                current: small.current + large.current,
                peak: if active { &self.active_peaks } else { &self.peaks }[SIZES][measure].load(Relaxed),
                allocated: small.allocated + large.allocated,
                freed: small.freed + large.freed,
            };
            stats.set(family, Pool::Small, small);
            stats.set(family, Pool::Large, large);
            stats.set(family, Pool::All, all);
        }
        for family in [Family::Segment, Family::ReservedBytes, Family::InactiveSplit, Family::InactiveSplitBytes] {
            let Some(at) = counter_of(family) else { continue };
            for (pool, place) in [(Pool::Small, SMALL), (Pool::Large, LARGE), (Pool::All, SIZES)] {
                stats.set(family, pool, self.counters[at][place].get());
            }
        }
        let event = |event: Event| self.events[event as usize].load(Relaxed);
        stats.num_alloc_retries = event(Event::AllocRetry);
        stats.num_ooms = event(Event::Ooms);
        stats.num_sync_all_streams = event(Event::SyncAllStreams);
        stats.num_device_alloc = event(Event::DeviceAlloc);
        stats.num_device_free = event(Event::DeviceFree);
        stats
    }

    /// Every peak becomes the current figure. All threads of the device are stopped.
    pub fn reset_peak(&self) {
        // Others may read them meanwhile.
        self.each_peak(|_, _, peaks| peaks.into_iter().for_each(|(peak, now)| peak.store(now, Relaxed)));
        for counter in self.counters.iter().flatten() {
            counter.peak.store(counter.current.load(Relaxed), Relaxed);
        }
        self.renew();
    }

    /// Every sum over time and every counter becomes 0. All threads of the device are stopped.
    pub fn reset_accumulated(&self) {
        let (allocated, freed) = self.sums();
        let pending = read(&self.pending);
        for size in 0..SIZES {
            for measure in 0..MEASURES {
                self.allocated_before[size][measure].store(allocated[size][measure], Relaxed);
                self.freed_before[size][measure].store(freed[size][measure], Relaxed);
                self.active_freed_before[size][measure].store(freed[size][measure] - pending[size][measure], Relaxed);
            }
        }
        for counter in self.counters.iter().flatten() {
            counter.allocated.store(0, Relaxed);
            counter.freed.store(0, Relaxed);
        }
        for event in &self.events {
            event.store(0, Relaxed);
        }
    }

    /// Nothing is held any more: as new, but for the shards. All threads of the device are stopped.
    pub fn clear(&self) {
        for shard in self.shards() {
            for counter in shard.allocated.iter().chain(&shard.freed).flatten() {
                counter.store(0, Relaxed);
            }
        }
        for counter in self.pending.iter().flatten() {
            counter.store(0, Relaxed);
        }
        for counter in self.counters.iter().flatten() {
            counter.current.store(0, Relaxed);
        }
        self.reset_accumulated();
        self.reset_peak();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::sync::barrier;
    use crate::memory::sync::model::{Defect, explore};
    use shuttle::rand::{Rng, thread_rng};

    const SIZE: i64 = 20 << 20;
    const BLOCKS: i64 = 32;

    fn totals() -> &'static Totals {
        Box::leak(Box::new(Totals::new(64 << 30)))
    }

    fn thread(totals: &'static Totals) -> &'static Shard {
        let shard = totals.take_shard(true);
        totals.allocates(shard, || ());
        (0..BLOCKS).for_each(|_| shard.allocated_large(SIZE, SIZE));
        shard
    }

    /// Frees of each shard by turns of so many; after how many of all it was noticed, if it was, and how often somebody looked.
    fn frees(shards: &[&Shard], turn: i64) -> (Option<i64>, i64) {
        let (mut noticed, mut looks, mut freed) = (None, 0, 0);
        for shard in (0..BLOCKS / turn).flat_map(|_| shards) {
            for _ in 0..turn {
                let ebb = shard.ebb.load(Relaxed);
                freed += 1;
                if shard.freed_large(SIZE, SIZE) {
                    assert!(noticed.replace(freed).is_none());
                }
                looks += i64::from(shard.ebb.load(Relaxed) != ebb);
            }
        }
        (noticed, looks)
    }

    /// Also one that joins late, and frees what the first one has.
    #[test]
    fn that_little_is_in_use_is_noticed_whoever_frees() {
        for (case, turn) in [BLOCKS, 4, 1].into_iter().cycle().enumerate().take(24) {
            let (threads, late) = (1 + case as i64 / 3 % 4, case >= 12);
            let totals = totals();
            let mut shards: Vec<&Shard> = (0..threads).map(|_| thread(totals)).collect();
            totals.watch_for((2 * SIZE) as usize);
            if late {
                (0..BLOCKS).for_each(|_| shards[0].allocated_large(SIZE, SIZE));
                shards.insert(0, totals.take_shard(true));
            }
            let (noticed, looks) = frees(&shards, turn);
            assert_eq!(noticed, Some(BLOCKS * shards.len() as i64 - 1), "{threads} threads, {late}");
            assert!(looks <= 16 * shards.len() as i64, "{threads} threads looked {looks} times");
            assert_eq!([(); 2].map(|_| totals.take_low()), [Some(2 * SIZE), None]);
            totals.watch_again(2 * SIZE);
            shards[0].allocated_large(SIZE, SIZE);
            assert!(shards[0].freed_large(SIZE, SIZE) && totals.take_low().is_some());
        }
    }

    /// Blocks come and go on several threads, and much stays in use all the time: whatever is seen of it in between, it is not little.
    #[test]
    fn much_in_use_is_never_taken_for_little() {
        const THREADS: i64 = 3;
        const MOST: i64 = 4;
        let explored = explore(2000, 5, Defect::None, || {
            let totals = totals();
            let shards: Vec<&'static Shard> = (0..THREADS).map(|_| thread(totals)).collect();
            totals.watch_for(((BLOCKS - MOST) * THREADS * SIZE - 1) as usize);
            barrier();
            let churn = |shard: &'static Shard| {
                for _ in 0..3 {
                    let count = thread_rng().gen_range(1..=MOST);
                    (0..count).for_each(|_| assert!(!shard.freed_large(SIZE, SIZE), "little is in use"));
                    (0..count).for_each(|_| shard.allocated_large(SIZE, SIZE));
                }
            };
            let threads: Vec<_> = shards.into_iter().map(|shard| shuttle::thread::spawn(move || churn(shard))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(explored, Ok(()));
    }

    /// A pool's allocation has every thread look anew at its next block, and what a pool has in use is not the device's.
    #[test]
    fn that_little_is_in_use_is_noticed_beside_pools() {
        let totals = totals();
        let own = thread(totals);
        let of_pools = totals.take_shard_of_parts();
        totals.watch_for((2 * SIZE) as usize);
        (0..BLOCKS).for_each(|_| of_pools.allocated(false, SIZE as usize, SIZE as usize));
        assert_eq!(frees(&[own], 1).0, Some(BLOCKS - 1));
        // There is nothing to watch for, which is asked once.
        totals.renew();
        own.allocated_large(SIZE, SIZE);
        assert!(!own.freed_large(SIZE, SIZE) && own.ebb.load(Relaxed) == NEVER);
    }
}
