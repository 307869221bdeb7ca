//! What the tests are written with.

use std::ffi::{CStr, c_char, c_void};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use tcuda::base::Status;
use tcuda::capi::copy::tcuda_copy_async;
use tcuda::capi::device::{tcuda_device_count, tcuda_set_device};
use tcuda::capi::error::{tcuda_error_info_t, tcuda_last_error, tcuda_last_error_message};
use tcuda::capi::init::{tcuda_backend_name, tcuda_backend_reason, tcuda_init, tcuda_init_options_t};
use tcuda::capi::memory::{
    tcuda_empty_cache, tcuda_free_cached, tcuda_malloc_cached, tcuda_memory_stat_get, tcuda_reset_accumulated_memory_stats,
    tcuda_reset_peak_memory_stats, tcuda_set_memory_limit,
};
use tcuda::capi::stream::{tcuda_stream_add_host_function, tcuda_stream_create, tcuda_stream_destroy, tcuda_stream_synchronize};
use tcuda::capi::structs::tcuda_stream_t;

pub struct Test {
    pub name: &'static str,
    pub needs: &'static [Capability],
    pub run: fn(),
}

/// Builds the list of a file: `tests![plain, on_two: [TwoDevices]]`.
#[macro_export]
macro_rules! tests {
    ($($name:ident $(: [$($need:ident),*])?),* $(,)?) => {
        pub const TESTS: &[$crate::kit::Test] = &[$(
            $crate::kit::Test { name: stringify!($name), needs: &[$($($crate::kit::Capability::$need),*)?], run: $name },
        )*];
    };
}

/// What a backend may lack.
#[derive(Clone, Copy, Debug)]
pub enum Capability {
    /// More than one device.
    TwoDevices,
    /// A driver that tells which devices have a context.
    ContextState,
    /// Faults on demand, and counts of calls: the simulated device.
    Faults,
    /// cudaMallocAsync.
    AsyncAllocations,
    /// Segments that grow in small steps; TCUDA_ALLOC_CONF=expandable_segments:False takes them away.
    VirtualMemory,
    /// A compiler of functions at run time: NVRTC, or the system's for the simulated device.
    Compiler,
    /// One of whole kernels: NVRTC.
    KernelCompiler,
    /// Somebody who tells how a device is doing: NVML, or the simulated machine.
    Telemetry,
    /// CUDA's libraries that compute.
    Cublas,
    Cufft,
    /// NCCL, or sockets between simulated devices.
    Communicators,
    /// A driver of CUDA 12.5 or later.
    GreenContexts,
    /// Hot paths: the stream sanitizer is not on.
    Unwatched,
    /// No patterns in memory (TCUDA_MEMORY_POISON): the host waits for a stream on which memory is used again.
    Unfilled,
}

