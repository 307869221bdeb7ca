//! Faults on demand, and how often each slot was called.

use super::super::table::{Code, Table, slots};
use crate::base::{Error, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

macro_rules! define_slots {
    (
        runtime { $($required:ident($($ra:tt)*);)* }
        optional { $($optional:ident($($oa:tt)*);)* }
        driver { $($driver:ident($($da:tt)*);)* }
    ) => {
        /// A function of the table.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Slot { $($required,)* $($optional,)* $($driver,)* }

        const NAMES: &[&str] = &[$(stringify!($required),)* $(stringify!($optional),)* $(stringify!($driver),)*];
    };
}
slots!(define_slots);

impl Slot {
    pub const COUNT: usize = NAMES.len();

    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    pub fn by_name(name: &str) -> Result<usize> {
        NAMES.iter().position(|known| *known == name).ok_or_else(|| {
            Error::invalid_argument(format!(
                "'{name}' is no function of the simulated device. Give the name of a CUDA function that tcuda calls (cudaMalloc, \
                 cuMemMap, cudaEventRecord), or NULL for any."
            ))
        })
    }

    /// The driver's functions leave the runtime's last error alone. They come last in the table.
    pub fn is_driver(self) -> bool {
        self as usize >= Self::COUNT - Table::DRIVER.len()
    }

    /// Asking for the last error is no work: no fault strikes it, and "any call" does not count it.
    fn is_work(slot: usize) -> bool {
        slot != Slot::cudaGetLastError as usize && slot != Slot::cudaPeekAtLastError as usize
    }
}

/// A fault that waits for its call.
struct Fault {
    /// None: any.
    slot: Option<usize>,
    /// How many calls are to pass, this one included. 0: every call fails.
    left: u64,
    code: Code,
}

pub struct Faults {
    armed: AtomicBool,
    faults: Mutex<Vec<Fault>>,
    calls: [AtomicU64; Slot::COUNT],
}

impl Faults {
    pub fn new() -> Faults {
        Faults { armed: AtomicBool::new(false), faults: Mutex::new(Vec::new()), calls: [const { AtomicU64::new(0) }; Slot::COUNT] }
    }

    /// Counts the call. Err: it is to fail, and to do nothing.
    #[inline]
    pub fn pass(&self, slot: Slot) -> Result<(), Code> {
        self.calls[slot as usize].fetch_add(1, Relaxed);
        if self.armed.load(Relaxed) { self.strike(slot as usize) } else { Ok(()) }
    }

    #[cold]
    fn strike(&self, slot: usize) -> Result<(), Code> {
        if !Slot::is_work(slot) {
            return Ok(());
        }
        let mut faults = self.faults.lock();
        let mut code = Ok(());
        faults.retain_mut(|fault| {
            if fault.slot.is_some_and(|only| only != slot) {
                return true;
            }
            match fault.left {
                0 => code = Err(fault.code),
                1 => {
                    code = Err(fault.code);
                    return false;
                }
                _ => fault.left -= 1,
            }
            true
        });
        self.armed.store(!faults.is_empty(), Relaxed);
        code
    }

    /// The `nth` call from now on (1: the next) fails with `code`; 0: every call until `clear`. Several faults may wait at once.
    pub fn fail_at(&self, call: Option<&str>, nth: u64, code: Code) -> Result<()> {
        if code <= 0 {
            return Err(Error::invalid_argument(format!(
                "The code of a fault is {code}, which is no error of CUDA. Give a code of the CUDA runtime: 2 is out of memory."
            )));
        }
        self.answer(call, nth, code)
    }

    /// From now on every call of a function answers success and does nothing, until `clear`: the defect of a device that lies.
    pub fn pretend(&self, call: &str) -> Result<()> {
        self.answer(Some(call), 0, 0)
    }

    fn answer(&self, call: Option<&str>, nth: u64, code: Code) -> Result<()> {
        let slot = call.map(Slot::by_name).transpose()?;
        let mut faults = self.faults.lock();
        faults.push(Fault { slot, left: nth, code });
        self.armed.store(true, Relaxed);
        Ok(())
    }

    pub fn clear(&self) {
        let mut faults = self.faults.lock();
        faults.clear();
        self.armed.store(false, Relaxed);
    }

    /// Calls since the start or the last reset: of one function, or of all but those that ask for the last error.
    pub fn count(&self, call: Option<&str>) -> Result<u64> {
        Ok(match call {
            Some(name) => self.calls[Slot::by_name(name)?].load(Relaxed),
            None => self.calls.iter().enumerate().filter(|(slot, _)| Slot::is_work(*slot)).map(|(_, calls)| calls.load(Relaxed)).sum(),
        })
    }

    pub fn reset_counts(&self) {
        for calls in &self.calls {
            calls.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_fails_once() {
        let faults = Faults::new();
        faults.fail_at(Some("cudaMalloc"), 2, 2).unwrap();
        faults.fail_at(None, 4, 999).unwrap();
        let calls = [Slot::cudaMalloc, Slot::cudaFree, Slot::cudaMalloc, Slot::cudaGetLastError, Slot::cudaFree, Slot::cudaMalloc];
        let codes: Vec<Code> = calls.map(|slot| faults.pass(slot).err().unwrap_or(0)).to_vec();
        assert_eq!(codes, [0, 0, 2, 0, 999, 0]);
        assert!(!faults.armed.load(Relaxed));
    }

    #[test]
    fn every_call_fails_until_cleared() {
        let faults = Faults::new();
        faults.fail_at(Some("cudaFree"), 0, 700).unwrap();
        assert_eq!((faults.pass(Slot::cudaFree), faults.pass(Slot::cudaFree)), (Err(700), Err(700)));
        assert_eq!(faults.pass(Slot::cudaMalloc), Ok(()));
        faults.clear();
        assert_eq!(faults.pass(Slot::cudaFree), Ok(()));
    }

    #[test]
    fn a_device_that_lies_does_nothing() {
        let faults = Faults::new();
        faults.pretend("cudaStreamQuery").unwrap();
        assert_eq!((faults.pass(Slot::cudaStreamQuery), faults.pass(Slot::cudaEventQuery)), (Err(0), Ok(())));
        assert_eq!(faults.pass(Slot::cudaStreamQuery), Err(0));
        faults.clear();
        assert_eq!(faults.pass(Slot::cudaStreamQuery), Ok(()));
    }

    #[test]
    fn calls_are_counted() {
        let faults = Faults::new();
        for slot in [Slot::cudaMalloc, Slot::cudaMalloc, Slot::cuMemMap, Slot::cudaGetLastError] {
            faults.pass(slot).unwrap();
        }
        assert_eq!(faults.count(Some("cudaMalloc")).unwrap(), 2);
        assert_eq!(faults.count(Some("cudaGetLastError")).unwrap(), 1);
        assert_eq!(faults.count(None).unwrap(), 3);
        faults.reset_counts();
        assert_eq!(faults.count(None).unwrap(), 0);
        assert!(faults.count(Some("cudaMallocManaged")).is_err());
        assert!(faults.fail_at(Some("malloc"), 1, 2).is_err());
        assert!(faults.fail_at(None, 1, 0).is_err());
    }

    #[test]
    fn the_drivers_functions_come_last() {
        assert!(Slot::cuMemMap.is_driver() && Slot::cuMemGetAllocationGranularity.is_driver() && Slot::cuLaunchKernel.is_driver());
        assert!(!Slot::cudaMalloc.is_driver() && !Slot::cudaStreamGetDevice.is_driver());
        assert_eq!(Slot::cuMemMap.name(), "cuMemMap");
    }
}
