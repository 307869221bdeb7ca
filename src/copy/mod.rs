//! # copy
//! Owns:   copies of bytes between any two places, memset, and the order of streams that both need.
//! Uses:   memory, event, stream, device, runtime, base.
//! Never:  looks at what the bytes mean; waits on the host unless the caller's memory could be read or written too late.
//! Locks:  none.
//! Tests:  in the file, tests/conformance/copy.rs.

use crate::base::sync_debug::{Kind, blocking};
use crate::base::watch::{self, Access, Happening};
use crate::base::{Error, Result, Status, insist};
use crate::memory::{Around, pools};
use crate::runtime::{self, Address, api, host, kernels};
use crate::stream::{self, Stream};
use crate::{device, event, memory};
use std::fmt::Display;
use std::ops::Range;

/// Where memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Host memory that a device cannot reach by itself.
    Pageable,
    /// Host memory that CUDA allocated or registered.
    Pinned,
    Device(i32),
}

impl Place {
    pub fn device(self) -> Option<i32> {
        match self {
            Place::Device(device) => Some(device),
            _ => None,
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Pageable => f.write_str("host memory"),
            Place::Pinned => f.write_str("pinned host memory"),
            Place::Device(device) => write!(f, "memory of device {device}"),
        }
    }
}

/// One end of a copy. Device memory comes with the stream that orders what is done to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    pub address: Address,
    pub place: Place,
    pub stream: Option<Stream>,
}

impl End {
    pub fn host(address: Address, place: Place) -> End {
        End { address, place, stream: None }
    }

    pub fn device(address: Address, stream: Stream) -> End {
        End { address, place: Place::Device(stream.device), stream: Some(stream) }
    }

    fn current(name: &str, address: Address, size: usize) -> Result<End> {
        let place = check_place(name, address, size)?;
        let stream = place.device().map(stream::current).transpose()?;
        Ok(End { address, place, stream })
    }
}

/// What an address lies in.
pub struct Found {
    pub place: api::Place,
    /// That of tcuda's memory which holds it.
    pub block: Option<Range<Address>>,
    /// The pool of the block, if it is paused.
    paused: Option<pools::Id>,
}

impl From<Around> for Found {
    fn from(around: Around) -> Found {
        Found { place: api::Place::Device { device: around.device }, block: Some(around.place), paused: around.paused }
    }
}

impl Found {
    fn place(&self) -> Place {
        match self.place {
            api::Place::Unregistered => Place::Pageable,
            api::Place::Pinned { .. } => Place::Pinned,
            api::Place::Device { device } | api::Place::Managed { device } => Place::Device(device),
        }
    }

    /// Refuses what reaches past it, as far as that is told without asking CUDA for more.
    fn check(&self, name: &str, address: Address, size: usize) -> Result<()> {
        match self.place() {
            Place::Pageable => check_host(name, address, size),
            Place::Pinned => check_pinned(name, address, size, self.block.as_ref()),
            Place::Device(_) => self.check_block(name, address, size),
        }
    }

    /// Refuses what of a block has no memory: it reaches past the end, or the block's pool is paused.
    fn check_block(&self, name: impl Display, address: Address, size: usize) -> Result<()> {
        if let Some(pool) = self.paused {
            return Err(pool.paused_error().context(format!("'{name}'")));
        }
        self.block.as_ref().map_or(Ok(()), |block| check_block(name, address, size, block))
    }

    /// The same for memory of a device; of somebody else's memory the last byte has to be there.
    pub fn check_device(&self, name: impl Display + Copy, address: Address, size: usize) -> Result<()> {
        self.check_block(name, address, size)?;
        let last = address.saturating_add(size.max(1) - 1);
        if self.block.is_some() || place_of(last)?.device().is_some() {
            return Ok(());
        }
        let text = format!("'{name}': {size} bytes from {address:#x} end at {last:#x}, behind the memory that begins there.");
        Err(Error::new(Status::TCUDA_ERROR_INVALID_POINTER, text))
    }
}

/// tcuda's own blocks first, then what CUDA knows. With no backend everything is plain host memory.
pub fn find(address: Address) -> Result<Found> {
    memory::block_around(address).map_or_else(|| find_outside(address), |around| Ok(around.into()))
}

/// The same for what is known to be no block of tcuda's device memory.
pub fn find_outside(address: Address) -> Result<Found> {
    let block = memory::pinned::around(address);
    let place = match block {
        Some(_) => api::Place::Pinned { device: device::CPU },
        None => runtime::runtime().map_or(Ok(api::Place::Unregistered), |runtime| runtime.place_of(address))?,
    };
    Ok(Found { place, block, paused: None })
}

