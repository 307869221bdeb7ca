//! Each call of the backend fails once, in turn, while a program works with memory on two devices and with pinned memory: every failure is
//! a clean status, nothing leaks, and the library works afterwards. With virtual memory and with plain segments, each in a process of its
//! own. Sharing between processes: tests/conformance/ipc_faults.rs.

mod graphs;

use std::ffi::{CStr, c_char, c_void};
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use tcuda::base::{Status, config};
use tcuda::capi::copy::*;
use tcuda::capi::error::*;
use tcuda::capi::event::*;
use tcuda::capi::green::*;
use tcuda::capi::history::*;
use tcuda::capi::init::*;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::plugin::*;
use tcuda::capi::pool::*;
use tcuda::capi::sim::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::{tcuda_event_t, tcuda_stream_t};

const MIB: usize = 1 << 20;
/// What is touched of a block: this test is about calls, not about bytes.
const PAGE: usize = 4096;
/// CUDA's invalid value, out of memory, not supported.
const CODES: [i32; 3] = [1, 2, 801];
/// At most so many calls fail one after the other: what undoes something too.
const IN_A_ROW: u64 = 2;
/// Of so many faults one is seen; the others are mended below. Calls of which nobody hears whether they fail are left out.
const SHARE: u64 = 4;
const QUIET: [&CStr; 2] = [c"cudaThreadExchangeStreamCaptureMode", c"cudaMemPoolGetAttribute"];
const MODE: &str = "TCUDA_FAULT_SWEEP_MODE";

fn in_process(mode: &str) {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", &name, "--nocapture"]).env(MODE, mode).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(&format!("{mode}: swept")), "{mode}:\n{said}");
}

/// The test itself, in the child whose mode is `mode`; else starts that child.
fn in_mode(mode: &str, sweep: fn()) {
    match std::env::var(MODE) {
        Ok(given) if given == mode => {
            config::set("TCUDA_BACKEND", "sim".into());
            config::set("TCUDA_SIM_MEMORY", "64MiB".into());
            sweep();
            println!("{mode}: swept");
        }
        _ => in_process(mode),
    }
}

#[test]
fn virtual_memory() {
    in_mode("virtual_memory", || sweep_all(workload, SHARE));
}

#[test]
fn plain_segments() {
    in_mode("plain_segments", || {
        config::set("TCUDA_ALLOC_CONF", "expandable_segments:False".into());
        sweep_all(workload, SHARE);
    });
}

#[test]
fn pools() {
    // What fails once in a resume, or when something goes back, is tried again.
    in_mode("pools", || sweep_all(work_with_pools, 2 * SHARE));
}

#[test]
fn green_contexts() {
    in_mode("green_contexts", || sweep_all(work_with_green_contexts, SHARE));
}

#[test]
fn graphs() {
    in_mode("graphs", || sweep_all(graphs::captured, SHARE));
}

#[test]
fn graphs_that_are_kept() {
    in_mode("graphs_that_are_kept", || sweep_all(graphs::kept, SHARE));
}

#[test]
fn captures_that_end_by_themselves() {
    in_mode("captures_that_end_by_themselves", || sweep_all(graphs::abandoned, SHARE));
}

#[test]
fn graphed_callables() {
    in_mode("graphed_callables", || sweep_all(graphs::graphed, SHARE));
}

#[test]
fn cuda_malloc_async() {
    in_mode("cuda_malloc_async", || {
        config::set("TCUDA_ALLOC_CONF", "backend:cudaMallocAsync".into());
        sweep_all(workload, SHARE);
    });
}

#[test]
fn pluggable_allocators() {
    in_mode("pluggable_allocators", || sweep_all(work_with_a_plugin, SHARE));
}

#[test]
fn virtual_memory_from_the_start() {
    in_mode("virtual_memory_from_the_start", sweep_the_start);
}

/// With the history of both devices, whose entries have to lead to what is there after each fault.
static RECORDS: AtomicBool = AtomicBool::new(false);

fn record() {
    const ALL: i32 = 2;
    if RECORDS.load(Ordering::Relaxed) {
        ok(tcuda_memory_record_history(ALL, u64::MAX, true, -3));
    }
}

