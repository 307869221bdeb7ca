//! # base
//! Owns:   status codes and errors, configuration, logging, element types, handles; who looks on (`watch`) and what of it programs are told.
//! Uses:   nothing of tcuda.
//! Never:  calls CUDA.
//! Locks:  none that outlives a call; none while a program's function runs.
//! Tests:  in the files themselves.

pub mod annotation;
pub mod callbacks;
pub mod config;
pub mod dlpack;
pub mod dtype;
pub mod due;
pub mod entropy;
pub mod error;
pub mod few;
pub mod handles;
pub mod log;
#[cfg(test)]
pub mod numbers;
pub mod process;
pub mod room;
pub mod spared;
pub mod status;
pub mod sync_debug;
pub mod trace;
pub mod watch;
pub mod work;

pub use error::{Error, Result, insist};
pub use status::Status;
