//! An event that several processes see: how often it was recorded and how far the last records were reached, in a page that they share.

use super::super::table::IpcHandle;
use super::os::{self, Pages, Process};
use super::share::{Name, read_name, write_name};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// How soon what another process did is seen.
pub const POLL: Duration = Duration::from_micros(100);
const SIZE: usize = 4096;

pub struct Beacon {
    pages: Pages,
    at: usize,
    /// Whose event it is, if another process's.
    maker: Option<Process>,
}

impl Beacon {
    pub fn new() -> Option<Beacon> {
        let mut pages = Pages::new()?;
        pages.reach(SIZE).then_some(())?;
        Beacon::map(pages, None)
    }

    fn map(pages: Pages, maker: Option<Process>) -> Option<Beacon> {
        let at = os::reserve(SIZE, SIZE)?;
        // Dropped, it gives the address back.
        let beacon = Beacon { pages, at, maker };
        beacon.pages.put_over(at, SIZE).then_some(beacon)
    }

    pub fn handle(&self) -> Option<IpcHandle> {
        self.pages.name().map(|file| write_name(b"event", Name { file, device: 0, size: SIZE, offset: 0 }))
    }

    /// None: it is no event's handle, or the process has ended or destroyed the event.
    pub fn open(handle: &IpcHandle) -> Option<Beacon> {
        let name = read_name(b"event", handle)?;
        let maker = Process::new(name.file.0)?;
        Beacon::map(Pages::of_process(name.file).filter(|pages| pages.size() >= SIZE)?, Some(maker))
    }

    fn cell(&self, index: usize) -> &AtomicU64 {
        // The page is this process's to read and write for as long as `self` lives; its first bytes are numbers, aligned.
        unsafe { &*(self.at as *const AtomicU64).add(index) }
    }

    /// The number of a record that begins now.
    pub fn record(&self) -> u64 {
        self.cell(0).fetch_add(1, SeqCst) + 1
    }

    pub fn reach(&self, count: u64) {
        self.cell(1).fetch_max(count, SeqCst);
    }

    /// The last record; 0: none yet.
    pub fn count(&self) -> u64 {
        self.cell(0).load(SeqCst)
    }

    /// What a process that has ended recorded is reached: nobody waits for ever.
    pub fn has_reached(&self, count: u64) -> bool {
        self.cell(1).load(SeqCst) >= count || self.maker.as_ref().is_some_and(Process::has_ended)
    }
}

impl Drop for Beacon {
    fn drop(&mut self) {
        os::release(self.at, SIZE);
    }
}
