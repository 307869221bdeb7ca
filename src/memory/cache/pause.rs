//! A pool that is paused: its memory goes back to the driver, its addresses and blocks stay. When it resumes, each address has memory again,
//! with what was in it where that was asked for.

use super::block::{self, State};
use super::left::Left;
use super::physical::{Backing, HandleId, Mapping};
use super::segment::access_list;
use super::{Abilities, Cache, Core};
use crate::base::sync_debug::{Kind, blocking};
use crate::base::{Error, Result, Status, insist, watch};
use crate::device;
use crate::memory::pools::Id;
use crate::memory::{captures, pinned, poison, provider};
use crate::runtime::table::MemAllocationProp;
use crate::runtime::{self, Address, MemHandle, Runtime};
use crate::stream::{PerDevice, Stream};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;

/// A block of the cache of pinned memory. Freed when dropped.
struct Pinned(Address);

impl Drop for Pinned {
    fn drop(&mut self) {
        // It is one: there is nothing that could fail.
        let _ = pinned::free(self.0);
    }
}

/// What is kept is copied on a stream of its own: copies on the default stream would end captures of streams that come behind it.
static COPIES: PerDevice = PerDevice::empty();

/// Bytes of blocks in use, one behind the other, and where they are meanwhile.
struct Saved {
    runs: Vec<Run>,
    copy: Pinned,
}

/// Address and size.
type Run = (Address, usize);

impl Saved {
    /// Away from the device.
    fn keep(&self, runtime: &Runtime, on: Stream) -> Result<()> {
        let mut host = self.copy.0;
        self.runs.iter().try_for_each(|(address, size)| {
            let to = host;
            host += size;
            // The program has no part in it.
            watch::unseen(|| runtime.memcpy_async(to, *address, *size, on.raw))
        })
    }

    /// Back, as far as it is in use still. `live`: what is, by address.
    fn bring_back(&self, runtime: &Runtime, on: Stream, live: &[Run]) -> Result<()> {
        let mut host = self.copy.0;
        self.runs.iter().try_for_each(|(start, size)| {
            let (from, end) = (host, start + size);
            host += size;
            let first = live.partition_point(|(address, size)| address + size <= *start);
            live[first..].iter().take_while(|(address, _)| *address < end).try_for_each(|(address, size)| {
                let (to, upto) = ((*address).max(*start), (address + size).min(end));
                watch::unseen(|| runtime.memcpy_async(to, from + (to - start), upto - to, on.raw))
            })
        })
    }
}

/// Threads that look at what they were just handed out, or fill it, as `poison` does.
#[derive(Default)]
pub struct Touching {
    count: Mutex<usize>,
    one_less: Condvar,
}

/// No pause takes memory of the cache while this lives.
pub struct Touch<'a>(&'a Touching);

impl Drop for Touch<'_> {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
        self.0.one_less.notify_all();
    }
}

pub struct Paused {
    /// What has to come back: handles, in the order in which they are made.
    handles: Vec<HandleId>,
    saved: Vec<Saved>,
    properties: MemAllocationProp,
}

impl Cache {
    pub fn is_paused(&self) -> bool {
        self.paused.lock().is_some()
    }

    #[cold]
    pub fn paused_error(&self) -> Error {
        self.core.quiet().pool.paused_error()
    }

