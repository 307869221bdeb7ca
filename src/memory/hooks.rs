//! What programs and higher rooms leave here: who is asked for memory when it runs short, and who is told when it ran out.

use crate::base::Result;
pub use crate::base::callbacks::List;
use crate::runtime::Address;
use crate::runtime::monitor::Process;
use crate::stream::Stream;
use std::sync::OnceLock;

/// What the cache does next if nobody gives memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Stage {
    /// Waits for other streams.
    Wait = 1,
    /// Gives all free memory back to the driver.
    GiveBack = 2,
    /// Fails.
    Fail = 3,
}

/// Memory runs short. All sizes in bytes.
pub struct Pressure {
    pub stage: Stage,
    pub stream: Stream,
    pub wanted: usize,
    pub memory: Memory,
}

/// Memory ran out.
pub struct OutOfMemory {
    pub device: i32,
    pub wanted: usize,
    pub memory: Memory,
    pub message: String,
}

/// How a device stands.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub total: usize,
    /// As the driver says; None: it does not.
    pub free: Option<usize>,
    pub allocated: usize,
    pub reserved: usize,
    pub limit: Option<usize>,
}

pub static PRESSURE: List<Pressure> = List::new();
pub static OBSERVERS: List<OutOfMemory> = List::new();

/// Knows which processes use a device.
type Witness = fn(i32) -> Result<Vec<Process>>;

static PROCESSES: OnceLock<Witness> = OnceLock::new();

pub fn on_asked_for_processes(who: Witness) {
    let _ = PROCESSES.set(who);
}

/// None are known where nobody tells. No lock may be held.
pub(super) fn processes(device: i32) -> Vec<Process> {
    PROCESSES.get().and_then(|ask| ask(device).ok()).unwrap_or_default()
}

/// Knows memory that comes from elsewhere: what it is, and what is to be called with it.
type Usher = fn(Address) -> Option<&'static str>;

static USHER: OnceLock<Usher> = OnceLock::new();

pub fn on_stranger(who: Usher) {
    let _ = USHER.set(who);
}

/// What is said of an address that is no block. None of this room's locks may be held.
pub fn stranger(address: Address) -> Option<&'static str> {
    USHER.get().and_then(|ask| ask(address))
}

pub(super) fn is_locked() -> bool {
    PRESSURE.is_locked() || OBSERVERS.is_locked()
}
