//! # event
//! Owns:   events: making, recording, waiting, times; the pool of events for tcuda's own use.
//! Uses:   stream, device, runtime, base.
//! Never:  needs to know an event to work with it: an event of somebody else is as good.
//! Locks:  known::EVENTS; of the pool STORES, a thread's own store, and IDLE of all threads. Each alone, for a moment, and under any.
//! Tests:  in the files, tests/conformance/{event,graph_events}.rs.

mod known;
pub mod pool;

use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, insist};
use crate::device;
use crate::runtime::table::IpcHandle;
use crate::runtime::{self, Code, RawEvent, RawStream, Runtime, code};
use crate::stream::Stream;
use known::Known;
use std::sync::OnceLock;

/// The bits of the flags: CUDA's.
pub const BLOCKING: u32 = 1;
pub const DISABLE_TIMING: u32 = 2;
pub const INTERPROCESS: u32 = 4;

/// A new event of the current device.
pub fn create(flags: u32) -> Result<RawEvent> {
    if flags & !(BLOCKING | DISABLE_TIMING | INTERPROCESS) != 0 {
        return Err(Error::invalid_argument(format!(
            "The event flags {flags:#x} have bits that are not known. Known are 1 (blocking), 2 (disable timing) and 4 (interprocess)."
        )));
    }
    if flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
        return Err(Error::invalid_argument(
            "An interprocess event cannot have timing. Set TCUDA_EVENT_DISABLE_TIMING beside TCUDA_EVENT_INTERPROCESS.",
        ));
    }
    let device = device::resolve(device::CURRENT)?;
    let event = runtime::runtime()?.event_create(flags)?;
    known::insert(event, device, flags);
    watch::tell(|| Happening::EventMade { event, device });
    Ok(event)
}

/// A name for an interprocess event that other processes open.
pub fn ipc_handle(event: RawEvent) -> Result<IpcHandle> {
    if let Some(known) = check(event)?
        && known.flags & INTERPROCESS == 0
    {
        return Err(Error::invalid_argument(
            "The event is not for other processes. Make it with TCUDA_EVENT_INTERPROCESS and TCUDA_EVENT_DISABLE_TIMING.",
        ));
    }
    let (of, _guard) = enter(event)?;
    let runtime = runtime::runtime()?;
    let handle = runtime.outside_capture(|| runtime.ipc_event_handle(event));
    let handle = handle.map_err(|error| device::blame(of)(explain(event, error)))?;
    watch::tell(|| Happening::EventShared { event });
    Ok(handle)
}

/// An event here for one of another process.
pub fn from_ipc_handle(device: i32, handle: IpcHandle) -> Result<RawEvent> {
    let guard = device::Guard::new(device)?;
    let runtime = runtime::runtime()?;
    let event = runtime.outside_capture(|| runtime.ipc_open_event_handle(handle)).map_err(|error| {
        error.context(
            "The handle opens no event: its process has ended or destroyed the event, it is this very process, or the bytes are no handle of \
             tcuda_event_ipc_handle",
        )
    })?;
    known::insert(event, guard.device, DISABLE_TIMING | INTERPROCESS);
    watch::tell(|| Happening::EventShared { event });
    Ok(event)
}

/// Ends an event. Waits that were enqueued on it stay as they are.
pub fn destroy(event: RawEvent) -> Result<()> {
    let known = check(event)?;
    match known::destroy(event) {
        known::Destroyed::Before => return Err(destroyed(event)),
        known::Destroyed::Unknown => runtime::runtime()?.event_destroy(event).map_err(|error| explain(event, error))?,
        known::Destroyed::Kept(oldest) => {
            if let Some((event, known)) = oldest
                && really_destroy(event, known).is_err()
            {
                known::keep(event, known);
            }
        }
    }
    watch::tell(|| Happening::EventGone { event, device: known.map_or(-1, |known| known.device) });
    Ok(())
}

fn really_destroy(event: RawEvent, known: Known) -> Result<()> {
    let _guard = device::guard_against_stray_context(known.device)?;
    runtime::runtime()?.event_destroy(event)
}

