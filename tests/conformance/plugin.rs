//! Pluggable allocators below the cache: everything above them works as ever, and what they do wrong is survived.

use crate::graph::G;
use crate::kit::*;
use crate::pools::Apart;
use crate::{fails, get, ok, tests};
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tcuda::capi::copy::*;
use tcuda::capi::init::{tcuda_init, tcuda_shutdown};
use tcuda::capi::memory::*;
use tcuda::capi::plugin::*;
use tcuda::capi::pool::*;
use tcuda::capi::stream::tcuda_stream_synchronize;
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::runtime;

tests![
    the_cache_is_the_same_above_it,
    a_switch_keeps_old_blocks_right,
    a_pool_of_its_own,
    what_pools_lend_is_not_its_memory,
    none_left_climbs_the_ladder,
    wrong_memory_is_refused_and_given_back,
    the_same_memory_twice_is_refused,
    a_block_that_an_allocator_divides_is_not_lost,
    of_a_block_in_a_block_the_inner_one_is_meant,
    it_cannot_allocate_from_the_cache,
    it_cannot_allocate_what_the_thread_has_at_hand,
    what_is_in_use_is_not_destroyed,
    a_pool_that_is_gone_uses_none,
    the_current_one_stays_it_over_a_shutdown,
    loading_says_what_is_wrong,
    threads_above_it,
];

const MIB: usize = 1 << 20;

/// What a test's allocator does: of the memory that the runtime gives it.
#[derive(Default)]
struct Plugin {
    /// In order; empty: honest.
    lies: Mutex<Vec<Lie>>,
    held: Mutex<Vec<(usize, usize)>>,
    calls: AtomicUsize,
    /// Sizes that came back otherwise than they went.
    wrong: AtomicUsize,
}

#[derive(Clone, Copy)]
enum Lie {
    Nothing,
    Crooked,
    OfTheHost,
    TheSameAgain,
    TooSmall,
    FromTheCache,
}

unsafe extern "C" fn give(size: usize, device: i32, stream: tcuda_stream_t, data: *mut c_void) -> *mut c_void {
    let plugin = unsafe { &*data.cast::<Plugin>() };
    plugin.calls.fetch_add(1, SeqCst);
    assert!(device >= 0 && size.is_multiple_of(2 * MIB));
    let runtime = runtime::runtime().unwrap();
    let lie = plugin.lies.lock().unwrap().pop();
    let keep = |address: usize, size: usize| {
        plugin.held.lock().unwrap().push((address, size));
        address as *mut c_void
    };
    match lie {
        Some(Lie::Nothing) => null_mut(),
        // Within memory that stays the allocator's.
        Some(Lie::Crooked) => keep(runtime.malloc(size + MIB).unwrap() + 8, size),
        Some(Lie::OfTheHost) => {
            let host = Box::leak(vec![0u8; 4096].into_boxed_slice()).as_mut_ptr() as usize;
            keep(host.next_multiple_of(512), size)
        }
        Some(Lie::TheSameAgain) => plugin.held.lock().unwrap()[0].0 as *mut c_void,
        Some(Lie::TooSmall) => keep(runtime.malloc(MIB).unwrap(), size),
        Some(Lie::FromTheCache) => {
            let mut block = null_mut();
            let status = unsafe { tcuda_malloc_cached(&mut block, size, stream) };
            assert!(status as i32 != 0 && block.is_null());
            null_mut()
        }
        None => runtime.malloc(size).map_or(null_mut(), |address| keep(address, size)),
    }
}

unsafe extern "C" fn take(ptr: *mut c_void, size: usize, device: i32, _stream: tcuda_stream_t, data: *mut c_void) {
    let plugin = unsafe { &*data.cast::<Plugin>() };
    let mut held = plugin.held.lock().unwrap();
    match held.iter().position(|entry| *entry == (ptr as usize, size)) {
        Some(at) => {
            held.swap_remove(at);
        }
        None => {
            plugin.wrong.fetch_add(1, SeqCst);
        }
    }
    assert!(device >= 0);
    let runtime = runtime::runtime().unwrap();
    let _ = runtime.free(ptr as usize).or_else(|_| runtime.free(ptr as usize - 8));
}

