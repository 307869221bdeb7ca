//! Sharing between processes
//!
//! Device memory of one process, used by others of the same user on the same machine: exported to 64 bytes that travel as the program likes
//! (a pipe, a socket, a file), and imported from them. Nothing is copied. A block that others use is not reused before they have closed it,
//! also when it was freed meanwhile; a process that ends in any way (kill -9) has closed all that it imported. docs/IPC.md has more.

use super::guard::{Out, guard, guard_destroy, guard_out, null};
use super::structs::{Growing, StructOut, tcuda_event_t, tcuda_stream_t};
use crate::base::Result;
use crate::base::status::tcuda_status_t;
use crate::ipc::{self, Blob};
use crate::runtime::table::IpcHandle;
use crate::{device, event, stream};
use std::ffi::c_void;

/// Exported memory, for other processes. It is a secret too: who has it may import.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_ipc_handle_t {
    pub bytes: [u8; 64],
}

/// cudaIpcEventHandle_t: an interprocess event, for other processes.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_ipc_event_handle_t {
    pub bytes: [u8; 64],
}

/// What is shared now. Set `struct_size` before the call (TCUDA_IPC_STATS_INIT).
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_ipc_stats_t {
    pub struct_size: usize,
    /// Exports that others may import or have imported, and their bytes.
    pub exported: u64,
    pub exported_bytes: u64,
    /// Of these: freed or withdrawn, and kept for others.
    pub kept: u64,
    pub kept_bytes: u64,
    /// Imports by others that are not closed, and the processes that have some.
    pub taken: u64,
    pub consumers: u64,
    /// What this process has imported, and its bytes.
    pub imported: u64,
    pub imported_bytes: u64,
}
unsafe impl Growing for tcuda_ipc_stats_t {}
const _: () = assert!(size_of::<tcuda_ipc_stats_t>() == 72);

/// `parameter` as the caller gave it.
unsafe fn blob(handle: *const tcuda_ipc_handle_t, parameter: &str) -> Result<Blob> {
    let handle = unsafe { handle.as_ref() }.ok_or_else(|| null(parameter))?;
    Blob::read(&handle.bytes)
}

/// Makes a block of device memory, or a part of one, known to other processes (torch: sending a tensor by torch.multiprocessing). The work that
/// the stream has got so far comes before what they do with it, without anybody waiting here.
///
/// What can be reached by others are whole pages or, of plain segments, whole segments (and all that a pluggable allocator cut a segment from):
/// export nothing that shares them with secrets. A block of a memory pool with `no_split` is alone in its segment.
///
/// @param handle   gets the bytes for tcuda_ipc_import.
/// @param ptr      device memory of tcuda, from anywhere inside a block.
/// @param size     bytes from there on; at most to the end of the block.
/// @param keep_for imports for which the memory is kept though it was freed before: 1 for memory that is sent to one process and freed at
///                 once; 0: what is freed cannot be imported any more. An import that fails is none.
/// @param stream   a stream of the memory's device.
/// @return TCUDA_ERROR_INVALID_POINTER: no block of tcuda, or one that was imported itself. TCUDA_ERROR_NOT_SUPPORTED: memory of
///         cudaMallocAsync, or a driver without IPC. TCUDA_ERROR_CAPTURE: the stream is being captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_ipc_export(
    handle: *mut tcuda_ipc_handle_t,
    ptr: *const c_void,
    size: usize,
    keep_for: u32,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard_out("tcuda_ipc_export", handle, "handle", || {
        let blob = ipc::export(ptr as usize, size, keep_for, stream::resolve(stream as usize)?)?;
        Ok(tcuda_ipc_handle_t { bytes: blob.bytes() })
    })
}

/// Maps memory that another process exported. The stream's later work waits for what the producer's stream had got before the export.
///
/// Each import wants a tcuda_ipc_close. One that is imported again has the same address; one that this very process exported has the address
/// that it has anyway. The call waits for the producer's answer, for as long as it lives.
///
/// @param ptr      gets the address in this process. It cannot be freed or exported.
/// @param size     gets the bytes that were exported; may be NULL.
/// @param device   gets the index here of the device that the memory is on; may be NULL.
/// @param handle   what tcuda_ipc_export wrote.
/// @param stream   a stream of any device.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: these are not the bytes of a handle. TCUDA_ERROR_INVALID_HANDLE: the producer has ended, or the memory
///         was freed or withdrawn. TCUDA_ERROR_INVALID_DEVICE: the memory's device is not visible here. TCUDA_ERROR_NOT_SUPPORTED: the producer
///         is of another user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_ipc_import(
    ptr: *mut *mut c_void,
    size: *mut usize,
    device: *mut i32,
    handle: *const tcuda_ipc_handle_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_ipc_import", || {
        let out = Out::new(ptr, "ptr")?;
        let blob = unsafe { blob(handle, "handle") }?;
        let (address, bytes, index) = ipc::import(&blob, stream::resolve(stream as usize)?)?;
        out.write(address as *mut c_void);
        if !size.is_null() {
            Out::new(size, "size")?.write(bytes);
        }
        if !device.is_null() {
            Out::new(device, "device")?.write(index);
        }
        Ok(())
    })
}

