//! Copies of bytes and memset: every pair of places, sizes from nothing on, the order of streams, blocks that are freed meanwhile.

use crate::graph::{G, pinned};
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tcuda::base::Status::{TCUDA_ERROR_INVALID_ARGUMENT, TCUDA_ERROR_INVALID_POINTER};
use tcuda::base::dlpack::tcuda_managed_tensor_t;
use tcuda::base::dtype::DType;
use tcuda::capi::copy::*;
use tcuda::capi::device::*;
use tcuda::capi::graph::tcuda_graph_capture_end;
use tcuda::capi::pinned::tcuda_host_free_cached;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::capi::tensor::*;

tests![
    every_place_to_every_place,
    the_same_on_streams,
    a_stream_of_another_device_than_the_memory: [TwoDevices],
    nothing_needs_nothing,
    bad_ranges_are_refused,
    where_no_memory_is_nothing_is_copied: [VirtualMemory],
    what_reaches_past_a_block_is_refused,
    what_cuda_refuses_is_named,
    ranges_that_overlap_on_a_device_are_refused,
    copies_between_devices_are_ordered_both_ways,
    blocks_in_use_are_not_reused_early: [Unfilled],
    the_current_device_stays,
    host_to_host_moves,
    a_copy_that_may_not_wait_is_over_when_it_says_so,
];

enum Memory {
    Host(Vec<u8>),
    /// Pinned, or a block of the device cache.
    Tensor(*mut tcuda_managed_tensor_t),
}

const BYTE: DType = DType { code: 1, bits: 8, lanes: 1 };

impl Memory {
    fn device(device: i32, size: usize, stream: tcuda_stream_t) -> Memory {
        let mut block = null_mut();
        ok!(tcuda_tensor_empty(&mut block, device, BYTE, 1, &(size as i64), stream));
        Memory::Tensor(block)
    }

    fn pinned(size: usize) -> Memory {
        let (mut plain, mut out) = (null_mut(), null_mut());
        ok!(tcuda_tensor_empty(&mut plain, -2, BYTE, 1, &(size as i64), null_mut()));
        ok!(tcuda_tensor_pin(&mut out, null_mut(), &(*plain).tensor));
        ok!(tcuda_tensor_destroy(plain));
        Memory::Tensor(out)
    }

    /// Host, pinned, and the first two devices.
    fn everywhere(size: usize) -> Vec<Memory> {
        let mut all = vec![Memory::Host(vec![0; size]), Memory::pinned(size)];
        all.extend((0..device_count().min(2)).map(|device| Memory::device(device, size, null_mut())));
        all
    }

    fn at(&self, offset: usize) -> *mut c_void {
        let start = match self {
            Memory::Host(bytes) => bytes.as_ptr().cast_mut(),
            Memory::Tensor(tensor) => unsafe { (**tensor).tensor.data.cast() },
        };
        start.wrapping_add(offset).cast()
    }

    fn write(&self, bytes: &[u8]) {
        ok!(tcuda_copy(self.at(0), bytes.as_ptr().cast(), bytes.len(), false));
    }

    fn read(&self, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        ok!(tcuda_copy(bytes.as_mut_ptr().cast(), self.at(0), size, false));
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Memory::Tensor(tensor) = self {
            ok!(tcuda_tensor_destroy(*tensor));
        }
    }
}

fn pattern(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
}

fn synchronize_all() {
    for device in 0..device_count() {
        ok!(tcuda_synchronize(device));
    }
}

fn every_place_to_every_place() {
    for size in [1, 3, 512, 4097, 3 << 20] {
        for (from_at, from) in Memory::everywhere(size + 16).iter().enumerate() {
            for (to_at, to) in Memory::everywhere(size + 16).iter().enumerate() {
                for non_blocking in [false, true] {
                    let (given, before) = (pattern(size + 16, from_at + 1), pattern(size + 16, 100 + to_at));
                    from.write(&given);
                    to.write(&before);
                    // Out of the middle of a block into the middle of another.
                    ok!(tcuda_copy(to.at(5), from.at(9), size, non_blocking));
                    if non_blocking {
                        synchronize_all();
                    }
                    let found = to.read(size + 16);
                    assert!(found[5..size + 5] == given[9..size + 9], "place {from_at} to place {to_at}, {size} bytes");
                    assert!(found[..5] == before[..5] && found[size + 5..] == before[size + 5..], "more than {size} bytes were written");
                }
            }
        }
    }
}

