//! Capture: a stream that is being captured keeps its work as nodes of a graph instead of doing it, and CUDA's rules on what may be called
//! meanwhile. What breaks them makes every capture that is concerned invalid, until it is ended.

use super::super::table::{Code, HostFn, RawStream, code};
use super::Sim;
use super::fault::Slot;
use super::stream::State;
use super::thread;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

pub type Repeat = Arc<dyn Fn(&'static Sim) -> Result<(), Code> + Send + Sync>;

/// What a node does each time.
#[derive(Clone)]
pub enum Action {
    Delay(Duration),
    Host {
        function: HostFn,
        data: usize,
    },
    Task(Repeat),
    /// Records an event, and goes on behind its last record.
    Record(u64),
    Await(u64),
    /// Waits for the work of others.
    Patient(Repeat),
}

#[derive(Clone)]
pub struct Node {
    /// As cudaGraphDebugDotPrint calls it.
    pub kind: &'static str,
    pub action: Action,
    pub device: usize,
    /// The stream that it was captured on.
    pub lane: u64,
    /// Nodes before it.
    pub after: Vec<usize>,
}

/// cudaStreamCaptureMode.
pub const GLOBAL: i32 = 0;
pub const RELAXED: i32 = 2;

pub struct Capture {
    mode: i32,
    thread: u64,
    origin: u64,
    valid: bool,
    nodes: Vec<Node>,
    /// The streams that take part, and the nodes that the next one on each comes after.
    tails: BTreeMap<u64, Vec<usize>>,
}

/// Calls that wait for the device, ask how far it is, or make it wait: CUDA forbids them while captures are under way, those of virtual memory,
/// cudaMemcpy and cudaIpcGetMemHandle not in every version (tests/conformance/capture_rules.rs).
fn is_unsafe(slot: Slot) -> bool {
    use Slot::*;
    const UNSAFE: [Slot; 39] = [
        cudaDeviceSynchronize,
        cudaDeviceEnablePeerAccess,
        cudaDeviceDisablePeerAccess,
        cudaMalloc,
        cudaFree,
        cudaIpcGetMemHandle,
        cudaIpcOpenMemHandle,
        cudaIpcCloseMemHandle,
        cudaHostAlloc,
        cudaFreeHost,
        cudaHostRegister,
        cudaHostUnregister,
        cudaMemcpy,
        cudaMemset,
        cudaStreamSynchronize,
        cudaStreamQuery,
        cudaEventQuery,
        cudaEventSynchronize,
        cudaMallocAsync,
        cudaFreeAsync,
        cudaMemPoolGetAttribute,
        cudaMemPoolSetAttribute,
        cudaMemPoolSetAccess,
        cudaMemPoolTrimTo,
        cudaGraphInstantiateWithFlags,
        cudaGraphExecDestroy,
        cuMemAddressReserve,
        cuMemAddressFree,
        cuMemCreate,
        cuMemRelease,
        cuMemMap,
        cuMemUnmap,
        cuMemSetAccess,
        cuGreenCtxCreate,
        cuGreenCtxDestroy,
        cuGreenCtxStreamCreate,
        cuModuleLoadData,
        cuModuleGetFunction,
        cuModuleUnload,
    ];
    UNSAFE.contains(&slot)
}

impl State {
    /// The capture that a stream takes part in.
    pub fn capture_of(&self, stream: u64) -> Option<u64> {
        self.captures.iter().find(|(_, capture)| capture.tails.contains_key(&stream)).map(|(id, _)| *id)
    }

    fn spoil(&mut self, capture: u64, code: Code) -> Code {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.valid = false;
        }
        code
    }

    /// A call on a stream that no capture can hold.
    pub fn refuse_captured(&mut self, stream: u64) -> Result<(), Code> {
        match self.capture_of(stream) {
            Some(capture) => Err(self.spoil(capture, code::CAPTURE_UNSUPPORTED)),
            None => Ok(()),
        }
    }

    /// The same for all of a device.
    pub fn refuse_captured_device(&mut self, device: usize) -> Result<(), Code> {
        let streams = &self.streams;
        let is_there = |capture: &Capture| capture.tails.keys().any(|id| streams.get(id).is_some_and(|stream| stream.device == device));
        let concerned: Vec<u64> = self.captures.iter().filter(|(_, capture)| is_there(capture)).map(|(id, _)| *id).collect();
        concerned.into_iter().map(|id| Err(self.spoil(id, code::CAPTURE_UNSUPPORTED))).fold(Ok(()), Result::and)
    }

    /// What is given to the legacy default stream would come behind the blocking streams of its device, of which none may be captured.
    pub fn refuse_legacy(&mut self, device: usize) -> Result<(), Code> {
        self.blocking_captures(device).into_iter().map(|id| Err(self.spoil(id, code::CAPTURE_IMPLICIT))).fold(Ok(()), Result::and)
    }

    fn blocking_captures(&self, device: usize) -> Vec<u64> {
        let blocks = |id: &u64| self.streams.get(id).is_some_and(|stream| stream.device == device && stream.is_blocking());
        self.captures.iter().filter(|(_, capture)| capture.tails.keys().any(blocks)).map(|(id, _)| *id).collect()
    }

    /// False: the stream is not being captured.
    pub fn keep(&mut self, stream: u64, kind: &'static str, action: impl FnOnce() -> Action) -> Result<bool, Code> {
        let Some(id) = self.capture_of(stream) else { return Ok(false) };
        let device = self.streams.get(&stream).map(|stream| stream.device).ok_or(code::INVALID_HANDLE)?;
        let capture = self.valid_capture(id)?;
        let Some(tail) = capture.tails.get_mut(&stream) else { return Ok(false) };
        let after = std::mem::replace(tail, vec![capture.nodes.len()]);
        capture.nodes.push(Node { kind, action: action(), device, lane: stream, after });
        Ok(true)
    }

    fn valid_capture(&mut self, id: u64) -> Result<&mut Capture, Code> {
        self.captures.get_mut(&id).filter(|capture| capture.valid).ok_or(code::CAPTURE_INVALIDATED)
    }

    /// The nodes that an event stands behind; None: the stream is not being captured.
    pub fn captured_point(&mut self, stream: u64) -> Result<Option<(u64, Vec<usize>)>, Code> {
        let Some(id) = self.capture_of(stream) else { return Ok(None) };
        Ok(self.valid_capture(id)?.tails.get(&stream).map(|tail| (id, tail.clone())))
    }

    /// The stream takes part from here on, and what it gets comes behind the nodes.
    pub fn join(&mut self, stream: u64, (id, nodes): (u64, Vec<usize>)) -> Result<(), Code> {
        let own = self.capture_of(stream);
        if !self.captures.contains_key(&id) {
            own.map(|own| self.spoil(own, 0));
            return Err(code::CAPTURED_EVENT);
        }
        if let Some(own) = own.filter(|own| *own != id) {
            self.spoil(own, 0);
            return Err(self.spoil(id, code::CAPTURE_MERGE));
        }
        if self.legacy.contains(&stream) {
            return Err(self.spoil(id, code::CAPTURE_IMPLICIT));
        }
        let tail = self.valid_capture(id)?.tails.entry(stream).or_default();
        tail.extend(nodes);
        tail.sort_unstable();
        tail.dedup();
        Ok(())
    }

    /// A capturing stream is to wait for work outside of its capture.
    pub fn refuse_isolated(&mut self, stream: u64) -> Result<(), Code> {
        match self.capture_of(stream) {
            Some(capture) => Err(self.spoil(capture, code::CAPTURE_ISOLATION)),
            None => Ok(()),
        }
    }

    /// Asking for, or waiting for, an event that was recorded in a capture.
    pub fn refuse_captured_event(&mut self, capture: u64) -> Code {
        self.spoil(capture, code::CAPTURED_EVENT)
    }

    /// Its captures cannot go on; that which began on it is over.
    pub fn drop_captures_of(&mut self, stream: u64) {
        if let Some(id) = self.capture_of(stream) {
            match self.captures.get_mut(&id) {
                Some(capture) if capture.origin != stream => {
                    capture.valid = false;
                    capture.tails.remove(&stream);
                }
                _ => drop(self.captures.remove(&id)),
            }
        }
    }

    fn end_capture(&mut self, stream: u64, thread: u64) -> Result<Vec<Node>, Code> {
        let id = self.capture_of(stream).ok_or(code::ILLEGAL_STATE)?;
        let capture = self.captures.get(&id).ok_or(code::ILLEGAL_STATE)?;
        if capture.origin != stream {
            return Err(self.spoil(id, code::CAPTURE_UNMATCHED));
        }
        if capture.mode != RELAXED && capture.thread != thread {
            return Err(code::CAPTURE_WRONG_THREAD);
        }
        let capture = self.captures.remove(&id).filter(|capture| capture.valid).ok_or(code::CAPTURE_INVALIDATED)?;
        // Whatever a forked stream did comes before something that the first stream waits for.
        let mut joined = vec![false; capture.nodes.len()];
        let mut reach = capture.tails[&stream].clone();
        while let Some(node) = reach.pop() {
            if !std::mem::replace(&mut joined[node], true) {
                reach.extend(&capture.nodes[node].after);
            }
        }
        if joined.contains(&false) { Err(code::CAPTURE_UNJOINED) } else { Ok(capture.nodes) }
    }
}

