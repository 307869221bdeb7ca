//! Shapes and strides, counted in elements.

use crate::base::few;
use smallvec::{SmallVec, smallvec};

/// One number for each dimension; of so few that most tensors need no allocation for them.
pub type Sizes = SmallVec<[i64; 6]>;

/// Packed, the last dimension fastest. A size of zero counts as one, as in torch.
pub fn contiguous(shape: &[i64]) -> Sizes {
    let mut strides: Sizes = smallvec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(shape[dim].max(1));
    }
    strides
}

/// Every address between the first and the last element belongs to just one of them.
pub fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    let mut dims: SmallVec<[(i64, i64); 6]> = strides.iter().copied().zip(shape.iter().copied()).filter(|dim| dim.1 != 1).collect();
    few::sort_by_key(&mut dims, |dim| *dim);
    let mut expected = 1;
    shape.contains(&0)
        || dims.iter().all(|&(stride, size)| {
            let fits = stride == expected;
            expected *= size;
            fits
        })
}

/// Packed strides in the order of the given ones: what torch's empty_like makes where it preserves a format.
pub fn like(shape: &[i64], strides: &[i64]) -> Sizes {
    if is_dense(shape, strides) {
        return strides.into();
    }
    in_order(shape, &[strides])
}

/// What torch gives the result of several tensors of one shape, when it makes it: their common order if they are alike, else packed in
/// the order of the first of them that tells.
pub fn like_all(shape: &[i64], tensors: &[&[i64]]) -> Sizes {
    let packed = contiguous(shape);
    let agree = |strides: &[i64], other: &[i64]| shape.iter().zip(strides.iter().zip(other)).all(|(size, (a, b))| *size == 1 || a == b);
    match tensors.split_first() {
        None => packed,
        Some(_) if tensors.iter().all(|strides| agree(strides, &packed)) => packed,
        Some((first, rest)) if rest.iter().all(|strides| *strides == *first) && is_dense(shape, first) => Sizes::from(*first),
        _ => in_order(shape, tensors),
    }
}

/// Packed, by the order of the given strides.
fn in_order(shape: &[i64], tensors: &[&[i64]]) -> Sizes {
    use std::cmp::Ordering::*;
    // How two dimensions are to lie: Greater, they have to be exchanged. A stride of 0 says nothing about the order.
    let compare = |inner: usize, outer: usize| {
        let told = tensors.iter().filter(|strides| strides[inner] != 0 && strides[outer] != 0);
        told.map(|strides| match strides[inner].cmp(&strides[outer]) {
            Equal if shape[inner] > shape[outer] => Greater,
            order => order,
        })
        .find(|order| *order != Equal)
        .unwrap_or(Equal)
    };
    // The innermost first; an insertion among comparable dimensions only.
    let mut order: SmallVec<[usize; 6]> = (0..shape.len()).rev().collect();
    for next in 1..order.len() {
        let mut at = next;
        for before in (0..next).rev() {
            match compare(order[before], order[at]) {
                Greater => {
                    order.swap(before, at);
                    at = before;
                }
                Less => break,
                Equal => {}
            }
        }
    }
    let mut packed: Sizes = smallvec![1; shape.len()];
    let mut next = 1i64;
    for dim in order {
        packed[dim] = next;
        next = next.saturating_mul(shape[dim].max(1));
    }
    packed
}

/// The shape that several are broadcast to. Err: the dimension of the result, counted from the last, in which two do not go together.
pub fn common_shape(a: &[i64], b: &[i64]) -> Result<Sizes, usize> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut shape = Sizes::from(long);
    for (back, size) in short.iter().rev().enumerate() {
        let wide = &mut shape[long.len() - 1 - back];
        match (*wide, *size) {
            (one, other) if one == other => {}
            (1, other) => *wide = other,
            (_, 1) => {}
            _ => return Err(back),
        }
    }
    Ok(shape)
}

