//! Which uses are past. A block that is freed waits for each stream that used it, and for that stream only: a slow one holds nothing
//! up but what it uses itself. A free takes a ticket of the stream; a mark (an event) covers all tickets that were taken before it was
//! recorded, and is recorded when memory is wanted next. An idle stream needs none.

use super::core::{self, CORE};
use crate::base::{Error, Result, Status, watch};
use crate::device;
use crate::memory::cache::slot::StreamKey;
use crate::memory::captures;
use crate::memory::marks::{self, Known, Mark, Progress};
use crate::runtime;
use crate::stream::{self, Stream};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};

/// Held while streams are asked and marked, and while one is made to wait that may join a capture by it; before the core's lock. Nothing that
/// waits is done meanwhile.
static ASKING: Mutex<()> = Mutex::new(());

/// Tells a stream from a later one with the same handle.
pub type Serial = u64;

struct Slot {
    stream: Stream,
    key: StreamKey,
    /// The ticket of the next free.
    epoch: u64,
    /// The last ticket that was taken.
    freed_in: u64,
    /// By tickets.
    known: Known<u64>,
    gone: bool,
    /// No stream: what keeps blocks until it lets go of them.
    keeps: bool,
}

pub struct Streams {
    slots: BTreeMap<Serial, Slot>,
    last: Serial,
}

impl Streams {
    pub const fn new() -> Streams {
        Streams { slots: BTreeMap::new(), last: 0 }
    }

    pub fn serial_of(&mut self, stream: Stream, key: StreamKey) -> Serial {
        if let Some(serial) = self.find(stream.device, key) {
            return serial;
        }
        self.add(stream, key, false)
    }

    pub fn add_keeper(&mut self) -> Serial {
        let stream = Stream { device: device::CPU, raw: stream::DEFAULT };
        self.add(stream, StreamKey { raw: stream.raw, thread: 0 }, true)
    }

    fn add(&mut self, stream: Stream, key: StreamKey, keeps: bool) -> Serial {
        self.last += 1;
        let slot = Slot { stream, key, epoch: 1, freed_in: 0, known: Known::past(0), gone: false, keeps };
        self.slots.insert(self.last, slot);
        self.last
    }

    /// No stream has a slot any more. Serials go on.
    pub fn clear(&mut self) {
        self.slots.clear();
    }

    fn find(&self, device: i32, key: StreamKey) -> Option<Serial> {
        self.slots.iter().find(|(_, slot)| !slot.gone && slot.stream.device == device && slot.key == key).map(|(serial, _)| *serial)
    }

    /// The ticket of a free now. None: all that the stream ever got is past.
    pub fn freed_now(&mut self, serial: Serial) -> Option<u64> {
        let slot = self.slots.get_mut(&serial).filter(|slot| !slot.known.covers(u64::MAX))?;
        slot.freed_in = slot.epoch;
        Some(slot.epoch)
    }

    /// The stream, if it is a default stream of the calling thread that has ended.
    pub fn ended_here(&self, serial: Serial) -> Option<Stream> {
        self.slots.get(&serial).filter(|slot| slot.key.has_ended_here()).map(|slot| slot.stream)
    }

    pub fn is_past(&self, serial: Serial, count: u64) -> bool {
        self.slots.get(&serial).is_none_or(|slot| slot.known.covers(count))
    }

    /// Streams that are gone stay while a block waits for them.
    pub fn forget_unused(&mut self, is_used: impl Fn(Serial) -> bool) {
        self.slots.retain(|serial, slot| !slot.gone || is_used(*serial));
    }

    fn known(&mut self, serial: Serial) -> Option<&mut Known<u64>> {
        self.slots.get_mut(&serial).map(|slot| &mut slot.known)
    }

    /// All up to `count` is past.
    fn advance(&mut self, serial: Serial, count: u64) {
        if let Some(known) = self.known(serial) {
            known.advance(count);
        }
    }

    fn keep_mark(&mut self, serial: Serial, mark: Mark<u64>) {
        if let Some(known) = self.known(serial) {
            known.keep(mark);
        }
    }

