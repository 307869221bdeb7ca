//! Captures that are under way, and how they end without the program's help: with their thread, with their stream, with their graph.

use super::one::Graph;
use super::{replayed, retire};
use crate::base::spared::Uncancelled;
use crate::base::{Error, Result, Status, insist, process};
use crate::memory::{captures, pinned, pools};
use crate::runtime::api::CaptureStatus;
use crate::runtime::{self, RawGraph, code};
use crate::stream::{self, PerDevice, Stream, Turn};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// cudaStreamCaptureMode.
pub const GLOBAL: i32 = 0;
pub const RELAXED: i32 = 2;

pub struct Capture {
    /// The driver's number.
    pub id: u64,
    pub stream: Stream,
    /// The call of tcuda that made it invalid.
    pub spoiler: Option<&'static str>,
    /// The only thread that can end it; None: any.
    owner: Option<u64>,
}

impl Capture {
    /// CUDA is not asked from a wrong thread: an H100 does not leave the capture as it was.
    pub fn check_thread(&self) -> Result<()> {
        match self.owner {
            Some(owner) if owner != process::thread() => {
                let text = "A capture whose mode is not relaxed is ended by the thread that began it, or by that thread's end.";
                Err(Error::new(Status::TCUDA_ERROR_CAPTURE, text).with_native(code::CAPTURE_WRONG_THREAD).on_device(self.stream.device))
            }
            _ => Ok(()),
        }
    }
}

/// How many captures are under way: looked at before the list.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static OPEN: Mutex<Vec<(u64, Arc<Graph>)>> = Mutex::new(Vec::new());

/// The captures that this thread began, by number: the graph of one that another thread ended may be in a capture of that one's by now.
struct Own(RefCell<Vec<u64>>);

impl Own {
    fn end(&self) {
        let _whole = Uncancelled::enter();
        if process::is_running() {
            // Nobody else can: what fails is tried once more.
            self.0.take().into_iter().for_each(|id| drop(insist(|| abandon(id))));
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends a capture, if it is under way and that is this thread's to do.
fn abandon(id: u64) -> Result<()> {
    graph_of(id).map_or(Ok(()), |graph| graph.abandon(Some(id)))
}

thread_local!(static OWN: Own = const { Own(RefCell::new(Vec::new())) });

/// The graph whose capture has this number.
pub fn graph_of(id: u64) -> Option<Arc<Graph>> {
    OPEN.lock().iter().find(|(open, _)| *open == id).map(|(_, graph)| graph.clone())
}

/// Begins a capture on a stream. Whatever fails, the stream is not capturing afterwards.
pub fn begin(graph: &Arc<Graph>, stream: Stream, mode: i32, pool: u64, keeper: pinned::Keeper) -> Result<Capture> {
    static HOOKS: Once = Once::new();
    HOOKS.call_once(|| {
        stream::on_gone(Turn::Captures, stream_goes);
        pools::before_sweep(retire::sweep);
        pinned::on_replays(retire::free_pinned);
        crate::random::captured::on_capture(super::draws::of_capture);
    });
    if OWN.try_with(|_| ()).is_err() {
        let text = "The thread is ending: no capture can begin in it any more.";
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
    }
    let mut found = 0;
    captures::begin(pool, keeper, || {
        let entered = stream.enter()?;
        let runtime = entered.runtime;
        runtime.begin_capture(entered.raw, mode)?;
        found = match runtime.capture_status(entered.raw) {
            Ok(CaptureStatus::Active(id)) => id,
            other => {
                let _ = insist(|| end(stream)).map(|graph| insist(|| runtime.graph_destroy(graph)));
                other?;
                let text = "Another thread made the capture invalid as it began, by a call that its mode forbids, or one on its stream.";
                return Err(Error::new(Status::TCUDA_ERROR_CAPTURE, text).on_device(stream.device));
            }
        };
        Ok(found)
    })?;
    captures::joined(stream);
    let mut open = OPEN.lock();
    process::at_end(|| _ = OWN.try_with(Own::end));
    let _ = OWN.try_with(|own| {
        let mut own = own.0.borrow_mut();
        own.retain(|id| open.iter().any(|(known, _)| known == id));
        own.push(found);
    });
    open.push((found, graph.clone()));
    drop(open);
    COUNT.fetch_add(1, Relaxed);
    Ok(Capture { id: found, stream, spoiler: None, owner: (mode != RELAXED).then(process::thread) })
}

/// The captured graph. A failure of the driver that leaves the stream capturing is tried once more.
pub fn end(stream: Stream) -> Result<RawGraph> {
    let entered = stream.enter()?;
    let first = entered.runtime.end_capture(entered.raw);
    match &first {
        Err(error) if !is_over(error) && stream.is_capturing().unwrap_or(true) => entered.runtime.end_capture(entered.raw),
        _ => first,
    }
}

/// The driver answers this when the capture ended, badly; or cannot be ended here.
fn is_over(error: &Error) -> bool {
    matches!(error.native, code::CAPTURE_INVALIDATED | code::CAPTURE_UNJOINED)
}

/// Memory comes from where it came before.
pub fn over(capture: &Capture) {
    captures::end(capture.id);
    let mut open = OPEN.lock();
    if let Some(at) = open.iter().position(|(id, _)| *id == capture.id) {
        open.swap_remove(at);
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// A stream that takes part goes: its capture ends first, as far as that is this thread's to do. A graph that was replayed there marks it.
fn stream_goes(stream: Stream) -> Result<()> {
    if let Some(id) = captures::capture_of(stream)? {
        abandon(id)?;
    }
    replayed::take(stream).into_iter().for_each(|graph| graph.leave_stream(stream));
    Ok(())
}

/// A call of tcuda failed with a capture's error: if it spoilt one of ours, its end will say so.
#[cold]
pub fn note_failure(function: &'static str) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let open: Vec<Arc<Graph>> = OPEN.lock().iter().map(|(_, graph)| graph.clone()).collect();
    open.into_iter().for_each(|graph| graph.blame(function));
}

/// torch.cuda.is_current_stream_capturing for any stream, be it captured by tcuda or by another library. False before there is a device.
pub fn is_capturing(stream: impl FnOnce() -> Result<Stream>) -> Result<bool> {
    if !runtime::is_initialized() {
        return Ok(false);
    }
    match stream()?.is_capturing() {
        // A default stream that some captured stream is ordered with.
        Err(error) if error.status == Status::TCUDA_ERROR_CAPTURE => Ok(false),
        other => other,
    }
}

/// The stream that torch.cuda.graph captures on if none is given: one for each device.
pub fn own_stream(device: i32) -> Result<Stream> {
    static STREAMS: PerDevice = PerDevice::empty();
    STREAMS.of(device)
}

pub fn forget() {
    OPEN.lock().clear();
    COUNT.store(0, Relaxed);
}
