//! Blocks: stretches of an area, each knowing its neighbours by address. A block is a record of 32 bytes in one table of the process,
//! which is never unmapped: whoever holds an id may look, and the head says whether it is what he means.
//!
//! Fields are written by one side only: by whoever holds the block's home (see `home`), or by anybody under a device's lock while all
//! fronts are stopped. One field belongs to the left neighbour's side: `prev`. All of them are relaxed atomics, since others may look.
//!
//! Between blocks of different streams stands a fence, so that the thread of neither touches a line of memory that the other one writes: a
//! pair of records with no address, each in a line of its own. The left one is what the block to the left has as its `next`; whoever holds
//! that one's home writes its `prev`, as he would a neighbour's. The right one is the `prev` of the block to the right, which keeps its
//! name when it is cut or joined, so nobody writes there while threads go on, but a thread that takes what is everybody's (`border::take`). To
//! both sides a fence is a neighbour that is never free.

use super::StreamSlot;
use crate::base::{Error, Status};
use crate::memory::sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;

/// Index of a block in the table.
pub type BlockId = u32;
/// No block. There is a record behind it, which is never a block.
pub(in crate::memory) const NIL: BlockId = 0;

/// Sizes are multiples of this.
pub(in crate::memory) const UNIT_SHIFT: u32 = 9;
pub(in crate::memory) const UNIT: usize = 1 << UNIT_SHIFT;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not in use: a record that waits to be taken again.
    Unused = 0,
    /// Memory of its stream that can be handed out, in a list of the stream's home.
    Free = 1,
    /// Given back, but other streams that used it may not be done.
    Pending = 2,
    /// Address space with no memory behind it.
    Unmapped = 3,
    /// The driver is mapping or unmapping it, with the lock released.
    Busy = 4,
    /// Free, kept by a thread for its next request of this size.
    Cached = 5,
    /// Freed by a thread that did not allocate it, on its way to its home.
    Loose = 6,
    /// Mapped, but the memory behind it is owned by another place.
    Moved = 7,
    /// Handed out. The largest: see `mark_of`.
    Allocated = 15,
}

const STATES: [State; 8] =
    [State::Unused, State::Free, State::Pending, State::Unmapped, State::Busy, State::Cached, State::Loose, State::Moved];

/// The head of a record: the address, a multiple of 512, in bits 9 to 47; above it the owner; below it the state and these flags.
const STATE: u64 = 0xf << STATE_SHIFT;
const STATE_SHIFT: u32 = 3;
/// Lies in an area of small blocks.
pub(in crate::memory) const SMALL: u64 = 1 << 0;
/// No other stream used it; else `Core::uses` says which.
pub(in crate::memory) const CLEAN: u64 = 1 << 1;
/// Lies in virtual memory; else in a plain segment.
pub(in crate::memory) const MAPPED: u64 = 1 << 2;
const ADDRESS: u64 = 0x0000_ffff_ffff_fe00;
const OWNER_SHIFT: u32 = 48;

/// The head behind `NIL`, and of fences: no address and mark make it, and it is nobody's free memory.
const NO_HEAD: u64 = u64::MAX;
/// No front has a number from here on.
pub(in crate::memory) const FIRST_NO_FRONT: u16 = u16::MAX - 1;
/// The mark of no front.
pub(in crate::memory) const NO_MARK: u64 = (FIRST_NO_FRONT as u64) << OWNER_SHIFT;

const fn bits(state: State) -> u64 {
    (state as u64) << STATE_SHIFT
}

/// What a block that a front handed out, of virtual memory and clean, has in its head beside the address. Added to an address it is the
/// head of no other block: below the address stands the largest number that can, so a wrong address would have to lie lower, where the
/// table of addresses has another block or none.
#[inline(always)]
pub fn mark_of(front: u16, small: u64) -> u64 {
    (u64::from(front) << OWNER_SHIFT) | bits(State::Allocated) | CLEAN | MAPPED | (small & SMALL)
}

/// Between a handed-out block's head and a cached one's.
pub(in crate::memory) const FLIP: u64 = bits(State::Allocated) ^ bits(State::Cached);

#[inline(always)]
pub fn address_in(head: u64) -> usize {
    (head & ADDRESS) as usize
}

#[repr(C, align(32))]
pub struct Record {
    pub head: AtomicU64,
    /// Free: the neighbours in the list. Cached, loose, unused: the next one. Handed out, in the first: the bytes of rounding.
    link_next: AtomicU32,
    link_prev: AtomicU32,
    prev: AtomicU32,
    next: AtomicU32,
    units: AtomicU32,
    /// Free: others may have it when the stream is past this epoch. Handed out: what it was annotated with, if the history says so.
    ticket: AtomicU32,
}

