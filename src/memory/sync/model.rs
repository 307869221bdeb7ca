//! A machine on which the lock-free parts run step by step. shuttle decides before each atomic operation which thread goes on; here is
//! what it lacks, the memory of a real machine: a store waits in a buffer of its thread, where only that thread sees it, and reaches
//! memory at some later step. Stores to different places may overtake each other, but none a release store that follows it.
//! A read-modify-write works on memory; with release it empties its thread's buffer first. The barrier of `membarrier` empties all
//! buffers, which is what it does.
//!
//! What it does not have is a load that runs ahead of an earlier one, which x86 has not either; and the order in which the compiler puts
//! things, which `compiler_fence` sees to.
//!
//! Threads that run under no model find plain atomics here.

use crate::memory::cache::front::{NOBODY, Thread};
use parking_lot::lock_api;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{self as real, Ordering};

/// What may be wrong with the machine, so that a test sees what becomes of the code without it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    None,
    /// `barrier` does nothing.
    NoBarrier,
    /// A compare-and-swap is a load, a comparison and a store.
    TornExchange,
    /// A swap is a load and a store.
    TornSwap,
    /// Release stores are as relaxed ones.
    NoRelease,
}

/// A store that has not reached memory.
struct Store {
    place: usize,
    bits: u64,
    release: bool,
    write: unsafe fn(usize, u64),
}

struct Processor {
    stores: Vec<Store>,
    /// What `tls` keeps.
    thread: &'static Thread,
}

struct Machine {
    processors: Vec<Processor>,
    defect: Defect,
    random: u64,
    /// One of shuttle's own, which lets it choose a thread.
    point: Arc<shuttle::sync::atomic::AtomicBool>,
}

thread_local!(static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) });
thread_local!(static OUTSIDE: Cell<&'static Thread> = const { Cell::new(&NOBODY) });

impl Machine {
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % bound
    }

    fn processor(&mut self) -> &mut Processor {
        let number = usize::from(shuttle::current::me());
        while self.processors.len() <= number {
            self.processors.push(Processor { stores: Vec::new(), thread: &NOBODY });
        }
        &mut self.processors[number]
    }

    /// Some store of some thread reaches memory, or none.
    fn drift(&mut self) {
        let any = self.below(2 * self.processors.len().max(1));
        let waiting = self.processors.get(any).map_or(0, |processor| processor.stores.len());
        if waiting > 0 {
            let which = self.below(waiting);
            self.processors[any].reach(which);
        }
    }
}

impl Processor {
    /// The store gets to memory, if none has to come before.
    fn reach(&mut self, which: usize) {
        let Store { place, release, .. } = self.stores[which];
        if self.stores[..which].iter().all(|earlier| earlier.place != place && !release) {
            self.write(which);
        }
    }

    fn write(&mut self, which: usize) {
        let store = self.stores.remove(which);
        unsafe { (store.write)(store.place, store.bits) }
    }

    fn empty(&mut self) {
        while !self.stores.is_empty() {
            self.write(0);
        }
    }

    /// The stores to a place get to memory, and what has to come before.
    fn settle(&mut self, place: usize) {
        while let Some(which) = self.stores.iter().position(|store| store.place == place) {
            if self.stores[which].release {
                (0..=which).for_each(|_| self.write(0));
            } else {
                self.write(which);
            }
        }
    }
}

/// Does something with the machine on which the calling thread runs; None: on a real one.
fn with<T>(work: impl FnOnce(&mut Machine) -> T) -> Option<T> {
    if std::thread::panicking() {
        return None;
    }
    // A thread that ends has none either.
    MACHINE.try_with(|machine| machine.borrow_mut().as_mut().map(work)).ok().flatten()
}

/// Another thread may go on here.
fn step() {
    if let Some(point) = with(|machine| machine.point.clone()) {
        point.load(Ordering::Relaxed);
        with(Machine::drift);
    }
}

