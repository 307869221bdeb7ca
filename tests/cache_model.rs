//! The device cache against a model: lists of operations, on two devices and several streams, by two threads. After each one no two blocks
//! overlap, the statistics are the model's and the cache agrees with itself; at the end every byte is back. A list that fails is made
//! shorter until it cannot be; then it says what it takes.
//!
//! TCUDA_CACHE_MODEL_CASES: so many lists, others each time, instead of a few that are always the same (`make test-long`).

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tcuda::base::{Error, Status, config};
use tcuda::memory::{self, stats::Family};
use tcuda::runtime::sim;
use tcuda::stream::{self, Stream};

const MEMORY: usize = 8 << 30;
const DEVICES: i32 = 2;

/// What is done to the cache. Streams and blocks are chosen among those that there are.
#[derive(Clone, Debug)]
enum Operation {
    Malloc {
        stream: Index,
        size: usize,
        alignment_log2: u32,
    },
    Batch {
        stream: Index,
        sizes: Vec<usize>,
    },
    Free {
        block: Index,
    },
    /// Twice: the second time is an error.
    FreeAgain {
        block: Index,
    },
    FreeOn {
        block: Index,
        stream: Index,
    },
    Record {
        block: Index,
        stream: Index,
    },
    /// No block starts there.
    FreeInside {
        block: Index,
        offset: usize,
    },
    Work {
        stream: Index,
        microseconds: u64,
    },
    CreateStream {
        device: i32,
    },
    DestroyStream {
        stream: Index,
    },
    EmptyCache {
        device: i32,
    },
    Limit {
        device: i32,
        bytes: usize,
    },
    LiftLimit {
        device: i32,
    },
    /// Waits until nothing is pending, and has the figures exact.
    Settle,
}

use Operation::*;

/// An operation, and whether the other thread does it.
type Step = (bool, Operation);

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0),
        2 => prop::sample::select(vec![1, 511, 512, 513]),
        8 => 1usize..64 << 10,
        3 => (1usize << 20) - 513..(1 << 20) + 514,
        3 => 1usize << 20..40 << 20,
        1 => prop::sample::select(vec![MEMORY + 1, 1 << 40, (1 << 40) + 1, 1 << 60, usize::MAX - 511, usize::MAX]),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let index = any::<Index>;
    prop_oneof![
        14 => (index(), size(), prop_oneof![4 => Just(0u32), 1 => 0u32..24])
            .prop_map(|(stream, size, alignment_log2)| Malloc { stream, size, alignment_log2 }),
        2 => (index(), prop::collection::vec(size(), 0..6)).prop_map(|(stream, sizes)| Batch { stream, sizes }),
        12 => index().prop_map(|block| Free { block }),
        1 => index().prop_map(|block| FreeAgain { block }),
        3 => (index(), index()).prop_map(|(block, stream)| FreeOn { block, stream }),
        4 => (index(), index()).prop_map(|(block, stream)| Record { block, stream }),
        1 => (index(), 1usize..4096).prop_map(|(block, offset)| FreeInside { block, offset }),
        2 => (index(), 1u64..300).prop_map(|(stream, microseconds)| Work { stream, microseconds }),
        2 => (0..DEVICES).prop_map(|device| CreateStream { device }),
        2 => index().prop_map(|stream| DestroyStream { stream }),
        1 => (0..DEVICES).prop_map(|device| EmptyCache { device }),
        1 => (0..DEVICES, 1usize..128 << 20).prop_map(|(device, bytes)| Limit { device, bytes }),
        1 => (0..DEVICES).prop_map(|device| LiftLimit { device }),
        1 => Just(Settle),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((prop::bool::weighted(0.25), operation()), 1..120)
}

type Task = Box<dyn FnOnce() + Send>;

/// Another thread, which does what it is given, and keeps what threads keep.
struct Other(Sender<Task>);

impl Other {
    fn start() -> Other {
        let (send, receive): (Sender<Task>, Receiver<Task>) = channel();
        std::thread::spawn(move || receive.into_iter().for_each(|work| work()));
        Other(send)
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, receive) = channel();
        self.0.send(Box::new(move || send.send(work()).unwrap())).unwrap();
        receive.recv().expect("the other thread panicked")
    }
}

