//! Graphs
//!
//! What streams are given is captured once, and replayed many times at the cost of one call (torch.cuda.CUDAGraph). From
//! tcuda_graph_capture_begin to tcuda_graph_capture_end nothing of it is done. Streams that wait for an event of the captured stream take
//! part, and have to be waited for by it before the end. A replay does the same to the same addresses, so what the graph reads has to be
//! there, and what it writes is there until the next replay.
//!
//! Memory that is allocated on these streams meanwhile comes from the graph's private pool, which stays as it is for as long as a graph uses it;
//! graphs may share one, and are then replayed one after the other, in the order in which they were captured where one reads what another one
//! left. Pinned memory that they use, or that the capturing thread allocates, is not used again before the graph is reset, also if it is freed.
//!
//! A capture may hold copies and fills between device and pinned memory, kernels, host functions, events. What waits, or asks how far the device
//! is, ends it, and so does the legacy default stream beside a blocking stream that is captured: then every call on its streams answers
//! TCUDA_ERROR_CAPTURE, and tcuda_graph_capture_end names what did it, if that was a call of tcuda. However a capture ends, also by the end of
//! its thread or the destruction of its graph or one of its streams, its streams and memory are usable afterwards.

use super::guard::{Out, guard, guard_destroy, guard_out, guard_value, text};
use super::memory::tcuda_memory_stats_t;
use super::stream::handle;
use super::structs::{StructOut, tcuda_stream_t};
use crate::base::Result;
use crate::base::status::tcuda_status_t;
use crate::graph::{self, Graph, PoolId};
use crate::{device, stream};
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::Arc;

/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_graph {}
/// A graph. Not a pointer to anything.
#[allow(non_camel_case_types)]
pub type tcuda_graph_t = *mut tcuda_graph;

/// A graph pool's name, torch's pair: (n, 0) was made for a graph, (0, n) is of tcuda_graph_pool_handle. All zero: a pool of the graph's own.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_pool_id_t {
    pub first: u64,
    pub second: u64,
}

// The header has them by hand.
pub const TCUDA_GRAPH_KEEP: u32 = graph::KEEP;
pub const TCUDA_GRAPH_DEBUG: u32 = graph::DEBUG;
pub const TCUDA_CAPTURE_GLOBAL: i32 = 0;
pub const TCUDA_CAPTURE_THREAD_LOCAL: i32 = 1;
pub const TCUDA_CAPTURE_RELAXED: i32 = 2;

fn named(graph: tcuda_graph_t) -> Result<Arc<Graph>> {
    graph::named(graph as usize)
}

impl From<tcuda_pool_id_t> for PoolId {
    fn from(pool: tcuda_pool_id_t) -> PoolId {
        PoolId { first: pool.first, second: pool.second }
    }
}

impl From<PoolId> for tcuda_pool_id_t {
    fn from(pool: PoolId) -> tcuda_pool_id_t {
        tcuda_pool_id_t { first: pool.first, second: pool.second }
    }
}

/// Makes a graph with nothing in it (torch.cuda.CUDAGraph).
///
/// @param graph gets the graph; tcuda_graph_destroy ends it.
/// @param flags 0, or TCUDA_GRAPH_KEEP: what was captured is kept, and made ready for replays when that is asked for, or TCUDA_GRAPH_DEBUG:
///              it is made ready at once, and kept for tcuda_graph_debug_dump.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_graph_create(graph: *mut tcuda_graph_t, flags: u32) -> tcuda_status_t {
    guard_out("tcuda_graph_create", graph, "graph", || Ok(graph::create(flags)? as tcuda_graph_t))
}

/// The stream to capture on if there is no other: one for each device (torch's default capture stream, which torch has on one device only).
///
/// @param stream gets a stream of tcuda_stream_create, which stays tcuda's.
/// @param device -1: the current one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_graph_capture_stream(stream: *mut tcuda_stream_t, device: i32) -> tcuda_status_t {
    guard_out("tcuda_graph_capture_stream", stream, "stream", || Ok(handle(graph::own_stream(device)?)))
}

