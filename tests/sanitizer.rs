//! The stream sanitizer on the simulated device: small programs with a bug each, which it has to find, and the same programs mended, of which
//! it has to say nothing.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use tcuda::base::dlpack::{tcuda_place_t, tcuda_tensor_t};
use tcuda::base::dtype::tcuda_dtype_t;
use tcuda::base::{Status, config};
use tcuda::capi::comm::tcuda_comm_broadcast_out;
use tcuda::capi::copy::*;
use tcuda::capi::device::{tcuda_set_device, tcuda_synchronize};
use tcuda::capi::distributions::tcuda_random_uniform;
use tcuda::capi::error::tcuda_last_error_message;
use tcuda::capi::event::*;
use tcuda::capi::graph::*;
use tcuda::capi::history::tcuda_memory_annotate;
use tcuda::capi::jit::*;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::sanitizer::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::{tcuda_event_t, tcuda_stream_t};
use tcuda::capi::tensor::*;

/// One sanitizer for the process.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> std::sync::MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|turn| turn.into_inner());
    config::set("TCUDA_BACKEND", "sim".into());
    ok(tcuda_set_device(0));
    turn
}

fn said() -> String {
    unsafe { CStr::from_ptr(tcuda_last_error_message()) }.to_str().unwrap().to_owned()
}

#[track_caller]
fn ok(status: Status) {
    assert_eq!(status, Status::TCUDA_SUCCESS, "{}", said());
}

const SIZE: usize = 4096;
const NULL: tcuda_stream_t = null_mut();
const HOST: tcuda_stream_t = 0x81 as tcuda_stream_t;
const READ: i32 = 1;
const WRITE: i32 = 2;
const F32: tcuda_dtype_t = tcuda_dtype_t { code: 2, bits: 32, lanes: 1 };
const F64: tcuda_dtype_t = tcuda_dtype_t { code: 2, bits: 64, lanes: 1 };

fn stream_on(device: i32) -> tcuda_stream_t {
    let mut stream = NULL;
    ok(unsafe { tcuda_stream_create(&mut stream, device, 0) });
    stream
}

fn streams<const N: usize>() -> [tcuda_stream_t; N] {
    [(); N].map(|()| stream_on(0))
}

fn block(stream: tcuda_stream_t) -> *mut c_void {
    let mut block = null_mut();
    ok(unsafe { tcuda_malloc_cached(&mut block, SIZE, stream) });
    block
}

fn free(block: *mut c_void) {
    ok(unsafe { tcuda_free_cached(block) });
}

fn pinned() -> *mut c_void {
    let mut block = null_mut();
    ok(unsafe { tcuda_host_malloc_cached(&mut block, SIZE) });
    block
}

fn host_free(block: *mut c_void) {
    ok(unsafe { tcuda_host_free_cached(block) });
}

/// Work of tcuda's that writes.
fn fill(block: *mut c_void, stream: tcuda_stream_t) {
    ok(unsafe { tcuda_memset_async(block, 1, SIZE, stream) });
}

fn copy(to: *mut c_void, from: *const c_void, stream: tcuda_stream_t) {
    ok(unsafe { tcuda_copy_async(to, from, SIZE, stream) });
}

/// Work of the program's own.
fn kernel(block: *const c_void, mode: i32, stream: tcuda_stream_t) {
    ok(unsafe { tcuda_sanitizer_annotate_access(block, SIZE, mode, stream, c"my_kernel".as_ptr()) });
}

fn event() -> tcuda_event_t {
    let mut event = null_mut();
    ok(unsafe { tcuda_event_create(&mut event, 2) });
    event
}

fn record(event: tcuda_event_t, stream: tcuda_stream_t) {
    ok(unsafe { tcuda_event_record(event, stream) });
}

fn wait(event: tcuda_event_t, stream: tcuda_stream_t) {
    ok(unsafe { tcuda_event_wait(event, stream) });
}

