//! Events: marks in streams, with the time at which they were passed.

use super::super::table::{Code, RawEvent, RawStream, code};
use super::Sim;
use super::beacon::{self, Beacon};
use super::capture::Action;
use super::stream::{self, Point, State, Work};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Event {
    pub device: usize,
    pub flags: u32,
    /// Counts the records: a later one makes an earlier one void.
    pub version: u64,
    /// Where it was recorded last.
    point: Option<Point>,
    /// It was recorded last in a capture: its number, and the nodes before.
    captured: Option<(u64, Vec<usize>)>,
    pub at: Option<Instant>,
    /// Where other processes see it, and which of its records is this process's last.
    pub beacon: Option<Arc<Beacon>>,
    count: u64,
}

/// A record of another process, and its number.
type Elsewhere = (Arc<Beacon>, u64);

impl Event {
    pub fn new(device: usize, flags: u32, beacon: Option<Arc<Beacon>>) -> Event {
        Event { device, flags, version: 0, point: None, captured: None, at: None, beacon, count: 0 }
    }

    /// A record makes the one before void.
    fn is_recorded(&mut self, captured: Option<(u64, Vec<usize>)>) {
        (self.captured, self.point, self.at) = (captured, None, None);
        self.version += 1;
    }

    /// What waits for its last record: the work for it, and what that comes after.
    pub fn awaited(&self, after: &mut Vec<Point>) -> Work {
        after.extend(self.point);
        self.elsewhere().map_or(Work::Nothing, |(beacon, count)| Work::Await { beacon, count })
    }

    /// The last record, if it is another process's and not reached yet.
    fn elsewhere(&self) -> Option<Elsewhere> {
        let beacon = self.beacon.as_ref()?;
        let count = beacon.count();
        (count != self.count && !beacon.has_reached(count)).then(|| (beacon.clone(), count))
    }
}

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
const KNOWN: u32 = 7;
/// cudaEventRecordExternal and cudaEventWaitExternal: a node of a capture.
const EXTERNAL: u32 = 1;
/// What a real device's clock resolves.
const TICK: Duration = Duration::from_nanos(500);

