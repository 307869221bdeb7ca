//! Version
//!
//! The macros TCUDA_VERSION_* are of the header a program was compiled with; these functions are of the library that is loaded.

use super::guard::{guard_always, guard_out, guard_value, lasting};
use super::text::TextOut;
use crate::base::status::tcuda_status_t;
use crate::runtime;
use std::ffi::c_char;

/// The version of the loaded library: major * 10000 + minor * 100 + patch, as TCUDA_VERSION_NUMBER. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0);
    part(env!("CARGO_PKG_VERSION_MAJOR")) * 10000 + part(env!("CARGO_PKG_VERSION_MINOR")) * 100 + part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// `0.1.0 (cuda, runtime 13.0, driver 13.1)`: the version, the backend in use and its versions; `(not initialized)` before anything
/// was used. The text is never freed. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_version_string() -> *const c_char {
    guard_value("tcuda_version_string", c"".as_ptr(), || {
        let version = env!("CARGO_PKG_VERSION");
        if !runtime::is_initialized() {
            return Ok(lasting(&format!("{version} (not initialized)")));
        }
        let runtime = runtime::runtime()?;
        let dotted = |number: i32| format!("{}.{}", number / 1000, number % 1000 / 10);
        Ok(lasting(&format!(
            "{version} ({}, runtime {}, driver {})",
            runtime.name,
            dotted(runtime.version),
            dotted(runtime.driver_version)
        )))
    })
}

/// The version of the CUDA runtime in use, as cudaRuntimeGetVersion: 13000 for 13.0. The simulated device says which one it follows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_runtime_version(version: *mut i32) -> tcuda_status_t {
    guard_out("tcuda_runtime_version", version, "version", || Ok(runtime::runtime()?.version))
}

/// The newest CUDA version that the driver supports, as cudaDriverGetVersion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_driver_version(version: *mut i32) -> tcuda_status_t {
    guard_out("tcuda_driver_version", version, "version", || Ok(runtime::runtime()?.driver_version))
}

fn architectures(one: impl Fn(i32) -> String) -> String {
    runtime::kernels::architectures().iter().map(|number| one(*number)).collect::<Vec<_>>().join(" ")
}

/// What tcuda's own kernels are compiled for (torch.cuda.get_arch_list): `compute_75 compute_80`. All of it is PTX, which each device of that
/// compute capability or a later one takes. Needs no device (torch lists nothing where there is none).
///
/// @param text   gets the names with spaces between them and a terminating zero; NULL with capacity 0 asks for the size only.
/// @param needed gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_arch_list(text: *mut c_char, capacity: usize, needed: *mut usize) -> tcuda_status_t {
    guard_always("tcuda_get_arch_list", || {
        TextOut::new(text, capacity, needed)?.write(&architectures(|number| format!("compute_{number}")))
    })
}

/// The same as flags of nvcc (torch.cuda.get_gencode_flags), for kernels of a program that shall run where tcuda's do. torch writes
/// `compute=` where nvcc wants `arch=`.
///
/// @param text   gets the flags with a terminating zero; NULL with capacity 0 asks for the size only.
/// @param needed gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_gencode_flags(text: *mut c_char, capacity: usize, needed: *mut usize) -> tcuda_status_t {
    guard_always("tcuda_get_gencode_flags", || {
        let flag = |number| format!("-gencode arch=compute_{number},code=compute_{number}");
        TextOut::new(text, capacity, needed)?.write(&architectures(flag))
    })
}
