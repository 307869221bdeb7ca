//! Snapshots of device memory
//!
//! A snapshot holds what the caches hold, block by block, and what happened there as far as the history was recorded
//! (torch.cuda.memory._snapshot). It is taken of each device at one moment, while threads allocate, and does not change afterwards. A
//! program reads it by index, or writes it: as pickle for `python -m torch.cuda._memory_viz` and pytorch.org/memory_viz, as JSON, or as a
//! page that any browser opens with no network. docs/SNAPSHOTS.md says more.
//!
//! An observer of failures (tcuda_register_oom_observer) and a pressure callback may take and write snapshots; the entry of the failure is
//! in it then. A host function of a stream may not.

use super::guard::{Out, guard, guard_always, guard_out, lasting, text};
use super::structs::{Growing, StructOut};
use crate::base::handles::Handles;
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result, process};
use crate::memory::history::texts;
use crate::memory::snapshot::{Format, Snapshot};
use crate::{device, memory};
use once_cell::sync::OnceCell;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// A snapshot: an opaque handle.
#[allow(non_camel_case_types)]
pub type tcuda_snapshot_t = *mut tcuda_snapshot;
/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_snapshot {}

/// What is in a snapshot.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct tcuda_snapshot_info_t {
    pub struct_size: usize,
    /// All segments, and all blocks; those of a segment are in a row.
    pub segments: u64,
    pub blocks: u64,
    /// Devices that there are; each has its own entries.
    pub devices: u64,
    /// Entries of all devices.
    pub entries: u64,
    /// Older entries that were not kept.
    pub lost_entries: u64,
}
unsafe impl Growing for tcuda_snapshot_info_t {}

/// Memory in one stretch that the cache holds from the driver. Of virtual memory it is what lies side by side, of any stream; bytes that
/// are mapped at several addresses are at the one where they are used.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct tcuda_snapshot_segment_t {
    pub struct_size: usize,
    pub device: i32,
    /// 1: for blocks up to 1 MiB.
    pub is_small: i32,
    /// 1: virtual memory; 0: one cudaMalloc.
    pub is_expandable: i32,
    pub unused: i32,
    pub address: u64,
    /// Bytes: of the segment; of blocks in use; of those and the ones that wait for streams; of them as asked for.
    pub total_size: u64,
    pub allocated_size: u64,
    pub active_size: u64,
    pub requested_size: u64,
    /// That which it was made for, as the driver has it; 0 for virtual memory, whose blocks have each their own.
    pub stream: u64,
    /// Which pool it belongs to; 0 and 0: the cache itself.
    pub pool_id: [u64; 2],
    /// The index of its first block, and how many it has.
    pub first_block: u64,
    pub block_count: u64,
}
unsafe impl Growing for tcuda_snapshot_segment_t {}

/// A stretch of a segment. The blocks of a segment cover it, by address.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_snapshot_block_t {
    pub struct_size: usize,
    pub address: u64,
    pub size: u64,
    /// As asked for; 0: inactive.
    pub requested_size: u64,
    /// The stream that it follows, as the driver has it.
    pub stream: u64,
    /// TCUDA_BLOCK_INACTIVE, TCUDA_BLOCK_ALLOCATED or TCUDA_BLOCK_PENDING_FREE (freed, but other streams may use it).
    pub state: i32,
    pub unused: i32,
    /// What its thread said when it allocated it, if that was recorded; else empty. Never freed.
    pub annotation: *const c_char,
}
unsafe impl Growing for tcuda_snapshot_block_t {}

/// What happened.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_snapshot_entry_t {
    pub struct_size: usize,
    /// Microseconds since 1970.
    pub time_us: i64,
    /// torch's word: alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, snapshot, oom or
    /// user_defined. Never freed.
    pub action: *const c_char,
    /// Of oom: what the device had free, in bytes.
    pub address: u64,
    /// Bytes; of blocks as asked for.
    pub size: u64,
    pub stream: u64,
    pub device: i32,
    pub unused: i32,
    /// What the thread had said. Never freed.
    pub annotation: *const c_char,
    /// The pool that the memory is of; 0 and 0: the cache itself.
    pub pool_id: [u64; 2],
}
unsafe impl Growing for tcuda_snapshot_entry_t {}

