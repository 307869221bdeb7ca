//! Tensors
//!
//! A tcuda_tensor_t has the layout of DLPack's DLTensor, a tcuda_managed_tensor_t that of DLManagedTensorVersioned (version 1): the tensors of other
//! libraries pass with a cast. A tensor that comes in is only looked at: any strides that are not negative where there is a second element (NULL:
//! packed), up to 64 dimensions, one lane, elements of 8, 16, 32, 64 or 128 bits, byte_offset honoured; on the CPU (1), a CUDA device (2), in pinned
//! (3) or managed memory (13). Simulated devices are of type 2 too. What is wrong with it is TCUDA_ERROR_INVALID_ARGUMENT, what tcuda cannot do with
//! it TCUDA_ERROR_NOT_SUPPORTED. A tensor that a function makes comes out managed; tcuda_tensor_destroy, or its deleter, ends it from any thread.
//! Work runs on the tensors' device, whatever device is current, and a NULL stream is that device's default stream; on CPU tensors it is done at
//! once, with no device needed (except after tcuda_shutdown and in a forked child, as everything). Data that is not where its tensor says is
//! TCUDA_ERROR_INVALID_ARGUMENT, and TCUDA_ERROR_INVALID_POINTER where no memory is; a tensor that is handed back as it is is not looked at. Blocks
//! of tcuda's cache that are freed while work is under way are reused only when it is done.

use super::guard::{Out, guard, guard_always, guard_out, null, slice};
use super::structs::tcuda_stream_t;
use crate::base::dlpack::{self, tcuda_dlpack_version_t, tcuda_managed_tensor_t, tcuda_place_t, tcuda_tensor_t};
use crate::base::dtype::tcuda_dtype_t;
use crate::base::spared::Uncancelled;
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result, room, watch};
use crate::copy::Place;
use crate::tensor::{self, Origin, Owned, Parts, View};
use std::ffi::c_void;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a tensor that a function hands out is to the tensor that it was made from.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub enum tcuda_tensor_origin_t {
    /// It has memory of its own.
    TCUDA_TENSOR_NEW = 0,
    /// It is the input: the same memory, which the input's owner has to keep. It is destroyed like any other.
    TCUDA_TENSOR_INPUT = 1,
    /// It is a part of the input, under the same rule.
    TCUDA_TENSOR_VIEW = 2,
}

/// Where a device is asked for: the one that the tensor is on.
const TCUDA_DEVICE_SAME: i32 = -4;

/// The version of DLPack whose structs these are.
const DLPACK: tcuda_dlpack_version_t = tcuda_dlpack_version_t { major: 1, minor: 0 };
const FLAG_IS_COPIED: u64 = 2;

/// Checks a tensor that came in and copies its arrays.
pub unsafe fn view(tensor: *const tcuda_tensor_t, parameter: impl Display + Copy) -> Result<View> {
    let tensor = unsafe { tensor.as_ref() }.ok_or_else(|| null(parameter))?;
    let ndim = tensor::check_ndim(tensor.ndim, parameter)?;
    let shape = unsafe { slice(tensor.shape.cast_const(), ndim, format_args!("{parameter}->shape")) }?;
    let strides = match tensor.strides.is_null() {
        true => None,
        false => Some(unsafe { slice(tensor.strides.cast_const(), ndim, format_args!("{parameter}->strides")) }?),
    };
    let parts = Parts {
        data: tensor.data as usize,
        byte_offset: tensor.byte_offset,
        device_type: tensor.device.device_type,
        device_id: tensor.device.device_id,
        dtype: tensor.dtype,
        shape,
        strides,
    };
    View::new(parts, parameter)
}

/// The same for a list, as long as it may be.
pub unsafe fn views(list: *const *const tcuda_tensor_t, count: usize, parameter: &str) -> Result<Vec<View>> {
    let list = unsafe { slice(list, count, parameter) }?;
    check_room(count)?;
    unsafe { views_of(list.iter().copied(), parameter) }
}

/// That the host has memory for what is made of so many tensors on the way.
pub fn check_room(count: usize) -> Result<()> {
    const BYTES: usize = 1024;
    room::check(count.saturating_mul(BYTES), "the tensors")
}

