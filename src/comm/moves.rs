//! Parts of one tensor between its device and others: what scatter and gather have in common.

use super::choice::{self, Operation, WIDE_ROW, Way};
use super::circle::Circle;
use super::spread::{copy, kernels};
use crate::base::Result;
use crate::device::peer;
use crate::event;
use crate::runtime::kernels::Plan;
use crate::runtime::kernels::comm::Segment;
use crate::runtime::kernels::tensor::{Work, on_device};
use crate::stream::Stream;
use crate::tensor::{self, Names, View};

/// One part, with elements, between memory of the centre's stream and of `other`.
pub struct Move {
    pub to: View,
    pub from: View,
    pub other: Stream,
}

impl Move {
    fn is_one_stretch(&self) -> bool {
        self.to.is_dense() && self.from.is_dense() && tensor::agree(&self.to, &self.from)
    }

    fn has_wide_rows(&self) -> bool {
        let plan = if self.is_one_stretch() { None } else { tensor::plan(&self.to, &self.from).ok() };
        plan.and_then(|plan| rows(&plan, self.to.item())).is_some_and(|(row, ..)| row >= WIDE_ROW)
    }
}

/// What messages call the two ends of a part.
pub fn names(operation: Operation) -> Names {
    if operation == Operation::Scatter { ["outs", "tensor"] } else { ["out", "tensors"] }
}

/// Enqueues all; every stream goes on after what concerns it. `operation` is `Scatter` (from the centre) or `Gather` (to it).
pub fn run(operation: Operation, centre: Stream, moves: Vec<Move>) -> Result<()> {
    let bytes = moves.iter().map(|part| part.to.count() as usize * part.to.item()).sum();
    let mut devices: Vec<i32> = moves.iter().map(|part| part.other.device).chain([centre.device]).collect();
    devices.sort_unstable();
    devices.dedup();
    let in_rows = operation == Operation::Gather && moves.iter().any(Move::has_wide_rows);
    let way = choice::choose(if in_rows { Operation::GatherRows } else { operation }, devices.len(), bytes)?;
    let at_source = way == Way::Copies && operation == Operation::Gather;
    let mut direct = Vec::with_capacity(moves.len());
    for part in moves {
        let (worker, partner) = if at_source { (part.other, centre) } else { (centre, part.other) };
        let reached = peer::ensure(worker.device, partner.device)?;
        let same = part.to.dtype == part.from.dtype;
        if same && (reached || (way == Way::Copies && part.is_one_stretch())) {
            direct.push((worker, part));
        } else {
            convert(names(operation), centre, &part)?;
        }
    }
    if direct.is_empty() {
        return Ok(());
    }
    let mut circle = Circle::new(centre, direct.iter().map(|(_, part)| part.other))?;
    if at_source {
        circle.release()?
    } else {
        circle.lead()?
    }
    let mut segments = Vec::new();
    for (worker, part) in &direct {
        if !part.is_one_stretch() {
            strided(&mut circle, *worker, part)?;
        } else if way == Way::Kernel {
            segments.push(Segment { one: part.from.address, many: vec![part.to.address], size: part.to.bytes() });
        } else {
            let to_device = if at_source { centre.device } else { part.other.device };
            copy(&mut circle, *worker, (part.to.address, to_device), part.from.address, part.to.bytes())?;
        }
    }
    kernels(&mut circle, centre, &segments)?;
    if at_source {
        circle.collect()?;
    }
    circle.close()
}

/// With another type, or by way of memory beside either end.
fn convert(names: Names, centre: Stream, part: &Move) -> Result<()> {
    // Between two devices the copy keeps the order of both streams by itself.
    let here = part.other.device == centre.device;
    if here {
        event::wait_stream(part.other, centre)?;
    }
    let on = |view: &View| if view.place.device() == Some(part.other.device) { part.other } else { centre };
    tensor::copy_between(names, (&part.to, on(&part.to)), (&part.from, on(&part.from)))?;
    if here { event::wait_stream(centre, part.other) } else { Ok(()) }
}

/// Wide rows by the copy engines, anything else by a kernel.
fn strided(circle: &mut Circle, worker: Stream, part: &Move) -> Result<()> {
    let plan = tensor::plan(&part.to, &part.from)?;
    let width = part.to.item();
    let runtime = circle.go(worker)?;
    match rows(&plan, width) {
        Some((row, height, to_pitch, from_pitch)) if row >= WIDE_ROW => {
            runtime.memcpy_2d_async(plan.to, to_pitch, plan.from, from_pitch, row, height, worker.raw)
        }
        _ => on_device(runtime, worker.device, worker.raw, Work::Copy { width }, plan),
    }
}

/// (bytes of a row, rows, bytes from row to row of the target and of the source), where the plan is rows that lie apart.
fn rows(plan: &Plan, width: usize) -> Option<(usize, usize, usize, usize)> {
    let [row, rows] = plan.dims[..] else { return None };
    let bytes = row.size as usize * width;
    // CUDA's copies take no larger pitch.
    let apart = |pitch: i64| i32::try_from(pitch).map(|pitch| pitch as usize).ok().filter(|pitch| *pitch >= bytes);
    let packed = row.to == width as i64 && row.from == width as i64;
    packed.then_some(())?;
    Some((bytes, rows.size as usize, apart(rows.to)?, apart(rows.from)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::kernels::Dim;

    #[test]
    fn rows_are_found() {
        let plan = |dims: &[(u64, i64, i64)]| Plan::new(0, 0, dims.iter().map(|d| Dim { size: d.0, to: d.1, from: d.2 })).unwrap();
        assert_eq!(rows(&plan(&[(5, 4, 4), (7, 40, 20)]), 4), Some((20, 7, 40, 20)));
        assert_eq!(rows(&plan(&[(5, 4, 8), (7, 40, 40)]), 4), None);
        assert_eq!(rows(&plan(&[(5, 4, 4), (7, 40, 0)]), 4), None);
        assert_eq!(rows(&plan(&[(5, 4, 4)]), 4), None);
        let largest = i64::from(i32::MAX);
        assert_eq!(rows(&plan(&[(5, 4, 4), (7, largest, 20)]), 4), Some((20, 7, largest as usize, 20)));
        assert_eq!(rows(&plan(&[(5, 4, 4), (7, 20, largest + 1)]), 4), None);
    }
}
