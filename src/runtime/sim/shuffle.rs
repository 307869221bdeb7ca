//! The seeded order: which stream goes on next, and how long everything holds still.

use std::time::Duration;

/// SplitMix64's finaliser.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub struct Shuffle {
    state: u64,
    /// Turns are numbers on a clock that only work moves.
    now: i64,
}

impl Shuffle {
    pub fn new(seed: u64) -> Shuffle {
        Shuffle { state: mix(seed), now: 0 }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.state = self.state.wrapping_add(1);
        mix(self.state) % limit
    }

    /// When a stream that has become ready gets its turn. One in eight is left behind for long.
    pub fn turn(&mut self) -> i64 {
        let late = if self.below(8) == 0 { 8000 } else { 0 };
        self.now + (self.below(1000) + late) as i64
    }

    pub fn took(&mut self, turn: i64) {
        self.now = self.now.max(turn);
    }

    /// How long to hold still before the next turn, so that the host gets ahead. Nobody waits for that who waits for the device.
    pub fn hold(&mut self) -> Duration {
        if self.below(4) == 0 { Duration::ZERO } else { Duration::from_micros(self.below(150)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_order() {
        let order = |seed| {
            let mut shuffle = Shuffle::new(seed);
            (0..20).map(|_| shuffle.turn()).collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn nobody_waits_for_ever() {
        let mut shuffle = Shuffle::new(3);
        let first = shuffle.turn();
        let turns: Vec<i64> = (0..200)
            .map(|_| {
                let turn = shuffle.turn();
                shuffle.took(turn);
                turn
            })
            .collect();
        assert!(turns.iter().any(|turn| *turn > first));
    }
}
