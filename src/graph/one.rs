//! One graph: empty, being captured, or ready; torch's CUDAGraph.

use super::capture::{self, Capture};
use super::draws::{self, Drawn};
use super::pool::{PoolId, Use};
use super::replayed;
use super::retire::{self, Wait};
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, few, insist, log, process};
use crate::device;
use crate::event::{self, pool::Pooled};
use crate::memory::{self, captures, pinned::Keeper};
use crate::random::Generator;
use crate::random::captured::InGraph;
use crate::runtime::api::CaptureStatus;
use crate::runtime::{self, RawGraph, RawGraphExec, code};
use crate::stream::{PER_THREAD, Stream};
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// What was captured is kept, and made ready when that is asked for or at the first replay (torch's keep_graph).
pub const KEEP: u32 = 1;
/// What was captured is kept for `dump` (torch's enable_debug_mode).
pub const DEBUG: u32 = 2;

pub struct Graph {
    flags: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    capture: Option<Capture>,
    device: i32,
    /// What it captured, and what it does when it is replayed: that, or what it was updated from.
    captured: Option<Arc<Number>>,
    number: Option<Arc<Number>>,
    /// Where it was captured.
    pool: Option<PoolId>,
    /// What was captured.
    template: Option<RawGraph>,
    /// What can be launched.
    exec: Option<RawGraphExec>,
    uses: Vec<Use>,
    keepers: Vec<Keeper>,
    /// In the order of the generators' addresses.
    drawn: Vec<Drawn>,
    /// Behind the last replay, of a graph that draws; before the first one, behind what its memory may have come behind.
    done: Option<Wait>,
    replayed_on: Vec<Stream>,
    /// Streams that are gone.
    waits: Vec<Wait>,
    /// Behind the last replay on each thread's own default stream, which only that thread could mark later.
    threads: Vec<(u64, Wait)>,
    /// Its handle goes, or is gone.
    ended: bool,
}

/// The driver's number of a capture, for as long as some graph does what was captured.
struct Number(u64);

impl Number {
    fn new(capture: u64) -> Arc<Number> {
        watch::tell(|| Happening::CaptureBegun { capture });
        Arc::new(Number(capture))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        watch::tell(|| Happening::GraphGone { capture: self.0 });
    }
}

fn state_error(text: &'static str) -> Error {
    Error::new(Status::TCUDA_ERROR_INVALID_STATE, text)
}

impl Graph {
    pub fn new(flags: u32) -> Result<Graph> {
        if flags & !(KEEP | DEBUG) != 0 {
            let text = format!("The graph flags {flags:#x} have bits that are not known. Known are 1 (keep) and 2 (debug).");
            return Err(Error::invalid_argument(text));
        }
        Ok(Graph { flags, state: Mutex::default() })
    }