fn after(later: tcuda_stream_t, earlier: tcuda_stream_t) {
    ok(unsafe { tcuda_stream_wait_stream(later, earlier) });
}

fn synchronize(stream: tcuda_stream_t) {
    ok(unsafe { tcuda_stream_synchronize(stream) });
}

/// With no strides it is packed.
struct Tensor {
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    tensor: tcuda_tensor_t,
}

fn tensor(data: *mut c_void, dtype: tcuda_dtype_t, shape: &[i64], strides: &[i64], device: i32) -> Tensor {
    let place = tcuda_place_t { device_type: 2, device_id: device };
    let ndim = shape.len() as i32;
    let tensor = tcuda_tensor_t { data, device: place, ndim, dtype, shape: null_mut(), strides: null_mut(), byte_offset: 0 };
    let mut made = Tensor { shape: shape.into(), strides: strides.into(), tensor };
    made.tensor.shape = made.shape.as_mut_ptr();
    if !strides.is_empty() {
        made.tensor.strides = made.strides.as_mut_ptr();
    }
    made
}

fn floats(data: *mut c_void, device: i32) -> Tensor {
    tensor(data, F32, &[SIZE as i64 / 4], &[], device)
}

fn fill_tensor(tensor: &Tensor, stream: tcuda_stream_t) {
    let value = 1.5f32;
    ok(unsafe { tcuda_tensor_fill(&tensor.tensor, (&raw const value).cast(), F32, stream) });
}

/// What is done between a begin and an end of a capture.
fn captured(stream: tcuda_stream_t, work: impl FnOnce()) -> tcuda_graph_t {
    let mut graph = null_mut();
    ok(unsafe { tcuda_graph_create(&mut graph, 0) });
    ok(tcuda_graph_capture_begin(graph, stream, tcuda_pool_id_t { first: 0, second: 0 }, 2));
    work();
    ok(tcuda_graph_capture_end(graph));
    graph
}

fn replay(graph: tcuda_graph_t, stream: tcuda_stream_t) {
    ok(tcuda_graph_replay(graph, stream));
}

// ---- the programs: each is given whether it has its bug

type Program = fn(bug: bool);

const RACE: &str = "race";
const USE_AFTER_FREE: &str = "use-after-free";
const FREE_IN_USE: &str = "free-in-use";
const NEVER: &str = "event-never-recorded";
const STALE: &str = "stale-graph";

macro_rules! programs {
    ($($name:ident: $kind:ident,)*) => {
        const PROGRAMS: &[(&str, &str, Program)] = &[$((stringify!($name), $kind, $name),)*];
    };
}

programs![
    a_read_does_not_wait_for_a_write: RACE,
    a_write_does_not_wait_for_a_write: RACE,
    a_write_does_not_wait_for_a_read: RACE,
    another_stream_waits: RACE,
    another_event_is_waited_for: RACE,
    the_event_is_recorded_too_early: RACE,
    the_event_is_recorded_again_elsewhere: RACE,
    the_wait_comes_too_late: RACE,
    a_wait_goes_one_way_only: RACE,
    a_wait_for_an_event_that_was_never_recorded: NEVER,
    the_host_waits_for_an_event_that_was_never_recorded: NEVER,
    the_host_reads_too_early: RACE,
    the_host_writes_too_early: RACE,
    a_copy_on_the_host_reads_too_early: RACE,
    the_host_waits_for_another_stream: RACE,
    the_host_waits_for_another_device: RACE,
    the_host_does_not_mind_a_query: RACE,
    the_default_stream_does_not_wait_for_others: RACE,
    threads_have_default_streams_of_their_own: RACE,
    parts_of_a_block_overlap: RACE,
    columns_overlap: RACE,
    a_copy_of_freed_memory: USE_AFTER_FREE,
    a_kernel_on_freed_memory: USE_AFTER_FREE,
    a_pointer_into_a_freed_block: USE_AFTER_FREE,
    a_copy_of_freed_pinned_memory: USE_AFTER_FREE,
    an_old_pointer_to_a_reused_block: RACE,
    a_reader_was_not_recorded: FREE_IN_USE,
    a_writer_was_not_recorded: FREE_IN_USE,
    freed_on_another_stream: FREE_IN_USE,
    a_reader_of_pinned_memory_was_not_recorded: FREE_IN_USE,
    recorded_on_another_stream: FREE_IN_USE,
    a_fill_does_not_wait: RACE,
    a_conversion_does_not_wait: RACE,
    random_numbers_are_read_too_early: RACE,
    a_compiled_function_does_not_wait: RACE,
    a_collective_does_not_wait_for_its_input: RACE,
    nobody_waits_for_a_collective: RACE,
    a_copy_between_devices_is_read_too_early: RACE,
    nobody_waits_for_a_replay: RACE,
    two_replays_write_the_same: RACE,
    streams_of_a_capture_race: RACE,
    a_replay_over_freed_memory: STALE,
    a_replay_over_live_memory: STALE,
    a_new_stream_does_not_wait_for_one_that_is_gone: RACE,
];

