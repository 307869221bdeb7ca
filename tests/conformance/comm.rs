//! torch.cuda.comm over all devices there are (machines.rs makes other machines): results bit for bit, rules, faults. comm_order.rs has the
//! order.

use crate::kit::*;
use crate::reference::{self, *};
use crate::tensor::{CPU, Layout, Managed, Random, Storage, Where, contents, refused};
use crate::{get, ok, tests};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tcuda::base::dlpack::{tcuda_managed_tensor_t, tcuda_tensor_t};
use tcuda::base::dtype::DType;
use tcuda::base::status::tcuda_status_t::{self, *};
use tcuda::capi::comm::*;
use tcuda::capi::copy::{tcuda_copy, tcuda_memset_async};
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::memory::*;
use tcuda::capi::sim::{tcuda_sim_call_count, tcuda_sim_clear_faults, tcuda_sim_fail_at};
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::capi::tensor::*;
use tcuda::stream::HANDLE_CURRENT;

tests![
    broadcasts_of_every_type_and_layout,
    broadcasts_into_tensors_that_are_there,
    broadcasts_of_many_tensors,
    sums_of_every_type_and_layout,
    sums_of_more_inputs_than_a_launch_takes,
    sums_of_many_tensors,
    pieces_come_back_as_they_were,
    pieces_are_torchs,
    gathered_formats_are_torchs,
    large_tensors_by_every_way,
    chunks_arrive_where_they_belong,
    many_tensors_go_round_a_ring,
    a_sum_on_its_way_needs_memory_and_does_without: [TwoDevices, Unwatched, Unfilled],
    the_rules_are_torchs,
    tensors_say_where_they_come_from,
    pieces_on_streams_of_the_caller,
    each_call_of_the_backend_may_fail_once: [Faults, TwoDevices, Unfilled],
];

const INVALID: tcuda_status_t = TCUDA_ERROR_INVALID_ARGUMENT;

pub type Out = *mut tcuda_managed_tensor_t;

pub fn devices() -> Vec<i32> {
    (0..device_count().min(8)).collect()
}

/// A tensor with a layout of its own, its elements in the order of its indices, and what its storage holds.
struct Tensor {
    _storage: Storage,
    layout: Layout,
    tensor: tcuda_tensor_t,
    elements: Vec<Vec<u8>>,
}

impl Tensor {
    fn of(random: &mut Random, place: Where, mut layout: Layout) -> Tensor {
        let bytes = contents(random, layout.dtype, layout.elements);
        let storage = Storage::new(place, &bytes);
        let tensor = layout.tensor(&storage);
        let item = layout.item();
        let elements = layout.positions(&layout.shape).into_iter().map(|at| bytes[at..at + item].to_vec()).collect();
        Tensor { _storage: storage, layout, tensor, elements }
    }

    fn random(random: &mut Random, place: Where, dtype: DType, shape: &[i64]) -> Tensor {
        let layout = if random.below(2) == 0 { packed(dtype, shape) } else { Layout::random(random, dtype, shape, false) };
        Tensor::of(random, place, layout)
    }
}

fn packed(dtype: DType, shape: &[i64]) -> Layout {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim].max(1);
    }
    Layout { dtype, shape: shape.to_vec(), strides, offset: 0, elements: shape.iter().product::<i64>() as usize + 3 }
}

fn pointers<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Vec<*const tcuda_tensor_t> {
    tensors.into_iter().map(|tensor| &raw const tensor.tensor).collect()
}

/// The elements in the order of the indices.
fn elements(tensor: &tcuda_tensor_t) -> Vec<Vec<u8>> {
    let sizes = |numbers: *mut i64| match tensor.ndim {
        0 => Vec::new(),
        ndim => unsafe { std::slice::from_raw_parts(numbers, ndim as usize) }.to_vec(),
    };
    let (shape, strides) = (sizes(tensor.shape), sizes(tensor.strides));
    if shape.contains(&0) {
        return Vec::new();
    }
    let reach: i64 = shape.iter().zip(&strides).map(|(size, stride)| (size - 1) * stride).sum();
    let item = tensor.dtype.size();
    let mut bytes = vec![0; (reach + 1) as usize * item];
    ok!(tcuda_copy(bytes.as_mut_ptr().cast(), tensor.data.wrapping_byte_add(tensor.byte_offset as usize), bytes.len(), false));
    let layout = Layout { dtype: tensor.dtype, shape: shape.clone(), strides, offset: 0, elements: 0 };
    layout.positions(&shape).into_iter().map(|at| bytes[at..at + item].to_vec()).collect()
}

fn origin(tensor: Out) -> tcuda_tensor_origin_t {
    get!(tcuda_tensor_origin_t::TCUDA_TENSOR_NEW, out => tcuda_tensor_origin(tensor, out))
}

use tcuda_tensor_origin_t::{TCUDA_TENSOR_INPUT as INPUT, TCUDA_TENSOR_NEW as NEW, TCUDA_TENSOR_VIEW as VIEW};

/// Where a source may be.
fn places() -> Vec<Where> {
    let mut places: Vec<Where> = devices().into_iter().map(Where::Device).collect();
    places.extend([Where::Pageable, Where::Pinned]);
    places
}

fn types() -> impl Iterator<Item = DType> + Clone {
    TYPES.into_iter().chain([F8])
}

/// Outputs, destroyed at the end.
pub fn made(count: usize, call: impl FnOnce(*mut Out) -> tcuda_status_t) -> Vec<Managed> {
    let mut outs = vec![null_mut(); count];
    let status = call(outs.as_mut_ptr());
    assert_eq!(status, TCUDA_SUCCESS, "{}", message());
    outs.into_iter().filter(|out| !out.is_null()).map(Managed).collect()
}

fn shape_of(random: &mut Random) -> Vec<i64> {
    let ndim = random.below(4);
    (0..ndim).map(|_| random.pick(&[1i64, 2, 3, 5, 8, 33, 0, 4]) * if random.below(12) == 0 { 40 } else { 1 }).collect()
}

