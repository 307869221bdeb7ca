//! The cache of one device: segments from the driver, cut into blocks that follow the order of their streams.
//!
//! - `core`      blocks, lists and statistics, under the device's lock; never waits for the device
//! - `segment`   memory from the driver and back
//! - `order`     which frees are past: marks on streams, blocks that other streams used
//! - `ladder`    what happens when nothing fits: from a second look to the out-of-memory error

mod block;
pub mod core;
mod freelist;
mod ladder;
mod order;
mod segment;

pub use block::BlockId;
pub use core::Core;

use crate::base::Result;
use crate::runtime::Runtime;
use crate::runtime::table::MemAllocationProp;
use parking_lot::Mutex;

/// Index of a stream in its device's cache.
pub type StreamSlot = u16;

/// What a device offers; asked at the first growth after a start.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    pub total: usize,
    /// Virtual memory: how handles are made, and the multiple of which they must be. None: plain segments.
    pub virtual_memory: Option<(MemAllocationProp, usize)>,
}

/// The cache of one device.
///
/// Locks: `driving`, then `core`; `abilities` with neither. `core` is never held while something waits for the device; `driving`
/// keeps streams from going while they are asked how far they are.
pub struct Cache {
    pub device: i32,
    pub core: Mutex<Core>,
    driving: Mutex<()>,
    abilities: Mutex<Option<Abilities>>,
}

impl Cache {
    pub fn new(device: i32, limit: Option<usize>) -> Cache {
        Cache { device, core: Mutex::new(Core::new(device, limit)), driving: Mutex::new(()), abilities: Mutex::new(None) }
    }

    pub fn abilities(&self, runtime: &Runtime) -> Result<Abilities> {
        let mut known = self.abilities.lock();
        match *known {
            Some(abilities) => Ok(abilities),
            None => Ok(*known.insert(segment::abilities(runtime, self.device)?)),
        }
    }

    /// After a shutdown the device is asked again: other options may be in effect.
    fn forget_abilities(&self) {
        *self.abilities.lock() = None;
    }
}
