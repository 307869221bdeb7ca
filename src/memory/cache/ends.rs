//! The ends of a run that is mapped anew: which handles that are partly in use it begins and ends in.

use super::policy::Terms;
use super::shares::Share;

/// The ends of a run may lie inside handles that are partly in use: the tail of one before it instead of the memory in front, the head of
/// another behind it.
#[derive(Default)]
pub struct Ends<'a> {
    pub first: Option<&'a Share>,
    pub last: Option<&'a Share>,
}

impl<'a> Ends<'a> {
    /// The best pair, with up to `of_whole` bytes of whole handles between them. In plenty least is missing, then left over; where it is to be
    /// spared least has to be made, then least of whole handles is spent, which fit anywhere, and left over.
    pub fn choose(shares: &'a [Share], in_front: usize, rest: usize, terms: &Terms, of_whole: usize) -> Ends<'a> {
        let granularity = terms.granularity;
        let partly = || shares.iter().filter(|share| share.head < share.size);
        let mut heads: Vec<&Share> = partly().filter(|share| share.head > 0).collect();
        heads.sort_unstable_by_key(|share| share.head);
        let tails = partly().filter(|share| share.tail > in_front);
        let of_whole = of_whole / granularity * granularity;
        let with = |first: Option<&'a Share>| {
            let needed = Ends { first, last: None }.rest(in_front, rest);
            let spends = move |head: usize| needed.saturating_sub(head).next_multiple_of(granularity);
            let other = |share: &&&'a Share| first.is_none_or(|first| first.handle != share.handle);
            let from = |least: usize| heads.partition_point(|share| share.head < least);
            let enough = |least: usize| heads[from(least)..].iter().find(other).copied();
            // The latter of those that spend no more than the longest one that is too short alone.
            let longest = heads[..from(needed)].iter().rev().find(other).copied();
            let shortest = longest.and_then(|longest| enough(needed.saturating_sub(spends(longest.head))));
            let cost = move |last: Option<&'a Share>| {
                let head = last.map_or(0, |share| share.head);
                let spent = spends(head);
                let over = spent + head - needed;
                let cost = match terms.thrifty {
                    true => (spent.saturating_sub(of_whole), spent + over),
                    false => (needed.saturating_sub(head), head.saturating_sub(needed)),
                };
                let helps = last.is_none() || over < head;
                helps.then_some((cost, Ends { first, last }))
            };
            [None, enough(needed), longest, shortest].into_iter().filter_map(cost)
        };
        let ends = [None].into_iter().chain(tails.map(Some)).flat_map(with);
        ends.min_by_key(|(cost, _)| *cost).expect("with none is one").1
    }

    /// What they leave of what is needed behind the memory in front.
    pub fn rest(&self, in_front: usize, rest: usize) -> usize {
        let rest = self.first.map_or(rest, |share| (rest + in_front).saturating_sub(share.tail));
        rest.saturating_sub(self.last.map_or(0, |share| share.head))
    }
}

#[cfg(test)]
mod tests {
    use super::super::physical::HandleId;
    use super::*;
    use crate::base::numbers;

    const G: usize = 2 << 20;

    fn share(handle: HandleId, size: usize, head: usize, tail: usize) -> Share {
        Share { handle, size, stretches: 0..0, head, tail }
    }

    /// What a pair costs where memory is to be spared: what is made, then what is spent of whole handles and left over.
    fn cost(ends: &Ends, in_front: usize, rest: usize, of_whole: usize) -> (usize, usize) {
        let needed = Ends { first: ends.first, last: None }.rest(in_front, rest);
        let spent = ends.rest(in_front, rest).next_multiple_of(G);
        let over = spent + ends.last.map_or(0, |share| share.head) - needed;
        (spent.saturating_sub(of_whole), spent + over)
    }

    #[test]
    fn no_pair_of_ends_is_better_where_memory_is_spared() {
        let mut below = numbers::random(7);
        let mut with_both = 0;
        for _ in 0..2000 {
            let mut free = |size: usize| if below(3) == 0 { 0 } else { (1 + below(size / 512 - 1)) * 512 };
            let shares: Vec<Share> = (0..12)
                .map(|at| G * [1, 1, 3][at % 3])
                .enumerate()
                .map(|(at, size)| {
                    let head = free(size);
                    share(at as HandleId, size, head, free(size).min(size - head))
                })
                .collect();
            let (in_front, rest) = (below(2) * below(G), 512 + below(16 * G) / 512 * 512);
            let of_whole = below(10) * G;
            let terms = Terms { granularity: G, thrifty: true, ..Terms::default() };
            let found = Ends::choose(&shares, in_front, rest, &terms, of_whole);
            let firsts = || [None].into_iter().chain(shares.iter().filter(|share| share.tail > in_front).map(Some));
            let lasts = || [None].into_iter().chain(shares.iter().filter(|share| share.head > 0).map(Some));
            let pairs = firsts().flat_map(|first| lasts().map(move |last| Ends { first, last }));
            let apart = |ends: &Ends| ends.first.zip(ends.last).is_none_or(|(first, last)| first.handle != last.handle);
            let best = pairs.filter(apart).map(|ends| cost(&ends, in_front, rest, of_whole)).min();
            assert!(apart(&found));
            assert_eq!(Some(cost(&found, in_front, rest, of_whole)), best);
            with_both += usize::from(found.first.is_some() && found.last.is_some());
        }
        assert!(with_both > 200, "{with_both}");
    }
}
