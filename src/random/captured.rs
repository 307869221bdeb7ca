//! Generators in graphs. A captured kernel finds seed and offset in memory of the device, which each replay writes anew, and counts from
//! there: so replays draw what the same work would have drawn, and what comes later goes on behind it.

use super::generator::{Generator, PhiloxState};
use crate::base::{Error, Result, Status};
use crate::memory;
use crate::runtime::Address;
use crate::stream::{PerDevice, Stream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// What a graph has of a generator. Both numbers are read and written with the generator in hand.
pub struct InGraph {
    /// Seed and offset, two uint64_t, in memory of the device's cache: a graph's own pool is written by its replays.
    at: Address,
    drawn: AtomicU64,
    open: AtomicBool,
}

impl InGraph {
    pub const BYTES: usize = 16;

    pub fn new(device: i32) -> Result<InGraph> {
        /// Replays write it on any stream, which come behind no work that a block had on the program's.
        static OWN: PerDevice = PerDevice::empty();
        let on = OWN.of(device)?;
        let new = InGraph { at: memory::allocate(InGraph::BYTES, 1, on)?, drawn: AtomicU64::new(0), open: AtomicBool::new(true) };
        // It may have been made to wait for another's work.
        on.try_drain()?;
        Ok(new)
    }

    pub fn address(&self) -> Address {
        self.at
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
        // All replays are over.
        let _ = memory::free(self.at);
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
