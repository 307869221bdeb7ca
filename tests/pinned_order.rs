//! Pinned memory and the streams that use it, where it is hard: slow streams beside quick ones, streams and threads that end, host functions
//! that free, captures, the limit, calls that fail half way. One simulated machine, so the tests take turns.

mod gate;
mod gone;
mod marks;

use gate::Gate;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, mpsc};
use std::time::Duration;
use tcuda::base::{Status, config};
use tcuda::memory::{self, pinned};
use tcuda::runtime::{self, api::Place, code, sim};
use tcuda::stream::{self, Stream};
use tcuda::{copy, device, event};

const M: usize = 1 << 20;
const DEFAULT: Stream = Stream { device: 0, raw: 0 };
const PER_THREAD: Stream = Stream { device: 0, raw: 2 };

static TURN: Mutex<()> = Mutex::new(());

/// A machine that holds no pinned memory.
fn machine() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    config::set("TCUDA_BACKEND", "sim".into());
    runtime::runtime().unwrap();
    sim::machine().unwrap().faults().clear();
    memory::set_options(None).unwrap();
    pinned::set_limit(None).unwrap();
    pinned::empty_cache().unwrap();
    pinned::reset_accumulated_stats();
    turn
}

fn own() -> Stream {
    stream::create(0, 0).unwrap()
}

/// For the order only: nothing depends on how long it takes.
fn busy(stream: Stream, milliseconds: u64) {
    sim::machine().unwrap().delay(stream.raw, Duration::from_millis(milliseconds));
}

fn count(call: &str) -> u64 {
    sim::machine().unwrap().faults().count(Some(call)).unwrap()
}

fn fail(call: &str, nth: u64, code: i32) {
    sim::machine().unwrap().faults().fail_at(Some(call), nth, code).unwrap();
}

fn allocate(size: usize) -> usize {
    pinned::allocate(size).unwrap()
}

/// Frees a block that a stream uses.
fn free_used(block: usize, stream: Stream) {
    pinned::record_stream(block, stream).unwrap();
    pinned::free(block).unwrap();
}

fn held() -> usize {
    pinned::stats().allocated_bytes.current as usize
}

/// A block that stays for long is used by streams, threads and graphs that come and go.
#[test]
fn nothing_is_kept_of_who_used_a_block_in_use() {
    let _turn = machine();
    let block = allocate(4096);
    let uses = |stream: Stream| pinned::record_stream(block, stream).unwrap();
    let graph = |_: usize| pinned::Keeper::new().keep(block);
    let users = pinned::users();
    (0..200).for_each(|_| gone::idle_stream(uses));
    (0..200).for_each(|_| gone::thread(uses));
    (0..200).for_each(graph);
    assert_eq!(pinned::users(), users);
    (0..40).for_each(|_| gone::busy_streams(uses));
    assert!(pinned::users() - users <= 16 + 5, "{} of {users}", pinned::users());
    pinned::check();
    pinned::free(block).unwrap();
    pinned::settle();
    assert_eq!(pinned::users(), users);
    pinned::check();
}

/// Has the thread's default stream work on its block and frees it, when the thread is in its last destructors.
unsafe extern "C" fn free_late(late: *mut c_void) {
    let (block, gates) = *unsafe { Box::from_raw(late.cast::<(usize, mpsc::Sender<Gate>)>()) };
    gates.send(Gate::on(PER_THREAD)).unwrap();
    pinned::free(block).unwrap();
}

