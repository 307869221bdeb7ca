//! From an address to the word of the block that starts there, read without a lock: three levels, one word for each 512 bytes where
//! blocks ever started. Words are cleared when a block is free; tables stay.

use crate::runtime::Address;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

/// Blocks begin at multiples of this.
pub(super) const UNIT: usize = 1 << UNIT_BITS;
/// Blocks of a page and more are whole pages.
pub(super) const PAGE: usize = 4096;
/// A request above this could not be a mistake of less than four orders of magnitude.
const MOST: usize = 1 << 44;

const UNIT_BITS: u32 = 9;
const LEAF_BITS: u32 = 12;
const MIDDLE_BITS: u32 = 13;
const ROOT_BITS: u32 = 14;
/// Addresses from here on are not covered.
pub(super) const LIMIT: usize = 1 << (UNIT_BITS + LEAF_BITS + MIDDLE_BITS + ROOT_BITS);

/// What a block is like: its bytes, and the kind of memory that it is cut from. Two blocks of one kind can stand for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind(u64);

/// Node and whether for blocks below a page: free memory of one class never joins that of another.
pub type Class = u16;

const CLASS_BITS: u32 = 14;
const STATE_BITS: u32 = 2;

impl Kind {
    /// Up to seven units the block is so many units, above that whole pages. None: too large.
    #[inline]
    pub fn new(size: usize, node: u32) -> Option<Kind> {
        if size > MOST {
            return None;
        }
        let small = size <= PAGE - UNIT;
        let bytes = size.next_multiple_of(if small { UNIT } else { PAGE });
        Some(Kind::of(bytes, (node as Class) << 1 | Class::from(small)))
    }

    #[inline]
    pub fn of(bytes: usize, class: Class) -> Kind {
        Kind(((bytes >> UNIT_BITS) as u64) << (CLASS_BITS + STATE_BITS) | u64::from(class) << STATE_BITS)
    }

    /// Never 0.
    #[inline]
    pub fn raw(self) -> u64 {
        self.0
    }

    #[inline]
    pub fn bytes(self) -> usize {
        ((self.0 >> (CLASS_BITS + STATE_BITS)) as usize) << UNIT_BITS
    }

    pub fn class(self) -> Class {
        (self.0 >> STATE_BITS) as Class & ((1 << CLASS_BITS) - 1)
    }

    /// Whether it is whole pages.
    pub fn is_pages(self) -> bool {
        self.class() & 1 == 0
    }

    /// The same for memory of another node.
    pub fn on_node(self, node: u32) -> Kind {
        Kind::of(self.bytes(), (node as Class) << 1 | (self.class() & 1))
    }

    /// Spreads over a table of a power of two.
    #[inline]
    pub fn spread(self, bits: u32) -> usize {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }
}

pub fn node_of(class: Class) -> u32 {
    u32::from(class >> 1)
}

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// In the program's hands.
    Out,
    /// The same, and streams use it.
    Used,
    /// Free, with a thread that keeps it to itself.
    Kept,
}

#[inline]
pub fn word(kind: Kind, state: State) -> u64 {
    kind.0 | (state as u64 + 1)
}

/// None: no block in use starts here.
#[inline]
pub fn parse(word: u64) -> Option<(Kind, State)> {
    let state = match word & ((1 << STATE_BITS) - 1) {
        0 => return None,
        1 => State::Out,
        2 => State::Used,
        _ => State::Kept,
    };
    Some((Kind(word & !((1 << STATE_BITS) - 1)), state))
}

type Leaf = Box<[AtomicU64]>;
type Middle = Box<[OnceLock<Leaf>]>;

static ROOT: OnceLock<Box<[OnceLock<Middle>]>> = OnceLock::new();

#[inline]
fn part(address: Address, above: u32, bits: u32) -> usize {
    (address >> (UNIT_BITS + above)) & ((1 << bits) - 1)
}

/// The word of an address. None: no block ever started near it, or none can start there.
#[inline]
pub fn find(address: Address) -> Option<&'static AtomicU64> {
    if !address.is_multiple_of(UNIT) {
        return None;
    }
    let middle = ROOT.get()?.get(address >> (UNIT_BITS + LEAF_BITS + MIDDLE_BITS))?.get()?;
    let leaf = middle[part(address, LEAF_BITS, MIDDLE_BITS)].get()?;
    Some(&leaf[part(address, 0, LEAF_BITS)])
}

/// The same; the tables are made where there are none. The address lies below `LIMIT` and is a multiple of 512.
pub fn make(address: Address) -> &'static AtomicU64 {
    fn new<T: Default>(bits: u32) -> Box<[T]> {
        (0..1 << bits).map(|_| T::default()).collect()
    }
    let root = ROOT.get_or_init(|| new(ROOT_BITS));
    let middle = root[address >> (UNIT_BITS + LEAF_BITS + MIDDLE_BITS)].get_or_init(|| new(MIDDLE_BITS));
    let leaf = middle[part(address, LEAF_BITS, MIDDLE_BITS)].get_or_init(|| new(LEAF_BITS));
    &leaf[part(address, 0, LEAF_BITS)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn kinds_are_units_up_to_a_page_and_pages_from_there() {
        let bytes = |size| Kind::new(size, 0).map(Kind::bytes);
        for (size, rounded) in [(1, 512), (512, 512), (513, 1024), (3584, 3584), (3585, 4096), (4096, 4096), (4097, 8192)] {
            assert_eq!(bytes(size), Some(rounded), "{size}");
        }
        assert_eq!((bytes(MOST), bytes(MOST + 1), bytes(usize::MAX)), (Some(MOST), None, None));
        let far = Kind::new(100, 1000).unwrap();
        assert_eq!((node_of(far.class()), far.class() & 1, far.bytes()), (1000, 1, 512));
        assert_eq!(far.on_node(0), Kind::new(100, 0).unwrap());
        assert_ne!(Kind::new(4096, 0), Kind::new(4096, 1));
    }

    #[test]
    fn words_say_what_was_put_in() {
        for (size, node) in [(1, 0), (5000, 3), (MOST, 8000)] {
            let kind = Kind::new(size, node).unwrap();
            for state in [State::Out, State::Used, State::Kept] {
                assert_eq!(parse(word(kind, state)), Some((kind, state)));
            }
        }
        assert_eq!(parse(0), None);
    }

    #[test]
    fn each_unit_has_a_word_of_its_own() {
        // No test has blocks here.
        let base = 0x7b00_0000_0000;
        assert!(find(base).is_none());
        make(base).store(7, Relaxed);
        make(base + UNIT).store(8, Relaxed);
        make(base + (2 << 20)).store(9, Relaxed);
        let at = |address| find(address).map(|word| word.load(Relaxed));
        assert_eq!([at(base), at(base + UNIT), at(base + 2 * UNIT), at(base + (2 << 20))], [Some(7), Some(8), Some(0), Some(9)]);
        assert_eq!([at(base + 1), at(base + (4 << 20)), at(LIMIT), at(usize::MAX - UNIT + 1), at(0)], [None; 5]);
    }
}
