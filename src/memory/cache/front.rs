//! What a thread keeps to itself, so that it allocates and frees without a lock and without a line of memory that others write.
//!
//! A `Front` is one thread's part of one stream's memory: free blocks up to 1 MiB by exact size, and the blocks of that stream that the
//! thread freed for others. What it does not have it takes from the stream's `Home`, and what is wanted by nobody goes back there.
//!
//! How others get at it. A thread works on its fronts in a *region*: it sets `busy`, then looks whether the front is armed. Whoever needs
//! all of a device in one hand disarms its fronts, has every processor pass a barrier (membarrier) and waits until nobody is busy that
//! was; from then on each thread's next call finds its front disarmed and comes to the device's lock. So a thread's own path has no
//! barrier, no locked instruction, and no load beside those that say which stream is meant.
//!
//! A region never waits for the driver or for a lock of the device; for other threads only where a home is shared, and for a moment where
//! the tables of blocks and addresses grow.
//!
//! Where the device's history is recorded, its fronts are never what a thread finds unasked (`recorded` stands for `key`): the first
//! comparison of both calls fails, and the way that goes on from there also writes down what happened.
//!
//! A block is freed with a plain store by the thread that handed it out, and with a compare-and-swap by any other. If both do it at the
//! same instant (a defect of the program) the store wins: what other threads freed is looked at again, behind a barrier, before it is used.