    /// None: the pool is paused. `core`: the cache's own.
    pub fn touch(&self, core: &Core) -> Option<Touch<'_>> {
        (!core.paused).then(|| {
            *self.touching.count.lock() += 1;
            Touch(&self.touching)
        })
    }

    /// What others do to blocks that they were handed out, or that they free, before they heard of the pause, is done or enqueued after this.
    fn wait_for_touches(&self) {
        let mut count = self.touching.count.lock();
        while *count > 0 {
            self.touching.one_less.wait(&mut count);
        }
        drop(count);
        // Freed blocks are filled under it.
        drop(self.hold_marks());
    }

    /// Waits for the device, and gives the pool's memory back; with `keep` what is in blocks in use is kept in pinned memory of the host.
    /// The bytes that went back. Nothing changes on failure.
    pub fn pause(&self, pool: Id, keep: bool) -> Result<usize> {
        provider::refuse_inside()?;
        let runtime = runtime::runtime()?;
        let abilities = self.abilities(runtime)?;
        let _turning = self.turning.lock();
        {
            let _growing = self.growing.lock();
            let mut core = self.core.lock();
            // Destroyed meanwhile, it could never resume.
            if core.pool != pool || core.ends > 0 {
                return Err(pool.gone_error());
            }
            if core.paused {
                return Ok(0);
            }
            // Nothing is handed out from here on.
            core.paused = true;
        }
        let paused = blocking("cudaDeviceSynchronize", Kind::Wait, || self.wait_and_pause(runtime, &abilities, keep));
        self.core.lock().paused = paused.is_ok();
        paused
    }

    /// What others are waited for comes first, while the device's caches may grow: they may need that to come to an end.
    fn wait_and_pause(&self, runtime: &Runtime, abilities: &Abilities, keep: bool) -> Result<usize> {
        let Some((properties, _)) = abilities.virtual_memory else { return Err(self.cannot_pause()) };
        self.refuse_others()?;
        self.wait_for_touches();
        captures::wait_for_device(self.device)?;
        self.settle_all();
        let before = self.core.lock().reserved();
        loop {
            let live = self.core.lock().live();
            let room = if keep { room_for(&live)? } else { Vec::new() };
            let (_climbing, _growing) = (self.climbing.lock(), self.growing.lock());
            self.release_free_now(runtime, Ok(None))?;
            // Blocks may be freed meanwhile: what is free by now stays where it is.
            if !keep || self.core.lock().live() == live {
                self.take_away(runtime, properties, room)?;
                return Ok(before - self.core.lock().reserved());
            }
        }
    }

    /// Under `growing`. `saved`: what is kept, and where.
    fn take_away(&self, runtime: &Runtime, properties: MemAllocationProp, saved: Vec<Saved>) -> Result<()> {
        let _guard = device::Guard::new(self.device)?;
        let (handles, mappings) = {
            let core = self.core.lock();
            if core.physical.ids().any(|id| core.physical[id].backing.raw().is_none()) {
                drop(core);
                return Err(self.cannot_pause());
            }
            let handles: Vec<(HandleId, MemHandle)> =
                core.physical.ids().filter_map(|id| Some((id, core.physical[id].backing.raw()?))).collect();
            (handles, core.physical.mappings().collect::<Vec<Mapping>>())
        };
        if !saved.is_empty() {
            let on = COPIES.of(self.device)?;
            let copied = saved.iter().try_for_each(|buffer| buffer.keep(runtime, on));
            copied.and(on.try_drain())?;
        }
        for mapping in &mappings {
            poison::leaves(self.device, mapping.start, mapping.size);
        }
        runtime.outside_capture(|| unmap_all(runtime, self.device, &mappings, &handles, self.left))?;
        let mut core = self.core.lock();
        for (id, _) in &handles {
            core.physical[*id].backing = Backing::Away;
            let (size, small) = (core.physical[*id].size, core.physical[*id].small);
            core.count_out(size, small);
        }
        core.tell_all(false);
        drop(core);
        *self.paused.lock() = Some(Paused { handles: handles.iter().map(|(id, _)| *id).collect(), saved, properties });
        handles.into_iter().for_each(|(_, raw)| self.left.release(runtime, raw));
        Ok(())
    }

    /// Brings the memory back to the same addresses. If the driver has not enough, or the limit is too low, the pool stays paused as it is.
    pub fn resume(&self, pool: Id) -> Result<()> {
        let runtime = runtime::runtime()?;
        device::check_lost(self.device)?;
        provider::refuse_inside()?;
        if self.is_paused() {
            self.settle_all();
        }
        let (_turning, _climbing) = (self.turning.lock(), self.climbing.lock());
        let once = || {
            let _growing = self.growing.lock();
            if self.core.quiet().pool != pool {
                return Err(pool.gone_error());
            }
            let Some(mut paused) = self.paused.lock().take() else { return Ok(()) };
            paused.handles = self.core.lock().without_idle(paused.handles);
            let resumed = blocking("cudaStreamSynchronize", Kind::Wait, || self.come_back(runtime, &paused));
            if resumed.is_err() {
                *self.paused.lock() = Some(paused);
            }
            resumed
        };
        match once() {
            // What others of the device have free gives way.
            Err(error) if error.status == Status::TCUDA_ERROR_OUT_OF_MEMORY => {
                crate::memory::release_others(self);
                once()
            }
            resumed => resumed,
        }
    }

    fn come_back(&self, runtime: &Runtime, paused: &Paused) -> Result<()> {
        let (sizes, whole, mappings, live) = {
            let core = self.core.lock();
            let sizes: Vec<usize> = paused.handles.iter().map(|id| core.physical[*id].size).collect();
            let whole: usize = sizes.iter().sum();
            if whole > 0 && core.limited(whole) {
                let text = format!("The memory pool {} needs {whole} bytes to resume, more than the limit leaves.", core.pool);
                return Err(Error::new(Status::TCUDA_ERROR_OUT_OF_MEMORY, text).on_device(self.device).with_bytes(whole as u64));
            }
            (sizes, whole, core.physical.mappings().collect::<Vec<_>>(), joined(&core.live()))
        };
        let _guard = device::Guard::new(self.device)?;
        self.left.take_back(runtime, self.device);
        let copies = COPIES.of(self.device)?;
        let mut made: Vec<MemHandle> = Vec::new();
        let built = runtime.outside_capture(|| {
            for size in &sizes {
                made.push(runtime.mem_create(*size, &paused.properties)?);
            }
            let handles = paused.handles.iter().copied().zip(made.iter().copied());
            let wanted = with_handles(&mappings, handles);
            map_all(runtime, self.device, &wanted, self.left)?;
            let restored = paused.saved.iter().try_for_each(|saved| saved.bring_back(runtime, copies, &live));
            restored.and(copies.try_drain()).inspect_err(|_| {
                wanted.iter().for_each(|(mapping, _)| self.left.unmap(runtime, mapping.start, mapping.size));
            })
        });
        if let Err(error) = built {
            made.into_iter().for_each(|handle| self.left.release(runtime, handle));
            let error = match error.status {
                Status::TCUDA_ERROR_OUT_OF_MEMORY => self.too_little_to_resume(runtime, whole, error),
                _ => error,
            };
            return Err(error.on_device(self.device));
        }
        let mut core = self.core.lock();
        for (id, raw) in paused.handles.iter().zip(made) {
            core.physical[*id].backing = Backing::Virtual(raw);
            let (size, small) = (core.physical[*id].size, core.physical[*id].small);
            core.count_in(size, small);
        }
        core.paused = false;
        core.tell_all(true);
        Ok(())
    }

    /// What was made is given back, and the device current.
    fn too_little_to_resume(&self, runtime: &Runtime, whole: usize, error: Error) -> Error {
        let free = runtime.outside_capture(|| runtime.mem_get_info()).map_or(String::new(), |(free, _)| format!("; {free} bytes are free"));
        let pool = self.core.quiet().pool;
        error
            .context(format!("The memory pool {pool} needs {whole} bytes of device {} to resume{free}", self.device))
            .with_bytes(whole as u64)
    }

    /// For a pool that ends, which is paused no more, unless it lives on (`goes_on`): what was kept is dropped. Refused while blocks are in use,
    /// which would have no memory any more.
    pub fn end_pause(&self, pool: Id) -> Result<()> {
        if self.is_paused() {
            self.settle_all();
        }
        let _turning = self.turning.lock();
        let _growing = self.growing.lock();
        let mut paused = self.paused.lock();
        let mut core = self.core.lock();
        if core.pool != pool {
            return Err(pool.gone_error());
        }
        if paused.is_none() {
            core.ends += 1;
            return Ok(());
        }
        let active = core.stats.active().bytes;
        if active > 0 {
            return Err(Error::new(
                Status::TCUDA_ERROR_INVALID_STATE,
                format!(
                    "The memory pool {} is paused with {active} bytes in use: resume it or free them before it is destroyed.",
                    core.pool
                ),
            ));
        }
        core.drop_away();
        core.ends += 1;
        *paused = None;
        Ok(())
    }

    /// It does not end after all.
    pub fn goes_on(&self) {
        self.core.quiet().ends -= 1;
    }

    /// Other processes would keep the memory that they have; and who was lent some does not know whose it is, and goes on.
    fn refuse_others(&self) -> Result<()> {
        let core = self.core.quiet();
        let (count, why) = match (core.held.len(), core.lent.len()) {
            (0, 0) => return Ok(()),
            (0, lent) => (lent, "lent to requests of others that would have failed (use_on_oom), and in use"),
            (held, _) => (held, "exported to other processes (tcuda_ipc_export)"),
        };
        let text = format!("The memory pool {} cannot be paused: {count} of its blocks are {why}.", core.pool);
        Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text))
    }

    fn cannot_pause(&self) -> Error {
        let core = self.core.quiet();
        let why = if core.no_split {
            "does not split its segments"
        } else {
            "has, or would have, segments that are not of virtual memory (a pluggable allocator, expandable_segments:False, or a device without)"
        };
        let text = format!("The memory pool {} cannot be paused at its addresses: it {why}.", core.pool);
        Error::new(Status::TCUDA_ERROR_NOT_SUPPORTED, text)
    }
}