    /// It stands for nothing. Whether its stream is gone.
    fn forget_mark(&mut self, serial: Serial, void: &Mark<u64>) -> bool {
        self.slots.get_mut(&serial).is_some_and(|slot| {
            slot.known.forget(void);
            slot.gone
        })
    }
}

impl Slot {
    /// What is freed from now on is told from what was freed so far: the last ticket of that.
    fn end_epoch(&mut self) -> u64 {
        if self.gone {
            return u64::MAX;
        }
        if self.freed_in == self.epoch {
            self.epoch += 1;
        }
        self.freed_in
    }

    fn can_be_asked(&self) -> bool {
        !self.gone && !self.keeps && self.key.reachable()
    }
}

/// A stream that is asked how far it is, outside the core's lock.
struct Question {
    serial: Serial,
    stream: Stream,
    asks: bool,
    count: u64,
    marks: Vec<Mark<u64>>,
}

/// Learns, without waiting, how far streams are, and frees the pending blocks that are done. `last_chance`: waits for a thread that is at
/// it just now; else its answer will do.
pub fn settle(last_chance: bool) {
    if !core::has_pending() {
        return;
    }
    let _asking = if last_chance { Some(ASKING.lock()) } else { ASKING.try_lock() };
    if _asking.is_none() {
        return;
    }
    let questions: Vec<Question> = {
        let mut core = CORE.lock();
        let behind = core.streams.slots.iter_mut().filter(|(_, slot)| !slot.known.covers(slot.freed_in));
        let question = |(serial, slot): (&Serial, &mut Slot)| Question {
            serial: *serial,
            stream: slot.stream,
            asks: slot.can_be_asked(),
            count: slot.end_epoch(),
            marks: slot.known.take_marks(),
        };
        behind.map(question).collect()
    };
    // A query would end a capture that another thread makes in CUDA's global mode.
    let _ = runtime::runtime().and_then(|runtime| {
        runtime.outside_capture(|| {
            for mut question in questions {
                let stream = question.asks.then_some(question.stream);
                // Also the legacy default stream, which may never be idle: a block is nobody's before.
                let past = marks::ask(runtime, stream, question.count, &mut question.marks, true);
                let mut core = CORE.lock();
                past.into_iter().for_each(|count| core.streams.advance(question.serial, count));
                question.marks.into_iter().for_each(|mark| core.streams.keep_mark(question.serial, mark));
            }
            Ok(())
        })
    });
    CORE.lock().finish_pending();
}

/// Waits until pending blocks are free, one after the other, and stops as soon as `enough` has an answer: first a block of `wanted` bytes,
/// then the oldest. A stream that cannot be waited for is left out; the first failure is the answer when all others were waited for.
pub fn wait<T>(wanted: usize, mut enough: impl FnMut() -> Option<T>) -> Result<Option<T>> {
    let waiting = {
        let core = CORE.lock();
        let of_size = |is_small| {
            let blocks = core.pending.iter().filter(move |block| (block.kind.bytes() < wanted) == is_small);
            blocks.map(|block| block.uses.clone())
        };
        let mut waiting: Vec<_> = of_size(false).chain(of_size(true)).collect();
        // Those with the same uses are free at once, or none of them is.
        let mut seen = BTreeSet::new();
        waiting.retain(|uses| seen.insert(uses.clone()));
        waiting
    };
    let mut failure = None;
    for uses in waiting {
        let waited = uses.iter().try_fold(true, |all, (serial, count)| Ok(wait_for(*serial, *count)? && all));
        match waited {
            Ok(true) => {}
            Ok(false) => continue,
            Err(error) => {
                failure.get_or_insert(error);
                continue;
            }
        }
        CORE.lock().finish_pending();
        if let Some(found) = enough() {
            return Ok(Some(found));
        }
    }
    failure.map_or(Ok(None), Err)
}

