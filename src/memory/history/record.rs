//! What happened, in records of one size, and the piece of history that one thread writes.

use super::{History, clock, texts};
use crate::memory::pools::Id;

/// torch's actions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Action {
    Alloc = 1,
    FreeRequested = 2,
    /// No stream uses it any more.
    FreeCompleted = 3,
    /// A plain segment from the driver.
    SegmentAlloc = 4,
    SegmentFree = 5,
    /// Memory at addresses where there was none, and away from them.
    SegmentMap = 6,
    SegmentUnmap = 7,
    Snapshot = 8,
    Oom = 9,
    /// A thread's annotation changed.
    UserDefined = 10,
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Snapshot => "snapshot",
            Action::Oom => "oom",
            Action::UserDefined => "user_defined",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Of `clock`.
    pub time: u64,
    /// Of an `Oom`: what the device has free.
    pub address: u64,
    /// Of blocks: as asked for.
    pub size: u64,
    /// As the driver has it.
    pub stream: u64,
    pub pool: Id,
    pub annotation: u32,
    pub action: Action,
}

const _: () = assert!(size_of::<Record>() == 48);

/// Records in the order of their times.
#[derive(Default)]
pub(super) struct Chunk {
    records: Vec<Record>,
    used: usize,
}

impl Chunk {
    pub const SIZE: usize = 256;
    const NOTHING: Record =
        Record { time: 0, address: 0, size: 0, stream: 0, pool: Id::own(), annotation: texts::NONE, action: Action::Alloc };

    /// Room for `SIZE` records, where it can be had.
    pub fn make(mut records: Vec<Record>) -> Chunk {
        if records.try_reserve_exact(Chunk::SIZE.saturating_sub(records.len())).is_ok() {
            records.resize(Chunk::SIZE, Chunk::NOTHING);
        } else {
            records.clear();
        }
        Chunk { records, used: 0 }
    }

    /// False: it is full.
    #[inline(always)]
    pub fn push(&mut self, record: Record) -> bool {
        match self.records.get_mut(self.used) {
            Some(place) => {
                *place = record;
                self.used += 1;
                true
            }
            None => false,
        }
    }

    pub fn records(&self) -> &[Record] {
        &self.records[..self.used]
    }

    /// A few of a writer that ended early take no room for many.
    pub fn into_records(mut self) -> Vec<Record> {
        self.records.truncate(self.used);
        if self.used < Chunk::SIZE / 2 {
            self.records.shrink_to_fit();
        }
        self.records
    }
}

/// Writes for one thread and one stream, of a device or a pool.
pub struct Writer {
    history: &'static History,
    stream: u64,
    pool: Id,
    /// Else only blocks are annotated.
    traces: bool,
    chunk: Chunk,
}

impl Writer {
    pub(super) fn new(history: &'static History, stream: u64, pool: Id, traces: bool) -> Writer {
        Writer { history, stream, pool, traces, chunk: Chunk::default() }
    }

    pub fn set_place(&mut self, stream: u64, pool: Id) {
        (self.stream, self.pool) = (stream, pool);
    }

    /// Returns the annotation. `from_others`: the memory may come from another thread.
    #[inline(always)]
    pub fn allocated(&mut self, address: usize, requested: usize, from_others: bool) -> u32 {
        let annotation = texts::current();
        if self.traces {
            let time = if from_others { clock::ticks_after() } else { clock::ticks() };
            self.push(time, Action::Alloc, address, requested, annotation);
        }
        annotation
    }

    /// A free with nothing to wait for.
    #[inline(always)]
    pub fn freed(&mut self, address: usize, requested: usize) {
        if self.traces {
            let (time, annotation) = (clock::ticks(), texts::current());
            self.push(time, Action::FreeRequested, address, requested, annotation);
            self.push(time, Action::FreeCompleted, address, requested, annotation);
        }
    }

    #[inline(always)]
    fn push(&mut self, time: u64, action: Action, address: usize, size: usize, annotation: u32) {
        let record = Record { time, address: address as u64, size: size as u64, stream: self.stream, pool: self.pool, annotation, action };
        if !self.chunk.push(record) {
            self.turn(record);
        }
    }

    #[cold]
    #[inline(never)]
    fn turn(&mut self, record: Record) {
        self.chunk = self.history.hand_in(std::mem::take(&mut self.chunk));
        if !self.chunk.push(record) {
            self.history.lose(record.time);
        }
    }

    pub(super) fn take(&mut self) -> Chunk {
        std::mem::take(&mut self.chunk)
    }

    /// What is not handed in.
    pub fn records(&self) -> &[Record] {
        self.chunk.records()
    }
}
