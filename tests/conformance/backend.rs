//! The backend cudaMallocAsync: one call of the driver for each block, with everything counted. In a process of its own.

use crate::graph::G;
use crate::init::in_child;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tcuda::capi::copy::*;
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::graph::tcuda_graph_reset;
use tcuda::capi::init::tcuda_shutdown;
use tcuda::capi::memory::*;
use tcuda::capi::plugin::*;
use tcuda::capi::sim::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;

tests![
    blocks_of_the_drivers_own_pool: [AsyncAllocations, Unfilled],
    a_switch_of_the_backend: [AsyncAllocations, Unfilled],
    blocks_that_go_beside_a_capture: [AsyncAllocations],
    blocks_that_go_behind_a_capture: [AsyncAllocations, Unfilled],
];

const MIB: usize = 1 << 20;

fn blocks_of_the_drivers_own_pool() {
    in_child("backend", &[("TCUDA_ALLOC_CONF", "backend:cudaMallocAsync")]);
}

fn a_switch_of_the_backend() {
    in_child("backend_switch", &[]);
}

fn blocks_that_go_beside_a_capture() {
    in_child("backend_beside_a_capture", &[("TCUDA_ALLOC_CONF", "backend:cudaMallocAsync")]);
}

fn blocks_that_go_behind_a_capture() {
    in_child("backend_behind_a_capture", &[("TCUDA_ALLOC_CONF", "backend:cudaMallocAsync")]);
}

pub fn scene_beside_a_capture() {
    let stream = Own::on(0);
    let block = allocate(MIB, stream.0);
    // Its stream takes no free now.
    drop(G::captured(stream.0, || free(block)));
    let held = || [stat(0, "segment.all.current"), stat(0, "reserved_bytes.all.current")];
    let before = held();
    assert!(before[0] == 1 && before[1] >= MIB as i64, "{before:?}");
    // A stream that the legacy default stream waits for.
    let runtime = tcuda::runtime::runtime().unwrap();
    let blocking = handle(runtime.stream_create(0, 0).unwrap());
    drop(G::captured(blocking, || {
        // What is past needs no wait.
        ok!(tcuda_empty_cache(0));
        assert_eq!(held(), [0, 0]);
    }));
    runtime.stream_destroy(blocking as usize).unwrap();
}

/// At the next allocation, however the capture ended.
pub fn scene_behind_a_capture() {
    let (stream, other) = (Own::on(0), Own::on(0));
    for is_abandoned in [false, true] {
        let [block, used] = [&stream, &other].map(|own| allocate(4 * MIB, own.0));
        ok!(tcuda_record_stream(used, stream.0));
        let graph = G::new();
        graph.begin(stream.0);
        [block, used].into_iter().for_each(free);
        assert_eq!(stat(0, "segment.all.current"), 2);
        if is_abandoned {
            ok!(tcuda_graph_reset(graph.0));
        } else {
            graph.end();
        }
        // In a shuffled order what was recorded takes its time.
        [&stream, &other].into_iter().for_each(|own| ok!(tcuda_stream_synchronize(own.0)));
        let larger = allocate(8 * MIB, other.0);
        assert_eq!(stat(0, "segment.all.current"), 1);
        free(larger);
    }
    // What another stream still uses waits for it, and holds nobody up.
    let block = allocate(4 * MIB, stream.0);
    ok!(tcuda_record_stream(block, other.0));
    let gate = Gate::on(other.0);
    drop(G::captured(stream.0, || free(block)));
    let larger = allocate(8 * MIB, stream.0);
    assert_eq!(stat(0, "segment.all.current"), 2);
    gate.open();
    ok!(tcuda_stream_synchronize(other.0));
    free(larger);
    let last = allocate(MIB, stream.0);
    assert_eq!(stat(0, "segment.all.current"), 1);
    free(last);
    ok!(tcuda_empty_cache(0));
}