/// True: it was the model's.
pub fn barrier() -> bool {
    step();
    with(|machine| {
        if machine.defect != Defect::NoBarrier {
            machine.processors.iter_mut().for_each(Processor::empty);
        }
    })
    .is_some()
}

pub fn yield_now() {
    match with(Machine::drift) {
        Some(()) => shuttle::thread::yield_now(),
        None => std::thread::yield_now(),
    }
}

pub fn spin_loop() {
    yield_now();
}

/// The calling thread, for `tls`.
pub fn thread() -> &'static Thread {
    with(|machine| machine.processor().thread).unwrap_or_else(|| OUTSIDE.get())
}

pub fn set_thread(thread: &'static Thread) {
    if with(|machine| machine.processor().thread = thread).is_none() {
        OUTSIDE.set(thread);
    }
}

fn load(place: usize, memory: impl FnOnce() -> u64) -> u64 {
    step();
    let own = with(|machine| machine.processor().stores.iter().rev().find(|store| store.place == place).map(|store| store.bits));
    own.flatten().unwrap_or_else(memory)
}

fn store(place: usize, bits: u64, order: Ordering, write: unsafe fn(usize, u64)) {
    step();
    let kept = with(|machine| {
        let release = order != Ordering::Relaxed && machine.defect != Defect::NoRelease;
        machine.processor().stores.push(Store { place, bits, release, write });
    });
    if kept.is_none() {
        unsafe { write(place, bits) }
    }
}

/// Before a read-modify-write of a place. True: another thread comes between its parts, by a defect.
fn exchange(place: usize, order: Ordering, torn: Defect) -> bool {
    step();
    let is_torn = with(|machine| {
        let defect = machine.defect;
        let processor = machine.processor();
        processor.settle(place);
        if matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst) && defect != Defect::NoRelease {
            processor.empty();
        }
        defect == torn
    });
    is_torn.unwrap_or(false)
}

macro_rules! atomic {
    ($name:ident $(<$t:ident>)?, $value:ty, $bits:expr, $from:expr) => {
        #[repr(transparent)]
        pub struct $name $(<$t>)? (real::$name $(<$t>)?);

        impl $(<$t>)? Default for $name $(<$t>)? {
            fn default() -> Self {
                Self(Default::default())
            }
        }

        impl $(<$t>)? $name $(<$t>)? {
            #[allow(dead_code)]
            pub const fn new(value: $value) -> Self {
                Self(real::$name::new(value))
            }

            fn place(&self) -> usize {
                std::ptr::from_ref(self).addr()
            }

            pub fn load(&self, _order: Ordering) -> $value {
                $from(load(self.place(), || $bits(self.0.load(Ordering::SeqCst))))
            }

            pub fn store(&self, value: $value, order: Ordering) {
                unsafe fn write $(<$t>)? (place: usize, bits: u64) {
                    unsafe { &*std::ptr::with_exposed_provenance::<real::$name $(<$t>)?>(place) }.store($from(bits), Ordering::SeqCst);
                }
                std::ptr::from_ref(self).expose_provenance();
                store(self.place(), $bits(value), order, write $(::<$t>)?);
            }

            #[allow(dead_code)]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                if exchange(self.place(), order, Defect::TornSwap) {
                    let old = self.0.load(Ordering::SeqCst);
                    step();
                    self.0.store(value, Ordering::SeqCst);
                    return old;
                }
                self.0.swap(value, Ordering::SeqCst)
            }

            #[allow(dead_code)]
            pub fn compare_exchange(&self, from: $value, to: $value, order: Ordering, _failed: Ordering) -> Result<$value, $value> {
                if exchange(self.place(), order, Defect::TornExchange) {
                    let old = self.0.load(Ordering::SeqCst);
                    step();
                    if old != from {
                        return Err(old);
                    }
                    self.0.store(to, Ordering::SeqCst);
                    return Ok(old);
                }
                self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            }

            /// Now and then it fails where it need not.
            #[allow(dead_code)]
            pub fn compare_exchange_weak(&self, from: $value, to: $value, order: Ordering, failed: Ordering) -> Result<$value, $value> {
                if with(|machine| machine.below(8) == 0).unwrap_or(false) {
                    return Err(self.load(failed));
                }
                self.compare_exchange(from, to, order, failed)
            }
        }
    };
}

