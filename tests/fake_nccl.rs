//! Communicators over a fake NCCL and a fake CUDA: which library is taken, what it is given, what it answers. Each case runs in a process of
//! its own, on a machine of tests/fake/mod.rs.

mod fake;

use fake::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use tcuda::base::Status::{self, *};
use tcuda::base::dlpack::{tcuda_place_t, tcuda_tensor_t};
use tcuda::base::dtype::tcuda_dtype_t;
use tcuda::capi::communicator::*;
use tcuda::capi::error::tcuda_last_error_native;
use tcuda::capi::memory::tcuda_malloc_cached;
use tcuda::capi::stream::tcuda_stream_create;
use tcuda::capi::structs::tcuda_stream_t;

const NCCL: &str = "loader/libnccl.so.2";
const F32: tcuda_dtype_t = tcuda_dtype_t { code: 2, bits: 32, lanes: 1 };

fn nccl(version: i32, lacks: &[&str]) -> std::path::PathBuf {
    build("nccl.c", "libnccl.so.2", &[&format!("-DVERSION={version}")], lacks)
}

/// Two devices, and no NCCL.
fn bare(machine: Machine) -> Machine {
    machine.with("loader/libcuda.so.1", &driver(13000)).with("loader/libcudart.so.13", &runtime_library(13000))
}

fn plain(machine: Machine) -> Machine {
    bare(machine).with(NCCL, &nccl(22809, &[]))
}

