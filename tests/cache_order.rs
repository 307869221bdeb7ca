//! The order of streams and the ladder of the device cache, where it is hard: streams and threads that end, streams that others
//! destroyed, failures between two steps, several threads at the limit. One simulated machine, so the tests take turns.

mod gate;
mod gone;
mod marks;

use gate::Gate;
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, mpsc};
use tcuda::base::{Status, config};
use tcuda::device;
use tcuda::memory::pools::{self, Options};
use tcuda::memory::provider::Source;
use tcuda::memory::{self, captures, stats::Family, stats::Pool};
use tcuda::runtime::{self, code, sim};
use tcuda::stream::{self, Stream};

const M: usize = 1 << 20;
/// cudaStreamCaptureModeRelaxed.
const RELAXED: i32 = 2;
const DEFAULT: Stream = Stream { device: 0, raw: 0 };
const PER_THREAD: Stream = Stream { device: 0, raw: 2 };

static TURN: Mutex<()> = Mutex::new(());

/// A machine with nothing in its cache.
fn machine() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    config::set("TCUDA_BACKEND", "sim".into());
    runtime::runtime().unwrap();
    sim::machine().unwrap().faults().clear();
    memory::set_limit(None, 0).unwrap();
    memory::empty_cache(None).unwrap();
    turn
}

fn own() -> Stream {
    stream::create(0, 0).unwrap()
}

fn held(family: Family) -> usize {
    memory::current(family, 0) as usize
}

/// A block that stays for long is used on streams, and on threads' default streams, that come and go.
#[test]
fn streams_that_used_a_block_in_use_leave_their_slots() {
    let _turn = machine();
    let owner = own();
    let block = memory::allocate(4 * M, 1, owner).unwrap();
    let uses = |stream: Stream| memory::record_stream(block, stream).unwrap();
    let slots = memory::slots(0);
    (0..200).for_each(|_| gone::idle_stream(uses));
    (0..40).for_each(|_| gone::busy_streams(uses));
    (0..200).for_each(|_| gone::thread(uses));
    let more = memory::slots(0) - slots;
    assert!(more <= 16 + 5, "{more} slots more");
    memory::free(block).unwrap();
    memory::check(0);
    stream::destroy(owner.raw).unwrap();
}

#[test]
fn a_destroy_that_fails_leaves_the_order_as_it_was() {
    let _turn = machine();
    let (a, b) = (own(), own());
    let block = memory::allocate(8 * M, 1, a).unwrap();
    sim::machine().unwrap().faults().fail_at(Some("cudaStreamGetPriority"), 1, code::INVALID_VALUE).unwrap();
    assert!(stream::destroy(a.raw).is_err());
    let gate = Gate::on(a);
    memory::free(block).unwrap();
    let other = memory::allocate(8 * M, 1, b).unwrap();
    assert!(other != block, "memory of a busy stream went to another");
    drop(gate);
    memory::free(other).unwrap();
    stream::destroy(a.raw).unwrap();
    stream::destroy(b.raw).unwrap();
}

/// What comes behind the legacy default stream is in order with its work, and who takes memory of such a stream is not by itself.
#[test]
fn a_stream_behind_the_legacy_one_is_past_when_that_is() {
    let _turn = machine();
    let runtime = runtime::runtime().unwrap();
    let raw = runtime.stream_create(0, 0).unwrap();
    let (blocking, other) = (stream::resolve(raw).unwrap(), own());
    for behind in [blocking, PER_THREAD] {
        memory::empty_cache(None).unwrap();
        memory::set_limit(Some(64 * M), 0).unwrap();
        let block = memory::allocate(40 * M, 1, behind).unwrap();
        let gate = Gate::on(DEFAULT);
        memory::free(block).unwrap();
        let took = memory::allocate(20 * M, 1, other).unwrap();
        assert!(!(block..block + 40 * M).contains(&took), "memory that the legacy stream may use went to another");
        drop(gate);
        DEFAULT.synchronize().unwrap();
        let next = memory::allocate(40 * M, 1, other).unwrap();
        assert_eq!(next, block);
        [took, next].into_iter().for_each(|block| memory::free(block).unwrap());
        memory::set_limit(None, 0).unwrap();
    }
    stream::destroy(other.raw).unwrap();
    runtime.stream_destroy(raw).unwrap();
    memory::empty_cache(None).unwrap();
    memory::check(0);
}

