//! A stream of a ring's own beside each stream that hands on: parts of one call would otherwise come behind each other.

use super::circle::Circle;
use crate::base::Result;
use crate::runtime;
use crate::stream::{self, Stream};
use parking_lot::Mutex;

/// A stream's lane is its own: what waits for it waits for the stream in any case, and for no other call's streams.
struct Beside {
    owner: Stream,
    owner_serial: Option<u64>,
    lane: Stream,
    serial: Option<u64>,
}

/// Those that no call uses.
static IDLE: Mutex<Vec<Beside>> = Mutex::new(Vec::new());

/// Of each hop. Dropped before all were joined, they are waited for.
pub struct Lanes {
    hops: Vec<Stream>,
    borrowed: Vec<Beside>,
    is_joined: bool,
}

impl Lanes {
    /// Beside each of the streams. Where they are captured the streams themselves: lanes would stay in the capture until it ends. So is a
    /// thread's default stream, which has no name for other threads.
    pub fn new(from: &[Stream], is_captured: bool) -> Result<Lanes> {
        let mut lanes = Lanes { hops: Vec::with_capacity(from.len()), borrowed: Vec::new(), is_joined: true };
        for stream in from {
            if is_captured || stream.raw == stream::PER_THREAD {
                lanes.hops.push(*stream);
                continue;
            }
            let known = lanes.borrowed.iter().find(|beside| beside.owner == *stream).map(|beside| beside.lane);
            let lane = match known {
                Some(lane) => lane,
                None => {
                    lanes.borrowed.push(take(*stream)?);
                    lanes.borrowed[lanes.borrowed.len() - 1].lane
                }
            };
            lanes.hops.push(lane);
        }
        Ok(lanes)
    }

    pub fn hops(&self) -> &[Stream] {
        &self.hops
    }

    /// The hop goes on after all that the stream has got until now.
    pub fn follow(&mut self, circle: &mut Circle, hop: usize, stream: Stream) -> Result<()> {
        self.is_joined = false;
        circle.hand_on(stream, self.hops[hop])
    }

    /// The stream goes on after all that the hop has got.
    pub fn lead(&self, circle: &mut Circle, hop: usize, stream: Stream) -> Result<()> {
        circle.hand_on(self.hops[hop], stream)
    }

    /// Streams wait for all of them.
    pub fn joined(mut self) {
        self.is_joined = true;
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        if !self.is_joined {
            self.borrowed.iter().for_each(|beside| beside.lane.drain());
        }
        IDLE.lock().append(&mut self.borrowed);
    }
}

impl Beside {
    fn new(owner: Stream) -> Result<Beside> {
        let priority = if owner.is_default() { 0 } else { owner.priority()? };
        let lane = stream::create(owner.device, priority)?;
        Ok(Beside { owner, owner_serial: stream::serial(owner), lane, serial: stream::serial(lane) })
    }

    fn has_owner(&self) -> bool {
        self.owner_serial.is_some() && stream::serial(self.owner) == self.owner_serial
    }

    /// False after a shutdown.
    fn is_there(&self) -> bool {
        stream::serial(self.lane) == self.serial
    }
}

fn take(owner: Stream) -> Result<Beside> {
    let runtime = runtime::runtime()?;
    let mut idle = IDLE.lock();
    idle.retain(|beside| {
        // Of one whose owner is gone a kernel may still wait.
        let is_idle = || runtime.outside_capture(|| Ok(beside.lane.is_idle(runtime))).unwrap_or(false);
        let keeps = beside.is_there() && (beside.has_owner() || !is_idle());
        if beside.is_there() && !keeps {
            let _ = stream::destroy_unheard(beside.lane);
        }
        keeps
    });
    // The newest: calls in a row take the same.
    match idle.iter().rposition(|beside| beside.owner == owner && beside.has_owner()) {
        Some(at) => Ok(idle.remove(at)),
        None => {
            drop(idle);
            Beside::new(owner)
        }
    }
}
