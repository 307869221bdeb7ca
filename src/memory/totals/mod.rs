//! Where the statistics of a device are counted, read by anybody without a lock. What a thread hands out and takes back it counts alone
//! (`shard`). Here is what all threads together come to, with the peaks, which belong to all of them, and what is counted under the
//! device's lock. What a device's pools count, each for itself, are parts of what it counts. That less than a floor is in use is noticed
//! in `ebb`. For a request what all come to is known in `ledger`, without a look at each.

mod ebb;
mod ledger;
mod shard;

pub use shard::Shard;

use super::stats::{Family, Pool, Stat, Stats};
use super::sync::{AtomicBool, AtomicI64, AtomicPtr, AtomicUsize, Mutex};
use ebb::{LOOK, NEVER_LOOKED};
use ledger::{Counted, Ledger};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// What is counted of a block: that there is one, its bytes, and those asked for.
const MEASURES: usize = 3;
type Measures = [i64; MEASURES];
const COUNT: usize = 0;
const BYTES: usize = 1;
const REQUESTED: usize = 2;

/// Small and large blocks.
const SIZES: usize = 2;
const SMALL: usize = 0;
const LARGE: usize = 1;
type Figures = [Measures; SIZES];

/// Whose blocks are counted.
const OWN: usize = 0;
const OF_PARTS: usize = 1;

/// What was ever handed out of small and of large blocks, what was freed of it, and what of that waits for other streams.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Sums {
    allocated: Figures,
    freed: Figures,
    pending: Figures,
}

impl Sums {
    fn with(mut self, more: &Sums) -> Sums {
        add(&mut self.allocated, more.allocated);
        add(&mut self.freed, more.freed);
        add(&mut self.pending, more.pending);
        self
    }

    fn handed_out(&self, size: usize, measure: usize) -> i64 {
        self.allocated[size][measure] - self.freed[size][measure]
    }

    fn active(&self, size: usize, measure: usize) -> i64 {
        self.handed_out(size, measure) + self.pending[size][measure]
    }

    fn frees(&self) -> u64 {
        self.freed.iter().map(|freed| freed[COUNT] as u64).sum()
    }

    fn active_bytes(&self) -> i64 {
        self.active(SMALL, BYTES) + self.active(LARGE, BYTES)
    }
}

/// A lane with several threads is the most that was in use over this, or what the thread's blocks need, within the device's memory over that.
const CREDIT: i64 = 32;
const MOST_CREDIT: i64 = 512;
const LEAST_CREDIT: i64 = 1 << 20;

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
    /// A request that was refused at the limit at once.
    OomRejections,
}

/// What is handed out or pending on a device.
pub struct Active {
    pub bytes: usize,
    pub large: usize,
    pub large_bytes: usize,
}

impl Active {
    fn of(sums: &Sums) -> Active {
        let now = |size: usize, measure: usize| sums.active(size, measure).max(0) as usize;
        Active { bytes: now(SMALL, BYTES) + now(LARGE, BYTES), large: now(LARGE, COUNT), large_bytes: now(LARGE, BYTES) }
    }
}

