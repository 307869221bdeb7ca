//! Snapshots and history: torch's entries in torch's order, blocks that are the statistics, threads, failures.

use crate::graph::G;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use tcuda::base::status::tcuda_status_t::{self, TCUDA_ERROR_CUDA};
use tcuda::capi::graph::tcuda_pool_id_t;
use tcuda::capi::history::*;
use tcuda::capi::memory::*;
use tcuda::capi::pool::*;
use tcuda::capi::pressure::*;
use tcuda::capi::snapshot::*;
use tcuda::capi::stream::{tcuda_stream_add_host_function, tcuda_stream_synchronize};
use tcuda::memory::snapshot::Use;

tests![
    entries_are_torchs_in_its_order,
    a_free_that_waits_completes_later,
    blocks_are_the_statistics,
    entries_lead_to_what_is_there,
    history_that_begins_later_knows_what_was_before_by_its_end,
    threads_lose_nothing_but_the_oldest,
    what_threads_do_can_be_replayed,
    a_snapshot_while_threads_work_is_of_one_moment,
    so_are_a_devices_pools,
    entries_know_their_pool,
    a_thread_knows_its_annotation,
    annotations_are_the_threads,
    blocks_keep_annotations_without_entries,
    blocks_that_wait_keep_their_annotation,
    each_device_has_its_own: [TwoDevices],
    what_is_off_is_forgotten,
    what_is_cleared_is_forgotten_in_pools_too,
    a_failure_is_an_entry_and_its_observer_may_look,
    files_are_whole_or_none,
    what_is_open_goes_on_and_links_stay,
    bad_arguments_are_refused,
    a_snapshot_that_is_gone_is_none,
    of_several_threads_one_ends_a_snapshot,
    host_functions_take_none: [Faults],
];

const OFF: i32 = 0;
const STATE: i32 = 1;
const ALL: i32 = 2;
const EVERY_DEVICE: i32 = -3;
const MIB: usize = 1 << 20;

/// Recording, for the length of a test.
struct Recording;

impl Recording {
    fn of(enabled: i32, most: u64) -> Recording {
        ok!(tcuda_memory_record_history(enabled, most, true, EVERY_DEVICE));
        Recording
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        tcuda_memory_record_history(OFF, 0, true, EVERY_DEVICE);
        unsafe { tcuda_memory_annotate(null()) };
    }
}

/// A snapshot for the length of a test.
pub struct Taken(tcuda_snapshot_t);

impl Taken {
    pub fn of(device: i32) -> Taken {
        Taken(get!(null_mut(), out => tcuda_memory_snapshot(out, device)))
    }

    fn info(&self) -> tcuda_snapshot_info_t {
        let mut info = tcuda_snapshot_info_t { struct_size: size_of::<tcuda_snapshot_info_t>(), ..Default::default() };
        ok!(tcuda_snapshot_info(self.0, &mut info));
        info
    }

    pub fn segments(&self) -> Vec<tcuda_snapshot_segment_t> {
        let of = |index| {
            let mut segment = tcuda_snapshot_segment_t { struct_size: size_of::<tcuda_snapshot_segment_t>(), ..Default::default() };
            ok!(tcuda_snapshot_segment(self.0, &mut segment, index));
            segment
        };
        (0..self.info().segments).map(of).collect()
    }

    fn blocks(&self) -> Vec<tcuda_snapshot_block_t> {
        let of = |index| {
            let mut block: tcuda_snapshot_block_t = unsafe { std::mem::zeroed() };
            block.struct_size = size_of::<tcuda_snapshot_block_t>();
            ok!(tcuda_snapshot_block(self.0, &mut block, index));
            block
        };
        (0..self.info().blocks).map(of).collect()
    }

    fn data(&self, format: i32) -> Vec<u8> {
        let (mut data, mut size) = (null(), 0);
        ok!(tcuda_snapshot_data(self.0, &mut data, &mut size, format));
        unsafe { std::slice::from_raw_parts(data.cast(), size) }.to_vec()
    }

    fn block(&self, address: *mut c_void) -> tcuda_snapshot_block_t {
        *self.blocks().iter().find(|block| block.address == address as u64).expect("the block is in the snapshot")
    }

    fn entries(&self, device: i32) -> Vec<tcuda_snapshot_entry_t> {
        let of = |index| {
            let mut entry: tcuda_snapshot_entry_t = unsafe { std::mem::zeroed() };
            entry.struct_size = size_of::<tcuda_snapshot_entry_t>();
            match unsafe { tcuda_snapshot_entry(self.0, &mut entry, device, index) } {
                tcuda::base::Status::TCUDA_SUCCESS => Some(entry),
                _ => None,
            }
        };
        (0..).map_while(of).collect()
    }

    /// Action, address, size; what is about memory of the driver is left out.
    fn of_blocks(&self) -> Vec<(String, usize, u64)> {
        let all = self.entries(0).into_iter().map(|entry| (text(entry.action), entry.address as usize, entry.size));
        all.filter(|(action, ..)| !action.starts_with("segment_")).collect()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        unsafe { tcuda_snapshot_destroy(self.0) };
    }
}