fn a_read_does_not_wait_for_a_write(bug: bool) {
    let [one, two] = streams();
    let (from, to) = (block(one), block(two));
    fill(from, one);
    if !bug {
        after(two, one);
    }
    copy(to, from, two);
}

fn a_write_does_not_wait_for_a_write(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    fill(block, one);
    if !bug {
        synchronize(one);
    }
    fill(block, two);
}

fn a_write_does_not_wait_for_a_read(bug: bool) {
    let [one, two] = streams();
    let (from, to) = (block(one), block(one));
    fill(from, one);
    copy(to, from, one);
    let done = event();
    record(done, one);
    if !bug {
        wait(done, two);
    }
    fill(from, two);
}

fn another_stream_waits(bug: bool) {
    let [one, two, three] = streams();
    let block = block(one);
    let done = event();
    fill(block, one);
    record(done, one);
    wait(done, if bug { three } else { two });
    kernel(block, READ, two);
}

fn another_event_is_waited_for(bug: bool) {
    let [one, two, three] = streams();
    let block = block(one);
    let (right, wrong) = (event(), event());
    fill(block, one);
    record(right, one);
    record(wrong, three);
    wait(if bug { wrong } else { right }, two);
    kernel(block, READ, two);
}

fn the_event_is_recorded_too_early(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    let done = event();
    if bug {
        record(done, one);
    }
    fill(block, one);
    if !bug {
        record(done, one);
    }
    wait(done, two);
    kernel(block, READ, two);
}

fn the_event_is_recorded_again_elsewhere(bug: bool) {
    let [one, two, three] = streams();
    let block = block(one);
    let done = event();
    fill(block, one);
    record(done, one);
    if bug {
        record(done, three);
    }
    wait(done, two);
    kernel(block, READ, two);
}

fn the_wait_comes_too_late(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    fill(block, one);
    if bug {
        kernel(block, READ, two);
        after(two, one);
    } else {
        after(two, one);
        kernel(block, READ, two);
    }
}

fn a_wait_goes_one_way_only(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    fill(block, one);
    after(two, one);
    kernel(block, READ, two);
    if !bug {
        after(one, two);
    }
    fill(block, one);
}

fn a_wait_for_an_event_that_was_never_recorded(bug: bool) {
    let [one] = streams();
    let done = event();
    if !bug {
        record(done, one);
    }
    wait(done, one);
}

fn the_host_waits_for_an_event_that_was_never_recorded(bug: bool) {
    let [one] = streams();
    let done = event();
    if !bug {
        record(done, one);
    }
    ok(unsafe { tcuda_event_synchronize(done) });
}

