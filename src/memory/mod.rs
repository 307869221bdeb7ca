//! # memory
//! Owns:   the device caches: what is allocated, free and reserved on every device, and in which order streams may have it again; the
//!         history of that, and snapshots; and the cache of pinned host memory (`pinned`).
//! Uses:   stream, event, device, runtime, base.
//! Never:  touches the bytes of a block, but for the patterns of `poison`; knows tensors, graphs or handles of C; waits
//!         for a device while it holds `core`.
//! Locks:  per device those of `Cache`, in its order; a thread's fronts have none (`cache/front.rs`). Peer hooks run under device's
//!         locks and take `growing`, `ordered` and `core`. `lent::LENT`, then `pools::POOLS` come before those of a pool that begins or ends,
//!         and behind `climbing` of another cache; `growing` of one that has ended comes before POOLS. Those of `pinned` come behind `growing`
//!         (a pause keeps bytes there) and before `driving`: a capture begins under both, and `captures::ROUTES` is behind them. `history` has
//!         one that is taken last, also by threads in their regions, for a moment; so are those of `options`, `provider`, `poison`, `hooks` and
//!         `cache/areas.rs`, with none of these under them.
//! Tests:  in the files, `cache/model.rs` (the lock-free parts in many orders of their steps), tests/conformance (memory, order,
//!         statistics, pressure, pools, poison, snapshot, pinned, plugin, backend), tests/{fault_sweep,policy,attack},
//!         tests/{cache_*,pinned_model,pinned_order,fault_trace,host_memory,stream_order}.rs.

mod cache;
pub mod captures;
pub mod history;
pub mod hooks;
pub mod lent;
pub mod limits;
mod lookup;
mod marks;
pub mod options;
pub mod pinned;
pub mod poison;
pub mod pools;
pub mod provider;
pub mod snapshot;
pub mod stats;
mod summary;
mod sync;
mod totals;

pub use cache::access_list;
pub use cache::front::Further;
pub use cache::front::{free as free_at_hand, free_at_once, free_further, malloc as allocate_at_hand, malloc_at_once, malloc_further};
pub use cache::held::{Backed, Hold, Part, hold, on_held_freed};
pub use limits::{fraction, limit, set_fraction, set_limit};

use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, config, insist, log, process, room};
use crate::device;
use crate::event;
use crate::runtime::{self, Address};
use crate::stream::{self, Stream};
use cache::core::Request;
use cache::slot::{self, StreamKey};
use cache::{BlockId, Cache, Core, StreamSlot, areas, block, front, thread};
use history::{Action, Mode, texts};
use once_cell::sync::OnceCell;
use provider::Source;
use snapshot::Snapshot;
use stats::{Family, Stats};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

static CACHES: OnceCell<Vec<Cache>> = OnceCell::new();

/// One of those that calls without a device take.
pub fn is_locked() -> bool {
    hooks::is_locked() || provider::is_locked() || options::is_locked() || poison::is_locked()
}

/// The caches of all devices, made at the first allocation.
fn caches() -> Result<&'static [Cache]> {
    // Read first: what is wrong with them goes to the log, where the program's function may allocate.
    let options = options::get();
    if let Some(caches) = CACHES.get() {
        return Ok(caches);
    }
    let wrong = poison::configure();
    let count = runtime::runtime()?.device_count;
    let caches = CACHES
        .get_or_try_init(|| {
            stream::on_gone(stream::Turn::Caches, stream_goes);
            device::peer::ask_before(provider::refuse_inside);
            device::peer::on_enabled(peer_enabled);
            if !block::reserve() {
                let text = "The host has no addresses for the table of blocks.";
                return Err(Error::new(Status::TCUDA_ERROR_OUT_OF_HOST_MEMORY, text));
            }
            process::in_child_of_fork(&(thread::forked as fn()));
            let cache = |device| {
                let cache = Cache::new(device as u32, device, device::total_memory(device)?)?;
                if let Some(limit) = limits::of_options(&options, &cache)? {
                    cache.stats.set_limit(limit);
                }
                Ok(cache)
            };
            (0..count).map(cache).collect()
        })
        .map(Vec::as_slice)?;
    wrong.iter().for_each(|wrong| log::warn(wrong));
    if let Err(error) = limits::check_devices(&options) {
        log::warn(&format!("{error} The others have their limits."));
    }
    Ok(caches)
}

