//! Pinned host memory
//!
//! A cache of pinned host memory (torch's caching host allocator, `pin_memory`): memory of the host that every device reaches by itself, so
//! that copies run beside the host. Sizes are rounded up to whole pages of 4 KiB, below that to 512 bytes; segments of the driver are cut
//! and joined again. It belongs to no device and no stream, and any thread may free any block.
//!
//! The host writes this memory as soon as it has it. So a block that streams use is given out again only when each of them is past what it
//! had got until the free, and that holds for the stream that used it last too (device memory can go back to its own stream at once).
//! tcuda's copies and tensors note their use by themselves; everything else is made known with tcuda_host_record_stream. What a graph
//! uses lasts until it is reset; a use by a stream that another library captures until that capture ends: it has to stay allocated.
//!
//! Options of TCUDA_ALLOC_CONF begin with `pinned_`; docs/PINNED.md has them.

use super::guard::{Out, guard, guard_bytes, guard_destroy, guard_out, guard_value};
use super::memory::{stat_by_key, stat_key, stat_out, tcuda_stat_t};
use super::structs::{Growing, StructOut, tcuda_stream_t};
use crate::base::status::tcuda_status_t;
use crate::memory::pinned::{self, stats::HostStats, stats::Times};
use crate::stream;
use once_cell::race::OnceBox;
use std::ffi::{c_char, c_void};

// The header has them by hand, as CUDA's bits.
const _: () = assert!(pinned::IO_MEMORY == 4 && pinned::READ_ONLY == 8);

/// Times of calls of the driver, in microseconds.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct tcuda_host_time_t {
    pub total: i64,
    pub max: i64,
    pub min: i64,
    pub count: i64,
    pub avg: i64,
}

/// torch.cuda.host_memory_stats. Sizes are bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct tcuda_host_memory_stats_t {
    pub struct_size: usize,
    /// Segments held from the driver.
    pub allocations: tcuda_stat_t,
    /// Held from the driver.
    pub allocated_bytes: tcuda_stat_t,
    /// Blocks between allocation and the end of all their uses.
    pub active_requests: tcuda_stat_t,
    pub active_bytes: tcuda_stat_t,
    pub num_host_alloc: i64,
    pub num_host_free: i64,
    pub host_alloc_time: tcuda_host_time_t,
    pub host_free_time: tcuda_host_time_t,
}
unsafe impl Growing for tcuda_host_memory_stats_t {}
const _: () = assert!(size_of::<tcuda_host_memory_stats_t>() == 232);

fn time_out(times: &Times) -> tcuda_host_time_t {
    tcuda_host_time_t { total: times.total, max: times.max, min: times.min, count: times.count, avg: times.average() }
}

fn stats_out(stats: &HostStats) -> tcuda_host_memory_stats_t {
    tcuda_host_memory_stats_t {
        struct_size: 0,
        allocations: stat_out(&stats.allocations),
        allocated_bytes: stat_out(&stats.allocated_bytes),
        active_requests: stat_out(&stats.active_requests),
        active_bytes: stat_out(&stats.active_bytes),
        num_host_alloc: stats.num_host_alloc,
        num_host_free: stats.num_host_free,
        host_alloc_time: time_out(&stats.host_alloc_time),
        host_free_time: time_out(&stats.host_free_time),
    }
}

/// Allocates pinned host memory from the cache (torch.empty(..., pin_memory=True), cudaHostAlloc). What it holds is not defined.
///
/// @param ptr  gets the address: a multiple of 4096, below a page of 512; tcuda_host_free_cached gives the block back. NULL for
///             size 0.
/// @param size bytes.
/// @return TCUDA_ERROR_OUT_OF_HOST_MEMORY when the limit or the machine has no room, after the streams that use freed blocks were waited
///         for and all free memory was given back. Other errors are the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_host_malloc_cached(ptr: *mut *mut c_void, size: usize) -> tcuda_status_t {
    if !ptr.is_null()
        && let Some(address) = pinned::allocate_at_hand(size)
    {
        unsafe { ptr.write(address as *mut c_void) };
        return tcuda_status_t::TCUDA_SUCCESS;
    }
    unsafe { host_malloc_cached(ptr, size) }
}

/// A function of C's kind, so that the way above has no unwinding to prepare for.
#[inline(never)]
unsafe extern "C" fn host_malloc_cached(ptr: *mut *mut c_void, size: usize) -> tcuda_status_t {
    guard_bytes("tcuda_host_malloc_cached", Some(size), || {
        let out = Out::new(ptr, "ptr")?;
        out.write(pinned::allocate(size)? as *mut c_void);
        Ok(())
    })
}

/// Gives a block of tcuda_host_malloc_cached back. From any thread, also while a host function runs: nothing is asked of the driver.
/// After tcuda_shutdown it does nothing.
///
/// @param ptr start of a block; NULL does nothing.
/// @return TCUDA_ERROR_INVALID_POINTER for anything that is not the start of a block in use; nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_host_free_cached(ptr: *mut c_void) -> tcuda_status_t {
    if pinned::free_at_hand(ptr as usize) { tcuda_status_t::TCUDA_SUCCESS } else { unsafe { host_free_cached(ptr) } }
}

#[inline(never)]
unsafe extern "C" fn host_free_cached(ptr: *mut c_void) -> tcuda_status_t {
    guard_destroy("tcuda_host_free_cached", ptr, || pinned::free(ptr as usize))
}

