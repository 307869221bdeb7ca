//! Statistics under torch's keys: `<family>.<pool>.<figure>` and a few counters.

/// One figure over time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stat {
    pub current: i64,
    pub peak: i64,
    /// All that was ever added.
    pub allocated: i64,
    /// All that was ever taken away.
    pub freed: i64,
}

/// What is counted for all blocks, for the small and for the large ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Blocks between allocation and free.
    Allocation,
    /// Pieces of physical memory held from the driver.
    Segment,
    /// Blocks between allocation and the end of all their uses.
    Active,
    /// Free blocks that cannot go back to the driver because their segment is in use (plain segments only, as in torch).
    InactiveSplit,
    AllocatedBytes,
    ReservedBytes,
    ActiveBytes,
    InactiveSplitBytes,
    /// Bytes of active blocks as asked for.
    RequestedBytes,
}

impl Family {
    /// Whether blocks count in it that wait for other streams.
    pub fn has_pending(self) -> bool {
        use Family::*;
        matches!(self, Active | ActiveBytes | RequestedBytes | InactiveSplit | InactiveSplitBytes)
    }
}

pub const FAMILIES: [(Family, &str); 9] = [
    (Family::Allocation, "allocation"),
    (Family::Segment, "segment"),
    (Family::Active, "active"),
    (Family::InactiveSplit, "inactive_split"),
    (Family::AllocatedBytes, "allocated_bytes"),
    (Family::ReservedBytes, "reserved_bytes"),
    (Family::ActiveBytes, "active_bytes"),
    (Family::InactiveSplitBytes, "inactive_split_bytes"),
    (Family::RequestedBytes, "requested_bytes"),
];

/// Which part of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pool {
    All,
    Small,
    Large,
}

pub const POOLS: [(Pool, &str); 3] = [(Pool::All, "all"), (Pool::Large, "large_pool"), (Pool::Small, "small_pool")];
pub const FIGURES: [&str; 4] = ["allocated", "current", "freed", "peak"];

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stats {
    families: [[Stat; 3]; 9],
    pub oversize_allocations: Stat,
    pub oversize_segments: Stat,
    /// Times that everything free was given back to the driver to make room for a request.
    pub num_alloc_retries: i64,
    pub num_ooms: i64,
    /// Times that all streams were waited for to make room.
    pub num_sync_all_streams: i64,
    pub num_device_alloc: i64,
    pub num_device_free: i64,
    /// Times that a request was refused at the limit at once, which are none of `num_ooms`.
    pub num_oom_rejections: i64,
}

impl Stats {
    #[inline]
    pub fn get(&self, family: Family, pool: Pool) -> &Stat {
        &self.families[family as usize][pool as usize]
    }

    pub fn set(&mut self, family: Family, pool: Pool, stat: Stat) {
        self.families[family as usize][pool as usize] = stat;
    }

    pub fn current(&self, family: Family) -> i64 {
        self.get(family, Pool::All).current
    }

    pub fn peak(&self, family: Family) -> i64 {
        self.get(family, Pool::All).peak
    }

    /// Every key with its value, sorted by key, as torch's memory_stats has them.
    pub fn flat(&self) -> Vec<(String, i64)> {
        let mut all = Vec::with_capacity(130);
        let mut put = |prefix: String, stat: &Stat| {
            for figure in FIGURES {
                all.push((format!("{prefix}.{figure}"), figure_of(stat, figure)));
            }
        };
        for (family, name) in FAMILIES {
            for (pool, pool_name) in POOLS {
                put(format!("{name}.{pool_name}"), self.get(family, pool));
            }
        }
        put("oversize_allocations".into(), &self.oversize_allocations);
        put("oversize_segments".into(), &self.oversize_segments);
        for (name, value) in self.counters() {
            all.push((name.into(), value));
        }
        all.sort();
        all
    }

    fn counters(&self) -> [(&'static str, i64); 7] {
        [
            ("max_split_size", -1),
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
            ("num_oom_rejections", self.num_oom_rejections),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
        ]
    }

    /// One value by torch's key; `allocated.*`, the word of the old documentation, means `allocation.*`.
    pub fn by_key(&self, key: &str) -> Option<i64> {
        if let Some((_, value)) = self.counters().into_iter().find(|(name, _)| *name == key) {
            return Some(value);
        }
        let mut parts = key.split('.');
        let family = parts.next()?;
        let stat = match family {
            "oversize_allocations" => &self.oversize_allocations,
            "oversize_segments" => &self.oversize_segments,
            _ => {
                let family = if family == "allocated" { "allocation" } else { family };
                let family = FAMILIES.iter().find(|(_, name)| *name == family)?.0;
                let pool = parts.next()?;
                self.get(family, POOLS.iter().find(|(_, name)| *name == pool)?.0)
            }
        };
        let figure = parts.next()?;
        (parts.next().is_none() && FIGURES.contains(&figure)).then(|| figure_of(stat, figure))
    }
}

fn figure_of(stat: &Stat, figure: &str) -> i64 {
    match figure {
        "current" => stat.current,
        "peak" => stat.peak,
        "allocated" => stat.allocated,
        _ => stat.freed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flat_key_is_found_by_name_and_nothing_else_is() {
        let mut stats = Stats::default();
        stats.set(Family::AllocatedBytes, Pool::Small, Stat { current: 0, peak: 512, allocated: 512, freed: 512 });
        stats.num_ooms = 4;
        let flat = stats.flat();
        assert_eq!(flat.len(), 9 * 3 * 4 + 2 * 4 + 7);
        assert!(flat.is_sorted());
        for (key, value) in &flat {
            assert_eq!(stats.by_key(key), Some(*value), "{key}");
        }
        assert_eq!(stats.by_key("allocated_bytes.small_pool.peak"), Some(512));
        assert_eq!(stats.by_key("allocated_bytes.large_pool.peak"), Some(0));
        assert_eq!(stats.by_key("allocated.all.current"), stats.by_key("allocation.all.current"));
        assert_eq!(stats.by_key("num_ooms"), Some(4));
        for wrong in ["", "allocation", "allocation.all", "allocation.all.current.x", "allocation.none.peak", "x.all.peak", "num_oom"] {
            assert_eq!(stats.by_key(wrong), None, "{wrong}");
        }
    }
}
