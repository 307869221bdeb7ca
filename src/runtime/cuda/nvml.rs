//! NVML, the driver's library for monitors. It is looked up when something is first asked of it, and never makes a context.

use super::adapt;
use super::bind::{self, functions};
use super::library::{Library, file_of, text_at};
use super::search::{Candidate, How, Place};
use crate::base::{Error, Result, Status, config};
use crate::runtime::monitor::{Process, Quantity};
use once_cell::sync::OnceCell;
use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libnvidia-ml.so.1";
const VARIABLE: &str = "TCUDA_NVML_PATH";

type Handle = *mut c_void;

/// nvmlUtilization_t: percent.
#[repr(C)]
#[derive(Default)]
struct Rates {
    gpu: u32,
    memory: u32,
}

/// nvmlMemory_t: bytes.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// nvmlProcessInfo_t, which is the same for the functions _v2 and _v3.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

functions! {
    optional
    nvmlInit_v2();
    nvmlErrorString(i32) -> *const c_char;
    nvmlDeviceGetHandleByUUID(*const c_char, *mut Handle);
    nvmlDeviceGetIndex(Handle, *mut u32);
    nvmlDeviceGetUtilizationRates(Handle, *mut Rates);
    nvmlDeviceGetTemperature(Handle, u32, *mut u32);
    nvmlDeviceGetPowerUsage(Handle, *mut u32);
    nvmlDeviceGetEnforcedPowerLimit(Handle, *mut u32);
    nvmlDeviceGetClockInfo(Handle, u32, *mut u32);
    nvmlDeviceGetMemoryInfo(Handle, *mut Memory);
    nvmlDeviceGetComputeRunningProcesses_v3(Handle, *mut u32, *mut ProcessInfo);
    nvmlDeviceGetComputeRunningProcesses_v2(Handle, *mut u32, *mut ProcessInfo);
    nvmlDeviceGetMigMode(Handle, *mut u32, *mut u32);
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle, *mut Handle);
}

/// nvmlReturn_t.
mod answer {
    pub const SUCCESS: i32 = 0;
    pub const INVALID_ARGUMENT: i32 = 2;
    pub const NOT_SUPPORTED: i32 = 3;
    pub const NO_PERMISSION: i32 = 4;
    pub const NOT_FOUND: i32 = 6;
    pub const INSUFFICIENT_SIZE: i32 = 7;
    pub const FUNCTION_NOT_FOUND: i32 = 13;
}

const DIE: u32 = 0; // NVML_TEMPERATURE_GPU
const CLOCK_SM: u32 = 1;
const CLOCK_MEMORY: u32 = 2;

pub struct Nvml {
    functions: Functions,
    file: PathBuf,
}

/// NVML, found and started at the first call. A failure is not kept.
pub fn open() -> Result<&'static Nvml> {
    static FOUND: OnceCell<Nvml> = OnceCell::new();
    FOUND.get_or_try_init(|| {
        bind::first(std::iter::once(place()), 0, load).map_err(|looked| {
            Error::not_supported(format!(
                "Telemetry needs NVML, which comes with the driver as {LIBRARY}. It was looked for {looked}. In a container, the runtime has \
                 to pass it in (NVIDIA_DRIVER_CAPABILITIES=utility); {VARIABLE} names a file."
            ))
        })
    })
}

fn place() -> Place {
    let candidate = |how, file| Candidate { how, file, major: None };
    if let Some(path) = config::get(VARIABLE) {
        return Place { name: format!("as {VARIABLE} says"), candidates: vec![candidate(How::Given, path.into())] };
    }
    let beside = beside_the_driver().map(|file| candidate(How::Found, file));
    let candidates = std::iter::once(candidate(How::Named, LIBRARY.into())).chain(beside).collect();
    Place { name: "on the loader's path and beside the driver's library".into(), candidates }
}

/// Where the driver's own library was found by other means than the loader's path, NVML is too.
fn beside_the_driver() -> Option<PathBuf> {
    let driver = Library::loaded(Path::new(adapt::DRIVER))?;
    Some(file_of(driver.symbol("cuDriverGetVersion"))?.parent()?.join(LIBRARY))
}

/// Err says what is wrong with it.
fn load(library: &Library, name: &Path) -> Result<Nvml, String> {
    let functions = Functions::of(library);
    let Some(start) = functions.nvmlInit_v2 else { return Err(format!("{} has no nvmlInit_v2", name.display())) };
    let nvml = Nvml { functions, file: file_of(start as usize).unwrap_or_else(|| name.into()) };
    match unsafe { start() } {
        answer::SUCCESS => Ok(nvml),
        code => Err(format!("{} does not start: {} ({code})", name.display(), nvml.text_of(code))),
    }
}

