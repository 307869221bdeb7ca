//! Graphed callables: functions that are captured once and called by a replay.

use crate::graph::{GLOBAL, OWN, fill, is_usable, pinned, pool_stats, synchronize};
use crate::init::in_child;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tcuda::base::Status;
use tcuda::base::dlpack::{tcuda_place_t, tcuda_tensor_t};
use tcuda::base::dtype::tcuda_dtype_t;
use tcuda::capi::copy::*;
use tcuda::capi::graph::*;
use tcuda::capi::graphed::*;
use tcuda::capi::init::*;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::pressure::*;
use tcuda::capi::sim::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;

tests![
    a_call_does_what_the_function_does,
    inputs_from_anywhere,
    pinned_inputs_of_calls_under_way,
    inputs_that_lie_in_each_others_places,
    nothing_is_copied_that_is_in_place: [Faults],
    the_order_of_a_pair,
    calls_on_several_streams,
    a_call_from_inside_of_a_call_is_refused,
    a_function_that_destroys_its_stream_ends_nobody_elses,
    a_pool_to_share,
    what_a_function_must_not_do,
    one_is_made_beside_a_capture_of_another_thread,
    a_function_that_fails,
    wrong_arguments,
    calls_under_way_outlive_them,
    each_call_may_fail_once: [Faults],
    the_end_of_tcuda,
];

const COUNT: usize = 1 << 18;
const SHAPE: [i64; 2] = [512, 512];
const BYTE: tcuda_dtype_t = tcuda_dtype_t { code: 1, bits: 8, lanes: 1 };

fn tensor_of(data: *mut c_void, kind: i32, shape: &[i64], strides: Option<&[i64]>, dtype: tcuda_dtype_t) -> tcuda_tensor_t {
    // Kept for as long as the tests run.
    let keep = |list: &[i64]| Box::leak(list.to_vec().into_boxed_slice()).as_mut_ptr();
    let device = tcuda_place_t { device_type: kind, device_id: 0 };
    let strides = strides.map_or(null_mut(), keep);
    tcuda_tensor_t { data, device, ndim: shape.len() as i32, dtype, shape: keep(shape), strides, byte_offset: 0 }
}

/// Bytes on device 0.
fn tensor(data: *mut c_void) -> tcuda_tensor_t {
    tensor_of(data, 2, &SHAPE, None, BYTE)
}

/// The host copies such an input itself, and not before the call before has read it.
fn pinned_inputs_of_calls_under_way() {
    let stream = Own::new();
    let memory = pinned(COUNT).cast::<c_void>();
    let (output, saved) = (allocate(COUNT, stream.0), [allocate(COUNT, stream.0), allocate(COUNT, stream.0)]);
    let input = tensor_of(memory, 3, &SHAPE, None, BYTE);
    let passes = graphed(&[callable(Some(passes_on), &[input], &[tensor(output)])], stream.0);
    let gate = Gate::on(stream.0);
    let opener = gate.open_later();
    for (at, saved) in saved.into_iter().enumerate() {
        let mut batch = vec![at as u8 + 1; COUNT];
        call(passes, 0, &[tensor_of(batch.as_mut_ptr().cast(), 1, &SHAPE, None, BYTE)], stream.0);
        ok!(tcuda_copy_async(saved, output, COUNT, stream.0));
    }
    opener.join().unwrap();
    assert_eq!(saved.map(|saved| value(saved, stream.0)), [1, 2]);
    end(passes);
    [output, saved[0], saved[1]].into_iter().for_each(free);
    synchronize(stream.0);
    ok!(tcuda_host_free_cached(memory));
}

/// Each input to the output of its number.
unsafe extern "C" fn passes_all(
    inputs: *const tcuda_tensor_t,
    input_count: usize,
    outputs: *const tcuda_tensor_t,
    _: usize,
    stream: tcuda_stream_t,
    _: *mut c_void,
) -> i32 {
    for at in 0..input_count {
        let (to, from) = unsafe { (*outputs.add(at), *inputs.add(at)) };
        ok!(tcuda_copy_async(to.data, from.data, COUNT, stream));
    }
    0
}

