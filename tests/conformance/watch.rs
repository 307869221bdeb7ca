//! Who looks on: trace functions, and the synchronization debug mode.

use crate::init::in_child;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use tcuda::base::Status;
use tcuda::capi::copy::*;
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::error::tcuda_set_log_callback;
use tcuda::capi::event::*;
use tcuda::capi::graph::*;
use tcuda::capi::history::tcuda_memory_annotate;
use tcuda::capi::init::*;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::sanitizer::*;
use tcuda::capi::stream::*;
use tcuda::capi::sync_debug::*;
use tcuda::capi::tensor::tcuda_tensor_empty;
use tcuda::capi::trace::*;

tests![
    all_ten_kinds_are_told_in_order,
    one_kind_is_told_alone_and_what_fails_is_not,
    a_trace_function_may_call_tcuda_and_is_not_told_of_it,
    the_error_of_a_call_is_not_that_of_its_trace_function,
    blocks_of_every_thread_are_told,
    a_registration_ends_for_all_threads,
    calls_from_before_a_registration_are_told_to_nobody: [Unwatched],
    a_tensor_that_ends_by_its_deleter_is_told,
    wrong_traces_are_refused,
    every_call_that_waits_is_told_with_its_name: [Unfilled],
    in_the_mode_error_nothing_waits_and_nothing_happens: [Unfilled],
    an_allocation_that_would_wait_is_refused_and_nothing_is_lost,
    a_thread_has_a_mode_of_its_own,
    without_a_function_the_log_is_told,
    wrong_modes_are_refused,
    the_environment_sets_the_mode,
    the_environment_turns_the_sanitizer_on,
];

const MIB: usize = 1 << 20;

/// A function of Rust that is told, for the length of a test.
struct Traced(u64, #[allow(dead_code)] Box<Function>);
type Function = Box<dyn Fn(&tcuda_trace_t) + Sync>;

impl Traced {
    fn by(kind: i32, function: impl Fn(&tcuda_trace_t) + Sync + 'static) -> Traced {
        let function: Box<Function> = Box::new(Box::new(function));
        let data = &raw const *function as *mut c_void;
        Traced(get!(0, out => tcuda_trace_register(out, kind, Some(call_traced), data)), function)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        tcuda_trace_unregister(self.0);
    }
}

unsafe extern "C" fn call_traced(happened: *const tcuda_trace_t, data: *mut c_void) {
    unsafe { (*data.cast::<Function>())(&*happened) }
}

type Told = (i32, i32, usize, usize, usize, usize);

fn all_ten_kinds_are_told_in_order() {
    static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());
    set_device(0);
    // What every stream's first block makes.
    let warm = Own::on(0);
    free(allocate(600, warm.0));
    let traced = Traced::by(0, |told| {
        assert_eq!(told.struct_size, size_of::<tcuda_trace_t>());
        TOLD.lock().unwrap().push((told.kind, told.device, told.stream as usize, told.event as usize, told.ptr as usize, told.size));
    });
    let stream = create_on(0);
    let (on, other) = (stream as usize, warm.0 as usize);
    let event = get!(null_mut(), out => tcuda_event_create(out, 2));
    ok!(tcuda_event_record(event, stream));
    ok!(tcuda_event_wait(event, warm.0));
    ok!(tcuda_event_wait(event, default_of(0)));
    let block = allocate(600, stream);
    free(block);
    ok!(tcuda_synchronize(0));
    ok!(tcuda_stream_synchronize(stream));
    ok!(tcuda_event_synchronize(event));
    ok!(tcuda_event_destroy(event));
    ok!(tcuda_stream_wait_stream(warm.0, stream));
    ok!(tcuda_stream_destroy(stream));
    drop(traced);
    ok!(tcuda_stream_synchronize(warm.0));
    let told = std::mem::take(&mut *TOLD.lock().unwrap());
    let (e, b) = (event as usize, block as usize);
    let expected = [
        (7, 0, on, 0, 0, 0),
        (1, 0, 0, e, 0, 0),
        (3, 0, on, e, 0, 0),
        (4, 0, other, e, 0, 0),
        (4, 0, 0x100, e, 0, 0),
        (5, 0, on, 0, b, 600),
        (6, 0, 0, 0, b, 0),
        (8, 0, 0, 0, 0, 0),
        (9, 0, on, 0, 0, 0),
        (10, -1, 0, e, 0, 0),
        (2, 0, 0, e, 0, 0),
    ];
    assert_eq!(told[..11], expected);
    // An event of tcuda's own.
    let own = told[11].3;
    assert!(own != 0 && told[11..] == [(3, 0, on, own, 0, 0), (4, 0, other, own, 0, 0)], "{told:?}");
}

