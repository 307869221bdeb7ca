//! # runtime/cuda
//! Owns:   the real libraries: which libcudart, libcuda, libnvrtc, libnvidia-ml, libnccl, libcublas and libcufft are used, the table filled
//!         from them, what differs between their versions.
//! Uses:   runtime::table and runtime::api, base.
//! Never:  closes a library that is in use; falls back to the simulated device.
//! Locks:  none; runtime::select lets one thread in.
//! Tests:  tests/fake_cuda.rs, in the files; `cargo check --features signatures` compares the table with CUDA's prototypes.

mod adapt;
mod bind;
mod component;
pub mod cublas;
pub mod cufft;
pub mod library;
pub mod nccl;
pub mod nvml;
pub mod nvrtc;
mod report;
mod search;
#[cfg(feature = "signatures")]
mod signatures;

use super::api::Runtime;
use super::table::{Table, code};
use crate::base::Result;
use library::{Library, file_of, text_at};
use report::{Driver, Finding, Report, dotted};
use search::{Candidate, How};
use std::path::Path;

/// The first CUDA runtime library that fills the table and finds a device. Err says which places were searched and what was there.
pub fn open() -> Result<Runtime> {
    open_with_local(Path::new("/usr/local"))
}

/// The same with another folder for what the administrator installed.
pub fn open_with_local(local: &Path) -> Result<Runtime> {
    let driver = open_driver();
    let mut report = Report::new(&driver);
    for place in search::places(&search::RUNTIME, local) {
        let mut findings = Vec::new();
        for candidate in &place.candidates {
            match try_runtime(candidate, &place.name, &driver) {
                Ok(runtime) => return Ok(runtime),
                Err(Finding::NoDevice(runtime)) => return Err(report.no_device(&runtime)),
                Err(finding) => findings.push(finding),
            }
        }
        report.searched(&place, findings);
    }
    Err(report.error())
}

fn open_driver() -> Driver {
    let library = match Library::open_for_good(Path::new(adapt::DRIVER)) {
        Ok(library) => library,
        Err(text) => return Driver { library: None, version: 0, problem: text },
    };
    let mut version = 0;
    let problem = match library.symbol("cuDriverGetVersion") {
        0 => format!("{} has no cuDriverGetVersion", adapt::DRIVER),
        address => {
            let ask = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut i32) -> i32>(address) };
            match unsafe { ask(&mut version) } {
                code::SUCCESS => String::new(),
                other => format!("{} answers {other} when asked for its version", adapt::DRIVER),
            }
        }
    };
    Driver { library: Some(library), version, problem }
}

fn try_runtime(candidate: &Candidate, place: &str, driver: &Driver) -> Result<Runtime, Finding> {
    let name = candidate.file.display();
    if let (How::Found, Some(major)) = (candidate.how, candidate.major)
        && driver.version != 0
        && !adapt::serves(driver.version, major)
    {
        return Err(Finding::TooNew(format!("{name} is for drivers of CUDA {major} and later")));
    }
    let library = bind::open(candidate, Library::open).map_err(|finding| finding.map_or(Finding::Absent, Finding::Unusable))?;
    let fill = |libcuda: Option<&Library>| {
        let find = |slot: &'static str| match libcuda {
            _ if slot.starts_with("cuda") => library.symbol(slot),
            Some(libcuda) => libcuda.symbol(slot),
            None => 0,
        };
        unsafe { Table::from_symbols(find) }.map_err(|slot| Finding::Unusable(format!("{name} has no {slot}")))
    };
    let mut table = fill(driver.library.as_ref())?;

    // Outputs stay untouched when a call fails, and CUDA 11 cannot tell even its own version with no driver.
    let (mut count, mut version, mut driver_version) = (0, 0, 0);
    let answer = unsafe { (table.cudaGetDeviceCount)(&mut count) };
    unsafe { (table.cudaRuntimeGetVersion)(&mut version) };
    unsafe { (table.cudaDriverGetVersion)(&mut driver_version) };
    let file = file_of(table.cudaGetDeviceCount as usize).unwrap_or_else(|| candidate.file.clone());
    let label = match version {
        0 => format!("{}", file.display()),
        version => format!("{} (CUDA runtime {})", file.display(), dotted(version)),
    };
    if answer != code::SUCCESS || count <= 0 {
        unsafe { (table.cudaGetLastError)() };
    }
    match answer {
        code::SUCCESS if count > 0 => {}
        code::SUCCESS | code::NO_DEVICE => return Err(Finding::NoDevice(label)),
        code::INSUFFICIENT_DRIVER if driver.version == 0 => return Err(Finding::Unusable(format!("{label} finds no driver"))),
        code::INSUFFICIENT_DRIVER => return Err(Finding::TooNew(format!("{label} finds the driver too old"))),
        other => {
            let (name, text) = unsafe { (text_at((table.cudaGetErrorName)(other)), text_at((table.cudaGetErrorString)(other))) };
            return Err(Finding::Failed(other, format!("{label} cannot start: {text} ({name}, {other})")));
        }
    }
    if driver.library.is_none() {
        // A runtime may know of a driver that the loader alone does not find.
        table = fill(Library::loaded(Path::new(adapt::DRIVER)).as_ref())?;
    }
    adapt::adapt(&mut table);
    // From here on the library stays: the table points into it.
    std::mem::forget(library);
    let devices = if count == 1 { "1 device".to_string() } else { format!("{count} devices") };
    let reason = format!("{label} from {place}, driver for CUDA {}, {devices}", dotted(driver_version));
    Ok(Runtime { table, name: "cuda", reason, version, driver_version, device_count: count })
}
