//! Which frees are past. A free on a stream carries the stream's epoch; an epoch ends when the device is asked how far the stream is, and
//! is past when the device has done all work that was enqueued before. An idle stream says so by itself; a busy one is marked with an
//! event, for many frees at once.
//!
//! While one stream uses a device, none of this happens, unless memory is to leave the stream: handles that go back, mappings that end.

use super::Cache;
use super::StreamSlot;
use super::block::{self, BlockId, State};
use super::core::Core;
use super::home::LAST_EPOCH;
use super::reach::Waited;
use super::slot::{COMMON, Slot, StreamKey, slot_of_block};
use crate::base::{Result, Status, watch};
use crate::memory::marks::{self, Book, Known, Mark, Progress};
use crate::runtime::{self, Runtime};
use crate::stream::{self, Stream};
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

/// What a count belongs to.
#[derive(Clone, Copy, PartialEq)]
pub struct Serial {
    /// Of the slot: never used again, as the slot's index is.
    pub(super) stream: u64,
    /// How often its epochs began anew.
    pub(super) era: u32,
}

/// A stream's slot, while it is that stream's.
pub type Of = (StreamSlot, Serial);
type Question = marks::Question<Of, u32>;
type Behind = marks::Behind<Of, u32>;

impl Core {
    /// Whether another stream's frees could help `slot`, or blocks wait for other streams.
    pub(super) fn concerns_others(&self, slot: StreamSlot) -> bool {
        !self.pending.is_empty() || self.awake.iter().any(|other| *other != slot && self.slots[*other as usize].is_behind())
    }

    /// What is freed from now on is told from what was freed so far: the epoch of that. All of a stream that is gone has gone before.
    pub(super) fn end_epoch(&mut self, slot: StreamSlot) -> u32 {
        if self.slots[slot as usize].gone {
            return u32::MAX;
        }
        let home = self.slots[slot as usize].home;
        let (epoch, freed_in) = (home.epoch.load(Relaxed), home.freed_in.load(Relaxed));
        if freed_in < epoch {
            return freed_in;
        }
        if epoch >= LAST_EPOCH {
            self.renumber(slot);
            return self.end_epoch(slot);
        }
        home.epoch.store(epoch + 1, Relaxed);
        freed_in
    }

    /// The epochs of a stream begin anew. What is past stays past; of the rest it is forgotten how far it is.
    fn renumber(&mut self, slot: StreamSlot) {
        const PAST: u32 = 1;
        const NOT_YET: u32 = 2;
        let old = self.slots[slot as usize].known.count();
        let number = |epoch: u32| if epoch <= old { PAST } else { NOT_YET };
        self.collect();
        for area in self.areas.values() {
            let has_ticket = |state| matches!(state, State::Free | State::Pending | State::Moved | State::Busy);
            for block in block::chain(area.first).map(block::at).filter(|block| has_ticket(block.state()) && block.owner() == slot) {
                block.set_ticket(number(block.ticket()));
            }
        }
        for (_, epoch) in self.pending.iter_mut().flat_map(|pending| &mut pending.uses).filter(|(of, _)| *of == slot) {
            *epoch = number(*epoch);
        }
        let slot = &mut self.slots[slot as usize];
        slot.known = Known::past(PAST);
        slot.serial.era += 1;
        slot.home.epoch.store(NOT_YET, Relaxed);
        slot.home.freed_in.store(NOT_YET, Relaxed);
    }

    /// None: the slot means another stream by now.
    fn known(&mut self, (slot, serial): Of) -> Option<&mut Known<u32>> {
        let slot = &mut self.slots[slot as usize];
        (slot.serial == serial).then_some(&mut slot.known)
    }

    /// All up to `count` are past.
    fn advance(&mut self, of: Of, count: u32) {
        self.advanced |= self.known(of).is_some_and(|known| known.advance(count));
    }
}

impl Cache {
    fn stream(&self, key: StreamKey) -> Stream {
        Stream { device: self.device, raw: key.raw }
    }

    /// Learns, without waiting, how far the streams are, and frees the pending blocks that are done. An idle stream is past; a
    /// busy one gets a mark. What cannot be asked (a capturing stream, a lost device) stays as it is.
    pub fn settle(&self, slot: StreamSlot) {
        if self.learn(slot) {
            self.core.lock().share_past();
        }
    }

    /// The same where no stream asks.
    pub fn settle_all(&self) {
        self.settle(COMMON);
    }