#[cold]
fn cache_of(device: i32) -> Result<&'static Cache> {
    let cache = caches()?.get(device as usize);
    cache.ok_or_else(|| Error::new(Status::TCUDA_ERROR_INVALID_DEVICE, format!("There is no device {device}.")))
}

/// The cache if there is one yet: reading statistics makes none.
fn existing(device: i32) -> Option<&'static Cache> {
    CACHES.get()?.get(device as usize)
}

/// The cache of a number that a front has.
fn numbered(number: u32) -> Option<&'static Cache> {
    let own = CACHES.get()?;
    own.get(number as usize).or_else(|| pools::cache(number as usize - own.len()))
}

/// The caches of a device or of all, those of pools first.
fn all(device: Option<i32>) -> Vec<&'static Cache> {
    let own = CACHES.get().into_iter().flatten();
    pools::caches().into_iter().chain(own).filter(|cache| device.is_none_or(|device| device == cache.device)).collect()
}

fn device_count() -> usize {
    CACHES.get().map_or(0, Vec::len)
}

/// The cache that a handed-out block is of. It has to be asked under its lock. None: the block was given back.
fn cache_of_block(block: BlockId) -> Option<&'static Cache> {
    match block::at(block).state_and_owner() {
        (block::State::Allocated, front) => numbered(front::numbered(front)?.cache),
        _ => None,
    }
}

fn stream_goes(stream: Stream) -> Result<()> {
    all(Some(stream.device)).into_iter().for_each(|cache| cache.stream_goes(stream));
    Ok(())
}

/// A thread ends, and its per-thread default streams with it, or CUDA has ended them already.
fn thread_ends(thread: u64, are_there: bool) {
    if process::is_running() {
        all(None).into_iter().for_each(|cache| cache.thread_ends(thread, are_there));
        pinned::thread_ends(thread, are_there);
    }
}

/// It is about to end: how far its default streams are may not be known later.
fn thread_settles(thread: u64) {
    if process::is_running() {
        all(None).into_iter().for_each(|cache| cache.thread_settles(thread));
        pinned::settle();
    }
}

fn peer_enabled(_device: i32, peer: i32) -> Result<()> {
    let runtime = runtime::runtime()?;
    all(Some(peer)).into_iter().try_for_each(|cache| cache.open_to_peers(runtime))
}

/// A thread ends: what it kept to itself is everybody's.
fn forget_thread(thread: &front::Thread) {
    all(None).into_iter().for_each(|cache| cache.core.lock().forget_thread(thread));
}

/// Whether threads may keep memory to themselves: not where the options or a provider of the user's stand against it, not where freed memory
/// is watched or each call is to be seen, not while graphs are captured, and not while somebody is told of each block.
fn may_have_fronts() -> bool {
    process::is_running()
        && !captures::any()
        && !poison::is_on()
        && !watch::any(watch::MEMORY | watch::SANITIZER | watch::SHOWN)
        && options::allow_fronts()
        && !provider::is_set()
}

/// Memory on the stream's device for work on that stream. `alignment` is a power of two; size 0 gives address 0.
pub fn allocate(size: usize, alignment: usize, stream: Stream) -> Result<Address> {
    allocate_for(size, alignment, stream, stream::handle_of(stream))
}

/// The same; `handle` is how the caller names the stream, so that its next call finds it by that.
pub fn allocate_for(size: usize, alignment: usize, stream: Stream, handle: usize) -> Result<Address> {
    if size == 0 {
        return Ok(0);
    }
    if captures::any()
        && let Some(pool) = captures::pool_of(stream)?
    {
        return pools::allocate(&pool, size, alignment, stream);
    }
    let pool = if pools::any_open() { pools::open_on(stream.device) } else { None };
    let own = || existing(stream.device).map_or_else(|| cache_of(stream.device), Ok);
    let from = || pool.as_ref().map_or_else(|| Ok((own()?, pools::Id::own())), |pool| Ok((pool.cache, pool.id)));
    if alignment <= block::UNIT
        && let Some(address) = from_front(from, size, stream, stream::handle_of(stream), handle)?
    {
        return Ok(address);
    }
    if let Some(pool) = &pool {
        return pools::allocate(pool, size, alignment, stream);
    }
    let request = Request::new(size, alignment).ok_or_else(|| too_large(size, stream.device))?;
    let cache = own()?;
    if alignment > block::UNIT {
        cache.rest(stream);
    }
    allocate_in(cache, &request, stream)
}