#[test]
fn virtual_memory_recorded() {
    in_mode("virtual_memory_recorded", || {
        RECORDS.store(true, Ordering::Relaxed);
        sweep_all(workload, SHARE);
    });
}

#[test]
fn plain_segments_recorded() {
    in_mode("plain_segments_recorded", || {
        config::set("TCUDA_ALLOC_CONF", "expandable_segments:False".into());
        RECORDS.store(true, Ordering::Relaxed);
        sweep_all(workload, SHARE);
    });
}

#[test]
fn the_end() {
    in_mode("the_end", sweep_the_end);
}

#[test]
fn the_end_of_plain_segments() {
    in_mode("the_end_of_plain_segments", || {
        config::set("TCUDA_ALLOC_CONF", "expandable_segments:False".into());
        sweep_the_end();
    });
}

#[test]
fn memory_that_is_not_given_back_at_once() {
    in_mode("memory_that_is_not_given_back_at_once", || sweep_what_gives_back(workload));
}

#[test]
fn memory_of_pools_that_is_not_given_back_at_once() {
    in_mode("memory_of_pools_that_is_not_given_back_at_once", || sweep_what_gives_back(work_with_pools));
}

#[test]
fn calls_that_fail_every_time() {
    in_mode("calls_that_fail_every_time", sweep_kinds);
}

fn message() -> String {
    unsafe { CStr::from_ptr(tcuda_last_error_message()) }.to_string_lossy().into_owned()
}

/// A program that goes on after failures, and gives everything back.
type Work = fn() -> Failures;

/// What failed: the status, the native code and the message.
#[derive(Default)]
struct Failures(Vec<(Status, i32, String)>);

impl Failures {
    fn note(&mut self, status: Status) -> bool {
        let succeeded = status == Status::TCUDA_SUCCESS;
        if !succeeded {
            self.0.push((status, tcuda_last_error_native(), message()));
        }
        succeeded
    }

    /// What lacks something that failed answers with errors of its own.
    fn note_later(&mut self, status: Status) -> bool {
        match status {
            Status::TCUDA_ERROR_CAPTURE | Status::TCUDA_ERROR_INVALID_STATE if !self.0.is_empty() => false,
            Status::TCUDA_ERROR_INVALID_ARGUMENT if !self.0.is_empty() && tcuda_last_error_native() == 0 => false,
            status => self.note(status),
        }
    }
}

/// What fails goes in the end: no more than so many calls fail in a row.
fn surely(mut did: impl FnMut(Status) -> bool, destroy: impl Fn() -> Status) {
    if !(0..IN_A_ROW).any(|_| did(destroy())) {
        ok(destroy());
    }
}

fn ok(status: Status) {
    assert_eq!(status, Status::TCUDA_SUCCESS, "{}", message());
}

