//! Events without timing for tcuda's own marks: taken and given back, hardly ever made. A thread has a small store of its own.

use crate::base::spared::Uncancelled;
use crate::base::watch::{self, Happening};
use crate::base::{Result, insist, process};
use crate::device;
use crate::runtime::{self, RawEvent, Runtime};
use crate::stream::Stream;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a thread keeps, over all devices.
const OWN: usize = 16;
/// What all threads share, per device. More are destroyed, by who takes one or empties the caches: who gives one may hold locks.
const SHARED: usize = 1024;

#[derive(Clone, Copy)]
struct Idle {
    device: i32,
    event: RawEvent,
}

/// A thread's store. Its lock is the thread's own but for shutdown.
type Store = Arc<Mutex<Vec<Idle>>>;

static STORES: Mutex<Vec<Store>> = Mutex::new(Vec::new());
static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// Hands the thread's events over when the thread ends.
struct Home(Store);

impl Home {
    /// From here on its store has room for none.
    fn end(&self) {
        // In the child of a fork another thread of the parent may have held a lock.
        if process::is_forked() {
            return;
        }
        STORES.lock().retain(|store| !Arc::ptr_eq(store, &self.0));
        let left = std::mem::take(&mut *self.0.lock());
        left.into_iter().for_each(share);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _whole = Uncancelled::enter();
        self.end();
    }
}

thread_local! {
    static HOME: Home = {
        process::at_end(|| _ = HOME.try_with(Home::end));
        let store = Store::new(Mutex::new(Vec::with_capacity(OWN)));
        STORES.lock().push(store.clone());
        Home(store)
    };
}

/// An event of a device, without timing. What it was recorded for last is past or does not matter: record it before waiting on it.
#[inline]
pub fn take(device: i32) -> Result<RawEvent> {
    let own = HOME.try_with(|home| {
        let mut idle = home.0.lock();
        // The newest is the warmest, and with one device it fits.
        let index = idle.iter().rposition(|idle| idle.device == device)?;
        Some(idle.swap_remove(index).event)
    });
    match own {
        Ok(Some(event)) => Ok(event),
        _ => take_shared(device),
    }
}

#[cold]
fn take_shared(device: i32) -> Result<RawEvent> {
    let (own, surplus) = {
        let mut idle = IDLE.lock();
        let count = idle.iter().filter(|idle| idle.device == device).count();
        let mut next = || idle.iter().rposition(|idle| idle.device == device).map(|index| idle.swap_remove(index));
        (next(), if count > SHARED { next() } else { None })
    };
    surplus.into_iter().for_each(destroy);
    if let Some(own) = own {
        return Ok(own.event);
    }
    let _guard = device::Guard::new(device)?;
    runtime::runtime()?.event_create(super::DISABLE_TIMING)
}

/// Gives an event of `take` back. Waits that were enqueued on it stay as they are.
#[inline]
pub fn give(device: i32, event: RawEvent) {
    let kept = HOME.try_with(|home| {
        let mut idle = home.0.lock();
        let room = idle.len() < OWN.min(idle.capacity());
        if room {
            idle.push(Idle { device, event });
        }
        room
    });
    if kept != Ok(true) {
        share(Idle { device, event });
    }
}

#[cold]
fn share(new: Idle) {
    IDLE.lock().push(new);
}

/// Destroys what a device (or each) has more than threads share.
pub fn shrink(device: Option<i32>) {
    let mut counts = BTreeMap::<i32, usize>::new();
    let is_surplus = |idle: &mut Idle| {
        let count = counts.entry(idle.device).or_default();
        *count += 1;
        *count > SHARED && device.is_none_or(|device| device == idle.device)
    };
    let surplus: Vec<Idle> = IDLE.lock().extract_if(.., is_surplus).collect();
    surplus.into_iter().for_each(destroy);
}

fn destroy(idle: Idle) {
    // What cannot be destroyed is lost with its device.
    let _ = insist(|| device::Guard::new(idle.device).and_then(|_guard| runtime::runtime()?.event_destroy(idle.event)));
}

/// An event of the pool that goes back by itself.
pub struct Pooled {
    device: i32,
    event: RawEvent,
}

impl Pooled {
    pub fn take(device: i32) -> Result<Pooled> {
        Ok(Pooled { device, event: take(device)? })
    }

    pub fn raw(&self) -> RawEvent {
        self.event
    }

    /// Marks the point that a stream has come to; a default stream's device is current.
    pub fn record(&self, runtime: &Runtime, stream: Stream) -> Result<()> {
        runtime.event_record(self.event, stream.raw).map_err(device::blame(stream.device))?;
        watch::tell(|| Happening::EventRecorded { event: self.event, on: stream.place() });
        Ok(())
    }

    /// Makes a stream's later work wait for that point; likewise.
    pub fn hold_up(&self, runtime: &Runtime, stream: Stream) -> Result<()> {
        super::waiting(stream, || runtime.stream_wait_event(stream.raw, self.event))
            .map_err(device::blame_either(self.device, stream.device))?;
        watch::tell(|| Happening::EventWaited { event: self.event, on: stream.place() });
        Ok(())
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        give(self.device, self.event);
    }
}

/// Destroys every idle event, of every thread.
pub(super) fn shutdown() {
    let stores: Vec<Store> = STORES.lock().clone();
    let mut all = std::mem::take(&mut *IDLE.lock());
    for store in stores {
        all.append(&mut store.lock());
    }
    all.into_iter().for_each(destroy);
}
