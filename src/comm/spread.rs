//! From one device to others, over a list of segments.

use super::choice::{self, LARGE, Operation, Way};
use super::circle::Circle;
use super::lanes::Lanes;
use super::ring::Ring;
use crate::base::Result;
use crate::device::peer;
use crate::runtime::kernels::comm::{self, MOST, Segment, TILE};
use crate::stream::Stream;
use std::ops::Range;

/// Each segment's one is memory of `source`'s device, its many are of the devices of `targets`, in their order. Returns when all is
/// enqueued: every stream goes on after what concerns its device.
pub fn spread(operation: Operation, source: Stream, targets: &[Stream], segments: &[Segment]) -> Result<()> {
    let mut spread = Spread::new(operation, source, targets, segments.iter().map(|segment| segment.size).sum())?;
    spread.add(segments)?;
    spread.close()
}

/// The same in parts. One that ends before `close` was called waits for what was enqueued.
pub struct Spread<'a> {
    circle: Circle,
    targets: &'a [Stream],
    way: Way,
    bytes: usize,
    ring: Option<Ring>,
    /// Of the copies, beside the source's stream.
    lane: Option<Lanes>,
}

impl Spread<'_> {
    /// Of so many bytes, all together.
    pub fn new(operation: Operation, source: Stream, targets: &[Stream], bytes: usize) -> Result<Spread<'_>> {
        let circle = Circle::new(source, targets.iter().copied())?;
        let way = match choice::choose(operation, 1 + circle.others().len(), bytes)? {
            Way::Ring if reach_along(source, targets)? => Way::Ring,
            way @ (Way::Kernel | Way::Both) if reach_all(source, targets)? => way,
            _ => Way::Copies,
        };
        Ok(Spread { circle, targets, way, bytes, ring: None, lane: None })
    }

    pub fn parts(&self, count: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        choice::parts(self.bytes, count)
    }

    /// Also after all that the targets have got since the part before: they are where its memory was made.
    pub fn add(&mut self, segments: &[Segment]) -> Result<()> {
        if segments.is_empty() || self.targets.is_empty() {
            return Ok(());
        }
        match self.way {
            Way::Ring => {
                let ring = match &mut self.ring {
                    Some(ring) => ring,
                    none => {
                        let path = [&[self.circle.centre], self.targets].concat();
                        none.insert(Ring::new(&mut self.circle, path, self.bytes)?)
                    }
                };
                ring.add(&mut self.circle, segments, self.bytes)
            }
            Way::Kernel => self.star(segments, &[]),
            Way::Both => self.both(segments),
            _ if reach_all(self.circle.centre, self.targets)? => {
                // Small ones together go by a kernel sooner than a copy of each begins.
                let is_small = |segment: &Segment| segments.len() > 1 && segment.size < LARGE;
                let (small, large): (Vec<_>, Vec<_>) = segments.iter().cloned().partition(is_small);
                self.star(&small, &large)
            }
            _ => self.star(&[], segments),
        }
    }

    pub fn close(mut self) -> Result<()> {
        if let Some(ring) = self.ring.take() {
            ring.close(&mut self.circle)?;
        }
        if let Some(lane) = self.lane.take() {
            let source = self.circle.centre;
            lane.lead(&mut self.circle, 0, source)?;
            lane.joined();
        }
        self.circle.close()
    }

    /// Half of the bytes by copies, as far as large ones make that up: between two copies a link has nothing to do but what a kernel does.
    fn both(&mut self, segments: &[Segment]) -> Result<()> {
        let circle = &mut self.circle;
        let source = circle.centre;
        circle.lead()?;
        let lane = match &mut self.lane {
            Some(lane) => lane,
            none => none.insert(Lanes::new(&[source], circle.is_captured()?)?),
        };
        lane.follow(circle, 0, source)?;
        let beside = lane.hops()[0];
        let half = segments.iter().map(|segment| segment.size).sum::<usize>() / 2;
        let mut copied = 0;
        let (large, rest): (Vec<_>, Vec<_>) = segments.iter().cloned().partition(|segment| {
            let is_copied = segment.size >= LARGE && copied + segment.size <= half;
            copied += if is_copied { segment.size } else { 0 };
            is_copied
        });
        // First: the host takes longer to enqueue the copies.
        kernels(circle, source, &rest)?;
        copies(circle, beside, self.targets, &large)
    }

    /// The source does all of it: small ones by a kernel, large ones by copies.
    fn star(&mut self, small: &[Segment], large: &[Segment]) -> Result<()> {
        let circle = &mut self.circle;
        let source = circle.centre;
        circle.lead()?;
        kernels(circle, source, small)?;
        copies(circle, source, self.targets, large)
    }
}

