//! Who looks on, where things end: in a child of fork, after a shutdown, with threads that come and go.

use crate::init::{forked, in_child};
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use tcuda::capi::error::tcuda_set_log_callback;
use tcuda::capi::init::*;
use tcuda::capi::pressure::*;
use tcuda::capi::sanitizer::*;
use tcuda::capi::stream::*;
use tcuda::capi::sync_debug::*;
use tcuda::capi::torch::*;
use tcuda::capi::trace::*;

tests![a_child_of_fork_waits_for_nobody, threads_that_change_their_modes_do_not_lose_each_others, what_pytorch_frees_late_is_no_warning,];

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
