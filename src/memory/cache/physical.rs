//! Physical memory of a device: handles, and the addresses at which each is mapped, always as a whole.
//!
//! A handle may be mapped several times, but every byte of it is owned by one place: the one whose block there is free, handed out or
//! pending. At the other places the byte lies in a `Moved` block, where it stays mapped, untouched, until that is worth undoing.

use crate::memory::provider::Provider;
use crate::runtime::{Address, MemHandle, RawStream};
use std::collections::{BTreeMap, VecDeque};
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

#[derive(Default)]
pub struct Physical {
    handles: Vec<Option<Handle>>,
    unused: Vec<HandleId>,
    mapped: BTreeMap<Address, HandleId>,
    /// Bytes of addresses with memory behind them.
    pub mapped_bytes: usize,
    /// Mappings, the oldest first; some may be gone.
    ages: VecDeque<(Address, HandleId)>,
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
    }

    pub fn map(&mut self, id: HandleId, start: Address) {
        self[id].places.push(start);
        self.mapped.insert(start, id);
        self.mapped_bytes += self[id].size;
        self.ages.push_back((start, id));
    }

    pub fn unmap(&mut self, start: Address) {
        if let Some(id) = self.mapped.remove(&start) {
            self[id].places.retain(|place| *place != start);
            self.mapped_bytes -= self[id].size;
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = HandleId> {
        (0..self.handles.len() as HandleId).filter(|id| self.handles[*id as usize].is_some())
    }

    fn mapping(&self, (start, handle): (&Address, &HandleId)) -> Mapping {
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

    /// The oldest mapping, to be looked at once. It goes to the young end, unless it is gone.
    pub fn oldest(&mut self) -> Option<Mapping> {
        while let Some((start, id)) = self.ages.pop_front() {
            if self.mapped.get(&start) == Some(&id) {
                self.ages.push_back((start, id));
                return Some(self.mapping((&start, &id)));
            }
        }
        None
    }
}
