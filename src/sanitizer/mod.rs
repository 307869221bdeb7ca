//! # sanitizer
//! Owns:   what the stream sanitizer knows: clocks of streams, events and the host, the last accesses to memory, blocks that are in use or
//!         were freed, what graphs touch; and its reports.
//! Uses:   copy, memory, stream, runtime, base.
//! Never:  waits for a device, or asks the driver anything while it holds its lock; changes what a program does.
//! Locks:  STATE, which is taken under any lock of tcuda but memory's `core` and POOLS and pinned's CORE; these under it, or report::FOUND or
//!         ipc's IMPORTS. report::FUNCTION alone.
//! Tests:  in the files, tests/sanitizer, and the conformance suite with TCUDA_SANITIZER=1.
//!
//! - `clock`  who is past what
//! - `shadow` stretches of memory
//! - `world`  accesses and clocks together
//! - `blocks` memory that was handed out and given back
//! - `graphs` what was captured, and what a replay does
//! - `report` what was found

mod blocks;
mod clock;
mod graphs;
pub mod report;
mod shadow;
mod world;

use crate::base::watch::{self, Access, Happening, Observer, Place};
use crate::base::{Error, Result, annotation, config, insist, log, process};
use crate::copy;
use crate::memory;
use crate::runtime;
use crate::runtime::api::CaptureStatus;
use crate::stream::{self, Stream};
use blocks::{Block, Blocks, Memory};
use clock::{HOST, Key, Recorded, Who};
use graphs::Graphs;
use parking_lot::Mutex;
use report::{Does, Kind, Report, Side};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use world::World;

pub const VARIABLE: &str = "TCUDA_SANITIZER";

struct State {
    world: World,
    blocks: Blocks,
    graphs: Graphs,
}

static STATE: Mutex<Option<Box<State>>> = Mutex::new(None);

struct Sanitizer;

static SANITIZER: Sanitizer = Sanitizer;

pub fn is_locked() -> bool {
    STATE.is_locked() || report::is_locked()
}

/// From here on everything is seen; earlier reports are forgotten. On already: nothing changes.
pub fn enable() {
    {
        let mut state = STATE.lock();
        if state.is_some() {
            return;
        }
        report::clear();
        *state = Some(Box::new(State { world: World::new(), blocks: Blocks::new(), graphs: Graphs::new() }));
        watch::observe(&SANITIZER);
        watch::set(watch::SANITIZER, true);
    }
    stream::on_gone(stream::Turn::Caches, stream_goes);
    memory::stop_fronts();
}

/// Reports stay.
pub fn disable() {
    if process::is_forked() {
        // Another thread of the parent may have held the lock.
        return watch::set(watch::SANITIZER, false);
    }
    let state = {
        let mut state = STATE.lock();
        watch::set(watch::SANITIZER, false);
        state.take()
    };
    drop(state);
}

pub fn is_on() -> bool {
    watch::any(watch::SANITIZER)
}

pub fn configure() {
    match config::get(VARIABLE).as_deref() {
        None | Some("0") => {}
        Some("1") => enable(),
        Some(word) => log::warn(&format!("{VARIABLE} is '{word}'; known are 0 and 1. Nothing is watched.")),
    }
}

/// Everything is gone, streams, events and memory.
pub fn shutdown() {
    if let Some(state) = STATE.lock().as_mut() {
        **state = State { world: World::new(), blocks: Blocks::new(), graphs: Graphs::new() };
    }
}

/// What the program says that it does to memory, on a stream or (None) on the host. `name`: of the kernel or of what does it.
pub fn annotate(address: usize, size: usize, reads: bool, writes: bool, on: Option<Stream>, name: Option<&str>) -> Result<()> {
    if address.checked_add(size).is_none() {
        return Err(Error::invalid_argument(format!("{size} bytes from {address:#x} reach past the end of memory.")));
    }
    let call = match name.map(annotation::number_of).transpose()? {
        Some(number) if number != annotation::NONE => annotation::text(number),
        _ => name_of_call(),
    };
    if !is_on() || size == 0 {
        return Ok(());
    }
    let access = |write| Access { address, size, write };
    let accesses: Vec<Access> = [(reads, false), (writes, true)].into_iter().filter(|does| does.0).map(|does| access(does.1)).collect();
    match on {
        Some(stream) => access_on(stream.place(), &accesses, call),
        None => access_by_host(&accesses, call),
    }
    Ok(())
}

