//! Graphs: what is captured, where its memory comes from, what becomes of it.

use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use tcuda::capi::copy::*;
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::event::*;
use tcuda::capi::graph::*;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::sim::{tcuda_sim_live, tcuda_sim_live_t};
use tcuda::capi::stream::*;
use tcuda::capi::structs::{tcuda_event_t, tcuda_stream_t};

tests![
    what_was_captured_is_done_by_each_replay,
    memory_comes_from_a_pool_of_its_own,
    memory_of_a_graph_stays_when_memory_runs_short,
    any_thread_that_allocates_on_the_stream,
    streams_that_fork_and_join,
    graphs_share_a_pool,
    a_pool_is_used_again_after_its_last_graph,
    kept_and_made_ready_later,
    an_update_of_what_is_ready,
    updates_hold_the_pool_of_the_last_one,
    an_update_waits_for_nobody,
    updates_keep_nothing_for_replays_that_are_over: [Faults],
    made_ready_anew_it_does_what_it_captured,
    who_hears_the_log_may_ask_for_the_graph,
    a_replay_into_a_capture,
    a_replay_under_way_keeps_its_memory,
    a_replay_on_a_stream_that_is_gone_keeps_its_memory,
    a_replay_on_another_threads_default_stream_keeps_its_memory,
    replays_on_streams_that_come_and_go: [Faults],
    the_stream_to_capture_on_is_nobodys,
    pinned_memory_stays_until_the_reset,
    which_streams_are_capturing,
    wrong_states_and_arguments,
    another_devices_memory_and_streams: [TwoDevices],
];

pub const MIB: usize = 1 << 20;
pub const OWN: tcuda_pool_id_t = tcuda_pool_id_t { first: 0, second: 0 };
pub const GLOBAL: i32 = TCUDA_CAPTURE_GLOBAL;
pub const THREAD_LOCAL: i32 = TCUDA_CAPTURE_THREAD_LOCAL;
pub const RELAXED: i32 = TCUDA_CAPTURE_RELAXED;

/// A graph for the length of a test.
pub struct G(pub tcuda_graph_t);
unsafe impl Send for G {}
unsafe impl Sync for G {}

impl G {
    pub fn with(flags: u32) -> G {
        G(get!(null_mut(), out => tcuda_graph_create(out, flags)))
    }

    pub fn new() -> G {
        G::with(0)
    }

    pub fn begin(&self, stream: tcuda_stream_t) {
        ok!(tcuda_graph_capture_begin(self.0, stream, OWN, GLOBAL));
    }

    pub fn end(&self) {
        ok!(tcuda_graph_capture_end(self.0));
    }

    pub fn replay(&self, stream: tcuda_stream_t) {
        ok!(tcuda_graph_replay(self.0, stream));
    }

    pub fn pool(&self) -> tcuda_pool_id_t {
        get!(OWN, out => tcuda_graph_pool(self.0, out))
    }

    pub fn reserved(&self) -> i64 {
        pool_stats(self.pool()).reserved_bytes.all.current
    }

    /// What is done between a begin and an end of a capture.
    pub fn capture<T>(&self, stream: tcuda_stream_t, work: impl FnOnce() -> T) -> T {
        self.begin(stream);
        let value = work();
        self.end();
        value
    }

    pub fn captured(stream: tcuda_stream_t, work: impl FnOnce()) -> G {
        let graph = G::new();
        graph.capture(stream, work);
        graph
    }

    /// One that fills a block of its own; the capture frees it again.
    fn with_block(stream: tcuda_stream_t, size: usize, value: i32) -> (G, *mut c_void) {
        let graph = G::new();
        let block = graph.capture(stream, || {
            let block = allocate(size, stream);
            fill(block, value, size, stream);
            free(block);
            block
        });
        (graph, block)
    }
}

impl Drop for G {
    fn drop(&mut self) {
        tcuda_graph_destroy(self.0);
    }
}

pub fn pool_stats(pool: tcuda_pool_id_t) -> tcuda_memory_stats_t {
    get!(no_stats(), out => tcuda_graph_pool_stats(out, pool))
}

fn no_stats() -> tcuda_memory_stats_t {
    tcuda_memory_stats_t { struct_size: size_of::<tcuda_memory_stats_t>(), ..Default::default() }
}

fn reserved() -> i64 {
    stat(-1, "reserved_bytes.all.current")
}

pub fn pinned(size: usize) -> *mut u8 {
    get!(null_mut(), out => tcuda_host_malloc_cached(out, size)).cast()
}

pub fn fill(block: *mut c_void, value: i32, size: usize, stream: tcuda_stream_t) {
    ok!(tcuda_memset_async(block, value, size, stream));
}

pub fn copy<T>(to: *mut T, from: *const c_void, size: usize, stream: tcuda_stream_t) {
    ok!(tcuda_copy_async(to.cast(), from, size, stream));
}

