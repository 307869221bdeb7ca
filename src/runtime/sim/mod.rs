//! # sim
//! Owns:   the simulated device: a machine of H100s on the CPU that keeps CUDA's rules, and catches what a real one leaves undefined.
//! Uses:   base, the table.
//! Never:  runs a CUDA binary; knows anything of tcuda above the table, except the kernels' twins that `launch` is given.
//! Locks:  scheduler::Line and memory::Books, never one inside the other; fault's list alone; a rank's `last`, then the Line; its `mesh`, then the Books.
//! Tests:  in the files, tests.rs.
//!
//! ```text
//! entry       the table's functions           launch      twins of tcuda's kernels
//! copy  event  scheduler                      fault       faults and counts
//! capture  graph  green                       thread      what each thread has
//! stream      queues of work
//! memory vmm host small peer mem_pool         device      what it looks like
//! share  beacon                               memory and events of several processes
//! os          pages                           shuffle     the seeded order
//! monitor     load and temperature            live        what there is
//! compiler    of run-time sources, by the host's C++ compiler
//! rank        of a communicator               mesh, fold  its sockets, its sums
//! ```
//!
//! Without a seed an idle stream does its work at once on the calling thread, except host functions. Work that has to wait, and all work
//! under a seed, is done by threads; so are launches of graphs.

mod beacon;
mod capture;
pub mod compiler;
mod copy;
mod device;
mod entry;
mod errors;
mod event;
mod fault;
mod fold;
mod graph;
mod green;
mod host;
mod live;
mod mem_pool;
mod memory;
mod mesh;
mod monitor;
mod options;
mod os;
mod peer;
pub mod rank;
mod scheduler;
mod share;
mod shuffle;
mod small;
mod stream;
#[cfg(test)]
mod tests;
mod thread;
mod vmm;

pub use live::Live;
pub use options::Options;

use super::api::Runtime;
use super::kernels::Access;
use super::select;
use super::table::{Address, Code, RawStream, Table, code, slots};
use crate::base::{Error, Result, Status};
use capture::Action;
use device::Device;
use fault::{Faults, Slot};
use memory::{By, Memory, Span};
use once_cell::sync::OnceCell;
use scheduler::Scheduler;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use stream::Work;

/// Of the runtime and of the driver: CUDA 13.0.
const VERSION: i32 = 13_000;

/// A simulated machine. It lives until the process ends.
pub struct Sim {
    /// Not 0; threads know by it which machine their state belongs to.
    id: usize,
    options: Options,
    devices: Vec<Device>,
    memory: Memory,
    scheduler: Scheduler,
    faults: Faults,
}

static GLOBAL: OnceCell<&'static Sim> = OnceCell::new();

fn global() -> Option<&'static Sim> {
    GLOBAL.get().copied()
}

/// Starts the simulated machine; `why` ends the sentence that says so.
pub fn open(why: &str) -> Result<Runtime> {
    let sim = GLOBAL.get_or_try_init(|| {
        let options = Options::read()?;
        if options.devices.is_empty() {
            return Err(Error::new(
                Status::TCUDA_ERROR_NO_DEVICE,
                "CUDA_VISIBLE_DEVICES leaves none of the simulated devices visible. Unset it, or name numbers below TCUDA_SIM_DEVICES.",
            ));
        }
        Ok(Sim::new(options))
    })?;
    let count = sim.devices.len();
    Ok(Runtime {
        table: table(),
        name: "sim",
        reason: format!("{count} simulated device{} on the CPU: {why}", if count == 1 { "" } else { "s" }),
        version: VERSION,
        driver_version: VERSION,
        device_count: count as i32,
    })
}

macro_rules! fill {
    (
        runtime { $($required:ident($($ra:tt)*);)* }
        optional { $($optional:ident($($oa:tt)*);)* }
        driver { $($driver:ident($($da:tt)*);)* }
    ) => {
        Table {
            $($required: entry::$required,)*
            $($optional: Some(entry::$optional),)*
            $($driver: Some(entry::$driver),)*
            cudaGetErrorName: entry::cudaGetErrorName,
            cudaGetErrorString: entry::cudaGetErrorString,
        }
    };
}

fn table() -> Table {
    slots!(fill)
}

/// The machine in use. Starts the backend if need be; an error if that is another one.
pub fn machine() -> Result<&'static Sim> {
    let runtime = select::runtime()?;
    global().filter(|_| runtime.name == "sim").ok_or_else(|| {
        Error::not_supported(format!(
            "Only the simulated device can do this, and the backend in use is '{}'. Set TCUDA_BACKEND=sim.",
            runtime.name
        ))
    })
}