/// The mark of a stream that is gone is the last that tells of it.
#[test]
fn a_wait_that_is_refused_can_be_made_again() {
    let _turn = machine();
    let (a, b, captured) = (own(), own(), own());
    memory::set_limit(Some(64 * M), 0).unwrap();
    let block = memory::allocate(40 * M, 1, a).unwrap();
    let gate = Gate::on(a);
    memory::free(block).unwrap();
    stream::destroy(a.raw).unwrap();
    let faults = sim::machine().unwrap().faults();
    faults.fail_at(Some("cudaEventSynchronize"), 1, code::INVALID_VALUE).unwrap();
    assert!(memory::allocate(40 * M, 1, b).is_err());
    drop(gate);
    // What is captured forbids to wait for the device as a whole.
    let runtime = runtime::runtime().unwrap();
    runtime.begin_capture(captured.raw, 2).unwrap();
    let next = memory::allocate(40 * M, 1, b).unwrap();
    assert_eq!(next, block);
    let graph = runtime.end_capture(captured.raw).unwrap();
    runtime.graph_destroy(graph).unwrap();
    memory::free(next).unwrap();
    memory::set_limit(None, 0).unwrap();
    [b, captured].into_iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
    memory::empty_cache(None).unwrap();
    memory::check(0);
}

/// Who reads the statistics holds nobody up, and asks the driver little, be it that a block waits for a busy stream.
#[test]
fn statistics_are_read_beside_blocks_that_wait() {
    let _turn = machine();
    let (a, b) = (own(), own());
    let block = memory::allocate(8 * M, 1, a).unwrap();
    memory::record_stream(block, b).unwrap();
    let gate = Gate::on(b);
    memory::free(block).unwrap();
    assert_eq!(held(Family::ActiveBytes), 8 * M);
    let faults = sim::machine().unwrap().faults();
    let kept = memory::allocate(4096, 1, a).unwrap();
    let stops = memory::stops(0);
    faults.reset_counts();
    for _ in 0..100 {
        assert_eq!((held(Family::AllocatedBytes), held(Family::ReservedBytes) >= 8 * M), (4096, true));
    }
    assert_eq!(faults.count(None).unwrap(), 0);
    for _ in 0..100 {
        assert_eq!(memory::stats(0).get(Family::ActiveBytes, Pool::All).current as usize, 8 * M + 4096);
        // The thread goes on as if nobody read.
        memory::free(memory::allocate(4096, 1, a).unwrap()).unwrap();
    }
    assert_eq!(memory::stops(0), stops);
    assert_eq!(faults.count(Some("cudaEventRecord")).unwrap(), 0);
    drop(gate);
    b.synchronize().unwrap();
    // Nobody allocates, and yet it is seen.
    assert_eq!(held(Family::ActiveBytes), 4096);
    memory::free(kept).unwrap();
    [a, b].into_iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
    memory::empty_cache(None).unwrap();
    memory::check(0);
}

/// A look costs by what there is, not by how many streams there are or were.
#[test]
fn streams_of_which_nothing_is_left_are_not_looked_at() {
    let _turn = machine();
    let streams: Vec<Stream> = (0..200).map(|_| own()).collect();
    for stream in &streams {
        let block = memory::allocate(3 * M, 1, *stream).unwrap();
        memory::free(block).unwrap();
    }
    memory::check(0);
    let few = || assert!(memory::streams_awake(0) < 6, "{}", memory::streams_awake(0));
    few();
    // None of them is asked, but the one that freed last.
    let faults = sim::machine().unwrap().faults();
    faults.reset_counts();
    let block = memory::allocate(40 * M, 1, streams[5]).unwrap();
    assert!(faults.count(Some("cudaStreamQuery")).unwrap() < 3);
    memory::check(0);
    few();
    // What its own thread frees is found, and what another one brings, and what waits for a stream.
    memory::free(block).unwrap();
    assert_eq!(memory::allocate(40 * M, 1, streams[6]).unwrap(), block);
    memory::free(block).unwrap();
    let sleeper = streams[7];
    let block = memory::allocate(50 * M, 1, sleeper).unwrap();
    memory::check(0);
    few();
    std::thread::spawn(move || memory::free(block).unwrap()).join().unwrap();
    assert_eq!(memory::allocate(50 * M, 1, streams[9]).unwrap(), block);
    let user = streams[11];
    memory::record_stream(block, user).unwrap();
    let gate = Gate::on(user);
    memory::free(block).unwrap();
    let other = memory::allocate(50 * M, 1, streams[9]).unwrap();
    assert_ne!(other, block, "memory that a busy stream uses went to another");
    drop(gate);
    user.synchronize().unwrap();
    assert_eq!(memory::allocate(50 * M, 1, streams[13]).unwrap(), block);
    [block, other].into_iter().for_each(|block| memory::free(block).unwrap());
    streams.iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
    memory::empty_cache(None).unwrap();
    memory::check(0);
    few();
    assert_eq!(held(Family::ReservedBytes), 0);
}

