//! Pauses of memory pools: what is kept, what is refused meanwhile, and what comes back.

use crate::graph::G;
use crate::kit::*;
use crate::pools::{Apart, reserved};
use crate::random::F32;
use crate::snapshot::Taken;
use crate::{fails, get, ok, tests};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use tcuda::base::Status;
use tcuda::base::dlpack::{CUDA, tcuda_place_t, tcuda_tensor_t};
use tcuda::capi::comm::tcuda_comm_gather;
use tcuda::capi::copy::*;
use tcuda::capi::device::tcuda_mem_get_info;
use tcuda::capi::distributions::tcuda_random_uniform;
use tcuda::capi::memory::*;
use tcuda::capi::pool::*;
use tcuda::capi::sim::{tcuda_sim_clear_faults, tcuda_sim_fail_at, tcuda_sim_set_memory};
use tcuda::capi::stream::{tcuda_stream_synchronize, tcuda_stream_unregister};
use tcuda::capi::tensor::{tcuda_tensor_copy, tcuda_tensor_fill};

tests![
    a_pause_keeps_contents_and_addresses,
    a_pause_drops_contents_if_asked,
    what_a_paused_pool_refuses,
    memory_of_a_paused_pool_is_not_touched: [VirtualMemory],
    a_resume_without_room_can_be_tried_again: [VirtualMemory],
    a_resume_takes_what_others_have_free: [VirtualMemory],
    a_resume_needs_what_is_in_use: [VirtualMemory],
    a_pause_among_requests: [VirtualMemory],
    a_pause_takes_what_threads_keep: [VirtualMemory],
    a_pause_beside_a_capture: [VirtualMemory],
    a_resume_beside_a_capture_of_another_library: [VirtualMemory],
    a_pause_beside_an_end: [VirtualMemory],
    a_pause_with_no_way_back: [VirtualMemory, Faults],
    a_shutdown_ends_what_is_open_and_paused: [VirtualMemory],
    what_is_lent_keeps_its_memory: [VirtualMemory],
    memory_grows_while_a_pause_waits: [VirtualMemory],
    what_cannot_be_paused,
];

const MIB: usize = 1 << 20;

/// Pauses where the device and the options allow it; else true after seeing that it is refused.
fn pauses(pool: &Apart) -> bool {
    if Capability::VirtualMemory.is_there() {
        return true;
    }
    let held = pool.reserved();
    fails!(NOT_SUPPORTED, tcuda_mem_pool_pause(pool.0, &mut 0, TCUDA_PAUSE_KEEP));
    assert_eq!(pool.reserved(), held);
    false
}

fn a_pause_keeps_contents_and_addresses() {
    empty_caches();
    let (stream, other) = (Own::new(), Own::new());
    let pool = Apart::new();
    let sizes = [700, 3 * MIB, 100 * 1024, 9 * MIB, 21 * MIB];
    let blocks: Vec<_> = sizes.iter().map(|size| pool.allocate(*size, stream.0)).collect();
    for (at, (block, size)) in blocks.iter().zip(sizes).enumerate() {
        ok!(tcuda_memset_async(*block, 17 + at as i32, size, stream.0));
    }
    let hole = pool.allocate(6 * MIB, stream.0);
    let last = pool.allocate(2 * MIB, other.0);
    ok!(tcuda_memset_async(last, 99, 2 * MIB, other.0));
    free(hole);
    if pauses(&pool) {
        for round in 0..3 {
            let held = pool.reserved();
            assert_eq!(pool.pause(TCUDA_PAUSE_KEEP), held as usize);
            assert_eq!((pool.reserved(), reserved()), (0, 0), "its bytes are the driver's");
            assert_eq!(pool.stats().allocation.all.current, 6);
            assert_eq!(pool.pause(TCUDA_PAUSE_KEEP), 0, "a pool that is paused stays so");
            // Others work meanwhile, with the memory that it gave.
            let outside = allocate(40 * MIB, stream.0);
            ok!(tcuda_memset_async(outside, round, 40 * MIB, stream.0));
            free(outside);
            ok!(tcuda_empty_cache(-1));
            ok!(tcuda_mem_pool_resume(pool.0));
            ok!(tcuda_mem_pool_resume(pool.0));
            for (at, (block, size)) in blocks.iter().zip(sizes).enumerate() {
                let bytes = bytes_of(*block, size, stream.0);
                assert!(bytes.iter().all(|byte| *byte == 17 + at as u8), "block {at} in round {round}");
            }
            assert!(bytes_of(last, 2 * MIB, other.0).iter().all(|byte| *byte == 99));
        }
    }
    blocks.into_iter().for_each(free);
    free(last);
    pool.end();
    empty_caches();
}

