//! Which frees are past. A free on a stream is a count of that stream; the count is past when the device has done all work that
//! was enqueued before. An idle stream says so by itself; a busy one is marked with an event, for many frees at once.
//!
//! While one stream uses a device, none of this happens.

use super::Cache;
use super::StreamSlot;
use super::core::{Core, Slot, StreamKey};
use crate::base::{Error, Result};
use crate::device;
use crate::event::pool::Pooled;
use crate::runtime;
use crate::stream::Stream;

/// An event on a stream: when it is complete, all up to the count are past.
pub struct Mark {
    pub count: u64,
    event: Pooled,
}

/// A stream that is asked how far it is, outside the lock.
struct Question {
    slot: StreamSlot,
    serial: u64,
    key: StreamKey,
    count: u64,
    gone: bool,
    marks: Vec<Mark>,
}

impl Core {
    /// Whether another stream's frees could help `slot`, or blocks wait for other streams.
    fn concerns_others(&self, slot: StreamSlot) -> bool {
        !self.pending.is_empty() || self.slots.iter().enumerate().any(|(index, other)| index != slot as usize && other.now > other.past)
    }

    /// All up to `count` are past. Nothing happens if the slot means another stream by now.
    fn advance(&mut self, slot: StreamSlot, serial: u64, count: u64) {
        let slot = &mut self.slots[slot as usize];
        if slot.serial != serial {
            return;
        }
        slot.past = slot.past.max(count);
        let past = slot.past;
        slot.marks.retain(|mark| mark.count > past);
    }
}

impl Cache {
    fn stream(&self, key: StreamKey) -> Stream {
        Stream { device: self.device, raw: key.raw }
    }

    /// Learns, without waiting, how far the streams are, and frees the pending blocks that are done. An idle stream is past; a
    /// busy one gets a mark. What cannot be asked (a capturing stream, a lost device) stays as it is.
    pub fn settle(&self, slot: StreamSlot) {
        let driving = self.driving.lock();
        let mut questions = {
            let mut core = self.core.lock();
            if !core.concerns_others(slot) {
                return;
            }
            core.questions(|slot| slot.key.reachable())
        };
        for question in &mut questions {
            let passed = self.ask(question);
            if let Some(count) = passed {
                question.marks.retain(|mark| mark.count > count);
                self.core.lock().advance(question.slot, question.serial, count);
            }
        }
        let mut core = self.core.lock();
        for question in questions {
            let slot = &mut core.slots[question.slot as usize];
            if slot.serial == question.serial {
                slot.marks.extend(question.marks);
            }
        }
        core.finish_pending();
        drop(core);
        drop(driving);
    }

    /// The count that is past, as far as the device tells at once.
    fn ask(&self, question: &mut Question) -> Option<u64> {
        let stream = self.stream(question.key);
        let runtime = runtime::runtime().ok()?;
        if !question.gone {
            if stream.is_capturing().unwrap_or(true) {
                return None;
            }
            if stream.query().ok()? {
                return Some(question.count);
            }
        }
        let passed = question.marks.iter().rev().find(|mark| runtime.event_query(mark.event.raw()).unwrap_or(false)).map(|mark| mark.count);
        let marked = question.marks.last().map_or(0, |mark| mark.count);
        if !question.gone && question.count > marked {
            question.marks.extend(self.mark(stream, question.count).ok());
        }
        passed
    }

    fn mark(&self, stream: Stream, count: u64) -> Result<Mark> {
        let event = Pooled::take(self.device)?;
        let entered = stream.enter()?;
        entered.runtime.event_record(event.raw(), entered.raw)?;
        Ok(Mark { count, event })
    }