/// A snapshot, and what was written of it.
struct Held {
    snapshot: Snapshot,
    written: [OnceCell<Vec<u8>>; 3],
}

static HELD: Handles<Held> = Handles::new("snapshot", "tcuda_memory_snapshot");

pub(super) fn is_locked() -> bool {
    HELD.is_locked()
}

/// It needs no device, and can be read after tcuda_shutdown.
fn held(handle: tcuda_snapshot_t) -> Result<Arc<Held>> {
    process::refuse_forked()?;
    HELD.get(handle as usize)
}

fn take(device: i32) -> Result<Snapshot> {
    let device = if device == device::ALL { None } else { Some(device::resolve(device)?) };
    memory::snapshot(device)
}

/// What has this index; the message says how many there are.
fn at<'a, T>(list: &'a [T], index: u64, what: &str) -> Result<&'a T> {
    usize::try_from(index)
        .ok()
        .and_then(|index| list.get(index))
        .ok_or_else(|| Error::invalid_argument(format!("There is no {what} {index}: the snapshot has {}, counted from 0.", list.len())))
}

/// Takes a snapshot (torch.cuda.memory._snapshot). All threads that use the device stop for a moment; nothing waits for the device.
///
/// @param snapshot gets the handle; tcuda_snapshot_destroy ends it.
/// @param device   -1: the current one; TCUDA_DEVICE_ALL: all.
/// @return TCUDA_ERROR_OUT_OF_HOST_MEMORY: the host has no memory for a copy of the history.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_snapshot(snapshot: *mut tcuda_snapshot_t, device: i32) -> tcuda_status_t {
    guard_out("tcuda_memory_snapshot", snapshot, "snapshot", || {
        let made = Arc::new(Held { snapshot: take(device)?, written: Default::default() });
        Ok(HELD.insert(made) as tcuda_snapshot_t)
    })
}

/// Ends a snapshot. It works after tcuda_shutdown too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_snapshot_destroy(snapshot: tcuda_snapshot_t) -> tcuda_status_t {
    guard_always("tcuda_snapshot_destroy", || {
        if snapshot.is_null() {
            return Ok(());
        }
        process::refuse_forked()?;
        let ended = HELD.remove(snapshot as usize).map(drop);
        if process::is_shut_down() { Ok(()) } else { ended }
    })
}

/// How much is in a snapshot.
///
/// @param info struct_size has to be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_snapshot_info(snapshot: tcuda_snapshot_t, info: *mut tcuda_snapshot_info_t) -> tcuda_status_t {
    guard_always("tcuda_snapshot_info", || {
        let out = unsafe { StructOut::new(info, "info") }?;
        let held = held(snapshot)?;
        let Snapshot { segments, blocks, traces, .. } = &held.snapshot;
        out.write(&tcuda_snapshot_info_t {
            struct_size: 0,
            segments: segments.len() as u64,
            blocks: blocks.len() as u64,
            devices: traces.len() as u64,
            entries: traces.iter().map(|trace| trace.entries.len() as u64).sum(),
            lost_entries: traces.iter().map(|trace| trace.lost).sum(),
        });
        Ok(())
    })
}

/// A segment, by device and address.
///
/// @param segment struct_size has to be set.
/// @param index   0 to the number of segments less 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_snapshot_segment(
    snapshot: tcuda_snapshot_t,
    segment: *mut tcuda_snapshot_segment_t,
    index: u64,
) -> tcuda_status_t {
    guard_always("tcuda_snapshot_segment", || {
        let out = unsafe { StructOut::new(segment, "segment") }?;
        let held = held(snapshot)?;
        let found = at(&held.snapshot.segments, index, "segment")?;
        out.write(&tcuda_snapshot_segment_t {
            struct_size: 0,
            device: found.device,
            is_small: i32::from(found.small),
            is_expandable: i32::from(found.expandable),
            unused: 0,
            address: found.address as u64,
            total_size: found.size as u64,
            allocated_size: found.allocated as u64,
            active_size: found.active as u64,
            requested_size: found.requested as u64,
            stream: found.stream,
            pool_id: found.pool.pair().into(),
            first_block: found.blocks.start as u64,
            block_count: found.blocks.len() as u64,
        });
        Ok(())
    })
}