/// Work on the default stream that it used has ended with the thread's own values, and by then is work on another one.
#[test]
fn what_a_destructor_frees_waits_for_the_default_stream_that_there_is() {
    let _turn = machine();
    let mut key = 0;
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(free_late)) }, 0);
    for size in [512, 4096, 8 * M] {
        for is_idle in [true, false] {
            let (send, gates) = mpsc::channel::<Gate>();
            let (freed, before) = std::thread::spawn(move || {
                let block = allocate(size);
                pinned::record_stream(block, PER_THREAD).unwrap();
                let late = Box::into_raw(Box::new((block, send)));
                assert_eq!(unsafe { libc::pthread_setspecific(key, late.cast()) }, 0);
                (block, if is_idle { None } else { Some(Gate::on(PER_THREAD)) })
            })
            .join()
            .unwrap();
            let gate = gates.recv().unwrap();
            drop(before);
            let others: Vec<usize> = (0..3).map(|_| allocate(size)).collect();
            assert!(!others.contains(&freed), "{size} bytes, idle {is_idle}: a block in use went to another thread");
            drop(gate);
            others.into_iter().for_each(|block| pinned::free(block).unwrap());
            pinned::empty_cache().unwrap();
            assert_eq!(held(), 0);
            pinned::check();
        }
    }
    assert_eq!(unsafe { libc::pthread_key_delete(key) }, 0);
}

/// The last mark of a stream that is gone is all that tells of it but the device as a whole.
#[test]
fn a_last_mark_outlives_a_question_that_fails() {
    let _turn = machine();
    let stream = own();
    let block = allocate(4096);
    let gate = Gate::on(stream);
    free_used(block, stream);
    stream::destroy(stream.raw).unwrap();
    fail("cudaThreadExchangeStreamCaptureMode", 1, code::INVALID_VALUE);
    pinned::settle();
    // By a block of its own the device is waited for.
    let waits = count("cudaMalloc");
    drop(gate);
    pinned::empty_cache().unwrap();
    assert_eq!((held(), count("cudaMalloc")), (0, waits));
}

#[test]
fn a_block_comes_back_to_nobody_before_its_stream_is_past() {
    let _turn = machine();
    let stream = own();
    for size in [512, 4096, 8 * M] {
        let block = allocate(size);
        let gate = Gate::on(stream);
        free_used(block, stream);
        let other = allocate(size);
        assert!(other != block, "memory that a copy may read was given to the host");
        assert_eq!(pinned::stats().active_requests.current, 2);
        drop(gate);
        stream.synchronize().unwrap();
        let again = allocate(size);
        assert_eq!(again, block);
        [other, again].into_iter().for_each(|block| pinned::free(block).unwrap());
    }
    stream::destroy(stream.raw).unwrap();
}

/// torch has one queue for all streams: what is behind a slow stream's block waits for it.
#[test]
fn a_slow_stream_holds_up_its_own_blocks_only() {
    let _turn = machine();
    let (slow, quick) = (own(), own());
    let blocks = [allocate(2 * M), allocate(2 * M), allocate(2 * M)];
    let gate = Gate::on(slow);
    free_used(blocks[0], slow);
    busy(quick, 20);
    free_used(blocks[1], quick);
    pinned::record_stream(blocks[2], quick).unwrap();
    free_used(blocks[2], slow);
    quick.synchronize().unwrap();
    assert_eq!(allocate(2 * M), blocks[1]);
    let more = allocate(2 * M);
    assert!(!blocks.contains(&more));
    drop(gate);
    [blocks[1], more].into_iter().for_each(|block| pinned::free(block).unwrap());
    [slow, quick].into_iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
}

/// Work that a stream gets after the free does not hold the block up, once memory was asked for in between.
#[test]
fn a_stream_that_never_rests_gives_blocks_back() {
    let _turn = machine();
    for stream in [own(), DEFAULT] {
        let first = allocate(2 * M);
        let start = Gate::on(stream);
        free_used(first, stream);
        let second = allocate(2 * M);
        // The mark stands; from here on the stream is busy without an end.
        let middle = event::create(2).unwrap();
        event::record(middle, stream).unwrap();
        let end = Gate::on(stream);
        drop(start);
        event::synchronize(middle).unwrap();
        assert_eq!(allocate(2 * M), first);
        assert_eq!(stream.query(), Ok(false));
        drop(end);
        event::destroy(middle).unwrap();
        [first, second].into_iter().for_each(|block| pinned::free(block).unwrap());
        stream.synchronize().unwrap();
    }
}

