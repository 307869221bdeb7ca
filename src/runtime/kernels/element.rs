//! Element types and their conversion, as the tensor family's `convert` does it.

use crate::base::dtype::DType;

/// What tcuda computes with; the order is that of `Type` in kernels/common.cuh.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Element {
    Bool,
    U8,
    I8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    BF16,
    F32,
    F64,
    C64,
    C128,
}

use Element::*;

/// Element, DLPack's code, bits, torch's name.
const LIST: &[(Element, u8, u8, &str)] = &[
    (Bool, 6, 8, "bool"),
    (U8, 1, 8, "uint8"),
    (I8, 0, 8, "int8"),
    (I16, 0, 16, "int16"),
    (U16, 1, 16, "uint16"),
    (I32, 0, 32, "int32"),
    (U32, 1, 32, "uint32"),
    (I64, 0, 64, "int64"),
    (U64, 1, 64, "uint64"),
    (F16, 2, 16, "float16"),
    (BF16, 4, 16, "bfloat16"),
    (F32, 2, 32, "float32"),
    (F64, 2, 64, "float64"),
    (C64, 5, 64, "complex64"),
    (C128, 5, 128, "complex128"),
];

impl Element {
    /// None for the types that cross the border as bytes only (narrow floats, vectors).
    pub fn of(dtype: DType) -> Option<Element> {
        LIST.iter().find(|e| dtype == DType { code: e.1, bits: e.2, lanes: 1 }).map(|e| e.0)
    }

    pub fn all() -> impl Iterator<Item = Element> {
        LIST.iter().map(|e| e.0)
    }

    pub fn dtype(self) -> DType {
        let entry = LIST[self as usize];
        DType { code: entry.1, bits: entry.2, lanes: 1 }
    }

    pub fn size(self) -> usize {
        self.dtype().size()
    }

    /// The least and the largest integer; None for types of floats.
    pub fn bounds(self) -> Option<(i128, i128)> {
        Some(match self {
            Bool => (0, 1),
            U8 => (0, u8::MAX.into()),
            I8 => (i8::MIN.into(), i8::MAX.into()),
            I16 => (i16::MIN.into(), i16::MAX.into()),
            U16 => (0, u16::MAX.into()),
            I32 => (i32::MIN.into(), i32::MAX.into()),
            U32 => (0, u32::MAX.into()),
            I64 => (i64::MIN.into(), i64::MAX.into()),
            U64 => (0, u64::MAX.into()),
            F16 | BF16 | F32 | F64 | C64 | C128 => return None,
        })
    }

    /// The largest finite number of a floating type, or of the parts of a complex one.
    pub fn largest_real(self) -> Option<f64> {
        match self {
            F16 => Some(65504.0),
            BF16 => Some(f64::from(f32::from_bits(0x7f7f_0000))),
            F32 | C64 => Some(f32::MAX.into()),
            F64 | C128 => Some(f64::MAX),
            _ => None,
        }
    }

    /// torch's name without `torch.`.
    pub fn name(self) -> &'static str {
        LIST[self as usize].3
    }
}

/// To the nearest, ties to even. Every NaN becomes the one that the hardware gives.
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    match magnitude {
        0x7f80_0001.. => 0x7fff,
        // From 65520 on, halfway to what would be the next number.
        0x477f_f000.. => sign | 0x7c00,
        0x3880_0000.. => sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x3800_0000) >> 13) as u16,
        // Below 2^-14 a half counts in units of 2^-24.
        _ => sign | (value.abs() * 16_777_216.0).round_ties_even() as u16,
    }
}

pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    let positive = match magnitude {
        0..0x400 => (magnitude as f32 / 16_777_216.0).to_bits(),
        0x400..0x7c00 => (magnitude << 13) + 0x3800_0000,
        _ => 0x7f80_0000 | (magnitude & 0x3ff) << 13,
    };
    f32::from_bits(sign | positive)
}

/// To the nearest, ties to even.
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() { 0x7fff } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

pub fn bf16_to_f32(bfloat: u16) -> f32 {
    f32::from_bits(u32::from(bfloat) << 16)
}

/// What a source is held in, exactly, between load and store.
trait Carrier: Copy + Default {
    fn truth(self) -> bool;
    fn as_i32(self) -> i32;
    fn as_u32(self) -> u32;
    fn as_i64(self) -> i64;
    fn as_u64(self) -> u64;
    fn as_f32(self) -> f32;
    fn as_f64(self) -> f64;
    fn imaginary(self) -> (f32, f64) {
        (0.0, 0.0)
    }
}

macro_rules! integer_carrier {
    ($($type:ty)*) => {$(
        impl Carrier for $type {
            fn truth(self) -> bool { self != 0 }
            fn as_i32(self) -> i32 { self as i32 }
            fn as_u32(self) -> u32 { self as u32 }
            fn as_i64(self) -> i64 { self as i64 }
            fn as_u64(self) -> u64 { self as u64 }
            fn as_f32(self) -> f32 { self as f32 }
            fn as_f64(self) -> f64 { self as f64 }
        }
    )*};
}
integer_carrier!(i64 u64);

