//! A call: what the tensors become together, the outputs, the launches.

use super::Few;
use super::function::{Function, Scalar, Value};
use super::generate::{THREADS, Variant};
use super::promote;
use super::walk::{Dim, MOST, Walk};
use crate::base::{Error, Result};
use crate::copy::Place;
use crate::runtime::kernels::compiled;
use crate::runtime::kernels::element::Element;
use crate::runtime::kernels::{Access, accesses, stretches};
use crate::stream::{self, Stream};
use crate::tensor::{self, Owned, Sizes, View};
use crate::{device, memory, runtime};
use std::fmt;

/// The inputs of a call, checked and broadcast to each other.
struct Inputs {
    views: Few<View>,
    types: Few<Element>,
    common: Element,
    shape: Sizes,
    stream: Stream,
    values: Few<Value>,
}

/// A tensor of a list, as messages call it.
#[derive(Clone, Copy)]
struct Nth(&'static str, usize);

impl fmt::Display for Nth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.0, self.1)
    }
}

/// Outputs are made.
pub fn call(function: &Function, inputs: &[View], scalars: &[Scalar], handle: usize) -> Result<Few<Owned>> {
    let inputs = check(function, inputs, scalars, handle)?;
    let strides: Few<&[i64]> = inputs.views.iter().map(|view| view.strides.as_slice()).collect();
    let strides = tensor::like_all(&inputs.shape, &strides);
    let dtype = inputs.common.dtype();
    let make = |_| tensor::empty_strided(inputs.stream.device, dtype, &inputs.shape, strides.clone(), handle);
    let made = (0..function.outputs).map(make).collect::<Result<Few<Owned>>>()?;
    run(function, &inputs, made.iter().map(|owned| &owned.view))?;
    Ok(made)
}

/// Outputs are given: of the shape that the inputs are broadcast to, and of types that the results can be cast to.
pub fn call_out(function: &Function, outputs: &[View], inputs: &[View], scalars: &[Scalar], handle: usize) -> Result<()> {
    if outputs.len() != function.outputs {
        return Err(Error::invalid_argument(format!(
            "'{}' has {} outputs; {} were given.",
            function.name,
            function.outputs,
            outputs.len()
        )));
    }
    let inputs = check(function, inputs, scalars, handle)?;
    for (at, output) in outputs.iter().enumerate() {
        let name = Nth("outputs", at);
        let element = output.element(name)?;
        on_device(output, name, inputs.stream.device)?;
        if output.shape != inputs.shape {
            return Err(Error::invalid_argument(format!(
                "'{name}' has the shape {:?}; the inputs are broadcast to {:?}, and that has to be its shape.",
                output.shape, inputs.shape
            )));
        }
        if !promote::can_cast(inputs.common, element) {
            return Err(Error::invalid_argument(format!(
                "result type {} can't be cast to the desired output type {} ('{name}')",
                inputs.common.name(),
                element.name()
            )));
        }
        output.check_writable(name)?;
        for (other, view) in inputs.views.iter().enumerate() {
            let same = (output.address, output.dtype) == (view.address, view.dtype) && same_strides(output, view);
            check_overlap(output, view, same, name, Nth("inputs", other))?;
        }
        for (other, view) in outputs[..at].iter().enumerate() {
            check_overlap(output, view, false, name, Nth("outputs", other))?;
        }
    }
    run(function, &inputs, outputs.iter())
}

fn check(function: &Function, views: &[View], scalars: &[Scalar], handle: usize) -> Result<Inputs> {
    if views.len() != function.inputs {
        return Err(Error::invalid_argument(format!("'{}' takes {} tensors; {} were given.", function.name, function.inputs, views.len())));
    }
    let values = function.values(scalars)?;
    let Place::Device(device) = views[0].place else { return Err(not_on_a_device(&views[0], Nth("inputs", 0))) };
    let mut types = Few::new();
    let mut shape = views[0].shape.clone();
    for (at, view) in views.iter().enumerate() {
        let name = Nth("inputs", at);
        types.push(view.element(name)?);
        on_device(view, name, device)?;
        shape = tensor::common_shape(&shape, &view.shape).map_err(|back| does_not_fit(views, at, back))?;
    }
    let common = promote::common(types.iter().copied().zip(views.iter().map(|view| !view.shape.is_empty())))?;
    let stream = stream::resolve_on(handle, device).map_err(|error| views[0].blame(error, Nth("inputs", 0)))?;
    let views = views.iter().map(|view| view.expand(&shape)).collect();
    Ok(Inputs { views, types, common, shape, stream, values })
}

fn on_device(view: &View, name: Nth, device: i32) -> Result<()> {
    match view.place {
        Place::Device(other) if other == device => Ok(()),
        Place::Device(other) => Err(Error::invalid_argument(format!(
            "Expected all tensors to be on the same device, but found at least two devices: {device} ('inputs[0]') and {other} ('{name}')."
        ))),
        _ => Err(not_on_a_device(view, name)),
    }
}

