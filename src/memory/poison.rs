//! Shadow mode, for finding errors: `TCUDA_MEMORY_POISON=1`. A block that is freed is filled with a pattern in the order of its stream.
//! When its memory is handed out again, or goes back to the driver, the pattern is checked: whoever changed it wrote after the free. A
//! block that is handed out is filled with another pattern, so that reads of what nobody wrote show. Slow: an allocation that reuses
//! memory waits for its stream.
//!
//! What cannot be filled in order is left out: blocks freed while their stream is captured, inside a host function, or when it is gone.

use crate::base::sync_debug::{Kind, blocking};
use crate::base::{Result, config, insist, log, watch};
use crate::device;
use crate::runtime::{self, Address};
use crate::stream::{self, Stream};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const VARIABLE: &str = "TCUDA_MEMORY_POISON";
/// What freed memory holds.
pub const FREED: u8 = 0xDB;
/// What new blocks hold: not a number in every floating-point type, -1 in the integers.
pub const FRESH: u8 = 0xFF;

static ON: AtomicBool = AtomicBool::new(false);

/// Free memory that was filled, by its start. What is handed out leaves the list before its new owner can write to it.
static FILLED: Mutex<BTreeMap<Address, Filled>> = Mutex::new(BTreeMap::new());
/// Blocks on their way back.
static FREEING: Mutex<BTreeSet<Address>> = Mutex::new(BTreeSet::new());
static FREED_ONE: Condvar = Condvar::new();
static REPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static FOUND: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Filled {
    end: Address,
    /// Of the fill; never used again.
    serial: u64,
    /// The block that was freed, of which this may be a part, its size and its stream.
    block: Address,
    size: usize,
    stream: Stream,
}

/// What was changed in a stretch.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Damage {
    first: Address,
    last: Address,
    bytes: usize,
    value: u8,
}

/// One plain load: asked on the way to every block.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

pub fn is_locked() -> bool {
    FILLED.is_locked()
}

/// Reads the variable. What is wrong with it is for the log, when there is a cache for who hears it.
pub fn configure() -> Option<String> {
    let text = config::get(VARIABLE);
    let on = text.as_deref() == Some("1");
    let mut filled = FILLED.lock();
    ON.store(on, Ordering::Relaxed);
    // What is handed out meanwhile is not taken out of it.
    if !on {
        filled.clear();
    }
    drop(filled);
    let wrong = text.filter(|text| text != "0" && !on)?;
    Some(format!("{VARIABLE} is '{wrong}'; it can be 0 or 1. It counts as 0."))
}

/// Blocks that were found written to after their free, on all devices since the start.
pub fn found() -> u64 {
    FOUND.load(Ordering::Relaxed)
}

/// A block was handed out, nobody knows of it yet: what it held since its free is looked at, unless its stream has ended meanwhile.
pub fn handed_out(address: Address, size: usize, stream: Option<Stream>) {
    let filled = take(address, address + size);
    if let Some(stream) = stream.filter(|stream| !stream.is_capturing().unwrap_or(true)) {
        for (start, filled) in filled {
            if let Some(damage) = examine(start, filled.end, stream) {
                report(&filled, damage, "when it was allocated again");
            }
        }
    }
}

/// Fills it for its owner. Until that is done no stream goes, or begins a capture.
pub fn freshen(address: Address, size: usize, stream: Stream) {
    // Best effort, as all of this: what ails the device shows in the program's own calls.
    fill_uncaptured(address, size, FRESH, stream);
}

/// Marks a block as on its way back, once no other thread brings one back to this address: until that is done the block is free for others
/// already, who may free it again.
pub fn begin_free(address: Address) -> Freeing {
    let mut freeing = FREEING.lock();
    while !freeing.insert(address) {
        FREED_ONE.wait(&mut freeing);
    }
    Freeing(address)
}

pub struct Freeing(Address);

impl Drop for Freeing {
    fn drop(&mut self) {
        FREEING.lock().remove(&self.0);
        FREED_ONE.notify_all();
    }
}

/// While no stream begins a capture. False: it was not done. A graph would do it at each replay.
fn fill_uncaptured(address: Address, size: usize, value: u8, stream: Stream) -> bool {
    !stream.is_capturing().unwrap_or(true) && fill(address, size, value, stream).is_ok()
}