fn a_pause_drops_contents_if_asked() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let block = pool.allocate(8 * MIB, stream.0);
    if pauses(&pool) {
        pool.pause(TCUDA_PAUSE_DROP);
        assert_eq!(reserved(), 0);
        ok!(tcuda_mem_pool_resume(pool.0));
        ok!(tcuda_memset_async(block, 3, 8 * MIB, stream.0));
        assert_eq!(bytes_of(block, 16, stream.0), [3; 16]);
    }
    free(block);
    pool.end();
    empty_caches();
}

fn what_a_paused_pool_refuses() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let blocks = [pool.allocate(8 * MIB, stream.0), pool.allocate(1000, stream.0)];
    if pauses(&pool) {
        pool.pause(TCUDA_PAUSE_KEEP);
        let said = fails!(INVALID_STATE, tcuda_mem_pool_malloc(&mut null_mut(), 1000, stream.0, pool.0));
        assert!(said.contains("tcuda_mem_pool_resume"), "{said}");
        fails!(INVALID_STATE, tcuda_mem_pool_trim(pool.0));
        fails!(INVALID_STATE, tcuda_mem_pool_destroy(pool.0));
        ok!(tcuda_mem_pool_begin(pool.0));
        fails!(INVALID_STATE, tcuda_malloc_cached(&mut null_mut(), 1000, stream.0));
        ok!(tcuda_mem_pool_end(pool.0));
        ok!(tcuda_empty_cache(-3));
        // Frees are no work on the memory.
        free(blocks[0]);
        ok!(tcuda_mem_pool_resume(pool.0));
        let again = pool.allocate(8 * MIB, stream.0);
        free(again);
        pool.pause(TCUDA_PAUSE_DROP);
        free(blocks[1]);
        // With nothing in use there is nothing to lose.
        pool.end();
    } else {
        blocks.into_iter().for_each(free);
        pool.end();
    }
    empty_caches();
}

/// A device that touches memory which is not there is lost: what tcuda is asked to do there it refuses, and says what is wrong.
fn memory_of_a_paused_pool_is_not_touched() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let (block, beside) = (pool.allocate(4096, stream.0), allocate(4096, stream.0));
    ok!(tcuda_memset_async(block, 5, 4096, stream.0));
    ok!(tcuda_memset_async(beside, 6, 4096, stream.0));
    let inside = block.wrapping_byte_add(512);
    let mut shape = [64];
    let mut over = |data| tcuda_tensor_t {
        data,
        device: tcuda_place_t { device_type: CUDA, device_id: device() },
        ndim: 1,
        dtype: F32,
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let (away, there) = (over(inside), over(beside));
    let mut host = [7u8; 64];
    let (bytes, one) = (host.as_mut_ptr().cast(), 1f32);
    let one = (&raw const one).cast();
    pool.pause(TCUDA_PAUSE_KEEP);
    let said = [
        fails!(INVALID_STATE, tcuda_memset_async(inside, 1, 64, stream.0)),
        fails!(INVALID_STATE, tcuda_copy_async(inside, beside, 64, stream.0)),
        fails!(INVALID_STATE, tcuda_copy_async(beside, inside, 64, stream.0)),
        fails!(INVALID_STATE, tcuda_copy(inside, bytes, 64, false)),
        fails!(INVALID_STATE, tcuda_copy(bytes, inside, 64, false)),
        fails!(INVALID_STATE, tcuda_tensor_fill(&away, one, F32, stream.0)),
        fails!(INVALID_STATE, tcuda_tensor_copy(&away, &there, false, stream.0)),
        fails!(INVALID_STATE, tcuda_tensor_copy(&there, &away, false, stream.0)),
        fails!(INVALID_STATE, tcuda_random_uniform(&away, 0.0, 1.0, null_mut(), stream.0)),
        fails!(INVALID_STATE, tcuda_comm_gather(&mut null_mut(), [&raw const away].as_ptr(), 1, 0, -1)),
    ];
    for said in said {
        assert!(said.contains(" is paused: tcuda_mem_pool_resume"), "{said}");
    }
    // That is no work on it.
    ok!(tcuda_record_stream(block, stream.0));
    ok!(tcuda_mem_pool_resume(pool.0));
    assert_eq!(bytes_of(inside, 64, stream.0), [5; 64]);
    assert_eq!((bytes_of(beside, 64, stream.0), host), (vec![6; 64], [7; 64]));
    free(block);
    free(beside);
    pool.end();
    empty_caches();
}