impl Nvml {
    fn text_of(&self, code: i32) -> String {
        let text = self.functions.nvmlErrorString.map(|ask| unsafe { ask(code) }).filter(|text| !text.is_null());
        text.map_or_else(|| "unknown error".into(), |text| unsafe { text_at(text) })
    }

    /// None: no device has this UUID.
    fn by_uuid(&self, uuid: &str) -> Result<Option<Handle>> {
        let (Some(find), Ok(text)) = (self.functions.nvmlDeviceGetHandleByUUID, CString::new(uuid)) else { return Ok(None) };
        let mut handle = std::ptr::null_mut();
        match unsafe { find(text.as_ptr(), &mut handle) } {
            answer::SUCCESS => Ok(Some(handle)),
            answer::NOT_FOUND | answer::INVALID_ARGUMENT => Ok(None),
            code => Err(self.error(code, "nvmlDeviceGetHandleByUUID", &format!("for {uuid}"))),
        }
    }

    /// The board that an instance of MIG is a part of. None: it is no such instance.
    fn board_of(&self, handle: Handle) -> Option<Handle> {
        let mut board = std::ptr::null_mut();
        let found = unsafe { self.functions.nvmlDeviceGetDeviceHandleFromMigDeviceHandle?(handle, &mut board) };
        (found == answer::SUCCESS && !board.is_null()).then_some(board)
    }

    fn is_split(&self, board: Handle) -> bool {
        let (mut now, mut later) = (0, 0);
        let asked = self.functions.nvmlDeviceGetMigMode.map(|ask| unsafe { ask(board, &mut now, &mut later) });
        asked == Some(answer::SUCCESS) && now != 0
    }

    #[cold]
    fn error(&self, code: i32, call: &str, what: &str) -> Error {
        let said = self.text_of(code);
        let (status, native, text) = match code {
            answer::NOT_SUPPORTED | answer::FUNCTION_NOT_FOUND => {
                let text = format!("This device or driver does not tell it {what}: {call} answers {said} ({code}).");
                (Status::TCUDA_ERROR_NOT_SUPPORTED, code, text)
            }
            answer::NO_PERMISSION => {
                let text = format!("This process is not permitted to ask {what}: {call} answers {said} ({code}). It may need more rights.");
                (Status::TCUDA_ERROR_SYSTEM, libc::EPERM, text)
            }
            _ => {
                let text = format!("NVML error: {said} ({code}) in {call} {what}. The library is {}.", self.file.display());
                (Status::TCUDA_ERROR_CUDA, code, text)
            }
        };
        Error::new(status, text).with_native(native)
    }
}

/// A device by NVML's handles, which stay good while NVML is in use.
pub struct Device {
    nvml: &'static Nvml,
    /// CUDA's index, for messages.
    device: i32,
    /// What CUDA works on: a board, or an instance of MIG.
    handle: Handle,
    /// The whole board, which alone has temperature, power and clocks.
    board: Handle,
}
// NVML may be asked from any thread.
unsafe impl Send for Device {}
unsafe impl Sync for Device {}

macro_rules! ask {
    ($self:ident, $what:expr, $name:ident($($argument:expr),*)) => {
        match $self.nvml.functions.$name {
            Some(function) => $self.check(unsafe { function($($argument),*) }, stringify!($name), $what),
            None => $self.check(answer::FUNCTION_NOT_FOUND, stringify!($name), $what),
        }
    };
}

impl Device {
    /// The device that CUDA gives this UUID, which is the same whatever CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER say.
    pub fn find(nvml: &'static Nvml, uuid: [u8; 16], device: i32) -> Result<Device> {
        let text = uuid_text(uuid);
        if let Some(board) = nvml.by_uuid(&format!("GPU-{text}"))? {
            // Drivers may give the board's UUID for an instance of it; then the variable tells which one.
            let instance = if nvml.is_split(board) { instance_of(device) } else { None };
            let handle =
                instance.and_then(|name| nvml.by_uuid(&name).ok().flatten()).filter(|handle| nvml.board_of(*handle) == Some(board));
            return Ok(Device { nvml, device, handle: handle.unwrap_or(board), board });
        }
        if let Some(handle) = nvml.by_uuid(&format!("MIG-{text}"))? {
            return Ok(Device { nvml, device, handle, board: nvml.board_of(handle).unwrap_or(handle) });
        }
        Err(Error::not_supported(format!(
            "NVML ({}) knows neither GPU-{text} nor MIG-{text}, which is device {device}. In a container, all of the driver has to be passed in.",
            nvml.file.display()
        ))
        .on_device(device))
    }

