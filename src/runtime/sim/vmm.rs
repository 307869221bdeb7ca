//! Virtual memory: addresses, physical memory and access, each on its own.
//!
//! The physical memory of a device is one file that lives in memory. A handle is a stretch of it, taken at the lowest free place, so that
//! mappings made in a row are neighbours in the file too and the kernel keeps them as one.

use super::super::table::{Address, Code, MemAccess, MemAllocationProp, MemHandle, code};
use super::memory::{Books, Found, Memory, Place, Span};
use super::os::{self, PAGE, Pages, Protection};
use std::collections::BTreeMap;

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
pub const FILE: i32 = 1;

/// A device's physical memory for handles.
#[derive(Default)]
pub struct Space {
    pub pages: Option<Pages>,
    end: usize,
    holes: BTreeMap<usize, usize>,
}

pub struct Handle {
    pub device: usize,
    pub size: usize,
    pub offset: usize,
    mappings: usize,
    /// The memory goes with the last mapping.
    released: bool,
    /// It may be given to another process.
    pub exportable: bool,
    /// Where it lies, if it came from another process.
    pub foreign: Option<Pages>,
}

impl Handle {
    pub fn is_released(&self) -> bool {
        self.released
    }

    /// Of another process, which is charged for it.
    pub fn imported(device: usize, size: usize, offset: usize, pages: Pages) -> Handle {
        Handle { device, size, offset, mappings: 0, released: false, exportable: true, foreign: Some(pages) }
    }
}

pub struct Mapping {
    size: usize,
    handle: MemHandle,
    device: usize,
    /// Sets of devices.
    readers: u64,
    writers: u64,
}

impl Mapping {
    fn protection(&self) -> Protection {
        match (self.readers, self.writers) {
            (0, _) => Protection::Nothing,
            (_, 0) => Protection::Read,
            _ => Protection::ReadWrite,
        }
    }
}

impl Space {
    /// The lowest place that is free. None: the system gives no memory.
    fn take(&mut self, size: usize) -> Option<usize> {
        if let Some((&offset, &room)) = self.holes.iter().find(|(_, room)| **room >= size) {
            self.holes.remove(&offset);
            if room > size {
                self.holes.insert(offset + size, room - size);
            }
            return Some(offset);
        }
        if self.pages.is_none() {
            self.pages = Pages::new();
        }
        let offset = self.end;
        self.pages.as_mut().filter(|_| offset.checked_add(size).is_some())?.reach(offset + size).then(|| self.end += size)?;
        Some(offset)
    }

    fn give(&mut self, mut offset: usize, mut size: usize) {
        if let Some(pages) = &self.pages {
            pages.discard(offset, size);
        }
        if let Some((&before, &room)) = self.holes.range(..offset).next_back()
            && before + room == offset
        {
            self.holes.remove(&before);
            (offset, size) = (before, room + size);
        }
        if let Some(room) = self.holes.remove(&(offset + size)) {
            size += room;
        }
        self.holes.insert(offset, size);
    }
}

/// A multiple of the granularity, and not nothing.
fn whole(size: usize) -> Result<(), Code> {
    if size == 0 || !size.is_multiple_of(PAGE) { Err(code::INVALID_VALUE) } else { Ok(()) }
}

impl Memory {
    fn device_of(&self, properties: &MemAllocationProp, devices: usize) -> Result<usize, Code> {
        const PINNED: i32 = 1;
        const ON_DEVICE: i32 = 1;
        if properties.kind != PINNED || properties.location.kind != ON_DEVICE {
            return Err(code::INVALID_VALUE);
        }
        let device = usize::try_from(properties.location.id).ok().filter(|device| *device < devices).ok_or(code::INVALID_DEVICE)?;
        // Neither Windows handles nor the fabric, nor compressed memory, is to be had here.
        if properties.handle_types & !FILE != 0 || properties.compression != 0 {
            return Err(code::NOT_SUPPORTED);
        }
        Ok(device)
    }

    pub fn granularity(&self, properties: &MemAllocationProp, option: i32) -> Result<usize, Code> {
        let devices = self.books().pools.len();
        self.device_of(properties, devices)?;
        // Least and recommended.
        if (0..=1).contains(&option) { Ok(PAGE) } else { Err(code::INVALID_VALUE) }
    }

