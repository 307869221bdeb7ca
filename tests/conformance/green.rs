//! Green contexts: how many multiprocessors, their streams among all others, what is current meanwhile, and how they end.

use crate::graph::{G, is_usable};
use crate::kit::*;
use crate::random::{Block, F32, Own as Generator};
use crate::{fails, get, ok, tests};
use std::collections::BTreeSet;
use std::ptr::{null, null_mut};
use std::sync::mpsc::channel;
use tcuda::base::Status;
use tcuda::capi::copy::*;
use tcuda::capi::distributions::tcuda_random_uniform;
use tcuda::capi::event::*;
use tcuda::capi::graph::*;
use tcuda::capi::green::*;
use tcuda::capi::memory::{tcuda_free_cached, tcuda_record_stream};
use tcuda::capi::stream::*;
use tcuda::capi::structs::{tcuda_event_t, tcuda_stream_t};
use tcuda::runtime::runtime;

tests![
    multiprocessors_are_rounded_up: [GreenContexts],
    none_and_too_many_are_refused: [GreenContexts],
    its_streams_are_32_in_turn: [GreenContexts],
    its_streams_are_like_any: [GreenContexts],
    kernels_run_on_its_streams: [GreenContexts],
    its_streams_are_captured: [GreenContexts],
    beside_a_capture_of_another_thread: [GreenContexts],
    its_end_waits_for_its_work: [GreenContexts],
    memory_of_its_streams_outlives_it: [GreenContexts],
    its_end_ends_captures: [GreenContexts],
    its_end_waits_for_no_capture_of_another_thread: [GreenContexts],
    a_destroyed_one_is_refused_everywhere: [GreenContexts],
    an_end_that_fails_can_be_tried_again: [GreenContexts, Faults],
    calls_that_fail_change_nothing: [GreenContexts, Faults],
    a_stream_of_another_librarys_is_registered: [GreenContexts],
    a_shutdown_ends_it: [GreenContexts],
    many_come_and_go: [GreenContexts],
];

const MIB: usize = 1 << 20;

/// One for the length of a test.
pub struct Green(pub tcuda_green_context_t);

impl Green {
    fn with(num_sms: i32, device: i32) -> Green {
        Green(get!(null_mut(), out => tcuda_green_context_create(out, num_sms, device)))
    }

    pub fn new() -> Green {
        Green::with(1, -1)
    }

    fn num_sms(&self) -> i32 {
        get!(-7, out => tcuda_green_context_num_sms(self.0, out))
    }

    fn stream(&self) -> tcuda_stream_t {
        get!(NULL, out => tcuda_green_context_stream(out, self.0))
    }

    fn destroy(self) {
        ok!(tcuda_green_context_destroy(self.0));
        std::mem::forget(self);
    }
}

impl Drop for Green {
    fn drop(&mut self) {
        tcuda_green_context_destroy(self.0);
    }
}

fn current(device: i32) -> tcuda_stream_t {
    get!(handle(7), out => tcuda_current_stream(out, device))
}

fn complete(stream: tcuda_stream_t) -> bool {
    get!(false, out => tcuda_stream_query(stream, out))
}

/// cudaDevAttrMultiProcessorCount and ComputeCapabilityMajor.
fn all_sms(device: i32) -> i32 {
    runtime().unwrap().device_attribute(16, device).unwrap()
}

fn multiprocessors_are_rounded_up() {
    for device in 0..device_count() {
        let all = all_sms(device);
        let is_hopper = runtime().unwrap().device_attribute(75, device).unwrap() == 9;
        for asked in [1, 2, 7, 8, 9, 16, 17, all / 2] {
            let made = Green::with(asked, device).num_sms();
            assert!(made >= asked && made <= all, "{made} of {all} for {asked}");
            if is_hopper {
                assert_eq!(made, (asked + 7) / 8 * 8, "of {all}");
            }
        }
        // There may be no way to set so many apart.
        let mut context = null_mut();
        match unsafe { tcuda_green_context_create(&mut context, all, device) } {
            Status::TCUDA_SUCCESS => assert_eq!(Green(context).num_sms(), all),
            status => assert_eq!((status, context.is_null()), (Status::TCUDA_ERROR_INVALID_ARGUMENT, true), "{}", message()),
        }
    }
}