#[test]
fn no_event_is_recorded_for_blocks_that_no_stream_used() {
    let _turn = machine();
    let calls = || sim::machine().unwrap().faults().count(None).unwrap();
    let warm = allocate(64 * M);
    pinned::free(warm).unwrap();
    let before = calls();
    for size in [100, 4096, 5 * M, 100, 4096, 5 * M] {
        let block = allocate(size);
        pinned::free(block).unwrap();
    }
    // The first small block is of a segment of its own.
    assert!(calls() - before <= 8, "{} calls of the driver", calls() - before);
    let (before, events) = (calls(), count("cudaEventRecord"));
    for _ in 0..100 {
        let blocks = [allocate(100), allocate(4096), allocate(5 * M), allocate(7 * M)];
        blocks.into_iter().for_each(|block| pinned::free(block).unwrap());
    }
    assert_eq!((calls(), count("cudaEventRecord")), (before, events));
}

#[test]
fn a_busy_stream_is_marked_a_few_times_only() {
    let _turn = machine();
    let stream = own();
    let gate = Gate::on(stream);
    let events = count("cudaEventRecord");
    for _ in 0..100 {
        let block = allocate(4096);
        free_used(block, stream);
    }
    assert!(count("cudaEventRecord") - events <= 8);
    drop(gate);
    stream::destroy(stream.raw).unwrap();
}

#[test]
fn copies_note_their_use() {
    let _turn = machine();
    let stream = own();
    let far = memory::allocate(M, 1, stream).unwrap();
    // Into the middle of a block and out of it, and set.
    type Use = fn(usize, usize, Stream);
    let uses: [Use; 3] = [
        |block, far, stream| copy::copy_async(far, block + 4096, M / 2, stream.raw).unwrap(),
        |block, far, stream| copy::copy_async(block + 4096, far, M / 2, stream.raw).unwrap(),
        |block, _, stream| copy::memset_async(block + 5, 1, M / 2, stream.raw).unwrap(),
    ];
    for used in uses {
        let block = allocate(M);
        let gate = Gate::on(stream);
        used(block, far, stream);
        pinned::free(block).unwrap();
        let other = allocate(M);
        assert!(other != block);
        drop(gate);
        pinned::free(other).unwrap();
        stream.synchronize().unwrap();
    }
    // On the current stream, without waiting; and one that waits leaves no use behind.
    for non_blocking in [true, false] {
        pinned::empty_cache().unwrap();
        let block = allocate(M);
        let gate = Gate::on(DEFAULT);
        let (kept, opener) = if non_blocking { (Some(gate), None) } else { (None, Some(std::thread::spawn(move || drop(gate)))) };
        copy::copy(far, block, M, non_blocking).unwrap();
        pinned::free(block).unwrap();
        let other = allocate(M);
        assert_eq!((other != block, pinned::stats().active_requests.current), if non_blocking { (true, 2) } else { (false, 1) });
        drop(kept);
        opener.into_iter().for_each(|opener| opener.join().unwrap());
        pinned::free(other).unwrap();
        DEFAULT.synchronize().unwrap();
    }
    memory::free(far).unwrap();
    stream::destroy(stream.raw).unwrap();
}

/// The bytes of a copy under way are what they were when it was enqueued, whatever the host does with new blocks.
#[test]
fn what_is_on_its_way_is_not_written_over() {
    let _turn = machine();
    const SIZE: usize = 256 << 10;
    let stream = own();
    let far: Vec<usize> = (0..20).map(|_| memory::allocate(SIZE, 1, stream).unwrap()).collect();
    let write = |block: usize, value: u8| unsafe { std::ptr::write_bytes(block as *mut u8, value, SIZE) };
    for (round, target) in far.iter().enumerate() {
        let block = allocate(SIZE);
        write(block, round as u8);
        busy(stream, 3);
        copy::copy_async(*target, block, SIZE, stream.raw).unwrap();
        pinned::free(block).unwrap();
    }
    stream.synchronize().unwrap();
    for (round, source) in far.into_iter().enumerate() {
        let mut bytes = vec![0u8; SIZE];
        copy::copy(bytes.as_mut_ptr() as usize, source, SIZE, false).unwrap();
        assert!(bytes.iter().all(|byte| *byte == round as u8), "round {round}");
        memory::free(source).unwrap();
    }
    stream::destroy(stream.raw).unwrap();
}

