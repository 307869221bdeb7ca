//! Memory of several processes. Each has a simulated machine of its own; boards of the same number count as one board, as their UUIDs
//! say. The memory behind a handle is a file already, and that of a block becomes one when it is first shared.
//!
//! Differences to real devices: who opens memory is not charged for it, and memory that its process gave back while others had it open
//! reads as zero there, which a real device leaves undefined.

use super::super::table::{Address, Code, IpcHandle, MemHandle, RawEvent, code};
use super::Sim;
use super::beacon::Beacon;
use super::event::Event;
use super::memory::{Books, Memory};
use super::os::{self, FileName, PAGE, Pages};
use super::small;
use super::vmm::{FILE, Handle};
use std::collections::hash_map::Entry;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;

/// What the 64 bytes of a handle say: the file, and where the memory lies in it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Name {
    pub file: FileName,
    /// The board's number.
    pub device: usize,
    pub size: usize,
    pub offset: usize,
}

pub fn write_name(kind: &[u8; 5], name: Name) -> IpcHandle {
    let mut bytes = [0; 64];
    bytes[..3].copy_from_slice(b"sim");
    bytes[3..8].copy_from_slice(kind);
    let (process, file, inode) = name.file;
    let words = [process as u64, file as u64, inode, name.device as u64, name.size as u64, name.offset as u64];
    for (at, word) in words.into_iter().enumerate() {
        bytes[8 + at * 8..16 + at * 8].copy_from_slice(&word.to_ne_bytes());
    }
    IpcHandle(bytes)
}

pub fn read_name(kind: &[u8; 5], handle: &IpcHandle) -> Option<Name> {
    let bytes = &handle.0;
    if bytes[..3] != *b"sim" || bytes[3..8] != *kind || bytes[56..] != [0; 8] {
        return None;
    }
    let word = |at: usize| u64::from_ne_bytes(bytes[8 + at * 8..16 + at * 8].try_into().unwrap_or_default());
    let small = |at: usize| i32::try_from(word(at)).ok();
    Some(Name { file: (small(0)?, small(1)?, word(2)), device: word(3) as usize, size: word(4) as usize, offset: word(5) as usize })
}

/// A block of another process that is open here: by one device as often as it was asked for, at one address.
pub struct Opened {
    name: Name,
    by: usize,
    device: usize,
    start: Address,
    uses: usize,
}

impl Opened {
    fn address(&self) -> Address {
        self.start + self.name.offset
    }
}

/// A stretch of a board's memory as one number.
fn pack(device: usize, offset: usize, size: usize) -> u64 {
    ((device as u64) << 54) | ((offset / PAGE) as u64) << 27 | (size / PAGE) as u64
}

fn unpack(number: u64) -> (usize, usize, usize) {
    const PAGES: u64 = (1 << 27) - 1;
    ((number >> 54) as usize, (number >> 27 & PAGES) as usize * PAGE, (number & PAGES) as usize * PAGE)
}

impl Sim {
    /// The visible device that is a board.
    fn device_numbered(&self, number: usize) -> Option<usize> {
        self.devices.iter().position(|device| device.number == number)
    }

    pub fn export(&self, handle: MemHandle, kind: i32, flags: u64) -> Result<i32, Code> {
        let books = self.memory.books();
        let known = books.handles.get(&handle).filter(|known| !known.is_released() && known.exportable).ok_or(code::INVALID_VALUE)?;
        if kind != FILE || flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        let pages = known.foreign.as_ref().or(books.pools[known.device].space.pages.as_ref()).ok_or(code::INVALID_VALUE)?;
        let number = pack(self.devices[known.device].number, known.offset, known.size);
        Ok(pages.ticket(number).ok_or(code::OPERATING_SYSTEM)?.into_raw_fd())
    }

    pub fn import(&self, file: usize, kind: i32) -> Result<MemHandle, Code> {
        let file = i32::try_from(file).ok().filter(|file| *file >= 0 && kind == FILE).ok_or(code::INVALID_VALUE)?;
        let (pages, number) = Pages::from_ticket(unsafe { BorrowedFd::borrow_raw(file) }).ok_or(code::INVALID_VALUE)?;
        let (number, offset, size) = unpack(number);
        if size == 0 || offset + size > pages.size() {
            return Err(code::INVALID_VALUE);
        }
        let device = self.device_numbered(number).ok_or(code::INVALID_DEVICE)?;
        let mut books = self.memory.books();
        let handle = books.next_handle;
        books.next_handle += 1;
        books.handles.insert(handle, Handle::imported(device, size, offset, pages));
        Ok(handle)
    }

    /// A name for the block of cudaMalloc that an address lies in.
    pub fn share(&self, address: Address) -> Result<IpcHandle, Code> {
        let (device, file, size, offset) = self.memory.share(address)?;
        Ok(write_name(b"block", Name { file, device: self.devices[device].number, size, offset }))
    }

