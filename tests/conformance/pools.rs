//! Memory pools: what comes from which, and what goes back when.

use crate::graph::G;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tcuda::base::Status;
use tcuda::capi::copy::*;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::pool::*;
use tcuda::capi::stream::tcuda_stream_synchronize;
use tcuda::capi::structs::tcuda_stream_t;

tests![
    a_pool_is_apart_and_counts_in_the_device,
    only_the_thread_that_opened_it_and_its_device: [TwoDevices],
    its_uses_are_counted,
    opened_again_after_everything_was_freed,
    the_newest_of_several_is_meant,
    a_thread_that_ends_closes_its_own,
    what_the_end_of_a_thread_opens_is_closed,
    what_is_at_hand_is_of_the_pool_that_is_meant,
    threads_hand_blocks_of_a_pool_to_each_other,
    by_name_from_any_thread,
    by_name_on_a_stream_that_is_captured,
    its_own_free_memory_serves_a_larger_request,
    the_devices_free_memory_gives_way_to_a_pool,
    a_pool_lends_to_requests_that_would_fail,
    nothing_is_lent_to_a_pool_of_whole_segments,
    a_trim_gives_back_what_is_free,
    whole_segments,
    a_block_outlives_its_pool,
    wrong_arguments,
    peaks_have_the_pools_in_them,
    peaks_where_a_thread_changes_between_a_pool_and_what_it_has_at_hand,
    a_new_stream_after_many_while_a_thread_has_blocks_of_another,
    whose_an_address_is_among_many_pools,
];

const MIB: usize = 1 << 20;

/// A pool for the length of a test.
pub struct Apart(pub tcuda_mem_pool_t);

impl Apart {
    pub fn with(device: i32, use_on_oom: i32, no_split: i32) -> Apart {
        let options =
            tcuda_mem_pool_options_t { struct_size: size_of::<tcuda_mem_pool_options_t>(), allocator: null_mut(), use_on_oom, no_split };
        Apart(get!(null_mut(), out => tcuda_mem_pool_create(out, device, &options)))
    }

    pub fn new() -> Apart {
        Apart(get!(null_mut(), out => tcuda_mem_pool_create(out, -1, null())))
    }

    pub fn allocate(&self, size: usize, stream: tcuda_stream_t) -> *mut c_void {
        get!(null_mut(), out => tcuda_mem_pool_malloc(out, size, stream, self.0))
    }

    pub fn stats(&self) -> tcuda_memory_stats_t {
        let mut stats = tcuda_memory_stats_t { struct_size: size_of::<tcuda_memory_stats_t>(), ..Default::default() };
        ok!(tcuda_mem_pool_stats(self.0, &mut stats));
        stats
    }

    pub fn reserved(&self) -> i64 {
        self.stats().reserved_bytes.all.current
    }

    pub fn pause(&self, mode: i32) -> usize {
        get!(0, out => tcuda_mem_pool_pause(self.0, out, mode))
    }

    pub fn end(self) {
        ok!(tcuda_mem_pool_destroy(self.0));
    }
}

pub fn reserved() -> i64 {
    stat(-1, "reserved_bytes.all.current")
}

fn allocated() -> i64 {
    stat(-1, "allocated_bytes.all.current")
}

fn a_pool_is_apart_and_counts_in_the_device() {
    empty_caches();
    let stream = Own::new();
    let outside = allocate(4 * MIB, stream.0);
    let pool = Apart::new();
    let before = reserved();
    ok!(tcuda_mem_pool_begin(pool.0));
    let (small, large) = (allocate(1000, stream.0), allocate(8 * MIB, stream.0));
    ok!(tcuda_mem_pool_end(pool.0));
    let stats = pool.stats();
    assert_eq!((stats.allocation.all.current, stats.allocated_bytes.all.current), (2, 1024 + 8 * MIB as i64));
    assert_eq!((stats.requested_bytes.all.current, stats.allocation.small_pool.current), (1000 + 8 * MIB as i64, 1));
    assert_eq!(reserved() - before, pool.reserved());
    assert_eq!(allocated(), 4 * MIB as i64 + stats.allocated_bytes.all.current);
    // What is freed stays the pool's; outside of it other memory is found.
    free(large);
    let other = allocate(8 * MIB, stream.0);
    assert_ne!(other, large);
    assert_eq!(pool.allocate(8 * MIB, stream.0), large);
    free(other);
    free(small);
    free(large);
    free(outside);
    assert_eq!(pool.stats().allocated_bytes.all.current, 0);
    let held = pool.reserved();
    assert!(held > 0);
    ok!(tcuda_empty_cache(-1));
    assert_eq!((reserved(), pool.reserved()), (held, held), "what a pool has free is its own");
    pool.end();
    empty_caches();
}