/// A plug-in for the length of a test.
struct Plugged {
    handle: tcuda_pluggable_allocator_t,
    plugin: &'static Plugin,
}

impl Plugged {
    fn new() -> Plugged {
        let plugin: &'static Plugin = Box::leak(Box::default());
        let data = std::ptr::from_ref(plugin).cast_mut().cast();
        Plugged { handle: get!(null_mut(), out => tcuda_pluggable_allocator_create(out, Some(give), Some(take), data)), plugin }
    }

    fn current() -> Plugged {
        let plugged = Plugged::new();
        ok!(tcuda_change_current_allocator(plugged.handle));
        plugged
    }

    fn lies(&self, lies: &[Lie]) {
        *self.plugin.lies.lock().unwrap() = lies.iter().rev().copied().collect();
    }

    fn held(&self) -> usize {
        self.plugin.held.lock().unwrap().iter().map(|entry| entry.1).sum()
    }

    fn end(self) {
        ok!(tcuda_change_current_allocator(null_mut()));
        ok!(tcuda_empty_cache(-3));
        assert_eq!((self.held(), self.plugin.wrong.load(SeqCst)), (0, 0), "all of it came back as it went");
        ok!(tcuda_pluggable_allocator_destroy(self.handle));
    }
}

fn backend_name() -> String {
    text(tcuda_get_allocator_backend())
}

fn the_cache_is_the_same_above_it() {
    empty_caches();
    assert_eq!(backend_name(), "native");
    let (stream, other) = (Own::new(), Own::new());
    let plugged = Plugged::current();
    assert_eq!(backend_name(), "pluggable");
    let blocks = [allocate(1000, stream.0), allocate(3 * MIB, stream.0), allocate(30 * MIB, stream.0)];
    assert_eq!(plugged.held() as i64, stat(-1, "reserved_bytes.all.current"));
    assert_eq!(stat(-1, "allocated_bytes.all.current"), 1024 + 33 * MIB as i64);
    assert_eq!(stat(-1, "segment.all.current"), plugged.plugin.calls.load(SeqCst) as i64);
    ok!(tcuda_memset_async(blocks[1], 9, 3 * MIB, stream.0));
    assert_eq!(bytes_of(blocks[1], 8, stream.0), [9; 8]);
    // A use on another stream keeps the block from being handed out again.
    let gate = Gate::on(other.0);
    ok!(tcuda_record_stream(blocks[1], other.0));
    free(blocks[1]);
    assert_eq!(stat(-1, "active.all.current") - stat(-1, "allocation.all.current"), 1);
    let next = allocate(3 * MIB, stream.0);
    assert_ne!(next, blocks[1]);
    gate.open();
    ok!(tcuda::capi::stream::tcuda_stream_synchronize(other.0));
    let calls = plugged.plugin.calls.load(SeqCst);
    for _ in 0..100 {
        free(allocate(2000, stream.0));
    }
    assert_eq!(plugged.plugin.calls.load(SeqCst), calls, "the cache keeps what it has");
    [blocks[0], blocks[2], next].into_iter().for_each(free);
    plugged.end();
    empty_caches();
}

