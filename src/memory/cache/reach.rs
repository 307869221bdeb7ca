//! Whose free memory a stream may have, what of it lies in a row, and how the stream takes that.

use super::StreamSlot;
use super::block::{self, BlockId, NIL, State};
use super::core::{Core, Request, SOME_OF_MANY};
use super::order::Serial;
use super::shares::LOOK_AT;
use super::slot::COMMON;
use crate::memory::lookup;
use crate::runtime::Address;
use std::collections::VecDeque;

/// Whose free memory a stream may have: its own and what is nobody's; unless it keeps `apart` what is past too, and what it was made to wait
/// for, up to a count of each stream.
#[derive(Clone, Copy)]
pub struct Reach<'a> {
    pub slot: StreamSlot,
    pub waited: &'a [Waited],
    pub apart: bool,
}

impl Reach<'_> {
    pub fn of(slot: StreamSlot) -> Reach<'static> {
        Reach { slot, waited: &[], apart: false }
    }
}

/// What of a stream comes before: its frees up to an epoch, as long as its epochs do not begin anew.
pub struct Waited {
    pub slot: StreamSlot,
    pub serial: Serial,
    pub count: u32,
}

impl Core {
    // ---- whose it is

    pub fn reaches(&self, reach: &Reach, id: BlockId) -> bool {
        let block = block::at(id);
        if reach.apart {
            return [reach.slot, COMMON].contains(&block.owner());
        }
        block.owner() == reach.slot
            || self.is_past(id)
            || reach.waited.iter().any(|before| {
                let slot = before.slot;
                slot == block.owner() && block.ticket() <= before.count && self.slots[slot as usize].serial == before.serial
            })
    }

    pub fn is_free(&self, reach: &Reach, id: BlockId) -> bool {
        id != NIL && block::at(id).state() == State::Free && self.reaches(reach, id)
    }

    /// The free blocks of a kind that are within reach, of the largest `most` of each stream.
    fn free_within<'a>(&'a self, reach: &'a Reach, small: bool, most: usize) -> impl Iterator<Item = BlockId> + 'a {
        let lists = self.awake.iter().map(move |slot| self.list(*slot, small));
        lists.flat_map(move |list| list.iter().take(most)).filter(|id| self.reaches(reach, *id))
    }

    /// Bytes that waiting for other streams would bring into reach.
    pub fn free_of(&self, reach: &Reach) -> usize {
        let waited = |id: &BlockId| block::at(*id).owner() != reach.slot && !self.is_past(*id);
        let both = [false, true].into_iter().flat_map(|small| self.free_within(reach, small, usize::MAX));
        both.filter(waited).map(|id| block::at(id).size()).sum()
    }

    // ---- in a row

    /// Neighbouring free blocks of a kind, the shortest run with so many bytes. Empty: there is none.
    pub fn find_run(&self, reach: &Reach, small: bool, enough: usize) -> Vec<BlockId> {
        self.find_run_among(reach, small, usize::MAX, enough)
    }

    /// The same where one of the largest `most` of a stream is in it.
    fn find_run_among(&self, reach: &Reach, small: bool, most: usize, enough: usize) -> Vec<BlockId> {
        let mut best: Vec<BlockId> = Vec::new();
        let mut best_size = usize::MAX;
        // Neighbours of one slot are one block, so every run of several has one that is not common.
        let has_free = |slot: StreamSlot| !self.list(slot, small).is_empty();
        let mut others = self.awake.iter().copied().filter(|slot| ![COMMON, reach.slot].contains(slot));
        if ![COMMON, reach.slot].into_iter().all(has_free) && !others.any(has_free) {
            return best;
        }
        let mut run: VecDeque<BlockId> = VecDeque::new();
        let firsts = self.free_within(reach, small, most).filter(|id| block::at(*id).owner() != COMMON);
        for mut first in firsts {
            let mut before = block::left_of(first);
            if self.is_free(reach, before) && block::at(before).owner() == COMMON {
                first = before;
                before = block::left_of(first);
            }
            if self.is_free(reach, before) {
                continue;
            }
            run.clear();
            let mut size = 0;
            for id in block::chain(first).take_while(|id| self.is_free(reach, *id)) {
                run.push_back(id);
                size += block::at(id).size();
                while let Some(front) = run.front().filter(|front| size - block::at(**front).size() >= enough) {
                    size -= block::at(*front).size();
                    run.pop_front();
                }
                if size >= enough && size < best_size {
                    best_size = size;
                    best = run.iter().copied().collect();
                }
            }
        }
        best
    }

