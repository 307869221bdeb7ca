//! Pools: memory of a device that is kept apart from the rest (torch's MemPool). A pool is a cache of its own, with its own segments,
//! blocks and statistics, which count in the device's as well. A thread allocates from one by name, or opens it, and then everything that
//! it allocates on the pool's device comes from there.
//!
//! Threads keep to themselves what they use of a pool, as they do with a device's cache, but where it does not split its segments or has
//! them from elsewhere than the driver, and where it is a graph's: there each call takes the pool's lock and its device's.

use super::cache::core::{ROUND, Request};
use super::cache::{Cache, block, front};
use super::provider::{self, Source};
use super::totals::Totals;
use crate::base::{Error, Result, Status, handles, process};
use crate::device;
use crate::runtime::{self, Address};
use crate::stream::Stream;
use parking_lot::RwLock;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

pub struct Options {
    pub source: Source,
    /// Gives free memory to requests of the device that would fail.
    pub use_on_oom: bool,
    /// One block a segment, handed out as it came.
    pub no_split: bool,
}

/// torch's pair of numbers in a word: those of handles are even. (n, 0) was made for a graph, (0, n) has a handle, (0, 0) is the device's own.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Id(u64);

impl Id {
    pub const fn own() -> Id {
        Id(0)
    }

    /// One of them is 0.
    pub fn new(first: u64, second: u64) -> Id {
        if first == 0 { Id(second) } else { Id(first | 1) }
    }

    pub fn number(self) -> u64 {
        self.0 & !1
    }

    pub fn is_a_graphs(self) -> bool {
        self.0 != self.number()
    }

    pub fn pair(self) -> (u64, u64) {
        if self.is_a_graphs() { (self.number(), 0) } else { (0, self.0) }
    }

    /// What is asked of the pool has to wait.
    #[cold]
    pub fn paused_error(self) -> Error {
        let text = format!("The memory pool {self} is paused: tcuda_mem_pool_resume brings its memory back.");
        Error::new(Status::TCUDA_ERROR_INVALID_STATE, text)
    }

    /// It was destroyed, or never was one.
    #[cold]
    pub fn gone_error(self) -> Error {
        let text = format!("No memory pool has the handle 0x{:x}, or it was destroyed.", self.number());
        Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text)
    }

    /// As keys of statistics have it.
    pub fn key(self) -> String {
        let (first, second) = self.pair();
        format!("{first}_{second}")
    }
}

impl Display for Id {
    fn fmt(&self, out: &mut Formatter) -> std::fmt::Result {
        self.number().fmt(out)
    }
}

pub struct Pool {
    pub id: Id,
    pub cache: &'static Cache,
    pub use_on_oom: bool,
    /// A graph's: no thread opens it, and no handle names it.
    is_private: bool,
    /// Threads that have it open, each as often as it opened it.
    open: AtomicUsize,
    /// Not before a shutdown.
    is_there: AtomicBool,
}

struct Pools {
    /// Numbers that were given for pools that are made later.
    reserved: BTreeSet<u64>,
    by_id: BTreeMap<u64, Arc<Pool>>,
    /// By their number, behind those of the devices.
    caches: Vec<&'static Cache>,
    /// Destroyed, but blocks of them are in use.
    ending: Vec<&'static Cache>,
    idle: Vec<&'static Cache>,
}

static POOLS: RwLock<Pools> =
    RwLock::new(Pools { reserved: BTreeSet::new(), by_id: BTreeMap::new(), caches: Vec::new(), ending: Vec::new(), idle: Vec::new() });

/// The cache of a number, counted from the first pool's.
pub fn cache(number: usize) -> Option<&'static Cache> {
    POOLS.read().caches.get(number).copied()
}

/// The caches of all pools, also of those that are ending.
pub fn caches() -> Vec<&'static Cache> {
    POOLS.read().caches.clone()
}

