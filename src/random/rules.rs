//! torch's rules on parameters and types.

use crate::base::{Error, Result};
use crate::runtime::kernels::element::Element;
use crate::runtime::kernels::random::{Distribution, rounded};

pub fn check(holds: bool, text: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::invalid_argument(text())) }
}

pub fn is_floating(element: Element) -> bool {
    matches!(element, Element::F16 | Element::BF16 | Element::F32 | Element::F64)
}

#[cold]
pub fn wrong_type(distribution: Distribution, element: Element) -> Error {
    let (name, needs) = match distribution {
        Distribution::Uniform { .. } => ("uniform", "a floating or complex"),
        Distribution::Normal { .. } => ("normal", "a floating or complex"),
        Distribution::LogNormal { .. } => ("log-normal", "a floating"),
        Distribution::Exponential { .. } => ("exponential", "a floating"),
        Distribution::Cauchy { .. } => ("Cauchy", "a floating"),
        Distribution::Geometric { .. } => ("geometric", "a real"),
        Distribution::Bernoulli { .. } => ("Bernoulli", "a real"),
        Distribution::Integers { .. } => ("integer", "a real"),
    };
    Error::not_supported(format!("'out' has elements of {}; {name} numbers need {needs} type.", element.name()))
}

/// Bits of the significand, with the leading one.
fn digits(element: Element) -> u32 {
    match element {
        Element::F16 => 11,
        Element::BF16 => 8,
        Element::F32 => 24,
        _ => 53,
    }
}

fn most_real(element: Element) -> f64 {
    element.largest_real().unwrap_or(f64::MAX)
}

/// The least and the largest integer that torch takes for a bound; of a float any.
fn bounds(element: Element) -> (i128, i128) {
    element.bounds().unwrap_or((i64::MIN.into(), i64::MAX.into()))
}

pub fn check_uniform(from: f64, to: f64, element: Element) -> Result<()> {
    if !is_floating(element) {
        return Err(wrong_type(Distribution::Uniform { from, to }, element));
    }
    let (most, name) = (most_real(element), element.name());
    for (value, parameter) in [(from, "from"), (to, "to")] {
        check(value.abs() <= most, || format!("{parameter} is out of bounds for {name}: {value}"))?;
    }
    check(from <= to, || format!("uniform_ expects to return a [from, to) range, but found from={from} > to={to}"))?;
    check(to - from <= most, || {
        format!(
            "uniform_ expects to-from <= std::numeric_limits<{name}>::max(), but found to={to} and from={from} which result in to-from to \
             exceed the limit"
        )
    })
}

const TWO_63: f64 = (1u64 << 63) as f64;

/// What torch computes integers of a floating type with: the neighbour inside the range where the bound is no number of the type.
fn representable(value: i64, element: Element) -> i64 {
    let number = if element == Element::F64 { value as f64 } else { f64::from(rounded(value as f32, element)) };
    // As x86 converts what is too large, and so torch.
    if (-TWO_63..TWO_63).contains(&number) { number as i64 } else { i64::MIN }
}

/// The gap between numbers of the type about there.
fn gap(value: i64, element: Element) -> i64 {
    let magnitude = value.unsigned_abs().max(1).ilog2() as i64;
    1 << (magnitude - i64::from(digits(element)) + 1).max(0)
}

fn from_inside(from: i64, element: Element) -> i64 {
    let next = from.saturating_add(1);
    let rounded = representable(next, element);
    if rounded < from { rounded + gap(next, element) } else { from }
}

fn to_inside(to: i64, element: Element) -> i64 {
    let last = to.saturating_sub(1);
    let rounded = representable(last, element);
    if rounded >= to { rounded.saturating_sub(gap(last, element)) } else { to }
}

