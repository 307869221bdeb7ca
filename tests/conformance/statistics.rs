//! The figures of the device cache: exact after a known sequence, by key, as a struct and as a table.

use crate::init::in_child;
use crate::kit::*;
use crate::pools::Apart;
use crate::{fails, get, ok, tests};
use std::ffi::CString;
use std::ptr::{null, null_mut};
use tcuda::capi::init::*;
use tcuda::capi::memory::*;
use tcuda::capi::pool::*;

tests![
    figures_are_exact: [VirtualMemory],
    requested_is_what_was_asked_for,
    peaks_and_sums_are_reset,
    pending_blocks_are_active,
    every_key_is_found,
    pools_have_keys_of_their_own,
    every_figure_is_in_the_struct,
    the_summary_is_torchs_table,
    the_summary_has_rows_for_memory_pools,
    bad_devices_and_null_are_refused,
    nothing_before_the_first_allocation,
    plain_segments_have_torchs_sizes,
    wrong_options_are_refused,
    options_are_set_and_read,
    the_text_in_effect_changes_nothing,
    limits_of_a_device_that_is_not_there,
    a_limit_can_refuse_at_once,
    the_allocator_has_a_name,
];

const MIB: i64 = 1 << 20;

/// current, peak, allocated, freed.
fn four(family: &str, pool: &str) -> [i64; 4] {
    ["current", "peak", "allocated", "freed"].map(|figure| stat(0, &format!("{family}.{pool}.{figure}")))
}

fn expect(family: &str, small: [i64; 4], large: [i64; 4]) {
    assert_eq!(four(family, "small_pool"), small, "{family} small");
    assert_eq!(four(family, "large_pool"), large, "{family} large");
    let all = four(family, "all");
    for at in [0, 2, 3] {
        assert_eq!(all[at], small[at] + large[at], "{family} all");
    }
    assert!(all[1] >= all[0] && all[1] <= small[1] + large[1]);
}

fn figures_are_exact() {
    empty_caches();
    let own = Own::on(0);
    // The border: 1 MiB after rounding is small.
    let sizes = [1, 512, 513, 1 << 20, (1 << 20) + 1, 10 << 20];
    let blocks = sizes.map(|size| allocate(size, own.0));
    let small = 512 + 512 + 1024 + MIB;
    let large = MIB + 512 + 10 * MIB;
    expect("allocation", [4, 4, 4, 0], [2, 2, 2, 0]);
    expect("active", [4, 4, 4, 0], [2, 2, 2, 0]);
    expect("allocated_bytes", [small, small, small, 0], [large, large, large, 0]);
    expect("active_bytes", [small, small, small, 0], [large, large, large, 0]);
    expect("inactive_split", [0; 4], [0; 4]);
    let reserved = four("reserved_bytes", "all")[0];
    assert!(reserved >= small + large && reserved <= small + large + 4 * MIB, "{reserved}");
    assert_eq!(stat(0, "segment.all.current"), stat(0, "num_device_alloc"));
    free(blocks[0]);
    free(blocks[5]);
    expect("allocation", [3, 4, 4, 1], [1, 2, 2, 1]);
    expect("allocated_bytes", [small - 512, small, small, 512], [MIB + 512, large, large, 10 * MIB]);
    expect("active_bytes", [small - 512, small, small, 512], [MIB + 512, large, large, 10 * MIB]);
    let again = allocate(5 << 20, own.0);
    expect("allocated_bytes", [small - 512, small, small, 512], [6 * MIB + 512, large, large + 5 * MIB, 10 * MIB]);
    blocks[1..5].iter().copied().chain([again]).for_each(free);
    expect("allocation", [0, 4, 4, 4], [0, 2, 3, 3]);
    assert_eq!(four("reserved_bytes", "all")[..2], [reserved; 2]);
    ok!(tcuda_empty_cache(0));
    assert_eq!(four("reserved_bytes", "all"), [0, reserved, reserved, reserved]);
    assert_eq!(stat(0, "num_device_free"), stat(0, "num_device_alloc"));
    assert_eq!(["num_ooms", "num_alloc_retries", "num_sync_all_streams", "max_split_size"].map(|key| stat(0, key)), [0, 0, 0, -1]);
    // The functions with torch's names say the same.
    assert_eq!(get!(9, out => tcuda_memory_allocated(out, 0)), 0);
    assert_eq!(get!(9, out => tcuda_max_memory_allocated(out, 0)) as i64, stat(0, "allocated_bytes.all.peak"));
    assert_eq!(get!(9, out => tcuda_memory_reserved(out, 0)), 0);
    assert_eq!(get!(9, out => tcuda_max_memory_reserved(out, 0)) as i64, reserved);
    assert_eq!(get!(9, out => tcuda_memory_cached(out, 0)), 0);
    assert_eq!(get!(9, out => tcuda_max_memory_cached(out, 0)) as i64, reserved);
    empty_caches();
}

