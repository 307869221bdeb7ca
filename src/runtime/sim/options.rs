//! What the simulated machine looks like: from the configuration.

use super::device;
use crate::base::{Error, Result, config};

/// Devices of one machine at the most: sets of devices are bits of a word.
pub const MOST_DEVICES: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The machine's devices that are visible, by their number in the machine.
    pub devices: Vec<usize>,
    /// Bytes of each device.
    pub memory: usize,
    pub seed: Option<u64>,
    /// For each visible device, the set of those that it can reach.
    pub peers: Vec<u64>,
    pub launch_blocking: bool,
}

impl Options {
    pub fn read() -> Result<Options> {
        let text = |name| config::get(name);
        let number = |name, default: u64, least, most| match text(name) {
            Some(value) => config::parse_number(name, &value, least, most),
            None => Ok(default),
        };
        let count = number("TCUDA_SIM_DEVICES", 2, 1, MOST_DEVICES as u64)? as usize;
        let memory = config::parse_bytes("TCUDA_SIM_MEMORY", text("TCUDA_SIM_MEMORY").as_deref().unwrap_or("16GiB"))?;
        let seed = match text("TCUDA_SIM_SEED") {
            Some(value) => Some(config::parse_number("TCUDA_SIM_SEED", &value, 0, u64::MAX)?),
            None => None,
        };
        // Set and empty hides every device, as in CUDA.
        let hidden = std::env::var_os("CUDA_VISIBLE_DEVICES").is_some_and(|value| value.is_empty());
        let devices = match text("CUDA_VISIBLE_DEVICES") {
            Some(list) => visible(&list, count),
            None if hidden => Vec::new(),
            None => (0..count).collect(),
        };
        let peers = peers(text("TCUDA_SIM_PEERS").as_deref().unwrap_or("all"), devices.len())?;
        let launch_blocking = text("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value != "0");
        Options { devices, memory: 0, seed, peers, launch_blocking }.with_memory(memory)
    }

    /// Whole pages, at least one.
    fn with_memory(mut self, bytes: u64) -> Result<Options> {
        const MOST: u64 = 1 << 44;
        if !(super::os::PAGE as u64..=MOST).contains(&bytes) {
            return Err(Error::invalid_argument(format!("TCUDA_SIM_MEMORY is {bytes} bytes. It goes from 2MiB to 16TiB.")));
        }
        self.memory = bytes as usize / super::os::PAGE * super::os::PAGE;
        Ok(self)
    }
}

/// CUDA_VISIBLE_DEVICES: numbers or beginnings of UUIDs, up to the first that is invalid. A device named twice: none at all.
fn visible(list: &str, count: usize) -> Vec<usize> {
    let mut found = Vec::new();
    for token in list.split(',') {
        let Some(device) = entry(token.trim(), count) else { break };
        if found.contains(&device) {
            return Vec::new();
        }
        found.push(device);
    }
    found
}

fn entry(token: &str, count: usize) -> Option<usize> {
    if token.starts_with("GPU-") {
        let wanted = token.to_ascii_lowercase();
        let mut matching = (0..count).filter(|device| device::uuid_text(*device).to_ascii_lowercase().starts_with(&wanted));
        let first = matching.next()?;
        return matching.next().is_none().then_some(first);
    }
    // As strtoul reads it: digits, then anything.
    let end = token.find(|c: char| !c.is_ascii_digit()).unwrap_or(token.len());
    token[..end].parse().ok().filter(|device| *device < count)
}

/// `all`, `none`, or pairs that reach each other: `0-1,2-3`.
fn peers(text: &str, count: usize) -> Result<Vec<u64>> {
    let everyone = if count == 64 { u64::MAX } else { (1 << count) - 1 };
    match text.trim() {
        "all" => return Ok((0..count).map(|device| everyone & !(1 << device)).collect()),
        "none" => return Ok(vec![0; count]),
        _ => {}
    }
    let mut reach = vec![0u64; count];
    for pair in text.split(',') {
        let ends = pair.split_once('-').and_then(|(a, b)| Some((a.trim().parse::<usize>().ok()?, b.trim().parse::<usize>().ok()?)));
        match ends {
            Some((a, b)) if a < count && b < count && a != b => {
                reach[a] |= 1 << b;
                reach[b] |= 1 << a;
            }
            _ => {
                return Err(Error::invalid_argument(format!(
                    "TCUDA_SIM_PEERS has '{pair}'. Write all, none, or pairs of the {count} visible devices: 0-1,2-3."
                )));
            }
        }
    }
    Ok(reach)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_as_cuda_reads_them() {
        let long = device::uuid_text(2);
        let short = &long[..12];
        for (list, expected) in [
            ("0,1,2", vec![0, 1, 2]),
            ("3,1", vec![3, 1]),
            (" 1 , 0 ", vec![1, 0]),
            ("2abc,1", vec![2, 1]),
            ("0,-1,1", vec![0]),
            ("0,4,1", vec![0]),
            ("0,,1", vec![0]),
            ("x", vec![]),
            ("-1", vec![]),
            ("1,1", vec![]),
            ("99999999999999999999", vec![]),
            (&long, vec![2]),
            (short, vec![2]),
            (&format!("{short},0"), vec![2, 0]),
            ("GPU-", vec![]),
            ("0,GPU-nothing", vec![0]),
            ("MIG-GPU-x", vec![]),
        ] {
            assert_eq!(visible(list, 4), expected, "{list}");
        }
    }

    #[test]
    fn peers_by_policy() {
        assert_eq!(peers("all", 3).unwrap(), [0b110, 0b101, 0b011]);
        assert_eq!(peers("none", 2).unwrap(), [0, 0]);
        assert_eq!(peers("0-1, 2-3", 4).unwrap(), [2, 1, 8, 4]);
        assert_eq!(peers("all", 64).unwrap()[63], u64::MAX >> 1);
        for wrong in ["", "0", "0-0", "0-9", "a-b", "0-1,"] {
            assert!(peers(wrong, 4).is_err(), "{wrong}");
        }
    }

    #[test]
    fn memory_is_whole_pages() {
        let options = Options { devices: vec![0], memory: 0, seed: None, peers: vec![0], launch_blocking: false };
        assert_eq!(options.clone().with_memory((5 << 20) + 1).unwrap().memory, 4 << 20);
        assert!(options.clone().with_memory(0).is_err());
        assert!(options.with_memory(u64::MAX).is_err());
    }
}