/// Begins to capture a stream (CUDAGraph.capture_begin, cudaStreamBeginCapture). Until the end threads keep no memory to themselves.
///
/// @param stream no default stream. It need not be the current one.
/// @param pool   all zero for a pool of the graph's own, or that of tcuda_graph_pool or tcuda_graph_pool_handle, to share it.
/// @param mode   whose calls CUDA forbids meanwhile where they may disturb a capture (cudaStreamCaptureMode): TCUDA_CAPTURE_GLOBAL: every
///               thread's; TCUDA_CAPTURE_THREAD_LOCAL: this thread's; TCUDA_CAPTURE_RELAXED: nobody's, and any thread may end it.
/// @return TCUDA_ERROR_INVALID_STATE: the graph holds something, or the thread is ending, and could not end the capture;
///         TCUDA_ERROR_INVALID_ARGUMENT: a default stream, a pool that is none or of another device; TCUDA_ERROR_CAPTURE: the stream is being
///         captured.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_graph_capture_begin(
    graph: tcuda_graph_t,
    stream: tcuda_stream_t,
    pool: tcuda_pool_id_t,
    mode: i32,
) -> tcuda_status_t {
    guard("tcuda_graph_capture_begin", || named(graph)?.begin(stream::resolve(stream as usize)?, pool.into(), mode))
}

/// Ends the capture (CUDAGraph.capture_end), and makes it ready for replays unless the graph keeps it.
///
/// @return TCUDA_ERROR_CAPTURE: something spoilt it, which the message names, or a stream was not joined; the capture is over and the graph
///         holds nothing. Or the capture is another thread's, and goes on. Other errors are those of making it ready: the capture is kept, and
///         tcuda_graph_instantiate tries again.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_graph_capture_end(graph: tcuda_graph_t) -> tcuda_status_t {
    guard("tcuda_graph_capture_end", || named(graph)?.end())
}

/// Makes a capture that was kept ready for replays (CUDAGraph.instantiate), anew if it was: it does what it captured, whatever it was updated to.
///
/// @return TCUDA_ERROR_INVALID_STATE: nothing was captured, or it was not kept.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_graph_instantiate(graph: tcuda_graph_t) -> tcuda_status_t {
    guard("tcuda_graph_instantiate", || named(graph)?.instantiate())
}

/// From the next replay on a graph does what another one captured and kept, if that differs in arguments only (cudaGraphExecUpdate). It then
/// uses the other one's pool as well; that of an update before goes when the replays are over that it was for.
///
/// @return TCUDA_ERROR_INVALID_ARGUMENT: it differs in more, and nothing has changed. TCUDA_ERROR_INVALID_STATE: the graph is not ready for
///         replays, or the other one kept no capture.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_graph_update(graph: tcuda_graph_t, from: tcuda_graph_t) -> tcuda_status_t {
    guard("tcuda_graph_update", || named(graph)?.update(&*named(from)?))
}

/// Enqueues all that was captured (CUDAGraph.replay, cudaGraphLaunch), made ready first if it was not.
///
/// @param stream any of the graph's device; NULL: its default stream.
/// @return TCUDA_ERROR_CAPTURE: the stream is being captured, and CUDA takes no graph into another one so; or, rarely, nothing but the device
///         tells that an earlier replay is over, and something is captured there. The capture goes on.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_graph_replay(graph: tcuda_graph_t, stream: tcuda_stream_t) -> tcuda_status_t {
    guard("tcuda_graph_replay", || {
        let graph = named(graph)?;
        let stream = match stream.is_null() {
            true => stream::default(graph.device()?)?,
            false => stream::resolve(stream as usize)?,
        };
        graph.replay(stream)
    })
}