/// An input may be what another one was before: that is read before it is written. Where it cannot be, nothing is done.
fn inputs_that_lie_in_each_others_places() {
    let stream = Own::new();
    let blocks: Vec<_> = (0..6).map(|_| allocate(COUNT + 512, stream.0)).collect();
    let [a, b, c, other, out_a, out_b] = blocks[..] else { unreachable!() };
    let reset = || [(a, 1), (b, 2), (c, 3), (other, 4)].into_iter().for_each(|(block, value)| fill(block, value, COUNT, stream.0));
    reset();
    let both = graphed(&[callable(Some(passes_all), &[tensor(a), tensor(b)], &[tensor(out_a), tensor(out_b)])], stream.0);
    for (given, expected) in [([c, a], [3, 1]), ([b, c], [2, 3]), ([a, c], [1, 3]), ([c, other], [3, 4]), ([c, c], [3, 3])] {
        reset();
        call(both, 0, &given.map(tensor), stream.0);
        assert_eq!([out_a, out_b].map(|out| value(out, stream.0)), expected);
    }
    reset();
    let refused = |given: [*mut c_void; 2], word: &str| {
        let inputs = given.map(tensor);
        let said = fails!(INVALID_ARGUMENT, tcuda_graphed_callable_call(both, 0, inputs.as_ptr(), 2, stream.0));
        assert!(said.contains(word), "{said}");
        assert_eq!([a, b, c, out_a, out_b].map(|block| value(block, stream.0)), [1, 2, 3, 3, 3]);
    };
    refused([b, a], "in a circle");
    refused([c, unsafe { b.byte_add(512) }], "Input 1 lies partly");
    end(both);
    // What the host copies comes behind what the stream still reads there, whatever the memory is called.
    let memory = pinned(COUNT).cast::<c_void>();
    let (places, outs) = ([tensor(a), tensor_of(memory, 3, &SHAPE, None, BYTE)], [tensor(out_a), tensor(out_b)]);
    let both = graphed(&[callable(Some(passes_all), &places, &outs)], stream.0);
    for kind in [3, 1] {
        reset();
        synchronize(stream.0);
        unsafe { memory.cast::<u8>().write_bytes(1, COUNT) };
        let gate = Gate::on(stream.0);
        let opener = gate.open_later();
        let mut batch = vec![9u8; COUNT];
        let given = [memory, batch.as_mut_ptr().cast()].map(|data| tensor_of(data, kind, &SHAPE, None, BYTE));
        call(both, 0, &[given[0], tensor_of(given[1].data, 1, &SHAPE, None, BYTE)], stream.0);
        opener.join().unwrap();
        assert_eq!([out_a, out_b].map(|out| value(out, stream.0)), [1, 9]);
    }
    end(both);
    blocks.into_iter().for_each(free);
    synchronize(stream.0);
    ok!(tcuda_host_free_cached(memory));
}

static RUNS: AtomicUsize = AtomicUsize::new(0);

/// Input 0 to output 0, by way of memory that it takes for that.
unsafe extern "C" fn passes_on(
    inputs: *const tcuda_tensor_t,
    input_count: usize,
    outputs: *const tcuda_tensor_t,
    output_count: usize,
    stream: tcuda_stream_t,
    _: *mut c_void,
) -> i32 {
    RUNS.fetch_add(1, Ordering::Relaxed);
    assert!(input_count >= 1 && output_count >= 1);
    let mut between = null_mut();
    let mut first = Status::TCUDA_SUCCESS;
    let mut did = |status: Status| {
        if first == Status::TCUDA_SUCCESS {
            first = status;
        }
        status == Status::TCUDA_SUCCESS
    };
    unsafe {
        if did(tcuda_malloc_cached(&mut between, COUNT, stream)) {
            did(tcuda_copy_async(between, (*inputs).data, COUNT, stream));
            did(tcuda_copy_async((*outputs).data, between, COUNT, stream));
            ok!(tcuda_free_cached(between));
        }
    }
    first as i32
}

unsafe extern "C" fn waits(
    _: *const tcuda_tensor_t,
    _: usize,
    _: *const tcuda_tensor_t,
    _: usize,
    stream: tcuda_stream_t,
    _: *mut c_void,
) -> i32 {
    unsafe { tcuda_stream_synchronize(stream) as i32 }
}

