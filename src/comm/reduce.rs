//! Sums over tensors of many devices, on one of them.

use super::chain;
use super::choice::{self, Operation, Way};
use super::circle::Circle;
use super::rules::{by_x, take_current};
use super::spread::{cut, reach_all};
use crate::base::{Error, Result};
use crate::device::{self, peer};
use crate::runtime::kernels::comm::{self, MOST, Segment};
use crate::runtime::kernels::element::Element;
use crate::stream::{self, HANDLE_CURRENT, Stream};
use crate::tensor::{self, Owned, View};
use std::ops::Range;

/// The sum of all inputs on `destination` (-1: the current device), where one of them has to be: the only one itself.
pub fn reduce_add(inputs: &[View], destination: i32) -> Result<Owned> {
    let destination = device::resolve(destination)?;
    let inputs: Vec<&View> = inputs.iter().collect();
    let mut sums = reduce_all(Operation::Reduce, &[inputs], destination, &|_, at| format!("inputs[{at}]"))?;
    sums.pop().ok_or_else(|| Error::internal("a sum of one tensor gave none"))
}

/// `inputs` are by device, then by tensor; a sum for each tensor.
pub fn reduce_add_coalesced(inputs: &[View], tensors: usize, destination: i32) -> Result<Vec<Owned>> {
    let destination = device::resolve(destination)?;
    let positions: Vec<Vec<&View>> = (0..tensors).map(|at| inputs.iter().skip(at).step_by(tensors).collect()).collect();
    reduce_all(Operation::ReduceCoalesced, &positions, destination, &|tensor, device| format!("inputs[{}]", device * tensors + tensor))
}

/// Where in the list the tensor is that the others are added to: the last on the destination.
fn root(inputs: &[&View], destination: i32) -> Result<usize> {
    let Some(first) = inputs.first() else {
        return Err(Error::invalid_argument("reduce_add expects at least one tensor to add, but got none"));
    };
    let mut root = None;
    for (at, input) in inputs.iter().enumerate() {
        match input.place.device() {
            None => {
                return Err(Error::invalid_argument(format!(
                    "reduce_add expects all inputs to be on GPUs, but input {at} is on CPU. Copy it to a device first."
                )));
            }
            Some(device) if device == destination => root = Some(at),
            Some(_) => {}
        }
        if input.shape != first.shape {
            return Err(Error::invalid_argument(format!(
                "input {at} has invalid size: got {}, but expected {}",
                by_x(&input.shape),
                by_x(&first.shape)
            )));
        }
        if input.dtype != first.dtype {
            return Err(Error::invalid_argument(format!(
                "input {at} has another type (DLPack code {}, {} bits) than input 0 (code {}, {} bits): reduce_add converts nothing",
                input.dtype.code, input.dtype.bits, first.dtype.code, first.dtype.bits
            )));
        }
    }
    root.ok_or_else(|| {
        Error::invalid_argument("reduce_add expects destination to be on the same GPU with one of the tensors").on_device(destination)
    })
}

/// What is summed in one launch: one type, one number of inputs.
struct Batch {
    element: Element,
    /// The devices' streams that the inputs are on, in the order of the sum.
    streams: Vec<Stream>,
    segments: Vec<Segment>,
}

fn reduce_all(
    operation: Operation,
    positions: &[Vec<&View>],
    destination: i32,
    name: &dyn Fn(usize, usize) -> String,
) -> Result<Vec<Owned>> {
    let roots = positions.iter().map(|inputs| root(inputs, destination)).collect::<Result<Vec<_>>>()?;
    let centre = stream::current(destination)?;
    let mut sums = Vec::with_capacity(positions.len());
    // What stands for an input that cannot be read as it is.
    let mut held = Vec::new();
    let mut adding = Adding::new(operation, centre, positions)?;
    for part in adding.parts(positions.len()) {
        let mut batches: Vec<Batch> = Vec::new();
        for at in part {
            let (inputs, root) = (&positions[at], roots[at]);
            if let [only] = inputs[..] {
                take_current(only, || name(at, 0))?;
                sums.push(tensor::alias(only));
                continue;
            }
            let first = inputs[root];
            let element = first.element(name(at, root))?;
            let order = || std::iter::once(root).chain((0..inputs.len()).filter(|index| *index != root));
            // As torch's sum of the first two lies.
            let second = inputs[order().nth(1).unwrap_or(root)];
            let strides = match first.is_packed() && second.is_packed() {
                true => tensor::contiguous(&first.shape),
                false => tensor::like_all(&first.shape, &[&first.strides, &tensor::like(&second.shape, &second.strides)]),
            };
            let sum = tensor::empty_strided(destination, first.dtype, &first.shape, strides, HANDLE_CURRENT)?;
            let mut segment =
                Segment { one: sum.view.address, many: Vec::with_capacity(inputs.len()), size: first.count() as usize * first.item() };
            let mut streams = Vec::with_capacity(inputs.len());
            for index in order() {
                let (address, stream) =
                    readable(inputs[index], &sum.view, centre, &mut held).map_err(|error| error.context(name(at, index)))?;
                segment.many.push(address);
                streams.push(stream);
            }
            sums.push(sum);
            if segment.size == 0 {
                continue;
            }
            match batches.iter_mut().find(|batch| batch.element == element && batch.streams == streams) {
                Some(batch) => batch.segments.push(segment),
                None => batches.push(Batch { element, streams, segments: vec![segment] }),
            }
        }
        adding.add(&batches, held.len())?;
    }
    adding.close()?;
    Ok(sums)
}

