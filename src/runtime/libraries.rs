//! CUDA's libraries that compute, for real devices: they are machine code for GPUs, which the simulated device has none of.

use super::Runtime;
use super::cuda::cublas::{self, Cublas};
use super::cuda::cufft::{self, Cufft};
use crate::base::{Error, Result};

pub use super::cuda::cublas::Handle;
pub use super::cuda::cufft::{Layout, Plan, Transform};

pub fn blas(runtime: &Runtime) -> Result<&'static Cublas> {
    refuse_simulated(runtime, "cuBLAS")?;
    cublas::open(runtime)
}

pub fn fft(runtime: &Runtime) -> Result<&'static Cufft> {
    refuse_simulated(runtime, "cuFFT")?;
    cufft::open(runtime)
}

fn refuse_simulated(runtime: &Runtime, name: &str) -> Result<()> {
    match runtime.name {
        "sim" => Err(Error::not_supported(format!("{name} is machine code for GPUs, which the simulated device does not run."))),
        _ => Ok(()),
    }
}
