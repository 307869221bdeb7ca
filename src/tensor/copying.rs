//! One tensor into another: any two places, any strides, any types.

use super::strides::{self, Sizes};
use super::view::View;
use crate::base::{Error, Result, room};
use crate::copy::{self, End, Place};
use crate::device;
use crate::memory;
use crate::runtime::kernels::tensor::{Work, on_device, on_host};
use crate::runtime::kernels::{Dim, Plan};
use crate::stream::{self, Stream};

/// What messages call the two ends: the written one, the read one.
pub type Names = [&'static str; 2];

/// Broadcasts and converts. Between device and host it waits, unless `non_blocking`; a result in pageable memory is complete on return.
pub fn copy(names: Names, to: &View, from: &View, non_blocking: bool, handle: usize) -> Result<()> {
    copy_with(names, to, from, non_blocking, |from| streams(names, to, from, handle))
}

/// The same, each end with the stream of its device, and without waiting.
pub fn copy_between(names: Names, to: (&View, Stream), from: (&View, Stream)) -> Result<()> {
    copy_with(names, to.0, from.0, true, |_| Ok((Some(to.1), Some(from.1))))
}

/// The streams of the two ends: None for one that is no device's.
type Ends = (Option<Stream>, Option<Stream>);

fn copy_with(names: Names, to: &View, from: &View, non_blocking: bool, ends: impl FnOnce(&View) -> Result<Ends>) -> Result<()> {
    let [to_name, from_name] = names;
    let from = &from.broadcast(&to.shape)?;
    let work = work(names, to, from)?;
    let (to_stream, from_stream) = ends(from)?;
    if to.count() == 0 {
        return Ok(());
    }
    to.check_writable(to_name)?;
    if is_same(to, from) {
        return Ok(());
    }
    if meet(to, from) {
        return Err(Error::invalid_argument(format!(
            "unsupported operation: some elements of the input tensor '{from_name}' and the written-to tensor '{to_name}' refer to a single \
             memory location. Copy the input to memory of its own first."
        )));
    }
    if to_stream.is_none() && from_stream.is_none() {
        to.check_host(to_name)?;
        from.check_host(from_name)?;
        return on_host(work, plan(to, from)?);
    }
    let to = Side { view: to, end: to.end(to_stream, to_name)? };
    let from = Side { view: from, end: from.end(from_stream, from_name)? };
    if to_stream == from_stream { to.run(work, to.view, from.view) } else { across(to, from, work, non_blocking) }
}

fn work([to_name, from_name]: Names, to: &View, from: &View) -> Result<Work> {
    if to.dtype == from.dtype {
        return Ok(Work::Copy { width: to.item() });
    }
    Ok(Work::Convert { to: to.element(to_name)?, from: from.element(from_name)? })
}

/// The stream of each end that is on a device. A handle names the stream of one of two devices, and the other takes part with its
/// current stream; a special handle means the stream of that name on both.
fn streams([to_name, from_name]: Names, to: &View, from: &View, handle: usize) -> Result<Ends> {
    let on = |device| stream::resolve_on(handle, device);
    let (to, from) = match (to.place.device(), from.place.device()) {
        (Some(to_device), Some(from_device)) if to_device != from_device => match (on(to_device), on(from_device)) {
            (Ok(to), Ok(from)) => (to, from),
            (Ok(to), Err(_)) => (to, stream::current(from_device)?),
            (Err(_), Ok(from)) => (stream::current(to_device)?, from),
            (Err(_), Err(error)) => return Err(from.blame(to.blame(error, to_name), from_name)),
        },
        _ => return Ok((to.stream(handle, to_name)?, from.stream(handle, from_name)?)),
    };
    Ok((Some(to), Some(from)))
}

/// The same elements at the same addresses: nothing to do.
pub fn is_same(to: &View, from: &View) -> bool {
    (to.place, to.address, to.dtype) == (from.place, from.address, from.dtype) && agree(to, from)
}

/// Whether they have elements in common, as far as can be told cheaply: two ranges without gaps.
pub fn meet(a: &View, b: &View) -> bool {
    overlap(a, b) && a.is_dense() && b.is_dense()
}

/// Whether the stretches of memory that they lie in meet; they may have no element in common all the same.
pub fn overlap(a: &View, b: &View) -> bool {
    a.count() > 0 && b.count() > 0 && a.address < b.address + b.bytes() && b.address < a.address + a.bytes()
}

/// The walk over two views of one shape.
pub fn plan(to: &View, from: &View) -> Result<Plan> {
    let dim = |dim| Dim { size: to.shape[dim] as u64, to: to.byte_stride(dim), from: from.byte_stride(dim) };
    Plan::new(to.address, from.address, (0..to.shape.len()).map(dim))
}

/// `blocks` are what it touches: memory that was made for other streams must not be reused before it is done.
pub fn run_on(stream: Stream, work: Work, plan: Plan, blocks: &[usize]) -> Result<()> {
    for block in blocks {
        memory::record_stream_of(*block, stream)?;
    }
    let guard = device::Guard::new(stream.device)?;
    on_device(crate::runtime::runtime()?, guard.device, stream.raw, work, plan)
}

/// A tensor and its end of the transfer.
struct Side<'a> {
    view: &'a View,
    end: End,
}

