//! Memory and events of two processes.

use crate::init::in_child;
use crate::ipc_other::{Other, bytes, hex, stats};
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_void;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tcuda::base::status::tcuda_status_t::*;
use tcuda::capi::copy::*;
use tcuda::capi::event::*;
use tcuda::capi::graph::*;
use tcuda::capi::init::*;
use tcuda::capi::ipc::*;
use tcuda::capi::memory::*;
use tcuda::capi::plugin::*;
use tcuda::capi::pool::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;

tests![
    memory_is_seen_by_both,
    a_part_of_a_block,
    what_is_freed_is_kept_for_others,
    what_is_kept_is_free_when_the_last_is_done,
    a_consumer_that_is_killed_loses_nothing,
    a_consumer_whose_child_lives_on,
    a_producer_that_ends_is_told,
    bytes_that_are_no_handle,
    handles_that_are_stale,
    imports_that_are_owed,
    the_same_export_several_times,
    an_export_of_ones_own,
    what_others_wait_for_comes_first,
    what_is_past_keeps_no_marks,
    events_of_two_processes,
    threads_take_and_give_back,
    threads_that_come_together,
    memory_of_many_pages: [VirtualMemory],
    what_cannot_be_exported,
    what_cannot_be_imported,
    captures_refuse_it,
    a_pool_is_not_paused_under_others: [VirtualMemory],
    a_segment_of_its_own,
    a_segment_that_lies_in_an_arena,
    the_end_of_tcuda_on_either_side,
    peers_reach_what_is_imported: [TwoDevices],
    in_plain_segments,
];

pub const MIB: usize = 1 << 20;
pub const NO_HANDLE: tcuda_ipc_handle_t = tcuda_ipc_handle_t { bytes: [0; 64] };

pub fn export(ptr: *mut c_void, size: usize, keep_for: u32, stream: tcuda_stream_t) -> tcuda_ipc_handle_t {
    get!(NO_HANDLE, out => tcuda_ipc_export(out, ptr, size, keep_for, stream))
}

pub fn import(handle: &tcuda_ipc_handle_t, stream: tcuda_stream_t) -> *mut c_void {
    get!(null_mut(), out => tcuda_ipc_import(out, null_mut(), null_mut(), handle, stream))
}

/// A block whose bytes are all the same.
pub fn filled(size: usize, value: i32, stream: tcuda_stream_t) -> *mut c_void {
    let block = allocate(size, stream);
    ok!(tcuda_memset_async(block, value, size, stream));
    block
}

pub fn value(block: *mut c_void, size: usize, stream: tcuda_stream_t) -> i32 {
    let all = bytes_of(block, size, stream);
    if all.iter().all(|byte| *byte == all[0]) { i32::from(all[0]) } else { -1 }
}

/// Nothing is exported, imported or in use.
pub fn nothing_is_left() {
    ok!(tcuda_ipc_collect());
    let now = stats();
    assert_eq!((now.exported, now.exported_bytes, now.kept, now.kept_bytes), (0, 0, 0, 0));
    assert_eq!((now.taken, now.consumers, now.imported, now.imported_bytes), (0, 0, 0, 0));
    empty_caches();
}

fn memory_is_seen_by_both() {
    let stream = Own::on(0);
    let mut other = Other::new();
    for size in [1000, MIB, 3 * MIB, 21 * MIB] {
        let block = filled(size, 7, stream.0);
        let handle = export(block, size, 0, stream.0);
        let answer = other.did(&format!("import {}", hex(&handle.bytes)));
        let [there, bytes, device] = answer.split(' ').collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((bytes, device), (size.to_string().as_str(), "0"));
        assert_eq!(other.did(&format!("value {there} {size}")), "7");
        other.did(&format!("fill {there} {size} 9"));
        let now = stats();
        assert_eq!((now.exported, now.exported_bytes, now.kept, now.taken, now.consumers), (1, size as u64, 0, 1, 1));
        other.did(&format!("close {there}"));
        assert_eq!(value(block, size, stream.0), 9);
        free(block);
        nothing_is_left();
    }
    other.end();
}

fn a_part_of_a_block() {
    let stream = Own::on(0);
    let mut other = Other::new();
    for size in [5000, 5 * MIB] {
        let block = filled(size, 1, stream.0);
        let part = (block as usize + 513) as *mut c_void;
        ok!(tcuda_memset_async(part, 2, size - 1000, stream.0));
        let handle = export(part, size - 1000, 0, stream.0);
        let there = other.import(&handle);
        assert_eq!(other.did(&format!("value {there} {}", size - 1000)), "2");
        other.did(&format!("fill {there} {} 3", size - 1000));
        other.did(&format!("close {there}"));
        assert_eq!(value(part, size - 1000, stream.0), 3);
        assert_eq!((value(block, 513, stream.0), value((part as usize + size - 1000) as *mut c_void, 487, stream.0)), (1, 1));
        free(block);
    }
    other.end();
    nothing_is_left();
}

