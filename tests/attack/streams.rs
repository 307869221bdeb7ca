//! Streams that come and end, and what makes the host wait.

use crate::memory::name;
use crate::model::{Kind, Stream};
use crate::program::{Program, did};
use crate::trail::note;
use std::ptr::null_mut;
use std::sync::Arc;
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::stream::*;

impl Program {
    pub fn make_stream(&mut self) {
        const MOST: usize = 12;
        if self.world.streams.lock().unwrap().len() >= MOST {
            return;
        }
        let device = self.random.below(self.world.plan.devices) as i32;
        let (from_pool, priority) = (self.random.chance(30), -(self.random.below(2) as i32));
        let mut stream = null_mut();
        let made = match from_pool {
            true => did!(self, tcuda_stream_from_pool(&mut stream, device, priority)),
            false => did!(self, tcuda_stream_create(&mut stream, device, priority)),
        };
        if made {
            let kind = if from_pool { Kind::FromPool } else { Kind::Created };
            let stream = Stream::new(stream, device, kind, Some(self.world.default(device).clone()));
            note!("{} begins", name(&stream));
            self.world.streams.lock().unwrap().push(stream);
        }
    }

    pub fn end_stream(&mut self) {
        let streams = self.world.streams.lock().unwrap().clone();
        if let Some(stream) = self.random.pick(&streams) {
            self.end_this(&stream);
        }
    }

    /// Unless it is a stream that does not end, or somebody holds it.
    pub fn end_this(&mut self, stream: &Arc<Stream>) {
        if stream.kind != Kind::Created {
            return;
        }
        let waits = !self.is_capturing && self.random.chance(30);
        let ended = stream.end(|raw, heir| {
            note!("{} ends", name(stream));
            let ordered = match waits {
                true => did!(self, tcuda_stream_synchronize(raw)),
                false => did!(self, tcuda_stream_wait_stream(heir.hold().raw(), raw)),
            };
            ordered && did!(self, tcuda_stream_destroy(raw))
        });
        if ended {
            self.world.streams.lock().unwrap().retain(|other| !Arc::ptr_eq(other, stream));
        }
    }

    pub fn wait(&mut self) {
        if self.is_capturing {
            return;
        }
        if self.random.chance(70) {
            let stream = self.pick_stream(None);
            let held = stream.hold();
            note!("waits for {}", name(held.stream));
            did!(self, tcuda_stream_synchronize(held.raw()));
        } else {
            let device = self.random.below(self.world.plan.devices) as i32;
            note!("waits for device {device}");
            did!(self, tcuda_synchronize(device));
        }
    }
}
