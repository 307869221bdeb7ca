//! A tensor as it came over the border, checked once, so that nothing after it can overflow.

use super::strides::{self, Sizes};
use crate::base::dlpack;
use crate::base::dtype::DType;
use crate::base::{Error, Result};
use crate::copy::{self, End, Found, Place};
use crate::device;
use crate::runtime::api::Place as At;
use crate::runtime::kernels::element::Element;
use crate::stream::{self, Stream};
use std::fmt::Display;

/// torch's limit on dimensions.
const MOST_DIMS: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub struct View {
    pub place: Place,
    pub dtype: DType,
    pub shape: Sizes,
    /// In elements, none negative.
    pub strides: Sizes,
    /// Of the first element.
    pub address: usize,
}

/// The parts of a `tcuda_tensor_t`, its arrays read.
pub struct Parts<'a> {
    pub data: usize,
    pub byte_offset: u64,
    pub device_type: i32,
    pub device_id: i32,
    pub dtype: DType,
    pub shape: &'a [i64],
    pub strides: Option<&'a [i64]>,
}

/// Dimensions as DLPack gives them.
pub fn check_ndim(ndim: i32, name: impl Display) -> Result<usize> {
    usize::try_from(ndim)
        .ok()
        .filter(|ndim| *ndim <= MOST_DIMS)
        .ok_or_else(|| Error::invalid_argument(format!("'{name}': {ndim} dimensions; 0 to {MOST_DIMS} are possible.")))
}

/// Bytes of an element of a type that tcuda can move.
pub fn check_dtype(dtype: DType, name: impl Display) -> Result<usize> {
    if dtype.lanes != 1 {
        return Err(Error::invalid_argument(format!(
            "'{name}': elements of {} lanes; tcuda takes one lane. Give the lanes a dimension of their own.",
            dtype.lanes
        )));
    }
    match dtype.bits {
        8 | 16 | 32 | 64 | 128 => Ok(dtype.size()),
        bits => Err(Error::not_supported(format!(
            "'{name}': elements of {bits} bits (DLPack code {}). 8, 16, 32, 64 and 128 are taken.",
            dtype.code
        ))),
    }
}

/// For what tcuda makes: a type that DLPack 1.1 names. What comes in may be of a newer one, and is bytes.
pub fn check_known(dtype: DType, name: impl Display) -> Result<()> {
    const OPAQUE: u8 = 3;
    const BOOL: u8 = 6;
    const UNKNOWN: u8 = 18;
    match dtype.code {
        OPAQUE | UNKNOWN.. => {
            Err(Error::not_supported(format!("'{name}': {} is no code of a type that DLPack 1.1 has elements of.", dtype.code)))
        }
        BOOL if dtype.bits != 8 => {
            Err(Error::not_supported(format!("'{name}': a bool of {} bits (DLPack code {BOOL}). Taken are 8.", dtype.bits)))
        }
        _ => Ok(()),
    }
}

/// Elements of a shape; sizes may not be negative, and bytes have to fit memory.
pub fn check_shape(shape: &[i64], item: usize, name: impl Display) -> Result<u64> {
    if let Some(size) = shape.iter().find(|size| **size < 0) {
        return Err(Error::invalid_argument(format!("'{name}': the shape {shape:?} has a size of {size}, which cannot be.")));
    }
    if shape.contains(&0) {
        return Ok(0);
    }
    let bytes =
        shape.iter().try_fold(item as u64, |bytes, size| bytes.checked_mul(*size as u64)).filter(|bytes| *bytes <= isize::MAX as u64);
    match bytes {
        Some(bytes) => Ok(bytes / item as u64),
        None => Err(Error::invalid_argument(format!(
            "'{name}': the shape {shape:?} with elements of {item} bytes is more than memory can hold."
        ))),
    }
}

