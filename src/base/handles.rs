//! What a program holds of a thing: a number that is never used again, for nothing else. What is no handle, or was destroyed, is an error and
//! never an address.

use super::{Error, Result, Status};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Even numbers this small are no addresses: no pointer of the program passes for one.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// One for what has a table of its own.
pub fn number() -> usize {
    LAST.fetch_add(2, Relaxed) + 2
}

/// The things of one kind.
pub struct Handles<T: 'static> {
    /// As messages call one, and the function that makes one.
    what: &'static str,
    maker: &'static str,
    list: RwLock<List<T>>,
}

/// By number: new ones come to the end. A list and no tree, whose code is some kilobytes for every kind.
struct List<T> {
    entries: Vec<(usize, Option<Arc<T>>)>,
    /// How many of them were destroyed.
    gone: usize,
}

impl<T> List<T> {
    fn at(&self, handle: usize) -> Option<usize> {
        self.entries.binary_search_by_key(&handle, |entry| entry.0).ok()
    }

    fn take(&mut self, at: usize) -> Option<Arc<T>> {
        let taken = self.entries[at].1.take();
        self.gone += usize::from(taken.is_some());
        // Seldom: destroying stays cheap, whichever of many goes.
        if self.gone > self.entries.len() / 2 {
            self.entries.retain(|entry| entry.1.is_some());
            self.gone = 0;
        }
        taken
    }
}

impl<T> Handles<T> {
    pub const fn new(what: &'static str, maker: &'static str) -> Handles<T> {
        Handles { what, maker, list: RwLock::new(List { entries: Vec::new(), gone: 0 }) }
    }

    pub fn is_locked(&self) -> bool {
        self.list.is_locked()
    }

    pub fn insert(&self, thing: Arc<T>) -> usize {
        let mut list = self.list.write();
        let handle = number();
        list.entries.push((handle, Some(thing)));
        handle
    }

    pub fn get(&self, handle: usize) -> Result<Arc<T>> {
        let list = self.list.read();
        list.at(handle).and_then(|at| list.entries[at].1.clone()).ok_or_else(|| unknown(handle, self.what, self.maker))
    }

    /// Ends a handle. Of several threads one gets the thing.
    pub fn remove(&self, handle: usize) -> Result<Arc<T>> {
        self.remove_if(handle, |_| Ok(()))
    }

    /// The same where it may be: nobody gets at the thing while that is looked at.
    pub fn remove_if(&self, handle: usize, may: impl FnOnce(&Arc<T>) -> Result<()>) -> Result<Arc<T>> {
        let mut list = self.list.write();
        let at = list.at(handle);
        if let Some(thing) = at.and_then(|at| list.entries[at].1.as_ref()) {
            may(thing)?;
        }
        at.and_then(|at| list.take(at)).ok_or_else(|| unknown(handle, self.what, self.maker))
    }

    /// Ends the handles of all that a condition holds for.
    pub fn remove_where(&self, condition: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut list = self.list.write();
        let mut taken = Vec::new();
        for entry in &mut list.entries {
            taken.extend(entry.1.take_if(|thing| condition(thing)));
        }
        list.entries.retain(|entry| entry.1.is_some());
        list.gone = 0;
        taken
    }

    /// Ends all of them.
    pub fn clear(&self) -> Vec<Arc<T>> {
        self.remove_where(|_| true)
    }

    pub fn all(&self) -> Vec<Arc<T>> {
        self.list.read().entries.iter().filter_map(|entry| entry.1.clone()).collect()
    }
}

#[cold]
fn unknown(handle: usize, what: &str, maker: &str) -> Error {
    let text = format!("{handle:#x} is no {what}, or it was destroyed before. {maker} makes one.");
    Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_good_until_it_is_removed() {
        static NAMES: Handles<&str> = Handles::new("name", "tcuda_name_create");
        let (a, b) = (NAMES.insert(Arc::new("a")), NAMES.insert(Arc::new("b")));
        assert_eq!((*NAMES.get(a).unwrap(), *NAMES.remove(a).unwrap()), ("a", "a"));
        let error = NAMES.get(a).unwrap_err();
        assert_eq!(error.status, Status::TCUDA_ERROR_INVALID_HANDLE);
        assert!(error.message.contains("is no name, or it was destroyed before. tcuda_name_create makes one."), "{error}");
        assert!(NAMES.remove(a).is_err() && NAMES.get(0).is_err() && NAMES.get(usize::MAX).is_err());
        assert_eq!(NAMES.remove_where(|name| *name == "b"), [Arc::new("b")]);
        assert!(NAMES.get(b).is_err());
    }

    #[test]
    fn a_handle_is_of_one_kind() {
        static A: Handles<u8> = Handles::new("a", "");
        static B: Handles<u8> = Handles::new("b", "");
        let (a, b) = (A.insert(Arc::new(1)), B.insert(Arc::new(2)));
        assert!(a % 2 == 0 && b % 2 == 0 && a != b);
        assert!(A.get(b).is_err() && B.get(a).is_err());
    }

    #[test]
    fn many_go_in_any_order_and_the_others_stay() {
        static NUMBERS: Handles<usize> = Handles::new("number", "");
        let handles: Vec<usize> = (0..1000).map(|number| NUMBERS.insert(Arc::new(number))).collect();
        let goes = |number: usize| !number.is_multiple_of(7);
        for number in (0..1000).step_by(2).chain((1..1000).step_by(2).rev()).filter(|number| goes(*number)) {
            assert_eq!(*NUMBERS.remove(handles[number]).unwrap(), number);
        }
        for (number, handle) in handles.iter().enumerate() {
            assert_eq!(NUMBERS.get(*handle).ok().as_deref(), (!goes(number)).then_some(&number));
        }
        assert_eq!(NUMBERS.list.read().entries.iter().filter(|entry| entry.1.is_none()).count(), NUMBERS.list.read().gone);
        assert!(NUMBERS.list.read().entries.len() < 300, "what is gone takes no room");
        assert_eq!(NUMBERS.all().len(), 143);
        assert_eq!(NUMBERS.clear().len(), 143);
        assert!(NUMBERS.all().is_empty());
    }

    #[test]
    fn what_may_not_go_stays() {
        static ONES: Handles<u8> = Handles::new("one", "");
        let handle = ONES.insert(Arc::new(1));
        assert!(ONES.remove_if(handle, |_| Err(Error::internal("in use"))).unwrap_err().message.contains("in use"));
        assert!(ONES.get(handle).is_ok() && ONES.remove_if(handle, |_| Ok(())).is_ok() && ONES.remove(handle).is_err());
    }
}
