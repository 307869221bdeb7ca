//! Streams
//!
//! A tcuda_stream_t is a cudaStream_t: streams of any library can be given. Special values: NULL (and cudaStreamLegacy) is the default
//! stream of the current device, or of the device of the pointer or tensor beside it (but for communicators and the list of
//! tcuda_comm_scatter, where NULL is the current stream); TCUDA_STREAM_DEFAULT(d) is that of device d, and what tcuda gives out for it;
//! TCUDA_STREAM_CURRENT is the thread's current stream (torch's None); cudaStreamPerThread (0x2) is the calling thread's default stream of
//! that device, and TCUDA_STREAM_PER_THREAD(d) that of device d, and what tcuda gives out for it. A stream of another library is looked up
//! once; before its owner destroys it, tcuda_stream_unregister settles what waits for it. A stream may be used by several threads; one that
//! is being destroyed by nobody else. Handles that tcuda knows to be dead are TCUDA_ERROR_INVALID_HANDLE; CUDA itself may crash on garbage.

use super::guard::{Out, guard, guard_destroy, guard_out};
use super::structs::{tcuda_event_t, tcuda_stream_t};
use crate::base::Error;
use crate::base::status::tcuda_status_t;
use crate::stream::{self, Stream};
use crate::{device, event, memory};
use std::ffi::c_void;

/// Work for the host in the order of a stream; called once, or by each replay where the stream is captured, on a thread of the runtime,
/// with no lock of tcuda held. It must not call CUDA or anything of tcuda that does, must not wait for another stream, and no C++ exception
/// or longjmp may leave it.
#[allow(non_camel_case_types)]
pub type tcuda_host_fn_t = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

pub(super) fn handle(stream: Stream) -> tcuda_stream_t {
    stream::handle_of(stream) as tcuda_stream_t
}

pub(super) fn resolve(stream: tcuda_stream_t) -> Result<Stream, Error> {
    stream::resolve(stream as usize)
}

/// Makes a stream of one's own (torch has only the pool; cudaStreamCreateWithPriority). It has no implicit order with the legacy default
/// stream (cudaStreamNonBlocking).
///
/// @param stream   gets the stream; tcuda_stream_destroy ends it.
/// @param device   -1: the current one.
/// @param priority 0 is normal, a smaller number is served first; cut to what the device has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_create(stream: *mut tcuda_stream_t, device: i32, priority: i32) -> tcuda_status_t {
    guard_out("tcuda_stream_create", stream, "stream", || Ok(handle(stream::create(device, priority)?)))
}

/// Takes a stream from the pool (torch.cuda.Stream): 32 per priority and device, handed out in turn, so the 33rd is the first one again.
/// They are shared with everyone who draws the same one, and are not destroyed.
///
/// @param device   -1: the current one.
/// @param priority 0 is normal, a smaller number is served first; cut to tcuda_stream_priority_range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_from_pool(stream: *mut tcuda_stream_t, device: i32, priority: i32) -> tcuda_status_t {
    guard_out("tcuda_stream_from_pool", stream, "stream", || Ok(handle(stream::from_pool(device, priority)?)))
}

/// Makes a stream of another library known (torch.cuda.ExternalStream). Needed only where CUDA cannot tell a stream's device (drivers that
/// lack both cudaStreamGetDevice and cuStreamGetCtx, and before CUDA 13 streams of another library's green contexts), and for the error in
/// good time. It stays its owner's.
///
/// @param device   -1: ask CUDA.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: it belongs to another device. TCUDA_ERROR_INVALID_HANDLE: it is no stream, or a special value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_register(stream: tcuda_stream_t, device: i32) -> tcuda_status_t {
    guard("tcuda_stream_register", || stream::register(stream as usize, device).map(|_| ()))
}

