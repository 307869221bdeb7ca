//! Green contexts: so many of a device's multiprocessors, and streams whose kernels run on those.

use super::super::table::{Code, DevResource, RawGreenContext, RawStream, code};
use super::Sim;
use super::device::PRIORITIES;
use super::stream::{self, State};
use std::sync::atomic::Ordering::Release;

/// An H100 sets eight apart, or a multiple of that, or all.
const STEP: u32 = 8;
/// cudaDevAttrMultiProcessorCount.
const MULTIPROCESSORS: i32 = 16;

/// As of streams and events.
const CONTEXTS: usize = 0x5400_0000_0000;
const DESCRIPTIONS: usize = 0x5500_0000_0000;

/// What a resource's own bytes say: the device, and whether it was split off, which cannot be split again.
fn resource(device: u8, is_part: bool, multiprocessors: u32) -> DevResource {
    let mut made = DevResource { kind: DevResource::MULTIPROCESSORS, multiprocessors, ..DevResource::NONE };
    (made.internal[0], made.internal[1]) = (device, u8::from(is_part));
    made
}

impl State {
    pub fn is_green(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|stream| stream.green.is_some())
    }

    /// A stream whose green context is gone can be used no more, nor destroyed.
    pub fn refuse_detached(&self, stream: u64) -> Result<(), Code> {
        let green = self.streams.get(&stream).and_then(|stream| stream.green);
        if green.is_none_or(|green| self.green_contexts.contains_key(&green)) { Ok(()) } else { Err(code::CONTEXT_IS_DESTROYED) }
    }
}

impl Sim {
    pub(super) fn device_resource(&self, device: i32, kind: i32) -> Result<DevResource, Code> {
        let count = self.device(device)?.attribute(MULTIPROCESSORS).unwrap_or(0);
        if kind != DevResource::MULTIPROCESSORS {
            return Err(code::INVALID_RESOURCE_TYPE);
        }
        Ok(resource(device as u8, false, count as u32))
    }

    /// What each group is, how many of at most `wanted` there are, and what is left.
    pub(super) fn split_resource(
        &self,
        whole: &DevResource,
        wanted: u32,
        flags: u32,
        least: u32,
    ) -> Result<(DevResource, u32, DevResource), Code> {
        if whole.kind != DevResource::MULTIPROCESSORS {
            return Err(code::INVALID_RESOURCE_TYPE);
        }
        if flags != 0 || wanted == 0 {
            return Err(code::INVALID_VALUE);
        }
        if least > whole.multiprocessors || whole.internal[1] != 0 {
            return Err(code::INVALID_RESOURCE_CONFIGURATION);
        }
        let size = least.max(1).next_multiple_of(STEP).min(whole.multiprocessors);
        let made = wanted.min(whole.multiprocessors / size);
        let device = whole.internal[0];
        Ok((resource(device, true, size), made, resource(device, true, whole.multiprocessors - made * size)))
    }

    pub(super) fn describe_resource(&self, part: &DevResource) -> Result<usize, Code> {
        if part.kind != DevResource::MULTIPROCESSORS {
            return Err(code::INVALID_RESOURCE_TYPE);
        }
        // Nothing ends a description, and nothing is kept for one.
        Ok(DESCRIPTIONS + usize::from(part.internal[0]))
    }

    /// Makes the device's context.
    pub(super) fn create_green_context(&self, description: usize, device: i32, flags: u32) -> Result<RawGreenContext, Code> {
        const DEFAULT_STREAM: u32 = 1;
        if flags != DEFAULT_STREAM || description != DESCRIPTIONS + device as usize {
            return Err(code::INVALID_VALUE);
        }
        self.device(device)?.activate()?;
        let state = &mut self.scheduler.line().state;
        let id = state.next_id();
        state.green_contexts.insert(id, device as usize);
        Ok(stream::handle(CONTEXTS, id))
    }

    /// Streams that are left of it stay for ever.
    pub(super) fn destroy_green_context(&self, context: RawGreenContext) -> Result<(), Code> {
        let id = stream::id_of(context, CONTEXTS).ok_or(code::INVALID_CONTEXT)?;
        let mut line = self.scheduler.line();
        let device = line.state.green_contexts.remove(&id).ok_or(code::INVALID_CONTEXT)?;
        let left: Vec<u64> = line.state.streams.iter().filter(|(_, stream)| stream.green == Some(id)).map(|(id, _)| *id).collect();
        left.into_iter().for_each(|stream| line.state.drop_captures_of(stream));
        self.scheduler.captures.store(line.state.captures.len(), Release);
        self.devices[device].check()
    }

    pub(super) fn create_green_stream(&self, context: RawGreenContext, flags: u32, priority: i32) -> Result<RawStream, Code> {
        if flags != stream::NON_BLOCKING {
            return Err(code::INVALID_VALUE);
        }
        let id = stream::id_of(context, CONTEXTS).ok_or(code::INVALID_CONTEXT)?;
        let state = &mut self.scheduler.line().state;
        let device = *state.green_contexts.get(&id).ok_or(code::INVALID_CONTEXT)?;
        self.devices[device].check()?;
        let made = state.add_stream(device, flags, priority.clamp(PRIORITIES.1, PRIORITIES.0), true);
        if let Some(stream) = state.streams.get_mut(&made) {
            stream.green = Some(id);
        }
        Ok(stream::stream_handle(made))
    }
}
