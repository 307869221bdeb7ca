//! Memory that was handed out, and what of it was freed and is nobody's yet.

use super::clock::Who;
use super::report::Side;
use super::shadow::Stretches;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whose it is.
#[derive(Clone)]
pub enum Memory {
    Device,
    Pinned,
    /// Another process's, and whether it is mapped here still.
    Import(Arc<AtomicBool>),
}

impl Memory {
    pub fn is_pinned(&self) -> bool {
        matches!(self, Memory::Pinned)
    }
}

pub struct Block {
    pub address: usize,
    pub size: usize,
    pub allocated: Side,
    pub freed: Option<Side>,
    /// The stream that it was allocated on. None: the host, or not known.
    pub owner: Option<Who>,
    pub memory: Memory,
    /// Pinned memory that a capture used: the graph keeps it.
    pub is_kept: AtomicBool,
    /// The capture that it was allocated in: it lies in a graph's own memory.
    pub capture: Option<u64>,
    /// Streams that were recorded, and the number then.
    pub users: Mutex<Vec<(Who, u64)>>,
    /// What was known of these bytes before the free: all of it holds again if that fails.
    before: Vec<(usize, usize, Arc<Block>)>,
}

pub struct Blocks(Stretches<Arc<Block>>);

impl Blocks {
    pub fn new() -> Blocks {
        Blocks(Stretches::new())
    }

    /// The block around an address, freed or not.
    pub fn find(&self, address: usize) -> Option<Arc<Block>> {
        self.0.overlapping(address, address.saturating_add(1)).next().cloned()
    }

    /// All that have some of these bytes, freed or not.
    pub fn within(&self, address: usize, size: usize) -> Vec<Arc<Block>> {
        self.0.overlapping(address, address.saturating_add(size)).cloned().collect()
    }

    /// Where in these bytes something is imported.
    pub fn imported(&self, address: usize, size: usize) -> Vec<(usize, usize)> {
        let is_import = |block: &Block| matches!(block.memory, Memory::Import(_)) && block.freed.is_none();
        let here = self.0.pieces(address, address.saturating_add(size)).filter(|(_, _, block)| is_import(block));
        here.map(|(start, end, _)| (start, end)).collect()
    }

    /// A block in these bytes that was freed. `counts`: by where in them it begins.
    pub fn freed_in(&self, address: usize, size: usize, counts: impl Fn(usize) -> bool) -> Option<Arc<Block>> {
        let mut here = self.0.pieces(address, address.saturating_add(size));
        here.find(|(start, _, block)| block.freed.is_some() && counts(*start)).map(|(_, _, block)| block.clone())
    }

    pub fn made(&mut self, memory: Memory, allocated: Side, owner: Option<Who>, capture: Option<u64>) {
        let (address, size) = (allocated.address, allocated.size);
        let is_kept = AtomicBool::new(false);
        let (users, before) = (Mutex::default(), Vec::new());
        let block = Block { address, size, allocated, freed: None, owner, memory, is_kept, capture, users, before };
        self.0.put(address, address + size, Arc::new(block));
    }

    /// All of a block, or some of it; None: of one that is not known.
    pub fn freed(&mut self, block: Option<Arc<Block>>, freed: Side, address: usize, size: usize) {
        let (allocated, owner, capture) = match &block {
            Some(block) => (block.allocated, block.owner, block.capture),
            None => (Side { does: super::report::Does::Allocate, call: "tcuda", ..freed }, None, None),
        };
        let users = Mutex::new(block.as_ref().map(|block| block.users.lock().clone()).unwrap_or_default());
        let memory = block.map_or(Memory::Device, |block| block.memory.clone());
        let is_kept = AtomicBool::new(false);
        let before = self.0.take(address, address + size);
        let gone = Block { address, size, allocated, freed: Some(freed), owner, memory, is_kept, capture, users, before };
        self.0.put(address, address + size, Arc::new(gone));
    }

    /// The free failed.
    pub fn kept(&mut self, address: usize) {
        let Some(block) = self.find(address).filter(|block| block.address == address && block.freed.is_some()) else { return };
        self.forget(address, block.size);
        block.before.iter().for_each(|(start, end, before)| self.0.put(*start, *end, before.clone()));
    }

    pub fn unmapped(&self, address: usize, size: usize) {
        for block in self.0.overlapping(address, address.saturating_add(size)) {
            if let Memory::Import(is_mapped) = &block.memory {
                is_mapped.store(false, Relaxed);
            }
        }
    }

    pub fn forget(&mut self, address: usize, size: usize) {
        self.0.take(address, address + size);
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Does;
    use super::*;
    use crate::base::watch::Place;

    fn side(does: Does, address: usize) -> Side {
        Side { does, call: "tcuda_x", on: Some(Place { device: 0, raw: 7 }), annotation: 0, sequence: 1, address, size: 512 }
    }

    #[test]
    fn a_free_that_failed_has_not_been() {
        let mut blocks = Blocks::new();
        blocks.made(Memory::Device, side(Does::Allocate, 4096), Some(3), Some(9));
        let block = blocks.find(4100).unwrap();
        block.users.lock().push((5, 1));
        blocks.freed(Some(block.clone()), side(Does::Free, 4096), 4096, 512);
        assert!(blocks.freed_in(4100, 1, |_| true).is_some());
        blocks.kept(4096);
        assert!(Arc::ptr_eq(&blocks.find(4100).unwrap(), &block) && blocks.freed_in(4096, 512, |_| true).is_none());
        // The second free of a block, which fails as well.
        blocks.freed(Some(block), side(Does::Free, 4096), 4096, 512);
        let first = blocks.find(4096).unwrap();
        blocks.freed(None, side(Does::Free, 4096), 4096, 512);
        blocks.kept(4096);
        assert!(Arc::ptr_eq(&blocks.find(4096).unwrap(), &first));
        // Of what is not known nothing is known afterwards.
        blocks.freed(None, side(Does::Free, 8192), 8192, 512);
        blocks.kept(8192);
        assert!(blocks.find(8192).is_none());
    }
}