fn requested_is_what_was_asked_for() {
    empty_caches();
    let own = Own::on(0);
    let blocks = [1, 700, (3 << 20) + 7].map(|size| allocate(size, own.0));
    expect("requested_bytes", [701, 701, 701, 0], [3 * MIB + 7, 3 * MIB + 7, 3 * MIB + 7, 0]);
    free(blocks[1]);
    expect("requested_bytes", [1, 701, 701, 700], [3 * MIB + 7, 3 * MIB + 7, 3 * MIB + 7, 0]);
    free(blocks[0]);
    free(blocks[2]);
    empty_caches();
}

fn peaks_and_sums_are_reset() {
    empty_caches();
    let own = Own::on(0);
    let (a, b) = (allocate(2 << 20, own.0), allocate(3 << 20, own.0));
    free(a);
    assert_eq!(four("allocated_bytes", "all"), [3 * MIB, 5 * MIB, 5 * MIB, 2 * MIB]);
    for reset in [tcuda_reset_peak_memory_stats, tcuda_reset_max_memory_allocated, tcuda_reset_max_memory_cached] {
        free(allocate(2 << 20, own.0));
        assert_eq!(stat(0, "allocated_bytes.all.peak"), 5 * MIB);
        ok!(reset(0));
        assert_eq!(stat(0, "allocated_bytes.all.peak"), 3 * MIB);
        assert_eq!(four("allocation", "large_pool")[..2], [1, 1]);
    }
    assert_eq!(four("allocated_bytes", "all"), [3 * MIB, 3 * MIB, 11 * MIB, 8 * MIB]);
    ok!(tcuda_reset_accumulated_memory_stats(0));
    assert_eq!(four("allocated_bytes", "all"), [3 * MIB, 3 * MIB, 0, 0]);
    free(b);
    assert_eq!(four("allocated_bytes", "all"), [0, 3 * MIB, 0, 3 * MIB]);
    empty_caches();
}

fn pending_blocks_are_active() {
    empty_caches();
    let (a, b) = (Own::on(0), Own::on(0));
    let block = allocate(700, a.0);
    ok!(tcuda_record_stream(block, b.0));
    let gate = Gate::on(b.0);
    free(block);
    expect("allocation", [0, 1, 1, 1], [0; 4]);
    expect("active", [1, 1, 1, 0], [0; 4]);
    expect("active_bytes", [1024, 1024, 1024, 0], [0; 4]);
    expect("requested_bytes", [700, 700, 700, 0], [0; 4]);
    drop(gate);
    ok!(tcuda_empty_cache(0));
    expect("active", [0, 1, 1, 1], [0; 4]);
    expect("requested_bytes", [0, 700, 700, 700], [0; 4]);
    empty_caches();
}

