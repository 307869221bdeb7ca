//! Telemetry: units, what it follows, one reading for many, processes, and that it makes no context.

use crate::init::in_child;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_char;
use std::ptr::null_mut;
use tcuda::capi::device::{tcuda_mem_get_info, tcuda_synchronize};
use tcuda::capi::init::tcuda_shutdown;
use tcuda::capi::sim::tcuda_sim_lose_device;
use tcuda::capi::telemetry::*;

tests![
    numbers_are_in_their_units: [Telemetry],
    a_reading_has_all_of_them: [Telemetry],
    memory_in_use_follows_allocations: [Telemetry],
    a_young_reading_is_given_again: [Telemetry],
    threads_that_ask_often_see_whole_readings: [Telemetry],
    processes_as_text_and_as_a_list: [Telemetry],
    simulated_numbers_follow_the_load: [Faults],
    bad_arguments_are_refused_everywhere,
    no_context_is_made: [Telemetry, ContextState],
    a_lost_device_still_tells: [Faults],
    after_the_end_nothing_tells,
];

type Ask = unsafe extern "C" fn(*mut i32, i32) -> tcuda::base::Status;

const ASKED: [Ask; 5] = [tcuda_utilization, tcuda_memory_usage, tcuda_temperature, tcuda_power_draw, tcuda_clock_rate];

fn empty() -> tcuda_telemetry_t {
    tcuda_telemetry_t { struct_size: size_of::<tcuda_telemetry_t>(), ..unsafe { std::mem::zeroed() } }
}

fn reading(device: i32, max_age_ms: u32) -> tcuda_telemetry_t {
    get!(empty(), out => tcuda_telemetry_read(out, device, max_age_ms))
}

fn used(device: i32) -> u64 {
    get!(0, out => tcuda_device_memory_used(out, device))
}

fn list(device: i32) -> String {
    let needed = get!(0, out => tcuda_list_gpu_processes(null_mut(), 0, out, device));
    let mut text = vec![0 as c_char; needed + 4096];
    ok!(tcuda_list_gpu_processes(text.as_mut_ptr(), text.len(), null_mut(), device));
    crate::kit::text(text.as_ptr())
}

/// What the numbers can be at all; -1 is not told.
fn check(values: [i32; 5]) {
    let most = [100, 100, 150, 2_000_000, 10_000];
    for (at, (value, most)) in values.into_iter().zip(most).enumerate() {
        assert!((-1..=most).contains(&value), "number {at} is {value}");
    }
    // Degrees, milliwatt and megahertz: a thousand times more or less does not fit.
    assert!(values[2] > 5 && values[3] > 5_000 && values[4] > 50, "{values:?}");
}

fn numbers_are_in_their_units() {
    for device in -1..device_count() {
        check(ASKED.map(|ask| {
            let mut value = -7;
            match unsafe { ask(&mut value, device) } {
                tcuda::base::Status::TCUDA_SUCCESS => value,
                // An instance of MIG has no load that is told.
                status => {
                    assert_eq!((status, backend().as_str()), (tcuda::base::Status::TCUDA_ERROR_NOT_SUPPORTED, "cuda"), "{}", message());
                    -1
                }
            }
        }));
    }
}

fn a_reading_has_all_of_them() {
    for device in 0..device_count() {
        let r = reading(device, 0);
        check([r.utilization, r.memory_usage, r.temperature, r.power_draw, r.clock_rate]);
        assert!(r.age_ns >= 0 && r.power_limit > 10_000 && r.memory_clock_rate > 50 && r.driver_index >= 0);
        let (mut free, mut total) = (0usize, 0usize);
        ok!(tcuda_mem_get_info(&mut free, &mut total, device));
        // CUDA keeps some of what NVML counts.
        let part = r.device_memory_total as f64 / total as f64;
        assert!((0.95..1.1).contains(&part) && (0..=r.device_memory_total).contains(&r.device_memory_used), "{part}");
        assert_eq!(r.struct_size, size_of::<tcuda_telemetry_t>());
    }
    // An older caller, whose struct had less.
    let mut short = tcuda_telemetry_t { struct_size: 32, utilization: 77, ..empty() };
    ok!(tcuda_telemetry_read(&mut short, 0, 0));
    assert!(short.device_memory_total > 0 && short.utilization == 77 && short.struct_size == 32);
}

const BLOCK: u64 = 256 << 20;

