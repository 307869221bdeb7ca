//! # device
//! Owns:   which devices there are, which one is current, their properties, peer access, which are lost.
//! Uses:   runtime, base.
//! Never:  leaves another device current than it found, or makes a context only to restore one.
//! Locks:  peer::ENABLING (held while hooks run; hooks may take memory's locks). Properties are made once each.
//! Tests:  in the files, tests/conformance/device.rs.

mod guard;
mod lost;
pub mod peer;
mod properties;

pub use guard::{Guard, guard_against_stray_context};
pub use lost::{blame, blame_either, check as check_lost, given as given_to_lost, mark as mark_lost};
pub use properties::{DeviceProperties, attribute, properties, reaches_pageable, total_memory};

use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, process, sync_debug};
use crate::runtime::api::Place;
use crate::runtime::{self, Address};

/// The calling thread's current device, wherever a device is asked for.
pub const CURRENT: i32 = -1;
/// Host memory, where a place is meant.
pub const CPU: i32 = -2;
/// Every device, where a call can mean all.
pub const ALL: i32 = -3;

/// How many devices there are. 0 without a backend, in a forked child and after shutdown: it never fails.
pub fn count() -> i32 {
    if process::check().is_err() {
        return 0;
    }
    runtime::runtime().map_or(0, |runtime| runtime.device_count)
}

/// The calling thread's current device: CUDA's own.
pub fn current() -> Result<i32> {
    runtime::runtime()?.get_device()
}

/// Makes a device current for the calling thread. A negative index does nothing. Back on a device that `exchange` found without a context none is
/// made.
pub fn set(device: i32) -> Result<()> {
    if device < 0 {
        return Ok(());
    }
    check_range(device)?;
    lost::check(device)?;
    // Also when it is current already: as in CUDA, this is what makes the device's context.
    guard::set(runtime::runtime()?, device).map_err(blame(device))
}

/// Makes a device current for a while, and says which one was before.
pub fn exchange(device: i32) -> Result<i32> {
    let previous = current()?;
    if device >= 0 {
        check_range(device)?;
        lost::check(device)?;
        guard::exchange(runtime::runtime()?, previous, device).map_err(blame(device))?;
    }
    Ok(previous)
}

/// -1 becomes the current device; anything else has to be an index in range.
#[inline]
pub fn resolve(device: i32) -> Result<i32> {
    let device = index(device)?;
    lost::check(device)?;
    Ok(device)
}

/// The same for an entry of a list of devices, where -1 is none.
pub fn listed(device: i32) -> Result<i32> {
    if device < 0 {
        return Err(Error::invalid_argument(format!("Expected non-negative device index, but got {device}")).on_device(device));
    }
    resolve(device)
}

/// The same as `resolve`, for what works with a lost device too.
#[inline]
pub fn index(device: i32) -> Result<i32> {
    if device == CURRENT { current() } else { check_range(device) }
}

#[inline]
fn check_range(device: i32) -> Result<i32> {
    let count = runtime::runtime()?.device_count;
    if (0..count).contains(&device) { Ok(device) } else { Err(out_of_range(device, count)) }
}

#[cold]
fn out_of_range(device: i32, count: i32) -> Error {
    let hint = match device {
        CPU => " (-2 is the CPU, which this call does not take)",
        ALL => " (-3 is all devices, which this call does not take)",
        _ => "",
    };
    Error::new(Status::TCUDA_ERROR_INVALID_DEVICE, format!("Device index value {device} is out of index range [0, {count}){hint}"))
        .on_device(device)
}

/// A device to do what belongs to none: the current one, unless that would make it a context or it is lost and another one does better.
pub fn with_context() -> Result<i32> {
    let runtime = runtime::runtime()?;
    let current = runtime.get_device()?;
    let good = || std::iter::once(current).chain(0..runtime.device_count).filter(|device| lost::check(*device).is_ok());
    Ok(good().find(|device| guard::has_context(runtime, *device)).or_else(|| good().next()).unwrap_or(current))
}

/// The device that memory belongs to; `CPU` for host memory, pinned or not, and for NULL.
pub fn of_pointer(address: Address) -> Result<i32> {
    if address == 0 {
        return Ok(CPU);
    }
    Ok(match runtime::runtime()?.place_of(address)? {
        Place::Unregistered | Place::Pinned { .. } => CPU,
        Place::Device { device } | Place::Managed { device } => device,
    })
}

/// Waits for all work of a device.
pub fn synchronize(device: i32) -> Result<()> {
    let guard = Guard::new(device)?;
    runtime::runtime()?.device_synchronize()?;
    watch::tell(|| Happening::DeviceWaited { device: guard.device });
    Ok(())
}

/// Whether a device is lost, which an error of it may be the first to say.
pub fn is_lost(device: i32, error: &Error) -> bool {
    error.status == Status::TCUDA_ERROR_DEVICE_LOST || lost::check(device).is_err()
}

/// The devices that somebody works with.
pub fn with_contexts() -> Vec<i32> {
    let Ok(runtime) = runtime::runtime() else { return Vec::new() };
    (0..runtime.device_count).filter(|device| guard::has_context(runtime, *device)).collect()
}

/// Waits for every device that has a context, as far as that is possible. Those that are not lost and still would not be waited for.
pub fn synchronize_all() -> Vec<i32> {
    with_contexts()
        .into_iter()
        .filter(|device| {
            let waited = sync_debug::unrefused(|| synchronize(*device));
            waited.is_err_and(|error| !is_lost(*device, &error))
        })
        .collect()
}

/// (free, total) bytes, as the driver sees them.
pub fn mem_get_info(device: i32) -> Result<(usize, usize)> {
    let _guard = Guard::new(device)?;
    runtime::runtime()?.mem_get_info()
}
