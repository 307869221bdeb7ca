//! Which kernel draws a distribution into a type, and its parameters as the kernel wants them: rounded to the type that torch computes in,
//! thresholds instead of comparisons of floats, reciprocals instead of divisions.

use super::super::element::{Element, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::super::{Family, Kernel};
use super::math::Fused;
use super::twin::{self, twin};
use super::{Random, philox};

/// What is drawn. Parameters are as the caller gave them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Distribution {
    /// [from, to)
    Uniform {
        from: f64,
        to: f64,
    },
    Normal {
        mean: f64,
        deviation: f64,
    },
    LogNormal {
        mean: f64,
        deviation: f64,
    },
    Exponential {
        lambda: f64,
    },
    Cauchy {
        median: f64,
        sigma: f64,
    },
    Geometric {
        p: f64,
    },
    Bernoulli {
        p: f64,
    },
    /// base + word % range, of words of 64 bits or of 32; a range of 0 is all words.
    Integers {
        range: u64,
        base: i64,
        wide: bool,
    },
}

/// A distribution ready to be drawn into a type.
pub struct Draw {
    pub(super) flat: &'static Kernel<Random>,
    pub(super) strided: &'static Kernel<Random>,
    pub(super) numbers: [u64; 4],
    /// What is stored; for values that are bits, the unsigned type of their width.
    pub(super) element: Element,
    pub(super) values_per_block: u32,
    /// Elements that a thread of the flat kernel stores at once.
    pub(super) side_by_side: u32,
}

macro_rules! image {
    ($name:literal, $architecture:literal) => {
        ($architecture, include_bytes!(concat!("../../../../kernels/ptx/", $name, ".", stringify!($architecture), ".ptx.zst")).as_slice())
    };
}
pub(super) use image;

static UNIFORM: Family = Family { name: "random_uniform", images: &[image!("random_uniform", 75), image!("random_uniform", 80)] };
static NORMAL: Family = Family { name: "random_normal", images: &[image!("random_normal", 75), image!("random_normal", 80)] };
static TRANSFORM: Family = Family { name: "random_transform", images: &[image!("random_transform", 75), image!("random_transform", 80)] };
static INTEGERS: Family = Family { name: "random_integers", images: &[image!("random_integers", 75)] };

/// The flat kernel of each element type with the elements that a thread of it stores at once, and the strided one of those that are
/// computed as floats and as doubles.
struct Kernels<const N: usize> {
    flat: [(Element, u32, Kernel<Random>); N],
    strided: Kernel<Random>,
    strided_f64: Kernel<Random>,
}

/// The same, whatever their number.
struct Chosen {
    flat: &'static [(Element, u32, Kernel<Random>)],
    strided: &'static Kernel<Random>,
    strided_f64: &'static Kernel<Random>,
}

impl<const N: usize> Kernels<N> {
    fn all(&'static self) -> Chosen {
        Chosen { flat: &self.flat, strided: &self.strided, strided_f64: &self.strided_f64 }
    }
}

use Element::*;

/// The kernels of one distribution over the floating types.
macro_rules! floats {
    ($family:expr, $name:literal, $float:ty, $double:ty, $by_4:literal, $by_8:literal $(, $element:ident $suffix:literal $by:literal)*) => {
        Kernels {
            flat: [
                    (F32, $by_4, Kernel::new($family, concat!("tcuda_", $name, "_f32"), twin::<$float>)),
                    (F16, 16, Kernel::new($family, concat!("tcuda_", $name, "_f16"), twin::<$float>)),
                    (BF16, 16, Kernel::new($family, concat!("tcuda_", $name, "_bf16"), twin::<$float>)),
                    (F64, $by_8, Kernel::new($family, concat!("tcuda_", $name, "_f64"), twin::<$double>)),
                    $(($element, $by, Kernel::new($family, concat!("tcuda_", $name, "_", $suffix), twin::<$float>)),)*
            ],
            strided: Kernel::new($family, concat!("tcuda_", $name, "_strided"), twin::<$float>),
            strided_f64: Kernel::new($family, concat!("tcuda_", $name, "_strided_f64"), twin::<$double>),
        }
    };
}

static UNIFORMS: Kernels<4> = floats!(&UNIFORM, "uniform", twin::Uniform, twin::UniformDouble, 4, 2);
static NORMALS: Kernels<4> = floats!(&NORMAL, "normal", twin::Normal, twin::NormalDouble, 8, 4);
static LOG_NORMALS: Kernels<4> = floats!(&NORMAL, "log_normal", twin::LogNormal, twin::LogNormalDouble, 8, 4);
static EXPONENTIALS: Kernels<4> = floats!(&TRANSFORM, "exponential", twin::Exponential, twin::ExponentialDouble, 4, 2);
static CAUCHYS: Kernels<4> = floats!(&TRANSFORM, "cauchy", twin::Cauchy, twin::CauchyDouble, 4, 2);
static GEOMETRICS: Kernels<9> = floats!(&TRANSFORM, "geometric", twin::Geometric, twin::GeometricDouble, 4, 2,
    U8 "u8" 8, I8 "i8" 8, I16 "i16" 8, I32 "i32" 4, I64 "i64" 2);