fn broadcasts_of_every_type_and_layout() {
    let random = &mut Random(1);
    for (round, dtype) in types().cycle().take(96).enumerate() {
        let place = random.pick(&places());
        let shape = shape_of(random);
        let source = Tensor::random(random, place, dtype, &shape);
        // Some twice.
        let targets: Vec<i32> = (0..random.below(2 * devices().len()) + 1).map(|_| random.pick(&devices())).collect();
        let outs = made(targets.len(), |outs| unsafe { tcuda_comm_broadcast(outs, &source.tensor, targets.as_ptr(), targets.len()) });
        for (out, device) in outs.iter().zip(&targets) {
            assert_eq!((out.tensor().device.device_type, out.tensor().device.device_id), (2, *device));
            assert_eq!(out.shape(), shape);
            let same = place == Where::Device(*device);
            assert_eq!(origin(out.0), if same { INPUT } else { NEW });
            assert_eq!(elements(out.tensor()), source.elements, "round {round}: {dtype:?} {shape:?} from {place:?} to {device}");
        }
    }
    let source = Tensor::random(random, Where::Device(0), F32, &[3]);
    assert!(made(1, |outs| unsafe { tcuda_comm_broadcast(outs, &source.tensor, null(), 0) }).is_empty());
}

fn broadcasts_into_tensors_that_are_there() {
    let random = &mut Random(2);
    for dtype in types().cycle().take(64) {
        let shape = shape_of(random);
        let place = random.pick(&places());
        let source = Tensor::random(random, place, dtype, &shape);
        let count = random.below(4);
        let outs: Vec<Tensor> = (0..count)
            .map(|_| {
                let place = Where::Device(random.pick(&devices()));
                let other = if dtype != F8 && random.below(4) == 0 { F64 } else { dtype };
                Tensor::random(random, place, other, &shape)
            })
            .collect();
        ok!(tcuda_comm_broadcast_out(&source.tensor, pointers(&outs).as_ptr(), outs.len()));
        for out in &outs {
            let found = elements(&out.tensor);
            for (found, source) in found.iter().zip(&source.elements) {
                if out.layout.dtype == dtype {
                    assert_eq!(found, source);
                } else {
                    let expected = reference::write(reference::read(source, dtype), F64).unwrap();
                    assert!(reference::same(found, &expected, F64), "{dtype:?}: {source:02x?} gave {found:02x?}");
                }
            }
        }
    }
    // Into itself: nothing happens.
    let source = Tensor::random(random, Where::Device(0), F32, &[5]);
    ok!(tcuda_comm_broadcast_out(&source.tensor, pointers([&source]).as_ptr(), 1));
    assert_eq!(elements(&source.tensor), source.elements);
}

fn broadcasts_of_many_tensors() {
    let random = &mut Random(3);
    for count in [0usize, 1, 7, 200] {
        let home = random.pick(&devices());
        let tensors: Vec<Tensor> = (0..count)
            .map(|_| {
                let dtype = random.pick(&types().collect::<Vec<_>>());
                let shape = shape_of(random);
                Tensor::random(random, Where::Device(home), dtype, &shape)
            })
            .collect();
        let targets: Vec<i32> = [home].into_iter().chain(devices()).collect();
        let outs = made(count * targets.len(), |outs| unsafe {
            tcuda_comm_broadcast_coalesced(outs, pointers(&tensors).as_ptr(), count, targets.as_ptr(), targets.len(), 1 << 20)
        });
        for (at, out) in outs.iter().enumerate() {
            let (device, source) = (targets[at / count], &tensors[at % count]);
            assert_eq!(origin(out.0), if at < count { INPUT } else { NEW });
            assert_eq!(out.tensor().device.device_id, device);
            assert_eq!(out.shape(), source.layout.shape);
            assert_eq!(elements(out.tensor()), source.elements, "{at}: {:?}", source.layout);
        }
    }
}

/// The sum of two, each addition in the type that tcuda promises.
fn sum_of(inputs: &[&Vec<u8>], dtype: DType) -> Vec<u8> {
    let numbers = inputs.iter().map(|bytes| reference::read(bytes, dtype));
    let narrow = dtype.bits / (1 + u8::from(dtype.code == 5)) <= 32;
    let add = |a: f64, b: f64| if narrow { f64::from(a as f32 + b as f32) } else { a + b };
    let sum = numbers.reduce(|a, b| match (a, b) {
        (Number::Integer(a), Number::Integer(b)) if dtype == BOOL => Number::Integer(a | b),
        (Number::Integer(a), Number::Integer(b)) => Number::Integer(a + b),
        (Number::Real(a), Number::Real(b)) => Number::Real(add(a, b)),
        (Number::Complex(a, c), Number::Complex(b, d)) => Number::Complex(add(a, b), add(c, d)),
        _ => unreachable!(),
    });
    reference::write(sum.unwrap(), dtype).unwrap()
}