fn a_switch_keeps_old_blocks_right() {
    empty_caches();
    let stream = Own::new();
    let before = [allocate(1000, stream.0), allocate(3 * MIB, stream.0)];
    ok!(tcuda_memset_async(before[1], 1, 3 * MIB, stream.0));
    let plugged = Plugged::current();
    let within = [allocate(900_000, stream.0), allocate(25 * MIB, stream.0)];
    assert!(plugged.held() > 25 * MIB);
    ok!(tcuda_memset_async(within[1], 2, 25 * MIB, stream.0));
    let second = Plugged::current();
    let after = [allocate(50 * MIB, stream.0)];
    ok!(tcuda_change_current_allocator(null_mut()));
    let last = allocate(70 * MIB, stream.0);
    assert_eq!(bytes_of(before[1], 4, stream.0), [1; 4]);
    assert_eq!(bytes_of(within[1], 4, stream.0), [2; 4]);
    for block in before.into_iter().chain(within).chain(after).chain([last]) {
        free(block);
    }
    assert_eq!(stat(-1, "allocated_bytes.all.current"), 0);
    second.end();
    plugged.end();
    empty_caches();
}

fn a_pool_of_its_own() {
    empty_caches();
    let stream = Own::new();
    let plugged = Plugged::new();
    let options = |no_split| tcuda_mem_pool_options_t {
        struct_size: size_of::<tcuda_mem_pool_options_t>(),
        allocator: plugged.handle,
        use_on_oom: 0,
        no_split,
    };
    for no_split in [0, 1] {
        let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, -1, &options(no_split)));
        let inside = get!(null_mut(), out => tcuda_mem_pool_malloc(out, 3 * MIB, stream.0, pool));
        let held = plugged.held();
        assert!(held >= 3 * MIB);
        let outside = allocate(3 * MIB, stream.0);
        assert_eq!(plugged.held(), held, "only the pool takes from it");
        fails!(NOT_SUPPORTED, tcuda_mem_pool_pause(pool, &mut 0, TCUDA_PAUSE_DROP));
        fails!(INVALID_STATE, tcuda_pluggable_allocator_destroy(plugged.handle));
        free(outside);
        free(inside);
        // Freed memory may be filled first.
        ok!(tcuda_stream_synchronize(stream.0));
        ok!(tcuda_mem_pool_destroy(pool));
        assert_eq!(plugged.held(), 0);
    }
    plugged.end();
    empty_caches();
}

/// Who chose an allocator gets what it gave, or nothing.
fn what_pools_lend_is_not_its_memory() {
    empty_caches();
    let stream = Own::new();
    let lender = Apart::with(-1, 1, 0);
    let own = lender.allocate(1000, stream.0);
    let plugged = Plugged::new();
    let options = tcuda_mem_pool_options_t {
        struct_size: size_of::<tcuda_mem_pool_options_t>(),
        allocator: plugged.handle,
        use_on_oom: 0,
        no_split: 0,
    };
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, -1, &options));
    let limit = Limit::of(-1, stat(-1, "reserved_bytes.all.current") as u64);
    fails!(OUT_OF_MEMORY, tcuda_mem_pool_malloc(&mut null_mut(), 1000, stream.0, pool));
    ok!(tcuda_change_current_allocator(plugged.handle));
    fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 1000, stream.0));
    ok!(tcuda_change_current_allocator(null_mut()));
    // There was something to lend.
    free(allocate(1000, stream.0));
    drop(limit);
    assert_eq!(lender.stats().allocation.all.allocated, 2);
    free(own);
    ok!(tcuda_mem_pool_destroy(pool));
    lender.end();
    plugged.end();
    empty_caches();
}

fn none_left_climbs_the_ladder() {
    empty_caches();
    let stream = Own::new();
    let plugged = Plugged::current();
    free(allocate(40 * MIB, stream.0));
    let held = plugged.held();
    // What is free goes back, and it is asked again.
    plugged.lies(&[Lie::Nothing]);
    let block = allocate(60 * MIB, stream.0);
    assert!(plugged.held() < held + 60 * MIB);
    free(block);
    plugged.lies(&[Lie::Nothing; 8]);
    let said = fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 90 * MIB, stream.0));
    assert!(said.contains("Tried to allocate 90.00 MiB") && said.contains("the pluggable allocator of the function at 0x"), "{said}");
    assert!(stat(-1, "num_ooms") > 0);
    // Where the limit refuses it is not asked.
    let limit = Limit::of(-1, stat(-1, "reserved_bytes.all.current") as u64);
    let said = fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 90 * MIB, stream.0));
    assert!(!said.contains("pluggable"), "{said}");
    drop(limit);
    plugged.lies(&[]);
    free(allocate(90 * MIB, stream.0));
    // It may have more than the device, as of managed memory: what is free goes back before that fails.
    assert!(plugged.held() > 0);
    plugged.lies(&[Lie::Nothing; 8]);
    let total = tcuda::device::properties(device()).unwrap().total_memory as usize;
    let said = fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 4 * total, stream.0));
    assert!(said.contains("The allocator would have to have more") && plugged.held() == 0, "{said}");
    plugged.lies(&[]);
    plugged.end();
    empty_caches();
}