fn one_kind_is_told_alone_and_what_fails_is_not() {
    static RECORDS: AtomicUsize = AtomicUsize::new(0);
    static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
    let _records = Traced::by(3, |told| _ = RECORDS.fetch_add(told.kind as usize, Relaxed));
    let _twice = Traced::by(3, |_| _ = RECORDS.fetch_add(100, Relaxed));
    let _allocations = Traced::by(5, |told| _ = ALLOCATIONS.fetch_add(told.size, Relaxed));
    let event = get!(null_mut(), out => tcuda_event_create(out, 2));
    ok!(tcuda_event_record(event, NULL));
    ok!(tcuda_event_wait(event, NULL));
    ok!(tcuda_event_destroy(event));
    fails!(INVALID_HANDLE, tcuda_event_record(event, NULL));
    let mut block = null_mut();
    fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut block, 1 << 61, NULL));
    // A batch is all or none, and what was given back was there.
    let sizes = [1000, 2000];
    let mut blocks = [null_mut(); 2];
    ok!(tcuda_malloc_cached_batch(blocks.as_mut_ptr(), sizes.as_ptr(), 2, NULL));
    ok!(tcuda_free_cached_batch(blocks.as_ptr(), 2));
    assert_eq!((RECORDS.load(Relaxed), ALLOCATIONS.load(Relaxed)), (103, 3000));
    assert!(get!(null_mut(), out => tcuda_malloc_cached(out, 0, NULL)).is_null());
    ok!(tcuda_free_cached(null_mut()));
    assert_eq!(ALLOCATIONS.load(Relaxed), 3000);
}

fn a_trace_function_may_call_tcuda_and_is_not_told_of_it() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static OTHERS: AtomicUsize = AtomicUsize::new(0);
    static ID: AtomicU64 = AtomicU64::new(0);
    let first = Traced::by(0, |told| {
        CALLS.fetch_add(1, Relaxed);
        // What takes every lock there is: none is held here.
        free(allocate(3 * MIB, told.stream));
        ok!(tcuda_empty_cache(0));
        let graph = get!(null_mut(), out => tcuda_graph_create(out, 0));
        ok!(tcuda_graph_destroy(graph));
        ok!(tcuda_synchronize(0));
        let event = get!(null_mut(), out => tcuda_event_create(out, 2));
        ok!(tcuda_event_record(event, default_of(0)));
        ok!(tcuda_event_destroy(event));
        // Its own end, from inside.
        if told.kind == 6 {
            ok!(tcuda_trace_unregister(ID.load(Relaxed)));
        }
    });
    let _second = Traced::by(0, |_| _ = OTHERS.fetch_add(1, Relaxed));
    ID.store(first.0, Relaxed);
    set_device(0);
    let own = Own::on(0);
    let block = allocate(MIB, own.0);
    ok!(tcuda_event_destroy(get!(null_mut(), out => tcuda_stream_record_event(own.0, out))));
    free(block);
    ok!(tcuda_synchronize(0));
    assert_eq!((CALLS.load(Relaxed), OTHERS.load(Relaxed)), (6, 7));
    fails!(INVALID_HANDLE, tcuda_trace_unregister(first.0));
}

