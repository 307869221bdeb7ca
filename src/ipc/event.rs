//! Events that several processes know.

use crate::base::{Result, Status, insist, watch};
use crate::device;
use crate::event::{self, BLOCKING, DISABLE_TIMING, INTERPROCESS};
use crate::runtime::table::IpcHandle;
use crate::runtime::{self, RawEvent};
use crate::stream::Stream;

/// The point that a stream's work had come to, for other processes.
pub struct Mark {
    device: i32,
    event: RawEvent,
    /// None: for others nothing has to be waited for.
    pub handle: Option<IpcHandle>,
}

impl Mark {
    /// None: nothing has to be waited for (any more). Where there are no such events (any more), the stream is waited for here.
    pub fn on(stream: Stream) -> Result<Option<Mark>> {
        let runtime = runtime::runtime()?;
        let is_idle = runtime.outside_capture(|| stream.enter().map(|_entered| stream.is_idle(runtime)))?;
        // Of order within this process the sanitizer knows by events alone.
        if is_idle && !watch::any(watch::SANITIZER) {
            return Ok(None);
        }
        let made = runtime.outside_capture(|| Mark::make(stream));
        match made {
            Ok(mark) => Ok(Some(Mark { handle: mark.handle.filter(|_| !is_idle), ..mark })),
            Err(error) if error.status == Status::TCUDA_ERROR_DEVICE_LOST => Err(error),
            Err(_) => runtime.outside_capture(|| stream.synchronize()).map(|()| None),
        }
    }

    fn make(stream: Stream) -> Result<Mark> {
        let _guard = device::Guard::new(stream.device)?;
        let runtime = runtime::runtime()?;
        let event = runtime.event_create(BLOCKING | DISABLE_TIMING | INTERPROCESS)?;
        let mark = Mark { device: stream.device, event, handle: None };
        let recorded = event::record(event, stream).and_then(|()| runtime.ipc_event_handle(event));
        match recorded {
            Ok(handle) => Ok(Mark { handle: Some(handle), ..mark }),
            Err(error) => {
                mark.end();
                Err(error)
            }
        }
    }

    /// What comes next on a stream of this process waits for it too.
    pub fn holds_up(&self, stream: Stream) -> Result<()> {
        event::wait(self.event, stream)
    }

    /// True: what it stands for is done. Not for host functions.
    pub fn is_past(&self) -> bool {
        let ask = || {
            let _guard = device::Guard::new(self.device)?;
            let runtime = runtime::runtime()?;
            runtime.outside_capture(|| runtime.event_query(self.event))
        };
        // What ails the device shows in the program's own calls.
        ask().unwrap_or(false)
    }

    /// Not for host functions.
    pub fn end(self) {
        let end = || {
            let _guard = device::Guard::new(self.device)?;
            let runtime = runtime::runtime()?;
            runtime.outside_capture(|| runtime.event_destroy(self.event))
        };
        // What cannot be destroyed is lost with its device.
        let _ = insist(end);
    }
}

/// What comes next on the stream waits for another process's mark.
pub fn wait(device: i32, handle: IpcHandle, stream: Stream) -> Result<()> {
    let _guard = device::Guard::new(device)?;
    let runtime = runtime::runtime()?;
    runtime.outside_capture(|| {
        let event = runtime.ipc_open_event_handle(handle).map_err(|error| error.context("The producer's event"))?;
        let waits = event::wait(event, stream);
        // The wait stays.
        let _ = insist(|| runtime.event_destroy(event));
        waits
    })
}