fn wrong_memory_is_refused_and_given_back() {
    empty_caches();
    let stream = Own::new();
    let plugged = Plugged::current();
    for (lie, word) in
        [(Lie::Crooked, "multiple of 512"), (Lie::OfTheHost, "memory of the device"), (Lie::TooSmall, "memory of the device")]
    {
        // A real device rounds its own segments up, so too little is seen where the size says so.
        plugged.lies(&[lie; 4]);
        let said = fails!(INVALID_STATE, tcuda_malloc_cached(&mut null_mut(), 44 * MIB, stream.0));
        assert!(said.contains(word), "{said}");
        assert_eq!((stat(-1, "reserved_bytes.all.current"), stat(-1, "allocated_bytes.all.current")), (0, 0));
        plugged.lies(&[]);
        plugged.plugin.held.lock().unwrap().clear();
        free(allocate(1000, stream.0));
        ok!(tcuda_empty_cache(-1));
    }
    plugged.plugin.wrong.store(0, SeqCst);
    plugged.end();
    empty_caches();
}

fn the_same_memory_twice_is_refused() {
    empty_caches();
    let stream = Own::new();
    let plugged = Plugged::current();
    let first = allocate(44 * MIB, stream.0);
    ok!(tcuda_memset_async(first, 6, 44 * MIB, stream.0));
    plugged.lies(&[Lie::TheSameAgain; 4]);
    let said = fails!(INVALID_STATE, tcuda_malloc_cached(&mut null_mut(), 44 * MIB, stream.0));
    assert!(said.contains("was given before"), "{said}");
    plugged.lies(&[]);
    // Nor does a pool get it.
    let options = tcuda_mem_pool_options_t {
        struct_size: size_of::<tcuda_mem_pool_options_t>(),
        allocator: plugged.handle,
        use_on_oom: 0,
        no_split: 0,
    };
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, -1, &options));
    plugged.lies(&[Lie::TheSameAgain; 4]);
    let said = fails!(INVALID_STATE, tcuda_mem_pool_malloc(&mut null_mut(), 44 * MIB, stream.0, pool));
    assert!(said.contains("was given before"), "{said}");
    plugged.lies(&[]);
    ok!(tcuda_mem_pool_destroy(pool));
    // What is in use was left alone.
    assert_eq!(bytes_of(first, 8, stream.0), [6; 8]);
    free(first);
    plugged.end();
    empty_caches();
}

/// What an allocator gives that divides a block of tcuda's: always the same part, once at a time.
#[derive(Default)]
struct Part {
    address: AtomicUsize,
    /// How often it was given, and came back.
    given: AtomicUsize,
    back: AtomicUsize,
}

unsafe extern "C" fn give_part(_: usize, _: i32, _: tcuda_stream_t, part: *mut c_void) -> *mut c_void {
    let part = unsafe { &*part.cast::<Part>() };
    let is_out = part.given.load(SeqCst) > part.back.load(SeqCst);
    if is_out {
        return null_mut();
    }
    part.given.fetch_add(1, SeqCst);
    part.address.load(SeqCst) as *mut c_void
}

