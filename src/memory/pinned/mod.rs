//! The cache of pinned host memory: page-exact blocks that are cut from segments of the driver and joined again, which host and every
//! device may use. A block that streams used is free when each of them is past it; the host writes it, so that holds for the stream that
//! used it last too.
//!
//! - `home`       what a thread keeps to itself: a pair takes one lock, which is the thread's own
//! - `table`      from an address to the block that starts there, without a lock
//! - `core`       all the rest, under its lock; asks the driver nothing
//! - `space`      free memory by size and by address
//! - `keep`       what graphs keep for their replays
//! - `order`      which uses are past: tickets, and marks on streams
//! - `source`     memory from the driver and back, and the NUMA node that it lies on
//! - `ladder`     what happens when nothing fits, to the out-of-memory error
//! - `stats`      what is counted, with torch's keys
//! - `registered` memory of the program that is pinned where it lies
//!
//! Locks, in this order: `ladder::GROWING`, `order::ASKING`, a home's bins (one at a time), `core::CORE`; `registered::RANGES`, and the one
//! of `get_ready`, before `CORE`. Only under the first (and `RANGES`) the driver may wait, and freeing takes neither.

mod core;
mod home;
mod keep;
mod ladder;
mod order;
mod registered;
mod source;
mod space;
pub mod stats;
mod streams;
mod table;

pub use keep::Keeper;
pub use ladder::on_replays;
pub use order::{are_past, ask_own, counts, hold_marks};
pub(crate) use registered::{IO_MEMORY, READ_ONLY};
pub use registered::{register, unregister};

use self::core::{CORE, Core};
use crate::base::process;
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status};
use crate::device;
use crate::memory::cache::slot::{self, StreamKey};
use crate::memory::captures;
use crate::memory::options::{self, Node, PinnedLimit};
use crate::runtime::{self, Address, api::Place};
use crate::stream::{self, Stream};
use parking_lot::Mutex;
use stats::HostStats;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use table::Kind;

/// Whether the options were read, and there may be something to ask for.
static READY: AtomicBool = AtomicBool::new(false);

/// The limit was set by a call, and not by what options say.
static LIMIT_IS_A_CALLS: AtomicBool = AtomicBool::new(false);

/// The node of all memory, or that it depends on the current device.
static NODE: AtomicU32 = AtomicU32::new(0);
const BY_DEVICE: u32 = u32::MAX;

#[cold]
fn get_ready() -> Result<()> {
    static START: Mutex<()> = Mutex::new(());
    runtime::runtime()?;
    // Before the lock: what is wrong with them goes to the log, where the program's function may allocate.
    let options = options::get();
    let _start = START.lock();
    if !READY.load(Acquire) {
        stream::on_gone(stream::Turn::Caches, order::stream_goes);
        configure(&options);
        READY.store(true, Release);
    }
    Ok(())
}

/// What the options say holds from now on; a limit that a call set stays where they name none, or the same.
pub fn configure(options: &options::Options) {
    let several = runtime::host::nodes().len() > 1;
    let node = if several && options.pinned_numa_node == Node::Device { BY_DEVICE } else { source::wanted_node(options.pinned_numa_node) };
    NODE.store(node, Relaxed);
    core::set_most_kept(options.pinned_max_cached_size_mb.map_or(usize::MAX, |megabytes| megabytes.saturating_mul(1 << 20)));
    let (is_named, limit) = (options.pinned_limit_mb != PinnedLimit::NotNamed, options.pinned_limit_mb.bytes());
    let mut core = CORE.lock();
    if core.limit != limit && (is_named || !LIMIT_IS_A_CALLS.load(Relaxed)) {
        LIMIT_IS_A_CALLS.store(false, Relaxed);
        core.limit = limit;
    }
}

/// Whether a thread may use what it has at hand: nobody is to be told, and nothing is kept for a graph.
#[inline]
fn is_plain() -> bool {
    watch::quiet() && !captures::any() && process::is_running()
}

/// `allocate` where nothing is needed but what the thread has at hand. None: nothing happened.
#[inline]
pub fn allocate_at_hand(size: usize) -> Option<Address> {
    let node = NODE.load(Relaxed);
    if size == 0 || node == BY_DEVICE || !is_plain() || !READY.load(Acquire) {
        return None;
    }
    home::at_hand(Kind::new(size, node)?)
}

/// `free` likewise. False: nothing happened.
#[inline]
pub fn free_at_hand(address: Address) -> bool {
    is_plain() && home::keep(address)
}

/// Pinned memory of at least `size` bytes; size 0 gives address 0.
pub fn allocate(size: usize) -> Result<Address> {
    if size == 0 {
        return Ok(0);
    }
    if !READY.load(Acquire) {
        get_ready()?;
    }
    let node = match NODE.load(Relaxed) {
        BY_DEVICE => source::wanted_node(Node::Device),
        node => node,
    };
    let kind = Kind::new(size, node).ok_or_else(|| too_large(size))?;
    let address = match home::take(kind) {
        Some(address) => address,
        None => ladder::allocate(kind)?,
    };
    if captures::any() {
        captures::own_keepers().iter().for_each(|keeper| keeper.keep(address));
    }
    watch::tell(|| Happening::HostAllocated { address, size });
    Ok(address)
}

#[cold]
fn too_large(size: usize) -> Error {
    let text = format!("Pinned host memory ran out. Tried to allocate {size} bytes, which no machine has.");
    Error::new(Status::TCUDA_ERROR_OUT_OF_HOST_MEMORY, text).with_bytes(size as u64)
}

