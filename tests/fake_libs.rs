//! Handles of cuBLAS and plans of cuFFT, over libraries that imitate NVIDIA's and a fake CUDA that works (tests/fake/works.c). Each case runs in
//! a process of its own.

mod fake;

use fake::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tcuda::base::Status::{self, *};
use tcuda::capi::device::{tcuda_current_device, tcuda_set_device};
use tcuda::capi::error::{tcuda_last_error_native, tcuda_set_log_callback};
use tcuda::capi::graph::*;
use tcuda::capi::init::tcuda_shutdown;
use tcuda::capi::libs::*;
use tcuda::capi::memory::{tcuda_empty_cache, tcuda_free_cached, tcuda_malloc_cached, tcuda_memory_allocated, tcuda_set_memory_limit};
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;

const BLAS: &str = "libcublas.so.13";
const FFT: &str = "libcufft.so.12";

fn blas() -> PathBuf {
    build("math.c", BLAS, &[], &[])
}

fn fft() -> PathBuf {
    build("math.c", FFT, &["-DFFT"], &[])
}

fn plain(machine: Machine) -> Machine {
    working(machine).with("loader/libcublas.so.13", &blas()).with("loader/libcufft.so.12", &fft())
}

/// As tests/fake/math.c has it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Handle {
    alive: usize,
    device: usize,
    stream: usize,
    workspace: usize,
    size: usize,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Plan {
    common: Handle,
    n: [i64; 3],
    embed: [[i64; 3]; 2],
    stride: [i64; 2],
    distance: [i64; 2],
    batch: i64,
    kind: i64,
    rank: i64,
}

fn look(handle: tcuda_blas_handle_t) -> Handle {
    unsafe { *handle.cast::<Handle>() }
}

fn look_at(plan: i32) -> Plan {
    let library = CString::new(FFT).unwrap();
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        let function = libc::dlsym(handle, c"fake_fft_plan".as_ptr());
        *std::mem::transmute::<*mut c_void, unsafe extern "C" fn(i32) -> *const Plan>(function)(plan)
    }
}

fn blas_calls(name: &str) -> i64 {
    calls(BLAS, "fake_math_calls", name)
}

fn fft_calls(name: &str) -> i64 {
    calls(FFT, "fake_math_calls", name)
}

/// Live handles or plans.
fn living(library: &str) -> i64 {
    let names = if library == BLAS { ["cublasCreate_v2", "cublasDestroy_v2"] } else { ["cufftCreate", "cufftDestroy"] };
    let [made, gone] = names.map(|name| calls(library, "fake_math_calls", name));
    made - gone
}

/// The next calls of a function answer so.
fn refuse(function: &str, code: i32, count: i32) {
    unsafe { std::env::set_var("FAKE_MATH", format!("{function}:{code}:{count}")) };
}

fn refuse_nothing() {
    unsafe { std::env::remove_var("FAKE_MATH") };
}

fn stream(device: i32) -> tcuda_stream_t {
    let mut stream = null_mut();
    ok(unsafe { tcuda_stream_create(&mut stream, device, 0) });
    stream
}

#[track_caller]
fn handle(stream: tcuda_stream_t) -> tcuda_blas_handle_t {
    let mut handle = null_mut();
    ok(unsafe { tcuda_blas_handle(&mut handle, stream) });
    handle
}

fn current() -> tcuda_blas_handle_t {
    let mut handle = null_mut();
    ok(unsafe { tcuda_current_blas_handle(&mut handle) });
    handle
}

fn allocated(device: i32) -> u64 {
    let mut bytes = 0;
    ok(unsafe { tcuda_memory_allocated(&mut bytes, device) });
    bytes
}

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" fn keep(_level: i32, message: *const c_char, _user_data: *mut c_void) {
    LOG.lock().unwrap().push(unsafe { CStr::from_ptr(message) }.to_str().unwrap().to_owned());
}

const WORKSPACE: u64 = 32 << 20;