/// Answers the number that its data is.
unsafe extern "C" fn answers(
    _: *const tcuda_tensor_t,
    _: usize,
    _: *const tcuda_tensor_t,
    _: usize,
    _: tcuda_stream_t,
    data: *mut c_void,
) -> i32 {
    data as usize as i32
}

unsafe extern "C" fn allocates_too_much(
    _: *const tcuda_tensor_t,
    _: usize,
    _: *const tcuda_tensor_t,
    _: usize,
    stream: tcuda_stream_t,
    _: *mut c_void,
) -> i32 {
    unsafe { tcuda_malloc_cached(&mut null_mut(), 1 << 50, stream) as i32 }
}

fn callable(function: tcuda_callable_fn_t, inputs: &[tcuda_tensor_t], outputs: &[tcuda_tensor_t]) -> tcuda_callable_t {
    tcuda_callable_t {
        function,
        user_data: null_mut(),
        inputs: inputs.as_ptr(),
        input_count: inputs.len(),
        outputs: outputs.as_ptr(),
        output_count: outputs.len(),
    }
}

fn graphed(callables: &[tcuda_callable_t], stream: tcuda_stream_t) -> tcuda_graphed_callable_t {
    get!(null_mut(), out => tcuda_graphed_callable_create(out, callables.as_ptr(), callables.len(), -1, OWN, stream))
}

fn call(graphed: tcuda_graphed_callable_t, index: usize, inputs: &[tcuda_tensor_t], stream: tcuda_stream_t) {
    ok!(tcuda_graphed_callable_call(graphed, index, inputs.as_ptr(), inputs.len(), stream));
}

fn end(graphed: tcuda_graphed_callable_t) {
    ok!(tcuda_graphed_callable_destroy(graphed));
}

fn value(block: *mut c_void, stream: tcuda_stream_t) -> i32 {
    let all = bytes_of(block, COUNT, stream);
    if all.iter().all(|byte| *byte == all[0]) { i32::from(all[0]) } else { -1 }
}

fn a_call_does_what_the_function_does() {
    let stream = Own::on(0);
    let [from, to, other] = [1, 2, 3].map(|byte| {
        let block = allocate(COUNT, stream.0);
        fill(block, byte, COUNT, stream.0);
        block
    });
    let (inputs, outputs) = ([tensor(from)], [tensor(to)]);
    RUNS.store(0, Ordering::Relaxed);
    let made = graphed(&[callable(Some(passes_on), &inputs, &outputs)], stream.0);
    assert_eq!(RUNS.load(Ordering::Relaxed), 4);
    // The warm-ups have written.
    assert_eq!(value(to, stream.0), 1);
    fill(from, 7, COUNT, stream.0);
    call(made, 0, &inputs, stream.0);
    assert_eq!((value(to, stream.0), RUNS.load(Ordering::Relaxed)), (7, 4));
    // Another input: its bytes come to the place of the first.
    call(made, 0, &[tensor(other)], stream.0);
    assert_eq!((value(to, stream.0), value(from, stream.0)), (3, 3));
    ok!(tcuda_graphed_callable_call(made, 0, null(), 0, NULL));
    // What the next ones write, this one wrote on a stream that they are in no order with.
    synchronize(NULL);
    end(made);
    fails!(INVALID_HANDLE, tcuda_graphed_callable_call(made, 0, null(), 0, stream.0));
    fails!(INVALID_HANDLE, tcuda_graphed_callable_destroy(made));
    ok!(tcuda_graphed_callable_destroy(null_mut()));
    // As often as asked, never too.
    RUNS.store(0, Ordering::Relaxed);
    for (warmups, runs) in [(0, 1), (1, 3)] {
        let once = [callable(Some(passes_on), &inputs, &outputs)];
        end(get!(null_mut(), out => tcuda_graphed_callable_create(out, once.as_ptr(), 1, warmups, OWN, stream.0)));
        assert_eq!(RUNS.load(Ordering::Relaxed), runs);
    }
    [from, to, other].into_iter().for_each(free);
    is_usable(stream.0);
    empty_caches();
}

