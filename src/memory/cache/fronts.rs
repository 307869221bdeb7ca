//! The fronts of a device's threads, under its lock: which there are, how they are made ready and stopped, what becomes of what they hold.
//!
//! A pool has fronts of its own, under its own lock. Its blocks count in the device's figures, so whoever stops the device's fronts stops
//! those of its pools too, and a pool's is made ready under both locks.

use super::StreamSlot;
use super::block::{self, BlockId};
use super::core::Core;
use super::front::{self, Front, Leaves, Thread};
use super::tls;
use crate::memory::totals::{Shard, Totals};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::Relaxed;

/// The fronts of a device, under its lock.
pub struct Fronts {
    stats: &'static Totals,
    by_thread: BTreeMap<(u32, StreamSlot), &'static Front>,
    /// Those of threads that ended.
    orphans: HashMap<StreamSlot, Vec<&'static Front>>,
    shards: BTreeMap<u32, Own>,
    /// Those whose threads may be in a region.
    armed: Vec<&'static Front>,
    /// Of a device's pools: armed since its own were stopped last, whoever stopped them since. Their threads may be in a region.
    of_parts: Vec<&'static Front>,
    /// Those that may keep something: armed since what they kept was collected.
    used: Vec<&'static Front>,
    /// All of them are stopped, by this holder of the lock.
    stopped: bool,
    /// Rises each time that they are, and more where it is forgotten which threads are at work.
    stops: u64,
    /// How many threads had allocated lately at the last of them.
    threads: usize,
    /// The first thread that allocated since it was forgotten which ones are at work, and whether there were others.
    first: Option<u32>,
    shared: bool,
}

/// What the cache keeps for a thread.
struct Own {
    shard: &'static Shard,
    /// How often its fronts had been stopped when the thread came to allocate last. For a pool's the shard knows the same of the device's.
    allocated_at: u64,
}

/// A thread that did not allocate between so many stops is at rest.
const STOPS: u64 = 64;

impl Fronts {
    pub fn new(stats: &'static Totals) -> Fronts {
        Fronts {
            stats,
            by_thread: BTreeMap::new(),
            orphans: HashMap::new(),
            shards: BTreeMap::new(),
            armed: Vec::new(),
            of_parts: Vec::new(),
            used: Vec::new(),
            stopped: true,
            stops: STOPS,
            threads: 0,
            first: None,
            shared: false,
        }
    }

    /// Nobody is in a region any more, and whoever wants to be has to come under the lock first.
    pub fn stop(&mut self) {
        self.stopped = true;
        let mut armed = std::mem::take(&mut self.armed);
        let own_count = armed.len();
        // Armed again to free only, they are found by no thread that allocates: it comes to the locks.
        self.of_parts.iter().for_each(|front| front.unchoose());
        armed.append(&mut self.of_parts);
        if armed.is_empty() {
            self.armed = armed;
            self.settle();
            return;
        }
        self.stops += 1;
        let own: *const Thread = tls::get();
        let others: Vec<&Front> = armed.iter().copied().filter(|front| !std::ptr::eq(front.thread(), own)).collect();
        armed.iter().for_each(|front| front.disarm());
        let mut wait_for = others;
        while !wait_for.is_empty() {
            front::barrier();
            wait_for.iter().filter_map(|front| front.owner()).for_each(Thread::wait_idle);
            // One that was choosing it when it was disarmed has it chosen now.
            wait_for.retain(|front| front.was_chosen_meanwhile());
            wait_for.iter().for_each(|front| front.disarm());
        }
        armed[..own_count].iter().for_each(|front| front.home.owner.store(std::ptr::null_mut(), Relaxed));
        armed.clear();
        self.armed = armed;
        self.settle();
        self.find_at_work();
    }

    /// A device's lock stops those of its pools too.
    fn settle(&self) {
        if !self.stats.is_part() {
            self.stats.settle();
        }
    }

    /// Threads that did not allocate for long are at rest: they come to the lock before they do, and nobody keeps room for what they may; for
    /// those of a pool its device sees to that. All are stopped.
    fn find_at_work(&mut self) {
        self.threads = self.shards.values().filter(|own| own.allocated_at + STOPS > self.stops).count();
        if !self.stats.is_part() {
            self.rest_idle(self.stops - STOPS);
        }
    }

