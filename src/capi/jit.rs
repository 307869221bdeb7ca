//! Compiled functions
//!
//! A function of one element, written in C++, that runs over whole tensors (torch.cuda.jiterator): a template that is compiled when it meets
//! tensors of new types, by NVRTC on a real device and by the system's C++ compiler on the simulated one. What was compiled is kept in
//! memory and in files (TCUDA_JIT_CACHE_PATH); docs/JIT.md has what a source may use. The work is enqueued on a stream of the tensors'
//! device; only the first call for new types waits, for the compiler.

use super::guard::{Out, guard, guard_destroy, guard_out, slice, text};
use super::structs::tcuda_stream_t;
use super::tensor::{hand_out, views_of};
use crate::base::dlpack::{tcuda_managed_tensor_t, tcuda_tensor_t};
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result};
use crate::jit::{self, Few, Scalar, Value};
use crate::tensor::View;
use std::ffi::c_char;

/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_jit {}
/// A compiled function. Not a pointer to anything.
#[allow(non_camel_case_types)]
pub type tcuda_jit_t = *mut tcuda_jit;

/// An extra argument of a compiled function: a number that is the same for all elements.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_jit_scalar_t {
    /// By which a call sets it: letters, digits and _, no digit first.
    pub name: *const c_char,
    /// TCUDA_SCALAR_BOOL, _INTEGER, _REAL or _COMPLEX.
    pub kind: i32,
    /// Of a bool (0 or 1) and an integer.
    pub integer: i64,
    /// Of a real and of a complex number.
    pub real: f64,
    /// Of a complex number.
    pub imag: f64,
}

// The header has them by hand.
pub const TCUDA_SCALAR_BOOL: i32 = 0;
pub const TCUDA_SCALAR_INTEGER: i32 = 1;
pub const TCUDA_SCALAR_REAL: i32 = 2;
pub const TCUDA_SCALAR_COMPLEX: i32 = 3;

/// More than any call can have; what says that it has more was never initialised.
const MOST: usize = 64;

fn check_count(count: usize, parameter: &str) -> Result<()> {
    match count {
        0..=MOST => Ok(()),
        _ => Err(Error::invalid_argument(format!("'{parameter}' is {count}; {MOST} are more than any function takes."))),
    }
}

unsafe fn scalars_of<'a>(scalars: *const tcuda_jit_scalar_t, count: usize) -> Result<Few<Scalar<'a>>> {
    check_count(count, "scalar_count")?;
    let of = |(at, scalar): (usize, &tcuda_jit_scalar_t)| {
        let name = unsafe { text(scalar.name, format_args!("scalars[{at}].name")) }?;
        let value = match scalar.kind {
            TCUDA_SCALAR_BOOL => Value::Bool(scalar.integer != 0),
            TCUDA_SCALAR_INTEGER => Value::Integer(scalar.integer),
            TCUDA_SCALAR_REAL => Value::Real(scalar.real),
            TCUDA_SCALAR_COMPLEX => Value::Complex(scalar.real, scalar.imag),
            other => {
                return Err(Error::invalid_argument(format!(
                    "'scalars[{at}].kind' is {other}; 0 (bool), 1 (integer), 2 (real) and 3 (complex) are its values."
                )));
            }
        };
        Ok(Scalar { name, value })
    };
    unsafe { slice(scalars, count, "scalars") }?.iter().enumerate().map(of).collect()
}

unsafe fn few(tensors: *const *const tcuda_tensor_t, count: usize, parameter: &str) -> Result<Few<View>> {
    check_count(count, parameter)?;
    unsafe { views_of(slice(tensors, count, parameter)?.iter().copied(), parameter) }
}

/// Makes a function of one output (torch.cuda.jiterator._create_jit_fn). The source is read, and compiled at the first call.
///
/// @param jit            gets the function; tcuda_jit_destroy ends it.
/// @param source         C++: template functions, the last of which is called, as
///                       `template <typename T> T axpy(T x, T y, T a) { return a * x + y; }`. Those before it are helpers.
/// @param scalars        the extra arguments, which are its last parameters, in order, with their default values. May be NULL.
/// @param scalar_count   at most 16.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: also for a source that is no such function; the message shows the place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_jit_create(
    jit: *mut tcuda_jit_t,
    source: *const c_char,
    scalars: *const tcuda_jit_scalar_t,
    scalar_count: usize,
) -> tcuda_status_t {
    guard_out("tcuda_jit_create", jit, "jit", || {
        let source = unsafe { text(source, "source") }?;
        let scalars = unsafe { scalars_of(scalars, scalar_count) }?;
        Ok(jit::create(source, 0, &scalars)? as usize as tcuda_jit_t)
    })
}

