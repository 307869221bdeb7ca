//! What the tests of compiled functions are written with.

use crate::kit::*;
use crate::reference::{self, *};
use crate::{get, ok};
use std::ffi::CString;
use std::ptr::{null, null_mut};
use tcuda::base::dlpack::{tcuda_managed_tensor_t, tcuda_tensor_t};
use tcuda::base::dtype::DType;
use tcuda::base::status::tcuda_status_t::{self, *};
use tcuda::capi::copy::*;
use tcuda::capi::jit::*;
use tcuda::capi::tensor::*;

pub const ADD: &str = "template <typename T> T add(T x, T y) { return x + y; }";

/// A tensor in a storage of its own, with strides and an offset in elements.
pub struct Tensor {
    pub bytes: *mut tcuda_managed_tensor_t,
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    pub offset: usize,
    pub elements: usize,
}

impl Tensor {
    pub fn of(device: i32, dtype: DType, shape: &[i64], numbers: &[Number]) -> Tensor {
        let mut strides = vec![1; shape.len()];
        for dim in (1..shape.len()).rev() {
            strides[dim - 1] = strides[dim] * shape[dim].max(1);
        }
        Tensor::laid_out(device, dtype, shape, &strides, 0, numbers)
    }

    /// `numbers` fill the storage from its start.
    pub fn laid_out(device: i32, dtype: DType, shape: &[i64], strides: &[i64], offset: usize, numbers: &[Number]) -> Tensor {
        let contents: Vec<u8> = numbers.iter().flat_map(|number| reference::write(*number, dtype).unwrap()).collect();
        let size = [contents.len().max(1) as i64];
        let bytes = get!(null_mut(), out => tcuda_tensor_empty(out, device, U8, 1, size.as_ptr(), null_mut()));
        let made = Tensor { bytes, dtype, shape: shape.to_vec(), strides: strides.to_vec(), offset, elements: numbers.len() };
        ok!(tcuda_copy(made.start(), contents.as_ptr().cast(), contents.len(), false));
        made
    }

    pub fn reals(device: i32, dtype: DType, values: &[f64]) -> Tensor {
        let number = |value: &f64| match dtype.code {
            0 | 1 | 6 => Number::Integer(*value as i128),
            2 | 4 => Number::Real(*value),
            _ => Number::Complex(*value, 0.0),
        };
        Tensor::of(device, dtype, &[values.len() as i64], &values.iter().map(number).collect::<Vec<_>>())
    }

    pub fn start(&self) -> *mut std::ffi::c_void {
        unsafe { (*self.bytes).tensor.data }
    }

    pub fn tensor(&self) -> tcuda_tensor_t {
        tcuda_tensor_t {
            ndim: self.shape.len() as i32,
            dtype: self.dtype,
            shape: self.shape.as_ptr().cast_mut(),
            strides: self.strides.as_ptr().cast_mut(),
            byte_offset: (self.offset * self.dtype.size()) as u64,
            ..unsafe { (*self.bytes).tensor }
        }
    }

    /// The whole storage.
    pub fn read(&self) -> Vec<Number> {
        let mut out = vec![0u8; self.elements * self.dtype.size()];
        ok!(tcuda_copy(out.as_mut_ptr().cast(), self.start(), out.len(), false));
        out.chunks(self.dtype.size()).map(|bytes| reference::read(bytes, self.dtype)).collect()
    }

    /// Where the elements are in the storage, in the order of the indices, broadcast to a shape.
    pub fn positions(&self, shape: &[i64]) -> Vec<usize> {
        let missing = shape.len() - self.shape.len();
        let mut positions = vec![self.offset];
        for (dim, size) in shape.iter().enumerate() {
            let stride = if dim < missing || self.shape[dim - missing] == 1 { 0 } else { self.strides[dim - missing] };
            positions = positions.iter().flat_map(|at| (0..*size).map(move |index| at + (index * stride) as usize)).collect();
        }
        positions
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        ok!(tcuda_tensor_destroy(self.bytes));
    }
}

/// What a call made: read and destroyed.
pub struct Made(pub *mut tcuda_managed_tensor_t);

impl Made {
    pub fn tensor(&self) -> &tcuda_tensor_t {
        unsafe { &(*self.0).tensor }
    }

    pub fn shape(&self) -> &[i64] {
        unsafe { std::slice::from_raw_parts(self.tensor().shape, self.tensor().ndim as usize) }
    }

    pub fn strides(&self) -> &[i64] {
        unsafe { std::slice::from_raw_parts(self.tensor().strides, self.tensor().ndim as usize) }
    }

