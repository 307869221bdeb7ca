//! What the caches hold, and what happened there as far as it was recorded (torch.cuda.memory._snapshot): taken of each device at one
//! moment, then anybody's to read, and to write as pickle, JSON or a page.

mod check;
mod form;
mod json;
mod page;
mod pickle;

use super::cache::picture::Picture;
pub use super::cache::picture::{Block, Segment, Use};
pub use super::history::{Action, Entry, Trace};
use super::limits;
use super::options::Options;
use super::stats::Stats;
use crate::base::{Error, Result, Status, process, room, spared};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const WHAT: &str = "a snapshot";

/// So that two threads may write the same file.
static PARTS: AtomicU64 = AtomicU64::new(0);

pub struct Snapshot {
    /// By device, then by address.
    pub segments: Vec<Segment>,
    /// By segment, then by address.
    pub blocks: Vec<Block>,
    /// One for each device, also for those that were not asked for.
    pub traces: Vec<Trace>,
    pub stats: Vec<Stats>,
    pub options: Options,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Format {
    /// Protocol 2, as torch's viewers read it.
    Pickle = 1,
    Json = 2,
    /// A page that shows it in any browser.
    Html = 3,
}

impl Format {
    pub fn of(number: i32) -> Result<Format> {
        let known = [Format::Pickle, Format::Json, Format::Html].into_iter().find(|format| *format as i32 == number);
        known.ok_or_else(|| {
            Error::invalid_argument(format!("There is no format {number}: it can be pickle (1), JSON (2) or a page of HTML (3)."))
        })
    }

    /// By how a file's name ends.
    fn of_file(path: &str) -> Format {
        match Path::new(path).extension().and_then(|ending| ending.to_str()) {
            Some("json") => Format::Json,
            Some("html" | "htm") => Format::Html,
            _ => Format::Pickle,
        }
    }
}

impl Snapshot {
    /// `pictures`: of the devices asked for, one after the other.
    pub(super) fn new(devices: usize, pictures: impl Iterator<Item = Result<(usize, Picture)>>) -> Result<Snapshot> {
        let mut snapshot = Snapshot {
            segments: Vec::new(),
            blocks: Vec::new(),
            traces: (0..devices).map(|_| Trace::default()).collect(),
            stats: vec![Stats::default(); devices],
            options: limits::in_effect(),
        };
        for picture in pictures {
            let (device, picture) = picture?;
            snapshot.traces[device] = picture.history.finish()?;
            room::reserve(&mut snapshot.segments, picture.segments.len(), WHAT)?;
            room::reserve(&mut snapshot.blocks, picture.blocks.len(), WHAT)?;
            let before = snapshot.blocks.len();
            let moved = |segment: Segment| Segment { blocks: segment.blocks.start + before..segment.blocks.end + before, ..segment };
            snapshot.segments.extend(picture.segments.into_iter().map(moved));
            snapshot.blocks.extend(picture.blocks);
            snapshot.stats[device] = picture.stats;
        }
        Ok(snapshot)
    }

    fn blocks_of(&self, segment: &Segment) -> &[Block] {
        &self.blocks[segment.blocks.clone()]
    }

    pub fn bytes(&self, format: Format) -> Result<Vec<u8>> {
        let mut bytes = Bytes(Vec::new());
        self.write(format, &mut bytes).map_err(|error| unwritten(&error, "could not be written"))?;
        Ok(bytes.0)
    }

    fn write(&self, format: Format, out: &mut dyn Write) -> io::Result<()> {
        match format {
            Format::Pickle => {
                let mut pickle = pickle::Pickle::new(out)?;
                form::write(self, &mut pickle)?;
                pickle.finish()
            }
            Format::Json => form::write(self, &mut json::Json::new(out)),
            Format::Html => page::write(self, out),
        }
    }

    /// The whole file, or none: it gets its name when it is complete. What is no file, such as a pipe, is written to as it is, and so is what the
    /// process has open.
    pub fn save(&self, path: &str) -> Result<()> {
        let format = Format::of_file(path);
        let write = |file: File| {
            const BUFFER: usize = 1 << 20;
            room::check(BUFFER, WHAT).map_err(|_| io::ErrorKind::OutOfMemory)?;
            let mut out = BufWriter::with_capacity(BUFFER, file);
            self.write(format, &mut out)?;
            out.into_inner().map(drop).map_err(io::IntoInnerError::into_error)
        };
        let there = fs::metadata(path);
        let written = match (&there, led_to(Path::new(path))) {
            (Ok(there), _) if !there.is_file() => spared::sigpipe(|| File::options().write(true).open(path).and_then(write)),
            (_, Led::Open(number)) => process::open_file(number).and_then(write),
            (_, Led::To(place)) => {
                // A name as long as may be leaves no room for more.
                let part = format!(".tcuda-{}-{}.part", std::process::id(), PARTS.fetch_add(1, Ordering::Relaxed));
                let part = place.with_file_name(part);
                let made = File::create(&part).and_then(|file| match &there {
                    Ok(there) => file.set_permissions(there.permissions()).map(|()| file),
                    Err(_) => Ok(file),
                });
                let moved = made.and_then(write).and_then(|()| fs::rename(&part, place));
                moved.inspect_err(|_| drop(fs::remove_file(&part)))
            }
        };
        written.map_err(|error| unwritten(&error, format_args!("could not be written to '{path}'")))
    }
}

/// Where a path leads to by its links.
enum Led {
    /// Nothing may be there yet.
    To(PathBuf),
    /// What the process has open: opened by that name it would be written from its beginning.
    Open(RawFd),
}

fn led_to(path: &Path) -> Led {
    /// As the system has it: then it goes round.
    const LINKS: usize = 40;
    let mut place = path.to_path_buf();
    for _ in 0..LINKS {
        if let Some(number) = descriptor(&place) {
            return Led::Open(number);
        }
        match fs::read_link(&place) {
            Ok(target) => place = place.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => break,
        }
    }
    Led::To(place)
}

fn descriptor(place: &Path) -> Option<RawFd> {
    let own = format!("/proc/{}/fd", std::process::id());
    let folder = place.parent()?.to_str()?;
    let is_of_open = ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd", &own].contains(&folder);
    if is_of_open { place.file_name()?.to_str()?.parse().ok() } else { None }
}

/// What is written, as far as the host has memory.
struct Bytes(Vec<u8>);

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_reserve(bytes.len())?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn unwritten(error: &io::Error, what: impl Display) -> Error {
    let status = match error.kind() {
        io::ErrorKind::OutOfMemory => Status::TCUDA_ERROR_OUT_OF_HOST_MEMORY,
        _ => Status::TCUDA_ERROR_SYSTEM,
    };
    Error::new(status, format!("The snapshot {what}: {error}.")).with_native(error.raw_os_error().unwrap_or(0))
}
