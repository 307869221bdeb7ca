//! A rank of a communicator on a simulated device: its calls are work of streams that waits for the other ranks, as NCCL's kernels do. A rank
//! whose partner has gone holds up its stream until it is aborted.

use super::super::collective::{Call, ID_BYTES, Id, Work as Asked};
use super::super::select;
use super::super::table::{Code, code};
use super::capture::Action;
use super::fault::Slot;
use super::fold::fold;
use super::memory::{By, Span};
use super::mesh::{Broken, Frame, Hello, Mesh};
use super::stream::{Point, Work};
use super::{Sim, machine};
use crate::base::{Error, Result, Status, entropy};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

/// With what an id begins; a number that nobody can foretell comes behind it.
const MARK: &[u8; 16] = b"tcuda simulated ";

pub fn unique_id() -> Result<Id> {
    let mut id = [0; ID_BYTES];
    id[..16].copy_from_slice(MARK);
    id[16..24].copy_from_slice(&entropy::bits()?.to_ne_bytes());
    id[24..32].copy_from_slice(&entropy::bits()?.to_ne_bytes());
    Ok(id)
}

pub struct Rank {
    sim: &'static Sim,
    device: usize,
    /// Its own and that of its color: what is split from it has this and a number.
    name: String,
    /// Held by the one work that is at it.
    mesh: Mutex<Mesh>,
    /// (rank, size), when all are connected.
    place: OnceLock<(usize, usize)>,
    splits: AtomicU64,
    stopped: AtomicBool,
    failed: Mutex<Option<Error>>,
    /// Where its last call stands: calls go on in the order in which they were made, whatever their streams.
    last: Mutex<Option<Point>>,
}

/// What becomes of work that does not come to its end.
enum End {
    /// As a kernel that fails.
    Code(Code),
    Broken(Broken),
}

/// As long as any other, however often it was split before: the names of sockets are short.
fn within(name: &str, split: u64) -> String {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, name, split).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(0), half(1))
}

/// Tells a device from all others, also from those of other processes, which have simulated machines of their own.
fn place_of(device: usize) -> Result<u64> {
    static MACHINE: OnceCell<u64> = OnceCell::new();
    Ok(MACHINE.get_or_try_init(entropy::bits)?.wrapping_add(device as u64))
}

impl Rank {
    pub fn begin(id: &Id, size: usize, rank: usize, device: usize) -> Result<Arc<Rank>> {
        if &id[..16] != MARK {
            return Err(Error::invalid_argument(
                "This is no id of a communicator of simulated devices. tcuda_communicator_unique_id makes one, on the same backend.",
            ));
        }
        let name: String = id[16..32].iter().map(|byte| format!("{byte:02x}")).collect();
        Rank::new(name, device, Hello { rank: rank as i32, size: size as i32, color: 0, key: rank as i32, device: place_of(device)? })
    }

    fn new(name: String, device: usize, own: Hello) -> Result<Arc<Rank>> {
        Ok(Arc::new(Rank {
            sim: machine()?,
            device,
            name: format!("{name}:{}", own.color),
            mesh: Mutex::new(Mesh::new(name, own)?),
            place: OnceLock::new(),
            splits: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            failed: Mutex::new(None),
            last: Mutex::new(None),
        }))
    }

    /// All ranks make new sockets, and keep those to the ranks of their color.
    pub fn split(&self, color: i32, key: i32) -> Result<Arc<Rank>> {
        let (rank, size) = self.place();
        let name = within(&self.name, self.splits.fetch_add(1, Relaxed));
        Rank::new(name, self.device, Hello { rank, size, color, key, device: place_of(self.device)? })
    }

    pub fn place(&self) -> (i32, i32) {
        self.place.get().map_or((0, 0), |(rank, size)| (*rank as i32, *size as i32))
    }

    pub fn is_ready(&self) -> Result<bool> {
        if let Some(error) = self.failed.lock().clone() {
            return Err(error);
        }
        if self.place.get().is_some() {
            return Ok(true);
        }
        let mut mesh = self.mesh.lock();
        let ready = mesh.advance()?;
        if ready {
            self.place.get_or_init(|| mesh.settle());
        }
        Ok(ready)
    }

    /// The others see that it has gone; its work ends without an output.
    pub fn end(&self) {
        self.stopped.store(true, Release);
        self.mesh.lock().close();
    }

    /// All calls together, on the first one's stream; the streams of the others wait for it.
    pub fn post(self: &Arc<Rank>, works: &[Asked]) -> Result<()> {
        let runtime = select::runtime()?;
        runtime.check("cuLaunchKernel", self.sim.call(Slot::cuLaunchKernel, |sim| self.enqueue(sim, works)))
    }

