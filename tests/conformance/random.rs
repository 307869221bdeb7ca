//! Random numbers in tensors: torch's bits, its order over strides, what it refuses, and that they are random.

use crate::kit::*;
use crate::{fails, get, ok, tests};
use sha2::{Digest, Sha256};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tcuda::base::dlpack::{CPU, CUDA, tcuda_place_t, tcuda_tensor_t};
use tcuda::base::dtype::DType;
use tcuda::base::status::tcuda_status_t;
use tcuda::capi::distributions::*;
use tcuda::capi::random::*;
use tcuda::capi::sim::{tcuda_sim_call_count, tcuda_sim_clear_faults, tcuda_sim_fail_at};

tests![
    the_numbers_are_torchs,
    every_type_gets_what_its_width_says,
    strides_only_say_where_numbers_go,
    strided_kernels_give_what_dense_ones_give,
    an_unaligned_tensor_gets_the_same_numbers,
    nothing_beside_the_tensor_is_written,
    longer_tensors_begin_like_shorter_ones,
    geometries_change_the_order_and_portable_never_changes,
    uniform_ends_are_torchs,
    geometric_of_the_ends_is_torchs,
    no_elements_draw_nothing,
    probabilities_come_from_a_tensor,
    permutations_have_every_number_once,
    permutations_are_uniform,
    distributions_have_their_moments,
    what_torch_refuses_is_refused,
    a_failed_call_draws_nothing: [Faults, Unwatched],
    a_generator_draws_on_its_device: [TwoDevices],
];

/// cudaErrorOperatingSystem: no library takes it for anything special.
const OPERATING_SYSTEM: i32 = 304;

pub const F32: DType = DType { code: 2, bits: 32, lanes: 1 };
pub const F64: DType = DType { code: 2, bits: 64, lanes: 1 };
const F16: DType = DType { code: 2, bits: 16, lanes: 1 };
const BF16: DType = DType { code: 4, bits: 16, lanes: 1 };
pub const I64: DType = DType { code: 0, bits: 64, lanes: 1 };
const I32: DType = DType { code: 0, bits: 32, lanes: 1 };
pub const U32: DType = DType { code: 1, bits: 32, lanes: 1 };
const U8: DType = DType { code: 1, bits: 8, lanes: 1 };
const BOOL: DType = DType { code: 6, bits: 8, lanes: 1 };
const C64: DType = DType { code: 5, bits: 64, lanes: 1 };

fn dtype(name: &str) -> DType {
    match name {
        "f32" => F32,
        "f64" => F64,
        "f16" => F16,
        "bf16" => BF16,
        "i64" => I64,
        "i32" => I32,
        "u8" => U8,
        "b1" => BOOL,
        _ => panic!("{name}"),
    }
}

/// A generator with a seed, and an H100's geometry, for the length of a test.
pub struct Own(pub tcuda_generator_t);

impl Own {
    pub fn seeded(seed: u64) -> Own {
        let own = Own(get!(null_mut(), out => tcuda_generator_create(out, -1)));
        ok!(tcuda_generator_manual_seed(own.0, seed));
        ok!(tcuda_generator_set_geometry(own.0, TCUDA_GEOMETRY_NAMED, 132, 2048));
        own
    }

    pub fn offset(&self) -> u64 {
        get!(0, out => tcuda_generator_get_offset(self.0, out))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        tcuda_generator_destroy(self.0);
    }
}

/// Device memory, zeroed, with a tensor over it.
pub struct Block {
    pub memory: *mut c_void,
    size: usize,
    shape: Vec<i64>,
    strides: Vec<i64>,
    dtype: DType,
    byte_offset: u64,
}

impl Block {
    pub fn new(dtype: DType, count: usize) -> Block {
        Block::strided(dtype, &[count as i64], &[1], 0, count)
    }

    /// `room` elements from the start of the memory, `skip` of them before the tensor.
    fn strided(dtype: DType, shape: &[i64], strides: &[i64], skip: usize, room: usize) -> Block {
        let size = room * dtype.size();
        let memory = allocate(size.max(1), NULL);
        ok!(tcuda::capi::copy::tcuda_memset_async(memory, 0, size.max(1), NULL));
        Block { memory, size, shape: shape.to_vec(), strides: strides.to_vec(), dtype, byte_offset: (skip * dtype.size()) as u64 }
    }

