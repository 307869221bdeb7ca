//! Faults on demand: every call of the backend fails once, in turn; a device goes bad; and what is hot calls nothing.

use crate::comm::made;
use crate::graph::{G, is_usable};
use crate::init::in_child;
use crate::kit::*;
use crate::reference::F32;
use crate::tensor::Managed;
use crate::{fails, get, ok, tests};
use std::collections::BTreeSet;
use std::ptr::{null, null_mut};
use tcuda::base::Status;
use tcuda::capi::comm::tcuda_comm_broadcast;
use tcuda::capi::copy::tcuda_memset_async;
use tcuda::capi::device::*;
use tcuda::capi::error::{tcuda_error_info_t, tcuda_last_error};
use tcuda::capi::event::*;
use tcuda::capi::history::tcuda_memory_annotate;
use tcuda::capi::init::tcuda_shutdown;
use tcuda::capi::random::*;
use tcuda::capi::sim::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::{tcuda_event_t, tcuda_stream_t};
use tcuda::random::tcuda_philox_state_t;

tests![
    hot_calls_make_no_call_of_cuda: [Faults],
    each_call_may_fail_once: [Faults, TwoDevices],
    a_lost_device_says_so_and_the_others_work: [Faults, TwoDevices],
    a_fault_that_cuda_does_not_recover_from_stays: [Faults, TwoDevices],
    a_lost_device_that_is_current_keeps_nothing_from_others: [Faults, TwoDevices],
    whoever_hears_of_a_lost_device_says_which: [Faults, TwoDevices],
    a_lost_device_says_what_it_was_given: [Faults, TwoDevices, Unfilled],
    without_a_record_nothing_is_said_of_work: [Faults],
    launches_that_block_fail_where_they_are_made: [Faults],
];

/// Streams and events that live on the simulated devices.
pub fn living() -> (u64, u64) {
    let mut live: tcuda_sim_live_t = unsafe { std::mem::zeroed() };
    live.struct_size = size_of::<tcuda_sim_live_t>();
    ok!(tcuda_sim_live(&mut live, -3));
    (live.streams, live.events)
}

fn calls() -> u64 {
    get!(0, out => tcuda_sim_call_count(out, null()))
}

fn hot_calls_make_no_call_of_cuda() {
    let own = Own::new();
    let drawn: BTreeSet<_> = (0..32).map(|_| get!(NULL, out => tcuda_stream_from_pool(out, 0, 0))).collect();
    assert_eq!(drawn.len(), 32);
    ok!(tcuda_stream_wait_stream(own.0, default_of(0)));
    let event = tcuda::event::pool::take(0).unwrap();
    tcuda::event::pool::give(0, event);
    let before = calls();
    for _ in 0..100 {
        get!(NULL, out => tcuda_stream_from_pool(out, 0, 0));
        get!(NULL, out => tcuda_current_stream(out, 0));
        get!(NULL, out => tcuda_default_stream(out, 0));
        get!(-1, out => tcuda_stream_device(own.0, out));
        get!(NULL, out => tcuda_stream_native(own.0, out));
        let event = tcuda::event::pool::take(0).unwrap();
        tcuda::event::pool::give(0, event);
    }
    assert_eq!(calls() - before, 0);
}

fn each_call_may_fail_once() {
    in_child("sweep", &[]);
}

