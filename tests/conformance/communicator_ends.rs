//! How communicators end: limits of time, aborts, ranks that differ or never come, calls that fail half way.

use crate::graph::G;
use crate::kit::*;
use crate::ranks::*;
use crate::reference::*;
use crate::{Capability, fails, get, ok, tests};
use std::ptr::{null, null_mut};
use tcuda::base::dlpack::tcuda_tensor_t;
use tcuda::base::status::tcuda_status_t::{self, *};
use tcuda::capi::communicator::*;
use tcuda::capi::sim::{tcuda_sim_clear_faults, tcuda_sim_delay, tcuda_sim_fail_at};
use tcuda::capi::stream::{tcuda_stream_query, tcuda_stream_synchronize};

tests![
    ranks_that_do_not_come: [Communicators, TwoDevices],
    a_rank_that_is_aborted: [Communicators, TwoDevices],
    ranks_of_a_process_hear_of_an_end: [Communicators, TwoDevices],
    ranks_of_one_thread_find_each_other_at_their_first_call: [Communicators],
    a_group_that_is_aborted: [Communicators, TwoDevices],
    ranks_that_found_nobody_end_one_after_the_other: [Communicators, TwoDevices],
    a_wait_has_its_own_limit_beside_others: [Communicators],
    a_split_that_not_all_come_to: [Communicators, TwoDevices],
    a_rank_is_asked_while_its_stream_is_waited_for: [Communicators],
    an_end_that_waits_is_cut_short: [Communicators, TwoDevices],
    ranks_that_differ: [Faults, TwoDevices],
    two_ranks_on_one_device: [Faults],
    a_send_waits_for_its_receive: [Faults, TwoDevices],
    a_launch_that_fails_ends_the_group: [Faults, TwoDevices],
    memory_of_a_group_that_failed: [Faults, TwoDevices, Unfilled],
    a_call_that_cannot_be_marked: [Faults],
    an_end_beside_a_capture_of_another_thread: [Communicators],
];

fn ranks_that_do_not_come() {
    // At the start.
    let mut out = null_mut();
    let id = unique_id();
    let text = fails!(TIMEOUT, tcuda_communicator_init_rank(&mut out, 2, &id, 0, 0, &options(200, 0)));
    assert!(text.contains("200 ms") && out.is_null(), "{text}");
    let id = unique_id();
    let waits = get!(null_mut(), out => tcuda_communicator_init_rank(out, 2, &id, 0, 0, &options(0, 1)));
    assert!(!is_ready(waits));
    ok!(tcuda_communicator_destroy(waits));
    // At a call: one rank makes none.
    let world = World::new();
    let tensors = world.tensors(I32, 10);
    world
        .all(|rank, comm| unsafe { tcuda_communicator_all_reduce(comm, tensors[rank].get(), tensors[rank].get(), TCUDA_REDUCE_SUM, NULL) });
    for (rank, comm) in world.0.iter().enumerate() {
        ok!(tcuda_communicator_synchronize(*comm, default_of(rank as i32), 0));
    }
    ok!(tcuda_communicator_all_reduce(world.0[0], tensors[0].get(), tensors[0].get(), TCUDA_REDUCE_SUM, NULL));
    let text = fails!(TIMEOUT, tcuda_communicator_synchronize(world.0[0], NULL, 50));
    assert!(text.contains("50 ms"), "{text}");
    // The stream goes on, the reason stays.
    ok!(tcuda_stream_synchronize(default_of(0)));
    fails!(TIMEOUT, tcuda_communicator_query(world.0[0], &mut false));
    fails!(TIMEOUT, tcuda_communicator_all_reduce(world.0[0], tensors[0].get(), tensors[0].get(), TCUDA_REDUCE_SUM, NULL));
    fails!(TIMEOUT, tcuda_communicator_synchronize(world.0[0], NULL, 0));
    let mut part = null_mut();
    fails!(TIMEOUT, tcuda_communicator_split(&mut part, world.0[0], 0, 0, null()));
    ok!(tcuda_communicator_abort(world.0[0]));
    world.0[1..].iter().for_each(|comm| ok!(tcuda_communicator_abort(*comm)));
}

