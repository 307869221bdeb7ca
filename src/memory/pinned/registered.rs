//! Memory of the program that is pinned where it lies (cudaHostRegister).

use super::core::CORE;
use super::source::{self, PORTABLE};
use crate::base::{Error, Result, Status, insist};
use crate::runtime::{self, Address, api::Place, code, host};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The bits of the flags that mean something here: CUDA's.
pub(crate) const IO_MEMORY: u32 = 4;
pub(crate) const READ_ONLY: u32 = 8;
/// Taken because CUDA has it: all memory is mapped where addresses are everybody's.
const MAPPED: u32 = 2;

/// Start and size. Held while the driver registers or unregisters, so that both books agree.
static RANGES: Mutex<BTreeMap<Address, usize>> = Mutex::new(BTreeMap::new());

fn around(ranges: &BTreeMap<Address, usize>, address: Address, size: usize) -> Option<(Address, usize)> {
    let (start, length) = ranges.range(..address.saturating_add(size)).next_back()?;
    (start + length > address).then_some((*start, *length))
}

pub fn register(address: Address, size: usize, flags: u32) -> Result<()> {
    let invalid = |text: String| Err(Error::invalid_argument(text).with_bytes(size as u64));
    if address == 0 || size == 0 {
        return invalid(format!("{size} bytes at {address:#x} were to be registered: NULL and nothing cannot be pinned."));
    }
    if size > isize::MAX as usize || address.checked_add(size).is_none() {
        return invalid(format!("{size} bytes from {address:#x} reach past the end of memory."));
    }
    if flags & !(PORTABLE | MAPPED | IO_MEMORY | READ_ONLY) != 0 {
        return invalid(format!(
            "The flags {flags:#x} have bits that are not known. Known are 4 (I/O memory) and 8 (read only); 1 (portable) and 2 (mapped) \
             hold in any case."
        ));
    }
    let overlaps = |what: String| {
        let text = format!("{size} bytes from {address:#x} cannot be registered: {what}");
        Err(Error::invalid_argument(text).with_native(code::HOST_MEMORY_ALREADY_REGISTERED).with_bytes(size as u64))
    };
    let mut ranges = RANGES.lock();
    if let Some((start, length)) = around(&ranges, address, size) {
        return overlaps(format!("they meet {length} bytes from {start:#x}, which are registered already. Unregister those first."));
    }
    if let Some((start, segment)) = CORE.lock().space.segment_in(address, size) {
        return overlaps(format!("they meet {} bytes from {start:#x} of tcuda's own pinned memory.", segment.size));
    }
    // The host cannot read a device's.
    let place = runtime::runtime()?.place_of(address)?;
    if let Place::Device { device } | Place::Managed { device } = place {
        return overlaps(format!("they are memory of device {device}."));
    }
    let last = address + size - 1;
    if flags & IO_MEMORY == 0 && (!host::is_readable(address) || !host::is_readable(last)) {
        let text = format!("{size} bytes from {address:#x} cannot be registered: no memory is at their beginning, or none at their end.");
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_POINTER, text));
    }
    let registered = source::driver(|runtime| runtime.host_register(address, size, flags | PORTABLE));
    registered.or_else(|error| match error.native {
        code::HOST_MEMORY_ALREADY_REGISTERED => overlaps("some of them are registered already, by somebody else.".into()),
        _ => Err(error.context(format!("Registering {size} bytes from {address:#x}")).with_bytes(size as u64)),
    })?;
    ranges.insert(address, size);
    Ok(())
}

pub fn unregister(address: Address) -> Result<()> {
    let mut ranges = RANGES.lock();
    if !ranges.contains_key(&address) {
        let text = match around(&ranges, address, 1) {
            Some((start, length)) => {
                format!("{address:#x} lies inside of {length} registered bytes from {start:#x}; only their start can be unregistered.")
            }
            None => format!("{address:#x} was not registered by tcuda_host_register, or was unregistered before."),
        };
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_POINTER, text).with_native(code::HOST_MEMORY_NOT_REGISTERED));
    }
    release(address)?;
    ranges.remove(&address);
    Ok(())
}

fn release(address: Address) -> Result<()> {
    source::driver(|runtime| runtime.host_unregister(address)).map_err(|error| error.context(format!("Unregistering {address:#x}")))
}

/// Unregisters everything.
pub fn shutdown() {
    for (address, _) in std::mem::take(&mut *RANGES.lock()) {
        // What cannot be unregistered is lost with its device.
        let _ = insist(|| release(address));
    }
}
