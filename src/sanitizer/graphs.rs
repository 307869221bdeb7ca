//! Graphs: each capture is a world of its own, in which the streams that take part are ordered as the replay will order them. A replay is one
//! piece of work that does everything at once, to the memory that the capture named.

use super::blocks::{Block, Blocks, Memory};
use super::clock::{Key, Known, Recorded};
use super::report::{self, Does, Kind, Report, Side};
use super::world::World;
use super::{Actor, State};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

struct Use {
    side: Side,
    /// What the memory was then.
    blocks: Vec<Arc<Block>>,
}

struct Captured {
    /// Of tcuda, which tells its end.
    is_own: bool,
    world: World,
    uses: Vec<Use>,
    known: HashSet<(usize, usize, bool)>,
    /// Those that each replay waits for or records.
    events: Vec<(usize, bool)>,
}

pub struct Graphs {
    /// By the driver's numbers of captures.
    captured: HashMap<u64, Captured>,
    /// By what the driver launches: all that came before its last launch, and that. The next one comes behind, whatever its stream.
    launched: HashMap<usize, Known>,
}

impl Graphs {
    pub fn new() -> Graphs {
        Graphs { captured: HashMap::new(), launched: HashMap::new() }
    }

    fn of(&mut self, id: u64) -> &mut Captured {
        /// Nobody tells the end of another library's: the newest ones stay.
        const OTHERS: usize = 16;
        if !self.captured.contains_key(&id) {
            let others = || self.captured.iter().filter(|(_, captured)| !captured.is_own).map(|(id, _)| *id);
            if let Some(oldest) = others().min().filter(|_| others().count() >= OTHERS) {
                self.captured.remove(&oldest);
            }
        }
        let new = || Captured { is_own: false, world: World::new(), uses: Vec::new(), known: HashSet::new(), events: Vec::new() };
        self.captured.entry(id).or_insert_with(new)
    }

    pub fn begun(&mut self, id: u64) {
        self.of(id).is_own = true;
    }

    /// Something is captured; what it races with inside the graph.
    pub fn access(&mut self, id: u64, key: Key, sides: &[Side], blocks: &Blocks) -> Vec<(Side, Side)> {
        let captured = self.of(id);
        for side in sides {
            if captured.known.insert((side.address, side.size, side.does == Does::Write)) {
                let blocks = blocks.within(side.address, side.size);
                blocks.iter().filter(|block| block.memory.is_pinned()).for_each(|block| block.is_kept.store(true, Relaxed));
                captured.uses.push(Use { side: *side, blocks });
            }
        }
        let who = captured.world.clocks.add(key);
        captured.world.access(who, sides.iter().copied())
    }

    pub fn record(&mut self, id: u64, event: usize, key: Key) {
        let clocks = &mut self.of(id).world.clocks;
        let who = clocks.add(key);
        clocks.record(event, who);
    }

    pub fn wait(&mut self, id: u64, event: usize, key: Key) -> Recorded {
        let clocks = &mut self.of(id).world.clocks;
        let who = clocks.add(key);
        clocks.wait(event, who)
    }

    /// A node that each replay waits at, or records the event.
    pub fn event(&mut self, id: u64, event: usize, key: Key, waits: bool) {
        let captured = self.of(id);
        captured.events.push((event, waits));
        let clocks = &mut captured.world.clocks;
        let who = clocks.add(key);
        match waits {
            false => clocks.record(event, who),
            // A record from outside says nothing of what is within.
            true if clocks.has(event) => _ = clocks.wait(event, who),
            true => {}
        }
    }

    pub fn meet(&mut self, id: u64, place: usize, key: Key) {
        let clocks = &mut self.of(id).world.clocks;
        let who = clocks.add(key);
        clocks.meet(place, who);
    }

    pub fn allocated(&mut self, id: u64, address: usize, size: usize, key: Key) {
        let world = &mut self.of(id).world;
        let who = world.clocks.add(key);
        world.allocated(address, size, who);
    }

    /// As `World::frees`.
    pub fn frees(&mut self, id: u64, address: usize, size: usize, on: Option<Key>, users: &[Key]) -> Option<Side> {
        let world = &mut self.of(id).world;
        let on = on.map(|key| world.clocks.add(key));
        let users: Vec<_> = users.iter().map(|key| world.clocks.add(*key)).collect();
        world.frees(address, size, on, &users)
    }

    pub fn gone(&mut self, id: u64) {
        self.captured.remove(&id);
    }

    pub fn exec_gone(&mut self, exec: usize) {
        self.launched.remove(&exec);
    }
}

/// Whether memory that a capture used is not what it was. None: it is nobody's any more.
fn is_stale(then: &Block, now: Option<&Arc<Block>>) -> bool {
    // What a capture allocated is its pool's, whoever has it; pinned memory is kept.
    if then.capture.is_some() || then.memory.is_pinned() {
        return false;
    }
    now.is_none_or(|now| {
        let is_same = match (&then.memory, &now.memory) {
            (Memory::Import(then), Memory::Import(now)) => Arc::ptr_eq(then, now),
            _ => now.allocated.sequence == then.allocated.sequence,
        };
        now.freed.is_some() || !is_same || now.address != then.address
    })
}

impl State {
    pub(super) fn replayed(&mut self, id: u64, exec: usize, actor: &Actor, call: &'static str) {
        let Some(captured) = self.graphs.captured.get(&id) else { return };
        let mut sides = Vec::with_capacity(captured.uses.len());
        let mut reported = HashSet::new();
        for used in &captured.uses {
            let side = Side { call, on: Some(actor.key.on), ..used.side };
            sides.push(side);
            for then in &used.blocks {
                let now = self.blocks.find(then.address.max(side.address));
                if is_stale(then, now.as_ref()) && reported.insert(then.address) {
                    let previous = now.map(|now| now.freed.unwrap_or(now.allocated));
                    report::add(Report { kind: Kind::StaleGraph, current: side, previous, allocated: Some(then.allocated) });
                }
            }
        }
        match actor.capture {
            Some(outer) => self.graphs.access(outer, actor.key, &sides, &self.blocks).into_iter().for_each(|sides| self.race(sides)),
            None => {
                let who = self.who(actor.key);
                let clocks = &mut self.world.clocks;
                if let Some(last) = self.graphs.launched.get(&exec) {
                    clocks.follow(who, last);
                }
                if let Some(captured) = self.graphs.captured.get(&id) {
                    let awaited = captured.events.iter().filter(|(_, waits)| *waits);
                    awaited.for_each(|(event, _)| _ = clocks.wait(*event, who));
                }
                self.world.access(who, sides.into_iter()).into_iter().for_each(|sides| self.race(sides));
                self.graphs.launched.insert(exec, self.world.clocks.before(who).clone());
                if let Some(captured) = self.graphs.captured.get(&id) {
                    let recorded = captured.events.iter().filter(|(_, waits)| !waits);
                    recorded.for_each(|(event, _)| self.world.clocks.record(*event, who));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_captures_of_other_libraries_the_newest_stay() {
        let mut graphs = Graphs::new();
        graphs.begun(1);
        (2..1000).for_each(|id| _ = graphs.of(id));
        graphs.begun(1000);
        let is_there = |id: u64| graphs.captured.contains_key(&id);
        assert!(is_there(1) && is_there(1000) && is_there(999) && !is_there(900) && graphs.captured.len() < 20);
    }
}
