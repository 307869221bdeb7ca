//! Streams of a pipeline's own: on each device that hands on, one chunk begins while the one before ends.

use super::circle::Circle;
use crate::base::{Result, sync_debug};
use crate::stream::{self, Stream};
use parking_lot::Mutex;

/// On each device.
const LANES: usize = 2;

/// Those that no call uses, each with its serial number: after a shutdown it is another stream's, or none's.
static IDLE: Mutex<Vec<(Stream, Option<u64>)>> = Mutex::new(Vec::new());

/// For each hop its lanes. Dropped before all were joined, they are waited for.
pub struct Lanes {
    hops: Vec<Vec<Stream>>,
    is_borrowed: bool,
    is_joined: bool,
}

impl Lanes {
    /// From each of the streams' devices. While one of the circle is captured the streams themselves: lanes would stay in the capture until it ends.
    pub fn new(circle: &mut Circle, from: &[Stream]) -> Result<Lanes> {
        if circle.is_captured()? {
            return Ok(Lanes { hops: from.iter().map(|stream| vec![*stream]).collect(), is_borrowed: false, is_joined: true });
        }
        let mut lanes = Lanes { hops: Vec::with_capacity(from.len()), is_borrowed: true, is_joined: true };
        for (at, stream) in from.iter().enumerate() {
            lanes.hops.push(Vec::new());
            for _ in 0..LANES {
                lanes.hops[at].push(take(stream.device)?);
            }
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
        self.hops[hop].iter().try_for_each(|lane| circle.hand_on(stream, *lane))
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
        if !self.is_borrowed {
            return;
        }
        let lanes = self.hops.iter().flatten();
        if !self.is_joined {
            // As of the circle's streams: one that cannot be waited for is lost.
            lanes.clone().for_each(|lane| drop(sync_debug::unrefused(|| lane.synchronize())));
        }
        IDLE.lock().extend(lanes.map(|lane| (*lane, stream::serial(*lane))));
    }
}

fn take(device: i32) -> Result<Stream> {
    let mut idle = IDLE.lock();
    idle.retain(|(lane, serial)| serial.is_some() && stream::serial(*lane) == *serial);
    match idle.iter().position(|(lane, _)| lane.device == device) {
        Some(at) => Ok(idle.swap_remove(at).0),
        None => {
            drop(idle);
            stream::create(device, 0)
        }
    }
}
