//! What happens when a thread keeps nothing that fits, each step dearer than the one before: free memory, memory of uses that are past,
//! what other threads keep, the driver, waiting for streams, giving free segments back, the error.

use super::core::{self, CORE};
use super::space::Segment;
use super::table::{Kind, PAGE};
use super::{order, source};
use crate::base::{Error, Result, Status, insist, log};
use crate::memory::cache::message::size_text;
use crate::memory::options;
use crate::runtime::{Address, host};
use parking_lot::Mutex;
use std::sync::OnceLock;

/// Held while memory is taken from the driver or given back, before all other locks. Blocks are freed without it.
static GROWING: Mutex<()> = Mutex::new(());

/// Segments are no smaller. Blocks of up to half of it share one.
const LEAST: usize = 2 << 20;
/// More than was ever in use by this part is given back, where it is free, before more is taken.
const SLACK: usize = 8;

/// Lets go of blocks that graphs which are gone kept for replays that are over; or waits for these.
pub type ReplaysHook = fn(bool) -> Result<()>;

static REPLAYS: OnceLock<ReplaysHook> = OnceLock::new();

pub fn on_replays(hook: ReplaysHook) {
    let _ = REPLAYS.set(hook);
}

fn end_replays(wait: bool) -> Result<()> {
    match REPLAYS.get() {
        Some(hook) if core::has_pending() => hook(wait),
        _ => Ok(()),
    }
}

/// Why there is no more memory.
enum Refusal {
    Limit(usize),
    Driver(Error),
}

#[inline(never)]
pub fn allocate(kind: Kind) -> Result<Address> {
    order::settle(false);
    // Another time where somebody waits for the driver.
    if core::most_kept() != usize::MAX
        && let Some(_growing) = GROWING.try_lock()
    {
        let _ = give_back_whole(|segment| segment.size > core::most_kept(), usize::MAX);
    }
    if let Some(address) = CORE.lock().take(kind) {
        return Ok(address);
    }
    order::settle(true);
    // Nobody hears of what fails: those who wait for them do.
    let _ = end_replays(false);
    if let Some(address) = take_all(kind) {
        return Ok(address);
    }
    if let Ok(address) = grow(kind, None)? {
        return Ok(address);
    }
    let elsewhere = || take_all(kind).or_else(|| host::nodes().iter().find_map(|node| CORE.lock().take(kind.on_node(*node))));
    if let Some(address) = elsewhere() {
        return Ok(address);
    }
    let waited = order::wait(kind.bytes(), elsewhere);
    if let Ok(Some(address)) = waited {
        return Ok(address);
    }
    let replays = end_replays(true);
    if let Some(address) = elsewhere() {
        return Ok(address);
    }
    let waited = waited.map(drop).and(replays);
    let over = over_limit(kind);
    if over > 0
        && let Ok(address) = grow(kind, Some(over))?
    {
        return Ok(address);
    }
    match grow(kind, Some(usize::MAX))? {
        Ok(address) => Ok(address),
        Err((refusal, given)) => match elsewhere() {
            Some(address) => Ok(address),
            // A failure that kept memory back is the better answer.
            None => waited.and(given).and_then(|()| Err(out_of_memory(kind, &refusal))),
        },
    }
}

/// What has to go back before the limit has room.
fn over_limit(kind: Kind) -> usize {
    let core = CORE.lock();
    core.limit.map_or(0, |limit| (core.space.held() + kind.bytes().next_multiple_of(PAGE)).saturating_sub(limit))
}

/// From all that is free, also with other threads.
fn take_all(kind: Kind) -> Option<Address> {
    if let Some(address) = CORE.lock().take(kind) {
        return Some(address);
    }
    empty_homes();
    CORE.lock().take(kind)
}

fn empty_homes() {
    let homes = CORE.lock().homes.clone();
    homes.iter().for_each(|home| home.empty());
}

