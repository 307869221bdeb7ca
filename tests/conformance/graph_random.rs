//! Random numbers in graphs: each replay draws what the same work would have drawn.

use crate::graph::*;
use crate::kit::*;
use crate::pools::Apart;
use crate::random::{Block, F32, I64, Own as Generator};
use crate::tensor::Managed;
use crate::{fails, get, ok, tests};
use tcuda::capi::copy::tcuda_memset_async;
use tcuda::capi::device::{tcuda_set_device, tcuda_synchronize};
use tcuda::capi::distributions::*;
use tcuda::capi::event::*;
use tcuda::capi::graph::*;
use tcuda::capi::memory::*;
use tcuda::capi::pool::*;
use tcuda::capi::pressure::*;
use tcuda::capi::random::*;
use tcuda::capi::sim::*;
use tcuda::capi::stream::tcuda_stream_wait_stream;
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::random::tcuda_philox_state_t;

tests![
    replays_draw_as_if_the_work_were_done,
    where_a_replay_begins_lies_in_no_memory_that_is_used_still,
    where_a_replay_begins_lies_in_no_pool_that_is_open: [VirtualMemory],
    a_draw_in_a_capture_waits_for_nobody: [Faults, Unfilled],
    two_devices_draw_in_one_capture: [TwoDevices],
    replays_on_another_device_than_the_current_one: [TwoDevices],
    replays_on_several_streams_take_turns,
    a_replay_behind_one_after_which_nothing_could_be_recorded: [Faults],
    replays_beside_captures_on_the_streams_of_earlier_ones,
    generators_of_a_capture_count_apart,
    kernels_of_the_program_find_their_state,
    seeds_and_offsets_are_left_alone_in_a_capture,
    a_capture_that_comes_to_nothing_draws_nothing,
    what_draws_updates_no_other_graph,
    a_seed_between_replays_counts,
    who_is_asked_for_memory_may_ask_for_the_graph,
];

const COUNT: usize = 3000;

/// One of each kind of kernel that draws.
struct Outputs {
    uniform: Block,
    normal: Block,
    chances: Block,
    permutation: Block,
    small: Block,
    p: Block,
}

impl Outputs {
    fn new() -> Outputs {
        let mut p = Block::new(F32, COUNT);
        let generator = Generator::seeded(77);
        ok!(tcuda_random_uniform(&p.tensor(), 0.0, 1.0, generator.0, NULL));
        Outputs {
            uniform: Block::new(F32, COUNT),
            normal: Block::new(F32, COUNT),
            chances: Block::new(F32, COUNT),
            permutation: Block::new(I64, COUNT),
            small: Block::new(I64, 100),
            p,
        }
    }

    fn draw(&mut self, generator: &Generator, stream: tcuda_stream_t) {
        ok!(tcuda_random_uniform(&self.uniform.tensor(), 0.0, 1.0, generator.0, stream));
        ok!(tcuda_random_normal(&self.normal.tensor(), 0.0, 1.0, generator.0, stream));
        ok!(tcuda_random_bernoulli_tensor(&self.chances.tensor(), &self.p.tensor(), generator.0, stream));
        ok!(tcuda_random_permutation(&self.permutation.tensor(), generator.0, stream));
        ok!(tcuda_random_permutation(&self.small.tensor(), generator.0, stream));
    }

    fn bytes(&self, stream: tcuda_stream_t) -> Vec<u8> {
        synchronize(stream);
        [&self.uniform, &self.normal, &self.chances, &self.permutation, &self.small].iter().flat_map(|block| block.bytes()).collect()
    }
}

