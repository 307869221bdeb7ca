//! Pinned memory: of the cache, and registered memory of the program. The host writes it, streams of every device copy and fill, threads hand it
//! on, and free it while all that still goes on.

use crate::checks::{look_at, verify};
use crate::memory::{ABSURD, READS, UNTOUCHED, WRITES, name};
use crate::model::{Block, HOST, Held, Pin, World};
use crate::plan::{Feature, MIB, Plant};
use crate::program::{Program, did, message, ok};
use crate::trail::note;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use tcuda::base::Status;
use tcuda::capi::copy::*;
use tcuda::capi::pinned::*;
use tcuda::capi::sanitizer::tcuda_sanitizer_annotate_access;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;

const PAGE: usize = 4096;
/// The host in the place of a stream.
const HOSTS: tcuda_stream_t = 0x81 as _;

impl Program {
    pub fn use_pinned(&mut self) {
        match self.random.below(16) {
            0..=3 => self.allocate_pinned(),
            4 => self.register(),
            5..=9 => self.copy_pinned(),
            10 => self.fill_pinned(),
            11 => self.use_by_host(),
            12 => self.hand_on(),
            13 => self.look_at_pinned(),
            _ => {
                let Some(pin) = self.pick_pin() else { return };
                self.release_pin(pin);
            }
        }
    }

    /// One of its own, taken off its list.
    fn pick_pin(&mut self) -> Option<Pin> {
        let at = self.random.below(self.pins.len().max(1));
        (!self.pins.is_empty()).then(|| self.pins.swap_remove(at))
    }

    // ---- where it is from

    fn size_of_pinned(&mut self) -> usize {
        const EDGES: [usize; 10] = [1, 511, 512, 513, PAGE - 1, PAGE, PAGE + 1, MIB, MIB + 1, 2 * MIB + 1];
        match self.random.below(100) {
            0..=1 => 0,
            2 => self.random.pick(&[1 << 50, usize::MAX, !511, 1 << 60]).unwrap(),
            3..=19 => self.random.pick(&EDGES).unwrap(),
            20..=79 => 1 + self.random.below(64 << 10),
            _ => 1 + self.random.below(4 * MIB),
        }
    }

    /// Often what was freed last: that is what would come back too early.
    fn allocate_pinned(&mut self) {
        let again = self.freed_pin.take().filter(|_| self.random.chance(70));
        let size = again.unwrap_or_else(|| self.size_of_pinned());
        let pin = self.new_pin(size);
        self.pins.extend(pin);
    }

    fn new_pin(&mut self, size: usize) -> Option<Pin> {
        let mut address = UNTOUCHED;
        let status = unsafe { tcuda_host_malloc_cached(&mut address, size) };
        note!("pinned 0x{:x}: {size} bytes", address as usize);
        if !self.judge("tcuda_host_malloc_cached", status) {
            assert_eq!(address, UNTOUCHED, "an output that was written by a call that failed");
            return None;
        }
        assert_eq!(size == 0, address.is_null(), "{size} bytes are 0x{:x}", address as usize);
        if size == 0 {
            return None;
        }
        assert!(size < ABSURD, "{size} bytes were to be had");
        let address = address as usize;
        assert!(address.is_multiple_of(if size < PAGE { 512 } else { PAGE }), "pinned 0x{address:x} of {size} bytes is not aligned");
        self.world.born(address, size, HOST);
        let mut pin = Pin { address, size, is_registered: false, last: None, value: None };
        self.write_by_host(&mut pin);
        Some(pin)
    }

    fn register(&mut self) {
        let size = 1 + self.random.below(64 << 10);
        let address = unsafe { alloc(layout(size)) };
        note!("0x{:x} of {size} bytes is registered", address as usize);
        if did!(self, tcuda_host_register(address.cast(), size, 0)) {
            let mut pin = Pin { address: address as usize, size, is_registered: true, last: None, value: None };
            self.write_by_host(&mut pin);
            self.pins.push(pin);
        } else {
            unsafe { dealloc(address, layout(size)) }
        }
    }

    // ---- uses by the host

    /// It is past all that touched it.
    fn write_by_host(&mut self, pin: &mut Pin) {
        let value = self.random.below(256) as u8;
        let (places, length) = pin.places();
        places.into_iter().for_each(|place| {
            self.tell_of_host(place, length, WRITES);
            unsafe { (place as *mut u8).write_bytes(value, length) }
        });
        pin.value = Some(value);
    }

    fn tell_of_host(&self, place: usize, length: usize, mode: i32) {
        ok!(tcuda_sanitizer_annotate_access(place as _, length, mode, HOSTS, c"the host".as_ptr()));
    }

