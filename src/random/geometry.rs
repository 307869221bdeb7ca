//! Which thread of a launch makes which element. torch's launches have at most as many threads as the device runs at once, so its numbers
//! depend on the device; a generator can be told to draw as on another one, or in an order that is the same everywhere.

use crate::base::{Error, Result};
use crate::device;
use std::ops::RangeInclusive;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Geometry {
    /// torch's order on the generator's own device.
    Device { multiprocessors: u32, threads: u32 },
    /// torch's order on a device that runs so many threads on each of so many multiprocessors.
    Named { multiprocessors: u32, threads: u32 },
    /// One order for all devices.
    Portable,
}

/// Multiprocessors, and threads on each, of GPUs that many have.
pub const NAMED: &[(&str, u32, u32)] = &[
    ("A100", 108, 2048),
    ("A10G", 80, 1536),
    ("B200", 148, 2048),
    ("H100 PCIe", 114, 2048),
    ("H100 SXM", 132, 2048),
    ("H200", 132, 2048),
    ("L40S", 142, 1536),
    ("T4", 40, 1024),
    ("V100", 80, 2048),
];

/// Threads of a block in torch's launches.
const BLOCK: u32 = 256;
/// Threads of the portable order: 128 multiprocessors with 2048 each. It never changes.
const PORTABLE: u32 = 1 << 18;
/// Far above any device, far below what a kernel's arithmetic holds.
const MULTIPROCESSORS: RangeInclusive<u32> = 1..=4096;
const THREADS: RangeInclusive<u32> = BLOCK..=8192;

impl Geometry {
    /// The device's own, from its properties.
    pub fn of_device(device: i32) -> Result<Geometry> {
        let properties = device::properties(device)?;
        let (multiprocessors, threads) = check(properties.multi_processor_count, properties.max_threads_per_multi_processor)?;
        Ok(Geometry::Device { multiprocessors, threads })
    }

    pub fn named(multiprocessors: i32, threads: i32) -> Result<Geometry> {
        let (multiprocessors, threads) = check(multiprocessors, threads)?;
        Ok(Geometry::Named { multiprocessors, threads })
    }

    /// Multiprocessors and threads by one of the names in `NAMED`, in any case.
    pub fn known(name: &str) -> Result<(u32, u32)> {
        let found = NAMED.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name.trim()));
        let (_, multiprocessors, threads) = *found.ok_or_else(|| {
            let known: Vec<&str> = NAMED.iter().map(|(known, ..)| *known).collect();
            Error::invalid_argument(format!(
                "No geometry is called '{name}'. Known are {}; for others, give the numbers of multiprocessors and threads.",
                known.join(", ")
            ))
        })?;
        Ok((multiprocessors, threads))
    }

    /// The most threads of a launch: element i + most_threads() is the same thread's as element i.
    pub fn most_threads(self) -> u32 {
        match self {
            Geometry::Device { multiprocessors, threads } | Geometry::Named { multiprocessors, threads } => {
                multiprocessors * (threads / BLOCK) * BLOCK
            }
            Geometry::Portable => PORTABLE,
        }
    }
}

fn check(multiprocessors: i32, threads: i32) -> Result<(u32, u32)> {
    let within = |value: i32, range: RangeInclusive<u32>| u32::try_from(value).ok().filter(|value| range.contains(value));
    within(multiprocessors, MULTIPROCESSORS).zip(within(threads, THREADS)).ok_or_else(|| {
        Error::invalid_argument(format!(
            "A geometry of {multiprocessors} multiprocessors with {threads} threads each is not possible: {} to {} and {} to {} are.",
            MULTIPROCESSORS.start(),
            MULTIPROCESSORS.end(),
            THREADS.start(),
            THREADS.end()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_as_large_as_torch_makes_them() {
        let most = |name| {
            let (multiprocessors, threads) = Geometry::known(name).unwrap();
            Geometry::Named { multiprocessors, threads }.most_threads()
        };
        assert_eq!(most("H100 SXM"), 270_336);
        assert_eq!(most("a100"), 221_184);
        assert_eq!(most(" A10G "), 122_880);
        // What is left of a multiprocessor beside whole blocks is not used.
        assert_eq!(Geometry::named(3, 1000).unwrap().most_threads(), 3 * 768);
        assert_eq!(Geometry::named(4096, 8192).unwrap().most_threads(), 1 << 25);
        assert_eq!(Geometry::Portable.most_threads(), 262_144);
    }

    #[test]
    fn what_is_no_geometry_is_refused() {
        for (multiprocessors, threads) in [(0, 2048), (-1, 2048), (4097, 2048), (132, 255), (132, -2048), (132, 8193), (i32::MAX, i32::MIN)]
        {
            let error = Geometry::named(multiprocessors, threads).unwrap_err();
            assert!(error.message.contains(&multiprocessors.to_string()) && error.message.contains(&threads.to_string()), "{error}");
        }
        for name in ["", "H100", "A100 "].iter().filter(|name| name.trim() != "A100") {
            let error = Geometry::known(name).unwrap_err();
            assert!(error.message.contains("H100 PCIe, H100 SXM"), "{error}");
        }
        for (name, multiprocessors, threads) in NAMED {
            assert_eq!(check(*multiprocessors as i32, *threads as i32), Ok((*multiprocessors, *threads)), "{name}");
        }
    }
}