    /// Elements as they lie in memory.
    pub fn read(&self) -> Vec<Number> {
        let tensor = self.tensor();
        let count: i64 = self.shape().iter().product();
        let mut out = vec![0u8; count as usize * tensor.dtype.size()];
        ok!(tcuda_copy(out.as_mut_ptr().cast(), tensor.data, out.len(), false));
        out.chunks(tensor.dtype.size()).map(|bytes| reference::read(bytes, tensor.dtype)).collect()
    }

    pub fn reals(&self) -> Vec<f64> {
        let real = |number| match number {
            Number::Integer(value) => value as f64,
            Number::Real(value) => value,
            Number::Complex(real, imaginary) => {
                assert_eq!(imaginary, 0.0);
                real
            }
        };
        self.read().into_iter().map(real).collect()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        ok!(tcuda_tensor_destroy(self.0));
    }
}

/// A function for the length of a test.
pub struct Jit(pub tcuda_jit_t);

impl Jit {
    pub fn new(source: &str, scalars: &[tcuda_jit_scalar_t]) -> Jit {
        let source = CString::new(source).unwrap();
        Jit(get!(null_mut(), out => tcuda_jit_create(out, source.as_ptr(), scalars.as_ptr(), scalars.len())))
    }

    pub fn multi(source: &str, outputs: i32, scalars: &[tcuda_jit_scalar_t]) -> Jit {
        let source = CString::new(source).unwrap();
        Jit(get!(null_mut(), out => tcuda_jit_create_multi_output(out, source.as_ptr(), outputs, scalars.as_ptr(), scalars.len())))
    }

    pub fn try_call(
        &self,
        inputs: &[&Tensor],
        scalars: &[tcuda_jit_scalar_t],
        outputs: &mut [*mut tcuda_managed_tensor_t],
    ) -> tcuda_status_t {
        let tensors: Vec<tcuda_tensor_t> = inputs.iter().map(|input| input.tensor()).collect();
        let pointers: Vec<*const tcuda_tensor_t> = tensors.iter().map(|tensor| &raw const *tensor).collect();
        let stream = handle(CURRENT_STREAM);
        let stream = if inputs.iter().any(|input| unsafe { (*input.bytes).tensor.device.device_id } != 0) { null_mut() } else { stream };
        unsafe { tcuda_jit_call(self.0, outputs.as_mut_ptr(), pointers.as_ptr(), pointers.len(), scalars.as_ptr(), scalars.len(), stream) }
    }

    pub fn call_with(&self, inputs: &[&Tensor], scalars: &[tcuda_jit_scalar_t]) -> Made {
        let mut out = [null_mut()];
        let status = self.try_call(inputs, scalars, &mut out);
        assert_eq!(status, TCUDA_SUCCESS, "{}", message());
        Made(out[0])
    }

    pub fn call(&self, inputs: &[&Tensor]) -> Made {
        self.call_with(inputs, &[])
    }

    pub fn call_out(&self, outputs: &[&Tensor], inputs: &[&Tensor]) -> tcuda_status_t {
        let tensors: Vec<tcuda_tensor_t> = outputs.iter().chain(inputs).map(|tensor| tensor.tensor()).collect();
        let pointers: Vec<*const tcuda_tensor_t> = tensors.iter().map(|tensor| &raw const *tensor).collect();
        let (to, from) = pointers.split_at(outputs.len());
        unsafe { tcuda_jit_call_out(self.0, to.as_ptr(), to.len(), from.as_ptr(), from.len(), null(), 0, handle(CURRENT_STREAM)) }
    }
}

impl Drop for Jit {
    fn drop(&mut self) {
        ok!(tcuda_jit_destroy(self.0));
    }
}

pub fn scalar(name: &'static std::ffi::CStr, kind: i32, integer: i64, real: f64, imag: f64) -> tcuda_jit_scalar_t {
    tcuda_jit_scalar_t { name: name.as_ptr(), kind, integer, real, imag }
}

pub fn real(name: &'static std::ffi::CStr, value: f64) -> tcuda_jit_scalar_t {
    scalar(name, TCUDA_SCALAR_REAL, 0, value, 0.0)
}

#[track_caller]
pub fn refused(status: tcuda_status_t, expected: tcuda_status_t, words: &[&str]) {
    assert_eq!(status, expected, "{}", message());
    for word in words {
        assert!(message().contains(word), "'{word}' is not in: {}", message());
    }
}