    /// Whether the host may touch it from here on.
    fn wait_for_pin(&self, pin: &mut Pin) -> bool {
        if self.is_capturing && pin.last.is_some() {
            return false;
        }
        let waited = pin.last.as_ref().is_none_or(|last| did!(self, tcuda_stream_synchronize(last.hold().raw())));
        if waited {
            pin.last = None;
        }
        waited
    }

    fn use_by_host(&mut self) {
        let Some(mut pin) = self.pick_pin() else { return };
        note!("the host uses pinned 0x{:x}", pin.address);
        if self.wait_for_pin(&mut pin) {
            self.check_pin(&pin);
            self.write_by_host(&mut pin);
        }
        self.pins.push(pin);
    }

    /// Now, or behind the work of the stream that touched it last.
    fn check_pin(&self, pin: &Pin) {
        let Some(value) = pin.value else { return };
        let (places, length) = pin.places();
        let words = |last| format!("pinned 0x{:x} of {} bytes, last on {last}", pin.address, pin.size);
        let Some(last) = &pin.last else {
            places.into_iter().for_each(|place| self.tell_of_host(place, length, READS));
            return look_at(places, length, value, &words("the host".into()));
        };
        let held = last.hold();
        if self.note_use(pin, &held) {
            let (function, data) = verify(places, length, value, words(name(held.stream)));
            did!(self, tcuda_stream_add_host_function(held.raw(), function, data));
        }
    }

    fn look_at_pinned(&mut self) {
        match self.random.below(3) {
            0 => ok!(tcuda_reset_peak_host_memory_stats()),
            1 => ok!(tcuda_reset_accumulated_host_memory_stats()),
            _ => {
                let Some(at) = self.pins.len().checked_sub(1).map(|most| self.random.below(most + 1)) else { return };
                let (mut is_pinned, last) = (false, self.pins[at].address + self.pins[at].size - 1);
                if did!(self, tcuda_is_pinned(&mut is_pinned, last as _)) {
                    assert!(is_pinned, "0x{last:x} is not pinned");
                }
            }
        }
    }

    // ---- uses by streams

    /// The stream comes behind all that touched it.
    fn follow_pin(&self, pin: &mut Pin, held: &Held) -> bool {
        let follows = pin.last.as_ref().is_none_or(|last| self.wait_for(held, last));
        if follows {
            pin.last = Some(held.stream.clone());
        }
        follows
    }

    /// The library knows that the stream uses it. What the program registered it does not watch.
    fn note_use(&self, pin: &Pin, held: &Held) -> bool {
        let is_known = pin.is_registered || self.world.plan.plant == Some(Plant::Unnoted);
        is_known || did!(self, tcuda_host_record_stream(pin.address as _, held.raw()))
    }

    /// tcuda's copies and fills note their use by themselves.
    fn is_unnoted(&mut self) -> bool {
        self.random.chance(60) || self.world.plan.plant == Some(Plant::Unnoted)
    }

    /// Between it and a block, either way; then it is often freed at once.
    fn copy_pinned(&mut self) {
        let Some(at) = self.pick_block() else { return };
        let Some(mut pin) = self.pick_pin() else { return };
        let stream = self.pick_stream(Some(self.blocks[at].device()));
        let held = stream.hold();
        let mut block = self.blocks.swap_remove(at);
        if pin.size.min(block.size) >= 64 && self.touch(&block, &held) && self.follow_pin(&mut pin, &held) {
            let to_block = self.random.chance(60);
            note!("pinned 0x{:x} {} 0x{:x} on {}", pin.address, if to_block { "to" } else { "from" }, block.address, name(&stream));
            if self.random.chance(60) {
                self.delay(&held);
            }
            let copied = self.copy_with(&pin, &block, to_block, &held);
            if to_block {
                block.value = pin.value.filter(|_| copied);
            } else {
                pin.value = block.value.filter(|_| copied);
            }
            self.check(&block);
        }
        self.blocks.push(block);
        drop(held);
        if self.has(Feature::Ends) && self.random.chance(15) {
            self.end_this(&stream);
        }
        if self.random.chance(60) {
            self.release_pin(pin);
            if self.random.chance(50) {
                self.allocate_pinned();
            }
        } else {
            self.pins.push(pin);
        }
    }

    fn copy_with(&mut self, pin: &Pin, block: &Block, to_block: bool, held: &Held) -> bool {
        let is_unnoted = self.is_unnoted();
        if is_unnoted && !self.note_use(pin, held) {
            return false;
        }
        let ((pinned, length), (places, _)) = (pin.places(), block.places());
        (0..3).all(|at| {
            let (to, from) = if to_block { (places[at], pinned[at]) } else { (pinned[at], places[at]) };
            match is_unnoted {
                true => self.copy_unseen(held, to, from, length),
                false => did!(self, tcuda_copy_async(to as _, from as _, length, held.raw())),
            }
        })
    }

