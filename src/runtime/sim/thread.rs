//! What CUDA keeps for each thread: the current device, the last error, contexts pushed, default streams of its own.

use super::super::table::{Code, code};
use super::Sim;
use crate::base::process;
use crate::base::spared::Uncancelled;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Thread {
    /// The simulation that the rest belongs to; each starts anew.
    sim: Cell<usize>,
    device: Cell<usize>,
    /// By cudaSetDevice: where it stands when no context is current.
    chosen: Cell<usize>,
    last: Cell<Code>,
    capture_mode: Cell<i32>,
    /// 0 until it is asked for.
    number: Cell<u64>,
    in_host_function: Cell<bool>,
}

/// What has to be given back when the thread ends.
struct Owned {
    streams: Vec<(&'static Sim, usize, u64)>,
    /// Devices whose contexts were current before cuCtxPushCurrent; None: there was none.
    contexts: Vec<Option<usize>>,
}

/// As CUDA's, they end when the thread's own values are gone, and before that serve their destructors.
fn end() {
    let _whole = Uncancelled::enter();
    let owned = OWNED.replace(ManuallyDrop::new(Owned { streams: Vec::new(), contexts: Vec::new() }));
    // The child of a fork must not take locks that a thread of the parent may have held.
    if !process::is_forked() {
        owned.streams.iter().for_each(|(sim, _, stream)| sim.retire_stream(*stream));
    }
    drop(ManuallyDrop::into_inner(owned));
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            sim: Cell::new(0),
            device: Cell::new(0),
            chosen: Cell::new(0),
            last: Cell::new(0),
            capture_mode: Cell::new(0),
            number: Cell::new(0),
            in_host_function: Cell::new(false),
        }
    };
    static OWNED: RefCell<ManuallyDrop<Owned>> = const { RefCell::new(ManuallyDrop::new(Owned { streams: Vec::new(), contexts: Vec::new() })) };
}

/// At the start of every call.
#[inline]
pub fn enter(sim: &Sim) -> Result<(), Code> {
    THREAD.with(|thread| {
        if thread.sim.get() != sim.id {
            thread.sim.set(sim.id);
            thread.device.set(0);
            thread.chosen.set(0);
            thread.last.set(0);
            thread.capture_mode.set(0);
        }
        if thread.in_host_function.get() {
            Err(code::NOT_PERMITTED)
        } else if process::is_forked() {
            Err(code::NOT_INITIALIZED)
        } else {
            Ok(())
        }
    })
}

/// The current device of a machine that this thread may not have called yet.
pub fn current(sim: &Sim) -> usize {
    THREAD.with(|thread| if thread.sim.get() == sim.id { thread.device.get() } else { 0 })
}

pub fn device() -> usize {
    THREAD.with(|thread| thread.device.get())
}

pub fn set_device(device: usize) {
    THREAD.with(|thread| {
        thread.device.set(device);
        thread.chosen.set(device);
    });
}

pub fn set_last(code: Code) {
    THREAD.with(|thread| thread.last.set(code));
}

pub fn last() -> Code {
    THREAD.with(|thread| thread.last.get())
}

/// Returns the previous mode.
pub fn exchange_capture_mode(mode: i32) -> i32 {
    THREAD.with(|thread| thread.capture_mode.replace(mode))
}

pub fn capture_mode() -> i32 {
    THREAD.with(|thread| thread.capture_mode.get())
}

/// Of no other thread, not even of one that ended.
pub fn number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    THREAD.with(|thread| {
        if thread.number.get() == 0 {
            thread.number.set(LAST.fetch_add(1, Relaxed) + 1);
        }
        thread.number.get()
    })
}

/// CUDA's functions are refused on this thread while `work` runs.
pub fn in_host_function(work: impl FnOnce()) {
    THREAD.with(|thread| thread.in_host_function.set(true));
    work();
    THREAD.with(|thread| thread.in_host_function.set(false));
}

/// Makes a device current and remembers the one before, if it had a context.
pub fn push_context(pushed: usize, before: Option<usize>) {
    process::at_end(end);
    OWNED.with_borrow_mut(|owned| owned.contexts.push(before));
    THREAD.with(|thread| thread.device.set(pushed));
}

/// The device that was current, and is no more.
pub fn pop_context() -> Result<usize, Code> {
    let popped = device();
    let before = OWNED.with_borrow_mut(|owned| owned.contexts.pop()).ok_or(code::INVALID_CONTEXT)?;
    THREAD.with(|thread| thread.device.set(before.unwrap_or(thread.chosen.get())));
    Ok(popped)
}

/// This thread's own default stream of a device, made at first use.
pub fn default_stream(sim: &'static Sim, device: usize) -> u64 {
    OWNED.with_borrow_mut(|owned| {
        let found = owned.streams.iter().find(|(s, d, _)| std::ptr::eq(*s, sim) && *d == device);
        found.map(|(_, _, stream)| *stream).unwrap_or_else(|| {
            process::at_end(end);
            let stream = sim.make_stream(device, 0, 0, false);
            owned.streams.push((sim, device, stream));
            stream
        })
    })
}
