//! cuBLAS: handles, their streams and workspaces. What it computes, programs ask of it themselves.

use super::bind::functions;
use super::component::Component;
use super::library::file_of;
use super::search::BLAS;
use crate::base::Result;
use crate::runtime::{Address, RawStream, Runtime};
use once_cell::sync::OnceCell;
use std::path::PathBuf;

/// cublasHandle_t.
pub type Handle = usize;

functions! {
    cublasCreate_v2(*mut Handle);
    cublasDestroy_v2(Handle);
    cublasSetStream_v2(Handle, RawStream);
    cublasSetWorkspace_v2(Handle, Address, usize);
}

static COMPONENT: Component = Component {
    name: "cuBLAS",
    wanted: &BLAS,
    package: "nvidia-cublas",
    answers: &[
        (1, "CUBLAS_STATUS_NOT_INITIALIZED"),
        (3, "CUBLAS_STATUS_ALLOC_FAILED"),
        (7, "CUBLAS_STATUS_INVALID_VALUE"),
        (8, "CUBLAS_STATUS_ARCH_MISMATCH"),
        (11, "CUBLAS_STATUS_MAPPING_ERROR"),
        (13, "CUBLAS_STATUS_EXECUTION_FAILED"),
        (14, "CUBLAS_STATUS_INTERNAL_ERROR"),
        (15, "CUBLAS_STATUS_NOT_SUPPORTED"),
        (16, "CUBLAS_STATUS_LICENSE_ERROR"),
    ],
    no_memory: 3,
};

pub struct Cublas {
    functions: Functions,
    pub file: PathBuf,
}

/// Found at the first call. A failure is not kept.
pub fn open(runtime: &Runtime) -> Result<&'static Cublas> {
    static FOUND: OnceCell<Cublas> = OnceCell::new();
    FOUND.get_or_try_init(|| {
        COMPONENT.find(runtime, |library, name| {
            let functions = Functions::of(library, name)?;
            Ok(Cublas { file: file_of(functions.cublasCreate_v2 as usize).unwrap_or_else(|| name.into()), functions })
        })
    })
}

impl Cublas {
    /// For the current device.
    pub fn create(&self) -> Result<Handle> {
        let mut handle = 0;
        COMPONENT.check("cublasCreate", unsafe { (self.functions.cublasCreate_v2)(&mut handle) })?;
        Ok(handle)
    }

    /// Its device is current.
    pub fn destroy(&self, handle: Handle) -> Result<()> {
        COMPONENT.check("cublasDestroy", unsafe { (self.functions.cublasDestroy_v2)(handle) })
    }

    /// The handle's own workspace comes back with it.
    pub fn set_stream(&self, handle: Handle, stream: RawStream) -> Result<()> {
        COMPONENT.check("cublasSetStream", unsafe { (self.functions.cublasSetStream_v2)(handle, stream) })
    }

    /// In place of its own, for the stream that it has.
    pub fn set_workspace(&self, handle: Handle, address: Address, size: usize) -> Result<()> {
        COMPONENT.check("cublasSetWorkspace", unsafe { (self.functions.cublasSetWorkspace_v2)(handle, address, size) })
    }
}