    fn enqueue(self: &Arc<Rank>, sim: &'static Sim, works: &[Asked]) -> Result<(), Code> {
        let current = sim.current()?;
        let mut streams = Vec::new();
        for work in works {
            let (stream, device) = sim.stream_for_work(work.stream)?;
            if device != current || device != self.device {
                return Err(code::INVALID_HANDLE);
            }
            if !streams.contains(&stream) {
                streams.push(stream);
            }
        }
        let Some((first, others)) = streams.split_first() else { return Ok(()) };
        let stale = works.iter().any(|work| sim.memory.was_freed(&self.spans(work)));
        // As in NCCL's groups, which a send in the midst of collectives does not hold up.
        let moves = |work: &&Asked| matches!(work.call, Call::Send { .. } | Call::Recv { .. });
        let works: Arc<[Asked]> = works.iter().filter(|work| !moves(work)).chain(works.iter().filter(moves)).cloned().collect();
        let rank = self.clone();
        let task = move |_: &'static Sim| if stale { Err(code::ILLEGAL_ADDRESS) } else { rank.run(&works) };
        if sim.keep_action(*first, "COLLECTIVE", || Action::Patient(Arc::new(task.clone())))? {
            // A capture of several streams would have to be joined by events.
            return if others.is_empty() { Ok(()) } else { Err(code::NOT_SUPPORTED) };
        }
        let mut last = self.last.lock();
        let mut line = sim.scheduler.line();
        let now = Instant::now();
        let after = others.iter().flat_map(|other| line.state.end_of(*other)).chain(*last).collect();
        let point = line.state.push(*first, Work::Patient(Box::new(task)), after, now).ok_or(code::INVALID_HANDLE)?;
        for other in others {
            line.state.push(*other, Work::Nothing, vec![point], now).ok_or(code::INVALID_HANDLE)?;
            line.state.follow(*other, point);
        }
        *last = Some(point);
        sim.went_on(&mut line);
        Ok(())
    }

    /// What a call reads and writes.
    fn spans(&self, work: &Asked) -> Vec<Span> {
        let (rank, size) = self.place();
        let (reads, writes) = work.call.ends(rank);
        let (inputs, outputs) = work.call.shares(size as usize);
        let bytes = work.count * work.wire.size();
        let mut spans = Vec::new();
        if reads {
            spans.push(Span { address: work.input, size: inputs * bytes, write: false });
        }
        if writes {
            spans.push(Span { address: work.output, size: outputs * bytes, write: true });
        }
        spans
    }

    // ---- when the stream comes to it

