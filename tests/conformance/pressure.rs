//! When memory runs short: who is asked and told, in which order, what they may do, and what the error says.

use crate::graph::G;
use crate::init::in_child;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use tcuda::capi::init::tcuda_shutdown;
use tcuda::capi::memory::*;
use tcuda::capi::pool::*;
use tcuda::capi::pressure::*;
use tcuda::capi::sim::{tcuda_sim_clear_faults, tcuda_sim_fail_at};
use tcuda::capi::stream::*;

tests![
    a_callback_gives_its_cache_away,
    every_stage_is_asked_then_the_observers_are_told,
    what_is_freed_at_the_last_stage_is_waited_for,
    only_as_many_as_needed_are_asked: [VirtualMemory],
    a_callback_may_call_tcuda,
    a_callback_that_lies_does_not_keep_the_error_away,
    a_callback_may_end_the_stream,
    a_callback_may_end_the_stream_and_make_others,
    a_callback_may_end_the_pool,
    a_callback_may_end_a_pool_in_use,
    nobody_ends_tcuda_in_the_middle_of_a_call,
    threads_under_pressure,
    wrong_registrations_are_refused,
    advice_for_a_limit,
    advice_for_pieces,
    advice_for_a_device_taken_by_others,
    each_advice_has_a_case: [Faults],
];

const MIB: usize = 1 << 20;

/// A function of Rust as a callback or observer, for the length of a test.
struct Registered(u64, bool, #[allow(dead_code)] Box<Function>);
type Function = Box<dyn Fn(*const c_void) -> bool + Sync>;

impl Registered {
    fn callback(function: impl Fn(&tcuda_pressure_t) -> bool + Sync + 'static) -> Registered {
        let function: Box<Function> = Box::new(Box::new(move |pressure| function(unsafe { &*pressure.cast() })));
        let data = &raw const *function as *mut c_void;
        Registered(get!(0, out => tcuda_register_pressure_callback(out, Some(call_callback), data)), true, function)
    }

    fn observer(function: impl Fn(&tcuda_oom_t) + Sync + 'static) -> Registered {
        let function: Box<Function> = Box::new(Box::new(move |oom| {
            function(unsafe { &*oom.cast() });
            true
        }));
        let data = &raw const *function as *mut c_void;
        Registered(get!(0, out => tcuda_register_oom_observer(out, Some(call_observer), data)), false, function)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.1 {
            tcuda_unregister_pressure_callback(self.0)
        } else {
            tcuda_unregister_oom_observer(self.0)
        };
    }
}

unsafe extern "C" fn call_callback(pressure: *const tcuda_pressure_t, data: *mut c_void) -> bool {
    unsafe { (*data.cast::<Function>())(pressure.cast()) }
}

unsafe extern "C" fn call_observer(oom: *const tcuda_oom_t, data: *mut c_void) {
    unsafe { (*data.cast::<Function>())(oom.cast()) };
}

fn refused(size: usize, stream: tcuda::capi::structs::tcuda_stream_t) -> String {
    let mut block = null_mut();
    let message = fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut block, size, stream));
    assert!(block.is_null());
    message
}

fn a_callback_gives_its_cache_away() {
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    static TOLD: Mutex<Vec<tcuda_pressure_t_copy>> = Mutex::new(Vec::new());
    #[allow(non_camel_case_types)]
    type tcuda_pressure_t_copy = (usize, i32, i32, usize, [u64; 4]);
    empty_caches();
    let own = Own::on(0);
    let _limit = Limit::of(0, 64 * MIB as u64);
    KEPT.store(allocate(40 * MIB, own.0) as usize, Ordering::Relaxed);
    let reserved = stat(0, "reserved_bytes.all.current") as u64;
    let _callback = Registered::callback(|told| {
        let figures = [told.wanted, told.allocated, told.reserved, told.limit];
        assert!(told.free <= told.total && told.free > 0);
        TOLD.lock().unwrap().push((told.struct_size, told.stage, told.device, told.stream as usize, figures));
        free(KEPT.swap(0, Ordering::Relaxed) as *mut c_void);
        true
    });
    let block = allocate(36 * MIB, own.0);
    let figures = [36 * MIB as u64, 40 * MIB as u64, reserved, 64 * MIB as u64];
    assert_eq!(*TOLD.lock().unwrap(), [(size_of::<tcuda_pressure_t>(), 1, 0, own.0 as usize, figures)]);
    assert_eq!((stat(0, "num_ooms"), stat(0, "allocated_bytes.all.current")), (0, 36 * MIB as i64));
    // Without pressure nobody is asked.
    free(block);
    free(allocate(36 * MIB, own.0));
    assert_eq!(TOLD.lock().unwrap().len(), 1);
    tcuda::memory::check(0);
    drop(_limit);
    empty_caches();
}

