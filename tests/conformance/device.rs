//! Devices: indices and their edges, the current device, properties, peers, waiting.

use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_char;
use std::ptr::{from_ref, null, null_mut};
use std::sync::Mutex;
use tcuda::capi::device::*;
use tcuda::capi::stream::tcuda_stream_query;

tests![
    there_is_a_device,
    a_new_thread_starts_on_device_0: [TwoDevices],
    setting_a_negative_device_does_nothing,
    setting_a_device_out_of_range_fails_and_changes_nothing,
    exchange_gives_the_previous_device: [TwoDevices],
    exchange_with_a_negative_device_only_asks,
    a_bad_index_is_refused_everywhere,
    a_null_output_is_refused_everywhere,
    minus_one_is_the_current_device,
    names_follow_the_rules_of_texts,
    properties_are_those_of_a_device,
    attributes_by_cudas_numbers,
    properties_of_an_older_caller,
    a_device_is_no_peer_of_itself,
    peers_can_be_asked_both_ways: [TwoDevices],
    peer_access_is_enabled_once_and_told: [TwoDevices],
    the_device_of_an_address,
    the_device_of_an_address_on_another_device: [TwoDevices],
    synchronize_waits_for_every_stream,
    no_call_changes_the_current_device: [TwoDevices],
    memory_is_free_and_total,
    threads_have_their_own_current_device: [TwoDevices],
];

fn properties_of(device: i32) -> tcuda_device_properties_t {
    let mut properties: tcuda_device_properties_t = unsafe { std::mem::zeroed() };
    properties.struct_size = size_of::<tcuda_device_properties_t>();
    ok!(tcuda_get_device_properties(&mut properties, device));
    properties
}

fn name_of(device: i32) -> String {
    let mut buffer = [0 as c_char; 300];
    ok!(tcuda_get_device_name(buffer.as_mut_ptr(), buffer.len(), null_mut(), device));
    text(buffer.as_ptr())
}

fn capability_of(device: i32) -> (i32, i32) {
    let (mut major, mut minor) = (0, 0);
    ok!(tcuda_get_device_capability(&mut major, &mut minor, device));
    (major, minor)
}

fn there_is_a_device() {
    let count = device_count();
    assert!(count >= 1);
    assert_eq!(count, device_count());
    assert!((0..count).contains(&device()));
}

fn a_new_thread_starts_on_device_0() {
    set_device(1);
    assert_eq!(device(), 1);
    assert_eq!(std::thread::spawn(device).join().unwrap(), 0);
    assert_eq!(device(), 1);
}

fn setting_a_negative_device_does_nothing() {
    let before = device();
    for negative in [-1, -2, -3, i32::MIN] {
        ok!(tcuda_set_device(negative));
        assert_eq!(device(), before);
    }
}

fn setting_a_device_out_of_range_fails_and_changes_nothing() {
    let (before, count) = (device(), device_count());
    for bad in [count, count + 1, i32::MAX] {
        let said = fails!(INVALID_DEVICE, tcuda_set_device(bad));
        assert_eq!(said, format!("Device index value {bad} is out of index range [0, {count})"));
        assert_eq!(device(), before);
    }
}

fn exchange_gives_the_previous_device() {
    assert_eq!(get!(-7, out => tcuda_exchange_device(out, 1)), 0);
    assert_eq!(device(), 1);
    assert_eq!(get!(-7, out => tcuda_exchange_device(out, 1)), 1);
    assert_eq!(get!(-7, out => tcuda_exchange_device(out, 0)), 1);
    assert_eq!(device(), 0);
    fails!(INVALID_ARGUMENT, tcuda_exchange_device(null_mut(), 1));
    assert_eq!(device(), 0);
    let mut untouched = -7;
    fails!(INVALID_DEVICE, tcuda_exchange_device(&mut untouched, device_count()));
    assert_eq!((untouched, device()), (-7, 0));
}

fn exchange_with_a_negative_device_only_asks() {
    for negative in [-1, -2, -3, i32::MIN] {
        assert_eq!(get!(-7, out => tcuda_exchange_device(out, negative)), device());
    }
}

