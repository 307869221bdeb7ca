//! Graphed callables (torch.cuda.make_graphed_callables): functions of the program that are captured once, each in a graph of its own, over one
//! pool, and then called by a replay. What they read lies where it lay at the capture; what a call gives elsewhere is copied there.

use super::handles;
use super::pool::PoolId;
use crate::base::handles::Handles;
use crate::base::{Error, Result, Status, insist};
use crate::copy::Place;
use crate::event;
use crate::event::pool::Pooled;
use crate::runtime;
use crate::stream::{self, Stream};
use crate::tensor::{self, View};
use parking_lot::ReentrantMutex;
use std::cell::RefCell;
use std::sync::Arc;

/// torch's num_warmup_iters.
const WARMUPS: u32 = 3;
const THREAD_LOCAL: i32 = 1;

pub struct Callable<'a> {
    /// Gives its work to the stream of this handle.
    pub run: &'a dyn Fn(usize) -> Result<()>,
    /// What it reads and a call may give.
    pub inputs: Vec<View>,
}

struct Graphed {
    parts: Vec<Part>,
    /// Held in a call. A call may ask for memory, and who is asked may call it from inside: that is an error, and would be a wait without end.
    order: ReentrantMutex<RefCell<Order>>,
    /// Ends after the graphs that were captured on it.
    side: Side,
}

struct Part {
    graph: Captured,
    inputs: Vec<View>,
}

struct Order {
    /// Which is due.
    next: usize,
    /// Recorded behind each call.
    done: Pooled,
}

/// The number of a graph, which ends with this.
struct Captured(usize);

impl Drop for Captured {
    fn drop(&mut self) {
        // After a shutdown there is none.
        let _ = handles::destroy(self.0);
    }
}

/// With its serial: if a callable destroys the stream that it is given, the handle may be somebody else's by now.
struct Side(Stream, Option<u64>);

impl Drop for Side {
    /// Of one that failed half way the work is waited for: what it uses is the program's again.
    fn drop(&mut self) {
        if stream::serial(self.0) != self.1 {
            return;
        }
        self.0.drain();
        let _ = insist(|| stream::destroy(self.0.raw));
    }
}

static GRAPHED: Handles<Graphed> = Handles::new("graphed callable", "tcuda_graphed_callable_create");

/// Runs all of them `warmups` times on a stream of its own, then captures them in their order. None: as often as torch.
pub fn create(callables: &[Callable], warmups: Option<u32>, pool: PoolId, stream: Stream) -> Result<usize> {
    let count = callables.len();
    if count == 0 {
        return Err(Error::invalid_argument("There is no callable to capture: 'count' is 0."));
    }
    for (at, input) in callables.iter().enumerate().flat_map(|(at, callable)| callable.inputs.iter().map(move |input| (at, input))) {
        if input.place != Place::Device(stream.device) && input.place != Place::Pinned {
            return Err(Error::invalid_argument(format!(
                "An input of callable {at} is in {}; a graph on device {} reads memory of its device, or pinned memory.",
                input.place, stream.device
            )));
        }
    }
    refuse_capture(stream, "made")?;
    let side = stream::create(stream.device, 0)?;
    let side = Side(side, stream::serial(side));
    let on_side = stream::handle_of(side.0);
    event::wait_stream(side.0, stream)?;
    let named = |at: usize, what: &str| format!("The callable {at} of {count} (counted from 0), {what}");
    for round in 1..=warmups.unwrap_or(WARMUPS) {
        for (at, callable) in callables.iter().enumerate() {
            (callable.run)(on_side).map_err(|error| error.context(named(at, &format!("in warm-up {round}"))))?;
        }
    }
    runtime::runtime()?.outside_capture(|| side.0.synchronize())?;
    let mut parts: Vec<Part> = Vec::new();
    for (at, callable) in callables.iter().enumerate() {
        let captured = Captured(handles::create(0)?);
        let graph = handles::named(captured.0)?;
        let pool = parts.first().map_or(Ok(pool), |first| handles::named(first.graph.0)?.pool())?;
        graph.begin(side.0, pool, THREAD_LOCAL)?;
        let ran = (callable.run)(on_side);
        // Of one that failed it is no wonder that nothing is there.
        let ended = if ran.is_ok() { graph.end() } else { graph.end_quietly().map(drop) };
        // What made the capture invalid is more to the point than what the function made of it.
        ended.and(ran).map_err(|error| error.context(named(at, "while it was captured")))?;
        parts.push(Part { graph: captured, inputs: callable.inputs.clone() });
    }
    event::wait_stream(stream, side.0)?;
    let order = ReentrantMutex::new(RefCell::new(Order { next: 0, done: Pooled::take(stream.device)? }));
    Ok(GRAPHED.insert(Arc::new(Graphed { parts, order, side })))
}

