//! # base
//! Owns:   status codes and errors, configuration, logging, element types.
//! Uses:   nothing of tcuda.
//! Never:  calls CUDA.
//! Locks:  none that outlives a call.
//! Tests:  in the files themselves.

pub mod config;
pub mod dlpack;
pub mod dtype;
pub mod entropy;
pub mod error;
pub mod log;
pub mod process;
pub mod status;
pub mod work;

pub use error::{Error, Result};
pub use status::Status;
