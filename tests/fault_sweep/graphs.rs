//! Programs that capture: graphs that share a pool, graphs that are kept and updated, captures that nobody ends, graphed callables.

use super::*;
use std::ffi::CString;
use tcuda::base::dlpack::{tcuda_place_t, tcuda_tensor_t};
use tcuda::base::dtype::tcuda_dtype_t;
use tcuda::capi::graph::*;
use tcuda::capi::graphed::*;
use tcuda::capi::random::*;
use tcuda::random::tcuda_philox_state_t;

const OWN: tcuda_pool_id_t = tcuda_pool_id_t { first: 0, second: 0 };
const GLOBAL: i32 = 0;
const RELAXED: i32 = 2;

/// Two graphs with one pool: blocks and pinned memory of a capture, a fork, an end by reset, replays, one of them under way at the end.
pub fn captured() -> Failures {
    let mut failures = Failures::default();
    let mut did = |status| failures.note_later(status);
    let mut streams: [tcuda_stream_t; 2] = [null_mut(); 2];
    let mut events: [tcuda_event_t; 2] = [null_mut(); 2];
    let mut graphs = [null_mut(); 3];
    let mut pool = tcuda_pool_id_t { first: 0, second: 0 };
    unsafe {
        for stream in &mut streams {
            did(tcuda_stream_create(stream, 0, 0));
        }
        for event in &mut events {
            did(tcuda_event_create(event, 2));
        }
        for graph in &mut graphs {
            ok(tcuda_graph_create(graph, 0));
        }
        ok(tcuda_graph_pool_handle(&mut pool));
        let [on, side] = streams;
        let mut blocks: Vec<*mut c_void> = Vec::new();
        for (round, graph) in graphs.into_iter().enumerate() {
            let begun = !on.is_null() && did(tcuda_graph_capture_begin(graph, on, pool, round as i32));
            if !begun {
                continue;
            }
            let (mut first, mut second, mut inside) = (null_mut(), null_mut(), null_mut());
            did(tcuda_malloc_cached(&mut first, 3 * MIB, on));
            did(tcuda_host_malloc_cached(&mut inside, PAGE));
            let mut state = tcuda_philox_state_t { seed: 0, offset: 0, offset_intragraph: 0, captured: 0, reserved: 0 };
            did(tcuda_generator_philox_state(&mut state, null_mut(), 4, on));
            if !first.is_null() && !inside.is_null() {
                did(tcuda_copy_async(first, inside, PAGE, on));
            }
            let forked = !events[0].is_null()
                && !side.is_null()
                && did(tcuda_event_record(events[0], on))
                && did(tcuda_stream_wait_event(side, events[0]));
            if forked {
                did(tcuda_malloc_cached(&mut second, 700, side));
                if !second.is_null() {
                    did(tcuda_memset_async(second, 1, 700, side));
                }
                let _ = !events[1].is_null() && did(tcuda_event_record(events[1], side)) && did(tcuda_stream_wait_event(on, events[1]));
            }
            ok(tcuda_host_free_cached(inside));
            ok(tcuda_free_cached(second));
            blocks.push(first);
            if round < 2 {
                let _ = did(tcuda_graph_capture_end(graph)) && did(tcuda_graph_replay(graph, on)) && did(tcuda_graph_replay(graph, side));
            } else {
                // A capture that is thrown away.
                let _ = did(tcuda_graph_reset(graph)) || did(tcuda_graph_reset(graph));
            }
        }
        for graph in graphs {
            surely(&mut did, || tcuda_graph_destroy(graph));
        }
        blocks.into_iter().for_each(|block| ok(tcuda_free_cached(block)));
        did(tcuda_empty_cache(-3));
        did(tcuda_host_empty_cache());
        for event in events.into_iter().filter(|event| !event.is_null()) {
            surely(&mut did, || tcuda_event_destroy(event));
        }
        for stream in streams.into_iter().filter(|stream| !stream.is_null()) {
            surely(&mut did, || tcuda_stream_destroy(stream));
        }
    }
    failures
}