fn refuse_capture(stream: Stream, what: &str) -> Result<()> {
    stream.refuse_capture(|| format!("A graphed callable cannot be {what} on a stream that is being captured."))
}

impl Graphed {
    fn part(&self, index: usize) -> Result<&Part> {
        let count = self.parts.len();
        let none = || Error::invalid_argument(format!("There is no callable {index}: {count} were captured, counted from 0."));
        self.parts.get(index).ok_or_else(none)
    }
}

/// Before inputs are looked at: beyond those that a callable has there may be none.
pub fn check_count(handle: usize, index: usize, given: usize) -> Result<()> {
    let graphed = GRAPHED.get(handle)?;
    let count = graphed.part(index)?.inputs.len();
    if given != count {
        let text = format!("{given} inputs were given; the callable was captured with {count}.");
        return Err(Error::invalid_argument(text));
    }
    Ok(())
}

/// What a callable does, with these inputs, as many as it has; None: those of the capture.
pub fn call(handle: usize, index: usize, inputs: Option<&[View]>, stream: Stream) -> Result<()> {
    let graphed = GRAPHED.get(handle)?;
    let count = graphed.parts.len();
    let part = graphed.part(index)?;
    if stream.device != graphed.side.0.device {
        return Err(Error::invalid_argument(format!(
            "The callables were captured on device {}, the stream belongs to device {}.",
            graphed.side.0.device, stream.device
        )));
    }
    let to_copy = in_order(differing(&part.inputs, inputs.unwrap_or(&part.inputs))?)?;
    refuse_capture(stream, "called")?;
    let turn = graphed.order.lock();
    let Ok(mut order) = turn.try_borrow_mut() else {
        let text = "A graphed callable is called from inside of its own call, by a function that is asked for memory.";
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
    };
    if index != order.next && index != 0 {
        let due = if order.next < count {
            format!("callable {} is due, or 0 for a new round", order.next)
        } else {
            "a new round begins with 0".into()
        };
        let text =
            format!("Callable {index} is called out of turn: they share memory and run in the order in which they were captured; {due}.");
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
    }
    // The call before may have been on another stream, which may be gone.
    event::wait(order.done.raw(), stream)?;
    // What no stream copies is copied now: the call before has to be done with it.
    if to_copy.iter().any(Given::is_by_host) {
        runtime::runtime()?.outside_capture(|| event::synchronize(order.done.raw()))?;
    }
    let on = stream::handle_of(stream);
    let called = to_copy
        .iter()
        .enumerate()
        .try_for_each(|(nth, one)| {
            // So does the stream, with what it still reads there for this call.
            if one.is_by_host() && to_copy[..nth].iter().any(|before| tensor::overlap(before.from, one.to)) {
                stream.try_drain()?;
            }
            tensor::copy(["inputs"; 2], one.to, one.from, true, on).map_err(|error| error.context(format!("Input {}", one.at)))
        })
        .and_then(|()| handles::named(part.graph.0)?.replay(stream));
    // Copies may be under way in any case.
    let done = event::record(order.done.raw(), stream).or_else(|_| stream.try_drain());
    called.and(done)?;
    order.next = index + 1;
    Ok(())
}