// ---- what is asked before the lock

/// A stream as a clock knows it, and the capture that it takes part in.
struct Actor {
    key: Key,
    capture: Option<u64>,
}

fn key_of(on: Place) -> Option<Key> {
    // What the seam calls by a handle says no device.
    let on = if on.device < 0 { stream::resolve(on.raw).ok()?.place() } else { on };
    Some(Key { on, thread: if on.raw == stream::PER_THREAD { process::thread() } else { 0 } })
}

fn actor(on: Place) -> Option<Actor> {
    let key = key_of(on)?;
    let runtime = runtime::runtime().ok()?;
    let capture = match key.on.raw {
        0..=stream::PER_THREAD => None,
        // Once more: what a capture is taken for the program's otherwise, and its replays for uses of freed memory.
        raw => match insist(|| runtime.capture_status(raw)) {
            Ok(CaptureStatus::Active(id) | CaptureStatus::Invalidated(id)) => Some(id),
            Ok(CaptureStatus::None) | Err(_) => None,
        },
    };
    if !with(|state| state.world.clocks.knows(key))? {
        // Those of tcuda's own have no order with the default stream; others may.
        let blocking = match key.on.raw {
            stream::DEFAULT => Some(false),
            stream::PER_THREAD => {
                process::at_end(thread_ends);
                Some(true)
            }
            // To ask would end the capture.
            _ if capture.is_some() => None,
            raw => Some(insist(|| runtime.stream_flags(raw)).is_ok_and(|flags| flags & 1 == 0)),
        };
        if let Some(blocking) = blocking {
            with(|state| state.world.clocks.know(key, blocking));
        }
    }
    Some(Actor { key, capture })
}

fn with<T>(work: impl FnOnce(&mut State) -> T) -> Option<T> {
    STATE.lock().as_deref_mut().map(work)
}

/// Pageable memory is copied at once, or not by a device: its order is the program's own.
fn is_watched(access: &Access) -> bool {
    let is_a_devices = || copy::place_of(access.address).is_ok_and(|place| place != copy::Place::Pageable);
    let known = with(|state| {
        let block = state.blocks.find(access.address)?;
        let is_there = match &block.memory {
            Memory::Device => true,
            Memory::Pinned => memory::pinned::holds(access.address),
            Memory::Import(is_mapped) => is_mapped.load(Relaxed),
        };
        if !is_there && block.memory.is_pinned() {
            // The cache gave it back, and somebody else may have it.
            state.forget(block.address, block.size);
            return None;
        }
        Some((block, is_there))
    });
    match known.flatten() {
        Some((_, true)) => true,
        Some((block, false)) => {
            // Nobody's, unless somebody has come to have it since.
            let is_known = |state: &State| state.blocks.find(access.address).is_some_and(|known| Arc::ptr_eq(&known, &block));
            if is_a_devices() {
                with(|state| is_known(state).then(|| state.forget(block.address, block.size)));
            }
            true
        }
        None => is_a_devices(),
    }
}

fn name_of_call() -> &'static str {
    match watch::function() {
        "" => "tcuda",
        function => function,
    }
}

fn side(does: Does, call: &'static str, on: Option<Place>, address: usize, size: usize) -> Side {
    Side { does, call, on, annotation: annotation::current(), sequence: clock::number(), address, size }
}

fn sides<'a>(accesses: &'a [Access], call: &'static str, on: Option<Place>) -> impl Iterator<Item = Side> + 'a {
    let does = |write: bool| if write { Does::Write } else { Does::Read };
    accesses.iter().map(move |access| side(does(access.write), call, on, access.address, access.size))
}

// ---- what happens

fn access_on(on: Place, accesses: &[Access], call: &'static str) {
    let accesses: Vec<Access> = accesses.iter().copied().filter(|access| access.size > 0 && is_watched(access)).collect();
    if accesses.is_empty() {
        return;
    }
    let Some(actor) = actor(on) else { return };
    with(|state| {
        state.check_freed(&accesses, call, Some(actor.key.on));
        let sides: Vec<Side> = sides(&accesses, call, Some(actor.key.on)).collect();
        match actor.capture {
            Some(id) => state.graphs.access(id, actor.key, &sides, &state.blocks).into_iter().for_each(|sides| state.race(sides)),
            None => {
                let who = state.world.clocks.add(actor.key);
                state.world.access(who, sides.into_iter()).into_iter().for_each(|sides| state.race(sides));
            }
        }
    });
}

