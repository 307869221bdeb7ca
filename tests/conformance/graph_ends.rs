//! Captures that nobody ends well, and what goes on beside them.

use crate::graph::*;
use crate::init::in_child;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use tcuda::base::Status::*;
use tcuda::capi::copy::*;
use tcuda::capi::device::tcuda_mem_get_info;
use tcuda::capi::error::tcuda_set_log_callback;
use tcuda::capi::event::*;
use tcuda::capi::graph::*;
use tcuda::capi::init::*;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::plugin::*;
use tcuda::capi::pool::*;
use tcuda::capi::sim::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;

tests![
    a_fork_that_is_not_joined_leaves_all_usable,
    a_spoilt_capture_names_what_did_it,
    a_copy_of_pageable_memory_is_refused_and_the_capture_goes_on,
    a_capture_ends_with_its_graph_and_with_its_stream,
    a_capture_whose_end_fails_can_be_ended: [Faults],
    a_capture_ends_with_its_thread,
    caches_are_emptied_beside_a_capture,
    another_thread_cannot_end_it_unless_it_is_relaxed,
    a_thread_that_ends_leaves_the_captures_of_others,
    a_capture_that_the_end_of_a_thread_begins_is_ended,
    what_is_said_of_options_may_ask_for_the_pool,
    captures_on_several_threads,
    resets_beside_captures_and_updates,
    caches_go_on_beside_a_capture,
    a_threads_first_memory_of_its_default_stream_ends_no_capture,
    a_threads_default_stream_in_a_capture_has_its_memory_from_the_graph,
    first_access_to_a_peer_ends_no_capture: [TwoDevices],
    a_capture_of_two_devices: [TwoDevices, VirtualMemory],
    a_capture_out_of_memory: [VirtualMemory],
    a_shutdown_ends_a_capture,
    a_graph_goes_while_a_launch_of_the_programs_own_runs,
    a_graph_goes_from_a_pluggable_allocator_while_a_launch_of_the_programs_own_runs,
    memory_of_a_graph_goes_behind_one_wait: [Faults, VirtualMemory],
    pinned_memory_of_a_graph_that_is_gone_is_free_with_its_replays,
    memory_grows_while_replays_of_a_graph_that_is_gone_are_waited_for: [VirtualMemory, Faults],
    what_is_begun_and_ended_on_one_device_waits_for_no_other: [TwoDevices],
    a_shutdown_beside_a_capture_of_another_thread,
];

fn a_fork_that_is_not_joined_leaves_all_usable() {
    empty_caches();
    let (a, b) = (Own::new(), Own::new());
    let fork = event();
    let graph = G::new();
    graph.begin(a.0);
    order(a.0, b.0, fork);
    let block = allocate(MIB, b.0);
    fill(block, 1, MIB, b.0);
    let text = fails!(CAPTURE, tcuda_graph_capture_end(graph.0));
    assert!(text.contains("joined") && text.contains("cudaErrorStreamCaptureUnjoined"), "{text}");
    // The block is the program's still.
    fails!(INVALID_STATE, tcuda_graph_pool(graph.0, &mut OWN.clone()));
    is_usable(a.0);
    is_usable(b.0);
    free(block);
    ok!(tcuda_event_destroy(fork));
    drop(graph);
    empty_caches();
}

fn a_spoilt_capture_names_what_did_it() {
    empty_caches();
    let (stream, side) = (Own::new(), Own::new());
    let past = event();
    ok!(tcuda_event_record(past, side.0));
    let graph = G::new();
    let mut done = false;
    let spoilers: [(&str, &dyn Fn() -> tcuda::base::Status); 3] = [
        ("tcuda_stream_synchronize", &|| unsafe { tcuda_stream_synchronize(stream.0) }),
        ("tcuda_stream_wait_event", &|| unsafe { tcuda_stream_wait_event(stream.0, past) }),
        ("tcuda_stream_query", &|| unsafe { tcuda_stream_query(stream.0, (&raw const done).cast_mut()) }),
    ];
    for (name, call) in spoilers {
        graph.begin(stream.0);
        let block = allocate(MIB, stream.0);
        assert_eq!(format!("{:?}", call()), "TCUDA_ERROR_CAPTURE", "{name}");
        // What comes behind it is refused, and not blamed.
        fails!(CAPTURE, tcuda_memset_async(block, 1, MIB, stream.0));
        let text = fails!(CAPTURE, tcuda_graph_capture_end(graph.0));
        assert!(text.starts_with(&format!("{name} cannot be captured")), "{text}");
        fails!(INVALID_STATE, tcuda_graph_capture_end(graph.0));
        free(block);
        is_usable(stream.0);
    }
    done = false;
    assert!(!done);
    ok!(tcuda_event_destroy(past));
    drop(graph);
    empty_caches();
}

