//! # nvtx
//! Owns:   marks and ranges for tools: domains by handle, ranges that follow a stream, tcuda's own calls as ranges.
//! Uses:   memory, stream, device, runtime, base.
//! Never:  needs a device but for ranges of a stream; calls a tool with a lock held.
//! Locks:  DOMAINS, stream::RANGES, a domain's names (own.rs): one at a time, none while a tool is called.
//! Tests:  tests/nvtx.rs, tests/conformance/nvtx.rs, tests_c/test_nvtx.c.

pub mod own;
mod stream;

pub(crate) use crate::runtime::nvtx::NOT_TRACKED;
pub use crate::runtime::nvtx::{Event, Message, Payload, Tool, tool};
pub use stream::{end as end_on_stream, start as start_on_stream};

use crate::base::{Error, Result, Status};
use crate::runtime::nvtx::{DEFAULT, Domain};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Domains by what a program holds of them: a number that is never used again.
static DOMAINS: RwLock<BTreeMap<usize, Domain>> = RwLock::new(BTreeMap::new());

/// Without a tool there is a number all the same, so that a program runs alike.
pub fn create_domain(name: &CStr) -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let domain = tool().map_or(DEFAULT, |tool| tool.domain(name));
    // Even numbers this small are no addresses: no pointer of the program passes for one.
    let handle = LAST.fetch_add(2, Ordering::Relaxed) + 2;
    DOMAINS.write().insert(handle, domain);
    handle
}

pub fn destroy_domain(handle: usize) -> Result<()> {
    let domain = DOMAINS.write().remove(&handle).ok_or_else(|| unknown(handle))?;
    if let Some(tool) = tool().filter(|_| domain != DEFAULT) {
        tool.destroy_domain(domain);
    }
    Ok(())
}

/// 0: the default one.
fn named(handle: usize) -> Result<Domain> {
    if handle == 0 {
        return Ok(DEFAULT);
    }
    DOMAINS.read().get(&handle).copied().ok_or_else(|| unknown(handle))
}

#[cold]
fn unknown(handle: usize) -> Error {
    let text = format!("{handle:#x} is no domain, or it was destroyed before. tcuda_nvtx_domain_create makes one.");
    Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text)
}

pub fn mark_in(handle: usize, event: &Event<'_>) -> Result<()> {
    let domain = named(handle)?;
    if let Some(tool) = tool() {
        tool.mark_in(domain, event);
    }
    Ok(())
}

pub fn push_in(tool: Tool, handle: usize, event: &Event<'_>) -> Result<i32> {
    Ok(tool.push_in(named(handle)?, event))
}

pub fn pop_in(tool: Tool, handle: usize) -> Result<i32> {
    Ok(tool.pop_in(named(handle)?))
}

pub fn start_in(handle: usize, event: &Event<'_>) -> Result<u64> {
    let domain = named(handle)?;
    Ok(tool().map_or(0, |tool| tool.start_in(domain, event)))
}

pub fn end_in(handle: usize, id: u64) -> Result<()> {
    let domain = named(handle)?;
    if let Some(tool) = tool() {
        tool.end_in(domain, id);
    }
    Ok(())
}

pub fn name_category(handle: usize, category: u32, name: &CStr) -> Result<()> {
    let domain = named(handle)?;
    if let Some(tool) = tool() {
        tool.name_category(domain, category, name);
    }
    Ok(())
}
