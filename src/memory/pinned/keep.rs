//! What keeps pinned blocks beyond their streams' work: a graph, whose replays use them again.

use super::core::CORE;
use super::order;
use super::streams::Serial;
use crate::runtime::Address;
use std::sync::Arc;

/// Blocks that are freed stay out of use until the last of these is gone.
#[derive(Clone)]
pub struct Keeper(Arc<Kept>);

struct Kept(Serial);

impl Keeper {
    pub fn new() -> Keeper {
        Keeper(Arc::new(Kept(CORE.lock().streams.add_keeper())))
    }

    /// Whether it is for its sake that a block which was freed is in use, among others'.
    pub fn keeps_freed(&self) -> bool {
        CORE.lock().pending.iter().any(|block| block.uses.iter().any(|(serial, _)| *serial == self.0.0))
    }

    /// The block that holds an address. Memory that is no block of this cache means nothing.
    pub fn keep(&self, address: Address) {
        CORE.lock().note_use(address, self.0.0);
    }
}

impl Default for Keeper {
    fn default() -> Keeper {
        Keeper::new()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        order::keeper_goes(self.0);
    }
}
