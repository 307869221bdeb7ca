//! The distributions on the host, and the walk that a kernel makes.

use super::super::element::{Element, f32_to_bf16, f32_to_f16};
use super::math::{self, Fused};
use super::{Random, philox};

/// What a `Random` says to draw. One block of Philox gives four values, or two of 64 bits; PER_BLOCK of them count.
pub trait Distribution {
    type Value: Value;
    const PER_BLOCK: usize;
    fn new(random: &Random) -> Self;
    fn values(&self, words: [u32; 4]) -> [Self::Value; 4];
}

pub trait Value: Copy {
    /// # Safety
    /// The address is that of an element of the type.
    unsafe fn store(self, element: Element, address: usize);
}

macro_rules! store {
    ($element:expr, $address:expr, $half:expr, $truth:expr, { $($of:ident: $value:expr),* $(,)? }) => {
        match $element {
            Element::F16 => unsafe { ($address as *mut u16).write(f32_to_f16($half)) },
            Element::BF16 => unsafe { ($address as *mut u16).write(f32_to_bf16($half)) },
            Element::Bool => unsafe { ($address as *mut u8).write(u8::from($truth)) },
            $(Element::$of => unsafe { std::ptr::write($address as *mut _, $value) },)*
            Element::C64 | Element::C128 => {}
        }
    };
}

// As nvcc casts: by way of 32 bits to what is narrower.
impl Value for f32 {
    unsafe fn store(self, element: Element, address: usize) {
        store!(element, address, self, self != 0.0, {
            U8: self as u32 as u8, I8: self as i32 as i8, I16: self as i32 as i16, U16: self as u32 as u16, I32: self as i32,
            U32: self as u32, I64: self as i64, U64: self as u64, F32: self, F64: f64::from(self),
        });
    }
}

impl Value for f64 {
    unsafe fn store(self, _element: Element, address: usize) {
        unsafe { (address as *mut f64).write(self) };
    }
}

impl Value for i64 {
    unsafe fn store(self, element: Element, address: usize) {
        store!(element, address, self as f32, self != 0, {
            U8: self as u8, I8: self as i8, I16: self as i16, U16: self as u16, I32: self as i32, U32: self as u32, I64: self,
            U64: self as u64, F32: self as f32, F64: self as f64,
        });
    }
}

/// Each thread of torch's draws its blocks; their values go to the elements that are its own.
///
/// # Safety
/// `random` describes memory that may be written.
pub unsafe fn twin<D: Distribution>(random: &Random) {
    let distribution = D::new(random);
    let (seed, offset) = unsafe { random.state.now() };
    let flat = random.dims == 1;
    for round in 0..random.rounds {
        let base = u64::from(round) * D::PER_BLOCK as u64 * u64::from(random.threads);
        for thread in 0..random.threads {
            let first = base + u64::from(thread);
            if first >= random.count.into() {
                break;
            }
            let words = philox::block(seed, thread.into(), offset / 4 + u64::from(round));
            for (at, value) in distribution.values(words).into_iter().take(D::PER_BLOCK).enumerate() {
                let index = first + at as u64 * u64::from(random.threads);
                if index >= random.count.into() {
                    break;
                }
                let address = match flat {
                    true => random.out.wrapping_add_signed((index as i64 * random.strides[0]) as isize),
                    false => random.address(index as u32),
                };
                unsafe { value.store(random.element, address) };
            }
        }
    }
}

fn number(random: &Random, at: usize) -> f64 {
    f64::from_bits(random.numbers[at])
}

/// Both uniform doubles of a block.
fn doubles(words: [u32; 4]) -> [f64; 2] {
    [philox::uniform_f64(words[0], words[1]), philox::uniform_f64(words[2], words[3])]
}

/// A distribution of one transformed uniform float a word.
macro_rules! of_floats {
    ($name:ident { $($field:ident: $from:expr),* }, $self:ident, $word:ident => $value:expr) => {
        pub struct $name { $($field: f32),* }
        impl Distribution for $name {
            type Value = f32;
            const PER_BLOCK: usize = 4;
            fn new(random: &Random) -> Self {
                $name { $($field: { let new: fn(&Random) -> f32 = $from; new(random) }),* }
            }
            fn values(&$self, words: [u32; 4]) -> [f32; 4] {
                words.map(|$word| $value)
            }
        }
    };
}

