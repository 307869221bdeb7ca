//! Nothing fits: from a second look to the out-of-memory error. Each rung costs more than the one before; after each the free
//! memory is searched again.

use super::block;
use super::core::{Core, LARGEST, Request};
use super::grow::Refusal;
use super::message::{Facts, Joins, OfPool};
use super::ordered;
use super::policy::{Load, UpTo};
use super::reach::{Reach, Waited};
use super::slot::StreamKey;
use super::tls;
use super::{Abilities, Cache, StreamSlot};
use crate::base::{Error, Result, Status};
use crate::device;
use crate::memory::history::Action;
use crate::memory::hooks::{self, Memory, OutOfMemory, Pressure, Stage};
use crate::memory::options::StreamWait;
use crate::memory::pools;
use crate::memory::provider::Source;
use crate::memory::stats::Family;
use crate::memory::totals::Event;
use crate::runtime::{self, Address, Runtime};
use crate::stream::Stream;
use parking_lot::MutexGuard;

/// What is known of a request that found nothing at hand.
struct Look {
    /// Whether its stream had better have memory of its own, and has to.
    keeps_apart: bool,
    is_apart: bool,
    is_small_of_threads: bool,
    /// Whether blocks wait for other streams, or streams that are gone left some.
    may_learn: bool,
    changes: u64,
}

impl Core {
    fn look(&mut self, slot: StreamSlot, request: &Request) -> Look {
        self.policy.in_use(self.stats.active_and_most().1);
        // The driver's own pool keeps nothing where it was.
        if self.ordered_bytes + self.ordered_spare == 0 {
            let now = self.stats.large_now();
            let floor = self.floor(now);
            self.stats.watch_for(floor, now);
        }
        let may_learn = !self.pending.is_empty() || self.has_legacy();
        let (keeps_apart, is_small_of_threads) = (self.keeps_apart(slot, request), self.is_small_of_threads(request));
        Look { keeps_apart, is_apart: self.policy.is_apart(), is_small_of_threads, may_learn, changes: self.changes() }
    }

    /// Whether the cache is still that of the pool that a request is for, which was not destroyed, and its memory there.
    fn check_pool(&self, request: &Request) -> Result<()> {
        if !self.is_of(request.pool) {
            return Err(request.pool.gone_error());
        }
        if self.paused { Err(self.pool.paused_error()) } else { Ok(()) }
    }

    /// The same, and whether the slot is still the stream's, by its serial: other threads and the program's functions may end either while a request
    /// lasts. To be asked each time that the lock was let go.
    fn check_request(&self, request: &Request, slot: StreamSlot, serial: u64) -> Result<()> {
        self.check_pool(request)?;
        let slot = &self.slots[slot as usize];
        if slot.gone || slot.serial.stream != serial {
            let text = "The stream was destroyed while memory was asked for its work.";
            return Err(Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text).on_device(self.device));
        }
        Ok(())
    }

    fn check_climb(&self, climb: &Climb) -> Result<()> {
        self.check_request(climb.request, climb.slot, climb.serial)
    }
}

/// Who asks for what.
struct Climb<'a> {
    runtime: &'a Runtime,
    abilities: &'a Abilities,
    slot: StreamSlot,
    serial: u64,
    request: &'a Request,
    stream: Stream,
    /// It may wait for other streams rather than that more is held than the budget.
    at_budget: bool,
}

impl Cache {
    /// Memory for the stream's work: from what is free, else from the driver.
    pub fn allocate(&self, request: &Request, stream: Stream) -> Result<Address> {
        let key = StreamKey::of(stream);
        if ordered::is_used() {
            self.give_put_off();
        }
        let mut core = self.core.lock();
        core.check_pool(request)?;
        let slot = match core.slot_of(key) {
            Ok(slot) => slot,
            Err(_) => {
                drop(core);
                // What streams that are gone left may be past by now, and their slots free.
                self.settle_all();
                core = self.core.lock();
                core.share_all_past();
                core.check_pool(request)?;
                core.slot_of(key)?
            }
        };
        if !block::has_room() {
            return Err(block::no_room());
        }
        let serial = core.slots[slot as usize].serial.stream;
        core.let_in(slot);
        core.fronts.note_allocates(tls::get());
        if core.asks_ahead(slot, request) {
            drop(core);
            self.settle(slot);
            core = self.core.lock();
            core.check_request(request, slot, serial)?;
        }
        if let Some(address) = core.allocate(slot, request, false) {
            return Ok(address);
        }
        let look = core.look(slot, request);
        drop(core);
        self.climb(request, stream, (slot, serial), look)
    }

