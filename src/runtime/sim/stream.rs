//! Streams as queues of work, and what lets a queue go on. No thread, no clock but the one that is handed in.

use super::super::table::{Code, HostFn, RawEvent, RawStream};
use super::Sim;
use super::beacon::{self, Beacon};
use super::capture::{Capture, Node};
use super::event::Event;
use super::graph::Exec;
use super::shuffle::Shuffle;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub type Task = Box<dyn FnOnce(&'static Sim) -> Result<(), Code> + Send>;

pub enum Work {
    /// Takes its place in the order and does nothing.
    Nothing,
    /// Stamps the event, if it was not recorded again since.
    Record {
        event: u64,
        version: u64,
        beacon: Option<(u64, Arc<Beacon>)>,
    },
    /// Until another process's stream has come to a record.
    Await {
        beacon: Arc<Beacon>,
        count: u64,
    },
    Delay(Duration),
    Host {
        function: HostFn,
        data: usize,
    },
    Task(Task),
    /// Waits for the work of others, so it does not count among the tasks at a time.
    Patient(Task),
}

/// A point in a stream: reached when so much of its work is done.
pub type Point = (u64, u64);

struct Item {
    work: Work,
    after: Vec<Point>,
}

pub struct Stream {
    pub device: usize,
    pub flags: u32,
    pub priority: i32,
    /// Made by the program, so it shows among what lives.
    pub counted: bool,
    /// The green context that it is of.
    pub green: Option<u64>,
    queue: VecDeque<Item>,
    submitted: u64,
    completed: u64,
    /// A thread is at its work.
    running: bool,
    /// It waits for a thread.
    ready: bool,
    /// Its front is a delay that has begun.
    until: Option<Instant>,
    /// Streams that may go on when this one gets further.
    waiters: Vec<u64>,
    /// Goes when its work is done.
    destroyed: bool,
    /// The furthest points of other streams whose events it waited for.
    follows: HashMap<u64, u64>,
}

pub const NON_BLOCKING: u32 = 1;

pub struct State {
    pub streams: HashMap<u64, Stream>,
    pub events: HashMap<u64, Event>,
    pub captures: BTreeMap<u64, Capture>,
    pub graphs: HashMap<u64, Arc<[Node]>>,
    pub execs: HashMap<u64, Exec>,
    /// By their device.
    pub green_contexts: HashMap<u64, usize>,
    /// Of all of these; never used again, so that a stale handle is always seen.
    next: u64,
    /// Each device's legacy default stream.
    pub legacy: Vec<u64>,
    /// Each device's streams that have work.
    busy: Vec<Vec<u64>>,
    lost: Vec<bool>,
    /// Turn, order of arrival, stream.
    ready: BinaryHeap<Reverse<(i64, u64, u64)>>,
    arrivals: u64,
    delays: BinaryHeap<Reverse<(Instant, u64)>>,
    pub shuffle: Option<Shuffle>,
}

/// Work that a thread has taken; `finish` it.
pub struct Job {
    pub stream: u64,
    pub device: usize,
    pub work: Work,
    /// The device was lost: the work is dropped.
    pub void: bool,
}

/// Handles look like pointers, are even, and those of streams are no events.
const STREAMS: usize = 0x5100_0000_0000;
const EVENTS: usize = 0x5200_0000_0000;
const STEP: usize = 16;

pub fn handle(base: usize, id: u64) -> usize {
    base + id as usize * STEP
}

pub fn stream_handle(id: u64) -> RawStream {
    handle(STREAMS, id)
}

pub fn event_handle(id: u64) -> RawEvent {
    handle(EVENTS, id)
}

pub fn id_of(handle: usize, base: usize) -> Option<u64> {
    let distance = handle.checked_sub(base).filter(|distance| *distance < EVENTS - STREAMS)?;
    distance.is_multiple_of(STEP).then_some((distance / STEP) as u64)
}

pub fn stream_id(handle: RawStream) -> Option<u64> {
    id_of(handle, STREAMS)
}

pub fn event_id(handle: RawEvent) -> Option<u64> {
    id_of(handle, EVENTS)
}

impl Stream {
    fn is_idle(&self) -> bool {
        self.completed == self.submitted
    }

    pub fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }
}

impl State {
    pub fn new(devices: usize, seed: Option<u64>) -> State {
        let mut state = State {
            streams: HashMap::new(),
            events: HashMap::new(),
            captures: BTreeMap::new(),
            graphs: HashMap::new(),
            execs: HashMap::new(),
            green_contexts: HashMap::new(),
            next: 1,
            legacy: Vec::new(),
            busy: vec![Vec::new(); devices],
            lost: vec![false; devices],
            ready: BinaryHeap::new(),
            arrivals: 0,
            delays: BinaryHeap::new(),
            shuffle: seed.map(Shuffle::new),
        };
        state.legacy = (0..devices).map(|device| state.add_stream(device, 0, 0, false)).collect();
        state
    }

