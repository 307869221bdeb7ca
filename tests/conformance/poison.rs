//! The shadow mode: writes after a free are found, and nothing else is.

use crate::init::in_child;
use crate::kit::*;
use crate::pools::Apart;
use crate::{fails, get, memory, ok, tests};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tcuda::capi::copy::*;
use tcuda::capi::device::{tcuda_set_device, tcuda_synchronize};
use tcuda::capi::error::*;
use tcuda::capi::init::*;
use tcuda::capi::memory::*;
use tcuda::capi::pool::*;
use tcuda::capi::stream::*;

tests![
    without_the_mode_nothing_is_watched: [Unfilled],
    writes_after_a_free_are_found: [Unwatched],
    writes_after_a_free_are_found_in_plain_segments: [Unwatched],
    the_end_looks_too,
    what_was_freed_before_a_pause_is_forgotten: [Unwatched],
    right_programs_are_left_alone,
    threads_hand_one_block_around,
    streams_end_beside_frees,
    a_pause_beside_requests: [VirtualMemory],
    a_thread_frees_behind_its_end,
];

const MIB: usize = 1 << 20;
const ON: (&str, &str) = ("TCUDA_MEMORY_POISON", "1");
const PLAIN: (&str, &str) = ("TCUDA_ALLOC_CONF", "expandable_segments:False");

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" fn keep(level: i32, message: *const c_char, _: *mut c_void) {
    // The program may allocate here.
    free(allocate(512, NULL));
    LOG.lock().unwrap().push(format!("{level} {}", unsafe { CStr::from_ptr(message) }.to_str().unwrap()));
}

fn said() -> Vec<String> {
    std::mem::take(&mut LOG.lock().unwrap())
}

fn found() -> u64 {
    get!(u64::MAX, out => tcuda_memory_check_poison(out, 0))
}

fn without_the_mode_nothing_is_watched() {
    assert!(fails!(INVALID_STATE, tcuda_memory_check_poison(&mut 0, 0)).contains("TCUDA_MEMORY_POISON=1"));
}

fn writes_after_a_free_are_found() {
    in_child("poison", &[ON]);
}

fn writes_after_a_free_are_found_in_plain_segments() {
    in_child("poison", &[ON, PLAIN]);
}

fn the_end_looks_too() {
    in_child("poison_at_the_end", &[ON]);
}

fn what_was_freed_before_a_pause_is_forgotten() {
    in_child("poison_again", &[ON]);
}

/// Blocks on many streams that are read late, and every order of streams.
fn right_programs_are_left_alone() {
    in_child("contents", &[ON]);
    in_child("shared_blocks", &[ON]);
    if backend() == "sim" {
        in_child("contents", &[ON, PLAIN, ("TCUDA_SIM_SEED", "5")]);
    }
}

fn threads_hand_one_block_around() {
    in_child("one_block", &[ON]);
}

fn streams_end_beside_frees() {
    in_child("ends_beside_frees", &[ON, ("TCUDA_SIM_SEED", "5")]);
}

fn a_pause_beside_requests() {
    in_child("paused_beside_requests", &[ON, ("TCUDA_SIM_SEED", "5")]);
}

fn a_thread_frees_behind_its_end() {
    in_child("frees_behind_the_end", &[ON]);
}

unsafe extern "C" fn free_all(blocks: *mut c_void) {
    unsafe { Box::from_raw(blocks.cast::<Vec<usize>>()) }.into_iter().for_each(|block| free(block as *mut c_void));
}

/// When its own default stream has ended: what the blocks of others wait for is the one that is there by then.
pub fn scene_frees_behind_the_end() {
    let (owner, user) = (Own::on(0), Own::on(0));
    let (on, by, mut key) = (owner.0 as usize, user.0 as usize, 0);
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(free_all)) }, 0);
    let thread = std::thread::spawn(move || {
        free(allocate(512, handle(PER_THREAD)));
        let blocks: Box<Vec<usize>> = Box::new((0..4).map(|_| allocate(MIB, handle(on)) as usize).collect());
        blocks.iter().for_each(|block| ok!(tcuda_record_stream(*block as *mut c_void, handle(by))));
        unsafe { libc::pthread_setspecific(key, Box::into_raw(blocks).cast()) }
    });
    assert_eq!((thread.join().unwrap(), found()), (0, 0));
    assert_eq!(unsafe { libc::pthread_key_delete(key) }, 0);
}

