//! Which device reaches the memory of which other.

use super::super::table::{Code, code};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub struct Peers {
    /// For each device, the set of those that it could reach.
    can: Vec<u64>,
    /// For each device, the set of those that it was allowed to reach.
    enabled: Vec<AtomicU64>,
}

impl Peers {
    pub fn new(can: Vec<u64>) -> Peers {
        let enabled = can.iter().map(|_| AtomicU64::new(0)).collect();
        Peers { can, enabled }
    }

    pub fn can(&self, device: usize, peer: usize) -> bool {
        self.can[device] & 1 << peer != 0
    }

    /// Whether a kernel on `device` may touch plain memory of `owner`.
    pub fn reaches(&self, device: usize, owner: usize) -> bool {
        device == owner || self.enabled[device].load(Relaxed) & 1 << owner != 0
    }

    pub fn enable(&self, device: usize, peer: usize) -> Result<(), Code> {
        if device == peer {
            return Err(code::INVALID_DEVICE);
        }
        if !self.can(device, peer) {
            return Err(code::PEER_ACCESS_UNSUPPORTED);
        }
        match self.enabled[device].fetch_or(1 << peer, Relaxed) & 1 << peer {
            0 => Ok(()),
            _ => Err(code::PEER_ACCESS_ALREADY_ENABLED),
        }
    }

    pub fn disable(&self, device: usize, peer: usize) -> Result<(), Code> {
        match self.enabled[device].fetch_and(!(1 << peer), Relaxed) & 1 << peer {
            0 => Err(code::PEER_ACCESS_NOT_ENABLED),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_goes_one_way() {
        let peers = Peers::new(vec![0b010, 0b001, 0]);
        assert!(peers.can(0, 1) && !peers.can(0, 2));
        assert_eq!(peers.enable(0, 1), Ok(()));
        assert_eq!(peers.enable(0, 1), Err(704));
        assert!(peers.reaches(0, 1) && !peers.reaches(1, 0) && peers.reaches(1, 1));
        assert_eq!(peers.enable(0, 2), Err(217));
        assert_eq!(peers.enable(0, 0), Err(101));
        assert_eq!(peers.disable(1, 0), Err(705));
        assert_eq!(peers.disable(0, 1), Ok(()));
        assert!(!peers.reaches(0, 1));
    }
}