/// [low, high); without `high` up to the largest.
pub fn integers(element: Element, low: i64, high: Option<i64>) -> Result<Distribution> {
    let name = element.name();
    if matches!(element, Element::C64 | Element::C128) {
        return Err(wrong_type(Distribution::Integers { range: 1, base: 0, wide: false }, element));
    }
    let floating = is_floating(element);
    let inside = |value: i128| match floating {
        true => (value as f64).abs() <= most_real(element),
        false => (bounds(element).0..=bounds(element).1).contains(&value),
    };
    check(inside(low.into()), || format!("low is out of bounds for {name}: {low}"))?;
    let (base, after) = match high {
        Some(high) => {
            check(inside(i128::from(high) - 1), || format!("high - 1 is out of bounds for {name}: {}", i128::from(high) - 1))?;
            check(low < high, || format!("random_ expects 'low' to be less than 'high', but got low={low} >= high={high}"))?;
            let (from, to) = if floating { (from_inside(low, element), to_inside(high, element)) } else { (low, high) };
            check(from < to, || {
                format!("random_ expects 'low' casted to dtype to be less than 'high' casted to dtype, but got low={from} >= high={to}")
            })?;
            (from, i128::from(to))
        }
        // As torch does it: every word is a number.
        None if low == i64::MIN && (floating && element != Element::F16 || element == Element::I64) => {
            return Ok(Distribution::Integers { range: 0, base: 0, wide: true });
        }
        None if floating => {
            let after = (1i128 << digits(element)) + 1;
            let from = from_inside(low, element);
            check(i128::from(from) < after - 1, || {
                format!("random_ expects 'low' casted to dtype to be at most {}, but got low={from}", after - 1)
            })?;
            (from, after)
        }
        None => (low, bounds(element).1 + 1),
    };
    let range = after - i128::from(base);
    // 2^64 does not fit, and 0 means it.
    Ok(Distribution::Integers { range: range as u64, base, wide: range >= 1 << 28 })
}

/// torch's `random_()`.
pub fn all_integers(element: Element) -> Distribution {
    let range: u128 = match element {
        Element::F16 | Element::BF16 | Element::F32 | Element::F64 => (1 << digits(element)) + 1,
        _ => (bounds(element).1 + 1) as u128,
    };
    let wide = element.size() == 8;
    // All words: 0 means it.
    let range = if range >> (if wide { 64 } else { 32 }) != 0 { 0 } else { range as u64 };
    Distribution::Integers { range, base: 0, wide }
}

