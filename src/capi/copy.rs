//! Copies
//!
//! Between any two places: pageable host memory, pinned host memory, devices; where an address lies is found out. A size of 0 is success
//! whatever the pointers are. A pointer that is NULL, or a range that wraps around, is TCUDA_ERROR_INVALID_ARGUMENT; one that
//! lies, or a range that ends, where neither host nor device has memory is TCUDA_ERROR_INVALID_POINTER, as far as that can be told; so is a
//! range that reaches past the end of its block of tcuda's cache. Ranges of device memory that overlap are TCUDA_ERROR_INVALID_ARGUMENT, but for
//! a range onto itself, of which nothing is done. A block of a memory pool that is paused is TCUDA_ERROR_INVALID_STATE. Blocks that are freed
//! while a copy is under way are reused only when it is done.

use super::guard::guard;
use super::structs::tcuda_stream_t;
use crate::base::status::tcuda_status_t;
use crate::copy;
use std::ffi::c_void;

/// Copies on the current stream of the device concerned (torch's Tensor.copy_(src, non_blocking) for plain bytes).
///
/// Between two devices it runs on the current stream of the source's device (cudaMemcpyPeerAsync, with or without access), after what the
/// current stream of the destination's device has got before, which in turn waits for the copy. Copies on devices never make the host
/// wait. Between device and host it returns when the copy is complete, unless `non_blocking`. Into pageable memory it is complete on
/// return in any case; out of pageable memory it may have been staged only. Host to host is done at once; the ranges may overlap.
///
/// @param dst             where to.
/// @param src             where from.
/// @param size            bytes.
/// @param non_blocking    whether to return before pinned memory was written or read; it has to stay until the stream has come past it.
/// @return TCUDA_ERROR_CAPTURE: for pageable memory while the stream is being captured, which goes on without the copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_copy(dst: *mut c_void, src: *const c_void, size: usize, non_blocking: bool) -> tcuda_status_t {
    guard("tcuda_copy", || copy::copy(dst as usize, src as usize, size, non_blocking))
}

/// Enqueues a copy on a stream (cudaMemcpyAsync with cudaMemcpyDefault). It does not wait, but for pageable host memory: into that it returns
/// when all that the stream has is done, the copy too; out of it when CUDA has copied or staged the bytes. Pinned memory has to stay until the
/// stream has come past the copy, and so has pageable memory where the device uses that by itself (pageable_memory_access) and CUDA need not
/// wait. A block of another device than the stream's is not kept from being reused when it is freed meanwhile: tcuda_copy does that.
///
/// @param dst       where to.
/// @param src       where from.
/// @param size      bytes.
/// @param stream    of any device; NULL is the default stream of the source's device, else of the destination's, else of the current one.
/// @return TCUDA_ERROR_CAPTURE: for pageable memory while the stream is being captured, which goes on without the copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_copy_async(dst: *mut c_void, src: *const c_void, size: usize, stream: tcuda_stream_t) -> tcuda_status_t {
    guard("tcuda_copy_async", || copy::copy_async(dst as usize, src as usize, size, stream as usize))
}

/// Enqueues the setting of bytes of device or pinned memory (cudaMemsetAsync).
///
/// @param dst       where.
/// @param value     its low byte is written.
/// @param size      bytes.
/// @param stream    of the memory's device (for pinned and managed memory of any device); NULL is the default stream there.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: also where dst is pageable host memory, or the stream is of another device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memset_async(dst: *mut c_void, value: i32, size: usize, stream: tcuda_stream_t) -> tcuda_status_t {
    guard("tcuda_memset_async", || copy::memset_async(dst as usize, value, size, stream as usize))
}