/// The same, of which there are no more before `work` is done.
pub fn with_caches<T>(work: impl FnOnce(&[&'static Cache]) -> T) -> T {
    work(&POOLS.read().caches)
}

fn all() -> Vec<Arc<Pool>> {
    POOLS.read().by_id.values().cloned().collect()
}

impl Pools {
    fn find(&self, id: u64) -> Result<Arc<Pool>> {
        self.by_id.get(&id).filter(|pool| !pool.is_private).cloned().ok_or_else(|| Id::new(0, id).gone_error())
    }
}

pub fn numbered(id: u64) -> Result<Arc<Pool>> {
    POOLS.read().find(id)
}

/// A number for a pool that is made later.
pub fn reserve_id() -> u64 {
    let id = handles::number() as u64;
    POOLS.write().reserved.insert(id);
    id
}

/// Whether the number was given, and no pool has it.
pub fn is_reserved(id: u64) -> bool {
    let pools = POOLS.read();
    pools.reserved.contains(&id) && !pools.by_id.contains_key(&id)
}

/// Makes the caches, so that what is wrong with the options is in the log before a lock is held that the program's function may want.
pub fn prepare() -> Result<()> {
    super::caches().map(|_| ())
}

/// A graph's pool. Its memory stays where it is until `release`. Sweeps nothing: the caller may hold what a sweep gives back.
pub fn create_private(device: i32, id: Id) -> Result<()> {
    let source = match provider::current() {
        Source::Ordered => Source::Driver,
        source => source,
    };
    make(device, Options { source, use_on_oom: false, no_split: false }, Some(id)).map(|_| ())
}

pub fn private(id: u64) -> Result<Arc<Pool>> {
    let found = POOLS.read().by_id.get(&id).filter(|pool| pool.is_private).cloned();
    found.ok_or_else(|| Error::internal(format!("There is no graph pool {id}.")))
}

/// No graph uses it any more: what is free goes back at the next `sweep`, and the rest as its blocks are freed.
pub fn release(id: u64) {
    let mut pools = POOLS.write();
    if let Some(pool) = pools.by_id.remove(&id) {
        pool.cache.set_fixed(false);
        pools.ending.push(pool.cache);
    }
}

pub fn of_device(device: i32) -> Vec<Arc<Pool>> {
    all().into_iter().filter(|pool| pool.cache.device == device).collect()
}

pub fn create(device: i32, options: Options) -> Result<u64> {
    sweep(device);
    make(device, options, None)
}

/// `private`: for graphs, with this id.
fn make(device: i32, options: Options, private: Option<Id>) -> Result<u64> {
    let whole = super::cache_of(device)?;
    let memory = device::total_memory(device)?;
    let mut pools = POOLS.write();
    let idle = pools.idle.iter().position(|cache| cache.device == device);
    let cache = match idle {
        Some(at) => pools.idle.swap_remove(at),
        None if !front::has_room(front::Leaves::ForOthers) => return Err(front::no_room()),
        None if !block::has_room() => return Err(block::no_room()),
        None => {
            let number = super::device_count() as u32 + pools.caches.len() as u32;
            let stats = Totals::part_of(whole.stats, memory);
            let cache: &'static Cache = Box::leak(Box::new(Cache::of_pool(number, whole, stats)?));
            pools.caches.push(cache);
            cache
        }
    };
    let id = private.unwrap_or_else(|| Id::new(0, handles::number() as u64));
    cache.set_fixed(private.is_some());
    cache.become_pool(id, options.source, options.no_split);
    let pool = Pool {
        id,
        cache,
        use_on_oom: options.use_on_oom,
        is_private: private.is_some(),
        open: AtomicUsize::new(0),
        is_there: AtomicBool::new(true),
    };
    pools.by_id.insert(id.number(), Arc::new(pool));
    Ok(id.number())
}

/// Nothing more comes from it. Its free memory goes back to where it came from; the blocks in use stay valid, and theirs goes back later.
pub fn destroy(id: u64) -> Result<()> {
    provider::refuse_inside()?;
    let pool = numbered(id)?;
    let check_closed = || match pool.open.load(Relaxed) {
        0 => Ok(()),
        _ => {
            let text = format!("The memory pool {id} is open on some thread: call tcuda_mem_pool_end there first.");
            Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text))
        }
    };
    check_closed()?;
    pool.cache.end_pause(pool.id)?;
    let take = || {
        let mut pools = POOLS.write();
        // Another thread may have ended it meanwhile.
        pools.find(id)?;
        check_closed().inspect_err(|_| pool.cache.goes_on())?;
        pools.by_id.remove(&id);
        pools.ending.push(pool.cache);
        // Who is asking it for memory, as from a function of the program in that very request, hears of it.
        pool.cache.core.quiet().is_over = true;
        Ok(())
    };
    take()?;
    sweep(pool.cache.device);
    Ok(())
}

