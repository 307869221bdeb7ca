//! When memory is used again: at once on its stream, elsewhere when the work is past; streams that end.

use crate::init::in_child;
use crate::kit::*;
use crate::{get, ok, tests};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::null_mut;
use tcuda::capi::device::*;
use tcuda::capi::event::*;
use tcuda::capi::memory::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;

tests![
    its_stream_has_it_again_at_once: [Unfilled],
    other_streams_have_it_when_the_work_is_past,
    a_recorded_use_is_waited_for,
    every_recorded_use_is_waited_for,
    a_stream_that_is_never_idle_keeps_what_it_uses_now,
    a_stream_that_has_work_leaves_others_what_is_everybodys: [Unfilled],
    a_threads_own_stream_is_asked_by_its_thread,
    who_waits_for_a_device_knows_of_every_threads_stream,
    a_use_on_its_own_stream_is_none: [Unfilled],
    free_on_gives_it_to_that_stream: [Unfilled],
    free_on_the_stream_that_used_it: [Unfilled],
    a_destroyed_stream_keeps_its_order,
    a_block_outlives_its_stream,
    a_block_outlives_the_stream_that_used_it,
    a_block_freed_after_the_end_of_its_stream_is_everybodys,
    a_block_whose_streams_have_ended_goes_at_once,
    a_new_stream_is_not_the_old_one,
    many_streams_come_and_go,
    a_thread_that_is_gone_leaves_its_memory,
    out_of_memory_takes_what_others_have_freed: [Unfilled],
    out_of_memory_waits_for_pending_blocks,
    out_of_memory_searches_again_after_the_flush,
    plain_segments_have_the_same_order: [Unfilled],
];

const MIB: usize = 1 << 20;
/// Nothing is left over of one block for the next: whole pages, and a plain segment of its own.
const SIZE: usize = 12 * MIB;

fn synchronize(stream: tcuda_stream_t) {
    ok!(tcuda_stream_synchronize(stream));
}

fn freed(stream: tcuda_stream_t) -> *mut c_void {
    let block = allocate(SIZE, stream);
    free(block);
    block
}

/// To fill freed memory is work, which shuffled streams may do late.
fn wait_for_patterns() {
    if !Capability::Unfilled.is_there() {
        ok!(tcuda_synchronize(0));
    }
}

fn pending() -> i64 {
    stat(0, "active_bytes.all.current") - stat(0, "allocated_bytes.all.current")
}

fn its_stream_has_it_again_at_once() {
    empty_caches();
    let own = Own::on(0);
    let gate = Gate::on(own.0);
    let block = freed(own.0);
    assert_eq!(freed(own.0), block);
    drop(gate);
    empty_caches();
}

fn other_streams_have_it_when_the_work_is_past() {
    empty_caches();
    let (a, b) = (Own::on(0), Own::on(0));
    let block = allocate(SIZE, a.0);
    let gate = Gate::on(a.0);
    free(block);
    let second = allocate(SIZE, b.0);
    assert_ne!(second, block, "work on the block is not done");
    gate.open();
    synchronize(a.0);
    let third = allocate(SIZE, b.0);
    assert_eq!(third, block, "the work is done");
    free(second);
    free(third);
    empty_caches();
}

fn a_recorded_use_is_waited_for() {
    empty_caches();
    let (a, b, c) = (Own::on(0), Own::on(0), Own::on(0));
    let block = allocate(SIZE, a.0);
    ok!(tcuda_record_stream(block, b.0));
    let gate = Gate::on(b.0);
    free(block);
    assert_eq!(pending(), SIZE as i64);
    let (second, third) = (allocate(SIZE, a.0), allocate(SIZE, c.0));
    assert!(second != block && third != block, "a stream that uses the block is not done");
    // Work that comes after the free is of no concern.
    let later = (gate.open(), synchronize(b.0), Gate::on(b.0)).2;
    let fourth = allocate(SIZE, a.0);
    assert_eq!(fourth, block, "all uses are past");
    assert_eq!(pending(), 0);
    drop(later);
    [second, third, fourth].into_iter().for_each(free);
    empty_caches();
}

