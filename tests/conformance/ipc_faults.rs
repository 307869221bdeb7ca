//! Each call of the backend fails once, in turn, in a producer and in a consumer: a clean status, nothing is lost, and the next try works.

use crate::init::in_child;
use crate::ipc_other::{Other, bytes, hex, stats};
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tcuda::base::Status;
use tcuda::capi::copy::*;
use tcuda::capi::event::*;
use tcuda::capi::init::*;
use tcuda::capi::ipc::*;
use tcuda::capi::sim::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;

tests![
    calls_of_a_producer: [Faults],
    calls_of_a_producer_with_plain_segments: [Faults],
    calls_of_a_consumer: [Faults],
    calls_of_a_consumer_with_plain_segments: [Faults],
    calls_of_the_thread_that_answers: [Faults],
    calls_about_events: [Faults],
    calls_that_enable_a_peer: [Faults, TwoDevices],
    calls_of_the_end: [Faults],
    a_device_that_is_lost: [Faults, TwoDevices],
];

const MIB: usize = 1 << 20;
const SIZE: usize = 3 * MIB;
const PLAIN: (&str, &str) = ("TCUDA_ALLOC_CONF", "expandable_segments:False");
/// CUDA's invalid value, out of memory, not supported.
const CODES: [i32; 3] = [1, 2, 801];

fn calls_of_a_producer() {
    in_child("ipc_faults_producer", &[]);
}

fn calls_of_a_producer_with_plain_segments() {
    in_child("ipc_faults_producer", &[PLAIN]);
}

fn calls_of_a_consumer() {
    in_child("ipc_faults_consumer", &[]);
}

fn calls_of_a_consumer_with_plain_segments() {
    in_child("ipc_faults_consumer", &[PLAIN]);
}

fn calls_of_the_thread_that_answers() {
    in_child("ipc_faults_answer", &[]);
    in_child("ipc_faults_answer", &[PLAIN]);
}

fn calls_about_events() {
    in_child("ipc_faults_events", &[]);
}

fn calls_that_enable_a_peer() {
    in_child("ipc_faults_peer", &[]);
}

fn calls_of_the_end() {
    in_child("ipc_faults_end", &[]);
    in_child("ipc_faults_end", &[PLAIN]);
}

fn a_device_that_is_lost() {
    in_child("ipc_lost", &[]);
    in_child("ipc_lost", &[PLAIN]);
}

/// A lost device keeps neither side from giving back, and the producer's own goes on.
pub fn scene_lost() {
    let (stream, far) = (Own::on(0), Own::on(1));
    let mut other = Other::new();
    let block = allocate(SIZE, stream.0);
    let handle = get!(tcuda_ipc_handle_t { bytes: [0; 64] }, out => tcuda_ipc_export(out, block, SIZE, 0, stream.0));
    let there = other.import(&handle);
    let theirs = other.export(SIZE, 3, 0);
    let here = get!(null_mut(), out => tcuda_ipc_import(out, null_mut(), null_mut(), &theirs, stream.0));
    ok!(tcuda_sim_lose_device(0, 700));
    ok!(tcuda_ipc_close(here, stream.0));
    fails!(INVALID_POINTER, tcuda_ipc_close(here, stream.0));
    fails!(DEVICE_LOST, tcuda_ipc_export(&mut handle.clone(), block, SIZE, 0, stream.0));
    fails!(DEVICE_LOST, tcuda_ipc_import(&mut null_mut(), null_mut(), null_mut(), &theirs, stream.0));
    other.did("free");
    assert_eq!(other.did("collect"), "0");
    free(block);
    other.did(&format!("close {there}"));
    other.end();
    ok!(tcuda_ipc_collect());
    assert_eq!((stats().exported, stats().taken, stats().imported), (0, 0, 0));
    // The other device is as good as before.
    let block = allocate(SIZE, far.0);
    let handle = get!(handle, out => tcuda_ipc_export(out, block, SIZE, 0, far.0));
    ok!(tcuda_ipc_withdraw(&handle));
    free(block);
}

fn calls() -> u64 {
    get!(0, out => tcuda_sim_call_count(out, null()))
}

/// With the n-th call failing: the status, and whether there were so many calls.
fn with_fault(nth: u64, code: i32, work: impl FnOnce() -> Status) -> (Status, bool) {
    ok!(tcuda_sim_fail_at(null(), nth, code));
    let before = calls();
    let status = work();
    let struck = calls() - before >= nth;
    ok!(tcuda_sim_clear_faults());
    (status, struck)
}