impl View {
    pub fn new(parts: Parts, name: impl Display + Copy) -> Result<View> {
        let item = check_dtype(parts.dtype, name)?;
        let count = check_shape(parts.shape, item, name)?;
        let place = match parts.device_type {
            dlpack::CPU => Place::Pageable,
            dlpack::CUDA_HOST => Place::Pinned,
            dlpack::CUDA | dlpack::CUDA_MANAGED => Place::Device(device_of(parts.device_id, name)?),
            other => {
                return Err(Error::not_supported(format!(
                    "'{name}' is on a device of DLPack's type {other}. Taken are 1 (CPU), 2 (CUDA), 3 (pinned host memory) and 13 (managed memory)."
                )));
            }
        };
        let strides = match parts.strides {
            Some(strides) => strides.into(),
            None => strides::contiguous(parts.shape),
        };
        // Where there is no second element the stride says nothing.
        let strides: Sizes =
            parts.shape.iter().zip(strides).map(|(size, stride)| if *size > 1 && count > 0 { stride } else { stride.max(0) }).collect();
        if let Some(stride) = strides.iter().find(|stride| **stride < 0) {
            return Err(Error::invalid_argument(format!(
                "'{name}' has a stride of {stride}: tensors with negative strides are not currently supported. Make a copy of it first."
            )));
        }
        let view = View { place, dtype: parts.dtype, shape: parts.shape.into(), strides, address: parts.data };
        if count == 0 {
            return Ok(view);
        }
        if parts.data == 0 {
            return Err(Error::invalid_argument(format!("'{name}' has {count} elements, but its data is NULL.")));
        }
        let end = |start: usize| Some(start.checked_add(view.extent()?)?).filter(|end| *end <= isize::MAX as usize);
        let address = usize::try_from(parts.byte_offset).ok().and_then(|offset| parts.data.checked_add(offset));
        match address {
            Some(address) if end(address).is_some() => Ok(View { address, ..view }),
            _ => Err(Error::invalid_argument(format!(
                "'{name}' (shape {:?}, strides {:?}, byte offset {}) reaches past the end of memory.",
                view.shape, view.strides, parts.byte_offset
            ))),
        }
    }

    pub fn item(&self) -> usize {
        self.dtype.size()
    }

    /// Bytes from one element to the next one of a dimension; of a size of 1 it may be anything.
    pub fn byte_stride(&self, dim: usize) -> i64 {
        self.strides[dim].wrapping_mul(self.item() as i64)
    }

    pub fn count(&self) -> u64 {
        if self.shape.contains(&0) { 0 } else { self.shape.iter().map(|size| *size as u64).product() }
    }

    /// Bytes from the first element's start to the last one's end; None where that does not fit.
    fn extent(&self) -> Option<usize> {
        let reach = self
            .shape
            .iter()
            .zip(&self.strides)
            .try_fold(0i64, |reach, (size, stride)| reach.checked_add((size - 1).checked_mul(*stride)?))?;
        usize::try_from(reach.checked_add(1)?).ok()?.checked_mul(self.item())
    }

    /// The same, of a view with elements: they were checked.
    pub fn bytes(&self) -> usize {
        self.extent().unwrap_or(0)
    }

    pub fn is_dense(&self) -> bool {
        strides::is_dense(&self.shape, &self.strides)
    }

    /// Without gaps, the last dimension fastest.
    pub fn is_packed(&self) -> bool {
        let mut expected = 1i64;
        self.shape.iter().zip(&self.strides).rev().all(|(size, stride)| {
            let fits = *size == 1 || *stride == expected;
            expected = i64::saturating_mul(expected, *size);
            fits
        })
    }

    pub fn element(&self, name: impl Display) -> Result<Element> {
        Element::of(self.dtype).ok_or_else(|| {
            Error::not_supported(format!(
                "'{name}' has elements of DLPack's type code {} with {} bits, with which tcuda cannot compute; it copies them as they are only.",
                self.dtype.code, self.dtype.bits
            ))
        })
    }

