//! The cache as a whole, under its lock: the space, blocks that streams use, figures. Asks the driver nothing.

use super::home::Home;
use super::space::{Segment, Space};
use super::stats::{HostStats, Times};
use super::streams::{Serial, Streams};
use super::table::{self, Kind, State};
use super::{freed_before, not_a_block};
use crate::base::Result;
use crate::memory::stats::Stat;
use crate::runtime::Address;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};

pub static CORE: Mutex<Core> = Mutex::new(Core::new());

/// How many blocks are pending: who allocates looks before he takes the lock.
static PENDING: AtomicUsize = AtomicUsize::new(0);

pub fn has_pending() -> bool {
    PENDING.load(Relaxed) != 0
}

/// Larger blocks are nobody's to keep: their segments go back (`pinned_max_cached_size_mb`).
static MOST_KEPT: AtomicUsize = AtomicUsize::new(usize::MAX);

pub fn most_kept() -> usize {
    MOST_KEPT.load(Relaxed)
}

pub fn set_most_kept(bytes: usize) {
    MOST_KEPT.store(bytes, Relaxed);
}

/// A block that was freed while streams may still use it.
pub struct Pending {
    pub address: Address,
    pub kind: Kind,
    /// What has to be past: of each stream, so many of its frees.
    pub uses: Vec<(Serial, u64)>,
}

pub struct Core {
    pub space: Space,
    pub streams: Streams,
    /// Blocks in use, and the streams that use them.
    uses: BTreeMap<Address, Vec<Serial>>,
    /// Oldest first.
    pub pending: Vec<Pending>,
    pub homes: Vec<Arc<Home>>,
    pub limit: Option<usize>,
    /// The most bytes of blocks so far, since the cache was emptied last.
    most_out: usize,
    figures: CoreFigures,
}

/// In pairs: bytes and blocks.
struct CoreFigures {
    /// Blocks that are not free here: in use, freed but in use, or kept by threads.
    out: [i64; 2],
    /// The most in use so far.
    peak: [i64; 2],
    /// All that was ever handed out: here, and by homes that are gone.
    taken: [i64; 2],
    /// What `taken`, and what was freed, count from.
    base_taken: [i64; 2],
    base_freed: [i64; 2],
    allocations: Stat,
    allocated_bytes: Stat,
    alloc_time: Times,
    free_time: Times,
}

const ZERO: Stat = Stat { current: 0, peak: 0, allocated: 0, freed: 0 };

impl Core {
    const fn new() -> Core {
        Core {
            space: Space::new(),
            streams: Streams::new(),
            uses: BTreeMap::new(),
            pending: Vec::new(),
            homes: Vec::new(),
            limit: None,
            most_out: 0,
            figures: CoreFigures {
                out: [0; 2],
                peak: [0; 2],
                taken: [0; 2],
                base_taken: [0; 2],
                base_freed: [0; 2],
                allocations: ZERO,
                allocated_bytes: ZERO,
                alloc_time: Times::new(),
                free_time: Times::new(),
            },
        }
    }

    // ---- blocks

    #[inline(never)]
    pub fn take(&mut self, kind: Kind) -> Option<Address> {
        let address = self.space.take(kind)?;
        table::make(address).store(table::word(kind, State::Out), Release);
        for (taken, amount) in self.figures.taken.iter_mut().zip([kind.bytes() as i64, 1]) {
            *taken += amount;
        }
        self.change_out(kind.bytes() as i64, 1);
        self.most_out = self.most_out.max(self.figures.out[0] as usize);
        Some(address)
    }

    /// Frees the block that starts here. If streams use it, it is free when they are past what they have got until now.
    #[inline(never)]
    pub fn free(&mut self, address: Address) -> Result<()> {
        let word = table::find(address).ok_or_else(|| not_a_block(self, address))?;
        let (kind, used) = self.leave(address, word)?;
        let streams = if used { self.uses.remove(&address).unwrap_or_default() } else { Vec::new() };
        let uses: Vec<_> = streams.into_iter().filter_map(|serial| Some((serial, self.streams.freed_now(serial)?))).collect();
        if uses.is_empty() {
            self.give(address, kind);
        } else {
            self.pending.push(Pending { address, kind, uses });
            PENDING.store(self.pending.len(), Relaxed);
        }
        Ok(())
    }

    /// Whether streams or graphs used the block that starts here, be it that all of them are gone.
    pub fn is_used(&self, address: Address) -> bool {
        self.uses.contains_key(&address)
    }

    /// The block is in nobody's hands from here on: its kind, and whether streams use it.
    fn leave(&self, address: Address, word: &AtomicU64) -> Result<(Kind, bool)> {
        let mut seen = word.load(Relaxed);
        loop {
            let (kind, used) = match table::parse(seen) {
                Some((kind, State::Out)) => (kind, false),
                Some((kind, State::Used)) => (kind, true),
                Some((_, State::Kept)) => return Err(freed_before(address)),
                None => return Err(not_a_block(self, address)),
            };
            match word.compare_exchange(seen, 0, AcqRel, Relaxed) {
                Ok(_) => return Ok((kind, used)),
                Err(now) => seen = now,
            }
        }
    }

