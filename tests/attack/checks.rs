//! What has to be true: of the contents of a block, in the order of its work; of the statistics whenever all is at rest; and at the end.

use crate::memory::name;
use crate::model::{HOST, Kind, Pool, World};
use crate::plan::{Feature, MIB};
use crate::program::ok;
use crate::trail::note;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::plugin::*;
use tcuda::capi::pool::*;
use tcuda::capi::sanitizer::tcuda_sanitizer_report_t;
use tcuda::capi::sim::*;
use tcuda::capi::snapshot::*;
use tcuda::capi::stream::*;
use tcuda::memory;
use tcuda::runtime::sim;

use crate::trouble::ALL;

// ---- contents

/// Pinned memory that work writes what it finds to; each piece serves one check, which a graph may repeat.
pub struct Slots {
    pub start: usize,
    next: AtomicUsize,
}

const PART: usize = 8;
const SLOT: usize = 3 * PART;
const SLOTS: usize = 20_000;
pub const BYTES: usize = SLOT * SLOTS;

pub struct Slot {
    at: usize,
    value: u8,
    words: String,
}

/// What a host function looks at.
struct Seen {
    places: [usize; 3],
    length: usize,
    value: u8,
    words: String,
}

impl Slots {
    pub fn new() -> Slots {
        let mut start = null_mut();
        ok!(tcuda_host_malloc_cached(&mut start, BYTES));
        Slots { start: start as usize, next: AtomicUsize::new(0) }
    }

    /// For one value; None: there are no more.
    pub fn take(&self, value: u8, words: String) -> Option<Slot> {
        let next = self.next.fetch_add(1, SeqCst);
        (next < SLOTS).then(|| Slot { at: self.start + SLOT * next, value, words })
    }
}

impl Slot {
    /// For a block's start, middle and end.
    pub fn part(&self, at: usize) -> *mut c_void {
        (self.at + PART * at) as *mut c_void
    }

    /// Looks, behind the copies, at what they found. It stays for replays.
    pub fn verify(self, length: usize) -> (tcuda_host_fn_t, *mut c_void) {
        verify([0, 1, 2].map(|at| self.part(at) as usize), length, self.value, self.words)
    }
}

/// For a host function, which looks at memory of the host.
pub fn verify(places: [usize; 3], length: usize, value: u8, words: String) -> (tcuda_host_fn_t, *mut c_void) {
    (Some(look), Box::into_raw(Box::new(Seen { places, length, value, words })).cast())
}

unsafe extern "C" fn look(seen: *mut c_void) {
    let Seen { places, length, value, words } = unsafe { &*seen.cast::<Seen>() };
    look_at(*places, *length, *value, words);
}

/// Now.
pub fn look_at(places: [usize; 3], length: usize, value: u8, words: &str) {
    for (part, place) in places.into_iter().enumerate() {
        let found = unsafe { std::slice::from_raw_parts(place as *const u8, length) };
        assert!(found.iter().all(|byte| *byte == value), "contents of {words}: {found:02x?} in part {part}, where all are {value:02x}");
    }
}

/// What the sanitizer says, to the thread whose call it was.
pub unsafe extern "C" fn reported(report: *const tcuda_sanitizer_report_t, _: *mut c_void) {
    let text = unsafe { CStr::from_ptr((*report).text) };
    panic!("the sanitizer reports: {}", text.to_string_lossy());
}

// ---- rest

pub fn stats(device: i32) -> tcuda_memory_stats_t {
    let mut stats = tcuda_memory_stats_t { struct_size: size_of::<tcuda_memory_stats_t>(), ..Default::default() };
    ok!(tcuda_memory_stats(&mut stats, device));
    stats
}

pub fn pinned_stats() -> tcuda_host_memory_stats_t {
    let mut stats: tcuda_host_memory_stats_t = unsafe { std::mem::zeroed() };
    stats.struct_size = size_of::<tcuda_host_memory_stats_t>();
    ok!(tcuda_host_memory_stats(&mut stats));
    stats
}

pub fn pool_stats(pool: &Pool) -> tcuda_memory_stats_t {
    let mut stats = tcuda_memory_stats_t { struct_size: size_of::<tcuda_memory_stats_t>(), ..Default::default() };
    ok!(tcuda_mem_pool_stats(pool.raw(), &mut stats));
    stats
}

/// Each thread, before the rest: no fault waits any more, and nothing is under way. One after the other: its own default stream a thread alone can
/// ask how far it is, and statistics leave that to another one that is at it just now.
pub fn settle(world: &World) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap();
    ok!(tcuda_sim_clear_faults());
    for device in &world.defaults {
        ok!(tcuda_synchronize(device.device));
        stats(device.device);
    }
}