/// From a pool, unless the stream is captured: a graph's memory is its own.
pub fn allocate_from(pool: &pools::Pool, size: usize, stream: Stream) -> Result<Address> {
    let of_graph = if captures::any() && size > 0 { captures::pool_of(stream)? } else { None };
    if size > 0 && of_graph.is_none() && stream.device == pool.cache.device {
        // A handle of the pool's own: the stream's means what the thread has open.
        let handle = thread::canonical_in(pool.cache, stream);
        if let Some(address) = from_front(|| Ok((pool.cache, pool.id)), size, stream, handle, handle)? {
            return Ok(address);
        }
    }
    pools::allocate(of_graph.as_deref().unwrap_or(pool), size, 1, stream)
}

/// The device's own memory, for tcuda itself: a pool that is open is for what users ask for. Not while the stream is captured.
pub fn allocate_own(size: usize, stream: Stream) -> Result<Address> {
    let request = Request::new(size, 1).ok_or_else(|| too_large(size, stream.device))?;
    allocate_in(cache_of(stream.device)?, &request, stream)
}

/// For who does without where there is no room, which nobody is told of. As by `allocate_own`.
pub fn allocate_if_there(size: usize, stream: Stream) -> Result<Option<Address>> {
    let request = Request::new(size, 1).ok_or_else(|| too_large(size, stream.device))?;
    match allocate_in(cache_of(stream.device)?, &Request { is_modest: true, ..request }, stream) {
        Ok(address) => Ok(Some(address)),
        Err(error) if error.status == Status::TCUDA_ERROR_OUT_OF_MEMORY => Ok(None),
        Err(error) => Err(error),
    }
}

fn allocate_in(cache: &Cache, request: &Request, stream: Stream) -> Result<Address> {
    provider::refuse_inside()?;
    let address = cache.allocate(request, stream)?;
    if poison::is_on() {
        poison_new(address, stream)?;
    }
    watch::tell(|| Happening::Allocated { address, size: request.requested, on: stream.place() });
    Ok(address)
}

/// The thread's next call for any stream looks anew where its memory comes from: its front of a device's stream may be that of a pool.
fn forget_choices() {
    thread::forget_choices();
}

/// Other caches of the device are waited for, and what they have free goes back to the driver, as far as it does.
fn release_others(cache: &Cache) {
    let _ = pools::empty(Some(cache.device));
    let others = all(Some(cache.device)).into_iter().filter(|other| !std::ptr::eq(*other, cache));
    others.for_each(|other| drop(other.empty()));
}

/// The same without waiting, which a capture forbids, and where giving back never waits: for virtual memory.
fn release_idle_others(cache: &Cache, runtime: &runtime::Runtime) {
    pools::sweep(cache.device);
    let others = all(Some(cache.device)).into_iter().filter(|other| !std::ptr::eq(*other, cache));
    for other in others.filter(|other| other.abilities(runtime).is_ok_and(|abilities| abilities.virtual_memory.is_some())) {
        // What is not given stays where it is.
        let _ = other.release_past(runtime);
    }
}

#[cold]
fn poison_new(address: Address, stream: Stream) -> Result<()> {
    let key = StreamKey::of(stream);
    let cache = lookup::find(address).and_then(cache_of_block);
    // Of a pool that was paused meanwhile the memory is gone, or about to go.
    let look = |core: &mut Core, id| Ok((block::at(id).size(), cache.and_then(|cache| cache.touch(core)), core.follows(id, key)));
    let (size, touch, is_there) = with_block(address, look)?;
    poison::handed_out(address, size, (touch.is_some() && is_there).then_some(stream));
    if let Some(cache) = cache.filter(|_| touch.is_some()) {
        let _marks = (captures::steady(), cache.hold_marks());
        // Another thread may have ended the stream: what is enqueued there now would count as past.
        if with_block(address, |core, id| Ok(core.follows(id, key)))? {
            poison::freshen(address, size, stream);
        }
    }
    drop(touch);
    poison::tell();
    Ok(())
}