/// A block, by segment and address.
///
/// @param block struct_size has to be set.
/// @param index 0 to the number of blocks less 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_snapshot_block(
    snapshot: tcuda_snapshot_t,
    block: *mut tcuda_snapshot_block_t,
    index: u64,
) -> tcuda_status_t {
    guard_always("tcuda_snapshot_block", || {
        let out = unsafe { StructOut::new(block, "block") }?;
        let held = held(snapshot)?;
        let found = at(&held.snapshot.blocks, index, "block")?;
        out.write(&tcuda_snapshot_block_t {
            struct_size: 0,
            address: found.address as u64,
            size: found.size as u64,
            requested_size: found.requested as u64,
            stream: found.stream,
            state: found.state as i32,
            unused: 0,
            annotation: texts::c_text(found.annotation),
        });
        Ok(())
    })
}

/// An entry of a device's history, the oldest first.
///
/// @param entry  struct_size has to be set.
/// @param device a device, as it was when the snapshot was taken; -1: the current one.
/// @param index  0 up; TCUDA_ERROR_INVALID_ARGUMENT where there is none of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_snapshot_entry(
    snapshot: tcuda_snapshot_t,
    entry: *mut tcuda_snapshot_entry_t,
    device: i32,
    index: u64,
) -> tcuda_status_t {
    guard_always("tcuda_snapshot_entry", || {
        let out = unsafe { StructOut::new(entry, "entry") }?;
        let held = held(snapshot)?;
        let device = if process::is_shut_down() && device >= 0 { device } else { device::resolve(device)? };
        let found = at(&at(&held.snapshot.traces, device as u64, "device")?.entries, index, "entry")?;
        out.write(&tcuda_snapshot_entry_t {
            struct_size: 0,
            time_us: found.time,
            action: lasting(found.record.action.name()),
            address: found.address(),
            size: found.record.size,
            stream: found.record.stream,
            device,
            unused: 0,
            annotation: texts::c_text(found.record.annotation),
            pool_id: found.record.pool.pair().into(),
        });
        Ok(())
    })
}

/// A snapshot as bytes, made at the first call.
///
/// @param data   gets the bytes, which stay until the snapshot is destroyed. JSON and HTML are UTF-8 with no zero byte behind them.
/// @param size   gets how many there are.
/// @param format TCUDA_SNAPSHOT_PICKLE (protocol 2), TCUDA_SNAPSHOT_JSON or TCUDA_SNAPSHOT_HTML.
/// @return TCUDA_ERROR_OUT_OF_HOST_MEMORY: the host has no memory for them; a file (tcuda_snapshot_write) needs none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_snapshot_data(
    snapshot: tcuda_snapshot_t,
    data: *mut *const c_void,
    size: *mut usize,
    format: i32,
) -> tcuda_status_t {
    guard_always("tcuda_snapshot_data", || {
        let (data, size) = (Out::new(data, "data")?, Out::new(size, "size")?);
        let format = Format::of(format)?;
        let held = held(snapshot)?;
        let bytes = held.written[format as usize - 1].get_or_try_init(|| held.snapshot.bytes(format))?;
        data.write(bytes.as_ptr().cast());
        size.write(bytes.len());
        Ok(())
    })
}

fn path_of<'a>(path: *const c_char) -> Result<&'a str> {
    match unsafe { text(path, "path") }? {
        "" => Err(Error::invalid_argument("'path' is empty. It has to name a file.")),
        path => Ok(path),
    }
}

/// Writes a snapshot to a file, which is replaced when the new one is complete. What the process has open (/dev/stdout, /dev/fd/N) is written on.
///
/// @param path UTF-8. Ends in .json: JSON; in .html: a page; else pickle, protocol 2.
/// @return TCUDA_ERROR_SYSTEM: the file cannot be written; tcuda_last_error_native has errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_snapshot_write(snapshot: tcuda_snapshot_t, path: *const c_char) -> tcuda_status_t {
    guard_always("tcuda_snapshot_write", || {
        let held = held(snapshot)?;
        held.snapshot.save(path_of(path)?)
    })
}

/// Takes a snapshot of all devices and writes it to a file (torch.cuda.memory._dump_snapshot): tcuda_memory_snapshot and
/// tcuda_snapshot_write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_dump_snapshot(path: *const c_char) -> tcuda_status_t {
    guard("tcuda_memory_dump_snapshot", || {
        let path = path_of(path)?;
        take(device::ALL)?.save(path)
    })
}
