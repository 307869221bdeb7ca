//! # stream
//! Owns:   what a stream handle means, own and pooled streams, green contexts and theirs, foreign streams and their devices, each thread's
//!         current streams.
//! Uses:   device, runtime, base.
//! Never:  a second notion of the current device; keeps a stream of somebody else alive.
//! Locks:  that of a PerDevice, then pool::MAKING, own::PARKED or a green context's state, then registry::STREAMS; own::HOOKS alone. Gone-hooks run
//!         with no lock held.
//! Tests:  in the files, tests/conformance/stream.rs, tests/conformance/green.rs.

mod current;
pub mod green;
mod own;
mod pool;
mod registry;

pub use current::{Saved, current, exchange, set_current};
pub use own::{GoneHook, PerDevice, Turn, create, destroy, destroy_unheard, on_gone, register, unregister};
pub use pool::{PER_LEVEL, from_pool, priority_range};
pub use registry::{
    HANDLE_CURRENT, HANDLE_DEFAULT, MOST_DEVICES, NO_HANDLE, generation, handle_of, resolve, resolve_beside, resolve_on, serial,
};

use crate::base::watch::{self, Happening, Place};
use crate::base::{Error, Result, Status, insist, sync_debug};
use crate::device;
use crate::runtime::{self, RawStream, Runtime};

/// A stream and its device. `raw` is what CUDA sees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stream {
    pub device: i32,
    /// `DEFAULT`, `PER_THREAD`, or a handle.
    pub raw: RawStream,
}

/// The default stream of the device that is current when CUDA sees it.
pub const DEFAULT: RawStream = 0;
/// The calling thread's default stream of that device: another stream in every thread.
pub const PER_THREAD: RawStream = 2;

/// The default stream of a device; -1 is the current one.
pub fn default(device: i32) -> Result<Stream> {
    Ok(Stream { device: device::resolve(device)?, raw: DEFAULT })
}

impl Stream {
    /// The default streams have no handle of their own: CUDA takes them from the current device.
    pub fn is_default(self) -> bool {
        self.raw <= PER_THREAD
    }

    /// For who looks on.
    pub fn place(self) -> Place {
        Place { device: self.device, raw: self.raw }
    }

    /// Makes the device current where CUDA needs that to know which stream is meant, or would make a context elsewhere.
    pub fn enter(self) -> Result<Entered> {
        let guard = if self.is_default() {
            Some(device::Guard::new(self.device)?)
        } else {
            device::check_lost(self.device)?;
            device::guard_against_stray_context(self.device)?
        };
        Ok(Entered { runtime: runtime::runtime()?, raw: self.raw, _guard: guard })
    }

    /// The same with the device current in any case: copies of memory that is mapped page by page look at the current device, not the stream's.
    pub fn enter_current(self) -> Result<Entered> {
        let guard = device::Guard::new(self.device)?;
        device::check_lost(self.device)?;
        Ok(Entered { runtime: runtime::runtime()?, raw: self.raw, _guard: Some(guard) })
    }

    /// What tells it from all others of the process, also from a thread's default stream of later. None: CUDA does not tell (before 12.0, or while it
    /// is captured).
    pub fn id(self) -> Option<u64> {
        let id = || {
            if self.is_capturing()? {
                return Ok(None);
            }
            let entered = self.enter()?;
            entered.runtime.stream_id(entered.raw)
        };
        runtime::runtime().and_then(|runtime| runtime.outside_capture(id)).unwrap_or(None)
    }

    /// Whether all work given to it so far is done.
    pub fn query(self) -> Result<bool> {
        let entered = self.enter()?;
        let done = entered.runtime.stream_query(entered.raw).map_err(device::blame(self.device))?;
        if done {
            watch::tell(|| Happening::StreamDone { on: self.place() });
        }
        Ok(done)
    }

