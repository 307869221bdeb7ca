//! Whether a snapshot contradicts itself. For tests.

use super::{Action, Segment, Snapshot, Use};
use crate::memory::stats::Family;
use std::collections::BTreeMap;

impl Snapshot {
    /// Panics if the blocks of a device do not cover its segments, or are not what the statistics were at that moment.
    #[doc(hidden)]
    pub fn check(&self, device: usize) {
        let (mut sums, mut end) = ([0; 4], 0);
        for segment in self.segments_of(device) {
            assert!(segment.address >= end, "segments lie one behind the other");
            end = segment.address + segment.size;
            let (mut own, mut at) = ([0; 4], segment.address);
            for block in self.blocks_of(segment) {
                assert_eq!(block.address, at, "no gap between blocks");
                assert!(block.size > 0 && block.requested <= block.size);
                assert_eq!(block.requested > 0, block.state != Use::Inactive);
                at += block.size;
                own[0] += block.size;
                own[1] += if block.state == Use::Allocated { block.size } else { 0 };
                own[2] += if block.state != Use::Inactive { block.size } else { 0 };
                own[3] += block.requested;
            }
            assert_eq!(at, end, "blocks cover their segment");
            assert_eq!(own, [segment.size, segment.allocated, segment.active, segment.requested]);
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let families = [Family::ReservedBytes, Family::AllocatedBytes, Family::ActiveBytes, Family::RequestedBytes];
        assert_eq!(sums, families.map(|family| self.stats[device].current(family) as usize), "what the statistics say");
    }

    /// Panics if the entries, which began with an empty cache, do not lead to what is there.
    #[doc(hidden)]
    pub fn check_history(&self, device: usize) {
        let trace = &self.traces[device];
        assert_eq!(trace.lost, 0);
        // Starts and ends of what is mapped, neighbours joined; blocks in use with their sizes, and whether their free was asked for.
        let mut mapped: BTreeMap<u64, u64> = BTreeMap::new();
        let mut blocks: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        for entry in &trace.entries {
            let (address, size) = (entry.address(), entry.record.size);
            match entry.record.action {
                Action::SegmentAlloc | Action::SegmentMap => map(&mut mapped, address, address + size),
                Action::SegmentFree | Action::SegmentUnmap => unmap(&mut mapped, address, address + size),
                Action::Alloc => {
                    let last = blocks.range(..address + size).next_back();
                    assert!(last.is_none_or(|(start, (size, _))| start + size <= address), "two blocks in one place");
                    let run = mapped.range(..=address).next_back();
                    assert!(run.is_some_and(|(_, end)| address + size <= *end), "a block lies in memory");
                    blocks.insert(address, (size, false));
                }
                Action::FreeRequested => assert_eq!(blocks.insert(address, (size, true)), Some((size, false)), "a block in use is freed"),
                Action::FreeCompleted => assert_eq!(blocks.remove(&address), Some((size, true)), "what was freed is free"),
                Action::Snapshot | Action::Oom | Action::UserDefined => {}
            }
        }
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        // Plain segments may lie side by side.
        let all = self.segments_of(device).map(|segment| (segment.address as u64, (segment.address + segment.size) as u64));
        all.for_each(|(from, to)| map(&mut held, from, to));
        assert_eq!(mapped, held, "what was mapped is held");
        let there = self.segments_of(device).flat_map(|segment| self.blocks_of(segment)).filter(|block| block.state != Use::Inactive);
        let there = there.map(|block| (block.address as u64, (block.requested as u64, block.state == Use::PendingFree)));
        assert_eq!(blocks, there.collect(), "what was allocated is in use");
    }

    fn segments_of(&self, device: usize) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |segment| segment.device as usize == device)
    }
}

fn map(mapped: &mut BTreeMap<u64, u64>, mut from: u64, mut to: u64) {
    let before = mapped.range(..to).next_back().map(|(start, end)| (*start, *end));
    assert!(before.is_none_or(|(_, end)| end <= from), "memory comes to where there was none");
    if let Some((start, _)) = before.filter(|(_, end)| *end == from) {
        from = start;
    }
    if let Some(end) = mapped.remove(&to) {
        to = end;
    }
    mapped.insert(from, to);
}

fn unmap(mapped: &mut BTreeMap<u64, u64>, from: u64, to: u64) {
    let run = mapped.range(..=from).next_back().map(|(start, end)| (*start, *end)).filter(|(_, end)| to <= *end);
    let (start, end) = run.expect("memory that goes was there");
    mapped.remove(&start);
    mapped.extend((start < from).then_some((start, from)));
    mapped.extend((to < end).then_some((to, end)));
}
