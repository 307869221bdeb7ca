//! A stream's free memory on its device, and the order of its frees.
//!
//! Who may touch it: the thread whose fronts alone use it (`owner`), in its region; where several do, whoever has `taken` it, in his
//! region; and anybody under the device's lock with all fronts stopped. See `front`. That of what is everybody's has no front: while streams are
//! as one the thread that allocates owns it, and takes from it what fits closer than its stream's own, or small blocks where that has none
//! (`Shelf::beside`).

use super::block::{self, BlockId, Fences, NIL, Pool, Record, State, Table, UNIT, UNIT_SHIFT, table};
use super::core::SOME;
use super::freelist::FreeList;
use super::front::Thread;
use super::{StreamSlot, border, tls};
use crate::memory::stats::Family;
use crate::memory::sync::{self, AtomicBool, AtomicPtr, AtomicU32};
use crate::memory::totals::Totals;
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

#[repr(align(128))]
pub struct Home {
    /// The thread that uses it alone.
    pub owner: AtomicPtr<Thread>,
    taken: AtomicBool,
    /// Blocks that other threads freed, linked: they join the free ones when somebody looks.
    incoming: AtomicU32,
    /// Frees carry it. When the device is asked how far the stream is, the next one begins, with all fronts stopped.
    pub epoch: AtomicU32,
    /// The newest epoch in which something was freed.
    pub freed_in: AtomicU32,
    shelf: UnsafeCell<Shelf>,
}

unsafe impl Sync for Home {}
unsafe impl Send for Home {}

/// What is in a home.
pub struct Shelf {
    pub slot: StreamSlot,
    /// Free blocks: small, large.
    lists: [FreeList; 2],
    pub pool: Pool,
    pub sizes: Sizes,
    /// Of a stream that is as one with others: the home of what is everybody's, which may have what fits closer, or at all.
    pub beside: Option<&'static Home>,
    /// Of what is everybody's: once so many bytes of large blocks were freed streams are asked before it is torn; and the fences that stand nowhere.
    pub asks_from: u64,
    pub fences: Fences,
    totals: &'static Totals,
}

/// Whether the sizes of large blocks come back.
pub struct Sizes {
    lately: Box<[u32; Sizes::PLACES]>,
    new: u32,
    all: u32,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { lately: Box::new([0; Sizes::PLACES]), new: 0, all: 0 }
    }
}

impl Sizes {
    const PLACES: usize = 1024;
    /// After so many blocks the past counts half.
    const WINDOW: u32 = 512;

    #[inline(always)]
    pub fn note(&mut self, units: u32) {
        let place = (units.wrapping_mul(0x9e37_79b1) >> 22) as usize & (Sizes::PLACES - 1);
        if self.lately[place] != units {
            self.lately[place] = units;
            self.new += 1;
        }
        self.all += 1;
        if self.all > Sizes::WINDOW {
            (self.new, self.all) = (self.new / 2, self.new / 2 + (self.all - self.new) / 2);
        }
    }

    pub fn clear(&mut self) {
        // A stream's that never was at work is not touched.
        if self.all > 0 {
            self.lately.fill(0);
            (self.new, self.all) = (0, 0);
        }
    }

    /// A round is over: the next one counts in the same steps, so that where the same comes again the same is found. Too few say nothing of
    /// more.
    pub fn align(&mut self) {
        const COUNT: u32 = Sizes::WINDOW / 2;
        if self.all >= COUNT {
            self.new = (self.new * COUNT + self.all / 2) / self.all;
            self.all = COUNT;
        }
    }

    /// Blocks of a new size, and of one that was seen; none while there are too few to tell.
    pub fn counts(&self) -> (u32, u32) {
        const ENOUGH: u32 = 128;
        if self.all < ENOUGH { (0, 0) } else { (self.new, self.all - self.new) }
    }
}

/// A home in the hands of a thread that is in its region.
pub struct Held<'a> {
    home: &'a Home,
    shared: bool,
}

impl std::ops::Deref for Held<'_> {
    type Target = Shelf;
    #[inline(always)]
    fn deref(&self) -> &Shelf {
        unsafe { &*self.home.shelf.get() }
    }
}

impl std::ops::DerefMut for Held<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Shelf {
        unsafe { &mut *self.home.shelf.get() }
    }
}

