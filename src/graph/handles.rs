//! What a program holds of a graph: a number that is never used again.

use super::one::Graph;
use crate::base::{Error, Result, Status};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

static GRAPHS: RwLock<BTreeMap<usize, Arc<Graph>>> = RwLock::new(BTreeMap::new());

/// A graph with nothing in it. `flags`: KEEP and DEBUG.
pub fn create(flags: u32) -> Result<usize> {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let graph = Graph::new(flags)?;
    // Even numbers this small are no addresses: no pointer of the program passes for one.
    let handle = LAST.fetch_add(2, Ordering::Relaxed) + 2;
    GRAPHS.write().insert(handle, Arc::new(graph));
    Ok(handle)
}

#[inline]
pub fn named(handle: usize) -> Result<Arc<Graph>> {
    GRAPHS.read().get(&handle).cloned().ok_or_else(|| unknown(handle))
}

/// A capture that is under way is ended; where that is not this thread's to do, nothing happens.
pub fn destroy(handle: usize) -> Result<()> {
    named(handle)?.reset()?;
    GRAPHS.write().remove(&handle).map(drop).ok_or_else(|| unknown(handle))
}

#[cold]
fn unknown(handle: usize) -> Error {
    let text = format!("{handle:#x} is no graph, or it was destroyed before. tcuda_graph_create makes one.");
    Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text)
}

pub fn all() -> Vec<Arc<Graph>> {
    GRAPHS.read().values().cloned().collect()
}

pub fn clear() {
    let all = std::mem::take(&mut *GRAPHS.write());
    all.into_values().for_each(|graph| drop(graph.reset()));
}
