//! What streams were given and may not have done yet, for errors of devices, which CUDA tells late: `TCUDA_RECORD_WORK=1`. The seam notes
//! each piece of work, C functions say whose it is.

use super::{Error, Result, Status, annotation, config, log, watch};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;

const VARIABLE: &str = "TCUDA_RECORD_WORK";
/// More is not kept.
const MOST: usize = 256;

/// A piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    pub number: u64,
    /// The C function that gave it, and what its thread was annotated with.
    pub function: &'static str,
    pub annotation: u32,
    /// CUDA's function, or the kernel.
    pub what: &'static str,
    /// As CUDA sees it.
    pub stream: usize,
    /// -1: not known.
    pub device: i32,
}

static WORKS: Mutex<Works> = Mutex::new(Works { last: 0, kept: VecDeque::new() });

struct Works {
    /// The number of the newest piece.
    last: u64,
    kept: VecDeque<Work>,
}

impl Works {
    fn push(&mut self, work: Work) {
        self.last += 1;
        if self.kept.len() == MOST {
            self.kept.pop_front();
        }
        self.kept.push_back(Work { number: self.last, ..work });
    }

    fn done(&mut self, until: u64, is_done: impl Fn(&Work) -> bool) {
        self.kept.retain(|work| work.number > until || !is_done(work));
    }
}

thread_local!(static ASIDE: Cell<bool> = const { Cell::new(false) });
thread_local!(static GIVER: Cell<(&'static str, u32)> = const { Cell::new(("", 0)) });

#[inline(always)]
pub fn is_on() -> bool {
    watch::any(watch::WORK)
}

/// The calling thread is in this C function, and so annotated.
#[cold]
pub fn enter(function: &'static str) {
    GIVER.set((function, annotation::current()));
}

/// Runs a function of the program's in the middle of a call, which gives on what it gives afterwards.
pub fn aside<T>(function: impl FnOnce() -> T) -> T {
    /// Puts both back, whatever happens.
    struct Middle((&'static str, u32), bool);
    impl Drop for Middle {
        fn drop(&mut self) {
            GIVER.set(self.0);
            ASIDE.set(self.1);
        }
    }
    let _middle = Middle(GIVER.get(), ASIDE.replace(true));
    function()
}

/// For what leaves nothing of a call that is under way, nor of what it gives.
pub fn refuse_aside(what: &str) -> Result<()> {
    if ASIDE.get() || watch::is_delivering() {
        let text = format!("{what} cannot be called by a function that tcuda calls in a call of its own.");
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
    }
    Ok(())
}

/// At the first call of all.
#[cold]
pub fn configure() {
    match config::get(VARIABLE).as_deref() {
        Some("1") => watch::set(watch::WORK, true),
        None | Some("0") => {}
        Some(text) => log::warn(&format!("{VARIABLE} is '{text}'; it can be 0 or 1. It counts as 0.")),
    }
}

/// A stream of a device is about to be given work.
pub fn note(what: &'static str, stream: usize, device: i32) {
    let (function, annotation) = GIVER.get();
    WORKS.lock().push(Work { number: 0, function, annotation, what, stream, device });
}

/// The number of the newest piece, for `done`.
#[inline]
pub fn newest() -> u64 {
    if is_on() { WORKS.lock().last } else { 0 }
}

/// All of these up to that number is done.
#[inline]
pub fn done(until: u64, is_done: impl Fn(&Work) -> bool) {
    if is_on() {
        WORKS.lock().done(until, is_done);
    }
}

/// What may not be done, the newest last.
pub fn open() -> Vec<Work> {
    WORKS.lock().kept.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::callbacks::List;

    #[test]
    fn the_newest_are_kept_until_they_are_done() {
        let mut works = Works { last: 0, kept: VecDeque::new() };
        let work =
            |at: usize| Work { number: 0, function: "tcuda_x", annotation: 7, what: "a kernel", stream: [1, 2, 3][at % 3], device: -1 };
        (0..MOST + 10).for_each(|at| works.push(work(at)));
        assert_eq!((works.kept.len(), works.kept[0].number, works.last), (MOST, 11, MOST as u64 + 10));
        works.done(works.last - 3, |work| work.stream == 1);
        works.done(works.last, |work| work.stream == 2);
        assert!(works.kept.iter().all(|work| work.stream == 3 || (work.stream == 1 && work.number > works.last - 3)));
        assert_eq!(works.kept.iter().filter(|work| work.stream == 1).count(), 1);
        works.done(u64::MAX, |_| true);
        assert!(works.kept.is_empty());
    }

    #[test]
    fn what_is_called_from_inside_of_a_call_is_not_taken_for_it() {
        static LIST: List<i32> = List::new();
        let giver = || GIVER.get().0;
        let inside = || enter("tcuda_inside");
        enter("tcuda_outside");
        let id = LIST.add(Box::new(move |_| {
            inside();
            false
        }));
        LIST.tell(|| 1);
        assert_eq!((giver(), LIST.remove(id)), ("tcuda_outside", true));
        aside(|| {
            inside();
            assert_eq!(giver(), "tcuda_inside");
        });
        assert_eq!(giver(), "tcuda_outside");
    }
}
