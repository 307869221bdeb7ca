//! Device memory
//!
//! A cache of device memory for each device (torch's caching allocator). A block follows the order of the stream that it was allocated
//! on: freed, it can be allocated again for that stream at once, and for others as soon as the work that was enqueued before the free
//! is done. Work on other streams is made known with tcuda_record_stream, or the block is freed on the stream that used it last.
//! Blocks start at multiples of 512 bytes. tcuda_free_cached needs neither the device nor the stream nor the thread of the allocation.
//!
//! The statistics have torch's names. Sizes are rounded up to 512 bytes; up to 1 MiB is small. A segment is a piece of physical memory
//! from the driver; free parts of one count as inactive_split only with plain segments (TCUDA_ALLOC_CONF=expandable_segments:False).

use super::guard::{Out, guard, guard_bytes, guard_destroy, guard_out, guard_value, lasting, null, text};
use super::structs::{Growing, StructOut, tcuda_stream_t};
use super::text::TextOut;
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result, process};
use crate::memory::Further;
use crate::memory::stats::{Family, Pool, Stat, Stats};
use crate::stream::Stream;
use crate::{device, memory, runtime, stream};
use once_cell::race::OnceBox;
use std::ffi::{c_char, c_void};

/// One figure over time.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct tcuda_stat_t {
    pub current: i64,
    pub peak: i64,
    /// The sum of all that was added.
    pub allocated: i64,
    /// The sum of all that was taken away.
    pub freed: i64,
}

/// A figure for all blocks, for the small (up to 1 MiB) and for the large ones.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct tcuda_pool_stat_t {
    pub all: tcuda_stat_t,
    pub small_pool: tcuda_stat_t,
    pub large_pool: tcuda_stat_t,
}

/// torch.cuda.memory_stats. Sizes are bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct tcuda_memory_stats_t {
    pub struct_size: usize,
    /// Blocks between allocation and free.
    pub allocation: tcuda_pool_stat_t,
    /// Pieces of physical memory from the driver.
    pub segment: tcuda_pool_stat_t,
    /// Blocks between allocation and the end of all their uses.
    pub active: tcuda_pool_stat_t,
    /// Free blocks that keep a plain segment from going back.
    pub inactive_split: tcuda_pool_stat_t,
    pub allocated_bytes: tcuda_pool_stat_t,
    /// Held from the driver.
    pub reserved_bytes: tcuda_pool_stat_t,
    pub active_bytes: tcuda_pool_stat_t,
    pub inactive_split_bytes: tcuda_pool_stat_t,
    /// As asked for, before rounding, of active blocks.
    pub requested_bytes: tcuda_pool_stat_t,
    /// torch's; always 0: blocks of any size are split.
    pub oversize_allocations: tcuda_stat_t,
    /// torch's; always 0.
    pub oversize_segments: tcuda_stat_t,
    /// Times that all free memory went back to the driver to make room.
    pub num_alloc_retries: i64,
    /// Times that an allocation failed for want of memory.
    pub num_ooms: i64,
    /// Times that streams were waited for to make room.
    pub num_sync_all_streams: i64,
    /// Segments that the driver made.
    pub num_device_alloc: i64,
    /// Segments that it took back.
    pub num_device_free: i64,
    /// torch's; -1: no limit.
    pub max_split_size: i64,
    /// Times that an allocation was refused at once for the limit (throw_on_cudamalloc_oom:True); num_ooms does not count them.
    pub num_oom_rejections: i64,
}
unsafe impl Growing for tcuda_memory_stats_t {}

pub(super) fn stat_out(stat: &Stat) -> tcuda_stat_t {
    tcuda_stat_t { current: stat.current, peak: stat.peak, allocated: stat.allocated, freed: stat.freed }
}