fn every_recorded_use_is_waited_for() {
    empty_caches();
    let (a, users) = (Own::on(0), [Own::on(0), Own::on(0), Own::on(0)]);
    let block = allocate(SIZE, a.0);
    for _ in 0..3 {
        users.iter().for_each(|user| ok!(tcuda_record_stream(block, user.0)));
    }
    // On a real device the gates open one after the other: they share a thread.
    let gates: Vec<_> = users.iter().map(|user| Gate::on(user.0)).collect();
    free(block);
    let mut others = Vec::new();
    for (gate, user) in gates.iter().zip(&users) {
        let other = allocate(SIZE, a.0);
        assert_ne!(other, block);
        others.push(other);
        gate.open();
        synchronize(user.0);
    }
    assert_eq!(allocate(SIZE, a.0), block);
    others.into_iter().chain([block]).for_each(free);
    empty_caches();
}

/// Work on a stream of which the host is a few steps ahead, as in a training loop. The stream is never idle meanwhile.
fn ahead(stream: tcuda_stream_t, step: impl Fn()) -> Vec<Gate> {
    const STEPS: usize = 20;
    let mut steps = VecDeque::new();
    for _ in 0..STEPS {
        let gate = Gate::on(stream);
        step();
        let mut event = null_mut();
        ok!(tcuda_stream_record_event(stream, &mut event));
        steps.push_back((gate, event));
        if steps.len() > AHEAD {
            let (gate, event) = steps.pop_front().unwrap();
            gate.open();
            ok!(tcuda_event_synchronize(event));
            ok!(tcuda_event_destroy(event));
        }
    }
    steps.iter().for_each(|(_, event)| ok!(tcuda_event_destroy(*event)));
    steps.into_iter().map(|(gate, _)| gate).collect()
}

const AHEAD: usize = 3;

fn a_stream_that_is_never_idle_keeps_what_it_uses_now() {
    let (own, copies) = (Own::on(0), Own::on(0));
    for computes in [own.0, default_of(0)] {
        empty_caches();
        let gates = ahead(computes, || {
            let block = allocate(SIZE, copies.0);
            ok!(tcuda_record_stream(block, computes));
            free(block);
        });
        assert!(pending() <= (AHEAD + 2) as i64 * SIZE as i64, "{} of blocks of {SIZE}", pending());
        drop(gates);
        synchronize(computes);
    }
    empty_caches();
}

/// Each of its steps finds room in its own, and some that would fit closer in what is past.
fn a_stream_that_has_work_leaves_others_what_is_everybodys() {
    empty_caches();
    let (first, second) = (Own::on(0), Own::on(0));
    let blocks = |count: usize, stream| (0..count).map(|at| allocate(8 * MIB + (at << 16), stream)).collect::<Vec<_>>();
    blocks(45, first.0).into_iter().for_each(free);
    synchronize(first.0);
    let gates = ahead(second.0, || blocks(30, second.0).into_iter().for_each(free));
    let before = stat(0, "reserved_bytes.all.current");
    let others = blocks(12, first.0);
    assert_eq!(stat(0, "reserved_bytes.all.current"), before);
    drop(gates);
    others.into_iter().for_each(free);
    synchronize(second.0);
    empty_caches();
}

fn a_threads_own_stream_is_asked_by_its_thread() {
    empty_caches();
    let own = Own::on(0);
    let worker = Worker::new(|block| {
        synchronize(handle(PER_THREAD));
        ok!(tcuda_record_stream(block, handle(PER_THREAD)));
        free(block);
    });
    (0..10).for_each(|_| worker.give(allocate(SIZE, own.0)));
    assert!(pending() <= 2 * SIZE as i64, "{} of blocks of {SIZE}", pending());
    worker.end();
    // A wait for the stream tells too.
    let worker = Worker::new(|block| {
        ok!(tcuda_record_stream(block, handle(PER_THREAD)));
        free(block);
        synchronize(handle(PER_THREAD));
    });
    (0..3).for_each(|_| worker.give(allocate(SIZE, own.0)));
    assert_eq!(pending(), 0);
    worker.end();
    empty_caches();
}