// PTX's cvt: out of range saturates, as Rust's `as` does; a NaN becomes 0 from f32 to 32 bits, else the number with the top bit only.
macro_rules! float_carrier {
    ($type:ty, $nan_i32:expr, $nan_u32:expr) => {
        impl Carrier for $type {
            fn truth(self) -> bool {
                self != 0.0
            }
            fn as_i32(self) -> i32 {
                if self.is_nan() { $nan_i32 } else { self as i32 }
            }
            fn as_u32(self) -> u32 {
                if self.is_nan() { $nan_u32 } else { self as u32 }
            }
            fn as_i64(self) -> i64 {
                if self.is_nan() { i64::MIN } else { self as i64 }
            }
            fn as_u64(self) -> u64 {
                if self.is_nan() { 1 << 63 } else { self as u64 }
            }
            fn as_f32(self) -> f32 {
                self as f32
            }
            fn as_f64(self) -> f64 {
                self as f64
            }
        }
    };
}
float_carrier!(f32, 0, 0);
float_carrier!(f64, i32::MIN, 1 << 31);

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Complex<T> {
    real: T,
    imaginary: T,
}

impl<T: Carrier> Carrier for Complex<T> {
    fn truth(self) -> bool {
        self.real.truth() || self.imaginary.truth()
    }
    fn as_i32(self) -> i32 {
        self.real.as_i32()
    }
    fn as_u32(self) -> u32 {
        self.real.as_u32()
    }
    fn as_i64(self) -> i64 {
        self.real.as_i64()
    }
    fn as_u64(self) -> u64 {
        self.real.as_u64()
    }
    fn as_f32(self) -> f32 {
        self.real.as_f32()
    }
    fn as_f64(self) -> f64 {
        self.real.as_f64()
    }
    fn imaginary(self) -> (f32, f64) {
        (self.imaginary.as_f32(), self.imaginary.as_f64())
    }
}

/// A row of elements in memory, `stride` bytes apart.
#[derive(Clone, Copy)]
pub struct Row {
    pub element: Element,
    pub address: usize,
    pub stride: i64,
}

/// # Safety
/// `count` elements lie at either row.
pub unsafe fn convert_row(to: Row, from: Row, count: usize) {
    unsafe {
        match from.element {
            Bool => through(to, from, count, |v: u8| i64::from(v != 0)),
            U8 => through(to, from, count, |v: u8| i64::from(v)),
            I8 => through(to, from, count, |v: i8| i64::from(v)),
            I16 => through(to, from, count, |v: i16| i64::from(v)),
            U16 => through(to, from, count, |v: u16| i64::from(v)),
            I32 => through(to, from, count, |v: i32| i64::from(v)),
            U32 => through(to, from, count, |v: u32| i64::from(v)),
            I64 => through(to, from, count, |v: i64| v),
            U64 => through(to, from, count, |v: u64| v),
            F16 => through(to, from, count, f16_to_f32),
            BF16 => through(to, from, count, bf16_to_f32),
            F32 => through(to, from, count, |v: f32| v),
            F64 => through(to, from, count, |v: f64| v),
            C64 => through(to, from, count, |v: Complex<f32>| v),
            C128 => through(to, from, count, |v: Complex<f64>| v),
        }
    }
}

/// A stretch at a time by way of carriers, so that loads and stores are loops of their own: 15 and 90 of them, not 225 pairs.
unsafe fn through<T, C: Carrier>(to: Row, from: Row, count: usize, load: impl Fn(T) -> C) {
    let mut carriers = [C::default(); 64];
    let (mut source, mut target) = (from.address, to.address);
    let mut left = count;
    while left > 0 {
        let stretch = &mut carriers[..left.min(64)];
        for carrier in stretch.iter_mut() {
            *carrier = load(unsafe { (source as *const T).read_unaligned() });
            source = source.wrapping_add_signed(from.stride as isize);
        }
        unsafe { store(Row { address: target, ..to }, stretch) };
        target = target.wrapping_add_signed((to.stride * stretch.len() as i64) as isize);
        left -= stretch.len();
    }
}

unsafe fn store<C: Carrier>(to: Row, carriers: &[C]) {
    unsafe {
        match to.element {
            Bool => put(to, carriers, |c| c.truth() as u8),
            // By way of 64 bits, as torch does, so that -1.0 becomes 255.
            U8 => put(to, carriers, |c| c.as_i64() as u8),
            I8 => put(to, carriers, |c| c.as_i32() as i8),
            I16 => put(to, carriers, |c| c.as_i32() as i16),
            U16 => put(to, carriers, |c| c.as_u32() as u16),
            I32 => put(to, carriers, |c| c.as_i32()),
            U32 => put(to, carriers, |c| c.as_u32()),
            I64 => put(to, carriers, |c| c.as_i64()),
            U64 => put(to, carriers, |c| c.as_u64()),
            // The half types by way of float, as torch does.
            F16 => put(to, carriers, |c| f32_to_f16(c.as_f32())),
            BF16 => put(to, carriers, |c| f32_to_bf16(c.as_f32())),
            F32 => put(to, carriers, |c| c.as_f32()),
            F64 => put(to, carriers, |c| c.as_f64()),
            C64 => put(to, carriers, |c| Complex { real: c.as_f32(), imaginary: c.imaginary().0 }),
            C128 => put(to, carriers, |c| Complex { real: c.as_f64(), imaginary: c.imaginary().1 }),
        }
    }
}