#[test]
fn at_the_limit_it_waits_for_what_is_enough() {
    let _turn = machine();
    let (a, b) = (own(), own());
    let blocks = [allocate(10 * M), allocate(20 * M)];
    pinned::set_limit(Some(30 * M)).unwrap();
    let gate = Gate::on(a);
    busy(b, 50);
    free_used(blocks[0], a);
    free_used(blocks[1], b);
    // The older block is too small: its stream is not waited for.
    assert_eq!(allocate(15 * M), blocks[1]);
    pinned::free(blocks[1]).unwrap();
    drop(gate);
    busy(a, 50);
    // Too large for either: all is waited for and given back.
    let whole = allocate(30 * M);
    assert!(a.query().unwrap());
    assert_eq!(held(), 30 * M);
    let error = pinned::allocate(1).unwrap_err();
    assert_eq!(error.status, Status::TCUDA_ERROR_OUT_OF_HOST_MEMORY);
    for fact in ["Tried to allocate 512 bytes", "limit is 30.00 MiB", "holds 30.00 MiB, of which 30.00 MiB is in use", "0 bytes is free"] {
        assert!(error.message.contains(fact), "{fact}: {error}");
    }
    pinned::free(whole).unwrap();
    [a, b].into_iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
}

#[test]
fn a_machine_without_memory_errs_with_the_facts_and_keeps_what_it_has() {
    let _turn = machine();
    let block = allocate(4 * M);
    fail("cudaHostAlloc", 0, code::OUT_OF_MEMORY);
    let error = pinned::allocate(64 * M).unwrap_err();
    assert_eq!((error.status, error.native, error.bytes), (Status::TCUDA_ERROR_OUT_OF_HOST_MEMORY, code::OUT_OF_MEMORY, 64 << 20));
    assert!(error.message.contains("cudaHostAlloc") && error.message.contains("holds 4.00 MiB"), "{error}");
    sim::machine().unwrap().faults().clear();
    assert_eq!(pinned::allocate(1 << 50).unwrap_err().status, Status::TCUDA_ERROR_OUT_OF_HOST_MEMORY);
    assert_eq!(held(), 4 * M);
    pinned::free(block).unwrap();
    pinned::check();
}

#[test]
fn memory_that_the_driver_does_not_take_back_stays() {
    let _turn = machine();
    let block = allocate(8 * M);
    pinned::free(block).unwrap();
    fail("cudaFreeHost", 1, code::INVALID_VALUE);
    assert!(pinned::empty_cache().is_err());
    assert_eq!((held(), pinned::stats().num_host_free), (8 * M, 0));
    pinned::check();
    assert_eq!(allocate(8 * M), block);
    pinned::free(block).unwrap();
    pinned::empty_cache().unwrap();
    assert_eq!((held(), sim::machine().unwrap().live(0..1).pinned_blocks), (0, 0));
}

/// A free asks the driver nothing, so that a host function may do it.
#[test]
fn host_functions_may_free() {
    let _turn = machine();
    static DONE: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn free_both(blocks: *mut c_void) {
        let blocks = *unsafe { Box::from_raw(blocks.cast::<[usize; 2]>()) };
        blocks.into_iter().for_each(|block| pinned::free(block).unwrap());
        DONE.store(true, Ordering::SeqCst);
    }
    let stream = own();
    let blocks = [allocate(M), allocate(M)];
    pinned::record_stream(blocks[0], stream).unwrap();
    let runtime = runtime::runtime().unwrap();
    unsafe { runtime.launch_host_function(stream.raw, free_both, Box::into_raw(Box::new(blocks)).cast()) }.unwrap();
    stream.synchronize().unwrap();
    assert!(DONE.load(Ordering::SeqCst));
    let again = [allocate(M), allocate(M)];
    assert!(again.iter().all(|block| blocks.contains(block)));
    again.into_iter().for_each(|block| pinned::free(block).unwrap());
    stream::destroy(stream.raw).unwrap();
}

