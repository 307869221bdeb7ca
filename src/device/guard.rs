//! A device for the length of a scope, without a stray context on the device that was current before.

use crate::base::Result;
use crate::runtime::{self, Runtime};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Devices that were seen with a context, as bits; the driver is asked about the others.
static WITH_CONTEXT: AtomicU64 = AtomicU64::new(0);

/// Whether making the device current would make it a context. True also where the driver cannot tell.
pub(super) fn has_context(runtime: &Runtime, device: i32) -> bool {
    let bit = 1u64.checked_shl(device as u32).unwrap_or(0);
    if WITH_CONTEXT.load(Ordering::Relaxed) & bit != 0 {
        return true;
    }
    let has = runtime.has_primary_context(device);
    if has == Some(true) {
        WITH_CONTEXT.fetch_or(bit, Ordering::Relaxed);
    }
    has.unwrap_or(true)
}

enum Undo {
    Nothing,
    SetDevice(i32),
    /// And where the thread stood.
    Pop(i32),
}

/// Makes a device current and puts the previous one back when dropped. No call is made when it is current already.
///
/// Since CUDA 12 cudaSetDevice makes a context (hundreds of MiB), so a previous device that has none must not be restored with it, and
/// one that is lost cannot: then the device's context is pushed and popped instead, after which the thread stands where it stood.
#[must_use]
pub struct Guard {
    pub device: i32,
    runtime: &'static Runtime,
    undo: Undo,
}

impl Guard {
    /// -1: the current device, which is then only looked up: it may be lost.
    pub fn new(device: i32) -> Result<Guard> {
        let runtime = runtime::runtime()?;
        let previous = runtime.get_device()?;
        let device = if device == super::CURRENT { previous } else { super::resolve(device)? };
        Ok(Guard { device, runtime, undo: enter(runtime, previous, device).map_err(super::blame(device))? })
    }
}

fn enter(runtime: &Runtime, previous: i32, device: i32) -> Result<Undo> {
    if previous == device {
        return Ok(Undo::Nothing);
    }
    if (!has_context(runtime, previous) || super::lost::check(previous).is_err()) && push(runtime, device)? {
        return Ok(Undo::Pop(previous));
    }
    runtime.set_device(device)?;
    Ok(Undo::SetDevice(previous))
}

/// False: the driver cannot.
fn push(runtime: &Runtime, device: i32) -> Result<bool> {
    let Some(context) = runtime.primary_context(device) else { return Ok(false) };
    runtime.context_push(context?)?;
    Ok(true)
}

// The device that the program's guard found without a context: one of another device was pushed for it.
thread_local!(static BELOW: Cell<Option<i32>> = const { Cell::new(None) });

fn pop(runtime: &Runtime, back: i32) -> Result<()> {
    runtime.context_pop()?;
    // cudaSetDevice meanwhile is where a thread without a context stands since: then it takes a context to come back.
    if runtime.get_device()? == back { Ok(()) } else { runtime.set_device(back) }
}

/// For a guard of the program's, which ends by `set`.
pub(super) fn exchange(runtime: &Runtime, previous: i32, device: i32) -> Result<()> {
    if previous != device && BELOW.get().is_none() && !has_context(runtime, previous) && push(runtime, device)? {
        BELOW.set(Some(previous));
        return Ok(());
    }
    set(runtime, device)
}

/// cudaSetDevice, but for the way back of `exchange`, and where what that pushed is wanted again.
pub(super) fn set(runtime: &Runtime, device: i32) -> Result<()> {
    let Some(below) = BELOW.get() else { return runtime.set_device(device) };
    if below != device {
        return if runtime.get_device()? == device { Ok(()) } else { runtime.set_device(device) };
    }
    BELOW.set(None);
    if has_context(runtime, device) { runtime.set_device(device) } else { pop(runtime, device) }
}

/// Whether a device cannot be made current, or has an error that stays.
pub(super) fn fails(device: i32) -> bool {
    let Ok(runtime) = runtime::runtime() else { return false };
    match runtime.get_device().and_then(|previous| enter(runtime, previous, device)) {
        Err(_) => true,
        Ok(undo) => {
            let _guard = Guard { device, runtime, undo };
            runtime.has_error()
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A second try, for what passes. More cannot be told to the caller: what ails the previous device, its next call says.
        if self.undo().is_err() {
            let _ = self.undo();
        }
    }
}

impl Guard {
    /// On to another device; what comes back in the end stays what it was.
    pub fn go(&mut self, device: i32) -> Result<()> {
        if device == self.device {
            return Ok(());
        }
        match self.undo {
            Undo::Nothing => self.undo = enter(self.runtime, self.device, device).map_err(super::blame(device))?,
            Undo::SetDevice(_) => self.runtime.set_device(device).map_err(super::blame(device))?,
            Undo::Pop(_) => {
                self.undo()?;
                self.undo = Undo::Nothing;
                *self = Guard::new(device)?;
            }
        }
        self.device = device;
        Ok(())
    }

    /// For calls that name a device by a handle: on to it only where they would otherwise make a context on the current one.
    pub fn go_unless_context(&mut self, device: i32) -> Result<()> {
        if has_context(self.runtime, self.device) { Ok(()) } else { self.go(device) }
    }

    fn undo(&self) -> Result<()> {
        match self.undo {
            Undo::Nothing => Ok(()),
            Undo::SetDevice(previous) => self.runtime.set_device(previous),
            Undo::Pop(previous) => pop(self.runtime, previous),
        }
    }
}

/// For calls that name a device by a handle: a guard only where the call would otherwise make a context on the current device.
pub fn guard_against_stray_context(device: i32) -> Result<Option<Guard>> {
    let runtime = runtime::runtime()?;
    let current = runtime.get_device()?;
    if current == device || has_context(runtime, current) { Ok(None) } else { Guard::new(device).map(Some) }
}