/// All that lives, but for streams.
fn living() -> [u64; 6] {
    let mut live: tcuda_sim_live_t = unsafe { std::mem::zeroed() };
    live.struct_size = size_of::<tcuda_sim_live_t>();
    ok!(tcuda_sim_live(&mut live, -3));
    [live.blocks, live.handles, live.mappings, live.reservations, live.events, live.pinned_blocks]
}

fn busy(stream: tcuda_stream_t) {
    ok!(tcuda_sim_delay(stream, 3_000_000));
}

pub fn scene_producer() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let mut failed = 0;
    for code in CODES {
        // Events that are kept for later are there from now on.
        let (mut before, mut nth) = (None, 1);
        loop {
            let block = allocate(SIZE, stream.0);
            ok!(tcuda_memset_async(block, 7, SIZE, stream.0));
            busy(stream.0);
            let mut handle = tcuda_ipc_handle_t { bytes: [5; 64] };
            let (status, struck) = with_fault(nth, code, || unsafe { tcuda_ipc_export(&mut handle, block, SIZE, 0, stream.0) });
            if status != Status::TCUDA_SUCCESS {
                assert!(message().len() > 10 && handle.bytes == [5; 64]);
                assert_eq!(stats().exported, 0);
                failed += 1;
                ok!(tcuda_ipc_export(&mut handle, block, SIZE, 0, stream.0));
            }
            let there = other.import(&handle);
            assert_eq!(other.did(&format!("value {there} {SIZE}")), "7");
            free(block);
            other.did(&format!("close {there}"));
            // What cannot be destroyed at once is tried again.
            with_fault(1, code, || tcuda_ipc_collect());
            ok!(tcuda_ipc_collect());
            assert_eq!((stats().exported, stats().taken), (0, 0));
            assert_eq!(stat(0, "active_bytes.all.current"), 0);
            let now = living();
            assert_eq!(*before.get_or_insert(now), now, "call {nth} failed with {code}");
            if !struck {
                break;
            }
            nth += 1;
        }
        assert!(nth > 4, "{nth}");
    }
    assert!(failed >= 6, "{failed}");
    // The thread that answers: its failure is told to who asks.
    let block = allocate(SIZE, stream.0);
    let handle = get!(tcuda_ipc_handle_t { bytes: [0; 64] }, out => tcuda_ipc_export(out, block, SIZE, 0, stream.0));
    ok!(tcuda_sim_fail_at(c"cuMemExportToShareableHandle".as_ptr(), 1, 2));
    let said = other.ask(&format!("import {}", hex(&handle.bytes)));
    let plain = std::env::var_os("TCUDA_ALLOC_CONF").is_some();
    assert_eq!(said.starts_with("ok"), plain, "{said}");
    assert!(plain || said.contains("cuMemExportToShareableHandle"), "{said}");
    ok!(tcuda_sim_clear_faults());
    ok!(tcuda_ipc_collect());
    assert_eq!(stats().taken, u64::from(plain));
    other.import(&handle);
    free(block);
    other.kill();
    ok!(tcuda_ipc_collect());
    assert_eq!(stats().exported, 0);
    empty_caches();
}

pub fn scene_consumer() {
    let stream = Own::on(0);
    let mut other = Other::new();
    // The bytes come here.
    let host = &mut [0u8; 4][..];
    let mut first = |from: *mut c_void| {
        ok!(tcuda_copy(host.as_mut_ptr().cast(), from, 4, false));
        host[0]
    };
    let (mut imports, mut closes) = (0, 0);
    for code in CODES {
        let mut nth = 1;
        loop {
            other.did("gate");
            let handle = other.export(SIZE, 7, 0);
            let before = living();
            let mut here = null_mut();
            let take = |here: &mut *mut c_void| unsafe { tcuda_ipc_import(here, null_mut(), null_mut(), &handle, stream.0) };
            let (status, struck) = with_fault(nth, code, || take(&mut here));
            if status != Status::TCUDA_SUCCESS {
                imports += 1;
                assert!(message().len() > 10 && here.is_null());
                assert_eq!(stats().imported, 0);
                assert_eq!(living(), before, "call {nth} failed with {code}");
                ok!(take(&mut here));
            }
            other.did("open");
            assert!(get!(false, out => tcuda_ipc_producer_is_alive(out, here)));
            ok!(tcuda_stream_synchronize(stream.0));
            assert_eq!(first(here), 7);
            let (status, struck_too) = with_fault(nth, code, || unsafe { tcuda_ipc_close(here, stream.0) });
            if status != Status::TCUDA_SUCCESS {
                closes += 1;
                assert_eq!(first(here), 7, "call {nth} failed with {code}");
                ok!(tcuda_ipc_close(here, stream.0));
            }
            assert_eq!((living(), stats().imported), (before, 0), "call {nth} failed with {code}");
            other.did("free");
            assert_eq!(other.did("collect"), "0");
            if !struck && !struck_too {
                break;
            }
            nth += 1;
        }
        assert!(nth > 6, "{nth}");
    }
    assert!(imports >= 12 && closes >= 3, "{imports} {closes}");
    if std::env::var(PLAIN.0).is_err() {
        refused_access(&mut other, stream.0);
    }
    other.end();
}