    pub fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn add_stream(&mut self, device: usize, flags: u32, priority: i32, counted: bool) -> u64 {
        let id = self.next_id();
        let stream = Stream {
            device,
            flags,
            priority,
            counted,
            green: None,
            queue: VecDeque::new(),
            submitted: 0,
            completed: 0,
            running: false,
            ready: false,
            until: None,
            waiters: Vec::new(),
            destroyed: false,
            follows: HashMap::new(),
        };
        self.streams.insert(id, stream);
        id
    }

    /// A stream that was not destroyed.
    pub fn stream(&self, id: u64) -> Option<&Stream> {
        self.streams.get(&id).filter(|stream| !stream.destroyed)
    }

    /// Its work goes on; the stream is gone when that is done.
    pub fn destroy_stream(&mut self, id: u64) {
        self.drop_captures_of(id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.destroyed = true;
            if stream.is_idle() {
                self.streams.remove(&id);
            }
        }
    }

    pub fn has_reached(&self, (stream, count): Point) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.completed >= count)
    }

    /// What the next work of a stream has to wait for besides the stream itself: the legacy default stream and the blocking
    /// streams of its device wait for each other.
    pub fn implied(&self, id: u64) -> Vec<Point> {
        let Some(stream) = self.streams.get(&id).filter(|stream| stream.is_blocking()) else { return Vec::new() };
        let legacy = self.legacy[stream.device];
        let waits_for = |other: &u64| *other != id && (id == legacy || *other == legacy) && self.streams[other].is_blocking();
        self.busy[stream.device].iter().filter(|other| waits_for(other)).map(|other| (*other, self.streams[other].submitted)).collect()
    }

    /// What the stream does next comes after a point that was not reached yet.
    pub fn follow(&mut self, id: u64, (other, count): Point) {
        let mut follows = self.follows(id);
        follows.retain(|other, count| !self.has_reached((*other, *count)));
        let furthest = follows.entry(other).or_default();
        *furthest = count.max(*furthest);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.follows = follows;
        }
    }

    /// Up to where a stream is ordered behind others, beyond what they have done.
    pub fn follows(&self, id: u64) -> HashMap<u64, u64> {
        self.streams.get(&id).map(|stream| stream.follows.clone()).unwrap_or_default()
    }

    /// Where a stream stands when all that it has now is done.
    pub fn end_of(&self, id: u64) -> Vec<Point> {
        let mut points = self.implied_for_wait(id);
        if let Some(stream) = self.streams.get(&id).filter(|stream| !stream.is_idle()) {
            points.push((id, stream.submitted));
        }
        points
    }

    /// Who waits for the legacy default stream waits for what that would wait for.
    fn implied_for_wait(&self, id: u64) -> Vec<Point> {
        if self.streams.get(&id).is_some_and(|stream| self.legacy[stream.device] == id) { self.implied(id) } else { Vec::new() }
    }

    pub fn end_of_device(&self, device: usize) -> Vec<Point> {
        self.busy[device].iter().map(|id| (*id, self.streams[id].submitted)).collect()
    }

    /// Marks a stream as at work on this thread, if nothing is before it. Some: the point that it reaches with `finish`.
    pub fn begin_now(&mut self, id: u64) -> Option<Point> {
        if self.shuffle.is_some() || !self.streams.get(&id)?.is_idle() || !self.implied(id).is_empty() {
            return None;
        }
        let stream = self.streams.get_mut(&id)?;
        stream.running = true;
        stream.submitted += 1;
        let point = (id, stream.submitted);
        self.busy[stream.device].push(id);
        Some(point)
    }

    /// At the end of the stream, after the given points too. None: there is no such stream.
    pub fn push(&mut self, id: u64, work: Work, mut after: Vec<Point>, now: Instant) -> Option<Point> {
        after.extend(self.implied(id));
        let stream = self.streams.get_mut(&id)?;
        if stream.is_idle() {
            self.busy[stream.device].push(id);
        }
        stream.submitted += 1;
        let point = (id, stream.submitted);
        stream.queue.push_back(Item { work, after });
        self.advance(id, now);
        Some(point)
    }

    /// The work that was begun or taken is done.
    pub fn finish(&mut self, id: u64, now: Instant) {
        let mut others = Vec::new();
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.running = false;
            stream.completed += 1;
            others.append(&mut stream.waiters);
        }
        self.advance(id, now);
        for other in others {
            self.advance(other, now);
        }
    }

    /// Lets a stream go on as far as it can without a thread, and those that waited for it.
    pub fn advance(&mut self, first: u64, now: Instant) {
        let mut next = Some(first);
        let mut others = Vec::new();
        while let Some(id) = next.take().or_else(|| others.pop()) {
            while self.step(id, now) {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.completed += 1;
                    stream.queue.pop_front();
                    others.append(&mut stream.waiters);
                }
            }
            self.settle(id);
        }
    }

    /// True: the front of the queue is done with.
    fn step(&mut self, id: u64, now: Instant) -> bool {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.running && !stream.ready) else { return false };
        let Some(item) = stream.queue.front_mut() else { return false };
        let mut after = std::mem::take(&mut item.after);
        after.retain(|point| !self.has_reached(*point));
        if let Some((blocker, _)) = after.last().copied() {
            if let Some(item) = self.streams.get_mut(&id).and_then(|stream| stream.queue.front_mut()) {
                item.after = after;
            }
            if let Some(blocker) = self.streams.get_mut(&blocker).filter(|blocker| !blocker.waiters.contains(&id)) {
                blocker.waiters.push(id);
            }
            return false;
        }
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        match stream.queue.front().map(|item| &item.work) {
            Some(Work::Nothing) => true,
            Some(Work::Record { event, version, beacon }) => {
                if let Some((count, beacon)) = beacon {
                    beacon.reach(*count);
                }
                if let Some(event) = self.events.get_mut(event).filter(|event| event.version == *version) {
                    event.at = Some(now);
                }
                true
            }
            Some(Work::Await { beacon, count }) => {
                let over = beacon.has_reached(*count) || self.lost[stream.device];
                if over {
                    stream.until = None;
                } else if stream.until.is_none_or(|until| until <= now) {
                    // Looked at again by whoever looks after delays.
                    let again = now + beacon::POLL;
                    stream.until = Some(again);
                    self.delays.push(Reverse((again, id)));
                }
                over
            }
            Some(Work::Delay(duration)) => {
                let until = *stream.until.get_or_insert_with(|| {
                    let until = now + *duration;
                    self.delays.push(Reverse((until, id)));
                    until
                });
                let over = until <= now || self.lost[stream.device];
                if over {
                    stream.until = None;
                }
                over
            }
            Some(Work::Host { .. } | Work::Task(_) | Work::Patient(_)) => {
                stream.ready = true;
                let turn = self.shuffle.as_mut().map_or(i64::from(stream.priority), Shuffle::turn);
                self.arrivals += 1;
                self.ready.push(Reverse((turn, self.arrivals, id)));
                false
            }
            None => false,
        }
    }

    /// A stream without work is not busy, and goes if it was destroyed.
    fn settle(&mut self, id: u64) {
        let Some(stream) = self.streams.get(&id).filter(|stream| stream.is_idle()) else { return };
        let busy = &mut self.busy[stream.device];
        if let Some(at) = busy.iter().position(|other| *other == id) {
            busy.swap_remove(at);
        }
        if stream.destroyed {
            self.streams.remove(&id);
        }
    }

    /// Delays that are over let their streams go on.
    pub fn end_delays(&mut self, now: Instant) {
        while self.delays.peek().is_some_and(|Reverse((until, _))| *until <= now) {
            if let Some(Reverse((_, id))) = self.delays.pop() {
                self.advance(id, now);
            }
        }
    }

    pub fn next_delay(&self) -> Option<Instant> {
        self.delays.peek().map(|Reverse((until, _))| *until)
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next work for a thread.
    pub fn take(&mut self) -> Option<Job> {
        loop {
            let Reverse((turn, _, id)) = self.ready.pop()?;
            if let Some(shuffle) = &mut self.shuffle {
                shuffle.took(turn);
            }
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.ready = false;
            let Some(item) = stream.queue.pop_front() else { continue };
            stream.running = true;
            return Some(Job { stream: id, device: stream.device, work: item.work, void: self.lost[stream.device] });
        }
    }

    /// Nothing of the device waits for time any more.
    pub fn lose(&mut self, device: usize, now: Instant) {
        self.lost[device] = true;
        for id in self.busy[device].clone() {
            self.advance(id, now);
        }
        let streams = &self.streams;
        self.delays.retain(|Reverse((_, id))| streams.get(id).is_some_and(|stream| stream.until.is_some()));
    }

    /// Streams of a device that have work.
    pub fn busy_of(&self, device: usize) -> usize {
        self.busy[device].len()
    }

    /// Streams that the program made on a device.
    pub fn streams_of(&self, device: usize) -> usize {
        self.streams.values().filter(|stream| stream.counted && !stream.destroyed && stream.device == device).count()
    }
}
