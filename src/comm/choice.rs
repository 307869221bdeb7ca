//! Which way is taken: one table, filled from `sh run.sh comm` of the GPU kit, which measures each way at each size.

use crate::base::{Error, Result, config};
use std::ops::Range;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// One kernel at the centre, which reads or writes the others' memory.
    Kernel,
    /// Copies by the copy engines, on the source's stream.
    Copies,
    /// Of several tensors some as by `Kernel`, some as by `Copies`, at the same time.
    Both,
    /// From each device to the next, so that all links are used at once. A sum ends where it began.
    Ring,
    /// A kernel on every device but the destination sums its part and writes it there.
    Split,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Broadcast,
    /// Several tensors at once.
    BroadcastCoalesced,
    Reduce,
    ReduceCoalesced,
    Scatter,
    Gather,
    /// Parts that are wide rows of the result.
    GatherRows,
}

use Operation::*;
use Way::*;

/// What TCUDA_COMM_WAY takes.
pub const WAYS: [(&str, Way); 5] = [("kernel", Kernel), ("copies", Copies), ("both", Both), ("ring", Ring), ("split", Split)];

/// Of the rows that an operation fits, the first counts.
struct Row {
    operation: Operation,
    /// Devices that take part, at the most.
    devices: usize,
    /// Bytes at the most, of a whole tensor, or of all tensors of the call.
    bytes: usize,
    way: Way,
}

const fn row(operation: Operation, devices: usize, bytes: usize, way: Way) -> Row {
    Row { operation, devices, bytes, way }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const ANY: usize = usize::MAX;

/// For H200 with NVLink between all devices: measured on two and on four.
const TABLE: &[Row] = &[
    row(Broadcast, 2, ANY, Copies),
    row(Broadcast, ANY, 4 * MIB, Kernel),
    row(Broadcast, ANY, ANY, Ring),
    row(BroadcastCoalesced, 2, 64 * MIB, Kernel),
    row(BroadcastCoalesced, 2, ANY, Both),
    row(BroadcastCoalesced, ANY, 4 * MIB, Kernel),
    row(BroadcastCoalesced, ANY, ANY, Ring),
    row(Reduce, 2, ANY, Kernel),
    row(Reduce, ANY, 4 * MIB, Kernel),
    row(Reduce, ANY, 64 * MIB, Split),
    row(Reduce, ANY, ANY, Ring),
    row(ReduceCoalesced, 2, ANY, Kernel),
    row(ReduceCoalesced, ANY, 4 * MIB, Kernel),
    row(ReduceCoalesced, ANY, ANY, Split),
    row(Scatter, 2, ANY, Copies),
    row(Scatter, ANY, 32 * MIB, Kernel),
    row(Scatter, ANY, ANY, Copies),
    row(Gather, 2, 64 * KIB, Kernel),
    row(Gather, 2, 512 * KIB, Copies),
    row(Gather, 2, 16 * MIB, Kernel),
    row(Gather, 2, ANY, Copies),
    row(Gather, ANY, 64 * MIB, Kernel),
    row(Gather, ANY, ANY, Copies),
    row(GatherRows, ANY, ANY, Copies),
];

/// Rows of a copy between strided regions from which on the copy engines move them faster than a kernel does.
pub const WIDE_ROW: usize = 256 * KIB;

/// Tensors of a coalesced call from which on a copy of its own is no dearer than a kernel's share.
pub const LARGE: usize = MIB;

/// Bytes of a coalesced call from which on the device begins with the first tensors while the host still looks at the others.
const EARLY: usize = 16 * MIB;
/// Tensors that it begins with; of each part after that there are twice as many, up to a few launches.
const FIRST: usize = 16;
const MOST: usize = 128;

/// In which parts the tensors of a coalesced call are enqueued.
pub fn parts(bytes: usize, count: usize) -> impl Iterator<Item = Range<usize>> {
    let mut size = if bytes >= EARLY { FIRST } else { count };
    let mut start = 0;
    std::iter::from_fn(move || {
        let part = start..count.min(start + size);
        (start, size) = (part.end, MOST.min(2 * size).max(size));
        (!part.is_empty()).then_some(part)
    })
}

/// What a link could carry between two kernels of which one waits for an event of the other's device.
const GAP: usize = MIB;

/// What travels at once along a ring that is tied by events. Each chunk costs a gap on its link, and the last device is behind by a chunk a hop:
/// with chunks of this size both come to the same.
pub fn chunk(bytes: usize, hops: usize) -> usize {
    match hops {
        0 | 1 => bytes,
        _ => (bytes as f64 * GAP as f64 / (hops - 1) as f64).sqrt() as usize,
    }
    .next_multiple_of(MIB)
}

/// The most of a sum that comes to a device before what is there is taken. Each window is a launch, and between two a link idles for 45 us.
pub const WINDOW: usize = 512 * MIB;

fn allowed(operation: Operation) -> &'static [Way] {
    match operation {
        Broadcast => &[Kernel, Copies, Ring],
        BroadcastCoalesced => &[Kernel, Copies, Both, Ring],
        Reduce => &[Kernel, Split, Ring],
        ReduceCoalesced => &[Kernel, Split],
        Scatter | Gather | GatherRows => &[Kernel, Copies],
    }
}

