//! What is mapped at an address, at once: a search through all mappings takes the longer the more there are, and there may be a hundred for each
//! handle. Counted in the pages that the driver maps.

use super::physical::{HandleId, Note};
use crate::runtime::Address;
use std::ops::Range;

/// What is at a page: one more than the mapping's note, or 0 if nothing is, and the handle.
type Entry = [u32; 2];

/// A reservation of addresses. Its entries go as far as something was mapped.
struct Space {
    base: Address,
    size: usize,
    page_shift: u32,
    entries: Vec<Entry>,
}

impl Space {
    fn page(&self, address: Address) -> usize {
        (address - self.base) >> self.page_shift
    }
}

#[derive(Default)]
pub struct PageTable(Vec<Space>);

impl PageTable {
    /// Addresses in which all is mapped in multiples of the granularity.
    pub fn open(&mut self, base: Address, size: usize, granularity: usize) {
        self.0.push(Space { base, size, page_shift: granularity.trailing_zeros(), entries: Vec::new() });
    }

    pub fn close(&mut self, base: Address) {
        self.0.retain(|space| space.base != base);
    }

    /// Nothing is mapped any more.
    pub fn clear(&mut self) {
        self.0.iter_mut().for_each(|space| space.entries = Vec::new());
    }

    pub fn insert(&mut self, start: Address, size: usize, note: Note, handle: HandleId) {
        self.set(start, size, [note + 1, handle]);
    }

    pub fn remove(&mut self, start: Address, size: usize) {
        self.set(start, size, Entry::default());
    }

    /// Of no matter: what lies in none of the spaces, as plain segments.
    fn set(&mut self, start: Address, size: usize, entry: Entry) {
        let Some(space) = self.0.iter_mut().find(|space| start.wrapping_sub(space.base) < space.size) else { return };
        let pages = space.page(start)..space.page(start + size);
        if space.entries.len() < pages.end {
            space.entries.resize(pages.end, Entry::default());
        }
        space.entries[pages].fill(entry);
    }

    /// The mapping at an address, if that lies in one of the spaces.
    #[inline]
    pub fn get(&self, address: Address) -> Option<Note> {
        let space = self.0.iter().find(|space| address.wrapping_sub(space.base) < space.size)?;
        space.entries.get(space.page(address))?[0].checked_sub(1)
    }

    /// The rows of mappings in a space, side by side and each as long as it gets, whose handles all count and that have `least` bytes or more, by
    /// address. Such a row has one of so many pages: those in between are skipped, as is a mapping that does not count. `end_of` a note's mapping.
    pub fn rows(
        &self,
        base: Address,
        least: usize,
        counts: impl Fn(HandleId) -> bool,
        end_of: impl Fn(Note) -> Address,
    ) -> impl Iterator<Item = Range<Address>> {
        let space = self.0.iter().find(|space| space.base == base);
        let (entries, shift) = space.map_or((&[][..], 0), |space| (&space.entries[..], space.page_shift));
        let counts = move |entry: &Entry| entry[0] != 0 && counts(entry[1]);
        let step = least.div_ceil(1 << shift).max(1);
        let mut page = step - 1;
        std::iter::from_fn(move || {
            loop {
                let entry = entries.get(page)?;
                if !counts(entry) {
                    // A row begins behind the mapping, if there is one.
                    page = entry[0].checked_sub(1).map_or(page + 1, |note| (end_of(note) - base) >> shift) + step - 1;
                    continue;
                }
                let start = entries[..page].iter().rposition(|entry| !counts(entry)).map_or(0, |before| before + 1);
                let end = entries[page..].iter().position(|entry| !counts(entry)).map_or(entries.len(), |count| page + count);
                page = end + step;
                if end - start >= step {
                    return Some(base + (start << shift)..base + (end << shift));
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::numbers;
    use std::collections::BTreeMap;

    const PAGE: usize = 2 << 20;
    const PAGES: usize = 200;

    #[test]
    fn rows_against_a_plain_search() {
        let mut below = numbers::random(12345);
        for round in 0..300 {
            let mut table = PageTable::default();
            // Side by side: no row goes from one into the other.
            let bases = [7 * PAGE, (7 + PAGES) * PAGE];
            bases.iter().for_each(|base| table.open(*base, PAGES * PAGE, PAGE));
            let mut plain: BTreeMap<usize, (Note, HandleId)> = BTreeMap::new();
            let mut ends = [0; 300];
            for note in 0..300 {
                let (page, size, handle) = (7 + below(2 * PAGES), below(6) + 1, below(9) as HandleId);
                let crosses = page < 7 + PAGES && page + size > 7 + PAGES || page + size > 7 + 2 * PAGES;
                if crosses || (page..page + size).any(|page| plain.contains_key(&page)) {
                    continue;
                }
                table.insert(page * PAGE, size * PAGE, note, handle);
                ends[note as usize] = (page + size) * PAGE;
                plain.extend((page..page + size).map(|page| (page, (note, handle))));
                if below(4) == 0 {
                    table.remove(page * PAGE, size * PAGE);
                    plain.retain(|at, _| !(page..page + size).contains(at));
                }
            }
            assert!((0..3 * PAGES).all(|page| table.get(page * PAGE + 5) == plain.get(&page).map(|(note, _)| *note)));
            let free = below(1 << 9);
            let counts = |handle: HandleId| free >> handle & 1 != 0;
            let least = below(12 * PAGE) + 1;
            for base in bases {
                let mut expected: Vec<Range<Address>> = Vec::new();
                let within = plain.range(base / PAGE..base / PAGE + PAGES).filter(|(_, (_, handle))| counts(*handle));
                for start in within.map(|(page, _)| page * PAGE) {
                    match expected.last_mut() {
                        Some(row) if row.end == start => row.end += PAGE,
                        _ => expected.push(start..start + PAGE),
                    }
                }
                expected.retain(|row| row.len() >= least);
                assert_eq!(table.rows(base, least, counts, |note| ends[note as usize]).collect::<Vec<_>>(), expected, "round {round}");
            }
        }
    }

    #[test]
    fn what_lies_in_no_space_is_not_in_it() {
        let mut table = PageTable::default();
        table.insert(PAGE, PAGE, 0, 0);
        assert_eq!((table.get(PAGE), table.rows(PAGE, 1, |_| true, |_| 0).next()), (None, None));
        table.open(PAGE, 8 * PAGE, PAGE);
        table.insert(9 * PAGE, 512, 1, 1);
        assert_eq!((table.get(9 * PAGE), table.rows(PAGE, 1, |_| true, |_| 0).next()), (None, None));
        table.insert(8 * PAGE, PAGE, 7, 3);
        let around = [8 * PAGE - 1, 8 * PAGE, 9 * PAGE - 1, 9 * PAGE];
        assert_eq!(around.map(|address| table.get(address)), [None, Some(7), Some(7), None]);
        assert_eq!(table.rows(PAGE, 1, |_| true, |_| 0).collect::<Vec<_>>(), vec![8 * PAGE..9 * PAGE]);
        table.clear();
        assert_eq!(table.get(8 * PAGE), None);
        table.close(PAGE);
        table.insert(8 * PAGE, PAGE, 7, 3);
        assert_eq!(table.get(8 * PAGE), None);
    }
}