fn replays_draw_as_if_the_work_were_done() {
    let stream = Own::new();
    let (eager, captured) = (Generator::seeded(5), Generator::seeded(5));
    let (mut expected, mut outputs) = (Outputs::new(), Outputs::new());
    synchronize(NULL);
    // Both have drawn before.
    expected.draw(&eager, stream.0);
    outputs.draw(&captured, stream.0);
    synchronize(stream.0);
    let before = captured.offset();
    let graph = G::captured(stream.0, || {
        outputs.draw(&captured, stream.0);
        outputs.draw(&captured, stream.0);
    });
    assert_eq!(captured.offset(), before, "a capture draws nothing");
    for round in 0..4 {
        graph.replay(stream.0);
        expected.draw(&eager, stream.0);
        expected.draw(&eager, stream.0);
        assert_eq!(captured.offset(), eager.offset(), "round {round}");
        assert!(outputs.bytes(stream.0) == expected.bytes(stream.0), "round {round}");
        if round % 2 == 1 {
            // Work between replays draws on.
            outputs.draw(&captured, stream.0);
            expected.draw(&eager, stream.0);
            assert!(outputs.bytes(stream.0) == expected.bytes(stream.0), "behind round {round}");
        }
    }
}

fn where_a_replay_begins_lies_in_no_memory_that_is_used_still() {
    let (stream, begun) = (Own::new(), event());
    let (eager, captured) = (Generator::seeded(5), Generator::seeded(5));
    let (mut expected, mut drawn) = (Block::new(F32, COUNT), Block::new(F32, COUNT));
    ok!(tcuda_random_uniform(&expected.tensor(), 0.0, 1.0, eager.0, NULL));
    let block = allocate(16, NULL);
    synchronize(NULL);
    let others = Gate::on(NULL);
    fill(block, 0x55, 16, NULL);
    free(block);
    let graph = G::new();
    let own = graph.capture(stream.0, || {
        ok!(tcuda_event_record_external(begun, stream.0));
        let gate = Gate::on(stream.0);
        ok!(tcuda_random_uniform(&drawn.tensor(), 0.0, 1.0, captured.0, stream.0));
        gate
    });
    graph.replay(stream.0);
    ok!(tcuda_event_synchronize(begun));
    others.open();
    synchronize(NULL);
    own.open();
    synchronize(stream.0);
    assert!(drawn.bytes() == expected.bytes());
    drop(graph);
    ok!(tcuda_event_destroy(begun));
}

fn where_a_replay_begins_lies_in_no_pool_that_is_open() {
    let (stream, pool) = (Own::new(), Apart::new());
    let (eager, captured) = (Generator::seeded(5), Generator::seeded(5));
    let (mut expected, mut drawn) = (Block::new(F32, COUNT), Block::new(F32, COUNT));
    synchronize(NULL);
    ok!(tcuda_mem_pool_begin(pool.0));
    let graph = G::captured(stream.0, || ok!(tcuda_random_uniform(&drawn.tensor(), 0.0, 1.0, captured.0, stream.0)));
    ok!(tcuda_mem_pool_end(pool.0));
    assert_eq!(pool.reserved(), 0);
    pool.pause(TCUDA_PAUSE_DROP);
    graph.replay(stream.0);
    ok!(tcuda_random_uniform(&expected.tensor(), 0.0, 1.0, eager.0, stream.0));
    synchronize(stream.0);
    assert!(drawn.bytes() == expected.bytes());
    ok!(tcuda_mem_pool_resume(pool.0));
    pool.end();
}

/// What its memory comes behind holds up the first replay.
fn a_draw_in_a_capture_waits_for_nobody() {
    empty_caches();
    let (stream, others) = (Own::new(), Own::new());
    let (eager, captured) = (Generator::seeded(5), Generator::seeded(5));
    let (mut expected, mut drawn) = (Block::new(F32, COUNT), Block::new(F32, COUNT));
    let block = allocate(4096, others.0);
    synchronize(NULL);
    // There is no other memory.
    ok!(tcuda_sim_set_memory(1, 0));
    let gate = Gate::on(others.0);
    fill(block, 0x55, 4096, others.0);
    free(block);
    let graph = G::captured(stream.0, || ok!(tcuda_random_uniform(&drawn.tensor(), 0.0, 1.0, captured.0, stream.0)));
    assert!(!gate.was_passed(), "it waited");
    graph.replay(stream.0);
    assert!(!gate.was_passed(), "it waited");
    gate.open();
    ok!(tcuda_random_uniform(&expected.tensor(), 0.0, 1.0, eager.0, stream.0));
    synchronize(stream.0);
    assert!(drawn.bytes() == expected.bytes());
    ok!(tcuda_sim_set_memory(1 << 40, 0));
    drop((graph, expected, drawn));
    empty_caches();
}

