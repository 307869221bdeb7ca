//! Generators in graphs. A captured kernel finds seed and offset in memory of the device, which each replay writes anew, and counts from
//! there: so replays draw what the same work would have drawn, and what comes later goes on behind it.

use super::generator::{Generator, PhiloxState, State};
use crate::base::{Error, Result, Status, watch};
use crate::event;
use crate::memory;
use crate::runtime::Address;
use crate::stream::{PerDevice, Stream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// What a graph has of a generator. `drawn` is read and written with the generator in hand.
pub struct InGraph {
    /// Seed and offset, two uint64_t, in memory of the generator's device's own cache: a graph's pool is written by its replays, and one that
    /// is open on the thread is for what users ask for.
    at: Address,
    /// Replays come behind the work that this stream may have been made to wait for with the memory.
    own: Stream,
    drawn: AtomicU64,
    open: AtomicBool,
}

impl InGraph {
    pub const BYTES: usize = 16;

    pub fn new(device: i32) -> Result<InGraph> {
        /// Replays write it on any stream, which come behind no work that a block had on the program's.
        static OWN: PerDevice = PerDevice::empty();
        let own = OWN.of(device)?;
        let at = memory::allocate_own(InGraph::BYTES, own)?;
        Ok(InGraph { at, own, drawn: AtomicU64::new(0), open: AtomicBool::new(true) })
    }

    pub fn own_stream(&self) -> Stream {
        self.own
    }

    /// Where a replay begins, written before what a stream gets from here on.
    pub fn write(&self, state: State, stream: Stream) -> Result<()> {
        let write = |on: Stream| {
            let entered = on.enter_current()?;
            // Read before the call returns.
            let words = state.to_bytes();
            entered.runtime.memcpy_async(self.at, words.as_ptr() as Address, InGraph::BYTES, entered.raw)
        };
        if stream.device == self.own.device {
            return write(stream);
        }
        // The stream's device need not reach the memory.
        event::wait_stream(self.own, stream)?;
        write(self.own)?;
        event::wait_stream(stream, self.own)
    }

    /// How much one replay draws.
    pub fn drawn(&self) -> u64 {
        self.drawn.load(Relaxed)
    }

    pub fn set_drawn(&self, drawn: u64) {
        self.drawn.store(drawn, Relaxed);
    }

    /// Its capture is under way.
    pub fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    pub fn close(&self) {
        self.open.store(false, Relaxed);
    }

    pub fn state(&self, offset: u64) -> PhiloxState {
        let at = self.at as u64;
        PhiloxState { seed: at, offset: at + 8, offset_intragraph: offset, captured: 1, reserved: 0 }
    }
}

impl Drop for InGraph {
    fn drop(&mut self) {
        // All replays are over, which the sanitizer need not know.
        let _ = watch::unseen(|| memory::free(self.at));
    }
}

/// What the capture of a stream has of a generator. None: it is nobody's capture that is known here.
pub type Hook = fn(Stream, &Arc<Generator>) -> Result<Option<Arc<InGraph>>>;

static HOOK: OnceLock<Hook> = OnceLock::new();

pub fn on_capture(hook: Hook) {
    let _ = HOOK.set(hook);
}

pub(super) fn of(stream: Stream, generator: &Arc<Generator>) -> Result<Arc<InGraph>> {
    let found = HOOK.get().map_or(Ok(None), |hook| hook(stream, generator))?;
    found.ok_or_else(|| {
        let text = "No random numbers can be drawn on a stream that is being captured by another than tcuda: each replay would have the \
                    same. Capture it by tcuda_graph_capture_begin, or draw them before, into memory that the graph reads.";
        Error::new(Status::TCUDA_ERROR_CAPTURE, text).on_device(stream.device)
    })
}