/// What a program does with streams and events on two devices; the statuses of all calls.
fn workload() -> Vec<Status> {
    let mut statuses = Vec::new();
    let mut did = |status: Status| statuses.push(status);
    let (mut own, mut pooled): ([tcuda_stream_t; 2], tcuda_stream_t) = ([NULL; 2], NULL);
    let mut events: [tcuda_event_t; 3] = [null_mut(); 3];
    let (mut complete, mut number, mut time, mut free, mut total) = (false, 0, 0.0, 0, 0);
    unsafe {
        did(tcuda_set_device(0));
        did(tcuda_stream_create(&mut own[0], 0, 0));
        did(tcuda_stream_create(&mut own[1], 1, -1));
        did(tcuda_stream_from_pool(&mut pooled, 1, -2));
        did(tcuda_event_create(&mut events[0], 0));
        did(tcuda_event_create(&mut events[1], 0));
        for stream in own {
            if !stream.is_null() {
                did(tcuda_set_stream(stream));
                did(tcuda_stream_wait_stream(stream, default_of(0)));
                did(tcuda_stream_wait_stream(default_of(1), stream));
                did(tcuda_stream_query(stream, &mut complete));
                did(tcuda_stream_priority(stream, &mut number));
            }
        }
        did(tcuda_stream_record_event(default_of(1), &mut events[2]));
        for event in events.into_iter().filter(|event| !event.is_null()) {
            did(tcuda_stream_wait_event(NULL, event));
            did(tcuda_event_synchronize(event));
        }
        if events[..2].iter().all(|event| !event.is_null()) {
            let recorded = [tcuda_event_record(events[0], default_of(0)), tcuda_event_record(events[1], default_of(0))];
            did(tcuda_stream_synchronize(default_of(0)));
            if recorded == [Status::TCUDA_SUCCESS; 2] {
                did(tcuda_event_elapsed_time(&mut time, events[0], events[1]));
            }
            recorded.into_iter().for_each(&mut did);
        }
        did(tcuda_get_device_capability(&mut number, &mut number, 1));
        did(tcuda_can_device_access_peer(&mut complete, 1, 0));
        did(tcuda_mem_get_info(&mut free, &mut total, 1));
        did(tcuda_synchronize(1));
        did(tcuda_set_stream(default_of(1)));
        let back = tcuda_set_stream(default_of(0));
        if back != Status::TCUDA_SUCCESS {
            ok!(tcuda_set_stream(default_of(0)));
        }
        did(back);
        let (mut generator, mut offset, mut seed) = (null_mut(), 0, 0);
        did(tcuda_generator_create(&mut generator, 0));
        if !generator.is_null() {
            let mut state: tcuda_philox_state_t = std::mem::zeroed();
            let taken = tcuda_generator_philox_state(&mut state, generator, 4, default_of(0));
            ok!(tcuda_generator_get_offset(generator, &mut offset));
            assert_eq!(offset, if taken == Status::TCUDA_SUCCESS { 4 } else { 0 });
            did(taken);
            did(tcuda_generator_destroy(generator));
        }
        did(tcuda_manual_seed(1));
        did(tcuda_initial_seed(&mut seed));
        for event in events {
            did(tcuda_event_destroy(event));
        }
        for stream in own {
            // A destroy that failed left the stream as it was: the second one ends it.
            let first = tcuda_stream_destroy(stream);
            if first != Status::TCUDA_SUCCESS {
                ok!(tcuda_stream_destroy(stream));
            }
            did(first);
        }
    }
    statuses
}

pub fn scene_sweep() {
    // Nothing is warm in the first round of each kind; all is in the later ones.
    const OPERATING_SYSTEM: i32 = 304;
    let (mut nth, mut struck) = (1, 0);
    loop {
        ok!(tcuda_sim_clear_faults());
        ok!(tcuda_set_device(0));
        let before = calls();
        ok!(tcuda_sim_fail_at(null(), nth, OPERATING_SYSTEM));
        let statuses = workload();
        let made = calls() - before;
        ok!(tcuda_sim_clear_faults());
        let failed: Vec<_> = statuses.iter().filter(|status| **status != Status::TCUDA_SUCCESS).collect();
        assert!(failed.iter().all(|status| **status == Status::TCUDA_ERROR_CUDA), "fault {nth}: {failed:?}");
        if !failed.is_empty() {
            assert_eq!(tcuda::capi::error::tcuda_last_error_native(), OPERATING_SYSTEM);
            assert!(message().contains("304"), "{}", message());
            struck += 1;
        }
        assert_eq!(device(), 0, "fault {nth} left another device current");
        // The library works as before.
        assert!(workload().iter().all(|status| *status == Status::TCUDA_SUCCESS), "after fault {nth}: {}", message());
        if made < nth {
            break;
        }
        nth += 1;
    }
    assert!(nth > 50 && struck > nth / 2, "{struck} of {nth} faults struck");
    ok!(tcuda_shutdown());
    assert_eq!(living(), (0, 0));
}

fn a_lost_device_says_so_and_the_others_work() {
    in_child("lost", &[]);
}

