//! Errors
//!
//! Every call answers a tcuda_status_t. A call that fails also leaves a record of the failure with the calling thread: a text for
//! people (what was asked, what was found, what to do), CUDA's own code, the function, the device. Success does not clear the record,
//! so it can be read late. The texts belong to tcuda and hold until the thread's next failing call.

use super::guard::{self, guard_always, guard_early, guard_value, lasting};
use super::structs::{Growing, StructOut, UserData};
use super::text::c_text;
use crate::base::status::{self, tcuda_status_t};
use crate::base::{log, process};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// The last failure of a thread. Set `struct_size` before the call (TCUDA_ERROR_INFO_INIT).
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_error_info_t {
    pub struct_size: usize,
    /// A tcuda_status_t; TCUDA_SUCCESS when nothing has failed yet.
    pub status: i32,
    /// As tcuda_last_error_native.
    pub native: i32,
    /// The device it happened on, or -1.
    pub device: i32,
    pub reserved: i32,
    /// The bytes asked for or needed, where that means something.
    pub bytes: u64,
    /// The C function that failed. Never NULL.
    pub function: *const c_char,
    /// The text for people. Never NULL.
    pub message: *const c_char,
}
unsafe impl Growing for tcuda_error_info_t {}
const _: () = assert!(size_of::<tcuda_error_info_t>() == 48);

/// Gets a message of tcuda: level 1 error, 2 warning, 3 information. Called on whatever thread has something to say, at times on several
/// at once, with no lock held; tcuda may be called inside. The text holds for the length of the call. A C++ exception or longjmp must
/// not leave it.
#[allow(non_camel_case_types)]
pub type tcuda_log_fn_t = Option<unsafe extern "C" fn(level: i32, message: *const c_char, user_data: *mut c_void)>;

/// The constant's name, `TCUDA_ERROR_OUT_OF_MEMORY`; `TCUDA_ERROR_UNKNOWN` for a number that is no status. Never freed, never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_status_name(status: i32) -> *const c_char {
    guard_value("tcuda_status_name", c"".as_ptr(), || Ok(lasting(status::name(status).unwrap_or("TCUDA_ERROR_UNKNOWN"))))
}

/// A few words in English, `out of device memory`. What happened this time is in tcuda_last_error_message. Never freed, never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_status_message(status: i32) -> *const c_char {
    guard_value("tcuda_status_message", c"".as_ptr(), || Ok(lasting(status::text(status).unwrap_or("unknown status"))))
}

/// The text of the calling thread's last failure; empty when nothing has failed, never NULL. Holds until the thread's next failing
/// call.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_last_error_message() -> *const c_char {
    guard::last_error().message
}

/// The code of what failed last for the calling thread: of the CUDA runtime or driver, or of NCCL, NVML, cuBLAS, cuFFT or NVRTC where the
/// message names one of these; errno with TCUDA_ERROR_SYSTEM; 0 where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_last_error_native() -> i32 {
    guard::last_error().native
}

/// All that is known of the calling thread's last failure.
///
/// @return TCUDA_ERROR_INVALID_ARGUMENT: `info` is NULL or its struct_size is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_last_error(info: *mut tcuda_error_info_t) -> tcuda_status_t {
    guard_always("tcuda_last_error", || {
        let out = unsafe { StructOut::new(info, "info") }?;
        let last = guard::last_error();
        out.write(&tcuda_error_info_t {
            struct_size: 0,
            status: last.status as i32,
            native: last.native,
            device: last.device,
            reserved: 0,
            bytes: last.bytes,
            function: last.function,
            message: last.message,
        });
        Ok(())
    })
}

/// Sends tcuda's messages to `function` instead of stderr; NULL brings stderr back. A message that another thread is giving out at
/// that moment may still go to the function before. Without a function, TCUDA_LOG says what goes to stderr.
/// A child of fork that is refused writes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_set_log_callback(function: tcuda_log_fn_t, user_data: *mut c_void) -> tcuda_status_t {
    guard_early("tcuda_set_log_callback", || {
        guard::mind_forks();
        process::refuse_forked()?;
        let user_data = UserData(user_data);
        log::set_sink(function.map(|function| -> log::Sink {
            Arc::new(move |level, text| {
                let user_data = &user_data;
                unsafe { function(level as i32, c_text(text).as_ptr(), user_data.0) };
            })
        }));
        Ok(())
    })
}