    // ---- taken

    /// What is within reach and fits, nothing made or mapped for it.
    pub fn search(&mut self, reach: &Reach, request: &Request) -> Option<Address> {
        if let Some(address) = self.allocate(reach.slot, request, true) {
            return Some(address);
        }
        if self.is_small_of_threads(request) && self.take_some(reach, request) {
            return self.allocate(reach.slot, request, true);
        }
        let run = self.find_run(reach, request.small, request.search);
        if run.is_empty() {
            return None;
        }
        self.take_over(&run, reach, request.small, request.search);
        self.allocate(reach.slot, request, true)
    }

    /// For a small block of one of several threads, and those that follow it: a MiB in a row, else in pieces that fit. To look for each block alone
    /// would cost all threads a walk through all that the others have.
    fn take_some(&mut self, reach: &Reach, request: &Request) -> bool {
        let some = request.search.max(SOME_OF_MANY);
        let run = self.find_run_among(reach, true, LOOK_AT, some);
        if !run.is_empty() {
            self.take_over(&run, reach, true, some);
            return true;
        }
        let fits = |id: &BlockId| block::at(*id).owner() != reach.slot && block::at(*id).size() >= request.search;
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        for id in self.free_within(reach, true, LOOK_AT).filter(fits) {
            pieces.push(id);
            bytes += block::at(id).size();
            if bytes >= some {
                break;
            }
        }
        if pieces.is_empty() {
            return false;
        }
        let ticket = self.ticket_of_taken(reach);
        for id in pieces {
            self.list_remove(id);
            self.make_free_of(id, reach.slot, ticket);
        }
        true
    }

    /// The ticket of memory that a stream took from another: past, unless the stream was made to wait for it.
    pub fn ticket_of_taken(&mut self, reach: &Reach) -> u32 {
        if reach.waited.is_empty() { 0 } else { self.note_free(reach.slot) }
    }

    /// Moves free blocks to the stream, of the run's ends no more than so many bytes need.
    fn take_over(&mut self, run: &[BlockId], reach: &Reach, small: bool, bytes: usize) {
        let slot = reach.slot;
        let ticket = self.ticket_of_taken(reach);
        let whole: usize = run.iter().map(|id| block::at(*id).size()).sum();
        let mut surplus = if self.no_split { 0 } else { whole - bytes };
        let line = if small && self.fronts.are_shared() { lookup::LINE } else { block::UNIT };
        // From the last block on: what is cut off right stays where it was, and joining ends only blocks that come later in the run.
        for (at, id) in run.iter().enumerate().rev() {
            let mut id = *id;
            let size = block::at(id).size();
            if block::at(id).owner() == slot {
                continue;
            }
            self.list_remove(id);
            let (start, end) = (block::at(id).address(), block::at(id).end());
            if surplus > 0 && at == run.len() - 1 && surplus < size {
                let upto = (end - surplus).next_multiple_of(line);
                if upto < end {
                    let rest = self.split(id, upto - start);
                    self.list_insert(rest);
                }
                surplus = 0;
            } else if surplus > 0 && at == 0 && surplus < size {
                let from = (start + surplus) / line * line;
                if from > start {
                    let rest = id;
                    id = self.split(id, from - start);
                    self.list_insert(rest);
                }
                surplus = 0;
            }
            self.make_free_of(id, slot, ticket);
        }
    }
}
