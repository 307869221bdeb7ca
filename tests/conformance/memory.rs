//! The device cache: sizes, wrong addresses, alignment, batches, threads, what is in the memory, running out.

use crate::init::in_child;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tcuda::capi::copy::*;
use tcuda::capi::device::*;
use tcuda::capi::init::*;
use tcuda::capi::memory::*;
use tcuda::capi::sim::*;
use tcuda::capi::stream::*;

tests![
    no_memory_for_size_zero,
    null_outputs_are_refused_and_null_is_freed,
    every_kind_of_stream,
    bad_streams_are_refused,
    what_is_no_block_is_not_freed,
    a_block_that_many_streams_used_is_freed_once,
    sizes_beyond_everything,
    alignments,
    an_alignment_takes_no_memory: [VirtualMemory],
    what_lies_between_aligned_blocks_is_used: [VirtualMemory, Unfilled],
    aligned_free_memory_is_used_again,
    a_batch_is_all_or_none,
    a_batch_is_freed_around_a_wrong_pointer,
    free_from_another_thread,
    free_from_a_host_function,
    blocks_are_split_and_joined,
    hot_calls_make_no_call_of_cuda: [Faults, Unwatched, Unfilled],
    empty_cache_gives_everything_back,
    a_limit_is_kept_and_can_be_raised: [VirtualMemory],
    a_fraction_is_a_limit,
    the_driver_has_no_more: [Faults],
    free_pieces_of_all_kinds_become_one_block: [VirtualMemory, Unfilled],
    memory_is_on_the_streams_device: [TwoDevices],
    streams_of_another_device_are_refused: [TwoDevices],
    devices_have_caches_of_their_own: [TwoDevices, VirtualMemory],
    a_peer_reaches_memory_from_before_and_after: [TwoDevices],
    sixteen_threads_free_each_others_blocks,
    contents_stay,
    contents_stay_whatever_the_order: [Faults],
    a_wrong_text_in_the_environment_is_refused_when_it_is_asked_for,
    memory_after_a_shutdown,
];

const MIB: usize = 1 << 20;

fn no_memory_for_size_zero() {
    let own = Own::new();
    for stream in [NULL, default_of(0), handle(1), handle(2), handle(CURRENT_STREAM), own.0] {
        let mut block = handle(0x1234).cast::<c_void>();
        ok!(tcuda_malloc_cached(&mut block, 0, stream));
        assert!(block.is_null());
        let mut block = handle(0x1234).cast::<c_void>();
        ok!(tcuda_malloc_cached_aligned(&mut block, 0, 1 << 30, stream));
        assert!(block.is_null());
    }
    let mut blocks = [handle(0x1234).cast::<c_void>(); 2];
    ok!(tcuda_malloc_cached_batch(blocks.as_mut_ptr(), [0, 0].as_ptr(), 2, own.0));
    assert_eq!(blocks, [null_mut(); 2]);
    ok!(tcuda_malloc_cached_batch(null_mut(), null(), 0, own.0));
    ok!(tcuda_free_cached_batch(null(), 0));
    ok!(tcuda_free_cached_batch(blocks.as_ptr(), 2));
}

fn null_outputs_are_refused_and_null_is_freed() {
    fails!(INVALID_ARGUMENT, tcuda_malloc_cached(null_mut(), 512, NULL));
    fails!(INVALID_ARGUMENT, tcuda_malloc_cached_aligned(null_mut(), 512, 512, NULL));
    let mut block = null_mut();
    fails!(INVALID_ARGUMENT, tcuda_malloc_cached_batch(null_mut(), [1].as_ptr(), 1, NULL));
    fails!(INVALID_ARGUMENT, tcuda_malloc_cached_batch(&mut block, null(), 1, NULL));
    fails!(INVALID_ARGUMENT, tcuda_malloc_cached_batch(&mut block, [1].as_ptr(), usize::MAX, NULL));
    fails!(INVALID_ARGUMENT, tcuda_free_cached_batch(&block, usize::MAX));
    assert!(block.is_null());
    ok!(tcuda_free_cached(null_mut()));
    ok!(tcuda_free_cached_on(null_mut(), NULL));
    ok!(tcuda_record_stream(null_mut(), NULL));
    ok!(tcuda_free_cached_batch(null(), 0));
    fails!(INVALID_ARGUMENT, tcuda_free_cached_batch(null(), 5));
}

