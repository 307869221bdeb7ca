//! Requests whose size a program chooses, where the host has no memory for them: each is an error, and the process goes on. Each test is a
//! process of its own, whose addresses are limited; on the simulated device.

use std::ffi::{CString, c_char, c_void};
use std::process::Command;
use std::ptr::{null, null_mut};
use tcuda::base::dtype::DType;
use tcuda::base::status::tcuda_status_t::{self, *};
use tcuda::capi::comm::*;
use tcuda::capi::graph::tcuda_pool_id_t;
use tcuda::capi::graphed::*;
use tcuda::capi::history::{tcuda_memory_annotate, tcuda_memory_record_history};
use tcuda::capi::jit::*;
use tcuda::capi::memory::*;
use tcuda::capi::pool::*;
use tcuda::capi::snapshot::*;
use tcuda::capi::stream::*;
use tcuda::capi::tensor::*;

/// Set in the processes that are started.
const CHILD: &str = "TCUDA_TEST_CHILD";
const MIB: usize = 1 << 20;

/// Runs the test of that name in a process of its own.
#[track_caller]
fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env("TCUDA_BACKEND", "sim");
    let output = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
}

/// So many more bytes of addresses may be had during `work`.
fn with_room<T>(more: usize, work: impl FnOnce() -> T) -> T {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let used = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) }, 0);
    let set = |limit: &libc::rlimit| assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, limit) }, 0);
    set(&libc::rlimit { rlim_cur: used + more as u64, ..limit });
    let done = work();
    set(&limit);
    done
}

fn message() -> String {
    unsafe { std::ffi::CStr::from_ptr(tcuda::capi::error::tcuda_last_error_message()) }.to_str().unwrap().to_owned()
}

#[track_caller]
fn ok(status: tcuda_status_t) {
    assert_eq!(status, TCUDA_SUCCESS, "{}", message());
}

#[track_caller]
fn has_none(status: tcuda_status_t) {
    assert_eq!(status, TCUDA_ERROR_OUT_OF_HOST_MEMORY, "{}", message());
    assert!(message().contains("host has no memory") || message().contains("out of memory"), "{}", message());
}

fn long(part: &str, length: usize, end: &str) -> CString {
    CString::new(format!("{}{end}", part.repeat(length / part.len()))).unwrap()
}

const TWICE: &str = "\ntemplate <typename T> T twice(T x) { return x + x; }";

fn created(jit: &mut tcuda_jit_t, source: &CString) -> tcuda_status_t {
    unsafe { tcuda_jit_create(jit, source.as_ptr(), null(), 0) }
}

#[test]
fn long_texts() {
    alone("long_texts", || {
        type Call = fn(*const c_char) -> tcuda_status_t;
        let calls: [(&str, Call, tcuda_status_t); 4] = [
            ("an annotation", |text| unsafe { tcuda_memory_annotate(text) }, TCUDA_SUCCESS),
            ("a path", |text| unsafe { tcuda_memory_dump_snapshot(text) }, TCUDA_ERROR_SYSTEM),
            ("a key", |text| unsafe { tcuda_memory_stat_get(&mut 0, 0, text) }, TCUDA_ERROR_INVALID_ARGUMENT),
            ("options", |text| unsafe { tcuda_set_alloc_conf(text) }, TCUDA_ERROR_INVALID_ARGUMENT),
        ];
        let text = long("/a", 64 * MIB, "");
        ok(unsafe { tcuda_memory_annotate(c"short".as_ptr()) });
        for (what, call, otherwise) in calls {
            println!("{what}");
            has_none(with_room(64 * MIB, || call(text.as_ptr())));
            assert_eq!(call(text.as_ptr()), otherwise, "{}", &message()[..message().len().min(200)]);
        }
    });
}

fn called(jit: tcuda_jit_t, x: *mut tcuda::base::dlpack::tcuda_managed_tensor_t) -> tcuda_status_t {
    let (mut out, inputs) = (null_mut(), [unsafe { &raw const (*x).tensor }]);
    let status = unsafe { tcuda_jit_call(jit, &mut out, inputs.as_ptr(), 1, null(), 0, null_mut()) };
    if status == TCUDA_SUCCESS {
        ok(unsafe { tcuda_tensor_destroy(out) });
    }
    status
}

#[test]
fn long_sources() {
    alone("long_sources", || {
        let (mut short, mut commented, mut x, shape) = (null_mut(), null_mut(), null_mut(), [8i64]);
        let dtype = DType { code: 2, bits: 32, lanes: 1 };
        ok(unsafe { tcuda_tensor_empty(&mut x, 0, dtype, 1, shape.as_ptr(), null_mut()) });
        ok(created(&mut short, &CString::new(TWICE).unwrap()));
        ok(called(short, x));
        // What is no word takes no more than its copies.
        let comment = long("/", 64 * MIB, TWICE);
        has_none(with_room(64 * MIB, || created(&mut commented, &comment)));
        assert!(commented.is_null());
        ok(created(&mut commented, &comment));
        has_none(with_room(64 * MIB, || called(commented, x)));
        // Each word takes more than itself.
        let words = long(";", 8 * MIB, TWICE);
        let mut wordy = null_mut();
        has_none(with_room(128 * MIB, || created(&mut wordy, &words)));
        assert!(message().contains("the words of a source"), "{}", message());
        ok(created(&mut wordy, &words));
        ok(called(short, x));
    });
}