/// The destination's last one first, then the others.
fn in_order<'a>(inputs: &'a [&'a Tensor], destination: i32) -> Vec<&'a Tensor> {
    let root = inputs.iter().rposition(|input| input.tensor.device.device_id == destination).unwrap();
    let others = (0..inputs.len()).filter(|at| *at != root).map(|at| inputs[at]);
    [inputs[root]].into_iter().chain(others).collect()
}

fn check_sum(out: &Managed, inputs: &[&Tensor], destination: i32) {
    let dtype = inputs[0].layout.dtype;
    assert_eq!(out.tensor().device.device_id, destination);
    assert_eq!(out.shape(), inputs[0].layout.shape);
    assert_eq!(origin(out.0), if inputs.len() == 1 { INPUT } else { NEW });
    let order = in_order(inputs, destination);
    for (at, found) in elements(out.tensor()).iter().enumerate() {
        let parts: Vec<&Vec<u8>> = order.iter().map(|input| &input.elements[at]).collect();
        let expected = sum_of(&parts, dtype);
        assert!(
            reference::same(found, &expected, dtype),
            "{dtype:?} element {at}: {parts:02x?} gave {found:02x?}, expected {expected:02x?}"
        );
    }
}

fn sums_of_every_type_and_layout() {
    let random = &mut Random(4);
    for (round, dtype) in TYPES.into_iter().cycle().take(120).enumerate() {
        let shape = shape_of(random);
        let destination = random.pick(&devices());
        let mut homes: Vec<i32> = (0..random.below(devices().len() + 2)).map(|_| random.pick(&devices())).collect();
        homes.insert(random.below(homes.len() + 1), destination);
        let alike = round % 3 == 0;
        let layout = Layout::random(random, dtype, &shape, false);
        let inputs: Vec<Tensor> = homes
            .iter()
            .map(|home| match alike {
                true => Tensor::of(random, Where::Device(*home), layout.clone()),
                false => Tensor::random(random, Where::Device(*home), dtype, &shape),
            })
            .collect();
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let list = pointers(inputs.iter().copied());
        let out = made(1, |out| unsafe { tcuda_comm_reduce_add(out, list.as_ptr(), list.len(), destination) });
        check_sum(&out[0], &inputs, destination);
    }
}

fn sums_of_more_inputs_than_a_launch_takes() {
    let random = &mut Random(5);
    for count in [63, 64, 65, 127, 128, 200] {
        let inputs: Vec<Tensor> =
            (0..count).map(|at| Tensor::random(random, Where::Device(at % device_count().min(8)), I64, &[7])).collect();
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let list = pointers(inputs.iter().copied());
        let out = made(1, |out| unsafe { tcuda_comm_reduce_add(out, list.as_ptr(), list.len(), 0) });
        check_sum(&out[0], &inputs, 0);
    }
}

fn sums_of_many_tensors() {
    let random = &mut Random(6);
    for count in [0usize, 1, 9, 150] {
        let destination = random.pick(&devices());
        let kinds: Vec<(DType, Vec<i64>)> = (0..count).map(|_| (random.pick(&TYPES), shape_of(random))).collect();
        let mut inputs = Vec::new();
        for device in devices() {
            for (dtype, shape) in &kinds {
                inputs.push(Tensor::random(random, Where::Device(device), *dtype, shape));
            }
        }
        let list = pointers(&inputs);
        let outs = made(count, |outs| unsafe {
            tcuda_comm_reduce_add_coalesced(outs, list.as_ptr(), count, devices().len(), destination, 10 << 20)
        });
        for (at, out) in outs.iter().enumerate() {
            let parts: Vec<&Tensor> = inputs.iter().skip(at).step_by(count).collect();
            check_sum(out, &parts, destination);
        }
    }
}

/// Elements of the pieces, each cut along `dim`, put together again.
fn joined(pieces: &[(Vec<i64>, Vec<Vec<u8>>)], dim: usize) -> Vec<Vec<u8>> {
    let outer: i64 = pieces[0].0[..dim].iter().product();
    let mut all = Vec::new();
    for index in 0..outer as usize {
        for (shape, elements) in pieces {
            let inner = shape[dim..].iter().product::<i64>() as usize;
            all.extend_from_slice(&elements[index * inner..(index + 1) * inner]);
        }
    }
    all
}

fn pieces_come_back_as_they_were() {
    let random = &mut Random(7);
    let count = devices().len();
    for (round, dtype) in types().cycle().take(96).enumerate() {
        let mut shape = shape_of(random);
        if shape.is_empty() {
            shape.push(5);
        }
        let dim = random.below(shape.len());
        let place = random.pick(&places());
        let source = Tensor::random(random, place, dtype, &shape);
        let mut targets = devices();
        targets.rotate_left(random.below(count));
        let wrapped = if random.below(2) == 0 { dim as i32 } else { dim as i32 - shape.len() as i32 };
        // Sizes that are given, some of them zero.
        let mut left = shape[dim];
        let mut sizes: Vec<i64> = (1..count)
            .map(|_| {
                let size = random.below(left as usize + 1) as i64;
                left -= size;
                size
            })
            .collect();
        sizes.push(left);
        let given = if random.below(2) == 0 { sizes.as_ptr() } else { null() };
        let pieces =
            made(count, |outs| unsafe { tcuda_comm_scatter(outs, &source.tensor, targets.as_ptr(), count, given, wrapped, null()) });
        let case = format!("round {round}: {:?} in {place:?}, dim {dim}, sizes {sizes:?} ({})", source.layout, !given.is_null());
        let mut parts = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.tensor().device.device_id, targets[at], "{case}");
            assert_eq!(origin(piece.0), if place == Where::Device(targets[at]) { VIEW } else { NEW }, "{case}");
            assert!(given.is_null() || piece.shape()[dim] == sizes[at], "{case}");
            parts.push((piece.shape().to_vec(), elements(piece.tensor())));
        }
        assert_eq!(joined(&parts, dim), source.elements, "{case}");

        let list: Vec<*const tcuda_tensor_t> = pieces.iter().map(|piece| std::ptr::from_ref(piece.tensor())).collect();
        let destination = if random.below(3) == 0 { CPU } else { random.pick(&devices()) };
        let whole = made(1, |out| unsafe { tcuda_comm_gather(out, list.as_ptr(), list.len(), wrapped, destination) });
        assert_eq!(whole[0].shape(), shape);
        assert_eq!(whole[0].tensor().device.device_type, if destination == CPU { 1 } else { 2 });
        assert_eq!((elements(whole[0].tensor()), origin(whole[0].0)), (source.elements.clone(), NEW), "{case} to {destination}");

        // And into tensors that are there, of some other layout.
        let fill = |random: &mut Random, place, shape: &[i64]| Tensor::random(random, place, dtype, shape);
        let outs: Vec<Tensor> =
            pieces.iter().zip(&targets).map(|(piece, device)| fill(random, Where::Device(*device), piece.shape())).collect();
        ok!(tcuda_comm_scatter_out(&source.tensor, pointers(&outs).as_ptr(), outs.len(), wrapped, null()));
        let parts: Vec<_> = outs.iter().map(|out| (out.layout.shape.clone(), elements(&out.tensor))).collect();
        assert_eq!(joined(&parts, dim), source.elements, "{case}");
        let place = random.pick(&places());
        let out = fill(random, place, &shape);
        ok!(tcuda_comm_gather_out(&out.tensor, list.as_ptr(), list.len(), wrapped));
        if place == Where::Pinned {
            devices().into_iter().for_each(|device| ok!(tcuda_synchronize(device)));
        }
        assert_eq!(elements(&out.tensor), source.elements, "{case} into {:?}", out.layout);
    }
}

