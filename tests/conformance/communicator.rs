//! Communicators over all devices of one process (machines.rs makes other machines, tests/communicators.rs processes): results, groups, order,
//! threads, parts, rules.

use crate::graph::{G, OWN, RELAXED};
use crate::kit::*;
use crate::ranks::*;
use crate::reference::{self, *};
use crate::tensor::{Managed, Random, contents, refused};
use crate::{fails, get, ok, tests};
use std::ptr::{null, null_mut};
use tcuda::base::dlpack::tcuda_tensor_t;
use tcuda::base::dtype::DType;
use tcuda::base::status::tcuda_status_t::{self, *};
use tcuda::capi::communicator::*;
use tcuda::capi::copy::tcuda_memset_async;
use tcuda::capi::graph::{tcuda_graph_capture_begin, tcuda_graph_replay};
use tcuda::capi::stream::{tcuda_stream_query, tcuda_stream_synchronize};

tests![
    every_reduction_of_every_type: [Communicators],
    every_type_is_moved: [Communicators],
    large_odd_and_no_sizes: [Communicators],
    the_same_memory_in_and_out: [Communicators],
    sends_and_receives: [Communicators],
    groups_wait_for_their_end: [Communicators],
    calls_on_several_streams_keep_their_order: [Communicators],
    memory_is_not_used_again_before_a_call_is_done: [Communicators, Unfilled],
    ranks_of_threads_find_each_other: [Communicators],
    calls_that_wait_within_nccl: [Communicators],
    parts_of_a_communicator: [Communicators],
    parts_within_parts: [Communicators],
    calls_are_captured_and_replayed: [Communicators],
    what_is_wrong_is_refused: [Communicators],
    handles_end: [Communicators],
];

const INVALID: tcuda_status_t = TCUDA_ERROR_INVALID_ARGUMENT;
const OPS: [i32; 5] = [TCUDA_REDUCE_SUM, TCUDA_REDUCE_PRODUCT, TCUDA_REDUCE_MAX, TCUDA_REDUCE_MIN, TCUDA_REDUCE_AVERAGE];

/// What a rank has at a place: small, so that every type holds every result exactly.
fn value(op: i32, rank: usize, at: usize, size: usize) -> i128 {
    match op {
        TCUDA_REDUCE_PRODUCT => 1 + i128::from((rank + at).is_multiple_of(3)),
        // The same everywhere, for the sake of types that cannot hold a third.
        TCUDA_REDUCE_AVERAGE => (at % 7) as i128,
        _ => ((rank * 3 + at * 5 + size) % 7) as i128,
    }
}

fn reduced(op: i32, at: usize, size: usize) -> i128 {
    let all = (0..size).map(|rank| value(op, rank, at, size));
    match op {
        TCUDA_REDUCE_SUM => all.sum(),
        TCUDA_REDUCE_PRODUCT => all.product(),
        TCUDA_REDUCE_MAX => all.max().unwrap(),
        TCUDA_REDUCE_MIN => all.min().unwrap(),
        _ => all.sum::<i128>() / size as i128,
    }
}

/// Numbers as elements; a bool is whether there is one.
fn elements(numbers: impl Iterator<Item = i128>, dtype: DType) -> Vec<u8> {
    numbers.flat_map(|number| reference::write(Number::Integer(number), dtype).unwrap()).collect()
}

/// Whether the bytes are those of the numbers; the average of floats is a product with a rounded share.
fn holds(found: &[u8], numbers: impl Iterator<Item = i128>, dtype: DType, about: bool) -> bool {
    let expected = elements(numbers, dtype);
    let near = |found: &[u8], expected: &[u8]| match (reference::read(found, dtype), reference::read(expected, dtype)) {
        (Number::Real(a), Number::Real(b)) | (Number::Complex(a, _), Number::Complex(b, _)) => (a - b).abs() <= 0.02 * b.abs(),
        (a, b) => a == b,
    };
    found == expected || (about && found.chunks(dtype.size()).zip(expected.chunks(dtype.size())).all(|(a, b)| near(a, b)))
}

fn is_reduced(dtype: DType, op: i32) -> bool {
    match (dtype.code, dtype.bits) {
        (0 | 1, 16) => false,
        (5, _) => matches!(op, TCUDA_REDUCE_SUM | TCUDA_REDUCE_AVERAGE),
        (6, _) => op != TCUDA_REDUCE_AVERAGE,
        _ => true,
    }
}