fn a_threads_default_stream_in_a_capture_has_its_memory_from_the_graph() {
    empty_caches();
    let (stream, own) = (Own::new(), handle(2));
    let (fork, join) = (event(), event());
    // So that it is known as this thread's.
    free(allocate(40 * MIB, own));
    let graph = G::new();
    let captured = graph.capture(stream.0, || {
        order(stream.0, own, fork);
        let block = allocate(40 * MIB, own);
        fill(block, 0x11, 40 * MIB, own);
        free(block);
        order(own, stream.0, join);
        block
    });
    let block = allocate(40 * MIB, own);
    assert_ne!(block, captured);
    fill(block, 0x22, 40 * MIB, own);
    synchronize(own);
    graph.replay(stream.0);
    synchronize(stream.0);
    assert!(bytes_of(block, 40 * MIB, own).iter().all(|byte| *byte == 0x22));
    free(block);
    [fork, join].into_iter().for_each(|event| ok!(tcuda_event_destroy(event)));
    drop((graph, stream));
    empty_caches();
}

fn a_copy_of_pageable_memory_is_refused_and_the_capture_goes_on() {
    empty_caches();
    let stream = Own::new();
    let (block, mut bytes) = (allocate(MIB, stream.0), vec![3u8; MIB]);
    fill(block, 1, MIB, stream.0);
    let graph = G::new();
    graph.begin(stream.0);
    fill(block, 2, MIB, stream.0);
    let text = fails!(CAPTURE, tcuda_copy_async(block, bytes.as_ptr().cast(), MIB, stream.0));
    // Which side of the copy it was, and what to take in its place.
    assert!(text.contains("(host memory) to") && text.contains("tcuda_host_malloc_cached"), "{text}");
    fails!(CAPTURE, tcuda_copy_async(bytes.as_mut_ptr().cast(), block, MIB, stream.0));
    ok!(tcuda_set_stream(stream.0));
    for non_blocking in [false, true] {
        fails!(CAPTURE, tcuda_copy(block, bytes.as_ptr().cast(), MIB, non_blocking));
        fails!(CAPTURE, tcuda_copy(bytes.as_mut_ptr().cast(), block, MIB, non_blocking));
    }
    ok!(tcuda_set_stream(null_mut()));
    ok!(tcuda_graph_capture_end(graph.0));
    ok!(tcuda_graph_replay(graph.0, stream.0));
    ok!(tcuda_copy_async(bytes.as_mut_ptr().cast(), block, MIB, stream.0));
    ok!(tcuda_stream_synchronize(stream.0));
    assert!(bytes.iter().all(|byte| *byte == 2));
    free(block);
    drop(graph);
    is_usable(stream.0);
    empty_caches();
}

/// However often the driver cannot even say whether it goes on.
fn a_capture_whose_end_fails_can_be_ended() {
    empty_caches();
    let stream = Own::new();
    let graph = G::new();
    for call in [c"cudaGetDevice", c"cudaStreamEndCapture", c"cuStreamGetCaptureInfo_v2"] {
        for failures in 1..=4 {
            graph.begin(stream.0);
            (1..=failures).for_each(|nth| ok!(tcuda_sim_fail_at(call.as_ptr(), nth, 1)));
            let mut status = TCUDA_ERROR_CUDA;
            for _ in 0..=failures {
                status = tcuda_graph_capture_end(graph.0);
                if status == TCUDA_SUCCESS {
                    break;
                }
            }
            ok!(tcuda_sim_clear_faults());
            assert_eq!(status, TCUDA_SUCCESS, "{call:?} {failures} times");
            is_usable(stream.0);
            ok!(tcuda_graph_reset(graph.0));
        }
    }
    drop(graph);
    empty_caches();
}

fn a_capture_ends_with_its_graph_and_with_its_stream() {
    empty_caches();
    for way in 0..4 {
        let (stream, joined) = (Own::new(), Own::new());
        let graph = G::new();
        let fork = event();
        graph.begin(stream.0);
        let block = allocate(MIB, stream.0);
        order(stream.0, joined.0, fork);
        fill(block, 1, MIB, joined.0);
        match way {
            0 => drop(graph),
            1 => {
                ok!(tcuda_graph_reset(graph.0));
                fails!(INVALID_STATE, tcuda_graph_capture_end(graph.0));
                drop(graph);
            }
            2 => {
                ok!(tcuda_stream_destroy(stream.0));
                fails!(INVALID_STATE, tcuda_graph_capture_end(graph.0));
                is_usable(joined.0);
            }
            _ => {
                ok!(tcuda_stream_destroy(joined.0));
                fails!(INVALID_STATE, tcuda_graph_capture_end(graph.0));
                is_usable(stream.0);
            }
        }
        if way < 2 {
            is_usable(stream.0);
            is_usable(joined.0);
        }
        free(block);
        ok!(tcuda_event_destroy(fork));
        is_usable(Own::new().0);
    }
    empty_caches();
}

