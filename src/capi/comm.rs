//! Collectives of one process
//!
//! torch.cuda.comm: tensors from one device to many and back. What is enqueued goes on after all that the current streams of all devices
//! that take part have got before, and what they get afterwards goes on after it, so that results may be used at once; which device is
//! current does not matter. The host waits only for results on the CPU (and where pageable memory of the CPU is read). Any strides are taken, and
//! any type that tcuda moves; sums are of the types that it computes with. Tensors that come out are ended with
//! tcuda_tensor_destroy whatever they are; tcuda_tensor_origin tells whether they have memory of their own (of their device's cache,
//! for its current stream), or are the input or a part of it, whose memory then has to outlive them. A call that fails gives
//! out nothing, and tensors that it was to write to may hold anything. The same inputs give the same bits, always. docs/COMM.md.

use super::guard::{Out, guard, guard_out, slice};
use super::structs::tcuda_stream_t;
use super::tensor::{check_room, hand_out, view, views};
use crate::base::dlpack::{tcuda_managed_tensor_t, tcuda_tensor_t};
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result};
use crate::comm;
use crate::tensor::Owned;

fn write(outs: Out<*mut tcuda_managed_tensor_t>, tensors: Vec<Owned>) {
    outs.write_all(tensors.into_iter().map(hand_out));
}

fn product(count: usize, devices: usize) -> Result<usize> {
    count
        .checked_mul(devices)
        .ok_or_else(|| Error::invalid_argument(format!("{count} tensors of {devices} devices are more than memory can hold.")))
}

/// Copies a tensor to devices (torch.cuda.comm.broadcast).
///
/// @param outs       gets `count` tensors, in the order of the devices: packed, the last dimension fastest; for the tensor's own device the
///                   input itself (TCUDA_TENSOR_INPUT).
/// @param tensor     the source, on a device or on the CPU.
/// @param devices    indices; -1 is none. One that is there twice gets two tensors.
/// @param count      devices; 0 does nothing.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: also for a negative index. TCUDA_ERROR_INVALID_DEVICE, TCUDA_ERROR_OUT_OF_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_comm_broadcast(
    outs: *mut *mut tcuda_managed_tensor_t,
    tensor: *const tcuda_tensor_t,
    devices: *const i32,
    count: usize,
) -> tcuda_status_t {
    guard("tcuda_comm_broadcast", || {
        let outs = Out::new(outs, "outs")?;
        let tensor = unsafe { view(tensor, "tensor") }?;
        let devices = unsafe { slice(devices, count, "devices") }?;
        check_room(count)?;
        write(outs, comm::broadcast(&tensor, devices)?);
        Ok(())
    })
}

/// Copies a tensor into others (torch.cuda.comm.broadcast with out=).
///
/// @param tensor    the source, on a device or on the CPU.
/// @param outs      `count` tensors on devices, of the source's shape; types are converted as by tcuda_tensor_copy.
/// @param count     tensors; 0 does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_comm_broadcast_out(
    tensor: *const tcuda_tensor_t,
    outs: *const *const tcuda_tensor_t,
    count: usize,
) -> tcuda_status_t {
    guard("tcuda_comm_broadcast_out", || {
        let tensor = unsafe { view(tensor, "tensor") }?;
        comm::broadcast_out(&tensor, &unsafe { views(outs, count, "outs") }?)
    })
}