fn entry(action: &str, block: *mut c_void, size: u64) -> (String, usize, u64) {
    (action.into(), block as usize, size)
}

fn entries_are_torchs_in_its_order() {
    empty_caches();
    let own = Own::on(0);
    let _recording = Recording::of(ALL, 1000);
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as i64;
    let large = allocate(3 * MIB + 7, own.0);
    let small = allocate(1000, own.0);
    // Once from what the thread keeps.
    let mut expected = vec![entry("alloc", large, 3 * MIB as u64 + 7), entry("alloc", small, 1000)];
    free(small);
    expected.extend(["free_requested", "free_completed"].map(|action| entry(action, small, 1000)));
    for _ in 0..3 {
        let again = allocate(700, own.0);
        free(again);
        expected.extend(["alloc", "free_requested", "free_completed"].map(|action| entry(action, again, 700)));
    }
    free(large);
    expected.extend(["free_requested", "free_completed"].map(|action| entry(action, large, 3 * MIB as u64 + 7)));
    expected.push(entry("snapshot", null_mut(), 0));
    let taken = Taken::of(0);
    assert_eq!(taken.of_blocks(), expected);
    assert_eq!((taken.info().lost_entries, taken.info().devices), (0, device_count() as u64));
    let entries = taken.entries(0);
    assert_eq!(entries.len() as u64, taken.info().entries);
    // Memory comes before its block.
    assert!(["segment_map", "segment_alloc"].contains(&text(entries[0].action).as_str()));
    assert!(entries[0].address <= large as u64 && large as u64 + 3 * MIB as u64 <= entries[0].address + entries[0].size);
    assert!(entries.windows(2).all(|pair| pair[0].time_us <= pair[1].time_us));
    assert!((entries[0].time_us - before).abs() < 3_600_000_000, "{} is not about {before}", entries[0].time_us);
    let of_block = entries.iter().filter(|entry| entry.address == large as u64 && !text(entry.action).starts_with("segment"));
    of_block.for_each(|entry| assert_eq!(entry.stream, own.0 as u64));
    ok!(tcuda_empty_cache(0));
    let after = Taken::of(0);
    let last = after.entries(0)[entries.len()];
    // A plain segment is its stream's; virtual memory serves all.
    match text(last.action).as_str() {
        "segment_free" => assert_eq!((last.stream, entries[0].stream), (own.0 as u64, own.0 as u64)),
        other => assert_eq!((other, last.stream), ("segment_unmap", 0)),
    }
    assert_eq!(after.info().segments, 0);
}

fn a_free_that_waits_completes_later() {
    empty_caches();
    let (own, other) = (Own::on(0), Own::on(0));
    let _recording = Recording::of(ALL, 1000);
    let block = allocate(5000, own.0);
    let gate = Gate::on(other.0);
    ok!(tcuda_record_stream(block, other.0));
    free(block);
    let taken = Taken::of(0);
    let found = taken.block(block);
    assert_eq!((found.state, found.requested_size, found.size), (2, 5000, 5120));
    let segment = taken.segments()[0];
    assert_eq!((segment.allocated_size, segment.active_size, segment.requested_size), (0, 5120, 5000));
    assert_eq!(taken.of_blocks()[..2], [entry("alloc", block, 5000), entry("free_requested", block, 5000)]);
    gate.open();
    ok!(tcuda::capi::stream::tcuda_stream_synchronize(other.0));
    assert_eq!(stat(0, "active.all.current"), 0);
    let taken = Taken::of(0);
    assert!(taken.of_blocks().contains(&entry("free_completed", block, 5000)));
    assert!(taken.blocks().iter().all(|block| block.state == 0 && block.requested_size == 0));
    empty_caches();
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % most
    }

    fn size(&mut self) -> usize {
        let most = [600, 60_000, 2 * MIB, 9 * MIB][self.below(4)];
        1 + self.below(most)
    }
}

/// Allocates and frees until `done`; ends with nothing in use.
fn work(seed: u64, stream: tcuda::capi::structs::tcuda_stream_t, steps: usize, mut each: impl FnMut()) {
    const LIVE: usize = 40;
    let mut random = Random(seed);
    let mut live: Vec<*mut c_void> = Vec::new();
    for _ in 0..steps {
        if live.len() == LIVE || (!live.is_empty() && random.below(2) == 0) {
            free(live.swap_remove(random.below(live.len())));
        } else {
            live.push(allocate(random.size(), stream));
        }
        each();
    }
    live.into_iter().for_each(free);
}

fn blocks_are_the_statistics() {
    empty_caches();
    let streams = [Own::on(0), Own::on(0)];
    for (seed, own) in streams.iter().enumerate() {
        let mut step = 0;
        work(seed as u64, own.0, 600, || {
            step += 1;
            if step % 50 == 0 {
                tcuda::memory::snapshot(Some(0)).unwrap().check(0);
            }
        });
    }
    let taken = Taken::of(0);
    let info = taken.info();
    assert_eq!(taken.segments().iter().map(|segment| segment.block_count).sum::<u64>(), info.blocks);
    assert_eq!(taken.segments().iter().map(|segment| segment.total_size).sum::<u64>() as i64, stat(0, "reserved_bytes.all.current"));
    assert_eq!((info.entries, info.lost_entries), (0, 0));
    empty_caches();
}

