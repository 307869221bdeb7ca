//! Memory that the driver did not take back though it was asked twice. It is asked again before memory is made or given back, so that nothing
//! is lost but what it keeps for good.

use crate::base::{Result, insist};
use crate::device;
use crate::runtime::{Address, MemHandle, Runtime};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Of one cache. The driver is asked with no lock of this held.
#[derive(Default)]
pub struct Left {
    /// In the order in which it goes back.
    list: Mutex<Vec<What>>,
    /// With those that are being asked for.
    count: AtomicUsize,
}

#[derive(Clone, Copy)]
enum What {
    Mapping(Address, usize),
    Handle(MemHandle),
    Block(Address),
}

impl What {
    fn end(self, runtime: &Runtime) -> Result<()> {
        insist(|| {
            runtime.outside_capture(|| match self {
                What::Mapping(start, size) => runtime.mem_unmap(start, size),
                What::Handle(handle) => runtime.mem_release(handle),
                What::Block(address) => runtime.free(address),
            })
        })
    }
}

impl Left {
    /// Ends a mapping that nobody counts on any more.
    pub fn unmap(&self, runtime: &Runtime, start: Address, size: usize) {
        let _ = self.end(runtime, What::Mapping(start, size));
    }

    pub fn release(&self, runtime: &Runtime, handle: MemHandle) {
        let _ = self.end(runtime, What::Handle(handle));
    }

    /// A block of cudaMalloc.
    pub fn free(&self, runtime: &Runtime, address: Address) -> Result<()> {
        self.end(runtime, What::Block(address))
    }

    /// On failure it is left where another try may do it.
    fn end(&self, runtime: &Runtime, what: What) -> Result<()> {
        what.end(runtime).inspect_err(|error| {
            if !error.stays() {
                self.count.fetch_add(1, Relaxed);
                self.list.lock().push(what);
            }
        })
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Whether a mapping is left among addresses, which are not the cache's to give back then.
    pub fn is_in(&self, base: Address, size: usize) -> bool {
        let is_there = |what: &What| matches!(*what, What::Mapping(start, _) if start.wrapping_sub(base) < size);
        !self.is_empty() && self.list.lock().iter().any(is_there)
    }

    /// Asks again, for a cache of that device. Under `growing`: nobody maps memory where a mapping is left meanwhile.
    pub fn take_back(&self, runtime: &Runtime, device: i32) {
        if self.is_empty() {
            return;
        }
        // Before the mode is asked for: the current device may be lost.
        let Ok(_guard) = device::Guard::new(device) else { return };
        let left = std::mem::take(&mut *self.list.lock());
        for what in left {
            let _ = self.end(runtime, what);
            self.count.fetch_sub(1, Relaxed);
        }
    }

    /// For the end of the process' use of the device: the last try.
    pub fn forget(&self, runtime: &Runtime, device: i32) {
        self.take_back(runtime, device);
        self.list.lock().clear();
        self.count.store(0, Relaxed);
    }
}