fn every_kind_of_stream() {
    empty_caches();
    set_device(0);
    let own = Own::new();
    let pooled = get!(NULL, out => tcuda_stream_from_pool(out, 0, 0));
    let runtime = tcuda::runtime::runtime().unwrap();
    let foreign = handle(runtime.stream_create(1, 0).unwrap());
    for stream in [NULL, handle(2), own.0, pooled, foreign] {
        let block = allocate(5000, stream);
        ok!(tcuda_memset_async(block, 7, 5000, stream));
        assert_eq!(bytes_of(block, 5000, stream), [7; 5000]);
        free(block);
        // What comes back first is what the stream had.
        let again = allocate(5000, stream);
        assert_eq!(again, block);
        free(again);
    }
    // The default stream has several names and one memory.
    let block = allocate(5000, NULL);
    free(block);
    for same in [default_of(0), handle(1), handle(CURRENT_STREAM), NULL] {
        let again = allocate(5000, same);
        assert_eq!(again, block);
        free(again);
    }
    // The current stream is the one that is current now.
    ok!(tcuda_set_stream(own.0));
    let block = allocate(5000, handle(CURRENT_STREAM));
    free(block);
    assert_eq!(allocate(5000, own.0), block);
    free(block);
    ok!(tcuda_set_stream(default_of(0)));
    // What follows a stream of somebody else outlives it.
    let block = allocate(5000, foreign);
    ok!(tcuda_memset_async(block, 9, 5000, foreign));
    ok!(tcuda_stream_unregister(foreign));
    runtime.stream_synchronize(foreign as usize).unwrap();
    runtime.stream_destroy(foreign as usize).unwrap();
    assert_eq!(bytes_of(block, 5000, own.0), [9; 5000]);
    free(block);
    empty_caches();
}

fn bad_streams_are_refused() {
    let gone = create_on(0);
    ok!(tcuda_stream_destroy(gone));
    let block = allocate(512, NULL);
    for bad in [3, 0x7f, 0x81, 0xff, 0x900, 0xfff].map(handle).into_iter().chain([gone]) {
        let mut out = null_mut();
        fails!(INVALID_HANDLE, tcuda_malloc_cached(&mut out, 512, bad));
        fails!(INVALID_HANDLE, tcuda_malloc_cached_aligned(&mut out, 512, 512, bad));
        fails!(INVALID_HANDLE, tcuda_malloc_cached_batch(&mut out, [512].as_ptr(), 1, bad));
        fails!(INVALID_HANDLE, tcuda_record_stream(block, bad));
        fails!(INVALID_HANDLE, tcuda_free_cached_on(block, bad));
        assert!(out.is_null());
    }
    let past_the_devices = default_of(device_count());
    fails!(INVALID_DEVICE, tcuda_malloc_cached(&mut null_mut(), 512, past_the_devices));
    free(block);
}

fn what_is_no_block_is_not_freed() {
    let own = Own::new();
    let (small, large) = (allocate(4096, own.0), allocate(3 * MIB, own.0));
    let (on_stack, on_heap) = (0u64, vec![0u8; 4096]);
    let before = [stat(-1, "allocation.all.current"), stat(-1, "allocated_bytes.all.freed")];
    let inside = [small.wrapping_byte_add(512), small.wrapping_byte_add(4095), large.wrapping_byte_add(1), large.wrapping_byte_add(MIB)];
    for address in inside {
        for said in [
            fails!(INVALID_POINTER, tcuda_free_cached(address)),
            fails!(INVALID_POINTER, tcuda_free_cached_on(address, NULL)),
            fails!(INVALID_POINTER, tcuda_record_stream(address, own.0)),
        ] {
            assert!(said.contains(&format!("{address:?}")), "{said}");
        }
        assert!(fails!(INVALID_POINTER, tcuda_free_cached(address)).contains("lies inside the block"));
        assert!(fails!(INVALID_POINTER, tcuda_record_stream(address, own.0)).ends_with("give its start."));
    }
    let foreign = tcuda::runtime::runtime().unwrap().malloc(4096).unwrap();
    let unknown =
        [&raw const on_stack as usize, on_heap.as_ptr() as usize, foreign, 1, 0x200, usize::MAX, usize::MAX & !511, 1 << 48, 1 << 47];
    for address in unknown.map(|address| address as *mut c_void) {
        fails!(INVALID_POINTER, tcuda_free_cached(address));
        fails!(INVALID_POINTER, tcuda_free_cached_on(address, NULL));
        fails!(INVALID_POINTER, tcuda_record_stream(address, own.0));
    }
    tcuda::runtime::runtime().unwrap().free(foreign).unwrap();
    assert_eq!([stat(-1, "allocation.all.current"), stat(-1, "allocated_bytes.all.freed")], before);
    for block in [small, large] {
        free(block);
        for _ in 0..2 {
            assert!(fails!(INVALID_POINTER, tcuda_free_cached(block)).contains("freed before"));
            fails!(INVALID_POINTER, tcuda_record_stream(block, own.0));
        }
    }
    assert_eq!(stat(-1, "allocation.all.current"), before[0] - 2);
}

