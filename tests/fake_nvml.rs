//! Telemetry over a fake NVML and a fake CUDA: which library is taken, that a device is the same one to both whatever CUDA_VISIBLE_DEVICES
//! says, units, errors, and that no context is made. Each case runs in a process of its own, on a machine of tests/fake/mod.rs.

mod fake;

use fake::*;
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;
use tcuda::base::Status::{self, *};
use tcuda::capi::device::tcuda_device_count;
use tcuda::capi::error::tcuda_last_error_native;
use tcuda::capi::memory::tcuda_malloc_cached;
use tcuda::capi::telemetry::*;

const NVML: &str = "loader/libnvidia-ml.so.1";
/// The driver's numbers of the boards, in CUDA's order.
const ORDER: [i32; 4] = [2, 0, 3, 1];

fn nvml(lacks: &[&str]) -> std::path::PathBuf {
    build("nvml.c", "libnvidia-ml.so.1", &[], lacks)
}

/// Four boards, with a driver and a runtime and no NVML.
fn bare(machine: Machine) -> Machine {
    let order = ORDER.map(|number| number.to_string()).concat();
    machine.with("loader/libcuda.so.1", &driver(13000)).with("loader/libcudart.so.13", &runtime_library(13000)).set("FAKE_ORDER", &order)
}

fn plain(machine: Machine) -> Machine {
    bare(machine).with(NVML, &nvml(&[]))
}

fn ask(call: unsafe extern "C" fn(*mut i32, i32) -> Status, device: i32) -> Result<i32, Status> {
    let mut value = -7;
    match unsafe { call(&mut value, device) } {
        TCUDA_SUCCESS => Ok(value),
        status => {
            assert_eq!(value, -7);
            Err(status)
        }
    }
}

fn reading(device: i32, max_age_ms: u32) -> tcuda_telemetry_t {
    let mut reading: tcuda_telemetry_t = unsafe { std::mem::zeroed() };
    reading.struct_size = size_of::<tcuda_telemetry_t>();
    assert_eq!(unsafe { tcuda_telemetry_read(&mut reading, device, max_age_ms) }, TCUDA_SUCCESS, "{}", message());
    reading
}

fn used(device: i32) -> u64 {
    let mut bytes = 0;
    assert_eq!(unsafe { tcuda_device_memory_used(&mut bytes, device) }, TCUDA_SUCCESS, "{}", message());
    bytes
}

fn list(device: i32) -> String {
    let mut text = [0 as c_char; 8192];
    let status = unsafe { tcuda_list_gpu_processes(text.as_mut_ptr(), text.len(), null_mut(), device) };
    assert_eq!(status, TCUDA_SUCCESS, "{}", message());
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().unwrap().to_owned()
}

fn nvml_calls(name: &str) -> i64 {
    calls("libnvidia-ml.so.1", "fake_nvml_calls", name)
}

/// The driver's numbers of what CUDA sees, found by telemetry.
fn numbers() -> Vec<i32> {
    let mut count = 0;
    assert_eq!(unsafe { tcuda_device_count(&mut count) }, TCUDA_SUCCESS);
    let numbers: Vec<i32> = (0..count).map(|device| reading(device, 0).driver_index).collect();
    for (device, number) in numbers.iter().enumerate() {
        assert_eq!(ask(tcuda_temperature, device as i32), Ok(30 + number));
        assert_eq!(used(device as i32), (1 + *number as u64) << 20);
    }
    numbers
}

#[test]
fn units_and_sources() {
    case("units_and_sources", plain, || {
        // CUDA's device 2 is the driver's 3.
        let asked = [tcuda_utilization, tcuda_memory_usage, tcuda_temperature, tcuda_power_draw, tcuda_clock_rate];
        assert_eq!(asked.map(|call| ask(call, 2).unwrap()), [13, 23, 33, 40003, 1003]);
        let r = reading(2, 0);
        assert_eq!((r.utilization, r.memory_usage, r.temperature, r.power_draw, r.power_limit), (13, 23, 33, 40003, 50003));
        assert_eq!((r.clock_rate, r.memory_clock_rate, r.driver_index), (1003, 2003, 3));
        assert_eq!((r.device_memory_used, r.device_memory_total), (4 << 20, 80 << 30));
        assert_eq!((nvml_calls("nvmlInit_v2"), nvml_calls("nvmlDeviceGetHandleByUUID")), (1, 1));
    });
}