fn every_key_is_found() {
    let keys: Vec<String> = (0..).map(|index| tcuda_memory_stat_key(index)).take_while(|key| !key.is_null()).map(text).collect();
    assert_eq!(keys.len(), 9 * 3 * 4 + 2 * 4 + 7);
    assert!(keys.is_sorted());
    for key in &keys {
        stat(0, key);
    }
    for key in ["allocation.all.current", "inactive_split_bytes.large_pool.peak", "oversize_segments.freed", "num_device_free"] {
        assert!(keys.iter().any(|known| known == key), "{key}");
    }
    // The words of torch 1.8.
    assert_eq!(stat(0, "allocated.all.allocated"), stat(0, "allocation.all.allocated"));
    for unknown in ["", "allocation", "allocation.all", "allocation.all.", "allocation.all.current ", "ALLOCATION.all.current", "\u{1f980}"]
    {
        let key = CString::new(unknown).unwrap();
        let mut value = 77;
        let said = fails!(INVALID_ARGUMENT, tcuda_memory_stat_get(&mut value, 0, key.as_ptr()));
        assert!(said.contains(unknown) && value == 77, "{said}");
    }
    for index in [-1, i32::MIN, i32::MAX, keys.len() as i32] {
        assert!(tcuda_memory_stat_key(index).is_null());
    }
}

/// A pool's figures by torch's key, for as long as there is the pool.
fn pools_have_keys_of_their_own() {
    empty_caches();
    let own = Own::on(0);
    let pool = get!(null_mut(), out => tcuda_mem_pool_create(out, 0, null()));
    let id = get!(0, out => tcuda_mem_pool_id(pool, out));
    let of = |figure: &str| stat(0, &format!("reserved_bytes_by_private_pools.0_{id}.{figure}"));
    assert_eq!(of("all.peak"), 0);
    let block = get!(null_mut(), out => tcuda_mem_pool_malloc(out, 3 << 20, own.0, pool));
    free(allocate(40 << 20, own.0));
    let held = of("all.current");
    assert!((3 * MIB..40 * MIB).contains(&held) && of("large_pool.current") == held && of("small_pool.current") == 0, "{held}");
    free(block);
    ok!(tcuda_mem_pool_trim(pool));
    assert_eq!(["all.current", "all.peak", "all.allocated", "all.freed"].map(of), [0, held, held, held]);
    ok!(tcuda_reset_peak_memory_stats(0));
    ok!(tcuda_reset_accumulated_memory_stats(0));
    assert_eq!(["all.peak", "all.allocated", "all.freed"].map(of), [0; 3]);
    let mut value = 7;
    let mut wrong = |key: String| {
        let key = CString::new(format!("reserved_bytes_by_private_pools.{key}")).unwrap();
        fails!(INVALID_ARGUMENT, tcuda_memory_stat_get(&mut value, 0, key.as_ptr()));
    };
    for key in [format!("{id}_0.all.peak"), format!("0_{id}"), format!("0_{id}.all"), format!("0_{id}.all.x"), "0_0.all.peak".into()] {
        wrong(key);
    }
    ok!(tcuda_mem_pool_destroy(pool));
    wrong(format!("0_{id}.all.peak"));
    empty_caches();
}

fn all_of(device: i32) -> tcuda_memory_stats_t {
    let mut stats = tcuda_memory_stats_t { struct_size: size_of::<tcuda_memory_stats_t>(), ..Default::default() };
    ok!(tcuda_memory_stats(&mut stats, device));
    stats
}

fn every_figure_is_in_the_struct() {
    empty_caches();
    let own = Own::on(0);
    let blocks = [600, 3 << 20].map(|size| allocate(size, own.0));
    free(blocks[0]);
    let stats = all_of(0);
    let families = [
        ("allocation", stats.allocation),
        ("segment", stats.segment),
        ("active", stats.active),
        ("inactive_split", stats.inactive_split),
        ("allocated_bytes", stats.allocated_bytes),
        ("reserved_bytes", stats.reserved_bytes),
        ("active_bytes", stats.active_bytes),
        ("inactive_split_bytes", stats.inactive_split_bytes),
        ("requested_bytes", stats.requested_bytes),
    ];
    for (family, found) in families {
        for (pool, found) in [("all", found.all), ("small_pool", found.small_pool), ("large_pool", found.large_pool)] {
            assert_eq!([found.current, found.peak, found.allocated, found.freed], four(family, pool), "{family}.{pool}");
        }
    }
    assert_eq!((stats.num_device_alloc, stats.num_device_free), (stat(0, "num_device_alloc"), stat(0, "num_device_free")));
    assert_eq!(stats.num_oom_rejections, stat(0, "num_oom_rejections"));
    assert_eq!((stats.num_ooms, stats.num_alloc_retries, stats.num_sync_all_streams, stats.max_split_size), (0, 0, 0, -1));
    assert_eq!(stats.struct_size, size_of::<tcuda_memory_stats_t>());
    // A program that was built with a shorter struct gets what it knows.
    let mut old = tcuda_memory_stats_t { struct_size: 8 + 96, ..Default::default() };
    old.segment.all.peak = -7;
    ok!(tcuda_memory_stats(&mut old, 0));
    assert_eq!((old.allocation.all.current, old.segment.all.peak), (1, -7));
    old.struct_size = 0;
    fails!(INVALID_ARGUMENT, tcuda_memory_stats(&mut old, 0));
    free(blocks[1]);
    empty_caches();
}

