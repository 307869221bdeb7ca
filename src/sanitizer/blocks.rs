//! Memory that was handed out, and what of it was freed and is nobody's yet.

use super::clock::Who;
use super::report::Side;
use super::shadow::Stretches;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub struct Block {
    pub address: usize,
    pub size: usize,
    pub allocated: Side,
    pub freed: Option<Side>,
    /// The stream that it was allocated on. None: the host, or not known.
    pub owner: Option<Who>,
    pub is_host: bool,
    /// Pinned memory that a capture used: the graph keeps it.
    pub is_kept: AtomicBool,
    /// The capture that it was allocated in: it lies in a graph's own memory.
    pub capture: Option<u64>,
    /// Streams that were recorded.
    pub users: Mutex<Vec<Who>>,
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

    /// A block in these bytes that was freed.
    pub fn freed_in(&self, address: usize, size: usize) -> Option<Arc<Block>> {
        self.0.overlapping(address, address.saturating_add(size)).find(|block| block.freed.is_some()).cloned()
    }

    pub fn made(&mut self, allocated: Side, owner: Option<Who>, capture: Option<u64>) {
        let (address, size) = (allocated.address, allocated.size);
        let is_host = allocated.on.is_none();
        let is_kept = AtomicBool::new(false);
        let block = Block { address, size, allocated, freed: None, owner, is_host, is_kept, capture, users: Mutex::default() };
        self.0.put(address, address + size, Arc::new(block));
    }

    /// Of a block that is not known the size is what the cache says.
    pub fn freed(&mut self, block: Option<Arc<Block>>, freed: Side, address: usize, size: usize) {
        let (allocated, owner, capture) = match &block {
            Some(block) => (block.allocated, block.owner, block.capture),
            None => (Side { does: super::report::Does::Allocate, call: "tcuda", ..freed }, None, None),
        };
        let size = block.as_ref().map_or(size, |block| block.size);
        let users = Mutex::new(block.as_ref().map(|block| block.users.lock().clone()).unwrap_or_default());
        let is_host = block.is_some_and(|block| block.is_host);
        let is_kept = AtomicBool::new(false);
        let gone = Block { address, size, allocated, freed: Some(freed), owner, is_host, is_kept, capture, users };
        self.0.put(address, address + size, Arc::new(gone));
    }

    /// The free failed.
    pub fn kept(&mut self, address: usize) {
        let Some(block) = self.find(address).filter(|block| block.address == address && block.freed.is_some()) else { return };
        self.made(block.allocated, block.owner, block.capture);
    }

    pub fn forget(&mut self, address: usize, size: usize) {
        self.0.take(address, address + size);
    }
}
