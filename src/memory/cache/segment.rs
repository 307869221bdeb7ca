//! What the device offers, what is held of the driver, and how it goes back. With virtual memory an area is a large reservation of addresses
//! in which handles are mapped as needed, and a handle goes back when all of its bytes are free; without it an area is one `cudaMalloc`.

use super::areas;
use super::block::{self, BlockId, MAPPED, SMALL, State};
use super::core::Core;
use super::left::Left;
use super::physical::{Backing, HandleId, Mapping};
use super::shares::Idle;
use super::slot::COMMON;
use super::{Abilities, Cache, StreamSlot};
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, insist};
use crate::device;
use crate::memory::provider::{self, Source};
use crate::memory::stats::Family;
use crate::memory::totals::Event;
use crate::memory::{captures, options, poison};
use crate::runtime::table::{MemAccess, MemAllocationProp, MemLocation};
use crate::runtime::{Address, Runtime};
use std::sync::atomic::Ordering::Relaxed;

/// Addresses in one stretch, covered by blocks.
pub struct Area {
    pub base: Address,
    pub size: usize,
    pub small: bool,
    /// One cudaMalloc; else a reservation.
    pub plain: bool,
    /// Of a plain one: that which it was made for, as the driver has it.
    pub stream: u64,
    pub first: BlockId,
}

/// What a device was seen to offer.
pub enum Seen<T> {
    ForGood(T),
    /// As far as can be told now: the next growth looks again.
    ForNow(T),
}

impl<T> Seen<T> {
    fn map<U>(self, to: impl FnOnce(T) -> U) -> Seen<U> {
        match self {
            Seen::ForGood(what) => Seen::ForGood(to(what)),
            Seen::ForNow(what) => Seen::ForNow(to(what)),
        }
    }
}

/// `splits`: whether memory may be handed out in other pieces than it came in.
pub fn abilities(runtime: &Runtime, device: i32, source: Source, splits: bool, left: &Left) -> Result<Seen<Abilities>> {
    let total = device::total_memory(device)? as usize;
    let options = options::get();
    let wanted = options.expandable_segments && splits && matches!(source, Source::Driver);
    let seen = if wanted && runtime.has_virtual_memory() {
        runtime.outside_capture(|| probe(runtime, device, left))?
    } else {
        Seen::ForGood(None)
    };
    Ok(seen.map(|virtual_memory| Abilities { total, virtual_memory, options, source }))
}

/// The best kind of handle that the device makes: exportable and reachable by network cards, else plain; None: no virtual memory.
fn probe(runtime: &Runtime, device: i32, left: &Left) -> Result<Seen<Option<(MemAllocationProp, usize)>>> {
    const PINNED: i32 = 1;
    const FILE_DESCRIPTOR: i32 = 1;
    let location = device_location(device);
    for (handle_types, gpu_direct_rdma) in [(FILE_DESCRIPTOR, 1), (FILE_DESCRIPTOR, 0), (0, 0)] {
        let properties = MemAllocationProp { kind: PINNED, handle_types, location, gpu_direct_rdma, ..Default::default() };
        // What is asked once is the verdict for good.
        let Ok(granularity) = insist(|| runtime.granularity(&properties)) else { continue };
        match insist(|| runtime.mem_create(granularity, &properties)) {
            Ok(handle) => {
                left.release(runtime, handle);
                return Ok(Seen::ForGood(Some((properties, granularity))));
            }
            Err(error) if error.status == Status::TCUDA_ERROR_DEVICE_LOST => return Err(error),
            // No room is no verdict on the kind.
            Err(error) if error.status == Status::TCUDA_ERROR_OUT_OF_MEMORY => return Ok(Seen::ForNow(Some((properties, granularity)))),
            Err(_) => {}
        }
    }
    Ok(Seen::ForGood(None))
}

fn device_location(device: i32) -> MemLocation {
    const DEVICE: i32 = 1;
    MemLocation { kind: DEVICE, id: device }
}