/// By the table, or as TCUDA_COMM_WAY says where the operation has that way. A way that is not possible without access to peers is
/// the caller's to replace.
pub fn choose(operation: Operation, devices: usize, bytes: usize) -> Result<Way> {
    if let Some(name) = config::get("TCUDA_COMM_WAY") {
        let Some((_, way)) = WAYS.iter().find(|(known, _)| *known == name) else {
            return Err(Error::invalid_argument(format!("TCUDA_COMM_WAY is '{name}'. It may be kernel, copies, both, ring or split.")));
        };
        if allowed(operation).contains(way) {
            return Ok(*way);
        }
    }
    let row = TABLE.iter().find(|row| row.operation == operation && devices <= row.devices && bytes <= row.bytes);
    Ok(row.map_or(allowed(operation)[0], |row| row.way))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_way_for_any_number_of_devices() {
        for operation in [Broadcast, BroadcastCoalesced, Reduce, ReduceCoalesced, Scatter, Gather, GatherRows] {
            let rows: Vec<_> = TABLE.iter().filter(|row| row.operation == operation).collect();
            let (last, others) = rows.split_last().unwrap();
            assert!((last.devices, last.bytes) == (ANY, ANY) && others.iter().all(|row| row.devices.min(row.bytes) < ANY), "{operation:?}");
            assert!(rows.iter().all(|row| allowed(operation).contains(&row.way)), "{operation:?}");
            // No row stands behind one that takes all it is for.
            let is_within = |row: &Row, other: &Row| row.devices <= other.devices && row.bytes <= other.bytes;
            assert!((1..rows.len()).all(|at| rows[..at].iter().all(|before| !is_within(rows[at], before))), "{operation:?}");
        }
    }

    #[test]
    fn parts_cover_all_once() {
        let sizes = |bytes, count| parts(bytes, count).map(|part| part.len()).collect::<Vec<_>>();
        assert_eq!(sizes(EARLY, 300), [16, 32, 64, 128, 60]);
        assert_eq!(sizes(EARLY, 1000)[3..], [128, 128, 128, 128, 128, 128, 120]);
        assert_eq!([sizes(EARLY - 1, 300), sizes(EARLY, 3)], [vec![300], vec![3]]);
        assert!(sizes(EARLY, 0).is_empty() && sizes(0, 0).is_empty());
        assert!(parts(EARLY, 1000).zip(parts(EARLY, 1000).skip(1)).all(|(one, next)| one.end == next.start));
    }

    #[test]
    fn chunks_fit_links() {
        assert_eq!([chunk(1, 3), chunk(128 * MIB, 3), chunk(1 << 30, 3)], [MIB, 8 * MIB, 23 * MIB]);
        assert_eq!([chunk(1 << 30, 7), chunk(1 << 30, 1), chunk(5, 1), chunk(1 << 50, 2)], [14 * MIB, 1 << 30, MIB, 1 << 35]);
    }
}
