//! # jit
//! Owns:   functions and kernels that are compiled at run time: what their sources are, which code is generated for which tensors, what
//!         is kept in memory and in files, how they are called.
//! Uses:   tensor, copy, memory, stream, device, runtime, base.
//! Never:  knows which compiler it has, or what the device is (runtime::compile and runtime::kernels::compiled do).
//! Locks:  those of handles, the table of what was compiled, a function's own table; each alone, but that a module's kernels are locked
//!         while one gets its handle. Nothing is locked while a compiler runs but the one entry that it makes.
//! Tests:  in the files, tests/jit_cache.rs, tests/fake_nvrtc.rs, tests/conformance/{jit,kernels,complex}.rs, tests/nvrtc (the suite of this name).

mod call;
mod disk;
mod function;
pub mod generate;
mod kernel;
pub mod parse;
pub mod promote;
pub mod walk;

pub use call::{call, call_out};
pub use disk::configure;
pub use function::{Function, Scalar, Value, create, destroy, is_locked, numbered};

/// What a call has of its tensors, mostly without an allocation.
pub type Few<T> = smallvec::SmallVec<[T; 4]>;
pub use kernel::{Argument, Attributes, Kernel, Launch, Options, compile, destroy_module, get, kernel_numbered, load};

/// Every function, module and kernel of a program is gone.
pub fn shutdown() {
    function::clear();
    kernel::shutdown();
}
