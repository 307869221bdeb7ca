//! # event
//! Owns:   events: making, recording, waiting, times; the pool of events for tcuda's own use.
//! Uses:   stream, device, runtime, base.
//! Never:  needs to know an event to work with it: an event of somebody else is as good.
//! Locks:  known::EVENTS alone; pool: a thread's own list, then the device's shared list.
//! Tests:  in the files, tests/conformance/event.rs.

mod known;
pub mod pool;

use crate::base::{Error, Result, Status};
use crate::device;
use crate::runtime::{self, RawEvent, Runtime, code};
use crate::stream::Stream;

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
    Ok(event)
}

/// Ends an event. Waits that were enqueued on it stay as they are.
pub fn destroy(event: RawEvent) -> Result<()> {
    let (entered, _guard) = enter(event)?;
    let known = known::remove(event);
    entered.event_destroy(event).map_err(|error| {
        // It was alive and stays alive.
        if let Some((device, flags)) = known.filter(|_| !is_dead(&error)) {
            known::insert(event, device, flags);
        }
        explain(event, error)
    })
}

/// Marks the point that a stream's work has come to. A second record replaces the first.
pub fn record(event: RawEvent, stream: Stream) -> Result<()> {
    check(event)?;
    let entered = stream.enter()?;
    entered.runtime.event_record(event, entered.raw).map_err(|error| match known::get(event) {
        Some((device, _)) if device != stream.device => {
            Error::invalid_argument(format!("Event device {device} does not match recording stream's device {}.", stream.device))
                .with_native(error.native)
                .on_device(stream.device)
        }
        _ => explain(event, error),
    })
}

/// Makes a stream's later work wait for the last record. An event that was never recorded holds nothing up.
pub fn wait(event: RawEvent, stream: Stream) -> Result<()> {
    check(event)?;
    let entered = stream.enter()?;
    entered.runtime.stream_wait_event(entered.raw, event).map_err(|error| explain(event, error))
}

/// Whether the work before the last record is done; true for an event that was never recorded.
pub fn query(event: RawEvent) -> Result<bool> {
    let (runtime, _guard) = enter(event)?;
    runtime.event_query(event).map_err(|error| explain(event, error))
}

/// Waits for the work before the last record.
pub fn synchronize(event: RawEvent) -> Result<()> {
    let (runtime, _guard) = enter(event)?;
    runtime.event_synchronize(event).map_err(|error| explain(event, error))
}

/// Milliseconds between two records.
pub fn elapsed_time(start: RawEvent, end: RawEvent) -> Result<f32> {
    check(end)?;
    let (runtime, _guard) = enter(start)?;
    let has_no_timing = |event| known::get(event).is_some_and(|(_, flags)| flags & DISABLE_TIMING != 0);
    let state = |text: &'static str| Error::new(Status::TCUDA_ERROR_INVALID_STATE, text);
    if has_no_timing(start) || has_no_timing(end) {
        return Err(state(
            "Both events must be created with timing enabled: without TCUDA_EVENT_DISABLE_TIMING (torch: with argument 'enable_timing=True').",
        ));
    }
    runtime.event_elapsed_time(start, end).map_err(|error| match error.native {
        code::NOT_READY => Error::new(
            Status::TCUDA_ERROR_NOT_READY,
            "Both events must be completed before calculating elapsed time. tcuda_event_synchronize waits for one.",
        )
        .with_native(error.native),
        // CUDA has one code for this and for no timing, for two devices, and for no event.
        code::INVALID_HANDLE => match (known::get(start), known::get(end)) {
            (Some((first, _)), Some((second, _))) if first != second => Error::invalid_argument(format!(
                "The start event belongs to device {first}, the end event to device {second}. Time is measured on one device."
            ))
            .with_native(error.native),
            (Some(_), Some(_)) => state("Both events must be recorded before calculating elapsed time.").with_native(error.native),
            _ => error.context(
                "Both events must be created with timing enabled, be recorded before calculating elapsed time, and belong to one device",
            ),
        },
        _ => explain(start, error),
    })
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

/// Handles are addresses: page zero holds none, and CUDA would read it.
fn check(event: RawEvent) -> Result<()> {
    if event >= 0x1000 {
        return Ok(());
    }
    Err(Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, format!("{event:#x} is no event. tcuda_event_create makes one.")))
}

/// The runtime, with the event's device current where another one would get a context by the call.
fn enter(event: RawEvent) -> Result<(&'static Runtime, Option<device::Guard>)> {
    check(event)?;
    let guard = match known::get(event) {
        Some((device, _)) => {
            device::check_lost(device)?;
            device::guard_against_stray_context(device)?
        }
        None => None,
    };
    Ok((runtime::runtime()?, guard))
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
    for event in known::all() {
        // What cannot be destroyed is lost with its device.
        let _ = destroy(event);
    }
}