/// Forgets a stream of another library, whose owner is about to destroy it: memory that waits for it is settled. Every stream that was
/// given to a call of tcuda is known, registered or not. NULL does nothing. Left out, another stream that CUDA makes at the same address
/// passes for this one, and memory may be used again before this one's work is done.
///
/// @return TCUDA_ERROR_INVALID_HANDLE: tcuda has not met it, or made it by tcuda_stream_create. TCUDA_ERROR_INVALID_STATE: it is the pool's or a
///         green context's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_unregister(stream: tcuda_stream_t) -> tcuda_status_t {
    guard_destroy("tcuda_stream_unregister", stream, || stream::unregister(stream as usize))
}

/// Ends a stream of tcuda_stream_create. Work that it was given still runs, and memory that waits for it is settled. Where it was a
/// thread's current stream, the default stream is now. The handle may come back from a later tcuda_stream_create. NULL succeeds.
///
/// @return TCUDA_ERROR_INVALID_HANDLE: it was destroyed before, or is not tcuda's. TCUDA_ERROR_INVALID_STATE: it is the pool's, or a green
///         context's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_destroy(stream: tcuda_stream_t) -> tcuda_status_t {
    guard_destroy("tcuda_stream_destroy", stream, || stream::destroy(stream as usize))
}

/// What CUDA is to be given for a stream: NULL for the default stream of a device, which CUDA takes as that of its current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_native(stream: tcuda_stream_t, native: *mut tcuda_stream_t) -> tcuda_status_t {
    guard_out("tcuda_stream_native", native, "native", || Ok(resolve(stream)?.raw as tcuda_stream_t))
}

/// The device of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_device(stream: tcuda_stream_t, device: *mut i32) -> tcuda_status_t {
    guard_out("tcuda_stream_device", device, "device", || Ok(resolve(stream)?.device))
}

/// The priority of a stream, as the driver has it (torch.cuda.Stream.priority).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_priority(stream: tcuda_stream_t, priority: *mut i32) -> tcuda_status_t {
    guard_out("tcuda_stream_priority", priority, "priority", || resolve(stream)?.priority())
}

/// The priorities that the pool tells apart (torch.cuda.Stream.priority_range): least is 0, greatest at best -3.
/// tcuda_stream_create takes the whole range of the device, which may go further.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_priority_range(least: *mut i32, greatest: *mut i32, device: i32) -> tcuda_status_t {
    guard("tcuda_stream_priority_range", || {
        let (out_least, out_greatest) = (Out::new(least, "least")?, Out::new(greatest, "greatest")?);
        let range = stream::priority_range(device)?;
        out_least.write(range.0);
        out_greatest.write(range.1);
        Ok(())
    })
}

/// The calling thread's current stream of a device (torch.cuda.current_stream). A new thread starts with the default streams. CUDA knows no
/// current stream: it means what tcuda does with TCUDA_STREAM_CURRENT, and what programs agree on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_current_stream(stream: *mut tcuda_stream_t, device: i32) -> tcuda_status_t {
    guard_out("tcuda_current_stream", stream, "stream", || Ok(handle(stream::current(device)?)))
}

/// The default stream of a device (torch.cuda.default_stream): TCUDA_STREAM_DEFAULT(device).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_default_stream(stream: *mut tcuda_stream_t, device: i32) -> tcuda_status_t {
    guard_out("tcuda_default_stream", stream, "stream", || Ok(handle(stream::default(device)?)))
}

/// Makes a stream current on its device for the calling thread, and that device current (torch.cuda.set_stream).
/// TCUDA_STREAM_CURRENT changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_set_stream(stream: tcuda_stream_t) -> tcuda_status_t {
    guard("tcuda_set_stream", || stream::set_current(resolve(stream)?))
}