#[test]
fn streams_that_go_take_their_order_along() {
    let _turn = machine();
    let stream = own();
    // Freed before it goes, and after.
    let blocks = [allocate(M), allocate(M)];
    blocks.into_iter().for_each(|block| pinned::record_stream(block, stream).unwrap());
    pinned::free(blocks[0]).unwrap();
    let gate = Gate::on(stream);
    stream::destroy(stream.raw).unwrap();
    pinned::free(blocks[1]).unwrap();
    let other = allocate(M);
    assert!(!blocks.contains(&other), "given out while in use");
    drop(gate);
    pinned::empty_cache().unwrap();
    assert_eq!(pinned::stats().active_requests.current, 1);
    pinned::free(other).unwrap();
    // One whose last mark cannot be had is waited for with its device.
    let stream = own();
    let block = allocate(M);
    busy(stream, 50);
    fail("cudaEventRecord", 0, code::INVALID_VALUE);
    pinned::record_stream(block, stream).unwrap();
    stream::destroy(stream.raw).unwrap();
    sim::machine().unwrap().faults().clear();
    pinned::free(block).unwrap();
    pinned::empty_cache().unwrap();
    assert_eq!((held(), pinned::stats().active_bytes.current), (0, 0));
}

#[test]
fn threads_that_end_leave_nothing_behind() {
    let _turn = machine();
    let used = allocate(M);
    let thread = std::thread::spawn(move || {
        let blocks: Vec<usize> = (0..5).map(|_| allocate(2 * M)).collect();
        blocks.iter().for_each(|block| pinned::free(*block).unwrap());
        pinned::record_stream(used, PER_THREAD).unwrap();
        busy(PER_THREAD, 50);
        allocate(3 * M)
    });
    let last = thread.join().unwrap();
    pinned::free(used).unwrap();
    pinned::free(last).unwrap();
    pinned::check();
    pinned::empty_cache().unwrap();
    let stats = pinned::stats();
    assert_eq!((held(), stats.active_requests.current, stats.active_requests.allocated), (0, 0, 7));
}

#[test]
fn a_capturing_stream_is_neither_asked_nor_waited_for() {
    let _turn = machine();
    let stream = own();
    let block = allocate(4 * M);
    pinned::record_stream(block, stream).unwrap();
    let gate = Gate::on(stream);
    pinned::free(block).unwrap();
    let runtime = runtime::runtime().unwrap();
    runtime.begin_capture(stream.raw, 2).unwrap();
    let (queries, events) = (count("cudaStreamQuery"), count("cudaEventRecord"));
    pinned::set_limit(Some(4 * M)).unwrap();
    let error = pinned::allocate(4 * M).unwrap_err();
    assert!(error.message.contains("end the capture"), "{error}");
    assert_eq!((count("cudaStreamQuery"), count("cudaEventRecord")), (queries, events));
    let graph = runtime.end_capture(stream.raw).unwrap();
    runtime.graph_destroy(graph).unwrap();
    drop(gate);
    assert_eq!(allocate(4 * M), block);
    pinned::free(block).unwrap();
    let modes = count("cudaThreadExchangeStreamCaptureMode");
    let other = allocate(M);
    free_used(other, stream);
    pinned::empty_cache().unwrap();
    assert!(count("cudaThreadExchangeStreamCaptureMode") >= modes + 4, "asking, waiting and giving back, in and out");
    stream::destroy(stream.raw).unwrap();
}