/// Each finds where it begins in memory of its own.
fn two_devices_draw_in_one_capture() {
    let streams = [Own::on(0), Own::on(1)];
    let on = |device: i32| get!(std::ptr::null_mut(), out => tcuda_generator_create(out, device));
    let (eager, captured) = ([on(0), on(1)], [on(0), on(1)]);
    let tensor = |device: i32| {
        let tensor = Managed::empty(device, F32, &[COUNT as i64]);
        ok!(tcuda_synchronize(device));
        tensor
    };
    let (expected, drawn) = ([tensor(0), tensor(1)], [tensor(0), tensor(1)]);
    let draw = |on: &[Managed; 2], from: &[tcuda_generator_t; 2]| {
        (0..2).for_each(|at| ok!(tcuda_random_uniform(on[at].tensor(), 0.0, 1.0, from[at], streams[at].0)));
    };
    let graph = G::captured(streams[0].0, || {
        ok!(tcuda_stream_wait_stream(streams[1].0, streams[0].0));
        draw(&drawn, &captured);
        ok!(tcuda_stream_wait_stream(streams[0].0, streams[1].0));
    });
    for round in 0..3 {
        graph.replay(streams[0].0);
        draw(&expected, &eager);
        // The graph's work on the other device is over with it.
        ok!(tcuda_stream_wait_stream(streams[1].0, streams[0].0));
        for at in 0..2 {
            let bytes = [&drawn[at], &expected[at]].map(|tensor| bytes_of(tensor.tensor().data, 4 * COUNT, streams[at].0));
            assert!(bytes[0] == bytes[1], "device {at}, round {round}");
        }
    }
    // Replays on two streams, and nothing of them left: what the memory was for is over.
    let other = Own::on(0);
    ok!(tcuda_synchronize(0));
    graph.replay(other.0);
    ok!(tcuda_synchronize(0));
    graph.replay(NULL);
    drop(graph);
    (0..2).for_each(|device| ok!(tcuda_synchronize(device)));
    eager.into_iter().chain(captured).for_each(|generator| ok!(tcuda_generator_destroy(generator)));
}

fn replays_on_another_device_than_the_current_one() {
    ok!(tcuda_set_device(1));
    let stream = Own::on(1);
    let (eager, captured) = (Generator::seeded(5), Generator::seeded(5));
    let (mut expected, mut block) = (Block::new(F32, COUNT), Block::new(F32, COUNT));
    synchronize(NULL);
    let graph = G::captured(stream.0, || ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, captured.0, stream.0)));
    for current in [0, 1, 0] {
        ok!(tcuda_random_uniform(&expected.tensor(), 0.0, 1.0, eager.0, stream.0));
        ok!(tcuda_set_device(current));
        graph.replay(stream.0);
        synchronize(stream.0);
        ok!(tcuda_set_device(1));
        assert!(block.bytes() == expected.bytes());
    }
}