fn a_resume_without_room_can_be_tried_again() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let block = pool.allocate(8 * MIB, stream.0);
    ok!(tcuda_memset_async(block, 5, 8 * MIB, stream.0));
    pool.pause(TCUDA_PAUSE_KEEP);
    {
        let _limit = Limit::of(-1, 4 * MIB as u64);
        fails!(OUT_OF_MEMORY, tcuda_mem_pool_resume(pool.0));
        fails!(INVALID_STATE, tcuda_mem_pool_malloc(&mut null_mut(), 1000, stream.0, pool.0));
        assert_eq!(reserved(), 0);
    }
    // The driver says how much there is where it is the driver.
    if backend() == "sim" {
        let total = get!(0, out => tcuda_mem_get_info(&mut 0, out, 0)) as u64;
        ok!(tcuda_sim_set_memory(5 * MIB as u64, 0));
        let said = fails!(OUT_OF_MEMORY, tcuda_mem_pool_resume(pool.0));
        ok!(tcuda_sim_set_memory(total, 0));
        let (all, free) = (format!(" needs {} bytes of device 0 to resume", 8 * MIB), format!("; {} bytes are free", 4 * MIB));
        assert!(said.contains(&all) && said.contains(&free) && last_error().bytes == 8 * MIB as u64, "{said}");
        assert_eq!(reserved(), 0);
    }
    ok!(tcuda_mem_pool_resume(pool.0));
    assert!(bytes_of(block, 8 * MIB, stream.0).iter().all(|byte| *byte == 5));
    free(block);
    pool.end();
    empty_caches();
}

fn a_resume_takes_what_others_have_free() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let block = pool.allocate(8 * MIB, stream.0);
    pool.pause(TCUDA_PAUSE_DROP);
    free(allocate(8 * MIB, stream.0));
    let limit = Limit::of(-1, 14 * MIB as u64);
    ok!(tcuda_mem_pool_resume(pool.0));
    // What needs nothing comes back where there is less than nothing left.
    let empty = Apart::new();
    empty.pause(TCUDA_PAUSE_DROP);
    drop(limit);
    let limit = Limit::of(-1, 4 * MIB as u64);
    ok!(tcuda_mem_pool_resume(empty.0));
    drop(limit);
    empty.end();
    free(block);
    pool.end();
    empty_caches();
}