/// From this thread's front of the stream in the cache of a pool, which is made ready if it is not.
fn from_front(
    from: impl Fn() -> Result<(&'static Cache, pools::Id)>,
    size: usize,
    stream: Stream,
    canonical: usize,
    handle: usize,
) -> Result<Option<Address>> {
    // What means another stream when another device is current is no key, unless there is only one.
    let means_one = handle >= stream::HANDLE_DEFAULT || (handle != stream::HANDLE_CURRENT && runtime::runtime()?.device_count == 1);
    let key = if means_one { handle } else { canonical };
    if let Some(address) = front::take(size, canonical, key) {
        return Ok(Some(address));
    }
    provider::refuse_inside()?;
    let (cache, pool) = from()?;
    cache.rest(stream);
    Ok(if thread::arm(cache, pool, stream, canonical, key) { front::take(size, canonical, key) } else { None })
}

#[cold]
fn too_large(size: usize, device: i32) -> Error {
    let text = format!("CUDA out of memory. Tried to allocate more than 1EB memory ({size} bytes).");
    Error::new(Status::TCUDA_ERROR_OUT_OF_MEMORY, text).on_device(device).with_bytes(size as u64)
}

/// A block for each size, or none at all.
pub fn allocate_all(sizes: &[usize], stream: Stream) -> Result<Vec<Address>> {
    let mut blocks = Vec::new();
    room::reserve(&mut blocks, sizes.len(), "a list of addresses")?;
    for size in sizes {
        match allocate(*size, 1, stream) {
            Ok(block) => blocks.push(block),
            Err(error) => {
                // The first error is the one to tell.
                blocks.into_iter().for_each(|block| drop(insist(|| free(block))));
                return Err(error);
            }
        }
    }
    Ok(blocks)
}

/// Gives a block back; its stream may have it at once, others when its uses are past. Address 0 does nothing.
pub fn free(address: Address) -> Result<()> {
    if front::free(address) {
        return Ok(());
    }
    if let Some(block) = lookup::find(address)
        && let Some(cache) = cache_of_block(block)
        && thread::arm_to_free(cache, block)
        && front::free(address)
    {
        return Ok(());
    }
    give_back(address, None)
}

/// The same, ordered after the work of another stream of the device, which may have it at once. The program has made sure that
/// its uses on other streams are before that stream's next work.
pub fn free_on(address: Address, stream: Stream) -> Result<()> {
    give_back(address, Some(stream))
}

#[inline]
fn give_back(address: Address, stream: Option<Stream>) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    if watch::any(watch::MEMORY | watch::SANITIZER | watch::SHOWN) {
        let device = device_of_block(address)?;
        let size = with_block(address, |_, id| Ok(block::at(id).size()))?;
        watch::tell(|| Happening::Freeing { address, size, on: stream.map(Stream::place) });
        give_back_untold(address, stream).inspect_err(|_| watch::tell(|| Happening::Kept { address }))?;
        watch::tell(|| Happening::Freed { address, device });
        return Ok(());
    }
    give_back_untold(address, stream)
}

#[inline]
fn give_back_untold(address: Address, stream: Option<Stream>) -> Result<()> {
    if poison::is_on() {
        return give_back_poisoned(address, stream);
    }
    if cache::ordered::is_used()
        && let Some(cache) = lookup::find(address).and_then(cache_of_block)
    {
        return cache.free_ordered(address, stream);
    }
    hand_back(address, stream)
}

/// The block is filled before it is free.
#[cold]
fn give_back_poisoned(address: Address, stream: Option<Stream>) -> Result<()> {
    let _freeing = poison::begin_free(address);
    let (size, device, number, on, users, paused, held) = with_block(address, |core, id| {
        let (on, users) = core.ends_on(id, stream);
        Ok((block::at(id).size(), core.device, core.number, on, users, core.paused, core.is_held(id)))
    })?;
    let cache = numbered(number);
    let filled = on.filter(|on| {
        // The other streams that use the block come first.
        let ordered = cache.is_some_and(|cache| cache.comes_after(*on, &users));
        // A pool that is paused has nothing to fill, and what a graph has free its replays write, as other processes do what they use.
        let fixed = held || cache.is_some_and(Cache::is_fixed);
        !paused && !fixed && on.device == device && ordered
    });
    let (Some(on), Some(cache)) = (filled, cache) else { return hand_back(address, stream) };
    // All of a stream that goes counts as done: what is filled on it has to come before.
    let marks = (captures::steady(), cache.hold_marks());
    let is_still = |core: &mut Core, id| Ok(core.ends_on(id, stream).0 == Some(on) && !core.paused && !core.is_held(id));
    if !with_block(address, is_still)? {
        drop(marks);
        return hand_back(address, stream);
    }
    poison::freed(address, size, on);
    hand_back(address, stream).inspect_err(|_| poison::not_freed(address, size))
}

