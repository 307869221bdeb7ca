//! Tensors: made, filled, copied and converted, on every pair of places, compared with the reference.

use crate::kit::*;
use crate::reference::{self, *};
use crate::{get, ok, tests};
use std::ptr::{null, null_mut};
use tcuda::base::dlpack::{tcuda_managed_tensor_t, tcuda_place_t, tcuda_tensor_t};
use tcuda::base::dtype::DType;
use tcuda::base::status::tcuda_status_t::{self, *};
use tcuda::capi::copy::*;
use tcuda::capi::device::{tcuda_set_device, tcuda_synchronize};
use tcuda::capi::distributions::tcuda_random_uniform;
use tcuda::capi::memory::tcuda_memory_allocated;
use tcuda::capi::sim::{tcuda_sim_call_count, tcuda_sim_clear_faults, tcuda_sim_fail_at};
use tcuda::capi::tensor::*;

tests![
    reference_is_what_everybody_knows,
    random_copies_on_the_host,
    random_copies_on_a_device,
    random_copies_between_all_places,
    every_conversion_of_many_values,
    device_and_host_agree_on_what_is_undefined,
    more_elements_than_a_grid_has_threads_and_odd_ends,
    fills_of_every_type_and_layout,
    strides_of_one_index,
    fill_refuses_what_the_type_cannot_hold,
    empty_tensors_and_single_elements,
    to_says_what_it_gave,
    pinned_tensors,
    bad_tensors_are_refused_with_a_reason,
    data_is_where_its_tensor_says,
    a_wrong_device_is_told_before_a_wrong_stream: [TwoDevices],
    bad_shapes_give_no_tensor,
    deleters_run_on_any_thread,
    each_call_of_the_backend_may_fail_once: [Faults, TwoDevices, Unfilled],
];

pub const CPU: i32 = -2;

#[track_caller]
pub fn refused(status: tcuda_status_t, expected: tcuda_status_t, word: &str) {
    assert_eq!(status, expected, "{}", message());
    assert!(message().contains(word), "'{word}' is not in: {}", message());
}

/// xorshift64*: the same cases in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A managed tensor, destroyed at the end.
pub struct Managed(pub *mut tcuda_managed_tensor_t);

impl Managed {
    pub fn empty(device: i32, dtype: DType, shape: &[i64]) -> Managed {
        let mut out = null_mut();
        ok!(tcuda_tensor_empty(&mut out, device, dtype, shape.len() as i32, shape.as_ptr(), null_mut()));
        Managed(out)
    }

    pub fn tensor(&self) -> &tcuda_tensor_t {
        unsafe { &(*self.0).tensor }
    }

    pub fn shape(&self) -> &[i64] {
        unsafe { std::slice::from_raw_parts(self.tensor().shape, self.tensor().ndim as usize) }
    }

    pub fn strides(&self) -> &[i64] {
        unsafe { std::slice::from_raw_parts(self.tensor().strides, self.tensor().ndim as usize) }
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        ok!(tcuda_tensor_destroy(self.0));
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Where {
    Pageable,
    Pinned,
    Device(i32),
}

/// Bytes in some place, filled from and read back to the host.
pub struct Storage {
    pub bytes: Managed,
    pub size: usize,
}

impl Storage {
    pub fn new(place: Where, contents: &[u8]) -> Storage {
        let shape = [contents.len() as i64];
        let bytes = match place {
            Where::Pageable => Managed::empty(CPU, U8, &shape),
            Where::Device(device) => Managed::empty(device, U8, &shape),
            Where::Pinned => {
                let plain = Managed::empty(CPU, U8, &shape);
                let mut out = null_mut();
                ok!(tcuda_tensor_pin(&mut out, null_mut(), plain.tensor()));
                Managed(out)
            }
        };
        ok!(tcuda_copy(bytes.tensor().data, contents.as_ptr().cast(), contents.len(), false));
        Storage { bytes, size: contents.len() }
    }

    pub fn read(&self) -> Vec<u8> {
        let mut out = vec![0u8; self.size];
        ok!(tcuda_copy(out.as_mut_ptr().cast(), self.bytes.tensor().data, self.size, false));
        out
    }
}

/// How a tensor lies in its storage, in elements.
#[derive(Clone, Debug)]
pub struct Layout {
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    pub offset: i64,
    /// Elements of the whole storage.
    pub elements: usize,
}

impl Layout {
    /// Dimensions in a random order, with gaps, some of them repeated where that is allowed.
    pub fn random(random: &mut Random, dtype: DType, shape: &[i64], may_repeat: bool) -> Layout {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at + 1));
        }
        if random.below(3) == 0 {
            order.sort_unstable_by(|a, b| b.cmp(a));
        }
        let gaps = random.below(2) == 0;
        let mut strides = vec![0; shape.len()];
        let mut next = if gaps { 1 + random.below(3) as i64 } else { 1 };
        for dim in order {
            if may_repeat && random.below(8) == 0 {
                continue;
            }
            strides[dim] = next;
            next = next * shape[dim].max(1) + if gaps { random.below(3) as i64 } else { 0 };
        }
        let offset = if gaps { random.below(5) as i64 } else { 0 };
        Layout { dtype, shape: shape.to_vec(), strides, offset, elements: (offset + next) as usize + 3 }
    }

    pub fn item(&self) -> usize {
        self.dtype.size()
    }

    /// The byte positions of the elements, in the order of `shape`'s indices, repeated to the shape `target`.
    pub fn positions(&self, target: &[i64]) -> Vec<usize> {
        let missing = target.len() - self.shape.len();
        let mut positions = vec![self.offset];
        for (dim, size) in target.iter().enumerate() {
            let stride = if dim < missing || self.shape[dim - missing] == 1 { 0 } else { self.strides[dim - missing] };
            positions = positions.iter().flat_map(|at| (0..*size).map(move |index| at + index * stride)).collect();
        }
        positions.iter().map(|at| *at as usize * self.item()).collect()
    }

    pub fn tensor(&mut self, storage: &Storage) -> tcuda_tensor_t {
        tcuda_tensor_t {
            ndim: self.shape.len() as i32,
            dtype: self.dtype,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: self.offset as u64 * self.item() as u64,
            ..*storage.bytes.tensor()
        }
    }
}