/// Another stream has come to its slot: what was past stays past.
#[test]
fn what_a_stream_that_is_gone_left_mapped_ends() {
    const MANY: usize = 300;
    let _turn = machine();
    let (a, b) = (own(), own());
    memory::set_limit(Some(64 * M), 0).unwrap();
    let blocks: Vec<usize> = (0..16).map(|_| memory::allocate(4 * M, 1, a).unwrap()).collect();
    let gate = Gate::on(a);
    let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
    freed.into_iter().for_each(|(_, block)| memory::free(block).unwrap());
    // Mapped a second time for the stream itself, and handed on with no look at where it was before.
    let again = memory::allocate(32 * M, 1, a).unwrap();
    memory::free_on(again, b).unwrap();
    assert_eq!(memory::allocate(32 * M, 1, b).unwrap(), again);
    kept.into_iter().for_each(|(_, block)| memory::free(block).unwrap());
    drop(gate);
    memory::set_limit(None, 0).unwrap();
    let many = || -> Vec<(Stream, usize)> {
        let streams = (0..MANY).map(|_| own());
        streams.map(|own| (own, memory::allocate(512, 1, own).unwrap())).collect()
    };
    let end = |streams: Vec<(Stream, usize)>| {
        for (stream, block) in streams {
            memory::free(block).unwrap();
            stream::destroy(stream.raw).unwrap();
        }
    };
    let before = many();
    a.synchronize().unwrap();
    stream::destroy(a.raw).unwrap();
    end(before);
    // They get the slots of those.
    let streams = many();
    memory::empty_cache(None).unwrap();
    memory::check(0);
    let live = sim::machine().unwrap().live(0..1);
    assert_eq!(live.mappings, live.handles);
    end(streams);
    memory::free(again).unwrap();
    stream::destroy(b.raw).unwrap();
    memory::empty_cache(None).unwrap();
    assert_eq!(held(Family::ReservedBytes), 0);
}

/// Until a second thread allocates: then each stream keeps to its own first.
#[test]
fn streams_of_one_thread_take_what_fits_closest() {
    for second in [false, true] {
        let _turn = machine();
        let (a, b) = (own(), own());
        let allocate = |mib: usize, stream: Stream| memory::allocate(mib * M, 1, stream).unwrap();
        let (small, beside) = (allocate(4, b), allocate(4, b));
        let (large, behind) = (allocate(16, a), allocate(4, a));
        if second {
            let work = move || memory::free(memory::allocate(512, 1, b).unwrap()).unwrap();
            std::thread::spawn(work).join().unwrap();
        }
        memory::free(small).unwrap();
        // There is no room for that: what the other stream is done with becomes everybody's.
        let room = allocate(32, a);
        memory::free(large).unwrap();
        let found = allocate(4, a);
        assert_eq!(found, if second { large } else { small });
        if !second {
            assert_eq!(allocate(16, a), large);
            memory::free(large).unwrap();
            // Whose other streams are gone, or that asks for more than there is, is served as ever.
            stream::destroy(b.raw).unwrap();
            assert_eq!(allocate(16, a), large);
            memory::free(large).unwrap();
            for size in [1 << 41, (1 << 50) + 1, usize::MAX / 16] {
                assert_eq!(memory::allocate(size, 1, a).unwrap_err().status, Status::TCUDA_ERROR_OUT_OF_MEMORY);
            }
        }
        [beside, behind, room, found].into_iter().for_each(|block| memory::free(block).unwrap());
        memory::check(0);
        memory::empty_cache(None).unwrap();
        assert_eq!(held(Family::ReservedBytes), 0);
        stream::destroy(a.raw).unwrap();
        if second {
            stream::destroy(b.raw).unwrap();
        }
    }
}