fn a_bad_index_is_refused_everywhere() {
    for bad in bad_devices() {
        let (mut number, mut other, mut size, mut truth) = (-7, -7, 7usize, true);
        let mut properties = properties_of(0);
        properties.major = -7;
        let said = fails!(INVALID_DEVICE, tcuda_get_device_capability(&mut number, &mut other, bad));
        assert!(said.contains(&format!("Device index value {bad} is out of index range")), "{said}");
        fails!(INVALID_DEVICE, tcuda_get_device_name(null_mut(), 0, &mut size, bad));
        fails!(INVALID_DEVICE, tcuda_get_device_properties(&mut properties, bad));
        fails!(INVALID_DEVICE, tcuda_can_device_access_peer(&mut truth, bad, 0));
        let said = fails!(INVALID_DEVICE, tcuda_can_device_access_peer(&mut truth, 0, bad));
        assert!(said.starts_with("Invalid peer device"), "{said}");
        fails!(INVALID_DEVICE, tcuda_synchronize(bad));
        fails!(INVALID_DEVICE, tcuda_mem_get_info(&mut size, &mut size, bad));
        assert_eq!((number, other, size, truth, properties.major), (-7, -7, 7, true, -7));
    }
    let said = fails!(INVALID_DEVICE, tcuda_synchronize(-2));
    assert!(said.contains("the CPU"), "{said}");
}

fn a_null_output_is_refused_everywhere() {
    let (mut number, mut size) = (-7, 7usize);
    let named = |said: String, name: &str| assert!(said.contains(&format!("'{name}'")), "{said}");
    named(fails!(INVALID_ARGUMENT, tcuda_device_count(null_mut())), "count");
    named(fails!(INVALID_ARGUMENT, tcuda_current_device(null_mut())), "device");
    named(fails!(INVALID_ARGUMENT, tcuda_exchange_device(null_mut(), -1)), "previous");
    named(fails!(INVALID_ARGUMENT, tcuda_device_of(null_mut(), null())), "device");
    named(fails!(INVALID_ARGUMENT, tcuda_get_device_name(null_mut(), 0, null_mut(), 0)), "needed");
    named(fails!(INVALID_ARGUMENT, tcuda_get_device_capability(null_mut(), &mut number, 0)), "major");
    named(fails!(INVALID_ARGUMENT, tcuda_get_device_capability(&mut number, null_mut(), 0)), "minor");
    named(fails!(INVALID_ARGUMENT, tcuda_get_device_properties(null_mut(), 0)), "properties");
    named(fails!(INVALID_ARGUMENT, tcuda_can_device_access_peer(null_mut(), 0, 0)), "can_access");
    named(fails!(INVALID_ARGUMENT, tcuda_mem_get_info(null_mut(), &mut size, 0)), "free_bytes");
    named(fails!(INVALID_ARGUMENT, tcuda_mem_get_info(&mut size, null_mut(), 0)), "total_bytes");
    assert_eq!((number, size), (-7, 7));
}

fn minus_one_is_the_current_device() {
    for current in 0..device_count() {
        set_device(current);
        assert_eq!(properties_of(-1).uuid, properties_of(current).uuid);
        assert_eq!(name_of(-1), name_of(current));
        assert_eq!(capability_of(-1), capability_of(current));
        ok!(tcuda_synchronize(-1));
        assert_eq!(device(), current);
    }
}

fn names_follow_the_rules_of_texts() {
    let needed = get!(0usize, out => tcuda_get_device_name(null_mut(), 0, out, 0));
    let name = name_of(0);
    assert_eq!(needed, name.len() + 1);
    let mut buffer = vec![7 as c_char; needed];
    for capacity in [0, 1, needed - 1] {
        let mut again = 0;
        fails!(BUFFER_TOO_SMALL, tcuda_get_device_name(buffer.as_mut_ptr(), capacity, &mut again, 0));
        assert_eq!(again, needed);
        assert!(buffer.iter().all(|byte| *byte == 7));
    }
    ok!(tcuda_get_device_name(buffer.as_mut_ptr(), needed, null_mut(), 0));
    assert_eq!(text(buffer.as_ptr()), name);
    fails!(INVALID_ARGUMENT, tcuda_get_device_name(null_mut(), 1, null_mut(), 0));
}