/// The strides that make `shape` look like `target`, by torch's rules; None where the shapes do not go together.
pub fn broadcast(shape: &[i64], strides: &[i64], target: &[i64]) -> Option<Sizes> {
    let missing = target.len().checked_sub(shape.len())?;
    let mut out: Sizes = smallvec![0; missing];
    for (dim, &size) in shape.iter().enumerate() {
        out.push(match target[missing + dim] {
            wanted if wanted == size => strides[dim],
            _ if size == 1 => 0,
            _ => return None,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_and_dense() {
        assert_eq!(contiguous(&[2, 3, 4])[..], [12, 4, 1]);
        assert_eq!(contiguous(&[2, 0, 4])[..], [4, 4, 1]);
        assert!(contiguous(&[]).is_empty());
        assert!(is_dense(&[2, 1, 4], &[4, 99, 1]) && is_dense(&[], &[]) && is_dense(&[0, 5], &[7, 7]));
        assert!(is_dense(&[2, 4], &[1, 2]) && is_dense(&[2, 1, 4], &[1, 0, 2]));
        assert!(!is_dense(&[2, 4], &[8, 1]) && !is_dense(&[2, 4], &[0, 1]));
    }

    /// Worked out by torch.empty_like(torch.empty_strided(shape, strides)).stride().
    #[test]
    fn like_keeps_the_order() {
        assert_eq!(like(&[2, 3], &[1, 2])[..], [1, 2]);
        assert_eq!(like(&[2, 3], &[1, 4])[..], [1, 2]);
        assert_eq!(like(&[2, 3, 4], &[100, 1, 10])[..], [12, 1, 3]);
        assert_eq!(like(&[2, 3], &[0, 1])[..], [3, 1]);
        assert_eq!(like(&[3, 2], &[1, 0])[..], [2, 1]);
        assert_eq!(like(&[4, 2], &[0, 0])[..], [2, 1]);
    }

    /// Worked out by torch.add(torch.empty_strided(shape, a), torch.empty_strided(shape, b)).stride().
    #[test]
    fn results_of_several_keep_a_common_order() {
        let of = |shape: &[i64], tensors: &[&[i64]]| like_all(shape, tensors);
        assert_eq!(of(&[2, 3], &[&[3, 1], &[3, 1]])[..], [3, 1]);
        assert_eq!(of(&[2, 3], &[&[1, 2], &[1, 2]])[..], [1, 2]);
        assert_eq!(of(&[2, 3], &[&[3, 1], &[1, 2]])[..], [3, 1]);
        assert_eq!(of(&[2, 3], &[&[1, 2], &[3, 1]])[..], [1, 2]);
        assert_eq!(of(&[2, 3], &[&[0, 0], &[1, 2]])[..], [1, 2]);
        assert_eq!(of(&[1, 3], &[&[7, 1], &[9, 1]])[..], [3, 1]);
        assert_eq!(of(&[2, 3, 4], &[&[12, 0, 3], &[12, 4, 1]])[..], [12, 4, 1]);
        assert!(of(&[], &[&[], &[]]).is_empty());
    }

    #[test]
    fn shapes_are_broadcast_to_each_other() {
        assert_eq!(common_shape(&[3, 1], &[2, 1, 4]), Ok(Sizes::from_slice(&[2, 3, 4])));
        assert_eq!(common_shape(&[], &[5]), Ok(Sizes::from_slice(&[5])));
        assert_eq!(common_shape(&[0], &[1]), Ok(Sizes::from_slice(&[0])));
        assert_eq!(common_shape(&[2, 3], &[2, 1]), Ok(Sizes::from_slice(&[2, 3])));
        assert_eq!(common_shape(&[2, 3], &[4, 3]), Err(1));
        assert_eq!(common_shape(&[0], &[2]), Err(0));
    }

    #[test]
    fn broadcasting_is_torchs() {
        assert_eq!(broadcast(&[3, 1], &[5, 7], &[2, 3, 4]), Some(Sizes::from_slice(&[0, 5, 0])));
        assert_eq!(broadcast(&[], &[], &[2]), Some(Sizes::from_slice(&[0])));
        assert_eq!(broadcast(&[1], &[9], &[0]), Some(Sizes::from_slice(&[0])));
        assert_eq!(broadcast(&[2, 3], &[3, 1], &[3]), None);
        assert_eq!(broadcast(&[2], &[1], &[3]), None);
    }
}
