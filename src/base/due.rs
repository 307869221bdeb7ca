//! When to look over all of a list: each time that it has grown by half, so that the looks cost no more than what made it grow.

#[derive(Clone, Copy, Default)]
pub struct Due {
    from: usize,
}

impl Due {
    pub const fn new() -> Due {
        Due { from: 0 }
    }

    pub fn is_due(self, count: usize) -> bool {
        /// Fewer cost nothing.
        const MANY: usize = 16;
        count >= self.from.max(MANY)
    }

    /// It was looked, and so many are left.
    pub fn looked(left: usize) -> Due {
        Due { from: left + left / 2 }
    }

    /// Not before there are so many.
    pub fn at_least(self, count: usize) -> Due {
        Due { from: self.from.max(count) }
    }
}
