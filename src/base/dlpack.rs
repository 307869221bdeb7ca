//! The tensor structs of DLPack 1.x, written from its specification, so that tensors cross the border with a cast.

use super::dtype::tcuda_dtype_t;
use std::ffi::c_void;

/// Where a tensor's memory is: DLPack's DLDevice.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub struct tcuda_place_t {
    /// TCUDA_PLACE_CPU (1), _CUDA (2), _PINNED (3: host memory) or _MANAGED (13). A simulated device is TCUDA_PLACE_CUDA as well.
    pub device_type: i32,
    /// The device's index; 0 for the CPU.
    pub device_id: i32,
}

/// A view of memory as an array: DLPack's DLTensor. It owns nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct tcuda_tensor_t {
    /// Start of the memory, before `byte_offset`. May be NULL when there are no elements.
    pub data: *mut c_void,
    pub device: tcuda_place_t,
    /// Number of dimensions; 0 is a single element.
    pub ndim: i32,
    pub dtype: tcuda_dtype_t,
    /// Elements per dimension, `ndim` of them.
    pub shape: *mut i64,
    /// Elements (not bytes) from one index to the next per dimension; NULL: packed, the last dimension fastest.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// DLPack's version: structs of another major version have another layout.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub struct tcuda_dlpack_version_t {
    pub major: u32,
    pub minor: u32,
}

/// A tensor with its owner: DLPack's DLManagedTensorVersioned.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct tcuda_managed_tensor_t {
    pub version: tcuda_dlpack_version_t,
    /// The owner's; not to be touched.
    pub manager_ctx: *mut c_void,
    /// Gives the tensor back; called once, by whoever has it last. May be NULL.
    pub deleter: Option<unsafe extern "C" fn(tensor: *mut tcuda_managed_tensor_t)>,
    /// Bit 0: read only. Bit 1: it is a copy, made for the taker.
    pub flags: u64,
    pub tensor: tcuda_tensor_t,
}

pub const CPU: i32 = 1;
pub const CUDA: i32 = 2;
pub const CUDA_HOST: i32 = 3;
pub const CUDA_MANAGED: i32 = 13;

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<tcuda_tensor_t>() == 48);
    assert!(offset_of!(tcuda_tensor_t, dtype) == 20);
    assert!(offset_of!(tcuda_tensor_t, byte_offset) == 40);
    assert!(size_of::<tcuda_managed_tensor_t>() == 80);
    assert!(offset_of!(tcuda_managed_tensor_t, tensor) == 32);
};