    /// As `settle`, but what is past stays with its stream. False: there is nothing to be learned.
    pub fn learn(&self, slot: StreamSlot) -> bool {
        let _driving = self.driving.lock();
        let questions = {
            let mut core = self.core.lock();
            core.collect();
            if !core.concerns_others(slot) {
                return false;
            }
            core.questions()
        };
        self.ask_all(questions);
        true
    }

    /// What they are known to be past by now is free. Nobody else asks or marks.
    fn ask_all(&self, questions: Vec<Question>) {
        marks::ask_all(self, questions);
        self.core.lock().finish_pending();
    }

    /// Whether to ask how far the streams are would tell anything of blocks that wait for them. For who only looks: no thread is stopped, and nobody
    /// waited for.
    pub fn has_moved(&self) -> bool {
        let Some(_driving) = self.driving.try_lock() else { return false };
        let waited_for = {
            let mut core = self.core.quiet();
            if core.advanced {
                return !core.pending.is_empty();
            }
            let is_waited_for = |slot: &&StreamSlot| {
                let slot = &core.slots[**slot as usize];
                slot.waiting > 0 && slot.is_behind()
            };
            let slots: Vec<StreamSlot> = core.awake.iter().filter(is_waited_for).copied().collect();
            slots.into_iter().map(|slot| core.question(slot, 0)).collect::<Vec<_>>()
        };
        let has_moved = |runtime: &Runtime, question: &Question| {
            let asked = question.stream.filter(|stream| !stream.is_capturing().unwrap_or(true));
            let is_past = |stream: Stream| stream.is_past().unwrap_or(false);
            match question.marks.first() {
                Some(mark) => mark.progress(runtime) != Progress::Ahead || asked.is_some_and(is_past),
                // It is to be marked.
                None => asked.is_some(),
            }
        };
        let moved = runtime::runtime()
            .and_then(|runtime| runtime.outside_capture(|| Ok(waited_for.iter().any(|question| has_moved(runtime, question)))));
        waited_for.into_iter().for_each(|question| self.keep(question.of, question.marks));
        moved.unwrap_or(false)
    }

    /// Whether the device has work of a stream, or of any for which memory was asked, as far as they can be asked.
    pub fn is_busy(&self, slot: Option<StreamSlot>) -> bool {
        let _driving = self.driving.lock();
        let keys: Vec<StreamKey> = {
            let core = self.core.quiet();
            let asked = |(index, found): &(usize, &Slot)| slot.map_or(found.wants, |slot| *index == slot as usize);
            core.slots.iter().enumerate().filter(asked).map(|(_, slot)| slot.key).filter(|key| key.reachable()).collect()
        };
        let is_busy = |key: &StreamKey| {
            let stream = self.stream(*key);
            stream.is_capturing().is_ok_and(|capturing| !capturing) && watch::unseen(|| stream.query()).is_ok_and(|idle| !idle)
        };
        let asked = runtime::runtime().and_then(|runtime| runtime.outside_capture(|| Ok(keys.iter().any(is_busy))));
        asked.unwrap_or(false)
    }