    pub fn tensor(&mut self) -> tcuda_tensor_t {
        tcuda_tensor_t {
            data: self.memory,
            device: tcuda_place_t { device_type: CUDA, device_id: device() },
            ndim: self.shape.len() as i32,
            dtype: self.dtype,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: self.byte_offset,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        bytes_of(self.memory, self.size, NULL)
    }

    /// All of the memory as numbers.
    fn values(&self) -> Vec<f64> {
        self.bytes().chunks(self.dtype.size()).map(|bytes| value(self.dtype, bytes)).collect()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        free(self.memory);
    }
}

fn value(dtype: DType, bytes: &[u8]) -> f64 {
    use tcuda::runtime::kernels::element::{bf16_to_f32, f16_to_f32};
    let word = |n: usize| (0..n).fold(0u64, |word, at| word | u64::from(bytes[at]) << (8 * at));
    match (dtype.code, dtype.bits) {
        (2, 64) => f64::from_bits(word(8)),
        (2, 32) => f32::from_bits(word(4) as u32).into(),
        (2, _) => f16_to_f32(word(2) as u16).into(),
        (4, _) => bf16_to_f32(word(2) as u16).into(),
        (0, bits) => ((word(bits as usize / 8) << (64 - bits)) as i64 >> (64 - bits)) as f64,
        (_, bits) => word(bits as usize / 8) as f64,
    }
}

type Call = Box<dyn Fn(&tcuda_tensor_t, tcuda_generator_t) -> tcuda_status_t>;

/// The operation of a line of the data, and the type of its tensor.
fn operation(text: &str) -> (DType, Call) {
    let parts: Vec<&str> = text.split(',').collect();
    let number = |at: usize| parts[at].parse::<f64>().unwrap();
    let integer = |at: usize| parts[at].parse::<i64>().unwrap();
    macro_rules! call {
        ($function:ident $(, $value:expr)*) => {{
            let values = ($($value,)*);
            Box::new(move |out: &tcuda_tensor_t, generator| {
                let _ = values;
                unsafe { call!(@ $function, out, generator, values $(, $value)*) }
            })
        }};
        (@ $function:ident, $out:ident, $generator:ident, $values:ident) => { $function($out, $generator, NULL) };
        (@ $function:ident, $out:ident, $generator:ident, $values:ident, $a:expr) => { $function($out, $values.0, $generator, NULL) };
        (@ $function:ident, $out:ident, $generator:ident, $values:ident, $a:expr, $b:expr) => {
            $function($out, $values.0, $values.1, $generator, NULL)
        };
    }
    let call: Call = match parts[0] {
        "uniform" => call!(tcuda_random_uniform, number(2), number(3)),
        "normal" => call!(tcuda_random_normal, number(2), number(3)),
        "log_normal" => call!(tcuda_random_log_normal, number(2), number(3)),
        "cauchy" => call!(tcuda_random_cauchy, number(2), number(3)),
        "exponential" => call!(tcuda_random_exponential, number(2)),
        "geometric" => call!(tcuda_random_geometric, number(2)),
        "bernoulli" => call!(tcuda_random_bernoulli, number(2)),
        "random_from_to" => call!(tcuda_random_integers, integer(2), integer(3)),
        "random" => call!(tcuda_random_integers_all),
        other => panic!("{other}"),
    };
    (dtype(parts[1]), call)
}

/// Every operation, case by case: the bytes, and the offset after it. randperm has an order of its own here.
fn the_numbers_are_torchs() {
    let mut generator = Own::seeded(0);
    let (mut count, mut compared) = (0, 0);
    for line in include_str!("../data/torch_random.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "case" {
            generator = Own::seeded(words[1].parse().unwrap());
            count = words[2].parse().unwrap();
            continue;
        }
        let offset: u64 = words[1].parse().unwrap();
        // The largest takes the simulated device too long; integers of few bytes stand for the rest.
        let skipped = backend() == "sim" && count > 1_000_000 && !words[0].starts_with("bernoulli,b1");
        if skipped || words[0].starts_with("randperm") {
            ok!(tcuda_generator_set_offset(generator.0, offset));
            continue;
        }
        let (dtype, call) = operation(words[0]);
        let mut block = Block::new(dtype, count);
        ok!(call(&block.tensor(), generator.0));
        assert_eq!(generator.offset(), offset, "{count} {line}");
        let bytes = block.bytes();
        let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, words[2], "{count} {}: other bits than torch's", words[0]);
        compared += 1;
    }
    assert_eq!(compared, if backend() == "sim" { 8 * 25 + 2 } else { 10 * 25 });
}