/// Values that conversions stumble over, and ordinary ones.
pub fn contents(random: &mut Random, dtype: DType, elements: usize) -> Vec<u8> {
    const SPECIAL: [f64; 16] =
        [0.0, -0.0, 0.5, -1.5, 2.9999, 255.0, -129.0, 65504.0, 65520.0, 1e-7, 6e-8, 3e9, -3e9, 1e30, f64::INFINITY, f64::NAN];
    let real = |random: &mut Random| match random.below(4) {
        0 => random.pick(&SPECIAL),
        1 => (random.next() as i64 >> 40) as f64,
        2 => (random.next() as i64 >> 40) as f64 / 1024.0,
        _ => (random.next() as i64 >> 11) as f64 / 2f64.powi(54),
    };
    (0..elements)
        .flat_map(|_| {
            let number = match dtype.code {
                6 => Number::Integer(random.below(2) as i128),
                0 | 1 => Number::Integer(i128::from(random.next() >> random.below(64))),
                2 | 4 => Number::Real(real(random)),
                _ => Number::Complex(if random.below(3) == 0 { 0.0 } else { real(random) }, real(random)),
            };
            reference::write(number, dtype).unwrap()
        })
        .collect()
}

/// One copy of random shape, layout, types and places, into a storage of which every byte is compared.
fn one_copy(seed: u64, places: &[Where], types: &[DType]) {
    let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let sizes: &[i64] = if random.below(4) == 0 { &[1, 2, 33, 300] } else { &[0, 1, 2, 3, 4, 5, 8] };
    let ndim = random.below(if sizes.len() == 4 { 3 } else { 7 });
    let shape: Vec<i64> = (0..ndim).map(|_| if random.below(12) == 0 { random.pick(sizes) } else { random.pick(&sizes[1..]) }).collect();
    let dropped = random.below(ndim + 1) * usize::from(random.below(4) == 0);
    let source_shape: Vec<i64> = shape[dropped..].iter().map(|size| if random.below(6) == 0 { 1 } else { *size }).collect();
    let to_type = random.pick(types);
    let from_type = if random.below(3) == 0 { to_type } else { random.pick(types) };
    let (to_place, from_place) = (random.pick(places), random.pick(places));

    let mut to = Layout::random(random, to_type, &shape, false);
    let mut from = Layout::random(random, from_type, &source_shape, true);
    let before = contents(random, to_type, to.elements);
    let source = contents(random, from_type, from.elements);
    let (to_storage, from_storage) = (Storage::new(to_place, &before), Storage::new(from_place, &source));
    let case = format!("seed {seed}: {from:?} in {from_place:?} to {to:?} in {to_place:?}");
    let (to_tensor, from_tensor) = (to.tensor(&to_storage), from.tensor(&from_storage));
    let non_blocking = random.below(2) == 0;
    let status = unsafe { tcuda_tensor_copy(&to_tensor, &from_tensor, non_blocking, handle(CURRENT_STREAM)) };
    assert_eq!(status, TCUDA_SUCCESS, "{case}: {}", message());
    if non_blocking {
        for place in [to_place, from_place] {
            if let Where::Device(device) = place {
                ok!(tcuda_synchronize(device));
            }
        }
    }

    let after = to_storage.read();
    let mut written = vec![false; before.len()];
    for (to_at, from_at) in to.positions(&shape).into_iter().zip(from.positions(&shape)) {
        let given = &source[from_at..from_at + from.item()];
        let found = &after[to_at..to_at + to.item()];
        let expected =
            if to_type == from_type { Some(given.to_vec()) } else { reference::write(reference::read(given, from_type), to_type) };
        if let Some(expected) = expected {
            let bits_count = to_type == from_type;
            let agree = if bits_count { found == expected } else { reference::same(found, &expected, to_type) };
            assert!(agree, "{case}: element at byte {to_at}: {given:02x?} gave {found:02x?}, expected {expected:02x?}");
        }
        written[to_at..to_at + to.item()].fill(true);
    }
    for (at, (is, was)) in after.iter().zip(&before).enumerate() {
        assert!(written[at] || is == was, "{case}: byte {at}, which is no element, changed from {was:#x} to {is:#x}");
    }
}