fn pieces_are_torchs() {
    let random = &mut Random(8);
    let source = Tensor::random(random, Where::Device(0), F32, &[5, 2]);
    let targets = [0; 4];
    let mut outs = [std::ptr::dangling_mut(); 4];
    ok!(tcuda_comm_scatter(outs.as_mut_ptr(), &source.tensor, targets.as_ptr(), 4, null(), 0, null()));
    // Three pieces of two rows at most, and none for the fourth.
    let rows: Vec<i64> = outs[..3].iter().map(|out| unsafe { *(**out).tensor.shape }).collect();
    assert_eq!((rows, outs[3]), (vec![2, 2, 1], null_mut()));
    outs[..3].iter().for_each(|out| ok!(tcuda_tensor_destroy(*out)));
    let none = Tensor::random(random, Where::Device(0), F32, &[0, 2]);
    let pieces = made(4, |outs| unsafe { tcuda_comm_scatter(outs, &none.tensor, targets.as_ptr(), 4, null(), 0, null()) });
    assert_eq!(pieces.len(), 4);
    // Types are converted to that of the first.
    let last = *devices().last().unwrap();
    let (wide, narrow) = (Tensor::random(random, Where::Device(0), F64, &[2]), Tensor::random(random, Where::Device(last), U8, &[3]));
    let whole = made(1, |out| unsafe { tcuda_comm_gather(out, pointers([&wide, &narrow]).as_ptr(), 2, 0, last) });
    let converted = narrow.elements.iter().map(|bytes| reference::write(reference::read(bytes, U8), F64).unwrap());
    assert_eq!(elements(whole[0].tensor()), wide.elements.iter().cloned().chain(converted).collect::<Vec<_>>());
}

fn gathered_formats_are_torchs() {
    let random = &mut Random(9);
    let last = Layout { dtype: F32, shape: vec![2, 3, 4, 5], strides: vec![60, 1, 15, 3], offset: 0, elements: 123 };
    let inputs = [Tensor::of(random, Where::Device(0), last.clone()), Tensor::of(random, Where::Device(0), last)];
    let plain = Tensor::of(random, Where::Device(0), packed(F32, &[2, 3, 4, 5]));
    let gather = |tensors: [&Tensor; 2]| made(1, |out| unsafe { tcuda_comm_gather(out, pointers(tensors).as_ptr(), 2, 1, 0) });
    let alike = gather([&inputs[0], &inputs[1]]);
    assert_eq!((alike[0].shape(), alike[0].strides()), (&[2, 6, 4, 5][..], &[120, 1, 30, 6][..]));
    for mixed in [gather([&inputs[0], &plain]), gather([&plain, &inputs[0]])] {
        assert_eq!(mixed[0].strides(), [120, 20, 5, 1]);
    }
}

/// More than two large ones, which is what a stage holds, among small ones.
fn large_and_small(random: &mut Random, way: &str) {
    let counts = [262_145, 5, 262_144, 7, 262_146];
    let model: Vec<Vec<Tensor>> = devices()
        .into_iter()
        .map(|device| counts.map(|count| Tensor::random(random, Where::Device(device), I32, &[count])).into())
        .collect();
    let list = pointers(model.iter().flatten());
    let sums =
        made(counts.len(), |out| unsafe { tcuda_comm_reduce_add_coalesced(out, list.as_ptr(), counts.len(), devices().len(), 0, 0) });
    for (at, sum) in sums.iter().enumerate() {
        let of = |element: usize| sum_of(&model.iter().map(|inputs| &inputs[at].elements[element]).collect::<Vec<_>>(), I32);
        assert!(elements(sum.tensor()).into_iter().eq((0..counts[at] as usize).map(of)), "sum {at} of several by {way}");
    }
    let copies = made(counts.len() * devices().len(), |out| unsafe {
        tcuda_comm_broadcast_coalesced(out, list.as_ptr(), counts.len(), devices().as_ptr(), devices().len(), 0)
    });
    for (at, copy) in copies.iter().enumerate() {
        assert!(elements(copy.tensor()) == model[0][at % counts.len()].elements, "copy {at} of several by {way}");
    }
}

/// Sizes beyond a tile and a share of a device, with odd ends; unaligned too.
fn large_tensors_by_every_way() {
    let random = &mut Random(10);
    let before = tcuda::base::config::get("TCUDA_COMM_WAY");
    for way in ["kernel", "copies", "both", "ring", "split"] {
        tcuda::base::config::set("TCUDA_COMM_WAY", way.into());
        for (count, offset) in [(300_011, 0), (70_001, 0), (70_002, 1), (9, 0)] {
            let layout = Layout { offset, elements: count as usize + 2, ..packed(I32, &[count]) };
            let inputs: Vec<Tensor> =
                devices().into_iter().map(|device| Tensor::of(random, Where::Device(device), layout.clone())).collect();
            let targets = devices();
            let list = pointers(&inputs);
            let outs = made(targets.len(), |outs| unsafe { tcuda_comm_broadcast(outs, list[0], targets.as_ptr(), targets.len()) });
            for out in &outs {
                assert!(elements(out.tensor()) == inputs[0].elements, "broadcast of {count} by {way}");
            }
            let sum = made(1, |out| unsafe { tcuda_comm_reduce_add(out, list.as_ptr(), list.len(), 0) });
            let expected = (0..count as usize).map(|at| sum_of(&inputs.iter().map(|input| &input.elements[at]).collect::<Vec<_>>(), I32));
            assert!(elements(sum[0].tensor()).into_iter().eq(expected), "sum of {count} by {way}");
        }
        if way == "copies" || way == "both" {
            large_and_small(random, way);
        }
        let wide = Tensor::of(random, Where::Device(0), packed(U8, &[3, 600_000]));
        let targets: Vec<i32> = devices().into_iter().rev().collect();
        let pieces = made(targets.len(), |outs| unsafe {
            tcuda_comm_scatter(outs, &wide.tensor, targets.as_ptr(), targets.len(), null(), 1, null())
        });
        let list: Vec<*const tcuda_tensor_t> = pieces.iter().map(|piece| std::ptr::from_ref(piece.tensor())).collect();
        let whole = made(1, |out| unsafe { tcuda_comm_gather(out, list.as_ptr(), list.len(), 1, targets[0]) });
        assert!(elements(whole[0].tensor()) == wide.elements, "pieces by {way}");
    }
    tcuda::base::config::exchange("TCUDA_COMM_WAY", Some("teleport".into()));
    let tensor = Tensor::random(random, Where::Device(0), F32, &[3]);
    if device_count() > 1 {
        let status = unsafe { tcuda_comm_broadcast([null_mut(); 1].as_mut_ptr(), &tensor.tensor, [1].as_ptr(), 1) };
        refused(status, INVALID, "TCUDA_COMM_WAY is 'teleport'");
    }
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before);
}

