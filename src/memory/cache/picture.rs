//! A device's memory as a snapshot shows it, and what the history is told under the lock.

use super::block::{self, BlockId, State};
use super::core::Pending;
use super::segment::Area;
use super::slot::{COMMON, slot_of_block};
use super::{Cache, Core, StreamSlot};
use crate::base::{Result, room};
use crate::memory::history::{Action, Draft, Mode, texts};
use crate::memory::pools;
use crate::memory::stats::{Family, Stats};
use crate::memory::sync::MutexGuard;
use crate::runtime::Address;
use std::collections::HashMap;
use std::ops::Range;

const WHAT: &str = "a snapshot";

/// What a block is for its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Use {
    Inactive = 0,
    Allocated = 1,
    /// Freed, but other streams may still use it.
    PendingFree = 2,
}

#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub address: Address,
    pub size: usize,
    /// 0: inactive.
    pub requested: usize,
    pub state: Use,
    /// As the driver has it; 0 for memory of none.
    pub stream: u64,
    pub annotation: u32,
}

/// Memory in one stretch. Of virtual memory: mapped, and owned there; it serves all streams.
#[derive(Clone, Debug)]
pub struct Segment {
    pub device: i32,
    pub address: Address,
    pub size: usize,
    pub stream: u64,
    pub small: bool,
    pub expandable: bool,
    pub allocated: usize,
    /// And pending.
    pub active: usize,
    pub requested: usize,
    pub pool: pools::Id,
    /// In the snapshot's list.
    pub blocks: Range<usize>,
}

/// One device with its pools, as it was at one moment.
pub struct Picture {
    pub segments: Vec<Segment>,
    pub blocks: Vec<Block>,
    pub stats: Stats,
    pub history: Draft,
}

impl Core {
    pub(super) fn raw_of(&self, slot: StreamSlot) -> u64 {
        if slot == COMMON { 0 } else { self.slots[slot as usize].key.raw as u64 }
    }

    #[inline]
    pub fn tell(&self, action: Action, address: Address, size: usize, slot: StreamSlot) {
        if self.history.traces() {
            self.history.note(action, address, size, self.raw_of(slot), self.pool);
        }
    }

    /// Memory comes to a block, or leaves it. A plain segment goes as a whole: `tell_given`.
    pub fn tell_memory(&self, id: BlockId, comes: bool) {
        let block = block::at(id);
        match (block.mapped(), comes) {
            // Of no stream, as the segments: what is beside it joins it whosever it is.
            (true, true) => self.tell(Action::SegmentMap, block.address(), block.size(), COMMON),
            (true, false) => self.tell(Action::SegmentUnmap, block.address(), block.size(), COMMON),
            (false, true) => self.tell(Action::SegmentAlloc, block.address(), block.size(), block.owner()),
            (false, false) => {}
        }
    }

    /// All memory of a pool goes, or comes back.
    pub fn tell_all(&self, comes: bool) {
        for id in self.areas.values().flat_map(|area| block::chain(area.first)) {
            if !matches!(block::at(id).state(), State::Unmapped | State::Moved | State::Busy | State::Unused) {
                self.tell_memory(id, comes);
            }
        }
    }

    /// Memory has gone back. A plain segment is told of with its stream: its block is nobody's by then.
    pub fn tell_given(&self, base: Address) {
        let area = self.areas.get(&base).filter(|area| area.plain && self.history.traces());
        if let Some(area) = area {
            self.history.note(Action::SegmentFree, area.base, area.size, area.stream, self.pool);
        }
    }

    /// What was to go stays.
    pub fn tell_kept(&self, id: BlockId) {
        if block::at(id).mapped() {
            self.tell_memory(id, true);
        }
    }

    /// What the fronts' writers have is the history's. All fronts are stopped.
    pub fn gather_history(&self) {
        self.fronts.all().filter_map(|front| front.take_writer()).for_each(|writer| self.history.gather(writer));
    }

    /// No front has a writer, nor one of a pool. True: what blocks were annotated with before does not count any more.
    pub fn record_history(&mut self, mode: Mode, most: usize, clear: bool) -> bool {
        let was_on = self.history.is_on();
        self.history.set(mode, most, clear);
        !was_on || clear
    }

    fn forget_annotations(&mut self) {
        let blocks = self.areas.values().flat_map(|area| block::chain(area.first)).map(block::at);
        blocks.filter(|block| block.state() == State::Allocated).for_each(|block| block.set_annotation(texts::NONE));
        self.freed_in_use_mut().for_each(|freed| freed.annotation = texts::NONE);
    }