fn the_same_on_streams() {
    for device in 0..device_count().min(2) {
        let stream = Own::on(device);
        for named in [stream.0, NULL, handle(CURRENT_STREAM)] {
            let (first, second) = (Memory::pinned(10_000), Memory::pinned(10_000));
            let block = Memory::device(device, 10_000, named);
            let given = pattern(10_000, 3);
            first.write(&given);
            ok!(tcuda_copy_async(block.at(0), first.at(0), 10_000, named));
            ok!(tcuda_memset_async(block.at(100), 0x1ff, 50, named));
            ok!(tcuda_copy_async(second.at(0), block.at(0), 10_000, named));
            synchronize_all();
            let found = second.read(10_000);
            assert!(found[100..150].iter().all(|byte| *byte == 0xff));
            assert!(found[..100] == given[..100] && found[150..] == given[150..]);
        }
    }
}

fn a_stream_of_another_device_than_the_memory() {
    let stream = Own::on(0);
    let (pinned, there, beside) = (Memory::pinned(10_000), Memory::device(1, 10_000, NULL), Memory::device(1, 10_000, NULL));
    synchronize_all();
    for current in 0..2 {
        ok!(tcuda_set_device(current));
        let given = pattern(10_000, current as usize);
        pinned.write(&given);
        ok!(tcuda_copy_async(there.at(0), pinned.at(0), 10_000, stream.0));
        ok!(tcuda_copy_async(beside.at(0), there.at(0), 10_000, stream.0));
        ok!(tcuda_stream_synchronize(stream.0));
        pinned.write(&vec![0; 10_000]);
        ok!(tcuda_copy_async(pinned.at(0), beside.at(0), 10_000, stream.0));
        ok!(tcuda_stream_synchronize(stream.0));
        assert!(pinned.read(10_000) == given);
    }
}

fn nothing_needs_nothing() {
    let dead = 8 as *mut c_void;
    ok!(tcuda_copy(null_mut(), dead, 0, false));
    ok!(tcuda_copy_async(dead, null(), 0, null_mut()));
    ok!(tcuda_memset_async(null_mut(), 1, 0, null_mut()));
}

fn bad_ranges_are_refused() {
    let block = Memory::device(0, 512, null_mut());
    let host = [0u8; 16];
    let from = host.as_ptr().cast();
    assert!(fails!(INVALID_ARGUMENT, tcuda_copy(null_mut(), from, 4, false)).contains("'dst' is NULL"));
    assert!(fails!(INVALID_ARGUMENT, tcuda_copy(block.at(0), null(), 4, true)).contains("'src' is NULL"));
    assert!(fails!(INVALID_ARGUMENT, tcuda_copy(block.at(0), from, usize::MAX, false)).contains("past the end"));
    assert!(fails!(INVALID_ARGUMENT, tcuda_copy((usize::MAX - 8) as _, from, 16, false)).contains("past the end"));
    assert!(fails!(INVALID_ARGUMENT, tcuda_copy_async(block.at(0), null(), 4, null_mut())).contains("'src' is NULL"));
    assert!(fails!(INVALID_ARGUMENT, tcuda_copy_async(block.at(0), from, usize::MAX - 1, null_mut())).contains("past the end"));
    assert!(fails!(INVALID_ARGUMENT, tcuda_memset_async(null_mut(), 0, 1, null_mut())).contains("'dst' is NULL"));
    assert!(fails!(INVALID_ARGUMENT, tcuda_memset_async(block.at(0), 0, usize::MAX, null_mut())).contains("past the end"));
    assert!(fails!(INVALID_ARGUMENT, tcuda_memset_async(from.cast_mut(), 0, 16, null_mut())).contains("pageable host memory"));
    fails!(INVALID_HANDLE, tcuda_copy_async(block.at(0), from, 4, handle(0x44)));
}

