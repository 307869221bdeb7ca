//! Green contexts
//!
//! A green context is some of a device's multiprocessors (torch.cuda.green_contexts.GreenContext): kernels that are launched on streams of it
//! run on those alone, and leave the others to other streams. Its streams are used as any; memory, events and graphs know no difference.
//! Nothing is kept from others: streams of the device run on all its multiprocessors, and each context is cut from the whole device, as torch's,
//! so that two have the same ones. The driver has to be one of CUDA 12.5 or later; with others tcuda_green_context_create fails.
//!
//! tcuda makes none the current context of a thread, as torch's set_context does with the driver's cuCtxPushCurrent. In it CUDA's default
//! stream (NULL) is another stream than the device's, in that thread only, while memory that was freed on the one is given out on the other; and
//! the next cudaSetDevice puts it away. tcuda_green_context_begin makes a stream of it current instead.

use super::guard::{guard, guard_destroy, guard_out};
use super::structs::tcuda_stream_t;
use crate::base::status::tcuda_status_t;
use crate::event;
use crate::stream::green;

/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_green_context {}
/// A green context. Not a pointer to anything.
#[allow(non_camel_case_types)]
pub type tcuda_green_context_t = *mut tcuda_green_context;

/// Sets some of a device's multiprocessors apart (GreenContext.create).
///
/// @param green_context gets it; tcuda_green_context_destroy ends it.
/// @param num_sms       how many at least, from 1 on. The driver rounds up: on an H100 to a multiple of 8.
/// @param device        -1: the current one.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: the device has not so many, or not once they are rounded up. TCUDA_ERROR_NOT_SUPPORTED: the driver is
///         older than CUDA 12.5.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_green_context_create(
    green_context: *mut tcuda_green_context_t,
    num_sms: i32,
    device: i32,
) -> tcuda_status_t {
    guard_out("tcuda_green_context_create", green_context, "green_context", || Ok(green::create(num_sms, device)? as tcuda_green_context_t))
}

/// Ends a green context and its streams: waits for their work, and settles memory that waits for them. Where one was a thread's current
/// stream, the default stream is now. Graphs that were captured on them must not be replayed any more. NULL succeeds.
///
/// @return TCUDA_ERROR_INVALID_STATE: it is open in a thread.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_green_context_destroy(green_context: tcuda_green_context_t) -> tcuda_status_t {
    guard_destroy("tcuda_green_context_destroy", green_context, || green::destroy(green_context as usize))
}

/// How many multiprocessors a green context really has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_green_context_num_sms(green_context: tcuda_green_context_t, num_sms: *mut i32) -> tcuda_status_t {
    guard_out("tcuda_green_context_num_sms", num_sms, "num_sms", || Ok(green::multiprocessors(green_context as usize)? as i32))
}

/// The next of a green context's streams (GreenContext.Stream): 32, handed out in turn, so the 33rd is the first one again. They have normal
/// priority and no implicit order with the legacy default stream, and they end with the context; tcuda_stream_destroy refuses them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_green_context_stream(stream: *mut tcuda_stream_t, green_context: tcuda_green_context_t) -> tcuda_status_t {
    guard_out("tcuda_green_context_stream", stream, "stream", || Ok(super::stream::handle(green::stream(green_context as usize)?)))
}

/// From now on this thread's current stream is one of the green context, and its device the current one, until tcuda_green_context_end (torch:
/// set_context). It is the same stream each time, and none of tcuda_green_context_stream. It waits for what was given to the streams that
/// were current, of the current device and of the context's; on one that is captured it joins the capture. Within another opening the newest
/// one is meant. NULL and the default streams stay the device's: work for the context has to name TCUDA_STREAM_CURRENT.
///
/// @return TCUDA_ERROR_INVALID_HANDLE: there is no such context, or another thread is destroying it.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_green_context_begin(green_context: tcuda_green_context_t) -> tcuda_status_t {
    guard("tcuda_green_context_begin", || green::begin(green_context as usize, event::wait_stream))
}

/// Undoes the newest tcuda_green_context_begin of this thread (torch: pop_context): the streams and the device that were current then are so
/// again, whatever was made current meanwhile, and those streams wait for what the context's stream was given. For a stream that was destroyed
/// meanwhile it is its device's default stream.
///
/// @return TCUDA_ERROR_INVALID_STATE: that was of another context, or there was none.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_green_context_end(green_context: tcuda_green_context_t) -> tcuda_status_t {
    guard("tcuda_green_context_end", || green::end(green_context as usize, event::wait_stream))
}
