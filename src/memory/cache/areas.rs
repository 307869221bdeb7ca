//! Which cache an address belongs to: one look, however many caches there are.

use crate::runtime::Address;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

struct Place {
    range: Range<Address>,
    cache: u32,
    /// The first address of the one that it lies in: a pluggable allocator may give what it has of another cache.
    outer: Option<Address>,
}

type Places = BTreeMap<Address, Place>;

/// By their first address.
static PLACES: RwLock<Places> = RwLock::new(BTreeMap::new());

/// Those that have an address, the innermost first.
fn around(places: &Places, address: Address) -> impl Iterator<Item = &Place> {
    let last = places.range(..=address).next_back().map(|(_, place)| place);
    let outer = |place: &&Place| places.get(&place.outer?);
    std::iter::successors(last, outer).filter(move |place| place.range.contains(&address))
}

/// The driver may have had the addresses back before the cache that had them says so: what stands there is past.
pub fn add(range: Range<Address>, cache: u32) {
    let mut places = PLACES.write();
    let past: Vec<Address> = places.range(range.clone()).map(|(base, _)| *base).collect();
    for base in past {
        places.remove(&base);
    }
    let outer = around(&places, range.start).next().map(|place| place.range.start);
    places.insert(range.start, Place { range, cache, outer });
}

/// Unless another cache has it by now. What lies in it lies in what is around it.
pub fn remove(base: Address, cache: u32) {
    let mut places = PLACES.write();
    let Entry::Occupied(place) = places.entry(base) else { return };
    if place.get().cache != cache {
        return;
    }
    let gone = place.remove();
    let inner = places.range_mut(gone.range).map(|(_, place)| place).filter(|place| place.outer == Some(base));
    inner.for_each(|place| place.outer = gone.outer);
}

pub fn remove_all(cache: u32) {
    PLACES.write().retain(|_, place| place.cache != cache);
}

/// The numbers of the caches that have an address, that of the innermost area first.
pub fn caches_at(address: Address) -> impl Iterator<Item = u32> {
    let all: Vec<u32> = around(&PLACES.read(), address).map(|place| place.cache).collect();
    all.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_another_cache_has_by_now_are_its_own() {
        const BASE: Address = 0x5e00_0000_0000;
        let (first, second) = (u32::MAX - 1, u32::MAX);
        let owner = |at: usize| caches_at(BASE + at).next();
        let owners = || [0, 10, 19, 20, 29, 30].map(owner);
        add(BASE + 10..BASE + 30, first);
        assert_eq!(owners(), [None, Some(first), Some(first), Some(first), Some(first), None]);
        add(BASE..BASE + 20, second);
        assert_eq!(owners(), [Some(second), Some(second), Some(second), None, None, None]);
        remove(BASE + 10, first);
        remove(BASE, first);
        assert_eq!(owner(10), Some(second));
        add(BASE + 20..BASE + 30, first);
        remove_all(second);
        assert_eq!(owners(), [None, None, None, Some(first), Some(first), None]);
        remove(BASE + 20, first);
        assert_eq!(owner(20), None);
    }

    #[test]
    fn areas_in_areas_come_first() {
        const BASE: Address = 0x5f00_0000_0000;
        let [outer, inner, beside] = [3, 4, 5].map(|number| u32::MAX - number);
        let at = |offset: usize| caches_at(BASE + offset).collect::<Vec<_>>();
        add(BASE..BASE + 100, outer);
        add(BASE + 10..BASE + 20, inner);
        add(BASE + 20..BASE + 30, beside);
        add(BASE + 12..BASE + 14, beside);
        assert_eq!([0, 10, 13, 14].map(at), [vec![outer], vec![inner, outer], vec![beside, inner, outer], vec![inner, outer]]);
        assert_eq!([20, 30, 99, 100].map(at), [vec![beside, outer], vec![outer], vec![outer], vec![]]);
        remove(BASE + 10, inner);
        assert_eq!([10, 13, 15, 20].map(at), [vec![outer], vec![beside, outer], vec![outer], vec![beside, outer]]);
        [outer, beside].into_iter().for_each(remove_all);
        assert_eq!(at(20), []);
    }
}