#[cold]
fn not_on_a_device(view: &View, name: Nth) -> Error {
    Error::invalid_argument(format!(
        "'{name}' is in {}; compiled functions take tensors on a device. Copy it there first (tcuda_tensor_to).",
        view.place
    ))
}

/// Which earlier tensor it was that this one does not go with, and where.
#[cold]
fn does_not_fit(views: &[View], at: usize, back: usize) -> Error {
    let size = |view: &View| view.shape.len().checked_sub(1 + back).map_or(1, |dim| view.shape[dim]);
    let wanted = size(&views[at]);
    let before = (0..at).find(|before| ![1, wanted].contains(&size(&views[*before]))).unwrap_or(0);
    Error::invalid_argument(format!(
        "The shapes {:?} of 'inputs[{before}]' and {:?} of 'inputs[{at}]' cannot be broadcast to each other: in dimension -{} they have {} and \
         {wanted}; sizes must be the same or 1.",
        views[before].shape,
        views[at].shape,
        back + 1,
        size(&views[before])
    ))
}

/// Of a size of 1 the stride says nothing.
fn same_strides(one: &View, other: &View) -> bool {
    (0..one.shape.len()).all(|dim| one.shape[dim] == 1 || one.strides[dim] == other.strides[dim])
}

/// torch's rule, as far as it can be told cheaply: the same elements may be read and written, a part of them may not.
fn check_overlap(output: &View, other: &View, may_be_same: bool, name: Nth, other_name: Nth) -> Result<()> {
    if may_be_same || !tensor::overlap(output, other) {
        return Ok(());
    }
    // A single element that is repeated lies without gaps too.
    let is_whole = |view: &View| view.is_dense() || view.strides.iter().all(|stride| *stride == 0);
    // What begins inside an output without gaps is a part of it, whatever its strides are.
    let begins_inside = (output.address..output.address + output.bytes()).contains(&other.address);
    if output.is_dense() && (begins_inside || is_whole(other)) {
        return Err(Error::invalid_argument(format!(
            "unsupported operation: some elements of '{other_name}' and of '{name}', which is written to, refer to a single memory location. \
             Use memory of its own for the output."
        )));
    }
    Ok(())
}

fn run<'a>(function: &Function, inputs: &'a Inputs, outputs: impl ExactSizeIterator<Item = &'a View>) -> Result<()> {
    if inputs.shape.contains(&0) {
        return Ok(());
    }
    let (stream, count) = (inputs.stream, outputs.len());
    let views: Few<&View> = outputs.chain(&inputs.views).collect();
    for (at, view) in views.iter().enumerate() {
        let name = if at < count { Nth("outputs", at) } else { Nth("inputs", at - count) };
        view.end(Some(stream), name)?;
        if !view.address.is_multiple_of(view.item()) {
            return Err(Error::invalid_argument(format!(
                "'{name}' has its data at {:#x}, which is not a multiple of its element size of {} bytes: a kernel cannot reach it.",
                view.address,
                view.item()
            )));
        }
    }
    let dims = (0..inputs.shape.len()).map(|dim| {
        let mut strides = [0; MOST];
        for (stride, view) in strides.iter_mut().zip(&views) {
            *stride = view.byte_stride(dim);
        }
        Dim { size: inputs.shape[dim] as u64, strides }
    });
    let walk = Walk::new(views.iter().map(|view| view.address).collect(), dims)?;
    let sizes: Few<usize> = views.iter().map(|view| view.item()).collect();
    let types = views[..count].iter().map(|output| output.element("outputs")).chain(inputs.types.iter().map(|element| Ok(*element)));
    let variant = Variant {
        outputs: count,
        by_reference: function.by_reference,
        types: types.collect::<Result<_>>()?,
        common: inputs.common,
        layout: walk.layout(&sizes, count),
        scalars: inputs.values.iter().map(|value| value.kind()).collect(),
    };
    let runtime = runtime::runtime()?;
    let guard = device::Guard::new(stream.device)?;
    // Compiled before anything is noted or enqueued: what fails here leaves no trace.
    let ready = function.on_device(runtime, guard.device, &variant)?;
    for view in &views {
        memory::record_stream_of(view.address, stream)?;
    }
    walk.for_each_piece(&mut |piece| {
        let access = |(at, size): (usize, &usize)| {
            let exact = || stretches(piece.addresses[at], *size, piece.dims.iter().map(|dim| (dim.size, dim.strides[at])));
            accesses((piece.addresses[at], piece.extent(at, *size)), at < count, exact)
        };
        let accesses: Few<Access> = sizes.iter().enumerate().flat_map(access).collect();
        let blocks = (piece.count() as u32).div_ceil(variant.block());
        let mut arguments = variant.arguments(piece, &inputs.values);
        compiled::run_elements(runtime, ready, stream.raw, (blocks, THREADS), &mut arguments, &accesses)
    })
}