/// Marks the point that a stream's work has come to. A second record replaces the first.
pub fn record(event: RawEvent, stream: Stream) -> Result<()> {
    recording(event, stream, Runtime::event_record)?;
    watch::tell(|| Happening::EventRecorded { event, on: stream.place() });
    Ok(())
}

/// The same, but on a stream that is captured it is done by each replay.
pub fn record_external(event: RawEvent, stream: Stream) -> Result<()> {
    if !stream.is_capturing()? {
        return record(event, stream);
    }
    recording(event, stream, Runtime::event_record_external)?;
    watch::tell(|| Happening::EventCaptured { event, on: stream.place(), waits: false });
    Ok(())
}

fn recording(event: RawEvent, stream: Stream, record: impl FnOnce(&Runtime, RawEvent, RawStream) -> Result<()>) -> Result<()> {
    let known = check(event)?;
    let entered = stream.enter()?;
    record(entered.runtime, event, entered.raw).map_err(|error| match known {
        Some(known) if known.device != stream.device => {
            let (of, on) = (known.device, stream.device);
            let cure = format!("An event is recorded on streams of one device: give one that was made while device {on} was current.");
            Error::invalid_argument(format!("Event device {of} does not match recording stream's device {on}. {cure}"))
                .with_native(error.native)
                .on_device(stream.device)
        }
        _ => device::blame(stream.device)(explain(event, error)),
    })
}

/// Calls what it is given, once.
type Around = fn(Stream, &mut dyn FnMut());
static AROUND: OnceLock<Around> = OnceLock::new();

/// From now on each wait of a stream is made inside of this: it may be what has the stream join a capture.
pub fn around_waits(around: Around) {
    let _ = AROUND.set(around);
}

fn waiting<T>(stream: Stream, wait: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(around) = AROUND.get() else { return wait() };
    let (mut wait, mut answer) = (Some(wait), None);
    around(stream, &mut || answer = wait.take().map(|wait| wait()));
    answer.unwrap_or_else(|| Err(Error::internal("A wait was not made.")))
}

/// Makes a stream's later work wait for the last record. An event that was never recorded holds nothing up.
pub fn wait(event: RawEvent, stream: Stream) -> Result<()> {
    let of = device_of(event)?;
    let entered = stream.enter()?;
    waiting(stream, || entered.runtime.stream_wait_event(entered.raw, event))
        .map_err(|error| device::blame_either(of, stream.device)(explain(event, error)))?;
    watch::tell(|| Happening::EventWaited { event, on: stream.place() });
    Ok(())
}

/// The same, but on a stream that is captured each replay waits, for the event's last record then.
pub fn wait_external(event: RawEvent, stream: Stream) -> Result<()> {
    if !stream.is_capturing()? {
        return wait(event, stream);
    }
    let of = device_of(event)?;
    let entered = stream.enter()?;
    entered
        .runtime
        .stream_wait_event_external(entered.raw, event)
        .map_err(|error| device::blame_either(of, stream.device)(explain(event, error)))?;
    watch::tell(|| Happening::EventCaptured { event, on: stream.place(), waits: true });
    Ok(())
}

/// Whether the work before the last record is done; true for an event that was never recorded.
pub fn query(event: RawEvent) -> Result<bool> {
    let (of, _guard) = enter(event)?;
    let done = runtime::runtime()?.event_query(event).map_err(|error| device::blame(of)(explain(event, error)))?;
    if done {
        watch::tell(|| Happening::EventDone { event });
    }
    Ok(done)
}

/// Waits for the work before the last record.
pub fn synchronize(event: RawEvent) -> Result<()> {
    let (of, _guard) = enter(event)?;
    runtime::runtime()?.event_synchronize(event).map_err(|error| device::blame(of)(explain(event, error)))?;
    watch::tell(|| Happening::EventSynchronized { event });
    Ok(())
}

