//! The events made here, for messages and for shutdown. No call needs an event to be known.

use crate::runtime::RawEvent;
use parking_lot::RwLock;
use std::collections::BTreeMap;

/// Device and flags.
static EVENTS: RwLock<BTreeMap<RawEvent, (i32, u32)>> = RwLock::new(BTreeMap::new());

pub fn insert(event: RawEvent, device: i32, flags: u32) {
    EVENTS.write().insert(event, (device, flags));
}

pub fn remove(event: RawEvent) -> Option<(i32, u32)> {
    EVENTS.write().remove(&event)
}

pub fn get(event: RawEvent) -> Option<(i32, u32)> {
    EVENTS.read().get(&event).copied()
}

pub fn all() -> Vec<RawEvent> {
    EVENTS.read().keys().copied().collect()
}