pub fn synchronize(stream: tcuda_stream_t) {
    ok!(tcuda_stream_synchronize(stream));
}

pub fn event() -> tcuda_event_t {
    get!(null_mut(), out => tcuda_event_create(out, 2))
}

/// `to` waits for what `from` has so far.
pub fn order(from: tcuda_stream_t, to: tcuda_stream_t, event: tcuda_event_t) {
    ok!(tcuda_event_record(event, from));
    ok!(tcuda_stream_wait_event(to, event));
}

pub fn is_capturing(stream: tcuda_stream_t) -> bool {
    get!(false, out => tcuda_stream_is_capturing(stream, out))
}

/// Stream and memory work as if nothing had been.
pub fn is_usable(stream: tcuda_stream_t) {
    assert!(!is_capturing(stream));
    let block = allocate(MIB, stream);
    fill(block, 9, MIB, stream);
    assert_eq!(bytes_of(block, 1, stream), [9]);
    free(block);
    let graph = G::captured(stream, || free(allocate(MIB, stream)));
    graph.replay(stream);
    synchronize(stream);
}

fn what_was_captured_is_done_by_each_replay() {
    empty_caches();
    let stream = Own::new();
    let (input, output) = (pinned(64), pinned(64));
    let block = allocate(64, stream.0);
    unsafe { output.write_bytes(0, 64) };
    let graph = G::captured(stream.0, || {
        copy(block, input.cast(), 64, stream.0);
        copy(output, block, 64, stream.0);
    });
    synchronize(stream.0);
    assert_eq!(unsafe { *output }, 0, "a capture does nothing");
    for value in 1..=3u8 {
        unsafe { input.write_bytes(value, 64) };
        graph.replay(if value == 2 { NULL } else { stream.0 });
        synchronize(if value == 2 { NULL } else { stream.0 });
        assert_eq!(unsafe { *output.add(63) }, value);
    }
    ok!(tcuda_graph_reset(graph.0));
    fails!(INVALID_STATE, tcuda_graph_replay(graph.0, stream.0));
    // It is as new.
    graph.capture(stream.0, || fill(block, 5, 64, stream.0));
    graph.replay(stream.0);
    assert_eq!(bytes_of(block, 1, stream.0), [5]);
    drop(graph);
    free(block);
    ok!(tcuda_host_free_cached(input.cast()));
    ok!(tcuda_host_free_cached(output.cast()));
    empty_caches();
}

fn memory_comes_from_a_pool_of_its_own() {
    empty_caches();
    let stream = Own::new();
    let outside = allocate(8 * MIB, stream.0);
    free(outside);
    let held = reserved();
    let graph = G::new();
    graph.begin(stream.0);
    let first = allocate(8 * MIB, stream.0);
    assert_ne!(first, outside, "what is free elsewhere stays there");
    fill(first, 1, 8 * MIB, stream.0);
    free(first);
    let second = allocate(8 * MIB, stream.0);
    assert_eq!(second, first, "freed, it is that stream's again");
    fill(second, 2, 8 * MIB, stream.0);
    let small = allocate(100, stream.0);
    free(small);
    graph.end();
    let pool = graph.pool();
    assert!(pool.first > 0 && pool.second == 0);
    let stats = pool_stats(pool);
    assert_eq!(stats.allocated_bytes.all.current, 8 * MIB as i64);
    assert!(graph.reserved() >= 10 * MIB as i64);
    assert!(reserved() >= held + graph.reserved(), "the device's statistics have it in them");
    let mut text = vec![0; 1 << 16];
    let mut needed = 0;
    ok!(tcuda_memory_summary(text.as_mut_ptr(), text.len(), &mut needed, -1, true));
    assert!(crate::kit::text(text.as_ptr()).contains(&format!("Graph pool {}", pool.first)));
    // What is free in it is not: replays write there.
    let own = graph.reserved();
    free(second);
    ok!(tcuda_empty_cache(-1));
    assert_eq!((graph.reserved(), reserved()), (own, own));
    graph.replay(stream.0);
    assert_eq!(bytes_of(second, 1, stream.0), [2]);
    assert_ne!(allocate_and_free(8 * MIB, stream.0), second);
    // Poison may have filled what was freed.
    ok!(tcuda_stream_synchronize(stream.0));
    drop(graph);
    fails!(INVALID_ARGUMENT, tcuda_graph_pool_stats(&mut no_stats(), pool));
    empty_caches();
}

fn allocate_and_free(size: usize, stream: tcuda_stream_t) -> *mut c_void {
    let block = allocate(size, stream);
    free(block);
    block
}

