//! Who tells how a device is doing: NVML for a real device, the simulated machine for its own. What is above asks for a quantity and does
//! not know which of the two it was. Nothing here makes a context.

use super::api::Runtime;
use super::cuda::nvml;
use super::sim::{self, Sim};
use crate::base::Result;

/// What can be asked of a device, each a whole number of the unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantity {
    /// Percent of the last moments in which a kernel ran.
    Utilization,
    /// Percent of the last moments in which device memory was read or written.
    MemoryUsage,
    /// Degrees Celsius.
    Temperature,
    /// Milliwatt.
    PowerDraw,
    /// Milliwatt.
    PowerLimit,
    /// Megahertz, of the multiprocessors.
    ClockRate,
    /// Megahertz.
    MemoryClockRate,
}

impl Quantity {
    pub(crate) const ALL: [Quantity; 7] = [
        Quantity::Utilization,
        Quantity::MemoryUsage,
        Quantity::Temperature,
        Quantity::PowerDraw,
        Quantity::PowerLimit,
        Quantity::ClockRate,
        Quantity::MemoryClockRate,
    ];

    /// As messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Utilization => "utilization",
            Quantity::MemoryUsage => "memory usage",
            Quantity::Temperature => "temperature",
            Quantity::PowerDraw => "power draw",
            Quantity::PowerLimit => "power limit",
            Quantity::ClockRate => "clock rate",
            Quantity::MemoryClockRate => "memory clock rate",
        }
    }
}

/// A process that computes on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: u32,
    /// None: the driver does not say, as in some containers.
    pub bytes: Option<u64>,
}

/// A device, found by whoever tells of it.
pub enum Monitor {
    Nvml(nvml::Device),
    Sim { sim: &'static Sim, device: usize },
}

impl Monitor {
    pub fn of(runtime: &Runtime, device: i32) -> Result<Monitor> {
        if runtime.name == "sim" {
            return Ok(Monitor::Sim { sim: sim::machine()?, device: device as usize });
        }
        let nvml = nvml::open()?;
        nvml::Device::find(nvml, runtime.device_properties(device)?.uuid, device).map(Monitor::Nvml)
    }

    /// The driver's number of the device, which neither CUDA_VISIBLE_DEVICES nor CUDA_DEVICE_ORDER changes.
    pub fn index(&self) -> Result<i32> {
        match self {
            Monitor::Nvml(device) => device.index(),
            Monitor::Sim { sim, device } => Ok(sim.number_of(*device) as i32),
        }
    }

    pub fn get(&self, quantity: Quantity) -> Result<i32> {
        match self {
            Monitor::Nvml(device) => device.get(quantity),
            Monitor::Sim { sim, device } => Ok(sim.quantity(*device, quantity)),
        }
    }

    /// (used, total) bytes, of all processes together.
    pub fn memory(&self) -> Result<(u64, u64)> {
        match self {
            Monitor::Nvml(device) => device.memory(),
            Monitor::Sim { sim, device } => Ok(sim.memory_used(*device)),
        }
    }

    pub fn processes(&self) -> Result<Vec<Process>> {
        match self {
            Monitor::Nvml(device) => device.processes(),
            Monitor::Sim { sim, device } => Ok(sim.processes(*device)),
        }
    }
}