fn who_waits_for_a_device_knows_of_every_threads_stream() {
    empty_caches();
    let own = Own::on(0);
    let worker = Worker::new(|block| ok!(tcuda_record_stream(block, handle(PER_THREAD))));
    let block = allocate(SIZE, own.0);
    worker.give(block);
    free(block);
    assert_eq!(pending(), SIZE as i64);
    ok!(tcuda_synchronize(0));
    assert_eq!(pending(), 0);
    worker.end();
    empty_caches();
}

fn a_use_on_its_own_stream_is_none() {
    empty_caches();
    let own = Own::on(0);
    let block = allocate(SIZE, own.0);
    ok!(tcuda_record_stream(block, own.0));
    let gate = Gate::on(own.0);
    free(block);
    assert_eq!(pending(), 0);
    assert_eq!(freed(own.0), block);
    drop(gate);
    empty_caches();
}

fn free_on_gives_it_to_that_stream() {
    empty_caches();
    let (a, b) = (Own::on(0), Own::on(0));
    let block = allocate(SIZE, a.0);
    let gate = Gate::on(b.0);
    ok!(tcuda_free_cached_on(block, b.0));
    let other = allocate(SIZE, a.0);
    assert_ne!(other, block, "the block follows the stream that it was freed on");
    assert_eq!(allocate(SIZE, b.0), block);
    // It follows that stream from now on.
    free(block);
    assert_eq!(allocate(SIZE, b.0), block);
    drop(gate);
    free(block);
    free(other);
    empty_caches();
}

fn free_on_the_stream_that_used_it() {
    empty_caches();
    let (a, b, c) = (Own::on(0), Own::on(0), Own::on(0));
    let block = allocate(SIZE, a.0);
    ok!(tcuda_record_stream(block, b.0));
    let gate = Gate::on(b.0);
    ok!(tcuda_free_cached_on(block, b.0));
    assert_eq!(freed(b.0), block, "the only other use is that of the stream itself");
    drop(gate);
    synchronize(b.0);
    // Another stream's use still counts.
    let block = allocate(SIZE, a.0);
    ok!(tcuda_record_stream(block, c.0));
    let gate = Gate::on(c.0);
    ok!(tcuda_free_cached_on(block, b.0));
    let other = allocate(SIZE, b.0);
    assert_ne!(other, block);
    drop(gate);
    free(other);
    empty_caches();
}

fn a_destroyed_stream_keeps_its_order() {
    empty_caches();
    let (a, b) = (create_on(0), Own::on(0));
    let block = allocate(SIZE, a);
    let gate = Gate::on(a);
    free(block);
    ok!(tcuda_stream_destroy(a));
    let second = allocate(SIZE, b.0);
    assert_ne!(second, block, "the stream is gone, its work is not");
    gate.open();
    ok!(tcuda_synchronize(0));
    let third = allocate(SIZE, b.0);
    assert_eq!(third, block);
    free(second);
    free(third);
    empty_caches();
}

fn a_block_outlives_its_stream() {
    empty_caches();
    let (a, b) = (create_on(0), Own::on(0));
    let block = allocate(SIZE, a);
    ok!(tcuda_record_stream(block, b.0));
    ok!(tcuda_stream_destroy(a));
    let gate = Gate::on(b.0);
    free(block);
    assert_eq!(pending(), SIZE as i64);
    gate.open();
    synchronize(b.0);
    wait_for_patterns();
    assert_eq!(freed(b.0), block);
    empty_caches();
}

fn a_block_whose_streams_have_ended_goes_at_once() {
    empty_caches();
    let (a, user) = (create_on(0), create_on(0));
    let block = allocate(SIZE, a);
    ok!(tcuda_record_stream(block, user));
    ok!(tcuda_synchronize(0));
    [a, user].into_iter().for_each(|stream| ok!(tcuda_stream_destroy(stream)));
    free(block);
    // Nobody looked at it before.
    ok!(tcuda_empty_cache(0));
    assert_eq!(stat(0, "reserved_bytes.all.current"), 0);
    empty_caches();
}

