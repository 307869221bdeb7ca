//! From an address to the block that starts there: a two-level table over 1 MiB granules, read without a lock.
//!
//! Blocks of large areas are over 1 MiB, so a granule has at most one start; granules of small areas have an index of one entry
//! for each 512 bytes. Entries are written when a block is handed out and never cleared: the caller checks, under its device's
//! lock, that the block still starts there. Tables are never freed, so a stale entry is harmless.

use super::cache::BlockId;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

const GRANULE: u32 = 20;
const UNIT: u32 = 9;
const LEAF_BITS: u32 = 14;
const ROOT_BITS: u32 = 14;
/// Addresses at and above this are not covered: no device hands them out today.
pub const LIMIT: usize = 1 << (GRANULE + LEAF_BITS + ROOT_BITS);

/// Areas begin and end at multiples of this, so that none shares an entry with another.
pub const GRANULARITY: usize = 1 << GRANULE;

const UNITS: usize = 1 << (GRANULE - UNIT);

struct Leaf {
    /// 0: nothing was ever handed out. Else device + 1 in the upper half, and in the lower the block (large) or `SMALL`.
    entries: [AtomicU64; 1 << LEAF_BITS],
    indexes: [AtomicPtr<Index>; 1 << LEAF_BITS],
}

type Index = [AtomicU32; UNITS];
const SMALL: u32 = u32::MAX;

static ROOT: [AtomicPtr<Leaf>; 1 << ROOT_BITS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 1 << ROOT_BITS];

/// What the table says of an address, true only if the block agrees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    pub device: i32,
    pub block: BlockId,
}

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
pub fn insert(address: usize, small: bool, device: i32, block: BlockId) {
    let (root, at) = split(address);
    let slot = &ROOT[root];
    let mut leaf = slot.load(Ordering::Acquire);
    if leaf.is_null() {
        leaf = install(slot);
    }
    let leaf = unsafe { &*leaf };
    let word = if small {
        let slot = &leaf.indexes[at];
        let mut index = slot.load(Ordering::Acquire);
        if index.is_null() {
            index = install(slot);
        }
        let index: &Index = unsafe { &*index };
        // Block 0 is a block: the index holds one more.
        index[unit_of(address)].store(block + 1, Ordering::Release);
        SMALL
    } else {
        block
    };
    let entry = (device as u64 + 1) << 32 | u64::from(word);
    // Most often it is there already, and the line stays clean for other threads.
    if leaf.entries[at].load(Ordering::Relaxed) != entry {
        leaf.entries[at].store(entry, Ordering::Release);
    }
}

/// The block that was last handed out at exactly this address.
#[inline]
pub fn find(address: usize) -> Option<Found> {
    if address >= LIMIT || address & ((1 << UNIT) - 1) != 0 {
        return None;
    }
    let (entry, index) = granule(address)?;
    let device = (entry >> 32) as i32 - 1;
    match entry as u32 {
        SMALL => {
            let block = unsafe { index.as_ref()? }[unit_of(address)].load(Ordering::Acquire);
            (block != 0).then(|| Found { device, block: block - 1 })
        }
        block => Some(Found { device, block }),
    }
}

fn granule(address: usize) -> Option<(u64, *mut Index)> {
    let (root, at) = split(address);
    let leaf = unsafe { ROOT[root].load(Ordering::Acquire).as_ref()? };
    let entry = leaf.entries[at].load(Ordering::Acquire);
    (entry != 0).then(|| (entry, leaf.indexes[at].load(Ordering::Acquire)))
}

/// Starts at or below `address`, nearest first, down to `lowest`: one of them holds the address if any block does.
pub fn starts_below(address: usize, lowest: usize) -> impl Iterator<Item = Found> {
    let top = address.min(LIMIT - 1) >> GRANULE;
    (lowest >> GRANULE..=top).rev().filter_map(move |number| Some((number, granule(number << GRANULE)?))).flat_map(
        move |(number, (entry, index))| {
            let device = (entry >> 32) as i32 - 1;
            let small = entry as u32 == SMALL && !index.is_null();
            let last = if number == top { unit_of(address) } else { UNITS - 1 };
            let units = if small { 0..=last } else { 0..=0 };
            units.rev().filter_map(move |unit| {
                if !small {
                    return (entry as u32 != SMALL).then_some(Found { device, block: entry as u32 });
                }
                let block = unsafe { &*index }[unit].load(Ordering::Acquire);
                (block != 0).then(|| Found { device, block: block - 1 })
            })
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_starts_are_found_exactly() {
        let base = 0x5a00_0000_0000;
        assert_eq!(find(base), None);
        insert(base, true, 3, 0);
        insert(base + 512, true, 3, 7);
        assert_eq!(find(base), Some(Found { device: 3, block: 0 }));
        assert_eq!(find(base + 512), Some(Found { device: 3, block: 7 }));
        assert_eq!(find(base + 1024), None);
        assert_eq!(find(base + 1), None);
        insert(base + (5 << 20) + 512, false, 0, 9);
        assert_eq!(find(base + (5 << 20) + 512), Some(Found { device: 0, block: 9 }));
        assert_eq!(find(LIMIT), None);
        assert_eq!(find(usize::MAX), None);
        assert_eq!(find(0), None);
    }

    #[test]
    fn starts_below_come_nearest_first() {
        let base = 0x5b00_0000_0000;
        insert(base, true, 1, 1);
        insert(base + 4096, true, 1, 2);
        insert(base + (1 << 20), true, 1, 3);
        let blocks: Vec<_> = starts_below(base + (1 << 20) + 100, base).map(|found| found.block).collect();
        assert_eq!(blocks, [3, 2, 1]);
        let blocks: Vec<_> = starts_below(base + 4095, base).map(|found| found.block).collect();
        assert_eq!(blocks, [1]);
    }
}
