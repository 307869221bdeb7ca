//! # capi
//! Owns:   the C functions: pointers to values, panics to errors, this thread's last error. One file per section of the header.
//! Uses:   every room: comm, communicator, graph, ipc, jit, libs, nvtx, random, sanitizer, telemetry, tensor, copy, memory, event, stream,
//!         device, runtime, base.
//! Never:  decides anything; what a function does is in its room.
//! Locks:  none.
//! Tests:  in the files, tests/header.rs, tests/conformance, tests_c.
#![allow(clippy::missing_safety_doc)] // the contract of each function is the header's text

pub mod guard;

mod cxx;
pub mod structs;
pub mod text;

// One module a section of the header, in its order; the lines between keep rustfmt from sorting them.
pub mod version;

pub mod error;

pub mod init;

pub mod device;

pub mod stream;

pub mod event;

pub mod green;

pub mod memory;

pub mod pinned;

pub mod pressure;

pub mod pool;

pub mod plugin;

pub mod torch;

pub mod history;

pub mod snapshot;

pub mod copy;

pub mod tensor;

pub mod random;

pub mod distributions;

pub mod graph;

pub mod graphed;

pub mod jit;

pub mod kernel;

pub mod comm;

pub mod communicator;

pub mod ipc;

pub mod telemetry;

pub mod nvtx;

pub mod libs;

pub mod trace;

pub mod sync_debug;

pub mod sanitizer;

pub mod sim;