/// What a block says of itself once it is free is not of whom it was.
fn a_block_that_many_streams_used_is_freed_once() {
    for _ in 0..3 {
        let (own, others) = (Own::new(), [(); 20].map(|()| Own::new()));
        let block = allocate(MIB, own.0);
        others.iter().for_each(|other| ok!(tcuda_record_stream(block, other.0)));
        free(block);
        for other in &others {
            assert!(fails!(INVALID_POINTER, tcuda_record_stream(block, other.0)).contains("freed before"));
            assert!(fails!(INVALID_POINTER, tcuda_free_cached_on(block, other.0)).contains("freed before"));
        }
        drop(others);
        drop(own);
        empty_caches();
    }
}

fn sizes_beyond_everything() {
    let own = Own::new();
    empty_caches();
    let mut tried = 0;
    for size in [1 << 45, 1 << 46, 1 << 50, 1 << 59, (1 << 60) - 1, 1 << 60, (1 << 60) + 1, 1 << 62, 1 << 63, usize::MAX - 511, usize::MAX]
    {
        let mut block = null_mut();
        let said = fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut block, size, own.0));
        assert!(said.starts_with("CUDA out of memory. Tried to allocate "), "{said}");
        assert_eq!(said.contains("more than 1EB"), size >= 1 << 60, "{said}");
        fails!(OUT_OF_MEMORY, tcuda_malloc_cached_aligned(&mut block, size, 1 << 21, own.0));
        fails!(OUT_OF_MEMORY, tcuda_malloc_cached_batch(&mut block, &size, 1, own.0));
        fails!(INVALID_ARGUMENT, tcuda_malloc_cached_aligned(&mut block, 1, 1 << 63, own.0));
        assert!(block.is_null());
        tried += 3 * i64::from(size < 1 << 60);
    }
    assert_eq!(stat(-1, "num_ooms"), tried);
    fails!(INVALID_ARGUMENT, tcuda_malloc_cached_aligned(&mut null_mut(), 1, 0, own.0));
    fails!(INVALID_ARGUMENT, tcuda_malloc_cached_aligned(&mut null_mut(), 1, 3, own.0));
    fails!(INVALID_ARGUMENT, tcuda_malloc_cached_aligned(&mut null_mut(), 1, usize::MAX, own.0));
    // Nothing of all this is left.
    let block = allocate(MIB, own.0);
    free(block);
    empty_caches();
}

fn aligned(size: usize, alignment: usize, stream: tcuda::capi::structs::tcuda_stream_t) -> *mut c_void {
    let block = get!(null_mut(), out => tcuda_malloc_cached_aligned(out, size, alignment, stream));
    assert!((block as usize).is_multiple_of(alignment));
    block
}

/// It is addresses that lie between.
fn an_alignment_takes_no_memory() {
    empty_caches();
    let own = Own::on(0);
    let reserved = || stat(0, "reserved_bytes.all.current") as usize;
    let one = aligned(512, 1 << 30, own.0);
    assert!(reserved() <= 2 * MIB, "{}", reserved());
    free(one);
    empty_caches();
    // Also where the last handle has room: three MiB are two handles.
    let _limit = Limit::of(0, 400 * MIB as u64);
    let blocks: Vec<_> = (0..100).map(|_| aligned(3 * MIB, 64 * MIB, own.0)).collect();
    assert_eq!(reserved(), 400 * MIB);
    tcuda::memory::check(0);
    blocks.into_iter().for_each(free);
    empty_caches();
}

/// What others need, and behind memory in front of an aligned place nothing is made that is there.
fn what_lies_between_aligned_blocks_is_used() {
    empty_caches();
    let own = Own::on(0);
    let reserved = || stat(0, "reserved_bytes.all.current") as usize;
    let _limit = Limit::of(0, 400 * MIB as u64);
    let blocks: Vec<_> = (0..100).map(|_| aligned(3 * MIB, 64 * MIB, own.0)).collect();
    blocks.iter().step_by(2).for_each(|block| free(*block));
    let between = allocate(20 * MIB, own.0);
    let again: Vec<_> = (0..40).map(|_| aligned(3 * MIB, 32 * MIB, own.0)).collect();
    assert_eq!(reserved(), 400 * MIB);
    tcuda::memory::check(0);
    blocks.iter().skip(1).step_by(2).chain(&again).for_each(|block| free(*block));
    free(between);
    empty_caches();
}