/// Several tiles for each block, and several chunks where there are three devices and more and events tie a ring, the last of them short.
/// What outputs are given is wiped first.
fn chunks_arrive_where_they_belong() {
    const COUNT: usize = (13 << 18) + 5;
    let value = |device: usize, at: usize| (at as i32).wrapping_mul(0x9e37_79b1_u32 as i32).rotate_left(device as u32);
    let bytes = |values: &mut dyn Iterator<Item = i32>| values.flat_map(i32::to_ne_bytes).collect::<Vec<u8>>();
    let all = devices();
    let inputs: Vec<Storage> = all
        .iter()
        .map(|device| Storage::new(Where::Device(*device), &bytes(&mut (0..COUNT).map(|at| value(*device as usize, at)))))
        .collect();
    let mut layout = packed(I32, &[COUNT as i64]);
    let tensors: Vec<tcuda_tensor_t> = inputs.iter().map(|input| layout.tensor(input)).collect();
    let list: Vec<*const tcuda_tensor_t> = tensors.iter().map(|tensor| &raw const *tensor).collect();
    let held = |out: &Managed| {
        let mut bytes = vec![0; COUNT * 4];
        ok!(tcuda_copy(bytes.as_mut_ptr().cast(), out.tensor().data, bytes.len(), false));
        bytes
    };
    let sum = bytes(&mut (0..COUNT).map(|at| (0..all.len()).fold(0, |sum: i32, device| sum.wrapping_add(value(device, at)))));
    let wipe = || {
        let blocks: Vec<Managed> = all.iter().map(|device| Managed::empty(*device, I32, &[COUNT as i64])).collect();
        blocks
            .iter()
            .for_each(|block| ok!(tcuda_memset_async(block.tensor().data, 0xee, COUNT * 4, default_of(block.tensor().device.device_id))));
    };
    let before = tcuda::base::config::get("TCUDA_COMM_WAY");
    for way in ["kernel", "copies", "ring", "split"] {
        tcuda::base::config::exchange("TCUDA_COMM_WAY", Some(way.into()));
        wipe();
        let outs = made(all.len(), |outs| unsafe { tcuda_comm_broadcast(outs, list[0], all.as_ptr(), all.len()) });
        assert!(outs.iter().all(|out| held(out) == held(&outs[0])), "broadcast by {way}");
        drop(outs);
        wipe();
        let sums = made(1, |out| unsafe { tcuda_comm_reduce_add(out, list.as_ptr(), list.len(), 0) });
        assert!(held(&sums[0]) == sum, "sum by {way}");
    }
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before);
}

/// More than a launch takes, several times.
fn many_tensors_go_round_a_ring() {
    const COUNT: usize = 130;
    let random = &mut Random(12);
    let before = tcuda::base::config::exchange("TCUDA_COMM_WAY", Some("ring".into()));
    let inputs: Vec<Tensor> = (0..COUNT).map(|at| Tensor::random(random, Where::Device(0), I32, &[1 + 97 * at as i64])).collect();
    let (list, all) = (pointers(&inputs), devices());
    for _ in 0..3 {
        let copies =
            made(COUNT * all.len(), |out| unsafe { tcuda_comm_broadcast_coalesced(out, list.as_ptr(), COUNT, all.as_ptr(), all.len(), 0) });
        for (at, copy) in copies.iter().enumerate() {
            assert!(elements(copy.tensor()) == inputs[at % COUNT].elements, "copy {at}");
            // What the next round is given held something else.
            if at >= COUNT {
                ok!(tcuda_memset_async(copy.tensor().data, 0xee, 4 * (1 + 97 * (at % COUNT)), default_of(copy.tensor().device.device_id)));
            }
        }
    }
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before);
}

/// What comes to a device is added to and handed on. Where there is no room for it, or partial sums would be rounded, it takes another way,
/// which nobody hears of.
fn a_sum_on_its_way_needs_memory_and_does_without() {
    const BYTES: usize = (13 << 20) + 16;
    let before = tcuda::base::config::get("TCUDA_COMM_WAY");
    for (dtype, goes) in [(F32, true), (F64, true), (I64, true), (F16, false), (BF16, false), (U8, false)] {
        let input = |device: i32| {
            let input = Managed::empty(device, dtype, &[(BYTES / dtype.size()) as i64]);
            // Numbers that are no NaN of any type.
            let bytes: Vec<u8> = (0..BYTES).map(|at| ((at * (2 * device as usize + 37)) >> 3) as u8 & 0x3f).collect();
            ok!(tcuda_copy(input.tensor().data, bytes.as_ptr().cast(), BYTES, false));
            input
        };
        let inputs: Vec<Managed> = devices().into_iter().map(input).collect();
        let list: Vec<_> = inputs.iter().map(|input| std::ptr::from_ref(input.tensor())).collect();
        let sum = |way: &str| {
            tcuda::base::config::exchange("TCUDA_COMM_WAY", Some(way.into()));
            let sum = made(1, |out| unsafe { tcuda_comm_reduce_add(out, list.as_ptr(), list.len(), 0) });
            let mut bytes = vec![0; BYTES];
            ok!(tcuda_copy(bytes.as_mut_ptr().cast(), sum[0].tensor().data, BYTES, false));
            bytes
        };
        let right = sum("split");
        for limit in [None, Some(1)] {
            devices().into_iter().for_each(|device| ok!(tcuda_synchronize(device)));
            ok!(tcuda_empty_cache(-3));
            let _limit = limit.map(|limit| Limit::of(1, limit));
            ok!(tcuda_reset_peak_memory_stats(1));
            assert!(sum("ring") == right, "{dtype:?}, {limit:?}");
            let took = stat(1, "allocated_bytes.all.peak") - stat(1, "allocated_bytes.all.current");
            let expected = match (goes && crate::comm_order::all_are_peers(), limit) {
                (true, None) => 2 << 20..=BYTES as i64 + (1 << 20),
                // Room for a few counters is there.
                (true, _) => 0..=64 << 10,
                (false, _) => 0..=0,
            };
            assert!(expected.contains(&took), "{dtype:?}, {limit:?}: {took} bytes");
            assert_eq!(stat(1, "num_ooms"), 0);
        }
    }
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before);
}

