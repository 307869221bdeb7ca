//! # telemetry
//! Owns:   how devices are doing: load, temperature, power, clocks, memory of all processes; the last reading of each.
//! Uses:   memory, device, runtime, base.
//! Never:  makes a context, or a device current; asks twice for a reading that is young enough.
//! Locks:  MONITORS (held while NVML is looked up), then none; Snapshot::asking (held while NVML is asked) takes it. Readers take none.
//! Tests:  in the files, tests/fake_nvml.rs, tests/conformance/telemetry.rs, tests_c/test_telemetry.c.

mod snapshot;

use crate::base::{Result, Status};
use crate::memory::hooks;
use crate::runtime::monitor::{Monitor, Process, Quantity};
use crate::{device, runtime};
use parking_lot::Mutex;
use snapshot::{Snapshot, WORDS};
use std::fmt::Write;
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

/// What an out-of-memory error says of other processes is known here. Once, before anything else.
pub fn configure() {
    hooks::on_asked_for_processes(processes);
}

static MONITORS: Mutex<Vec<(i32, &'static Monitor)>> = Mutex::new(Vec::new());

/// Of a device by its index. Found once; a failure is not kept.
fn monitor(device: i32) -> Result<&'static Monitor> {
    let mut known = MONITORS.lock();
    if let Some((_, monitor)) = known.iter().find(|(d, _)| *d == device) {
        return Ok(monitor);
    }
    let monitor: &'static Monitor = Box::leak(Box::new(Monitor::of(runtime::runtime()?, device)?));
    known.push((device, monitor));
    Ok(monitor)
}

pub fn get(quantity: Quantity, device: i32) -> Result<i32> {
    monitor(device::index(device)?)?.get(quantity)
}

/// Bytes in use, of all processes and of the driver.
pub fn memory_used(device: i32) -> Result<u64> {
    Ok(monitor(device::index(device)?)?.memory()?.0)
}

pub fn processes(device: i32) -> Result<Vec<Process>> {
    monitor(device::index(device)?)?.processes()
}

/// torch's text.
pub fn list_processes(device: i32) -> Result<String> {
    const MIB: f64 = 1_048_576.0;
    let monitor = monitor(device::index(device)?)?;
    let processes = monitor.processes()?;
    let mut text = format!("GPU:{}", monitor.index()?);
    if processes.is_empty() {
        text.push_str("\nno processes are running");
    }
    for process in processes {
        let used = process.bytes.map_or_else(|| "unknown".into(), |bytes| format!("{:.3}", bytes as f64 / MIB));
        let _ = write!(text, "\nprocess {:>10} uses {used:>12} MB GPU memory", process.pid);
    }
    Ok(text)
}

/// All quantities at a moment. -1: the device does not tell, or not to this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// How long ago it was taken.
    pub age: Duration,
    pub memory_used: i64,
    pub memory_total: i64,
    /// The driver's number.
    pub index: i32,
    /// In the order of `Quantity::ALL`.
    values: [i32; Quantity::ALL.len()],
}

impl Reading {
    pub fn get(&self, quantity: Quantity) -> i32 {
        self.values[quantity as usize]
    }

    fn from_words(age: Duration, words: [i64; WORDS]) -> Reading {
        let mut values = [0; Quantity::ALL.len()];
        for (value, word) in values.iter_mut().zip(&words[3..]) {
            *value = *word as i32;
        }
        Reading { age, memory_used: words[0], memory_total: words[1], index: words[2] as i32, values }
    }
}

/// A reading that is younger than `max_age`, or that was asked for after this call came; a new one if there is none. Threads that come at the
/// same time share one.
pub fn read(device: i32, max_age: Duration) -> Result<Reading> {
    static SNAPSHOTS: OnceLock<Box<[Snapshot]>> = OnceLock::new();
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let device = device::index(device)?;
    let count = runtime::runtime()?.device_count as usize;
    let snapshot = &SNAPSHOTS.get_or_init(|| (0..count).map(|_| Snapshot::new()).collect())[device as usize];
    read_of(snapshot, max_age, || START.elapsed().as_nanos() as u64, || ask(monitor(device)?))
}