    /// A graph keeps what it uses, be it from before its capture: what is copied from there is there at each replay, though it is freed.
    pub fn feed_captured(&mut self, block: &mut Block, held: &Held) {
        let at = self.pins.iter().position(|pin| !pin.is_registered && pin.last.is_none() && pin.size >= 64);
        let pin = match at {
            _ if block.size < 64 => None,
            Some(at) if self.random.chance(70) => Some(self.pins.swap_remove(at)),
            _ => {
                let size = 64 + self.random.below(2 * PAGE);
                self.new_pin(size)
            }
        };
        let Some(pin) = pin else { return self.stamp(block, held) };
        note!("  from pinned 0x{:x}", pin.address);
        block.value = pin.value.filter(|_| self.copy_with(&pin, block, true, held));
        self.free_pin(pin);
    }

    fn fill_pinned(&mut self) {
        let Some(mut pin) = self.pick_pin() else { return };
        let stream = self.pick_stream(None);
        let held = stream.hold();
        if self.follow_pin(&mut pin, &held) {
            note!("pinned 0x{:x} is filled on {}", pin.address, name(&stream));
            let (value, (places, length)) = (self.random.below(256) as u8, pin.places());
            let is_unnoted = self.is_unnoted();
            let fill = |place: usize| match is_unnoted {
                true => {
                    self.unseen(&held, &[(place, WRITES)], length, |runtime, raw| runtime.memset_async(place, value.into(), length, raw))
                }
                false => did!(self, tcuda_memset_async(place as _, value.into(), length, held.raw())),
            };
            let filled = (!is_unnoted || self.note_use(&pin, &held)) && places.into_iter().all(fill);
            pin.value = filled.then_some(value);
        }
        self.pins.push(pin);
    }

    // ---- where it goes

    /// To another thread, or from one.
    fn hand_on(&mut self) {
        if self.random.chance(50) {
            let taken = {
                let mut shelf = self.world.shelf_of_pins.lock().unwrap();
                let at = self.random.below(shelf.len().max(1));
                (!shelf.is_empty()).then(|| shelf.swap_remove(at))
            };
            return self.pins.extend(taken);
        }
        let Some(mut pin) = self.pick_pin() else { return };
        let default = self.world.default(0);
        if pin.is_registered || pin.last.is_some() && !self.follow_pin(&mut pin, &default.hold()) {
            return self.pins.push(pin);
        }
        note!("pinned 0x{:x} onto the shelf", pin.address);
        self.world.shelf_of_pins.lock().unwrap().push(pin);
    }

    /// While copies still go on, unless it is the program's own.
    pub fn release_pin(&mut self, mut pin: Pin) {
        if pin.is_registered {
            if self.wait_for_pin(&mut pin) && !self.is_capturing && did!(self, tcuda_host_unregister(pin.address as _)) {
                self.check_pin(&pin);
                return unsafe { dealloc(pin.address as _, layout(pin.size)) };
            }
            return self.pins.push(pin);
        }
        if self.random.chance(50) {
            self.check_pin(&pin);
        }
        if self.random.chance(30) {
            self.free_later(pin);
        } else {
            self.free_pin(pin);
        }
    }

    /// No fault and no state makes a free fail.
    fn free_pin(&mut self, pin: Pin) {
        note!("pinned 0x{:x} is freed", pin.address);
        self.freed_pin = Some(pin.size);
        free_now(self.world, pin.address);
    }

    /// By a host function, behind all that uses it, or behind anything.
    fn free_later(&mut self, pin: Pin) {
        let stream = self.pick_stream(None);
        let held = stream.hold();
        note!("pinned 0x{:x} is freed by a host function on {}", pin.address, name(&stream));
        self.freed_pin = Some(pin.size);
        let freeing = Box::into_raw(Box::new((self.world, pin.address)));
        if !did!(self, tcuda_stream_add_host_function(held.raw(), Some(free_in_order), freeing.cast())) {
            self.pins.push(pin);
        }
    }
}

unsafe extern "C" fn free_in_order(freeing: *mut c_void) {
    let (world, address) = *unsafe { Box::from_raw(freeing.cast::<(&World, usize)>()) };
    free_now(world, address);
}

fn free_now(world: &World, address: usize) {
    world.dies(address);
    let status = unsafe { tcuda_host_free_cached(address as _) };
    assert_eq!(status, Status::TCUDA_SUCCESS, "tcuda_host_free_cached of 0x{address:x}: {}", message());
}

/// Of pages that hold nothing else.
fn layout(size: usize) -> Layout {
    Layout::from_size_align(size.next_multiple_of(PAGE), PAGE).unwrap()
}
