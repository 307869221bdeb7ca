//! Events
//!
//! A tcuda_event_t is a cudaEvent_t: events of any library can be given. The flags are CUDA's bits, so 0 is an event with timing; torch's
//! default is TCUDA_EVENT_DISABLE_TIMING. An event belongs to the device that was current when it was made (torch makes it on the device
//! of the first record). Several threads may use an event; of two records at the same time the later one counts.

use super::guard::{guard, guard_destroy, guard_out};
use super::structs::{tcuda_event_t, tcuda_stream_t};
use crate::base::status::tcuda_status_t;
use crate::{event, stream};

/// Makes an event of the current device (torch.cuda.Event, cudaEventCreateWithFlags).
///
/// @param event    gets the event; tcuda_event_destroy ends it.
/// @param flags    TCUDA_EVENT_*. TCUDA_EVENT_INTERPROCESS needs TCUDA_EVENT_DISABLE_TIMING beside it.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: a bit that is not known, or interprocess with timing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_create(event: *mut tcuda_event_t, flags: u32) -> tcuda_status_t {
    guard_out("tcuda_event_create", event, "event", || Ok(event::create(flags)? as tcuda_event_t))
}

/// Ends an event. Waits that were enqueued on it stay as they are. NULL succeeds.
///
/// @return TCUDA_ERROR_INVALID_HANDLE: it was destroyed before, as far as CUDA can tell.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_destroy(event: tcuda_event_t) -> tcuda_status_t {
    guard_destroy("tcuda_event_destroy", event, || event::destroy(event as usize))
}

/// Marks the point that a stream's work has come to (torch.cuda.Event.record, cudaEventRecord). A later record replaces it.
///
/// @return TCUDA_ERROR_INVALID_ARGUMENT: the event belongs to another device than the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_record(event: tcuda_event_t, stream: tcuda_stream_t) -> tcuda_status_t {
    guard("tcuda_event_record", || event::record(event as usize, stream::resolve(stream as usize)?))
}

/// Makes a stream's later work wait for the last record (torch.cuda.Event.wait, cudaStreamWaitEvent). An event that was never recorded
/// holds nothing up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_wait(event: tcuda_event_t, stream: tcuda_stream_t) -> tcuda_status_t {
    guard("tcuda_event_wait", || event::wait(event as usize, stream::resolve(stream as usize)?))
}

/// tcuda_event_record; on a stream that is captured each replay records the event, when it comes there (torch.cuda.Event with external=True,
/// cudaEventRecordExternal): so others than the graph may wait for a part of a replay, and time it. The event has to stay for as long as
/// the graph.
///
/// @return as tcuda_event_record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_record_external(event: tcuda_event_t, stream: tcuda_stream_t) -> tcuda_status_t {
    guard("tcuda_event_record_external", || event::record_external(event as usize, stream::resolve(stream as usize)?))
}

/// tcuda_event_wait; on a stream that is captured each replay waits there, for what the event's last record is when the replay is enqueued
/// (cudaEventWaitExternal): so a part of a graph waits for what is not of its capture. The event has to stay for as long as the graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_wait_external(event: tcuda_event_t, stream: tcuda_stream_t) -> tcuda_status_t {
    guard("tcuda_event_wait_external", || event::wait_external(event as usize, stream::resolve(stream as usize)?))
}

/// Whether the work before the last record is done (torch.cuda.Event.query, cudaEventQuery); true for an event that was never recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_query(event: tcuda_event_t, complete: *mut bool) -> tcuda_status_t {
    guard_out("tcuda_event_query", complete, "complete", || event::query(event as usize))
}

/// Waits for the work before the last record (torch.cuda.Event.synchronize, cudaEventSynchronize); not at all for an event that was never
/// recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_synchronize(event: tcuda_event_t) -> tcuda_status_t {
    guard("tcuda_event_synchronize", || event::synchronize(event as usize))
}

/// Milliseconds from one record to another (torch.cuda.Event.elapsed_time, cudaEventElapsedTime), on any streams of one device; negative if
/// `end` came first. CUDA counts in about half a microsecond.
///
/// @return TCUDA_ERROR_INVALID_STATE: an event has no timing, or was never recorded. TCUDA_ERROR_NOT_READY: a record is not reached yet.
///         TCUDA_ERROR_INVALID_ARGUMENT: the records are of two devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_elapsed_time(milliseconds: *mut f32, start: tcuda_event_t, end: tcuda_event_t) -> tcuda_status_t {
    guard_out("tcuda_event_elapsed_time", milliseconds, "milliseconds", || event::elapsed_time(start as usize, end as usize))
}
