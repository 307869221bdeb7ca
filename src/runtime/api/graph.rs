//! Capture and graphs.

use super::*;
use crate::base::spared;
use std::path::Path;

/// cudaStreamCaptureStatus, with the number of the capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaptureStatus {
    None,
    Active(u64),
    /// What is forbidden was called: nothing but its end is left.
    Invalidated(u64),
}

/// Allocations that a graph made and did not free are freed at the next launch; nodes keep the priorities of their streams (from 11.7).
const AUTO_FREE: u64 = 1;
const USE_NODE_PRIORITY: u64 = 8;

impl Runtime {
    /// `mode` is cudaStreamCaptureMode.
    pub fn begin_capture(&self, stream: RawStream, mode: i32) -> Result<()> {
        call!(self.cudaStreamBeginCapture(stream, mode))
    }

    /// The graph. The capture is over in any case but where the thread or the stream is the wrong one.
    pub fn end_capture(&self, stream: RawStream) -> Result<RawGraph> {
        let mut graph = 0;
        call!(self.cudaStreamEndCapture(stream, &mut graph))?;
        Ok(graph)
    }

    pub fn capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        let (mut status, mut id) = (0, 0);
        let none = std::ptr::null_mut();
        call_if_there!(self.cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, none, none.cast(), none))?;
        Ok(match status {
            0 => CaptureStatus::None,
            1 => CaptureStatus::Active(id),
            _ => CaptureStatus::Invalidated(id),
        })
    }

    pub fn graph_node_count(&self, graph: RawGraph) -> Result<usize> {
        let mut count = 0;
        call!(self.cudaGraphGetNodes(graph, std::ptr::null_mut(), &mut count))?;
        Ok(count)
    }

    /// On the current device.
    pub fn graph_instantiate(&self, graph: RawGraph) -> Result<RawGraphExec> {
        let mut exec = 0;
        let flags = if self.version >= 12_000 { AUTO_FREE | USE_NODE_PRIORITY } else { AUTO_FREE };
        call_if_there!(self.cudaGraphInstantiateWithFlags(&mut exec, graph, flags))?;
        Ok(exec)
    }

    /// False: the graphs differ in more than arguments, and nothing has changed.
    pub fn graph_exec_update(&self, exec: RawGraphExec, graph: RawGraph) -> Result<bool> {
        let (mut node, mut result) = (0, 0);
        match call_if_there!(self.cuGraphExecUpdate(exec, graph, &mut node, &mut result)) {
            Err(error) if error.native == code::GRAPH_EXEC_UPDATE_FAILURE => Ok(false),
            other => other.map(|()| true),
        }
    }

    #[inline]
    pub fn graph_launch(&self, exec: RawGraphExec, stream: RawStream) -> Result<()> {
        self.note("cudaGraphLaunch", stream);
        call!(self.cudaGraphLaunch(exec, stream))
    }

    pub fn graph_destroy(&self, graph: RawGraph) -> Result<()> {
        call!(self.cudaGraphDestroy(graph))
    }

    pub fn graph_exec_destroy(&self, exec: RawGraphExec) -> Result<()> {
        call!(self.cudaGraphExecDestroy(exec))
    }

    /// Every detail that CUDA knows, in the language of Graphviz.
    pub fn graph_dot(&self, graph: RawGraph, path: &Path) -> Result<()> {
        const VERBOSE: u32 = 1;
        let path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| Error::invalid_argument("The path holds a zero byte."))?;
        spared::sigpipe(|| call_if_there!(self.cudaGraphDebugDotPrint(graph, path.as_ptr(), VERBOSE)))
    }
}
