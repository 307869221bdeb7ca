//! Trace
//!
//! A program may be told of what happens: the ten callbacks of torch's GPU trace. A function is called on the thread that made the call of
//! tcuda, when its work is done and before it returns, in the order in which things happened; several threads may call it at once. A call
//! that began before anybody was registered need not be told. What failed is not; a batch that fails half way gives back what it had, and
//! tells it. No lock is held, so it may call tcuda; what it does there itself is told to nobody, so that it cannot call itself without end.
//! A C++ exception or longjmp must not leave it.
//! Of two threads one may be told of an allocation before the other is told of the free that made room for it.
//!
//! tcuda's own waits, copies and collectives are told as the events, waits and blocks that they are made of. While nobody is registered it
//! costs one read of a word that nobody writes; while somebody is told of blocks, threads keep none to themselves, and each allocation
//! takes some hundred nanoseconds. Registrations stay over tcuda_shutdown, and what that gives back is not told.

use super::guard::{Out, guard, guard_always, null};
use super::structs::{UserData, tcuda_event_t, tcuda_stream_t};
use crate::base::status::tcuda_status_t;
use crate::base::watch::{Happening, Place};
use crate::base::{process, trace};
use crate::memory;
use crate::stream::{self, Stream};
use std::ffi::c_void;

/// What happened. Fields that do not belong to its kind are 0.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_trace_t {
    /// What this library fills; later versions fill more.
    pub struct_size: usize,
    /// TCUDA_TRACE_*.
    pub kind: i32,
    /// Where it happened; -1: not known.
    pub device: i32,
    /// Of records, waits, allocations, and of streams that were made or waited for. NULL of frees.
    pub stream: tcuda_stream_t,
    /// Of events.
    pub event: tcuda_event_t,
    /// Of blocks.
    pub ptr: *mut c_void,
    /// Bytes that were asked for, of an allocation.
    pub size: usize,
}

/// Told of what happened. The struct holds for the length of the call.
#[allow(non_camel_case_types)]
pub type tcuda_trace_fn_t = Option<unsafe extern "C" fn(happened: *const tcuda_trace_t, user_data: *mut c_void)>;

fn out(happening: &Happening) -> tcuda_trace_t {
    let handle = |on: Place| stream::handle_of(Stream { device: on.device, raw: on.raw }) as tcuda_stream_t;
    let (device, on, event, address, size) = match *happening {
        Happening::EventMade { event, device } | Happening::EventGone { event, device } => (device, None, event, 0, 0),
        Happening::EventRecorded { event, on } | Happening::EventWaited { event, on } => (on.device, Some(on), event, 0, 0),
        Happening::Allocated { address, size, on } => (on.device, Some(on), 0, address, size),
        Happening::Freed { address, device } => (device, None, 0, address, 0),
        Happening::StreamMade { on } | Happening::StreamWaited { on } => (on.device, Some(on), 0, 0, 0),
        Happening::DeviceWaited { device } => (device, None, 0, 0, 0),
        Happening::EventSynchronized { event } => (-1, None, event, 0, 0),
        _ => (-1, None, 0, 0, 0),
    };
    tcuda_trace_t {
        struct_size: size_of::<tcuda_trace_t>(),
        kind: trace::kind_of(happening).unwrap_or(0),
        device,
        stream: on.map_or(std::ptr::null_mut(), handle),
        event: event as tcuda_event_t,
        ptr: address as *mut c_void,
        size,
    }
}

/// Registers a function that is told of one kind of events, or of all (torch._C._gpu_trace.register_callback_for_*). The section's text says
/// how it is called. Needs no device.
///
/// @param id        gets a number for tcuda_trace_unregister.
/// @param kind      TCUDA_TRACE_*.
/// @param function  not NULL; the same function may be registered several times.
/// @param user_data goes to each call.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: there is no such kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_trace_register(
    id: *mut u64,
    kind: i32,
    function: tcuda_trace_fn_t,
    user_data: *mut c_void,
) -> tcuda_status_t {
    guard("tcuda_trace_register", || {
        let written = Out::new(id, "id")?;
        let function = function.ok_or_else(|| null("function"))?;
        let user_data = UserData(user_data);
        let id = trace::add(
            kind,
            Box::new(move |happening| {
                let user_data = &user_data;
                unsafe { function(&out(happening), user_data.0) }
            }),
        )?;
        memory::stop_fronts();
        written.write(id);
        Ok(())
    })
}

/// Ends a registration. On return the function is not called any more: calls of it that run on other threads are waited for, so what
/// they need must not be held here. Called inside a trace function, a pressure callback or an
/// observer it does not wait.
///
/// @return TCUDA_ERROR_INVALID_HANDLE: no trace function has this number.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_trace_unregister(id: u64) -> tcuda_status_t {
    guard_always("tcuda_trace_unregister", || {
        process::refuse_forked()?;
        trace::remove(id)
    })
}