/// What is left of a graph waits for a stream that is captured: it goes the next time, and that is no failure.
fn caches_are_emptied_beside_a_capture() {
    let (own, block) = (Own::on(0), allocate(MIB, NULL));
    let write = || ok!(tcuda_memset_async(block, 1, MIB, own.0));
    let first = G::captured(own.0, || {
        free(allocate(MIB, own.0));
        write();
    });
    first.replay(own.0);
    let second = G::new();
    second.begin(own.0);
    drop(first);
    write();
    ok!(tcuda_empty_cache(0));
    second.end();
    drop(second);
    ok!(tcuda_stream_synchronize(own.0));
    free(block);
    empty_caches();
}

fn a_capture_ends_with_its_thread() {
    empty_caches();
    let stream = Own::new();
    let on = stream.0 as usize;
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        let graph = G::new();
        let there = G(graph.0);
        let block = std::thread::spawn(move || {
            let there = std::mem::ManuallyDrop::new(there);
            ok!(tcuda_graph_capture_begin(there.0, handle(on), OWN, mode));
            allocate(MIB, handle(on)) as usize
        })
        .join()
        .unwrap();
        fails!(INVALID_STATE, tcuda_graph_capture_end(graph.0));
        is_usable(stream.0);
        // The graph is as new.
        graph.begin(stream.0);
        graph.end();
        free(block as *mut c_void);
    }
    empty_caches();
}

fn another_thread_cannot_end_it_unless_it_is_relaxed() {
    empty_caches();
    let stream = Own::new();
    let graph = G::new();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        ok!(tcuda_graph_capture_begin(graph.0, stream.0, OWN, mode));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let graph = &graph;
                if mode == RELAXED {
                    return graph.end();
                }
                let text = fails!(CAPTURE, tcuda_graph_capture_end(graph.0));
                assert!(text.contains("by the thread that began it"), "{text}");
                fails!(CAPTURE, tcuda_graph_reset(graph.0));
                fails!(CAPTURE, tcuda_graph_destroy(graph.0));
            });
        });
        if mode != RELAXED {
            // It has gone on.
            let block = allocate(MIB, stream.0);
            free(block);
            graph.end();
        }
        graph.replay(stream.0);
        ok!(tcuda_graph_reset(graph.0));
    }
    drop(graph);
    empty_caches();
}

static CAPTURED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn begin_at_the_end(graph: *mut c_void) {
    let stream = handle(CAPTURED.load(Relaxed));
    let began = tcuda_graph_capture_begin(graph.cast(), stream, OWN, THREAD_LOCAL);
    CAPTURED.store(began as usize, Relaxed);
}

/// In the destructor of a pthread key, in a thread that had nothing of tcuda's; in one that had captured, whose captures have ended by then, none begins.
fn a_capture_that_the_end_of_a_thread_begins_is_ended() {
    empty_caches();
    let (stream, graph, mut key) = (Own::new(), G::new(), 0);
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(begin_at_the_end)) }, 0);
    let (number, on) = (graph.0 as usize, stream.0 as usize);
    for (had_captured, begins) in [(false, TCUDA_SUCCESS), (true, TCUDA_ERROR_INVALID_STATE)] {
        CAPTURED.store(on, Relaxed);
        let thread = std::thread::spawn(move || {
            if had_captured {
                drop(G::captured(handle(on), || free(allocate(MIB, handle(on)))));
            }
            unsafe { libc::pthread_setspecific(key, number as *const c_void) }
        });
        assert_eq!((thread.join().unwrap(), CAPTURED.load(Relaxed)), (0, begins as usize));
        assert!(!get!(false, out => tcuda_stream_is_capturing(stream.0, out)));
    }
    assert_eq!(unsafe { libc::pthread_key_delete(key) }, 0);
    graph.capture(stream.0, || {
        let block = allocate(MIB, stream.0);
        fill(block, 6, MIB, stream.0);
        free(block);
    });
    graph.replay(stream.0);
    ok!(tcuda_stream_synchronize(stream.0));
    drop(graph);
    empty_caches();
}