/// Two graphs that are kept, of which one updates the other, and one with a generator of the program's that is replayed on two streams. The
/// first stream goes while replays are under way.
pub fn kept() -> Failures {
    let mut failures = Failures::default();
    let mut did = |status| failures.note_later(status);
    let (mut on, mut side, mut generator): (tcuda_stream_t, tcuda_stream_t, _) = (null_mut(), null_mut(), null_mut());
    let (mut graphs, mut outside) = ([null_mut(); 3], null_mut());
    unsafe {
        did(tcuda_stream_create(&mut on, 0, 0));
        did(tcuda_stream_create(&mut side, 0, 0));
        did(tcuda_generator_create(&mut generator, 0));
        did(tcuda_malloc_cached(&mut outside, 2 * MIB, on));
        for (graph, flags) in graphs.iter_mut().zip([TCUDA_GRAPH_KEEP, TCUDA_GRAPH_KEEP, TCUDA_GRAPH_DEBUG]) {
            ok(tcuda_graph_create(graph, flags));
        }
        let mut inside: Vec<*mut c_void> = Vec::new();
        for (round, graph) in graphs.into_iter().enumerate() {
            if on.is_null() || outside.is_null() || !did(tcuda_graph_capture_begin(graph, on, OWN, RELAXED)) {
                continue;
            }
            let mut block = null_mut();
            if did(tcuda_malloc_cached(&mut block, 3 * MIB, on)) {
                did(tcuda_memset_async(block, round as i32, PAGE, on));
                did(tcuda_copy_async(outside, block, PAGE, on));
            }
            if round == 2 && !generator.is_null() {
                let mut state: tcuda_philox_state_t = std::mem::zeroed();
                did(tcuda_generator_philox_state(&mut state, generator, 4, on));
            }
            did(tcuda_graph_capture_end(graph));
            inside.push(block);
        }
        let [first, second, drawing] = graphs;
        if !outside.is_null() && !side.is_null() {
            did(tcuda_record_stream(outside, side));
        }
        did(tcuda_graph_instantiate(first));
        did(tcuda_graph_replay(first, side));
        did(tcuda_graph_update(first, second));
        did(tcuda_graph_replay(first, side));
        // Ready by its first replay, and once more.
        did(tcuda_graph_replay(second, side));
        did(tcuda_graph_instantiate(second));
        for stream in [on, side, on] {
            did(tcuda_graph_replay(drawing, stream));
        }
        let (mut pool, mut stats) = (OWN, tcuda_memory_stats_t { struct_size: size_of::<tcuda_memory_stats_t>(), ..Default::default() });
        if did(tcuda_graph_pool(drawing, &mut pool)) {
            ok(tcuda_graph_pool_stats(&mut stats, pool));
        }
        let path = std::env::temp_dir().join(format!("tcuda-fault-sweep-{}.dot", std::process::id()));
        did(tcuda_graph_debug_dump(drawing, CString::new(path.to_str().unwrap()).unwrap().as_ptr()));
        let _ = std::fs::remove_file(path);
        did(tcuda_graph_native(first, &mut null_mut(), &mut null_mut()));
        if !on.is_null() {
            surely(|status| failures.note(status), || tcuda_stream_destroy(on));
        }
        inside.into_iter().for_each(|block| ok(tcuda_free_cached(block)));
        surely(|status| failures.note(status), || tcuda_graph_reset(second));
        for graph in graphs {
            surely(|status| failures.note(status), || tcuda_graph_destroy(graph));
        }
        ok(tcuda_free_cached(outside));
        // More than is there while the pools are: they go back under pressure.
        let mut block = null_mut();
        let far = 0x100 as tcuda_stream_t;
        if failures.note(tcuda_malloc_cached(&mut block, 56 * MIB, if side.is_null() { far } else { side })) {
            ok(tcuda_free_cached(block));
        }
        failures.note(tcuda_generator_destroy(generator));
        if !side.is_null() {
            surely(|status| failures.note(status), || tcuda_stream_destroy(side));
        }
    }
    failures
}