/// One uniform word a number: floats of all widths are the same number rounded, integers the same remainder, whatever the type.
fn every_type_gets_what_its_width_says() {
    const COUNT: usize = 1000;
    let uniform = |dtype| {
        let (mut block, generator) = (Block::new(dtype, COUNT), Own::seeded(5));
        ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, generator.0, NULL));
        block.values()
    };
    let exact = uniform(F32);
    assert!(exact.iter().all(|x| (0.0..1.0).contains(x)));
    for (dtype, error) in [(F16, 1.0 / 2048.0), (BF16, 1.0 / 256.0)] {
        let rounded = uniform(dtype);
        assert!(rounded.iter().zip(&exact).all(|(a, b)| (a - b).abs() <= error || *a == 0.0), "{dtype:?}");
    }
    let integers = |code, bits| {
        let (mut block, generator) = (Block::new(DType { code, bits, lanes: 1 }, COUNT), Own::seeded(5));
        ok!(tcuda_random_integers(&block.tensor(), 0, 100, generator.0, NULL));
        block.values()
    };
    let expected = integers(0, 64);
    assert!(expected.iter().all(|x| (0.0..100.0).contains(x)));
    for (code, bits) in [(0, 8), (0, 16), (0, 32), (1, 8), (1, 16), (1, 32), (1, 64), (2, 16), (2, 32), (2, 64), (4, 16)] {
        assert_eq!(integers(code, bits), expected, "code {code}, {bits} bits");
    }
    let ones = |code, bits| {
        let (mut block, generator) = (Block::new(DType { code, bits, lanes: 1 }, COUNT), Own::seeded(5));
        ok!(tcuda_random_bernoulli(&block.tensor(), 0.3, generator.0, NULL));
        block.values()
    };
    let expected = ones(2, 32);
    for (code, bits) in [(6, 8), (0, 8), (0, 16), (0, 32), (0, 64), (1, 8), (1, 16), (1, 32), (1, 64), (2, 16), (4, 16)] {
        assert_eq!(ones(code, bits), expected, "code {code}, {bits} bits");
    }
    let trials = |code, bits| {
        let (mut block, generator) = (Block::new(DType { code, bits, lanes: 1 }, COUNT), Own::seeded(5));
        ok!(tcuda_random_geometric(&block.tensor(), 0.5, generator.0, NULL));
        block.values()
    };
    let expected = trials(2, 32);
    for (code, bits) in [(0, 8), (0, 16), (0, 32), (0, 64), (1, 8), (1, 16), (1, 32), (1, 64), (2, 16), (4, 16)] {
        assert_eq!(trials(code, bits), expected, "code {code}, {bits} bits");
    }
    // The parts of complex numbers follow one another.
    let (mut complex, generator) = (Block::new(C64, COUNT / 2), Own::seeded(5));
    ok!(tcuda_random_uniform(&complex.tensor(), 0.0, 1.0, generator.0, NULL));
    complex.dtype = F32;
    assert_eq!(complex.values(), exact);
    let (mut normal, again) = (Block::new(F32, COUNT), Own::seeded(5));
    ok!(tcuda_random_normal(&normal.tensor(), 2.0, 3.0 / f64::sqrt(2.0), again.0, NULL));
    complex.dtype = C64;
    ok!(tcuda_generator_manual_seed(generator.0, 5));
    ok!(tcuda_random_normal(&complex.tensor(), 2.0, 3.0, generator.0, NULL));
    complex.dtype = F32;
    assert_eq!(complex.values(), normal.values());
}

/// The order is that of memory, not of the shape; gaps stay as they are.
fn strides_only_say_where_numbers_go() {
    for dtype in [F32, F64, F16, BF16, U8, I64] {
        let draw = |block: &mut Block| {
            let generator = Own::seeded(9);
            match dtype {
                U8 | I64 => ok!(tcuda_random_integers(&block.tensor(), 1, 200, generator.0, NULL)),
                _ => ok!(tcuda_random_uniform(&block.tensor(), 1.0, 2.0, generator.0, NULL)),
            }
            block.values()
        };
        let packed = draw(&mut Block::new(dtype, 60));
        // Dense in any order of the dimensions.
        for (shape, strides) in [([3, 4, 5], [20, 5, 1]), ([5, 4, 3], [1, 5, 20]), ([4, 3, 5], [5, 20, 1]), ([60, 1, 1], [1, i64::MAX, 0])]
        {
            assert_eq!(draw(&mut Block::strided(dtype, &shape, &strides, 0, 60)), packed, "{strides:?}");
        }
        // Rows of 5 in a memory with rows of 8, and every third element.
        let rows = draw(&mut Block::strided(dtype, &[12, 5], &[8, 1], 0, 96));
        let columns = draw(&mut Block::strided(dtype, &[5, 12], &[1, 8], 0, 96));
        for (at, found) in rows.iter().enumerate() {
            let expected = if at % 8 < 5 { packed[at / 8 * 5 + at % 8] } else { 0.0 };
            assert_eq!((*found, columns[at]), (expected, expected), "{dtype:?} {at}");
        }
        let spread = draw(&mut Block::strided(dtype, &[60], &[3], 0, 180));
        assert!(spread.iter().enumerate().all(|(at, x)| *x == if at % 3 == 0 { packed[at / 3] } else { 0.0 }));
    }
}