/// A capture is the first that wants memory, and so reads them.
fn what_is_said_of_options_may_ask_for_the_pool() {
    in_child("logging", &[("TCUDA_ALLOC_CONF", "no_such_key:1")]);
}

static LOGGED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn asks_for_the_pool(_: i32, _: *const c_char, pool: *mut c_void) {
    let mut stats = tcuda_memory_stats_t { struct_size: size_of::<tcuda_memory_stats_t>(), ..unsafe { std::mem::zeroed() } };
    ok!(tcuda_graph_pool_stats(&mut stats, unsafe { *pool.cast() }));
    LOGGED.fetch_add(1, Relaxed);
}

pub fn scene_logging() {
    let mut pool = get!(OWN, out => tcuda_graph_pool_handle(out));
    ok!(tcuda_set_log_callback(Some(asks_for_the_pool), (&raw mut pool).cast()));
    let (stream, graph) = (Own::new(), G::new());
    ok!(tcuda_graph_capture_begin(graph.0, stream.0, pool, RELAXED));
    graph.end();
    assert!(LOGGED.load(Relaxed) > 0);
    ok!(tcuda_set_log_callback(None, null_mut()));
}

fn a_thread_that_ends_leaves_the_captures_of_others() {
    empty_caches();
    let (first, second) = (Own::new(), Own::new());
    let (graph, barrier, on_first) = (G::new(), std::sync::Barrier::new(2), first.0 as usize);
    std::thread::scope(|scope| {
        let began = scope.spawn(|| {
            let graph = &graph;
            ok!(tcuda_graph_capture_begin(graph.0, handle(on_first), OWN, RELAXED));
            free(allocate(MIB, handle(on_first)));
            barrier.wait();
            barrier.wait();
        });
        barrier.wait();
        // The capture is ended here, and the same graph begins another one.
        graph.end();
        ok!(tcuda_graph_reset(graph.0));
        ok!(tcuda_graph_capture_begin(graph.0, second.0, OWN, RELAXED));
        barrier.wait();
        began.join().unwrap();
    });
    let block = allocate(MIB, second.0);
    fill(block, 6, MIB, second.0);
    graph.end();
    graph.replay(second.0);
    assert_eq!(bytes_of(block, 1, second.0), [6]);
    free(block);
    drop(graph);
    empty_caches();
}

fn captures_on_several_threads() {
    empty_caches();
    const ROUNDS: usize = 25;
    std::thread::scope(|scope| {
        for worker in 0..4u8 {
            scope.spawn(move || {
                let stream = Own::new();
                for round in 0..ROUNDS {
                    let graph = G::new();
                    ok!(tcuda_graph_capture_begin(graph.0, stream.0, OWN, THREAD_LOCAL));
                    let blocks: Vec<_> = (1..5).map(|part| allocate(part * 700 * (round + 1), stream.0)).collect();
                    blocks.iter().for_each(|block| fill(*block, i32::from(worker) + 1, 700, stream.0));
                    assert_eq!(pool_of_capture(&graph, round), 4);
                    graph.replay(stream.0);
                    for block in blocks {
                        assert_eq!(bytes_of(block, 700, stream.0), [worker + 1; 700]);
                        free(block);
                    }
                }
            });
        }
        // Caches are used and emptied beside them.
        scope.spawn(|| {
            let stream = Own::new();
            for round in 1..ROUNDS * 4 {
                let block = allocate(round * 3000, stream.0);
                fill(block, 7, 3000, stream.0);
                free(block);
                if round % 10 == 0 {
                    ok!(tcuda_empty_cache(-1));
                }
            }
        });
    });
    empty_caches();
}

/// Ends the capture, on every third round by a detour; how many blocks its pool has.
fn pool_of_capture(graph: &G, round: usize) -> i64 {
    graph.end();
    if round.is_multiple_of(3) {
        ok!(tcuda_empty_cache(-1));
    }
    pool_stats(graph.pool()).allocation.all.current
}