fn only_the_thread_that_opened_it_and_its_device() {
    empty_caches();
    let (here, there) = (Own::on(0), Own::on(1));
    let pool = Apart::with(0, 0, 0);
    ok!(tcuda_mem_pool_begin(pool.0));
    // Whatever device is current.
    set_device(1);
    let inside = allocate(3 * MIB, here.0);
    let elsewhere = allocate(3 * MIB, there.0);
    assert_eq!(pool.stats().allocation.all.current, 1);
    let stream = here.0 as usize;
    let by_thread = std::thread::spawn(move || allocate(3 * MIB, handle(stream)) as usize).join().unwrap();
    assert_eq!(pool.stats().allocation.all.current, 1);
    ok!(tcuda_mem_pool_end(pool.0));
    set_device(0);
    fails!(INVALID_ARGUMENT, tcuda_mem_pool_malloc(&mut null_mut(), MIB, there.0, pool.0));
    for block in [inside, elsewhere, by_thread as *mut c_void] {
        // From another thread than the one that has the pool's scope.
        let block = block as usize;
        std::thread::spawn(move || free(block as *mut c_void)).join().unwrap();
    }
    pool.end();
    empty_caches();
}

fn its_uses_are_counted() {
    let pool = Apart::new();
    let uses = || get!(0, out => tcuda_mem_pool_use_count(pool.0, out));
    assert_eq!(uses(), 1);
    ok!(tcuda_mem_pool_begin(pool.0));
    ok!(tcuda_mem_pool_begin(pool.0));
    let number = pool.0 as usize;
    std::thread::spawn(move || {
        ok!(tcuda_mem_pool_begin(number as tcuda_mem_pool_t));
        assert_eq!(get!(0, out => tcuda_mem_pool_use_count(number as tcuda_mem_pool_t, out)), 4);
    })
    .join()
    .unwrap();
    assert_eq!(uses(), 3);
    fails!(INVALID_STATE, tcuda_mem_pool_destroy(pool.0));
    ok!(tcuda_mem_pool_end(pool.0));
    ok!(tcuda_mem_pool_end(pool.0));
    assert_eq!(uses(), 1);
    ok!(tcuda_mem_pool_destroy(pool.0));
    fails!(INVALID_HANDLE, tcuda_mem_pool_use_count(pool.0, &mut 0));
}

fn opened_again_after_everything_was_freed() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    for round in 0..3 {
        ok!(tcuda_mem_pool_begin(pool.0));
        let block = allocate(2 * MIB + round, stream.0);
        assert_eq!(pool.stats().allocation.all.current, 1);
        ok!(tcuda_mem_pool_end(pool.0));
        free(block);
        assert_eq!(pool.stats().allocation.all.current, 0);
    }
    pool.end();
    empty_caches();
}

static ANSWERS: Mutex<Vec<Status>> = Mutex::new(Vec::new());

unsafe extern "C" fn at_the_end(pool: *mut c_void) {
    let answers = [tcuda_mem_pool_end(pool.cast()), tcuda_mem_pool_begin(pool.cast())];
    ANSWERS.lock().unwrap().extend(answers);
}

/// Also if a destructor behind that closes it, as the end of a scope does; none can be opened there.
fn a_thread_that_ends_closes_its_own() {
    let pool = Apart::new();
    let number = pool.0 as usize;
    let thread = std::thread::spawn(move || unsafe {
        ok!(tcuda_mem_pool_begin(number as tcuda_mem_pool_t));
        let mut key = 0;
        assert_eq!(libc::pthread_key_create(&mut key, Some(at_the_end)), 0);
        assert_eq!(libc::pthread_setspecific(key, number as *const c_void), 0);
        key
    });
    let key = thread.join().unwrap();
    assert_eq!(*ANSWERS.lock().unwrap(), [Status::TCUDA_SUCCESS, Status::TCUDA_ERROR_INVALID_STATE]);
    assert_eq!(unsafe { libc::pthread_key_delete(key) }, 0);
    // Nobody has it open.
    ok!(tcuda_mem_pool_destroy(pool.0));
    empty_caches();
}