/// Read and write for the device itself and all that reach its memory.
pub fn access_list(device: i32) -> Vec<MemAccess> {
    const READ_WRITE: i32 = 3;
    let peers = device::peer::with_access_to(device);
    std::iter::once(device).chain(peers).map(|device| MemAccess { location: device_location(device), flags: READ_WRITE }).collect()
}

impl Core {
    /// cudaFree waits for the device by itself.
    fn goes_unwaited(&self, handle: HandleId) -> bool {
        !matches!(self.physical[handle].backing, Backing::Plain | Backing::Ordered)
    }

    pub(super) fn new_area(&mut self, base: Address, size: usize, small: bool, plain: bool, slot: StreamSlot) -> BlockId {
        self.keys.occupy(slot);
        let flags = if small { SMALL } else { 0 } | if plain { 0 } else { MAPPED };
        let pool = &mut self.shelf(slot).pool;
        pool.insist();
        let first = pool.insert(base, size, flags, State::Unmapped, slot).expect("some records are left for who has the lock");
        self.unmapped.insert(base, first);
        self.areas.insert(base, Area { base, size, small, plain, stream: self.raw_of(slot), first });
        areas::add(base..base + size, self.number);
        first
    }

    /// A handle from the driver, not mapped yet.
    pub(super) fn count_handle(&mut self, backing: Backing, size: usize, small: bool) -> HandleId {
        self.count_in(size, small);
        if matches!(backing, Backing::Ordered) {
            self.ordered_bytes += size;
        }
        self.physical.insert(backing, size, small)
    }

    pub(super) fn count_in(&self, size: usize, small: bool) {
        self.stats.add(Family::Segment, small, 1);
        self.stats.add(Family::ReservedBytes, small, size);
        self.stats.count(Event::DeviceAlloc);
    }

    pub(super) fn count_out(&self, size: usize, small: bool) {
        self.stats.sub(Family::Segment, small, 1);
        self.stats.sub(Family::ReservedBytes, small, size);
        self.stats.count(Event::DeviceFree);
    }

    /// A handle, mapped nowhere, is the driver's again.
    pub(super) fn uncount_handle(&mut self, id: HandleId) {
        let (size, small) = (self.physical[id].size, self.physical[id].small);
        self.count_out(size, small);
        if matches!(self.physical[id].backing, Backing::Ordered) {
            self.ordered_bytes -= size;
        }
        self.physical.remove(id);
    }

    /// A handle serves the other kind of blocks from now on: taken from the one, added to the other.
    pub fn recount(&mut self, id: HandleId, small: bool) {
        let was = std::mem::replace(&mut self.physical[id].small, small);
        if was != small {
            let size = self.physical[id].size;
            self.stats.sub(Family::Segment, was, 1);
            self.stats.sub(Family::ReservedBytes, was, size);
            self.stats.add(Family::Segment, small, 1);
            self.stats.add(Family::ReservedBytes, small, size);
        }
    }

    pub(super) fn limited(&self, size: usize) -> bool {
        self.stats.limit().is_some_and(|limit| self.stats.whole().reserved().saturating_add(size) > limit)
    }

    /// The reservations in which nothing is mapped, taken into the driver's hands.
    fn take_empty_areas(&mut self) -> Vec<(BlockId, Address, usize)> {
        let mut empty = Vec::new();
        for area in self.areas.values() {
            let first = block::at(area.first);
            if !area.plain && first.state() == State::Unmapped && first.size() == area.size {
                empty.push((area.first, area.base, area.size));
            }
        }
        for (first, base, size) in &empty {
            self.cut_out(*first, *base, base + size);
        }
        empty
    }
}

impl Core {
    /// An area without memory ends; its only block is in the driver's hands.
    pub(super) fn forget_area(&mut self, block: BlockId) {
        let base = block::at(block).address();
        self.put_record(block);
        self.areas.remove(&base);
        areas::remove(base, self.number);
        self.physical.close_space(base);
    }
}

