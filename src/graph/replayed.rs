//! Which graphs were replayed on which stream: those alone are told when it goes.

use super::one::Graph;
use crate::base::due::Due;
use crate::stream::Stream;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

#[derive(Default)]
struct Graphs {
    /// Some may be gone, or stand here twice.
    list: Vec<Weak<Graph>>,
    looks: Due,
}

/// By device and handle.
static REPLAYED: Mutex<BTreeMap<(i32, usize), Graphs>> = Mutex::new(BTreeMap::new());

pub fn note(graph: &Arc<Graph>, stream: Stream) {
    let mut replayed = REPLAYED.lock();
    let graphs = replayed.entry((stream.device, stream.raw)).or_default();
    if graphs.looks.is_due(graphs.list.len()) {
        graphs.list.retain(|graph| graph.strong_count() > 0);
        graphs.list.sort_unstable_by_key(|graph| graph.as_ptr().addr());
        graphs.list.dedup_by(|a, b| a.ptr_eq(b));
        graphs.looks = Due::looked(graphs.list.len());
    }
    graphs.list.push(Arc::downgrade(graph));
}

/// The stream goes.
pub fn take(stream: Stream) -> Vec<Arc<Graph>> {
    let taken = REPLAYED.lock().remove(&(stream.device, stream.raw)).unwrap_or_default();
    taken.list.iter().filter_map(Weak::upgrade).collect()
}

pub fn clear() {
    REPLAYED.lock().clear();
}
