//! The cache of a device as a whole, checked: what holds whenever nothing runs.

use super::areas;
use super::block::{self, NIL, State};
use super::core::{Core, ROUND};
use super::physical::{Backing, HandleId};
use crate::memory::lookup;
use crate::memory::stats::Family;

impl Core {
    /// Whoever asks whose an address is hears of this cache.
    pub fn check_areas(&self) {
        self.areas.keys().for_each(|base| assert_eq!(areas::caches_at(*base).next(), Some(self.number), "whose {base:#x} is"));
    }

    /// What the tests of the whole cache check after every step.
    pub fn check(&mut self) {
        self.collect();
        self.check_slots();
        self.stats.check_settled();
        let waiting = |slot: usize| self.pending.iter().flat_map(|pending| &pending.uses).filter(|(of, _)| *of as usize == slot).count();
        (0..self.slots.len())
            .for_each(|slot| assert_eq!(self.slots[slot].waiting, waiting(slot), "blocks that wait for a stream are counted"));
        let mut sums = (0, 0, 0);
        let (mut unmapped, mut moved) = (0, 0);
        let mut owned: Vec<(HandleId, usize, usize)> = Vec::new();
        for area in self.areas.values() {
            self.check_borders(area.first);
            let mut at = area.base;
            let mut last = NIL;
            for id in block::chain(area.first) {
                let block = block::at(id);
                assert_eq!((block.address(), block::left_of(id)), (at, last), "blocks cover their area without gaps");
                assert!(block.size() > 0 && block.size().is_multiple_of(ROUND));
                assert!(block.small() == area.small && block.mapped() != area.plain);
                if last != NIL && block.state() == State::Free && block::at(last).state() == State::Free {
                    assert_ne!(block::at(last).owner(), block.owner(), "free neighbours of a stream are one block");
                }
                match block.state() {
                    State::Allocated => sums.0 += block.size(),
                    State::Pending => sums.1 += block.size(),
                    State::Free => sums.2 += block.size(),
                    State::Unmapped => {
                        unmapped += 1;
                        assert_eq!(self.unmapped.get(&block.address()), Some(&id));
                    }
                    State::Moved => {
                        moved += 1;
                        assert_eq!(self.moved.get(&block.address()), Some(&id));
                    }
                    other => panic!("a block is {other:?} while nothing runs"),
                }
                let mut mapped = block.address();
                for mapping in self.physical.overlapping(block.address(), block.end()) {
                    assert!(mapping.start <= mapped, "no gap in what a block covers");
                    let (from, to) = (mapping.start.max(block.address()), mapping.end().min(block.end()));
                    if block.state() != State::Moved {
                        owned.push((mapping.handle, from - mapping.start, to - mapping.start));
                    }
                    mapped = to;
                }
                assert_eq!(mapped, if block.state() == State::Unmapped { block.address() } else { block.end() }, "memory behind a block");
                at = block.end();
                last = id;
            }
            assert_eq!(at, area.base + area.size);
        }
        assert_eq!((unmapped, moved), (self.unmapped.len(), self.moved.len()));
        owned.sort_unstable();
        let mut owned = owned.into_iter().peekable();
        let (mut reserved, mut handles) = (0, 0);
        for id in self.physical.ids() {
            let handle = &self.physical[id];
            let mut at = 0;
            while let Some((_, from, to)) = owned.next_if(|(of, ..)| *of == id) {
                assert_eq!(from, at, "every byte of a handle is owned once");
                at = to;
            }
            assert_eq!(at, handle.size, "every byte of a handle is owned");
            for place in &handle.places {
                assert!(self.physical.overlapping(*place, place + 1).any(|mapping| mapping.start == *place && mapping.handle == id));
                let in_pages = matches!(handle.backing, Backing::Virtual(_) | Backing::Away);
                assert!(
                    (*place..place + handle.size).step_by(lookup::GRANULARITY).all(|at| self.physical.has_page(at, *place) == in_pages)
                );
            }
            reserved += handle.size;
            handles += 1;
        }
        assert!(owned.next().is_none());
        let mapped: Vec<_> = self.physical.mappings().collect();
        assert_eq!(mapped.len(), self.physical.ids().map(|id| self.physical[id].places.len()).sum::<usize>());
        assert_eq!(mapped.iter().map(|mapping| mapping.size).sum::<usize>(), self.physical.mapped_bytes);
        let stats = self.stats.stats();
        let parts: Vec<_> = self.stats.parts().map(|part| part.stats()).collect();
        let stat = |family| (stats.current(family) - parts.iter().map(|part| part.current(family)).sum::<i64>()) as usize;
        assert_eq!(sums.0, stat(Family::AllocatedBytes));
        assert_eq!(sums.0 + sums.1, stat(Family::ActiveBytes));
        assert_eq!(sums.0 + sums.1 + sums.2, stat(Family::ReservedBytes) - self.ordered_spare);
        assert_eq!((reserved + self.ordered_spare, handles), (stat(Family::ReservedBytes), stat(Family::Segment)));
    }
}