/// Milliseconds between two records.
pub fn elapsed_time(start: RawEvent, end: RawEvent) -> Result<f32> {
    let known = (check(start)?, check(end)?);
    let (of, _guard) = enter(start)?;
    let of_end = device_of(end)?;
    let has_no_timing = |known: Known| known.flags & DISABLE_TIMING != 0;
    let state = |text: &'static str, code: Code| Error::new(Status::TCUDA_ERROR_INVALID_STATE, text).with_native(code);
    let time = runtime::runtime()?.event_elapsed_time(start, end).map_err(|error| match error.native {
        code::NOT_READY => Error::new(
            Status::TCUDA_ERROR_NOT_READY,
            "Both events must be completed before calculating elapsed time. tcuda_event_synchronize waits for one.",
        )
        .with_native(error.native),
        // CUDA has one code for no timing, no record, two devices, and no event.
        code::INVALID_HANDLE => match known {
            (Some(first), Some(second)) if has_no_timing(first) || has_no_timing(second) => state(
                "Both events must be created with timing enabled: without TCUDA_EVENT_DISABLE_TIMING (torch: with argument \
                 'enable_timing=True').",
                error.native,
            ),
            (Some(first), Some(second)) if first.device != second.device => Error::invalid_argument(format!(
                "The start event belongs to device {}, the end event to device {}. Time is measured on one device.",
                first.device, second.device
            ))
            .with_native(error.native),
            (Some(_), Some(_)) => state("Both events must be recorded before calculating elapsed time.", error.native),
            _ => error.context(
                "Both events must be created with timing enabled, be recorded before calculating elapsed time, and belong to one device",
            ),
        },
        _ => device::blame_either(of, of_end)(explain(start, error)),
    })?;
    [start, end].into_iter().for_each(|event| watch::tell(|| Happening::EventDone { event }));
    Ok(time)
}

/// What a stream gets from here on waits for all that another one has got until now.
pub fn wait_stream(waiting: Stream, other: Stream) -> Result<()> {
    if waiting == other {
        return Ok(());
    }
    let event = pool::Pooled::take(other.device)?;
    record(event.raw(), other)?;
    wait(event.raw(), waiting)
}

/// What is known of an event; an error for what is none for sure: page zero holds no event, and some were destroyed.
fn check(event: RawEvent) -> Result<Option<Known>> {
    if event < 0x1000 {
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, format!("{event:#x} is no event. tcuda_event_create makes one.")));
    }
    match known::get(event) {
        Some(known) if known.is_destroyed => Err(destroyed(event)),
        known => Ok(known),
    }
}

#[cold]
fn destroyed(event: RawEvent) -> Error {
    Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, format!("The event {event:#x} was destroyed."))
}

/// Its device, which is not lost as far as is known; -1 of somebody else's event.
fn device_of(event: RawEvent) -> Result<i32> {
    let Some(known) = check(event)? else { return Ok(-1) };
    device::check_lost(known.device)?;
    Ok(known.device)
}

/// The same, with the device current where another one would get a context by the call.
fn enter(event: RawEvent) -> Result<(i32, Option<device::Guard>)> {
    let device = device_of(event)?;
    let guard = if device < 0 { None } else { device::guard_against_stray_context(device)? };
    Ok((device, guard))
}

/// Drivers have several answers for a handle that is none.
fn is_dead(error: &Error) -> bool {
    matches!(error.native, code::INVALID_HANDLE | code::CONTEXT_IS_DESTROYED | code::INVALID_CONTEXT)
}

fn explain(event: RawEvent, error: Error) -> Error {
    if !is_dead(&error) {
        return error;
    }
    let mut error = error.context(format!("{event:#x} is no event, or was destroyed"));
    error.status = Status::TCUDA_ERROR_INVALID_HANDLE;
    error
}

/// Destroys every event that tcuda made. Nothing may use one any more.
pub fn shutdown() {
    pool::shutdown();
    for (event, known) in known::clear() {
        // What cannot be destroyed is lost with its device.
        let _ = insist(|| really_destroy(event, known));
    }
}