fn summary(device: i32, abbreviated: bool) -> String {
    let needed = get!(0, out => tcuda_memory_summary(null_mut(), 0, out, device, abbreviated));
    let mut buffer = vec![0u8; needed];
    ok!(tcuda_memory_summary(buffer.as_mut_ptr().cast(), needed, null_mut(), device, abbreviated));
    assert_eq!(buffer.pop(), Some(0));
    String::from_utf8(buffer).unwrap()
}

fn the_summary_is_torchs_table() {
    empty_caches();
    let own = Own::on(0);
    let blocks = [2048, 3 << 20].map(|size| allocate(size, own.0));
    let table = summary(0, false);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 6 + 9 * 4 + 4 + 1);
    assert!(lines.iter().all(|line| line.len() == 77 && line.starts_with('|') && line.ends_with('|')), "{table}");
    assert!(lines[1].contains("tcuda CUDA memory summary, device ID 0"));
    assert_eq!(lines[3], "|            CUDA OOMs: 0            |        cudaMalloc retries: 0         |");
    assert_eq!(lines[7], "| Allocated memory      |   3074 KiB |   3074 KiB |   3074 KiB |      0 B   |");
    assert_eq!(lines[8], "|       from large pool |   3072 KiB |   3072 KiB |   3072 KiB |      0 B   |");
    assert_eq!(lines[9], "|       from small pool |      2 KiB |      2 KiB |      2 KiB |      0 B   |");
    let titles = ["Active memory", "Requested memory", "GPU reserved memory", "Non-releasable memory", "Allocations", "Active allocs"];
    for title in
        titles.into_iter().chain(["GPU reserved segments", "Non-releasable allocs", "Oversize allocations", "Oversize GPU segments"])
    {
        assert!(lines.iter().any(|line| line.starts_with(&format!("| {title:<21} |"))), "{title}");
    }
    let short = summary(0, true);
    assert_eq!(short.lines().count(), 6 + 9 * 2 + 4 + 1);
    assert!(!short.contains("from large pool"));
    let mut small = [b'x'; 10];
    let mut needed = 0;
    fails!(BUFFER_TOO_SMALL, tcuda_memory_summary(small.as_mut_ptr().cast(), 10, &mut needed, 0, false));
    assert_eq!((needed, small), (table.len() + 1, [b'x'; 10]));
    fails!(INVALID_ARGUMENT, tcuda_memory_summary(null_mut(), 0, null_mut(), 0, false));
    fails!(INVALID_ARGUMENT, tcuda_memory_summary(null_mut(), 5, &mut needed, 0, false));
    blocks.into_iter().for_each(free);
    empty_caches();
}

/// Each in units of its own.
fn the_summary_has_rows_for_memory_pools() {
    empty_caches();
    let own = Own::on(0);
    let pools = [Apart::with(0, 0, 0), Apart::with(0, 0, 0)];
    let blocks = [pools[0].allocate(512, own.0), pools[1].allocate(3 << 20, own.0)];
    for (pool, allocated) in pools.iter().zip(["    512 B  ", "   3072 KiB"]) {
        let table = summary(0, true);
        let number = get!(0, out => tcuda_mem_pool_id(pool.0, out));
        let lines: Vec<&str> = table.lines().collect();
        let at = lines.iter().position(|line| line.starts_with(&format!("| {:<21} |", format!("Memory pool {number}")))).expect("its row");
        assert!(lines[at + 1].starts_with(&format!("|       allocated       |{allocated} |")), "{table}");
        assert!(lines.iter().all(|line| line.len() == 77), "{table}");
    }
    blocks.into_iter().for_each(free);
    pools.into_iter().for_each(Apart::end);
    assert!(!summary(0, true).contains("Memory pool"));
    empty_caches();
}

