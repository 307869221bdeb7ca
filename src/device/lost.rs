//! Devices that failed for good. CUDA answers every call on them with the old error; tcuda says what that means.

use crate::base::{Error, Result, Status};
use crate::runtime::{api, code};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static ANY: AtomicBool = AtomicBool::new(false);
static LOST: Mutex<Vec<Loss>> = Mutex::new(Vec::new());

struct Loss {
    device: i32,
    native: i32,
    /// The error's first sentence, and the C function that heard of it.
    first: String,
    /// What the device was given; empty if nobody knows.
    given: String,
}

/// Remembers that a device answered with an error that nothing but a new process mends. The first error is kept, with the function that heard of
/// it and what the device was given. Whether it is the first.
#[cold]
pub fn mark(device: i32, error: &Error, function: &str, given: impl FnOnce() -> String) -> bool {
    let is_known = || LOST.lock().iter().any(|loss| loss.device == device);
    if is_known() {
        return false;
    }
    // With no lock held: streams are looked up.
    let given = given();
    // What follows in it says the same as this does.
    let what = error.message.split_once(". ").map_or(&*error.message, |(what, _)| what).trim_end_matches('.');
    let loss = Loss { device, native: error.native, first: format!("{what}, which {function} heard of"), given };
    let mut lost = LOST.lock();
    if lost.iter().any(|loss| loss.device == device) {
        return false;
    }
    lost.push(loss);
    ANY.store(true, Ordering::Relaxed);
    true
}

/// What a lost device had been given, as far as that was recorded: a sentence, or nothing.
pub fn given(device: i32) -> String {
    LOST.lock().iter().find(|loss| loss.device == device).map(|loss| loss.given.clone()).unwrap_or_default()
}

/// For an error of a call that named this device by a handle: CUDA does not say whose error it is, nor of one that it does not know whether it
/// stays. -1: nobody knows the handle's device.
pub fn blame(device: i32) -> impl Fn(Error) -> Error {
    move |error| match error.status {
        _ if device < 0 => error,
        Status::TCUDA_ERROR_DEVICE_LOST if error.device < 0 => error.on_device(device),
        Status::TCUDA_ERROR_CUDA if error.native == code::UNKNOWN && super::guard::fails(device) => api::lost(error).on_device(device),
        _ => error,
    }
}

/// The same for a call that named two: one of them, unless that is well, else the other.
pub fn blame_either(one: i32, other: i32) -> impl Fn(Error) -> Error {
    move |error| {
        let may_be_lost = error.status == Status::TCUDA_ERROR_DEVICE_LOST || error.native == code::UNKNOWN;
        let is_well = one < 0 || one == other || (may_be_lost && !super::guard::fails(one));
        blame(if is_well { other } else { one })(error)
    }
}

/// An error if the device is lost.
#[inline]
pub fn check(device: i32) -> Result<()> {
    if ANY.load(Ordering::Relaxed) { check_list(device) } else { Ok(()) }
}

#[cold]
fn check_list(device: i32) -> Result<()> {
    match LOST.lock().iter().find(|loss| loss.device == device) {
        None => Ok(()),
        Some(Loss { native, first, given, .. }) => Err(Error::new(
            Status::TCUDA_ERROR_DEVICE_LOST,
            format!("Device {device} is lost to this process; only a new process can use it again. The first error was: {first}.{given}"),
        )
        .with_native(*native)
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
        let told = || String::from(" It was given this.");
        assert!(mark(1000, &Error::internal("an illegal address. It says more.").with_native(700), "tcuda_x", told));
        assert!(!mark(1000, &Error::internal("a later one"), "tcuda_y", || panic!("nobody wants to know")));
        let error = check(1000).unwrap_err();
        assert_eq!((error.status, error.native, error.device), (Status::TCUDA_ERROR_DEVICE_LOST, 700, 1000));
        assert!(error.message.ends_with("The first error was: an illegal address, which tcuda_x heard of. It was given this."));
        assert_eq!((given(1000).as_str(), given(1001).as_str()), (" It was given this.", ""));
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