/// The nodes that none comes after.
pub fn ends_of(nodes: &[Node]) -> Vec<usize> {
    let followed: HashSet<usize> = nodes.iter().flat_map(|node| node.after.iter().copied()).collect();
    (0..nodes.len()).filter(|node| !followed.contains(node)).collect()
}

impl Sim {
    /// Before every call: whether a capture forbids it to this thread.
    pub(super) fn pass_captures(&'static self, slot: Slot) -> Result<(), Code> {
        if self.scheduler.captures.load(Acquire) == 0 || !is_unsafe(slot) {
            return Ok(());
        }
        let (mode, own) = (thread::capture_mode(), thread::number());
        let forbids = |capture: &&mut Capture| match capture.thread == own {
            true => mode != RELAXED && capture.mode != RELAXED,
            false => mode == GLOBAL && capture.mode == GLOBAL,
        };
        let mut line = self.scheduler.line();
        let spoilt = line.state.captures.values_mut().filter(forbids).map(|capture| capture.valid = false).count();
        if spoilt > 0 { Err(code::CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// A stream that is to be given work, asked or waited for.
    pub(super) fn stream_for_work(&'static self, raw: RawStream) -> Result<(u64, usize), Code> {
        let (stream, device) = self.stream(raw)?;
        if self.scheduler.captures.load(Acquire) > 0 {
            let mut line = self.scheduler.line();
            if line.state.legacy[device] == stream {
                line.state.refuse_legacy(device)?;
            }
        }
        Ok((stream, device))
    }

    pub fn begin_capture(&'static self, raw: RawStream, mode: i32) -> Result<(), Code> {
        let (stream, device) = self.stream(raw)?;
        if !(GLOBAL..=RELAXED).contains(&mode) {
            return Err(code::INVALID_VALUE);
        }
        let mut line = self.scheduler.line();
        let state = &mut line.state;
        if state.legacy[device] == stream {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        if state.capture_of(stream).is_some() {
            return Err(code::ILLEGAL_STATE);
        }
        let id = state.next_id();
        let tails = BTreeMap::from([(stream, Vec::new())]);
        let capture = Capture { mode, thread: thread::number(), origin: stream, valid: true, nodes: Vec::new(), tails };
        state.captures.insert(id, capture);
        self.scheduler.captures.store(state.captures.len(), Release);
        Ok(())
    }

    pub fn end_capture(&'static self, raw: RawStream) -> Result<Vec<Node>, Code> {
        let (stream, _) = self.stream(raw)?;
        let mut line = self.scheduler.line();
        let ended = line.state.end_capture(stream, thread::number());
        self.scheduler.captures.store(line.state.captures.len(), Release);
        ended
    }

    /// cudaStreamCaptureStatus, and the number of the capture if there is one.
    pub fn capture_status(&'static self, raw: RawStream) -> Result<(i32, u64), Code> {
        const NONE: i32 = 0;
        const ACTIVE: i32 = 1;
        const INVALIDATED: i32 = 2;
        let (stream, device) = self.stream(raw)?;
        let line = self.scheduler.line();
        let state = &line.state;
        if state.legacy[device] == stream && !state.blocking_captures(device).is_empty() {
            return Err(code::CAPTURE_IMPLICIT);
        }
        Ok(match state.capture_of(stream) {
            None => (NONE, 0),
            Some(id) if state.captures[&id].valid => (ACTIVE, id),
            Some(id) => (INVALIDATED, id),
        })
    }
}