fn devices() -> Vec<Where> {
    (0..device_count().min(2)).map(Where::Device).collect()
}

fn reference_is_what_everybody_knows() {
    reference::check_known_numbers();
}

fn random_copies_on_the_host() {
    for seed in 0..1500 {
        one_copy(seed, &[Where::Pageable], &TYPES);
    }
}

fn random_copies_on_a_device() {
    for seed in 0..1500 {
        one_copy(seed, &[Where::Device(0)], &TYPES);
    }
}

fn random_copies_between_all_places() {
    let places = [&devices()[..], &[Where::Pageable, Where::Pinned]].concat();
    for seed in 5000..6500 {
        one_copy(seed, &places, &TYPES);
    }
}

/// Every type into every type, contiguous, with a length that leaves a rest, on host and device.
fn every_conversion_of_many_values() {
    for (pair, (from_type, to_type)) in TYPES.iter().flat_map(|from| TYPES.iter().map(move |to| (*from, *to))).enumerate() {
        let random = &mut Random(pair as u64 + 1);
        let count = 1023;
        let source = contents(random, from_type, count);
        let shape = [count as i64];
        for place in [Where::Pageable, Where::Device(0)] {
            let from = Storage::new(place, &source);
            let to = Storage::new(place, &vec![0; count * to_type.size()]);
            let mut layouts =
                [to_type, from_type].map(|dtype| Layout { dtype, shape: shape.to_vec(), strides: vec![1], offset: 0, elements: count });
            let [to_layout, from_layout] = &mut layouts;
            let (to_tensor, from_tensor) = (to_layout.tensor(&to), from_layout.tensor(&from));
            ok!(tcuda_tensor_copy(&to_tensor, &from_tensor, false, handle(CURRENT_STREAM)));
            let after = to.read();
            for at in 0..count {
                let given = &source[at * from_type.size()..][..from_type.size()];
                let found = &after[at * to_type.size()..][..to_type.size()];
                if let Some(expected) = reference::write(reference::read(given, from_type), to_type) {
                    let agree = reference::same(found, &expected, to_type);
                    assert!(agree, "{from_type:?} to {to_type:?} in {place:?}: {given:02x?} gave {found:02x?}, expected {expected:02x?}");
                }
            }
        }
    }
}

/// What is not promised (a NaN as an integer) still is the same on the device as on the host.
fn device_and_host_agree_on_what_is_undefined() {
    let values: Vec<f64> =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e300, 4.9e9, -4.9e9, 300.7, -300.7, 70000.0, -70000.0].to_vec();
    let host = Storage::new(Where::Pageable, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
    let mut wide = Layout { dtype: F64, shape: vec![values.len() as i64], strides: vec![1], offset: 0, elements: values.len() };
    let wide = wide.tensor(&host);
    for from_type in [F16, BF16, F32, F64, C64] {
        for to_type in TYPES {
            let results = [CPU, 0].map(|device| {
                let source = to(&wide, device, from_type).0;
                let result = to(source.tensor(), device, to_type).0;
                let at_home = to(result.tensor(), CPU, to_type).0;
                let bytes = values.len() * to_type.size();
                unsafe { std::slice::from_raw_parts(at_home.tensor().data.cast::<u8>(), bytes) }.to_vec()
            });
            for at in 0..values.len() {
                let [host, device] = [0, 1].map(|which| &results[which][at * to_type.size()..][..to_type.size()]);
                let agree = same(device, host, to_type);
                assert!(agree, "{} as {from_type:?} to {to_type:?}: {host:02x?} on the host, {device:02x?} on the device", values[at]);
            }
        }
    }
}

fn to(tensor: &tcuda_tensor_t, device: i32, dtype: DType) -> (Managed, tcuda_tensor_origin_t) {
    let (mut out, mut origin) = (null_mut(), tcuda_tensor_origin_t::TCUDA_TENSOR_VIEW);
    ok!(tcuda_tensor_to(&mut out, &mut origin, tensor, device, dtype, false, false, null_mut()));
    (Managed(out), origin)
}

fn more_elements_than_a_grid_has_threads_and_odd_ends() {
    let count = 3_000_003i64;
    let source = Managed::empty(0, BF16, &[count]);
    let value = 7.0f32;
    ok!(tcuda_tensor_fill(source.tensor(), (&raw const value).cast(), F32, null_mut()));
    let bytes = to(source.tensor(), CPU, U8).0;
    let found = unsafe { std::slice::from_raw_parts(bytes.tensor().data.cast::<u8>(), count as usize) };
    assert!(found.iter().all(|byte| *byte == 7));
}