pub fn scene_backend() {
    let (stream, other) = (Own::on(0), Own::on(0));
    assert_eq!(text(tcuda_get_allocator_backend()), "cudaMallocAsync");
    let sizes = [1, 1000, 3 * MIB, 40 * MIB];
    let blocks = sizes.map(|size| allocate(size, stream.0));
    assert_eq!(stat(0, "allocated_bytes.all.current"), 512 + 1024 + 43 * MIB as i64);
    assert_eq!(stat(0, "requested_bytes.all.current"), 1001 + 43 * MIB as i64);
    assert_eq!((stat(0, "allocation.all.current"), stat(0, "segment.all.current")), (4, 4));
    assert!(stat(0, "reserved_bytes.all.current") >= stat(0, "allocated_bytes.all.current"));
    for (at, (block, size)) in blocks.iter().zip(sizes).enumerate() {
        ok!(tcuda_memset_async(*block, at as i32 + 1, size, stream.0));
    }
    for (at, (block, size)) in blocks.iter().zip(sizes).enumerate() {
        assert!(bytes_of(*block, size, stream.0).iter().all(|byte| *byte == at as u8 + 1));
    }
    // A use on another stream: the memory goes back behind it.
    let gate = Gate::on(other.0);
    ok!(tcuda_memset_async(blocks[2], 77, 3 * MIB, other.0));
    ok!(tcuda_record_stream(blocks[2], other.0));
    free(blocks[2]);
    let next = allocate(3 * MIB, stream.0);
    ok!(tcuda_memset_async(next, 5, 3 * MIB, stream.0));
    gate.open();
    assert!(bytes_of(next, 3 * MIB, stream.0).iter().all(|byte| *byte == 5));
    fails!(INVALID_POINTER, tcuda_free_cached((next as usize + 512) as *mut c_void));
    ok!(tcuda_free_cached_on(next, other.0));
    [blocks[0], blocks[1], blocks[3]].into_iter().for_each(free);
    fails!(INVALID_POINTER, tcuda_free_cached(blocks[3]));
    assert_eq!((stat(0, "allocated_bytes.all.current"), stat(0, "segment.all.current")), (0, 0));
    // The driver's pool keeps what is freed, and gives it back when asked.
    ok!(tcuda_empty_cache(0));
    assert_eq!(stat(0, "reserved_bytes.all.current"), 0);
    // What an aligned block leaves of its memory is there behind the stream's work only.
    let first = allocate(602_624, stream.0);
    let gate = Gate::on(stream.0);
    ok!(tcuda_memset_async(first, 0x11, 602_624, stream.0));
    free(first);
    let aligned = get!(null_mut(), out => tcuda_malloc_cached_aligned(out, 570_343, 32_768, stream.0));
    let rest = allocate(7211, other.0);
    ok!(tcuda_memset_async(rest, 0x22, 7211, other.0));
    ok!(tcuda_stream_synchronize(other.0));
    gate.open();
    ok!(tcuda_synchronize(0));
    assert!(bytes_of(rest, 7211, other.0).iter().all(|byte| *byte == 0x22));
    [aligned, rest].into_iter().for_each(free);
    ok!(tcuda_empty_cache(0));
    // Aligned, in a batch, by several threads, freed by others.
    let aligned = get!(null_mut(), out => tcuda_malloc_cached_aligned(out, 5000, 1 << 16, stream.0));
    assert_eq!(aligned as usize % (1 << 16), 0);
    free(aligned);
    let on = stream.0 as usize;
    let threads: Vec<_> = (0..4usize)
        .map(|thread| {
            std::thread::spawn(move || {
                (0..100).map(|at| allocate(100 + (at * 7919 + thread * 31) % MIB, handle(on)) as usize).collect::<Vec<_>>()
            })
        })
        .collect();
    let made: Vec<usize> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_eq!(stat(0, "allocation.all.current"), 400);
    std::thread::spawn(move || made.into_iter().for_each(|block| free(block as *mut c_void))).join().unwrap();
    // The stream goes before its block.
    let gone = create_on(0);
    let block = allocate(2 * MIB, gone);
    ok!(tcuda_stream_destroy(gone));
    free(block);
    // Freed while its stream is captured, which hears nothing of it, nor of a stream that used it.
    let [block, used] = [(); 2].map(|()| allocate(2 * MIB, stream.0));
    ok!(tcuda_record_stream(used, other.0));
    drop(G::captured(stream.0, || [block, used].into_iter().for_each(free)));
    // A limit, and what does not fit.
    {
        let _limit = Limit::of(0, 64 * MIB as u64);
        let said = fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 80 * MIB, stream.0));
        assert!(said.contains("limit"), "{said}");
        free(allocate(50 * MIB, stream.0));
        free(allocate(60 * MIB, stream.0));
        // Half of it is free in pieces, which the driver's pool may have no use for.
        let blocks: Vec<*mut c_void> = (0..32).map(|_| allocate(2 * MIB, stream.0)).collect();
        ok!(tcuda_synchronize(0));
        blocks.iter().step_by(2).for_each(|block| free(*block));
        let mut large = null_mut();
        let _status = unsafe { tcuda_malloc_cached(&mut large, 30 * MIB, stream.0) };
        let held = stat(0, "reserved_bytes.all.current");
        assert!(held <= 64 * MIB as i64, "{held} bytes are held within a limit of 64 MiB");
        free(large);
        blocks.iter().skip(1).step_by(2).for_each(|block| free(*block));
    }
    fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 1 << 50, stream.0));
    // A block beyond the limit goes back, whichever call fails meanwhile.
    for call in (1..30).filter(|_| backend() == "sim") {
        let _limit = Limit::of(0, 64 * MIB as u64);
        let blocks = [(); 2].map(|()| allocate(15 * MIB, stream.0));
        ok!(tcuda_sim_delay(stream.0, 5_000_000));
        blocks.into_iter().for_each(free);
        ok!(tcuda_sim_fail_at(c"cudaGetDevice".as_ptr(), call, 999));
        let mut large = null_mut();
        let _status = unsafe { tcuda_malloc_cached(&mut large, 40 * MIB, other.0) };
        ok!(tcuda_sim_clear_faults());
        free(large);
        ok!(tcuda_synchronize(0));
        ok!(tcuda_empty_cache(0));
        assert_eq!(stat(0, "reserved_bytes.all.current"), 0, "the {call}th call failed");
    }
    assert_eq!(stat(0, "allocated_bytes.all.current"), 0);
    drop((stream, other));
    empty_caches();
}

