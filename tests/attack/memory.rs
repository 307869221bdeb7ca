//! Blocks: allocated, written, read, used on other streams, handed to other threads, freed in every way.

use crate::model::{self, Block, Held, Kind, Pool, Shelved};
use crate::plan::{Feature, MIB, Plant};
use crate::program::{Program, did, message};
use crate::trail::note;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use tcuda::base::{Result, Status};
use tcuda::capi::copy::*;
use tcuda::capi::memory::*;
use tcuda::capi::pool::*;
use tcuda::capi::sanitizer::tcuda_sanitizer_annotate_access;
use tcuda::capi::sim::tcuda_sim_delay;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::runtime::{RawStream, Runtime};
use tcuda::stream::{self, Stream};

/// What an output holds before a call, and still does after one that fails.
pub const UNTOUCHED: *mut c_void = std::ptr::dangling_mut();
/// No device has as much.
pub const ABSURD: usize = 1 << 33;

/// Modes of an access.
pub const READS: i32 = 1;
pub const WRITES: i32 = 2;

impl Program {
    /// Edges, then small ones, then large ones.
    pub fn size(&mut self) -> usize {
        const EDGES: [usize; 12] = [1, 511, 512, 513, 4096, 65536, MIB - 512, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1];
        match self.random.below(100) {
            0..=1 => 0,
            2 => self.random.pick(&[1 << 40, usize::MAX, !511, 1 << 60]).unwrap(),
            3..=19 => self.random.pick(&EDGES).unwrap(),
            20..=59 => 1 + self.random.below(64 << 10),
            60..=74 => 1 + self.random.below(2 * MIB),
            75..=96 => 1 + self.random.below(24 * MIB),
            _ if self.has(Feature::Large) => 1 + self.random.below(400 * MIB),
            _ => 1 + self.random.below(64 * MIB),
        }
    }

    /// Often what was freed last, on the same stream or another one: that is where memory would go too early.
    pub fn allocate(&mut self) {
        let mut stream = self.pick_stream(None);
        if let Some((size, home)) = self.freed.take().filter(|_| self.random.chance(50)) {
            if self.random.chance(50) && home.kind != Kind::Captured {
                stream = home;
            }
            let held = stream.hold();
            let pool = self.open_pool(held.stream.device);
            return self.allocate_from(&held, size, 1, pool, |block, size, stream| unsafe { tcuda_malloc_cached(block, size, stream) });
        }
        let held = stream.hold();
        match self.random.below(10) {
            0 => self.allocate_batch(&held),
            1 => self.allocate_by_name(&held),
            2 => {
                let alignment = 1 << self.random.below(25);
                self.allocate_one(&held, alignment, |block, size, stream| unsafe {
                    tcuda_malloc_cached_aligned(block, size, alignment, stream)
                });
            }
            _ => self.allocate_one(&held, 1, |block, size, stream| unsafe { tcuda_malloc_cached(block, size, stream) }),
        }
    }

    /// The pool that this thread's requests of a device come from.
    fn open_pool(&self, device: i32) -> Option<Arc<Pool>> {
        self.open.iter().rev().find(|pool| pool.device == device).cloned()
    }

    fn allocate_one(&mut self, held: &Held, alignment: usize, call: impl FnOnce(*mut *mut c_void, usize, tcuda_stream_t) -> Status) {
        let (size, pool) = (self.size(), self.open_pool(held.stream.device));
        self.allocate_from(held, size, alignment, pool, call);
    }

    fn allocate_by_name(&mut self, held: &Held) {
        let mut pools = self.known_pools();
        pools.retain(|pool| pool.device == held.stream.device);
        let Some(pool) = self.random.pick(&pools) else { return };
        let Some(gone) = pool.gone.try_read() else { return };
        if !*gone {
            let (raw, size) = (pool.raw(), self.size());
            self.allocate_from(held, size, 1, Some(pool.clone()), |block, size, stream| unsafe {
                tcuda_mem_pool_malloc(block, size, stream, raw)
            });
        }
    }