fn where_no_memory_is_nothing_is_copied() {
    let host = [1u8; 64];
    let from = host.as_ptr().cast();
    let block = Memory::device(0, 64, null_mut());
    let gone = allocate(64 << 20, null_mut());
    // Reserved by the cache with no memory there, then not even reserved.
    let behind = gone.wrapping_byte_add(64 << 20);
    free(gone);
    ok!(tcuda::capi::memory::tcuda_empty_cache(0));
    for nowhere in [gone, behind, gone.wrapping_byte_add(12345), 8 as *mut c_void] {
        assert!(fails!(INVALID_POINTER, tcuda_copy(nowhere, from, 16, false)).contains("'dst'"));
        assert!(fails!(INVALID_POINTER, tcuda_copy(host.as_ptr().cast_mut().cast(), nowhere, 16, false)).contains("where no memory is"));
        assert!(fails!(INVALID_POINTER, tcuda_copy(block.at(0), nowhere, 16, true)).contains("'src'"));
        assert!(fails!(INVALID_POINTER, tcuda_copy_async(nowhere, block.at(0), 16, null_mut())).contains("'dst'"));
        assert!(fails!(INVALID_POINTER, tcuda_memset_async(nowhere, 0, 16, null_mut())).contains("where no memory is"));
    }
    assert_eq!(host, [1; 64]);
    // Pinned memory that ends before the copy does.
    let pinned = get!(null_mut(), out => tcuda::capi::pinned::tcuda_host_malloc_cached(out, 1000));
    let mut long = vec![0u8; 1 << 30];
    let long: *mut c_void = long.as_mut_ptr().cast();
    assert!(fails!(INVALID_POINTER, tcuda_copy(long, pinned, 1 << 30, false)).contains("'src'"));
    assert!(fails!(INVALID_POINTER, tcuda_copy(pinned, long, 1 << 30, false)).contains("'dst'"));
    ok!(tcuda::capi::pinned::tcuda_host_free_cached(pinned));
}

/// Beside a block there may be another one's memory, of which CUDA would say nothing.
fn what_reaches_past_a_block_is_refused() {
    let stream = Own::on(0);
    let (small, large) = (allocate(512, stream.0), allocate(3 << 20, stream.0));
    let pin = |size| get!(null_mut(), out => tcuda::capi::pinned::tcuda_host_malloc_cached(out, size));
    let (pinned, host, beside) = (pin(4 << 20), pin(4096), pin(4096));
    for (block, size) in [(small, 512), (large, 3 << 20), (host, 4096)] {
        let there = |at: usize| block.wrapping_byte_add(at);
        let says = |message: String, name: &str, at: usize, beyond: usize| {
            let bytes = size - at + beyond;
            let words = [
                format!("'{name}': {bytes} bytes from {:#x}", there(at) as usize),
                format!("{beyond} bytes past the end"),
                format!("{size} bytes from {:#x}", block as usize),
            ];
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        };
        for (at, beyond) in [(0, 1), (100, 1), (size - 1, 99)] {
            let bytes = size - at + beyond;
            says(fails!(INVALID_POINTER, tcuda_copy(there(at), pinned, bytes, false)), "dst", at, beyond);
            says(fails!(INVALID_POINTER, tcuda_copy(pinned, there(at), bytes, true)), "src", at, beyond);
            says(fails!(INVALID_POINTER, tcuda_copy_async(there(at), pinned, bytes, stream.0)), "dst", at, beyond);
            says(fails!(INVALID_POINTER, tcuda_copy_async(pinned, there(at), bytes, stream.0)), "src", at, beyond);
            says(fails!(INVALID_POINTER, tcuda_memset_async(there(at), 0, bytes, stream.0)), "dst", at, beyond);
            ok!(tcuda_copy_async(there(at), pinned, size - at, stream.0));
            ok!(tcuda_memset_async(there(at), 0, size - at, stream.0));
        }
    }
    ok!(tcuda_stream_synchronize(stream.0));
    [pinned, host, beside].into_iter().for_each(|block| ok!(tcuda_host_free_cached(block)));
    free(small);
    free(large);
}

