//! The cache of pinned host memory: blocks and what they hold, their streams, the limit, statistics, foreign memory.

use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use tcuda::base::dtype::tcuda_dtype_t;
use tcuda::capi::copy::*;
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::memory::{tcuda_get_alloc_conf, tcuda_set_alloc_conf};
use tcuda::capi::pinned::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::capi::sync_debug::*;
use tcuda::capi::tensor::*;

tests![
    blocks_hold_what_is_written,
    sizes_are_pages,
    what_is_wrong_is_refused,
    a_freed_block_is_given_out_again,
    parts_are_joined_again,
    a_block_in_use_by_a_stream_is_not_given_out,
    each_stream_holds_up_its_own,
    streams_of_two_devices_use_one_block: [TwoDevices],
    every_device_reaches_a_block: [TwoDevices],
    copies_on_their_way_keep_their_block,
    tensors_may_go_before_their_copies_are_done,
    a_host_function_frees,
    a_stream_goes,
    threads_own_streams_are_asked_by_their_threads,
    the_limit_holds,
    the_limit_is_an_option_too,
    statistics_have_torchs_keys,
    peaks_and_sums_are_reset,
    memory_of_the_program_is_registered,
    registering_says_what_is_in_the_way,
    who_is_pinned,
    threads_free_each_others_blocks,
    memory_can_be_registered_pages,
];

const MIB: usize = 1 << 20;

fn allocate_host(size: usize) -> *mut c_void {
    get!(null_mut(), out => tcuda_host_malloc_cached(out, size))
}

fn free_host(block: *mut c_void) {
    ok!(tcuda_host_free_cached(block));
}

fn host_stat(key: &str) -> i64 {
    let key = CString::new(key).unwrap();
    get!(-1, out => tcuda_host_memory_stat_get(out, key.as_ptr()))
}

fn empty() {
    ok!(tcuda_host_empty_cache());
    ok!(tcuda_reset_peak_host_memory_stats());
    ok!(tcuda_reset_accumulated_host_memory_stats());
}

/// Free memory enough for a test that keeps a stream busy: the driver may wait for the device when it makes more.
fn make_room(size: usize) {
    empty();
    free_host(allocate_host(size));
    ok!(tcuda_reset_accumulated_host_memory_stats());
}

fn bytes(block: *mut c_void, size: usize) -> &'static mut [u8] {
    unsafe { std::slice::from_raw_parts_mut(block.cast(), size) }
}

fn is_pinned(address: *const c_void) -> bool {
    get!(false, out => tcuda_is_pinned(out, address))
}

fn blocks_hold_what_is_written() {
    let own = Own::on(0);
    for (value, size) in [1, 511, 4096, 4097, MIB, 9 * MIB + 5].into_iter().enumerate() {
        let (to, from) = (allocate_host(size), allocate_host(size));
        bytes(from, size).fill(value as u8 + 1);
        bytes(to, size).fill(0);
        let far = allocate(size, own.0);
        ok!(tcuda_copy_async(far, from, size, own.0));
        ok!(tcuda_copy_async(to, far, size, own.0));
        ok!(tcuda_stream_synchronize(own.0));
        assert!(bytes(to, size).iter().all(|byte| *byte == value as u8 + 1));
        ok!(tcuda_memset_async(to, 77, size, own.0));
        ok!(tcuda_stream_synchronize(own.0));
        assert!(bytes(to, size).iter().all(|byte| *byte == 77));
        [to, from].into_iter().for_each(free_host);
        free(far);
    }
}

fn sizes_are_pages() {
    empty();
    for (size, rounded) in [(1, 512), (513, 1024), (3585, 4096), (4097, 8192), (MIB + 1, MIB + 4096), (5 * MIB, 5 * MIB)] {
        let block = allocate_host(size);
        assert_eq!(host_stat("active_bytes.current"), rounded as i64, "{size}");
        assert_eq!(block as usize % rounded.min(4096).min(if rounded < 4096 { 512 } else { 4096 }), 0);
        free_host(block);
    }
    // Above half a segment not a page more is taken than is asked for.
    empty();
    let block = allocate_host(33 * MIB + 1);
    assert_eq!(host_stat("allocated_bytes.current") as usize, 33 * MIB + 4096);
    free_host(block);
}