#[test]
fn a_thread_has_one_handle_for_each_stream() {
    case("a_thread_has_one_handle_for_each_stream", plain, || unsafe {
        let (first, second, far) = (stream(0), stream(0), stream(1));
        let handles = [first, second, far].map(handle);
        assert_eq!(handles, [first, second, far].map(handle));
        assert!(handles[0] != handles[1] && handles[1] != handles[2]);
        for (handle, (stream, device)) in handles.into_iter().zip([(first, 0), (second, 0), (far, 1)]) {
            let seen = look(handle);
            assert_eq!((seen.alive, seen.device, seen.stream, seen.size), (1, device, stream as usize, WORKSPACE as usize));
        }
        assert_eq!([0, 1].map(allocated), [2 * WORKSPACE, WORKSPACE]);
        // The current one of the current device.
        assert_eq!(look(current()).stream, 0);
        ok(tcuda_set_stream(second));
        assert_eq!(current(), handles[1]);
        ok(tcuda_set_device(1));
        assert_eq!((look(current()).stream, look(current()).device), (0, 1));
        // Another thread has others, and it does not matter which device is current.
        let of = first as usize;
        let theirs = std::thread::spawn(move || handle(of as tcuda_stream_t) as usize).join().unwrap();
        assert!(handles.iter().all(|handle| *handle as usize != theirs));
        let mut device = -1;
        ok(tcuda_current_device(&mut device));
        assert_eq!(device, 1);
    });
}

#[test]
fn threads_and_streams_that_end_give_theirs_back() {
    case("threads_and_streams_that_end_give_theirs_back", plain, || unsafe {
        let shared = stream(0) as usize;
        let theirs = |_| std::thread::spawn(move || handle(shared as tcuda_stream_t) as usize).join().unwrap();
        let used: Vec<usize> = (0..5).map(theirs).collect();
        assert!(used.iter().all(|handle| *handle == used[0]), "{used:?}");
        assert_eq!((blas_calls("cublasCreate_v2"), allocated(0)), (1, 0));
        let mine = handle(shared as tcuda_stream_t);
        assert_eq!((mine as usize, allocated(0)), (used[0], WORKSPACE));
        ok(tcuda_stream_destroy(shared as tcuda_stream_t));
        assert_eq!(allocated(0), 0);
        // One of the other device is not taken for this one.
        let far = handle(stream(1));
        assert_eq!((look(far).device, blas_calls("cublasCreate_v2")), (1, 2));
        let again = handle(stream(0));
        assert_eq!((again, blas_calls("cublasCreate_v2")), (mine, 2));
        ok(tcuda_blas_clear());
        assert_eq!([0, 1].map(allocated), [0, 0]);
        assert_eq!(living(BLAS), 2);
        ok(tcuda_shutdown());
        assert_eq!(living(BLAS), 0);
    });
}

unsafe extern "C" fn ask_at_the_end(stream: *mut c_void) {
    handle(stream.cast());
}

/// In the destructor of a pthread key, in a thread that had nothing of tcuda's.
#[test]
fn a_handle_that_the_end_of_a_thread_makes_is_given_back() {
    case("a_handle_that_the_end_of_a_thread_makes_is_given_back", plain, || unsafe {
        let (shared, mut key) = (stream(0) as usize, 0);
        assert_eq!(libc::pthread_key_create(&mut key, Some(ask_at_the_end)), 0);
        for _ in 0..3 {
            let thread = std::thread::spawn(move || libc::pthread_setspecific(key, shared as *const c_void));
            assert_eq!(thread.join().unwrap(), 0);
            assert_eq!((blas_calls("cublasCreate_v2"), allocated(0)), (1, 0));
        }
        assert_eq!(libc::pthread_key_delete(key), 0);
    });
}

#[test]
fn the_workspace_is_cublas_own_configuration() {
    case(
        "the_workspace_is_cublas_own_configuration",
        |machine| plain(machine).set("CUBLAS_WORKSPACE_CONFIG", ":16:8:4096:1"),
        || {
            assert_eq!(look(handle(stream(0))).size, (16 * 8 + 4096) << 10);
        },
    );
}

