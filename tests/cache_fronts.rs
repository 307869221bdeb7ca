//! More threads and streams than a process has numbers for: threads do without memory at hand, and streams, pools and devices have what they need.

use std::sync::Barrier;
use tcuda::base::config;
use tcuda::memory::pools::{self, Options};
use tcuda::memory::provider::Source;
use tcuda::memory::{self, stats::Family};
use tcuda::stream::{self, Stream};

const THREADS: usize = 20;
const STREAMS: usize = 3300;

fn pair(stream: Stream) {
    let block = memory::allocate(1000, 1, stream).unwrap();
    memory::free(block).unwrap();
}

#[test]
fn threads_leave_numbers_to_streams() {
    config::set("TCUDA_BACKEND", "sim".into());
    config::set("TCUDA_SIM_DEVICES", "2".into());
    let streams: Vec<Stream> = (0..STREAMS).map(|_| stream::create(0, 0).unwrap()).collect();
    // Of threads that end others have the numbers.
    let together = Barrier::new(THREADS);
    let work = || {
        streams.iter().copied().for_each(pair);
        together.wait();
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    pair(streams[0]);
    pair(stream::create(0, 0).unwrap());
    [0, 1].into_iter().for_each(|device| pair(stream::default(device).unwrap()));
    let options = Options { source: Source::Driver, use_on_oom: false, no_split: false };
    let pool = pools::create(1, options).unwrap();
    let block = memory::allocate_from(&pools::numbered(pool).unwrap(), 1000, stream::default(1).unwrap()).unwrap();
    memory::free(block).unwrap();
    pools::destroy(pool).unwrap();
    for device in [0, 1] {
        memory::check(device);
        memory::empty_cache(Some(device)).unwrap();
        assert_eq!(memory::current(Family::ReservedBytes, device), 0);
    }
    // Slots of streams that are gone are others'.
    streams.iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
    let slots = memory::slots(0);
    (0..STREAMS).for_each(|_| {
        let stream = stream::create(0, 0).unwrap();
        pair(stream);
        stream::destroy(stream.raw).unwrap();
    });
    assert_eq!(memory::slots(0), slots);
    memory::check(0);
}
