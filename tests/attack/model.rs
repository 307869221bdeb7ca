//! What the program of the attack knows: which memory is whose, and behind which work each block may be touched.
//!
//! **Who owns a block.** From the return of its allocation to the call of its free the program does, and within it one thread at a time: the
//! one in whose list it is, or nobody's while it lies on the shelf for another thread. `World::live` has every byte that is owned; no two blocks
//! may share one. A block is taken off that list before the call that frees it, since another thread may get its memory while the call still
//! runs.
//!
//! **When a stream may touch it.** All that touches a block lies in one order, `Order`: the stream that touched it last. Who touches it next, on
//! whatever stream, has that stream wait for the last one, and tells the library of it (`tcuda_record_stream`) where it is not the block's own.
//! So the last stream's order holds all that ever touched the block, and nothing else has to be known. That is stricter than a program has to be:
//! two readers could go beside each other.
//!
//! **What is in it.** `Block::value` is what is known to be there in that order; None: nothing is known. Whatever fails on the way, whatever the
//! program was told that it may lose (a pause that drops), makes it None; that never makes a false alarm.
//!
//! **Memory of graphs.** What a replay writes is all that its graphs' pool had free when they were captured, so a replay is a touch of the whole
//! pool: blocks of all captures with one pool share one `Order`. After a replay the graph's own blocks have the values of its capture, and those
//! of other captures with this pool are unknown: they may lie where the graph had memory that it freed, or where a block of it lay that was freed
//! since. Captured work reads no block of before the capture, which could be freed between two replays.
//!
//! **Pools.** A block of a pool that one thread alone uses, and may pause, knows it: while the pool is paused nobody touches the block. Whatever
//! a pool lends to others, be it its program's own other pool, is theirs, pause or not.
//!
//! **Pinned memory.** A `Pin` has one order as a block has, in which the host takes part: before it reads or writes it waits for the last stream.
//! The streams may be of any device. Memory of the cache is freed at any time, the program's own once the last stream was waited for.
//!
//! **Streams that end.** Before a stream is destroyed the default stream of its device waits for it; from then on that one stands for it. A
//! thread's own default stream nobody else can name: what crosses to another thread has passed its device's default stream before.

use parking_lot::{RwLock, RwLockReadGuard};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tcuda::capi::pool::tcuda_mem_pool_t;
use tcuda::capi::structs::tcuda_stream_t;

use crate::checks::{self, Slots};
use crate::plan::Plan;
use crate::plugins::Plugin;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Default,
    /// The default stream of one thread alone.
    PerThread,
    Created,
    /// One of the library's, which is never destroyed.
    FromPool,
    /// Of one thread, for its captures.
    Captured,
}

pub struct Stream {
    pub handle: usize,
    pub device: i32,
    pub kind: Kind,
    gone: RwLock<bool>,
    /// Who stands for it then; the default streams have nobody.
    heir: Option<Arc<Stream>>,
}

impl Stream {
    pub fn new(handle: tcuda_stream_t, device: i32, kind: Kind, heir: Option<Arc<Stream>>) -> Arc<Stream> {
        Arc::new(Stream { handle: handle as usize, device, kind, gone: RwLock::new(false), heir })
    }

    /// It, or who stands for it, which does not end meanwhile. A thread may hold it several times.
    pub fn hold(self: &Arc<Stream>) -> Held<'_> {
        let gone = self.gone.read_recursive();
        match &self.heir {
            Some(heir) if *gone => heir.hold(),
            _ => Held { stream: self, _lives: gone },
        }
    }

    /// Ends it if `end` does, unless somebody holds it.
    pub fn end(self: &Arc<Stream>, end: impl FnOnce(tcuda_stream_t, &Arc<Stream>) -> bool) -> bool {
        let (Some(mut gone), Some(heir)) = (self.gone.try_write(), &self.heir) else { return false };
        if !*gone {
            *gone = end(self.handle as tcuda_stream_t, heir);
        }
        *gone
    }
}

pub struct Held<'a> {
    pub stream: &'a Arc<Stream>,
    _lives: RwLockReadGuard<'a, bool>,
}

impl Held<'_> {
    pub fn raw(&self) -> tcuda_stream_t {
        self.stream.handle as tcuda_stream_t
    }
}

/// The stream behind whose work all lies that ever touched some memory.
#[derive(Clone)]
pub struct Order(Rc<Cell<Option<Arc<Stream>>>>);

impl Order {
    pub fn of(stream: &Arc<Stream>) -> Order {
        Order(Rc::new(Cell::new(Some(stream.clone()))))
    }

    pub fn last(&self) -> Arc<Stream> {
        let last = self.0.take().unwrap();
        self.0.set(Some(last.clone()));
        last
    }

    pub fn set(&self, stream: &Arc<Stream>) {
        self.0.set(Some(stream.clone()));
    }
}

/// Start, middle and end, and how much of each.
fn places(address: usize, size: usize) -> ([usize; 3], usize) {
    let length = size.min(8);
    ([0, (size - length) / 2, size - length].map(|at| address + at), length)
}

pub struct Block {
    pub address: usize,
    pub size: usize,
    /// Whose order its free follows.
    pub home: Arc<Stream>,
    pub order: Order,
    pub value: Option<u8>,
    /// That its thread may pause.
    pub pool: Option<Arc<Pool>>,
    /// Of a capture with this pool, and what the capture's graph leaves in it; None: its graph is gone, or it was the capture that failed.
    pub share: Option<Rc<Share>>,
    pub captured: Option<(usize, Option<u8>)>,
}