    #[cold]
    fn climb(&self, request: &Request, stream: Stream, (slot, serial): (StreamSlot, u64), look: Look) -> Result<Address> {
        device::check_lost(self.device)?;
        let runtime = runtime::runtime()?;
        let abilities = &self.abilities(runtime)?;
        // Only what is mapped has a budget.
        let has_budget = abilities.virtual_memory.is_some() && !request.is_modest;
        let at_budget = has_budget && abilities.options.stream_wait == StreamWait::AtBudget && !stream.is_capturing().unwrap_or(true);
        let climb = &Climb { runtime, abilities, slot, serial, request, stream, at_budget };
        // The driver's own pool knows best what is free.
        if matches!(abilities.source, Source::Ordered)
            && let Ok(address) = self.search_or_grow(climb, &Reach::of(slot), UpTo::Limit, None)?
        {
            return Ok(address);
        }
        let keeps_apart = abilities.virtual_memory.is_some() && look.keeps_apart;
        // What waits for other streams is its own, what streams left that are gone is everybody's, and either would be made anew.
        let settled = keeps_apart && look.is_apart && look.may_learn;
        if settled {
            self.settle(slot);
            let mut core = self.core.lock();
            core.check_climb(climb)?;
            if let Some(address) = core.allocate(slot, request, true) {
                return Ok(address);
            }
        }
        if keeps_apart && let Some(address) = self.grow_apart(climb, &look)? {
            return Ok(address);
        }
        match self.share_or_grow(climb, &look, settled)? {
            Ok(address) => Ok(address),
            Err(_) if request.is_modest => {
                Err(Error::new(Status::TCUDA_ERROR_OUT_OF_MEMORY, "There is no room for what can be done without."))
            }
            Err(refusal) => self.climb_on(climb, refusal),
        }
    }

    /// For a stream that had better have memory of its own: what others are done with is no matter yet.
    fn grow_apart(&self, climb: &Climb, look: &Look) -> Result<Option<Address>> {
        let apart = look.is_apart;
        let reach = &Reach { apart, ..Reach::of(climb.slot) };
        if let Ok(address) = self.search_or_grow(climb, reach, UpTo::Budget, (!apart).then_some(look.changes))? {
            return Ok(Some(address));
        }
        let has_room = || {
            let core = self.core.quiet();
            core.policy.has_room_apart(core.reserved(), climb.request.size)
        };
        if !apart || climb.at_budget || !has_room() {
            return Ok(None);
        }
        self.go_home(climb.slot);
        Ok(self.search_or_grow(climb, reach, UpTo::Limit, None)?.ok())
    }

    /// What other streams are done with, as far as is known, then as far as they say (1.); what is free, mapped anew, and more from the driver
    /// (2.). `settled`: the stream's own frees were asked for.
    fn share_or_grow(&self, climb: &Climb, look: &Look, settled: bool) -> Result<Result<Address, Refusal>> {
        let Climb { slot, request, at_budget, .. } = *climb;
        let all = &Reach::of(slot);
        let mut core = self.core.lock();
        core.check_climb(climb)?;
        if let Some(address) = core.search(all, request) {
            return Ok(Ok(address));
        }
        let changes = core.changes();
        if look.is_small_of_threads {
            let frees = core.stats.frees();
            core.policy.does_not_rest(Load::Small, frees);
        }
        drop(core);
        // Were all of it everybody's, each thread would take some anew, one by one: this one takes some of it.
        let learns = look.is_small_of_threads && !settled;
        if learns {
            self.learn(slot);
            self.go_home(slot);
        } else {
            if !settled {
                self.settle(slot);
            }
            self.share_and_go_home(slot);
        }
        let up_to = if at_budget { UpTo::Budget } else { UpTo::Limit };
        match self.search_or_grow(climb, all, up_to, (!learns).then_some(changes))? {
            Err(Refusal::Budget) if at_budget => match self.take_waiting(climb) {
                Some(address) => Ok(Ok(address)),
                None => self.search_or_grow(climb, all, UpTo::Limit, None),
            },
            answer => Ok(answer),
        }
    }