fn a_rank_that_is_aborted() {
    let world = World::with(&options(30_000, 0));
    let tensors = world.tensors(I32, 10);
    world
        .all(|rank, comm| unsafe { tcuda_communicator_all_reduce(comm, tensors[rank].get(), tensors[rank].get(), TCUDA_REDUCE_SUM, NULL) });
    let gate = Gate::on(default_of(0));
    let waiting = {
        let comm = Sent(world.0[0]);
        std::thread::spawn(move || {
            let Sent(comm) = { comm };
            unsafe { tcuda_communicator_synchronize(comm, default_of(0), 0) }
        })
    };
    std::thread::sleep(std::time::Duration::from_millis(20));
    // NCCL may wait for the device before it lets go.
    let opened = gate.open_later();
    ok!(tcuda_communicator_abort(world.0[0]));
    assert_eq!(waiting.join().unwrap(), TCUDA_ERROR_INVALID_STATE);
    opened.join().unwrap();
    assert!(fails!(INVALID_STATE, tcuda_communicator_query(world.0[0], &mut false)).contains("aborted"));
    ok!(tcuda_communicator_abort(world.0[0]));
    world.0[1..].iter().for_each(|comm| ok!(tcuda_communicator_abort(*comm)));
}

/// Those that did not come have not counted it: what is left of the communicator would never split again.
fn a_split_that_not_all_come_to() {
    for color in [0, -1] {
        // NCCL's ranks have to find each other within it.
        let world = World::with(&options(if Capability::Faults.is_there() { 1_000 } else { 5_000 }, 0));
        let mut part = null_mut();
        fails!(TIMEOUT, tcuda_communicator_split(&mut part, world.0[0], color, 0, null()));
        assert!(part.is_null());
        fails!(TIMEOUT, tcuda_communicator_query(world.0[0], &mut false));
        assert!(fails!(REMOTE, tcuda_communicator_query(world.0[1], &mut false)).contains("did not come"));
        world.0.iter().for_each(|comm| ok!(tcuda_communicator_abort(*comm)));
    }
}

/// Whose waits alone are no reason to call it busy.
fn a_rank_is_asked_while_its_stream_is_waited_for() {
    let comm = get!(null_mut(), out => tcuda_communicator_init_all(out, [0].as_ptr(), 1, null()));
    let stream = Own::on(0);
    let gate = Gate::on(stream.0);
    let waiting = {
        let (comm, stream) = (Sent(comm), stream.0 as usize);
        std::thread::spawn(move || {
            let Sent(comm) = { comm };
            unsafe { tcuda_communicator_synchronize(comm, handle(stream), 0) }
        })
    };
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(100) {
        assert!(is_ready(comm));
    }
    gate.open();
    assert_eq!(waiting.join().unwrap(), TCUDA_SUCCESS);
    ok!(tcuda_communicator_destroy(comm));
}

fn an_end_that_waits_is_cut_short() {
    let mut world = World::with(&options(60_000, 0));
    let tensors = world.tensors(I32, 10);
    // NCCL connects them at their first call.
    world
        .all(|rank, comm| unsafe { tcuda_communicator_all_reduce(comm, tensors[rank].get(), tensors[rank].get(), TCUDA_REDUCE_SUM, NULL) });
    // The others never come to this one.
    ok!(tcuda_communicator_all_reduce(world.0[0], tensors[0].get(), tensors[0].get(), TCUDA_REDUCE_SUM, NULL));
    let comm = world.0.remove(0);
    let ends = {
        let comm = Sent(comm);
        std::thread::spawn(move || {
            let Sent(comm) = { comm };
            tcuda_communicator_destroy(comm)
        })
    };
    while unsafe { tcuda_communicator_query(comm, &mut false) } != TCUDA_ERROR_INVALID_HANDLE {}
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!ends.is_finished(), "it did not wait");
    ok!(tcuda_communicator_abort(comm));
    assert_eq!(ends.join().unwrap(), TCUDA_ERROR_INVALID_STATE);
    fails!(INVALID_HANDLE, tcuda_communicator_abort(comm));
    ok!(tcuda_stream_synchronize(default_of(0)));
    world.0.iter().for_each(|comm| ok!(tcuda_communicator_abort(*comm)));
}