fn the_host_reads_too_early(bug: bool) {
    let [one] = streams();
    let (block, result) = (block(one), pinned());
    fill(block, one);
    copy(result, block, one);
    if !bug {
        synchronize(one);
    }
    kernel(result, READ, HOST);
}

fn the_host_writes_too_early(bug: bool) {
    let [one] = streams();
    let (block, input) = (block(one), pinned());
    kernel(input, WRITE, HOST);
    copy(block, input, one);
    let done = event();
    record(done, one);
    if !bug {
        ok(unsafe { tcuda_event_synchronize(done) });
    }
    kernel(input, WRITE, HOST);
}

fn a_copy_on_the_host_reads_too_early(bug: bool) {
    let [one] = streams();
    let (block, result, other) = (block(one), pinned(), pinned());
    fill(block, one);
    copy(result, block, one);
    if !bug {
        synchronize(one);
    }
    ok(unsafe { tcuda_copy(other, result, SIZE, false) });
}

fn the_host_waits_for_another_stream(bug: bool) {
    let [one, two] = streams();
    let (block, result) = (block(one), pinned());
    fill(block, one);
    copy(result, block, one);
    synchronize(if bug { two } else { one });
    kernel(result, READ, HOST);
}

fn the_host_waits_for_another_device(bug: bool) {
    let [one] = streams();
    let (block, result) = (block(one), pinned());
    fill(block, one);
    copy(result, block, one);
    ok(tcuda_synchronize(i32::from(bug)));
    kernel(result, READ, HOST);
}

fn the_host_does_not_mind_a_query(bug: bool) {
    let [one] = streams();
    let (block, result) = (block(one), pinned());
    fill(block, one);
    copy(result, block, one);
    let (done, mut complete) = (event(), false);
    record(done, one);
    while !bug && !complete {
        ok(unsafe { tcuda_event_query(done, &mut complete) });
    }
    kernel(result, READ, HOST);
}

/// A stream of tcuda's has no order with the default stream; one of another library that blocks has.
fn the_default_stream_does_not_wait_for_others(bug: bool) {
    let runtime = tcuda::runtime::runtime().unwrap();
    let stream = if bug { stream_on(0) } else { runtime.stream_create(0, 0).unwrap() as tcuda_stream_t };
    let block = block(stream);
    fill(block, stream);
    kernel(block, READ, NULL);
}

fn threads_have_default_streams_of_their_own(bug: bool) {
    let mine = 2 as tcuda_stream_t;
    let block = block(NULL);
    fill(block, mine);
    if !bug {
        synchronize(mine);
    }
    let block = block as usize;
    std::thread::spawn(move || kernel(block as *const c_void, READ, 2 as tcuda_stream_t)).join().unwrap();
}

fn parts_of_a_block_overlap(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    let half = SIZE / 2 + usize::from(bug);
    ok(unsafe { tcuda_memset_async(block, 1, half, one) });
    ok(unsafe { tcuda_memset_async(block.byte_add(SIZE / 2), 1, SIZE / 2, two) });
}

/// Columns of a matrix of 32 by 32, which lie between one another.
fn columns_overlap(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    let column = |at: usize| tensor(unsafe { block.byte_add(4 * at) }, F32, &[32, 3], &[32, 1], 0);
    fill_tensor(&column(0), one);
    fill_tensor(&column(if bug { 2 } else { 3 }), two);
}

fn a_copy_of_freed_memory(bug: bool) {
    let [one] = streams();
    let (from, to) = (block(one), block(one));
    fill(from, one);
    if bug {
        free(from);
    }
    copy(to, from, one);
}

fn a_kernel_on_freed_memory(bug: bool) {
    let [one] = streams();
    let block = block(one);
    if bug {
        free(block);
    }
    kernel(block, WRITE, one);
}

fn a_pointer_into_a_freed_block(bug: bool) {
    let [one] = streams();
    let block = block(one);
    if bug {
        free(block);
    }
    let inside = unsafe { block.byte_add(SIZE - 8) };
    ok(unsafe { tcuda_sanitizer_annotate_access(inside, 8, WRITE, one, null()) });
}