fn what_is_freed_is_kept_for_others() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let (size, user) = (6 * MIB, Own::on(0));
    let block = filled(size, 5, stream.0);
    let handle = export(block, size, 0, stream.0);
    let there = other.import(&handle);
    ok!(tcuda_record_stream(block, user.0));
    free(block);
    fails!(INVALID_POINTER, tcuda_free_cached(block));
    fails!(INVALID_POINTER, tcuda_ipc_export(&mut NO_HANDLE.clone(), block, 1, 0, stream.0));
    assert_eq!((stats().kept, stats().kept_bytes), (1, size as u64));
    assert_eq!((stat(0, "allocated_bytes.all.current"), stat(0, "active_bytes.all.current")), (0, size as i64));
    // It is not reused, given back or written over.
    let next = filled(size, 6, stream.0);
    assert_ne!(next, block);
    ok!(tcuda_ipc_collect());
    ok!(tcuda_empty_cache(0));
    assert_eq!(other.did(&format!("value {there} {size}")), "5");
    assert_eq!(stat(0, "active_bytes.all.current"), 2 * size as i64);
    other.did(&format!("close {there}"));
    ok!(tcuda_ipc_collect());
    assert_eq!((stats().exported, stat(0, "active_bytes.all.current")), (0, size as i64));
    assert_eq!(allocate(size, stream.0), block);
    [block, next].into_iter().for_each(free);
    other.end();
    nothing_is_left();
}

/// Beside a stream that uses it, whoever ends first; and each of several blocks by itself.
fn what_is_kept_is_free_when_the_last_is_done() {
    let (stream, user) = (Own::on(0), Own::on(0));
    let size = 6 * MIB;
    let active = || stat(0, "active_bytes.all.current") as usize;
    for closes_first in [false, true] {
        let block = filled(size, 5, stream.0);
        let here = import(&export(block, size, 0, stream.0), stream.0);
        ok!(tcuda_record_stream(block, user.0));
        let gate = Gate::on(user.0);
        free(block);
        let close = || ok!(tcuda_ipc_close(here, stream.0));
        let opens = || {
            drop(gate);
            ok!(tcuda_stream_synchronize(user.0));
        };
        assert_eq!(active(), size);
        if closes_first {
            close();
            assert_eq!(active(), size);
            opens();
        } else {
            opens();
            assert_eq!(active(), size);
            close();
        }
        assert_eq!(active(), 0);
    }
    let blocks: Vec<*mut c_void> = (0..20).map(|value| filled(MIB, value, stream.0)).collect();
    let [first, second] =
        [0, 1].map(|_| -> Vec<*mut c_void> { blocks.iter().map(|block| import(&export(*block, MIB, 0, stream.0), stream.0)).collect() });
    blocks.iter().for_each(|block| free(*block));
    first.into_iter().for_each(|here| ok!(tcuda_ipc_close(here, stream.0)));
    assert_eq!(stats().kept, 20);
    for (value, here) in second.into_iter().enumerate().rev() {
        assert_eq!(crate::ipc::value(here, MIB, stream.0), value as i32);
        assert_eq!((active(), stats().kept as usize), ((value + 1) * MIB, value + 1));
        ok!(tcuda_ipc_close(here, stream.0));
    }
    assert_eq!(active(), 0);
    nothing_is_left();
}

fn a_consumer_that_is_killed_loses_nothing() {
    let stream = Own::on(0);
    let size = 4 * MIB;
    let block = filled(size, 5, stream.0);
    let handle = export(block, size, 1, stream.0);
    let (mut one, mut two) = (Other::new(), Other::new());
    one.import(&handle);
    let there = two.import(&handle);
    two.import(&handle);
    free(block);
    assert_eq!((stats().taken, stats().consumers), (3, 2));
    two.kill();
    ok!(tcuda_ipc_collect());
    assert_eq!((stats().kept, stats().taken, stats().consumers), (1, 1, 1));
    one.kill();
    nothing_is_left();
    assert!(!there.is_empty());
}

fn a_consumer_whose_child_lives_on() {
    let stream = Own::on(0);
    let block = filled(MIB, 5, stream.0);
    let handle = export(block, MIB, 0, stream.0);
    let mut other = Other::new();
    other.import(&handle);
    let orphan: i32 = other.did("fork").parse().unwrap();
    free(block);
    other.kill();
    nothing_is_left();
    assert_eq!(unsafe { libc::kill(orphan, libc::SIGKILL) }, 0);
}

fn a_producer_that_ends_is_told() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let handle = other.export(2 * MIB, 8, 0);
    let orphan: i32 = other.did("fork").parse().unwrap();
    let here = import(&handle, stream.0);
    assert_eq!(value(here, 2 * MIB, stream.0), 8);
    assert!(get!(false, out => tcuda_ipc_producer_is_alive(out, here)));
    other.kill();
    assert!(!get!(true, out => tcuda_ipc_producer_is_alive(out, here)));
    let said = fails!(INVALID_HANDLE, tcuda_ipc_import(&mut null_mut(), null_mut(), null_mut(), &handle, stream.0));
    assert!(said.contains("ended"), "{said}");
    ok!(tcuda_ipc_close(here, stream.0));
    fails!(INVALID_POINTER, tcuda_ipc_producer_is_alive(&mut true, here));
    assert_eq!(unsafe { libc::kill(orphan, libc::SIGKILL) }, 0);
    nothing_is_left();
}

fn refused(other: &mut Other, handle: &[u8; 64]) -> String {
    other.ask(&format!("import {}", hex(handle)))
}

