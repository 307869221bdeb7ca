//! Shapes and strides, counted in elements.

/// Packed, the last dimension fastest. A size of zero counts as one, as in torch.
pub fn contiguous(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(shape[dim].max(1));
    }
    strides
}

/// Every address between the first and the last element belongs to just one of them.
pub fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    let mut dims: Vec<(i64, i64)> = strides.iter().copied().zip(shape.iter().copied()).filter(|dim| dim.1 != 1).collect();
    dims.sort_unstable();
    let mut expected = 1;
    shape.contains(&0)
        || dims.iter().all(|&(stride, size)| {
            let fits = stride == expected;
            expected *= size;
            fits
        })
}

/// Packed strides in the order of the given ones: what torch's empty_like makes where it preserves a format.
pub fn like(shape: &[i64], strides: &[i64]) -> Vec<i64> {
    if is_dense(shape, strides) {
        return strides.to_vec();
    }
    // The innermost first. A stride of 0 says nothing about the order, so this is an insertion among comparable dimensions only.
    let mut order: Vec<usize> = (0..shape.len()).rev().collect();
    for next in 1..order.len() {
        let mut at = next;
        for before in (0..next).rev() {
            let (inner, outer) = (order[before], order[at]);
            if strides[inner] == 0 || strides[outer] == 0 {
                continue;
            }
            match (strides[inner], shape[inner]).cmp(&(strides[outer], shape[outer])) {
                std::cmp::Ordering::Greater => {
                    order.swap(before, at);
                    at = before;
                }
                std::cmp::Ordering::Less if strides[inner] < strides[outer] => break,
                _ => {}
            }
        }
    }
    let mut packed = vec![1; shape.len()];
    let mut next = 1i64;
    for dim in order {
        packed[dim] = next;
        next = next.saturating_mul(shape[dim].max(1));
    }
    packed
}

/// The strides that make `shape` look like `target`, by torch's rules; None where the shapes do not go together.
pub fn broadcast(shape: &[i64], strides: &[i64], target: &[i64]) -> Option<Vec<i64>> {
    let missing = target.len().checked_sub(shape.len())?;
    let mut out = vec![0; missing];
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
        assert_eq!(contiguous(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(contiguous(&[2, 0, 4]), [4, 4, 1]);
        assert_eq!(contiguous(&[]), []);
        assert!(is_dense(&[2, 1, 4], &[4, 99, 1]) && is_dense(&[], &[]) && is_dense(&[0, 5], &[7, 7]));
        assert!(is_dense(&[2, 4], &[1, 2]) && is_dense(&[2, 1, 4], &[1, 0, 2]));
        assert!(!is_dense(&[2, 4], &[8, 1]) && !is_dense(&[2, 4], &[0, 1]));
    }

    /// Worked out by torch.empty_like(torch.empty_strided(shape, strides)).stride().
    #[test]
    fn like_keeps_the_order() {
        assert_eq!(like(&[2, 3], &[1, 2]), [1, 2]);
        assert_eq!(like(&[2, 3], &[1, 4]), [1, 2]);
        assert_eq!(like(&[2, 3, 4], &[100, 1, 10]), [12, 1, 3]);
        assert_eq!(like(&[2, 3], &[0, 1]), [3, 1]);
        assert_eq!(like(&[3, 2], &[1, 0]), [2, 1]);
        assert_eq!(like(&[4, 2], &[0, 0]), [2, 1]);
    }

    #[test]
    fn broadcasting_is_torchs() {
        assert_eq!(broadcast(&[3, 1], &[5, 7], &[2, 3, 4]), Some(vec![0, 5, 0]));
        assert_eq!(broadcast(&[], &[], &[2]), Some(vec![0]));
        assert_eq!(broadcast(&[1], &[9], &[0]), Some(vec![0]));
        assert_eq!(broadcast(&[2, 3], &[3, 1], &[3]), None);
        assert_eq!(broadcast(&[2], &[1], &[3]), None);
    }
}