unsafe fn put<T, C: Carrier>(to: Row, carriers: &[C], convert: impl Fn(C) -> T) {
    let mut target = to.address;
    for carrier in carriers {
        unsafe { (target as *mut T).write_unaligned(convert(*carrier)) };
        target = target.wrapping_add_signed(to.stride as isize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_the_order_of_the_enum() {
        for (index, element) in Element::all().enumerate() {
            assert_eq!(element as usize, index);
            assert_eq!(Element::of(element.dtype()), Some(element));
        }
        assert_eq!(Element::of(DType { code: 2, bits: 32, lanes: 4 }), None);
        assert_eq!(Element::of(DType { code: 10, bits: 8, lanes: 1 }), None);
    }

    /// Every half goes to float and back; between two neighbours the nearer wins, and the even one of two equally near.
    #[test]
    fn halves_round_to_nearest_even() {
        for bits in 0..0x7c00u16 {
            let low = f16_to_f32(bits);
            assert_eq!(f32_to_f16(low), bits);
            assert_eq!(f32_to_f16(-low), bits | 0x8000);
            if bits == 0x7bff {
                break;
            }
            let high = f16_to_f32(bits + 1);
            assert!(high > low);
            let middle = (f64::from(low) + f64::from(high)) / 2.0;
            let even = bits + (bits & 1);
            assert_eq!(f32_to_f16(middle as f32), even, "{bits:#x}");
            assert_eq!(f32_to_f16((middle as f32).next_down()), bits);
            assert_eq!(f32_to_f16((middle as f32).next_up()), bits + 1);
        }
        assert_eq!(f16_to_f32(0x3c00), 1.0);
        assert_eq!(f16_to_f32(0x7bff), 65504.0);
        assert_eq!(f32_to_f16(65519.99), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(f32::NEG_INFINITY), 0xfc00);
        assert!(f16_to_f32(f32_to_f16(f32::NAN)).is_nan());
    }

    #[test]
    fn bfloats_round_to_nearest_even() {
        for (value, bits) in [(1.0f32, 0x3f80), (f32::INFINITY, 0x7f80), (f32::MAX, 0x7f80), (-0.0, 0x8000)] {
            assert_eq!(f32_to_bf16(value), bits);
        }
        // Halfway between two bfloats, above an even and above an odd one.
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
    }

    fn convert<S: Copy, D: Copy + Default>(from: Element, values: &[S], to: Element) -> Vec<D> {
        assert_eq!((size_of::<S>(), size_of::<D>()), (from.size(), to.size()));
        let mut out = vec![D::default(); values.len()];
        let row = |element: Element, address| Row { element, address, stride: element.size() as i64 };
        unsafe { convert_row(row(to, out.as_mut_ptr() as usize), row(from, values.as_ptr() as usize), values.len()) };
        out
    }

    #[test]
    fn conversions_are_those_of_torch() {
        assert_eq!(convert::<f32, i32>(F32, &[1.9, -1.9, 3e9, f32::NAN], I32), [1, -1, i32::MAX, 0]);
        assert_eq!(convert::<f32, u8>(F32, &[-1.0, 300.5, 2.9], U8), [255, 44, 2]);
        assert_eq!(convert::<f64, i8>(F64, &[-1.5, 200.0], I8), [-1, -56]);
        assert_eq!(convert::<f32, u8>(F32, &[0.0, -0.0, 0.5, f32::NAN], Bool), [0, 0, 1, 1]);
        assert_eq!(convert::<u8, f32>(Bool, &[0, 1, 7], F32), [0.0, 1.0, 1.0]);
        assert_eq!(convert::<i64, i32>(I64, &[-1, 1 << 33, (1 << 32) + 5], I32), [-1, 0, 5]);
        assert_eq!(convert::<u64, f32>(U64, &[u64::MAX], F32), [18_446_744_073_709_551_616.0]);
        assert_eq!(convert::<[f32; 2], f64>(C64, &[[1.5, 9.0]], F64), [1.5]);
        assert_eq!(convert::<[f32; 2], u8>(C64, &[[0.0, 9.0], [0.0, 0.0]], Bool), [1, 0]);
        assert_eq!(convert::<f32, [f64; 2]>(F32, &[2.5], C128), [[2.5, 0.0]]);
        // By way of float: 65519.9999999 rounds to 65520 first, which is beyond the largest half.
        assert_eq!(convert::<f64, u16>(F64, &[65_519.999_999_9], F16), [0x7c00]);
    }
}