use super::block::{self, BlockId, FLIP, NIL, Record, SMALL, State, UNIT, UNIT_SHIFT};
use super::core::{LARGEST, SMALL_LIMIT};
use super::home::{Held, Home};
use super::{StreamSlot, tls};
use crate::base::{Error, Status};
use crate::memory::history::{History, Writer};
use crate::memory::lookup;
use crate::memory::pools::Id;
use crate::memory::sync::{self, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use crate::memory::totals::Shard;
use std::cell::{Cell, UnsafeCell};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

pub use crate::memory::sync::{barrier, can_stop};

/// No handle is this.
const NEVER: u64 = u64::MAX;

/// A thread as the caches see it. Never freed; the next thread may have it.
#[repr(C, align(128))]
pub struct Thread {
    /// 1: in its region.
    busy: AtomicU32,
    /// The handle of the stream that it used last, as the caller gives it.
    key: AtomicU64,
    /// What a small block that its front handed out has in its head, beside the address.
    mark: AtomicU64,
    front: AtomicPtr<Front>,
    /// What `key` would be if its front recorded nothing.
    recorded: AtomicU64,
    /// Other streams that it used lately. From here on the thread's own.
    ways: [Cell<*const Front>; WAYS],
    /// The front that took a block of another thread last.
    taker: Cell<*const Front>,
    /// Where it allocated last on a device, by its number: in one cache at a time it has room.
    turns: [Cell<*const Shard>; TURNS],
    pub number: u32,
}

const WAYS: usize = 16;
/// No address of a program has this bit or a higher one: there is which pool's a handle is.
pub const ABOVE_ADDRESSES: u32 = 48;
const TURNS: usize = 16;

unsafe impl Sync for Thread {}

/// Stands for a thread that has no fronts: its keys fit nothing.
pub static NOBODY: Thread = Thread::new(0);

impl Thread {
    pub const fn new(number: u32) -> Thread {
        Thread {
            busy: AtomicU32::new(0),
            key: AtomicU64::new(NEVER),
            mark: AtomicU64::new(block::NO_MARK),
            front: AtomicPtr::new(null_mut()),
            recorded: AtomicU64::new(NEVER),
            ways: [const { Cell::new(null()) }; WAYS],
            taker: Cell::new(null()),
            turns: [const { Cell::new(null()) }; TURNS],
            number,
        }
    }

    #[inline(always)]
    fn enter(&self) {
        self.busy.store(1, Relaxed);
        // The processor's side of it is the stopper's barrier.
        compiler_fence(SeqCst);
    }

    #[inline(always)]
    fn leave(&self) {
        self.busy.store(0, Release);
    }

    /// Waits until it is in no region. Behind a barrier.
    pub fn wait_idle(&self) {
        const SPINS: u32 = 200;
        let mut tries = 0;
        while self.busy.load(Acquire) != 0 {
            tries += 1;
            if tries < SPINS { sync::spin_loop() } else { sync::yield_now() }
        }
    }

    fn select(&self, key: u64, front: &Front) {
        self.begin_turn(front.device, front.shard());
        self.front.store(std::ptr::from_ref(front).cast_mut(), Relaxed);
        if front.records() {
            self.forget();
            self.recorded.store(key, Relaxed);
            return;
        }
        self.recorded.store(NEVER, Relaxed);
        self.mark.store(block::mark_of(front.id, SMALL), Relaxed);
        self.key.store(key, Relaxed);
    }

    /// It allocates from the cache of the shard from now on. Where that was another one of the device, what that one has room for is not known
    /// here: it is found out anew. So is that of the one before, which its next call would use unasked.
    pub fn begin_turn(&self, device: i32, shard: &Shard) {
        let last = &self.turns[device as usize % TURNS];
        if !std::ptr::eq(last.replace(shard), shard) {
            shard.begin_turn();
            self.forget();
        }
    }

    fn forget(&self) {
        self.key.store(NEVER, Relaxed);
        self.mark.store(block::NO_MARK, Relaxed);
        self.recorded.store(NEVER, Relaxed);
    }

    /// Whether a front is what its next call would use unasked.
    fn selects(&self, front: &Front) -> bool {
        let unasked =
            || self.key.load(Relaxed) != NEVER || self.mark.load(Relaxed) != block::NO_MARK || self.recorded.load(Relaxed) != NEVER;
        std::ptr::eq(self.front.load(Relaxed), front) && unasked()
    }

    fn way(&self, handle: usize) -> &Cell<*const Front> {
        &self.ways[((handle >> ABOVE_ADDRESSES) ^ (handle >> 4) ^ (handle >> 9) ^ handle) % WAYS]
    }

    /// A front that it may use now: in its region.
    fn armed_way(&self, handle: usize) -> Option<&'static Front> {
        let front = unsafe { self.way(handle).get().as_ref() }?;
        let means_it = front.is_chosen.load(Relaxed) && front.handle.load(Relaxed) == handle;
        (front.is_armed() && means_it && std::ptr::eq(front.thread(), self)).then_some(front)
    }

    /// The front that its next calls for the handle use. By the thread itself, under the device's lock. False: they did already.
    pub fn choose(&self, front: &'static Front, handle: usize, key: usize) -> bool {
        let known = self.selects(front) && [&self.key, &self.recorded].iter().any(|known| known.load(Relaxed) == key as u64);
        front.handle.store(handle, Relaxed);
        front.is_chosen.store(true, Relaxed);
        self.way(handle).set(front);
        self.select(key as u64, front);
        !known
    }

    /// The front that takes other threads' blocks of its stream from now on.
    pub fn take_for(&self, front: &'static Front) {
        self.taker.set(front);
    }

    /// By the thread itself.
    pub fn forget_choices(&self) {
        self.forget();
        self.ways.iter().for_each(|way| way.set(null()));
    }

    pub fn forget_ways(&self) {
        self.ways.iter().chain([&self.taker]).for_each(|way| way.set(null()));
        self.turns.iter().for_each(|turn| turn.set(null()));
    }
}

/// Most bytes that a front keeps free.
const ROOM: i64 = 4 << 20;
const SIZES: usize = (SMALL_LIMIT >> UNIT_SHIFT) + 1;
/// After so many misses the sizes that are kept are chosen anew.
const ROUND: u32 = 64;
/// Blocks of other threads that are kept until they are brought home together.
const LOOSE: usize = 128;

/// A block of another thread: the front that handed it out, and what was counted when it was freed.
#[derive(Clone, Copy)]
struct Loose {
    id: BlockId,
    from: u16,
    bytes: usize,
    requested: usize,
}

#[repr(C, align(128))]
pub struct Front {
    armed: AtomicBool,
    pub id: u16,
    /// The number of its cache.
    pub cache: u32,
    device: i32,
    pub slot: StreamSlot,
    pub home: &'static Home,
    pub shard: AtomicPtr<Shard>,
    thread: AtomicPtr<Thread>,
    /// The canonical handle of its stream, while `is_chosen`: a stream that is gone has none, though its blocks may still be freed.
    handle: AtomicUsize,
    is_chosen: AtomicBool,
    /// While the device's history is recorded.
    log: UnsafeCell<Option<Writer>>,
    room: Cell<i64>,
    misses: Cell<u32>,
    loose_count: Cell<u32>,
    loose_bytes: Cell<usize>,
    /// Sizes that were missed lately, and those that were missed again: blocks of these are kept. A size that is kept is marked.
    missed: [Cell<u64>; SIZES.div_ceil(64)],
    wanted: [Cell<u64>; SIZES.div_ceil(64)],
    first: [Cell<BlockId>; SIZES],
    loose: [Cell<Loose>; LOOSE],
    /// As in `Fronts`, under the device's lock.
    pub used: Cell<bool>,
}

