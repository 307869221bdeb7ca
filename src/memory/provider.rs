//! Where segments come from: the driver, the driver's own pool (one call a block), or a provider of the program's own below the cache
//! (torch's pluggable allocators). A provider gives and takes whole segments; blocks, order, statistics and everything else stay the cache's.
//!
//! Its functions run with no lock held but those that keep a second growth away, and must not allocate from the cache that they serve.

use super::cache::block::{self, State};
use super::cache::core::ROUND;
use super::cache::{BlockId, NIL};
use super::lookup;
use super::options::{self, Backend};
use crate::base::handles::Handles;
use crate::base::{Error, Result, Status};
use crate::runtime::api::Place;
use crate::runtime::{Address, RawStream, Runtime};
use parking_lot::{Mutex, RwLock};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

type Allocate = Box<dyn Fn(usize, i32, RawStream) -> Address + Send + Sync>;
type Free = Box<dyn Fn(Address, usize, i32, RawStream) + Send + Sync>;

pub struct Provider {
    /// For messages.
    pub name: String,
    allocate: Allocate,
    free: Free,
    /// Segments that it gave and did not get back.
    segments: AtomicUsize,
}

/// Where the next segment of a cache comes from.
#[derive(Clone)]
pub enum Source {
    Driver,
    /// cudaMallocAsync: a segment for each block, which goes back when the block is freed.
    Ordered,
    Provider(Arc<Provider>),
}

/// Segments that providers gave, with their sizes.
static GIVEN: Mutex<BTreeMap<Address, usize>> = Mutex::new(BTreeMap::new());

thread_local!(static INSIDE: Cell<bool> = const { Cell::new(false) });

/// For what waits for memory to grow, which waits for the provider's function that the calling thread runs.
pub fn refuse_inside() -> Result<()> {
    if INSIDE.get() {
        let text = "A function of a pluggable allocator cannot ask this of tcuda, which waits for the function.";
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
    }
    Ok(())
}

impl Provider {
    pub fn new(name: String, allocate: Allocate, free: Free) -> Provider {
        Provider { name, allocate, free, segments: AtomicUsize::new(0) }
    }

    fn run<T>(call: impl FnOnce() -> T) -> T {
        let outer = INSIDE.replace(true);
        // What the thread has at hand would be given unasked.
        super::forget_choices();
        let answer = call();
        INSIDE.set(outer);
        answer
    }

    /// A segment of at least `size` bytes. What the provider says is not believed: memory that is not the device's, too small or crooked
    /// goes back to it, and memory that the cache holds already is left alone. `holds`: whether the cache has some of a range.
    pub fn allocate(
        &self,
        runtime: &Runtime,
        size: usize,
        device: i32,
        stream: RawStream,
        holds: impl FnOnce(Address, usize) -> bool,
    ) -> Result<Address> {
        let address = Provider::run(|| (self.allocate)(size, device, stream));
        if address == 0 {
            let text = format!("The allocator {} has no {size} bytes for device {device}.", self.name);
            return Err(Error::new(Status::TCUDA_ERROR_OUT_OF_MEMORY, text));
        }
        let wrong = |what: &str| {
            let text =
                format!("The allocator {} was asked for {size} bytes of device {device} and gave 0x{address:x}, which {what}.", self.name);
            Error::new(Status::TCUDA_ERROR_INVALID_STATE, text)
        };
        let last = address.saturating_add(size - 1);
        {
            // What somebody uses is not given back.
            let mut given = GIVEN.lock();
            if given.range(..=last).next_back().is_some_and(|(start, size)| start.saturating_add(*size) > address) {
                return Err(wrong("was given before"));
            }
            if last < lookup::LIMIT && holds(address, size) {
                return Err(wrong("is tcuda's own, in use"));
            }
            given.insert(address, size);
        }
        self.segments.fetch_add(1, Relaxed);
        let found = if !address.is_multiple_of(ROUND) {
            Ok(Some("is no multiple of 512"))
        } else if address.checked_add(size).is_none_or(|end| end > lookup::LIMIT) {
            Ok(Some("lies beyond the 48 bits that the cache keeps track of"))
        } else if is_near_a_start(address) {
            Ok(Some("begins in the same MiB of addresses as the block of tcuda's that it lies in; the next MiB will do"))
        } else {
            is_on(runtime, address, size, device).map(|is| (!is).then_some("is not that much memory of the device"))
        };
        match found {
            Ok(None) => Ok(address),
            Ok(Some(what)) => {
                self.free(address, size, device, stream);
                Err(wrong(what))
            }
            Err(error) => {
                self.free(address, size, device, stream);
                Err(error)
            }
        }
    }

