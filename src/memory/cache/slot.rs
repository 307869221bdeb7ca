//! Streams as the cache sees them, and what it keeps for each: a slot, which another stream gets when nothing is left of this one.

use super::StreamSlot;
use super::block::{self, BlockId, State};
use super::core::Core;
use super::front::{self, Front, Leaves};
use super::home::Home;
use super::order::Serial;
use crate::base::due::Due;
use crate::base::spared::Uncancelled;
use crate::base::{Error, Result, Status, process};
use crate::memory::marks::Known;
use crate::runtime::RawStream;
use crate::stream::{self, Stream};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// A stream as the cache sees it: the per-thread default stream is another one in every thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StreamKey {
    pub raw: RawStream,
    /// 0 but for the per-thread default stream.
    pub thread: u64,
}

impl StreamKey {
    #[inline]
    pub fn of(stream: Stream) -> StreamKey {
        let raw = if stream.raw == 1 { stream::DEFAULT } else { stream.raw };
        StreamKey { raw, thread: if raw == stream::PER_THREAD { this_thread(Some(stream)) } else { 0 } }
    }

    /// Whether the calling thread can enqueue work on it.
    pub fn reachable(self) -> bool {
        self.raw != stream::PER_THREAD || self.thread == this_thread(None)
    }

    /// Whether it is a default stream that the calling thread had, and which has ended.
    pub fn has_ended_here(self) -> bool {
        let last = LAST.get();
        self.raw == stream::PER_THREAD && last != 0 && self.thread <= last && (self.thread ^ last).is_multiple_of(STEP)
    }
}

/// The default streams that a thread has, one for each device. Destructors may use them until CUDA ends them, and what comes to use them then has
/// others, by a number of their own.
#[derive(Clone, Copy)]
struct Own {
    number: u64,
    /// One of them, and what tells it from a later one.
    stream: Stream,
    id: Option<u64>,
}

/// From one number of a thread to its next one: more than there are threads.
const STEP: u64 = 1 << 48;
// Plain cells: they can be used as long as the thread runs.
thread_local!(static OWN: Cell<Option<Own>> = const { Cell::new(None) });
// The number of those that ended last, or 0.
thread_local!(static LAST: Cell<u64> = const { Cell::new(0) });

/// A number of this thread's own, never used again. 0 for a thread that never used its default stream.
fn this_thread(used: Option<Stream>) -> u64 {
    /// Where CUDA was there before tcuda, its end of a thread comes before tcuda's: what was freed by now is asked for while that can be done.
    struct Settles;
    impl Drop for Settles {
        fn drop(&mut self) {
            let _whole = Uncancelled::enter();
            if let Some(own) = OWN.get() {
                crate::memory::thread_settles(own.number);
            }
        }
    }
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static SETTLES: Settles = const { Settles });
    if let Some(own) = OWN.get() {
        return own.number;
    }
    let Some(stream) = used else { return 0 };
    let number = match LAST.get() {
        0 => NEXT.fetch_add(1, Relaxed),
        last => last + STEP,
    };
    OWN.set(Some(Own { number, stream, id: stream.id() }));
    let _ = SETTLES.try_with(|_| ());
    process::at_end(own_ends);
    number
}

fn own_ends() {
    let Some(own) = OWN.get() else { return };
    // If CUDA has ended it, the one that is there by now says nothing of its work.
    let is_there = own.id.is_some() && own.stream.id() == own.id;
    crate::memory::thread_ends(own.number, is_there);
    ENDED.store(true, Relaxed);
    LAST.set(own.number);
    OWN.set(None);
}

/// Some thread's have ended: where none has, nobody looks for his own, which costs a call.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Whether default streams of the calling thread have ended: it is in its last destructors.
#[inline]
pub fn is_ending() -> bool {
    /// Apart, since what finds it would be called before the flag is looked at.
    #[cold]
    #[inline(never)]
    fn had_some() -> bool {
        LAST.get() != 0
    }
    ENDED.load(Relaxed) && had_some()
}

