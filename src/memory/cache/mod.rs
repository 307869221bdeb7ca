//! The cache of one device: segments from the driver, cut into blocks that follow the order of their streams.
//!
//! - `front`     what a thread keeps to itself: allocates and frees with no lock; `tls` finds it, `thread` makes it, `fronts` stops it
//! - `home`      a stream's free memory: `freelist` by size, `block` by address
//! - `slot`      a stream as the cache sees it
//! - `border`    where memory of two streams meets, and how it passes from one to the other
//! - `core`      the device's memory as a whole, under its lock with all fronts stopped; never waits for the device
//! - `pool`      the cache of a memory pool: how it begins and ends; `pause` takes its memory away and brings it back
//! - `ordered`   blocks of cudaMallocAsync, one call each
//! - `physical`  handles of the driver, and where they are mapped; `page_table` says what is at an address
//! - `policy`    how much to take from the driver, and in handles of which size
//! - `reach`     whose free memory a stream may have, what of it lies in a row, and how it is taken
//! - `shares`    what is free, handle by handle; `hole` takes it out, and keeps the addresses that have no memory of their own
//! - `stitch`    room out of what is free: memory is mapped a second time, behind other memory; `ends` of such a run
//! - `rest`      where free memory lies, and when it goes there; `runs` has what is mapped still, and is taken there again
//! - `grow`      more memory for a request, from the driver or mapped anew
//! - `segment`   what the device offers, what is held of the driver, and how it goes back; `left` has what it did not take
//! - `areas`     which of all caches an address belongs to
//! - `picture`   what there is and what happened, for a snapshot and the history
//! - `order`     which frees are past: marks on streams, blocks that other streams used
//! - `held`      blocks that other processes may use
//! - `ladder`    what happens when nothing fits: from a second look to the out-of-memory error
//! - `message`   what that error says
//! - `check`     the whole, as tests look at it

pub mod areas;
pub mod block;
mod border;
mod check;
pub mod core;
mod ends;
mod freelist;
pub mod front;
mod fronts;
mod grow;
pub mod held;
mod hole;
mod home;
mod ladder;
mod left;
pub(in crate::memory) mod message;
#[cfg(test)]
mod model;
mod order;
pub mod ordered;
mod page_table;
mod pause;
mod physical;
pub mod picture;
mod policy;
mod pool;
mod reach;
mod rest;
mod runs;
mod segment;
mod shares;
pub mod slot;
mod stitch;
pub mod thread;
mod tls;

pub use block::BlockId;
pub(in crate::memory) use block::NIL;
pub use core::{Core, Lock};
pub use segment::access_list;

use crate::base::Result;
use crate::memory::history::History;
use crate::memory::options::Options;
use crate::memory::provider::{self, Source};
use crate::memory::stats::{Family, Stats};
use crate::memory::totals::Totals;
use crate::memory::{captures, poison};
use crate::runtime::table::{MemAllocationProp, RawMemPool};
use crate::runtime::{Address, Runtime};
use left::Left;
use parking_lot::Mutex;
use pause::{Paused, Touching};
use segment::Seen;
use slot::StreamKey;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Index of a stream in its device's cache.
pub type StreamSlot = u16;

/// What a device offers, and the options in effect; asked at the first growth.
#[derive(Clone)]
pub struct Abilities {
    pub total: usize,
    /// Virtual memory: how handles are made, and the multiple of which they must be. None: plain segments.
    pub virtual_memory: Option<(MemAllocationProp, usize)>,
    pub options: Options,
    pub source: Source,
}

