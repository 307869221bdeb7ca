//! Which type is computed with, and what its results can be stored as: torch's rules.

use crate::base::{Error, Result};
use crate::runtime::kernels::element::Element::{self, *};

/// Ranks by which the wider one of two wins; the integers that numpy has and torch half-heartedly took over stand aside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Category {
    Bool,
    Integer,
    Real,
    Complex,
}

fn category(element: Element) -> Category {
    match element {
        Bool => Category::Bool,
        U8 | I8 | I16 | U16 | I32 | U32 | I64 | U64 => Category::Integer,
        F16 | BF16 | F32 | F64 => Category::Real,
        C64 | C128 => Category::Complex,
    }
}

fn is_young_unsigned(element: Element) -> bool {
    matches!(element, U16 | U32 | U64)
}

/// torch.promote_types. Err: torch has no common type for them.
pub fn promote(a: Element, b: Element) -> Result<Element> {
    if a == b {
        return Ok(a);
    }
    let (of_a, of_b) = (category(a), category(b));
    if is_young_unsigned(a) || is_young_unsigned(b) {
        return match (of_a, of_b) {
            (Category::Real, _) => Ok(a),
            (_, Category::Real) => Ok(b),
            _ => Err(Error::not_supported(format!(
                "Promotion for uint16, uint32, uint64 types is not supported, attempted to promote {} and {}. Convert one of them first \
                 (tcuda_tensor_to).",
                a.name(),
                b.name()
            ))),
        };
    }
    if of_a != of_b {
        let (wide, narrow) = if of_a > of_b { (a, b) } else { (b, a) };
        return Ok(if wide == C64 && narrow == F64 { C128 } else { wide });
    }
    Ok(match (a, b) {
        (F16, BF16) | (BF16, F16) => F32,
        // What holds both.
        (U8, I8) | (I8, U8) => I16,
        _ if a.size() > b.size() => a,
        _ => b,
    })
}

/// The type that tensors are computed with (torch.result_type): those with dimensions decide, and one without only counts where it is
/// of a higher category.
pub fn common(tensors: impl Iterator<Item = (Element, bool)>) -> Result<Element> {
    let (mut with, mut without) = (None, None);
    for (element, has_dims) in tensors {
        let side = if has_dims { &mut with } else { &mut without };
        *side = Some(side.map_or(Ok(element), |so_far| promote(so_far, element))?);
    }
    match (with, without) {
        (Some(with), Some(without)) => combine(with, without),
        (Some(one), None) | (None, Some(one)) => Ok(one),
        (None, None) => Err(Error::internal("a common type of no tensors was asked for")),
    }
}

fn combine(higher: Element, lower: Element) -> Result<Element> {
    match (category(higher), category(lower)) {
        (Category::Complex, _) => Ok(higher),
        (Category::Real, Category::Complex) => match higher {
            F16 => Err(Error::not_supported(
                "A float16 tensor and a complex one without dimensions make complex32 in torch, with which tcuda cannot compute. Convert \
                 the float16 tensor to float32 first (tcuda_tensor_to).",
            )),
            F64 => Ok(C128),
            _ => Ok(C64),
        },
        (Category::Real, _) => Ok(higher),
        (Category::Bool, _) | (_, Category::Real | Category::Complex) => promote(higher, lower),
        _ => Ok(higher),
    }
}

/// torch.can_cast: a result may lose size, but not what kind of number it is.
pub fn can_cast(from: Element, to: Element) -> bool {
    let (of_from, of_to) = (category(from), category(to));
    !(of_from == Category::Complex && of_to != Category::Complex
        || of_from == Category::Real && of_to == Category::Integer
        || from != Bool && to == Bool)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by torch 2.15 itself: c10::promoteTypes for every pair, `-` where it throws.
    #[test]
    fn pairs_are_promoted_as_by_torch() {
        let table = include_str!("../../tests/data/promotion.txt");
        let named = |name: &str| Element::all().find(|element| element.name() == name).unwrap();
        let mut pairs = 0;
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let [a, b, expected] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let found = promote(named(a), named(b)).map_or("-", Element::name);
            assert_eq!(found, expected, "{a} and {b}");
            pairs += 1;
        }
        assert_eq!(pairs, 15 * 15);
    }

    /// Worked out by torch.result_type.
    #[test]
    fn tensors_without_dimensions_count_by_category() {
        let of = |list: &[(Element, bool)]| common(list.iter().copied()).unwrap();
        assert_eq!(of(&[(F32, true), (F64, false)]), F32);
        assert_eq!(of(&[(F64, false), (F16, true)]), F16);
        assert_eq!(of(&[(I8, true), (I64, false)]), I8);
        assert_eq!(of(&[(I8, true), (F64, false)]), F64);
        assert_eq!(of(&[(I64, true), (F32, false), (F64, false)]), F64);
        assert_eq!(of(&[(Bool, true), (I64, false)]), I64);
        assert_eq!(of(&[(F32, true), (C128, false)]), C64);
        assert_eq!(of(&[(F64, true), (C64, false)]), C128);
        assert_eq!(of(&[(BF16, true), (C64, false)]), C64);
        assert_eq!(of(&[(I32, true), (C64, false)]), C64);
        assert_eq!(of(&[(C64, true), (F64, false)]), C64);
        assert_eq!(of(&[(I32, false), (U8, false)]), I32);
        assert_eq!(of(&[(F16, true), (BF16, true), (F64, false)]), F32);
        assert!(common([(F16, true), (C64, false)].into_iter()).unwrap_err().message.contains("complex32"));
        assert!(common([(U16, true), (I32, true)].into_iter()).unwrap_err().message.contains("uint16 and int32"));
    }

    #[test]
    fn results_keep_their_category() {
        assert!(
            can_cast(F64, F16) && can_cast(I64, I8) && can_cast(I64, F16) && can_cast(Bool, U8) && can_cast(F32, C64) && can_cast(I8, U64)
        );
        assert!(!can_cast(F32, I64) && !can_cast(C64, F64) && !can_cast(U8, Bool) && !can_cast(F16, Bool) && !can_cast(C128, I32));
    }
}