fn what_is_wrong_is_refused() {
    assert_eq!(allocate_host(0), null_mut());
    free_host(null_mut());
    ok!(tcuda_host_record_stream(null_mut(), NULL));
    ok!(tcuda_host_unregister(null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_host_malloc_cached(null_mut(), 1));
    let mut out = 8 as *mut c_void;
    for size in [usize::MAX, 1 << 50, 1 << 45] {
        assert!(fails!(OUT_OF_HOST_MEMORY, tcuda_host_malloc_cached(&mut out, size)).contains("Tried to allocate"));
    }
    assert_eq!(out, 8 as *mut c_void);
    let local = [0u8; 16];
    let block = allocate_host(8192);
    let device = allocate(8192, NULL);
    for wrong in [local.as_ptr().cast_mut().cast(), device, 4096 as *mut c_void, usize::MAX as *mut c_void] {
        fails!(INVALID_POINTER, tcuda_host_free_cached(wrong));
        fails!(INVALID_POINTER, tcuda_host_record_stream(wrong, NULL));
    }
    for inside in [1, 512, 4096] {
        let message = fails!(INVALID_POINTER, tcuda_host_free_cached(block.wrapping_byte_add(inside)));
        assert!(message.contains("lies inside the pinned block"), "{message}");
    }
    fails!(INVALID_HANDLE, tcuda_host_record_stream(block, handle(7)));
    let message = fails!(INVALID_POINTER, tcuda::capi::memory::tcuda_free_cached(block));
    assert!(message.contains("is pinned host memory") && message.contains("tcuda_host_free_cached"), "{message}");
    free_host(block);
    assert!(fails!(INVALID_POINTER, tcuda_host_free_cached(block)).contains("freed before"));
    fails!(INVALID_POINTER, tcuda_host_record_stream(block, NULL));
    free(device);
}

fn a_freed_block_is_given_out_again() {
    empty();
    for size in [100, 4096, MIB, 30 * MIB] {
        let block = allocate_host(size);
        let calls = host_stat("num_host_alloc");
        for _ in 0..20 {
            free_host(block);
            assert_eq!(allocate_host(size), block);
        }
        free_host(block);
        assert_eq!(host_stat("num_host_alloc"), calls);
    }
}

fn parts_are_joined_again() {
    make_room(64 * MIB);
    let blocks: Vec<_> = (1..=10).map(|index| allocate_host(index * MIB + index)).collect();
    assert_eq!(host_stat("num_host_alloc"), 0);
    blocks.into_iter().rev().for_each(free_host);
    free_host(allocate_host(64 * MIB));
    assert_eq!((host_stat("num_host_alloc"), host_stat("allocations.current")), (0, 1));
}

fn a_block_in_use_by_a_stream_is_not_given_out() {
    make_room(16 * MIB);
    // Memory has to wait for its own stream too: the host writes it.
    for stream in [Own::on(0).0, default_of(0), NULL] {
        let own = Own::on(0);
        let stream = if stream == default_of(0) || stream.is_null() { stream } else { own.0 };
        let block = allocate_host(4 * MIB);
        let gate = Gate::on(stream);
        ok!(tcuda_host_record_stream(block.wrapping_byte_add(100), stream));
        free_host(block);
        let others: Vec<_> = (0..3).map(|_| allocate_host(4 * MIB)).collect();
        assert!(!others.contains(&block) && host_stat("active_requests.current") == 4);
        drop(gate);
        ok!(tcuda_stream_synchronize(stream));
        assert_eq!(allocate_host(4 * MIB), block);
        others.into_iter().chain([block]).for_each(free_host);
    }
    assert_eq!(host_stat("num_host_alloc"), 0);
}

fn each_stream_holds_up_its_own() {
    make_room(12 * MIB);
    let (slow, quick) = (Own::on(0), Own::on(0));
    let blocks: Vec<_> = (0..3).map(|_| allocate_host(4 * MIB)).collect();
    let gate = Gate::on(slow.0);
    for (block, streams) in blocks.iter().zip([&[slow.0][..], &[quick.0], &[quick.0, slow.0]]) {
        streams.iter().for_each(|stream| ok!(tcuda_host_record_stream(*block, *stream)));
        free_host(*block);
    }
    ok!(tcuda_stream_synchronize(quick.0));
    assert_eq!(allocate_host(4 * MIB), blocks[1]);
    assert!(!gate.was_passed());
    gate.open();
    ok!(tcuda_stream_synchronize(slow.0));
    let more = [allocate_host(4 * MIB), allocate_host(4 * MIB)];
    assert!(more.iter().all(|block| blocks.contains(block)));
    assert_eq!(host_stat("num_host_alloc"), 0);
    more.into_iter().chain([blocks[1]]).for_each(free_host);
}

fn streams_of_two_devices_use_one_block() {
    make_room(8 * MIB);
    let (near, far) = (Own::on(0), Own::on(1));
    let block = allocate_host(4 * MIB);
    for stream in [near.0, far.0] {
        ok!(tcuda_host_record_stream(block, stream));
    }
    let gate = Gate::on(far.0);
    free_host(block);
    ok!(tcuda_stream_synchronize(near.0));
    let other = allocate_host(4 * MIB);
    assert_ne!(other, block);
    drop(gate);
    ok!(tcuda_stream_synchronize(far.0));
    assert_eq!(allocate_host(4 * MIB), block);
    [block, other].into_iter().for_each(free_host);
}

fn every_device_reaches_a_block() {
    let size = MIB;
    let block = allocate_host(size);
    for device in 0..device_count() {
        let own = Own::on(device);
        bytes(block, size).fill(device as u8 + 3);
        let far = allocate(size, own.0);
        ok!(tcuda_copy_async(far, block, size, own.0));
        assert!(bytes_of(far, size, own.0).iter().all(|byte| *byte == device as u8 + 3));
        free(far);
    }
    free_host(block);
}

/// The block is freed as soon as the copy is enqueued, and the host fills the next one at once.
fn copies_on_their_way_keep_their_block() {
    const SIZE: usize = MIB;
    const ROUNDS: usize = 64;
    let own = Own::on(0);
    let far: Vec<_> = (0..ROUNDS).map(|_| allocate(SIZE, own.0)).collect();
    for (round, target) in far.iter().enumerate() {
        let block = allocate_host(SIZE);
        bytes(block, SIZE).fill(round as u8);
        ok!(tcuda_copy_async(*target, block, SIZE, own.0));
        free_host(block);
    }
    // And back, into blocks that are freed under way: what is given out later is not written any more.
    let back: Vec<_> = (0..4).map(|_| allocate_host(SIZE)).collect();
    for block in &back {
        ok!(tcuda_copy_async(*block, far[1], SIZE, own.0));
        free_host(*block);
    }
    let fresh: Vec<_> = (0..4).map(|_| allocate_host(SIZE)).collect();
    fresh.iter().for_each(|block| bytes(*block, SIZE).fill(200));
    ok!(tcuda_stream_synchronize(own.0));
    assert!(fresh.iter().all(|block| bytes(*block, SIZE).iter().all(|byte| *byte == 200)));
    for (round, source) in far.into_iter().enumerate() {
        assert!(bytes_of(source, SIZE, own.0).iter().all(|byte| *byte == round as u8), "round {round}");
        free(source);
    }
    fresh.into_iter().for_each(free_host);
}

fn tensors_may_go_before_their_copies_are_done() {
    make_room(8 * MIB);
    let own = Own::on(0);
    let count = 4 * MIB as i64;
    let dtype = tcuda_dtype_t { code: 1, bits: 8, lanes: 1 };
    let mut plain = null_mut();
    ok!(tcuda_tensor_empty(&mut plain, -2, dtype, 1, &count, NULL));
    bytes(unsafe { (*plain).tensor.data }, count as usize).fill(6);
    let (mut pinned, mut far) = (null_mut(), null_mut());
    ok!(tcuda_tensor_pin(&mut pinned, null_mut(), unsafe { &(*plain).tensor }));
    ok!(tcuda_tensor_empty(&mut far, 0, dtype, 1, &count, own.0));
    let (block, target) = unsafe { ((*pinned).tensor.data, (*far).tensor.data) };
    assert!(is_pinned(block) && host_stat("active_requests.current") == 1);
    let gate = Gate::on(own.0);
    ok!(tcuda_tensor_copy(unsafe { &(*far).tensor }, unsafe { &(*pinned).tensor }, true, own.0));
    ok!(tcuda_tensor_destroy(pinned));
    let other = allocate_host(count as usize);
    assert_ne!(other, block);
    bytes(other, count as usize).fill(9);
    drop(gate);
    assert!(bytes_of(target, count as usize, own.0).iter().all(|byte| *byte == 6));
    free_host(other);
    [plain, far].into_iter().for_each(|tensor| ok!(tcuda_tensor_destroy(tensor)));
}

unsafe extern "C" fn free_in_stream(block: *mut c_void) {
    assert_eq!(unsafe { tcuda_host_free_cached(block) }, tcuda::base::Status::TCUDA_SUCCESS);
}

fn a_host_function_frees() {
    empty();
    let own = Own::on(0);
    let block = allocate_host(4 * MIB);
    ok!(tcuda_host_record_stream(block, own.0));
    ok!(tcuda_stream_add_host_function(own.0, Some(free_in_stream), block));
    ok!(tcuda_stream_synchronize(own.0));
    assert_eq!(allocate_host(4 * MIB), block);
    free_host(block);
}

fn a_stream_goes() {
    make_room(8 * MIB);
    let stream: tcuda_stream_t = create_on(0);
    let blocks = [allocate_host(2 * MIB), allocate_host(2 * MIB)];
    blocks.into_iter().for_each(|block| ok!(tcuda_host_record_stream(block, stream)));
    free_host(blocks[0]);
    let gate = Gate::on(stream);
    ok!(tcuda_stream_destroy(stream));
    free_host(blocks[1]);
    let others = [allocate_host(2 * MIB), allocate_host(2 * MIB)];
    assert!(others.iter().all(|block| !blocks.contains(block)));
    drop(gate);
    others.into_iter().for_each(free_host);
    ok!(tcuda_host_empty_cache());
    assert_eq!((host_stat("active_bytes.current"), host_stat("allocated_bytes.current")), (0, 0));
}

/// No limit again, also after a failure.
struct NoLimit;

impl Drop for NoLimit {
    fn drop(&mut self) {
        tcuda_host_set_memory_limit(u64::MAX);
    }
}

fn threads_own_streams_are_asked_by_their_threads() {
    empty();
    let held = || host_stat("allocated_bytes.current");
    let worker = Worker::new(|block| {
        ok!(tcuda_stream_synchronize(handle(PER_THREAD)));
        ok!(tcuda_host_record_stream(block, handle(PER_THREAD)));
        free_host(block);
    });
    (0..10).for_each(|_| worker.give(allocate_host(4 * MIB)));
    assert!(held() <= 8 * MIB as i64, "{}", held());
    worker.end();
    // Who waits for the device knows of them all.
    let worker = Worker::new(|block| ok!(tcuda_host_record_stream(block, handle(PER_THREAD))));
    let block = allocate_host(4 * MIB);
    worker.give(block);
    free_host(block);
    ok!(tcuda_synchronize(0));
    assert_eq!(host_stat("active_bytes.current"), 0);
    worker.end();
    empty();
}

fn the_limit_holds() {
    let limit = || get!(0, out => tcuda_host_get_memory_limit(out));
    empty();
    let _none = NoLimit;
    assert_eq!(limit(), u64::MAX);
    ok!(tcuda_host_set_memory_limit(20 * MIB as u64));
    assert_eq!(limit(), 20 * MIB as u64);
    let own = Own::on(0);
    let blocks = [allocate_host(12 * MIB), allocate_host(8 * MIB)];
    let mut out = null_mut();
    let message = fails!(OUT_OF_HOST_MEMORY, tcuda_host_malloc_cached(&mut out, 1));
    assert!(message.contains("limit is 20.00 MiB") && message.contains("20.00 MiB is in use"), "{message}");
    // What is freed but in use is waited for.
    ok!(tcuda_memset_async(blocks[0], 1, 12 * MIB, own.0));
    free_host(blocks[0]);
    assert_eq!(allocate_host(12 * MIB), blocks[0]);
    // And what is free goes back for what is too large for it.
    ok!(tcuda_memset_async(blocks[1], 1, 8 * MIB, own.0));
    blocks.into_iter().for_each(free_host);
    // A wait that is refused is the reason, not that there is no room.
    let whole = allocate_host(20 * MIB);
    let gate = Gate::on(own.0);
    ok!(tcuda_memset_async(whole, 1, 20 * MIB, own.0));
    free_host(whole);
    ok!(tcuda_set_thread_sync_debug_mode(2));
    fails!(INVALID_STATE, tcuda_host_malloc_cached(&mut out, 20 * MIB));
    ok!(tcuda_set_thread_sync_debug_mode(-1));
    gate.open();
    let whole = allocate_host(20 * MIB);
    assert_eq!((host_stat("allocated_bytes.current"), host_stat("allocated_bytes.peak")), (20 << 20, 20 << 20));
    free_host(whole);
    ok!(tcuda_host_set_memory_limit(0));
    assert_eq!(allocate_host(20 * MIB), whole);
    free_host(whole);
    ok!(tcuda_host_empty_cache());
    fails!(OUT_OF_HOST_MEMORY, tcuda_host_malloc_cached(&mut out, 1));
}

fn the_limit_is_an_option_too() {
    let _none = NoLimit;
    ok!(tcuda_set_alloc_conf(c"pinned_limit_mb:3".as_ptr()));
    assert_eq!(get!(0, out => tcuda_host_get_memory_limit(out)), 3 << 20);
    let mut text = [0u8; 2048];
    ok!(tcuda_get_alloc_conf(text.as_mut_ptr().cast(), text.len(), null_mut()));
    assert!(String::from_utf8_lossy(&text).contains("pinned_limit_mb:3,"));
    assert!(fails!(INVALID_ARGUMENT, tcuda_set_alloc_conf(c"pinned_limit_mb:-3".as_ptr())).contains("none, or a number"));
    ok!(tcuda_set_alloc_conf(std::ptr::null()));
    assert_eq!(get!(0, out => tcuda_host_get_memory_limit(out)), u64::MAX);
    // One that a call set stays, and is shown.
    ok!(tcuda_host_set_memory_limit((5 << 20) + (1 << 18)));
    ok!(tcuda_set_alloc_conf(c"slack:0.5".as_ptr()));
    assert_eq!(get!(0, out => tcuda_host_get_memory_limit(out)), (5 << 20) + (1 << 18));
    ok!(tcuda_get_alloc_conf(text.as_mut_ptr().cast(), text.len(), null_mut()));
    assert!(String::from_utf8_lossy(&text).contains("pinned_limit_mb:5.25,"));
    ok!(tcuda_set_alloc_conf(c"pinned_limit_mb:none".as_ptr()));
    assert_eq!(get!(0, out => tcuda_host_get_memory_limit(out)), u64::MAX);
    ok!(tcuda_set_alloc_conf(std::ptr::null()));
}

fn statistics_have_torchs_keys() {
    empty();
    let keys: Vec<String> = (0..).map(|index| tcuda_host_memory_stat_key(index)).take_while(|key| !key.is_null()).map(text).collect();
    assert!(keys.is_sorted());
    let mut expected = Vec::new();
    for family in ["active_bytes", "active_requests", "allocated_bytes", "allocations"] {
        expected.extend(["allocated", "current", "freed", "peak"].map(|figure| format!("{family}.{figure}")));
    }
    for family in ["host_alloc_time", "host_free_time"] {
        expected.extend(["avg", "count", "max", "min", "total"].map(|figure| format!("{family}.{figure}")));
    }
    expected.extend(["num_host_alloc".to_owned(), "num_host_free".to_owned()]);
    assert_eq!(keys, expected);
    let block = allocate_host(3 * MIB);
    let figures: BTreeMap<String, i64> = keys.into_iter().map(|key| (key.clone(), host_stat(&key))).collect();
    for (key, figure) in
        [("active_bytes.current", 3 << 20), ("allocated_bytes.current", 3 << 20), ("active_requests.peak", 1), ("allocations.allocated", 1)]
    {
        assert_eq!(figures[key], figure, "{key}");
    }
    assert_eq!((figures["num_host_alloc"], figures["num_host_free"], figures["host_alloc_time.count"]), (1, 0, 1));
    assert_eq!((host_stat("segment.current"), host_stat("reserved_bytes.current"), host_stat("allocation.current")), (1, 3 << 20, 1));
    let mut stats: tcuda_host_memory_stats_t = unsafe { std::mem::zeroed() };
    fails!(INVALID_ARGUMENT, tcuda_host_memory_stats(&mut stats));
    stats.struct_size = size_of::<tcuda_host_memory_stats_t>();
    ok!(tcuda_host_memory_stats(&mut stats));
    assert_eq!((stats.active_bytes.peak, stats.num_host_alloc, stats.host_alloc_time.count), (3 << 20, 1, 1));
    assert!(stats.host_alloc_time.max >= stats.host_alloc_time.min && stats.host_alloc_time.total >= stats.host_alloc_time.avg);
    fails!(INVALID_ARGUMENT, tcuda_host_memory_stat_get(&mut 0, c"active_bytes".as_ptr()));
    fails!(INVALID_ARGUMENT, tcuda_host_memory_stat_get(&mut 0, std::ptr::null()));
    free_host(block);
}

fn peaks_and_sums_are_reset() {
    empty();
    let blocks = [allocate_host(MIB), allocate_host(2 * MIB)];
    free_host(blocks[1]);
    assert_eq!(
        (host_stat("active_bytes.peak"), host_stat("active_bytes.allocated"), host_stat("active_bytes.freed")),
        (3 << 20, 3 << 20, 2 << 20)
    );
    ok!(tcuda_reset_peak_host_memory_stats());
    assert_eq!((host_stat("active_bytes.peak"), host_stat("active_requests.peak")), (1 << 20, 1));
    ok!(tcuda_reset_accumulated_host_memory_stats());
    assert_eq!((host_stat("active_bytes.allocated"), host_stat("active_bytes.freed"), host_stat("num_host_alloc")), (0, 0, 0));
    free_host(blocks[0]);
    assert_eq!((host_stat("active_requests.freed"), host_stat("active_requests.current")), (1, 0));
}

/// Pages of the program.
fn pages(size: usize) -> Vec<u8> {
    vec![1; size]
}

fn memory_of_the_program_is_registered() {
    const SIZE: usize = 2 * MIB + 100;
    let mut memory = pages(SIZE);
    let start: *mut c_void = memory.as_mut_ptr().cast();
    assert!(!is_pinned(start));
    for _ in 0..3 {
        ok!(tcuda_host_register(start, SIZE, 0));
        assert!(is_pinned(start) && is_pinned(start.wrapping_byte_add(SIZE - 1)));
        for device in 0..device_count() {
            let own = Own::on(device);
            let far = allocate(SIZE, own.0);
            bytes(start, SIZE).fill(device as u8 + 1);
            ok!(tcuda_copy_async(far, start, SIZE, own.0));
            ok!(tcuda_stream_synchronize(own.0));
            bytes(start, SIZE).fill(0);
            ok!(tcuda_copy_async(start, far, SIZE, own.0));
            ok!(tcuda_stream_synchronize(own.0));
            assert!(bytes(start, SIZE).iter().all(|byte| *byte == device as u8 + 1));
            free(far);
        }
        ok!(tcuda_host_unregister(start));
        assert!(!is_pinned(start));
    }
}

fn registering_says_what_is_in_the_way() {
    const SIZE: usize = 64 << 10;
    let mut memory = pages(3 * SIZE);
    let start: *mut c_void = memory.as_mut_ptr().cast();
    let middle = start.wrapping_byte_add(SIZE);
    assert!(fails!(INVALID_POINTER, tcuda_host_unregister(middle)).contains("was not registered"));
    ok!(tcuda_host_register(middle, SIZE, 0));
    for (from, size) in [(middle, SIZE), (start, 2 * SIZE), (start, 3 * SIZE), (middle.wrapping_byte_add(SIZE - 1), 10)] {
        let message = fails!(INVALID_ARGUMENT, tcuda_host_register(from, size, 0));
        assert!(message.contains("registered already") && message.contains(&format!("{:#x}", middle as usize)), "{message}");
    }
    assert!(fails!(INVALID_POINTER, tcuda_host_unregister(middle.wrapping_byte_add(8))).contains("lies inside"));
    ok!(tcuda_host_unregister(middle));
    fails!(INVALID_POINTER, tcuda_host_unregister(middle));
    let block = allocate_host(SIZE);
    assert!(fails!(INVALID_ARGUMENT, tcuda_host_register(block, 100, 0)).contains("tcuda's own"));
    fails!(INVALID_POINTER, tcuda_host_unregister(block));
    let device = allocate(SIZE, NULL);
    let status = unsafe { tcuda_host_register(device, SIZE, 0) };
    assert_ne!(status, tcuda::base::Status::TCUDA_SUCCESS);
    for (from, size, flags) in [(null_mut(), SIZE, 0), (start, 0, 0), (start, SIZE, 32), (start, SIZE, 16), (start, usize::MAX, 0)] {
        fails!(INVALID_ARGUMENT, tcuda_host_register(from, size, flags));
    }
    fails!(INVALID_POINTER, tcuda_host_register(4096 as *mut c_void, 4096, 0));
    free_host(block);
    free(device);
}

fn who_is_pinned() {
    let local = 0u8;
    let block = allocate_host(10_000);
    let device = allocate(10_000, NULL);
    assert!(is_pinned(block) && is_pinned(block.wrapping_byte_add(9_999)));
    assert!(!is_pinned(std::ptr::null()) && !is_pinned((&raw const local).cast()) && !is_pinned(device));
    let runtime = tcuda::runtime::runtime().unwrap();
    let foreign = runtime.host_alloc(4096, 0).unwrap();
    assert!(is_pinned(foreign as *const c_void));
    runtime.free_host(foreign).unwrap();
    fails!(INVALID_ARGUMENT, tcuda_is_pinned(null_mut(), block));
    free_host(block);
    free(device);
}

fn threads_free_each_others_blocks() {
    empty();
    let threads: Vec<_> = (0..4u8)
        .map(|thread| {
            std::thread::spawn(move || {
                let own = Own::on(0);
                let mut mine = Vec::new();
                for round in 0..400usize {
                    let size = [512, 4096, 70_000, MIB][round % 4];
                    let block = allocate_host(size);
                    bytes(block, size).fill(thread);
                    if round % 7 == 0 {
                        ok!(tcuda_host_record_stream(block, own.0));
                    }
                    mine.push((block as usize, size));
                    if round % 3 == 2 {
                        let (block, size) = mine.remove(round % mine.len());
                        assert!(bytes(block as *mut c_void, size).iter().all(|byte| *byte == thread));
                        free_host(block as *mut c_void);
                    }
                }
                mine
            })
        })
        .collect();
    let left: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_eq!(host_stat("active_requests.current"), left.len() as i64);
    left.into_iter().for_each(|(block, _)| free_host(block as *mut c_void));
    ok!(tcuda_host_empty_cache());
    assert_eq!((host_stat("active_bytes.current"), host_stat("allocated_bytes.current")), (0, 0));
    assert_eq!((host_stat("active_requests.allocated"), host_stat("active_requests.freed")), (1600, 1600));
}

fn memory_can_be_registered_pages() {
    empty();
    ok!(tcuda_set_alloc_conf(c"pinned_use_cuda_host_register:True,pinned_num_register_threads:2".as_ptr()));
    let own = Own::on(0);
    let block = allocate_host(6 * MIB);
    let far = allocate(6 * MIB, own.0);
    bytes(block, 6 * MIB).fill(5);
    ok!(tcuda_copy_async(far, block, 6 * MIB, own.0));
    assert!(is_pinned(block) && bytes_of(far, 6 * MIB, own.0).iter().all(|byte| *byte == 5));
    ok!(tcuda_set_alloc_conf(std::ptr::null()));
    free_host(block);
    free(far);
    ok!(tcuda_host_empty_cache());
    assert_eq!(host_stat("allocated_bytes.current"), 0);
}