    /// The wished address is a hint, which is not taken.
    pub fn reserve(&self, size: usize, alignment: usize, flags: u64) -> Result<Address, Code> {
        whole(size)?;
        if flags != 0 || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(code::INVALID_VALUE);
        }
        // What is large begins on a multiple of so much, so that what hangs on addresses alone, as what shares a line of a table, is the same in
        // every run.
        const LARGE: usize = 16 << 30;
        const EVEN: usize = 64 << 30;
        let least = if size < LARGE { PAGE } else { EVEN };
        let address = os::reserve(size, alignment.max(least)).ok_or(code::OUT_OF_MEMORY)?;
        self.add_reservation(address, size);
        Ok(address)
    }

    /// The whole reservation, with nothing mapped.
    pub fn unreserve(&self, address: Address, size: usize) -> Result<(), Code> {
        let mut books = self.books();
        let end = address.checked_add(size).ok_or(code::INVALID_VALUE)?;
        if size == 0 || books.reservation(address) != Some((address, end)) || books.mappings.range(address..end).next().is_some() {
            return Err(code::INVALID_VALUE);
        }
        books.remove_reservation(address);
        os::release(address, size);
        Ok(())
    }

    pub fn create(&self, size: usize, properties: &MemAllocationProp, flags: u64) -> Result<MemHandle, Code> {
        let mut books = self.books();
        let device = self.device_of(properties, books.pools.len())?;
        whole(size)?;
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        let pool = &mut books.pools[device];
        pool.charge(size)?;
        let Some(offset) = pool.space.take(size) else {
            pool.refund(size);
            return Err(code::OUT_OF_MEMORY);
        };
        let handle = books.next_handle;
        books.next_handle += 1;
        let exportable = properties.handle_types & FILE != 0;
        books.handles.insert(handle, Handle { device, size, offset, mappings: 0, released: false, exportable, foreign: None });
        Ok(handle)
    }

    pub fn release_handle(&self, handle: MemHandle) -> Result<(), Code> {
        let mut books = self.books();
        let known = books.handles.get_mut(&handle).filter(|known| !known.released).ok_or(code::INVALID_VALUE)?;
        known.released = true;
        books.end_if_unused(handle);
        Ok(())
    }

    /// The whole handle, inside one reservation, over nothing that is mapped. Nobody has access yet.
    pub fn map(&self, address: Address, size: usize, offset: usize, handle: MemHandle, flags: u64) -> Result<(), Code> {
        whole(size)?;
        let mut guard = self.books();
        let books = &mut *guard;
        let end = address.checked_add(size).ok_or(code::INVALID_VALUE)?;
        let known = books.handles.get(&handle).filter(|known| !known.released).ok_or(code::INVALID_VALUE)?;
        let reserved = books.reservation(address).is_some_and(|(_, last)| end <= last);
        let before = books.mappings.range(..end).next_back();
        let overlaps = before.is_some_and(|(start, mapping)| start + mapping.size > address);
        if !reserved || overlaps || !address.is_multiple_of(PAGE) || offset != 0 || flags != 0 || size != known.size {
            return Err(code::INVALID_VALUE);
        }
        let (device, place) = (known.device, known.offset);
        let pages = known.foreign.as_ref().or(books.pools[device].space.pages.as_ref());
        let mapped = pages.is_some_and(|pages| pages.map(address, size, place));
        if !mapped {
            return Err(code::OUT_OF_MEMORY);
        }
        books.mappings.insert(address, Mapping { size, handle, device, readers: 0, writers: 0 });
        if let Some(known) = books.handles.get_mut(&handle) {
            known.mappings += 1;
        }
        Ok(())
    }

    /// One mapping or several in a row, each whole.
    pub fn unmap(&self, address: Address, size: usize) -> Result<(), Code> {
        let mut books = self.books();
        books.mapped_whole(address, size)?;
        self.settle(&mut books, address, size);
        let mapped = books.mapped_whole(address, size)?;
        os::decommit(address, size);
        for start in mapped {
            if let Some(mapping) = books.mappings.remove(&start) {
                if let Some(handle) = books.handles.get_mut(&mapping.handle) {
                    handle.mappings -= 1;
                }
                books.end_if_unused(mapping.handle);
            }
        }
        Ok(())
    }

    /// Sets what the named devices may do; the others keep what they have.
    pub fn set_access(&self, address: Address, size: usize, access: &[MemAccess]) -> Result<(), Code> {
        const ON_DEVICE: i32 = 1;
        let mut books = self.books();
        let mapped = books.mapped_whole(address, size)?;
        let devices = books.pools.len();
        if access.is_empty() {
            return Err(code::INVALID_VALUE);
        }
        let (mut named, mut readers, mut writers) = (0u64, 0u64, 0u64);
        for wish in access {
            let (read, write) = match wish.flags {
                0 => (false, false),
                1 => (true, false),
                3 => (true, true),
                _ => return Err(code::INVALID_VALUE),
            };
            if wish.location.kind != ON_DEVICE {
                return Err(code::INVALID_VALUE);
            }
            let device = usize::try_from(wish.location.id).ok().filter(|device| *device < devices).ok_or(code::INVALID_DEVICE)?;
            let reaches = |start: &Address| books.mappings[start].device == device || self.peers.can(device, books.mappings[start].device);
            if read && !mapped.iter().all(reaches) {
                return Err(code::INVALID_DEVICE);
            }
            named |= 1 << device;
            readers |= u64::from(read) << device;
            writers |= u64::from(write) << device;
        }
        self.settle(&mut books, address, size);
        for start in books.mapped_whole(address, size)? {
            let Some(mapping) = books.mappings.get_mut(&start) else { continue };
            let before = mapping.protection();
            let old = (mapping.readers, mapping.writers);
            mapping.readers = mapping.readers & !named | readers;
            mapping.writers = mapping.writers & !named | writers;
            if mapping.protection() != before && !os::protect(start, mapping.size, mapping.protection()) {
                (mapping.readers, mapping.writers) = old;
                return Err(code::OUT_OF_MEMORY);
            }
        }
        Ok(())
    }

    /// Bytes and number of handles that hold memory on a device, and of mappings of them.
    pub fn handles_of(&self, device: usize) -> (usize, usize, usize) {
        let books = self.books();
        let handles = books.handles.values().filter(|handle| handle.device == device);
        let (bytes, count) = handles.fold((0, 0), |(bytes, count), handle| (bytes + handle.size, count + 1));
        (bytes, count, books.mappings.values().filter(|mapping| mapping.device == device).count())
    }
}

