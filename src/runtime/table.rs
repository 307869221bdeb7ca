//! The table: the functions of the CUDA runtime and driver that tcuda calls, under CUDA's own names and with CUDA's meaning.
//!
//! Two implementations fill it: the real libraries (`cuda/`) and the simulated device (`sim/`). Codes and enums are `i32`, handles
//! are plain words; structs that grow with CUDA versions are read at their stable prefix out of an oversized, zeroed buffer.
//! `runtime` slots must be there; `optional` ones (of the runtime) and `driver` ones are capabilities that may be absent.

use std::ffi::{c_char, c_void};

/// cudaError_t or CUresult: since CUDA 10.1 both number the errors used here alike.
pub type Code = i32;
/// cudaStream_t. 0 and 1 the legacy default stream, 2 the per-thread default stream of the current device.
pub type RawStream = usize;
/// cudaEvent_t.
pub type RawEvent = usize;
/// A device address, or a host address where the function takes either.
pub type Address = usize;
/// cudaMemPool_t.
pub type RawMemPool = usize;
/// cudaGraph_t, what was captured, and cudaGraphExec_t, what can be launched.
pub type RawGraph = usize;
pub type RawGraphExec = usize;
/// cudaGraphNode_t.
pub type RawGraphNode = usize;
/// CUgreenCtx.
pub type RawGreenContext = usize;
/// CUmemGenericAllocationHandle.
pub type MemHandle = u64;
pub type HostFn = unsafe extern "C" fn(*mut c_void);

/// CUmemAllocationProp, 32 bytes in every version.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct MemAllocationProp {
    /// 1: pinned device memory.
    pub kind: i32,
    /// Handle types that can be exported: 0 none, 1 file descriptor, 8 fabric.
    pub handle_types: i32,
    pub location: MemLocation,
    pub win32: usize,
    pub compression: u8,
    pub gpu_direct_rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// CUmemLocation: type 1 is a device.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct MemLocation {
    pub kind: i32,
    pub id: i32,
}

/// CUmemAccessDesc and cudaMemAccessDesc: flags 3 is read and write.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct MemAccess {
    pub location: MemLocation,
    pub flags: i32,
}

/// CUdevResource, 144 bytes in every version, of which the driver has most to itself. Type 1 is multiprocessors.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct DevResource {
    pub kind: i32,
    pub internal: [u8; 92],
    pub multiprocessors: u32,
    pub rest: [u8; 44],
}

impl DevResource {
    pub const MULTIPROCESSORS: i32 = 1;
    pub const NONE: DevResource = DevResource { kind: 0, internal: [0; 92], multiprocessors: 0, rest: [0; 44] };
}

/// cudaIpcMemHandle_t and cudaIpcEventHandle_t: 64 bytes that mean something to the driver of another process.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpcHandle(pub [u8; 64]);

/// Bytes given to `cudaGetDeviceProperties` and `cudaPointerGetAttributes`; the largest known struct has 1,032.
pub const OVERSIZED: usize = 4096;

