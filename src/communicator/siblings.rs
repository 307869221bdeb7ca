//! The ranks of one communicator that this process has. A kernel of NCCL that is let go hands on what it never got, and the next rank's call ends
//! as if all were well: so they hear of an end before that.

use super::one::Communicator;
use crate::runtime::collective::Id;
use parking_lot::Mutex;
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
        Family { id: *id, splits: Vec::new() }
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
    let all: Vec<_> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
    all.into_iter().filter(|other| other.family == one.family && !std::ptr::eq(&**other, one)).collect()
}