impl Books {
    /// The starts of the mappings that make up the range exactly.
    fn mapped_whole(&self, address: Address, size: usize) -> Result<Vec<Address>, Code> {
        let end = address.checked_add(size).filter(|_| size > 0).ok_or(code::INVALID_VALUE)?;
        let mut next = address;
        let mut starts = Vec::new();
        for (start, mapping) in self.mappings.range(address..end) {
            if *start != next {
                return Err(code::INVALID_VALUE);
            }
            starts.push(*start);
            next = start + mapping.size;
        }
        if next == end { Ok(starts) } else { Err(code::INVALID_VALUE) }
    }

    /// The last mapping that starts at an address or before.
    pub fn mapping_before(&self, address: Address) -> Option<(Address, usize)> {
        self.mappings.range(..=address).next_back().map(|(start, mapping)| (*start, mapping.size))
    }

    fn end_if_unused(&mut self, handle: MemHandle) {
        if self.handles.get(&handle).is_some_and(|known| known.released && known.mappings == 0)
            && let Some(known) = self.handles.remove(&handle)
            && known.foreign.is_none()
        {
            let pool = &mut self.pools[known.device];
            pool.refund(known.size);
            pool.space.give(known.offset, known.size);
        }
    }

    /// A range inside a reservation: mapped without a gap.
    pub fn find_mapped(&self, span: Span, by: usize) -> Result<Found, Code> {
        let end = span.address + span.size.max(1);
        let (start, first) = self.mappings.range(..=span.address).next_back().ok_or(code::INVALID_VALUE)?;
        let mut found = Found { place: Place::Device(first.device), ours: true, owners: true };
        let mut next = *start;
        for (start, mapping) in self.mappings.range(*start..end) {
            if *start != next {
                return Err(code::INVALID_VALUE);
            }
            next = start + mapping.size;
            let allowed = if span.write { mapping.writers } else { mapping.readers };
            found.ours &= allowed & 1 << by != 0;
            found.owners &= allowed & 1 << mapping.device != 0;
        }
        if next >= end { Ok(found) } else { Err(code::INVALID_VALUE) }
    }
}