/// Hands the list of slots to another macro: `$then! { runtime {..} optional {..} driver {..} }`.
macro_rules! slots {
    ($then:ident) => {
        $then! {
            runtime {
                cudaDriverGetVersion(version: *mut i32);
                cudaRuntimeGetVersion(version: *mut i32);
                cudaGetLastError();
                cudaPeekAtLastError();
                cudaGetDeviceCount(count: *mut i32);
                cudaGetDevice(device: *mut i32);
                cudaSetDevice(device: i32);
                cudaDeviceSynchronize();
                cudaDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
                // The struct is written to an OVERSIZED buffer; name at 0, uuid 256, totalGlobalMem 288, major 360, minor 364.
                cudaGetDeviceProperties(properties: *mut c_void, device: i32);
                cudaDeviceGetPCIBusId(text: *mut c_char, length: i32, device: i32);
                cudaDeviceGetStreamPriorityRange(least: *mut i32, greatest: *mut i32);
                cudaDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32);
                cudaDeviceEnablePeerAccess(peer: i32, flags: u32);
                cudaDeviceDisablePeerAccess(peer: i32);
                cudaMemGetInfo(free: *mut usize, total: *mut usize);
                cudaMalloc(address: *mut Address, size: usize);
                cudaFree(address: Address);
                cudaHostAlloc(address: *mut Address, size: usize, flags: u32);
                cudaFreeHost(address: Address);
                cudaHostRegister(address: Address, size: usize, flags: u32);
                cudaHostUnregister(address: Address);
                // Written to an OVERSIZED buffer: type i32 at 0 (0 unregistered, 1 host, 2 device, 3 managed), device i32 at 4.
                cudaPointerGetAttributes(attributes: *mut c_void, address: Address);
                cudaMemcpy(to: Address, from: Address, size: usize, kind: i32);
                cudaMemcpyAsync(to: Address, from: Address, size: usize, kind: i32, stream: RawStream);
                cudaMemcpyPeerAsync(to: Address, to_device: i32, from: Address, from_device: i32, size: usize, stream: RawStream);
                cudaMemcpy2DAsync(to: Address, to_pitch: usize, from: Address, from_pitch: usize, width: usize, height: usize, kind: i32, stream: RawStream);
                cudaMemset(address: Address, value: i32, size: usize);
                cudaMemsetAsync(address: Address, value: i32, size: usize, stream: RawStream);
                cudaStreamCreateWithPriority(stream: *mut RawStream, flags: u32, priority: i32);
                cudaStreamDestroy(stream: RawStream);
                cudaStreamSynchronize(stream: RawStream);
                cudaStreamQuery(stream: RawStream);
                cudaStreamWaitEvent(stream: RawStream, event: RawEvent, flags: u32);
                cudaStreamGetPriority(stream: RawStream, priority: *mut i32);
                cudaStreamGetFlags(stream: RawStream, flags: *mut u32);
                cudaStreamIsCapturing(stream: RawStream, status: *mut i32);
                cudaThreadExchangeStreamCaptureMode(mode: *mut i32);
                cudaLaunchHostFunc(stream: RawStream, function: HostFn, data: *mut c_void);
                cudaEventCreateWithFlags(event: *mut RawEvent, flags: u32);
                cudaEventDestroy(event: RawEvent);
                cudaEventRecord(event: RawEvent, stream: RawStream);
                cudaEventQuery(event: RawEvent);
                cudaEventSynchronize(event: RawEvent);
                cudaEventElapsedTime(milliseconds: *mut f32, start: RawEvent, end: RawEvent);
                cudaStreamBeginCapture(stream: RawStream, mode: i32);
                cudaStreamEndCapture(stream: RawStream, graph: *mut RawGraph);
                cudaGraphGetNodes(graph: RawGraph, nodes: *mut RawGraphNode, count: *mut usize);
                cudaGraphLaunch(exec: RawGraphExec, stream: RawStream);
                cudaGraphDestroy(graph: RawGraph);
                cudaGraphExecDestroy(exec: RawGraphExec);
                cudaIpcGetMemHandle(handle: *mut IpcHandle, address: Address);
                cudaIpcOpenMemHandle(address: *mut Address, handle: IpcHandle, flags: u32);
                cudaIpcCloseMemHandle(address: Address);
                cudaIpcGetEventHandle(handle: *mut IpcHandle, event: RawEvent);
                cudaIpcOpenEventHandle(event: *mut RawEvent, handle: IpcHandle);
            }
            optional {
                // In all versions, in a header of their own.
                cudaProfilerStart();
                cudaProfilerStop();
                cudaStreamGetId(stream: RawStream, id: *mut u64);
                cudaStreamGetDevice(stream: RawStream, device: *mut i32);
                // Stream-ordered memory, since CUDA 11.2. The value of an attribute is a u64 from ReleaseThreshold (4) on.
                cudaMallocAsync(address: *mut Address, size: usize, stream: RawStream);
                cudaFreeAsync(address: Address, stream: RawStream);
                cudaDeviceGetDefaultMemPool(pool: *mut RawMemPool, device: i32);
                cudaMemPoolSetAttribute(pool: RawMemPool, attribute: i32, value: *mut c_void);
                cudaMemPoolGetAttribute(pool: RawMemPool, attribute: i32, value: *mut c_void);
                cudaMemPoolSetAccess(pool: RawMemPool, access: *const MemAccess, count: usize);
                cudaMemPoolTrimTo(pool: RawMemPool, keep: usize);
                // Since CUDA 11.1.
                cudaEventRecordWithFlags(event: RawEvent, stream: RawStream, flags: u32);
                // Since CUDA 11.4 and 11.3. cudaGraphInstantiate has other arguments in CUDA 11 than later.
                cudaGraphInstantiateWithFlags(exec: *mut RawGraphExec, graph: RawGraph, flags: u64);
                cudaGraphDebugDotPrint(graph: RawGraph, path: *const c_char, flags: u32);
            }
            driver {
                // The driver's, because the runtime's have other arguments in each major version.
                cuStreamGetCaptureInfo_v2(stream: RawStream, status: *mut i32, id: *mut u64, graph: *mut RawGraph,
                                          nodes: *mut *const RawGraphNode, count: *mut usize);
                cuGraphExecUpdate(exec: RawGraphExec, graph: RawGraph, node: *mut RawGraphNode, result: *mut i32);
                cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const MemAllocationProp, option: i32);
                cuMemAddressReserve(address: *mut Address, size: usize, alignment: usize, wish: Address, flags: u64);
                cuMemAddressFree(address: Address, size: usize);
                cuMemCreate(handle: *mut MemHandle, size: usize, properties: *const MemAllocationProp, flags: u64);
                cuMemRelease(handle: MemHandle);
                cuMemMap(address: Address, size: usize, offset: usize, handle: MemHandle, flags: u64);
                cuMemUnmap(address: Address, size: usize);
                cuMemSetAccess(address: Address, size: usize, access: *const MemAccess, count: usize);
                // Type 1 is a file descriptor: written to an int, given as a pointer's value.
                cuMemExportToShareableHandle(shareable: *mut c_void, handle: MemHandle, kind: i32, flags: u64);
                cuMemImportFromShareableHandle(handle: *mut MemHandle, shareable: usize, kind: i32);
                cuMemGetAddressRange_v2(base: *mut Address, size: *mut usize, address: Address);
                cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32);
                cuDevicePrimaryCtxRetain(context: *mut usize, device: i32);
                cuStreamGetCtx(stream: RawStream, context: *mut usize);
                cuCtxPushCurrent_v2(context: usize);
                cuCtxPopCurrent_v2(context: *mut usize);
                cuCtxGetDevice(device: *mut i32);
                // Since CUDA 12.4, and streams of their own since 12.5. Each writes as many resources as `count` says.
                cuDeviceGetDevResource(device: i32, resource: *mut DevResource, kind: i32);
                cuDevSmResourceSplitByCount(groups: *mut DevResource, count: *mut u32, whole: *const DevResource, rest: *mut DevResource,
                                            flags: u32, least: u32);
                cuDevResourceGenerateDesc(description: *mut usize, resources: *mut DevResource, count: u32);
                cuGreenCtxCreate(context: *mut RawGreenContext, description: usize, device: i32, flags: u32);
                cuGreenCtxDestroy(context: RawGreenContext);
                cuGreenCtxStreamCreate(stream: *mut RawStream, context: RawGreenContext, flags: u32, priority: i32);
                cuModuleLoadData(module: *mut usize, image: *const c_void);
                cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char);
                cuModuleUnload(module: usize);
                cuLaunchKernel(function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
                               shared: u32, stream: RawStream, parameters: *mut *mut c_void, extra: *mut *mut c_void);
                cuFuncGetAttribute(value: *mut i32, attribute: i32, function: usize);
                cuFuncSetAttribute(function: usize, attribute: i32, value: i32);
                // Since CUDA 12.4.
                cuFuncGetParamInfo(function: usize, index: usize, offset: *mut usize, size: *mut usize);
                cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, function: usize, block: i32, shared: usize);
                cuOccupancyMaxPotentialBlockSize(grid: *mut i32, block: *mut i32, function: usize, shared_of_block: usize, shared: usize,
                                                 limit: i32);
            }
        }
    };
}
#[allow(unused_imports)] // the loader and the simulated device hand the list to macros of their own
pub(crate) use slots;

