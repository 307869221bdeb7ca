//! What the programs are written with.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use tcuda::base::Status;
use tcuda::base::dlpack::{tcuda_place_t, tcuda_tensor_t};
use tcuda::base::dtype::tcuda_dtype_t;
use tcuda::capi::copy::*;
use tcuda::capi::error::tcuda_last_error_message;
use tcuda::capi::event::*;
use tcuda::capi::graph::*;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::sanitizer::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::{tcuda_event_t, tcuda_stream_t};
use tcuda::capi::tensor::*;

pub fn said() -> String {
    unsafe { CStr::from_ptr(tcuda_last_error_message()) }.to_str().unwrap().to_owned()
}

#[track_caller]
pub fn ok(status: Status) {
    assert_eq!(status, Status::TCUDA_SUCCESS, "{}", said());
}

pub const SIZE: usize = 4096;
pub const NULL: tcuda_stream_t = null_mut();
pub const HOST: tcuda_stream_t = 0x81 as tcuda_stream_t;
pub const READ: i32 = 1;
pub const WRITE: i32 = 2;
pub const F32: tcuda_dtype_t = tcuda_dtype_t { code: 2, bits: 32, lanes: 1 };
pub const F64: tcuda_dtype_t = tcuda_dtype_t { code: 2, bits: 64, lanes: 1 };

pub fn stream_on(device: i32) -> tcuda_stream_t {
    let mut stream = NULL;
    ok(unsafe { tcuda_stream_create(&mut stream, device, 0) });
    stream
}

pub fn streams<const N: usize>() -> [tcuda_stream_t; N] {
    [(); N].map(|()| stream_on(0))
}

pub fn block(stream: tcuda_stream_t) -> *mut c_void {
    let mut block = null_mut();
    ok(unsafe { tcuda_malloc_cached(&mut block, SIZE, stream) });
    block
}

pub fn free(block: *mut c_void) {
    ok(unsafe { tcuda_free_cached(block) });
}

pub fn pinned() -> *mut c_void {
    let mut block = null_mut();
    ok(unsafe { tcuda_host_malloc_cached(&mut block, SIZE) });
    block
}

pub fn host_free(block: *mut c_void) {
    ok(unsafe { tcuda_host_free_cached(block) });
}

/// Work of tcuda's that writes.
pub fn fill(block: *mut c_void, stream: tcuda_stream_t) {
    ok(unsafe { tcuda_memset_async(block, 1, SIZE, stream) });
}

pub fn copy(to: *mut c_void, from: *const c_void, stream: tcuda_stream_t) {
    ok(unsafe { tcuda_copy_async(to, from, SIZE, stream) });
}

/// Work of the program's own.
pub fn kernel(block: *const c_void, mode: i32, stream: tcuda_stream_t) {
    ok(unsafe { tcuda_sanitizer_annotate_access(block, SIZE, mode, stream, c"my_kernel".as_ptr()) });
}

pub fn event() -> tcuda_event_t {
    let mut event = null_mut();
    ok(unsafe { tcuda_event_create(&mut event, 2) });
    event
}

/// An event that was recorded on the stream.
pub fn recorded(stream: tcuda_stream_t) -> tcuda_event_t {
    let event = event();
    record(event, stream);
    event
}

pub fn record(event: tcuda_event_t, stream: tcuda_stream_t) {
    ok(unsafe { tcuda_event_record(event, stream) });
}

pub fn wait(event: tcuda_event_t, stream: tcuda_stream_t) {
    ok(unsafe { tcuda_event_wait(event, stream) });
}

pub fn after(later: tcuda_stream_t, earlier: tcuda_stream_t) {
    ok(unsafe { tcuda_stream_wait_stream(later, earlier) });
}

pub fn synchronize(stream: tcuda_stream_t) {
    ok(unsafe { tcuda_stream_synchronize(stream) });
}

/// Streams, and a block that the first of them fills.
pub fn filled<const N: usize>() -> ([tcuda_stream_t; N], *mut c_void) {
    let streams = streams();
    let block = block(streams[0]);
    fill(block, streams[0]);
    (streams, block)
}

/// The same, and the second reads it behind that.
pub fn read_on_the_second<const N: usize>() -> ([tcuda_stream_t; N], *mut c_void) {
    let (streams, block) = filled();
    after(streams[1], streams[0]);
    kernel(block, READ, streams[1]);
    (streams, block)
}

/// A stream, and the pinned memory that it copies a result to.
pub fn on_its_way_to_the_host() -> (tcuda_stream_t, *mut c_void) {
    let ([stream], block) = filled();
    let result = pinned();
    copy(result, block, stream);
    (stream, result)
}

/// With no strides it is packed.
pub struct Tensor {
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    pub tensor: tcuda_tensor_t,
}

pub fn tensor(data: *mut c_void, dtype: tcuda_dtype_t, shape: &[i64], strides: &[i64], device: i32) -> Tensor {
    let place = tcuda_place_t { device_type: 2, device_id: device };
    let ndim = shape.len() as i32;
    let tensor = tcuda_tensor_t { data, device: place, ndim, dtype, shape: null_mut(), strides: null_mut(), byte_offset: 0 };
    let mut made = Tensor { shape: shape.into(), strides: strides.into(), tensor };
    made.tensor.shape = made.shape.as_mut_ptr();
    if !strides.is_empty() {
        made.tensor.strides = made.strides.as_mut_ptr();
    }
    made
}

pub fn floats(data: *mut c_void, device: i32) -> Tensor {
    tensor(data, F32, &[SIZE as i64 / 4], &[], device)
}

pub fn fill_tensor(tensor: &Tensor, stream: tcuda_stream_t) {
    let value = 1.5f32;
    ok(unsafe { tcuda_tensor_fill(&tensor.tensor, (&raw const value).cast(), F32, stream) });
}

/// What is done between a begin and an end of a capture.
pub fn captured(stream: tcuda_stream_t, work: impl FnOnce()) -> tcuda_graph_t {
    let mut graph = null_mut();
    ok(unsafe { tcuda_graph_create(&mut graph, 0) });
    ok(tcuda_graph_capture_begin(graph, stream, tcuda_pool_id_t { first: 0, second: 0 }, 2));
    work();
    ok(tcuda_graph_capture_end(graph));
    graph
}

pub fn replay(graph: tcuda_graph_t, stream: tcuda_stream_t) {
    ok(tcuda_graph_replay(graph, stream));
}