impl Record {
    #[inline(always)]
    pub fn address(&self) -> usize {
        address_in(self.head.load(Relaxed))
    }

    #[inline(always)]
    pub fn state(&self) -> State {
        self.state_and_owner().0
    }

    /// Both at one instant.
    #[inline(always)]
    pub fn state_and_owner(&self) -> (State, u16) {
        let head = self.head.load(Relaxed);
        let state = STATES.get(((head & STATE) >> STATE_SHIFT) as usize).copied().unwrap_or(State::Allocated);
        (state, (head >> OWNER_SHIFT) as u16)
    }

    pub fn set_state(&self, state: State) {
        self.head.store(self.head.load(Relaxed) & !STATE | bits(state), Relaxed);
    }

    /// Handed out, cached, loose: the front. Else the stream's slot.
    #[inline(always)]
    pub fn owner(&self) -> u16 {
        (self.head.load(Relaxed) >> OWNER_SHIFT) as u16
    }

    #[inline(always)]
    fn head_as(head: u64, state: State, owner: u16) -> u64 {
        head & (ADDRESS | SMALL | MAPPED) | CLEAN | bits(state) | (u64::from(owner) << OWNER_SHIFT)
    }

    pub fn set_owner(&self, owner: u16) {
        self.head.store(self.head.load(Relaxed) & !(u64::MAX << OWNER_SHIFT) | u64::from(owner) << OWNER_SHIFT, Relaxed);
    }

    /// Its address.
    #[inline(always)]
    pub fn set(&self, state: State, owner: u16) -> usize {
        let head = self.head.load(Relaxed);
        self.head.store(Self::head_as(head, state, owner), Relaxed);
        address_in(head)
    }

    /// The same for a block that another thread may change: false, it did.
    pub fn change(&self, from: u64, state: State, owner: u16) -> bool {
        self.head.compare_exchange(from, Self::head_as(from, state, owner), Relaxed, Relaxed).is_ok()
    }

    /// Whether it is free memory of the stream, with room for neighbours to join it.
    #[inline(always)]
    pub fn is_free_of(&self, slot: StreamSlot) -> bool {
        self.head.load(Relaxed) & (STATE | u64::MAX << OWNER_SHIFT) == bits(State::Free) | (u64::from(slot) << OWNER_SHIFT)
    }

    #[inline(always)]
    pub fn small(&self) -> bool {
        self.head.load(Relaxed) & SMALL != 0
    }

    #[inline(always)]
    pub fn mapped(&self) -> bool {
        self.head.load(Relaxed) & MAPPED != 0
    }

    pub fn clean(&self) -> bool {
        self.head.load(Relaxed) & CLEAN != 0
    }

    #[inline(always)]
    pub fn units(&self) -> u32 {
        self.units.load(Relaxed)
    }

    /// The addresses that it has.
    pub fn range(&self) -> Range<usize> {
        self.address()..self.end()
    }

    /// Bytes behind its first multiple of `alignment`, a power of two.
    pub fn room_at(&self, alignment: usize) -> usize {
        self.end().saturating_sub(self.address().next_multiple_of(alignment))
    }

    #[inline(always)]
    pub fn size(&self) -> usize {
        (self.units() as usize) << UNIT_SHIFT
    }

    pub fn end(&self) -> usize {
        self.address() + self.size()
    }

    #[inline(always)]
    pub fn prev(&self) -> BlockId {
        self.prev.load(Relaxed)
    }

    #[inline(always)]
    pub fn next(&self) -> BlockId {
        self.next.load(Relaxed)
    }

    #[inline(always)]
    pub fn ticket(&self) -> u32 {
        self.ticket.load(Relaxed)
    }

    #[inline(always)]
    pub fn set_ticket(&self, ticket: u32) {
        self.ticket.store(ticket, Relaxed);
    }

    /// Of a handed-out block, while the history of its device is recorded.
    pub fn annotation(&self) -> u32 {
        self.ticket()
    }

    #[inline(always)]
    pub fn set_annotation(&self, annotation: u32) {
        self.set_ticket(annotation);
    }

    #[inline(always)]
    pub fn link_next(&self) -> BlockId {
        self.link_next.load(Relaxed)
    }

    #[inline(always)]
    pub fn link_prev(&self) -> BlockId {
        self.link_prev.load(Relaxed)
    }

    #[inline(always)]
    pub fn set_link_next(&self, next: BlockId) {
        self.link_next.store(next, Relaxed);
    }

    #[inline(always)]
    pub fn set_link_prev(&self, prev: BlockId) {
        self.link_prev.store(prev, Relaxed);
    }