static BLOCK: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn begin_at_the_end(pool: *mut c_void) {
    let mut block = null_mut();
    let answers = unsafe { [tcuda_mem_pool_begin(pool.cast()), tcuda_malloc_cached(&mut block, 1000, default_of(0))] };
    BLOCK.store(block as usize, Ordering::Relaxed);
    ANSWERS.lock().unwrap().extend(answers);
}

/// Nothing of the thread's was there before, to be dropped with it.
fn what_the_end_of_a_thread_opens_is_closed() {
    let pool = Apart::new();
    let mut key = 0;
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(begin_at_the_end)) }, 0);
    for _ in 0..2 {
        ANSWERS.lock().unwrap().clear();
        let number = pool.0 as usize;
        let thread = std::thread::spawn(move || unsafe { libc::pthread_setspecific(key, number as *const c_void) });
        assert_eq!(thread.join().unwrap(), 0);
        assert_eq!(*ANSWERS.lock().unwrap(), [Status::TCUDA_SUCCESS; 2]);
        free(BLOCK.load(Ordering::Relaxed) as *mut c_void);
    }
    assert_eq!(unsafe { libc::pthread_key_delete(key) }, 0);
    ok!(tcuda_mem_pool_destroy(pool.0));
    empty_caches();
}

fn the_newest_of_several_is_meant() {
    empty_caches();
    let stream = Own::new();
    let (first, second) = (Apart::new(), Apart::new());
    let counts = || (first.stats().allocation.all.current, second.stats().allocation.all.current);
    ok!(tcuda_mem_pool_begin(first.0));
    ok!(tcuda_mem_pool_begin(second.0));
    ok!(tcuda_mem_pool_begin(first.0));
    let mut blocks = vec![allocate(1000, stream.0)];
    assert_eq!(counts(), (1, 0));
    ok!(tcuda_mem_pool_end(first.0));
    blocks.push(allocate(1000, stream.0));
    assert_eq!(counts(), (1, 1));
    // In any order.
    ok!(tcuda_mem_pool_end(first.0));
    blocks.push(allocate(1000, stream.0));
    assert_eq!(counts(), (1, 2));
    fails!(INVALID_STATE, tcuda_mem_pool_end(first.0));
    let said = fails!(INVALID_STATE, tcuda_mem_pool_destroy(second.0));
    assert!(said.contains("open"), "{said}");
    ok!(tcuda_mem_pool_end(second.0));
    blocks.push(allocate(1000, stream.0));
    assert_eq!(counts(), (1, 2));
    blocks.into_iter().for_each(free);
    // One that a thread left open is closed when the thread ends.
    let pool = first.0 as usize;
    std::thread::spawn(move || ok!(tcuda_mem_pool_begin(pool as tcuda_mem_pool_t))).join().unwrap();
    first.end();
    second.end();
    empty_caches();
}

/// Whatever pools are open, and whichever the thread used on the stream last, open or by name.
fn what_is_at_hand_is_of_the_pool_that_is_meant() {
    empty_caches();
    let stream = Own::new();
    let (first, second) = (Apart::new(), Apart::new());
    let counts = || [first.stats().allocation.all.current, second.stats().allocation.all.current, stat(-1, "allocation.all.current")];
    let finds = |wanted: [i64; 3], by_name: Option<&Apart>| {
        // The second time of a size it is kept, and then handed out at once.
        for size in [512, 3 * MIB].into_iter().cycle().take(8) {
            let block = by_name.map_or_else(|| allocate(size, stream.0), |pool| pool.allocate(size, stream.0));
            assert_eq!(counts(), wanted);
            free(block);
        }
        assert_eq!(counts(), [0; 3]);
    };
    let (of_first, of_second, of_none) = ([1, 0, 1], [0, 1, 1], [0, 0, 1]);
    finds(of_none, None);
    finds(of_second, Some(&second));
    finds(of_none, None);
    for _ in 0..3 {
        ok!(tcuda_mem_pool_begin(first.0));
        finds(of_first, None);
        finds(of_second, Some(&second));
        finds(of_first, Some(&first));
        finds(of_first, None);
        ok!(tcuda_mem_pool_begin(second.0));
        finds(of_second, None);
        finds(of_first, Some(&first));
        ok!(tcuda_mem_pool_end(first.0));
        finds(of_second, None);
        ok!(tcuda_mem_pool_end(second.0));
        finds(of_none, None);
    }
    second.end();
    // The next one may be where it was.
    let third = Apart::new();
    ok!(tcuda_mem_pool_begin(third.0));
    let block = allocate(512, stream.0);
    assert_eq!((third.stats().allocation.all.current, third.stats().allocation.all.allocated), (1, 1));
    free(block);
    ok!(tcuda_mem_pool_end(third.0));
    third.end();
    first.end();
    empty_caches();
}

