//! The history of a device's memory: what was allocated, freed, mapped and asked for, by whom and when.
//!
//! Threads write into chunks of their own, with no lock and no line that others read; a full chunk is handed in and another one taken. The
//! oldest chunks are written again when there are more entries than asked for. While nothing is recorded none of it is touched: a front
//! has a writer only if its device records (`cache/front.rs`).

mod clock;
mod record;

pub use crate::base::annotation as texts;
pub use record::{Action, Record, Writer};

use super::pools::Id;
use crate::base::{Result, room};
use parking_lot::Mutex;
use record::Chunk;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const WHAT: &str = "a copy of the history";

/// What is recorded (torch's `enabled`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    Off = 0,
    /// What blocks in use were annotated with.
    State = 1,
    /// And what happens.
    All = 2,
}

/// Of one device. Never freed.
pub struct History {
    mode: AtomicU8,
    kept: Mutex<Kept>,
}

struct Kept {
    /// Entries that a snapshot has at most.
    most: usize,
    /// Who writes, the common chunk counted; and how many there ever were at once.
    writers: usize,
    most_writers: usize,
    /// Handed in, the oldest first.
    full: VecDeque<Arc<Vec<Record>>>,
    held: usize,
    lost: u64,
    /// What is no younger than this has gaps.
    lost_until: u64,
    /// What is told under a lock or rarely, by any thread.
    common: Chunk,
    began: clock::Point,
}

/// An entry as a snapshot has it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub record: Record,
    /// Microseconds since 1970.
    pub time: i64,
}

impl Entry {
    /// Of an entry that has none 0; of a failure what the device had free.
    pub fn address(&self) -> u64 {
        if self.record.action == Action::UserDefined { 0 } else { self.record.address }
    }
}

/// Everything that was recorded and kept, without gaps, the oldest first.
#[derive(Default)]
pub struct Trace {
    pub entries: Vec<Entry>,
    /// Older entries that were not kept.
    pub lost: u64,
}

/// Taken quickly; `finish` makes a trace of it.
pub struct Draft {
    history: &'static History,
    full: Vec<Arc<Vec<Record>>>,
    open: Vec<Record>,
    most: usize,
    lost: u64,
    lost_until: u64,
    began: clock::Point,
}

impl History {
    /// That records nothing.
    pub fn idle() -> History {
        History { mode: AtomicU8::new(Mode::Off as u8), kept: Mutex::new(Kept::new()) }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.mode.load(Relaxed) != Mode::Off as u8
    }

    #[inline]
    pub fn traces(&self) -> bool {
        self.mode.load(Relaxed) == Mode::All as u8
    }

    /// No writer may be left that was made before. What is not recorded any more is forgotten.
    pub fn set(&self, mode: Mode, most: usize, clear: bool) {
        let mut kept = self.kept.lock();
        if clear || mode != Mode::All || !self.traces() {
            *kept = Kept::new();
        }
        kept.most = most;
        kept.shrink();
        self.mode.store(mode as u8, Relaxed);
    }

    /// For a front whose device records. None: it does not.
    pub fn writer(&'static self, stream: u64, pool: Id) -> Option<Writer> {
        self.is_on().then(|| {
            let mut kept = self.kept.lock();
            kept.writers += 1;
            kept.most_writers = kept.most_writers.max(kept.writers);
            Writer::new(self, stream, pool, self.traces())
        })
    }

    /// What a writer has is everybody's. Nobody uses it any more.
    pub fn gather(&self, mut writer: Writer) {
        let mut kept = self.kept.lock();
        kept.writers -= 1;
        kept.keep(writer.take());
    }

    /// An event with no writer of its own.
    pub fn note(&self, action: Action, address: usize, size: usize, stream: u64, pool: Id) {
        if !self.traces() {
            return;
        }
        let annotation = texts::current();
        let mut kept = self.kept.lock();
        // Under the lock: what follows has a later time.
        let time = clock::ticks_after();
        let record = Record { time, address: address as u64, size: size as u64, stream, pool, annotation, action };
        if !kept.common.push(record) {
            let full = std::mem::take(&mut kept.common);
            kept.common = kept.turn(full);
            if !kept.common.push(record) {
                kept.lose(time);
            }
        }
    }

    /// A full chunk, for an empty one.
    fn hand_in(&self, chunk: Chunk) -> Chunk {
        self.kept.lock().turn(chunk)
    }

    fn lose(&self, time: u64) {
        self.kept.lock().lose(time);
    }