/// One thread resets graphs all the time that others capture, replay and update from.
fn resets_beside_captures_and_updates() {
    empty_caches();
    const ROUNDS: usize = 600;
    let (stream, side) = (Own::new(), Own::new());
    let (one, kept) = (G::new(), G::with(TCUDA_GRAPH_KEEP));
    let block = allocate(64, side.0);
    let updated = G::new();
    ok!(tcuda_graph_capture_begin(updated.0, side.0, OWN, THREAD_LOCAL));
    fill(block, 1, 64, side.0);
    updated.end();
    let over = AtomicBool::new(false);
    let streams = [stream.0, side.0].map(|stream| stream as usize);
    std::thread::scope(|scope| {
        let (one, kept, updated, over) = (&one, &kept, &updated, &over);
        scope.spawn(move || {
            while !over.load(Relaxed) {
                for graph in [one, kept] {
                    let status = tcuda_graph_reset(graph.0);
                    assert!([TCUDA_SUCCESS, TCUDA_ERROR_CAPTURE].contains(&status), "{}", message());
                }
                std::thread::yield_now();
            }
        });
        let block = block as usize;
        scope.spawn(move || {
            let on = handle(streams[1]);
            while !over.load(Relaxed) {
                ok!(tcuda_graph_capture_begin(kept.0, on, OWN, THREAD_LOCAL));
                fill(block as *mut c_void, 1, 64, on);
                kept.end();
                let status = tcuda_graph_update(updated.0, kept.0);
                assert!([TCUDA_SUCCESS, TCUDA_ERROR_INVALID_STATE].contains(&status), "{}", message());
                while tcuda_graph_reset(kept.0) != TCUDA_SUCCESS {}
            }
        });
        let on = handle(streams[0]);
        for _ in 0..ROUNDS {
            ok!(tcuda_graph_capture_begin(one.0, on, OWN, THREAD_LOCAL));
            let block = allocate(MIB, on);
            fill(block, 1, MIB, on);
            free(block);
            one.end();
            let status = tcuda_graph_replay(one.0, on);
            assert!([TCUDA_SUCCESS, TCUDA_ERROR_INVALID_STATE].contains(&status), "{}", message());
            synchronize(on);
            while tcuda_graph_reset(one.0) != TCUDA_SUCCESS {}
        }
        over.store(true, Relaxed);
    });
    free(block);
    drop((one, kept, updated));
    empty_caches();
}

fn a_threads_first_memory_of_its_default_stream_ends_no_capture() {
    let stream = Own::new();
    G::captured(stream.0, || {
        std::thread::spawn(|| free(allocate(MIB, handle(PER_THREAD)))).join().unwrap();
    });
}

fn first_access_to_a_peer_ends_no_capture() {
    in_child("capturing_peer", &[]);
}

pub fn scene_capturing_peer() {
    let [apart, here, there] = [0, 0, 1].map(Own::on);
    let (to, from) = (allocate(MIB, here.0), allocate(MIB, there.0));
    drop(G::captured(apart.0, || copy(to, from, MIB, here.0)));
    ok!(tcuda_stream_synchronize(here.0));
    [to, from].into_iter().for_each(free);
}

/// Neither can be waited for as a whole until it is over.
fn a_capture_of_two_devices() {
    let (here, there) = (Own::on(0), Own::on(1));
    let pools = [0, 1].map(|device| get!(null_mut(), out => tcuda_mem_pool_create(out, device, std::ptr::null())));
    let block = allocate(MIB, there.0);
    drop(G::captured(here.0, || {
        ok!(tcuda_stream_wait_stream(there.0, here.0));
        fill(block, 1, MIB, there.0);
        for pool in pools {
            let text = fails!(CAPTURE, tcuda_mem_pool_pause(pool, &mut 0, TCUDA_PAUSE_KEEP));
            assert!(text.contains("while a graph is captured"), "{text}");
        }
        ok!(tcuda_stream_wait_stream(here.0, there.0));
    }));
    for pool in pools {
        ok!(tcuda_mem_pool_pause(pool, &mut 0, TCUDA_PAUSE_KEEP));
        ok!(tcuda_mem_pool_resume(pool));
        ok!(tcuda_mem_pool_destroy(pool));
    }
    free(block);
    empty_caches();
}

fn caches_go_on_beside_a_capture() {
    empty_caches();
    let (stream, a, b) = (Own::new(), Own::new(), Own::new());
    let graph = G::new();
    let host = pinned(MIB);
    let block = allocate(12 * MIB, a.0);
    copy(host, block, MIB, a.0);
    graph.begin(stream.0);
    // Each of these would spoil the capture if it asked or waited as it does otherwise.
    free(block);
    let other = allocate(12 * MIB, b.0);
    ok!(tcuda_record_stream(other, a.0));
    free(other);
    ok!(tcuda_host_free_cached(host.cast()));
    free(allocate(40 * MIB, b.0));
    ok!(tcuda_host_free_cached(pinned(2 * MIB).cast()));
    ok!(tcuda_empty_cache(-1));
    ok!(tcuda_host_empty_cache());
    stat(-1, "active_bytes.all.current");
    // Streams come and go, also with memory that they have used.
    let passing = Own::new();
    free(allocate(3 * MIB, passing.0));
    drop(passing);
    drop(Own::new());
    ok!(tcuda_empty_cache(-1));
    free(allocate(MIB, stream.0));
    graph.end();
    drop(graph);
    ok!(tcuda_host_empty_cache());
    empty_caches();
}