/// Those side by side as one.
fn joined(live: &[Run]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (address, size) in live {
        match runs.last_mut() {
            Some((start, before)) if *start + *before == *address => *before += size,
            _ => runs.push((*address, *size)),
        }
    }
    runs
}

/// Few large buffers: each costs the driver time.
const BUFFER: usize = 256 << 20;

/// Pinned memory for what is in blocks in use.
fn room_for(live: &[Run]) -> Result<Vec<Saved>> {
    let mut runs = joined(live);
    let mut room = Vec::new();
    while !runs.is_empty() {
        let mut bytes = 0;
        let full = |run: &Run| {
            bytes += run.1;
            bytes >= BUFFER
        };
        let count = runs.iter().position(full).map_or(runs.len(), |at| at + 1);
        let runs: Vec<Run> = runs.drain(..count).collect();
        let copy = Pinned(pinned::allocate(runs.iter().map(|run| run.1).sum())?);
        room.push(Saved { runs, copy });
    }
    Ok(room)
}

impl Core {
    /// Whether its memory is with the driver, or would be: while a pause waits it is not yet.
    pub(super) fn is_away(&self) -> bool {
        self.paused && self.physical.ids().all(|id| matches!(self.physical[id].backing, Backing::Away))
    }

    /// Blocks in use, by address.
    fn live(&self) -> Vec<Run> {
        let blocks = self.areas.values().flat_map(|area| block::chain(area.first)).map(block::at);
        let live = blocks.filter(|block| matches!(block.state(), State::Allocated | State::Pending));
        live.map(|block| (block.address(), block.size())).collect()
    }
}