    /// A stretch of addresses. What is freed but in use is in `pending`.
    fn draw_area(
        &self,
        area: &Area,
        pending: &HashMap<BlockId, &Pending>,
        segments: &mut Vec<Segment>,
        blocks: &mut Vec<Block>,
    ) -> Result<()> {
        let mut open = None;
        for id in block::chain(area.first) {
            let record = block::at(id);
            // For the one that may end here.
            room::reserve(segments, 1, WHAT)?;
            room::reserve(blocks, 1, WHAT)?;
            if matches!(record.state(), State::Unmapped | State::Moved | State::Busy | State::Unused) {
                segments.extend(open.take());
                continue;
            }
            let segment = open.get_or_insert_with(|| Segment {
                device: self.device,
                address: record.address(),
                size: 0,
                stream: area.stream,
                small: area.small,
                expandable: !area.plain,
                allocated: 0,
                active: 0,
                requested: 0,
                pool: self.pool,
                blocks: blocks.len()..blocks.len(),
            });
            self.draw(segment, blocks, id, pending.get(&id).copied());
        }
        segments.extend(open);
        Ok(())
    }

    fn draw(&self, segment: &mut Segment, blocks: &mut Vec<Block>, id: BlockId, pending: Option<&Pending>) {
        let record = block::at(id);
        let (address, size) = (record.address(), record.size());
        let stream = self.raw_of(slot_of_block(id));
        let (state, requested, annotation) = match (record.state(), pending) {
            (State::Allocated, _) => (Use::Allocated, record.requested(), record.annotation()),
            (_, Some(freed)) => (Use::PendingFree, freed.requested, freed.annotation),
            _ => (Use::Inactive, 0, texts::NONE),
        };
        segment.size += size;
        segment.requested += requested;
        match state {
            Use::Allocated => (segment.allocated, segment.active) = (segment.allocated + size, segment.active + size),
            Use::PendingFree => segment.active += size,
            Use::Inactive => {}
        }
        // What threads keep free is cut as they ask for it.
        if let Some(last) = blocks[segment.blocks.start..].last_mut()
            && (last.state, state) == (Use::Inactive, Use::Inactive)
            && last.stream == stream
        {
            last.size += size;
            return;
        }
        let annotation = if self.history.is_on() { annotation } else { texts::NONE };
        blocks.push(Block { address, size, requested, state, stream, annotation });
        segment.blocks.end = blocks.len();
    }
}

impl Cache {
    /// The device and, first, its pools, each stopped and under its lock, with nothing in the driver's hands: one moment.
    fn at_one_moment<T>(&self, work: impl FnOnce(&mut [MutexGuard<Core>]) -> T) -> T {
        let _growing = self.growing.lock();
        // What is in a pool grew there, and a thread gets a front of one under the device's lock, so nothing of a later one is missing.
        let mut cores: Vec<MutexGuard<Core>> = pools::with_caches(|pools| {
            let of_pools = pools.iter().filter(|pool| pool.device == self.device).map(|pool| pool.core.lock());
            of_pools.collect::<Vec<_>>().into_iter().chain([self.core.lock()]).collect()
        });
        work(&mut cores)
    }

    /// Of a device, for its pools too. What was recorded is forgotten where it is not recorded any more.
    pub fn record_history(&self, mode: Mode, most: usize, clear: bool) {
        self.at_one_moment(|cores| {
            cores.iter().for_each(|core| core.gather_history());
            let forgets = cores.last_mut().is_some_and(|device| device.record_history(mode, most, clear));
            cores.iter_mut().filter(|_| forgets).for_each(|core| core.forget_annotations());
        });
    }

    /// A device with its pools. Nobody waits for the device.
    pub fn picture(&self) -> Result<Picture> {
        self.at_one_moment(|cores| {
            self.history.note(Action::Snapshot, 0, self.stats.current(Family::ActiveBytes) as usize, 0, pools::Id::own());
            let mut pending = HashMap::new();
            for freed in cores.iter().flat_map(|core| core.freed_in_use()) {
                pending.try_reserve(1).map_err(|_| room::lacking(size_of::<(BlockId, &Pending)>(), WHAT))?;
                pending.insert(freed.block, freed);
            }
            // A pool that is paused has no memory.
            let there = cores.iter().filter(|core| !core.is_away());
            let mut areas: Vec<(&Core, &Area)> = Vec::new();
            for core in there {
                room::reserve(&mut areas, core.areas.len(), WHAT)?;
                areas.extend(core.areas.values().map(|area| (&**core, area)));
            }
            areas.sort_unstable_by_key(|(_, area)| area.base);
            let (mut segments, mut blocks) = (Vec::new(), Vec::new());
            areas.into_iter().try_for_each(|(core, area)| core.draw_area(area, &pending, &mut segments, &mut blocks))?;
            let history = self.history.draft(cores.iter().flat_map(|core| core.fronts.all()).filter_map(|front| front.writer()))?;
            Ok(Picture { segments, blocks, stats: self.stats.stats(), history })
        })
    }
}