/// A program: two streams of one device and one of another, memory of all sizes, uses on other streams, copies, a request that is too large
/// and one that has to wait for room.
fn workload() -> Failures {
    let mut failures = Failures::default();
    let mut did = |status| failures.note(status);
    let (mut a, mut b, mut far): (tcuda_stream_t, tcuda_stream_t, tcuda_stream_t) = (null_mut(), null_mut(), null_mut());
    let mut event: tcuda_event_t = null_mut();
    unsafe {
        did(tcuda_stream_create(&mut a, 0, 0));
        did(tcuda_stream_create(&mut b, 0, 0));
        did(tcuda_stream_create(&mut far, 1, 0));
        let far_stream = if far.is_null() { 0x101 as tcuda_stream_t } else { far };
        let mut blocks: Vec<(*mut c_void, usize)> = Vec::new();
        let sizes = [(1000, a), (700 << 10, a), (3 * MIB, a), (12 * MIB, a), (600, b), (2 * MIB, b), (9 * MIB, b), (5 * MIB, far_stream)];
        for (size, stream) in sizes {
            let mut block = null_mut();
            if did(tcuda_malloc_cached(&mut block, size, stream)) {
                did(tcuda_memset_async(block, 1, size.min(PAGE), stream));
            }
            blocks.push((block, size));
        }
        let at = |index: usize| blocks[index].0;
        // Uses on other streams, and a copy to the other device.
        for index in 0..4 {
            did(tcuda_record_stream(at(index), b));
        }
        if !at(2).is_null() && !at(5).is_null() {
            did(tcuda_copy_async(at(5), at(2), PAGE, b));
        }
        if !at(2).is_null() && !at(7).is_null() {
            did(tcuda_copy(at(7), at(2), PAGE, false));
        }
        if did(tcuda_stream_record_event(a, &mut event)) {
            did(tcuda_stream_wait_event(b, event));
        }
        for index in [0, 2, 3] {
            ok(tcuda_free_cached(at(index)));
        }
        if tcuda_free_cached_on(at(6), a) != Status::TCUDA_SUCCESS {
            ok(tcuda_free_cached(at(6)));
        }
        // All or none.
        let mut batch = [null_mut(); 3];
        if did(tcuda_malloc_cached_batch(batch.as_mut_ptr(), [5000, 4 * MIB, 100].as_ptr(), 3, b)) {
            ok(tcuda_free_cached_batch(batch.as_ptr(), 3));
        }
        assert!(batch == [null_mut(); 3] || !batch.contains(&null_mut()));
        // More than there is: from the first rung to the last.
        let mut block = null_mut();
        let status = tcuda_malloc_cached(&mut block, 200 * MIB, a);
        assert!(status != Status::TCUDA_SUCCESS && block.is_null());
        if status != Status::TCUDA_ERROR_OUT_OF_MEMORY {
            failures.note(status);
        }
        let mut did = |status| failures.note(status);
        // All the room there is, which others have freed.
        if did(tcuda_malloc_cached(&mut block, 40 * MIB, b)) {
            did(tcuda_memset_async(block, 2, PAGE, b));
        }
        ok(tcuda_free_cached(block));
        // The stream goes before its memory.
        if !a.is_null() {
            surely(&mut did, || tcuda_stream_destroy(a));
        }
        for index in [1, 4, 5, 7] {
            ok(tcuda_free_cached(at(index)));
        }
        pinned(&mut failures, b, far_stream);
        let mut did = |status| failures.note(status);
        let mut free = (0, 0);
        did(tcuda::capi::device::tcuda_mem_get_info(&mut free.0, &mut free.1, 0));
        did(tcuda_empty_cache(0));
        for stream in [b, far] {
            if !stream.is_null() {
                surely(&mut did, || tcuda_stream_destroy(stream));
            }
        }
        surely(&mut did, || tcuda_event_destroy(event));
    }
    failures
}

fn foreign() -> *mut c_void {
    static MEMORY: [AtomicU8; 3 * PAGE] = [const { AtomicU8::new(0) }; 3 * PAGE];
    MEMORY.as_ptr().cast_mut().cast()
}

/// Pinned memory: blocks that streams of both devices use, a limit at which one has to wait, memory that goes back, and foreign memory.
unsafe fn pinned(failures: &mut Failures, near: tcuda_stream_t, far: tcuda_stream_t) {
    let mut did = |status| failures.note(status);
    let mut blocks = [null_mut(); 4];
    unsafe {
        for (block, size) in blocks.iter_mut().zip([100, 3 * MIB, 3 * MIB, 5 * MIB]) {
            did(tcuda_host_malloc_cached(block, size));
        }
        for (block, stream) in [(blocks[0], near), (blocks[1], near), (blocks[2], far)] {
            did(tcuda_host_record_stream(block, stream));
            if !block.is_null() {
                did(tcuda_memset_async(block, 1, 100, stream));
            }
        }
        blocks.into_iter().for_each(|block| ok(tcuda_host_free_cached(block)));
        did(tcuda_host_set_memory_limit(16 * MIB as u64));
        for size in [3 * MIB, 12 * MIB] {
            let mut block = null_mut();
            did(tcuda_host_malloc_cached(&mut block, size));
            ok(tcuda_host_free_cached(block));
        }
        ok(tcuda_host_set_memory_limit(u64::MAX));
        if did(tcuda_host_register(foreign(), 3 * PAGE, 0)) {
            let mut is_pinned = false;
            did(tcuda_is_pinned(&mut is_pinned, foreign()));
            did(tcuda_host_unregister(foreign()));
        }
        did(tcuda_host_empty_cache());
    }
}

