//! Marks and ranges as a tool hears them (tests/fake/nvtx.c), on the simulated device. Each case runs in a process of its own.

mod fake;

use fake::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tcuda::base::Status::*;
use tcuda::capi::device::tcuda_set_device;
use tcuda::capi::error::tcuda_set_log_callback;
use tcuda::capi::graph::*;
use tcuda::capi::init::tcuda_shutdown;
use tcuda::capi::memory::{tcuda_free_cached, tcuda_malloc_cached};
use tcuda::capi::nvtx::*;
use tcuda::capi::pinned::{tcuda_host_free_cached, tcuda_host_malloc_cached};
use tcuda::capi::sim::tcuda_sim_fail_at;
use tcuda::capi::stream::{tcuda_stream_add_host_function, tcuda_stream_create, tcuda_stream_synchronize};
use tcuda::capi::structs::tcuda_stream_t;

const TOOL: &str = "libfake-nvtx.so";

fn library() -> PathBuf {
    build("nvtx.c", TOOL, &[], &[])
}

fn with_tool(machine: Machine) -> Machine {
    machine.with("tool.so", &library()).set("NVTX_INJECTION64_PATH", "{}/tool.so").set("TCUDA_BACKEND", "sim")
}

/// What the tool heard since the last call, by lines.
fn heard() -> Vec<String> {
    let name = CString::new(TOOL).unwrap();
    unsafe {
        let tool = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!tool.is_null());
        let function = libc::dlsym(tool, c"fake_nvtx_heard".as_ptr());
        let text = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_char>(function)();
        let lines = CStr::from_ptr(text).to_str().unwrap().lines().map(str::to_owned).collect();
        libc::free(text.cast());
        lines
    }
}

fn starts() -> i64 {
    calls(TOOL, "fake_nvtx_starts", "")
}

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" fn keep(_level: i32, message: *const c_char, _user_data: *mut c_void) {
    // From inside the search, or with a tool: in no case forever.
    unsafe { tcuda_nvtx_range_push(c"from the log".as_ptr()) };
    tcuda_nvtx_range_pop();
    tcuda_set_device(-1);
    LOG.lock().unwrap().push(unsafe { CStr::from_ptr(message) }.to_str().unwrap().to_owned());
}

fn keep_log() {
    unsafe { assert_eq!(tcuda_set_log_callback(Some(keep), null_mut()), TCUDA_SUCCESS) };
}

fn event(message: &CStr) -> tcuda_nvtx_event_t {
    tcuda_nvtx_event_t {
        struct_size: size_of::<tcuda_nvtx_event_t>(),
        message: message.as_ptr(),
        integer: 0,
        real: 0.0,
        payload: TCUDA_NVTX_PAYLOAD_NONE,
        color: 0,
        category: 0,
        reserved: 0,
    }
}

fn domain(name: &CStr) -> tcuda_nvtx_domain_t {
    let mut domain = null_mut();
    ok(unsafe { tcuda_nvtx_domain_create(&mut domain, name.as_ptr()) });
    assert!(!domain.is_null());
    domain
}

fn stream() -> tcuda_stream_t {
    let mut stream = null_mut();
    ok(unsafe { tcuda_stream_create(&mut stream, 0, 0) });
    stream
}

/// An allocation of so many bytes and its free.
fn pair(size: usize, stream: tcuda_stream_t) {
    let mut block = null_mut();
    unsafe {
        ok(tcuda_malloc_cached(&mut block, size, stream));
        ok(tcuda_free_cached(block));
    }
}