/// NCCL lets the kernels of an aborted rank go on, which hand anything to the next one's. Those of its process hear of it before.
fn ranks_of_a_process_hear_of_an_end() {
    let world = World::with(&options(5_000, 0));
    let size = world.0.len();
    let tensors = world.tensors(I32, 10);
    let split = |by: &dyn Fn(usize) -> i32| {
        std::thread::scope(|scope| {
            let make = |rank: usize| {
                let (comm, color) = (Sent(world.0[rank]), by(rank));
                scope.spawn(move || {
                    let Sent(comm) = { comm };
                    Sent(get!(null_mut(), part => tcuda_communicator_split(part, comm, color, rank as i32, &options(5_000, 0))))
                })
            };
            let made: Vec<_> = (0..size).map(make).collect();
            made.into_iter().map(|part| part.join().unwrap().0).collect::<Vec<Comm>>()
        })
    };
    let all = split(&|_| 7);
    let halves = split(&|rank| rank as i32 % 2);
    let call = |rank: usize, comm| unsafe {
        tcuda_communicator_all_reduce(comm, tensors[rank].get(), tensors[rank].get(), TCUDA_REDUCE_SUM, NULL)
    };
    // NCCL connects ranks at their first call.
    together(&all, call);
    // All but rank 0, which comes too late.
    (1..size).for_each(|rank| ok!(call(rank, all[rank])));
    let text = fails!(TIMEOUT, tcuda_communicator_synchronize(all[1], default_of(1), 50));
    assert!(text.contains("50 ms"), "{text}");
    for (rank, comm) in all.iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let text = fails!(REMOTE, tcuda_communicator_synchronize(*comm, default_of(rank as i32), 0));
        assert!(text.contains("Rank 1 ") && text.contains("50 ms"), "{text}");
        ok!(tcuda_stream_synchronize(default_of(rank as i32)));
        fails!(REMOTE, tcuda_communicator_query(*comm, &mut false));
        assert_eq!(call(rank, *comm), TCUDA_ERROR_REMOTE);
    }
    // Who did not ask meanwhile hears of it at the latest at the end; who waits there, at once; and nobody of what is none of his.
    let idle = split(&|_| 7);
    ok!(tcuda_communicator_abort(idle[1]));
    let waiting = split(&|_| 7);
    together(&waiting, call);
    ok!(call(0, waiting[0]));
    let ends = {
        let comm = Sent(waiting[0]);
        std::thread::spawn(move || {
            let Sent(comm) = { comm };
            fails!(REMOTE, tcuda_communicator_destroy(comm))
        })
    };
    std::thread::sleep(std::time::Duration::from_millis(20));
    ok!(tcuda_communicator_abort(waiting[1]));
    let text = ends.join().unwrap();
    assert!(text.contains("Rank 1 ") && text.contains("has ended: The communicator was aborted"), "{text}");
    for (rank, comm) in idle.into_iter().enumerate() {
        match rank == 1 {
            true => ok!(tcuda_communicator_destroy(comm)),
            false => assert!(fails!(REMOTE, tcuda_communicator_destroy(comm)).contains("Rank 1 ")),
        }
    }
    ok!(tcuda_communicator_destroy(waiting[1]));
    waiting[2..].iter().for_each(|comm| _ = fails!(REMOTE, tcuda_communicator_destroy(*comm)));
    ok!(tcuda_communicator_abort(halves[1]));
    for (rank, half) in halves.into_iter().enumerate() {
        match rank % 2 == 0 || rank == 1 {
            true => ok!(tcuda_communicator_destroy(half)),
            false => assert!(fails!(REMOTE, tcuda_communicator_destroy(half)).contains("Rank 0 ")),
        }
    }
    all.into_iter().for_each(|comm| ok!(tcuda_communicator_destroy(comm)));
    world.all(call);
}