unsafe extern "C" fn take_part(ptr: *mut c_void, _: usize, _: i32, _: tcuda_stream_t, part: *mut c_void) {
    let part = unsafe { &*part.cast::<Part>() };
    assert_eq!(ptr as usize, part.address.load(SeqCst));
    part.back.fetch_add(1, SeqCst);
}

/// Also when all ends: that is gone through before anything begins anew.
unsafe extern "C" fn take_part_at_the_end(ptr: *mut c_void, size: usize, device: i32, stream: tcuda_stream_t, part: *mut c_void) {
    fails!(INVALID_STATE, tcuda_init(null()));
    ok!(tcuda_free_cached(ptr));
    unsafe { take_part(ptr, size, device, stream, part) };
}

fn divider(
    take: unsafe extern "C" fn(*mut c_void, usize, i32, tcuda_stream_t, *mut c_void),
) -> (tcuda_pluggable_allocator_t, &'static Part) {
    let part: &'static Part = Box::leak(Box::default());
    let data = std::ptr::from_ref(part).cast_mut().cast();
    (get!(null_mut(), out => tcuda_pluggable_allocator_create(out, Some(give_part), Some(take), data)), part)
}

/// Behind the MiB of addresses that a block begins in.
fn second_mib(block: *mut c_void) -> usize {
    (block as usize / MIB + 1) * MIB
}

fn a_block_that_an_allocator_divides_is_not_lost() {
    empty_caches();
    let stream = Own::new();
    let old = [(); 2].map(|()| allocate(20 * MIB, stream.0));
    old.into_iter().for_each(free);
    let (before, whole) = (allocate(10 * MIB, stream.0), allocate(64 * MIB, stream.0));
    let (allocator, part) = divider(take_part);
    let options = tcuda_mem_pool_options_t { struct_size: size_of::<tcuda_mem_pool_options_t>(), allocator, use_on_oom: 0, no_split: 0 };
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, -1, &options));
    for beside in [512, MIB - 512].map(|offset| whole as usize + offset).into_iter().filter(|address| *address < second_mib(whole)) {
        part.address.store(beside, SeqCst);
        let said = fails!(INVALID_STATE, tcuda_mem_pool_malloc(&mut null_mut(), 3 * MIB, stream.0, pool));
        assert!(said.contains("the same MiB"), "{said}");
        assert_eq!(part.given.load(SeqCst), part.back.load(SeqCst));
    }
    // Also where blocks began before.
    let good = second_mib(whole)..whole as usize + 60 * MIB;
    for address in old.map(|block| block as usize).into_iter().filter(|old| good.contains(old)).chain([good.start]) {
        part.address.store(address, SeqCst);
        let inner = get!(null_mut(), out => tcuda_mem_pool_malloc(out, 3 * MIB, stream.0, pool));
        assert_eq!(inner as usize, address);
        ok!(tcuda_record_stream(whole, stream.0));
        free(inner);
        ok!(tcuda_mem_pool_trim(pool));
    }
    ok!(tcuda_mem_pool_destroy(pool));
    ok!(tcuda_empty_cache(-3));
    ok!(tcuda_pluggable_allocator_destroy(allocator));
    [before, whole].into_iter().for_each(free);
    empty_caches();
}

fn of_a_block_in_a_block_the_inner_one_is_meant() {
    empty_caches();
    let (stream, other) = (Own::new(), Own::new());
    let apart = Apart::new();
    let whole = apart.allocate(64 * MIB, stream.0);
    let (allocator, part) = divider(take_part);
    part.address.store(second_mib(whole), SeqCst);
    ok!(tcuda_change_current_allocator(allocator));
    let inner = allocate(3 * MIB, stream.0);
    assert_eq!(inner as usize, second_mib(whole));
    let within = inner.wrapping_byte_add(MIB);
    // The copy's stream is noted with the block that is freed.
    let active = || stat(0, "active.all.current");
    let mut bytes = [0u8; 16];
    let gate = Gate::on(other.0);
    ok!(tcuda_memset_async(within, 7, bytes.len(), other.0));
    free(inner);
    assert_eq!(active(), 2, "the block that was freed is in use");
    gate.open();
    ok!(tcuda_stream_synchronize(other.0));
    assert_eq!(active(), 1);
    // It ends where it ends.
    let inner = allocate(3 * MIB, stream.0);
    let end = inner.wrapping_byte_add(3 * MIB - 8);
    fails!(INVALID_POINTER, tcuda_copy(bytes.as_mut_ptr().cast(), end, bytes.len(), false));
    free(inner);
    ok!(tcuda_change_current_allocator(null_mut()));
    ok!(tcuda_empty_cache(-3));
    ok!(tcuda_pluggable_allocator_destroy(allocator));
    free(whole);
    apart.end();
    empty_caches();
}