impl Capability {
    pub fn name(self) -> &'static str {
        match self {
            Capability::TwoDevices => "two-devices",
            Capability::ContextState => "context-state",
            Capability::Faults => "faults",
            Capability::VirtualMemory => "virtual-memory",
            Capability::AsyncAllocations => "async-allocations",
            Capability::Compiler => "run-time-compiler",
            Capability::KernelCompiler => "compiler-of-kernels",
            Capability::Telemetry => "telemetry",
            Capability::Cublas => "cublas",
            Capability::Cufft => "cufft",
            Capability::Communicators => "communicators",
            Capability::GreenContexts => "green-contexts",
            Capability::Unwatched => "unwatched",
            Capability::Unfilled => "unfilled",
        }
    }

    pub fn is_there(&self) -> bool {
        match self {
            Capability::TwoDevices => device_count() >= 2,
            Capability::Unwatched => !tcuda::sanitizer::is_on(),
            Capability::Unfilled => tcuda::base::config::get("TCUDA_MEMORY_POISON").as_deref() != Some("1"),
            Capability::Faults => backend() == "sim",
            Capability::VirtualMemory => {
                tcuda::memory::options::get().expandable_segments
                    && tcuda::runtime::runtime().is_ok_and(|runtime| runtime.has_virtual_memory())
            }
            Capability::AsyncAllocations => tcuda::runtime::runtime()
                .is_ok_and(|runtime| runtime.has_async_allocations() && runtime.device_attribute(115, 0).is_ok_and(|has| has == 1)),
            Capability::Compiler => {
                tcuda::runtime::runtime().is_ok_and(|runtime| tcuda::runtime::compile::Compiler::of(runtime, 0).is_ok())
            }
            Capability::KernelCompiler => {
                tcuda::runtime::runtime().is_ok_and(|runtime| tcuda::runtime::compile::Compiler::of_kernels(runtime, 0).is_ok())
            }
            Capability::Telemetry => {
                tcuda::runtime::runtime().is_ok_and(|runtime| tcuda::runtime::monitor::Monitor::of(runtime, 0).is_ok())
            }
            Capability::Cublas => tcuda::runtime::runtime().is_ok_and(|runtime| tcuda::runtime::libraries::blas(runtime).is_ok()),
            Capability::Cufft => tcuda::runtime::runtime().is_ok_and(|runtime| tcuda::runtime::libraries::fft(runtime).is_ok()),
            Capability::Communicators => tcuda::communicator::version().is_ok(),
            Capability::GreenContexts => tcuda::runtime::runtime().is_ok_and(|runtime| runtime.has_green_contexts()),
            Capability::ContextState => tcuda::runtime::runtime().is_ok_and(|runtime| runtime.has_primary_context(0).is_some()),
        }
    }
}

/// The call succeeds.
#[macro_export]
macro_rules! ok {
    ($call:expr) => {{
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)] // the tests are calls of C functions
        let status = unsafe { $call };
        assert_eq!(status, tcuda::base::Status::TCUDA_SUCCESS, "{}: {}", stringify!($call), $crate::kit::message());
    }};
}

/// The call fails with this status (its name without TCUDA_ERROR_) and leaves a message; the message is the value.
#[macro_export]
macro_rules! fails {
    ($status:ident, $call:expr) => {{
        $crate::kit::forget_error();
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)] // the tests are calls of C functions
        let status = unsafe { $call };
        let expected = concat!("TCUDA_ERROR_", stringify!($status));
        assert_eq!(format!("{status:?}"), expected, "{}: {}", stringify!($call), $crate::kit::message());
        let call = stringify!($call).split('(').next().unwrap_or_default();
        assert_eq!(call.rsplit("::").next().map(str::trim), Some($crate::kit::failed_function().as_str()));
        let message = $crate::kit::message();
        assert!(message.len() > 10, "{} left the message '{message}'", stringify!($call));
        message
    }};
}

/// One output of a call that succeeds: `get!(0, out => tcuda_current_device(out))`.
#[macro_export]
macro_rules! get {
    ($start:expr, $out:ident => $call:expr) => {{
        let mut value = $start;
        let $out = &raw mut value;
        $crate::ok!($call);
        value
    }};
}

/// Puts a known record over the last one, so that an old message does not pass for a new one.
pub fn forget_error() {
    unsafe { tcuda::capi::version::tcuda_runtime_version(std::ptr::null_mut()) };
}

/// The record of the last failure.
pub fn last_error() -> tcuda_error_info_t {
    let mut info: tcuda_error_info_t = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<tcuda_error_info_t>();
    ok!(tcuda_last_error(&mut info));
    info
}

pub fn failed_function() -> String {
    text(last_error().function)
}

pub fn text(pointer: *const c_char) -> String {
    assert!(!pointer.is_null());
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()
}

pub fn message() -> String {
    text(tcuda_last_error_message())
}

pub fn reason() -> String {
    text(tcuda_backend_reason())
}

pub fn backend() -> String {
    text(tcuda_backend_name())
}

pub fn device_count() -> i32 {
    get!(-1, out => tcuda_device_count(out))
}

pub fn device() -> i32 {
    get!(-1, out => tcuda::capi::device::tcuda_current_device(out))
}