/// Whether default streams of the calling thread have ended: it is in its last destructors, where it may come to have others.
pub fn thread_is_ending() -> bool {
    slot::is_ending()
}

#[inline]
fn hand_back(address: Address, stream: Option<Stream>) -> Result<()> {
    if slot::is_ending() {
        let ended = with_block(address, |core, id| Ok(core.may_follow_ended(id).then_some(core.device)))?;
        // By now work on the thread's default stream is work on another one.
        ended.map_or(Ok(()), |device| record_stream(address, Stream { device, raw: stream::PER_THREAD }))?;
    }
    // The key first: a thread's first use of its default stream calls the driver.
    let stream = stream.map(|stream| (stream, StreamKey::of(stream)));
    let held = with_block(address, |core, id| {
        let owner = stream.map(|(stream, key)| slot_on(core, stream, key, address)).transpose()?;
        let held = core.is_held(id).then(|| block::at(id).range());
        if core.free(id, owner) { Ok(held) } else { Err(freed_before(address)) }
    })?;
    held.into_iter().for_each(cache::held::tell_freed);
    Ok(())
}

/// Does something with the handed-out block that starts at an address, under its device's lock.
fn with_block<T>(address: Address, work: impl FnOnce(&mut Core, BlockId) -> Result<T>) -> Result<T> {
    if let Some(block) = lookup::find(address)
        && let Some(cache) = cache_of_block(block)
    {
        let mut core = cache.core.quiet();
        if let Some(id) = core.allocated_at(block, address) {
            return work(&mut core, id);
        }
    }
    Err(not_a_block(address))
}

fn slot_on(core: &mut Core, stream: Stream, key: StreamKey, address: Address) -> Result<StreamSlot> {
    if stream.device != core.device {
        return Err(Error::invalid_argument(format!(
            "The stream is on device {}, the memory at 0x{address:x} on device {}. A block is freed and used on streams of its own device.",
            stream.device, core.device
        )));
    }
    core.slot_of(key)
}

#[cold]
fn not_a_block(address: Address) -> Error {
    let text = match block_around(address) {
        Some(Around { place, .. }) => format!("lies inside the block at 0x{:x}; give its start.", place.start),
        None if pinned::holds(address) => {
            "is pinned host memory; it has calls of its own, tcuda_host_free_cached and tcuda_host_record_stream.".to_owned()
        }
        None => match hooks::stranger(address) {
            Some(text) => text.to_owned(),
            None => return freed_before(address),
        },
    };
    Error::new(Status::TCUDA_ERROR_INVALID_POINTER, format!("invalid device pointer: 0x{address:x} {text}"))
}

#[cold]
fn freed_before(address: Address) -> Error {
    let text = format!("invalid device pointer: 0x{address:x} is no block of tcuda's caches of device memory, or was freed before.");
    Error::new(Status::TCUDA_ERROR_INVALID_POINTER, text)
}

/// The device of the block that starts here; the device's own check comes with the use.
pub fn device_of_block(address: Address) -> Result<i32> {
    lookup::find(address).and_then(cache_of_block).map(|cache| cache.device).ok_or_else(|| not_a_block(address))
}

/// A live block, as far as who uses it asks.
pub struct Around {
    pub place: Range<Address>,
    pub device: i32,
    /// The pool that it is of, if that is paused: there is no memory then.
    pub paused: Option<pools::Id>,
}

/// Does something with the live block that holds an address, under its device's lock.
fn with_block_around<T>(address: Address, work: impl FnOnce(&mut Core, BlockId, Around) -> T) -> Option<T> {
    let around = |core: &Core, id| {
        let paused = core.paused.then_some(core.pool);
        Around { place: block::at(id).range(), device: core.device, paused }
    };
    if let Some(block) = lookup::find(address)
        && let Some(cache) = cache_of_block(block)
    {
        let mut core = cache.core.quiet();
        if let Some(id) = core.allocated_at(block, address) {
            let around = around(&core, id);
            return Some(work(&mut core, id, around));
        }
    }
    let (_, mut core, id) = find_around(address)?;
    let around = around(&core, id);
    Some(work(&mut core, id, around))
}