/// Two pools: blocks of several sizes and streams, a pause that keeps and one that drops, a trim, an end before the last block's.
fn work_with_pools() -> Failures {
    let mut failures = Failures::default();
    let mut did = |status| failures.note(status);
    let mut stream: tcuda_stream_t = null_mut();
    unsafe {
        did(tcuda_stream_create(&mut stream, 0, 0));
        let on = if stream.is_null() { 0x100 as tcuda_stream_t } else { stream };
        let (mut first, mut second) = (null_mut(), null_mut());
        // Nothing is asked of the driver.
        ok(tcuda_mem_pool_create(&mut first, 0, null()));
        ok(tcuda_mem_pool_create(&mut second, 0, null()));
        let mut blocks: Vec<*mut c_void> = Vec::new();
        for (size, pool) in [(3 * MIB, first), (700, first), (9 * MIB, first), (5 * MIB, second)] {
            let mut block = null_mut();
            did(tcuda_mem_pool_malloc(&mut block, size, on, pool));
            blocks.push(block);
        }
        ok(tcuda_mem_pool_begin(second));
        let mut inside = null_mut();
        did(tcuda_malloc_cached(&mut inside, 2 * MIB, on));
        ok(tcuda_mem_pool_end(second));
        let wrote = !blocks[0].is_null() && did(tcuda_memset_async(blocks[0], 0x5a, PAGE, on));
        ok(tcuda_free_cached(blocks[2]));
        for mode in [TCUDA_PAUSE_KEEP, TCUDA_PAUSE_DROP] {
            did(tcuda_mem_pool_pause(first, &mut 0, mode));
            // What failed once works the second time, with everything as it was.
            surely(&mut did, || tcuda_mem_pool_resume(first));
            let mut byte = 0u8;
            if wrote && mode == TCUDA_PAUSE_KEEP && did(tcuda_copy(std::ptr::from_mut(&mut byte).cast(), blocks[0].cast(), 1, false)) {
                assert_eq!(byte, 0x5a, "a pause loses nothing");
            }
        }
        did(tcuda_mem_pool_trim(first));
        for block in [blocks[0], inside, blocks[1]] {
            ok(tcuda_free_cached(block));
        }
        ok(tcuda_mem_pool_destroy(first));
        ok(tcuda_mem_pool_destroy(second));
        ok(tcuda_free_cached(blocks[3]));
        did(tcuda_empty_cache(-3));
        if !stream.is_null() {
            surely(&mut did, || tcuda_stream_destroy(stream));
        }
    }
    failures
}

/// Two green contexts, the second of the other device: streams in order with the default one, and memory of them.
fn work_with_green_contexts() -> Failures {
    let mut failures = Failures::default();
    let mut did = |status| failures.note(status);
    let mut contexts = [null_mut(); 2];
    unsafe {
        for (device, context) in (0..).zip(&mut contexts) {
            if !did(tcuda_green_context_create(context, 20, device)) {
                continue;
            }
            let mut blocks: Vec<*mut c_void> = Vec::new();
            let mut allocate = |did: &mut dyn FnMut(Status) -> bool, stream| {
                let mut block = null_mut();
                if did(tcuda_malloc_cached(&mut block, 3 * MIB, stream)) {
                    did(tcuda_memset_async(block, 1, PAGE, stream));
                    did(tcuda_record_stream(block, 0x100usize.wrapping_add(device as usize) as tcuda_stream_t));
                    blocks.push(block);
                }
            };
            for _ in 0..2 {
                let mut stream = null_mut();
                if did(tcuda_green_context_stream(&mut stream, *context)) {
                    allocate(&mut did, stream);
                    let default = 0x100usize.wrapping_add(device as usize) as tcuda_stream_t;
                    did(tcuda_stream_wait_stream(stream, default));
                    did(tcuda_stream_wait_stream(default, stream));
                }
            }
            blocks.into_iter().for_each(|block| ok(tcuda_free_cached(block)));
        }
        for context in contexts {
            surely(&mut did, || tcuda_green_context_destroy(context));
        }
    }
    failures
}

unsafe extern "C" fn plugin_alloc(size: usize, _device: i32, _stream: tcuda_stream_t, _data: *mut c_void) -> *mut c_void {
    tcuda::runtime::runtime().and_then(|runtime| runtime.malloc(size)).unwrap_or(0) as *mut c_void
}

