//! Memory from the driver and back. With virtual memory an area is a large reservation of addresses that is filled with physical
//! pieces as needed, and pieces go back when all of their bytes are free; without it an area is one `cudaMalloc`.

use super::block::{Block, BlockId, NIL, State};
use super::core::{Core, Request};
use super::{Abilities, Cache, StreamSlot};
use crate::base::{Error, Result, Status};
use crate::device;
use crate::memory::stats::Family;
use crate::memory::{lookup, options, poison};
use crate::runtime::table::{MemAccess, MemAllocationProp, MemLocation};
use crate::runtime::{Address, MemHandle, Runtime};

/// Addresses in one stretch, covered by blocks.
pub struct Area {
    pub base: Address,
    pub size: usize,
    pub small: bool,
    /// One cudaMalloc; else a reservation.
    pub plain: bool,
    pub first: BlockId,
}

/// Physical memory, mapped at its key in `Core::pieces`. Without a handle it is a plain segment.
pub struct Piece {
    pub size: usize,
    pub handle: Option<MemHandle>,
}

/// Pieces are no larger, so that one live block keeps no more than this from the driver.
const LARGEST_PIECE: usize = 512 << 20;
/// A piece is at most this share of what is held: what a live block may keep back stays in proportion.
const SHARE: usize = 800;
/// torch's segment sizes, for plain segments; that for sizes in between is an option.
const PLAIN_SMALL: usize = 2 << 20;
const PLAIN_OWN: usize = 10 << 20;

/// Why there is no more memory.
pub enum Refusal {
    /// The driver has none.
    Driver(Error),
    /// More than the limit that was set.
    Limit,
}