fn a_capture_out_of_memory() {
    empty_caches();
    let (stream, other) = (Own::new(), Own::new());
    let _limit = Limit::of(device(), 64 * MIB as u64);
    free(allocate(60 * MIB, other.0));
    synchronize(other.0);
    let graph = G::new();
    graph.begin(stream.0);
    // What the device has free goes back for it.
    let block = allocate(40 * MIB, stream.0);
    let mut out = null_mut();
    let text = fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut out, 40 * MIB, stream.0));
    assert!(text.contains("out of memory"), "{text}");
    fill(block, 1, MIB, stream.0);
    // The capture goes on.
    graph.end();
    graph.replay(stream.0);
    synchronize(stream.0);
    free(block);
    drop(graph);
    empty_caches();
}

/// PyTorch launches its graphs itself, and tcuda hears nothing of it: their memory has to stay until they are over.
fn a_graph_goes_while_a_launch_of_the_programs_own_runs() {
    let (stream, other) = (Own::on(0), Own::on(0));
    let graph = G::captured(stream.0, || {
        let block = allocate(32 << 20, stream.0);
        fill(block, 7, 32 << 20, stream.0);
        free(block);
    });
    let (mut captured, mut exec) = (null_mut(), null_mut());
    graph.replay(stream.0);
    ok!(tcuda_stream_synchronize(stream.0));
    ok!(tcuda_graph_native(graph.0, &mut captured, &mut exec));
    let gate = Gate::on(other.0);
    let opener = gate.open_later();
    tcuda::runtime::runtime().unwrap().graph_launch(exec as usize, other.0 as usize).unwrap();
    drop(graph);
    opener.join().unwrap();
    ok!(tcuda_stream_synchronize(other.0));
    empty_caches();
}

/// The stream that works, what came back of memory, and whether any did before the stream was done.
static WORKS: AtomicUsize = AtomicUsize::new(0);
static BACK: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static EARLY: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn gives(size: usize, _: i32, _: tcuda_stream_t, _: *mut c_void) -> *mut c_void {
    tcuda::runtime::runtime().unwrap().malloc(size).map_or(null_mut(), |address| address as *mut c_void)
}

/// For the next one who asks, as far as it knows.
unsafe extern "C" fn recycles(ptr: *mut c_void, _: usize, _: i32, _: tcuda_stream_t, _: *mut c_void) {
    EARLY.fetch_or(!tcuda::runtime::runtime().unwrap().stream_query(WORKS.load(Relaxed)).unwrap(), Relaxed);
    BACK.lock().unwrap().push(ptr as usize);
}

/// An allocator of the program's own does not wait as the driver does.
fn a_graph_goes_from_a_pluggable_allocator_while_a_launch_of_the_programs_own_runs() {
    let plugin = get!(null_mut(), out => tcuda_pluggable_allocator_create(out, Some(gives), Some(recycles), null_mut()));
    let (stream, other) = (Own::on(0), Own::on(0));
    WORKS.store(other.0 as usize, Relaxed);
    ok!(tcuda_change_current_allocator(plugin));
    let graph = G::captured(stream.0, || {
        let block = allocate(4 * MIB, stream.0);
        fill(block, 7, 4 * MIB, stream.0);
        free(block);
    });
    ok!(tcuda_change_current_allocator(null_mut()));
    let (mut captured, mut exec) = (null_mut(), null_mut());
    graph.replay(stream.0);
    synchronize(stream.0);
    ok!(tcuda_graph_native(graph.0, &mut captured, &mut exec));
    let opener = Gate::on(other.0).open_later();
    tcuda::runtime::runtime().unwrap().graph_launch(exec as usize, other.0 as usize).unwrap();
    drop(graph);
    empty_caches();
    opener.join().unwrap();
    synchronize(other.0);
    let back: Vec<usize> = std::mem::take(&mut *BACK.lock().unwrap());
    assert!(!back.is_empty() && !EARLY.load(Relaxed), "{} came back, before the launch was over: {EARLY:?}", back.len());
    back.into_iter().for_each(|address| tcuda::runtime::runtime().unwrap().free(address).unwrap());
    ok!(tcuda_pluggable_allocator_destroy(plugin));
}