fn inputs_from_anywhere() {
    let stream = Own::on(0);
    let [from, to, wide] = [COUNT, COUNT, 2 * COUNT].map(|size| {
        let block = allocate(size, stream.0);
        fill(block, 1, size, stream.0);
        block
    });
    let made = graphed(&[callable(Some(passes_on), &[tensor(from)], &[tensor(to)])], stream.0);
    let mut host = vec![5u8; COUNT];
    call(made, 0, &[tensor_of(host.as_mut_ptr().cast(), 1, &SHAPE, None, BYTE)], stream.0);
    host.fill(9);
    assert_eq!(value(to, stream.0), 5);
    let page = pinned(COUNT);
    unsafe { page.write_bytes(6, COUNT) };
    call(made, 0, &[tensor_of(page.cast(), 3, &SHAPE, None, BYTE)], stream.0);
    assert_eq!(value(to, stream.0), 6);
    ok!(tcuda_host_free_cached(page.cast()));
    // Every other row.
    fill(wide, 8, 2 * COUNT, stream.0);
    call(made, 0, &[tensor_of(wide, 2, &SHAPE, Some(&[1024, 1]), BYTE)], stream.0);
    assert_eq!(value(to, stream.0), 8);
    if device_count() > 1 {
        let far = allocate(COUNT, default_of(1));
        fill(far, 4, COUNT, default_of(1));
        let mut given = tensor(far);
        given.device.device_id = 1;
        call(made, 0, &[given], stream.0);
        assert_eq!(value(to, stream.0), 4);
        free(far);
    }
    end(made);
    [from, to, wide].into_iter().for_each(free);
}

/// Which to call, and what came of it.
static AGAIN: AtomicUsize = AtomicUsize::new(0);
static CAME: AtomicUsize = AtomicUsize::new(0);
static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

unsafe extern "C" fn calls_again(_: *const tcuda_pressure_t, _: *mut c_void) -> bool {
    let made = AGAIN.load(Ordering::Relaxed) as tcuda_graphed_callable_t;
    CAME.store(unsafe { tcuda_graphed_callable_call(made, 0, null(), 0, NULL) } as usize, Ordering::Relaxed);
    KEPT.lock().unwrap().drain(..).for_each(|block| free(block as *mut c_void));
    true
}

/// An input that has to be put in order on the device takes memory there, and who is asked for memory calls the same callable.
fn a_call_from_inside_of_a_call_is_refused() {
    empty_caches();
    let stream = Own::on(0);
    let [from, to] = [(); 2].map(|()| allocate(COUNT, stream.0));
    let made = graphed(&[callable(Some(passes_on), &[tensor(from)], &[tensor(to)])], stream.0);
    AGAIN.store(made as usize, Ordering::Relaxed);
    let limit = Limit::of(0, stat(0, "reserved_bytes.all.current") as u64);
    let mut block = null_mut();
    while unsafe { tcuda_malloc_cached(&mut block, COUNT, stream.0) } == Status::TCUDA_SUCCESS {
        KEPT.lock().unwrap().push(block as usize);
    }
    let id = get!(0, out => tcuda_register_pressure_callback(out, Some(calls_again), null_mut()));
    let mut host = vec![5u8; COUNT];
    call(made, 0, &[tensor_of(host.as_mut_ptr().cast(), 1, &SHAPE, Some(&[1, 512]), BYTE)], stream.0);
    ok!(tcuda_unregister_pressure_callback(id));
    assert_eq!((value(to, stream.0), CAME.load(Ordering::Relaxed)), (5, Status::TCUDA_ERROR_INVALID_STATE as usize));
    // The turn is its own again.
    call(made, 0, &[tensor(from)], stream.0);
    drop(limit);
    end(made);
    [from, to].into_iter().for_each(free);
    empty_caches();
}

unsafe extern "C" fn destroys(
    _: *const tcuda_tensor_t,
    _: usize,
    _: *const tcuda_tensor_t,
    _: usize,
    stream: tcuda_stream_t,
    _: *mut c_void,
) -> i32 {
    // In the warm-up.
    if RUNS.fetch_add(1, Ordering::Relaxed) == 0 { unsafe { tcuda_stream_destroy(stream) as i32 } } else { 0 }
}