fn memory_of_a_graph_stays_when_memory_runs_short() {
    empty_caches();
    let stream = Own::new();
    let _limit = Limit::of(device(), 64 * MIB as u64);
    let (graph, block) = G::with_block(stream.0, 20 * MIB, 5);
    let held = graph.reserved();
    // Everything that is free goes back for this, and it is not enough.
    let mut out = null_mut();
    fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut out, 60 * MIB, stream.0));
    assert_eq!(graph.reserved(), held);
    graph.replay(stream.0);
    assert_eq!(bytes_of(block, 1, stream.0), [5]);
    // Without a graph it is free as any.
    drop(graph);
    free(allocate(60 * MIB, stream.0));
    empty_caches();
}

fn any_thread_that_allocates_on_the_stream() {
    empty_caches();
    let (stream, other) = (Own::new(), Own::new());
    // Both have something at hand.
    let kept = allocate_and_free(1024, stream.0);
    let (on, beside) = (stream.0 as usize, other.0 as usize);
    let graph = G::new();
    let worker = |work: fn(usize) -> usize, stream: usize| std::thread::spawn(move || work(stream)).join().unwrap();
    let allocate_there = |stream: usize| allocate(1024, handle(stream)) as usize;
    ok!(tcuda_graph_capture_begin(graph.0, stream.0, OWN, THREAD_LOCAL));
    let here = allocate(1024, stream.0);
    let there = worker(allocate_there, on);
    let apart = worker(allocate_there, beside);
    graph.end();
    assert_ne!(here, kept);
    assert_eq!(pool_stats(graph.pool()).allocation.all.current, 2, "of both threads, and of no other stream");
    for block in [here as usize, there, apart] {
        free(block as *mut c_void);
    }
    assert_eq!(pool_stats(graph.pool()).allocation.all.current, 0);
    // Behind the capture memory comes from where it came before.
    let after = allocate_and_free(1024, stream.0);
    assert_eq!(pool_stats(graph.pool()).allocation.all.allocated, 2);
    assert_eq!(after, kept);
    drop(graph);
    empty_caches();
}

fn streams_that_fork_and_join() {
    empty_caches();
    let (a, b) = (Own::new(), Own::new());
    let (fork, join) = (event(), event());
    let graph = G::new();
    graph.begin(a.0);
    let left = allocate(MIB, a.0);
    order(a.0, b.0, fork);
    assert!(is_capturing(b.0));
    let right = allocate(MIB, b.0);
    fill(left, 3, MIB, a.0);
    fill(right, 4, MIB, b.0);
    // It is used on the other stream too: nobody else of the capture gets it.
    ok!(tcuda_record_stream(right, a.0));
    free(right);
    let other = allocate(MIB, b.0);
    assert_ne!(other, right);
    fill(other, 6, MIB, b.0);
    order(b.0, a.0, join);
    copy(left.wrapping_byte_add(16), right, 16, a.0);
    graph.end();
    assert!(!is_capturing(a.0) && !is_capturing(b.0));
    assert_eq!(pool_stats(graph.pool()).allocation.all.allocated, 3);
    for _ in 0..3 {
        graph.replay(b.0);
        assert_eq!(bytes_of(left, 32, b.0), [[3u8; 16], [4u8; 16]].concat());
        assert_eq!(bytes_of(other, 1, b.0), [6]);
        fill(left, 0, 32, b.0);
    }
    free(left);
    free(other);
    drop(graph);
    ok!(tcuda_event_destroy(fork));
    ok!(tcuda_event_destroy(join));
    empty_caches();
}

fn graphs_share_a_pool() {
    empty_caches();
    let (a, b) = (Own::new(), Own::new());
    let pool = get!(OWN, out => tcuda_graph_pool_handle(out));
    assert!(pool.first == 0 && pool.second > 0);
    assert_eq!(pool_stats(pool).reserved_bytes.all.current, 0);
    let (first, second, third) = (G::new(), G::new(), G::new());
    ok!(tcuda_graph_capture_begin(first.0, a.0, pool, GLOBAL));
    let block = allocate(12 * MIB, a.0);
    fill(block, 1, MIB, a.0);
    free(block);
    first.end();
    let held = first.reserved();
    ok!(tcuda_graph_capture_begin(second.0, b.0, pool, GLOBAL));
    let again = allocate(12 * MIB, b.0);
    assert_eq!(again, block, "the first one is over with it");
    fill(again, 2, MIB, b.0);
    second.end();
    ok!(tcuda_graph_capture_begin(third.0, a.0, second.pool(), GLOBAL));
    third.end();
    assert_eq!((second.pool().second, third.pool().second, second.reserved()), (pool.second, pool.second, held));
    // The other way round it is the same one.
    let turned = G::new();
    let other_way = tcuda_pool_id_t { first: pool.second, second: 0 };
    ok!(tcuda_graph_capture_begin(turned.0, a.0, other_way, GLOBAL));
    turned.end();
    assert_eq!(pool_stats(other_way).reserved_bytes.all.current, held);
    drop(turned);
    // The order in which they end says nothing.
    drop(first);
    second.replay(a.0);
    assert_eq!(bytes_of(block, 1, a.0), [2]);
    free(again);
    drop(second);
    assert_eq!(third.reserved(), held);
    drop(third);
    empty_caches();
}