pub fn scene_backend_switch() {
    let stream = Own::on(0);
    let native = allocate(3 * MIB, stream.0);
    ok!(tcuda_set_alloc_conf(c"backend:cudaMallocAsync".as_ptr()));
    assert_eq!(text(tcuda_get_allocator_backend()), "cudaMallocAsync");
    free(allocate(3 * MIB, stream.0));
    let ordered = allocate(9 * MIB, stream.0);
    ok!(tcuda_set_alloc_conf(c"backend:native".as_ptr()));
    let again = allocate(1000, stream.0);
    [native, ordered, again].into_iter().for_each(free);
    assert_eq!(stat(0, "allocated_bytes.all.current"), 0);
    drop(stream);
    empty_caches();
    what_a_provider_must_not_do();
}

static ORDERED: AtomicUsize = AtomicUsize::new(0);

/// What would wait for the very function that asks for it is refused: a block of the driver's pool that goes back, and the end of all.
unsafe extern "C" fn asks(size: usize, _: i32, _: tcuda_stream_t, _: *mut c_void) -> *mut c_void {
    let ordered = ORDERED.swap(0, Relaxed) as *mut c_void;
    if !ordered.is_null() {
        fails!(INVALID_STATE, tcuda_free_cached(ordered));
        fails!(INVALID_STATE, tcuda_shutdown());
    }
    tcuda::runtime::runtime().unwrap().malloc(size).map_or(null_mut(), |address| address as *mut c_void)
}

unsafe extern "C" fn takes(ptr: *mut c_void, _: usize, _: i32, _: tcuda_stream_t, _: *mut c_void) {
    tcuda::runtime::runtime().unwrap().free(ptr as usize).unwrap();
}

fn what_a_provider_must_not_do() {
    ok!(tcuda_set_alloc_conf(c"backend:cudaMallocAsync".as_ptr()));
    let ordered = allocate(9 * MIB, NULL);
    ORDERED.store(ordered as usize, Relaxed);
    let plugin = get!(null_mut(), out => tcuda_pluggable_allocator_create(out, Some(asks), Some(takes), null_mut()));
    ok!(tcuda_change_current_allocator(plugin));
    free(allocate(3 * MIB, NULL));
    assert_eq!(ORDERED.load(Relaxed), 0);
    free(ordered);
    ok!(tcuda_change_current_allocator(null_mut()));
    ok!(tcuda_set_alloc_conf(c"backend:native".as_ptr()));
    empty_caches();
    ok!(tcuda_pluggable_allocator_destroy(plugin));
}