fn ranks_of_one_thread_find_each_other_at_their_first_call() {
    let (size, id) = (device_count().min(8), unique_id());
    let early = |rank| get!(null_mut(), out => tcuda_communicator_init_rank(out, size, &id, rank, rank, &options(10_000, 1)));
    let world = World((0..size).map(early).collect());
    let tensors: Vec<Tensor> = (0..size).map(|rank| Tensor::of(rank, U8, &[1; 10])).collect();
    world
        .all(|rank, comm| unsafe { tcuda_communicator_all_reduce(comm, tensors[rank].get(), tensors[rank].get(), TCUDA_REDUCE_SUM, NULL) });
    tensors.iter().for_each(|tensor| assert_eq!(tensor.read(), [size as u8; 10]));
}

/// Whichever rank is aborted, a thread that waits for a group with it comes back, and all of the group have ended.
fn a_group_that_is_aborted() {
    for aborted in 0..2 {
        let id = unique_id();
        // The last rank never comes.
        let size = device_count().min(8) + 1;
        let early = |rank| get!(null_mut(), out => tcuda_communicator_init_rank(out, size, &id, rank, rank, &options(5_000, 1)));
        let ranks = [early(0), early(1)];
        let tensors = [0, 1].map(|rank| Tensor::new(rank, U8, 10));
        let status = std::thread::scope(|scope| {
            let (begun, has_begun) = std::sync::mpsc::channel();
            let (ranks, tensors) = (ranks.map(|comm| comm as usize), tensors.each_ref().map(|tensor| tensor.get() as usize));
            let waiting = scope.spawn(move || {
                ok!(tcuda_communicator_group_start());
                for (comm, tensor) in ranks.into_iter().zip(tensors) {
                    let tensor = tensor as *const tcuda_tensor_t;
                    ok!(tcuda_communicator_all_reduce(comm as Comm, tensor, tensor, TCUDA_REDUCE_SUM, NULL));
                }
                begun.send(()).unwrap();
                tcuda_communicator_group_end()
            });
            has_begun.recv().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            ok!(tcuda_communicator_abort(ranks[aborted] as Comm));
            waiting.join().unwrap()
        });
        assert_eq!(status, TCUDA_ERROR_INVALID_STATE);
        for comm in ranks {
            assert!(fails!(INVALID_STATE, tcuda_communicator_query(comm, &mut false)).contains("aborted"));
            ok!(tcuda_communicator_destroy(comm));
        }
    }
}

/// They made no call that could have been cut off.
fn ranks_that_found_nobody_end_one_after_the_other() {
    let id = unique_id();
    let size = device_count().min(8) + 1;
    let early = |rank| get!(null_mut(), out => tcuda_communicator_init_rank(out, size, &id, rank, rank, &options(5_000, 1)));
    [early(0), early(1)].into_iter().for_each(|comm| ok!(tcuda_communicator_destroy(comm)));
}

/// The thread in a call waits no longer than the communicator lives.
fn a_wait_has_its_own_limit_beside_others() {
    let id = unique_id();
    let comm = get!(null_mut(), out => tcuda_communicator_init_rank(out, 2, &id, 0, 0, &options(5_000, 1)));
    let tensor = Tensor::new(0, U8, 10);
    let waiting = {
        let (comm, tensor) = (Sent(comm), tensor.get() as usize);
        std::thread::spawn(move || {
            let (Sent(comm), tensor) = ({ comm }, tensor as *const tcuda_tensor_t);
            fails!(TIMEOUT, tcuda_communicator_all_reduce(comm, tensor, tensor, TCUDA_REDUCE_SUM, NULL))
        })
    };
    std::thread::sleep(std::time::Duration::from_millis(20));
    let text = fails!(TIMEOUT, tcuda_communicator_synchronize(comm, NULL, 50));
    assert!(text.contains(" 50 ms"), "{text}");
    let text = waiting.join().unwrap();
    assert!(text.contains(" 50 ms"), "{text}");
    ok!(tcuda_communicator_destroy(comm));
}