/// The streams' captures hear nothing of it.
fn replays_beside_captures_on_the_streams_of_earlier_ones() {
    let (last, other) = (Own::new(), Own::new());
    let (eager, captured) = (Generator::seeded(8), Generator::seeded(8));
    let (mut block, mut expected, mut side) = (Block::new(F32, COUNT), Block::new(F32, COUNT), Block::new(F32, COUNT));
    synchronize(NULL);
    let graph = G::captured(last.0, || ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, captured.0, last.0)));
    graph.replay(last.0);
    for on in [other.0, NULL, other.0] {
        let beside = G::captured(last.0, || {
            ok!(tcuda_memset_async(side.tensor().data, 1, COUNT, last.0));
            graph.replay(on);
        });
        drop(beside);
    }
    synchronize(other.0);
    synchronize(NULL);
    (0..4).for_each(|_| ok!(tcuda_random_uniform(&expected.tensor(), 0.0, 1.0, eager.0, NULL)));
    synchronize(NULL);
    assert!(block.bytes() == expected.bytes());
    assert_eq!(captured.offset(), eager.offset());
}

/// Nothing tells when its replay is over but the device, which cannot be waited for beside a capture.
fn a_replay_behind_one_after_which_nothing_could_be_recorded() {
    let (first, apart, stream) = (Own::new(), Own::new(), Own::new());
    let generator = Generator::seeded(7);
    let mut block = Block::new(F32, COUNT);
    synchronize(NULL);
    let graph = G::captured(stream.0, || ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, generator.0, stream.0)));
    let gate = Gate::on(first.0);
    ok!(tcuda_sim_fail_at(c"cudaEventRecord".as_ptr(), 1, 1));
    graph.replay(first.0);
    ok!(tcuda_sim_clear_faults());
    gate.open();
    drop(G::captured(apart.0, || {
        let text = fails!(CAPTURE, tcuda_graph_replay(graph.0, stream.0));
        assert!(text.contains("cannot be waited for"), "{text}");
    }));
    graph.replay(stream.0);
    synchronize(stream.0);
}

fn replays_on_several_streams_take_turns() {
    const REPLAYS: usize = 12;
    let streams = [Own::new(), Own::new(), Own::new()];
    let (eager, captured) = (Generator::seeded(6), Generator::seeded(6));
    let (mut block, mut expected) = (Block::new(F32, COUNT), Block::new(F32, COUNT));
    synchronize(NULL);
    let graph = G::captured(streams[0].0, || ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, captured.0, streams[0].0)));
    for round in 0..REPLAYS {
        graph.replay(streams[round % 3].0);
        ok!(tcuda_random_uniform(&expected.tensor(), 0.0, 1.0, eager.0, NULL));
        if round == 7 {
            // The stream of the last replay goes.
            let passing = Own::new();
            graph.replay(passing.0);
            ok!(tcuda_random_uniform(&expected.tensor(), 0.0, 1.0, eager.0, NULL));
        }
    }
    streams.iter().for_each(|stream| synchronize(stream.0));
    assert!(block.bytes() == expected.bytes());
    assert_eq!(captured.offset(), eager.offset());
}

fn generators_of_a_capture_count_apart() {
    let (stream, side) = (Own::new(), Own::new());
    let (fork, join) = (event(), event());
    let generators = [Generator::seeded(1), Generator::seeded(2)];
    let twins = [Generator::seeded(1), Generator::seeded(2)];
    let mut blocks = [Block::new(F32, COUNT), Block::new(F32, 10 * COUNT)];
    let mut expected = [Block::new(F32, COUNT), Block::new(F32, 10 * COUNT)];
    synchronize(NULL);
    let graph = G::captured(stream.0, || {
        ok!(tcuda_random_uniform(&blocks[0].tensor(), 0.0, 1.0, generators[0].0, stream.0));
        order(stream.0, side.0, fork);
        ok!(tcuda_random_normal(&blocks[1].tensor(), 0.0, 1.0, generators[1].0, side.0));
        order(side.0, stream.0, join);
    });
    for _ in 0..3 {
        graph.replay(stream.0);
        ok!(tcuda_random_uniform(&expected[0].tensor(), 0.0, 1.0, twins[0].0, NULL));
        ok!(tcuda_random_normal(&expected[1].tensor(), 0.0, 1.0, twins[1].0, NULL));
        synchronize(stream.0);
        for (block, twin) in blocks.iter().zip(&expected) {
            assert!(block.bytes() == twin.bytes());
        }
    }
    for (generator, twin) in generators.iter().zip(&twins) {
        assert_eq!(generator.offset(), twin.offset());
    }
    // A generator may go before its graph.
    drop(generators);
    graph.replay(stream.0);
    synchronize(stream.0);
    ok!(tcuda_event_destroy(fork));
    ok!(tcuda_event_destroy(join));
}

