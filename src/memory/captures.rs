//! Where memory comes from while graphs are captured. The room that captures says when a capture begins and ends, and which pool its
//! allocations come from; here it is looked up for each stream that takes part. For another library that captures by itself, `steer` takes
//! a function that knows its streams.
//!
//! While any capture is under way threads keep nothing to themselves, so that each allocation comes by here.

use super::cache::Cache;
use super::{all, caches, existing, pinned, pools};
use crate::base::sync_debug::{Kind, blocking};
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, insist, process};
use crate::device;
use crate::event;
use crate::runtime;
use crate::runtime::api::CaptureStatus;
use crate::stream::{self, Stream};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Whether the allocations on a stream are meant, by CUDA's handle.
pub type Chooser = Box<dyn Fn(usize) -> bool + Send + Sync>;

struct Route {
    whose: Whose,
    pool: Arc<pools::Pool>,
}

enum Whose {
    Graph {
        /// The driver's number of the capture.
        capture: u64,
        /// Where streams take part.
        devices: Vec<i32>,
        /// What keeps pinned memory for the graph.
        keeper: pinned::Keeper,
        thread: u64,
    },
    Library {
        number: u64,
        chooses: Chooser,
    },
}

static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static ROUTES: RwLock<Vec<Route>> = RwLock::new(Vec::new());

#[inline]
pub fn any() -> bool {
    ACTIVE.load(Relaxed) != 0
}

/// Whether some graph's capture is under way on a device, which then cannot be waited for as a whole.
pub fn is_on(device: i32) -> bool {
    let is_there = |route: &Route| match &route.whose {
        Whose::Graph { devices, .. } => devices.contains(&device),
        Whose::Library { .. } => route.pool.cache.device == device,
    };
    any() && ROUTES.read().iter().any(is_there)
}

/// Waits for all work of a device. TCUDA_ERROR_CAPTURE while a graph is captured there; one that begins meanwhile goes on.
pub fn wait_for_device(device: i32) -> Result<()> {
    refuse_on(device)?;
    blocking("cudaFree", Kind::Wait, || wait_beside(device))
}

/// The same for what the driver's own pool is to learn by it, which it does by no other call than the one that ends captures. When it is made all work
/// is done: only a capture that begins at that very moment is ended.
pub fn synchronize(device: i32) -> Result<()> {
    wait_for_device(device)?;
    refuse_on(device)?;
    let _guard = device::Guard::new(device)?;
    runtime::runtime()?.outside_capture(|| device::synchronize(device))
}

fn refuse_on(device: i32) -> Result<()> {
    if !is_on(device) {
        return Ok(());
    }
    let text = "The device cannot be waited for while a graph is captured on it, which that would end.";
    Err(Error::new(Status::TCUDA_ERROR_CAPTURE, text).on_device(device))
}

/// Waits for all work of a device beside captures, by what cudaFree does: cudaDeviceSynchronize, which would end them, has to do where the device has
/// no room for a block, and none is captured.
pub fn wait_beside(device: i32) -> Result<()> {
    // Before the mode is asked for: the current device may be lost.
    let _guard = device::Guard::new(device)?;
    let runtime = runtime::runtime()?;
    runtime.outside_capture(|| match runtime.malloc(1) {
        Ok(block) => existing(device).map_or_else(|| insist(|| runtime.free(block)), |cache| cache.free_block(runtime, block)),
        Err(_) => {
            refuse_on(device)?;
            runtime.device_synchronize()
        }
    })?;
    watch::tell(|| Happening::DeviceWaited { device });
    Ok(())
}

/// `start` begins the capture and gives its number. From then on what its streams allocate comes from the pool, and pinned memory that
/// they use, or that this thread allocates, is kept for as long as the keeper lives.
pub fn begin(pool: u64, keeper: pinned::Keeper, start: impl FnOnce() -> Result<u64>) -> Result<()> {
    let pool = pools::private(pool)?;
    caches()?;
    ACTIVE.fetch_add(1, Relaxed);
    let begun = stop_fronts_and(pool.cache.device, || {
        // Who allocates on the stream meanwhile waits here for the answer.
        let mut routes = ROUTES.write();
        let capture = start()?;
        let devices = vec![pool.cache.device];
        routes.push(Route { whose: Whose::Graph { capture, devices, keeper, thread: process::thread() }, pool });
        Ok(())
    });
    if begun.is_err() {
        ACTIVE.fetch_sub(1, Relaxed);
    }
    begun
}

/// With no front armed, and nobody in the middle of marking a stream that is about to be captured.
fn stop_fronts_and<T>(device: i32, work: impl FnOnce() -> T) -> T {
    all(None).into_iter().for_each(|cache| drop(cache.core.lock()));
    event::around_waits(around_wait);
    unmarked(device, work)
}

/// Until this is dropped no stream begins a capture or joins one by a wait of tcuda: one that is not captured may be given work that is no part of
/// any. Nothing that waits is done meanwhile.
pub fn steady() -> impl Drop {
    pinned::hold_marks()
}

/// A stream waits for an event, by which it may join a capture.
fn around_wait(stream: Stream, wait: &mut dyn FnMut()) {
    if !any() {
        return wait();
    }
    unmarked(stream.device, || {
        wait();
        note_device(stream);
    });
    joined(stream);
}

static JOINED: OnceLock<fn(Stream)> = OnceLock::new();

