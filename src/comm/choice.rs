//! Which way is taken: one table. To be filled from `sh run.sh comm` of the GPU kit, which measures each way at each size.

use crate::base::{Error, Result, config};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// One kernel at the centre, which reads or writes the others' memory.
    Kernel,
    /// Copies by the copy engines, on the source's stream.
    Copies,
    /// From each device to the next, in chunks, so that all links are used at once.
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
}

use Operation::*;
use Way::*;

/// What TCUDA_COMM_WAY takes.
pub const WAYS: [(&str, Way); 4] = [("kernel", Kernel), ("copies", Copies), ("ring", Ring), ("split", Split)];

struct Row {
    operation: Operation,
    /// Devices that take part, at the most; the last row of an operation is for any number.
    devices: usize,
    /// Bytes up to which the first way is taken; above it is the second. Of a whole tensor, or of all tensors of the call.
    bytes: usize,
    ways: [Way; 2],
}

const fn row(operation: Operation, devices: usize, bytes: usize, ways: [Way; 2]) -> Row {
    Row { operation, devices, bytes, ways }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const ANY: usize = usize::MAX;

/// The thresholds stand for an H200 host with NVLink between all devices.
const TABLE: &[Row] = &[
    row(Broadcast, 2, 512 * KIB, [Kernel, Copies]),
    row(Broadcast, ANY, 4 * MIB, [Kernel, Ring]),
    row(BroadcastCoalesced, 2, ANY, [Kernel, Kernel]),
    row(BroadcastCoalesced, ANY, 4 * MIB, [Kernel, Ring]),
    row(Reduce, 2, ANY, [Kernel, Kernel]),
    row(Reduce, ANY, 2 * MIB, [Kernel, Split]),
    row(ReduceCoalesced, 2, ANY, [Kernel, Kernel]),
    row(ReduceCoalesced, ANY, 2 * MIB, [Kernel, Split]),
    row(Scatter, ANY, MIB, [Kernel, Copies]),
    row(Gather, ANY, MIB, [Kernel, Copies]),
];

/// Rows of a copy between strided regions from which on the copy engines move them faster than a kernel does.
pub const WIDE_ROW: usize = 256 * KIB;

/// What travels at once around a ring: small enough that the last device does not wait long, large enough for the links' full speed.
pub fn chunk(bytes: usize) -> usize {
    (bytes / 32).next_multiple_of(MIB).clamp(MIB, 32 * MIB)
}

fn allowed(operation: Operation) -> &'static [Way] {
    match operation {
        Broadcast | BroadcastCoalesced => &[Kernel, Copies, Ring],
        Reduce | ReduceCoalesced => &[Kernel, Split],
        Scatter | Gather => &[Kernel, Copies],
    }
}

/// By the table, or as TCUDA_COMM_WAY says where the operation has that way. A way that is not possible without access to peers is
/// the caller's to replace.
pub fn choose(operation: Operation, devices: usize, bytes: usize) -> Result<Way> {
    if let Some(name) = config::get("TCUDA_COMM_WAY") {
        let Some((_, way)) = WAYS.iter().find(|(known, _)| *known == name) else {
            return Err(Error::invalid_argument(format!("TCUDA_COMM_WAY is '{name}'. It may be kernel, copies, ring or split.")));
        };
        if allowed(operation).contains(way) {
            return Ok(*way);
        }
    }
    let row = TABLE.iter().find(|row| row.operation == operation && devices <= row.devices);
    Ok(row.map_or(allowed(operation)[0], |row| row.ways[usize::from(bytes > row.bytes)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_way_for_any_number_of_devices() {
        for operation in [Broadcast, BroadcastCoalesced, Reduce, ReduceCoalesced, Scatter, Gather] {
            let rows: Vec<_> = TABLE.iter().filter(|row| row.operation == operation).collect();
            assert!(rows.is_sorted_by_key(|row| row.devices) && rows.last().unwrap().devices == ANY, "{operation:?}");
            assert!(rows.iter().all(|row| row.ways.iter().all(|way| allowed(operation).contains(way))), "{operation:?}");
        }
    }

    #[test]
    fn chunks_fit_links() {
        assert_eq!([chunk(1), chunk(64 * MIB), chunk(1 << 30), chunk(1 << 40)], [MIB, 2 * MIB, 32 * MIB, 32 * MIB]);
    }
}