    /// Those that came to allocate after so many of the device's stops last, or fewer.
    fn rest_idle(&self, stops: u64) {
        self.stats.rest(stops, |shard| {
            let known = self.shards.iter().find(|(_, own)| std::ptr::eq(own.shard, shard));
            let fronts = known.into_iter().flat_map(|(number, _)| self.by_thread.range((*number, 0)..=(*number, StreamSlot::MAX)));
            fronts.for_each(|(_, front)| front.unchoose());
        });
    }

    /// The lock was taken while threads go on: without any it is as good as stopped.
    pub fn go_on(&mut self) {
        self.stopped = self.armed.is_empty();
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Rises each time that they are.
    pub fn stops(&self) -> u64 {
        self.stops
    }

    /// Those of threads that ended too.
    pub fn all(&self) -> impl Iterator<Item = &'static Front> {
        self.by_thread.values().chain(self.orphans.values().flatten()).copied()
    }

    /// The thread's front of a stream, if it has one.
    pub fn known(&self, thread: &Thread, slot: StreamSlot) -> Option<&'static Front> {
        self.by_thread.get(&(thread.number, slot)).copied()
    }

    pub fn of_slot(&self, slot: StreamSlot) -> impl Iterator<Item = &'static Front> {
        self.by_thread.iter().filter(move |((_, of), _)| *of == slot).map(|(_, front)| *front)
    }

    pub fn shard(&self, thread: &Thread) -> Option<&'static Shard> {
        self.shards.get(&thread.number).map(|own| own.shard)
    }

    /// The same, made where there is none. None: the thread has no fronts anywhere. All of the cache's are stopped.
    pub fn shard_of(&mut self, thread: &Thread) -> Option<&'static Shard> {
        let stats = self.stats;
        let new = || Own { shard: stats.take_shard(thread.number), allocated_at: 0 };
        (thread.number != 0).then(|| self.shards.entry(thread.number).or_insert_with(new).shard)
    }

    /// Threads that allocate.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Whether several threads allocated since that was forgotten, with fronts or without. Side by side small blocks of theirs share lines of the table
    /// of addresses, unless what each thread has begins and ends with one.
    pub fn are_shared(&self) -> bool {
        self.shared
    }

    pub fn note_allocates(&mut self, thread: &Thread) {
        self.shared |= *self.first.get_or_insert(thread.number) != thread.number;
    }

    /// Their threads' next calls find none of those that are in use.
    pub fn unchoose(&self) {
        self.by_thread.values().for_each(|front| front.unchoose());
    }

    fn note_at_work(&mut self, thread: &Thread) {
        self.note_allocates(thread);
        if let Some(own) = self.shards.get_mut(&thread.number) {
            own.allocated_at = self.stops;
        }
    }

    /// All threads are at rest. All are stopped, a pool's device's too.
    fn rest(&mut self) {
        debug_assert!(self.stopped);
        self.stops += STOPS;
        self.threads = 0;
        self.rest_idle(u64::MAX);
    }
}

impl Core {
    /// Every peak becomes the current figure; it is exact while one thread allocates from here on.
    pub fn reset_peak(&mut self) {
        let _whole = self.whole_stopped();
        self.fronts.rest();
        self.stats.reset_peak();
    }

    /// Which threads are at work is to be found out anew, and whether several are. All of the cache's are stopped.
    pub fn forget_work(&mut self) {
        let _whole = self.whole_stopped();
        self.fronts.rest();
        (self.fronts.first, self.fronts.shared) = (None, false);
    }

    /// The thread is going to allocate, and count it in its shard. `whole`: of a pool, its device.
    pub(super) fn note_at_work(&mut self, whole: Option<&mut Core>, thread: &Thread, shard: &'static Shard) {
        self.fronts.note_at_work(thread);
        let device = whole.map_or(&mut self.fronts, |whole| &mut whole.fronts);
        self.stats.allocates(shard, device.stops, || device.stop());
    }

