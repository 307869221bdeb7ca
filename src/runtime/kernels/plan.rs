//! Strided regions brought to the fewest dimensions, and cut to pieces that a kernel can index.

use crate::base::watch::{self, Access, MOST_STRETCHES};
use crate::base::{Error, Result, few};
use smallvec::{SmallVec, smallvec};

/// As many as torch's own kernels take.
pub const MAX_DIMS: usize = 25;
/// Bytes from which on a second launch for the rest costs less than narrow accesses.
const LONG: u64 = 1 << 20;
/// Elements of one launch: the kernels index with 32 bits, and divide with 31.
const LARGEST: u64 = 1 << 30;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dim {
    pub size: u64,
    /// Bytes from one element to the next.
    pub to: i64,
    pub from: i64,
}

/// A walk over two regions of one shape (a fill has a source stride of 0 everywhere).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    pub to: usize,
    pub from: usize,
    /// The innermost first, sorted by the target's strides. Never empty; sizes are at least 1.
    pub dims: Vec<Dim>,
}

/// So many are left when those that lie side by side are one.
pub fn check_dims(count: usize) -> Result<()> {
    if count <= MAX_DIMS {
        return Ok(());
    }
    Err(Error::not_supported(format!(
        "The tensors have {count} dimensions that cannot be joined; a kernel walks at most {MAX_DIMS}. Make one of them contiguous first."
    )))
}

impl Plan {
    /// Of at least one element: sizes are positive and extents fit the address space.
    pub fn new(to: usize, from: usize, dims: impl Iterator<Item = Dim>) -> Result<Plan> {
        let mut dims: Vec<Dim> = dims.collect();
        few::sort_by_key(&mut dims, |dim| (dim.to.unsigned_abs(), dim.from.unsigned_abs()));
        Plan::in_order(to, from, dims.into_iter())
    }

    /// The same in the order that the dimensions have, the innermost first.
    pub fn in_order(to: usize, from: usize, dims: impl Iterator<Item = Dim>) -> Result<Plan> {
        let mut dims: Vec<Dim> = dims.filter(|dim| dim.size != 1).collect();
        dims.dedup_by(|outer, inner| {
            let next = |stride: i64| stride.wrapping_mul(inner.size as i64);
            let joins = outer.to == next(inner.to) && outer.from == next(inner.from);
            if joins {
                inner.size *= outer.size;
            }
            joins
        });
        check_dims(dims.len())?;
        if dims.is_empty() {
            dims.push(Dim { size: 1, to: 0, from: 0 });
        }
        Ok(Plan { to, from, dims })
    }

    /// Whether both regions are one stretch of elements `to` and `from` bytes wide.
    pub fn is_flat(&self, to: usize, from: usize) -> bool {
        self.dims.len() == 1 && (self.dims[0].size == 1 || (self.dims[0].to == to as i64 && self.dims[0].from == from as i64))
    }

    pub fn count(&self) -> u64 {
        self.dims.iter().map(|dim| dim.size).product()
    }

    /// Moves elements in groups where whole groups lie side by side on both ends: the widest access, at most 16 bytes.
    pub fn widen(&mut self, width: usize) -> usize {
        self.widen_by(width, |dim, width| dim.from == width, |from| from)
    }

    /// The same where only the target counts.
    pub fn widen_fill(&mut self, width: usize) -> usize {
        self.widen_by(width, |_, _| true, |_| 0)
    }

    /// A long stretch that is no whole number of 16-byte groups, as the groups and the rest. Of the source strides nothing is kept.
    pub fn split_fill(&self, width: usize) -> Option<(Plan, Plan)> {
        let [Dim { size, to, .. }] = self.dims[..] else { return None };
        let rest = size % (16 / width as u64);
        if rest == 0 || to != width as i64 || size * (width as u64) < LONG {
            return None;
        }
        let part = |to, size| Plan { to, from: 0, dims: vec![Dim { size, to: width as i64, from: 0 }] };
        Some((part(self.to, size - rest), part(self.to + (size - rest) as usize * width, rest)))
    }

    fn widen_by(&mut self, mut width: usize, joins: impl Fn(&Dim, i64) -> bool, counts: impl Fn(i64) -> i64) -> usize {
        while width < 16 {
            let (first, outer) = self.dims.split_first().expect("never empty");
            let double = 2 * width as i64;
            let fits = first.size % 2 == 0
                && first.to == width as i64
                && joins(first, width as i64)
                && (self.to as i64 | counts(self.from as i64)) % double == 0
                && outer.iter().all(|dim| (dim.to | counts(dim.from)) % double == 0);
            if !fits {
                break;
            }
            width *= 2;
            let first = &mut self.dims[0];
            *first = Dim { size: first.size / 2, to: first.to * 2, from: first.from * 2 };
        }
        width
    }