fn read_of(snapshot: &Snapshot, max_age: Duration, now: impl Fn() -> u64, ask: impl FnOnce() -> Result<[i64; WORDS]>) -> Result<Reading> {
    let good = |since: Option<u64>| {
        let (at, words) = snapshot.read()?;
        // Another thread may have taken it after this one looked at the clock.
        let age = Duration::from_nanos(now().saturating_sub(at));
        (age < max_age || since.is_some_and(|since| at > since)).then(|| Reading::from_words(age, words))
    };
    if let Some(reading) = good(None) {
        return Ok(reading);
    }
    let came = now();
    let asking = snapshot.asking.lock();
    if let Some(reading) = good(Some(came)) {
        return Ok(reading);
    }
    let at = now();
    let words = ask()?;
    snapshot.write(&asking, at, words);
    Ok(Reading::from_words(Duration::from_nanos(now().saturating_sub(at)), words))
}

fn ask(monitor: &Monitor) -> Result<[i64; WORDS]> {
    let (used, total) = told(monitor.memory())?.unwrap_or((u64::MAX, u64::MAX));
    let mut words = [used as i64, total as i64, told(monitor.index())?.map_or(-1, i64::from), 0, 0, 0, 0, 0, 0, 0];
    for (word, quantity) in words[3..].iter_mut().zip(Quantity::ALL) {
        *word = told(monitor.get(quantity))?.map_or(-1, i64::from);
    }
    Ok(words)
}

/// None: not supported, or not permitted.
fn told<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.status, Status::TCUDA_ERROR_NOT_SUPPORTED | Status::TCUDA_ERROR_SYSTEM) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Error;

    #[test]
    fn words_and_readings_are_the_same() {
        let reading = Reading::from_words(Duration::ZERO, [-1, 2, 3, 4, 5, 6, 7, 8, 9, -1]);
        assert_eq!((reading.memory_used, reading.memory_total, reading.index), (-1, 2, 3));
        assert_eq!(Quantity::ALL.map(|quantity| reading.get(quantity)), [4, 5, 6, 7, 8, 9, -1]);
    }

    /// The one that waited gets what was asked for after it came, and not what was on its way before.
    #[test]
    fn who_waits_for_a_new_one_shares_it() {
        use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
        let (snapshot, clock, asked) = (Snapshot::new(), AtomicU64::new(100), AtomicUsize::new(0));
        let read = |max_age| {
            let ask = || Ok([asked.fetch_add(1, SeqCst) as i64; WORDS]);
            read_of(&snapshot, max_age, || clock.fetch_add(1, SeqCst) + 1, ask).unwrap().memory_used
        };
        // Whoever holds the lock is asking, since a moment that the one who waits is before, or behind.
        for (shares, came) in [(true, 0), (false, 1000)] {
            let asking = snapshot.asking.lock();
            let at = clock.load(SeqCst) + 500;
            clock.fetch_add(came, SeqCst);
            std::thread::scope(|scope| {
                let before = (clock.load(SeqCst), asked.load(SeqCst));
                let waits = scope.spawn(|| read(Duration::ZERO));
                while clock.load(SeqCst) == before.0 {
                    std::thread::yield_now();
                }
                clock.fetch_add(2000, SeqCst);
                snapshot.write(&asking, at, [-5; WORDS]);
                drop(asking);
                let found = waits.join().unwrap();
                assert_eq!((found == -5, asked.load(SeqCst) - before.1), (shares, usize::from(!shares)));
            });
        }
        let before = asked.load(SeqCst);
        // One after the other, each asks.
        assert_ne!(read(Duration::ZERO), read(Duration::ZERO));
        assert_eq!(asked.load(SeqCst), before + 2);
        // A young one is given again.
        assert_eq!(read(Duration::from_secs(1)), before as i64 + 1);
    }

    #[test]
    fn what_is_not_told_is_no_failure() {
        assert_eq!(told(Ok(5)), Ok(Some(5)));
        assert_eq!(told::<i32>(Err(Error::not_supported("no"))), Ok(None));
        assert_eq!(told::<i32>(Err(Error::new(Status::TCUDA_ERROR_SYSTEM, "no"))), Ok(None));
        assert!(told::<i32>(Err(Error::new(Status::TCUDA_ERROR_CUDA, "lost"))).is_err());
    }
}
