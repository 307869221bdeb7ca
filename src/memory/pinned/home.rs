//! What a thread keeps to itself: blocks that it freed, by kind, for its own next requests. Its lock is the thread's own but for who
//! runs short of memory or reads statistics, so a pair touches nothing that other threads write.

use super::core::{self, CORE};
use super::table::{self, Kind, State};
use crate::base::process;
use crate::base::spared::Uncancelled;
use crate::runtime::Address;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};

const BINS_BITS: u32 = 5;
/// Blocks of one kind that a thread keeps.
const DEPTH: usize = 8;
/// Larger blocks are kept when they were asked for so many times, with no other of the bin between. Where sizes change they are better
/// joined at once.
const LARGE: usize = 1 << 20;
const CERTAIN: usize = 16;

/// Blocks of the kind that was asked for last, among those that share the bin.
#[derive(Default)]
struct Bin {
    /// `Kind::raw`.
    kind: AtomicU64,
    /// How many times in a row.
    asked: AtomicUsize,
    count: AtomicUsize,
    kept: [AtomicUsize; DEPTH],
}

/// Aligned, so that no two threads write to one line.
#[derive(Default)]
#[repr(align(128))]
pub struct Home {
    busy: AtomicBool,
    bins: [Bin; 1 << BINS_BITS],
    /// Its thread has ended, and calls from its last destructors: it keeps nothing any more.
    over: AtomicBool,
    pub figures: Figures,
}

/// The lock of a home's bins. One locked instruction, where a mutex has two.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Bin {
    fn is_of(&self, kind: Kind) -> bool {
        self.kind.load(Relaxed) == kind.raw()
    }

    /// Whether a free block of this kind is kept.
    fn wants(&self, kind: Kind) -> bool {
        let bytes = kind.bytes();
        let is_likely = bytes <= LARGE || self.asked.load(Relaxed) >= CERTAIN;
        self.is_of(kind) && self.count.load(Relaxed) < DEPTH && is_likely && bytes <= core::most_kept()
    }

    fn push(&self, address: Address) {
        let count = self.count.load(Relaxed);
        self.kept[count % DEPTH].store(address, Relaxed);
        self.count.store(count + 1, Relaxed);
    }

    fn pop(&self) -> Option<Address> {
        let count = self.count.load(Relaxed).checked_sub(1)?;
        self.count.store(count, Relaxed);
        Some(self.kept[count % DEPTH].load(Relaxed))
    }

    fn drain(&self) -> impl Iterator<Item = Address> {
        std::iter::from_fn(|| self.pop())
    }
}

/// Bytes and blocks. Written with the bins locked, or under the core's lock.
#[derive(Default)]
pub struct Figures {
    pub kept: [AtomicI64; 2],
    /// The least that was kept since the core looked last: the most that was in use lies there.
    pub low: [AtomicI64; 2],
    /// All that was handed out from here.
    pub again: [AtomicI64; 2],
}

impl Figures {
    pub fn clear(&self) {
        self.kept.iter().chain(&self.low).chain(&self.again).for_each(|figure| figure.store(0, Relaxed));
    }

    fn keep(&self, bytes: usize) {
        for (kept, amount) in self.kept.iter().zip([bytes as i64, 1]) {
            kept.store(kept.load(Relaxed) + amount, Relaxed);
        }
    }

    fn hand_out(&self, bytes: usize) {
        for (at, amount) in [bytes as i64, 1].into_iter().enumerate() {
            let kept = self.kept[at].load(Relaxed) - amount;
            self.kept[at].store(kept, Relaxed);
            if kept < self.low[at].load(Relaxed) {
                self.low[at].store(kept, Relaxed);
            }
            self.again[at].store(self.again[at].load(Relaxed) + amount, Relaxed);
        }
    }
}

/// A thread's home; it goes with the thread.
struct Own(Arc<Home>);

impl Own {
    fn end(&self) {
        // In the child of a fork another thread of the parent may have held a lock.
        if !process::is_forked() && !self.0.over.swap(true, Relaxed) {
            self.0.empty();
            self.0.bins.iter().for_each(|bin| bin.kind.store(0, Relaxed));
            CORE.lock().forget_home(&self.0);
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _whole = Uncancelled::enter();
        self.end();
    }
}

thread_local! {
    static OWN: Own = {
        process::at_end(|| _ = OWN.try_with(Own::end));
        Own(Home::new())
    };
}

impl Home {
    fn new() -> Arc<Home> {
        let home = Arc::new(Home::default());
        CORE.lock().homes.push(home.clone());
        home
    }

    #[inline]
    fn lock(&self) -> Busy<'_> {
        const SPINS: u32 = 100;
        let mut tries = 0;
        while self.busy.swap(true, Acquire) {
            tries += 1;
            if tries < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        Busy(&self.busy)
    }