pub(super) fn stats_out(stats: &Stats) -> tcuda_memory_stats_t {
    let family = |family| tcuda_pool_stat_t {
        all: stat_out(stats.get(family, Pool::All)),
        small_pool: stat_out(stats.get(family, Pool::Small)),
        large_pool: stat_out(stats.get(family, Pool::Large)),
    };
    tcuda_memory_stats_t {
        struct_size: 0,
        allocation: family(Family::Allocation),
        segment: family(Family::Segment),
        active: family(Family::Active),
        inactive_split: family(Family::InactiveSplit),
        allocated_bytes: family(Family::AllocatedBytes),
        reserved_bytes: family(Family::ReservedBytes),
        active_bytes: family(Family::ActiveBytes),
        inactive_split_bytes: family(Family::InactiveSplitBytes),
        requested_bytes: family(Family::RequestedBytes),
        oversize_allocations: stat_out(&stats.oversize_allocations),
        oversize_segments: stat_out(&stats.oversize_segments),
        num_alloc_retries: stats.num_alloc_retries,
        num_ooms: stats.num_ooms,
        num_sync_all_streams: stats.num_sync_all_streams,
        num_device_alloc: stats.num_device_alloc,
        num_device_free: stats.num_device_free,
        max_split_size: -1,
        num_oom_rejections: stats.num_oom_rejections,
    }
}

/// The device whose figures are read; None before anything used a device, when all of them are 0. A lost device's can be read too.
fn device_to_read(device: i32) -> Result<Option<i32>> {
    match device {
        _ if !runtime::is_initialized() => Ok(None),
        0.. if device < device::count() => Ok(Some(device)),
        _ => device::resolve(device).map(Some),
    }
}

fn stats_of(device: i32) -> Result<Stats> {
    Ok(device_to_read(device)?.map_or_else(Stats::default, memory::stats))
}

/// NULL means the default stream of the block's device.
fn stream_of_block(pointer: *mut c_void, stream: tcuda_stream_t) -> Result<Stream> {
    stream::resolve_on(stream as usize, memory::device_of_block(pointer as usize)?)
}

/// Allocates device memory from the cache (torch.cuda.caching_allocator_alloc, cudaMallocAsync's order).
///
/// @param ptr    gets the address, a multiple of 512; tcuda_free_cached gives the block back. NULL for size 0.
/// @param size   bytes.
/// @param stream the stream that the memory will be used on first; its device is where the memory is.
/// @return TCUDA_ERROR_OUT_OF_MEMORY when the device, the limit or the fraction has no room, after everything free was reused or given
///         back (on a capturing stream: without waiting for anything). Other errors are the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_malloc_cached(ptr: *mut *mut c_void, size: usize, stream: tcuda_stream_t) -> tcuda_status_t {
    if ptr.is_null() {
        return unsafe { malloc_cached(ptr, size, stream) };
    }
    match unsafe { memory::malloc_at_once(ptr.cast(), size, stream as usize) } {
        Ok(()) => tcuda_status_t::TCUDA_SUCCESS,
        Err(further) => unsafe { malloc_cached_further(ptr, size, stream, further) },
    }
}

/// Functions of C's kind, so that the way above has no unwinding to prepare for.
#[inline(never)]
unsafe extern "C" fn malloc_cached_further(ptr: *mut *mut c_void, size: usize, stream: tcuda_stream_t, further: Further) -> tcuda_status_t {
    if unsafe { memory::malloc_further(ptr.cast(), size, stream as usize, further) } {
        return tcuda_status_t::TCUDA_SUCCESS;
    }
    unsafe { malloc_cached(ptr, size, stream) }
}

#[inline(never)]
unsafe extern "C" fn malloc_cached(ptr: *mut *mut c_void, size: usize, stream: tcuda_stream_t) -> tcuda_status_t {
    guard_bytes("tcuda_malloc_cached", Some(size), || {
        let out = Out::new(ptr, "ptr")?;
        let handle = stream as usize;
        out.write(memory::allocate_for(size, 1, stream::resolve(handle)?, handle)? as *mut c_void);
        Ok(())
    })
}

const MOST_ALIGNMENT: usize = 1 << 30;

/// tcuda_malloc_cached with an alignment.
///
/// @param alignment a power of two in bytes, at most 1 GiB; below 512 it is 512. With virtual memory it costs addresses, which other blocks
///                  find room in. A plain segment for it is larger by that much, where other blocks find room too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_malloc_cached_aligned(
    ptr: *mut *mut c_void,
    size: usize,
    alignment: usize,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard_bytes("tcuda_malloc_cached_aligned", Some(size), || {
        let out = Out::new(ptr, "ptr")?;
        if !alignment.is_power_of_two() || alignment > MOST_ALIGNMENT {
            return Err(Error::invalid_argument(format!("The alignment {alignment} is no power of two up to 1 GiB.")));
        }
        out.write(memory::allocate(size, alignment, stream::resolve(stream as usize)?)? as *mut c_void);
        Ok(())
    })
}

