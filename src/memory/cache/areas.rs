//! Which cache an address belongs to: one look, however many caches there are.

use crate::runtime::Address;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Range;

struct Place {
    end: Address,
    cache: u32,
}

/// By their first address.
static PLACES: RwLock<BTreeMap<Address, Place>> = RwLock::new(BTreeMap::new());

/// The driver may have had the addresses back before the cache that had them says so: what stands there is past.
pub fn add(range: Range<Address>, cache: u32) {
    let mut places = PLACES.write();
    let past: Vec<Address> = places.range(range.clone()).map(|(base, _)| *base).collect();
    for base in past {
        places.remove(&base);
    }
    places.insert(range.start, Place { end: range.end, cache });
}

/// Unless another cache has it by now.
pub fn remove(base: Address, cache: u32) {
    let mut places = PLACES.write();
    if places.get(&base).is_some_and(|place| place.cache == cache) {
        places.remove(&base);
    }
}

pub fn remove_all(cache: u32) {
    PLACES.write().retain(|_, place| place.cache != cache);
}

/// The number of the cache.
pub fn cache_at(address: Address) -> Option<u32> {
    let places = PLACES.read();
    let (_, place) = places.range(..=address).next_back()?;
    (address < place.end).then_some(place.cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_another_cache_has_by_now_are_its_own() {
        const BASE: Address = 0x5e00_0000_0000;
        let (first, second) = (u32::MAX - 1, u32::MAX);
        let owners = || [0, 10, 19, 20, 29, 30].map(|at| cache_at(BASE + at));
        add(BASE + 10..BASE + 30, first);
        assert_eq!(owners(), [None, Some(first), Some(first), Some(first), Some(first), None]);
        add(BASE..BASE + 20, second);
        assert_eq!(owners(), [Some(second), Some(second), Some(second), None, None, None]);
        remove(BASE + 10, first);
        remove(BASE, first);
        assert_eq!(cache_at(BASE + 10), Some(second));
        add(BASE + 20..BASE + 30, first);
        remove_all(second);
        assert_eq!(owners(), [None, None, None, Some(first), Some(first), None]);
        remove(BASE + 20, first);
        assert_eq!(cache_at(BASE + 20), None);
    }
}