    /// Another process's block, for the current device and all that reach it. Open already: its address, and one use more.
    pub fn open_shared(&self, handle: &IpcHandle, flags: u32) -> Result<Address, Code> {
        const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
        let by = self.current()?;
        if flags != LAZY_ENABLE_PEER_ACCESS {
            return Err(code::INVALID_VALUE);
        }
        let name = read_name(b"block", handle).ok_or(code::INVALID_HANDLE)?;
        if name.file.0 == std::process::id() as i32 {
            return Err(code::INVALID_CONTEXT);
        }
        let device = self.device_numbered(name.device).ok_or(code::PEER_ACCESS_UNSUPPORTED)?;
        if device != by {
            match self.memory.peers.enable(by, device) {
                Ok(()) | Err(code::PEER_ACCESS_ALREADY_ENABLED) => {}
                Err(code) => return Err(code),
            }
        }
        let pages = Pages::of_process(name.file).ok_or(code::INVALID_HANDLE)?;
        if name.size == 0 || name.size > pages.size() || name.offset >= name.size {
            return Err(code::INVALID_HANDLE);
        }
        let mut books = self.memory.books();
        if let Some(known) = books.opened.iter_mut().find(|known| known.name == name && known.by == by) {
            known.uses += 1;
            return Ok(known.address());
        }
        let start = os::reserve(name.size, PAGE).ok_or(code::OUT_OF_MEMORY)?;
        if !pages.put_over(start, name.size) {
            os::release(start, name.size);
            return Err(code::OUT_OF_MEMORY);
        }
        books.add_imported(device, start, name.size);
        books.opened.push(Opened { name, by, device, start, uses: 1 });
        Ok(start + name.offset)
    }

    /// Waits for the device. As often as it was opened.
    pub fn close_shared(&'static self, address: Address) -> Result<(), Code> {
        let find = |books: &Books| books.opened.iter().position(|opened| opened.address() == address).ok_or(code::INVALID_VALUE);
        let device = {
            let books = self.memory.books();
            books.opened[find(&books)?].device
        };
        self.synchronize_device(device);
        let mut books = self.memory.books();
        let at = find(&books)?;
        let (start, size) = (books.opened[at].start, books.opened[at].name.size);
        self.memory.settle(&mut books, start, size);
        // Others may have opened or closed it meanwhile.
        let at = find(&books)?;
        books.opened[at].uses -= 1;
        if books.opened[at].uses == 0 {
            books.opened.swap_remove(at);
            books.remove_imported(start);
            os::release(start, size);
        }
        drop(books);
        self.devices[device].check()
    }

    pub fn event_handle(&'static self, event: RawEvent) -> Result<IpcHandle, Code> {
        self.beacon_of(event)?.handle().ok_or(code::OPERATING_SYSTEM)
    }

    pub fn open_event(&'static self, handle: &IpcHandle) -> Result<RawEvent, Code> {
        const DISABLE_TIMING_INTERPROCESS: u32 = 6;
        let device = self.current()?;
        let name = read_name(b"event", handle).ok_or(code::INVALID_HANDLE)?;
        if name.file.0 == std::process::id() as i32 {
            return Err(code::INVALID_CONTEXT);
        }
        let beacon = Beacon::open(handle).ok_or(code::INVALID_HANDLE)?;
        Ok(self.add_event(Event::new(device, DISABLE_TIMING_INTERPROCESS, Some(Arc::new(beacon)))))
    }
}

impl Memory {
    /// The device of the block that an address lies in, the file that its pages are, and become if need be, their size, and where in them
    /// the block starts.
    fn share(&self, address: Address) -> Result<(usize, FileName, usize, usize), Code> {
        let mut books = self.books();
        let place = |books: &Books| -> Result<(usize, Address, Address, usize), Code> {
            let (at, block) = books.plain_block(address).ok_or(code::INVALID_VALUE)?;
            let (start, size) = if block.room > small::MOST { (at, block.room) } else { (at & !(PAGE - 1), PAGE) };
            Ok((block.device, at, start, size))
        };
        let (_, _, start, size) = place(&books)?;
        // Nobody touches it while it changes from one kind of pages to the other.
        self.settle(&mut books, start, size);
        let (device, at, start, size) = place(&books)?;
        let pages = match books.shared.entry(start) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let mut pages = Pages::new().ok_or(code::OUT_OF_MEMORY)?;
                if !pages.fill(start, size) || !pages.put_over(start, size) {
                    return Err(code::OUT_OF_MEMORY);
                }
                place.insert(pages)
            }
        };
        let file = pages.name().ok_or(code::OPERATING_SYSTEM)?;
        Ok((device, file, size, at - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_stretches_come_back() {
        let name = Name { file: (7, 9, u64::MAX), device: 3, size: 6 * PAGE, offset: 512 };
        let handle = write_name(b"block", name);
        assert_eq!(read_name(b"block", &handle), Some(name));
        assert_eq!(read_name(b"event", &handle), None);
        assert_eq!(read_name(b"block", &IpcHandle([0; 64])), None);
        for (device, offset, size) in [(0, 0, PAGE), (63, (1 << 48) - PAGE, (1 << 48) - PAGE)] {
            let number = pack(device, offset, size);
            assert!(number < 1 << 62, "a position in a file");
            assert_eq!(unpack(number), (device, offset, size));
        }
    }
}
