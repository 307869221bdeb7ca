//! Memory pressure
//!
//! When the cache of a device can satisfy a request neither from what is free nor from the driver, it climbs a ladder: it waits for other
//! streams, then gives all free memory back to the driver, then fails. Before each of these steps the pressure callbacks are asked, one
//! after the other in the order in which they came. One that freed something says so, and the request is tried again; only if that was not
//! enough is the next one asked. Each is asked once for a step, and once more before memory goes back where one freed something before the
//! failure: so free what is wanted at once. Nobody is asked while the allocating stream is being captured, nor for more than all memory of
//! the device (unless it comes from a pluggable allocator), nor beyond the limit with `throw_on_cudamalloc_oom:True`: these fail at once. The
//! observers are told of each failure.
//!
//! Both run on the thread that allocates, with no lock held, at times on several threads at once, and may call tcuda: free, allocate, empty
//! the cache, unregister. What they allocate comes without asking or telling anybody. Work may still use what they free, as with any free.
//! If they destroy the stream or the memory pool that the request is for, it fails with TCUDA_ERROR_INVALID_HANDLE. A C++ exception or
//! longjmp must not leave them. They stay registered over tcuda_shutdown.

use super::guard::{Out, guard, guard_always, null};
use super::structs::{UserData, tcuda_stream_t};
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result, Status, process};
use crate::memory::hooks::{self, List, OutOfMemory, Pressure};
use crate::stream;
use std::ffi::{CString, c_char, c_void};

/// What a pressure callback is told. Sizes are bytes.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_pressure_t {
    /// What this library fills; later versions fill more.
    pub struct_size: usize,
    /// What comes next if nobody frees enough: TCUDA_PRESSURE_WAIT, TCUDA_PRESSURE_GIVE_BACK or TCUDA_PRESSURE_FAIL.
    pub stage: i32,
    pub device: i32,
    /// The stream that the memory is for: what was freed on it helps at once, what was freed on others when it is past.
    pub stream: tcuda_stream_t,
    /// What is asked for.
    pub wanted: u64,
    /// Free on the device as the driver says; 0 if it does not say.
    pub free: u64,
    /// All memory of the device.
    pub total: u64,
    /// In blocks that are in use.
    pub allocated: u64,
    /// Held by the cache.
    pub reserved: u64,
    /// The most that the cache may hold; UINT64_MAX without a limit.
    pub limit: u64,
}

/// Asked for memory, best as much as is wanted at once; true: something was freed.
#[allow(non_camel_case_types)]
pub type tcuda_pressure_fn_t = Option<unsafe extern "C" fn(pressure: *const tcuda_pressure_t, user_data: *mut c_void) -> bool>;

/// What an observer is told of an allocation that fails. Sizes are bytes.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_oom_t {
    /// What this library fills; later versions fill more.
    pub struct_size: usize,
    pub device: i32,
    pub unused: i32,
    /// What is asked for (torch: the size of a segment for it).
    pub wanted: u64,
    /// Free on the device as the driver says; 0 if it does not say.
    pub free: u64,
    /// All memory of the device.
    pub total: u64,
    /// In blocks that are in use.
    pub allocated: u64,
    /// Held by the cache.
    pub reserved: u64,
    /// The most that the cache may hold; UINT64_MAX without a limit.
    pub limit: u64,
    /// The text of the error; holds for the length of the call.
    pub message: *const c_char,
}

/// Told of an allocation that fails, before the failing call returns.
#[allow(non_camel_case_types)]
pub type tcuda_oom_observer_fn_t = Option<unsafe extern "C" fn(oom: *const tcuda_oom_t, user_data: *mut c_void)>;

fn bytes(limit: Option<usize>) -> u64 {
    limit.map_or(u64::MAX, |limit| limit as u64)
}