/// Enqueues host work that stands for a kernel, once or in each replay of a graph, on a stream of the current device. It may touch
/// `accesses` and nothing else.
pub fn launch(stream: RawStream, work: impl Fn() + Send + Sync + 'static, accesses: &[Access]) -> Result<()> {
    let runtime = select::runtime()?;
    let spans = accesses.iter().map(|access| Span { address: access.address, size: access.size, write: access.write }).collect();
    let sim = machine()?;
    runtime.check("cuLaunchKernel", sim.call(Slot::cuLaunchKernel, |sim| sim.launch(stream, work, spans)))
}

impl Sim {
    pub fn new(options: Options) -> &'static Sim {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let count = options.devices.len();
        let peers = peer::Peers::new(options.peers.clone());
        Box::leak(Box::new(Sim {
            id: NEXT.fetch_add(1, Relaxed),
            devices: options.devices.iter().map(|number| Device::new(*number)).collect(),
            memory: Memory::new(count, options.memory, peers),
            scheduler: Scheduler::new(count, options.seed),
            faults: Faults::new(),
            options,
        }))
    }

    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The calling thread's, without a call that counts.
    pub fn current_device(&self) -> usize {
        thread::current(self)
    }

    /// The total that a device says it has.
    pub fn memory_of_each(&self) -> usize {
        self.options.memory
    }

    /// Lowers or raises what a device's memory can hold; what is allocated stays.
    pub fn set_memory(&self, device: usize, bytes: usize) {
        self.memory.set_limit(device, bytes);
    }

    /// One call of a slot: counted, refused where it must be, with CUDA's last error kept.
    fn call(&'static self, slot: Slot, body: impl FnOnce(&'static Sim) -> Result<(), Code>) -> Code {
        let faults = || self.faults.pass(slot).inspect_err(|code| self.strike(*code));
        let outcome = thread::enter(self).and_then(|()| faults()).and_then(|()| self.pass_captures(slot)).and_then(|()| body(self));
        let code = outcome.err().unwrap_or(code::SUCCESS);
        if code != code::SUCCESS && !slot.is_driver() {
            thread::set_last(code);
        }
        code
    }

    /// As on a GPU, what CUDA cannot recover from stays. The unknown error may be none of the device's.
    #[cold]
    fn strike(&'static self, code: Code) {
        if code::is_sticky(code) && code != code::UNKNOWN {
            self.lose(thread::device(), code);
        }
    }

    /// The thread's device, with its context. Err: it is lost.
    fn current(&self) -> Result<usize, Code> {
        let device = thread::device();
        self.devices[device].activate()?;
        Ok(device)
    }

    /// Waits for stream-ordered memory too, which CUDA does not promise: a program must not count on it.
    fn free(&'static self, address: Address) -> Result<(), Code> {
        if address != 0 {
            let device = self.memory.block_device(address).ok_or(code::INVALID_VALUE)?;
            self.wait_for_device(device);
            self.memory.free(address)?;
            self.devices[device].check()?;
        }
        self.current().map(|_| ())
    }

    fn give_host(&'static self, address: Address, registered: bool) -> Result<(), Code> {
        self.memory.host_check(address, registered)?;
        for device in 0..self.devices.len() {
            self.synchronize_device(device);
        }
        self.memory.host_release(address, registered)?;
        self.current().map(|_| ())
    }

    fn launch(&'static self, raw: RawStream, work: impl Fn() + Send + Sync + 'static, spans: Vec<Span>) -> Result<(), Code> {
        let current = self.current()?;
        let (stream, device) = self.stream_for_work(raw)?;
        if device != current {
            return Err(code::INVALID_HANDLE);
        }
        let stale = self.memory.was_freed(&spans);
        let point = self.submit(stream, device, "KERNEL", move |sim| {
            if stale { Err(code::ILLEGAL_ADDRESS) } else { sim.memory.touch(&spans, By::Kernel(device), false, &work) }
        })?;
        if self.options.launch_blocking
            && let Some(point) = point
        {
            self.wait_for(&[point]);
            self.devices[device].check()?;
        }
        Ok(())
    }

    /// Keeps a stream busy for a time that nothing but the loss of its device shortens. Answers CUDA's codes; no fault strikes it.
    pub fn delay(&'static self, raw: RawStream, duration: Duration) -> Code {
        let enqueue = || {
            thread::enter(self)?;
            let (stream, _) = self.stream_for_work(raw)?;
            if self.keep_action(stream, "DELAY", || Action::Delay(duration))? {
                return Ok(());
            }
            self.enqueue(stream, Work::Delay(duration), Vec::new()).map(|_| ())
        };
        enqueue().err().unwrap_or(code::SUCCESS)
    }
}