fn properties_are_those_of_a_device() {
    for device in 0..device_count() {
        let p = properties_of(device);
        assert_eq!(p.struct_size, size_of::<tcuda_device_properties_t>());
        assert_eq!(text(p.name.as_ptr()), name_of(device));
        assert_eq!((p.major, p.minor), capability_of(device));
        assert_eq!(p.warp_size, 32);
        assert!(p.major >= 3 && p.multi_processor_count >= 1 && p.max_threads_per_block >= 1024);
        assert!(p.max_threads_per_multi_processor >= p.max_threads_per_block && p.regs_per_multiprocessor >= 1 << 15);
        assert!(p.shared_memory_per_block >= 48 << 10);
        assert!(p.shared_memory_per_block_optin >= p.shared_memory_per_block);
        assert!(p.shared_memory_per_multiprocessor >= p.shared_memory_per_block);
        assert!(p.l2_cache_size > 0 && p.total_memory > 1 << 20 && p.memory_bus_width > 0 && p.clock_rate > 0);
        assert!(p.uuid.iter().any(|byte| *byte != 0));
        assert_eq!(p.is_simulated, i32::from(backend() == "sim"));
        for truth in [p.is_multi_gpu_board, p.is_integrated, p.concurrent_managed_access] {
            assert!(truth == 0 || truth == 1);
        }
        assert!(p.total_constant_memory >= 65536 && p.regs_per_block >= 1 << 15 && p.max_texture_1d_linear > 0);
        assert!(p.max_block_dimensions[0] == p.max_threads_per_block && p.max_block_dimensions[2] >= 64);
        assert!(p.max_grid_dimensions == [i32::MAX, 65535, 65535] && (1..=64).contains(&p.max_blocks_per_multi_processor));
        assert!([0, 2, 3].contains(&p.compute_mode) && p.single_to_double_precision_perf_ratio >= 1);
        let truths = [
            p.kernel_exec_timeout_enabled,
            p.device_overlap,
            p.cooperative_launch,
            p.cooperative_multi_device_launch,
            p.can_map_host_memory,
            p.unified_addressing,
            p.managed_memory,
            p.pageable_memory_access,
            p.memory_pools_supported,
        ];
        assert!(truths.iter().all(|truth| [0, 1].contains(truth)), "{truths:?}");
        assert!(p.unified_addressing == 1 && p.can_map_host_memory == 1);
        let again = properties_of(device);
        assert_eq!((again.uuid, again.total_memory, again.pci_bus_id), (p.uuid, p.total_memory, p.pci_bus_id));
        for other in 0..device {
            assert_ne!(properties_of(other).uuid, p.uuid);
        }
    }
}

fn attributes_by_cudas_numbers() {
    for device in 0..device_count() {
        let p = properties_of(device);
        let ask = |attribute| get!(-7, out => tcuda_get_device_attribute(out, attribute, device));
        assert_eq!([10, 16, 75, 76, 13].map(ask), [p.warp_size, p.multi_processor_count, p.major, p.minor, p.clock_rate]);
    }
    let mut value = -7;
    for none in [-1, 0, i32::MAX] {
        let said = fails!(INVALID_ARGUMENT, tcuda_get_device_attribute(&mut value, none, 0));
        assert!(said.contains(&format!("attribute {none} ")), "{said}");
    }
    fails!(INVALID_DEVICE, tcuda_get_device_attribute(&mut value, 16, device_count()));
    fails!(INVALID_ARGUMENT, tcuda_get_device_attribute(null_mut(), 16, 0));
    assert_eq!(value, -7);
}

fn properties_of_an_older_caller() {
    let mut properties = properties_of(0);
    let (memory, l2) = (properties.total_memory, properties.l2_cache_size);
    (properties.struct_size, properties.total_memory, properties.shared_memory_per_block, properties.l2_cache_size) = (16, 0, 5, 6);
    ok!(tcuda_get_device_properties(&mut properties, 0));
    assert_eq!((properties.struct_size, properties.total_memory), (16, memory));
    assert_eq!((properties.shared_memory_per_block, properties.l2_cache_size), (5, 6));
    assert_ne!(l2, 6);
    properties.struct_size = 0;
    fails!(INVALID_ARGUMENT, tcuda_get_device_properties(&mut properties, 0));
}

fn a_device_is_no_peer_of_itself() {
    for device in 0..device_count() {
        assert!(!get!(true, out => tcuda_can_device_access_peer(out, device, device)));
    }
    assert!(!get!(true, out => tcuda_can_device_access_peer(out, -1, -1)));
}

fn peers_can_be_asked_both_ways() {
    let there = get!(false, out => tcuda_can_device_access_peer(out, 0, 1));
    let back = get!(false, out => tcuda_can_device_access_peer(out, 1, 0));
    assert_eq!(there, back);
    set_device(1);
    assert_eq!(get!(false, out => tcuda_can_device_access_peer(out, -1, 0)), back);
    assert_eq!(device(), 1);
}