fn fills_of_every_type_and_layout() {
    let random = &mut Random(77);
    for seed in 0..400 {
        let place = random.pick(&[Where::Pageable, Where::Device(0), Where::Device(device_count() - 1)]);
        let dtype = random.pick(&TYPES);
        let shape: Vec<i64> = (0..random.below(5)).map(|_| random.pick(&[1, 2, 3, 8, 40])).collect();
        let mut layout = Layout::random(random, dtype, &shape, false);
        let before = contents(random, dtype, layout.elements);
        let storage = Storage::new(place, &before);
        let (number, value_type) =
            if dtype.code == 5 { (Number::Complex(1.5, -2.0), C64) } else { (Number::Integer(random.below(2) as i128 + 5), I64) };
        let value = reference::write(number, value_type).unwrap();
        let tensor = layout.tensor(&storage);
        ok!(tcuda_tensor_fill(&tensor, value.as_ptr().cast(), value_type, null_mut()));
        let mut expected = before.clone();
        for at in layout.positions(&shape) {
            expected[at..at + dtype.size()].copy_from_slice(&reference::write(number, dtype).unwrap());
        }
        if let Where::Device(device) = place {
            ok!(tcuda_synchronize(device));
        }
        assert_eq!(storage.read(), expected, "case {seed}: {layout:?} in {place:?}");
    }
}

/// Of a dimension with one index the stride is no matter.
fn strides_of_one_index() {
    let (filled, copied) = (Managed::empty(CPU, F32, &[1, 4]), Managed::empty(CPU, F32, &[1, 4]));
    let (mut shape, mut strides) = ([1i64, 4], [i64::MAX, 1]);
    let [filled, copied] =
        [&filled, &copied].map(|of| tcuda_tensor_t { shape: shape.as_mut_ptr(), strides: strides.as_mut_ptr(), ..*of.tensor() });
    let value = 1f32;
    ok!(tcuda_tensor_fill(&filled, (&raw const value).cast(), F32, null_mut()));
    ok!(tcuda_tensor_copy(&copied, &filled, false, null_mut()));
    assert_eq!(unsafe { std::slice::from_raw_parts(copied.data.cast::<f32>(), 4) }, [1.0; 4]);
}

fn fill_refuses_what_the_type_cannot_hold() {
    let bytes = Managed::empty(0, U8, &[4]);
    let value = 300i64;
    let fill = |value: *const i64, dtype| unsafe { tcuda_tensor_fill(bytes.tensor(), value.cast(), dtype, null_mut()) };
    refused(fill(&value, I64), TCUDA_ERROR_INVALID_ARGUMENT, "value 300 cannot be converted to type uint8 without overflow");
    refused(fill(null(), I64), TCUDA_ERROR_INVALID_ARGUMENT, "'value' is NULL");
    refused(fill(&value, reference::dtype(2, 8)), TCUDA_ERROR_NOT_SUPPORTED, "'value'");
    refused(
        unsafe { tcuda_tensor_fill(null(), (&raw const value).cast(), I64, null_mut()) },
        TCUDA_ERROR_INVALID_ARGUMENT,
        "'tensor' is NULL",
    );
    let mut repeated = *bytes.tensor();
    let (mut shape, mut strides) = ([4i64, 2], [1i64, 0]);
    (repeated.ndim, repeated.shape, repeated.strides) = (2, shape.as_mut_ptr(), strides.as_mut_ptr());
    let one = 1i64;
    let status = unsafe { tcuda_tensor_fill(&repeated, (&raw const one).cast(), I64, null_mut()) };
    refused(status, TCUDA_ERROR_INVALID_ARGUMENT, "more than one element");
}

fn empty_tensors_and_single_elements() {
    for device in [CPU, 0, -1] {
        let none = Managed::empty(device, F32, &[3, 0, 5]);
        assert!(none.tensor().data.is_null());
        assert_eq!((none.shape(), none.strides()), (&[3, 0, 5][..], &[5, 5, 1][..]));
        let one = Managed::empty(device, F64, &[]);
        assert!(!one.tensor().data.is_null() && one.tensor().ndim == 0);
        assert!((one.tensor().data as usize).is_multiple_of(256));
        ok!(tcuda_tensor_copy(none.tensor(), one.tensor(), false, null_mut()));
        let value = 1.5f64;
        ok!(tcuda_tensor_fill(none.tensor(), (&raw const value).cast(), F64, null_mut()));
        ok!(tcuda_tensor_fill(one.tensor(), (&raw const value).cast(), F64, null_mut()));
        let home = to(one.tensor(), CPU, F32).0;
        assert_eq!(unsafe { *home.tensor().data.cast::<f32>() }, 1.5);
    }
    let place = *Managed::empty(0, F32, &[2]).tensor();
    assert_eq!(place.device, tcuda_place_t { device_type: 2, device_id: 0 });
}

