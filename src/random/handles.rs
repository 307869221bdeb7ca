//! What a program holds of a generator. Even numbers are the program's own generators, odd ones the default ones of devices.

use super::defaults;
use super::generator::{DEFAULT_SEED, Generator, State};
use crate::base::handles::Handles;
use crate::base::{Error, Result, Status};
use crate::device;
use std::num::NonZeroUsize;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle(pub NonZeroUsize);

static HANDLES: Handles<Generator> = Handles::new("generator", "tcuda_generator_create");

impl Handle {
    /// The device whose default generator this is.
    fn device(self) -> Option<i32> {
        let number = self.0.get();
        (number % 2 == 1).then(|| i32::try_from(number / 2).unwrap_or(i32::MAX))
    }
}

/// Gives a generator a handle.
pub fn enter(generator: Generator) -> Handle {
    Handle(NonZeroUsize::new(HANDLES.insert(Arc::new(generator))).unwrap_or(NonZeroUsize::MAX))
}

/// A generator as torch makes it; -1 is the current device.
pub fn create(device: i32) -> Result<Handle> {
    Ok(enter(Generator::new(device::resolve(device)?, State::seeded(DEFAULT_SEED))))
}

/// The handle of a device's default generator; -1 is the current device.
pub fn default_handle(device: i32) -> Result<Handle> {
    let device = device::resolve(device)?;
    NonZeroUsize::new(2 * device as usize + 1).map(Handle).ok_or_else(|| Error::internal("2 * device + 1 is 0"))
}

pub fn destroy(handle: Handle) -> Result<()> {
    if handle.device().is_some() {
        named(Some(&handle), device::CURRENT)?;
        let text = "This is the default generator of a device, which is there for as long as tcuda runs.";
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
    }
    HANDLES.remove(handle.0.get()).map(drop)
}

/// The generator of a handle; None: the default one of a device, of which -1 is the current one.
pub fn named(handle: Option<&Handle>, device: i32) -> Result<Arc<Generator>> {
    let Some(handle) = handle else { return defaults::of(device::resolve(device)?) };
    match handle.device() {
        Some(device) if (0..device::count()).contains(&device) => defaults::of(device),
        // No device, and no odd number is any other generator's.
        _ => HANDLES.get(handle.0.get()),
    }
}

/// The same for work on a device, which has to be the generator's.
pub fn for_device(handle: Option<&Handle>, device: i32) -> Result<Arc<Generator>> {
    let generator = named(handle, device)?;
    if generator.device() == device {
        return Ok(generator);
    }
    let text = format!(
        "Expected a generator of 'cuda:{device}' but found one of 'cuda:{}'. Give one of the tensor's device, or NULL for its default one.",
        generator.device()
    );
    Err(Error::invalid_argument(text).on_device(device))
}

pub fn clear() {
    HANDLES.clear();
}