unsafe impl Sync for Front {}
unsafe impl Send for Front {}

static FRONTS: [AtomicPtr<Front>; 1 << 16] = [const { AtomicPtr::new(null_mut()) }; 1 << 16];
static COUNT: AtomicU32 = AtomicU32::new(1);

/// The front of a number that a block has.
#[inline(always)]
pub fn numbered(id: u16) -> Option<&'static Front> {
    unsafe { FRONTS[id as usize].load(Acquire).as_ref() }
}

/// The numbers that are left to others, of the 65,533 of a process: a thread does without fronts, a stream cannot.
#[derive(Clone, Copy)]
pub enum Leaves {
    Nothing,
    /// By caches of many streams, and by pools that begin.
    ForOthers = 1 << 12,
    /// By threads.
    ForStreams = 1 << 15,
}

fn can_take(count: u32, leaves: Leaves) -> bool {
    count + (leaves as u32) < u32::from(block::FIRST_NO_FRONT)
}

/// Whether `make` has a number.
pub fn has_room(leaves: Leaves) -> bool {
    can_take(COUNT.load(Relaxed), leaves)
}

#[cold]
pub fn no_room() -> Error {
    let text = "There are too many streams and memory pools in this process: 65,533 are the most, fewer where threads use many of them.";
    Error::new(Status::TCUDA_ERROR_INVALID_STATE, text)
}

/// A front of a home. None: so many are there that the others are left to whoever needs them more.
pub fn make(cache: u32, device: i32, slot: StreamSlot, home: &'static Home, leaves: Leaves) -> Option<&'static Front> {
    let id = COUNT.fetch_update(Relaxed, Relaxed, |count| can_take(count, leaves).then_some(count + 1)).ok()? as u16;
    let front: &'static Front = Box::leak(Box::new(Front {
        armed: AtomicBool::new(false),
        id,
        cache,
        device,
        slot,
        home,
        shard: AtomicPtr::new(null_mut()),
        thread: AtomicPtr::new(null_mut()),
        handle: AtomicUsize::new(0),
        is_chosen: AtomicBool::new(false),
        log: UnsafeCell::new(None),
        room: Cell::new(ROOM),
        misses: Cell::new(0),
        loose_count: Cell::new(0),
        loose_bytes: Cell::new(0),
        missed: [const { Cell::new(0) }; SIZES.div_ceil(64)],
        wanted: [const { Cell::new(0) }; SIZES.div_ceil(64)],
        first: [const { Cell::new(NIL) }; SIZES],
        loose: [const { Cell::new(Loose { id: NIL, from: 0, bytes: 0, requested: 0 }) }; LOOSE],
        used: Cell::new(false),
    }));
    FRONTS[id as usize].store(std::ptr::from_ref(front).cast_mut(), Release);
    Some(front)
}

// ---- the two calls

/// A call that did not come to its end at once: it is still in its region, which what follows ends. A type of its own, so that the short
/// way calls nothing but as its last step, and keeps no register.
#[must_use]
#[repr(C)]
pub struct Further {
    thread: &'static Thread,
    /// A small block that may start where one is to be freed, or `NIL`.
    small: BlockId,
}

/// Allocates for the stream of `handle` if that needs nothing but what the thread has at hand. False: nothing happened.
///
/// # Safety
/// `out` can be written.
#[inline(always)]
pub unsafe fn malloc(out: *mut usize, size: usize, handle: usize) -> bool {
    unsafe { malloc_at_once(out, size, handle).map_or_else(|further| malloc_further(out, size, handle, further), |()| true) }
}

