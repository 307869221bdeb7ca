//! Who carries data between the ranks of a communicator: NCCL between real devices, sockets between simulated ones, of one process or of
//! several. Nothing here waits for another rank, unless NCCL is told to: what takes time is begun, and `Link::is_ready` asked until it is over.

use super::api::Runtime;
use super::cuda::nccl::{self, Nccl};
use super::select;
use super::sim::{self, rank::Rank};
use super::table::{Address, RawStream};
use crate::base::Result;
use crate::base::watch::Access;
use std::sync::Arc;

/// What makes the ranks of one communicator find each other.
pub type Id = [u8; ID_BYTES];
pub const ID_BYTES: usize = 128;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Reduction {
    Sum = 0,
    Product = 1,
    Max = 2,
    Min = 3,
    Average = 4,
}

/// What is computed with, as NCCL numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Wire {
    I8 = 0,
    U8 = 1,
    I32 = 2,
    U32 = 3,
    I64 = 4,
    U64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    BF16 = 9,
}

impl Wire {
    pub fn size(self) -> usize {
        match self {
            Wire::I8 | Wire::U8 => 1,
            Wire::F16 | Wire::BF16 => 2,
            Wire::I32 | Wire::U32 | Wire::F32 => 4,
            Wire::I64 | Wire::U64 | Wire::F64 => 8,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    AllReduce(Reduction),
    AllGather,
    ReduceScatter(Reduction),
    Broadcast { root: i32 },
    Reduce { reduction: Reduction, root: i32 },
    AllToAll,
    Send { peer: i32 },
    Recv { peer: i32 },
}

impl Call {
    pub fn name(self) -> &'static str {
        match self {
            Call::AllReduce(_) => "all_reduce",
            Call::AllGather => "all_gather",
            Call::ReduceScatter(_) => "reduce_scatter",
            Call::Broadcast { .. } => "broadcast",
            Call::Reduce { .. } => "reduce",
            Call::AllToAll => "all_to_all",
            Call::Send { .. } => "send",
            Call::Recv { .. } => "recv",
        }
    }

    /// What the input and the output are called.
    pub fn names(self) -> [&'static str; 2] {
        match self {
            Call::Send { .. } | Call::Recv { .. } => ["tensor"; 2],
            _ => ["input", "output"],
        }
    }

    /// Whether a rank reads its input, and whether it writes its output.
    pub fn ends(self, rank: i32) -> (bool, bool) {
        match self {
            Call::Broadcast { root } => (rank == root, true),
            Call::Reduce { root, .. } => (true, rank == root),
            Call::Send { .. } => (true, false),
            Call::Recv { .. } => (false, true),
            _ => (true, true),
        }
    }

    /// How many times `count` elements the input and the output have.
    pub fn shares(self, size: usize) -> (usize, usize) {
        match self {
            Call::AllGather => (1, size),
            Call::ReduceScatter(_) => (size, 1),
            Call::AllToAll => (size, size),
            _ => (1, 1),
        }
    }
}

/// One call of one rank. `count` is of elements of the smaller side; of `AllToAll` for each peer. An address that the rank does not need is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    pub call: Call,
    pub wire: Wire,
    pub count: usize,
    pub input: Address,
    pub output: Address,
    pub stream: RawStream,
}

impl Work {
    /// What it reads and writes of the rank's memory.
    pub fn accesses(&self, rank: i32, size: usize) -> Vec<Access> {
        let (reads, writes) = self.call.ends(rank);
        let (inputs, outputs) = self.call.shares(size);
        let bytes = self.count * self.wire.size();
        let read = Access { address: self.input, size: inputs * bytes, write: false };
        let written = Access { address: self.output, size: outputs * bytes, write: true };
        [reads.then_some(read), writes.then_some(written)].into_iter().flatten().collect()
    }
}