/// A block is about to be free memory; all its uses are before `stream`'s next work. Until it is free no stream goes, or begins a capture.
pub fn freed(address: Address, size: usize, stream: Stream) {
    if fill_uncaptured(address, size, FREED, stream) {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let serial = LAST.fetch_add(1, Ordering::Relaxed);
        let mut filled = FILLED.lock();
        if is_on() {
            filled.insert(address, Filled { end: address + size, serial, block: address, size, stream });
        }
    }
}

/// The free did not happen after all.
pub fn not_freed(address: Address, size: usize) {
    take(address, address + size);
}

/// Free memory, with nothing under way there, leaves its place: to the driver or to another address.
pub fn leaves(device: i32, start: Address, size: usize) {
    if !is_on() {
        return;
    }
    for (start, filled) in take(start, start + size) {
        if let Some(damage) = examine_aside(device, start, filled.end) {
            report(&filled, damage, "when it went back to the driver");
        }
    }
}

/// What is watched on a device.
pub fn watched(device: i32) -> Vec<(Address, Filled)> {
    FILLED.lock().iter().filter(|(_, filled)| filled.stream.device == device).map(|(at, filled)| (*at, *filled)).collect()
}

/// Checks free memory that the device has filled by now, as far as it is free still. It stays mapped meanwhile.
pub fn check(device: i32, watched: Vec<(Address, Filled)>) {
    let is_there = |start: Address, filled: &Filled| FILLED.lock().get(&start) == Some(filled);
    for (start, filled) in watched {
        let damage = if is_there(start, &filled) { examine_aside(device, start, filled.end) } else { None };
        // What was handed out meanwhile was changed by its owner.
        if let Some(damage) = damage.filter(|_| is_there(start, &filled)) {
            take(start, filled.end);
            report(&filled, damage, "when free memory was checked");
        }
    }
}

/// All memory of all devices is gone.
pub fn forget_all() {
    FILLED.lock().clear();
    FREEING.lock().clear();
}

/// Writes what was found to the log. No lock may be held.
pub fn tell() {
    let reports = std::mem::take(&mut *REPORTS.lock());
    reports.iter().for_each(|text| log::write(log::Level::Error, text));
}

/// Takes a stretch out of the list; what lies outside stays.
fn take(start: Address, end: Address) -> Vec<(Address, Filled)> {
    let mut list = FILLED.lock();
    let first = list.range(..start).next_back().filter(|(_, filled)| filled.end > start).map_or(start, |(at, _)| *at);
    let touched: Vec<_> = list.range(first..end).map(|(at, filled)| (*at, *filled)).collect();
    let mut taken = Vec::with_capacity(touched.len());
    for (at, filled) in touched {
        list.remove(&at);
        if at < start {
            list.insert(at, Filled { end: start, ..filled });
        }
        if filled.end > end {
            list.insert(end, filled);
        }
        taken.push((at.max(start), Filled { end: filled.end.min(end), ..filled }));
    }
    taken
}

fn fill(address: Address, size: usize, value: u8, stream: Stream) -> Result<()> {
    let entered = stream.enter()?;
    watch::unseen(|| entered.runtime.memset_async(address, i32::from(value), size, entered.raw))
}

/// Looks at memory on a stream of its own, which waits for nobody else.
fn examine_aside(device: i32, start: Address, end: Address) -> Option<Damage> {
    let stream = stream::create(device, 0).ok()?;
    let damage = examine(start, end, stream);
    // The memory may be that of a graph, which is locked.
    let _ = insist(|| stream::destroy_unheard(stream));
    damage
}

/// What differs from the pattern, after the work of the stream so far. None also where nobody can look.
fn examine(start: Address, end: Address, stream: Stream) -> Option<Damage> {
    const CHUNK: usize = 4 << 20;
    const FEW: usize = 1 << 12;
    let mut damage: Option<Damage> = None;
    let mut bytes = vec![0; CHUNK.min(end - start)];
    let mut at = start;
    while at < end {
        let part = &mut bytes[..CHUNK.min(end - at)];
        read(at, part, stream).ok()?;
        // Most of it is as it was, which many bytes at a time tell.
        let differs = |few: &&[u8]| few.iter().fold(0, |found, byte| found | (byte ^ FREED)) != 0;
        let changed = part.chunks(FEW).enumerate().filter(|(_, few)| differs(few));
        let bytes = changed.flat_map(|(nth, few)| few.iter().enumerate().map(move |(offset, byte)| (nth * FEW + offset, byte)));
        for (offset, byte) in bytes.filter(|(_, byte)| **byte != FREED) {
            let here = at + offset;
            let damage = damage.get_or_insert(Damage { first: here, last: here, bytes: 0, value: *byte });
            damage.last = here;
            damage.bytes += 1;
        }
        at += part.len();
    }
    damage
}