    fn allocate_from(
        &mut self,
        held: &Held,
        size: usize,
        alignment: usize,
        pool: Option<Arc<Pool>>,
        call: impl FnOnce(*mut *mut c_void, usize, tcuda_stream_t) -> Status,
    ) {
        let mut block = UNTOUCHED;
        let status = call(&mut block, size, held.raw());
        note!(
            "0x{:x}: {size} bytes aligned to {alignment} on {} of {:?}",
            block as usize,
            name(held.stream),
            pool.as_ref().map(|pool| pool.handle)
        );
        let mut right = Vec::new();
        if pool.as_ref().is_some_and(|pool| pool.is_paused()) {
            right.push(Status::TCUDA_ERROR_INVALID_STATE);
        }
        // A block of a pool that does not split is a segment, which lies where the driver says.
        if alignment > 512 && pool.as_ref().is_some_and(|pool| pool.no_split) {
            right.push(Status::TCUDA_ERROR_INVALID_ARGUMENT);
        }
        if self.is_refused(status, &right) || !self.judge("an allocation", status) {
            assert_eq!(block, UNTOUCHED, "an output that was written by a call that failed");
            return;
        }
        assert!((block as usize).is_multiple_of(alignment), "0x{:x} is not aligned to {alignment}", block as usize);
        self.own(block, size, held.stream, pool);
    }

    fn allocate_batch(&mut self, held: &Held) {
        let pool = self.open_pool(held.stream.device);
        if pool.as_ref().is_some_and(|pool| pool.is_paused()) {
            return;
        }
        let sizes: Vec<usize> = (0..self.random.below(7)).map(|_| self.size()).collect();
        let mut blocks = vec![UNTOUCHED; sizes.len()];
        let status = unsafe { tcuda_malloc_cached_batch(blocks.as_mut_ptr(), sizes.as_ptr(), sizes.len(), held.raw()) };
        note!("{blocks:x?}: {sizes:?} bytes on {}", name(held.stream));
        if !self.judge("tcuda_malloc_cached_batch", status) {
            assert!(blocks.iter().all(|block| *block == UNTOUCHED), "outputs that were written by a call that failed");
            return;
        }
        for (block, size) in blocks.into_iter().zip(sizes) {
            self.own(block, size, held.stream, pool.clone());
        }
    }

    /// What an allocation gave.
    fn own(&mut self, block: *mut c_void, size: usize, home: &Arc<model::Stream>, pool: Option<Arc<Pool>>) {
        assert_eq!(size == 0, block.is_null(), "{size} bytes are 0x{:x}", block as usize);
        if size == 0 {
            return;
        }
        assert!(size < ABSURD, "{size} bytes were to be had");
        self.world.born(block as usize, size, home.device);
        let mut block = Block::new(block as usize, size, home);
        block.pool = pool.filter(|pool| pool.pauses);
        if self.random.chance(90) {
            self.stamp(&mut block, &home.hold());
        }
        self.blocks.push(block);
    }

    /// Writes a value of its own, sometimes behind work that takes a while. The stream may touch it.
    pub fn stamp(&mut self, block: &mut Block, held: &Held) {
        if held.stream.kind != Kind::Captured && self.random.chance(30) {
            self.delay(held);
        }
        let value = self.random.below(256) as u8;
        let (places, length) = block.places();
        let is_unseen = self.random.chance(70);
        let write = |place: usize| match is_unseen {
            true => self.unseen(held, &[(place, WRITES)], length, |runtime, raw| runtime.memset_async(place, value.into(), length, raw)),
            false => did!(self, tcuda_memset_async(place as _, value.into(), length, held.raw())),
        };
        block.value = places.map(write).iter().all(|wrote| *wrote).then_some(value);
    }

    /// Work that only the sanitizer hears of, as that of a program's own kernels; the library's own copies and fills tell it by themselves which
    /// stream uses what.
    pub fn unseen(
        &self,
        held: &Held,
        places: &[(usize, i32)],
        length: usize,
        work: impl FnOnce(&Runtime, RawStream) -> Result<()>,
    ) -> bool {
        let tell = |(place, mode)| did!(self, tcuda_sanitizer_annotate_access(place as _, length, mode, held.raw(), c"unseen".as_ptr()));
        if !places.iter().copied().all(tell) {
            return false;
        }
        let done =
            stream::resolve(held.stream.handle).and_then(Stream::enter_current).and_then(|entered| work(entered.runtime, entered.raw));
        if let Err(error) = &done {
            note!("  {error}");
            let accounted = self.has(Feature::Faults) || self.is_capturing;
            assert!(accounted, "{error}");
        }
        done.is_ok()
    }

