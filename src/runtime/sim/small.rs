//! Small blocks, packed into pages of 2 MiB as CUDA does. What was freed is taken again only when the newest page is used up.

use super::super::table::Address;
use super::os::PAGE;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Every block is a multiple of this, and starts at one.
pub const GRAIN: usize = 512;
/// Larger blocks have pages of their own.
pub const MOST: usize = 1 << 20;

#[derive(Default)]
pub struct Small {
    /// What was never used of the newest page.
    fresh: (Address, Address),
    holes: BTreeMap<Address, usize>,
    by_size: BTreeSet<(usize, Address)>,
    /// Blocks in each page.
    live: HashMap<Address, usize>,
}

impl Small {
    /// None: another page is needed.
    pub fn take(&mut self, size: usize) -> Option<Address> {
        let address = if self.fresh.1 - self.fresh.0 >= size {
            let address = self.fresh.0;
            self.fresh.0 += size;
            address
        } else {
            let (room, address) = *self.by_size.range((size, 0)..).next()?;
            self.remove_hole(address, room);
            self.add_hole(address + size, room - size);
            address
        };
        *self.live.entry(page(address)).or_default() += 1;
        Some(address)
    }

    pub fn add_page(&mut self, address: Address) {
        let (start, end) = std::mem::replace(&mut self.fresh, (address, address + PAGE));
        self.add_hole(start, end - start);
    }

    /// Some: this page has no blocks any more, and is no longer ours.
    pub fn give(&mut self, address: Address, size: usize) -> Option<Address> {
        let page = page(address);
        let live = self.live.get_mut(&page)?;
        *live -= 1;
        if *live > 0 {
            self.add_hole(address, size);
            return None;
        }
        self.live.remove(&page);
        let holes: Vec<(Address, usize)> = self.holes.range(page..page + PAGE).map(|(address, size)| (*address, *size)).collect();
        for (address, size) in holes {
            self.remove_hole(address, size);
        }
        // The newest page may be used up to its end, which is another page's start.
        if (page..=page + PAGE).contains(&self.fresh.0) && self.fresh.1 == page + PAGE {
            self.fresh = (0, 0);
        }
        Some(page)
    }

    fn remove_hole(&mut self, address: Address, size: usize) {
        self.holes.remove(&address);
        self.by_size.remove(&(size, address));
    }

    /// Joined with its neighbours in the page.
    fn add_hole(&mut self, mut address: Address, mut size: usize) {
        if size == 0 {
            return;
        }
        if let Some((&before, &room)) = self.holes.range(page(address)..address).next_back()
            && before + room == address
        {
            self.remove_hole(before, room);
            (address, size) = (before, room + size);
        }
        if let Some(&room) = self.holes.get(&(address + size))
            && page(address + size) == page(address)
        {
            self.remove_hole(address + size, room);
            size += room;
        }
        self.holes.insert(address, size);
        self.by_size.insert((size, address));
    }
}

fn page(address: Address) -> Address {
    address / PAGE * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_used_up_before_anything_is_used_again() {
        let mut small = Small::default();
        assert_eq!(small.take(512), None);
        small.add_page(PAGE);
        let first = small.take(512).unwrap();
        let second = small.take(512).unwrap();
        assert_eq!((first, second), (PAGE, PAGE + 512));
        assert_eq!(small.give(first, 512), None);
        assert_eq!(small.take(512), Some(PAGE + 1024));
        assert_eq!(small.take(PAGE - 1536), Some(PAGE + 1536));
        assert_eq!(small.take(512), Some(first));
        assert_eq!(small.take(512), None);
    }

    #[test]
    fn holes_join_and_empty_pages_go() {
        let mut small = Small::default();
        small.add_page(PAGE);
        let blocks: Vec<Address> = (0..4).map(|_| small.take(PAGE / 4).unwrap()).collect();
        small.add_page(2 * PAGE);
        let other = small.take(MOST).unwrap();
        assert_eq!(other, 2 * PAGE);
        for block in [1, 3, 2] {
            assert_eq!(small.give(blocks[block], PAGE / 4), None);
        }
        assert_eq!(small.holes.get(&blocks[1]), Some(&(PAGE / 4 * 3)));
        assert_eq!(small.give(blocks[0], PAGE / 4), Some(PAGE));
        assert!(small.holes.is_empty() && small.by_size.is_empty());
        assert_eq!(small.give(other, MOST), Some(2 * PAGE));
        assert_eq!(small.take(512), None);
    }
}