/// The live block that holds an address, and its cache with the lock. Of a block in a block, where a pluggable allocator gives what it has of another
/// cache, the inner one is meant.
fn find_around(address: Address) -> Option<(&'static Cache, sync::MutexGuard<'static, Core>, BlockId)> {
    areas::caches_at(address).filter_map(numbered).find_map(|cache| {
        let core = cache.core.quiet();
        let id = core.block_around(address)?;
        Some((cache, core, id))
    })
}

/// The live block that holds an address, which may lie inside; None for memory of somebody else.
pub fn block_around(address: Address) -> Option<Around> {
    with_block_around(address, |_, _, around| around)
}

/// Its device.
pub fn device_of(address: Address) -> Option<i32> {
    block_around(address).map(|around| around.device)
}

/// Notes that a stream uses the block that starts here (Tensor.record_stream): after the free it is reused only when that stream has
/// done what was enqueued until the free. Costs nothing before the free.
pub fn record_stream(address: Address, stream: Stream) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    let key = StreamKey::of(stream);
    with_block(address, |core, id| record_use(core, id, address, stream, key))?;
    ask_own(address, key);
    watch::tell(|| Happening::Uses { address, on: stream.place() });
    Ok(())
}

/// The calling thread's default stream uses one more block: how far it is with those that wait for it, nobody else can ask.
fn ask_own(address: Address, key: StreamKey) {
    if key.raw == stream::PER_THREAD
        && let Some(cache) = lookup::find(address).and_then(cache_of_block)
    {
        cache.ask_own(key);
    }
}

fn record_use(core: &mut Core, id: BlockId, address: Address, stream: Stream, key: StreamKey) -> Result<()> {
    if core.device == stream.device && core.follows(id, key) {
        return Ok(());
    }
    let slot = slot_on(core, stream, key, address)?;
    if core.record_use(id, slot) { Ok(()) } else { Err(freed_before(address)) }
}

/// The same for any address: one inside a block means the block, also of pinned memory; memory of somebody else and another device's stream
/// mean nothing.
pub fn record_stream_of(address: Address, stream: Stream) -> Result<()> {
    if record_in_block(address, stream)?.is_none() {
        pinned::record_stream_of(address, stream)?;
    }
    Ok(())
}

/// The same for device memory alone, and which block it is. None: it is none.
pub fn record_in_block(address: Address, stream: Stream) -> Result<Option<Around>> {
    let key = StreamKey::of(stream);
    let recorded = with_block_around(address, |core, id, around| {
        if around.device == stream.device {
            record_use(core, id, around.place.start, stream, key)?;
        }
        Ok(around)
    });
    let around = recorded.transpose()?;
    if let Some(Around { place, device, .. }) = &around
        && *device == stream.device
    {
        ask_own(place.start, key);
        watch::tell(|| Happening::Uses { address: place.start, on: stream.place() });
    }
    Ok(around)
}

/// Waits for a device. What waited for its streams is free then, also for other threads' own, which nobody else can ask.
pub fn synchronize(device: i32) -> Result<()> {
    let device = device::resolve(device)?;
    let counts: Vec<_> = all(Some(device)).into_iter().filter_map(|cache| Some((cache, cache.counts_if_pending()?))).collect();
    let of_pinned = pinned::counts(device);
    device::synchronize(device)?;
    counts.iter().for_each(|(cache, counts)| cache.are_past(counts));
    pinned::are_past(&of_pinned);
    Ok(())
}

/// The same for a stream.
pub fn synchronize_stream(stream: Stream) -> Result<()> {
    stream.synchronize()?;
    if stream.raw == stream::PER_THREAD {
        let key = StreamKey::of(stream);
        all(Some(stream.device)).into_iter().for_each(|cache| cache.ask_own(key));
        pinned::ask_own(key, stream.device);
    }
    Ok(())
}

/// Waits for what is freed but in use, then gives all free memory of a device (or of all) back to the driver.
pub fn empty_cache(device: Option<i32>) -> Result<()> {
    // What fails does not keep the others from it. What pools have free is theirs, unless they were destroyed.
    let of_pools = pools::empty(device);
    let asked = CACHES.get().into_iter().flatten().filter(|cache| device.is_none_or(|device| device == cache.device));
    let emptied = asked.map(Cache::empty).fold(of_pools, Result::and);
    event::pool::shrink(device);
    poison::tell();
    emptied
}