    pub fn copy_unseen(&self, held: &Held, to: usize, from: usize, length: usize) -> bool {
        self.unseen(held, &[(to, WRITES), (from, READS)], length, |runtime, raw| runtime.memcpy_async(to, from, length, raw))
    }

    /// Its value, seen in the order of its work: by a copy and a host function, or now.
    pub fn check(&mut self, block: &Block) {
        let (Some(value), false) = (block.value, block.is_away()) else { return };
        let last = block.order.last();
        let held = last.hold();
        if !self.touch(block, &held) {
            return;
        }
        let words = format!("0x{:x} of {} bytes of {}, last on {}", block.address, block.size, name(&block.home), name(held.stream));
        if !self.is_capturing && self.random.chance(25) {
            self.check_now(block, value, &held, &words);
        } else {
            self.check_later(block, value, &held, words);
        }
    }

    pub fn check_later(&mut self, block: &Block, value: u8, held: &Held, words: String) {
        let Some(slot) = self.world.slots.take(value, words) else { return };
        let (places, length) = block.places();
        let is_unseen = self.random.chance(70);
        let copy = |(at, place): (usize, usize)| match is_unseen {
            true => self.copy_unseen(held, slot.part(at) as usize, place, length),
            false => did!(self, tcuda_copy_async(slot.part(at), place as _, length, held.raw())),
        };
        if places.into_iter().enumerate().all(copy) {
            let (function, data) = slot.verify(length);
            did!(self, tcuda_stream_add_host_function(held.raw(), function, data));
        }
    }

    fn check_now(&self, block: &Block, value: u8, held: &Held, words: &str) {
        if !did!(self, tcuda_stream_synchronize(held.raw())) {
            return;
        }
        let (places, length) = block.places();
        for place in places {
            let mut found = [value; 8];
            if did!(self, tcuda_copy(found.as_mut_ptr().cast(), place as _, length, false)) {
                assert_eq!(found, [value; 8], "contents of {words}");
            }
        }
    }

    // ---- uses

    pub fn use_elsewhere(&mut self) {
        let Some(at) = self.pick_block() else { return };
        let mut block = self.blocks.swap_remove(at);
        let stream = self.pick_stream(Some(block.device()));
        let held = stream.hold();
        note!("0x{:x} on {} after {}", block.address, name(held.stream), name(&block.order.last()));
        if self.touch(&block, &held) {
            if self.random.chance(70) {
                self.stamp(&mut block, &held);
            } else {
                self.check(&block);
            }
        }
        if self.random.chance(30) {
            return self.release(block);
        }
        self.blocks.push(block);
    }

    /// From one block to another, of the same device.
    pub fn copy(&mut self) {
        let (Some(from), Some(to)) = (self.pick_block(), self.pick_block()) else { return };
        let [source, target] = [&self.blocks[from], &self.blocks[to]];
        if from == to || source.device() != target.device() || source.size.min(target.size) < 64 {
            return;
        }
        let value = source.value;
        let stream = self.pick_stream(Some(source.device()));
        let held = stream.hold();
        let [source, target] = [&self.blocks[from], &self.blocks[to]];
        note!("0x{:x} to 0x{:x} on {}", source.address, target.address, name(held.stream));
        if self.touch(source, &held) && self.touch(target, &held) {
            let ((sources, length), (targets, _)) = (source.places(), target.places());
            let copy = |at: usize| did!(self, tcuda_copy_async(targets[at] as _, sources[at] as _, length, held.raw()));
            let copied = [0, 1, 2].map(copy).iter().all(|copied| *copied);
            self.blocks[to].value = value.filter(|_| copied);
        }
    }

    /// Work that takes a while, so that the host is ahead.
    pub fn keep_busy(&mut self) {
        let stream = self.pick_stream(None);
        let held = stream.hold();
        self.delay(&held);
    }

    pub fn delay(&mut self, held: &Held) {
        let time = self.random.below(600_000);
        note!("{time} ns of work on {}", name(held.stream));
        did!(self, tcuda_sim_delay(held.raw(), time as u64));
    }

    // ---- other threads

    pub fn shelve(&mut self) {
        let Some(at) = self.pick_block().filter(|at| self.blocks[*at].is_free_to_go()) else { return };
        let mut block = self.blocks.swap_remove(at);
        if !self.makes_public(&mut block) {
            return self.blocks.push(block);
        }
        note!("0x{:x} onto the shelf", block.address);
        self.world.shelf.lock().unwrap().push(Shelved::of(block));
    }