/// Told before pools are swept, so that those which nobody needs any more are among them: whether to wait, and for which device.
pub type SweepHook = fn(bool, Option<i32>) -> Result<()>;

static BEFORE_SWEEP: OnceLock<SweepHook> = OnceLock::new();

pub fn before_sweep(hook: SweepHook) {
    let _ = BEFORE_SWEEP.set(hook);
}

/// What pools of a device that were destroyed have free goes back; those with no block in use are gone. What is freed but in use, or fails, stays for
/// the next time. For what graphs used the device is waited for, and no other: one may be waiting for what this thread does next.
pub fn sweep(device: i32) {
    let _ = give_back(false, Some(device));
}

/// The same once what is freed but in use was waited for. The first failure is the answer, when all that goes back did.
pub fn empty(device: Option<i32>) -> Result<()> {
    give_back(true, device)
}

fn give_back(wait: bool, device: Option<i32>) -> Result<()> {
    let mut answer = BEFORE_SWEEP.get().map_or(Ok(()), |hook| hook(wait, device));
    {
        let pools = POOLS.read();
        if pools.ending.is_empty() && pools.idle.iter().all(|cache| cache.has_nothing()) {
            return answer;
        }
    }
    let runtime = runtime::runtime()?;
    // Others see them meanwhile, and wait for them too.
    let ending = {
        let mut pools = POOLS.write();
        // Who was about to allocate from a pool as it ended, and did since.
        let again: Vec<&Cache> = pools.idle.extract_if(.., |cache| !cache.has_nothing()).collect();
        pools.ending.extend(again);
        pools.ending.clone()
    };
    for cache in ending.into_iter().filter(|cache| device.is_none_or(|device| device == cache.device)) {
        let given = if wait { cache.empty() } else { cache.release_past(runtime) };
        if given.is_ok() && cache.has_gone() {
            // Nobody is in the middle of making memory for the one that ended.
            let _at_rest = cache.hold_growth();
            let mut pools = POOLS.write();
            let at = pools.ending.iter().position(|other| std::ptr::eq(*other, cache));
            if let Some(at) = at.filter(|_| cache.is_bare()) {
                cache.forget_pool();
                pools.ending.swap_remove(at);
                pools.idle.push(cache);
            }
        }
        answer = answer.and(given);
    }
    answer
}

// ---- allocate

pub fn allocate(pool: &Pool, size: usize, alignment: usize, stream: Stream) -> Result<Address> {
    if stream.device != pool.cache.device {
        return Err(Error::invalid_argument(format!(
            "The stream is on device {}, the memory pool {} on device {}.",
            stream.device, pool.id, pool.cache.device
        )));
    }
    if size == 0 {
        return Ok(0);
    }
    // A segment begins where it begins.
    if alignment > ROUND && pool.cache.core.quiet().no_split {
        return Err(Error::invalid_argument(format!(
            "The memory pool {} does not split its segments: alignments of more than {ROUND} bytes are not to be had, {alignment} was asked for.",
            pool.id
        )));
    }
    let request = Request::new(size, alignment).ok_or_else(|| super::too_large(size, stream.device))?;
    super::allocate_in(pool.cache, &Request { pool: pool.id, ..request }, stream)
}

/// Free memory of pools that give it to requests of others that would fail.
pub fn lend(who: &Cache, request: &Request, stream: Stream) -> Option<Address> {
    let lenders = of_device(who.device).into_iter().filter(|pool| pool.use_on_oom && !std::ptr::eq(pool.cache, who));
    lenders.into_iter().find_map(|pool| pool.cache.lend(pool.id, request, stream))
}