fn bytes_that_are_no_handle() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let block = filled(3000, 4, stream.0);
    let handle = export(block, 3000, 0, stream.0);
    let mut wrong = vec![[0; 64], [0xff; 64]];
    for at in [0, 7, 8, 23, 24, 39, 41, 50, 63] {
        let mut changed = handle.bytes;
        changed[at] ^= 0x40;
        wrong.push(changed);
    }
    // The last byte alone is 0 now and then.
    for length in [1, 8, 40, 60] {
        let mut cut = handle.bytes;
        cut[length..].fill(0);
        wrong.push(cut);
    }
    for bytes in &wrong {
        let said = refused(&mut other, bytes);
        assert!(said.starts_with("TCUDA_ERROR_INVALID_ARGUMENT") && said.contains("64"), "{said}");
    }
    // Whole, but made up: a wrong secret, a producer that is not there.
    let mut blob = tcuda::ipc::Blob::read(&handle.bytes).unwrap();
    assert_eq!(blob.process, std::process::id() as i32);
    blob.export[3] ^= 1;
    assert!(refused(&mut other, &blob.bytes()).starts_with("TCUDA_ERROR_INVALID_HANDLE"));
    fails!(
        INVALID_HANDLE,
        tcuda_ipc_import(&mut null_mut(), null_mut(), null_mut(), &tcuda_ipc_handle_t { bytes: blob.bytes() }, stream.0)
    );
    blob.producer[3] ^= 1;
    assert!(refused(&mut other, &blob.bytes()).starts_with("TCUDA_ERROR_INVALID_HANDLE"));
    assert_eq!(stats().taken, 0);
    // The right one is as good as before.
    let there = other.import(&handle);
    assert_eq!(other.did(&format!("value {there} 3000")), "4");
    other.end();
    free(block);
    nothing_is_left();
}

fn handles_that_are_stale() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let keeps = filled(MIB, 1, stream.0);
    let kept = export(keeps, MIB, 0, stream.0);
    let block = filled(2 * MIB, 2, stream.0);
    let handle = export(block, 2 * MIB, 0, stream.0);
    free(block);
    assert!(refused(&mut other, &handle.bytes).starts_with("TCUDA_ERROR_INVALID_HANDLE"));
    fails!(INVALID_HANDLE, tcuda_ipc_withdraw(&handle));
    // The same address, and another export: the old handle stays what it is.
    let again = filled(2 * MIB, 3, stream.0);
    assert_eq!(again, block);
    let new = export(again, 2 * MIB, 0, stream.0);
    assert!(refused(&mut other, &handle.bytes).starts_with("TCUDA_ERROR_INVALID_HANDLE"));
    let there = other.import(&new);
    ok!(tcuda_ipc_withdraw(&new));
    assert!(refused(&mut other, &new.bytes).starts_with("TCUDA_ERROR_INVALID_HANDLE"));
    fails!(INVALID_HANDLE, tcuda_ipc_withdraw(&new));
    assert_eq!(other.did(&format!("value {there} {}", 2 * MIB)), "3");
    assert_eq!(stats().kept, 1);
    other.did(&format!("close {there}"));
    let said = other.ask(&format!("close {there}"));
    assert!(said.starts_with("TCUDA_ERROR_INVALID_POINTER"), "{said}");
    ok!(tcuda_ipc_withdraw(&kept));
    fails!(INVALID_ARGUMENT, tcuda_ipc_withdraw(&NO_HANDLE));
    [keeps, again].into_iter().for_each(free);
    other.end();
    nothing_is_left();
}

fn imports_that_are_owed() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let block = filled(MIB, 6, stream.0);
    let handle = export(block, MIB, 2, stream.0);
    free(block);
    ok!(tcuda_ipc_collect());
    assert_eq!((stats().kept, stats().taken), (1, 0));
    let there = other.import(&handle);
    other.did(&format!("close {there}"));
    ok!(tcuda_ipc_collect());
    assert_eq!(stats().kept, 1);
    let there = other.import(&handle);
    assert_eq!(other.did(&format!("value {there} {MIB}")), "6");
    assert!(refused(&mut other, &handle.bytes).starts_with("TCUDA_ERROR_INVALID_HANDLE"));
    other.did(&format!("close {there}"));
    // What nobody ever comes for is withdrawn.
    let lost = filled(MIB, 1, stream.0);
    let handle = export(lost, MIB, u32::MAX, stream.0);
    free(lost);
    ok!(tcuda_ipc_withdraw(&handle));
    other.end();
    nothing_is_left();
}

fn the_same_export_several_times() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let block = filled(5 * MIB, 6, stream.0);
    let handle = export(block, 5 * MIB, 0, stream.0);
    let there = other.import(&handle);
    assert_eq!(other.import(&handle), there);
    // Another export of the same, and of a part.
    let (second, part) = (export(block, 5 * MIB, 0, stream.0), export((block as usize + MIB) as *mut c_void, MIB, 0, stream.0));
    let (there_too, inside) = (other.import(&second), other.import(&part));
    other.did(&format!("fill {inside} {MIB} 7"));
    assert_eq!(other.did(&format!("value {inside} {MIB}")), "7");
    assert_eq!(other.did(&format!("value {there_too} {MIB}")), "6");
    assert_eq!(stats().taken, 4);
    for (at, left) in [(&there, 3), (&inside, 2), (&there, 1)] {
        other.did(&format!("close {at}"));
        ok!(tcuda_ipc_collect());
        assert_eq!(stats().taken, left);
        assert_eq!(other.did(&format!("value {there_too} {MIB}")), "6");
    }
    other.did(&format!("close {there_too}"));
    assert!(other.ask(&format!("close {there_too}")).starts_with("TCUDA_ERROR_INVALID_POINTER"));
    free(block);
    other.end();
    nothing_is_left();
}