type Bits = twin::Bernoulli;
static BERNOULLIS: Kernels<5> = Kernels {
    flat: [
        (U8, 16, Kernel::new(&UNIFORM, "tcuda_bernoulli_1", twin::<Bits>)),
        (U16, 16, Kernel::new(&UNIFORM, "tcuda_bernoulli_2", twin::<Bits>)),
        (U32, 4, Kernel::new(&UNIFORM, "tcuda_bernoulli_4", twin::<Bits>)),
        (U64, 2, Kernel::new(&UNIFORM, "tcuda_bernoulli_8", twin::<Bits>)),
        (F64, 2, Kernel::new(&UNIFORM, "tcuda_bernoulli_f64", twin::<twin::BernoulliDouble>)),
    ],
    strided: Kernel::new(&UNIFORM, "tcuda_bernoulli_strided", twin::<Bits>),
    strided_f64: Kernel::new(&UNIFORM, "tcuda_bernoulli_strided_f64", twin::<twin::BernoulliDouble>),
};

macro_rules! integers {
    ($name:literal, $of:ty) => {
        Kernels {
            flat: [
                (Bool, 8, Kernel::new(&INTEGERS, concat!("tcuda_integers_", $name, "_bool"), twin::<$of>)),
                (U8, 8, Kernel::new(&INTEGERS, concat!("tcuda_integers_", $name, "_1"), twin::<$of>)),
                (U16, 8, Kernel::new(&INTEGERS, concat!("tcuda_integers_", $name, "_2"), twin::<$of>)),
                (U32, 4, Kernel::new(&INTEGERS, concat!("tcuda_integers_", $name, "_4"), twin::<$of>)),
                (U64, 2, Kernel::new(&INTEGERS, concat!("tcuda_integers_", $name, "_8"), twin::<$of>)),
                (F16, 8, Kernel::new(&INTEGERS, concat!("tcuda_integers_", $name, "_f16"), twin::<$of>)),
                (BF16, 8, Kernel::new(&INTEGERS, concat!("tcuda_integers_", $name, "_bf16"), twin::<$of>)),
                (F32, 4, Kernel::new(&INTEGERS, concat!("tcuda_integers_", $name, "_f32"), twin::<$of>)),
                (F64, 2, Kernel::new(&INTEGERS, concat!("tcuda_integers_", $name, "_f64"), twin::<$of>)),
            ],
            strided: Kernel::new(&INTEGERS, concat!("tcuda_integers_", $name, "_strided"), twin::<$of>),
            // Integers are computed the same way for all types.
            strided_f64: Kernel::new(&INTEGERS, concat!("tcuda_integers_", $name, "_strided"), twin::<$of>),
        }
    };
}
static INTEGERS_32: Kernels<9> = integers!("32", twin::Integers32);
static INTEGERS_64: Kernels<9> = integers!("64", twin::Integers64);

pub(super) fn bits_of(value: f64, element: Element) -> u64 {
    match element {
        F16 => f32_to_f16(value as f32).into(),
        BF16 => f32_to_bf16(value as f32).into(),
        F32 => (value as f32).to_bits().into(),
        F64 => value.to_bits(),
        _ => value as u64,
    }
}

/// What a float becomes as an element.
pub fn rounded(value: f32, element: Element) -> f32 {
    match element {
        F16 => f16_to_f32(f32_to_f16(value)),
        BF16 => bf16_to_f32(f32_to_bf16(value)),
        _ => value,
    }
}

/// How many words, from 0 on, fulfil what small words fulfil and large ones do not.
fn count_words(holds: impl Fn(u32) -> bool) -> u64 {
    let (mut low, mut high) = (0, 1u64 << 32);
    while low < high {
        let middle = low.midpoint(high);
        if holds(middle as u32) { low = middle + 1 } else { high = middle }
    }
    low
}

fn unsigned(element: Element) -> Element {
    match element.size() {
        1 => U8,
        2 => U16,
        4 => U32,
        _ => U64,
    }
}

/// 2^bits / range, rounded down, within the word.
fn reciprocal(range: u64, bits: u32) -> u64 {
    match range {
        0 => 0,
        range => ((1u128 << bits) / u128::from(range)).min((1 << bits) - 1) as u64,
    }
}