    /// The whole, in pieces that one launch can do.
    pub fn for_each_piece(&self, each: &mut impl FnMut(&Plan) -> Result<()>) -> Result<()> {
        if self.count() <= LARGEST {
            return each(self);
        }
        let widest = (0..self.dims.len()).max_by_key(|at| (self.dims[*at].size, *at)).unwrap_or(0);
        let dim = self.dims[widest];
        let half = dim.size / 2;
        let mut piece = self.clone();
        piece.dims[widest].size = half;
        piece.for_each_piece(each)?;
        piece.dims[widest].size = dim.size - half;
        piece.to = piece.to.wrapping_add_signed((half as i64).wrapping_mul(dim.to) as isize);
        piece.from = piece.from.wrapping_add_signed((half as i64).wrapping_mul(dim.from) as isize);
        piece.for_each_piece(each)
    }

    /// (first byte, bytes) that the target covers, with elements `width` wide.
    pub fn target_range(&self, width: usize) -> (usize, usize) {
        range(self.to, width, self.dims.iter().map(|dim| (dim.size, dim.to)))
    }

    pub fn source_range(&self, width: usize) -> (usize, usize) {
        range(self.from, width, self.dims.iter().map(|dim| (dim.size, dim.from)))
    }
}

/// One, unless the sanitizer looks.
pub type Accesses = SmallVec<[Access; 1]>;

/// The stretches that strided elements lie in, as many as the sanitizer is told.
pub fn stretches(address: usize, width: usize, dims: impl Iterator<Item = (u64, i64)>) -> Vec<(usize, usize)> {
    let mut dims: Vec<(u64, i64)> = dims.filter(|(size, stride)| *size > 1 && *stride != 0).collect();
    few::sort_by_key(&mut dims, |(_, stride)| stride.unsigned_abs());
    let mut whole = (address, width);
    let joined = dims.iter().take_while(|(size, stride)| {
        let joins = *stride == whole.1 as i64;
        if joins {
            whole.1 *= *size as usize;
        }
        joins
    });
    let joined = joined.count();
    let mut found = vec![whole];
    for (size, stride) in &dims[joined..] {
        let before = found.clone();
        let more = (1..*size as i64)
            .flat_map(|at| before.iter().map(move |(address, width)| (address.wrapping_add_signed((at * stride) as isize), *width)));
        let room = MOST_STRETCHES.saturating_sub(found.len());
        found.extend(more.take(room));
    }
    found
}

fn range(address: usize, width: usize, dims: impl Iterator<Item = (u64, i64)>) -> (usize, usize) {
    let (mut below, mut above) = (0, 0);
    for (size, stride) in dims {
        let reach = (size as i64 - 1) * stride;
        if reach < 0 { below += reach } else { above += reach }
    }
    (address.wrapping_add_signed(below as isize), (above - below) as usize + width)
}

impl Plan {
    /// What is written: one range, or for the sanitizer each stretch.
    pub fn writes(&self, width: usize) -> Accesses {
        accesses(self.target_range(width), true, || stretches(self.to, width, self.dims.iter().map(|dim| (dim.size, dim.to))))
    }

    pub fn reads(&self, width: usize) -> Accesses {
        accesses(self.source_range(width), false, || stretches(self.from, width, self.dims.iter().map(|dim| (dim.size, dim.from))))
    }
}