/// The stream whose order a block follows. Its thread, or one that frees it, may be changing it.
pub fn slot_of_block(id: BlockId) -> StreamSlot {
    match block::at(id).state_and_owner() {
        (State::Allocated | State::Cached | State::Loose, front) => front::numbered(front).map_or(COMMON, |front| front.slot),
        (_, slot) => slot,
    }
}

/// The slot of free memory that is past for every stream, and so belongs to none.
pub(super) const COMMON: StreamSlot = 0;
/// The key of `COMMON`: no stream's.
pub(super) const NOBODY: StreamKey = StreamKey { raw: RawStream::MAX, thread: u64::MAX };

/// What the cache keeps for a stream.
pub struct Slot {
    pub key: StreamKey,
    pub(super) serial: Serial,
    pub home: &'static Home,
    /// Stands in the head of blocks that no thread's front handed out.
    pub front: &'static Front,
    /// By epochs: the device is done with all frees up to one.
    pub known: Known<u32>,
    /// What was past when free memory was last made common.
    pub(super) shared: u32,
    /// Memory was asked for it, and it is there still. `Core::note_wants` counts those.
    pub(super) wants: bool,
    /// How many pending blocks wait for it.
    pub(super) waiting: usize,
    /// As in `Core::awake`.
    awake: bool,
    /// The stream was destroyed or unregistered; nothing is recorded on it any more.
    pub gone: bool,
}

impl Slot {
    pub(super) fn new(key: StreamKey, stream: u64, home: &'static Home, front: &'static Front) -> Slot {
        let serial = Serial { stream, era: 0 };
        Slot { key, serial, home, front, known: Known::past(0), shared: 0, wants: false, waiting: 0, awake: false, gone: false }
    }

    /// Whether it is gone and all that it ever had is past.
    fn is_over(&self) -> bool {
        self.gone && self.known.covers(u32::MAX)
    }

    /// Whether something was freed that is not known to be past.
    pub fn is_behind(&self) -> bool {
        self.home.freed_in.load(Relaxed) > self.known.count()
    }
}

/// Which stream has which slot, and which slots streams have left.
#[derive(Default)]
pub(super) struct Keys {
    slots: BTreeMap<StreamKey, StreamSlot>,
    last_serial: u64,
    /// How many slots there are whose streams are gone.
    gone: usize,
    /// Of those, some of whose memory nothing is left. Lowest last.
    vacant: Vec<StreamSlot>,
    /// By how many others there are: when it is looked for vacant ones, which costs time for each block.
    looks: Due,
    /// When they are asked how far they are.
    asks: Due,
}

impl Keys {
    fn next_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// Those of which something may be left.
    fn left(&self) -> usize {
        self.gone - self.vacant.len()
    }

    /// Something is given to one that is gone, by a call that did not hear of it.
    pub fn occupy(&mut self, slot: StreamSlot) {
        self.vacant.retain(|vacant| *vacant != slot);
    }

    /// No stream has one of the `gone` any more. Serials go on.
    fn clear(&mut self, gone: usize) {
        *self = Keys { last_serial: self.last_serial, gone, ..Keys::default() };
    }
}

impl Core {
    pub fn slot_of(&mut self, key: StreamKey) -> Result<StreamSlot> {
        match self.find_slot(key) {
            Some(slot) => Ok(slot),
            None => self.new_slot(key),
        }
    }

    pub fn find_slot(&self, key: StreamKey) -> Option<StreamSlot> {
        self.keys.slots.get(&key).copied()
    }

    #[cold]
    fn new_slot(&mut self, key: StreamKey) -> Result<StreamSlot> {
        if !self.fronts.is_stopped() {
            self.fronts.stop();
        }
        let index = match self.vacant_slot(false) {
            Some(index) => index,
            None => self.one_more_slot().or_else(|full| self.vacant_slot(true).ok_or(full))?,
        };
        let serial = self.keys.next_serial();
        let Slot { home, front, awake, .. } = self.slots[index as usize];
        if awake {
            self.awake.retain(|slot| *slot != index);
        }
        self.slots[index as usize] = Slot::new(key, serial, home, front);
        // What is left of one before are mappings.
        self.slots[index as usize].known = Known::past(self.end_epoch(index));
        if awake {
            self.wake(index);
        }
        self.keys.slots.insert(key, index);
        Ok(index)
    }

