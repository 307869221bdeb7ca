//! # libs
//! Owns:   handles of cuBLAS with their workspaces, and plans of cuFFT, both for libraries that are looked up at run time.
//! Uses:   memory, event, stream, device, runtime, base.
//! Never:  computes; takes a workspace back that a graph may use.
//! Locks:  blas::TABLE and fft::CACHES, each alone; nothing is asked of a library or of the driver with them held.
//! Tests:  in the files, tests/fake_libs.rs, tests/conformance/libs.rs.

pub mod blas;
pub mod fft;

use crate::base::{Result, Status};
use crate::memory;
use crate::memory::captures;
use crate::runtime::code;
use crate::stream::Stream;

/// Tries again with the device's free memory given back, if there was none for a library.
fn with_memory<T>(device: i32, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    match work() {
        Err(error) if error.status == Status::TCUDA_ERROR_OUT_OF_MEMORY && !captures::is_on(device) => {
            memory::empty_cache(Some(device))?;
            work()
        }
        other => other,
    }
}

/// Whether what the stream is given now is a graph's, which may do it again at any time. The default stream is never captured, though it may
/// not be used either while a stream is that waits for it.
fn is_captured(stream: Stream) -> Result<bool> {
    match stream.is_capturing() {
        Err(error) if error.native == code::CAPTURE_IMPLICIT => Ok(false),
        asked => asked,
    }
}

/// Destroys all handles and plans. Nothing may use one any more.
pub fn shutdown() {
    blas::shutdown();
    fft::shutdown();
}
