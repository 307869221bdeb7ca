//! Stream sanitizer
//!
//! Finds missing order (torch's CUDA Stream Sanitizer): two accesses of which one writes, where no event, wait or synchronization says which
//! comes first; memory that is used after its free; a block that is freed while a stream may use it that was not recorded; waits for an event
//! that was never recorded; and replays of a graph over memory that was freed since. It finds them whichever way the race goes, since it
//! compares what is known and not what happens.
//!
//! It sees what goes through tcuda: copies, fills, tensors, random numbers, compiled functions, collectives, graphs, allocations and frees,
//! events and waits. A program says what its own kernels and its host code do by tcuda_sanitizer_annotate_access. Both sides of each report
//! are named, with the call, the stream, the annotation of the thread and a number that grows with each access. TCUDA_SANITIZER=1 turns it
//! on at the start. docs/SANITIZER.md says what it knows and what not. While it is off each call reads one word for it.

use super::guard::{Out, guard, guard_always, null, text};
use super::structs::{UserData, tcuda_stream_t};
use super::text::{TextOut, c_text};
use crate::base::status::tcuda_status_t;
use crate::base::{Error, process};
use crate::copy;
use crate::memory;
use crate::sanitizer::{self, report};
use crate::stream;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

const HOST: usize = 0x81;
const TEXT: i32 = 1;
const JSON: i32 = 2;

/// A report. The texts hold for the length of the call.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_sanitizer_report_t {
    /// What this library fills; later versions fill more.
    pub struct_size: usize,
    /// TCUDA_REPORT_*.
    pub kind: i32,
    pub unused: i32,
    pub text: *const c_char,
    pub json: *const c_char,
}

/// Told of a report, on the thread whose call it is of, before that returns and with no lock held. It may call tcuda; reports of what it
/// does itself are counted and not told. A C++ exception or longjmp must not leave it.
#[allow(non_camel_case_types)]
pub type tcuda_sanitizer_fn_t = Option<unsafe extern "C" fn(report: *const tcuda_sanitizer_report_t, user_data: *mut c_void)>;

/// Turns the sanitizer on, for the whole process; earlier reports are forgotten. What is under way is not known: turn it on where all is
/// quiet, best at the start. On already: nothing changes. Stops all threads that use a device's memory for a moment.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_sanitizer_enable() -> tcuda_status_t {
    guard("tcuda_sanitizer_enable", || {
        sanitizer::enable();
        Ok(())
    })
}

/// Turns it off. Reports stay until it is turned on again.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_sanitizer_disable() -> tcuda_status_t {
    guard_always("tcuda_sanitizer_disable", || {
        sanitizer::disable();
        Ok(())
    })
}

/// Whether it is on: by the environment, or by whoever turned it on last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sanitizer_is_enabled(enabled: *mut bool) -> tcuda_status_t {
    guard_always("tcuda_sanitizer_is_enabled", || {
        let out = Out::new(enabled, "enabled")?;
        process::refuse_forked()?;
        out.write(sanitizer::is_on());
        Ok(())
    })
}

/// Says that memory is read or written: by a kernel of the program's on a stream, right before or after its launch, or by the host. Memory of
/// anybody, but for pageable memory of the host, whose order is the program's own. Does nothing while the sanitizer is off.
///
/// @param ptr    the first byte.
/// @param size   bytes; 0 does nothing.
/// @param mode   TCUDA_ACCESS_READ, TCUDA_ACCESS_WRITE or both.
/// @param stream NULL: the default stream of the memory's device; TCUDA_SANITIZER_HOST: the host.
/// @param name   of the kernel or what else does it, for reports; kept as long as the process, as those of tcuda_memory_annotate. May be NULL.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: NULL with a size, or a mode that is none. TCUDA_ERROR_INVALID_STATE: too many names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sanitizer_annotate_access(
    ptr: *const c_void,
    size: usize,
    mode: i32,
    stream: tcuda_stream_t,
    name: *const c_char,
) -> tcuda_status_t {
    guard("tcuda_sanitizer_annotate_access", || {
        if !(1..=3).contains(&mode) {
            let text = format!("'mode' is {mode}; TCUDA_ACCESS_READ (1), TCUDA_ACCESS_WRITE (2) and both (3) are its values.");
            return Err(Error::invalid_argument(text));
        }
        if ptr.is_null() && size > 0 {
            return Err(null("ptr"));
        }
        let name = if name.is_null() { None } else { Some(unsafe { text(name, "name") }?) };
        if !sanitizer::is_on() {
            return Ok(());
        }
        let on = match stream as usize {
            HOST => None,
            0 => {
                // Imports, and what was freed, are no blocks of the caches.
                let device = memory::device_of(ptr as usize).or_else(|| copy::place_of(ptr as usize).ok()?.device());
                Some(device.map_or_else(|| stream::resolve(0), stream::default)?)
            }
            handle => Some(stream::resolve(handle)?),
        };
        sanitizer::annotate(ptr as usize, size, mode & 1 != 0, mode & 2 != 0, on, name)
    })
}

/// How many reports there were since it was turned on. The first thousand are kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sanitizer_report_count(count: *mut u64) -> tcuda_status_t {
    guard_always("tcuda_sanitizer_report_count", || {
        let out = Out::new(count, "count")?;
        process::refuse_forked()?;
        out.write(report::count());
        Ok(())
    })
}

/// A report that was kept.
///
/// @param text     gets it with a terminating zero; NULL with capacity 0 asks for the size only.
/// @param needed   gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
/// @param index    from 0, in the order in which they came.
/// @param format   TCUDA_REPORT_TEXT or TCUDA_REPORT_JSON: an object with kind, text, and the sides current, previous and allocation (or null),
///                 each with does, call, device, stream, annotation, sequence, address and size.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: there is no such report, or it was not kept. TCUDA_ERROR_BUFFER_TOO_SMALL: nothing but `needed` was
///         written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sanitizer_report_get(
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
    index: u64,
    format: i32,
) -> tcuda_status_t {
    guard_always("tcuda_sanitizer_report_get", || {
        let out = TextOut::new(text, capacity, needed)?;
        process::refuse_forked()?;
        let report = report::get(index).ok_or_else(|| {
            let text = format!("There is no report {index}: there were {}, of which the first {} are kept.", report::count(), report::MOST);
            Error::invalid_argument(text)
        })?;
        out.write(&match format {
            TEXT => report.text(),
            JSON => report.json(),
            _ => return Err(wrong_format(format)),
        })
    })
}

#[cold]
fn wrong_format(format: i32) -> Error {
    Error::invalid_argument(format!("'format' is {format}; TCUDA_REPORT_TEXT (1) and TCUDA_REPORT_JSON (2) are its values."))
}

/// Has a function told of each report, instead of the log (where they are errors); NULL brings the log back. A report that another thread
/// tells of at that moment may still go to the function before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sanitizer_set_callback(function: tcuda_sanitizer_fn_t, user_data: *mut c_void) -> tcuda_status_t {
    guard_always("tcuda_sanitizer_set_callback", || {
        process::refuse_forked()?;
        let user_data = UserData(user_data);
        report::set_function(function.map(|function| -> report::Function {
            Arc::new(move |found| {
                let user_data = &user_data;
                let (text, json) = (c_text(&found.text()), c_text(&found.json()));
                let report = tcuda_sanitizer_report_t {
                    struct_size: size_of::<tcuda_sanitizer_report_t>(),
                    kind: found.kind as i32,
                    unused: 0,
                    text: text.as_ptr(),
                    json: json.as_ptr(),
                };
                unsafe { function(&report, user_data.0) }
            })
        }));
        Ok(())
    })
}