    /// From here on what the stream gets is kept instead of done. `mode`: whose other calls CUDA forbids meanwhile.
    pub fn begin(self: &Arc<Graph>, stream: Stream, pool: PoolId, mode: i32) -> Result<()> {
        if !(capture::GLOBAL..=capture::RELAXED).contains(&mode) {
            let text = format!("'mode' is {mode}; 0 (global), 1 (thread-local) and 2 (relaxed) are its values.");
            return Err(Error::invalid_argument(text));
        }
        if stream.is_default() {
            let text = "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on the \
                        default stream.) tcuda_graph_capture_stream gives one.";
            return Err(Error::invalid_argument(text).on_device(stream.device));
        }
        let mut state = self.state.lock();
        if state.ended {
            return Err(Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, "The graph was destroyed meanwhile."));
        }
        if state.capture.is_some() {
            return Err(state_error("This graph is being captured already. tcuda_graph_capture_end ends that."));
        }
        if state.template.is_some() || state.exec.is_some() {
            let text = "This graph already owns a captured graph. To capture a new graph, create a new one, or call tcuda_graph_reset.";
            return Err(state_error(text));
        }
        stream.refuse_capture(|| "The stream is being captured already. Each capture begins on a stream of its own.".into())?;
        let used = Use::of(pool, stream.device)?;
        let keeper = Keeper::new();
        let capture = capture::begin(self, stream, mode, used.0.number(), keeper.clone())?;
        (state.device, state.captured, state.pool) = (stream.device, Some(Number::new(capture.id)), Some(used.0));
        state.uses.push(used);
        state.keepers.push(keeper);
        state.capture = Some(capture);
        Ok(())
    }

    /// Ends the capture. What came out and could not be made ready is there for `instantiate`; where nothing did, everything is as before it began.
    pub fn end(&self) -> Result<()> {
        // With no lock held: who hears it may call tcuda.
        if self.end_quietly()? {
            let text = "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream.";
            log::warn(text);
        }
        Ok(())
    }

    /// The same without a word where there is nothing in it, which is what comes out.
    pub fn end_quietly(&self) -> Result<bool> {
        let mut state = self.state.lock();
        let Some(capture) = &state.capture else {
            return Err(state_error("This graph is not being captured. tcuda_graph_capture_begin begins that."));
        };
        capture.check_thread()?;
        let stream = capture.stream;
        match capture::end(stream) {
            Ok(graph) => {
                state.template = Some(graph);
                state.capture_is_over();
            }
            Err(error) if state.goes_on() => return Err(explain(error, None)),
            Err(error) => {
                let spoiler = state.capture.as_ref().and_then(|capture| capture.spoiler);
                state.capture_is_over();
                state.clear();
                return Err(explain(error, spoiler));
            }
        }
        let is_empty = state.node_count() == Ok(0);
        if self.flags & KEEP == 0 {
            self.make_ready(&mut state)?;
        }
        Ok(is_empty)
    }

    /// A capture that nobody will end: ended here, if that is this thread's to do, and nothing is left of it. `only`: none but that one.
    pub fn abandon(&self, only: Option<u64>) -> Result<()> {
        self.state.lock().abandon(only)
    }

    /// Makes what was captured ready for replays, again if it was.
    pub fn instantiate(&self) -> Result<()> {
        self.make_ready(&mut *self.captured()?)
    }

    fn make_ready(&self, state: &mut State) -> Result<()> {
        state.instantiate()?;
        if self.flags & (KEEP | DEBUG) == 0 {
            state.drop_template();
        }
        Ok(())
    }

    /// The state, with something captured.
    fn captured(&self) -> Result<parking_lot::MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.capture.is_some() {
            return Err(state_error("This graph is still being captured. tcuda_graph_capture_end ends that."));
        }
        if state.template.is_none() && state.exec.is_none() {
            return Err(state_error("Nothing was captured in this graph. tcuda_graph_capture_begin begins that."));
        }
        Ok(state)
    }

    /// From the next replay on it does what `from` does, which kept its capture, if that differs in arguments only.
    pub fn update(&self, from: &Graph) -> Result<()> {
        if std::ptr::eq(self, from) {
            return Err(Error::invalid_argument("A graph cannot be updated from itself."));
        }
        // Both at once: what is taken from one must not be gone before the other has it. In the order of their addresses.
        let (mut state, from) = if std::ptr::from_ref(self) < std::ptr::from_ref(from) {
            let state = self.captured()?;
            (state, from.captured()?)
        } else {
            let from = from.captured()?;
            (self.captured()?, from)
        };
        if !from.drawn.is_empty() || !state.drawn.is_empty() {
            return Err(Error::invalid_argument("A graph that draws random numbers cannot be updated from another one, nor update one."));
        }
        let template = from.template.ok_or_else(kept_nothing)?;
        let exec = match state.exec {
            Some(exec) => exec,
            None => return Err(state_error("This graph is not ready for replays yet: tcuda_graph_instantiate makes it so.")),
        };
        let _guard = device::Guard::new(state.device)?;
        if !runtime::runtime()?.graph_exec_update(exec, template)? {
            let text = "The captures differ in more than arguments: number, kinds or order of what they do. Capture and instantiate anew.";
            return Err(Error::invalid_argument(text));
        }
        state.number = from.captured.clone();
        state.leave_update();
        // Of its own capture, which is what it kept.
        state.uses.extend(from.uses.first().map(Use::again));
        state.keepers.extend(from.keepers.first().cloned());
        Ok(())
    }

    /// Where it can be replayed.
    pub fn device(&self) -> Result<i32> {
        Ok(self.captured()?.device)
    }

    /// Enqueues all of it on a stream of its device.
    pub fn replay(self: &Arc<Graph>, stream: Stream) -> Result<()> {
        let mut state = self.captured()?;
        if stream.device != state.device {
            return Err(wrong_device(stream, state.device));
        }
        let exec = match state.exec {
            Some(exec) => exec,
            None => {
                self.make_ready(&mut state)?;
                state.exec.ok_or_else(|| Error::internal("a graph was made ready and is not"))?
            }
        };
        if captures::any() && captures::capture_of(stream)?.is_some() {
            let text = "A graph cannot be replayed into the capture of another one: CUDA refuses it. Enqueue its work itself there.";
            return Err(Error::new(Status::TCUDA_ERROR_CAPTURE, text).on_device(stream.device));
        }
        // Before the launch: a failure is no harm, a launch that is not noted would be.
        if stream.raw != PER_THREAD && !state.replayed_on.contains(&stream) {
            state.replayed_on.push(stream);
            replayed::note(self, stream);
        }
        let entered = stream.enter()?;
        let number = state.number.clone();
        let launch = || {
            entered.runtime.graph_launch(exec, entered.raw).map_err(device::blame(stream.device))?;
            if let Some(number) = &number {
                watch::tell(|| Happening::Replayed { capture: number.0, exec, on: stream.place() });
            }
            Ok(())
        };
        let launched = if state.drawn.is_empty() {
            launch()
        } else {
            state.order_behind_last(stream)?;
            let launched = draws::replay(&state.drawn, stream, launch);
            state.mark_done(stream);
            launched
        };
        if stream.raw == PER_THREAD {
            state.mark_thread(stream);
        }
        launched
    }

    /// What its capture has of a generator.
    pub fn draws_from(&self, generator: &Arc<Generator>) -> Result<Arc<InGraph>> {
        let known = |state: &State| {
            let of = state.drawn.iter().find(|drawn| Arc::ptr_eq(&drawn.generator, generator));
            of.map(|drawn| drawn.place.clone())
        };
        let under_way = |state: &State| state.capture.as_ref().map(|capture| capture.id);
        let id = {
            let state = self.state.lock();
            if let Some(place) = known(&state) {
                return Ok(place);
            }
            under_way(&state)
        };
        // With no lock held: where memory is short, programs are asked, who may ask for the graph.
        let place = Arc::new(InGraph::new(generator.device())?);
        let mut state = self.state.lock();
        // The stream is not captured any more: what is drawn would begin nowhere.
        if id.is_none() || under_way(&state) != id {
            return Err(generator.capture_ended());
        }
        if let Some(place) = known(&state) {
            return Ok(place);
        }
        state.drawn.push(Drawn { generator: generator.clone(), place: place.clone() });
        few::sort_by_key(&mut state.drawn, |drawn| Arc::as_ptr(&drawn.generator).addr());
        // Of another device it is written on that stream.
        if generator.device() == state.device {
            state.mark_done(place.own_stream());
        }
        Ok(place)
    }

    /// As new. Replays that are under way go on, and what they use stays until they are over.
    pub fn reset(&self) -> Result<()> {
        self.state.lock().reset()
    }

    /// The same, and for good: who comes with its handle at this moment begins no capture, which nobody could end.
    pub fn end_of_handle(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.reset()?;
        state.ended = true;
        Ok(())
    }

    pub fn pool(&self) -> Result<PoolId> {
        let none = || state_error("The graph has no pool: tcuda_graph_pool needs a preceding successful capture.");
        self.captured().map_err(|_| none())?.pool.ok_or_else(none)
    }

    /// cudaGraph_t and cudaGraphExec_t; 0 where there is none.
    pub fn native(&self) -> Result<(RawGraph, RawGraphExec)> {
        let state = self.captured()?;
        Ok((state.template.unwrap_or(0), state.exec.unwrap_or(0)))
    }

    /// Writes what was captured in the language of Graphviz.
    pub fn dump(&self, path: &Path) -> Result<()> {
        let state = self.captured()?;
        let template = state.template.ok_or_else(kept_nothing)?;
        runtime::runtime()?.graph_dot(template, path).map_err(|error| match unwritable(path) {
            Some(why) => Error::io(&format!("{} cannot be written", path.display()), &why),
            None => error.context(format!("Writing {}", path.display())),
        })
    }

    /// A stream goes on which it may have been replayed.
    pub fn leave_stream(&self, stream: Stream) {
        let mut state = self.state.lock();
        if let Some(at) = state.replayed_on.iter().position(|other| *other == stream) {
            state.replayed_on.swap_remove(at);
            state.waits.retain(|wait| !wait.is_over());
            state.waits.extend(retire::mark(stream));
        }
    }

    /// If its capture has become invalid just now, this is what did it.
    pub fn blame(&self, function: &'static str) {
        let Some(mut state) = self.state.try_lock() else { return };
        let Some(capture) = state.capture.as_mut().filter(|capture| capture.spoiler.is_none()) else { return };
        let status = capture.stream.enter().and_then(|entered| entered.runtime.capture_status(entered.raw));
        if matches!(status, Ok(CaptureStatus::Invalidated(_))) {
            capture.spoiler = Some(function);
        }
    }
}

