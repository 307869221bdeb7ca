//! Telemetry
//!
//! How a device is doing, as the driver sees it for all processes together, by NVML, which is looked up at the first of these calls. They
//! make no context and change no current device, and a device that is lost to this process goes on telling what it told before. A device is
//! found by its UUID, so an index means the same here as everywhere else, whatever CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER say.
//!
//! Without NVML, and for what a device does not tell: TCUDA_ERROR_NOT_SUPPORTED. What this process may not ask: TCUDA_ERROR_SYSTEM. Other
//! failures of NVML: TCUDA_ERROR_CUDA, and tcuda_last_error_native has NVML's code. docs/TELEMETRY.md has more.

use super::guard::{Out, guard, guard_out, null};
use super::structs::{Growing, StructOut};
use super::text::TextOut;
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result, Status};
use crate::runtime::monitor::Quantity;
use crate::telemetry::{self, Reading};
use std::ffi::c_char;
use std::time::Duration;

/// How a device is doing. -1 is what it does not tell, or not to this process. Set `struct_size` before the call (TCUDA_TELEMETRY_INIT).
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_telemetry_t {
    pub struct_size: usize,
    /// Nanoseconds since the device was asked.
    pub age_ns: i64,
    /// Bytes, those of the driver and of all processes counted.
    pub device_memory_used: i64,
    pub device_memory_total: i64,
    /// As in tcuda_utilization and so on.
    pub utilization: i32,
    pub memory_usage: i32,
    pub temperature: i32,
    pub power_draw: i32,
    /// Milliwatt: where the device is held back.
    pub power_limit: i32,
    /// Megahertz, as in tcuda_clock_rate; tcuda_device_properties_t has kilohertz.
    pub clock_rate: i32,
    /// Megahertz.
    pub memory_clock_rate: i32,
    /// The driver's number of the device, as nvidia-smi shows it.
    pub driver_index: i32,
}
unsafe impl Growing for tcuda_telemetry_t {}
const _: () = assert!(size_of::<tcuda_telemetry_t>() == 64);

/// A process that computes on a device.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_gpu_process_t {
    /// Device memory in bytes; UINT64_MAX where the driver does not say, as in some containers.
    pub bytes: u64,
    /// As the host counts processes, which in a container may be another number than the process' own.
    pub pid: u32,
    /// 0.
    pub reserved: u32,
}

fn quantity(value: *mut i32, parameter: &str, quantity: Quantity, device: i32) -> Result<()> {
    let out = Out::new(value, parameter)?;
    out.write(telemetry::get(quantity, device)?);
    Ok(())
}

/// Percent of the last sample period (1/6 to 1 s) in which a kernel ran (torch.cuda.utilization, nvmlDeviceGetUtilizationRates). Instances
/// of MIG do not tell.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_utilization(percent: *mut i32, device: i32) -> tcuda_status_t {
    guard("tcuda_utilization", || quantity(percent, "percent", Quantity::Utilization, device))
}

/// Percent of the last sample period in which device memory was read or written (torch.cuda.memory_usage). It does not say how full the
/// memory is: that is tcuda_device_memory_used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_usage(percent: *mut i32, device: i32) -> tcuda_status_t {
    guard("tcuda_memory_usage", || quantity(percent, "percent", Quantity::MemoryUsage, device))
}

/// The die's temperature in degrees Celsius (torch.cuda.temperature, nvmlDeviceGetTemperature).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_temperature(celsius: *mut i32, device: i32) -> tcuda_status_t {
    guard("tcuda_temperature", || quantity(celsius, "celsius", Quantity::Temperature, device))
}

/// What the board takes, in milliwatt (torch.cuda.power_draw, nvmlDeviceGetPowerUsage): the mean of a second since Ampere, of the moment
/// before. Many GeForce and Jetson boards do not tell.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_power_draw(milliwatt: *mut i32, device: i32) -> tcuda_status_t {
    guard("tcuda_power_draw", || quantity(milliwatt, "milliwatt", Quantity::PowerDraw, device))
}

/// The clock of the multiprocessors in megahertz (torch.cuda.clock_rate, nvmlDeviceGetClockInfo). torch's documentation says hertz; what
/// it gives is megahertz too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_clock_rate(megahertz: *mut i32, device: i32) -> tcuda_status_t {
    guard("tcuda_clock_rate", || quantity(megahertz, "megahertz", Quantity::ClockRate, device))
}

