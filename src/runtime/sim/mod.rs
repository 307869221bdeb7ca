//! The simulated device.

use super::api::Runtime;
use crate::base::{Error, Result, Status};

pub fn open(_why: &str) -> Result<Runtime> {
    Err(Error::new(Status::TCUDA_ERROR_NO_DEVICE, "not built yet"))
}

/// Enqueues host work that stands for a kernel.
pub fn launch(_stream: super::table::RawStream, _work: impl FnOnce() + Send + 'static, _accesses: &[super::kernels::Access]) -> Result<()> {
    Err(Error::new(Status::TCUDA_ERROR_NO_DEVICE, "not built yet"))
}