fn it_cannot_allocate_from_the_cache() {
    empty_caches();
    let stream = Own::new();
    let plugged = Plugged::current();
    plugged.lies(&[Lie::FromTheCache; 8]);
    fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 44 * MIB, stream.0));
    plugged.lies(&[]);
    plugged.end();
    empty_caches();
}

/// A capture that finds no memory asks the other caches of the device for theirs, among them those that no pool has now.
unsafe extern "C" fn ask_and_give(_: usize, _: i32, stream: tcuda_stream_t, pool: *mut c_void) -> *mut c_void {
    fails!(INVALID_STATE, tcuda_malloc_cached(&mut null_mut(), 1000, stream));
    fails!(INVALID_STATE, tcuda_mem_pool_malloc(&mut null_mut(), 1000, stream, pool.cast()));
    ASKED.fetch_add(1, SeqCst);
    null_mut()
}

unsafe extern "C" fn never(_: *mut c_void, _: usize, _: i32, _: tcuda_stream_t, _: *mut c_void) {
    unreachable!();
}

static ASKED: AtomicUsize = AtomicUsize::new(0);

fn it_cannot_allocate_what_the_thread_has_at_hand() {
    empty_caches();
    let (own, other) = (Own::on(0), Apart::with(0, 0, 0));
    let pairs = || {
        for _ in 0..3 {
            free(allocate(1000, own.0));
            free(other.allocate(1000, own.0));
        }
    };
    pairs();
    let plugged = get!(null_mut(), out => tcuda_pluggable_allocator_create(out, Some(ask_and_give), Some(never), other.0.cast()));
    let options =
        tcuda_mem_pool_options_t { struct_size: size_of::<tcuda_mem_pool_options_t>(), allocator: plugged, use_on_oom: 0, no_split: 0 };
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, 0, &options));
    pairs();
    fails!(OUT_OF_MEMORY, tcuda_mem_pool_malloc(&mut null_mut(), 1000, own.0, pool));
    assert!(ASKED.load(SeqCst) > 0);
    // Afterwards it has what it had.
    pairs();
    ok!(tcuda_mem_pool_destroy(pool));
    ok!(tcuda_pluggable_allocator_destroy(plugged));
    other.end();
    empty_caches();
}

fn a_pool_that_is_gone_uses_none() {
    empty_caches();
    let stream = Own::new();
    // Two: the capture's own pool takes the place of one.
    let pools = [(); 2].map(|()| get!(null_mut(), out => tcuda_mem_pool_create(out, -1, null())));
    pools.into_iter().for_each(|pool| ok!(tcuda_mem_pool_destroy(pool)));
    let plugged = Plugged::current();
    let limit = Limit::of(-1, MIB as u64);
    let graph = G::new();
    graph.capture(stream.0, || drop(fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 8 * MIB, stream.0))));
    drop((graph, limit));
    plugged.end();
    empty_caches();
}

