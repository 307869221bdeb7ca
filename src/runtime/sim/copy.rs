//! Copies and fills: what CUDA checks when they are asked for, and what is checked again when the stream comes to them.

use super::super::table::{Address, Code, RawStream, code};
use super::Sim;
use super::memory::{By, Place, Span};
use super::os;
use super::scheduler::Now;
use super::stream::Work;

/// `height` rows of `width` bytes.
#[derive(Clone, Copy)]
pub struct Rows {
    pub to: Address,
    pub to_pitch: usize,
    pub from: Address,
    pub from_pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// Up to here the books may stay locked while bytes move.
const BRIEF: usize = 16 << 10;
/// Larger copies from pageable memory wait for the stream instead of being staged.
const STAGED: usize = 64 << 20;

/// cudaMemcpyKind 0 to 4: whether it calls the source, and the destination, the device's. None: whatever they are.
const KINDS: [Option<(bool, bool)>; 5] = [Some((false, false)), Some((false, true)), Some((true, false)), Some((true, true)), None];

impl Rows {
    pub fn line(to: Address, from: Address, size: usize) -> Rows {
        Rows { to, to_pitch: size, from, from_pitch: size, width: size, height: 1 }
    }

    /// From the first byte of the first row to the last of the last.
    fn extent(&self, pitch: usize) -> Result<usize, Code> {
        pitch.checked_mul(self.height - 1).and_then(|above| above.checked_add(self.width)).ok_or(code::INVALID_VALUE)
    }

    fn spans(&self) -> Result<[Span; 2], Code> {
        let from = Span { address: self.from, size: self.extent(self.from_pitch)?, write: false };
        Ok([from, Span { address: self.to, size: self.extent(self.to_pitch)?, write: true }])
    }

    /// # Safety
    /// Both sides are mapped, from begin to end.
    unsafe fn run(&self) {
        for row in 0..self.height {
            let from = (self.from + row * self.from_pitch) as *const u8;
            let to = (self.to + row * self.to_pitch) as *mut u8;
            unsafe { std::ptr::copy(from, to, self.width) };
        }
    }
}

/// A kind that contradicts where the memory lies. Pinned memory has an address on the device too.
fn contradicts(says_device: bool, place: Place) -> bool {
    match place {
        Place::Device(_) => !says_device,
        Place::Pageable => says_device,
        Place::Pinned => false,
    }
}

impl Sim {
    /// `blocks`: as cudaMemcpy, which returns when the host may go on; otherwise as cudaMemcpyAsync. What is mapped page by page has to be
    /// mapped for the device that is current, whosever the stream is.
    pub fn copy(&'static self, rows: Rows, kind: i32, raw: RawStream, blocks: bool) -> Result<(), Code> {
        let current = self.current()?;
        if rows.width > 0 && rows.height > 0 {
            for span in rows.spans()? {
                if !self.memory.is_mapped_for(span, current)? {
                    return Err(code::INVALID_VALUE);
                }
            }
        }
        self.copy_anywhere(rows, kind, raw, blocks)
    }

    fn copy_anywhere(&'static self, rows: Rows, kind: i32, raw: RawStream, blocks: bool) -> Result<(), Code> {
        let said = usize::try_from(kind).ok().and_then(|kind| KINDS.get(kind)).ok_or(21)?;
        let (stream, device) = self.stream_for_work(raw)?;
        if rows.width > rows.to_pitch || rows.width > rows.from_pitch {
            return Err(12);
        }
        if rows.width == 0 || rows.height == 0 {
            return Ok(());
        }
        let [from, to] = rows.spans()?;
        let (source, target) = (self.memory.find(from, device)?.place, self.memory.find(to, device)?.place);
        if said.is_some_and(|(from, to)| contradicts(from, source) || contradicts(to, target)) {
            return Err(code::INVALID_VALUE);
        }
        for (span, place) in [(from, source), (to, target)] {
            if place == Place::Pageable && !os::is_mapped(span.address, span.size) {
                return Err(code::INVALID_VALUE);
            }
        }
        let pageable = source == Place::Pageable || target == Place::Pageable;
        if pageable {
            // A graph would read or write it at a time when it may be gone.
            self.scheduler.line().state.refuse_captured(stream)?;
        }
        let on_host = |place| !matches!(place, Place::Device(_));
        let work = move |sim: &'static Sim| sim.run_copy(rows, source, target, device);
        let waits = target == Place::Pageable
            || (on_host(source) && on_host(target))
            || (blocks && (source == Place::Pinned || target == Place::Pinned))
            || self.options.launch_blocking;
        let Some(work) = self.keep(stream, "MEMCPY", work)? else { return Ok(()) };
        let point = match self.try_now(stream, device, work) {
            Now::Done(_) => None,
            Now::Later(_) if source == Place::Pageable && !waits && rows.width.saturating_mul(rows.height) <= STAGED => {
                Some(self.enqueue_staged(rows, target, stream, device)?)
            }
            Now::Later(work) => {
                let point = self.enqueue(stream, Work::Task(Box::new(work)), Vec::new())?;
                if source == Place::Pageable {
                    self.wait_for(&[point]);
                }
                Some(point)
            }
        };
        if waits || blocks {
            if let Some(point) = point.filter(|_| waits) {
                self.wait_for(&[point]);
            }
            self.devices[device].check()?;
        }
        Ok(())
    }