/// The range, or for the sanitizer each stretch.
pub fn accesses(range: (usize, usize), write: bool, stretches: impl FnOnce() -> Vec<(usize, usize)>) -> Accesses {
    let access = |(address, size)| Access { address, size, write };
    if watch::any(watch::SANITIZER) { stretches().into_iter().map(access).collect() } else { smallvec![access(range)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(dims: &[(u64, i64, i64)]) -> Plan {
        Plan::new(4096, 8192, dims.iter().map(|d| Dim { size: d.0, to: d.1, from: d.2 })).unwrap()
    }

    #[test]
    fn joins_what_lies_side_by_side() {
        assert_eq!(plan(&[(2, 60, 60), (3, 20, 20), (5, 4, 4)]).dims, [Dim { size: 30, to: 4, from: 4 }]);
        assert_eq!(plan(&[(5, 4, 4), (1, 7, 9), (3, 20, 20)]).dims, [Dim { size: 15, to: 4, from: 4 }]);
        assert_eq!(plan(&[(3, 20, 4), (5, 4, 12)]).dims, [Dim { size: 5, to: 4, from: 12 }, Dim { size: 3, to: 20, from: 4 }]);
        // A source that repeats joins with nothing but itself.
        assert_eq!(plan(&[(3, 20, 0), (5, 4, 4)]).dims.len(), 2);
        assert_eq!(plan(&[(3, 20, 0), (5, 4, 0)]).dims.len(), 1);
        assert!(plan(&[]).is_flat(4, 4) && plan(&[(1, 3, 9)]).is_flat(4, 4));
    }

    #[test]
    fn too_many_dimensions_are_refused() {
        let dims = |n: i64| (0..n).map(|d| Dim { size: 2, to: 1 << (2 * d), from: 1 });
        assert!(Plan::new(0, 0, dims(25)).is_ok());
        let error = Plan::new(0, 0, dims(26)).unwrap_err();
        assert!(error.message.contains("26 dimensions"), "{error}");
    }

    #[test]
    fn widens_as_far_as_both_ends_allow() {
        let mut even = plan(&[(3, 128, 64), (16, 4, 4)]);
        assert_eq!(even.widen(4), 16);
        assert_eq!(even.dims, [Dim { size: 4, to: 16, from: 16 }, Dim { size: 3, to: 128, from: 64 }]);
        assert_eq!(plan(&[(3, 128, 72), (16, 4, 4)]).widen(4), 8);
        assert_eq!(plan(&[(3, 128, 72), (15, 4, 4)]).widen(4), 4);
        assert_eq!(plan(&[(3, 128, 72), (16, 4, 8)]).widen(4), 4);
        let mut odd = plan(&[(16, 1, 1)]);
        odd.from += 2;
        assert_eq!(odd.widen(1), 2);
        assert_eq!(plan(&[(7, 64, 0), (16, 4, 0)]).widen_fill(4), 16);
    }

    #[test]
    fn long_fills_are_split_at_the_last_whole_group() {
        let (groups, rest) = plan(&[((1 << 20) + 5, 2, 0)]).split_fill(2).unwrap();
        assert_eq!((groups.to, groups.dims[0].size, rest.to, rest.dims[0].size), (4096, 1 << 20, 4096 + (2 << 20), 5));
        assert!(groups.split_fill(2).is_none() && rest.split_fill(2).is_none());
        assert!(plan(&[(5, 2, 0)]).split_fill(2).is_none() && plan(&[((1 << 20) + 5, 4, 0)]).split_fill(2).is_none());
    }

    #[test]
    fn pieces_cover_all_and_each_is_small() {
        let whole = plan(&[(3, 1 << 40, 1 << 40), (5_000_000_000, 2, 4)]);
        let mut next = std::collections::BTreeMap::new();
        let mut count = 0;
        whole
            .for_each_piece(&mut |piece| {
                assert!(piece.count() <= LARGEST);
                count += piece.count();
                assert!(next.insert(piece.to, (piece.from, piece.target_range(2))).is_none());
                Ok(())
            })
            .unwrap();
        assert_eq!(count, 15_000_000_000);
        assert!(next.len() >= 14);
        for (to, (from, _)) in next {
            let inner = (to - 4096) as u64 % (1 << 40);
            assert_eq!((from - 8192) as u64 % (1 << 40), inner * 2);
        }
    }

    #[test]
    fn stretches_are_all_that_is_touched() {
        let of = |dims: &[(u64, i64)]| stretches(1000, 4, dims.iter().copied());
        assert_eq!(of(&[]), [(1000, 4)]);
        assert_eq!(of(&[(5, 4), (3, 20), (2, 0)]), [(1000, 60)]);
        assert_eq!(of(&[(3, 32), (5, 4)]), [(1000, 20), (1032, 20), (1064, 20)]);
        assert_eq!(of(&[(2, -8), (2, 100)]), [(1000, 4), (992, 4), (1100, 4), (1092, 4)]);
        assert_eq!(of(&[(1 << 20, 8), (1 << 20, 1 << 30)]).len(), MOST_STRETCHES);
    }

    #[test]
    fn ranges_go_both_ways() {
        let plan = plan(&[(4, 8, -8), (2, 100, 0)]);
        assert_eq!(plan.target_range(4), (4096, 24 + 100 + 4));
        assert_eq!(plan.source_range(2), (8192 - 24, 26));
    }
}