fn a_copy_of_freed_pinned_memory(bug: bool) {
    let [one] = streams();
    let (block, input) = (block(one), pinned());
    if bug {
        host_free(input);
    }
    copy(block, input, one);
}

fn an_old_pointer_to_a_reused_block(bug: bool) {
    let [one, two] = streams();
    let old = block(one);
    free(old);
    let new = block(one);
    assert_eq!(new, old);
    fill(new, one);
    kernel(old, WRITE, if bug { two } else { one });
}

fn a_reader_was_not_recorded(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    fill(block, one);
    after(two, one);
    kernel(block, READ, two);
    if !bug {
        ok(unsafe { tcuda_record_stream(block, two) });
    }
    free(block);
}

fn a_writer_was_not_recorded(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    kernel(block, WRITE, two);
    if !bug {
        after(one, two);
    }
    free(block);
}

fn freed_on_another_stream(bug: bool) {
    let [one, two, three] = streams();
    let block = block(one);
    fill(block, one);
    after(two, one);
    kernel(block, READ, two);
    ok(unsafe { tcuda_free_cached_on(block, if bug { three } else { two }) });
}

fn a_reader_of_pinned_memory_was_not_recorded(bug: bool) {
    let [one] = streams();
    let input = pinned();
    kernel(input, READ, one);
    if !bug {
        ok(unsafe { tcuda_host_record_stream(input, one) });
    }
    host_free(input);
}

fn recorded_on_another_stream(bug: bool) {
    let [one, two, three] = streams();
    let block = block(one);
    fill(block, one);
    after(two, one);
    kernel(block, READ, two);
    ok(unsafe { tcuda_record_stream(block, if bug { three } else { two }) });
    free(block);
}

fn a_fill_does_not_wait(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    kernel(block, READ, one);
    if !bug {
        after(two, one);
    }
    fill_tensor(&floats(block, 0), two);
}

fn a_conversion_does_not_wait(bug: bool) {
    let [one, two] = streams();
    let (from, to) = (block(one), block(two));
    fill_tensor(&floats(from, 0), one);
    if !bug {
        after(two, one);
    }
    let (to, from) = (tensor(to, F64, &[100], &[], 0), tensor(from, F32, &[100], &[2], 0));
    ok(unsafe { tcuda_tensor_copy(&to.tensor, &from.tensor, true, two) });
}

fn random_numbers_are_read_too_early(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    ok(unsafe { tcuda_random_uniform(&floats(block, 0).tensor, 0.0, 1.0, null_mut(), one) });
    if !bug {
        after(two, one);
    }
    kernel(block, READ, two);
}

fn a_compiled_function_does_not_wait(bug: bool) {
    config::set("TCUDA_JIT_CACHE", "0".into());
    let [one, two] = streams();
    let (from, to) = (block(one), block(two));
    fill_tensor(&floats(from, 0), one);
    if !bug {
        after(two, one);
    }
    let source = c"template <typename T> T twice(T x) { return x + x; }";
    let mut function = null_mut();
    ok(unsafe { tcuda_jit_create(&mut function, source.as_ptr(), null(), 0) });
    let (to, from) = (floats(to, 0), floats(from, 0));
    let (outputs, inputs) = ([&raw const to.tensor], [&raw const from.tensor]);
    ok(unsafe { tcuda_jit_call_out(function, outputs.as_ptr(), 1, inputs.as_ptr(), 1, null(), 0, two) });
    ok(tcuda_jit_destroy(function));
}

fn a_collective_does_not_wait_for_its_input(bug: bool) {
    let one = stream_on(0);
    let (from, to) = (block(one), block(0x101 as tcuda_stream_t));
    fill(from, one);
    if !bug {
        after(NULL, one);
    }
    broadcast(from, to);
}

