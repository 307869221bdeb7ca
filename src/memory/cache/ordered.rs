//! Blocks of cudaMallocAsync (torch's backend of that name): each is a segment of its own, from the driver's pool of the device, and goes
//! back there when it is freed, in the order of its stream. The cache keeps nothing and counts everything.

use super::block::{self, BlockId, State};
use super::core::Core;
use super::physical::{Backing, HandleId};
use super::segment::access_list;
use super::slot::{COMMON, StreamKey};
use super::{Cache, StreamSlot};
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, insist};
use crate::memory::stats::Family;
use crate::memory::{captures, provider};
use crate::runtime::api::MemPoolAttribute;
use crate::runtime::table::RawMemPool;
use crate::runtime::{self, Address, RawStream, Runtime};
use crate::stream::Stream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Some block of the process came from there: frees have to look.
static USED: AtomicBool = AtomicBool::new(false);

pub fn is_used() -> bool {
    USED.load(Relaxed)
}

impl Cache {
    pub(super) fn allocate_ordered(&self, runtime: &Runtime, size: usize, raw: RawStream) -> Result<Address> {
        self.open_ordered(runtime)?;
        let entered = Stream { device: self.device, raw }.enter()?;
        let address = entered.runtime.malloc_async(size, entered.raw)?;
        USED.store(true, Relaxed);
        self.count_spare(runtime, size as i64);
        Ok(address)
    }

    /// What it gave is beyond the limit, which the driver's pool has grown by: that goes back as far as the stream is past it, else with
    /// `trim_ordered`, since nobody waits for a stream here.
    pub(super) fn drop_ordered(&self, runtime: &Runtime, address: Address, raw: RawStream) {
        let Some(pool) = *self.ordered.lock() else { return };
        // What cannot be given back is lost with its device.
        let _ = insist(|| {
            let entered = Stream { device: self.device, raw }.enter()?;
            runtime.outside_capture(|| runtime.free_async(address, entered.raw))
        });
        self.count_spare(runtime, 0);
        let held = {
            let core = self.core.quiet();
            core.ordered_bytes + core.ordered_spare
        };
        let beyond = self.stats.limit().map_or(0, |limit| self.stats.whole().reserved().saturating_sub(limit));
        if beyond > 0 {
            let _ = runtime.outside_capture(|| runtime.mem_pool_trim(pool, held.saturating_sub(beyond)));
            self.count_spare(runtime, 0);
        }
    }

    /// The driver's pool keeps what is freed, and peers reach it.
    fn open_ordered(&self, runtime: &Runtime) -> Result<()> {
        const POOLS_SUPPORTED: i32 = 115;
        let mut pool = self.ordered.lock();
        if pool.is_some() {
            return Ok(());
        }
        if !runtime.has_async_allocations() || runtime.device_attribute(POOLS_SUPPORTED, self.device)? == 0 {
            let text = format!(
                "Device {} or its driver has no cudaMallocAsync (CUDA 11.2 and later have). backend:native has no need of it.",
                self.device
            );
            return Err(Error::new(Status::TCUDA_ERROR_NOT_SUPPORTED, text).on_device(self.device));
        }
        let raw = runtime.default_mem_pool(self.device)?;
        runtime.set_mem_pool_attribute(raw, MemPoolAttribute::ReleaseThreshold, u64::MAX)?;
        open_to_peers(runtime, self.device, raw)?;
        *pool = Some(raw);
        Ok(())
    }

    /// What the driver's pool has grown or shrunk by, beside the blocks, is reserved as well. `more`: bytes of blocks that are not counted yet.
    pub(super) fn count_spare(&self, runtime: &Runtime, more: i64) {
        let Some(pool) = *self.ordered.lock() else { return };
        let held = insist(|| runtime.outside_capture(|| runtime.mem_pool_attribute(pool, MemPoolAttribute::ReservedCurrent)));
        let Ok(held) = held else { return };
        let mut core = self.core.quiet();
        let spare = (held as i64 - core.ordered_bytes as i64 - more).max(0) as usize;
        let before = std::mem::replace(&mut core.ordered_spare, spare);
        if spare > before {
            self.stats.add(Family::ReservedBytes, false, spare - before);
        } else if spare < before {
            self.stats.sub(Family::ReservedBytes, false, before - spare);
        }
    }

    pub(super) fn open_ordered_to_peers(&self, runtime: &Runtime) -> Result<()> {
        match *self.ordered.lock() {
            Some(pool) => open_to_peers(runtime, self.device, pool),
            None => Ok(()),
        }
    }

    /// For the end of everything: the driver's pool keeps nothing any more.
    pub(super) fn close_ordered(&self, runtime: &Runtime) {
        self.put_off.lock().clear();
        if let Some(pool) = self.ordered.lock().take() {
            let _ = runtime.set_mem_pool_attribute(pool, MemPoolAttribute::ReleaseThreshold, 0);
            let _ = runtime.mem_pool_trim(pool, 0);
        }
    }