fn pressure_out(pressure: &Pressure) -> tcuda_pressure_t {
    let memory = pressure.memory;
    tcuda_pressure_t {
        struct_size: size_of::<tcuda_pressure_t>(),
        stage: pressure.stage as i32,
        device: pressure.stream.device,
        stream: stream::handle_of(pressure.stream) as tcuda_stream_t,
        wanted: pressure.wanted as u64,
        free: memory.free.unwrap_or(0) as u64,
        total: memory.total as u64,
        allocated: memory.allocated as u64,
        reserved: memory.reserved as u64,
        limit: bytes(memory.limit),
    }
}

fn oom_out(oom: &OutOfMemory, message: &CString) -> tcuda_oom_t {
    let memory = oom.memory;
    tcuda_oom_t {
        struct_size: size_of::<tcuda_oom_t>(),
        device: oom.device,
        unused: 0,
        wanted: oom.wanted as u64,
        free: memory.free.unwrap_or(0) as u64,
        total: memory.total as u64,
        allocated: memory.allocated as u64,
        reserved: memory.reserved as u64,
        limit: bytes(memory.limit),
        message: message.as_ptr(),
    }
}

/// Registers a function that frees memory of the program's own when memory runs short: a cache that can be filled again, buffers that were
/// kept (torch: FreeMemoryCallback). The section's text says when and how it is called, and when it is not.
///
/// @param id        gets a number for tcuda_unregister_pressure_callback.
/// @param function  not NULL; the same function may be registered several times.
/// @param user_data goes to each call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_register_pressure_callback(
    id: *mut u64,
    function: tcuda_pressure_fn_t,
    user_data: *mut c_void,
) -> tcuda_status_t {
    guard("tcuda_register_pressure_callback", || {
        let out = Out::new(id, "id")?;
        let function = function.ok_or_else(|| null("function"))?;
        let user_data = UserData(user_data);
        out.write(hooks::PRESSURE.add(Box::new(move |pressure| {
            let user_data = &user_data;
            unsafe { function(&pressure_out(pressure), user_data.0) }
        })));
        Ok(())
    })
}

/// Ends a registration. On return the function is not called any more: calls of it that run on other threads are waited for, so what
/// they need must not be held here. Called inside a pressure callback, an observer or a
/// trace function it does not wait.
///
/// @return TCUDA_ERROR_INVALID_HANDLE: no pressure callback has this number.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_unregister_pressure_callback(id: u64) -> tcuda_status_t {
    guard_always("tcuda_unregister_pressure_callback", || {
        remove(&hooks::PRESSURE, id, "pressure callback", "tcuda_register_pressure_callback")
    })
}

/// Registers a function that is told when an allocation fails for want of memory (torch: attachOutOfMemoryObserver). The section's text says
/// how it is called. Requests of 2^60 bytes and more are refused without it, and not counted.
///
/// @param id        gets a number for tcuda_unregister_oom_observer.
/// @param function  not NULL; the same function may be registered several times.
/// @param user_data goes to each call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_register_oom_observer(
    id: *mut u64,
    function: tcuda_oom_observer_fn_t,
    user_data: *mut c_void,
) -> tcuda_status_t {
    guard("tcuda_register_oom_observer", || {
        let out = Out::new(id, "id")?;
        let function = function.ok_or_else(|| null("function"))?;
        let user_data = UserData(user_data);
        out.write(hooks::OBSERVERS.add(Box::new(move |oom| {
            let user_data = &user_data;
            if let Ok(message) = CString::new(oom.message.as_str()) {
                unsafe { function(&oom_out(oom, &message), user_data.0) };
            }
            true
        })));
        Ok(())
    })
}

/// Ends a registration, as tcuda_unregister_pressure_callback does.
///
/// @return TCUDA_ERROR_INVALID_HANDLE: no observer has this number.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_unregister_oom_observer(id: u64) -> tcuda_status_t {
    guard_always("tcuda_unregister_oom_observer", || remove(&hooks::OBSERVERS, id, "observer", "tcuda_register_oom_observer"))
}

fn remove<T>(list: &List<T>, id: u64, what: &str, maker: &str) -> Result<()> {
    process::refuse_forked()?;
    if list.remove(id) {
        return Ok(());
    }
    let text = format!("No {what} has the number {id}, or it was unregistered before. {maker} gives these numbers.");
    Err(Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text))
}