pub unsafe fn views_of<C: FromIterator<View>>(tensors: impl Iterator<Item = *const tcuda_tensor_t>, parameter: &str) -> Result<C> {
    tensors.enumerate().map(|(at, tensor)| unsafe { view(tensor, format_args!("{parameter}[{at}]")) }).collect()
}

/// A made tensor with its arrays and its memory, as one allocation that the deleter takes apart.
struct Managed {
    tensor: tcuda_managed_tensor_t,
    owned: Owned,
}

/// Hands a made tensor over to the caller.
pub fn hand_out(owned: Owned) -> *mut tcuda_managed_tensor_t {
    let view = &owned.view;
    let (device_type, device_id) = match view.place {
        Place::Pageable => (dlpack::CPU, 0),
        Place::Pinned => (dlpack::CUDA_HOST, 0),
        Place::Device(device) => (dlpack::CUDA, device),
    };
    let tensor = tcuda_tensor_t {
        data: view.address as *mut c_void,
        device: tcuda_place_t { device_type, device_id },
        ndim: view.shape.len() as i32,
        dtype: view.dtype,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let flags = if owned.origin == Origin::New { FLAG_IS_COPIED } else { 0 };
    let managed = tcuda_managed_tensor_t { version: DLPACK, manager_ctx: std::ptr::null_mut(), deleter: Some(delete), flags, tensor };
    let whole = Box::into_raw(Box::new(Managed { tensor: managed, owned }));
    unsafe {
        // They may lie in the view itself, which is at its place only now.
        (*whole).tensor.tensor.shape = (*whole).owned.view.shape.as_mut_ptr();
        (*whole).tensor.tensor.strides = (*whole).owned.view.strides.as_mut_ptr();
        (*whole).tensor.manager_ctx = whole.cast();
        &raw mut (*whole).tensor
    }
}

/// Callable from any thread, also after shutdown (the memory went with it) and in a forked child (it is the parent's).
unsafe extern "C" fn delete(tensor: *mut tcuda_managed_tensor_t) {
    if tensor.is_null() {
        return;
    }
    let _whole = Uncancelled::enter();
    let whole = unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Managed>()) };
    // A deleter has no way to report; what can fail has been logged.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let scope = watch::Scope::enter("the deleter of a tensor");
        drop(whole);
        scope.tell();
    }));
}

fn origin_of(owned: &Owned) -> tcuda_tensor_origin_t {
    match owned.origin {
        Origin::New => tcuda_tensor_origin_t::TCUDA_TENSOR_NEW,
        Origin::Input => tcuda_tensor_origin_t::TCUDA_TENSOR_INPUT,
        Origin::View => tcuda_tensor_origin_t::TCUDA_TENSOR_VIEW,
    }
}

/// Makes an uninitialised tensor (torch.empty): packed, the last dimension fastest, its data aligned to 256 bytes.
///
/// @param out       gets the tensor; tcuda_tensor_destroy ends it.
/// @param device    an index, -1 for the current device, TCUDA_DEVICE_CPU for pageable host memory.
/// @param dtype     the type of the elements: a type code of DLPack 1.1 but opaque handles, bool of 8 bits.
/// @param ndim      0 (a tensor of one element) to 64.
/// @param shape     ndim sizes; with a 0 among them there is no memory, and data is NULL.
/// @param stream    on which the memory is used first, as in tcuda_malloc_cached.
/// @return TCUDA_ERROR_OUT_OF_MEMORY, TCUDA_ERROR_OUT_OF_HOST_MEMORY; TCUDA_ERROR_INVALID_ARGUMENT: also for a stream of another device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_tensor_empty(
    out: *mut *mut tcuda_managed_tensor_t,
    device: i32,
    dtype: tcuda_dtype_t,
    ndim: i32,
    shape: *const i64,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard_out("tcuda_tensor_empty", out, "out", || {
        let ndim = tensor::check_ndim(ndim, "ndim")?;
        let shape = unsafe { slice(shape, ndim, "shape") }?;
        Ok(hand_out(tensor::empty(device, dtype, shape, stream as usize)?))
    })
}

