//! A tensor in pieces to many devices, and pieces of many devices into one tensor.

use super::choice::Operation;
use super::moves::{self, Move};
use super::rules::{agrees_but_for, check_apart, take, take_current, wrap_dim};
use crate::base::{Error, Result};
use crate::copy::Place;
use crate::device;
use crate::stream::{self, HANDLE_CURRENT, Stream};
use crate::tensor::{self, Owned, Sizes, View};
use smallvec::smallvec;

/// How much of the dimension each device gets: as told, or torch's chunk, which may be fewer pieces than devices.
fn sizes(total: i64, devices: usize, given: Option<&[i64]>) -> Result<Vec<i64>> {
    let Some(given) = given else {
        let step = (total as u64).div_ceil(devices as u64) as i64;
        if step == 0 {
            return Ok(vec![0; devices]);
        }
        return Ok((0..total).step_by(step as usize).map(|start| step.min(total - start)).collect());
    };
    if let Some(negative) = given.iter().find(|size| **size < 0) {
        return Err(Error::invalid_argument(format!(
            "split_with_sizes expects split_sizes have only non-negative entries, but got {negative} in chunk_sizes={given:?}"
        )));
    }
    let sum = given.iter().try_fold(0i64, |sum, size| sum.checked_add(*size));
    if sum != Some(total) {
        return Err(Error::invalid_argument(format!(
            "split_with_sizes expects split_sizes to sum exactly to {total} (input tensor's size at the dimension), but got \
             chunk_sizes={given:?}"
        )));
    }
    Ok(given.to_vec())
}

/// The stream that the caller gave for a piece, else the device's current one.
fn stream_for(streams: Option<&[usize]>, at: usize, device: i32) -> Result<Stream> {
    match streams.and_then(|streams| streams.get(at)) {
        None | Some(0) => stream::current(device),
        Some(handle) => {
            let given = stream::resolve_beside(*handle, device)?;
            if given.device == device {
                return Ok(given);
            }
            Err(Error::invalid_argument(format!(
                "Expected the device associated with the stream at index {at} (was {}) to match the device supplied at that index (expected {device})",
                given.device
            ))
            .on_device(device))
        }
    }
}

/// A piece for each device; a piece that is where it should be is a view of the input. `streams`: 0 is a device's current stream.
pub fn scatter(input: &View, devices: &[i32], chunk_sizes: Option<&[i64]>, dim: i32, streams: Option<&[usize]>) -> Result<Vec<Owned>> {
    if devices.is_empty() {
        return Err(Error::invalid_argument("Expected at least one device to scatter to"));
    }
    let dim = wrap_dim(dim, input.shape.len())?;
    let sizes = sizes(input.shape[dim], devices.len(), chunk_sizes)?;
    let devices = devices.iter().map(|device| device::listed(*device)).collect::<Result<Vec<_>>>()?;
    let source = take_current(input, || "tensor".into())?;
    let mut outputs = Vec::with_capacity(sizes.len());
    let mut moves = Vec::new();
    let mut start = 0;
    for (at, (size, device)) in sizes.iter().zip(devices).enumerate() {
        let piece = input.narrow(dim, start, *size);
        start += size;
        if input.place == Place::Device(device) {
            outputs.push(tensor::part(piece));
            continue;
        }
        let stream = stream_for(streams, at, device)?;
        let strides = tensor::like(&piece.shape, &piece.strides);
        let output = tensor::empty_strided(device, piece.dtype, &piece.shape, strides, stream::handle_of(stream))?;
        moves.push(Move { to: output.view.clone(), from: piece, other: stream });
        outputs.push(output);
    }
    send(source, moves)?;
    Ok(outputs)
}