/// And all of it stays where the wait fails, or what the driver keeps: until the next sweep.
fn memory_of_a_graph_goes_behind_one_wait() {
    empty_caches();
    let stream = Own::on(0);
    let calls = |name: &std::ffi::CStr| get!(0, out => tcuda_sim_call_count(out, name.as_ptr()));
    let counted = || [c"cudaFree", c"cudaDeviceSynchronize", c"cuMemUnmap"].map(calls);
    let gone = |before: [u64; 3]| std::array::from_fn(|at| counted()[at] - before[at]);
    let held = || stat(0, "reserved_bytes.all.current");
    let captured = || {
        let graph = G::captured(stream.0, || {
            let blocks = [1, 8, 30, 90].map(|size| allocate(size * MIB, stream.0));
            blocks.into_iter().for_each(|block| fill(block, 7, MIB, stream.0));
            blocks.into_iter().for_each(free);
        });
        graph.replay(stream.0);
        synchronize(stream.0);
        graph
    };
    let drop_counted = |graph| {
        let before = counted();
        drop::<G>(graph);
        ok!(tcuda_sim_clear_faults());
        gone(before)
    };
    let [waits, _, handles] = drop_counted(captured());
    assert!(handles > 2, "{handles} handles");
    assert_eq!((waits, held()), (1, 0));
    // With no room for a block the device is waited for as a whole.
    let graph = captured();
    let all = held();
    [c"cudaMalloc", c"cudaDeviceSynchronize"].into_iter().for_each(|call| ok!(tcuda_sim_fail_at(call.as_ptr(), 1, 2)));
    assert_eq!((drop_counted(graph), held()), ([0, 1, 0], all));
    empty_caches();
    for unmap in 1..=handles {
        let graph = captured();
        let all = held();
        ok!(tcuda_sim_fail_at(c"cuMemUnmap".as_ptr(), unmap, 999));
        let [waits, _, unmapped] = drop_counted(graph);
        assert_eq!((waits, unmapped), (1, handles));
        assert!((1..all).contains(&held()), "{} of {all} bytes", held());
        empty_caches();
    }
}

/// Pinned memory that a graph kept is free as soon as its replays are over, whatever else is asked for; else it is waited for.
fn pinned_memory_of_a_graph_that_is_gone_is_free_with_its_replays() {
    const SIZE: usize = 6 * MIB;
    empty_caches();
    let stream = Own::on(0);
    let device = allocate(SIZE, stream.0);
    for is_over in [true, false] {
        ok!(tcuda_host_empty_cache());
        ok!(tcuda_host_set_memory_limit(SIZE as u64));
        let block = pinned(SIZE);
        let graph = G::captured(stream.0, || copy(device, block.cast(), SIZE, stream.0));
        ok!(tcuda_host_free_cached(block.cast()));
        let message = fails!(OUT_OF_HOST_MEMORY, tcuda_host_malloc_cached(&mut null_mut(), SIZE));
        assert!(message.contains("reset the graphs"), "{message}");
        let gate = Gate::on(stream.0);
        graph.replay(stream.0);
        drop(graph);
        let opener = if is_over {
            gate.open();
            synchronize(stream.0);
            None
        } else {
            Some(gate.open_later())
        };
        assert_eq!(pinned(SIZE), block);
        opener.into_iter().for_each(|opener| opener.join().unwrap());
        ok!(tcuda_host_free_cached(block.cast()));
        // And goes back.
        let graph = G::captured(stream.0, || copy(device, pinned(SIZE).cast(), SIZE, stream.0));
        ok!(tcuda_host_free_cached(block.cast()));
        let gate = Gate::on(stream.0);
        graph.replay(stream.0);
        drop(graph);
        let opener = gate.open_later();
        ok!(tcuda_host_empty_cache());
        opener.join().unwrap();
        assert_eq!(get!(0, out => tcuda_host_memory_stat_get(out, c"allocated_bytes.current".as_ptr())), 0);
        ok!(tcuda_host_set_memory_limit(u64::MAX));
    }
    free(device);
    empty_caches();
}

