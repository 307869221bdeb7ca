//! Where free memory rests.
//!
//! What was mapped a second time for one request lies in pieces for the next one. Back where each handle was mapped first it lies in a row
//! again, and hangs on what is in use now, not on what was. So a program that does the same again finds the same, down to the mappings
//! that were made for it the last time; they are taken again (`runs`), and each round needs the driver less than the one before.

use super::block;
use super::core::Core;
use super::physical::HandleId;
use super::shares::{LOOK_AT, Span, Stretch, joined};
use super::slot::{COMMON, StreamKey};
use super::{Cache, StreamSlot};
use crate::memory::provider;
use crate::runtime::Address;
use crate::stream::Stream;

/// Whose free memory it is, and the count of its last use.
type Owner = (StreamSlot, u32);

/// Free blocks that are put in order before a round is over.
const FEW: usize = 1 << 10;
/// So many parts of free blocks go home at once: each needs two records where it was, and two where it comes to.
const SPANS: usize = 1 << 11;

/// A handle on its way to where it was mapped first.
struct Going {
    handle: HandleId,
    from: Address,
    to: Address,
    owner: Owner,
    /// Nothing lies before it.
    leads: bool,
}

impl Core {
    /// Handles that are free as a whole go back there, as far as they lie in the largest `most` blocks of each stream; the next time those
    /// for whose records there may be no room now.
    pub fn go_home(&mut self, most: usize, asks: StreamSlot) {
        if self.moved.is_empty() || self.paused || !block::has_room() {
            return;
        }
        let away = self.away_handles(most);
        let mut leaving: Vec<Span> = Vec::with_capacity(away.len());
        let mut going: Vec<Going> = Vec::with_capacity(away.len());
        for of_handle in away.chunk_by(|one, next| one.handle == next.handle) {
            let Some(owner) = self.owner_of_all(of_handle, asks) else { continue };
            if leaving.len() + of_handle.len() > SPANS {
                break;
            }
            let handle = of_handle[0].handle;
            let (from, size) = (self.physical[handle].places[0], self.physical[handle].size);
            going.push(Going { handle, from, to: from + size, owner, leads: self.areas.contains_key(&from) });
            leaving.extend(of_handle.iter().map(Stretch::span));
        }
        // Owned nowhere for a moment, so that all places are alike.
        self.cut_out_all(&joined(leaving)).into_iter().for_each(|id| self.disown(id));
        for row in going.chunk_by(|one, next| one.to == next.from && one.owner == next.owner && !next.leads) {
            let id = self.take_moved(row[0].from, row[row.len() - 1].to, false).expect("no byte of the handles is owned anywhere");
            row.iter().for_each(|going| self.recount(going.handle, block::at(id).small()));
            self.tell_memory(id, true);
            let (owner, ticket) = row[0].owner;
            self.make_free_of(id, owner, ticket);
        }
    }

    /// Whose the bytes would be together: nobody's if they are past, else the one stream's that may still use some. None: there are two, or
    /// what is nobody's would become a stream's that does not ask for it. While streams keep apart what is one's alone stays his.
    fn owner_of_all(&self, stretches: &[Stretch], asks: StreamSlot) -> Option<Owner> {
        let blocks = || stretches.iter().map(|stretch| block::at(stretch.block));
        let mut owners = blocks().map(|block| block.owner());
        if let (true, Some(first)) = (self.policy.is_apart(), owners.next())
            && owners.all(|owner| owner == first)
        {
            return Some((first, blocks().map(|block| block.ticket()).max().unwrap_or(0)));
        }
        let (mut owner, mut ticket, mut common) = (COMMON, 0, false);
        for id in stretches.iter().map(|stretch| stretch.block) {
            if self.is_past(id) {
                common = true;
                continue;
            }
            let block = block::at(id);
            if owner != COMMON && owner != block.owner() {
                return None;
            }
            owner = block.owner();
            ticket = block.ticket().max(ticket);
        }
        (!common || owner == COMMON || owner == asks).then_some((owner, ticket))
    }

    /// Where a stream has no more than so many free blocks, those that fit alike are taken by address from now on.
    fn forget_order(&mut self, most: usize) {
        (0..self.awake.len()).for_each(|at| self.shelf(self.awake[at]).forget_order(most));
    }

    /// With so much in use: when free memory comes to rest. Plain segments cannot be mapped elsewhere, and to put them in order among those in use
    /// only tears them: at a round's end.
    pub(super) fn floor(&self, in_use: usize) -> usize {
        let is_virtual = self.areas.values().any(|area| !area.plain);
        if is_virtual { self.policy.floor(in_use) } else { self.policy.little() }
    }
}

impl Cache {
    /// After a request that found no room: as less is in use, what is free comes to rest, before it is handed out again. Where a round has
    /// its least is not known, so that it does each time that a quarter less is in use. When that is little the round is over, and what is where,
    /// whose it is and which sizes come back is as it was when it began, so that the next one repeats it.
    pub fn rest(&self, stream: Stream) {
        // A provider's function may come here, under the locks of those that wait for it.
        if provider::refuse_inside().is_err() {
            return;
        }
        let Some(floor) = self.stats.take_low() else { return };
        // Who finds free memory waits for nobody's driver: then it stays where it is until the next time.
        let Some(_growing) = self.growing.try_lock() else { return self.stats.watch_again(floor) };
        let key = StreamKey::of(stream);
        let (slot, asks) = {
            let core = self.core.quiet();
            let slot = core.find_slot(key).unwrap_or(COMMON);
            // At the end what the stream freed itself is to be everybody's too; while it is the only one nobody is asked.
            let at_end = core.streams() > 1 && core.policy.is_over(core.stats.large_now().min(floor as usize));
            (slot, if at_end { COMMON } else { slot })
        };
        // Where nothing was mapped twice as well: what is past for all lies in a row.
        self.settle(asks);
        let mut core = self.core.lock();
        core.go_home(usize::MAX, slot);
        core.leave_common();
        core.forget_order(FEW);
        let frees = core.stats.frees();
        core.policy.ebbs(frees);
        // Since that was noticed other threads may have more in use again: each time the floor is lower.
        let now = core.stats.large_now();
        let in_use = now.min(floor as usize);
        if core.policy.is_over(in_use) {
            core.align_habits();
            core.forget_order(usize::MAX);
            core.policy.rests(frees);
            // Those have a round of their own, which is watched since they found no room.
            if now <= in_use {
                let floor = core.policy.floor_of_little(in_use);
                core.stats.watch_for(floor, now);
            }
        } else {
            let floor = core.floor(in_use);
            core.stats.watch_for(floor, now);
        }
    }

    /// Handles that were mapped elsewhere go back where nothing keeps them.
    pub(super) fn go_home(&self, slot: StreamSlot) {
        // What is in the driver's hands is nobody's to move.
        let _growing = self.growing.lock();
        self.core.lock().go_home(LOOK_AT, slot);
    }

    /// The same, once what is past of streams that keep apart was made everybody's.
    pub(super) fn share_and_go_home(&self, slot: StreamSlot) {
        let _growing = self.growing.lock();
        let mut core = self.core.lock();
        if core.policy.is_apart() {
            core.share_all_past();
        }
        core.go_home(LOOK_AT, slot);
    }
}
