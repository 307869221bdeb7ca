//! Several tensors of one shape, brought to the fewest dimensions and cut to pieces that a kernel can index.

use super::Few;
use crate::base::{Result, few};
use crate::runtime::kernels::check_dims;

/// Outputs and inputs: eight of each.
pub const MOST: usize = 16;
/// Elements of one launch: kernels index with 32 bits, and divide with 31.
const LARGEST: u64 = 1 << 30;
/// Bytes of the widest access.
const WIDEST: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dim {
    pub size: u64,
    /// Bytes from one element of each tensor to the next.
    pub strides: [i64; MOST],
}

/// Outputs first. There is at least one element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Walk {
    pub addresses: Few<usize>,
    /// The innermost first. Never empty.
    pub dims: Few<Dim>,
}

/// How a kernel goes over the tensors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// Each is one stretch, and `pack` elements of each begin at a multiple of their size. Bit i of `uniform`: input i is a single element.
    Flat {
        pack: u8,
        uniform: u16,
    },
    Strided,
}

impl Walk {
    /// Strides are not negative.
    pub fn new(addresses: Few<usize>, dims: impl Iterator<Item = Dim>) -> Result<Walk> {
        // By the strides of the first output, then of the next tensor.
        let mut dims: Few<Dim> = dims.filter(|dim| dim.size != 1).collect();
        few::sort_by_key(&mut dims, |dim| dim.strides);
        dims.dedup_by(|outer, inner| {
            let joins = (0..addresses.len()).all(|at| outer.strides[at] == inner.strides[at].wrapping_mul(inner.size as i64));
            if joins {
                inner.size *= outer.size;
            }
            joins
        });
        check_dims(dims.len())?;
        if dims.is_empty() {
            dims.push(Dim { size: 1, strides: [0; MOST] });
        }
        Ok(Walk { addresses, dims })
    }

    pub fn count(&self) -> u64 {
        self.dims.iter().map(|dim| dim.size).product()
    }

    /// `sizes` are bytes of an element; the first `outputs` tensors are written.
    pub fn layout(&self, sizes: &[usize], outputs: usize) -> Layout {
        let [Dim { size, strides }] = &self.dims[..] else { return Layout::Strided };
        let mut uniform = 0;
        let mut pack = WIDEST;
        for (at, item) in sizes.iter().enumerate() {
            if strides[at] == 0 && at >= outputs && *size > 1 {
                uniform |= 1 << (at - outputs);
            } else if *size == 1 || strides[at] == *item as i64 {
                // As many as one access moves, fewer where they do not begin at a multiple of that.
                pack = pack.min(WIDEST / item);
                while !self.addresses[at].is_multiple_of(pack * item) {
                    pack /= 2;
                }
            } else {
                return Layout::Strided;
            }
        }
        Layout::Flat { pack: pack as u8, uniform }
    }

    /// The whole, in pieces that one launch can do, all of the whole's layout.
    pub fn for_each_piece(&self, each: &mut impl FnMut(&Walk) -> Result<()>) -> Result<()> {
        if self.count() <= LARGEST {
            return each(self);
        }
        let widest = (0..self.dims.len()).max_by_key(|at| (self.dims[*at].size, *at)).unwrap_or(0);
        let dim = self.dims[widest];
        // Where it is one stretch, a multiple of what one access moves, so that the second half is aligned as the first.
        let half = if self.dims.len() == 1 { (dim.size / 2).next_multiple_of(WIDEST as u64) } else { dim.size / 2 };
        let mut piece = self.clone();
        piece.dims[widest].size = half;
        piece.for_each_piece(each)?;
        piece.dims[widest].size = dim.size - half;
        for (address, stride) in piece.addresses.iter_mut().zip(&dim.strides) {
            *address = address.wrapping_add_signed((half as i64).wrapping_mul(*stride) as isize);
        }
        piece.for_each_piece(each)
    }