    fn check(&self, code: i32, call: &str, what: &str) -> Result<()> {
        if code == answer::SUCCESS {
            return Ok(());
        }
        Err(self.nvml.error(code, call, &format!("({what} of device {})", self.device)).on_device(self.device))
    }

    pub fn index(&self) -> Result<i32> {
        let mut index = 0;
        ask!(self, "the index", nvmlDeviceGetIndex(self.board, &mut index))?;
        Ok(index as i32)
    }

    pub fn get(&self, quantity: Quantity) -> Result<i32> {
        let (what, mut value, mut rates) = (quantity.name(), 0, Rates::default());
        match quantity {
            Quantity::Utilization | Quantity::MemoryUsage => {
                ask!(self, what, nvmlDeviceGetUtilizationRates(self.handle, &mut rates))?;
                value = if quantity == Quantity::Utilization { rates.gpu } else { rates.memory };
            }
            Quantity::Temperature => ask!(self, what, nvmlDeviceGetTemperature(self.board, DIE, &mut value))?,
            Quantity::PowerDraw => ask!(self, what, nvmlDeviceGetPowerUsage(self.board, &mut value))?,
            Quantity::PowerLimit => ask!(self, what, nvmlDeviceGetEnforcedPowerLimit(self.board, &mut value))?,
            Quantity::ClockRate => ask!(self, what, nvmlDeviceGetClockInfo(self.board, CLOCK_SM, &mut value))?,
            Quantity::MemoryClockRate => ask!(self, what, nvmlDeviceGetClockInfo(self.board, CLOCK_MEMORY, &mut value))?,
        }
        Ok(i32::try_from(value).unwrap_or(i32::MAX))
    }

    pub fn memory(&self) -> Result<(u64, u64)> {
        let mut memory = Memory::default();
        ask!(self, "the memory in use", nvmlDeviceGetMemoryInfo(self.handle, &mut memory))?;
        Ok((memory.used, memory.total))
    }

    pub fn processes(&self) -> Result<Vec<Process>> {
        const ROUNDS: usize = 8;
        let (what, f) = ("the processes", &self.nvml.functions);
        let (call, ask) = match (f.nvmlDeviceGetComputeRunningProcesses_v3, f.nvmlDeviceGetComputeRunningProcesses_v2) {
            (Some(ask), _) => ("nvmlDeviceGetComputeRunningProcesses_v3", ask),
            (None, Some(ask)) => ("nvmlDeviceGetComputeRunningProcesses_v2", ask),
            (None, None) => {
                self.check(answer::FUNCTION_NOT_FOUND, "nvmlDeviceGetComputeRunningProcesses", what)?;
                return Ok(Vec::new());
            }
        };
        let (mut list, mut code) = (vec![ProcessInfo::default(); 32], answer::INSUFFICIENT_SIZE);
        // New ones may come between the answer and the next call.
        for _ in 0..ROUNDS {
            let mut count = list.len() as u32;
            code = unsafe { ask(self.handle, &mut count, list.as_mut_ptr()) };
            match code {
                answer::INSUFFICIENT_SIZE => list.resize((count as usize).max(list.len()) + 32, ProcessInfo::default()),
                _ => {
                    list.truncate(count as usize);
                    break;
                }
            }
        }
        self.check(code, call, what)?;
        // All ones: not available.
        Ok(list.iter().map(|found| Process { pid: found.pid, bytes: Some(found.used).filter(|used| *used != u64::MAX) }).collect())
    }
}

/// The instance of MIG that CUDA_VISIBLE_DEVICES names at this place.
fn instance_of(device: i32) -> Option<String> {
    let list = config::get("CUDA_VISIBLE_DEVICES")?;
    let entry = list.split(',').nth(usize::try_from(device).ok()?)?.trim();
    entry.starts_with("MIG-").then(|| entry.to_owned())
}

fn uuid_text(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_nvmls() {
        assert_eq!((size_of::<Rates>(), size_of::<Memory>(), size_of::<ProcessInfo>()), (8, 24, 24));
        assert_eq!(std::mem::offset_of!(ProcessInfo, used), 8);
    }

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        assert_eq!(uuid_text(*b"0123456789abcdef"), "30313233-3435-3637-3839-616263646566");
    }
}