    /// Nobody marks a stream while this lives.
    pub fn hold_marks(&self) -> MutexGuard<'_, ()> {
        self.driving.lock()
    }

    /// Waits until all frees so far are past, stream by stream, and stops as soon as `enough` says so. Not to be called while a
    /// lock is held: host functions that free memory may have to run. A stream that cannot be waited for is left out; the first
    /// failure is the answer when all others were waited for.
    pub fn wait(&self, mut enough: impl FnMut(&mut Core) -> bool) -> Result<()> {
        // Oldest need first: the streams that pending blocks wait for, in their order, then those of free memory.
        let wanted: Vec<(StreamSlot, u64)> = {
            let mut core = self.core.lock();
            // What threads keep carries the epoch in which it comes home.
            core.collect();
            // Those whose streams are past already: for them nobody is waited for.
            core.finish_pending();
            let pending = core.pending.iter().flat_map(|pending| pending.uses.iter().map(|(slot, _)| *slot));
            let mut order: Vec<StreamSlot> = Vec::new();
            for slot in pending.chain(core.awake.iter().copied()) {
                if !order.contains(&slot) && core.slots[slot as usize].is_behind() {
                    order.push(slot);
                }
            }
            order.into_iter().map(|slot| (slot, core.slots[slot as usize].serial.stream)).collect()
        };
        let mut failure = None;
        for (slot, stream) in wanted {
            match marks::wait_for(self, || self.core.lock().behind(slot, stream)) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    failure.get_or_insert(error);
                    continue;
                }
            }
            let mut core = self.core.lock();
            core.finish_pending();
            core.share_all_past();
            if enough(&mut core) {
                return Ok(());
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Makes `stream` wait for all frees so far of other streams, and gives the count of each. Nothing waits on the host; streams that
    /// cannot be waited for are left out.
    pub fn order_after(&self, stream: Stream, slots: &[StreamSlot]) -> Result<Vec<Waited>> {
        let _driving = self.driving.lock();
        let mut waited = Vec::new();
        // A wait for what is no part of a capture would end it.
        if slots.is_empty() || stream.is_capturing().unwrap_or(true) {
            return Ok(waited);
        }
        for slot in slots {
            let (key, serial, gone, count) = {
                let mut core = self.core.lock();
                let count = core.end_epoch(*slot);
                let slot = &core.slots[*slot as usize];
                (slot.key, slot.serial, slot.gone, count)
            };
            let owner = self.stream(key);
            if gone || !key.reachable() || owner.is_capturing().unwrap_or(true) {
                continue;
            }
            let mark = match Mark::record(owner, count) {
                Err(error) if error.status == Status::TCUDA_ERROR_CAPTURE => continue,
                mark => mark?,
            };
            let entered = stream.enter()?;
            entered.runtime.stream_wait_event(entered.raw, mark.event())?;
            waited.push(Waited { slot: *slot, serial, count });
        }
        Ok(waited)
    }

    /// The same where all of them have to be waited for. False: not all are.
    pub fn comes_after(&self, stream: Stream, slots: &[StreamSlot]) -> bool {
        self.order_after(stream, slots).is_ok_and(|waited| waited.len() == slots.len())
    }

    /// A stream is about to go: the last that is recorded on it, so that its free memory and what it used are settled later, also
    /// blocks that are freed only then. If not even that works, synchronising the device settles them.
    pub fn stream_goes(&self, stream: Stream) {
        self.key_goes(StreamKey::of(stream), true);
    }

    /// The same for the default stream of a thread that ends, if it is there still.
    pub fn thread_ends(&self, thread: u64, is_there: bool) {
        self.key_goes(StreamKey { raw: stream::PER_THREAD, thread }, is_there);
    }

    /// More is said to be used by the calling thread's default stream, or it was waited for. Nobody else can ask how far it is. While another thread
    /// asks, or this one fills what it frees, it is left for the next time.
    pub fn ask_own(&self, key: StreamKey) {
        let is_waited_for = {
            let core = self.core.quiet();
            core.find_slot(key).is_some_and(|slot| core.slots[slot as usize].waiting > 0)
        };
        if is_waited_for && let Some(_driving) = self.driving.try_lock() {
            self.ask_thread(key.thread);
        }
    }

    /// What is counted so far of each stream, if blocks wait for any.
    pub fn counts_if_pending(&self) -> Option<Vec<(Of, u32)>> {
        let is_pending = self.stats.has_pending() && !self.core.quiet().pending.is_empty();
        is_pending.then(|| self.counts(self.device))
    }

    /// The device was waited for since.
    pub fn are_past(&self, counts: &[(Of, u32)]) {
        self.advance(counts);
        let mut core = self.core.lock();
        core.finish_pending();
        core.share_past();
    }

    /// How far a thread's default stream is with what was freed so far, or a mark on it.
    pub fn thread_settles(&self, thread: u64) {
        let _driving = self.driving.lock();
        self.ask_thread(thread);
    }

    /// Nobody else asks or marks.
    fn ask_thread(&self, thread: u64) {
        let question = {
            let mut core = self.core.lock();
            core.collect();
            let slot = core.find_slot(StreamKey { raw: stream::PER_THREAD, thread });
            let Some(slot) = slot.filter(|slot| core.slots[*slot as usize].is_behind()) else { return };
            let count = core.end_epoch(slot);
            core.question(slot, count)
        };
        self.ask_all(vec![question]);
        self.core.lock().share_past();
    }

    fn key_goes(&self, key: StreamKey, is_there: bool) {
        let _driving = self.driving.lock();
        let leavers = {
            let mut core = self.core.lock();
            if core.find_slot(key).is_none() {
                return;
            }
            core.leavers().into_iter().map(|slot| core.question(slot, u32::MAX)).collect::<Vec<_>>()
        };
        if !leavers.is_empty() {
            self.ask_all(leavers);
        }
        let of = {
            let core = self.core.quiet();
            let Some(slot) = core.find_slot(key) else { return };
            (slot, core.slots[slot as usize].serial)
        };
        marks::note_last(self, of, self.stream(key), is_there);
        let mut core = self.core.lock();
        core.finish_pending();
        core.share_past();
    }
}