fn memory_in_use_follows_allocations() {
    empty_caches();
    // The context is there from here on.
    free(allocate(1, default_of(0)));
    empty_caches();
    let before = used(0);
    let block = allocate(BLOCK as usize, default_of(0));
    let during = used(0);
    assert!(during >= before + BLOCK, "{before} {during}");
    free(block);
    empty_caches();
    assert!(used(0) <= during - BLOCK);
}

fn a_young_reading_is_given_again() {
    empty_caches();
    let first = reading(0, 0);
    let block = allocate(BLOCK as usize, default_of(0));
    let second = reading(0, u32::MAX);
    assert_eq!((first.device_memory_used, first.temperature), (second.device_memory_used, second.temperature));
    assert!(second.age_ns >= first.age_ns);
    std::thread::sleep(std::time::Duration::from_millis(3));
    let third = reading(0, 2);
    assert!(third.device_memory_used as u64 >= first.device_memory_used as u64 + BLOCK);
    free(block);
    empty_caches();
}

fn threads_that_ask_often_see_whole_readings() {
    let devices = device_count();
    let index: Vec<i32> = (0..devices).map(|device| reading(device, 0).driver_index).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let index = &index;
            scope.spawn(move || {
                for round in 0..2000 {
                    let device = (round + thread) % devices;
                    let r = reading(device, u32::from(round % 8 != 0));
                    assert_eq!(r.driver_index, index[device as usize]);
                    check([r.utilization, r.memory_usage, r.temperature, r.power_draw, r.clock_rate]);
                }
            });
        }
    });
}

fn processes_as_text_and_as_a_list() {
    let block = allocate(BLOCK as usize, default_of(0));
    let count = get!(7, out => tcuda_gpu_processes(null_mut(), 0, out, 0));
    let mut found = vec![tcuda_gpu_process_t { bytes: 0, pid: 0, reserved: 7 }; count + 64];
    let count = get!(7, out => tcuda_gpu_processes(found.as_mut_ptr(), count + 64, out, 0));
    let text = list(0);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(format!("GPU:{}", reading(0, 0).driver_index).as_str()));
    if count == 0 {
        // A container may hide even the process itself.
        assert_eq!((lines.next(), backend().as_str()), (Some("no processes are running"), "cuda"));
    } else {
        assert_eq!(
            lines.next().map(|line| (&line[..8], &line[18..24], &line[36..])),
            Some(("process ", " uses ", " MB GPU memory")),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1 + count);
        assert!(found[..count].iter().all(|process| process.pid != 0 && process.reserved == 0));
        let mut number = 7;
        let said = fails!(BUFFER_TOO_SMALL, tcuda_gpu_processes(found.as_mut_ptr(), 0, &mut number, 0));
        assert!(said.contains("room for 0") && number == 7, "{said}");
    }
    if backend() == "sim" {
        assert_eq!((count, found[0].pid), (1, std::process::id()));
        assert!(found[0].bytes >= BLOCK && text.contains(&std::process::id().to_string()));
    }
    let mut small = [1 as c_char; 3];
    fails!(BUFFER_TOO_SMALL, tcuda_list_gpu_processes(small.as_mut_ptr(), 3, null_mut(), 0));
    assert_eq!(small, [1; 3]);
    free(block);
    empty_caches();
}

fn simulated_numbers_follow_the_load() {
    ok!(tcuda_synchronize(0));
    let values = || ASKED.map(|ask| get!(-7, out => ask(out, 0)));
    let idle = values();
    assert_eq!((idle, values()), ([0, 0, 31, 70_000, 345], idle));
    let (one, other) = (Own::new(), Own::new());
    let first = Gate::on(one.0);
    let with_one = values();
    let second = Gate::on(other.0);
    let with_two = values();
    assert_eq!((with_one[0], with_two[0], with_one[4]), (100, 100, 1980));
    for at in [1, 2, 3] {
        assert!(idle[at] < with_one[at] && with_one[at] < with_two[at], "{idle:?} {with_one:?} {with_two:?}");
    }
    first.open();
    second.open();
    ok!(tcuda_synchronize(0));
    assert_eq!(values(), idle);
}