impl Block {
    /// On a stream's order, and nobody's but the program's.
    pub fn new(address: usize, size: usize, home: &Arc<Stream>) -> Block {
        let order = Order::of(home);
        Block { address, size, home: home.clone(), order, value: None, pool: None, share: None, captured: None }
    }

    pub fn device(&self) -> i32 {
        self.home.device
    }

    pub fn places(&self) -> ([usize; 3], usize) {
        places(self.address, self.size)
    }

    pub fn is_away(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.is_paused())
    }

    /// It can change hands: nothing of it is its thread's.
    pub fn is_free_to_go(&self) -> bool {
        self.pool.is_none() && self.share.is_none()
    }
}

/// What crosses from thread to thread: a block that is one thread's alone has no second reference to its order.
pub struct Shelved {
    address: usize,
    size: usize,
    home: Arc<Stream>,
    last: Arc<Stream>,
    value: Option<u8>,
}

impl Shelved {
    pub fn of(block: Block) -> Shelved {
        Shelved { address: block.address, size: block.size, home: block.home, last: block.order.last(), value: block.value }
    }

    pub fn taken(self) -> Block {
        let order = Order::of(&self.last);
        Block { order, value: self.value, ..Block::new(self.address, self.size, &self.home) }
    }
}

/// Pinned memory.
pub struct Pin {
    pub address: usize,
    pub size: usize,
    /// The program's own, which it registered.
    pub is_registered: bool,
    /// Behind whose work all lies that ever touched it; None: nothing but the host did, or it has waited.
    pub last: Option<Arc<Stream>>,
    pub value: Option<u8>,
}

impl Pin {
    pub fn places(&self) -> ([usize; 3], usize) {
        places(self.address, self.size)
    }
}

/// Captures that have their memory from one pool.
pub struct Share {
    pub id: Cell<(u64, u64)>,
    pub device: i32,
    pub order: Order,
    /// Graphs that hold something.
    pub graphs: Cell<usize>,
}

pub struct Pool {
    pub handle: usize,
    pub device: i32,
    /// One thread alone uses it, and may pause it.
    pub pauses: bool,
    pub no_split: bool,
    pub plugin: Option<Arc<Plugin>>,
    paused: AtomicBool,
    pub gone: RwLock<bool>,
}

impl Pool {
    pub fn new(handle: tcuda_mem_pool_t, device: i32, pauses: bool, no_split: bool, plugin: Option<Arc<Plugin>>) -> Arc<Pool> {
        let paused = AtomicBool::new(false);
        Arc::new(Pool { handle: handle as usize, device, pauses, no_split, plugin, paused, gone: RwLock::new(false) })
    }

    pub fn raw(&self) -> tcuda_mem_pool_t {
        self.handle as tcuda_mem_pool_t
    }

    pub fn is_paused(&self) -> bool {
        self.paused.load(SeqCst)
    }

    pub fn set_paused(&self, paused: bool) {
        self.paused.store(paused, SeqCst);
    }
}

/// In the place of a device: pinned memory.
pub const HOST: i32 = -1;

/// What all threads know.
pub struct World {
    pub plan: &'static Plan,
    pub defaults: Vec<Arc<Stream>>,
    pub streams: Mutex<Vec<Arc<Stream>>>,
    pub shelf: Mutex<Vec<Shelved>>,
    pub shelf_of_pins: Mutex<Vec<Pin>>,
    /// Pools of all threads, none of which is paused.
    pub pools: Mutex<Vec<Arc<Pool>>>,
    pub plugins: Mutex<Vec<Arc<Plugin>>>,
    /// Pools that are paused.
    pub paused: AtomicUsize,
    pub slots: Slots,
    live: Mutex<BTreeMap<usize, (usize, i32)>>,
}

impl World {
    pub fn new(plan: &'static Plan, slots: Slots) -> World {
        const FIRST_DEFAULT: usize = 0x100;
        let default = |device| Stream::new((FIRST_DEFAULT + device) as tcuda_stream_t, device as i32, Kind::Default, None);
        let world = World {
            plan,
            defaults: (0..plan.devices).map(default).collect(),
            streams: Mutex::default(),
            shelf: Mutex::default(),
            shelf_of_pins: Mutex::default(),
            pools: Mutex::default(),
            plugins: Mutex::default(),
            paused: AtomicUsize::new(0),
            slots,
            live: Mutex::default(),
        };
        world.born(world.slots.start, checks::BYTES, HOST);
        world
    }

    pub fn default(&self, device: i32) -> &Arc<Stream> {
        &self.defaults[device as usize]
    }

    /// An allocation has returned.
    pub fn born(&self, address: usize, size: usize, device: i32) {
        assert!(address.is_multiple_of(512), "0x{address:x} is no multiple of 512");
        let mut live = self.live.lock().unwrap();
        if let Some((&other, &(length, _))) = live.range(..address + size).next_back() {
            assert!(other + length <= address, "0x{address:x} of {size} bytes overlaps 0x{other:x} of {length}, which is in use");
        }
        live.insert(address, (size, device));
    }

    /// A free is about to be called.
    pub fn dies(&self, address: usize) {
        assert!(self.live.lock().unwrap().remove(&address).is_some(), "0x{address:x} is no block of the program");
    }

    /// What is owned on a device, or of the host: addresses and sizes.
    pub fn owned(&self, device: i32) -> BTreeMap<usize, usize> {
        let live = self.live.lock().unwrap();
        live.iter().filter(|(_, (_, on))| *on == device).map(|(address, (size, _))| (*address, *size)).collect()
    }
}
