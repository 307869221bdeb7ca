//! Functions that programs leave here to be called.

use super::{handles, work};
use parking_lot::{Condvar, Mutex, RwLock};
use std::cell::Cell;
use std::sync::Arc;

/// Functions in the order in which they came. Each says whether it did something about it.
pub struct List<T> {
    entries: RwLock<Vec<Arc<Entry<T>>>>,
}

type Function<T> = Box<dyn Fn(&T) -> bool + Send + Sync>;

struct Entry<T> {
    id: u64,
    function: Function<T>,
    calls: Mutex<Calls>,
    ended: Condvar,
}

#[derive(Default)]
struct Calls {
    running: usize,
    gone: bool,
}

thread_local!(static INSIDE: Cell<bool> = const { Cell::new(false) });

impl<T> List<T> {
    #[allow(clippy::new_without_default)]
    pub const fn new() -> List<T> {
        List { entries: RwLock::new(Vec::new()) }
    }

    pub fn is_locked(&self) -> bool {
        self.entries.is_locked()
    }

    /// A number for `remove`, never given again, by no other list either.
    pub fn add(&self, function: Function<T>) -> u64 {
        let id = handles::number() as u64;
        self.entries.write().push(Arc::new(Entry { id, function, calls: Mutex::default(), ended: Condvar::new() }));
        id
    }

    /// No call begins after this; those that run on other threads have ended, unless a function of the program removes one.
    /// False: there is none of this number.
    pub fn remove(&self, id: u64) -> bool {
        let entry = {
            let mut entries = self.entries.write();
            let Some(at) = entries.iter().position(|entry| entry.id == id) else { return false };
            entries.remove(at)
        };
        let mut calls = entry.calls.lock();
        calls.gone = true;
        // Two that wait for each other would never end.
        while calls.running > 0 && !INSIDE.get() {
            entry.ended.wait(&mut calls);
        }
        true
    }

    /// Calls one after the other, and `then` after each that did something, until that has an answer. Nobody is called from inside
    /// such a function. No lock may be held.
    pub fn ask<R>(&self, value: impl Fn() -> T, mut then: impl FnMut() -> Option<R>) -> Option<R> {
        if INSIDE.get() {
            return None;
        }
        let entries: Vec<_> = self.entries.read().clone();
        entries.iter().find_map(|entry| if entry.call(&value) { then() } else { None })
    }

    /// Calls all.
    pub fn tell(&self, value: impl Fn() -> T) {
        self.ask(value, || None::<()>);
    }
}

impl<T> Entry<T> {
    fn call(&self, value: impl Fn() -> T) -> bool {
        {
            let mut calls = self.calls.lock();
            if calls.gone {
                return false;
            }
            calls.running += 1;
        }
        /// Whatever happens in between.
        struct Ends<'a>(&'a Mutex<Calls>, &'a Condvar);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                INSIDE.set(false);
                self.0.lock().running -= 1;
                self.1.notify_all();
            }
        }
        let _ends = Ends(&self.calls, &self.ended);
        let value = value();
        INSIDE.set(true);
        work::aside(|| (self.function)(&value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::sync::mpsc;

    #[test]
    fn one_after_the_other_until_it_is_enough() {
        static LIST: List<i32> = List::new();
        static SUM: AtomicUsize = AtomicUsize::new(0);
        let add = |amount: usize, says: bool| {
            LIST.add(Box::new(move |value| {
                SUM.fetch_add(amount * *value as usize, Ordering::Relaxed);
                says
            }))
        };
        let ids = [add(1, false), add(10, true), add(100, true), add(1000, true)];
        let mut asked = 0;
        let found = LIST.ask(
            || 2,
            || {
                asked += 1;
                (asked == 2).then_some("enough")
            },
        );
        assert_eq!((found, SUM.load(Ordering::Relaxed)), (Some("enough"), 222));
        assert!(LIST.remove(ids[1]) && !LIST.remove(ids[1]));
        LIST.tell(|| 1);
        assert_eq!(SUM.load(Ordering::Relaxed), 222 + 1101);
        ids.into_iter().for_each(|id| assert_eq!(LIST.remove(id), id != ids[1]));
        assert_eq!(LIST.ask(|| 1, || Some(())), None);
    }

    #[test]
    fn a_number_is_of_one_list() {
        static LISTS: [List<i32>; 2] = [List::new(), List::new()];
        let [a, b] = [0, 1].map(|at| LISTS[at].add(Box::new(|_| true)));
        assert!(!LISTS[1].remove(a) && !LISTS[0].remove(b));
        assert!(LISTS[0].remove(a) && LISTS[1].remove(b));
    }

    #[test]
    fn nobody_is_called_from_inside_and_one_may_remove_itself() {
        static LIST: List<i32> = List::new();
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        static ID: AtomicU64 = AtomicU64::new(0);
        let id = LIST.add(Box::new(|_| {
            CALLS.fetch_add(1, Ordering::Relaxed);
            LIST.tell(|| 0);
            LIST.remove(ID.load(Ordering::Relaxed))
        }));
        let later = LIST.add(Box::new(|_| CALLS.fetch_add(10, Ordering::Relaxed) > 0));
        ID.store(id, Ordering::Relaxed);
        LIST.tell(|| 0);
        assert_eq!(CALLS.load(Ordering::Relaxed), 11);
        LIST.tell(|| 0);
        assert_eq!(CALLS.load(Ordering::Relaxed), 21);
        LIST.remove(later);
    }

    #[test]
    fn who_removes_waits_for_the_calls_of_others() {
        static LIST: List<i32> = List::new();
        static DONE: AtomicUsize = AtomicUsize::new(0);
        let (started, wait_started) = mpsc::channel();
        let (go, wait_go) = mpsc::channel::<()>();
        let wait_go = Mutex::new(wait_go);
        let id = LIST.add(Box::new(move |_| {
            started.send(()).unwrap();
            wait_go.lock().recv().unwrap();
            DONE.store(1, Ordering::SeqCst);
            true
        }));
        let caller = std::thread::spawn(|| LIST.tell(|| 0));
        wait_started.recv().unwrap();
        let remover = std::thread::spawn(move || {
            assert!(LIST.remove(id));
            DONE.load(Ordering::SeqCst)
        });
        while !LIST.entries.read().is_empty() {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        assert_eq!(remover.join().unwrap(), 1);
        caller.join().unwrap();
    }
}