fn every_reduction_of_every_type() {
    const COUNT: usize = 21;
    let world = World::new();
    let size = world.size();
    for dtype in TYPES {
        for op in OPS {
            if !is_reduced(dtype, op) {
                let one = Tensor::new(0, dtype, COUNT);
                refused(
                    unsafe { tcuda_communicator_all_reduce(world.0[0], one.get(), one.get(), op, NULL) },
                    TCUDA_ERROR_NOT_SUPPORTED,
                    "all_reduce",
                );
                continue;
            }
            let about = op == TCUDA_REDUCE_AVERAGE;
            // Bools count as numbers only one by one.
            let numbers = |rank: usize, count: usize| {
                (0..count).map(move |at| if dtype == BOOL { i128::from(value(op, rank, at, size) > 2) } else { value(op, rank, at, size) })
            };
            let results = |count: usize| {
                (0..count).map(move |at| match (dtype, op) {
                    (BOOL, TCUDA_REDUCE_SUM | TCUDA_REDUCE_MAX) => {
                        (0..size).map(|rank| i128::from(value(op, rank, at, size) > 2)).max().unwrap()
                    }
                    (BOOL, _) => (0..size).map(|rank| i128::from(value(op, rank, at, size) > 2)).min().unwrap(),
                    _ => reduced(op, at, size),
                })
            };
            let inputs: Vec<Tensor> =
                (0..size).map(|rank| Tensor::of(rank as i32, dtype, &elements(numbers(rank, COUNT * size), dtype))).collect();
            let wide = world.tensors(dtype, COUNT * size);
            let narrow = world.tensors(dtype, COUNT);
            let last = size as i32 - 1;
            world.all(|rank, comm| unsafe { tcuda_communicator_all_reduce(comm, wide[rank].get(), inputs[rank].get(), op, NULL) });
            world.all(|rank, comm| unsafe { tcuda_communicator_reduce_scatter(comm, narrow[rank].get(), inputs[rank].get(), op, NULL) });
            for rank in 0..size {
                assert!(holds(&wide[rank].read(), results(COUNT * size), dtype, about), "all_reduce {dtype:?} {op}");
                let own = results(COUNT * size).skip(rank * COUNT).take(COUNT);
                assert!(holds(&narrow[rank].read(), own, dtype, about), "reduce_scatter {dtype:?} {op}");
            }
            let root = Tensor::new(last, dtype, COUNT * size);
            world.all(|rank, comm| {
                let output = if rank as i32 == last { root.get() } else { null() };
                unsafe { tcuda_communicator_reduce(comm, output, inputs[rank].get(), op, last, NULL) }
            });
            assert!(holds(&root.read(), results(COUNT * size), dtype, about), "reduce {dtype:?} {op}");
        }
    }
}

fn every_type_is_moved() {
    const COUNT: usize = 13;
    let world = World::new();
    let (size, random) = (world.size(), &mut Random(5));
    for (round, dtype) in TYPES.into_iter().chain([F8]).enumerate() {
        let bytes: Vec<Vec<u8>> =
            (0..size).map(|_| contents(random, dtype, COUNT * size)[..COUNT * size * dtype.size()].to_vec()).collect();
        let inputs: Vec<Tensor> = bytes.iter().enumerate().map(|(rank, bytes)| Tensor::of(rank as i32, dtype, bytes)).collect();
        let (same, wide) = (world.tensors(dtype, COUNT * size), world.tensors(dtype, COUNT * size * size));
        let part = COUNT * dtype.size();
        world.all(|rank, comm| unsafe { tcuda_communicator_all_gather(comm, wide[rank].get(), inputs[rank].get(), NULL) });
        world.all(|rank, comm| unsafe { tcuda_communicator_all_to_all(comm, same[rank].get(), inputs[rank].get(), NULL) });
        for rank in 0..size {
            assert_eq!(wide[rank].read(), bytes.concat(), "{dtype:?}");
            let expected: Vec<u8> = bytes.iter().flat_map(|from| from[rank * part..(rank + 1) * part].to_vec()).collect();
            assert_eq!(same[rank].read(), expected, "{dtype:?}");
        }
        let root = round % size;
        world.all(|rank, comm| {
            let input = if rank == root { inputs[root].get() } else { null() };
            unsafe { tcuda_communicator_broadcast(comm, same[rank].get(), input, root as i32, NULL) }
        });
        same.iter().for_each(|tensor| assert_eq!(tensor.read(), bytes[root], "{dtype:?}"));
    }
}