    #[inline(never)]
    fn give(&mut self, address: Address, kind: Kind) {
        self.change_out(-(kind.bytes() as i64), -1);
        self.space.give(address);
    }

    /// Pending blocks whose uses are all past become free. There may be many that wait for one stream, which nothing has happened to.
    #[inline(never)]
    pub fn finish_pending(&mut self) {
        let Core { pending, streams, .. } = self;
        if !streams.have_moved() {
            return;
        }
        let done: Vec<Pending> =
            pending.extract_if(.., |block| block.uses.iter().all(|(serial, count)| streams.is_past(*serial, *count))).collect();
        for block in done {
            block.uses.iter().for_each(|(serial, _)| self.streams.forget_block(*serial));
            self.give(block.address, block.kind);
        }
        PENDING.store(self.pending.len(), Relaxed);
    }

    /// A stream uses the block that holds an address. False: there is none.
    pub fn note_use(&mut self, address: Address, serial: Serial) -> bool {
        let Some(start) = self.space.block_around(address) else { return false };
        let Some(word) = table::find(start) else { return false };
        let mut seen = word.load(Relaxed);
        loop {
            match table::parse(seen) {
                Some((_, State::Used)) => break,
                Some((kind, State::Out)) => match word.compare_exchange(seen, table::word(kind, State::Used), AcqRel, Relaxed) {
                    Ok(_) => break,
                    Err(now) => seen = now,
                },
                _ => return false,
            }
        }
        let Core { uses, streams, .. } = self;
        let uses = uses.entry(start).or_default();
        if !uses.contains(&serial) {
            if uses.len() == uses.capacity() {
                uses.retain(|user| streams.is_here(*user));
            }
            uses.push(serial);
            streams.note_block(serial);
        }
        true
    }

    fn live(&self, address: Address) -> Option<(Address, Kind)> {
        let start = self.space.block_around(address)?;
        let (kind, state) = table::parse(table::find(start)?.load(Relaxed))?;
        (state != State::Kept).then_some((start, kind))
    }

    /// The live block that holds an address.
    pub fn block_in_use(&self, address: Address) -> Option<Address> {
        self.live(address).map(|(start, _)| start)
    }

    /// The live block that holds an address, else the segment.
    pub fn around(&self, address: Address) -> Option<Range<Address>> {
        let block = self.live(address).map(|(start, kind)| (start, kind.bytes()));
        let segment = || self.space.segment_in(address, 1).map(|(start, segment)| (start, segment.size));
        block.or_else(segment).map(|(start, size)| start..start + size)
    }

    // ---- homes

    /// Blocks that a home keeps are free for everybody. Its bins are locked.
    #[inline(never)]
    pub fn take_home(&mut self, home: &Home, blocks: impl Iterator<Item = Address>) {
        self.note_peak();
        let mut taken = [0; 2];
        for address in blocks {
            if let Some((kind, _)) = table::find(address).and_then(|word| table::parse(word.swap(0, AcqRel))) {
                taken[0] += kind.bytes() as i64;
                taken[1] += 1;
                self.space.give(address);
            }
        }
        // What was in use stays what it was.
        for (at, amount) in taken.into_iter().enumerate() {
            let kept = &home.figures.kept[at];
            kept.store(kept.load(Relaxed) - amount, Relaxed);
            let low = &home.figures.low[at];
            low.store(low.load(Relaxed).min(kept.load(Relaxed)), Relaxed);
            self.figures.out[at] -= amount;
        }
    }

    /// A home that keeps nothing goes with its thread.
    pub fn forget_home(&mut self, home: &Arc<Home>) {
        self.note_peak();
        for (taken, again) in self.figures.taken.iter_mut().zip(&home.figures.again) {
            *taken += again.load(Relaxed);
        }
        self.homes.retain(|known| !Arc::ptr_eq(known, home));
    }

    // ---- figures

    fn change_out(&mut self, bytes: i64, blocks: i64) {
        self.note_peak();
        let before = self.figures.out;
        self.figures.out = [before[0] + bytes, before[1] + blocks];
        for at in 0..2 {
            // What is kept at this moment counts from here: below the peak nobody looked.
            if self.figures.out[at] > self.figures.peak[at] {
                self.start_low(at);
            }
        }
        self.note_peak();
    }

    fn start_low(&self, at: usize) {
        self.homes.iter().for_each(|home| home.figures.low[at].store(home.figures.kept[at].load(Relaxed), Relaxed));
    }

    /// The most that was in use since the last change. Nothing can be above a peak that is as high as all that is out.
    fn note_peak(&mut self) {
        for at in 0..2 {
            if self.figures.out[at] > self.figures.peak[at] {
                let low: i64 = self.homes.iter().map(|home| home.figures.low[at].load(Relaxed)).sum();
                self.figures.peak[at] = self.figures.peak[at].max(self.figures.out[at] - low);
                self.start_low(at);
            }
        }
    }

    fn sum(&self, figure: impl Fn(&Home) -> i64) -> i64 {
        self.homes.iter().map(|home| figure(home)).sum()
    }

