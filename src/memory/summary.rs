//! The table of `memory_summary`, in torch's exact layout: every line is 75 characters between bars.

use super::stats::{Family, Pool, Stat, Stats};
use std::fmt::Write;

const WIDTH: usize = 75;

const METRICS: [(&str, Family, Unit); 9] = [
    ("Allocated memory", Family::AllocatedBytes, Unit::Bytes),
    ("Active memory", Family::ActiveBytes, Unit::Bytes),
    ("Requested memory", Family::RequestedBytes, Unit::Bytes),
    ("GPU reserved memory", Family::ReservedBytes, Unit::Bytes),
    ("Non-releasable memory", Family::InactiveSplitBytes, Unit::Bytes),
    ("Allocations", Family::Allocation, Unit::Count),
    ("Active allocs", Family::Active, Unit::Count),
    ("GPU reserved segments", Family::Segment, Unit::Count),
    ("Non-releasable allocs", Family::InactiveSplit, Unit::Count),
];

#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Count,
}

impl Unit {
    /// The cell of a value, in the unit that the reference (the value for all pools) asks for.
    fn cell(self, mut value: i64, reference: i64) -> String {
        let (step, threshold, prefixes): (i64, f64, &[&str]) = match self {
            Unit::Bytes => (1024, 768.0 * 1024.0, &["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"]),
            Unit::Count => (1000, 750.0 * 1000.0, &[" ", "K", "M"]),
        };
        let mut prefix = prefixes[0];
        let mut reference = reference as f64;
        for next in &prefixes[1..] {
            if reference < threshold {
                break;
            }
            prefix = next;
            reference /= step as f64;
            value /= step;
        }
        match self {
            Unit::Bytes => format!("{value:6} {prefix}"),
            Unit::Count => format!("{value:7} {prefix} "),
        }
    }
}

/// torch.cuda.memory_summary's text for one device; `abbreviated` leaves the rows of the two pools out. `apart`: names and statistics of
/// memory and graph pools, which have rows of their own.
pub fn summary(device: i32, stats: &Stats, apart: &[(String, Stats)], abbreviated: bool) -> String {
    let mut lines: Vec<String> = Vec::new();
    let rule = "-".repeat(WIDTH);
    lines.push("=".repeat(WIDTH));
    lines.push(format!("{:19} tcuda CUDA memory summary, device ID {device:<17} ", ""));
    lines.push(rule.clone());
    lines.push(format!("{:9}   CUDA OOMs: {:<12} | {:6} cudaMalloc retries: {:<8}  ", "", stats.num_ooms, "", stats.num_alloc_retries));
    lines.push("=".repeat(WIDTH));
    lines.push("        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ".into());
    for (title, family, unit) in METRICS {
        lines.push(rule.clone());
        let all = stats.get(family, Pool::All);
        lines.push(row(title, all, all, unit));
        if !abbreviated {
            lines.push(row("      from large pool", stats.get(family, Pool::Large), all, unit));
            lines.push(row("      from small pool", stats.get(family, Pool::Small), all, unit));
        }
    }
    for (title, stat) in [("Oversize allocations", &stats.oversize_allocations), ("Oversize GPU segments", &stats.oversize_segments)] {
        lines.push(rule.clone());
        lines.push(row(title, stat, stat, Unit::Count));
    }
    for (name, stats) in apart {
        let [reserved, allocated] = [Family::ReservedBytes, Family::AllocatedBytes].map(|family| stats.get(family, Pool::All));
        lines.push(rule.clone());
        lines.push(row(name, reserved, reserved, Unit::Bytes));
        lines.push(row("      allocated", allocated, allocated, Unit::Bytes));
    }
    lines.push("=".repeat(WIDTH));
    lines.iter().fold(String::new(), |mut text, line| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "|{line}|");
        text
    })
}

fn row(title: &str, stat: &Stat, all: &Stat, unit: Unit) -> String {
    let cells = [(stat.current, all.current), (stat.peak, all.peak), (stat.allocated, all.allocated), (stat.freed, all.freed)];
    let cells = cells.map(|(value, reference)| unit.cell(value, reference));
    format!(" {title:<21} | {} ", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_torchs() {
        let mut stats = Stats::default();
        let bytes = (3 << 30) + 512;
        let large = Stat { current: bytes, peak: bytes, allocated: 2 * bytes, freed: bytes };
        stats.set(Family::AllocatedBytes, Pool::Large, large);
        stats.set(Family::AllocatedBytes, Pool::All, large);
        let count = Stat { current: 1_234_567, peak: 1_234_567, allocated: 1_234_567, freed: 0 };
        stats.set(Family::Allocation, Pool::Small, count);
        stats.set(Family::Allocation, Pool::All, count);
        stats.num_ooms = 1;
        stats.num_alloc_retries = 2;
        let text = summary(0, &stats, &[], false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(text.ends_with("|\n"));
        assert!(lines.iter().all(|line| line.len() == 77), "{text}");
        assert_eq!(lines.len(), 6 + 9 * 4 + 4 + 1);
        assert_eq!(lines[1], "|                    tcuda CUDA memory summary, device ID 0                 |");
        assert_eq!(lines[3], "|            CUDA OOMs: 1            |        cudaMalloc retries: 2         |");
        assert_eq!(lines[7], "| Allocated memory      |   3072 MiB |   3072 MiB |   6144 MiB |   3072 MiB |");
        assert_eq!(lines[9], "|       from small pool |      0 MiB |      0 MiB |      0 MiB |      0 MiB |");
        assert!(text.contains("| Allocations           |    1234 K  |    1234 K  |    1234 K  |       0    |"), "{text}");
        assert_eq!(summary(0, &stats, &[], true).lines().count(), 6 + 9 * 2 + 4 + 1);
        stats.set(Family::ReservedBytes, Pool::All, Stat { current: 20 << 20, peak: 20 << 20, allocated: 20 << 20, freed: 0 });
        stats.set(Family::AllocatedBytes, Pool::All, Stat { current: 512, peak: 512, allocated: 512, freed: 0 });
        let text = summary(0, &stats, &[("Graph pool 12".into(), stats)], true);
        assert!(text.contains("| Graph pool 12         |  20480 KiB |  20480 KiB |  20480 KiB |      0 B   |"), "{text}");
        assert!(text.contains("|       allocated       |    512 B   |    512 B   |    512 B   |      0 B   |"), "{text}");
        assert_eq!(text.lines().count(), 6 + 9 * 2 + 4 + 1 + 3);
    }
}
