//! From each device to the next, so that every link carries each byte once.

use super::choice;
use super::circle::Circle;
use super::lanes::Lanes;
use super::spread::cut;
use crate::base::dtype::DType;
use crate::base::{Result, watch};
use crate::runtime::kernels::comm::{self, COUNTERS, Counters, Segment, TILE};
use crate::runtime::{self, Runtime};
use crate::stream::{self, HANDLE_CURRENT, Stream};
use crate::tensor::{self, Owned};
use parking_lot::{Mutex, MutexGuard};

/// Of counters.
const BYTE: DType = DType { code: 1, bits: 8, lanes: 1 };

/// The last call whose kernels wait: its last lane, which is idle when none of them does, and its last target, which comes behind that lane. Each
/// with what tells it from a later stream of its name.
#[derive(Clone, Copy)]
struct Last {
    lane: (Stream, Option<u64>),
    target: (Stream, Option<u64>),
}

/// A kernel that waits keeps its place on its device, and two calls that waited for places of each other would never end: so one call's do at a
/// time. None: nobody's do.
static WAITING: Mutex<Option<Last>> = Mutex::new(None);
type Waiting = MutexGuard<'static, Option<Last>>;

pub struct Ring {
    path: Vec<Stream>,
    lanes: Lanes,
    /// On each target that hands on: what came, by block.
    counters: Vec<Owned>,
    /// For the next call of the kernels.
    before: u32,
    /// Kernels wait for those of the device before. None: events do, which takes chunks.
    waiting: Option<Waiting>,
}

impl Ring {
    pub fn new(circle: &mut Circle, targets: &[Stream]) -> Result<Ring> {
        let mut path = vec![circle.centre];
        path.extend(targets);
        let is_captured = circle.is_captured()?;
        let lanes = Lanes::new(&path[..path.len() - 1], is_captured)?;
        let mut ring = Ring { path, lanes, counters: Vec::new(), before: 0, waiting: None };
        // A graph's kernels do not wait for each other: nothing says in which order it starts them. Who watches streams knows of order by events only.
        if ring.path.len() == 2 || is_captured || watch::any(watch::SANITIZER) {
            return Ok(ring);
        }
        let runtime = runtime::runtime()?;
        // Where kernels run one by one events tie them, and they check what they would have waited for.
        if comm::kernels_overlap(runtime) {
            ring.waiting = may_wait(runtime, &ring.path, &ring.lanes)?;
            if ring.waiting.is_none() {
                return Ok(ring);
            }
        }
        for target in &ring.path[1..ring.path.len() - 1] {
            let zeros = tensor::empty(target.device, BYTE, &[COUNTERS as i64], HANDLE_CURRENT)?;
            circle.go(*target)?.memset_async(zeros.view.address, 0, COUNTERS, target.raw)?;
            ring.counters.push(zeros);
        }
        Ok(ring)
    }

    /// Tile after tile goes from each device to the next.
    pub fn add(&mut self, circle: &mut Circle, segments: &[Segment], bytes: usize) -> Result<()> {
        // Memory can be read or written, and nobody is waited for who cannot begin, when all streams have come to this point.
        self.path.iter().try_for_each(|stream| self.lanes.follow(circle, 0, *stream))?;
        let [first, others @ ..] = self.lanes.hops() else { return Ok(()) };
        let mark = circle.mark(*first)?;
        others.iter().filter(|lane| *lane != first).try_for_each(|lane| circle.wait(*lane, &mark))?;
        let tiles: usize = segments.iter().map(Segment::tiles).sum();
        let step = if self.waiting.is_some() { tiles } else { choice::chunk(bytes, self.path.len() - 1) / TILE };
        for start in (0..tiles).step_by(step) {
            let chunk = cut(segments, start, (start + step).min(tiles));
            let mut before = self.before;
            for at in 0..self.path.len() - 1 {
                let lane = self.lanes.hops()[at];
                if at > 0 && self.waiting.is_none() {
                    circle.hand_on(self.lanes.hops()[at - 1], lane)?;
                }
                let hops: Vec<Segment> = chunk.iter().map(|segment| hop(segment, at)).collect();
                let counters = |at: usize| self.counters.get(at).map_or(0, |counters| counters.view.address);
                let counters = Counters { came: at.checked_sub(1).map_or(0, counters), tell: counters(at) };
                before = comm::relay(circle.go(lane)?, lane.device, lane.raw, &hops, counters, self.before)?;
            }
            self.before = before;
        }
        Ok(())
    }

    /// Every stream goes on after what concerns its device.
    pub fn close(mut self, circle: &mut Circle) -> Result<()> {
        if let (Some(waiting), Some(target)) = (&mut self.waiting, self.path.last()) {
            **waiting = self.lanes.hops().last().map(|lane| Last { lane: known(*lane), target: known(*target) });
        }
        for (at, stream) in self.path.iter().enumerate() {
            // What a target hands on came to it before.
            self.lanes.lead(circle, at.min(self.path.len() - 2), *stream)?;
        }
        self.lanes.joined();
        Ok(())
    }
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
