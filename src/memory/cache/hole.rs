//! Addresses with no memory of their own: how free memory is taken out of its blocks, and what stays there.

use super::block::{self, BlockId, NIL, State};
use super::core::Core;
use super::shares::Span;
use super::slot::COMMON;
use crate::runtime::Address;
use smallvec::SmallVec;

impl Core {
    /// Out of the list that it is in by its state.
    pub fn detach(&mut self, id: BlockId) {
        let address = block::at(id).address();
        match block::at(id).state() {
            State::Free => self.list_remove(id),
            State::Unmapped => drop(self.unmapped.remove(&address)),
            State::Moved => drop(self.moved.remove(&address)),
            _ => {}
        }
    }

    fn attach(&mut self, id: BlockId) {
        let address = block::at(id).address();
        match block::at(id).state() {
            State::Free => self.list_insert(id),
            State::Unmapped => drop(self.unmapped.insert(address, id)),
            State::Moved => drop(self.moved.insert(address, id)),
            _ => {}
        }
    }

    /// Takes a range out of a block, which keeps what lies before it: a block of its own, in no list, as what is in the driver's hands.
    pub fn cut_out(&mut self, mut id: BlockId, from: Address, to: Address) -> BlockId {
        debug_assert!(block::at(id).address() <= from && to <= block::at(id).end() && from < to);
        self.detach(id);
        if to < block::at(id).end() {
            let rest = self.split(id, to - block::at(id).address());
            self.attach(rest);
        }
        if from > block::at(id).address() {
            let right = self.split(id, from - block::at(id).address());
            self.attach(id);
            id = right;
        }
        block::at(id).set_state(State::Busy);
        id
    }

    /// Takes ranges out of free blocks; each becomes a block in the driver's hands. The answer is in the order of the ranges.
    pub fn cut_out_all(&mut self, spans: &[Span]) -> Vec<BlockId> {
        let mut order: Vec<usize> = (0..spans.len()).collect();
        // From the right: a block keeps its name for what lies before the cut.
        order.sort_unstable_by_key(|at| std::cmp::Reverse(spans[*at].from));
        let mut cut = vec![NIL; spans.len()];
        for at in order {
            let Span { block, from, to } = spans[at];
            cut[at] = self.cut_out(block, from, to);
        }
        cut
    }

    /// A block in the driver's hands has no memory of its own, or none at all; joined with its like.
    pub fn make_hole(&mut self, mut id: BlockId, state: State) {
        if state == State::Unmapped {
            id = self.hand_over(id, COMMON);
            block::at(id).set_ticket(0);
        }
        block::at(id).set_state(state);
        let like = |id: BlockId, other: BlockId| {
            other != NIL && block::at(other).state() == state && block::at(other).owner() == block::at(id).owner()
        };
        let next = block::at(id).next();
        if like(id, next) {
            self.detach(next);
            self.join(id);
        }
        let prev = block::at(id).prev();
        if like(id, prev) {
            self.detach(prev);
            self.join(prev);
            id = prev;
        }
        self.attach(id);
    }

    /// What a cut-out block had is owned elsewhere from now on, or nowhere for a moment; it stays mapped here.
    pub fn disown(&mut self, id: BlockId) {
        self.tell_memory(id, false);
        self.make_hole(id, State::Moved);
    }

    /// The moved blocks that cover a range, cut out and joined. None, and nothing changed: something else lies there, or with `past`
    /// something that may still be in use.
    pub fn take_moved(&mut self, from: Address, to: Address, past: bool) -> Option<BlockId> {
        let first = *self.moved.range(..=from).next_back()?.1;
        let mut covering: SmallVec<[BlockId; 8]> = SmallVec::new();
        for id in block::chain(first) {
            let block = block::at(id);
            if block.address() >= to {
                break;
            }
            if block.state() != State::Moved || block.end() <= from || (past && !self.is_past(id)) {
                return None;
            }
            covering.push(id);
        }
        let mut whole = NIL;
        for id in covering {
            let block = block::at(id);
            let (start, end) = (block.address().max(from), block.end().min(to));
            let id = self.cut_out(id, start, end);
            if whole == NIL { whole = id } else { self.join(whole) }
        }
        // Of several streams, whose epochs say nothing of each other.
        if past {
            block::at(whole).set_ticket(0);
        }
        Some(whole)
    }
}