fn ranks_that_differ() {
    let wrong = |first: &dyn Fn(Comm, *const tcuda_tensor_t) -> tcuda_status_t, hears: bool, words: &[&str]| {
        let world = World::with(&options(30_000, 0));
        let tensors = world.tensors(I32, 64);
        let before = tensors[1].read();
        ok!(tcuda_communicator_group_start());
        ok!(first(world.0[0], tensors[0].get()));
        for (rank, comm) in world.0.iter().enumerate().skip(1) {
            ok!(tcuda_communicator_all_reduce(*comm, tensors[rank].get(), tensors[rank].get(), TCUDA_REDUCE_SUM, NULL));
        }
        // It may be known already.
        assert!([TCUDA_SUCCESS, TCUDA_ERROR_REMOTE].contains(&tcuda_communicator_group_end()), "{}", message());
        let text = fails!(REMOTE, tcuda_communicator_synchronize(world.0[1], default_of(1), 0));
        assert!(words.iter().any(|word| text.contains(word)) || text.contains("has gone"), "{text}");
        assert_eq!(tensors[1].read(), before);
        // Who waits for something hears of it as well; who only sends may be done by then.
        let first = unsafe { tcuda_communicator_synchronize(world.0[0], default_of(0), 0) };
        assert!(first == TCUDA_ERROR_REMOTE || (!hears && first == TCUDA_SUCCESS), "{first:?}: {}", message());
        world.0.iter().for_each(|comm| ok!(tcuda_communicator_abort(*comm)));
    };
    let small = Tensor::new(0, I32, 63);
    wrong(
        &|comm, tensor| unsafe { tcuda_communicator_all_reduce(comm, tensor, tensor, TCUDA_REDUCE_MAX, NULL) },
        true,
        &["differ in all_reduce"],
    );
    wrong(&|comm, _| unsafe { tcuda_communicator_all_reduce(comm, small.get(), small.get(), TCUDA_REDUCE_SUM, NULL) }, true, &["252"]);
    wrong(&|comm, tensor| unsafe { tcuda_communicator_broadcast(comm, tensor, tensor, 0, NULL) }, false, &["different calls"]);
    wrong(&|comm, tensor| unsafe { tcuda_communicator_send(comm, tensor, 1, NULL) }, true, &["different calls"]);
}

fn two_ranks_on_one_device() {
    let id = unique_id();
    let ranks = [0, 1].map(|rank| {
        std::thread::spawn(move || {
            let mut out = null_mut();
            let status = unsafe { tcuda_communicator_init_rank(&mut out, 2, &id, rank, 0, &options(60_000, 0)) };
            assert!(out.is_null());
            (status, message())
        })
    });
    let said = ranks.map(|rank| rank.join().unwrap());
    // Who hears of the end of the other one first says that.
    assert!(said.iter().all(|(status, _)| [TCUDA_ERROR_INVALID_ARGUMENT, TCUDA_ERROR_REMOTE].contains(status)), "{said:?}");
    assert!(said.iter().any(|(_, text)| text.contains("Rank 0 and rank 1 are on the same device")), "{said:?}");
}

