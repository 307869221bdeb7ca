//! Who looks on, where things end: in a child of fork, after a shutdown, with threads that come and go.

use crate::init::{forked, in_child};
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tcuda::base::status::tcuda_status_t::{self, *};
use tcuda::capi::device::tcuda_set_device;
use tcuda::capi::error::{tcuda_set_log_callback, tcuda_status_name};
use tcuda::capi::init::*;
use tcuda::capi::jit::{tcuda_jit_create, tcuda_jit_destroy};
use tcuda::capi::memory::tcuda_set_alloc_conf;
use tcuda::capi::nvtx::{tcuda_nvtx_domain_create, tcuda_nvtx_domain_destroy, tcuda_nvtx_mark};
use tcuda::capi::plugin::{
    tcuda_change_current_allocator, tcuda_get_allocator_backend, tcuda_pluggable_allocator_create, tcuda_pluggable_allocator_destroy,
};
use tcuda::capi::pressure::*;
use tcuda::capi::random::tcuda_manual_seed_all;
use tcuda::capi::sanitizer::*;
use tcuda::capi::snapshot::tcuda_snapshot_destroy;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::capi::sync_debug::*;
use tcuda::capi::torch::*;
use tcuda::capi::trace::*;

tests![
    a_child_of_fork_waits_for_nobody,
    a_child_of_fork_waits_for_no_first_call,
    a_child_of_fork_waits_for_no_lock,
    a_child_that_is_forked_before_the_first_use_waits_for_no_lock,
    a_child_that_is_forked_in_the_first_call_waits_for_nobody,
    who_hears_of_wrong_options_may_use_memory,
    threads_that_change_their_modes_do_not_lose_each_others,
    what_pytorch_frees_late_is_no_warning,
];

fn a_child_of_fork_waits_for_nobody() {
    in_child("trace_fork", &[]);
}

static INSIDE: AtomicBool = AtomicBool::new(false);
static GO: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn stays(_: *const tcuda_trace_t, _: *mut c_void) {
    INSIDE.store(true, SeqCst);
    while !GO.load(SeqCst) {
        std::thread::yield_now();
    }
}

/// The thread that is inside of the function is not in the child, which waits neither for it nor for the locks that such a thread may hold.
pub fn scene_trace_fork() {
    let id = get!(0, out => tcuda_trace_register(out, 9, Some(stays), null_mut()));
    let own = Own::on(0);
    let stream = own.0 as usize;
    let inside = std::thread::spawn(move || ok!(tcuda_stream_synchronize(handle(stream))));
    while !INSIDE.load(SeqCst) {
        std::thread::yield_now();
    }
    forked(|| {
        // If it waits, it ends so.
        unsafe { libc::alarm(60) };
        fails!(FORKED, tcuda_trace_unregister(id));
        fails!(FORKED, tcuda_unregister_pressure_callback(id));
        fails!(FORKED, tcuda_unregister_oom_observer(id));
        fails!(FORKED, tcuda_sanitizer_report_count(&mut 0));
        fails!(FORKED, tcuda_sanitizer_set_callback(None, null_mut()));
    });
    GO.store(true, SeqCst);
    inside.join().unwrap();
    ok!(tcuda_trace_unregister(id));
}

fn a_child_of_fork_waits_for_no_first_call() {
    in_child("log_fork", &[("TCUDA_SYNC_DEBUG", "nonsense")]);
}

unsafe extern "C" fn stays_with_line(_: i32, _: *const c_char, _: *mut c_void) {
    INSIDE.store(true, SeqCst);
    while !GO.load(SeqCst) {
        std::thread::yield_now();
    }
}

/// The thread that makes the first call of all is in the function that hears what is wrong with the environment. No device was looked for.
pub fn scene_log_fork() {
    ok!(tcuda_set_log_callback(Some(stays_with_line), null_mut()));
    let first = std::thread::spawn(|| assert!(device_count() > 0));
    while !INSIDE.load(SeqCst) {
        std::thread::yield_now();
    }
    forked(|| {
        unsafe { libc::alarm(60) };
        assert_eq!(device_count(), 0);
        fails!(FORKED, tcuda_init(std::ptr::null()));
        fails!(FORKED, tcuda_set_log_callback(None, null_mut()));
        assert_eq!(text(tcuda_status_name(2)), "TCUDA_ERROR_INVALID_HANDLE");
    });
    GO.store(true, SeqCst);
    first.join().unwrap();
}

fn a_child_of_fork_waits_for_no_lock() {
    in_child("fork_beside", &[]);
}

