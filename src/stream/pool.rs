//! The pool: 32 streams per priority and device, handed out in turn, each made when its turn comes for the first time.

use super::registry::{self, Kind};
use super::{Stream, own};
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, insist};
use crate::device;
use crate::runtime;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Streams per priority and device. The 33rd request gets the first stream again, as in torch.
pub const PER_LEVEL: usize = 32;
/// torch uses at most four priorities, of which 0 is the lowest.
const LEVELS: usize = 4;
const DEVICES: usize = 128;

#[derive(Default)]
struct Level {
    next: AtomicU32,
    /// 0: not made yet.
    streams: [AtomicUsize; PER_LEVEL],
}

struct DevicePool {
    /// The device's lowest priority: 0.
    least: i32,
    /// How many of the levels the device has.
    count: usize,
    levels: [Level; LEVELS],
}

static POOLS: [OnceLock<Box<DevicePool>>; DEVICES] = [const { OnceLock::new() }; DEVICES];
static MAKING: Mutex<()> = Mutex::new(());

/// (least, greatest) priority that the pool tells apart: 0 and at best -3, as torch's. `create` takes all that the device has.
pub fn priority_range(device: i32) -> Result<(i32, i32)> {
    let pool = pool_of(device::resolve(device)?)?;
    Ok((pool.least, pool.least - (pool.count as i32 - 1)))
}

fn pool_of(device: i32) -> Result<&'static DevicePool> {
    let cell = POOLS.get(device as usize).ok_or_else(|| too_many(device))?;
    match cell.get() {
        Some(pool) => Ok(pool),
        None => first_use(cell, device),
    }
}

#[cold]
fn too_many(device: i32) -> Error {
    Error::not_supported(format!("Device {device} has no pool of streams: tcuda keeps pools for {DEVICES} devices.")).on_device(device)
}

#[cold]
fn first_use(cell: &'static OnceLock<Box<DevicePool>>, device: i32) -> Result<&'static DevicePool> {
    let _guard = device::Guard::new(device)?;
    let (least, greatest) = runtime::runtime()?.stream_priority_range()?;
    let count = ((least - greatest + 1).max(1) as usize).min(LEVELS);
    Ok(cell.get_or_init(|| Box::new(DevicePool { least, count, levels: Default::default() })))
}

/// The next stream of a priority, cut to the pool's range: 0 is normal, smaller is served first. It is shared with whoever draws
/// the same one, and never destroyed.
#[inline]
pub fn from_pool(device: i32, priority: i32) -> Result<Stream> {
    let device = device::resolve(device)?;
    let pool = pool_of(device)?;
    let level = (pool.least.saturating_sub(priority).max(0) as usize).min(pool.count - 1);
    let turn = pool.levels[level].next.fetch_add(1, Ordering::Relaxed) as usize % PER_LEVEL;
    match pool.levels[level].streams[turn].load(Ordering::Acquire) {
        0 => make(pool, device, level, turn),
        raw => Ok(Stream { device, raw }),
    }
}

#[cold]
fn make(pool: &DevicePool, device: i32, level: usize, turn: usize) -> Result<Stream> {
    let _one_at_a_time = MAKING.lock();
    let place = &pool.levels[level].streams[turn];
    let mut raw = place.load(Ordering::Acquire);
    if raw == 0 {
        let _guard = device::Guard::new(device)?;
        raw = runtime::runtime()?.stream_create(own::NON_BLOCKING, pool.least - level as i32)?;
        registry::insert(raw, device, Kind::Pool);
        place.store(raw, Ordering::Release);
        watch::tell(|| Happening::StreamMade { on: Stream { device, raw }.place() });
    }
    Ok(Stream { device, raw })
}

/// Destroys the streams; the next request makes new ones.
pub(super) fn shutdown() {
    let _one_at_a_time = MAKING.lock();
    for (device, pool) in POOLS.iter().enumerate().filter_map(|(device, cell)| Some((device as i32, cell.get()?))) {
        for place in pool.levels.iter().flat_map(|level| &level.streams) {
            let raw = place.swap(0, Ordering::AcqRel);
            if raw != 0 {
                // What cannot be destroyed is lost with its device.
                let _ = insist(|| Stream { device, raw }.enter()?.runtime.stream_destroy(raw));
            }
        }
        for level in &pool.levels {
            level.next.store(0, Ordering::Relaxed);
        }
    }
}