fn kernels_of_the_program_find_their_state() {
    let stream = Own::new();
    let generator = Generator::seeded(9);
    let start = tcuda_philox_state_t { seed: 1, offset: 1, offset_intragraph: 1, captured: 7, reserved: 1 };
    let take = |increment| get!(start, out => tcuda_generator_philox_state(out, generator.0, increment, stream.0));
    take(40);
    let graph = G::new();
    graph.begin(stream.0);
    let (first, second) = (take(5), take(100));
    graph.end();
    assert_eq!((first.captured, first.offset_intragraph, second.offset_intragraph), (1, 0, 8));
    assert_eq!((first.seed, first.offset), (second.seed, second.offset));
    graph.replay(stream.0);
    let word = |address: u64| u64::from_le_bytes(bytes_of(address as *const _, 8, stream.0).try_into().unwrap());
    assert_eq!((word(first.seed), word(first.offset), generator.offset()), (9, 40, 40 + 108));
    graph.replay(stream.0);
    assert_eq!((word(first.seed), word(first.offset), generator.offset()), (9, 148, 40 + 2 * 108));
}

fn seeds_and_offsets_are_left_alone_in_a_capture() {
    let stream = Own::new();
    let (generator, other) = (Generator::seeded(9), Generator::seeded(10));
    let mut block = Block::new(F32, COUNT);
    synchronize(NULL);
    let graph = G::new();
    graph.begin(stream.0);
    // Not before the capture draws from it.
    ok!(tcuda_generator_set_offset(generator.0, 8));
    ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, generator.0, stream.0));
    let text = fails!(CAPTURE, tcuda_generator_manual_seed(generator.0, 1));
    assert!(text.contains("during the capture of a graph"), "{text}");
    // The seed that it has changes nothing, and is taken.
    ok!(tcuda_generator_manual_seed(generator.0, 9));
    fails!(CAPTURE, tcuda_generator_set_offset(generator.0, 4));
    fails!(CAPTURE, tcuda_generator_get_offset(generator.0, &mut 0));
    fails!(CAPTURE, tcuda_generator_set_state(generator.0, [0u8; 16].as_ptr(), 16));
    ok!(tcuda_generator_set_offset(other.0, 4));
    // The default one likewise.
    ok!(tcuda_manual_seed(3));
    ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, std::ptr::null_mut(), stream.0));
    fails!(CAPTURE, tcuda_manual_seed(4));
    ok!(tcuda_manual_seed(3));
    fails!(CAPTURE, tcuda_manual_seed_all(4));
    graph.end();
    assert_eq!(generator.offset(), 8);
    ok!(tcuda_manual_seed(4));
    ok!(tcuda_generator_set_offset(generator.0, 4));
    graph.replay(stream.0);
    synchronize(stream.0);
}

fn a_capture_that_comes_to_nothing_draws_nothing() {
    empty_caches();
    let stream = Own::new();
    let generator = Generator::seeded(9);
    let mut block = Block::new(F32, COUNT);
    synchronize(NULL);
    let graph = G::new();
    for _ in 0..3 {
        graph.begin(stream.0);
        ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, generator.0, stream.0));
        ok!(tcuda_graph_reset(graph.0));
        assert_eq!(generator.offset(), 0);
    }
    ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, generator.0, stream.0));
    synchronize(stream.0);
    drop(block);
    drop(graph);
    empty_caches();
}

