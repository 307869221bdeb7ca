//! What a thread hands out and takes back it counts alone, in its own shard: sums over time, of which the current figure is the
//! difference. A peak belongs to all shards together, so each has a ceiling: how far its figures may rise before somebody must look
//! whether there is a new peak. While one thread allocates on a device its ceiling is the peak itself, and peaks are exact. With more, a
//! ceiling is `CREDIT` of what was in use away, or as far as its blocks need, twice that at most, and a peak is exact to so much for each thread.

use super::ebb::{LOOK, NEVER_LOOKED};
use super::ledger::Counted;
use super::{BYTES, COUNT, LARGE, MEASURES, Measures, REQUESTED, SIZES, SMALL, Totals};
use crate::memory::cache::block::UNIT_SHIFT;
use crate::memory::sync::{AtomicBool, AtomicI64, AtomicPtr};
use std::cell::Cell;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

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
    /// With fewer bytes of its large blocks in use, less than the floor may be; `LOOK`: the next free is to find out. Others may write it as they count.
    pub(super) ebb: AtomicI64,
    /// The last round of `Totals::round` in which it found out.
    pub(super) looked: AtomicI64,
    pub(super) allocated: [[AtomicI64; MEASURES]; SIZES],
    pub(super) freed: [[AtomicI64; MEASURES]; SIZES],
    /// What may be handed out of small, of large and of all blocks.
    ceilings: [[Cell<i64>; MEASURES]; SIZES + 1],
    /// With several threads: how many bytes a ceiling is away.
    credit: Cell<i64>,
    pub(super) totals: &'static Totals,
    /// Of the device's lock, beside those of the threads: it keeps no room to itself, and takes from the others'.
    pub(super) common: bool,
    /// The number of its thread, of which one shard a device has room at a time: see `begin_turn`.
    pub(super) thread: Cell<u32>,
    /// Its thread is at work: it allocates, not only frees.
    pub(super) allocates: Cell<bool>,
    /// How often the device's threads had been stopped when it came to that last.
    pub(super) allocated_at: Cell<u64>,
    /// It may have counted since it was settled. Under the ledger's lock.
    pub(super) is_open: Cell<bool>,
    pub(super) next_open: AtomicPtr<Shard>,
    pub(super) settled: Counted,
    /// Some thread counts here; else the next may.
    pub(super) taken: AtomicBool,
    pub(super) next: AtomicPtr<Shard>,
}

// Cells are touched by one thread at a time: see `front`.
unsafe impl Sync for Shard {}
unsafe impl Send for Shard {}

impl Shard {
    /// In no list yet; `next` follows it.
    pub(super) fn new(totals: &'static Totals, common: bool, next: *mut Shard) -> Shard {
        Shard {
            lanes: Default::default(),
            large_lanes: Default::default(),
            spare: Default::default(),
            ebb: AtomicI64::new(LOOK),
            looked: AtomicI64::new(NEVER_LOOKED),
            allocated: Default::default(),
            freed: Default::default(),
            ceilings: Default::default(),
            credit: Cell::new(0),
            totals,
            common,
            thread: Cell::new(0),
            allocates: Cell::new(false),
            allocated_at: Cell::new(0),
            is_open: Cell::new(false),
            next_open: AtomicPtr::default(),
            settled: Default::default(),
            taken: AtomicBool::new(false),
            next: AtomicPtr::new(next),
        }
    }

    /// From this link on. They are never freed.
    pub(super) fn linked(
        first: &AtomicPtr<Shard>,
        next: fn(&'static Shard) -> &'static AtomicPtr<Shard>,
    ) -> impl Iterator<Item = &'static Shard> {
        let of = |link: &AtomicPtr<Shard>| unsafe { link.load(Acquire).as_ref() };
        std::iter::successors(of(first), move |shard| of(next(shard)))
    }

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