pub fn place_of(address: Address) -> Result<Place> {
    find(address).map(|found| found.place())
}

/// The place of memory that is to be used.
fn check_place(name: &str, address: Address, size: usize) -> Result<Place> {
    let found = find(address)?;
    found.check(name, address, size)?;
    Ok(found.place())
}

/// Refuses what reaches past pinned memory, as far as the block tells, or of somebody else's memory the last byte: its pages are there as a whole.
pub fn check_pinned(name: impl Display, address: Address, size: usize, block: Option<&Range<Address>>) -> Result<()> {
    const PAGE: usize = 4096;
    if let Some(block) = block {
        return check_block(name, address, size, block);
    }
    let last = address.saturating_add(size.max(1) - 1);
    if last / PAGE == address / PAGE || host::is_readable(last) {
        return Ok(());
    }
    Err(ends_nowhere(name, address, size, last))
}

fn ends_nowhere(name: impl Display, address: Address, size: usize, last: Address) -> Error {
    let text = format!("'{name}': {size} bytes from {address:#x} end at {last:#x}, where no memory is.");
    Error::new(Status::TCUDA_ERROR_INVALID_POINTER, text)
}

/// Refuses what reaches past a block of tcuda's, in which the address lies.
fn check_block(name: impl Display, address: Address, size: usize, block: &Range<Address>) -> Result<()> {
    let Some(beyond) = size.checked_sub(block.end - address).filter(|beyond| *beyond > 0) else { return Ok(()) };
    let text = format!(
        "'{name}': {size} bytes from {address:#x} reach {beyond} bytes past the end of their block, which has {} bytes from {:#x} on.",
        block.len(),
        block.start
    );
    Err(Error::new(Status::TCUDA_ERROR_INVALID_POINTER, text))
}

/// Refuses what the host would fault on, as far as the first and the last byte tell. What belongs to a cache is no host memory.
pub fn check_host(name: impl Display, address: Address, size: usize) -> Result<()> {
    let wrong = |text| Err(Error::new(Status::TCUDA_ERROR_INVALID_POINTER, text));
    if memory::reserves(address).is_some() || !host::is_readable(address) {
        return wrong(format!("'{name}': {address:#x} lies where no memory is (freed?)."));
    }
    let last = address.saturating_add(size.max(1) - 1);
    if !host::is_readable(last) {
        return Err(ends_nowhere(name, address, size, last));
    }
    Ok(())
}

/// Copies between any two places, on their current streams.
pub fn copy(to: Address, from: Address, size: usize, non_blocking: bool) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    check_range("dst", to, size)?;
    check_range("src", from, size)?;
    let (to, from) = (End::current("dst", to, size)?, End::current("src", from, size)?);
    if is_same(to, from, size)? { Ok(()) } else { transfer(to, from, size, non_blocking) }
}

/// Whether they are one range of device memory: nothing to do. Refuses those that overlap otherwise: devices copy in no order.
fn is_same(to: End, from: End, size: usize) -> Result<bool> {
    let on_devices = to.place.device().is_some() && from.place.device().is_some();
    let apart = to.address.abs_diff(from.address);
    if !on_devices || apart >= size {
        return Ok(false);
    }
    if apart == 0 {
        return Ok(true);
    }
    let text = format!("{} of the bytes are in both ranges, and a device copies in no order. Go by way of other memory.", size - apart);
    Err(explain_copy(Error::invalid_argument(text), to, from, size))
}

