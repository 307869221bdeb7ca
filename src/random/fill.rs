//! Tensors filled with random numbers: torch's order, and its use of the generator.

use super::generator::Draws;
use super::handles::{Handle, for_device};
use super::order::{Step, last, pair_plan, parts, plan, steps};
use super::rules;
use crate::base::dtype::DType;
use crate::base::{Error, Result};
use crate::device;
use crate::memory;
use crate::runtime::kernels::element::Element;
use crate::runtime::kernels::random::{
    Distribution, Draw, chances_on_device, increment, on_device, permutation_on_device, prepare_chances, prepare_permutation,
};
use crate::runtime::{self, api::Runtime};
use crate::stream::Stream;
use crate::tensor;
use crate::tensor::View;

/// Elements of one launch, where the order leaves the choice.
const MOST: u64 = 1 << 30;

/// Bernoulli with a tensor of probabilities draws as much as this whatever its size, as torch does.
const CHANCES: u64 = 10;

/// A generator and a stream in use for one tensor.
struct Filling<'a> {
    runtime: &'static Runtime,
    stream: Stream,
    draws: Draws<'a>,
}

/// Does `work` with the device current, after `prepare`, which is done before the generator is held. What it draws counts if it succeeds.
fn filling(
    out: &View,
    generator: Option<&Handle>,
    stream: usize,
    prepare: impl FnOnce(&Runtime, Stream) -> Result<()>,
    work: impl FnOnce(&mut Filling) -> Result<()>,
) -> Result<()> {
    let Some(stream) = out.stream(stream, "out")? else {
        let text = format!("'out' is in {}. Expected a tensor on a CUDA device: the generators of tcuda draw there.", out.place);
        return Err(Error::not_supported(text));
    };
    let device = stream.device;
    let generator = for_device(generator, device)?;
    if out.count() > 0 {
        out.check_writable("out")?;
        out.end(Some(stream), "out")?;
    }
    let _guard = device::Guard::new(device)?;
    let runtime = runtime::runtime()?;
    prepare(runtime, stream)?;
    let mut filling = Filling { runtime, stream, draws: generator.draws(stream)? };
    // Only now: a call that is refused leaves nothing behind.
    if out.count() > 0 {
        memory::record_stream_of(out.address, stream)?;
    }
    work(&mut filling)?;
    filling.draws.commit();
    Ok(())
}

/// Fills `out` with numbers of a distribution.
fn fill(out: &View, distribution: Distribution, generator: Option<&Handle>, stream: usize) -> Result<()> {
    let element = out.element("out")?;
    let draw = Draw::new(distribution, element).ok_or_else(|| rules::wrong_type(distribution, element))?;
    let plan = if out.count() > 0 { Some(plan(out)?) } else { None };
    let prepare = |runtime: &Runtime, stream: Stream| match &plan {
        Some(plan) => draw.prepare(runtime, stream.device, &last(plan, out.item())),
        None => Ok(()),
    };
    filling(out, generator, stream, prepare, |filling| {
        let Some(plan) = &plan else { return Ok(()) };
        let most_threads = filling.draws.geometry().most_threads();
        steps(plan.clone(), out.item(), &mut |step| match step {
            Step::Skip(count) => filling.draws.take(increment(count, &draw, most_threads)).map(drop),
            Step::Draw(piece) => {
                let state = filling.draws.take(increment(piece.count(), &draw, most_threads))?;
                on_device(filling.runtime, filling.stream.device, filling.stream.raw, &draw, &piece, most_threads, state)
            }
        })
    })
}

/// Of a complex tensor, the tensor of its parts.
fn parts_of_complex(out: &View) -> View {
    const COMPLEX: u8 = 5;
    const FLOAT: u8 = 2;
    if out.dtype.code != COMPLEX {
        return out.clone();
    }
    let mut view = out.clone();
    view.dtype = DType { code: FLOAT, bits: out.dtype.bits / 2, lanes: 1 };
    view.shape.push(2);
    // A size of 1 may have any stride.
    view.strides.iter_mut().for_each(|stride| *stride = stride.wrapping_mul(2));
    view.strides.push(1);
    view
}

/// Numbers of [from, to).
pub fn uniform(out: &View, from: f64, to: f64, generator: Option<&Handle>, stream: usize) -> Result<()> {
    let out = &parts_of_complex(out);
    rules::check_uniform(from, to, out.element("out")?)?;
    fill(out, Distribution::Uniform { from, to }, generator, stream)
}

pub fn normal(out: &View, mean: f64, deviation: f64, generator: Option<&Handle>, stream: usize) -> Result<()> {
    rules::check(deviation >= 0.0, || format!("normal expects std >= 0.0, but found std {deviation}"))?;
    let parts = &parts_of_complex(out);
    // Both parts together have the variance that was asked for.
    let deviation = if parts.dtype == out.dtype { deviation } else { deviation / std::f64::consts::SQRT_2 };
    fill(parts, Distribution::Normal { mean, deviation }, generator, stream)
}