/// Copies many tensors from the first device to all (torch.cuda.comm.broadcast_coalesced), with no buffer in between: every result has
/// memory of its own, where torch's are views of a few large blocks.
///
/// @param outs            gets device_count times `count` tensors, outs[device * count + tensor]. For the first device the inputs
///                        themselves, for the others packed copies.
/// @param tensors         `count` tensors, all on devices[0].
/// @param count           tensors.
/// @param devices         indices, at least one.
/// @param device_count    devices.
/// @param buffer_size     torch's bytes of a buffer; without effect.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: also where devices is empty, which torch leaves undefined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_comm_broadcast_coalesced(
    outs: *mut *mut tcuda_managed_tensor_t,
    tensors: *const *const tcuda_tensor_t,
    count: usize,
    devices: *const i32,
    device_count: usize,
    buffer_size: usize,
) -> tcuda_status_t {
    guard("tcuda_comm_broadcast_coalesced", || {
        let outs = Out::new(outs, "outs")?;
        let _ = buffer_size;
        let devices = unsafe { slice(devices, device_count, "devices") }?;
        check_room(product(count, device_count)?)?;
        write(outs, comm::broadcast_coalesced(&unsafe { views(tensors, count, "tensors") }?, devices)?);
        Ok(())
    })
}

/// Sums tensors of several devices on one of them (torch.cuda.comm.reduce_add).
///
/// The order is that of torch without NCCL: the input on the destination (the last one, if there are several), then the others as they come. f16 and
/// bf16 are summed in f32 and rounded once, where torch rounds after each addition (with more than 64 inputs, at every 63rd).
/// Integers wrap, of bools a sum is their or, complex numbers stay complex.
///
/// @param out            gets the sum; of a single input that itself (TCUDA_TENSOR_INPUT).
/// @param inputs         `count` tensors on devices, of one shape and one type; one of them on the destination.
/// @param count          tensors, at least one.
/// @param destination    an index, or -1 for the current device.
/// @return TCUDA_ERROR_NOT_SUPPORTED: a type that tcuda does not compute with (float8), as in torch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_comm_reduce_add(
    out: *mut *mut tcuda_managed_tensor_t,
    inputs: *const *const tcuda_tensor_t,
    count: usize,
    destination: i32,
) -> tcuda_status_t {
    guard_out("tcuda_comm_reduce_add", out, "out", || {
        Ok(hand_out(comm::reduce_add(&unsafe { views(inputs, count, "inputs") }?, destination)?))
    })
}

/// The sums of many tensors over several devices (torch.cuda.comm.reduce_add_coalesced), with no buffer in between.
///
/// @param outs            gets `count` sums, each as tcuda_comm_reduce_add makes it, with memory of its own.
/// @param inputs          device_count times `count` tensors, inputs[device * count + tensor].
/// @param count           tensors of a device.
/// @param device_count    devices.
/// @param destination     an index, or -1 for the current device.
/// @param buffer_size     torch's bytes of a buffer; without effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_comm_reduce_add_coalesced(
    outs: *mut *mut tcuda_managed_tensor_t,
    inputs: *const *const tcuda_tensor_t,
    count: usize,
    device_count: usize,
    destination: i32,
    buffer_size: usize,
) -> tcuda_status_t {
    guard("tcuda_comm_reduce_add_coalesced", || {
        let outs = Out::new(outs, "outs")?;
        let _ = buffer_size;
        let inputs = unsafe { views(inputs, product(count, device_count)?, "inputs") }?;
        write(outs, comm::reduce_add_coalesced(&inputs, count, destination)?);
        Ok(())
    })
}

/// Cuts a tensor in pieces, one for each device (torch.cuda.comm.scatter).
///
/// @param outs           gets `count` tensors; a piece on the tensor's own device is a view of it (TCUDA_TENSOR_VIEW). Without chunk_sizes
///                       there may be fewer pieces than devices, as in torch: the rest of `outs` becomes NULL.
/// @param tensor         the source, on a device or on the CPU.
/// @param devices        indices; -1 is none (torch takes it for the CPU where a CPU tensor is scattered).
/// @param count          devices, at least one.
/// @param chunk_sizes    `count` sizes that add up to that of the dimension; NULL: equal ones, rounded up.
/// @param dim            the dimension that is cut; negative: counted from the last.
/// @param streams        NULL, or `count` streams of the devices. A piece is made for and copied in the order of its stream, and the caller orders
///                       other uses, as with torch; NULL in the list: the current stream of that device.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: also where a piece is to be copied and its stream is of another device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_comm_scatter(
    outs: *mut *mut tcuda_managed_tensor_t,
    tensor: *const tcuda_tensor_t,
    devices: *const i32,
    count: usize,
    chunk_sizes: *const i64,
    dim: i32,
    streams: *const tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_comm_scatter", || {
        let outs = Out::new(outs, "outs")?;
        let tensor = unsafe { view(tensor, "tensor") }?;
        let devices = unsafe { slice(devices, count, "devices") }?;
        check_room(count)?;
        let sizes = match chunk_sizes.is_null() {
            true => None,
            false => Some(unsafe { slice(chunk_sizes, count, "chunk_sizes") }?),
        };
        let streams = unsafe { handles(streams, count) }?;
        let pieces = comm::scatter(&tensor, devices, sizes, dim, streams.as_deref())?;
        let rest = std::iter::repeat_n(std::ptr::null_mut(), count - pieces.len());
        outs.write_all(pieces.into_iter().map(hand_out).chain(rest));
        Ok(())
    })
}