impl Cache {
    /// Addresses of which too many are mapped to memory that is used elsewhere: the oldest such mappings end. Twice as many are tried as came;
    /// what is in use, or whose work is not done, stays.
    pub(super) fn unmap_old(&self, runtime: &Runtime, came: usize) {
        /// Times the memory that is held, and a TiB, which little memory may have too.
        const MOST: usize = 64;
        const MOST_BYTES: usize = 1 << 40;
        const AT_LEAST: usize = 64;
        let are_many = |core: &Core| {
            core.physical.mapping_count() > core.policy.most_mappings(core.physical.count())
                || core.physical.mapped_bytes > core.reserved().saturating_mul(MOST).saturating_add(MOST_BYTES)
        };
        if !are_many(&self.core.quiet()) {
            return;
        }
        // Where there is plenty nobody asked whether the work there is done.
        self.learn(COMMON);
        for _ in 0..AT_LEAST.max(2 * came) {
            let oldest = {
                let mut core = self.core.quiet();
                if are_many(&core) { core.physical.oldest() } else { None }
            };
            let Some(mapping) = oldest else { return };
            self.end_mapping(runtime, mapping);
        }
    }

    /// Unless what is mapped there is in use, or the driver does not.
    fn end_mapping(&self, runtime: &Runtime, mapping: Mapping) {
        let Some(block) = self.core.lock().take_moved(mapping.start, mapping.end(), true) else { return };
        let ended = runtime.outside_capture(|| runtime.mem_unmap(mapping.start, mapping.size)).is_ok();
        let mut core = self.core.lock();
        if ended {
            core.physical.unmap(mapping.start);
        }
        core.make_hole(block, if ended { State::Unmapped } else { State::Moved });
    }

    /// Gives the driver what is free and past. What the driver does not take stays; the first reason is the answer.
    /// A pool that is paused has nothing to give, and that of a graph gives nothing.
    pub fn release_free(&self, runtime: &Runtime) -> Result<()> {
        provider::refuse_inside()?;
        loop {
            let waited = self.wait_for_replays();
            let _growing = self.growing.lock();
            // As long as more is freed.
            if !waited.as_ref().is_ok_and(|waited| self.replays_use(*waited).is_some()) {
                return self.release_free_now(runtime, waited);
            }
        }
    }

    /// Whether something is to go of which no stream tells, and how much has changed by now. `waited`: how much had, when the device was waited for.
    fn replays_use(&self, waited: Option<u64>) -> Option<u64> {
        if !self.replayed.load(Relaxed) || self.is_fixed() || self.is_paused() {
            return None;
        }
        let mut core = self.core.lock();
        core.collect();
        let changes = core.changes();
        let idle = core.idle_handles(Idle::Large(0));
        (waited != Some(changes) && idle.iter().any(|(handle, _)| core.goes_unwaited(*handle))).then_some(changes)
    }

    /// No stream tells of replays that a program launched, so that the device has to be done with what they used: here, where others may grow
    /// meanwhile. How much had changed by then, if there is such memory.
    fn wait_for_replays(&self) -> Result<Option<u64>> {
        let Some(changes) = self.replays_use(None) else { return Ok(None) };
        watch::unseen(|| captures::wait_beside(self.device))?;
        Ok(Some(changes))
    }