/// The device's, and that of peers that came meanwhile.
fn refused_access(other: &mut Other, stream: tcuda_stream_t) {
    let handle = other.export(SIZE, 7, 0);
    let before = living();
    for nth in [1, 2] {
        ok!(tcuda_sim_fail_at(c"cuMemSetAccess".as_ptr(), nth, 2));
        fails!(OUT_OF_MEMORY, tcuda_ipc_import(&mut null_mut(), null_mut(), null_mut(), &handle, stream));
        ok!(tcuda_sim_clear_faults());
        assert_eq!((living(), stats().imported), (before, 0), "call {nth}");
    }
    let here = get!(null_mut(), out => tcuda_ipc_import(out, null_mut(), null_mut(), &handle, stream));
    ok!(tcuda_ipc_close(here, stream));
    other.did("free");
    assert_eq!(other.did("collect"), "0");
}

/// Each call of the thread that answers fails once, with what another process sees of it.
pub fn scene_answer() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let block = allocate(SIZE, stream.0);
    let handle = get!(tcuda_ipc_handle_t { bytes: [0; 64] }, out => tcuda_ipc_export(out, block, SIZE, 0, stream.0));
    let import = format!("import {}", hex(&handle.bytes));
    // What it needs once is there.
    let there = other.import(&handle);
    other.did(&format!("close {there}"));
    let before = living();
    let mut failed = 0;
    for code in CODES {
        let mut nth = 1;
        loop {
            let mut answer = String::new();
            let (_, struck) = with_fault(nth, code, || {
                answer = other.ask(&import);
                Status::TCUDA_SUCCESS
            });
            if !answer.starts_with("ok") {
                failed += 1;
                assert!(answer.starts_with("TCUDA_ERROR_CUDA") && answer.contains("producer"), "call {nth} failed with {code}: {answer}");
                ok!(tcuda_ipc_collect());
                assert_eq!(stats().taken, 0);
                answer = other.ask(&import);
            }
            let there = answer.split(' ').nth(1).unwrap_or_else(|| panic!("call {nth} failed with {code}: {answer}"));
            other.did(&format!("close {there}"));
            ok!(tcuda_ipc_collect());
            assert_eq!((stats().exported, stats().taken, living()), (1, 0, before), "call {nth} failed with {code}");
            if !struck {
                break;
            }
            nth += 1;
        }
    }
    let plain = std::env::var_os("TCUDA_ALLOC_CONF").is_some();
    assert!(plain || failed >= 3, "{failed}");
    free(block);
    other.end();
    ok!(tcuda_ipc_collect());
    assert_eq!(stats().exported, 0);
    empty_caches();
}

