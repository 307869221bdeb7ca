//! tcuda/philox.cuh in a program's own kernel: the numbers of a state are those that a tensor gets of the same generator.

use crate::kit::*;
use crate::random::{Block, F32, F64, Own, U32};
use crate::{get, ok, tests};
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use tcuda::base::dlpack::tcuda_tensor_t;
use tcuda::base::dtype::DType;
use tcuda::base::status::tcuda_status_t;
use tcuda::capi::distributions::*;
use tcuda::capi::kernel::*;
use tcuda::capi::random::*;
use tcuda::random::tcuda_philox_state_t;

tests![
    a_kernels_numbers_are_the_tensors: [KernelCompiler],
    a_captured_state_is_read_on_the_device: [KernelCompiler],
    numbers_below_a_bound: [KernelCompiler],
];

const SOURCE: &str = concat!(include_str!("../../include/tcuda/philox.cuh"), include_str!("../data/philox_kernels.cu"));
/// 2 multiprocessors of 1024 threads: torch's largest launch there has T threads, as the kernels here.
const T: usize = 2048;
const EACH: usize = 48;
const OFFSET: u64 = 1000;
const SEED: u64 = 0xfedc_ba98_7654_3210;

struct Kernels(tcuda_kernel_module_t);

impl Kernels {
    fn compiled() -> Kernels {
        let source = CString::new(SOURCE).unwrap();
        Kernels(get!(null_mut(), out => tcuda_kernel_compile(out, source.as_ptr(), -1, null())))
    }

    /// What the kernel of this name makes of a state.
    fn run(&self, name: &CStr, dtype: DType, state: &tcuda_philox_state_t, bound: u32) -> Vec<u8> {
        let kernel = get!(null_mut(), out => tcuda_kernel_get(out, self.0, name.as_ptr()));
        let out = Block::new(dtype, T * EACH);
        let argument = |kind, size, value| tcuda_argument_t { kind, size, value };
        let arguments = [
            argument(TCUDA_ARGUMENT_POINTER, 0, tcuda_argument_value_t { pointer: out.memory }),
            argument(TCUDA_ARGUMENT_BYTES, size_of_val(state), tcuda_argument_value_t { pointer: (&raw const *state).cast() }),
            argument(TCUDA_ARGUMENT_I32, 0, tcuda_argument_value_t { i32: EACH as i32 }),
            argument(TCUDA_ARGUMENT_I32, 0, tcuda_argument_value_t { i32: bound as i32 }),
        ];
        let (grid, block) = ([T as u32 / 256, 1, 1], [256, 1, 1]);
        ok!(tcuda_kernel_launch(kernel, grid.as_ptr(), block.as_ptr(), 0, arguments.as_ptr(), arguments.len(), NULL));
        out.bytes()
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        ok!(tcuda_kernel_module_destroy(self.0));
    }
}

fn seeded() -> Own {
    let own = Own::seeded(SEED);
    ok!(tcuda_generator_set_geometry(own.0, TCUDA_GEOMETRY_NAMED, 2, 1024));
    ok!(tcuda_generator_set_offset(own.0, OFFSET));
    own
}

/// What tensors get from OFFSET on.
fn drawn(own: &Own, dtype: DType, fill: impl Fn(*const tcuda_tensor_t) -> tcuda_status_t) -> Vec<u8> {
    let mut block = Block::new(dtype, T * EACH);
    ok!(tcuda_generator_set_offset(own.0, OFFSET));
    ok!(fill(&block.tensor()));
    block.bytes()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Bit for bit; a tensor of [0, 1) has 0 for the 1 that the header may give.
fn compare(kernels: &Kernels, own: &Own, state: &tcuda_philox_state_t) {
    let g = own.0;
    let expected = drawn(own, U32, |out| unsafe { tcuda_random_integers_all(out, g, NULL) });
    assert!(kernels.run(c"words", U32, state, 0) == expected, "words");
    let expected = drawn(own, F32, |out| unsafe { tcuda_random_uniform(out, 0.0, 1.0, g, NULL) });
    let found: Vec<f32> = floats(&kernels.run(c"uniforms", F32, state, 0)).iter().map(|x| x % 1.0).collect();
    assert!(found == floats(&expected), "uniform numbers");
    let expected = drawn(own, F64, |out| unsafe { tcuda_random_uniform(out, 0.0, 1.0, g, NULL) });
    let found: Vec<f64> = doubles(&kernels.run(c"uniform_doubles", F64, state, 0)).iter().map(|x| x % 1.0).collect();
    assert!(found == doubles(&expected), "uniform doubles");
    let expected = drawn(own, F32, |out| unsafe { tcuda_random_normal(out, 0.0, 1.0, g, NULL) });
    assert!(floats(&kernels.run(c"normals", F32, state, 0)) == floats(&expected), "normal numbers");
    let expected = drawn(own, F64, |out| unsafe { tcuda_random_normal(out, 0.0, 1.0, g, NULL) });
    assert!(doubles(&kernels.run(c"normal_doubles", F64, state, 0)) == doubles(&expected), "normal doubles");
}

fn a_kernels_numbers_are_the_tensors() {
    let (kernels, own) = (Kernels::compiled(), seeded());
    let mut state: tcuda_philox_state_t = unsafe { std::mem::zeroed() };
    ok!(tcuda_generator_philox_state(&mut state, own.0, 2 * EACH as u64, NULL));
    assert_eq!(own.offset(), OFFSET + 2 * EACH as u64);
    compare(&kernels, &own, &state);
}

fn a_captured_state_is_read_on_the_device() {
    let (kernels, own) = (Kernels::compiled(), seeded());
    let memory = allocate(16, NULL);
    let on_host = [SEED, OFFSET - 40];
    ok!(tcuda::capi::copy::tcuda_copy(memory, on_host.as_ptr().cast::<c_void>(), 16, false));
    let state = tcuda_philox_state_t { seed: memory as u64, offset: memory as u64 + 8, offset_intragraph: 40, captured: 1, reserved: 0 };
    compare(&kernels, &own, &state);
    free(memory);
}

/// Lemire's way, over the words of the same state: a product whose low half is below 2^32 mod bound is drawn again.
fn numbers_below_a_bound() {
    let (kernels, own) = (Kernels::compiled(), seeded());
    let mut state: tcuda_philox_state_t = unsafe { std::mem::zeroed() };
    ok!(tcuda_generator_philox_state(&mut state, own.0, 8 * EACH as u64, NULL));
    // Two launches, one behind the other, so that those who draw again have words enough.
    let first = words(&kernels.run(c"words", U32, &state, 0));
    let further = tcuda_philox_state_t { offset: state.offset + EACH as u64, ..state };
    let second = words(&kernels.run(c"words", U32, &further, 0));
    for bound in [1, 2, 6, 1_000_003, 1 << 31, 3 << 30, u32::MAX] {
        let found = words(&kernels.run(c"below", U32, &state, bound));
        let again = ((1u64 << 32) % u64::from(bound)) as u32;
        for t in 0..T {
            let mut own_words = (0..EACH).map(|i| first[t + i * T]).chain((0..EACH).map(|i| second[t + i * T]));
            for i in 0..EACH {
                let product = own_words.by_ref().map(|word| u64::from(word) * u64::from(bound)).find(|product| *product as u32 >= again);
                assert_eq!(u64::from(found[t + i * T]), product.unwrap() >> 32, "number {i} of thread {t} below {bound}");
            }
        }
    }
}