fn broadcast(from: *mut c_void, to: *mut c_void) {
    let (from, to) = (floats(from, 0), floats(to, 1));
    let outs = [&raw const to.tensor];
    ok(unsafe { tcuda_comm_broadcast_out(&from.tensor, outs.as_ptr(), 1) });
}

fn nobody_waits_for_a_collective(bug: bool) {
    let other = stream_on(1);
    let (from, to) = (block(NULL), block(other));
    fill(from, NULL);
    after(0x101 as tcuda_stream_t, other);
    broadcast(from, to);
    if !bug {
        after(other, 0x101 as tcuda_stream_t);
    }
    kernel(to, READ, other);
}

fn a_copy_between_devices_is_read_too_early(bug: bool) {
    let other = stream_on(1);
    let (from, to) = (block(NULL), block(0x101 as tcuda_stream_t));
    ok(unsafe { tcuda_copy(to, from, SIZE, true) });
    if !bug {
        after(other, 0x101 as tcuda_stream_t);
    }
    kernel(to, READ, other);
}

fn nobody_waits_for_a_replay(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    let graph = captured(one, || fill(block, one));
    replay(graph, one);
    if !bug {
        after(two, one);
    }
    kernel(block, READ, two);
    ok(tcuda_graph_destroy(graph));
}

fn two_replays_write_the_same(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    let graphs = [captured(one, || fill(block, one)), captured(two, || fill(block, two))];
    replay(graphs[0], one);
    if !bug {
        after(two, one);
    }
    replay(graphs[1], two);
    graphs.into_iter().for_each(|graph| ok(tcuda_graph_destroy(graph)));
}

/// Two streams of one capture, of which the second joins and leaves by events.
fn streams_of_a_capture_race(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    let graph = captured(one, || {
        after(two, one);
        fill(block, two);
        if bug {
            fill(block, one);
            after(one, two);
        } else {
            after(one, two);
            fill(block, one);
        }
    });
    ok(tcuda_graph_destroy(graph));
}

fn a_replay_over_freed_memory(bug: bool) {
    let [one] = streams();
    let block = block(one);
    let graph = captured(one, || fill(block, one));
    if bug {
        free(block);
    }
    replay(graph, one);
    ok(tcuda_graph_destroy(graph));
}

fn a_replay_over_live_memory(bug: bool) {
    let [one] = streams();
    let old = block(one);
    let graph = captured(one, || fill(old, one));
    let mut other = null_mut();
    if bug {
        free(old);
        other = block(one);
        assert_eq!(other, old);
    }
    replay(graph, one);
    ok(tcuda_graph_destroy(graph));
    ok(unsafe { tcuda_free_cached(other) });
}

fn a_new_stream_does_not_wait_for_one_that_is_gone(bug: bool) {
    let [one] = streams();
    let block = block(NULL);
    fill(block, one);
    if !bug {
        synchronize(one);
    }
    ok(unsafe { tcuda_stream_destroy(one) });
    let [two] = streams();
    fill(block, two);
}

// ---- the tests

fn count() -> u64 {
    let mut count = 0;
    ok(unsafe { tcuda_sanitizer_report_count(&mut count) });
    count
}

fn report(index: u64, format: i32) -> String {
    let mut needed = 0;
    ok(unsafe { tcuda_sanitizer_report_get(null_mut(), 0, &mut needed, index, format) });
    let mut text = vec![0u8; needed];
    ok(unsafe { tcuda_sanitizer_report_get(text.as_mut_ptr().cast(), needed, null_mut(), index, format) });
    CString::from_vec_with_nul(text).unwrap().into_string().unwrap()
}

unsafe extern "C" fn ignored(_: *const tcuda_sanitizer_report_t, _: *mut c_void) {}