    #[inline]
    fn bin(&self, kind: Kind) -> &Bin {
        &self.bins[kind.spread(BINS_BITS)]
    }

    /// Gives all that it keeps to everybody.
    pub fn empty(&self) {
        let _busy = self.lock();
        if self.figures.kept[1].load(Relaxed) != 0 {
            CORE.lock().take_home(self, self.bins.iter().flat_map(Bin::drain));
        }
    }
}

/// A block of the kind that this thread kept. None: from now on it keeps blocks of this kind in place of others.
#[inline]
pub fn take(kind: Kind) -> Option<Address> {
    let taken = OWN.try_with(|Own(home)| {
        let _busy = home.lock();
        let bin = home.bin(kind);
        if !bin.is_of(kind) {
            devote(bin, kind, home);
            return None;
        }
        bin.asked.store(bin.asked.load(Relaxed) + 1, Relaxed);
        hand_out(home, bin, kind)
    });
    taken.ok().flatten()
}

/// The same, where nothing has to be changed if there is none. Others only take blocks from a bin, and the lock says how many are left.
#[inline]
pub fn at_hand(kind: Kind) -> Option<Address> {
    let taken = OWN.try_with(|Own(home)| {
        let bin = home.bin(kind);
        if !bin.is_of(kind) || bin.count.load(Relaxed) == 0 {
            return None;
        }
        let _busy = home.lock();
        bin.asked.store(bin.asked.load(Relaxed) + 1, Relaxed);
        hand_out(home, bin, kind)
    });
    taken.ok().flatten()
}

#[inline]
fn hand_out(home: &Home, bin: &Bin, kind: Kind) -> Option<Address> {
    let address = bin.pop()?;
    table::find(address)?.store(table::word(kind, State::Out), Relaxed);
    home.figures.hand_out(kind.bytes());
    Some(address)
}

#[cold]
fn devote(bin: &Bin, kind: Kind, home: &Home) {
    if home.over.load(Relaxed) {
        return;
    }
    bin.kind.store(kind.raw(), Relaxed);
    bin.asked.store(1, Relaxed);
    if bin.count.load(Relaxed) != 0 {
        CORE.lock().take_home(home, bin.drain());
    }
}

/// Keeps the block that starts here, if it is one that no stream uses and of a kind that this thread asked for lately.
#[inline]
pub fn keep(address: Address) -> bool {
    let Some(word) = table::find(address) else { return false };
    let seen = word.load(Relaxed);
    let Some((kind, State::Out)) = table::parse(seen) else { return false };
    let kept = OWN.try_with(|Own(home)| {
        let bin = home.bin(kind);
        if !bin.wants(kind) {
            return false;
        }
        let _busy = home.lock();
        #[cfg(test)]
        tests::before_the_change();
        // Another thread may free it at the same time, or note a use.
        if word.compare_exchange(seen, table::word(kind, State::Kept), AcqRel, Relaxed).is_err() {
            return false;
        }
        bin.push(address);
        home.figures.keep(kind.bytes());
        true
    });
    kept.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::mpsc::channel;

    thread_local!(static BEFORE_THE_CHANGE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) });

    /// What another thread does while a block is about to be kept.
    pub fn before_the_change() {
        if let Some(work) = BEFORE_THE_CHANGE.take() {
            work();
        }
    }

    /// Of two threads that free it at the same time, where each would keep it.
    #[test]
    fn a_block_is_freed_once() {
        // No test has blocks here.
        const BLOCK: Address = 0x7b40_0000_0000;
        let kind = Kind::new(4096, 0).unwrap();
        table::make(BLOCK).store(table::word(kind, State::Out), Relaxed);
        assert_eq!(take(kind), None, "from now on blocks of the kind are kept");
        let ((begin, begun), (freed, is_freed), (end, over)) = (channel(), channel(), channel());
        let other = std::thread::spawn(move || {
            begun.recv().unwrap();
            assert_eq!(take(kind), None);
            assert!(keep(BLOCK));
            freed.send(()).unwrap();
            over.recv().unwrap();
            // What a thread has when it ends goes to everybody.
            assert_eq!(take(kind), Some(BLOCK));
        });
        let meanwhile = move || {
            begin.send(()).unwrap();
            is_freed.recv().unwrap();
        };
        BEFORE_THE_CHANGE.set(Some(Box::new(meanwhile)));
        assert!(!keep(BLOCK), "two threads keep one block");
        assert!(CORE.lock().free(BLOCK).is_err() && !keep(BLOCK));
        end.send(()).unwrap();
        other.join().unwrap();
        table::make(BLOCK).store(0, Relaxed);
    }
}