pub fn scene_lost() {
    const ILLEGAL_ADDRESS: i32 = 700;
    let (on_0, on_1) = (create_on(0), create_on(1));
    ok!(tcuda_set_device(1));
    ok!(tcuda_sim_lose_device(1, ILLEGAL_ADDRESS));
    let first = fails!(DEVICE_LOST, tcuda_stream_synchronize(on_1));
    assert_eq!(tcuda::capi::error::tcuda_last_error_native(), ILLEGAL_ADDRESS);
    // It is current, and the other one has no memory yet.
    let tensor = Managed::empty(0, F32, &[4]);
    let twice = made(2, |outs| unsafe { tcuda_comm_broadcast(outs, tensor.tensor(), [0, 0].as_ptr(), 2) });
    assert_eq!(device(), 1);
    drop((tensor, twice));
    ok!(tcuda_set_device(0));
    let said = fails!(DEVICE_LOST, tcuda_synchronize(1));
    assert!(said.contains("new process") && said.contains("evice"), "{first} / {said}");
    let said = fails!(DEVICE_LOST, tcuda_synchronize(1));
    assert!(said.starts_with("Device 1 is lost"), "{said}");
    let mut stream = NULL;
    fails!(DEVICE_LOST, tcuda_stream_create(&mut stream, 1, 0));
    fails!(DEVICE_LOST, tcuda_set_device(1));
    fails!(DEVICE_LOST, tcuda_stream_synchronize(default_of(1)));
    assert_eq!((stream, device(), device_count()), (NULL, 0, device_count()));
    // The other device is as good as before.
    ok!(tcuda_stream_synchronize(on_0));
    ok!(tcuda_synchronize(0));
    ok!(tcuda_stream_destroy(on_0));
    drop(Own::on(0));
    ok!(tcuda_shutdown());
}

fn a_fault_that_cuda_does_not_recover_from_stays() {
    in_child("lost_by_a_fault", &[]);
}

pub fn scene_lost_by_a_fault() {
    const LAUNCH_FAILURE: i32 = 719;
    let own = create_on(0);
    let block = allocate(4096, own);
    ok!(tcuda_sim_fail_at(c"cudaMemsetAsync".as_ptr(), 2, LAUNCH_FAILURE));
    ok!(tcuda_memset_async(block, 1, 4096, own));
    for _ in 0..3 {
        fails!(DEVICE_LOST, tcuda_memset_async(block, 1, 4096, own));
        assert_eq!(tcuda::capi::error::tcuda_last_error_native(), LAUNCH_FAILURE);
    }
    ok!(tcuda_sim_clear_faults());
    fails!(DEVICE_LOST, tcuda_synchronize(0));
    fails!(DEVICE_LOST, tcuda_stream_synchronize(own));
    is_usable(Own::on(1).0);
}

fn a_lost_device_that_is_current_keeps_nothing_from_others() {
    in_child("lost_current", &[]);
}

/// It is the only one that was used.
pub fn scene_lost_current() {
    ok!(tcuda_set_device(1));
    ok!(tcuda_stream_synchronize(default_of(1)));
    ok!(tcuda_sim_lose_device(1, 700));
    fails!(DEVICE_LOST, tcuda_synchronize(1));
    let pinned = get!(null_mut(), out => tcuda::capi::pinned::tcuda_host_malloc_cached(out, 4096));
    ok!(tcuda::capi::pinned::tcuda_host_free_cached(pinned));
    let (mut previous, mut replaced) = (NULL, NULL);
    ok!(tcuda_exchange_stream(&mut previous, &mut replaced, default_of(0)));
    assert_eq!((device(), previous, replaced), (0, default_of(1), default_of(0)));
    is_usable(Own::on(0).0);
    // Back goes the stream alone.
    ok!(tcuda_set_stream(replaced));
    fails!(DEVICE_LOST, tcuda_set_stream(previous));
    assert_eq!(device(), 0);
}

fn whoever_hears_of_a_lost_device_says_which() {
    for call in ["query", "synchronize", "elapsed_time", "add_host_function", "wait_event", "wait_event_later", "wait_external"] {
        in_child("lost_heard", &[("FIRST", call)]);
    }
}

/// Device 1 is lost, of which a call of an event or a stream is the first to hear; device 0 is current, and stays well.
pub fn scene_lost_heard() {
    unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}
    let (on_0, on_1) = (create_on(0), create_on(1));
    ok!(tcuda_set_device(1));
    let [start, end] = [(); 2].map(|()| get!(NULL as tcuda_event_t, out => tcuda_event_create(out, 0)));
    ok!(tcuda_set_device(0));
    [start, end].iter().for_each(|event| ok!(tcuda_event_record(*event, on_1)));
    let first = std::env::var("FIRST").unwrap();
    let lose = || ok!(tcuda_sim_lose_device(1, 700));
    let said = match &*first {
        "query" => (lose(), fails!(DEVICE_LOST, tcuda_event_query(end, &mut false))).1,
        "synchronize" => (lose(), fails!(DEVICE_LOST, tcuda_event_synchronize(end))).1,
        "elapsed_time" => (lose(), fails!(DEVICE_LOST, tcuda_event_elapsed_time(&mut 0.0, start, end))).1,
        "add_host_function" => (lose(), fails!(DEVICE_LOST, tcuda_stream_add_host_function(on_1, Some(nothing), null_mut()))).1,
        "wait_event" => (lose(), fails!(DEVICE_LOST, tcuda_stream_wait_event(on_0, end))).1,
        "wait_external" => (lose(), fails!(DEVICE_LOST, tcuda_event_wait_external(end, on_0))).1,
        _ => {
            lose();
            fails!(DEVICE_LOST, tcuda_stream_synchronize(on_1));
            fails!(DEVICE_LOST, tcuda_stream_wait_event(on_0, end))
        }
    };
    let mut error = tcuda_error_info_t { struct_size: size_of::<tcuda_error_info_t>(), ..unsafe { std::mem::zeroed() } };
    ok!(tcuda_last_error(&mut error));
    assert_eq!(error.device, 1, "{first}: {said}");
    fails!(DEVICE_LOST, tcuda_set_device(1));
    is_usable(on_0);
    ok!(tcuda_synchronize(0));
}

