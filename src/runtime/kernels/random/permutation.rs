//! A random permutation of 0 to n - 1: kernels/random_permutation.cu.

use super::super::{Access, Family, Kernel, Plan, launch, prepare};
use super::draw::image;
use super::twin::Value;
use super::{PhiloxState, Random, THREADS, check_aligned, philox};
use crate::base::Result;
use crate::runtime::api::Runtime;
use crate::runtime::kernels::element::Element;
use crate::runtime::table::RawStream;

/// Up to so many are sorted by random keys: every order is as likely as every other. As in the kernels.
const SMALL: u64 = 1024;
const ROUNDS: usize = 16;

static FAMILY: Family = Family { name: "random_permutation", images: &[image!("random_permutation", 75)] };
static SORTED: Kernel<Random> = Kernel::new(&FAMILY, "tcuda_permutation_small", sorted_twin);
static BIJECTION: Kernel<Random> = Kernel::new(&FAMILY, "tcuda_permutation", bijection_twin);

fn kernel_of(length: u64) -> &'static Kernel<Random> {
    if length <= SMALL { &SORTED } else { &BIJECTION }
}

/// Looks at the tensor and loads the kernel, before the generator is held.
pub fn prepare_permutation(runtime: &Runtime, device: i32, element: Element, piece: &Plan, length: u64) -> Result<()> {
    check_aligned(piece.to, element.size(), "out")?;
    prepare(runtime, device, kernel_of(length))
}

/// Enqueues elements `first` and following of a permutation of 0 to `length` - 1, as many as the plan has, on a stream of `device`, which
/// is current. Pieces of one permutation have one state.
pub fn permutation_on_device(
    runtime: &'static Runtime,
    device: i32,
    stream: RawStream,
    element: Element,
    piece: &Plan,
    (first, length): (u64, u64),
    state: PhiloxState,
) -> Result<()> {
    let width = element.size();
    // More numbers than elements: among exactly 2^n numbers such a bijection makes only half of all orders.
    let bits = u64::from((length + 1).next_power_of_two().trailing_zeros()).max(2);
    let random = Random::new(piece, element, [bits / 2, bits - bits / 2, first, length], state);
    let blocks = if length <= SMALL { 1 } else { random.count.div_ceil(THREADS) };
    let accesses: Vec<Access> = state.accesses().chain(piece.writes(width)).collect();
    unsafe { launch(runtime, device, stream, kernel_of(length), (blocks, THREADS), random, &accesses) }
}

unsafe fn keys(random: &Random, count: usize) -> Vec<u64> {
    let (seed, offset) = unsafe { random.state.now() };
    let words = |sequence| philox::block(seed, sequence, offset / 4);
    (0..count as u64).map(words).map(|words| u64::from(words[0]) << 32 | u64::from(words[1])).collect()
}

unsafe fn sorted_twin(random: &Random) {
    let keys = unsafe { keys(random, random.count as usize) };
    let mut order: Vec<u32> = (0..random.count).collect();
    order.sort_by_key(|i| keys[*i as usize]);
    for (rank, i) in order.into_iter().enumerate() {
        unsafe { i64::from(i).store(random.element, random.address(rank as u32)) };
    }
}

fn mix(part: u64, key: u64) -> u64 {
    let part = (part ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let part = (part ^ part >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    part ^ part >> 32
}

unsafe fn bijection_twin(random: &Random) {
    let keys = unsafe { keys(random, ROUNDS) };
    let [low_bits, high_bits, first, length] = random.numbers;
    let (low_mask, high_mask) = ((1u64 << low_bits) - 1, (1u64 << high_bits) - 1);
    for index in 0..random.count {
        let mut value = first + u64::from(index);
        loop {
            let (mut low, mut high) = (value & low_mask, value >> low_bits);
            for pair in keys.chunks(2) {
                low ^= mix(high, pair[0]) & low_mask;
                high ^= mix(low, pair[1]) & high_mask;
            }
            value = high << low_bits | low;
            if value < length {
                break;
            }
        }
        unsafe { (value as i64).store(random.element, random.address(index)) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::image::tests::check_kernel;
    use super::*;

    #[test]
    fn the_ptx_has_every_kernel() {
        for kernel in [&SORTED, &BIJECTION] {
            check_kernel(&FAMILY, kernel.name, size_of::<Random>());
        }
    }
}
