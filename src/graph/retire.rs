//! What graphs leave behind: memory that replays which were begun may still use. It goes when they are over, which is looked at whenever
//! memory is swept.

use super::draws::Drawn;
use super::pool::Use;
use crate::base::due::Due;
use crate::base::{Result, watch};
use crate::event::{self, pool::Pooled};
use crate::memory::captures;
use crate::memory::pinned::Keeper;
use crate::runtime;
use crate::stream::Stream;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a graph's replays use.
pub type Held = (Vec<Use>, Vec<Keeper>, Vec<Drawn>);

/// What has to be over first.
pub enum Wait {
    Event(Pooled),
    /// All that the device has: a stream could not be marked. Nobody asks for that, it has to be waited for.
    Device,
}

impl Wait {
    /// Whether it is known to be over.
    pub fn is_over(&self) -> bool {
        let Wait::Event(event) = self else { return false };
        runtime::runtime().and_then(|runtime| runtime.outside_capture(|| watch::unseen(|| event::query(event.raw())))).unwrap_or(false)
    }
}

/// What is not over yet.
struct Replays {
    device: i32,
    waits: Vec<Wait>,
    /// The pinned blocks that they may still use, which may go before the rest does.
    keepers: Mutex<Vec<Keeper>>,
}

struct Retired {
    replays: Arc<Replays>,
    /// Dropped with it.
    held: (Vec<Use>, Vec<Drawn>),
}

struct List {
    all: Vec<Arc<Retired>>,
    /// When updates ask them.
    asks: Due,
}

static RETIRED: Mutex<List> = Mutex::new(List { all: Vec::new(), asks: Due::new() });

/// What tells that a stream is past its replays; None: it is.
pub fn mark(stream: Stream) -> Option<Wait> {
    let outcome = runtime::runtime().and_then(|runtime| {
        let _steady = captures::steady();
        runtime.outside_capture(|| {
            // An event of a capture tells nothing.
            if stream.is_capturing()? {
                return Ok(Some(Wait::Device));
            }
            if watch::unseen(|| stream.query())? {
                return Ok(None);
            }
            let event = Pooled::take(stream.device)?;
            event::record(event.raw(), stream)?;
            Ok(Some(Wait::Event(event)))
        })
    });
    outcome.unwrap_or(Some(Wait::Device))
}

/// Goes at once if nothing has to be waited for.
pub fn leave(device: i32, waits: Vec<Wait>, held: Held) {
    if !waits.is_empty() {
        RETIRED.lock().all.push(Retired::new(device, waits, held));
    }
}

/// The same where nothing may be swept, which waits for the device: the graph is locked. For a loop that does nothing else, what is over goes too when
/// much is left.
pub fn leave_unswept(device: i32, waits: Vec<Wait>, held: Held) {
    if waits.is_empty() {
        let (uses, keepers, drawn) = held;
        drop(keepers);
        return let_go((uses, drawn));
    }
    let all = {
        let mut list = RETIRED.lock();
        list.all.push(Retired::new(device, waits, held));
        if !list.asks.is_due(list.all.len()) {
            return;
        }
        list.all.clone()
    };
    remove(all.iter().filter(|retired| retired.replays.are_over(false).unwrap_or(false)));
    all.into_iter().filter_map(Arc::into_inner).for_each(|retired| let_go(retired.held));
}

fn let_go((uses, drawn): (Vec<Use>, Vec<Drawn>)) {
    uses.into_iter().for_each(Use::leave);
    drop(drawn);
}

/// Somebody else holds them still: who drops one sweeps memory.
fn remove<'a>(over: impl Iterator<Item = &'a Arc<Retired>>) {
    let which: BTreeSet<_> = over.map(Arc::as_ptr).collect();
    let mut list = RETIRED.lock();
    list.all.retain(|retired| !which.contains(&Arc::as_ptr(retired)));
    list.asks = Due::looked(list.all.len());
}

/// Lets go of what is over; `wait` for the rest. `device`: None: of all. What fails is kept, and the first failure is the answer.
pub fn sweep(wait: bool, device: Option<i32>) -> Result<()> {
    let mut answer = Ok(());
    // Others see it meanwhile, and wait for it too.
    let mut all = RETIRED.lock().all.clone();
    all.retain(|retired| {
        device.is_none_or(|device| device == retired.replays.device)
            && retired.replays.are_over(wait).unwrap_or_else(|error| {
                answer = std::mem::replace(&mut answer, Ok(())).and(Err(error));
                false
            })
    });
    if !all.is_empty() {
        remove(all.iter());
    }
    answer
}

/// The same of pinned memory alone: nothing is swept, and any lock of the device's memory may be held.
pub fn free_pinned(wait: bool) -> Result<()> {
    let all: Vec<Arc<Replays>> = RETIRED.lock().all.iter().map(|retired| retired.replays.clone()).collect();
    let mut answer = Ok(());
    for replays in all {
        let keepers = replays.keepers.lock().clone();
        // To ask is cheaper than to look through what is freed; to wait is not.
        if keepers.is_empty() || wait && !keepers.iter().any(Keeper::keeps_freed) {
            continue;
        }
        match replays.are_over(wait) {
            // Which ends before they do.
            Ok(true) => drop(std::mem::take(&mut *replays.keepers.lock())),
            Ok(false) => {}
            Err(error) => answer = answer.and(Err(error)),
        }
    }
    answer
}

pub fn forget() {
    let all = std::mem::take(&mut RETIRED.lock().all);
    drop(all);
}

impl Retired {
    fn new(device: i32, waits: Vec<Wait>, (uses, keepers, drawn): Held) -> Arc<Retired> {
        let replays = Arc::new(Replays { device, waits, keepers: Mutex::new(keepers) });
        Arc::new(Retired { replays, held: (uses, drawn) })
    }
}

impl Replays {
    fn are_over(&self, wait: bool) -> Result<bool> {
        let runtime = runtime::runtime()?;
        runtime.outside_capture(|| {
            for waiting in &self.waits {
                match waiting {
                    Wait::Event(event) if wait => runtime.event_synchronize(event.raw())?,
                    Wait::Event(event) if runtime.event_query(event.raw())? => {}
                    // While a graph is captured there nobody can wait: the next time.
                    Wait::Device if wait && !captures::is_on(self.device) => watch::unseen(|| captures::wait_for_device(self.device))?,
                    Wait::Event(_) | Wait::Device => return Ok(false),
                }
            }
            Ok(true)
        })
    }
}
