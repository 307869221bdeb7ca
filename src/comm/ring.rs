//! From each device to the next, so that every link carries each byte once.

use super::choice;
use super::circle::Circle;
use super::lanes::Lanes;
use super::spread::cut;
use crate::base::{Result, watch};
use crate::event::pool::Pooled;
use crate::runtime::kernels::comm::{self, COUNTERS, Counters, Move, Pace, Segment, TILE};
use crate::runtime::{self, Runtime};
use crate::stream::{self, Stream};
use crate::tensor::{self, Owned};
use parking_lot::{Mutex, MutexGuard};

/// The last call whose kernels wait: its last lane, which is idle when none of them does, and its last target, which comes behind that
/// lane. Each with what tells it from a later stream of its name.
#[derive(Clone, Copy)]
struct Last {
    lane: (Stream, Option<u64>),
    target: (Stream, Option<u64>),
}

/// A kernel that waits keeps its place on its device, and two calls that waited for places of each other would never end: so one call's do at a
/// time. None: nobody's do.
static WAITING: Mutex<Option<Last>> = Mutex::new(None);
type Waiting = MutexGuard<'static, Option<Last>>;

/// What is between the kernels of one device and of the next.
enum Ties {
    /// Counters, for which kernels wait.
    Counters(Waiting),
    /// Counters, and events between chunks: where kernels run one by one they check what they would have waited for.
    Checked,
    /// Events between chunks.
    Events,
}

pub struct Ring {
    path: Vec<Stream>,
    lanes: Lanes,
    ties: Ties,
    /// On each device that hands on what came: how much did, by block.
    came: Vec<Owned>,
    /// On each device but the last that hands on to a window that is used again: how much the next one has taken.
    taken: Vec<Owned>,
    /// The last chunk of each hop, where events say that it was taken.
    marks: Vec<Option<Pooled>>,
    pace: Pace,
}

impl Ring {
    /// From each stream's device to that of the next: so many bytes, all together.
    pub fn new(circle: &mut Circle, path: Vec<Stream>, bytes: usize) -> Result<Ring> {
        let is_captured = circle.is_captured()?;
        let lanes = Lanes::new(&path[..path.len() - 1], is_captured)?;
        let (came, taken, marks) = (Vec::new(), Vec::new(), Vec::new());
        let mut ring = Ring { path, lanes, ties: Ties::Events, came, taken, marks, pace: Pace::of(bytes) };
        // A graph's kernels do not wait for each other: nothing says in which order it starts them. Who watches streams knows of order by
        // events only.
        if ring.path.len() == 2 || is_captured || watch::any(watch::SANITIZER) {
            return Ok(ring);
        }
        let runtime = runtime::runtime()?;
        ring.ties = match comm::kernels_overlap(runtime) {
            false => Ties::Checked,
            true => match may_wait(runtime, &ring.path, &ring.lanes)? {
                Some(waiting) => Ties::Counters(waiting),
                None => return Ok(ring),
            },
        };
        match zeros(circle, &ring.path[1..ring.path.len() - 1])? {
            Some(came) => ring.came = came,
            None => ring.ties = Ties::Events,
        }
        Ok(ring)
    }

    pub fn has_counters(&self) -> bool {
        !matches!(self.ties, Ties::Events)
    }

    /// By events.
    fn is_tied(&self) -> bool {
        !matches!(self.ties, Ties::Counters(_))
    }

    /// Bytes that are launched at once, of so many.
    pub fn chunk(&self, bytes: usize) -> usize {
        choice::chunk(bytes, if self.is_tied() { self.path.len() - 1 } else { 1 })
    }

    /// What comes to a device comes to one window of so many bytes again and again, each time a chunk of one segment.
    /// False: there is no room for counters.
    pub fn use_window(&mut self, circle: &mut Circle, window: usize) -> Result<bool> {
        let Some(taken) = zeros(circle, &self.path[..self.path.len() - 2])? else { return Ok(false) };
        self.taken = taken;
        self.pace.ahead = self.pace.tiles(window);
        self.marks = self.lanes.hops().iter().map(|_| Default::default()).collect();
        Ok(true)
    }

    /// Tile after tile goes from each device to the next.
    pub fn add(&mut self, circle: &mut Circle, segments: &[Segment], bytes: usize) -> Result<()> {
        self.begin(circle)?;
        let tiles: usize = segments.iter().map(Segment::tiles).sum();
        let step = self.chunk(bytes) / TILE;
        for start in (0..tiles).step_by(step) {
            let chunk = cut(segments, start, (start + step).min(tiles));
            self.pace.tile = Pace::of(chunk.iter().map(|segment| segment.size).sum()).tile;
            self.add_chunk(circle, |at| (Move::COPY, chunk.iter().map(|segment| hop(segment, at)).collect()))?;
        }
        Ok(())
    }

