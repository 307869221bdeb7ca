//! Which uses are past. A block that is freed waits for each stream that used it, and for that stream only: a slow one holds nothing
//! up but what it uses itself. A free takes a ticket of the stream; a mark (an event) covers all tickets that were taken before it was
//! recorded, and is recorded when memory is wanted next. An idle stream needs none.

use super::core::{self, CORE};
use super::streams::{Serial, Slot};
use crate::base::{Error, Result, Status, watch};
use crate::memory::cache::slot::StreamKey;
use crate::memory::captures;
use crate::memory::marks::{self, Mark, Progress};
use crate::runtime;
use crate::stream::{self, Stream};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;

/// Held while streams are asked and marked, and while one is made to wait that may join a capture by it; before the core's lock. Nothing that
/// waits is done meanwhile.
static ASKING: Mutex<()> = Mutex::new(());

/// A stream that is asked how far it is, outside the core's lock.
struct Question {
    serial: Serial,
    stream: Stream,
    asks: bool,
    count: u64,
    marks: Vec<Mark<u64>>,
}

impl Question {
    fn new(serial: Serial, slot: &mut Slot) -> Question {
        let (asks, count) = (slot.can_be_asked(), slot.end_epoch());
        Question { serial, stream: slot.stream, asks, count, marks: slot.known.take_marks() }
    }
}

/// Learns, without waiting, how far streams are, and frees the pending blocks that are done. `last_chance`: waits for a thread that is at
/// it just now; else its answer will do.
pub fn settle(last_chance: bool) {
    if !core::has_pending() {
        return;
    }
    let _asking = if last_chance { Some(ASKING.lock()) } else { ASKING.try_lock() };
    if _asking.is_some() {
        ask_all();
    }
}

/// Of all that are behind, how far they are. Nobody else asks or marks.
fn ask_all() {
    let mut questions: Vec<Question> = {
        let mut core = CORE.lock();
        let behind = core.streams.behind();
        behind.into_iter().filter_map(|serial| core.streams.get(serial).map(|slot| Question::new(serial, slot))).collect()
    };
    // A query would end a capture that another thread makes in CUDA's global mode.
    let _ = runtime::runtime().and_then(|runtime| {
        runtime.outside_capture(|| {
            for question in &mut questions {
                let stream = question.asks.then_some(question.stream);
                // Also the legacy default stream, which may never be idle: a block is nobody's before.
                if let Some(count) = marks::ask(runtime, stream, question.count, &mut question.marks, true) {
                    CORE.lock().streams.advance(question.serial, count);
                }
            }
            Ok(())
        })
    });
    let mut core = CORE.lock();
    for Question { serial, marks, .. } in questions {
        marks.into_iter().for_each(|mark| core.streams.keep_mark(serial, mark));
    }
    core.streams.asked();
    core.finish_pending();
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
            if core.streams.is_keeper(serial) {
                return Ok(false);
            }
            let Some(slot) = core.streams.get(serial).filter(|slot| !slot.known.covers(ticket)) else { return Ok(true) };
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
                    CORE.lock().streams.go(serial);
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
        core.streams.of_device(device).map(|(serial, slot)| (serial, slot.end_epoch())).collect()
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
    core.streams.remove_keeper(serial);
    core.finish_pending();
}

/// A stream is about to go: the last that is recorded on it covers all its uses, also of blocks that are freed only then. If not even
/// that works, waiting for the device does.
pub fn stream_goes(stream: Stream) -> Result<()> {
    goes(StreamKey::of(stream), Some(stream.device), true);
    Ok(())
}

/// The same for the default streams of a thread that ends, if they are there still.
pub fn thread_ends(thread: u64, are_there: bool) {
    goes(StreamKey { raw: stream::PER_THREAD, thread }, None, are_there);
}

fn goes(key: StreamKey, device: Option<i32>, are_there: bool) {
    let _asking = ASKING.lock();
    let (going, asks) = {
        let core = CORE.lock();
        (core.streams.with_key(key, device), core.streams.should_be_asked())
    };
    if going.is_empty() {
        return;
    }
    if asks {
        ask_all();
    }
    for serial in going {
        let Some(stream) = CORE.lock().streams.get(serial).map(|slot| slot.stream) else { continue };
        let last = are_there.then(|| Mark::last(stream, u64::MAX));
        let mut core = CORE.lock();
        match last {
            Some(Ok(None)) => core.streams.advance(serial, u64::MAX),
            Some(Ok(Some(mark))) => core.streams.keep_mark(serial, mark),
            Some(Err(_)) | None => {}
        }
        core.streams.go(serial);
        core.finish_pending();
    }
}