fn none_and_too_many_are_refused() {
    let all = all_sms(0);
    let mut context = handle(7).cast();
    for wrong in [0, -1, i32::MIN, all + 1, i32::MAX] {
        let said = fails!(INVALID_ARGUMENT, tcuda_green_context_create(&mut context, wrong, 0));
        assert!(said.contains(&format!("Invalid number of SMs requested for green context: {wrong} (device has {all} SMs)")), "{said}");
    }
    for device in bad_devices() {
        fails!(INVALID_DEVICE, tcuda_green_context_create(&mut context, 1, device));
    }
    fails!(INVALID_ARGUMENT, tcuda_green_context_create(null_mut(), 1, 0));
    assert_eq!(context, handle(7).cast());
    let green = Green::new();
    fails!(INVALID_ARGUMENT, tcuda_green_context_num_sms(green.0, null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_green_context_stream(null_mut(), green.0));
}

fn its_streams_are_32_in_turn() {
    let (green, other) = (Green::new(), Green::new());
    let drawn: Vec<_> = (0..65).map(|_| green.stream()).collect();
    let distinct: BTreeSet<_> = drawn[..32].iter().copied().collect();
    assert_eq!((distinct.len(), drawn[0], drawn[1], drawn[0]), (32, drawn[32], drawn[33], drawn[64]));
    assert!((0..32).all(|_| !distinct.contains(&other.stream())));
    for stream in distinct {
        assert_eq!(get!(-7, out => tcuda_stream_device(stream, out)), 0);
        assert_eq!(get!(NULL, out => tcuda_stream_native(stream, out)), stream);
        assert_eq!(get!(-7, out => tcuda_stream_priority(stream, out)), 0);
        assert!(complete(stream));
        let said = fails!(INVALID_STATE, tcuda_stream_destroy(stream));
        assert!(said.contains("tcuda_green_context_destroy"), "{said}");
        fails!(INVALID_STATE, tcuda_stream_unregister(stream));
        ok!(tcuda_stream_register(stream, 0));
    }
}

fn its_streams_are_like_any() {
    empty_caches();
    let (green, other) = (Green::new(), Own::new());
    let (first, second) = (green.stream(), green.stream());
    // No order but the one that is asked for. The driver calls a context's host functions one after the other: the second stream has none yet.
    let early = allocate(MIB, second);
    let gate = Gate::on(first);
    let diary = Diary::default();
    ok!(tcuda_memset_async(early, 1, MIB, second));
    ok!(tcuda_stream_synchronize(second));
    ok!(tcuda_stream_synchronize(NULL));
    assert!(!complete(first));
    ok!(tcuda_stream_wait_stream(other.0, first));
    diary.write_on(other.0, 3);
    let mut event: tcuda_event_t = null_mut();
    ok!(tcuda_stream_record_event(first, &mut event));
    ok!(tcuda_stream_wait_event(second, event));
    // Memory that another stream uses comes back once that is past.
    let block = allocate(MIB, first);
    ok!(tcuda_memset_async(block, 7, MIB, first));
    ok!(tcuda_stream_record_event(first, &mut event));
    ok!(tcuda_stream_wait_event(second, event));
    let copy = allocate(MIB, second);
    ok!(tcuda_copy_async(copy, block, MIB, second));
    ok!(tcuda_record_stream(block, second));
    free(block);
    let again = allocate(MIB, first);
    assert_ne!(again, block, "its copy is not made yet");
    assert!(!get!(true, out => tcuda_event_query(event, out)));
    diary.write_on(second, 2);
    gate.open();
    ok!(tcuda_event_synchronize(event));
    ok!(tcuda_stream_synchronize(second));
    assert_eq!(bytes_of(copy, MIB, second), vec![7; MIB]);
    ok!(tcuda_stream_synchronize(other.0));
    let mut written = diary.read();
    written.sort_unstable();
    assert_eq!(written, [2, 3]);
    [again, copy, early].into_iter().for_each(free);
    ok!(tcuda_event_destroy(event));
    // It may be any thread's current stream, and the device's default one is as before.
    ok!(tcuda_set_stream(second));
    assert_eq!(current(0), second);
    assert!(std::thread::spawn(|| current(0) == default_of(0)).join().unwrap());
    ok!(tcuda_set_stream(default_of(0)));
    is_usable(first);
    empty_caches();
}

/// tcuda's kernels are of the device's own context.
fn kernels_run_on_its_streams() {
    let green = Green::new();
    let draw = |stream| {
        let (mut block, generator) = (Block::new(F32, 100_000), Generator::seeded(5));
        ok!(tcuda_stream_wait_stream(stream, NULL));
        ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, generator.0, stream));
        ok!(tcuda_stream_wait_stream(NULL, stream));
        block.bytes()
    };
    let expected = draw(default_of(0));
    assert_eq!(draw(green.stream()), expected);
    ok!(tcuda_set_stream(green.stream()));
    assert_eq!(draw(handle(CURRENT_STREAM)), expected);
    ok!(tcuda_set_stream(default_of(0)));
}