fn what_cuda_refuses_is_named() {
    // Not tcuda's own, whose ends it knows.
    let runtime = tcuda::runtime::runtime().unwrap();
    let foreign = || runtime.malloc(512).unwrap() as *mut c_void;
    let block = foreign();
    let host = vec![0u8; 1 << 30];
    // So near there may be other memory of the device.
    let status = unsafe { tcuda_copy(block, host.as_ptr().cast(), 1 << 30, false) };
    let message = message();
    assert!([TCUDA_ERROR_INVALID_POINTER, TCUDA_ERROR_INVALID_ARGUMENT].contains(&status), "{status:?}: {message}");
    let ends = [format!("{:#x} (host memory)", host.as_ptr() as usize), format!("{:#x} (memory of device 0)", block as usize)];
    assert!(message.contains("1073741824 bytes") && ends.iter().all(|end| message.contains(end)), "{message}");
    let long = 1usize << 40;
    let last = format!("ends at {:#x}, where no memory of device 0 is", block as usize + long - 1);
    let message = fails!(INVALID_POINTER, tcuda_memset_async(block, 0, long, null_mut()));
    assert!(message.contains(&format!("{long} bytes from {:#x}", block as usize)) && message.contains(&last), "{message}");
    let other = foreign();
    let message = fails!(INVALID_POINTER, tcuda_copy_async(block, other, long, null_mut()));
    assert!(message.contains(&format!("Copy of {long} bytes")) && message.contains("where no memory of device 0 is"), "{message}");
    let message = fails!(INVALID_POINTER, tcuda_copy_async(other, block, long, null_mut()));
    assert!(message.contains(&last), "{message}");
    if device_count() > 1 {
        let message = fails!(INVALID_ARGUMENT, tcuda_memset_async(block, 0, 16, Own::on(1).0));
        assert!(message.contains("The stream belongs to device 1, what it is to work on to device 0"), "{message}");
    }
    [block, other].into_iter().for_each(|block| runtime.free(block as usize).unwrap());
}