    /// What it is apart from its neighbours; it is in no list.
    pub fn become_like(&self, other: &Record) {
        self.head.store(other.head.load(Relaxed), Relaxed);
        self.units.store(other.units(), Relaxed);
        self.set_ticket(other.ticket());
    }

    /// Of a handed-out or pending block: what it has more than was asked for.
    #[inline(always)]
    pub fn rounding(&self) -> usize {
        self.link_next.load(Relaxed) as usize
    }

    #[inline(always)]
    pub fn set_rounding(&self, rounding: usize) {
        debug_assert!(u32::try_from(rounding).is_ok());
        self.link_next.store(rounding as u32, Relaxed);
    }

    /// Of a handed-out or pending block: the bytes as asked for. Anything up to its size where two threads free it at once.
    #[inline(always)]
    pub fn requested(&self) -> usize {
        self.size().saturating_sub(self.rounding())
    }
}

/// Records that the table has room for, and the fewer that are tried where addresses are short. Multiples of a stretch.
const MOST: [usize; 4] = [1 << 27, 1 << 25, 1 << 23, 1 << 21];

/// What stands for no block while there is no table.
static NOTHING: Record = Record {
    head: AtomicU64::new(NO_HEAD),
    link_next: AtomicU32::new(0),
    link_prev: AtomicU32::new(0),
    prev: AtomicU32::new(NIL),
    next: AtomicU32::new(NIL),
    units: AtomicU32::new(0),
    ticket: AtomicU32::new(0),
};
static TABLE: AtomicPtr<Record> = AtomicPtr::new((&raw const NOTHING).cast_mut());
/// A pool gets so many records at once. They begin on a multiple, so that no line of memory has records of two pools.
const BATCH: u32 = 128;
/// Records that a line of memory has.
const LINE: u32 = (64 / size_of::<Record>()) as u32;
/// Records whose memory is opened at once. What nobody needs yet is no memory to the system: it counts towards no limit of memory that is
/// promised, and what searches a process for leaks does not read it.
const STRETCH: u32 = 1 << 19;
static GIVEN: Mutex<Given> = Mutex::new(Given { next: BATCH, opened: 0, most: 0 });

struct Given {
    /// The first record that no pool has.
    next: u32,
    /// Those before this one can be read and written.
    opened: u32,
    most: u32,
}

impl Given {
    /// Opens the records before `end`. False: the table has no more, or the system no memory.
    fn open(&mut self, end: u32) -> bool {
        if end <= self.opened {
            return true;
        }
        let upto = end.next_multiple_of(STRETCH);
        let opened = upto <= self.most && open(TABLE.load(Relaxed), self.opened..upto);
        if opened {
            self.opened = upto;
        }
        opened
    }
}