/// The kernels for strides and those for dense tensors agree, for every distribution and type.
fn strided_kernels_give_what_dense_ones_give() {
    const COUNT: i64 = 700;
    type Fill = fn(&tcuda_tensor_t, tcuda_generator_t) -> tcuda_status_t;
    let fills: [(&str, Fill); 9] = [
        ("uniform", |out, g| unsafe { tcuda_random_uniform(out, -1.0, 3.0, g, NULL) }),
        ("normal", |out, g| unsafe { tcuda_random_normal(out, 1.0, 2.0, g, NULL) }),
        ("log-normal", |out, g| unsafe { tcuda_random_log_normal(out, 0.0, 1.0, g, NULL) }),
        ("exponential", |out, g| unsafe { tcuda_random_exponential(out, 2.0, g, NULL) }),
        ("cauchy", |out, g| unsafe { tcuda_random_cauchy(out, 0.0, 1.0, g, NULL) }),
        ("geometric", |out, g| unsafe { tcuda_random_geometric(out, 0.2, g, NULL) }),
        ("bernoulli", |out, g| unsafe { tcuda_random_bernoulli(out, 0.4, g, NULL) }),
        ("integers", |out, g| unsafe { tcuda_random_integers(out, 0, 2, g, NULL) }),
        ("all integers", |out, g| unsafe { tcuda_random_integers_all(out, g, NULL) }),
    ];
    let integers = [(6, 8), (0, 8), (0, 16), (0, 32), (0, 64), (1, 8), (1, 16), (1, 32), (1, 64)];
    for (code, bits) in integers.into_iter().chain([(2, 16), (2, 32), (2, 64), (4, 16)]) {
        let dtype = DType { code, bits, lanes: 1 };
        for (name, fill) in fills {
            let draw = |block: &mut Block| {
                let generator = Own::seeded(31);
                // Two rounds of this geometry's threads.
                ok!(tcuda_generator_set_geometry(generator.0, TCUDA_GEOMETRY_NAMED, 1, 256));
                (fill(&block.tensor(), generator.0), block.bytes(), generator.offset())
            };
            let (status, dense, offset) = draw(&mut Block::new(dtype, COUNT as usize));
            let (again, spread, same) = draw(&mut Block::strided(dtype, &[COUNT], &[2], 0, 2 * COUNT as usize));
            let floating = matches!(code, 2 | 4);
            let takes = floating || matches!(name, "bernoulli" | "integers" | "all integers") || name == "geometric" && code != 6;
            assert_eq!((status == tcuda_status_t::TCUDA_SUCCESS, again, same), (takes, status, offset), "{name} {dtype:?}");
            let width = dtype.size();
            let every_second: Vec<u8> = spread.chunks(2 * width).flat_map(|pair| &pair[..width]).copied().collect();
            assert!(dense == every_second, "{name} {dtype:?}");
            assert!(!takes || dense.iter().any(|byte| *byte != 0), "{name} {dtype:?}");
        }
    }
}

fn an_unaligned_tensor_gets_the_same_numbers() {
    for dtype in [F32, F64, F16, U8] {
        let draw = |skip: usize, count: usize| {
            let (mut block, generator) = (Block::strided(dtype, &[count as i64], &[1], skip, count + 16), Own::seeded(3));
            match dtype {
                U8 => ok!(tcuda_random_bernoulli(&block.tensor(), 0.5, generator.0, NULL)),
                _ => ok!(tcuda_random_normal(&block.tensor(), 0.0, 1.0, generator.0, NULL)),
            }
            block.values()
        };
        for count in [1, 7, 8, 255, 300_001] {
            let aligned = draw(0, count);
            for skip in [1, 3] {
                let shifted = draw(skip, count);
                assert!(shifted[skip..skip + count] == aligned[..count], "{dtype:?} {count} {skip}");
                assert!(shifted[..skip].iter().chain(&shifted[skip + count..]).all(|x| *x == 0.0));
            }
        }
    }
}

fn nothing_beside_the_tensor_is_written() {
    for dtype in [F32, F64, F16, BF16, U8, I32] {
        for count in (1..20).chain([255, 256, 257, 270_335, 270_336, 270_337, 270_344]) {
            let (mut block, generator) = (Block::strided(dtype, &[count as i64], &[1], 0, count + 32), Own::seeded(3));
            match dtype {
                U8 | I32 => ok!(tcuda_random_integers(&block.tensor(), 1, 5, generator.0, NULL)),
                _ => ok!(tcuda_random_uniform(&block.tensor(), 1.0, 2.0, generator.0, NULL)),
            }
            let values = block.values();
            assert!(values[..count].iter().all(|x| *x > 0.0), "{dtype:?} {count}");
            assert!(values[count..].iter().all(|x| *x == 0.0), "{dtype:?} {count}");
        }
    }
}

fn longer_tensors_begin_like_shorter_ones() {
    let draw = |count| {
        let (mut block, generator) = (Block::new(F32, count), Own::seeded(11));
        ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, generator.0, NULL));
        (block.values(), generator.offset())
    };
    // The whole of the geometry's threads, and then some.
    let (long, offset) = draw(4 * 270_336 + 5);
    assert_eq!(offset, 8);
    for (count, offset) in [(1, 4), (1000, 4), (270_336, 4), (270_337, 4), (4 * 270_336, 4)] {
        let (short, found) = draw(count);
        assert!(short == long[..count] && found == offset, "{count}");
    }
}

