//! The order in which torch fills a tensor: its dimensions sorted by their strides, joined where they lie side by side, and cut where 32 bits
//! cannot index them.

use crate::base::{Result, few};
use crate::runtime::kernels::{Dim, Plan};
use crate::tensor::View;

const LARGEST: u64 = i32::MAX as u64;

/// What a fill does with the elements of a tensor, the innermost dimension first. It has elements, none of them twice.
pub fn plan(out: &View) -> Result<Plan> {
    let dim = |dim| Dim { size: out.shape[dim] as u64, to: out.byte_stride(dim), from: 0 };
    let mut dims: Vec<Dim> = (0..out.shape.len()).rev().map(dim).collect();
    // Among equal strides torch puts the smaller dimension inside.
    few::sort_by_key(&mut dims, |dim| (dim.to, dim.size));
    Plan::new(out.address, 0, dims.into_iter())
}

/// The order of a fill that reads another tensor of the same shape: torch leaves the dimensions as they are, but for pairs of which both
/// tensors want the exchange, or one while the other does not mind.
pub fn pair_plan(out: &View, other: &View) -> Result<Plan> {
    let dim = |dim| Dim { size: out.shape[dim] as u64, to: out.byte_stride(dim), from: other.byte_stride(dim) };
    let mut dims: Vec<Dim> = (0..out.shape.len()).map(dim).collect();
    for i in 0..dims.len() {
        for j in i + 1..dims.len() {
            let (outer, inner) = (dims[i], dims[j]);
            let increasing = outer.to < inner.to || outer.from < inner.from;
            let decreasing = outer.to > inner.to || outer.from > inner.from;
            if outer.size != 1 && inner.size != 1 && increasing && !decreasing {
                dims.swap(i, j);
            }
        }
    }
    Plan::in_order(out.address, other.address, dims.into_iter().rev())
}

/// Parts of a plan that one launch can do, in the order of their elements: each part, and how many elements come before it. No list is made of
/// them: of a size that no memory has there are too many.
pub fn parts(plan: &Plan, most: u64, first: u64, each_part: &mut impl FnMut(&Plan, u64) -> Result<()>) -> Result<()> {
    if plan.count() <= most {
        return each_part(plan, first);
    }
    let Some((outer, inner)) = plan.dims.split_last() else { return Ok(()) };
    let each: u64 = inner.iter().map(|dim| dim.size).product();
    // As many of the outermost as fit; where not even one does, one by one.
    let step = (most / each).max(1);
    for at in (0..outer.size).step_by(step as usize) {
        let size = step.min(outer.size - at);
        let shifted = |address: usize, stride: i64| address.wrapping_add_signed((at as i64 * stride) as isize);
        let mut part = Plan { to: shifted(plan.to, outer.to), from: shifted(plan.from, outer.from), dims: inner.to_vec() };
        if size > 1 || inner.is_empty() {
            part.dims.push(Dim { size, ..*outer });
        }
        parts(&part, most, first + at * each, each_part)?;
    }
    Ok(())
}

/// Whether torch does it in one launch.
fn is_small(plan: &Plan, width: usize) -> bool {
    plan.count() <= LARGEST && plan.target_range(width).1 - width < LARGEST as usize
}

/// The parts that torch launches, each with the elements of what it was cut out of: torch draws for these first, and does not use that.
#[derive(Debug)]
pub enum Step {
    /// Numbers for so many elements are drawn and thrown away.
    Skip(u64),
    Draw(Plan),
}

/// Cut in halves, always along the dimension that reaches farthest; no list here either.
pub fn steps(plan: Plan, width: usize, each: &mut impl FnMut(Step) -> Result<()>) -> Result<()> {
    if is_small(&plan, width) {
        return each(Step::Draw(plan));
    }
    each(Step::Skip(plan.count()))?;
    let mut rest = plan;
    // torch halves what is left until it is small, does it, and goes on with the other halves, the last first.
    let mut waiting = Vec::new();
    loop {
        while !is_small(&rest, width) {
            let (first, second) = halves(&rest);
            waiting.push(second);
            rest = first;
        }
        each(Step::Draw(rest))?;
        match waiting.pop() {
            Some(next) => rest = next,
            None => return Ok(()),
        }
    }
}

/// The last one that is drawn, which is like all others.
pub fn last(plan: &Plan, width: usize) -> Plan {
    let mut rest = plan.clone();
    while !is_small(&rest, width) {
        rest = halves(&rest).1;
    }
    rest
}