/// Also when they stop each other meanwhile, by figures that are reset, and when one ends while others have its blocks.
fn threads_hand_blocks_of_a_pool_to_each_other() {
    const THREADS: usize = 4;
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let (name, on) = (pool.0 as usize, stream.0 as usize);
    let mail: Mutex<Vec<(usize, u8)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let mail = &mail;
            scope.spawn(move || {
                let pool = name as tcuda_mem_pool_t;
                for round in 0..400usize {
                    let is_in = (round + thread) % 3 > 0;
                    if is_in {
                        ok!(tcuda_mem_pool_begin(pool));
                    }
                    let size = [512, 700, 4096, 2 * MIB][(round * 7 + thread) % 4];
                    let blocks = [size, 512].map(|size| allocate(size, handle(on)) as usize);
                    if is_in {
                        ok!(tcuda_mem_pool_end(pool));
                    }
                    free(blocks[0] as *mut c_void);
                    let theirs = {
                        let mut mail = mail.lock().unwrap();
                        mail.push((blocks[1], 0));
                        if mail.len() > 40 { mail.pop() } else { None }
                    };
                    theirs.into_iter().for_each(|(block, _)| free(block as *mut c_void));
                    if round % 97 == 96 {
                        ok!(tcuda_reset_peak_memory_stats(0));
                    }
                }
            });
        }
    });
    let left = mail.into_inner().unwrap();
    assert_eq!(stat(-1, "allocation.all.current"), left.len() as i64);
    left.into_iter().for_each(|(block, _)| free(block as *mut c_void));
    let allocated = pool.stats().allocation.all.allocated;
    assert_eq!((pool.stats().allocation.all.current, stat(-1, "allocation.all.current")), (0, 0));
    tcuda::memory::check(0);
    // Two of each three rounds were in it, with two blocks each.
    let rounds: usize = (0..THREADS).map(|thread| (0..400).filter(|round| (round + thread) % 3 > 0).count()).sum();
    assert_eq!(allocated, 2 * rounds as i64);
    pool.end();
    empty_caches();
}