fn aligned_free_memory_is_used_again() {
    empty_caches();
    let (own, other) = (Own::on(0), Own::on(0));
    let reserved = || stat(0, "reserved_bytes.all.current");
    // With others close on both sides, so that there is no room for more than the block itself.
    let beside = [allocate(2 * MIB, own.0)];
    let first = aligned(3 * MIB, 2 * MIB, own.0);
    let behind: Vec<_> = (0..24).map(|_| allocate(512 << 10 | MIB, own.0)).collect();
    let before = reserved();
    let mut block = first;
    // By another stream too, once it is past.
    for stream in [own.0, own.0, other.0] {
        free(block);
        ok!(tcuda_synchronize(0));
        block = aligned(3 * MIB, 2 * MIB, stream);
        assert_eq!(reserved(), before);
    }
    beside.into_iter().chain([block]).chain(behind).for_each(free);
    empty_caches();
}

fn alignments() {
    let own = Own::new();
    let mut blocks = Vec::new();
    for shift in 0..24 {
        for size in [1, 511, 513, 100_000, MIB, MIB + 1] {
            let block = get!(null_mut(), out => tcuda_malloc_cached_aligned(out, size, 1 << shift, own.0));
            assert!((block as usize).is_multiple_of(1 << shift.max(9)), "{block:?} at {}", 1 << shift);
            blocks.push((block as usize, size));
        }
    }
    blocks.sort();
    assert!(blocks.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
    blocks.into_iter().for_each(|(block, _)| free(block as *mut c_void));
}

fn a_batch_is_all_or_none() {
    empty_caches();
    let own = Own::new();
    let sizes = [1, 0, 700, MIB + 1, 5 * MIB];
    let mut blocks = [null_mut(); 5];
    ok!(tcuda_malloc_cached_batch(blocks.as_mut_ptr(), sizes.as_ptr(), 5, own.0));
    assert!(blocks[1].is_null());
    assert_eq!(blocks.iter().collect::<std::collections::HashSet<_>>().len(), 5);
    assert_eq!(stat(0, "allocation.all.current"), 4);
    ok!(tcuda_free_cached_batch(blocks.as_ptr(), 5));
    assert_eq!(stat(0, "allocation.all.current"), 0);
    let _limit = Limit::of(0, 16 * MIB as u64);
    let mut untouched = [handle(0x77).cast::<c_void>(); 5];
    let sizes = [600, 4 * MIB, 2 * MIB, 40 * MIB, 600];
    fails!(OUT_OF_MEMORY, tcuda_malloc_cached_batch(untouched.as_mut_ptr(), sizes.as_ptr(), 5, own.0));
    assert_eq!(untouched, [handle(0x77).cast::<c_void>(); 5]);
    assert_eq!((stat(0, "allocation.all.current"), stat(0, "active_bytes.all.current")), (0, 0));
    empty_caches();
}

fn a_batch_is_freed_around_a_wrong_pointer() {
    let own = Own::new();
    let before = stat(-1, "allocation.all.current");
    let [a, b, c] = [(); 3].map(|()| allocate(512, own.0));
    let list = [a, null_mut(), handle(0x5000).cast(), b, b, c];
    let said = fails!(INVALID_POINTER, tcuda_free_cached_batch(list.as_ptr(), list.len()));
    assert!(said.contains("'ptrs' at 2") && said.contains("0x5000"), "{said}");
    assert_eq!(stat(-1, "allocation.all.current"), before);
}

fn free_from_another_thread() {
    let own = Own::new();
    let block = allocate(5 * MIB, own.0) as usize;
    std::thread::spawn(move || free(block as *mut c_void)).join().unwrap();
    assert_eq!(allocate(5 * MIB, own.0) as usize, block);
    free(block as *mut c_void);
    // The thread's own default stream ends with the thread; its memory does not.
    let block = std::thread::spawn(|| allocate(5 * MIB, handle(2)) as usize).join().unwrap();
    free(block as *mut c_void);
    empty_caches();
}

fn free_from_a_host_function() {
    unsafe extern "C" fn free_it(block: *mut c_void) {
        ok!(tcuda_free_cached(block));
    }
    let (own, other) = (Own::new(), Own::new());
    let before = stat(-1, "allocation.all.current");
    for _ in 0..20 {
        let gate = Gate::on(own.0);
        let block = allocate(600_000, own.0);
        ok!(tcuda_stream_add_host_function(own.0, Some(free_it), block));
        // Meanwhile others take from the driver, look at the streams that are busy, and may not be in the way of the free.
        let opener = gate.open_later();
        let more: Vec<_> = (0..8).map(|_| allocate(3 * MIB, other.0)).collect();
        more.into_iter().for_each(free);
        ok!(tcuda_empty_cache(-1));
        ok!(tcuda_stream_synchronize(own.0));
        opener.join().unwrap();
    }
    assert_eq!(stat(-1, "allocation.all.current"), before);
}

fn blocks_are_split_and_joined() {
    empty_caches();
    let own = Own::new();
    for (whole, part) in [(64 * MIB, 16 * MIB), (6 * MIB, 3 * MIB / 2)] {
        let block = allocate(whole, own.0);
        free(block);
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 1, 3], [1, 3, 0, 2]] {
            let parts: Vec<_> = (0..4).map(|_| allocate(part, own.0)).collect();
            let places: Vec<_> = parts.iter().map(|part| *part as usize).collect();
            for (at, place) in places.iter().enumerate() {
                assert_eq!(*place, block as usize + at * part);
            }
            order.into_iter().for_each(|at| free(parts[at]));
            assert_eq!(allocate(whole, own.0), block);
            free(block);
        }
    }
    empty_caches();
}