fn every_stage_is_asked_then_the_observers_are_told() {
    static EVENTS: Mutex<Vec<(i32, u64)>> = Mutex::new(Vec::new());
    static SAID: Mutex<String> = Mutex::new(String::new());
    empty_caches();
    let _limit = Limit::of(0, 64 * MIB as u64);
    let block = allocate(40 * MIB, NULL);
    let callback = Registered::callback(|told| {
        EVENTS.lock().unwrap().push((told.stage, told.wanted));
        false
    });
    let observer = Registered::observer(|oom| {
        EVENTS.lock().unwrap().push((0, oom.wanted));
        assert_eq!((oom.struct_size, oom.device, oom.allocated), (size_of::<tcuda_oom_t>(), 0, 40 * MIB as u64));
        assert_eq!((oom.limit, oom.reserved), (64 * MIB as u64, stat(0, "reserved_bytes.all.current") as u64));
        assert!(oom.total > oom.free);
        *SAID.lock().unwrap() = text(oom.message);
    });
    let said = refused(50 * MIB, NULL);
    let wanted = 50 * MIB as u64;
    assert_eq!(*EVENTS.lock().unwrap(), [(1, wanted), (2, wanted), (3, wanted), (0, wanted)]);
    assert_eq!(*SAID.lock().unwrap(), said);
    // At the limit at once, and with nobody registered.
    drop((callback, observer));
    refused(50 * MIB, NULL);
    assert_eq!(EVENTS.lock().unwrap().len(), 4);
    assert_eq!(stat(0, "num_ooms"), 2);
    free(block);
    empty_caches();
}

/// Freed on a stream that is busy: the allocation waits for it.
fn what_is_freed_at_the_last_stage_is_waited_for() {
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    static STREAM: AtomicUsize = AtomicUsize::new(0);
    empty_caches();
    let (own, other) = (Own::on(0), Own::on(0));
    let _limit = Limit::of(0, 64 * MIB as u64);
    let small = allocate(MIB, own.0);
    KEPT.store(allocate(40 * MIB, other.0) as usize, Ordering::Relaxed);
    STREAM.store(own.0 as usize, Ordering::Relaxed);
    let gate = Gate::on(other.0);
    let _callback = Registered::callback(|told| {
        if told.stage != 3 {
            return false;
        }
        let kept = KEPT.swap(0, Ordering::Relaxed) as *mut c_void;
        ok!(tcuda_record_stream(kept, handle(STREAM.load(Ordering::Relaxed))));
        free(kept);
        !kept.is_null()
    });
    let opener = gate.open_later();
    let block = allocate(50 * MIB, own.0);
    assert!(KEPT.load(Ordering::Relaxed) == 0 && gate.was_passed());
    opener.join().unwrap();
    free(block);
    free(small);
    assert_eq!(stat(0, "num_ooms"), 0);
    drop(_limit);
    empty_caches();
}

fn only_as_many_as_needed_are_asked() {
    static KEPT: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
    empty_caches();
    let _limit = Limit::of(0, 64 * MIB as u64);
    KEPT.iter().for_each(|kept| kept.store(allocate(20 * MIB, NULL) as usize, Ordering::Relaxed));
    let gives = |at: usize| {
        Registered::callback(move |_| {
            let block = KEPT[at].swap(0, Ordering::Relaxed) as *mut c_void;
            free(block);
            !block.is_null()
        })
    };
    let _callbacks = [gives(0), gives(1), gives(2)];
    let block = allocate(30 * MIB, NULL);
    assert_eq!(KEPT.each_ref().map(|kept| kept.load(Ordering::Relaxed) == 0), [true, true, false]);
    free(block);
    free(KEPT[2].swap(0, Ordering::Relaxed) as *mut c_void);
    drop(_limit);
    empty_caches();
}

