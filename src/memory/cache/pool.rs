//! The cache of a memory pool: a part of its device, with a beginning and an end.

use super::Cache;
use super::block::{self, BlockId, State};
use super::core::Core;
use super::physical::HandleId;
use super::shares::{Idle, Span};
use crate::base::Result;
use crate::memory::pools::Id;
use crate::memory::provider::Source;
use crate::memory::stats::Family;
use crate::memory::totals::Totals;
use crate::runtime::Runtime;
use parking_lot::MutexGuard;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

impl Cache {
    pub fn of_pool(number: u32, whole: &'static Cache, stats: &'static Totals) -> Result<Cache> {
        let cache = Cache::with(number, whole.device, stats, whole.history, whole.growing)?;
        cache.core.lock().whole = Some(&whole.core);
        Ok(cache)
    }

    /// Nothing is in it: a new pool may have it.
    pub fn become_pool(&self, id: Id, source: Source, no_split: bool) {
        let from_driver = matches!(source, Source::Driver);
        *self.source.lock() = Some(source);
        self.forget_abilities();
        let mut core = self.core.lock();
        core.no_split = no_split;
        // Where segments are handed out as they came, or a graph's replays use them, blocks come home at once.
        core.keeps_fronts = from_driver && !no_split && !self.is_fixed();
        core.pool = id;
        (core.ends, core.is_over) = (0, false);
        core.reset_peak();
        core.stats.reset_accumulated();
    }

    /// Nobody's until `become_pool`. It lets go of where its memory came from.
    pub fn forget_pool(&self) {
        *self.source.lock() = None;
        self.replayed.store(false, Relaxed);
        self.forget_abilities();
        self.core.lock().pool = Id::own();
    }

    /// Whether it has no memory, and nothing is left that the driver did not take.
    pub fn has_nothing(&self) -> bool {
        self.stats.current(Family::ReservedBytes) == 0 && self.left.is_empty()
    }

    /// The same with nothing in use, which what is paused may have.
    pub fn is_bare(&self) -> bool {
        self.has_nothing() && self.stats.active().bytes == 0
    }

    /// Nothing is made or mapped on the device while this lives.
    pub fn hold_growth(&self) -> MutexGuard<'_, ()> {
        self.growing.lock()
    }

    /// Whether the driver has it all back, addresses too.
    pub fn has_gone(&self) -> bool {
        self.is_bare() && self.core.quiet().areas.is_empty()
    }

    /// Gives back what is free and past, without waiting: nothing where nothing was left to give, and nothing has come since.
    pub fn release_past(&self, runtime: &Runtime) -> Result<()> {
        if self.core.quiet().is_spent() {
            return Ok(());
        }
        self.settle_all();
        self.release_free(runtime)?;
        // What is kept for another try may go the next time.
        if self.left.is_empty() && self.ordered.lock().is_none() {
            self.core.lock().note_spent();
        }
        Ok(())
    }
}

impl Core {
    /// Whether the cache is still that pool's, which was not destroyed.
    pub fn is_of(&self, pool: Id) -> bool {
        self.pool == pool && !self.is_over
    }

    fn is_spent(&self) -> bool {
        self.spent == Some(self.changes())
    }

    /// Whether there is only what is in use, with nothing that waits for a stream and nothing that could go.
    fn note_spent(&mut self) {
        self.collect();
        let waits = !self.pending.is_empty() || self.awake.iter().any(|slot| self.slots[*slot as usize].is_behind());
        let is_spent = !waits && !self.paused && self.stats.active().bytes > 0 && self.idle_handles(Idle::Large(0)).is_empty();
        self.spent = is_spent.then(|| self.changes());
    }

    /// Of the handles of a pool that is paused those that are to come back: where all was freed meanwhile, and is past, there is nothing to bring
    /// back for.
    pub fn without_idle(&mut self, mut handles: Vec<HandleId>) -> Vec<HandleId> {
        debug_assert!(self.paused);
        self.collect();
        let idle = self.idle_handles(Idle::Large(0));
        let gone: HashSet<HandleId> = idle.iter().map(|(handle, _)| *handle).collect();
        let spans: Vec<Span> = idle.iter().flat_map(|(_, spans)| spans.iter().copied()).collect();
        // Owned nowhere for a moment, so that all places are alike.
        self.cut_out_all(&spans).into_iter().for_each(|id| self.make_hole(id, State::Moved));
        for (handle, _) in idle {
            let size = self.physical[handle].size;
            for start in self.physical[handle].places.clone() {
                let place = self.take_moved(start, start + size, false).expect("no byte of the handle is owned anywhere");
                self.physical.unmap(start);
                self.make_hole(place, State::Unmapped);
            }
            self.physical.remove(handle);
        }
        handles.retain(|handle| !gone.contains(handle));
        handles
    }

    /// Paused for good, with nothing in use: its areas have no memory any more.
    pub fn drop_away(&mut self) {
        debug_assert!(self.paused);
        self.collect();
        let areas: Vec<BlockId> = self.areas.values().map(|area| area.first).collect();
        for first in areas {
            let blocks: Vec<BlockId> = block::chain(first).collect();
            blocks.iter().for_each(|id| self.detach(*id));
            blocks.iter().skip(1).for_each(|_| self.join(first));
            block::at(first).set_state(State::Busy);
            self.make_hole(first, State::Unmapped);
        }
        self.physical.clear();
        self.paused = false;
    }
}