/// The input's address and stream, or those of a copy: in the sum's order of elements, and where the destination reaches it.
fn readable(input: &View, sum: &View, centre: Stream, held: &mut Vec<Owned>) -> Result<(usize, Stream)> {
    let own = take_current(input, || "the input".into())?.unwrap_or(centre);
    let place = source(centre, own)?;
    let reached = place == own;
    let aligned = input.address.is_multiple_of(input.item().min(8));
    if input.count() == 0 || (reached && aligned && tensor::agree(input, sum)) {
        return Ok((input.address, own));
    }
    let copy = tensor::empty_strided(place.device, input.dtype, &input.shape, sum.strides.clone(), HANDLE_CURRENT)?;
    tensor::copy(["out", "inputs"], &copy.view, input, true, HANDLE_CURRENT)?;
    let address = copy.view.address;
    held.push(copy);
    Ok((address, place))
}

/// Sums are enqueued part by part. One that ends before `close` was called waits for what was enqueued.
struct Adding {
    circle: Circle,
    way: Way,
    bytes: usize,
    /// Copies that stood for inputs when the centre last waited for all.
    ordered: Option<usize>,
}

impl Adding {
    fn new(operation: Operation, centre: Stream, positions: &[Vec<&View>]) -> Result<Adding> {
        let summed = || positions.iter().filter(|inputs| inputs.len() > 1 && inputs[0].count() > 0);
        let bytes = summed().map(|inputs| inputs[0].count() as usize * inputs[0].item()).sum();
        let mut streams = Vec::new();
        let mut devices = Vec::new();
        for device in summed().flatten().filter_map(|input| input.place.device()) {
            if !devices.contains(&device) {
                devices.push(device);
                streams.push(source(centre, stream::current(device)?)?);
            }
        }
        let circle = Circle::new(centre, streams.into_iter())?;
        let is_alone = circle.others().is_empty();
        let way = match choice::choose(operation, 1 + circle.others().len(), bytes)? {
            way @ (Way::Split | Way::Ring) if !is_alone && all_reach_all(&circle)? => way,
            _ => Way::Kernel,
        };
        Ok(Adding { circle, way, bytes, ordered: None })
    }

    fn parts(&self, count: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        choice::parts(self.bytes, count)
    }

    /// Also after all that the others have got since the part before: copies that stand for inputs, of which there are `held` now.
    fn add(&mut self, batches: &[Batch], held: usize) -> Result<()> {
        if batches.is_empty() {
            return Ok(());
        }
        let (centre, circle) = (self.circle.centre, &mut self.circle);
        if self.way == Way::Ring
            && let [batch] = batches
            && let [segment] = &batch.segments[..]
            && chain::sum(circle, &batch.streams, batch.element, segment)?
        {
            return Ok(());
        }
        match self.way {
            Way::Ring | Way::Split => {
                // Without new copies the centre need not wait for sums that go on, and they not for it.
                if self.ordered.replace(held) != Some(held) {
                    circle.collect()?;
                }
                circle.release()?;
                batches.iter().try_for_each(|batch| split(circle, batch))
            }
            _ => {
                circle.lead()?;
                batches.iter().try_for_each(|batch| add_on(circle, centre, batch.element, &batch.segments))
            }
        }
    }

    fn close(mut self) -> Result<()> {
        if self.ordered.is_some() {
            self.circle.collect()?;
            self.circle.release()?;
        }
        self.circle.close()
    }
}

/// The stream on which the centre's device reads what is in order with `own`: where it does not reach it, that of a copy beside it.
fn source(centre: Stream, own: Stream) -> Result<Stream> {
    Ok(if peer::ensure(centre.device, own.device)? { own } else { centre })
}

fn all_reach_all(circle: &Circle) -> Result<bool> {
    for stream in circle.others() {
        if !reach_all(*stream, circle.others())? || !reach_all(*stream, &[circle.centre])? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Every device but the destination sums its part, in the same order, and writes it there: no link carries more than the bytes of one
/// tensor in either direction.
fn split(circle: &mut Circle, batch: &Batch) -> Result<()> {
    let workers = circle.others().to_vec();
    let tiles: usize = batch.segments.iter().map(Segment::tiles).sum();
    for (at, worker) in workers.iter().enumerate() {
        let part = cut(&batch.segments, tiles * at / workers.len(), tiles * (at + 1) / workers.len());
        add_on(circle, *worker, batch.element, &part)?;
    }
    Ok(())
}

/// More inputs than a launch takes are added to the sum of those before.
fn add_on(circle: &mut Circle, stream: Stream, element: Element, segments: &[Segment]) -> Result<()> {
    let Some(first) = segments.first() else { return Ok(()) };
    let inputs = first.many.len();
    let runtime = circle.go(stream)?;
    if inputs <= MOST {
        return comm::add(runtime, stream.device, stream.raw, element, segments);
    }
    let part = |segment: &Segment, start: usize, end: usize| {
        let sum = (start > 0).then_some(segment.one);
        Segment { many: sum.into_iter().chain(segment.many[start..end].iter().copied()).collect(), ..*segment }
    };
    let mut start = 0;
    while start < inputs {
        let end = inputs.min(start + MOST - usize::from(start > 0));
        let parts: Vec<Segment> = segments.iter().map(|segment| part(segment, start, end)).collect();
        comm::add(runtime, stream.device, stream.raw, element, &parts)?;
        start = end;
    }
    Ok(())
}
