//! Everything that differs between CUDA 11.8, 12.x and 13.x for the slots of the table. docs/CUDA_VERSIONS.md has the list.
//!
//! Most slots have one symbol and one meaning in all of them and are bound as they are. `cudaGetDeviceProperties` and
//! `cudaPointerGetAttributes` fill structs that grew; their callers pass an oversized buffer and read the prefix that never moved.

use crate::runtime::table::{Address, Code, RawGraph, RawGraphExec, RawGreenContext, RawStream, Table, code};
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The runtime libraries, newest first: major version and SONAME. That of CUDA 11 ends in `.so.11.0` for all of 11.x.
pub const RUNTIMES: [(i32, &str); 3] = [(13, "libcudart.so.13"), (12, "libcudart.so.12"), (11, "libcudart.so.11.0")];

/// The run-time compilers, newest first, likewise. That of CUDA 11.2 and later is called 11.2.
pub const COMPILERS: [(i32, &str); 3] = [(13, "libnvrtc.so.13"), (12, "libnvrtc.so.12"), (11, "libnvrtc.so.11.2")];

/// cuBLAS, and cuFFT, which counts otherwise, by CUDA's major version.
pub const BLAS_LIBRARIES: [(i32, &str); 3] = [(13, "libcublas.so.13"), (12, "libcublas.so.12"), (11, "libcublas.so.11")];
pub const FFT_LIBRARIES: [(i32, &str); 3] = [(13, "libcufft.so.12"), (12, "libcufft.so.11"), (11, "libcufft.so.10")];

/// NCCL, whose major version is 2 since 2017.
pub const COLLECTIVES: [(i32, &str); 1] = [(2, "libnccl.so.2")];

/// The driver. A symbol of it never changes its meaning: a new signature gets a new name.
pub const DRIVER: &str = "libcuda.so.1";

/// Whether a driver can serve runtimes of a major version: it can unless it is of an older one. 12040 stands for 12.4.
pub fn serves(driver_version: i32, runtime_major: i32) -> bool {
    driver_version / 1000 >= runtime_major
}

/// The functions themselves, below the adapters.
static BARE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

/// Driver functions that work in the calling thread's context. The runtime binds one to a thread at the first call that needs it:
/// a thread that never called the runtime has none, and CUDA 11's cudaSetDevice names a context that does not exist yet. So each of
/// these is preceded by the cheapest runtime call that binds; unlike the usual cudaFree(0), it is harmless to a capture.
macro_rules! bind_context_first {
    ($($slot:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(
            #[allow(non_snake_case)]
            unsafe extern "C" fn $slot($($argument: $type),*) -> Code {
                // `adapt` stored the table before anyone had the address of this function.
                let bare = unsafe { &*BARE.load(Ordering::Acquire) };
                let (mut least, mut greatest) = (0, 0);
                match (unsafe { (bare.cudaDeviceGetStreamPriorityRange)(&mut least, &mut greatest) }, bare.$slot) {
                    (code::SUCCESS, Some(function)) => unsafe { function($($argument),*) },
                    (code::SUCCESS, None) => code::NOT_SUPPORTED,
                    (failure, _) => failure,
                }
            }
        )*

        /// Puts the adapters over the slots that need one. From then on this table is the one in use.
        pub fn adapt(table: &mut Table) {
            BARE.store(Box::into_raw(Box::new(*table)), Ordering::Release);
            $(table.$slot = table.$slot.and(Some($slot));)*
        }
    };
}

bind_context_first! {
    cuStreamGetCaptureInfo_v2(stream: RawStream, status: *mut i32, id: *mut u64, graph: *mut RawGraph, nodes: *mut *const usize,
                              count: *mut usize);
    cuGraphExecUpdate(exec: RawGraphExec, graph: RawGraph, node: *mut usize, result: *mut i32);
    cuMemGetAddressRange_v2(base: *mut Address, size: *mut usize, address: Address);
    cuStreamGetCtx(stream: RawStream, context: *mut usize);
    // It would make the device's context itself, and the last one of them that goes end it.
    cuGreenCtxCreate(context: *mut RawGreenContext, description: usize, device: i32, flags: u32);
    cuModuleLoadData(module: *mut usize, image: *const c_void);
    cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char);
    cuModuleUnload(module: usize);
    cuLaunchKernel(function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
                   shared: u32, stream: RawStream, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuFuncGetAttribute(value: *mut i32, attribute: i32, function: usize);
    cuFuncSetAttribute(function: usize, attribute: i32, value: i32);
    cuFuncGetParamInfo(function: usize, index: usize, offset: *mut usize, size: *mut usize);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, function: usize, block: i32, shared: usize);
    cuOccupancyMaxPotentialBlockSize(grid: *mut i32, block: *mut i32, function: usize, shared_of_block: usize, shared: usize, limit: i32);
}