/// The same of doubles, two a block.
macro_rules! of_doubles {
    ($name:ident { $($field:ident: $at:literal),* }, $self:ident, $u:ident => $value:expr) => {
        pub struct $name { $($field: f64),* }
        impl Distribution for $name {
            type Value = f64;
            const PER_BLOCK: usize = 2;
            fn new(random: &Random) -> Self {
                $name { $($field: number(random, $at)),* }
            }
            fn values(&$self, words: [u32; 4]) -> [f64; 4] {
                let [first, second] = doubles(words).map(|$u| $value);
                [first, second, 0.0, 0.0]
            }
        }
    };
}

pub struct Uniform {
    from: f32,
    range: f32,
    first: u32,
    length: u32,
}

impl Distribution for Uniform {
    type Value = f32;
    const PER_BLOCK: usize = 4;
    fn new(random: &Random) -> Self {
        let [_, _, first, length] = random.numbers;
        Uniform { from: number(random, 0) as f32, range: number(random, 1) as f32, first: first as u32, length: length as u32 }
    }
    fn values(&self, words: [u32; 4]) -> [f32; 4] {
        let value = |word: u32| match word.wrapping_sub(self.first) < self.length {
            true => self.from,
            false => philox::uniform(word).fused(self.range, self.from),
        };
        words.map(value)
    }
}

of_doubles!(UniformDouble { from: 0, range: 1, to: 2 }, self, u => {
    let value = u.fused(self.range, self.from);
    if value == self.to { self.from } else { value }
});

pub struct Normal {
    mean: f32,
    deviation: f32,
}

impl Distribution for Normal {
    type Value = f32;
    const PER_BLOCK: usize = 4;
    fn new(random: &Random) -> Self {
        Normal { mean: number(random, 0) as f32, deviation: number(random, 1) as f32 }
    }
    fn values(&self, words: [u32; 4]) -> [f32; 4] {
        // 2 pi / 2^32
        const TURN: f32 = std::f32::consts::TAU / 4_294_967_296.0;
        let pair = |first: u32, second: u32| {
            let radius = (-2.0 * math::log(philox::uniform(first))).sqrt();
            let (sine, cosine) = math::fast_sine_cosine((second as f32).fused(TURN, TURN / 2.0));
            [sine, cosine].map(|value| (value * radius).fused(self.deviation, self.mean))
        };
        let ([a, b], [c, d]) = (pair(words[0], words[1]), pair(words[2], words[3]));
        [a, b, c, d]
    }
}

pub struct NormalDouble {
    mean: f64,
    deviation: f64,
}

impl Distribution for NormalDouble {
    type Value = f64;
    const PER_BLOCK: usize = 2;
    fn new(random: &Random) -> Self {
        NormalDouble { mean: number(random, 0), deviation: number(random, 1) }
    }
    fn values(&self, words: [u32; 4]) -> [f64; 4] {
        let [u, v] = doubles(words);
        let radius = (-2.0 * math::log_f64(u)).sqrt();
        let (sine, cosine) = math::sine_cosine_pi(2.0 * v);
        let [first, second] = [sine, cosine].map(|value| (value * radius).fused(self.deviation, self.mean));
        [first, second, 0.0, 0.0]
    }
}

pub struct LogNormal(Normal);

impl Distribution for LogNormal {
    type Value = f32;
    const PER_BLOCK: usize = 4;
    fn new(random: &Random) -> Self {
        LogNormal(Normal::new(random))
    }
    fn values(&self, words: [u32; 4]) -> [f32; 4] {
        self.0.values(words).map(math::fast_exp)
    }
}

pub struct LogNormalDouble(NormalDouble);

impl Distribution for LogNormalDouble {
    type Value = f64;
    const PER_BLOCK: usize = 2;
    fn new(random: &Random) -> Self {
        LogNormalDouble(NormalDouble::new(random))
    }
    fn values(&self, words: [u32; 4]) -> [f64; 4] {
        self.0.values(words).map(math::exp_f64)
    }
}