fn read(from: Address, to: &mut [u8], stream: Stream) -> Result<()> {
    // A capture of another thread must not end by this.
    runtime::runtime()?.outside_capture(|| {
        let entered = stream.enter_current()?;
        blocking("cudaMemcpyAsync, cudaStreamSynchronize", Kind::Wait, || {
            watch::unseen(|| entered.runtime.memcpy_async(to.as_mut_ptr() as Address, from, to.len(), entered.raw))?;
            // If this fails the device is lost, and writes nothing any more.
            entered.runtime.stream_synchronize(entered.raw).map_err(device::blame(stream.device))
        })
    })
}

fn report(filled: &Filled, damage: Damage, when: &str) {
    FOUND.fetch_add(1, Ordering::Relaxed);
    REPORTS.lock().push(describe(filled, damage, when));
}

fn describe(filled: &Filled, damage: Damage, when: &str) -> String {
    let Filled { block, size, stream, .. } = *filled;
    let (first, last) = (damage.first - block, damage.last - block);
    format!(
        "Write after free on device {}: the block at 0x{block:x} of {size} bytes, freed on stream 0x{:x}, was written to afterwards: {} bytes \
         between offsets {first} and {last}, the first is now 0x{:02x}. Found {when}.",
        stream.device,
        stream::handle_of(stream),
        damage.bytes,
        damage.value
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_taken_out_of_what_it_touches() {
        let base = 0x5c00_0000_0000;
        let stream = Stream { device: 7, raw: 0x9999 };
        let filled = |start: Address, end: Address| (start, Filled { end, serial: 1, block: start, size: end - start, stream });
        let put = |(start, filled)| assert_eq!(FILLED.lock().insert(start, filled), None);
        put(filled(base, base + 4096));
        put(filled(base + 4096, base + 8192));
        put(filled(base + 16384, base + 20480));
        let part = |start, end, of: (Address, Filled)| (start, Filled { end, ..of.1 });
        let [a, b, c] = [filled(base, base + 4096), filled(base + 4096, base + 8192), filled(base + 16384, base + 20480)];
        assert_eq!(take(base + 8192, base + 16384), []);
        assert_eq!(take(base + 512, base + 1024), [part(base + 512, base + 1024, a)]);
        assert_eq!(take(base + 1536, base + 17408), [part(base + 1536, base + 4096, a), b, part(base + 16384, base + 17408, c)]);
        let left: Vec<_> = FILLED.lock().range(base..base + 32768).map(|(at, filled)| (*at, filled.end)).collect();
        assert_eq!(left, [(base, base + 512), (base + 1024, base + 1536), (base + 17408, base + 20480)]);
        take(base, base + 32768);
        assert!(FILLED.lock().range(base..base + 32768).next().is_none());
    }

    #[test]
    fn a_report_says_where() {
        let filled = Filled { end: 0x3000, serial: 1, block: 0x1000, size: 0x2000, stream: Stream { device: 1, raw: 0x5550 } };
        let text = describe(&filled, Damage { first: 0x1010, last: 0x1020, bytes: 3, value: 7 }, "now");
        for part in ["device 1", "0x1000 of 8192 bytes", "stream 0x5550", "3 bytes between offsets 16 and 32", "0x07"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn one_thread_at_a_time_frees_a_block() {
        static DONE: AtomicBool = AtomicBool::new(false);
        let first = begin_free(0x42);
        drop(begin_free(0x43));
        let second = std::thread::spawn(|| {
            let _freeing = begin_free(0x42);
            DONE.load(Ordering::SeqCst)
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        DONE.store(true, Ordering::SeqCst);
        drop(first);
        assert!(second.join().unwrap());
    }
}
