//! Memory pools
//!
//! A pool keeps memory of a device apart from the rest (torch.cuda.MemPool): with segments of its own, from the driver or from a pluggable
//! allocator, and statistics of its own, which count in the device's as well. A thread opens it, and what it allocates on the pool's
//! device until it closes it comes from there (torch.cuda.use_mem_pool), whatever device is current; or it names the pool. A pool may be
//! opened again at any time, also when all its blocks were freed. Blocks are freed as any other, from anywhere.
//!
//! A pool can be paused, which gives its memory back to the driver and keeps its addresses, and resumed with the same contents: what is
//! put to sleep between two uses need not be loaded anew, and no pointer changes.

use super::guard::{guard, guard_destroy, guard_out};
use super::memory::tcuda_memory_stats_t;
use super::plugin::tcuda_pluggable_allocator_t;
use super::structs::{self, StructOut, read, tcuda_stream_t};
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result};
use crate::memory;
use crate::memory::pools::{self, Options};
use crate::memory::provider::{self, Source};
use crate::{device, stream};
use std::ffi::c_void;

/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_mem_pool {}
/// A memory pool. Not a pointer to anything.
#[allow(non_camel_case_types)]
pub type tcuda_mem_pool_t = *mut tcuda_mem_pool;

/// How a pool is made. All zero: from the driver, for nobody else, splitting its segments.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_mem_pool_options_t {
    pub struct_size: usize,
    /// Where its segments come from; NULL: the driver (torch: allocator).
    pub allocator: tcuda_pluggable_allocator_t,
    /// 1: its free memory serves requests of the device and of its other pools that would fail otherwise (torch: use_on_oom), but where blocks are
    /// to be whole segments (no_split) or to come from a pluggable allocator.
    pub use_on_oom: i32,
    /// 1: each block is a segment of its own, a multiple of 2 MiB, as network cards and NCCL want to register it (torch: no_split). Such a
    /// pool cannot be paused.
    pub no_split: i32,
}
structs::input!(tcuda_mem_pool_options_t: allocator, use_on_oom, no_split);

// The header has them by hand.
pub const TCUDA_PAUSE_DROP: i32 = 0;
pub const TCUDA_PAUSE_KEEP: i32 = 1;

fn id_of(pool: tcuda_mem_pool_t) -> u64 {
    pool as usize as u64
}

fn flag(value: i32, name: &str) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::invalid_argument(format!("'{name}' is {other}; 0 and 1 are its values."))),
    }
}

/// Makes a pool (torch.cuda.MemPool). It holds nothing yet.
///
/// @param pool    gets the pool; tcuda_mem_pool_destroy ends it.
/// @param device  -1 for the current one. The pool is used on this device only.
/// @param options NULL for all zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_mem_pool_create(
    pool: *mut tcuda_mem_pool_t,
    device: i32,
    options: *const tcuda_mem_pool_options_t,
) -> tcuda_status_t {
    guard_out("tcuda_mem_pool_create", pool, "pool", || {
        let device = device::resolve(device)?;
        let options = unsafe { read(options, "options") }?;
        let options = match options {
            None => Options { source: Source::Driver, use_on_oom: false, no_split: false },
            Some(options) => Options {
                source: match options.allocator.is_null() {
                    true => Source::Driver,
                    false => Source::Provider(provider::numbered(options.allocator as usize as u64)?),
                },
                use_on_oom: flag(options.use_on_oom, "use_on_oom")?,
                no_split: flag(options.no_split, "no_split")?,
            },
        };
        Ok(pools::create(device, options)? as usize as tcuda_mem_pool_t)
    })
}

/// Ends a pool. Its free memory goes back, but for what a stream still uses; blocks in use stay valid and are freed as any other. Either goes
/// back at the next tcuda_empty_cache, or when memory runs short.
///
/// @return TCUDA_ERROR_INVALID_STATE: it is open in a thread, or paused with blocks in use.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_mem_pool_destroy(pool: tcuda_mem_pool_t) -> tcuda_status_t {
    guard_destroy("tcuda_mem_pool_destroy", pool, || pools::destroy(id_of(pool)))
}

/// From now on what this thread allocates on the pool's device comes from the pool (torch.cuda.use_mem_pool), until tcuda_mem_pool_end. With
/// several open ones the newest is meant. Memory of other devices, and other threads, are not concerned.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_mem_pool_begin(pool: tcuda_mem_pool_t) -> tcuda_status_t {
    guard("tcuda_mem_pool_begin", || pools::begin(id_of(pool)))
}

/// Ends the newest tcuda_mem_pool_begin of this pool in this thread.
///
/// @return TCUDA_ERROR_INVALID_STATE: the thread has not opened it.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_mem_pool_end(pool: tcuda_mem_pool_t) -> tcuda_status_t {
    guard("tcuda_mem_pool_end", || pools::end(id_of(pool)))
}