/// However little it is; and in whatever calls the two meet.
fn a_send_waits_for_its_receive() {
    let world = World::with(&options(30_000, 0));
    let (sent, got) = (world.tensors(U8, 16), world.tensors(U8, 16));
    let (own, next, other) = (Tensor::of(0, U8, &[7; 16]), Tensor::of(0, U8, &[9; 16]), Tensor::of(1, U8, &[8; 16]));
    let done = |rank: usize| ok!(tcuda_communicator_synchronize(world.0[rank], default_of(rank as i32), 0));
    let send = |rank: usize, tensor: &Tensor| unsafe { tcuda_communicator_send(world.0[rank], tensor.get(), 1 - rank as i32, NULL) };
    let recv = |rank: usize, tensor: &Tensor| unsafe { tcuda_communicator_recv(world.0[rank], tensor.get(), 1 - rank as i32, NULL) };
    ok!(send(0, &own));
    assert!(!get!(true, complete => tcuda_stream_query(default_of(0), complete)));
    ok!(recv(1, &got[1]));
    [0, 1].into_iter().for_each(done);
    assert_eq!(got[1].read(), [7; 16]);
    // Both at once here, one after the other there, in either order.
    for receives_first in [true, false] {
        ok!(tcuda_communicator_group_start());
        ok!(send(0, &own));
        ok!(recv(0, &got[0]));
        ok!(tcuda_communicator_group_end());
        if receives_first {
            ok!(recv(1, &got[1]));
            ok!(send(1, &other));
        } else {
            ok!(send(1, &other));
            ok!(recv(1, &got[1]));
        }
        [0, 1].into_iter().for_each(done);
        assert_eq!((got[0].read(), got[1].read()), (vec![8; 16], vec![7; 16]));
    }
    // Two sends to one receive each, and a receive that is there before.
    ok!(recv(1, &got[1]));
    ok!(tcuda_communicator_group_start());
    ok!(send(0, &next));
    ok!(send(0, &own));
    ok!(tcuda_communicator_group_end());
    ok!(recv(1, &sent[1]));
    [0, 1].into_iter().for_each(done);
    assert_eq!((got[1].read(), sent[1].read()), (vec![9; 16], vec![7; 16]));
    // Neither ever receives.
    ok!(send(0, &own));
    // It may be known already.
    let second = send(1, &other);
    assert!([TCUDA_SUCCESS, TCUDA_ERROR_REMOTE].contains(&second), "{}", message());
    let text = fails!(REMOTE, tcuda_communicator_synchronize(world.0[0], default_of(0), 0));
    assert!(text.contains("within one group") || text.contains("has gone"), "{text}");
    fails!(REMOTE, tcuda_communicator_synchronize(world.0[1], default_of(1), 0));
    world.0.iter().for_each(|comm| ok!(tcuda_communicator_abort(*comm)));
    // Nobody receives.
    let world = World::with(&options(30_000, 0));
    ok!(tcuda_communicator_send(world.0[0], own.get(), 1, NULL));
    fails!(TIMEOUT, tcuda_communicator_synchronize(world.0[0], default_of(0), 50));
    world.0.iter().for_each(|comm| ok!(tcuda_communicator_abort(*comm)));
}

fn a_launch_that_fails_ends_the_group() {
    const LAUNCH_OUT_OF_RESOURCES: i32 = 701;
    let world = World::with(&options(30_000, 0));
    let tensors = world.tensors(I32, 64);
    let call = || {
        ok!(tcuda_communicator_group_start());
        for (rank, comm) in world.0.iter().enumerate() {
            ok!(tcuda_communicator_all_reduce(*comm, tensors[rank].get(), tensors[rank].get(), TCUDA_REDUCE_SUM, NULL));
        }
    };
    ok!(tcuda_sim_fail_at(c"cuLaunchKernel".as_ptr(), 2, LAUNCH_OUT_OF_RESOURCES));
    call();
    assert!(fails!(CUDA, tcuda_communicator_group_end()).contains("cuLaunchKernel"));
    ok!(tcuda_sim_clear_faults());
    // Also of the rank whose launch went well: its stream does not wait for ever.
    for (rank, comm) in world.0.iter().enumerate() {
        ok!(tcuda_stream_synchronize(default_of(rank as i32)));
        fails!(CUDA, tcuda_communicator_query(*comm, &mut false));
    }
    // A rank that is late is no failure.
    let world = World::with(&options(30_000, 0));
    ok!(tcuda_sim_delay(default_of(1), 30_000_000));
    world
        .all(|rank, comm| unsafe { tcuda_communicator_all_reduce(comm, tensors[rank].get(), tensors[rank].get(), TCUDA_REDUCE_SUM, NULL) });
    ok!(tcuda_communicator_synchronize(world.0[0], NULL, 0));
}