of_floats!(Exponential { scale: |random| number(random, 0) as f32 }, self, word => {
    const NEARLY_1: f32 = 1.0 - f32::EPSILON / 2.0;
    let u = philox::uniform(word);
    self.scale * if u >= NEARLY_1 { -f32::EPSILON / 2.0 } else { math::fast_log(u) }
});
of_doubles!(ExponentialDouble { scale: 0 }, self, u => {
    self.scale * if u >= 1.0 - f64::EPSILON / 2.0 { -f64::EPSILON / 2.0 } else { math::log_f64(u) }
});

of_floats!(Cauchy { median: |random| number(random, 0) as f32, sigma: |random| number(random, 1) as f32 }, self, word => {
    let u = philox::uniform(word).clamp(f32::EPSILON, 1.0 - f32::EPSILON);
    self.sigma.fused(math::fast_tangent(std::f32::consts::PI * (u - 0.5)), self.median)
});
of_doubles!(CauchyDouble { median: 0, sigma: 1 }, self, u => {
    self.sigma.fused(math::tangent_f64(std::f64::consts::PI * (u - 0.5)), self.median)
});

of_floats!(Geometric { divisor: |random| math::fast_log(1.0 - number(random, 0) as f32) }, self, word => {
    libm::ceilf(math::fast_log(philox::uniform(word)) / self.divisor)
});
of_doubles!(GeometricDouble { divisor: 0 }, self, u => libm::ceil(math::log_f64(u) / self.divisor));

pub struct Bernoulli {
    ones: u64,
    one: i64,
}

impl Distribution for Bernoulli {
    type Value = i64;
    const PER_BLOCK: usize = 4;
    fn new(random: &Random) -> Self {
        Bernoulli { ones: random.numbers[0], one: random.numbers[1] as i64 }
    }
    fn values(&self, words: [u32; 4]) -> [i64; 4] {
        words.map(|word| if u64::from(word) < self.ones { self.one } else { 0 })
    }
}

of_doubles!(BernoulliDouble { p: 0 }, self, u => if u < self.p { 1.0 } else { 0.0 });

/// word % range, where range is 0 (2^32) or at most 2^31.
pub fn remainder_32(word: u32, range: u32, reciprocal: u32) -> u32 {
    let quotient = (u64::from(word) * u64::from(reciprocal)) >> 32;
    let rest = word.wrapping_sub((quotient as u32).wrapping_mul(range));
    rest.min(rest.wrapping_sub(range))
}

/// word % range, where 0 is 2^64.
pub fn remainder_64(word: u64, range: u64, reciprocal: u64) -> u64 {
    let quotient = (u128::from(word) * u128::from(reciprocal)) >> 64;
    let rest = word.wrapping_sub((quotient as u64).wrapping_mul(range));
    if range != 0 && rest >= range { rest - range } else { rest }
}

pub struct Integers32 {
    range: u32,
    base: u64,
    reciprocal: u32,
}

impl Distribution for Integers32 {
    type Value = i64;
    const PER_BLOCK: usize = 4;
    fn new(random: &Random) -> Self {
        let [range, base, reciprocal, _] = random.numbers;
        Integers32 { range: range as u32, base, reciprocal: reciprocal as u32 }
    }
    fn values(&self, words: [u32; 4]) -> [i64; 4] {
        words.map(|word| u64::from(remainder_32(word, self.range, self.reciprocal)).wrapping_add(self.base) as i64)
    }
}

pub struct Integers64 {
    range: u64,
    base: u64,
    reciprocal: u64,
}

impl Distribution for Integers64 {
    type Value = i64;
    const PER_BLOCK: usize = 2;
    fn new(random: &Random) -> Self {
        let [range, base, reciprocal, _] = random.numbers;
        Integers64 { range, base, reciprocal }
    }
    fn values(&self, words: [u32; 4]) -> [i64; 4] {
        let value = |high: u32, low: u32| {
            let word = u64::from(high) << 32 | u64::from(low);
            remainder_64(word, self.range, self.reciprocal).wrapping_add(self.base) as i64
        };
        [value(words[0], words[1]), value(words[2], words[3]), 0, 0]
    }
}
