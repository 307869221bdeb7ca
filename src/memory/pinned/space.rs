//! The memory that is held, cut into blocks: best fit, the rest stays free, free neighbours join. Knows no driver and no stream.

use super::table::{self, Class, Kind, UNIT};
use crate::runtime::Address;
use std::collections::{BTreeMap, BTreeSet};

/// One piece of memory from the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    pub size: usize,
    pub class: Class,
    /// Pages of the kernel that were registered; else of cudaHostAlloc.
    pub registered: bool,
}

/// Of free memory of one size that in the youngest segment is taken, so that what happens does not hang on addresses. The first segment
/// has the largest number.
type Age = u32;

const AGE_BITS: u32 = 24;

/// A block, or free memory between two.
#[derive(Clone, Copy)]
struct Run {
    size: usize,
    age: Age,
    class: Class,
    free: bool,
}

/// Free memory in the order in which it is taken: class, size in units over age, address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank(Class, u64, Address);

impl Rank {
    fn new(class: Class, size: usize, age: Age, address: Address) -> Rank {
        const { assert!(table::LIMIT.ilog2() - UNIT.ilog2() + AGE_BITS <= 64) };
        Rank(class, ((size / UNIT) as u64) << AGE_BITS | u64::from(age), address)
    }

    fn of(address: Address, run: Run) -> Rank {
        Rank::new(run.class, run.size, run.age, address)
    }

    fn address(self) -> Address {
        self.2
    }
}

pub struct Space {
    segments: BTreeMap<Address, Segment>,
    /// Every byte of every segment is in one of these, by where they start.
    runs: BTreeMap<Address, Run>,
    free: BTreeSet<Rank>,
    /// Segments with no block in them, the smallest first.
    whole: BTreeSet<(usize, Age, Address)>,
    held: usize,
    youngest: Age,
}

impl Space {
    pub const fn new() -> Space {
        Space { segments: BTreeMap::new(), runs: BTreeMap::new(), free: BTreeSet::new(), whole: BTreeSet::new(), held: 0, youngest: 0 }
    }

    /// Where blocks and free memory start.
    pub fn starts(&self) -> impl Iterator<Item = Address> {
        self.runs.keys().copied()
    }

    /// Bytes of all segments.
    pub fn held(&self) -> usize {
        self.held
    }

    pub fn segments(&self) -> impl Iterator<Item = (Address, Segment)> {
        self.segments.iter().map(|(address, segment)| (*address, *segment))
    }

    pub fn add(&mut self, address: Address, segment: Segment) {
        self.segments.insert(address, segment);
        self.held += segment.size;
        self.youngest = self.youngest.wrapping_sub(1) % (1 << AGE_BITS);
        self.insert_free(address, Run { size: segment.size, age: self.youngest, class: segment.class, free: true });
    }

    /// The smallest whole free segment that passes leaves.
    pub fn remove_whole(&mut self, passes: impl Fn(&Segment) -> bool) -> Option<(Address, Segment)> {
        let (_, _, address) = *self.whole.iter().find(|(_, _, address)| passes(&self.segments[address]))?;
        let run = self.runs.remove(&address)?;
        self.remove_free(address, run);
        let segment = self.segments.remove(&address)?;
        self.held -= segment.size;
        Some((address, segment))
    }

    /// Makes the smallest free memory that is large enough a block.
    pub fn take(&mut self, kind: Kind) -> Option<Address> {
        let (class, bytes) = (kind.class(), kind.bytes());
        let address = self.free.range(Rank::new(class, bytes, 0, 0)..).next()?.address();
        let run = self.runs.get_mut(&address).filter(|run| run.class == class)?;
        let whole = std::mem::replace(run, Run { size: bytes, free: false, ..*run });
        self.remove_free(address, whole);
        if whole.size > bytes {
            self.insert_free(address + bytes, Run { size: whole.size - bytes, ..whole });
        }
        Some(address)
    }

    /// A block is free, and one with its free neighbours.
    pub fn give(&mut self, address: Address) {
        let Some(run) = self.runs.remove(&address).filter(|run| !run.free) else { return };
        let (mut start, mut end) = (address, address + run.size);
        if !self.segments.contains_key(&address)
            && let Some((before, neighbour)) = self.runs.range(..address).next_back().map(|(at, run)| (*at, *run))
            && neighbour.free
        {
            self.remove_free(before, neighbour);
            self.runs.remove(&before);
            start = before;
        }
        if !self.segments.contains_key(&end)
            && let Some(neighbour) = self.runs.get(&end).copied()
            && neighbour.free
        {
            self.remove_free(end, neighbour);
            self.runs.remove(&end);
            end += neighbour.size;
        }
        self.insert_free(start, Run { size: end - start, free: true, ..run });
    }

    #[inline(never)]
    fn insert_free(&mut self, address: Address, run: Run) {
        self.runs.insert(address, run);
        self.free.insert(Rank::of(address, run));
        if self.segments.get(&address).is_some_and(|segment| segment.size == run.size) {
            self.whole.insert((run.size, run.age, address));
        }
    }

    /// The run itself stays for the caller to replace.
    #[inline(never)]
    fn remove_free(&mut self, address: Address, run: Run) {
        self.free.remove(&Rank::of(address, run));
        self.whole.remove(&(run.size, run.age, address));
    }

    /// Start of the block that holds an address, be it in use or kept; None in free memory and in that of others.
    pub fn block_around(&self, address: Address) -> Option<Address> {
        let (start, run) = self.runs.range(..=address).next_back()?;
        (!run.free && address < start + run.size).then_some(*start)
    }