    /// Where the same elements lie as `target` wants them: dimensions in front and sizes of 1 are repeated.
    pub fn broadcast(&self, target: &[i64]) -> Result<View> {
        let strides = strides::broadcast(&self.shape, &self.strides, target).ok_or_else(|| {
            Error::invalid_argument(format!(
                "The shape {:?} of the source cannot be broadcast to the shape {target:?} of the destination: counted from the last, each \
                 size must be the same or 1.",
                self.shape
            ))
        })?;
        Ok(View { shape: target.into(), strides, ..self.clone() })
    }

    /// `size` elements of a dimension, from `start` on, both within it.
    pub fn narrow(&self, dim: usize, start: i64, size: i64) -> View {
        let mut part = self.clone();
        part.shape[dim] = size;
        if part.count() > 0 {
            part.address += (start * self.strides[dim]) as usize * self.item();
        }
        part
    }

    /// The same where it is known that the shapes go together.
    pub fn expand(&self, target: &[i64]) -> View {
        let strides = strides::broadcast(&self.shape, &self.strides, target).unwrap_or_else(|| self.strides.clone());
        View { shape: target.into(), strides, ..self.clone() }
    }

    /// For a destination: no two indices may mean one element.
    pub fn check_writable(&self, name: impl Display) -> Result<()> {
        let repeats = self.shape.iter().zip(&self.strides).any(|(size, stride)| *size > 1 && *stride == 0);
        if repeats {
            return Err(Error::invalid_argument(format!(
                "unsupported operation: more than one element of the written-to tensor '{name}' refers to a single memory location. Write to a \
                 tensor of its own instead."
            )));
        }
        Ok(())
    }

    /// This end of a copy. What the tensor says of its place is compared with what tcuda and CUDA know; pinned host memory is found out
    /// though its tensor says CPU, as torch's does. Managed memory is everybody's, and a device reaches pinned memory as its own.
    pub fn end(&self, stream: Option<Stream>, name: impl Display + Copy) -> Result<End> {
        self.end_at(&copy::find(self.address)?, stream, name)
    }

    /// The same where it was found out already.
    pub fn end_at(&self, found: &Found, stream: Option<Stream>, name: impl Display + Copy) -> Result<End> {
        let bytes = self.bytes();
        match found.place {
            At::Device { .. } => found.check_device(name, self.address, bytes)?,
            At::Pinned { .. } => copy::check_pinned(name, self.address, bytes, found.block.as_ref())?,
            At::Unregistered => copy::check_host(name, self.address, bytes)?,
            // Where it ends nobody tells.
            At::Managed { .. } => {}
        }
        match (self.place, stream, found.place) {
            (Place::Device(stated), _, At::Device { device }) if device != stated => Err(self.misplaced(Place::Device(device), name)),
            (Place::Device(_), Some(_), At::Unregistered) => Err(self.misplaced(Place::Pageable, name)),
            (Place::Device(_), Some(stream), _) => Ok(End::device(self.address, stream)),
            (_, _, At::Device { device }) => Err(self.misplaced(Place::Device(device), name)),
            (_, _, At::Unregistered) => Ok(End::host(self.address, Place::Pageable)),
            (_, _, At::Pinned { .. } | At::Managed { .. }) => Ok(End::host(self.address, Place::Pinned)),
        }
    }

    /// The stream of its device that a handle means; None: it is on no device.
    pub fn stream(&self, handle: usize, name: impl Display) -> Result<Option<Stream>> {
        let on = |device| stream::resolve_on(handle, device).map_err(|error| self.blame(error, name));
        self.place.device().map(on).transpose()
    }

    /// Of a stream that is not of its device: if its data is elsewhere, that is what is wrong.
    pub fn blame(&self, error: Error, name: impl Display) -> Error {
        match copy::find(self.address) {
            Ok(Found { place: At::Device { device }, .. }) if self.count() > 0 && self.place != Place::Device(device) => {
                self.misplaced(Place::Device(device), name)
            }
            _ => error,
        }
    }

    /// The same where no device takes part, and none is asked unless something is wrong: that would wake it up.
    pub fn check_host(&self, name: impl Display + Copy) -> Result<()> {
        copy::check_host(name, self.address, self.bytes()).map_err(|error| match copy::place_of(self.address) {
            Ok(found @ Place::Device(_)) => self.misplaced(found, name),
            _ => error,
        })
    }

