//! What all ranks have, made one: from rank 0 to the last, halves in f32 and rounded once at the end.

use super::super::collective::{Reduction, Wire};
use super::super::kernels::element::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// A number that reductions are done with.
trait Number: Copy {
    fn apply(self, other: Self, reduction: Reduction) -> Self;
    /// The mean, of a sum.
    fn divide(self, by: usize) -> Self;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            fn apply(self, other: $type, reduction: Reduction) -> $type {
                match reduction {
                    Reduction::Sum | Reduction::Average => self.wrapping_add(other),
                    Reduction::Product => self.wrapping_mul(other),
                    Reduction::Max => self.max(other),
                    Reduction::Min => self.min(other),
                }
            }
            fn divide(self, by: usize) -> $type {
                // More ranks than an i8 counts to: no sum of them is as large.
                <$type>::try_from(by).map_or(0, |by| self / by)
            }
        }
    )*};
}
integers!(i8 u8 i32 u32 i64 u64);

macro_rules! floats {
    ($($type:ty)*) => {$(
        impl Number for $type {
            fn apply(self, other: $type, reduction: Reduction) -> $type {
                match reduction {
                    Reduction::Sum | Reduction::Average => self + other,
                    Reduction::Product => self * other,
                    Reduction::Max => self.max(other),
                    Reduction::Min => self.min(other),
                }
            }
            fn divide(self, by: usize) -> $type {
                self / by as $type
            }
        }
    )*};
}
floats!(f32 f64);

/// `parts` are of one size, a multiple of an element's.
pub fn fold(wire: Wire, reduction: Reduction, parts: &[&[u8]]) -> Vec<u8> {
    macro_rules! plain {
        ($type:ty) => {
            with(reduction, parts, <$type>::from_ne_bytes, <$type>::to_ne_bytes)
        };
    }
    match wire {
        Wire::I8 => plain!(i8),
        Wire::U8 => plain!(u8),
        Wire::I32 => plain!(i32),
        Wire::U32 => plain!(u32),
        Wire::I64 => plain!(i64),
        Wire::U64 => plain!(u64),
        Wire::F32 => plain!(f32),
        Wire::F64 => plain!(f64),
        Wire::F16 => with(reduction, parts, |b| f16_to_f32(u16::from_ne_bytes(b)), |v| f32_to_f16(v).to_ne_bytes()),
        Wire::BF16 => with(reduction, parts, |b| bf16_to_f32(u16::from_ne_bytes(b)), |v| f32_to_bf16(v).to_ne_bytes()),
    }
}

fn with<T: Number, const N: usize>(reduction: Reduction, parts: &[&[u8]], load: fn([u8; N]) -> T, store: fn(T) -> [u8; N]) -> Vec<u8> {
    let Some((first, rest)) = parts.split_first() else { return Vec::new() };
    let mut out = Vec::with_capacity(first.len());
    for at in (0..first.len()).step_by(N) {
        let element = |part: &[u8]| load(std::array::from_fn(|byte| part[at + byte]));
        let all = rest.iter().fold(element(first), |all, part| all.apply(element(part), reduction));
        out.extend(store(if reduction == Reduction::Average { all.divide(parts.len()) } else { all }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize>(values: &[[u8; N]]) -> Vec<u8> {
        values.concat()
    }

    #[test]
    fn every_reduction() {
        let parts = [[7i32, -8], [3, 2], [-5, 9]].map(|values| bytes(&values.map(i32::to_ne_bytes)));
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let results = [Reduction::Sum, Reduction::Product, Reduction::Max, Reduction::Min, Reduction::Average];
        let expected = [[5, 3], [-105, -144], [7, 9], [-5, -8], [1, 1]];
        assert_eq!(
            results.map(|reduction| fold(Wire::I32, reduction, &parts)),
            expected.map(|values: [i32; 2]| bytes(&values.map(i32::to_ne_bytes)))
        );
        let wraps = [[200u8], [100]];
        assert_eq!(fold(Wire::U8, Reduction::Sum, &[&wraps[0], &wraps[1]]), [44]);
        assert_eq!(fold(Wire::I8, Reduction::Average, &[&[1u8][..]; 200]), [0]);
    }

    #[test]
    fn halves_are_rounded_once_and_floats_in_the_order_of_the_ranks() {
        let half = |value: f32| f32_to_f16(value).to_ne_bytes();
        let parts = [half(2048.0), half(1.0), half(1.0)];
        let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
        assert_eq!(fold(Wire::F16, Reduction::Sum, &parts), half(2050.0));
        let parts = [1e16f64, 1.0, -1e16].map(f64::to_ne_bytes);
        let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
        assert_eq!(fold(Wire::F64, Reduction::Sum, &parts), 0f64.to_ne_bytes());
    }
}
