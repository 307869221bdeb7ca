//! Division by sizes that the host knows: what `Divider` of kernels/common.cuh is.

/// n / size = (high word of n * magic + n) >> shift, for n below 2^31.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Divider {
    pub size: u32,
    pub magic: u32,
    pub shift: u32,
}

impl Divider {
    /// Of 1 to 2^31 - 1.
    pub fn new(size: u32) -> Divider {
        let shift = size.next_power_of_two().trailing_zeros();
        let magic = (((1u64 << shift) - u64::from(size)) << 32) / u64::from(size) + 1;
        Divider { size, magic: magic as u32, shift }
    }

    /// As the kernels do it.
    pub fn quotient(self, n: u32) -> u32 {
        let high = (u64::from(n) * u64::from(self.magic)) >> 32;
        ((high + u64::from(n)) >> self.shift) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_multiplication_is_exact() {
        for size in [1u32, 2, 3, 5, 7, 10, 641, 65535, 65537, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, (1 << 31) - 1] {
            let by = Divider::new(size);
            for n in [0u32, 1, 2, size - 1, size, size.wrapping_add(1), 12_345_678, (1 << 30) - 1, (1 << 31) - 1] {
                let n = n & 0x7fff_ffff;
                assert_eq!(by.quotient(n), n / size, "{n} / {size}");
            }
        }
    }
}