#[test]
fn the_plain_functions() {
    case("the_plain_functions", with_tool, || unsafe {
        assert!(tcuda_nvtx_is_attached());
        ok(tcuda_nvtx_mark(c"a".as_ptr()));
        assert_eq!([tcuda_nvtx_range_push(c"b".as_ptr()), tcuda_nvtx_range_push(c"\xce\xb2".as_ptr())], [0, 1]);
        assert_eq!([tcuda_nvtx_range_pop(), tcuda_nvtx_range_pop(), tcuda_nvtx_range_pop()], [1, 0, -1]);
        let mut ids = [7; 2];
        ok(tcuda_nvtx_range_start(&mut ids[0], c"c".as_ptr()));
        ok(tcuda_nvtx_range_start(&mut ids[1], c"".as_ptr()));
        ids.into_iter().for_each(|id| ok(tcuda_nvtx_range_end(id)));
        assert_eq!(ids, [1, 2]);
        // What is wrong is not told.
        assert_eq!(tcuda_nvtx_range_push(null_mut()), -1);
        assert_eq!(tcuda_nvtx_mark(null_mut()), TCUDA_ERROR_INVALID_ARGUMENT);
        assert_eq!(tcuda_nvtx_range_start(null_mut(), c"d".as_ptr()), TCUDA_ERROR_INVALID_ARGUMENT);
        let lines = ["mark a", "push b", "push \u{3b2}", "pop", "pop", "pop", "start c = 1", "start  = 2", "end 1", "end 2"];
        assert_eq!((heard(), starts()), (lines.map(String::from).to_vec(), 1));
    });
}

#[test]
fn domains_with_all_that_an_event_has() {
    case("domains_with_all_that_an_event_has", with_tool, || unsafe {
        let (own, none) = (domain(c"own"), null_mut());
        let green = tcuda_nvtx_event_t { color: 0xFF00FF00, category: 5, ..event(c"a") };
        let counted = tcuda_nvtx_event_t { payload: TCUDA_NVTX_PAYLOAD_UNSIGNED, integer: -1, ..event(c"b") };
        let signed = tcuda_nvtx_event_t { payload: TCUDA_NVTX_PAYLOAD_SIGNED, ..counted };
        let real = tcuda_nvtx_event_t { payload: TCUDA_NVTX_PAYLOAD_DOUBLE, real: 0.25, ..event(c"c") };
        for domain in [own, none] {
            ok(tcuda_nvtx_domain_name_category(domain, 5, c"five".as_ptr()));
            ok(tcuda_nvtx_domain_mark(domain, &green));
            assert_eq!([tcuda_nvtx_domain_range_push(domain, &counted), tcuda_nvtx_domain_range_push(domain, &signed)], [0, 1]);
            assert_eq!([tcuda_nvtx_domain_range_pop(domain), tcuda_nvtx_domain_range_pop(domain)], [1, 0]);
            let mut id = 0;
            ok(tcuda_nvtx_domain_range_start(domain, &mut id, &real));
            ok(tcuda_nvtx_domain_range_end(domain, id));
            let name = if domain.is_null() { "default" } else { "own" };
            let of = if domain.is_null() { "" } else { " own" };
            let lines = [
                format!("category {name} 5 five"),
                format!("mark {name}:a #ff00ff00 c5"),
                format!("push {name}:b u18446744073709551615"),
                format!("push {name}:b i-1"),
                format!("pop{of}"),
                format!("pop{of}"),
                format!("start {name}:c d0.25"),
                format!("end{of} {id}"),
            ];
            assert_eq!(heard(), lines);
        }
        let wrong = tcuda_nvtx_event_t { payload: 4, ..event(c"x") };
        assert_eq!(tcuda_nvtx_domain_mark(own, &wrong), TCUDA_ERROR_INVALID_ARGUMENT);
        assert_eq!(tcuda_nvtx_domain_range_push(own, &tcuda_nvtx_event_t { message: null_mut(), ..wrong }), -1);
        ok(tcuda_nvtx_domain_destroy(own));
        assert_eq!(heard(), ["destroy own"]);
        assert_eq!(tcuda_nvtx_domain_destroy(own), TCUDA_ERROR_INVALID_HANDLE);
        assert_eq!(tcuda_nvtx_domain_mark(own, &green), TCUDA_ERROR_INVALID_HANDLE);
        assert_eq!([tcuda_nvtx_domain_range_push(own, &green), tcuda_nvtx_domain_range_pop(own)], [-1, -1]);
        assert!(heard().is_empty());
    });
}

