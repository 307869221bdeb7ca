//! Address space and pages, from the operating system.

use super::super::table::Address;
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

/// The granularity of device memory, as on the devices of today.
pub const PAGE: usize = 2 << 20;
/// User addresses end here.
const TOP: usize = 1 << 47;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    Nothing,
    Read,
    ReadWrite,
}

impl Protection {
    fn bits(self) -> i32 {
        match self {
            Protection::Nothing => PROT_NONE,
            Protection::Read => PROT_READ,
            Protection::ReadWrite => PROT_READ | PROT_WRITE,
        }
    }
}

fn map(address: Address, size: usize, protection: i32, flags: i32, file: i32, offset: usize) -> Option<Address> {
    let at = unsafe { libc::mmap(address as *mut _, size, protection, flags, file, offset as libc::off_t) };
    (at != libc::MAP_FAILED).then_some(at as Address)
}

/// Addresses without memory. `alignment` is a power of two.
pub fn reserve(size: usize, alignment: usize) -> Option<Address> {
    let padded = size.checked_add(alignment)?;
    let raw = map(0, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)?;
    let address = raw.next_multiple_of(alignment);
    release(raw, address - raw);
    release(address + size, raw + padded - address - size);
    Some(address)
}

/// Gives addresses back.
pub fn release(address: Address, size: usize) {
    if size > 0 {
        unsafe { libc::munmap(address as *mut _, size) };
    }
}

/// Makes reserved addresses memory that is there when touched, in small pages, so that a touched byte does not cost 2 MiB.
pub fn commit(address: Address, size: usize) -> bool {
    let done = protect(address, size, Protection::ReadWrite);
    if done {
        unsafe { libc::madvise(address as *mut _, size, libc::MADV_NOHUGEPAGE) };
    }
    done
}

/// Makes memory, or a mapped file, reserved addresses again.
pub fn decommit(address: Address, size: usize) {
    if map(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0).is_none() {
        // The kernel's limit of mappings: the bytes go, the addresses stay readable. The books forbid their use all the same.
        unsafe { libc::madvise(address as *mut _, size, libc::MADV_DONTNEED) };
    }
}

pub fn protect(address: Address, size: usize, protection: Protection) -> bool {
    unsafe { libc::mprotect(address as *mut _, size, protection.bits()) == 0 }
}

/// Host memory, zeroed and aligned to a page.
pub fn host(size: usize) -> Option<Address> {
    map(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
}

/// Whether the first and the last byte of a host range are mapped: what a wrong pointer usually is not.
pub fn is_mapped(address: Address, size: usize) -> bool {
    const SMALL: usize = 4096;
    let Some(last) = address.checked_add(size.max(1) - 1).filter(|last| *last < TOP) else { return false };
    let there = |address: Address| {
        let mut seen = 0u8;
        unsafe { libc::mincore((address & !(SMALL - 1)) as *mut _, SMALL, &mut seen) == 0 }
    };
    address >= SMALL && there(address) && (address / SMALL == last / SMALL || there(last))
}

/// Memory that can be mapped at several addresses: a file that lives in memory only, committed where touched.
pub struct Pages {
    file: File,
    size: usize,
}

/// A process, its file, and what tells the file from a later one.
pub type FileName = (i32, i32, u64);

/// A file that a process has open, opened once more.
fn open(process: i32, file: i32) -> Option<File> {
    File::options().read(true).write(true).open(format!("/proc/{process}/fd/{file}")).ok()
}

/// Another process, to learn of its end, where the kernel tells.
pub struct Process(Option<File>);

impl Process {
    /// None: it has ended.
    pub fn new(id: i32) -> Option<Process> {
        let file = unsafe { libc::syscall(libc::SYS_pidfd_open, id, 0) } as i32;
        match file {
            0.. => Some(Process(Some(unsafe { File::from_raw_fd(file) }))),
            _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) => None,
            _ => Some(Process(None)),
        }
    }

    pub fn has_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|file| {
            let mut watched = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            unsafe { libc::poll(&mut watched, 1, 0) == 1 }
        })
    }
}

impl Pages {
    pub fn new() -> Option<Pages> {
        let file = unsafe { libc::memfd_create(c"tcuda-sim".as_ptr(), libc::MFD_CLOEXEC) };
        (file >= 0).then(|| Pages { file: unsafe { File::from_raw_fd(file) }, size: 0 })
    }