fn to_says_what_it_gave() {
    use tcuda_tensor_origin_t::*;
    let same = DType { code: 0, bits: 0, lanes: 0 };
    let tensor = Managed::empty(0, F32, &[2, 3]);
    let value = 2.5f32;
    ok!(tcuda_tensor_fill(tensor.tensor(), (&raw const value).cast(), F32, null_mut()));
    let (alias, origin) = to(tensor.tensor(), -4, same);
    assert_eq!((alias.tensor().data, origin), (tensor.tensor().data, TCUDA_TENSOR_INPUT));
    drop(alias);
    let (home, origin) = to(tensor.tensor(), CPU, I32);
    assert_eq!((home.tensor().device.device_type, origin), (1, TCUDA_TENSOR_NEW));
    assert_eq!(unsafe { std::slice::from_raw_parts(home.tensor().data.cast::<i32>(), 6) }, [2; 6]);
    assert_eq!(to(home.tensor(), CPU, same).1, TCUDA_TENSOR_INPUT);
    let mut out = null_mut();
    ok!(tcuda_tensor_to(&mut out, null_mut(), tensor.tensor(), -4, same, false, true, null_mut()));
    let copy = Managed(out);
    assert_ne!(copy.tensor().data, tensor.tensor().data);
    let last = device_count() - 1;
    let (far, _) = to(tensor.tensor(), last, same);
    assert_eq!(far.tensor().device.device_id, last);
    let back = to(far.tensor(), CPU, same).0;
    assert_eq!(unsafe { std::slice::from_raw_parts(back.tensor().data.cast::<f32>(), 6) }, [2.5; 6]);

    // The order of dimensions stays.
    let (mut shape, mut strides) = ([2i64, 3], [1i64, 2]);
    let turned = tcuda_tensor_t { shape: shape.as_mut_ptr(), strides: strides.as_mut_ptr(), ..*tensor.tensor() };
    assert_eq!(to(&turned, CPU, F64).0.strides(), [1, 2]);
    let mut out = null_mut();
    ok!(tcuda_tensor_empty_like(&mut out, &turned, null_mut()));
    assert_eq!(Managed(out).strides(), [1, 2]);
}

fn pinned_tensors() {
    use tcuda_tensor_origin_t::*;
    let plain = Managed::empty(CPU, I64, &[100]);
    let value = 9i64;
    ok!(tcuda_tensor_fill(plain.tensor(), (&raw const value).cast(), I64, null_mut()));
    let (mut out, mut origin) = (null_mut(), TCUDA_TENSOR_VIEW);
    ok!(tcuda_tensor_pin(&mut out, &mut origin, plain.tensor()));
    let pinned = Managed(out);
    assert_eq!((pinned.tensor().device.device_type, origin), (3, TCUDA_TENSOR_NEW));
    assert_eq!(unsafe { std::slice::from_raw_parts(pinned.tensor().data.cast::<i64>(), 100) }, [9; 100]);
    // Also when the tensor only says CPU, as torch's do.
    let said_cpu = tcuda_tensor_t { device: tcuda_place_t { device_type: 1, device_id: 0 }, ..*pinned.tensor() };
    for input in [pinned.tensor(), &said_cpu] {
        let mut out = null_mut();
        ok!(tcuda_tensor_pin(&mut out, &mut origin, input));
        assert_eq!((Managed(out).tensor().data, origin), (pinned.tensor().data, TCUDA_TENSOR_INPUT));
    }
    let far = Managed::empty(0, I64, &[100]);
    ok!(tcuda_tensor_copy(far.tensor(), pinned.tensor(), true, null_mut()));
    refused(unsafe { tcuda_tensor_pin(&mut out, &mut origin, far.tensor()) }, TCUDA_ERROR_INVALID_ARGUMENT, "only dense CPU tensors");
    assert_eq!(to(far.tensor(), CPU, I32).0.shape(), [100]);
}

