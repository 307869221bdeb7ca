//! For tests: numbers at random, the same in each run.

/// Below a bound each.
pub fn random(mut state: u64) -> impl FnMut(usize) -> usize {
    move |bound| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % bound
    }
}
