//! Communicators and their tensors, for the tests of both files.

use crate::kit::*;
use crate::tensor::Managed;
use crate::{get, ok};
use std::ptr::null_mut;
use tcuda::base::dlpack::tcuda_tensor_t;
use tcuda::base::dtype::DType;
use tcuda::base::status::tcuda_status_t::{self, *};
use tcuda::capi::communicator::*;
use tcuda::capi::copy::tcuda_copy;

pub(crate) type Comm = tcuda_communicator_t;

pub(crate) fn options(timeout_ms: u32, non_blocking: i32) -> tcuda_communicator_options_t {
    tcuda_communicator_options_t { timeout_ms, non_blocking, ..Default::default() }
}

/// All ranks of a communicator, in this thread's hands.
pub(crate) struct World(pub(crate) Vec<Comm>);

impl World {
    pub(crate) fn new() -> World {
        World::with(&options(60_000, 0))
    }

    pub(crate) fn with(options: &tcuda_communicator_options_t) -> World {
        let devices: Vec<i32> = (0..device_count().min(8)).collect();
        let mut all = vec![null_mut(); devices.len()];
        ok!(tcuda_communicator_init_all(all.as_mut_ptr(), devices.as_ptr(), devices.len(), options));
        World(all)
    }

    pub(crate) fn size(&self) -> usize {
        self.0.len()
    }

    /// One call of every rank, together.
    pub(crate) fn all(&self, call: impl Fn(usize, Comm) -> tcuda_status_t) {
        together(&self.0, call);
    }

    pub(crate) fn tensors(&self, dtype: DType, count: usize) -> Vec<Tensor> {
        (0..self.size()).map(|rank| Tensor::new(rank as i32, dtype, count)).collect()
    }
}

pub(crate) fn together(ranks: &[Comm], call: impl Fn(usize, Comm) -> tcuda_status_t) {
    ok!(tcuda_communicator_group_start());
    for (rank, comm) in ranks.iter().enumerate() {
        ok!(call(rank, *comm));
    }
    ok!(tcuda_communicator_group_end());
}

impl Drop for World {
    fn drop(&mut self) {
        for comm in &self.0 {
            let status = tcuda_communicator_destroy(*comm);
            assert!(std::thread::panicking() || status == TCUDA_SUCCESS, "{}", message());
        }
    }
}

/// Packed elements on a device.
pub(crate) struct Tensor {
    memory: Managed,
    shape: Box<[i64; 1]>,
    pub(crate) view: tcuda_tensor_t,
}

impl Tensor {
    pub(crate) fn new(device: i32, dtype: DType, count: usize) -> Tensor {
        let memory = Managed::empty(device, dtype, &[count as i64]);
        let view = *memory.tensor();
        Tensor { memory, shape: Box::new([count as i64]), view }
    }

    pub(crate) fn of(device: i32, dtype: DType, bytes: &[u8]) -> Tensor {
        let tensor = Tensor::new(device, dtype, bytes.len() / dtype.size());
        ok!(tcuda_copy(tensor.view.data, bytes.as_ptr().cast(), bytes.len(), false));
        tensor
    }

    /// Some of its elements, as a tensor of their own; one at a time.
    pub(crate) fn part(&mut self, first: usize, count: usize) -> *const tcuda_tensor_t {
        self.shape[0] = count as i64;
        let offset = (first * self.memory.tensor().dtype.size()) as u64;
        self.view = tcuda_tensor_t { shape: self.shape.as_mut_ptr(), byte_offset: offset, ..*self.memory.tensor() };
        &self.view
    }

    pub(crate) fn get(&self) -> *const tcuda_tensor_t {
        self.memory.tensor()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.memory.shape()[0] as usize * self.view.dtype.size()
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes()];
        ok!(tcuda_copy(bytes.as_mut_ptr().cast(), self.view.data, bytes.len(), false));
        bytes
    }
}

pub(crate) fn unique_id() -> tcuda_communicator_id_t {
    get!(tcuda_communicator_id_t { bytes: [0; 128] }, out => tcuda_communicator_unique_id(out))
}

pub(crate) fn is_ready(comm: Comm) -> bool {
    get!(false, out => tcuda_communicator_query(comm, out))
}

pub(crate) struct Sent(pub(crate) Comm);
unsafe impl Send for Sent {}