    /// Nobody's yet.
    fn one_more_slot(&mut self) -> Result<StreamSlot> {
        /// A device or pool with so many leaves the last to others.
        const MANY: usize = 1024;
        let full = || {
            let text = format!(
                "There is no room for the memory of one more stream of device {}: the process has too many whose memory is in use, those that \
                 were destroyed among them.",
                self.device
            );
            Error::new(Status::TCUDA_ERROR_INVALID_STATE, text).on_device(self.device)
        };
        let index = StreamSlot::try_from(self.slots.len()).map_err(|_| full())?;
        let leaves = if self.slots.len() < MANY { Leaves::Nothing } else { Leaves::ForOthers };
        if !front::has_room(leaves) {
            return Err(full());
        }
        let home = Home::new(index, self.stats).ok_or_else(block::no_room)?;
        let front = front::make(self.number, self.device, index, home, leaves).ok_or_else(full)?;
        self.slots.push(Slot::new(NOBODY, 0, home, front));
        Ok(index)
    }

    /// One whose stream is gone and of whose memory nothing is left. `any`: else it is looked for only when many are gone.
    fn vacant_slot(&mut self, any: bool) -> Option<StreamSlot> {
        if self.keys.vacant.is_empty() && (any || self.keys.looks.is_due(self.keys.left())) {
            self.find_vacant();
        }
        let vacant = self.keys.vacant.pop()?;
        self.keys.gone -= 1;
        Some(vacant)
    }

    fn find_vacant(&mut self) {
        /// So many blocks are looked at for one slot, at most.
        const LOOKS: usize = 4096;
        self.collect();
        let mut looked_at = 0;
        let mut in_use = vec![false; self.slots.len()];
        for area in self.areas.values() {
            for id in block::chain(area.first) {
                looked_at += 1;
                // A moved block says by its stream when its mapping may end, and one that is being moved when it may be used if that fails.
                let done = match block::at(id).state() {
                    State::Unmapped => true,
                    State::Moved | State::Busy => self.is_past(id),
                    _ => false,
                };
                if !done {
                    in_use[slot_of_block(id) as usize] = true;
                }
            }
        }
        // Blocks in use stay, and streams that used them once may come and go.
        let slots = &self.slots;
        self.uses.values_mut().for_each(|users| users.retain(|slot| !slots[*slot as usize].is_over()));
        let pending = self.pending.iter().flat_map(|pending| pending.uses.iter().map(|(slot, _)| slot));
        self.uses.values().flatten().chain(pending).for_each(|slot| in_use[*slot as usize] = true);
        let vacant = (0..self.slots.len()).rev().filter(|index| self.slots[*index].gone && !in_use[*index]);
        self.keys.vacant = vacant.map(|index| index as StreamSlot).collect();
        self.keys.looks = Due::looked(self.keys.left()).at_least(looked_at / LOOKS);
        self.keys.asks = self.keys.looks;
    }

    /// Those that are gone and not known to be over, when they are many: what is only used by one of them, nobody else asks for. They are asked now.
    pub(super) fn leavers(&mut self) -> Vec<StreamSlot> {
        // With the one that goes: before it is looked.
        let left = self.keys.left() + 1;
        if !self.keys.asks.is_due(left) {
            return Vec::new();
        }
        self.keys.asks = Due::looked(left);
        let leaves = |slot: &StreamSlot| self.slots[*slot as usize].gone && !self.slots[*slot as usize].is_over();
        (0..self.slots.len() as StreamSlot).filter(leaves).collect()
    }

    /// All streams are gone, and nothing is left of them.
    pub(super) fn clear_slots(&mut self) {
        self.slots.iter_mut().skip(1).for_each(|slot| {
            slot.gone = true;
            slot.waiting = 0;
            slot.known = Known::past(u32::MAX);
        });
        self.forget_wants();
        self.keys.clear(self.slots.len() - 1);
    }

