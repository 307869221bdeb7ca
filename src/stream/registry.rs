//! What a handle means. Every stream that tcuda made or met has an entry; a stream of somebody else is looked up once.

use super::{DEFAULT, PER_THREAD, Stream, current};
use crate::base::{Error, Result, Status};
use crate::device;
use crate::runtime::{self, RawStream};
use parking_lot::RwLock;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// torch's None: the calling thread's current stream.
pub const HANDLE_CURRENT: usize = 0x80;
/// The default stream of device 0; the others follow. Page zero is never mapped, so no real handle is this small.
pub const HANDLE_DEFAULT: usize = 0x100;
/// The calling thread's default stream of device 0; likewise.
const HANDLE_PER_THREAD: usize = HANDLE_DEFAULT + MOST_DEVICES as usize;
/// No stream's.
pub const NO_HANDLE: usize = HANDLE_PER_THREAD + MOST_DEVICES as usize;
/// That have handles.
pub const MOST_DEVICES: i32 = 0x400;
/// The first address that can be a stream's.
pub const HANDLE_END: usize = 0x1000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Made by `create`.
    Own,
    /// Made by the pool: never destroyed while tcuda runs.
    Pool,
    /// A green context's, which ends it.
    Green,
    /// Made by somebody else.
    Foreign,
    /// Being destroyed or forgotten: no handle any more.
    Leaving,
    /// Destroyed, and kept for the next `create`.
    Parked,
}

impl Kind {
    fn is_live(self) -> bool {
        matches!(self, Kind::Own | Kind::Pool | Kind::Green | Kind::Foreign)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub device: i32,
    pub kind: Kind,
    /// Tells a stream from a later one at the same address.
    pub serial: u64,
}

static STREAMS: RwLock<BTreeMap<RawStream, Entry>> = RwLock::new(BTreeMap::new());
static SERIAL: AtomicU64 = AtomicU64::new(1);
/// Changes whenever an entry goes: what threads remember of the table is old then.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// For those who keep what `resolve` answered: it holds as long as this number stays.
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

pub fn find(raw: RawStream) -> Option<Entry> {
    STREAMS.read().get(&raw).copied().filter(|entry| entry.kind.is_live())
}

/// Tells a stream from a later one with the same handle; 0 for default streams. None: it is gone.
pub fn serial(stream: Stream) -> Option<u64> {
    if stream.is_default() { Some(0) } else { find(stream.raw).map(|entry| entry.serial) }
}

/// Every stream of a kind.
pub fn all(kind: Kind) -> Vec<Stream> {
    STREAMS.read().iter().filter(|(_, entry)| entry.kind == kind).map(|(raw, entry)| Stream { device: entry.device, raw: *raw }).collect()
}

/// Forgets everything.
pub fn clear() {
    STREAMS.write().clear();
    GENERATION.fetch_add(1, Ordering::Release);
}

/// Enters a stream. A stream that tcuda made takes the place of whatever had its address before.
pub fn insert(raw: RawStream, device: i32, kind: Kind) {
    let entry = Entry { device, kind, serial: SERIAL.fetch_add(1, Ordering::Relaxed) };
    if STREAMS.write().insert(raw, entry).is_some() {
        GENERATION.fetch_add(1, Ordering::Release);
    }
}

/// Enters a stream of somebody else, unless another thread has just done so.
pub fn meet(raw: RawStream, device: i32) -> Entry {
    let entry = Entry { device, kind: Kind::Foreign, serial: SERIAL.fetch_add(1, Ordering::Relaxed) };
    *STREAMS.write().entry(raw).or_insert(entry)
}

/// Changes the kind if it is `from`; the answer is the entry found.
pub fn change(raw: RawStream, from: Kind, to: Kind) -> Option<Entry> {
    let mut streams = STREAMS.write();
    let entry = streams.get_mut(&raw)?;
    let found = *entry;
    if found.kind == from {
        entry.kind = to;
        GENERATION.fetch_add(1, Ordering::Release);
    }
    Some(found)
}

pub fn remove(raw: RawStream) {
    STREAMS.write().remove(&raw);
    GENERATION.fetch_add(1, Ordering::Release);
}

/// What a thread met last, so that the table and its lock are left alone on the way to the cache.
#[derive(Clone, Copy)]
struct Met {
    handle: usize,
    generation: u64,
    device: i32,
}

const SLOTS: usize = 4;
thread_local! {
    static MET: [Cell<Met>; SLOTS] = const { [const { Cell::new(Met { handle: 0, generation: 0, device: 0 }) }; SLOTS] };
}

/// The stream that a C handle names. NULL: the default stream of the current device.
#[inline]
pub fn resolve(handle: usize) -> Result<Stream> {
    resolve_beside(handle, device::CURRENT)
}

/// The same with a device given, by a pointer or a tensor: NULL is the default stream of that device, and a stream of another
/// device is an error.
#[inline]
pub fn resolve_on(handle: usize, device: i32) -> Result<Stream> {
    let stream = resolve_beside(handle, device)?;
    if stream.device == device { Ok(stream) } else { Err(other_device(stream, device)) }
}

/// The same for who has a message of his own for a stream of another device.
#[inline]
pub fn resolve_beside(handle: usize, device: i32) -> Result<Stream> {
    if handle < HANDLE_END { special(handle, device) } else { real(handle) }
}

#[cold]
fn other_device(stream: Stream, device: i32) -> Error {
    Error::invalid_argument(format!(
        "The stream belongs to device {}, what it is to work on to device {device}. Give a stream of device {device}, or NULL for its \
         default stream.",
        stream.device
    ))
    .on_device(device)
}

fn special(handle: usize, device: i32) -> Result<Stream> {
    match handle {
        // cudaStreamLegacy is the same stream under another name.
        0 | 1 => Ok(Stream { device: device::resolve(device)?, raw: DEFAULT }),
        2 => Ok(Stream { device: device::resolve(device)?, raw: PER_THREAD }),
        HANDLE_CURRENT => current::current(device),
        HANDLE_DEFAULT..HANDLE_PER_THREAD => Ok(Stream { device: device::resolve((handle - HANDLE_DEFAULT) as i32)?, raw: DEFAULT }),
        HANDLE_PER_THREAD..NO_HANDLE => Ok(Stream { device: device::resolve((handle - HANDLE_PER_THREAD) as i32)?, raw: PER_THREAD }),
        _ => Err(no_stream(handle)),
    }
}

#[cold]
fn no_stream(handle: usize) -> Error {
    let text = match handle {
        // TCUDA_DEVICE_CURRENT and its like in the macro.
        0xf0..HANDLE_DEFAULT => format!(
            "{handle:#x} is no stream. TCUDA_STREAM_DEFAULT({}) would be it, which takes indices from 0; tcuda_default_stream takes -1 for the \
             current device.",
            handle as i64 - HANDLE_DEFAULT as i64
        ),
        _ => {
            format!("{handle:#x} is no stream: neither a stream's address nor one of the special values (NULL, 0x1, 0x2, TCUDA_STREAM_*).")
        }
    };
    Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text)
}

