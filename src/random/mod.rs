//! # random
//! Owns:   generators (seed, offset, geometry), their handles, the default one of each device, what those were given before there was a
//!         device; what a graph has of a generator; the filling of tensors with random numbers.
//! Uses:   tensor, memory, event, stream, device, runtime, base.
//! Never:  makes a number itself (the kernels do); waits for a device.
//! Locks:  that of handles or defaults::DEFAULTS, then a generator's own, which is held while kernels that draw from it are launched.
//! Tests:  in the files, tests/generator.rs, tests/conformance (generators, random, philox, graph_random), tests_c/test_generator.c.

pub mod captured;
mod defaults;
mod fill;
mod generator;
mod geometry;
mod handles;
mod order;
mod rules;

pub use defaults::{Wish, check_count, is_locked, of as default_of, set as set_default};
pub use fill::{
    bernoulli, bernoulli_tensor, cauchy, exponential, geometric, integers, integers_all, log_normal, normal, permutation, uniform,
};
pub use generator::{Change, DEFAULT_SEED, Draws, Generator, PhiloxState, State, fresh_seed, tcuda_philox_state_t};
pub use geometry::{Geometry, NAMED};
pub use handles::{Handle, create, default_handle, destroy, enter, for_device, named};

/// Every generator is gone, and the default ones begin anew.
pub fn shutdown() {
    handles::clear();
    defaults::clear();
}