unsafe extern "C" fn plugin_free(ptr: *mut c_void, _size: usize, _device: i32, _stream: tcuda_stream_t, _data: *mut c_void) {
    let Ok(runtime) = tcuda::runtime::runtime() else { return };
    let _ = runtime.free(ptr as usize).or_else(|_| runtime.free(ptr as usize));
}

/// The first program again, above an allocator of its own.
fn work_with_a_plugin() -> Failures {
    let mut plugin = null_mut();
    ok(unsafe { tcuda_pluggable_allocator_create(&mut plugin, Some(plugin_alloc), Some(plugin_free), null_mut()) });
    ok(tcuda_change_current_allocator(plugin));
    let failures = workload();
    ok(tcuda_change_current_allocator(null_mut()));
    let _ = tcuda_empty_cache(-3);
    ok(tcuda_sim_clear_faults());
    ok(tcuda_empty_cache(-3));
    ok(tcuda_pluggable_allocator_destroy(plugin));
    failures
}

fn calls() -> u64 {
    calls_of(null())
}

fn calls_of(name: *const c_char) -> u64 {
    let mut count = 0;
    ok(unsafe { tcuda_sim_call_count(&mut count, name) });
    count
}

/// Everything was freed: the caches are in order, and empty they hold nothing.
fn nothing_is_left(when: &str) {
    // What a fault kept from being over with the graphs.
    tcuda::memory::pools::empty(None).expect(when);
    if RECORDS.load(Ordering::Relaxed) {
        let snapshot = tcuda::memory::snapshot(None).unwrap();
        (0..2).for_each(|device| {
            snapshot.check(device);
            snapshot.check_history(device);
        });
    }
    for device in 0..2 {
        tcuda::memory::check(device);
        let stats = tcuda::memory::stats(device);
        assert_eq!(stats.current(tcuda::memory::stats::Family::AllocatedBytes), 0, "{when}");
    }
    ok(tcuda_empty_cache(-3));
    tcuda::memory::pinned::check();
    ok(tcuda_host_empty_cache());
    // What could not be unregistered stays registered.
    unsafe { tcuda_host_unregister(foreign()) };
    tcuda::memory::pinned::check();
    for (key, value) in tcuda::memory::pinned::stats().flat().into_iter().filter(|(key, _)| key.ends_with(".current")) {
        assert_eq!(value, 0, "{key} of pinned memory {when}");
    }
    for device in 0..2 {
        tcuda::memory::check(device);
        let stats = tcuda::memory::stats(device);
        for (family, name) in tcuda::memory::stats::FAMILIES {
            assert_eq!(stats.current(family), 0, "{name} of device {device} {when}");
        }
    }
    let live = live();
    assert_eq!((live.blocks, live.handles, live.mappings, live.reservations), (0, 0, 0, 0), "{when}");
    assert_eq!((live.pinned_blocks, live.registered_blocks), (0, 0), "{when}");
    assert_eq!((live.graphs, live.graph_execs, live.green_contexts), (0, 0, 0), "{when}");
    record();
}

fn live() -> tcuda_sim_live_t {
    let mut live: tcuda_sim_live_t = unsafe { std::mem::zeroed() };
    live.struct_size = size_of::<tcuda_sim_live_t>();
    ok(unsafe { tcuda_sim_live(&mut live, -3) });
    live
}

fn judge(failures: &Failures, code: i32, when: &str) {
    for (status, native, message) in &failures.0 {
        use Status::*;
        // Before CUDA 11 an invalid value was how the driver said that memory is none of its.
        if code == 1 && message.contains("which is not that much memory of the device") {
            continue;
        }
        let known = [
            TCUDA_ERROR_CUDA,
            TCUDA_ERROR_OUT_OF_MEMORY,
            TCUDA_ERROR_NOT_SUPPORTED,
            TCUDA_ERROR_INVALID_ARGUMENT,
            TCUDA_ERROR_OUT_OF_HOST_MEMORY,
        ];
        assert!(known.contains(status), "{when}: {status:?}: {message}");
        assert!(message.len() > 20 && !message.contains("defect"), "{when}: {message}");
        assert!(
            *native == code || matches!(status, TCUDA_ERROR_OUT_OF_MEMORY | TCUDA_ERROR_OUT_OF_HOST_MEMORY),
            "{when}: native code {native}: {message}"
        );
    }
}