/// Bytes of device memory in use, by all processes and the driver itself (torch.cuda.device_memory_used, nvmlDeviceGetMemoryInfo). Other
/// than tcuda_mem_get_info it needs no context. Memory that tcuda's cache keeps is in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_device_memory_used(bytes: *mut u64, device: i32) -> tcuda_status_t {
    guard_out("tcuda_device_memory_used", bytes, "bytes", || telemetry::memory_used(device))
}

/// The processes that compute on a device as a text for people, as torch writes it (torch.cuda.list_gpu_processes): a line with the
/// driver's number of the device, then one for each process, with MiB that are called MB; no line break at the end. Those that only draw
/// are not listed.
///
/// @param text     gets the text with a terminating zero; NULL with capacity 0 asks for the size only.
/// @param needed   gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
/// @return TCUDA_ERROR_BUFFER_TOO_SMALL: the list may grow between two calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_list_gpu_processes(text: *mut c_char, capacity: usize, needed: *mut usize, device: i32) -> tcuda_status_t {
    guard("tcuda_list_gpu_processes", || {
        let out = TextOut::new(text, capacity, needed)?;
        out.write(&telemetry::list_processes(device)?)
    })
}

/// The same for programs.
///
/// @param processes gets them; NULL with capacity 0 asks for the number only.
/// @param capacity  how many there is room for.
/// @param count     gets how many there are.
/// @return TCUDA_ERROR_BUFFER_TOO_SMALL: there are more, and none was written; tcuda_last_error has bytes for all of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_gpu_processes(
    processes: *mut tcuda_gpu_process_t,
    capacity: usize,
    count: *mut usize,
    device: i32,
) -> tcuda_status_t {
    guard("tcuda_gpu_processes", || {
        let count = Out::new(count, "count")?;
        if processes.is_null() && capacity != 0 {
            return Err(null("processes"));
        }
        let found = telemetry::processes(device)?;
        if !processes.is_null() {
            if found.len() > capacity {
                let text = format!("{} processes compute on the device; there is room for {capacity}.", found.len());
                let bytes = found.len() * size_of::<tcuda_gpu_process_t>();
                return Err(Error::new(Status::TCUDA_ERROR_BUFFER_TOO_SMALL, text).with_bytes(bytes as u64));
            }
            let list = found.iter().map(|p| tcuda_gpu_process_t { bytes: p.bytes.unwrap_or(u64::MAX), pid: p.pid, reserved: 0 });
            Out::new(processes, "processes")?.write_all(list);
        }
        count.write(found.len());
        Ok(())
    })
}

/// All of it at once. For those who ask often: a reading that is young enough is given again, which takes no lock, no call of the driver
/// and some 50 ns; of threads that want a new one at the same time one asks, and the others wait for it.
///
/// @param telemetry   gets the reading; what the device does not tell is -1 there and no error.
/// @param max_age_ms  a reading younger than this will do. 0: a new one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_telemetry_read(telemetry: *mut tcuda_telemetry_t, device: i32, max_age_ms: u32) -> tcuda_status_t {
    guard("tcuda_telemetry_read", || {
        let out = unsafe { StructOut::new(telemetry, "telemetry") }?;
        let reading = telemetry::read(device, Duration::from_millis(max_age_ms.into()))?;
        out.write(&filled(&reading));
        Ok(())
    })
}

fn filled(reading: &Reading) -> tcuda_telemetry_t {
    tcuda_telemetry_t {
        struct_size: 0,
        age_ns: reading.age.as_nanos() as i64,
        device_memory_used: reading.memory_used,
        device_memory_total: reading.memory_total,
        utilization: reading.get(Quantity::Utilization),
        memory_usage: reading.get(Quantity::MemoryUsage),
        temperature: reading.get(Quantity::Temperature),
        power_draw: reading.get(Quantity::PowerDraw),
        power_limit: reading.get(Quantity::PowerLimit),
        clock_rate: reading.get(Quantity::ClockRate),
        memory_clock_rate: reading.get(Quantity::MemoryClockRate),
        driver_index: reading.index,
    }
}