fn the_rules_are_torchs() {
    let random = &mut Random(11);
    let on = |random: &mut Random, place, dtype, shape: &[i64]| Tensor::random(random, place, dtype, shape);
    let device = Where::Device(0);
    let gpu = on(random, device, F32, &[2, 3]);
    let cpu = on(random, Where::Pageable, F32, &[2, 3]);
    let other = on(random, device, F32, &[2, 4]);
    let long = on(random, device, F32, &[2, 3, 1]);
    let single = on(random, device, F32, &[]);
    let f16 = on(random, device, F16, &[2, 3]);
    let f8 = on(random, device, F8, &[2, 3]);
    let mut outs = [std::ptr::dangling_mut(); 4];
    let mut out = outs.as_mut_ptr();

    let broadcast =
        |tensor: &Tensor, devices: &[i32]| unsafe { tcuda_comm_broadcast(out, &tensor.tensor, devices.as_ptr(), devices.len()) };
    refused(broadcast(&gpu, &[0, -1]), INVALID, "Expected non-negative device index, but got -1");
    refused(broadcast(&gpu, &[0, 99]), TCUDA_ERROR_INVALID_DEVICE, "99");
    refused(broadcast(&cpu, &[CPU]), INVALID, "Expected non-negative device index, but got -2");
    let broadcast_out = |tensor: &Tensor, outs: &[&Tensor]| unsafe {
        tcuda_comm_broadcast_out(&tensor.tensor, pointers(outs.iter().copied()).as_ptr(), outs.len())
    };
    refused(broadcast_out(&gpu, &[&f16, &cpu]), INVALID, "Expected all output tensors to be CUDA tensors, but output tensor at index 1");
    refused(broadcast_out(&gpu, &[&other]), INVALID, "Expected all output tensors to have same shape as the source tensor [2, 3]");
    refused(unsafe { tcuda_comm_broadcast_out(&gpu.tensor, [null()].as_ptr(), 1) }, INVALID, "'outs[0]' is NULL");
    let coalesced = |tensors: &[&Tensor], devices: &[i32]| unsafe {
        let list = pointers(tensors.iter().copied());
        tcuda_comm_broadcast_coalesced(out, list.as_ptr(), list.len(), devices.as_ptr(), devices.len(), 0)
    };
    refused(coalesced(&[&gpu], &[]), INVALID, "Expected at least one device");
    refused(coalesced(&[&gpu, &cpu], &[0]), INVALID, "All tensors must be on devices[0]: 0, but tensor 1 is in host memory");
    refused(coalesced(&[&gpu], &[-1]), INVALID, "Expected non-negative device index");

    let reduce = |inputs: &[&Tensor], destination| unsafe {
        let list = pointers(inputs.iter().copied());
        tcuda_comm_reduce_add(out, list.as_ptr(), list.len(), destination)
    };
    refused(reduce(&[], 0), INVALID, "at least one tensor");
    refused(reduce(&[&gpu, &cpu], 0), INVALID, "reduce_add expects all inputs to be on GPUs, but input 1 is on CPU");
    refused(reduce(&[&gpu, &other], 0), INVALID, "input 1 has invalid size: got 2x4, but expected 2x3");
    refused(reduce(&[&gpu, &f16], 0), INVALID, "input 1 has another type");
    refused(reduce(&[&f8, &f8], 0), TCUDA_ERROR_NOT_SUPPORTED, "with which tcuda cannot compute");
    refused(reduce(&[&gpu], 99), TCUDA_ERROR_INVALID_DEVICE, "99");
    if device_count() > 1 {
        refused(reduce(&[&gpu], 1), INVALID, "reduce_add expects destination to be on the same GPU with one of the tensors");
    }
    let reduce_coalesced = |list: &[&Tensor], count, devices| unsafe {
        tcuda_comm_reduce_add_coalesced(out, pointers(list.iter().copied()).as_ptr(), count, devices, 0, 0)
    };
    refused(reduce_coalesced(&[&gpu, &gpu, &gpu, &other], 2, 2), INVALID, "input 1 has invalid size");
    refused(reduce_coalesced(&[], 1, 0), INVALID, "at least one tensor");
    refused(reduce_coalesced(&[], usize::MAX, 2), INVALID, "more than memory can hold");

    let scatter = |tensor: &Tensor, devices: &[i32], sizes: Option<&[i64]>, dim| unsafe {
        let sizes = sizes.map_or(null(), <[i64]>::as_ptr);
        tcuda_comm_scatter(out, &tensor.tensor, devices.as_ptr(), devices.len(), sizes, dim, null())
    };
    refused(scatter(&gpu, &[], None, 0), INVALID, "Expected at least one device to scatter to");
    refused(scatter(&cpu, &[-1], None, 0), INVALID, "Expected non-negative device index, but got -1");
    refused(scatter(&gpu, &[0, 0], Some(&[1, 2]), 0), INVALID, "sum exactly to 2");
    refused(scatter(&gpu, &[0, 0], Some(&[3, -1]), 0), INVALID, "non-negative entries");
    refused(scatter(&gpu, &[0], None, 2), INVALID, "Dimension out of range (expected to be in range of [-2, 1], but got 2)");
    refused(scatter(&single, &[0], None, 0), INVALID, "tensor has no dimensions");
    let scatter_out = |tensor: &Tensor, outs: &[&Tensor], dim| unsafe {
        tcuda_comm_scatter_out(&tensor.tensor, pointers(outs.iter().copied()).as_ptr(), outs.len(), dim, null())
    };
    refused(scatter_out(&gpu, &[], 0), INVALID, "Expected at least one output tensor to scatter to");
    refused(scatter_out(&gpu, &[&cpu], 0), INVALID, "Expected all output tensors to be CUDA tensors");
    refused(scatter_out(&gpu, &[&other], 0), INVALID, "Output tensor at index 0 has incorrect shape: [2, 4]");
    refused(scatter_out(&gpu, &[&long], 0), INVALID, "Output tensor at index 0 has incorrect shape");
    refused(scatter_out(&gpu, &[&f16, &other], 1), INVALID, "Expected 3, but got total size 7");

    let gather = |tensors: &[&Tensor], dim, destination| unsafe {
        let list = pointers(tensors.iter().copied());
        tcuda_comm_gather(out, list.as_ptr(), list.len(), dim, destination)
    };
    refused(gather(&[], 0, 0), INVALID, "Expected at least one tensor to gather from");
    refused(gather(&[&gpu, &cpu], 0, 0), INVALID, "Expected all input tensors to be CUDA tensors, but tensor at index 1 has device 'cpu'");
    refused(gather(&[&gpu, &long], 0, 0), INVALID, "tensor at index 1 has 3 dimensions (expected 2)");
    refused(gather(&[&gpu, &other], 0, 0), INVALID, "Input tensor at index 1 has invalid shape [2, 4], but expected [2, 3]");
    refused(gather(&[&single], 0, 0), INVALID, "Dimension specified as 0 but tensor has no dimensions");
    refused(gather(&[&gpu], 0, 99), TCUDA_ERROR_INVALID_DEVICE, "99");
    let gather_out = |out: &Tensor, tensors: &[&Tensor], dim| unsafe {
        tcuda_comm_gather_out(&out.tensor, pointers(tensors.iter().copied()).as_ptr(), tensors.len(), dim)
    };
    refused(gather_out(&gpu, &[&gpu, &other], 1), INVALID, "Expected out tensor to have shape [2, 7], but got [2, 3]");

    // In place is no work, elsewhere in the same memory it would be torn.
    let eight = Managed::empty(0, F32, &[8]);
    let (shape, strides) = ([4i64], [1i64]);
    let half = |at: u64| {
        let (shape, strides) = (shape.as_ptr().cast_mut(), strides.as_ptr().cast_mut());
        tcuda_tensor_t { shape, strides, byte_offset: at * 16, ..*eight.tensor() }
    };
    let (first, second) = (half(0), half(1));
    type Halves = [*const tcuda_tensor_t; 2];
    let gather_halves = |halves: Halves| unsafe { tcuda_comm_gather_out(eight.tensor(), halves.as_ptr(), 2, 0) };
    let scatter_halves = |halves: Halves| unsafe { tcuda_comm_scatter_out(eight.tensor(), halves.as_ptr(), 2, 0, null()) };
    assert_eq!((gather_halves([&first, &second]), scatter_halves([&first, &second])), (TCUDA_SUCCESS, TCUDA_SUCCESS));
    refused(gather_halves([&second, &first]), INVALID, "Input tensor at index 0 overlaps the out tensor");
    refused(scatter_halves([&second, &first]), INVALID, "Output tensor at index 0 overlaps the source tensor");
    // Outputs that lie in each other would be torn as well; the same one twice gets the same twice in a broadcast.
    let middle = tcuda_tensor_t { byte_offset: 8, ..first };
    let four = Managed::empty(0, F32, &[4]);
    let broadcast_halves = |halves: Halves| unsafe { tcuda_comm_broadcast_out(four.tensor(), halves.as_ptr(), 2) };
    let source = Managed::empty(0, F32, &[8]);
    let scattered = |halves: Halves| unsafe { tcuda_comm_scatter_out(source.tensor(), halves.as_ptr(), 2, 0, null()) };
    refused(broadcast_halves([&second, &middle]), INVALID, "Output tensor at index 1 overlaps that at index 0");
    refused(scattered([&middle, &first]), INVALID, "Output tensor at index 1 overlaps that at index 0");
    assert_eq!([broadcast_halves([&second, &second]), scattered([&second, &first])], [TCUDA_SUCCESS; 2]);
    refused(scattered([&second, &second]), INVALID, "Output tensor at index 1 overlaps that at index 0");
    // One with nothing in it lies between them, and hides nothing.
    let none = [0i64];
    let nothing = tcuda_tensor_t { shape: none.as_ptr().cast_mut(), byte_offset: 4, ..first };
    let three = [&raw const first, &nothing, &middle];
    refused(
        unsafe { tcuda_comm_scatter_out(source.tensor(), three.as_ptr(), 3, 0, null()) },
        INVALID,
        "Output tensor at index 2 overlaps that at index 0",
    );

    // Data that is not where its tensor says.
    let astray = tcuda_tensor_t { data: 4096 as _, ..gpu.tensor };
    let shape = [1 << 20, 1];
    let beyond = tcuda_tensor_t { shape: shape.as_ptr().cast_mut(), strides: null_mut(), ..gpu.tensor };
    for (tensor, said) in [(astray, "tensors[0]"), (beyond, "past the end of their block")] {
        refused(unsafe { tcuda_comm_gather(out, [&raw const tensor].as_ptr(), 1, 0, 0) }, TCUDA_ERROR_INVALID_POINTER, said);
    }
    assert!(outs.iter().all(|out| *out == std::ptr::dangling_mut()), "an output was written on failure");
    // -1 is the current device, and nothing is an answer too.
    out = outs.as_mut_ptr();
    ok!(tcuda_comm_gather(out, [&raw const gpu.tensor].as_ptr(), 1, 0, -1));
    ok!(tcuda_tensor_destroy(outs[0]));
    assert_eq!(broadcast_out(&gpu, &[]), TCUDA_SUCCESS);
}