pub fn scene_events() {
    const NO_EVENT: tcuda_ipc_event_handle_t = tcuda_ipc_event_handle_t { bytes: [7; 64] };
    let mut other = Other::new();
    let theirs = tcuda_ipc_event_handle_t { bytes: bytes(&other.did("event theirs")) };
    let (mut failed, mut most) = (0, 0);
    for (code, nth) in CODES.into_iter().flat_map(|code| (1..=20).map(move |nth| (code, nth))) {
        let when = format!("call {nth} failed with {code}");
        let mut counted = |status: Status| failed += u64::from(status != Status::TCUDA_SUCCESS);
        let (mut event, mut handle) = (null_mut(), NO_EVENT);
        let (status, _) = with_fault(nth, code, || unsafe { tcuda_event_create(&mut event, 6) });
        assert_eq!(event.is_null(), status != Status::TCUDA_SUCCESS, "{when}");
        counted(status);
        if event.is_null() {
            event = get!(null_mut(), out => tcuda_event_create(out, 6));
        }
        let (status, _) = with_fault(nth, code, || unsafe { tcuda_event_ipc_handle(&mut handle, event) });
        assert_eq!(handle.bytes == NO_EVENT.bytes, status != Status::TCUDA_SUCCESS, "{when}");
        counted(status);
        ok!(tcuda_event_ipc_handle(&mut handle, event));
        other.did(&format!("open_event mine {}", hex(&handle.bytes)));
        other.did("destroy mine");
        let mut opened = null_mut();
        let (status, struck) = with_fault(nth, code, || unsafe { tcuda_event_from_ipc_handle(&mut opened, 0, &theirs) });
        assert_eq!(opened.is_null(), status != Status::TCUDA_SUCCESS, "{when}");
        counted(status);
        most = most.max(if struck { nth } else { 0 });
        if opened.is_null() {
            opened = get!(null_mut(), out => tcuda_event_from_ipc_handle(out, 0, &theirs));
        }
        ok!(tcuda_event_wait(opened, default_of(0)));
        for event in [event, opened] {
            let (status, _) = with_fault(nth, code, || unsafe { tcuda_event_destroy(event) });
            if status != Status::TCUDA_SUCCESS {
                ok!(tcuda_event_destroy(event));
            }
        }
    }
    assert!(failed >= 9 && most < 20, "{failed} failures, {most} calls");
    other.end();
    // Those that were destroyed are kept for a while.
    ok!(tcuda_shutdown());
    assert_eq!(living(), [0; 6]);
}

/// Memory of another process is opened for a device that comes later. Once a process, so all faults there are wait for the same moment.
pub fn scene_peer() {
    let (stream, far) = (Own::on(0), Own::on(1));
    let mut other = Other::new();
    let theirs = other.export(SIZE, 7, 0);
    let here = get!(null_mut(), out => tcuda_ipc_import(out, null_mut(), null_mut(), &theirs, stream.0));
    // What the other process has written is for the stream of the import.
    ok!(tcuda_stream_wait_stream(far.0, stream.0));
    let there = allocate(SIZE, far.0);
    let (mut failed, mut nth) = (0, 1);
    loop {
        let (status, struck) = with_fault(nth, 2, || unsafe { tcuda_copy_async(there, here, SIZE, far.0) });
        failed += u64::from(status != Status::TCUDA_SUCCESS);
        if !struck {
            break;
        }
        nth += 1;
    }
    ok!(tcuda_copy_async(there, here, SIZE, far.0));
    assert!(bytes_of(there, SIZE, far.0).iter().all(|byte| *byte == 7));
    assert!(failed >= 3, "{failed} of {nth}");
    // And for one that has come already.
    let again = get!(null_mut(), out => tcuda_ipc_import(out, null_mut(), null_mut(), &other.export(SIZE, 8, 0), stream.0));
    ok!(tcuda_stream_wait_stream(far.0, stream.0));
    ok!(tcuda_copy_async(there, again, SIZE, far.0));
    assert!(bytes_of(there, SIZE, far.0).iter().all(|byte| *byte == 8));
    [here, again].into_iter().for_each(|here| ok!(tcuda_ipc_close(here, stream.0)));
    free(there);
    other.end();
}

/// The end of tcuda with exports and imports, each call of which fails once: neither side loses anything.
pub fn scene_end() {
    let mut other = Other::new();
    for nth in 1..40 {
        let stream = create_on(0);
        let block = allocate(SIZE, stream);
        busy(stream);
        let handle = get!(tcuda_ipc_handle_t { bytes: [0; 64] }, out => tcuda_ipc_export(out, block, SIZE, 0, stream));
        let there = other.import(&handle);
        let theirs = other.export(SIZE, 7, 0);
        get!(null_mut(), out => tcuda_ipc_import(out, null_mut(), null_mut(), &theirs, stream));
        with_fault(nth, 2, || tcuda_shutdown());
        tcuda_shutdown();
        assert_eq!(other.did(&format!("alive {there}")), "false", "call {nth}");
        other.did(&format!("close {there}"));
        other.did("free");
        assert_eq!(other.did("collect"), "0", "call {nth}");
        ok!(tcuda_init(null()));
        assert_eq!((living(), stats().exported, stats().imported), ([0; 6], 0, 0), "call {nth}");
    }
    other.end();
}