fn large_odd_and_no_sizes() {
    let world = World::new();
    for count in [0usize, 1, 1023, 300_001] {
        let inputs: Vec<Tensor> = (0..world.size())
            .map(|rank| Tensor::of(rank as i32, I32, &elements((0..count).map(|at| (at * (rank + 1)) as i128), I32)))
            .collect();
        let outputs = world.tensors(I32, count);
        world.all(|rank, comm| unsafe {
            tcuda_communicator_all_reduce(comm, outputs[rank].get(), inputs[rank].get(), TCUDA_REDUCE_SUM, NULL)
        });
        let factor = (1..=world.size()).sum::<usize>();
        for output in &outputs {
            assert!(output.read() == elements((0..count).map(|at| (at * factor) as i128), I32), "{count}");
        }
    }
}

fn the_same_memory_in_and_out() {
    const COUNT: usize = 50;
    let world = World::new();
    let size = world.size();
    let fresh = || -> Vec<Tensor> {
        let numbers = |rank: usize| (0..COUNT * size).map(move |at| (at + 1000 * rank) as i128);
        (0..size).map(|rank| Tensor::of(rank as i32, I64, &elements(numbers(rank), I64))).collect()
    };
    let sum = |at: usize| (0..size).map(|rank| (at + 1000 * rank) as i128).sum::<i128>();
    let all = fresh();
    world.all(|rank, comm| unsafe { tcuda_communicator_all_reduce(comm, all[rank].get(), all[rank].get(), TCUDA_REDUCE_SUM, NULL) });
    all.iter().for_each(|one| assert_eq!(one.read(), elements((0..COUNT * size).map(sum), I64)));

    let mut all = fresh();
    let parts: Vec<_> = all.iter_mut().enumerate().map(|(rank, one)| one.part(rank * COUNT, COUNT)).collect();
    world.all(|rank, comm| unsafe { tcuda_communicator_all_gather(comm, all[rank].get(), parts[rank], NULL) });
    all.iter().for_each(|one| assert_eq!(one.read(), elements((0..COUNT * size).map(|at| (at + 1000 * (at / COUNT)) as i128), I64)));

    let mut all = fresh();
    let parts: Vec<_> = all.iter_mut().enumerate().map(|(rank, one)| one.part(rank * COUNT, COUNT)).collect();
    world.all(|rank, comm| unsafe { tcuda_communicator_reduce_scatter(comm, parts[rank], all[rank].get(), TCUDA_REDUCE_SUM, NULL) });
    for (rank, one) in all.iter().enumerate() {
        let own = rank * COUNT..(rank + 1) * COUNT;
        assert_eq!(one.read()[own.start * 8..own.end * 8], elements(own.map(sum), I64));
    }
}

fn sends_and_receives() {
    const COUNT: usize = 40_000;
    let world = World::new();
    let size = world.size();
    let bytes = |rank: usize, step: usize| elements((0..COUNT).map(|at| ((at + 7 * rank + step) % 100) as i128), U8);
    let sent: Vec<Vec<Tensor>> =
        (0..2).map(|step| (0..size).map(|rank| Tensor::of(rank as i32, U8, &bytes(rank, step))).collect()).collect();
    let got = [world.tensors(U8, COUNT), world.tensors(U8, COUNT)];
    // A ring (of one rank, to itself), twice: what goes first comes first.
    ok!(tcuda_communicator_group_start());
    for (rank, comm) in world.0.iter().enumerate() {
        for step in 0..2 {
            ok!(tcuda_communicator_send(*comm, sent[step][rank].get(), ((rank + 1) % size) as i32, NULL));
            ok!(tcuda_communicator_recv(*comm, got[step][rank].get(), ((rank + size - 1) % size) as i32, NULL));
        }
    }
    ok!(tcuda_communicator_group_end());
    for (step, got) in got.iter().enumerate() {
        for (rank, got) in got.iter().enumerate() {
            assert!(got.read() == bytes((rank + size - 1) % size, step), "{rank} {step}");
        }
    }
    // A collective and a send in one group.
    let sums = world.tensors(U8, COUNT);
    world.all(|rank, comm| unsafe {
        ok!(tcuda_communicator_send(comm, sent[0][rank].get(), rank as i32, NULL));
        ok!(tcuda_communicator_all_reduce(comm, sums[rank].get(), sent[1][rank].get(), TCUDA_REDUCE_MAX, NULL));
        tcuda_communicator_recv(comm, got[1][rank].get(), rank as i32, NULL)
    });
    let all: Vec<Vec<u8>> = (0..size).map(|rank| bytes(rank, 1)).collect();
    let largest: Vec<u8> = (0..COUNT).map(|at| all.iter().map(|one| one[at]).max().unwrap()).collect();
    for rank in 0..size {
        assert!(got[1][rank].read() == bytes(rank, 0) && sums[rank].read() == largest);
    }
}