fn the_error_of_a_call_is_not_that_of_its_trace_function() {
    let _traced = Traced::by(0, |_| {
        fails!(INVALID_HANDLE, tcuda_stream_synchronize(handle(0x7)));
    });
    let sizes = [1000, 1 << 61];
    let mut blocks = [null_mut(); 2];
    let said = fails!(OUT_OF_MEMORY, tcuda_malloc_cached_batch(blocks.as_mut_ptr(), sizes.as_ptr(), 2, NULL));
    assert!(said.contains("1EB"), "{said}");
    assert_eq!(blocks, [null_mut(); 2]);
}

/// Also those that a thread kept to itself before somebody was told.
fn blocks_of_every_thread_are_told() {
    static LIVE: Mutex<std::collections::BTreeSet<usize>> = Mutex::new(std::collections::BTreeSet::new());
    static COUNTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    let (own, sizes) = (Own::on(0), [512, 2048, MIB, 3 * MIB]);
    let warm: Vec<_> = sizes.iter().map(|size| allocate(*size, own.0)).collect();
    warm.into_iter().for_each(free);
    let allocated = Traced::by(5, |told| {
        assert!(LIVE.lock().unwrap().insert(told.ptr as usize));
        COUNTS[0].fetch_add(1, Relaxed);
    });
    let freed = Traced::by(6, |told| {
        LIVE.lock().unwrap().remove(&(told.ptr as usize));
        COUNTS[1].fetch_add(1, Relaxed);
    });
    sizes.iter().for_each(|size| free(allocate(*size, own.0)));
    assert_eq!([&COUNTS[0], &COUNTS[1]].map(|count| count.load(Relaxed)), [4, 4]);
    assert!(LIVE.lock().unwrap().is_empty());
    drop((allocated, freed));
    static BOTH: AtomicUsize = AtomicUsize::new(0);
    let traced = Traced::by(0, |told| {
        if matches!(told.kind, 5 | 6) {
            BOTH.fetch_add(1, Relaxed);
        }
    });
    let work = || {
        let own = Own::on(0);
        (0..100).for_each(|round| free(allocate(512 << (round % 8), own.0)));
    };
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(work)).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(BOTH.load(Relaxed), 800);
    drop(traced);
    work();
    assert_eq!(BOTH.load(Relaxed), 800);
}