/// The same with 1 to 8 outputs (torch.cuda.jiterator._create_multi_output_jit_fn): references, behind the extra arguments, of a function
/// that returns void: `template <typename T> void both(T x, T y, T &sum, T &difference) { sum = x + y; difference = x - y; }`.
///
/// @param jit            gets the function; tcuda_jit_destroy ends it.
/// @param source         as in tcuda_jit_create.
/// @param outputs        their number.
/// @param scalars        as in tcuda_jit_create.
/// @param scalar_count   at most 16.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_jit_create_multi_output(
    jit: *mut tcuda_jit_t,
    source: *const c_char,
    outputs: i32,
    scalars: *const tcuda_jit_scalar_t,
    scalar_count: usize,
) -> tcuda_status_t {
    guard_out("tcuda_jit_create_multi_output", jit, "jit", || {
        let source = unsafe { text(source, "source") }?;
        let count = usize::try_from(outputs).ok().filter(|outputs| *outputs > 0);
        let count = count.ok_or_else(|| Error::invalid_argument(format!("'outputs' is {outputs}; 1 to 8 are possible.")))?;
        let scalars = unsafe { scalars_of(scalars, scalar_count) }?;
        Ok(jit::create(source, count, &scalars)? as usize as tcuda_jit_t)
    })
}

/// Ends a function. Work that it enqueued goes on, and what was compiled is kept.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_jit_destroy(jit: tcuda_jit_t) -> tcuda_status_t {
    guard_destroy("tcuda_jit_destroy", jit, || jit::destroy(jit as usize as u64))
}

/// Calls a function and makes its outputs: new tensors of the shape that the inputs are broadcast to and of their common type, in their
/// order of dimensions.
///
/// The common type is torch's (torch.result_type): tensors with dimensions decide, one without counts only where it is of a higher category
/// (bool, integer, real, complex). Inputs are converted to it as they are loaded. The function's T is that type, for float16 and bfloat16 it is
/// float, as in torch.
///
/// @param jit            the function.
/// @param outputs        gets the tensors, as many as the function has; tcuda_tensor_destroy ends each.
/// @param inputs         1 to 8 tensors of one device, with any strides; at most 25 dimensions may be left when those are joined that lie alike
///                       in all tensors (TCUDA_ERROR_NOT_SUPPORTED).
/// @param input_count    as many as the function takes.
/// @param scalars        the extra arguments that are not to have their default values, each once. May be NULL.
/// @param scalar_count   their number.
/// @param stream         of the tensors' device.
/// @return TCUDA_ERROR_COMPILATION: the message has the compiler's log. TCUDA_ERROR_NOT_SUPPORTED: also where there is no compiler; the
/// message says what was looked for and where. TCUDA_ERROR_INVALID_ARGUMENT: also for shapes that cannot be broadcast, tensors on different devices
/// or on the CPU, and unknown extra arguments. TCUDA_ERROR_OUT_OF_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_jit_call(
    jit: tcuda_jit_t,
    outputs: *mut *mut tcuda_managed_tensor_t,
    inputs: *const *const tcuda_tensor_t,
    input_count: usize,
    scalars: *const tcuda_jit_scalar_t,
    scalar_count: usize,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_jit_call", || {
        let out = Out::new(outputs, "outputs")?;
        let function = jit::numbered(jit as usize as u64)?;
        let inputs = unsafe { few(inputs, input_count, "inputs") }?;
        let scalars = unsafe { scalars_of(scalars, scalar_count) }?;
        let made = jit::call(&function, &inputs, &scalars, stream as usize)?;
        out.write_all(made.into_iter().map(hand_out));
        Ok(())
    })
}

/// Calls a function with outputs that are there already, of the shape that the inputs are broadcast to.
///
/// Their types may be others than the common one, where torch casts (torch.can_cast): a number may lose size and precision, but no complex
/// number becomes real, no real one an integer, and nothing else a bool. An output may be an input with the same strides (in place); it may
/// not overlap one otherwise, nor another output.
///
/// @param jit            the function.
/// @param outputs        the tensors, as many as the function has, with any strides; no two indices may mean one element.
/// @param output_count   their number.
/// @param inputs         as in tcuda_jit_call, and so is all that follows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_jit_call_out(
    jit: tcuda_jit_t,
    outputs: *const *const tcuda_tensor_t,
    output_count: usize,
    inputs: *const *const tcuda_tensor_t,
    input_count: usize,
    scalars: *const tcuda_jit_scalar_t,
    scalar_count: usize,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_jit_call_out", || {
        let function = jit::numbered(jit as usize as u64)?;
        let outputs = unsafe { few(outputs, output_count, "outputs") }?;
        let inputs = unsafe { few(inputs, input_count, "inputs") }?;
        let scalars = unsafe { scalars_of(scalars, scalar_count) }?;
        jit::call_out(&function, &outputs, &inputs, &scalars, stream as usize)
    })
}