/// Ends what is captured or being captured (CUDAGraph.reset): the graph is as new. Replays that were begun go on, and what they use stays until
/// they are over; then the pool goes back, if no other graph uses it, but for blocks in use.
///
/// @return TCUDA_ERROR_CAPTURE: it is being captured by another thread, in a mode that is not relaxed; nothing has changed.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_graph_reset(graph: tcuda_graph_t) -> tcuda_status_t {
    guard("tcuda_graph_reset", || named(graph)?.reset())
}

/// Ends a graph, as tcuda_graph_reset does. Graphs may be destroyed in any order.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_graph_destroy(graph: tcuda_graph_t) -> tcuda_status_t {
    guard_destroy("tcuda_graph_destroy", graph, || graph::destroy(graph as usize))
}

/// The pool of a graph, to share it (CUDAGraph.pool).
///
/// @return TCUDA_ERROR_INVALID_STATE: nothing was captured yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_graph_pool(graph: tcuda_graph_t, pool: *mut tcuda_pool_id_t) -> tcuda_status_t {
    guard_out("tcuda_graph_pool", pool, "pool", || Ok(named(graph)?.pool()?.into()))
}

/// A pool for graphs to share that has no graph yet (torch.cuda.graph_pool_handle). There is nothing to give back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_graph_pool_handle(pool: *mut tcuda_pool_id_t) -> tcuda_status_t {
    guard_out("tcuda_graph_pool_handle", pool, "pool", || Ok(graph::pool_handle().into()))
}

/// The statistics of a graph pool alone, which count in the device's too. reserved_bytes is what its graphs cost.
///
/// @param stats set struct_size before the call.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: there is no such pool, or no graph uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_graph_pool_stats(stats: *mut tcuda_memory_stats_t, pool: tcuda_pool_id_t) -> tcuda_status_t {
    guard("tcuda_graph_pool_stats", || {
        let out = unsafe { StructOut::new(stats, "stats") }?;
        out.write(&super::memory::stats_out(&graph::pool_stats(pool.into())?));
        Ok(())
    })
}

/// CUDA's own handles (CUDAGraph.raw_cuda_graph, raw_cuda_graph_exec). They stay tcuda's, and are gone with a reset. A program that launches
/// one itself has no random numbers in it: only tcuda_graph_replay says where they begin.
///
/// @param captured gets the cudaGraph_t; NULL if it was not kept.
/// @param exec     gets the cudaGraphExec_t; NULL if it is not ready for replays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_graph_native(graph: tcuda_graph_t, captured: *mut *mut c_void, exec: *mut *mut c_void) -> tcuda_status_t {
    guard("tcuda_graph_native", || {
        let (out_captured, out_exec) = (Out::new(captured, "captured")?, Out::new(exec, "exec")?);
        let native = named(graph)?.native()?;
        out_captured.write(native.0 as *mut c_void);
        out_exec.write(native.1 as *mut c_void);
        Ok(())
    })
}

/// Writes what was captured and kept to a file, for Graphviz (CUDAGraph.debug_dump, cudaGraphDebugDotPrint).
///
/// @param path UTF-8.
/// @return TCUDA_ERROR_INVALID_STATE: nothing was captured, or it was not kept. TCUDA_ERROR_SYSTEM: the file cannot be written; the native code
///         is errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_graph_debug_dump(graph: tcuda_graph_t, path: *const c_char) -> tcuda_status_t {
    guard("tcuda_graph_debug_dump", || named(graph)?.dump(Path::new(unsafe { text(path, "path") }?)))
}

/// Whether a stream is being captured, by tcuda or by another library. False before there is a device. Spoils no capture.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_is_capturing(stream: tcuda_stream_t, capturing: *mut bool) -> tcuda_status_t {
    guard_out("tcuda_stream_is_capturing", capturing, "capturing", || graph::is_capturing(|| stream::resolve(stream as usize)))
}

/// The same for the current stream of the current device (torch.cuda.is_current_stream_capturing). False also on failure.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_is_current_stream_capturing() -> bool {
    guard_value("tcuda_is_current_stream_capturing", false, || graph::is_capturing(|| stream::current(device::CURRENT)))
}