fn bad_devices_and_null_are_refused() {
    let key = c"num_ooms".as_ptr();
    fails!(INVALID_ARGUMENT, tcuda_memory_stats(null_mut(), 0));
    fails!(INVALID_ARGUMENT, tcuda_memory_stat_get(null_mut(), 0, key));
    fails!(INVALID_ARGUMENT, tcuda_memory_stat_get(&mut 0, 0, std::ptr::null()));
    type Figure = unsafe extern "C" fn(*mut u64, i32) -> tcuda::base::Status;
    let figures: [Figure; 6] = [
        tcuda_memory_allocated,
        tcuda_max_memory_allocated,
        tcuda_memory_reserved,
        tcuda_max_memory_reserved,
        tcuda_memory_cached,
        tcuda_max_memory_cached,
    ];
    for figure in figures {
        assert_ne!(unsafe { figure(null_mut(), 0) }, tcuda::base::Status::TCUDA_SUCCESS);
    }
    for bad in bad_devices() {
        let mut stats = all_of(0);
        fails!(INVALID_DEVICE, tcuda_memory_stats(&mut stats, bad));
        fails!(INVALID_DEVICE, tcuda_memory_stat_get(&mut 0, bad, key));
        fails!(INVALID_DEVICE, tcuda_memory_summary(null_mut(), 0, &mut 0, bad, false));
        for figure in figures {
            let mut value = 77;
            assert_eq!(unsafe { figure(&mut value, bad) }, tcuda::base::Status::TCUDA_ERROR_INVALID_DEVICE);
            assert_eq!(value, 77);
        }
        fails!(INVALID_DEVICE, tcuda_reset_peak_memory_stats(bad));
        fails!(INVALID_DEVICE, tcuda_reset_accumulated_memory_stats(bad));
        fails!(INVALID_DEVICE, tcuda_reset_max_memory_allocated(bad));
        fails!(INVALID_DEVICE, tcuda_reset_max_memory_cached(bad));
    }
}

fn nothing_before_the_first_allocation() {
    in_child("no_statistics", &[]);
}

pub fn scene_before_init() {
    for key in ["allocated_bytes.all.current", "reserved_bytes.all.peak", "num_device_alloc", "num_ooms"] {
        assert_eq!(stat(-1, key), 0);
    }
    assert_eq!(all_of(-1).segment.all.allocated, 0);
    assert_eq!(get!(9, out => tcuda_memory_allocated(out, -1)), 0);
    assert!(summary(-1, false).contains("device ID 0"));
    ok!(tcuda_empty_cache(-1));
    ok!(tcuda_empty_cache(-3));
    assert!(!tcuda_is_initialized(), "reading figures starts nothing");
    // Nor does it with a backend and no allocation.
    assert!(device_count() > 0);
    assert_eq!(stat(0, "num_device_alloc"), 0);
    ok!(tcuda_reset_peak_memory_stats(-1));
    free(allocate(1, NULL));
    assert_eq!(stat(0, "allocation.all.allocated"), 1);
}

fn plain_segments_have_torchs_sizes() {
    in_child("options", &[("TCUDA_ALLOC_CONF", "expandable_segments:False,per_process_memory_fraction:0.5")]);
}