fn bad_tensors_are_refused_with_a_reason() {
    let good = Managed::empty(0, F32, &[2, 3]);
    let base = *good.tensor();
    let copy = |to: &tcuda_tensor_t, from: &tcuda_tensor_t| unsafe { tcuda_tensor_copy(to, from, false, null_mut()) };
    let bad = |change: &dyn Fn(&mut tcuda_tensor_t), status, word: &str| {
        let mut tensor = base;
        change(&mut tensor);
        refused(copy(&tensor, &base), status, word);
        refused(copy(&base, &tensor), status, word);
    };
    const INVALID: tcuda_status_t = TCUDA_ERROR_INVALID_ARGUMENT;
    let mut negative = [-3i64, 1];
    let negative = negative.as_mut_ptr();
    bad(&|t| t.ndim = -1, INVALID, "-1 dimensions");
    bad(&|t| t.ndim = 65, INVALID, "65 dimensions");
    bad(&|t| t.shape = null_mut(), INVALID, "shape' is NULL");
    bad(&|t| t.strides = negative, INVALID, "negative strides");
    bad(&|t| t.dtype.lanes = 4, INVALID, "lanes");
    bad(&|t| t.dtype.lanes = 0, INVALID, "lanes");
    bad(&|t| t.dtype.bits = 6, TCUDA_ERROR_NOT_SUPPORTED, "6 bits");
    bad(&|t| t.data = null_mut(), INVALID, "NULL");
    bad(&|t| t.byte_offset = u64::MAX, INVALID, "past the end");
    bad(&|t| t.device.device_type = 12, TCUDA_ERROR_NOT_SUPPORTED, "type 12");
    bad(&|t| t.device.device_id = 99, TCUDA_ERROR_INVALID_DEVICE, "99");
    bad(&|t| t.device.device_id = -1, INVALID, "-1");
    // Types without arithmetic move as bytes, and refuse to become something else.
    let narrow = |t: &mut tcuda_tensor_t| t.dtype = reference::dtype(10, 8);
    bad(&narrow, TCUDA_ERROR_NOT_SUPPORTED, "code 10");
    let (mut one, mut other) = (Managed::empty(0, U8, &[8]), Managed::empty(0, U8, &[8]));
    for tensor in [&mut one, &mut other] {
        unsafe { narrow(&mut (*tensor.0).tensor) };
    }
    ok!(copy(one.tensor(), other.tensor()));

    refused(copy(&base, Managed::empty(0, F32, &[4, 3]).tensor()), INVALID, "[4, 3]");
    refused(copy(&base, Managed::empty(0, F32, &[1, 2, 3]).tensor()), INVALID, "[1, 2, 3]");
    refused(unsafe { tcuda_tensor_copy(null(), &base, false, null_mut()) }, INVALID, "'dst' is NULL");
    refused(unsafe { tcuda_tensor_copy(&base, null(), false, null_mut()) }, INVALID, "'src' is NULL");
    // Half of itself.
    let (mut shape, mut strides) = ([3i64], [1i64]);
    let line = tcuda_tensor_t { ndim: 1, shape: shape.as_mut_ptr(), strides: strides.as_mut_ptr(), ..base };
    refused(copy(&line, &tcuda_tensor_t { byte_offset: 4, ..line }), INVALID, "single memory location");
    ok!(copy(&line, &tcuda_tensor_t { byte_offset: 12, ..line }));
    ok!(copy(&base, &base));
    // An odd address is no place for a float.
    let odd = tcuda_tensor_t { byte_offset: 1, dtype: I32, ..line };
    let floats = Managed::empty(0, F32, &[3]);
    refused(copy(&odd, floats.tensor()), INVALID, "multiple of its element size");
    // The block is on device 0.
    if device_count() > 1 {
        let misplaced = tcuda_tensor_t { device: tcuda_place_t { device_type: 2, device_id: 1 }, ..base };
        refused(copy(&misplaced, Managed::empty(1, F32, &[2, 3]).tensor()), INVALID, "memory of device 0");
    }
    let said_cpu = tcuda_tensor_t { device: tcuda_place_t { device_type: 1, device_id: 0 }, ..base };
    refused(copy(&said_cpu, Managed::empty(0, F32, &[2, 3]).tensor()), INVALID, "in host memory, but it is in memory of device 0");
}

fn data_is_where_its_tensor_says() {
    const INVALID: tcuda_status_t = TCUDA_ERROR_INVALID_ARGUMENT;
    let good = Managed::empty(0, F32, &[4]);
    let other = Managed::empty(0, I32, &[4]);
    let home = Managed::empty(CPU, F32, &[4]);
    let value = 1f32;
    let fill = |tensor: &tcuda_tensor_t| unsafe { tcuda_tensor_fill(tensor, (&raw const value).cast(), F32, null_mut()) };
    let copy = |to: &tcuda_tensor_t, from: &tcuda_tensor_t| unsafe { tcuda_tensor_copy(to, from, false, null_mut()) };
    ok!(tcuda_tensor_fill(home.tensor(), (&raw const value).cast(), F32, null_mut()));
    let says = |tensor: &tcuda_tensor_t, device_type| tcuda_tensor_t { device: tcuda_place_t { device_type, device_id: 0 }, ..*tensor };
    for host in [1, 3] {
        let bad = says(good.tensor(), host);
        for status in [fill(&bad), copy(&bad, home.tensor()), copy(home.tensor(), &bad), copy(other.tensor(), &bad)] {
            refused(status, INVALID, "host memory, but it is in memory of device 0");
        }
    }
    for device in [2, 13] {
        let bad = says(home.tensor(), device);
        for status in [fill(&bad), copy(&bad, other.tensor()), copy(good.tensor(), &bad), copy(other.tensor(), &bad)] {
            refused(status, INVALID, "says that its data");
            assert!(message().contains("is in memory of device 0, but it is in host memory"), "{}", message());
        }
        // Without elements there is nothing to be anywhere.
        let mut none = [0i64];
        ok!(tcuda_tensor_fill(
            &tcuda_tensor_t { shape: none.as_mut_ptr(), data: null_mut(), ..bad },
            (&raw const value).cast(),
            F32,
            null_mut()
        ));
    }
    for place in [1, 2, 3, 13] {
        let nowhere = tcuda_tensor_t { data: 4096 as _, ..says(good.tensor(), place) };
        for status in [fill(&nowhere), copy(&nowhere, home.tensor()), copy(other.tensor(), &nowhere)] {
            refused(status, TCUDA_ERROR_INVALID_POINTER, "0x1000 lies where no memory is");
        }
    }
    // Its data begins where it says and ends behind it.
    let mut long = [1i64 << 30];
    let mut too_long = |tensor: &tcuda_tensor_t| tcuda_tensor_t { ndim: 1, shape: (&raw mut long).cast(), strides: null_mut(), ..*tensor };
    let pinned = Managed({
        let mut out = null_mut();
        ok!(tcuda_tensor_pin(&mut out, null_mut(), home.tensor()));
        out
    });
    let single = [0, CPU].map(|device| Managed::empty(device, F32, &[1]));
    for tensor in [good.tensor(), pinned.tensor()] {
        let bad = too_long(tensor);
        for status in [fill(&bad), copy(&bad, single[0].tensor()), copy(&bad, single[1].tensor())] {
            refused(status, TCUDA_ERROR_INVALID_POINTER, "bytes from");
        }
    }
    ok!(tcuda_synchronize(0));
    // Right all the while, and a device reaches pinned memory by the same address.
    let mut out = null_mut();
    ok!(tcuda_tensor_pin(&mut out, null_mut(), home.tensor()));
    let pinned = Managed(out);
    assert_eq!(fill(&says(pinned.tensor(), 2)), TCUDA_SUCCESS, "{}", message());
    assert_eq!([fill(pinned.tensor()), fill(home.tensor()), fill(good.tensor())], [TCUDA_SUCCESS; 3]);
    ok!(tcuda_synchronize(0));
}

