//! Libraries of CUDA
//!
//! Handles of cuBLAS, and plans of cuFFT, on tcuda's streams and memory. The libraries are looked up at the first of these calls, as the CUDA
//! runtime is (docs/LIBRARIES.md); one that the program has loaded is taken first. What they compute a program asks of them itself. Without the
//! library, and on the simulated device, which runs no machine code of GPUs: TCUDA_ERROR_NOT_SUPPORTED. An answer of the library that is no
//! success: TCUDA_ERROR_CUDA, or TCUDA_ERROR_OUT_OF_MEMORY, and tcuda_last_error_native has it.

use super::guard::{guard, guard_out, null};
use super::stream::resolve;
use super::structs::{self, tcuda_stream_t};
use super::text::TextOut;
use crate::base::status::tcuda_status_t;
use crate::libs::{blas, fft};
use crate::runtime::libraries::{Layout, Transform};
use crate::{device, stream};
use std::ffi::c_char;

/// Only ever a pointer to it: what cuBLAS calls by this name too.
#[allow(non_camel_case_types)]
pub enum cublasContext {}
/// cublasHandle_t. The header declares it by hand, so that it goes together with cuBLAS's own.
#[allow(non_camel_case_types)]
pub type tcuda_blas_handle_t = *mut cublasContext;

// The header has them by hand.
pub const TCUDA_CUFFT_C2C: i32 = 0x29;
pub const TCUDA_CUFFT_R2C: i32 = 0x2a;
pub const TCUDA_CUFFT_C2R: i32 = 0x2c;
pub const TCUDA_CUFFT_Z2Z: i32 = 0x69;
pub const TCUDA_CUFFT_D2Z: i32 = 0x6a;
pub const TCUDA_CUFFT_Z2D: i32 = 0x6c;

/// A transform, with the arguments of cufftMakePlanMany64. Plans are kept by it. Set it to TCUDA_CUFFT_TRANSFORM_INIT, then what is needed.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_cufft_transform_t {
    pub struct_size: usize,
    /// cufftType: TCUDA_CUFFT_C2C and the like.
    pub kind: i32,
    /// Dimensions: 1, 2 or 3.
    pub rank: i32,
    /// Elements of each dimension, the slowest first.
    pub n: [i64; 3],
    /// How many transforms at once.
    pub batch: i64,
    /// Elements of each dimension that the input lies in; all 0: it is packed, and the next two do not matter.
    pub input_embed: [i64; 3],
    /// Elements from one to the next in the fastest dimension.
    pub input_stride: i64,
    /// Elements from one transform's first to the next one's.
    pub input_distance: i64,
    pub output_embed: [i64; 3],
    pub output_stride: i64,
    pub output_distance: i64,
}
structs::input!(tcuda_cufft_transform_t: kind, rank, n, batch, input_embed, input_stride, input_distance, output_embed, output_stride, output_distance);
const _: () = assert!(size_of::<tcuda_cufft_transform_t>() == 128);

fn transform_of(t: &tcuda_cufft_transform_t) -> Transform {
    // What does not matter is no part of the key.
    let rank = usize::try_from(t.rank).unwrap_or(0);
    let of_rank = |numbers: [i64; 3]| std::array::from_fn(|at| if at < rank { numbers[at] } else { 0 });
    let layout = |embed, stride, distance| match of_rank(embed) {
        [0, 0, 0] => Layout { embed: [0; 3], stride: 0, distance: 0 },
        embed => Layout { embed, stride, distance },
    };
    Transform {
        kind: t.kind,
        rank,
        n: of_rank(t.n),
        batch: t.batch,
        input: layout(t.input_embed, t.input_stride, t.input_distance),
        output: layout(t.output_embed, t.output_stride, t.output_distance),
    }
}

/// A handle of cuBLAS for the calling thread and its current stream of the current device (torch.cuda.current_blas_handle).
///
/// Each thread has one for each stream. It works on that stream, with a workspace from the cache of CUBLAS_WORKSPACE_CONFIG's size, else 32 MiB
/// since compute capability 9.0 and 8.125 MiB before, until the thread ends or the stream is destroyed; do not give it another stream. After a
/// change of stream ask again: a look into a table. The handles of a stream that tcuda captures, or that joins a capture by a wait of tcuda, and
/// what is asked for on any stream that is captured, stay with their workspaces until tcuda_shutdown, since graphs may use them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_current_blas_handle(handle: *mut tcuda_blas_handle_t) -> tcuda_status_t {
    guard_out("tcuda_current_blas_handle", handle, "handle", || Ok(blas::handle(stream::current(device::CURRENT)?)? as tcuda_blas_handle_t))
}