#[inline]
fn real(handle: usize) -> Result<Stream> {
    let now = generation();
    // Handles are addresses of objects: the low bits say little.
    let slot = ((handle >> 4) ^ (handle >> 10)) % SLOTS;
    let met = MET.try_with(|met| met[slot].get()).unwrap_or(Met { handle: 0, generation: 0, device: 0 });
    if met.handle == handle && met.generation == now {
        return Ok(Stream { device: met.device, raw: handle });
    }
    look_up(handle, now, slot)
}

#[cold]
fn look_up(handle: usize, generation: u64, slot: usize) -> Result<Stream> {
    let known = STREAMS.read().get(&handle).copied();
    let entry = match known {
        Some(entry) if !entry.kind.is_live() => {
            return Err(Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, format!("The stream {handle:#x} was destroyed.")));
        }
        Some(entry) => entry,
        None => {
            let device = runtime::runtime()?.stream_device(handle).map_err(|error| {
                if error.status == Status::TCUDA_ERROR_NOT_SUPPORTED {
                    return error.context(format!("The device of the stream {handle:#x} is not known; say it with tcuda_stream_register"));
                }
                error.context(format!("{handle:#x} is no stream that tcuda or CUDA knows"))
            })?;
            meet(handle, device)
        }
    };
    device::check_lost(entry.device)?;
    let _ = MET.try_with(|met| met[slot].set(Met { handle, generation, device: entry.device }));
    Ok(Stream { device: entry.device, raw: handle })
}

/// The handle that names a stream in every call, whatever device or stream is current: default streams by TCUDA_STREAM_DEFAULT(device), a
/// thread's own by TCUDA_STREAM_PER_THREAD(device).
pub fn handle_of(stream: Stream) -> usize {
    match stream.raw {
        DEFAULT => HANDLE_DEFAULT + stream.device as usize,
        PER_THREAD => HANDLE_PER_THREAD + stream.device as usize,
        raw => raw,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Addresses of no stream; no test shares one.

    #[test]
    fn a_stream_that_is_met_twice_is_one_stream() {
        let first = meet(0xa000, 3);
        let second = meet(0xa000, 4);
        assert_eq!((first.serial, second.device), (second.serial, 3));
        insert(0xa000, 5, Kind::Own);
        let own = find(0xa000).unwrap();
        assert!(own.serial != first.serial && own.device == 5 && own.kind == Kind::Own);
    }

    #[test]
    fn only_live_streams_are_found_and_each_change_tells_the_threads() {
        insert(0xb000, 0, Kind::Own);
        let before = generation();
        assert_eq!(change(0xb000, Kind::Foreign, Kind::Leaving).map(|found| found.kind), Some(Kind::Own));
        assert!(find(0xb000).is_some());
        change(0xb000, Kind::Own, Kind::Leaving);
        assert!(generation() > before && find(0xb000).is_none());
        assert_eq!(change(0xb000, Kind::Own, Kind::Leaving).map(|found| found.kind), Some(Kind::Leaving));
        remove(0xb000);
        assert!(change(0xb000, Kind::Own, Kind::Leaving).is_none());
    }

    #[test]
    fn what_a_thread_remembers_ends_with_the_generation() {
        insert(0xc000, 7, Kind::Own);
        assert_eq!(resolve(0xc000), Ok(Stream { device: 7, raw: 0xc000 }));
        assert_eq!(resolve(0xc000), Ok(Stream { device: 7, raw: 0xc000 }));
        let error = resolve_on(0xc000, 6).unwrap_err();
        assert!(error.message.contains("device 7") && error.message.contains("device 6"), "{error}");
        change(0xc000, Kind::Own, Kind::Parked);
        assert_eq!(resolve(0xc000).map_err(|error| error.status), Err(Status::TCUDA_ERROR_INVALID_HANDLE));
    }

    #[test]
    fn default_streams_have_handles_of_their_own() {
        assert_eq!(handle_of(Stream { device: 3, raw: DEFAULT }), 0x103);
        assert_eq!(handle_of(Stream { device: 3, raw: PER_THREAD }), 0x503);
        assert_eq!(handle_of(Stream { device: 3, raw: 0xd000 }), 0xd000);
    }
}
