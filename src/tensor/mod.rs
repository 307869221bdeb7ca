//! # tensor
//! Owns:   what a tensor that crosses the border is (checked shape, strides, place, element type); making, filling, copying,
//!         converting and pinning tensors.
//! Uses:   copy, memory, stream, device, runtime, base.
//! Never:  keeps a tensor alive; decides how a conversion rounds (that is the kernels').
//! Locks:  none.
//! Tests:  in the files, tests/conformance/tensor.rs, tests_c/test_tensor.c, tests/check_dlpack.py.

mod copying;
mod fill;
mod make;
mod strides;
mod view;

pub use copying::{Names, agree, copy, copy_between, is_same, meet, overlap, plan};
pub use fill::fill;
pub use make::{Origin, Owned, alias, bytes_if_there, empty, empty_like, empty_on_host, empty_strided, part, pin, to};
pub use strides::{Sizes, common_shape, contiguous, like, like_all};
pub use view::{Parts, View, check_ndim};
