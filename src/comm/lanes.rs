//! Streams of a pipeline's own beside each stream that hands on: one chunk begins while the one before ends.

use super::circle::Circle;
use crate::base::{Result, sync_debug};
use crate::stream::{self, Stream};
use parking_lot::Mutex;

/// Beside each stream.
const LANES: usize = 2;

/// A stream's lanes are its own: what waits for them waits for it in any case, and for no other call's streams.
struct Beside {
    owner: Stream,
    owner_serial: Option<u64>,
    lanes: [Stream; LANES],
    serials: [Option<u64>; LANES],
}

/// Those that no call uses.
static IDLE: Mutex<Vec<Beside>> = Mutex::new(Vec::new());

/// For each hop its lanes. Dropped before all were joined, they are waited for.
pub struct Lanes {
    hops: Vec<Vec<Stream>>,
    borrowed: Vec<Beside>,
    is_joined: bool,
}

impl Lanes {
    /// Beside each of the streams. While one of the circle is captured the streams themselves: lanes would stay in the capture until it ends. So is
    /// a thread's default stream, which has no name for other threads.
    pub fn new(circle: &mut Circle, from: &[Stream]) -> Result<Lanes> {
        let is_captured = circle.is_captured()?;
        let mut lanes = Lanes { hops: Vec::with_capacity(from.len()), borrowed: Vec::new(), is_joined: true };
        for stream in from {
            if is_captured || stream.raw == stream::PER_THREAD {
                lanes.hops.push(vec![*stream]);
                continue;
            }
            if !lanes.borrowed.iter().any(|beside| beside.owner == *stream) {
                lanes.borrowed.push(take(*stream)?);
            }
            let beside = lanes.borrowed.iter().filter(|beside| beside.owner == *stream);
            lanes.hops.push(beside.flat_map(|beside| beside.lanes).collect());
        }
        Ok(lanes)
    }

    /// Chunks take them in turn.
    pub fn at(&self, hop: usize, chunk: usize) -> Stream {
        let lanes = &self.hops[hop];
        lanes[chunk % lanes.len()]
    }

    /// The hop goes on after all that the stream has got until now.
    pub fn follow(&mut self, circle: &mut Circle, hop: usize, stream: Stream) -> Result<()> {
        self.is_joined = false;
        if self.hops[hop] == [stream] {
            return Ok(());
        }
        let mark = circle.mark(stream)?;
        self.hops[hop].iter().try_for_each(|lane| circle.wait(*lane, &mark))
    }

    /// The stream goes on after all that the hop has got.
    pub fn lead(&self, circle: &mut Circle, hop: usize, stream: Stream) -> Result<()> {
        self.hops[hop].iter().try_for_each(|lane| circle.hand_on(*lane, stream))
    }

    /// Streams wait for all of them.
    pub fn joined(mut self) {
        self.is_joined = true;
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        if !self.is_joined {
            // As of the circle's streams: one that cannot be waited for is lost.
            let lanes = self.borrowed.iter().flat_map(|beside| beside.lanes);
            lanes.for_each(|lane| drop(sync_debug::unrefused(|| lane.synchronize())));
        }
        IDLE.lock().append(&mut self.borrowed);
    }
}

impl Beside {
    fn new(owner: Stream) -> Result<Beside> {
        let priority = if owner.is_default() { 0 } else { owner.priority()? };
        let first = stream::create(owner.device, priority)?;
        let second = stream::create(owner.device, priority).inspect_err(|_| drop(stream::destroy_unheard(first)))?;
        let lanes = [first, second];
        Ok(Beside { owner, owner_serial: stream::serial(owner), lanes, serials: lanes.map(stream::serial) })
    }

    fn has_owner(&self) -> bool {
        self.owner_serial.is_some() && stream::serial(self.owner) == self.owner_serial
    }

    /// False after a shutdown.
    fn is_there(&self) -> bool {
        self.lanes.map(stream::serial) == self.serials
    }
}

fn take(owner: Stream) -> Result<Beside> {
    let mut idle = IDLE.lock();
    idle.retain(|beside| {
        let keeps = beside.is_there() && beside.has_owner();
        if beside.is_there() && !keeps {
            beside.lanes.iter().for_each(|lane| drop(stream::destroy_unheard(*lane)));
        }
        keeps
    });
    match idle.iter().position(|beside| beside.owner == owner) {
        Some(at) => Ok(idle.swap_remove(at)),
        None => {
            drop(idle);
            Beside::new(owner)
        }
    }
}