fn a_callback_may_call_tcuda() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static ID: AtomicU64 = AtomicU64::new(0);
    empty_caches();
    let _limit = Limit::of(0, 64 * MIB as u64);
    let block = allocate(40 * MIB, NULL);
    let callback = Registered::callback(|told| {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // Asks nobody, and climbs its own ladder.
        refused(50 * MIB, NULL);
        free(allocate(MIB, NULL));
        ok!(tcuda_empty_cache(0));
        if told.stage == 3 {
            ok!(tcuda_unregister_pressure_callback(ID.load(Ordering::Relaxed)));
        }
        told.stage == 3
    });
    ID.store(callback.0, Ordering::Relaxed);
    let observer = Registered::observer(|_| {
        CALLS.fetch_add(100, Ordering::Relaxed);
        refused(50 * MIB, NULL);
    });
    refused(50 * MIB, NULL);
    assert_eq!(CALLS.load(Ordering::Relaxed), 103);
    assert_eq!(stat(0, "num_ooms"), 5);
    fails!(INVALID_HANDLE, tcuda_unregister_pressure_callback(callback.0));
    drop(observer);
    free(block);
    empty_caches();
}

fn a_callback_that_lies_does_not_keep_the_error_away() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    empty_caches();
    let _limit = Limit::of(0, 64 * MIB as u64);
    let _callback = Registered::callback(|_| {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // Changes what is free, to no avail.
        free(allocate(512, NULL));
        true
    });
    refused(65 * MIB, NULL);
    assert!((3..100).contains(&CALLS.load(Ordering::Relaxed)), "{CALLS:?}");
    assert_eq!(stat(0, "num_ooms"), 1);
    drop((_callback, _limit));
    empty_caches();
}

/// Eight threads share what fits four at a time; what is kept goes when one of them needs it.
/// Whose memory is asked for: it is the device's, then.
fn a_callback_may_end_the_stream() {
    static STREAM: AtomicUsize = AtomicUsize::new(0);
    empty_caches();
    let own = create_on(0);
    STREAM.store(own as usize, Ordering::Relaxed);
    let _limit = Limit::of(0, 64 * MIB as u64);
    let kept = allocate(40 * MIB, NULL) as usize;
    let _callback = Registered::callback(move |_| {
        let stream = STREAM.swap(0, Ordering::Relaxed);
        if stream != 0 {
            ok!(tcuda_stream_destroy(handle(stream)));
            free(kept as *mut c_void);
        }
        stream != 0
    });
    let mut block = null_mut();
    let status = unsafe { tcuda_malloc_cached(&mut block, 36 * MIB, own) };
    assert_eq!(status, tcuda::base::Status::TCUDA_ERROR_INVALID_HANDLE, "{}", message());
    assert!(block.is_null());
    assert_eq!(STREAM.load(Ordering::Relaxed), 0);
    tcuda::memory::check(0);
    drop(_limit);
    empty_caches();
}

/// What the cache knew the old one by is another one's by then, whose memory is in use.
fn a_callback_may_end_the_stream_and_make_others() {
    static STREAMS: Mutex<[usize; 2]> = Mutex::new([0; 2]);
    empty_caches();
    let gone: Vec<_> = (0..40).map(|_| create_on(0)).collect();
    gone.iter().for_each(|stream| free(allocate(512, *stream)));
    gone.iter().for_each(|stream| ok!(tcuda_stream_destroy(*stream)));
    empty_caches();
    let (own, limit) = (create_on(0), Limit::of(0, 64 * MIB as u64));
    *STREAMS.lock().unwrap() = [own as usize, 0];
    let kept = allocate(40 * MIB, NULL) as usize;
    let gate = Mutex::new(None);
    let _callback = Registered::callback(move |_| {
        let mut streams = STREAMS.lock().unwrap();
        let was = std::mem::take(&mut streams[0]);
        if was != 0 {
            ok!(tcuda_stream_destroy(handle(was)));
            let busy = create_on(0);
            streams[1] = busy as usize;
            free(allocate(512, busy));
            *gate.lock().unwrap() = Some(Gate::on(busy));
            ok!(tcuda_free_cached_on(kept as *mut c_void, busy));
        }
        was != 0
    });
    let mut block = null_mut();
    fails!(INVALID_HANDLE, tcuda_malloc_cached(&mut block, 36 * MIB, own));
    assert!(block.is_null());
    drop((_callback, limit));
    ok!(tcuda_stream_destroy(handle(STREAMS.lock().unwrap()[1])));
    empty_caches();
}

