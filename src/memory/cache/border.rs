//! Where memory of one stream meets that of another, and how it passes from one to the other: with all fronts stopped, or in the region of a
//! thread that holds both homes. `block` says what fences are for. Nothing hangs on them but time: where there is none, or no record to be had,
//! neighbours know each other directly.

use super::StreamSlot;
use super::block::{self, BlockId, Fences, NIL};
use super::core::Core;
use super::home::Shelf;
use super::slot::{COMMON, slot_of_block};
use std::collections::HashMap;

/// A part of a free block becomes another stream's, `some` of it, at least `units`, which are cut out; in the region of a thread that holds both
/// homes: as `hand_over`, but of what third streams have beside it no block is written, only the fence between. None: not this one, or there is no
/// record.
pub(super) fn take(to: &mut Shelf, from: &mut Shelf, id: BlockId, units: u32, some: u32, small: bool) -> Option<BlockId> {
    let table = block::table();
    let (before, left) = (block::fence_before(id), block::left_of(id));
    let meets = match before {
        Some(fence) => block::slots_at(fence)[0] == to.slot,
        None => left != NIL && slot_of_block(left) == to.slot,
    };
    // What has no memory of its own is everybody's too, and no fence stands there.
    let follows = before.is_none() && left != NIL && slot_of_block(left) == from.slot;
    // A third stream's block, and an area that begins here, know this one by its record.
    if before.is_none() && !meets && !follows || !table.at(id).mapped() {
        return None;
    }
    let own = to.pool.spare()?;
    if from.cut::<false>(table, id, some.clamp(units, table.at(id).units()), small).is_none() {
        to.pool.put(table, own);
        return None;
    }
    table.at(own).become_like(table.at(id));
    match before {
        Some(fence) if !meets => block::link_right(fence, own, to.slot),
        None if follows => link(&mut from.fences, [left, own], [from.slot, to.slot]),
        fence => {
            block::link(left, own);
            fence.into_iter().for_each(|fence| from.fences.put(fence));
        }
    }
    let (behind, right) = (block::fence_behind(id), block::right_of(id));
    match behind {
        Some(fence) if block::slots_at(fence)[1] != to.slot => block::link_left(own, fence, to.slot),
        Some(fence) => {
            block::link(own, right);
            from.fences.put(fence);
        }
        None if right != NIL && slot_of_block(right) == from.slot => link(&mut from.fences, [own, right], [to.slot, from.slot]),
        None => block::link(own, right),
    }
    from.pool.put(table, id);
    let id = to.join_free::<false>(table, own, small);
    to.cut::<false>(table, id, units, small)
}

/// Makes two blocks neighbours, with a fence between them if there is one to be had.
fn link(fences: &mut Fences, [left, right]: [BlockId; 2], slots: [StreamSlot; 2]) {
    match fences.take() {
        Some(fence) => block::link_by(fence, left, right, slots),
        None => block::link(left, right),
    }
}

impl Core {
    // ---- blocks that are in no list

    /// Cuts a block; the answer is the right part.
    pub fn split(&mut self, id: BlockId, size: usize) -> BlockId {
        let owner = block::at(id).owner();
        let units = (size >> block::UNIT_SHIFT) as u32;
        let pool = &mut self.shelf(owner).pool;
        pool.insist();
        pool.split(block::table(), id, units).expect("some records are left for who has the lock")
    }

    /// Joins a block with its right neighbour, whosever that is.
    pub fn join(&mut self, id: BlockId) {
        let owner = block::at(id).owner();
        self.hand_over(block::right_of(id), owner);
        self.shelf(owner).pool.join(block::table(), id);
    }

    /// The block is the stream's from now on, and has one of the stream's records: whoever holds a home writes to no line of memory
    /// that has records of two.
    pub fn hand_over(&mut self, id: BlockId, slot: StreamSlot) -> BlockId {
        let from = block::at(id).owner();
        if from == slot {
            return id;
        }
        let (left, right) = (block::left_of(id), block::right_of(id));
        self.unlink(id);
        block::at(id).set_owner(slot);
        let own = self.shelf(slot).pool.spare().inspect(|own| {
            block::at(*own).become_like(block::at(id));
            self.shelf(from).pool.put(block::table(), id);
        });
        let id = own.unwrap_or(id);
        if left == NIL
            && let Some(area) = self.areas.get_mut(&block::at(id).address())
        {
            area.first = id;
        }
        self.link(left, id);
        self.link(id, right);
        id
    }