fn a_lost_device_says_what_it_was_given() {
    in_child("lost_work", &[("TCUDA_RECORD_WORK", "1")]);
}

/// Work of two devices, some of it done, when device 1 is lost: what the error says.
fn lose_with_work() -> (String, tcuda_stream_t) {
    let (on_0, on_1) = (create_on(0), create_on(1));
    let [block_0, block_1, aside] = [on_0, on_1, default_of(1)].map(|stream| allocate(4096, stream));
    ok!(tcuda_memory_annotate(c"the first step".as_ptr()));
    ok!(tcuda_memset_async(block_1, 1, 4096, on_1));
    ok!(tcuda_stream_synchronize(on_1));
    ok!(tcuda_memory_annotate(c"the second step".as_ptr()));
    // What was waited for with the device is done, and what was captured was not given.
    let waited_for = create_on(1);
    ok!(tcuda_memset_async(block_1, 1, 4096, waited_for));
    ok!(tcuda_synchronize(1));
    let _graph = G::captured(on_1, || ok!(tcuda_memset_async(block_1, 1, 4096, on_1)));
    let gate = Gate::on(on_1);
    ok!(tcuda_memset_async(block_0, 2, 4096, on_0));
    for _ in 0..10 {
        ok!(tcuda_memset_async(block_1, 3, 4096, on_1));
    }
    ok!(tcuda_memory_annotate(null()));
    ok!(tcuda_memset_async(aside, 4, 4096, default_of(1)));
    ok!(tcuda_sim_lose_device(1, 700));
    gate.open();
    (fails!(DEVICE_LOST, tcuda_stream_synchronize(on_1)), on_1)
}

pub fn scene_lost_work() {
    let (said, on_1) = lose_with_work();
    let (_, given) = said.split_once("It was given this, and may not have done it (12 in all): ").unwrap_or_else(|| panic!("{said}"));
    let works: Vec<_> = given.trim_end_matches('.').split("; ").collect();
    let own = format!("cudaMemsetAsync of tcuda_memset_async on stream {:#x} ('the second step')", on_1 as usize);
    assert_eq!(works.len(), 8, "{given}");
    assert!(works[..7].iter().all(|work| work.starts_with('#') && work.ends_with(&own)), "{given}");
    assert!(works[7].ends_with("cudaMemsetAsync of tcuda_memset_async on its default stream"), "{given}");
    // Later calls say what the first error was, who heard of it, and the same.
    let later = fails!(DEVICE_LOST, tcuda_synchronize(1));
    let first =
        "in cudaStreamSynchronize, which tcuda_stream_synchronize heard of. It was given this, and may not have done it (12 in all): ";
    assert!(later.starts_with("Device 1 is lost") && later.ends_with(given) && later.contains(first), "{later}");
    ok!(tcuda_synchronize(0));
}

fn without_a_record_nothing_is_said_of_work() {
    in_child("lost_without", &[("TCUDA_SIM_DEVICES", "2"), ("TCUDA_RECORD_WORK", "0")]);
}

pub fn scene_lost_without() {
    let (said, _) = lose_with_work();
    assert!(said.contains("TCUDA_RECORD_WORK=1") && !said.contains("It was given"), "{said}");
}

fn launches_that_block_fail_where_they_are_made() {
    in_child("launch_blocking", &[("CUDA_LAUNCH_BLOCKING", "1")]);
}

pub fn scene_launch_blocking() {
    let stream = create_on(0);
    let block = allocate(4096, stream);
    ok!(tcuda_memset_async(block, 1, 4096, stream));
    ok!(tcuda_sim_lose_device(0, 700));
    let said = fails!(DEVICE_LOST, tcuda_memset_async(block, 2, 4096, stream));
    assert!(said.contains("cudaMemsetAsync") && said.contains("CUDA_LAUNCH_BLOCKING is set"), "{said}");
}
