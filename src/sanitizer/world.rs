//! Accesses to memory in a world of clocks: the one that is, or that of a graph's capture, in which nothing runs yet.

use super::clock::{Clocks, HOST, Known, Who};
use super::report::{Does, Side};
use super::shadow::Stretches;
use std::sync::Arc;

#[derive(Clone)]
struct Stamp {
    who: Who,
    side: Arc<Side>,
}

impl PartialEq for Stamp {
    fn eq(&self, other: &Stamp) -> bool {
        Arc::ptr_eq(&self.side, &other.side)
    }
}

/// What was done last to a stretch: the last write, and the last read of each clock since.
#[derive(Clone, Default, PartialEq)]
struct Cell {
    write: Option<Stamp>,
    reads: Vec<Stamp>,
    /// Nobody's memory, which this stream may have again at once.
    freed: Option<Who>,
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
        let (known, past) = (self.clocks.known(who).clone(), self.clocks.known(HOST).clone());
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
                    *cell = Cell { write: Some(stamp.clone()), ..Cell::default() };
                } else {
                    // What the host has waited for is past for all.
                    cell.write.take_if(|write| is_past(&past, write));
                    cell.reads.retain(|read| read.who != who && !is_past(&past, read));
                    cell.reads.push(stamp.clone());
                }
            });
        }
        found
    }

    /// Memory is freed on a stream; None: by the host, or nobody knows. The cache waits for `users`. Some access that is behind none of them.
    pub fn frees(&mut self, address: usize, size: usize, on: Option<Who>, users: &[Who]) -> Option<Side> {
        let mut known = self.clocks.before(HOST).clone();
        users.iter().copied().chain(on).for_each(|who| known.join(self.clocks.before(who)));
        let stamps = self.cells.overlapping(address, address + size).flat_map(|cell| cell.write.iter().chain(&cell.reads));
        let in_use = stamps.filter(|stamp| !is_past(&known, stamp)).map(|stamp| *stamp.side).next();
        match on {
            Some(on) => self.freed(address, size, on, users),
            None => self.forget(address, size),
        }
        in_use
    }

    /// The stream may have it again at once.
    fn freed(&mut self, address: usize, size: usize, on: Who, users: &[Who]) {
        self.hand_on(address, size, on, |cell| {
            let is_waited_for = |stamp: &Stamp| stamp.who != on && users.contains(&stamp.who);
            cell.write.take_if(|stamp| is_waited_for(stamp));
            cell.reads.retain(|stamp| !is_waited_for(stamp));
            cell.freed = Some(on);
            true
        });
    }

    /// Memory is allocated on a stream. What is not that stream's own the cache knows to be past.
    pub fn allocated(&mut self, address: usize, size: usize, on: Who) {
        self.hand_on(address, size, on, |cell| cell.freed.take() == Some(on));
    }

    /// What was done there, the stream comes behind and the host has not waited for stays: others have to come behind it too.
    fn hand_on(&mut self, address: usize, size: usize, on: Who, stays: impl Fn(&mut Cell) -> bool) {
        let (known, past) = (self.clocks.before(on).clone(), self.clocks.known(HOST).clone());
        let is_open = |stamp: &Stamp| is_past(&known, stamp) && !is_past(&past, stamp);
        for (start, end, mut cell) in self.cells.take(address, address + size) {
            let is_handed_on = stays(&mut cell);
            cell.write.take_if(|stamp| !is_open(stamp));
            cell.reads.retain(is_open);
            if is_handed_on && (cell.write.is_some() || !cell.reads.is_empty()) {
                self.cells.put(start, end, cell);
            }
        }
    }

    /// What was done there does not matter any more.
    pub fn forget(&mut self, address: usize, size: usize) {
        self.cells.take(address, address + size);
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Key;
    use super::*;
    use crate::base::watch::Place;

    #[test]
    fn what_was_done_to_pieces_is_one_again_when_the_whole_is_used() {
        const SIZE: usize = 1 << 12;
        let mut world = World::new();
        let who = world.clocks.add(Key { on: Place { device: 0, raw: 0x5000 }, thread: 0 });
        let mut access = |does: Does, address: usize, size: usize, waited: bool| {
            let side = Side { does, call: "tcuda_x", on: None, annotation: 0, sequence: 0, address, size };
            assert!(world.access(who, std::iter::once(side)).is_empty());
            if waited {
                world.clocks.stream_is_past(who);
            }
            world.cells.count()
        };
        let counts: Vec<usize> = (0..SIZE).step_by(16).map(|at| access(Does::Write, 4096 + at, 8, false)).collect();
        assert_eq!(counts.last(), Some(&(SIZE / 16)));
        assert_eq!(access(Does::Write, 4096, SIZE, false), 1);
        (0..SIZE).step_by(16).for_each(|at| _ = access(Does::Write, 4096 + at, 8, true));
        assert_eq!(access(Does::Read, 4096, SIZE, false), 1);
    }
}
