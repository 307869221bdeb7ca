//! What a program holds of a communicator.

use super::one::Communicator;
use crate::base::Result;
use crate::base::handles::Handles;
use parking_lot::Mutex;
use std::sync::Arc;

pub type Handle = usize;

static ALL: Handles<Communicator> = Handles::new("communicator", "tcuda_communicator_init_rank");

pub fn insert(communicator: Arc<Communicator>) -> Handle {
    ALL.insert(communicator)
}

pub fn named(handle: Handle) -> Result<Arc<Communicator>> {
    ALL.get(handle)
}

/// Those that wait for their work before they end: to be aborted is all that their handles are good for.
static ENDING: Mutex<Vec<(Handle, Arc<Communicator>)>> = Mutex::new(Vec::new());

/// The handle ends in any case; an error says that work was cut off.
pub fn destroy(handle: Handle) -> Result<()> {
    let ends = {
        let mut ending = ENDING.lock();
        let ends = ALL.remove(handle)?;
        ending.push((handle, ends.clone()));
        ends
    };
    let ended = ends.destroy();
    ENDING.lock().retain(|(known, _)| *known != handle);
    ended
}

pub fn abort(handle: Handle) -> Result<()> {
    let found = {
        let ending = ENDING.lock();
        let ends = ending.iter().find(|(known, _)| *known == handle).map(|(_, ends)| ends.clone());
        ends.map_or_else(|| named(handle), Ok)?
    };
    found.abort()
}

/// Before devices are waited for: work of a communicator may wait for a rank that never comes.
pub fn shutdown() {
    ALL.clear().into_iter().for_each(|communicator| drop(communicator.destroy()));
}
