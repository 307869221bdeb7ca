//! Who looks on: functions that trace, the synchronization debug mode, the sanitizer. While nobody does, a place that could tell something
//! reads one word and goes on.
//!
//! What is told to a program's function waits until the thread's outermost call of tcuda is about to return: no lock is held then. What that
//! function does by itself is told to nobody, so that it cannot call itself.

use super::trace;
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Somebody is told what happens, other than to memory.
pub const TRACE: u32 = 1;
/// Somebody is told of each block that is allocated or freed.
pub const MEMORY: u32 = 2;
/// Calls that make the host wait are counted, told or refused.
pub const SYNC: u32 = 4;
/// The sanitizer sees everything.
pub const SANITIZER: u32 = 8;
/// Each call is a range for a profiler.
pub const SHOWN: u32 = 16;
/// What the device is given is noted, with the call that gave it.
pub const WORK: u32 = 32;
/// The environment was not asked yet who shall look on.
pub const UNREAD: u32 = 1 << 31;

static LOOKING: AtomicU32 = AtomicU32::new(UNREAD);

/// A stream, as CUDA sees it, and its device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Place {
    pub device: i32,
    pub raw: usize,
}

/// What happened, in torch's order as far as torch has it. A device of -1 is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happening {
    EventMade {
        event: usize,
        device: i32,
    },
    EventGone {
        event: usize,
        device: i32,
    },
    EventRecorded {
        event: usize,
        on: Place,
    },
    EventWaited {
        event: usize,
        on: Place,
    },
    Allocated {
        address: usize,
        size: usize,
        on: Place,
    },
    Freed {
        address: usize,
        device: i32,
    },
    StreamMade {
        on: Place,
    },
    DeviceWaited {
        device: i32,
    },
    StreamWaited {
        on: Place,
    },
    EventSynchronized {
        event: usize,
    },
    // What only the sanitizer is told.
    /// The host knows that an event's last record, or all of a stream, is past.
    EventDone {
        event: usize,
    },
    StreamDone {
        on: Place,
    },
    /// Another process may record the event, or made it and does.
    EventShared {
        event: usize,
    },
    /// What is captured on a stream records an event in each replay, or waits for it.
    EventCaptured {
        event: usize,
        on: Place,
        waits: bool,
    },
    /// A block is about to be freed, on a stream that was named; then it was, or was not.
    Freeing {
        address: usize,
        size: usize,
        on: Option<Place>,
    },
    Kept {
        address: usize,
    },
    /// A stream was recorded as a user of the block around an address.
    Uses {
        address: usize,
        on: Place,
    },
    /// Pinned memory.
    HostAllocated {
        address: usize,
        size: usize,
    },
    HostFreeing {
        address: usize,
    },
    /// Memory of another process; what of it no import has any more. Of any memory: nothing is mapped to its addresses any more.
    Imported {
        address: usize,
        size: usize,
    },
    Closing {
        address: usize,
        size: usize,
    },
    Unmapped {
        address: usize,
        size: usize,
    },
    /// The addresses are not the cache's any more, and may be anybody's.
    Left {
        address: usize,
        size: usize,
    },
    /// A capture of tcuda's own, by the driver's number, of which it will tell the end.
    CaptureBegun {
        capture: u64,
    },
    /// What was captured under that number, by what the driver launches.
    Replayed {
        capture: u64,
        exec: usize,
        on: Place,
    },
    ExecGone {
        exec: usize,
    },
    GraphGone {
        capture: u64,
    },
    /// What a stream does next comes behind all that streams which met at the place did before they met; until nobody meets there any more.
    Meets {
        place: usize,
        on: Place,
    },
    MeetsNoMore {
        place: usize,
    },
}

/// Of strided memory so many stretches are told, the first ones.
pub const MOST_STRETCHES: usize = 4096;

/// Memory that work touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub address: usize,
    pub size: usize,
    pub write: bool,
}

#[inline(always)]
pub fn any(bits: u32) -> bool {
    LOOKING.load(Relaxed) & bits != 0
}

/// Nobody looks on.
#[inline(always)]
pub fn quiet() -> bool {
    LOOKING.load(Relaxed) == 0
}

pub fn set(bits: u32, on: bool) {
    if on {
        LOOKING.fetch_or(bits, Relaxed)
    } else {
        LOOKING.fetch_and(!bits, Relaxed)
    };
}

/// The sanitizer: called at once, under whatever locks.
pub trait Observer: Sync {
    fn happened(&self, happening: &Happening);
    /// Work was given to a stream. A device of -1: that of the stream.
    fn accessed(&self, on: Place, accesses: &[Access]);
    fn host_accessed(&self, accesses: &[Access]);
}

static OBSERVER: OnceLock<&'static dyn Observer> = OnceLock::new();

pub fn observe(observer: &'static dyn Observer) {
    let _ = OBSERVER.set(observer);
}

fn observer() -> Option<&'static dyn Observer> {
    if any(SANITIZER) && !UNSEEN.get() { OBSERVER.get().copied() } else { None }
}