fn geometries_change_the_order_and_portable_never_changes() {
    const COUNT: usize = 600_000;
    let draw = |kind, multiprocessors, threads| {
        let (mut block, generator) = (Block::new(F32, COUNT), Own::seeded(0));
        ok!(tcuda_generator_set_geometry(generator.0, kind, multiprocessors, threads));
        ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, generator.0, NULL));
        (block.bytes(), generator.offset())
    };
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * at + byte]));
    let (h100, offset) = draw(TCUDA_GEOMETRY_NAMED, 132, 2048);
    // The second value of thread 0, as torch has it on that device.
    assert_eq!((word(&h100, 0), word(&h100, 270_336), offset), (0x3ecc_4fd2, 0x3f61_69c6, 4));
    let (a100, _) = draw(TCUDA_GEOMETRY_NAMED, 108, 2048);
    assert!(a100[..4 * 221_184] == h100[..4 * 221_184] && word(&a100, 221_184) == 0x3f61_69c6 && a100 != h100);
    let (portable, _) = draw(TCUDA_GEOMETRY_PORTABLE, 0, 0);
    assert_eq!((word(&portable, 0), word(&portable, 1 << 18)), (0x3ecc_4fd2, 0x3f61_69c6));
    let digest: String = Sha256::digest(&portable)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, "e0b28986b9d8008a");
}

/// What is rounded to `to` is `from`; what passes `to`, because the range was rounded up, stays (torch's bits).
fn uniform_ends_are_torchs() {
    for (dtype, from, to, past) in [(BF16, -0.9, 0.1, 1261), (BF16, -1000.0, 3.0, 1012), (F16, -1000.0, 0.3, 186), (F32, -0.9, 0.1, 0)] {
        let draw = |stride: i64| {
            let (mut block, generator) = (Block::strided(dtype, &[1 << 20], &[stride], 0, (stride as usize) << 20), Own::seeded(0));
            ok!(tcuda_random_uniform(&block.tensor(), from, to, generator.0, NULL));
            block.values().into_iter().step_by(stride as usize).collect::<Vec<_>>()
        };
        let values = draw(1);
        let end = match dtype {
            F32 => f64::from(to as f32),
            BF16 => f64::from(f32::from_bits((to as f32).to_bits().wrapping_add(0x8000) & 0xffff_0000)),
            _ => f64::from(tcuda::runtime::kernels::element::f16_to_f32(tcuda::runtime::kernels::element::f32_to_f16(to as f32))),
        };
        assert_eq!(values.iter().filter(|x| **x == end).count(), 0, "{dtype:?} {from} {to}");
        assert_eq!(values.iter().filter(|x| **x > end).count(), past, "{dtype:?} {from} {to}");
        assert!(values == draw(2));
    }
}

/// 1 - p is 1, or 0: the logarithm by which torch divides is 0, or infinite.
fn geometric_of_the_ends_is_torchs() {
    for (p, expected) in [(1e-8, f64::NEG_INFINITY), (1.0 - 1e-9, 0.0)] {
        for stride in [1, 2] {
            let (mut block, generator) = (Block::strided(F32, &[100], &[stride], 0, 200), Own::seeded(0));
            ok!(tcuda_random_geometric(&block.tensor(), p, generator.0, NULL));
            assert!(block.values().iter().step_by(stride as usize).take(100).all(|x| *x == expected), "{p} {:?}", &block.values()[..4]);
        }
    }
}

fn no_elements_draw_nothing() {
    let generator = Own::seeded(1);
    let mut shape = [3i64, 0];
    let tensor = tcuda_tensor_t {
        data: null_mut(),
        device: tcuda_place_t { device_type: CUDA, device_id: device() },
        ndim: 2,
        dtype: F32,
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    };
    ok!(tcuda_random_uniform(&tensor, 0.0, 1.0, generator.0, NULL));
    ok!(tcuda_random_normal(&tensor, 0.0, 1.0, generator.0, NULL));
    ok!(tcuda_random_integers_all(&tensor, generator.0, NULL));
    let mut none = [0i64];
    ok!(tcuda_random_permutation(&tcuda_tensor_t { ndim: 1, shape: none.as_mut_ptr(), ..tensor }, generator.0, NULL));
    assert_eq!(generator.offset(), 0);
    // torch draws here.
    ok!(tcuda_random_bernoulli_tensor(&tensor, &tensor, generator.0, NULL));
    assert_eq!(generator.offset(), 12);
    // The checks are the same as for others.
    fails!(INVALID_ARGUMENT, tcuda_random_uniform(&tensor, 2.0, 1.0, generator.0, NULL));
}