/// A thread frees a block as another ends its stream: what fills the block is done before anybody else has it.
pub fn scene_ends_beside_frees() {
    const SIZE: usize = 3 * MIB;
    let other = Own::on(0);
    for _ in 0..300 {
        let stream = create_on(0);
        let (block, on) = (allocate(SIZE, stream) as usize, stream as usize);
        ok!(tcuda_stream_synchronize(stream));
        let both = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                free(block as *mut c_void);
            });
            both.wait();
            ok!(tcuda_stream_destroy(handle(on)));
        });
        let block = allocate(SIZE, other.0);
        ok!(tcuda_memset_async(block, 7, SIZE, other.0));
        ok!(tcuda_synchronize(0));
        assert!(bytes_of(block, SIZE, other.0).iter().all(|byte| *byte == 7));
        free(block);
        expect_none();
    }
}

/// Whatever becomes of the thread.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What fills a block as it is handed out or freed is done before the pool's memory goes.
pub fn scene_paused_beside_requests() {
    let pool = Apart::new();
    let (name, stop, served) = (pool.0 as usize, AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let stops = Stops(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                let _stops = Stops(&stop);
                let (stream, mut size, mut blocks) = (Own::on(0), 4000, [null_mut(); 8]);
                for at in (0..blocks.len()).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    free(std::mem::replace(&mut blocks[at], null_mut()));
                    size = (size * 7) % (2 * MIB) + 1;
                    let status = unsafe { tcuda_mem_pool_malloc(&mut blocks[at], size, stream.0, name as tcuda_mem_pool_t) };
                    assert!([0, 17].contains(&(status as i32)), "{}", message());
                    served.fetch_add(usize::from(status as i32 == 0), Ordering::Relaxed);
                }
                blocks.into_iter().for_each(free);
            });
        }
        for round in 0..250 {
            let before = served.load(Ordering::Relaxed);
            while served.load(Ordering::Relaxed) < before + round % 9 && !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            pool.pause(round as i32 % 2);
            ok!(tcuda_mem_pool_resume(pool.0));
        }
        drop(stops);
    });
    ok!(tcuda_synchronize(0));
    pool.end();
    expect_none();
}

/// What one thread frees another has at once, and frees it while the first is still on its way out of the call.
pub fn scene_one_block() {
    let own = Own::on(0);
    let stream = own.0 as usize;
    let threads = [(); 8].map(|()| std::thread::spawn(move || (0..4000).for_each(|_| free(allocate(3000, handle(stream))))));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    expect_none();
}

/// Sixteen threads allocate and free, another looks at the free memory all the while.
pub fn scene_shared_blocks() {
    static ENDED: AtomicBool = AtomicBool::new(false);
    let looks = std::thread::spawn(|| {
        let mut times = 0;
        while !ENDED.load(Ordering::Relaxed) {
            expect_none();
            times += 1;
        }
        times
    });
    memory::sixteen_threads_free_each_others_blocks();
    ENDED.store(true, Ordering::Relaxed);
    assert!(looks.join().unwrap() > 0);
    expect_none();
}

/// For other scenes: nothing was found.
pub fn expect_none() {
    if std::env::var(ON.0).is_ok() {
        assert_eq!(get!(u64::MAX, out => tcuda_memory_check_poison(out, -3)), 0);
    }
}

