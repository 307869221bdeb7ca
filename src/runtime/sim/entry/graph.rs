//! Capture and graphs.

use super::*;
use crate::runtime::sim::graph::{self, Update};
use std::ffi::CStr;

pub unsafe extern "C" fn cudaStreamBeginCapture(stream: RawStream, mode: i32) -> Code {
    call(Slot::cudaStreamBeginCapture, |sim| sim.begin_capture(stream, mode))
}

/// Writes NULL where there is no graph.
pub unsafe extern "C" fn cudaStreamEndCapture(stream: RawStream, graph: *mut RawGraph) -> Code {
    call(Slot::cudaStreamEndCapture, |sim| {
        put(graph, 0)?;
        put(graph, sim.add_graph(sim.end_capture(stream)?))
    })
}

pub unsafe extern "C" fn cudaStreamIsCapturing(stream: RawStream, status: *mut i32) -> Code {
    call(Slot::cudaStreamIsCapturing, |sim| {
        check(status)?;
        put(status, sim.capture_status(stream)?.0)
    })
}

/// What a capture holds so far is not to be had here.
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: RawStream,
    status: *mut i32,
    id: *mut u64,
    graph: *mut RawGraph,
    nodes: *mut *const usize,
    count: *mut usize,
) -> Code {
    call(Slot::cuStreamGetCaptureInfo_v2, |sim| {
        check(status)?;
        if !graph.is_null() || !nodes.is_null() || !count.is_null() {
            return Err(code::NOT_SUPPORTED);
        }
        let found = sim.capture_status(stream)?;
        put(status, found.0)?;
        if id.is_null() { Ok(()) } else { put(id, found.1) }
    })
}

pub unsafe extern "C" fn cudaThreadExchangeStreamCaptureMode(mode: *mut i32) -> Code {
    call(Slot::cudaThreadExchangeStreamCaptureMode, |_| {
        check(mode)?;
        let wanted = unsafe { *mode };
        if !(0..=2).contains(&wanted) {
            return Err(code::INVALID_VALUE);
        }
        put(mode, thread::exchange_capture_mode(wanted))
    })
}

pub unsafe extern "C" fn cudaGraphInstantiateWithFlags(exec: *mut RawGraphExec, graph: RawGraph, flags: u64) -> Code {
    call(Slot::cudaGraphInstantiateWithFlags, |sim| {
        check(exec)?;
        put(exec, sim.instantiate(graph, flags)?)
    })
}

pub unsafe extern "C" fn cuGraphExecUpdate(exec: RawGraphExec, graph: RawGraph, node: *mut usize, result: *mut i32) -> Code {
    call(Slot::cuGraphExecUpdate, |sim| {
        check(node)?;
        check(result)?;
        let update = sim.update_exec(exec, graph)?;
        put(node, 0)?;
        put(result, update as i32)?;
        if update == Update::Done { Ok(()) } else { Err(code::GRAPH_EXEC_UPDATE_FAILURE) }
    })
}

pub unsafe extern "C" fn cudaGraphLaunch(exec: RawGraphExec, stream: RawStream) -> Code {
    call(Slot::cudaGraphLaunch, |sim| sim.launch_graph(exec, stream))
}

pub unsafe extern "C" fn cudaGraphDestroy(graph: RawGraph) -> Code {
    call(Slot::cudaGraphDestroy, |sim| sim.destroy_graph(graph))
}

pub unsafe extern "C" fn cudaGraphExecDestroy(exec: RawGraphExec) -> Code {
    call(Slot::cudaGraphExecDestroy, |sim| sim.destroy_exec(exec))
}

/// `nodes` NULL asks how many there are.
pub unsafe extern "C" fn cudaGraphGetNodes(graph: RawGraph, nodes: *mut usize, count: *mut usize) -> Code {
    call(Slot::cudaGraphGetNodes, |sim| {
        check(count)?;
        let found = sim.graph_nodes(graph)?.len();
        if nodes.is_null() {
            return put(count, found);
        }
        let room = unsafe { *count };
        for index in 0..room {
            // Handles within the graph; what is too much is 0.
            unsafe { nodes.add(index).write(if index < found { index + 1 } else { 0 }) };
        }
        put(count, room.min(found))
    })
}

/// All that is known is written, whatever the flags.
pub unsafe extern "C" fn cudaGraphDebugDotPrint(graph: RawGraph, path: *const c_char, _flags: u32) -> Code {
    call(Slot::cudaGraphDebugDotPrint, |sim| {
        check(path.cast_mut())?;
        let path = unsafe { CStr::from_ptr(path) }.to_str().map_err(|_| code::INVALID_VALUE)?;
        std::fs::write(path, graph::dot(&sim.graph_nodes(graph)?)).map_err(|_| code::OPERATING_SYSTEM)
    })
}