/// The stream is tcuda's, and gone; the next one may have its handle.
fn a_function_that_destroys_its_stream_ends_nobody_elses() {
    RUNS.store(0, Ordering::Relaxed);
    let given = callable(Some(destroys), &[], &[]);
    let mut made = null_mut();
    unsafe { tcuda_graphed_callable_create(&mut made, &given, 1, 1, OWN, default_of(0)) };
    let streams: Vec<Own> = (0..70).map(|_| Own::on(0)).collect();
    tcuda_graphed_callable_destroy(made);
    streams.iter().for_each(|stream| is_usable(stream.0));
}

fn nothing_is_copied_that_is_in_place() {
    let stream = Own::on(0);
    let blocks = [(); 3].map(|()| allocate(COUNT, stream.0));
    let inputs = [tensor(blocks[0]), tensor(blocks[1])];
    let made = graphed(&[callable(Some(passes_on), &inputs, &[tensor(blocks[2])])], stream.0);
    let copies = || get!(0, out => tcuda_sim_call_count(out, c"cudaMemcpyAsync".as_ptr()));
    let before = copies();
    call(made, 0, &inputs, stream.0);
    assert_eq!(copies(), before);
    call(made, 0, &[inputs[1], inputs[1]], stream.0);
    assert_eq!(copies(), before + 1);
    end(made);
    blocks.into_iter().for_each(free);
}

fn the_order_of_a_pair() {
    let stream = Own::on(0);
    let blocks = [1, 2, 3, 4].map(|byte| {
        let block = allocate(COUNT, stream.0);
        fill(block, byte, COUNT, stream.0);
        block
    });
    let places = blocks.map(tensor);
    // Each reads what the one before wrote.
    let chain: Vec<_> =
        (0..3).map(|at| callable(Some(passes_on), std::slice::from_ref(&places[at]), std::slice::from_ref(&places[at + 1]))).collect();
    let made = graphed(&chain, stream.0);
    for byte in [21, 22] {
        fill(blocks[0], byte, COUNT, stream.0);
        (0..3).for_each(|at| call(made, at, &places[at..=at], stream.0));
        assert_eq!(value(blocks[3], stream.0), byte);
    }
    let out_of_turn = |index: usize| fails!(INVALID_STATE, tcuda_graphed_callable_call(made, index, null(), 0, stream.0));
    assert!(out_of_turn(1).contains("begins with 0"));
    call(made, 0, &places[..1], stream.0);
    assert!(out_of_turn(2).contains("callable 1 is due"));
    call(made, 1, &places[1..2], stream.0);
    out_of_turn(1);
    // A new round, before the old one was through.
    call(made, 0, &places[..1], stream.0);
    call(made, 1, &places[1..2], stream.0);
    call(made, 2, &places[2..3], stream.0);
    out_of_turn(2);
    let said = fails!(INVALID_ARGUMENT, tcuda_graphed_callable_call(made, 3, null(), 0, stream.0));
    assert!(said.contains("3 were captured"), "{said}");
    end(made);
    blocks.into_iter().for_each(free);
}

fn calls_on_several_streams() {
    let (stream, others) = (Own::on(0), [Own::on(0), Own::on(0)]);
    let [from, to] = [(); 2].map(|()| allocate(COUNT, stream.0));
    fill(from, 1, COUNT, stream.0);
    let made = graphed(&[callable(Some(passes_on), &[tensor(from)], &[tensor(to)])], stream.0);
    for round in 0..20 {
        let on = others[round % 2].0;
        let given = allocate(COUNT, on);
        fill(given, round as i32, COUNT, on);
        // The one before may still be under way on the other stream.
        call(made, 0, &[tensor(given)], on);
        assert_eq!(value(to, on), round as i32);
        free(given);
    }
    // A stream that has work, and is gone: the next call's input comes behind that of the one before all the same.
    let short = create_on(0);
    let [first, second] = [66, 77].map(|byte| {
        let block = allocate(COUNT, stream.0);
        fill(block, byte, COUNT, stream.0);
        block
    });
    synchronize(stream.0);
    let gate = Gate::on(short);
    call(made, 0, &[tensor(first)], short);
    let later = gate.open_later();
    ok!(tcuda_stream_destroy(short));
    call(made, 0, &[tensor(second)], stream.0);
    assert_eq!(value(to, stream.0), 77);
    later.join().unwrap();
    end(made);
    [from, to, first, second].into_iter().for_each(free);
}

