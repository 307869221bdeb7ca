//! Memory where a call fails on the way: what is in use is nobody else's, and what is freed comes back.

use crate::graph::{G, MIB, OWN, RELAXED};
use crate::kit::*;
use crate::pools::Apart;
use crate::{fails, get, ok, tests};
use std::ptr::{null, null_mut};
use tcuda::base::Status;
use tcuda::capi::copy::tcuda_memset_async;
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::graph::{tcuda_graph_capture_begin, tcuda_graph_reset};
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::pool::*;
use tcuda::capi::sim::*;
use tcuda::capi::stream::*;
use tcuda::runtime::code;

tests![
    a_stream_ends_as_a_call_fails: [Faults],
    a_captured_stream_that_cannot_be_asked_is_lent_nothing: [Faults],
    what_does_not_go_back_keeps_nobody_from_lending: [Faults, VirtualMemory],
    a_captured_use_that_cannot_be_noted_is_none: [Faults],
    a_mapping_that_stays_is_in_nobodys_way: [Faults, VirtualMemory],
    the_end_of_a_graph_loses_nothing: [Faults],
    what_kind_of_memory_there_is_shows_when_there_is_room: [Faults, VirtualMemory],
];

const SIZE: usize = 12 * MIB;

/// What fails at the `nth` call that is made for it, for some rounds.
struct Fault {
    nth: u64,
    made: u64,
}

impl Fault {
    fn strikes(&mut self, work: impl FnOnce() -> Status) -> Status {
        const INVALID_VALUE: i32 = 1;
        let calls = || get!(0, out => tcuda_sim_call_count(out, null()));
        let before = calls();
        ok!(tcuda_sim_fail_at(null(), self.nth, INVALID_VALUE));
        let status = work();
        ok!(tcuda_sim_clear_faults());
        self.made = calls() - before;
        status
    }
}

/// Rounds in each of which the next call fails, until there is none.
fn each_call_fails(mut round: impl FnMut(&mut Fault)) {
    let mut fault = Fault { nth: 0, made: 0 };
    while fault.nth <= fault.made {
        fault.nth += 1;
        round(&mut fault);
    }
    assert!(fault.nth > 1);
}

/// The driver opens no memory once, and keeps what was mapped for that: the next block lies elsewhere.
fn a_mapping_that_stays_is_in_nobodys_way() {
    const INTERNAL: i32 = 999;
    empty_caches();
    let first = allocate(SIZE, NULL);
    ok!(tcuda_sim_fail_at(c"cuMemSetAccess".as_ptr(), 1, INTERNAL));
    ok!(tcuda_sim_fail_at(c"cuMemUnmap".as_ptr(), 0, INTERNAL));
    assert!(unsafe { tcuda_malloc_cached(&mut null_mut(), 4 * SIZE, NULL) } != Status::TCUDA_SUCCESS);
    let others = [3, 5].map(|of| allocate(of * SIZE, NULL));
    ok!(tcuda_sim_clear_faults());
    others.into_iter().chain([first]).for_each(free);
    empty_caches();
    assert_eq!(stat(0, "reserved_bytes.all.current"), 0);
    tcuda::memory::check(0);
}

/// A device with no room says nothing of what kinds it has: it is asked again.
fn what_kind_of_memory_there_is_shows_when_there_is_room() {
    const OUT_OF_MEMORY: i32 = 2;
    const NOT_SUPPORTED: i32 = 801;
    empty_caches();
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, 0, null()));
    let blocks = [OUT_OF_MEMORY, NOT_SUPPORTED].map(|code| {
        [1, 2].into_iter().for_each(|nth| ok!(tcuda_sim_fail_at(c"cuMemCreate".as_ptr(), nth, code)));
        let block = get!(null_mut(), out => tcuda_mem_pool_malloc(out, SIZE, NULL, pool));
        ok!(tcuda_sim_clear_faults());
        block
    });
    blocks.into_iter().for_each(free);
    ok!(tcuda_mem_pool_destroy(pool));
}

/// Its memory is waited for by what the driver does as it takes a block back, which fails.
fn the_end_of_a_graph_loses_nothing() {
    const INVALID_VALUE: i32 = 1;
    empty_caches();
    let living = || {
        let mut live = tcuda_sim_live_t { struct_size: size_of::<tcuda_sim_live_t>(), ..unsafe { std::mem::zeroed() } };
        ok!(tcuda_sim_live(&mut live, 0));
        (live.blocks, live.block_bytes)
    };
    let stream = Own::on(0);
    let before = living();
    let graph = G::captured(stream.0, || {
        let block = allocate(1000, stream.0);
        ok!(tcuda_memset_async(block, 1, 100, stream.0));
        free(block);
    });
    graph.replay(stream.0);
    ok!(tcuda_stream_synchronize(stream.0));
    [1, 2].into_iter().for_each(|nth| ok!(tcuda_sim_fail_at(c"cudaFree".as_ptr(), nth, INVALID_VALUE)));
    drop(graph);
    tcuda_empty_cache(0);
    ok!(tcuda_sim_clear_faults());
    empty_caches();
    assert_eq!(living(), before);
}

