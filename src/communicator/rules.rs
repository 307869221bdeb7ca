//! What is checked of a call before anything is done: NCCL itself takes addresses and counts, and believes them.

use super::group::{self, Entry};
use super::one::Communicator;
use crate::base::{Error, Result};
use crate::runtime::collective::{Call, Reduction, Wire, Work};
use crate::runtime::kernels::element::Element;
use crate::stream::{self, HANDLE_CURRENT, PER_THREAD, Stream};
use crate::tensor::View;
use std::sync::Arc;

/// The tensors of a call; that which the rank does not need may be missing, and is not looked at.
#[derive(Clone, Copy)]
pub struct Ends<'a> {
    pub output: Option<&'a View>,
    pub input: Option<&'a View>,
}

/// Makes a call, or keeps it for the end of the thread's group. `stream`: a handle; 0 is the device's current stream.
pub fn call(communicator: &Arc<Communicator>, call: Call, ends: Ends, stream: usize) -> Result<()> {
    let (rank, size) = communicator.place()?;
    check_ranks(call, size)?;
    let handle = if stream == 0 { HANDLE_CURRENT } else { stream };
    let stream = stream::resolve_on(handle, communicator.device).map_err(|error| error.context(call.name()))?;
    if stream.raw == PER_THREAD {
        let text = "The stream is the per-thread default one, which is another one to the threads of NCCL. Give a stream that was made, or the default one.";
        return Err(Error::invalid_argument(format!("{}: {text}", call.name())));
    }
    let entry = entry(communicator, call, ends, stream, (rank, size)).map_err(|error| error.context(call.name()))?;
    match entry {
        Some(entry) => group::add(entry),
        // There is nothing to move; the others find the same.
        None => communicator.reason().map_or(Ok(()), |error| Err(error.clone())),
    }
}

fn check_ranks(call: Call, size: i32) -> Result<()> {
    let (what, rank) = match call {
        Call::Broadcast { root } | Call::Reduce { root, .. } => ("root", root),
        Call::Send { peer } | Call::Recv { peer } => ("peer", peer),
        _ => return Ok(()),
    };
    if (0..size).contains(&rank) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("{}: '{what}' is {rank}, and the ranks of this communicator are 0 to {}.", call.name(), size - 1)))
}

fn entry(communicator: &Arc<Communicator>, call: Call, ends: Ends, stream: Stream, place: (i32, i32)) -> Result<Option<Entry>> {
    let (rank, size) = (place.0, place.1 as usize);
    let (reads, writes) = call.ends(rank);
    let names = call.names();
    let input = needed(communicator, reads, ends.input, stream, names[0])?;
    let output = needed(communicator, writes, ends.output, stream, names[1])?;
    if let (Some(input), Some(output)) = (input, output)
        && input.dtype != output.dtype
    {
        return Err(Error::invalid_argument(format!(
            "'input' and 'output' are of different types (DLPack's codes {} and {}, {} and {} bits).",
            input.dtype.code, output.dtype.code, input.dtype.bits, output.dtype.bits
        )));
    }
    let count = count_of(call, input, output, size)?;
    let Some(any) = input.or(output) else { return Ok(None) };
    let (call, wire, per_element) = wire_of(call, any)?;
    if count == 0 {
        return Ok(None);
    }
    check_aligned(input, any.item() / per_element, names[0])?;
    check_aligned(output, any.item() / per_element, names[1])?;
    if let (Some(input), Some(output)) = (input, output) {
        check_overlap(call, input, output, rank as usize, count)?;
    }
    let address = |view: Option<&View>| view.map_or(0, |view| view.address);
    let work = Work { call, wire, count: count * per_element, input: address(input), output: address(output), stream: stream.raw };
    Ok(Some(Entry { communicator: communicator.clone(), work, stream }))
}

fn needed<'a>(communicator: &Communicator, needed: bool, view: Option<&'a View>, stream: Stream, name: &str) -> Result<Option<&'a View>> {
    if !needed {
        return Ok(None);
    }
    let view = view.ok_or_else(|| Error::invalid_argument(format!("'{name}' is NULL, and this rank needs it.")))?;
    if view.place.device() != Some(communicator.device) {
        return Err(Error::invalid_argument(format!(
            "'{name}' is in {}, but this rank of the communicator is on device {}.",
            view.place, communicator.device
        )));
    }
    if !view.is_packed() {
        return Err(Error::invalid_argument(format!(
            "'{name}' (shape {:?}, strides {:?}) has to be packed, the last dimension fastest. Copy it to a tensor that is \
             (tcuda_tensor_to).",
            view.shape, view.strides
        )));
    }
    if view.count() > 0 {
        view.end(Some(stream), name)?;
    }
    Ok(Some(view))
}

