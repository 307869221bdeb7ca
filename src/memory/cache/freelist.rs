//! Free blocks of one stream by size: two levels of bitmaps over lists, so that a fitting one is found in constant time.
//!
//! Sizes count in units of 512 bytes. The first level is the power of two, the second cuts it into 32 classes, so sizes of a class
//! differ by 3 per cent at most; below 64 units each size has a class of its own.

use super::block::{BlockId, Blocks, NIL};

const UNIT_SHIFT: u32 = 9;
const SECOND_BITS: u32 = 5;
const SECOND: usize = 1 << SECOND_BITS;
const FIRST: usize = 48;
/// How many blocks of a class are compared for the best fit.
const SCAN: usize = 8;

pub struct FreeList {
    first: u64,
    second: [u32; FIRST],
    heads: Box<[[BlockId; SECOND]; FIRST]>,
}

impl Default for FreeList {
    fn default() -> FreeList {
        FreeList { first: 0, second: [0; FIRST], heads: Box::new([[NIL; SECOND]; FIRST]) }
    }
}

/// The class that a size belongs to.
#[inline]
fn class(size: usize) -> (usize, usize) {
    let units = (size >> UNIT_SHIFT) as u64;
    debug_assert!(units > 0);
    let top = 63 - units.leading_zeros();
    if top < SECOND_BITS {
        return (0, units as usize);
    }
    let first = top - SECOND_BITS + 1;
    (first as usize, ((units >> (first - 1)) as usize) & (SECOND - 1))
}

impl FreeList {
    #[inline]
    pub fn insert(&mut self, blocks: &mut Blocks, id: BlockId) {
        let (first, second) = class(blocks[id].size);
        let head = std::mem::replace(&mut self.heads[first][second], id);
        let block = &mut blocks[id];
        block.link_prev = NIL;
        block.link_next = head;
        if head != NIL {
            blocks[head].link_prev = id;
        }
        self.first |= 1 << first;
        self.second[first] |= 1 << second;
    }

    #[inline]
    pub fn remove(&mut self, blocks: &mut Blocks, id: BlockId) {
        let (first, second) = class(blocks[id].size);
        let (prev, next) = (blocks[id].link_prev, blocks[id].link_next);
        if next != NIL {
            blocks[next].link_prev = prev;
        }
        if prev != NIL {
            blocks[prev].link_next = next;
            return;
        }
        self.heads[first][second] = next;
        if next == NIL {
            self.second[first] &= !(1 << second);
            if self.second[first] == 0 {
                self.first &= !(1 << first);
            }
        }
    }

    /// A block of at least `size` bytes, near the smallest there is; it stays in its list. `None` is certain only with `all`,
    /// which looks at every block of the size's own class instead of the first few.
    #[inline]
    pub fn find(&self, blocks: &Blocks, size: usize, all: bool) -> Option<BlockId> {
        let (first, second) = class(size);
        // Blocks of the same class may be too small; from the next class on everything fits.
        if let Some(id) = self.best_of(blocks, first, second, size, if all { usize::MAX } else { SCAN }) {
            return Some(id);
        }
        let above = if second + 1 < SECOND { self.second[first] & (u32::MAX << (second + 1)) } else { 0 };
        let (first, second) = if above != 0 {
            (first, above.trailing_zeros() as usize)
        } else {
            let above = self.first & u64::MAX.checked_shl(first as u32 + 1).unwrap_or(0);
            if above == 0 {
                return None;
            }
            let first = above.trailing_zeros() as usize;
            (first, self.second[first].trailing_zeros() as usize)
        };
        self.best_of(blocks, first, second, size, SCAN)
    }

    #[inline]
    fn best_of(&self, blocks: &Blocks, first: usize, second: usize, size: usize, scan: usize) -> Option<BlockId> {
        let mut best = NIL;
        let mut best_size = usize::MAX;
        let mut id = self.heads[first][second];
        for _ in 0..scan {
            if id == NIL {
                break;
            }
            let block = &blocks[id];
            if block.size >= size && block.size < best_size {
                (best, best_size) = (id, block.size);
                if best_size == size {
                    break;
                }
            }
            id = block.link_next;
        }
        (best != NIL).then_some(best)
    }

    pub fn is_empty(&self) -> bool {
        self.first == 0
    }

    /// Every block, the largest classes first.
    pub fn iter<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = BlockId> + 'a {
        let classes = (0..FIRST).rev().filter(|first| self.first & 1 << first != 0).flat_map(move |first| {
            (0..SECOND).rev().filter(move |second| self.second[first] & 1 << second != 0).map(move |second| self.heads[first][second])
        });
        classes.flat_map(|head| std::iter::successors(Some(head), |id| Some(blocks[*id].link_next).filter(|next| *next != NIL)))
    }

    /// The largest block, for messages.
    pub fn largest(&self, blocks: &Blocks) -> usize {
        if self.first == 0 {
            return 0;
        }
        let first = 63 - self.first.leading_zeros() as usize;
        let second = 31 - self.second[first].leading_zeros() as usize;
        let head = self.heads[first][second];
        std::iter::successors(Some(head), |id| Some(blocks[*id].link_next).filter(|next| *next != NIL))
            .map(|id| blocks[id].size)
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::{Block, State};
    use super::*;

    fn block(size: usize) -> Block {
        Block {
            address: 0,
            size,
            requested: 0,
            ticket: 0,
            prev: NIL,
            next: NIL,
            link_prev: NIL,
            link_next: NIL,
            area: 0,
            small: false,
            plain: false,
            slot: 0,
            state: State::Free,
            used_elsewhere: false,
        }
    }

    #[test]
    fn classes_rise_with_the_size_and_keep_within_three_per_cent() {
        let mut last = (0, 0);
        for units in 1..200_000usize {
            let class = class(units << UNIT_SHIFT);
            assert!(class >= last, "{units}");
            last = class;
        }
        assert!(class(usize::MAX >> 8).0 < FIRST);
        assert_eq!(class(512), (0, 1));
        assert_eq!(class(31 * 512), (0, 31));
        assert_eq!(class(32 * 512), (1, 0));
        assert_eq!(class(64 * 512), (2, 0));
    }

    #[test]
    fn finds_what_fits_against_a_plain_search() {
        let mut blocks = Blocks::default();
        let mut list = FreeList::default();
        let mut random = 12345u64;
        let mut free: Vec<BlockId> = Vec::new();
        for round in 0..20_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let size = (((random >> 33) % 4000) as usize + 1) * 512;
            if round % 3 != 0 || free.is_empty() {
                let id = blocks.insert(block(size));
                list.insert(&mut blocks, id);
                free.push(id);
            } else {
                let largest = free.iter().map(|id| blocks[*id].size).max().unwrap();
                match list.find(&blocks, size, round % 2 == 0) {
                    Some(id) => {
                        assert!(blocks[id].size >= size);
                        list.remove(&mut blocks, id);
                        free.retain(|other| *other != id);
                        blocks.remove(id);
                    }
                    // Only blocks of the very class, behind the first few, may be missed.
                    None => assert!(largest < size || (round % 2 != 0 && class(largest) == class(size))),
                }
                assert_eq!(list.largest(&blocks), free.iter().map(|id| blocks[*id].size).max().unwrap_or(0));
            }
        }
        for id in free {
            list.remove(&mut blocks, id);
        }
        assert!(list.first == 0 && list.second.iter().all(|bits| *bits == 0));
    }
}