    /// What the driver's pool does not need goes back to the device, as far as it is past.
    pub(super) fn trim_ordered(&self, runtime: &Runtime) {
        let Some(raw) = *self.ordered.lock() else { return };
        // Not between a block that comes and its count.
        let spare = || {
            let _growing = self.growing.lock();
            self.count_spare(runtime, 0);
            self.core.quiet().ordered_spare
        };
        if spare() == 0 {
            // Nobody waits for the device for nothing.
            return;
        }
        // Else what is past goes back: of a lost device all is, and beside a capture, which waiting would end, what its streams are done with.
        let _ = watch::unseen(|| captures::synchronize(self.device));
        let _ = runtime.outside_capture(|| runtime.mem_pool_trim(raw, 0));
        spare();
    }

    /// As `memory::free` and `free_on`, for a block of any kind.
    pub fn free_ordered(&self, address: Address, stream: Option<Stream>) -> Result<()> {
        let runtime = runtime::runtime()?;
        let found = crate::memory::with_block(address, |core, id| {
            let ordered = core
                .physical
                .overlapping(address, address + 1)
                .next()
                .is_some_and(|mapping| matches!(core.physical[mapping.handle].backing, Backing::Ordered));
            Ok((ordered, core.ends_on(id, stream)))
        })?;
        let (true, (on, users)) = found else { return crate::memory::hand_back(address, stream) };
        provider::refuse_inside()?;
        let Some(on) = on.filter(|on| on.device == self.device) else {
            // Its stream is gone, or another thread's: it goes back when it is past.
            return crate::memory::hand_back(address, stream);
        };
        if on.is_capturing().unwrap_or(true) || !self.comes_after(on, &users) {
            // One of them is captured.
            crate::memory::hand_back(address, stream)?;
            self.put_off.lock().push((address, StreamKey::of(on)));
            return Ok(());
        }
        crate::memory::with_block(address, |core, id| {
            // They are before what `on` does next.
            core.uses.remove(&id);
            Ok(())
        })?;
        crate::memory::hand_back(address, Some(on))?;
        // It is free by now, whatever becomes of this.
        let _ = self.give_ordered(runtime, address, on);
        Ok(())
    }

    /// What was freed beside captures that are over goes back as it would have then. Nobody hears of a failure: it stays free memory.
    pub(super) fn give_put_off(&self) {
        if captures::any() || self.put_off.lock().is_empty() {
            return;
        }
        let Ok(runtime) = runtime::runtime() else { return };
        self.settle_all();
        let put_off = std::mem::take(&mut *self.put_off.lock());
        for (address, key) in put_off {
            let (is_known, is_pending) = {
                let core = self.core.lock();
                let blocks = core.area_of(address).map(|area| block::chain(area.first));
                (core.find_slot(key).is_some(), blocks.into_iter().flatten().any(|id| block::at(id).state() == State::Pending))
            };
            let on = Stream { device: self.device, raw: key.raw };
            if is_known && (is_pending || !key.reachable() || on.is_capturing().unwrap_or(false)) {
                self.put_off.lock().push((address, key));
            } else if is_known {
                let _ = self.give_ordered(runtime, address, on);
            }
        }
    }

    /// A block that is free now goes back behind the work of a stream. What the driver does not take is free memory, to be tried again.
    fn give_ordered(&self, runtime: &Runtime, address: Address, on: Stream) -> Result<()> {
        let _growing = self.growing.lock();
        // It may have joined a capture, and joins none meanwhile.
        let _driving = self.driving.lock();
        let taken = {
            let mut core = self.core.lock();
            let slot = core.slot_of(StreamKey::of(on))?;
            core.let_in(slot);
            core.take_ordered(address, slot)
        };
        // Somebody has allocated it again meanwhile.
        let Some((block, handle, base)) = taken else { return Ok(()) };
        let give = || {
            watch::tell(|| Happening::Left { address: base, size: block::at(block).size() });
            on.enter().and_then(|entered| runtime.outside_capture(|| entered.runtime.free_async(base, entered.raw)))
        };
        let joined = captures::any() && on.is_capturing().unwrap_or(true);
        let given = !joined && give().is_ok();
        let mut core = self.core.lock();
        if given {
            core.tell_given(base);
            core.physical.unmap(base);
            core.forget_area(block);
            core.uncount_handle(handle);
        } else {
            core.make_free(block);
        }
        drop(core);
        self.count_spare(runtime, 0);
        Ok(())
    }
}

/// All others than the device itself, which needs no leave.
fn open_to_peers(runtime: &Runtime, device: i32, pool: RawMemPool) -> Result<()> {
    match &access_list(device)[1..] {
        [] => Ok(()),
        peers => runtime.mem_pool_set_access(pool, peers),
    }
}

impl Core {
    /// The block around an address that is all of its segment, and free: in the driver's hands from now on.
    fn take_ordered(&mut self, address: Address, slot: StreamSlot) -> Option<(BlockId, HandleId, Address)> {
        let area = self.area_of(address)?;
        let (first, base, size) = (area.first, area.base, area.size);
        let record = block::at(first);
        // Of another stream it would be somebody else's free.
        if record.state() != State::Free || record.size() != size || ![slot, COMMON].contains(&record.owner()) {
            return None;
        }
        let handle = self.physical.overlapping(base, base + 1).next()?.handle;
        if !matches!(self.physical[handle].backing, Backing::Ordered) {
            return None;
        }
        Some((self.cut_out(first, base, base + size), handle, base))
    }
}