    #[cold]
    fn misplaced(&self, found: Place, name: impl Display) -> Error {
        Error::invalid_argument(format!("'{name}' says that its data ({:#x}) is in {}, but it is in {found}.", self.address, self.place))
    }
}

/// DLPack's device ids are indices: -1 is none of them.
fn device_of(id: i32, name: impl Display) -> Result<i32> {
    if id < 0 {
        return Err(Error::invalid_argument(format!("'{name}' is on CUDA device {id}, and there is no such index.")).on_device(id));
    }
    device::resolve(id).map_err(|error| error.context(format!("'{name}'")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(shape: &'a [i64], strides: Option<&'a [i64]>) -> Parts<'a> {
        let dtype = DType { code: 2, bits: 32, lanes: 1 };
        Parts { data: 4096, byte_offset: 8, device_type: 1, device_id: 0, dtype, shape, strides }
    }

    #[test]
    fn what_is_right_is_taken() {
        let view = View::new(parts(&[2, 3], None), "t").unwrap();
        assert_eq!((view.address, view.strides.as_slice(), view.count(), view.bytes()), (4104, &[3, 1][..], 6, 24));
        let spread = View::new(parts(&[2, 3], Some(&[10, 0])), "t").unwrap();
        assert_eq!((spread.bytes(), spread.count()), (44, 6));
        let packed = |shape: &[i64], strides: &[i64]| View::new(parts(shape, Some(strides)), "t").unwrap().is_packed();
        assert!(packed(&[2, 3], &[3, 1]) && packed(&[2, 1, 3], &[3, 77, 1]) && packed(&[], &[]));
        assert!(!packed(&[2, 3], &[1, 2]) && !packed(&[2, 3], &[4, 1]) && !packed(&[2, 3], &[3, 0]));
        let scalar = View::new(parts(&[], None), "t").unwrap();
        assert_eq!((scalar.count(), scalar.bytes()), (1, 4));
        let empty = View::new(Parts { data: 0, byte_offset: u64::MAX, ..parts(&[i64::MAX, 0, i64::MAX], None) }, "t").unwrap();
        assert_eq!(empty.count(), 0);
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        let refused = |parts: Parts, word: &str| {
            let error = View::new(parts, "src").unwrap_err();
            assert!(error.message.contains("'src'") && error.message.contains(word), "{error}");
        };
        let dtype = |bits, lanes| DType { code: 2, bits, lanes };
        refused(parts(&[2, -1], None), "-1");
        refused(parts(&[1 << 32, 1 << 32], None), "more than memory");
        refused(parts(&[i64::MAX], None), "more than memory");
        refused(parts(&[2], Some(&[-1])), "negative strides");
        for (shape, strides) in [(&[1i64, 2], &[-4i64, 1]), (&[0, 3], &[2, -1])] {
            assert!(View::new(parts(shape, Some(strides)), "src").unwrap().strides.iter().all(|stride| *stride >= 0));
        }
        refused(parts(&[2, 2], Some(&[i64::MAX, 1])), "past the end");
        refused(parts(&[3], Some(&[i64::MAX / 2])), "past the end");
        refused(Parts { byte_offset: u64::MAX, ..parts(&[2], None) }, "past the end");
        refused(Parts { data: 0, ..parts(&[2], None) }, "NULL");
        refused(Parts { dtype: dtype(32, 4), ..parts(&[2], None) }, "lanes");
        refused(Parts { dtype: dtype(4, 1), ..parts(&[2], None) }, "4 bits");
        refused(Parts { device_type: 8, ..parts(&[2], None) }, "type 8");
        refused(Parts { device_type: 2, device_id: -1, ..parts(&[2], None) }, "device -1");
        assert!(check_ndim(-1, "src").is_err() && check_ndim(65, "src").is_err() && check_ndim(64, "src").is_ok());
    }
}
