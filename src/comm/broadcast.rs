//! One tensor, or several, to many devices.

use super::choice::Operation;
use super::rules::{check_apart, take_current};
use super::spread::{Spread, spread};
use crate::base::{Error, Result};
use crate::copy::Place;
use crate::device;
use crate::runtime::kernels::comm::Segment;
use crate::stream::{self, HANDLE_CURRENT, Stream};
use crate::tensor::{self, Names, Owned, View};

/// A tensor for each of the devices, in their order: the input itself where it is there already.
pub fn broadcast(input: &View, devices: &[i32]) -> Result<Vec<Owned>> {
    let devices = devices.iter().map(|device| device::listed(*device)).collect::<Result<Vec<_>>>()?;
    let mut outputs = Vec::with_capacity(devices.len());
    for device in devices {
        outputs.push(match input.place {
            Place::Device(own) if own == device => tensor::alias(input),
            _ => tensor::empty_strided(device, input.dtype, &input.shape, tensor::contiguous(&input.shape), HANDLE_CURRENT)?,
        });
    }
    let new: Vec<&View> = outputs.iter().filter(|output| output.origin == tensor::Origin::New).map(|output| &output.view).collect();
    copy_to(input, &new)?;
    Ok(outputs)
}

/// Into tensors that are there.
pub fn broadcast_out(input: &View, outputs: &[View]) -> Result<()> {
    for (at, output) in outputs.iter().enumerate() {
        if output.place.device().is_none() {
            return Err(Error::invalid_argument(format!(
                "Expected all output tensors to be CUDA tensors, but output tensor at index {at} has device 'cpu'"
            )));
        }
        if output.shape != input.shape {
            return Err(Error::invalid_argument(format!(
                "Expected all output tensors to have same shape as the source tensor {:?}, but output tensor at index {at} has shape {:?}",
                input.shape, output.shape
            )));
        }
        output.check_writable(format_args!("outs[{at}]"))?;
        take_current(output, || format!("outs[{at}]"))?;
    }
    check_apart(outputs, true)?;
    copy_to(input, &outputs.iter().collect::<Vec<_>>())
}

const NAMES: Names = ["outs", "tensor"];

/// What lies alike goes at once; the rest one by one.
fn copy_to(input: &View, outputs: &[&View]) -> Result<()> {
    if outputs.is_empty() {
        return Ok(());
    }
    let Some(source) = take_current(input, || "tensor".into())? else {
        return outputs.iter().try_for_each(|output| tensor::copy(NAMES, output, input, true, HANDLE_CURRENT));
    };
    if input.count() == 0 {
        return Ok(());
    }
    // One that is scattered over its memory is put in order once, for all that want it so.
    let packed = match input.is_dense() || !outputs.iter().any(|output| output.is_packed() && output.dtype == input.dtype) {
        true => None,
        false => Some(packed(input, source)?),
    };
    let input = packed.as_ref().map_or(input, |packed| &packed.view);
    let mut segment = Segment { one: input.address, many: Vec::new(), size: input.bytes() };
    let mut targets = Vec::new();
    for output in outputs {
        // What overlaps is left to the plain copy, which knows what is the same and refuses the rest.
        let alike = input.is_dense() && output.dtype == input.dtype && tensor::agree(output, input) && !tensor::overlap(output, input);
        match output.place.device().filter(|_| alike) {
            Some(device) => {
                segment.many.push(output.address);
                targets.push(stream::current(device)?);
            }
            None => tensor::copy(NAMES, output, input, true, HANDLE_CURRENT)?,
        }
    }
    if targets.is_empty() { Ok(()) } else { spread(Operation::Broadcast, source, &targets, &[segment]) }
}

/// The same elements without gaps, on the same device.
fn packed(input: &View, stream: Stream) -> Result<Owned> {
    let strides = tensor::contiguous(&input.shape);
    let packed = tensor::empty_strided(stream.device, input.dtype, &input.shape, strides, HANDLE_CURRENT)?;
    tensor::copy(NAMES, &packed.view, input, true, HANDLE_CURRENT)?;
    Ok(packed)
}

/// Outputs by device, then by tensor. Those of the first device are the inputs.
pub fn broadcast_coalesced(inputs: &[View], devices: &[i32]) -> Result<Vec<Owned>> {
    let Some((first, rest)) = devices.split_first() else {
        return Err(Error::invalid_argument("Expected at least one device to broadcast to: tensors are on the first of 'devices'."));
    };
    let first = device::listed(*first)?;
    let rest = rest.iter().map(|device| device::listed(*device)).collect::<Result<Vec<_>>>()?;
    if let Some(at) = inputs.iter().position(|input| input.place.device() != Some(first)) {
        return Err(Error::invalid_argument(format!(
            "All tensors must be on devices[0]: {first}, but tensor {at} is in {}",
            inputs[at].place
        )));
    }
    let source = stream::current(first)?;
    let targets = rest.iter().map(|device| stream::current(*device)).collect::<Result<Vec<_>>>()?;
    let mut new: Vec<Vec<Owned>> = rest.iter().map(|_| Vec::with_capacity(inputs.len())).collect();
    let mut held = Vec::new();
    let bytes = inputs.iter().map(|input| input.count() as usize * input.item()).sum();
    let mut spread = Spread::new(Operation::BroadcastCoalesced, source, &targets, bytes)?;
    for part in spread.parts(inputs.len()) {
        let mut segments = Vec::with_capacity(part.len());
        for at in part {
            let input = &inputs[at];
            for (device, outputs) in rest.iter().zip(&mut new) {
                let strides = tensor::contiguous(&input.shape);
                outputs.push(tensor::empty_strided(*device, input.dtype, &input.shape, strides, HANDLE_CURRENT)?);
            }
            take_current(input, || format!("tensors[{at}]"))?;
            if input.count() == 0 || targets.is_empty() {
                continue;
            }
            let mut one = input.address;
            if !input.is_packed() {
                held.push(packed(input, source)?);
                one = held[held.len() - 1].view.address;
            }
            let many = new.iter().map(|outputs| outputs[at].view.address).collect();
            segments.push(Segment { one, many, size: input.count() as usize * input.item() });
        }
        spread.add(&segments)?;
    }
    spread.close()?;
    Ok(inputs.iter().map(tensor::alias).chain(new.into_iter().flatten()).collect())
}
