//! What torch checks of tensors, devices and dimensions.

use crate::base::{Error, Result};
use crate::copy;
use crate::memory;
use crate::runtime::api::Place;
use crate::stream::{self, Stream};
use crate::tensor::{self, View};

pub fn wrap_dim(dim: i32, ndim: usize) -> Result<usize> {
    if ndim == 0 {
        return Err(Error::invalid_argument(format!("Dimension specified as {dim} but tensor has no dimensions")));
    }
    let wrapped = if dim < 0 { i64::from(dim) + ndim as i64 } else { dim.into() };
    usize::try_from(wrapped).ok().filter(|dim| *dim < ndim).ok_or_else(|| {
        Error::invalid_argument(format!("Dimension out of range (expected to be in range of [-{ndim}, {}], but got {dim})", ndim - 1))
    })
}

/// The stream that orders what is done to a tensor of a device, whose memory is where it says and is noted to be used there.
pub fn take(tensor: &View, stream: Stream, name: impl Fn() -> String) -> Result<Stream> {
    if tensor.count() == 0 {
        return Ok(stream);
    }
    let found = match memory::record_in_block(tensor.address, stream)? {
        Some(around) => around.into(),
        None => copy::find_outside(tensor.address)?,
    };
    tensor.end_at(&found, Some(stream), "data").map_err(|error| error.context(name()))?;
    if let Place::Pinned { .. } = found.place {
        memory::pinned::record_stream_of(tensor.address, stream)?;
    }
    Ok(stream)
}

/// The same on its device's current stream. None: it is on the CPU.
pub fn take_current(tensor: &View, name: impl Fn() -> String) -> Result<Option<Stream>> {
    match tensor.place.device() {
        Some(device) => take(tensor, stream::current(device)?, name).map(Some),
        None => Ok(None),
    }
}

/// Outputs of one call are written at once, or read to write the next one: none may lie in another. `twice`: the same one may be given again, for
/// the same elements.
pub fn check_apart(outputs: &[View], twice: bool) -> Result<()> {
    // Others say nothing: of stretches with gaps that meet the elements may be apart.
    let mut order: Vec<usize> = (0..outputs.len()).filter(|at| outputs[*at].count() > 0 && outputs[*at].is_dense()).collect();
    order.sort_unstable_by_key(|at| outputs[*at].address);
    for pair in order.windows(2) {
        let [first, second] = [pair[0].min(pair[1]), pair[0].max(pair[1])];
        let (a, b) = (&outputs[first], &outputs[second]);
        if tensor::overlap(a, b) && !(twice && tensor::is_same(a, b)) {
            let text = format!("Output tensor at index {second} overlaps that at index {first}. Take memory of its own for each.");
            return Err(Error::invalid_argument(text));
        }
    }
    Ok(())
}

/// Every dimension but one is as expected.
pub fn agrees_but_for(shape: &[i64], expected: &[i64], dim: usize) -> bool {
    shape.len() == expected.len() && shape.iter().zip(expected).enumerate().all(|(at, (size, wanted))| at == dim || size == wanted)
}

/// As torch prints a size in an error: 2x3.
pub fn by_x(shape: &[i64]) -> String {
    shape.iter().map(i64::to_string).collect::<Vec<_>>().join("x")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_wrap() {
        assert_eq!([wrap_dim(0, 2), wrap_dim(1, 2), wrap_dim(-1, 2), wrap_dim(-2, 2)].map(Result::unwrap), [0, 1, 1, 0]);
        for dim in [2, -3, i32::MIN, i32::MAX] {
            assert!(wrap_dim(dim, 2).unwrap_err().message.contains("expected to be in range of [-2, 1], but got"));
        }
        assert!(wrap_dim(0, 0).unwrap_err().message.contains("tensor has no dimensions"));
    }

    #[test]
    fn shapes_may_differ_in_one_dimension() {
        assert!(agrees_but_for(&[2, 9], &[2, 3], 1) && !agrees_but_for(&[2, 9], &[2, 3], 0) && !agrees_but_for(&[2], &[2, 3], 1));
        assert_eq!(by_x(&[2, 3]), "2x3");
    }
}
