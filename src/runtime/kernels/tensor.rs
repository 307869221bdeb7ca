//! Fill, and copy with any strides and any conversion: the kernels of kernels/tensor.cu, their twins, and the choice among them.

use super::divider::Divider;
use super::element::{Element, Row, convert_row};
use super::plan::{Accesses, MAX_DIMS};
use super::{Access, Dim, Family, Kernel, Plan, launch};
use crate::base::watch;
use crate::base::{Error, Result};
use crate::runtime::api::Runtime;
use crate::runtime::table::RawStream;

/// What is done to each pair of elements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Work {
    /// One element of `width` bytes, at the start of `value`, to everywhere.
    Fill {
        value: [u8; 16],
        width: usize,
    },
    /// Bytes as they are, `width` to an element.
    Copy {
        width: usize,
    },
    Convert {
        to: Element,
        from: Element,
    },
}

/// The argument of every kernel of the family, as in kernels/tensor.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Walk {
    to: usize,
    from: usize,
    value: [u64; 2],
    count: u32,
    dims: u32,
    to_type: Element,
    from_type: Element,
    to_strides: [i64; MAX_DIMS],
    from_strides: [i64; MAX_DIMS],
    sizes: [Divider; MAX_DIMS],
}

const THREADS: u32 = 256;
/// Elements of a block in the kernels that do several a thread.
const BLOCK: u32 = 4 * THREADS;

static FAMILY: Family = Family { name: "tensor", images: &[(75, include_bytes!("../../../kernels/ptx/tensor.75.ptx.zst"))] };

static FILL: [Kernel<Walk>; 5] = [
    Kernel::new(&FAMILY, "tcuda_fill_1", fill_twin::<1>),
    Kernel::new(&FAMILY, "tcuda_fill_2", fill_twin::<2>),
    Kernel::new(&FAMILY, "tcuda_fill_4", fill_twin::<4>),
    Kernel::new(&FAMILY, "tcuda_fill_8", fill_twin::<8>),
    Kernel::new(&FAMILY, "tcuda_fill_16", fill_twin::<16>),
];
static COPY: [Kernel<Walk>; 5] = [
    Kernel::new(&FAMILY, "tcuda_copy_1", copy_twin::<1>),
    Kernel::new(&FAMILY, "tcuda_copy_2", copy_twin::<2>),
    Kernel::new(&FAMILY, "tcuda_copy_4", copy_twin::<4>),
    Kernel::new(&FAMILY, "tcuda_copy_8", copy_twin::<8>),
    Kernel::new(&FAMILY, "tcuda_copy_16", copy_twin::<16>),
];
static CONVERT: Kernel<Walk> = Kernel::new(&FAMILY, "tcuda_convert", convert_twin);
static CONVERT_FLAT: Kernel<Walk> = Kernel::new(&FAMILY, "tcuda_convert_flat", convert_twin);

impl Work {
    /// (bytes of a target element, bytes of a source element).
    fn widths(self) -> (usize, usize) {
        match self {
            Work::Fill { width, .. } | Work::Copy { width } => (width, width),
            Work::Convert { to, from } => (to.size(), from.size()),
        }
    }

    /// Groups of elements instead of elements, where that can be.
    fn widened(self, plan: &mut Plan) -> Work {
        match self {
            Work::Fill { value, width } => {
                let value = std::array::from_fn(|at| value[at % width]);
                Work::Fill { value, width: plan.widen_fill(width) }
            }
            Work::Copy { width } => Work::Copy { width: plan.widen(width) },
            convert => convert,
        }
    }
}

/// Only for pieces: sizes and their product fit 31 bits.
fn walk(work: Work, plan: &Plan) -> Walk {
    let (to_type, from_type) = match work {
        Work::Convert { to, from } => (to, from),
        _ => (Element::U8, Element::U8),
    };
    let value = match work {
        Work::Fill { value, .. } => {
            let value = u128::from_ne_bytes(value);
            [value as u64, (value >> 64) as u64]
        }
        _ => [0; 2],
    };
    let mut walk = Walk {
        to: plan.to,
        from: plan.from,
        value,
        count: plan.count() as u32,
        dims: plan.dims.len() as u32,
        to_type,
        from_type,
        to_strides: [0; MAX_DIMS],
        from_strides: [0; MAX_DIMS],
        sizes: [Divider::default(); MAX_DIMS],
    };
    for (at, dim) in plan.dims.iter().enumerate() {
        walk.to_strides[at] = dim.to;
        walk.from_strides[at] = dim.from;
        walk.sizes[at] = Divider::new(dim.size as u32);
    }
    walk
}