/// Captures that end with their thread, with their stream, with a stream that joined, and with their graph.
pub fn abandoned() -> Failures {
    let mut failures = Failures::default();
    let mut graph = null_mut();
    ok(unsafe { tcuda_graph_create(&mut graph, 0) });
    for end in 0..4 {
        let mut did = |status| failures.note_later(status);
        let (mut streams, mut event): ([tcuda_stream_t; 2], tcuda_event_t) = ([null_mut(); 2], null_mut());
        let (mut block, mut inside) = (null_mut(), null_mut());
        unsafe {
            for stream in &mut streams {
                did(tcuda_stream_create(stream, 0, 0));
            }
            did(tcuda_event_create(&mut event, 2));
            let [on, side] = streams;
            let mut capture = || {
                if on.is_null() || !did(tcuda_graph_capture_begin(graph, on, OWN, GLOBAL)) {
                    return;
                }
                if did(tcuda_malloc_cached(&mut block, 3 * MIB, on)) {
                    did(tcuda_memset_async(block, 1, PAGE, on));
                }
                did(tcuda_host_malloc_cached(&mut inside, PAGE));
                ok(tcuda_host_free_cached(inside));
                if !side.is_null() && !event.is_null() && did(tcuda_event_record(event, on)) {
                    did(tcuda_stream_wait_event(side, event));
                }
            };
            if end == 0 {
                on_a_thread(&mut capture);
            } else {
                capture();
            }
            for stream in if end == 1 { [on, side] } else { [side, on] } {
                if end == 3 {
                    surely(|status| failures.note(status), || tcuda_graph_reset(graph));
                }
                if !stream.is_null() {
                    surely(|status| failures.note(status), || tcuda_stream_destroy(stream));
                }
            }
            // Nothing of it is left: the graph can be captured anew.
            ok(tcuda_graph_reset(graph));
            ok(tcuda_free_cached(block));
            surely(|status| failures.note(status), || tcuda_event_destroy(event));
        }
    }
    surely(|status| failures.note(status), || tcuda_graph_destroy(graph));
    failures
}

/// On a thread that has ended when this returns.
fn on_a_thread(work: &mut impl FnMut()) {
    struct Handed<T>(T);
    unsafe impl<T> Send for Handed<T> {}
    let handed = Handed(work);
    std::thread::scope(|scope| {
        let body = move || {
            let handed = handed;
            (handed.0)();
        };
        // A scope alone does not wait for what ends with the thread.
        scope.spawn(body).join().unwrap();
    });
}

/// The thread's capture mode is as it was: what a capture forbids is refused.
pub fn are_guarded(when: &str) {
    let (mut graph, mut stream) = (null_mut(), null_mut());
    unsafe {
        ok(tcuda_stream_create(&mut stream, 0, 0));
        ok(tcuda_graph_create(&mut graph, 0));
        ok(tcuda_graph_capture_begin(graph, stream, OWN, GLOBAL));
        assert!(tcuda::runtime::runtime().unwrap().malloc(PAGE).is_err(), "{when}");
        ok(tcuda_graph_destroy(graph));
        ok(tcuda_stream_destroy(stream));
    }
}

/// A graph that has been replayed, one that is kept, and a capture under way.
pub unsafe fn leave(stream: tcuda_stream_t) {
    unsafe {
        for (at, flags) in [0, TCUDA_GRAPH_KEEP, 0].into_iter().enumerate() {
            let mut graph = null_mut();
            ok(tcuda_graph_create(&mut graph, flags));
            ok(tcuda_graph_capture_begin(graph, stream, OWN, GLOBAL));
            let mut block = null_mut();
            ok(tcuda_malloc_cached(&mut block, PAGE, stream));
            ok(tcuda_memset_async(block, 1, PAGE, stream));
            if at < 2 {
                ok(tcuda_graph_capture_end(graph));
                ok(tcuda_graph_replay(graph, stream));
            }
        }
    }
}