/// Of a device, or of a part of it. Never freed.
pub struct Totals {
    /// The device that this is a part of; the first of a device's parts, and the one behind this one.
    whole: Option<&'static Totals>,
    first_part: OnceLock<&'static Totals>,
    next_part: OnceLock<&'static Totals>,
    /// Most bytes that the device may hold from the driver; `usize::MAX`: as many as there are.
    limit: AtomicUsize,
    shards: AtomicPtr<Shard>,
    adding: Mutex<()>,
    ledger: Ledger,
    /// What its shards had counted when they were settled last.
    settled: Counted,
    settled_of_parts: Counted,
    /// Of a device: the shards of threads that allocate, those of its parts too.
    at_work: Mutex<Vec<&'static Shard>>,
    /// One thread at most allocates on the device, its parts included.
    alone: AtomicBool,
    /// Large blocks with less bytes in use are what is watched for; 0: nothing is. And the one that it came to.
    floor: AtomicI64,
    low: AtomicI64,
    /// Rises when one of those that free has freed its part.
    round: AtomicI64,
    most_credit: i64,
    /// Of small, large and all blocks: allocated, and active.
    peaks: [[AtomicI64; MEASURES]; SIZES + 1],
    active_peaks: [[AtomicI64; MEASURES]; SIZES + 1],
    /// The most active bytes without those of parts since `forget_most`, which no reset of statistics lowers.
    most: AtomicI64,
    /// Freed, but perhaps in use by other streams.
    pending: [[AtomicI64; MEASURES]; SIZES],
    pending_of_parts: [[AtomicI64; MEASURES]; SIZES],
    /// What was allocated, and freed, when the sums over time were reset.
    allocated_before: [[AtomicI64; MEASURES]; SIZES],
    freed_before: [[AtomicI64; MEASURES]; SIZES],
    active_freed_before: [[AtomicI64; MEASURES]; SIZES],
    /// By family, and small, large, all: segments, reserved bytes, inactive splits and their bytes.
    counters: [[Counter; SIZES + 1]; 4],
    events: [AtomicI64; 6],
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

fn read(all: &[[AtomicI64; MEASURES]; SIZES]) -> Figures {
    std::array::from_fn(|size| std::array::from_fn(|measure| all[size][measure].load(Acquire)))
}

fn add(sum: &mut Figures, more: Figures) {
    sum.iter_mut().flatten().zip(more.iter().flatten()).for_each(|(sum, more)| *sum += more);
}

impl Totals {
    /// `memory`: bytes of the device.
    pub fn new(memory: u64) -> Totals {
        Totals {
            whole: None,
            first_part: OnceLock::new(),
            next_part: OnceLock::new(),
            limit: AtomicUsize::new(usize::MAX),
            shards: AtomicPtr::default(),
            adding: Mutex::new(()),
            ledger: Ledger::default(),
            settled: Default::default(),
            settled_of_parts: Default::default(),
            at_work: Mutex::new(Vec::new()),
            alone: AtomicBool::new(true),
            floor: AtomicI64::new(0),
            low: AtomicI64::new(0),
            round: AtomicI64::new(0),
            most_credit: (memory as i64 / MOST_CREDIT).max(LEAST_CREDIT),
            peaks: Default::default(),
            active_peaks: Default::default(),
            most: AtomicI64::new(0),
            pending: Default::default(),
            pending_of_parts: Default::default(),
            allocated_before: Default::default(),
            freed_before: Default::default(),
            active_freed_before: Default::default(),
            counters: Default::default(),
            events: Default::default(),
        }
    }

    /// A part of a device.
    pub fn part_of(whole: &'static Totals, memory: u64) -> &'static Totals {
        // Nobody finds out meanwhile whether several threads allocate, and tells the parts that are there.
        let _at_work = whole.at_work.lock();
        let alone = AtomicBool::new(whole.alone.load(Relaxed));
        let part: &'static Totals = Box::leak(Box::new(Totals { whole: Some(whole), alone, ..Totals::new(memory) }));
        let place = whole.parts().last().map_or(&whole.first_part, |last| &last.next_part);
        place.get_or_init(|| part)
    }

    pub fn parts(&self) -> impl Iterator<Item = &'static Totals> {
        std::iter::successors(self.first_part.get().copied(), |part| part.next_part.get().copied())
    }

    /// Of the device.
    pub fn whole(&'static self) -> &'static Totals {
        self.whole.unwrap_or(self)
    }

    pub fn is_part(&self) -> bool {
        self.whole.is_some()
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
        let of_parts: usize = self.parts().map(Totals::reserved).sum();
        self.reserved().saturating_sub(of_parts)
    }

    fn shards(&self) -> impl Iterator<Item = &'static Shard> {
        Shard::linked(&self.shards, |shard| &shard.next)
    }

    /// A shard for a thread, by its number, or for what is counted under the lock: 0. All threads of the cache are stopped.
    pub fn take_shard(&'static self, thread: u32) -> &'static Shard {
        let _adding = self.adding.lock();
        let common = thread == 0;
        let known = self.shards().find(|shard| !shard.taken.load(Relaxed) && shard.common == common);
        let shard = known.unwrap_or_else(|| {
            let shard = Box::leak(Box::new(Shard::new(self, common, self.shards.load(Relaxed))));
            self.shards.store(shard, Release);
            shard
        });
        shard.thread.set(thread);
        shard.taken.store(true, Relaxed);
        shard.close();
        // When it frees, it takes a part of what the others are to free.
        shard.looked.store(NEVER_LOOKED, Relaxed);
        shard.ebb.store(LOOK, Relaxed);
        self.opens(shard);
        shard
    }

    /// The thread ends. All threads of the device are stopped.
    pub fn give_back(&self, shard: &'static Shard) {
        let _adding = self.adding.lock();
        shard.taken.store(false, Relaxed);
        shard.rests();
    }

    /// The thread of a shard is going to allocate, after so many stops. `stop` stops all threads of the device.
    pub fn allocates(&'static self, shard: &'static Shard, stops: u64, stop: impl FnOnce()) {
        shard.allocated_at.set(stops);
        self.opens(shard);
        if !shard.allocates.get() && !shard.common {
            stop();
            shard.allocates.set(true);
            self.whole().at_work.lock().push(shard);
            self.renew();
        }
    }

    /// Threads that came to allocate after so many stops last, or before, are at rest: of a device those of its parts too. `did` is told which
    /// were not. All threads of the device are stopped.
    pub fn rest(&'static self, stops: u64, mut did: impl FnMut(&'static Shard)) {
        let idle = |shard: &&Shard| shard.allocated_at.get() <= stops && (self.whole.is_none() || std::ptr::eq(shard.totals, self));
        // Most often none.
        let idle: Vec<&Shard> = self.whole().at_work.lock().iter().copied().filter(idle).collect();
        for shard in idle {
            shard.rests();
            did(shard);
        }
    }

