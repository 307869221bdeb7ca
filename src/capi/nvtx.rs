//! Marks and ranges for tools
//!
//! Marks and ranges that show what a program does in a profiler, as Nsight Systems (torch.cuda.nvtx, NVTX). A tool that takes them says so by
//! NVTX_INJECTION64_PATH, which it sets; it is loaded at the first of these calls. Without a tool they do nothing: push and pop take less than 5
//! ns together. But for ranges of a stream and the profiler's start and stop, which need a device and are refused after tcuda_shutdown, they
//! need no device and work at any time; in a child of fork that is refused domains are too. Ranges of NVTX's own in the same program go to the
//! same tool. Texts are UTF-8, and go to the tool as they are.
//!
//! With TCUDA_NVTX=1 a tool sees each call of tcuda that works with a device as a range of the domain `tcuda`, allocations with their bytes.

use super::guard::{Out, guard, guard_always, guard_out, guard_value, null};
use super::stream::resolve;
use super::structs::{self, tcuda_stream_t};
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result};
use crate::nvtx::{self, Event, Message, Payload};
use crate::runtime;
use std::ffi::{CStr, c_char};

/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_nvtx_domain {}
/// A domain. Not a pointer to anything.
#[allow(non_camel_case_types)]
pub type tcuda_nvtx_domain_t = *mut tcuda_nvtx_domain;

/// What a mark or range looks like (nvtxEventAttributes_t). Set it to TCUDA_NVTX_EVENT_INIT, then what is needed.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_nvtx_event_t {
    pub struct_size: usize,
    /// Not NULL.
    pub message: *const c_char,
    /// With TCUDA_NVTX_PAYLOAD_UNSIGNED or _SIGNED.
    pub integer: i64,
    /// With TCUDA_NVTX_PAYLOAD_DOUBLE.
    pub real: f64,
    /// TCUDA_NVTX_PAYLOAD_NONE (0), or what the tool shows with it.
    pub payload: i32,
    /// ARGB, 0xFF00FF00 is green; 0: the tool's choice.
    pub color: u32,
    /// A number of the program's own, by which tools filter; 0: none.
    pub category: u32,
    pub reserved: u32,
}
structs::input!(tcuda_nvtx_event_t: message, integer, real, payload, color, category, reserved);
const _: () = assert!(size_of::<tcuda_nvtx_event_t>() == 48);

// The header has them by hand.
pub const TCUDA_NVTX_PAYLOAD_NONE: i32 = 0;
pub const TCUDA_NVTX_PAYLOAD_UNSIGNED: i32 = 1;
pub const TCUDA_NVTX_PAYLOAD_SIGNED: i32 = 2;
pub const TCUDA_NVTX_PAYLOAD_DOUBLE: i32 = 3;

/// What a push or pop answers that failed.
const FAILED: i32 = -1;

unsafe fn c_text<'a>(pointer: *const c_char, parameter: &str) -> Result<&'a CStr> {
    if pointer.is_null() { Err(null(parameter)) } else { Ok(unsafe { CStr::from_ptr(pointer) }) }
}

/// Hands the event to `work`: what it points to is the program's.
unsafe fn with_event<T>(event: *const tcuda_nvtx_event_t, work: impl FnOnce(&Event<'_>) -> Result<T>) -> Result<T> {
    let event = unsafe { structs::read(event, "event") }?.ok_or_else(|| null("event"))?;
    let payload = match event.payload {
        TCUDA_NVTX_PAYLOAD_NONE => Payload::None,
        TCUDA_NVTX_PAYLOAD_UNSIGNED => Payload::Unsigned(event.integer as u64),
        TCUDA_NVTX_PAYLOAD_SIGNED => Payload::Signed(event.integer),
        TCUDA_NVTX_PAYLOAD_DOUBLE => Payload::Double(event.real),
        other => {
            return Err(Error::invalid_argument(format!(
                "'event.payload' is {other}; 0 (none), 1 (unsigned), 2 (signed) and 3 (double) are its values."
            )));
        }
    };
    let message = Message::Text(unsafe { c_text(event.message, "event.message") }?);
    work(&Event { message, color: event.color, category: event.category, payload })
}

/// Whether a tool takes marks and ranges. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_nvtx_is_attached() -> bool {
    guard_value("tcuda_nvtx_is_attached", false, || Ok(nvtx::tool().is_some()))
}