/// Of the device's pools, those with memory, as `who` sees them who has none.
pub fn held(who: &Cache) -> Vec<Held> {
    let held = of_device(who.device).into_iter().map(|pool| {
        let (used, reserved) = (pool.cache.stats.active().bytes, pool.cache.stats.reserved());
        let gives = !pool.cache.is_fixed() && !std::ptr::eq(pool.cache, who);
        Held { id: pool.id.number(), used, free: reserved.saturating_sub(used), gives }
    });
    held.filter(|held| held.used + held.free > 0).collect()
}

/// A pool with memory, in bytes.
#[derive(Clone, Copy)]
pub struct Held {
    pub id: u64,
    pub used: usize,
    pub free: usize,
    /// What is free can go back: it is another's, and no graph's.
    pub gives: bool,
}

impl Pool {
    /// By its handle, and by who has it open.
    pub fn use_count(&self) -> u64 {
        1 + self.open.load(Relaxed) as u64
    }

    /// As `Cache::pause`.
    pub fn pause(&self, keep: bool) -> Result<usize> {
        self.cache.pause(self.id, keep)
    }

    pub fn resume(&self) -> Result<()> {
        self.cache.resume(self.id)
    }

    /// Waits for what is freed but in use, then gives all free memory back to where it came from.
    pub fn trim(&self) -> Result<()> {
        if self.cache.is_paused() {
            return Err(self.cache.paused_error());
        }
        self.cache.empty()
    }
}

// ---- the pools that a thread has open

// How many are open in this thread: looked at before anything else.
thread_local!(static DEPTH: Cell<usize> = const { Cell::new(0) });
thread_local!(static OPEN: RefCell<Scopes> = const { RefCell::new(Scopes(Vec::new())) });

/// The newest last.
struct Scopes(Vec<Arc<Pool>>);

impl Drop for Scopes {
    fn drop(&mut self) {
        for pool in &self.0 {
            pool.open.fetch_sub(1, Relaxed);
        }
    }
}

fn close_all() {
    let _ = OPEN.try_with(|open| drop(open.replace(Scopes(Vec::new()))));
    DEPTH.set(0);
}

#[inline]
pub fn any_open() -> bool {
    DEPTH.get() != 0
}

/// The pool that this thread's allocations on a device come from.
pub fn open_on(device: i32) -> Option<Arc<Pool>> {
    OPEN.try_with(|open| open.borrow().0.iter().rev().find(|pool| pool.cache.device == device && pool.is_there.load(Relaxed)).cloned())
        .ok()
        .flatten()
}

pub fn begin(id: u64) -> Result<()> {
    {
        // None is destroyed meanwhile.
        let pools = POOLS.read();
        let pool = pools.find(id)?;
        OPEN.try_with(|open| open.borrow_mut().0.push(pool.clone())).map_err(|_| {
            let text = "The thread is ending: no memory pool can be opened in it any more.";
            Error::new(Status::TCUDA_ERROR_INVALID_STATE, text)
        })?;
        pool.open.fetch_add(1, Relaxed);
    }
    process::at_end(close_all);
    super::forget_choices();
    DEPTH.set(DEPTH.get() + 1);
    Ok(())
}

/// Ends the newest opening of the pool in this thread.
pub fn end(id: u64) -> Result<()> {
    let ended = OPEN.try_with(|open| {
        let open = &mut open.borrow_mut().0;
        let at = open.iter().rposition(|pool| pool.id.number() == id)?;
        Some(open.remove(at))
    });
    let Some(pool) = ended.as_ref().ok().and_then(Option::as_ref) else {
        numbered(id)?;
        // It was closed with the thread's.
        if ended.is_err() {
            return Ok(());
        }
        let text = format!("The memory pool {id} is not open in this thread: tcuda_mem_pool_begin opens it.");
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
    };
    pool.open.fetch_sub(1, Relaxed);
    super::forget_choices();
    DEPTH.set(DEPTH.get() - 1);
    Ok(())
}

/// All pools are gone: what they held is, by the end of everything.
pub fn forget_all() {
    let mut pools = POOLS.write();
    pools.by_id.values().for_each(|pool| pool.is_there.store(false, Relaxed));
    pools.by_id.clear();
    pools.reserved.clear();
    pools.ending.clear();
    pools.idle = pools.caches.clone();
    pools.idle.iter().for_each(|cache| cache.forget_pool());
}
