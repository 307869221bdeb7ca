//! The last reading of a device: written by one thread at a time, read by any without a lock.

use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::*, fence};

pub const WORDS: usize = 10;

pub struct Snapshot {
    /// 0: nothing was written yet; odd: it is being written.
    version: AtomicU64,
    at: AtomicU64,
    words: [AtomicI64; WORDS],
    /// Held by the thread that gets a new one.
    pub asking: Mutex<()>,
}

impl Snapshot {
    pub fn new() -> Snapshot {
        Snapshot { version: AtomicU64::new(0), at: AtomicU64::new(0), words: [const { AtomicI64::new(0) }; WORDS], asking: Mutex::new(()) }
    }

    /// What was written last, and when. None: nothing, or it changes right now.
    pub fn read(&self) -> Option<(u64, [i64; WORDS])> {
        let before = self.version.load(Acquire);
        let found = (self.at.load(Relaxed), std::array::from_fn(|at| self.words[at].load(Relaxed)));
        fence(Acquire);
        (before != 0 && before.is_multiple_of(2) && self.version.load(Relaxed) == before).then_some(found)
    }

    /// `_asking` shows that no other thread writes.
    pub fn write(&self, _asking: &MutexGuard<()>, at: u64, words: [i64; WORDS]) {
        let version = self.version.load(Relaxed);
        self.version.store(version + 1, Relaxed);
        fence(Release);
        self.at.store(at, Relaxed);
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Relaxed);
        }
        self.version.store(version + 2, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reader_sees_half_of_a_reading() {
        const LAST: i64 = 200_000;
        let snapshot = Snapshot::new();
        assert_eq!(snapshot.read(), None);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut newest = 0;
                    while newest < LAST {
                        let Some((at, words)) = snapshot.read() else { continue };
                        assert_eq!(words, [at as i64; WORDS]);
                        assert!(words[0] >= newest);
                        newest = words[0];
                    }
                });
            }
            for word in 1..=LAST {
                snapshot.write(&snapshot.asking.lock(), word as u64, [word; WORDS]);
            }
        });
    }
}