fn hot_calls_make_no_call_of_cuda() {
    let (own, other) = (Own::new(), Own::new());
    let sizes = [1, 512, 5000, MIB, 3 * MIB, 40 * MIB];
    let round = || {
        let blocks = sizes.map(|size| allocate(size, own.0));
        blocks.into_iter().for_each(free);
        let block = allocate(512, own.0);
        ok!(tcuda_record_stream(block, own.0));
        ok!(tcuda_free_cached_on(block, own.0));
    };
    free(allocate(512, other.0));
    round();
    let before = get!(0, out => tcuda_sim_call_count(out, null()));
    (0..100).for_each(|_| round());
    assert_eq!(get!(0, out => tcuda_sim_call_count(out, null())) - before, 0);
}

/// What only the simulated device can tell: the driver holds no memory for tcuda.
fn nothing_lives() {
    if backend() == "sim" {
        let mut live: tcuda_sim_live_t = unsafe { std::mem::zeroed() };
        live.struct_size = size_of::<tcuda_sim_live_t>();
        ok!(tcuda_sim_live(&mut live, -3));
        assert_eq!((live.blocks, live.handles, live.mappings, live.reservations), (0, 0, 0, 0));
    }
}

fn empty_cache_gives_everything_back() {
    empty_caches();
    let free_now = || {
        let (mut free, mut total) = (0u64, 0u64);
        ok!(tcuda_mem_get_info((&raw mut free).cast(), (&raw mut total).cast(), 0));
        free
    };
    let streams = [Own::new(), Own::new(), Own::new()];
    let before = free_now();
    let blocks: Vec<_> = (0..60).map(|at| allocate((at % 7 + 1) * 700_000, streams[at % 3].0)).collect();
    assert!(free_now() + (60 << 20) < before);
    let kept = allocate(10 * MIB, streams[0].0);
    let gate = Gate::on(streams[1].0);
    for (at, block) in blocks.into_iter().enumerate() {
        ok!(tcuda_record_stream(block, streams[(at + 1) % 3].0));
        free(block);
    }
    let opener = gate.open_later();
    ok!(tcuda_empty_cache(0));
    assert!(gate.was_passed(), "memory that a stream may still use was given back");
    opener.join().unwrap();
    assert!(stat(0, "reserved_bytes.all.current") < 20 * MIB as i64);
    assert_eq!(stat(0, "allocated_bytes.all.current"), 10 * MIB as i64);
    free(kept);
    empty_caches();
    assert!(free_now() + (8 << 20) > before);
    nothing_lives();
    for bad in bad_devices().into_iter().filter(|device| *device != -3) {
        fails!(INVALID_DEVICE, tcuda_empty_cache(bad));
    }
}

fn a_limit_is_kept_and_can_be_raised() {
    empty_caches();
    let own = Own::new();
    let limit = Limit::of(0, 32 * MIB as u64);
    let blocks: Vec<_> = (0..4).map(|_| allocate(8 * MIB, own.0)).collect();
    let mut more = null_mut();
    let said = fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut more, 8 * MIB, own.0));
    for part in ["Tried to allocate 8.00 MiB", "GPU 0 has a total capacity of", "32.00 MiB allowed", "limit", "tcuda"] {
        assert!(said.contains(part), "'{part}' is not in: {said}");
    }
    assert!(more.is_null());
    assert_eq!((stat(0, "num_ooms"), stat(0, "reserved_bytes.all.current")), (1, 32 * MIB as i64));
    let mut info: tcuda::capi::error::tcuda_error_info_t = unsafe { std::mem::zeroed() };
    info.struct_size = size_of_val(&info);
    ok!(tcuda::capi::error::tcuda_last_error(&mut info));
    assert_eq!((info.device, info.bytes), (0, 8 * MIB as u64));
    ok!(tcuda_set_memory_limit(48 * MIB as u64, 0));
    more = allocate(8 * MIB, own.0);
    // What is free within the limit is always there.
    free(blocks[0]);
    ok!(tcuda_set_memory_limit(1, 0));
    assert_eq!(allocate(8 * MIB, own.0), blocks[0]);
    fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 8 * MIB, own.0));
    drop(limit);
    let free_again = allocate(64 * MIB, own.0);
    blocks.into_iter().chain([more, free_again]).for_each(free);
    for bad in bad_devices() {
        fails!(INVALID_DEVICE, tcuda_set_memory_limit(1 << 30, bad));
    }
    empty_caches();
}