#[test]
fn a_last_mark_that_was_captured_loses_no_memory() {
    let _turn = machine();
    let stream = own();
    let block = allocate(4 * M);
    let gate = Gate::on(stream);
    free_used(block, stream);
    let mark = marks::next();
    stream::destroy(stream.raw).unwrap();
    marks::capture(mark);
    drop(gate);
    pinned::set_limit(Some(4 * M)).unwrap();
    assert_eq!(allocate(4 * M), block);
    pinned::free(block).unwrap();
    pinned::set_limit(None).unwrap();
}

/// Blocks with the same uses end together: for five no more is asked than for one.
#[test]
fn equal_uses_are_waited_for_once() {
    let _turn = machine();
    let asked = [1, 5].map(|blocks| {
        let stream = own();
        let gate = Gate::on(stream);
        let blocks: Vec<usize> = (0..blocks).map(|_| allocate(4 * M)).collect();
        blocks.iter().for_each(|block| free_used(*block, stream));
        pinned::set_limit(Some(held())).unwrap();
        let before = count("cudaStreamIsCapturing");
        let runtime = runtime::runtime().unwrap();
        runtime.begin_capture(stream.raw, 2).unwrap();
        assert!(pinned::allocate(4 * M).is_err());
        let graph = runtime.end_capture(stream.raw).unwrap();
        runtime.graph_destroy(graph).unwrap();
        let asked = count("cudaStreamIsCapturing") - before;
        drop(gate);
        stream.synchronize().unwrap();
        pinned::set_limit(None).unwrap();
        pinned::empty_cache().unwrap();
        stream::destroy(stream.raw).unwrap();
        asked
    });
    assert!(asked[0] > 0 && asked[0] == asked[1], "{asked:?}");
}

/// With nothing over the limit there is nothing to give back for it, so the driver is not asked the same again.
#[test]
fn what_the_driver_refused_is_not_asked_again_with_nothing_changed() {
    let _turn = machine();
    let kept = allocate(M);
    pinned::free(kept).unwrap();
    for limit in [None, Some(1 << 30)] {
        pinned::set_limit(limit).unwrap();
        fail("cudaHostAlloc", 0, code::OUT_OF_MEMORY);
        let before = count("cudaHostAlloc");
        assert!(pinned::allocate(8 * M).is_err());
        assert_eq!(count("cudaHostAlloc") - before, 2, "once as it is, once with all free memory given back");
        sim::machine().unwrap().faults().clear();
    }
    assert_eq!(held(), 0);
}

#[test]
fn options_choose_where_memory_comes_from() {
    let _turn = machine();
    let options = |text: &str| memory::set_options(Some(text.into())).unwrap();
    let live = || {
        let live = sim::machine().unwrap().live(0..1);
        (live.pinned_blocks, live.registered_blocks)
    };
    for text in ["pinned_use_cuda_host_register:True,pinned_num_register_threads:4", "pinned_use_cuda_host_register:True"] {
        options(text);
        let block = allocate(5 * M + 1);
        assert_eq!(live(), (0, 1));
        unsafe { std::ptr::write_bytes(block as *mut u8, 7, 5 * M) };
        options("");
        pinned::free(block).unwrap();
        pinned::empty_cache().unwrap();
        assert_eq!(live(), (0, 0));
    }
    options("pinned_use_cuda_host_register:True");
    fail("cudaHostRegister", 1, code::NOT_SUPPORTED);
    assert_eq!(pinned::allocate(M).unwrap_err().status, Status::TCUDA_ERROR_NOT_SUPPORTED);
    let node = runtime::host::nodes()[0];
    for text in ["pinned_numa_node:any".to_owned(), format!("pinned_numa_node:{node}"), "pinned_numa_node:device".to_owned()] {
        options(&text);
        pinned::free(allocate(M)).unwrap();
        pinned::empty_cache().unwrap();
    }
    options("pinned_numa_node:1023");
    assert!(pinned::allocate(M).unwrap_err().message.contains("pinned_numa_node"));
    assert_eq!(live(), (0, 0));
    options("pinned_reserve_segment_size_mb:64");
    let blocks = [allocate(100), allocate(10 * M), allocate(30 * M), allocate(4096)];
    assert_eq!((held(), pinned::stats().allocations.current), (66 * M, 2));
    blocks.into_iter().for_each(|block| pinned::free(block).unwrap());
    pinned::empty_cache().unwrap();
    options("pinned_limit_mb:10,pinned_max_cached_size_mb:4");
    assert_eq!(pinned::limit(), Ok(Some(10 * M)));
    let large = allocate(8 * M);
    assert!(pinned::allocate(4 * M).is_err());
    pinned::free(large).unwrap();
    let small = allocate(M);
    assert_eq!(held(), 2 * M, "the large segment went back");
    pinned::free(small).unwrap();
    memory::set_options(None).unwrap();
    assert_eq!(pinned::limit(), Ok(None));
}

