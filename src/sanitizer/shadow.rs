//! What is known of memory, by address: stretches of one kind, cut where something else begins.

use std::collections::BTreeMap;

/// Values of stretches of addresses; where there is none, nothing is known.
pub struct Stretches<T>(BTreeMap<usize, (usize, T)>);

impl<T: Clone> Stretches<T> {
    pub fn new() -> Stretches<T> {
        Stretches(BTreeMap::new())
    }

    /// No stretch lies on both sides of an address.
    fn cut(&mut self, at: usize) {
        if let Some((_, (end, value))) = self.0.range_mut(..at).next_back()
            && *end > at
        {
            let rest = (std::mem::replace(end, at), value.clone());
            self.0.insert(at, rest);
        }
    }

    /// Takes out what lies in a stretch.
    pub fn take(&mut self, start: usize, end: usize) -> Vec<(usize, usize, T)> {
        self.cut(start);
        self.cut(end);
        let starts: Vec<usize> = self.0.range(start..end).map(|(at, _)| *at).collect();
        starts.into_iter().filter_map(|at| self.0.remove(&at).map(|(end, value)| (at, end, value))).collect()
    }

    pub fn put(&mut self, start: usize, end: usize, value: T) {
        if start < end {
            self.take(start, end);
            self.0.insert(start, (end, value));
        }
    }

    /// What touches a stretch.
    pub fn overlapping(&self, start: usize, end: usize) -> impl Iterator<Item = &T> {
        self.pieces(start, end).map(|(_, _, value)| value)
    }

    /// The same, and where it does.
    pub fn pieces(&self, start: usize, end: usize) -> impl Iterator<Item = (usize, usize, &T)> {
        let first = self.0.range(..=start).next_back().filter(|(_, (stop, _))| *stop > start).map_or(start, |(at, _)| *at);
        self.0.range(first..end.max(first)).map(move |(at, (stop, value))| (start.max(*at), end.min(*stop), value))
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl<T: Clone + PartialEq> Stretches<T> {
    /// Changes all of a stretch; what is not known yet is `unknown` before. Pieces that are alike then are one.
    pub fn change(&mut self, start: usize, end: usize, unknown: impl Fn() -> T, mut each: impl FnMut(&mut T)) {
        let mut pieces: Vec<(usize, usize, T)> = Vec::new();
        let mut changed = |from: usize, to: usize, mut value: T| {
            each(&mut value);
            match pieces.last_mut().filter(|last| last.2 == value) {
                Some(last) => last.1 = to,
                None => pieces.push((from, to, value)),
            }
        };
        let mut at = start;
        for (from, to, value) in self.take(start, end) {
            if at < from {
                changed(at, from, unknown());
            }
            changed(from, to, value);
            at = to;
        }
        if at < end {
            changed(at, end, unknown());
        }
        self.0.extend(pieces.into_iter().map(|(from, to, value)| (from, (to, value))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(stretches: &Stretches<i32>) -> Vec<(usize, usize, i32)> {
        stretches.0.iter().map(|(at, (end, value))| (*at, *end, *value)).collect()
    }

    #[test]
    fn stretches_are_cut_where_others_begin() {
        let mut stretches = Stretches::new();
        stretches.put(10, 20, 1);
        stretches.put(30, 40, 2);
        stretches.put(15, 35, 3);
        stretches.put(50, 50, 9);
        assert_eq!(all(&stretches), [(10, 15, 1), (15, 35, 3), (35, 40, 2)]);
        let touching = |start, end| stretches.overlapping(start, end).copied().collect::<Vec<_>>();
        assert_eq!((touching(0, 10), touching(14, 15), touching(14, 16), touching(39, 99)), (vec![], vec![1], vec![1, 3], vec![2]));
        assert_eq!((touching(20, 21), touching(40, 50), touching(0, 100)), (vec![3], vec![], vec![1, 3, 2]));
        assert_eq!(stretches.take(12, 37), [(12, 15, 1), (15, 35, 3), (35, 37, 2)]);
        assert_eq!(all(&stretches), [(10, 12, 1), (37, 40, 2)]);
    }

    #[test]
    fn a_change_reaches_all_of_it_and_nothing_else() {
        let mut stretches = Stretches::new();
        stretches.put(10, 20, 1);
        stretches.put(30, 40, 2);
        stretches.change(5, 35, || 0, |value| *value += 100);
        assert_eq!(all(&stretches), [(5, 10, 100), (10, 20, 101), (20, 30, 100), (30, 35, 102), (35, 40, 2)]);
        stretches.change(100, 110, || 7, |value| *value += 1);
        stretches.change(102, 104, || 7, |value| *value += 1);
        assert_eq!(all(&stretches)[5..], [(100, 102, 8), (102, 104, 9), (104, 110, 8)]);
        stretches.change(101, 120, || 7, |value| *value = 5);
        assert_eq!(all(&stretches)[5..], [(100, 101, 8), (101, 120, 5)]);
    }

    /// Against a list of single addresses.
    #[test]
    fn many_changes_are_those_of_single_addresses() {
        let (mut stretches, mut single) = (Stretches::new(), [None; 64]);
        let mut state = 1u64;
        let mut next = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        for round in 0..5000 {
            let start = next(64) as usize;
            let end = start + next(64 - start as u64 + 1) as usize;
            match next(3) {
                0 => {
                    stretches.put(start, end, round);
                    single[start..end].fill(Some(round));
                }
                1 => {
                    drop(stretches.take(start, end));
                    single[start..end].fill(None);
                }
                _ => {
                    stretches.change(start, end, || 0, |value| *value += 1);
                    single[start..end].iter_mut().for_each(|value| *value = Some(value.unwrap_or(0) + 1));
                }
            }
            let mut found = [None; 64];
            for (at, end, value) in all(&stretches) {
                assert!(at < end);
                found[at..end].fill(Some(value));
            }
            assert_eq!(found, single);
        }
    }
}
