//! # ipc
//! Owns:   memory that several processes share: what this one exports, for whom it is kept, and what it has of others.
//! Uses:   memory, event, stream, device, runtime, base.
//! Never:  writes memory; keeps a thread or a socket once nothing is exported; waits for another process with a lock held that a free wants.
//! Locks:  producer::STATE, then producer::ENDING or the caches'; a free tries it only, and leaves its note (producer::FREED) to whoever has it.
//!         A consumer's `turn` for each producer, then the caches' or consumer::IMPORTS, which is held for a moment only.
//! Tests:  in the files, tests/conformance/{ipc,ipc_faults,ipc_peers,ipc_watched}.rs.
//!
//! The counts of who uses what are the producer's alone. Each process that imports from it has one connection to it, on which it says what it
//! takes and what it gives back; the kernel ends the connection with the process, however that ends, and so nothing is lost. All that a
//! consumer needs beside the blob's secret comes over that connection: there is nothing in a blob that could be forged.

mod blob;
mod consumer;
mod event;
mod producer;
mod socket;
mod wire;

pub use blob::Blob;
pub use consumer::{close, import, producer_lives};
pub use producer::{collect, export, withdraw};

use crate::base::Result;
use crate::memory::{self, hooks};
use crate::runtime::Address;
use crate::stream::Stream;
use std::ops::Range;
use std::sync::Once;

/// Sums of what is shared now. Memory in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stats {
    /// What others may import, or have imported.
    pub exported: u64,
    pub exported_bytes: u64,
    /// Of these freed, and kept for others.
    pub kept: u64,
    pub kept_bytes: u64,
    /// Imports by other processes that are not closed, and the processes.
    pub taken: u64,
    pub consumers: u64,
    /// What this process has imported.
    pub imported: u64,
    pub imported_bytes: u64,
}

pub fn stats() -> Stats {
    let mut stats = Stats::default();
    producer::count(&mut stats);
    consumer::count(&mut stats);
    stats
}

/// At the first need.
fn begin() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        memory::on_held_freed(block_freed);
        hooks::PRESSURE.add(Box::new(|_| collect()));
        hooks::on_stranger(|address| {
            consumer::is_imported(address).then_some("was imported by tcuda_ipc_import; tcuda_ipc_close ends its use.")
        });
        crate::device::peer::on_enabled(consumer::peer_enabled);
    });
}

/// The hook of held blocks. In a host function too, so nothing of the driver.
fn block_freed(place: Range<Address>) {
    let address = place.start;
    consumer::block_freed(place);
    producer::block_freed(address);
}

/// Everything goes: what was imported is closed, and consumers see the end of this producer.
pub fn shutdown() {
    consumer::shutdown();
    producer::shutdown();
}

fn refuse_capture(stream: Stream, what: &str) -> Result<()> {
    stream.refuse_capture(|| format!("{what} is not possible on a stream that is being captured: do it before the capture."))
}