/// Allocates `count` blocks on a stream, all or none.
///
/// @param ptrs  gets `count` addresses; each is given back by itself, or by tcuda_free_cached_batch.
/// @param sizes `count` sizes in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_malloc_cached_batch(
    ptrs: *mut *mut c_void,
    sizes: *const usize,
    count: usize,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_malloc_cached_batch", || {
        if count == 0 {
            return Ok(());
        }
        check_count(count)?;
        Out::new(ptrs, "ptrs")?;
        if sizes.is_null() {
            return Err(null("sizes"));
        }
        let stream = stream::resolve(stream as usize)?;
        let sizes = unsafe { std::slice::from_raw_parts(sizes, count) };
        let blocks = memory::allocate_all(sizes, stream)?;
        for (index, block) in blocks.into_iter().enumerate() {
            unsafe { ptrs.add(index).write(block as *mut c_void) };
        }
        Ok(())
    })
}

/// More entries than memory could hold are a mistake of the caller.
fn check_count(count: usize) -> Result<()> {
    if count > isize::MAX as usize / 64 {
        return Err(Error::invalid_argument(format!("'count' is {count}: no array has that many entries.")));
    }
    Ok(())
}

/// Gives a block back (torch.cuda.caching_allocator_delete). From any thread, also while a host function runs (but for backend:cudaMallocAsync,
/// which calls the driver). After tcuda_shutdown it does nothing.
///
/// @param ptr start of a block; NULL does nothing.
/// @return TCUDA_ERROR_INVALID_POINTER for anything that is not the start of a block in use; nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_free_cached(ptr: *mut c_void) -> tcuda_status_t {
    match memory::free_at_once(ptr as usize) {
        Ok(()) => tcuda_status_t::TCUDA_SUCCESS,
        Err(further) => unsafe { free_cached_further(ptr, further) },
    }
}

#[inline(never)]
unsafe extern "C" fn free_cached_further(ptr: *mut c_void, further: Further) -> tcuda_status_t {
    if memory::free_further(ptr as usize, further) { tcuda_status_t::TCUDA_SUCCESS } else { unsafe { free_cached(ptr) } }
}

#[inline(never)]
unsafe extern "C" fn free_cached(ptr: *mut c_void) -> tcuda_status_t {
    guard_destroy("tcuda_free_cached", ptr, || memory::free(ptr as usize))
}

/// Gives a block back that was used on `stream` last: it can be allocated again for that stream at once, elsewhere when safe. The program
/// has ordered its uses on other streams before (cudaFreeAsync's order), and `stream` behind what the block's own stream had been given when
/// it was allocated, also if the block was not used: its memory may have been in use there.
///
/// @param stream a stream of the block's device; NULL: that device's default stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_free_cached_on(ptr: *mut c_void, stream: tcuda_stream_t) -> tcuda_status_t {
    guard_destroy("tcuda_free_cached_on", ptr, || memory::free_on(ptr as usize, stream_of_block(ptr, stream)?))
}

/// Gives `count` blocks back; NULLs are left out. Pointers that are no blocks do not keep the others from being freed.
///
/// @return the error of the first pointer that is no block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_free_cached_batch(ptrs: *const *mut c_void, count: usize) -> tcuda_status_t {
    if process::is_shut_down() {
        return tcuda_status_t::TCUDA_SUCCESS;
    }
    guard("tcuda_free_cached_batch", || {
        if count == 0 {
            return Ok(());
        }
        if ptrs.is_null() {
            return Err(null("ptrs"));
        }
        check_count(count)?;
        let pointers = unsafe { std::slice::from_raw_parts(ptrs, count) };
        let mut first = Ok(());
        for (index, pointer) in pointers.iter().enumerate() {
            let freed = memory::free(*pointer as usize).map_err(|error| error.context(format_args!("'ptrs' at {index}")));
            first = first.and(freed);
        }
        first
    })
}

/// Notes that a stream uses a block of another stream (Tensor.record_stream). When the block is freed, it is allocated again only after
/// the work that this stream had been given until then. Costs nothing before the free.
///
/// @param ptr    start of a block; NULL does nothing. Memory of somebody else is an error (torch ignores it).
/// @param stream a stream of the block's device (torch takes any); NULL: that device's default stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_record_stream(ptr: *mut c_void, stream: tcuda_stream_t) -> tcuda_status_t {
    guard_destroy("tcuda_record_stream", ptr, || memory::record_stream(ptr as usize, stream_of_block(ptr, stream)?))
}

