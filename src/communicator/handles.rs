//! What a program holds of a communicator: a number that is never used again.

use super::one::Communicator;
use crate::base::{Error, Result, Status};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub type Handle = usize;

static ALL: RwLock<BTreeMap<Handle, Arc<Communicator>>> = RwLock::new(BTreeMap::new());

pub fn insert(communicator: Arc<Communicator>) -> Handle {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    // Even numbers this small are no addresses: no pointer of the program passes for one.
    let handle = LAST.fetch_add(2, Ordering::Relaxed) + 2;
    ALL.write().insert(handle, communicator);
    handle
}

pub fn insert_all(communicators: Vec<Arc<Communicator>>) -> Vec<Handle> {
    communicators.into_iter().map(insert).collect()
}

pub fn named(handle: Handle) -> Result<Arc<Communicator>> {
    ALL.read().get(&handle).cloned().ok_or_else(|| {
        let text = format!("{handle:#x} is no communicator, or it was destroyed before. tcuda_communicator_init_rank makes one.");
        Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text)
    })
}

/// The handle ends in any case; an error says that work was cut off.
pub fn destroy(handle: Handle) -> Result<()> {
    let communicator = named(handle)?;
    ALL.write().remove(&handle);
    communicator.destroy()
}

/// Before devices are waited for: work of a communicator may wait for a rank that never comes.
pub fn shutdown() {
    let all = std::mem::take(&mut *ALL.write());
    all.into_values().for_each(|communicator| drop(communicator.destroy()));
}
