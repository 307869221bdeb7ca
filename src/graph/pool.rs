//! Private pools: which there are, and which graphs use them. Graphs with one pool share its memory and are replayed one after the other.

use crate::base::{Error, Result, handles};
use crate::memory::pools;
use crate::memory::stats::Stats;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;

/// torch's: (n, 0) was made for a graph, (0, n) by `handle`. All zero: a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PoolId {
    pub first: u64,
    pub second: u64,
}

struct Used {
    device: i32,
    by: usize,
}

/// By number: (n, 0) and (0, n) are one pool.
static USED: Mutex<BTreeMap<u64, Used>> = Mutex::new(BTreeMap::new());

impl PoolId {
    /// By which memory knows it.
    pub fn number(self) -> u64 {
        self.first.max(self.second)
    }

    /// Of the form that numbers of pools have.
    fn is_one(self) -> bool {
        (self.first == 0) != (self.second == 0)
    }
}

/// A pool to share that has no graph yet.
pub fn handle() -> PoolId {
    PoolId { first: 0, second: pools::reserve_id() }
}

/// A graph's use of a pool, which is there as long as it is used.
pub struct Use(pub PoolId);

impl Use {
    pub fn of(id: PoolId, device: i32) -> Result<Use> {
        let is_new = id.number() == 0;
        let id = if is_new { PoolId { first: handles::number() as u64, second: 0 } } else { id };
        let number = id.number();
        // Before the lock, which those take that are given back.
        pools::prepare()?;
        pools::sweep(device);
        let mut used = USED.lock();
        match used.get_mut(&number).filter(|_| id.is_one()) {
            Some(known) if known.device != device => {
                let text = format!(
                    "The graph pool ({}, {}) is on device {}; the graph is captured on device {device}. Take a pool for each device.",
                    id.first, id.second, known.device
                );
                return Err(Error::invalid_argument(text).on_device(device));
            }
            Some(known) => known.by += 1,
            None if is_new || (id.is_one() && pools::is_reserved(number)) => {
                pools::create_private(device, pools::Id::new(id.first, id.second))?;
                used.insert(number, Used { device, by: 1 });
            }
            None => {
                let PoolId { first, second } = id;
                let text = format!(
                    "({first}, {second}) is the number of no graph pool. Give that of tcuda_graph_pool or tcuda_graph_pool_handle, or all zero."
                );
                return Err(Error::invalid_argument(text));
            }
        }
        Ok(Use(id))
    }

    /// Another one of the same pool.
    pub fn again(&self) -> Use {
        if let Some(used) = USED.lock().get_mut(&self.0.number()) {
            used.by += 1;
        }
        Use(self.0)
    }

    /// Its end. What is free by that goes back with the next sweep.
    pub fn leave(self) {
        ManuallyDrop::new(self).end();
    }

    /// It was the last: the device of the pool.
    fn end(&self) -> Option<i32> {
        let mut used = USED.lock();
        let known = used.get_mut(&self.0.number())?;
        known.by -= 1;
        if known.by > 0 {
            return None;
        }
        let device = known.device;
        used.remove(&self.0.number());
        pools::release(self.0.number());
        Some(device)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.end().into_iter().for_each(pools::sweep);
    }
}

/// What a pool holds. All zero: no graph uses it yet.
pub fn stats(id: PoolId) -> Result<Stats> {
    let used = USED.lock();
    if id.is_one() && used.contains_key(&id.number()) {
        return Ok(pools::private(id.number())?.cache.stats());
    }
    // A pool that was never used holds nothing.
    match (id.first, id.second) {
        (0, second) if pools::is_reserved(second) => Ok(Stats::default()),
        (first, second) => {
            let text = format!("There is no graph pool ({first}, {second}), or the last graph that used it is gone.");
            Err(Error::invalid_argument(text))
        }
    }
}

/// The pools are gone with all memory.
pub fn forget() {
    USED.lock().clear();
}