#[test]
fn memory_of_threads_that_ended_is_used_again() {
    let _turn = machine();
    for size in [64 * M, 512] {
        for _ in 0..40 {
            let work = move || {
                let block = memory::allocate(size, 1, PER_THREAD).unwrap();
                PER_THREAD.synchronize().unwrap();
                memory::free(block).unwrap();
            };
            std::thread::spawn(work).join().unwrap();
        }
        assert!(held(Family::ReservedBytes) <= 64 * M + 2 * M, "each thread left memory behind");
    }
}

#[test]
fn blocks_that_ended_threads_used_are_done_with_the_device() {
    let _turn = machine();
    let block = memory::allocate(10 * M, 1, DEFAULT).unwrap();
    std::thread::spawn(move || memory::record_stream(block, PER_THREAD).unwrap()).join().unwrap();
    memory::free(block).unwrap();
    assert_eq!(held(Family::ActiveBytes), 0);
}

/// Not by the call that is meant for that: a capture that begins meanwhile would come to nothing.
#[test]
fn the_device_is_waited_for_beside_captures_that_begin() {
    let _turn = machine();
    let (works, captured) = (own(), own());
    let gate = Gate::on(works);
    let count = |call| sim::machine().unwrap().faults().count(Some(call)).unwrap();
    let calls = || ["cudaFree", "cudaDeviceSynchronize"].map(count);
    let [frees, waits] = calls();
    let waiting = std::thread::spawn(|| captures::wait_for_device(0).unwrap());
    while count("cudaFree") == frees {
        std::thread::yield_now();
    }
    let runtime = runtime::runtime().unwrap();
    runtime.begin_capture(captured.raw, RELAXED).unwrap();
    assert!(!waiting.is_finished(), "nobody waited");
    drop(gate);
    waiting.join().unwrap();
    assert_eq!(calls(), [frees + 1, waits]);
    let graph = runtime.end_capture(captured.raw).unwrap();
    runtime.graph_destroy(graph).unwrap();
    [works, captured].iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
}

/// Frees its block from a destructor of its thread, which has the thread's default stream work on it before that.
struct Late(RefCell<Option<(usize, mpsc::Sender<Gate>)>>);

impl Late {
    fn free(&self) {
        if let Some((block, gates)) = self.0.take() {
            // The slots of streams that are gone are looked at.
            for stream in [(); 20].map(|()| own()) {
                memory::free(memory::allocate(512, 1, stream).unwrap()).unwrap();
                stream::destroy(stream.raw).unwrap();
            }
            gates.send(Gate::on(PER_THREAD)).unwrap();
            memory::free(block).unwrap();
        }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.free();
    }
}

unsafe extern "C" fn free_late(late: *mut c_void) {
    drop(unsafe { Box::from_raw(late.cast::<Late>()) });
}

/// What a destructor frees waits for what the thread's default stream was given by then: one that runs last of the thread's own values, and one of a
/// pthread key, when that stream has ended and work on it is work on another one.
#[test]
fn what_a_thread_frees_in_its_last_destructors_waits_for_its_default_stream() {
    thread_local!(static LATE: Late = const { Late(RefCell::new(None)) });
    let _turn = machine();
    let other = own();
    let mut key = 0;
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(free_late)) }, 0);
    for (size, owner, is_key) in [8 * M, 3000].into_iter().flat_map(|size| {
        let cases = [(PER_THREAD, false), (PER_THREAD, true), (other, false), (other, true)];
        cases.map(move |(owner, is_key)| (size, owner, is_key))
    }) {
        memory::empty_cache(None).unwrap();
        let (send, gates) = mpsc::channel();
        let block = std::thread::spawn(move || {
            LATE.with(|_| ());
            let block = memory::allocate(size, 1, owner).unwrap();
            memory::record_stream(block, PER_THREAD).unwrap();
            let late = Some((block, send));
            if is_key {
                let late = Box::into_raw(Box::new(Late(RefCell::new(late))));
                assert_eq!(unsafe { libc::pthread_setspecific(key, late.cast()) }, 0);
            } else {
                LATE.with(|own| own.0.replace(late));
            }
            block
        });
        let block = block.join().unwrap();
        let has_block = |blocks: &[usize]| blocks.iter().any(|start| *start < block + size && block < start + size);
        let case = format!("{size} bytes of {owner:?}, by a key {is_key}");
        let gate = gates.recv().unwrap();
        let before: Vec<usize> = (0..4).map(|_| memory::allocate(size, 1, other).unwrap()).collect();
        assert!(!has_block(&before), "{case}: a block that the device uses went to another stream");
        drop(gate);
        device::synchronize(0).unwrap();
        memory::set_limit(Some(held(Family::ReservedBytes)), 0).unwrap();
        let after: Vec<usize> = std::iter::from_fn(|| memory::allocate(size, 1, other).ok()).collect();
        assert!(has_block(&after), "{case}: what is past serves nobody");
        memory::set_limit(None, 0).unwrap();
        before.into_iter().chain(after).for_each(|block| memory::free(block).unwrap());
        memory::check(0);
    }
    assert_eq!(unsafe { libc::pthread_key_delete(key) }, 0);
    stream::destroy(other.raw).unwrap();
}

