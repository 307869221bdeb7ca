//! Devices that failed for good. CUDA answers every call on them with the old error; tcuda says what that means.

use crate::base::{Error, Result, Status};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static ANY: AtomicBool = AtomicBool::new(false);
static LOST: Mutex<Vec<(i32, Error)>> = Mutex::new(Vec::new());

/// Remembers that a device answered with an error that nothing but a new process mends. The first error is kept.
#[cold]
pub fn mark(device: i32, error: &Error) {
    let mut lost = LOST.lock();
    if !lost.iter().any(|(d, _)| *d == device) {
        lost.push((device, error.clone()));
        ANY.store(true, Ordering::Relaxed);
    }
}

/// For an error of a call that named this device by a handle: CUDA does not say whose error it is.
pub fn blame(device: i32) -> impl Fn(Error) -> Error {
    move |error| {
        let unknown = error.status == Status::TCUDA_ERROR_DEVICE_LOST && error.device < 0;
        if unknown { error.on_device(device) } else { error }
    }
}

/// An error if the device is lost.
#[inline]
pub fn check(device: i32) -> Result<()> {
    if ANY.load(Ordering::Relaxed) { check_list(device) } else { Ok(()) }
}

#[cold]
fn check_list(device: i32) -> Result<()> {
    match LOST.lock().iter().find(|(d, _)| *d == device) {
        None => Ok(()),
        Some((_, first)) => Err(Error::new(
            Status::TCUDA_ERROR_DEVICE_LOST,
            format!(
                "Device {device} is lost to this process; only a new process can use it again. The first error was: {}",
                // What follows in it says the same.
                first.message.split_once(". ").map_or(&*first.message, |(what, _)| what)
            ),
        )
        .with_native(first.native)
        .on_device(device)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_what_later_calls_hear() {
        // An index that no test has a device for.
        assert!(check(1000).is_ok());
        mark(1000, &Error::internal("an illegal address").with_native(700));
        mark(1000, &Error::internal("a later one"));
        let error = check(1000).unwrap_err();
        assert_eq!((error.status, error.native, error.device), (Status::TCUDA_ERROR_DEVICE_LOST, 700, 1000));
        assert!(error.message.contains("an illegal address"));
        assert!(check(1001).is_ok());
    }

    #[test]
    fn only_an_error_without_a_device_is_blamed_on_one() {
        let lost = Error::new(Status::TCUDA_ERROR_DEVICE_LOST, "x");
        assert_eq!(blame(4)(lost.clone()).device, 4);
        assert_eq!(blame(4)(lost.on_device(2)).device, 2);
        assert_eq!(blame(4)(Error::internal("x")).device, -1);
    }
}