fn groups_wait_for_their_end() {
    let world = World::new();
    let inputs: Vec<Tensor> = (0..world.size()).map(|rank| Tensor::of(rank as i32, U8, &[1; 64])).collect();
    let outputs: Vec<Tensor> = (0..world.size()).map(|rank| Tensor::of(rank as i32, U8, &[9; 64])).collect();
    ok!(tcuda_communicator_group_start());
    ok!(tcuda_communicator_group_start());
    for (rank, comm) in world.0.iter().enumerate() {
        ok!(tcuda_communicator_all_reduce(*comm, outputs[rank].get(), inputs[rank].get(), TCUDA_REDUCE_SUM, NULL));
    }
    ok!(tcuda_communicator_group_end());
    // Only the outermost end counts; nothing was enqueued.
    outputs.iter().for_each(|one| assert_eq!(one.read(), [9; 64]));
    ok!(tcuda_memset_async(inputs[0].view.data, 3, 64, default_of(0)));
    ok!(tcuda_communicator_group_end());
    outputs.iter().for_each(|one| assert_eq!(one.read(), [world.size() as u8 + 2; 64]));
    fails!(INVALID_STATE, tcuda_communicator_group_end());
    // Groups are a thread's own.
    ok!(tcuda_communicator_group_start());
    std::thread::spawn(|| fails!(INVALID_STATE, tcuda_communicator_group_end())).join().unwrap();
    let mut comm = null_mut();
    let id = unique_id();
    assert!(fails!(INVALID_STATE, tcuda_communicator_init_rank(&mut comm, 1, &id, 0, 0, null())).contains("group"));
    // A refused call leaves the group as it is.
    let wrong = Tensor::new(0, U8, 65);
    fails!(INVALID_ARGUMENT, tcuda_communicator_all_reduce(world.0[0], wrong.get(), inputs[0].get(), TCUDA_REDUCE_SUM, NULL));
    ok!(tcuda_communicator_group_end());
}

fn calls_on_several_streams_keep_their_order() {
    const COUNT: usize = 5000;
    let world = World::new();
    let size = world.size();
    let streams: Vec<[Own; 2]> = (0..size).map(|rank| [Own::on(rank as i32), Own::on(rank as i32)]).collect();
    let tensors = world.tensors(I32, COUNT);
    let spare = world.tensors(I32, COUNT);
    // NCCL connects at the first call.
    world.all(|rank, comm| unsafe { tcuda_communicator_all_reduce(comm, spare[rank].get(), spare[rank].get(), TCUDA_REDUCE_SUM, NULL) });
    for rank in 0..size {
        ok!(tcuda_stream_synchronize(default_of(rank as i32)));
    }
    // The first rank is late: what its stream has before is waited for, by all.
    let gate = Gate::on(streams[0][0].0);
    for rank in 0..size {
        ok!(tcuda_memset_async(tensors[rank].view.data, 1, 4 * COUNT, streams[rank][0].0));
    }
    world.all(|rank, comm| unsafe {
        tcuda_communicator_all_reduce(comm, tensors[rank].get(), tensors[rank].get(), TCUDA_REDUCE_SUM, streams[rank][0].0)
    });
    // On other streams, but later calls of the same communicator.
    world.all(|rank, comm| unsafe {
        tcuda_communicator_all_reduce(comm, spare[rank].get(), tensors[rank].get(), TCUDA_REDUCE_SUM, streams[rank][1].0)
    });
    assert!(!get!(true, out => tcuda_stream_query(streams[0][0].0, out)));
    gate.open();
    for rank in 0..size {
        ok!(tcuda_communicator_synchronize(world.0[rank], streams[rank][1].0, 0));
        ok!(tcuda_stream_synchronize(streams[rank][0].0));
        assert_eq!(tensors[rank].read(), [size as u8; 4 * COUNT]);
        assert_eq!(spare[rank].read(), [(size * size) as u8; 4 * COUNT]);
    }
}