/// The words of the uniform numbers that torch draws for it, four elements a thread.
fn probabilities_come_from_a_tensor() {
    const COUNT: usize = 1001;
    let (mut uniform, generator) = (Block::new(F32, 4 * COUNT), Own::seeded(21));
    // A thread of this geometry is element t of four rows.
    ok!(tcuda_generator_set_geometry(generator.0, TCUDA_GEOMETRY_NAMED, 1, 256));
    ok!(tcuda_random_uniform(&uniform.tensor(), 0.0, 1.0, generator.0, NULL));
    let uniform = uniform.values();
    // Thread t of the tensor's order for t below 256: rows of 256.
    let number = |at: usize| uniform[at / 4 + 256 * (at % 4)];
    for p_type in [F32, F64, F16, BF16] {
        let (mut p, filler) = (Block::new(p_type, COUNT), Own::seeded(4));
        ok!(tcuda_random_uniform(&p.tensor(), 0.0, 1.0, filler.0, NULL));
        let chances = p.values();
        for dtype in [F32, BOOL, F16, I64, F64] {
            let mut out = Block::new(dtype, COUNT);
            ok!(tcuda_generator_manual_seed(generator.0, 21));
            ok!(tcuda_random_bernoulli_tensor(&out.tensor(), &p.tensor(), generator.0, NULL));
            assert_eq!(generator.offset(), 12);
            for (at, one) in out.values().into_iter().enumerate() {
                assert_eq!(one == 1.0, number(at) <= chances[at], "{dtype:?} {p_type:?} {at}");
            }
        }
    }
    // Of columns, with a probability for each: both want the columns outside. With one for each element, in rows, the two differ, and the
    // order is that of the shape.
    let mut out = Block::strided(U8, &[5, 3], &[1, 5], 0, 15);
    let mut draw = |p: &mut Block| {
        let chances = [0.0f32, 1.0, 0.5].repeat(5);
        ok!(tcuda::capi::copy::tcuda_copy_async(p.memory, chances.as_ptr().cast(), p.size, NULL));
        ok!(tcuda_generator_manual_seed(generator.0, 21));
        ok!(tcuda_random_bernoulli_tensor(&out.tensor(), &p.tensor(), generator.0, NULL));
        out.values()
    };
    let chance = |column: usize| [0.0, 1.0, 0.5][column];
    let of_columns = draw(&mut Block::new(F32, 3));
    let of_elements = draw(&mut Block::strided(F32, &[5, 3], &[3, 1], 0, 15));
    for (row, column) in (0..15).map(|at| (at / 3, at % 3)) {
        let at = row + 5 * column;
        assert_eq!(of_columns[at] == 1.0, number(at) <= chance(column), "{row} {column}");
        assert_eq!(of_elements[at] == 1.0, number(3 * row + column) <= chance(column), "{row} {column}");
    }
    let mut p = Block::new(F32, 3);
    fails!(INVALID_ARGUMENT, tcuda_random_bernoulli_tensor(&p.tensor(), &out.tensor(), generator.0, NULL));
    let mut long = Block::new(F32, 4);
    let message = fails!(INVALID_ARGUMENT, tcuda_random_bernoulli_tensor(&p.tensor(), &long.tensor(), generator.0, NULL));
    assert!(message.contains("broadcast"), "{message}");
    // Memory that is read and written at once.
    let mut part = Block::strided(F32, &[4], &[1], 0, 4);
    let (mut shape, mut strides) = ([1i64], [1i64]);
    let inside = tcuda_tensor_t { ndim: 1, shape: shape.as_mut_ptr(), strides: strides.as_mut_ptr(), ..part.tensor() };
    fails!(INVALID_ARGUMENT, tcuda_random_bernoulli_tensor(&part.tensor(), &inside, generator.0, NULL));
    assert_eq!(generator.offset(), 12);
    ok!(tcuda_random_bernoulli_tensor(&part.tensor(), &part.tensor(), generator.0, NULL));
    // Of a size of 1 the stride says nothing.
    let mut row = Block::strided(F32, &[1, 4], &[4, 1], 0, 4);
    let (mut shape, mut strides) = ([1i64, 4], [77i64, 1]);
    let same = tcuda_tensor_t { shape: shape.as_mut_ptr(), strides: strides.as_mut_ptr(), ..row.tensor() };
    ok!(tcuda_random_bernoulli_tensor(&row.tensor(), &same, generator.0, NULL));
}

fn permutations_have_every_number_once() {
    let generator = Own::seeded(17);
    let mut offset = 0;
    for (dtype, count) in
        [(I64, 1), (I64, 2), (I32, 3), (U8, 256), (F16, 1000), (I64, 1023), (I64, 1024), (I64, 1025), (F32, 65536), (I32, 100_003)]
    {
        let mut block = Block::strided(dtype, &[count], &[2], 0, 2 * count as usize);
        ok!(tcuda_random_permutation(&block.tensor(), generator.0, NULL));
        let values = block.values();
        assert!(values.iter().skip(1).step_by(2).all(|x| *x == 0.0));
        let mut numbers: Vec<usize> = values.iter().step_by(2).map(|x| *x as usize).collect();
        let fixed = numbers.iter().enumerate().filter(|(at, number)| at == *number).count();
        assert!(count < 100 || fixed < 10, "{fixed} of {count} are where they were");
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..count as usize), "{dtype:?} {count}");
        offset += 4;
        assert_eq!(generator.offset(), offset);
    }
    let mut small = Block::new(U8, 257);
    assert!(fails!(INVALID_ARGUMENT, tcuda_random_permutation(&small.tensor(), generator.0, NULL)).contains("too large"));
    small.shape = vec![16, 16];
    small.strides = vec![16, 1];
    fails!(INVALID_ARGUMENT, tcuda_random_permutation(&small.tensor(), generator.0, NULL));
}

