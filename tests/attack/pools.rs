//! Memory pools: shared ones, which lend, do not split, or have an allocator of their own; and those of one thread, which it pauses and resumes,
//! and which lend too.

use crate::checks::pool_stats;
use crate::model::Pool;
use crate::plan::Feature;
use crate::program::{Program, did, ok};
use crate::trail::note;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use tcuda::base::Status;
use tcuda::capi::pool::*;

impl Program {
    pub fn use_pools(&mut self) {
        match self.random.below(12) {
            0..=2 => self.make_pool(),
            3..=5 => self.open_one(),
            6..=7 => self.close_one(),
            8 => self.trim_pool(),
            9 => self.end_pool(),
            _ => self.pause_or_resume(),
        }
    }

    fn make_pool(&mut self) {
        const MOST: usize = 4;
        let pauses = self.has(Feature::Pauses) && (!self.has(Feature::Pools) || self.random.chance(50));
        let device = self.random.below(self.world.plan.devices) as i32;
        let lends = self.random.chance(50);
        let no_split = !pauses && self.random.chance(30);
        let with_plugin = !pauses && self.random.chance(40);
        let plugins = self.world.plugins.lock().unwrap();
        let plugin = if with_plugin { self.random.pick(&plugins) } else { None };
        let options = tcuda_mem_pool_options_t {
            struct_size: size_of::<tcuda_mem_pool_options_t>(),
            allocator: plugin.as_ref().map_or(null_mut(), |plugin| plugin.raw()),
            use_on_oom: lends.into(),
            no_split: no_split.into(),
        };
        let mut shared = self.world.pools.lock().unwrap();
        if shared.len().max(self.pools.len()) >= MOST {
            return;
        }
        let mut pool = null_mut();
        if did!(self, tcuda_mem_pool_create(&mut pool, device, &options)) {
            let with = plugin.as_ref().map(|plugin| plugin.handle);
            note!("pool {}: of {device}, pauses {pauses}, lends {lends}, no_split {no_split}, allocator {with:x?}", pool as usize);
            let pool = Pool::new(pool, device, pauses, no_split, plugin);
            if pauses { self.pools.push(pool) } else { shared.push(pool) }
        }
    }

    /// Those of all threads, and its own.
    pub fn known_pools(&self) -> Vec<Arc<Pool>> {
        let mut pools = self.world.pools.lock().unwrap().clone();
        pools.extend(self.pools.iter().cloned());
        pools
    }

    fn pick_pool(&mut self) -> Option<Arc<Pool>> {
        let pools = self.known_pools();
        self.random.pick(&pools)
    }

    fn open_one(&mut self) {
        const MOST: usize = 3;
        let Some(pool) = self.pick_pool().filter(|_| self.open.len() < MOST) else { return };
        let Some(gone) = pool.gone.try_read() else { return };
        if !*gone {
            note!("pool {} opens", pool.handle);
            ok!(tcuda_mem_pool_begin(pool.raw()));
            self.open.push(pool.clone());
        }
    }

    /// The newest, or another one.
    fn close_one(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = if self.random.chance(80) { self.open.len() - 1 } else { self.random.below(self.open.len()) };
        // What is meant is the newest time that it was opened.
        let at = self.open.iter().rposition(|pool| Arc::ptr_eq(pool, &self.open[at])).unwrap();
        let pool = self.open.remove(at);
        note!("pool {} closes", pool.handle);
        ok!(tcuda_mem_pool_end(pool.raw()));
    }

    fn trim_pool(&mut self) {
        let Some(pool) = self.pick_pool() else { return };
        let Some(gone) = pool.gone.try_read() else { return };
        if *gone {
            return;
        }
        note!("pool {} is trimmed", pool.handle);
        let status = tcuda_mem_pool_trim(pool.raw());
        let right: &[Status] = if pool.is_paused() { &[Status::TCUDA_ERROR_INVALID_STATE] } else { &[] };
        let _ = self.is_refused(status, right) || self.judge("tcuda_mem_pool_trim", status);
        let stats = pool_stats(&pool);
        let (reserved, active) = (stats.reserved_bytes.all.current, stats.active_bytes.all.current);
        assert!(
            pool.is_paused() || reserved >= active || self.world.plan.threads > 1,
            "a pool has {reserved} bytes, of which {active} are active"
        );
    }