fn with_handles(mappings: &[Mapping], handles: impl Iterator<Item = (HandleId, MemHandle)>) -> Vec<(Mapping, MemHandle)> {
    let raws: HashMap<HandleId, MemHandle> = handles.collect();
    mappings.iter().filter_map(|mapping| Some((*mapping, *raws.get(&mapping.handle)?))).collect()
}

/// All or nothing.
fn map_all(runtime: &Runtime, device: i32, wanted: &[(Mapping, MemHandle)], left: &Left) -> Result<()> {
    let access = access_list(device);
    let mut done = 0;
    let mapped = wanted.iter().try_for_each(|(mapping, raw)| {
        runtime.mem_map(mapping.start, mapping.size, *raw)?;
        done += 1;
        runtime.mem_set_access(mapping.start, mapping.size, &access)
    });
    mapped.inspect_err(|_| {
        wanted[..done].iter().for_each(|(mapping, _)| left.unmap(runtime, mapping.start, mapping.size));
    })
}

/// All or nothing. Where there is no way back it is all: what the driver does not take is left for another try.
fn unmap_all(runtime: &Runtime, device: i32, mappings: &[Mapping], handles: &[(HandleId, MemHandle)], left: &Left) -> Result<()> {
    for (at, mapping) in mappings.iter().enumerate() {
        let Err(error) = insist(|| runtime.mem_unmap(mapping.start, mapping.size)) else { continue };
        let back = with_handles(&mappings[..at], handles.iter().copied());
        let is_back = insist(|| {
            // Of a first try.
            left.take_back(runtime, device);
            map_all(runtime, device, &back, left)
        });
        // A device that is lost takes nothing any more.
        if is_back.is_ok() || error.stays() {
            return Err(error);
        }
        mappings[at..].iter().for_each(|mapping| left.unmap(runtime, mapping.start, mapping.size));
        break;
    }
    Ok(())
}