fn a_fraction_is_a_limit() {
    empty_caches();
    let own = Own::new();
    let fraction = || get!(-1.0, out => tcuda_get_per_process_memory_fraction(out, 0));
    assert_eq!(fraction(), 1.0);
    for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        fails!(INVALID_ARGUMENT, tcuda_set_per_process_memory_fraction(wrong, 0));
    }
    fails!(INVALID_ARGUMENT, tcuda_get_per_process_memory_fraction(null_mut(), 0));
    for bad in bad_devices() {
        fails!(INVALID_DEVICE, tcuda_set_per_process_memory_fraction(0.5, bad));
        fails!(INVALID_DEVICE, tcuda_get_per_process_memory_fraction(&mut 0.0, bad));
    }
    assert_eq!(fraction(), 1.0);
    let total = tcuda::device::properties(0).unwrap().total_memory as f64;
    ok!(tcuda_set_per_process_memory_fraction((64 * MIB) as f64 / total, 0));
    assert!((fraction() * total - (64 * MIB) as f64).abs() < 1.0);
    let block = allocate(60 * MIB, own.0);
    fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 8 * MIB, own.0));
    ok!(tcuda_set_per_process_memory_fraction(0.0, 0));
    assert_eq!(fraction(), 0.0);
    free(block);
    fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 61 * MIB, own.0));
    ok!(tcuda_set_per_process_memory_fraction(1.0, 0));
    assert_eq!(fraction(), 1.0);
    free(allocate(61 * MIB, own.0));
    empty_caches();
}

fn the_driver_has_no_more() {
    empty_caches();
    let own = Own::new();
    ok!(tcuda_sim_set_memory(64 * MIB as u64, 0));
    let blocks: Vec<_> = (0..6).map(|_| allocate(10 * MIB, own.0)).collect();
    let said = fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 10 * MIB, own.0));
    assert_eq!(tcuda::capi::error::tcuda_last_error_native(), 2);
    assert!(said.contains("60.00 MiB is allocated by tcuda") && said.contains("4.00 MiB is free"), "{said}");
    assert_eq!((stat(0, "num_ooms"), stat(0, "num_alloc_retries")), (1, 1));
    ok!(tcuda_sim_set_memory(1 << 40, 0));
    free(allocate(10 * MIB, own.0));
    blocks.into_iter().for_each(free);
    empty_caches();
}

fn free_pieces_of_all_kinds_become_one_block() {
    empty_caches();
    let (own, other) = (Own::new(), Own::new());
    let _limit = Limit::of(0, 32 * MIB as u64);
    // Small and large memory, of two streams: nothing of it is one stretch of 32 MiB.
    let small: Vec<_> = (0..16).map(|_| allocate(MIB, own.0)).collect();
    let large: Vec<_> = (0..4).map(|_| allocate(4 * MIB, other.0)).collect();
    ok!(tcuda_memset_async(small[0], 1, MIB, own.0));
    ok!(tcuda_memset_async(large[0], 1, 4 * MIB, other.0));
    small.into_iter().chain(large).for_each(free);
    let whole = allocate(32 * MIB, own.0);
    ok!(tcuda_memset_async(whole, 3, 32 * MIB, own.0));
    // Mapped anew, nothing of it was given back.
    assert_eq!((stat(0, "num_alloc_retries"), stat(0, "num_device_free"), stat(0, "num_ooms")), (0, 0, 0));
    assert_eq!(stat(0, "reserved_bytes.all.peak"), 32 * MIB as i64);
    assert!(bytes_of(whole, 32 * MIB, own.0).iter().all(|byte| *byte == 3));
    free(whole);
    empty_caches();
}

fn memory_is_on_the_streams_device() {
    set_device(0);
    let on_1 = Own::on(1);
    for stream in [on_1.0, default_of(1)] {
        let block = allocate(5000, stream);
        assert_eq!(get!(-1, out => tcuda_device_of(out, block)), 1);
        assert_eq!(get!(-1, out => tcuda_device_of(out, block.wrapping_byte_add(4999))), 1);
        // Whatever device is current.
        free(block);
        assert_eq!(device(), 0);
    }
    set_device(1);
    let block = allocate(5000, NULL);
    assert_eq!(get!(-1, out => tcuda_device_of(out, block)), 1);
    set_device(0);
    // With a pointer beside it NULL is the default stream of the pointer's device.
    ok!(tcuda_record_stream(block, NULL));
    ok!(tcuda_free_cached_on(block, NULL));
}