/// Marks a moment of the calling thread (torch.cuda.nvtx.mark, nvtxMarkA).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_nvtx_mark(message: *const c_char) -> tcuda_status_t {
    guard_always("tcuda_nvtx_mark", || {
        let message = unsafe { c_text(message, "message") }?;
        if let Some(tool) = nvtx::tool() {
            tool.mark(message);
        }
        Ok(())
    })
}

/// Begins a range of the calling thread, inside those that are open (torch.cuda.nvtx.range_push, nvtxRangePushA). The thread's
/// tcuda_nvtx_range_pop ends it.
///
/// @return how deep it lies, from 0; -2 where nobody counts, as without a tool (torch says so too); -1: there is a tool, and `message` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_nvtx_range_push(message: *const c_char) -> i32 {
    match nvtx::tool() {
        None => nvtx::NOT_TRACKED,
        Some(tool) => guard_value("tcuda_nvtx_range_push", FAILED, || Ok(tool.push(unsafe { c_text(message, "message") }?))),
    }
}

/// Ends the calling thread's newest open range (torch.cuda.nvtx.range_pop, nvtxRangePop).
///
/// @return how deep it lay, from 0; -2 where nobody counts; another negative number of the tool where none is open.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_nvtx_range_pop() -> i32 {
    match nvtx::tool() {
        None => nvtx::NOT_TRACKED,
        Some(tool) => guard_value("tcuda_nvtx_range_pop", FAILED, || Ok(tool.pop())),
    }
}

/// Begins a range that any thread can end, and that may overlap others (torch.cuda.nvtx.range_start, nvtxRangeStartA).
///
/// @param id gets what tcuda_nvtx_range_end wants; 0 without a tool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_nvtx_range_start(id: *mut u64, message: *const c_char) -> tcuda_status_t {
    guard_always("tcuda_nvtx_range_start", || {
        let out = Out::new(id, "id")?;
        let message = unsafe { c_text(message, "message") }?;
        out.write(nvtx::tool().map_or(0, |tool| tool.start(message)));
        Ok(())
    })
}

/// Ends a range of tcuda_nvtx_range_start (torch.cuda.nvtx.range_end, nvtxRangeEnd). What it does with a number that is none is the tool's.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_nvtx_range_end(id: u64) -> tcuda_status_t {
    guard_always("tcuda_nvtx_range_end", || {
        if let Some(tool) = nvtx::tool() {
            tool.end(id);
        }
        Ok(())
    })
}

/// Begins a range when a stream comes there: when the work that it was given before is done (torch.cuda.nvtx._device_range_start). With a tool a host
/// function tells it, which holds up the stream for a moment; without one the stream is given nothing. A graph that captures it has a new range
/// with each replay.
///
/// @param id gets what tcuda_nvtx_stream_range_end wants.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_nvtx_stream_range_start(id: *mut u64, message: *const c_char, stream: tcuda_stream_t) -> tcuda_status_t {
    guard_out("tcuda_nvtx_stream_range_start", id, "id", || {
        let message = unsafe { c_text(message, "message") }?;
        nvtx::start_on_stream(message, resolve(stream)?)
    })
}

/// Ends a range when a stream comes there (torch.cuda.nvtx._device_range_end). It need not be the stream that the range began on, but has to
/// come later in the program's order; a stream that is there before the range began makes it a range of no length, or if a graph
/// begins it, does nothing. A range whose end is captured is ended by a replay, and is open for as long as none comes.
///
/// @return TCUDA_ERROR_INVALID_HANDLE: it is no such range, or it was ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_nvtx_stream_range_end(id: u64, stream: tcuda_stream_t) -> tcuda_status_t {
    guard("tcuda_nvtx_stream_range_end", || nvtx::end_on_stream(id, resolve(stream)?))
}