fn by_name_from_any_thread() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let (name, on) = (pool.0 as usize, stream.0 as usize);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            std::thread::spawn(move || {
                let pool = name as tcuda_mem_pool_t;
                for round in 0..200usize {
                    let size = 500 + (thread * 7919 + round * 104_729) % (3 * MIB);
                    let block = get!(null_mut(), out => tcuda_mem_pool_malloc(out, size, handle(on), pool));
                    let other = allocate(size, handle(on));
                    free(block);
                    free(other);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let stats = pool.stats();
    assert_eq!((stats.allocation.all.allocated, stats.allocation.all.current), (800, 0));
    assert_eq!(allocated(), 0);
    assert_eq!(pool.allocate(0, stream.0), null_mut());
    // NULL is the default stream of the pool's device.
    let block = pool.allocate(100, NULL);
    free(block);
    pool.end();
    empty_caches();
}

/// A graph works in it for as long as it lives: it is the graph's.
fn by_name_on_a_stream_that_is_captured() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let graph = G::captured(stream.0, || {
        let block = pool.allocate(5000, stream.0);
        ok!(tcuda_memset_async(block, 7, 5000, stream.0));
        free(block);
    });
    assert_eq!(pool.reserved(), 0);
    let (block, mut copy) = (pool.allocate(5000, stream.0), [0u8; 5000]);
    ok!(tcuda_memset_async(block, 1, 5000, stream.0));
    graph.replay(stream.0);
    ok!(tcuda_copy_async(copy.as_mut_ptr().cast(), block, 5000, stream.0));
    ok!(tcuda_stream_synchronize(stream.0));
    assert!(copy.iter().all(|byte| *byte == 1), "a replay wrote into a block of the pool");
    free(block);
    drop(graph);
    pool.end();
    empty_caches();
}

fn its_own_free_memory_serves_a_larger_request() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let blocks = [pool.allocate(20 * MIB, stream.0), pool.allocate(20 * MIB, stream.0)];
    let _limit = Limit::of(-1, reserved() as u64 + 2 * MIB as u64);
    blocks.into_iter().for_each(free);
    // torch fails here (pytorch#159674).
    let large = pool.allocate(40 * MIB, stream.0);
    free(large);
    fails!(OUT_OF_MEMORY, tcuda_mem_pool_malloc(&mut null_mut(), 60 * MIB, stream.0, pool.0));
    pool.end();
    empty_caches();
}

fn the_devices_free_memory_gives_way_to_a_pool() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let block = allocate(40 * MIB, stream.0);
    let _limit = Limit::of(-1, reserved() as u64 + 2 * MIB as u64);
    let said = fails!(OUT_OF_MEMORY, tcuda_mem_pool_malloc(&mut null_mut(), 30 * MIB, stream.0, pool.0));
    assert!(said.contains("allowed"), "{said}");
    free(block);
    let in_pool = pool.allocate(30 * MIB, stream.0);
    free(in_pool);
    // And the other way round.
    let block = allocate(40 * MIB, stream.0);
    free(block);
    pool.end();
    empty_caches();
}

/// What a pool has free cannot go back to the driver while a block beside it in the same memory is in use: it is lent, if its pool lends.
fn a_pool_lends_to_requests_that_would_fail() {
    empty_caches();
    let stream = Own::new();
    let (shy, kind) = (Apart::new(), Apart::with(-1, 1, 0));
    let own = [&shy, &kind].map(|pool| pool.allocate(1000, stream.0));
    let limit = Limit::of(-1, reserved() as u64);
    let borrowed = allocate(1000, stream.0);
    drop(limit);
    assert_eq!([&shy, &kind].map(|pool| pool.stats().allocation.all.current), [1, 2]);
    assert!((borrowed as usize).abs_diff(own[1] as usize) < 2 * MIB, "they lie in one segment");
    own.into_iter().chain([borrowed]).for_each(free);
    shy.end();
    kind.end();
    empty_caches();
}

fn nothing_is_lent_to_a_pool_of_whole_segments() {
    empty_caches();
    let stream = Own::new();
    let (kind, whole) = (Apart::with(-1, 1, 0), Apart::with(-1, 0, 1));
    let own = kind.allocate(1000, stream.0);
    let limit = Limit::of(-1, reserved() as u64);
    fails!(OUT_OF_MEMORY, tcuda_mem_pool_malloc(&mut null_mut(), 1000, stream.0, whole.0));
    // There was something to lend.
    free(allocate(1000, stream.0));
    drop(limit);
    assert_eq!((kind.stats().allocation.all.allocated, whole.reserved()), (2, 0));
    free(own);
    whole.end();
    kind.end();
    empty_caches();
}

fn a_trim_gives_back_what_is_free() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let blocks = [pool.allocate(30 * MIB, stream.0), pool.allocate(30 * MIB, stream.0)];
    free(blocks[0]);
    let held = pool.reserved();
    ok!(tcuda_mem_pool_trim(pool.0));
    assert!(pool.reserved() < held && pool.reserved() >= 30 * MIB as i64);
    assert_eq!(reserved(), pool.reserved());
    free(blocks[1]);
    ok!(tcuda_mem_pool_trim(pool.0));
    assert_eq!((reserved(), pool.reserved()), (0, 0));
    pool.end();
    empty_caches();
}

