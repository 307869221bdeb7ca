//! A handle of cuBLAS for each thread and stream, with a workspace from the cache. Handles are made seldom: those of threads that ended
//! and of streams that went are given out again.

use super::{is_captured, with_memory};
use crate::base::spared::Uncancelled;
use crate::base::{Result, config, log, process};
use crate::device;
use crate::memory::{self, captures};
use crate::runtime::libraries::{self, Handle};
use crate::runtime::{self, Address};
use crate::stream::{self, PER_THREAD, Stream, Turn};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const VARIABLE: &str = "CUBLAS_WORKSPACE_CONFIG";

/// Thread, device, stream.
type Key = (u64, i32, usize);

struct Held {
    handle: Handle,
    /// 0: cuBLAS has its own.
    workspace: Address,
    /// A graph has captured work with it.
    stays: bool,
}

struct Table {
    held: BTreeMap<Key, Held>,
    /// Of no thread, with no workspace.
    idle: Vec<(i32, Handle)>,
    /// What graphs may use.
    kept: Vec<(i32, Held)>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { held: BTreeMap::new(), idle: Vec::new(), kept: Vec::new() });

/// Gives a thread's handles back when it ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let _whole = Uncancelled::enter();
        thread_ends();
    }
}

fn thread_ends() {
    if process::is_running() {
        leave(|key| key.0 == process::thread());
    }
}

/// What the calling thread has goes with it.
fn mind_end() {
    thread_local!(static END: End = const { End });
    // Behind its drop, or if that never comes, the other way.
    let _ = END.try_with(|_| ());
    process::at_end(thread_ends);
}

/// The calling thread's handle for a stream, which it works on. Until the thread ends or the stream goes.
pub fn handle(stream: Stream) -> Result<Handle> {
    let key = (process::thread(), stream.device, stream.raw);
    // What a graph got it may do again at any time, also one that the program captures by CUDA itself.
    let captured = is_captured(stream)?;
    if let Some(held) = TABLE.lock().held.get_mut(&key) {
        held.stays |= captured;
        return Ok(held.handle);
    }
    let runtime = runtime::runtime()?;
    let blas = libraries::blas(runtime)?;
    stream::on_gone(Turn::Holders, stream_goes);
    captures::on_joined(stream_joins);
    let _guard = device::Guard::new(stream.device)?;
    let idle = {
        let idle = &mut TABLE.lock().idle;
        idle.iter().position(|(device, _)| *device == stream.device).map(|at| idle.swap_remove(at).1)
    };
    let handle = match idle {
        Some(handle) => handle,
        None => with_memory(stream.device, || runtime.outside_capture(|| blas.create())).map_err(|error| error.on_device(stream.device))?,
    };
    let mut held = Held { handle, workspace: 0, stays: false };
    let furnish = |held: &mut Held| {
        blas.set_stream(handle, stream.raw)?;
        let size = workspace_size(stream.device)?;
        held.workspace = memory::allocate(size, 1, stream)?;
        if size != 0 { blas.set_workspace(handle, held.workspace, size) } else { Ok(()) }
    };
    if let Err(error) = furnish(&mut held) {
        put_away(stream.device, held);
        return Err(error);
    }
    held.stays = captured;
    let first = {
        let mut table = TABLE.lock();
        match table.held.get_mut(&key) {
            Some(first) => {
                first.stays |= captured;
                first.handle
            }
            None => {
                table.held.insert(key, held);
                drop(table);
                mind_end();
                return Ok(handle);
            }
        }
    };
    // Who was asked for memory, or heard the log, asked for the same one meanwhile.
    held.stays = false;
    put_away(stream.device, held);
    Ok(first)
}

/// Nobody's any more: the workspace is its stream's again, in that stream's order.
fn put_away(device: i32, held: Held) {
    if held.stays {
        return TABLE.lock().kept.push((device, held));
    }
    // The memory of a lost device went with it.
    let _ = memory::free(held.workspace);
    TABLE.lock().idle.push((device, held.handle));
}