    /// The rungs that cost others something.
    fn climb_on(&self, climb: &Climb, refusal: Refusal) -> Result<Address> {
        let Climb { runtime, abilities, request, stream, .. } = *climb;
        let all = &Reach::of(climb.slot);
        let rejects = matches!(refusal, Refusal::Limit) && abilities.options.throw_on_cudamalloc_oom;
        // A pluggable allocator may have more than the device.
        let is_beyond = request.need(abilities) > abilities.total && !matches!(abilities.source, Source::Provider(_));
        let nothing_helps = rejects || is_beyond || request.search > LARGEST;
        let capturing = match stream.is_capturing() {
            Err(error) if error.status == Status::TCUDA_ERROR_CAPTURE => true,
            Err(_) if nothing_helps => false,
            // The rungs are not for a capture: who may be one goes no further.
            answer => answer?,
        };
        if capturing && !nothing_helps {
            crate::memory::release_idle_others(self, runtime);
            if let Ok(address) = self.search_or_grow(climb, all, UpTo::Limit, None)? {
                return Ok(address);
            }
        }
        if capturing || nothing_helps {
            return Err(self.out_of_memory(climb, refusal, capturing, rejects));
        }
        if let Some(found) = self.press(climb, Stage::Wait, || self.search_or_grow(climb, all, UpTo::Limit, None)) {
            return found;
        }
        let mut refusal = match self.make_room_in_turn(climb)? {
            Ok(address) => return Ok(address),
            Err((refusal, _)) => refusal,
        };
        if self.borrows(abilities)
            && let Some(address) = pools::lend(self, request, stream)
        {
            return Ok(address);
        }
        let room = || {
            let made = self.make_room(climb, &mut self.climbing.lock())?;
            Ok(made.map_err(|(last, _)| refusal = last))
        };
        self.press(climb, Stage::Fail, room).unwrap_or_else(|| {
            self.core.quiet().check_climb(climb)?;
            Err(self.out_of_memory(climb, refusal, false, false))
        })
    }

    /// One thread at a time makes room: two would take it from each other. Freeing goes on meanwhile.
    fn make_room_in_turn(&self, climb: &Climb) -> Result<Result<Address, (Refusal, u64)>> {
        /// As long as other threads change what is free.
        const ROUNDS: usize = 8;
        let mut climbing = self.climbing.lock();
        let mut last = self.make_room(climb, &mut climbing)?;
        for _ in 1..ROUNDS {
            match last {
                Err((_, changes)) if self.core.lock().changes() != changes => last = self.make_room(climb, &mut climbing)?,
                _ => break,
            }
        }
        Ok(last)
    }

    /// The rungs that make room. The inner error is the refusal, and how much had changed when it came. `climbing` is let go while the
    /// program's functions run.
    fn make_room(&self, climb: &Climb, climbing: &mut MutexGuard<()>) -> Result<Result<Address, (Refusal, u64)>> {
        self.core.quiet().check_climb(climb)?;
        // 3. What others have freed but may still use: this stream waits for them on the device, the host does not.
        if climb.abilities.options.stream_wait != StreamWait::Never
            && let Some(address) = self.take_waiting(climb)
        {
            return Ok(Ok(address));
        }
        // 4. The host waits, stream by stream, until there is enough.
        self.stats.count(Event::SyncAllStreams);
        let mut found = None;
        let waited = self.wait(|core| {
            found = core.check_climb(climb).ok().and_then(|()| core.search(&Reach::of(climb.slot), climb.request));
            found.is_some()
        });
        if let Some(address) = found {
            return Ok(Ok(address));
        }
        let all = &Reach::of(climb.slot);
        let retry = || self.search_or_grow(climb, all, UpTo::Limit, None);
        if let Some(found) = MutexGuard::unlocked(climbing, || self.press(climb, Stage::GiveBack, retry)) {
            return found.map(Ok);
        }
        // 5. Everything free goes back to the driver, which can make whole memory of it; that of the device's other caches too.
        let released = self.release_free(climb.runtime);
        self.trim_ordered(climb.runtime);
        crate::memory::release_others(self);
        self.stats.count(Event::AllocRetry);
        let changes = self.core.lock().changes();
        match self.search_or_grow(climb, all, UpTo::Limit, None)? {
            Ok(address) => Ok(Ok(address)),
            Err(refusal) => {
                // What the driver's pool grew by for this.
                if self.core.quiet().limited(0) {
                    self.trim_ordered(climb.runtime);
                }
                // A failure that kept memory back is the better answer, if nothing else helps.
                let refusal = waited.and(released).map_or_else(Refusal::Kept, |()| refusal);
                Ok(Err((refusal, changes)))
            }
        }
    }