pub fn scene_options() {
    // The first call is one that sets something of a device: the options of the environment are in effect before it.
    assert_eq!(get!(-1.0, out => tcuda_get_per_process_memory_fraction(out, 0)), 0.5);
    ok!(tcuda_set_per_process_memory_fraction(1.0, 0));
    let own = Own::on(0);
    let small = allocate(600, own.0);
    assert_eq!(four("reserved_bytes", "all")[0], 2 * MIB);
    assert_eq!(four("inactive_split_bytes", "small_pool")[0], 2 * MIB - 1024);
    let large = allocate(3 << 20, own.0);
    assert_eq!(four("reserved_bytes", "large_pool")[0], 20 * MIB);
    let own_segment = allocate(11 << 20, own.0);
    assert_eq!(four("reserved_bytes", "large_pool")[0], 20 * MIB, "it fits behind the other");
    let another = allocate((11 << 20) + 1, own.0);
    assert_eq!(four("reserved_bytes", "large_pool")[0], 32 * MIB, "rounded to 2 MiB");
    assert_eq!(four("segment", "all")[0], 3);
    assert_eq!(four("inactive_split", "all")[0], 3);
    [small, large, own_segment, another].into_iter().for_each(free);
    assert_eq!((four("inactive_split", "all")[0], four("inactive_split_bytes", "all")[0]), (0, 0));
    tcuda::memory::check(0);
    assert_eq!(get!(-1.0, out => tcuda_get_per_process_memory_fraction(out, 0)), 1.0);
    if device_count() > 1 {
        assert_eq!(get!(-1.0, out => tcuda_get_per_process_memory_fraction(out, 1)), 0.5);
    }
    empty_caches();
}

fn wrong_options_are_refused() {
    let before = configuration();
    let wrong = [
        (c"expandable_segments:maybe", "character 21"),
        (c"max_split_size:5", "Did you mean max_split_size_mb?"),
        (c"max_split_size_mb:5x", "max_split_size_mb"),
        (c"x", "key:value"),
    ];
    for (text, part) in wrong {
        assert!(fails!(INVALID_ARGUMENT, tcuda_set_alloc_conf(text.as_ptr())).contains(part));
        let options = tcuda_init_options_t {
            struct_size: size_of::<tcuda_init_options_t>(),
            backend: std::ptr::null(),
            cudart_path: std::ptr::null(),
            alloc_conf: text.as_ptr(),
        };
        assert!(fails!(INVALID_ARGUMENT, tcuda_init(&options)).contains(part));
    }
    fails!(INVALID_ARGUMENT, tcuda_set_alloc_conf(c"\xff".as_ptr()));
    assert_eq!(configuration(), before);
}

pub fn configuration() -> String {
    let mut needed = 0;
    ok!(tcuda_get_alloc_conf(null_mut(), 0, &mut needed));
    let mut buffer = vec![1u8; needed];
    fails!(BUFFER_TOO_SMALL, tcuda_get_alloc_conf(buffer.as_mut_ptr().cast(), needed - 1, &mut needed));
    ok!(tcuda_get_alloc_conf(buffer.as_mut_ptr().cast(), needed, null_mut()));
    assert_eq!(buffer.pop(), Some(0));
    String::from_utf8(buffer).unwrap()
}

