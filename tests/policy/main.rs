//! What the device cache holds for what is asked of it: recorded runs and a load of several streams, on the simulated device. While
//! there is plenty it holds little more than was ever in use and hardly calls the driver once it is warm; where memory is scarce the run
//! completes with hardly more than that. No byte is ever two blocks', and everything comes back.

mod again;
#[path = "../gate/mod.rs"]
mod gate;
#[path = "../lag/mod.rs"]
mod lag;
mod plenty;
mod random;
mod rest;
#[path = "../runs/mod.rs"]
mod runs;
mod scarce;
#[path = "../trace/mod.rs"]
mod trace;

use runs::{STREAMS, Trace};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use tcuda::base::config;
use tcuda::memory::stats::Family;
use tcuda::runtime::sim::Sim;
use tcuda::runtime::{Address, sim};
use tcuda::stream::Stream;
use tcuda::{memory, runtime, stream};

const MIB: usize = 1 << 20;
const MEMORY: usize = 64 << 30;

static TURN: Mutex<()> = Mutex::new(());

/// The machine with nothing in its cache and these options.
fn machine(options: &str) -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    config::set("TCUDA_BACKEND", "sim".into());
    config::set("TCUDA_SIM_MEMORY", "64GiB".into());
    config::set("TCUDA_ALLOC_CONF", options.into());
    runtime::runtime().unwrap();
    sim().faults().clear();
    memory::empty_cache(None).unwrap();
    memory::configure().unwrap();
    memory::set_limit(None, 0).unwrap();
    memory::reset_peak_stats(0);
    turn
}

fn sim() -> &'static Sim {
    sim::machine().unwrap()
}

fn calls(call: Option<&str>) -> u64 {
    sim().faults().count(call).unwrap()
}

/// That take memory, map it, or give it back.
fn memory_calls() -> u64 {
    ["cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease"].into_iter().map(|call| calls(Some(call))).sum()
}

/// How many events called the driver, for whatever, and for memory.
#[derive(Clone, Copy, Debug)]
struct Touched {
    all: usize,
    memory: usize,
}

fn held() -> usize {
    memory::current(Family::ReservedBytes, 0) as usize
}

/// A word of a block's own at its start, in the middle and at its end.
fn places(address: Address, size: usize) -> [Address; 3] {
    [address, address + size / 2 / 8 * 8, address + (size - 8) / 8 * 8]
}

/// Replays a trace; what is left at the end is freed, in the order in which it came. With `stamps` every block of some size has its own
/// words as long as it lives. The answer is how many events called the driver.
fn replay(trace: &Trace, streams: &[Stream], stamps: bool) -> Touched {
    let (mut touched, mut before) = (Touched { all: 0, memory: 0 }, (calls(None), memory_calls()));
    let mut live: BTreeMap<usize, (Address, usize)> = BTreeMap::new();
    let free = |block: usize, (address, size): (Address, usize)| {
        if stamps && size >= 64 {
            for place in places(address, size) {
                let word = unsafe { (place as *const u64).read() };
                assert_eq!(word, block as u64 + 1, "{}: block {block} of {size} bytes", trace.name);
            }
        }
        memory::free(address).unwrap();
    };
    for event in &trace.events {
        if event.size == 0 {
            let found = live.remove(&event.block).unwrap();
            free(event.block, found);
            continue;
        }
        let address = memory::allocate(event.size, 1, streams[event.stream]).unwrap_or_else(|error| panic!("{}: {error}", trace.name));
        if stamps && event.size >= 64 {
            // The simulated device's memory is the process' own.
            places(address, event.size).into_iter().for_each(|place| unsafe { (place as *mut u64).write(event.block as u64 + 1) });
        }
        live.insert(event.block, (address, event.size));
        let now = (calls(None), memory_calls());
        let before = std::mem::replace(&mut before, now);
        touched.all += usize::from(now.0 != before.0);
        touched.memory += usize::from(now.1 != before.1);
    }
    for (block, found) in live {
        free(block, found);
    }
    touched
}

fn with_streams(work: impl FnOnce(&[Stream])) {
    // A recorded run has the default stream beside them.
    let streams: Vec<Stream> = (0..=STREAMS).map(|_| stream::create(0, 0).unwrap()).collect();
    work(&streams);
    memory::empty_cache(None).unwrap();
    memory::check(0);
    assert_eq!(held(), 0);
    let left = sim().live(0..1);
    assert_eq!((left.handles, left.mappings, left.reservations), (0, 0, 0));
    streams.into_iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
}

/// By what the trace asks for: the statistic's peak is exact only while no other thread allocates, and other tests' threads take their time
/// to end.
fn waste(trace: &Trace) -> f64 {
    waste_beside(trace, 0)
}

/// The same with so many bytes in use beside it.
fn waste_beside(trace: &Trace, resident: usize) -> f64 {
    memory::peak(Family::ReservedBytes, 0) as f64 / (trace.peak + resident) as f64
}