/// Gives a block back; asks the driver nothing. Address 0 does nothing.
pub fn free(address: Address) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    watch::tell(|| Happening::HostFreeing { address });
    let freed = if home::keep(address) { Ok(()) } else { free_home(address) };
    freed.inspect_err(|_| watch::tell(|| Happening::Kept { address }))
}

fn free_home(address: Address) -> Result<()> {
    if slot::is_ending() && CORE.lock().is_used(address) {
        // By now work on the thread's default streams is work on others; of streams that have ended it is not known any more what they used.
        let mut streams = device::with_contexts().into_iter().map(|device| Stream { device, raw: stream::PER_THREAD });
        streams.try_for_each(|stream| record_stream_of(address, stream).map(drop))?;
    }
    CORE.lock().free(address)
}

/// Notes that a stream uses the block that holds an address.
pub fn record_stream(address: Address, stream: Stream) -> Result<()> {
    if address == 0 || record_stream_of(address, stream)? { Ok(()) } else { Err(not_a_block(&CORE.lock(), address)) }
}

/// The same for any address. False: it is no block's in use. Where it cannot be told which graph keeps it, the use is noted, and that the answer.
pub fn record_stream_of(address: Address, stream: Stream) -> Result<bool> {
    if !READY.load(Acquire) {
        return Ok(false);
    }
    // Before the lock: a thread's first use of its default stream asks the driver.
    let key = StreamKey::of(stream);
    let keeper = if captures::any() { captures::keeper_of(stream) } else { Ok(None) };
    let mut core = CORE.lock();
    if core.block_in_use(address).is_none() {
        return Ok(false);
    }
    let serial = core.streams.serial_of(stream, key);
    let noted = core.note_use(address, serial);
    drop(core);
    if stream.raw == stream::PER_THREAD {
        ask_own(key, stream.device);
    }
    watch::tell(|| Happening::Uses { address, on: stream.place() });
    if let Some(keeper) = keeper? {
        keeper.keep(address);
    }
    Ok(noted)
}

#[cold]
fn not_a_block(core: &Core, address: Address) -> Error {
    match core.block_in_use(address).filter(|start| *start != address) {
        Some(start) => {
            let text = format!("{address:#x} lies inside the pinned block at {start:#x}; give its start.");
            Error::new(Status::TCUDA_ERROR_INVALID_POINTER, text)
        }
        None => freed_before(address),
    }
}

#[cold]
fn freed_before(address: Address) -> Error {
    let text = format!("{address:#x} is no block of tcuda_host_malloc_cached, or was freed before.");
    Error::new(Status::TCUDA_ERROR_INVALID_POINTER, text)
}

/// Whether an address is in memory of this cache, be it in use or free.
pub fn holds(address: Address) -> bool {
    around(address).is_some()
}

/// What of this cache's memory holds an address: the block that is in use, else all of the segment.
pub fn around(address: Address) -> Option<Range<Address>> {
    if READY.load(Acquire) { CORE.lock().around(address) } else { None }
}

/// Whether a device can reach an address of the host by itself: memory of this cache, and what CUDA knows as pinned.
pub fn is_pinned(address: Address) -> Result<bool> {
    if address == 0 {
        return Ok(false);
    }
    if holds(address) {
        return Ok(true);
    }
    // With no backend nothing is pinned.
    let Ok(runtime) = runtime::runtime() else { return Ok(false) };
    Ok(matches!(runtime.place_of(address)?, Place::Pinned { .. }))
}

/// Waits for what is freed but in use, then gives all free memory back to the driver.
pub fn empty_cache() -> Result<()> {
    if READY.load(Acquire) { ladder::empty() } else { Ok(()) }
}

pub fn stats() -> HostStats {
    CORE.lock().stats()
}

pub fn reset_peak_stats() {
    CORE.lock().reset_peak();
}

pub fn reset_accumulated_stats() {
    CORE.lock().reset_accumulated();
}

/// The most bytes that may be held from the driver.
pub fn set_limit(limit: Option<usize>) -> Result<()> {
    get_ready()?;
    LIMIT_IS_A_CALLS.store(true, Relaxed);
    CORE.lock().limit = limit;
    Ok(())
}

/// The limit where there is a cache yet.
pub fn limit_now() -> Option<Option<usize>> {
    READY.load(Acquire).then(|| CORE.lock().limit)
}

pub fn limit() -> Result<Option<usize>> {
    get_ready()?;
    Ok(CORE.lock().limit)
}

/// The per-thread default streams of a thread that ends, if they are there still.
pub fn thread_ends(thread: u64, are_there: bool) {
    if READY.load(Acquire) {
        order::thread_ends(thread, are_there);
    }
}

/// How far streams are, as far as that tells of blocks that wait for them.
pub fn settle() {
    if READY.load(Acquire) {
        order::settle(true);
    }
}

/// The options changed.
pub fn reconfigure() {
    if READY.load(Acquire) {
        configure(&options::get());
    }
}

/// Gives everything back, also what is in use, and unregisters what is registered.
pub fn shutdown() {
    registered::shutdown();
    ladder::shutdown();
    LIMIT_IS_A_CALLS.store(false, Relaxed);
    READY.store(false, Release);
}

/// Panics if the parts of the cache contradict each other. For tests.
#[doc(hidden)]
pub fn check() {
    CORE.lock().check();
}

/// How many streams and graphs there are of which something is kept. For tests.
#[doc(hidden)]
pub fn users() -> usize {
    CORE.lock().streams.len()
}