/// What a stream is doing may need other threads' memory to come to an end, also where more is to go by then. A driver that sees two GPUs maps
/// nothing beside a cudaFree that waits.
fn memory_grows_while_replays_of_a_graph_that_is_gone_are_waited_for() {
    empty_caches();
    let (stream, busy, later) = (Own::on(0), Own::on(0), Own::on(0));
    let graph = G::new();
    let output = graph.capture(stream.0, || {
        let [output, block] = [30, 4].map(|size| allocate(size * MIB, stream.0));
        fill(block, 7, MIB, stream.0);
        free(block);
        output
    });
    graph.replay(stream.0);
    synchronize(stream.0);
    let moment = || std::thread::sleep(std::time::Duration::from_millis(20));
    let gate = Gate::on(busy.0);
    let ends = std::thread::spawn(move || drop(graph));
    moment();
    assert!(!ends.is_finished(), "nobody waited");
    let blocks = [allocate(300 * MIB, stream.0), output];
    free(blocks[1]);
    let second = Gate::on(later.0);
    gate.open();
    moment();
    assert!(!ends.is_finished(), "nobody waited for what was freed meanwhile");
    let last = allocate(600 * MIB, stream.0);
    second.open();
    ends.join().unwrap();
    free(blocks[0]);
    free(last);
    empty_caches();
    assert_eq!(stat(0, "reserved_bytes.all.current"), 0);
}

fn a_shutdown_ends_a_capture() {
    in_child("capturing", &[]);
}

/// Another device may be at a collective that waits for what this thread does next.
fn what_is_begun_and_ended_on_one_device_waits_for_no_other() {
    empty_caches();
    let (first, aside, second) = (Own::on(0), Own::on(0), Own::on(1));
    let mut block = null_mut();
    let graph = G::captured(first.0, || {
        block = allocate(4 * MIB, first.0);
        fill(block, 7, MIB, first.0);
    });
    graph.replay(first.0);
    synchronize(first.0);
    drop(graph);
    // It waits for the device before it goes.
    free(block);
    let held = stat(0, "reserved_bytes.all.current");
    assert!(held > 0);
    let gate = Gate::on(aside.0);
    let captured = || {
        let block = allocate(4 * MIB, second.0);
        fill(block, 7, MIB, second.0);
        free(block);
    };
    drop(G::captured(second.0, captured));
    ok!(tcuda_mem_pool_destroy(get!(null_mut(), out => tcuda_mem_pool_create(out, 1, null()))));
    assert!(!gate.was_passed());
    assert_eq!(stat(0, "reserved_bytes.all.current"), held);
    gate.open();
    synchronize(aside.0);
    empty_caches();
}

fn a_shutdown_beside_a_capture_of_another_thread() {
    in_child("captured_by_another", &[]);
}

pub fn scene_captured_by_another() {
    const MUCH: usize = 512 * MIB;
    let stream = create_on(0);
    let free_memory = || {
        let (mut free, mut total) = (0, 0);
        ok!(tcuda_mem_get_info(&mut free, &mut total, 0));
        free
    };
    let block = allocate(MUCH, default_of(0));
    let before = free_memory();
    // The capture stays: only this thread could end it.
    let graph = std::mem::ManuallyDrop::new(G::new());
    graph.begin(stream);
    let side = event();
    // The device as a whole cannot be waited for.
    let works = Own::on(0);
    let gate = Gate::on(works.0);
    ok!(tcuda_memset_async(block, 1, MUCH, works.0));
    std::thread::scope(|scope| {
        let ends = || {
            let opener = gate.open_later();
            ok!(tcuda_shutdown());
            assert!(gate.was_passed());
            opener.join().unwrap();
        };
        scope.spawn(ends).join().unwrap();
    });
    std::mem::forget(works);
    start().unwrap();
    // A driver keeps some for what it does meanwhile.
    let kept = if backend() == "sim" { 0 } else { 32 * MIB };
    assert!(free_memory() + kept >= before + MUCH, "{} of {MUCH}", free_memory() as i64 - before as i64);
    fails!(INVALID_POINTER, tcuda_free_cached(block));
    fails!(INVALID_HANDLE, tcuda_event_destroy(side));
    is_usable(Own::new().0);
    ok!(tcuda_shutdown());
}

pub fn scene_capturing() {
    let stream = create_on(-1);
    let graph = std::mem::ManuallyDrop::new(G::new());
    graph.begin(stream);
    allocate(MIB, stream);
    let ready = std::mem::ManuallyDrop::new(G::with(TCUDA_GRAPH_KEEP));
    ok!(tcuda_graph_destroy(graph.0));
    ready.begin(create_on(-1));
    ready.end();
    let open = std::mem::ManuallyDrop::new(G::new());
    open.begin(create_on(-1));
    ok!(tcuda_shutdown());
    ok!(tcuda_graph_destroy(open.0));
    assert!(!tcuda_is_current_stream_capturing());
    start().unwrap();
    fails!(INVALID_HANDLE, tcuda_graph_replay(ready.0, NULL));
    is_usable(Own::new().0);
    ok!(tcuda_shutdown());
}