/// Waits for a device (or all) and looks whether freed memory was written to, which only the poison mode can tell; the number of blocks
/// found so far.
pub fn check_poison(device: Option<i32>) -> Result<u64> {
    if CACHES.get().is_none() {
        let _ = poison::configure();
    }
    if !poison::is_on() {
        return Err(Error::new(
            Status::TCUDA_ERROR_INVALID_STATE,
            "Freed memory is not watched: set TCUDA_MEMORY_POISON=1 in the environment before the first allocation.",
        ));
    }
    let checked = all(device).into_iter().map(Cache::check_poison).fold(Ok(()), Result::and);
    poison::tell();
    checked.map(|()| poison::found())
}

/// A picture of the statistics; all zero before the first allocation.
pub fn stats(device: i32) -> Stats {
    all(Some(device)).into_iter().map(Cache::stats).last().unwrap_or_default()
}

/// Before a pool's id and what is asked of what it holds.
const OF_POOL: &str = "reserved_bytes_by_private_pools.";

/// One of them by torch's key, also of a single pool: torch's `reserved_bytes_by_private_pools.0_12.all.peak`.
pub fn stat(key: &str, device: i32) -> Option<i64> {
    let Some(of_pool) = key.strip_prefix(OF_POOL) else { return stats(device).by_key(key) };
    let (id, figure) = of_pool.split_once('.')?;
    let pool = pools::of_device(device).into_iter().find(|pool| pool.id.key() == id)?;
    pool.cache.stats().by_key(&format!("reserved_bytes.{figure}"))
}

pub fn reset_peak_stats(device: i32) {
    all(Some(device)).into_iter().for_each(|cache| cache.core.lock().reset_peak());
}

pub fn reset_accumulated_stats(device: i32) {
    all(Some(device)).into_iter().for_each(|cache| cache.core.lock().stats.reset_accumulated());
}

pub fn current(family: Family, device: i32) -> i64 {
    all(Some(device)).into_iter().map(|cache| cache.current(family)).last().unwrap_or(0)
}

pub fn peak(family: Family, device: i32) -> i64 {
    stats(device).peak(family)
}

/// torch's table, with rows for memory pools and those of graphs.
pub fn summary(device: i32, abbreviated: bool) -> String {
    let named = |pool: &pools::Pool| format!("{} pool {}", if pool.id.is_a_graphs() { "Graph" } else { "Memory" }, pool.id);
    let apart: Vec<_> = pools::of_device(device).iter().map(|pool| (named(pool), pool.cache.stats())).collect();
    summary::summary(device, &stats(device), &apart, abbreviated)
}

/// Puts options over the environment's; None takes them away again. Nothing changes on failure.
pub fn set_options(text: Option<String>) -> Result<()> {
    // Before it is in effect for anybody.
    if let Some(wanted) = text.clone().or_else(|| config::beneath(options::VARIABLE)) {
        limits::check_devices(&options::parse(&wanted)?)?;
    }
    let before = config::exchange(options::VARIABLE, text.clone());
    configure().inspect_err(|_| {
        config::put_back(options::VARIABLE, text, before);
        options::reload();
        stop_fronts();
    })
}

/// Reads the options anew: what they say holds from the next growth on, limits that they name at once.
pub fn configure() -> Result<()> {
    let options = options::reload();
    poison::configure().iter().for_each(|wrong| log::warn(wrong));
    let caches = || CACHES.get().into_iter().flatten();
    pools::caches().into_iter().for_each(Cache::forget_abilities);
    let limits: Vec<_> = caches().map(|cache| limits::of_options(&options, cache)).collect::<Result<_>>()?;
    for (cache, limit) in caches().zip(limits) {
        cache.forget_abilities();
        // With all fronts stopped: where segments are plain from now on there are none.
        let _stopped = cache.core.lock();
        if let Some(limit) = limit {
            cache.limit_is_a_calls.store(false, Relaxed);
            cache.stats.set_limit(limit);
        }
    }
    pinned::reconfigure();
    Ok(())
}

/// Somebody is to be told of each block from now on: threads keep none to themselves.
pub fn stop_fronts() {
    all(None).into_iter().for_each(|cache| drop(cache.core.lock()));
}

/// Where segments come from has changed: it holds from the next growth on.
pub fn configure_sources() -> Result<()> {
    // Those that are no pool's now too: whoever asked them what they take from, they were told what was current.
    pools::caches().into_iter().for_each(Cache::forget_abilities);
    for cache in CACHES.get().into_iter().flatten() {
        cache.forget_abilities();
        // With all fronts stopped: where segments are not virtual memory there are none.
        drop(cache.core.lock());
    }
    Ok(())
}