/// The first half of `malloc`.
///
/// # Safety
/// `out` can be written.
#[inline(always)]
pub unsafe fn malloc_at_once(out: *mut usize, size: usize, handle: usize) -> Result<(), Further> {
    let thread = tls::get();
    thread.enter();
    let fits = thread.key.load(Relaxed) == handle as u64 && handle as u64 != NEVER && size.wrapping_sub(1) < SMALL_LIMIT;
    let taken = fits && unsafe { (*thread.front.load(Relaxed)).take::<false>(thread, out, size) };
    if taken { Ok(()) } else { Err(Further { thread, small: NIL }) }
}

/// The second half.
///
/// # Safety
/// `out` can be written.
#[inline(always)]
pub unsafe fn malloc_further(out: *mut usize, size: usize, handle: usize, Further { thread, .. }: Further) -> bool {
    if thread.key.load(Relaxed) != handle as u64 || handle as u64 == NEVER {
        return malloc_other(thread, out, size, handle);
    }
    malloc_from_home(thread, unsafe { &*thread.front.load(Relaxed) }, out, size)
}

/// What the front does not have.
#[inline(always)]
fn malloc_from_home(thread: &Thread, front: &Front, out: *mut usize, size: usize) -> bool {
    if size.wrapping_sub(1) < SMALL_LIMIT { malloc_miss(thread, front, out, size) } else { malloc_large(thread, front, out, size) }
}

/// `RECORDS`: the front does.
#[inline(always)]
unsafe fn malloc_in<const RECORDS: bool>(thread: &Thread, front: &Front, out: *mut usize, size: usize) -> bool {
    let taken = size.wrapping_sub(1) < SMALL_LIMIT && unsafe { front.take::<RECORDS>(thread, out, size) };
    taken || malloc_from_home(thread, front, out, size)
}

/// The stream is not the one that was used last, or the front records.
#[inline(never)]
fn malloc_other(thread: &Thread, out: *mut usize, size: usize, handle: usize) -> bool {
    if thread.recorded.load(Relaxed) == handle as u64 && handle as u64 != NEVER {
        let front = unsafe { &*thread.front.load(Relaxed) };
        return unsafe { malloc_in::<true>(thread, front, out, size) };
    }
    let Some(front) = thread.armed_way(handle) else {
        thread.leave();
        return false;
    };
    thread.select(handle as u64, front);
    unsafe { malloc_selected(thread, front, out, size) }
}

unsafe fn malloc_selected(thread: &Thread, front: &Front, out: *mut usize, size: usize) -> bool {
    unsafe { if front.records() { malloc_in::<true>(thread, front, out, size) } else { malloc_in::<false>(thread, front, out, size) } }
}

/// The same for a stream by its canonical handle; `key` is how the caller names it, and finds it by next time.
pub fn take(size: usize, handle: usize, key: usize) -> Option<usize> {
    let thread = tls::get();
    let mut address = 0;
    thread.enter();
    let Some(front) = thread.armed_way(handle) else {
        thread.leave();
        return None;
    };
    thread.select(key as u64, front);
    unsafe { malloc_selected(thread, front, &mut address, size) }.then_some(address)
}

/// Nothing of that size at hand: from the home.
#[inline(never)]
fn malloc_miss(thread: &Thread, front: &Front, out: *mut usize, size: usize) -> bool {
    let units = (size + UNIT - 1) >> UNIT_SHIFT;
    // Who calls it asked.
    unsafe { std::hint::assert_unchecked(units > 0 && units < SIZES) };
    let mut home = front.home.hold(thread);
    front.miss(units, &mut home);
    if front.home.has_brought() {
        front.take_brought(&mut home);
    }
    let found = match front.first[units].get() {
        NIL => home.carve(block::table(), units as u32, true),
        kept => {
            front.first[units].set(block::at(kept).link_next());
            front.room.set(front.room.get() + (units << UNIT_SHIFT) as i64);
            Some(kept)
        }
    };
    // What is kept may join to what is missing.
    let Some(id) = found.or_else(|| front.carve_last(&mut home, units as u32)) else {
        drop(home);
        thread.leave();
        return false;
    };
    let address = give(front, home, id, units << UNIT_SHIFT, size, true);
    unsafe { *out = address };
    if front.shard().allocated_small((units << UNIT_SHIFT) as i64, size as i64) {
        front.shard().look();
    }
    thread.leave();
    true
}