/// Makes an uninitialised tensor with the place, type and shape of another (torch.empty_like). Where the other's elements lie without gaps
/// the strides are its own too, else packed in the order of its strides.
///
/// @param out       gets the tensor; tcuda_tensor_destroy ends it.
/// @param tensor    the model.
/// @param stream    on which the memory is used first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_tensor_empty_like(
    out: *mut *mut tcuda_managed_tensor_t,
    tensor: *const tcuda_tensor_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard_out("tcuda_tensor_empty_like", out, "out", || {
        let tensor = unsafe { view(tensor, "tensor") }?;
        Ok(hand_out(tensor::empty_like(&tensor, stream as usize)?))
    })
}

/// Sets every element to one value (torch's Tensor.fill_).
///
/// @param tensor    any strides, but no two indices may mean one element; only stride 0 is noticed.
/// @param value     one element of the type dtype, in host memory; read before the call returns.
/// @param dtype     need not be the tensor's type: the value is converted as by torch.
/// @param stream    of the tensor's device.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: also where the tensor's type cannot hold the value ("value 300 cannot be converted to type uint8
/// without overflow").
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_tensor_fill(
    tensor: *const tcuda_tensor_t,
    value: *const c_void,
    dtype: tcuda_dtype_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_tensor_fill", || {
        let tensor = unsafe { view(tensor, "tensor") }?;
        let size = dtype.size();
        if size > 16 {
            return Err(Error::invalid_argument(format!("'value' is of a type of {size} bytes; 16 are the most.")));
        }
        let given = unsafe { slice(value.cast::<u8>(), size, "value") }?;
        let mut bytes = [0; 16];
        bytes[..size].copy_from_slice(given);
        tensor::fill(&tensor, bytes, dtype, stream as usize)
    })
}

/// Copies one tensor into another: any two places, any strides, any types (torch's Tensor.copy_).
///
/// The shape of the source is broadcast to the destination's: counted from the last, sizes are the same or 1. Types are converted as by
/// torch: a fraction is cut off; to bool, whatever is not zero is true; of a complex number the real part stays (to bool: either part);
/// the half types are reached by way of float. What C++ leaves undefined is the same here on every device and in the simulation: a float
/// outside of the range of an integer of 32 or 64 bits gives the nearest one (NaN: no value to count on); narrower integers get the low
/// bits of a 32-bit one, uint8 those of a 64-bit one.
///
/// On one device the host never waits. With the CPU on one side the call returns when the copy is complete, except with non_blocking; into
/// pageable memory it is complete on return in any case. Between two devices it runs on the source's stream, after what the destination's
/// stream has got before, which in turn waits for it.
///
/// @param dst             any strides, but no two indices may mean one element; only stride 0 is noticed.
/// @param src             may not overlap dst, unless it is the same.
/// @param non_blocking    whether to return before pinned memory was written or read.
/// @param stream          of the device. NULL is the default stream, TCUDA_STREAM_CURRENT the current one; with two devices this means both
///                        of them, while a stream of one of the two leaves its current stream to the other.
/// @return TCUDA_ERROR_NOT_SUPPORTED: a type that is not known to arithmetic (without conversion it is copied), or more than 25 dimensions
/// that cannot be joined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_tensor_copy(
    dst: *const tcuda_tensor_t,
    src: *const tcuda_tensor_t,
    non_blocking: bool,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_tensor_copy", || {
        let (dst, src) = unsafe { (view(dst, "dst")?, view(src, "src")?) };
        tensor::copy(["dst", "src"], &dst, &src, non_blocking, stream as usize)
    })
}