fn an_export_of_ones_own() {
    let stream = Own::on(0);
    let block = filled(MIB, 6, stream.0);
    let handle = export((block as usize + 100) as *mut c_void, 1000, 0, stream.0);
    let (mut size, mut device) = (0, -1);
    let here = get!(null_mut(), out => tcuda_ipc_import(out, &mut size, &mut device, &handle, stream.0));
    assert_eq!((here as usize, size, device), (block as usize + 100, 1000, 0));
    assert!(get!(false, out => tcuda_ipc_producer_is_alive(out, here)));
    free(block);
    assert_eq!((stats().kept, stats().imported, stats().imported_bytes), (1, 1, 1000));
    assert_eq!(value(here, 1000, stream.0), 6);
    ok!(tcuda_ipc_close(here, stream.0));
    fails!(INVALID_POINTER, tcuda_ipc_close(here, stream.0));
    fails!(INVALID_HANDLE, tcuda_ipc_import(&mut null_mut(), null_mut(), null_mut(), &handle, stream.0));
    // What came before the export comes first here too.
    let other = Own::on(0);
    let block = filled(MIB, 1, stream.0);
    let gate = Gate::on(stream.0);
    ok!(tcuda_memset_async(block, 2, MIB, stream.0));
    let here = import(&export(block, MIB, 0, stream.0), other.0);
    let opener = gate.open_later();
    assert_eq!(value(here, MIB, other.0), 2);
    opener.join().unwrap();
    ok!(tcuda_ipc_close(here, other.0));
    free(block);
    nothing_is_left();
}

fn what_others_wait_for_comes_first() {
    let stream = Own::on(0);
    let mut other = Other::new();
    // Also where the work is on a stream that the exporting one comes behind.
    for (works, exports) in [(null_mut(), handle(PER_THREAD)), (null_mut(), null_mut()), (stream.0, stream.0)] {
        let block = filled(2 * MIB, 1, stream.0);
        ok!(tcuda_stream_synchronize(stream.0));
        let gate = Gate::on(works);
        ok!(tcuda_memset_async(block, 2, 2 * MIB, works));
        // Neither the export nor the import waits.
        let handle = export(block, 2 * MIB, 0, exports);
        let there = other.import(&handle);
        other.tell(&format!("value {there} {}", 2 * MIB));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!gate.was_passed());
        gate.open();
        assert_eq!(other.answer(), "ok 2");
        other.did(&format!("close {there}"));
        free(block);
    }
    // The other way, with a producer that ends before the export is over.
    other.did("gate");
    let handle = other.export(MIB, 3, 1);
    let here = import(&handle, stream.0);
    assert!(!get!(true, out => tcuda_stream_query(stream.0, out)));
    other.did("open");
    assert_eq!(value(here, MIB, stream.0), 3);
    ok!(tcuda_ipc_close(here, stream.0));
    other.end();
    nothing_is_left();
}

/// Simulated events that others see are files of the process.
fn what_is_past_keeps_no_marks() {
    const TIMES: usize = 200;
    const HELD: usize = 50;
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let [stream, slow, other] = [(); 3].map(|()| Own::on(0));
    let [block, late] = [&stream, &slow].map(|fills| filled(MIB, 1, fills.0));
    let before = files();
    let handles: Vec<tcuda_ipc_handle_t> = (0..TIMES)
        .map(|_| {
            let gate = Gate::on(stream.0);
            let handle = export(block, MIB, 0, stream.0);
            gate.open();
            ok!(tcuda_stream_synchronize(stream.0));
            handle
        })
        .collect();
    // The sanitizer goes by all of them.
    if std::env::var_os("TCUDA_SANITIZER").is_none() {
        assert!(files() < before + TIMES / 2, "{before} files, and now {}", files());
    }
    for handle in [&handles[0], &handles[TIMES - 1]] {
        let here = import(handle, other.0);
        assert_eq!(value(here, MIB, other.0), 1);
        ok!(tcuda_ipc_close(here, other.0));
    }
    // What is not past holds up. One gate at a time: a driver may run host functions one after another.
    let gate = Gate::on(slow.0);
    ok!(tcuda_memset_async(late, 3, MIB, slow.0));
    let waits: Vec<tcuda_ipc_handle_t> = (0..HELD).map(|_| export(late, MIB, 0, slow.0)).collect();
    assert_eq!(stats().exported as usize, TIMES + HELD);
    let here = import(&waits[0], other.0);
    assert!(!get!(true, out => tcuda_stream_query(other.0, out)));
    gate.open();
    assert_eq!(value(here, MIB, other.0), 3);
    ok!(tcuda_ipc_close(here, other.0));
    [block, late].into_iter().for_each(free);
    nothing_is_left();
}