impl Book for Cache {
    type Of = Of;
    type Count = u32;
    const ALL: u32 = u32::MAX;

    fn hold(&self) -> MutexGuard<'_, ()> {
        self.driving.lock()
    }

    fn advance(&self, past: &[(Of, u32)]) {
        if !past.is_empty() {
            let mut core = self.core.lock();
            past.iter().for_each(|(of, count)| core.advance(*of, *count));
        }
    }

    fn keep(&self, of: Of, marks: Vec<Mark<u32>>) {
        let mut core = self.core.quiet();
        if let Some(known) = core.known(of) {
            marks.into_iter().for_each(|mark| known.keep(mark));
        }
    }

    fn forget(&self, (slot, _): Of, void: &Mark<u32>) -> bool {
        let mut core = self.core.quiet();
        let slot = &mut core.slots[slot as usize];
        slot.known.forget(void);
        slot.gone
    }

    fn leave(&self, (slot, serial): Of) {
        let mut core = self.core.lock();
        let Slot { key, serial: now, .. } = core.slots[slot as usize];
        if now.stream == serial.stream {
            core.forget_stream(key);
        }
    }

    fn counts(&self, _device: i32) -> Vec<(Of, u32)> {
        let mut core = self.core.lock();
        let slots = 0..core.slots.len() as StreamSlot;
        let count = |slot: StreamSlot| {
            let count = core.end_epoch(slot);
            ((slot, core.slots[slot as usize].serial), count)
        };
        slots.map(count).collect()
    }
}

impl Core {
    /// The streams with something that is not known to be past.
    fn questions(&mut self) -> Vec<Question> {
        let behind: Vec<StreamSlot> = self.awake.iter().copied().filter(|slot| self.slots[*slot as usize].is_behind()).collect();
        let question = |slot: StreamSlot| {
            let count = self.end_epoch(slot);
            self.question(slot, count)
        };
        behind.into_iter().map(question).collect()
    }

    fn question(&mut self, slot: StreamSlot, count: u32) -> Question {
        let stream = self.reachable(slot);
        let found = &mut self.slots[slot as usize];
        // What was freed on the legacy default stream is its own at once, and others' when it is idle; what waits for it may wait for ever.
        let is_marked = found.key.raw != stream::DEFAULT || found.waiting > 0;
        Question { of: (slot, found.serial), stream, is_marked, count, marks: found.known.take_marks() }
    }

    /// None: its frees are past, or the slot is another stream's by now.
    fn behind(&mut self, slot: StreamSlot, stream: u64) -> Option<Behind> {
        let found = &self.slots[slot as usize];
        if found.serial.stream != stream || !found.is_behind() {
            return None;
        }
        let count = self.end_epoch(slot);
        let can_be_marked = self.reachable(slot).is_some();
        let Slot { key, serial, known, .. } = &self.slots[slot as usize];
        let stream = Stream { device: self.device, raw: key.raw };
        Some(Behind { of: (slot, *serial), stream, can_be_marked, count, mark: known.mark_of(count) })
    }

    /// Where the calling thread can ask and mark it.
    fn reachable(&self, slot: StreamSlot) -> Option<Stream> {
        let Slot { key, gone, .. } = self.slots[slot as usize];
        (!gone && key.reachable()).then_some(Stream { device: self.device, raw: key.raw })
    }

    /// On which stream a block ends that is freed now, as far as this thread may enqueue there, and which others have to come before: none where the
    /// program names a `stream`.
    pub fn ends_on(&self, id: BlockId, stream: Option<Stream>) -> (Option<Stream>, Vec<StreamSlot>) {
        if stream.is_some() {
            return (stream, Vec::new());
        }
        let owner = slot_of_block(id);
        let users = self.uses.get(&id).into_iter().flatten().copied().filter(|user| *user != owner).collect();
        (self.reachable(owner), users)
    }

    /// The streams whose free memory may still be in use, other than `slot`.
    pub fn owners_in_use(&self, slot: StreamSlot) -> Vec<StreamSlot> {
        let behind = |other: &StreamSlot| *other != slot && self.slots[*other as usize].is_behind();
        self.awake.iter().copied().filter(behind).collect()
    }
}
