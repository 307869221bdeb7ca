//! What was found while looking for CUDA, and the error that tells it.

use super::library::Library;
use super::search::{How, Place};
use crate::base::{Error, Status};

pub struct Driver {
    pub library: Option<Library>,
    /// The newest CUDA it serves, 12040 for 12.4. 0: there is no driver that works.
    pub version: i32,
    /// Why there is none.
    pub problem: String,
}

/// Why a candidate is not the runtime.
#[derive(Debug)]
pub enum Finding {
    Absent,
    /// It works, and there is no device; another library would say the same.
    NoDevice(String),
    /// It needs a newer driver than there is.
    TooNew(String),
    /// It answers with this code.
    Failed(i32, String),
    Unusable(String),
}

pub struct Report<'a> {
    driver: &'a Driver,
    /// Only TCUDA_CUDART_PATH was tried.
    given: bool,
    places: Vec<String>,
    too_new: bool,
    /// The first code of a runtime that failed for a reason of its own, or 0.
    failed: i32,
}

impl Report<'_> {
    pub fn new(driver: &Driver) -> Report<'_> {
        Report { driver, given: false, places: Vec::new(), too_new: false, failed: 0 }
    }

    /// A place that had no usable runtime.
    pub fn searched(&mut self, place: &Place, findings: Vec<Finding>) {
        self.given |= place.candidates.iter().any(|candidate| candidate.how == How::Given);
        let mut texts = Vec::new();
        for finding in findings {
            match finding {
                Finding::Absent => continue,
                Finding::NoDevice(text) | Finding::Unusable(text) => texts.push(text),
                Finding::TooNew(text) => {
                    self.too_new = true;
                    texts.push(text);
                }
                Finding::Failed(code, text) => {
                    self.failed = if self.failed == 0 { code } else { self.failed };
                    texts.push(text);
                }
            }
        }
        let found = if texts.is_empty() { String::from("nothing") } else { texts.join(", ") };
        self.places.push(format!("{}: {found}", place.name));
    }

    pub fn error(&self) -> Error {
        let driver = self.driver.version;
        let too_old = driver != 0 && self.too_new && self.failed == 0;
        let status = if too_old { Status::TCUDA_ERROR_INSUFFICIENT_DRIVER } else { Status::TCUDA_ERROR_NO_DEVICE };
        let what = match driver {
            0 => format!("No CUDA device: no NVIDIA driver works here ({}).", self.driver.problem),
            _ if too_old => format!("The NVIDIA driver (for CUDA up to {}) is older than every CUDA runtime found.", dotted(driver)),
            _ => format!("There is an NVIDIA driver (for CUDA up to {}), but no CUDA runtime that works with it.", dotted(driver)),
        };
        let advice = match driver {
            _ if self.given => "Correct TCUDA_CUDART_PATH, or unset it: tcuda then searches by itself.".to_string(),
            0 => "Install the driver; a container must be given the GPUs (docker run --gpus all).".to_string(),
            _ if too_old => format!("Update the driver, or install an older runtime ({}).", install(driver)),
            _ => format!("Install one ({}), or name one in TCUDA_CUDART_PATH.", install(driver)),
        };
        let searched = self.places.join("; ");
        Error::new(status, format!("{what} CUDA runtimes were looked for in {searched}. {advice}")).with_native(self.failed)
    }

    /// Driver and runtime work, but there is nothing to work on.
    pub fn no_device(&self, runtime: &str) -> Error {
        let hint = match std::env::var_os("CUDA_VISIBLE_DEVICES") {
            Some(visible) => format!("CUDA_VISIBLE_DEVICES is set to {visible:?}, which hides every device that it does not name."),
            None => "nvidia-smi lists what the driver sees; a container must be given the GPUs (docker run --gpus all).".to_string(),
        };
        let text = format!("No CUDA device: {runtime} and the driver work, but they see no device. {hint}");
        Error::new(Status::TCUDA_ERROR_NO_DEVICE, text).with_native(crate::runtime::code::NO_DEVICE)
    }
}

/// 12040 is 12.4.
pub fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// How to get a runtime that a driver serves.
fn install(driver: i32) -> &'static str {
    match driver / 1000 {
        ..12 => "pip install nvidia-cuda-runtime-cu11",
        12 => "pip install nvidia-cuda-runtime-cu12",
        13.. => "pip install nvidia-cuda-runtime",
    }
}
