//! Physical memory of a device: handles, and the addresses at which each is mapped, always as a whole.
//!
//! A handle may be mapped several times, but every byte of it is owned by one place: the one whose block there is free, handed out or
//! pending. At the other places the byte lies in a `Moved` block, where it stays mapped, untouched, until that is worth undoing.

use super::page_table::PageTable;
use crate::memory::provider::Provider;
use crate::runtime::{Address, MemHandle, RawStream};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub type HandleId = u32;

/// Where memory came from, and goes back to.
#[derive(Clone)]
pub enum Backing {
    Virtual(MemHandle),
    /// cudaMalloc.
    Plain,
    /// cudaMallocAsync.
    Ordered,
    /// For work on that stream.
    Provided(Arc<Provider>, RawStream),
    /// A pool's that is paused: memory that it had and will have again.
    Away,
}

impl Backing {
    /// None: not virtual memory.
    pub fn raw(&self) -> Option<MemHandle> {
        match self {
            Backing::Virtual(raw) => Some(*raw),
            _ => None,
        }
    }
}

pub struct Handle {
    pub backing: Backing,
    pub size: usize,
    /// Counted with the small blocks: the kind of the area it came to last.
    pub small: bool,
    pub places: Vec<Address>,
}

/// A mapping as the driver sees it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mapping {
    pub start: Address,
    pub size: usize,
    pub handle: HandleId,
    /// The handle was mapped there before all other places where it is.
    pub first: bool,
}

impl Mapping {
    pub fn end(&self) -> Address {
        self.start + self.size
    }

    /// What of its handle is mapped within a range that it overlaps.
    pub fn part(&self, from: Address, to: Address) -> Range<usize> {
        from.max(self.start) - self.start..to.min(self.end()) - self.start
    }
}

/// The how many-th mapping it is.
type Age = u64;

/// Where a mapping is noted.
pub type Note = u32;
const NONE: Note = Note::MAX;

struct Noted {
    mapping: Mapping,
    age: Age,
    /// The next one by address, so that many are looked at quickly.
    next: Note,
}

#[derive(Default)]
pub struct Physical {
    handles: Vec<Option<Handle>>,
    unused: Vec<HandleId>,
    notes: Vec<Noted>,
    unused_notes: Vec<Note>,
    mapped: BTreeMap<Address, Note>,
    pages: PageTable,
    /// Bytes of addresses with memory behind them.
    pub mapped_bytes: usize,
    /// Those where no handle was mapped first.
    by_age: BTreeMap<Age, Address>,
    youngest: Age,
}

impl std::ops::Index<HandleId> for Physical {
    type Output = Handle;
    fn index(&self, id: HandleId) -> &Handle {
        self.handles[id as usize].as_ref().expect("a handle that is there")
    }
}

impl std::ops::IndexMut<HandleId> for Physical {
    fn index_mut(&mut self, id: HandleId) -> &mut Handle {
        self.handles[id as usize].as_mut().expect("a handle that is there")
    }
}

impl Physical {
    /// Addresses for handles, mapped in multiples of the granularity.
    pub fn open_space(&mut self, base: Address, size: usize, granularity: usize) {
        self.pages.open(base, size, granularity);
    }

    pub fn close_space(&mut self, base: Address) {
        self.pages.close(base);
    }

    /// No handle is left; addresses for them are.
    pub fn clear(&mut self) {
        self.pages.clear();
        *self = Physical { pages: std::mem::take(&mut self.pages), ..Physical::default() };
    }

    /// A new handle, mapped nowhere.
    pub fn insert(&mut self, backing: Backing, size: usize, small: bool) -> HandleId {
        let handle = Some(Handle { backing, size, small, places: Vec::new() });
        match self.unused.pop() {
            Some(id) => {
                self.handles[id as usize] = handle;
                id
            }
            None => {
                self.handles.push(handle);
                (self.handles.len() - 1) as HandleId
            }
        }
    }

    /// The handle is the driver's again; it is mapped nowhere.
    pub fn remove(&mut self, id: HandleId) {
        debug_assert!(self[id].places.is_empty());
        self.handles[id as usize] = None;
        self.unused.push(id);
        if self.unused.len() == self.handles.len() {
            // Names begin anew, so that what comes does not hang on what was.
            (self.handles, self.unused) = Default::default();
        }
    }

