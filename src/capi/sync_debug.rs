//! Synchronization debug mode
//!
//! Finds the calls that make the host wait for a device. In the mode warn each is told, with the call of tcuda, the call of CUDA in it, how
//! long it took and what the thread said that it is doing (tcuda_memory_annotate): to the function of tcuda_sync_debug_set_callback, else
//! to the log. In the mode error it fails instead, before anything was done, with TCUDA_ERROR_INVALID_STATE. torch covers copies and streams;
//! here it is every call that waits: for a stream, an event or a device, also where an allocation would have to; copies that wait; and
//! what makes the driver wait when it gives memory or takes it back (cudaMalloc, cudaFree, pinned memory, modules). That last sort is told
//! and counted in the mode error too, but not refused, since memory would be lost. A call that finds all done waits no less. tcuda_shutdown is
//! never refused.
//!
//! TCUDA_SYNC_DEBUG sets the mode at the start: default, warn or error. While it is off it costs one read of a word.

use super::guard::{Out, guard_always};
use super::structs::{Growing, StructOut, UserData};
use super::text::c_text;
use crate::base::status::tcuda_status_t;
use crate::base::sync_debug::{self, Blocked};
use crate::base::{annotation, process};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// A wait. The texts hold for the length of the call.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_sync_t {
    /// What this library fills; later versions fill more.
    pub struct_size: usize,
    /// The function of tcuda that the program called.
    pub function: *const c_char,
    /// What of CUDA it called.
    pub call: *const c_char,
    /// The thread's annotation; empty: none.
    pub annotation: *const c_char,
    /// How long it took; 0 if it was refused.
    pub nanoseconds: u64,
    /// 1: it was refused.
    pub refused: i32,
    pub unused: i32,
}

/// Told of a wait, on the thread that waited, before its call of tcuda returns and with no lock held. It may call tcuda; what waits in it is
/// not told. A C++ exception or longjmp must not leave it.
#[allow(non_camel_case_types)]
pub type tcuda_sync_fn_t = Option<unsafe extern "C" fn(sync: *const tcuda_sync_t, user_data: *mut c_void)>;

/// What was seen while the mode was not the default one.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct tcuda_sync_stats_t {
    pub struct_size: usize,
    /// Calls of CUDA that made the host wait: one of tcuda may make several.
    pub num_waits: u64,
    /// Calls of CUDA that were refused, likewise.
    pub num_refused: u64,
    /// All of the waits together.
    pub nanoseconds: u64,
    pub longest_nanoseconds: u64,
}
unsafe impl Growing for tcuda_sync_stats_t {}

fn tell(function: unsafe extern "C" fn(*const tcuda_sync_t, *mut c_void), user_data: &UserData, blocked: &Blocked) {
    let (name, call) = (c_text(blocked.function), c_text(blocked.call));
    let sync = tcuda_sync_t {
        struct_size: size_of::<tcuda_sync_t>(),
        function: name.as_ptr(),
        call: call.as_ptr(),
        annotation: annotation::c_text(blocked.annotation),
        nanoseconds: u64::try_from(blocked.time.as_nanos()).unwrap_or(u64::MAX),
        refused: i32::from(blocked.refused),
        unused: 0,
    };
    unsafe { function(&sync, user_data.0) }
}

/// Sets the mode of the process (torch.cuda.set_sync_debug_mode), which goes before that of TCUDA_SYNC_DEBUG.
///
/// @param mode TCUDA_SYNC_DEFAULT, TCUDA_SYNC_WARN or TCUDA_SYNC_ERROR: 0, 1, 2 as torch's.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_set_sync_debug_mode(mode: i32) -> tcuda_status_t {
    guard_always("tcuda_set_sync_debug_mode", || {
        process::refuse_forked()?;
        sync_debug::set(sync_debug::parse(mode)?);
        Ok(())
    })
}

/// The mode of the process (torch.cuda.get_sync_debug_mode).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_sync_debug_mode(mode: *mut i32) -> tcuda_status_t {
    guard_always("tcuda_get_sync_debug_mode", || {
        Out::new(mode, "mode")?.write(sync_debug::global() as i32);
        Ok(())
    })
}

/// Sets the mode of the calling thread, which goes before that of the process and ends with the thread.
///
/// @param mode as tcuda_set_sync_debug_mode's; TCUDA_SYNC_FOLLOW (-1): that of the process, as at first.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_set_thread_sync_debug_mode(mode: i32) -> tcuda_status_t {
    guard_always("tcuda_set_thread_sync_debug_mode", || {
        process::refuse_forked()?;
        sync_debug::set_own(sync_debug::parse_own(mode)?)
    })
}

/// The mode of the calling thread; TCUDA_SYNC_FOLLOW: it has none of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_thread_sync_debug_mode(mode: *mut i32) -> tcuda_status_t {
    guard_always("tcuda_get_thread_sync_debug_mode", || {
        Out::new(mode, "mode")?.write(sync_debug::own());
        Ok(())
    })
}

/// Has a function told of each wait and refusal, instead of the log; NULL brings the log back. A wait that another thread tells of at that
/// moment may still go to the function before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sync_debug_set_callback(function: tcuda_sync_fn_t, user_data: *mut c_void) -> tcuda_status_t {
    guard_always("tcuda_sync_debug_set_callback", || {
        process::refuse_forked()?;
        let user_data = UserData(user_data);
        sync_debug::set_function(
            function.map(|function| -> sync_debug::Function { Arc::new(move |blocked| tell(function, &user_data, blocked)) }),
        );
        Ok(())
    })
}

/// What was seen so far, on all threads whose mode was not the default one.
///
/// @param stats struct_size has to be set; gets the figures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sync_debug_stats(stats: *mut tcuda_sync_stats_t) -> tcuda_status_t {
    guard_always("tcuda_sync_debug_stats", || {
        let out = unsafe { StructOut::new(stats, "stats") }?;
        let figures = sync_debug::figures();
        out.write(&tcuda_sync_stats_t {
            struct_size: 0,
            num_waits: figures.waits,
            num_refused: figures.refused,
            nanoseconds: figures.nanoseconds,
            longest_nanoseconds: figures.longest,
        });
        Ok(())
    })
}

/// Sets the figures of tcuda_sync_debug_stats to zero.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_sync_debug_reset_stats() -> tcuda_status_t {
    guard_always("tcuda_sync_debug_reset_stats", || {
        sync_debug::reset_figures();
        Ok(())
    })
}