    /// Under `growing`. `waited`: as `wait_for_replays` answered.
    pub(super) fn release_free_now(&self, runtime: &Runtime, waited: Result<Option<u64>>) -> Result<()> {
        if self.is_paused() || self.is_fixed() {
            return Ok(());
        }
        self.left.take_back(runtime, self.device);
        let released = self.release_after(runtime, Idle::Large(0), usize::MAX, waited);
        let old: Vec<Mapping> = self.core.lock().physical.mappings().collect();
        old.into_iter().for_each(|mapping| self.end_mapping(runtime, mapping));
        let empty = self.core.lock().take_empty_areas();
        for (first, base, size) in empty {
            // Addresses hold no memory back: those that stay go the next time.
            let free = || {
                watch::tell(|| Happening::Left { address: base, size });
                insist(|| runtime.outside_capture(|| runtime.address_free(base, size)))
            };
            let given = !self.left.is_in(base, size) && free().is_ok();
            let mut core = self.core.lock();
            if given {
                core.forget_area(first);
            } else {
                core.make_hole(first, State::Unmapped);
            }
        }
        let mut core = self.core.lock();
        let whole = core.whole_stopped();
        core.stats.forget_most();
        drop(whole);
        let (in_use, frees) = (core.stats.active().bytes, core.stats.frees());
        core.policy.restart(in_use, frees);
        (core.runs, core.gathered) = Default::default();
        core.forget_habits();
        released
    }

    /// Gives the driver handles that are free and past, until there are enough bytes.
    pub(super) fn release(&self, runtime: &Runtime, which: Idle, enough: usize) -> Result<()> {
        self.release_after(runtime, which, enough, Ok(None))
    }

    fn release_after(&self, runtime: &Runtime, which: Idle, enough: usize, waited: Result<Option<u64>>) -> Result<()> {
        let (taken, waits) = {
            let mut core = self.core.lock();
            core.collect();
            let is_waited_for = waited.as_ref().is_ok_and(|at| *at == Some(core.changes()));
            let mut idle = core.idle_handles(which);
            let mut bytes: usize = 0;
            idle.retain(|(handle, _)| {
                let wanted = bytes < enough;
                bytes = bytes.saturating_add(core.physical[*handle].size);
                wanted
            });
            // Owned nowhere for a moment, so that all places are alike.
            let spans: Vec<_> = idle.iter().flat_map(|(_, spans)| spans.iter().copied()).collect();
            core.cut_out_all(&spans).into_iter().for_each(|block| core.disown(block));
            let mut taken: Vec<(HandleId, Vec<(Mapping, BlockId)>)> = Vec::new();
            for (handle, _) in idle {
                let size = core.physical[handle].size;
                let places = core.physical[handle].places.clone();
                let blocks = places.into_iter().enumerate().filter_map(|(at, start)| {
                    let block = core.take_moved(start, start + size, false)?;
                    Some((Mapping { start, size, handle, first: at == 0 }, block))
                });
                taken.push((handle, blocks.collect()));
            }
            let waits = !is_waited_for && self.replayed.load(Relaxed) && taken.iter().any(|(handle, _)| core.goes_unwaited(*handle));
            (taken, waits)
        };
        // Once for all of it.
        let waited = match waited {
            _ if !waits => Ok(()),
            Ok(_) => watch::unseen(|| captures::wait_beside(self.device)),
            Err(error) => Err(error),
        };
        let mut failure = None;
        for (handle, places) in taken {
            if let Err(error) = self.give(runtime, handle, places, &waited) {
                failure.get_or_insert(error);
            }
        }
        // The driver's pool keeps what was a block of its own.
        self.count_spare(runtime, 0);
        failure.map_or(Ok(()), Err)
    }