fn peer_access_is_enabled_once_and_told() {
    use tcuda::base::{Error, Result};
    use tcuda::device::peer;
    static TOLD: Mutex<Vec<(i32, i32)>> = Mutex::new(Vec::new());
    fn fails_first(device: i32, peer: i32) -> Result<()> {
        let mut told = TOLD.lock().unwrap();
        told.push((device, peer));
        if told.len() == 1 { Err(Error::internal("not yet")) } else { Ok(()) }
    }
    assert_eq!(peer::ensure(1, 1), Ok(true));
    if !get!(false, out => tcuda_can_device_access_peer(out, 1, 0)) {
        assert_eq!(peer::ensure(1, 0), Ok(false));
        assert!(!peer::with_access_to(0).contains(&1));
        return;
    }
    peer::on_enabled(fails_first);
    peer::on_enabled(fails_first);
    // A hook that fails leaves the pair as it was; the next need tries again.
    assert!(peer::ensure(1, 0).is_err());
    assert!(!peer::with_access_to(0).contains(&1));
    let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(|| peer::ensure(1, 0))).collect();
    threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Ok(true)));
    assert_eq!(*TOLD.lock().unwrap(), [(1, 0), (1, 0)]);
    assert!(peer::with_access_to(0).contains(&1) && !peer::with_access_to(1).contains(&0));
    assert_eq!(device(), 0);
}

fn the_device_of_an_address() {
    let runtime = tcuda::runtime::runtime().unwrap();
    let of = |address: usize| get!(-7, out => tcuda_device_of(out, address as *const _));
    let on_stack = 0u64;
    assert_eq!(of(0), -2);
    assert_eq!(of(from_ref(&on_stack) as usize), -2);
    let pinned = runtime.host_alloc(4096, 0).unwrap();
    assert_eq!(of(pinned), -2);
    runtime.free_host(pinned).unwrap();
    let memory = runtime.malloc(1 << 20).unwrap();
    assert_eq!((of(memory), of(memory + (1 << 20) - 1)), (device(), device()));
    runtime.free(memory).unwrap();
}

fn the_device_of_an_address_on_another_device() {
    let runtime = tcuda::runtime::runtime().unwrap();
    set_device(1);
    let memory = runtime.malloc(4096).unwrap();
    set_device(0);
    assert_eq!(get!(-7, out => tcuda_device_of(out, memory as *const _)), 1);
    assert_eq!(device(), 0);
    runtime.free(memory).unwrap();
}

fn synchronize_waits_for_every_stream() {
    let streams = [Own::new(), Own::new()];
    let gates = [Gate::on(streams[0].0), Gate::on(streams[1].0)];
    assert!(!get!(true, out => tcuda_stream_query(streams[0].0, out)));
    let openers = [gates[0].open_later(), gates[1].open_later()];
    ok!(tcuda_synchronize(-1));
    assert!(gates[0].was_passed() && gates[1].was_passed());
    openers.into_iter().for_each(|opener| opener.join().unwrap());
}

fn no_call_changes_the_current_device() {
    let (mut a, mut b) = (0usize, 0usize);
    for current in [0, 1] {
        let other = 1 - current;
        set_device(current);
        ok!(tcuda_synchronize(other));
        ok!(tcuda_mem_get_info(&mut a, &mut b, other));
        properties_of(other);
        get!(false, out => tcuda_can_device_access_peer(out, other, current));
        drop(Own::on(other));
        get!(NULL, out => tcuda::capi::stream::tcuda_stream_from_pool(out, other, -1));
        ok!(tcuda::capi::stream::tcuda_stream_synchronize(default_of(other)));
        assert_eq!(device(), current);
    }
}

fn memory_is_free_and_total() {
    let (mut free, mut total) = (0usize, 0usize);
    ok!(tcuda_mem_get_info(&mut free, &mut total, 0));
    assert!(free <= total && total as u64 <= properties_of(0).total_memory.next_multiple_of(1 << 30));
    assert!(total > 1 << 20);
}

fn threads_have_their_own_current_device() {
    let count = device_count();
    let threads: Vec<_> = (0..8)
        .map(|index| {
            std::thread::spawn(move || {
                for round in 0..200 {
                    let wanted = (index + round) % count;
                    set_device(wanted);
                    assert_eq!(device(), wanted);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(device(), 0);
}
