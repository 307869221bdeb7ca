//! What travels from process to process: 64 bytes that say whom to ask, and a secret that he knows.

use crate::base::{Error, Result, entropy};

/// 128 bits that nobody can guess.
pub type Secret = [u8; 16];

pub fn secret() -> Result<Secret> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&entropy::bits()?.to_ne_bytes());
    bytes[8..].copy_from_slice(&entropy::bits()?.to_ne_bytes());
    Ok(bytes)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blob {
    /// Where the producer listens: a name that it drew.
    pub producer: Secret,
    pub export: Secret,
    /// The producer's process, for people.
    pub process: i32,
}

const MAGIC: [u8; 8] = *b"tcudaIP2";
pub(super) const SIZE: usize = 64;

impl Blob {
    pub fn bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.producer);
        bytes[24..40].copy_from_slice(&self.export);
        bytes[40..44].copy_from_slice(&self.process.to_ne_bytes());
        let sum = sum(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_ne_bytes());
        bytes
    }

    pub fn read(bytes: &[u8; SIZE]) -> Result<Blob> {
        if bytes[..8] != MAGIC {
            return Err(Error::invalid_argument(
                "These bytes are no handle of tcuda_ipc_export (or one of another version of tcuda). All 64 of them have to come over.",
            ));
        }
        if bytes[56..] != sum(&bytes[..56]).to_ne_bytes() {
            return Err(Error::invalid_argument(
                "The handle is damaged: its bytes were changed or cut on the way. All 64 of them have to come over as tcuda_ipc_export wrote \
                 them.",
            ));
        }
        let secret = |at: usize| bytes[at..at + 16].try_into().unwrap_or_default();
        let process = i32::from_ne_bytes(bytes[40..44].try_into().unwrap_or_default());
        Ok(Blob { producer: secret(8), export: secret(24), process })
    }
}

/// Against damage, not against malice: FNV-1a.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_comes_back_and_every_changed_bit_shows() {
        let blob = Blob { producer: secret().unwrap(), export: secret().unwrap(), process: 77 };
        let bytes = blob.bytes();
        assert_eq!(Blob::read(&bytes).unwrap(), blob);
        for bit in 0..SIZE * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Blob::read(&changed).is_err(), "bit {bit}");
        }
        for cut in 0..SIZE {
            let mut short = bytes;
            short[cut..].fill(0);
            assert!(short == bytes || Blob::read(&short).is_err(), "{cut} bytes");
        }
        assert_ne!(secret().unwrap(), secret().unwrap());
    }
}