/// Work was given to a stream, or done by the host.
#[cold]
pub fn accessed(on: Option<Place>, accesses: &[Access]) {
    match (observer(), on) {
        (Some(observer), Some(on)) => observer.accessed(on, accesses),
        (Some(observer), None) => observer.host_accessed(accesses),
        (None, _) => {}
    }
}

/// Does what is tcuda's own business, as filling memory that is nobody's.
pub fn unseen<T>(work: impl FnOnce() -> T) -> T {
    /// Whatever happens in between.
    struct Ends(bool);
    impl Drop for Ends {
        fn drop(&mut self) {
            UNSEEN.set(self.0);
        }
    }
    let _ends = Ends(UNSEEN.replace(true));
    work()
}

/// Something has happened.
#[inline]
pub fn tell(happening: impl FnOnce() -> Happening) {
    if any(TRACE | MEMORY | SANITIZER) {
        told(happening());
    }
}

#[cold]
fn told(happening: Happening) {
    if let Some(observer) = observer() {
        observer.happened(&happening);
    }
    if any(TRACE | MEMORY) {
        trace::tell(happening);
    }
}

// ---- a thread's calls

type Notice = Box<dyn FnOnce()>;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static FUNCTION: Cell<&'static str> = const { Cell::new("") };
    static UNSEEN: Cell<bool> = const { Cell::new(false) };
    static DELIVERING: Cell<bool> = const { Cell::new(false) };
    static PENDING: RefCell<Vec<Notice>> = const { RefCell::new(Vec::new()) };
}

/// The outermost C function that the thread is in, as far as somebody looked on when it began. Empty: none.
pub fn function() -> &'static str {
    FUNCTION.get()
}

/// Whether somebody looked on when the thread's call began. What waits is told at the end of such a call.
pub fn is_counted() -> bool {
    DEPTH.get() > 0
}

/// Has something told when the thread's call of tcuda returns.
pub fn later(notice: impl FnOnce() + 'static) {
    if !DELIVERING.get() {
        // A thread that is ending tells nothing any more.
        let _ = PENDING.try_with(|pending| pending.borrow_mut().push(Box::new(notice)));
    }
}

/// A C function that runs.
#[must_use]
pub struct Scope {
    counted: bool,
}

impl Scope {
    #[inline]
    pub fn enter(function: &'static str) -> Scope {
        if any(u32::MAX) { Scope::counted(function) } else { Scope { counted: false } }
    }

    #[cold]
    fn counted(function: &'static str) -> Scope {
        if DEPTH.get() == 0 {
            FUNCTION.set(function);
        }
        DEPTH.set(DEPTH.get() + 1);
        Scope { counted: true }
    }

    /// Its work is done, and no lock is held: programs are told.
    #[inline]
    pub fn tell(&self) {
        if self.counted && DEPTH.get() == 1 {
            deliver();
        }
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        if self.counted {
            DEPTH.set(DEPTH.get() - 1);
            if DEPTH.get() == 0 {
                FUNCTION.set("");
            }
        }
    }
}

/// Whether the thread's call is over, and programs are being told of it.
pub fn is_delivering() -> bool {
    DELIVERING.get()
}

/// Tells what waits. No lock may be held.
#[cold]
pub fn deliver() {
    /// Whatever happens in between.
    struct Ends;
    impl Drop for Ends {
        fn drop(&mut self) {
            DELIVERING.set(false);
        }
    }
    if DELIVERING.get() {
        return;
    }
    let pending = PENDING.try_with(|pending| std::mem::take(&mut *pending.borrow_mut())).unwrap_or_default();
    if pending.is_empty() {
        return;
    }
    DELIVERING.set(true);
    let _ends = Ends;
    pending.into_iter().for_each(|notice| notice());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn counted(function: &'static str) -> Scope {
        Scope::counted(function)
    }

    #[test]
    fn only_the_outermost_call_tells_and_in_order() {
        let said = Rc::new(RefCell::new(Vec::new()));
        let say = |what: i32| {
            let said = said.clone();
            later(move || {
                assert_eq!(function(), "tcuda_outer");
                said.borrow_mut().push(what);
                // Not told: a function would call itself without end.
                let said = said.clone();
                later(move || said.borrow_mut().push(-1));
                let inner = counted("tcuda_inside");
                inner.tell();
            });
        };
        let outer = counted("tcuda_outer");
        say(1);
        {
            let inner = counted("tcuda_inner");
            assert_eq!(function(), "tcuda_outer");
            say(2);
            inner.tell();
        }
        assert!(said.borrow().is_empty());
        outer.tell();
        assert_eq!(*said.borrow(), [1, 2]);
        outer.tell();
        drop(outer);
        assert_eq!((said.borrow().len(), function()), (2, ""));
    }

    #[test]
    fn a_notice_that_panics_does_not_keep_later_ones_from_being_told() {
        let said = Rc::new(Cell::new(0));
        later(|| panic!("on purpose"));
        assert!(std::panic::catch_unwind(deliver).is_err());
        let saying = said.clone();
        later(move || saying.set(1));
        deliver();
        assert_eq!(said.get(), 1);
    }
}
