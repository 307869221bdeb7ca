//! Physical memory of a device: handles, and the addresses at which each is mapped, always as a whole.
//!
//! A handle may be mapped several times, but every byte of it is owned by one place: the one whose block there is free, handed out or
//! pending. At the other places the byte lies in a `Moved` block, where it stays mapped, untouched, until that is worth undoing.

use crate::memory::provider::Provider;
use crate::runtime::{Address, MemHandle, RawStream};
use std::collections::BTreeMap;
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
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    pub start: Address,
    pub size: usize,
    pub handle: HandleId,
}

impl Mapping {
    pub fn end(&self) -> Address {
        self.start + self.size
    }
}

/// The how many-th mapping it is.
type Age = u64;

#[derive(Default)]
pub struct Physical {
    handles: Vec<Option<Handle>>,
    unused: Vec<HandleId>,
    mapped: BTreeMap<Address, (HandleId, Age)>,
    /// Bytes of addresses with memory behind them.
    pub mapped_bytes: usize,
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
        self[id].places.push(start);
        self.youngest += 1;
        self.mapped.insert(start, (id, self.youngest));
        self.by_age.insert(self.youngest, start);
        self.mapped_bytes += self[id].size;
    }

    pub fn unmap(&mut self, start: Address) {
        if let Some((id, age)) = self.mapped.remove(&start) {
            self.by_age.remove(&age);
            self[id].places.retain(|place| *place != start);
            self.mapped_bytes -= self[id].size;
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = HandleId> {
        (0..self.handles.len() as HandleId).filter(|id| self.handles[*id as usize].is_some())
    }

    /// How many handles there are, and mappings of them.
    pub fn count(&self) -> usize {
        self.handles.len() - self.unused.len()
    }

    pub fn mapping_count(&self) -> usize {
        self.mapped.len()
    }

    fn mapping(&self, (start, (handle, _)): (&Address, &(HandleId, Age))) -> Mapping {
        Mapping { start: *start, size: self[*handle].size, handle: *handle }
    }

    /// All mappings by address.
    pub fn mappings(&self) -> impl Iterator<Item = Mapping> {
        self.mapped.iter().map(|entry| self.mapping(entry))
    }

    /// The mappings that overlap a range, by address.
    pub fn overlapping(&self, from: Address, to: Address) -> impl Iterator<Item = Mapping> {
        let first = self.mapped.range(..=from).next_back().map(|entry| self.mapping(entry)).filter(|first| first.end() > from);
        let start = first.map_or(from, |first| first.start);
        self.mapped.range(start..to).map(|entry| self.mapping(entry))
    }

    /// The oldest mapping, to be looked at once: it is the youngest from now on.
    pub fn oldest(&mut self) -> Option<Mapping> {
        let (_, start) = self.by_age.pop_first()?;
        self.youngest += 1;
        self.by_age.insert(self.youngest, start);
        let (handle, age) = self.mapped.get_mut(&start)?;
        *age = self.youngest;
        let handle = *handle;
        Some(Mapping { start, size: self[handle].size, handle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_as_old_as_it_is_there() {
        let mut physical = Physical::default();
        let ids = [1, 2, 3].map(|size| physical.insert(Backing::Away, size << 20, false));
        ids.iter().zip([0x100_0000, 0x200_0000, 0x300_0000]).for_each(|(id, start)| physical.map(*id, start));
        // The first is mapped anew, where it was.
        physical.unmap(0x100_0000);
        physical.map(ids[0], 0x100_0000);
        let mut oldest = || physical.oldest().unwrap().handle;
        assert_eq!([(); 4].map(|_| oldest()), [ids[1], ids[2], ids[0], ids[1]]);
        for (id, start) in ids.into_iter().zip([0x100_0000, 0x200_0000, 0x300_0000]) {
            physical.unmap(start);
            physical.remove(id);
        }
        assert!(physical.oldest().is_none() && physical.by_age.is_empty() && physical.mapped_bytes == 0);
        assert_eq!(physical.insert(Backing::Away, 1 << 20, false), ids[0]);
    }
}
