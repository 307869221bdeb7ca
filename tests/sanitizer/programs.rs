//! The programs: each is given whether it has its bug.

use super::kit::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tcuda::base::config;
use tcuda::capi::comm::tcuda_comm_broadcast_out;
use tcuda::capi::communicator::*;
use tcuda::capi::copy::*;
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::distributions::tcuda_random_uniform;
use tcuda::capi::event::*;
use tcuda::capi::graph::*;
use tcuda::capi::ipc::*;
use tcuda::capi::jit::*;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::sanitizer::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::capi::tensor::*;

pub type Program = fn(bug: bool);

const RACE: &str = "race";
const USE_AFTER_FREE: &str = "use-after-free";
const FREE_IN_USE: &str = "free-in-use";
const NEVER: &str = "event-never-recorded";
const STALE: &str = "stale-graph";

macro_rules! programs {
    ($($name:ident: $kind:ident,)*) => {
        pub const PROGRAMS: &[(&str, &str, Program)] = &[$((stringify!($name), $kind, $name),)*];
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
    a_copy_to_pinned_memory_is_not_waited_for: RACE,
    a_thread_that_comes_asks_for_itself: RACE,
    a_cache_that_maps_anew_asks_for_itself: RACE,
    a_graph_that_ends_asks_for_itself: RACE,
    a_cache_that_gives_back_waits_for_itself: RACE,
    the_default_stream_does_not_wait_for_others: RACE,
    threads_have_default_streams_of_their_own: RACE,
    parts_of_a_block_overlap: RACE,
    columns_overlap: RACE,
    a_copy_of_freed_memory: USE_AFTER_FREE,
    a_kernel_on_freed_memory: USE_AFTER_FREE,
    a_pointer_into_a_freed_block: USE_AFTER_FREE,
    an_import_of_ones_own_is_used_after_its_close: USE_AFTER_FREE,
    a_block_is_used_after_the_close_of_an_import: USE_AFTER_FREE,
    a_copy_of_freed_pinned_memory: USE_AFTER_FREE,
    an_old_pointer_to_a_reused_block: RACE,
    a_reused_block_is_used_on_another_stream: RACE,
    a_reused_part_of_a_block_is_used_on_another_stream: RACE,
    a_block_goes_from_stream_to_stream: RACE,
    a_reader_was_not_recorded: FREE_IN_USE,
    a_writer_was_not_recorded: FREE_IN_USE,
    freed_on_another_stream: FREE_IN_USE,
    a_reused_block_is_freed_on_another_stream: FREE_IN_USE,
    a_reader_of_pinned_memory_was_not_recorded: FREE_IN_USE,
    recorded_on_another_stream: FREE_IN_USE,
    a_fill_does_not_wait: RACE,
    a_conversion_does_not_wait: RACE,
    random_numbers_are_read_too_early: RACE,
    a_compiled_function_does_not_wait: RACE,
    a_collective_does_not_wait_for_its_input: RACE,
    nobody_waits_for_a_collective: RACE,
    a_collective_asks_for_itself: RACE,
    ranks_do_not_wait_for_their_input: RACE,
    nobody_waits_for_the_ranks: RACE,
    only_calls_of_a_communicator_are_in_order: RACE,
    only_streams_of_a_group_wait_for_each_other: RACE,
    a_copy_between_devices_is_read_too_early: RACE,
    nobody_waits_for_a_replay: RACE,
    two_replays_write_the_same: RACE,
    streams_of_a_capture_race: RACE,
    nobody_waits_for_a_part_of_a_replay: RACE,
    a_replay_does_not_wait_for_what_is_outside: RACE,
    a_node_of_another_stream_is_not_waited_for: RACE,
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
    let ([one, two], block) = filled();
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
    let done = recorded(one);
    if !bug {
        wait(done, two);
    }
    fill(from, two);
}

fn another_stream_waits(bug: bool) {
    let ([one, two, three], block) = filled();
    let done = recorded(one);
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
    let ([one, two, three], block) = filled();
    let done = recorded(one);
    if bug {
        record(done, three);
    }
    wait(done, two);
    kernel(block, READ, two);
}

fn the_wait_comes_too_late(bug: bool) {
    let ([one, two], block) = filled();
    if bug {
        kernel(block, READ, two);
        after(two, one);
    } else {
        after(two, one);
        kernel(block, READ, two);
    }
}

fn a_wait_goes_one_way_only(bug: bool) {
    let ([one, two], block) = read_on_the_second();
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
    let (one, result) = on_its_way_to_the_host();
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
    let done = recorded(one);
    if !bug {
        ok(unsafe { tcuda_event_synchronize(done) });
    }
    kernel(input, WRITE, HOST);
}

fn a_copy_on_the_host_reads_too_early(bug: bool) {
    let (one, result) = on_its_way_to_the_host();
    if !bug {
        synchronize(one);
    }
    ok(unsafe { tcuda_copy(pinned(), result, SIZE, false) });
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
    let (_, result) = on_its_way_to_the_host();
    ok(tcuda_synchronize(i32::from(bug)));
    kernel(result, READ, HOST);
}

fn the_host_does_not_mind_a_query(bug: bool) {
    let (one, result) = on_its_way_to_the_host();
    let (done, mut complete) = (recorded(one), false);
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

/// The block is freed before the import, which keeps it.
fn an_import_of_ones_own_is_used_after_its_close(bug: bool) {
    let ([one], block) = filled();
    let handle = exported(block, 1, one);
    free(block);
    let here = imported(&handle, one);
    fill(here, one);
    if !bug {
        kernel(here, READ, one);
    }
    ok(unsafe { tcuda_ipc_close(here, one) });
    if bug {
        kernel(here, READ, one);
    }
}

/// The block is freed while it is imported, twice.
fn a_block_is_used_after_the_close_of_an_import(bug: bool) {
    let ([one], block) = filled();
    let handle = exported(block, 0, one);
    let imports = [(); 2].map(|()| imported(&handle, one));
    let close = |at: usize| ok(unsafe { tcuda_ipc_close(imports[at], one) });
    kernel(block, READ, one);
    free(block);
    kernel(imports[0], WRITE, one);
    close(0);
    kernel(imports[1], READ, one);
    if bug {
        close(1);
        kernel(block, READ, one);
    } else {
        kernel(imports[1], READ, one);
        close(1);
    }
}

fn exported(block: *mut c_void, keep_for: u32, stream: tcuda_stream_t) -> tcuda_ipc_handle_t {
    let mut handle = tcuda_ipc_handle_t { bytes: [0; 64] };
    ok(unsafe { tcuda_ipc_export(&mut handle, block, SIZE, keep_for, stream) });
    handle
}

fn imported(handle: &tcuda_ipc_handle_t, stream: tcuda_stream_t) -> *mut c_void {
    let mut here = null_mut();
    ok(unsafe { tcuda_ipc_import(&mut here, null_mut(), null_mut(), handle, stream) });
    here
}

fn a_copy_of_freed_pinned_memory(bug: bool) {
    let [one] = streams();
    let (block, input) = (block(one), pinned());
    if bug {
        host_free(input);
    }
    copy(block, input, one);
}

/// One to pageable memory is done on return.
fn a_copy_to_pinned_memory_is_not_waited_for(bug: bool) {
    let ([one, two], block) = filled();
    let mut pageable = [0u8; SIZE];
    copy(if bug { pinned() } else { pageable.as_mut_ptr().cast() }, block, one);
    fill(block, two);
}

/// What the library asks or waits for by itself is no order that a program may count on. A thread's first allocation on its default stream asks.
fn a_thread_that_comes_asks_for_itself(bug: bool) {
    let [one] = streams();
    let target = block(one) as usize;
    let program = move || {
        let mine = 2 as tcuda_stream_t;
        kernel(target as *const c_void, WRITE, mine);
        free(block(mine));
        if !bug {
            synchronize(mine);
        }
    };
    std::thread::spawn(program).join().unwrap();
    kernel(target as *const c_void, WRITE, one);
}

/// Free memory with other memory between is mapped in one piece.
fn a_cache_that_maps_anew_asks_for_itself(bug: bool) {
    const PIECE: usize = 64 << 20;
    let ([one, two], target) = filled();
    let get = |size| {
        let mut block = null_mut();
        ok(unsafe { tcuda_malloc_cached(&mut block, size, one) });
        block
    };
    let pieces: [_; 8] = std::array::from_fn(|_| get(PIECE));
    pieces.iter().step_by(2).for_each(|piece| free(*piece));
    let whole = get(4 * PIECE);
    if !bug {
        after(two, one);
    }
    fill(target, two);
    pieces.into_iter().skip(1).step_by(2).chain([whole]).for_each(free);
}

fn a_graph_that_ends_asks_for_itself(bug: bool) {
    let [one, two] = streams();
    let block = block(one);
    let graph = captured(one, || fill(block, one));
    replay(graph, one);
    // So that it finds the stream idle.
    let mut passing = null_mut();
    ok(unsafe { tcuda_malloc_cached(&mut passing, SIZE, one) });
    free(passing);
    ok(tcuda_empty_cache(0));
    ok(tcuda_graph_destroy(graph));
    if !bug {
        after(two, one);
    }
    kernel(block, READ, two);
}

/// For the whole device, where another thread's default stream has freed memory.
fn a_cache_that_gives_back_waits_for_itself(bug: bool) {
    let ([one, two], target) = filled();
    let turn = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            free(block(2 as tcuda_stream_t));
            turn.wait();
            turn.wait();
        });
        turn.wait();
        ok(tcuda_empty_cache(0));
        turn.wait();
    });
    if !bug {
        after(two, one);
    }
    fill(target, two);
}