/// Into tensors that are there and share the input's dimension among them.
pub fn scatter_out(input: &View, outputs: &[View], dim: i32, streams: Option<&[usize]>) -> Result<()> {
    if outputs.is_empty() {
        return Err(Error::invalid_argument("Expected at least one output tensor to scatter to"));
    }
    let dim = wrap_dim(dim, input.shape.len())?;
    let mut total = 0i64;
    let mut places = Vec::with_capacity(outputs.len());
    for (at, output) in outputs.iter().enumerate() {
        let Some(device) = output.place.device() else {
            return Err(Error::invalid_argument(format!(
                "Expected all output tensors to be CUDA tensors, but output tensor at index {at} has device 'cpu'"
            )));
        };
        if !agrees_but_for(&output.shape, &input.shape, dim) {
            return Err(Error::invalid_argument(format!(
                "Output tensor at index {at} has incorrect shape: {:?}. Expected same shape except for scatter dim {dim} as the source tensor: {:?}",
                output.shape, input.shape
            )));
        }
        total = total.saturating_add(output.shape[dim]);
        output.check_writable(format_args!("outs[{at}]"))?;
        places.push(device);
    }
    if total != input.shape[dim] {
        return Err(Error::invalid_argument(format!(
            "Total size for output tensors along scatter dim {dim} does not match the source tensor size at dim {dim}. Expected {}, but got \
             total size {total}",
            input.shape[dim]
        )));
    }
    check_apart(outputs, false)?;
    let source = take_current(input, || "tensor".into())?;
    let mut moves = Vec::with_capacity(outputs.len());
    let mut start = 0;
    for (at, (output, device)) in outputs.iter().zip(places).enumerate() {
        let from = input.narrow(dim, start, output.shape[dim]);
        start += output.shape[dim];
        if tensor::meet(output, input) && !tensor::is_same(output, &from) {
            return Err(overlaps(format!("Output tensor at index {at} overlaps the source tensor")));
        }
        let other = take(output, stream_for(streams, at, device)?, || format!("outs[{at}]"))?;
        moves.push(Move { to: output.clone(), from, other });
    }
    send(source, moves)
}

#[cold]
fn overlaps(what: String) -> Error {
    Error::invalid_argument(format!("{what}, at another place than its own. Take memory of its own."))
}

/// From the CPU each piece is copied on its own device's stream.
fn send(source: Option<Stream>, mut moves: Vec<Move>) -> Result<()> {
    moves.retain(|part| part.to.count() > 0);
    match source {
        Some(centre) => moves::run(Operation::Scatter, centre, moves),
        None => moves
            .iter()
            .try_for_each(|part| tensor::copy(moves::names(Operation::Scatter), &part.to, &part.from, true, stream::handle_of(part.other))),
    }
}

/// The shape of all inputs side by side.
fn gathered(inputs: &[View], dim: i32) -> Result<(usize, Sizes)> {
    let Some(first) = inputs.first() else {
        return Err(Error::invalid_argument("Expected at least one tensor to gather from"));
    };
    if let Some(at) = inputs.iter().position(|input| input.place.device().is_none()) {
        return Err(Error::invalid_argument(format!(
            "Expected all input tensors to be CUDA tensors, but tensor at index {at} has device 'cpu'"
        )));
    }
    let dim = wrap_dim(dim, first.shape.len())?;
    let mut shape = first.shape.clone();
    shape[dim] = 0;
    for (at, input) in inputs.iter().enumerate() {
        if input.shape.len() != shape.len() {
            return Err(Error::invalid_argument(format!(
                "Expected all input tensors to have the same number of dimensions, but tensor at index {at} has {} dimensions (expected {})",
                input.shape.len(),
                shape.len()
            )));
        }
        if !agrees_but_for(&input.shape, &first.shape, dim) {
            let expected: Vec<i64> =
                first.shape.iter().enumerate().map(|(d, size)| if d == dim { input.shape[d] } else { *size }).collect();
            return Err(Error::invalid_argument(format!(
                "Input tensor at index {at} has invalid shape {:?}, but expected {expected:?}",
                input.shape
            )));
        }
        shape[dim] = shape[dim].checked_add(input.shape[dim]).ok_or_else(|| {
            Error::invalid_argument(format!("The sizes of the input tensors at dimension {dim} have a sum that no tensor can have"))
        })?;
    }
    Ok((dim, shape))
}

/// One tensor of all inputs on `destination` (-1: the current device, -2: the CPU), of the first one's type.
pub fn gather(inputs: &[View], dim: i32, destination: i32) -> Result<Owned> {
    let (dim, shape) = gathered(inputs, dim)?;
    let order = format_of(&inputs[0]).filter(|order| inputs.iter().all(|input| format_of(input) == Some(order)));
    let strides = order.map_or_else(|| tensor::contiguous(&shape), |order| packed_in(&shape, order));
    let dtype = inputs[0].dtype;
    let out = match destination {
        device::CPU => tensor::empty_on_host(dtype, &shape, strides)?,
        device => tensor::empty_strided(device::resolve(device)?, dtype, &shape, strides, HANDLE_CURRENT)?,
    };
    fill(inputs, dim, &out.view)?;
    Ok(out)
}