    /// It does no more before `allocates`. All threads of the device are stopped.
    fn allocates_no_more(&'static self, shard: &Shard) {
        self.renew();
        self.whole().at_work.lock().retain(|other| !std::ptr::eq(*other, shard));
        self.whole().find_alone();
    }

    fn find_alone(&self) {
        let at_work = self.at_work.lock();
        let alone = at_work.iter().all(|shard| shard.thread == at_work[0].thread);
        if self.alone.swap(alone, Relaxed) != alone {
            self.parts().for_each(|part| part.alone.store(alone, Relaxed));
        }
    }

    /// No shard has room: each looks anew at its next block. All threads of the device are stopped, those of its parts too.
    fn renew(&'static self) {
        let whole = self.whole();
        whole.find_alone();
        whole.raise_peaks(&whole.steady_sums());
        let raise = |part: &Totals| _ = part.raise_peaks(&part.steady_sums());
        self.whole.into_iter().for_each(|_| raise(self));
        // No other shard has room.
        for shard in whole.at_work.lock().iter() {
            if ![self, whole].iter().any(|raised| std::ptr::eq(*raised, shard.totals)) {
                raise(shard.totals);
            }
            shard.close();
        }
    }

    /// For a thread of which so much was wanted.
    fn credit(&self, wanted: i64) -> i64 {
        wanted.max(self.active_peaks[SIZES][BYTES].load(Relaxed) / CREDIT).clamp(LEAST_CREDIT, self.most_credit)
    }

    fn sums_with_parts(&self) -> Sums {
        let [own, of_parts] = self.sums();
        own.with(&of_parts)
    }

    /// Of small, of large and of all blocks: each peak with the current figure of its own, be it of blocks handed out or of active ones.
    #[inline]
    fn each_peak(&self, sums: &Sums, mut act: impl FnMut(usize, usize, [(&AtomicI64, i64); 2])) {
        for measure in 0..MEASURES {
            let (small, large) = (sums.handed_out(SMALL, measure), sums.handed_out(LARGE, measure));
            let waiting = [SMALL, LARGE].map(|size| sums.pending[size][measure]);
            let figures = [(small, waiting[SMALL]), (large, waiting[LARGE]), (small + large, waiting[SMALL] + waiting[LARGE])];
            for (of, (now, waiting)) in figures.into_iter().enumerate() {
                act(of, measure, [(&self.peaks[of][measure], now), (&self.active_peaks[of][measure], now + waiting)]);
            }
        }
    }

    /// How much may be handed out, of small, of large and of all blocks, until there is a new peak; and how many bytes of its own.
    fn raise_peaks(&self, [own, of_parts]: &[Sums; 2]) -> ([Measures; SIZES + 1], i64) {
        // Looked at first: most often there is no new peak, and the line stays everybody's.
        let raise = |(peak, now): (&AtomicI64, i64)| match peak.load(Relaxed) {
            high if high >= now => high - now,
            _ => peak.fetch_max(now, Relaxed).max(now) - now,
        };
        let mut rooms = [[0; MEASURES]; SIZES + 1];
        self.each_peak(&own.with(of_parts), |of, measure, [handed_out, active]| {
            rooms[of][measure] = raise(handed_out).min(raise(active));
        });
        (rooms, self.raise_most(own) - own.active_bytes())
    }