impl State {
    /// Whether the capture is under way still, in spite of an attempt to end it; or may be, where nobody can say. Without its stream or its
    /// device there is none.
    fn goes_on(&self) -> bool {
        let Some(capture) = &self.capture else { return false };
        match captures::capture_of(capture.stream) {
            Ok(found) => found == Some(capture.id),
            Err(error) => !matches!(error.status, Status::TCUDA_ERROR_DEVICE_LOST | Status::TCUDA_ERROR_INVALID_HANDLE),
        }
    }

    fn abandon(&mut self, only: Option<u64>) -> Result<()> {
        let Some(capture) = self.capture.as_ref().filter(|capture| only.is_none_or(|id| id == capture.id)) else { return Ok(()) };
        capture.check_thread()?;
        match capture::end(capture.stream) {
            Ok(graph) => self.template = Some(graph),
            Err(error) if self.goes_on() => return Err(explain(error, None)),
            Err(_) => {}
        }
        self.capture_is_over();
        self.clear();
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.abandon(None)?;
        self.clear();
        Ok(())
    }

    fn capture_is_over(&mut self) {
        if let Some(capture) = self.capture.take() {
            capture::over(&capture);
            self.drawn.iter().for_each(|drawn| drawn.place.close());
        }
    }

    fn node_count(&self) -> Result<usize> {
        let template = self.template.ok_or_else(kept_nothing)?;
        runtime::runtime()?.graph_node_count(template)
    }

