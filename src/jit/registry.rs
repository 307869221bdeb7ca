//! Handles that are numbers: what is no handle, or was destroyed, is an error and never an address.

use crate::base::{Error, Result, Status, process};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub struct Registry<T: 'static> {
    /// As messages call them: `compiled function`.
    what: &'static str,
    entries: RwLock<BTreeMap<u64, (u32, Arc<T>)>>,
}

/// Numbers are of one kind of handle only.
static LAST: AtomicU64 = AtomicU64::new(0);

impl<T> Registry<T> {
    pub const fn new(what: &'static str) -> Registry<T> {
        Registry { what, entries: RwLock::new(BTreeMap::new()) }
    }

    pub fn add(&self, entry: T) -> u64 {
        let id = LAST.fetch_add(1, Relaxed) + 1;
        self.entries.write().insert(id, (process::run(), Arc::new(entry)));
        id
    }

    pub fn get(&self, id: u64) -> Result<Arc<T>> {
        let found = self.entries.read().get(&id).filter(|(run, _)| *run == process::run()).map(|(_, entry)| entry.clone());
        found.ok_or_else(|| self.unknown(id))
    }

    pub fn take(&self, id: u64) -> Result<Arc<T>> {
        let entry = self.get(id)?;
        self.entries.write().remove(&id).map(|_| entry).ok_or_else(|| self.unknown(id))
    }

    /// Ends all that a condition holds for.
    pub fn remove_where(&self, condition: impl Fn(&T) -> bool) {
        self.entries.write().retain(|_, (_, entry)| !condition(entry));
    }

    #[cold]
    fn unknown(&self, id: u64) -> Error {
        let text = format!("No {} has the handle 0x{id:x}, or it was destroyed.", self.what);
        Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_good_until_it_is_taken() {
        static NAMES: Registry<&str> = Registry::new("name");
        let (a, b) = (NAMES.add("a"), NAMES.add("b"));
        assert_eq!((*NAMES.get(a).unwrap(), *NAMES.take(a).unwrap()), ("a", "a"));
        let error = NAMES.get(a).unwrap_err();
        assert_eq!(error.status, Status::TCUDA_ERROR_INVALID_HANDLE);
        assert!(error.message.contains("No name has the handle"), "{error}");
        assert!(NAMES.take(a).is_err() && NAMES.get(0).is_err() && NAMES.get(u64::MAX).is_err());
        NAMES.remove_where(|name| *name == "b");
        assert!(NAMES.get(b).is_err());
    }
}
