//! What lives: so that a test can prove that nothing leaked.

use super::Sim;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Live {
    /// Blocks of cudaMalloc and cudaMallocAsync, and their bytes.
    pub blocks: usize,
    pub block_bytes: usize,
    /// Handles of cuMemCreate that hold memory, and their bytes.
    pub handles: usize,
    pub handle_bytes: usize,
    pub mappings: usize,
    pub streams: usize,
    pub events: usize,
    /// Captured and instantiated ones, of the whole machine, whatever device was asked for.
    pub graphs: usize,
    pub graph_execs: usize,
    /// Of the whole machine, whatever device was asked for.
    pub reservations: usize,
    pub pinned_blocks: usize,
    pub registered_blocks: usize,
    pub green_contexts: usize,
}

impl Sim {
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    pub fn live(&self, devices: std::ops::Range<usize>) -> Live {
        let (pinned_blocks, registered_blocks) = self.memory.pinned();
        let reservations = self.memory.reservations();
        let mut live = Live { pinned_blocks, registered_blocks, reservations, ..Live::default() };
        {
            let line = self.scheduler.line();
            (live.graphs, live.graph_execs) = (line.state.graphs.len(), line.state.execs.len());
        }
        for device in devices {
            let (block_bytes, blocks) = self.memory.blocks_of(device);
            let (handle_bytes, handles, mappings) = self.memory.handles_of(device);
            live.blocks += blocks;
            live.block_bytes += block_bytes;
            live.handles += handles;
            live.handle_bytes += handle_bytes;
            live.mappings += mappings;
            let line = self.scheduler.line();
            live.streams += line.state.streams_of(device);
            live.events += line.state.events_of(device);
            live.green_contexts += line.state.green_contexts.values().filter(|of| **of == device).count();
        }
        live
    }
}