fn a_pool_to_share() {
    let stream = Own::on(0);
    let [from, to] = [(); 2].map(|()| allocate(COUNT, stream.0));
    let pool = get!(OWN, out => tcuda_graph_pool_handle(out));
    let (inputs, outputs) = ([tensor(from)], [tensor(to)]);
    let once = callable(Some(passes_on), &inputs, &outputs);
    let many = vec![once; 8];
    let made = get!(null_mut(), out => tcuda_graphed_callable_create(out, many.as_ptr(), 8, -1, pool, stream.0));
    // What one took between is the next one's.
    let held = pool_stats(pool).reserved_bytes.all.current;
    assert!(held >= COUNT as i64 && held < 8 * COUNT as i64 * 4, "{held}");
    assert_eq!(pool_stats(pool).allocated_bytes.all.peak, COUNT as i64);
    end(made);
    synchronize(stream.0);
    ok!(tcuda_empty_cache(0));
    [from, to].into_iter().for_each(free);
    empty_caches();
}

fn what_a_function_must_not_do() {
    let stream = Own::on(0);
    let [from, to] = [(); 2].map(|()| allocate(COUNT, stream.0));
    let (inputs, outputs) = ([tensor(from)], [tensor(to)]);
    let good = callable(Some(passes_on), &inputs, &outputs);
    let bad = callable(Some(waits), &inputs, &outputs);
    let mut made = null_mut();
    let said = fails!(CAPTURE, tcuda_graphed_callable_create(&mut made, [good, bad, good].as_ptr(), 3, -1, OWN, stream.0));
    assert!(said.contains("callable 1 of 3") && said.contains("tcuda_stream_synchronize"), "{said}");
    assert!(made.is_null());
    is_usable(stream.0);
    let made = graphed(&[good], stream.0);
    call(made, 0, &inputs, stream.0);
    // A call is no part of another capture.
    let graph = crate::graph::G::new();
    ok!(tcuda_graph_capture_begin(graph.0, stream.0, OWN, GLOBAL));
    fails!(CAPTURE, tcuda_graphed_callable_call(made, 0, null(), 0, stream.0));
    fails!(CAPTURE, tcuda_graphed_callable_create(&mut null_mut(), &good, 1, -1, OWN, stream.0));
    fill(to, 3, COUNT, stream.0);
    graph.end();
    drop(graph);
    end(made);
    [from, to].into_iter().for_each(free);
    empty_caches();
}

fn one_is_made_beside_a_capture_of_another_thread() {
    let (stream, apart) = (Own::on(0), Own::on(0));
    let [from, to] = [(); 2].map(|()| allocate(COUNT, stream.0));
    fill(from, 4, COUNT, stream.0);
    let [from_at, to_at, on] = [from as usize, to as usize, stream.0 as usize];
    let make = || {
        let [inputs, outputs] = [from_at, to_at].map(|address| [tensor(address as *mut c_void)]);
        let made = graphed(&[callable(Some(passes_on), &inputs, &outputs)], handle(on));
        call(made, 0, &inputs, handle(on));
        end(made);
    };
    drop(crate::graph::G::captured(apart.0, || std::thread::scope(|scope| scope.spawn(make).join().unwrap())));
    assert_eq!(value(to, stream.0), 4);
    [from, to].into_iter().for_each(free);
    empty_caches();
}

