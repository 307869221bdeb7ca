//! What the driver did not take back though it was asked twice. It is asked again before memory is made or given back, so that nothing is lost but
//! what it keeps for good.

use crate::base::{Result, insist};
use crate::runtime::{Address, MemHandle, Runtime};
use parking_lot::Mutex;

/// Of one cache, in the order in which it goes back.
#[derive(Default)]
pub struct Left(Mutex<Vec<What>>);

#[derive(Clone, Copy)]
enum What {
    Mapping(Address, usize),
    Handle(MemHandle),
    /// Of cudaMalloc and its like.
    Block(Address),
}

impl What {
    /// It is left where another try may do it.
    fn end(self, runtime: &Runtime, left: &mut Vec<What>) -> Result<()> {
        let end = || match self {
            What::Mapping(start, size) => runtime.mem_unmap(start, size),
            What::Handle(handle) => runtime.mem_release(handle),
            What::Block(address) => runtime.free(address),
        };
        insist(|| runtime.outside_capture(end)).inspect_err(|error| {
            if !error.stays() {
                left.push(self);
            }
        })
    }
}

impl Left {
    /// Ends a mapping that nobody counts on any more.
    pub fn unmap(&self, runtime: &Runtime, start: Address, size: usize) {
        let _ = What::Mapping(start, size).end(runtime, &mut self.0.lock());
    }

    pub fn release(&self, runtime: &Runtime, handle: MemHandle) {
        let _ = What::Handle(handle).end(runtime, &mut self.0.lock());
    }

    pub fn free(&self, runtime: &Runtime, block: Address) -> Result<()> {
        What::Block(block).end(runtime, &mut self.0.lock())
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Asks again. Nobody maps memory where a mapping is left meanwhile.
    pub fn take_back(&self, runtime: &Runtime) {
        let mut left = self.0.lock();
        for what in std::mem::take(&mut *left) {
            let _ = what.end(runtime, &mut left);
        }
    }

    /// For the end of the process' use of the device: the last try.
    pub fn forget(&self, runtime: &Runtime) {
        self.take_back(runtime);
        self.0.lock().clear();
    }
}