fn events_of_two_processes() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let event = get!(null_mut(), out => tcuda_event_create(out, 6));
    let mut handle = tcuda_ipc_event_handle_t { bytes: [0; 64] };
    ok!(tcuda_event_ipc_handle(&mut handle, event));
    other.did(&format!("open_event mine {}", hex(&handle.bytes)));
    assert_eq!(other.did("query mine"), "true");
    let gate = Gate::on(stream.0);
    ok!(tcuda_event_record(event, stream.0));
    assert_eq!(other.did("query mine"), "false");
    other.did("wait mine");
    gate.open();
    ok!(tcuda_stream_synchronize(stream.0));
    assert_eq!(other.did("query mine"), "true");
    other.did("destroy mine");
    ok!(tcuda_event_destroy(event));
    // Theirs, here.
    let handle = tcuda_ipc_event_handle_t { bytes: bytes(&other.did("event theirs")) };
    let theirs = get!(null_mut(), out => tcuda_event_from_ipc_handle(out, 0, &handle));
    other.did("gate");
    other.did("record theirs");
    assert!(!get!(true, out => tcuda_event_query(theirs, out)));
    ok!(tcuda_event_wait(theirs, stream.0));
    let diary = Diary::default();
    diary.write_on(stream.0, 1);
    assert!(diary.read().is_empty());
    other.did("open");
    ok!(tcuda_event_synchronize(theirs));
    ok!(tcuda_stream_synchronize(stream.0));
    assert_eq!(diary.read(), [1]);
    ok!(tcuda_event_destroy(theirs));
    fails!(INVALID_HANDLE, tcuda_event_query(theirs, &mut true));
    // What is none, and what is not for others.
    let plain = get!(null_mut(), out => tcuda_event_create(out, 2));
    let mut own = tcuda_ipc_event_handle_t { bytes: [7; 64] };
    fails!(INVALID_ARGUMENT, tcuda_event_ipc_handle(&mut own, plain));
    fails!(INVALID_ARGUMENT, tcuda_event_ipc_handle(null_mut(), plain));
    fails!(INVALID_HANDLE, tcuda_event_ipc_handle(&mut own, null_mut()));
    assert_eq!(own.bytes, [7; 64]);
    let mut none = null_mut();
    assert_ne!(unsafe { tcuda_event_from_ipc_handle(&mut none, 0, &own) }, tcuda::base::Status::TCUDA_SUCCESS);
    fails!(INVALID_DEVICE, tcuda_event_from_ipc_handle(&mut none, 9999, &handle));
    fails!(INVALID_ARGUMENT, tcuda_event_from_ipc_handle(&mut none, 0, null()));
    assert!(none.is_null());
    ok!(tcuda_event_destroy(plain));
    other.end();
}

fn threads_take_and_give_back() {
    let stream = Own::on(0);
    let mut others = [Other::new(), Other::new()];
    let block = filled(3 * MIB, 6, stream.0);
    let handle = export(block, 3 * MIB, 0, stream.0);
    others.iter_mut().for_each(|other| other.tell(&format!("threads {}", hex(&handle.bytes))));
    // Meanwhile blocks come and go here.
    for size in (1..40).map(|at| at * 9973) {
        let block = allocate(size, stream.0);
        let handle = export(block, size, 0, stream.0);
        let here = import(&handle, stream.0);
        free(block);
        ok!(tcuda_ipc_close(here, stream.0));
        ok!(tcuda_ipc_collect());
    }
    others.iter_mut().for_each(|other| assert_eq!(other.answer(), "ok"));
    // What they gave back is on its way.
    let start = std::time::Instant::now();
    while stats().taken != 0 && start.elapsed().as_secs() < 10 {
        ok!(tcuda_ipc_collect());
        std::thread::yield_now();
    }
    assert_eq!((stats().exported, stats().taken), (1, 0));
    free(block);
    others.into_iter().for_each(Other::end);
    nothing_is_left();
}

/// Each time the other process has nothing of this one at first: its threads all want a connection.
fn threads_that_come_together() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let block = filled(3 * MIB, 6, stream.0);
    let handle = export(block, 3 * MIB, 0, stream.0);
    assert_eq!(other.did(&format!("meet {} 100", hex(&handle.bytes))), "1");
    ok!(tcuda_ipc_collect());
    assert_eq!((stats().exported, stats().taken), (1, 0));
    free(block);
    other.end();
    nothing_is_left();
}

fn memory_of_many_pages() {
    let stream = Own::on(0);
    let mut other = Other::new();
    // Room that came in many pieces.
    let size = 160 * MIB;
    let pieces: Vec<_> = (0..80).map(|_| allocate(2 * MIB, stream.0)).collect();
    pieces.into_iter().for_each(free);
    let block = filled(size, 6, stream.0);
    ok!(tcuda_memset_async((block as usize + size - 10) as *mut c_void, 9, 10, stream.0));
    let handle = export(block, size, 0, stream.0);
    let there = other.import(&handle);
    assert_eq!(other.did(&format!("value {there} {}", size - 10)), "6");
    let end = usize::from_str_radix(&there, 16).unwrap() + size - 10;
    assert_eq!(other.did(&format!("value {end:x} 10")), "9");
    other.did(&format!("close {there}"));
    // Only the pages of the part.
    let part = export((block as usize + 100 * MIB) as *mut c_void, MIB, 0, stream.0);
    let there = other.import(&part);
    other.did(&format!("fill {there} {MIB} 3"));
    other.did(&format!("close {there}"));
    assert_eq!(value((block as usize + 100 * MIB) as *mut c_void, MIB, stream.0), 3);
    free(block);
    other.end();
    nothing_is_left();
}