fn halves(plan: &Plan) -> (Plan, Plan) {
    let reach = |at: &usize| (plan.dims[*at].size - 1) * plan.dims[*at].to.unsigned_abs();
    let at = (0..plan.dims.len()).max_by_key(reach).unwrap_or(0);
    let half = plan.dims[at].size / 2;
    let (mut first, mut second) = (plan.clone(), plan.clone());
    first.dims[at].size = half;
    second.dims[at].size -= half;
    second.to = plan.to.wrapping_add_signed((half as i64 * plan.dims[at].to) as isize);
    for part in [&mut first, &mut second] {
        if part.dims.len() > 1 {
            part.dims.retain(|dim| dim.size != 1);
        }
    }
    (first, second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Error;

    fn dim(size: u64, to: i64) -> Dim {
        Dim { size, to, from: 0 }
    }

    fn plan_of(dims: &[(u64, i64)]) -> Plan {
        Plan::new(0, 0, dims.iter().map(|(size, to)| dim(*size, *to))).unwrap()
    }

    #[test]
    fn dense_tensors_are_filled_as_they_lie() {
        assert_eq!(plan_of(&[(3, 4), (5, 12)]).dims, [dim(15, 4)]);
        assert_eq!(plan_of(&[(5, 12), (3, 4)]).dims, [dim(15, 4)]);
        assert_eq!(plan_of(&[(5, 16), (3, 4)]).dims, [dim(3, 4), dim(5, 16)]);
    }

    #[test]
    fn parts_follow_one_another() {
        let whole = plan_of(&[(10, 4), (7, 100), (3, 1000)]);
        for most in [1, 3, 10, 25, 70, 100, 210] {
            let mut next = 0;
            let each = &mut |part: &Plan, first| {
                assert!(first == next && part.count() <= most, "{most}: {part:?}");
                assert_eq!(part.to, (next / 70 * 1000 + next / 10 % 7 * 100 + next % 10 * 4) as usize);
                next += part.count();
                Ok(())
            };
            parts(&whole, most, 0, each).unwrap();
            assert_eq!(next, 210);
        }
    }

    #[test]
    fn what_32_bits_index_is_one_launch() {
        let drawn = |dims: &[(u64, i64)], width| {
            let mut list = Vec::new();
            let each = &mut |step| {
                list.push(match step {
                    Step::Skip(count) => (usize::MAX, count),
                    Step::Draw(plan) => (plan.to, plan.count()),
                });
                Ok(())
            };
            steps(plan_of(dims), width, each).unwrap();
            let last = last(&plan_of(dims), width);
            assert_eq!(list.last(), Some(&(last.to, last.count())));
            list
        };
        const SKIP: usize = usize::MAX;
        // 2 GiB of floats: the last one begins at 2^31 - 4.
        assert_eq!(drawn(&[(1 << 29, 4)], 4), [(0, 1 << 29)]);
        let (whole, half) = ((1 << 29) + 1, 1 << 28);
        assert_eq!(drawn(&[(whole, 4)], 4), [(SKIP, whole), (0, half), (1 << 30, half + 1)]);
        // Bytes: elements count.
        assert_eq!(drawn(&[((1 << 31) - 1, 1)], 1), [(0, (1 << 31) - 1)]);
        assert_eq!(drawn(&[(1 << 31, 1)], 1).len(), 3);
        // Halved twice: the first quarters before the last.
        let four = drawn(&[(1 << 31, 4)], 4);
        assert_eq!(four, [(SKIP, 1 << 31), (0, 1 << 29), (1 << 31, 1 << 29), (1 << 32, 1 << 29), (3 << 31, 1 << 29)]);
        // The dimension that reaches farther is cut, not the longer one.
        assert_eq!(drawn(&[(10, 4), (3, 1 << 31)], 4)[1..], [(0, 10), (1 << 31, 10), (1 << 32, 10)]);
    }

    /// Tensors say of themselves how large they are: what does not go on makes no list first.
    #[test]
    fn a_size_that_no_memory_has_ends_with_its_first_launch() {
        let whole = plan_of(&[(1 << 60, 4)]);
        let refused = || Err(Error::internal("on purpose"));
        let mut launches = 0;
        let each = &mut |step| match step {
            Step::Skip(count) => {
                assert_eq!(count, 1 << 60);
                Ok(())
            }
            Step::Draw(_) => {
                launches += 1;
                refused()
            }
        };
        assert!(steps(whole.clone(), 4, each).is_err());
        assert!(parts(&whole, 1 << 30, 0, &mut |_, _| refused()).is_err());
        assert_eq!((launches, last(&whole, 4).count()), (1, 1 << 29));
    }
}