#[test]
fn a_tool_that_takes_little() {
    case(
        "a_tool_that_takes_little",
        |machine| with_tool(machine).set("FAKE_NVTX", "push"),
        || unsafe {
            assert_eq!([tcuda_nvtx_range_push(c"a".as_ptr()), tcuda_nvtx_range_pop()], [0, -2]);
            let own = domain(c"own");
            let mut id = 9;
            ok(tcuda_nvtx_mark(c"b".as_ptr()));
            ok(tcuda_nvtx_range_start(&mut id, c"c".as_ptr()));
            ok(tcuda_nvtx_range_end(id));
            assert_eq!([tcuda_nvtx_domain_range_push(own, &event(c"d")), tcuda_nvtx_domain_range_pop(own), id as i32], [-2, -2, 0]);
            ok(tcuda_nvtx_domain_destroy(own));
            assert_eq!(heard(), ["push a"]);
        },
    );
}

/// A tool that cannot be had is told once, and all goes on without.
fn no_tool(name: &str, why: &str, build: impl FnOnce(Machine) -> Machine) {
    case(name, build, || unsafe {
        keep_log();
        for _ in 0..2 {
            assert_eq!([tcuda_nvtx_range_push(c"a".as_ptr()), tcuda_nvtx_range_pop()], [-2, -2]);
            ok(tcuda_nvtx_mark(c"b".as_ptr()));
            assert!(!tcuda_nvtx_is_attached());
        }
        pair(512, stream());
        let log = LOG.lock().unwrap().clone();
        assert_eq!(log.len(), 1, "{log:?}");
        assert_says(&log[0], &["NVTX_INJECTION64_PATH", why]);
    });
}

#[test]
fn a_tool_that_is_not_there() {
    no_tool("a_tool_that_is_not_there", "No such file", |machine| {
        machine.set("NVTX_INJECTION64_PATH", "{}/none.so").set("TCUDA_BACKEND", "sim").set("TCUDA_NVTX", "1")
    });
}

#[test]
fn a_library_that_is_no_tool() {
    no_tool("a_library_that_is_no_tool", "has no InitializeInjectionNvtx2", |machine| {
        with_tool(machine).with("tool.so", &build("nvml.c", "libnvidia-ml.so.1", &[], &[]))
    });
}

#[test]
fn a_tool_that_does_not_start() {
    no_tool("a_tool_that_does_not_start", "did not start", |machine| with_tool(machine).set("FAKE_NVTX", "refuse").set("TCUDA_NVTX", "1"));
}

extern "C" fn called_at_the_start() {
    unsafe {
        assert_eq!(tcuda_nvtx_range_push(c"early".as_ptr()), -2);
        ok(tcuda_nvtx_mark(c"early".as_ptr()));
    }
    pair(512, stream());
}

#[test]
fn a_tool_that_calls_tcuda_while_it_starts() {
    case(
        "a_tool_that_calls_tcuda_while_it_starts",
        |machine| with_tool(machine).set("TCUDA_NVTX", "1"),
        || {
            unsafe { std::env::set_var("FAKE_NVTX_CALLS", (called_at_the_start as extern "C" fn() as usize).to_string()) };
            let stream = stream();
            pair(512, stream);
            let heard = heard();
            assert!(!heard.is_empty() && heard.iter().all(|line| line.contains("tcuda") && !line.contains("early")), "{heard:?}");
        },
    );
}

static STARTING: AtomicBool = AtomicBool::new(false);

extern "C" fn takes_its_time_to_start() {
    STARTING.store(true, Relaxed);
    std::thread::sleep(Duration::from_millis(50));
}

#[test]
fn a_call_of_another_thread_while_it_starts_is_shown() {
    case(
        "a_call_of_another_thread_while_it_starts_is_shown",
        |machine| with_tool(machine).set("TCUDA_NVTX", "1"),
        || {
            unsafe { std::env::set_var("FAKE_NVTX_CALLS", (takes_its_time_to_start as extern "C" fn() as usize).to_string()) };
            let other = std::thread::spawn(|| {
                while !STARTING.load(Relaxed) {
                    std::thread::yield_now();
                }
                ok(tcuda_set_device(0));
            });
            ok(tcuda_set_device(0));
            other.join().unwrap();
            assert_eq!(heard().iter().filter(|line| *line == "push tcuda:tcuda_set_device").count(), 2);
        },
    );
}