fn tensors_say_where_they_come_from() {
    let mine = Managed::empty(0, F32, &[2]);
    assert_eq!(origin(mine.0), NEW);
    let foreign = tcuda_managed_tensor_t { deleter: None, ..unsafe { *mine.0 } };
    let mut answer = NEW;
    refused(unsafe { tcuda_tensor_origin(&foreign, &mut answer) }, INVALID, "not made by tcuda");
    refused(unsafe { tcuda_tensor_origin(null(), &mut answer) }, INVALID, "'tensor' is NULL");
}

fn pieces_on_streams_of_the_caller() {
    let random = &mut Random(12);
    let streams: Vec<Own> = devices().into_iter().map(Own::on).collect();
    let mut handles: Vec<tcuda_stream_t> = streams.iter().map(|stream| stream.0).collect();
    // One without a stream of its own.
    *handles.last_mut().unwrap() = NULL;
    for place in [Where::Device(0), Where::Pageable, Where::Pinned] {
        let source = Tensor::of(random, place, packed(F32, &[40, 7]));
        let scatter = |handles: &[tcuda_stream_t], outs: *mut Out| unsafe {
            let devices = devices();
            tcuda_comm_scatter(outs, &source.tensor, devices.as_ptr(), devices.len(), null(), 0, handles.as_ptr())
        };
        let pieces = made(handles.len(), |outs| scatter(&handles, outs));
        let mut found = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            let stream = if handles[at].is_null() { default_of(at as i32) } else { handles[at] };
            let count = piece.shape().iter().product::<i64>() as usize;
            found.extend(bytes_of(piece.tensor().data, count * 4, stream));
        }
        assert_eq!(found, source.elements.concat());
        if device_count() > 1 {
            let crossed: Vec<tcuda_stream_t> = devices().into_iter().map(|_| handles[0]).collect();
            let mut outs = vec![null_mut(); crossed.len()];
            refused(scatter(&crossed, outs.as_mut_ptr()), INVALID, "Expected the device associated with the stream at index 1 (was 0)");
        }
        // A name that is a stream of each device means that of the piece's.
        for each in [1, 2, HANDLE_CURRENT] {
            let names: Vec<tcuda_stream_t> = devices().into_iter().map(|_| handle(each)).collect();
            let pieces = made(names.len(), |outs| scatter(&names, outs));
            devices().into_iter().for_each(|device| ok!(tcuda_synchronize(device)));
            let found = pieces.iter().flat_map(|piece| elements(piece.tensor()));
            assert!(found.eq(source.elements.iter().cloned()), "{each:#x}");
        }
        // The source's own device too, where a piece is copied.
        let outs: Vec<Tensor> = (0..2).map(|_| Tensor::of(random, Where::Device(0), packed(F64, &[20, 7]))).collect();
        ok!(tcuda_comm_scatter_out(&source.tensor, pointers(&outs).as_ptr(), 2, 0, [handles[0], handles[0]].as_ptr()));
        ok!(tcuda_synchronize(0));
        let expected = source.elements.iter().map(|bytes| reference::write(reference::read(bytes, F32), F64).unwrap());
        let found = outs.iter().flat_map(|out| elements(&out.tensor));
        assert!(found.zip(expected).all(|(found, expected)| reference::same(&found, &expected, F64)));
    }
}