/// Makes a stream and its device current and says what was: the first half of torch's `with torch.cuda.stream(s)`. The second half is
/// tcuda_set_stream(replaced), then tcuda_set_stream(previous), which brings the device back too. A stream that was destroyed meanwhile is
/// refused there, and TCUDA_STREAM_DEFAULT of its device is to be set instead.
///
/// @param previous gets the current stream of the device that was current.
/// @param replaced gets what was current on the stream's own device. May be NULL where that device is current anyway.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: `replaced` is NULL, and the stream is of another device than the current one. Nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_exchange_stream(
    previous: *mut tcuda_stream_t,
    replaced: *mut tcuda_stream_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_exchange_stream", || {
        let out = Out::new(previous, "previous")?;
        let stream = resolve(stream)?;
        let replaced = Out::new(replaced, "replaced").ok();
        if replaced.is_none() {
            refuse_to_lose(stream, device::current()?)?;
        }
        let saved = stream::exchange(stream)?;
        out.write(handle(saved.previous));
        if let Some(out) = replaced {
            out.write(handle(saved.replaced));
        }
        Ok(())
    })
}

fn refuse_to_lose(stream: Stream, current: i32) -> Result<(), Error> {
    if stream.device == current {
        return Ok(());
    }
    let text = format!(
        "'replaced' is NULL, and the stream is of device {}, while device {current} is current: what it replaces could not be brought back. \
         Give a place for it.",
        stream.device
    );
    Err(Error::invalid_argument(text))
}

/// Whether all work given to a stream so far is done (torch.cuda.Stream.query, cudaStreamQuery).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_query(stream: tcuda_stream_t, complete: *mut bool) -> tcuda_status_t {
    guard_out("tcuda_stream_query", complete, "complete", || resolve(stream)?.query())
}

/// Waits until all work given to a stream so far is done (torch.cuda.Stream.synchronize, cudaStreamSynchronize).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_synchronize(stream: tcuda_stream_t) -> tcuda_status_t {
    guard("tcuda_stream_synchronize", || memory::synchronize_stream(resolve(stream)?))
}

/// Records an event on a stream (torch.cuda.Stream.record_event).
///
/// @param event    in and out: an event, or NULL in it, which becomes a new event without timing; tcuda_event_destroy ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_record_event(stream: tcuda_stream_t, event: *mut tcuda_event_t) -> tcuda_status_t {
    guard("tcuda_stream_record_event", || {
        let given = if event.is_null() { 0 } else { unsafe { event.read() as usize } };
        let out = Out::new(event, "event")?;
        let stream = resolve(stream)?;
        if given != 0 {
            return event::record(given, stream);
        }
        let _guard = device::Guard::new(stream.device)?;
        let made = event::create(event::DISABLE_TIMING)?;
        if let Err(error) = event::record(made, stream) {
            // The first error is the one to tell.
            let _ = event::destroy(made);
            return Err(error);
        }
        out.write(made as tcuda_event_t);
        Ok(())
    })
}

/// Makes a stream's later work wait for an event's last record (torch.cuda.Stream.wait_event, cudaStreamWaitEvent). An event that was
/// never recorded holds nothing up. The stream and the event may be of different devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_wait_event(stream: tcuda_stream_t, event: tcuda_event_t) -> tcuda_status_t {
    guard("tcuda_stream_wait_event", || event::wait(event as usize, resolve(stream)?))
}

/// Makes a stream's later work wait for all that another stream was given until now (torch.cuda.Stream.wait_stream).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_wait_stream(stream: tcuda_stream_t, other: tcuda_stream_t) -> tcuda_status_t {
    guard("tcuda_stream_wait_stream", || event::wait_stream(resolve(stream)?, resolve(other)?))
}

/// Has a function called on the host when the work before it is done; the work after it waits (cudaLaunchHostFunc). On a stream that is
/// captured each replay calls it, so that what `user_data` points to has to live as long as the graph and its replays.
///
/// @return TCUDA_ERROR_INVALID_ARGUMENT: `function` is NULL. After an error it is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_add_host_function(
    stream: tcuda_stream_t,
    function: tcuda_host_fn_t,
    user_data: *mut c_void,
) -> tcuda_status_t {
    guard("tcuda_stream_add_host_function", || {
        let function = function.ok_or_else(|| super::guard::null("function"))?;
        let stream = resolve(stream)?;
        let entered = stream.enter()?;
        unsafe { entered.runtime.launch_host_function(entered.raw, function, user_data) }.map_err(device::blame(stream.device))
    })
}
