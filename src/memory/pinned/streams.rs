//! Who uses blocks: streams, and what keeps blocks until it lets go of them.

use crate::base::due::Due;
use crate::memory::cache::slot::StreamKey;
use crate::memory::marks::{Known, Mark};
use crate::stream::Stream;
use std::collections::{BTreeMap, BTreeSet};

/// Of a stream or a keeper; never used again.
pub type Serial = u64;

pub struct Slot {
    pub stream: Stream,
    key: StreamKey,
    /// The ticket of the next free.
    epoch: u64,
    /// The last ticket that was taken.
    freed_in: u64,
    /// By tickets.
    pub known: Known<u64>,
    gone: bool,
    /// How many blocks it uses, or used when they were freed.
    blocks: usize,
}

impl Slot {
    /// What is freed from now on is told from what was freed so far: the last ticket of that.
    pub fn end_epoch(&mut self) -> u64 {
        if self.gone {
            return u64::MAX;
        }
        if self.freed_in == self.epoch {
            self.epoch += 1;
        }
        self.freed_in
    }

    /// Where the calling thread can ask and mark it.
    pub fn reachable(&self) -> Option<Stream> {
        (!self.gone && self.key.reachable()).then_some(self.stream)
    }
}

/// Whoever is not here any more is past all that it used.
pub struct Streams {
    slots: BTreeMap<Serial, Slot>,
    /// Those that are not gone.
    here: BTreeMap<(StreamKey, i32), Serial>,
    /// Those that pending blocks wait for, and those that are gone.
    behind: BTreeSet<Serial>,
    keepers: BTreeSet<Serial>,
    last: Serial,
    /// Something is past that was not when it was last asked.
    moved: bool,
    /// By how many are behind: when they are asked for the sake of those that are gone.
    asks: Due,
}

impl Streams {
    pub const fn new() -> Streams {
        Streams {
            slots: BTreeMap::new(),
            here: BTreeMap::new(),
            behind: BTreeSet::new(),
            keepers: BTreeSet::new(),
            last: 0,
            moved: false,
            asks: Due::new(),
        }
    }

    /// No stream and no keeper is here any more. Serials go on.
    pub fn cleared(&self) -> Streams {
        Streams { last: self.last, ..Streams::new() }
    }

    fn next(&mut self) -> Serial {
        self.last += 1;
        self.last
    }

    pub fn serial_of(&mut self, stream: Stream, key: StreamKey) -> Serial {
        if let Some(serial) = self.here.get(&(key, stream.device)) {
            return *serial;
        }
        let serial = self.next();
        self.here.insert((key, stream.device), serial);
        self.slots.insert(serial, Slot { stream, key, epoch: 1, freed_in: 0, known: Known::past(0), gone: false, blocks: 0 });
        serial
    }

    pub fn add_keeper(&mut self) -> Serial {
        let serial = self.next();
        self.keepers.insert(serial);
        serial
    }

    pub fn remove_keeper(&mut self, serial: Serial) {
        self.moved |= self.keepers.remove(&serial);
    }

    /// Whether something is past that was not when this was last called.
    pub fn have_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    pub fn is_keeper(&self, serial: Serial) -> bool {
        self.keepers.contains(&serial)
    }

    pub fn is_here(&self, serial: Serial) -> bool {
        self.is_keeper(serial) || self.slots.contains_key(&serial)
    }

    pub fn len(&self) -> usize {
        self.slots.len() + self.keepers.len()
    }

    pub fn get(&mut self, serial: Serial) -> Option<&mut Slot> {
        self.slots.get_mut(&serial)
    }

    pub fn of_device(&mut self, device: i32) -> impl Iterator<Item = (Serial, &mut Slot)> {
        self.slots.iter_mut().filter(move |(_, slot)| slot.stream.device == device).map(|(serial, slot)| (*serial, slot))
    }

    /// The default streams of one thread, of all devices; else of the one that is named.
    pub fn with_key(&self, key: StreamKey, device: Option<i32>) -> Vec<Serial> {
        let (least, most) = device.map_or((i32::MIN, i32::MAX), |device| (device, device));
        self.here.range((key, least)..=(key, most)).map(|(_, serial)| *serial).collect()
    }