/// What the entries say of memory and blocks, one after the other, ends in what is there.
fn entries_lead_to_what_is_there() {
    empty_caches();
    let streams = [Own::on(0), Own::on(0), Own::on(0)];
    let _recording = Recording::of(ALL, u64::MAX);
    for round in 0..4 {
        streams.iter().enumerate().for_each(|(seed, own)| work((seed + round) as u64, own.0, 400, || ()));
        let kept = [4096, 3 * MIB].map(|size| allocate(size, streams[0].0));
        let snapshot = tcuda::memory::snapshot(Some(0)).unwrap();
        snapshot.check(0);
        snapshot.check_history(0);
        assert!(snapshot.traces[0].entries.len() > 1500 * (round + 1));
        kept.into_iter().for_each(free);
        if round == 2 {
            ok!(tcuda_empty_cache(0));
            tcuda::memory::snapshot(Some(0)).unwrap().check_history(0);
        }
    }
    empty_caches();
}

fn history_that_begins_later_knows_what_was_before_by_its_end() {
    empty_caches();
    let own = Own::on(0);
    ok!(tcuda_memory_annotate(c"unheard".as_ptr()));
    let (before, kept) = (allocate(4096, own.0), allocate(2 * MIB, own.0));
    let _recording = Recording::of(ALL, 1000);
    let during = allocate(4096, own.0);
    free(before);
    let taken = Taken::of(0);
    let expected = [entry("alloc", during, 4096), entry("free_requested", before, 4096), entry("free_completed", before, 4096)];
    assert_eq!(taken.of_blocks()[..3], expected);
    // Nobody wrote down what it was for.
    assert_eq!((text(taken.block(kept).annotation), text(taken.block(during).annotation)), ("".into(), "unheard".into()));
    free(during);
    free(kept);
    empty_caches();
}

const THREADS: usize = 8;

/// For threads: a stream that outlives them.
fn numbers(streams: &[Own]) -> Vec<usize> {
    streams.iter().map(|own| own.0 as usize).collect()
}

fn in_threads(work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
}

fn threads_lose_nothing_but_the_oldest() {
    const PAIRS: usize = 3000;
    empty_caches();
    let own: Vec<Own> = (0..THREADS).map(|_| Own::on(0)).collect();
    let streams = numbers(&own);
    let _recording = Recording::of(ALL, u64::MAX);
    in_threads(|thread| {
        for step in 0..PAIRS {
            free(allocate(512 + step % 3000, handle(streams[thread])));
        }
    });
    let whole = Taken::of(0);
    assert_eq!(whole.info().lost_entries, 0);
    let of_blocks = whole.of_blocks();
    let count = |wanted: &str| of_blocks.iter().filter(|(action, ..)| action == wanted).count();
    assert_eq!(["alloc", "free_requested", "free_completed"].map(count), [THREADS * PAIRS; 3]);
    // The same with a bound that comes later: each of them, and the entry of the snapshot before, is there or counted.
    let all = whole.info().entries;
    for most in [5000, 100, 1] {
        ok!(tcuda_memory_record_history(ALL, most, false, 0));
        let bounded = Taken::of(0);
        let entries = bounded.entries(0);
        assert_eq!(entries.len() as u64, most);
        assert!(bounded.info().lost_entries > all - most - 1 && bounded.info().lost_entries <= all - most + 3);
        assert_eq!(text(entries[most as usize - 1].action), "snapshot");
    }
    // And with a bound from the start.
    ok!(tcuda_memory_record_history(ALL, 1000, true, 0));
    ok!(tcuda_empty_cache(0));
    let before = Taken::of(0).info();
    let before = before.entries + before.lost_entries;
    in_threads(|thread| {
        let own = handle(streams[thread]);
        (0..PAIRS).for_each(|_| free(allocate(512, own)));
    });
    let bounded = Taken::of(0);
    let info = bounded.info();
    assert_eq!(info.entries, 1000);
    let events = info.entries + info.lost_entries - before - 1;
    let mapped = events - 3 * (THREADS * PAIRS) as u64;
    assert!(mapped >= 1 && mapped <= THREADS as u64, "{mapped} entries are of no block");
    empty_caches();
}

/// No two blocks overlap, and each free is of a block in use: what threads did, by time, is what happened.
fn what_threads_do_can_be_replayed() {
    const PAIRS: usize = 2000;
    empty_caches();
    let own: Vec<Own> = (0..THREADS / 2).map(|_| Own::on(0)).collect();
    let streams = numbers(&own);
    let _recording = Recording::of(ALL, u64::MAX);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::sync_channel::<usize>(16)).unzip();
    let receivers: Vec<_> = receivers.into_iter().map(Mutex::new).collect();
    in_threads(|thread| {
        // Two threads on each stream; every third block is freed by the next thread.
        let next = senders[(thread + 1) % THREADS].clone();
        let mine = receivers[thread].lock().unwrap();
        let mut random = Random(thread as u64);
        for step in 0..PAIRS {
            let block = allocate(1 + random.below(6000), handle(streams[thread / 2]));
            if step % 3 != 0 || next.try_send(block as usize).is_err() {
                free(block);
            }
            while let Ok(block) = mine.try_recv() {
                free(block as *mut c_void);
            }
        }
    });
    receivers.iter().for_each(|mine| mine.lock().unwrap().try_iter().for_each(|block| free(block as *mut c_void)));
    let snapshot = tcuda::memory::snapshot(Some(0)).unwrap();
    snapshot.check_history(0);
    assert!(snapshot.traces[0].entries.len() > 3 * (THREADS * PAIRS));
    empty_caches();
}