fn open(table: *mut Record, ids: Range<u32>) -> bool {
    let (first, size) = (table.wrapping_add(ids.start as usize), ids.len() * size_of::<Record>());
    unsafe { libc::mprotect(first.cast(), size, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

/// Where the table stands. Paths that look at many blocks ask once.
#[derive(Clone, Copy)]
pub struct Table(*const Record);

#[inline(always)]
pub fn table() -> Table {
    Table(TABLE.load(Relaxed))
}

impl Table {
    /// Ids come from pools and from the table of addresses, so there is a record.
    #[inline(always)]
    pub fn at(self, id: BlockId) -> &'static Record {
        unsafe { &*self.0.add(id as usize) }
    }
}

#[inline(always)]
pub fn at(id: BlockId) -> &'static Record {
    table().at(id)
}

/// Makes the table; memory comes with use. False: the process has no addresses for it.
pub fn reserve() -> bool {
    let mut given = GIVEN.lock();
    if given.opened != 0 {
        return true;
    }
    for count in MOST {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let size = count * size_of::<Record>();
        let table = unsafe { libc::mmap(null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
        if table == libc::MAP_FAILED {
            continue;
        }
        if open(table.cast(), 0..STRETCH) {
            unsafe { &*table.cast::<Record>() }.head.store(NO_HEAD, Relaxed);
            TABLE.store(table.cast(), Relaxed);
            *given = Given { next: BATCH, opened: STRETCH, most: count as u32 };
            return true;
        }
        unsafe { libc::munmap(table, size) };
    }
    false
}

/// How many records pools were given.
pub fn given() -> u32 {
    GIVEN.lock().next
}

/// So many records are left for who has the lock: one request may cut blocks of many streams, each with records of its own, and what goes back to
/// the driver is cut out.
const SOME: u32 = 1 << 16;

/// Whether these are there, and a pool's records too.
pub fn has_room() -> bool {
    let mut given = GIVEN.lock();
    let end = given.next + BATCH + SOME;
    given.open(end)
}

/// Records for a pool; so many stay with nobody.
fn given_but(left: u32) -> Option<Range<BlockId>> {
    let mut given = GIVEN.lock();
    let ids = given.next..given.next + BATCH;
    given.open(ids.end + left).then(|| {
        given.next = ids.end;
        ids
    })
}

#[cold]
pub fn no_room() -> Error {
    Error::new(Status::TCUDA_ERROR_OUT_OF_HOST_MEMORY, "The host has no room for the records of more blocks.")
}

/// Unused records of one home. Not shared.
#[derive(Default)]
pub struct Pool {
    first: BlockId,
}

impl Pool {
    /// None: the table is full.
    #[inline(always)]
    pub fn take(&mut self, table: Table) -> Option<BlockId> {
        if self.first == NIL && !self.refill() {
            return None;
        }
        let id = self.first;
        self.first = table.at(id).link_next();
        Some(id)
    }

    /// One whose first records are the first of their lines: the first block of each thread that comes to a stream is cut off beside the last one's.
    /// What one thread makes more of goes by lines.
    pub fn apart() -> Pool {
        const COUNT: u32 = 24;
        let is_first = |id: &BlockId| id % BATCH < COUNT * LINE && id.is_multiple_of(LINE);
        let mut pool = Pool::default();
        let (firsts, others): (Vec<BlockId>, Vec<BlockId>) = given_but(SOME).into_iter().flatten().partition(is_first);
        firsts.into_iter().chain(others).rev().for_each(|id| pool.put(table(), id));
        pool
    }

    #[cold]
    #[inline(never)]
    fn refill(&mut self) -> bool {
        self.refill_but(SOME)
    }

    fn refill_but(&mut self, left: u32) -> bool {
        let ids = given_but(left);
        ids.into_iter().flatten().rev().for_each(|id| self.put(table(), id));
        self.first != NIL
    }

    /// Has one, if need be of the last ones.
    pub fn insist(&mut self) {
        if self.first == NIL {
            self.refill_but(0);
        }
    }

    /// One that can be done without: the last are for what cannot.
    pub fn spare(&mut self) -> Option<BlockId> {
        if self.first == NIL && !has_room() { None } else { self.take(table()) }
    }

    /// One that is here already.
    pub fn unused(&mut self) -> Option<BlockId> {
        if self.first == NIL { None } else { self.take(table()) }
    }

    #[inline(always)]
    pub fn put(&mut self, table: Table, id: BlockId) {
        let record = table.at(id);
        record.head.store(bits(State::Unused), Relaxed);
        record.set_link_next(self.first);
        self.first = id;
    }

    /// A block that is alone in its area.
    pub fn insert(&mut self, address: usize, size: usize, flags: u64, state: State, slot: StreamSlot) -> Option<BlockId> {
        let id = self.take(table())?;
        let record = at(id);
        record.head.store(address as u64 | flags | CLEAN | bits(state) | (u64::from(slot) << OWNER_SHIFT), Relaxed);
        record.set_link_next(NIL);
        record.prev.store(NIL, Relaxed);
        record.next.store(NIL, Relaxed);
        record.units.store((size >> UNIT_SHIFT) as u32, Relaxed);
        record.ticket.store(0, Relaxed);
        Some(id)
    }

    /// Cuts a block: it keeps the first `units`, a new one right of it (same state and owner, in no list) has the rest.
    /// None: the table is full, and nothing changed.
    #[inline(always)]
    pub fn split(&mut self, table: Table, id: BlockId, units: u32) -> Option<BlockId> {
        let right_id = self.take(table)?;
        let (left, right) = (table.at(id), table.at(right_id));
        debug_assert!(units > 0 && units < left.units());
        right.head.store(left.head.load(Relaxed).wrapping_add(u64::from(units) << UNIT_SHIFT), Relaxed);
        right.units.store(left.units() - units, Relaxed);
        right.ticket.store(left.ticket(), Relaxed);
        right.prev.store(id, Relaxed);
        let next = left.next();
        right.next.store(next, Relaxed);
        if next != NIL {
            table.at(next).prev.store(right_id, Relaxed);
        }
        left.units.store(units, Relaxed);
        left.next.store(right_id, Relaxed);
        Some(right_id)
    }

    /// Joins a block with its right neighbour, which ends; neither is in a list.
    #[inline(always)]
    pub fn join(&mut self, table: Table, id: BlockId) {
        let block = table.at(id);
        let right = block.next();
        let gone = table.at(right);
        debug_assert!(block.end() == gone.address());
        block.units.store(block.units() + gone.units(), Relaxed);
        let next = gone.next();
        block.next.store(next, Relaxed);
        block.set_ticket(block.ticket().max(gone.ticket()));
        if next != NIL {
            table.at(next).prev.store(id, Relaxed);
        }
        self.put(table, right);
    }
}

/// Fences that stand nowhere, by their left records.
#[derive(Default)]
pub struct Fences(Pool);

impl Fences {
    /// Records that a fence has room for: two lines, of each of which it uses one record.
    const ROOM: u32 = 2 * LINE;

    /// None: there are few records left.
    pub fn take(&mut self) -> Option<BlockId> {
        loop {
            let id = self.0.spare()?;
            if id.is_multiple_of(Fences::ROOM) {
                return Some(id);
            }
        }
    }

    pub fn put(&mut self, fence: BlockId) {
        self.0.put(table(), fence);
    }
}

/// The other record of a fence.
pub fn twin(face: BlockId) -> BlockId {
    face ^ (Fences::ROOM / 2)
}

// ---- neighbours, with all fronts stopped, or in a region that holds the home of whichever side is written

fn is_no_block(id: BlockId) -> bool {
    at(id).head.load(Relaxed) == NO_HEAD
}

pub fn left_of(id: BlockId) -> BlockId {
    let prev = at(id).prev();
    if is_no_block(prev) { at(at(prev).prev()).prev() } else { prev }
}

pub fn right_of(id: BlockId) -> BlockId {
    let next = at(id).next();
    if is_no_block(next) { at(next).next() } else { next }
}

/// The records of fences that a block has beside it: what nobody changes while the block is handed out.
pub fn faces(id: BlockId) -> impl Iterator<Item = BlockId> {
    [at(id).prev(), at(id).next()].into_iter().filter(|face| *face != NIL && is_no_block(*face))
}

/// The fence between a block and the next one.
pub fn fence_behind(id: BlockId) -> Option<BlockId> {
    let next = at(id).next();
    (next != NIL && is_no_block(next)).then_some(next)
}

/// The streams to both sides of a fence.
pub fn slots_at(fence: BlockId) -> [StreamSlot; 2] {
    [fence, twin(fence)].map(|face| at(face).ticket() as StreamSlot)
}

/// The fence between a block and the one before.
pub fn fence_before(id: BlockId) -> Option<BlockId> {
    let prev = at(id).prev();
    (prev != NIL && is_no_block(prev)).then(|| at(prev).prev())
}

/// Makes two blocks neighbours, of which one may be none.
pub fn link(left: BlockId, right: BlockId) {
    if left != NIL {
        at(left).next.store(right, Relaxed);
    }
    if right != NIL {
        at(right).prev.store(left, Relaxed);
    }
}

/// The same with a fence between them, whose records have as tickets the streams of the blocks that they stand at.
pub fn link_by(fence: BlockId, left: BlockId, right: BlockId, slots: [StreamSlot; 2]) {
    [fence, twin(fence)].into_iter().for_each(|face| at(face).head.store(NO_HEAD, Relaxed));
    at(twin(fence)).prev.store(fence, Relaxed);
    link_left(left, fence, slots[0]);
    link_right(fence, right, slots[1]);
}

/// Of a fence that stands its left neighbour.
pub fn link_left(left: BlockId, fence: BlockId, slot: StreamSlot) {
    at(left).next.store(fence, Relaxed);
    at(fence).prev.store(left, Relaxed);
    at(fence).set_ticket(u32::from(slot));
}

/// Its right one.
pub fn link_right(fence: BlockId, right: BlockId, slot: StreamSlot) {
    at(fence).next.store(right, Relaxed);
    at(twin(fence)).set_ticket(u32::from(slot));
    at(right).prev.store(twin(fence), Relaxed);
}

/// The blocks from `first` on, by address.
pub fn chain(first: BlockId) -> impl Iterator<Item = BlockId> {
    let some = |id: BlockId| (id != NIL).then_some(id);
    std::iter::successors(some(first), move |id| some(right_of(*id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_records_beyond_those_that_are_opened_at_first() {
        assert!(reserve());
        let mut pool = Pool::default();
        let ids: Vec<_> = (0..STRETCH + BATCH).map(|_| pool.take(table()).unwrap()).collect();
        assert!(ids.iter().any(|id| *id >= STRETCH) && GIVEN.lock().opened > STRETCH);
        ids.into_iter().for_each(|id| pool.put(table(), id));
        assert!(!GIVEN.lock().open(u32::MAX - STRETCH) && has_room());
    }
}