/// Its memory is not that of the next one.
fn a_callback_may_end_the_pool() {
    static POOLS: Mutex<[usize; 2]> = Mutex::new([0; 2]);
    empty_caches();
    let make = || get!(null_mut(), out => tcuda_mem_pool_create(out, 0, null()));
    let (pool, limit) = (make(), Limit::of(0, 64 * MIB as u64));
    *POOLS.lock().unwrap() = [pool as usize, 0];
    let kept = allocate(40 * MIB, NULL) as usize;
    let _callback = Registered::callback(move |_| {
        let mut pools = POOLS.lock().unwrap();
        let was = std::mem::take(&mut pools[0]);
        if was != 0 {
            ok!(tcuda_mem_pool_destroy(was as tcuda_mem_pool_t));
            pools[1] = make() as usize;
            free(kept as *mut c_void);
        }
        was != 0
    });
    let mut block = null_mut();
    fails!(INVALID_HANDLE, tcuda_mem_pool_malloc(&mut block, 36 * MIB, NULL, pool));
    assert!(block.is_null());
    drop((_callback, limit));
    ok!(tcuda_mem_pool_destroy(POOLS.lock().unwrap()[1] as tcuda_mem_pool_t));
    empty_caches();
}

/// It gives no more, though it is there for as long as its block is in use.
fn a_callback_may_end_a_pool_in_use() {
    static POOL: AtomicUsize = AtomicUsize::new(0);
    empty_caches();
    let (pool, limit) = (get!(null_mut(), out => tcuda_mem_pool_create(out, 0, null())), Limit::of(0, 64 * MIB as u64));
    let used = get!(null_mut(), out => tcuda_mem_pool_malloc(out, MIB, NULL, pool));
    let kept = allocate(40 * MIB, NULL) as usize;
    POOL.store(pool as usize, Ordering::Relaxed);
    let callback = Registered::callback(move |_| {
        let pool = POOL.swap(0, Ordering::Relaxed);
        if pool != 0 {
            ok!(tcuda_mem_pool_destroy(pool as tcuda_mem_pool_t));
            free(kept as *mut c_void);
        }
        pool != 0
    });
    fails!(INVALID_HANDLE, tcuda_mem_pool_malloc(&mut null_mut(), 36 * MIB, NULL, pool));
    drop((callback, limit));
    free(used);
    empty_caches();
}

fn nobody_ends_tcuda_in_the_middle_of_a_call() {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    empty_caches();
    let own = Own::on(0);
    let _limit = Limit::of(0, 64 * MIB as u64);
    let kept = allocate(40 * MIB, own.0) as usize;
    let _callback = Registered::callback(move |_| {
        SAID.lock().unwrap().push(fails!(INVALID_STATE, tcuda_shutdown()));
        false
    });
    let _observer = Registered::observer(move |_| SAID.lock().unwrap().push(fails!(INVALID_STATE, tcuda_shutdown())));
    refused(36 * MIB, own.0);
    assert!(SAID.lock().unwrap().len() > 1);
    free(kept as *mut c_void);
    drop(_limit);
    empty_caches();
}