/// What was enqueued of it may be on its way still.
fn memory_of_a_group_that_failed() {
    const COUNT: usize = 1 << 18;
    const LAUNCH_OUT_OF_RESOURCES: i32 = 701;
    let world = World::with(&options(30_000, 0));
    let streams: Vec<Own> = (0..world.size()).map(|rank| Own::on(rank as i32)).collect();
    let inputs = world.tensors(U8, COUNT);
    let gates: Vec<Gate> = streams.iter().map(|stream| Gate::on(stream.0)).collect();
    ok!(tcuda_communicator_group_start());
    for (rank, comm) in world.0.iter().enumerate() {
        let tensor = inputs[rank].get();
        ok!(tcuda_communicator_all_reduce(*comm, tensor, tensor, TCUDA_REDUCE_SUM, streams[rank].0));
    }
    ok!(tcuda_sim_fail_at(c"cuLaunchKernel".as_ptr(), 2, LAUNCH_OUT_OF_RESOURCES));
    fails!(CUDA, tcuda_communicator_group_end());
    ok!(tcuda_sim_clear_faults());
    let addresses: Vec<_> = inputs.iter().map(|one| one.view.data).collect();
    drop(inputs);
    for (rank, address) in addresses.into_iter().enumerate() {
        assert_ne!(Tensor::new(rank as i32, U8, COUNT).view.data, address, "rank {rank}");
    }
    drop(gates);
}

/// Nobody could wait for it at the end: it is not cut off in silence.
fn a_call_that_cannot_be_marked() {
    const OUT_OF_RESOURCES: i32 = 701;
    let comm = get!(null_mut(), out => tcuda_communicator_init_rank(out, 1, &unique_id(), 0, 0, null()));
    let stream = Own::on(0);
    let tensor = Tensor::of(0, U8, &[5; 100]);
    let gate = Gate::on(stream.0);
    ok!(tcuda_sim_fail_at(c"cudaEventRecord".as_ptr(), 1, OUT_OF_RESOURCES));
    let text = fails!(CUDA, tcuda_communicator_all_reduce(comm, tensor.get(), tensor.get(), TCUDA_REDUCE_SUM, stream.0));
    ok!(tcuda_sim_clear_faults());
    assert!(text.contains("cudaEventRecord"), "{text}");
    assert!(fails!(CUDA, tcuda_communicator_query(comm, &mut false)).contains("cudaEventRecord"));
    gate.open();
    ok!(tcuda_stream_synchronize(stream.0));
    ok!(tcuda_communicator_destroy(comm));
}

fn an_end_beside_a_capture_of_another_thread() {
    let comm = get!(null_mut(), out => tcuda_communicator_init_rank(out, 1, &unique_id(), 0, 0, null()));
    let (stream, apart) = (Own::on(0), Own::on(0));
    let (input, output) = (Tensor::of(0, U8, &[5; 100]), Tensor::new(0, U8, 100));
    let gate = Gate::on(stream.0);
    ok!(tcuda_communicator_all_reduce(comm, output.get(), input.get(), TCUDA_REDUCE_SUM, stream.0));
    let number = comm as usize;
    drop(G::captured(apart.0, || {
        let end = || {
            let opener = gate.open_later();
            ok!(tcuda_communicator_destroy(number as _));
            assert!(gate.was_passed());
            opener.join().unwrap();
        };
        std::thread::scope(|scope| scope.spawn(end).join().unwrap());
    }));
    ok!(tcuda_stream_synchronize(stream.0));
    assert_eq!(output.read(), [5; 100]);
}