/// torch's names.
pub fn backend_name() -> &'static CStr {
    match provider::current() {
        Source::Driver => c"native",
        Source::Ordered => c"cudaMallocAsync",
        Source::Provider(_) => c"pluggable",
    }
}

/// What waits for threads may wait for one that waits for the device, which waits for its host function. The driver tells where it forbids that
/// any call is made, and nothing else asks it. A device that is lost is no reason.
fn refuse_in_host_function() -> Result<()> {
    match runtime::runtime()?.get_device() {
        Err(error) if error.native == runtime::code::NOT_PERMITTED => Err(error),
        _ => Ok(()),
    }
}

/// What is recorded of a device (or all) from now on, and how many entries are kept (torch.cuda.memory._record_memory_history).
pub fn record_history(mode: Mode, most: usize, clear: bool, device: Option<i32>) -> Result<()> {
    provider::refuse_inside()?;
    refuse_in_host_function()?;
    match device {
        Some(device) => cache_of(device)?.record_history(mode, most, clear),
        None => caches()?.iter().for_each(|cache| cache.record_history(mode, most, clear)),
    }
    Ok(())
}

/// What the calling thread allocates from now on is for this (torch.cuda.memory._set_memory_metadata). Empty: for nothing in particular.
pub fn annotate(text: &str) -> Result<()> {
    let number = texts::number_of(text)?;
    let before = texts::set_current(number);
    if number != before {
        // An entry of no memory; what ends there stands where others have an address.
        let caches = CACHES.get().into_iter().flatten();
        caches.for_each(|cache| cache.history.note(Action::UserDefined, before as usize, 0, 0, pools::Id::own()));
    }
    Ok(())
}

/// What a device (or all) holds, with its pools, and what happened there.
pub fn snapshot(device: Option<i32>) -> Result<Snapshot> {
    provider::refuse_inside()?;
    refuse_in_host_function()?;
    let caches = caches()?;
    let asked = caches.iter().filter(|cache| device.is_none_or(|device| device == cache.device));
    Snapshot::new(caches.len(), asked.map(|cache| Ok((cache.device as usize, cache.picture()?))))
}

/// Gives everything back, also what is handed out. Nothing may use it any more.
pub fn shutdown() {
    let Ok(runtime) = runtime::runtime() else { return };
    captures::forget_all();
    for cache in all(None) {
        if poison::is_on() {
            // What ails the device does not matter any more.
            let _ = cache.check_poison();
        }
        cache.tear_down(runtime);
    }
    CACHES.get().into_iter().flatten().for_each(|cache| cache.record_history(Mode::Off, 0, true));
    pinned::shutdown();
    pools::forget_all();
    lent::forget();
    poison::forget_all();
    poison::tell();
    limits::forget();
    options::reset();
}

/// The device whose cache an address belongs to, be it of a block, of free memory, or reserved with no memory there.
pub fn reserves(address: Address) -> Option<i32> {
    areas::caches_at(address).find_map(numbered).map(|cache| cache.device)
}

/// Panics if the blocks, lists and statistics of a device contradict each other. For tests.
#[doc(hidden)]
pub fn check(device: i32) {
    for cache in all(Some(device)) {
        let mut core = cache.core.lock();
        core.check();
        core.check_areas();
    }
}

/// Rises each time that all threads of a device are stopped. For tests.
#[doc(hidden)]
pub fn stops(device: i32) -> u64 {
    all(Some(device)).into_iter().map(|cache| cache.core.quiet().fronts.stops()).sum()
}

/// Streams of which there is something to look at, those of pools too. For tests.
#[doc(hidden)]
pub fn streams_awake(device: i32) -> usize {
    all(Some(device)).into_iter().map(|cache| cache.core.quiet().awake.len()).sum()
}

/// Records of threads; those of threads that ended are used again. For tests.
#[doc(hidden)]
pub fn threads_made() -> u32 {
    thread::made()
}

#[doc(hidden)]
pub fn slots(device: i32) -> usize {
    existing(device).map_or(0, |cache| cache.core.quiet().slots.len())
}

#[doc(hidden)]
pub fn records_given() -> u32 {
    cache::block::given()
}