/// What is set is in effect and given back; the environment's options return.
fn options_are_set_and_read() {
    empty_caches();
    let before = configuration();
    let fraction = || get!(-1.0, out => tcuda_get_per_process_memory_fraction(out, 0));
    let limit = || get!(0, out => tcuda_get_memory_limit(out, 0));
    ok!(tcuda_set_alloc_conf(c"per_process_memory_fraction:0.5, max_split_size_mb:512".as_ptr()));
    let text = configuration();
    assert!(text.contains("per_process_memory_fraction:0.5") && !text.contains("max_split_size_mb"), "{text}");
    assert_eq!(fraction(), 0.5);
    let total = tcuda::device::properties(0).unwrap().total_memory as u64;
    assert!(limit().abs_diff(total / 2) <= 1, "{} of {total}", limit());
    ok!(tcuda_set_memory_limit(123 << 20, 0));
    assert_eq!(limit(), 123 << 20);
    // Each text replaces the one before; a limit that a call set stays until it is named.
    for stays in [c"".as_ptr(), c"slack:0.5".as_ptr(), null()] {
        ok!(tcuda_set_alloc_conf(stays));
        assert_eq!(limit(), 123 << 20);
    }
    // It is in the text, which gives it again to the byte.
    let text = std::ffi::CString::new(configuration()).unwrap();
    ok!(tcuda_set_alloc_conf(c"per_process_memory_fraction:1".as_ptr()));
    assert_eq!((limit(), fraction()), (u64::MAX, 1.0));
    ok!(tcuda_set_alloc_conf(text.as_ptr()));
    assert_eq!((limit(), configuration().as_bytes()), (123 << 20, text.as_bytes()));
    ok!(tcuda_set_per_process_memory_fraction(0.3, 0));
    ok!(tcuda_set_alloc_conf(c"expandable_segments_reserve_by_class:[a:0.5,b:8G]".as_ptr()));
    let shown = if device_count() > 1 { "per_process_memory_fraction:[0:0.3,1:" } else { "per_process_memory_fraction:0.3," };
    assert!(configuration().contains(shown) && fraction() == 0.3, "{}", configuration());
    // What a text said and not a call goes with that text.
    ok!(tcuda_set_alloc_conf(c"per_process_memory_fraction:0.5".as_ptr()));
    ok!(tcuda_set_alloc_conf(c"".as_ptr()));
    assert_eq!((limit(), fraction()), (u64::MAX, 1.0));
    ok!(tcuda_set_alloc_conf(c"expandable_segments:False,large_segment_size_mb:32".as_ptr()));
    let block = allocate(2 << 20, NULL);
    assert_eq!(stat(0, "reserved_bytes.all.current"), 32 << 20);
    free(block);
    let again = std::ffi::CString::new(configuration()).unwrap();
    ok!(tcuda_set_alloc_conf(again.as_ptr()));
    assert_eq!(configuration().as_bytes(), again.as_bytes());
    ok!(tcuda_set_alloc_conf(null()));
    assert_eq!(configuration(), before);
    empty_caches();
}

/// The text in effect, set again, changes no limit, nor whose it is.
fn the_text_in_effect_changes_nothing() {
    let before = configuration();
    let all = 0..device_count();
    let again = || {
        let text = configuration();
        ok!(tcuda_set_alloc_conf(CString::new(text.as_str()).unwrap().as_ptr()));
        assert_eq!(configuration(), text);
    };
    let limits = || all.clone().map(|device| get!(0, out => tcuda_get_memory_limit(out, device))).collect::<Vec<_>>();
    ok!(tcuda_set_memory_limit(123 << 20, 0));
    ok!(tcuda::capi::pinned::tcuda_host_set_memory_limit(64 << 20));
    let mut of_calls = vec![u64::MAX; all.len()];
    of_calls[0] = 123 << 20;
    for _ in 0..2 {
        again();
        assert_eq!(limits(), of_calls);
    }
    // They are the calls' still: a text that does not name them leaves them.
    ok!(tcuda_set_alloc_conf(c"".as_ptr()));
    assert_eq!((limits(), get!(0, out => tcuda::capi::pinned::tcuda_host_get_memory_limit(out))), (of_calls, 64 << 20));
    // One that a text set goes with it.
    ok!(tcuda_set_alloc_conf(c"per_process_memory_fraction:0.5".as_ptr()));
    let last = all.end - 1;
    ok!(tcuda_set_memory_limit(77 << 20, last));
    let mixed = limits();
    again();
    assert_eq!(limits(), mixed);
    ok!(tcuda_set_alloc_conf(c"".as_ptr()));
    let mut left = vec![u64::MAX; all.len()];
    left[last as usize] = 77 << 20;
    assert_eq!(limits(), left);
    // A device that a list does not name is left as it is; one that is not there has none.
    let absent = c"per_process_memory_fraction:[0:0.25,9999:0.25]".as_ptr();
    let said = fails!(INVALID_ARGUMENT, tcuda_set_alloc_conf(absent));
    assert!(said.contains("device 9999") && said.contains(&format!("devices: {}", all.len())), "{said}");
    assert_eq!(limits(), left);
    ok!(tcuda_set_alloc_conf(c"per_process_memory_fraction:[0:0.5]".as_ptr()));
    assert_eq!(get!(0.0, out => tcuda_get_per_process_memory_fraction(out, 0)), 0.5);
    assert!(last == 0 || limits()[last as usize] == 77 << 20);
    ok!(tcuda::capi::pinned::tcuda_host_set_memory_limit(u64::MAX));
    ok!(tcuda_set_alloc_conf(c"per_process_memory_fraction:1,pinned_limit_mb:none".as_ptr()));
    ok!(tcuda_set_alloc_conf(null()));
    assert_eq!(configuration(), before);
}