    /// Gives a handle back, all of whose places are in the driver's hands. What the driver keeps is free memory again. `waited`: for what no mark
    /// tells of, or why not.
    fn give(&self, runtime: &Runtime, handle: HandleId, places: Vec<(Mapping, BlockId)>, waited: &Result<()>) -> Result<()> {
        let backing = self.core.lock().physical[handle].backing.clone();
        let raw = backing.raw();
        let mut failure = None;
        let mut kept = Vec::new();
        // Before the mode is asked for: the current device may be lost.
        let on_device = device::Guard::new(self.device);
        for (mapping, block) in places {
            poison::leaves(self.device, mapping.start, mapping.size);
            // Before: behind it the address may be somebody else's.
            watch::tell(|| Happening::Unmapped { address: mapping.start, size: mapping.size });
            if raw.is_none() {
                watch::tell(|| Happening::Left { address: mapping.start, size: mapping.size });
            }
            let given = on_device.as_ref().map_err(Error::clone).and_then(|_guard| {
                runtime.outside_capture(|| match &backing {
                    Backing::Virtual(_) | Backing::Away => {
                        waited.clone()?;
                        runtime.mem_unmap(mapping.start, mapping.size)
                    }
                    // All work on it is done: ordered memory needs no stream, of which each may be captured.
                    Backing::Plain | Backing::Ordered => runtime.free(mapping.start),
                    Backing::Provided(provider, stream) => {
                        waited.clone()?;
                        let stream = if self.core.lock().is_there(*stream) { *stream } else { 0 };
                        provider.free(mapping.start, mapping.size, self.device, stream);
                        Ok(())
                    }
                })
            });
            let mut core = self.core.lock();
            match given {
                Ok(()) => {
                    core.tell_given(mapping.start);
                    core.physical.unmap(mapping.start);
                    if raw.is_some() { core.make_hole(block, State::Unmapped) } else { core.forget_area(block) }
                }
                Err(error) => {
                    kept.push(block);
                    failure.get_or_insert(error);
                }
            }
        }
        let mut kept = kept.into_iter();
        match kept.next() {
            None => {
                if let Some(raw) = raw {
                    self.left.release(runtime, raw);
                }
                self.core.lock().uncount_handle(handle);
            }
            Some(owner) => {
                let mut core = self.core.lock();
                let owner = core.hand_over(owner, COMMON);
                block::at(owner).set_ticket(0);
                core.tell_kept(owner);
                core.make_free(owner);
                kept.for_each(|block| {
                    block::at(block).set_ticket(0);
                    core.make_hole(block, State::Moved);
                });
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Opens all memory of this device to another one, which just got peer access.
    /// That of a pool that is paused opens when it comes back.
    pub fn open_to_peers(&self, runtime: &Runtime) -> Result<()> {
        provider::refuse_inside()?;
        let _growing = self.growing.lock();
        let mapped: Vec<(Address, usize)> = {
            let core = self.core.lock();
            let mapped = core.physical.mappings().filter(|mapping| core.physical[mapping.handle].backing.raw().is_some());
            mapped.map(|mapping| (mapping.start, mapping.size)).collect()
        };
        let access = access_list(self.device);
        runtime.outside_capture(|| {
            mapped.into_iter().try_for_each(|(start, size)| runtime.mem_set_access(start, size, &access))?;
            self.open_ordered_to_peers(runtime)
        })
    }

    /// Gives everything back, handed out or not. For the end of the process' use of the device.
    pub fn tear_down(&self, runtime: &Runtime) {
        let _growing = self.growing.lock();
        // What a pause kept goes with the pool.
        drop(self.paused.lock().take());
        let mut core = self.core.lock();
        let _guard = device::Guard::new(self.device);
        let physical = std::mem::take(&mut core.physical);
        for mapping in physical.mappings() {
            match &physical[mapping.handle].backing {
                Backing::Virtual(_) => self.left.unmap(runtime, mapping.start, mapping.size),
                Backing::Plain | Backing::Ordered => drop(insist(|| runtime.free(mapping.start))),
                Backing::Provided(provider, _) => provider.free(mapping.start, mapping.size, self.device, 0),
                Backing::Away => {}
            }
        }
        physical.ids().filter_map(|id| physical[id].backing.raw()).for_each(|raw| self.left.release(runtime, raw));
        self.left.forget(runtime, self.device);
        for area in core.areas.values().filter(|area| !area.plain) {
            let _ = insist(|| runtime.address_free(area.base, area.size));
        }
        core.clear();
        drop(core);
        self.close_ordered(runtime);
        self.forget_abilities();
    }
}
