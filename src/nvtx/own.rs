//! tcuda's own calls as ranges of the domain `tcuda`, for tools: `TCUDA_NVTX=1`. Asked for once, before the first call; a call costs a look
//! at a flag otherwise, and an allocation that a thread has at hand not even that: while calls are shown threads keep no memory.

use super::{Event, Message, Payload, Tool, tool};
use crate::base::{config, log};
use crate::memory;
use crate::runtime::nvtx::{Domain, Registered};
use parking_lot::RwLock;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const VARIABLE: &str = "TCUDA_NVTX";

/// False: calls are not shown, and never will be.
static MAY_SHOW: AtomicBool = AtomicBool::new(true);
static SHOWN: OnceLock<Option<Shown>> = OnceLock::new();

struct Shown {
    tool: Tool,
    domain: Domain,
    /// By the address of the function's name.
    names: RwLock<BTreeMap<usize, &'static Name>>,
}

struct Name {
    text: CString,
    registered: Option<Registered>,
}

/// A call that is shown until this is dropped.
#[must_use]
pub struct Range(&'static Shown);

impl Drop for Range {
    fn drop(&mut self) {
        self.0.tool.pop_in(self.0.domain);
    }
}

/// `bytes`: that a call asks for.
#[inline(always)]
pub fn range(function: &'static str, bytes: Option<usize>) -> Option<Range> {
    if MAY_SHOW.load(Relaxed) { show(function, bytes) } else { None }
}

#[cold]
#[inline(never)]
fn show(function: &'static str, bytes: Option<usize>) -> Option<Range> {
    thread_local!(static BEGINS: Cell<bool> = const { Cell::new(false) });
    // What the tool does while it starts, and the program's function for the log, is not shown.
    if BEGINS.get() {
        return None;
    }
    let begin = || {
        BEGINS.set(true);
        let shown = begin();
        BEGINS.set(false);
        shown
    };
    let shown = SHOWN.get_or_init(begin).as_ref()?;
    let name = shown.name(function);
    let message = name.registered.map_or(Message::Text(&name.text), Message::Registered);
    let payload = bytes.map_or(Payload::None, |bytes| Payload::Unsigned(bytes as u64));
    shown.tool.push_in(shown.domain, &Event { message, color: 0, category: 0, payload });
    Some(Range(shown))
}

#[cold]
fn begin() -> Option<Shown> {
    let wanted = config::get(VARIABLE);
    let shown = match wanted.as_deref() {
        Some("1") => tool().map(|tool| Shown { tool, domain: tool.domain(c"tcuda"), names: RwLock::default() }),
        None | Some("0") => None,
        Some(other) => {
            log::warn(&format!("{VARIABLE} is '{other}'; it can be 0 or 1. It counts as 0."));
            None
        }
    };
    match shown {
        Some(_) => memory::keep_nothing_at_hand(),
        None => MAY_SHOW.store(false, Relaxed),
    }
    shown
}

impl Shown {
    fn name(&self, function: &'static str) -> &'static Name {
        let key = function.as_ptr() as usize;
        if let Some(name) = self.names.read().get(&key) {
            return name;
        }
        let text = CString::new(function).unwrap_or_default();
        let registered = self.tool.register(self.domain, &text);
        // A second thread's is one too many, and lost: once for each function at most.
        let name: &'static Name = Box::leak(Box::new(Name { text, registered }));
        self.names.write().entry(key).or_insert(name)
    }
}