#[test]
fn lists_of_tensors() {
    alone("lists_of_tensors", || {
        const COUNT: usize = 1_000_000;
        let (list, mut out) = (vec![null(); COUNT], null_mut());
        let mut add = || unsafe { tcuda_comm_reduce_add(&mut out, list.as_ptr(), COUNT, 0) };
        has_none(with_room(64 * MIB, &mut add));
        assert_eq!(add(), TCUDA_ERROR_INVALID_ARGUMENT);
    });
}

#[test]
fn lists_of_devices() {
    alone("lists_of_devices", || {
        const COUNT: usize = 1_000_000;
        let (devices, mut outs, mut tensor, shape) = (vec![0; COUNT], vec![null_mut(); COUNT], null_mut(), [8i64]);
        let dtype = DType { code: 2, bits: 32, lanes: 1 };
        ok(unsafe { tcuda_tensor_empty(&mut tensor, 0, dtype, 1, shape.as_ptr(), null_mut()) });
        let (input, outs) = (unsafe { &raw const (*tensor).tensor }, outs.as_mut_ptr());
        let list = [input];
        let calls: [&dyn Fn() -> tcuda_status_t; 3] = [
            &|| unsafe { tcuda_comm_broadcast(outs, input, devices.as_ptr(), COUNT) },
            &|| unsafe { tcuda_comm_broadcast_coalesced(outs, list.as_ptr(), 1, devices.as_ptr(), COUNT, 1) },
            &|| unsafe { tcuda_comm_scatter(outs, input, devices.as_ptr(), COUNT, null(), 0, null()) },
        ];
        for call in calls {
            has_none(with_room(64 * MIB, call));
        }
        let functions = vec![unsafe { std::mem::zeroed::<tcuda_callable_t>() }; COUNT];
        let (mut made, pool) = (null_mut(), tcuda_pool_id_t { first: 0, second: 0 });
        let mut create = || unsafe { tcuda_graphed_callable_create(&mut made, functions.as_ptr(), COUNT, -1, pool, null_mut()) };
        has_none(with_room(4 * MIB, &mut create));
        assert_eq!(create(), TCUDA_ERROR_INVALID_ARGUMENT);
    });
}

fn pairs(count: usize) {
    for _ in 0..count {
        let mut block: *mut c_void = null_mut();
        ok(unsafe { tcuda_malloc_cached(&mut block, 512, null_mut()) });
        ok(unsafe { tcuda_free_cached(block) });
    }
}

fn taken() -> tcuda_snapshot_t {
    let mut snapshot = null_mut();
    ok(unsafe { tcuda_memory_snapshot(&mut snapshot, 0) });
    snapshot
}

fn entries(snapshot: tcuda_snapshot_t) -> (u64, u64) {
    let mut info: tcuda_snapshot_info_t = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<tcuda_snapshot_info_t>();
    ok(unsafe { tcuda_snapshot_info(snapshot, &mut info) });
    (info.entries, info.lost_entries)
}

#[test]
fn a_long_history() {
    alone("a_long_history", || {
        const PAIRS: usize = 500_000;
        ok(tcuda_memory_record_history(2, u64::MAX, false, 0));
        pairs(PAIRS);
        let mut none = null_mut();
        has_none(with_room(32 * MIB, || unsafe { tcuda_memory_snapshot(&mut none, 0) }));
        assert!(none.is_null());
        let all = taken();
        assert!(entries(all).0 >= 3 * PAIRS as u64 && entries(all).1 == 0, "{:?}", entries(all));
        for format in [1, 2, 3] {
            let (mut data, mut size) = (null(), 0);
            // A page has 45 MiB, and what was freed before may be some of it.
            has_none(with_room(4 * MIB, || unsafe { tcuda_snapshot_data(all, &mut data, &mut size, format) }));
            assert!(data.is_null() && size == 0);
        }
        // What goes to a file needs none.
        ok(with_room(32 * MIB, || unsafe { tcuda_snapshot_write(all, c"/dev/null".as_ptr()) }));
        ok(unsafe { tcuda_snapshot_destroy(all) });
        // What there is no memory for is lost and counted, and what came before it.
        with_room(16 * MIB, || pairs(PAIRS));
        pairs(1000);
        let last = taken();
        let (kept, lost) = entries(last);
        assert!(kept + lost >= 3 * (2 * PAIRS + 1000) as u64 && lost > 0 && kept >= 1000, "{kept} and {lost}");
        ok(unsafe { tcuda_snapshot_destroy(last) });
    });
}

#[test]
fn records_of_blocks() {
    alone("records_of_blocks", || {
        let (mut stream, mut pool, mut block) = (null_mut(), null_mut(), null_mut());
        ok(unsafe { tcuda_stream_create(&mut stream, 0, 0) });
        // The smallest table that there is.
        with_room(200 * MIB, || pairs(1));
        let mut blocks: Vec<*mut c_void> = Vec::new();
        loop {
            let mut block = null_mut();
            let status = unsafe { tcuda_malloc_cached(&mut block, 512, null_mut()) };
            if status != TCUDA_SUCCESS {
                assert_eq!(status, TCUDA_ERROR_OUT_OF_HOST_MEMORY, "{}", message());
                break;
            }
            blocks.push(block);
        }
        let refused = |status| {
            assert_eq!(status, TCUDA_ERROR_OUT_OF_HOST_MEMORY, "{}", message());
            assert!(message().contains("the records of more blocks"), "{}", message());
        };
        refused(unsafe { tcuda_mem_pool_create(&mut pool, 0, null()) });
        refused(unsafe { tcuda_malloc_cached(&mut block, 512, stream) });
        assert!(pool.is_null() && block.is_null());
        blocks.into_iter().for_each(|block| ok(unsafe { tcuda_free_cached(block) }));
    });
}