    /// Memory can be read or written, and nobody is waited for who cannot begin, when all streams have come to this point.
    pub fn begin(&mut self, circle: &mut Circle) -> Result<()> {
        self.path.iter().try_for_each(|stream| self.lanes.follow(circle, 0, *stream))?;
        let [first, others @ ..] = self.lanes.hops() else { return Ok(()) };
        let mark = circle.mark(*first)?;
        others.iter().filter(|lane| *lane != first).try_for_each(|lane| circle.wait(*lane, &mark))
    }

    /// What each hop does with a chunk.
    pub fn add_chunk(&mut self, circle: &mut Circle, work: impl Fn(usize) -> (Move, Vec<Segment>)) -> Result<()> {
        let is_tied = self.is_tied();
        let mut before = self.pace.before;
        for at in 0..self.path.len() - 1 {
            let lane = self.lanes.hops()[at];
            if at > 0 && is_tied {
                circle.hand_on(self.lanes.hops()[at - 1], lane)?;
            }
            // The next device's: this chunk goes to the same window.
            if let Some(Some(mark)) = self.marks.get(at + 1) {
                circle.wait(lane, mark)?;
            }
            let address = |counters: &[Owned], at: usize| counters.get(at).map_or(0, |counters| counters.view.address);
            let last = |counters: &[Owned]| at.checked_sub(1).map_or(0, |at| address(counters, at));
            let counters = Counters {
                came: last(&self.came),
                tell: address(&self.came, at),
                taken: address(&self.taken, at),
                give: last(&self.taken),
            };
            let (step, segments) = work(at);
            before = comm::relay(circle.go(lane)?, lane.device, lane.raw, step, &segments, counters, self.pace)?;
            if let Some(mark) = self.marks.get_mut(at).filter(|_| is_tied) {
                *mark = Some(circle.mark(lane)?);
            }
        }
        self.pace.before = before;
        Ok(())
    }

    /// Every stream goes on after what concerns its device.
    pub fn close(mut self, circle: &mut Circle) -> Result<()> {
        if let (Ties::Counters(waiting), Some(target)) = (&mut self.ties, self.path.last()) {
            **waiting = self.lanes.hops().last().map(|lane| Last { lane: known(*lane), target: known(*target) });
        }
        for (at, stream) in self.path.iter().enumerate() {
            // What a target hands on came to it before.
            self.lanes.lead(circle, at.min(self.path.len() - 2), *stream)?;
            // The next device still tells what it took.
            if at < self.taken.len() {
                self.lanes.lead(circle, at + 1, *stream)?;
            }
        }
        self.lanes.joined();
        Ok(())
    }
}

/// Counters on each stream's device, for kernels that begin behind it. None: there is no room for them.
fn zeros(circle: &mut Circle, streams: &[Stream]) -> Result<Option<Vec<Owned>>> {
    let mut counters = Vec::with_capacity(streams.len());
    for stream in streams {
        let Some(zeros) = tensor::bytes_if_there(*stream, COUNTERS)? else { return Ok(None) };
        circle.go(*stream)?.memset_async(zeros.view.address, 0, COUNTERS, stream.raw)?;
        counters.push(zeros);
    }
    Ok(Some(counters))
}

fn known(stream: Stream) -> (Stream, Option<u64>) {
    (stream, stream::serial(stream))
}

/// Not before the last call's kernels are done, or this call comes behind them. A thread's default stream cannot be known.
fn may_wait(runtime: &Runtime, path: &[Stream], lanes: &Lanes) -> Result<Option<Waiting>> {
    if path.iter().chain(lanes.hops()).any(|stream| stream.raw == stream::PER_THREAD) {
        return Ok(None);
    }
    let Some(waiting) = WAITING.try_lock() else { return Ok(None) };
    let may = match *waiting {
        Some(Last { lane, target }) if known(lane.0) == lane => {
            (known(target.0) == target && path.contains(&target.0)) || runtime.outside_capture(|| Ok(lane.0.is_idle(runtime)))?
        }
        _ => true,
    };
    Ok(may.then_some(waiting))
}

/// From the device before to target `at`.
fn hop(segment: &Segment, at: usize) -> Segment {
    let one = if at == 0 { segment.one } else { segment.many[at - 1] };
    Segment { one, many: vec![segment.many[at]], size: segment.size }
}
