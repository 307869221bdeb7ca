//! Memory from the driver and back. With virtual memory an area is a large reservation of addresses in which handles are mapped as
//! needed, and a handle goes back when all of its bytes are free; without it an area is one `cudaMalloc`.

use super::block::{self, BlockId, MAPPED, SMALL, State};
use super::core::{Core, LARGEST, ROUND, Request};
use super::physical::{Backing, HandleId, Mapping};
use super::policy::{Holding, PIECES, Policy, Terms, UpTo, is_new};
use super::reach::Reach;
use super::runs::Runs;
use super::shares::Idle;
use super::slot::COMMON;
use super::stitch::{Found, Plan};
use super::{Abilities, Cache, StreamSlot};
use crate::base::{Error, Result, Status, insist};
use crate::device;
use crate::memory::provider::{self, Source};
use crate::memory::stats::Family;
use crate::memory::totals::Event;
use crate::memory::{captures, lookup, options, poison};
use crate::runtime::table::{MemAccess, MemAllocationProp, MemLocation};
use crate::runtime::{Address, MemHandle, Runtime};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

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

/// torch's segment sizes, for plain segments; that for sizes in between is an option.
const PLAIN_SMALL: usize = 2 << 20;
const PLAIN_OWN: usize = 10 << 20;

/// So many mappings at most end at once where the driver takes no more: room for several requests. The others follow, two for each that comes.
const MANY_MAPPINGS: usize = 1 << 10;

/// Why there is no more memory.
pub enum Refusal {
    /// The driver has none.
    Driver(Error),
    /// More than the limit that was set.
    Limit,
    /// More than the slack allows.
    Budget,
}

/// `splits`: whether memory may be handed out in other pieces than it came in.
pub fn abilities(runtime: &Runtime, device: i32, source: Source, splits: bool) -> Result<Abilities> {
    let total = device::total_memory(device)? as usize;
    let options = options::get();
    let wanted = options.expandable_segments && splits && matches!(source, Source::Driver);
    let virtual_memory = if wanted && runtime.has_virtual_memory() { runtime.outside_capture(|| probe(runtime, device))? } else { None };
    Ok(Abilities { total, virtual_memory, options, source })
}