const SHAPE: [i64; 2] = [64, 64];

fn tensor(data: *mut c_void) -> tcuda_tensor_t {
    let dtype = tcuda_dtype_t { code: 1, bits: 8, lanes: 1 };
    let device = tcuda_place_t { device_type: 2, device_id: 0 };
    tcuda_tensor_t { data, device, ndim: 2, dtype, shape: SHAPE.as_ptr().cast_mut(), strides: null_mut(), byte_offset: 0 }
}

/// The input to the output, by way of memory of its own.
unsafe extern "C" fn passes_on(
    inputs: *const tcuda_tensor_t,
    _: usize,
    outputs: *const tcuda_tensor_t,
    _: usize,
    stream: tcuda_stream_t,
    _: *mut c_void,
) -> i32 {
    let mut between = null_mut();
    unsafe {
        let status = tcuda_malloc_cached(&mut between, 3 * MIB, stream);
        if status != Status::TCUDA_SUCCESS {
            return status as i32;
        }
        let copied = [((*inputs).data, between), (between, (*outputs).data)].map(|(from, to)| tcuda_copy_async(to, from, PAGE, stream));
        ok(tcuda_free_cached(between));
        copied.into_iter().find(|status| *status != Status::TCUDA_SUCCESS).map_or(0, |status| status as i32)
    }
}

/// Two functions that are called in turn, once with another input, on two streams, and end while calls are under way.
pub fn graphed() -> Failures {
    let mut failures = Failures::default();
    let mut did = |status| failures.note_later(status);
    let (mut streams, mut made): ([tcuda_stream_t; 2], _) = ([null_mut(); 2], null_mut());
    let mut blocks = [null_mut(); 3];
    unsafe {
        for stream in &mut streams {
            did(tcuda_stream_create(stream, 0, 0));
        }
        let [on, side] = streams.map(|stream| if stream.is_null() { 0x100 as tcuda_stream_t } else { stream });
        for block in &mut blocks {
            if did(tcuda_malloc_cached(block, PAGE, on)) {
                did(tcuda_memset_async(*block, 1, PAGE, on));
            }
        }
        if !blocks.contains(&null_mut()) {
            let [input, output, other] = blocks.map(tensor);
            let one = |from: &tcuda_tensor_t, to: &tcuda_tensor_t| tcuda_callable_t {
                function: Some(passes_on),
                user_data: null_mut(),
                inputs: from,
                input_count: 1,
                outputs: to,
                output_count: 1,
            };
            let callables = [one(&input, &output), one(&output, &input)];
            if did(tcuda_graphed_callable_create(&mut made, callables.as_ptr(), 2, 1, OWN, on)) {
                did(tcuda_graphed_callable_call(made, 0, &other, 1, on));
                did(tcuda_graphed_callable_call(made, 1, null(), 0, side));
                did(tcuda_graphed_callable_call(made, 0, null(), 0, 0x100 as tcuda_stream_t));
                ok(tcuda_graphed_callable_destroy(made));
            }
        }
        // Nobody else keeps what the last calls read and write.
        for stream in [side, 0x100 as tcuda_stream_t] {
            surely(&mut did, || tcuda_stream_synchronize(stream));
        }
        for stream in streams.into_iter().filter(|stream| !stream.is_null()) {
            surely(&mut did, || tcuda_stream_destroy(stream));
        }
        blocks.into_iter().for_each(|block| ok(tcuda_free_cached(block)));
        failures.note(tcuda_empty_cache(-3));
    }
    failures
}
