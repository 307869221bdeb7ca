//! Free blocks of one stream by size: two levels of bitmaps over lists, so that a fitting one is found in constant time.
//!
//! Sizes count in units of 512 bytes. The first level is the power of two, the second cuts it into 32 classes, so sizes of a class
//! differ by 3 per cent at most; below 64 units each size has a class of its own.

use super::block::{self, BlockId, NIL};

const SECOND_BITS: u32 = 5;
const SECOND: usize = 1 << SECOND_BITS;
const FIRST: usize = 32;
/// How many blocks of a class are compared for the best fit.
const SCAN: usize = 8;

pub struct FreeList {
    first: u64,
    second: [u32; FIRST],
    heads: Box<[BlockId; FIRST * SECOND]>,
    /// The end of every list: a record of this list's own, so that writing to a neighbour needs no question whether there is one.
    nil: BlockId,
}

/// The class that a size in units belongs to: first level, second level.
#[inline(always)]
fn class(units: u32) -> (usize, usize) {
    debug_assert!(units > 0);
    let top = 31 - (units | 1).leading_zeros();
    if top < SECOND_BITS {
        return (0, units as usize & (SECOND - 1));
    }
    let first = top - SECOND_BITS + 1;
    (first as usize, (units >> (first - 1)) as usize & (SECOND - 1))
}

impl FreeList {
    /// `nil` is a record that is used for nothing else.
    pub fn new(nil: BlockId) -> FreeList {
        FreeList { first: 0, second: [0; FIRST], heads: Box::new([nil; FIRST * SECOND]), nil }
    }

    #[inline(always)]
    pub fn insert(&mut self, id: BlockId) {
        let block = block::at(id);
        let (first, second) = class(block.units());
        let head = std::mem::replace(&mut self.heads[first * SECOND + second], id);
        block.set_links(self.nil, head);
        let old = block::at(head);
        old.set_links(id, old.link_next());
        self.first |= 1 << first;
        self.second[first] |= 1 << second;
    }

    #[inline(always)]
    pub fn remove(&mut self, id: BlockId) {
        let block = block::at(id);
        let (prev, next) = (block.link_prev(), block.link_next());
        let right = block::at(next);
        right.set_links(prev, right.link_next());
        if prev != self.nil {
            let left = block::at(prev);
            left.set_links(left.link_prev(), next);
            return;
        }
        let (first, second) = class(block.units());
        self.heads[first * SECOND + second] = next;
        if next == self.nil {
            self.second[first] &= !(1 << second);
            if self.second[first] == 0 {
                self.first &= !(1 << first);
            }
        }
    }

    /// A block of at least `units`, near the smallest there is; it stays in its list. `None` is certain only with `all`, which looks at
    /// every block of the size's own class instead of the first few.
    #[inline(always)]
    pub fn find(&self, units: u32, all: bool) -> Option<BlockId> {
        let (first, second) = class(units);
        // Blocks of the same class may be too small; from the next class on everything fits.
        if self.second[first] >> second & 1 != 0 {
            let found = self.best_of(first, second, units, if all { usize::MAX } else { SCAN });
            if found.is_some() {
                return found;
            }
        }
        let above = self.second[first] & (u32::MAX - 1).wrapping_shl(second as u32);
        let (first, second) = if above != 0 {
            (first, above.trailing_zeros() as usize)
        } else {
            let above = self.first & (u64::MAX - 1) << first;
            if above == 0 {
                return None;
            }
            let first = above.trailing_zeros() as usize & (FIRST - 1);
            (first, self.second[first].trailing_zeros() as usize)
        };
        self.best_of(first, second & (SECOND - 1), units, SCAN)
    }

    #[inline(always)]
    fn best_of(&self, first: usize, second: usize, units: u32, scan: usize) -> Option<BlockId> {
        let mut best = NIL;
        let mut best_units = u32::MAX;
        let mut id = self.heads[first * SECOND + second];
        for _ in 0..scan {
            if id == self.nil {
                break;
            }
            let block = block::at(id);
            let has = block.units();
            if has >= units && has < best_units {
                (best, best_units) = (id, has);
                if has == units {
                    break;
                }
            }
            id = block.link_next();
        }
        (best != NIL).then_some(best)
    }

    pub fn is_empty(&self) -> bool {
        self.first == 0
    }

    /// Every block, the largest classes first.
    pub fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        let classes = (0..FIRST).rev().filter(|first| self.first & 1 << first != 0).flat_map(move |first| {
            let heads = &self.heads[first * SECOND..(first + 1) * SECOND];
            (0..SECOND).rev().filter(move |second| self.second[first] & 1 << second != 0).map(move |second| heads[second])
        });
        classes.flat_map(|head| std::iter::successors(Some(head), |id| Some(block::at(*id).link_next()).filter(|next| *next != self.nil)))
    }

    /// Size of the largest block, for messages.
    pub fn largest(&self) -> usize {
        if self.first == 0 {
            return 0;
        }
        let first = 63 - self.first.leading_zeros() as usize;
        let second = 31 - self.second[first].leading_zeros() as usize;
        let head = self.heads[first * SECOND + second];
        std::iter::successors(Some(head), |id| Some(block::at(*id).link_next()).filter(|next| *next != self.nil))
            .map(|id| block::at(id).size())
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::{Pool, State};
    use super::*;

    #[test]
    fn classes_rise_with_the_size_and_keep_within_three_per_cent() {
        let mut last = (0, 0);
        for units in 1..200_000u32 {
            let class = class(units);
            assert!(class >= last, "{units}");
            last = class;
        }
        assert!(class(u32::MAX).0 < FIRST);
        assert_eq!(class(1), (0, 1));
        assert_eq!(class(31), (0, 31));
        assert_eq!(class(32), (1, 0));
        assert_eq!(class(64), (2, 0));
    }

    #[test]
    fn finds_what_fits_against_a_plain_search() {
        assert!(block::reserve());
        let mut pool = Pool::default();
        let mut list = FreeList::new(pool.take().unwrap());
        let mut random = 12345u64;
        let mut free: Vec<BlockId> = Vec::new();
        for round in 0..20_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let units = ((random >> 33) % 4000) as u32 + 1;
            if round % 3 != 0 || free.is_empty() {
                let id = pool.insert(0, units as usize * block::UNIT, 0, State::Free, 0).unwrap();
                list.insert(id);
                free.push(id);
            } else {
                let largest = free.iter().map(|id| block::at(*id).units()).max().unwrap();
                match list.find(units, round % 2 == 0) {
                    Some(id) => {
                        assert!(block::at(id).units() >= units);
                        list.remove(id);
                        free.retain(|other| *other != id);
                        pool.put(id);
                    }
                    // Only blocks of the very class, behind the first few, may be missed.
                    None => assert!(largest < units || (round % 2 != 0 && class(largest) == class(units))),
                }
                assert_eq!(list.largest(), free.iter().map(|id| block::at(*id).size()).max().unwrap_or(0));
            }
        }
        for id in free {
            list.remove(id);
        }
        assert!(list.first == 0 && list.second.iter().all(|bits| *bits == 0));
    }
}