/// Streams that lived after the first round.
static STREAMS: AtomicU64 = AtomicU64::new(0);

/// The call and those behind it, so many in a row, fail; how many calls were made, and whether something failed.
fn strike(work: Work, nth: u64, in_a_row: u64, code: i32) -> (u64, bool) {
    let before = calls();
    let when = format!("with code {code} at call {nth}, {in_a_row} in a row");
    let faults: Vec<_> = (nth..nth + in_a_row).map(|nth| (None, nth, code)).collect();
    let (made, failed) = strike_with(work, &faults, &when);
    (made - before, failed)
}

/// What fails: a function (None: any), its how many-th call from now on (0: all), with a code.
type Fault = (Option<&'static CStr>, u64, i32);

/// How many calls there were at the end of the work.
fn strike_with(work: Work, faults: &[Fault], when: &str) -> (u64, bool) {
    for (call, nth, code) in faults {
        ok(unsafe { tcuda_sim_fail_at(call.map_or(null(), CStr::as_ptr), *nth, *code) });
    }
    let code = faults[0].2;
    let failures = work();
    let made = calls();
    ok(tcuda_sim_clear_faults());
    judge(&failures, code, when);
    nothing_is_left(when);
    // Those that were destroyed are used again, some of them at the same time.
    assert!(live().streams <= STREAMS.load(Ordering::Relaxed) + 6, "{} streams {when}", live().streams);
    if code == CODES[0] {
        graphs::are_guarded(when);
    }
    (made, !failures.0.is_empty())
}

fn works(work: Work, when: &str) {
    let failures = work();
    assert!(failures.0.is_empty(), "{when}: {:?}", failures.0);
    nothing_is_left(when);
}

fn finish() {
    ok(tcuda_shutdown());
    let live = live();
    assert_eq!((live.streams, live.events, live.handles, live.mappings, live.blocks, live.reservations), (0, 0, 0, 0, 0, 0));
}

/// At least one fault of `share` has to be seen by the program.
fn sweep_all(work: Work, share: u64) {
    record();
    works(work, "before all faults");
    STREAMS.store(live().streams, Ordering::Relaxed);
    let quiet_calls = || QUIET.map(|name| calls_of(name.as_ptr())).iter().sum::<u64>();
    let quiet_before = quiet_calls();
    work();
    let quiet = quiet_calls() - quiet_before;
    let one = CODES.map(|code| (code, 1));
    for (code, in_a_row) in one.into_iter().chain([(CODES[0], IN_A_ROW)]) {
        let (mut nth, mut struck) = (1, 0);
        loop {
            let (made, failed) = strike(work, nth, in_a_row, code);
            struck += u64::from(failed);
            works(work, &format!("after code {code} at call {nth}, {in_a_row} in a row"));
            if made < nth {
                break;
            }
            nth += 1;
        }
        println!("{nth} calls, {quiet} of them quiet; {struck} failed a function");
        assert!(nth > 100 && struck > (nth - quiet) / share, "code {code}: {struck} of {nth} faults struck, {quiet} calls are quiet");
    }
    finish();
}

/// The same where each round starts with nothing: what is asked once is asked again after a shutdown.
fn sweep_the_start() {
    const FIRST: u64 = 60;
    for code in CODES {
        for nth in 1..=FIRST {
            ok(unsafe { tcuda_init(null()) });
            STREAMS.store(live().streams, Ordering::Relaxed);
            strike(workload, nth, 1, code);
            works(workload, &format!("after code {code} at call {nth} from the start"));
            finish();
        }
    }
}

/// A program that leaves everything behind, and ends tcuda with a call that fails.
fn sweep_the_end() {
    for nth in 1.. {
        let (mut stream, mut event, mut pooled, mut pool) = (null_mut(), null_mut(), null_mut(), null_mut());
        ok(unsafe { tcuda_init(null()) });
        unsafe {
            ok(tcuda_stream_create(&mut stream, 0, 0));
            ok(tcuda_stream_from_pool(&mut pooled, 1, 0));
            ok(tcuda_stream_record_event(stream, &mut event));
            ok(tcuda_mem_pool_create(&mut pool, 0, null()));
            for (size, on) in [(700, stream), (3 * MIB, stream), (12 * MIB, pooled)] {
                let mut block = null_mut();
                ok(tcuda_malloc_cached(&mut block, size, on));
                ok(tcuda_memset_async(block, 1, 512, on));
                ok(tcuda_record_stream(block, if on == stream { 0x100 } else { 0x101 } as tcuda_stream_t));
            }
            ok(tcuda_mem_pool_malloc(&mut null_mut(), MIB, stream, pool));
            let (mut green, mut on) = (null_mut(), null_mut());
            ok(tcuda_green_context_create(&mut green, 1, 1));
            ok(tcuda_green_context_stream(&mut on, green));
            ok(tcuda_malloc_cached(&mut null_mut(), MIB, on));
            ok(tcuda_host_malloc_cached(&mut null_mut(), MIB));
            ok(tcuda_host_register(foreign(), 3 * PAGE, 0));
            graphs::leave(stream);
        }
        let before = calls();
        ok(unsafe { tcuda_sim_fail_at(null(), nth, 2) });
        let status = tcuda_shutdown();
        let made = calls() - before;
        ok(tcuda_sim_clear_faults());
        assert_eq!(status, Status::TCUDA_SUCCESS, "with call {nth} failing: {}", message());
        let left = live();
        assert_eq!((left.blocks, left.handles, left.mappings, left.reservations), (0, 0, 0, 0), "with call {nth} failing");
        assert_eq!((left.streams, left.events, left.graphs, left.graph_execs), (0, 0, 0, 0), "with call {nth} failing");
        assert_eq!((left.pinned_blocks, left.registered_blocks, left.green_contexts), (0, 0, 0), "with call {nth} failing");
        if made < nth {
            assert!(nth > 40, "{nth}");
            break;
        }
    }
}

/// What gives memory back fails twice in a row, so that it is not given back when it should be; and whatever undoes a mapping that was not opened.
fn sweep_what_gives_back(work: Work) {
    works(work, "before all faults");
    STREAMS.store(live().streams, Ordering::Relaxed);
    let mut struck = 0;
    for call in [c"cuMemRelease", c"cuMemUnmap", c"cuMemAddressFree", c"cudaFree", c"cuMemSetAccess"] {
        for nth in 1.. {
            let before = calls_of(call.as_ptr());
            let when = format!("as call {nth} of {} fails", call.to_string_lossy());
            let faults = match call == c"cuMemSetAccess" {
                true => [(Some(call), nth, CODES[0]), (Some(c"cuMemUnmap"), 0, CODES[0])],
                false => [nth, nth + 1].map(|nth| (Some(call), nth, CODES[0])),
            };
            strike_with(work, &faults, &when);
            works(work, &format!("after {when}"));
            if calls_of(call.as_ptr()) - before < 2 * nth {
                break;
            }
            struck += 1;
        }
    }
    assert!(struck > 20, "{struck}");
    finish();
}

/// A whole kind of call fails for some time.
fn sweep_kinds() {
    works(workload, "before all faults");
    let kinds = [
        c"cuMemAddressReserve",
        c"cuMemCreate",
        c"cuMemMap",
        c"cuMemSetAccess",
        c"cudaEventRecord",
        c"cudaEventQuery",
        c"cudaEventSynchronize",
        c"cudaEventCreateWithFlags",
        c"cudaStreamQuery",
        c"cudaStreamWaitEvent",
        c"cudaStreamIsCapturing",
        c"cudaDeviceSynchronize",
        c"cudaMemGetInfo",
        c"cudaHostAlloc",
        c"cudaFreeHost",
        c"cudaHostRegister",
        c"cudaHostUnregister",
        c"cudaPointerGetAttributes",
        c"cudaThreadExchangeStreamCaptureMode",
        c"cudaMemsetAsync",
    ];
    for (kind, code) in kinds.into_iter().flat_map(|kind| CODES.map(|code| (kind, code))) {
        let when = format!("with code {code} from {}", kind.to_string_lossy());
        ok(unsafe { tcuda_sim_fail_at(kind.as_ptr(), 0, code) });
        let failures = workload();
        ok(tcuda_sim_clear_faults());
        judge(&failures, code, &when);
        nothing_is_left(&when);
        works(workload, &format!("after {when}"));
    }
    finish();
}