    /// All that is recorded so far. `open`: what the writers have; all of them stand still.
    pub fn draft<'a>(&'static self, open: impl Iterator<Item = &'a Writer>) -> Result<Draft> {
        let kept = self.kept.lock();
        let (mut all, mut full) = (Vec::new(), Vec::new());
        let mut add = |records: &[Record]| {
            room::reserve(&mut all, records.len(), WHAT)?;
            all.extend_from_slice(records);
            Ok(())
        };
        open.map(Writer::records).try_for_each(&mut add)?;
        add(kept.common.records())?;
        room::reserve(&mut full, kept.full.len(), WHAT)?;
        full.extend(kept.full.iter().cloned());
        let Kept { most, lost, lost_until, began, .. } = *kept;
        Ok(Draft { history: self, full, open: all, most, lost, lost_until, began })
    }

    /// Chunks that were read. How many have one changes under the lock only, which ThreadSanitizer sees; an Arc's own fence it does not.
    fn let_go(&self, chunks: Vec<Arc<Vec<Record>>>) {
        for chunk in chunks {
            let kept = self.kept.lock();
            let ended = Arc::into_inner(chunk);
            drop(kept);
            drop(ended);
        }
    }
}

impl Kept {
    fn new() -> Kept {
        Kept {
            most: 0,
            writers: 1,
            most_writers: 1,
            full: VecDeque::new(),
            held: 0,
            lost: 0,
            lost_until: 0,
            common: Chunk::default(),
            began: clock::Point::now(),
        }
    }

    fn keep(&mut self, chunk: Chunk) -> Option<Vec<Record>> {
        let records = chunk.into_records();
        let Some(last) = records.last() else { return self.shrink() };
        if self.full.try_reserve(1).is_err() {
            self.lost += records.len() as u64;
            self.lost_until = self.lost_until.max(last.time);
            return Some(records);
        }
        self.held += records.len();
        self.full.push_back(Arc::new(records));
        self.shrink()
    }

    /// The oldest chunks go while the others hold enough; one of them may be written again. Of each writer one chunk at most reaches back
    /// behind the last that goes, so what is left without gaps is enough too.
    fn shrink(&mut self) -> Option<Vec<Record>> {
        let mut spare = None;
        let enough = self.most.saturating_add(self.most_writers * Chunk::SIZE);
        while let Some(oldest) = self.full.front()
            && self.held - oldest.len() >= enough
        {
            let last = oldest.last().map_or(0, |record| record.time);
            self.held -= oldest.len();
            self.lost += oldest.len() as u64;
            self.lost_until = self.lost_until.max(last);
            spare = self.full.pop_front().and_then(|oldest| Arc::try_unwrap(oldest).ok());
        }
        spare
    }

    fn turn(&mut self, full: Chunk) -> Chunk {
        let spare = self.keep(full).unwrap_or_default();
        Chunk::make(spare)
    }

    fn lose(&mut self, time: u64) {
        self.lost += 1;
        self.lost_until = self.lost_until.max(time);
    }
}

