//! Which uses are past. A block that is freed waits for each stream that used it, and for that stream only: a slow one holds nothing
//! up but what it uses itself. A free takes a ticket of the stream; a mark (an event) covers all tickets that were taken before it was
//! recorded, and is recorded when memory is wanted next. An idle stream needs none.

use super::core::{self, CORE};
use super::streams::Serial;
use crate::base::Result;
use crate::memory::cache::slot::StreamKey;
use crate::memory::marks::{self, Behind, Book, Mark, Question};
use crate::stream::{self, Stream};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;

/// Held while streams are asked and marked, and while one is made to wait that may join a capture by it; before the core's lock. Nothing that
/// waits is done meanwhile.
static ASKING: Mutex<()> = Mutex::new(());

/// Of `CORE`.
struct Pinned;

impl Book for Pinned {
    type Of = Serial;
    type Count = u64;
    const ALL: u64 = u64::MAX;

    fn hold(&self) -> MutexGuard<'_, ()> {
        ASKING.lock()
    }

    fn advance(&self, past: &[(Serial, u64)]) {
        let mut core = CORE.lock();
        past.iter().for_each(|(serial, ticket)| core.streams.advance(*serial, *ticket));
    }

    fn keep(&self, serial: Serial, marks: Vec<Mark<u64>>) {
        let mut core = CORE.lock();
        marks.into_iter().for_each(|mark| core.streams.keep_mark(serial, mark));
    }

    fn forget(&self, serial: Serial, void: &Mark<u64>) -> bool {
        CORE.lock().streams.forget_mark(serial, void)
    }

    fn leave(&self, serial: Serial) {
        CORE.lock().streams.go(serial);
    }

    fn counts(&self, device: i32) -> Vec<(Serial, u64)> {
        CORE.lock().streams.of_device(device).map(|(serial, slot)| (serial, slot.end_epoch())).collect()
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
    let behind = CORE.lock().streams.behind();
    ask(behind);
    CORE.lock().streams.asked();
}

fn ask(streams: Vec<Serial>) {
    let questions = {
        let mut core = CORE.lock();
        let question = |serial: Serial| {
            let slot = core.streams.get(serial)?;
            // The legacy default stream too: it may never be idle, and a block is nobody's before.
            let (stream, is_marked) = (slot.reachable(), true);
            Some(Question { of: serial, stream, is_marked, count: slot.end_epoch(), marks: slot.known.take_marks() })
        };
        streams.into_iter().filter_map(question).collect()
    };
    marks::ask_all(&Pinned, questions);
    CORE.lock().finish_pending();
}

/// More is said to be used by the calling thread's default stream, or it was waited for. Nobody else can ask how far it is.
pub fn ask_own(key: StreamKey, device: i32) {
    if core::has_pending()
        && let Some(_asking) = ASKING.try_lock()
    {
        let behind = CORE.lock().streams.behind_with_key(key, device);
        ask(behind.into_iter().collect());
    }
}

/// What is counted so far of a device's streams, if anything waits for one.
pub fn counts(device: i32) -> Vec<(Serial, u64)> {
    if core::has_pending() { Pinned.counts(device) } else { Vec::new() }
}

/// The device was waited for since.
pub fn are_past(counts: &[(Serial, u64)]) {
    if !counts.is_empty() {
        Pinned.advance(counts);
        CORE.lock().finish_pending();
    }
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
    if CORE.lock().streams.is_keeper(serial) {
        return Ok(false);
    }
    marks::wait_for(&Pinned, || {
        let mut core = CORE.lock();
        let slot = core.streams.get(serial).filter(|slot| !slot.known.covers(ticket))?;
        let mark = slot.known.mark_of(ticket);
        // A new mark tells of all so far.
        let count = if mark.is_none() { slot.end_epoch() } else { ticket };
        Some(Behind { of: serial, stream: slot.stream, can_be_marked: slot.reachable().is_some(), count, mark })
    })
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
        marks::note_last(&Pinned, serial, stream, are_there);
    }
    CORE.lock().finish_pending();
}
