//! Nothing fits: from a second look to the out-of-memory error. Each rung costs more than the one before; after each the free
//! memory is searched again.

use super::block::Block;
use super::core::{Core, Request, StreamKey};
use super::segment::Refusal;
use super::{Abilities, Cache, StreamSlot};
use crate::base::{Error, Result, Status};
use crate::device;
use crate::memory::options;
use crate::memory::stats::Family;
use crate::runtime::{self, Address, Runtime};
use crate::stream::Stream;

impl Cache {
    /// Memory for the stream's work: from what is free, else from the driver.
    pub fn allocate(&self, request: &Request, stream: Stream) -> Result<Address> {
        let key = StreamKey::of(stream);
        let mut core = self.core.lock();
        let slot = core.slot_of(key)?;
        if let Some(address) = core.allocate(slot, request, false) {
            return Ok(address);
        }
        drop(core);
        self.climb(request, stream, slot)
    }

    #[cold]
    fn climb(&self, request: &Request, stream: Stream, slot: StreamSlot) -> Result<Address> {
        device::check_lost(self.device)?;
        let runtime = runtime::runtime()?;
        let abilities = self.abilities(runtime)?;
        // 1. What other streams are done with.
        self.settle(slot);
        // 2. More from the driver.
        let refusal = match self.search_or_grow(runtime, &abilities, slot, request)? {
            Ok(address) => return Ok(address),
            Err(refusal) => refusal,
        };
        let rejects = matches!(refusal, Refusal::Limit) && options::get().throw_on_cudamalloc_oom;
        let capturing = stream.is_capturing().unwrap_or_else(|error| error.status == Status::TCUDA_ERROR_CAPTURE);
        if capturing || rejects || request.search > abilities.total {
            return Err(self.out_of_memory(runtime, &abilities, request, refusal));
        }
        // One thread at a time makes room: two would take it from each other. Freeing goes on meanwhile.
        let _climbing = self.climbing.lock();
        /// Rounds, as long as other threads change what is free.
        const ROUNDS: usize = 8;
        let mut last = self.make_room(runtime, &abilities, slot, request, stream)?;
        for _ in 1..ROUNDS {
            match last {
                Ok(address) => return Ok(address),
                Err((refusal, changes)) if self.core.lock().changes == changes => {
                    return Err(self.out_of_memory(runtime, &abilities, request, refusal));
                }
                Err(_) => last = self.make_room(runtime, &abilities, slot, request, stream)?,
            }
        }
        last.map_err(|(refusal, _)| self.out_of_memory(runtime, &abilities, request, refusal))
    }

    /// The rungs that make room. The inner error is the refusal, and how much had changed when it came.
    fn make_room(
        &self,
        runtime: &Runtime,
        abilities: &Abilities,
        slot: StreamSlot,
        request: &Request,
        stream: Stream,
    ) -> Result<Result<Address, (Refusal, u64)>> {
        // 3. What others have freed but may still use: this stream waits for them on the device, the host does not.
        if let Some(address) = self.take_waiting(slot, request, stream) {
            return Ok(Ok(address));
        }
        // 4. The host waits, stream by stream, until there is enough.
        self.core.lock().stats.num_sync_all_streams += 1;
        let mut found = None;
        let waited = self.wait(|core| {
            found = search(core, slot, request);
            found.is_some()
        });
        if let Some(address) = found {
            return Ok(Ok(address));
        }
        // 5. Everything free goes back to the driver, which can make whole memory of it.
        let released = self.release_free(runtime);
        self.core.lock().stats.num_alloc_retries += 1;
        let changes = self.core.lock().changes;
        match self.search_or_grow(runtime, abilities, slot, request)? {
            Ok(address) => Ok(Ok(address)),
            Err(refusal) => {
                // A failure that kept memory back is the better answer.
                waited.and(released)?;
                Ok(Err((refusal, changes)))
            }
        }
    }