    /// Makes the thread's front of a stream ready, to allocate too or to free only. None: there is none to be had. `whole`: of a pool, its
    /// device, whose lock is held until the thread has chosen the front.
    pub fn arm(
        &mut self,
        mut whole: Option<&mut Core>,
        thread: &'static Thread,
        slot: StreamSlot,
        allocates: bool,
    ) -> Option<&'static Front> {
        let front = self.front_of(thread, slot)?;
        let shard = self.fronts.shard(thread)?;
        self.wake(slot);
        if allocates {
            self.note_at_work(whole.as_deref_mut(), thread, shard);
        }
        if front.is_armed() {
            return Some(front);
        }
        if let Some(whole) = whole {
            // The device's lock disarmed the others.
            self.fronts.armed.retain(|front| front.is_armed());
            let of_parts = &mut whole.fronts.of_parts;
            if !of_parts.iter().any(|known| std::ptr::eq(*known, front)) {
                of_parts.push(front);
            }
        }
        if !front.used.replace(true) {
            self.fronts.used.push(front);
        }
        let armed = &mut self.fronts.armed;
        let own = std::ptr::from_ref(thread).cast_mut();
        let others: Vec<&Front> = armed.iter().copied().filter(|armed| std::ptr::eq(armed.home, front.home)).collect();
        if others.is_empty() {
            front.home.owner.store(own, Relaxed);
        } else if !front.home.owner.load(Relaxed).is_null() {
            // From now on several threads take turns.
            front.home.owner.store(std::ptr::null_mut(), Relaxed);
            front::barrier();
            others.iter().filter_map(|front| front.owner()).filter(|other| !std::ptr::eq(*other, thread)).for_each(Thread::wait_idle);
        }
        armed.push(front);
        self.stats.opens(shard);
        front.arm(thread, shard, self.history, self.slots[slot as usize].key.raw as u64, self.pool);
        Some(front)
    }

    /// The thread's front of a stream; a new one is made with all fronts stopped only.
    fn front_of(&mut self, thread: &'static Thread, slot: StreamSlot) -> Option<&'static Front> {
        if let Some(front) = self.fronts.known(thread, slot) {
            return Some(front);
        }
        let has_orphan = self.fronts.orphans.get(&slot).is_some_and(|orphans| !orphans.is_empty());
        if !has_orphan && !front::has_room(Leaves::ForStreams) {
            return None;
        }
        if !self.fronts.stopped {
            self.fronts.stop();
        }
        let orphan = self.fronts.orphans.get_mut(&slot).and_then(Vec::pop);
        let make = || front::make(self.number, self.device, slot, self.slots[slot as usize].home, Leaves::ForStreams);
        let front = orphan.or_else(make)?;
        self.fronts.shard_of(thread);
        self.fronts.by_thread.insert((thread.number, slot), front);
        Some(front)
    }

    /// A thread ends: what it kept is free, what it counted stays.
    pub fn forget_thread(&mut self, thread: &Thread) {
        self.fronts.first = self.fronts.first.filter(|first| *first != thread.number);
        let own: Vec<(u32, StreamSlot)> = self.fronts.by_thread.keys().copied().filter(|(number, _)| *number == thread.number).collect();
        for key in own {
            let Some(front) = self.fronts.by_thread.remove(&key) else { continue };
            self.collect_from(front);
            front.orphan();
            front.unchoose();
            self.fronts.orphans.entry(key.1).or_default().push(front);
        }
        if let Some(Own { shard, .. }) = self.fronts.shards.remove(&thread.number) {
            let _whole = self.whole_stopped();
            self.stats.give_back(shard);
        }
    }

    /// What threads keep, and what they brought each other, is free memory again.
    pub fn collect(&mut self) {
        for at in 0..self.fronts.used.len() {
            let front = self.fronts.used[at];
            front.used.set(false);
            self.collect_from(front);
        }
        self.fronts.used.clear();
        (0..self.awake.len()).for_each(|at| self.let_in(self.awake[at]));
        self.let_sleep();
    }

    /// What was brought to a stream's home is free.
    pub fn let_in(&mut self, slot: StreamSlot) {
        let home = self.slots[slot as usize].home;
        home.brought().collect::<Vec<_>>().into_iter().for_each(|id| self.free_again(slot, id));
    }

    fn collect_from(&mut self, front: &Front) {
        debug_assert!(self.fronts.stopped);
        let loose = self.take_loose(front);
        front.empty().into_iter().chain(loose).for_each(|id| self.free_again(front.slot, id));
    }

    fn free_again(&mut self, slot: StreamSlot, id: BlockId) {
        block::at(id).set_ticket(self.note_free(slot));
        self.shelf(slot).make_free(id);
        self.changes += 1;
    }

    /// Brings home what a front holds of other threads' blocks.
    pub fn bring_home(&mut self, front: &Front) {
        if !front.has_loose() {
            return;
        }
        front::barrier();
        front.loose_owners().filter(|thread| !std::ptr::eq(*thread, tls::get())).for_each(Thread::wait_idle);
        self.take_loose(front).into_iter().for_each(|id| front.home.bring(id));
    }

    fn take_loose(&self, front: &Front) -> Vec<BlockId> {
        // What should not have counted is taken back.
        let _whole = self.whole().filter(|_| front.has_loose());
        front.loose().collect()
    }
}
