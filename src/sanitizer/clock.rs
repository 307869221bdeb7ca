//! Who is past what: a clock for the host and for each stream, with what it knows of every other. Work gets numbers, and a clock says up to
//! which number of another one all is done before what it does next.

use crate::base::watch::Place;
use crate::stream;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// By number; 0 is the host.
pub(super) type Who = usize;
pub(super) const HOST: Who = 0;

/// Of all work, in every world: what a report names.
static SEQUENCE: AtomicU64 = AtomicU64::new(0);

/// The next number.
pub fn number() -> u64 {
    SEQUENCE.fetch_add(1, Relaxed) + 1
}

/// Up to which number of each clock all is past.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Known(Vec<u64>);

impl Known {
    pub fn of(&self, who: Who) -> u64 {
        self.0.get(who).copied().unwrap_or(0)
    }

    fn set(&mut self, who: Who, number: u64) {
        if self.0.len() <= who {
            self.0.resize(who + 1, 0);
        }
        self.0[who] = number;
    }

    pub fn join(&mut self, other: &Known) {
        for (who, number) in other.0.iter().enumerate() {
            if self.of(who) < *number {
                self.set(who, *number);
            }
        }
    }
}

/// A stream; per-thread default streams are told apart by their thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub on: Place,
    pub thread: u64,
}

struct Clock {
    key: Option<Key>,
    /// Waits for the legacy default stream, and is waited for by it. None: nobody could say so far.
    blocking: Option<bool>,
    /// The stream is gone; another one may be at its address.
    gone: bool,
    /// The last number when it was made.
    born: u64,
    known: Known,
}

/// What an event stands for.
#[derive(Clone, Debug)]
enum Event {
    Never,
    At(Known),
    /// Whatever is recorded here, another process may have recorded it later.
    Shared,
}

/// What an event is, to somebody who waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recorded {
    Never,
    Known,
    /// It may have been recorded by somebody else.
    Unknown,
}

pub struct Clocks {
    clocks: Vec<Clock>,
    by_key: HashMap<Key, Who>,
    events: HashMap<usize, Event>,
    meetings: HashMap<usize, Known>,
}

impl Clocks {
    pub fn new() -> Clocks {
        let host = Clock { key: None, blocking: None, gone: false, born: 0, known: Known::default() };
        Clocks { clocks: vec![host], by_key: HashMap::new(), events: HashMap::new(), meetings: HashMap::new() }
    }

    pub fn find(&self, key: Key) -> Option<Who> {
        self.by_key.get(&key).copied()
    }

    /// Whether it is known of a stream that it blocks, or does not.
    pub fn knows(&self, key: Key) -> bool {
        self.find(key).is_some_and(|who| self.clocks[who].blocking.is_some())
    }

    pub fn know(&mut self, key: Key, blocking: bool) {
        let who = self.add(key);
        self.clocks[who].blocking = Some(blocking);
    }

    pub fn add(&mut self, key: Key) -> Who {
        if let Some(who) = self.find(key) {
            return who;
        }
        let new = Clock { key: Some(key), blocking: None, gone: false, born: SEQUENCE.load(Relaxed), known: Known::default() };
        // That of a stream which is gone, and whose work all others are past, is as good as a new one: numbers only grow.
        let is_past = |who: Who| self.clocks[who].gone && self.known(HOST).of(who) >= self.known(who).of(who);
        let who = (1..self.clocks.len()).find(|who| is_past(*who)).unwrap_or(self.clocks.len());
        match self.clocks.get_mut(who) {
            Some(clock) => *clock = new,
            None => self.clocks.push(new),
        }
        self.by_key.insert(key, who);
        who
    }

    /// The stream is gone. What it was given still counts.
    pub fn leave(&mut self, on: Place) {
        self.leave_all(|key| key.on == on);
    }

    /// The thread has ended, and with it its default streams.
    pub fn leave_thread(&mut self, thread: u64) {
        self.leave_all(|key| key.thread == thread);
    }

    fn leave_all(&mut self, is_gone: impl Fn(&Key) -> bool) {
        let clocks = &mut self.clocks;
        self.by_key.retain(|key, who| {
            clocks[*who].gone |= is_gone(key);
            !is_gone(key)
        });
    }

    pub fn key(&self, who: Who) -> Option<Key> {
        self.clocks[who].key
    }

    /// Whether the stream is gone that had this clock when a number was given.
    pub fn is_gone(&self, who: Who, number: u64) -> bool {
        self.clocks[who].gone || self.is_anothers(who, number)
    }

    /// Those whose clocks they are still.
    pub fn still(&self, known: &[(Who, u64)]) -> Vec<Who> {
        known.iter().filter(|(who, number)| !self.is_anothers(*who, *number)).map(|(who, _)| *who).collect()
    }

