//! More memory for a request: a plan, which the driver carries out, and what follows of it; or, without virtual memory, a segment.

use super::block::{self, State};
use super::core::{Core, LARGEST, ROUND, Request};
use super::left::Left;
use super::physical::{Backing, HandleId};
use super::policy::{Holding, PIECES, Policy, Terms, UpTo, is_new};
use super::reach::Reach;
use super::segment::access_list;
use super::shares::Idle;
use super::slot::COMMON;
use super::stitch::{Found, Plan};
use super::{Abilities, Cache, StreamSlot};
use crate::base::{Error, Result, Status, insist};
use crate::device;
use crate::memory::provider::Source;
use crate::memory::{lookup, poison};
use crate::runtime::table::{MemAccess, MemAllocationProp};
use crate::runtime::{Address, MemHandle, Runtime};
use std::time::Instant;

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
    /// Free memory could not be waited for or given back, which may have been enough.
    Kept(Error),
}

/// A request that looks for room, and what was tried for it.
struct Growth<'a> {
    runtime: &'a Runtime,
    abilities: &'a Abilities,
    granularity: usize,
    reach: &'a Reach<'a>,
    request: &'a Request,
    up_to: UpTo,
    tried: Tried,
}

#[derive(Default)]
struct Tried {
    /// The device was asked what it has left.
    asked: bool,
    /// Handles were given back to be made in other sizes.
    remade: bool,
    /// The driver had no memory for what was to be made.
    refused: bool,
    /// The driver took no more mappings, and what the policy knew of that before.
    crowd_before: Option<Option<usize>>,
}

/// Room that was found.
enum Room {
    Here(Address),
    Planned { plan: Plan, terms: Terms, began: Instant },
}

impl Core {
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
    left: &Left,
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
        mapped.into_iter().for_each(|(at, size)| left.unmap(runtime, at, size));
        *has_memory = made.len() == plan.make.len();
        made.into_iter().for_each(|handle| left.release(runtime, handle));
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
        let mut searches = true;
        let mut search = |core: &mut Core| {
            let searches = std::mem::take(&mut searches) && searched != Some(core.changes());
            if searches { core.search(reach, request) } else { None }
        };
        let Some((properties, granularity)) = &abilities.virtual_memory else {
            return self.grow_plain(runtime, abilities, reach.slot, request, search);
        };
        let tried = Tried::default();
        let mut growth = Growth { runtime, abilities, granularity: *granularity, reach, request, up_to, tried };
        loop {
            let (plan, terms, began) = match self.look_for_room(&mut growth, &mut search)? {
                Room::Here(address) => return Ok(address),
                Room::Planned { plan, terms, began } => (plan, terms, began),
            };
            let makes: usize = plan.make.iter().sum();
            let anew = !plan.parts.is_empty();
            if anew && !request.small && !self.core.quiet().policy.knows_work(terms.several) {
                let busy = self.is_busy(Some(reach.slot));
                self.core.quiet().policy.maps_anew(busy, terms.several);
            }
            let answer = self.build_plan(runtime, properties, plan, reach, request);
            if let Err(unbuilt) = &answer
                && self.makes_way(&mut growth, unbuilt, makes)
            {
                continue;
            }
            if let (Err(_), Some(before)) = (&answer, growth.tried.crowd_before) {
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

    /// As the terms of the moment have it, for which memory may be given back, or addresses reserved.
    fn look_for_room(&self, growth: &mut Growth, mut search: impl FnMut(&mut Core) -> Option<Address>) -> Result<Room, Refusal> {
        let Growth { runtime, abilities, granularity, reach, request, up_to, .. } = *growth;
        loop {
            let (found, terms, began) = {
                let mut core = self.core.lock();
                if let Some(address) = search(&mut core) {
                    return Ok(Room::Here(address));
                }
                if !std::mem::replace(&mut growth.tried.asked, true) && core.policy.asks(core.reserved()) {
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
                if growth.tried.remade {
                    (terms.coarse, terms.coarsen) = (usize::MAX, false);
                }
                (core.find_room(reach, request, &terms, up_to), terms, began)
            };
            match found {
                Found::Plan(plan) => return Ok(Room::Planned { plan, terms, began }),
                Found::Here(address) => {
                    self.looked_since(began);
                    return Ok(Room::Here(address));
                }
                Found::Remake(which, bytes) => {
                    growth.tried.remade = true;
                    self.give_back_to_remake(runtime, which, bytes);
                }
                Found::NoAddresses(need) => self.reserve_area(runtime, abilities, granularity, need, request.small)?,
                Found::No(refusal) => return Err(refusal),
            }
        }
    }

    /// The driver refused a plan that makes so many bytes. True: something was done about it, and another plan may do.
    fn makes_way(&self, growth: &mut Growth, unbuilt: &Unbuilt, makes: usize) -> bool {
        if unbuilt.error.status != Status::TCUDA_ERROR_OUT_OF_MEMORY {
            return false;
        }
        // It is the mappings that are too many, if there are many: once more with fewer.
        if unbuilt.has_memory && growth.tried.crowd_before.is_none() {
            let mut core = self.core.quiet();
            let crowd = Policy::crowd_of(core.physical.mapping_count(), core.physical.count());
            if crowd.is_some() {
                growth.tried.crowd_before = Some(core.policy.set_crowd(crowd));
                drop(core);
                self.unmap_old(growth.runtime, MANY_MAPPINGS / 2);
                return true;
            }
        }
        // What is there has to do: once more, without the budget that the driver does not have.
        let again = makes > 0 && !std::mem::replace(&mut growth.tried.refused, true);
        if again {
            let mut core = self.core.lock();
            let reserved = core.reserved();
            core.policy.refused(reserved);
        }
        again
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
        // A mapping that is left may be where the plan wants one.
        self.left.take_back(runtime, self.device);
        let mut has_memory = false;
        let access = access_list(self.device);
        let made = runtime.outside_capture(|| build(runtime, properties, &plan, &raws, &access, &mut has_memory, self.left));
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
}