    /// Waits until all frees so far are past, stream by stream, and stops as soon as `enough` says so. Not to be called while a
    /// lock is held: host functions that free memory may have to run. What cannot be waited for (a capturing stream) is left out.
    pub fn wait(&self, mut enough: impl FnMut(&mut Core) -> bool) -> Result<()> {
        // Oldest need first: the streams that pending blocks wait for, in their order, then those of free memory.
        let wanted: Vec<(StreamSlot, u64, u64)> = {
            let core = self.core.lock();
            let pending = core.pending.iter().flat_map(|pending| pending.uses.iter().map(|(slot, _)| *slot));
            let mut order: Vec<StreamSlot> = Vec::new();
            for slot in pending.chain(0..core.slots.len() as StreamSlot) {
                if !order.contains(&slot) && core.slots[slot as usize].now > core.slots[slot as usize].past {
                    order.push(slot);
                }
            }
            order.into_iter().map(|slot| (slot, core.slots[slot as usize].serial, core.slots[slot as usize].now)).collect()
        };
        for (slot, serial, count) in wanted {
            let Some(past) = self.wait_for(slot, serial, count)? else { continue };
            let mut core = self.core.lock();
            core.advance(slot, serial, past);
            core.finish_pending();
            if enough(&mut core) {
                break;
            }
        }
        Ok(())
    }

    /// Waits until a count of a stream is past; the answer is the count that is. None: nobody may wait for it now.
    fn wait_for(&self, slot: StreamSlot, serial: u64, count: u64) -> Result<Option<u64>> {
        let (mark, gone) = {
            let _driving = self.driving.lock();
            let (key, gone, mark) = {
                let mut core = self.core.lock();
                let slot = &mut core.slots[slot as usize];
                if slot.serial != serial {
                    return Ok(None);
                }
                let mark = slot.marks.iter().position(|mark| mark.count >= count).map(|at| slot.marks.remove(at));
                (slot.key, slot.gone, mark)
            };
            let stream = self.stream(key);
            match mark {
                Some(mark) => (Some(mark), gone),
                None if gone || !key.reachable() => (None, gone),
                None if stream.is_capturing()? => return Ok(None),
                None => (Some(self.mark(stream, count)?), gone),
            }
        };
        match mark {
            Some(mark) => {
                runtime::runtime()?.event_synchronize(mark.event.raw()).map_err(device::blame(self.device))?;
                Ok(Some(mark.count))
            }
            // Nothing can be recorded there any more: only the device as a whole can tell. A stream that is gone gets no more work.
            None => {
                device::synchronize(self.device)?;
                Ok(Some(if gone { u64::MAX } else { count }))
            }
        }
    }

    /// Makes `stream` wait for the last use of free memory of other streams. Nothing waits on the host.
    pub fn order_after(&self, core: &Core, stream: Stream, slots: &[StreamSlot]) -> Result<()> {
        for slot in slots {
            let slot = &core.slots[*slot as usize];
            let new;
            let mark = match slot.marks.iter().find(|mark| mark.count >= slot.now) {
                Some(mark) => mark,
                None => {
                    let owner = self.stream(slot.key);
                    if owner.is_capturing()? {
                        return Err(Error::internal("A capturing stream cannot be waited for."));
                    }
                    new = self.mark(owner, slot.now)?;
                    &new
                }
            };
            let entered = stream.enter()?;
            entered.runtime.stream_wait_event(entered.raw, mark.event.raw())?;
        }
        Ok(())
    }

    /// A stream is about to go: the last that is recorded on it, so that its free memory and what it used are settled later, also
    /// blocks that are freed only then. If not even that works, synchronising the device settles them.
    pub fn stream_goes(&self, stream: Stream) {
        let key = StreamKey::of(stream);
        let _driving = self.driving.lock();
        let known = self.core.lock().find_slot(key).is_some();
        if !known {
            return;
        }
        let idle = stream.query();
        let mark = if idle == Ok(false) { self.mark(stream, u64::MAX).ok() } else { None };
        let mut core = self.core.lock();
        let Some(slot) = core.find_slot(key) else { return };
        if idle == Ok(true) {
            let serial = core.slots[slot as usize].serial;
            core.advance(slot, serial, u64::MAX);
        }
        core.slots[slot as usize].marks.extend(mark);
        core.forget_stream(key);
        core.finish_pending();
    }
}

impl Core {
    /// The streams with something that is not known to be past.
    fn questions(&mut self, ask: impl Fn(&Slot) -> bool) -> Vec<Question> {
        let mut questions = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.now > slot.past && (slot.gone || ask(slot)) {
                let marks = std::mem::take(&mut slot.marks);
                questions.push(Question {
                    slot: index as StreamSlot,
                    serial: slot.serial,
                    key: slot.key,
                    count: slot.now,
                    gone: slot.gone,
                    marks,
                });
            }
        }
        questions
    }
}
