//! One value to every element.

use super::copying::run_on;
use super::view::{View, check_dtype};
use crate::base::dtype::DType;
use crate::base::{Error, Result};
use crate::runtime::kernels::element::Element;
use crate::runtime::kernels::tensor::{Work, on_host};
use crate::runtime::kernels::{Dim, Plan};

/// `value` holds one element of type `dtype`; it becomes the tensor's type as torch's fill_ makes it, and it is an error if that
/// type cannot hold it.
pub fn fill(tensor: &View, value: [u8; 16], dtype: DType, handle: usize) -> Result<()> {
    let width = tensor.item();
    let value = if dtype == tensor.dtype {
        check_dtype(dtype, "value")?;
        value
    } else {
        let from = Element::of(dtype).ok_or_else(|| Error::not_supported("'value' is of a type that tcuda cannot compute with."))?;
        cast(value, from, tensor.element("tensor")?)?
    };
    let stream = tensor.stream(handle, "tensor")?;
    if tensor.count() == 0 {
        return Ok(());
    }
    tensor.check_writable("tensor")?;
    let dim = |dim| Dim { size: tensor.shape[dim] as u64, to: tensor.byte_stride(dim), from: 0 };
    let plan = Plan::new(tensor.address, 0, (0..tensor.shape.len()).map(dim))?;
    let work = Work::Fill { value, width };
    match stream {
        Some(stream) => {
            tensor.end(Some(stream), "tensor")?;
            run_on(stream, work, plan, &[tensor.address])
        }
        None => {
            tensor.check_host("tensor")?;
            on_host(work, plan)
        }
    }
}

/// A number of any type, exactly.
#[derive(Clone, Copy, Debug)]
enum Number {
    Integer(i128),
    Real(f64),
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Integer(value) => value.fmt(f),
            Number::Real(value) => {
                // Otherwise up to 309 digits.
                let long = value.is_finite() && *value != 0.0 && !(1e-5..1e16).contains(&value.abs());
                if long { std::fmt::LowerExp::fmt(value, f) } else { value.fmt(f) }
            }
        }
    }
}

fn convert<const N: usize>(value: &[u8], to: Element, from: Element) -> Result<[u8; N]> {
    let mut out = [0u8; N];
    let one = Dim { size: 1, to: 0, from: 0 };
    let plan = Plan::new(out.as_mut_ptr() as usize, value.as_ptr() as usize, std::iter::once(one))?;
    on_host(Work::Convert { to, from }, plan)?;
    Ok(out)
}

fn cast(value: [u8; 16], from: Element, to: Element) -> Result<[u8; 16]> {
    let pair: [u8; 16] = convert(&value, Element::C128, from)?;
    let part = |at: usize| f64::from_ne_bytes(std::array::from_fn(|byte| pair[at + byte]));
    let real = match from {
        Element::U64 => Number::Integer(u64::from_ne_bytes(convert(&value, Element::U64, from)?).into()),
        Element::Bool | Element::U8 | Element::I8 | Element::I16 | Element::U16 | Element::I32 | Element::U32 | Element::I64 => {
            Number::Integer(i64::from_ne_bytes(convert(&value, Element::I64, from)?).into())
        }
        _ => Number::Real(part(0)),
    };
    let imaginary = part(8);
    let fits = match to {
        Element::Bool => true,
        Element::C64 | Element::C128 => holds(to, real) && holds(to, Number::Real(imaginary)),
        _ => imaginary == 0.0 && holds(to, real),
    };
    if !fits {
        let shown = if imaginary == 0.0 { real.to_string() } else { format!("{real}{:+}i", Number::Real(imaginary)) };
        return Err(Error::invalid_argument(format!("value {shown} cannot be converted to type {} without overflow", to.name())));
    }
    convert(&value, to, from)
}

/// torch's rule: a fraction inside the range may go, size may not; an unsigned type takes a negative integer and wraps it.
fn holds(to: Element, number: Number) -> bool {
    let Some((least, most)) = to.bounds() else { return holds_real(to, number) };
    if to == Element::Bool {
        return true;
    }
    match number {
        Number::Integer(value) if least == 0 => value.abs() <= most,
        Number::Integer(value) => (least..=most).contains(&value),
        // NaN is in no range. As f64 the bound may be one more than what fits.
        Number::Real(value) => value >= least as f64 && value <= most as f64 && value as i128 <= most,
    }
}

fn holds_real(to: Element, number: Number) -> bool {
    let Some(most) = to.largest_real().filter(|most| *most < f64::MAX) else { return true };
    match number {
        Number::Integer(value) => (value as f64).abs() <= most,
        Number::Real(value) => !value.is_finite() || value.abs() <= most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize>(value: [u8; N]) -> [u8; 16] {
        std::array::from_fn(|at| value.get(at).copied().unwrap_or(0))
    }

    fn cast_f64(value: f64, to: Element) -> Result<[u8; 16]> {
        cast(bytes(value.to_ne_bytes()), Element::F64, to)
    }

    fn cast_i64(value: i64, to: Element) -> Result<[u8; 16]> {
        cast(bytes(value.to_ne_bytes()), Element::I64, to)
    }

    #[test]
    fn values_are_cast_as_by_torch() {
        assert_eq!(cast_f64(2.9, Element::I32).unwrap(), bytes(2i32.to_ne_bytes()));
        assert_eq!(cast_i64(-1, Element::U8).unwrap(), bytes([255]));
        assert_eq!(cast_i64(3, Element::C64).unwrap()[..8], [3f32.to_ne_bytes(), 0f32.to_ne_bytes()].concat());
        assert_eq!(cast_f64(f64::NAN, Element::Bool).unwrap(), bytes([1]));
        assert_eq!(cast_f64(f64::INFINITY, Element::F16).unwrap(), bytes(0x7c00u16.to_ne_bytes()));
        assert_eq!(cast_f64(254.5, Element::U8).unwrap(), bytes([254]));
        assert_eq!(cast(bytes(u64::MAX.to_ne_bytes()), Element::U64, Element::F64).unwrap(), bytes(2f64.powi(64).to_ne_bytes()));
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        for (value, to) in [
            (300.0, Element::U8),
            (255.5, Element::U8),
            (-1.0, Element::U8),
            (f64::NAN, Element::I32),
            (f64::INFINITY, Element::I64),
            (2f64.powi(63), Element::I64),
            (2f64.powi(64), Element::U64),
            (70000.0, Element::F16),
            (1e39, Element::F32),
        ] {
            let error = cast_f64(value, to).unwrap_err();
            assert!(error.message.contains("without overflow"), "{value} to {to:?}: {error}");
        }
        for (value, shown) in [(1e300, "value 1e300 "), (-1e16, "value -1e16 "), (9e15, "value 9000000000000000 "), (300.5, "value 300.5 ")]
        {
            assert!(cast_f64(value, Element::U8).unwrap_err().message.starts_with(shown), "{value}");
        }
        assert!(cast_i64(-256, Element::U8).is_err() && cast_i64(128, Element::I8).is_err());
        assert!(cast_f64(-(2f64.powi(63)), Element::I64).is_ok() && cast_f64(2f64.powi(63), Element::U64).is_ok());
        let complex = bytes((u64::from(2f32.to_bits()) << 32 | u64::from(1f32.to_bits())).to_ne_bytes());
        assert!(cast(complex, Element::C64, Element::F64).unwrap_err().message.contains("1+2i"));
        assert!(cast(complex, Element::C64, Element::Bool).is_ok());
    }
}
