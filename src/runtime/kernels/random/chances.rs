//! Bernoulli with a probability for each element: kernels/random_bernoulli.cu.

use super::super::divider::Divider;
use super::super::element::{Element, bf16_to_f32, f16_to_f32};
use super::super::plan::MAX_DIMS;
use super::super::{Access, Family, Kernel, Plan, launch, prepare};
use super::draw::{bits_of, image};
use super::{PhiloxState, THREADS, check_aligned, philox, walk};
use crate::base::Result;
use crate::runtime::api::Runtime;
use crate::runtime::table::RawStream;

/// The argument of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Chances {
    out: usize,
    p: usize,
    state: PhiloxState,
    one: u64,
    /// Of the first element, where this is a part of a larger tensor.
    first: u64,
    count: u32,
    p_type: Element,
    dims: u32,
    sizes: [Divider; MAX_DIMS],
    out_strides: [i64; MAX_DIMS],
    p_strides: [i64; MAX_DIMS],
}

static FAMILY: Family = Family { name: "random_bernoulli", images: &[image!("random_bernoulli", 75)] };

static BY_WIDTH: [Kernel<Chances>; 4] = [
    Kernel::new(&FAMILY, "tcuda_bernoulli_tensor_1", twin::<1, false>),
    Kernel::new(&FAMILY, "tcuda_bernoulli_tensor_2", twin::<2, false>),
    Kernel::new(&FAMILY, "tcuda_bernoulli_tensor_4", twin::<4, false>),
    Kernel::new(&FAMILY, "tcuda_bernoulli_tensor_8", twin::<8, false>),
];
static DOUBLES: Kernel<Chances> = Kernel::new(&FAMILY, "tcuda_bernoulli_tensor_f64", twin::<8, true>);

fn kernel_of(element: Element) -> &'static Kernel<Chances> {
    if element == Element::F64 { &DOUBLES } else { &BY_WIDTH[element.size().trailing_zeros() as usize] }
}

/// Looks at both tensors and loads the kernel, before the generator is held.
pub fn prepare_chances(runtime: &Runtime, device: i32, (element, p_type): (Element, Element), plan: &Plan) -> Result<()> {
    check_aligned(plan.to, element.size(), "out")?;
    check_aligned(plan.from, p_type.size(), "p")?;
    prepare(runtime, device, kernel_of(element))
}

/// Enqueues it on a stream of `device`, which is current. The plan's target are the elements, its source their probabilities, in the order
/// in which torch draws, from the element `first` on; it is no longer than a launch can be.
pub fn chances_on_device(
    runtime: &'static Runtime,
    device: i32,
    stream: RawStream,
    (element, p_type): (Element, Element),
    plan: &Plan,
    first: u64,
    state: PhiloxState,
) -> Result<()> {
    let width = element.size();
    let (dims, sizes, strides) = walk(plan);
    let count = plan.count() as u32;
    let chances = Chances {
        out: plan.to,
        p: plan.from,
        state,
        one: bits_of(1.0, element),
        first,
        count,
        p_type,
        dims,
        sizes,
        out_strides: strides.map(|(to, _)| to),
        p_strides: strides.map(|(_, from)| from),
    };
    let touched = plan.writes(width).into_iter().chain(plan.reads(p_type.size()));
    let accesses: Vec<Access> = touched.chain(state.accesses()).collect();
    let blocks = (count + 3).div_ceil(4 * THREADS);
    unsafe { launch(runtime, device, stream, kernel_of(element), (blocks, THREADS), chances, &accesses) }
}

unsafe fn twin<const WIDTH: usize, const DOUBLE: bool>(chances: &Chances) {
    let (seed, offset) = unsafe { chances.state.now() };
    for index in 0..chances.count {
        let place = chances.first + u64::from(index);
        let words = philox::block(seed, place / 4, offset / 4);
        let (mut out, mut p, mut rest) = (chances.out, chances.p, index);
        for dim in 0..chances.dims as usize {
            let next = chances.sizes[dim].quotient(rest);
            let at = i64::from(rest - next * chances.sizes[dim].size);
            out = out.wrapping_add_signed((at * chances.out_strides[dim]) as isize);
            p = p.wrapping_add_signed((at * chances.p_strides[dim]) as isize);
            rest = next;
        }
        let p = unsafe { probability(chances.p_type, p) };
        let p = if DOUBLE { p } else { f64::from(p as f32) };
        let one = f64::from(philox::uniform(words[place as usize % 4])) <= p;
        let bytes: [u8; 8] = if one { chances.one.to_le_bytes() } else { [0; 8] };
        unsafe { (out as *mut [u8; WIDTH]).write(std::array::from_fn(|at| bytes[at])) };
    }
}

unsafe fn probability(element: Element, address: usize) -> f64 {
    unsafe {
        match element {
            Element::F16 => f16_to_f32((address as *const u16).read()).into(),
            Element::BF16 => bf16_to_f32((address as *const u16).read()).into(),
            Element::F32 => (address as *const f32).read().into(),
            _ => (address as *const f64).read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::image::tests::check_kernel;
    use super::*;

    #[test]
    fn the_ptx_has_every_kernel() {
        for kernel in BY_WIDTH.iter().chain([&DOUBLES]) {
            check_kernel(&FAMILY, kernel.name, size_of::<Chances>());
        }
    }
}