/// Also when a check fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn a_snapshot_while_threads_work_is_of_one_moment() {
    const SNAPSHOTS: usize = 60;
    empty_caches();
    let streams: Vec<Own> = (0..THREADS).map(|_| Own::on(0)).collect();
    let _recording = Recording::of(ALL, 5000);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (seed, own) in streams.iter().enumerate() {
            let (done, stream) = (&done, own.0 as usize);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    work(seed as u64, handle(stream), 200, || ());
                }
            });
        }
        let _done = Done(&done);
        for _ in 0..SNAPSHOTS {
            let snapshot = tcuda::memory::snapshot(Some(0)).unwrap();
            snapshot.check(0);
            // The last entry of each block in use that has one is its allocation.
            let mut last: BTreeMap<usize, (bool, usize)> = BTreeMap::new();
            for entry in &snapshot.traces[0].entries {
                use tcuda::memory::snapshot::Action;
                let record = &entry.record;
                match record.action {
                    Action::Alloc => drop(last.insert(record.address as usize, (true, record.size as usize))),
                    Action::FreeCompleted => drop(last.insert(record.address as usize, (false, 0))),
                    _ => {}
                }
            }
            let in_use: BTreeMap<usize, usize> = snapshot
                .blocks
                .iter()
                .filter(|block| block.state == Use::Allocated)
                .map(|block| (block.address, block.requested))
                .collect();
            for (address, (allocated, size)) in last {
                assert_eq!(in_use.get(&address).copied(), allocated.then_some(size), "0x{address:x}");
            }
        }
    });
    drop(streams);
    ok!(tcuda::capi::device::tcuda_synchronize(0));
    empty_caches();
}

fn so_are_a_devices_pools() {
    const SNAPSHOTS: usize = 300;
    empty_caches();
    let streams: Vec<Own> = (0..4).map(|_| Own::on(0)).collect();
    let pools: [_; 2] = std::array::from_fn(|_| get!(null_mut(), out => tcuda_mem_pool_create(out, 0, null())));
    let (done, started) = (AtomicBool::new(false), std::sync::Barrier::new(streams.len() + 1));
    std::thread::scope(|scope| {
        for (seed, own) in streams.iter().enumerate() {
            let (done, started, stream, pool) = (&done, &started, own.0 as usize, pools[seed % 2] as usize);
            scope.spawn(move || {
                let pool = pool as tcuda_mem_pool_t;
                // Of four one works beside the pools.
                let inside = seed < 3;
                if inside {
                    ok!(tcuda_mem_pool_begin(pool));
                }
                let block = allocate(1000, handle(stream));
                started.wait();
                while !done.load(Ordering::Relaxed) {
                    work(seed as u64, handle(stream), 100, || ());
                }
                free(block);
                if inside {
                    ok!(tcuda_mem_pool_end(pool));
                }
            });
        }
        let _done = Done(&done);
        started.wait();
        let mut seen = [0; 3];
        for _ in 0..SNAPSHOTS {
            let snapshot = tcuda::memory::snapshot(Some(0)).unwrap();
            snapshot.check(0);
            assert!(snapshot.segments.windows(2).all(|pair| pair[0].blocks.end == pair[1].blocks.start), "blocks lie as their segments");
            let numbers = [0, pools[0] as u64, pools[1] as u64];
            let pools = snapshot.segments.iter().map(|segment| segment.pool.pair());
            pools.for_each(|(_, pool)| seen[numbers.iter().position(|number| *number == pool).unwrap()] += 1);
        }
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    });
    pools.into_iter().for_each(|pool| ok!(tcuda_mem_pool_destroy(pool)));
    drop(streams);
    ok!(tcuda::capi::device::tcuda_synchronize(0));
    empty_caches();
}