fn a_pool_is_used_again_after_its_last_graph() {
    empty_caches();
    let stream = Own::new();
    let pool = get!(OWN, out => tcuda_graph_pool_handle(out));
    let mut left = Vec::new();
    for _ in 0..3 {
        let graph = G::new();
        ok!(tcuda_graph_capture_begin(graph.0, stream.0, pool, RELAXED));
        left.push(allocate(3 * MIB, stream.0));
        graph.end();
        assert_eq!(graph.pool().second, pool.second);
        graph.replay(stream.0);
    }
    // Blocks outlive the pool.
    left.iter().for_each(|block| fill(*block, 1, 3 * MIB, stream.0));
    left.into_iter().for_each(free);
    synchronize(stream.0);
    empty_caches();
}

fn kept_and_made_ready_later() {
    empty_caches();
    let stream = Own::new();
    let block = allocate(64, stream.0);
    let kept = G::with(TCUDA_GRAPH_KEEP);
    fails!(INVALID_STATE, tcuda_graph_instantiate(kept.0));
    kept.begin(stream.0);
    fails!(INVALID_STATE, tcuda_graph_instantiate(kept.0));
    fill(block, 6, 64, stream.0);
    kept.end();
    let native = |graph: &G| {
        let (mut captured, mut exec) = (null_mut(), null_mut());
        ok!(tcuda_graph_native(graph.0, &mut captured, &mut exec));
        (!captured.is_null(), !exec.is_null())
    };
    assert_eq!(native(&kept), (true, false));
    kept.replay(stream.0);
    assert_eq!((native(&kept), bytes_of(block, 1, stream.0)), ((true, true), vec![6]));
    ok!(tcuda_graph_instantiate(kept.0));
    kept.replay(stream.0);
    let path = std::env::temp_dir().join(format!("tcuda-graph-{}.dot", std::process::id()));
    let text = CString::new(path.to_str().unwrap()).unwrap();
    ok!(tcuda_graph_debug_dump(kept.0, text.as_ptr()));
    let dot = std::fs::read_to_string(&path).unwrap();
    assert!(dot.contains("digraph") && dot.to_uppercase().contains("MEMSET"), "{dot}");
    std::fs::remove_file(path).unwrap();
    for (nowhere, errno) in [(c"/nonexistent/g.dot", libc::ENOENT), (c"/", libc::EISDIR)] {
        let said = fails!(SYSTEM, tcuda_graph_debug_dump(kept.0, nowhere.as_ptr()));
        assert!(said.contains(nowhere.to_str().unwrap()) && said.contains("irectory"), "{said}");
        assert_eq!(tcuda::capi::error::tcuda_last_error_native(), errno);
    }
    let plain = G::captured(stream.0, || fill(block, 1, 64, stream.0));
    assert_eq!(native(&plain), (false, true));
    fails!(INVALID_STATE, tcuda_graph_debug_dump(plain.0, text.as_ptr()));
    fails!(INVALID_STATE, tcuda_graph_instantiate(plain.0));
    let debug = G::with(TCUDA_GRAPH_DEBUG);
    debug.capture(stream.0, || ());
    assert_eq!(native(&debug), (true, true));
    synchronize(stream.0);
    free(block);
    drop((kept, plain, debug));
    empty_caches();
}

fn an_update_of_what_is_ready() {
    empty_caches();
    let stream = Own::new();
    let block = allocate(64, stream.0);
    let graph = G::captured(stream.0, || fill(block, 1, 64, stream.0));
    let other = |value: i32, twice: bool| {
        let other = G::with(TCUDA_GRAPH_KEEP);
        other.capture(stream.0, || (0..=i32::from(twice)).for_each(|_| fill(block, value, 64, stream.0)));
        other
    };
    ok!(tcuda_graph_update(graph.0, other(2, false).0));
    graph.replay(stream.0);
    assert_eq!(bytes_of(block, 1, stream.0), [2]);
    let text = fails!(INVALID_ARGUMENT, tcuda_graph_update(graph.0, other(3, true).0));
    assert!(text.contains("more than arguments"), "{text}");
    fails!(INVALID_STATE, tcuda_graph_update(graph.0, G::captured(stream.0, || fill(block, 4, 64, stream.0)).0));
    fails!(INVALID_STATE, tcuda_graph_update(G::new().0, other(5, false).0));
    fails!(INVALID_ARGUMENT, tcuda_graph_update(graph.0, graph.0));
    graph.replay(stream.0);
    assert_eq!(bytes_of(block, 1, stream.0), [2]);
    free(block);
    drop(graph);
    empty_caches();
}