fn access_by_host(accesses: &[Access], call: &'static str) {
    let accesses: Vec<Access> = accesses.iter().copied().filter(is_watched).collect();
    with(|state| {
        state.check_freed(&accesses, call, None);
        state.world.access(HOST, sides(&accesses, call, None)).into_iter().for_each(|sides| state.race(sides));
    });
}

fn stream_goes(stream: Stream) -> Result<()> {
    with(|state| state.world.clocks.leave(stream.place()));
    Ok(())
}

fn thread_ends() {
    // Another thread of the parent may have held the lock.
    if !process::is_forked() {
        with(|state| state.world.clocks.leave_thread(process::thread()));
    }
}

impl State {
    fn race(&self, (current, previous): (Side, Side)) {
        let allocated = self.blocks.find(current.address).map(|block| block.allocated);
        report::add(Report { kind: Kind::Race, current, previous: Some(previous), allocated });
    }

    /// Memory that is no block's any more.
    fn check_freed(&mut self, accesses: &[Access], call: &'static str, on: Option<Place>) {
        for access in accesses {
            // Another thread may be freeing one that is kept, and not have told of that yet.
            let is_gone = |start: usize| !is_imported(start);
            let Some(block) = self.blocks.freed_in(access.address, access.size, is_gone) else { continue };
            let does = if access.write { Does::Write } else { Does::Read };
            let current = side(does, call, on, access.address, access.size);
            report::add(Report { kind: Kind::UseAfterFree, current, previous: block.freed, allocated: Some(block.allocated) });
        }
    }

    /// Memory that is no stream's. What another import has here already is used as it was.
    fn came(&mut self, memory: Memory, address: usize, size: usize, call: &'static str) {
        let mut at = address;
        for (start, end) in self.blocks.imported(address, size) {
            self.world.forget(at, start - at);
            at = end;
        }
        self.world.forget(at, address + size - at);
        // One memory, as long as any import of it is there.
        let before = self.blocks.find(address).filter(|block| block.freed.is_none()).map(|block| block.memory.clone());
        let memory = match (memory, before) {
            (Memory::Import(_), Some(Memory::Import(is_mapped))) => Memory::Import(is_mapped),
            (memory, _) => memory,
        };
        self.blocks.made(memory, side(Does::Allocate, call, None, address, size), None, None);
    }

    /// It is somebody else's, if anybody's.
    fn forget(&mut self, address: usize, size: usize) {
        self.world.forget(address, size);
        self.blocks.forget(address, size);
    }

    fn who(&mut self, key: Key) -> Who {
        self.world.clocks.add(key)
    }

    /// The stream of a block that a capture allocated.
    fn stream_in_capture(&self, address: usize) -> Option<Place> {
        let block = self.blocks.find(address).filter(|block| block.capture.is_some())?;
        let owner = block.owner.filter(|owner| !self.world.clocks.is_gone(*owner, block.allocated.sequence))?;
        self.world.clocks.key(owner).map(|key| key.on)
    }

    /// A block goes. `inside`: the capture that this is a part of.
    fn freeing(&mut self, address: usize, size: usize, on: Option<Key>, inside: Option<u64>, call: &'static str) {
        let block = self.blocks.find(address).filter(|block| block.address == address && block.freed.is_none());
        let owner = block.as_ref().and_then(|block| block.owner);
        let key = on.or_else(|| owner.and_then(|owner| self.world.clocks.key(owner)));
        let current = side(Does::Free, call, key.map(|key| key.on), address, size);
        let size = block.as_ref().map_or(size, |block| block.size);
        self.goes(block, address, size, on, inside, current);
    }

    /// Some of an import, or of several, as a block of its own.
    fn closing(&mut self, address: usize, size: usize, call: &'static str) {
        let block = self.blocks.find(address).filter(|block| block.freed.is_none());
        if block.is_some() {
            self.goes(block, address, size, None, None, side(Does::Free, call, None, address, size));
        }
    }