fn memory_is_not_used_again_before_a_call_is_done() {
    const COUNT: usize = 1 << 18;
    let world = World::new();
    let streams: Vec<Own> = (0..world.size()).map(|rank| Own::on(rank as i32)).collect();
    let outputs = world.tensors(U8, COUNT);
    world.all(|rank, comm| unsafe {
        tcuda_communicator_all_reduce(comm, outputs[rank].get(), outputs[rank].get(), TCUDA_REDUCE_SUM, streams[rank].0)
    });
    ok!(tcuda_stream_synchronize(streams[0].0));
    let inputs: Vec<Tensor> = (0..world.size()).map(|rank| Tensor::of(rank as i32, U8, &vec![1; COUNT])).collect();
    let gate = Gate::on(streams[0].0);
    world.all(|rank, comm| unsafe {
        tcuda_communicator_all_reduce(comm, outputs[rank].get(), inputs[rank].get(), TCUDA_REDUCE_SUM, streams[rank].0)
    });
    // Freed on the stream that it came from, where nothing says that another one uses it.
    let addresses: Vec<_> = inputs.iter().map(|one| one.view.data).collect();
    drop(inputs);
    for (rank, address) in addresses.iter().enumerate() {
        let next = Tensor::new(rank as i32, U8, COUNT);
        assert!(next.view.data != *address, "rank {rank}");
        ok!(tcuda_memset_async(next.view.data, 7, COUNT, default_of(rank as i32)));
    }
    gate.open();
    for (rank, output) in outputs.iter().enumerate() {
        ok!(tcuda_stream_synchronize(streams[rank].0));
        assert!(output.read().iter().all(|byte| *byte == world.size() as u8));
    }
}