fn a_function_that_fails() {
    let stream = Own::on(0);
    let mut made = null_mut();
    let mut one = callable(Some(answers), &[], &[]);
    one.user_data = 7_000 as *mut c_void;
    let said = fails!(INVALID_STATE, tcuda_graphed_callable_create(&mut made, &one, 1, -1, OWN, stream.0));
    assert!(said.contains("returned 7000") && said.contains("warm-up 1"), "{said}");
    // Of its capture the log says nothing.
    unsafe extern "C" fn hear(_: i32, text: *const std::ffi::c_char, _: *mut c_void) {
        HEARD.lock().unwrap().push(crate::kit::text(text));
    }
    static HEARD: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    ok!(tcuda::capi::error::tcuda_set_log_callback(Some(hear), null_mut()));
    let said = fails!(INVALID_STATE, tcuda_graphed_callable_create(&mut made, &one, 1, 0, OWN, stream.0));
    ok!(tcuda::capi::error::tcuda_set_log_callback(None, null_mut()));
    assert!(said.contains("while it was captured"), "{said}");
    let heard = HEARD.lock().unwrap().join("\n");
    assert!(!heard.contains("is empty"), "{heard}");
    // A status of tcuda's stays one, whoever made it.
    one.user_data = Status::TCUDA_ERROR_SYSTEM as usize as *mut c_void;
    let said = fails!(SYSTEM, tcuda_graphed_callable_create(&mut made, &one, 1, -1, OWN, stream.0));
    assert!(said.contains("returned TCUDA_ERROR_SYSTEM") && said.contains("warm-up 1"), "{said}");
    // With what tcuda said of it.
    one.function = Some(allocates_too_much);
    let said = fails!(OUT_OF_MEMORY, tcuda_graphed_callable_create(&mut made, &one, 1, -1, OWN, stream.0));
    assert!(said.contains("tcuda_malloc_cached"), "{said}");
    fails!(OUT_OF_MEMORY, tcuda_graphed_callable_create(&mut made, &one, 1, 0, OWN, stream.0));
    assert!(made.is_null());
    is_usable(stream.0);
    empty_caches();
}

fn wrong_arguments() {
    let stream = Own::on(0);
    let [from, to] = [(); 2].map(|()| allocate(COUNT, stream.0));
    let (inputs, outputs) = ([tensor(from)], [tensor(to)]);
    let good = callable(Some(passes_on), &inputs, &outputs);
    let mut made = null_mut();
    let mut create = |callable: &tcuda_callable_t, count: usize| {
        fails!(INVALID_ARGUMENT, tcuda_graphed_callable_create(&mut made, callable, count, -1, OWN, stream.0))
    };
    create(&good, 0);
    create(&callable(None, &inputs, &outputs), 1);
    create(&tcuda_callable_t { inputs: null(), ..good }, 1);
    create(&tcuda_callable_t { outputs: null(), ..good }, 1);
    let mut host = vec![0u8; COUNT];
    let pageable = [tensor_of(host.as_mut_ptr().cast(), 1, &SHAPE, None, BYTE)];
    assert!(create(&callable(Some(passes_on), &pageable, &outputs), 1).contains("callable 0"));
    let second = [tensor(from), tensor_of(from, 2, &SHAPE, Some(&[512, -1]), BYTE)];
    assert!(create(&callable(Some(passes_on), &second, &outputs), 1).contains("'inputs[1]' has a stride of -1"));
    assert!(made.is_null());
    fails!(INVALID_ARGUMENT, tcuda_graphed_callable_create(null_mut(), &good, 1, -1, OWN, stream.0));
    fails!(INVALID_ARGUMENT, tcuda_graphed_callable_create(&mut made, null(), 1, -1, OWN, stream.0));
    let nobodys = tcuda_pool_id_t { first: 3, second: 4 };
    fails!(INVALID_ARGUMENT, tcuda_graphed_callable_create(&mut made, &good, 1, -1, nobodys, stream.0));
    let made = graphed(&[good], stream.0);
    let given =
        |inputs: &[tcuda_tensor_t]| fails!(INVALID_ARGUMENT, tcuda_graphed_callable_call(made, 0, inputs.as_ptr(), inputs.len(), stream.0));
    given(&[inputs[0], inputs[0]]);
    assert!(given(&[tensor_of(from, 2, &[COUNT as i64], None, BYTE)]).contains("512"));
    given(&[tensor_of(from, 2, &SHAPE, None, tcuda_dtype_t { code: 0, bits: 8, lanes: 1 })]);
    assert!(given(&[tensor_of(from, 2, &SHAPE, Some(&[1, 512]), BYTE)]).contains("strides"));
    if device_count() > 1 {
        fails!(INVALID_ARGUMENT, tcuda_graphed_callable_call(made, 0, null(), 0, default_of(1)));
    }
    // What was refused is no turn.
    call(made, 0, &inputs, stream.0);
    end(made);
    [from, to].into_iter().for_each(free);
}

