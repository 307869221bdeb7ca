//! What a monitor would tell of a simulated device: numbers of an H100 that follow from its streams with work and its memory, and from
//! nothing else, so that the same load always gives the same numbers.

use super::Sim;
use crate::runtime::monitor::{Process, Quantity};

/// Streams with work that take all that the device has.
const FULL: usize = 4;

/// From idle (0) to the most (100).
fn between(idle: i32, most: i32, percent: usize) -> i32 {
    idle + (most - idle) * percent as i32 / 100
}

fn quantity(busy: usize, quantity: Quantity) -> i32 {
    let load = busy.min(FULL) * 100 / FULL;
    match quantity {
        Quantity::Utilization if busy > 0 => 100,
        Quantity::Utilization => 0,
        Quantity::MemoryUsage => load as i32,
        Quantity::Temperature => between(31, 71, load),
        Quantity::PowerDraw => between(70_000, 690_000, load),
        Quantity::PowerLimit => 700_000,
        Quantity::ClockRate if busy > 0 => 1980,
        Quantity::ClockRate => 345,
        Quantity::MemoryClockRate => 2619,
    }
}

impl Sim {
    /// Its number in the machine, before CUDA_VISIBLE_DEVICES.
    pub fn number_of(&self, device: usize) -> usize {
        self.devices[device].number
    }

    pub fn quantity(&self, device: usize, wanted: Quantity) -> i32 {
        quantity(self.scheduler.line().state.busy_of(device), wanted)
    }

    /// (used, total) bytes.
    pub fn memory_used(&self, device: usize) -> (u64, u64) {
        let (free, total) = self.memory.info(device);
        ((total - free) as u64, total as u64)
    }

    /// This one, once it has a context there; no other sees the machine.
    pub fn processes(&self, device: usize) -> Vec<Process> {
        let own = Process { pid: std::process::id(), bytes: Some(self.memory.used(device) as u64) };
        if self.devices[device].is_active() { vec![own] } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_the_load() {
        let all = |busy| Quantity::ALL.map(|wanted| quantity(busy, wanted));
        assert_eq!(all(0), [0, 0, 31, 70_000, 700_000, 345, 2619]);
        assert_eq!(all(1), [100, 25, 41, 225_000, 700_000, 1980, 2619]);
        assert_eq!(all(FULL), [100, 100, 71, 690_000, 700_000, 1980, 2619]);
        assert_eq!(all(usize::MAX / 200), all(FULL));
    }
}