#[test]
fn a_workspace_of_nothing_is_none() {
    case(
        "a_workspace_of_nothing_is_none",
        |machine| plain(machine).set("CUBLAS_WORKSPACE_CONFIG", ":0:0"),
        || {
            assert_eq!((look(handle(stream(0))).workspace, blas_calls("cublasSetWorkspace_v2"), allocated(0)), (0, 0, 0));
        },
    );
}

#[test]
fn a_wrong_configuration_is_told() {
    case(
        "a_wrong_configuration_is_told",
        |machine| plain(machine).set("CUBLAS_WORKSPACE_CONFIG", "4096:2").set("FAKE_MAJOR", "8"),
        || {
            ok(unsafe { tcuda_set_log_callback(Some(keep), null_mut()) });
            // That of a device before Hopper.
            assert_eq!(look(handle(stream(0))).size, (8 << 20) + (128 << 10));
            let log = LOG.lock().unwrap();
            assert_eq!(log.len(), 1);
            assert_says(&log[0], &["CUBLAS_WORKSPACE_CONFIG is '4096:2'", ":4096:2:16:8"]);
        },
    );
}

#[test]
fn who_hears_of_a_wrong_configuration_may_ask_for_the_handle() {
    unsafe extern "C" fn ask(_: i32, _: *const c_char, _: *mut c_void) {
        INSIDE.store(current() as usize, Ordering::Relaxed);
    }
    static INSIDE: AtomicUsize = AtomicUsize::new(0);
    case(
        "who_hears_of_a_wrong_configuration_may_ask_for_the_handle",
        |machine| plain(machine).set("CUBLAS_WORKSPACE_CONFIG", "4096:2"),
        || {
            ok(unsafe { tcuda_set_log_callback(Some(ask), null_mut()) });
            assert_eq!((current() as usize, allocated(0)), (INSIDE.load(Ordering::Relaxed), WORKSPACE));
            assert_eq!(living(BLAS), 2);
            ok(tcuda_shutdown());
            assert_eq!(living(BLAS), 0);
        },
    );
}

#[test]
fn without_libraries_it_says_where_they_were_looked_for() {
    case(
        "without_libraries_it_says_where_they_were_looked_for",
        |machine| working(machine).set("CUDA_HOME", "{}/cuda"),
        || unsafe {
            let mut out = 77 as tcuda_blas_handle_t;
            assert_eq!(tcuda_blas_handle(&mut out, null_mut()), TCUDA_ERROR_NOT_SUPPORTED);
            assert_eq!(out as usize, 77);
            assert_says(&message(), &["cuBLAS is not there", "CUDA_HOME=", "nvidia-cublas", "TCUDA_CUBLAS_PATH"]);
            assert_eq!(tcuda_cufft_library(null_mut(), 0, &mut 0), TCUDA_ERROR_NOT_SUPPORTED);
            assert_says(&message(), &["cuFFT is not there", "nvidia-cufft", "TCUDA_CUFFT_PATH"]);
        },
    );
}

#[test]
fn a_library_in_pythons_packages() {
    let place = "home/.local/lib/python3.12/site-packages/nvidia/cu13/lib";
    let build = move |machine| working(machine).with(&format!("{place}/{BLAS}"), &blas()).with(&format!("{place}/{FFT}"), &fft());
    case("a_library_in_pythons_packages", build, || unsafe {
        for (call, name) in [(tcuda_blas_library as unsafe extern "C" fn(_, _, _) -> _, BLAS), (tcuda_cufft_library, FFT)] {
            let mut text = [0 as c_char; 4096];
            ok(call(text.as_mut_ptr(), text.len(), null_mut()));
            let path = root().join("home/.local/lib/python3.12/site-packages/nvidia/cu13/lib").join(name);
            assert_eq!(CStr::from_ptr(text.as_ptr()).to_str(), Ok(path.to_str().unwrap()));
        }
        handle(null_mut());
    });
}