/// A block whose memory was another one's, for the same stream.
fn reused(stream: tcuda_stream_t, before: *mut c_void) -> *mut c_void {
    let block = block(stream);
    assert_eq!(block, before);
    block
}

fn a_reused_block_is_used_on_another_stream(bug: bool) {
    let ([one, two], first) = filled();
    free(first);
    let second = reused(one, first);
    if !bug {
        after(two, one);
    }
    fill(second, two);
}

/// What is past for the host is past for all, whatever else the stream has got.
fn a_reused_part_of_a_block_is_used_on_another_stream(bug: bool) {
    let ([one, two], first) = filled();
    if !bug {
        synchronize(one);
    }
    fill(block(one), one);
    free(first);
    // Other free memory may be at hand, of a stream that had this one's handle.
    let piece = || {
        let mut piece = null_mut();
        ok(unsafe { tcuda_malloc_cached(&mut piece, SIZE / 4, one) });
        piece
    };
    let second = (0..1000).map(|_| piece()).find(|piece| *piece == first).unwrap();
    ok(unsafe { tcuda_memset_async(second, 1, SIZE / 4, two) });
}

fn a_block_goes_from_stream_to_stream(bug: bool) {
    let ([one, two, three], first) = filled();
    after(two, one);
    ok(unsafe { tcuda_free_cached_on(first, two) });
    let second = reused(two, first);
    ok(unsafe { tcuda_free_cached_on(second, two) });
    let third = reused(two, first);
    if !bug {
        after(three, two);
    }
    kernel(third, READ, three);
    ok(unsafe { tcuda_record_stream(third, three) });
}