fn its_streams_are_captured() {
    empty_caches();
    let green = Green::new();
    let (stream, other) = (green.stream(), green.stream());
    let block = allocate(64, stream);
    let graph = G::captured(stream, || {
        ok!(tcuda_memset_async(block, 1, 64, stream));
        ok!(tcuda_stream_wait_stream(other, stream));
        ok!(tcuda_memset_async(block, 2, 32, other));
        ok!(tcuda_stream_wait_stream(stream, other));
    });
    for on in [stream, other] {
        ok!(tcuda_memset_async(block, 9, 64, on));
        graph.replay(on);
        assert_eq!(bytes_of(block, 64, on), [[2; 32], [1; 32]].concat());
        ok!(tcuda_stream_synchronize(on));
    }
    drop(graph);
    free(block);
    green.destroy();
    empty_caches();
}

fn beside_a_capture_of_another_thread() {
    let (begun, begins) = channel();
    let (over, ends) = channel();
    let capture = std::thread::spawn(move || {
        let stream = Own::new();
        let graph = G::new();
        graph.begin(stream.0);
        begun.send(()).unwrap();
        ends.recv().unwrap();
        graph.end();
    });
    begins.recv().unwrap();
    let green = Green::new();
    let block = allocate(1000, green.stream());
    free(block);
    green.destroy();
    over.send(()).unwrap();
    capture.join().unwrap();
}

fn its_end_waits_for_its_work() {
    let green = Green::new();
    let diary = Diary::default();
    let gate = Gate::on(green.stream());
    (0..3).for_each(|_| diary.write_on(green.stream(), 1));
    let opener = gate.open_later();
    green.destroy();
    assert!(gate.was_passed() && diary.read() == [1; 3]);
    opener.join().unwrap();
}

fn memory_of_its_streams_outlives_it() {
    empty_caches();
    let (green, other) = (Green::new(), Own::new());
    let on = green.stream();
    let (kept, freed, used) = (allocate(3000, on), allocate(5 * MIB, on), allocate(2 * MIB, other.0));
    ok!(tcuda_memset_async(kept, 3, 3000, on));
    ok!(tcuda_memset_async(freed, 4, 5 * MIB, on));
    ok!(tcuda_record_stream(used, on));
    let gate = Gate::on(on);
    free(freed);
    free(used);
    ok!(tcuda_set_stream(on));
    let opener = gate.open_later();
    green.destroy();
    opener.join().unwrap();
    assert_eq!(current(0), default_of(0));
    assert_eq!(bytes_of(kept, 3000, other.0), [3; 3000]);
    ok!(tcuda_free_cached(kept));
    let again = allocate(5 * MIB, other.0);
    ok!(tcuda_memset_async(again, 1, 5 * MIB, other.0));
    free(again);
    empty_caches();
}

fn its_end_ends_captures() {
    empty_caches();
    let green = Green::new();
    let on = green.stream();
    let graph = G::new();
    graph.begin(on);
    let block = allocate(1000, on);
    green.destroy();
    fails!(INVALID_STATE, tcuda_graph_capture_end(graph.0));
    free(block);
    drop(graph);
    let stream = Own::new();
    is_usable(stream.0);
    empty_caches();
}

/// Whoever captures goes on, and so does the context.
fn its_end_waits_for_no_capture_of_another_thread() {
    empty_caches();
    let green = Green::new();
    let (on, idle) = (green.stream(), green.stream());
    let block = allocate(64, on);
    let number = green.0 as usize;
    let graph = G::captured(on, || {
        ok!(tcuda_memset_async(block, 1, 32, on));
        std::thread::spawn(move || _ = fails!(CAPTURE, tcuda_green_context_destroy(number as tcuda_green_context_t))).join().unwrap();
        ok!(tcuda_memset_async(block, 2, 64, on));
    });
    graph.replay(idle);
    assert_eq!(bytes_of(block, 64, idle), [2; 64]);
    drop(graph);
    free(block);
    green.destroy();
    empty_caches();
}

fn a_destroyed_one_is_refused_everywhere() {
    let (green, mut stream) = (Green::new(), handle(7));
    let dead = green.0;
    green.destroy();
    for wrong in [dead, null_mut(), handle(0x1234_5678).cast()] {
        fails!(INVALID_HANDLE, tcuda_green_context_num_sms(wrong, &mut 0));
        fails!(INVALID_HANDLE, tcuda_green_context_stream(&mut stream, wrong));
        if !wrong.is_null() {
            fails!(INVALID_HANDLE, tcuda_green_context_destroy(wrong));
        }
    }
    ok!(tcuda_green_context_destroy(null_mut()));
    assert_eq!((stream, current(0)), (handle(7), default_of(0)));
}