    pub fn free(&self, address: Address, size: usize, device: i32, stream: RawStream) {
        // First: once it is back, it may be given again.
        GIVEN.lock().remove(&address);
        Provider::run(|| (self.free)(address, size, device, stream));
        self.segments.fetch_sub(1, Relaxed);
    }
}

/// Whether the address lies in a block in use that begins in its MiB: that has the only entry in the table of large ones, which a large block here
/// would take.
fn is_near_a_start(address: Address) -> bool {
    let begins_near = |id: BlockId| {
        let block = block::at(id);
        let is_near = block.address() / lookup::GRANULARITY == address / lookup::GRANULARITY;
        is_near && block.state() == State::Allocated && block.range().contains(&address)
    };
    // An entry may be that of a block that was here before.
    lookup::large_at(address).is_some_and(|id| id != NIL && begins_near(id))
}

/// Whether the first and the last byte are the device's, as far as the driver tells.
fn is_on(runtime: &Runtime, address: Address, size: usize, device: i32) -> Result<bool> {
    for byte in [address, address + size - 1] {
        match runtime.place_of(byte)? {
            Place::Device { device: found } if found == device => {}
            // Everywhere.
            Place::Managed { .. } => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

// ---- by number, and the one that is current

static PROVIDERS: Handles<Provider> = Handles::new("pluggable allocator", "tcuda_pluggable_allocator_create");
/// What the devices' own caches take from; None: the driver.
static CURRENT: RwLock<Option<(u64, Arc<Provider>)>> = RwLock::new(None);
/// Whether there is one, without a lock.
static IS_SET: AtomicBool = AtomicBool::new(false);

pub(super) fn is_locked() -> bool {
    PROVIDERS.is_locked() || CURRENT.is_locked()
}

/// A number that is never given again.
pub fn add(provider: Provider) -> u64 {
    PROVIDERS.insert(Arc::new(provider)) as u64
}

pub fn numbered(id: u64) -> Result<Arc<Provider>> {
    PROVIDERS.get(id as usize)
}

/// Refused while it is the current one, a pool's, or has segments out.
pub fn remove(id: u64) -> Result<()> {
    let unused = |provider: &Arc<Provider>| {
        let segments = provider.segments.load(Relaxed);
        if segments == 0 && Arc::strong_count(provider) == 1 {
            return Ok(());
        }
        let use_of =
            if segments == 0 { "it is the current one, or a pool's".into() } else { format!("{segments} of its segments are held") };
        let text = format!(
            "The allocator {} is still in use: {use_of}. Change the current allocator, destroy its pools, free its blocks and call \
             tcuda_empty_cache first.",
            provider.name
        );
        Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text))
    };
    PROVIDERS.remove_if(id as usize, unused).map(drop)
}

pub fn set_current(id: Option<u64>) -> Result<()> {
    let provider = id.map(|id| Ok((id, numbered(id)?))).transpose()?;
    let mut current = CURRENT.write();
    IS_SET.store(provider.is_some(), Relaxed);
    *current = provider;
    Ok(())
}

pub fn is_set() -> bool {
    IS_SET.load(Relaxed)
}

pub fn current() -> Source {
    // Before the lock: what is wrong with them goes to the log.
    let backend = options::get().backend;
    match (CURRENT.read().as_ref(), backend) {
        (Some((_, provider)), _) => Source::Provider(provider.clone()),
        (None, Backend::CudaMallocAsync) => Source::Ordered,
        (None, Backend::Native) => Source::Driver,
    }
}