/// On return from the end of a registration no call of the function runs any more.
fn a_registration_ends_for_all_threads() {
    static RUNNING: AtomicI32 = AtomicI32::new(0);
    static ENDED: AtomicI32 = AtomicI32::new(0);
    let traced = Traced::by(9, |_| {
        RUNNING.fetch_add(1, Relaxed);
        std::thread::yield_now();
        assert_eq!(ENDED.load(Relaxed), 0);
        RUNNING.fetch_sub(1, Relaxed);
    });
    let work = || {
        let own = Own::on(0);
        for _ in 0..300 {
            ok!(tcuda_stream_synchronize(own.0));
        }
    };
    let threads: Vec<_> = (0..3).map(|_| std::thread::spawn(work)).collect();
    std::thread::yield_now();
    drop(traced);
    assert_eq!(RUNNING.load(Relaxed), 0);
    ENDED.store(1, Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// What happens in a call that nobody looked on at as it began would be told at the end of a later one, to who is registered by then.
fn calls_from_before_a_registration_are_told_to_nobody() {
    static HEARD: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    let own = Own::on(0);
    let gate = Gate::on(own.0);
    let (stream, again) = (own.0 as usize, std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            ok!(tcuda_stream_synchronize(handle(stream)));
            again.wait();
            // The others have come and gone.
            again.wait();
            ok!(tcuda_stream_synchronize(handle(stream)));
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        let first = Traced::by(9, |_| _ = HEARD[0].fetch_add(1, Relaxed));
        gate.open();
        again.wait();
        drop(first);
        let second = Traced::by(9, |_| _ = HEARD[1].fetch_add(1, Relaxed));
        again.wait();
        waits.join().unwrap();
        drop(second);
    });
    assert_eq!([&HEARD[0], &HEARD[1]].map(|heard| heard.load(Relaxed)), [0, 1]);
}

/// As other libraries end it, with no call of tcuda around that.
fn a_tensor_that_ends_by_its_deleter_is_told() {
    static FREED: AtomicUsize = AtomicUsize::new(0);
    let traced = Traced::by(6, |told| FREED.store(told.ptr as usize, Relaxed));
    let mut tensor = null_mut();
    let dtype = tcuda::base::dtype::DType { code: 2, bits: 32, lanes: 1 };
    ok!(tcuda_tensor_empty(&mut tensor, 0, dtype, 1, [100i64].as_ptr(), NULL));
    let data = unsafe { (*tensor).tensor.data };
    unsafe { (*tensor).deleter.unwrap()(tensor) };
    assert_eq!(FREED.load(Relaxed), data as usize);
    drop(traced);
}

fn wrong_traces_are_refused() {
    let mut id = 77;
    fails!(INVALID_ARGUMENT, tcuda_trace_register(null_mut(), 0, Some(call_traced), null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_trace_register(&mut id, 0, None, null_mut()));
    for kind in [-1, 11, i32::MAX, i32::MIN] {
        let said = fails!(INVALID_ARGUMENT, tcuda_trace_register(&mut id, kind, Some(call_traced), null_mut()));
        assert!(said.contains(&kind.to_string()), "{said}");
    }
    assert_eq!(id, 77);
    for id in [0, u64::MAX] {
        fails!(INVALID_HANDLE, tcuda_trace_unregister(id));
    }
}

// ---- the synchronization debug mode

#[derive(Clone, PartialEq, Debug)]
struct Wait {
    function: String,
    call: String,
    annotation: String,
    refused: bool,
}

static WAITS: Mutex<Vec<Wait>> = Mutex::new(Vec::new());

unsafe extern "C" fn told_of_wait(sync: *const tcuda_sync_t, _: *mut c_void) {
    let sync = unsafe { &*sync };
    assert_eq!((sync.struct_size, sync.refused == 0), (size_of::<tcuda_sync_t>(), sync.nanoseconds > 0));
    let wait = Wait { function: text(sync.function), call: text(sync.call), annotation: text(sync.annotation), refused: sync.refused == 1 };
    WAITS.lock().unwrap().push(wait);
    // No lock is held, and it is not told of its own.
    free(allocate(3 * MIB, default_of(0)));
}

/// A mode of this thread, and the function, for the length of a test.
struct Debug;

impl Debug {
    fn mode(mode: i32) -> Debug {
        ok!(tcuda_sync_debug_set_callback(Some(told_of_wait), null_mut()));
        ok!(tcuda_set_thread_sync_debug_mode(mode));
        WAITS.lock().unwrap().clear();
        Debug
    }

    fn told(&self) -> Vec<Wait> {
        std::mem::take(&mut WAITS.lock().unwrap())
    }
}

impl Drop for Debug {
    fn drop(&mut self) {
        ok!(tcuda_set_thread_sync_debug_mode(-1));
        ok!(tcuda_sync_debug_set_callback(None, null_mut()));
    }
}

fn figures() -> tcuda_sync_stats_t {
    let start = tcuda_sync_stats_t { struct_size: size_of::<tcuda_sync_stats_t>(), ..Default::default() };
    get!(start, out => tcuda_sync_debug_stats(out))
}

/// What the calls below work on.
struct Things {
    stream: Own,
    event: tcuda::capi::structs::tcuda_event_t,
    block: *mut c_void,
    pinned: *mut c_void,
}

impl Things {
    fn new() -> Things {
        let stream = Own::on(0);
        let event = get!(null_mut(), out => tcuda_event_create(out, 2));
        ok!(tcuda_event_record(event, stream.0));
        let pinned = get!(null_mut(), out => tcuda_host_malloc_cached(out, 4096));
        ok!(tcuda_set_stream(stream.0));
        unsafe { pinned.cast::<u8>().write_bytes(3, 4096) };
        Things { block: allocate(4096, stream.0), stream, event, pinned }
    }
}

impl Drop for Things {
    fn drop(&mut self) {
        ok!(tcuda_synchronize(0));
        ok!(tcuda_set_stream(default_of(0)));
        free(self.block);
        ok!(tcuda_host_free_cached(self.pinned));
        ok!(tcuda_event_destroy(self.event));
    }
}

/// The calls that wait because they are asked to: function, what of CUDA.
type Call = (&'static str, &'static str, fn(&Things, &mut [u8; 4096]) -> Status);

const WAITING: &[Call] = &[
    ("tcuda_synchronize", "cudaDeviceSynchronize", |_, _| tcuda_synchronize(0)),
    ("tcuda_stream_synchronize", "cudaStreamSynchronize", |things, _| unsafe { tcuda_stream_synchronize(things.stream.0) }),
    ("tcuda_event_synchronize", "cudaEventSynchronize", |things, _| unsafe { tcuda_event_synchronize(things.event) }),
    ("tcuda_copy", "cudaMemcpyAsync, cudaStreamSynchronize", |things, bytes| unsafe {
        tcuda_copy(bytes.as_mut_ptr().cast(), things.block, 4096, false)
    }),
    ("tcuda_copy", "cudaMemcpyAsync, cudaStreamSynchronize", |things, bytes| unsafe {
        tcuda_copy(bytes.as_mut_ptr().cast(), things.block, 4096, true)
    }),
    ("tcuda_copy", "cudaMemcpyAsync, cudaStreamSynchronize", |things, _| unsafe { tcuda_copy(things.pinned, things.block, 4096, false) }),
    ("tcuda_copy", "cudaMemcpyAsync, cudaStreamSynchronize", |things, _| unsafe { tcuda_copy(things.block, things.pinned, 4096, false) }),
    ("tcuda_copy", "cudaMemcpyAsync of pageable memory", |things, bytes| unsafe {
        tcuda_copy(things.block, bytes.as_ptr().cast(), 4096, true)
    }),
    ("tcuda_copy_async", "cudaMemcpyAsync of pageable memory", |things, bytes| unsafe {
        tcuda_copy_async(bytes.as_mut_ptr().cast(), things.block, 4096, things.stream.0)
    }),
];

/// Those that do not.
const QUIET: &[fn(&Things) -> Status] = &[
    |things| unsafe { tcuda_copy(things.pinned, things.block, 4096, true) },
    |things| unsafe { tcuda_copy_async(things.block, things.pinned, 4096, things.stream.0) },
    |things| unsafe { tcuda_memset_async(things.block, 1, 4096, things.stream.0) },
    |things| unsafe { tcuda_event_record(things.event, things.stream.0) },
    |things| unsafe { tcuda_event_wait(things.event, default_of(0)) },
    |things| unsafe { tcuda_stream_query(things.stream.0, &mut false) },
    |things| unsafe { tcuda_event_query(things.event, &mut false) },
    |things| unsafe { tcuda_stream_wait_stream(things.stream.0, default_of(0)) },
];

fn every_call_that_waits_is_told_with_its_name() {
    let things = Things::new();
    let mut bytes = [0; 4096];
    let debug = Debug::mode(1);
    ok!(tcuda_memory_annotate(c"a step".as_ptr()));
    let before = figures();
    for (function, call, run) in WAITING {
        ok!(run(&things, &mut bytes));
        let wait = Wait { function: (*function).into(), call: (*call).into(), annotation: "a step".into(), refused: false };
        assert_eq!(debug.told(), [wait]);
    }
    ok!(tcuda_memory_annotate(null()));
    let after = figures();
    assert_eq!((after.num_waits - before.num_waits, after.num_refused), (WAITING.len() as u64, before.num_refused));
    assert!(after.nanoseconds > before.nanoseconds && after.longest_nanoseconds > 0);
    for run in QUIET {
        ok!(run(&things));
    }
    assert_eq!(debug.told(), []);
    // What makes the driver wait.
    let calls = |debug: &Debug| debug.told().into_iter().map(|wait| (wait.function, wait.call)).collect::<Vec<_>>();
    let said = |function: &str, call: &str| (function.to_owned(), call.to_owned());
    let mut page = vec![0u8; 1 << 16];
    ok!(tcuda_host_register(page.as_mut_ptr().cast(), page.len(), 0));
    ok!(tcuda_host_unregister(page.as_mut_ptr().cast()));
    let registered = [said("tcuda_host_register", "cudaHostRegister"), said("tcuda_host_unregister", "cudaHostUnregister")];
    assert_eq!(calls(&debug), registered);
    let large = get!(null_mut(), out => tcuda_host_malloc_cached(out, 32 * MIB));
    ok!(tcuda_host_free_cached(large));
    ok!(tcuda_host_empty_cache());
    let told = calls(&debug);
    assert!(told.contains(&said("tcuda_host_malloc_cached", "cudaHostAlloc")), "{told:?}");
    assert!(told.contains(&said("tcuda_host_empty_cache", "cudaFreeHost")), "{told:?}");
    drop(debug);
    for (_, _, run) in WAITING {
        ok!(run(&things, &mut bytes));
    }
    assert_eq!(WAITS.lock().unwrap().len(), 0);
}

fn in_the_mode_error_nothing_waits_and_nothing_happens() {
    let things = Things::new();
    ok!(tcuda_memset_async(things.block, 7, 4096, things.stream.0));
    let mut bytes = [1; 4096];
    let debug = Debug::mode(2);
    let before = figures();
    // Would wait for ever.
    let gate = Gate::on(things.stream.0);
    for (function, call, run) in WAITING {
        forget_error();
        assert_eq!(run(&things, &mut bytes), Status::TCUDA_ERROR_INVALID_STATE, "{function}: {}", message());
        assert_eq!(failed_function(), *function);
        let said = message();
        assert!(said.starts_with("called a synchronizing CUDA operation") && said.contains(function) && said.contains(call), "{said}");
        assert_eq!(debug.told(), [Wait { function: (*function).into(), call: (*call).into(), annotation: "".into(), refused: true }]);
    }
    assert_eq!(figures().num_refused - before.num_refused, WAITING.len() as u64);
    // A copy that was refused was not enqueued.
    let pinned = unsafe { std::slice::from_raw_parts(things.pinned.cast::<u8>(), 4096) };
    assert!(pinned.iter().all(|byte| *byte == 3) && !gate.was_passed());
    gate.open();
    // What gives memory back is told, not refused.
    let mut page = vec![0u8; 1 << 16];
    ok!(tcuda_host_register(page.as_mut_ptr().cast(), page.len(), 0));
    ok!(tcuda_host_unregister(page.as_mut_ptr().cast()));
    assert_eq!(debug.told().iter().map(|wait| wait.refused).collect::<Vec<_>>(), [false, false]);
    drop(debug);
    ok!(tcuda_stream_synchronize(things.stream.0));
    assert_eq!((bytes[0], bytes_of(things.block, 4096, things.stream.0)), (1, vec![7; 4096]));
}

fn an_allocation_that_would_wait_is_refused_and_nothing_is_lost() {
    empty_caches();
    ok!(tcuda_set_alloc_conf(c"stream_wait:never".as_ptr()));
    let (own, other) = (Own::on(0), Own::on(0));
    let limit = Limit::of(0, 64 * MIB as u64);
    let gate = Gate::on(other.0);
    free(allocate(40 * MIB, other.0));
    let debug = Debug::mode(2);
    let mut block = null_mut();
    forget_error();
    let status = unsafe { tcuda_malloc_cached(&mut block, 40 * MIB, own.0) };
    assert!(status != Status::TCUDA_SUCCESS && block.is_null(), "{status:?}");
    assert!(debug.told().iter().any(|wait| wait.refused && wait.function == "tcuda_malloc_cached"));
    assert!(!gate.was_passed());
    drop(debug);
    let opener = gate.open_later();
    free(allocate(40 * MIB, own.0));
    opener.join().unwrap();
    drop(limit);
    ok!(tcuda_set_alloc_conf(null()));
    tcuda::memory::check(0);
    empty_caches();
}

fn a_thread_has_a_mode_of_its_own() {
    let own = Own::on(0);
    assert_eq!(get!(7, out => tcuda_get_sync_debug_mode(out)), 0);
    assert_eq!(get!(7, out => tcuda_get_thread_sync_debug_mode(out)), -1);
    let debug = Debug::mode(2);
    fails!(INVALID_STATE, tcuda_stream_synchronize(own.0));
    let stream = own.0 as usize;
    std::thread::spawn(move || {
        assert_eq!(get!(7, out => tcuda_get_thread_sync_debug_mode(out)), -1);
        ok!(tcuda_stream_synchronize(handle(stream)));
    })
    .join()
    .unwrap();
    // That of the process holds for the others; this thread's goes before it.
    ok!(tcuda_set_sync_debug_mode(2));
    ok!(tcuda_set_thread_sync_debug_mode(0));
    ok!(tcuda_stream_synchronize(own.0));
    std::thread::spawn(move || {
        fails!(INVALID_STATE, tcuda_stream_synchronize(handle(stream)));
    })
    .join()
    .unwrap();
    assert_eq!(get!(7, out => tcuda_get_sync_debug_mode(out)), 2);
    ok!(tcuda_set_sync_debug_mode(0));
    drop(debug);
    let before = figures();
    ok!(tcuda_stream_synchronize(own.0));
    assert_eq!(figures().num_waits, before.num_waits);
}

static LINES: Mutex<Vec<(i32, String)>> = Mutex::new(Vec::new());

unsafe extern "C" fn told_of_line(level: i32, line: *const std::ffi::c_char, _: *mut c_void) {
    LINES.lock().unwrap().push((level, text(line)));
    // No lock is held.
    free(allocate(3 * MIB, default_of(0)));
}

fn without_a_function_the_log_is_told() {
    let own = Own::on(0);
    ok!(tcuda_set_log_callback(Some(told_of_line), null_mut()));
    ok!(tcuda_set_thread_sync_debug_mode(1));
    ok!(tcuda_memory_annotate(c"the last step".as_ptr()));
    ok!(tcuda_stream_synchronize(own.0));
    ok!(tcuda_memory_annotate(null()));
    ok!(tcuda_set_thread_sync_debug_mode(-1));
    ok!(tcuda_set_log_callback(None, null_mut()));
    let lines = std::mem::take(&mut *LINES.lock().unwrap());
    let [(2, line)] = &lines[..] else { panic!("{lines:?}") };
    for part in ["called a synchronizing CUDA operation", "tcuda_stream_synchronize", "(cudaStreamSynchronize)", " ms", "'the last step'"] {
        assert!(line.contains(part), "{line}");
    }
}

fn wrong_modes_are_refused() {
    for mode in [-2, 3, i32::MAX] {
        fails!(INVALID_ARGUMENT, tcuda_set_sync_debug_mode(mode));
        fails!(INVALID_ARGUMENT, tcuda_set_thread_sync_debug_mode(mode));
    }
    fails!(INVALID_ARGUMENT, tcuda_set_sync_debug_mode(-1));
    fails!(INVALID_ARGUMENT, tcuda_get_sync_debug_mode(null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_get_thread_sync_debug_mode(null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_sync_debug_stats(null_mut()));
    assert_eq!(get!(7, out => tcuda_get_sync_debug_mode(out)), 0);
    // Threads that are not told leave the figures alone; nobody else waits now.
    ok!(tcuda_sync_debug_reset_stats());
    let figures = figures();
    assert_eq!((figures.num_waits, figures.num_refused, figures.nanoseconds), (0, 0, 0));
}

fn the_environment_sets_the_mode() {
    in_child("sync_debug", &[("TCUDA_SYNC_DEBUG", "error")]);
    in_child("sync_debug_wrong", &[("TCUDA_SYNC_DEBUG", "loud"), ("TCUDA_LOG", "debug"), ("TCUDA_JIT_CACHE", "off")]);
    in_child("sync_debug_number", &[("TCUDA_SYNC_DEBUG", "1"), ("TCUDA_LOG", "error"), ("TCUDA_JIT_CACHE", "1")]);
}

pub fn scene_sync_debug() {
    let own = Own::on(0);
    fails!(INVALID_STATE, tcuda_stream_synchronize(own.0));
    assert_eq!(get!(7, out => tcuda_get_sync_debug_mode(out)), 2);
    let block = allocate(MIB, own.0);
    let gate = Gate::on(own.0);
    gate.open();
    free(block);
    drop(own);
    // Everything ends in this mode too.
    ok!(tcuda_shutdown());
    assert!(gate.was_passed());
}

pub fn scene_sync_debug_wrong() {
    ok!(tcuda_set_log_callback(Some(told_of_line), null_mut()));
    ok!(tcuda_init(null()));
    ok!(tcuda_stream_synchronize(default_of(0)));
    assert_eq!(get!(7, out => tcuda_get_sync_debug_mode(out)), 0);
    let told = [
        "TCUDA_LOG is 'debug'; it can be error, warning or info. It counts as warning.",
        "TCUDA_JIT_CACHE is 'off'; it can be 0 or 1. It counts as 1.",
        "TCUDA_SYNC_DEBUG is 'loud'; it can be default, warn or error (0, 1 or 2). Nothing is watched.",
    ];
    assert_eq!(*LINES.lock().unwrap(), told.map(|line| (2, line.to_owned())));
}

pub fn scene_sync_debug_number() {
    ok!(tcuda_set_log_callback(Some(told_of_line), null_mut()));
    assert_eq!(get!(7, out => tcuda_get_sync_debug_mode(out)), 1);
    assert_eq!(*LINES.lock().unwrap(), []);
}

fn the_environment_turns_the_sanitizer_on() {
    in_child("sanitizer", &[("TCUDA_SANITIZER", "1")]);
    in_child("sanitizer_off", &[("TCUDA_SANITIZER", "0")]);
    in_child("sanitizer_off", &[("TCUDA_SANITIZER", "yes")]);
}

/// A copy that does not wait for what it reads.
fn race() -> u64 {
    let (one, two) = (Own::on(0), Own::on(0));
    let block = allocate(4096, one.0);
    let other = allocate(4096, two.0);
    ok!(tcuda_memset_async(block, 1, 4096, one.0));
    ok!(tcuda_copy_async(other, block, 4096, two.0));
    ok!(tcuda_synchronize(0));
    free(block);
    free(other);
    get!(77, out => tcuda_sanitizer_report_count(out))
}

pub fn scene_sanitizer() {
    ok!(tcuda_set_log_callback(Some(told_of_line), null_mut()));
    assert_eq!(race(), 1);
    let lines = std::mem::take(&mut *LINES.lock().unwrap());
    let [(1, line)] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.starts_with("Race") && line.contains("tcuda_copy_async") && line.contains("tcuda_memset_async"), "{line}");
    // Over an end and a start too: what was there before is gone.
    ok!(tcuda_shutdown());
    ok!(tcuda_init(null()));
    assert_eq!(race(), 2);
    assert!(get!(false, out => tcuda_sanitizer_is_enabled(out)));
    ok!(tcuda_sanitizer_disable());
    assert!(!get!(true, out => tcuda_sanitizer_is_enabled(out)));
    assert_eq!(race(), 2);
    ok!(tcuda_sanitizer_enable());
}

pub fn scene_sanitizer_off() {
    ok!(tcuda_set_log_callback(Some(told_of_line), null_mut()));
    assert!(!get!(true, out => tcuda_sanitizer_is_enabled(out)));
    fails!(INVALID_ARGUMENT, tcuda_sanitizer_is_enabled(null_mut()));
    assert_eq!(race(), 0);
}