    /// Whether the clock is another stream's by now: the host is past the one that had it.
    fn is_anothers(&self, who: Who, number: u64) -> bool {
        self.clocks[who].born >= number
    }

    pub fn known(&self, who: Who) -> &Known {
        &self.clocks[who].known
    }

    /// What the next work of a stream comes after: its own, what the host has waited for, and what CUDA orders by itself.
    fn catch_up(&mut self, who: Who) {
        let mut known = std::mem::take(&mut self.clocks[who].known);
        if who != HOST {
            known.join(&self.clocks[HOST].known);
        }
        if let Some(key) = self.clocks[who].key {
            let legacy = key.on.raw == stream::DEFAULT;
            for other in &self.clocks {
                let Some(on) = other.key.map(|key| key.on).filter(|on| on.device == key.on.device) else { continue };
                if (legacy && other.blocking == Some(true)) || (self.clocks[who].blocking == Some(true) && on.raw == stream::DEFAULT) {
                    known.join(&other.known);
                }
            }
        }
        self.clocks[who].known = known;
    }

    /// Work is given to a stream, or done by the host; its number.
    pub fn work(&mut self, who: Who) -> u64 {
        self.catch_up(who);
        let number = number();
        self.clocks[who].known.set(who, number);
        number
    }

    /// A stream's next work comes behind all of this.
    pub fn follow(&mut self, who: Who, known: &Known) {
        self.clocks[who].known.join(known);
    }

    /// All that comes before a stream's next work.
    pub fn before(&mut self, who: Who) -> &Known {
        self.catch_up(who);
        &self.clocks[who].known
    }

    pub fn event_made(&mut self, event: usize) {
        self.events.insert(event, Event::Never);
    }

    pub fn event_shared(&mut self, event: usize) {
        self.events.insert(event, Event::Shared);
    }

    pub fn event_gone(&mut self, event: usize) {
        self.events.remove(&event);
    }

    pub fn record(&mut self, event: usize, who: Who) {
        let known = self.before(who).clone();
        let event = self.events.entry(event).or_insert(Event::Never);
        if !matches!(event, Event::Shared) {
            *event = Event::At(known);
        }
    }

    pub fn has(&self, event: usize) -> bool {
        self.events.contains_key(&event)
    }

    /// `who` goes on, or is, after the event's last record. An event that nobody here knows may stand for anything, so it stands for all.
    pub fn wait(&mut self, event: usize, who: Who) -> Recorded {
        let (known, recorded) = match self.events.get(&event) {
            Some(Event::Never) => return Recorded::Never,
            Some(Event::At(known)) => (known.clone(), Recorded::Known),
            Some(Event::Shared) | None => (self.all(None), Recorded::Unknown),
        };
        self.clocks[who].known.join(&known);
        recorded
    }

    /// A stream comes to where others were, goes on behind them, and those that come later behind it.
    pub fn meet(&mut self, place: usize, who: Who) {
        let mut met = self.meetings.remove(&place).unwrap_or_default();
        met.join(self.before(who));
        self.clocks[who].known = met.clone();
        self.meetings.insert(place, met);
    }

    pub fn meet_no_more(&mut self, place: usize) {
        self.meetings.remove(&place);
    }

    /// All work of a device, or of all.
    fn all(&self, device: Option<i32>) -> Known {
        let mut all = Known::default();
        let of_device = |clock: &&Clock| clock.key.is_some_and(|key| device.is_none_or(|device| device == key.on.device));
        self.clocks.iter().filter(of_device).for_each(|clock| all.join(&clock.known));
        all
    }

    /// The host knows that all work of a stream is done.
    pub fn stream_is_past(&mut self, who: Who) {
        let known = self.before(who).clone();
        self.clocks[HOST].known.join(&known);
    }