/// Gives all free memory of the cache back to the driver (torch.cuda.empty_cache); what memory pools have free is theirs. Waits for the
/// streams that freed or used free blocks, for the whole device where one of them is gone; what a capturing stream freed stays. Does nothing
/// before the first allocation. Memory of pools and graphs that were destroyed goes with it.
///
/// @param device -1: the current one; TCUDA_DEVICE_ALL: all.
/// @return the first failure, when all else went back. What failed stays for the next time.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_empty_cache(device: i32) -> tcuda_status_t {
    guard("tcuda_empty_cache", || {
        if device == device::ALL {
            return memory::empty_cache(None);
        }
        device_to_read(device)?.map_or(Ok(()), |device| memory::empty_cache(Some(device)))
    })
}

/// All statistics of a device (torch.cuda.memory_stats). All zero before the first allocation. Figures are exact when no thread allocates or
/// frees at the moment; peaks while one thread does, and nearly so while several do (docs/MEMORY.md says how near). Holds up no thread, but where
/// a block that waited for another stream is found free, or such a stream is to be marked for the first time.
///
/// @param stats  struct_size has to be set; gets the figures.
/// @param device -1: the current one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_stats(stats: *mut tcuda_memory_stats_t, device: i32) -> tcuda_status_t {
    guard("tcuda_memory_stats", || {
        let out = unsafe { StructOut::new(stats, "stats") }?;
        out.write(&stats_out(&stats_of(device)?));
        Ok(())
    })
}

/// One figure by torch's key, such as `allocated_bytes.all.peak` or `num_ooms`. tcuda_memory_stat_key lists the keys; `allocated.*`, as
/// torch 1.8 had it in its documentation, is `allocation.*`. Not in the list, since they come and go with their pools:
/// `reserved_bytes_by_private_pools.0_12.all.current` is of the pool (0, 12), a memory pool (tcuda_mem_pool_id) or one of graphs.
///
/// @param value  gets the figure; bytes or a count.
/// @param device -1: the current one.
/// @return TCUDA_ERROR_INVALID_ARGUMENT for an unknown key, or a pool that the device does not have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_stat_get(value: *mut i64, device: i32, key: *const c_char) -> tcuda_status_t {
    guard("tcuda_memory_stat_get", || {
        let known = "tcuda_memory_stat_key lists them; one is allocated_bytes.all.current.";
        unsafe {
            stat_by_key(value, key, known, |key| {
                Ok(device_to_read(device)?.map_or_else(|| Stats::default().by_key(key), |device| memory::stat(key, device)))
            })
        }
    })
}

/// One figure by its key. `known`: which there are.
pub(super) unsafe fn stat_by_key(
    value: *mut i64,
    key: *const c_char,
    known: &str,
    figure: impl FnOnce(&str) -> Result<Option<i64>>,
) -> Result<()> {
    let out = Out::new(value, "value")?;
    let key = unsafe { text(key, "key") }?;
    out.write(figure(key)?.ok_or_else(|| Error::invalid_argument(format!("There is no statistic '{key}'. {known}")))?);
    Ok(())
}

/// A key by its index; NULL: there is none.
pub(super) fn stat_key(index: i32, keys: &'static OnceBox<Vec<String>>, figures: impl FnOnce() -> Vec<(String, i64)>) -> *const c_char {
    let keys = keys.get_or_init(|| Box::new(figures().into_iter().map(|(key, _)| key).collect()));
    let key = usize::try_from(index).ok().and_then(|index| keys.get(index));
    key.map_or(std::ptr::null(), |key| lasting(key))
}

/// The keys of tcuda_memory_stat_get, sorted: index 0, 1, ... until NULL. Never freed, never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_memory_stat_key(index: i32) -> *const c_char {
    static KEYS: OnceBox<Vec<String>> = OnceBox::new();
    guard_value("tcuda_memory_stat_key", std::ptr::null(), || Ok(stat_key(index, &KEYS, || Stats::default().flat())))
}