fn what_cannot_be_exported() {
    let stream = Own::on(0);
    let block = allocate(10_000, stream.0);
    let mut handle = tcuda_ipc_handle_t { bytes: [5; 64] };
    let inside = |at: usize| (block as usize + at) as *const c_void;
    let said = fails!(INVALID_ARGUMENT, tcuda_ipc_export(&mut handle, block, 10_001, 0, stream.0));
    assert!(said.contains("10001") && said.contains("10000"), "{said}");
    fails!(INVALID_ARGUMENT, tcuda_ipc_export(&mut handle, inside(1), 10_000, 0, stream.0));
    fails!(INVALID_ARGUMENT, tcuda_ipc_export(&mut handle, inside(10_001), 1, 0, stream.0));
    fails!(INVALID_ARGUMENT, tcuda_ipc_export(&mut handle, block, usize::MAX, 0, stream.0));
    fails!(INVALID_ARGUMENT, tcuda_ipc_export(&mut handle, block, 0, 0, stream.0));
    fails!(INVALID_ARGUMENT, tcuda_ipc_export(&mut handle, null(), 1, 0, stream.0));
    fails!(INVALID_ARGUMENT, tcuda_ipc_export(null_mut(), block, 1, 0, stream.0));
    let here = 7u8;
    fails!(INVALID_POINTER, tcuda_ipc_export(&mut handle, (&raw const here).cast(), 1, 0, stream.0));
    if device_count() > 1 {
        let said = fails!(INVALID_ARGUMENT, tcuda_ipc_export(&mut handle, block, 1, 0, default_of(1)));
        assert!(said.contains("device 1") && said.contains("device 0"), "{said}");
    }
    fails!(INVALID_HANDLE, tcuda_ipc_export(&mut handle, block, 1, 0, self::handle(0x70)));
    assert_eq!(handle.bytes, [5; 64]);
    // What was imported is its producer's to export.
    let mut other = Other::new();
    let theirs = import(&other.export(5000, 1, 0), stream.0);
    let said = fails!(INVALID_POINTER, tcuda_ipc_export(&mut handle, (theirs as usize + 7) as *const c_void, 1, 0, stream.0));
    assert!(said.contains("imported"), "{said}");
    for address in [theirs, theirs.wrapping_byte_add(7)] {
        let said = fails!(INVALID_POINTER, tcuda_free_cached(address));
        assert!(said.contains("tcuda_ipc_close"), "{said}");
        let said = fails!(INVALID_POINTER, tcuda_record_stream(address, stream.0));
        assert!(said.contains("tcuda_ipc_close"), "{said}");
    }
    ok!(tcuda_ipc_close(theirs, stream.0));
    let said = fails!(INVALID_POINTER, tcuda_free_cached(theirs));
    assert!(!said.contains("tcuda_ipc_close"), "{said}");
    other.end();
    free(block);
    nothing_is_left();
}

fn handle(value: usize) -> tcuda_stream_t {
    value as tcuda_stream_t
}

fn what_cannot_be_imported() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let handle = other.export(5000, 1, 0);
    let (mut address, mut size, mut device) = (null_mut(), 77, -77);
    fails!(INVALID_ARGUMENT, tcuda_ipc_import(null_mut(), &mut size, &mut device, &handle, stream.0));
    fails!(INVALID_ARGUMENT, tcuda_ipc_import(&mut address, &mut size, &mut device, null(), stream.0));
    fails!(INVALID_HANDLE, tcuda_ipc_import(&mut address, &mut size, &mut device, &handle, self::handle(0x70)));
    assert_eq!((address, size, device), (null_mut(), 77, -77));
    fails!(INVALID_POINTER, tcuda_ipc_close(stream.0.cast(), stream.0));
    ok!(tcuda_ipc_close(null_mut(), stream.0));
    fails!(INVALID_ARGUMENT, tcuda_ipc_producer_is_alive(null_mut(), address));
    // A device that the consumer does not see.
    if device_count() > 1 {
        let block = filled(5000, 1, default_of(1));
        let handle = export(block, 5000, 0, default_of(1));
        let mut blind = Other::with(&[("CUDA_VISIBLE_DEVICES", "0")]);
        let said = refused(&mut blind, &handle.bytes);
        assert!(said.starts_with("TCUDA_ERROR_INVALID_DEVICE") && said.contains("CUDA_VISIBLE_DEVICES"), "{said}");
        // By another index.
        let mut turned = Other::with(&[("CUDA_VISIBLE_DEVICES", "1")]);
        let answer = turned.did(&format!("import {}", hex(&handle.bytes)));
        assert!(answer.ends_with(" 5000 0"), "{answer}");
        let there = answer.split(' ').next().unwrap();
        assert_eq!(turned.did(&format!("value {there} 5000")), "1");
        turned.did(&format!("close {there}"));
        [blind, turned].into_iter().for_each(Other::end);
        free(block);
    }
    other.end();
    nothing_is_left();
}