    pub fn device_is_past(&mut self, device: i32) {
        let known = self.all(Some(device));
        self.clocks[HOST].known.join(&known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(device: i32, raw: usize) -> Key {
        Key { on: Place { device, raw }, thread: 0 }
    }

    fn two() -> (Clocks, Who, Who) {
        let mut clocks = Clocks::new();
        let (a, b) = (clocks.add(key(0, 0x5000)), clocks.add(key(0, 0x6000)));
        assert_eq!((clocks.add(key(0, 0x5000)), clocks.find(key(1, 0x5000))), (a, None));
        (clocks, a, b)
    }

    fn is_before(clocks: &mut Clocks, of: Who, number: u64, next: Who) -> bool {
        clocks.before(next).of(of) >= number
    }

    #[test]
    fn events_order_what_came_before_their_record() {
        let (mut clocks, a, b) = two();
        let first = clocks.work(a);
        clocks.record(1, a);
        let second = clocks.work(a);
        assert!(second > first && !is_before(&mut clocks, a, first, b));
        assert_eq!(clocks.wait(1, b), Recorded::Known);
        assert!(is_before(&mut clocks, a, first, b) && !is_before(&mut clocks, a, second, b));
        // What was known is handed on; a later record does not reach back.
        let c = clocks.add(key(1, 0x7000));
        clocks.record(2, b);
        clocks.wait(2, c);
        assert!(is_before(&mut clocks, a, first, c) && !is_before(&mut clocks, a, second, c));
        clocks.record(1, a);
        assert!(!is_before(&mut clocks, a, second, b));
    }

    #[test]
    fn who_comes_to_a_meeting_goes_on_behind_those_before() {
        let (mut clocks, a, b) = two();
        let first = clocks.work(a);
        clocks.meet(1, a);
        let second = clocks.work(a);
        clocks.meet(2, b);
        assert!(!is_before(&mut clocks, a, first, b));
        clocks.meet(1, b);
        assert!(is_before(&mut clocks, a, first, b) && !is_before(&mut clocks, a, second, b));
        let third = clocks.work(b);
        clocks.meet(1, b);
        assert!(!is_before(&mut clocks, b, third, a));
        clocks.meet(1, a);
        assert!(is_before(&mut clocks, b, third, a));
        clocks.meet_no_more(2);
        clocks.meet(2, a);
        assert!(!is_before(&mut clocks, a, second, b));
    }

    #[test]
    fn the_host_hands_on_what_it_waited_for() {
        let (mut clocks, a, b) = two();
        let number = clocks.work(a);
        clocks.stream_is_past(a);
        assert!(is_before(&mut clocks, a, number, b));
        let number = clocks.work(a);
        clocks.device_is_past(1);
        assert!(!is_before(&mut clocks, a, number, b));
        clocks.device_is_past(0);
        assert!(is_before(&mut clocks, a, number, b));
        let read = clocks.work(HOST);
        assert!(is_before(&mut clocks, HOST, read, a));
        let number = clocks.work(b);
        assert!(!is_before(&mut clocks, b, number, HOST));
    }

    #[test]
    fn the_legacy_default_stream_is_ordered_with_blocking_ones() {
        let (mut clocks, own, _) = two();
        let (legacy, blocking) = (clocks.add(key(0, stream::DEFAULT)), clocks.add(key(0, 0x8000)));
        let elsewhere = clocks.add(key(1, 0x9000));
        assert!(!clocks.knows(key(0, 0x8000)));
        [key(0, 0x8000), key(1, 0x9000)].into_iter().for_each(|key| clocks.know(key, true));
        assert!(clocks.knows(key(0, 0x8000)));
        let numbers = [clocks.work(own), clocks.work(blocking)];
        assert!(!is_before(&mut clocks, own, numbers[0], legacy) && is_before(&mut clocks, blocking, numbers[1], legacy));
        let number = clocks.work(legacy);
        assert!(is_before(&mut clocks, legacy, number, blocking) && !is_before(&mut clocks, legacy, number, own));
        assert!(!is_before(&mut clocks, legacy, number, elsewhere));
    }

    #[test]
    fn unknown_events_stand_for_all_and_unrecorded_ones_for_nothing() {
        let (mut clocks, a, b) = two();
        let number = clocks.work(a);
        clocks.event_made(1);
        assert_eq!(clocks.wait(1, b), Recorded::Never);
        assert!(!is_before(&mut clocks, a, number, b));
        assert_eq!(clocks.wait(2, b), Recorded::Unknown);
        assert!(is_before(&mut clocks, a, number, b));
        clocks.event_gone(1);
        assert_eq!(clocks.wait(1, b), Recorded::Unknown);
    }

    #[test]
    fn a_stream_at_an_address_of_one_that_is_gone_is_another() {
        let (mut clocks, a, b) = two();
        let number = clocks.work(a);
        clocks.leave(Place { device: 0, raw: 0x5000 });
        assert!(clocks.is_gone(a, number) && !clocks.is_gone(b, number));
        let again = clocks.add(key(0, 0x5000));
        assert!(again != a && !is_before(&mut clocks, a, number, again));
        clocks.device_is_past(0);
        assert!(is_before(&mut clocks, a, number, again));
        // Nothing of it can matter any more: the next stream has its place.
        let next = clocks.add(key(0, 0xa000));
        assert!(next == a && clocks.is_gone(a, number) && !clocks.is_gone(a, super::number()));
        let later = clocks.work(next);
        assert!(!is_before(&mut clocks, next, later, b) && clocks.add(key(0, 0xb000)) > again);
    }
}