fn a_block_outlives_the_stream_that_used_it() {
    empty_caches();
    let (a, user) = (Own::on(0), create_on(0));
    let block = allocate(SIZE, a.0);
    ok!(tcuda_record_stream(block, user));
    let gate = Gate::on(user);
    ok!(tcuda_stream_destroy(user));
    free(block);
    let second = allocate(SIZE, a.0);
    assert_ne!(second, block);
    gate.open();
    ok!(tcuda_synchronize(0));
    let third = allocate(SIZE, a.0);
    assert_eq!(third, block);
    free(second);
    free(third);
    empty_caches();
}

/// Also when what the stream had before was waited for meanwhile.
fn a_block_freed_after_the_end_of_its_stream_is_everybodys() {
    for wait_between in [false, true] {
        empty_caches();
        let (a, b) = (create_on(0), Own::on(0));
        let (block, before) = (allocate(SIZE, a), allocate(SIZE, a));
        let gate = Gate::on(a);
        free(before);
        ok!(tcuda_stream_destroy(a));
        gate.open();
        if wait_between {
            ok!(tcuda_empty_cache(0));
        } else {
            ok!(tcuda_synchronize(0));
        }
        free(block);
        let again = [allocate(SIZE, b.0), allocate(SIZE, b.0)];
        assert!(again.contains(&block), "waited between: {wait_between}");
        again.into_iter().for_each(free);
        empty_caches();
    }
}

fn a_new_stream_is_not_the_old_one() {
    empty_caches();
    let a = create_on(0);
    let block = allocate(SIZE, a);
    let used = allocate(SIZE, default_of(0));
    ok!(tcuda_record_stream(used, a));
    // Poison may have filled what was allocated.
    synchronize(a);
    ok!(tcuda_stream_destroy(a));
    // An idle handle comes back as another stream, perhaps after some that have waited longer.
    let mut others = vec![Own::on(0)];
    while others.last().is_some_and(|own| own.0 != a) {
        assert!(others.len() < 100, "the handle does not come back");
        others.push(Own::on(0));
    }
    let b = a;
    let gate = Gate::on(b);
    free(block);
    free(used);
    // What is freed may be filled, on the default stream.
    synchronize(default_of(0));
    // Neither waits for the new stream: the old one's work is past.
    let third = Own::on(0);
    let found = [allocate(SIZE, third.0), allocate(SIZE, third.0)];
    assert!(found.contains(&block) && found.contains(&used));
    // And the new one's memory waits for it.
    let own = allocate(SIZE, b);
    let late = Gate::on(b);
    free(own);
    let other = allocate(SIZE, third.0);
    assert_ne!(other, own);
    drop((gate, late));
    found.into_iter().chain([other]).for_each(free);
    empty_caches();
}

fn many_streams_come_and_go() {
    empty_caches();
    let keeper = Own::on(0);
    let kept = allocate(5000, keeper.0);
    for round in 0..40 {
        let streams: Vec<_> = (0..10).map(|_| create_on(0)).collect();
        let blocks: Vec<_> = streams.iter().map(|stream| allocate(100_000, *stream)).collect();
        for (at, block) in blocks.iter().enumerate() {
            ok!(tcuda_record_stream(*block, streams[(at + 1) % 10]));
            ok!(tcuda_record_stream(kept, streams[at]));
        }
        if round % 2 == 0 {
            blocks.iter().copied().for_each(free);
        }
        streams.into_iter().for_each(|stream| ok!(tcuda_stream_destroy(stream)));
        if round % 2 == 1 {
            blocks.into_iter().for_each(free);
        }
        wait_for_patterns();
    }
    free(kept);
    tcuda::memory::check(0);
    // Streams that are gone leave nothing that others could not have.
    assert!(stat(0, "reserved_bytes.all.peak") <= 8 * MIB as i64);
    empty_caches();
}