#[test]
fn a_library_that_lacks_something() {
    let build = |machine| {
        working(machine).with("own.so", &build("math.c", BLAS, &[], &["cublasSetWorkspace_v2"])).set("TCUDA_CUBLAS_PATH", "{}/own.so")
    };
    case("a_library_that_lacks_something", build, || unsafe {
        assert_eq!(tcuda_blas_handle(&mut null_mut(), null_mut()), TCUDA_ERROR_NOT_SUPPORTED, "{}", message());
        assert_says(&message(), &["own.so has no cublasSetWorkspace_v2"]);
    });
}

#[test]
fn what_cublas_refuses() {
    case("what_cublas_refuses", plain, || unsafe {
        let stream = stream(0);
        let fails = |status: Status, code: i32, parts: &[&str]| {
            let mut out = 77 as tcuda_blas_handle_t;
            assert_eq!((tcuda_blas_handle(&mut out, stream), out as usize), (status, 77));
            assert_says(&message(), parts);
            assert_eq!((tcuda_last_error_native(), allocated(0)), (code, 0));
        };
        // Free memory goes back once for it.
        let mut block = null_mut();
        ok(tcuda_malloc_cached(&mut block, 1 << 20, stream));
        ok(tcuda_free_cached(block));
        refuse("cublasCreate_v2", 3, 2);
        fails(TCUDA_ERROR_OUT_OF_MEMORY, 3, &["cublasCreate of cuBLAS answered 3 (CUBLAS_STATUS_ALLOC_FAILED)"]);
        assert!(calls("libcudart.so.13", "fake_runtime_calls", "cudaFree") > 0);
        refuse("cublasCreate_v2", 1, 1);
        fails(TCUDA_ERROR_CUDA, 1, &["NOT_INITIALIZED"]);
        refuse("cublasSetStream_v2", 14, 1);
        fails(TCUDA_ERROR_CUDA, 14, &["cublasSetStream", "INTERNAL_ERROR"]);
        refuse("cublasSetWorkspace_v2", 99, 1);
        fails(TCUDA_ERROR_CUDA, 99, &["cublasSetWorkspace", "an unknown status"]);
        refuse_nothing();
        ok(tcuda_empty_cache(0));
        ok(tcuda_set_memory_limit(WORKSPACE - 1, 0));
        fails(TCUDA_ERROR_OUT_OF_MEMORY, 0, &["CUDA out of memory"]);
        ok(tcuda_set_memory_limit(u64::MAX, 0));
        refuse("cublasCreate_v2", 3, 1);
        // The one that was made before is taken: nothing is lost.
        handle(stream);
        refuse_nothing();
        assert_eq!((blas_calls("cublasCreate_v2"), living(BLAS)), (4, 4));
        handle(stream);
        assert_eq!(blas_calls("cublasCreate_v2"), 4);
    });
}

#[test]
fn what_fails_in_a_capture_is_not_kept_for_it() {
    case("what_fails_in_a_capture_is_not_kept_for_it", plain, || unsafe {
        let stream = stream(0);
        let mut graph = null_mut();
        ok(tcuda_graph_create(&mut graph, 0));
        ok(tcuda_graph_capture_begin(graph, stream, tcuda_pool_id_t { first: 0, second: 0 }, TCUDA_CAPTURE_GLOBAL));
        for function in ["cublasSetStream_v2", "cublasSetWorkspace_v2"] {
            refuse(function, 14, 1);
            assert_eq!(tcuda_blas_handle(&mut null_mut(), stream), TCUDA_ERROR_CUDA, "{}", message());
            assert_eq!(allocated(0), 0);
        }
        refuse_nothing();
        handle(stream);
        assert_eq!(blas_calls("cublasCreate_v2"), 1);
        ok(tcuda_graph_capture_end(graph));
    });
}

/// What was asked for before is used in the capture too: its workspace may be the graph's.
#[test]
fn handles_from_before_a_capture_stay_for_its_graph() {
    case("handles_from_before_a_capture_stay_for_its_graph", plain, || unsafe {
        let streams = [stream(0), stream(0)];
        let workspaces = streams.map(|stream| look(handle(stream)).workspace);
        let held = allocated(0);
        let mut graph = null_mut();
        ok(tcuda_graph_create(&mut graph, 0));
        ok(tcuda_graph_capture_begin(graph, streams[0], tcuda_pool_id_t { first: 0, second: 0 }, TCUDA_CAPTURE_GLOBAL));
        ok(tcuda_graph_capture_end(graph));
        ok(tcuda_blas_clear());
        assert_eq!(2 * allocated(0), held, "that of the other stream is free");
        assert_ne!(look(handle(streams[0])).workspace, workspaces[0]);
        ok(tcuda_graph_destroy(graph));
    });
}

