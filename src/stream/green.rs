//! Green contexts: some of a device's multiprocessors, and streams whose kernels run on those alone (torch's GreenContext).
//!
//! No green context is ever made current. CUDA's default stream is the current context's: in a green one it is another stream, which every
//! other part of tcuda, and every other thread, would take for the device's; and the next cudaSetDevice would put the green one away.

use super::registry::{self, Kind};
use super::{PER_LEVEL, Saved, Stream, current, own};
use crate::base::handles::Handles;
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, insist, process};
use crate::device;
use crate::runtime::{self, RawGreenContext, RawStream, Runtime};
use parking_lot::{Mutex, MutexGuard};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Green {
    device: i32,
    multiprocessors: u32,
    /// How often threads have it open. Grows under the lock of the state only.
    open: AtomicUsize,
    /// The driver locks nothing of a green context: all calls about it are made with this.
    state: Mutex<State>,
}

struct State {
    /// 0: it is gone.
    raw: RawGreenContext,
    /// It is about to be destroyed.
    is_leaving: bool,
    turn: usize,
    /// 0: not made yet. The last is that of `begin`.
    streams: [RawStream; PER_LEVEL + 1],
}

static GREENS: Handles<Green> = Handles::new("green context", "tcuda_green_context_create");

/// At least so many multiprocessors of a device (-1: the current one).
pub fn create(multiprocessors: i32, device: i32) -> Result<usize> {
    let guard = device::Guard::new(device)?;
    let runtime = runtime::runtime()?;
    if let Some(missing) = runtime.missing_for_green_contexts() {
        let text =
            format!("There are no green contexts: the driver has no {missing}. Those of CUDA 12.5 and later have it ({}).", runtime.reason);
        return Err(Error::not_supported(text).on_device(guard.device));
    }
    let whole = runtime.multiprocessors(guard.device)?;
    let all = whole.multiprocessors;
    let refused = |more: &str| {
        let text = format!("Invalid number of SMs requested for green context: {multiprocessors} (device has {all} SMs){more}");
        Error::invalid_argument(text).on_device(guard.device)
    };
    let least = u32::try_from(multiprocessors).ok().filter(|least| (1..=all).contains(least)).ok_or_else(|| refused(""))?;
    let part = runtime.split(&whole, least)?.ok_or_else(|| refused("; rounded up to what it can set apart, they are too many."))?;
    let raw = runtime.outside_capture(|| runtime.green_context_create(guard.device, part)).map_err(device::blame(guard.device))?;
    Ok(GREENS.insert(Arc::new(Green {
        device: guard.device,
        multiprocessors: part.multiprocessors,
        open: AtomicUsize::new(0),
        state: Mutex::new(State { raw, is_leaving: false, turn: 0, streams: [0; PER_LEVEL + 1] }),
    })))
}

/// How many multiprocessors it really has.
pub fn multiprocessors(handle: usize) -> Result<u32> {
    Ok(GREENS.get(handle)?.multiprocessors)
}

/// The next of its streams, made when its turn comes for the first time.
pub fn stream(handle: usize) -> Result<Stream> {
    let green = GREENS.get(handle)?;
    let mut state = green.enter()?;
    let turn = state.turn;
    let made = green.stream_at(&mut state, turn)?;
    state.turn = (turn + 1) % PER_LEVEL;
    Ok(made)
}

/// Ends it and its streams, whose work is waited for. An error leaves it there.
pub fn destroy(handle: usize) -> Result<()> {
    let green = GREENS.get(handle)?;
    let streams = {
        let mut state = green.enter()?;
        if green.open.load(Relaxed) > 0 {
            let text = "The green context is open on some thread: call tcuda_green_context_end there first.";
            return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
        }
        state.is_leaving = true;
        green.made(&state)
    };
    // Those that are captured only once the capture is over; the others while everybody knows them, and hears of it.
    streams.iter().filter(|stream| stream.is_capturing() == Ok(false)).for_each(|stream| stream.drain());
    let ended = own::leave_green(&streams).and_then(|()| {
        streams.iter().for_each(|stream| stream.drain());
        green.end()
    });
    if ended.is_err() {
        streams.iter().for_each(|stream| own::stay_green(*stream));
        green.state.lock().is_leaving = false;
        return ended;
    }
    GREENS.remove(handle).map(drop)
}

