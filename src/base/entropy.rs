//! Numbers that nobody can foretell: the kernel's.

use super::{Error, Result};

pub fn bits() -> Result<u64> {
    let mut bytes = [0u8; 8];
    // Up to 256 bytes come whole, unless a signal comes while the kernel still gathers them after the start of the machine.
    while unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } != bytes.len() as isize {
        let error = Error::system("Asking the kernel for a random seed (getrandom)");
        if error.native != libc::EINTR {
            return Err(error);
        }
    }
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_are_alike_and_each_bit_takes_both_values() {
        let drawn: Vec<u64> = (0..100).map(|_| super::bits().unwrap()).collect();
        assert!(drawn.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(drawn.iter().fold(0, |all, bits| all | bits), u64::MAX);
        assert_eq!(drawn.iter().fold(u64::MAX, |all, bits| all & bits), 0);
    }
}