/// The best kind of handle that the device makes: exportable and reachable by network cards, else plain; None: no virtual memory.
fn probe(runtime: &Runtime, device: i32) -> Result<Option<(MemAllocationProp, usize)>> {
    const PINNED: i32 = 1;
    const FILE_DESCRIPTOR: i32 = 1;
    let location = device_location(device);
    for (handle_types, gpu_direct_rdma) in [(FILE_DESCRIPTOR, 1), (FILE_DESCRIPTOR, 0), (0, 0)] {
        let properties = MemAllocationProp { kind: PINNED, handle_types, location, gpu_direct_rdma, ..Default::default() };
        let Ok(granularity) = runtime.granularity(&properties) else { continue };
        match runtime.mem_create(granularity, &properties) {
            Ok(handle) => {
                release(runtime, handle);
                return Ok(Some((properties, granularity)));
            }
            Err(error) if error.status == Status::TCUDA_ERROR_DEVICE_LOST => return Err(error),
            // No room is no verdict on the kind.
            Err(error) if error.status == Status::TCUDA_ERROR_OUT_OF_MEMORY => return Ok(Some((properties, granularity))),
            Err(_) => {}
        }
    }
    Ok(None)
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

/// For all work of the device, by what cudaFree does: cudaDeviceSynchronize would end a capture that begins on another thread. It has to do where
/// the device has no room for a block.
fn wait_beside_captures(runtime: &Runtime, device: i32) -> Result<()> {
    let _guard = device::Guard::new(device)?;
    runtime.outside_capture(|| match runtime.malloc(ROUND) {
        Ok(block) => insist(|| runtime.free(block)),
        Err(_) => captures::wait_for_device(device),
    })
}

pub(super) fn release(runtime: &Runtime, handle: MemHandle) {
    let _ = insist(|| runtime.outside_capture(|| runtime.mem_release(handle)));
}

impl Core {
    fn new_area(&mut self, base: Address, size: usize, small: bool, plain: bool, slot: StreamSlot) -> BlockId {
        let flags = if small { SMALL } else { 0 } | if plain { 0 } else { MAPPED };
        let pool = &mut self.shelf(slot).pool;
        pool.insist();
        let first = pool.insert(base, size, flags, State::Unmapped, slot).expect("some records are left for who has the lock");
        self.unmapped.insert(base, first);
        self.areas.insert(base, Area { base, size, small, plain, stream: self.raw_of(slot), first });
        first
    }

    /// A handle from the driver, not mapped yet.
    fn count_handle(&mut self, backing: Backing, size: usize, small: bool) -> HandleId {
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
        self.physical.close_space(base);
    }

    fn terms(&mut self, abilities: &Abilities, granularity: usize, slot: StreamSlot, request: &Request) -> Terms {
        let (active, most) = self.stats.active_and_most();
        self.note_wants(slot);
        // What others of the device hold is not there for this one.
        let others = self.stats.whole().reserved().saturating_sub(self.reserved());
        let (streams, new_sizes) = (self.streams(), self.new_sizes(slot));
        // As many records are looked at: only where it says something.
        let counts = (streams == 1 || self.are_as_one()) && is_new(new_sizes) && !request.small;
        let pieces = if counts {
            let free = self.awake.iter().flat_map(|slot| self.list(*slot, false).iter());
            free.take(PIECES).count()
        } else {
            0
        };
        let holding = Holding {
            new_sizes,
            streams,
            shared: self.fronts.are_shared(),
            reserved: self.reserved(),
            large: active.large + 1,
            pieces,
            frees: self.stats.frees(),
            mean: (active.large_bytes + request.size) / (active.large + 1),
            active: active.bytes + request.size,
            active_small: active.bytes.saturating_sub(active.large_bytes) + if request.small { request.size } else { 0 },
            most,
            limit: self.stats.limit().map(|limit| limit.saturating_sub(others)),
            total: abilities.total.saturating_sub(others),
            granularity,
            small: request.small,
        };
        self.policy.terms(&holding, request.size, &abilities.options)
    }
}

/// Whether a block in use starts at an address: its entry in the table of addresses cannot name another one.
fn starts_a_block(address: Address) -> bool {
    lookup::find(address).is_some_and(|id| block::at(id).state() == State::Allocated)
}

#[cold]
fn beyond_the_table(base: Address) -> Error {
    Error::internal(format!("The driver's address 0x{base:x} is beyond the 48 bits that the cache keeps track of, or no multiple of 512."))
}

/// Addresses cost nothing: many times the memory leaves room for what is mapped anew. Where the process has fewer left, less. `held`: by a pool.
fn reserve(runtime: &Runtime, abilities: &Abilities, need: usize, granularity: usize, held: Option<usize>) -> Result<(Address, usize)> {
    const TIMES: usize = 8;
    /// There may be many pools, and more room may follow: so many times the need, and as much as twice what is held.
    const TIMES_OF_POOL: usize = 16;
    const LEAST_OF_POOL: usize = 1 << 30;
    let unit = granularity.max(lookup::GRANULARITY);
    let need = need.next_multiple_of(unit);
    let whole = abilities.total.saturating_mul(TIMES);
    let of_pool = |held: usize| need.saturating_mul(TIMES_OF_POOL).max(2 * held).max(LEAST_OF_POOL).min(whole);
    let wish = held.map_or(whole, of_pool);
    let mut size = wish.min(LARGEST).max(need).next_multiple_of(unit);
    loop {
        match runtime.address_reserve(size, unit) {
            Ok(base) => return Ok((base, size)),
            Err(error) if size == need || error.status != Status::TCUDA_ERROR_OUT_OF_MEMORY => return Err(error),
            Err(_) => size = (size / 2).max(need).next_multiple_of(unit),
        }
    }
}

/// Why a plan was not carried out, and whether the driver had the memory for it.
struct Unbuilt {
    error: Error,
    has_memory: bool,
}

/// Makes what the plan says, maps all of it and opens it. All or nothing.
fn build(
    runtime: &Runtime,
    properties: &MemAllocationProp,
    plan: &Plan,
    raws: &[MemHandle],
    access: &[MemAccess],
    has_memory: &mut bool,
) -> Result<Vec<MemHandle>> {
    let mut made: Vec<MemHandle> = Vec::new();
    let mut mapped: Vec<(Address, usize)> = Vec::new();
    let done = (|| {
        for size in &plan.make {
            made.push(runtime.mem_create(*size, properties)?);
        }
        let (before, behind) = plan.parts.split_at(plan.parts_before());
        let (raws_before, raws_behind) = raws.split_at(before.len());
        let sizes = before.iter().map(|part| part.size).chain(plan.make.iter().copied()).chain(behind.iter().map(|part| part.size));
        let mut at = plan.start;
        for (size, raw) in sizes.zip(raws_before.iter().chain(&made).chain(raws_behind)) {
            runtime.mem_map(at, size, *raw)?;
            mapped.push((at, size));
            at += size;
        }
        runtime.mem_set_access(plan.start, at - plan.start, access)
    })();
    if let Err(error) = done {
        for (at, size) in mapped {
            let _ = insist(|| runtime.mem_unmap(at, size));
        }
        *has_memory = made.len() == plan.make.len();
        made.into_iter().for_each(|handle| release(runtime, handle));
        return Err(error);
    }
    Ok(made)
}

impl Cache {
    /// Room for the request, handed out at once: from what is free and within reach, else from the driver,
    /// as much as `up_to` says. `searched`: nothing was found when so much had changed. Under `growing`; nothing changes on failure.
    pub fn grow(
        &self,
        runtime: &Runtime,
        abilities: &Abilities,
        reach: &Reach,
        request: &Request,
        up_to: UpTo,
        searched: Option<u64>,
    ) -> Result<Address, Refusal> {
        // Each time that fronts are stopped costs every thread: one time serves both looks.
        let (mut searches, mut asks) = (true, true);
        let mut search = |core: &mut Core| {
            let searches = std::mem::take(&mut searches) && searched != Some(core.changes());
            if searches { core.search(reach, request) } else { None }
        };
        let Some((properties, granularity)) = abilities.virtual_memory else {
            return self.grow_plain(runtime, abilities, reach.slot, request, search);
        };
        let (mut refused, mut remade, mut crowd_before) = (false, false, None);
        loop {
            let (found, terms, began) = {
                let mut core = self.core.lock();
                if let Some(address) = search(&mut core) {
                    return Ok(address);
                }
                if std::mem::take(&mut asks) && core.policy.asks(core.reserved()) {
                    drop(core);
                    self.ask_what_is_left(runtime);
                    continue;
                }
                let began = Instant::now();
                let mut terms = core.terms(abilities, granularity, reach.slot, request);
                if self.is_fixed() {
                    terms = terms.of_fixed();
                }
                // Once is enough.
                if remade {
                    (terms.coarse, terms.coarsen) = (usize::MAX, false);
                }
                (core.find_room(reach, request, &terms, up_to), terms, began)
            };
            let plan = match found {
                Found::Plan(plan) => plan,
                Found::Here(address) => {
                    self.looked_since(began);
                    return Ok(address);
                }
                Found::Remake(which, bytes) => {
                    remade = true;
                    self.give_back_to_remake(runtime, which, bytes);
                    continue;
                }
                Found::NoAddresses(need) => {
                    self.reserve_area(runtime, abilities, granularity, need, request.small)?;
                    continue;
                }
                Found::No(refusal) => return Err(refusal),
            };
            let makes: usize = plan.make.iter().sum();
            let anew = !plan.parts.is_empty();
            if anew && !request.small && !self.core.quiet().policy.knows_work(terms.several) {
                let busy = self.is_busy(Some(reach.slot));
                self.core.quiet().policy.maps_anew(busy, terms.several);
            }
            let answer = self.build_plan(runtime, &properties, plan, reach, request);
            if let Err(Unbuilt { error, has_memory }) = &answer
                && error.status == Status::TCUDA_ERROR_OUT_OF_MEMORY
            {
                // It is the mappings that are too many, if there are many: once more with fewer.
                if *has_memory && crowd_before.is_none() {
                    let mut core = self.core.quiet();
                    let crowd = Policy::crowd_of(core.physical.mapping_count(), core.physical.count());
                    if crowd.is_some() {
                        crowd_before = Some(core.policy.set_crowd(crowd));
                        drop(core);
                        self.unmap_old(runtime, MANY_MAPPINGS / 2);
                        continue;
                    }
                }
                // What is there has to do: once more, without the budget that the driver does not have.
                if makes > 0 && !std::mem::replace(&mut refused, true) {
                    let mut core = self.core.lock();
                    let reserved = core.reserved();
                    core.policy.refused(reserved);
                    continue;
                }
            }
            if let (Err(_), Some(before)) = (&answer, crowd_before) {
                self.core.quiet().policy.set_crowd(before);
            }
            if terms.excess > 0 && answer.is_ok() {
                match request.small {
                    true if makes > 0 => self.give_back_for_small(runtime, makes, terms.several),
                    false if anew => drop(self.release(runtime, Idle::Within(terms.excess), usize::MAX)),
                    _ => {}
                }
            }
            if anew {
                self.mapped_anew(&terms, request, began);
            }
            return answer.map_err(|unbuilt| Refusal::Driver(unbuilt.error));
        }
    }

    /// Addresses for so many bytes at least. Under `growing`.
    fn reserve_area(&self, runtime: &Runtime, abilities: &Abilities, granularity: usize, need: usize, small: bool) -> Result<(), Refusal> {
        let held = {
            let core = self.core.quiet();
            core.whole.is_some().then(|| core.reserved())
        };
        let reserve = || reserve(runtime, abilities, need, granularity, held);
        let (base, size) = runtime.outside_capture(reserve).map_err(Refusal::Driver)?;
        if base + size > lookup::LIMIT {
            let _ = insist(|| runtime.outside_capture(|| runtime.address_free(base, size)));
            return Err(Refusal::Driver(beyond_the_table(base)));
        }
        let mut core = self.core.lock();
        core.physical.open_space(base, size, granularity);
        core.new_area(base, size, small, false, COMMON);
        Ok(())
    }

    /// Handles that are too large where memory is scarce, or else too many and small. What stays is used as it is. Under `growing`.
    fn give_back_to_remake(&self, runtime: &Runtime, which: Idle, bytes: usize) {
        self.settle_all();
        let before = self.core.quiet().reserved();
        let _ = self.release(runtime, which, bytes);
        let mut core = self.core.quiet();
        if matches!(which, Idle::Small(_)) && core.reserved() < before {
            core.policy.coarser(before);
        }
    }

    /// Free memory was mapped anew for the request, or the driver refused it. Under `growing`.
    fn mapped_anew(&self, terms: &Terms, request: &Request, began: Instant) {
        self.looked_since(began);
        if let Some(load) = terms.load.filter(|_| !request.small) {
            let mut core = self.core.quiet();
            let frees = core.stats.frees();
            core.policy.does_not_rest(load, frees);
        }
    }

    /// So much was made too far beyond the slack. What each stream keeps while they have work, or is watched where it lies, stays.
    fn give_back_for_small(&self, runtime: &Runtime, bytes: usize, several: bool) {
        if !self.core.quiet().policy.is_apart() && !poison::is_on() {
            // One stream has no use for memory that is everybody's: it takes that in pieces.
            if several {
                self.settle_all();
            } else {
                self.learn(COMMON);
            }
            let _ = self.release(runtime, Idle::Small(usize::MAX), bytes);
        }
    }

    /// What the driver does not tell is found out when it refuses.
    fn ask_what_is_left(&self, runtime: &Runtime) {
        let reserved = self.core.quiet().reserved();
        let ask = || device::Guard::new(self.device).and_then(|_guard| runtime.mem_get_info());
        if let Ok((free, _)) = runtime.outside_capture(ask) {
            self.core.quiet().policy.left(reserved, free);
        }
    }

    /// Free memory was made to fit, with the driver or without.
    fn looked_since(&self, began: Instant) {
        let now = Instant::now();
        let works = self.core.quiet().policy.works();
        let busy = works && self.is_busy(None);
        self.core.quiet().policy.took(began, now, busy);
    }

    fn build_plan(
        &self,
        runtime: &Runtime,
        properties: &MemAllocationProp,
        plan: Plan,
        reach: &Reach,
        request: &Request,
    ) -> Result<Address, Unbuilt> {
        let raws: Vec<MemHandle> = {
            let core = self.core.quiet();
            plan.parts.iter().filter_map(|part| core.physical[part.handle].backing.raw()).collect()
        };
        let mut has_memory = false;
        let made = runtime.outside_capture(|| build(runtime, properties, &plan, &raws, &access_list(self.device), &mut has_memory));
        let mut core = self.core.lock();
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                core.drop_plan(plan);
                return Err(Unbuilt { error, has_memory });
            }
        };
        let ids: Vec<HandleId> =
            made.into_iter().zip(&plan.make).map(|(raw, size)| core.count_handle(Backing::Virtual(raw), *size, request.small)).collect();
        if !ids.is_empty() {
            let reserved = core.reserved();
            core.policy.given(reserved);
        }
        let came = plan.parts.len();
        core.carry_out(plan, reach, request, ids);
        let address = core.allocate(reach.slot, request, true);
        drop(core);
        self.unmap_old(runtime, came);
        let text = "New memory does not hold the request that it was made for.";
        address.ok_or_else(|| Unbuilt { error: Error::internal(text), has_memory: true })
    }

    /// Of the plain segment that is made for a request.
    pub(super) fn plain_size(&self, abilities: &Abilities, request: &Request) -> usize {
        match request.search {
            // A segment is a block.
            size if self.core.quiet().no_split => size.next_multiple_of(PLAIN_SMALL),
            size if matches!(abilities.source, Source::Ordered) => size,
            size if request.small && size <= PLAIN_SMALL => PLAIN_SMALL,
            size if size < PLAIN_OWN => abilities.options.large_segment_size_mb << 20,
            size => size.next_multiple_of(PLAIN_SMALL),
        }
    }

    fn grow_plain(
        &self,
        runtime: &Runtime,
        abilities: &Abilities,
        slot: StreamSlot,
        request: &Request,
        search: impl FnOnce(&mut Core) -> Option<Address>,
    ) -> Result<Address, Refusal> {
        let size = self.plain_size(abilities, request);
        let stream = {
            let mut core = self.core.lock();
            if let Some(address) = search(&mut core) {
                return Ok(address);
            }
            let spare = if matches!(abilities.source, Source::Ordered) { core.ordered_spare } else { 0 };
            if core.limited(size.saturating_sub(spare)) {
                return Err(Refusal::Limit);
            }
            core.slots[slot as usize].key.raw
        };
        // Before the mode is asked for: the current device may be lost.
        let _guard = device::Guard::new(self.device).map_err(Refusal::Driver)?;
        let (base, backing) = runtime
            .outside_capture(|| match &abilities.source {
                Source::Driver => Ok((runtime.malloc(size)?, Backing::Plain)),
                Source::Ordered => self.allocate_ordered(runtime, size, stream).map(|base| (base, Backing::Ordered)),
                Source::Provider(provider) => {
                    let holds = |base, size| self.core.quiet().holds_some(base, size) || starts_a_block(base);
                    let base = provider.allocate(runtime, size, self.device, stream, holds)?;
                    Ok((base, Backing::Provided(provider.clone(), stream)))
                }
            })
            .map_err(Refusal::Driver)?;
        // What the driver's pool has to spare may lie in pieces: then it has grown.
        if matches!(backing, Backing::Ordered) && self.core.quiet().limited(size) {
            self.drop_ordered(runtime, base, stream);
            return Err(Refusal::Limit);
        }
        if base + size > lookup::LIMIT || !base.is_multiple_of(ROUND) {
            match backing {
                Backing::Provided(provider, _) => provider.free(base, size, self.device, stream),
                _ => drop(insist(|| runtime.outside_capture(|| runtime.free(base)))),
            }
            return Err(Refusal::Driver(beyond_the_table(base)));
        }
        let mut core = self.core.lock();
        let first = core.new_area(base, size, request.small, true, slot);
        let handle = core.count_handle(backing, size, request.small);
        core.physical.map(handle, base);
        core.unmapped.remove(&base);
        core.tell_memory(first, true);
        if !matches!(abilities.source, Source::Driver) {
            // It is there for this stream only, behind what the stream was given so far.
            block::at(first).set_ticket(core.note_free(slot));
        }
        core.make_free(first);
        core.allocate(slot, request, true).ok_or_else(|| Refusal::Driver(Error::internal("A new segment does not hold its request.")))
    }

    /// Addresses of which too many are mapped to memory that is used elsewhere: the oldest such mappings end. Twice as many are tried as came;
    /// what is in use, or whose work is not done, stays.
    fn unmap_old(&self, runtime: &Runtime, came: usize) {
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
        let _growing = self.growing.lock();
        self.release_free_now(runtime)
    }

    /// Under `growing`.
    pub(super) fn release_free_now(&self, runtime: &Runtime) -> Result<()> {
        if self.is_paused() || self.is_fixed() {
            return Ok(());
        }
        let released = self.release(runtime, Idle::Large(0), usize::MAX);
        let old: Vec<Mapping> = self.core.lock().physical.mappings().collect();
        old.into_iter().for_each(|mapping| self.end_mapping(runtime, mapping));
        let empty = self.core.lock().take_empty_areas();
        for (first, base, size) in empty {
            let given = insist(|| runtime.outside_capture(|| runtime.address_free(base, size))).is_ok();
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
        core.runs = Runs::default();
        core.forget_habits();
        released
    }

    /// Gives the driver handles that are free and past, until there are enough bytes.
    fn release(&self, runtime: &Runtime, which: Idle, enough: usize) -> Result<()> {
        let (taken, waits) = {
            let mut core = self.core.lock();
            core.collect();
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
            // cudaFree waits by itself.
            let is_mapped = taken.iter().any(|(handle, _)| core.physical[*handle].backing.raw().is_some());
            (taken, is_mapped && self.replayed.load(Relaxed))
        };
        // Once for all of it.
        let waited = if waits { wait_beside_captures(runtime, self.device) } else { Ok(()) };
        let mut failure = None;
        for (handle, places) in taken {
            if let Err(error) = self.give(runtime, handle, places, &waited) {
                failure.get_or_insert(error);
            }
        }
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
            let given = on_device.as_ref().map_err(Error::clone).and_then(|_guard| {
                runtime.outside_capture(|| match &backing {
                    Backing::Virtual(_) | Backing::Away => {
                        waited.clone()?;
                        runtime.mem_unmap(mapping.start, mapping.size)
                    }
                    // All work on it is done: ordered memory needs no stream, of which each may be captured.
                    Backing::Plain | Backing::Ordered => runtime.free(mapping.start),
                    Backing::Provided(provider, stream) => {
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
                    release(runtime, raw);
                }
                self.core.lock().uncount_handle(handle);
            }
            Some(owner) => {
                let mut core = self.core.lock();
                let owner = core.hand_over(owner, COMMON);
                block::at(owner).set_ticket(0);
                core.tell_kept(owner);
                core.make_free(owner);
                kept.for_each(|block| core.make_hole(block, State::Moved));
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
                Backing::Virtual(_) => drop(insist(|| runtime.mem_unmap(mapping.start, mapping.size))),
                Backing::Plain | Backing::Ordered => drop(insist(|| runtime.free(mapping.start))),
                Backing::Provided(provider, _) => provider.free(mapping.start, mapping.size, self.device, 0),
                Backing::Away => {}
            }
        }
        physical.ids().filter_map(|id| physical[id].backing.raw()).for_each(|raw| release(runtime, raw));
        for area in core.areas.values().filter(|area| !area.plain) {
            let _ = insist(|| runtime.address_free(area.base, area.size));
        }
        core.clear();
        drop(core);
        self.close_ordered(runtime);
        self.forget_abilities();
    }
}