/// A bit of everything; the statuses of all calls. What succeeds is right.
fn workload(inputs: &[Tensor], strided: &Tensor) -> Vec<tcuda_status_t> {
    let list = pointers(inputs);
    let pair = [0, 1];
    let mut statuses = Vec::new();
    let mut run = |count: usize, expected: &[&[Vec<u8>]], call: &dyn Fn(*mut Out) -> tcuda_status_t| {
        let mut outs = vec![null_mut(); count];
        let status = call(outs.as_mut_ptr());
        statuses.push(status);
        for (at, out) in outs.into_iter().enumerate() {
            assert_eq!(out.is_null(), status != TCUDA_SUCCESS, "an output was written on failure");
            if status == TCUDA_SUCCESS {
                let out = Managed(out);
                // Read without a call that the fault could hit.
                if tcuda_pending_fault() {
                    continue;
                }
                assert!(elements(out.tensor()) == expected[at], "output {at}");
            }
        }
    };
    let (first, second) = (&inputs[0].elements[..], &inputs[1].elements[..]);
    let sum: Vec<Vec<u8>> = first.iter().zip(second).map(|(a, b)| sum_of(&[a, b], I32)).collect();
    let joined = [first, second].concat();
    let half = first.len() / 2;
    run(2, &[first, first], &|outs| unsafe { tcuda_comm_broadcast(outs, list[0], pair.as_ptr(), 2) });
    run(1, &[&strided.elements], &|outs| unsafe { tcuda_comm_broadcast(outs, &strided.tensor, [1].as_ptr(), 1) });
    run(4, &[first, first, first, first], &|outs| unsafe {
        tcuda_comm_broadcast_coalesced(outs, [list[0], list[0]].as_ptr(), 2, pair.as_ptr(), 2, 0)
    });
    run(1, &[&sum], &|outs| unsafe { tcuda_comm_reduce_add(outs, list.as_ptr(), 2, 0) });
    run(1, &[&sum], &|outs| unsafe { tcuda_comm_reduce_add_coalesced(outs, list.as_ptr(), 1, 2, 0, 0) });
    run(2, &[&first[..half], &first[half..]], &|outs| unsafe { tcuda_comm_scatter(outs, list[0], pair.as_ptr(), 2, null(), 0, null()) });
    run(1, &[&joined], &|outs| unsafe { tcuda_comm_gather(outs, list.as_ptr(), 2, 0, 0) });
    run(1, &[&joined], &|outs| unsafe { tcuda_comm_gather(outs, list.as_ptr(), 2, 0, CPU) });
    statuses
}

/// Whether a fault still waits for its call.
fn tcuda_pending_fault() -> bool {
    FAULT.load(std::sync::atomic::Ordering::Relaxed) > get!(0, out => tcuda_sim_call_count(out, null()))
}

static FAULT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

fn each_call_of_the_backend_may_fail_once() {
    const OPERATING_SYSTEM: i32 = 304;
    let calls = || get!(0, out => tcuda_sim_call_count(out, null::<c_void>().cast()));
    let allocated = || [0, 1].map(|device| get!(0, out => tcuda_memory_allocated(out, device)));
    let random = &mut Random(13);
    let before_way = tcuda::base::config::get("TCUDA_COMM_WAY");
    for way in [None, Some("copies"), Some("both"), Some("ring"), Some("split")] {
        tcuda::base::config::exchange("TCUDA_COMM_WAY", way.map(str::to_owned));
        let inputs: Vec<Tensor> = (0..2).map(|device| Tensor::of(random, Where::Device(device), packed(I32, &[64, 3]))).collect();
        let strided = Tensor::of(random, Where::Device(0), Layout { strides: vec![1, 64], ..packed(F8, &[64, 3]) });
        assert!(workload(&inputs, &strided).iter().all(|status| *status == TCUDA_SUCCESS), "{}", message());
        devices().into_iter().for_each(|device| ok!(tcuda_synchronize(device)));
        let before = allocated();
        let (mut nth, mut struck) = (1, 0);
        loop {
            let first = calls();
            FAULT.store(first + nth, std::sync::atomic::Ordering::Relaxed);
            ok!(tcuda_sim_fail_at(null(), nth, OPERATING_SYSTEM));
            let statuses = workload(&inputs, &strided);
            let made = calls() - first;
            ok!(tcuda_sim_clear_faults());
            FAULT.store(0, std::sync::atomic::Ordering::Relaxed);
            let failed: Vec<_> = statuses.iter().filter(|status| **status != TCUDA_SUCCESS).collect();
            assert!(failed.len() <= 1 && failed.iter().all(|status| **status == TCUDA_ERROR_CUDA), "fault {nth}: {failed:?}");
            struck += failed.len() as u64;
            devices().into_iter().for_each(|device| ok!(tcuda_synchronize(device)));
            assert_eq!((device(), allocated()), (0, before), "after fault {nth}, {way:?}");
            if made < nth {
                break;
            }
            nth += 1;
        }
        assert!(workload(&inputs, &strided).iter().all(|status| *status == TCUDA_SUCCESS), "{}", message());
        assert!(nth > 60 && struck > nth / 3, "{struck} of {nth} faults struck, {way:?}");
    }
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before_way);
}
