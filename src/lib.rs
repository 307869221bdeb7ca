//! tcuda: what `torch.cuda` gives Python, for every other language.
//!
//! ```text
//! capi      extern "C": pointers to values, panic guard, last error
//! graph
//! comm      communicator        ipc       jit       libs      nvtx      random    sanitizer telemetry    features
//! tensor    copy
//! memory    device cache, statistics, summary
//! stream    event
//! device
//! runtime   the seam: one table of CUDA runtime functions; cuda (dlopen) and sim (the simulated device)
//! base      status, configuration, dtype, logging
//! ```
//!
//! A room uses only rooms below it; `tests/layers.rs` checks that.

pub mod base;
pub mod capi;
pub mod comm;
pub mod communicator;
pub mod copy;
pub mod device;
pub mod event;
pub mod graph;
pub mod ipc;
pub mod jit;
pub mod libs;
pub mod memory;
pub mod nvtx;
pub mod random;
pub mod runtime;
pub mod sanitizer;
pub mod stream;
pub mod telemetry;
pub mod tensor;
