//! The program of one thread: what it has, what it may do to it, and what its calls may answer.

use crate::graphs::Graph;
use crate::memory::name;
use crate::model::{Block, Held, Kind, Pin, Pool, Share, Stream, World};
use crate::plan::{Feature, Plant, Random};
use crate::trail::note;
use std::ffi::CStr;
use std::rc::Rc;
use std::sync::Arc;
use tcuda::base::Status;
use tcuda::capi::error::{tcuda_last_error_message, tcuda_last_error_native};
use tcuda::capi::memory::tcuda_record_stream;
use tcuda::capi::stream::tcuda_stream_wait_stream;
use tcuda::capi::structs::tcuda_stream_t;

/// Calls the library, of which a failure must be one that the plan accounts for; whether it succeeded.
macro_rules! did {
    ($program:expr, $call:ident($($argument:expr),* $(,)?)) => {{
        #[allow(unused_unsafe)]
        let status = unsafe { $call($($argument),*) };
        $program.judge(stringify!($call), status)
    }};
}

/// Calls the library where nothing may fail.
macro_rules! ok {
    ($call:ident($($argument:expr),* $(,)?)) => {{
        #[allow(unused_unsafe)]
        let status = unsafe { $call($($argument),*) };
        assert!(status as i32 == 0, "{}: {status:?}: {}", stringify!($call), $crate::program::message());
    }};
}
pub(crate) use {did, ok};

pub fn message() -> String {
    unsafe { CStr::from_ptr(tcuda_last_error_message()) }.to_string_lossy().into_owned()
}

pub struct Program {
    pub world: &'static World,
    pub random: Random,
    thread: usize,
    steps: usize,
    pub blocks: Vec<Block>,
    pub pins: Vec<Pin>,
    /// Pools that are open in this thread, the newest last.
    pub open: Vec<Arc<Pool>>,
    /// Pools that it alone uses, and may pause.
    pub pools: Vec<Arc<Pool>>,
    pub graphs: Vec<Graph>,
    /// Those with a graph.
    pub shares: Vec<Rc<Share>>,
    /// For its captures.
    pub captured: Vec<Arc<Stream>>,
    pub is_capturing: bool,
    /// What it freed last: its size and its stream.
    pub freed: Option<(usize, Arc<Stream>)>,
    pub freed_pin: Option<usize>,
    /// Its own default stream.
    own: Option<Arc<Stream>>,
}

impl Program {
    pub fn new(world: &'static World, thread: usize) -> Program {
        // The handle means the current device's, or that of the memory beside it.
        const PER_THREAD: tcuda_stream_t = 2 as _;
        let own = world.plan.has(Feature::PerThread).then(|| Stream::new(PER_THREAD, 0, Kind::PerThread, None));
        Program {
            world,
            random: Random::of(world.plan.seed, thread, 0),
            thread,
            steps: 0,
            blocks: Vec::new(),
            pins: Vec::new(),
            open: Vec::new(),
            pools: Vec::new(),
            graphs: Vec::new(),
            shares: Vec::new(),
            captured: Vec::new(),
            is_capturing: false,
            freed: None,
            freed_pin: None,
            own,
        }
    }

    pub fn has(&self, feature: Feature) -> bool {
        self.world.plan.has(feature)
    }

    /// One action, whose choices hang on its number alone.
    pub fn step(&mut self) {
        self.steps += 1;
        self.random = Random::of(self.world.plan.seed, self.thread, self.steps);
        match self.random.below(112) {
            0..=27 => self.allocate(),
            28..=47 => self.free_one(),
            48..=51 => self.shelve(),
            52..=54 => self.take(),
            55..=61 => self.use_elsewhere(),
            62..=64 => self.copy(),
            65..=67 => self.keep_busy(),
            68..=70 => self.make_stream(),
            71..=72 if self.has(Feature::Ends) => self.end_stream(),
            73..=78 if self.has(Feature::Pools) || self.has(Feature::Pauses) => self.use_pools(),
            79..=84 if self.has(Feature::Graphs) => self.use_graphs(),
            85..=87 => self.look(),
            88 if self.has(Feature::Limits) => self.limit(),
            89 if self.has(Feature::Options) => self.configure(),
            90..=91 if self.has(Feature::Plugins) => self.use_plugins(),
            92..=93 if self.has(Feature::Faults) => self.plan_fault(),
            94 => self.empty(),
            95..=96 => self.wait(),
            97 => self.plant(),
            100..=111 if self.has(Feature::Pinned) => self.use_pinned(),
            _ => {}
        }
    }

