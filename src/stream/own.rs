//! Streams that come and go: made here, or made by somebody else and registered.

use super::Stream;
use super::registry::{self, Kind};
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, insist};
use crate::device;
use crate::runtime::{self, RawStream};
use parking_lot::{Mutex, RwLock};

/// cudaStreamNonBlocking: no implicit order with the legacy default stream, as torch's streams.
pub const NON_BLOCKING: u32 = 1;

/// Told before a stream goes, so that what waits for it is settled. An error keeps the stream.
pub type GoneHook = fn(Stream) -> Result<()>;

/// Whose turn it is: captures end first, then who holds blocks frees them, then the caches settle what they wait for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    Captures,
    Holders,
    Caches,
}

/// In the order of their turns.
static HOOKS: RwLock<Vec<(Turn, GoneHook)>> = RwLock::new(Vec::new());

/// A destroyed stream that the next `create` of its priority gets. A driver that is given a destroyed handle reads freed memory, and
/// its addresses come back; while a handle stays here, tcuda knows for sure that it is none.
struct Parked {
    stream: Stream,
    priority: i32,
}

/// Oldest first.
static PARKED: Mutex<Vec<Parked>> = Mutex::new(Vec::new());
/// More than this are really destroyed.
const MOST_PARKED: usize = 64;

/// A stream for each device, made when it is first wanted.
pub struct PerDevice(Mutex<Vec<(Stream, Option<u64>)>>);

impl PerDevice {
    pub const fn empty() -> PerDevice {
        PerDevice(Mutex::new(Vec::new()))
    }

    /// That of a device (-1: the current one). By their serials: the handle of one that was destroyed may come back as somebody else's.
    pub fn of(&self, device: i32) -> Result<Stream> {
        let device = device::resolve(device)?;
        let mut streams = self.0.lock();
        streams.retain(|(stream, serial)| serial.is_some() && registry::serial(*stream) == *serial);
        if let Some((stream, _)) = streams.iter().find(|(stream, _)| stream.device == device) {
            return Ok(*stream);
        }
        // Some thread may capture just now.
        let stream = runtime::runtime()?.outside_capture(|| create(device, 0))?;
        streams.push((stream, registry::serial(stream)));
        Ok(stream)
    }
}

/// Registers a hook, once per function.
pub fn on_gone(turn: Turn, hook: GoneHook) {
    let mut hooks = HOOKS.write();
    if !hooks.iter().any(|(_, known)| std::ptr::fn_addr_eq(*known, hook)) {
        let at = hooks.partition_point(|(known, _)| *known <= turn);
        hooks.insert(at, (turn, hook));
    }
}

pub(super) fn tell_gone(stream: Stream) -> Result<()> {
    let hooks = HOOKS.read().clone();
    hooks.iter().try_for_each(|(_, hook)| hook(stream))
}

/// A new stream of a device (-1: the current one). The priority is cut to what the device has; 0 is normal, smaller is served first.
pub fn create(device: i32, priority: i32) -> Result<Stream> {
    let guard = device::Guard::new(device)?;
    let runtime = runtime::runtime()?;
    let (least, greatest) = runtime.stream_priority_range()?;
    let priority = priority.clamp(greatest, least);
    let raw = match take_parked(guard.device, priority) {
        Some(raw) => raw,
        None => runtime.stream_create(NON_BLOCKING, priority)?,
    };
    registry::insert(raw, guard.device, Kind::Own);
    let stream = Stream { device: guard.device, raw };
    watch::tell(|| Happening::StreamMade { on: stream.place() });
    Ok(stream)
}

/// A parked stream with nothing left to do: one that works on would hold up its new owner.
fn take_parked(device: i32, priority: i32) -> Option<RawStream> {
    let runtime = runtime::runtime().ok()?;
    let mut parked = PARKED.lock();
    // A query would end a capture that another thread makes in CUDA's global mode.
    let is_idle = |stream: Stream| runtime.outside_capture(|| runtime.stream_query(stream.raw)) == Ok(true);
    let fits = |p: &Parked| p.stream.device == device && p.priority == priority && is_idle(p.stream);
    let index = parked.iter().position(fits)?;
    Some(parked.remove(index).stream.raw)
}

/// Ends a stream that `create` made. Work that it was given still runs.
pub fn destroy(raw: RawStream) -> Result<()> {
    let stream = leave(raw, Kind::Own)?;
    // The priority first: nothing may fail once the hooks were told that the stream goes.
    match stream.priority().and_then(|priority| tell_gone(stream).map(|()| priority)) {
        Ok(priority) => {
            park(Parked { stream, priority });
            Ok(())
        }
        Err(error) => {
            registry::change(raw, Kind::Leaving, Kind::Own);
            Err(error)
        }
    }
}