    /// Whoever may still use it has to be past it, or recorded.
    fn goes(&mut self, block: Option<Arc<Block>>, address: usize, size: usize, on: Option<Key>, inside: Option<u64>, current: Side) {
        // A program that names the stream has ordered the others before it.
        let users: Vec<Who> = match block.as_ref().filter(|_| on.is_none()) {
            Some(block) => self.world.clocks.still(&block.users.lock()),
            None => Vec::new(),
        };
        let on = on.map(|key| self.who(key));
        let is_gone = |block: &Block| block.owner.is_some_and(|owner| self.world.clocks.is_gone(owner, block.allocated.sequence));
        let in_use = match block.as_deref() {
            // What else uses it are replays, whose pool keeps it.
            Some(Block { capture: Some(id), .. }) if inside != Some(*id) => None,
            Some(Block { capture: Some(id), owner, .. }) => {
                let key = |who: Who| self.world.clocks.key(who);
                let users: Vec<Key> = users.into_iter().filter_map(key).collect();
                self.graphs.frees(*id, address, size, on.or(*owner).and_then(key), &users)
            }
            Some(block) if !block.is_kept.load(Relaxed) && !is_gone(block) => self.world.frees(address, size, on.or(block.owner), &users),
            // Nobody knows, a graph keeps it, or the cache waits for all that the device had.
            _ => {
                self.world.forget(address, size);
                None
            }
        };
        // Who has imported what this process exported keeps it.
        if let (Some(previous), Some(block)) = (in_use, &block)
            && !is_imported(previous.address.max(address))
        {
            report::add(Report { kind: Kind::FreeInUse, current, previous: Some(previous), allocated: Some(block.allocated) });
        }
        self.blocks.freed(block, current, address, size);
    }

    fn event_waited(&mut self, event: usize, actor: &Actor) -> Recorded {
        let who = self.who(actor.key);
        match actor.capture {
            Some(id) => self.graphs.wait(id, event, actor.key),
            None => self.world.clocks.wait(event, who),
        }
    }
}

/// Here, also if it is of this very process.
fn is_imported(address: usize) -> bool {
    memory::hooks::stranger(address).is_some()
}

fn never_recorded(event: usize, on: Option<Place>) {
    let current = side(Does::Wait, name_of_call(), on, event, 0);
    report::add(Report { kind: Kind::EventNeverRecorded, current, previous: None, allocated: None });
}

impl Observer for Sanitizer {
    fn accessed(&self, on: Place, accesses: &[Access]) {
        access_on(on, accesses, name_of_call());
    }

    fn host_accessed(&self, accesses: &[Access]) {
        access_by_host(accesses, name_of_call());
    }