fn threads_under_pressure() {
    static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    static FAILED: AtomicI64 = AtomicI64::new(0);
    empty_caches();
    let _limit = Limit::of(0, 96 * MIB as u64);
    let _callback = Registered::callback(|_| {
        let all = std::mem::take(&mut *KEPT.lock().unwrap());
        all.iter().for_each(|block| free(*block as *mut c_void));
        !all.is_empty()
    });
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(|| {
                let own = Own::on(0);
                for _ in 0..20 {
                    let mut block = null_mut();
                    if unsafe { tcuda_malloc_cached(&mut block, 9 * MIB, own.0) } == tcuda::base::Status::TCUDA_SUCCESS {
                        ok!(tcuda_stream_synchronize(own.0));
                        KEPT.lock().unwrap().push(block as usize);
                    } else {
                        FAILED.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    KEPT.lock().unwrap().drain(..).for_each(|block| free(block as *mut c_void));
    assert_eq!(stat(0, "num_ooms"), FAILED.load(Ordering::Relaxed));
    tcuda::memory::check(0);
    drop(_limit);
    empty_caches();
}

fn wrong_registrations_are_refused() {
    fails!(INVALID_ARGUMENT, tcuda_register_pressure_callback(null_mut(), Some(call_callback), null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_register_oom_observer(null_mut(), Some(call_observer), null_mut()));
    let mut id = 77;
    fails!(INVALID_ARGUMENT, tcuda_register_pressure_callback(&mut id, None, null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_register_oom_observer(&mut id, None, null_mut()));
    assert_eq!(id, 77);
    for id in [0, u64::MAX] {
        fails!(INVALID_HANDLE, tcuda_unregister_pressure_callback(id));
        fails!(INVALID_HANDLE, tcuda_unregister_oom_observer(id));
    }
    // Each is told from the other.
    let (callback, observer) = (Registered::callback(|_| false), Registered::observer(|_| {}));
    let said = fails!(INVALID_HANDLE, tcuda_unregister_pressure_callback(observer.0));
    assert!(said.contains("tcuda_register_pressure_callback"), "{said}");
    let said = fails!(INVALID_HANDLE, tcuda_unregister_oom_observer(callback.0));
    assert!(said.contains("tcuda_register_oom_observer"), "{said}");
    fails!(INVALID_HANDLE, tcuda::capi::trace::tcuda_trace_unregister(callback.0));
    ok!(tcuda_unregister_oom_observer(observer.0));
    ok!(tcuda_unregister_pressure_callback(callback.0));
    fails!(INVALID_HANDLE, tcuda_unregister_oom_observer(observer.0));
}

fn advice_for_a_limit() {
    empty_caches();
    let _limit = Limit::of(0, 64 * MIB as u64);
    let block = allocate(40 * MIB, NULL);
    let said = refused(50 * MIB, NULL);
    assert!(said.contains("would pass the limit of 64.00 MiB: tcuda_set_memory_limit"), "{said}");
    assert!(said.contains("larger ones: 40.00 MiB allocated"), "{said}");
    let said = refused(70 * MIB, NULL);
    assert!(said.contains("asks for more than the limit"), "{said}");
    free(block);
    empty_caches();
}

fn advice_for_pieces() {
    empty_caches();
    ok!(tcuda_set_alloc_conf(c"expandable_segments:False".as_ptr()));
    let limit = Limit::of(0, 40 * MIB as u64);
    // Two segments of 20 MiB, each with a block in the middle.
    let blocks: Vec<_> = (0..6).map(|_| allocate(6 * MIB, NULL)).collect();
    assert_eq!(stat(0, "reserved_bytes.all.current"), 40 * MIB as i64);
    [0, 2, 3, 5].into_iter().for_each(|at| free(blocks[at]));
    let said = refused(9 * MIB, NULL);
    assert!(said.contains("28.00 MiB is reserved by tcuda but unallocated; the largest free block has 8.00 MiB"), "{said}");
    assert!(said.contains("in pieces: expandable_segments:True"), "{said}");
    free(blocks[1]);
    free(blocks[4]);
    drop(limit);
    ok!(tcuda_set_alloc_conf(null()));
    empty_caches();
}

fn advice_for_a_device_taken_by_others() {
    empty_caches();
    let _guard = tcuda::device::Guard::new(0).unwrap();
    let runtime = tcuda::runtime::runtime().unwrap();
    let (free_bytes, total) = runtime.mem_get_info().unwrap();
    let foreign = runtime.malloc(free_bytes - 256 * MIB).unwrap();
    let said = refused(total / 4, NULL);
    runtime.free(foreign).unwrap();
    // Where somebody tells of processes it is this one.
    let by_whom = said.contains("taken by others") || said.contains("taken by this process, but not by tcuda");
    assert!(by_whom && (said.contains("Other processes, other libraries and the driver use") || said.contains("Process ")), "{said}");
    empty_caches();
}

fn each_advice_has_a_case() {
    in_child("advice", &[("TCUDA_SIM_MEMORY", "64MiB"), ("TCUDA_ALLOC_CONF", "expandable_segments:True")]);
}

/// A device of 64 MiB.
pub fn scene_advice() {
    let says = |size: usize, stream, part: &str| {
        let said = refused(size, stream);
        assert!(said.contains(part), "{part}: {said}");
        said
    };
    let (own, other) = (Own::on(0), Own::on(0));
    says(65 * MIB, NULL, "The device is too small for this");
    let runtime = tcuda::runtime::runtime().unwrap();
    let foreign = runtime.malloc(2 * MIB).unwrap();
    says(63 * MIB, NULL, "Nothing is in use: the request");
    runtime.free(foreign).unwrap();
    let blocks = [allocate(40 * MIB, own.0), allocate(20 * MIB, own.0)];
    let said = says(10 * MIB, own.0, "Blocks in use fill the device");
    let process = "Including memory that is not tcuda's, this process has 60.00 MiB memory in use. ";
    assert!(said.contains(process), "{said}");
    blocks.into_iter().for_each(free);
    // A handle of 2 MiB is mapped whole, and half of each is in use.
    let blocks: Vec<_> = (0..62).map(|_| allocate(MIB, own.0)).collect();
    blocks.iter().step_by(2).for_each(|block| free(*block));
    says(10 * MIB, own.0, "More than this is free, but apart");
    blocks.iter().skip(1).step_by(2).for_each(|block| free(*block));
    empty_caches();
    // The driver has more than enough, and does not give it.
    ok!(tcuda_sim_fail_at(c"cuMemCreate".as_ptr(), 0, 2));
    says(30 * MIB, own.0, "The driver refused, although 64.00 MiB is free");
    ok!(tcuda_sim_clear_faults());
    // A graph's memory is not joined, whatever the driver can, and comes from the driver.
    let large = allocate(40 * MIB, own.0);
    let mut blocks: Vec<_> = (0..11).map(|_| allocate(2 * MIB - 4096, own.0)).collect();
    free(large);
    blocks.push(allocate(4096, own.0));
    ok!(tcuda_stream_synchronize(own.0));
    G::captured(own.0, || drop(says(41 * MIB, own.0, "tcuda_empty_cache before the capture gives 42.04 MiB back")));
    blocks.into_iter().for_each(free);
    empty_caches();
    drop(G::captured(own.0, || {
        // In one row, or three to a segment; with what the device has left the last piece does not grow to as much.
        let blocks: Vec<_> = (0..9).map(|_| allocate(6 * MIB, own.0)).collect();
        let free_of = |third: bool| (0..9).filter(|at| (at % 3 == 1) == third).for_each(|at| free(blocks[at]));
        free_of(false);
        says(26 * MIB, own.0, "in pieces, and replays of a graph find its memory where it was");
        free_of(true);
    }));
    empty_caches();
    // What another stream uses; a capture waits for nothing, nor does a limit that refuses at once.
    let gate = Gate::on(other.0);
    free(allocate(50 * MIB, other.0));
    G::captured(own.0, || drop(says(40 * MIB, own.0, "a stream that is being captured waits for nothing: tcuda_empty_cache before")));
    let limit = Limit::of(0, 60 * MIB as u64);
    ok!(tcuda_set_alloc_conf(c"throw_on_cudamalloc_oom:True".as_ptr()));
    says(40 * MIB, own.0, &format!("Let stream {:p} end its work", other.0));
    gate.open();
    ok!(tcuda_stream_synchronize(other.0));
    empty_caches();
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, 0, null()));
    free(get!(null_mut(), out => tcuda_mem_pool_malloc(out, 50 * MIB, own.0, pool)));
    says(40 * MIB, own.0, "has 50.00 MiB that nobody uses: tcuda_mem_pool_trim");
    ok!(tcuda_mem_pool_destroy(pool));
    drop(limit);
    ok!(tcuda_set_alloc_conf(null()));
    tcuda::memory::check(0);
}