/// The kinds of the reports of a program.
fn kinds_of(program: Program, bug: bool) -> Vec<String> {
    ok(tcuda_sanitizer_enable());
    ok(unsafe { tcuda_sanitizer_set_callback(Some(ignored), null_mut()) });
    program(bug);
    ok(unsafe { tcuda_sanitizer_set_callback(None, null_mut()) });
    let kinds = (0..count()).map(|index| report(index, 2).split('"').nth(3).unwrap().to_owned()).collect();
    ok(tcuda_sanitizer_disable());
    [0, 1].into_iter().for_each(|device| ok(tcuda_synchronize(device)));
    kinds
}

#[test]
fn every_planted_bug_is_found_and_the_mended_programs_are_left_in_peace() {
    let _turn = turn();
    let mut wrong = Vec::new();
    for (name, kind, program) in PROGRAMS {
        for bug in [true, false] {
            let found = kinds_of(*program, bug);
            let is_right = if bug { !found.is_empty() && found.iter().all(|found| found == kind) } else { found.is_empty() };
            if !is_right {
                wrong.push(format!("{name}, {}: {found:?}", if bug { "planted" } else { "mended" }));
            }
        }
    }
    assert!(PROGRAMS.len() >= 30 && wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn while_it_is_off_nothing_is_found() {
    let _turn = turn();
    let before = count();
    for (_, _, program) in PROGRAMS {
        program(true);
        [0, 1].into_iter().for_each(|device| ok(tcuda_synchronize(device)));
    }
    assert_eq!(count(), before);
}

#[test]
fn a_report_names_both_sides() {
    let _turn = turn();
    ok(tcuda_sanitizer_enable());
    let [one, two] = streams();
    let (from, to) = (block(one), block(two));
    ok(unsafe { tcuda_memory_annotate(c"the \"first\" layer".as_ptr()) });
    fill(from, one);
    ok(unsafe { tcuda_memory_annotate(null()) });
    ok(unsafe { tcuda_sanitizer_set_callback(Some(keep), null_mut()) });
    copy(to, from, two);
    kernel(to, WRITE, one);
    ok(unsafe { tcuda_sanitizer_set_callback(None, null_mut()) });
    assert_eq!(count(), 2);
    let text = report(0, 1);
    let (at, one, two) = (format!("4096 bytes at {from:?}"), format!("stream {one:?} of device 0"), format!("stream {two:?} of device 0"));
    for part in [&at, &one, &two, "Race", "read of", "by tcuda_copy_async", "write of", "by tcuda_memset_async", "in 'the \"first\" layer'"]
    {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    assert!(report(1, 1).contains("by my_kernel on"), "{}", report(1, 1));
    let json = report(0, 2);
    for part in [
        "{\"kind\":\"race\",\"current\":{\"does\":\"read\"",
        "\"previous\":{\"does\":\"write\"",
        "\"annotation\":\"the \\\"first\\\" layer\"",
    ] {
        assert!(json.contains(part), "{json}");
    }
    let numbers: Vec<u64> = json.split("\"sequence\":").skip(1).map(|rest| rest.split(',').next().unwrap().parse().unwrap()).collect();
    assert!(numbers.len() == 2 && numbers[0] > numbers[1], "{json}");
    let told = std::mem::take(&mut *TOLD.lock().unwrap());
    assert_eq!(told, [(1, report(0, 1), json), (1, report(1, 1), report(1, 2))]);
    ok(tcuda_sanitizer_disable());
    // They stay until it is on again.
    assert_eq!(count(), 2);
    ok(tcuda_sanitizer_enable());
    assert_eq!(count(), 0);
    ok(tcuda_sanitizer_disable());
}

static TOLD: Mutex<Vec<(i32, String, String)>> = Mutex::new(Vec::new());

unsafe extern "C" fn keep(report: *const tcuda_sanitizer_report_t, _: *mut c_void) {
    let report = unsafe { &*report };
    assert_eq!(report.struct_size, size_of::<tcuda_sanitizer_report_t>());
    let text = |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned();
    TOLD.lock().unwrap().push((report.kind, text(report.text), text(report.json)));
    // No lock is held.
    let own = stream_on(0);
    free(block(own));
    ok(unsafe { tcuda_stream_destroy(own) });
}

#[test]
fn many_are_counted_and_the_first_are_kept() {
    let _turn = turn();
    ok(tcuda_sanitizer_enable());
    ok(unsafe { tcuda_sanitizer_set_callback(Some(ignored), null_mut()) });
    let [one, two] = streams();
    let block = block(one);
    fill(block, one);
    for round in 0..1200 {
        kernel(block, WRITE, if round % 2 == 0 { two } else { one });
    }
    ok(unsafe { tcuda_sanitizer_set_callback(None, null_mut()) });
    assert_eq!(count(), 1200);
    assert!(!report(999, 1).is_empty());
    let mut needed = 0;
    let status = unsafe { tcuda_sanitizer_report_get(null_mut(), 0, &mut needed, 1000, 1) };
    assert_eq!((status, said().contains("no report 1000")), (Status::TCUDA_ERROR_INVALID_ARGUMENT, true));
    ok(tcuda_sanitizer_disable());
}

#[test]
fn wrong_arguments_are_refused() {
    let _turn = turn();
    let invalid = |status: Status| assert_eq!(status, Status::TCUDA_ERROR_INVALID_ARGUMENT, "{}", said());
    ok(tcuda_sanitizer_enable());
    ok(tcuda_sanitizer_enable());
    let [one] = streams();
    let block = block(one);
    unsafe {
        for mode in [0, 4, -1] {
            invalid(tcuda_sanitizer_annotate_access(block, 1, mode, one, null()));
        }
        invalid(tcuda_sanitizer_annotate_access(null(), 1, 1, one, null()));
        invalid(tcuda_sanitizer_annotate_access(block, usize::MAX, 1, one, null()));
        invalid(tcuda_sanitizer_annotate_access(block, 1, 1, one, c"\xff".as_ptr()));
        assert_eq!(tcuda_sanitizer_annotate_access(block, 1, 1, 7 as tcuda_stream_t, null()), Status::TCUDA_ERROR_INVALID_HANDLE);
        ok(tcuda_sanitizer_annotate_access(null(), 0, 1, one, null()));
        invalid(tcuda_sanitizer_report_count(null_mut()));
        invalid(tcuda_sanitizer_report_get(null_mut(), 0, &mut 0, 0, 1));
        fill(block, one);
        free(block);
        ok(tcuda_sanitizer_set_callback(Some(ignored), null_mut()));
        kernel(block, READ, one);
        invalid(tcuda_sanitizer_report_get(null_mut(), 0, &mut 0, 0, 3));
        let mut small = [7u8; 4];
        let mut needed = 0;
        let status = tcuda_sanitizer_report_get(small.as_mut_ptr().cast(), 4, &mut needed, 0, 1);
        assert_eq!((status, small, needed > 4), (Status::TCUDA_ERROR_BUFFER_TOO_SMALL, [7; 4], true));
        ok(tcuda_sanitizer_set_callback(None, null_mut()));
    }
    ok(tcuda_sanitizer_disable());
}

/// Threads that hand blocks on in order, each with a stream of its own.
#[test]
fn threads_that_keep_order_are_left_in_peace() {
    let _turn = turn();
    ok(tcuda_sanitizer_enable());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                let [one, two] = streams();
                for _ in 0..200 {
                    let (from, to) = (block(one), block(two));
                    fill(from, one);
                    after(two, one);
                    copy(to, from, two);
                    free(from);
                    after(one, two);
                    kernel(to, WRITE, one);
                    ok(unsafe { tcuda_free_cached_on(to, one) });
                }
                synchronize(two);
                [one, two].into_iter().for_each(|stream| ok(unsafe { tcuda_stream_destroy(stream) }));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(count(), 0, "{}", report(0, 1));
    ok(tcuda_sanitizer_disable());
}
