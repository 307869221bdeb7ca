//! The events made here: their devices and flags, and which of them were destroyed lately.
//!
//! A driver that is given a destroyed event reads freed memory. So a destroyed event is kept back for a while, during which tcuda knows
//! for sure that its handle is none; the oldest is really destroyed when there are many.

use crate::runtime::RawEvent;
use parking_lot::RwLock;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    pub device: i32,
    pub flags: u32,
    pub is_destroyed: bool,
}

struct Events {
    known: BTreeMap<RawEvent, Known>,
    /// The destroyed ones, oldest first.
    kept: VecDeque<RawEvent>,
}

static EVENTS: RwLock<Events> = RwLock::new(Events { known: BTreeMap::new(), kept: VecDeque::new() });
/// How many destroyed events are kept back.
const MOST_KEPT: usize = 256;

pub fn insert(event: RawEvent, device: i32, flags: u32) {
    EVENTS.write().known.insert(event, Known { device, flags, is_destroyed: false });
}

pub fn get(event: RawEvent) -> Option<Known> {
    EVENTS.read().known.get(&event).copied()
}

pub enum Destroyed {
    /// It was made by somebody else.
    Unknown,
    Before,
    /// Kept back; the event that is to be destroyed in its place, if there is one.
    Kept(Option<(RawEvent, Known)>),
}

/// From here on the handle is none any more; of several threads one is told that it did it.
pub fn destroy(event: RawEvent) -> Destroyed {
    let mut events = EVENTS.write();
    match events.known.get_mut(&event) {
        None => return Destroyed::Unknown,
        Some(known) if known.is_destroyed => return Destroyed::Before,
        Some(known) => known.is_destroyed = true,
    }
    events.kept.push_back(event);
    if events.kept.len() <= MOST_KEPT {
        return Destroyed::Kept(None);
    }
    let oldest = events.kept.pop_front();
    Destroyed::Kept(oldest.and_then(|event| Some((event, events.known.remove(&event)?))))
}

/// Takes back an event that could not be destroyed: a later one's turn tries again.
pub fn keep(event: RawEvent, known: Known) {
    let mut events = EVENTS.write();
    events.known.insert(event, known);
    events.kept.push_back(event);
}

/// Forgets all events and says which there were.
pub fn clear() -> Vec<(RawEvent, Known)> {
    let mut events = EVENTS.write();
    events.kept.clear();
    std::mem::take(&mut events.known).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destroyed_event_is_known_as_such_until_many_came_after() {
        // Addresses of no event.
        let address = |index: usize| 0x1_0000 + index * 16;
        for index in 0..MOST_KEPT + 1 {
            insert(address(index), 0, index as u32);
        }
        assert!(matches!(destroy(0xfff0), Destroyed::Unknown));
        for index in 0..MOST_KEPT {
            assert!(matches!(destroy(address(index)), Destroyed::Kept(None)));
        }
        assert!(matches!(destroy(address(5)), Destroyed::Before));
        assert!(get(address(0)).unwrap().is_destroyed && !get(address(MOST_KEPT)).unwrap().is_destroyed);
        let Destroyed::Kept(Some((oldest, known))) = destroy(address(MOST_KEPT)) else { panic!("nothing gave way") };
        assert_eq!((oldest, known.flags), (address(0), 0));
        assert_eq!(get(oldest), None);
        keep(oldest, known);
        assert!(matches!(destroy(oldest), Destroyed::Before));
        assert_eq!(clear().len(), MOST_KEPT + 1);
    }
}