fn bad_arguments_are_refused_everywhere() {
    let mut found = tcuda_gpu_process_t { bytes: 7, pid: 7, reserved: 7 };
    for bad in bad_devices() {
        let (mut number, mut bytes, mut count) = (-7, 7, 7usize);
        let mut reading = tcuda_telemetry_t { temperature: 7, ..empty() };
        fails!(INVALID_DEVICE, tcuda_utilization(&mut number, bad));
        fails!(INVALID_DEVICE, tcuda_memory_usage(&mut number, bad));
        fails!(INVALID_DEVICE, tcuda_temperature(&mut number, bad));
        fails!(INVALID_DEVICE, tcuda_power_draw(&mut number, bad));
        fails!(INVALID_DEVICE, tcuda_clock_rate(&mut number, bad));
        fails!(INVALID_DEVICE, tcuda_device_memory_used(&mut bytes, bad));
        fails!(INVALID_DEVICE, tcuda_list_gpu_processes(null_mut(), 0, &mut count, bad));
        fails!(INVALID_DEVICE, tcuda_gpu_processes(&mut found, 1, &mut count, bad));
        fails!(INVALID_DEVICE, tcuda_telemetry_read(&mut reading, bad, u32::MAX));
        assert_eq!((number, bytes, count, found.pid, reading.temperature), (-7, 7, 7, 7, 7));
    }
    let named = |said: String, name: &str| assert!(said.contains(&format!("'{name}'")), "{said}");
    named(fails!(INVALID_ARGUMENT, tcuda_utilization(null_mut(), 0)), "percent");
    named(fails!(INVALID_ARGUMENT, tcuda_memory_usage(null_mut(), 0)), "percent");
    named(fails!(INVALID_ARGUMENT, tcuda_temperature(null_mut(), 0)), "celsius");
    named(fails!(INVALID_ARGUMENT, tcuda_power_draw(null_mut(), 0)), "milliwatt");
    named(fails!(INVALID_ARGUMENT, tcuda_clock_rate(null_mut(), 0)), "megahertz");
    named(fails!(INVALID_ARGUMENT, tcuda_device_memory_used(null_mut(), 0)), "bytes");
    named(fails!(INVALID_ARGUMENT, tcuda_list_gpu_processes(null_mut(), 0, null_mut(), 0)), "needed");
    named(fails!(INVALID_ARGUMENT, tcuda_gpu_processes(&mut found, 1, null_mut(), 0)), "count");
    named(fails!(INVALID_ARGUMENT, tcuda_gpu_processes(null_mut(), 1, &mut 7usize, 0)), "processes");
    named(fails!(INVALID_ARGUMENT, tcuda_telemetry_read(null_mut(), 0, 0)), "telemetry");
    fails!(INVALID_ARGUMENT, tcuda_telemetry_read(&mut tcuda_telemetry_t { struct_size: 0, ..empty() }, 0, 0));
}

fn no_context_is_made() {
    in_child("telemetry_context", &[]);
}

pub fn scene_context() {
    let runtime = tcuda::runtime::runtime().unwrap();
    for device in 0..device_count() {
        check(ASKED.map(|ask| {
            let mut value = -1;
            unsafe { ask(&mut value, device) };
            value
        }));
        assert!(reading(device, 0).device_memory_total > 0);
        used(device);
        list(device);
        get!(7, out => tcuda_gpu_processes(null_mut(), 0, out, device));
    }
    for device in 0..device_count() {
        assert_eq!(runtime.has_primary_context(device), Some(false));
    }
    // It would be seen.
    ok!(tcuda_synchronize(0));
    free(allocate(1, default_of(0)));
    assert_eq!(runtime.has_primary_context(0), Some(true));
}

fn a_lost_device_still_tells() {
    in_child("telemetry_lost", &[("TCUDA_BACKEND", "sim")]);
}

pub fn scene_lost() {
    free(allocate(1, default_of(0)));
    ok!(tcuda_sim_lose_device(0, 719));
    fails!(DEVICE_LOST, tcuda_synchronize(0));
    check(ASKED.map(|ask| get!(-7, out => ask(out, 0))));
    assert!(reading(0, 0).device_memory_total > 0 && list(0).starts_with("GPU:0"));
}

fn after_the_end_nothing_tells() {
    in_child("telemetry_end", &[]);
}

pub fn scene_end() {
    device();
    ok!(tcuda_shutdown());
    let mut value = -7;
    fails!(SHUT_DOWN, tcuda_temperature(&mut value, 0));
    fails!(SHUT_DOWN, tcuda_telemetry_read(&mut empty(), 0, u32::MAX));
    assert_eq!(value, -7);
}
