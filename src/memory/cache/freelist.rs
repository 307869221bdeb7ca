//! Free blocks of one stream by size: two levels of bitmaps over lists, so that a fitting one is found in constant time.
//!
//! Sizes count in units of 512 bytes. A class is a power of two and its next seven bits, so sizes of a class differ by 0.8 per cent at
//! most; below 256 units each size has a class of its own. So lists are short, and few blocks are looked at.

use super::block::{BlockId, NIL, Table, table};

/// Powers of two, up to the largest block.
const POWERS: usize = 32;
const STEP_BITS: u32 = 7;
const CLASSES: usize = POWERS << STEP_BITS;
const WORDS: usize = CLASSES / 64;

pub struct FreeList {
    /// Words that are not 0, and in each the classes that have blocks.
    summary: u64,
    words: [u64; WORDS],
    heads: [BlockId; CLASSES],
    /// The end of every list: a record of this list's own, so that writing to a neighbour needs no question whether there is one.
    nil: BlockId,
}

/// The class that a size in units belongs to: exponent and leading bits of the size as a float. Where that rounds up it does so for
/// every size between, and `best_of` compares the units themselves.
#[inline(always)]
fn class(units: u32) -> usize {
    debug_assert!(units > 0);
    const ONE: u32 = 1f32.to_bits();
    (((units as f32).to_bits() - ONE) >> (f32::MANTISSA_DIGITS - 1 - STEP_BITS)) as usize & (CLASSES - 1)
}

/// The bits that are set, the highest first.
fn bits_down(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.checked_ilog2()?;
        word ^= 1 << bit;
        Some(bit as usize)
    })
}

impl FreeList {
    /// Makes a list of what is all 0. `nil` is a record that is used for nothing else.
    pub fn begin(&mut self, nil: BlockId) {
        self.nil = nil;
        self.heads.fill(nil);
    }

    #[cfg(test)]
    fn new(nil: BlockId) -> FreeList {
        FreeList { summary: 0, words: [0; WORDS], heads: [nil; CLASSES], nil }
    }

    #[inline(always)]
    pub fn insert(&mut self, table: Table, id: BlockId) {
        let block = table.at(id);
        let class = class(block.units());
        let head = std::mem::replace(&mut self.heads[class], id);
        block.set_link_prev(self.nil);
        block.set_link_next(head);
        table.at(head).set_link_prev(id);
        self.summary |= 1 << (class / 64);
        self.words[class / 64] |= 1 << (class % 64);
    }

    #[inline(always)]
    pub fn remove(&mut self, table: Table, id: BlockId) {
        let block = table.at(id);
        let (prev, next) = (block.link_prev(), block.link_next());
        table.at(next).set_link_prev(prev);
        if prev != self.nil {
            table.at(prev).set_link_next(next);
            return;
        }
        let class = class(block.units());
        self.heads[class] = next;
        // Whether it was the last is anybody's guess: no branch.
        let word = self.words[class / 64] & !(u64::from(next == self.nil) << (class % 64));
        self.words[class / 64] = word;
        self.summary &= !(u64::from(word == 0) << (class / 64));
    }

    /// A block of at least `units`, near the smallest there is; it stays in its list. `None` is certain only with `all`, which looks at
    /// every block of the size's own class, if need be, instead of the first few.
    #[inline(always)]
    pub fn find(&self, table: Table, units: u32, small: bool, all: bool) -> Option<BlockId> {
        let own = class(units);
        let found = self.first_from(own)?;
        let first = self.heads[found];
        // From the next class on everything fits. Of small blocks the first that does will do: they are no waste to speak of.
        let fits = if small { table.at(first).units() >= units } else { found != own };
        if fits {
            return Some(first);
        }
        self.best_of(table, own, units, all).or_else(|| Some(self.heads[self.first_from(own + 1)?]))
    }

    /// One that fits, of the smallest class that has such: for what cannot be told by the size alone, but of `surely` units. Looks at the first few,
    /// with `all` at as many as there are.
    pub fn find_where(&self, units: u32, surely: u32, all: bool, fits: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        const LOOKS: usize = 256;
        let mut class_of = self.first_from(class(units));
        let classes = std::iter::from_fn(|| {
            let this = class_of?;
            class_of = self.first_from(this + 1);
            Some(this)
        });
        let mut near = classes.flat_map(|class| self.of_class(class)).take(if all { usize::MAX } else { LOOKS });
        near.find(|id| fits(*id)).or_else(|| Some(self.heads[self.first_from(class(surely) + 1)?]))
    }