fn captures_refuse_it() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let (block, theirs) = (filled(5000, 1, stream.0), other.export(5000, 2, 0));
    let here = import(&theirs, stream.0);
    ok!(tcuda_stream_synchronize(stream.0));
    let graph = get!(null_mut(), out => tcuda_graph_create(out, 0));
    ok!(tcuda_graph_capture_begin(graph, stream.0, tcuda_pool_id_t { first: 0, second: 0 }, 0));
    let mut handle = NO_HANDLE;
    fails!(CAPTURE, tcuda_ipc_export(&mut handle, block, 1, 0, stream.0));
    fails!(CAPTURE, tcuda_ipc_import(&mut null_mut(), null_mut(), null_mut(), &theirs, stream.0));
    fails!(CAPTURE, tcuda_ipc_close(here, stream.0));
    // On another stream it goes on, and leaves the capture alone.
    let aside = Own::on(0);
    let there = other.import(&export(block, 5000, 0, aside.0));
    let again = import(&theirs, aside.0);
    ok!(tcuda_ipc_close(again, aside.0));
    other.did(&format!("close {there}"));
    ok!(tcuda_memset_async(block, 3, 5000, stream.0));
    ok!(tcuda_graph_capture_end(graph));
    ok!(tcuda_graph_replay(graph, stream.0));
    assert_eq!(value(block, 5000, stream.0), 3);
    ok!(tcuda_graph_destroy(graph));
    ok!(tcuda_ipc_close(here, stream.0));
    free(block);
    other.end();
    nothing_is_left();
}

fn a_pool_is_not_paused_under_others() {
    let stream = Own::on(0);
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, 0, null()));
    let block = get!(null_mut(), out => tcuda_mem_pool_malloc(out, 3 * MIB, stream.0, pool));
    let handle = export(block, 3 * MIB, 0, stream.0);
    let said = fails!(INVALID_STATE, tcuda_mem_pool_pause(pool, &mut 0, 0));
    assert!(said.contains("tcuda_ipc_export"), "{said}");
    ok!(tcuda_ipc_withdraw(&handle));
    get!(0, out => tcuda_mem_pool_pause(pool, out, 0));
    fails!(INVALID_STATE, tcuda_ipc_export(&mut NO_HANDLE.clone(), block, 1, 0, stream.0));
    ok!(tcuda_mem_pool_resume(pool));
    // Nor exported while a pause waits for the device: an export that came first has kept it from beginning.
    let (gate, exporter) = (Gate::on(stream.0), Own::on(0));
    let pausing = {
        let pool = pool as usize;
        std::thread::spawn(move || {
            let mut given = 0;
            loop {
                match unsafe { tcuda_mem_pool_pause(pool as tcuda_mem_pool_t, &mut given, 0) } {
                    TCUDA_SUCCESS => return given,
                    status => assert_eq!(status, TCUDA_ERROR_INVALID_STATE, "{}", message()),
                }
            }
        })
    };
    let mut handle = NO_HANDLE;
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let status = loop {
        let status = unsafe { tcuda_ipc_export(&mut handle, block, 1, 0, exporter.0) };
        if status != TCUDA_SUCCESS || pausing.is_finished() || std::time::Instant::now() > until {
            break status;
        }
        ok!(tcuda_ipc_withdraw(&handle));
    };
    assert_eq!(status, TCUDA_ERROR_INVALID_STATE, "{}", message());
    gate.open();
    assert!(pausing.join().unwrap() >= 3 * MIB);
    ok!(tcuda_mem_pool_resume(pool));
    // The pool may go before its block.
    let mut other = Other::new();
    let there = other.import(&export(block, 3 * MIB, 0, stream.0));
    free(block);
    ok!(tcuda_mem_pool_destroy(pool));
    other.did(&format!("fill {there} 100 1"));
    other.did(&format!("close {there}"));
    other.end();
    nothing_is_left();
}

fn a_segment_of_its_own() {
    let stream = Own::on(0);
    let options =
        tcuda_mem_pool_options_t { struct_size: size_of::<tcuda_mem_pool_options_t>(), allocator: null_mut(), use_on_oom: 0, no_split: 1 };
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, 0, &options));
    let block = get!(null_mut(), out => tcuda_mem_pool_malloc(out, 5000, stream.0, pool));
    ok!(tcuda_memset_async(block, 4, 5000, stream.0));
    let mut other = Other::new();
    let there = other.import(&export(block, 5000, 0, stream.0));
    assert_eq!(other.did(&format!("value {there} 5000")), "4");
    other.did(&format!("close {there}"));
    free(block);
    ok!(tcuda_mem_pool_destroy(pool));
    other.end();
    nothing_is_left();
}

