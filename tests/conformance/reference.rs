//! What a copy of tensors has to give, worked out one element at a time and in another way than the library does it.

use tcuda::base::dtype::DType;

/// A number of any type, exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Integer(i128),
    Real(f64),
    Complex(f64, f64),
}

pub const fn dtype(code: u8, bits: u8) -> DType {
    DType { code, bits, lanes: 1 }
}

pub const BOOL: DType = dtype(6, 8);
pub const U8: DType = dtype(1, 8);
pub const I32: DType = dtype(0, 32);
pub const I64: DType = dtype(0, 64);
pub const F16: DType = dtype(2, 16);
pub const BF16: DType = dtype(4, 16);
pub const F32: DType = dtype(2, 32);
pub const F64: DType = dtype(2, 64);
pub const C64: DType = dtype(5, 64);
/// float8_e4m3fn.
pub const F8: DType = dtype(10, 8);

pub const TYPES: [DType; 15] =
    [BOOL, U8, dtype(1, 16), dtype(1, 32), dtype(1, 64), dtype(0, 8), dtype(0, 16), I32, I64, F16, BF16, F32, F64, C64, dtype(5, 128)];

/// The value of a small float of `exponent` and `fraction` bits.
fn small_float(bits: u16, exponent: u32, fraction: u32) -> f64 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let raised = i32::from(bits >> fraction & ((1 << exponent) - 1));
    let part = f64::from(bits & ((1 << fraction) - 1)) / f64::from(1 << fraction);
    let bias = (1 << (exponent - 1)) - 1;
    sign * match raised {
        0 => part * 2f64.powi(1 - bias),
        _ if raised == (1 << exponent) - 1 && part == 0.0 => f64::INFINITY,
        _ if raised == (1 << exponent) - 1 => f64::NAN,
        _ => (1.0 + part) * 2f64.powi(raised - bias),
    }
}

/// The nearest small float, of two equally near the even one, by search.
fn nearest(value: f64, exponent: u32, fraction: u32) -> u16 {
    let infinity = ((1u16 << exponent) - 1) << fraction;
    if value.is_nan() {
        return infinity | 1;
    }
    let magnitude = value.abs();
    // Beyond the largest number comes what would be the next power of two; from halfway on it is infinite.
    let of = |bits: u16| {
        if bits == infinity {
            small_float(infinity - (1 << fraction), exponent, fraction) * 2.0
        } else {
            small_float(bits, exponent, fraction)
        }
    };
    let (mut low, mut high) = (0, infinity);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if of(middle) <= magnitude { low = middle } else { high = middle }
    }
    let (below, above) = (magnitude - of(low), of(high) - magnitude);
    let bits = if above < below || (above == below && low % 2 == 1) { high } else { low };
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    sign | bits
}

pub fn read(bytes: &[u8], dtype: DType) -> Number {
    let word = |from: usize, size: usize| bytes[from..from + size].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let size = usize::from(dtype.bits) / 8;
    let real =
        |from: usize, size: usize| if size == 4 { f64::from(f32::from_bits(word(from, 4) as u32)) } else { f64::from_bits(word(from, 8)) };
    match (dtype.code, size) {
        (6, _) => Number::Integer(i128::from(word(0, 1) != 0)),
        (1, _) => Number::Integer(i128::from(word(0, size))),
        (0, _) => Number::Integer(i128::from((word(0, size) as i64) << (64 - dtype.bits) >> (64 - dtype.bits))),
        (2, 2) => Number::Real(small_float(word(0, 2) as u16, 5, 10)),
        (4, _) => Number::Real(small_float(word(0, 2) as u16, 8, 7)),
        (2, _) => Number::Real(real(0, size)),
        _ => Number::Complex(real(0, size / 2), real(size / 2, size / 2)),
    }
}

/// The bytes of a number in a type. None where the result is not promised: a NaN as an integer.
pub fn write(number: Number, dtype: DType) -> Option<Vec<u8>> {
    let (real, imaginary) = match number {
        Number::Complex(real, imaginary) => (Number::Real(real), imaginary),
        real => (real, 0.0),
    };
    let as_f64 = match real {
        Number::Integer(value) => value as f64,
        Number::Real(value) => value,
        Number::Complex(..) => unreachable!(),
    };
    let as_f32 = match real {
        Number::Integer(value) => value as f32,
        _ => as_f64 as f32,
    };
    let size = usize::from(dtype.bits) / 8;
    let cut = |value: i128| value.to_le_bytes()[..size].to_vec();
    Some(match (dtype.code, dtype.bits) {
        (6, _) => vec![u8::from(as_f64 != 0.0 || imaginary != 0.0)],
        (0 | 1, bits) => match real {
            Number::Integer(value) => cut(value),
            _ if as_f64.is_nan() => return None,
            _ => {
                // By way of the narrowest of these that has room; out of its range the nearest.
                let (least, most) = match (dtype.code, bits) {
                    (1, 8) | (0, 64) => (i64::MIN.into(), i64::MAX.into()),
                    (0, _) => (i32::MIN.into(), i32::MAX.into()),
                    (1, 64) => (0, u64::MAX.into()),
                    _ => (0, u32::MAX.into()),
                };
                cut((as_f64.trunc() as i128).clamp(least, most))
            }
        },
        (2, 16) => nearest(as_f32.into(), 5, 10).to_le_bytes().to_vec(),
        (4, _) => nearest(as_f32.into(), 8, 7).to_le_bytes().to_vec(),
        (2, 32) => as_f32.to_le_bytes().to_vec(),
        (2, _) => as_f64.to_le_bytes().to_vec(),
        (5, 64) => [as_f32.to_le_bytes(), (imaginary as f32).to_le_bytes()].concat(),
        _ => [as_f64.to_le_bytes(), imaginary.to_le_bytes()].concat(),
    })
}

/// Whether `found` is what `write` says: bit for bit, but for the bits of a NaN.
pub fn same(found: &[u8], expected: &[u8], dtype: DType) -> bool {
    let nan = |number: Number| match number {
        Number::Real(value) => (value.is_nan(), false),
        Number::Complex(real, imaginary) => (real.is_nan(), imaginary.is_nan()),
        Number::Integer(_) => (false, false),
    };
    let (found_nan, expected_nan) = (nan(read(found, dtype)), nan(read(expected, dtype)));
    if expected_nan == (false, false) {
        return found == expected;
    }
    let half = found.len() / 2;
    let parts_agree = match dtype.code {
        5 => (expected_nan.0 || found[..half] == expected[..half]) && (expected_nan.1 || found[half..] == expected[half..]),
        _ => true,
    };
    found_nan == expected_nan && parts_agree
}

pub fn check_known_numbers() {
    assert_eq!((small_float(0x3c00, 5, 10), small_float(0xc000, 5, 10), small_float(0x7bff, 5, 10)), (1.0, -2.0, 65504.0));
    assert_eq!((small_float(0x3f80, 8, 7), small_float(0x0001, 5, 10)), (1.0, 2f64.powi(-24)));
    assert_eq!((nearest(1.0, 5, 10), nearest(-65520.0, 5, 10), nearest(65519.0, 5, 10), nearest(1e-9, 5, 10)), (0x3c00, 0xfc00, 0x7bff, 0));
    assert_eq!((nearest(1.0, 8, 7), nearest(3.5e38, 8, 7)), (0x3f80, 0x7f80));
}