fn an_end_that_fails_can_be_tried_again() {
    use tcuda::capi::sim::{tcuda_sim_clear_faults, tcuda_sim_fail_at};
    let green = Green::new();
    let (on, second) = (green.stream(), green.stream());
    ok!(tcuda_set_stream(second));
    ok!(tcuda_sim_fail_at(c"cudaStreamDestroy".as_ptr(), 0, 304));
    fails!(CUDA, tcuda_green_context_destroy(green.0));
    ok!(tcuda_sim_clear_faults());
    // All of it is there.
    for stream in [on, second, green.stream()] {
        is_usable(stream);
        fails!(INVALID_STATE, tcuda_stream_destroy(stream));
    }
    ok!(tcuda_sim_fail_at(c"cuGreenCtxDestroy".as_ptr(), 0, 304));
    fails!(CUDA, tcuda_green_context_destroy(green.0));
    ok!(tcuda_sim_clear_faults());
    // Without its streams, which others take the place of.
    fails!(INVALID_HANDLE, tcuda_stream_synchronize(on));
    let next: BTreeSet<_> = (0..64).map(|_| green.stream()).collect();
    assert!(next.len() == 32 && !next.contains(&on) && !next.contains(&second));
    is_usable(green.stream());
    ok!(tcuda_set_stream(default_of(0)));
    green.destroy();
    empty_caches();
}

fn calls_that_fail_change_nothing() {
    use tcuda::capi::sim::{tcuda_sim_clear_faults, tcuda_sim_fail_at};
    let mut context = null_mut();
    for call in [c"cuDeviceGetDevResource", c"cuDevSmResourceSplitByCount", c"cuDevResourceGenerateDesc", c"cuGreenCtxCreate"] {
        ok!(tcuda_sim_fail_at(call.as_ptr(), 1, 801));
        let said = fails!(NOT_SUPPORTED, tcuda_green_context_create(&mut context, 1, 0));
        assert!(context.is_null() && said.contains(call.to_str().unwrap()), "{said}");
        ok!(tcuda_sim_clear_faults());
    }
    let green = Green::new();
    let (first, mut stream) = (green.stream(), handle(7));
    ok!(tcuda_sim_fail_at(c"cuGreenCtxStreamCreate".as_ptr(), 1, 801));
    fails!(NOT_SUPPORTED, tcuda_green_context_stream(&mut stream, green.0));
    ok!(tcuda_sim_clear_faults());
    assert_eq!(stream, handle(7));
    let others: BTreeSet<_> = (0..31).map(|_| green.stream()).collect();
    assert!(others.len() == 31 && !others.contains(&first) && green.stream() == first);
    green.destroy();
}

/// CUDA may not tell the device of one.
fn a_stream_of_another_librarys_is_registered() {
    let runtime = runtime().unwrap();
    set_device(0);
    let part = runtime.split(&runtime.multiprocessors(0).unwrap(), 1).unwrap().unwrap();
    let context = runtime.green_context_create(0, part).unwrap();
    let foreign = handle(runtime.green_context_stream(context).unwrap());
    ok!(tcuda_stream_register(foreign, 0));
    is_usable(foreign);
    ok!(tcuda_stream_unregister(foreign));
    runtime.stream_destroy(foreign as usize).unwrap();
    runtime.green_context_destroy(context).unwrap();
    empty_caches();
}

fn a_shutdown_ends_it() {
    crate::init::in_child("green_over_shutdown", &[]);
}

pub fn scene_over_shutdown() {
    let (green, other) = (Green::new(), Green::new());
    let on = green.stream();
    ok!(tcuda_set_stream(on));
    let block = allocate(MIB, on);
    ok!(tcuda_memset_async(block, 1, MIB, other.stream()));
    let (old, idle) = (green.0, other.0);
    ok!(tcuda::capi::init::tcuda_shutdown());
    if backend() == "sim" {
        let mut live: tcuda::capi::sim::tcuda_sim_live_t = unsafe { std::mem::zeroed() };
        live.struct_size = size_of_val(&live);
        ok!(tcuda::capi::sim::tcuda_sim_live(&mut live, -3));
        assert_eq!((live.green_contexts, live.streams), (0, 0));
    }
    ok!(tcuda_green_context_destroy(idle));
    ok!(tcuda::capi::init::tcuda_init(null()));
    assert_eq!(current(0), default_of(0));
    let mut stream = handle(7);
    for gone in [old, idle] {
        fails!(INVALID_HANDLE, tcuda_green_context_stream(&mut stream, gone));
    }
    let next = Green::new();
    is_usable(next.stream());
    next.destroy();
    empty_caches();
}

fn many_come_and_go() {
    empty_caches();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let green = Green::new();
                    let (on, stream) = (green.stream(), green.stream());
                    ok!(tcuda_set_stream(on));
                    let block = allocate(5000, on);
                    ok!(tcuda_memset_async(block, 1, 5000, handle(CURRENT_STREAM)));
                    ok!(tcuda_stream_wait_stream(stream, on));
                    ok!(tcuda_memset_async(block, 2, 10, stream));
                    ok!(tcuda_record_stream(block, stream));
                    free(block);
                    green.destroy();
                    assert_eq!(current(0), default_of(0));
                }
            });
        }
    });
    empty_caches();
}