/// Ends a stream of `create` that no other room has heard of. Nobody is told, so that any lock may be held.
pub fn destroy_unheard(stream: Stream) -> Result<()> {
    let priority = stream.priority()?;
    park(Parked { stream: leave(stream.raw, Kind::Own)?, priority });
    Ok(())
}

fn park(new: Parked) {
    let mut parked = PARKED.lock();
    registry::change(new.stream.raw, Kind::Leaving, Kind::Parked);
    parked.push(new);
    if parked.len() <= MOST_PARKED {
        return;
    }
    let oldest = parked.remove(0);
    drop(parked);
    // Forgotten first: the address may be another stream's as soon as this one is destroyed.
    registry::remove(oldest.stream.raw);
    if really_destroy(oldest.stream).is_err_and(|error| !error.stays()) {
        // Another turn tries again. What is lost with its device is gone.
        registry::insert(oldest.stream.raw, oldest.stream.device, Kind::Parked);
        PARKED.lock().push(oldest);
    }
}

pub(super) fn really_destroy(stream: Stream) -> Result<()> {
    let entered = stream.enter()?;
    entered.runtime.stream_destroy(stream.raw).map_err(device::blame(stream.device))
}

/// Makes a stream of somebody else known, with its device where CUDA cannot tell it (-1: ask CUDA). Known before: checked only.
pub fn register(raw: RawStream, device: i32) -> Result<Stream> {
    if raw < registry::HANDLE_END {
        return Err(special("registered"));
    }
    if device == device::CURRENT {
        return registry::resolve(raw);
    }
    let device = device::resolve(device)?;
    let found = match registry::resolve(raw) {
        Ok(stream) => stream,
        Err(error) if error.status == Status::TCUDA_ERROR_NOT_SUPPORTED => Stream { device: registry::meet(raw, device).device, raw },
        Err(error) => return Err(error),
    };
    if found.device == device {
        return Ok(found);
    }
    Err(Error::invalid_argument(format!(
        "The stream {raw:#x} is known as a stream of device {}, not of device {device}. If that one was destroyed, tcuda_stream_unregister \
         comes first.",
        found.device
    )))
}

/// Forgets a stream of somebody else: what waits for it is settled, after which its owner may destroy it.
pub fn unregister(raw: RawStream) -> Result<()> {
    let stream = leave(raw, Kind::Foreign)?;
    let done = tell_gone(stream);
    match done {
        Ok(()) => registry::remove(raw),
        Err(_) => {
            registry::change(raw, Kind::Leaving, Kind::Foreign);
        }
    }
    done
}

/// From here on the handle is none any more; a second thread that wants the same is told so.
pub(super) fn leave(raw: RawStream, kind: Kind) -> Result<Stream> {
    if raw < registry::HANDLE_END {
        return Err(special(if kind == Kind::Own { "destroyed" } else { "unregistered" }));
    }
    let invalid = |message: String| Err(Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, message));
    match registry::change(raw, kind, Kind::Leaving) {
        Some(found) if found.kind == kind => Ok(Stream { device: found.device, raw }),
        Some(found) => match found.kind {
            Kind::Pool => Err(Error::new(
                Status::TCUDA_ERROR_INVALID_STATE,
                format!("The stream {raw:#x} belongs to the pool, which others draw from too. It stays until tcuda_shutdown."),
            )),
            Kind::Green => Err(Error::new(
                Status::TCUDA_ERROR_INVALID_STATE,
                format!("The stream {raw:#x} belongs to a green context, which others draw from too. tcuda_green_context_destroy ends it."),
            )),
            Kind::Own => invalid(format!("The stream {raw:#x} was made by tcuda_stream_create; tcuda_stream_destroy ends it.")),
            Kind::Foreign => {
                invalid(format!("The stream {raw:#x} was not made by tcuda. Its owner destroys it, after tcuda_stream_unregister."))
            }
            Kind::Leaving | Kind::Parked => invalid(format!("The stream {raw:#x} was destroyed before.")),
        },
        None => invalid(format!("{raw:#x} is no stream that tcuda knows.")),
    }
}

#[cold]
fn special(what: &str) -> Error {
    Error::new(
        Status::TCUDA_ERROR_INVALID_HANDLE,
        format!("A default stream or a special value (0x1, 0x2, TCUDA_STREAM_*) belongs to CUDA and cannot be {what}."),
    )
}

/// Destroys the streams of `create` and the parked ones.
pub(super) fn shutdown() {
    PARKED.lock().clear();
    for stream in registry::all(Kind::Own).into_iter().chain(registry::all(Kind::Parked)) {
        // What cannot be destroyed is lost with its device.
        let _ = insist(|| really_destroy(stream));
    }
}