/// What was freed meanwhile needs no room, and what stays between is as it was.
fn a_resume_needs_what_is_in_use() {
    empty_caches();
    let (stream, pool) = (Own::new(), Apart::new());
    let blocks = [3, 40, 5, 700, 24, 1].map(|size| (pool.allocate(size * MIB + 100, stream.0), size * MIB + 100));
    for (at, (block, size)) in blocks.into_iter().enumerate() {
        ok!(tcuda_memset_async(block, at as i32 + 1, size, stream.0));
    }
    let before = pool.pause(TCUDA_PAUSE_KEEP);
    ok!(tcuda_set_memory_limit(32 * MIB as u64, -1));
    fails!(OUT_OF_MEMORY, tcuda_mem_pool_resume(pool.0));
    for at in [1, 3, 4] {
        free(blocks[at].0);
    }
    ok!(tcuda_mem_pool_resume(pool.0));
    let held = pool.reserved() as usize;
    assert!((9 * MIB..=32 * MIB).contains(&held) && held < before, "{held} of {before}");
    for at in [0, 2, 5] {
        let (block, size) = blocks[at];
        assert!(bytes_of(block, size, stream.0).iter().all(|byte| *byte == at as u8 + 1));
    }
    // With nothing in use nothing is needed.
    assert_eq!(pool.pause(TCUDA_PAUSE_KEEP), held);
    [0, 2, 5].into_iter().for_each(|at| free(blocks[at].0));
    ok!(tcuda_set_memory_limit(0, -1));
    ok!(tcuda_mem_pool_resume(pool.0));
    assert_eq!((pool.reserved(), pool.stats().active_bytes.all.current), (0, 0));
    ok!(tcuda_set_memory_limit(u64::MAX, -1));
    let block = pool.allocate(50 * MIB, stream.0);
    tcuda::memory::check(0);
    free(block);
    pool.end();
    empty_caches();
}

/// Requests meet the pause at any point: they are served, or hear of it.
fn a_pause_among_requests() {
    empty_caches();
    let pool = Apart::new();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let name = pool.0 as usize;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let stream = Own::new();
                let mut size = 4000;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let mut block = null_mut();
                    size = (size * 7) % (9 * MIB) + 1;
                    match unsafe { tcuda_mem_pool_malloc(&mut block, size, stream.0, name as tcuda_mem_pool_t) } as i32 {
                        0 => free(block),
                        status => assert_eq!(status, 17, "{}", message()),
                    }
                }
            });
        }
        for round in 0..60 {
            pool.pause(round % 2);
            assert_eq!(pool.reserved(), 0);
            ok!(tcuda_mem_pool_resume(pool.0));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(pool.stats().allocation.all.current, 0);
    pool.end();
    empty_caches();
}

/// What threads keep free goes too, and they keep nothing while the pool has no memory.
fn a_pause_takes_what_threads_keep() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    ok!(tcuda_mem_pool_begin(pool.0));
    let pairs = || (0..4).for_each(|_| [4096, 4096, 700].map(|size| allocate(size, stream.0)).into_iter().for_each(free));
    pairs();
    let kept = allocate(4096, stream.0);
    let held = pool.reserved();
    assert_eq!(pool.pause(TCUDA_PAUSE_KEEP) as i64, held);
    fails!(INVALID_STATE, tcuda_malloc_cached(&mut null_mut(), 4096, stream.0));
    free(kept);
    fails!(INVALID_STATE, tcuda_malloc_cached(&mut null_mut(), 4096, stream.0));
    ok!(tcuda_mem_pool_resume(pool.0));
    pairs();
    assert_eq!((pool.stats().allocation.all.current, pool.stats().allocation.all.allocated), (0, 25));
    ok!(tcuda_mem_pool_end(pool.0));
    pool.end();
    empty_caches();
}

/// It would have to wait for the device, which ends captures there.
fn a_pause_beside_a_capture() {
    empty_caches();
    let (stream, captured) = (Own::new(), Own::new());
    let pool = Apart::new();
    let block = pool.allocate(3 * MIB, stream.0);
    let held = pool.reserved();
    drop(G::captured(captured.0, || drop(fails!(CAPTURE, tcuda_mem_pool_pause(pool.0, &mut 0, TCUDA_PAUSE_KEEP)))));
    assert_eq!((pool.reserved(), pool.pause(TCUDA_PAUSE_KEEP)), (held, held as usize));
    ok!(tcuda_mem_pool_resume(pool.0));
    free(block);
    pool.end();
    empty_caches();
}

/// Whose stream the legacy default stream waits for.
fn a_resume_beside_a_capture_of_another_library() {
    empty_caches();
    let (stream, pool) = (Own::new(), Apart::new());
    let block = pool.allocate(3 * MIB, stream.0);
    ok!(tcuda_memset_async(block, 7, 3 * MIB, stream.0));
    let runtime = tcuda::runtime::runtime().unwrap();
    let blocking = handle(runtime.stream_create(0, 0).unwrap());
    assert!(pool.pause(TCUDA_PAUSE_KEEP) > 0);
    let graph = G::captured(blocking, || ok!(tcuda_mem_pool_resume(pool.0)));
    graph.replay(blocking);
    ok!(tcuda_stream_synchronize(blocking));
    assert!(bytes_of(block, 3 * MIB, stream.0).iter().all(|byte| *byte == 7));
    drop(graph);
    ok!(tcuda_stream_unregister(blocking));
    runtime.stream_destroy(blocking as usize).unwrap();
    free(block);
    pool.end();
    empty_caches();
}