#[test]
fn a_stream_that_its_owner_destroyed_blocks_nobody() {
    let _turn = machine();
    let runtime = runtime::runtime().unwrap();
    let raw = runtime.stream_create(1, 0).unwrap();
    let foreign = stream::resolve(raw).unwrap();
    let small = memory::allocate(8 * M, 1, foreign).unwrap();
    let large = memory::allocate(100 * M, 1, DEFAULT).unwrap();
    memory::free(small).unwrap();
    memory::free(large).unwrap();
    runtime.stream_destroy(raw).unwrap();
    memory::set_limit(Some(110 * M), 0).unwrap();
    let block = memory::allocate(105 * M, 1, DEFAULT).unwrap();
    memory::free(block).unwrap();
    memory::empty_cache(None).unwrap();
    assert_eq!(held(Family::ReservedBytes), 0);
}

#[test]
fn a_busy_stream_is_marked_a_few_times_only() {
    let _turn = machine();
    let (a, b) = (own(), own());
    let gate = Gate::on(a);
    let mut blocks = Vec::new();
    let marks = || sim::machine().unwrap().faults().count(Some("cudaEventRecord")).unwrap();
    let before = marks();
    for _ in 0..100 {
        let block = memory::allocate(4096, 1, a).unwrap();
        memory::free(block).unwrap();
        blocks.push(memory::allocate(2 * M, 1, b).unwrap());
    }
    let marks = marks() - before;
    assert!((1..=8).contains(&marks), "{marks} marks");
    drop(gate);
    blocks.into_iter().for_each(|block| memory::free(block).unwrap());
    stream::destroy(a.raw).unwrap();
    stream::destroy(b.raw).unwrap();
}

#[test]
fn a_stream_takes_over_no_more_than_it_needs() {
    let _turn = machine();
    let (a, b) = (own(), own());
    let block = memory::allocate(1024 * M, 1, a).unwrap();
    memory::free(block).unwrap();
    let taken = memory::allocate(2 * M, 1, b).unwrap();
    assert!((block..block + 1024 * M).contains(&taken));
    let gate = Gate::on(b);
    memory::free(taken).unwrap();
    let again = memory::allocate(512 * M, 1, a).unwrap();
    assert_eq!(held(Family::ReservedBytes), 1024 * M);
    drop(gate);
    memory::free(again).unwrap();
    stream::destroy(a.raw).unwrap();
    stream::destroy(b.raw).unwrap();
}

