//! Pinned host memory: allocated and registered.

use super::super::table::{Address, Code, code};
use super::memory::{Memory, Place, Span};
use super::os;

pub struct HostBlock {
    pub size: usize,
    /// Current when it was made.
    pub device: usize,
    /// Registered memory belongs to the program.
    pub registered: bool,
}

/// What cudaPointerGetAttributes tells, at its offsets.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attributes {
    pub kind: i32,
    pub device: i32,
    pub device_address: Address,
    pub host_address: Address,
}

impl Memory {
    pub fn host_alloc(&self, device: usize, size: usize, flags: u32) -> Result<Address, Code> {
        const KNOWN: u32 = 0b111; // portable, mapped, write-combined
        if flags & !KNOWN != 0 {
            return Err(code::INVALID_VALUE);
        }
        if size == 0 {
            return Ok(0);
        }
        let address = os::host(size).ok_or(code::OUT_OF_MEMORY)?;
        self.books().host.insert(address, HostBlock { size, device, registered: false });
        Ok(address)
    }

    pub fn host_register(&self, device: usize, address: Address, size: usize, flags: u32) -> Result<(), Code> {
        const KNOWN: u32 = 0b1111; // portable, mapped, of a device's registers, read-only
        if flags & !KNOWN != 0 || size == 0 || !os::is_mapped(address, size) {
            return Err(code::INVALID_VALUE);
        }
        let mut books = self.books();
        if !books.is_foreign(address, size) {
            return Err(code::INVALID_VALUE);
        }
        let before = books.host.range(..address + size).next_back();
        if before.is_some_and(|(start, block)| start + block.size > address) {
            return Err(code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        books.host.insert(address, HostBlock { size, device, registered: true });
        Ok(())
    }

    /// Whether cudaFreeHost (`registered` false) or cudaHostUnregister (true) may have the address; the code that it answers if not.
    pub fn host_check(&self, address: Address, registered: bool) -> Result<(), Code> {
        match self.books().host.get(&address) {
            Some(block) if block.registered == registered => Ok(()),
            _ if registered => Err(code::HOST_MEMORY_NOT_REGISTERED),
            _ => Err(code::INVALID_VALUE),
        }
    }

    pub fn host_release(&self, address: Address, registered: bool) -> Result<(), Code> {
        self.host_check(address, registered)?;
        let mut books = self.books();
        if let Some(size) = books.host.get(&address).map(|block| block.size) {
            self.settle(&mut books, address, size);
        }
        // Another thread may have been quicker.
        match books.host.remove(&address) {
            Some(block) if !block.registered => os::release(address, block.size),
            Some(_) => {}
            None => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }

    pub fn attributes(&self, address: Address) -> Attributes {
        const NO_DEVICE: i32 = -2;
        let books = self.books();
        match books.find(Span { address, size: 1, write: false }, 0, &self.peers).map(|found| found.place) {
            Ok(Place::Device(device)) => Attributes { kind: 2, device: device as i32, device_address: address, host_address: 0 },
            Ok(Place::Pinned) => {
                let device = books.host.range(..=address).next_back().map_or(0, |(_, block)| block.device as i32);
                Attributes { kind: 1, device, device_address: address, host_address: address }
            }
            _ => Attributes { kind: 0, device: NO_DEVICE, device_address: 0, host_address: address },
        }
    }

    /// (allocated, registered) blocks.
    pub fn pinned(&self) -> (usize, usize) {
        let books = self.books();
        let registered = books.host.values().filter(|block| block.registered).count();
        (books.host.len() - registered, registered)
    }
}
