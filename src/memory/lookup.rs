//! From an address to the block that starts there: two tables of two levels, read without a lock.
//!
//! Large blocks are over 1 MiB, so a granule of that size has at most one start of such; small ones have an entry for each 512 bytes.
//! Entries are written when a block is handed out and never cleared: the caller checks that the block still starts there. Tables are
//! never freed, so a stale entry is harmless.

use super::cache::{BlockId, NIL, block};
use super::sync::{AtomicPtr, AtomicU32};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

const GRANULE: u32 = 20;
const UNIT: u32 = 9;
const BITS: u32 = 48;
/// Addresses at and above this are not covered: no device hands them out today.
pub const LIMIT: usize = 1 << BITS;

/// Reservations are multiples of this.
pub const GRANULARITY: usize = 1 << GRANULE;

const UNITS: usize = 1 << (GRANULE - UNIT);

/// Memory whose small blocks have their entries in one line.
pub const LINE: usize = (64 / size_of::<AtomicU32>()) << UNIT;

/// What a part of each table covers: 64 GiB, and 256 MiB, for which it has 2 MiB.
const LARGE_PART: u32 = 36;
const SMALL_PART: u32 = 28;

const LARGE_ENTRIES: usize = 1 << (LARGE_PART - GRANULE);
const SMALL_ENTRIES: usize = 1 << (SMALL_PART - UNIT);
const LARGE_PARTS: usize = 1 << (BITS - LARGE_PART);
const SMALL_PARTS: usize = 1 << (BITS - SMALL_PART);

type Part<const ENTRIES: usize> = AtomicPtr<[AtomicU32; ENTRIES]>;

static LARGE: [Part<LARGE_ENTRIES>; LARGE_PARTS] = [const { AtomicPtr::new(null_mut()) }; LARGE_PARTS];
static SMALL: [Part<SMALL_ENTRIES>; SMALL_PARTS] = [const { AtomicPtr::new(null_mut()) }; SMALL_PARTS];

/// Blocks side by side may be those of several threads, so granules side by side have their entries in lines of memory of their own: each
/// stands one entry more than a line has behind the last. What shares a line lies 3,855 granules apart or more.
#[inline(always)]
fn large_place(address: usize) -> usize {
    (address >> GRANULE) * 17 % LARGE_ENTRIES
}

#[inline(always)]
fn small_place(address: usize) -> usize {
    (address >> UNIT) % SMALL_ENTRIES
}

/// What of a range begins and ends with a line, or an empty or a backward one.
pub fn lines_within(range: Range<usize>) -> Range<usize> {
    range.start.next_multiple_of(LINE)..range.end / LINE * LINE
}