#[test]
fn a_stream_that_stays_keeps_its_handles() {
    case("a_stream_that_stays_keeps_its_handles", plain, || unsafe {
        let captured = stream(0) as usize;
        let mine = handle(captured as tcuda_stream_t);
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            let (mut graph, own) = (null_mut(), tcuda_pool_id_t { first: 0, second: 0 });
            ok(tcuda_graph_create(&mut graph, 0));
            ok(tcuda_graph_capture_begin(graph, captured as tcuda_stream_t, own, TCUDA_CAPTURE_THREAD_LOCAL));
            begun.send(()).unwrap();
            may_go.recv().unwrap();
            ok(tcuda_graph_capture_end(graph));
        });
        has_begun.recv().unwrap();
        // Who asks for a handle comes later than who captures.
        handle(stream(0));
        assert_eq!(tcuda_stream_destroy(captured as tcuda_stream_t), TCUDA_ERROR_CAPTURE, "{}", message());
        // Nothing has changed: the handle is nobody else's.
        assert_ne!(handle(stream(0)), mine);
        assert_eq!(look(mine).stream, captured);
        go.send(()).unwrap();
        other.join().unwrap();
    });
}

fn transform(n: i64) -> tcuda_cufft_transform_t {
    let zero = tcuda_cufft_transform_t { struct_size: size_of::<tcuda_cufft_transform_t>(), ..unsafe { std::mem::zeroed() } };
    tcuda_cufft_transform_t { kind: TCUDA_CUFFT_C2C, rank: 1, n: [n, 0, 0], batch: 1, ..zero }
}

#[track_caller]
fn get(transform: &tcuda_cufft_transform_t, stream: tcuda_stream_t) -> i32 {
    let mut plan = -7;
    ok(unsafe { tcuda_cufft_plan_cache_get(&mut plan, transform, stream) });
    plan
}

fn put(plan: i32) {
    ok(tcuda_cufft_plan_cache_put(plan));
}

fn size(device: i32) -> i64 {
    let mut size = -7;
    ok(unsafe { tcuda_cufft_plan_cache_size(&mut size, device) });
    size
}

#[test]
fn plans_are_kept_by_what_they_transform() {
    case("plans_are_kept_by_what_they_transform", plain, || {
        let (first, second, far) = (stream(0), stream(0), stream(1));
        let all = tcuda_cufft_transform_t {
            kind: TCUDA_CUFFT_R2C,
            rank: 3,
            n: [4, 5, 6],
            batch: 7,
            input_embed: [8, 9, 10],
            input_stride: 11,
            input_distance: 12,
            output_embed: [13, 14, 15],
            output_stride: 16,
            output_distance: 17,
            ..transform(0)
        };
        let plan = get(&all, first);
        let seen = look_at(plan);
        let right = Plan {
            common: Handle { alive: 1, device: 0, stream: first as usize, workspace: seen.common.workspace, size: 16 * 4 * 5 * 6 * 7 },
            n: [4, 5, 6],
            embed: [[8, 9, 10], [13, 14, 15]],
            stride: [11, 16],
            distance: [12, 17],
            batch: 7,
            kind: 0x2a,
            rank: 3,
        };
        assert_eq!(seen, right);
        assert!(allocated(0) >= 16 * 4 * 5 * 6 * 7 && seen.common.workspace.is_multiple_of(512));
        put(plan);
        assert_eq!((allocated(0), size(0), size(1)), (0, 1, 0));
        // On another stream it is the same plan; a second one at the same time, on another device or of another transform is another.
        assert_eq!((get(&all, second), look_at(plan).common.stream), (plan, second as usize));
        let others = [get(&all, second), get(&tcuda_cufft_transform_t { batch: 8, ..all }, second), get(&all, far)];
        assert!(!others.contains(&plan) && others[0] != others[1]);
        assert_eq!((look_at(others[2]).common.device, size(0), size(1)), (1, 3, 1));
        [plan].into_iter().chain(others).for_each(put);
        assert_eq!((size(0), size(1), fft_calls("cufftCreate")), (3, 1, 4));
        // What does not matter of a packed transform is no part of the key.
        let packed = get(&tcuda_cufft_transform_t { input_stride: 1, output_distance: 3, ..transform(8) }, first);
        put(packed);
        assert_eq!(get(&transform(8), first), packed);
        put(packed);
        // Nor what stands beyond the rank.
        assert_eq!(get(&tcuda_cufft_transform_t { n: [8, 7, 0], input_embed: [0, 0, 5], ..transform(8) }, first), packed);
        put(packed);
        assert_eq!(tcuda_cufft_plan_cache_put(packed), TCUDA_ERROR_INVALID_HANDLE);
        assert_eq!(tcuda_cufft_plan_cache_put(-1), TCUDA_ERROR_INVALID_HANDLE);
        ok(tcuda_shutdown());
        assert_eq!(living(FFT), 0);
    });
}