pub fn log_normal(out: &View, mean: f64, deviation: f64, generator: Option<&Handle>, stream: usize) -> Result<()> {
    rules::check(deviation > 0.0, || format!("log_normal_ expects std > 0.0, but found std={deviation}"))?;
    fill(out, Distribution::LogNormal { mean, deviation }, generator, stream)
}

pub fn exponential(out: &View, lambda: f64, generator: Option<&Handle>, stream: usize) -> Result<()> {
    rules::check(lambda > 0.0, || format!("exponential_ expects lambda > 0.0, but found lambda={lambda}"))?;
    fill(out, Distribution::Exponential { lambda }, generator, stream)
}

pub fn cauchy(out: &View, median: f64, sigma: f64, generator: Option<&Handle>, stream: usize) -> Result<()> {
    rules::check(sigma > 0.0, || format!("cauchy_ expects sigma > 0.0, but found sigma={sigma}"))?;
    fill(out, Distribution::Cauchy { median, sigma }, generator, stream)
}

pub fn geometric(out: &View, p: f64, generator: Option<&Handle>, stream: usize) -> Result<()> {
    rules::check(p > 0.0 && p < 1.0, || format!("geometric_ expects p to be in (0, 1), but got p={p}"))?;
    fill(out, Distribution::Geometric { p }, generator, stream)
}

pub fn bernoulli(out: &View, p: f64, generator: Option<&Handle>, stream: usize) -> Result<()> {
    rules::check((0.0..=1.0).contains(&p), || format!("bernoulli_ expects p to be in [0, 1], but got p={p}"))?;
    fill(out, Distribution::Bernoulli { p }, generator, stream)
}

/// Of [low, high); without `high`, up to the largest that the type has (or counts without gaps).
pub fn integers(out: &View, low: i64, high: Option<i64>, generator: Option<&Handle>, stream: usize) -> Result<()> {
    fill(out, rules::integers(out.element("out")?, low, high)?, generator, stream)
}

/// torch's `random_()`: all numbers of the type that are not negative (of a float: all that it counts without gaps).
pub fn integers_all(out: &View, generator: Option<&Handle>, stream: usize) -> Result<()> {
    fill(out, rules::all_integers(out.element("out")?), generator, stream)
}

/// 0 and 1, each element with the probability that the tensor `p` has for it.
pub fn bernoulli_tensor(out: &View, p: &View, generator: Option<&Handle>, stream: usize) -> Result<()> {
    let (element, p_type) = (out.element("out")?, p.element("p")?);
    if matches!(element, Element::C64 | Element::C128) {
        return Err(rules::wrong_type(Distribution::Bernoulli { p: 0.5 }, element));
    }
    rules::check(rules::is_floating(p_type), || format!("expected probabilities tensor to have floating type, got {}", p_type.name()))?;
    rules::check(p.place == out.place, || format!("'p' is in {}, 'out' in {}: both have to be on one device.", p.place, out.place))?;
    let p = &p.broadcast(&out.shape).map_err(|error| error.context("'p' has to have the shape of 'out'"))?;
    check_apart(out, p)?;
    let plan = if out.count() > 0 { Some(pair_plan(out, p)?) } else { None };
    let prepare = |runtime: &Runtime, stream: Stream| match &plan {
        Some(plan) => {
            p.end(Some(stream), "p")?;
            prepare_chances(runtime, stream.device, (element, p_type), plan)
        }
        None => Ok(()),
    };
    filling(out, generator, stream, prepare, |filling| {
        let state = filling.draws.take(CHANCES)?;
        let Some(plan) = &plan else { return Ok(()) };
        memory::record_stream_of(p.address, filling.stream)?;
        parts(plan, MOST, 0, &mut |part, first| {
            chances_on_device(filling.runtime, filling.stream.device, filling.stream.raw, (element, p_type), part, first, state)
        })
    })
}

/// What is read may not be what another thread writes; the same elements at the same places are.
fn check_apart(out: &View, p: &View) -> Result<()> {
    let same = out.address == p.address && out.item() == p.item() && tensor::agree(out, p);
    rules::check(same || !tensor::overlap(out, p), || {
        "unsupported operation: 'p' and 'out' lie in one stretch of memory. Copy the probabilities to memory of their own first.".to_owned()
    })
}

/// 0 to n - 1 in random order, where n is the tensor's only size.
pub fn permutation(out: &View, generator: Option<&Handle>, stream: usize) -> Result<()> {
    let &[length] = out.shape.as_slice() else {
        return Err(Error::invalid_argument(format!("'out' has {} dimensions; a permutation has one.", out.shape.len())));
    };
    let element = out.element("out")?;
    rules::check_permutation(length, element)?;
    let plan = if length > 0 { Some(plan(out)?) } else { None };
    let prepare = |runtime: &Runtime, stream: Stream| match &plan {
        Some(plan) => prepare_permutation(runtime, stream.device, element, plan, length as u64),
        None => Ok(()),
    };
    filling(out, generator, stream, prepare, |filling| {
        let Some(plan) = &plan else { return Ok(()) };
        let state = filling.draws.take(4)?;
        parts(plan, MOST, 0, &mut |part, first| {
            let place = (first, length as u64);
            permutation_on_device(filling.runtime, filling.stream.device, filling.stream.raw, element, part, place, state)
        })
    })
}