/// CUDA leaves open what comes of them. A range onto itself is as it was.
fn ranges_that_overlap_on_a_device_are_refused() {
    let stream = Own::on(0);
    let block = Memory::device(0, 256, stream.0);
    let given = pattern(256, 1);
    synchronize_all();
    block.write(&given);
    for (to, from) in [(8, 0), (0, 8), (31, 0), (0, 31)] {
        let (to, from) = (block.at(to), block.at(from));
        let said = [
            fails!(INVALID_ARGUMENT, tcuda_copy_async(to, from, 32, stream.0)),
            fails!(INVALID_ARGUMENT, tcuda_copy(to, from, 32, true)),
            fails!(INVALID_ARGUMENT, tcuda_copy(to, from, 32, false)),
        ];
        for said in said {
            let words = [format!("from {from:?} "), format!("to {to:?} "), "in both ranges".into()];
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }
    ok!(tcuda_copy_async(block.at(0), block.at(0), 256, stream.0));
    ok!(tcuda_copy(block.at(0), block.at(0), 256, false));
    synchronize_all();
    assert_eq!(block.read(256), given);
    // Side by side.
    ok!(tcuda_copy_async(block.at(32), block.at(0), 32, stream.0));
    ok!(tcuda_stream_synchronize(stream.0));
    assert_eq!(block.read(64), [&given[..32], &given[..32]].concat());
}

/// Makes streams current for the length of a test.
struct Current;

impl Current {
    fn set(streams: &[&Own]) -> Current {
        for stream in streams {
            ok!(tcuda_set_stream(stream.0));
        }
        Current
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        for device in (0..device_count()).rev() {
            ok!(tcuda_set_stream(default_of(device)));
        }
    }
}

/// A copy comes after what both current streams have got before, and the destination's stream waits for it.
fn copies_between_devices_are_ordered_both_ways() {
    let last = device_count() - 1;
    let (source, other) = (Own::on(0), Own::on(last));
    // With a single device there is only one current stream.
    let target = if last > 0 { &other } else { &source };
    let _current = Current::set(&[&source, target]);
    let size = 100_000;
    for held in [&source, target] {
        let (from, to) = (Memory::device(0, size, source.0), Memory::device(last, size, target.0));
        let out = Memory::pinned(size);
        synchronize_all();
        let gate = Gate::on(held.0);
        // If the copy did not wait for the source's stream it would find other bytes; if not for the destination's, 2 would come last.
        ok!(tcuda_memset_async(from.at(0), 1, size, source.0));
        ok!(tcuda_memset_async(to.at(0), 2, size, target.0));
        ok!(tcuda_copy(to.at(0), from.at(0), size, true));
        ok!(tcuda_memset_async(from.at(0), 3, size, source.0));
        ok!(tcuda_copy_async(out.at(0), to.at(0), size, target.0));
        gate.open();
        ok!(tcuda_stream_synchronize(target.0));
        assert!(out.read(size).iter().all(|byte| *byte == 1));
        ok!(tcuda_stream_synchronize(source.0));
    }
}

/// A block that is freed while another stream copies out of it or into it is not handed out before that is done.
fn blocks_in_use_are_not_reused_early() {
    let (owner, user) = (Own::on(0), Own::on(0));
    let size = 40 << 20;
    let out = Memory::pinned(size);
    let block = Memory::device(0, size, owner.0);
    let address = block.at(0);
    ok!(tcuda_memset_async(address, 1, size, owner.0));
    ok!(tcuda_stream_synchronize(owner.0));
    let gate = Gate::on(user.0);
    ok!(tcuda_copy_async(out.at(0), address, size, user.0));
    drop(block);
    let next = Memory::device(0, size, owner.0);
    assert_ne!(next.at(0), address, "the block was handed out while a copy from it was waiting");
    ok!(tcuda_memset_async(next.at(0), 2, size, owner.0));
    ok!(tcuda_stream_synchronize(owner.0));
    gate.open();
    ok!(tcuda_stream_synchronize(user.0));
    assert!(out.read(size).iter().all(|byte| *byte == 1));
}

/// The device that was current stays so, whatever memory is copied.
fn the_current_device_stays() {
    let last = device_count() - 1;
    let block = Memory::device(last, 100, null_mut());
    ok!(tcuda_set_device(0));
    block.write(&pattern(100, 1));
    ok!(tcuda_memset_async(block.at(0), 7, 100, null_mut()));
    assert_eq!(block.read(100), vec![7; 100]);
    let mut current = -1;
    ok!(tcuda_current_device(&mut current));
    assert_eq!(current, 0);
}

/// Host to host needs no device and may overlap.
fn host_to_host_moves() {
    let mut bytes = pattern(100, 0);
    let expected: Vec<u8> = [&bytes[..10], &bytes[..80], &bytes[90..]].concat();
    ok!(tcuda_copy(bytes.as_mut_ptr().add(10).cast(), bytes.as_ptr().cast(), 80, true));
    assert_eq!(bytes, expected);
}

/// A wait is refused where another thread captures in the global mode, and ends that capture: the memory is the program's again all the same.
fn a_copy_that_may_not_wait_is_over_when_it_says_so() {
    const SIZE: usize = 1 << 16;
    let (stream, apart) = (Own::on(0), Own::on(0));
    let (block, host) = (allocate(SIZE, stream.0), pinned(SIZE));
    let graph = G::new();
    graph.begin(apart.0);
    let gate = Gate::on(stream.0);
    let [from, to, on] = [block as usize, host as usize, stream.0 as usize];
    let copies = || {
        ok!(tcuda_set_stream(handle(on)));
        let opener = gate.open_later();
        fails!(CAPTURE, tcuda_copy(to as *mut c_void, from as *const c_void, SIZE, false));
        assert!(gate.was_passed());
        opener.join().unwrap();
    };
    std::thread::scope(|scope| scope.spawn(copies).join().unwrap());
    fails!(CAPTURE, tcuda_graph_capture_end(graph.0));
    ok!(tcuda_host_free_cached(host.cast()));
    free(block);
}