impl Green {
    /// Nobody destroys it while the guard lives.
    fn enter(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.raw == 0 || state.is_leaving {
            return Err(Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, "The green context is being destroyed, or was."));
        }
        Ok(state)
    }

    /// Whichever device is current.
    fn call<T>(&self, call: impl FnOnce(&Runtime) -> Result<T>) -> Result<T> {
        device::check_lost(self.device)?;
        let _guard = device::guard_against_stray_context(self.device)?;
        let runtime = runtime::runtime()?;
        runtime.outside_capture(|| call(runtime)).map_err(device::blame(self.device))
    }

    fn stream_at(&self, state: &mut State, at: usize) -> Result<Stream> {
        if state.streams[at] == 0 {
            let raw = self.call(|runtime| runtime.green_context_stream(state.raw))?;
            registry::insert(raw, self.device, Kind::Green);
            state.streams[at] = raw;
            watch::tell(|| Happening::StreamMade { on: Stream { device: self.device, raw }.place() });
        }
        Ok(Stream { device: self.device, raw: state.streams[at] })
    }

    fn made(&self, state: &State) -> Vec<Stream> {
        state.streams.iter().filter(|raw| **raw != 0).map(|raw| Stream { device: self.device, raw: *raw }).collect()
    }

    /// Destroys the streams, which nobody needs any more, and then the context: in the other order they would be lost.
    fn end(&self) -> Result<()> {
        let mut state = self.state.lock();
        for at in 0..state.streams.len() {
            let raw = std::mem::take(&mut state.streams[at]);
            if raw != 0 {
                // Forgotten first: the address may be another stream's as soon as this one is destroyed.
                registry::remove(raw);
                insist(|| own::really_destroy(Stream { device: self.device, raw })).inspect_err(|_| {
                    registry::insert(raw, self.device, Kind::Green);
                    state.streams[at] = raw;
                })?;
            }
        }
        insist(|| self.call(|runtime| runtime.green_context_destroy(state.raw)))?;
        state.raw = 0;
        Ok(())
    }
}

// ---- those that a thread has open

/// Makes a stream wait for another: events are of a higher room.
pub type Wait = fn(Stream, Stream) -> Result<()>;

/// A stream that was current, and what tells it from a later one at the same address.
type Before = (Stream, Option<u64>);

struct Opening {
    handle: usize,
    green: Arc<Green>,
    on: Stream,
    previous: Before,
    replaced: Before,
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.green.open.fetch_sub(1, Relaxed);
    }
}

// The newest last.
thread_local!(static OPEN: RefCell<Vec<Arc<Opening>>> = const { RefCell::new(Vec::new()) });

fn close_all() {
    let _ = OPEN.try_with(RefCell::take);
}

/// A stream of it becomes the thread's current one, and its device current. That stream waits for those that were current.
pub fn begin(handle: usize, wait: Wait) -> Result<()> {
    let green = GREENS.get(handle)?;
    let Saved { previous, replaced } = current::before(green.device)?;
    let opening = {
        let mut state = green.enter()?;
        let on = green.stream_at(&mut state, PER_LEVEL)?;
        green.open.fetch_add(1, Relaxed);
        let before = |stream| (stream, registry::serial(stream));
        Arc::new(Opening { handle, green: green.clone(), on, previous: before(previous), replaced: before(replaced) })
    };
    for before in each(previous, replaced) {
        wait(opening.on, before)?;
    }
    let on = opening.on;
    OPEN.try_with(|open| open.borrow_mut().push(opening)).map_err(|_| {
        let text = "The thread is ending: no green context can be opened in it any more.";
        Error::new(Status::TCUDA_ERROR_INVALID_STATE, text)
    })?;
    process::at_end(close_all);
    current::set_current(on).inspect_err(|_| forget_newest())
}

/// Undoes the thread's newest `begin`, which has to be of this context: what was current is again, and waits for what was done meanwhile.
pub fn end(handle: usize, wait: Wait) -> Result<()> {
    let Ok(newest) = OPEN.try_with(|open| open.borrow().last().cloned()) else {
        // It was closed with the thread's.
        return GREENS.get(handle).map(drop);
    };
    let Some(opening) = newest.filter(|opening| opening.handle == handle) else {
        GREENS.get(handle)?;
        let text = "The green context is not the newest that is open in this thread: tcuda_green_context_begin opens it.";
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
    };
    // After a shutdown nothing is left of it, nor of the streams.
    if opening.green.state.lock().raw != 0 {
        let [previous, replaced] = [opening.previous, opening.replaced].map(still);
        for before in each(previous, replaced) {
            // What is lost holds nothing up.
            wait(before, opening.on).or_else(|error| if device::is_lost(opening.on.device, &error) { Ok(()) } else { Err(error) })?;
        }
        current::restore(Saved { previous, replaced })?;
    }
    forget_newest();
    Ok(())
}

fn forget_newest() {
    let _ = OPEN.try_with(|open| open.borrow_mut().pop());
}

/// One that was destroyed meanwhile is current no more: its device's default stream is.
fn still((stream, serial): Before) -> Stream {
    if registry::serial(stream) == serial { stream } else { Stream { raw: super::DEFAULT, ..stream } }
}

fn each(previous: Stream, replaced: Stream) -> impl Iterator<Item = Stream> {
    std::iter::once(previous).chain((replaced != previous).then_some(replaced))
}

/// Ends all of them.
pub(super) fn shutdown() {
    for green in GREENS.clear() {
        // What cannot be destroyed is lost with its device.
        let _ = green.end();
        green.state.lock().raw = 0;
    }
}
