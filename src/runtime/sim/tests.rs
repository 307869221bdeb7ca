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
mod memory;
mod ordered;
mod share;
mod streams;

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
        self.call(|sim| sim.record_event(event, stream, 0))
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
fn tiny_work_takes_few_workers() {
    let m = Machine::new(1);
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let streams: Vec<RawStream> = (0..16).map(|_| m.stream(NON_BLOCKING)).collect();
                for turn in 0..5_000 {
                    let stream = streams[turn % 16];
                    // As if something were before it, so that this thread does not do it at once.
                    let work = Work::Task(Box::new(|_| Ok(())));
                    m.call(|sim| sim.enqueue(stream::stream_id(stream).unwrap(), work, Vec::new())).unwrap();
                    most.fetch_max(m.0.scheduler.line().workers as u64, SeqCst);
                }
            });
        }
    });
    m.synchronize().unwrap();
    let most = most.into_inner();
    assert!(most <= 16, "{most} workers");
}

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