#[test]
fn the_cache_of_plans_has_its_size() {
    case("the_cache_of_plans_has_its_size", plain, || unsafe {
        let stream = stream(0);
        let mut most = 0;
        ok(tcuda_cufft_plan_cache_max_size(&mut most, 0));
        assert_eq!((most, size(0)), (4096, 0));
        ok(tcuda_cufft_plan_cache_set_max_size(3, 0));
        let plans: Vec<i32> = (1..=3).map(|n| get(&transform(n), stream)).collect();
        // All are in use: one more is there for now.
        let fourth = get(&transform(4), stream);
        assert_eq!(size(0), 4);
        // It goes when there are too many, as soon as it can.
        put(fourth);
        assert_eq!((size(0), look_at(fourth).common.alive), (3, 0));
        plans.iter().for_each(|plan| put(*plan));
        // The first is used again, so the second goes first.
        put(get(&transform(1), stream));
        put(get(&transform(5), stream));
        let alive: Vec<usize> = plans.iter().map(|plan| look_at(*plan).common.alive).collect();
        assert_eq!((alive, size(0)), (vec![1, 0, 1], 3));
        // What was enqueued is waited for.
        assert!(calls("libcudart.so.13", "fake_runtime_calls", "cudaEventSynchronize") >= 2);
        ok(tcuda_cufft_plan_cache_set_max_size(1, 0));
        assert_eq!((size(0), living(FFT)), (1, 1));
        ok(tcuda_cufft_plan_cache_set_max_size(0, 0));
        assert_eq!((size(0), living(FFT)), (0, 0));
        let plan = get(&transform(1), stream);
        assert_eq!(size(0), 1);
        put(plan);
        assert_eq!((size(0), living(FFT)), (0, 0));
        ok(tcuda_cufft_plan_cache_set_max_size(10, 0));
        let used = get(&transform(1), stream);
        put(get(&transform(2), stream));
        ok(tcuda_cufft_plan_cache_clear(0));
        assert_eq!((size(0), look_at(used).common.alive), (1, 1));
        put(used);
        ok(tcuda_cufft_plan_cache_max_size(&mut most, 1));
        assert_eq!(most, 4096);
    });
}

#[test]
fn a_plan_goes_when_all_its_streams_are_done_with_it() {
    case("a_plan_goes_when_all_its_streams_are_done_with_it", plain, || unsafe {
        let waits = || calls("libcudart.so.13", "fake_runtime_calls", "cudaEventSynchronize");
        for (busy, expected) in [(true, 3), (false, 1)] {
            if busy {
                std::env::set_var("FAKE_BUSY", "1");
            }
            // The same plan.
            let plans: Vec<i32> = (0..3).map(|_| stream(0)).map(|on| get(&transform(8), on)).inspect(|plan| put(*plan)).collect();
            assert!(plans.iter().all(|plan| *plan == plans[0]));
            std::env::remove_var("FAKE_BUSY");
            let before = waits();
            ok(tcuda_cufft_plan_cache_clear(0));
            assert_eq!((waits() - before, living(FFT)), (expected, 0), "{busy}");
        }
    });
}