#[test]
fn threads_at_the_limit_run_out_only_of_what_is_in_use() {
    let _turn = machine();
    memory::set_limit(Some(24 * M), 0).unwrap();
    let streams: Vec<Stream> = (0..4).map(|_| own()).collect();
    let threads: Vec<_> = (0..3u64)
        .map(|thread| {
            let streams = streams.clone();
            std::thread::spawn(move || {
                let mut random = thread * 7919 + 12345;
                for round in 0..4000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let stream = streams[random as usize % 4];
                    let size = if random % 3 == 0 { random as usize % (3 * M) + M } else { random as usize % (64 << 10) + 1 };
                    // Three blocks of 4 MiB at most are in use at a time.
                    let block = memory::allocate(size, 1, stream).unwrap();
                    let entered = stream.enter().unwrap();
                    entered.runtime.memset_async(block, 1, size.min(4096), entered.raw).unwrap();
                    drop(entered);
                    if random % 4 == 0 {
                        memory::record_stream(block, streams[random as usize / 7 % 4]).unwrap();
                    }
                    memory::free(block).unwrap();
                    if round % 500 == 0 {
                        memory::empty_cache(None).unwrap();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    memory::check(0);
    memory::empty_cache(None).unwrap();
    assert_eq!(held(Family::ReservedBytes), 0);
    streams.into_iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
}

#[test]
fn queries_leave_the_captures_of_other_threads_alone() {
    let _turn = machine();
    let (a, b) = (own(), own());
    let block = memory::allocate(8 * M, 1, a).unwrap();
    let gate = Gate::on(a);
    memory::free(block).unwrap();
    let count = |call| sim::machine().unwrap().faults().count(Some(call)).unwrap();
    let before = count("cudaThreadExchangeStreamCaptureMode");
    let other = memory::allocate(8 * M, 1, b).unwrap();
    assert!(count("cudaThreadExchangeStreamCaptureMode") >= before + 4, "settling and growing, in and out");
    drop(gate);
    memory::free(other).unwrap();
    stream::destroy(a.raw).unwrap();
    stream::destroy(b.raw).unwrap();
}

#[test]
fn a_last_mark_that_was_captured_loses_no_memory() {
    let _turn = machine();
    let (a, b) = (own(), own());
    memory::set_limit(Some(64 * M), 0).unwrap();
    let block = memory::allocate(40 * M, 1, a).unwrap();
    let gate = Gate::on(a);
    memory::free(block).unwrap();
    let mark = marks::next();
    stream::destroy(a.raw).unwrap();
    marks::capture(mark);
    drop(gate);
    let next = memory::allocate(40 * M, 1, b).unwrap();
    memory::free(next).unwrap();
    memory::set_limit(None, 0).unwrap();
    stream::destroy(b.raw).unwrap();
}

#[test]
fn a_mark_of_a_stream_that_joined_a_capture_is_not_asked() {
    let _turn = machine();
    let (a, b) = (own(), own());
    let faults = sim::machine().unwrap().faults();
    let asked = || faults.count(Some("cudaEventQuery")).unwrap();
    let block = memory::allocate(8 * M, 1, a).unwrap();
    let gate = Gate::on(a);
    memory::free(block).unwrap();
    // It is asked before the mark and behind it.
    let before = asked();
    faults.fail_at(Some("cudaStreamIsCapturing"), 2, code::CAPTURE_UNSUPPORTED).unwrap();
    let others = [(); 2].map(|()| memory::allocate(8 * M, 1, b).unwrap());
    assert_eq!(asked(), before);
    let last = memory::allocate(8 * M, 1, b).unwrap();
    assert!(asked() > before, "there is none");
    drop(gate);
    others.into_iter().chain([last]).for_each(|block| memory::free(block).unwrap());
    [a, b].into_iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
}

#[test]
fn a_request_beyond_the_device_keeps_the_cache() {
    let _turn = machine();
    let block = memory::allocate(100 * M, 1, DEFAULT).unwrap();
    memory::free(block).unwrap();
    let error = memory::allocate(1 << 50, 1, DEFAULT).unwrap_err();
    assert_eq!(error.status, Status::TCUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(held(Family::ReservedBytes), 100 * M);
}

/// What fails keeps nothing else from going back, and the first failure is the answer.
#[test]
fn an_empty_cache_that_fails_goes_on_and_tells_the_first() {
    let _turn = machine();
    let faults = sim::machine().unwrap().faults();
    let options = |text: &str| memory::set_options(Some(text.into())).unwrap();
    let (a, b) = (own(), own());
    options("backend:cudaMallocAsync");
    memory::free(memory::allocate(8 * M, 1, b).unwrap()).unwrap();
    options("");
    // One of the two streams cannot be waited for; what the other one had is not taken back.
    let blocks = [a, b].map(|stream| memory::allocate(40 * M, 1, stream).unwrap());
    blocks.into_iter().for_each(|block| memory::free(block).unwrap());
    let trims = || faults.count(Some("cudaMemPoolTrimTo")).unwrap();
    let before = trims();
    faults.fail_at(Some("cudaEventSynchronize"), 1, code::INVALID_VALUE).unwrap();
    faults.fail_at(Some("cuMemUnmap"), 0, code::NOT_SUPPORTED).unwrap();
    assert_eq!(memory::empty_cache(None).unwrap_err().native, code::INVALID_VALUE, "the wait came first");
    assert!(trims() > before, "what the driver's own pool has goes back too");
    assert_eq!(memory::empty_cache(None).unwrap_err().native, code::NOT_SUPPORTED);
    faults.clear();
    memory::empty_cache(None).unwrap();
    assert_eq!(held(Family::ReservedBytes), 0);
    // Where the driver's own pool has nothing, nobody waits for the device on its account.
    let calls = || ["cudaDeviceSynchronize", "cudaMemPoolTrimTo"].map(|call| faults.count(Some(call)).unwrap());
    let before = calls();
    memory::empty_cache(None).unwrap();
    assert_eq!(calls(), before);
    memory::set_options(None).unwrap();
    [a, b].into_iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
}

/// A pool that was destroyed is looked at again when something of it was freed, and not before.
#[test]
fn what_destroyed_pools_have_in_use_costs_nobody_anything() {
    let _turn = machine();
    let (own, user) = (own(), own());
    let options = || Options { source: Source::Driver, use_on_oom: false, no_split: false };
    let pool_with_block = || {
        let name = pools::create(0, options()).unwrap();
        let block = pools::allocate(&pools::numbered(name).unwrap(), 8 * M, 1, own).unwrap();
        pools::destroy(name).unwrap();
        block
    };
    let stops_of_a_pool = || {
        let before = memory::stops(0);
        pools::destroy(pools::create(0, options()).unwrap()).unwrap();
        memory::stops(0) - before
    };
    let mut blocks = vec![pool_with_block()];
    let once = (stops_of_a_pool(), stops_of_a_pool());
    blocks.extend((0..20).map(|_| pool_with_block()));
    assert_eq!((stops_of_a_pool(), stops_of_a_pool()), once, "each of them stops threads");
    let reserved = held(Family::ReservedBytes);
    // At once, behind another stream, and behind its own.
    let [first, used, busy] = [0; 3].map(|_| blocks.pop().unwrap());
    memory::free(first).unwrap();
    stops_of_a_pool();
    assert_eq!(held(Family::ReservedBytes), reserved - 8 * M);
    memory::record_stream(used, user).unwrap();
    for (block, stream, left) in [(used, user, 2), (busy, own, 3)] {
        let gate = Gate::on(stream);
        memory::free(block).unwrap();
        for _ in 0..3 {
            stops_of_a_pool();
            assert_eq!(held(Family::ReservedBytes), reserved - (left - 1) * 8 * M);
        }
        drop(gate);
        stream.synchronize().unwrap();
        stops_of_a_pool();
        assert_eq!(held(Family::ReservedBytes), reserved - left * 8 * M);
    }
    blocks.into_iter().for_each(|block| memory::free(block).unwrap());
    memory::empty_cache(None).unwrap();
    assert_eq!(held(Family::ReservedBytes), 0);
    [own, user].into_iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
}

/// Nobody else hears of it: who destroyed the pool did not.
#[test]
fn an_empty_cache_tells_what_a_destroyed_pool_could_not_give_back() {
    let _turn = machine();
    let faults = sim::machine().unwrap().faults();
    let own = own();
    let name = pools::create(0, Options { source: Source::Driver, use_on_oom: false, no_split: false }).unwrap();
    let pool = pools::numbered(name).unwrap();
    memory::free(pools::allocate(&pool, 8 * M, 1, own).unwrap()).unwrap();
    faults.fail_at(Some("cuMemUnmap"), 0, code::NOT_SUPPORTED).unwrap();
    pools::destroy(name).unwrap();
    assert!(held(Family::ReservedBytes) >= 8 * M);
    assert_eq!(memory::empty_cache(None).unwrap_err().native, code::NOT_SUPPORTED);
    faults.clear();
    memory::empty_cache(None).unwrap();
    assert_eq!(held(Family::ReservedBytes), 0);
    stream::destroy(own.raw).unwrap();
}
