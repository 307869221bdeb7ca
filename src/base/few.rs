//! What is only ever a handful: dimensions, ranks of one call, places to look.

/// Sorts by a key; equal ones stay in their order. The general sort is 5 kB of code for each kind of list, and no faster for so few.
pub fn sort_by_key<T, K: Ord>(list: &mut [T], key: impl Fn(&T) -> K) {
    for end in 1..list.len() {
        let mut at = end;
        while at > 0 && key(&list[at - 1]) > key(&list[at]) {
            list.swap(at - 1, at);
            at -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sort_by_key;

    #[test]
    fn sorts_as_the_general_sort_does() {
        for size in (0..20).chain([100]) {
            let mut list: Vec<(u64, usize)> = (0..size).map(|at| ((at as u64 + 3).pow(5) % 7, at)).collect();
            let mut expected = list.clone();
            expected.sort_by_key(|entry| entry.0);
            sort_by_key(&mut list, |entry| entry.0);
            assert_eq!(list, expected);
        }
    }
}