    fn instantiate(&mut self) -> Result<()> {
        let template = self.template.ok_or_else(kept_nothing)?;
        let _guard = device::Guard::new(self.device)?;
        let runtime = runtime::runtime()?;
        let exec = runtime.outside_capture(|| runtime.graph_instantiate(template))?;
        self.drop_exec();
        self.exec = Some(exec);
        self.number = self.captured.clone();
        self.leave_update();
        Ok(())
    }

    fn drop_template(&mut self) {
        if let (Some(template), Ok(runtime)) = (self.template.take(), runtime::runtime()) {
            // What cannot be destroyed is lost with its device.
            let _ = insist(|| runtime.graph_destroy(template));
        }
    }

    /// Launches that are under way go on.
    fn drop_exec(&mut self) {
        if let (Some(exec), Ok(runtime)) = (self.exec.take(), runtime::runtime()) {
            // Before: behind it the handle may be another one's.
            watch::tell(|| Happening::ExecGone { exec });
            let _ = insist(|| runtime.outside_capture(|| runtime.graph_exec_destroy(exec)));
        }
    }

    /// Where the generators begin is written for one replay after the other, also on another stream.
    fn order_behind_last(&self, stream: Stream) -> Result<()> {
        match &self.done {
            None => Ok(()),
            Some(Wait::Event(event)) => event::wait(event.raw(), stream),
            Some(Wait::Device) => captures::wait_for_device(self.device).map_err(|error| {
                error.context("Behind the last replay, or what its memory was for before the first, nothing could be recorded")
            }),
        }
    }