/// A tensor on another device, of another type, or both, with the order of the input's dimensions (torch's Tensor.to).
///
/// @param out             gets the tensor; tcuda_tensor_destroy ends it, whatever its origin is.
/// @param origin          may be NULL; gets TCUDA_TENSOR_NEW, or TCUDA_TENSOR_INPUT where device and type are right already and copy is
///                        false: then out owns nothing, and the input's memory has to outlive it.
/// @param tensor          the input.
/// @param device          an index, -1 for the current device, TCUDA_DEVICE_CPU, or TCUDA_DEVICE_SAME for that of the tensor.
/// @param dtype           all zero for that of the tensor.
/// @param non_blocking    as in tcuda_tensor_copy; what goes to the CPU goes into pageable memory and is complete on return.
/// @param copy            whether to make a new tensor in any case.
/// @param stream          as in tcuda_tensor_copy; the new tensor's memory is used first on its device's stream.
/// @return TCUDA_ERROR_OUT_OF_MEMORY, TCUDA_ERROR_OUT_OF_HOST_MEMORY, and all that tcuda_tensor_copy returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_tensor_to(
    out: *mut *mut tcuda_managed_tensor_t,
    origin: *mut tcuda_tensor_origin_t,
    tensor: *const tcuda_tensor_t,
    device: i32,
    dtype: tcuda_dtype_t,
    non_blocking: bool,
    copy: bool,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_tensor_to", || {
        let out = Out::new(out, "out")?;
        let tensor = unsafe { view(tensor, "tensor") }?;
        let device = (device != TCUDA_DEVICE_SAME).then_some(device);
        let own_type = tcuda_dtype_t { code: 0, bits: 0, lanes: 0 };
        let dtype = (dtype != own_type).then_some(dtype);
        finish(out, origin, tensor::to(&tensor, device, dtype, non_blocking, copy, stream as usize)?);
        Ok(())
    })
}

/// A copy of a CPU tensor in pinned host memory (torch's Tensor.pin_memory), a block of tcuda_host_malloc_cached, from and to which a device
/// copies while the host goes on. It may be destroyed before tcuda's copies of it are done; other work that uses it is made known with
/// tcuda_host_record_stream, or has to be done before.
///
/// @param out       gets the tensor; tcuda_tensor_destroy ends it, whatever its origin is.
/// @param origin    may be NULL; as in tcuda_tensor_to: TCUDA_TENSOR_INPUT where the tensor is pinned already.
/// @param tensor    the input.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: also for a tensor that is on a device. TCUDA_ERROR_OUT_OF_HOST_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_tensor_pin(
    out: *mut *mut tcuda_managed_tensor_t,
    origin: *mut tcuda_tensor_origin_t,
    tensor: *const tcuda_tensor_t,
) -> tcuda_status_t {
    guard("tcuda_tensor_pin", || {
        let out = Out::new(out, "out")?;
        let tensor = unsafe { view(tensor, "tensor") }?;
        finish(out, origin, tensor::pin(&tensor)?);
        Ok(())
    })
}

fn finish(out: Out<*mut tcuda_managed_tensor_t>, origin: *mut tcuda_tensor_origin_t, owned: Owned) {
    if let Ok(origin) = Out::new(origin, "origin") {
        origin.write(origin_of(&owned));
    }
    out.write(hand_out(owned));
}

/// What a tensor that a function handed out is to the tensor that it was made from.
///
/// @param tensor    one of tcuda's.
/// @param origin    gets the answer.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: also for a tensor of another producer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_tensor_origin(tensor: *const tcuda_managed_tensor_t, origin: *mut tcuda_tensor_origin_t) -> tcuda_status_t {
    guard("tcuda_tensor_origin", || {
        let origin = Out::new(origin, "origin")?;
        let tensor = unsafe { tensor.as_ref() }.ok_or_else(|| null("tensor"))?;
        let ours: unsafe extern "C" fn(*mut tcuda_managed_tensor_t) = delete;
        if !tensor.deleter.is_some_and(|deleter| std::ptr::fn_addr_eq(deleter, ours)) {
            return Err(Error::invalid_argument("'tensor' was not made by tcuda, which knows nothing of where it comes from."));
        }
        origin.write(origin_of(unsafe { &(*tensor.manager_ctx.cast::<Managed>()).owned }));
        Ok(())
    })
}

/// Ends a tensor by calling its deleter: tcuda's, or that of any other producer of DLPack tensors. NULL succeeds. After tcuda_shutdown the
/// memory is gone already, and only what describes it is freed.
///
/// It is called once for a tensor. A second call is not found out, as the tensor may be another library's: it is read, and its deleter
/// called, where by now other memory is, and the program may crash. tcuda::tensor of tcuda.hpp calls it once.
///
/// @param tensor    the tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_tensor_destroy(tensor: *mut tcuda_managed_tensor_t) -> tcuda_status_t {
    guard_always("tcuda_tensor_destroy", || {
        if let Some(deleter) = unsafe { tensor.as_ref() }.and_then(|tensor| tensor.deleter) {
            unsafe { deleter(tensor) };
        }
        Ok(())
    })
}