    fn raise_most(&self, own: &Sums) -> i64 {
        let now = own.active_bytes();
        // Looked at first, as peaks are.
        match self.most.load(Relaxed) {
            high if high >= now => high,
            _ => self.most.fetch_max(now, Relaxed).max(now),
        }
    }

    /// How much one of its shards may hand out until there is a new peak, here or on its device.
    fn rooms(&self) -> [Measures; SIZES + 1] {
        let (mut rooms, own) = self.raise_peaks(&self.steady_sums());
        if let Some(whole) = self.whole {
            let (of_whole, _) = whole.raise_peaks(&whole.steady_sums());
            rooms.iter_mut().flatten().zip(of_whole.iter().flatten()).for_each(|(room, of_whole)| *room = *of_whole.min(room));
        }
        rooms[SIZES][BYTES] = rooms[SIZES][BYTES].min(own);
        rooms
    }

    fn pend(&self, size: usize, amounts: Measures) {
        for (measure, amount) in amounts.into_iter().enumerate() {
            // Whoever sees that it waits sees that it was freed.
            self.pending[size][measure].fetch_add(amount, Release);
            if let Some(whole) = self.whole {
                whole.pending_of_parts[size][measure].fetch_add(amount, Release);
            }
        }
    }

    /// A pending block is free.
    pub fn done(&self, small: bool, bytes: usize, requested: usize) {
        self.pend(if small { SMALL } else { LARGE }, [-1, -(bytes as i64), -(requested as i64)]);
    }

    /// Blocks that were ever freed, without those of its parts.
    pub fn frees(&self) -> u64 {
        self.sums()[OWN].frees()
    }

    pub fn frees_with_parts(&self) -> u64 {
        self.sums().iter().map(Sums::frees).sum()
    }

    /// How many bytes its own had that were large.
    pub fn large_bytes_freed(&self) -> u64 {
        self.sums()[OWN].freed[LARGE][BYTES] as u64
    }

    pub fn has_pending(&self) -> bool {
        self.pending.iter().chain(&self.pending_of_parts).any(|size| size[COUNT].load(Relaxed) != 0)
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
        Active::of(&self.sums()[OWN])
    }

    /// The same, and the most that was since `forget_most`.
    pub fn active_and_most(&self) -> (Active, usize) {
        let [own, _] = self.sums();
        let most = self.raise_most(&own);
        (Active::of(&own), most as usize)
    }

    /// What is now counts from here on. All threads of the device are stopped.
    pub fn forget_most(&'static self) {
        self.most.store(0, Relaxed);
        self.renew();
    }

    pub fn current(&self, family: Family) -> i64 {
        match counter_of(family) {
            Some(at) => self.counters[at][SIZES].current.load(Relaxed),
            None => self.stats().current(family),
        }
    }

    /// All figures. Exact when no thread allocates or frees meanwhile.
    pub fn stats(&self) -> Stats {
        let sums = self.sum_up();
        self.raise_peaks(&sums);
        let Sums { allocated, freed, pending } = sums[OWN].with(&sums[OF_PARTS]);
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
        stats.num_oom_rejections = event(Event::OomRejections);
        stats
    }

    /// Every peak becomes the current figure. All threads of the device are stopped.
    pub fn reset_peak(&'static self) {
        // Others may read them meanwhile.
        self.each_peak(&self.sums_with_parts(), |_, _, peaks| peaks.into_iter().for_each(|(peak, now)| peak.store(now, Relaxed)));
        for counter in self.counters.iter().flatten() {
            counter.peak.store(counter.current.load(Relaxed), Relaxed);
        }
        self.renew();
    }