/// The copy itself, `size` at least 1. Work given to either end's stream before is done before, work given later comes after.
/// Between device and host it waits, unless `non_blocking`; a result in pageable memory is complete on return in any case.
pub fn transfer(to: End, from: End, size: usize, non_blocking: bool) -> Result<()> {
    // Between two devices on the source's stream, as torch does.
    let Some(stream) = from.stream.or(to.stream) else {
        kernels::tensor::copy_on_host(to.address, from.address, size)?;
        if watch::any(watch::SANITIZER) {
            let access = |address, write| Access { address, size, write };
            watch::accessed(None, &[access(from.address, false), access(to.address, true)]);
        }
        return Ok(());
    };
    refuse_captured_pageable(to, from, size, stream)?;
    // Of two devices each end's own stream stands for it: before and after the copy it is in order with the source's.
    for end in [to, from] {
        if let Some(own) = end.stream {
            memory::record_stream_of(end.address, own)?;
        }
    }
    match to.stream {
        Some(other) if other != stream => {
            event::wait_stream(stream, other)?;
            enqueue(to, from, size, stream)?;
            // Where the order cannot be had on the device: the caller may give the memory back as soon as he hears of it.
            event::wait_stream(other, stream).inspect_err(|_| stream.drain())
        }
        Some(_) if from.stream.is_some() => enqueue(to, from, size, stream),
        _ => {
            // Where the device reads pageable memory by itself, CUDA's copy may return before it is done.
            let waits = !non_blocking || to.place == Place::Pageable;
            if !waits {
                record_pinned(&[to, from], stream)?;
                return enqueue_near(to, from, size, stream);
            }
            // One wait, which is refused before anything is copied.
            blocking("cudaMemcpyAsync, cudaStreamSynchronize", Kind::Wait, || {
                enqueue(to, from, size, stream)?;
                // Who waited leaves no use behind; nor does who may not wait, where another thread captures.
                stream.synchronize().inspect_err(|_| {
                    stream.drain();
                    let _ = insist(|| record_pinned(&[to, from], stream));
                })
            })
        }
    }
}

/// Blocks of the pinned cache are not given out again before the stream is past the copy.
fn record_pinned(ends: &[End], stream: Stream) -> Result<()> {
    let pinned = ends.iter().filter(|end| end.place == Place::Pinned);
    pinned.map(|end| memory::pinned::record_stream_of(end.address, stream).map(drop)).fold(Ok(()), Result::and)
}

/// A replay would read or write it when it may be gone. CUDA captures some of these copies, torch none.
fn refuse_captured_pageable(to: End, from: End, size: usize, stream: Stream) -> Result<()> {
    if !is_pageable(to, from) {
        return Ok(());
    }
    stream.refuse_capture(|| {
        format!(
            "{}: pageable host memory cannot be captured, since it may be gone when the graph is replayed. Take memory of \
             tcuda_host_malloc_cached, or tcuda_host_register it. The capture goes on without this copy.",
            describe(to, from, size)
        )
    })
}

fn is_pageable(to: End, from: End) -> bool {
    to.place == Place::Pageable || from.place == Place::Pageable
}

fn describe(to: End, from: End, size: usize) -> String {
    let end = |end: End| format!("{:#x} ({})", end.address, end.place);
    format!("Copy of {size} bytes from {} to {}", end(from), end(to))
}

/// The same where CUDA waits if it has to take pageable memory by way of its own: into that it is done on return.
fn enqueue_near(to: End, from: End, size: usize, stream: Stream) -> Result<()> {
    if !is_pageable(to, from) {
        return enqueue(to, from, size, stream);
    }
    blocking("cudaMemcpyAsync of pageable memory", Kind::Wait, || enqueue(to, from, size, stream))?;
    if to.place == Place::Pageable && watch::any(watch::SANITIZER) && !device::reaches_pageable(stream.device) {
        watch::tell(|| Happening::StreamDone { on: stream.place() });
    }
    Ok(())
}

fn enqueue(to: End, from: End, size: usize, stream: Stream) -> Result<()> {
    let entered = stream.enter_current()?;
    let enqueued = match (to.place, from.place) {
        (Place::Device(to_device), Place::Device(from_device)) if to_device != from_device => {
            // For speed only: without access the driver goes by way of the host.
            device::peer::ensure(from_device, to_device)?;
            entered.runtime.memcpy_peer_async(to.address, to_device, from.address, from_device, size, entered.raw)
        }
        (to_place, from_place) => {
            let device = to_place.device().or(from_place.device()).unwrap_or(stream.device);
            // What is mapped page by page has to be mapped for the device that is current, whosever the stream is.
            let reached = device::peer::ensure(stream.device, device)?;
            let _guard = if reached { None } else { Some(device::Guard::new(device)?) };
            entered.runtime.memcpy_async(to.address, from.address, size, entered.raw)
        }
    };
    enqueued.map_err(|error| explain_copy(error, to, from, size))
}

fn explain_copy(error: Error, to: End, from: End, size: usize) -> Error {
    explain(error, &[("source", from.address), ("destination", to.address)], size, || describe(to, from, size))
}

