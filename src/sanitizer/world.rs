//! Accesses to memory in a world of clocks: the one that is, or that of a graph's capture, in which nothing runs yet.

use super::clock::{Clocks, Known, Who};
use super::report::{Does, Side};
use super::shadow::Stretches;
use std::sync::Arc;

#[derive(Clone)]
struct Stamp {
    who: Who,
    side: Arc<Side>,
}

/// What was done last to a stretch: the last write, and the last read of each clock since.
#[derive(Clone, Default)]
struct Cell {
    write: Option<Stamp>,
    reads: Vec<Stamp>,
}

pub struct World {
    pub clocks: Clocks,
    cells: Stretches<Cell>,
}

fn is_past(known: &Known, stamp: &Stamp) -> bool {
    known.of(stamp.who) >= stamp.side.sequence
}

impl World {
    pub fn new() -> World {
        World { clocks: Clocks::new(), cells: Stretches::new() }
    }

    /// One piece of work, which reads first and then writes; what it is not ordered with, each once.
    pub fn access(&mut self, who: Who, sides: impl Iterator<Item = Side>) -> Vec<(Side, Side)> {
        let sequence = self.clocks.work(who);
        let known = self.clocks.known(who).clone();
        let (writes, reads): (Vec<Side>, Vec<Side>) =
            sides.map(|side| Side { sequence, ..side }).partition(|side| side.does == Does::Write);
        let mut found: Vec<(Side, Side)> = Vec::new();
        for side in reads.into_iter().chain(writes) {
            let stamp = Stamp { who, side: Arc::new(side) };
            let mut conflict = |other: &Stamp| {
                if !is_past(&known, other) && !found.iter().any(|(_, before)| before.sequence == other.side.sequence) {
                    found.push((side, *other.side));
                }
            };
            self.cells.change(side.address, side.address + side.size, Cell::default, |cell| {
                if let Some(write) = &cell.write {
                    conflict(write);
                }
                if side.does == Does::Write {
                    cell.reads.iter().for_each(&mut conflict);
                    *cell = Cell { write: Some(stamp.clone()), reads: Vec::new() };
                } else {
                    cell.reads.retain(|read| read.who != who);
                    cell.reads.push(stamp.clone());
                }
            });
        }
        found
    }

    /// Some access that `known` is not past.
    pub fn in_use(&self, address: usize, size: usize, known: &Known) -> Option<Side> {
        let stamps = self.cells.overlapping(address, address + size).flat_map(|cell| cell.write.iter().chain(&cell.reads));
        stamps.filter(|stamp| !is_past(known, stamp)).map(|stamp| *stamp.side).next()
    }

    /// What was done there does not matter any more.
    pub fn forget(&mut self, address: usize, size: usize) {
        self.cells.take(address, address + size);
    }
}