/// For a new communicator. For NCCL it holds an address of this machine.
pub fn unique_id(runtime: &Runtime) -> Result<Id> {
    if runtime.name == "sim" { sim::rank::unique_id() } else { nccl::open(runtime.driver_version)?.unique_id() }
}

/// NCCL's version (22809 is 2.28.9), or 0.
pub fn version(runtime: &Runtime) -> Result<i32> {
    if runtime.name == "sim" { Ok(0) } else { nccl::open(runtime.driver_version).map(|nccl| nccl.version) }
}

/// A rank of a communicator. One thread at a time calls it.
#[derive(Clone)]
pub enum Link {
    Nccl(Arc<nccl::Comm>),
    Sim(Arc<Rank>),
}

impl Link {
    /// Begins to find the other ranks. The rank's device is current. `blocking`: NCCL may wait for other ranks in any call, without a limit; one
    /// thread begins several only within a `Group` then.
    pub fn begin(runtime: &Runtime, id: &Id, (size, rank): (i32, i32), device: i32, blocking: bool) -> Result<Link> {
        if runtime.name == "sim" {
            return Rank::begin(id, size as usize, rank as usize, device as usize).map(Link::Sim);
        }
        nccl::open(runtime.driver_version)?.begin(id, size, rank, blocking).map(Link::Nccl)
    }

    /// Begins to make a communicator of the ranks with the same color (not negative), in the order of their keys; of equal keys in that of this
    /// one. What comes out is ready when that is over.
    pub fn split(&self, color: i32, key: i32) -> Result<Link> {
        match self {
            Link::Nccl(comm) => Ok(Link::Nccl(comm.split(color, key)?)),
            Link::Sim(rank) => Ok(Link::Sim(rank.split(color, key)?)),
        }
    }

    /// False: it is still finding the others, or at a call. Err: it failed, and can only be aborted.
    pub fn is_ready(&self) -> Result<bool> {
        match self {
            Link::Nccl(comm) => comm.is_ready(),
            Link::Sim(rank) => rank.is_ready(),
        }
    }

    /// (rank, size), once it was ready.
    pub fn place(&self) -> Result<(i32, i32)> {
        match self {
            Link::Nccl(comm) => comm.place(),
            Link::Sim(rank) => Ok(rank.place()),
        }
    }

    /// Gives calls to their streams, within a `Group`. The rank's device is current.
    pub fn post(&self, works: &[Work]) -> Result<()> {
        match self {
            Link::Nccl(comm) => works.iter().try_for_each(|work| comm.post(work)),
            Link::Sim(rank) => rank.post(works),
        }
    }

    /// Ends it, and whatever it is at; the other ranks hear of it sooner or later, and what they are at may end as if it were done. Again does nothing.
    pub fn abort(&self) -> Result<()> {
        match self {
            Link::Nccl(comm) => select::runtime()?.outside_capture(|| comm.abort()),
            Link::Sim(rank) => {
                rank.end();
                Ok(())
            }
        }
    }

    /// Ends it when all its work is done.
    pub fn end(&self) -> Result<()> {
        match self {
            Link::Nccl(comm) => select::runtime()?.outside_capture(|| comm.end()),
            Link::Sim(rank) => {
                rank.end();
                Ok(())
            }
        }
    }
}

/// Calls that go to their devices together, so that one thread may make those of several ranks.
pub struct Group(Option<&'static Nccl>);

impl Group {
    pub fn begin(runtime: &Runtime) -> Result<Group> {
        if runtime.name == "sim" {
            return Ok(Group(None));
        }
        let nccl = nccl::open(runtime.driver_version)?;
        nccl.group_start()?;
        Ok(Group(Some(nccl)))
    }

    /// What was posted may take until every link is ready.
    pub fn end(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), Nccl::group_end)
    }
}

impl Drop for Group {
    /// After a failure, of which the caller tells.
    fn drop(&mut self) {
        if let Some(nccl) = self.0.take() {
            let _ = nccl.group_end();
        }
    }
}