fn made_ready_anew_it_does_what_it_captured() {
    empty_caches();
    let stream = Own::new();
    let captured = |value: i32, size: usize| {
        let graph = G::with(TCUDA_GRAPH_KEEP);
        graph.begin(stream.0);
        let block = allocate(size, stream.0);
        fill(block, value, size, stream.0);
        free(block);
        graph.end();
        graph
    };
    let graph = captured(1, 12 * MIB);
    graph.replay(stream.0);
    let own = graph.reserved();
    let other = captured(2, 12 * MIB);
    ok!(tcuda_graph_update(graph.0, other.0));
    graph.replay(stream.0);
    ok!(tcuda_graph_instantiate(graph.0));
    graph.replay(stream.0);
    drop(other);
    synchronize(stream.0);
    ok!(tcuda_empty_cache(-1));
    assert_eq!(reserved(), own, "the other one's pool is not needed any more");
    drop(graph);
    empty_caches();
}

/// In a loop that does nothing else, on a stream that is never idle.
fn updates_keep_nothing_for_replays_that_are_over() {
    const UPDATES: usize = 300;
    empty_caches();
    let stream = Own::new();
    let capture = |value: i32| {
        let graph = G::with(TCUDA_GRAPH_KEEP);
        graph.capture(stream.0, || {
            let block = allocate(64, stream.0);
            fill(block, value, 64, stream.0);
            free(block);
        });
        graph
    };
    let graphs = [0, 1, 2].map(capture);
    ok!(tcuda_graph_instantiate(graphs[0].0));
    let (mut gate, replayed, mut first) = (Gate::on(stream.0), event(), None);
    for at in 0..UPDATES {
        ok!(tcuda_graph_update(graphs[0].0, graphs[1 + at % 2].0));
        graphs[0].replay(stream.0);
        ok!(tcuda_event_record(replayed, stream.0));
        let next = Gate::on(stream.0);
        std::mem::replace(&mut gate, next).open();
        ok!(tcuda_event_synchronize(replayed));
        let mut live = tcuda_sim_live_t { struct_size: size_of::<tcuda_sim_live_t>(), ..unsafe { std::mem::zeroed() } };
        ok!(tcuda_sim_live(&mut live, 0));
        let first = *first.get_or_insert(live.events);
        assert!(live.events <= first + 32, "{} events, {first} at first, after {at} updates", live.events);
    }
    gate.open();
    synchronize(stream.0);
    ok!(tcuda_event_destroy(replayed));
    drop(graphs);
    empty_caches();
}

/// Also where the last that used a pool goes by it: other streams of the device work on.
fn an_update_waits_for_nobody() {
    empty_caches();
    let (stream, aside) = (Own::new(), Own::new());
    let capture = |value: i32| {
        let graph = G::with(TCUDA_GRAPH_KEEP);
        graph.capture(stream.0, || {
            let block = allocate(3 * MIB, stream.0);
            fill(block, value, 64, stream.0);
            free(block);
        });
        graph
    };
    let (graph, others) = (capture(0), [1, 2, 3, 4].map(capture));
    ok!(tcuda_graph_instantiate(graph.0));
    graph.replay(stream.0);
    synchronize(stream.0);
    let gate = Gate::on(aside.0);
    for other in others {
        ok!(tcuda_graph_update(graph.0, other.0));
        graph.replay(stream.0);
        synchronize(stream.0);
        drop(other);
    }
    assert!(!gate.was_passed());
    gate.open();
    drop(graph);
    empty_caches();
}

fn updates_hold_the_pool_of_the_last_one() {
    empty_caches();
    let stream = Own::new();
    let (block, result) = (allocate(64, stream.0), pinned(64));
    let capture = |value: i32| {
        let graph = G::with(TCUDA_GRAPH_KEEP);
        graph.begin(stream.0);
        let between = allocate(3 * MIB, stream.0);
        fill(between, value, 64, stream.0);
        copy(block.cast::<u8>(), between, 64, stream.0);
        free(between);
        graph.end();
        graph
    };
    let graph = capture(0);
    ok!(tcuda_graph_instantiate(graph.0));
    let pool = graph.reserved();
    for value in 1..=5 {
        ok!(tcuda_graph_update(graph.0, capture(value).0));
        graph.replay(stream.0);
        copy(result, block, 64, stream.0);
        synchronize(stream.0);
        assert_eq!(unsafe { *result }, value as u8);
        ok!(tcuda_empty_cache(-1));
        // Its own and that of the update. Beside them, what holds the small block.
        assert!((2 * pool..3 * pool).contains(&reserved()), "{} after {value} updates, {pool} each", reserved());
    }
    // Under a replay it stays, whatever becomes of the graph: a capture that begins gives back what is over.
    let gate = Gate::on(stream.0);
    graph.replay(stream.0);
    ok!(tcuda_graph_update(graph.0, capture(6).0));
    let aside = Own::new();
    drop(G::captured(aside.0, || fill(block, 7, 64, aside.0)));
    assert!(reserved() >= 3 * pool, "{}", reserved());
    drop(graph);
    drop(G::captured(aside.0, || fill(block, 7, 64, aside.0)));
    assert!(reserved() >= 3 * pool, "{}", reserved());
    gate.open();
    copy(result, block, 64, stream.0);
    synchronize(stream.0);
    assert_eq!(unsafe { *result }, 5);
    ok!(tcuda_host_free_cached(result.cast()));
    free(block);
    empty_caches();
}