    fn run_copy(&'static self, rows: Rows, source: Place, target: Place, device: usize) -> Result<(), Code> {
        let [from, to] = rows.spans()?;
        // Only what the simulation knows can be checked; pageable memory is the caller's, who waits.
        let known: &[Span] = match (source, target) {
            (Place::Pageable, Place::Pageable) => &[],
            (Place::Pageable, _) => &[to],
            (_, Place::Pageable) => &[from],
            _ => &[from, to],
        };
        let brief = rows.width * rows.height <= BRIEF && !known.is_empty();
        self.memory.touch(known, By::Copy(device), brief, || unsafe { rows.run() })
    }

    /// The source is read now, the rest happens when the stream comes to it.
    fn enqueue_staged(&'static self, rows: Rows, target: Place, stream: u64, device: usize) -> Result<super::stream::Point, Code> {
        let mut stage = Vec::new();
        stage.try_reserve_exact(rows.width * rows.height).map_err(|_| code::OUT_OF_MEMORY)?;
        for row in 0..rows.height {
            let from = (rows.from + row * rows.from_pitch) as *const u8;
            stage.extend_from_slice(unsafe { std::slice::from_raw_parts(from, rows.width) });
        }
        let task = move |sim: &'static Sim| {
            let staged = Rows { from: stage.as_ptr() as Address, from_pitch: rows.width, ..rows };
            sim.run_copy(staged, Place::Pageable, target, device)
        };
        self.enqueue(stream, Work::Task(Box::new(task)), Vec::new())
    }

    /// Between devices, each side where it is said to lie; works without peer access.
    pub fn copy_peer(&'static self, to: (Address, i32), from: (Address, i32), size: usize, raw: RawStream) -> Result<(), Code> {
        for (address, device) in [to, from] {
            self.device(device)?;
            let span = Span { address, size, write: false };
            if size > 0 && self.memory.find(span, 0)?.place != Place::Device(device as usize) {
                return Err(code::INVALID_VALUE);
            }
        }
        self.copy_anywhere(Rows::line(to.0, from.0, size), 4, raw, false)
    }

    pub fn fill(&'static self, address: Address, value: i32, size: usize, raw: RawStream, blocks: bool) -> Result<(), Code> {
        let (stream, device) = self.stream_for_work(raw)?;
        if size == 0 {
            return Ok(());
        }
        let span = Span { address, size, write: true };
        let found = self.memory.find(span, device)?;
        if !found.ours {
            return Err(code::INVALID_VALUE);
        }
        let point = self.submit(stream, device, "MEMSET", move |sim| {
            sim.memory.touch(&[span], By::Kernel(device), size <= BRIEF, || unsafe {
                std::ptr::write_bytes(address as *mut u8, value as u8, size);
            })
        })?;
        // Of memory on a device even cudaMemset does not wait for the end.
        let Some(point) = point else { return Ok(()) };
        let waits = self.options.launch_blocking || (blocks && found.place == Place::Pinned);
        if waits {
            self.wait_for(&[point]);
        }
        if waits || blocks { self.devices[device].check() } else { Ok(()) }
    }
}