unsafe fn handles(streams: *const tcuda_stream_t, count: usize) -> Result<Option<Vec<usize>>> {
    match streams.is_null() {
        true => Ok(None),
        false => Ok(Some(unsafe { slice(streams, count, "streams") }?.iter().map(|stream| *stream as usize).collect())),
    }
}

/// Cuts a tensor into others (torch.cuda.comm.scatter with out=). Everything is copied, also on the tensor's own device.
///
/// @param tensor     the source, on a device or on the CPU.
/// @param outs       `count` tensors on devices; of the source's shape, but for `dim`, in which their sizes add up to the source's. They may
///                   overlap neither the source nor each other. Types are converted as by tcuda_tensor_copy.
/// @param count      tensors, at least one.
/// @param dim        the dimension that is cut; negative: counted from the last.
/// @param streams    as in tcuda_comm_scatter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_comm_scatter_out(
    tensor: *const tcuda_tensor_t,
    outs: *const *const tcuda_tensor_t,
    count: usize,
    dim: i32,
    streams: *const tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_comm_scatter_out", || {
        let tensor = unsafe { view(tensor, "tensor") }?;
        let outs = unsafe { views(outs, count, "outs") }?;
        comm::scatter_out(&tensor, &outs, dim, unsafe { handles(streams, count) }?.as_deref())
    })
}

/// Puts tensors of several devices side by side in one (torch.cuda.comm.gather).
///
/// @param out            gets the tensor, of the first one's type; packed, or in channels-last order if all inputs are.
/// @param tensors        `count` tensors on devices, of one shape but for `dim`.
/// @param count          tensors, at least one.
/// @param dim            the dimension in which they are put side by side; negative: counted from the last.
/// @param destination    an index, -1 for the current device (in torch, once: the CPU), TCUDA_DEVICE_CPU: complete on return.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_comm_gather(
    out: *mut *mut tcuda_managed_tensor_t,
    tensors: *const *const tcuda_tensor_t,
    count: usize,
    dim: i32,
    destination: i32,
) -> tcuda_status_t {
    guard_out("tcuda_comm_gather", out, "out", || {
        Ok(hand_out(comm::gather(&unsafe { views(tensors, count, "tensors") }?, dim, destination)?))
    })
}

/// Puts tensors of several devices side by side in one that is there (torch.cuda.comm.gather with out=).
///
/// @param out        where to: a device or the CPU, then complete on return. It may not overlap the inputs. Types are converted as by
///                   tcuda_tensor_copy.
/// @param tensors    `count` tensors on devices.
/// @param count      tensors, at least one.
/// @param dim        the dimension in which they are put side by side; negative: counted from the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_comm_gather_out(
    out: *const tcuda_tensor_t,
    tensors: *const *const tcuda_tensor_t,
    count: usize,
    dim: i32,
) -> tcuda_status_t {
    guard("tcuda_comm_gather_out", || {
        let out = unsafe { view(out, "out") }?;
        comm::gather_out(&unsafe { views(tensors, count, "tensors") }?, dim, &out)
    })
}
