//! The ranks of one communicator that this process has. A kernel of NCCL that is let go hands on what it never got, and the next rank's call ends
//! as if all were well: so they hear of an end before that.

use super::one::Communicator;
use crate::runtime::collective::Id;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// What the ranks of one communicator agree in, and no others: the id; of a part also each split on the way to it, which of its communicator, and
/// by which color.
#[derive(Clone, PartialEq, Eq)]
pub struct Family {
    id: Id,
    splits: Vec<(u32, i32)>,
}

impl Family {
    pub fn new(id: &Id) -> Family {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // With this all ids are one, and nobody is known by it.
        let stranger = std::env::var_os("NCCL_COMM_ID").map(|_| (NEXT.fetch_add(1, Relaxed), i32::MIN));
        Family { id: *id, splits: stranger.into_iter().collect() }
    }

    pub fn part(&self, split: u32, color: i32) -> Family {
        Family { id: self.id, splits: [&self.splits[..], &[(split, color)]].concat() }
    }
}

static ALL: Mutex<Vec<Weak<Communicator>>> = Mutex::new(Vec::new());

pub fn add(new: &Arc<Communicator>) {
    let mut all = ALL.lock();
    all.retain(|one| one.strong_count() > 0);
    all.push(Arc::downgrade(new));
}

pub fn of(one: &Communicator) -> Vec<Arc<Communicator>> {
    // Not dropped under the lock: it may be the last.
    let all: Vec<_> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
    all.into_iter().filter(|other| other.family == one.family && !std::ptr::eq(&**other, one)).collect()
}