#[test]
fn no_context_is_made() {
    case("no_context_is_made", plain, || {
        for device in [-1, 0, 1, 2, 3] {
            reading(device, 0);
            list(device);
            used(device);
            ask(tcuda_power_draw, device).unwrap();
        }
        let driver_calls = |name| calls("libcuda.so.1", "fake_driver_calls", name);
        assert_eq!(["fake_bind", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2"].map(driver_calls), [0; 3]);
        assert_eq!(calls("libcudart.so.13", "fake_runtime_calls", "cudaSetDevice"), 0);
    });
}

#[test]
fn a_young_reading_is_not_asked_for_again() {
    case("a_young_reading_is_not_asked_for_again", plain, || {
        let asked = || nvml_calls("nvmlDeviceGetPowerUsage");
        let first = reading(0, 0);
        let second = reading(0, u32::MAX);
        assert_eq!((asked(), first.power_draw), (1, second.power_draw));
        assert!(second.age_ns >= first.age_ns);
        assert_eq!(reading(1, u32::MAX).power_draw, 40000);
        assert_eq!(asked(), 2);
        reading(0, 0);
        assert_eq!(asked(), 3);
        // Threads that want one at the same time share it.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| reading(2, u32::MAX));
            }
        });
        assert_eq!(asked(), 4);
    });
}

#[test]
fn processes_as_a_list_and_as_torchs_text() {
    case("processes_as_a_list_and_as_torchs_text", plain, || {
        assert_eq!(list(1), "GPU:0\nno processes are running");
        let expected = "GPU:2\nprocess       1000 uses        0.500 MB GPU memory\nprocess       1001 uses      unknown MB GPU memory";
        assert_eq!(list(0), expected);
        let mut found = vec![tcuda_gpu_process_t { bytes: 5, pid: 5, reserved: 5 }; 100];
        let mut count = 0;
        let mut get = |room: usize, count: &mut usize| unsafe { tcuda_gpu_processes(found.as_mut_ptr(), room, count, 2) };
        assert_eq!((get(99, &mut count), count), (TCUDA_ERROR_BUFFER_TOO_SMALL, 0));
        assert_says(&message(), &["100 processes", "room for 99"]);
        assert_eq!((get(100, &mut count), count), (TCUDA_SUCCESS, 100));
        assert_eq!((found[1].bytes, found[1].pid, found[1].reserved, found[99].bytes), (1 << 20, 1001, 0, u64::MAX));
    });
}

/// What nobody tells in CUDA's functions stands in the error too.
#[test]
fn who_uses_the_device_when_memory_runs_out() {
    case("who_uses_the_device_when_memory_runs_out", plain, || {
        let mut block = null_mut();
        assert_eq!(unsafe { tcuda_malloc_cached(&mut block, 1 << 50, null_mut()) }, TCUDA_ERROR_OUT_OF_MEMORY);
        assert_says(&message(), &["Process 1000 has 512.00 KiB memory in use. This process may be among them, by another number. "]);
    });
}

#[test]
fn without_nvml_nobody_tells_who_uses_the_device() {
    case("without_nvml_nobody_tells_who_uses_the_device", bare, || {
        let mut block = null_mut();
        assert_eq!(unsafe { tcuda_malloc_cached(&mut block, 1 << 50, null_mut()) }, TCUDA_ERROR_OUT_OF_MEMORY);
        assert!(!message().contains("Process "), "{}", message());
    });
}

#[test]
fn an_older_driver_lists_processes_too() {
    case(
        "an_older_driver_lists_processes_too",
        |m| bare(m).with(NVML, &nvml(&["nvmlDeviceGetComputeRunningProcesses_v3"])),
        || {
            assert_eq!(list(3).lines().count(), 2);
            assert_eq!(nvml_calls("nvmlDeviceGetComputeRunningProcesses_v2"), 1);
        },
    );
}

#[test]
fn all_boards_in_cudas_order() {
    case("all_boards_in_cudas_order", plain, || assert_eq!(numbers(), ORDER));
}

#[test]
fn boards_by_number() {
    case("boards_by_number", |m| plain(m).set("CUDA_VISIBLE_DEVICES", "3,0"), || assert_eq!(numbers(), [ORDER[3], ORDER[0]]));
}

#[test]
fn boards_by_number_up_to_one_that_is_none() {
    case("boards_by_number_up_to_one_that_is_none", |m| plain(m).set("CUDA_VISIBLE_DEVICES", "2,-1,0"), || assert_eq!(numbers(), [3]));
}

#[test]
fn boards_by_uuid() {
    let names = "GPU-40404040-4040-4040-4040-404040404040,GPU-10,1";
    case("boards_by_uuid", |m| plain(m).set("CUDA_VISIBLE_DEVICES", names), || assert_eq!(numbers(), [3, 0, ORDER[1]]));
}

/// Memory and processes are the instance's, temperature and power the board's, and nobody tells the load of an instance.
fn is_instance(instance: i64) {
    let r = reading(0, 0);
    assert_eq!((r.device_memory_used, r.temperature, r.power_draw, r.driver_index), ((100 + instance) << 20, 30, 40000, 0));
    assert_eq!((r.utilization, r.memory_usage), (-1, -1));
    assert_eq!(list(0).lines().count(), 2);
    assert_eq!(ask(tcuda_utilization, 0), Err(TCUDA_ERROR_NOT_SUPPORTED));
    assert_says(&message(), &["utilization of device 0", "nvmlDeviceGetUtilizationRates", "Not Supported"]);
}

const INSTANCE: &str = "MIG-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1";