fn whole_segments() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::with(-1, 0, 1);
    let blocks: Vec<_> = [1000, 3 * MIB, 3 * MIB, 21 * MIB].into_iter().map(|size| pool.allocate(size, stream.0)).collect();
    let stats = pool.stats();
    assert_eq!((stats.segment.all.current, stats.allocation.all.current), (4, 4));
    assert_eq!(stats.allocated_bytes.all.current, stats.reserved_bytes.all.current);
    assert_eq!(stats.allocated_bytes.all.current, (2 + 4 + 4 + 22) * MIB as i64);
    assert_eq!(stats.requested_bytes.all.current, 1000 + (3 + 3 + 21) * MIB as i64);
    let (alike, last) = ([blocks[1], blocks[2]], blocks[3]);
    blocks.into_iter().for_each(free);
    // As they came: one of nearly that size, never a part of a much larger one.
    assert_eq!(pool.allocate(21 * MIB + 5, stream.0), last);
    let reused = pool.allocate(3 * MIB + 1, stream.0);
    assert!(alike.contains(&reused) && pool.stats().segment.all.current == 4);
    let fresh = pool.allocate(9 * MIB, stream.0);
    assert_eq!(pool.stats().segment.all.current, 5);
    [last, reused, fresh].into_iter().for_each(free);
    assert_eq!(pool.stats().allocated_bytes.all.current, 0);
    pool.end();
    empty_caches();
}

fn a_block_outlives_its_pool() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let block = pool.allocate(5 * MIB, stream.0);
    ok!(tcuda_memset_async(block, 7, 5 * MIB, stream.0));
    let name = pool.0;
    pool.end();
    fails!(INVALID_HANDLE, tcuda_mem_pool_malloc(&mut null_mut(), 1, stream.0, name));
    fails!(INVALID_HANDLE, tcuda_mem_pool_destroy(name));
    // A new one is not the old one, whatever it takes over.
    let next = Apart::new();
    let others = next.allocate(5 * MIB, stream.0);
    assert_ne!(others, block);
    assert_eq!(bytes_of(block, 64, stream.0), [7; 64]);
    ok!(tcuda_record_stream(block, stream.0));
    free(block);
    free(others);
    next.end();
    empty_caches();
}

fn wrong_arguments() {
    let stream = Own::new();
    fails!(INVALID_ARGUMENT, tcuda_mem_pool_create(null_mut(), -1, null()));
    for device in bad_devices() {
        fails!(INVALID_DEVICE, tcuda_mem_pool_create(&mut null_mut(), device, null()));
    }
    let options = |use_on_oom, no_split, allocator: usize| tcuda_mem_pool_options_t {
        struct_size: size_of::<tcuda_mem_pool_options_t>(),
        allocator: allocator as _,
        use_on_oom,
        no_split,
    };
    fails!(INVALID_ARGUMENT, tcuda_mem_pool_create(&mut null_mut(), -1, &options(2, 0, 0)));
    fails!(INVALID_ARGUMENT, tcuda_mem_pool_create(&mut null_mut(), -1, &options(0, -1, 0)));
    fails!(INVALID_HANDLE, tcuda_mem_pool_create(&mut null_mut(), -1, &options(0, 0, 0x7777)));
    let stranger = 0x1234_5678usize as tcuda_mem_pool_t;
    fails!(INVALID_HANDLE, tcuda_mem_pool_begin(stranger));
    fails!(INVALID_HANDLE, tcuda_mem_pool_end(null_mut()));
    fails!(INVALID_HANDLE, tcuda_mem_pool_trim(stranger));
    fails!(INVALID_HANDLE, tcuda_mem_pool_pause(stranger, &mut 0, 0));
    fails!(INVALID_HANDLE, tcuda_mem_pool_resume(stranger));
    fails!(INVALID_HANDLE, tcuda_mem_pool_malloc(&mut null_mut(), 1, stream.0, stranger));
    ok!(tcuda_mem_pool_destroy(null_mut()));
    let pool = Apart::new();
    fails!(INVALID_ARGUMENT, tcuda_mem_pool_pause(pool.0, &mut 0, 2));
    fails!(INVALID_ARGUMENT, tcuda_mem_pool_malloc(null_mut(), 1, stream.0, pool.0));
    fails!(OUT_OF_MEMORY, tcuda_mem_pool_malloc(&mut null_mut(), usize::MAX, stream.0, pool.0));
    fails!(OUT_OF_MEMORY, tcuda_mem_pool_malloc(&mut null_mut(), 1 << 50, stream.0, pool.0));
    assert_eq!(pool.reserved(), 0);
    assert!(get!(0, out => tcuda_mem_pool_id(pool.0, out)) > 0);
    pool.end();
}

