//! Streams and threads that use something that stays, and are gone.

use crate::gate::Gate;
use tcuda::device;
use tcuda::stream::{self, Stream};

pub fn idle_stream(uses: impl Fn(Stream)) {
    let stream = stream::create(0, 0).unwrap();
    uses(stream);
    stream::destroy(stream.raw).unwrap();
}

/// Their work is done only once all of them are gone.
pub fn busy_streams(uses: impl Fn(Stream)) {
    let streams = [(); 5].map(|()| stream::create(0, 0).unwrap());
    streams.iter().copied().for_each(uses);
    let gates = streams.map(Gate::on);
    streams.iter().for_each(|stream| stream::destroy(stream.raw).unwrap());
    drop(gates);
    device::synchronize(0).unwrap();
}

/// On its default stream.
pub fn thread(uses: impl Fn(Stream) + Sync) {
    std::thread::scope(|scope| scope.spawn(|| uses(Stream { device: 0, raw: 2 })).join().unwrap());
}