pub fn abilities(runtime: &Runtime, device: i32) -> Result<Abilities> {
    let total = runtime.device_properties(device)?.total_memory as usize;
    let virtual_memory = if options::get().expandable_segments && runtime.has_virtual_memory() { probe(runtime, device)? } else { None };
    Ok(Abilities { total, virtual_memory })
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
fn access_list(device: i32) -> Vec<MemAccess> {
    const READ_WRITE: i32 = 3;
    let peers = device::peer::with_access_to(device);
    std::iter::once(device).chain(peers).map(|device| MemAccess { location: device_location(device), flags: READ_WRITE }).collect()
}

/// What undoes something is tried once more before it is given up: a leak is worse than a second call.
fn insist(undo: impl Fn() -> Result<()>) -> bool {
    undo().is_ok() || undo().is_ok()
}

fn release(runtime: &Runtime, handle: MemHandle) {
    insist(|| runtime.mem_release(handle));
}

impl Core {
    fn new_area(&mut self, base: Address, size: usize, small: bool, plain: bool, slot: StreamSlot) -> BlockId {
        let index = self.areas.iter().position(Option::is_none).unwrap_or(self.areas.len());
        let first = self.blocks.insert(Block {
            address: base,
            size,
            requested: 0,
            ticket: 0,
            prev: NIL,
            next: NIL,
            link_prev: NIL,
            link_next: NIL,
            area: index as u32,
            small,
            plain,
            slot,
            state: State::Unmapped,
            used_elsewhere: false,
        });
        let area = Some(Area { base, size, small, plain, first });
        if index == self.areas.len() {
            self.areas.push(area)
        } else {
            self.areas[index] = area
        }
        first
    }

    fn count_piece(&mut self, small: bool, size: usize) {
        self.stats.add(Family::Segment, small, 1);
        self.stats.add(Family::ReservedBytes, small, size);
        self.stats.num_device_alloc += 1;
    }

    fn uncount_piece(&mut self, small: bool, size: usize) {
        self.stats.sub(Family::Segment, small, 1);
        self.stats.sub(Family::ReservedBytes, small, size);
        self.stats.num_device_free += 1;
    }

    fn limited(&self, size: usize) -> bool {
        self.limit.is_some_and(|limit| self.reserved().saturating_add(size) > limit)
    }

    /// Where new memory would complete the request with the fewest bytes: a hole with room, where `extends` also one behind free memory
    /// of the stream that has room for the rest.
    fn best_hole(&self, slot: StreamSlot, request: &Request, granularity: usize, extends: bool) -> Option<(BlockId, usize)> {
        let mut best: Option<(BlockId, usize)> = None;
        for area in self.areas.iter().flatten().filter(|area| area.small == request.small && !area.plain) {
            for id in self.blocks.chain(area.first) {
                let hole = &self.blocks[id];
                if hole.state != State::Unmapped {
                    continue;
                }
                let before = (hole.prev != NIL).then(|| &self.blocks[hole.prev]);
                let have = before.filter(|block| extends && block.state == State::Free && block.slot == slot).map_or(0, |block| block.size);
                let need = request.search.saturating_sub(have).next_multiple_of(granularity);
                if need > 0 && need <= hole.size && best.is_none_or(|(_, least)| need < least) {
                    best = Some((id, need));
                }
            }
        }
        best
    }

    /// Pieces all of whose bytes are free and past, with the area's kind.
    fn releasable(&self) -> Vec<Address> {
        let mut found = Vec::new();
        for area in self.areas.iter().flatten() {
            let mut pieces = self.pieces.range(area.base..area.base + area.size).peekable();
            let mut free_from = area.base;
            let mut end = area.base;
            for id in self.blocks.chain(area.first) {
                let block = &self.blocks[id];
                if block.state != State::Free || !self.is_past(block) {
                    free_from = block.end();
                }
                end = block.end();
                // Pieces that end here or before lie in the run of free blocks, or not.
                while let Some((start, _)) = pieces.next_if(|(start, piece)| *start + piece.size <= end) {
                    if *start >= free_from {
                        found.push(*start);
                    }
                }
            }
            debug_assert!(pieces.next().is_none() && end == area.base + area.size);
        }
        found
    }

    /// Takes the addresses of a piece out of the free blocks that cover it: one block, in the driver's hands.
    fn take_out(&mut self, start: Address, size: usize) -> BlockId {
        let end = start + size;
        let first = self.area_at(start).first;
        let covering: Vec<BlockId> =
            self.blocks.chain(first).filter(|id| self.blocks[*id].address < end && self.blocks[*id].end() > start).collect();
        let mut whole = NIL;
        for mut id in covering {
            self.list_remove(id);
            if self.blocks[id].address < start {
                let right = self.blocks.split(id, start - self.blocks[id].address);
                self.list_insert(id);
                id = right;
            }
            if self.blocks[id].end() > end {
                let rest = self.blocks.split(id, end - self.blocks[id].address);
                self.list_insert(rest);
            }
            self.blocks[id].state = State::Busy;
            self.blocks[id].ticket = 0;
            if whole == NIL { whole = id } else { self.blocks.join(whole) }
        }
        whole
    }

    fn area_at(&self, address: Address) -> &Area {
        let holds = |area: &&Area| (area.base..area.base + area.size).contains(&address);
        self.areas.iter().flatten().find(holds).expect("memory lies in an area")
    }

    fn make_hole(&mut self, mut id: BlockId) {
        self.blocks[id].state = State::Unmapped;
        let is_hole = |core: &Core, other: BlockId| other != NIL && core.blocks[other].state == State::Unmapped;
        if is_hole(self, self.blocks[id].next) {
            self.blocks.join(id);
        }
        if is_hole(self, self.blocks[id].prev) {
            id = self.blocks[id].prev;
            self.blocks.join(id);
        }
    }

    /// A piece's memory is the driver's again.
    fn forget_piece(&mut self, start: Address, block: BlockId) {
        let Block { small, plain, area, .. } = self.blocks[block];
        if let Some(piece) = self.pieces.remove(&start) {
            self.uncount_piece(small, piece.size);
        }
        if plain {
            self.blocks.remove(block);
            self.areas[area as usize] = None;
        } else {
            self.make_hole(block);
        }
    }

    /// The reservations in which nothing is mapped, taken into the driver's hands.
    fn take_empty_areas(&mut self) -> Vec<(usize, Address, usize)> {
        let mut empty = Vec::new();
        for (index, area) in self.areas.iter().enumerate() {
            let Some(area) = area else { continue };
            let first = &self.blocks[area.first];
            if !area.plain && first.state == State::Unmapped && first.size == area.size {
                empty.push((index, area.base, area.size));
            }
        }
        for (index, ..) in &empty {
            let first = self.areas[*index].as_ref().map_or(NIL, |area| area.first);
            self.blocks[first].state = State::Busy;
        }
        empty
    }
}

#[cold]
fn beyond_the_table(base: Address) -> Error {
    Error::internal(format!(
        "The driver's address 0x{base:x} is beyond the 48 bits that the cache keeps track of, or no multiple of 1 MiB."
    ))
}

/// Addresses cost nothing: four times the memory leaves room for pieces that come and go. Where the process has fewer left, less.
fn reserve(runtime: &Runtime, abilities: &Abilities, need: usize, granularity: usize) -> Result<(Address, usize)> {
    let unit = granularity.max(lookup::GRANULARITY);
    let need = need.next_multiple_of(unit);
    let mut size = abilities.total.saturating_mul(4).max(need).next_multiple_of(unit);
    loop {
        match runtime.address_reserve(size, unit) {
            Ok(base) => return Ok((base, size)),
            Err(error) if size == need || error.status != Status::TCUDA_ERROR_OUT_OF_MEMORY => return Err(error),
            Err(_) => size = (size / 2).max(need).next_multiple_of(unit),
        }
    }
}

/// Makes, maps and opens memory from `start` on, in pieces. All or nothing.
fn map_all(
    runtime: &Runtime,
    properties: &MemAllocationProp,
    start: Address,
    need: usize,
    largest: usize,
    access: &[MemAccess],
) -> Result<Vec<(MemHandle, usize)>> {
    let mut made: Vec<(MemHandle, usize)> = Vec::new();
    let mut mapped = 0;
    let done = (|| {
        let mut left = need;
        while left > 0 {
            let size = left.min(largest);
            made.push((runtime.mem_create(size, properties)?, size));
            left -= size;
        }
        for (handle, size) in &made {
            runtime.mem_map(start + mapped, *size, *handle)?;
            mapped += size;
        }
        runtime.mem_set_access(start, need, access)
    })();
    if let Err(error) = done {
        let mut at = start;
        for (handle, size) in made {
            if at < start + mapped {
                insist(|| runtime.mem_unmap(at, size));
            }
            release(runtime, handle);
            at += size;
        }
        return Err(error);
    }
    Ok(made)
}

impl Cache {
    /// Memory from the driver for the request, handed out at once. Under `growing`; nothing changes on failure.
    pub fn grow(&self, runtime: &Runtime, abilities: &Abilities, slot: StreamSlot, request: &Request) -> Result<Address, Refusal> {
        // What it would extend may be taken while the driver works; a hole that has room for all cannot.
        for extends in [true, false] {
            let address = self.grow_mapped(runtime, abilities, slot, request, extends)?;
            if let Some(address) = address {
                return Ok(address);
            }
        }
        Err(Refusal::Driver(Error::internal("New memory does not hold the request that it was made for.")))
    }

    fn grow_plain(&self, runtime: &Runtime, slot: StreamSlot, request: &Request) -> Result<Address, Refusal> {
        let size = match request.search {
            size if request.small && size <= PLAIN_SMALL => PLAIN_SMALL,
            size if size < PLAIN_OWN => options::get().large_segment_size_mb << 20,
            size => size.next_multiple_of(PLAIN_SMALL),
        };
        if self.core.lock().limited(size) {
            return Err(Refusal::Limit);
        }
        let _guard = device::Guard::new(self.device).map_err(Refusal::Driver)?;
        let base = runtime.malloc(size).map_err(Refusal::Driver)?;
        if base + size > lookup::LIMIT || !base.is_multiple_of(lookup::GRANULARITY) {
            insist(|| runtime.free(base));
            return Err(Refusal::Driver(beyond_the_table(base)));
        }
        let mut core = self.core.lock();
        let first = core.new_area(base, size, request.small, true, slot);
        core.pieces.insert(base, Piece { size, handle: None });
        core.count_piece(request.small, size);
        core.make_free(first);
        core.allocate(slot, request, true).ok_or_else(|| Refusal::Driver(Error::internal("A new segment does not hold its request.")))
    }

    fn grow_mapped(
        &self,
        runtime: &Runtime,
        abilities: &Abilities,
        slot: StreamSlot,
        request: &Request,
        extends: bool,
    ) -> Result<Option<Address>, Refusal> {
        let Some((properties, granularity)) = abilities.virtual_memory else {
            return self.grow_plain(runtime, slot, request).map(Some);
        };
        let found = self.core.lock().best_hole(slot, request, granularity, extends);
        let (hole, need) = match found {
            Some(found) => found,
            None => {
                let need = request.search.next_multiple_of(granularity);
                if self.core.lock().limited(need) {
                    return Err(Refusal::Limit);
                }
                let (base, size) = reserve(runtime, abilities, need, granularity).map_err(Refusal::Driver)?;
                if base + size > lookup::LIMIT {
                    insist(|| runtime.address_free(base, size));
                    return Err(Refusal::Driver(beyond_the_table(base)));
                }
                (self.core.lock().new_area(base, size, request.small, false, slot), need)
            }
        };
        // Holes change only under `growing`.
        let (start, largest) = {
            let mut core = self.core.lock();
            if core.limited(need) {
                return Err(Refusal::Limit);
            }
            if core.blocks[hole].size > need {
                core.blocks.split(hole, need);
            }
            core.blocks[hole].state = State::Busy;
            let largest = (core.reserved() / SHARE).max(need / 8).next_multiple_of(granularity).clamp(granularity, LARGEST_PIECE);
            (core.blocks[hole].address, largest)
        };
        let pieces = map_all(runtime, &properties, start, need, largest, &access_list(self.device));
        let mut core = self.core.lock();
        let pieces = match pieces {
            Ok(pieces) => pieces,
            Err(error) => {
                core.make_hole(hole);
                return Err(Refusal::Driver(error));
            }
        };
        let mut at = start;
        for (handle, size) in pieces {
            core.pieces.insert(at, Piece { size, handle: Some(handle) });
            core.count_piece(request.small, size);
            at += size;
        }
        core.blocks[hole].slot = slot;
        core.blocks[hole].ticket = 0;
        core.make_free(hole);
        Ok(core.allocate(slot, request, true))
    }

    /// Gives the driver what is free and past. What the driver does not take stays; the first reason is the answer.
    pub fn release_free(&self, runtime: &Runtime) -> Result<()> {
        let _growing = self.growing.lock();
        let taken: Vec<(Address, usize, Option<MemHandle>, BlockId)> = {
            let mut core = self.core.lock();
            let releasable = core.releasable();
            let sizes = releasable.into_iter().filter_map(|start| core.pieces.get(&start).map(|piece| (start, piece.size, piece.handle)));
            let sizes: Vec<_> = sizes.collect();
            sizes.into_iter().map(|(start, size, handle)| (start, size, handle, core.take_out(start, size))).collect()
        };
        let mut failure = None;
        for (start, size, handle, block) in taken {
            poison::leaves(self.device, start, size);
            let given = runtime.outside_capture(|| match handle {
                Some(handle) => runtime.mem_unmap(start, size).map(|()| release(runtime, handle)),
                None => device::Guard::new(self.device).and_then(|_guard| runtime.free(start)),
            });
            let mut core = self.core.lock();
            match given {
                Ok(()) => core.forget_piece(start, block),
                Err(error) => {
                    core.make_free(block);
                    failure.get_or_insert(error);
                }
            }
        }
        let empty = self.core.lock().take_empty_areas();
        for (index, base, size) in empty {
            let given = insist(|| runtime.address_free(base, size));
            let mut core = self.core.lock();
            let first = core.areas[index].as_ref().map_or(NIL, |area| area.first);
            if given {
                core.blocks.remove(first);
                core.areas[index] = None;
            } else {
                core.blocks[first].state = State::Unmapped;
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Opens all memory of this device to another one, which just got peer access.
    pub fn open_to_peers(&self, runtime: &Runtime) -> Result<()> {
        let _growing = self.growing.lock();
        let mapped: Vec<(Address, usize)> = {
            let core = self.core.lock();
            core.pieces.iter().filter(|(_, piece)| piece.handle.is_some()).map(|(start, piece)| (*start, piece.size)).collect()
        };
        let access = access_list(self.device);
        mapped.into_iter().try_for_each(|(start, size)| runtime.mem_set_access(start, size, &access))
    }

    /// Gives everything back, handed out or not. For the end of the process' use of the device.
    pub fn tear_down(&self, runtime: &Runtime) {
        let _growing = self.growing.lock();
        let mut core = self.core.lock();
        let _guard = device::Guard::new(self.device);
        for (start, piece) in std::mem::take(&mut core.pieces) {
            match piece.handle {
                Some(handle) => {
                    insist(|| runtime.mem_unmap(start, piece.size));
                    release(runtime, handle);
                }
                None => drop(runtime.free(start)),
            }
        }
        for area in core.areas.iter().flatten().filter(|area| !area.plain) {
            insist(|| runtime.address_free(area.base, area.size));
        }
        *core = Core::new(self.device, core.limit);
        drop(core);
        self.forget_abilities();
    }
}