    /// Bytes that a tensor covers, from its address on.
    pub fn extent(&self, at: usize, item: usize) -> usize {
        self.dims.iter().map(|dim| (dim.size as i64 - 1) * dim.strides[at]).sum::<i64>() as usize + item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(addresses: &[usize], dims: &[(u64, &[i64])]) -> Walk {
        let dim =
            |(size, strides): &(u64, &[i64])| Dim { size: *size, strides: std::array::from_fn(|at| strides.get(at).copied().unwrap_or(0)) };
        Walk::new(addresses.into(), dims.iter().map(dim)).unwrap()
    }

    #[test]
    fn what_lies_alike_is_one_stretch() {
        let flat = walk(&[4096, 8192, 512], &[(3, &[20, 20, 40]), (5, &[4, 4, 8])]);
        assert_eq!((flat.dims.len(), flat.count(), flat.extent(2, 8)), (1, 15, 120));
        assert_eq!(flat.layout(&[4, 4, 8], 1), Layout::Flat { pack: 2, uniform: 0 });
        // Both transposed.
        let turned = walk(&[0, 0], &[(3, &[4, 8]), (5, &[12, 24])]);
        assert_eq!(turned.layout(&[4, 8], 1), Layout::Flat { pack: 2, uniform: 0 });
        // One of them transposed, a gap, a repeated row.
        for strides in [[4i64, 20], [32, 4], [0, 4]] {
            let walk = walk(&[0, 0], &[(3, &[20, strides[0]]), (5, &[4, strides[1]])]);
            assert_eq!((walk.dims.len(), walk.layout(&[4, 4], 1)), (2, Layout::Strided), "{strides:?}");
        }
        assert_eq!(walk(&[0, 0], &[(5, &[4, 8])]).layout(&[4, 4], 1), Layout::Strided);
    }

    #[test]
    fn single_elements_are_uniform_and_packs_are_aligned() {
        let scalar = walk(&[0, 64, 128], &[(100, &[2, 0, 2])]);
        assert_eq!(scalar.layout(&[2, 8, 2], 1), Layout::Flat { pack: 8, uniform: 1 });
        for (address, pack) in [(8, 4), (4, 2), (2, 1), (24, 4), (16, 8)] {
            assert_eq!(walk(&[0, address], &[(100, &[2, 2])]).layout(&[2, 2], 1), Layout::Flat { pack, uniform: 0 }, "{address}");
        }
        assert_eq!(walk(&[0, 0], &[(9, &[16, 16])]).layout(&[16, 16], 1), Layout::Flat { pack: 1, uniform: 0 });
        assert_eq!(walk(&[0, 0], &[(9, &[1, 1])]).layout(&[1, 1], 1), Layout::Flat { pack: 16, uniform: 0 });
        // A single element in all.
        assert_eq!(walk(&[0, 4], &[]).layout(&[4, 4], 1), Layout::Flat { pack: 1, uniform: 0 });
    }

    #[test]
    fn pieces_cover_all_and_each_is_small() {
        let whole = walk(&[1 << 40, 1 << 20], &[(3, &[1 << 41, 0]), (5_000_000_001, &[2, 4])]);
        let (mut count, mut starts) = (0, Vec::new());
        whole
            .for_each_piece(&mut |piece| {
                assert!(piece.count() <= LARGEST && piece.addresses[0].is_multiple_of(16));
                assert_eq!(piece.layout(&[2, 4], 1), whole.layout(&[2, 4], 1));
                count += piece.count();
                starts.push(piece.addresses.clone());
                assert_eq!((piece.addresses[0] - (1 << 40)) % (1 << 41) * 2, piece.addresses[1] - (1 << 20));
                Ok(())
            })
            .unwrap();
        starts.sort();
        starts.dedup();
        assert_eq!(count, 15_000_000_003);
        assert!(starts.len() >= 14);
    }

    #[test]
    fn pieces_are_walked_as_the_whole() {
        // Aligned to 16 bytes and to no more than an element; with a single element; with a gap.
        for (start, strides) in [(1 << 30, [1, 4, 0]), ((1 << 30) + 1, [1, 4, 0]), (1 << 30, [1, 0, 4]), (1 << 30, [2, 4, 4])] {
            let whole = walk(&[start, 1 << 40, 1 << 50], &[(7_777_777_777, &strides)]);
            let (expected, mut pieces) = (whole.layout(&[1, 4, 4], 1), 0);
            let each = &mut |piece: &Walk| {
                assert_eq!(piece.layout(&[1, 4, 4], 1), expected);
                pieces += 1;
                Ok(())
            };
            whole.for_each_piece(each).unwrap();
            assert_eq!(pieces, 8);
        }
    }

    #[test]
    fn too_many_dimensions_are_refused() {
        let dims = |n: i64| (0..n).map(|d| Dim { size: 2, strides: [1 << (2 * d); MOST] });
        assert!(Walk::new([0].into_iter().collect(), dims(25)).is_ok());
        assert!(Walk::new([0].into_iter().collect(), dims(26)).unwrap_err().message.contains("26 dimensions"));
    }
}