fn streams_of_another_device_are_refused() {
    let (on_0, on_1) = (Own::on(0), Own::on(1));
    let block = allocate(5000, on_0.0);
    for stream in [on_1.0, default_of(1)] {
        let said = fails!(INVALID_ARGUMENT, tcuda_record_stream(block, stream));
        assert!(said.contains("device 1") && said.contains("device 0"), "{said}");
        fails!(INVALID_ARGUMENT, tcuda_free_cached_on(block, stream));
    }
    free(block);
}

fn devices_have_caches_of_their_own() {
    empty_caches();
    let (a, b) = (allocate(3 * MIB, default_of(0)), allocate(5 * MIB, default_of(1)));
    assert_eq!([0, 1].map(|device| stat(device, "allocated_bytes.all.current")), [3 * MIB as i64, 5 * MIB as i64]);
    ok!(tcuda_reset_peak_memory_stats(0));
    free(a);
    free(b);
    assert_eq!([0, 1].map(|device| stat(device, "allocation.all.freed")), [1, 1]);
    ok!(tcuda_empty_cache(0));
    assert_eq!(stat(0, "reserved_bytes.all.current"), 0);
    assert!(stat(1, "reserved_bytes.all.current") > 0);
    let limit = Limit::of(1, 8 * MIB as u64);
    free(allocate(20 * MIB, default_of(0)));
    fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 20 * MIB, default_of(1)));
    assert_eq!([0, 1].map(|device| stat(device, "num_ooms")), [0, 1]);
    drop(limit);
    empty_caches();
}

fn a_peer_reaches_memory_from_before_and_after() {
    for options in ["expandable_segments:True", "expandable_segments:False"] {
        in_child("peers", &[("TCUDA_ALLOC_CONF", options)]);
    }
}

/// Work of device 1 on memory of device 0, without a copy, which could go another way.
pub fn scene_peers() {
    if !get!(false, out => tcuda_can_device_access_peer(out, 1, 0)) {
        return;
    }
    let sizes = [1000, 3 * MIB, 70 * MIB];
    let mut blocks: Vec<_> = sizes.iter().map(|size| (allocate(*size, default_of(0)), *size)).collect();
    let (here, there) = (allocate(4096, default_of(1)), allocate(4096, default_of(0)));
    ok!(tcuda_memset_async(here, 0, 4096, default_of(1)));
    ok!(tcuda_copy(there, here, 4096, false));
    blocks.extend(sizes.iter().map(|size| (allocate(*size, default_of(0)), *size)));
    let user = Own::on(1);
    let runtime = tcuda::runtime::runtime().unwrap();
    ok!(tcuda_synchronize(0));
    for (number, (block, size)) in blocks.iter().enumerate() {
        ok!(tcuda_set_device(1));
        runtime.memset_async(*block as usize, number as i32 + 1, *size, user.0 as usize).unwrap();
        ok!(tcuda_stream_synchronize(user.0));
        let mut last = 0u8;
        ok!(tcuda_copy((&raw mut last).cast(), (*block).wrapping_byte_add(size - 1), 1, false));
        assert_eq!(last, number as u8 + 1);
    }
    blocks.into_iter().for_each(|(block, _)| free(block));
    free(here);
    free(there);
    ok!(tcuda_empty_cache(-3));
    assert_eq!(stat(0, "reserved_bytes.all.current"), 0);
}

/// A block that another thread may free: address, size, what is in it.
type Parcel = (usize, usize, u8);

