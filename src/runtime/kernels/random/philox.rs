//! Philox 4x32-10 and the numbers that are made of its words: the twin of include/tcuda/philox.cuh.

/// Four words: those of `sequence` at 4 * `block`.
pub fn block(seed: u64, sequence: u64, block: u64) -> [u32; 4] {
    let (mut k0, mut k1) = (seed as u32, (seed >> 32) as u32);
    let mut c = [block as u32, (block >> 32) as u32, sequence as u32, (sequence >> 32) as u32];
    for _ in 0..10 {
        let p0 = 0xd251_1f53 * u64::from(c[0]);
        let p1 = 0xcd9e_8d57 * u64::from(c[2]);
        c = [(p1 >> 32) as u32 ^ c[1] ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k1, p0 as u32];
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    c
}

const TO_UNIT: f32 = 1.0 / 4_294_967_296.0;

/// In (0, 1].
pub fn uniform(word: u32) -> f32 {
    // Exact but for the sum.
    word as f32 * TO_UNIT + TO_UNIT / 2.0
}

/// In (0, 1], of two words.
pub fn uniform_f64(first: u32, second: u32) -> f64 {
    const TO_UNIT: f64 = 1.0 / (1u64 << 53) as f64;
    let bits = u64::from(first) ^ u64::from(second) << 21;
    bits as f64 * TO_UNIT + TO_UNIT / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_curands() {
        assert_eq!(block(0, 0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(block(0, 3, 0), [0xf0a9_0abc, 0x1158_96b8, 0xbede_fe84, 0xb86f_45c6]);
        assert_eq!(block(42, 1, 0), [0x0293_3769, 0x2051_e913, 0x3b68_b038, 0xb62c_409c]);
        assert_eq!(block(67_280_421_310_721, 1, 0), [0x82f6_2f5b, 0x3ac2_9c27, 0xde1c_0b42, 0x50da_8e40]);
        // All 64 bits of a counter count.
        assert_ne!(block(1, 1 << 32, 0), block(1, 0, 0));
        assert_ne!(block(1, 0, 1 << 32), block(1, 0, 0));
        assert_ne!(block(1 << 32, 0, 0), block(0, 0, 0));
    }

    #[test]
    fn uniform_numbers_are_above_0_and_may_be_1() {
        assert_eq!((uniform(0), uniform(u32::MAX)), (1.0 / 8_589_934_592.0, 1.0));
        assert_eq!(uniform(0x6627_e8d5).to_bits(), 0x3ecc_4fd2);
        assert_eq!((uniform_f64(0, 0), uniform_f64(0x1f_ffff, u32::MAX)), (1.0 / (1u64 << 54) as f64, 1.0));
        assert_eq!(uniform_f64(0x6627_e8d5, 0xe169_c58d), 0.880_520_268_400_938_3);
    }
}
