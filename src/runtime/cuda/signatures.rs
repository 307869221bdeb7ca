//! Compares each runtime slot of the table with CUDA's prototype, as the crate cuda-runtime-sys has it, when the compiler reads this
//! file: `cargo check --features signatures`. Nothing here is ever called, and no CUDA is needed.
//!
//! The list of slots is read with other meanings of its type names: an address, a stream and an event are types of their own here, so
//! that swapped arguments do not pass.
//!
//! The crate is of CUDA 10.2 and of the runtime alone: the optional slots (stream-ordered memory is of 11.2) are younger, the others the
//! driver's. Theirs are the prototypes in tests/fake, which `tests/fake_cuda.rs` holds against the table value by value.

use crate::runtime::table::{HostFn, IpcHandle, slots};
use cuda_runtime_sys as s;
use std::ffi::{c_char, c_void};

/// Instead of the table's words.
struct Address;
struct RawStream;
struct RawEvent;
struct RawGraph;
struct RawGraphExec;
struct RawGraphNode;

/// An argument of this type may be passed where CUDA wants a `T`.
trait PassesFor<T>: Sized {
    fn pass(self) -> T {
        unreachable!("only the types matter")
    }
}

impl PassesFor<i32> for i32 {}
impl PassesFor<u32> for u32 {}
impl PassesFor<f32> for f32 {}
impl PassesFor<usize> for usize {}
impl PassesFor<c_char> for c_char {}
impl PassesFor<c_void> for c_void {}
impl PassesFor<*mut c_void> for Address {}
impl PassesFor<*const c_void> for Address {}
impl PassesFor<s::cudaStream_t> for RawStream {}
impl PassesFor<s::cudaEvent_t> for RawEvent {}
impl PassesFor<s::cudaGraph_t> for RawGraph {}
impl PassesFor<s::cudaGraphExec_t> for RawGraphExec {}
impl PassesFor<s::cudaGraphNode_t> for RawGraphNode {}
impl PassesFor<s::cudaHostFn_t> for HostFn {}
impl PassesFor<s::cudaIpcMemHandle_t> for IpcHandle {}
impl PassesFor<s::cudaIpcEventHandle_t> for IpcHandle {}
impl<A: PassesFor<B>, B> PassesFor<*mut B> for *mut A {}
// Enums are i32 in the table.
impl PassesFor<s::cudaDeviceAttr> for i32 {}
impl PassesFor<s::cudaMemcpyKind> for i32 {}
impl PassesFor<s::cudaStreamCaptureMode> for i32 {}
impl PassesFor<s::cudaStreamCaptureStatus> for i32 {}
// Structs that grew go through an oversized buffer.
impl PassesFor<s::cudaDeviceProp> for c_void {}
impl PassesFor<s::cudaPointerAttributes> for c_void {}

const _: () = assert!(size_of::<s::cudaError_t>() == size_of::<crate::runtime::Code>());

macro_rules! compare {
    (runtime { $($slot:ident($($argument:ident: $type:ty),* $(,)?);)* } optional { $($optional:tt)* } driver { $($driver:tt)* }) => {
        $(
            const _: () = {
                #[allow(dead_code, non_snake_case)]
                unsafe fn $slot($($argument: $type),*) -> s::cudaError_t {
                    unsafe { s::$slot($($argument.pass()),*) }
                }
            };
        )*
    };
}
slots!(compare);

const _: unsafe extern "C" fn(s::cudaError_t) -> *const c_char = s::cudaGetErrorName;
const _: unsafe extern "C" fn(s::cudaError_t) -> *const c_char = s::cudaGetErrorString;