/// CUDA calls an argument invalid without saying which: most often the range is longer than its memory.
fn explain(error: Error, ends: &[(&str, Address)], size: usize, what: impl Fn() -> String) -> Error {
    if error.status != Status::TCUDA_ERROR_INVALID_ARGUMENT {
        return error;
    }
    let beyond = ends.iter().find_map(|(name, address)| {
        let (last, place) = (address + (size - 1), place_of(*address).ok()?);
        // Far behind it may be memory of something else.
        let outside = place != Place::Pageable && place_of(last).is_ok_and(|end| end != place);
        outside.then(|| format!("the {name} ends at {last:#x}, where no {} is.", place))
    });
    match beyond {
        Some(text) => Error { status: Status::TCUDA_ERROR_INVALID_POINTER, message: format!("{}: {text}", what()).into(), ..error },
        None => error.context(what()),
    }
}

/// cudaMemcpyAsync with the addresses' places found out. A NULL stream is the default one of the source's device, else of the
/// destination's, else of the current device.
pub fn copy_async(to: Address, from: Address, size: usize, handle: usize) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    check_range("dst", to, size)?;
    check_range("src", from, size)?;
    let (to_place, from_place) = (check_place("dst", to, size)?, check_place("src", from, size)?);
    let stream = stream_near(handle, from_place.device().or(to_place.device()))?;
    let end = |address, place| End { address, place, stream: Some(stream) };
    let (to, from) = (end(to, to_place), end(from, from_place));
    if is_same(to, from, size)? {
        return Ok(());
    }
    refuse_captured_pageable(to, from, size, stream)?;
    for end in [to, from] {
        match end.place {
            Place::Pageable => {}
            Place::Pinned => drop(memory::pinned::record_stream_of(end.address, stream)?),
            Place::Device(_) => memory::record_stream_of(end.address, stream)?,
        }
    }
    enqueue_near(to, from, size, stream)
}

/// Sets bytes of device (or pinned) memory. A NULL stream is the default one of the memory's device.
pub fn memset_async(to: Address, value: i32, size: usize, handle: usize) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    check_range("dst", to, size)?;
    let found = find(to)?;
    found.check_block("dst", to, size)?;
    let stream = match found.place {
        api::Place::Unregistered => {
            check_host("dst", to, size)?;
            return Err(Error::invalid_argument(format!(
                "'dst' ({to:#x}) is pageable host memory, which a device cannot set. Use memset, or memory of tcuda_malloc_cached."
            )));
        }
        api::Place::Device { device } => stream::resolve_on(handle, device)?,
        api::Place::Managed { device } => stream_near(handle, Some(device))?,
        api::Place::Pinned { .. } => stream::resolve(handle)?,
    };
    memory::record_stream_of(to, stream)?;
    let entered = stream.enter()?;
    let enqueued = entered.runtime.memset_async(to, value, size, entered.raw);
    enqueued.map_err(|error| explain(error, &[("range", to)], size, || format!("Setting {size} bytes from {to:#x}")))
}

/// A stream of any device; a special handle means the stream of that name of `device`.
fn stream_near(handle: usize, device: Option<i32>) -> Result<Stream> {
    match device {
        Some(device) => match stream::resolve_on(handle, device) {
            // Another device's.
            Err(error) if error.status == Status::TCUDA_ERROR_INVALID_ARGUMENT => stream::resolve(handle),
            other => other,
        },
        None => stream::resolve(handle),
    }
}

fn check_range(name: &str, address: Address, size: usize) -> Result<()> {
    if address == 0 {
        return Err(Error::invalid_argument(format!("'{name}' is NULL; {size} bytes were to be copied or set there.")));
    }
    if size > isize::MAX as usize || address.checked_add(size).is_none() {
        return Err(Error::invalid_argument(format!("'{name}' ({address:#x}) and {size} bytes from there reach past the end of memory."))
            .with_bytes(size as u64));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        assert!(check_range("dst", 0, 1).unwrap_err().message.contains("'dst' is NULL"));
        assert!(check_range("dst", usize::MAX - 3, 4).is_err());
        assert!(check_range("dst", 4096, usize::MAX / 2 + 1).is_err());
        assert!(check_range("dst", 4096, 1 << 40).is_ok());
        assert!(check_host("src", 4096, 0).unwrap_err().message.contains("'src': 0x1000 lies where no memory is"));
        let byte = 0u8;
        assert!(check_host("src", &raw const byte as usize, 1).is_ok());
        assert!(check_host("src", &raw const byte as usize, isize::MAX as usize).unwrap_err().message.contains("where no memory is"));
        // Nothing to do needs no valid pointers, and no device.
        assert_eq!(copy(0, 0, 0, false), Ok(()));
        assert_eq!(copy_async(0, 7, 0, 12345), Ok(()));
        assert_eq!(memset_async(0, 1, 0, 12345), Ok(()));
    }
}