#[test]
fn threads_attach_it_once_and_are_deep_apart() {
    case("threads_attach_it_once_and_are_deep_apart", with_tool, || {
        const THREADS: usize = 8;
        let start = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..100 {
                        let pushed = [(); 3].map(|()| unsafe { tcuda_nvtx_range_push(c"a".as_ptr()) });
                        assert_eq!(pushed, [0, 1, 2]);
                        assert_eq!([(); 3].map(|()| tcuda_nvtx_range_pop()), [2, 1, 0]);
                    }
                });
            }
        });
        assert_eq!((heard().len(), starts()), (THREADS * 600, 1));
    });
}

#[test]
fn own_calls_are_shown_when_asked_for() {
    case(
        "own_calls_are_shown_when_asked_for",
        |machine| with_tool(machine).set("TCUDA_NVTX", "1"),
        || unsafe {
            let stream = stream();
            assert_eq!(heard(), ["push tcuda:tcuda_stream_create", "pop tcuda"]);
            // Also what a thread would have at hand.
            for round in 0..100 {
                pair(512, stream);
                let lines = ["push tcuda:tcuda_malloc_cached u512", "pop tcuda", "push tcuda:tcuda_free_cached", "pop tcuda"];
                assert_eq!(heard(), lines, "{round}");
            }
            let mut block = null_mut();
            ok(tcuda_host_malloc_cached(&mut block, 100));
            ok(tcuda_host_free_cached(block));
            assert_eq!(tcuda_malloc_cached(&mut block, 1 << 60, stream), TCUDA_ERROR_OUT_OF_MEMORY);
            let lines = [
                "push tcuda:tcuda_host_malloc_cached u100",
                "pop tcuda",
                "push tcuda:tcuda_host_free_cached",
                "pop tcuda",
                "push tcuda:tcuda_malloc_cached u1152921504606846976",
                "pop tcuda",
            ];
            assert_eq!(heard(), lines);
            // The program's own lie beside, and are deep apart.
            assert_eq!(tcuda_nvtx_range_push(c"mine".as_ptr()), 0);
            ok(tcuda_stream_synchronize(stream));
            assert_eq!(tcuda_nvtx_range_pop(), 0);
            assert_eq!(heard(), ["push mine", "push tcuda:tcuda_stream_synchronize", "pop tcuda", "pop"]);
            std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| (0..50).for_each(|_| pair(512, null_mut()))))));
            assert_eq!(heard().len(), 4 * 50 * 4);
        },
    );
}

#[test]
fn own_calls_are_not_shown_unasked() {
    case(
        "own_calls_are_not_shown_unasked",
        |machine| with_tool(machine).set("TCUDA_NVTX", "0"),
        || unsafe {
            let stream = stream();
            pair(512, stream);
            ok(tcuda_nvtx_mark(c"a".as_ptr()));
            pair(512, stream);
            assert_eq!(heard(), ["mark a"]);
        },
    );
}

#[test]
fn a_switch_that_is_none_is_told() {
    case(
        "a_switch_that_is_none_is_told",
        |machine| with_tool(machine).set("TCUDA_NVTX", "yes"),
        || {
            keep_log();
            pair(512, stream());
            assert_eq!(*LOG.lock().unwrap(), ["TCUDA_NVTX is 'yes'; it can be 0 or 1. It counts as 0."]);
        },
    );
}

#[test]
fn a_range_follows_its_stream() {
    case("a_range_follows_its_stream", with_tool, || unsafe {
        let stream = stream();
        let mut range = 0;
        ok(tcuda_nvtx_stream_range_start(&mut range, c"work".as_ptr(), stream));
        ok(tcuda_nvtx_stream_range_end(range, stream));
        assert_eq!(tcuda_nvtx_stream_range_end(range, stream), TCUDA_ERROR_INVALID_HANDLE);
        ok(tcuda_stream_synchronize(stream));
        assert_eq!(heard(), ["start work = 1", "end 1"]);
        assert_eq!(tcuda_nvtx_stream_range_end(range, stream), TCUDA_ERROR_INVALID_HANDLE);
        assert_eq!(tcuda_nvtx_stream_range_end(0, stream), TCUDA_ERROR_INVALID_HANDLE);
        assert_eq!(tcuda_nvtx_stream_range_start(&mut range, null_mut(), stream), TCUDA_ERROR_INVALID_ARGUMENT);
        assert!(heard().is_empty());
    });
}