/// What happens to a pool's memory has the pool's id, in torch's form: (0, n) of one that has a handle, (n, 0) of one that a capture made.
fn entries_know_their_pool() {
    empty_caches();
    let own = Own::on(0);
    let _recording = Recording::of(ALL, 1000);
    free(allocate(1000, own.0));
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, 0, null()));
    let id = get!(0, out => tcuda_mem_pool_id(pool, out));
    let in_pool = get!(null_mut(), out => tcuda_mem_pool_malloc(out, 1000, own.0, pool));
    let graphs = G::captured(own.0, || free(allocate(3 << 20, own.0)));
    let tcuda_pool_id_t { first, second } = graphs.pool();
    assert!(first != 0 && second == 0);
    let taken = Taken::of(0);
    let of_pool = |wanted: [u64; 2]| -> Vec<String> {
        taken.entries(0).into_iter().filter(|entry| entry.pool_id == wanted).map(|entry| text(entry.action)).collect()
    };
    let pools: Vec<_> = taken.segments().iter().map(|segment| segment.pool_id).collect();
    let (plain, virtual_) = (["segment_alloc", "alloc"], ["segment_map", "alloc"]);
    for wanted in [[0, id], [first, second]] {
        let found = of_pool(wanted);
        assert!(found.starts_with(&plain.map(String::from)) || found.starts_with(&virtual_.map(String::from)), "{found:?}");
        assert!(pools.contains(&wanted), "{pools:?}");
    }
    assert_eq!(of_pool([first, second])[2..], ["free_requested", "free_completed"]);
    let others = of_pool([0, 0]);
    assert!(["alloc", "free_requested", "free_completed", "snapshot"].iter().all(|action| others.iter().any(|found| found == action)));
    assert!(stat(0, &format!("reserved_bytes_by_private_pools.{first}_0.all.current")) >= 3 << 20);
    // In files too.
    let json = String::from_utf8(taken.data(2)).unwrap();
    assert!(json.replace([' ', '\n'], "").contains(&format!("\"pool_id\":[0,{id}]")), "{json}");
    free(in_pool);
    ok!(tcuda_mem_pool_destroy(pool));
    drop(graphs);
    empty_caches();
}

/// What it was before a part of the program comes back.
fn a_thread_knows_its_annotation() {
    let said = || text(tcuda_memory_annotation());
    assert_eq!(said(), "");
    ok!(tcuda_memory_annotate(c"forward".as_ptr()));
    let outer = tcuda_memory_annotation();
    ok!(tcuda_memory_annotate(c"a part".as_ptr()));
    assert_eq!((said(), text(outer)), ("a part".to_owned(), "forward".to_owned()));
    assert_eq!(std::thread::spawn(|| text(tcuda_memory_annotation())).join().unwrap(), "");
    ok!(tcuda_memory_annotate(outer));
    assert_eq!(said(), "forward");
    ok!(tcuda_memory_annotate(null()));
    assert_eq!(said(), "");
}