/// All threads wait, and all work is done: what the statistics, the snapshot and the lists say is what the program has. Without `exact` blocks that were
/// freed may wait all the same: a stream that ended while a call failed cannot be asked how far it is. The device as a whole can, for which a cache
/// waits when it is emptied, or its pool ends.
pub fn rest(world: &World, exact: bool) {
    note!("all is at rest");
    settle(world);
    let anything_paused = world.paused.load(SeqCst) > 0;
    for device in world.defaults.iter().map(|stream| stream.device) {
        let owned = world.owned(device);
        let bytes: usize = owned.values().sum();
        let stats = stats(device);
        // Blocks of paused pools are where no memory is.
        if !anything_paused {
            memory::check(device);
            let (reserved, active) = (stats.reserved_bytes.all.current, stats.active_bytes.all.current);
            assert!(reserved >= active, "device {device} has {reserved} bytes, of which {active} are active");
        }
        assert_eq!(stats.allocation.all.current, owned.len() as i64, "blocks of device {device}");
        assert!(stats.allocated_bytes.all.current >= bytes as i64, "rounded bytes of device {device}");
        add_up(&stats);
        let waiting = picture(world, device, &owned, &stats, anything_paused);
        let (active, requested) = (stats.active.all.current, stats.requested_bytes.all.current);
        assert!(
            active >= owned.len() as i64 && requested >= bytes as i64,
            "{active} active blocks of {requested} bytes, of device {device}"
        );
        if exact {
            let right = (owned.len() as i64, bytes as i64);
            assert_eq!(
                (active, requested),
                right,
                "active blocks and bytes of device {device}, with no work left, where {waiting:x?} waits"
            );
        }
    }
    pinned_rest(world);
    if world.plan.has(Feature::Poison) {
        let mut found = 0;
        ok!(tcuda_memory_check_poison(&mut found, ALL));
        assert_eq!(found, 0, "writes to freed memory");
    }
}

/// An emptied cache has found out what is past; a stream that cannot be asked, the device can.
fn pinned_rest(world: &World) {
    const PAGE: usize = 4096;
    memory::pinned::check();
    ok!(tcuda_host_empty_cache());
    let owned = world.owned(HOST);
    let rounded = |size: &usize| size.next_multiple_of(if *size < PAGE { 512 } else { PAGE }) as i64;
    let right = (owned.len() as i64, owned.values().map(rounded).sum::<i64>());
    let stats = pinned_stats();
    let active = (stats.active_requests.current, stats.active_bytes.current);
    if world.plan.has(Feature::Graphs) || world.paused.load(SeqCst) > 0 {
        // They keep what they use, and what was in memory that is paused is in pinned memory.
        assert!(active.0 >= right.0 && active.1 >= right.1, "pinned blocks and their bytes are {active:?}, but {right:?} are in use");
    } else {
        assert_eq!(active, right, "pinned blocks in use, and their bytes");
    }
    let held = stats.allocated_bytes.current;
    assert!(held >= active.1, "{held} pinned bytes are held, of which {} are active", active.1);
    for (name, stat) in [
        ("allocations", stats.allocations),
        ("allocated_bytes", stats.allocated_bytes),
        ("active_requests", stats.active_requests),
        ("active_bytes", stats.active_bytes),
    ] {
        assert!(stat.peak >= stat.current && stat.current >= 0, "pinned {name}: now {}, at most {}", stat.current, stat.peak);
    }
}

fn add_up(stats: &tcuda_memory_stats_t) {
    let families = [
        ("allocation", &stats.allocation),
        ("segment", &stats.segment),
        ("active", &stats.active),
        ("inactive_split", &stats.inactive_split),
        ("allocated_bytes", &stats.allocated_bytes),
        ("reserved_bytes", &stats.reserved_bytes),
        ("active_bytes", &stats.active_bytes),
        ("inactive_split_bytes", &stats.inactive_split_bytes),
        ("requested_bytes", &stats.requested_bytes),
    ];
    for (family, tcuda_pool_stat_t { all, small_pool, large_pool }) in families {
        assert_eq!(all.current, small_pool.current + large_pool.current, "{family}: small and large");
        for stat in [all, small_pool, large_pool] {
            let right = stat.current >= 0 && stat.peak >= stat.current;
            assert!(right, "{family}: now {}, at most {}", stat.current, stat.peak);
        }
    }
}