    /// The first class from this one on that has blocks.
    #[inline(always)]
    fn first_from(&self, class: usize) -> Option<usize> {
        let word = class / 64;
        let here = self.words.get(word)? & u64::MAX << (class % 64);
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let above = self.summary & (u64::MAX - 1) << word;
        if above == 0 {
            return None;
        }
        let word = above.trailing_zeros() as usize % WORDS;
        Some(word * 64 + self.words[word].trailing_zeros() as usize % 64)
    }

    /// The smallest that fits of the first few of a class that has blocks; with `all` the first behind them, if none of them does.
    #[inline(always)]
    fn best_of(&self, table: Table, class: usize, units: u32, all: bool) -> Option<BlockId> {
        const SCAN: usize = 8;
        // More than any that fits has over; a block that is too small comes out larger.
        let (mut best, mut over) = (NIL, u32::MAX / 2 + 1);
        let mut id = self.heads[class];
        let mut left = SCAN;
        loop {
            let block = table.at(id);
            let more = block.units().wrapping_sub(units);
            // Which one fits best is anybody's guess: no branch.
            best = if more < over { id } else { best };
            over = over.min(more);
            id = block.link_next();
            left = left.saturating_sub(1);
            if (id == self.nil) | (over == 0) | (left == 0 && !(all && best == NIL)) {
                return (best != NIL).then_some(best);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.summary == 0
    }

    /// Every block, the largest classes first.
    pub fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.classes().flat_map(|class| self.of_class(class))
    }

    /// Those that have blocks, the largest first.
    fn classes(&self) -> impl Iterator<Item = usize> + '_ {
        bits_down(self.summary).flat_map(|word| bits_down(self.words[word]).map(move |bit| word * 64 + bit))
    }

    /// The first `most` of these, with less ado.
    #[inline]
    pub fn each(&self, mut most: usize, mut act: impl FnMut(BlockId)) {
        let table = table();
        for class in self.classes() {
            let mut id = self.heads[class];
            while id != self.nil {
                if most == 0 {
                    return;
                }
                most -= 1;
                act(id);
                id = table.at(id).link_next();
            }
        }
    }

    /// Of blocks that fit alike the one that was freed last is taken first: from now on that with the lowest address.
    pub fn forget_order(&mut self) {
        let table = table();
        let is_alone = |class: usize| table.at(self.heads[class]).link_next() == self.nil;
        let is_sorted = |class: usize| self.of_class(class).is_sorted_by_key(|id| table.at(id).address());
        let in_disorder = |class: &usize| !is_alone(*class) && !is_sorted(*class);
        for class in self.classes().filter(in_disorder).collect::<Vec<_>>() {
            let mut blocks: Vec<BlockId> = self.of_class(class).collect();
            blocks.sort_unstable_by_key(|id| table.at(*id).address());
            blocks.iter().for_each(|id| self.remove(table, *id));
            blocks.iter().rev().for_each(|id| self.insert(table, *id));
        }
    }