/// Other threads are in the midst of calls that a child can make too.
pub fn scene_fork_beside() {
    fn waits() {
        ok!(tcuda_stream_wait_stream(Own::on(0).0, NULL));
    }
    let calls: [fn(); 6] = [
        || ok!(tcuda_set_log_callback(Some(counted), null_mut())),
        || ok!(tcuda_set_thread_sync_debug_mode(1)),
        || ok!(tcuda_sync_debug_set_callback(None, null_mut())),
        || drop(text(tcuda_status_name(2))),
        || {
            let domain = get!(null_mut(), out => tcuda_nvtx_domain_create(out, c"a".as_ptr()));
            ok!(tcuda_nvtx_domain_destroy(domain));
        },
        // A thread that ends has events to give back.
        || std::thread::spawn(waits).join().unwrap(),
    ];
    waits();
    let threads = calls.map(|call| {
        std::thread::spawn(move || {
            while !GO.load(SeqCst) {
                call();
            }
        })
    });
    for _ in 0..200 {
        forked(|| {
            unsafe { libc::alarm(60) };
            let mut needed = 0;
            fails!(FORKED, tcuda_set_log_callback(None, null_mut()));
            fails!(FORKED, tcuda_set_sync_debug_mode(1));
            fails!(FORKED, tcuda_set_thread_sync_debug_mode(0));
            fails!(FORKED, tcuda_sync_debug_set_callback(None, null_mut()));
            fails!(FORKED, tcuda_config_dump(null_mut(), 0, &mut needed));
            fails!(FORKED, tcuda_nvtx_domain_create(&mut null_mut(), c"a".as_ptr()));
            ok!(tcuda_snapshot_destroy(null_mut()));
            assert_eq!(text(tcuda_status_name(3)), "TCUDA_ERROR_INVALID_DEVICE");
            assert_eq!(text(tcuda_get_allocator_backend()), "");
            // With what ends with a thread. A driver's own end is another matter.
            if backend() == "sim" {
                unsafe { libc::exit(0) }
            }
        });
    }
    GO.store(true, SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn a_child_that_is_forked_before_the_first_use_waits_for_no_lock() {
    in_child("fork_early", &[]);
}

unsafe extern "C" fn asked(_: *const tcuda_pressure_t, _: *mut c_void) -> bool {
    false
}

unsafe extern "C" fn told(_: *const tcuda_oom_t, _: *mut c_void) {}

unsafe extern "C" fn traced(_: *const tcuda_trace_t, _: *mut c_void) {}

unsafe extern "C" fn gives(_: usize, _: i32, _: tcuda_stream_t, _: *mut c_void) -> *mut c_void {
    null_mut()
}

unsafe extern "C" fn takes(_: *mut c_void, _: usize, _: i32, _: tcuda_stream_t, _: *mut c_void) {}

/// Another thread is in the midst of a call that needs no device, and the child makes the same: it works, or it is refused.
pub fn scene_fork_early() {
    /// As the first call went.
    fn ends(made: tcuda_status_t, end: impl FnOnce() -> tcuda_status_t) -> tcuda_status_t {
        if made == TCUDA_SUCCESS { end() } else { made }
    }
    let calls: [fn() -> tcuda_status_t; 9] = [
        || {
            let mut id = 0;
            ends(unsafe { tcuda_register_pressure_callback(&mut id, Some(asked), null_mut()) }, || tcuda_unregister_pressure_callback(id))
        },
        || {
            let mut id = 0;
            ends(unsafe { tcuda_register_oom_observer(&mut id, Some(told), null_mut()) }, || tcuda_unregister_oom_observer(id))
        },
        || {
            let mut id = 0;
            ends(unsafe { tcuda_trace_register(&mut id, 0, Some(traced), null_mut()) }, || tcuda_trace_unregister(id))
        },
        || {
            let mut domain = null_mut();
            ends(unsafe { tcuda_nvtx_domain_create(&mut domain, c"a".as_ptr()) }, || tcuda_nvtx_domain_destroy(domain))
        },
        || {
            let mut allocator = null_mut();
            let made = unsafe { tcuda_pluggable_allocator_create(&mut allocator, Some(gives), Some(takes), null_mut()) };
            ends(made, || tcuda_pluggable_allocator_destroy(allocator))
        },
        || {
            let mut function = null_mut();
            let source = c"template <typename T> T same(T x) { return x; }".as_ptr();
            ends(unsafe { tcuda_jit_create(&mut function, source, null(), 0) }, || tcuda_jit_destroy(function))
        },
        || tcuda_manual_seed_all(1),
        || unsafe { tcuda_set_alloc_conf(null()) },
        || unsafe { tcuda_sanitizer_set_callback(None, null_mut()) },
    ];
    static STOP: AtomicBool = AtomicBool::new(false);
    for call in calls {
        STOP.store(false, SeqCst);
        let beside = std::thread::spawn(move || {
            while !STOP.load(SeqCst) {
                assert_eq!(call(), TCUDA_SUCCESS);
            }
        });
        for _ in 0..100 {
            forked(|| {
                // If it waits, it ends so.
                unsafe { libc::alarm(60) };
                assert!(matches!(call(), TCUDA_SUCCESS | TCUDA_ERROR_FORKED));
            });
        }
        STOP.store(true, SeqCst);
        beside.join().unwrap();
    }
    // Nobody has looked for a device.
    forked(|| assert!(tcuda_is_available()));
}

fn a_child_that_is_forked_in_the_first_call_waits_for_nobody() {
    in_child("fork_in_first", &[("TCUDA_LOG", "nonsense")]);
}

/// In processes that have called nothing yet, another thread makes the first call while this one forks, sooner or later.
pub fn scene_fork_in_first() {
    let calls: [fn(); 3] = [
        || assert!(matches!(tcuda_manual_seed_all(1), TCUDA_SUCCESS | TCUDA_ERROR_FORKED)),
        || assert!(matches!(unsafe { tcuda_nvtx_mark(c"a".as_ptr()) }, TCUDA_SUCCESS | TCUDA_ERROR_FORKED)),
        || assert!(matches!(tcuda_set_device(0), TCUDA_SUCCESS | TCUDA_ERROR_FORKED)),
    ];
    let started = Instant::now();
    // Of all lengths soon: a driver that takes a quarter of a second to start has time for some only.
    for turn in (0..1200).map(|at| at * 7 % 1200).take_while(|_| started.elapsed() < Duration::from_secs(20)) {
        let call = calls[turn % calls.len()];
        forked(|| {
            let ready = Arc::new(Barrier::new(2));
            let beside = std::thread::spawn({
                let ready = ready.clone();
                move || {
                    ready.wait();
                    call();
                }
            });
            ready.wait();
            (0..turn / 10 * 20).for_each(|_| std::hint::spin_loop());
            forked(|| {
                // If it waits, it ends so.
                unsafe { libc::alarm(60) };
                call();
            });
            beside.join().unwrap();
        });
    }
}

fn who_hears_of_wrong_options_may_use_memory() {
    in_child("log_again", &[("TCUDA_ALLOC_CONF", "nonsense"), ("TCUDA_MEMORY_POISON", "nonsense")]);
}

unsafe extern "C" fn allocates(_: i32, _: *const c_char, _: *mut c_void) {
    LINES.fetch_add(1, SeqCst);
    ok!(tcuda_change_current_allocator(null_mut()));
    assert_eq!(text(tcuda_get_allocator_backend()), "native");
    free(allocate(4096, default_of(0)));
}

/// Each is told once, with no lock held, and holds when it is told.
pub fn scene_log_again() {
    ok!(tcuda_set_log_callback(Some(allocates), null_mut()));
    assert_eq!(text(tcuda_get_allocator_backend()), "native");
    free(allocate(4096, default_of(0)));
    assert_eq!(LINES.load(SeqCst), 2);
    ok!(tcuda_shutdown());
    ok!(tcuda_init(std::ptr::null()));
    assert_eq!(LINES.load(SeqCst), 4);
}

fn threads_that_change_their_modes_do_not_lose_each_others() {
    let work = || {
        let own = Own::on(0);
        for _ in 0..100_000 {
            ok!(tcuda_set_thread_sync_debug_mode(2));
            fails!(INVALID_STATE, tcuda_stream_synchronize(own.0));
            ok!(tcuda_set_thread_sync_debug_mode(-1));
        }
    };
    let threads: Vec<_> = (0..2).map(|_| std::thread::spawn(work)).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    ok!(tcuda_stream_synchronize(default_of(0)));
    ok!(tcuda_sync_debug_reset_stats());
}

fn what_pytorch_frees_late_is_no_warning() {
    in_child("torch_late", &[]);
}

static LINES: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn counted(_: i32, _: *const c_char, _: *mut c_void) {
    LINES.fetch_add(1, SeqCst);
}

/// Destructors run late: of tensors, and of graphs.
pub fn scene_torch_late() {
    ok!(tcuda_set_log_callback(Some(counted), null_mut()));
    let block = tcuda_torch_alloc(4096, 0, NULL);
    assert!(!block.is_null());
    let late = || {
        tcuda_torch_free(block, 4096, 0, NULL);
        tcuda_torch_release_pool(0, 1, 2);
        assert_eq!(LINES.load(SeqCst), 0);
    };
    forked(late);
    ok!(tcuda_shutdown());
    late();
    // What is wrong while tcuda runs is told.
    ok!(tcuda_init(std::ptr::null()));
    tcuda_torch_free(8 as *mut c_void, 4096, 0, NULL);
    tcuda_torch_release_pool(0, 1, 2);
    assert_eq!(LINES.load(SeqCst), 2);
}