    /// Blocks that became another stream's as they were took their records with them. As many go back, or a stream whose blocks all end
    /// so would take new ones for ever.
    pub(super) fn give_records_back(&mut self) {
        for ((debtor, creditor), count) in std::mem::take(&mut self.debts) {
            let given = (0..count).take_while(|_| {
                let id = self.shelf(debtor).pool.unused();
                id.inspect(|id| self.shelf(creditor).pool.put(block::table(), *id)).is_some()
            });
            let rest = count - given.count() as u32;
            if rest > 0 {
                self.debts.insert((debtor, creditor), rest);
            }
        }
    }

    /// The block ends, with its stream's stretch of addresses or with all of them.
    pub(super) fn put_record(&mut self, id: BlockId) {
        let slot = slot_of_block(id);
        self.shelf(slot).pool.put(block::table(), id);
    }

    // ---- fences

    pub(super) fn put_fence(&mut self, fence: BlockId) {
        self.shelf(COMMON).fences.put(fence);
    }

    /// Takes away the fences beside a block, whose neighbours are linked to nothing then.
    fn unlink(&mut self, id: BlockId) {
        [block::fence_before(id), block::fence_behind(id)].into_iter().flatten().for_each(|fence| self.put_fence(fence));
    }

    /// Makes two blocks neighbours, of which one may be none, with a fence where they are of two streams.
    fn link(&mut self, left: BlockId, right: BlockId) {
        if left == NIL || right == NIL {
            return block::link(left, right);
        }
        match (slot_of_block(left), slot_of_block(right)) {
            (one, other) if one != other => link(&mut self.shelf(COMMON).fences, [left, right], [one, other]),
            _ => block::link(left, right),
        }
    }

    /// A block that was handed out has become another stream's, and nobody changes what stands beside it, but a thread that takes what is
    /// everybody's. Threads go on unless there is one, or a fence would stand between blocks of one stream then, which could not be joined.
    pub(super) fn move_border(&mut self, id: BlockId, from: StreamSlot, slot: StreamSlot) {
        self.strays += 1;
        *self.debts.entry((slot, from)).or_default() += 1;
        let meets = |face| block::at(block::twin(face)).ticket() == u32::from(slot);
        if !self.fronts.is_stopped() && (self.is_as_one() || block::faces(id).any(meets)) {
            self.fronts.stop();
        }
        if self.fronts.is_stopped() {
            let (left, right) = (block::left_of(id), block::right_of(id));
            self.unlink(id);
            self.link(left, id);
            self.link(id, right);
        } else {
            block::faces(id).for_each(|face| block::at(face).set_ticket(u32::from(slot)));
        }
    }

    /// What tests check of the blocks from one on: fences stand where streams meet and nowhere else, and no line has records of two streams.
    pub(super) fn check_borders(&self, first: BlockId) {
        let mut lines: HashMap<u32, StreamSlot> = HashMap::new();
        let mut unfenced = 0;
        for left in block::chain(first) {
            let (right, slot) = (block::right_of(left), slot_of_block(left));
            assert!(*lines.entry(left / 2).or_insert(slot) == slot || self.strays > 0, "a line has records of two streams");
            if right == NIL {
                assert_eq!(block::fence_behind(left), None, "a fence at the end");
                continue;
            }
            let slots = [slot, slot_of_block(right)];
            assert_eq!(block::left_of(right), left, "neighbours know each other");
            match block::fence_behind(left) {
                Some(fence) => {
                    assert_ne!(slots[0], slots[1], "a fence inside a stream's memory");
                    assert_eq!((block::slots_at(fence), block::at(right).prev()), (slots, block::twin(fence)), "what a fence knows");
                }
                None => unfenced += usize::from(slots[0] != slots[1]),
            }
        }
        assert!(unfenced <= 2 * self.strays, "{unfenced} borders without a fence");
    }
}
