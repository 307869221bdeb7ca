//! What a program holds of a communicator.

use super::one::Communicator;
use crate::base::Result;
use crate::base::handles::Handles;
use std::sync::Arc;

pub type Handle = usize;

static ALL: Handles<Communicator> = Handles::new("communicator", "tcuda_communicator_init_rank");

pub fn insert(communicator: Arc<Communicator>) -> Handle {
    ALL.insert(communicator)
}

pub fn named(handle: Handle) -> Result<Arc<Communicator>> {
    ALL.get(handle)
}

/// The handle ends in any case; an error says that work was cut off.
pub fn destroy(handle: Handle) -> Result<()> {
    ALL.remove(handle)?.destroy()
}

/// Before devices are waited for: work of a communicator may wait for a rank that never comes.
pub fn shutdown() {
    ALL.clear().into_iter().for_each(|communicator| drop(communicator.destroy()));
}
