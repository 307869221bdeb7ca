//! The simulated device as a whole: memory, order, shuffled order, faults, threads. Each test has a machine of its own.

use super::super::table::*;
use super::copy::Rows;
use super::os::PAGE;
use super::stream::{Work, stream_handle};
use super::*;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

mod graph;
mod ordered;
mod share;

/// A machine with the table's functions that tests need, as values.
#[derive(Clone, Copy)]
struct Machine(&'static Sim);

const D2H: i32 = 2;
const DEFAULT: i32 = 4;
const NON_BLOCKING: u32 = 1;

impl Machine {
    fn new(devices: usize) -> Machine {
        Machine::with(devices, None)
    }

    fn with(devices: usize, seed: Option<u64>) -> Machine {
        let everyone = (1u64 << devices) - 1;
        let peers = (0..devices).map(|device| everyone & !(1 << device)).collect();
        Machine(Sim::new(Options { devices: (0..devices).collect(), memory: 1 << 30, seed, peers, launch_blocking: false }))
    }

    /// As one call of a slot that no test counts.
    fn call<T>(self, body: impl FnOnce(&'static Sim) -> Result<T, Code>) -> Result<T, Code> {
        self.slot(Slot::cudaGetDevice, body)
    }

    fn slot<T>(self, slot: Slot, body: impl FnOnce(&'static Sim) -> Result<T, Code>) -> Result<T, Code> {
        let mut value = None;
        match self.0.call(slot, |sim| body(sim).map(|made| value = Some(made))) {
            0 => Ok(value.unwrap()),
            code => Err(code),
        }
    }

    fn set_device(self, device: usize) {
        self.call(|_| {
            thread::set_device(device);
            Ok(())
        })
        .unwrap();
    }

    fn malloc(self, size: usize) -> Result<Address, Code> {
        self.slot(Slot::cudaMalloc, |sim| sim.memory.malloc(sim.current()?, size))
    }

    fn free(self, address: Address) -> Result<(), Code> {
        self.slot(Slot::cudaFree, |sim| sim.free(address))
    }

    fn pinned<T>(self, count: usize) -> &'static mut [T] {
        let address = self.call(|sim| sim.memory.host_alloc(sim.current()?, count * size_of::<T>(), 0)).unwrap();
        unsafe { std::slice::from_raw_parts_mut(address as *mut T, count) }
    }

    fn stream(self, flags: u32) -> RawStream {
        stream_handle(self.call(|sim| Ok(sim.make_stream(sim.current()?, flags, 0, true))).unwrap())
    }

    fn copy(self, to: Address, from: Address, size: usize, stream: RawStream) -> Result<(), Code> {
        self.call(|sim| sim.copy(Rows::line(to, from, size), DEFAULT, stream, false))
    }

    fn copy_now(self, to: Address, from: Address, size: usize) -> Result<(), Code> {
        self.call(|sim| sim.copy(Rows::line(to, from, size), DEFAULT, 0, true))
    }

    fn fill(self, address: Address, value: i32, size: usize, stream: RawStream) -> Result<(), Code> {
        self.call(|sim| sim.fill(address, value, size, stream, false))
    }

    fn read(self, from: Address) -> Result<u64, Code> {
        let mut value = 0u64;
        self.copy_now(std::ptr::from_mut(&mut value) as Address, from, 8).map(|()| value)
    }

    fn write(self, to: Address, value: u64) -> Result<(), Code> {
        self.copy_now(to, std::ptr::from_ref(&value) as Address, 8)
    }

    fn event(self) -> RawEvent {
        self.call(|sim| sim.create_event(0)).unwrap()
    }

    fn record(self, event: RawEvent, stream: RawStream) -> Result<(), Code> {
        self.call(|sim| sim.record_event(event, stream))
    }

    fn wait(self, stream: RawStream, event: RawEvent) -> Result<(), Code> {
        self.call(|sim| sim.wait_event(stream, event, 0))
    }

    fn query_event(self, event: RawEvent) -> Result<(), Code> {
        self.call(|sim| sim.query_event(event))
    }

    fn synchronize(self) -> Result<(), Code> {
        self.call(|sim| {
            let device = sim.current()?;
            sim.synchronize_device(device);
            sim.devices[device].check()
        })
    }

    fn launch(self, stream: RawStream, spans: Vec<Span>, work: impl Fn() + Send + Sync + 'static) -> Result<(), Code> {
        self.call(|sim| sim.launch(stream, work, spans))
    }

    fn free_bytes(self) -> usize {
        self.call(|sim| Ok(sim.memory.info(sim.current()?).0)).unwrap()
    }

    fn delay(self, stream: RawStream, milliseconds: u64) {
        assert_eq!(self.0.delay(stream, Duration::from_millis(milliseconds)), 0);
    }

    /// Keeps the stream busy until the gate opens.
    fn gate(self, stream: RawStream) -> Gate {
        let open: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        self.host(stream, until_set, std::ptr::from_ref(open) as usize);
        Gate(open)
    }

    fn host(self, stream: RawStream, function: HostFn, data: usize) {
        self.call(|sim| {
            let (id, _) = sim.stream(stream)?;
            sim.enqueue(id, Work::Host { function, data }, Vec::new())
        })
        .unwrap();
    }
}

struct Gate(&'static AtomicBool);

impl Gate {
    fn open(self) {
        self.0.store(true, SeqCst);
    }
}

extern "C" fn until_set(data: *mut c_void) {
    let flag = unsafe { &*(data as *const AtomicBool) };
    while !flag.load(SeqCst) {
        std::thread::yield_now();
    }
}

fn span(address: Address, size: usize, write: bool) -> Span {
    Span { address, size, write }
}

fn on(device: i32) -> MemAllocationProp {
    MemAllocationProp { kind: 1, location: MemLocation { kind: 1, id: device }, ..Default::default() }
}

fn access(device: i32, flags: i32) -> MemAccess {
    MemAccess { location: MemLocation { kind: 1, id: device }, flags }
}

// ---- memory

#[test]
fn memory_keeps_its_bytes_and_its_account() {
    let m = Machine::new(1);
    let total = m.free_bytes();
    assert_eq!(m.malloc(0), Ok(0));
    let (a, b) = (m.malloc(100).unwrap(), m.malloc(3 << 20).unwrap());
    assert_eq!((a % 512, b % PAGE), (0, 0));
    assert_eq!(total - m.free_bytes(), 3 * PAGE);
    m.write(a, 7).unwrap();
    m.copy_now(b + (3 << 20) - 8, a, 8).unwrap();
    assert_eq!(m.read(b + (3 << 20) - 8), Ok(7));
    m.free(a).unwrap();
    m.free(b).unwrap();
    m.free(0).unwrap();
    assert_eq!(m.free_bytes(), total);
    assert_eq!(m.0.live(0..1), Live::default());
}

#[test]
fn what_is_out_of_range_or_freed_is_caught() {
    let m = Machine::new(1);
    let (a, b) = (m.malloc(100).unwrap(), m.malloc(2 * PAGE).unwrap());
    for (to, size) in [(a, 101), (a + 96, 8), (b + 2 * PAGE, 1), (b + 2 * PAGE - 4, 8), (b - 1, 1), (a, usize::MAX)] {
        assert_eq!(m.fill(to, 0, size, 0), Err(1), "{to:#x} {size}");
    }
    assert_eq!(m.free(a + 8), Err(1));
    m.free(a).unwrap();
    m.free(b).unwrap();
    assert_eq!((m.free(a), m.free(b)), (Err(1), Err(1)));
    assert_eq!((m.read(a), m.read(b)), (Err(1), Err(1)));
    let garbage = 0x1234_5000;
    assert_eq!((m.read(garbage), m.read(0), m.free(garbage)), (Err(1), Err(1), Err(1)));
    // None of this harmed the device.
    assert_eq!(m.synchronize(), Ok(()));
}

#[test]
fn a_freed_address_is_not_used_again_soon() {
    let m = Machine::new(1);
    let mut seen = std::collections::HashSet::new();
    for size in [512, 2 << 20, 40 << 20].repeat(60) {
        let address = m.malloc(size).unwrap();
        assert!(seen.insert(address));
        m.free(address).unwrap();
    }
}

#[test]
fn windows_go_round() {
    let m = Machine::new(1);
    m.0.memory.set_limit(0, 1 << 40);
    // Far more addresses than are kept.
    for _ in 0..40 {
        let address = m.malloc(6 << 30).unwrap();
        m.write(address + (6 << 30) - 8, 1).unwrap();
        m.free(address).unwrap();
    }
    assert_eq!(m.0.live(0..1), Live::default());
}

#[test]
fn capacity_is_a_limit_that_can_change() {
    let m = Machine::new(1);
    let a = m.malloc(1 << 30).unwrap();
    assert_eq!(m.free_bytes(), 0);
    assert_eq!((m.malloc(1), m.malloc(usize::MAX)), (Err(2), Err(2)));
    assert_eq!(m.call(|sim| sim.memory.create(PAGE, &on(0), 0)), Err(2));
    m.0.set_memory(0, (1 << 30) + PAGE);
    let b = m.malloc(1).unwrap();
    m.0.set_memory(0, 0);
    assert_eq!(m.free_bytes(), 0);
    assert_eq!(m.malloc(1 << 20), Err(2));
    m.0.set_memory(0, 1 << 30);
    m.free(a).unwrap();
    m.free(b).unwrap();
    assert_eq!(m.free_bytes(), 1 << 30);
}

#[test]
fn pinned_memory_has_attributes_and_rules() {
    let m = Machine::new(2);
    m.set_device(1);
    let block = m.pinned::<u8>(10_000);
    let address = block.as_ptr() as Address;
    let of = |address| m.0.memory.attributes(address);
    assert_eq!((of(address + 9_999).kind, of(address).device, of(address).host_address), (1, 1, address));
    let device = m.malloc(64).unwrap();
    assert_eq!((of(device).kind, of(device).device, of(device).host_address), (2, 1, 0));
    let mut own = vec![0u8; 8192];
    let own_address = own.as_mut_ptr() as Address;
    assert_eq!((of(own_address).kind, of(own_address).device), (0, -2));
    assert_eq!(of(0).kind, 0);
    let register = |address, size| m.call(|sim| sim.memory.host_register(0, address, size, 0));
    register(own_address, 8192).unwrap();
    assert_eq!(of(own_address + 100).kind, 1);
    assert_eq!(register(own_address + 4096, 8192), Err(712));
    assert_eq!(register(address, 1), Err(712));
    assert_eq!((register(0, 8), register(own_address, 0), register(device, 8)), (Err(1), Err(1), Err(1)));
    let give = |address, registered| m.call(|sim| sim.give_host(address, registered));
    assert_eq!((give(own_address, false), give(address, true), give(address + 8, false)), (Err(1), Err(713), Err(1)));
    assert_eq!((give(own_address, true), give(own_address, true)), (Ok(()), Err(713)));
    assert_eq!((give(address, false), give(address, false)), (Ok(()), Err(1)));
    assert_eq!(m.call(|sim| sim.memory.host_alloc(0, 8, 8)), Err(1));
    assert_eq!(m.call(|sim| sim.memory.host_alloc(0, 1 << 60, 0)), Err(2));
    assert_eq!(m.call(|sim| sim.memory.host_alloc(0, 0, 0)), Ok(0));
}

#[test]
fn copies_follow_kinds_and_pitches() {
    let m = Machine::new(1);
    let device = m.malloc(4096).unwrap();
    let host = [5u8; 4096];
    let at = host.as_ptr() as Address;
    let copy = |rows, kind| m.call(|sim| sim.copy(rows, kind, 0, true));
    assert_eq!(copy(Rows::line(device, at, 8), D2H), Err(1));
    assert_eq!(copy(Rows::line(device, at, 8), 3), Err(1));
    assert_eq!((copy(Rows::line(device, at, 8), 5), copy(Rows::line(device, at, 8), -1)), (Err(21), Err(21)));
    assert_eq!(copy(Rows::line(device, at, 8), 1), Ok(()));
    assert_eq!(copy(Rows::line(usize::MAX, 1, 0), 4), Ok(()));
    let rows = Rows { to: device, to_pitch: 64, from: at, from_pitch: 16, width: 8, height: 64 };
    assert_eq!(copy(rows, 4), Ok(()));
    assert_eq!(copy(Rows { width: 17, ..rows }, 4), Err(12));
    assert_eq!(copy(Rows { height: 65, ..rows }, 4), Err(1));
    assert_eq!(copy(Rows { height: usize::MAX, ..rows }, 4), Err(1));
    assert_eq!(m.read(device + 63 * 64), Ok(0x0505_0505_0505_0505));
    assert_eq!(m.read(device + 63 * 64 + 8), Ok(0));
}

// ---- virtual memory

#[test]
fn two_mappings_of_a_handle_share_its_bytes() {
    let m = Machine::new(1);
    let total = m.free_bytes();
    let memory = &m.0.memory;
    m.synchronize().unwrap();
    let space = memory.reserve(1 << 42, 0, 0).unwrap();
    let handle = memory.create(2 * PAGE, &on(0), 0).unwrap();
    let (a, b) = (space + PAGE, space + 100 * PAGE);
    memory.map(a, 2 * PAGE, 0, handle, 0).unwrap();
    memory.map(b, 2 * PAGE, 0, handle, 0).unwrap();
    memory.set_access(a, 2 * PAGE, &[access(0, 3)]).unwrap();
    memory.set_access(b, 2 * PAGE, &[access(0, 3)]).unwrap();
    m.write(a + PAGE, 42).unwrap();
    assert_eq!(m.read(b + PAGE), Ok(42));
    assert_eq!(total - m.free_bytes(), 2 * PAGE);
    memory.release_handle(handle).unwrap();
    assert_eq!(memory.release_handle(handle), Err(1));
    assert_eq!(memory.map(space, 2 * PAGE, 0, handle, 0), Err(1));
    memory.unmap(a, 2 * PAGE).unwrap();
    // The memory lives with the last mapping.
    assert_eq!(m.read(b + PAGE), Ok(42));
    assert_eq!(m.read(a), Err(1));
    assert_eq!(memory.unreserve(space, 1 << 42), Err(1));
    memory.unmap(b, 2 * PAGE).unwrap();
    assert_eq!(m.free_bytes(), total);
    let again = memory.create(2 * PAGE, &on(0), 0).unwrap();
    memory.map(a, 2 * PAGE, 0, again, 0).unwrap();
    memory.set_access(a, 2 * PAGE, &[access(0, 3)]).unwrap();
    assert_eq!(m.read(a + PAGE), Ok(0));
    memory.unmap(a, 2 * PAGE).unwrap();
    memory.release_handle(again).unwrap();
    memory.unreserve(space, 1 << 42).unwrap();
    assert_eq!(m.0.live(0..1), Live::default());
}

#[test]
fn virtual_memory_has_rules() {
    let m = Machine::new(2);
    let memory = &m.0.memory;
    assert_eq!(memory.granularity(&on(1), 0), Ok(PAGE));
    assert_eq!((memory.granularity(&on(2), 0), memory.granularity(&on(0), 2)), (Err(101), Err(1)));
    assert_eq!((memory.reserve(PAGE + 1, 0, 0), memory.reserve(0, 0, 0), memory.reserve(PAGE, 3, 0)), (Err(1), Err(1), Err(1)));
    assert_eq!(memory.reserve(1 << 62, 0, 0), Err(2));
    assert_eq!(memory.create(100, &on(0), 0), Err(1));
    assert_eq!(memory.create(0, &on(0), 0), Err(1));
    assert_eq!(memory.create(PAGE, &MemAllocationProp { handle_types: 8, ..on(0) }, 0), Err(801));
    assert_eq!(memory.create(PAGE, &MemAllocationProp { kind: 0, ..on(0) }, 0), Err(1));
    let aligned = memory.reserve(4 * PAGE, 1 << 30, 0).unwrap();
    assert_eq!(aligned % (1 << 30), 0);
    let space = memory.reserve(4 * PAGE, 0, 0).unwrap();
    let handle = memory.create(2 * PAGE, &on(0), 0).unwrap();
    for (address, size, offset) in
        [(space + 1, 2 * PAGE, 0), (space, PAGE, 0), (space, 2 * PAGE, PAGE), (space + 3 * PAGE, 2 * PAGE, 0), (0, 2 * PAGE, 0)]
    {
        assert_eq!(memory.map(address, size, offset, handle, 0), Err(1), "{address:#x} {size} {offset}");
    }
    memory.map(space + PAGE, 2 * PAGE, 0, handle, 0).unwrap();
    for at in [0, PAGE, 2 * PAGE] {
        assert_eq!(memory.map(space + at, 2 * PAGE, 0, handle, 0), Err(1));
    }
    for (address, size) in [(space, 2 * PAGE), (space + PAGE, PAGE), (space + 2 * PAGE, PAGE), (space + PAGE, 3 * PAGE), (space, 0)] {
        assert_eq!(memory.unmap(address, size), Err(1));
        assert_eq!(memory.set_access(address, size, &[access(0, 3)]), Err(1));
    }
    let whole = |access: &[MemAccess]| memory.set_access(space + PAGE, 2 * PAGE, access);
    assert_eq!((whole(&[]), whole(&[access(0, 2)]), whole(&[access(5, 3)])), (Err(1), Err(1), Err(101)));
    assert_eq!((memory.unreserve(space, PAGE), memory.unreserve(space + PAGE, PAGE)), (Err(1), Err(1)));
    memory.unmap(space + PAGE, 2 * PAGE).unwrap();
    memory.release_handle(handle).unwrap();
    memory.unreserve(space, 4 * PAGE).unwrap();
    assert_eq!(memory.unreserve(space, 4 * PAGE), Err(1));
    memory.unreserve(aligned, 4 * PAGE).unwrap();
    assert_eq!(m.0.live(0..2), Live::default());
}

#[test]
fn without_access_a_mapping_faults() {
    let m = Machine::new(2);
    let memory = &m.0.memory;
    let space = memory.reserve(PAGE, 0, 0).unwrap();
    let handle = memory.create(PAGE, &on(0), 0).unwrap();
    memory.map(space, PAGE, 0, handle, 0).unwrap();
    memory.set_access(space, PAGE, &[access(0, 1), access(1, 3)]).unwrap();
    // Device 0 may read only; device 1 may write, and so may a copy that runs there.
    assert_eq!(m.read(space), Ok(0));
    m.set_device(1);
    assert_eq!(m.fill(space, 1, 8, 0), Ok(()));
    assert_eq!(m.read(space), Ok(0x0101_0101_0101_0101));
    m.set_device(0);
    assert_eq!(m.fill(space, 1, 8, 0), Ok(()));
    assert_eq!(m.synchronize(), Err(700));
    assert_eq!(m.malloc(8), Err(700));
    m.set_device(1);
    assert_eq!(m.synchronize(), Ok(()));
}

#[test]
fn a_mapping_nobody_may_touch_is_out_of_reach() {
    let m = Machine::new(1);
    let memory = &m.0.memory;
    let space = memory.reserve(PAGE, 0, 0).unwrap();
    assert_eq!(m.read(space), Err(1));
    let handle = memory.create(PAGE, &on(0), 0).unwrap();
    memory.map(space, PAGE, 0, handle, 0).unwrap();
    assert_eq!(m.read(space), Err(700));
    assert_eq!(m.synchronize(), Err(700));
}

#[test]
fn tens_of_thousands_of_mappings_are_few_for_the_kernel() {
    let m = Machine::new(1);
    let memory = &m.0.memory;
    m.0.set_memory(0, 128 << 30);
    const COUNT: usize = 40_000;
    let space = memory.reserve(COUNT * PAGE, 0, 0).unwrap();
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let before = maps();
    for at in 0..COUNT {
        let handle = memory.create(PAGE, &on(0), 0).unwrap();
        memory.map(space + at * PAGE, PAGE, 0, handle, 0).unwrap();
        memory.release_handle(handle).unwrap();
        memory.set_access(space + at * PAGE, PAGE, &[access(0, 3)]).unwrap();
    }
    assert!(maps() < before + 1000, "{} mappings more", maps() - before);
    m.write(space + 39_999 * PAGE, 3).unwrap();
    assert_eq!(m.read(space + 39_999 * PAGE), Ok(3));
    m.copy(space, space + 20_000 * PAGE, 3 * PAGE, 0).unwrap();
    memory.unmap(space, COUNT * PAGE).unwrap();
    memory.unreserve(space, COUNT * PAGE).unwrap();
    assert_eq!(m.0.live(0..1), Live::default());
}

// ---- streams and events

#[test]
fn an_idle_stream_is_done_at_once() {
    let m = Machine::new(1);
    let (stream, event) = (m.stream(NON_BLOCKING), m.event());
    let (device, host) = (m.malloc(8).unwrap(), m.pinned::<u64>(2));
    host[0] = 11;
    m.copy(device, host.as_ptr() as Address, 8, stream).unwrap();
    m.copy(host.as_ptr() as Address + 8, device, 8, stream).unwrap();
    m.record(event, stream).unwrap();
    assert_eq!(m.query_event(event), Ok(()));
    assert_eq!(host[1], 11);
}

#[test]
fn a_busy_stream_reads_pinned_memory_late_and_pageable_memory_early() {
    let m = Machine::new(1);
    let (stream, event) = (m.stream(NON_BLOCKING), m.event());
    let device = m.malloc(16).unwrap();
    let pinned = m.pinned::<u64>(1);
    let mut pageable = [1u64];
    pinned[0] = 1;
    let gate = m.gate(stream);
    m.copy(device, pinned.as_ptr() as Address, 8, stream).unwrap();
    m.copy(device + 8, pageable.as_ptr() as Address, 8, stream).unwrap();
    m.record(event, stream).unwrap();
    assert_eq!(m.query_event(event), Err(600));
    pinned[0] = 2;
    pageable[0] = 2;
    gate.open();
    assert_eq!(m.call(|sim| sim.synchronize_event(event)), Ok(()));
    assert_eq!((m.read(device), m.read(device + 8)), (Ok(2), Ok(1)));
    assert_eq!(pageable[0], 2);
}

#[test]
fn the_legacy_default_stream_and_blocking_streams_wait_for_each_other() {
    let m = Machine::new(1);
    let (blocking, free) = (m.stream(0), m.stream(NON_BLOCKING));
    let cell = m.malloc(8).unwrap();
    let gate = m.gate(blocking);
    m.fill(cell, 1, 8, blocking).unwrap();
    m.fill(cell, 2, 8, 0).unwrap(); // after the blocking stream
    m.fill(cell, 3, 8, blocking).unwrap(); // after the legacy stream
    let done = |raw| m.call(|sim| Ok(sim.stream_is_done(sim.stream(raw)?.0)));
    assert_eq!((done(0), done(blocking), done(free)), (Ok(false), Ok(false), Ok(true)));
    let of_thread = m.call(|sim| sim.stream(2)).unwrap();
    assert_eq!(m.call(|sim| sim.stream(2)), Ok(of_thread));
    assert_ne!(std::thread::spawn(move || m.call(|sim| sim.stream(2))).join().unwrap(), Ok(of_thread));
    m.fill(cell, 4, 8, 2).unwrap(); // a thread's own default stream blocks too
    assert_eq!(done(2), Ok(false));
    gate.open();
    m.call(|sim| sim.stream(0).map(|found| sim.synchronize_stream(found.0))).unwrap();
    m.synchronize().unwrap();
    let value = m.read(cell).unwrap();
    assert!(value == 0x0303_0303_0303_0303 || value == 0x0404_0404_0404_0404, "{value:#x}");
    // A non-blocking stream goes its own way.
    m.delay(0, 10_000);
    m.fill(cell, 5, 8, free).unwrap();
    assert_eq!((done(free), done(0)), (Ok(true), Ok(false)));
    m.0.lose(0, 719);
}

#[test]
fn events_of_every_state() {
    let m = Machine::new(2);
    let (stream, event) = (m.stream(NON_BLOCKING), m.event());
    assert_eq!(m.query_event(event), Ok(()));
    assert_eq!(m.wait(stream, event), Ok(()));
    assert_eq!(m.call(|sim| sim.create_event(8)), Err(1));
    assert_eq!(m.call(|sim| sim.create_event(4)), Err(1));
    let untimed = m.call(|sim| sim.create_event(2)).unwrap();
    let elapsed = |a, b| m.call(|sim| sim.elapsed_time(a, b));
    assert_eq!(elapsed(event, event), Err(400));
    m.record(event, stream).unwrap();
    m.record(untimed, stream).unwrap();
    assert_eq!((elapsed(event, event), elapsed(event, untimed)), (Ok(0.0), Err(400)));
    let end = m.event();
    let gate = m.gate(stream);
    m.record(end, stream).unwrap();
    assert_eq!(elapsed(event, end), Err(600));
    m.delay(stream, 1);
    gate.open();
    m.synchronize().unwrap();
    assert!(elapsed(event, end).unwrap() > 0.0);
    assert_eq!(elapsed(end, event), elapsed(event, end).map(|time| -time));
    for garbage in [0, 1, 0xdead_beef, stream, event + 1, event + 8, usize::MAX] {
        assert_eq!((m.record(garbage, stream), m.query_event(garbage), elapsed(garbage, event)), (Err(400), Err(400), Err(400)));
    }
    assert_eq!(m.record(event, event), Err(400));
    m.set_device(1);
    let other = m.event();
    assert_eq!(m.record(other, stream), Err(400));
    m.record(other, 0).unwrap();
    assert_eq!((elapsed(event, other), m.wait(stream, other)), (Err(400), Ok(())));
    m.call(|sim| sim.destroy_event(event)).unwrap();
    assert_eq!((m.query_event(event), m.call(|sim| sim.destroy_event(event))), (Err(400), Err(400)));
}

#[test]
fn a_stream_that_is_destroyed_finishes_its_work() {
    let m = Machine::new(1);
    let (stream, cell) = (m.stream(NON_BLOCKING), m.malloc(8).unwrap());
    let gate = m.gate(stream);
    m.fill(cell, 9, 8, stream).unwrap();
    let id = m.call(|sim| sim.stream(stream)).unwrap().0;
    m.0.retire_stream(id);
    assert_eq!((m.fill(cell, 1, 8, stream), m.call(|sim| sim.stream(stream))), (Err(400), Err(400)));
    assert_eq!(m.0.live(0..1).streams, 0);
    gate.open();
    m.synchronize().unwrap();
    assert_eq!(m.read(cell), Ok(0x0909_0909_0909_0909));
}

static CALLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn ask_cuda(data: *mut c_void) {
    let m = Machine(unsafe { &*(data as *const Sim) });
    assert_eq!(m.malloc(8), Err(800));
    CALLED.fetch_add(1, SeqCst);
}

#[test]
fn host_functions_run_in_order_and_may_not_call() {
    let m = Machine::new(1);
    let stream = m.stream(NON_BLOCKING);
    for _ in 0..3 {
        m.host(stream, ask_cuda, std::ptr::from_ref(m.0) as usize);
    }
    m.synchronize().unwrap();
    assert_eq!(CALLED.load(SeqCst), 3);
    assert!(m.malloc(8).is_ok());
}

#[test]
fn blocked_host_functions_do_not_hold_up_other_streams() {
    let m = Machine::new(1);
    let cell = m.malloc(8).unwrap();
    let gates: Vec<Gate> = (0..12).map(|_| m.gate(m.stream(NON_BLOCKING))).collect();
    let (stream, event) = (m.stream(NON_BLOCKING), m.event());
    m.delay(stream, 1);
    m.fill(cell, 1, 8, stream).unwrap();
    m.record(event, stream).unwrap();
    m.call(|sim| sim.synchronize_event(event)).unwrap();
    gates.into_iter().for_each(Gate::open);
    m.synchronize().unwrap();
}

// ---- shuffled order

/// Writer and reader on two streams; `waits` puts the wait between them. Returns whether the reader saw what was written.
fn hand_over(seed: u64, waits: bool) -> bool {
    let m = Machine::with(1, Some(seed));
    let (writer, reader, event) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING), m.event());
    let (from, to) = (m.malloc(8).unwrap(), m.malloc(8).unwrap());
    let source = m.pinned::<u64>(1);
    source[0] = 77;
    m.copy(from, source.as_ptr() as Address, 8, writer).unwrap();
    m.record(event, writer).unwrap();
    if waits {
        m.wait(reader, event).unwrap();
    }
    m.copy(to, from, 8, reader).unwrap();
    m.synchronize().unwrap();
    m.read(to).unwrap() == 77
}

#[test]
fn a_seed_shows_a_missing_wait() {
    let wrong = (0..40).filter(|seed| !hand_over(*seed, false)).count();
    assert!(wrong > 1, "{wrong} of 40 orders show it");
    assert!((0..40).all(|seed| hand_over(seed, true)));
}

#[test]
fn a_seed_shows_a_host_that_does_not_wait() {
    let early = (0..40).filter(|seed| {
        let m = Machine::with(1, Some(*seed));
        let (stream, device, host) = (m.stream(NON_BLOCKING), m.malloc(8).unwrap(), m.pinned::<u64>(2));
        host[0] = 5;
        m.copy(device, host.as_ptr() as Address, 8, stream).unwrap();
        m.copy(host.as_ptr() as Address + 8, device, 8, stream).unwrap();
        let early = unsafe { std::ptr::read_volatile(&host[1]) } != 5;
        m.synchronize().unwrap();
        assert_eq!(host[1], 5);
        early
    });
    assert!(early.count() > 1);
}

#[test]
fn a_correct_program_is_right_for_every_seed() {
    for seed in 0..12 {
        let m = Machine::with(2, Some(seed));
        let streams: Vec<RawStream> = (0..6).map(|at| m.stream(at % 2)).collect();
        let event = m.event();
        let cell = m.malloc(8).unwrap();
        m.fill(cell, 0, 8, streams[0]).unwrap();
        for turn in 0..40usize {
            let (last, next) = (streams[turn % 6], streams[(turn * 5 + 1) % 6]);
            m.record(event, last).unwrap();
            m.wait(next, event).unwrap();
            let add = move || unsafe { *(cell as *mut u64) += 1 };
            m.launch(next, vec![span(cell, 8, true)], add).unwrap();
            m.record(event, next).unwrap();
            m.wait(streams[(turn + 1) % 6], event).unwrap();
        }
        m.synchronize().unwrap();
        assert_eq!(m.read(cell), Ok(40), "seed {seed}");
    }
}

#[test]
fn work_that_comes_after_free_is_caught() {
    let m = Machine::new(2);
    let stream = m.stream(NON_BLOCKING);
    let host = m.pinned::<u64>(1);
    m.set_device(1);
    let far = m.malloc(8).unwrap();
    m.set_device(0);
    let gate = m.gate(stream);
    // cudaFree waits for the memory's own device only.
    m.copy(host.as_ptr() as Address, far, 8, stream).unwrap();
    m.free(far).unwrap();
    gate.open();
    assert_eq!(m.synchronize(), Err(700));
}

// ---- peers and kernels

#[test]
fn copies_go_between_devices_and_kernels_need_leave() {
    let m = Machine::new(2);
    let near = m.malloc(8).unwrap();
    m.set_device(1);
    let far = m.malloc(8).unwrap();
    m.write(far, 13).unwrap();
    m.set_device(0);
    m.copy_now(near, far, 8).unwrap();
    assert_eq!(m.read(near), Ok(13));
    let peer = |to, from| m.call(|sim| sim.copy_peer(to, from, 8, 0));
    assert_eq!((peer((near, 0), (far, 1)), peer((near, 1), (far, 1)), peer((near, 0), (far, 2))), (Ok(()), Err(1), Err(101)));
    assert_eq!(m.fill(far, 0, 8, 0), Err(1));
    m.0.memory.peers.enable(0, 1).unwrap();
    assert_eq!(m.fill(far, 0, 8, 0), Ok(()));
    m.launch(0, vec![span(far, 8, true), span(near, 8, false)], move || unsafe { *(far as *mut u64) = *(near as *const u64) }).unwrap();
    assert_eq!(m.read(far), Ok(13));
    m.0.memory.peers.disable(0, 1).unwrap();
    m.launch(0, vec![span(far, 8, true)], || panic!("must not run")).unwrap();
    assert_eq!(m.synchronize(), Err(700));
}

#[test]
fn a_kernel_is_for_a_stream_of_the_current_device() {
    let m = Machine::new(2);
    let stream = m.stream(0);
    m.set_device(1);
    assert_eq!(m.launch(stream, Vec::new(), || {}), Err(400));
    // A copy is not so strict.
    let cell = m.malloc(8).unwrap();
    let host = m.pinned::<u64>(1);
    assert_eq!(m.copy(cell, host.as_ptr() as Address, 8, stream), Ok(()));
}

#[test]
fn a_kernel_that_panics_is_a_launch_failure() {
    let m = Machine::new(1);
    m.launch(0, Vec::new(), || panic!("a defect in a twin")).unwrap();
    assert_eq!(m.synchronize(), Err(719));
}

#[test]
fn a_kernel_may_not_touch_pageable_memory() {
    let m = Machine::new(1);
    let own = [0u8; 64];
    m.launch(0, vec![span(own.as_ptr() as Address, 64, false)], || {}).unwrap();
    assert_eq!(m.synchronize(), Err(700));
}

#[test]
fn launch_blocking_reports_where_it_happened() {
    let options = Options { devices: vec![0], memory: 1 << 30, seed: Some(1), peers: vec![0], launch_blocking: true };
    let m = Machine(Sim::new(options));
    let ran = Arc::new(AtomicBool::new(false));
    let set = ran.clone();
    m.launch(0, Vec::new(), move || set.store(true, SeqCst)).unwrap();
    assert!(ran.load(SeqCst));
    assert_eq!(m.launch(0, vec![span(64, 8, true)], || {}), Err(700));
}

// ---- faults

#[test]
fn a_fault_has_no_effect_but_its_code() {
    let m = Machine::new(1);
    m.0.faults().fail_at(Some("cudaMalloc"), 2, 2).unwrap();
    let a = m.malloc(8).unwrap();
    assert_eq!(m.malloc(8), Err(2));
    assert_eq!(thread::last(), 2);
    assert_eq!(m.0.live(0..1).blocks, 1);
    m.0.faults().fail_at(None, 1, 999).unwrap();
    assert_eq!(m.free(a), Err(999));
    assert_eq!(m.free(a), Ok(()));
    assert_eq!((m.0.faults().count(Some("cudaMalloc")), m.0.faults().count(Some("cudaFree"))), (Ok(2), Ok(2)));
}

#[test]
fn a_lost_device_answers_one_code_for_good() {
    let m = Machine::new(2);
    let (stream, event, cell) = (m.stream(NON_BLOCKING), m.event(), m.malloc(8).unwrap());
    let ran = Arc::new(AtomicBool::new(false));
    let set = ran.clone();
    m.delay(stream, 60_000);
    m.launch(stream, Vec::new(), move || set.store(true, SeqCst)).unwrap();
    m.record(event, stream).unwrap();
    m.0.lose(0, 719);
    // Nobody waits for what will never be done, and it is not done.
    assert_eq!(m.synchronize(), Err(719));
    assert!(!ran.load(SeqCst));
    m.0.lose(0, 700);
    assert_eq!((m.malloc(8), m.fill(cell, 0, 8, stream), m.query_event(event)), (Err(719), Err(719), Err(719)));
    assert_eq!(m.free(cell), Err(719));
    assert_eq!(m.0.live(0..1).blocks, 0);
    m.set_device(1);
    assert!(m.malloc(8).is_ok());
}

// ---- threads

#[test]
fn many_threads_share_devices() {
    let m = Machine::new(2);
    let shared = m.stream(NON_BLOCKING);
    let total = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..8usize)
        .map(|number| {
            let total = total.clone();
            std::thread::spawn(move || {
                m.set_device(number % 2);
                let (stream, event, host) = (m.stream(number as u32 / 2 % 2), m.event(), m.pinned::<u64>(2));
                for turn in 0..300u64 {
                    let cell = m.malloc(if turn % 3 == 0 { 4 << 20 } else { 512 }).unwrap();
                    host[0] = turn;
                    m.copy(cell, host.as_ptr() as Address, 8, stream).unwrap();
                    if number % 2 == 0 {
                        let total = total.clone();
                        m.record(event, stream).unwrap();
                        m.wait(shared, event).unwrap();
                        m.launch(shared, vec![span(cell, 8, false)], move || {
                            total.fetch_add(unsafe { *(cell as *const u64) }, SeqCst);
                        })
                        .unwrap();
                        m.record(event, shared).unwrap();
                        m.wait(stream, event).unwrap();
                    }
                    m.copy(host.as_ptr() as Address + 8, cell, 8, stream).unwrap();
                    m.call(|sim| sim.stream(stream).map(|found| sim.synchronize_stream(found.0))).unwrap();
                    assert_eq!(host[1], turn);
                    m.free(cell).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(total.load(SeqCst), 4 * 300 * 299 / 2);
    assert_eq!((m.0.live(0..2).blocks, m.free_bytes()), (0, 1 << 30));
}

#[test]
fn hundreds_of_streams_take_few_threads() {
    let m = Machine::with(1, Some(5));
    let cell = m.malloc(400 * 8).unwrap();
    for at in 0..400 {
        m.fill(cell + at * 8, 1, 8, m.stream(NON_BLOCKING)).unwrap();
    }
    m.synchronize().unwrap();
    for at in 0..400 {
        assert_eq!(m.read(cell + at * 8), Ok(0x0101_0101_0101_0101));
    }
}

// ---- the table

#[test]
fn the_table_answers_null_with_a_code() {
    let runtime = open("a test asks for it").unwrap();
    assert_eq!(runtime.name, "sim");
    assert!(runtime.reason.ends_with("a test asks for it"));
    assert!(runtime.has_virtual_memory() && runtime.has_async_allocations());
    let table = &runtime.table;
    let null = std::ptr::null_mut;
    unsafe {
        assert_eq!((table.cudaMalloc)(null(), 8), 1);
        assert_eq!((table.cudaPeekAtLastError)(), 1);
        assert_eq!(((table.cudaGetLastError)(), (table.cudaGetLastError)()), (1, 0));
        assert_eq!((table.cudaSetDevice)(-1), 101);
        assert_eq!((table.cudaStreamDestroy)(0), 400);
        assert_eq!((table.cuModuleLoadData.unwrap())(null(), std::ptr::null()), 801);
        assert_eq!((table.cudaGetLastError)(), 400);
        let mut device = -1;
        assert_eq!((table.cuCtxPopCurrent_v2.unwrap())(null()), 201);
        assert_eq!((table.cudaGetDevice)(&mut device), 0);
        let mut context = 0;
        assert_eq!((table.cuStreamGetCtx.unwrap())(0, &mut context), 0);
        let mut retained = 0;
        assert_eq!((table.cuDevicePrimaryCtxRetain.unwrap())(&mut retained, 0), 0);
        assert_eq!(retained, context);
        assert_eq!((table.cuCtxPushCurrent_v2.unwrap())(context), 0);
        assert_eq!((table.cuCtxGetDevice.unwrap())(&mut device), 0);
        assert_eq!((table.cuCtxPopCurrent_v2.unwrap())(&mut context), 0);
        assert_eq!((table.cuCtxPushCurrent_v2.unwrap())(context + 1), 201);
        assert_eq!((table.cudaMallocAsync.unwrap()(null(), 8, 0), table.cudaFreeAsync.unwrap()(0, 0)), (1, 1));
        let mut pool = 0;
        let get_pool = table.cudaDeviceGetDefaultMemPool.unwrap();
        assert_eq!((get_pool(null(), 0), get_pool(&mut pool, -1), get_pool(&mut pool, 0)), (1, 101, 0));
        let (get, set) = (table.cudaMemPoolGetAttribute.unwrap(), table.cudaMemPoolSetAttribute.unwrap());
        // An attribute that is an i32 is not read as a u64.
        assert_eq!((get(pool, 4, null().cast()), set(pool, 4, null().cast()), set(pool, 1, (&raw mut device).cast())), (1, 1, 801));
        let set_access = table.cudaMemPoolSetAccess.unwrap();
        assert_eq!((set_access(pool, std::ptr::null(), 1), set_access(pool, &access(0, 3), usize::MAX)), (1, 1));
        assert_eq!((table.cudaGetLastError)(), 1);
        let range = table.cuMemGetAddressRange_v2.unwrap();
        let (mut address, mut base, mut size) = (0, 0, 0);
        assert_eq!((table.cudaMalloc)(&mut address, 100), 0);
        assert_eq!((range(&mut base, null(), address + 5), range(null(), &mut size, address + 5)), (0, 0));
        assert_eq!((base, size, range(null(), null(), address), range(&mut base, &mut size, 8)), (address, 100, 0, 500));
        assert_eq!(((table.cudaFree)(address), (table.cudaGetLastError)()), (0, 0));
        let mut mode = 2;
        assert_eq!((table.cudaThreadExchangeStreamCaptureMode)(&mut mode), 0);
        assert_eq!(mode, 0);
        let mut capturing = 5;
        assert_eq!(((table.cudaStreamIsCapturing)(0, &mut capturing), capturing), (0, 0));
    }
    let properties = runtime.device_properties(0).unwrap();
    assert_eq!((properties.major, properties.minor), (9, 0));
    assert!(properties.name.contains("H100") && properties.name.contains("simulated"));
    assert_eq!(runtime.device_attribute(16, 0).unwrap(), 132);
    assert_eq!(runtime.pci_bus_id(0).unwrap(), "0000:10:00.0");
    assert_eq!(runtime.stream_priority_range().unwrap(), (0, -5));
}