/// Chi-squared over all orders of four numbers, where a number goes in a long permutation, and whether it is even.
fn permutations_are_uniform() {
    let generator = Own::seeded(99);
    let draw = |count: usize| {
        let mut block = Block::new(I32, count);
        ok!(tcuda_random_permutation(&block.tensor(), generator.0, NULL));
        block.values().into_iter().map(|x| x as usize).collect::<Vec<_>>()
    };
    let mut orders = std::collections::BTreeMap::new();
    for _ in 0..2400 {
        *orders.entry(draw(4)).or_insert(0u32) += 1;
    }
    assert_eq!(orders.len(), 24);
    let chi: f64 = orders.values().map(|n| (f64::from(*n) - 100.0).powi(2) / 100.0).sum();
    // 23 degrees of freedom: above 56 once in 7,000 times.
    assert!(chi < 56.0, "{chi}");
    let (mut even, mut places) = (0, [0u32; 16]);
    for _ in 0..200 {
        let permutation = draw(2048);
        let mut seen = vec![false; 2048];
        let mut cycles = 0;
        for start in 0..2048 {
            let mut at = start;
            cycles += usize::from(!seen[at]);
            while !seen[at] {
                seen[at] = true;
                at = permutation[at];
            }
        }
        even += usize::from((2048 - cycles) % 2 == 0);
        for at in [0, 1, 777, 2047] {
            places[permutation[at] / 128] += 1;
        }
    }
    assert!((70..=130).contains(&even), "{even} of 200 are even");
    let chi: f64 = places.iter().map(|n| (f64::from(*n) - 50.0).powi(2) / 50.0).sum();
    assert!(chi < 45.0, "{chi} {places:?}");
}

/// Mean and variance of 100,000 numbers, within five deviations of what they should be.
fn distributions_have_their_moments() {
    const COUNT: usize = 100_000;
    let check = |name: &str, mean: f64, variance: f64, call: &dyn Fn(&tcuda_tensor_t, tcuda_generator_t) -> tcuda_status_t| {
        for dtype in [F32, F64] {
            let (mut block, generator) = (Block::new(dtype, COUNT), Own::seeded(1234));
            ok!(tcuda_generator_set_geometry(generator.0, TCUDA_GEOMETRY_PORTABLE, 0, 0));
            ok!(call(&block.tensor(), generator.0));
            let values = block.values();
            let found = values.iter().sum::<f64>() / COUNT as f64;
            let spread = values.iter().map(|x| (x - found).powi(2)).sum::<f64>() / COUNT as f64;
            assert!((found - mean).abs() < 5.0 * (variance / COUNT as f64).sqrt(), "{name} {dtype:?}: mean {found}");
            assert!((spread / variance - 1.0).abs() < 0.1, "{name} {dtype:?}: variance {spread}");
        }
    };
    check("uniform", 1.0, 3.0, &|out, g| unsafe { tcuda_random_uniform(out, -2.0, 4.0, g, NULL) });
    check("normal", 3.0, 0.25, &|out, g| unsafe { tcuda_random_normal(out, 3.0, 0.5, g, NULL) });
    check("exponential", 0.5, 0.25, &|out, g| unsafe { tcuda_random_exponential(out, 2.0, g, NULL) });
    check("geometric", 4.0, 12.0, &|out, g| unsafe { tcuda_random_geometric(out, 0.25, g, NULL) });
    check("bernoulli", 0.3, 0.21, &|out, g| unsafe { tcuda_random_bernoulli(out, 0.3, g, NULL) });
    check("integers", 49.5, 833.25, &|out, g| unsafe { tcuda_random_integers(out, 0, 100, g, NULL) });
    let log_normal = (0.02f64).exp();
    check("log-normal", log_normal, (0.04f64.exp() - 1.0) * log_normal.powi(2), &|out, g| unsafe {
        tcuda_random_log_normal(out, 0.0, 0.2, g, NULL)
    });
    // A Cauchy distribution has neither; half of it is within sigma of the median.
    let (mut block, generator) = (Block::new(F32, COUNT), Own::seeded(1234));
    ok!(tcuda_random_cauchy(&block.tensor(), 2.0, 3.0, generator.0, NULL));
    let within = block.values().iter().filter(|x| (*x - 2.0).abs() < 3.0).count();
    assert!(within.abs_diff(COUNT / 2) < 5 * 158, "{within}");
}

