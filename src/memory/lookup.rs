//! From an address to the block that starts there: a two-level table over 1 MiB granules, read without a lock.
//!
//! Large blocks are over 1 MiB, so a granule has at most one start of such; granules with small ones have an index of one entry for
//! each 512 bytes. Entries are written when a block is handed out and never cleared: the caller checks that the block still starts
//! there. Tables are never freed, so a stale entry is harmless.

use super::cache::{BlockId, NIL, block};
use super::sync::{AtomicPtr, AtomicU32};
use std::sync::atomic::Ordering;

const GRANULE: u32 = 20;
const UNIT: u32 = 9;
const LEAF_BITS: u32 = 14;
const ROOT_BITS: u32 = 14;
/// Addresses at and above this are not covered: no device hands them out today.
pub const LIMIT: usize = 1 << (GRANULE + LEAF_BITS + ROOT_BITS);

/// Reservations are multiples of this.
pub const GRANULARITY: usize = 1 << GRANULE;

const UNITS: usize = 1 << (GRANULE - UNIT);

struct Leaf {
    /// The large blocks that start here.
    large: [AtomicU32; 1 << LEAF_BITS],
    indexes: [AtomicPtr<Index>; 1 << LEAF_BITS],
}

type Index = [AtomicU32; UNITS];

static ROOT: [AtomicPtr<Leaf>; 1 << ROOT_BITS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 1 << ROOT_BITS];

/// Allocates a zeroed table for the slot unless another thread was faster.
#[cold]
fn install<T>(slot: &AtomicPtr<T>) -> *mut T {
    let layout = std::alloc::Layout::new::<T>();
    // Both tables consist of atomics for which zero bytes are a value.
    let new = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<T>();
    if new.is_null() {
        std::alloc::handle_alloc_error(layout);
    }
    match slot.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        Err(first) => {
            unsafe { std::alloc::dealloc(new.cast(), layout) };
            first
        }
    }
}

#[inline]
fn split(address: usize) -> (usize, usize) {
    let granule = address >> GRANULE;
    (granule >> LEAF_BITS, granule & ((1 << LEAF_BITS) - 1))
}

#[inline]
fn unit_of(address: usize) -> usize {
    (address >> UNIT) & (UNITS - 1)
}

/// Notes that a block starts at `address`, which lies below `LIMIT` and is a multiple of 512.
#[inline(always)]
pub fn insert(address: usize, small: bool, block: BlockId) {
    let (root, at) = split(address);
    let slot = &ROOT[root];
    let mut leaf = slot.load(Ordering::Acquire);
    if leaf.is_null() {
        leaf = install(slot);
    }
    let leaf = unsafe { &*leaf };
    if !small {
        leaf.large[at].store(block, Ordering::Release);
        return;
    }
    let slot = &leaf.indexes[at];
    let mut index = slot.load(Ordering::Acquire);
    if index.is_null() {
        index = install(slot);
    }
    unsafe { &(&*index)[unit_of(address)] }.store(block, Ordering::Release);
}

#[inline(always)]
fn leaf_of(address: usize) -> Option<&'static Leaf> {
    unsafe { ROOT.get(address >> (GRANULE + LEAF_BITS))?.load(Ordering::Acquire).as_ref() }
}

/// The small block that was last handed out in the 512 bytes of this address; NIL or None: there never was one.
#[inline(always)]
pub fn small_at(address: usize) -> Option<BlockId> {
    let leaf = leaf_of(address)?;
    let index = unsafe { leaf.indexes.get_unchecked((address >> GRANULE) & ((1 << LEAF_BITS) - 1)) }.load(Ordering::Acquire);
    Some(unsafe { index.as_ref()?.get_unchecked(unit_of(address)) }.load(Ordering::Relaxed))
}

/// The large block that was last handed out in the granule of this address; NIL or None: there never was one.
#[inline(always)]
pub fn large_at(address: usize) -> Option<BlockId> {
    Some(leaf_of(address)?.large[(address >> GRANULE) & ((1 << LEAF_BITS) - 1)].load(Ordering::Relaxed))
}

/// The block that was last handed out at exactly this address.
pub fn find(address: usize) -> Option<BlockId> {
    let starts_here = |id: &BlockId| *id != NIL && block::at(*id).address() == address;
    [small_at(address), large_at(address)].into_iter().flatten().find(starts_here)
}

fn granule(address: usize) -> Option<(BlockId, *mut Index)> {
    let leaf = leaf_of(address)?;
    let (_, at) = split(address);
    let (large, index) = (leaf.large[at].load(Ordering::Acquire), leaf.indexes[at].load(Ordering::Acquire));
    (large != NIL || !index.is_null()).then_some((large, index))
}

/// Starts at or below `address`, nearest first, down to `lowest`: one of them holds the address if any block does.
pub fn starts_below(address: usize, lowest: usize) -> impl Iterator<Item = BlockId> {
    let top = address.min(LIMIT - 1) >> GRANULE;
    (lowest >> GRANULE..=top).rev().filter_map(move |number| Some((number, granule(number << GRANULE)?))).flat_map(
        move |(number, (large, index))| {
            let last = if number == top { unit_of(address) } else { UNITS - 1 };
            let small = unsafe { index.as_ref() }.into_iter().flat_map(move |index| index[..=last].iter().rev());
            small.map(|block| block.load(Ordering::Acquire)).chain([large]).filter(|block| *block != NIL)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Pool, State};

    fn block(pool: &mut Pool, address: usize) -> BlockId {
        pool.insert(address, 512, 0, State::Allocated, 0).unwrap()
    }

    #[test]
    fn small_and_large_starts_are_found_exactly() {
        assert!(block::reserve());
        let mut pool = Pool::default();
        let base = 0x5a00_0000_0000;
        assert_eq!(find(base), None);
        let (first, second, large) = (block(&mut pool, base), block(&mut pool, base + 512), block(&mut pool, base + (5 << 20) + 512));
        insert(base, true, first);
        insert(base + 512, true, second);
        assert_eq!(find(base), Some(first));
        assert_eq!(find(base + 512), Some(second));
        assert_eq!(find(base + 1024), None);
        assert_eq!(find(base + 1), None);
        insert(base + (5 << 20) + 512, false, large);
        assert_eq!(find(base + (5 << 20) + 512), Some(large));
        assert_eq!(find(base + (5 << 20)), None);
        assert_eq!(find(LIMIT), None);
        assert_eq!(find(usize::MAX), None);
        assert_eq!(find(0), None);
        assert_eq!((small_at(LIMIT), large_at(usize::MAX)), (None, None));
    }

    #[test]
    fn starts_below_come_nearest_first() {
        assert!(block::reserve());
        let mut pool = Pool::default();
        let base = 0x5b00_0000_0000;
        let ids = [base, base + 4096, base + (1 << 20)].map(|address| {
            let id = block(&mut pool, address);
            insert(address, true, id);
            id
        });
        let blocks: Vec<_> = starts_below(base + (1 << 20) + 100, base).collect();
        assert_eq!(blocks, [ids[2], ids[1], ids[0]]);
        let blocks: Vec<_> = starts_below(base + 4095, base).collect();
        assert_eq!(blocks, [ids[0]]);
    }
}