fn who_hears_the_log_may_ask_for_the_graph() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static GRAPH: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn hear(_: i32, text: *const std::ffi::c_char, _: *mut c_void) {
        let graph = GRAPH.load(Ordering::Relaxed) as tcuda_graph_t;
        ok!(tcuda_graph_pool(graph, &mut OWN.clone()));
        ok!(tcuda_graph_reset(graph));
        assert!(unsafe { std::ffi::CStr::from_ptr(text) }.to_str().unwrap().contains("Graph is empty"));
        GRAPH.store(0, Ordering::Relaxed);
    }
    let (stream, graph) = (Own::new(), G::new());
    GRAPH.store(graph.0 as usize, Ordering::Relaxed);
    ok!(tcuda::capi::error::tcuda_set_log_callback(Some(hear), null_mut()));
    graph.begin(stream.0);
    graph.end();
    ok!(tcuda::capi::error::tcuda_set_log_callback(None, null_mut()));
    assert_eq!(GRAPH.load(Ordering::Relaxed), 0, "it was told");
    fails!(INVALID_STATE, tcuda_graph_replay(graph.0, stream.0));
}

fn a_replay_into_a_capture() {
    empty_caches();
    let stream = Own::new();
    let output = allocate(64, stream.0);
    let inner = G::captured(stream.0, || fill(output, 8, 64, stream.0));
    // By tcuda's call it is refused, and the capture goes on.
    let outer = G::captured(stream.0, || {
        fails!(CAPTURE, tcuda_graph_replay(inner.0, stream.0));
        fill(output, 9, 64, stream.0);
    });
    inner.replay(stream.0);
    assert_eq!(bytes_of(output, 1, stream.0), [8]);
    outer.replay(stream.0);
    assert_eq!(bytes_of(output, 1, stream.0), [9]);
    free(output);
    drop((inner, outer));
    empty_caches();
}

fn a_replay_under_way_keeps_its_memory() {
    empty_caches();
    let (stream, on) = (Own::new(), Own::new());
    let gate = Gate::on(on.0);
    let (graph, block) = G::with_block(stream.0, 12 * MIB, 1);
    graph.replay(on.0);
    let pool = graph.pool();
    drop(graph);
    assert!(reserved() >= 12 * MIB as i64, "the replay has not begun");
    assert_eq!(pool_stats(pool).allocation.all.current, 0);
    // Nobody else gets it meanwhile.
    assert_ne!(allocate_and_free(12 * MIB, stream.0), block);
    let opened = gate.open_later();
    ok!(tcuda_empty_cache(-1));
    opened.join().unwrap();
    empty_caches();
}

fn a_replay_on_a_stream_that_is_gone_keeps_its_memory() {
    empty_caches();
    let (stream, on) = (Own::new(), Own::new());
    let gate = Gate::on(on.0);
    let (graph, _) = G::with_block(stream.0, 12 * MIB, 1);
    graph.replay(on.0);
    drop(on);
    drop(graph);
    assert!(reserved() >= 12 * MIB as i64);
    gate.open();
    empty_caches();
}

/// The per-thread default stream is another one in each thread.
fn a_replay_on_another_threads_default_stream_keeps_its_memory() {
    empty_caches();
    let stream = Own::new();
    let block = allocate(MIB, stream.0);
    let graph = G::new();
    graph.begin(stream.0);
    let host = pinned(MIB);
    copy(host, block, MIB, stream.0);
    ok!(tcuda_host_free_cached(host.cast()));
    graph.end();
    std::thread::scope(|scope| {
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let graph = &graph;
        let other = scope.spawn(move || {
            let gate = Gate::on(handle(2));
            graph.replay(handle(2));
            begun.send(()).unwrap();
            may_go.recv().unwrap();
            gate.open();
            synchronize(handle(2));
        });
        has_begun.recv().unwrap();
        ok!(tcuda_graph_reset(graph.0));
        let next = pinned(MIB);
        go.send(()).unwrap();
        other.join().unwrap();
        assert_ne!(next, host);
        ok!(tcuda_host_free_cached(next.cast()));
    });
    free(block);
    drop(graph);
    ok!(tcuda_host_empty_cache());
    empty_caches();
}