    fn run(&self, works: &[Asked]) -> Result<(), Code> {
        if self.is_to_stop() {
            return Ok(());
        }
        let broken = match self.carry(works) {
            Ok(()) => return Ok(()),
            Err(End::Code(code)) => {
                self.mesh.lock().close();
                return Err(code);
            }
            Err(End::Broken(broken)) => broken,
        };
        // The others hear of it too.
        self.mesh.lock().close();
        if !matches!(broken, Broken::Stopped) {
            self.failed.lock().get_or_insert_with(|| explain(&broken));
        }
        while !self.is_to_stop() {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn is_to_stop(&self) -> bool {
        self.stopped.load(Acquire) || self.sim.devices[self.device].check().is_err()
    }

    fn carry(&self, works: &[Asked]) -> Result<(), End> {
        let (own, size) = self.place();
        let touch =
            |span: Span, work: &mut dyn FnMut()| self.sim.memory.touch(&[span], By::Kernel(self.device), false, work).map_err(End::Code);
        let frames = || (0..size).map(|_| Vec::new()).collect::<Vec<Vec<Frame>>>();
        let (mut sent, mut wanted) = (frames(), frames());
        // Before anything else, so that a send that waits for nothing but this does not wait for what comes behind it.
        for work in works {
            if let Call::Recv { peer } = work.call {
                sent[peer as usize].push(Frame::met());
            }
        }
        // All that is read, before anything is written: calls of a group may not build on each other.
        for work in works {
            let (tag, bytes) = (tag(work), work.count * work.wire.size());
            let spans = self.spans(work);
            let (to, from) = (targets(work, own, size), sources(work, own, size));
            // Who gets nothing, or gives nothing, says so: else only some would see that they differ.
            for peer in partners(work, own, size) {
                if is_of_all(work) && to.iter().all(|(target, _)| *target != peer) {
                    sent[peer as usize].push(Frame::wanted(tag, 0));
                }
                wanted[peer as usize].push(Frame::wanted(tag, if from.contains(&peer) { bytes } else { 0 }));
            }
            if let Call::Send { peer } = work.call {
                wanted[peer as usize].push(Frame::met());
            }
            for (peer, part) in to {
                if let Some(span) = spans.iter().find(|span| !span.write) {
                    let part = Span { address: span.address + part * bytes, size: bytes, write: false };
                    let mut frame = Frame::wanted(tag, bytes);
                    touch(part, &mut || unsafe {
                        std::ptr::copy_nonoverlapping(part.address as *const u8, frame.bytes.as_mut_ptr(), bytes)
                    })?;
                    sent[peer as usize].push(frame);
                }
            }
        }
        let came = self.mesh.lock().exchange(sent, wanted, || self.is_to_stop()).map_err(End::Broken)?;
        let mut came: Vec<_> = came.into_iter().map(Vec::into_iter).collect();
        for work in works {
            let all: Vec<(i32, Frame)> =
                partners(work, own, size).filter_map(|peer| came[peer as usize].next().map(|frame| (peer, frame))).collect();
            let from = sources(work, own, size);
            let parts: Vec<&[u8]> = all.iter().filter(|(peer, _)| from.contains(peer)).map(|(_, frame)| &frame.bytes[..]).collect();
            let result = match work.call {
                Call::AllReduce(reduction) | Call::ReduceScatter(reduction) | Call::Reduce { reduction, .. } => {
                    fold(work.wire, reduction, &parts)
                }
                _ => parts.concat(),
            };
            for span in self.spans(work).into_iter().filter(|span| span.write) {
                touch(span, &mut || unsafe {
                    std::ptr::copy_nonoverlapping(result.as_ptr(), span.address as *mut u8, span.size.min(result.len()))
                })?;
            }
        }
        Ok(())
    }
}

/// To whom a rank sends, and which part of its input.
fn targets(work: &Asked, own: i32, size: i32) -> Vec<(i32, usize)> {
    match work.call {
        Call::AllReduce(_) | Call::AllGather => (0..size).map(|peer| (peer, 0)).collect(),
        Call::Broadcast { root } if own == root => (0..size).map(|peer| (peer, 0)).collect(),
        Call::ReduceScatter(_) | Call::AllToAll => (0..size).map(|peer| (peer, peer as usize)).collect(),
        Call::Reduce { root: peer, .. } | Call::Send { peer } => vec![(peer, 0)],
        Call::Broadcast { .. } | Call::Recv { .. } => Vec::new(),
    }
}

/// Who says something to a rank: in a call of all everybody, if only that.
fn partners(work: &Asked, own: i32, size: i32) -> std::ops::Range<i32> {
    if is_of_all(work) { 0..size } else { sources(work, own, size) }
}

fn is_of_all(work: &Asked) -> bool {
    !matches!(work.call, Call::Send { .. } | Call::Recv { .. })
}

/// From whom something comes, in the order in which it is used.
fn sources(work: &Asked, own: i32, size: i32) -> std::ops::Range<i32> {
    match work.call {
        Call::AllReduce(_) | Call::AllGather | Call::ReduceScatter(_) | Call::AllToAll => 0..size,
        Call::Reduce { root, .. } if own == root => 0..size,
        Call::Broadcast { root: peer } | Call::Recv { peer } => peer..peer + 1,
        Call::Reduce { .. } | Call::Send { .. } => 0..0,
    }
}

const MOVES: u64 = 7;

/// A call as the ranks have to agree on it: its kind, what it computes, with what, and its root.
fn tag(work: &Asked) -> u64 {
    let (kind, reduction, root) = match work.call {
        Call::AllReduce(reduction) => (1, reduction as i32, 0),
        Call::AllGather => (2, 0, 0),
        Call::ReduceScatter(reduction) => (3, reduction as i32, 0),
        Call::Broadcast { root } => (4, 0, root),
        Call::Reduce { reduction, root } => (5, reduction as i32, root),
        Call::AllToAll => (6, 0, 0),
        Call::Send { .. } | Call::Recv { .. } => (MOVES, 0, 0),
    };
    kind | (reduction as u64) << 8 | (work.wire as u64) << 16 | (root as u64) << 32
}

fn name_of(tag: u64) -> &'static str {
    ["nothing", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send or recv"][(tag & 7) as usize]
}

fn explain(broken: &Broken) -> Error {
    let text = match broken {
        Broken::Stopped => "The communicator was aborted.".into(),
        Broken::Gone(peer) => format!("Rank {peer} has gone: its process ended, its device failed, or its communicator was aborted."),
        Broken::Unmet { peer, sent } if sent & 7 == MOVES => format!(
            "Rank {peer} sends to this one, which sends as well, and neither comes to its receive. Ranks that send to each other do that and \
             receive within one group (tcuda_communicator_group_start)."
        ),
        Broken::Unmet { peer, sent } => format!(
            "The ranks make different calls: rank {peer} is at {}, this one at send. All ranks make the same calls in the same order.",
            name_of(*sent)
        ),
        Broken::Differs { peer, sent, expected } if name_of(sent.0) != name_of(expected.0) => format!(
            "The ranks make different calls: rank {peer} is at {}, this one at {}. All ranks make the same calls in the same order.",
            name_of(sent.0),
            name_of(expected.0)
        ),
        Broken::Differs { peer, sent, expected } => format!(
            "The ranks differ in {}: {} bytes come from rank {peer} where this one wants {}{}. All ranks give the same sizes, types, reductions \
             and roots.",
            name_of(expected.0),
            sent.1,
            expected.1,
            if sent.1 == expected.1 { ", of another type, reduction or root" } else { "" }
        ),
    };
    Error::new(Status::TCUDA_ERROR_REMOTE, text)
}