#[test]
fn a_range_that_cannot_be_enqueued_is_none() {
    case("a_range_that_cannot_be_enqueued_is_none", with_tool, || unsafe {
        let stream = stream();
        let fail = || ok(tcuda_sim_fail_at(c"cudaLaunchHostFunc".as_ptr(), 1, 304));
        let mut range = 77;
        fail();
        assert_eq!(tcuda_nvtx_stream_range_start(&mut range, c"a".as_ptr(), stream), TCUDA_ERROR_CUDA);
        assert_eq!(range, 77);
        ok(tcuda_nvtx_stream_range_start(&mut range, c"b".as_ptr(), stream));
        fail();
        assert_eq!(tcuda_nvtx_stream_range_end(range, stream), TCUDA_ERROR_CUDA);
        // It is open still.
        ok(tcuda_nvtx_stream_range_end(range, stream));
        ok(tcuda_stream_synchronize(stream));
        assert_eq!(heard(), ["start b = 1", "end 1"]);
    });
}

static HELD: AtomicBool = AtomicBool::new(true);

extern "C" fn hold(_: *mut c_void) {
    while HELD.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_range_whose_end_is_reached_first_has_no_length() {
    case("a_range_whose_end_is_reached_first_has_no_length", with_tool, || unsafe {
        let (busy, idle) = (stream(), stream());
        let mut range = 0;
        ok(tcuda_stream_add_host_function(busy, Some(hold), null_mut()));
        ok(tcuda_nvtx_stream_range_start(&mut range, c"late".as_ptr(), busy));
        ok(tcuda_nvtx_stream_range_end(range, idle));
        ok(tcuda_stream_synchronize(idle));
        assert!(heard().is_empty());
        HELD.store(false, Relaxed);
        ok(tcuda_stream_synchronize(busy));
        assert_eq!(heard(), ["start late = 1", "end 1"]);
        assert_eq!(tcuda_nvtx_stream_range_end(range, busy), TCUDA_ERROR_INVALID_HANDLE);
    });
}

#[test]
fn a_range_in_a_graph_is_a_new_one_with_each_replay() {
    case("a_range_in_a_graph_is_a_new_one_with_each_replay", with_tool, || unsafe {
        let stream = stream();
        let (mut graph, mut range) = (null_mut(), 0);
        ok(tcuda_graph_create(&mut graph, 0));
        ok(tcuda_graph_capture_begin(graph, stream, tcuda_pool_id_t { first: 0, second: 0 }, TCUDA_CAPTURE_GLOBAL));
        ok(tcuda_nvtx_stream_range_start(&mut range, c"step".as_ptr(), stream));
        ok(tcuda_nvtx_stream_range_end(range, stream));
        ok(tcuda_graph_capture_end(graph));
        assert!(heard().is_empty());
        for replay in 1..4 {
            ok(tcuda_graph_replay(graph, stream));
            ok(tcuda_stream_synchronize(stream));
            assert_eq!(heard(), [format!("start step = {replay}"), format!("end {replay}")]);
        }
        ok(tcuda_graph_destroy(graph));
    });
}

#[test]
fn marks_outlive_the_end() {
    case("marks_outlive_the_end", with_tool, || unsafe {
        let own = domain(c"own");
        pair(512, stream());
        ok(tcuda_shutdown());
        ok(tcuda_nvtx_mark(c"a".as_ptr()));
        ok(tcuda_nvtx_domain_mark(own, &event(c"b")));
        assert_eq!(tcuda_nvtx_stream_range_start(&mut 0, c"c".as_ptr(), null_mut()), TCUDA_ERROR_SHUT_DOWN);
        ok(tcuda_nvtx_domain_destroy(own));
        assert_eq!(heard(), ["mark a", "mark own:b", "destroy own"]);
    });
}
