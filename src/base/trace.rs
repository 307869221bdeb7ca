//! torch's GPU trace: ten kinds of events that programs may be told of.

use super::callbacks::List;
use super::watch::{self, Happening};
use super::{Error, Result, Status};
use parking_lot::Mutex;

/// All ten.
pub const ALL: i32 = 0;
/// The last of them.
pub const LAST: i32 = 10;
const ALLOCATION: i32 = 5;
const DEALLOCATION: i32 = 6;

static LIST: List<Happening> = List::new();
/// Which kind each registration is for.
static KINDS: Mutex<Vec<(u64, i32)>> = Mutex::new(Vec::new());

/// None: it is not one of torch's.
pub fn kind_of(happening: &Happening) -> Option<i32> {
    Some(match happening {
        Happening::EventMade { .. } => 1,
        Happening::EventGone { .. } => 2,
        Happening::EventRecorded { .. } => 3,
        Happening::EventWaited { .. } => 4,
        Happening::Allocated { .. } => ALLOCATION,
        Happening::Freed { .. } => DEALLOCATION,
        Happening::StreamMade { .. } => 7,
        Happening::DeviceWaited { .. } => 8,
        Happening::StreamWaited { .. } => 9,
        Happening::EventSynchronized { .. } => 10,
        _ => return None,
    })
}

pub(super) fn is_locked() -> bool {
    KINDS.is_locked() || LIST.is_locked()
}

/// A number for `remove`.
pub fn add(kind: i32, function: Box<dyn Fn(&Happening) + Send + Sync>) -> Result<u64> {
    if !(ALL..=LAST).contains(&kind) {
        let text = format!("'kind' is {kind}; it can be TCUDA_TRACE_ALL (0) or one of TCUDA_TRACE_* (1 to {LAST}).");
        return Err(Error::invalid_argument(text));
    }
    let mut kinds = KINDS.lock();
    let id = LIST.add(Box::new(move |happening| {
        if kind == ALL || Some(kind) == kind_of(happening) {
            function(happening);
        }
        false
    }));
    kinds.push((id, kind));
    look(&kinds);
    Ok(id)
}

/// The function is not called any more: calls of it on other threads are waited for, unless this is called by one.
pub fn remove(id: u64) -> Result<()> {
    {
        let mut kinds = KINDS.lock();
        kinds.retain(|known| known.0 != id);
        look(&kinds);
    }
    if LIST.remove(id) {
        return Ok(());
    }
    let text = format!("No trace function has the number {id}, or it was unregistered before. tcuda_trace_register gives these numbers.");
    Err(Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text))
}

fn look(kinds: &[(u64, i32)]) {
    let memory = |kind: i32| matches!(kind, ALL | ALLOCATION | DEALLOCATION);
    watch::set(watch::TRACE, kinds.iter().any(|known| !matches!(known.1, ALLOCATION | DEALLOCATION)));
    watch::set(watch::MEMORY, kinds.iter().any(|known| memory(known.1)));
}

pub(super) fn tell(happening: Happening) {
    let Some(kind) = kind_of(&happening) else { return };
    // It would be told at the end of a later call, to who is registered then.
    if !watch::is_counted() {
        return;
    }
    if KINDS.lock().iter().any(|known| known.1 == ALL || known.1 == kind) {
        watch::later(move || LIST.tell(|| happening));
    }
}