/// tcuda_malloc_cached from a pool by name, whatever pools are open: for code that changes threads. On a stream that is captured the
/// memory is of the graph's private pool, as all that is allocated there.
///
/// @param ptr    gets the memory, which tcuda_free_cached gives back; NULL for size 0.
/// @param size   bytes.
/// @param stream on the pool's device.
/// @return TCUDA_ERROR_OUT_OF_MEMORY after the pool's free memory, and then the device's, went back to the driver and the request was tried
///         again; TCUDA_ERROR_INVALID_STATE: the pool is paused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_mem_pool_malloc(
    ptr: *mut *mut c_void,
    size: usize,
    stream: tcuda_stream_t,
    pool: tcuda_mem_pool_t,
) -> tcuda_status_t {
    guard_out("tcuda_mem_pool_malloc", ptr, "ptr", || {
        let pool = pools::numbered(id_of(pool))?;
        let stream = stream::resolve_on(stream as usize, pool.cache.device)?;
        Ok(memory::allocate_from(&pool, size, stream)? as *mut c_void)
    })
}

/// Waits for what was freed but is in use, then gives all free memory of a pool back to where it came from (torch: empty_cache with the
/// pool's id). tcuda_empty_cache leaves pools as they are.
///
/// @return TCUDA_ERROR_INVALID_STATE: the pool is paused.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_mem_pool_trim(pool: tcuda_mem_pool_t) -> tcuda_status_t {
    guard("tcuda_mem_pool_trim", || pools::numbered(id_of(pool))?.trim())
}

/// Waits for the device, then gives all memory of a pool back to the driver and keeps its addresses (vLLM's sleep mode). Until
/// tcuda_mem_pool_resume nothing may touch its blocks, and nothing is allocated from it; blocks may be freed. Work on them that another thread
/// begins during the call may be neither waited for nor refused. A pool that is paused stays so, whatever the mode. What is kept is blocks of the
/// cache of pinned memory, counted and limited as such; the device's memory does not grow while it is copied.
///
/// @param pool  one whose segments come from the driver as virtual memory and are split.
/// @param given gets the bytes that went back.
/// @param mode  TCUDA_PAUSE_KEEP or TCUDA_PAUSE_DROP: what becomes of the contents of blocks in use.
/// @return TCUDA_ERROR_INVALID_HANDLE: it was destroyed, be it meanwhile; TCUDA_ERROR_NOT_SUPPORTED: not such a pool, or the device has no
///         virtual memory; TCUDA_ERROR_INVALID_STATE: blocks of it are exported to other processes, or lent (use_on_oom) and in use;
///         TCUDA_ERROR_OUT_OF_HOST_MEMORY and others: no pinned memory; TCUDA_ERROR_CAPTURE: something is captured on the device, which goes
///         on. Then the pool goes on as it was, though what it had free may have gone back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_mem_pool_pause(pool: tcuda_mem_pool_t, given: *mut usize, mode: i32) -> tcuda_status_t {
    guard_out("tcuda_mem_pool_pause", given, "given", || {
        let keep = match mode {
            TCUDA_PAUSE_DROP => false,
            TCUDA_PAUSE_KEEP => true,
            other => {
                return Err(Error::invalid_argument(format!(
                    "'mode' is {other}; TCUDA_PAUSE_DROP (0) and TCUDA_PAUSE_KEEP (1) are its values."
                )));
            }
        };
        pools::numbered(id_of(pool))?.pause(keep)
    })
}

/// Brings the memory of a paused pool back to its addresses, with what was kept; what others have free gives way to it. What was freed meanwhile
/// comes back only where it shares a piece of the driver's memory with what is in use. One that is not paused is left as it is.
///
/// @return TCUDA_ERROR_OUT_OF_MEMORY: the device or the limit has not enough room, and the message says how much it takes; the pool stays paused
///         and keeps what it kept.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_mem_pool_resume(pool: tcuda_mem_pool_t) -> tcuda_status_t {
    guard("tcuda_mem_pool_resume", || pools::numbered(id_of(pool))?.resume())
}

/// The statistics of a pool alone.
///
/// @param stats set struct_size before the call. num_ooms and the like count what the pool's own requests met.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_mem_pool_stats(pool: tcuda_mem_pool_t, stats: *mut tcuda_memory_stats_t) -> tcuda_status_t {
    guard("tcuda_mem_pool_stats", || {
        let out = unsafe { StructOut::new(stats, "stats") }?;
        let pool = pools::numbered(id_of(pool))?;
        out.write(&super::memory::stats_out(&pool.cache.stats()));
        Ok(())
    })
}

/// How often the pool is open now, in all threads, and 1 for its handle (torch.cuda.MemPool.use_count): at 1 it can be destroyed, unless it is
/// paused with blocks in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_mem_pool_use_count(pool: tcuda_mem_pool_t, count: *mut u64) -> tcuda_status_t {
    guard_out("tcuda_mem_pool_use_count", count, "count", || Ok(pools::numbered(id_of(pool))?.use_count()))
}

/// The number by which torch's tools know a pool: the pair (0, id) of torch.cuda.MemPool.id, in snapshots, keys of statistics and messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_mem_pool_id(pool: tcuda_mem_pool_t, id: *mut u64) -> tcuda_status_t {
    guard_out("tcuda_mem_pool_id", id, "id", || Ok(pools::numbered(id_of(pool))?.id.number()))
}