/// torch.cuda.memory_summary: a table for people, with rows for memory pools and those of graphs.
///
/// @param text        gets the table with a terminating zero; NULL with capacity 0 asks for the size only.
/// @param needed      gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
/// @param device      -1: the current one.
/// @param abbreviated without the rows of the small and the large pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_summary(
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
    device: i32,
    abbreviated: bool,
) -> tcuda_status_t {
    guard("tcuda_memory_summary", || {
        let out = TextOut::new(text, capacity, needed)?;
        let shown = device_to_read(device)?.unwrap_or(device.max(0));
        out.write(&memory::summary(shown, abbreviated))
    })
}

fn figure(function: &'static str, bytes: *mut u64, device: i32, read: impl Fn(&Stats) -> i64) -> tcuda_status_t {
    guard(function, || {
        let out = Out::new(bytes, "bytes")?;
        out.write(read(&stats_of(device)?) as u64);
        Ok(())
    })
}

/// Bytes in blocks that are in use (torch.cuda.memory_allocated).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_allocated(bytes: *mut u64, device: i32) -> tcuda_status_t {
    figure("tcuda_memory_allocated", bytes, device, |stats| stats.current(Family::AllocatedBytes))
}

/// The most bytes in blocks that were in use since the start or the last reset (torch.cuda.max_memory_allocated).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_max_memory_allocated(bytes: *mut u64, device: i32) -> tcuda_status_t {
    figure("tcuda_max_memory_allocated", bytes, device, |stats| stats.peak(Family::AllocatedBytes))
}

/// Bytes held from the driver (torch.cuda.memory_reserved).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_reserved(bytes: *mut u64, device: i32) -> tcuda_status_t {
    figure("tcuda_memory_reserved", bytes, device, |stats| stats.current(Family::ReservedBytes))
}

/// The most bytes held from the driver (torch.cuda.max_memory_reserved).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_max_memory_reserved(bytes: *mut u64, device: i32) -> tcuda_status_t {
    figure("tcuda_max_memory_reserved", bytes, device, |stats| stats.peak(Family::ReservedBytes))
}

/// Deprecated, as torch.cuda.memory_cached: tcuda_memory_reserved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_cached(bytes: *mut u64, device: i32) -> tcuda_status_t {
    figure("tcuda_memory_cached", bytes, device, |stats| stats.current(Family::ReservedBytes))
}

/// Deprecated, as torch.cuda.max_memory_cached: tcuda_max_memory_reserved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_max_memory_cached(bytes: *mut u64, device: i32) -> tcuda_status_t {
    figure("tcuda_max_memory_cached", bytes, device, |stats| stats.peak(Family::ReservedBytes))
}

fn reset(function: &'static str, device: i32, reset: impl Fn(i32)) -> tcuda_status_t {
    guard(function, || {
        reset(device::resolve(device)?);
        Ok(())
    })
}

/// Every peak becomes the current figure (torch.cuda.reset_peak_memory_stats). From here on peaks are exact until a second thread allocates.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_reset_peak_memory_stats(device: i32) -> tcuda_status_t {
    reset("tcuda_reset_peak_memory_stats", device, memory::reset_peak_stats)
}

/// Every sum over time and every counter becomes 0 (torch.cuda.reset_accumulated_memory_stats).
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_reset_accumulated_memory_stats(device: i32) -> tcuda_status_t {
    reset("tcuda_reset_accumulated_memory_stats", device, memory::reset_accumulated_stats)
}

/// Deprecated, as torch.cuda.reset_max_memory_allocated: resets all peaks, not only that of allocated memory.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_reset_max_memory_allocated(device: i32) -> tcuda_status_t {
    reset("tcuda_reset_max_memory_allocated", device, memory::reset_peak_stats)
}

/// Deprecated, as torch.cuda.reset_max_memory_cached: resets all peaks.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_reset_max_memory_cached(device: i32) -> tcuda_status_t {
    reset("tcuda_reset_max_memory_cached", device, memory::reset_peak_stats)
}

/// Limits what the cache holds to a share of the device's memory (torch.cuda.set_per_process_memory_fraction). More is out of memory,
/// after free memory was reused. What CUDA and other libraries take does not count.
///
/// @param fraction 0 to 1; 1 takes the limit away.
/// @param device   -1: the current one.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_set_per_process_memory_fraction(fraction: f64, device: i32) -> tcuda_status_t {
    guard("tcuda_set_per_process_memory_fraction", || memory::set_fraction(fraction, device::resolve(device)?))
}