fn what_torch_refuses_is_refused() {
    let (mut block, generator) = (Block::new(F32, 10), Own::seeded(1));
    let (g, nan) = (generator.0, f64::NAN);
    macro_rules! refused {
        ($word:literal, $function:ident $(, $value:expr)*) => {{
            let message = fails!(INVALID_ARGUMENT, $function(&block.tensor() $(, $value)*, g, NULL));
            assert!(message.contains($word), "{message}");
        }};
    }
    refused!("found from=1 > to=0", tcuda_random_uniform, 1.0, 0.0);
    refused!("out of bounds", tcuda_random_uniform, nan, 0.0);
    refused!("exceed the limit", tcuda_random_uniform, -3e38, 3e38);
    refused!("std >= 0.0", tcuda_random_normal, 0.0, -1.0);
    refused!("std >= 0.0", tcuda_random_normal, 0.0, nan);
    refused!("std > 0.0", tcuda_random_log_normal, 0.0, 0.0);
    refused!("lambda > 0.0", tcuda_random_exponential, 0.0);
    refused!("sigma > 0.0", tcuda_random_cauchy, 0.0, 0.0);
    refused!("(0, 1)", tcuda_random_geometric, 1.0);
    refused!("(0, 1)", tcuda_random_geometric, 0.0);
    refused!("[0, 1]", tcuda_random_bernoulli, 1.5);
    refused!("[0, 1]", tcuda_random_bernoulli, nan);
    refused!("less than 'high'", tcuda_random_integers, 7, 7);
    block.dtype = I32;
    for (message, name) in [
        (fails!(NOT_SUPPORTED, tcuda_random_uniform(&block.tensor(), 0.0, 1.0, g, NULL)), "uniform"),
        (fails!(NOT_SUPPORTED, tcuda_random_normal(&block.tensor(), 0.0, 1.0, g, NULL)), "normal"),
        (fails!(NOT_SUPPORTED, tcuda_random_exponential(&block.tensor(), 1.0, g, NULL)), "exponential"),
    ] {
        assert!(message.contains("int32") && message.contains(name), "{message}");
    }
    // Narrow floats are bytes to tcuda, one element may not be two, and the CPU has no generator.
    block.dtype = DType { code: 10, bits: 8, lanes: 1 };
    fails!(NOT_SUPPORTED, tcuda_random_integers_all(&block.tensor(), g, NULL));
    block.dtype = F32;
    block.strides = vec![0];
    refused!("single memory location", tcuda_random_normal, 0.0, 1.0);
    let host = [0f32; 10];
    block.strides = vec![1];
    let on_host =
        tcuda_tensor_t { data: host.as_ptr() as *mut c_void, device: tcuda_place_t { device_type: CPU, device_id: 0 }, ..block.tensor() };
    fails!(NOT_SUPPORTED, tcuda_random_uniform(&on_host, 0.0, 1.0, g, NULL));
    fails!(INVALID_ARGUMENT, tcuda_random_uniform(null(), 0.0, 1.0, g, NULL));
    fails!(INVALID_HANDLE, tcuda_random_uniform(&block.tensor(), 0.0, 1.0, 0x5000 as tcuda_generator_t, NULL));
    assert_eq!(generator.offset(), 0);
    assert!(block.values().iter().all(|x| *x == 0.0));
}

/// Whichever call of the backend fails: the offset is as before, and the next call draws the same numbers.
fn a_failed_call_draws_nothing() {
    let draw = |tensor: &tcuda_tensor_t, generator: &Own| unsafe { tcuda_random_normal(tensor, 0.0, 1.0, generator.0, NULL) };
    let (mut expected, first) = (Block::new(F32, 1000), Own::seeded(6));
    ok!(draw(&expected.tensor(), &first));
    let (mut block, generator) = (Block::new(F32, 1000), Own::seeded(6));
    let tensor = block.tensor();
    let mut failures = 0;
    for nth in 1..50 {
        let before = get!(0, out => tcuda_sim_call_count(out, null()));
        ok!(tcuda_sim_fail_at(null(), nth, OPERATING_SYSTEM));
        let status = draw(&tensor, &generator);
        let calls = get!(0, out => tcuda_sim_call_count(out, null())) - before;
        ok!(tcuda_sim_clear_faults());
        if status == tcuda_status_t::TCUDA_SUCCESS {
            assert!(calls < nth, "{calls} {nth}");
            break;
        }
        failures += 1;
        assert_eq!(generator.offset(), 0, "call {nth}: {}", message());
    }
    assert!(failures >= 1);
    assert_eq!((block.values(), generator.offset()), (expected.values(), 4));
}

fn a_generator_draws_on_its_device() {
    let generator = Own::seeded(2);
    let mut block = Block::new(F32, 4);
    let other = Own(get!(null_mut(), out => tcuda_generator_create(out, 1 - device())));
    let message = fails!(INVALID_ARGUMENT, tcuda_random_uniform(&block.tensor(), 0.0, 1.0, other.0, NULL));
    assert!(message.contains("Expected a generator of"), "{message}");
    ok!(tcuda_random_uniform(&block.tensor(), 0.0, 1.0, generator.0, NULL));
}