/// Starts tcuda with TCUDA_BACKEND, else auto; the backend's name.
pub fn start() -> Result<String, String> {
    // What is compiled here is nobody's to keep, unless a folder for it was made.
    let keeps = std::env::var_os("TCUDA_JIT_CACHE_PATH").is_some();
    tcuda::base::config::set("TCUDA_JIT_CACHE", u8::from(keeps).to_string());
    let auto = tcuda_init_options_t {
        struct_size: size_of::<tcuda_init_options_t>(),
        backend: if std::env::var_os("TCUDA_BACKEND").is_some() { std::ptr::null() } else { c"auto".as_ptr() },
        cudart_path: std::ptr::null(),
        alloc_conf: std::ptr::null(),
    };
    match unsafe { tcuda_init(&auto) } {
        Status::TCUDA_SUCCESS => Ok(backend()),
        _ => Err(message()),
    }
}

pub const NULL: tcuda_stream_t = std::ptr::null_mut();

pub fn handle(value: usize) -> tcuda_stream_t {
    value as tcuda_stream_t
}

pub fn default_of(device: i32) -> tcuda_stream_t {
    handle(0x100 + device as usize)
}

pub const CURRENT_STREAM: usize = 0x80;
/// cudaStreamPerThread
pub const PER_THREAD: usize = 2;

pub fn create_on(device: i32) -> tcuda_stream_t {
    get!(NULL, out => tcuda_stream_create(out, device, 0))
}

/// A stream for the length of a test.
pub struct Own(pub tcuda_stream_t);

impl Own {
    pub fn new() -> Own {
        Own(create_on(-1))
    }

    pub fn on(device: i32) -> Own {
        Own(create_on(device))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        unsafe { tcuda_stream_destroy(self.0) };
    }
}

/// A thread that does the same with each block that it is given, and lives until it is ended: so does its own stream.
pub struct Worker {
    blocks: Sender<usize>,
    done: Receiver<()>,
    thread: JoinHandle<()>,
}

impl Worker {
    pub fn new(work: impl Fn(*mut c_void) + Send + 'static) -> Worker {
        let (blocks, gets) = channel::<usize>();
        let (says, done) = channel();
        let thread = std::thread::spawn(move || {
            for block in gets {
                work(block as *mut c_void);
                says.send(()).unwrap();
            }
        });
        Worker { blocks, done, thread }
    }

    pub fn give(&self, block: *mut c_void) {
        self.blocks.send(block as usize).unwrap();
        self.done.recv().unwrap();
    }

    pub fn end(self) {
        drop(self.blocks);
        self.thread.join().unwrap();
    }
}

/// Work that keeps a stream busy until the gate opens, at the latest when it is dropped.
#[derive(Clone)]
pub struct Gate(Arc<(Mutex<(bool, bool)>, Condvar)>);

impl Gate {
    pub fn on(stream: tcuda_stream_t) -> Gate {
        let gate = Gate(Arc::new((Mutex::new((false, false)), Condvar::new())));
        let data = Box::into_raw(Box::new(gate.clone()));
        ok!(tcuda_stream_add_host_function(stream, Some(wait_at_gate), data.cast()));
        gate
    }

    pub fn open(&self) {
        self.0.0.lock().unwrap().0 = true;
        self.0.1.notify_all();
    }

    pub fn was_passed(&self) -> bool {
        self.0.0.lock().unwrap().1
    }

    /// Opens after a moment, from another thread: for calls that have to wait.
    pub fn open_later(&self) -> std::thread::JoinHandle<()> {
        let gate = self.clone();
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            gate.open();
        })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

unsafe extern "C" fn wait_at_gate(data: *mut c_void) {
    let gate = *unsafe { Box::from_raw(data.cast::<Gate>()) };
    let mut state = gate.0.0.lock().unwrap();
    while !state.0 {
        state = gate.0.1.wait(state).unwrap();
    }
    state.1 = true;
}

/// Appends a number to a list in the order of a stream.
#[derive(Clone, Default)]
pub struct Diary(Arc<Mutex<Vec<i32>>>);