    /// Whether a call succeeded. What a failure may be: no memory; where something is captured, that this cannot be now; and where calls of CUDA
    /// fail, what became of that.
    pub fn judge(&self, call: &str, status: Status) -> bool {
        if status == Status::TCUDA_SUCCESS {
            return true;
        }
        let (native, said) = (tcuda_last_error_native(), message());
        note!("  {call}: {status:?}, of CUDA {native}: {said}");
        assert!(!said.is_empty(), "{call} failed with {status:?} and no message");
        let captures = self.is_capturing || self.world.plan.threads > 1 && self.has(Feature::Graphs);
        let accounted = match status {
            Status::TCUDA_ERROR_INTERNAL => false,
            Status::TCUDA_ERROR_OUT_OF_MEMORY | Status::TCUDA_ERROR_OUT_OF_HOST_MEMORY => true,
            Status::TCUDA_ERROR_CAPTURE if captures => true,
            _ => self.has(Feature::Faults),
        };
        assert!(accounted, "{call}: {status:?}, of CUDA {native}: {said}");
        false
    }

    /// A failure that is right: one of these.
    pub fn is_refused(&self, status: Status, right: &[Status]) -> bool {
        if right.contains(&status) {
            note!("  refused: {status:?}: {}", message());
        }
        right.contains(&status)
    }

    // ---- order

    /// A stream of all threads, or the thread's own default stream; of one device or of any.
    pub fn pick_stream(&mut self, device: Option<i32>) -> Arc<Stream> {
        let own = self.own.clone().filter(|own| device.is_none_or(|device| device == own.device));
        if let Some(own) = own.filter(|_| self.random.chance(30)) {
            return own;
        }
        let mut streams = self.world.streams.lock().unwrap().clone();
        streams.extend(self.world.defaults.iter().cloned());
        streams.retain(|stream| device.is_none_or(|device| device == stream.device));
        self.random.pick(&streams).unwrap()
    }

    /// Behind all that touched it.
    pub fn follow(&self, block: &Block, held: &Held) -> bool {
        self.wait_for(held, &block.order.last()) && {
            block.order.set(held.stream);
            true
        }
    }

    /// One stream waits for another.
    pub fn wait_for(&self, held: &Held, other: &Arc<Stream>) -> bool {
        let other = other.hold();
        let needs_none = other.raw() == held.raw() || self.world.plan.plant == Some(Plant::Unordered) && !self.is_capturing;
        needs_none || did!(self, tcuda_stream_wait_stream(held.raw(), other.raw()))
    }

    /// A stream may touch a block from here on, if true.
    pub fn touch(&self, block: &Block, held: &Held) -> bool {
        if block.is_away() || !self.follow(block, held) {
            return false;
        }
        let is_known = Arc::ptr_eq(held.stream, &block.home) || self.world.plan.plant == Some(Plant::Unrecorded);
        is_known || {
            note!("  0x{:x} is recorded for {}", block.address, name(held.stream));
            did!(self, tcuda_record_stream(block.address as _, held.raw()))
        }
    }

    /// While this thread captures, what touches its streams would be captured.
    pub fn may_touch(&self, block: &Block) -> bool {
        !self.is_capturing || block.order.last().kind != Kind::Captured && block.home.kind != Kind::Captured
    }

    /// One of its blocks that can be touched now.
    pub fn pick_block(&mut self) -> Option<usize> {
        if self.blocks.is_empty() {
            return None;
        }
        let at = self.random.below(self.blocks.len());
        (!self.blocks[at].is_away() && self.may_touch(&self.blocks[at])).then_some(at)
    }
}
