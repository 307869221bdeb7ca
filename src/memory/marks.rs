//! How far streams are. A mark is an event on a stream: once it is complete, all that was counted before it is past. An idle stream needs none. Both
//! caches ask in this way, each with counts of its own.

use crate::base::{Result, Status, insist};
use crate::device;
use crate::event::pool::Pooled;
use crate::runtime::{self, RawEvent, Runtime};
use crate::stream::{self, Stream};
use std::sync::Arc;

#[derive(Clone)]
pub struct Mark<C> {
    count: C,
    event: Arc<Pooled>,
}

/// How far the device is with a mark.
#[derive(Clone, Copy, PartialEq)]
pub enum Progress {
    Ahead,
    Past,
    /// Another library had the stream join a capture as it was made: it stands for nothing.
    Void,
}

impl<C: Copy + Ord> Mark<C> {
    pub fn record(stream: Stream, count: C) -> Result<Mark<C>> {
        let event = Arc::new(Pooled::take(stream.device)?);
        let entered = stream.enter()?;
        entered.runtime.event_record(event.raw(), entered.raw)?;
        // Another library may have had it join a capture meanwhile, which would be over once somebody asked for this mark.
        stream.refuse_capture(|| "The stream joined a capture.".into())?;
        Ok(Mark { count, event })
    }

    /// The same for who waits for it. None: the stream is captured.
    pub fn to_wait_for(stream: Stream, count: C) -> Result<Option<Mark<C>>> {
        let mark = || if stream.is_capturing()? { Ok(None) } else { Mark::record(stream, count).map(Some) };
        match runtime::runtime()?.outside_capture(mark) {
            Err(error) if error.status == Status::TCUDA_ERROR_CAPTURE => Ok(None),
            marked => marked,
        }
    }

    /// The last of a stream that goes, which nobody can mark later. None: all that it had is past.
    pub fn last(stream: Stream, count: C) -> Result<Option<Mark<C>>> {
        let last = || if stream.is_past_uncaptured()? { Ok(None) } else { Mark::record(stream, count).map(Some) };
        insist(|| runtime::runtime()?.outside_capture(last))
    }

    pub fn event(&self) -> RawEvent {
        self.event.raw()
    }

    pub fn count(&self) -> C {
        self.count
    }

    fn is(&self, other: &Mark<C>) -> bool {
        Arc::ptr_eq(&self.event, &other.event)
    }

    /// As far as the driver can be asked.
    pub fn progress(&self, runtime: &Runtime) -> Progress {
        match runtime.event_query(self.event()) {
            Ok(true) => Progress::Past,
            Err(error) if error.status == Status::TCUDA_ERROR_CAPTURE => Progress::Void,
            Ok(false) | Err(_) => Progress::Ahead,
        }
    }

    /// Until it is past, or void. No lock may be held: host functions that free memory may have to run.
    pub fn wait(&self, runtime: &Runtime, device: i32) -> Result<Progress> {
        match runtime.outside_capture(|| runtime.event_synchronize(self.event())) {
            Ok(()) => Ok(Progress::Past),
            Err(error) if error.status == Status::TCUDA_ERROR_CAPTURE => Ok(Progress::Void),
            Err(error) => Err(device::blame(device)(error)),
        }
    }
}

/// What is known of how far a stream is.
pub struct Known<C> {
    /// All that was counted up to this is past.
    past: C,
    /// Of what came later, oldest first.
    marks: Vec<Mark<C>>,
}

impl<C: Copy + Ord> Known<C> {
    pub const fn past(past: C) -> Known<C> {
        Known { past, marks: Vec::new() }
    }

    pub fn count(&self) -> C {
        self.past
    }

    pub fn covers(&self, count: C) -> bool {
        self.past >= count
    }

    pub fn advance(&mut self, count: C) {
        self.past = self.past.max(count);
        let past = self.past;
        self.marks.retain(|mark| mark.count > past);
    }

    /// For who waits for it, too.
    pub fn keep(&mut self, mark: Mark<C>) {
        if !self.covers(mark.count) {
            let at = self.marks.partition_point(|other| other.count <= mark.count);
            self.marks.insert(at, mark);
        }
    }

    /// It stands for nothing.
    pub fn forget(&mut self, void: &Mark<C>) {
        self.marks.retain(|mark| !mark.is(void));
    }

    /// The oldest that tells of a count.
    pub fn mark_of(&self, count: C) -> Option<Mark<C>> {
        self.marks.iter().find(|mark| mark.count >= count).cloned()
    }

    /// For `ask`; those that still tell something are kept again.
    pub fn take_marks(&mut self) -> Vec<Mark<C>> {
        std::mem::take(&mut self.marks)
    }
}

/// The count that is past, as far as the device tells at once. Of the `marks`, oldest first, those that tell no more are gone, and one at most is new.
/// `stream`: where it can be asked. What cannot (a capturing stream, a lost device) stays as it is. `marks_legacy`: the legacy default stream too, on
/// which an event holds other streams up. Outside captures.
pub fn ask<C: Copy + Ord>(runtime: &Runtime, stream: Option<Stream>, count: C, marks: &mut Vec<Mark<C>>, marks_legacy: bool) -> Option<C> {
    /// More marks say little more about a stream that is far behind.
    const MOST: usize = 8;
    let stream = stream.filter(|stream| !stream.is_capturing().unwrap_or(true));
    // The defect that tests/suites/order.py plants to see its tests fail: every stream says that it is done.
    if cfg!(feature = "planted-order") || stream.is_some_and(|stream| stream.is_past().unwrap_or(false)) {
        marks.clear();
        return Some(count);
    }
    // Behind one that is not ready none is.
    let reached: Vec<Progress> =
        marks.iter().map(|mark| mark.progress(runtime)).take_while(|progress| *progress != Progress::Ahead).collect();
    let ready = marks.drain(..reached.len()).zip(reached);
    let past = ready.filter(|(_, progress)| *progress == Progress::Past).map(|(mark, _)| mark.count).next_back();
    let marked = marks.last().map(|mark| mark.count).or(past);
    if let Some(stream) = stream.filter(|stream| marks_legacy || stream.raw != stream::DEFAULT)
        && marked.is_none_or(|marked| count > marked)
        && marks.len() < MOST
    {
        marks.extend(Mark::record(stream, count).ok());
    }
    past
}