    /// True, once: less than the floor is in use now.
    #[inline(always)]
    pub fn freed_large(&self, bytes: i64, requested: i64) -> bool {
        self.count(&self.freed[LARGE], bytes, requested);
        self.drive_large([1, bytes, requested]);
        self.check_room();
        self.is_past_ebb() && self.ebbs()
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
    pub(super) fn now(&self, size: usize, measure: usize) -> i64 {
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
    pub fn allocated(&'static self, small: bool, bytes: usize, requested: usize) {
        self.totals.opens(self);
        let (bytes, requested) = (bytes as i64, requested as i64);
        if self.common {
            // It has no lanes: the peaks are raised each time, and the others look anew.
            self.count(&self.allocated[if small { SMALL } else { LARGE }], bytes, requested);
            self.totals.renew();
        } else if !small {
            self.allocated_large(bytes, requested);
        } else if self.allocated_small(bytes, requested) {
            self.look();
        }
    }

    /// A block that is free at once; else `freed_later` and `done`.
    pub fn freed(&'static self, small: bool, bytes: usize, requested: usize) {
        self.totals.opens(self);
        if small { self.freed_small(bytes as i64, requested as i64) } else { _ = self.freed_large(bytes as i64, requested as i64) }
    }

    /// A block that other streams may still use: it stays active, and takes its room.
    pub fn freed_later(&'static self, small: bool, bytes: usize, requested: usize) {
        self.totals.opens(self);
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
        if !small && self.is_past_ebb() {
            self.ebbs();
        }
    }

    /// A free that should not have counted.
    pub fn unfreed(&'static self, small: bool, bytes: usize, requested: usize) {
        self.totals.opens(self);
        let sums = &self.freed[if small { SMALL } else { LARGE }];
        bump(&sums[COUNT], -1, Relaxed);
        bump(&sums[BYTES], -(bytes as i64), Relaxed);
        bump(&sums[REQUESTED], -(requested as i64), Relaxed);
        self.close();
    }

    /// With several threads: the room that frees have made is given back in time.
    #[inline(always)]
    pub fn check_room(&self) {
        if !self.totals.alone.load(Relaxed) && self.rooms(BYTES)[SIZES] > 2 * self.credit.get() {
            self.lower();
        }
    }

    /// Its thread is at rest until `Totals::allocates`. All threads of the device are stopped.
    pub fn rests(&self) {
        if self.allocates.take() {
            self.totals.allocates_no_more(self);
        }
    }

    /// Its thread allocated from another cache of the device last, which took the room that there is. By the thread itself.
    pub fn begin_turn(&self) {
        self.close();
    }

    /// It keeps no room to itself.
    pub fn is_common(&self) -> bool {
        self.common
    }

    /// It looks anew at its next block, whatever it frees before: others may have taken that room.
    pub(super) fn close(&self) {
        self.lanes.iter().chain(&self.large_lanes).chain(&self.spare).for_each(|lane| lane.set(i64::MIN / 4));
        self.ceilings.iter().flatten().for_each(|ceiling| ceiling.set(i64::MIN / 2));
        self.credit.set(0);
    }

    /// Raises the peaks to what is handed out now, and makes new room.
    #[cold]
    #[inline(never)]
    fn publish(&self) {
        debug_assert!(self.allocates.get());
        let rooms = self.totals.rooms();
        if self.totals.alone.load(Relaxed) {
            self.set_ceilings(|of, measure, now| now + rooms[of][measure]);
        } else {
            // A thread that comes to its ceiling and back with each block would look each time.
            let past = || self.now(SMALL, BYTES) + self.now(LARGE, BYTES) - self.ceilings[SIZES][BYTES].get();
            // Without any it has no ceiling yet.
            let wanted = if self.credit.get() == 0 { 0 } else { 2 * past() };
            self.credit.set(self.totals.credit(wanted.max(self.credit.get())));
            self.set_ceilings(|_, measure, now| now + self.credit_of(measure));
        }
    }

    /// Frees make no peak: no look at what other threads count. Most of the room stays: what was in use soon is again.
    #[cold]
    #[inline(never)]
    fn lower(&self) {
        self.set_ceilings(|of, measure, now| self.ceilings[of][measure].get().min(now + self.credit_of(measure) / 4 * 7));
    }

    fn credit_of(&self, measure: usize) -> i64 {
        if measure == COUNT { self.credit.get() >> UNIT_SHIFT } else { self.credit.get() }
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