    /// Whether all is done that its next work comes behind, be it the legacy stream's. It is not captured. Nothing that the program asked: the
    /// sanitizer learns nothing by it.
    pub fn is_past(self) -> Result<bool> {
        watch::unseen(|| {
            let legacy = Stream { raw: DEFAULT, ..self };
            // To ask that one how far it is would end the capture of a stream that comes behind it.
            let is_legacy_past = || Ok(!legacy.is_capturing().unwrap_or(true) && legacy.query()?);
            Ok(self.query()? && (!self.blocks(runtime::runtime()?) || is_legacy_past()?))
        })
    }

    /// The same, but an error, which the capture hears nothing of, while it is captured.
    pub fn is_past_uncaptured(self) -> Result<bool> {
        self.refuse_capture(|| "The stream is being captured.".into())?;
        self.is_past()
    }

    /// Whether an event recorded now would stand for nothing that is not done; false where that cannot be told at once. It is not captured, a
    /// default stream's device is current, and the thread's captures let it ask. Nothing that the program asked, as in `is_past`.
    pub fn is_idle(self, runtime: &Runtime) -> bool {
        !self.blocks(runtime) && runtime.stream_query(self.raw).unwrap_or(false)
    }

    /// Whether it comes behind the legacy default stream, of whose work a query of this one says nothing. That of the legacy stream says
    /// what blocks it too.
    fn blocks(self, runtime: &Runtime) -> bool {
        match registry::find(self.raw).map(|entry| entry.kind) {
            _ if self.is_default() => self.raw == PER_THREAD,
            Some(registry::Kind::Own | registry::Kind::Pool | registry::Kind::Green) => false,
            _ => runtime.stream_flags(self.raw).map_or(true, |flags| flags & own::NON_BLOCKING == 0),
        }
    }

    /// Waits until all work given to it so far is done.
    pub fn synchronize(self) -> Result<()> {
        let entered = self.enter()?;
        entered.runtime.stream_synchronize(entered.raw).map_err(device::blame(self.device))?;
        watch::tell(|| Happening::StreamWaited { on: self.place() });
        Ok(())
    }

    /// After a failure half way: what it got may use memory that is given back. Waited for whatever waits are refused and whoever captures,
    /// with a second try. One that cannot be waited for is lost, and its work with it.
    pub fn drain(self) {
        let _ = self.try_drain();
    }

    pub fn try_drain(self) -> Result<()> {
        sync_debug::unrefused(|| insist(|| runtime::runtime()?.outside_capture(|| self.synchronize())))
    }

    /// As the driver has it: a smaller number is served first.
    pub fn priority(self) -> Result<i32> {
        let entered = self.enter()?;
        entered.runtime.stream_priority(entered.raw).map_err(device::blame(self.device))
    }

    pub fn is_capturing(self) -> Result<bool> {
        let entered = self.enter()?;
        entered.runtime.stream_is_capturing(entered.raw).map_err(device::blame(self.device))
    }

    /// An error with this text while it is being captured, which the capture hears nothing of.
    pub fn refuse_capture(self, text: impl FnOnce() -> String) -> Result<()> {
        if self.is_capturing()? {
            return Err(Error::new(Status::TCUDA_ERROR_CAPTURE, text()).on_device(self.device));
        }
        Ok(())
    }
}

/// A stream ready to be given to CUDA; the device that was current before comes back when it is dropped.
#[must_use]
pub struct Entered {
    pub runtime: &'static Runtime,
    pub raw: RawStream,
    _guard: Option<device::Guard>,
}

/// Waits for all streams of a device that tcuda knows, but those that are captured.
pub fn drain_all(device: i32) {
    use registry::Kind::{Foreign, Green, Leaving, Own, Parked, Pool};
    let known = [Own, Pool, Green, Foreign, Leaving, Parked].into_iter().flat_map(registry::all).filter(|stream| stream.device == device);
    let defaults = [DEFAULT, PER_THREAD].map(|raw| Stream { device, raw });
    known.chain(defaults).filter(|stream| stream.is_capturing() == Ok(false)).for_each(Stream::drain);
}

/// Destroys every stream and green context that tcuda made. Nothing may use one any more.
pub fn shutdown() {
    green::shutdown();
    pool::shutdown();
    own::shutdown();
    registry::clear();
}
