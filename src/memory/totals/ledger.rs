//! What many shards come to, without a look at each. Those that may have counted since are open; with all threads of the device stopped they are
//! settled: what they counted is in the sums.

use super::{BYTES, LARGE, MEASURES, OF_PARTS, OWN, SIZES, Shard, Sums, Totals};
use crate::memory::sync::{AtomicI64, AtomicPtr, Mutex};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Of small and of large blocks: what was allocated, and what was freed.
pub(super) type Counted = [[[AtomicI64; MEASURES]; SIZES]; 2];
pub(super) const ALLOCATED: usize = 0;
pub(super) const FREED: usize = 1;

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
        let mut sums = [Sums::default(); 2];
        // All that was allocated first, and what was freed last: while threads go on, what is in use may come out smaller than it is, and no peak too
        // high.
        for which in [ALLOCATED, FREED] {
            for (whose, settled) in [(OWN, &self.settled), (OF_PARTS, &self.settled_of_parts)] {
                let sum = sums[whose].counted(which);
                all().for_each(|(size, measure)| sum[size][measure] += settled[which][size][measure].load(Relaxed));
            }
            for (whose, shard) in self.open() {
                let (sum, counted) = (sums[whose].counted(which), shard.counted()[which]);
                let more = |size: usize, at: usize| counted[size][at].load(Acquire) - shard.settled[which][size][at].load(Relaxed);
                all().for_each(|(size, measure)| sum[size][measure] += more(size, measure));
            }
            if which == ALLOCATED {
                for (whose, pending) in [(OWN, &self.pending), (OF_PARTS, &self.pending_of_parts)] {
                    all().for_each(|(size, measure)| sums[whose].pending[size][measure] = pending[size][measure].load(Acquire));
                }
            }
        }
        sums
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
        Shard::linked_open(&self.ledger().open).filter_map(of)
    }

    /// What tests check: no shard counted that was not open. All threads of the device are stopped.
    pub fn check_settled(&self) {
        assert_eq!(self.sums(), super::sum_up(|| self.with_parts()));
    }
}

impl Shard {
    fn counted(&self) -> [&[[AtomicI64; MEASURES]; SIZES]; 2] {
        [&self.allocated, &self.freed]
    }
}

impl Sums {
    fn counted(&mut self, which: usize) -> &mut [[i64; MEASURES]; SIZES] {
        if which == ALLOCATED { &mut self.allocated } else { &mut self.freed }
    }
}

fn all() -> impl Iterator<Item = (usize, usize)> {
    (0..SIZES).flat_map(|size| (0..MEASURES).map(move |measure| (size, measure)))
}