    /// Every sum over time and every counter becomes 0. All threads of the device are stopped.
    pub fn reset_accumulated(&self) {
        let Sums { allocated, freed, pending } = self.sums_with_parts();
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
    pub fn clear(&'static self) {
        for shard in self.shards() {
            for counter in shard.allocated.iter().chain(&shard.freed).flatten() {
                counter.store(0, Relaxed);
            }
            self.opens(shard);
        }
        for (size, pending) in self.pending.iter().enumerate() {
            for (measure, counter) in pending.iter().enumerate() {
                let gone = counter.swap(0, Relaxed);
                self.whole.into_iter().for_each(|whole| _ = whole.pending_of_parts[size][measure].fetch_sub(gone, Relaxed));
            }
        }
        for counter in self.counters.iter().flatten() {
            counter.current.store(0, Relaxed);
        }
        self.reset_accumulated();
        self.forget_most();
        self.reset_peak();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::sync::barrier;
    use crate::memory::sync::model::{Defect, explore};

    const SIZE: i64 = 20 << 20;

    #[test]
    fn the_most_is_of_its_own_blocks_and_no_reset_lowers_it() {
        let totals: &'static Totals = Box::leak(Box::new(Totals::new(64 << 30)));
        let part = Totals::part_of(totals, 64 << 30);
        let (own, of_part) = (totals.take_shard(1), part.take_shard(0));
        totals.allocates(own, 0, || ());
        let most = || totals.active_and_most().1 as i64 / SIZE;
        let allocate = |count: i64| (0..count).for_each(|_| own.allocated_large(SIZE, SIZE));
        let size = SIZE as usize;
        (0..9).for_each(|_| of_part.allocated(false, size, size));
        allocate(3);
        own.freed_large(SIZE, SIZE);
        (0..9).for_each(|_| of_part.freed(false, size, size));
        assert_eq!((most(), totals.active().bytes as i64), (3, 2 * SIZE));
        totals.reset_peak();
        assert_eq!((most(), totals.stats().peak(Family::ActiveBytes)), (3, 2 * SIZE));
        // Behind what all had together its own counts to the block, also those that wait for other streams.
        totals.forget_most();
        assert_eq!(most(), 2);
        (0..9).for_each(|_| of_part.allocated(false, size, size));
        of_part.freed_later(false, size, size);
        own.freed_later(false, size, size);
        allocate(2);
        totals.done(false, size, size);
        assert_eq!((most(), totals.active().bytes as i64), (4, 3 * SIZE));
        part.done(false, size, size);
        assert_eq!((totals.stats().current(Family::ActiveBytes), totals.stats().peak(Family::ActiveBytes)), (11 * SIZE, 13 * SIZE));
        assert!(!totals.has_pending());
    }

    /// Of two threads one frees while it has no room, and allocates again what the other has meanwhile.
    #[test]
    fn what_is_freed_without_room_makes_none_where_others_allocate() {
        let totals: &'static Totals = Box::leak(Box::new(Totals::new(64 << 30)));
        let [first, second] = [1, 2].map(|thread| totals.take_shard(thread));
        totals.allocates(first, 0, || ());
        (0..100).for_each(|_| first.allocated_large(SIZE, SIZE));
        totals.allocates(second, 0, || ());
        (0..50).for_each(|_| _ = first.freed_large(SIZE, SIZE));
        (0..50).for_each(|_| second.allocated_large(SIZE, SIZE));
        (0..50).for_each(|_| first.allocated_large(SIZE, SIZE));
        (0..100).for_each(|_| _ = first.freed_large(SIZE, SIZE));
        let peak = totals.stats().peak(Family::AllocatedBytes);
        assert!(peak + 4 * totals.credit(0) >= 150 * SIZE, "{peak}");
    }

    /// Others look meanwhile: it is in use once. Also one of a part.
    #[test]
    fn a_block_that_waits_is_never_counted_twice() {
        for of_part in [false, true] {
            let program = move || {
                let totals: &'static Totals = Box::leak(Box::new(Totals::new(64 << 30)));
                let own = if of_part { Totals::part_of(totals, 64 << 30) } else { totals };
                let shard = own.take_shard(1);
                own.allocates(shard, 0, || ());
                barrier();
                let uses = move || {
                    for _ in 0..2 {
                        shard.allocated_large(SIZE, SIZE);
                        shard.freed_later(false, SIZE as usize, SIZE as usize);
                        own.done(false, SIZE as usize, SIZE as usize);
                    }
                };
                let thread = shuttle::thread::spawn(uses);
                assert!((0..3).all(|_| totals.stats().peak(Family::ActiveBytes) <= SIZE), "the peak is too high");
                thread.join().unwrap();
            };
            assert_eq!(explore(2000, 6, Defect::None, program), Ok(()));
        }
    }

    #[test]
    fn a_part_that_is_new_knows_whether_several_threads_allocate() {
        let program = || {
            let totals: &'static Totals = Box::leak(Box::new(Totals::new(64 << 30)));
            let [first, second] = [1, 2].map(|thread| totals.take_shard(thread));
            totals.allocates(first, 0, || ());
            barrier();
            let thread = shuttle::thread::spawn(move || totals.allocates(second, 0, || ()));
            let part = Totals::part_of(totals, 64 << 30);
            thread.join().unwrap();
            assert!(!part.alone.load(Relaxed));
        };
        assert_eq!(explore(2000, 7, Defect::None, program), Ok(()));
    }
}