fn ranks_of_threads_find_each_other() {
    const ROUNDS: usize = 20;
    let size = device_count().min(8);
    let id = unique_id();
    let threads: Vec<_> = (0..size)
        .map(|rank| {
            std::thread::spawn(move || {
                set_device(rank);
                let comm = get!(null_mut(), out => tcuda_communicator_init_rank(out, size, &id, rank, -1, &options(60_000, 0)));
                assert_eq!(get!(-1, out => tcuda_communicator_rank(comm, out)), rank);
                assert_eq!(get!(-1, out => tcuda_communicator_size(comm, out)), size);
                assert_eq!(get!(-1, out => tcuda_communicator_device(comm, out)), rank);
                assert!(is_ready(comm));
                for round in 0..ROUNDS {
                    let count = 100 + round * 37;
                    let tensor = Tensor::of(rank, I32, &elements((0..count).map(|at| (at + rank as usize) as i128), I32));
                    ok!(tcuda_communicator_all_reduce(comm, tensor.get(), tensor.get(), TCUDA_REDUCE_MAX, NULL));
                    ok!(tcuda_communicator_synchronize(comm, NULL, 0));
                    assert_eq!(tensor.read(), elements((0..count).map(|at| (at + size as usize - 1) as i128), I32));
                }
                ok!(tcuda_communicator_destroy(comm));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn calls_that_wait_within_nccl() {
    let world = World::with(&tcuda_communicator_options_t { nccl_blocking: 1, ..options(60_000, 0) });
    let tensors: Vec<Tensor> = (0..world.size()).map(|rank| Tensor::of(rank as i32, U8, &[1; 100])).collect();
    for _ in 0..3 {
        world.all(|rank, comm| unsafe {
            tcuda_communicator_all_reduce(comm, tensors[rank].get(), tensors[rank].get(), TCUDA_REDUCE_MAX, NULL)
        });
    }
    for (rank, comm) in world.0.iter().enumerate() {
        ok!(tcuda_communicator_synchronize(*comm, default_of(rank as i32), 0));
        assert_eq!(tensors[rank].read(), [1; 100]);
    }
    if world.size() > 1 {
        // One kind in a group.
        let other = World::new();
        ok!(tcuda_communicator_group_start());
        for comm in [world.0[0], other.0[0]] {
            ok!(tcuda_communicator_all_reduce(comm, tensors[0].get(), tensors[0].get(), TCUDA_REDUCE_SUM, NULL));
        }
        refused(tcuda_communicator_group_end(), INVALID, "nccl_blocking");
        assert!(is_ready(world.0[0]) && is_ready(other.0[0]));
    }
}

fn parts_of_a_communicator() {
    let world = World::new();
    let size = world.size();
    // By one thread: even and odd ranks, the last one first.
    let parts: Vec<Comm> = world
        .0
        .iter()
        .enumerate()
        .map(|(rank, comm)| get!(null_mut(), out => tcuda_communicator_split(out, *comm, rank as i32 % 2, -(rank as i32), &options(0, 1))))
        .collect();
    let colors: Vec<Vec<usize>> = (0..2).map(|color| (0..size).rev().filter(|rank| rank % 2 == color).collect()).collect();
    for (rank, part) in parts.iter().enumerate() {
        // Those of one thread find each other only if all are asked.
        while parts.iter().filter(|part| !is_ready(**part)).count() > 0 {}
        let color = &colors[rank % 2];
        assert_eq!(get!(-1, out => tcuda_communicator_size(*part, out)), color.len() as i32);
        assert_eq!(get!(-1, out => tcuda_communicator_rank(*part, out)), color.iter().position(|one| *one == rank).unwrap() as i32);
    }
    let inputs: Vec<Tensor> = (0..size).map(|rank| Tensor::of(rank as i32, U8, &[rank as u8])).collect();
    let outputs: Vec<Tensor> = (0..size).map(|rank| Tensor::new(rank as i32, U8, colors[rank % 2].len())).collect();
    ok!(tcuda_communicator_group_start());
    for rank in 0..size {
        ok!(tcuda_communicator_all_gather(parts[rank], outputs[rank].get(), inputs[rank].get(), NULL));
    }
    ok!(tcuda_communicator_group_end());
    for rank in 0..size {
        assert_eq!(outputs[rank].read(), colors[rank % 2].iter().map(|one| *one as u8).collect::<Vec<_>>());
    }
    // The whole goes on beside its parts, and ends before them.
    let sums = world.tensors(U8, 1);
    world.all(|rank, comm| unsafe { tcuda_communicator_all_reduce(comm, sums[rank].get(), inputs[rank].get(), TCUDA_REDUCE_SUM, NULL) });
    sums.iter().for_each(|sum| assert_eq!(sum.read(), [(0..size as u8).sum::<u8>()]));
    drop(sums);
    for part in parts {
        ok!(tcuda_communicator_destroy(part));
    }
    // Some without a color, one thread a rank.
    let threads: Vec<_> = (world.0.iter().map(|comm| Sent(*comm)).enumerate())
        .map(|(rank, comm)| {
            std::thread::spawn(move || {
                let Sent(comm) = { comm };
                let part = get!(1 as Comm, out => tcuda_communicator_split(out, comm, if rank % 3 == 0 { -1 } else { 5 }, 0, null()));
                assert_eq!(part.is_null(), rank % 3 == 0);
                if !part.is_null() {
                    assert_eq!(get!(-1, out => tcuda_communicator_rank(part, out)), (rank - rank / 3) as i32 - 1);
                }
                ok!(tcuda_communicator_destroy(part));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut part = null_mut();
    assert!(fails!(INVALID_ARGUMENT, tcuda_communicator_split(&mut part, world.0[0], -1, 0, &options(0, 1))).contains("color"));
    assert!(fails!(INVALID_ARGUMENT, tcuda_communicator_split(&mut part, world.0[0], i32::MAX, 0, null())).contains("color 2147483647"));
}

/// However deep.
fn parts_within_parts() {
    const DEEP: usize = 20;
    let mut parts = vec![get!(null_mut(), out => tcuda_communicator_init_all(out, [0].as_ptr(), 1, null()))];
    for depth in 0..DEEP {
        parts.push(get!(null_mut(), out => tcuda_communicator_split(out, parts[depth], i32::MAX - 1, 0, null())));
    }
    let (input, output) = (Tensor::of(0, U8, &[7u8]), Tensor::of(0, U8, &[0u8]));
    ok!(tcuda_communicator_all_reduce(parts[DEEP], output.get(), input.get(), TCUDA_REDUCE_SUM, NULL));
    assert_eq!(output.read(), [7]);
    drop((input, output));
    parts.into_iter().for_each(|part| ok!(tcuda_communicator_destroy(part)));
}

fn calls_are_captured_and_replayed() {
    let world = World::new();
    let size = world.size();
    let streams: Vec<Own> = (0..size).map(|rank| Own::on(rank as i32)).collect();
    let graphs: Vec<G> = (0..size).map(|_| G::new()).collect();
    let tensors: Vec<Tensor> = (0..size).map(|rank| Tensor::of(rank as i32, I64, &elements([1i128, 2, 3].into_iter(), I64))).collect();
    let reduce = || {
        world.all(|rank, comm| unsafe {
            tcuda_communicator_all_reduce(comm, tensors[rank].get(), tensors[rank].get(), TCUDA_REDUCE_SUM, streams[rank].0)
        })
    };
    reduce();
    for (graph, stream) in graphs.iter().zip(&streams) {
        ok!(tcuda_stream_synchronize(stream.0));
        ok!(tcuda_graph_capture_begin(graph.0, stream.0, OWN, RELAXED));
    }
    reduce();
    graphs.iter().for_each(G::end);
    for _ in 0..2 {
        for (graph, stream) in graphs.iter().zip(&streams) {
            ok!(tcuda_graph_replay(graph.0, stream.0));
        }
    }
    for rank in 0..size {
        ok!(tcuda_communicator_synchronize(world.0[rank], streams[rank].0, 0));
        let power = size.pow(3) as i128;
        assert_eq!(tensors[rank].read(), elements([power, 2 * power, 3 * power].into_iter(), I64));
    }
}

fn what_is_wrong_is_refused() {
    let world = World::new();
    let (size, comm) = (world.size(), world.0[0]);
    let one = Tensor::new(0, F32, 12 * size);
    let other = Tensor::new(0, F32, 12 * size + 1);
    let bytes = Tensor::new(0, U8, 12 * size);
    let narrow = Tensor::new(0, F8, 12);
    let small = Tensor::new(0, U8, 5);
    let host = Managed::empty(-2, F32, &[12 * size as i64]);
    let reduce = |output, input, op| unsafe { tcuda_communicator_all_reduce(comm, output, input, op, NULL) };
    let sum = TCUDA_REDUCE_SUM;
    refused(reduce(other.get(), one.get(), sum), INVALID, "one size");
    refused(reduce(bytes.get(), one.get(), sum), INVALID, "different types");
    refused(reduce(null(), one.get(), sum), INVALID, "'output' is NULL");
    refused(reduce(one.get(), null(), sum), INVALID, "'input' is NULL");
    refused(reduce(one.get(), host.tensor(), sum), INVALID, "'input' is in host memory");
    refused(reduce(one.get(), one.get(), 5), INVALID, "'op' is 5");
    refused(reduce(one.get(), one.get(), -1), INVALID, "'op' is -1");
    refused(reduce(narrow.get(), narrow.get(), sum), TCUDA_ERROR_NOT_SUPPORTED, "moved only");
    let mut strides = [2i64];
    let mut half = [6 * size as i64];
    let spread = tcuda_tensor_t { strides: strides.as_mut_ptr(), shape: half.as_mut_ptr(), ..one.view };
    refused(reduce(&spread, &spread, sum), INVALID, "packed");
    let shifted = tcuda_tensor_t { byte_offset: 4, shape: half.as_mut_ptr(), ..one.view };
    let front = tcuda_tensor_t { shape: half.as_mut_ptr(), ..one.view };
    refused(reduce(&shifted, &front, sum), INVALID, "overlap");
    for askew in [1, 2, 3] {
        let askew = tcuda_tensor_t { byte_offset: askew, shape: half.as_mut_ptr(), ..one.view };
        refused(reduce(&askew, &askew, sum), INVALID, "no multiple of 4 bytes");
    }
    refused(unsafe { tcuda_communicator_all_to_all(comm, one.get(), one.get(), NULL) }, INVALID, "apart");
    for root in [-1, size as i32, i32::MAX] {
        refused(unsafe { tcuda_communicator_broadcast(comm, one.get(), one.get(), root, NULL) }, INVALID, "'root' is");
        refused(unsafe { tcuda_communicator_reduce(comm, one.get(), one.get(), sum, root, NULL) }, INVALID, "'root' is");
        refused(unsafe { tcuda_communicator_send(comm, one.get(), root, NULL) }, INVALID, "'peer' is");
        refused(unsafe { tcuda_communicator_recv(comm, one.get(), root, NULL) }, INVALID, "'peer' is");
    }
    refused(unsafe { tcuda_communicator_send(comm, null(), 0, NULL) }, INVALID, "'tensor' is NULL");
    refused(unsafe { tcuda_communicator_send(comm, one.get(), 0, NULL) }, INVALID, "to itself");
    ok!(tcuda_communicator_group_start());
    ok!(tcuda_communicator_send(comm, bytes.get(), 0, NULL));
    ok!(tcuda_communicator_recv(comm, small.get(), 0, NULL));
    refused(tcuda_communicator_group_end(), INVALID, "receives [5]");
    refused(unsafe { tcuda_communicator_all_reduce(comm, one.get(), one.get(), sum, handle(2)) }, INVALID, "per-thread");
    refused(unsafe { tcuda_communicator_all_reduce(comm, one.get(), one.get(), sum, handle(0x10)) }, TCUDA_ERROR_INVALID_HANDLE, "0x10");
    if size > 1 {
        let away = Tensor::new(1, F32, 12 * size);
        refused(reduce(away.get(), one.get(), sum), INVALID, "device 1");
        refused(unsafe { tcuda_communicator_all_reduce(comm, one.get(), one.get(), sum, default_of(1)) }, INVALID, "device 1");
        refused(unsafe { tcuda_communicator_all_gather(comm, one.get(), one.get(), NULL) }, INVALID, "times those of 'input'");
        refused(unsafe { tcuda_communicator_reduce_scatter(comm, one.get(), one.get(), sum, NULL) }, INVALID, "times those of 'output'");
        let pair = [Tensor::new(0, F32, 12 * size + 1), Tensor::new(0, F32, 12 * size + 1)];
        refused(unsafe { tcuda_communicator_all_to_all(comm, pair[0].get(), pair[1].get(), NULL) }, INVALID, "evenly");
    }
    // Nothing of it has harmed the communicator.
    assert!(is_ready(comm));

    let id = unique_id();
    let mut out = null_mut();
    let mut init = |size, rank, device, options: *const tcuda_communicator_options_t| unsafe {
        tcuda_communicator_init_rank(&mut out, size, &id, rank, device, options)
    };
    for (size, rank) in [(0, 0), (-1, 0), (1, 1), (1, -1), (i32::MAX, 0)] {
        refused(init(size, rank, 0, null()), INVALID, "there are 1 to 1048576 ranks");
    }
    for device in bad_devices() {
        refused(init(1, 0, device, null()), TCUDA_ERROR_INVALID_DEVICE, &device.to_string());
    }
    refused(init(1, 0, 0, &options(0, 2)), INVALID, "non_blocking");
    let both = tcuda_communicator_options_t { nccl_blocking: 1, ..options(0, 1) };
    refused(init(1, 0, 0, &both), INVALID, "not both");
    refused(unsafe { tcuda_communicator_init_rank(&mut out, 1, null(), 0, 0, null()) }, INVALID, "'id' is NULL");
    let all =
        |devices: &[i32]| unsafe { tcuda_communicator_init_all([null_mut(); 4].as_mut_ptr(), devices.as_ptr(), devices.len(), null()) };
    refused(all(&[0, 0]), INVALID, "twice");
    refused(all(&[-1]), INVALID, "non-negative");
    refused(all(&[0, 9999]), TCUDA_ERROR_INVALID_DEVICE, "9999");
    ok!(all(&[]));
    assert!(out.is_null());
}

fn handles_end() {
    let make = || get!(null_mut(), out => tcuda_communicator_init_rank(out, 1, &unique_id(), 0, 0, null()));
    let comm = make();
    ok!(tcuda_communicator_destroy(comm));
    ok!(tcuda_communicator_destroy(null_mut()));
    let tensor = Tensor::new(0, F32, 3);
    for dead in [comm, null_mut(), &raw const tensor as Comm] {
        let mut number = 0;
        let mut part = null_mut();
        fails!(INVALID_HANDLE, tcuda_communicator_query(dead, &mut false));
        fails!(INVALID_HANDLE, tcuda_communicator_abort(dead));
        fails!(INVALID_HANDLE, tcuda_communicator_rank(dead, &mut number));
        fails!(INVALID_HANDLE, tcuda_communicator_split(&mut part, dead, 0, 0, null()));
        fails!(INVALID_HANDLE, tcuda_communicator_synchronize(dead, NULL, 1));
        fails!(INVALID_HANDLE, tcuda_communicator_all_reduce(dead, tensor.get(), tensor.get(), TCUDA_REDUCE_SUM, NULL));
    }
    fails!(INVALID_HANDLE, tcuda_communicator_destroy(comm));
    // Destroyed with work to do: it is done.
    let comm = make();
    let stream = Own::on(0);
    let (input, output) = (Tensor::of(0, U8, &[5; 100]), Tensor::new(0, U8, 100));
    let gate = Gate::on(stream.0);
    ok!(tcuda_communicator_all_reduce(comm, output.get(), input.get(), TCUDA_REDUCE_SUM, stream.0));
    gate.open_later();
    ok!(tcuda_communicator_destroy(comm));
    ok!(tcuda_stream_synchronize(stream.0));
    assert_eq!(output.read(), [5; 100]);
}