macro_rules! counter {
    ($name:ident, $value:ty) => {
        atomic!($name, $value, |value: $value| value as u64, |bits: u64| bits as $value);

        #[allow(dead_code)]
        impl $name {
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                exchange(self.place(), order, Defect::None);
                self.0.fetch_add(value, Ordering::SeqCst)
            }

            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                exchange(self.place(), order, Defect::None);
                self.0.fetch_sub(value, Ordering::SeqCst)
            }

            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                exchange(self.place(), order, Defect::None);
                self.0.fetch_max(value, Ordering::SeqCst)
            }

            pub fn fetch_update(
                &self,
                order: Ordering,
                _failed: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                exchange(self.place(), order, Defect::None);
                self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change)
            }
        }
    };
}

counter!(AtomicU32, u32);
counter!(AtomicU64, u64);
counter!(AtomicUsize, usize);
counter!(AtomicI64, i64);
atomic!(AtomicBool, bool, u64::from, |bits: u64| bits != 0);
atomic!(AtomicPtr<T>, *mut T, |value: *mut T| value.expose_provenance() as u64, |bits: u64| std::ptr::with_exposed_provenance_mut(
    bits as usize
));

/// A lock that lets others of the model go on while it is not to be had.
pub struct Raw(parking_lot::RawMutex);

unsafe impl lock_api::RawMutex for Raw {
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Raw = Raw(<parking_lot::RawMutex as lock_api::RawMutex>::INIT);
    type GuardMarker = lock_api::GuardSend;

    fn lock(&self) {
        step();
        if with(|_| ()).is_none() {
            return self.0.lock();
        }
        while !self.0.try_lock() {
            yield_now();
        }
    }

    fn try_lock(&self) -> bool {
        step();
        self.0.try_lock()
    }

    unsafe fn unlock(&self) {
        step();
        with(|machine| machine.processor().empty());
        unsafe { self.0.unlock() }
    }
}

pub type Mutex<T> = lock_api::Mutex<Raw, T>;
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Raw, T>;

/// Runs a program of threads (`shuttle::thread`) on the machine, each time in another order: half of the rounds with a thread chosen
/// anew at every step, half with few changes at chosen places (PCT). Gives the words of what failed.
pub fn explore(rounds: usize, seed: u64, defect: Defect, program: impl Fn() + Send + Sync + 'static) -> Result<(), String> {
    let mut config = shuttle::Config::new();
    config.stack_size = 256 << 10;
    config.failure_persistence = shuttle::FailurePersistence::None;
    config.silence_warnings = true;
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    let program = Arc::new(program);
    let halves: [Box<dyn Scheduler + Send>; 2] =
        [Box::new(RandomScheduler::new_from_seed(seed, rounds.div_ceil(2))), Box::new(PctScheduler::new_from_seed(seed, 3, rounds / 2))];
    for scheduler in halves {
        let program = program.clone();
        let run = || {
            shuttle::Runner::new(scheduler, config.clone()).run(move || {
                let random = shuttle::rand::Rng::r#gen::<u64>(&mut shuttle::rand::thread_rng()) | 1;
                let point = Arc::new(shuttle::sync::atomic::AtomicBool::new(false));
                MACHINE.set(Some(Machine { processors: Vec::new(), defect, random, point }));
                program();
                barrier();
                MACHINE.set(None);
            })
        };
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        MACHINE.set(None);
        if let Err(panic) = ran {
            let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            return Err(text.unwrap_or_default());
        }
    }
    Ok(())
}