#[derive(Clone, Debug)]
struct Block {
    size: usize,
    device: i32,
}

fn rounded(size: usize) -> usize {
    size.next_multiple_of(512)
}

/// What the cache should be.
struct Model {
    streams: Vec<Stream>,
    live: BTreeMap<usize, Block>,
    /// By device: bytes as asked for of blocks that were freed while another stream may have used them.
    pending: [usize; DEVICES as usize],
    /// By device: the limit, and what was held already when it was set.
    limit: [Option<(usize, usize)>; DEVICES as usize],
    other: Other,
}

impl Model {
    fn new() -> Model {
        let defaults = (0..DEVICES).map(|device| Stream { device, raw: 0 });
        let own = [0, 0, 1].map(|device| stream::create(device, 0).unwrap());
        Model { streams: defaults.chain(own).collect(), live: BTreeMap::new(), pending: [0; 2], limit: [None; 2], other: Other::start() }
    }

    fn by<T: Send + 'static>(&self, other: bool, work: impl FnOnce() -> T + Send + 'static) -> T {
        if other { self.other.run(work) } else { work() }
    }

    fn on(&self, device: i32) -> impl Iterator<Item = &Block> {
        self.live.values().filter(move |block| block.device == device)
    }

    fn any(&self, block: &Index) -> Option<(usize, Block)> {
        let index = (!self.live.is_empty()).then(|| block.index(self.live.len()))?;
        self.live.iter().nth(index).map(|(start, block)| (*start, block.clone()))
    }

    fn any_stream(&self, stream: &Index, device: Option<i32>) -> Stream {
        let fits: Vec<Stream> = self.streams.iter().copied().filter(|stream| device.is_none_or(|device| stream.device == device)).collect();
        *stream.get(&fits)
    }

    /// Whether so much more must be had, and whether it may be. Between lie what handles and other streams' blocks take.
    fn room(&self, device: i32, bytes: usize) -> (bool, bool) {
        const HANDLES: usize = 64 << 20;
        let (limit, held) = self.limit[device as usize].unwrap_or((MEMORY, 0));
        let used: usize = self.on(device).map(|block| rounded(block.size)).sum();
        let all = used.saturating_add(bytes);
        (2 * all.min(MEMORY) + HANDLES <= limit, all <= limit.max(held))
    }

    fn got(&mut self, start: usize, size: usize, device: i32) {
        let before = self.live.range(..start + size).next_back();
        let end = before.map_or(0, |(start, block)| start + rounded(block.size));
        assert!(end <= start, "the block at 0x{start:x} overlaps the live one that ends at 0x{end:x}");
        self.live.insert(start, Block { size, device });
    }

    /// One that must not be had, or need not be, is out of memory.
    fn refused(&self, device: i32, bytes: usize, error: &Error) {
        let (must, _) = self.room(device, bytes);
        assert!(error.status == Status::TCUDA_ERROR_OUT_OF_MEMORY && !must, "{bytes} bytes: {error}");
    }

    fn malloc(&mut self, other: bool, stream: Stream, size: usize, alignment: usize) {
        let took = self.by(other, move || memory::allocate(size, alignment, stream));
        // An address that is a multiple of more is sought in more.
        let bytes = size.saturating_add(alignment);
        match took {
            Ok(0) => assert_eq!(size, 0),
            Ok(start) => {
                assert!(size > 0 && start.is_multiple_of(alignment.max(512)) && self.room(stream.device, size).1);
                self.got(start, size, stream.device);
                assert_eq!(memory::device_of(start + size - 1), Some(stream.device));
            }
            Err(error) => self.refused(stream.device, bytes, &error),
        }
    }

    fn batch(&mut self, other: bool, stream: Stream, sizes: Vec<usize>) {
        let all = sizes.iter().fold(0usize, |all, size| all.saturating_add(size.checked_next_multiple_of(512).unwrap_or(usize::MAX)));
        let asked = sizes.clone();
        match self.by(other, move || memory::allocate_all(&asked, stream)) {
            Ok(starts) => {
                assert_eq!(starts.len(), sizes.len());
                for (start, size) in starts.into_iter().zip(sizes) {
                    assert_eq!(start == 0, size == 0);
                    if size > 0 {
                        self.got(start, size, stream.device);
                    }
                }
            }
            Err(error) => self.refused(stream.device, all, &error),
        }
    }

    fn step(&mut self, other: bool, operation: &Operation) {
        match operation {
            Malloc { stream, size, alignment_log2 } => {
                self.malloc(other, self.any_stream(stream, None), *size, 1 << alignment_log2);
            }
            Batch { stream, sizes } => self.batch(other, self.any_stream(stream, None), sizes.clone()),
            Free { block } | FreeAgain { block } => {
                let Some((start, _)) = self.any(block) else { return };
                self.live.remove(&start);
                self.by(other, move || memory::free(start)).unwrap();
                if matches!(operation, FreeAgain { .. }) {
                    assert!(self.by(!other, move || memory::free(start)).is_err(), "freed twice");
                }
            }
            FreeOn { block, stream } => {
                let Some((start, block)) = self.any(block) else { return };
                let stream = self.any_stream(stream, Some(block.device));
                self.live.remove(&start);
                // Streams that were recorded for it are waited for.
                self.pending[block.device as usize] += block.size;
                self.by(other, move || memory::free_on(start, stream)).unwrap();
            }
            Record { block, stream } => {
                let Some((start, block)) = self.any(block) else { return };
                let stream = self.any_stream(stream, Some(block.device));
                // It is pending when it is freed, perhaps much later.
                self.pending[block.device as usize] += block.size;
                self.by(other, move || memory::record_stream(start, stream)).unwrap();
            }
            FreeInside { block, offset } => {
                let Some((start, _)) = self.any(block) else { return };
                let inside = start + offset;
                assert!(self.live.contains_key(&inside) || self.by(other, move || memory::free(inside)).is_err());
            }
            Work { stream, microseconds } => {
                let stream = self.any_stream(stream, None);
                sim::machine().unwrap().delay(stream.raw, Duration::from_micros(*microseconds));
            }
            CreateStream { device } => {
                const MOST: usize = 24;
                if self.streams.len() < MOST {
                    self.streams.push(stream::create(*device, 0).unwrap());
                }
            }
            DestroyStream { stream } => {
                let gone = self.any_stream(stream, None);
                if gone.raw != 0 {
                    self.streams.retain(|stream| stream.raw != gone.raw);
                    self.by(other, move || stream::destroy(gone.raw)).unwrap();
                }
            }
            EmptyCache { device } => {
                let device = *device;
                self.by(other, move || memory::empty_cache(Some(device))).unwrap();
            }
            Limit { device, bytes } => self.set_limit(*device, Some(*bytes)),
            LiftLimit { device } => self.set_limit(*device, None),
            Settle => self.settle(),
        }
    }

    fn set_limit(&mut self, device: i32, limit: Option<usize>) {
        memory::set_limit(limit, device).unwrap();
        assert_eq!(memory::limit(device).unwrap(), limit);
        self.limit[device as usize] = limit.map(|limit| (limit, memory::current(Family::ReservedBytes, device) as usize));
    }

    /// What holds at any time.
    fn check(&self) {
        for device in 0..DEVICES {
            memory::check(device);
            let stats = memory::stats(device);
            let bytes = self.on(device).map(|block| rounded(block.size)).sum::<usize>() as i64;
            let asked = self.on(device).map(|block| block.size).sum::<usize>() as i64;
            assert_eq!(stats.current(Family::Allocation), self.on(device).count() as i64);
            assert_eq!(stats.current(Family::AllocatedBytes), bytes);
            assert!(stats.current(Family::ActiveBytes) >= bytes);
            assert!((asked..=asked + self.pending[device as usize] as i64).contains(&stats.current(Family::RequestedBytes)));
            assert!(stats.current(Family::ReservedBytes) >= stats.current(Family::ActiveBytes));
            for family in [Family::AllocatedBytes, Family::ActiveBytes, Family::RequestedBytes, Family::ReservedBytes] {
                assert!(stats.peak(family) >= stats.current(family), "{family:?}");
            }
        }
    }

    /// What holds when all work is done.
    fn settle(&mut self) {
        for device in 0..DEVICES {
            tcuda::device::synchronize(device).unwrap();
            let stats = memory::stats(device);
            let asked = self.on(device).map(|block| block.size).sum::<usize>() as i64;
            assert_eq!(stats.current(Family::Active), stats.current(Family::Allocation));
            assert_eq!(stats.current(Family::ActiveBytes), stats.current(Family::AllocatedBytes));
            assert_eq!(stats.current(Family::RequestedBytes), asked);
        }
    }

    fn end(mut self) {
        for start in std::mem::take(&mut self.live).into_keys() {
            memory::free(start).unwrap();
        }
        self.settle();
        memory::empty_cache(None).unwrap();
        self.check();
        for device in 0..DEVICES {
            assert_eq!(memory::current(Family::ReservedBytes, device), 0, "device {device}");
            assert_eq!(memory::current(Family::Segment, device), 0, "device {device}");
        }
        let held = sim::machine().unwrap().live(0..DEVICES as usize);
        assert_eq!((held.handles, held.mappings, held.blocks, held.reservations), (0, 0, 0, 0));
        self.streams.iter().filter(|stream| stream.raw != 0).for_each(|stream| stream::destroy(stream.raw).unwrap());
    }
}