/// A block out of new memory, after so many bytes of free segments went back; None: what is above the slack. The inner error: there is none, and
/// whether all of them went back.
fn grow(kind: Kind, give_back: Option<usize>) -> Result<std::result::Result<Address, (Refusal, Result<()>)>> {
    let options = options::get();
    let _growing = GROWING.lock();
    if let Some(address) = CORE.lock().take(kind) {
        return Ok(Ok(address));
    }
    let exact = kind.bytes().next_multiple_of(PAGE);
    let ample = if kind.bytes() > LEAST / 2 { exact } else { LEAST };
    let is_first = kind.is_pages() && CORE.lock().space.segments().all(|(_, segment)| segment.class != kind.class());
    let reserve = if is_first { options.pinned_reserve_segment_size_mb << 20 } else { 0 };
    let bytes = give_back.unwrap_or_else(|| CORE.lock().surplus(ample, SLACK, LEAST));
    // What the driver does not take is kept.
    let given = give_back_whole(|_| true, bytes);
    let mut refusal = Refusal::Limit(0);
    let mut last = 0;
    for size in [reserve.max(ample), ample, exact].into_iter().filter(|size| std::mem::replace(&mut last, *size) != *size) {
        let limit = {
            let core = CORE.lock();
            core.limit.filter(|limit| core.space.held().saturating_add(size) > *limit)
        };
        if let Some(limit) = limit {
            refusal = Refusal::Limit(limit);
            continue;
        }
        match source::obtain(size, kind.class(), &options) {
            Ok((address, segment)) => {
                let mut core = CORE.lock();
                core.add_segment(address, segment);
                return core.take(kind).map(Ok).ok_or_else(|| Error::internal("New pinned memory does not hold the block that it is for."));
            }
            Err(error) if error.status == Status::TCUDA_ERROR_OUT_OF_MEMORY => refusal = Refusal::Driver(error),
            Err(error) => return Err(error),
        }
    }
    Ok(Err((refusal, given)))
}

/// Gives free segments back, the smallest first, until it was so many bytes. One that the driver does not take stays.
fn give_back_whole(passes: impl Fn(&Segment) -> bool, bytes: usize) -> Result<()> {
    let mut given = 0;
    let mut kept = Vec::new();
    let mut result = Ok(());
    while given < bytes {
        let Some((address, segment)) = CORE.lock().space.remove_whole(&passes) else { break };
        match source::give_back(address, &segment) {
            Err(error) if error.status != Status::TCUDA_ERROR_DEVICE_LOST => {
                kept.push((address, segment));
                result = result.and(Err(error));
            }
            lost_or_given => {
                CORE.lock().removed_segment(&segment);
                given += segment.size;
                result = result.and(lost_or_given);
            }
        }
    }
    let mut core = CORE.lock();
    kept.into_iter().for_each(|(address, segment)| core.space.add(address, segment));
    result
}

/// Waits for what is freed but in use, then gives back all that is free.
pub fn empty() -> Result<()> {
    order::settle(true);
    let waited = order::wait(0, || None::<()>).map(drop).and(end_replays(true));
    empty_homes();
    let _growing = GROWING.lock();
    CORE.lock().start_most_out();
    waited.and(give_back_whole(|_| true, usize::MAX))
}

/// Everything, also what is in use.
pub fn shutdown() {
    empty_homes();
    let growing = GROWING.lock();
    let segments = CORE.lock().clear();
    let give_back = |(address, segment): &(Address, Segment)| insist(|| source::give_back(*address, segment)).err();
    let errors: Vec<Error> = segments.iter().filter_map(give_back).collect();
    drop(growing);
    errors.iter().for_each(|error| log::warn(&format!("Pinned memory could not be given back: {error}")));
}

#[cold]
fn out_of_memory(kind: Kind, refusal: &Refusal) -> Error {
    let available = host::available();
    let core = CORE.lock();
    let (held, free, pending) = (core.space.held(), core.space.free_bytes(), core.pending_bytes());
    let mut text = format!("Pinned host memory ran out. Tried to allocate {}. ", size_text(kind.bytes()));
    text += &match refusal {
        Refusal::Limit(limit) => format!("The limit is {}. ", size_text(*limit)),
        Refusal::Driver(error) => format!("{} ", error.message),
    };
    if let Some(available) = available {
        text += &format!("The host has {} of memory available. ", size_text(available));
    }
    text += &format!(
        "tcuda holds {}, of which {} is in use, {} is freed but in use by streams, and {} is free; the largest free piece has {}. ",
        size_text(held),
        size_text(held - free - pending),
        size_text(pending),
        size_text(free),
        size_text(core.space.largest_free())
    );
    let native = match refusal {
        Refusal::Driver(error) => error.native,
        Refusal::Limit(_) => 0,
    };
    text += match refusal {
        _ if pending >= kind.bytes() => {
            "Graphs keep what was freed for their replays, or streams that are captured use it; reset the graphs, end the capture."
        }
        Refusal::Limit(limit) if kind.bytes() > *limit => {
            "Raise the limit (tcuda_host_set_memory_limit, pinned_limit_mb), or ask for less."
        }
        _ if free >= kind.bytes() => "Free memory lies apart; free the blocks between, or ask for smaller ones.",
        Refusal::Limit(_) => "Free something, or raise the limit (tcuda_host_set_memory_limit, pinned_limit_mb).",
        Refusal::Driver(_) => "Free something, or pin less: pinned memory is lost to everything else on the machine.",
    };
    Error::new(Status::TCUDA_ERROR_OUT_OF_HOST_MEMORY, text).with_native(native).with_bytes(kind.bytes() as u64)
}