fn peaks_have_the_pools_in_them() {
    empty_caches();
    let stream = Own::new();
    let pool = Apart::new();
    let peak = || stat(-1, "allocated_bytes.all.peak") as usize;
    let blocks = [allocate(4 * MIB, stream.0), pool.allocate(2 * MIB, stream.0)];
    assert_eq!(peak(), 6 * MIB);
    free(blocks[0]);
    let more = pool.allocate(3 * MIB, stream.0);
    assert_eq!(peak(), 6 * MIB);
    let again = allocate(2 * MIB, stream.0);
    assert_eq!(peak(), 7 * MIB);
    free(more);
    let last = allocate(4 * MIB, stream.0);
    assert_eq!(peak(), 8 * MIB);
    [blocks[1], again, last].into_iter().for_each(free);
    assert_eq!(pool.stats().allocated_bytes.all.peak, 5 * MIB as i64);
    pool.end();
    empty_caches();
}

/// By name from a pool of which threads keep nothing: what the device has at hand for the thread has no room of before.
fn peaks_where_a_thread_changes_between_a_pool_and_what_it_has_at_hand() {
    const SMALL: usize = 512 << 10;
    empty_caches();
    let stream = Own::new();
    let pool = Apart::with(-1, 0, 1);
    let peak = || stat(-1, "allocated_bytes.all.peak") as usize;
    let of_device = || -> Vec<_> { (0..48).map(|_| allocate(SMALL, stream.0)).collect() };
    free(pool.allocate(20 * MIB, stream.0));
    of_device().into_iter().for_each(free);
    assert_eq!(peak(), 24 * MIB);
    let block = pool.allocate(20 * MIB, stream.0);
    of_device().into_iter().for_each(free);
    free(block);
    assert_eq!(peak(), 44 * MIB);
    pool.end();
    empty_caches();
}

/// Records of streams that are gone are used again once there are many, for which what threads hold comes home.
fn a_new_stream_after_many_while_a_thread_has_blocks_of_another() {
    empty_caches();
    let pool = Apart::new();
    for stream in (0..20).map(|_| Own::new()).collect::<Vec<_>>() {
        free(pool.allocate(512, stream.0));
    }
    let (stream, new) = (Own::new(), Own::new());
    let (name, block, on) = (pool.0 as usize, pool.allocate(512, stream.0) as usize, new.0 as usize);
    let other = std::thread::spawn(move || {
        free(block as *mut c_void);
        free(get!(null_mut(), out => tcuda_mem_pool_malloc(out, 512, handle(on), name as tcuda_mem_pool_t)));
    });
    other.join().unwrap();
    assert_eq!(pool.stats().allocation.all.current, 0);
    pool.end();
    empty_caches();
}

/// Each copy asks it of both of its ends.
fn whose_an_address_is_among_many_pools() {
    empty_caches();
    let (stream, host) = (Own::new(), get!(null_mut(), out => tcuda_host_malloc_cached(out, 512)));
    let around = |address: *mut c_void| tcuda::memory::block_around(address as usize + 4097).map(|around| around.place.start);
    let (mut pools, mut blocks): (Vec<_>, Vec<_>) = (Vec::new(), vec![allocate(MIB, stream.0)]);
    for round in 0..60 {
        pools.push(Apart::new());
        blocks.push(pools[pools.len() - 1].allocate(MIB, stream.0));
        if round % 3 == 2 {
            // Addresses are had again.
            let at = round % pools.len();
            free(blocks.remove(at + 1));
            pools.remove(at).end();
        }
        assert!(blocks.iter().all(|block| around(*block) == Some(*block as usize)) && around(host).is_none());
        tcuda::memory::check(0);
    }
    blocks.into_iter().for_each(free);
    pools.into_iter().for_each(Apart::end);
    ok!(tcuda_host_free_cached(host));
    empty_caches();
}