    fn happened(&self, happening: &Happening) {
        let call = name_of_call();
        match *happening {
            Happening::EventMade { event, .. } => with(|state| state.world.clocks.event_made(event)),
            Happening::EventShared { event } => with(|state| state.world.clocks.event_shared(event)),
            Happening::EventGone { event, .. } => with(|state| state.world.clocks.event_gone(event)),
            Happening::EventRecorded { event, on } => actor(on).and_then(|actor| {
                with(|state| match actor.capture {
                    Some(id) => {
                        state.world.clocks.event_gone(event);
                        state.graphs.record(id, event, actor.key);
                    }
                    None => {
                        let who = state.who(actor.key);
                        state.world.clocks.record(event, who);
                    }
                })
            }),
            Happening::EventWaited { event, on } => actor(on).and_then(|actor| {
                let recorded = with(|state| state.event_waited(event, &actor))?;
                if recorded == Recorded::Never {
                    never_recorded(event, Some(actor.key.on));
                }
                Some(())
            }),
            Happening::EventSynchronized { event } => {
                if with(|state| state.world.clocks.wait(event, HOST)) == Some(Recorded::Never) {
                    never_recorded(event, None);
                }
                Some(())
            }
            Happening::EventCaptured { event, on, waits } => actor(on).and_then(|actor| {
                let id = actor.capture?;
                with(|state| state.graphs.event(id, event, actor.key, waits))
            }),
            Happening::EventDone { event } => with(|state| _ = state.world.clocks.wait(event, HOST)),
            Happening::StreamMade { on } => key_of(on).and_then(|key| {
                with(|state| {
                    state.world.clocks.leave(on);
                    state.world.clocks.know(key, false);
                })
            }),
            Happening::StreamWaited { on } | Happening::StreamDone { on } => actor(on).and_then(|actor| {
                with(|state| {
                    let who = state.who(actor.key);
                    state.world.clocks.stream_is_past(who);
                })
            }),
            Happening::DeviceWaited { device } => with(|state| state.world.clocks.device_is_past(device)),
            Happening::Allocated { address, size, on } => actor(on).and_then(|actor| {
                with(|state| {
                    let owner = state.who(actor.key);
                    match actor.capture {
                        None => state.world.allocated(address, size, owner),
                        Some(id) => state.graphs.allocated(id, address, size, actor.key),
                    }
                    let allocated = side(Does::Allocate, call, Some(actor.key.on), address, size);
                    state.blocks.made(Memory::Device, allocated, Some(owner), actor.capture);
                })
            }),
            Happening::HostAllocated { address, size } => with(|state| state.came(Memory::Pinned, address, size, call)),
            Happening::Imported { address, size } => with(|state| state.came(Memory::Import(Arc::new(true.into())), address, size, call)),
            Happening::Freeing { address, size, on } => {
                let named = on.and_then(actor);
                let of_capture = || with(|state| state.stream_in_capture(address)).flatten().and_then(actor);
                let inside = match &named {
                    Some(actor) => actor.capture,
                    None => of_capture().and_then(|actor| actor.capture),
                };
                with(|state| state.freeing(address, size, named.map(|actor| actor.key), inside, call))
            }
            Happening::Unmapped { address, size } => with(|state| {
                state.world.forget(address, size);
                state.blocks.unmapped(address, size);
            }),
            Happening::Left { address, size } => with(|state| state.blocks.forget(address, size)),
            Happening::Closing { address, size } => with(|state| state.closing(address, size, call)),
            Happening::HostFreeing { address } => with(|state| {
                if let Some(block) = state.blocks.find(address).filter(|block| block.address == address) {
                    state.freeing(address, block.size, None, None, call);
                }
            }),
            Happening::Kept { address } => with(|state| state.blocks.kept(address)),
            Happening::Uses { address, on } => actor(on).and_then(|actor| {
                with(|state| {
                    let who = state.who(actor.key);
                    if let Some(block) = state.blocks.find(address) {
                        let mut users = block.users.lock();
                        users.retain(|user| user.0 != who);
                        users.push((who, clock::number()));
                    }
                })
            }),
            Happening::CaptureBegun { capture } => with(|state| state.graphs.begun(capture)),
            Happening::Replayed { capture, exec, on } => {
                actor(on).and_then(|actor| with(|state| state.replayed(capture, exec, &actor, call)))
            }
            Happening::ExecGone { exec } => with(|state| state.graphs.exec_gone(exec)),
            Happening::GraphGone { capture } => with(|state| state.graphs.gone(capture)),
            Happening::Meets { place, on } => actor(on).and_then(|actor| {
                with(|state| match actor.capture {
                    Some(id) => state.graphs.meet(id, place, actor.key),
                    None => {
                        let who = state.who(actor.key);
                        state.world.clocks.meet(place, who);
                    }
                })
            }),
            Happening::MeetsNoMore { place } => with(|state| state.world.clocks.meet_no_more(place)),
            Happening::Freed { .. } => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// One sanitizer for the process.
    static TURN: Mutex<()> = Mutex::new(());

    #[test]
    fn threads_that_ended_leave_nothing_behind_when_the_host_is_past_them() {
        config::set("TCUDA_BACKEND", "sim".into());
        let _turn = TURN.lock();
        enable();
        let on = Place { device: 0, raw: stream::PER_THREAD };
        let clocks: Vec<Option<Who>> = (0..20)
            .map(|_| {
                let work = move || {
                    let key = actor(on)?.key;
                    let who = with(|state| state.who(key));
                    SANITIZER.happened(&Happening::StreamWaited { on });
                    who
                };
                std::thread::spawn(work).join().unwrap()
            })
            .collect();
        assert!(clocks.iter().all(|who| *who == clocks[0] && who.is_some()), "{clocks:?}");
        disable();
    }

    #[test]
    fn it_is_on_or_off_whoever_turns_it_beside_others() {
        let _turn = TURN.lock();
        static OVER: AtomicBool = AtomicBool::new(false);
        let other = std::thread::spawn(|| {
            while !OVER.load(Relaxed) {
                disable();
            }
        });
        for _ in 0..500_000 {
            enable();
            let state = STATE.lock();
            if is_on() != state.is_some() {
                OVER.store(true, Relaxed);
                panic!("it is on ({}) or off ({})", is_on(), state.is_none());
            }
        }
        OVER.store(true, Relaxed);
        other.join().unwrap();
        disable();
    }
}
