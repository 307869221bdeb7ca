//! Tensors that tcuda makes: memory with a shape, given back when dropped.

use super::view::{self, View};
use super::{copying, strides, strides::Sizes};
use crate::base::dtype::DType;
use crate::base::{Error, Result, log, process, room};
use crate::copy::{self, Place};
use crate::device;
use crate::memory;
use crate::stream::{self, Stream};

/// What a made tensor is to the one that it was made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It has memory of its own.
    New,
    /// The input was right already: the same memory, which stays the input's.
    Input,
    /// A part of the input, under the same rule.
    View,
}

/// A tensor and what becomes of its memory.
#[derive(Debug)]
pub struct Owned {
    pub view: View,
    pub origin: Origin,
    _memory: Memory,
}

/// The alignment that DLPack asks for and torch gives.
const ALIGNMENT: usize = 256;

#[derive(Clone, Copy)]
#[repr(C, align(256))]
struct Line([u8; ALIGNMENT]);

enum Memory {
    /// No elements, or somebody else's.
    None,
    /// With the run that it belongs to: what was made before a shutdown is not there after it.
    Device(usize, u32),
    Pinned(usize, u32),
    Host(Vec<Line>),
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, address) = match self {
            Memory::None => ("nothing", 0),
            Memory::Device(address, _) => ("device", *address),
            Memory::Pinned(address, _) => ("pinned", *address),
            Memory::Host(lines) => ("host", lines.as_ptr() as usize),
        };
        write!(f, "{kind} {address:#x}")
    }
}

impl Memory {
    fn address(&self) -> usize {
        match self {
            Memory::None => 0,
            Memory::Device(address, _) | Memory::Pinned(address, _) => *address,
            Memory::Host(lines) => lines.as_ptr() as usize,
        }
    }

    fn host(bytes: usize) -> Result<Memory> {
        let mut lines = Vec::<Line>::new();
        room::reserve(&mut lines, bytes.div_ceil(ALIGNMENT), "a tensor")?;
        Ok(Memory::Host(lines))
    }
}

impl Drop for Memory {
    /// From any thread; after shutdown, and in a forked child, the memory is no longer tcuda's to give back.
    fn drop(&mut self) {
        let freed = match self {
            Memory::Device(..) | Memory::Pinned(..) if !process::is_running() => Ok(()),
            Memory::Device(_, run) | Memory::Pinned(_, run) if *run != process::run() => Ok(()),
            Memory::Device(address, _) => memory::free(*address),
            Memory::Pinned(address, _) => memory::pinned::free(*address),
            Memory::None | Memory::Host(_) => Ok(()),
        };
        if let Err(error) = freed {
            log::warn(&format!("The memory of a tensor could not be given back: {error}"));
        }
    }
}

/// Where a new tensor goes.
#[derive(Clone, Copy)]
enum Target {
    Host,
    Pinned,
    /// With the handle of the stream that it is for.
    Device(i32, usize),
}

fn make(target: Target, dtype: DType, shape: &[i64], strides: Sizes) -> Result<Owned> {
    let item = view::check_dtype(dtype, "dtype")?;
    // Packed: the elements are all there is.
    let bytes = view::check_shape(shape, item, "out")? as usize * item;
    let place = match target {
        Target::Host => Place::Pageable,
        Target::Pinned => Place::Pinned,
        Target::Device(device, _) => Place::Device(device),
    };
    let memory = match target {
        // Also to learn that the stream is wrong.
        Target::Device(device, handle) => {
            let stream = stream::resolve_on(handle, device)?;
            if bytes == 0 { Memory::None } else { Memory::Device(memory::allocate(bytes, ALIGNMENT, stream)?, process::run()) }
        }
        _ if bytes == 0 => Memory::None,
        Target::Host => Memory::host(bytes)?,
        Target::Pinned => Memory::Pinned(memory::pinned::allocate(bytes)?, process::run()),
    };
    let view = View { place, dtype, shape: shape.into(), strides, address: memory.address() };
    Ok(Owned { view, origin: Origin::New, _memory: memory })
}

/// Uninitialised and packed. `device` -1 is the current one, -2 the CPU.
pub fn empty(device: i32, dtype: DType, shape: &[i64], handle: usize) -> Result<Owned> {
    let item = view::check_dtype(dtype, "dtype")?;
    view::check_known(dtype, "dtype")?;
    view::check_shape(shape, item, "shape")?;
    make(target_of(device, handle)?, dtype, shape, strides::contiguous(shape))
}