impl Held<'_> {
    /// A large block of a stream that is as one with others: out of what is its own or everybody's, whichever fits closer. None also where that is not
    /// for this thread to take, or streams are asked before it is torn.
    pub fn carve_closest(&mut self, table: Table, units: u32) -> Option<BlockId> {
        let own = self.list(false).find(table, units, false, false);
        let is_close = |id: &BlockId| fits_within(CLOSE, table.at(*id).units(), units);
        if let Some(own) = own.filter(is_close) {
            return self.carve_own(table, own, units, false);
        }
        let common = self.common()?;
        let found = common.list(false).find(table, units, false, false);
        match own {
            Some(own) if found.is_none_or(|found| table.at(own).units() <= table.at(found).units()) => {
                self.carve_own(table, own, units, false)
            }
            _ => {
                let tears = |found: &BlockId| is_close(found) || self.totals.large_bytes_freed() <= common.asks_from;
                found.filter(tears).and_then(|found| border::take(self, common, found, units, units, false))
            }
        }
    }

    /// A small block of such a stream where `carve` gives none: out of what is everybody's, of which the stream gets some.
    pub fn carve_common(&mut self, table: Table, units: u32) -> Option<BlockId> {
        let common = self.common()?;
        let found = common.list(true).find(table, units, true, false)?;
        border::take(self, common, found, units, (SOME >> UNIT_SHIFT) as u32, true)
    }

    /// What is everybody's, if the stream is as one with others and it is this thread's: until all fronts are stopped. It is another home than this.
    #[allow(clippy::mut_from_ref)]
    fn common(&self) -> Option<&'static mut Shelf> {
        let beside = self.beside.filter(|beside| std::ptr::eq(beside.owner.load(Relaxed), tls::get()))?;
        Some(unsafe { &mut *beside.shelf.get() })
    }

    /// A block of virtual memory that is freed now.
    #[inline(always)]
    pub fn free(&mut self, table: Table, id: BlockId, small: bool) {
        table.at(id).set_ticket(self.home.note_free());
        self.join_free::<false>(table, id, small);
    }

    /// One of a plain segment.
    #[cold]
    pub fn free_plain(&mut self, id: BlockId) {
        block::at(id).set_ticket(self.home.note_free());
        self.make_free(id);
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.shared {
            self.home.taken.store(false, Release);
        }
    }
}

/// Frees start with it. In tests near the end, so that they see the counter begin anew.
pub(super) const FIRST_EPOCH: u32 = if cfg!(debug_assertions) { LAST_EPOCH - 200 } else { 1 };
/// Then tickets are renumbered.
pub(super) const LAST_EPOCH: u32 = u32::MAX - 8;

impl Home {
    /// None: the table of blocks is full.
    pub fn new(slot: StreamSlot, totals: &'static Totals) -> Option<&'static Home> {
        let mut pool = Pool::apart();
        let ends = [pool.take(table())?, pool.take(table())?];
        // At its place from the start: the lists are larger than what small stacks have left.
        let mut made = Box::<Home>::new_uninit();
        let home = made.as_mut_ptr();
        let made = unsafe {
            let shelf = UnsafeCell::raw_get(&raw const (*home).shelf);
            (&raw mut (*home).owner).write(AtomicPtr::new(null_mut()));
            (&raw mut (*home).taken).write(AtomicBool::new(false));
            (&raw mut (*home).incoming).write(AtomicU32::new(NIL));
            (&raw mut (*home).epoch).write(AtomicU32::new(FIRST_EPOCH));
            (&raw mut (*home).freed_in).write(AtomicU32::new(0));
            (&raw mut (*shelf).slot).write(slot);
            (&raw mut (*shelf).lists).write_bytes(0, 1);
            for (list, end) in ends.into_iter().enumerate() {
                (*shelf).lists[list].begin(end);
            }
            (&raw mut (*shelf).pool).write(pool);
            (&raw mut (*shelf).sizes).write(Sizes::default());
            (&raw mut (*shelf).beside).write(None);
            (&raw mut (*shelf).asks_from).write(u64::MAX);
            (&raw mut (*shelf).fences).write(Fences::default());
            (&raw mut (*shelf).totals).write(totals);
            made.assume_init()
        };
        Some(Box::leak(made))
    }

    pub fn has_brought(&self) -> bool {
        self.incoming.load(Relaxed) != NIL
    }

    /// Something is freed: the epoch that it carries. Under the device's lock by `Core::note_free`, which has the stream looked at.
    #[inline(always)]
    pub fn note_free(&self) -> u32 {
        let epoch = self.epoch.load(Relaxed);
        self.freed_in.store(epoch, Relaxed);
        epoch
    }

    /// For a thread in its region, one of whose fronts uses this home.
    #[inline(always)]
    pub fn hold(&self, thread: &Thread) -> Held<'_> {
        let shared = !std::ptr::eq(self.owner.load(Relaxed), thread);
        if shared {
            self.take();
        }
        Held { home: self, shared }
    }