fn a_reused_block_is_freed_on_another_stream(bug: bool) {
    let ([one, two], first) = filled();
    free(first);
    let second = reused(one, first);
    if !bug {
        after(two, one);
    }
    ok(unsafe { tcuda_free_cached_on(second, two) });
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
    let ([_, two], block) = read_on_the_second();
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
    let ([_, two, three], block) = read_on_the_second();
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
    let ([_, two, three], block) = read_on_the_second();
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

/// Whether a stream of it is idle.
fn a_collective_asks_for_itself(bug: bool) {
    let (legacy, other) = (0x101 as tcuda_stream_t, stream_on(1));
    let target = block(legacy);
    fill(target, legacy);
    let (from, to) = (block(NULL), block(legacy));
    std::thread::sleep(std::time::Duration::from_millis(20));
    broadcast(from, to);
    if !bug {
        after(other, legacy);
    }
    kernel(target, READ, other);
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

/// What two ranks do; their end waits.
fn with_ranks(work: impl FnOnce([tcuda_communicator_t; 2])) {
    let mut ranks = [null_mut(); 2];
    ok(unsafe { tcuda_communicator_init_all(ranks.as_mut_ptr(), [0, 1].as_ptr(), 2, null()) });
    work(ranks);
    ranks.into_iter().for_each(|rank| ok(tcuda_communicator_destroy(rank)));
}

/// Sums over two ranks into `outputs`, in one group.
fn all_reduce(ranks: [tcuda_communicator_t; 2], sums: &[(Blocks, Blocks, [tcuda_stream_t; 2])]) {
    ok(tcuda_communicator_group_start());
    for (inputs, outputs, streams) in sums {
        for rank in 0..2 {
            let (input, output) = (floats(inputs[rank], rank as i32), floats(outputs[rank], rank as i32));
            let sum = TCUDA_REDUCE_SUM;
            ok(unsafe { tcuda_communicator_all_reduce(ranks[rank], &output.tensor, &input.tensor, sum, streams[rank]) });
        }
    }
    ok(tcuda_communicator_group_end());
}

type Blocks = [*mut c_void; 2];

fn ranks_do_not_wait_for_their_input(bug: bool) {
    let ([one, two], other) = (streams(), stream_on(1));
    let (inputs, outputs) = ([block(one), block(other)], [block(two), block(other)]);
    fill(inputs[0], one);
    if !bug {
        after(two, one);
    }
    with_ranks(|ranks| all_reduce(ranks, &[(inputs, outputs, [two, other])]));
}

fn nobody_waits_for_the_ranks(bug: bool) {
    let ([one, two], other) = (streams(), stream_on(1));
    let (inputs, outputs) = ([block(one), block(other)], [block(one), block(other)]);
    with_ranks(|ranks| {
        all_reduce(ranks, &[(inputs, outputs, [one, other])]);
        if !bug {
            after(two, one);
        }
        kernel(outputs[0], READ, two);
    });
}

fn only_calls_of_a_communicator_are_in_order(bug: bool) {
    let ([one, two], other) = (streams(), stream_on(1));
    let [inputs, outputs, sums] = [(); 3].map(|()| [block(one), block(other)]);
    with_ranks(|ranks| {
        all_reduce(ranks, &[(inputs, outputs, [one, other])]);
        let next = |ranks| all_reduce(ranks, &[(outputs, sums, [two, other])]);
        if bug {
            with_ranks(next)
        } else {
            next(ranks)
        }
        kernel(outputs[0], READ, two);
    });
}

fn only_streams_of_a_group_wait_for_each_other(bug: bool) {
    let ([one, two], [other, another]) = (streams(), [stream_on(1), stream_on(1)]);
    let [inputs, outputs, others, sums] = [(); 4].map(|()| [block(one), block(other)]);
    with_ranks(|ranks| {
        let sums = [(inputs, outputs, [one, other]), (others, sums, [two, another])];
        kernel(outputs[0], WRITE, two);
        all_reduce(ranks, if bug { &sums[..1] } else { &sums });
        kernel(outputs[0], WRITE, two);
    });
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

fn nobody_waits_for_a_part_of_a_replay(bug: bool) {
    let [one, two] = streams();
    let (block, done) = (block(one), event());
    let graph = captured(one, || {
        fill(block, one);
        ok(unsafe { tcuda_event_record_external(done, one) });
    });
    replay(graph, one);
    if !bug {
        wait(done, two);
    }
    kernel(block, READ, two);
    ok(tcuda_graph_destroy(graph));
}

fn a_replay_does_not_wait_for_what_is_outside(bug: bool) {
    let [one, two] = streams();
    let (block, ready) = (block(two), event());
    let graph = captured(one, || {
        if !bug {
            ok(unsafe { tcuda_event_wait_external(ready, one) });
        }
        kernel(block, READ, one);
    });
    fill(block, two);
    ok(unsafe { tcuda_event_record(ready, two) });
    replay(graph, one);
    ok(tcuda_graph_destroy(graph));
}

/// Within one capture nodes order as events do.
fn a_node_of_another_stream_is_not_waited_for(bug: bool) {
    let [one, two] = streams();
    let (block, done) = (block(one), event());
    let graph = captured(one, || {
        after(two, one);
        fill(block, two);
        ok(unsafe { tcuda_event_record_external(done, two) });
        if !bug {
            ok(unsafe { tcuda_event_wait_external(done, one) });
        }
        fill(block, one);
        after(one, two);
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