impl Draft {
    pub fn finish(self) -> Result<Trace> {
        let scale = clock::Scale::since(self.began);
        let all = self.full.iter().map(|chunk| chunk.len()).sum::<usize>() + self.open.len();
        let mut entries = Vec::new();
        let has_room = room::reserve(&mut entries, all, WHAT);
        if has_room.is_ok() {
            let records = self.full.iter().flat_map(|chunk| chunk.iter()).chain(&self.open);
            let whole = records.filter(|record| self.lost == 0 || record.time > self.lost_until);
            // Until they are sorted by their number: what a thread did at once stays in its order.
            entries.extend(whole.zip(0..).map(|(record, time)| Entry { record: *record, time }));
        }
        self.history.let_go(self.full);
        has_room?;
        entries.sort_unstable_by_key(|entry| (entry.record.time, entry.time));
        entries.drain(..entries.len().saturating_sub(self.most));
        entries.iter_mut().for_each(|entry| entry.time = scale.microseconds(entry.record.time));
        let lost = self.lost + (all - entries.len()) as u64;
        Ok(Trace { entries, lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(most: usize) -> &'static History {
        let history: &'static History = Box::leak(Box::new(History::idle()));
        history.set(Mode::All, most, false);
        history
    }

    fn trace(history: &'static History, writers: &[Writer]) -> Trace {
        history.draft(writers.iter()).unwrap().finish().unwrap()
    }

    #[test]
    fn the_newest_are_kept_and_the_others_counted() {
        for (most, count) in [(1, 10_000), (100, 10_000), (1000, 999), (3000, 3000), (3000, 3001), (usize::MAX, 5000)] {
            let history = history(most);
            let mut writer = history.writer(7, Id::own()).unwrap();
            (0..count).for_each(|at| _ = writer.allocated(at, 1, false));
            let trace = trace(history, &[writer]);
            assert_eq!(trace.entries.len(), count.min(most));
            assert_eq!(trace.lost as usize + trace.entries.len(), count);
            let addresses: Vec<_> = trace.entries.iter().map(|entry| entry.record.address as usize).collect();
            assert_eq!(addresses, (count - addresses.len()..count).collect::<Vec<_>>());
            assert!(trace.entries.iter().all(|entry| entry.record.stream == 7));
            let held = history.kept.lock().held;
            assert!(held <= most.saturating_add(3 * Chunk::SIZE), "{held} entries are held for {most}");
        }
    }

    /// One thread's chunk spans much time: what lies beside a gap is lost too.
    #[test]
    fn what_is_kept_has_no_gaps() {
        let history = history(1000);
        let mut slow = history.writer(1, Id::own()).unwrap();
        let mut quick = history.writer(2, Id::own()).unwrap();
        let mut count = 0;
        for round in 0..3000 {
            quick.freed(round, 1);
            count += 2;
            if round % 100 == 0 {
                slow.allocated(round, 1, true);
                count += 1;
            }
        }
        let trace = trace(history, &[slow, quick]);
        assert_eq!(trace.lost + trace.entries.len() as u64, count);
        assert_eq!(trace.entries.len(), 1000);
        assert!(trace.entries.windows(2).all(|pair| pair[0].record.time <= pair[1].record.time && pair[0].time <= pair[1].time));
        let frees: Vec<_> = trace.entries.iter().filter(|entry| entry.record.action == Action::FreeRequested).collect();
        assert!(frees.windows(2).all(|pair| pair[0].record.address + 1 == pair[1].record.address));
    }

    #[test]
    fn what_is_off_is_forgotten_and_what_goes_on_is_kept() {
        let history = history(100);
        history.note(Action::Oom, 1, 2, 3, Id::own());
        history.set(Mode::All, 200, false);
        assert_eq!(trace(history, &[]).entries.len(), 1);
        history.set(Mode::All, 200, true);
        assert_eq!(trace(history, &[]).entries.len(), 0);
        history.note(Action::Oom, 1, 2, 3, Id::own());
        history.set(Mode::State, 200, false);
        history.note(Action::Oom, 1, 2, 3, Id::own());
        let mut writer = history.writer(0, Id::own()).unwrap();
        assert_eq!(writer.allocated(1, 1, false), texts::NONE);
        writer.freed(1, 1);
        assert_eq!(trace(history, &[writer]).entries.len(), 0);
        history.set(Mode::Off, 0, false);
        assert!(history.writer(0, Id::own()).is_none() && !history.is_on());
    }

    #[test]
    fn a_writer_that_ends_leaves_its_records() {
        let history = history(10);
        let mut writer = history.writer(0, Id::own()).unwrap();
        (0..4).for_each(|at| writer.freed(at, 1));
        history.gather(writer);
        history.note(Action::Snapshot, 0, 0, 0, Id::own());
        let found = trace(history, &[]);
        assert_eq!((found.entries.len(), found.lost), (9, 0));
        assert_eq!(found.entries[8].record.action, Action::Snapshot);
    }

    #[test]
    fn what_writers_of_a_few_records_leave_is_as_large() {
        let history = history(100 * Chunk::SIZE);
        for at in 0..100 {
            let mut writer = history.writer(0, Id::own()).unwrap();
            (0..3).for_each(|_| _ = writer.allocated(at, 1, false));
            history.gather(writer);
        }
        let kept = history.kept.lock();
        assert_eq!(kept.full.iter().map(|chunk| chunk.capacity()).sum::<usize>(), 300);
    }

    #[test]
    fn chunks_are_written_again_unless_somebody_reads_them() {
        let history = history(Chunk::SIZE);
        let all = |history: &'static History, writer: &Writer| history.draft(std::iter::once(writer)).unwrap().finish().unwrap();
        let mut writer = history.writer(0, Id::own()).unwrap();
        (0..10 * Chunk::SIZE).for_each(|at| _ = writer.allocated(at, 1, false));
        let draft = history.draft(std::iter::once(&writer)).unwrap();
        (0..10 * Chunk::SIZE).for_each(|at| _ = writer.allocated(at, 2, false));
        let before = draft.finish().unwrap();
        assert!(before.entries.len() == Chunk::SIZE && before.entries.iter().all(|entry| entry.record.size == 1));
        let now = all(history, &writer);
        assert!(now.entries.len() == Chunk::SIZE && now.entries.iter().all(|entry| entry.record.size == 2));
    }
}