/// Makes a part of a table unless another thread was faster.
#[cold]
fn install<const ENTRIES: usize>(part: &Part<ENTRIES>, advice: i32) -> &[AtomicU32; ENTRIES] {
    let size = size_of::<[AtomicU32; ENTRIES]>();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // Twice as much, so that it can begin on a multiple: what nobody touches costs addresses only, as does one that comes too late.
    let pages = unsafe { libc::mmap(null_mut(), 2 * size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if pages == libc::MAP_FAILED {
        std::alloc::handle_alloc_error(std::alloc::Layout::new::<[AtomicU32; ENTRIES]>());
    }
    let new = pages.map_addr(|address| address.next_multiple_of(size));
    // Where there are no large pages, so be it.
    unsafe { libc::madvise(new, size, advice) };
    // Atomics, for which zero bytes are a value.
    let new = new.cast();
    unsafe { &*part.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).map_or_else(|first| first, |_| new) }
}

/// Blocks of random sizes are all over a part, and of small pages the processor knows too few.
const MANY: i32 = libc::MADV_HUGEPAGE;
const FEW: i32 = libc::MADV_NOHUGEPAGE;

/// Before the first block at `address` is noted: it is one of a few, for which a part does not take the whole of its memory.
pub fn expect_few(address: usize, small: bool) {
    fn make<const ENTRIES: usize>(part: &Part<ENTRIES>) {
        if read(part).is_none() {
            install(part, FEW);
        }
    }
    if small { make(&SMALL[address >> SMALL_PART]) } else { make(&LARGE[address >> LARGE_PART]) }
}

/// Notes that a block starts at `address`, which lies below `LIMIT` and is a multiple of 512.
#[inline(always)]
pub fn insert(address: usize, small: bool, block: BlockId) {
    if small {
        let part = &SMALL[address >> SMALL_PART];
        let entries = read(part).unwrap_or_else(|| install(part, MANY));
        entries[small_place(address)].store(block, Ordering::Release);
    } else {
        let part = &LARGE[address >> LARGE_PART];
        let entries = read(part).unwrap_or_else(|| install(part, MANY));
        entries[large_place(address)].store(block, Ordering::Release);
    }
}

#[inline(always)]
fn read<const ENTRIES: usize>(part: &Part<ENTRIES>) -> Option<&[AtomicU32; ENTRIES]> {
    unsafe { part.load(Ordering::Acquire).as_ref() }
}

/// The small block that was last handed out in the 512 bytes of this address; NIL or None: there never was one.
#[inline(always)]
pub fn small_at(address: usize) -> Option<BlockId> {
    Some(read(SMALL.get(address >> SMALL_PART)?)?[small_place(address)].load(Ordering::Relaxed))
}

/// The large block that was last handed out in the granule of this address; NIL or None: there never was one.
#[inline(always)]
pub fn large_at(address: usize) -> Option<BlockId> {
    Some(read(LARGE.get(address >> LARGE_PART)?)?[large_place(address)].load(Ordering::Relaxed))
}

/// The block that was last handed out at exactly this address.
pub fn find(address: usize) -> Option<BlockId> {
    let starts_here = |id: &BlockId| *id != NIL && block::at(*id).address() == address;
    [small_at(address), large_at(address)].into_iter().flatten().find(starts_here)
}

/// Starts at or below `address`, nearest first, down to `lowest`: one of them holds the address if any block does.
pub fn starts_below(address: usize, lowest: usize) -> impl Iterator<Item = BlockId> {
    let top = address.min(LIMIT - 1);
    (lowest >> GRANULE..=top >> GRANULE).rev().flat_map(move |granule| {
        let from = granule << GRANULE;
        let last = if granule == top >> GRANULE { (top - from) >> UNIT } else { UNITS - 1 };
        let small = read(&SMALL[from >> SMALL_PART]).map(|entries| &entries[small_place(from)..][..=last]);
        let small = small.into_iter().flatten().rev().map(|block| block.load(Ordering::Acquire));
        small.chain(large_at(from)).filter(|block| *block != NIL)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Pool, State};

    fn block(pool: &mut Pool, address: usize) -> BlockId {
        pool.insert(address, 512, 0, State::Allocated, 0).unwrap()
    }

    #[test]
    fn a_part_of_a_few_blocks_takes_little_memory() {
        assert!(block::reserve());
        const PAGE: usize = 4096;
        let mut pool = Pool::default();
        let (small, large) = (0x5d00_0000_0000, 0x5d10_0000_0000);
        for (address, is_small) in [(small, true), (large, false)] {
            expect_few(address, is_small);
            let id = block(&mut pool, address);
            insert(address, is_small, id);
            assert_eq!(find(address), Some(id));
        }
        let parts = [read(&SMALL[small >> SMALL_PART]).unwrap().as_ptr(), read(&LARGE[large >> LARGE_PART]).unwrap().as_ptr().cast()];
        for (part, entries) in parts.into_iter().zip([SMALL_ENTRIES, LARGE_ENTRIES]) {
            let size = entries * size_of::<AtomicU32>();
            let mut is_there = vec![0; size / PAGE];
            assert_eq!(unsafe { libc::mincore(part.cast_mut().cast(), size, is_there.as_mut_ptr()) }, 0);
            assert_eq!(is_there.iter().filter(|page| **page & 1 != 0).count(), 1);
        }
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
    fn neighbours_stand_in_lines_of_their_own() {
        const IN_A_LINE: usize = 64 / size_of::<AtomicU32>();
        let places: Vec<usize> = (0..LARGE_ENTRIES).map(|granule| large_place(granule << GRANULE)).collect();
        assert_eq!(places.iter().collect::<std::collections::HashSet<_>>().len(), places.len());
        let mut last = vec![None; LARGE_ENTRIES / IN_A_LINE];
        for (granule, place) in places.into_iter().enumerate() {
            let before = last[place / IN_A_LINE].replace(granule);
            assert!(before.is_none_or(|before| granule - before >= 3855), "{granule}");
        }
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
