//! Graphed callables
//!
//! Functions of the program that give work to a stream, captured once and then called by a replay (torch.cuda.make_graphed_callables): a model's
//! forward passes in order, its backward passes behind them, an optimizer's step. All share one pool of memory.

use super::graph::tcuda_pool_id_t;
use super::guard::{self, guard, guard_destroy, guard_out, null, slice};
use super::structs::tcuda_stream_t;
use super::tensor::{check_room, views_of};
use crate::base::dlpack::tcuda_tensor_t;
use crate::base::status::{self, tcuda_status_t};
use crate::base::{Error, Result, work};
use crate::graph::callable::{self, Callable};
use crate::stream;
use crate::tensor::View;
use std::ffi::{CStr, c_void};
use std::ptr;

/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_graphed_callable {}
/// Graphed callables. Not a pointer to anything.
#[allow(non_camel_case_types)]
pub type tcuda_graphed_callable_t = *mut tcuda_graphed_callable;

/// Gives work to the stream, and waits for nothing. 0: done; anything else is a failure, best the tcuda_status_t of the call that failed.
#[allow(non_camel_case_types)]
pub type tcuda_callable_fn_t = Option<
    unsafe extern "C" fn(
        inputs: *const tcuda_tensor_t,
        input_count: usize,
        outputs: *const tcuda_tensor_t,
        output_count: usize,
        stream: tcuda_stream_t,
        user_data: *mut c_void,
    ) -> i32,
>;

/// A function, and the tensors that it works on: their memory is the graph's from the capture on, and has to stay for as long.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_callable_t {
    pub function: tcuda_callable_fn_t,
    /// Goes to each call of it.
    pub user_data: *mut c_void,
    /// On the stream's device, or in pinned memory. A call may give others of the same shape and type.
    pub inputs: *const tcuda_tensor_t,
    pub input_count: usize,
    /// Where the results are after each call.
    pub outputs: *const tcuda_tensor_t,
    pub output_count: usize,
}

/// Runs the function, once.
unsafe fn run(callable: &tcuda_callable_t, stream: usize) -> Result<()> {
    let function = callable.function.ok_or_else(|| null("function"))?;
    let (inputs, outputs) = ((callable.inputs, callable.input_count), (callable.outputs, callable.output_count));
    let run = || unsafe { function(inputs.0, inputs.1, outputs.0, outputs.1, stream as tcuda_stream_t, callable.user_data) };
    let code = work::aside(run);
    if code == 0 {
        return Ok(());
    }
    let last = guard::last_error();
    let text = |pointer| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned();
    if last.status as i32 == code {
        let said = format!("returned {}: {}: {}", status::name(code).unwrap_or(""), text(last.function), text(last.message));
        return Err(Error::new(last.status, said).with_native(last.native).on_device(last.device).with_bytes(last.bytes));
    }
    // Of its own, and maybe one of tcuda's numbers.
    match status::all().find(|status| *status as i32 == code) {
        Some(status) => Err(Error::new(status, format!("returned {}", status::name(code).unwrap_or("")))),
        None => Err(Error::new(tcuda_status_t::TCUDA_ERROR_INVALID_STATE, format!("returned {code}"))),
    }
}

/// Captures functions for calls by replay. Each runs `warmups` times on a stream of tcuda's own, all in their order, and then once more for the
/// capture, in which it only notes what it does (torch's make_graphed_callables). What is allocated in the capture comes from the pool that all of
/// them share. No function may wait for the device or do what cannot be captured otherwise: the error names the function and, where it was one of
/// tcuda's, the call.
///
/// @param graphed      gets them; tcuda_graphed_callable_destroy ends them.
/// @param callables    in the order in which they will be called: forward passes, then the backward passes in reverse, for example.
/// @param warmups      runs before the capture; negative: 3, as torch. They write the outputs.
/// @param pool         all zero: a pool of their own; or that of other graphs, which are never replayed at the same time.
/// @param stream       the work on it comes before, and its later work after; its device is theirs.
/// @return what a function returned, if that was a tcuda_status_t; else TCUDA_ERROR_INVALID_STATE. Nothing is left of a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_graphed_callable_create(
    graphed: *mut tcuda_graphed_callable_t,
    callables: *const tcuda_callable_t,
    count: usize,
    warmups: i32,
    pool: tcuda_pool_id_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard_out("tcuda_graphed_callable_create", graphed, "graphed", || {
        let given = unsafe { slice(callables, count, "callables") }?;
        check_room(count)?;
        let stream = stream::resolve(stream as usize)?;
        let runs: Vec<_> = given.iter().map(|callable| move |on: usize| unsafe { run(callable, on) }).collect();
        let mut callables = Vec::new();
        for (callable, run) in given.iter().zip(&runs) {
            callable.function.ok_or_else(|| null("function"))?;
            unsafe { views(callable.outputs, callable.output_count, "outputs") }?;
            callables.push(Callable { run, inputs: unsafe { views(callable.inputs, callable.input_count, "inputs") }? });
        }
        let made = callable::create(&callables, u32::try_from(warmups).ok(), pool.into(), stream)?;
        Ok(made as tcuda_graphed_callable_t)
    })
}

unsafe fn views(tensors: *const tcuda_tensor_t, count: usize, parameter: &str) -> Result<Vec<View>> {
    let tensors = unsafe { slice(tensors, count, parameter) }?;
    check_room(count)?;
    unsafe { views_of(tensors.iter().map(ptr::from_ref), parameter) }
}

/// Calls a function by replay. Inputs that lie elsewhere than at the capture are copied to where they lay then; those at the same address cost
/// nothing. The results are in the outputs of the capture until its next call. Calls from any streams come one after the other.
///
/// @param index    which of them. They are called in the order of the capture; 0 begins anew at any time.
/// @param inputs   as many as at the capture, of the same shapes and types, anywhere: one may be what another one was at the capture, but for a
///                 circle of them, as two that are exchanged, which is an error. NULL with `input_count` 0: those of the capture.
/// @param stream   of their device.
/// @return TCUDA_ERROR_INVALID_STATE: it is another one's turn, or a pressure callback calls from inside of a call. TCUDA_ERROR_CAPTURE: the
///         stream is being captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_graphed_callable_call(
    graphed: tcuda_graphed_callable_t,
    index: usize,
    inputs: *const tcuda_tensor_t,
    input_count: usize,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_graphed_callable_call", || {
        if !inputs.is_null() {
            callable::check_count(graphed as usize, index, input_count)?;
        }
        let views = unsafe { views(inputs, input_count, "inputs") }?;
        let inputs = if inputs.is_null() { None } else { Some(&views[..]) };
        callable::call(graphed as usize, index, inputs, stream::resolve(stream as usize)?)
    })
}

/// Ends graphed callables. Calls that are under way go on. NULL succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_graphed_callable_destroy(graphed: tcuda_graphed_callable_t) -> tcuda_status_t {
    guard_destroy("tcuda_graphed_callable_destroy", graphed, || callable::destroy(graphed as usize))
}