impl Diary {
    pub fn write_on(&self, stream: tcuda_stream_t, entry: i32) {
        let data = Box::into_raw(Box::new((self.clone(), entry)));
        ok!(tcuda_stream_add_host_function(stream, Some(write_entry), data.cast()));
    }

    pub fn read(&self) -> Vec<i32> {
        self.0.lock().unwrap().clone()
    }
}

unsafe extern "C" fn write_entry(data: *mut c_void) {
    let (diary, entry) = *unsafe { Box::from_raw(data.cast::<(Diary, i32)>()) };
    diary.0.lock().unwrap().push(entry);
}

/// Indices that no device has.
pub fn bad_devices() -> [i32; 5] {
    [-2, -3, i32::MIN, device_count(), i32::MAX]
}

pub fn set_device(device: i32) {
    ok!(tcuda_set_device(device));
}

/// A block of the device cache.
pub fn allocate(size: usize, stream: tcuda_stream_t) -> *mut c_void {
    get!(std::ptr::null_mut(), out => tcuda_malloc_cached(out, size, stream))
}

pub fn free(block: *mut c_void) {
    ok!(tcuda_free_cached(block));
}

/// A statistic of a device by its key.
pub fn stat(device: i32, key: &str) -> i64 {
    let key = std::ffi::CString::new(key).unwrap();
    get!(-1, out => tcuda_memory_stat_get(out, device, key.as_ptr()))
}

/// Empties the caches; nothing may be in use, and all statistics start afresh.
pub fn empty_caches() {
    ok!(tcuda_empty_cache(-3));
    for device in 0..device_count() {
        for key in ["allocated_bytes.all.current", "active_bytes.all.current", "reserved_bytes.all.current", "segment.all.current"] {
            assert_eq!(stat(device, key), 0, "{key} of device {device}");
        }
        ok!(tcuda_reset_peak_memory_stats(device));
        ok!(tcuda_reset_accumulated_memory_stats(device));
    }
}

/// Most bytes that a device's cache may hold, for the length of a test.
pub struct Limit(i32);

impl Limit {
    pub fn of(device: i32, bytes: u64) -> Limit {
        ok!(tcuda_set_memory_limit(bytes, device));
        Limit(device)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        tcuda_set_memory_limit(u64::MAX, self.0);
    }
}

/// Bytes of device memory, when all work on the stream is done.
pub fn bytes_of(block: *const c_void, size: usize, stream: tcuda_stream_t) -> Vec<u8> {
    let mut bytes = vec![0u8; size];
    ok!(tcuda_copy_async(bytes.as_mut_ptr().cast(), block, size, stream));
    ok!(tcuda_stream_synchronize(stream));
    bytes
}

/// Tests that do on purpose what the stream sanitizer reports.
const REPORTED: &[(&str, &str)] = &[
    ("stream.an_event_never_recorded_holds_nothing_up", "event-never-recorded"),
    ("event.an_event_never_recorded_is_complete", "event-never-recorded"),
    // Waits past tcuda for a stream of another library.
    ("memory.every_kind_of_stream", "race"),
    // Look at what a capture freed.
    ("graph.memory_comes_from_a_pool_of_its_own", "use-after-free"),
    ("graph.memory_of_a_graph_stays_when_memory_runs_short", "use-after-free"),
    ("graph.streams_that_fork_and_join", "use-after-free"),
];

/// Whether the sanitizer, if it is on, had nothing to report of a test but what the test does on purpose.
pub fn reported(test: &str) -> bool {
    use tcuda::sanitizer::report;
    let found: Vec<_> = (0..report::count()).map_while(report::get).collect();
    report::clear();
    let expected = |kind: &str| REPORTED.contains(&(test, kind));
    let wrong: Vec<_> = found.iter().filter(|report| !expected(report.kind.name())).collect();
    wrong.iter().for_each(|report| println!("{test}: {}", report.text()));
    wrong.is_empty()
}