pub fn sixteen_threads_free_each_others_blocks() {
    empty_caches();
    static SHELF: Mutex<Vec<Parcel>> = Mutex::new(Vec::new());
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    let devices = device_count().min(2);
    let threads: Vec<_> = (0..16)
        .map(|number| {
            std::thread::spawn(move || {
                let own = Own::on(number % devices);
                let mut random = number as usize;
                for round in 0..60u32 {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let size = (random >> 33) % if round % 8 == 0 { 3 * MIB } else { 60_000 } + 1;
                    let fill = (random >> 50) as u8;
                    let block = allocate(size, own.0);
                    ok!(tcuda_memset_async(block, i32::from(fill), size, own.0));
                    ok!(tcuda_stream_synchronize(own.0));
                    let taken = {
                        let mut shelf = SHELF.lock().unwrap();
                        shelf.push((block as usize, size, fill));
                        let at = random % shelf.len();
                        (shelf.len() > 40).then(|| shelf.swap_remove(at))
                    };
                    if let Some((block, size, fill)) = taken {
                        let block = block as *mut c_void;
                        // The device's own stream: the block may be of the other device.
                        let device = get!(-1, out => tcuda_device_of(out, block));
                        let found = bytes_of(block, size, default_of(device));
                        assert!(found.iter().all(|byte| *byte == fill), "{size} bytes of {fill}");
                        SEEN.fetch_add(1, Ordering::Relaxed);
                        free(block);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(SEEN.load(Ordering::Relaxed), 16 * 60 - 40);
    SHELF.lock().unwrap().drain(..).for_each(|(block, ..)| free(block as *mut c_void));
    (0..device_count()).for_each(tcuda::memory::check);
    empty_caches();
}

fn contents_stay() {
    random_contents(1);
}

/// Blocks on three streams, handed from one to the other with and without tcuda_record_stream and a wait, never overwrite each other.
fn random_contents(seed: usize) {
    empty_caches();
    let streams = [Own::on(0), Own::on(0), Own::on(0)];
    let mut live: Vec<(*mut c_void, usize, u8, usize)> = Vec::new();
    let mut random = seed;
    let mut next = |bound: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % bound
    };
    for round in 0..400u32 {
        let at = next(3);
        let size = if next(6) == 0 { next(3 * MIB) + 1 } else { next(40_000) + 1 };
        let block = allocate(size, streams[at].0);
        ok!(tcuda_memset_async(block, round as i32, size, streams[at].0));
        live.push((block, size, round as u8, at));
        if live.len() > 12 {
            let (block, size, fill, home) = live.swap_remove(next(12));
            let reader = next(3);
            ok!(tcuda_stream_wait_stream(streams[reader].0, streams[home].0));
            ok!(tcuda_record_stream(block, streams[reader].0));
            let mut bytes = vec![0u8; size];
            ok!(tcuda_copy_async(bytes.as_mut_ptr().cast(), block, size, streams[reader].0));
            // The copy into pageable memory may come later; the block's next owner must not come sooner.
            free(block);
            let soon = allocate(size, streams[home].0);
            ok!(tcuda_memset_async(soon, !fill as i32, size, streams[home].0));
            ok!(tcuda_stream_synchronize(streams[reader].0));
            assert!(bytes.iter().all(|byte| *byte == fill), "seed {seed}, round {round}");
            free(soon);
        }
    }
    for (block, size, fill, home) in live {
        assert!(bytes_of(block, size, streams[home].0).iter().all(|byte| *byte == fill));
        free(block);
    }
    tcuda::memory::check(0);
    empty_caches();
}

fn contents_stay_whatever_the_order() {
    for seed in ["1", "2", "3"] {
        in_child("contents", &[("TCUDA_SIM_SEED", seed)]);
    }
    in_child("contents", &[("TCUDA_ALLOC_CONF", "expandable_segments:False"), ("TCUDA_SIM_SEED", "4")]);
}

pub fn scene_contents() {
    random_contents(2);
    crate::poison::expect_none();
}

fn memory_after_a_shutdown() {
    in_child("freed_too_late", &[]);
}

pub fn scene_freed_after_shutdown() {
    for _ in 0..3 {
        let own = create_on(0);
        let (first, second) = (allocate(5000, own), allocate(5 * MIB, NULL));
        ok!(tcuda_record_stream(second, own));
        free(second);
        ok!(tcuda_shutdown());
        nothing_lives();
        for _ in 0..2 {
            ok!(tcuda_free_cached(first));
            ok!(tcuda_free_cached_on(first, NULL));
            ok!(tcuda_free_cached_batch([first, first].as_ptr(), 2));
        }
        let mut block = null_mut();
        fails!(SHUT_DOWN, tcuda_malloc_cached(&mut block, 512, NULL));
        ok!(tcuda_init(null()));
        // The old blocks are no blocks any more.
        fails!(INVALID_POINTER, tcuda_free_cached(first));
        assert_eq!(stat(0, "reserved_bytes.all.current"), 0);
    }
}

fn a_wrong_text_in_the_environment_is_refused_when_it_is_asked_for() {
    in_child("wrong_options", &[("TCUDA_ALLOC_CONF", "slack:7")]);
}

pub fn scene_wrong_options() {
    let options = || {
        let mut text = [0u8; 2048];
        ok!(tcuda_get_alloc_conf(text.as_mut_ptr().cast(), text.len(), null_mut()));
        String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
    };
    assert!(options().contains("slack:0.035"));
    ok!(tcuda_set_alloc_conf(c"slack:0.5".as_ptr()));
    assert!(fails!(INVALID_ARGUMENT, tcuda_set_alloc_conf(null())).contains("'slack:7', at character 7"));
    assert!(options().contains("slack:0.5"));
}