/// Enqueues the work on a stream of `device`, which is current and reaches both regions. One stretch on both ends is a plain copy.
pub fn on_device(runtime: &'static Runtime, device: i32, stream: RawStream, work: Work, mut plan: Plan) -> Result<()> {
    let (to_width, from_width) = work.widths();
    if plan.is_flat(to_width, from_width) {
        let bytes = plan.count() as usize * to_width;
        match work {
            Work::Copy { .. } => return runtime.memcpy_async(plan.to, plan.from, bytes, stream),
            Work::Fill { value, width } if value[..width].iter().all(|byte| *byte == value[0]) => {
                return runtime.memset_async(plan.to, i32::from(value[0]), bytes, stream);
            }
            _ => {}
        }
    }
    let misaligned = |end: &str, address: usize, width: usize| {
        Err(Error::invalid_argument(format!(
            "The {end}'s data is at {address:#x}, which is not a multiple of its element size of {width} bytes: a kernel cannot reach it."
        )))
    };
    if !plan.to.is_multiple_of(to_width) {
        return misaligned("destination", plan.to, to_width);
    }
    if !plan.from.is_multiple_of(from_width) {
        return misaligned("source", plan.from, from_width);
    }
    if let Work::Fill { width, .. } = work
        && let Some((groups, rest)) = plan.split_fill(width)
    {
        on_device(runtime, device, stream, work, groups)?;
        return on_device(runtime, device, stream, work, rest);
    }
    let work = work.widened(&mut plan);
    plan.for_each_piece(&mut |piece| {
        let (to_width, from_width) = work.widths();
        let flat = piece.is_flat(to_width, from_width)
            && piece.to.is_multiple_of(16.min(4 * to_width))
            && piece.from.is_multiple_of(16.min(4 * from_width));
        let (kernel, per_block) = match work {
            Work::Fill { width, .. } => (&FILL[width.trailing_zeros() as usize], BLOCK),
            Work::Copy { width } => (&COPY[width.trailing_zeros() as usize], BLOCK),
            Work::Convert { .. } if flat => (&CONVERT_FLAT, BLOCK),
            Work::Convert { .. } => (&CONVERT, THREADS),
        };
        let access = |(address, size), write| Access { address, size, write };
        let accesses = [access(piece.target_range(to_width), true), access(piece.source_range(from_width), false)];
        let fills = matches!(work, Work::Fill { .. });
        let mut touched = if fills { &accesses[..1] } else { &accesses[..] };
        let exact: Vec<Access>;
        if watch::any(watch::SANITIZER) {
            let read = if fills { Accesses::new() } else { piece.reads(from_width) };
            exact = piece.writes(to_width).into_iter().chain(read).collect();
            touched = &exact;
        }
        let walk = walk(work, piece);
        unsafe { launch(runtime, device, stream, kernel, (walk.count.div_ceil(per_block), THREADS), walk, touched) }
    })
}

/// Does the work now, on memory that the host reaches.
pub fn on_host(work: Work, mut plan: Plan) -> Result<()> {
    if let Work::Copy { width } = work
        && plan.is_flat(width, width)
    {
        let bytes = plan.count() as usize * width;
        unsafe { std::ptr::copy(plan.from as *const u8, plan.to as *mut u8, bytes) };
        return Ok(());
    }
    let work = work.widened(&mut plan);
    plan.for_each_piece(&mut |piece| {
        let walk = walk(work, piece);
        unsafe {
            match work {
                Work::Fill { width, .. } => (FILL[width.trailing_zeros() as usize].twin)(&walk),
                Work::Copy { width } => (COPY[width.trailing_zeros() as usize].twin)(&walk),
                Work::Convert { .. } => convert_twin(&walk),
            }
        }
        Ok(())
    })
}

/// Bytes, between two places that the host reaches; they may overlap.
pub fn copy_on_host(to: usize, from: usize, size: usize) -> Result<()> {
    let whole = Dim { size: size as u64, to: 1, from: 1 };
    on_host(Work::Copy { width: 1 }, Plan::new(to, from, std::iter::once(whole))?)
}