/// One of them is refused: blocks in use never lose their memory for good.
fn a_pause_beside_an_end() {
    empty_caches();
    let stream = Own::new();
    for round in 0..4000 {
        let pool = Apart::new();
        let block = pool.allocate(2 * MIB, stream.0);
        let (handle, goes) = (pool.0 as usize, AtomicBool::new(false));
        let [paused, ended] = std::thread::scope(|scope| {
            let pause = scope.spawn(|| {
                while !goes.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                unsafe { tcuda_mem_pool_pause(handle as tcuda_mem_pool_t, &mut 0, TCUDA_PAUSE_KEEP) }
            });
            goes.store(true, Ordering::Release);
            (0..round % 100 * 5).for_each(|_| std::hint::spin_loop());
            let ended = tcuda_mem_pool_destroy(handle as tcuda_mem_pool_t);
            [pause.join().unwrap(), ended]
        });
        let is_ended = ended == Status::TCUDA_SUCCESS;
        assert!(is_ended == (paused == Status::TCUDA_ERROR_INVALID_HANDLE), "round {round}: {paused:?}, {ended:?}");
        free(block);
        if !is_ended {
            pool.end();
        }
    }
    empty_caches();
}

/// The driver takes some of it, and neither takes nor gives more: the pool is paused, and can resume once the driver does as it is told.
fn a_pause_with_no_way_back() {
    empty_caches();
    let (stream, pool) = (Own::new(), Apart::new());
    let blocks = [2, 40].map(|size| pool.allocate(size * MIB, stream.0));
    blocks.iter().for_each(|block| ok!(tcuda_memset_async(*block, 9, 2 * MIB, stream.0)));
    let held = pool.reserved();
    for (call, nth) in [(c"cuMemUnmap", 2), (c"cuMemUnmap", 3), (c"cuMemMap", 1), (c"cuMemMap", 2)] {
        ok!(tcuda_sim_fail_at(call.as_ptr(), nth, 999));
    }
    assert_eq!(pool.pause(TCUDA_PAUSE_KEEP), held as usize);
    ok!(tcuda_sim_clear_faults());
    fails!(INVALID_STATE, tcuda_mem_pool_malloc(&mut null_mut(), MIB, stream.0, pool.0));
    ok!(tcuda_mem_pool_resume(pool.0));
    assert_eq!(pool.reserved(), held);
    for block in blocks {
        assert!(bytes_of(block, 2 * MIB, stream.0).iter().all(|byte| *byte == 9));
        free(block);
    }
    pool.end();
    empty_caches();
}

fn a_shutdown_ends_what_is_open_and_paused() {
    crate::init::in_child("pools_over_shutdown", &[]);
}

pub fn scene_over_shutdown() {
    let pools = [Apart::new(), Apart::new()];
    let block = pools[0].allocate(3 * MIB, default_of(0));
    pools[0].pause(TCUDA_PAUSE_KEEP);
    ok!(tcuda_mem_pool_begin(pools[1].0));
    let old = pools[1].0;
    ok!(tcuda::capi::init::tcuda_shutdown());
    ok!(tcuda_free_cached(block));
    ok!(tcuda::capi::init::tcuda_init(null()));
    let next = [Apart::new(), Apart::new()];
    free(allocate(MIB, default_of(0)));
    for pool in &next {
        assert_eq!(pool.stats().allocation.all.allocated, 0, "nothing is open any more");
        free(pool.allocate(MIB, default_of(0)));
        assert!(pool.pause(TCUDA_PAUSE_KEEP) == 0 || pool.reserved() == 0);
        ok!(tcuda_mem_pool_resume(pool.0));
        free(pool.allocate(MIB, default_of(0)));
    }
    // What was open before may be closed.
    ok!(tcuda_mem_pool_end(old));
    fails!(INVALID_HANDLE, tcuda_mem_pool_end(old));
    next.into_iter().for_each(Apart::end);
    empty_caches();
}