    /// Bytes and blocks in use, and all that were ever handed out.
    fn active(&self) -> ([i64; 2], [i64; 2]) {
        let current = |at: usize| self.figures.out[at] - self.sum(|home| home.figures.kept[at].load(Relaxed));
        let taken = |at: usize| self.figures.taken[at] + self.sum(|home| home.figures.again[at].load(Relaxed));
        ([current(0), current(1)], [taken(0), taken(1)])
    }

    pub fn stats(&mut self) -> HostStats {
        self.note_peak();
        let (current, taken) = self.active();
        let active = |at: usize| Stat {
            current: current[at],
            peak: self.figures.peak[at],
            allocated: taken[at] - self.figures.base_taken[at],
            freed: taken[at] - current[at] - self.figures.base_freed[at],
        };
        HostStats {
            allocations: self.figures.allocations,
            allocated_bytes: self.figures.allocated_bytes,
            active_requests: active(1),
            active_bytes: active(0),
            num_host_alloc: self.figures.allocations.allocated,
            num_host_free: self.figures.allocations.freed,
            host_alloc_time: self.figures.alloc_time,
            host_free_time: self.figures.free_time,
        }
    }

    pub fn reset_peak(&mut self) {
        let (current, _) = self.active();
        self.figures.peak = current;
        (0..2).for_each(|at| self.start_low(at));
        for stat in [&mut self.figures.allocations, &mut self.figures.allocated_bytes] {
            stat.peak = stat.current;
        }
    }

    pub fn reset_accumulated(&mut self) {
        let (current, taken) = self.active();
        self.figures.base_taken = taken;
        self.figures.base_freed = [taken[0] - current[0], taken[1] - current[1]];
        for stat in [&mut self.figures.allocations, &mut self.figures.allocated_bytes] {
            (stat.allocated, stat.freed) = (0, 0);
        }
        (self.figures.alloc_time, self.figures.free_time) = (Times::new(), Times::new());
    }

    /// The most that is in use counts from now on.
    pub fn start_most_out(&mut self) {
        self.most_out = self.figures.out[0] as usize;
    }

    /// Bytes that should go back before `size` more are taken: what would be held above the most that was ever in use and a part of that.
    pub fn surplus(&self, size: usize, part: usize, least: usize) -> usize {
        (self.space.held() + size).saturating_sub(self.most_out + self.most_out / part + least)
    }

    // ---- segments

    pub fn add_segment(&mut self, address: Address, segment: Segment) {
        self.space.add(address, segment);
        for (stat, amount) in self.segment_figures(&segment) {
            stat.current += amount;
            stat.allocated += amount;
            stat.peak = stat.peak.max(stat.current);
        }
    }

    pub fn removed_segment(&mut self, segment: &Segment) {
        for (stat, amount) in self.segment_figures(segment) {
            stat.current -= amount;
            stat.freed += amount;
        }
    }

    fn segment_figures(&mut self, segment: &Segment) -> [(&mut Stat, i64); 2] {
        [(&mut self.figures.allocations, 1), (&mut self.figures.allocated_bytes, segment.size as i64)]
    }

    pub fn note_time(&mut self, time: std::time::Duration, of_alloc: bool) {
        if of_alloc { self.figures.alloc_time.add(time) } else { self.figures.free_time.add(time) }
    }

    /// Bytes of blocks that are freed but in use.
    pub fn pending_bytes(&self) -> usize {
        self.pending.iter().map(|block| block.kind.bytes()).sum()
    }

    /// Everything is gone: what it was made of, for who gives it back. Limit and homes stay, and serials of streams go on.
    pub fn clear(&mut self) -> Vec<(Address, Segment)> {
        let homes = std::mem::take(&mut self.homes);
        homes.iter().for_each(|home| home.figures.clear());
        PENDING.store(0, Relaxed);
        let streams = self.streams.cleared();
        let gone = std::mem::replace(self, Core { homes, streams, limit: self.limit, ..Core::new() });
        gone.space.starts().for_each(|address| {
            if let Some(word) = table::find(address) {
                word.store(0, Relaxed);
            }
        });
        gone.space.segments().collect()
    }

    /// Panics if the parts contradict each other. For tests, while no other thread is at work.
    pub fn check(&self) {
        self.space.check();
        let out = self.space.held() - self.space.free_bytes();
        assert_eq!(self.figures.out[0] as usize, out);
        let kept = self.sum(|home| home.figures.kept[0].load(Relaxed));
        assert!(kept >= 0 && self.pending_bytes() + kept as usize <= out);
        for address in self.uses.keys() {
            let word = table::find(*address).map_or(0, |word| word.load(Relaxed));
            assert!(matches!(table::parse(word), Some((_, State::Used))), "{address:#x}");
        }
        for block in &self.pending {
            assert_eq!((self.space.block_around(block.address), self.uses.contains_key(&block.address)), (Some(block.address), false));
        }
        let pending = self.pending.iter().flat_map(|block| block.uses.iter().map(|(serial, _)| *serial));
        self.streams.check(self.uses.values().flatten().copied().chain(pending));
        assert_eq!(self.figures.allocated_bytes.current as usize, self.space.held());
    }
}
