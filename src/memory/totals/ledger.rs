//! What many shards come to, without a look at each. Those that may have counted since are open; with all threads of the device stopped they are
//! settled: what they counted is in the sums.

use super::{BYTES, Figures, LARGE, MEASURES, OF_PARTS, OWN, SIZES, Shard, Sums, Totals, add, read};
use crate::memory::sync::{AtomicI64, AtomicPtr, Mutex};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Of small and of large blocks: what was allocated, and what was freed.
pub(super) type Counted = [[[AtomicI64; MEASURES]; SIZES]; 2];
const ALLOCATED: usize = 0;
const FREED: usize = 1;

/// Of a device: those that are open, one by one by their links. Who is in a region, or has the device's lock, goes through them as he likes: nobody is
/// settled meanwhile.
#[derive(Default)]
pub(super) struct Ledger {
    open: AtomicPtr<Shard>,
    /// Held while one is opened, while they are settled, and by readers who have neither.
    changing: Mutex<()>,
}

impl Totals {
    fn ledger(&self) -> &Ledger {
        self.whole.map_or(&self.ledger, |whole| &whole.ledger)
    }

    /// A shard of its own may count from here on.
    pub fn opens(&self, shard: &'static Shard) {
        let ledger = self.ledger();
        let _changing = ledger.changing.lock();
        if !shard.is_open.replace(true) {
            shard.next_open.store(ledger.open.load(Relaxed), Relaxed);
            ledger.open.store(std::ptr::from_ref(shard).cast_mut(), Release);
        }
    }

    /// All that was counted so far. Of a device, with its lock, and with all threads stopped, those of its parts too.
    pub fn settle(&self) {
        let _changing = self.ledger.changing.lock();
        let open: Vec<&Shard> = self.open().map(|(_, shard)| shard).collect();
        self.ledger.open.store(null_mut(), Relaxed);
        for shard in open {
            shard.is_open.set(false);
            let own = std::ptr::eq(shard.totals, self);
            for (which, counted) in shard.counted().into_iter().enumerate() {
                for (size, measure) in all() {
                    let now = counted[size][measure].load(Relaxed);
                    let more = now - shard.settled[which][size][measure].swap(now, Relaxed);
                    shard.totals.settled[which][size][measure].fetch_add(more, Relaxed);
                    if !own {
                        self.settled_of_parts[which][size][measure].fetch_add(more, Relaxed);
                    }
                }
            }
        }
    }

    /// Of its own blocks, and of its parts'.
    pub(super) fn sums(&self) -> [Sums; 2] {
        let _changing = self.ledger().changing.lock();
        self.steady_sums()
    }

    /// The same for who is in a region or has the device's lock.
    pub(super) fn steady_sums(&self) -> [Sums; 2] {
        self.sums_of(|which| {
            let mut sums = [&self.settled, &self.settled_of_parts].map(|settled| read(&settled[which]));
            for (whose, shard) in self.open() {
                let counted = read(shard.counted()[which]);
                let settled = read(&shard.settled[which]);
                all().for_each(|(size, measure)| sums[whose][size][measure] += counted[size][measure] - settled[size][measure]);
            }
            sums
        })
    }

    /// The same by a look at each shard, without a lock.
    pub(super) fn sum_up(&self) -> [Sums; 2] {
        self.sums_of(|which| {
            let mut sums = [Figures::default(); 2];
            self.shards().for_each(|shard| add(&mut sums[OWN], read(shard.counted()[which])));
            self.parts().flat_map(Totals::shards).for_each(|shard| add(&mut sums[OF_PARTS], read(shard.counted()[which])));
            sums
        })
    }

    /// All that was allocated comes first, and what was freed last: while threads go on, what is in use may come out smaller than it is, and no peak
    /// too high.
    fn sums_of(&self, counted: impl Fn(usize) -> [Figures; 2]) -> [Sums; 2] {
        let allocated = counted(ALLOCATED);
        let pending = [&self.pending, &self.pending_of_parts].map(read);
        let freed = counted(FREED);
        [OWN, OF_PARTS].map(|whose| Sums { allocated: allocated[whose], pending: pending[whose], freed: freed[whose] })
    }

    /// Bytes of its own large blocks: what was freed, what had been allocated then, and what was freed a moment later. For who is in a region or has the
    /// device's lock.
    pub(super) fn count_large(&self) -> [i64; 3] {
        [FREED, ALLOCATED, FREED].map(|which| {
            let own = self.open().filter(|(whose, _)| *whose == OWN).map(|(_, shard)| shard);
            let more =
                |shard: &Shard| shard.counted()[which][LARGE][BYTES].load(Acquire) - shard.settled[which][LARGE][BYTES].load(Relaxed);
            self.settled[which][LARGE][BYTES].load(Relaxed) + own.map(more).sum::<i64>()
        })
    }

    /// Its own shards that are open, and for a device those of its parts.
    fn open(&self) -> impl Iterator<Item = (usize, &'static Shard)> {
        let of = |shard: &'static Shard| match std::ptr::eq(shard.totals, self) {
            true => Some((OWN, shard)),
            false => self.whole.is_none().then_some((OF_PARTS, shard)),
        };
        Shard::linked(&self.ledger().open, |shard| &shard.next_open).filter_map(of)
    }

    /// What tests check: no shard counted that was not open, and what waits in the parts is known. All threads of the device are stopped.
    pub fn check_settled(&self) {
        assert_eq!(self.sums(), self.sum_up());
        let mut pending = Figures::default();
        self.parts().for_each(|part| add(&mut pending, read(&part.pending)));
        assert_eq!(pending, read(&self.pending_of_parts));
    }
}

impl Shard {
    fn counted(&self) -> [&[[AtomicI64; MEASURES]; SIZES]; 2] {
        [&self.allocated, &self.freed]
    }
}

fn all() -> impl Iterator<Item = (usize, usize)> {
    (0..SIZES).flat_map(|size| (0..MEASURES).map(move |measure| (size, measure)))
}
