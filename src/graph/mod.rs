//! # graph
//! Owns:   graphs: capture, what can be replayed, the private pools that their memory lies in, and what has to stay until the last replay.
//! Uses:   random, tensor, copy, memory, event, stream, device, runtime, base.
//! Never:  looks at what a graph does; gives memory away that a replay may still use; leaves a stream capturing whose capture failed.
//! Locks:  those of callables, then a ready graph's, then a capturing one's, then capture::OPEN, pool::USED, replayed::REPLAYED or
//!         retire::RETIRED; memory's under any of these but OPEN, REPLAYED and RETIRED, and under USED not `climbing`, under which a sweep takes
//!         USED and RETIRED. The one of capture::own_stream before stream's. What replays keep has one of its own, with none under it.
//! Tests:  tests/conformance/{graph,graph_ends,graph_events,graph_random,graphed,capture_rules}.rs, tests/fault_sweep, tests_c/test_graph.c.

pub mod callable;
mod capture;
mod draws;
mod handles;
mod one;
mod pool;
mod replayed;
mod retire;

pub use capture::{is_capturing, note_failure, own_stream};
pub use handles::{create, destroy, named};
pub use one::{DEBUG, Graph, KEEP};
pub use pool::{PoolId, handle as pool_handle, stats as pool_stats};

/// Ends captures and destroys all graphs. Nothing may use one any more.
pub fn shutdown() {
    callable::clear();
    handles::clear();
    replayed::clear();
    capture::forget();
}

/// What replays used that were under way then. They are over.
pub fn forget_replays() {
    retire::forget();
    pool::forget();
}
