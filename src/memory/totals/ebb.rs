//! That less than a floor is in use is noticed by the free that makes it so, whichever thread frees. Each shard has an ebb of its own, and asks what
//! all threads together have in use only below it: until less than the floor is in use, one thread at least frees its part. Parts are for those that
//! free: who did in this round or the last one. A round ends when one of them has freed its part.

use super::{BYTES, LARGE, OWN, Shard, Totals};
use std::sync::atomic::Ordering::Relaxed;

pub(super) const LOOK: i64 = i64::MAX;
const LOOKING: i64 = LOOK - 1;
const NEVER: i64 = i64::MIN;
pub(super) const NEVER_LOOKED: i64 = -2;

/// Bytes of large blocks in use, without those of parts, and how many shards free them. The two differ by what was freed while they were counted: it
/// was no less than the one and no more than the other.
struct InUse {
    least: i64,
    most: i64,
    freeing: i64,
}

impl InUse {
    /// What one of them may free before it looks again. Negative: it is to look at what it frees next, whatever it allocates before.
    fn part(&self, floor: i64) -> i64 {
        if self.most < floor { -1 } else { (self.least - floor).max(0) / self.freeing.max(1) }
    }
}

impl Shard {
    #[inline(always)]
    pub(super) fn is_past_ebb(&self) -> bool {
        self.now(LARGE, BYTES) < self.ebb.load(Relaxed)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn ebbs(&self) -> bool {
        let (told, joins) = (self.ebb.load(Relaxed) == LOOK, !self.is_freeing());
        let ebbs = self.watch();
        if ebbs {
            self.ebb.store(NEVER, Relaxed);
            // Of two that find it at once one has the floor.
            match self.totals.floor.swap(0, Relaxed) {
                0 => return false,
                floor => self.totals.low.store(floor, Relaxed),
            }
        } else if (joins || !told) && self.totals.floor.load(Relaxed) != 0 {
            if !joins {
                self.looked.store(self.totals.round.fetch_add(1, Relaxed) + 1, Relaxed);
            }
            // There is less to free for the others too. What was told stays, and its line with whoever has it.
            let others = self.totals.shards().filter(|other| !std::ptr::eq(*other, self) && other.ebb.load(Relaxed) != LOOK);
            others.for_each(|other| other.ebb.store(LOOK, Relaxed));
        }
        ebbs
    }

    /// Whether it has looked in this round or the last one.
    fn is_freeing(&self) -> bool {
        self.looked.load(Relaxed) + 1 >= self.totals.round.load(Relaxed)
    }

    /// Of what has to be freed until less than the floor is in use, one thread at least frees its part: from there on it looks again. True:
    /// less is in use now.
    fn watch(&self) -> bool {
        // What another thread tells from here on stays, but for an instant at the end: then it is noticed a free later, or the next time.
        self.ebb.store(LOOKING, Relaxed);
        self.looked.store(self.totals.round.load(Relaxed), Relaxed);
        let (ebb, ebbs) = match self.totals.floor.load(Relaxed) {
            0 => (NEVER, false),
            floor => {
                let in_use = self.totals.large_in_use(floor);
                // Where it is not clear the next free finds out.
                (self.now(LARGE, BYTES) - in_use.part(floor), in_use.most < floor)
            }
        };
        self.ebb.store(if self.ebb.load(Relaxed) == LOOKING { ebb } else { LOOK }, Relaxed);
        ebbs
    }
}

impl Totals {
    /// It is to be noticed when less than so many bytes of large blocks are in use. `now`: `large_now`. All threads of the device are stopped.
    pub fn watch_for(&self, floor: usize, now: usize) {
        self.low.store(0, Relaxed);
        self.floor.store(floor as i64, Relaxed);
        let part = InUse { least: now as i64, most: now as i64, freeing: self.freeing() }.part(floor as i64);
        for shard in self.shards() {
            // Who has not freed lately looks when it does.
            let ebb = if shard.is_freeing() { shard.now(LARGE, BYTES) - part } else { LOOK };
            shard.ebb.store(ebb, Relaxed);
        }
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

    /// Bytes of large blocks in use, without those of parts; about so many if not all threads of the device are stopped.
    pub fn large_now(&self) -> usize {
        self.sums()[OWN].handed_out(LARGE, BYTES).max(0) as usize
    }

    /// Counted a few times more while what others free meanwhile makes the difference.
    fn large_in_use(&self, floor: i64) -> InUse {
        let again = |counted: InUse, _| if counted.least < floor && floor <= counted.most { self.in_use() } else { counted };
        (0..3).fold(self.in_use(), again)
    }

    fn freeing(&self) -> i64 {
        self.shards().filter(|shard| shard.is_freeing()).count() as i64
    }

    fn in_use(&self) -> InUse {
        let [freed_before, allocated, freed_after] = self.count_large();
        InUse { least: allocated - freed_after, most: allocated - freed_before, freeing: self.freeing() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::sync::barrier;
    use crate::memory::sync::model::{Defect, explore};
    use shuttle::rand::{Rng, thread_rng};
    use std::sync::atomic::AtomicU32;

    /// Of threads.
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    const SIZE: i64 = 20 << 20;
    const BLOCKS: i64 = 32;

    fn totals() -> &'static Totals {
        Box::leak(Box::new(Totals::new(64 << 30)))
    }

    fn thread(totals: &'static Totals) -> &'static Shard {
        let shard = totals.take_shard(NUMBER.fetch_add(1, Relaxed));
        totals.allocates(shard, 0, || ());
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
            totals.watch_for((2 * SIZE) as usize, totals.large_now());
            if late {
                (0..BLOCKS).for_each(|_| shards[0].allocated_large(SIZE, SIZE));
                shards.insert(0, totals.take_shard(NUMBER.fetch_add(1, Relaxed)));
            }
            let (noticed, looks) = frees(&shards, turn);
            assert_eq!(noticed, Some(BLOCKS * shards.len() as i64 - 1), "{threads} threads, {late}");
            assert!(looks <= 16 * shards.len() as i64, "{threads} threads looked {looks} times");
            assert_eq!([(); 2].map(|_| totals.take_low()), [Some(2 * SIZE), None]);
            totals.watch_again(2 * SIZE);
            totals.allocates(shards[0], 0, || ());
            shards[0].allocated_large(SIZE, SIZE);
            assert!(shards[0].freed_large(SIZE, SIZE) && totals.take_low().is_some());
        }
    }

    /// They have no part of what the others free.
    #[test]
    fn threads_that_free_nothing_cost_those_that_do_nothing() {
        const IDLE: u32 = 200;
        let totals = totals();
        (0..IDLE).for_each(|_| _ = totals.take_shard(NUMBER.fetch_add(1, Relaxed)));
        let shards = [thread(totals), thread(totals)];
        for round in 0..3 {
            totals.watch_for((2 * SIZE) as usize, totals.large_now());
            let (noticed, looks) = frees(&shards, 4);
            assert!(noticed == Some(2 * BLOCKS - 1) && looks <= 20, "round {round}: noticed {noticed:?}, looked {looks} times");
            totals.take_low();
            shards.iter().for_each(|shard| (0..BLOCKS).for_each(|_| shard.allocated_large(SIZE, SIZE)));
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
            totals.watch_for(((BLOCKS - MOST) * THREADS * SIZE - 1) as usize, totals.large_now());
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

    #[test]
    fn that_little_is_in_use_is_noticed_where_other_streams_may_use_what_is_freed() {
        let totals = totals();
        let own = thread(totals);
        totals.watch_for((2 * SIZE) as usize, totals.large_now());
        (0..BLOCKS - 1).for_each(|_| {
            assert_eq!(totals.take_low(), None);
            own.freed_later(false, SIZE as usize, SIZE as usize);
        });
        assert_eq!(totals.take_low(), Some(2 * SIZE));
    }

    /// A pool's allocation has every thread look anew at its next block, and what a pool has in use is not the device's.
    #[test]
    fn that_little_is_in_use_is_noticed_beside_pools() {
        let totals = totals();
        let own = thread(totals);
        let of_pools = Totals::part_of(totals, 64 << 30).take_shard(0);
        totals.watch_for((2 * SIZE) as usize, totals.large_now());
        (0..BLOCKS).for_each(|_| of_pools.allocated(false, SIZE as usize, SIZE as usize));
        assert_eq!(frees(&[own], 1).0, Some(BLOCKS - 1));
        // There is nothing to watch for, which is asked once.
        totals.renew();
        own.allocated_large(SIZE, SIZE);
        assert!(!own.freed_large(SIZE, SIZE) && own.ebb.load(Relaxed) == NEVER);
    }
}