pub fn check_permutation(length: i64, element: Element) -> Result<()> {
    let name = element.name();
    let most = match element {
        Element::Bool | Element::C64 | Element::C128 => return Err(Error::not_supported(format!("A permutation cannot be of {name}."))),
        Element::F16 | Element::BF16 | Element::F32 | Element::F64 => (1 << digits(element)) + 1,
        _ => bounds(element).1 + 1,
    };
    check(i128::from(length) <= most, || format!("n is too large for result tensor type: {length} numbers, and {name} holds {most}."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Element::*;

    fn numbers(element: Element, low: i64, high: Option<i64>) -> (u64, i64, bool) {
        match integers(element, low, high).unwrap() {
            Distribution::Integers { range, base, wide } => (range, base, wide),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ranges_are_torchs() {
        assert_eq!(numbers(I64, -5, Some(1 << 40)), ((1 << 40) + 5, -5, true));
        assert_eq!(numbers(I32, 0, Some((1 << 28) - 1)), ((1 << 28) - 1, 0, false));
        assert_eq!(numbers(I32, 0, Some(1 << 28)), (1 << 28, 0, true));
        assert_eq!(numbers(I64, i64::MIN, Some(i64::MAX)), (u64::MAX, i64::MIN, true));
        assert_eq!(numbers(I64, i64::MIN, None), (0, 0, true));
        assert_eq!(numbers(I64, 0, None), (1 << 63, 0, true));
        assert_eq!(numbers(U8, 200, None), (56, 200, false));
        assert_eq!(numbers(Bool, 0, None), (2, 0, false));
        assert_eq!(numbers(F32, 0, None), ((1 << 24) + 1, 0, false));
        // 2^40 - 1 is no float: the range ends before the float below it.
        assert_eq!(numbers(F32, 0, Some(1 << 40)), ((1 << 40) - 65536, 0, true));
        assert_eq!(numbers(F64, 0, Some(1 << 40)), (1 << 40, 0, true));
        assert_eq!(numbers(F32, 0, Some(i64::MAX)), (i64::MAX as u64, 0, true));
        assert_eq!(numbers(F32, -(1 << 40) + 1, Some(0)).1, -(1 << 40) + 65536);
    }

    #[test]
    fn all_of_a_type_are_torchs() {
        let all = |element| match all_integers(element) {
            Distribution::Integers { range, base: 0, wide } => (range, wide),
            other => panic!("{other:?}"),
        };
        assert_eq!([Bool, U8, I8, I16, I32].map(all), [(2, false), (256, false), (128, false), (32768, false), (1 << 31, false)]);
        assert_eq!([I64, F64].map(all), [(1 << 63, true), ((1 << 53) + 1, true)]);
        assert_eq!([F16, BF16, F32].map(all), [(2049, false), (257, false), ((1 << 24) + 1, false)]);
        assert_eq!([U16, U32, U64].map(all), [(65536, false), (0, false), (0, true)]);
    }

    #[test]
    fn what_a_type_cannot_hold_is_refused() {
        for (element, low, high, word) in [
            (I64, 5, Some(5), "to be less than 'high'"),
            (I64, 6, Some(5), "to be less than 'high'"),
            (U8, -1, Some(5), "low is out of bounds for uint8"),
            (U8, 0, Some(257), "high - 1 is out of bounds for uint8"),
            (I8, -129, None, "low is out of bounds for int8"),
            (U8, 256, None, "out of bounds"),
            (Bool, 0, Some(3), "high - 1 is out of bounds for bool"),
            (F16, 0, Some(70000), "high - 1 is out of bounds for float16: 69999"),
            (F16, -70000, Some(5), "low is out of bounds for float16: -70000"),
            (BF16, 1000, None, "casted to dtype"),
        ] {
            let error = integers(element, low, high).unwrap_err();
            assert!(error.message.contains(word), "{element:?} {low} {high:?}: {error}");
        }
        assert!(integers(C64, 0, Some(5)).unwrap_err().message.contains("complex64"));
        assert!(integers(U8, 0, Some(256)).is_ok() && integers(I8, -128, Some(128)).is_ok() && integers(F16, 0, Some(65505)).is_ok());
    }

    #[test]
    fn uniform_bounds_are_checked() {
        let refused = |from, to, element, word: &str| {
            let error = check_uniform(from, to, element).unwrap_err();
            assert!(error.message.contains(word), "{error}");
        };
        refused(1.0, 0.0, F32, "from=1 > to=0");
        refused(f64::NAN, 1.0, F32, "from is out of bounds");
        refused(0.0, f64::INFINITY, F32, "to is out of bounds");
        refused(0.0, 70000.0, F16, "to is out of bounds for float16");
        refused(-65504.0, 65504.0, F16, "exceed the limit");
        refused(-f64::MAX, f64::MAX, F64, "exceed the limit");
        refused(0.0, 1.0, I32, "int32");
        assert!(check_uniform(1.0, 1.0, F32).is_ok() && check_uniform(-30000.0, 30000.0, F16).is_ok());
    }

    #[test]
    fn permutations_fit_their_type() {
        for (length, element) in [(256, U8), (128, I8), (2049, F16), (257, BF16), ((1 << 24) + 1, F32), (i64::MAX, I64)] {
            assert!(check_permutation(length, element).is_ok(), "{length} {element:?}");
            assert!(length == i64::MAX || check_permutation(length + 1, element).is_err(), "{length} {element:?}");
        }
        assert!(check_permutation(3, C64).is_err() && check_permutation(1, Bool).is_err());
    }
}