/// The cache of one device.
///
/// Locks, in this order: `turning` (a pool is paused, resumed or ended), `climbing` (one thread makes room), `growing` (one changes what is mapped),
/// `driving` (streams stay while they are asked or marked), `abilities`, `source` or `core`; a pool's before its device's. `paused` lies between
/// `growing` and `core`; `ordered` comes behind `driving`, with no other one under it; `put_off`, `left` and `touching` are held for a moment,
/// with none. Whoever waits for the work of streams does it without `growing`, which their host functions may want. While `core` is held nothing is
/// asked of the driver that could wait, so that a host function may free memory whatever other threads wait for; and whoever takes it waits for
/// fronts, which wait for nothing. (Only the end of all, `tear_down`, holds it throughout.)
pub struct Cache {
    /// Of all caches, those of devices first.
    pub number: u32,
    pub device: i32,
    pub core: Lock,
    pub stats: &'static Totals,
    pub history: &'static History,
    /// A device's: its limit was set by a call, and not by what options say.
    pub limit_is_a_calls: AtomicBool,
    driving: Mutex<()>,
    turning: Mutex<()>,
    climbing: Mutex<()>,
    /// The device's, for its pools too: what is held is compared with the limit and counted in one step.
    growing: &'static Mutex<()>,
    abilities: Mutex<Option<Abilities>>,
    /// None: what is current for all.
    source: Mutex<Option<Source>>,
    paused: Mutex<Option<Paused>>,
    touching: Touching,
    /// Graphs use its memory by address, be it in use or free.
    fixed: AtomicBool,
    /// They did: of replays that the program launched, and of readers of what they wrote, its streams tell nothing.
    replayed: AtomicBool,
    /// The driver's pool, since a block came from there.
    ordered: Mutex<Option<RawMemPool>>,
    /// What goes back there once its stream is captured no more.
    put_off: Mutex<Vec<(Address, StreamKey)>>,
    left: &'static Left,
}

impl Cache {
    /// `memory`: bytes of the device.
    pub fn new(number: u32, device: i32, memory: u64) -> Result<Cache> {
        let stats = Box::leak(Box::new(Totals::new(memory)));
        Cache::with(number, device, stats, Box::leak(Box::new(History::idle())), Box::leak(Box::new(Mutex::new(()))))
    }

    fn with(number: u32, device: i32, stats: &'static Totals, history: &'static History, growing: &'static Mutex<()>) -> Result<Cache> {
        let core = Core::new(number, device, stats, history)?;
        Ok(Cache {
            number,
            device,
            left: core.left,
            core: Lock::new(core),
            stats,
            history,
            limit_is_a_calls: AtomicBool::new(false),
            driving: Mutex::new(()),
            turning: Mutex::new(()),
            climbing: Mutex::new(()),
            growing,
            abilities: Mutex::new(None),
            source: Mutex::new(None),
            paused: Mutex::new(None),
            touching: Touching::default(),
            fixed: AtomicBool::new(false),
            replayed: AtomicBool::new(false),
            ordered: Mutex::new(None),
            put_off: Mutex::new(Vec::new()),
        })
    }

    pub fn abilities(&self, runtime: &Runtime) -> Result<Abilities> {
        let mut known = self.abilities.lock();
        match *known {
            Some(ref abilities) => Ok(abilities.clone()),
            None => {
                let source = self.source.lock().clone().unwrap_or_else(provider::current);
                let splits = !self.core.quiet().no_split;
                Ok(match segment::abilities(runtime, self.device, source, splits, self.left)? {
                    Seen::ForGood(abilities) => known.insert(abilities).clone(),
                    Seen::ForNow(abilities) => abilities,
                })
            }
        }
    }

    /// Its memory stays where it is, in use or free, and none goes back.
    pub fn is_fixed(&self) -> bool {
        self.fixed.load(Relaxed)
    }

    pub fn set_fixed(&self, fixed: bool) {
        self.fixed.store(fixed, Relaxed);
        self.replayed.fetch_or(fixed, Relaxed);
    }

    /// Gives a block of cudaMalloc back, which no other is part of.
    pub fn free_block(&self, runtime: &Runtime, block: Address) -> Result<()> {
        self.left.free(runtime, block)
    }

    /// The next growth asks the options and the device anew.
    pub fn forget_abilities(&self) {
        *self.abilities.lock() = None;
    }

    /// Looks whether free memory was written to. It stays mapped meanwhile.
    pub fn check_poison(&self) -> Result<()> {
        let watched = poison::watched(self.device);
        provider::refuse_inside()?;
        captures::wait_for_device(self.device)?;
        let _growing = self.growing.lock();
        poison::check(self.device, watched);
        Ok(())
    }

    /// The statistics. While blocks wait for other streams, these are asked first, so that an idle device shows none. Nobody is held up
    /// but where a block is free by that, or a stream is to be marked for the first time.
    pub fn stats(&self) -> Stats {
        if self.stats.has_pending() && self.has_moved() {
            self.settle_all();
        }
        self.stats.stats()
    }

    /// One of them now.
    pub fn current(&self, family: Family) -> i64 {
        if family.has_pending() { self.stats().current(family) } else { self.stats.current(family) }
    }
}