    /// Whoever waits comes back ever later: who has it takes it again meanwhile, with all that it needs in its own lines.
    #[cold]
    #[inline(never)]
    fn take(&self) {
        const MOST: u32 = if cfg!(test) { 8 } else { 512 };
        let mut pause = 4;
        while self.taken.load(Relaxed) || self.taken.swap(true, Acquire) {
            (0..pause).for_each(|_| sync::spin_loop());
            if pause < MOST { pause *= 2 } else { sync::yield_now() }
        }
    }

    /// # Safety
    /// The device's lock is held and all fronts are stopped; nobody changes the shelf while this lives.
    pub unsafe fn seen(&self) -> &Shelf {
        unsafe { &*self.shelf.get() }
    }

    /// # Safety
    /// The device's lock is held and all fronts are stopped; no other reference to the shelf lives.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn shelf(&self) -> &mut Shelf {
        unsafe { &mut *self.shelf.get() }
    }

    /// A block that somebody else freed. From any thread.
    pub fn bring(&self, id: BlockId) {
        let mut first = self.incoming.load(Relaxed);
        loop {
            block::at(id).set_link_next(first);
            match self.incoming.compare_exchange_weak(first, id, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// All that others brought since.
    pub fn brought(&self) -> impl Iterator<Item = BlockId> {
        let mut id = if self.incoming.load(Relaxed) == NIL { NIL } else { self.incoming.swap(NIL, Acquire) };
        std::iter::from_fn(move || {
            let this = id;
            if this != NIL {
                id = block::at(this).link_next();
            }
            (this != NIL).then_some(this)
        })
    }
}

impl Shelf {
    pub fn list(&self, small: bool) -> &FreeList {
        &self.lists[usize::from(small)]
    }

    /// Small and large ones, where there are no more than so many.
    pub fn forget_order(&mut self, most: usize) {
        for list in &mut self.lists {
            let mut count = 0;
            list.each(most.saturating_add(1), |_| count += 1);
            if count <= most {
                list.forget_order();
            }
        }
    }

    #[inline(always)]
    fn enlist<const PLAIN: bool>(&mut self, table: Table, id: BlockId, small: bool) {
        if PLAIN {
            self.count_split(table.at(id), true);
        }
        self.lists[usize::from(small)].insert(table, id);
    }

    #[inline(always)]
    fn unlist<const PLAIN: bool>(&mut self, table: Table, id: BlockId, small: bool) {
        if PLAIN {
            self.count_split(table.at(id), false);
        }
        self.lists[usize::from(small)].remove(table, id);
    }

    pub fn insert(&mut self, id: BlockId) {
        let (table, record) = (table(), block::at(id));
        if record.mapped() { self.enlist::<false>(table, id, record.small()) } else { self.enlist::<true>(table, id, record.small()) }
    }

    pub fn remove(&mut self, id: BlockId) {
        let (table, record) = (table(), block::at(id));
        if record.mapped() { self.unlist::<false>(table, id, record.small()) } else { self.unlist::<true>(table, id, record.small()) }
    }

    /// torch's inactive split: a free part of a plain segment whose other parts are in use.
    #[cold]
    fn count_split(&self, record: &Record, more: bool) {
        if record.prev() == NIL && record.next() == NIL {
            return;
        }
        let count = if more { Totals::add } else { Totals::sub };
        count(self.totals, Family::InactiveSplit, record.small(), 1);
        count(self.totals, Family::InactiveSplitBytes, record.small(), record.size());
    }

    /// A block that is in no list becomes free memory of the stream, joined with what is free beside it.
    pub fn make_free(&mut self, id: BlockId) {
        let (table, record) = (table(), block::at(id));
        let small = record.small();
        _ = if record.mapped() { self.join_free::<false>(table, id, small) } else { self.join_free::<true>(table, id, small) };
    }

    /// What it has become a part of.
    #[inline(always)]
    pub(super) fn join_free<const PLAIN: bool>(&mut self, table: Table, mut id: BlockId, small: bool) -> BlockId {
        let record = table.at(id);
        record.set(State::Free, self.slot);
        let (prev, next) = (record.prev(), record.next());
        if table.at(next).is_free_of(self.slot) {
            self.unlist::<PLAIN>(table, next, small);
            self.pool.join(table, id);
        }
        if table.at(prev).is_free_of(self.slot) {
            self.unlist::<PLAIN>(table, prev, small);
            self.pool.join(table, prev);
            id = prev;
        }
        self.enlist::<PLAIN>(table, id, small);
        id
    }

    /// Takes a block of `units` out of what is free; its state is still that of the free one, and what is left stays free. Of small blocks the first
    /// that fits will do, and who goes without gives up what he keeps.
    #[inline(always)]
    pub fn carve(&mut self, table: Table, units: u32, small: bool) -> Option<BlockId> {
        let id = self.lists[usize::from(small)].find(table, units, small, false)?;
        self.carve_own(table, id, units, small)
    }

    #[inline(always)]
    fn carve_own(&mut self, table: Table, id: BlockId, units: u32, small: bool) -> Option<BlockId> {
        if table.at(id).mapped() { self.cut::<false>(table, id, units, small) } else { self.cut_plain(table, id, units, small) }
    }

    #[cold]
    fn cut_plain(&mut self, table: Table, id: BlockId, units: u32, small: bool) -> Option<BlockId> {
        self.cut::<true>(table, id, units, small)
    }

    #[inline(always)]
    pub(super) fn cut<const PLAIN: bool>(&mut self, table: Table, id: BlockId, units: u32, small: bool) -> Option<BlockId> {
        self.unlist::<PLAIN>(table, id, small);
        if table.at(id).units() > units {
            match self.pool.split(table, id, units) {
                Some(rest) => self.enlist::<PLAIN>(table, rest, small),
                None => {
                    self.enlist::<PLAIN>(table, id, small);
                    return None;
                }
            }
        }
        Some(id)
    }

    /// The same at a multiple of `alignment`, wherever there is one with room behind it; `all` searches to the end.
    pub fn carve_aligned(&mut self, size: usize, alignment: usize, small: bool, all: bool) -> Option<BlockId> {
        let (table, units) = (table(), (size >> UNIT_SHIFT) as u32);
        debug_assert!(size.is_multiple_of(UNIT));
        if alignment <= UNIT {
            let id = self.list(small).find(table, units, small, all)?;
            return self.carve_own(table, id, units, small);
        }
        let surely = units + ((alignment - UNIT) >> UNIT_SHIFT) as u32;
        let mut id = self.list(small).find_where(units, surely, all, |id| table.at(id).room_at(alignment) >= size)?;
        let offset = table.at(id).size() - table.at(id).room_at(alignment);
        if offset > 0 {
            self.remove(id);
            let aligned = self.pool.split(table, id, (offset >> UNIT_SHIFT) as u32);
            self.insert(id);
            id = aligned?;
            self.insert(id);
        }
        self.carve_own(table, id, units, small)
    }
}

/// What is free fits a request closely with no more than this part of it over: nothing better is looked for.
pub const CLOSE: u32 = 16;

/// Of what is no smaller than the request.
pub fn fits_within(part: u32, found: u32, units: u32) -> bool {
    found - units <= units / part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_count_new_sizes_alike() {
        let mut sizes = Sizes::default();
        // Every other size comes back; a round is no whole part of a window.
        let mut fresh = 1000;
        let mut round = |sizes: &mut Sizes| -> Vec<(u32, u32)> {
            let note = |step: u32| {
                fresh += step % 2;
                sizes.note(if step.is_multiple_of(2) { 1 } else { fresh });
                sizes.counts()
            };
            (0..700).map(note).collect()
        };
        let rounds = [(); 4].map(|()| {
            let counts = round(&mut sizes);
            sizes.align();
            counts
        });
        assert_eq!(rounds[2], rounds[3]);
        assert!(rounds[3].iter().all(|(new, seen)| (new + seen) * 9 < new * 20 && (new + seen) * 11 > new * 20));
        // Too few say nothing, and stay.
        let mut sizes = Sizes::default();
        sizes.note(7);
        sizes.align();
        assert_eq!((sizes.new, sizes.all), (1, 1));
    }
}