/// Into a tensor that is there.
pub fn gather_out(inputs: &[View], dim: i32, out: &View) -> Result<()> {
    let (dim, shape) = gathered(inputs, dim)?;
    if out.shape != shape {
        return Err(Error::invalid_argument(format!("Expected out tensor to have shape {shape:?}, but got {:?}", out.shape)));
    }
    out.check_writable("out")?;
    fill(inputs, dim, out)
}

fn fill(inputs: &[View], dim: usize, out: &View) -> Result<()> {
    let centre = take_current(out, || "out".into())?;
    let mut moves = Vec::with_capacity(inputs.len());
    let mut start = 0;
    for (at, input) in inputs.iter().enumerate() {
        let other = take_current(input, || format!("tensors[{at}]"))?;
        let to = out.narrow(dim, start, input.shape[dim]);
        start += input.shape[dim];
        if tensor::meet(input, out) && !tensor::is_same(input, &to) {
            return Err(overlaps(format!("Input tensor at index {at} overlaps the out tensor")));
        }
        if let Some(other) = other.filter(|_| to.count() > 0) {
            moves.push(Move { to, from: input.clone(), other });
        }
    }
    match centre {
        Some(centre) => moves::run(Operation::Gather, centre, moves),
        // Complete on return.
        None => {
            moves.iter().try_for_each(|part| tensor::copy(moves::names(Operation::Gather), &part.to, &part.from, false, HANDLE_CURRENT))
        }
    }
}

/// torch's memory formats besides the plain one: the order of the dimensions, the fastest first.
const CHANNELS_LAST: [&[usize]; 2] = [&[1, 3, 2, 0], &[1, 4, 3, 2, 0]];

/// What torch's suggest_memory_format finds; None is contiguous.
fn format_of(view: &View) -> Option<&'static [usize]> {
    let order = *CHANNELS_LAST.iter().find(|order| order.len() == view.shape.len())?;
    if view.strides[1] == 0 {
        return None;
    }
    let mut least = 0;
    for &dim in order {
        let (size, stride) = (view.shape[dim], view.strides[dim]);
        // The last check tells N111 tensors, which are contiguous.
        if size == 0 || stride < least || (dim == 0 && least == view.strides[1]) {
            return None;
        }
        least = stride.saturating_mul(size.max(1));
    }
    Some(order)
}

fn packed_in(shape: &[i64], order: &[usize]) -> Sizes {
    let mut strides: Sizes = smallvec![1; shape.len()];
    let mut next = 1i64;
    for &dim in order {
        strides[dim] = next;
        next = next.saturating_mul(shape[dim].max(1));
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::dtype::DType;

    #[test]
    fn chunks_are_torchs() {
        assert_eq!(sizes(10, 4, None).unwrap(), [3, 3, 3, 1]);
        assert_eq!(sizes(5, 4, None).unwrap(), [2, 2, 1]);
        assert_eq!(sizes(2, 4, None).unwrap(), [1, 1]);
        assert_eq!(sizes(0, 3, None).unwrap(), [0, 0, 0]);
        assert_eq!(sizes(5, 2, Some(&[0, 5])).unwrap(), [0, 5]);
        assert!(sizes(5, 2, Some(&[6, -1])).unwrap_err().message.contains("non-negative"));
        assert!(sizes(5, 2, Some(&[i64::MAX, 2])).unwrap_err().message.contains("sum exactly to 5"));
    }

    #[test]
    fn channels_last_is_found_as_by_torch() {
        let view = |shape: &[i64], strides: &[i64]| View {
            place: Place::Device(0),
            dtype: DType { code: 2, bits: 32, lanes: 1 },
            shape: shape.into(),
            strides: strides.into(),
            address: 0,
        };
        assert!(format_of(&view(&[2, 3, 4, 5], &[60, 1, 15, 3])).is_some());
        assert!(format_of(&view(&[2, 3, 4, 5], &[60, 20, 5, 1])).is_none());
        assert!(format_of(&view(&[2, 1, 1, 1], &[1, 1, 1, 1])).is_none());
        assert!(format_of(&view(&[2, 3, 2, 4, 5], &[120, 1, 60, 15, 3])).is_some());
        assert!(format_of(&view(&[3, 4, 5], &[20, 1, 4])).is_none());
        assert_eq!(packed_in(&[2, 3, 4, 5], CHANNELS_LAST[0])[..], [60, 1, 15, 3]);
    }
}