fn leave(goes: impl Fn(&Key) -> bool) {
    let gone: Vec<(Key, Held)> = {
        let held = &mut TABLE.lock().held;
        let keys: Vec<Key> = held.keys().filter(|key| goes(key)).copied().collect();
        keys.into_iter().filter_map(|key| held.remove_entry(&key)).collect()
    };
    gone.into_iter().for_each(|((_, device, _), held)| put_away(device, held));
}

/// A handle from before a capture may be used in it.
fn stream_joins(stream: Stream) {
    let is_of = |key: &Key| (key.1, key.2) == (stream.device, stream.raw) && (stream.raw != PER_THREAD || key.0 == process::thread());
    if TABLE.lock().held.keys().any(is_of) && is_captured(stream).unwrap_or(true) {
        TABLE.lock().held.iter_mut().filter(|(key, _)| is_of(key)).for_each(|(_, held)| held.stays = true);
    }
}

fn stream_goes(stream: Stream) -> Result<()> {
    leave(|key| (key.1, key.2) == (stream.device, stream.raw));
    Ok(())
}

/// The calling thread has no handles any more.
pub fn clear() {
    leave(|key| key.0 == process::thread());
}

/// How many handles there are, of threads and idle.
pub fn count() -> usize {
    let table = TABLE.lock();
    table.held.len() + table.idle.len() + table.kept.len()
}

pub fn library() -> Result<String> {
    Ok(libraries::blas(runtime::runtime()?)?.file.display().to_string())
}

pub(super) fn shutdown() {
    let (held, idle, kept) = {
        let mut table = TABLE.lock();
        (std::mem::take(&mut table.held), std::mem::take(&mut table.idle), std::mem::take(&mut table.kept))
    };
    let held = held.into_iter().map(|((_, device, _), held)| (device, held.handle));
    let all: Vec<_> = held.chain(kept.into_iter().map(|(device, held)| (device, held.handle))).chain(idle).collect();
    if let (false, Ok(runtime)) = (all.is_empty(), runtime::runtime())
        && let Ok(blas) = libraries::blas(runtime)
    {
        for (device, handle) in all {
            // What cannot be destroyed is lost with its device. Workspaces go with the cache.
            let _ = device::Guard::new(device).and_then(|_guard| blas.destroy(handle));
        }
    }
}

/// cuBLAS's own form: `:KiB:count`, one after the other. None: it is none.
fn parse(text: &str) -> Option<usize> {
    let mut words = text.strip_prefix(':')?.split(':');
    let mut total = 0usize;
    while let Some(size) = words.next() {
        let (size, count): (usize, usize) = (size.trim().parse().ok()?, words.next()?.trim().parse().ok()?);
        total = total.checked_add(size.checked_mul(1024)?.checked_mul(count)?)?;
    }
    Some(total)
}

/// torch's: by the variable, else by the device.
fn workspace_size(device: i32) -> Result<usize> {
    static SAID: AtomicBool = AtomicBool::new(false);
    const HOPPER: usize = 32 << 20;
    const BEFORE: usize = (8 << 20) + (128 << 10); // :4096:2:16:8
    if let Some(text) = config::get(VARIABLE) {
        match parse(&text) {
            Some(size) => return Ok(size),
            // Once: who hears it may ask for the handle too.
            None if !SAID.swap(true, Relaxed) => log::warn(&format!(
                "{VARIABLE} is '{text}', which is not of the form :4096:2:16:8 (KiB and how many, one after the other). The default counts."
            )),
            None => {}
        }
    }
    Ok(if device::properties(device)?.major >= 9 { HOPPER } else { BEFORE })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn workspaces_in_cublas_own_form() {
        assert_eq!(parse(":4096:2:16:8"), Some((8 << 20) + (128 << 10)));
        assert_eq!((parse(":16:8"), parse(":0:0")), (Some(128 << 10), Some(0)));
        for wrong in ["", ":", "16:8", ":16", ":16:8:4", ":x:8", ":-1:8", ":18446744073709551615:2", ":16:8:"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