impl Draw {
    /// None: torch has no such kernel.
    pub fn new(distribution: Distribution, element: Element) -> Option<Draw> {
        let double = element == F64;
        let number = |value: f64| if double { value } else { f64::from(value as f32) }.to_bits();
        let floating = matches!(element, F16 | BF16 | F32 | F64);
        if element.size() > 8 || element == C64 {
            return None;
        }
        let (kernels, numbers, stored) = match distribution {
            Distribution::Bernoulli { p } if double => (BERNOULLIS.all(), [p.to_bits(), 0, 0, 0], F64),
            Distribution::Bernoulli { p } => {
                let ones = count_words(|word| philox::uniform(word) < p as f32);
                (BERNOULLIS.all(), [ones, bits_of(1.0, element), 0, 0], unsigned(element))
            }
            Distribution::Integers { range, base, wide } => {
                let (kernels, bits) = if wide { (INTEGERS_64.all(), 64) } else { (INTEGERS_32.all(), 32) };
                let stored = if floating || element == Bool { element } else { unsigned(element) };
                (kernels, [range, base as u64, reciprocal(range, bits), 0], stored)
            }
            Distribution::Geometric { .. } if element == Bool => return None,
            Distribution::Geometric { p } => {
                let divisor = libm::log1p(-p);
                let numbers = if double { [divisor.to_bits(), (1.0 / divisor).to_bits(), 0, 0] } else { [number(p), 0, 0, 0] };
                (GEOMETRICS.all(), numbers, element)
            }
            _ if !floating => return None,
            Distribution::Uniform { from, to } => (UNIFORMS.all(), uniform_numbers(from, to, element), element),
            Distribution::Normal { mean, deviation } => (NORMALS.all(), [number(mean), number(deviation), 0, 0], element),
            Distribution::LogNormal { mean, deviation } => (LOG_NORMALS.all(), [number(mean), number(deviation), 0, 0], element),
            Distribution::Cauchy { median, sigma } => (CAUCHYS.all(), [number(median), number(sigma), 0, 0], element),
            Distribution::Exponential { lambda } => {
                let scale = if double { -1.0 / lambda } else { f64::from(-1.0 / lambda as f32) };
                (EXPONENTIALS.all(), [scale.to_bits(), 0, 0, 0], element)
            }
        };
        let wide = match distribution {
            Distribution::Integers { wide, .. } => wide,
            _ => double,
        };
        let strided = if double { kernels.strided_f64 } else { kernels.strided };
        // The dense kernels of the uniform distribution look at one end of the words only.
        let inner_band = matches!(distribution, Distribution::Uniform { .. }) && !double && numbers[2] + numbers[3] < u32::MAX.into();
        // The types that torch has no geometric numbers in go element by element.
        let (flat, side_by_side) =
            kernels.flat.iter().find(|(of, ..)| *of == stored && !inner_band).map_or((strided, 1), |(_, by, kernel)| (kernel, *by));
        Some(Draw { flat, strided, numbers, element: stored, values_per_block: if wide { 2 } else { 4 }, side_by_side })
    }
}

/// from, to - from, the first word that becomes `to`, and how many do; of doubles the third is `to`.
fn uniform_numbers(from: f64, to: f64, element: Element) -> [u64; 4] {
    if element == F64 {
        return [from.to_bits(), (to - from).to_bits(), to.to_bits(), 0];
    }
    let (from, to) = (rounded(from as f32, element), rounded(to as f32, element));
    let range = rounded(to - from, element);
    let value = |word| rounded(philox::uniform(word).fused(range, from), element);
    // If all words do, `from` and `to` are one number, and it does not matter which is taken.
    let first = count_words(|word| value(word) < to);
    let length = (count_words(|word| value(word) <= to) - first).min(u32::MAX.into());
    [f64::from(from).to_bits(), f64::from(range).to_bits(), first, length]
}

#[cfg(test)]
mod tests {
    use super::super::super::image::tests::check_kernel;
    use super::*;

    #[test]
    fn the_ptx_has_every_kernel() {
        let families = [UNIFORMS.all(), NORMALS.all(), LOG_NORMALS.all(), EXPONENTIALS.all(), CAUCHYS.all(), GEOMETRICS.all()];
        for kernels in families.into_iter().chain([BERNOULLIS.all(), INTEGERS_32.all(), INTEGERS_64.all()]) {
            let strided = [kernels.strided, kernels.strided_f64];
            for kernel in kernels.flat.iter().map(|(.., kernel)| kernel).chain(strided) {
                check_kernel(kernel.family, kernel.name, size_of::<Random>());
            }
        }
    }

    #[test]
    fn words_are_counted_up_to_the_border() {
        for border in [0u64, 1, 2, 3, 12_345, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32] {
            assert_eq!(count_words(|word| u64::from(word) < border), border);
        }
    }

    #[test]
    fn remainders_by_reciprocals_are_exact() {
        let ranges = [1u64, 2, 3, 7, 100, 1000, 65_537, (1 << 28) - 1, 1 << 31];
        for range in ranges {
            let reciprocal = reciprocal(range, 32);
            for word in [0u32, 1, 99, 100, 1 << 31, u32::MAX - 1, u32::MAX, 123_456_789] {
                assert_eq!(twin::remainder_32(word, range as u32, reciprocal as u32), word % range as u32, "{word} % {range}");
            }
        }
        for range in ranges.into_iter().chain([1 << 40, (1 << 63) + 1, u64::MAX]) {
            let reciprocal = reciprocal(range, 64);
            for word in [0u64, 1, 99, range - 1, range, u64::MAX - 1, u64::MAX, 1 << 63, 0x0123_4567_89ab_cdef] {
                assert_eq!(twin::remainder_64(word, range, reciprocal), word % range, "{word} % {range}");
            }
        }
        assert_eq!((twin::remainder_32(7, 0, 0), twin::remainder_64(7, 0, 0)), (7, 7));
    }
}