fn annotations_are_the_threads() {
    empty_caches();
    let own = Own::on(0);
    let _recording = Recording::of(ALL, 1000);
    let strange = "layer \"3\"\n\t\u{e9}\\ </script> \u{1}";
    let c_strange = CString::new(strange).unwrap();
    ok!(tcuda_memory_annotate(c"forward".as_ptr()));
    let first = allocate(1000, own.0);
    ok!(tcuda_memory_annotate(c_strange.as_ptr()));
    let second = allocate(3 * MIB, own.0);
    let stream = own.0 as usize;
    let others = std::thread::spawn(move || allocate(1000, handle(stream)) as usize).join().unwrap() as *mut c_void;
    // What is no text changes nothing.
    fails!(INVALID_ARGUMENT, tcuda_memory_annotate(c"\xff\xfe".as_ptr()));
    let third = allocate(1000, own.0);
    ok!(tcuda_memory_annotate(null()));
    let fourth = allocate(1000, own.0);
    free(first);
    let taken = Taken::of(0);
    let notes = [second, third, others, fourth].map(|block| text(taken.block(block).annotation));
    assert_eq!(notes, [strange, strange, "", ""]);
    let of = |action: &str| -> Vec<String> {
        let entries = taken.entries(0);
        entries.iter().filter(|entry| text(entry.action) == action).map(|entry| text(entry.annotation)).collect()
    };
    assert_eq!(of("alloc"), ["forward", strange, "", strange, ""]);
    assert_eq!(of("free_completed"), [""]);
    assert_eq!(of("user_defined"), ["forward", strange, ""]);
    // As JSON it is escaped.
    let (mut data, mut size) = (null(), 0);
    ok!(tcuda_snapshot_data(taken.0, &mut data, &mut size, 2));
    let json = std::str::from_utf8(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }).unwrap();
    assert!(json.contains(r#""layer \"3\"\n\u0009"#) && json.contains(r#"\\ \u003c/script> \u0001""#));
    [second, third, others, fourth].into_iter().for_each(free);
    empty_caches();
}

fn blocks_keep_annotations_without_entries() {
    empty_caches();
    let own = Own::on(0);
    let _recording = Recording::of(STATE, 0);
    ok!(tcuda_memory_annotate(c"weights".as_ptr()));
    let blocks: Vec<_> = [100, 5000, 3 * MIB].into_iter().map(|size| allocate(size, own.0)).collect();
    ok!(tcuda_memory_annotate(c"".as_ptr()));
    free(allocate(100, own.0));
    let plain = allocate(100, own.0);
    let taken = Taken::of(0);
    blocks.iter().for_each(|block| assert_eq!(text(taken.block(*block).annotation), "weights"));
    assert_eq!(text(taken.block(plain).annotation), "");
    assert_eq!((taken.info().entries, taken.info().lost_entries), (0, 0));
    blocks.into_iter().chain([plain]).for_each(free);
    empty_caches();
}

/// What is freed, but in use by other streams, is still for what it was for.
fn blocks_that_wait_keep_their_annotation() {
    empty_caches();
    let (own, other) = (Own::on(0), Own::on(0));
    let notes = |blocks: &[*mut c_void]| {
        let taken = Taken::of(0);
        blocks.iter().map(|block| (taken.block(*block).state, text(taken.block(*block).annotation))).collect::<Vec<_>>()
    };
    for mode in [STATE, ALL] {
        let _recording = Recording::of(mode, 100);
        ok!(tcuda_memory_annotate(c"model weights".as_ptr()));
        let blocks = [1000, 3 * MIB].map(|size| allocate(size, own.0));
        let gate = Gate::on(other.0);
        blocks.iter().for_each(|block| ok!(tcuda_record_stream(*block, other.0)));
        // What frees it is for something else.
        ok!(tcuda_memory_annotate(c"cleaning up".as_ptr()));
        blocks.into_iter().for_each(free);
        assert_eq!(notes(&blocks), [(2, "model weights".into()), (2, "model weights".into())]);
        // As with blocks in use, a recording that begins anew knows nothing of what was before.
        let _again = Recording::of(mode, 100);
        assert_eq!(notes(&blocks), [(2, String::new()), (2, String::new())]);
        gate.open();
        ok!(tcuda::capi::stream::tcuda_stream_synchronize(other.0));
        empty_caches();
    }
}

fn each_device_has_its_own() {
    empty_caches();
    let (near, far) = (Own::on(0), Own::on(1));
    let recording = Recording::of(OFF, 0);
    ok!(tcuda_memory_record_history(ALL, 100, false, 1));
    let (here, there) = (allocate(1000, near.0), allocate(1000, far.0));
    let both = Taken::of(EVERY_DEVICE);
    assert_eq!(both.entries(0).len(), 0);
    let entries = both.entries(1);
    assert!(entries.iter().all(|entry| entry.device == 1) && entries.iter().any(|entry| entry.address == there as u64));
    let segments = both.segments();
    assert_eq!(segments.iter().map(|segment| segment.device).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(both.blocks()[segments[1].first_block as usize].address, segments[1].address);
    let one = Taken::of(1);
    assert!(one.segments().iter().all(|segment| segment.device == 1) && one.info().segments == 1);
    drop(recording);
    free(here);
    free(there);
    empty_caches();
}

fn what_is_off_is_forgotten() {
    empty_caches();
    let own = Own::on(0);
    let recording = Recording::of(ALL, 1000);
    ok!(tcuda_memory_annotate(c"noted".as_ptr()));
    let block = allocate(1000, own.0);
    assert!(Taken::of(0).info().entries > 1);
    ok!(tcuda_memory_record_history(OFF, 0, false, 0));
    free(allocate(1000, own.0));
    let taken = Taken::of(0);
    assert_eq!((taken.info().entries, text(taken.block(block).annotation)), (0, "".into()));
    ok!(tcuda_memory_record_history(ALL, 1000, false, 0));
    assert_eq!(Taken::of(0).of_blocks(), [entry("snapshot", null_mut(), 1024)]);
    drop(recording);
    free(block);
    empty_caches();
}

fn what_is_cleared_is_forgotten_in_pools_too() {
    empty_caches();
    let own = Own::on(0);
    let _recording = Recording::of(STATE, 0);
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, 0, null()));
    ok!(tcuda_memory_annotate(c"noted".as_ptr()));
    let inside = get!(null_mut(), out => tcuda_mem_pool_malloc(out, 1000, own.0, pool));
    let outside = allocate(1000, own.0);
    let notes = |taken: &Taken| [inside, outside].map(|block| text(taken.block(block).annotation));
    assert_eq!(notes(&Taken::of(0)), ["noted", "noted"]);
    ok!(tcuda_memory_record_history(STATE, 0, false, 0));
    assert_eq!(notes(&Taken::of(0)), ["noted", "noted"]);
    ok!(tcuda_memory_record_history(STATE, 0, true, 0));
    assert_eq!(notes(&Taken::of(0)), ["", ""]);
    [inside, outside].into_iter().for_each(free);
    ok!(tcuda_mem_pool_destroy(pool));
    empty_caches();
}

/// What an observer saw: the last entry's action, its size, and the snapshot's file.
static SEEN: Mutex<Vec<(String, u64)>> = Mutex::new(Vec::new());
static CALLS: AtomicU64 = AtomicU64::new(0);

fn path_of(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("tcuda-{}-{name}", std::process::id()))
}

unsafe extern "C" fn look(oom: *const tcuda_oom_t, _data: *mut c_void) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let taken = Taken::of(unsafe { (*oom).device });
    let entries = taken.entries(0);
    let last = entries[entries.len() - 2];
    SEEN.lock().unwrap().push((text(last.action), last.size));
    let path = CString::new(path_of("oom.pickle").to_str().unwrap()).unwrap();
    ok!(tcuda_memory_dump_snapshot(path.as_ptr()));
}

