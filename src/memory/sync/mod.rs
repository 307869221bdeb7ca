//! What the threads of the cache share words by: atomics, locks, and the barrier that one of them has all others pass.
//!
//! In unit tests they are those of a model of a machine (`model`), under which the same source runs; in the library they are the standard
//! library's and parking_lot's own.

#[cfg(test)]
pub mod model;
#[cfg(test)]
pub use model::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, spin_loop, yield_now};

#[cfg(not(test))]
pub use {
    parking_lot::{Mutex, MutexGuard},
    std::hint::spin_loop,
    std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize},
    std::thread::yield_now,
};

use crate::base::{log, process};

/// Whether there is a `barrier`; else there are no fronts.
pub fn can_stop() -> bool {
    process::has_barrier()
}

/// Every thread of the process that runs passes a full barrier.
pub fn barrier() {
    const TRIES: usize = 1000;
    #[cfg(test)]
    if model::barrier() {
        return;
    }
    // It fails for want of kernel memory, or where a filter of system calls came later. Without it two threads would have one block.
    if !(0..TRIES).any(|_| process::barrier()) {
        log::write(log::Level::Error, "membarrier works no more; memory cannot be kept apart between threads.");
        std::process::abort();
    }
}
