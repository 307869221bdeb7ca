//! Marks of streams that another library had join a capture as they were made.

use tcuda::event::pool::Pooled;
use tcuda::runtime::{self, RawEvent};
use tcuda::stream;

/// The event that this thread takes next for a mark.
pub fn next() -> RawEvent {
    Pooled::take(0).unwrap().raw()
}

/// As such a mark is.
pub fn capture(mark: RawEvent) {
    let (runtime, captured) = (runtime::runtime().unwrap(), stream::create(0, 0).unwrap());
    runtime.begin_capture(captured.raw, 2).unwrap();
    runtime.event_record(mark, captured.raw).unwrap();
    let graph = runtime.end_capture(captured.raw).unwrap();
    runtime.graph_destroy(graph).unwrap();
    stream::destroy(captured.raw).unwrap();
}