    pub fn map(&mut self, id: HandleId, start: Address) {
        let handle = &mut self[id];
        let mapping = Mapping { start, size: handle.size, handle: id, first: handle.places.is_empty() };
        handle.places.push(start);
        self.youngest += 1;
        if !mapping.first {
            self.by_age.insert(self.youngest, start);
        }
        self.mapped_bytes += mapping.size;
        let noted = Noted { mapping, age: self.youngest, next: self.first_from(start) };
        let note = match self.unused_notes.pop() {
            Some(note) => {
                self.notes[note as usize] = noted;
                note
            }
            None => {
                self.notes.push(noted);
                (self.notes.len() - 1) as Note
            }
        };
        self.link_before(start, note);
        self.mapped.insert(start, note);
        self.pages.insert(start, mapping.size, note, id);
    }

    pub fn unmap(&mut self, start: Address) {
        let Some(note) = self.mapped.remove(&start) else { return };
        let Noted { mapping, age, next } = self.notes[note as usize];
        self.link_before(start, next);
        self.pages.remove(start, mapping.size);
        self.unused_notes.push(note);
        self.by_age.remove(&age);
        self.mapped_bytes -= mapping.size;
        let places = &mut self[mapping.handle].places;
        places.retain(|place| *place != start);
        if let Some(first) = places.first().copied() {
            let noted = &mut self.notes[self.mapped[&first] as usize];
            noted.mapping.first = true;
            self.by_age.remove(&noted.age);
        }
        if self.mapped.is_empty() {
            (self.notes, self.unused_notes) = Default::default();
            self.pages.clear();
        }
    }

    /// The first mapping that starts there or behind.
    fn first_from(&self, start: Address) -> Note {
        self.mapped.range(start..).next().map_or(NONE, |(_, note)| *note)
    }

