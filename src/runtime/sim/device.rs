//! What a simulated device says of itself: an H100 SXM, clearly marked as simulated.

use super::super::table::Code;
use super::super::table::code;
use super::Sim;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

pub const NAME: &str = "NVIDIA H100 80GB HBM3 (simulated by tcuda)";
/// Least and greatest priority of a stream.
pub const PRIORITIES: (i32, i32) = (0, -5);

pub struct Device {
    /// Its number in the machine, before CUDA_VISIBLE_DEVICES.
    pub number: usize,
    /// The code that every call answers since the device is lost; 0 while it works.
    lost: AtomicI32,
    /// Whether the primary context is there.
    active: AtomicBool,
}

impl Device {
    pub fn new(number: usize) -> Device {
        Device { number, lost: AtomicI32::new(0), active: AtomicBool::new(false) }
    }

    pub fn is_active(&self) -> bool {
        self.active.load(Relaxed)
    }

    /// The first loss stays.
    pub fn lose(&self, code: Code) {
        let _ = self.lost.compare_exchange(0, code, Relaxed, Relaxed);
    }

    pub fn lost(&self) -> Code {
        self.lost.load(Relaxed)
    }

    pub fn check(&self) -> Result<(), Code> {
        match self.lost() {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Makes the primary context. Err: the device is lost.
    pub fn activate(&self) -> Result<(), Code> {
        if !self.is_active() {
            self.active.store(true, Relaxed);
        }
        self.check()
    }

    fn pci_bus(&self) -> i32 {
        0x10 + 2 * self.number as i32
    }

    /// domain:bus:device.function.
    pub fn pci_text(&self) -> String {
        format!("0000:{:02x}:00.0", self.pci_bus())
    }

    /// cudaDeviceAttr by number. None: no such attribute.
    pub fn attribute(&self, attribute: i32) -> Option<i32> {
        Some(match attribute {
            33 => self.pci_bus(),
            34 | 50 => 0,             // PCI device and domain
            85 => self.number as i32, // group of boards: each its own
            _ => ATTRIBUTES.iter().find(|(numbers, _)| numbers.contains(&attribute))?.1,
        })
    }

    /// The stable prefix of cudaDeviceProp, 368 bytes.
    pub fn properties(&self, memory: usize) -> [u8; 368] {
        let mut bytes = [0; 368];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, NAME.as_bytes());
        put(256, &uuid(self.number));
        put(288, &memory.to_ne_bytes());
        // Offset, bytes, attribute: what stands between the memory and the capability in every version.
        for (at, size, attribute) in
            [(296, 8, 8), (304, 4, 12), (308, 4, 10), (312, 8, 11), (320, 4, 1), (324, 4, 2), (328, 4, 3), (332, 4, 4), (336, 4, 5)]
                .into_iter()
                .chain([(340, 4, 6), (344, 4, 7), (352, 8, 9), (360, 4, 75), (364, 4, 76)])
        {
            put(at, &i64::from(self.attribute(attribute).unwrap_or(0)).to_ne_bytes()[..size]);
        }
        bytes
    }
}

/// Distinct from the first digits on. The same machine has the same UUIDs in every process.
pub fn uuid(number: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (half, salt) in [(0, 0x7463_7564_6173_696d), (8, 0x6836_3073_7874_6e21)] {
        let mixed = super::shuffle::mix(number as u64 ^ salt);
        bytes[half..half + 8].copy_from_slice(&mixed.to_be_bytes());
    }
    bytes
}

pub fn uuid_text(number: usize) -> String {
    let hex: String = uuid(number).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// By the numbers of cudaDeviceAttr, and of the driver's attributes where the runtime has none.
#[rustfmt::skip]
const ATTRIBUTES: &[(&[i32], i32)] = &[
    // threads, blocks, registers, shared memory
    (&[1, 2, 3], 1024), (&[4], 64), (&[5, 11], i32::MAX), (&[6, 7], 65535), (&[8], 49152), (&[9], 65536), (&[10], 32),
    (&[12, 82], 65536), (&[16], 132), (&[39], 2048), (&[81], 233_472), (&[97], 232_448), (&[106], 32), (&[111], 1024),
    // clocks in kHz, memory bus, caches
    (&[13], 1_980_000), (&[36], 2_619_000), (&[37], 5120), (&[38], 52_428_800), (&[108], 32_768_000), (&[109], 134_213_632),
    // textures and surfaces
    (&[14, 30], 512), (&[51], 32), (&[21, 22, 56, 70], 131_072), (&[23, 57], 65_536), (&[24, 25, 26, 49, 58, 59, 60], 16_384),
    (&[27, 28, 42, 45, 46, 52, 53, 55, 61, 63, 64, 66, 67, 73, 74, 77], 32_768), (&[29, 43, 62, 65], 2048), (&[54, 68], 2046),
    (&[47, 48], 8192), (&[69], 268_435_456), (&[71], 65_000), (&[72], 2_097_120),
    // capability 9.0, copy engines, synchronisation domains
    (&[75], 9), (&[76], 0), (&[40], 3), (&[87], 2), (&[126], 4),
    // abilities: concurrent copies and kernels, memory pools, mapped and unified memory, ECC, priorities, L1 caches, preemption, registered
    // memory, cooperative and cluster launch, virtual memory with file descriptors and with RDMA, IPC events
    (&[15, 19, 31, 32, 41, 78, 79, 80, 83, 89, 90, 91, 95, 99, 102, 103, 110, 112, 114, 115, 116, 117, 120, 121, 125], 1),
    (&[118], 100),
    // not, or not here: display limits, integrated, exclusive, TCC, boards, host atomics, pageable access, pools to share, fabric,
    // multicast, NUMA, MPS, graphics
    (&[17, 18, 20, 35, 84, 86, 88, 92, 93, 94, 96, 98, 100, 101, 104, 105, 107, 113, 119, 122, 123, 124, 127, 128, 129], 0),
    (&[130, 132, 133, 134, 135, 138, 141, 142, 143, 144, 145, 147, 148, 151], 0), (&[131], -1),
    (&[139], 0x2330_10de), (&[140], 0x16c1_10de),
];

impl Sim {
    pub fn device(&self, device: i32) -> Result<&Device, Code> {
        usize::try_from(device).ok().and_then(|device| self.devices.get(device)).ok_or(code::INVALID_DEVICE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn devices_are_distinct() {
        let devices: Vec<Device> = (0..64).map(Device::new).collect();
        assert_eq!(devices.iter().map(Device::pci_text).collect::<HashSet<_>>().len(), 64);
        assert_eq!((0..64).map(uuid).collect::<HashSet<_>>().len(), 64);
        assert_eq!((0..64).map(|n| uuid_text(n)[..12].to_string()).collect::<HashSet<_>>().len(), 64);
        assert_eq!(devices[1].pci_text(), "0000:12:00.0");
        assert_eq!(devices[1].attribute(33), Some(0x12));
    }

    #[test]
    fn each_attribute_has_one_value() {
        let device = Device::new(0);
        let listed: Vec<i32> = ATTRIBUTES.iter().flat_map(|(numbers, _)| numbers.iter().copied()).collect();
        assert_eq!(listed.iter().collect::<HashSet<_>>().len(), listed.len());
        for attribute in (1..=43).chain(45..=101).chain(106..=106).chain(108..=121).chain(125..=126) {
            assert!(device.attribute(attribute).is_some(), "{attribute}");
        }
        for none in [0, -1, 44, 5000, i32::MAX] {
            assert_eq!(device.attribute(none), None);
        }
    }

    #[test]
    fn the_first_loss_stays() {
        let device = Device::new(0);
        device.activate().unwrap();
        device.lose(700);
        device.lose(719);
        assert_eq!(device.check(), Err(700));
        assert_eq!(device.activate(), Err(700));
    }
}