/// The stream is the data's: what is wrong is the tensor's device_id.
fn a_wrong_device_is_told_before_a_wrong_stream() {
    let stream = Own::on(0);
    let (good, pinned) = (Managed::empty(0, F32, &[4]), Managed::empty(CPU, F32, &[4]));
    let wrong = tcuda_tensor_t { device: tcuda_place_t { device_type: 2, device_id: 1 }, ..*good.tensor() };
    let value = 1f32;
    let fill = |tensor: &tcuda_tensor_t, stream| unsafe { tcuda_tensor_fill(tensor, (&raw const value).cast(), F32, stream) };
    let copy = |to: &tcuda_tensor_t, from: &tcuda_tensor_t| unsafe { tcuda_tensor_copy(to, from, false, stream.0) };
    let uniform = |tensor: &tcuda_tensor_t| unsafe { tcuda_random_uniform(tensor, 0.0, 1.0, null_mut(), stream.0) };
    let mut out = null_mut();
    let to = |tensor: &tcuda_tensor_t, out: &mut _| unsafe { tcuda_tensor_to(out, null_mut(), tensor, -4, I32, false, false, stream.0) };
    const SAYS: &str = "is in memory of device 1, but it is in memory of device 0";
    let told = |status| refused(status, TCUDA_ERROR_INVALID_ARGUMENT, SAYS);
    told(fill(&wrong, stream.0));
    told(copy(&wrong, pinned.tensor()));
    told(copy(pinned.tensor(), &wrong));
    told(uniform(&wrong));
    told(to(&wrong, &mut out));
    // A stream that is the wrong one is told as such, also where nothing lies anywhere.
    refused(fill(good.tensor(), Own::on(1).0), TCUDA_ERROR_INVALID_ARGUMENT, "The stream belongs to device 1");
    let mut none = [0i64];
    let nothing = tcuda_tensor_t { shape: none.as_mut_ptr(), ..wrong };
    refused(fill(&nothing, stream.0), TCUDA_ERROR_INVALID_ARGUMENT, "The stream belongs to device 0");
}

fn bad_shapes_give_no_tensor() {
    let mut out = std::ptr::dangling_mut();
    let mut empty = |device, dtype, ndim, shape: *const i64| {
        let status = unsafe { tcuda_tensor_empty(&mut out, device, dtype, ndim, shape, null_mut()) };
        assert_eq!(out, std::ptr::dangling_mut(), "an output was written on failure");
        status
    };
    const INVALID: tcuda_status_t = TCUDA_ERROR_INVALID_ARGUMENT;
    let huge = [1i64 << 31, 1 << 31, 4];
    for device in [0, CPU] {
        refused(empty(device, F32, 3, huge.as_ptr()), INVALID, "more than memory can hold");
        refused(empty(device, F32, 1, [-1].as_ptr()), INVALID, "-1");
        refused(empty(device, F32, -1, null()), INVALID, "'ndim': -1 dimensions");
        refused(empty(device, F32, 65, huge.as_ptr()), INVALID, "'ndim': 65 dimensions");
        refused(empty(device, F32, 1, [-7].as_ptr()), INVALID, "'shape'");
        for (code, bits) in [(2, 7), (3, 64), (18, 8), (255, 8), (6, 16)] {
            refused(empty(device, reference::dtype(code, bits), 1, huge.as_ptr()), TCUDA_ERROR_NOT_SUPPORTED, "'dtype'");
        }
        refused(empty(device, F32, 1, null()), INVALID, "'shape' is NULL");
        refused(empty(device, DType { lanes: 2, ..F32 }, 1, huge.as_ptr()), INVALID, "lanes");
    }
    refused(empty(99, F32, 1, huge.as_ptr()), TCUDA_ERROR_INVALID_DEVICE, "99");
    refused(empty(-3, F32, 1, huge.as_ptr()), TCUDA_ERROR_INVALID_DEVICE, "-3");
    let large = [1i64 << 58];
    refused(empty(0, F32, 1, large.as_ptr()), TCUDA_ERROR_OUT_OF_MEMORY, "");
    refused(empty(CPU, F32, 1, large.as_ptr()), TCUDA_ERROR_OUT_OF_HOST_MEMORY, "");
    refused(unsafe { tcuda_tensor_empty(null_mut(), 0, F32, 0, null(), null_mut()) }, INVALID, "'out' is NULL");
    ok!(tcuda_tensor_destroy(null_mut()));
}