    fn of_class(&self, class: usize) -> impl Iterator<Item = BlockId> + '_ {
        let some = move |id: BlockId| (id != self.nil).then_some(id);
        std::iter::successors(some(self.heads[class]), move |id| some(table().at(*id).link_next()))
    }

    /// Size of the largest block, for messages.
    pub fn largest(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        let word = 63 - self.summary.leading_zeros() as usize;
        let class = word * 64 + 63 - self.words[word].leading_zeros() as usize;
        self.of_class(class).map(|id| table().at(id).size()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::{self, Pool, State, UNIT};
    use super::super::core::LARGEST;
    use super::*;
    use crate::base::numbers;

    #[test]
    fn classes_rise_with_the_size_and_keep_within_one_per_cent() {
        let mut last = 0;
        for units in 1..200_000u32 {
            let class = class(units);
            assert!(class >= last, "{units}");
            last = class;
        }
        let largest = (LARGEST / UNIT) as u32;
        assert!(class(largest) < CLASSES && class(largest) > class(largest / 2) && class(largest - 1) <= class(largest));
        for units in 1..256 {
            assert_ne!(class(units), class(units + 1));
        }
        for units in 256..200_000u32 {
            assert!(class(units + units.div_ceil(128)) > class(units), "{units}");
        }
    }

    #[test]
    fn of_a_class_large_blocks_get_the_best_and_small_ones_the_first_that_fits() {
        assert!(block::reserve());
        let mut pool = Pool::default();
        let mut list = FreeList::new(pool.take(table()).unwrap());
        for units in [1002, 1000, 1003, 1001] {
            let id = pool.insert(0, units * UNIT, 0, State::Free, 0).unwrap();
            list.insert(table(), id);
        }
        assert!((1000..1004).all(|units| class(units) == class(1000)));
        let found = |units, small| block::at(list.find(table(), units, small, false).unwrap()).units();
        assert_eq!([1000, 1001, 1002, 1003].map(|units| found(units, false)), [1000, 1001, 1002, 1003]);
        assert_eq!([1000, 1001].map(|units| found(units, true)), [1001, 1001]);
        assert_eq!([1002, 1003].map(|units| found(units, true)), [1002, 1003]);
        assert_eq!(list.find(table(), 1004, false, true), None);
    }

    #[test]
    fn blocks_that_fit_alike_are_taken_by_address_once_their_order_is_forgotten() {
        assert!(block::reserve());
        let mut pool = Pool::default();
        let mut list = FreeList::new(pool.take(table()).unwrap());
        let places = [(3, 1000), (1, 70), (5, 1001), (0, 1002), (4, 70), (2, 9), (7, 1000)];
        for (place, units) in places {
            let id = pool.insert(place * UNIT, units * UNIT, 0, State::Free, 0).unwrap();
            list.insert(table(), id);
        }
        let order = |list: &FreeList| list.iter().map(|id| block::at(id).address() / UNIT).collect::<Vec<_>>();
        assert_eq!(order(&list), [7, 0, 5, 3, 4, 1, 2]);
        list.forget_order();
        assert_eq!(order(&list), [0, 3, 5, 7, 1, 4, 2]);
        let mut first = Vec::new();
        list.each(5, |id| first.push(block::at(id).address() / UNIT));
        assert_eq!(first, [0, 3, 5, 7, 1]);
    }

    #[test]
    fn finds_what_fits_against_a_plain_search() {
        assert!(block::reserve());
        let mut pool = Pool::default();
        let mut list = FreeList::new(pool.take(table()).unwrap());
        let mut below = numbers::random(12345);
        let mut free: Vec<BlockId> = Vec::new();
        for round in 0..20_000 {
            let units = below(4000) as u32 + 1;
            if round % 3 != 0 || free.is_empty() {
                let id = pool.insert(0, units as usize * UNIT, 0, State::Free, 0).unwrap();
                list.insert(table(), id);
                free.push(id);
            } else {
                let largest = free.iter().map(|id| block::at(*id).units()).max().unwrap();
                // What is asked beside the size is asked of every block.
                let odd = |id: &BlockId| block::at(*id).units() >= units && *id % 2 == 1;
                let smallest = free.iter().copied().filter(odd).map(|id| class(block::at(id).units())).min();
                let found = list.find_where(units, u32::MAX >> 8, true, |id| odd(&id));
                assert!(found.is_none_or(|id| odd(&id)) && found.map(|id| class(block::at(id).units())) == smallest);
                match list.find(table(), units, round % 4 < 2, round % 2 == 0) {
                    Some(id) => {
                        assert!(block::at(id).units() >= units);
                        list.remove(table(), id);
                        free.retain(|other| *other != id);
                        pool.put(table(), id);
                    }
                    // Only blocks of the very class, behind the first few, may be missed.
                    None => assert!(largest < units || (round % 2 != 0 && class(largest) == class(units))),
                }
                assert_eq!(list.largest(), free.iter().map(|id| block::at(*id).size()).max().unwrap_or(0));
            }
        }
        for id in free {
            list.remove(table(), id);
        }
        assert!(list.summary == 0 && list.words.iter().all(|bits| *bits == 0));
    }
}