impl Side<'_> {
    /// Does the work where this side's memory can be reached, at once or on its stream.
    fn run(&self, work: Work, to: &View, from: &View) -> Result<()> {
        let plan = plan(to, from)?;
        match self.end.stream {
            Some(stream) => run_on(stream, work, plan, &[to.address, from.address]),
            None => on_host(work, plan),
        }
    }
}

/// Memory beside one side for an image of the elements on their way. Given back on its own stream.
struct Image {
    view: View,
    end: End,
    _host: Vec<u8>,
}

impl Image {
    fn new(side: &Side, model: &View, strides: Sizes) -> Result<Image> {
        let view = View { place: side.end.place, strides, ..model.clone() };
        let bytes = view.count() as usize * view.item();
        let (address, end, host) = match side.end.stream {
            Some(stream) => {
                let address = memory::allocate(bytes, 256, stream)?;
                (address, End::device(address, stream), Vec::new())
            }
            None => {
                let mut host = Vec::new();
                room::reserve(&mut host, bytes, "a tensor whose elements are put in order")?;
                let address = host.as_ptr() as usize;
                (address, End::host(address, Place::Pageable), host)
            }
        };
        Ok(Image { view: View { address, ..view }, end, _host: host })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.end.stream.is_some() {
            // It was tcuda's own and stays so if this fails.
            let _ = memory::free(self.end.address);
        }
    }
}

/// Between two memories one block of bytes travels. What it has to look like is made before it leaves, or after it arrives, or both;
/// conversion is done by a device.
fn across(to: Side, from: Side, work: Work, non_blocking: bool) -> Result<()> {
    // A broadcast source travels once.
    let source = &collapse(from.view);
    let same_type = to.view.dtype == source.dtype;
    let whole = source.shape == to.view.shape;
    let bytes = |view: &View| view.count() as usize * view.item();
    if same_type && whole && to.view.is_dense() && agree(to.view, source) {
        return copy::transfer(to.end, from.end, bytes(to.view), non_blocking);
    }
    let on_source = from.end.stream.is_some();
    let device_target = to.end.stream.is_some();
    if on_source && to.view.is_dense() {
        // Packed as the target wants it, on the source's device.
        let image = Image::new(&from, to.view, to.view.strides.clone())?;
        from.run(work, &image.view, from.view)?;
        return copy::transfer(to.end, image.end, bytes(to.view), non_blocking);
    }
    if device_target && source.is_dense() {
        // Sent as it is, unpacked on the target's device.
        let image = Image::new(&to, source, source.strides.clone())?;
        copy::transfer(image.end, from.end, bytes(source), non_blocking)?;
        return to.run(work, to.view, &image.view.broadcast(&to.view.shape)?);
    }
    // Neither end is one block: packed here, unpacked there, converted on the way by whichever is a device.
    let model = if on_source { View { dtype: to.view.dtype, ..source.clone() } } else { source.clone() };
    let packed = strides::contiguous(&model.shape);
    let leaving = Image::new(&from, &model, packed.clone())?;
    let arriving = Image::new(&to, &model, packed)?;
    let straight = Work::Copy { width: model.item() };
    let (first, second) = if on_source { (work, straight) } else { (straight, work) };
    from.run(first, &leaving.view, source)?;
    // Host images live only as long as this call.
    let wait = leaving.end.stream.is_none() || arriving.end.stream.is_none();
    copy::transfer(arriving.end, leaving.end, bytes(&model), !wait)?;
    to.run(second, to.view, &arriving.view.broadcast(&to.view.shape)?)
}

/// Without the repetitions: dimensions of stride 0 become 1 long.
fn collapse(view: &View) -> View {
    let shape = view.shape.iter().zip(&view.strides).map(|(size, stride)| if *stride == 0 { 1 } else { *size }).collect();
    View { shape, ..view.clone() }
}

/// Whether equal indices lie equally far from the first element.
pub fn agree(a: &View, b: &View) -> bool {
    a.shape.iter().zip(a.strides.iter().zip(&b.strides)).all(|(size, (a, b))| *size == 1 || a == b)
}