/// Each to all targets.
fn copies(circle: &mut Circle, stream: Stream, targets: &[Stream], segments: &[Segment]) -> Result<()> {
    for segment in segments {
        for (target, to) in targets.iter().zip(&segment.many) {
            copy(circle, stream, (*to, target.device), segment.one, segment.size)?;
        }
    }
    Ok(())
}

/// One copy by the copy engines, from the device of the stream it runs on.
pub fn copy(circle: &mut Circle, stream: Stream, (to, to_device): (usize, i32), from: usize, size: usize) -> Result<()> {
    let reached = peer::ensure(stream.device, to_device)?;
    let runtime = circle.go(stream)?;
    // cudaMemcpyPeerAsync on a default stream holds up that of the other device as well.
    match reached {
        true => runtime.memcpy_async(to, from, size, stream.raw),
        false => runtime.memcpy_peer_async(to, to_device, from, stream.device, size, stream.raw),
    }
}

pub fn reach_all(from: Stream, targets: &[Stream]) -> Result<bool> {
    for target in targets {
        if !peer::ensure(from.device, target.device)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn reach_along(source: Stream, targets: &[Stream]) -> Result<bool> {
    let mut from = source;
    for target in targets {
        if !peer::ensure(from.device, target.device)? {
            return Ok(false);
        }
        from = *target;
    }
    Ok(true)
}

/// From the stream's device, where there are any; to more targets than one launch takes by several.
pub fn kernels(circle: &mut Circle, stream: Stream, segments: &[Segment]) -> Result<()> {
    let Some(first) = segments.first() else { return Ok(()) };
    let runtime = circle.go(stream)?;
    let most = first.many.len();
    if most <= MOST {
        return comm::spread(runtime, stream.device, stream.raw, segments);
    }
    for start in (0..most).step_by(MOST) {
        let part = |segment: &Segment| Segment { many: segment.many[start..most.min(start + MOST)].to_vec(), ..*segment };
        comm::spread(runtime, stream.device, stream.raw, &segments.iter().map(part).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Tiles `start` to `end` of all segments.
pub fn cut(segments: &[Segment], start: usize, end: usize) -> Vec<Segment> {
    let mut parts = Vec::new();
    let mut first = 0;
    for segment in segments {
        let after = first + segment.tiles();
        let (low, high) = (start.max(first), end.min(after));
        if low < high {
            let offset = (low - first) * TILE;
            let size = ((high - first) * TILE).min(segment.size) - offset;
            let many = segment.many.iter().map(|address| address + offset).collect();
            parts.push(Segment { one: segment.one + offset, many, size });
        }
        first = after;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_cover_all_once() {
        let segment = |one, size| Segment { one, many: vec![one + (1 << 30)], size };
        let segments = [segment(0, 1), segment(1 << 20, 3 * TILE + 5), segment(2 << 20, TILE), segment(3 << 20, 2 * TILE)];
        let tiles: usize = segments.iter().map(Segment::tiles).sum();
        assert_eq!((tiles, cut(&segments, 0, tiles)), (8, segments.to_vec()));
        for step in 1..9 {
            let mut bytes = 0;
            for start in (0..tiles).step_by(step) {
                let parts = cut(&segments, start, (start + step).min(tiles));
                assert!(parts.iter().all(|part| part.size > 0 && part.many[0] == part.one + (1 << 30)));
                assert!(parts.iter().map(Segment::tiles).sum::<usize>() <= step);
                bytes += parts.iter().map(|part| part.size).sum::<usize>();
            }
            assert_eq!(bytes, 1 + 6 * TILE + 5);
        }
    }
}
