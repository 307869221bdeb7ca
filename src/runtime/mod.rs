//! # runtime
//! Owns:   the seam: the table of CUDA functions, its two implementations, which of them is in use, CUDA's errors as values.
//! Uses:   base.
//! Never:  knows a tcuda stream, block or tensor. Nothing above can tell which implementation it has.
//! Locks:  the selection, once; each implementation its own.
//! Tests:  in the files, tests/fake_cuda.rs, tests/conformance.

pub mod api;
pub mod collective;
pub mod compile;
pub mod cuda;
pub mod host;
pub mod kernels;
pub mod libraries;
pub mod monitor;
pub mod nvtx;
pub mod select;
pub mod sim;
pub mod table;

pub use api::Runtime;
pub use select::{backend_name, backend_reason, is_initialized, runtime};
pub use table::{Address, Code, MemHandle, RawEvent, RawGraph, RawGraphExec, RawGreenContext, RawStream, code};
