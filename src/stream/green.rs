//! Green contexts: some of a device's multiprocessors, and streams whose kernels run on those (torch's GreenContext). Under MPS, or with kernels
//! that launch kernels, CUDA may take a few more.
//!
//! No green context is ever made current. CUDA's default stream is the current context's: in a green one it is another stream, which every
//! other part of tcuda, and every other thread, would take for the device's; and the next cudaSetDevice would put the green one away.

use super::registry::{self, Kind};
use super::{PER_LEVEL, Stream, own};
use crate::base::handles::Handles;
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, insist};
use crate::device;
use crate::runtime::{self, RawGreenContext, RawStream, Runtime};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

struct Green {
    device: i32,
    multiprocessors: u32,
    raw: RawGreenContext,
    /// The driver locks nothing of a green context: all calls about it are made with this.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// It is about to be destroyed, or was.
    is_leaving: bool,
    /// At most `PER_LEVEL`, each made when it is first handed out.
    streams: Vec<RawStream>,
    /// Which is next once all are made.
    turn: usize,
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
    Ok(GREENS.insert(Arc::new(Green { device: guard.device, multiprocessors: part.multiprocessors, raw, state: Mutex::default() })))
}

/// How many multiprocessors it really has.
pub fn multiprocessors(handle: usize) -> Result<u32> {
    Ok(GREENS.get(handle)?.multiprocessors)
}

/// The next of its streams, made when its turn comes for the first time.
pub fn stream(handle: usize) -> Result<Stream> {
    let green = GREENS.get(handle)?;
    let mut state = green.enter()?;
    if state.streams.len() < PER_LEVEL {
        let raw = green.call(|runtime| runtime.green_context_stream(green.raw))?;
        registry::insert(raw, green.device, Kind::Green);
        state.streams.push(raw);
        watch::tell(|| Happening::StreamMade { on: green.known(raw).place() });
        return Ok(green.known(raw));
    }
    let next = state.streams[state.turn];
    state.turn = (state.turn + 1) % PER_LEVEL;
    Ok(green.known(next))
}

/// Ends it and its streams, whose work is waited for. An error leaves it there, with the streams that are not destroyed yet.
pub fn destroy(handle: usize) -> Result<()> {
    let green = GREENS.get(handle)?;
    let streams = {
        let mut state = green.enter()?;
        state.is_leaving = true;
        green.made(&state)
    };
    // Those that are captured only once the capture is over; the others while everybody knows them, and hears of it.
    streams.iter().filter(|stream| stream.is_capturing() == Ok(false)).for_each(|stream| stream.drain());
    let left = streams.iter().try_for_each(|stream| own::leave(stream.raw, Kind::Green).and_then(own::tell_gone));
    let ended = left.and_then(|()| {
        streams.iter().for_each(|stream| stream.drain());
        green.end()
    });
    if ended.is_err() {
        let mut state = green.state.lock();
        // No other's: the address of one that is destroyed may be that of a stream which another thread destroys.
        state.streams.iter().for_each(|raw| _ = registry::change(*raw, Kind::Leaving, Kind::Green));
        state.is_leaving = false;
        return ended;
    }
    GREENS.remove(handle).map(drop)
}

impl Green {
    /// Nobody destroys it while the guard lives.
    fn enter(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.is_leaving {
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

    fn known(&self, raw: RawStream) -> Stream {
        Stream { device: self.device, raw }
    }

    fn made(&self, state: &State) -> Vec<Stream> {
        state.streams.iter().map(|raw| self.known(*raw)).collect()
    }

    /// Destroys the streams, which nobody needs any more, and then the context: in the other order they would be lost.
    fn end(&self) -> Result<()> {
        let mut state = self.state.lock();
        while let Some(raw) = state.streams.pop() {
            // Forgotten first: the address may be another stream's as soon as this one is destroyed.
            registry::remove(raw);
            insist(|| own::really_destroy(self.known(raw))).inspect_err(|_| {
                registry::insert(raw, self.device, Kind::Green);
                state.streams.push(raw);
            })?;
        }
        insist(|| self.call(|runtime| runtime.green_context_destroy(self.raw)))
    }
}

/// Ends all of them.
pub(super) fn shutdown() {
    for green in GREENS.clear() {
        // What cannot be destroyed is lost with its device.
        let _ = green.end();
    }
}