    /// The outer error is a failure that no other rung can mend. `searched`: nothing was found when so much had changed.
    fn search_or_grow(&self, climb: &Climb, reach: &Reach, up_to: UpTo, searched: Option<u64>) -> Result<Result<Address, Refusal>> {
        let Climb { runtime, abilities, request, .. } = *climb;
        if request.search > LARGEST {
            let too_large = || Refusal::Driver(Error::new(Status::TCUDA_ERROR_OUT_OF_MEMORY, "No device has that much memory."));
            let limit = self.stats.limit().filter(|limit| request.size > *limit);
            return Ok(Err(limit.map_or_else(too_large, |_| Refusal::Limit)));
        }
        let _growing = self.growing.lock();
        self.core.quiet().check_climb(climb)?;
        match self.grow(runtime, abilities, reach, request, up_to, searched) {
            Err(Refusal::Driver(error)) if error.status != Status::TCUDA_ERROR_OUT_OF_MEMORY => Err(error),
            answer => Ok(answer),
        }
    }

    /// Free memory of other streams whose use is not past: taken at once, ordered by events.
    fn take_waiting(&self, climb: &Climb) -> Option<Address> {
        let Climb { runtime, abilities, slot, request, stream, .. } = *climb;
        let owners = {
            let core = self.core.lock();
            core.check_climb(climb).ok()?;
            let owners = core.owners_in_use(slot);
            let all = |owner: &StreamSlot| Waited { slot: *owner, serial: core.slots[*owner as usize].serial, count: u32::MAX };
            let would_wait: Vec<Waited> = owners.iter().map(all).collect();
            let reach = Reach { waited: &would_wait, ..Reach::of(slot) };
            let helps = match abilities.virtual_memory {
                Some(_) => core.free_of(&reach) > 0,
                None => !core.find_run(&reach, request.small, request.search).is_empty(),
            };
            if helps { owners } else { return None }
        };
        let waited = self.order_after(stream, &owners).ok()?;
        let reach = Reach { waited: &waited, ..Reach::of(slot) };
        let _growing = self.growing.lock();
        self.core.quiet().check_climb(climb).ok()?;
        if abilities.virtual_memory.is_none() {
            return self.core.lock().search(&reach, request);
        }
        self.grow(runtime, abilities, &reach, request, UpTo::Budget, None).ok()
    }

    /// Asks the program's functions for memory, and `retry` after each that gave some. None: that was not enough.
    fn press<T>(&self, climb: &Climb, stage: Stage, mut retry: impl FnMut() -> Result<Result<Address, T>>) -> Option<Result<Address>> {
        let pressure = || Pressure { stage, stream: climb.stream, wanted: climb.request.requested, memory: self.memory(climb) };
        hooks::PRESSURE.ask(pressure, || retry().map(Result::ok).transpose())
    }

    /// How the device stands: what a pool's request meets is the device's.
    fn memory(&self, climb: &Climb) -> Memory {
        let driver = device::Guard::new(self.device).and_then(|_guard| climb.runtime.mem_get_info()).ok();
        let whole = self.stats.whole();
        Memory {
            total: driver.map_or(climb.abilities.total, |(_, total)| total),
            free: driver.map(|(free, _)| free),
            allocated: whole.current(Family::AllocatedBytes) as usize,
            reserved: whole.reserved(),
            limit: whole.limit(),
        }
    }