/// The same for a stream that is named; its device is the handle's, which has to be current when the handle is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_blas_handle(handle: *mut tcuda_blas_handle_t, stream: tcuda_stream_t) -> tcuda_status_t {
    guard_out("tcuda_blas_handle", handle, "handle", || Ok(blas::handle(resolve(stream)?)? as tcuda_blas_handle_t))
}

/// Takes the calling thread's handles back, and frees their workspaces in the order of their streams (torch._C._cuda_clearCublasWorkspaces). The
/// thread asks anew before it uses cuBLAS again.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_blas_clear() -> tcuda_status_t {
    guard("tcuda_blas_clear", || {
        blas::clear();
        Ok(())
    })
}

/// The file that cuBLAS was loaded from, for programs that look its functions up.
///
/// @param text   gets the path with a terminating zero; NULL with capacity 0 asks for the size only.
/// @param needed gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_blas_library(text: *mut c_char, capacity: usize, needed: *mut usize) -> tcuda_status_t {
    guard("tcuda_blas_library", || {
        let out = TextOut::new(text, capacity, needed)?;
        out.write(&blas::library()?)
    })
}

/// A plan of cuFFT for a transform on a stream, kept from an earlier one or made (torch.backends.cuda.cufft_plan_cache). Its stream is set, and its
/// work area is a block of the cache. It is the caller's alone, for cufftExecC2C and the like with the stream's device current, until
/// tcuda_cufft_plan_cache_put.
///
/// @param plan gets the cufftHandle.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: no transform, or one that cuFFT does not have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_cufft_plan_cache_get(
    plan: *mut i32,
    transform: *const tcuda_cufft_transform_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard_out("tcuda_cufft_plan_cache_get", plan, "plan", || {
        let transform = unsafe { structs::read(transform, "transform") }?.ok_or_else(|| null("transform"))?;
        fft::get(&transform_of(&transform), resolve(stream)?)
    })
}

/// Puts a plan back, once all that it is executed for was enqueued on its stream, which may be gone. Others get it from then on. Where
/// there are more than the cache holds, the one that was used longest ago is destroyed, and what it was executed for is waited for; else
/// nothing is. A plan that was taken or put back while its stream was captured stays until tcuda_shutdown.
///
/// @return TCUDA_ERROR_INVALID_HANDLE: it is no plan of tcuda_cufft_plan_cache_get, or was put back.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_cufft_plan_cache_put(plan: i32) -> tcuda_status_t {
    guard("tcuda_cufft_plan_cache_put", || fft::put(plan))
}

/// How many plans a device has, those in use counted (cufft_plan_cache.size).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_cufft_plan_cache_size(size: *mut i64, device: i32) -> tcuda_status_t {
    guard_out("tcuda_cufft_plan_cache_size", size, "size", || fft::size(device))
}

/// How many plans a device may have (cufft_plan_cache.max_size): 4096 unless it was set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_cufft_plan_cache_max_size(max_size: *mut i64, device: i32) -> tcuda_status_t {
    guard_out("tcuda_cufft_plan_cache_max_size", max_size, "max_size", || fft::max_size(device))
}

/// Says how many plans a device may have; those that are too many are destroyed at once. 0: none is kept. More may be in use at one time.
///
/// @return TCUDA_ERROR_INVALID_ARGUMENT: below 0.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_cufft_plan_cache_set_max_size(max_size: i64, device: i32) -> tcuda_status_t {
    guard("tcuda_cufft_plan_cache_set_max_size", || fft::set_max_size(max_size, device))
}

/// Destroys a device's plans (cufft_plan_cache.clear), but for those in use and those that graphs use. Waits for what they were executed for.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_cufft_plan_cache_clear(device: i32) -> tcuda_status_t {
    guard("tcuda_cufft_plan_cache_clear", || fft::clear(device))
}

/// The file that cuFFT was loaded from, for programs that look its functions up.
///
/// @param text   gets the path with a terminating zero; NULL with capacity 0 asks for the size only.
/// @param needed gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_cufft_library(text: *mut c_char, capacity: usize, needed: *mut usize) -> tcuda_status_t {
    guard("tcuda_cufft_library", || {
        let out = TextOut::new(text, capacity, needed)?;
        out.write(&fft::library()?)
    })
}
