//! Each thread's current stream per device. A new thread starts with the default streams.

use super::{DEFAULT, PER_THREAD, Stream, registry};
use crate::base::{Error, Result, Status};
use crate::device;
use crate::runtime::RawStream;
use std::cell::{Cell, RefCell};

/// One device's current stream, with what tells it from a later stream at the same address.
#[derive(Clone, Copy)]
struct Slot {
    raw: RawStream,
    serial: u64,
}

const UNSET: Slot = Slot { raw: DEFAULT, serial: 0 };

thread_local! {
    /// No slots: every device has its default stream.
    static SLOTS: RefCell<Vec<Slot>> = const { RefCell::new(Vec::new()) };
    /// The registry's generation that the slots were compared with.
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread's current stream of a device; -1 is the current device.
#[inline]
pub fn current(device: i32) -> Result<Stream> {
    Ok(of(device::resolve(device)?))
}

/// Of a device that may be lost.
fn of(device: i32) -> Stream {
    let raw = SLOTS
        .try_with(|slots| {
            // Nothing in here calls back, so the slots are free; a thread that is ending has its default streams.
            let Ok(mut slots) = slots.try_borrow_mut() else { return DEFAULT };
            let now = registry::generation();
            if SEEN.get() != now {
                forget_gone(&mut slots);
                SEEN.set(now);
            }
            slots.get(device as usize).map_or(DEFAULT, |slot| slot.raw)
        })
        .unwrap_or(DEFAULT);
    Stream { device, raw }
}

/// A stream that was destroyed meanwhile, by whatever thread, is current no more.
#[cold]
fn forget_gone(slots: &mut [Slot]) {
    for slot in slots.iter_mut().filter(|slot| slot.raw > PER_THREAD) {
        if registry::find(slot.raw).is_none_or(|entry| entry.serial != slot.serial) {
            *slot = UNSET;
        }
    }
}

fn set_slot(stream: Stream, serial: u64) -> Result<()> {
    let set = SLOTS.try_with(|slots| {
        let mut slots = slots.borrow_mut();
        let index = stream.device as usize;
        if slots.len() <= index {
            slots.resize(index + 1, UNSET);
        }
        slots[index] = Slot { raw: stream.raw, serial };
    });
    set.map_err(|_| Error::new(Status::TCUDA_ERROR_INVALID_STATE, "This thread is ending; its current stream cannot be set."))
}

/// Makes a stream current on its device for the calling thread, and that device current, as torch.cuda.set_stream does.
pub fn set_current(stream: Stream) -> Result<()> {
    make_current(stream, device::set)
}

fn make_current(stream: Stream, set_device: impl FnOnce(i32) -> Result<()>) -> Result<()> {
    // Another thread may have destroyed it since it was looked up.
    let serial = registry::serial(stream).ok_or_else(|| {
        Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, format!("The stream {:#x} was destroyed by another thread meanwhile.", stream.raw))
    })?;
    if device::current()? != stream.device {
        set_device(stream.device)?;
    }
    set_slot(stream, serial)
}

/// What `exchange` found: enough to put everything back, in the order of torch's StreamContext.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Saved {
    /// The current stream of the device that was current.
    pub previous: Stream,
    /// The current stream of the new stream's device; the same as `previous` when the devices are.
    pub replaced: Stream,
}

/// Makes a stream and its device current, and says what was.
pub fn exchange(stream: Stream) -> Result<Saved> {
    let saved = Saved { previous: of(device::current()?), replaced: current(stream.device)? };
    make_current(stream, |device| device::exchange(device).map(drop))?;
    Ok(saved)
}