    /// What comes next after the mapping before an address.
    fn link_before(&mut self, start: Address, next: Note) {
        if let Some((_, before)) = self.mapped.range(..start).next_back() {
            self.notes[*before as usize].next = next;
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = HandleId> {
        (0..self.handles.len() as HandleId).filter(|id| self.handles[*id as usize].is_some())
    }

    /// No handle's name is as much.
    pub fn names(&self) -> usize {
        self.handles.len()
    }

    /// How many handles there are, and mappings of them.
    pub fn count(&self) -> usize {
        self.handles.len() - self.unused.len()
    }

    pub fn mapping_count(&self) -> usize {
        self.mapped.len()
    }

    /// All mappings by address.
    pub fn mappings(&self) -> impl Iterator<Item = Mapping> {
        self.mapped.values().map(|note| self.notes[*note as usize].mapping)
    }

    /// The mappings that overlap a range, by address.
    #[inline]
    pub fn overlapping(&self, from: Address, to: Address) -> impl Iterator<Item = &Mapping> {
        let mut note = self.pages.get(from).unwrap_or_else(|| self.overlapping_or_next(from));
        std::iter::from_fn(move || {
            let Noted { mapping, next, .. } = self.notes.get(note as usize).filter(|noted| noted.mapping.start < to)?;
            note = *next;
            Some(mapping)
        })
    }

    /// Those of them that reach beyond the range, or where no handle was mapped first.
    #[inline]
    pub fn cut_or_second(&self, from: Address, to: Address) -> impl Iterator<Item = &Mapping> {
        self.overlapping(from, to).filter(move |mapping| !mapping.first || mapping.start < from || mapping.end() > to)
    }

    /// The mapping that overlaps or follows an address.
    fn overlapping_or_next(&self, address: Address) -> Note {
        match self.mapped.range(..=address).next_back() {
            Some((_, note)) if self.notes[*note as usize].mapping.end() > address => *note,
            Some((_, note)) => self.notes[*note as usize].next,
            None => self.first_from(address),
        }
    }

    /// Whether the mapping from a place on is found at an address at once.
    pub fn has_page(&self, address: Address, place: Address) -> bool {
        self.pages.get(address).is_some_and(|note| self.notes[note as usize].mapping.start == place)
    }

    /// The rows of mappings in the space that begins there whose handles all count, and that have so many bytes, by address.
    pub fn rows(&self, base: Address, least: usize, counts: impl Fn(HandleId) -> bool) -> impl Iterator<Item = Range<Address>> {
        self.pages.rows(base, least, counts, |note| self.notes[note as usize].mapping.end())
    }

    /// The oldest mapping, to be looked at once: it is the youngest from now on. Not where a handle was mapped first, where it will be again:
    /// the next round begins as this one did.
    pub fn oldest(&mut self) -> Option<Mapping> {
        let (_, start) = self.by_age.pop_first()?;
        self.youngest += 1;
        self.by_age.insert(self.youngest, start);
        let noted = &mut self.notes[self.mapped[&start] as usize];
        noted.age = self.youngest;
        Some(noted.mapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::numbers;

    #[test]
    fn a_mapping_is_as_old_as_it_is_there() {
        let mut physical = Physical::default();
        let ids = [1, 2, 3].map(|size| physical.insert(Backing::Away, size << 20, false));
        let homes = [0x100_0000, 0x200_0000, 0x300_0000];
        let others = homes.map(|start| start + 0x1000_0000);
        for starts in [homes, others] {
            ids.iter().zip(starts).for_each(|(id, start)| physical.map(*id, start));
        }
        // One is mapped anew, where it was.
        physical.unmap(others[0]);
        physical.map(ids[0], others[0]);
        // None is one where a handle was first.
        let mut oldest = || physical.oldest().unwrap().start;
        assert_eq!([(); 4].map(|_| oldest()), [others[1], others[2], others[0], others[1]]);
        // What is left is the first.
        physical.unmap(homes[2]);
        assert_eq!([(); 3].map(|_| physical.oldest().unwrap().start), [others[0], others[1], others[0]]);
        for (id, start) in ids.into_iter().chain(ids).zip([homes, others].concat()) {
            physical.unmap(start);
            if physical[id].places.is_empty() {
                physical.remove(id);
            }
        }
        assert!(physical.oldest().is_none() && physical.by_age.is_empty() && physical.mapped_bytes == 0);
        assert_eq!(physical.insert(Backing::Away, 1 << 20, false), ids[0]);
    }

    #[test]
    fn what_overlaps_a_range_against_a_plain_search() {
        let mut physical = Physical::default();
        let ids: Vec<HandleId> = (1..=4).map(|size| physical.insert(Backing::Away, size, false)).collect();
        let mut plain: Vec<(Address, HandleId)> = Vec::new();
        let mut below = numbers::random(12345);
        for _ in 0..5000 {
            let id = ids[below(4)];
            let start = below(200);
            let free = |at: Address| plain.iter().all(|(start, id)| at < *start || at >= start + physical[*id].size);
            if (start..start + physical[id].size).all(free) {
                physical.map(id, start);
                plain.push((start, id));
            } else if !plain.is_empty() {
                let (start, _) = plain.remove(below(plain.len()));
                physical.unmap(start);
            }
            let (from, length) = (below(210), below(40) + 1);
            let is_first = |(start, id): &(Address, HandleId)| plain.iter().find(|(_, of)| of == id).unwrap().0 == *start;
            let mapping = |entry: &(Address, HandleId)| {
                let (start, handle) = *entry;
                Mapping { start, size: physical[handle].size, handle, first: is_first(entry) }
            };
            let mut expected: Vec<Mapping> = plain.iter().map(mapping).collect();
            expected.sort_unstable_by_key(|mapping| mapping.start);
            assert!(physical.mappings().eq(expected.iter().copied()));
            expected.retain(|mapping| mapping.start < from + length && mapping.end() > from);
            assert_eq!(physical.overlapping(from, from + length).copied().collect::<Vec<_>>(), expected);
            expected.retain(|mapping| !mapping.first || mapping.part(from, from + length).len() < mapping.size);
            assert_eq!(physical.cut_or_second(from, from + length).copied().collect::<Vec<_>>(), expected);
        }
    }
}