/// An allocator that gives parts of what the driver gave it: the whole is what the driver opens.
fn a_segment_that_lies_in_an_arena() {
    struct Arena {
        base: usize,
        given: AtomicUsize,
    }
    unsafe extern "C" fn give(size: usize, _device: i32, _stream: tcuda_stream_t, data: *mut c_void) -> *mut c_void {
        let arena = unsafe { &*data.cast::<Arena>() };
        (arena.base + arena.given.fetch_add(size, SeqCst)) as *mut c_void
    }
    unsafe extern "C" fn take(_ptr: *mut c_void, _size: usize, _device: i32, _stream: tcuda_stream_t, _data: *mut c_void) {}
    let stream = Own::on(0);
    let runtime = tcuda::runtime::runtime().unwrap();
    // Not at its start either.
    let arena = Arena { base: runtime.malloc(64 * MIB).unwrap(), given: AtomicUsize::new(4 * MIB) };
    let data = (&raw const arena).cast_mut().cast();
    let allocator = get!(null_mut(), out => tcuda_pluggable_allocator_create(out, Some(give), Some(take), data));
    let options = tcuda_mem_pool_options_t { struct_size: size_of::<tcuda_mem_pool_options_t>(), allocator, use_on_oom: 0, no_split: 0 };
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, 0, &options));
    let mut other = Other::new();
    let blocks = [1, 2].map(|value| {
        let block = get!(null_mut(), out => tcuda_mem_pool_malloc(out, 22 * MIB, stream.0, pool));
        ok!(tcuda_memset_async(block, value, 22 * MIB, stream.0));
        block
    });
    let there = blocks.map(|block| other.import(&export((block as usize + MIB) as *mut c_void, 21 * MIB, 0, stream.0)));
    for (there, value) in there.iter().zip(["1", "2"]) {
        assert_eq!(other.did(&format!("value {there} {}", 21 * MIB)), value);
    }
    let [first, second] = &there;
    other.did(&format!("close {first}"));
    other.did(&format!("fill {second} {} 3", 21 * MIB));
    other.did(&format!("close {second}"));
    assert_eq!(blocks.map(|block| value((block as usize + MIB) as *mut c_void, 21 * MIB, stream.0)), [1, 3]);
    blocks.into_iter().for_each(free);
    other.end();
    ok!(tcuda_ipc_collect());
    ok!(tcuda_mem_pool_destroy(pool));
    nothing_is_left();
    ok!(tcuda_pluggable_allocator_destroy(allocator));
    runtime.free(arena.base).unwrap();
}

fn the_end_of_tcuda_on_either_side() {
    in_child("ipc_end", &[]);
}

pub fn scene_end() {
    for _ in 0..2 {
        let stream = create_on(0);
        let mut other = Other::new();
        let (block, kept) = (filled(MIB, 6, stream), filled(MIB, 7, stream));
        let (handle, theirs) = (export(block, MIB, 0, stream), other.export(MIB, 8, 0));
        let (there, here) = (other.import(&handle), import(&theirs, stream));
        other.import(&export(kept, MIB, 0, stream));
        free(kept);
        assert_eq!(value(here, MIB, stream), 8);
        // They give back what they have.
        ok!(tcuda_ipc_collect());
        assert_eq!((stats().taken, stats().kept), (2, 1));
        assert_eq!(other.did(&format!("alive {there}")), "true");
        ok!(tcuda_shutdown());
        assert_eq!(other.did(&format!("alive {there}")), "false");
        assert_eq!(other.did("collect"), "1");
        other.did(&format!("close {there}"));
        fails!(SHUT_DOWN, tcuda_ipc_collect());
        fails!(SHUT_DOWN, tcuda_ipc_import(&mut null_mut(), null_mut(), null_mut(), &theirs, stream));
        ok!(tcuda_ipc_close(here, stream));
        ok!(tcuda_init(null()));
        fails!(INVALID_POINTER, tcuda_ipc_close(here, NULL));
        nothing_is_left();
        other.did("free");
        assert_eq!(other.did("collect"), "0");
        // The other's end of tcuda, which its process outlives.
        let stream = create_on(0);
        let block = filled(MIB, 6, stream);
        other.import(&export(block, MIB, 0, stream));
        free(block);
        let here = import(&other.export(MIB, 1, 0), stream);
        other.did("shutdown");
        ok!(tcuda_ipc_collect());
        assert_eq!(stats().exported, 0);
        assert!(!get!(true, out => tcuda_ipc_producer_is_alive(out, here)));
        ok!(tcuda_ipc_close(here, stream));
        nothing_is_left();
        other.end();
        ok!(tcuda_shutdown());
        ok!(tcuda_init(null()));
    }
}

fn peers_reach_what_is_imported() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let before = import(&other.export(MIB, 1, 0), stream.0);
    let far = filled(MIB, 9, default_of(1));
    ok!(tcuda_copy_async(far, before, MIB, default_of(1)));
    let after = import(&other.export(MIB, 2, 0), stream.0);
    assert_eq!(value(far, MIB, default_of(1)), 1);
    ok!(tcuda_copy_async(far, after, MIB, default_of(1)));
    assert_eq!(value(far, MIB, default_of(1)), 2);
    for here in [before, after] {
        ok!(tcuda_ipc_close(here, stream.0));
    }
    free(far);
    other.end();
    nothing_is_left();
}

/// All of this once more where segments are cudaMalloc's.
fn in_plain_segments() {
    passes_in_plain_segments("ipc.");
}

pub fn passes_in_plain_segments(tests: &str) {
    const PLAIN: &str = "expandable_segments:False";
    if std::env::var("TCUDA_ALLOC_CONF").is_ok_and(|conf| conf == PLAIN) {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(tests).env("TCUDA_BACKEND", backend()).env("TCUDA_ALLOC_CONF", PLAIN);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // What failed first explains the rest.
    let first = said.find("panicked at").map_or(0, |at| said[..at].rfind('\n').unwrap_or(0));
    assert!(output.status.success() && said.contains(" 0 failed") && !said.contains(" 0 passed"), "{}", &said[first..]);
}