fn a_thread_that_is_gone_leaves_its_memory() {
    empty_caches();
    let per_thread = 2;
    let blocks: Vec<usize> = (0..4)
        .map(|_| {
            let allocated = std::thread::spawn(move || {
                let (kept, block) = (allocate(SIZE, handle(per_thread)), allocate(SIZE, handle(per_thread)));
                free(block);
                kept as usize
            });
            allocated.join().unwrap()
        })
        .collect();
    assert_eq!(blocks.iter().collect::<std::collections::HashSet<_>>().len(), 4);
    blocks.into_iter().for_each(|block| free(block as *mut c_void));
    // Nobody can ask that stream any more; the ladder can.
    let limit = Limit::of(0, stat(0, "reserved_bytes.all.current") as u64);
    let own = Own::on(0);
    free(allocate(2 * SIZE, own.0));
    drop(limit);
    empty_caches();
}

fn out_of_memory_takes_what_others_have_freed() {
    empty_caches();
    let (a, b) = (Own::on(0), Own::on(0));
    let _limit = Limit::of(0, SIZE as u64);
    let (gate, diary) = (Gate::on(a.0), Diary::default());
    diary.write_on(a.0, 1);
    let block = freed(a.0);
    // The host does not wait, the stream does.
    assert_eq!(allocate(SIZE, b.0), block);
    assert!(!gate.was_passed());
    diary.write_on(b.0, 2);
    gate.open();
    synchronize(b.0);
    assert_eq!(diary.read(), [1, 2]);
    assert_eq!((stat(0, "num_ooms"), stat(0, "num_sync_all_streams")), (0, 0));
    free(block);
    empty_caches();
}

fn out_of_memory_waits_for_pending_blocks() {
    empty_caches();
    let (a, b) = (Own::on(0), Own::on(0));
    let _limit = Limit::of(0, 2 * SIZE as u64);
    let (block, kept) = (allocate(SIZE, a.0), allocate(SIZE, a.0));
    ok!(tcuda_record_stream(block, b.0));
    let gate = Gate::on(b.0);
    free(block);
    let opener = gate.open_later();
    let second = allocate(SIZE, a.0);
    assert!(gate.was_passed());
    assert_eq!(second, block);
    assert_eq!((stat(0, "num_ooms"), stat(0, "num_sync_all_streams"), stat(0, "num_alloc_retries")), (0, 1, 0));
    opener.join().unwrap();
    free(second);
    free(kept);
    empty_caches();
}

/// pytorch#189504: blocks of another stream, freed but in use until the flush, make up the request.
fn out_of_memory_searches_again_after_the_flush() {
    empty_caches();
    let (a, b, c) = (Own::on(0), Own::on(0), Own::on(0));
    let _limit = Limit::of(0, 4 * SIZE as u64);
    let small: Vec<_> = (0..SIZE / MIB).map(|_| allocate(MIB, a.0)).collect();
    let large: Vec<_> = (0..3).map(|_| allocate(SIZE, a.0)).collect();
    for block in small.iter().chain(&large) {
        ok!(tcuda_record_stream(*block, b.0));
    }
    let gate = Gate::on(b.0);
    small.into_iter().chain(large).for_each(free);
    let opener = gate.open_later();
    let whole = get!(std::ptr::null_mut(), out => tcuda_malloc_cached(out, 4 * SIZE, c.0));
    assert!(gate.was_passed());
    assert_eq!((stat(0, "num_ooms"), stat(0, "num_alloc_retries")), (0, 1));
    opener.join().unwrap();
    free(whole);
    empty_caches();
}

fn plain_segments_have_the_same_order() {
    in_child("plain_order", &[("TCUDA_ALLOC_CONF", "expandable_segments:False")]);
}

pub fn scene_plain_order() {
    for test in TESTS.iter().filter(|test| test.name != "plain_segments_have_the_same_order") {
        std::thread::spawn(test.run).join().unwrap_or_else(|_| panic!("{}", test.name));
    }
}
