//! What a program holds of a graph.

use super::one::Graph;
use crate::base::handles::Handles;
use crate::base::{Result, insist};
use std::sync::Arc;

static GRAPHS: Handles<Graph> = Handles::new("graph", "tcuda_graph_create");

/// A graph with nothing in it. `flags`: KEEP and DEBUG.
pub fn create(flags: u32) -> Result<usize> {
    Ok(GRAPHS.insert(Arc::new(Graph::new(flags)?)))
}

#[inline]
pub fn named(handle: usize) -> Result<Arc<Graph>> {
    GRAPHS.get(handle)
}

/// A capture that is under way is ended; where that is not this thread's to do, nothing happens.
pub fn destroy(handle: usize) -> Result<()> {
    named(handle)?.end_of_handle()?;
    GRAPHS.remove(handle).map(drop)
}

pub fn clear() {
    // With a capture under way no memory goes back.
    GRAPHS.clear().into_iter().for_each(|graph| drop(insist(|| graph.end_of_handle())));
}