/// Its last mark is one that nobody can make later.
fn a_stream_ends_as_a_call_fails() {
    empty_caches();
    let own = Own::on(0);
    let pin = || get!(null_mut(), out => tcuda_host_malloc_cached(out, SIZE));
    each_call_fails(|fault| {
        let user = create_on(0);
        let (block, pinned) = (allocate(SIZE, own.0), pin());
        ok!(tcuda_record_stream(block, user));
        ok!(tcuda_host_record_stream(pinned, user));
        let gate = Gate::on(user);
        if fault.strikes(|| unsafe { tcuda_stream_destroy(user) }) != Status::TCUDA_SUCCESS {
            ok!(tcuda_stream_destroy(user));
        }
        free(block);
        ok!(tcuda_host_free_cached(pinned));
        gate.open();
        ok!(tcuda_synchronize(0));
        assert_eq!(stat(0, "active_bytes.all.current"), 0, "call {}", fault.nth);
        assert_eq!(pin(), pinned, "call {}", fault.nth);
        ok!(tcuda_host_free_cached(pinned));
    });
    ok!(tcuda_host_empty_cache());
    empty_caches();
}

/// What cannot go back is no reason not to ask others.
fn what_does_not_go_back_keeps_nobody_from_lending() {
    empty_caches();
    let (own, pool) = (Own::on(0), Apart::with(0, 1, 0));
    let lends = [16 * MIB, MIB].map(|size| pool.allocate(size, own.0));
    free(lends[0]);
    // Of the device's own, and free.
    free(allocate(4 * MIB, own.0));
    let limit = Limit::of(0, stat(0, "reserved_bytes.all.current") as u64);
    ok!(tcuda_sim_fail_at(c"cuMemUnmap".as_ptr(), 0, code::NOT_SUPPORTED));
    let lent = allocate(16 * MIB, own.0);
    assert_eq!(lent, lends[0]);
    // Nothing else is there: the failure is the answer.
    fails!(NOT_SUPPORTED, tcuda_malloc_cached(&mut null_mut(), 16 * MIB, own.0));
    ok!(tcuda_sim_clear_faults());
    drop(limit);
    [lent, lends[1]].into_iter().for_each(free);
    pool.end();
    empty_caches();
}

/// A replay would write to what is another's by then.
fn a_captured_stream_that_cannot_be_asked_is_lent_nothing() {
    empty_caches();
    let (own, pool) = (Own::on(0), Apart::with(0, 1, 0));
    let lends = [SIZE, MIB].map(|size| pool.allocate(size, own.0));
    free(lends[0]);
    let limit = Limit::of(0, stat(0, "reserved_bytes.all.current") as u64);
    each_call_fails(|fault| {
        let graph = G::new();
        ok!(tcuda_graph_capture_begin(graph.0, own.0, OWN, RELAXED));
        let mut block = null_mut();
        let status = fault.strikes(|| unsafe { tcuda_malloc_cached(&mut block, SIZE, own.0) });
        assert_ne!(status, Status::TCUDA_SUCCESS, "call {}: {block:?} is lent to a graph", fault.nth);
        ok!(tcuda_graph_reset(graph.0));
    });
    drop(limit);
    free(lends[1]);
    pool.end();
    empty_caches();
}

/// Memory that a replay reads is not given out again while there is a graph, unless the call said that it is not kept.
fn a_captured_use_that_cannot_be_noted_is_none() {
    let own = Own::on(0);
    let block = allocate(512, own.0);
    let allocated = || get!(null_mut(), out => tcuda_host_malloc_cached(out, 5000));
    each_call_fails(|fault| {
        let (graph, pinned) = (G::new(), allocated());
        ok!(tcuda_graph_capture_begin(graph.0, own.0, OWN, RELAXED));
        let status = fault.strikes(|| unsafe { tcuda_host_record_stream(pinned, own.0) });
        ok!(tcuda_memset_async(block, 1, 512, own.0));
        graph.end();
        ok!(tcuda_host_free_cached(pinned));
        ok!(tcuda_synchronize(0));
        let other = allocated();
        assert!(status != Status::TCUDA_SUCCESS || other != pinned, "call {}: a graph's memory was given out again", fault.nth);
        ok!(tcuda_host_free_cached(other));
    });
    free(block);
    ok!(tcuda_host_empty_cache());
}