#[inline(never)]
fn malloc_large(thread: &Thread, front: &Front, out: *mut usize, size: usize) -> bool {
    if size == 0 || size > LARGEST {
        thread.leave();
        return false;
    }
    let units = (size + UNIT - 1) >> UNIT_SHIFT;
    let mut home = front.home.hold(thread);
    home.sizes.note(units as u32);
    if home.beside.is_some() {
        return malloc_as_one(thread, front, home, out, size);
    }
    let found = home.carve(block::table(), units as u32, false);
    let found = found.or_else(|| front.carve_brought(&mut home, units as u32));
    give_large(thread, front, home, found, out, size)
}

/// What others brought comes before what is everybody's.
#[inline(never)]
fn malloc_as_one(thread: &Thread, front: &Front, mut home: Held<'_>, out: *mut usize, size: usize) -> bool {
    if front.home.has_brought() {
        front.take_brought(&mut home);
    }
    let found = home.carve_closest(block::table(), ((size + UNIT - 1) >> UNIT_SHIFT) as u32);
    give_large(thread, front, home, found, out, size)
}

/// The end of a region in which a large block was found, or none.
#[inline(always)]
fn give_large(thread: &Thread, front: &Front, home: Held<'_>, found: Option<BlockId>, out: *mut usize, size: usize) -> bool {
    let Some(id) = found else {
        drop(home);
        thread.leave();
        return false;
    };
    let bytes = (size + UNIT - 1) >> UNIT_SHIFT << UNIT_SHIFT;
    let address = give(front, home, id, bytes, size, false);
    front.shard().allocated_large(bytes as i64, size as i64);
    unsafe { *out = address };
    thread.leave();
    true
}

/// A block that was carved out is handed out: its address.
#[inline(always)]
fn give(front: &Front, home: Held<'_>, id: BlockId, bytes: usize, size: usize, small: bool) -> usize {
    let record = block::at(id);
    // While nobody else can take it for a free neighbour.
    let address = record.set(State::Allocated, front.id);
    drop(home);
    record.set_rounding(bytes - size);
    lookup::insert(address, small, id);
    front.tell_allocated(record, size, true);
    address
}

/// Frees the block that starts at an address if that needs nothing but what the thread has at hand. False: nothing happened.
#[inline(always)]
pub fn free(address: usize) -> bool {
    free_at_once(address).map_or_else(|further| free_further(address, further), |()| true)
}

/// The first half of `free`.
#[inline(always)]
pub fn free_at_once(address: usize) -> Result<(), Further> {
    let thread = tls::get();
    thread.enter();
    let Some(id) = lookup::small_at(address) else {
        return Err(Further { thread, small: NIL });
    };
    let record = block::at(id);
    let mark = thread.mark.load(Relaxed);
    // One comparison: exactly here starts a small block that this front handed out, that no other stream uses, and the front is armed.
    if record.head.load(Relaxed) != (address as u64).wrapping_add(mark) {
        return Err(Further { thread, small: id });
    }
    let front = unsafe { &*thread.front.load(Relaxed) };
    let units = record.units() as usize;
    if !front.wants(units) {
        free_unwanted(thread, front, id);
        return Ok(());
    }
    keep(front, record, id, units, (address as u64).wrapping_add(mark));
    if front.room.get() < 0 {
        make_room(thread, front);
        return Ok(());
    }
    thread.leave();
    Ok(())
}

/// A block that was handed out becomes one that is kept.
#[inline(always)]
fn keep(front: &Front, record: &Record, id: BlockId, units: usize, head: u64) {
    record.head.store(head ^ FLIP, Relaxed);
    let bytes = (units << UNIT_SHIFT) as i64;
    let requested = bytes - record.rounding() as i64;
    let first = unsafe { front.first.get_unchecked(units) };
    record.set_link_next(first.get());
    first.set(id);
    front.room.set(front.room.get() - bytes);
    front.shard().freed_small(bytes, requested);
}

#[inline(never)]
fn make_room(thread: &Thread, front: &Front) {
    front.give_up(&mut front.home.hold(thread));
    front.shard().check_room();
    thread.leave();
}

#[inline(never)]
fn free_unwanted(thread: &Thread, front: &Front, id: BlockId) {
    send_home(thread, front, id, true);
    thread.leave();
}