/// Notes that a stream uses a block (torch's CachingHostAllocator_recordEvent). When the block is freed, it is given out again only after
/// the work that the stream had been given until then. Costs no call of the driver, neither now nor at the free, unless graphs are being captured:
/// then the driver says whether the stream is, and where it fails to, that is the answer, with the use noted but nothing kept for a graph.
///
/// @param ptr    an address in a block; NULL does nothing. Memory of somebody else is TCUDA_ERROR_INVALID_POINTER.
/// @param stream of any device; NULL: the default stream of the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_host_record_stream(ptr: *mut c_void, stream: tcuda_stream_t) -> tcuda_status_t {
    guard_destroy("tcuda_host_record_stream", ptr, || pinned::record_stream(ptr as usize, stream::resolve(stream as usize)?))
}

/// Gives all free pinned memory back to the driver (torch's CachingHostAllocator_emptyCache). Waits for the streams that use freed blocks;
/// what a capturing stream uses stays. The driver waits for all devices when it takes pinned memory back.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_host_empty_cache() -> tcuda_status_t {
    guard("tcuda_host_empty_cache", pinned::empty_cache)
}

/// All statistics of pinned memory (torch.cuda.host_memory_stats). All zero before the first allocation. Figures are exact while no thread
/// allocates or frees; the peaks of what is active are exact while one thread does. What streams used is active until it was found out that they are
/// done, which the next allocations do, not this call.
///
/// @param stats struct_size has to be set; gets the figures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_host_memory_stats(stats: *mut tcuda_host_memory_stats_t) -> tcuda_status_t {
    guard("tcuda_host_memory_stats", || {
        let out = unsafe { StructOut::new(stats, "stats") }?;
        out.write(&stats_out(&pinned::stats()));
        Ok(())
    })
}

/// One figure by torch's key, such as `active_bytes.current` or `host_alloc_time.avg`. tcuda_host_memory_stat_key lists the keys; `segment.*`,
/// `reserved_bytes.*` and `allocation.*`, as torch 2.7 had them, are `allocations.*`, `allocated_bytes.*` and `active_requests.*`.
///
/// @param value gets the figure; bytes, a count or microseconds.
/// @return TCUDA_ERROR_INVALID_ARGUMENT for an unknown key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_host_memory_stat_get(value: *mut i64, key: *const c_char) -> tcuda_status_t {
    guard("tcuda_host_memory_stat_get", || {
        let known = "tcuda_host_memory_stat_key lists them; one is active_bytes.current.";
        unsafe { stat_by_key(value, key, known, |key| Ok(pinned::stats().by_key(key))) }
    })
}

/// The keys of tcuda_host_memory_stat_get, sorted: index 0, 1, ... until NULL. Never freed, never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_host_memory_stat_key(index: i32) -> *const c_char {
    static KEYS: OnceBox<Vec<String>> = OnceBox::new();
    guard_value("tcuda_host_memory_stat_key", std::ptr::null(), || Ok(stat_key(index, &KEYS, || HostStats::default().flat())))
}

/// Every peak becomes the current figure (torch.cuda.reset_peak_host_memory_stats).
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_reset_peak_host_memory_stats() -> tcuda_status_t {
    guard("tcuda_reset_peak_host_memory_stats", || {
        pinned::reset_peak_stats();
        Ok(())
    })
}

/// Every sum over time, counter and time becomes 0 (torch.cuda.reset_accumulated_host_memory_stats).
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_reset_accumulated_host_memory_stats() -> tcuda_status_t {
    guard("tcuda_reset_accumulated_host_memory_stats", || {
        pinned::reset_accumulated_stats();
        Ok(())
    })
}

/// Limits what the cache of pinned memory holds; also `pinned_limit_mb` of TCUDA_ALLOC_CONF, the later counts. Less than is held: nothing
/// is taken from the driver until enough went back.
///
/// @param bytes UINT64_MAX: no limit.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_host_set_memory_limit(bytes: u64) -> tcuda_status_t {
    guard("tcuda_host_set_memory_limit", || pinned::set_limit((bytes != u64::MAX).then_some(bytes as usize)))
}

/// The limit in bytes, however it was set; UINT64_MAX without one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_host_get_memory_limit(bytes: *mut u64) -> tcuda_status_t {
    guard_out("tcuda_host_get_memory_limit", bytes, "bytes", || Ok(pinned::limit()?.map_or(u64::MAX, |limit| limit as u64)))
}

/// Pins memory of the program where it lies, for every device (cudaHostRegister). It has to stay until tcuda_host_unregister.
///
/// @param ptr   where it begins; need not be the start of a page.
/// @param size  bytes, at least 1.
/// @param flags 0, or TCUDA_HOST_REGISTER_*. CUDA's bits for portable and mapped are taken, and hold in any case.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: also where some of it is registered already, or is tcuda's own or a device's; the message says
///         what it meets. TCUDA_ERROR_INVALID_POINTER: there is no memory. Else the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_host_register(ptr: *mut c_void, size: usize, flags: u32) -> tcuda_status_t {
    guard("tcuda_host_register", || pinned::register(ptr as usize, size, flags))
}

/// Ends what tcuda_host_register began (cudaHostUnregister). The driver waits for all devices. tcuda_shutdown does it for what is left, and
/// afterwards this does nothing.
///
/// @param ptr as it was registered; NULL does nothing.
/// @return TCUDA_ERROR_INVALID_POINTER for anything else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_host_unregister(ptr: *mut c_void) -> tcuda_status_t {
    guard_destroy("tcuda_host_unregister", ptr, || pinned::unregister(ptr as usize))
}

/// Whether an address is in pinned host memory, whoever pinned it (Tensor.is_pinned): false for device memory, plain host memory and NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_is_pinned(is_pinned: *mut bool, ptr: *const c_void) -> tcuda_status_t {
    guard_out("tcuda_is_pinned", is_pinned, "is_pinned", || pinned::is_pinned(ptr as usize))
}
