//! # nvtx
//! Owns:   marks and ranges for tools: domains by handle, ranges that follow a stream, tcuda's own calls as ranges.
//! Uses:   memory, stream, device, runtime, base.
//! Never:  needs a device but for ranges of a stream; calls a tool with a lock held.
//! Locks:  that of domains, stream::RANGES, a domain's names (own.rs): one at a time, none while a tool is called.
//! Tests:  tests/nvtx.rs, tests/conformance/nvtx.rs, tests_c/test_nvtx.c.

pub mod own;
mod stream;

pub(crate) use crate::runtime::nvtx::NOT_TRACKED;
pub use crate::runtime::nvtx::{Event, Message, Payload, Tool, tool};
pub use stream::{end as end_on_stream, start as start_on_stream};

use crate::base::handles::Handles;
use crate::base::{Result, process};
use crate::runtime::nvtx::{DEFAULT, Domain, is_starting};
use std::ffi::CStr;
use std::sync::Arc;

static DOMAINS: Handles<Domain> = Handles::new("domain", "tcuda_nvtx_domain_create");

/// Whether a tool is being started, or domains or names are locked.
pub fn is_busy() -> bool {
    is_starting() || DOMAINS.is_locked() || own::is_locked()
}

/// Without a tool there is a number all the same, so that a program runs alike. Nobody has domains in the child of a fork.
pub fn create_domain(name: &CStr) -> Result<usize> {
    process::refuse_forked()?;
    Ok(DOMAINS.insert(Arc::new(tool().map_or(DEFAULT, |tool| tool.domain(name)))))
}

pub fn destroy_domain(handle: usize) -> Result<()> {
    process::refuse_forked()?;
    let domain = *DOMAINS.remove(handle)?;
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
    process::refuse_forked()?;
    DOMAINS.get(handle).map(|domain| *domain)
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