fn what_is_in_use_is_not_destroyed() {
    empty_caches();
    let stream = Own::new();
    let plugged = Plugged::current();
    let said = fails!(INVALID_STATE, tcuda_pluggable_allocator_destroy(plugged.handle));
    assert!(said.contains("it is the current one"), "{said}");
    let block = allocate(MIB, stream.0);
    ok!(tcuda_change_current_allocator(null_mut()));
    let said = fails!(INVALID_STATE, tcuda_pluggable_allocator_destroy(plugged.handle));
    assert!(said.contains("segments"), "{said}");
    free(block);
    let handle = plugged.handle;
    plugged.end();
    fails!(INVALID_HANDLE, tcuda_pluggable_allocator_destroy(handle));
    fails!(INVALID_HANDLE, tcuda_change_current_allocator(handle));
    ok!(tcuda_pluggable_allocator_destroy(null_mut()));
    empty_caches();
}

fn the_current_one_stays_it_over_a_shutdown() {
    crate::init::in_child("allocator_over_shutdown", &[]);
}

pub fn scene_over_shutdown() {
    let (allocator, part) = divider(take_part_at_the_end);
    let whole = Apart::new().allocate(64 * MIB, default_of(0));
    part.address.store(second_mib(whole), SeqCst);
    ok!(tcuda_change_current_allocator(allocator));
    allocate(3 * MIB, default_of(0));
    ok!(tcuda_shutdown());
    assert_eq!((part.given.load(SeqCst), part.back.load(SeqCst)), (1, 1));
    ok!(tcuda_pluggable_allocator_destroy(allocator));
    ok!(tcuda_init(null()));
    assert_eq!(backend_name(), "pluggable");
    // Its memory went with the block that it was in.
    part.address.store(0, SeqCst);
    let said = fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut null_mut(), 3 * MIB, default_of(0)));
    assert!(part.given.load(SeqCst) > 1, "{said}");
    fails!(INVALID_STATE, tcuda_pluggable_allocator_destroy(allocator));
    ok!(tcuda_change_current_allocator(null_mut()));
    ok!(tcuda_pluggable_allocator_destroy(allocator));
    free(allocate(3 * MIB, default_of(0)));
    empty_caches();
}

fn loading_says_what_is_wrong() {
    let load = |path: &str, alloc: &str, free: &str| {
        let [path, alloc, free] = [path, alloc, free].map(|text| CString::new(text).unwrap());
        let mut handle = null_mut();
        let status = unsafe { tcuda_pluggable_allocator_load(&mut handle, path.as_ptr(), alloc.as_ptr(), free.as_ptr()) };
        (status as i32, message(), handle)
    };
    let (status, said, _) = load("/nowhere/at/all.so", "a", "b");
    assert!(status == 31 && said.contains("/nowhere/at/all.so"), "{said}");
    let (status, said, _) = load("libc.so.6", "no_such_function", "free");
    assert!(status == 1 && said.contains("no_such_function"), "{said}");
    let name = c"libc.so.6";
    fails!(INVALID_ARGUMENT, tcuda_pluggable_allocator_load(null_mut(), name.as_ptr(), name.as_ptr(), name.as_ptr()));
    fails!(INVALID_ARGUMENT, tcuda_pluggable_allocator_load(&mut null_mut(), null(), name.as_ptr(), name.as_ptr()));
    fails!(INVALID_ARGUMENT, tcuda_pluggable_allocator_create(&mut null_mut(), None, Some(take), null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_pluggable_allocator_create(&mut null_mut(), Some(give), None, null_mut()));
}

fn threads_above_it() {
    empty_caches();
    let plugged = Plugged::current();
    let threads: Vec<_> = (0..6)
        .map(|thread: usize| {
            std::thread::spawn(move || {
                let stream = Own::on(0);
                let mut live = Vec::new();
                for round in 0..300usize {
                    live.push(allocate(300 + (thread * 31 + round * 7919) % (2 * MIB), stream.0));
                    if live.len() > 8 {
                        free(live.swap_remove(round % 8));
                    }
                }
                live.into_iter().for_each(free);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(stat(0, "allocated_bytes.all.current"), 0);
    plugged.end();
    empty_caches();
}