/// What NCCL was called with since the last time.
fn said() -> String {
    unsafe {
        let handle = libc::dlopen(c"libnccl.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!handle.is_null());
        let ask = libc::dlsym(handle, c"fake_nccl_said".as_ptr());
        let ask = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(ask);
        CStr::from_ptr(ask()).to_str().unwrap().to_owned()
    }
}

/// Changes what the fake answers from now on.
fn set(name: &str, value: &str) {
    let (name, value) = (CString::new(name).unwrap(), CString::new(value).unwrap());
    unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
}

fn version() -> Result<i32, Status> {
    let mut version = -1;
    match unsafe { tcuda_communicator_version(&mut version) } {
        TCUDA_SUCCESS => Ok(version),
        status => Err(status),
    }
}

fn id() -> tcuda_communicator_id_t {
    let mut id = tcuda_communicator_id_t { bytes: [0; 128] };
    ok(unsafe { tcuda_communicator_unique_id(&mut id) });
    assert_eq!(id.bytes[1..3], [3, 6]);
    id
}

fn options(timeout_ms: u32, non_blocking: i32) -> tcuda_communicator_options_t {
    tcuda_communicator_options_t { timeout_ms, non_blocking, ..Default::default() }
}

/// Rank 0 of two, on device 1.
fn try_init(options: &tcuda_communicator_options_t) -> Result<tcuda_communicator_t, Status> {
    let mut comm = null_mut();
    match unsafe { tcuda_communicator_init_rank(&mut comm, 2, &id(), 0, 1, options) } {
        TCUDA_SUCCESS => Ok(comm),
        status => {
            assert!(comm.is_null());
            Err(status)
        }
    }
}

fn init() -> tcuda_communicator_t {
    try_init(&options(60_000, 0)).unwrap_or_else(|_| panic!("{}", message()))
}

/// On device 1, by the addresses that the fake runtime knows.
struct Tensor {
    _shape: Box<[i64; 1]>,
    view: tcuda_tensor_t,
}

impl Tensor {
    fn of(address: usize, dtype: tcuda_dtype_t, count: i64) -> Tensor {
        let mut shape = Box::new([count]);
        let device = tcuda_place_t { device_type: 2, device_id: 1 };
        let view = tcuda_tensor_t {
            data: address as *mut c_void,
            device,
            ndim: 1,
            dtype,
            shape: shape.as_mut_ptr(),
            strides: null_mut(),
            byte_offset: 0,
        };
        Tensor { _shape: shape, view }
    }
}

fn stream() -> tcuda_stream_t {
    STREAM as tcuda_stream_t
}

#[test]
fn what_is_not_there_is_told() {
    case("what_is_not_there_is_told", bare, || {
        assert_eq!(version(), Err(TCUDA_ERROR_NOT_SUPPORTED));
        assert_says(&message(), &["libnccl.so.2", "the loader's path", "pip install nvidia-nccl-cu13", "TCUDA_NCCL_PATH"]);
        let mut id = tcuda_communicator_id_t { bytes: [9; 128] };
        refused(unsafe { tcuda_communicator_unique_id(&mut id) }, TCUDA_ERROR_NOT_SUPPORTED, &["libnccl.so.2"]);
        assert_eq!(id.bytes, [9; 128]);
    });
}

#[test]
fn a_file_that_is_named() {
    let machine = |machine: Machine| bare(machine).with("own/my_nccl.so", &nccl(22809, &[])).set("TCUDA_NCCL_PATH", "{}/own/my_nccl.so");
    case("a_file_that_is_named", machine, || assert_eq!(version(), Ok(22809)));
}

#[test]
fn a_file_that_is_named_and_not_there() {
    let machine = |machine: Machine| plain(machine).set("TCUDA_NCCL_PATH", "{}/none.so");
    case("a_file_that_is_named_and_not_there", machine, || {
        assert_eq!(version(), Err(TCUDA_ERROR_NOT_SUPPORTED));
        assert_says(&message(), &["TCUDA_NCCL_PATH", "none.so"]);
    });
}

#[test]
fn the_wheels_are_searched() {
    let wheel = "venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";
    let machine = |machine: Machine| bare(machine).with(wheel, &nccl(22907, &[])).set("VIRTUAL_ENV", "{}/venv");
    case("the_wheels_are_searched", machine, || assert_eq!(version(), Ok(22907)));
}

#[test]
fn one_that_is_too_old() {
    let machine = |machine: Machine| bare(machine).with(NCCL, &nccl(21304, &["ncclCommInitRankConfig"]));
    case("one_that_is_too_old", machine, || {
        assert_eq!(version(), Err(TCUDA_ERROR_NOT_SUPPORTED));
        assert_says(&message(), &["NCCL 2.13.4", "2.14"]);
    });
}

#[test]
fn multicast_is_off() {
    case("multicast_is_off", plain, || {
        init();
        assert_eq!(said(), "init 0 of 2 on 1, nvls 0\n");
    });
}

#[test]
fn multicast_is_whose_it_was_set_by() {
    let machine = |machine: Machine| plain(machine).set("NCCL_NVLS_ENABLE", "1");
    case("multicast_is_whose_it_was_set_by", machine, || {
        init();
        assert_eq!(said(), "init 0 of 2 on 1, nvls 1\n");
    });
}

#[test]
fn what_nccl_is_given() {
    case("what_nccl_is_given", plain, || unsafe {
        let comm = init();
        said();
        let given = |status: Status, expected: &str| {
            ok(status);
            let expected = expected.replace("TO", &format!("{TO:#x}")).replace("OTHER", &format!("{OTHER:#x}"));
            let expected = expected.replace("NONE", "(nil)").replace("STREAM", &format!("{STREAM:#x}"));
            assert_eq!(said(), format!("group\n{expected}\nend\n"));
        };
        let (small, large) = (Tensor::of(TO, F32, 6), Tensor::of(OTHER, F32, 12));
        let same = Tensor::of(OTHER, F32, 6);
        let (a, b, s) = (&small.view, &large.view, stream());
        given(tcuda_communicator_all_reduce(comm, &same.view, a, 0, s), "all_reduce TO OTHER 6 type 7 op 0 rank 0 stream STREAM");
        given(tcuda_communicator_all_reduce(comm, a, a, 4, s), "all_reduce TO TO 6 type 7 op 4 rank 0 stream STREAM");
        given(tcuda_communicator_all_gather(comm, b, a, s), "all_gather TO OTHER 24 type 1 rank 0 stream STREAM");
        given(tcuda_communicator_reduce_scatter(comm, a, b, 3, s), "reduce_scatter OTHER TO 6 type 7 op 3 rank 0 stream STREAM");
        given(tcuda_communicator_broadcast(comm, a, null(), 1, s), "broadcast NONE TO 24 type 1 root 1 rank 0 stream STREAM");
        given(tcuda_communicator_broadcast(comm, a, &same.view, 0, s), "broadcast OTHER TO 24 type 1 root 0 rank 0 stream STREAM");
        given(tcuda_communicator_reduce(comm, null(), a, 1, 1, s), "reduce TO NONE 6 type 7 op 1 root 1 rank 0 stream STREAM");
        given(tcuda_communicator_send(comm, a, 1, s), "send TO 24 type 1 peer 1 rank 0 stream STREAM");
        given(tcuda_communicator_recv(comm, a, 1, s), "recv TO 24 type 1 peer 1 rank 0 stream STREAM");
        let halves = format!(
            "send TO 12 type 1 peer 0 rank 0 stream STREAM\nrecv OTHER 12 type 1 peer 0 rank 0 stream STREAM\n\
             send {:#x} 12 type 1 peer 1 rank 0 stream STREAM\nrecv {:#x} 12 type 1 peer 1 rank 0 stream STREAM",
            TO + 12,
            OTHER + 12
        );
        given(tcuda_communicator_all_to_all(comm, &same.view, a, s), &halves);
        // The type: DLPack's code and bits, how it is reduced.
        for (code, bits, wire, numbers, op, as_op) in [
            (0, 8, 0, 6, 2, 2),
            (1, 8, 1, 6, 2, 2),
            (0, 32, 2, 6, 0, 0),
            (1, 32, 3, 6, 0, 0),
            (0, 64, 4, 6, 0, 0),
            (1, 64, 5, 6, 0, 0),
            (2, 16, 6, 6, 0, 0),
            (2, 64, 8, 6, 0, 0),
            (4, 16, 9, 6, 0, 0),
            (5, 64, 7, 12, 0, 0),
            (5, 128, 8, 12, 4, 4),
            (6, 8, 1, 6, 0, 2),
            (6, 8, 1, 6, 1, 3),
        ] {
            let tensor = Tensor::of(TO, tcuda_dtype_t { code, bits, lanes: 1 }, 6);
            let expected = format!("all_reduce TO TO {numbers} type {wire} op {as_op} rank 0 stream STREAM");
            given(tcuda_communicator_all_reduce(comm, &tensor.view, &tensor.view, op, s), &expected);
        }
        // The current stream is the default one.
        given(tcuda_communicator_all_reduce(comm, a, a, 0, null_mut()), "all_reduce TO TO 6 type 7 op 0 rank 0 stream NONE");
        // Nothing to move is no call.
        let none = Tensor::of(TO, F32, 0);
        ok(tcuda_communicator_all_reduce(comm, &none.view, &none.view, 0, s));
        assert_eq!(said(), "");
        // A group is one of NCCL's.
        ok(tcuda_communicator_group_start());
        ok(tcuda_communicator_send(comm, a, 1, s));
        ok(tcuda_communicator_recv(comm, &same.view, 1, s));
        assert_eq!(said(), "");
        given(
            tcuda_communicator_group_end(),
            "send TO 24 type 1 peer 1 rank 0 stream STREAM\nrecv OTHER 24 type 1 peer 1 rank 0 stream STREAM",
        );
        ok(tcuda_communicator_synchronize(comm, s, 0));
    });
}

#[test]
fn ranks_are_destroyed() {
    case("ranks_are_destroyed", plain, || {
        let comm = init();
        said();
        ok(tcuda_communicator_destroy(comm));
        assert_eq!(said(), "destroy 0\n");
        // One that is still on its way is aborted.
        set("FAKE_NCCL_BUSY", "1000000000");
        let comm = try_init(&options(0, 1)).unwrap();
        said();
        ok(tcuda_communicator_destroy(comm));
        assert_eq!(said(), "abort 0\n");
    });
}

#[test]
fn all_ranks_of_a_process() {
    case("all_ranks_of_a_process", plain, || unsafe {
        set("FAKE_NCCL_BUSY", "100");
        let mut all = [null_mut(); 2];
        ok(tcuda_communicator_init_all(all.as_mut_ptr(), [1, 0].as_ptr(), 2, null()));
        assert_eq!(said(), "init 0 of 2 on 1, nvls 0\ninit 1 of 2 on 0, nvls 0\n");
        let blocking = tcuda_communicator_options_t { nccl_blocking: 1, ..options(0, 0) };
        ok(tcuda_communicator_init_all(all.as_mut_ptr(), [1, 0].as_ptr(), 2, &blocking));
        assert_eq!(said(), "group\ninit 0 of 2 on 1, nvls 0, blocking\ninit 1 of 2 on 0, nvls 0, blocking\nend\n");
        let mut part = null_mut();
        ok(tcuda_communicator_split(&mut part, all[0], 0, 0, null()));
        assert_eq!(said(), "split 0: color 0, key 0, blocking\n");
        // What cannot be made does not stay.
        set("FAKE_NCCL", "ncclCommInitRankConfig:2");
        let mut none = [null_mut(); 2];
        let status = tcuda_communicator_init_all(none.as_mut_ptr(), [1, 0].as_ptr(), 2, null());
        refused(status, TCUDA_ERROR_NCCL, &["unhandled system error (2)", "ncclCommInitRankConfig went wrong", "NCCL 2.28.9"]);
        assert_eq!(tcuda_last_error_native(), 2);
        assert!(said().ends_with("abort 0\n") && none[0].is_null());
    });
}

#[test]
fn what_is_in_progress_is_waited_for() {
    case("what_is_in_progress_is_waited_for", plain, || unsafe {
        set("FAKE_NCCL_BUSY", "300");
        let comm = init();
        let asked = || calls("libnccl.so.2", "fake_nccl_calls", "ncclCommGetAsyncError");
        assert!(asked() >= 300);
        let before = asked();
        let tensor = Tensor::of(TO, F32, 6);
        ok(tcuda_communicator_all_reduce(comm, &tensor.view, &tensor.view, 0, stream()));
        assert!(asked() - before >= 300);
        // A part is written by NCCL when the split is over.
        said();
        let mut part = null_mut();
        ok(tcuda_communicator_split(&mut part, comm, 3, 7, null()));
        assert_eq!(said(), "split 0: color 3, key 7\n");
        let (mut rank, mut size) = (-1, -1);
        ok(tcuda_communicator_rank(part, &mut rank));
        ok(tcuda_communicator_size(part, &mut size));
        assert_eq!((rank, size), (0, 1));
        let mut none = 1 as tcuda_communicator_t;
        ok(tcuda_communicator_split(&mut none, comm, -5, 7, null()));
        assert!(none.is_null());
        // A part like others, which ends at once: NCCL crashes where a split without a color is cut off.
        assert_eq!(said(), "split 0: color 2147483647, key 7\ndestroy 0\n");
        // Given out before: not known yet.
        let mut early = null_mut();
        ok(tcuda_communicator_split(&mut early, comm, 3, 7, &options(0, 1)));
        refused(tcuda_communicator_rank(early, &mut rank), TCUDA_ERROR_NOT_READY, &["tcuda_communicator_query"]);
        let mut ready = false;
        while !ready {
            ok(tcuda_communicator_query(early, &mut ready));
        }
        ok(tcuda_communicator_rank(early, &mut rank));
        // A split that is cut short by the end of what it is of makes no part.
        let mut never = null_mut();
        ok(tcuda_communicator_split(&mut never, comm, 3, 7, &options(0, 1)));
        ok(tcuda_communicator_abort(comm));
        refused(tcuda_communicator_query(never, &mut ready), TCUDA_ERROR_INVALID_STATE, &["was ended while"]);
        refused(tcuda_communicator_synchronize(never, stream(), 0), TCUDA_ERROR_INVALID_STATE, &["was ended while"]);
        ok(tcuda_communicator_destroy(never));
    });
}

#[test]
fn a_split_that_waits_within_nccl_is_aborted() {
    case(
        "a_split_that_waits_within_nccl_is_aborted",
        |machine| plain(machine).set("FAKE_NCCL_WAITS", "1"),
        || unsafe {
            // No hang, if it does not come back.
            libc::alarm(60);
            let comm = try_init(&tcuda_communicator_options_t { nccl_blocking: 1, ..options(0, 0) }).unwrap() as usize;
            let waiting = std::thread::spawn(move || {
                let mut part = null_mut();
                let status = tcuda_communicator_split(&mut part, comm as tcuda_communicator_t, 0, 0, null());
                assert!(part.is_null());
                refused(status, TCUDA_ERROR_INVALID_STATE, &["was aborted"]);
            });
            while calls("libnccl.so.2", "fake_nccl_calls", "ncclCommSplit") == 0 {
                std::thread::yield_now();
            }
            ok(tcuda_communicator_abort(comm as tcuda_communicator_t));
            waiting.join().unwrap();
            refused(tcuda_communicator_query(comm as tcuda_communicator_t, &mut false), TCUDA_ERROR_INVALID_STATE, &["was aborted"]);
            ok(tcuda_communicator_destroy(comm as tcuda_communicator_t));
            assert!(said().ends_with("split 0: color 0, key 0, blocking\nabort 0\n"));
        },
    );
}

#[test]
fn a_split_that_is_not_there() {
    let machine = |machine: Machine| bare(machine).with(NCCL, &nccl(21403, &["ncclCommSplit"]));
    case("a_split_that_is_not_there", machine, || unsafe {
        let comm = init();
        let mut part = null_mut();
        refused(tcuda_communicator_split(&mut part, comm, 0, 0, null()), TCUDA_ERROR_NOT_SUPPORTED, &["ncclCommSplit", "2.14.3"]);
        // Nothing else is lost.
        let mut ready = false;
        ok(tcuda_communicator_query(comm, &mut ready));
        assert!(ready && part.is_null());
    });
}

#[test]
fn ranks_that_do_not_come() {
    case("ranks_that_do_not_come", plain, || unsafe {
        set("FAKE_NCCL_BUSY", "1000000000");
        assert_eq!(try_init(&options(50, 0)), Err(TCUDA_ERROR_TIMEOUT));
        assert_says(&message(), &["50 ms", "aborted"]);
        assert!(said().ends_with("abort 0\n"));
        // At a call.
        set("FAKE_NCCL_BUSY", "0");
        let comm = try_init(&options(50, 0)).unwrap();
        set("FAKE_NCCL_BUSY", "1000000000");
        said();
        let tensor = Tensor::of(TO, F32, 6);
        refused(tcuda_communicator_all_reduce(comm, &tensor.view, &tensor.view, 0, stream()), TCUDA_ERROR_TIMEOUT, &["50 ms"]);
        assert!(said().ends_with("end\nabort 0\n"));
        refused(tcuda_communicator_all_reduce(comm, &tensor.view, &tensor.view, 0, stream()), TCUDA_ERROR_TIMEOUT, &["50 ms"]);
        ok(tcuda_communicator_destroy(comm));
        assert_eq!(said(), "");
        // On a stream: the fake's default stream never comes to its end.
        set("FAKE_NCCL_BUSY", "0");
        let comm = init();
        said();
        refused(tcuda_communicator_synchronize(comm, null_mut(), 30), TCUDA_ERROR_TIMEOUT, &["30 ms"]);
        assert_eq!(said(), "abort 0\n");
    });
}

#[test]
fn ranks_that_fail() {
    case("ranks_that_fail", plain, || unsafe {
        let tensor = Tensor::of(TO, F32, 6);
        let call = |comm| tcuda_communicator_all_reduce(comm, &tensor.view, &tensor.view, 0, stream());
        // Another rank: seen by whoever asks or waits.
        for ask in [|comm| tcuda_communicator_query(comm, &mut false), |comm| tcuda_communicator_synchronize(comm, null_mut(), 0)] {
            set("FAKE_NCCL", "");
            let comm = init();
            said();
            set("FAKE_NCCL", "ncclCommGetAsyncError:6");
            refused(ask(comm), TCUDA_ERROR_REMOTE, &["remote process exited (6)"]);
            assert_eq!((tcuda_last_error_native(), said().as_str()), (6, "abort 0\n"));
            refused(call(comm), TCUDA_ERROR_REMOTE, &["remote process exited"]);
            refused(tcuda_communicator_query(comm, &mut false), TCUDA_ERROR_REMOTE, &["remote"]);
            ok(tcuda_communicator_abort(comm));
            ok(tcuda_communicator_destroy(comm));
            assert_eq!(said(), "");
        }
        // NCCL itself, at each step of a call.
        for function in ["ncclGroupStart", "ncclAllReduce", "ncclGroupEnd", "ncclCommGetAsyncError"] {
            set("FAKE_NCCL", "");
            let comm = init();
            said();
            set("FAKE_NCCL", &format!("{function}:3"));
            refused(call(comm), TCUDA_ERROR_NCCL, &["(3)", function]);
            assert!(said().ends_with("abort 0\n"), "{function}");
            refused(call(comm), TCUDA_ERROR_NCCL, &["(3)", function]);
        }
        set("FAKE_NCCL", "ncclGetUniqueId:2");
        let mut id = tcuda_communicator_id_t { bytes: [9; 128] };
        refused(tcuda_communicator_unique_id(&mut id), TCUDA_ERROR_NCCL, &["ncclGetUniqueId"]);
        assert_eq!(id.bytes, [9; 128]);
        // Every group that was begun has ended.
        let count = |name| calls("libnccl.so.2", "fake_nccl_calls", name);
        assert_eq!(count("ncclGroupStart"), count("ncclGroupEnd") + 1);
    });
}

/// With others NCCL keeps the order of calls on several streams; alone it copies at once.
#[test]
fn alone_a_call_waits_for_the_one_before() {
    let machine = |machine: Machine| working(machine).with(NCCL, &nccl(22809, &[]));
    case("alone_a_call_waits_for_the_one_before", machine, || unsafe {
        let waits = || calls("libcudart.so.13", "fake_runtime_calls", "cudaStreamWaitEvent");
        let (mut alone, mut streams, mut block) = (null_mut(), [null_mut(); 2], null_mut());
        ok(tcuda_communicator_init_rank(&mut alone, 1, &id(), 0, 1, null()));
        streams.iter_mut().for_each(|stream| ok(tcuda_stream_create(stream, 1, 0)));
        ok(tcuda_malloc_cached(&mut block, 24, streams[0]));
        let tensor = Tensor::of(block as usize, F32, 6);
        let reduce = |comm, stream: usize| tcuda_communicator_all_reduce(comm, &tensor.view, &tensor.view, 0, streams[stream]);
        // In a group the later call has the last one of both streams to wait for.
        for (comm, expected) in [(init(), [0, 0, 0]), (alone, [0, 1, 4])] {
            let before = waits();
            ok(reduce(comm, 0));
            assert_eq!(waits() - before, expected[0]);
            ok(reduce(comm, 1));
            assert_eq!(waits() - before, expected[1]);
            ok(tcuda_communicator_group_start());
            ok(reduce(comm, 0));
            ok(reduce(comm, 1));
            ok(tcuda_communicator_group_end());
            assert_eq!(waits() - before, expected[2]);
        }
    });
}