/// A block that a front of this thread handed out, and that the thread does not keep.
#[inline(always)]
fn send_home(thread: &Thread, front: &Front, id: BlockId, small: bool) {
    let table = block::table();
    let record = table.at(id);
    let (bytes, requested) = (record.size() as i64, record.requested() as i64);
    front.home.hold(thread).free(table, id, small);
    if small {
        front.shard().freed_small(bytes, requested);
        front.shard().check_room();
    } else if front.shard().freed_large(bytes, requested) {
        thread.forget_choices();
    }
}

/// The second half: not a small block of the stream that was used last.
#[inline(always)]
pub fn free_further(address: usize, Further { thread, small }: Further) -> bool {
    let starts_here = block::at(small).address() == address;
    let id = if starts_here { small } else { lookup::large_at(address).unwrap_or(NIL) };
    // As in `free`, for a large block. One byte above a small one looks the same.
    let mark = thread.mark.load(Relaxed) ^ SMALL;
    let head = block::at(id).head.load(Relaxed);
    if head == (address as u64).wrapping_add(mark) && head & SMALL == 0 {
        send_home(thread, unsafe { &*thread.front.load(Relaxed) }, id, false);
        thread.leave();
        return true;
    }
    free_elsewhere(thread, address, id)
}

/// A block of another stream, of another thread, or of a front that records.
#[inline(never)]
fn free_elsewhere(thread: &Thread, address: usize, id: BlockId) -> bool {
    match free_found(thread, address, id) {
        Some(None) => {
            thread.leave();
            true
        }
        // The region ends before the lock.
        Some(Some(front)) => {
            thread.leave();
            super::thread::bring_home(front);
            true
        }
        None => {
            thread.leave();
            false
        }
    }
}

/// None: not that way. A front with many blocks of others, which should go home.
#[inline(always)]
fn free_found(thread: &Thread, address: usize, id: BlockId) -> Option<Option<&'static Front>> {
    let record = block::at(id);
    let head = record.head.load(Relaxed);
    let front = numbered(record.owner())?;
    let mark = block::mark_of(front.id, head);
    if head != (address as u64).wrapping_add(mark) {
        return None;
    }
    if !std::ptr::eq(front.thread(), thread) {
        return take_from(thread, front, id, head);
    }
    if !front.is_armed() {
        return None;
    }
    front.tell_freed(record);
    let units = record.units() as usize;
    if head & SMALL == 0 {
        send_home(thread, front, id, false);
    } else if front.wants(units) {
        keep(front, record, id, units, head);
        if front.room.get() < 0 {
            front.give_up(&mut front.home.hold(thread));
            front.shard().check_room();
        }
    } else {
        send_home(thread, front, id, true);
    }
    Some(None)
}

/// A block that another thread handed out. This thread keeps it aside until many can be brought home behind one barrier.
#[inline(always)]
fn take_from(thread: &Thread, owner: &Front, id: BlockId, head: u64) -> Option<Option<&'static Front>> {
    let front = unsafe { thread.taker.get().as_ref() }?;
    let fits = front.is_armed() && std::ptr::eq(front.home, owner.home) && std::ptr::eq(front.thread(), thread);
    let record = block::at(id);
    let requested = record.requested();
    let bytes = record.size();
    if !fits || !record.change(head, State::Loose, front.id) {
        return None;
    }
    front.log(|log| log.freed(record.address(), requested));
    let count = front.loose_count.get();
    front.loose[count as usize % LOOSE].set(Loose { id, from: owner.id, bytes, requested });
    front.loose_count.set(count + 1);
    front.loose_bytes.set(front.loose_bytes.get() + bytes);
    if head & SMALL != 0 {
        front.shard().freed_small(bytes as i64, requested as i64);
        front.shard().check_room();
    } else if front.shard().freed_large(bytes as i64, requested as i64) {
        thread.forget_choices();
    }
    Some((count + 1 == LOOSE as u32 || front.loose_bytes.get() as i64 > ROOM).then_some(front))
}