    /// Whether that is the stream of this key, which is there still.
    pub fn follows(&self, id: BlockId, key: StreamKey) -> bool {
        let slot = &self.slots[slot_of_block(id) as usize];
        slot.key == key && !slot.gone
    }

    /// Whether it may follow, or have been used on, a default stream of the calling thread that has ended: of streams that have ended it is not known
    /// any more what they used.
    pub fn may_follow_ended(&self, id: BlockId) -> bool {
        self.slots[slot_of_block(id) as usize].key.has_ended_here() || self.uses.contains_key(&id)
    }

    /// The stream ends: its handle may come to mean another one.
    pub fn forget_stream(&mut self, key: StreamKey) {
        if let Some(slot) = self.keys.slots.remove(&key) {
            debug_assert!(self.fronts.is_stopped());
            self.fronts.of_slot(slot).for_each(Front::unchoose);
            let slot = &mut self.slots[slot as usize];
            slot.gone = true;
            self.keys.gone += 1;
            self.wanting -= usize::from(std::mem::take(&mut slot.wants));
        }
    }

    /// Memory was asked for the stream, if it is there still.
    pub fn note_wants(&mut self, slot: StreamSlot) {
        let slot = &mut self.slots[slot as usize];
        if !slot.gone && !std::mem::replace(&mut slot.wants, true) {
            self.wanting += 1;
        }
    }

    pub fn forget_wants(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.wants = false);
        self.wanting = 0;
    }

    // ---- those that there is something of

    /// From now on its free memory is looked at, and how far it is, until there is none and it is not behind: what there is costs time, not how many
    /// streams there ever were. Whatever gives it any under the lock comes here. A thread gives it some only by a front that is armed, for which it
    /// was woken, and it sleeps again only once all fronts are stopped.
    #[inline]
    pub fn wake(&mut self, slot: StreamSlot) {
        if self.slots[slot as usize].gone {
            self.keys.occupy(slot);
        }
        if !std::mem::replace(&mut self.slots[slot as usize].awake, true) {
            let serial = |slot: StreamSlot| self.slots[slot as usize].serial.stream;
            let at = self.awake.partition_point(|other| serial(*other) < serial(slot));
            self.awake.insert(at, slot);
        }
    }

    /// Those of which nothing is left sleep. What threads kept has been collected.
    pub(super) fn let_sleep(&mut self) {
        let mut awake = std::mem::take(&mut self.awake);
        awake.retain(|slot| {
            let stays = self.has_something(*slot);
            let slot = &mut self.slots[*slot as usize];
            slot.awake = stays;
            if !stays {
                slot.shared = slot.known.count();
            }
            stays
        });
        self.awake = awake;
    }

    /// What tests check: nothing is left of those that sleep.
    pub(super) fn check_slots(&self) {
        let mut awake: Vec<StreamSlot> = (0..self.slots.len() as StreamSlot).filter(|slot| self.slots[*slot as usize].awake).collect();
        awake.sort_by_key(|slot| self.slots[*slot as usize].serial.stream);
        assert_eq!(self.awake, awake);
        assert!((0..self.slots.len() as StreamSlot).all(|slot| self.slots[slot as usize].awake || !self.has_something(slot)));
        assert!(self.slots.iter().all(|slot| !(slot.wants && slot.gone)));
        assert_eq!(self.wanting, self.slots.iter().filter(|slot| slot.wants).count());
        assert_eq!(self.keys.gone, self.slots.iter().filter(|slot| slot.gone).count());
        let is_left = |slot: &StreamSlot| [false, true].into_iter().all(|small| self.list(*slot, small).is_empty());
        assert!(self.keys.vacant.iter().all(|slot| self.slots[*slot as usize].gone && is_left(slot)));
    }

    fn has_something(&self, slot: StreamSlot) -> bool {
        let of = &self.slots[slot as usize];
        let has_free = || [false, true].into_iter().any(|small| !self.list(slot, small).is_empty());
        slot == COMMON || of.is_behind() || of.home.has_brought() || has_free()
    }
}