/// Said where it can be known: by the call, or, of the environment's text and one that came earlier, to the log.
fn limits_of_a_device_that_is_not_there() {
    in_child("absent_device", &[]);
    in_child("absent_device_early", &[]);
    in_child("absent_device_early", &[("TCUDA_ALLOC_CONF", ABSENT.to_str().unwrap())]);
}

const ABSENT: &std::ffi::CStr = c"per_process_memory_fraction:[0:0.5,9999:0.25]";

pub fn scene_absent_device() {
    let mut options: tcuda_init_options_t = unsafe { std::mem::zeroed() };
    options.struct_size = size_of::<tcuda_init_options_t>();
    options.alloc_conf = ABSENT.as_ptr();
    assert!(fails!(INVALID_ARGUMENT, tcuda_init(&options)).contains("device 9999"));
    assert_eq!(get!(0.0, out => tcuda_get_per_process_memory_fraction(out, 0)), 1.0);
    ok!(tcuda_init(null()));
}

pub fn scene_absent_device_early() {
    static HEARD: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());
    unsafe extern "C" fn hear(_: i32, said: *const std::ffi::c_char, _: *mut std::ffi::c_void) {
        *HEARD.lock().unwrap() += &text(said);
    }
    ok!(tcuda::capi::error::tcuda_set_log_callback(Some(hear), null_mut()));
    if std::env::var_os("TCUDA_ALLOC_CONF").as_deref() != ABSENT.to_str().ok().map(std::ffi::OsStr::new) {
        ok!(tcuda_set_alloc_conf(ABSENT.as_ptr()));
    }
    assert_eq!(get!(0.0, out => tcuda_get_per_process_memory_fraction(out, 0)), 0.5);
    assert!(HEARD.lock().unwrap().contains("device 9999"));
    ok!(tcuda::capi::error::tcuda_set_log_callback(None, null_mut()));
}

/// throw_on_cudamalloc_oom: at the limit nothing is given back and nothing waited for.
fn a_limit_can_refuse_at_once() {
    empty_caches();
    let limit = Limit::of(0, 32 << 20);
    free(allocate(6 << 20, NULL));
    let mut block = null_mut();
    for (text, calls) in [(c"expandable_segments:False,throw_on_cudamalloc_oom:True", 0), (c"expandable_segments:False", 1)] {
        ok!(tcuda_set_alloc_conf(text.as_ptr()));
        ok!(tcuda_reset_accumulated_memory_stats(0));
        let said = fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut block, 40 << 20, NULL));
        // What is refused at once counts apart, as in torch, and says so in torch's words.
        assert_eq!(said.contains("Allocation was preemptively rejected because it would exceed"), calls == 0, "{said}");
        assert_eq!((stat(0, "num_ooms"), stat(0, "num_oom_rejections")), (calls, 1 - calls));
        assert_eq!((stat(0, "num_alloc_retries"), stat(0, "num_sync_all_streams")), (calls, calls));
        // So is what no device has.
        fails!(OUT_OF_MEMORY, tcuda_malloc_cached(&mut block, 1 << 55, NULL));
        assert_eq!((stat(0, "num_ooms"), stat(0, "num_oom_rejections")), (2 * calls, 2 - 2 * calls));
        // The limit was in the way: what processes there are is no matter.
        assert!(!said.contains("this process"), "{said}");
        assert_eq!(stat(0, "reserved_bytes.all.current") > 0, calls == 0);
    }
    ok!(tcuda_set_alloc_conf(null()));
    drop(limit);
    empty_caches();
}

fn the_allocator_has_a_name() {
    assert_eq!(text(tcuda::capi::plugin::tcuda_get_allocator_backend()), "native");
}