/// Makes a domain: tools show its marks and ranges apart, and its ranges are pushed and popped apart (nvtxDomainCreateA).
///
/// @param domain gets it; tcuda_nvtx_domain_destroy ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_nvtx_domain_create(domain: *mut tcuda_nvtx_domain_t, name: *const c_char) -> tcuda_status_t {
    guard_always("tcuda_nvtx_domain_create", || {
        let out = Out::new(domain, "domain")?;
        out.write(nvtx::create_domain(unsafe { c_text(name, "name") }?)? as tcuda_nvtx_domain_t);
        Ok(())
    })
}

/// Ends a domain, whose ranges should be over (nvtxDomainDestroy).
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_nvtx_domain_destroy(domain: tcuda_nvtx_domain_t) -> tcuda_status_t {
    guard_always("tcuda_nvtx_domain_destroy", || if domain.is_null() { Ok(()) } else { nvtx::destroy_domain(domain as usize) })
}

/// tcuda_nvtx_mark with all that a mark can have (nvtxDomainMarkEx).
///
/// @param domain NULL: the default one, that of the functions without a domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_nvtx_domain_mark(domain: tcuda_nvtx_domain_t, event: *const tcuda_nvtx_event_t) -> tcuda_status_t {
    guard_always("tcuda_nvtx_domain_mark", || unsafe { with_event(event, |event| nvtx::mark_in(domain as usize, event)) })
}

/// tcuda_nvtx_range_push with all that a range can have (nvtxDomainRangePushEx).
///
/// @return as tcuda_nvtx_range_push; -1: there is a tool, and the domain or the event is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_nvtx_domain_range_push(domain: tcuda_nvtx_domain_t, event: *const tcuda_nvtx_event_t) -> i32 {
    match nvtx::tool() {
        None => nvtx::NOT_TRACKED,
        Some(tool) => guard_value("tcuda_nvtx_domain_range_push", FAILED, || unsafe {
            with_event(event, |event| nvtx::push_in(tool, domain as usize, event))
        }),
    }
}

/// Ends the calling thread's newest open range of a domain (nvtxDomainRangePop).
///
/// @return as tcuda_nvtx_range_pop; -1: there is a tool, and the domain is wrong.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_nvtx_domain_range_pop(domain: tcuda_nvtx_domain_t) -> i32 {
    match nvtx::tool() {
        None => nvtx::NOT_TRACKED,
        Some(tool) => guard_value("tcuda_nvtx_domain_range_pop", FAILED, || nvtx::pop_in(tool, domain as usize)),
    }
}

/// tcuda_nvtx_range_start with all that a range can have (nvtxDomainRangeStartEx).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_nvtx_domain_range_start(
    domain: tcuda_nvtx_domain_t,
    id: *mut u64,
    event: *const tcuda_nvtx_event_t,
) -> tcuda_status_t {
    guard_always("tcuda_nvtx_domain_range_start", || {
        let out = Out::new(id, "id")?;
        out.write(unsafe { with_event(event, |event| nvtx::start_in(domain as usize, event)) }?);
        Ok(())
    })
}

/// Ends a range of tcuda_nvtx_domain_range_start of the same domain (nvtxDomainRangeEnd).
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_nvtx_domain_range_end(domain: tcuda_nvtx_domain_t, id: u64) -> tcuda_status_t {
    guard_always("tcuda_nvtx_domain_range_end", || nvtx::end_in(domain as usize, id))
}

/// Gives a category of a domain a name (nvtxDomainNameCategoryA).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_nvtx_domain_name_category(
    domain: tcuda_nvtx_domain_t,
    category: u32,
    name: *const c_char,
) -> tcuda_status_t {
    guard_always("tcuda_nvtx_domain_name_category", || {
        let name = unsafe { c_text(name, "name") }?;
        nvtx::name_category(domain as usize, category, name)
    })
}

/// Has a profiler that waits for it collect from here on (torch.cuda.profiler.start, cudaProfilerStart), as Nsight Systems does with
/// `--capture-range=cudaProfilerApi`. Nothing happens without one. Needs a device, whose context it makes.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_profiler_start() -> tcuda_status_t {
    guard("tcuda_profiler_start", || runtime::runtime()?.profiler_start())
}

/// Has the profiler collect no more (torch.cuda.profiler.stop, cudaProfilerStop).
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_profiler_stop() -> tcuda_status_t {
    guard("tcuda_profiler_stop", || runtime::runtime()?.profiler_stop())
}