pub fn scene_poison() {
    let own = Own::on(0);
    ok!(tcuda_set_log_callback(Some(keep), null_mut()));
    // What nobody wrote shows, and so does what was freed.
    let block = allocate(3000, own.0);
    assert_eq!(bytes_of(block, 3000, own.0), [0xFF; 3000]);
    ok!(tcuda_memset_async(block, 7, 3000, own.0));
    free(block);
    fails!(INVALID_POINTER, tcuda_free_cached(block));
    // After the host's own work, and a copy by the raw address.
    assert_eq!(found(), 0);
    poke(block, 700, &[1, 2, 3], own.0);
    let again = allocate(3000, own.0);
    assert_eq!(again, block);
    let text = said().concat();
    let freed = format!("the block at 0x{:x} of 3072 bytes, freed on stream 0x{:x}, was", block as usize, own.0 as usize);
    for part in ["1 Write after free on device 0", freed.as_str(), "3 bytes between offsets 700 and 702", "now 0x01", "allocated again"] {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    assert_eq!(bytes_of(again, 3000, own.0), [0xFF; 3000]);
    assert_eq!(found(), 1);
    free(again);

    // A part of it is handed out; the rest is watched on.
    poke(block, 2999, &[9], own.0);
    let part = allocate(512, own.0);
    assert_eq!((part, found()), (block, 2));
    assert!(said().concat().contains("1 bytes between offsets 2999 and 2999, the first is now 0x09. Found when free memory was checked"));
    free(part);
    // What is handed out while somebody looks is its owner's to write.
    let watched = tcuda::memory::poison::watched(0);
    let part = allocate(512, own.0);
    ok!(tcuda_memset_async(part, 3, 512, own.0));
    ok!(tcuda_stream_synchronize(own.0));
    tcuda::memory::poison::check(0, watched);
    free(part);
    assert_eq!((found(), said().len()), (2, 0));

    // Going back to the driver.
    let large = allocate(5 * MIB, own.0);
    // The fill of the allocation comes first.
    ok!(tcuda_stream_synchronize(own.0));
    ok!(tcuda_free_cached_on(large, default_of(0)));
    ok!(tcuda_stream_synchronize(default_of(0)));
    poke(large, 4 * MIB + 8190, &[5; 100], own.0);
    ok!(tcuda_empty_cache(0));
    let text = said().concat();
    assert!(text.contains("freed on stream 0x100, ") && text.contains("100 bytes between offsets 4202494 and 4202593"), "{text}");
    assert!(text.contains("went back to the driver"), "{text}");
    assert_eq!(found(), 3);

    readers_are_waited_for();
    ok!(tcuda_empty_cache(0));
    assert_eq!((found(), said().len()), (3, 0));
    tcuda::memory::check(0);
    if device_count() > 1 {
        another_device_than_the_current_one_is_looked_at();
    }
}

fn another_device_than_the_current_one_is_looked_at() {
    let own = Own::on(1);
    let block = allocate(3000, own.0);
    free(block);
    // With device 1 current, which what follows is not.
    ok!(tcuda_set_device(1));
    poke(block, 10, &[1], own.0);
    ok!(tcuda_set_device(0));
    assert_eq!(get!(u64::MAX, out => tcuda_memory_check_poison(out, 1)), 4);
    assert!(said().concat().contains("Write after free on device 1"));
    ok!(tcuda_empty_cache(1));
}

/// A stream that reads a block after its free by another finds what was written, if it was recorded.
fn readers_are_waited_for() {
    let (own, reader) = (Own::on(0), Own::on(0));
    let block = allocate(2 * MIB, own.0);
    ok!(tcuda_memset_async(block, 7, 2 * MIB, own.0));
    ok!(tcuda_stream_synchronize(own.0));
    let gate = Gate::on(reader.0);
    let mut seen = vec![0u8; 2 * MIB];
    ok!(tcuda_record_stream(block, reader.0));
    let kept = allocate(2 * MIB, reader.0);
    ok!(tcuda_copy_async(kept, block, 2 * MIB, reader.0));
    free(block);
    gate.open();
    ok!(tcuda_copy_async(seen.as_mut_ptr().cast(), kept, 2 * MIB, reader.0));
    ok!(tcuda_stream_synchronize(reader.0));
    assert!(seen.iter().all(|byte| *byte == 7));
    free(kept);
}

/// Writes as a kernel with a stale pointer would: past what tcuda checks.
fn poke(block: *mut c_void, offset: usize, bytes: &[u8], stream: tcuda::capi::structs::tcuda_stream_t) {
    let runtime = tcuda::runtime::runtime().unwrap();
    runtime.memcpy_async(block as usize + offset, bytes.as_ptr() as usize, bytes.len(), stream as usize).unwrap();
    ok!(tcuda_stream_synchronize(stream));
}

pub fn scene_at_the_end() {
    ok!(tcuda_set_log_callback(Some(keep_only), null_mut()));
    let own = create_on(0);
    let block = allocate(MIB, own);
    free(block);
    poke(block, 0, &[1], own);
    ok!(tcuda_shutdown());
    let text = said().concat();
    assert!(text.contains("1 bytes between offsets 0 and 0"), "{text}");
    // A new start, with new memory at perhaps the same place.
    ok!(tcuda_init(std::ptr::null()));
    free(allocate(MIB, NULL));
    assert_eq!(found(), 1);
}

pub fn scene_again() {
    ok!(tcuda_set_log_callback(Some(keep_only), null_mut()));
    let watch = |value: &str| {
        // No other thread reads it.
        unsafe { std::env::set_var(ON.0, value) };
        ok!(tcuda_set_alloc_conf(std::ptr::null()));
    };
    let own = Own::on(0);
    let block = allocate(MIB, own.0);
    free(block);
    watch("0");
    fails!(INVALID_STATE, tcuda_memory_check_poison(&mut 0, 0));
    let again = allocate(MIB, own.0);
    assert_eq!(again, block);
    ok!(tcuda_memset_async(again, 3, MIB, own.0));
    watch("1");
    assert_eq!((found(), said().len()), (0, 0));
    // From here on as before.
    free(again);
    poke(again, 10, &[1], own.0);
    assert_eq!((found(), said().len()), (1, 1));
}

unsafe extern "C" fn keep_only(level: i32, message: *const c_char, _: *mut c_void) {
    LOG.lock().unwrap().push(format!("{level} {}", unsafe { CStr::from_ptr(message) }.to_str().unwrap()));
}