    /// The segment that shares a byte with a range.
    pub fn segment_in(&self, address: Address, size: usize) -> Option<(Address, Segment)> {
        let last = address.saturating_add(size.max(1) - 1);
        let (start, segment) = self.segments.range(..=last).next_back()?;
        (start + segment.size > address).then_some((*start, *segment))
    }

    /// Bytes of the largest free memory.
    pub fn largest_free(&self) -> usize {
        self.free.iter().map(|rank| self.runs[&rank.address()].size).max().unwrap_or(0)
    }

    pub fn free_bytes(&self) -> usize {
        self.free.iter().map(|rank| self.runs[&rank.address()].size).sum()
    }

    /// Panics if the lists contradict each other. For tests.
    pub fn check(&self) {
        assert_eq!(self.held, self.segments.values().map(|segment| segment.size).sum::<usize>());
        let mut free = BTreeSet::new();
        let mut whole = BTreeSet::new();
        for (start, segment) in &self.segments {
            let mut at = *start;
            let mut last_free = false;
            let age = self.runs[start].age;
            while at < start + segment.size {
                let run = self.runs.get(&at).unwrap_or_else(|| panic!("nothing starts at {at:#x}"));
                assert!(run.size > 0 && (run.class, run.age) == (segment.class, age) && !(run.free && last_free), "at {at:#x}");
                if run.free {
                    free.insert(Rank::of(at, *run));
                    if run.size == segment.size {
                        whole.insert((run.size, run.age, at));
                    }
                }
                last_free = run.free;
                at += run.size;
            }
            assert_eq!(at, start + segment.size);
        }
        assert_eq!((&free, &whole), (&self.free, &self.whole));
        let in_segments = self.segments.iter().map(|(start, segment)| self.runs.range(*start..start + segment.size).count()).sum::<usize>();
        assert_eq!(in_segments, self.runs.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pinned::table::PAGE;

    fn segment(pages: usize) -> Segment {
        Segment { size: pages * PAGE, class: 0, registered: false }
    }

    fn pages(pages: usize) -> Kind {
        Kind::of(pages * PAGE, 0)
    }

    #[test]
    fn the_smallest_that_fits_is_cut_and_joined_again() {
        let mut space = Space::new();
        // Two segments side by side stay two.
        space.add(0x10_0000, segment(16));
        space.add(0x11_0000, segment(8));
        let a = space.take(pages(3)).unwrap();
        assert_eq!(a, 0x11_0000);
        let b = space.take(pages(6)).unwrap();
        assert_eq!((b, space.take(pages(11))), (0x10_0000, None));
        let c = space.take(pages(5)).unwrap();
        assert_eq!(c, 0x11_0000 + 3 * PAGE);
        space.check();
        assert_eq!(space.block_around(b + 6 * PAGE - 1), Some(b));
        assert_eq!((space.block_around(b + 6 * PAGE), space.block_around(0x12_0000), space.block_around(0)), (None, None, None));
        space.give(b);
        assert_eq!((space.whole.len(), space.free_bytes(), space.largest_free()), (1, 16 * PAGE, 16 * PAGE));
        space.give(a);
        space.check();
        space.give(c);
        space.check();
        // Freed twice is no harm.
        space.give(c);
        assert_eq!((space.whole.len(), space.free_bytes()), (2, 24 * PAGE));
        assert_eq!(space.remove_whole(|segment| segment.size > 8 * PAGE), Some((0x10_0000, segment(16))));
        assert_eq!(space.remove_whole(|_| true), Some((0x11_0000, segment(8))));
        assert_eq!((space.remove_whole(|_| true), space.held()), (None, 0));
        space.check();
    }

    #[test]
    fn the_youngest_of_one_size_is_taken() {
        for starts in [[0x10_0000, 0x20_0000, 0x30_0000], [0x30_0000, 0x10_0000, 0x20_0000]] {
            let mut space = Space::new();
            starts.into_iter().rev().for_each(|start| space.add(start, segment(4)));
            assert_eq!([(); 3].map(|_| space.take(pages(3)).unwrap()), starts);
            starts.into_iter().for_each(|start| space.give(start));
            assert_eq!([(); 3].map(|_| space.remove_whole(|_| true).unwrap().0), starts);
        }
    }

    #[test]
    fn the_largest_and_the_last_have_their_ranks() {
        let last = table::LIMIT - UNIT;
        let rank = Rank::new;
        let ordered = [
            rank(0, UNIT, 0, 0),
            rank(0, UNIT, 0, last),
            rank(0, UNIT, (1 << AGE_BITS) - 1, 0),
            rank(0, last, 0, 0),
            rank(Class::MAX, last, 0, last),
        ];
        assert!(ordered.is_sorted_by(|a, b| a < b));
        assert_eq!(ordered.map(Rank::address), [0, last, 0, 0, last]);
    }

    #[test]
    fn classes_are_apart() {
        let mut space = Space::new();
        space.add(0x10_0000, segment(4));
        assert_eq!(space.take(Kind::of(512, 1)), None);
        assert_eq!(space.take(Kind::of(PAGE, 2)), None);
        assert!(space.take(pages(4)).is_some() && space.remove_whole(|_| true).is_none());
        let (at, _) = space.segment_in(0x10_0000 - 1, 2).unwrap();
        assert_eq!(at, 0x10_0000);
        assert!(space.segment_in(0x10_0000 - 1, 1).is_none() && space.segment_in(0x10_0000 + 4 * PAGE, 100).is_none());
    }
}