    /// The error, when the observers know of it. `rejected`: at once, for the limit. No lock may be held.
    #[cold]
    fn out_of_memory(&self, climb: &Climb, refusal: Refusal, capturing: bool, rejected: bool) -> Error {
        let Climb { abilities, request, stream, .. } = *climb;
        let (at_limit, native) = match &refusal {
            Refusal::Driver(error) => (false, error.native),
            Refusal::Limit | Refusal::Budget => (true, 0),
            Refusal::Kept(error) => return error.clone(),
        };
        let memory = self.memory(climb);
        let (largest_free, pending) = {
            let mut core = self.core.lock();
            core.collect();
            (core.largest_free(), core.in_use_by_streams())
        };
        let joins = match &abilities.source {
            _ if self.is_fixed() => Joins::Never("replays of a graph find its memory where it was, so that none is mapped anew"),
            _ if abilities.virtual_memory.is_some() => Joins::Mapped,
            _ if self.core.quiet().no_split => Joins::Never("a block of this pool is a segment of its own"),
            Source::Provider(_) => Joins::Never("nothing joins what a pluggable allocator gives"),
            Source::Ordered => Joins::Never("nothing joins what cudaMallocAsync gives"),
            Source::Driver if !abilities.options.expandable_segments => Joins::OptionsForbid,
            Source::Driver => Joins::Never("the driver has no virtual memory to join them"),
        };
        let plugin = match (&abilities.source, &refusal) {
            (Source::Provider(provider), Refusal::Driver(_)) if request.search <= LARGEST => Some(provider.name.clone()),
            _ => None,
        };
        // Who shares the device is no matter where the limit was in the way, and asking takes NVML a while.
        let processes = if at_limit { Vec::new() } else { hooks::processes(self.device) };
        let facts = Facts {
            device: self.device,
            requested: request.requested,
            with_alignment: Some(request.need(abilities)).filter(|need| *need > request.size),
            memory,
            at_limit,
            rejected,
            plugin,
            capturing,
            joins,
            from_driver: match abilities.virtual_memory {
                // Fewer where some of it is free.
                Some((_, granularity)) => request.size.checked_next_multiple_of(granularity).unwrap_or(usize::MAX),
                None => self.plain_size(abilities, request),
            },
            processes,
            of_pools: OfPool::small_and_large(&self.stats.whole().stats()),
            memory_pools: pools::held(self),
            borrows: self.borrows(abilities),
            largest_free,
            pending,
        };
        self.stats.count(if rejected { Event::OomRejections } else { Event::Ooms });
        let pool = self.core.quiet().pool;
        self.history.note(Action::Oom, memory.free.unwrap_or(0), request.size, stream.raw as u64, pool);
        let text = facts.text();
        hooks::OBSERVERS.tell(|| OutOfMemory { device: self.device, wanted: request.requested, memory, message: text.clone() });
        Error::new(Status::TCUDA_ERROR_OUT_OF_MEMORY, text).with_native(native).on_device(self.device).with_bytes(request.requested as u64)
    }

    /// Whether memory of another pool may serve its requests: not where blocks have to be whole segments, or a program's own allocator gives them.
    fn borrows(&self, abilities: &Abilities) -> bool {
        !self.core.quiet().no_split && !matches!(abilities.source, Source::Provider(_))
    }

    /// What is free here and the stream may have, with nothing made for it: for a request of another cache, whose program knows nothing of it. None
    /// where it is not that pool's cache any more.
    pub fn lend(&self, pool: pools::Id, request: &Request, stream: Stream) -> Option<Address> {
        let key = StreamKey::of(stream);
        self.settle_all();
        let mut core = self.core.lock();
        if !core.is_of(pool) {
            return None;
        }
        let slot = core.slot_of(key).ok()?;
        let address = if block::has_room() { core.search(&Reach::of(slot), request)? } else { return None };
        core.note_lent(address);
        Some(address)
    }

    /// torch's empty_cache for one device: waits for what is freed but in use, then gives all free memory back. The first failure is the answer,
    /// when all that goes back did.
    pub fn empty(&self) -> Result<()> {
        let runtime = runtime::runtime()?;
        let waited = self.wait(|_| false);
        let released = self.release_free(runtime);
        self.trim_ordered(runtime);
        waited.and(released)
    }
}
