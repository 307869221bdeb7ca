//! Blocks that other processes may use. A held block that is freed waits, as one that other streams use, until nobody holds it any more.

use super::block::{self, BlockId, CLEAN, State};
use super::core::Pending;
use super::physical::Backing;
use super::{Cache, Core};
use crate::base::{Error, Result, Status, process};
use crate::memory::pools::Id;
use crate::runtime::{Address, MemHandle};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

/// What the cache knows of such a block.
#[derive(Default)]
pub(super) struct Held {
    times: usize,
    /// It was freed, and its uses are past: it ends with the last hold.
    freed: Option<Pending>,
}

impl Core {
    /// False: another thread has just freed it.
    fn hold(&mut self, id: BlockId) -> bool {
        let record = block::at(id);
        let head = record.head.load(Relaxed);
        if record.state() != State::Allocated || record.head.compare_exchange(head, head & !CLEAN, Relaxed, Relaxed).is_err() {
            return false;
        }
        self.held.entry(id).or_default().times += 1;
        true
    }

    pub fn is_held(&self, id: BlockId) -> bool {
        self.held.contains_key(&id)
    }

    /// None: it is held, and so kept.
    pub(super) fn keep_held(&mut self, pending: Pending) -> Option<Pending> {
        let Some(held) = self.held.get_mut(&pending.block) else { return Some(pending) };
        held.freed = Some(Pending { uses: Vec::new(), ..pending });
        None
    }

    /// The blocks that were freed, and that streams or other processes may still use.
    pub(super) fn freed_in_use(&self) -> impl Iterator<Item = &Pending> {
        self.pending.iter().chain(self.held.values().filter_map(|held| held.freed.as_ref()))
    }

    pub(super) fn freed_in_use_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.pending.iter_mut().chain(self.held.values_mut().filter_map(|held| held.freed.as_mut()))
    }

    fn let_go(&mut self, id: BlockId) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.times -= 1;
        if held.times == 0
            && let Some(freed) = self.held.remove(&id).and_then(|held| held.freed)
        {
            self.finish(freed);
        }
    }
}

/// A block's memory stays what it is while this lives, freed or not.
pub struct Hold {
    cache: &'static Cache,
    block: BlockId,
    run: u32,
    pub device: i32,
    pub address: Address,
    /// Bytes as asked for.
    pub size: usize,
}

/// A piece of memory that the driver knows by a handle, as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub address: Address,
    pub size: usize,
    pub handle: MemHandle,
}

/// Where the memory behind a range of addresses came from.
pub enum Backed {
    /// A segment of the driver's: its start and size.
    Plain(Address, usize),
    /// A segment of a program's allocator, which may be a part of what the driver gave that.
    Provided,
    /// By address, without a gap.
    Virtual(Vec<Part>),
}

impl Hold {
    /// Whether the program gave the block back.
    pub fn is_freed(&self) -> bool {
        block::at(self.block).state() != State::Allocated
    }

    /// For a range inside the block.
    pub fn backing(&self, from: Address, to: Address) -> Result<Backed> {
        let core = self.cache.core.quiet();
        let mut parts = Vec::new();
        for mapping in core.physical.overlapping(from, to) {
            match &core.physical[mapping.handle].backing {
                Backing::Virtual(handle) => parts.push(Part { address: mapping.start, size: mapping.size, handle: *handle }),
                Backing::Plain => return Ok(Backed::Plain(mapping.start, mapping.size)),
                Backing::Provided(..) => return Ok(Backed::Provided),
                Backing::Ordered => {
                    let text = "Memory of cudaMallocAsync cannot be shared with other processes. Allocate it with backend:native.";
                    return Err(Error::not_supported(text).on_device(self.device));
                }
                Backing::Away => return Err(is_paused(core.pool, self.device)),
            }
        }
        Ok(Backed::Virtual(parts))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // With a shutdown the blocks went.
        if process::run() == self.run && process::is_running() {
            self.cache.core.lock().let_go(self.block);
        }
    }
}

/// Holds the block in use that an address lies in. None: there is no such block. A pause looks for held blocks when it has begun.
pub fn hold(address: Address) -> Result<Option<Hold>> {
    let Some((cache, mut core, id)) = crate::memory::find_around(address) else { return Ok(None) };
    if core.paused {
        return Err(is_paused(core.pool, cache.device));
    }
    let held = core.hold(id);
    let (address, size) = (block::at(id).address(), block::at(id).requested());
    Ok(held.then(|| Hold { cache, block: id, run: process::run(), device: cache.device, address, size }))
}

fn is_paused(pool: Id, device: i32) -> Error {
    let text = format!("The memory pool {pool} is paused: there is no memory to share before tcuda_mem_pool_resume.");
    Error::new(Status::TCUDA_ERROR_INVALID_STATE, text).on_device(device)
}

/// Told where a block lay.
type Hook = fn(Range<Address>);

static FREED: OnceLock<Hook> = OnceLock::new();

/// Who is told, with no lock held, that a held block was freed. It may be inside a host function.
pub fn on_held_freed(hook: Hook) {
    let _ = FREED.set(hook);
}

pub fn tell_freed(place: Range<Address>) {
    if let Some(hook) = FREED.get() {
        hook(place);
    }
}