    fn end_pool(&mut self) {
        let Some(pool) = self.pick_pool() else { return };
        let Some(mut gone) = pool.gone.try_write() else { return };
        if *gone {
            return;
        }
        note!("pool {} ends", pool.handle);
        let status = tcuda_mem_pool_destroy(pool.raw());
        // It is open somewhere, or paused with blocks in use.
        if self.is_refused(status, &[Status::TCUDA_ERROR_INVALID_STATE]) || !self.judge("tcuda_mem_pool_destroy", status) {
            return;
        }
        assert!(!self.open.iter().any(|open| Arc::ptr_eq(open, &pool)), "a pool ended that is open");
        *gone = true;
        self.forget_pool(&pool);
    }

    /// It has ended: its blocks are as any. Where it was paused it had none, and what it gave was lent to it by another pool.
    pub fn forget_pool(&mut self, pool: &Arc<Pool>) {
        for at in self.blocks_of(pool) {
            self.blocks[at].pool = None;
        }
        if pool.is_paused() {
            self.world.paused.fetch_sub(1, SeqCst);
        }
        self.pools.retain(|other| !Arc::ptr_eq(other, pool));
        self.world.pools.lock().unwrap().retain(|other| !Arc::ptr_eq(other, pool));
    }

    fn pause_or_resume(&mut self) {
        let pools = self.pools.clone();
        match self.random.pick(&pools) {
            Some(pool) if pool.is_paused() => self.resume(&pool),
            Some(pool) => self.pause(&pool),
            None => {}
        }
    }

    fn pause(&mut self, pool: &Arc<Pool>) {
        // Requests of this thread would all be refused.
        if self.open.iter().any(|open| Arc::ptr_eq(open, pool)) && self.random.chance(80) {
            return;
        }
        let mode = if self.random.chance(60) { TCUDA_PAUSE_KEEP } else { TCUDA_PAUSE_DROP };
        note!("pool {} is paused, mode {mode}", pool.handle);
        let mut given = 0;
        let status = unsafe { tcuda_mem_pool_pause(pool.raw(), &mut given, mode) };
        // It lent memory, or its memory is not virtual.
        let right = [Status::TCUDA_ERROR_INVALID_STATE, Status::TCUDA_ERROR_NOT_SUPPORTED];
        if self.is_refused(status, &right) || !self.judge("tcuda_mem_pool_pause", status) {
            return;
        }
        pool.set_paused(true);
        self.world.paused.fetch_add(1, SeqCst);
        if mode == TCUDA_PAUSE_DROP {
            for block in self.blocks_of(pool) {
                self.blocks[block].value = None;
            }
        }
        // Whatever it lent is not its own, and stays.
        if let Some(at) = self.pick_block() {
            let block = self.blocks.swap_remove(at);
            self.check(&block);
            self.blocks.push(block);
        }
    }

    pub fn resume(&mut self, pool: &Arc<Pool>) {
        note!("pool {} is resumed", pool.handle);
        if did!(self, tcuda_mem_pool_resume(pool.raw())) {
            pool.set_paused(false);
            self.world.paused.fetch_sub(1, SeqCst);
            for at in self.blocks_of(pool) {
                let block = self.blocks.swap_remove(at);
                if self.may_touch(&block) {
                    self.check(&block);
                }
                self.blocks.push(block);
                let last = self.blocks.len() - 1;
                self.blocks.swap(at, last);
            }
        }
    }

    fn blocks_of(&self, pool: &Arc<Pool>) -> Vec<usize> {
        let is_its = |at: &usize| self.blocks[*at].pool.as_ref().is_some_and(|of| Arc::ptr_eq(of, pool));
        (0..self.blocks.len()).filter(is_its).collect()
    }
}