#[test]
fn an_instance_of_mig() {
    case("an_instance_of_mig", |m| plain(m).set("FAKE_MIG", "1").set("CUDA_VISIBLE_DEVICES", INSTANCE), || is_instance(1));
}

#[test]
fn an_instance_of_mig_with_the_uuid_of_its_board() {
    case(
        "an_instance_of_mig_with_the_uuid_of_its_board",
        |m| plain(m).set("FAKE_MIG", "1").set("FAKE_BOARD_UUID", "1").set("CUDA_VISIBLE_DEVICES", INSTANCE),
        || is_instance(1),
    );
}

#[test]
fn a_board_that_nvml_does_not_know() {
    case(
        "a_board_that_nvml_does_not_know",
        |m| plain(m).set("CUDA_VISIBLE_DEVICES", "MIG-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0"),
        || {
            assert_eq!(ask(tcuda_temperature, 0), Err(TCUDA_ERROR_NOT_SUPPORTED));
            assert_says(&message(), &["GPU-a0a0a0a0-", "MIG-a0a0a0a0-", "device 0", "libnvidia-ml.so.1"]);
        },
    );
}

#[test]
fn no_library() {
    case("no_library", bare, || {
        // Each call looks again.
        for _ in 0..2 {
            assert_eq!(ask(tcuda_temperature, 0), Err(TCUDA_ERROR_NOT_SUPPORTED));
            let parts =
                ["Telemetry needs NVML", "on the loader's path and beside the driver's library", "libnvidia-ml.so.1", "TCUDA_NVML_PATH"];
            assert_says(&message(), &parts);
        }
        std::fs::copy(nvml(&[]), root().join(NVML)).unwrap();
        assert_eq!(ask(tcuda_temperature, 0), Ok(32));
    });
}

#[test]
fn the_library_that_is_given_is_the_only_one() {
    case(
        "the_library_that_is_given_is_the_only_one",
        |m| plain(m).set("TCUDA_NVML_PATH", "{}/none.so"),
        || {
            assert_eq!(ask(tcuda_temperature, 0), Err(TCUDA_ERROR_NOT_SUPPORTED));
            assert_says(&message(), &["as TCUDA_NVML_PATH says", "none.so"]);
        },
    );
}

#[test]
fn a_library_that_does_not_start() {
    case(
        "a_library_that_does_not_start",
        |m| plain(m).set("FAKE_NVML", "nvmlInit_v2:9"),
        || {
            assert_eq!(ask(tcuda_temperature, 0), Err(TCUDA_ERROR_NOT_SUPPORTED));
            assert_says(&message(), &["does not start: Driver Not Loaded (9)"]);
        },
    );
}

#[test]
fn an_older_library_lacks_a_function() {
    case(
        "an_older_library_lacks_a_function",
        |m| bare(m).with(NVML, &nvml(&["nvmlDeviceGetPowerUsage"])),
        || {
            assert_eq!(ask(tcuda_power_draw, 0), Err(TCUDA_ERROR_NOT_SUPPORTED));
            assert_says(&message(), &["power draw of device 0", "nvmlDeviceGetPowerUsage"]);
            assert_eq!((reading(0, 0).power_draw, reading(0, 0).temperature), (-1, 32));
        },
    );
}

#[test]
fn what_is_not_permitted() {
    case(
        "what_is_not_permitted",
        |m| plain(m).set("FAKE_NVML", "nvmlDeviceGetTemperature:4"),
        || {
            assert_eq!(ask(tcuda_temperature, 1), Err(TCUDA_ERROR_SYSTEM));
            assert_says(&message(), &["not permitted", "temperature of device 1", "Insufficient Permissions"]);
            assert_eq!((tcuda_last_error_native(), reading(1, 0).temperature, reading(1, 0).power_draw), (libc::EPERM, -1, 40000));
        },
    );
}

#[test]
fn a_device_that_fails() {
    case(
        "a_device_that_fails",
        |m| plain(m).set("FAKE_NVML", "nvmlDeviceGetClockInfo:15"),
        || {
            assert_eq!(ask(tcuda_clock_rate, 1), Err(TCUDA_ERROR_CUDA));
            assert_says(&message(), &["GPU is lost (15)", "nvmlDeviceGetClockInfo", "clock rate of device 1"]);
            assert_eq!(tcuda_last_error_native(), 15);
            let before = tcuda_telemetry_t { temperature: 77, ..reading_of_nothing() };
            let mut now = before;
            assert_eq!(unsafe { tcuda_telemetry_read(&mut now, 1, 0) }, TCUDA_ERROR_CUDA);
            assert_eq!((now.temperature, now.struct_size), (77, before.struct_size));
            assert_eq!(ask(tcuda_temperature, 1), Ok(30));
        },
    );
}

fn reading_of_nothing() -> tcuda_telemetry_t {
    tcuda_telemetry_t { struct_size: size_of::<tcuda_telemetry_t>(), ..unsafe { std::mem::zeroed() } }
}
