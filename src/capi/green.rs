//! Green contexts
//!
//! A green context is some of a device's multiprocessors (torch.cuda.green_contexts.GreenContext; CUDA's cuGreenCtxCreate): kernels that are
//! launched on streams of it run on those, and leave the others to other streams. Its streams are used as any; memory, events and graphs know no
//! difference. Nothing is kept from others: streams of the device run on all its multiprocessors, and each context is cut from the whole device,
//! as torch's, so that two have the same ones. Under MPS, or with kernels that launch kernels, CUDA may take a few more.
//!
//! For work in one, make a stream of it current, with tcuda_exchange_stream. No green context becomes a thread's current context of CUDA, as
//! torch's set_context makes it, which later torch advises against: in it CUDA's default stream (NULL) is another stream than the device's, in that
//! thread only, while memory that was freed on the one is given out on the other; and the next cudaSetDevice puts it away.

use super::guard::{guard_destroy, guard_out};
use super::structs::tcuda_stream_t;
use crate::base::status::tcuda_status_t;
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
/// @param num_sms       how many at least, from 1 on. The driver rounds up: on an H100 to a multiple of 8, or to all.
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
/// @return TCUDA_ERROR_CAPTURE: another thread captures on one of them. After any error but TCUDA_ERROR_INVALID_HANDLE the context is still
///         there, and some of its streams may be gone.
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