/// Who has a block of a pool that he never named goes on with it, whatever becomes of the pool.
fn what_is_lent_keeps_its_memory() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::with(-1, 1, 0);
    let own = pool.allocate(1000, stream.0);
    let limit = Limit::of(-1, reserved() as u64);
    let borrowed = allocate(1000, stream.0);
    drop(limit);
    assert_eq!(pool.stats().allocation.all.current, 2, "it was lent");
    ok!(tcuda_memset_async(borrowed, 7, 1000, stream.0));
    for mode in [TCUDA_PAUSE_DROP, TCUDA_PAUSE_KEEP] {
        let said = fails!(INVALID_STATE, tcuda_mem_pool_pause(pool.0, &mut 0, mode));
        assert!(said.contains("1 of its blocks are lent"), "{said}");
    }
    assert_eq!(bytes_of(borrowed, 4, stream.0), [7; 4]);
    free(borrowed);
    // The pool's own may lie where it was.
    let again = pool.allocate(1000, stream.0);
    let held = pool.reserved();
    assert_eq!(pool.pause(TCUDA_PAUSE_DROP), held as usize);
    ok!(tcuda_mem_pool_resume(pool.0));
    [own, again].into_iter().for_each(free);
    pool.end();
    empty_caches();
}

/// What a stream is doing may need other threads' memory to come to an end. Blocks may be freed meanwhile.
fn memory_grows_while_a_pause_waits() {
    empty_caches();
    for mode in [TCUDA_PAUSE_KEEP, TCUDA_PAUSE_DROP] {
        let (stream, busy, pool) = (Own::new(), Own::new(), Apart::new());
        let blocks: Vec<_> = (0..4).map(|_| pool.allocate(3 * MIB, stream.0)).collect();
        blocks.iter().for_each(|block| ok!(tcuda_memset_async(*block, 5, 3 * MIB, stream.0)));
        let gate = Gate::on(busy.0);
        let given = std::thread::scope(|scope| {
            let name = pool.0 as usize;
            let pauses = scope.spawn(move || get!(0, out => tcuda_mem_pool_pause(name as tcuda_mem_pool_t, out, mode)));
            // It begins when its thread comes to run.
            let mut block = null_mut();
            let refused = loop {
                match unsafe { tcuda_mem_pool_malloc(&mut block, MIB, stream.0, pool.0) } {
                    Status::TCUDA_SUCCESS => free(block),
                    refused => break refused,
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            };
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(refused == Status::TCUDA_ERROR_INVALID_STATE && !pauses.is_finished(), "nobody waited");
            let outside = allocate(300 * MIB, stream.0);
            // It has its memory yet.
            let drawn: u64 = Taken::of(0).segments().iter().map(|segment| segment.total_size).sum();
            assert_eq!(drawn, stat(0, "reserved_bytes.all.current") as u64);
            free(blocks[1]);
            gate.open();
            let given = pauses.join().unwrap();
            free(outside);
            given
        });
        assert!(given >= 9 * MIB, "{given} bytes");
        assert_eq!(pool.reserved(), 0);
        ok!(tcuda_mem_pool_resume(pool.0));
        for at in [0, 2, 3] {
            assert!(mode == TCUDA_PAUSE_DROP || bytes_of(blocks[at], 3 * MIB, stream.0).iter().all(|byte| *byte == 5));
            free(blocks[at]);
        }
        pool.end();
        empty_caches();
    }
}

fn what_cannot_be_paused() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::with(-1, 0, 1);
    let block = pool.allocate(1000, stream.0);
    fails!(NOT_SUPPORTED, tcuda_mem_pool_pause(pool.0, &mut 0, TCUDA_PAUSE_KEEP));
    ok!(tcuda_memset_async(block, 1, 1000, stream.0));
    let again = pool.allocate(1000, stream.0);
    free(again);
    free(block);
    pool.end();
    empty_caches();
}