    /// The outer error is a failure that no other rung can mend.
    fn search_or_grow(
        &self,
        runtime: &Runtime,
        abilities: &Abilities,
        slot: StreamSlot,
        request: &Request,
    ) -> Result<Result<Address, Refusal>> {
        let _growing = self.growing.lock();
        if let Some(address) = search(&mut self.core.lock(), slot, request) {
            return Ok(Ok(address));
        }
        match runtime.outside_capture(|| Ok(self.grow(runtime, abilities, slot, request)))? {
            Ok(address) => Ok(Ok(address)),
            Err(Refusal::Driver(error)) if error.status != Status::TCUDA_ERROR_OUT_OF_MEMORY => Err(error),
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    /// Free memory of other streams whose use is not past: taken at once, ordered by events.
    fn take_waiting(&self, slot: StreamSlot, request: &Request, stream: Stream) -> Option<Address> {
        let owners = {
            let core = self.core.lock();
            let owners = core.owners_in_use(slot);
            let helps = !core.find_run(slot, request, |core, block| core.is_past(block) || owners.contains(&block.slot)).is_empty();
            if helps { owners } else { return None }
        };
        let ordered = self.order_after(stream, &owners).ok()?;
        let mut core = self.core.lock();
        let run = core.find_run(slot, request, |core, block| {
            core.is_past(block) || ordered.iter().any(|(owner, count)| *owner == block.slot && block.ticket <= *count)
        });
        if run.is_empty() {
            return None;
        }
        core.take_over(&run, slot, request, true);
        core.allocate(slot, request, true)
    }

    #[cold]
    fn out_of_memory(&self, runtime: &Runtime, abilities: &Abilities, request: &Request, refusal: Refusal) -> Error {
        let free = device::Guard::new(self.device).and_then(|_guard| runtime.mem_get_info()).map(|(free, _)| free);
        let mut core = self.core.lock();
        core.stats.num_ooms += 1;
        let allocated = core.stats.current(Family::AllocatedBytes) as usize;
        let pending = (core.stats.current(Family::ActiveBytes) - core.stats.current(Family::AllocatedBytes)) as usize;
        let (unused, largest) = core.free_bytes();
        let mut text = format!("CUDA out of memory. Tried to allocate {}. ", size_text(request.requested));
        text += &format!("GPU {} has a total capacity of {}", self.device, size_text(abilities.total));
        text += &free.map_or_else(|_| ". ".into(), |free| format!(" of which {} is free. ", size_text(free)));
        if let (Some(limit), Refusal::Limit) = (core.limit, &refusal) {
            text += &format!("{} allowed; this process is at that limit. ", size_text(limit));
        }
        text += &format!(
            "Of the allocated memory {} is allocated by tcuda, and {} is reserved by tcuda but unallocated; the largest free block has {}.",
            size_text(allocated),
            size_text(unused),
            size_text(largest)
        );
        if pending > 0 {
            text += &format!(" {} is freed but still in use by other streams.", size_text(pending));
        }
        if let Refusal::Limit = refusal {
            text += " tcuda_set_memory_limit or tcuda_set_per_process_memory_fraction raises the limit.";
        }
        let native = match &refusal {
            Refusal::Driver(error) => error.native,
            Refusal::Limit => 0,
        };
        Error::new(Status::TCUDA_ERROR_OUT_OF_MEMORY, text).with_native(native).on_device(self.device).with_bytes(request.requested as u64)
    }

    /// torch's empty_cache for one device: waits for what is freed but in use, then gives all free memory back.
    pub fn empty(&self) -> Result<()> {
        let runtime = runtime::runtime()?;
        let waited = self.wait(|_| false);
        self.release_free(runtime)?;
        waited
    }
}

/// The stream's own memory, then what other streams are done with.
fn search(core: &mut Core, slot: StreamSlot, request: &Request) -> Option<Address> {
    if let Some(address) = core.allocate(slot, request, true) {
        return Some(address);
    }
    if core.slots.len() < 2 {
        return None;
    }
    let run = core.find_run(slot, request, |core: &Core, block: &Block| core.is_past(block));
    if run.is_empty() {
        return None;
    }
    core.take_over(&run, slot, request, false);
    core.allocate(slot, request, true)
}

/// torch's way to write sizes.
pub fn size_text(bytes: usize) -> String {
    let scaled = |shift: u32, unit: &str| format!("{:.2} {unit}", bytes as f64 / (1u64 << shift) as f64);
    match bytes {
        0..=1024 => format!("{bytes} bytes"),
        _ if bytes <= 1 << 20 => scaled(10, "KiB"),
        _ if bytes <= 1 << 30 => scaled(20, "MiB"),
        _ => scaled(30, "GiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_torchs() {
        assert_eq!(size_text(1024), "1024 bytes");
        assert_eq!(size_text(1025), "1.00 KiB");
        assert_eq!(size_text(20 << 20), "20.00 MiB");
        assert_eq!(size_text((3 << 30) / 2), "1.50 GiB");
    }
}