fn what_draws_updates_no_other_graph() {
    let stream = Own::new();
    let generator = Generator::seeded(9);
    let mut block = Block::new(F32, COUNT);
    synchronize(NULL);
    let draws = G::with(TCUDA_GRAPH_KEEP);
    draws.begin(stream.0);
    ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, generator.0, stream.0));
    draws.end();
    ok!(tcuda_graph_instantiate(draws.0));
    let graph = G::with(TCUDA_GRAPH_KEEP);
    graph.begin(stream.0);
    let text = fails!(CAPTURE, tcuda_graph_replay(draws.0, stream.0));
    assert!(text.contains("capture of another one"), "{text}");
    graph.end();
    ok!(tcuda_graph_instantiate(graph.0));
    fails!(INVALID_ARGUMENT, tcuda_graph_update(graph.0, draws.0));
    fails!(INVALID_ARGUMENT, tcuda_graph_update(draws.0, graph.0));
    draws.replay(stream.0);
    synchronize(stream.0);
}

fn a_seed_between_replays_counts() {
    let stream = Own::new();
    let generator = Generator::seeded(9);
    let mut block = Block::new(F32, COUNT);
    synchronize(NULL);
    let graph = G::captured(stream.0, || ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, generator.0, stream.0)));
    let replayed = || {
        graph.replay(stream.0);
        synchronize(stream.0);
        block.bytes()
    };
    let (first, second) = (replayed(), replayed());
    assert!(first != second);
    ok!(tcuda_generator_manual_seed(generator.0, 9));
    assert!(replayed() == first);
    ok!(tcuda_generator_manual_seed(generator.0, 8));
    assert!(replayed() != second);
    // The end of the numbers is told, and nothing is replayed.
    ok!(tcuda_generator_set_offset(generator.0, u64::MAX - 3));
    fails!(INVALID_ARGUMENT, tcuda_graph_replay(graph.0, stream.0));
    ok!(tcuda_generator_set_offset(generator.0, 0));
    ok!(tcuda_generator_manual_seed(generator.0, 9));
    assert!(replayed() == first);
}

fn who_is_asked_for_memory_may_ask_for_the_graph() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static GRAPH: AtomicUsize = AtomicUsize::new(0);
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn asked(_: *const tcuda_pressure_t, _: *mut std::ffi::c_void) -> bool {
        ASKED.fetch_add(1, Ordering::Relaxed);
        let graph = GRAPH.load(Ordering::Relaxed) as tcuda_graph_t;
        fails!(INVALID_STATE, tcuda_graph_replay(graph, NULL));
        false
    }
    empty_caches();
    let (stream, generator, graph) = (Own::new(), Generator::seeded(3), G::new());
    // All there is, for as long as it lasts.
    let held = allocate(2 * MIB, NULL);
    let mut out = Block::new(F32, 16);
    // The stream of the capture waits for no default one.
    synchronize(NULL);
    let limit = stat(-1, "reserved_bytes.all.current") as u64;
    GRAPH.store(graph.0 as usize, Ordering::Relaxed);
    graph.begin(stream.0);
    ok!(tcuda_set_memory_limit(limit, -1));
    let mut small = Vec::new();
    let mut block = std::ptr::null_mut();
    while unsafe { tcuda_malloc_cached(&mut block, 512, NULL) } == tcuda::base::Status::TCUDA_SUCCESS {
        small.push(block);
    }
    let id = get!(0, out => tcuda_register_pressure_callback(out, Some(asked), std::ptr::null_mut()));
    fails!(OUT_OF_MEMORY, tcuda_random_uniform(&out.tensor(), 0.0, 1.0, generator.0, stream.0));
    ok!(tcuda_unregister_pressure_callback(id));
    assert!(ASKED.load(Ordering::Relaxed) > 0);
    ok!(tcuda_set_memory_limit(u64::MAX, -1));
    ok!(tcuda_random_uniform(&out.tensor(), 0.0, 1.0, generator.0, stream.0));
    graph.end();
    graph.replay(stream.0);
    synchronize(stream.0);
    small.into_iter().chain([held]).for_each(free);
    drop((graph, out));
    empty_caches();
}