/// A stream for each replay, destroyed before that is over: what is kept of them ends with the replays.
fn replays_on_streams_that_come_and_go() {
    empty_caches();
    let stream = Own::new();
    let block = allocate(64, stream.0);
    let graph = G::captured(stream.0, || fill(block, 1, 64, stream.0));
    let events = || {
        let mut live: tcuda_sim_live_t = unsafe { std::mem::zeroed() };
        live.struct_size = size_of::<tcuda_sim_live_t>();
        ok!(tcuda_sim_live(&mut live, -3));
        live.events
    };
    let before = events();
    for _ in 0..100 {
        let on = Own::new();
        let gate = Gate::on(on.0);
        graph.replay(on.0);
        drop(on);
        gate.open();
        ok!(tcuda_synchronize(-1));
    }
    assert!(events() < before + 20, "{} events, {before} before", events());
    free(block);
    drop(graph);
    empty_caches();
}

fn the_stream_to_capture_on_is_nobodys() {
    let capture_stream = || get!(NULL, out => tcuda_graph_capture_stream(out, -1));
    let first = capture_stream();
    assert_eq!(capture_stream(), first);
    ok!(tcuda_stream_destroy(first));
    // The driver may give the same handle again.
    let own = Own::new();
    assert_ne!(capture_stream(), own.0);
}

fn pinned_memory_stays_until_the_reset() {
    ok!(tcuda_host_empty_cache());
    let stream = Own::new();
    let block = allocate(MIB, stream.0);
    let before = pinned(MIB);
    let graph = G::new();
    graph.begin(stream.0);
    // Allocated before or in the capture, used or not yet.
    let (inside, unused) = (pinned(MIB), pinned(MIB));
    copy(block, before.cast(), MIB, stream.0);
    copy(block, inside.cast(), MIB, stream.0);
    ok!(tcuda_host_free_cached(inside.cast()));
    graph.end();
    unsafe { before.write_bytes(3, MIB) };
    for block in [before, unused] {
        ok!(tcuda_host_free_cached(block.cast()));
    }
    fails!(INVALID_POINTER, tcuda_host_free_cached(inside.cast()));
    let others: Vec<_> = (0..4).map(|_| pinned(MIB)).collect();
    assert!([before, inside, unused].iter().all(|kept| !others.contains(kept)), "replays read it");
    graph.replay(stream.0);
    synchronize(stream.0);
    ok!(tcuda_host_empty_cache());
    graph.replay(stream.0);
    synchronize(stream.0);
    let active = || get!(-1, out => tcuda_host_memory_stat_get(out, c"active_bytes.current".as_ptr()));
    assert_eq!(active(), 7 * MIB as i64);
    drop(graph);
    ok!(tcuda_host_empty_cache());
    assert_eq!(active(), 4 * MIB as i64, "the graph is gone");
    for block in others {
        ok!(tcuda_host_free_cached(block.cast()));
    }
    ok!(tcuda_host_empty_cache());
    free(block);
    empty_caches();
}

fn which_streams_are_capturing() {
    let (stream, other) = (Own::new(), Own::new());
    let graph = G::new();
    let previous = get!(NULL, out => tcuda_current_stream(out, -1));
    ok!(tcuda_set_stream(stream.0));
    assert!(!tcuda_is_current_stream_capturing());
    graph.begin(stream.0);
    assert!(tcuda_is_current_stream_capturing() && is_capturing(stream.0));
    assert!(!is_capturing(other.0) && !is_capturing(NULL));
    ok!(tcuda_set_stream(previous));
    assert!(!tcuda_is_current_stream_capturing());
    graph.end();
    assert!(!is_capturing(stream.0));
    let own = get!(NULL, out => tcuda_graph_capture_stream(out, -1));
    assert_eq!(get!(NULL, out => tcuda_graph_capture_stream(out, -1)), own);
    let graph = G::captured(own, || ());
    graph.replay(own);
    synchronize(own);
    // A program that ends it gets another one.
    ok!(tcuda_stream_destroy(own));
    is_usable(get!(NULL, out => tcuda_graph_capture_stream(out, -1)));
}

