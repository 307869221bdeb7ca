//! Statistics under torch's keys of host_memory_stats.

use crate::memory::stats::{FIGURES, Stat};
use std::time::Duration;

/// Times of calls of the driver, in microseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Times {
    pub total: i64,
    pub max: i64,
    pub min: i64,
    pub count: i64,
}

impl Times {
    pub const fn new() -> Times {
        Times { total: 0, max: 0, min: 0, count: 0 }
    }

    pub fn add(&mut self, time: Duration) {
        let time = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        self.min = if self.count == 0 { time } else { self.min.min(time) };
        self.max = self.max.max(time);
        self.total = self.total.saturating_add(time);
        self.count += 1;
    }

    pub fn average(&self) -> i64 {
        if self.count == 0 { 0 } else { self.total / self.count }
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct HostStats {
    /// Segments held from the driver, and their bytes.
    pub allocations: Stat,
    pub allocated_bytes: Stat,
    /// Blocks between allocation and the end of all their uses.
    pub active_requests: Stat,
    pub active_bytes: Stat,
    pub num_host_alloc: i64,
    pub num_host_free: i64,
    pub host_alloc_time: Times,
    pub host_free_time: Times,
}

impl HostStats {
    fn stats(&self) -> [(&'static str, &Stat); 4] {
        [
            ("active_bytes", &self.active_bytes),
            ("active_requests", &self.active_requests),
            ("allocated_bytes", &self.allocated_bytes),
            ("allocations", &self.allocations),
        ]
    }

    /// Every key with its value, sorted by key.
    pub fn flat(&self) -> Vec<(String, i64)> {
        let mut all = Vec::new();
        for (name, stat) in self.stats() {
            let values = [stat.allocated, stat.current, stat.freed, stat.peak];
            all.extend(FIGURES.iter().zip(values).map(|(figure, value)| (format!("{name}.{figure}"), value)));
        }
        for (name, times) in [("host_alloc_time", &self.host_alloc_time), ("host_free_time", &self.host_free_time)] {
            let figures =
                [("avg", times.average()), ("count", times.count), ("max", times.max), ("min", times.min), ("total", times.total)];
            all.extend(figures.map(|(figure, value)| (format!("{name}.{figure}"), value)));
        }
        all.push(("num_host_alloc".into(), self.num_host_alloc));
        all.push(("num_host_free".into(), self.num_host_free));
        all
    }

    /// One value by key. torch 2.7 and 2.8 said `segment`, `reserved_bytes` and `allocation` for what is `allocations`,
    /// `allocated_bytes` and `active_requests` since.
    pub fn by_key(&self, key: &str) -> Option<i64> {
        let old = [("segment.", "allocations."), ("reserved_bytes.", "allocated_bytes."), ("allocation.", "active_requests.")];
        let key = match old.iter().find_map(|(old, new)| key.strip_prefix(old).map(|figure| format!("{new}{figure}"))) {
            Some(new) => new,
            None => key.to_owned(),
        };
        self.flat().into_iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_and_found() {
        let stat = Stat { current: 1, peak: 2, allocated: 3, freed: 4 };
        let stats = HostStats { allocations: stat, active_requests: stat, num_host_alloc: 5, ..HostStats::default() };
        let flat = stats.flat();
        assert!(flat.len() == 4 * 4 + 2 * 5 + 2 && flat.is_sorted());
        assert!(flat.iter().all(|(key, value)| stats.by_key(key) == Some(*value)));
        assert_eq!(
            (stats.by_key("allocations.peak"), stats.by_key("segment.peak"), stats.by_key("allocation.freed")),
            (Some(2), Some(2), Some(4))
        );
        assert_eq!((stats.by_key("num_host_alloc"), stats.by_key("host_alloc_time.avg")), (Some(5), Some(0)));
        for wrong in ["", "allocations", "allocations.sum", "host_alloc_time", "segments.peak", "segment."] {
            assert_eq!(stats.by_key(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times() {
        let mut times = Times::new();
        assert_eq!(times.average(), 0);
        [30, 10, 50].into_iter().for_each(|time| times.add(Duration::from_micros(time)));
        assert_eq!((times, times.average()), (Times { total: 90, max: 50, min: 10, count: 3 }, 30));
    }
}
