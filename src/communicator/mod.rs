//! # communicator
//! Owns:   communicators: ranks that find each other by an id, their collectives on tensors, groups, time limits, what a rank that fails means.
//! Uses:   tensor, memory, event, stream, device, runtime, base.
//! Never:  moves a byte itself; waits for another rank without a limit; starts a thread.
//! Locks:  Communicator::calls (of several communicators in the order of their addresses; held while NCCL is called and while a call waits
//!         for others, up to the time limit or the end of any of them), within it that of siblings; or that of handles, alone or in handles::ENDING.
//! Tests:  in the files, tests/fake_nccl.rs, tests/communicators.rs, tests/conformance/{communicator,communicator_ends}.rs, tests_c/test_communicator.c.

mod environment;
mod group;
mod handles;
mod one;
mod patience;
mod rules;
mod siblings;

pub use environment::init_from_env;
pub use group::{end as group_end, start as group_start};
pub use handles::{Handle, abort, destroy, insert, named, shutdown};
pub use one::{Communicator, Options, init_all, init_rank, unique_id, version};
pub use rules::{Ends, call};
