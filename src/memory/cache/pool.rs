//! The cache of a memory pool: a part of its device, with a beginning and an end.

use super::Cache;
use super::block::{self, BlockId, State};
use super::core::Core;
use crate::base::Result;
use crate::memory::pools::Id;
use crate::memory::provider::Source;
use crate::memory::stats::Family;
use crate::memory::totals::Totals;
use crate::runtime::Runtime;
use parking_lot::MutexGuard;
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
        core.ends = 0;
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

    /// Whether nothing of it is in use or held, and nothing is left that the driver did not take.
    pub fn is_bare(&self) -> bool {
        self.stats.current(Family::ReservedBytes) == 0 && self.stats.active().bytes == 0 && self.left.is_empty()
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
        let changes = {
            let core = self.core.quiet();
            if core.is_spent() {
                return Ok(());
            }
            core.changes()
        };
        self.settle_all();
        self.release_free(runtime)?;
        // What is kept back for a while may go the next time.
        if !self.is_paused() && !self.is_fixed() && self.left.is_empty() && self.ordered.lock().is_none() {
            self.core.lock().note_spent(changes);
        }
        Ok(())
    }
}

impl Core {
    fn is_spent(&self) -> bool {
        self.spent == Some(self.changes())
    }

    /// All that was free when so much had changed went back: only what is in use is here, and nothing of it waits for a stream.
    fn note_spent(&mut self, changes: u64) {
        let waits = !self.pending.is_empty() || self.awake.iter().any(|slot| self.slots[*slot as usize].is_behind());
        self.spent = (!waits && self.stats.active().bytes > 0).then_some(changes);
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