    /// Now, since its stream may be gone or captured when the next one comes.
    fn mark_done(&mut self, stream: Stream) {
        let event = match self.done.take() {
            Some(Wait::Event(event)) => Ok(event),
            _ => runtime::runtime().and_then(|runtime| runtime.outside_capture(|| Pooled::take(self.device))),
        };
        let marked = event.and_then(|event| event::record(event.raw(), stream).map(|()| event));
        self.done = Some(marked.map_or(Wait::Device, Wait::Event));
    }

    /// Behind a replay on the calling thread's own default stream.
    fn mark_thread(&mut self, stream: Stream) {
        let own = process::thread();
        // In its last destructors a thread has another one than before.
        let is_same = |thread| thread == own && !memory::thread_is_ending();
        self.threads.retain(|(thread, wait)| !is_same(*thread) && !wait.is_over());
        self.threads.extend(retire::mark(stream).map(|wait| (own, wait)));
    }

    /// What was begun so far, and may not be over.
    fn replays(&mut self) -> Vec<Wait> {
        let mut waits = std::mem::take(&mut self.waits);
        waits.extend(std::mem::take(&mut self.threads).into_iter().map(|(_, wait)| wait));
        waits.extend(std::mem::take(&mut self.replayed_on).into_iter().filter_map(retire::mark));
        waits
    }

    /// What the update before brought goes when the replays are over that it was for; and what it was captured with stays for them, whatever
    /// becomes of the graph.
    fn leave_update(&mut self) {
        if self.uses.len() > 1 {
            let waits = self.replays();
            let (mut uses, mut keepers) = (self.uses.split_off(1), self.keepers.split_off(1));
            uses.extend(self.uses.first().map(Use::again));
            keepers.extend(self.keepers.first().cloned());
            retire::leave_unswept(self.device, waits, (uses, keepers, Vec::new()));
        }
    }

    /// Nothing is left. What replays may still use goes when they are over.
    fn clear(&mut self) {
        (self.captured, self.number) = (None, None);
        self.drop_exec();
        self.drop_template();
        let waits = self.replays();
        let held = (std::mem::take(&mut self.uses), std::mem::take(&mut self.keepers), std::mem::take(&mut self.drawn));
        held.2.iter().for_each(|drawn| drawn.place.close());
        self.done = None;
        self.pool = None;
        retire::leave(self.device, waits, held);
    }
}

fn kept_nothing() -> Error {
    state_error(
        "This graph did not keep what was captured: make it with TCUDA_GRAPH_KEEP, or TCUDA_GRAPH_DEBUG for tcuda_graph_debug_dump.",
    )
}

#[cold]
fn wrong_device(stream: Stream, device: i32) -> Error {
    let text =
        format!("The graph was captured on device {device}, the stream belongs to device {}. Replay it on its device.", stream.device);
    Error::invalid_argument(text).on_device(device)
}

/// Why a file cannot be written, which CUDA does not say. A pipe that nobody reads is not waited for.
fn unwritable(path: &Path) -> Option<io::Error> {
    match File::options().write(true).create_new(true).open(path) {
        Ok(_) => {
            let _ = std::fs::remove_file(path);
            None
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            File::options().append(true).custom_flags(libc::O_NONBLOCK).open(path).err()
        }
        Err(error) => Some(error),
    }
}

/// What a capture that cannot be ended, or ended badly, wants.
fn explain(error: Error, spoiler: Option<&'static str>) -> Error {
    match (error.native, spoiler) {
        (code::CAPTURE_INVALIDATED, Some(function)) => error.context(format!(
            "{function} cannot be captured, and made the capture invalid. It is over; call that before or after it, or on another stream"
        )),
        (code::CAPTURE_INVALIDATED, None) => error
            .context("A call that cannot be captured, of the program's own or of another library, made the capture invalid. It is over"),
        (code::CAPTURE_UNJOINED, _) => error.context(
            "A stream that joined the capture has work that the first stream does not wait for: record an event there and wait for it \
             before the end. The capture is over",
        ),
        _ => error,
    }
}