impl Front {
    /// A block of just that size, up to 1 MiB, is handed out and the region ends. False: there is none.
    #[inline(always)]
    unsafe fn take<const RECORDS: bool>(&self, thread: &Thread, out: *mut usize, size: usize) -> bool {
        let units = (size + UNIT - 1) >> UNIT_SHIFT;
        let first = unsafe { self.first.get_unchecked(units) };
        let id = first.get();
        if id == NIL {
            return false;
        }
        let record = block::at(id);
        first.set(record.link_next());
        let head = record.head.load(Relaxed) ^ FLIP;
        record.head.store(head, Relaxed);
        let bytes = units << UNIT_SHIFT;
        record.set_rounding(bytes - size);
        self.room.set(self.room.get() + bytes as i64);
        if RECORDS {
            self.tell_allocated(record, size, false);
        }
        unsafe { *out = block::address_in(head) };
        if self.shard().allocated_small(bytes as i64, size as i64) {
            self.look(thread)
        } else {
            thread.leave()
        }
        true
    }

    #[cold]
    #[inline(never)]
    fn look(&self, thread: &Thread) {
        self.shard().look();
        thread.leave();
    }

    #[inline(always)]
    fn shard(&self) -> &'static Shard {
        unsafe { &*self.shard.load(Relaxed) }
    }

    #[inline(always)]
    pub fn thread(&self) -> *const Thread {
        self.thread.load(Relaxed)
    }

    #[inline(always)]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Relaxed)
    }

    /// In the region of its thread, or under the device's lock with all fronts stopped.
    #[inline(always)]
    pub fn records(&self) -> bool {
        unsafe { (*self.log.get()).is_some() }
    }

    #[inline(always)]
    fn log<T>(&self, tell: impl FnOnce(&mut Writer) -> T) -> Option<T> {
        unsafe { (*self.log.get()).as_mut() }.map(tell)
    }

    #[inline(always)]
    fn tell_allocated(&self, record: &Record, requested: usize, from_others: bool) {
        if let Some(annotation) = self.log(|log| log.allocated(record.address(), requested, from_others)) {
            record.set_annotation(annotation);
        }
    }

    #[inline(always)]
    fn tell_freed(&self, record: &Record) {
        self.log(|log| log.freed(record.address(), record.requested()));
    }

    #[inline(always)]
    fn wants(&self, units: usize) -> bool {
        unsafe { self.wanted.get_unchecked(units >> 6) }.get() >> (units & 63) & 1 != 0
    }

    /// A size that is missed a second time is wanted.
    #[inline(always)]
    fn miss(&self, units: usize, home: &mut Held<'_>) {
        let misses = self.misses.get().wrapping_add(1);
        self.misses.set(misses);
        if misses.is_multiple_of(ROUND) {
            self.begin_round(home);
        }
        let bit = 1 << (units & 63);
        let (missed, wanted) = (&self.missed[units >> 6], &self.wanted[units >> 6]);
        wanted.set(wanted.get() | (missed.get() & bit));
        missed.set(missed.get() | bit);
    }

    #[cold]
    #[inline(never)]
    fn begin_round(&self, home: &mut Held<'_>) {
        self.give_up(home);
        self.missed.iter().for_each(|bits| bits.set(0));
    }

    #[cold]
    #[inline(never)]
    fn carve_last(&self, home: &mut Held<'_>, units: u32) -> Option<BlockId> {
        self.give_up(home);
        let table = block::table();
        home.carve(table, units, true).or_else(|| home.carve_common(table, units))
    }

    #[cold]
    #[inline(never)]
    fn carve_brought(&self, home: &mut Held<'_>, units: u32) -> Option<BlockId> {
        if !self.home.has_brought() {
            return None;
        }
        self.take_brought(home);
        home.carve(block::table(), units, false)
    }

    /// What others brought: kept where it is wanted, else free.
    #[inline(never)]
    fn take_brought(&self, home: &mut Held<'_>) {
        let table = block::table();
        for id in self.home.brought() {
            let record = table.at(id);
            let units = record.units() as usize;
            if !record.mapped() {
                home.free_plain(id);
            } else if record.small() && self.wants(units) && self.room.get() > 0 {
                record.set(State::Cached, self.id);
                record.set_link_next(self.first[units].get());
                self.first[units].set(id);
                self.room.set(self.room.get() - (units << UNIT_SHIFT) as i64);
            } else {
                home.free(table, id, record.small());
            }
        }
    }

    /// Lets go of every block that is kept; no size is wanted any more.
    fn let_go(&self, mut free: impl FnMut(BlockId)) {
        self.room.set(ROOM);
        for (word, bits) in self.wanted.iter().enumerate() {
            let mut bits = bits.take();
            while bits != 0 {
                let mut id = self.first[word * 64 + bits.trailing_zeros() as usize].replace(NIL);
                bits &= bits - 1;
                while id != NIL {
                    let next = block::at(id).link_next();
                    free(id);
                    id = next;
                }
            }
        }
    }

    fn give_up(&self, home: &mut Held<'_>) {
        self.let_go(|id| home.free(block::table(), id, true));
    }

    // ---- under the device's lock

    /// It becomes the thread's, and may be used in its regions. What happens there goes to the history, if that is recorded.
    pub fn arm(&self, thread: &'static Thread, shard: &'static Shard, history: &'static History, stream: u64, pool: Id) {
        match self.log(|log| log.set_place(stream, pool)) {
            Some(()) => {}
            None => unsafe { *self.log.get() = history.writer(stream, pool) },
        }
        self.thread.store(std::ptr::from_ref(thread).cast_mut(), Relaxed);
        self.shard.store(std::ptr::from_ref(shard).cast_mut(), Relaxed);
        self.armed.store(true, Release);
    }

    /// What it wrote for the history, which it does no more until it is armed again. Stopped, as for `writer`.
    pub fn take_writer(&self) -> Option<Writer> {
        unsafe { (*self.log.get()).take() }
    }

    pub fn writer(&self) -> Option<&Writer> {
        unsafe { (*self.log.get()).as_ref() }
    }

    /// Its stream is gone: no handle means it any more.
    pub fn unchoose(&self) {
        self.is_chosen.store(false, Relaxed);
    }

    /// Nobody's, until another thread takes it. Disarmed.
    pub fn orphan(&self) {
        self.thread.store(null_mut(), Relaxed);
    }

    /// From the thread's next region on it comes to the lock. A barrier and `Thread::wait_idle` have to follow.
    pub fn disarm(&self) {
        self.armed.store(false, Relaxed);
        if let Some(thread) = unsafe { self.thread.load(Relaxed).as_ref() }
            && thread.selects(self)
        {
            thread.forget();
        }
    }

    /// After `Thread::wait_idle`: whether the thread had chosen this front while it was being disarmed.
    pub fn was_chosen_meanwhile(&self) -> bool {
        unsafe { self.thread.load(Relaxed).as_ref() }.is_some_and(|thread| thread.selects(self))
    }

    pub fn owner(&self) -> Option<&'static Thread> {
        unsafe { self.thread.load(Relaxed).as_ref() }
    }

    /// All blocks that it keeps. All fronts are stopped.
    pub fn empty(&self) -> Vec<BlockId> {
        let mut kept = Vec::new();
        if self.room.get() != ROOM {
            self.let_go(|id| kept.push(id));
        }
        kept
    }

    /// Which sizes come back is to be found out anew. It keeps nothing, and all fronts are stopped.
    pub fn forget_sizes(&self) {
        self.misses.set(0);
        self.missed.iter().chain(&self.wanted).for_each(|bits| bits.set(0));
    }

    pub fn has_loose(&self) -> bool {
        self.loose_count.get() != 0
    }

    /// The blocks of other threads that it holds, with the fronts that handed them out; none of these is in its region. Blocks that their
    /// own thread freed at the same instant are left out.
    pub fn loose(&self) -> impl Iterator<Item = BlockId> {
        let count = self.loose_count.take() as usize;
        self.loose_bytes.set(0);
        self.loose[..count.min(LOOSE)].iter().rev().map(Cell::get).filter_map(|Loose { id, bytes, requested, .. }| {
            let record = block::at(id);
            let ours = record.state() == State::Loose && record.owner() == self.id;
            if ours {
                // Once: what was freed twice at one instant, handed out and freed again is here twice. The last time is the true one.
                record.set(State::Pending, self.slot);
            } else {
                self.shard().unfreed(bytes <= SMALL_LIMIT, bytes, requested);
            }
            ours.then_some(id)
        })
    }

    /// The threads whose regions have to end before `loose`.
    pub fn loose_owners(&self) -> impl Iterator<Item = &'static Thread> {
        let count = self.loose_count.get() as usize;
        self.loose[..count.min(LOOSE)].iter().filter_map(|loose| numbered(loose.get().from)?.owner())
    }
}