    pub fn behind(&self) -> Vec<Serial> {
        self.behind.iter().copied().collect()
    }

    /// A default stream of a thread, if blocks wait for it.
    pub fn behind_with_key(&self, key: StreamKey, device: i32) -> Option<Serial> {
        self.here.get(&(key, device)).copied().filter(|serial| self.behind.contains(serial))
    }

    /// Whether so many are behind that those which are gone should be asked, which nobody does for blocks that are in use.
    pub fn should_be_asked(&self) -> bool {
        self.asks.is_due(self.behind.len())
    }

    /// They were.
    pub fn asked(&mut self) {
        self.asks = Due::looked(self.behind.len());
    }

    /// One more block that it uses.
    pub fn note_block(&mut self, serial: Serial) {
        if let Some(slot) = self.slots.get_mut(&serial) {
            slot.blocks += 1;
        }
    }

    /// The ticket of a free of such a block now. None: all that it used is past.
    pub fn freed_now(&mut self, serial: Serial) -> Option<u64> {
        let Some(slot) = self.slots.get_mut(&serial) else { return self.is_keeper(serial).then_some(0) };
        slot.freed_in = slot.epoch;
        self.behind.insert(serial);
        Some(slot.epoch)
    }

    pub fn is_past(&self, serial: Serial, ticket: u64) -> bool {
        !self.is_keeper(serial) && self.slots.get(&serial).is_none_or(|slot| slot.known.covers(ticket))
    }

    /// One block less.
    pub fn forget_block(&mut self, serial: Serial) {
        if let Some(slot) = self.slots.get_mut(&serial) {
            slot.blocks -= 1;
            self.tidy(serial);
        }
    }

    /// All up to a ticket is past.
    pub fn advance(&mut self, serial: Serial, ticket: u64) {
        if let Some(slot) = self.slots.get_mut(&serial) {
            self.moved |= slot.known.advance(ticket);
            self.tidy(serial);
        }
    }

    pub fn keep_mark(&mut self, serial: Serial, mark: Mark<u64>) {
        if let Some(slot) = self.slots.get_mut(&serial) {
            slot.known.keep(mark);
        }
    }

    /// It stands for nothing. Whether its stream is gone.
    pub fn forget_mark(&mut self, serial: Serial, void: &Mark<u64>) -> bool {
        self.slots.get_mut(&serial).is_some_and(|slot| {
            slot.known.forget(void);
            slot.gone
        })
    }

    /// The stream ends: its handle may come to mean another one.
    pub fn go(&mut self, serial: Serial) {
        if let Some(slot) = self.slots.get_mut(&serial).filter(|slot| !slot.gone) {
            slot.gone = true;
            self.here.remove(&(slot.key, slot.stream.device));
            self.behind.insert(serial);
            self.tidy(serial);
        }
    }

    fn tidy(&mut self, serial: Serial) {
        let slot = &self.slots[&serial];
        let is_over = slot.gone && (slot.blocks == 0 || slot.known.covers(u64::MAX));
        if is_over || !slot.gone && slot.known.covers(slot.freed_in) {
            self.behind.remove(&serial);
        }
        if is_over {
            self.slots.remove(&serial);
            self.moved = true;
        }
    }

    /// Panics if the parts contradict each other. `uses`: of all blocks, in use and pending.
    pub fn check(&self, uses: impl Iterator<Item = Serial>) {
        let mut blocks: BTreeMap<Serial, usize> = BTreeMap::new();
        uses.filter(|serial| self.slots.contains_key(serial)).for_each(|serial| *blocks.entry(serial).or_default() += 1);
        for (serial, slot) in &self.slots {
            assert_eq!(slot.blocks, blocks.get(serial).copied().unwrap_or(0));
            assert_eq!(self.here.get(&(slot.key, slot.stream.device)) == Some(serial), !slot.gone);
            assert_eq!(self.behind.contains(serial), slot.gone || !slot.known.covers(slot.freed_in));
            assert!(!slot.gone || slot.blocks != 0 && !slot.known.covers(u64::MAX));
        }
        assert!(self.here.len() + self.behind.iter().filter(|serial| self.slots[*serial].gone).count() == self.slots.len());
    }
}