// ---- the twins: a row of the innermost dimension at a time

/// Calls `row` with the addresses of the first elements of each row.
fn for_each_row(walk: &Walk, mut row: impl FnMut(usize, usize)) {
    let dims = walk.dims as usize;
    let mut index = [0u32; MAX_DIMS];
    let (mut to, mut from) = (walk.to, walk.from);
    loop {
        row(to, from);
        let mut dim = 1;
        loop {
            if dim >= dims {
                return;
            }
            index[dim] += 1;
            to = to.wrapping_add_signed(walk.to_strides[dim] as isize);
            from = from.wrapping_add_signed(walk.from_strides[dim] as isize);
            if index[dim] < walk.sizes[dim].size {
                break;
            }
            let size = i64::from(walk.sizes[dim].size);
            to = to.wrapping_add_signed((-size * walk.to_strides[dim]) as isize);
            from = from.wrapping_add_signed((-size * walk.from_strides[dim]) as isize);
            index[dim] = 0;
            dim += 1;
        }
    }
}

unsafe fn fill_twin<const WIDTH: usize>(walk: &Walk) {
    let bytes = (u128::from(walk.value[1]) << 64 | u128::from(walk.value[0])).to_ne_bytes();
    let value: [u8; WIDTH] = std::array::from_fn(|at| bytes[at]);
    for_each_row(walk, |to, _| {
        let mut to = to;
        for _ in 0..walk.sizes[0].size {
            unsafe { (to as *mut [u8; WIDTH]).write(value) };
            to = to.wrapping_add_signed(walk.to_strides[0] as isize);
        }
    });
}

unsafe fn copy_twin<const WIDTH: usize>(walk: &Walk) {
    for_each_row(walk, |to, from| {
        let (mut to, mut from) = (to, from);
        for _ in 0..walk.sizes[0].size {
            unsafe { (to as *mut [u8; WIDTH]).write((from as *const [u8; WIDTH]).read()) };
            to = to.wrapping_add_signed(walk.to_strides[0] as isize);
            from = from.wrapping_add_signed(walk.from_strides[0] as isize);
        }
    });
}

unsafe fn convert_twin(walk: &Walk) {
    for_each_row(walk, |to, from| {
        let to = Row { element: walk.to_type, address: to, stride: walk.to_strides[0] };
        let from = Row { element: walk.from_type, address: from, stride: walk.from_strides[0] };
        unsafe { convert_row(to, from, walk.sizes[0].size as usize) };
    });
}

#[cfg(test)]
mod tests {
    use super::super::image::tests::check_kernel;
    use super::*;

    #[test]
    fn the_ptx_has_every_kernel() {
        for kernel in FILL.iter().chain(&COPY).chain([&CONVERT, &CONVERT_FLAT]) {
            check_kernel(&FAMILY, kernel.name, size_of::<Walk>());
        }
    }

    fn plan(to: usize, from: usize, dims: &[(u64, i64, i64)]) -> Plan {
        Plan::new(to, from, dims.iter().map(|d| Dim { size: d.0, to: d.1, from: d.2 })).unwrap()
    }

    #[test]
    fn the_host_transposes_repeats_and_fills() {
        let source: Vec<u16> = (0..12).collect();
        let mut target = vec![0u16; 12];
        let (to, from) = (target.as_mut_ptr() as usize, source.as_ptr() as usize);
        on_host(Work::Copy { width: 2 }, plan(to, from, &[(4, 6, 2), (3, 2, 8)])).unwrap();
        assert_eq!(target, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
        on_host(Work::Copy { width: 2 }, plan(to, from + 2, &[(4, 6, 0), (3, 2, 2)])).unwrap();
        assert_eq!(target, [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]);
        let value = std::array::from_fn(|at| at as u8);
        on_host(Work::Fill { value, width: 2 }, plan(to, 0, &[(3, 8, 0), (2, 2, 0)])).unwrap();
        assert_eq!(target, [0x100, 0x100, 3, 1, 0x100, 0x100, 1, 2, 0x100, 0x100, 2, 3]);
        let mut wide = [0f64; 3];
        let convert = Work::Convert { to: Element::F64, from: Element::U16 };
        on_host(convert, plan(wide.as_mut_ptr() as usize, from, &[(3, 8, 10)])).unwrap();
        assert_eq!(wide, [0.0, 5.0, 10.0]);
    }
}