    /// Makes the file at least so long.
    pub fn reach(&mut self, size: usize) -> bool {
        const STEP: usize = 1 << 30;
        if size > self.size {
            let longer = size.next_multiple_of(STEP);
            if self.file.set_len(longer as u64).is_err() {
                return false;
            }
            self.size = longer;
        }
        true
    }

    /// Over reserved addresses, without access.
    pub fn map(&self, address: Address, size: usize, offset: usize) -> bool {
        map(address, size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, self.file.as_raw_fd(), offset).is_some()
    }

    /// Over reserved addresses or memory, to read and write.
    pub fn put_over(&self, address: Address, size: usize) -> bool {
        map(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, self.file.as_raw_fd(), 0).is_some()
    }

    /// Writes what is at an address to the file's start. What is zero is left out, and takes no memory.
    pub fn fill(&mut self, address: Address, size: usize) -> bool {
        const STEP: usize = 64 << 10;
        self.reach(size)
            && (0..size).step_by(STEP).all(|at| {
                let bytes = unsafe { std::slice::from_raw_parts((address + at) as *const u8, STEP.min(size - at)) };
                bytes.iter().all(|byte| *byte == 0) || self.file.write_all_at(bytes, at as u64).is_ok()
            })
    }

    /// The same memory for another process, and a number with it: the position of the file, which is opened anew.
    pub fn ticket(&self, number: u64) -> Option<OwnedFd> {
        let mut file = open(std::process::id() as i32, self.file.as_raw_fd())?;
        file.seek(SeekFrom::Start(number)).ok()?;
        Some(file.into())
    }

    /// What a ticket stands for, and its number. None: it is none.
    pub fn from_ticket(ticket: BorrowedFd<'_>) -> Option<(Pages, u64)> {
        let mut file = File::from(ticket.try_clone_to_owned().ok()?);
        let number = file.stream_position().ok()?;
        let size = file.metadata().ok()?.len() as usize;
        Some((Pages { file, size }, number))
    }

    /// For `of_process`.
    pub fn name(&self) -> Option<FileName> {
        Some((std::process::id() as i32, self.file.as_raw_fd(), self.file.metadata().ok()?.ino()))
    }

    /// None: the process has ended, or gave the memory back.
    pub fn of_process((process, file, inode): FileName) -> Option<Pages> {
        let file = open(process, file)?;
        let found = file.metadata().ok()?;
        (found.ino() == inode).then_some(Pages { file, size: found.len() as usize })
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Gives the memory back; it reads as zero from now on.
    pub fn discard(&self, offset: usize, size: usize) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset as libc::off_t, size as libc::off_t) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terabyte_of_addresses_is_cheap_and_aligned() {
        let address = reserve(1 << 40, PAGE).unwrap();
        assert_eq!(address % PAGE, 0);
        assert!(commit(address + PAGE, PAGE));
        unsafe { *((address + PAGE) as *mut u8) = 7 };
        decommit(address + PAGE, PAGE);
        assert!(commit(address + PAGE, PAGE));
        assert_eq!(unsafe { *((address + PAGE) as *const u8) }, 0);
        release(address, 1 << 40);
    }

    #[test]
    fn wrong_pointers_are_seen() {
        let here = 0u64;
        assert!(is_mapped(std::ptr::from_ref(&here) as usize, 8));
        for wrong in [0, 1, 0x1000, usize::MAX - 3, 1 << 47, 0xdead_0000_0000_0000] {
            assert!(!is_mapped(wrong, 16), "{wrong:#x}");
        }
    }

    #[test]
    fn pages_are_shared_by_their_mappings() {
        let mut pages = Pages::new().unwrap();
        assert!(pages.reach(2 * PAGE));
        let space = reserve(2 * PAGE, PAGE).unwrap();
        assert!(pages.map(space, PAGE, PAGE) && pages.map(space + PAGE, PAGE, PAGE));
        assert!(protect(space, 2 * PAGE, Protection::ReadWrite));
        unsafe { *(space as *mut u8) = 9 };
        assert_eq!(unsafe { *((space + PAGE) as *const u8) }, 9);
        pages.discard(PAGE, PAGE);
        assert_eq!(unsafe { *((space + PAGE) as *const u8) }, 0);
        release(space, 2 * PAGE);
    }
}