/// Pinning something must not make a context on a device that the program does not use: here the one that is current. In a process of its
/// own, since the other tests use it.
#[test]
fn a_device_with_a_context_does_it() {
    const ALONE: &str = "TCUDA_PINNED_CONTEXT";
    if std::env::var_os(ALONE).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--exact", "a_device_with_a_context_does_it", "--nocapture"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("contexts: false, true"), "{said}{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    config::set("TCUDA_BACKEND", "sim".into());
    let runtime = runtime::runtime().unwrap();
    std::thread::spawn(|| device::set(1).unwrap()).join().unwrap();
    let has_context = |device| runtime.has_primary_context(device).unwrap();
    assert!(!has_context(0) && has_context(1), "another thread uses device 1 only");
    let block = allocate(4 * M);
    let mut own = vec![0u8; 8192];
    pinned::register(own.as_mut_ptr() as usize, own.len(), 0).unwrap();
    pinned::unregister(own.as_ptr() as usize).unwrap();
    assert!(matches!(runtime.place_of(block), Ok(Place::Pinned { .. })));
    pinned::free(block).unwrap();
    pinned::empty_cache().unwrap();
    assert_eq!(device::current(), Ok(0));
    println!("contexts: {}, {}", has_context(0), has_context(1));
}

#[test]
fn many_threads_free_each_others_blocks() {
    let _turn = machine();
    let streams: Vec<Stream> = (0..3).map(|_| own()).collect();
    pinned::set_limit(Some(96 * M)).unwrap();
    let (send, receive) = mpsc::channel::<(usize, usize, u8)>();
    let receive = std::sync::Arc::new(Mutex::new(receive));
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let (streams, send, receive) = (streams.clone(), send.clone(), receive.clone());
            std::thread::spawn(move || {
                let mut random = thread * 7919 + 12345;
                for round in 0..3000u32 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let size = if random % 3 == 0 { random as usize % M + 1 } else { 16_384 };
                    let block = allocate(size);
                    let mine = random as u8;
                    unsafe { std::ptr::write_bytes(block as *mut u8, mine, size) };
                    if random % 5 == 0 {
                        pinned::record_stream(block, streams[random as usize / 7 % 3]).unwrap();
                        busy(streams[random as usize / 7 % 3], 0);
                    }
                    send.send((block, size, mine)).unwrap();
                    if let Ok((block, size, value)) = receive.lock().unwrap().try_recv() {
                        let bytes = unsafe { std::slice::from_raw_parts(block as *const u8, size) };
                        assert!(bytes[0] == value && bytes[size / 2] == value && bytes[size - 1] == value, "two had one block");
                        pinned::free(block).unwrap();
                    }
                    if round % 500 == 0 {
                        pinned::empty_cache().unwrap();
                        pinned::stats();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    receive.lock().unwrap().try_iter().for_each(|(block, _, _)| pinned::free(block).unwrap());
    pinned::check();
    pinned::empty_cache().unwrap();
    assert_eq!((held(), pinned::stats().active_requests.current), (0, 0));
    streams.into_iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
}
