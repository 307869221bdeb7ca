//! tcuda's own calls as ranges of the domain `tcuda`, for tools: `TCUDA_NVTX=1`. Asked for once, at the first call; a call costs a look
//! at a word otherwise, and an allocation that a thread has at hand not even that: while calls are shown threads keep no memory.

use super::{Event, Message, Payload, Tool, tool};
use crate::base::{config, log, watch};
use crate::runtime::nvtx::{Domain, Registered};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::OnceLock;

const VARIABLE: &str = "TCUDA_NVTX";

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
    if watch::any(watch::SHOWN) { show(function, bytes) } else { None }
}

#[cold]
#[inline(never)]
fn show(function: &'static str, bytes: Option<usize>) -> Option<Range> {
    let shown = SHOWN.get()?.as_ref()?;
    let name = shown.name(function);
    let message = name.registered.map_or(Message::Text(&name.text), Message::Registered);
    let payload = bytes.map_or(Payload::None, |bytes| Payload::Unsigned(bytes as u64));
    shown.tool.push_in(shown.domain, &Event { message, color: 0, category: 0, payload });
    Some(Range(shown))
}

/// At the first call of all: what the tool does while it starts is not shown.
#[cold]
pub fn configure() {
    if SHOWN.get_or_init(begin).is_some() {
        watch::set(watch::SHOWN, true);
    }
}

pub(super) fn is_locked() -> bool {
    SHOWN.get().and_then(Option::as_ref).is_some_and(|shown| shown.names.is_locked())
}

#[cold]
fn begin() -> Option<Shown> {
    let wanted = config::get(VARIABLE);
    match wanted.as_deref() {
        Some("1") => tool().map(|tool| Shown { tool, domain: tool.domain(c"tcuda"), names: RwLock::default() }),
        None | Some("0") => None,
        Some(other) => {
            log::warn(&format!("{VARIABLE} is '{other}'; it can be 0 or 1. It counts as 0."));
            None
        }
    }
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