/// For who has something that works on a stream: told of each that begins a capture, or may have joined one.
pub fn on_joined(hook: fn(Stream)) {
    let _ = JOINED.set(hook);
}

pub fn joined(stream: Stream) {
    if let Some(hook) = JOINED.get() {
        hook(stream);
    }
}

/// The capture that a stream takes part in may be new on its device.
fn note_device(stream: Stream) {
    let is_elsewhere = |route: &Route| matches!(&route.whose, Whose::Graph { devices, .. } if !devices.contains(&stream.device));
    if !ROUTES.read().iter().any(is_elsewhere) {
        return;
    }
    let Ok(Some(joined)) = insist(|| capture_of(stream)) else { return };
    for route in ROUTES.write().iter_mut() {
        if let Whose::Graph { capture, devices, .. } = &mut route.whose
            && *capture == joined
            && !devices.contains(&stream.device)
        {
            devices.push(stream.device);
        }
    }
}

/// While nobody is in the middle of asking or marking a stream: that of one that is captured by then would end the capture, and who waits for such
/// a mark would be captured too.
fn unmarked<T>(device: i32, work: impl FnOnce() -> T) -> T {
    let _pinned = pinned::hold_marks();
    let marking: Vec<&Cache> = all(Some(device));
    let _device: Vec<_> = marking.into_iter().map(Cache::hold_marks).collect();
    work()
}

pub fn end(capture: u64) {
    remove(|whose| matches!(whose, Whose::Graph { capture: known, .. } if *known == capture));
}

fn remove(is_it: impl Fn(&Whose) -> bool) {
    let mut routes = ROUTES.write();
    if let Some(at) = routes.iter().position(|route| is_it(&route.whose)) {
        let removed = routes.remove(at);
        ACTIVE.fetch_sub(1, Relaxed);
        drop(routes);
        drop(removed);
    }
}

/// Until `unsteer` with the number that it gives, what is allocated on the streams that are chosen comes from the pool. Of several that
/// choose one stream the last is taken.
pub fn steer(pool: u64, chooses: Chooser) -> Result<u64> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let pool = pools::private(pool)?;
    caches()?;
    let number = LAST.fetch_add(1, Relaxed) + 1;
    ACTIVE.fetch_add(1, Relaxed);
    let device = pool.cache.device;
    stop_fronts_and(device, || ROUTES.write().push(Route { whose: Whose::Library { number, chooses }, pool }));
    Ok(number)
}

pub fn unsteer(number: u64) {
    remove(|whose| matches!(whose, Whose::Library { number: known, .. } if *known == number));
}

/// All captures are over, by the end of everything.
pub fn forget_all() {
    let gone = std::mem::take(&mut *ROUTES.write());
    ACTIVE.store(0, Relaxed);
    // Without the lock: a library's function goes with its route.
    drop(gone);
}

/// What is said of a stream: by a library, or of the capture that it takes part in.
fn with_route<T>(stream: Stream, work: impl FnOnce(&Route) -> T) -> Result<Option<T>> {
    let routes = ROUTES.read();
    let chosen = |route: &&Route| match &route.whose {
        Whose::Library { chooses, .. } => route.pool.cache.device == stream.device && chooses(stream.raw),
        Whose::Graph { .. } => false,
    };
    if let Some(route) = routes.iter().rev().find(chosen) {
        return Ok(Some(work(route)));
    }
    if stream.raw == stream::DEFAULT {
        return Ok(None);
    }
    let entered = stream.enter()?;
    let captured = |id: u64| routes.iter().find(|route| matches!(route.whose, Whose::Graph { capture, .. } if capture == id));
    match entered.runtime.capture_status(entered.raw)? {
        CaptureStatus::None => Ok(None),
        CaptureStatus::Active(id) | CaptureStatus::Invalidated(id) => Ok(captured(id).map(work)),
    }
}

/// The pool that a stream's memory has to come from now.
pub fn pool_of(stream: Stream) -> Result<Option<Arc<pools::Pool>>> {
    match with_route(stream, |route| route.pool.clone())? {
        Some(pool) if pool.cache.device != stream.device => {
            let text = format!(
                "The capture of a graph on device {} cannot allocate on device {}: allocate there before it begins.",
                pool.cache.device, stream.device
            );
            Err(Error::new(Status::TCUDA_ERROR_CAPTURE, text).on_device(stream.device))
        }
        pool => Ok(pool),
    }
}

/// The number of our capture that a stream takes part in.
pub fn capture_of(stream: Stream) -> Result<Option<u64>> {
    let of = |route: &Route| match route.whose {
        Whose::Graph { capture, .. } => Some(capture),
        Whose::Library { .. } => None,
    };
    if any() { with_route(stream, of).map(Option::flatten) } else { Ok(None) }
}

/// What keeps the pinned memory that a stream uses.
pub fn keeper_of(stream: Stream) -> Result<Option<pinned::Keeper>> {
    let of = |route: &Route| match &route.whose {
        Whose::Graph { keeper, .. } => Some(keeper.clone()),
        Whose::Library { .. } => None,
    };
    with_route(stream, of).map(Option::flatten)
}

/// The same for what this thread allocates: those of its own captures.
pub fn own_keepers() -> Vec<pinned::Keeper> {
    let own = process::thread();
    let routes = ROUTES.read();
    let keeper = |route: &Route| match &route.whose {
        Whose::Graph { keeper, thread, .. } if *thread == own => Some(keeper.clone()),
        _ => None,
    };
    routes.iter().filter_map(keeper).collect()
}