unsafe extern "C" fn look_too(_pressure: *const tcuda_pressure_t, _data: *mut c_void) -> bool {
    CALLS.fetch_add(100, Ordering::Relaxed);
    drop(Taken::of(0));
    false
}

fn a_failure_is_an_entry_and_its_observer_may_look() {
    empty_caches();
    let own = Own::on(0);
    let _limit = Limit::of(0, 64 << 20);
    let _recording = Recording::of(ALL, 1000);
    let observer = get!(0, out => tcuda_register_oom_observer(out, Some(look), null_mut()));
    let asked = get!(0, out => tcuda_register_pressure_callback(out, Some(look_too), null_mut()));
    let block = allocate(40 << 20, own.0);
    let mut none = null_mut();
    fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut none, 40 << 20, own.0));
    ok!(tcuda_unregister_oom_observer(observer));
    ok!(tcuda_unregister_pressure_callback(asked));
    assert_eq!(*SEEN.lock().unwrap(), [("oom".to_owned(), 40 << 20)]);
    assert!(CALLS.load(Ordering::Relaxed) > 100);
    let written = std::fs::read(path_of("oom.pickle")).unwrap();
    assert!(written.starts_with(b"\x80\x02") && written.ends_with(b".") && written.windows(3).any(|part| part == b"oom"));
    std::fs::remove_file(path_of("oom.pickle")).unwrap();
    free(block);
    empty_caches();
}

