//! Random numbers: the kernels of kernels/random_*.cu, their twins, and the choice among them.

mod chances;
mod draw;
mod fast;
mod math;
mod permutation;
mod philox;
mod twin;

pub use chances::{chances_on_device, prepare_chances};
pub use draw::{Distribution, Draw, rounded};
pub use permutation::{permutation_on_device, prepare_permutation};

use super::divider::Divider;
use super::element::Element;
use super::plan::MAX_DIMS;
use super::{Access, Plan, launch, prepare};
use crate::base::{Error, Result};
use crate::runtime::api::Runtime;
use crate::runtime::table::RawStream;

/// What a kernel needs to draw, as one argument by value. include/tcuda/philox.cuh has the numbers' side.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub struct tcuda_philox_state_t {
    /// The seed; where `captured` is 1, the address on the device of a uint64_t that holds it.
    pub seed: u64,
    /// The offset, a multiple of 4; where `captured` is 1, the address on the device of a uint64_t that holds where it begins.
    pub offset: u64,
    /// What is to be added to the offset.
    pub offset_intragraph: u64,
    /// 1: in a graph, where each replay has numbers of its own.
    pub captured: i32,
    /// 0.
    pub reserved: i32,
}
const _: () = assert!(size_of::<tcuda_philox_state_t>() == 32);

pub use tcuda_philox_state_t as PhiloxState;

impl PhiloxState {
    /// Seed and offset, as a kernel reads them.
    ///
    /// # Safety
    /// Where `captured` is 1 the twin may read what the addresses say.
    unsafe fn now(self) -> (u64, u64) {
        match self.captured {
            0 => (self.seed, self.offset),
            _ => unsafe { ((self.seed as *const u64).read(), (self.offset as *const u64).read().wrapping_add(self.offset_intragraph)) },
        }
    }

    /// The memory that this reads.
    fn accesses(self) -> impl Iterator<Item = Access> {
        let read = |address| Access { address: address as usize, size: 8, write: false };
        [self.seed, self.offset].map(read).into_iter().filter(move |_| self.captured != 0)
    }
}

/// The argument of the kernels, as in kernels/random.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
struct Random {
    out: usize,
    state: PhiloxState,
    /// Parameters: f64 as bits, or words.
    numbers: [u64; 4],
    count: u32,
    /// torch's.
    threads: u32,
    /// Blocks of Philox that each of torch's threads draws.
    rounds: u32,
    groups: Divider,
    element: Element,
    dims: u32,
    sizes: [Divider; MAX_DIMS],
    strides: [i64; MAX_DIMS],
}

/// Threads of a block: of our kernels, and of torch's.
const THREADS: u32 = 128;
const TORCHS_THREADS: u64 = 256;

/// Threads that torch launches for so many elements, and the blocks of Philox that each of them draws.
fn shape(count: u64, values_per_block: u32, most_threads: u32) -> (u32, u64) {
    let threads = count.div_ceil(TORCHS_THREADS).saturating_mul(TORCHS_THREADS).min(most_threads.into()) as u32;
    (threads, count.div_ceil(u64::from(threads) * u64::from(values_per_block)))
}

/// By how much the offset grows for so many elements.
pub fn increment(count: u64, draw: &Draw, most_threads: u32) -> u64 {
    4 * shape(count, draw.values_per_block, most_threads).1
}

impl Random {
    fn new(plan: &Plan, element: Element, numbers: [u64; 4], state: PhiloxState) -> Random {
        let (dims, sizes, strides) = walk(plan);
        let count = plan.count() as u32;
        Random {
            out: plan.to,
            state,
            numbers,
            count,
            threads: 0,
            rounds: 0,
            groups: Divider::default(),
            element,
            dims,
            sizes,
            strides: strides.map(|(to, _)| to),
        }
    }

    /// The address of an element.
    fn address(&self, mut index: u32) -> usize {
        let mut address = self.out;
        for dim in 0..self.dims as usize {
            let next = self.sizes[dim].quotient(index);
            address = address.wrapping_add_signed((i64::from(index - next * self.sizes[dim].size) * self.strides[dim]) as isize);
            index = next;
        }
        address
    }
}

/// (dimensions, sizes, strides of target and source) of a plan, as kernels take them.
fn walk(plan: &Plan) -> (u32, [Divider; MAX_DIMS], [(i64, i64); MAX_DIMS]) {
    let mut sizes = [Divider::default(); MAX_DIMS];
    let mut strides = [(0, 0); MAX_DIMS];
    for (at, dim) in plan.dims.iter().enumerate() {
        sizes[at] = Divider::new(dim.size as u32);
        strides[at] = (dim.to, dim.from);
    }
    (plan.dims.len() as u32, sizes, strides)
}

fn check_aligned(address: usize, width: usize, name: &str) -> Result<()> {
    if address.is_multiple_of(width) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "'{name}': its data is at {address:#x}, which is not a multiple of its element size of {width} bytes: a kernel cannot reach it."
    )))
}

impl Draw {
    /// Looks at the piece and loads what draws it, before the generator is held.
    pub fn prepare(&self, runtime: &Runtime, device: i32, piece: &Plan) -> Result<()> {
        check_aligned(piece.to, self.element.size(), "out")?;
        let kernel = if piece.is_flat(self.element.size(), 0) { self.flat } else { self.strided };
        prepare(runtime, device, kernel)
    }
}

/// Enqueues the drawing of one piece (below 2^31 elements, prepared) on a stream of `device`, which is current. The state's offset has room for
/// `increment` of the piece.
pub fn on_device(
    runtime: &'static Runtime,
    device: i32,
    stream: RawStream,
    draw: &Draw,
    piece: &Plan,
    most_threads: u32,
    state: PhiloxState,
) -> Result<()> {
    let width = draw.element.size();
    let flat = piece.is_flat(width, 0);
    let mut random = Random::new(piece, draw.element, draw.numbers, state);
    let (threads, rounds) = shape(random.count.into(), draw.values_per_block, most_threads);
    let (kernel, side_by_side) = if flat { (draw.flat, draw.side_by_side) } else { (draw.strided, 1) };
    random.threads = threads;
    random.rounds = rounds as u32;
    random.groups = Divider::new(threads / side_by_side);
    let blocks = (random.rounds * random.groups.size).div_ceil(THREADS);
    let accesses: Vec<Access> = state.accesses().chain(piece.writes(width)).collect();
    unsafe { launch(runtime, device, stream, kernel, (blocks, THREADS), random, &accesses) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_and_increments_are_torchs() {
        const H100: u32 = 132 * 2048;
        // (count, values of a block) to (threads / 256, increment), as in the reference.
        for (count, per_block, most, grid, increment) in [
            (1, 4, H100, 1, 4),
            (256, 2, H100, 1, 4),
            (257, 4, H100, 2, 4),
            (100_000, 2, H100, 391, 4),
            (1_000_000, 4, H100, 1056, 4),
            (1_000_000, 2, H100, 1056, 8),
            (10_000_000, 4, H100, 1056, 40),
            (10_000_000, 2, H100, 1056, 76),
            (100_000_000, 2, H100, 1056, 740),
            (1_000_000, 4, 108 * 2048, 864, 8),
            (1_000_000, 2, 40 * 1024, 160, 52),
        ] {
            assert_eq!(shape(count, per_block, most), (grid * 256, increment / 4), "{count} {per_block} {most}");
        }
        assert_eq!(shape(u64::MAX, 4, 256), (256, u64::MAX / 1024 + 1));
    }
}
