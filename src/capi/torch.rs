//! PyTorch's allocator
//!
//! What torch.cuda.memory.CUDAPluggableAllocator and its set_* functions take, so that PyTorch's device memory comes from tcuda:
//! examples_c/python/tcuda_torch.py installs all of them. Everything else of tcuda works beside them on the same memory: statistics, summary,
//! snapshots, history, limits. Only PyTorch is to call these functions. Memory that cannot be had becomes torch.OutOfMemoryError, with tcuda's
//! message.

use super::cxx;
use super::guard::{guard, last_error};
use super::structs::tcuda_stream_t;
use crate::base::spared::Uncancelled;
use crate::base::status::tcuda_status_t;
use crate::base::{Result, Status, log, process};
use crate::stream::{self, Stream};
use crate::{device, memory};
use std::ffi::{CStr, c_void};

/// CUDAPluggableAllocator's alloc_fn.
///
/// @param size   bytes.
/// @param device of the stream.
/// @param stream NULL: the device's default stream.
/// @return the address. Where there is no memory it throws torch.OutOfMemoryError, other errors as RuntimeError; NULL where PyTorch is not
///         loaded, with the message in the log.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tcuda_torch_alloc(size: isize, device: i32, stream: tcuda_stream_t) -> *mut c_void {
    let raw = stream as usize;
    let handle = named(raw, device);
    let mut address = 0;
    let size = size as usize;
    if unsafe { memory::allocate_at_hand(&mut address, size, handle) } {
        return address as *mut c_void;
    }
    let status = apart("tcuda_torch_alloc", || {
        address = memory::allocate_for(size, 1, stream::resolve_on(raw, device)?, handle)?;
        Ok(())
    });
    raise(status);
    address as *mut c_void
}

/// The stream's handle whatever device is current. What can be no device has one that is no stream's, so that nothing of it is at hand.
fn named(raw: usize, device: i32) -> usize {
    match raw {
        0 | 1 if (0..stream::MOST_DEVICES).contains(&device) => stream::handle_of(Stream { device, raw: stream::DEFAULT }),
        0 | 1 => stream::NO_HANDLE,
        _ => raw,
    }
}

/// CUDAPluggableAllocator's free_fn. After tcuda_shutdown and in a child of fork it does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_torch_free(ptr: *mut c_void, size: isize, device: i32, stream: tcuda_stream_t) {
    // Its block knows them.
    let _ = (size, device, stream);
    let address = ptr as usize;
    if !memory::free_at_hand(address) && process::is_running() {
        tell(guard("tcuda_torch_free", || memory::free(address)));
    }
}

/// set_record_stream_fn: torch.Tensor.record_stream. Memory that is not tcuda's is left alone, as torch does.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_torch_record_stream(ptr: *mut c_void, stream: tcuda_stream_t) {
    let address = ptr as usize;
    if address != 0 && process::is_running() && memory::device_of(address).is_some() {
        tell(guard("tcuda_torch_record_stream", || {
            let stream = stream::resolve_on(stream as usize, memory::device_of_block(address)?)?;
            memory::record_stream(address, stream)
        }));
    }
}

/// set_memory_fraction_fn: torch.cuda.set_per_process_memory_fraction.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tcuda_torch_set_memory_fraction(fraction: f64, device: i32) {
    raise(apart("tcuda_torch_set_memory_fraction", || memory::set_fraction(fraction, device::resolve(device)?)));
}

/// set_reset_fn: torch.cuda.empty_cache.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tcuda_torch_empty_cache() {
    raise(apart("tcuda_torch_empty_cache", || memory::empty_cache(None)));
}

/// set_begin_allocate_to_pool: a graph's capture begins, or torch.cuda.use_mem_pool. What the streams that `filter` names allocate comes
/// from that pool until tcuda_torch_end_allocate_to_pool.
///
/// @param pool_first  the first half of torch's MempoolId_t.
/// @param pool_second the second one.
/// @param filter      `std::function<bool(cudaStream_t)>` of libstdc++, by reference. It is copied, and asked from any thread that allocates,
///                    with a lock held. It must not throw, nor its copy and its destructor: no exception can pass through tcuda, and the
///                    process ends. It must not call tcuda.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn tcuda_torch_begin_allocate_to_pool(device: i32, pool_first: u64, pool_second: u64, filter: *const c_void) {
    raise(apart("tcuda_torch_begin_allocate_to_pool", || {
        let filter = unsafe { cxx::Predicate::copy(filter) }?;
        let chooses = move |raw: usize| filter.ask(raw);
        memory::lent::begin(device::resolve(device)?, (pool_first, pool_second), Box::new(chooses))
    }));
}

/// set_end_allocate_to_pool_fn.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tcuda_torch_end_allocate_to_pool(device: i32, pool_first: u64, pool_second: u64) {
    raise(apart("tcuda_torch_end_allocate_to_pool", || memory::lent::end(device::resolve(device)?, (pool_first, pool_second))));
}

/// set_release_pool: a graph that used the pool is gone. With the last of them the pool's memory goes back, as its blocks are freed. After
/// tcuda_shutdown and in a child of fork it does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_torch_release_pool(device: i32, pool_first: u64, pool_second: u64) {
    if process::is_running() {
        tell(guard("tcuda_torch_release_pool", || memory::lent::release(device::resolve(device)?, (pool_first, pool_second))));
    }
}

/// `guard`, with nothing of it in the caller.
#[inline(never)]
fn apart(function: &'static str, body: impl FnOnce() -> Result<()>) -> tcuda_status_t {
    guard(function, body)
}

/// Where nothing may be thrown: from destructors.
#[inline(never)]
fn tell(status: tcuda_status_t) {
    if status != Status::TCUDA_SUCCESS {
        let _whole = Uncancelled::enter();
        let last = last_error();
        let (function, message) = unsafe { (CStr::from_ptr(last.function), CStr::from_ptr(last.message)) };
        log::warn(&format!("{}: {}", function.to_string_lossy(), message.to_string_lossy()));
    }
}

/// An error becomes PyTorch's exception. The library has an unwinder of its own, which cannot take part in C++'s: nothing may wait to be
/// dropped on the way, so what is fallible stands in functions of its own, that are not inlined.
fn raise(status: tcuda_status_t) {
    if status != Status::TCUDA_SUCCESS {
        let last = last_error();
        cxx::throw(status == Status::TCUDA_ERROR_OUT_OF_MEMORY, last.function, last.message);
        // PyTorch is not there.
        tell(status);
    }
}