/// The limit as a share of the device's memory; 1 without one (torch.cuda.get_per_process_memory_fraction).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_per_process_memory_fraction(fraction: *mut f64, device: i32) -> tcuda_status_t {
    guard_out("tcuda_get_per_process_memory_fraction", fraction, "fraction", || memory::fraction(device::resolve(device)?))
}

/// Limits what the cache holds to a number of bytes; the later of this and tcuda_set_per_process_memory_fraction counts. Memory of the
/// cache beyond a new limit stays, and serves what fits there, until it goes back; no more is taken meanwhile.
///
/// @param bytes  UINT64_MAX: no limit.
/// @param device -1: the current one.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_set_memory_limit(bytes: u64, device: i32) -> tcuda_status_t {
    guard("tcuda_set_memory_limit", || {
        let limit = (bytes != u64::MAX).then_some(bytes as usize);
        memory::set_limit(limit, device::resolve(device)?)
    })
}

/// The limit in bytes, however it was set; UINT64_MAX without one.
///
/// @param device -1: the current one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_memory_limit(bytes: *mut u64, device: i32) -> tcuda_status_t {
    guard_out("tcuda_get_memory_limit", bytes, "bytes", || {
        Ok(memory::limit(device::resolve(device)?)?.map_or(u64::MAX, |limit| limit as u64))
    })
}

/// Sets the options of the device caches (torch.cuda.memory._set_allocator_settings), over TCUDA_ALLOC_CONF and the options of
/// tcuda_init. Keys that the text does not name get their defaults, but for limits that a call set (tcuda_set_memory_limit,
/// tcuda_set_per_process_memory_fraction, tcuda_host_set_memory_limit): they stay unless the text names another one, by
/// per_process_memory_fraction, which is for all devices or has a list of them, or by pinned_limit_mb. Limits hold at once, the rest from the
/// next growth on. Keys of torch that would change nothing in tcuda are taken, with a line in the log; docs/MEMORY.md lists all keys. Not to be
/// called while other threads set options.
///
/// @param alloc_conf `key:value,key:value`; empty: the defaults; NULL: what TCUDA_ALLOC_CONF says.
/// @return TCUDA_ERROR_INVALID_ARGUMENT for an unknown key or a wrong value; the message has its place, and nothing has changed. A device that is
///         not there is one, unless devices are not known yet: the log tells of it then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_set_alloc_conf(alloc_conf: *const c_char) -> tcuda_status_t {
    guard("tcuda_set_alloc_conf", || {
        let wish = if alloc_conf.is_null() { None } else { Some(unsafe { text(alloc_conf, "alloc_conf") }?.to_owned()) };
        memory::set_options(wish)
    })
}

/// The options in effect, every key with its value, as a text that tcuda_set_alloc_conf takes; set again it changes nothing. The limits are
/// those that hold now, however they were set, exact to the byte: where devices differ per_process_memory_fraction has a list of them.
///
/// @param text   gets the text with a terminating zero; NULL with capacity 0 asks for the size only.
/// @param needed gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_alloc_conf(text: *mut c_char, capacity: usize, needed: *mut usize) -> tcuda_status_t {
    guard("tcuda_get_alloc_conf", || {
        let out = TextOut::new(text, capacity, needed)?;
        out.write(&memory::options::show(&memory::limits::in_effect()))
    })
}

/// Waits for a device and looks whether freed memory was written to. With TCUDA_MEMORY_POISON=1 only: freed blocks are filled with 0xDB,
/// in the order of their stream, and checked when their memory is handed out again, goes back to the driver, or here; what is found goes
/// to the log with the block's address, the offsets and the stream of the free. New blocks are filled with 0xFF.
///
/// @param count  gets the number of blocks that were found written to after their free, here and before, on all devices.
/// @param device -1: the current one; TCUDA_DEVICE_ALL: all.
/// @return TCUDA_ERROR_INVALID_STATE: freed memory is not watched. TCUDA_ERROR_CAPTURE: something is captured on the device, which goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_check_poison(count: *mut u64, device: i32) -> tcuda_status_t {
    guard_out("tcuda_memory_check_poison", count, "count", || {
        let device = if device == device::ALL { None } else { Some(device::resolve(device)?) };
        memory::check_poison(device)
    })
}
