//! # comm
//! Owns:   torch.cuda.comm in one process: what goes from one device to many and back, its rules, its order, and the way it takes.
//! Uses:   tensor, copy, memory, event, stream, device, runtime, base.
//! Never:  waits on the host, except for memory of the CPU and after a failure; flattens tensors into a buffer.
//! Locks:  lanes::IDLE, then stream's. ring::WAITING is only tried, and held while others are taken.
//! Tests:  in the files, tests/conformance/comm.rs and comm_order.rs, tests/suites/machines.py, tests_c/test_comm.c, examples_c/average_gradients.c.

mod broadcast;
mod chain;
mod choice;
mod circle;
mod lanes;
mod moves;
mod reduce;
mod ring;
mod rules;
mod scatter;
mod spread;

pub use broadcast::{broadcast, broadcast_coalesced, broadcast_out};
pub use choice::WAYS;
pub use reduce::{reduce_add, reduce_add_coalesced};
pub use scatter::{gather, gather_out, scatter, scatter_out};