    /// Other threads can go on from where it is: behind a stream that they can name.
    fn makes_public(&self, block: &mut Block) -> bool {
        if block.home.kind != Kind::PerThread && block.order.last().kind != Kind::PerThread {
            return true;
        }
        let default = self.world.default(block.device());
        let passed = self.touch(block, &default.hold()) && self.wait_for(&default.hold(), &block.home);
        if passed && block.home.kind == Kind::PerThread {
            block.home = default.clone();
        }
        passed
    }

    pub fn take(&mut self) {
        let taken = {
            let mut shelf = self.world.shelf.lock().unwrap();
            let at = self.random.below(shelf.len().max(1));
            if shelf.is_empty() { None } else { Some(shelf.swap_remove(at)) }
        };
        if let Some(block) = taken.map(Shelved::taken) {
            note!("0x{:x} from the shelf", block.address);
            self.blocks.push(block);
        }
    }

    // ---- frees

    pub fn free_one(&mut self) {
        if self.random.chance(20) {
            self.take();
        }
        if self.blocks.is_empty() {
            return;
        }
        let at = self.random.below(self.blocks.len());
        if self.may_touch(&self.blocks[at]) {
            let block = self.blocks.swap_remove(at);
            self.release(block);
        }
    }

    pub fn release(&mut self, block: Block) {
        self.freed = Some((block.size, block.home.clone()));
        if self.random.chance(60) {
            self.check(&block);
        }
        match self.random.below(10) {
            0..=1 if !block.is_away() => self.free_on(block),
            2 => self.free_batch(&block),
            _ => self.free(&block),
        }
    }

    /// No fault and no state makes a free fail.
    pub fn free(&self, block: &Block) {
        note!("0x{:x} is freed", block.address);
        self.world.dies(block.address);
        let status = unsafe { tcuda_free_cached(block.address as _) };
        assert_eq!(status, Status::TCUDA_SUCCESS, "tcuda_free_cached of 0x{:x}: {}", block.address, message());
    }

    /// On a stream that is behind all that touched it, and behind its own.
    fn free_on(&mut self, block: Block) {
        let stream = self.pick_stream(Some(block.device()));
        let held = stream.hold();
        if !self.touch(&block, &held) || !self.wait_for(&held, &block.home) {
            return self.free(&block);
        }
        note!("0x{:x} is freed on {}", block.address, name(held.stream));
        self.world.dies(block.address);
        if !did!(self, tcuda_free_cached_on(block.address as _, held.raw())) {
            self.world.born(block.address, block.size, block.device());
            self.blocks.push(block);
        }
    }

    /// Beside a NULL, and sometimes beside what is no block.
    fn free_batch(&mut self, block: &Block) {
        let crooked = self.random.chance(50);
        let blocks = [null_mut(), block.address as *mut c_void, (block.address + 1) as *mut c_void];
        note!("0x{:x} is freed in a batch", block.address);
        self.world.dies(block.address);
        let status = unsafe { tcuda_free_cached_batch(blocks.as_ptr(), if crooked { 3 } else { 2 }) };
        let right = if crooked { Status::TCUDA_ERROR_INVALID_POINTER } else { Status::TCUDA_SUCCESS };
        assert_eq!(status, right, "tcuda_free_cached_batch: {}", message());
    }

    // ---- defects on purpose

    pub fn plant(&mut self) {
        let plant = self.world.plan.plant;
        if !matches!(plant, Some(Plant::Freed | Plant::Lost)) {
            return;
        }
        let Some(at) = self.blocks.iter().position(|block| block.is_free_to_go() && block.home.kind != Kind::Captured) else { return };
        if plant == Some(Plant::Lost) {
            let lost = self.blocks.swap_remove(at);
            return self.world.dies(lost.address);
        }
        let (size, home) = (self.blocks[at].size, self.blocks[at].home.clone());
        let mut again = null_mut();
        unsafe {
            tcuda_free_cached(self.blocks[at].address as _);
            tcuda_malloc_cached(&mut again, size, home.hold().raw());
        }
        if !again.is_null() {
            self.own(again, size, &home, None);
        }
    }
}

pub fn name(stream: &model::Stream) -> String {
    format!("{:?} 0x{:x} of {}", stream.kind, stream.handle, stream.device)
}