/// An input that lies elsewhere than at the capture.
#[derive(Clone, Copy)]
struct Given<'a> {
    at: usize,
    to: &'a View,
    from: &'a View,
}

impl Given<'_> {
    fn is_by_host(&self) -> bool {
        self.to.place.device().or(self.from.place.device()).is_none()
    }
}

fn differing<'a>(fixed: &'a [View], given: &'a [View]) -> Result<Vec<Given<'a>>> {
    let mut differing = Vec::new();
    for (at, (to, from)) in fixed.iter().zip(given).enumerate() {
        if to.shape != from.shape || to.dtype != from.dtype {
            return Err(Error::invalid_argument(format!(
                "Input {at} has the shape {:?} and elements of {} bits (DLPack code {}); it was captured with {:?}, {} bits, code {}. A graph \
                 has one shape: capture another one.",
                from.shape, from.dtype.bits, from.dtype.code, to.shape, to.dtype.bits, to.dtype.code
            )));
        }
        if to.address != from.address {
            if tensor::meet(to, from) {
                let text = format!("Input {at} lies partly where it lay at the capture: give a copy of it.");
                return Err(Error::invalid_argument(text));
            }
            differing.push(Given { at, to, from });
        } else if !tensor::agree(to, from) {
            return Err(Error::invalid_argument(format!(
                "Input {at} is at the address that was captured, with other strides ({:?}, not {:?}): give a copy of it.",
                from.strides, to.strides
            )));
        }
    }
    Ok(differing)
}

/// So that none is copied over what another one is still to be copied from: an input may be what another one was before.
fn in_order(given: Vec<Given>) -> Result<Vec<Given>> {
    if are_apart(&given) {
        return Ok(given);
    }
    let count = given.len();
    let reads = |one: usize, other: usize| one != other && tensor::overlap(given[one].from, given[other].to);
    // How many have to be copied before each.
    let mut before: Vec<usize> = (0..count).map(|at| (0..count).filter(|other| reads(*other, at)).count()).collect();
    let mut next: Vec<usize> = (0..count).filter(|at| before[*at] == 0).collect();
    let mut ordered = Vec::with_capacity(count);
    while let Some(at) = next.pop() {
        ordered.push(given[at]);
        for other in (0..count).filter(|other| reads(at, *other)) {
            before[other] -= 1;
            if before[other] == 0 {
                next.push(other);
            }
        }
    }
    if ordered.len() == count {
        return Ok(ordered);
    }
    // From any of those that are left to one that it waits for, so often that it goes round.
    let waits_for = |at: usize| (0..count).find(|other| before[*other] > 0 && reads(*other, at)).unwrap_or(at);
    let first = (0..count).fold((0..count).find(|at| before[*at] > 0).unwrap_or(0), |at, _| waits_for(at));
    Err(Error::invalid_argument(format!(
        "Input {} lies where input {} is to be copied, and so on in a circle: give a copy of one of them.",
        given[waits_for(first)].at,
        given[first].at
    )))
}

/// None lies where another one is copied, as nearly always.
fn are_apart(given: &[Given]) -> bool {
    let mut places: Vec<(usize, usize)> = given.iter().map(|one| (one.to.address, one.to.address + one.to.bytes())).collect();
    places.sort_unstable();
    // The furthest that those up to each reach.
    let mut end = 0;
    places.iter_mut().for_each(|place| {
        end = end.max(place.1);
        place.1 = end;
    });
    given.iter().all(|one| {
        let below = places.partition_point(|place| place.0 < one.from.address + one.from.bytes());
        below == 0 || places[below - 1].1 <= one.from.address
    })
}

/// Calls that are under way go on.
pub fn destroy(handle: usize) -> Result<()> {
    GRAPHED.remove(handle).map(drop)
}

pub fn clear() {
    GRAPHED.clear();
}