fn wrong_states_and_arguments() {
    let (stream, other) = (Own::new(), Own::new());
    let graph = G::new();
    fails!(INVALID_STATE, tcuda_graph_capture_end(graph.0));
    fails!(INVALID_STATE, tcuda_graph_replay(graph.0, stream.0));
    fails!(INVALID_STATE, tcuda_graph_pool(graph.0, &mut OWN.clone()));

    for default in [NULL, default_of(0), handle(1), handle(2)] {
        let text = fails!(INVALID_ARGUMENT, tcuda_graph_capture_begin(graph.0, default, OWN, GLOBAL));
        assert!(text.contains("must be captured on a non-default stream"), "{text}");
    }
    for mode in [-1, 3] {
        fails!(INVALID_ARGUMENT, tcuda_graph_capture_begin(graph.0, stream.0, OWN, mode));
    }
    for (first, second) in [(1, 1), (u64::MAX, 0), (0, u64::MAX)] {
        fails!(INVALID_ARGUMENT, tcuda_graph_capture_begin(graph.0, stream.0, tcuda_pool_id_t { first, second }, GLOBAL));
    }
    let mut stats = tcuda_memory_stats_t { struct_size: size_of::<tcuda_memory_stats_t>(), ..Default::default() };
    fails!(INVALID_ARGUMENT, tcuda_graph_pool_stats(&mut stats, OWN));
    // A pool that PyTorch has is none for graphs, though its number is of the same row.
    let next = get!(OWN, out => tcuda_graph_pool_handle(out)).second + 2;
    tcuda::memory::lent::begin(0, (7, 7), Box::new(|_| false)).unwrap();
    for (first, second) in [(0, next), (next, 0)] {
        fails!(INVALID_ARGUMENT, tcuda_graph_capture_begin(graph.0, stream.0, tcuda_pool_id_t { first, second }, GLOBAL));
    }
    tcuda::memory::lent::end(0, (7, 7)).unwrap();
    tcuda::memory::lent::release(0, (7, 7)).unwrap();
    // A memory pool of the program's own is none for graphs, nor the other way round.
    let pool = get!(null_mut(), out => tcuda::capi::pool::tcuda_mem_pool_create(out, -1, std::ptr::null()));
    // Numbers of other things, and such as nobody has.
    for second in [1, graph.0 as u64, stream.0 as u64] {
        fails!(INVALID_ARGUMENT, tcuda_graph_capture_begin(graph.0, stream.0, tcuda_pool_id_t { first: 0, second }, GLOBAL));
    }
    let number = get!(0, out => tcuda::capi::pool::tcuda_mem_pool_id(pool, out));
    fails!(INVALID_ARGUMENT, tcuda_graph_capture_begin(graph.0, stream.0, tcuda_pool_id_t { first: 0, second: number }, GLOBAL));
    ok!(tcuda::capi::pool::tcuda_mem_pool_destroy(pool));
    graph.begin(stream.0);
    fails!(INVALID_STATE, tcuda_graph_pool(graph.0, &mut OWN.clone()));
    fails!(INVALID_STATE, tcuda_graph_replay(graph.0, other.0));
    fails!(INVALID_STATE, tcuda_graph_capture_begin(graph.0, other.0, OWN, GLOBAL));
    let second = G::new();
    fails!(CAPTURE, tcuda_graph_capture_begin(second.0, stream.0, OWN, GLOBAL));
    graph.end();
    fails!(INVALID_HANDLE, tcuda::capi::pool::tcuda_mem_pool_destroy(graph.pool().first as usize as _));
    let text = fails!(INVALID_STATE, tcuda_graph_capture_begin(graph.0, stream.0, OWN, GLOBAL));
    assert!(text.contains("already owns a captured graph"), "{text}");
    fails!(INVALID_ARGUMENT, tcuda_graph_create(&mut null_mut(), 4));
    let dead = graph.0;
    drop(graph);
    fails!(INVALID_HANDLE, tcuda_graph_replay(dead, stream.0));
    fails!(INVALID_HANDLE, tcuda_graph_destroy(dead));
    ok!(tcuda_graph_destroy(null_mut()));
    synchronize(stream.0);
    empty_caches();
}

fn another_devices_memory_and_streams() {
    empty_caches();
    set_device(0);
    let (here, there) = (Own::on(0), Own::on(1));
    let fork = event();
    let graph = G::new();
    graph.begin(here.0);
    // What does not take part is not concerned.
    free(allocate(MIB, there.0));
    order(here.0, there.0, fork);
    let mut out = null_mut();
    let text = fails!(CAPTURE, tcuda_malloc_cached(&mut out, MIB, there.0));
    assert!(text.contains("allocate there before"), "{text}");
    graph.end();
    fails!(INVALID_ARGUMENT, tcuda_graph_replay(graph.0, there.0));
    let other = G::new();
    let text = fails!(INVALID_ARGUMENT, tcuda_graph_capture_begin(other.0, there.0, graph.pool(), GLOBAL));
    assert!(text.contains("is on device 0"), "{text}");
    ok!(tcuda_graph_capture_begin(other.0, there.0, OWN, GLOBAL));
    let block = allocate(MIB, there.0);
    fill(block, 3, MIB, there.0);
    other.end();
    // Whatever device is current.
    other.replay(there.0);
    assert_eq!(bytes_of(block, 1, there.0), [3]);
    free(block);
    ok!(tcuda_event_destroy(fork));
    drop((graph, other));
    empty_caches();
}