fn files_are_whole_or_none() {
    empty_caches();
    let own = Own::on(0);
    let block = allocate(1000, own.0);
    let taken = Taken::of(0);
    for (name, format) in [("a.pickle", 1), ("a.json", 2), ("a.html", 3)] {
        let path = CString::new(path_of(name).to_str().unwrap()).unwrap();
        ok!(tcuda_snapshot_write(taken.0, path.as_ptr()));
        ok!(tcuda_snapshot_write(taken.0, path.as_ptr()));
        let (mut data, mut size) = (null(), 0);
        ok!(tcuda_snapshot_data(taken.0, &mut data, &mut size, format));
        assert!(size > 100);
        assert_eq!(std::fs::read(path_of(name)).unwrap(), unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) });
        std::fs::remove_file(path_of(name)).unwrap();
    }
    // A name as long as may be; a file that is there stays its owner's alone.
    let long = path_of(&format!("{}.json", "a".repeat(250 - path_of("").file_name().unwrap().len())));
    assert_eq!(long.file_name().unwrap().len(), 255);
    let c_long = CString::new(long.to_str().unwrap()).unwrap();
    ok!(tcuda_snapshot_write(taken.0, c_long.as_ptr()));
    std::fs::set_permissions(&long, std::fs::Permissions::from_mode(0o600)).unwrap();
    ok!(tcuda_snapshot_write(taken.0, c_long.as_ptr()));
    assert_eq!(std::fs::metadata(&long).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::remove_file(long).unwrap();
    let nowhere = path_of("nowhere/a.json");
    let c_nowhere = CString::new(nowhere.to_str().unwrap()).unwrap();
    for message in
        [fails!(SYSTEM, tcuda_snapshot_write(taken.0, c_nowhere.as_ptr())), fails!(SYSTEM, tcuda_memory_dump_snapshot(c_nowhere.as_ptr()))]
    {
        assert!(message.contains("nowhere"), "{message}");
    }
    // A folder has the name: nothing is left beside it.
    let folder = path_of("folder");
    std::fs::create_dir_all(folder.join("full")).unwrap();
    let c_folder = CString::new(folder.to_str().unwrap()).unwrap();
    fails!(SYSTEM, tcuda_memory_dump_snapshot(c_folder.as_ptr()));
    let part = format!(".tcuda-{}-", std::process::id());
    let beside = std::fs::read_dir(std::env::temp_dir()).unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert_eq!(beside.filter(|name| name.starts_with(&part)).count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
    free(block);
    empty_caches();
}

fn what_is_open_goes_on_and_links_stay() {
    let taken = Taken::of(0);
    let (mut data, mut size) = (null(), 0);
    ok!(tcuda_snapshot_data(taken.0, &mut data, &mut size, 2));
    let snapshot = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    let [path, link] = ["open", "link"].map(path_of);
    let own = format!("/proc/{}/fd", std::process::id());
    for (names, is_led) in [("/dev/fd", false), ("/proc/self/fd", false), ("/proc/thread-self/fd", false), (&own, false), ("/dev/fd", true)]
    {
        let mut open = std::fs::File::create(&path).unwrap();
        open.write_all(b"before").unwrap();
        let by_number = format!("{names}/{}", open.as_raw_fd());
        let name = if is_led {
            std::os::unix::fs::symlink(by_number, &link).unwrap();
            CString::new(link.to_str().unwrap()).unwrap()
        } else {
            CString::new(by_number).unwrap()
        };
        ok!(tcuda_snapshot_write(taken.0, name.as_ptr()));
        open.write_all(b"after").unwrap();
        // A name with no ending is a pickle's.
        let written = std::fs::read(&path).unwrap();
        assert!(written.starts_with(b"before\x80\x02") && written.ends_with(b".after"), "{name:?}: {}", written.len());
    }
    std::fs::remove_file(&link).unwrap();
    std::fs::remove_file(&path).unwrap();
    fails!(SYSTEM, tcuda_snapshot_write(taken.0, c"/dev/fd/99999".as_ptr()));
    // One link to another, and that to where nothing is yet, beside it.
    let [first, second, file] = ["first.json", "second.json", "file.json"].map(path_of);
    std::os::unix::fs::symlink(&second, &first).unwrap();
    std::os::unix::fs::symlink(file.file_name().unwrap(), &second).unwrap();
    let c_first = CString::new(first.to_str().unwrap()).unwrap();
    for _ in 0..2 {
        ok!(tcuda_snapshot_write(taken.0, c_first.as_ptr()));
        assert!([&first, &second].iter().all(|link| link.is_symlink()) && !file.is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), snapshot);
    }
    [first, second, file].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

fn bad_arguments_are_refused() {
    for enabled in [-1, 3, i32::MAX] {
        assert!(fails!(INVALID_ARGUMENT, tcuda_memory_record_history(enabled, 10, false, 0)).contains("enabled"));
    }
    assert!(fails!(INVALID_ARGUMENT, tcuda_memory_record_history(ALL, 0, false, 0)).contains("max_entries"));
    for device in bad_devices().into_iter().filter(|device| *device != EVERY_DEVICE) {
        fails!(INVALID_DEVICE, tcuda_memory_record_history(ALL, 1, false, device));
        let mut none = null_mut();
        fails!(INVALID_DEVICE, tcuda_memory_snapshot(&mut none, device));
        assert!(none.is_null());
    }
    fails!(INVALID_ARGUMENT, tcuda_memory_snapshot(null_mut(), 0));
    fails!(INVALID_ARGUMENT, tcuda_memory_dump_snapshot(null()));
    fails!(INVALID_ARGUMENT, tcuda_memory_dump_snapshot(c"".as_ptr()));
    let taken = Taken::of(0);
    let mut segment = tcuda_snapshot_segment_t { struct_size: size_of::<tcuda_snapshot_segment_t>(), ..Default::default() };
    let message = fails!(INVALID_ARGUMENT, tcuda_snapshot_segment(taken.0, &mut segment, u64::MAX));
    assert!(message.contains("segment") && message.contains(&taken.info().segments.to_string()), "{message}");
    let (mut data, mut size) = (null(), 0);
    for format in [0, 4, -1] {
        fails!(INVALID_ARGUMENT, tcuda_snapshot_data(taken.0, &mut data, &mut size, format));
    }
    assert!(data.is_null());
}

fn a_snapshot_that_is_gone_is_none() {
    let handle = get!(null_mut(), out => tcuda_memory_snapshot(out, 0));
    ok!(tcuda_snapshot_destroy(handle));
    ok!(tcuda_snapshot_destroy(null_mut()));
    fails!(INVALID_HANDLE, tcuda_snapshot_destroy(handle));
    let mut info = tcuda_snapshot_info_t { struct_size: size_of::<tcuda_snapshot_info_t>(), ..Default::default() };
    fails!(INVALID_HANDLE, tcuda_snapshot_info(handle, &mut info));
    fails!(INVALID_HANDLE, tcuda_snapshot_write(handle, c"/nowhere".as_ptr()));
}

fn of_several_threads_one_ends_a_snapshot() {
    const ROUNDS: usize = 300;
    let turn = std::sync::Barrier::new(THREADS);
    let handles: Vec<usize> = (0..ROUNDS).map(|_| get!(null_mut(), out => tcuda_memory_snapshot(out, 0)) as usize).collect();
    let ended: Vec<AtomicU64> = (0..ROUNDS).map(|_| AtomicU64::new(0)).collect();
    in_threads(|_| {
        for (handle, ended) in handles.iter().zip(&ended) {
            turn.wait();
            match unsafe { tcuda_snapshot_destroy(*handle as tcuda_snapshot_t) } {
                tcuda::base::Status::TCUDA_SUCCESS => _ = ended.fetch_add(1, Ordering::Relaxed),
                status => assert_eq!(status, tcuda::base::Status::TCUDA_ERROR_INVALID_HANDLE),
            }
        }
    });
    assert!(ended.iter().all(|ended| ended.load(Ordering::Relaxed) == 1), "{ended:?}");
}

/// They stop threads, of which one may wait for the host function; what is simulated refuses all that calls CUDA.
fn host_functions_take_none() {
    static SAID: Mutex<Vec<tcuda_status_t>> = Mutex::new(Vec::new());
    unsafe extern "C" fn take(_: *mut c_void) {
        let mut snapshot = null_mut();
        let said = [unsafe { tcuda_memory_snapshot(&mut snapshot, 0) }, tcuda_memory_record_history(ALL, 10, true, 0)];
        SAID.lock().unwrap().extend(said);
    }
    let own = Own::new();
    free(allocate(4096, own.0));
    ok!(tcuda_stream_add_host_function(own.0, Some(take), null_mut()));
    ok!(tcuda_stream_synchronize(own.0));
    assert_eq!(*SAID.lock().unwrap(), [TCUDA_ERROR_CUDA; 2]);
}