fn calls_under_way_outlive_them() {
    let stream = Own::on(0);
    let [from, to] = [(); 2].map(|()| allocate(COUNT, stream.0));
    fill(from, 5, COUNT, stream.0);
    let made = graphed(&[callable(Some(passes_on), &[tensor(from)], &[tensor(to)])], stream.0);
    fill(to, 0, COUNT, stream.0);
    let gate = Gate::on(stream.0);
    call(made, 0, &[tensor(from)], stream.0);
    end(made);
    gate.open();
    assert_eq!(value(to, stream.0), 5);
    [from, to].into_iter().for_each(free);
    empty_caches();
}

fn each_call_may_fail_once() {
    in_child("graphed_faults", &[]);
}

pub fn scene_faults() {
    let living = || {
        let mut live: tcuda_sim_live_t = unsafe { std::mem::zeroed() };
        live.struct_size = size_of::<tcuda_sim_live_t>();
        ok!(tcuda_sim_live(&mut live, -3));
        [live.graphs, live.graph_execs, live.blocks, live.handles]
    };
    let stream = Own::on(0);
    let blocks = [(); 3].map(|()| allocate(COUNT, stream.0));
    let (inputs, outputs) = ([tensor(blocks[0])], [tensor(blocks[1])]);
    let good = callable(Some(passes_on), &inputs, &outputs);
    let calls = || get!(0, out => tcuda_sim_call_count(out, null()));
    let mut failures = 0;
    for code in [1, 2, 801] {
        let mut nth = 1;
        loop {
            fill(blocks[2], nth as i32 % 100, COUNT, stream.0);
            let mut made = null_mut();
            ok!(tcuda_sim_fail_at(null(), nth, code));
            let before = calls();
            let status = unsafe { tcuda_graphed_callable_create(&mut made, [good, good].as_ptr(), 2, 1, OWN, stream.0) };
            let struck = calls() - before >= nth;
            ok!(tcuda_sim_clear_faults());
            if status != Status::TCUDA_SUCCESS {
                failures += 1;
                assert!(made.is_null() && message().len() > 10);
                made = graphed(&[good, good], stream.0);
            }
            ok!(tcuda_sim_fail_at(null(), nth, code));
            let before = calls();
            let status = unsafe { tcuda_graphed_callable_call(made, 0, &tensor(blocks[2]), 1, stream.0) };
            let struck_too = calls() - before >= nth;
            ok!(tcuda_sim_clear_faults());
            if status != Status::TCUDA_SUCCESS {
                failures += 1;
                // It is still its turn.
                fails!(INVALID_STATE, tcuda_graphed_callable_call(made, 1, null(), 0, stream.0));
                call(made, 0, &[tensor(blocks[2])], stream.0);
            }
            assert_eq!(value(blocks[1], stream.0), nth as i32 % 100, "call {nth} failed with {code}");
            call(made, 1, &inputs, stream.0);
            end(made);
            synchronize(stream.0);
            if !struck && !struck_too {
                break;
            }
            nth += 1;
        }
        assert!(nth > 20, "{nth}");
    }
    assert!(failures > 40, "{failures}");
    blocks.into_iter().for_each(free);
    empty_caches();
    assert_eq!(living(), [0; 4]);
}

fn the_end_of_tcuda() {
    in_child("graphed_end", &[]);
}

pub fn scene_end() {
    for _ in 0..2 {
        let stream = create_on(0);
        let [from, to] = [(); 2].map(|()| allocate(COUNT, stream));
        let made = graphed(&[callable(Some(passes_on), &[tensor(from)], &[tensor(to)])], stream);
        call(made, 0, &[tensor(from)], stream);
        ok!(tcuda_shutdown());
        fails!(SHUT_DOWN, tcuda_graphed_callable_call(made, 0, null(), 0, stream));
        ok!(tcuda_graphed_callable_destroy(made));
        ok!(tcuda_init(null()));
        fails!(INVALID_HANDLE, tcuda_graphed_callable_call(made, 0, null(), 0, NULL));
        empty_caches();
    }
}