#[test]
fn a_plan_is_put_back_after_its_stream() {
    case("a_plan_is_put_back_after_its_stream", plain, || {
        let gone = stream(0);
        let plan = get(&transform(8), gone);
        // More than are kept for the next one.
        let others: Vec<tcuda_stream_t> = (0..70).map(|_| stream(0)).collect();
        [gone].into_iter().chain(others).for_each(|stream| ok(unsafe { tcuda_stream_destroy(stream) }));
        put(plan);
        assert_eq!((allocated(0), size(0)), (0, 1));
        ok(tcuda_cufft_plan_cache_clear(0));
        assert_eq!(living(FFT), 0);
    });
}

#[test]
fn a_plan_whose_stream_is_gone_waits_for_the_end_of_captures() {
    case("a_plan_whose_stream_is_gone_waits_for_the_end_of_captures", plain, || unsafe {
        let (gone, captured) = (stream(0), stream(0));
        let plan = get(&transform(8), gone);
        let others: Vec<tcuda_stream_t> = (0..70).map(|_| stream(0)).collect();
        [gone].into_iter().chain(others).for_each(|stream| ok(tcuda_stream_destroy(stream)));
        put(plan);
        let waits = || calls("libcudart.so.13", "fake_runtime_calls", "cudaFree");
        let before = waits();
        let mut graph = null_mut();
        ok(tcuda_graph_create(&mut graph, 0));
        ok(tcuda_graph_capture_begin(graph, captured, tcuda_pool_id_t { first: 0, second: 0 }, TCUDA_CAPTURE_GLOBAL));
        ok(tcuda_cufft_plan_cache_clear(0));
        assert_eq!((waits() - before, size(0), look_at(plan).common.alive), (0, 1, 1));
        ok(tcuda_graph_capture_end(graph));
        ok(tcuda_cufft_plan_cache_clear(0));
        assert_eq!((waits() - before, size(0), living(FFT)), (1, 0, 0));
    });
}

#[test]
fn what_the_program_captures_by_cuda_itself_stays() {
    case("what_the_program_captures_by_cuda_itself_stays", plain, || unsafe {
        let stream = stream(0);
        let runtime = tcuda::runtime::runtime().unwrap();
        runtime.begin_capture(stream as usize, TCUDA_CAPTURE_GLOBAL).unwrap();
        let captured = handle(stream);
        let plan = get(&transform(8), stream);
        put(plan);
        runtime.end_capture(stream as usize).unwrap();
        ok(tcuda_cufft_plan_cache_clear(0));
        ok(tcuda_stream_destroy(stream));
        assert_eq!((look_at(plan).common.alive, look(captured).alive, allocated(0)), (1, 1, WORKSPACE));
    });
}

#[test]
fn what_cufft_refuses() {
    case("what_cufft_refuses", plain, || unsafe {
        let stream = stream(0);
        let fails = |status: Status, code: i32, parts: &[&str], left: i64| {
            let mut plan = -7;
            assert_eq!((tcuda_cufft_plan_cache_get(&mut plan, &transform(8), stream), plan), (status, -7));
            assert_says(&message(), parts);
            assert_eq!((tcuda_last_error_native(), allocated(0), size(0), living(FFT)), (code, 0, left, left));
        };
        refuse("cufftMakePlanMany64", 2, 2);
        fails(TCUDA_ERROR_OUT_OF_MEMORY, 2, &["cufftMakePlanMany64 of cuFFT answered 2 (CUFFT_ALLOC_FAILED)"], 0);
        refuse("cufftSetAutoAllocation", 5, 1);
        fails(TCUDA_ERROR_CUDA, 5, &["cufftSetAutoAllocation", "CUFFT_INTERNAL_ERROR"], 0);
        refuse("cufftMakePlanMany64", 8, 1);
        fails(TCUDA_ERROR_CUDA, 8, &["CUFFT_INVALID_SIZE"], 0);
        // From here on the plan is there, and stays.
        refuse("cufftSetStream", 1, 1);
        fails(TCUDA_ERROR_CUDA, 1, &["cufftSetStream"], 1);
        refuse("cufftSetWorkArea", 1, 1);
        fails(TCUDA_ERROR_CUDA, 1, &["cufftSetWorkArea"], 1);
        ok(tcuda_empty_cache(0));
        ok(tcuda_set_memory_limit(0, 0));
        fails(TCUDA_ERROR_OUT_OF_MEMORY, 0, &["CUDA out of memory"], 1);
        ok(tcuda_set_memory_limit(u64::MAX, 0));
        refuse("cufftMakePlanMany64", 2, 1);
        put(get(&transform(9), stream));
        refuse_nothing();
        assert_eq!((size(0), living(FFT)), (2, 2));
    });
}