macro_rules! define_table {
    (
        runtime { $($required:ident($($ra:ident: $rt:ty),* $(,)?);)* }
        optional { $($optional:ident($($oa:ident: $ot:ty),* $(,)?);)* }
        driver { $($driver:ident($($da:ident: $dt:ty),* $(,)?);)* }
    ) => {
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        pub struct Table {
            $(pub $required: unsafe extern "C" fn($($ra: $rt),*) -> Code,)*
            $(pub $optional: Option<unsafe extern "C" fn($($oa: $ot),*) -> Code>,)*
            $(pub $driver: Option<unsafe extern "C" fn($($da: $dt),*) -> Code>,)*
            pub cudaGetErrorName: unsafe extern "C" fn(Code) -> *const c_char,
            pub cudaGetErrorString: unsafe extern "C" fn(Code) -> *const c_char,
        }

        impl Table {
            /// Names of the slots in three groups, in the order of the table.
            pub const RUNTIME: &'static [&'static str] =
                &[$(stringify!($required),)* "cudaGetErrorName", "cudaGetErrorString"];
            pub const OPTIONAL: &'static [&'static str] = &[$(stringify!($optional),)*];
            pub const DRIVER: &'static [&'static str] = &[$(stringify!($driver),)*];

            /// Fills the table by name. `find` gives a function's address, or 0. Err names the first required slot that is missing.
            ///
            /// # Safety
            /// An address that `find` gives must be a function of the slot's signature, and stay one.
            pub unsafe fn from_symbols(mut find: impl FnMut(&'static str) -> usize) -> Result<Table, &'static str> {
                Ok(Table {
                    $($required: match find(stringify!($required)) {
                        0 => return Err(stringify!($required)),
                        address => unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($rt),*) -> Code>(address) },
                    },)*
                    $($optional: unsafe {
                        std::mem::transmute::<usize, Option<unsafe extern "C" fn($($ot),*) -> Code>>(find(stringify!($optional)))
                    },)*
                    $($driver: unsafe {
                        std::mem::transmute::<usize, Option<unsafe extern "C" fn($($dt),*) -> Code>>(find(stringify!($driver)))
                    },)*
                    cudaGetErrorName: match find("cudaGetErrorName") {
                        0 => return Err("cudaGetErrorName"),
                        address => unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(Code) -> *const c_char>(address) },
                    },
                    cudaGetErrorString: match find("cudaGetErrorString") {
                        0 => return Err("cudaGetErrorString"),
                        address => unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(Code) -> *const c_char>(address) },
                    },
                })
            }
        }
    };
}
slots!(define_table);