/// Ends the use of imported memory, after waiting for the work that the stream has got so far. With the last close of an address it is mapped
/// no more, and the producer may use the memory for something else. NULL succeeds.
///
/// @param ptr      an address of tcuda_ipc_import.
/// @param stream   the stream that used it last; other streams' uses have to be done or ordered before it.
/// @return TCUDA_ERROR_INVALID_POINTER: it was not imported, or closed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_ipc_close(ptr: *mut c_void, stream: tcuda_stream_t) -> tcuda_status_t {
    guard_destroy("tcuda_ipc_close", ptr, || ipc::close(ptr as usize, stream::resolve(stream as usize)?))
}

/// Learns at once which consumers closed what they imported, or ended, and makes what was kept for them free memory (torch.cuda.ipc_collect).
/// That happens by itself too, a moment later, and whenever memory runs short.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_ipc_collect() -> tcuda_status_t {
    guard("tcuda_ipc_collect", || {
        ipc::collect();
        Ok(())
    })
}

/// Lets nobody import an export any more, `keep_for` or not. Who has imported it keeps it until he closes it.
///
/// @return TCUDA_ERROR_INVALID_HANDLE: this process exports nothing by the handle (any more).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_ipc_withdraw(handle: *const tcuda_ipc_handle_t) -> tcuda_status_t {
    guard("tcuda_ipc_withdraw", || ipc::withdraw(&unsafe { blob(handle, "handle") }?))
}

/// Whether the process that exported imported memory lives. Once it has ended (or called tcuda_shutdown) what is in the memory is nobody's: close
/// it.
///
/// @param ptr      an address of tcuda_ipc_import.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_ipc_producer_is_alive(alive: *mut bool, ptr: *const c_void) -> tcuda_status_t {
    guard_out("tcuda_ipc_producer_is_alive", alive, "alive", || ipc::producer_lives(ptr as usize))
}

/// What this process shares now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_ipc_stats(stats: *mut tcuda_ipc_stats_t) -> tcuda_status_t {
    guard("tcuda_ipc_stats", || {
        let out = unsafe { StructOut::new(stats, "stats") }?;
        let found = ipc::stats();
        out.write(&tcuda_ipc_stats_t {
            struct_size: 0,
            exported: found.exported,
            exported_bytes: found.exported_bytes,
            kept: found.kept,
            kept_bytes: found.kept_bytes,
            taken: found.taken,
            consumers: found.consumers,
            imported: found.imported,
            imported_bytes: found.imported_bytes,
        });
        Ok(())
    })
}

/// A name of an event for other processes (torch.cuda.Event.ipc_handle, cudaIpcGetEventHandle).
///
/// @param handle   gets bytes for tcuda_event_from_ipc_handle, or for cudaIpcOpenEventHandle of any library.
/// @param event    made with TCUDA_EVENT_INTERPROCESS. It has to live for as long as others use it.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: the event was made without TCUDA_EVENT_INTERPROCESS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_ipc_handle(handle: *mut tcuda_ipc_event_handle_t, event: tcuda_event_t) -> tcuda_status_t {
    guard_out("tcuda_event_ipc_handle", handle, "handle", || Ok(tcuda_ipc_event_handle_t { bytes: event::ipc_handle(event as usize)?.0 }))
}

/// An event here that is another process's too (torch.cuda.Event.from_ipc_handle, cudaIpcOpenEventHandle). The producer has to record it before it
/// is waited for here: what was never recorded holds nothing up.
///
/// @param event    gets the event; tcuda_event_destroy ends it here.
/// @param device   the device that the event was made on; -1 is the current one.
/// @param handle   what tcuda_event_ipc_handle wrote in another process. CUDA opens none in its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_from_ipc_handle(
    event: *mut tcuda_event_t,
    device: i32,
    handle: *const tcuda_ipc_event_handle_t,
) -> tcuda_status_t {
    guard_out("tcuda_event_from_ipc_handle", event, "event", || {
        let handle = unsafe { handle.as_ref() }.ok_or_else(|| null("handle"))?;
        let device = device::resolve(device)?;
        Ok(event::from_ipc_handle(device, IpcHandle(handle.bytes))? as tcuda_event_t)
    })
}