#[test]
fn threads_have_plans_alone() {
    case("threads_have_plans_alone", plain, || {
        static IN_USE: [AtomicBool; 100_000] = [const { AtomicBool::new(false) }; 100_000];
        ok(tcuda_cufft_plan_cache_set_max_size(4, 0));
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                std::thread::spawn(move || {
                    let stream = stream(0);
                    for round in 0..200 {
                        let plan = get(&transform(1 + (thread + round) % 6), stream);
                        assert!(!IN_USE[plan as usize].swap(true, Ordering::SeqCst));
                        let seen = look_at(plan).common;
                        assert_eq!((seen.alive, seen.stream), (1, stream as usize));
                        IN_USE[plan as usize].store(false, Ordering::SeqCst);
                        put(plan);
                        assert_eq!(look(handle(stream)).stream, stream as usize);
                    }
                })
            })
            .collect();
        // To their very end, unlike those of a scope.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(size(0) <= 4 && living(FFT) == size(0) && living(BLAS) <= 8);
        assert_eq!(allocated(0), 0);
    });
}

#[test]
fn what_a_graph_captured_stays() {
    case("what_a_graph_captured_stays", plain, || unsafe {
        let (stream, other) = (stream(0), stream(0));
        let before = get(&transform(7), other);
        put(before);
        let mut graph = null_mut();
        ok(tcuda_graph_create(&mut graph, 0));
        ok(tcuda_graph_capture_begin(graph, stream, tcuda_pool_id_t { first: 0, second: 0 }, TCUDA_CAPTURE_GLOBAL));
        let captured = handle(stream);
        let plan = get(&transform(8), stream);
        put(plan);
        ok(tcuda_graph_capture_end(graph));
        ok(tcuda_graph_replay(graph, stream));
        // Put back when the capture is over, it is the graph's as well.
        ok(tcuda_graph_reset(graph));
        ok(tcuda_graph_capture_begin(graph, stream, tcuda_pool_id_t { first: 0, second: 0 }, TCUDA_CAPTURE_GLOBAL));
        let late = get(&transform(9), stream);
        ok(tcuda_graph_capture_end(graph));
        put(late);
        ok(tcuda_cufft_plan_cache_clear(0));
        assert_eq!(look_at(late).common.alive, 1);
        // The next replay may come at any time: neither goes, whatever ends.
        ok(tcuda_cufft_plan_cache_set_max_size(0, 0));
        assert_eq!([before, plan].map(|plan| look_at(plan).common.alive), [0, 1]);
        assert_eq!((get(&transform(8), other), size(0)), (plan, 2));
        put(plan);
        assert_eq!(look_at(plan).common.alive, 1);
        let workspace = look(captured).workspace;
        ok(tcuda_stream_destroy(stream));
        let next = handle(other);
        assert!(next != captured && look(next).workspace != workspace);
        assert_eq!((look(captured).workspace, look(captured).alive), (workspace, 1));
        assert_eq!(allocated(0), 2 * WORKSPACE);
        ok(tcuda_shutdown());
        assert_eq!([BLAS, FFT].map(living), [0, 0]);
    });
}