/// Codes that tcuda itself asks about.
pub mod code {
    use super::Code;
    pub const SUCCESS: Code = 0;
    pub const INVALID_VALUE: Code = 1;
    pub const OUT_OF_MEMORY: Code = 2;
    pub const NOT_INITIALIZED: Code = 3;
    pub const INSUFFICIENT_DRIVER: Code = 35;
    pub const NO_DEVICE: Code = 100;
    pub const INVALID_DEVICE: Code = 101;
    pub const INVALID_IMAGE: Code = 200;
    pub const INVALID_CONTEXT: Code = 201;
    pub const PEER_ACCESS_UNSUPPORTED: Code = 217;
    pub const OPERATING_SYSTEM: Code = 304;
    pub const INVALID_HANDLE: Code = 400;
    pub const ILLEGAL_STATE: Code = 401;
    pub const NOT_FOUND: Code = 500;
    pub const NOT_READY: Code = 600;
    pub const ILLEGAL_ADDRESS: Code = 700;
    pub const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
    pub const PEER_ACCESS_NOT_ENABLED: Code = 705;
    pub const HOST_MEMORY_ALREADY_REGISTERED: Code = 712;
    pub const HOST_MEMORY_NOT_REGISTERED: Code = 713;
    pub const LAUNCH_FAILURE: Code = 719;
    pub const NOT_PERMITTED: Code = 800;
    pub const NOT_SUPPORTED: Code = 801;
    pub const CAPTURE_UNSUPPORTED: Code = 900;
    pub const CAPTURE_INVALIDATED: Code = 901;
    pub const CAPTURE_MERGE: Code = 902;
    pub const CAPTURE_UNMATCHED: Code = 903;
    pub const CAPTURE_UNJOINED: Code = 904;
    pub const CAPTURE_ISOLATION: Code = 905;
    pub const CAPTURE_IMPLICIT: Code = 906;
    pub const CAPTURED_EVENT: Code = 907;
    pub const CAPTURE_WRONG_THREAD: Code = 908;
    pub const GRAPH_EXEC_UPDATE_FAILURE: Code = 910;
    pub const INVALID_RESOURCE_TYPE: Code = 914;
    pub const INVALID_RESOURCE_CONFIGURATION: Code = 915;
    /// What a driver answers for an event that was destroyed; no loss of the device.
    pub const CONTEXT_IS_DESTROYED: Code = 709;
    pub const TOO_MANY_PEERS: Code = 711;
    pub const UNKNOWN: Code = 999;

    /// After one of these the context is gone: only a new process can use the device again.
    pub fn is_sticky(code: Code) -> bool {
        matches!(code, 214 | 700 | 702 | 710 | 714..=719 | 721 | 999)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_cudas() {
        assert_eq!(size_of::<MemAllocationProp>(), 32);
        assert_eq!(size_of::<MemAccess>(), 12);
        assert_eq!((size_of::<IpcHandle>(), align_of::<IpcHandle>()), (64, 1));
        assert_eq!((size_of::<DevResource>(), align_of::<DevResource>(), std::mem::offset_of!(DevResource, multiprocessors)), (144, 8, 96));
    }

    #[test]
    fn a_missing_required_slot_is_named() {
        let missing = unsafe { Table::from_symbols(|name| if name == "cudaMalloc" { 0 } else { 0x1000 }) };
        assert_eq!(missing.err(), Some("cudaMalloc"));
    }
}