/// The snapshot: segments that their blocks cover, and in use those that the program has. The answer is a block that waits, and its stream.
fn picture(
    world: &World,
    device: i32,
    owned: &BTreeMap<usize, usize>,
    stats: &tcuda_memory_stats_t,
    anything_paused: bool,
) -> Option<(u64, u64)> {
    const ALLOCATED: i32 = 1;
    const PENDING_FREE: i32 = 2;
    let mut snapshot = null_mut();
    ok!(tcuda_memory_snapshot(&mut snapshot, device));
    let mut info = tcuda_snapshot_info_t { struct_size: size_of::<tcuda_snapshot_info_t>(), ..Default::default() };
    ok!(tcuda_snapshot_info(snapshot, &mut info));
    let mut sums = [0; 4];
    let (mut seen, mut waiting) = (0, None);
    for index in 0..info.segments {
        let mut segment = tcuda_snapshot_segment_t { struct_size: size_of::<tcuda_snapshot_segment_t>(), ..Default::default() };
        ok!(tcuda_snapshot_segment(snapshot, &mut segment, index));
        let parts = [segment.total_size, segment.allocated_size, segment.active_size, segment.requested_size];
        sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part as i64);
        let (mut at, mut allocated) = (segment.address, 0);
        for number in 0..segment.block_count {
            let mut block: tcuda_snapshot_block_t = unsafe { std::mem::zeroed() };
            block.struct_size = size_of::<tcuda_snapshot_block_t>();
            ok!(tcuda_snapshot_block(snapshot, &mut block, segment.first_block + number));
            assert_eq!(block.address, at, "blocks of a segment lie side by side");
            at += block.size;
            if block.state == PENDING_FREE {
                waiting = Some((block.address, block.stream));
            }
            if block.state == ALLOCATED {
                seen += 1;
                allocated += block.size;
                assert_eq!(
                    owned.get(&(block.address as usize)),
                    Some(&(block.requested_size as usize)),
                    "block 0x{:x} of the snapshot",
                    block.address
                );
            }
        }
        assert_eq!(
            (at, allocated),
            (segment.address + segment.total_size, segment.allocated_size),
            "blocks of segment 0x{:x}",
            segment.address
        );
    }
    ok!(tcuda_snapshot_destroy(snapshot));
    if anything_paused {
        return waiting;
    }
    let current = [&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes].map(|family| family.all.current);
    assert_eq!((seen, &sums[1..]), (owned.len(), &current[..]), "the snapshot of device {device} and its statistics");
    // What the driver's own pool holds beside blocks is in no segment.
    if !world.plan.options.contains("cudaMallocAsync") && !world.plan.has(Feature::Options) {
        assert_eq!(sums[0], stats.reserved_bytes.all.current, "the snapshot of device {device} and what is reserved");
    }
    waiting
}

// ---- the end

/// No limit, and room for all that was paused.
pub fn make_room(world: &World) {
    for device in world.defaults.iter().map(|stream| stream.device) {
        ok!(tcuda_set_memory_limit(u64::MAX, device));
        // More than the device has: programs cannot ask for that.
        sim::machine().unwrap().set_memory(device as usize, (16 << 10) * MIB);
    }
    ok!(tcuda_host_set_memory_limit(u64::MAX));
}

/// What all threads had is given back, each of them its own before.
pub fn end(world: &World) {
    for block in std::mem::take(&mut *world.shelf.lock().unwrap()) {
        let block = block.taken();
        world.dies(block.address);
        ok!(tcuda_free_cached(block.address as _));
    }
    for pin in std::mem::take(&mut *world.shelf_of_pins.lock().unwrap()) {
        world.dies(pin.address);
        ok!(tcuda_host_free_cached(pin.address as _));
    }
    for pool in std::mem::take(&mut *world.pools.lock().unwrap()) {
        note!("pool {} ends", pool.handle);
        ok!(tcuda_mem_pool_destroy(pool.raw()));
    }
    for stream in std::mem::take(&mut *world.streams.lock().unwrap()) {
        if stream.kind == Kind::Created {
            note!("{} ends", name(&stream));
            ok!(tcuda_stream_destroy(stream.hold().raw()));
        }
    }
    ok!(tcuda_change_current_allocator(null_mut()));
    rest(world, !world.plan.has(Feature::Faults));
    world.dies(world.slots.start);
    ok!(tcuda_host_free_cached(world.slots.start as _));
    ok!(tcuda_empty_cache(ALL));
    rest(world, true);
    for device in world.defaults.iter().map(|stream| stream.device) {
        let stats = stats(device);
        let left = (stats.allocation.all.current, stats.reserved_bytes.all.current, stats.segment.all.current);
        assert_eq!(left, (0, 0, 0), "blocks, bytes and segments of device {device} at the end");
    }
    for plugin in std::mem::take(&mut *world.plugins.lock().unwrap()) {
        assert_eq!(plugin.holds(), 0, "segments of allocator 0x{:x} at the end", plugin.handle);
        ok!(tcuda_pluggable_allocator_destroy(plugin.raw()));
    }
    let pinned = pinned_stats();
    assert_eq!((pinned.active_bytes.current, pinned.allocated_bytes.current), (0, 0), "pinned memory at the end");
    nothing_lives(world);
}

/// On the machine, but for streams and events that the library keeps.
pub fn nothing_lives(world: &World) {
    let mut live: tcuda_sim_live_t = unsafe { std::mem::zeroed() };
    live.struct_size = size_of::<tcuda_sim_live_t>();
    ok!(tcuda_sim_live(&mut live, ALL));
    // Segments of the program's own allocators go back to them, whatever happens; after a shutdown they stay theirs.
    let theirs: usize = world.plugins.lock().unwrap().iter().map(|plugin| plugin.holds()).sum();
    let memory = [live.blocks - theirs as u64, live.handles, live.mappings, live.reservations];
    let others = [live.pinned_blocks, live.registered_blocks, live.graphs, live.graph_execs];
    assert_eq!(
        (memory, others),
        ([0; 4], [0; 4]),
        "blocks, handles, mappings, ranges; pinned, registered memory, graphs and those that are ready"
    );
}