/// Made by one thread, ended by another through its own deleter, as DLPack's consumers do.
fn deleters_run_on_any_thread() {
    let tensors: Vec<usize> =
        (0..64).map(|at| std::mem::ManuallyDrop::new(Managed::empty(if at % 2 == 0 { 0 } else { CPU }, F32, &[1000])).0 as usize).collect();
    let threads: Vec<_> = tensors
        .chunks(16)
        .map(|chunk| {
            let chunk = chunk.to_vec();
            std::thread::spawn(move || {
                for tensor in chunk {
                    let tensor = tensor as *mut tcuda_managed_tensor_t;
                    unsafe { (*tensor).deleter.unwrap()(tensor) };
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A bit of everything on two devices and the host; the statuses of all calls. What was made is gone at the end.
fn workload() -> Vec<tcuda_status_t> {
    let mut statuses = Vec::new();
    let mut made: [*mut tcuda_managed_tensor_t; 6] = [null_mut(); 6];
    let shape = [64i64, 48];
    let value = 2.0f32;
    let mut bytes = [0u8; 4096];
    unsafe {
        let mut did = |status| statuses.push(status);
        did(tcuda_tensor_empty(&mut made[0], 0, F32, 2, shape.as_ptr(), null_mut()));
        did(tcuda_tensor_empty(&mut made[1], 1, I32, 2, shape.as_ptr(), null_mut()));
        did(tcuda_tensor_empty(&mut made[2], CPU, F32, 2, shape.as_ptr(), null_mut()));
        if let Some(first) = made[0].as_ref() {
            did(tcuda_tensor_fill(&first.tensor, (&raw const value).cast(), F32, null_mut()));
            let mut strides = [1i64, 64];
            let turned = tcuda_tensor_t { strides: strides.as_mut_ptr(), ..first.tensor };
            if let Some(second) = made[1].as_ref() {
                did(tcuda_tensor_copy(&second.tensor, &turned, true, null_mut()));
            }
            did(tcuda_tensor_to(&mut made[3], null_mut(), &turned, CPU, F64, false, false, null_mut()));
            if let Some(host) = made[2].as_ref() {
                did(tcuda_tensor_copy(&turned, &host.tensor, false, null_mut()));
                did(tcuda_tensor_pin(&mut made[4], null_mut(), &host.tensor));
            }
            if let Some(pinned) = made[4].as_ref() {
                did(tcuda_tensor_copy(&first.tensor, &pinned.tensor, true, null_mut()));
            }
            did(tcuda_copy(bytes.as_mut_ptr().cast(), first.tensor.data, 4096, false));
            did(tcuda_copy_async(first.tensor.data, first.tensor.data.byte_add(4096), 4096, null_mut()));
            did(tcuda_memset_async(first.tensor.data, 7, 100, null_mut()));
        }
        if let Some(second) = made[1].as_ref() {
            did(tcuda_tensor_empty_like(&mut made[5], &second.tensor, null_mut()));
        }
        for device in [0, 1] {
            did(tcuda_synchronize(device));
        }
        for tensor in made {
            did(tcuda_tensor_destroy(tensor));
        }
    }
    statuses
}

fn each_call_of_the_backend_may_fail_once() {
    const OPERATING_SYSTEM: i32 = 304;
    let calls = || get!(0, out => tcuda_sim_call_count(out, null()));
    let allocated = || [0, 1].map(|device| get!(0, out => tcuda_memory_allocated(out, device)));
    ok!(tcuda_set_device(0));
    assert!(workload().iter().all(|status| *status == TCUDA_SUCCESS), "{}", message());
    let before = allocated();
    let (mut nth, mut struck) = (1, 0);
    loop {
        let first = calls();
        ok!(tcuda_sim_fail_at(null(), nth, OPERATING_SYSTEM));
        let statuses = workload();
        let made = calls() - first;
        ok!(tcuda_sim_clear_faults());
        let failed: Vec<_> = statuses.iter().filter(|status| **status != TCUDA_SUCCESS).collect();
        assert!(failed.len() <= 1 && failed.iter().all(|status| **status == TCUDA_ERROR_CUDA), "fault {nth}: {failed:?}");
        struck += failed.len() as u64;
        // Work that was enqueued before the fault may still hold a block.
        for device in [0, 1] {
            ok!(tcuda_synchronize(device));
        }
        assert_eq!((device(), allocated()), (0, before), "after fault {nth}");
        assert!(workload().iter().all(|status| *status == TCUDA_SUCCESS), "after fault {nth}: {}", message());
        if made < nth {
            break;
        }
        nth += 1;
    }
    assert!(nth > 40 && struck > nth / 2, "{struck} of {nth} faults struck");
}