/// Waits until a ticket is past. False: nobody may wait for it now.
fn wait_for(serial: Serial, ticket: u64) -> Result<bool> {
    let runtime = runtime::runtime()?;
    let (found, device) = {
        let _asking = ASKING.lock();
        let (stream, asks, count, known) = {
            let mut core = CORE.lock();
            let Some(slot) = core.streams.slots.get_mut(&serial).filter(|slot| !slot.known.covers(ticket)) else { return Ok(true) };
            if slot.keeps {
                return Ok(false);
            }
            let known = slot.known.mark_of(ticket);
            (slot.stream, slot.can_be_asked(), if known.is_none() { slot.end_epoch() } else { 0 }, known)
        };
        let found = match known {
            None if asks => match Mark::to_wait_for(stream, count) {
                Ok(None) => return Ok(false),
                Ok(mark) => {
                    mark.iter().for_each(|mark| CORE.lock().streams.keep_mark(serial, mark.clone()));
                    mark
                }
                Err(error) if error.status == Status::TCUDA_ERROR_INVALID_HANDLE => {
                    // Its owner destroyed it: only the device as a whole can tell.
                    if let Some(slot) = CORE.lock().streams.slots.get_mut(&serial) {
                        slot.gone = true;
                    }
                    None
                }
                Err(error) => return Err(error),
            },
            known => known,
        };
        (found, stream.device)
    };
    let Some(mark) = found else { return wait_for_device(device) };
    match mark.wait(runtime, device)? {
        // It stands for nothing. Of a stream that is gone the device can tell.
        Progress::Void => {
            let is_gone = CORE.lock().streams.forget_mark(serial, &mark);
            if is_gone { wait_for(serial, ticket) } else { Ok(false) }
        }
        _ => {
            CORE.lock().streams.advance(serial, mark.count());
            Ok(true)
        }
    }
}

fn wait_for_device(device: i32) -> Result<bool> {
    let counts: Vec<(Serial, u64)> = {
        let mut core = CORE.lock();
        let here = core.streams.slots.iter_mut().filter(|(_, slot)| slot.stream.device == device);
        here.map(|(serial, slot)| (*serial, slot.end_epoch())).collect()
    };
    match watch::unseen(|| captures::wait_for_device(device)) {
        Ok(()) => {
            let mut core = CORE.lock();
            counts.into_iter().for_each(|(serial, count)| core.streams.advance(serial, count));
            Ok(true)
        }
        Err(Error { status: Status::TCUDA_ERROR_CAPTURE, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Nobody marks a stream while this lives.
pub fn hold_marks() -> MutexGuard<'static, ()> {
    ASKING.lock()
}

/// What it kept is free as far as streams are past it.
pub fn keeper_goes(serial: Serial) {
    let mut core = CORE.lock();
    if let Some(slot) = core.streams.slots.get_mut(&serial) {
        slot.gone = true;
        slot.known.advance(u64::MAX);
    }
    core.finish_pending();
}

/// A stream is about to go: the last that is recorded on it covers all its uses, also of blocks that are freed only then. If not even
/// that works, waiting for the device does.
pub fn stream_goes(stream: Stream) -> Result<()> {
    goes(|slot| slot.stream.device == stream.device && slot.key == StreamKey::of(stream), true);
    Ok(())
}

/// The same for the default streams of a thread that ends, if they are there still.
pub fn thread_ends(thread: u64, are_there: bool) {
    goes(|slot| slot.key == StreamKey { raw: stream::PER_THREAD, thread }, are_there);
}

fn goes(is_meant: impl Fn(&Slot) -> bool, are_there: bool) {
    let _asking = ASKING.lock();
    let going: Vec<(Serial, Stream)> = {
        let core = CORE.lock();
        let meant = core.streams.slots.iter().filter(|(_, slot)| !slot.gone && is_meant(slot));
        meant.map(|(serial, slot)| (*serial, slot.stream)).collect()
    };
    for (serial, stream) in going {
        let last = are_there.then(|| Mark::last(stream, u64::MAX));
        let mut core = CORE.lock();
        if let Some(slot) = core.streams.slots.get_mut(&serial) {
            slot.gone = true;
            match last {
                Some(Ok(None)) => slot.known.advance(u64::MAX),
                Some(Ok(Some(mark))) => slot.known.keep(mark),
                Some(Err(_)) | None => {}
            }
        }
        core.finish_pending();
    }
}