/// Uninitialised, on a device, with strides that leave no gaps.
pub fn empty_strided(device: i32, dtype: DType, shape: &[i64], strides: Sizes, handle: usize) -> Result<Owned> {
    make(Target::Device(device, handle), dtype, shape, strides)
}

/// Bytes on the stream's device for its work, where there is room for them.
pub fn bytes_if_there(stream: Stream, size: usize) -> Result<Option<Owned>> {
    let Some(address) = memory::allocate_if_there(size, stream)? else { return Ok(None) };
    let shape = [size as i64];
    let view = View {
        place: Place::Device(stream.device),
        dtype: DType { code: 1, bits: 8, lanes: 1 },
        shape: shape[..].into(),
        strides: strides::contiguous(&shape),
        address,
    };
    Ok(Some(Owned { view, origin: Origin::New, _memory: Memory::Device(address, process::run()) }))
}

/// The same in pageable memory of the host.
pub fn empty_on_host(dtype: DType, shape: &[i64], strides: Sizes) -> Result<Owned> {
    make(Target::Host, dtype, shape, strides)
}

fn target_of(device: i32, handle: usize) -> Result<Target> {
    if device == device::CPU { Ok(Target::Host) } else { Ok(Target::Device(device::resolve(device)?, handle)) }
}

/// Uninitialised, with place, type, shape and order of dimensions of another.
pub fn empty_like(tensor: &View, handle: usize) -> Result<Owned> {
    let target = match tensor.place {
        Place::Pageable => Target::Host,
        Place::Pinned => Target::Pinned,
        Place::Device(device) => Target::Device(device, handle),
    };
    make(target, tensor.dtype, &tensor.shape, strides::like(&tensor.shape, &tensor.strides))
}

/// The input itself, as a made tensor that owns nothing.
pub fn alias(tensor: &View) -> Owned {
    Owned { view: tensor.clone(), origin: Origin::Input, _memory: Memory::None }
}

/// A part of the input, as a made tensor that owns nothing.
pub fn part(view: View) -> Owned {
    Owned { view, origin: Origin::View, _memory: Memory::None }
}

/// On another device (None: where it is) and of another type (None: its own). The input itself where that changes nothing, unless a
/// copy is asked for.
pub fn to(tensor: &View, device: Option<i32>, dtype: Option<DType>, non_blocking: bool, copy: bool, handle: usize) -> Result<Owned> {
    let target = match (device, tensor.place) {
        (Some(device), _) => target_of(device, handle)?,
        (None, Place::Device(device)) => Target::Device(device, handle),
        (None, _) => Target::Host,
    };
    let dtype = dtype.unwrap_or(tensor.dtype);
    let stays = match (target, tensor.place) {
        (Target::Device(to, _), Place::Device(from)) => to == from,
        (Target::Host | Target::Pinned, Place::Pageable | Place::Pinned) => true,
        _ => false,
    };
    if stays && dtype == tensor.dtype && !copy {
        return Ok(alias(tensor));
    }
    // Between two devices the handle may name the source's stream; the new block then belongs to its own device's current stream.
    let target = match (target, tensor.place) {
        (Target::Device(to, handle), Place::Device(from)) if to != from && stream::resolve_on(handle, to).is_err() => {
            Target::Device(to, stream::HANDLE_CURRENT)
        }
        (target, _) => target,
    };
    let made =
        make(target, dtype, &tensor.shape, strides::like(&tensor.shape, &tensor.strides)).map_err(|error| tensor.blame(error, "tensor"))?;
    copying::copy(["out", "tensor"], &made.view, tensor, non_blocking, handle)?;
    Ok(made)
}

/// In pinned host memory; the input itself where it is already.
pub fn pin(tensor: &View) -> Result<Owned> {
    if let Place::Device(device) = tensor.place {
        return Err(Error::invalid_argument(format!(
            "cannot pin a tensor of device {device}: only dense CPU tensors can be pinned. Copy it to the CPU first."
        ))
        .on_device(device));
    }
    if tensor.place == Place::Pinned || (tensor.count() > 0 && copy::place_of(tensor.address)? == Place::Pinned) {
        return Ok(alias(tensor));
    }
    let made = make(Target::Pinned, tensor.dtype, &tensor.shape, strides::like(&tensor.shape, &tensor.strides))?;
    copying::copy(["out", "tensor"], &made.view, tensor, false, 0)?;
    Ok(made)
}