/// Elements as `Work` has them.
fn count_of(call: Call, input: Option<&View>, output: Option<&View>, size: usize) -> Result<usize> {
    let (inputs, outputs) = call.shares(size);
    let count = |view: &View| view.count() as usize;
    let wrong = |what: String| Err(Error::invalid_argument(what));
    if let (Some(input), Some(output)) = (input, output)
        && count(input).checked_mul(outputs) != count(output).checked_mul(inputs)
    {
        let (larger, smaller) = if inputs > outputs { ("input", "output") } else { ("output", "input") };
        return wrong(match inputs == outputs {
            true => format!("'input' has {} elements and 'output' {}; both have to be of one size.", count(input), count(output)),
            false => format!(
                "'input' has {} elements and 'output' {}; with {size} ranks '{larger}' has to have {size} times those of '{smaller}'.",
                count(input),
                count(output)
            ),
        });
    }
    let (view, name, shares) = match (input, output) {
        (Some(input), _) => (input, "input", inputs),
        (None, Some(output)) => (output, "output", outputs),
        (None, None) => return Ok(0),
    };
    if !count(view).is_multiple_of(shares) {
        return wrong(format!("'{name}' has {} elements, which {size} ranks cannot share evenly.", count(view)));
    }
    Ok(count(view) / shares)
}

/// How it is moved or computed with, and how many such numbers an element has.
fn wire_of(call: Call, view: &View) -> Result<(Call, Wire, usize)> {
    let reduction = match call {
        Call::AllReduce(reduction) | Call::ReduceScatter(reduction) | Call::Reduce { reduction, .. } => reduction,
        // Bytes are bytes.
        _ => return Ok((call, Wire::U8, view.item())),
    };
    let element = Element::of(view.dtype);
    let with = |reduction| match call {
        Call::AllReduce(_) => Call::AllReduce(reduction),
        Call::ReduceScatter(_) => Call::ReduceScatter(reduction),
        Call::Reduce { root, .. } => Call::Reduce { reduction, root },
        other => other,
    };
    let plain = |wire| Ok((call, wire, 1));
    let complex = |wire| match reduction {
        Reduction::Sum | Reduction::Average => Ok((call, wire, 2)),
        _ => Err(unable(view, "complex numbers are summed and averaged only")),
    };
    match element {
        Some(Element::I8) => plain(Wire::I8),
        Some(Element::U8) => plain(Wire::U8),
        Some(Element::I32) => plain(Wire::I32),
        Some(Element::U32) => plain(Wire::U32),
        Some(Element::I64) => plain(Wire::I64),
        Some(Element::U64) => plain(Wire::U64),
        Some(Element::F16) => plain(Wire::F16),
        Some(Element::BF16) => plain(Wire::BF16),
        Some(Element::F32) => plain(Wire::F32),
        Some(Element::F64) => plain(Wire::F64),
        Some(Element::C64) => complex(Wire::F32),
        Some(Element::C128) => complex(Wire::F64),
        // A sum of bools is their or, a product their and, as torch has it.
        Some(Element::Bool) => match reduction {
            Reduction::Sum | Reduction::Max => Ok((with(Reduction::Max), Wire::U8, 1)),
            Reduction::Product | Reduction::Min => Ok((with(Reduction::Min), Wire::U8, 1)),
            Reduction::Average => Err(unable(view, "bools have no average")),
        },
        Some(Element::I16 | Element::U16) => Err(unable(view, "NCCL does not compute with integers of 16 bits")),
        None => Err(unable(view, "such numbers are moved only")),
    }
}

/// Kernels that compute with numbers reach none that lies askew.
fn check_aligned(view: Option<&View>, width: usize, name: &str) -> Result<()> {
    match view {
        Some(view) if !view.address.is_multiple_of(width) => Err(Error::invalid_argument(format!(
            "'{name}' is at 0x{:x}, which is no multiple of {width} bytes, the size of what is reduced. Copy it to memory of its own first.",
            view.address
        ))),
        _ => Ok(()),
    }
}

fn unable(view: &View, why: &str) -> Error {
    Error::not_supported(format!("'input' is of DLPack's type code {} with {} bits: {why}.", view.dtype.code, view.dtype.bits))
}

/// Input and output are apart, or lie so that each rank's part is where it will be.
fn check_overlap(call: Call, input: &View, output: &View, rank: usize, count: usize) -> Result<()> {
    let part = rank * count * input.item();
    let in_place = match call {
        Call::AllGather => input.address == output.address + part,
        Call::ReduceScatter(_) => output.address == input.address + part,
        Call::AllToAll => false,
        _ => input.address == output.address,
    };
    let apart = input.address + input.bytes() <= output.address || output.address + output.bytes() <= input.address;
    if apart || in_place {
        return Ok(());
    }
    Err(Error::invalid_argument(
        "'input' and 'output' overlap. They may be the same memory where both are of one size; in all_gather and reduce_scatter the smaller one \
         may be this rank's part of the larger one; in all_to_all they have to be apart.",
    ))
}