impl Sim {
    pub fn create_event(&'static self, flags: u32) -> Result<RawEvent, Code> {
        let device = self.current()?;
        if flags & !KNOWN != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
            return Err(code::INVALID_VALUE);
        }
        let beacon = if flags & INTERPROCESS != 0 { Some(Arc::new(Beacon::new().ok_or(code::OUT_OF_MEMORY)?)) } else { None };
        Ok(self.add_event(Event::new(device, flags, beacon)))
    }

    pub(super) fn add_event(&'static self, event: Event) -> RawEvent {
        let mut line = self.scheduler.line();
        let id = line.state.next_id();
        line.state.events.insert(id, event);
        stream::event_handle(id)
    }

    /// Where other processes see the event; an error if it is not for them.
    pub(super) fn beacon_of(&'static self, event: RawEvent) -> Result<Arc<Beacon>, Code> {
        let id = stream::event_id(event).ok_or(code::INVALID_HANDLE)?;
        let line = self.scheduler.line();
        let mark = line.state.events.get(&id).ok_or(code::INVALID_HANDLE)?;
        mark.beacon.clone().ok_or(code::INVALID_VALUE)
    }

    /// Work that it stands in goes on.
    pub fn destroy_event(&'static self, event: RawEvent) -> Result<(), Code> {
        let id = stream::event_id(event).ok_or(code::INVALID_HANDLE)?;
        let gone = self.scheduler.line().state.events.remove(&id).ok_or(code::INVALID_HANDLE)?;
        self.devices[gone.device].check()
    }

    pub fn record_event(&'static self, event: RawEvent, raw: RawStream, flags: u32) -> Result<(), Code> {
        let id = stream::event_id(event).ok_or(code::INVALID_HANDLE)?;
        let (stream, device) = self.stream_for_work(raw)?;
        let mut line = self.scheduler.line();
        line.state.events.get(&id).filter(|mark| mark.device == device).ok_or(code::INVALID_HANDLE)?;
        if flags != 0 {
            return line.state.keep_event(stream, flags, "EVENT_RECORD", Action::Record(id));
        }
        let captured = line.state.captured_point(stream)?;
        if captured.is_none() {
            return line.state.record(id, stream, Vec::new(), Instant::now()).map(|_| ()).ok_or(code::INVALID_HANDLE);
        }
        let mark = line.state.events.get_mut(&id).ok_or(code::INVALID_HANDLE)?;
        mark.is_recorded(captured);
        Ok(())
    }

    /// The stream's later work waits for the event as it was recorded last; never recorded is no wait.
    pub fn wait_event(&'static self, raw: RawStream, event: RawEvent, flags: u32) -> Result<(), Code> {
        let id = stream::event_id(event).ok_or(code::INVALID_HANDLE)?;
        let (stream, _) = self.stream_for_work(raw)?;
        let mut line = self.scheduler.line();
        let mark = line.state.events.get(&id).ok_or(code::INVALID_HANDLE)?;
        if flags != 0 {
            return line.state.keep_event(stream, flags, "WAIT_EVENT", Action::Await(id));
        }
        let (device, point, captured, elsewhere) = (mark.device, mark.point, mark.captured.clone(), mark.elsewhere());
        self.devices[device].check()?;
        if let Some((beacon, count)) = elsewhere {
            line.state.refuse_isolated(stream)?;
            line.state.push(stream, Work::Await { beacon, count }, Vec::new(), Instant::now()).ok_or(code::INVALID_HANDLE)?;
            self.went_on(&mut line);
            return Ok(());
        }
        if let Some(captured) = captured {
            return line.state.join(stream, captured);
        }
        if point.is_some() {
            line.state.refuse_isolated(stream)?;
        }
        let pending = point.filter(|point| !line.state.has_reached(*point));
        if let Some(point) = pending {
            line.state.push(stream, Work::Nothing, vec![point], Instant::now()).ok_or(code::INVALID_HANDLE)?;
            line.state.follow(stream, point);
        }
        Ok(())
    }

    /// Its device, and where it is still to come; None: complete, unless another process recorded it last.
    fn pending(&'static self, event: RawEvent) -> Result<(usize, Option<Point>, Option<Elsewhere>), Code> {
        let id = stream::event_id(event).ok_or(code::INVALID_HANDLE)?;
        let mut line = self.scheduler.line();
        let mark = line.state.events.get(&id).ok_or(code::INVALID_HANDLE)?;
        self.devices[mark.device].check()?;
        if let Some((capture, _)) = mark.captured {
            return Err(line.state.refuse_captured_event(capture));
        }
        Ok((mark.device, mark.point.filter(|point| !line.state.has_reached(*point)), mark.elsewhere()))
    }

    pub fn query_event(&'static self, event: RawEvent) -> Result<(), Code> {
        match self.pending(event)? {
            (_, None, None) => Ok(()),
            _ => Err(code::NOT_READY),
        }
    }

    pub fn synchronize_event(&'static self, event: RawEvent) -> Result<(), Code> {
        let (device, point, elsewhere) = self.pending(event)?;
        match (elsewhere, point) {
            (Some((beacon, count)), _) => {
                while !beacon.has_reached(count) && self.devices[device].check().is_ok() {
                    std::thread::sleep(beacon::POLL);
                }
            }
            (None, Some(point)) => self.wait_for(&[point]),
            (None, None) => {}
        }
        self.memory.trim_to_threshold(device);
        self.devices[device].check()
    }

    pub fn elapsed_time(&'static self, start: RawEvent, end: RawEvent) -> Result<f32, Code> {
        let line = self.scheduler.line();
        let find = |event| line.state.events.get(&stream::event_id(event)?).filter(|mark| mark.flags & DISABLE_TIMING == 0);
        let (start, end) = (find(start).ok_or(code::INVALID_HANDLE)?, find(end).ok_or(code::INVALID_HANDLE)?);
        self.devices[start.device].check()?;
        if start.device != end.device || start.point.is_none() || end.point.is_none() {
            return Err(code::INVALID_HANDLE);
        }
        let (Some(start), Some(end)) = (start.at, end.at) else { return Err(code::NOT_READY) };
        let milliseconds = |time: Duration| (time.as_nanos() / TICK.as_nanos()) as f32 * (TICK.as_nanos() as f32 / 1e6);
        Ok(if end >= start { milliseconds(end - start) } else { -milliseconds(start - end) })
    }
}

impl State {
    /// The event is recorded when the stream has come to it, and has passed what it comes after.
    pub fn record(&mut self, id: u64, stream: u64, after: Vec<Point>, now: Instant) -> Option<Point> {
        // A graph may hold one that was destroyed.
        let Some(mark) = self.events.get_mut(&id) else { return self.push(stream, Work::Nothing, after, now) };
        mark.is_recorded(None);
        let version = mark.version;
        let beacon = mark.beacon.clone().map(|beacon| (beacon.record(), beacon));
        mark.count = beacon.as_ref().map_or(0, |(count, _)| *count);
        let point = self.push(stream, Work::Record { event: id, version, beacon }, after, now)?;
        if let Some(mark) = self.events.get_mut(&id) {
            mark.point = Some(point);
        }
        Some(point)
    }

    /// A node of a capture; there has to be one.
    fn keep_event(&mut self, stream: u64, flags: u32, kind: &'static str, action: Action) -> Result<(), Code> {
        match flags {
            EXTERNAL if self.keep(stream, kind, || action)? => Ok(()),
            EXTERNAL => Err(code::ILLEGAL_STATE),
            _ => Err(code::INVALID_VALUE),
        }
    }

    pub fn events_of(&self, device: usize) -> usize {
        self.events.values().filter(|event| event.device == device).count()
    }
}