/// With nothing left of a list that failed.
fn begin_anew() {
    (0..DEVICES).for_each(|device| tcuda::device::synchronize(device).unwrap());
    memory::shutdown();
    stream::shutdown();
    for device in 0..DEVICES {
        memory::set_limit(None, device).unwrap();
        memory::reset_peak_stats(device);
    }
}

fn run(steps: &[Step]) {
    begin_anew();
    let mut model = Model::new();
    for (other, operation) in steps {
        model.step(*other, operation);
        model.check();
    }
    model.end();
}

fn machine() {
    config::set("TCUDA_BACKEND", "sim".into());
    config::set("TCUDA_SIM_DEVICES", DEVICES.to_string());
    config::set("TCUDA_SIM_MEMORY", MEMORY.to_string());
}

/// How a list that fails looks when it is as short as can be.
fn shortest(config: Config, run: impl Fn(&[Step])) -> Result<(), String> {
    let words = |panic: Box<dyn std::any::Any + Send>| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"a panic without words").to_string(),
    };
    let mut runner = TestRunner::new(config);
    let ran = runner.run(&steps(), |steps| {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&steps)));
        ran.map_err(|panic| TestCaseError::fail(words(panic)))
    });
    ran.map_err(|failure| failure.to_string())
}

fn configuration() -> Config {
    let mut config = Config { failure_persistence: None, max_shrink_iters: 5000, ..Config::default() };
    match std::env::var("TCUDA_CACHE_MODEL_CASES") {
        Ok(cases) => config.cases = cases.parse().expect("TCUDA_CACHE_MODEL_CASES is a number"),
        Err(_) => (config.cases, config.rng_seed) = (1000, RngSeed::Fixed(1)),
    }
    config
}

#[test]
fn the_cache_agrees_with_the_model() {
    machine();
    if let Err(failure) = shortest(configuration(), run) {
        panic!("{failure}");
    }
}

/// No cache runs here: the defect is in lists that have an allocation of more than 1 MiB and later a free by the other thread. What is
/// shown of a list of a hundred operations is those two.
#[test]
fn a_list_that_fails_is_made_short() {
    let failure = shortest(Config { cases: 500, rng_seed: RngSeed::Fixed(1), ..configuration() }, |steps| {
        let allocates = |step: &Step| matches!(step.1, Malloc { size, .. } if size > 1 << 20);
        let frees = |step: &Step| step.0 && matches!(step.1, Free { .. });
        let first = steps.iter().position(allocates).unwrap_or(steps.len());
        assert!(!steps[first..].iter().any(frees), "a large block is lost");
    });
    let text = failure.unwrap_err();
    assert!(text.contains("a large block is lost") && text.matches("Index(").count() == 2, "{text}");
}
