//! Panics, with something to drop on the way, and gives back what was caught.

use std::sync::atomic::{AtomicI32, Ordering};

static DROPPED: AtomicI32 = AtomicI32::new(0);

struct Dropped;

impl Drop for Dropped {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline(never)]
fn fall(number: i32) -> i32 {
    let _kept = Dropped;
    std::panic::panic_any(number)
}

/// The number that was thrown, plus one.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_probe(number: i32) -> i32 {
    std::panic::set_hook(Box::new(|_| {}));
    std::panic::catch_unwind(|| fall(number)).unwrap_or_else(|payload| payload.downcast_ref::<i32>().map_or(-1, |n| n + 1))
}

#[unsafe(no_mangle)]
pub extern "C" fn unwind_dropped() -> i32 {
    DROPPED.load(Ordering::Relaxed)
}
