//! What is forbidden to others while a thread captures in the global mode, and still to who asks to be apart from captures. The simulated
//! device forbids all that a device does, so that what tcuda calls bare is found there.

use crate::kit::backend;
use crate::tests;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use tcuda::base::Result;
use tcuda::runtime::api::MemPoolAttribute;
use tcuda::runtime::table::{MemAccess, MemAllocationProp, MemLocation};
use tcuda::runtime::{Runtime, runtime};

tests![
    what_a_capture_of_another_thread_forbids: [VirtualMemory, AsyncAllocations],
    what_a_stream_is_not_asked_while_it_is_captured,
];

const SIZE: usize = 2 << 20;
const GLOBAL: i32 = 0;

/// Refused, and the capture comes to nothing. By CUDA 13.0 all but the last nine; of cudaMemPoolSetAccess it is not known.
const FORBIDDEN: [&str; 28] = [
    "cudaDeviceSynchronize",
    "cudaMalloc",
    "cudaFree",
    "cudaHostAlloc",
    "cudaFreeHost",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cudaStreamSynchronize",
    "cudaStreamQuery",
    "cudaEventQuery",
    "cudaEventSynchronize",
    "cudaGraphInstantiateWithFlags",
    "cudaGraphExecDestroy",
    "cudaMallocAsync",
    "cudaFreeAsync",
    "cudaMemPoolGetAttribute",
    "cudaMemPoolSetAttribute",
    "cudaMemPoolTrimTo",
    "cudaMemPoolSetAccess",
    "cudaMemcpy",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cudaIpcGetMemHandle",
];
/// The captured stream is one of the device.
const FORBIDDEN_APART: [&str; 1] = ["cudaDeviceSynchronize"];

fn what_a_capture_of_another_thread_forbids() {
    let runtime = runtime().unwrap();
    runtime.set_device(0).unwrap();
    let seen = [seen(runtime, |work| work()), seen(runtime, |work| runtime.outside_capture(work))];
    for (seen, forbidden) in seen.into_iter().zip([&FORBIDDEN[..], &FORBIDDEN_APART[..]]) {
        let forbidden: BTreeSet<String> = forbidden.iter().map(|name| name.to_string()).collect();
        assert!(seen.is_subset(&forbidden), "{seen:?}");
        assert!(backend() != "sim" || seen == forbidden, "{seen:?}");
    }
}

/// The calls that are refused, each made beside a capture of its own.
fn seen(runtime: &'static Runtime, make: impl Fn(&mut dyn FnMut() -> Result<()>) -> Result<()>) -> BTreeSet<String> {
    let refused = RefCell::new(BTreeSet::new());
    let stream = runtime.stream_create(1, 0).unwrap();
    let captured = runtime.stream_create(1, 0).unwrap();
    let call = |name: &str, call: &mut dyn FnMut() -> Result<()>| {
        let (begun, has_begun) = channel();
        let (over, is_over) = channel::<()>();
        let capture = std::thread::spawn(move || {
            runtime.set_device(0).unwrap();
            runtime.begin_capture(captured, GLOBAL).unwrap();
            begun.send(()).unwrap();
            let _ = is_over.recv();
            runtime.end_capture(captured).map(|graph| runtime.graph_destroy(graph).unwrap()).is_err()
        });
        has_begun.recv().unwrap();
        let answer = make(call);
        drop(over);
        let spoilt = capture.join().unwrap();
        match (answer, spoilt) {
            (Ok(()), false) => {}
            (Err(error), true) if error.native == 900 => drop(refused.borrow_mut().insert(name.to_owned())),
            (answer, spoilt) => panic!("{name}: {answer:?}, the capture is spoilt: {spoilt}"),
        }
    };
    /// Tried again with no capture there if it was refused.
    macro_rules! made {
        ($name:literal, $made:expr) => {{
            let mut made = None;
            call($name, &mut || $made.map(|value| made = Some(value)));
            made.unwrap_or_else(|| $made.unwrap())
        }};
    }
    macro_rules! done {
        ($name:literal, $done:expr) => {{
            let mut done = false;
            call($name, &mut || $done.map(|_| done = true));
            if !done {
                let _ = $done;
            }
        }};
    }
    done!("cudaDeviceSynchronize", runtime.device_synchronize());
    done!("cudaMemGetInfo", runtime.mem_get_info());
    done!("cudaDeviceGetAttribute", runtime.device_attribute(16, 0));
    let block = made!("cudaMalloc", runtime.malloc(SIZE));
    let pinned = made!("cudaHostAlloc", runtime.host_alloc(SIZE, 0));
    let pages = vec![0u8; 2 * SIZE];
    let pages = (pages.as_ptr() as usize).next_multiple_of(4096);
    done!("cudaHostRegister", runtime.host_register(pages, SIZE, 0));
    done!("cudaHostUnregister", runtime.host_unregister(pages));
    done!("cudaPointerGetAttributes", runtime.place_of(block));
    done!("cuMemGetAddressRange", runtime.address_range(block));
    done!("cudaMemcpy", runtime.memcpy(block, pinned, 64));
    done!("cudaMemcpyAsync", runtime.memcpy_async(block, pinned, 64, stream));
    done!("cudaMemsetAsync", runtime.memset_async(block, 1, 64, stream));
    done!("cudaLaunchHostFunc", unsafe { runtime.launch_host_function(stream, nothing, std::ptr::null_mut()) });
    done!("cudaStreamSynchronize", runtime.stream_synchronize(stream));
    done!("cudaStreamQuery", runtime.stream_query(stream));
    done!("cudaStreamGetPriority", runtime.stream_priority(stream));
    done!("cudaStreamGetFlags", runtime.stream_flags(stream));
    done!("cudaStreamIsCapturing", runtime.stream_is_capturing(stream));
    done!("cudaStreamGetDevice", runtime.stream_device(stream));
    let event = made!("cudaEventCreateWithFlags", runtime.event_create(0));
    let other = made!("cudaStreamCreateWithPriority", runtime.stream_create(1, 0));
    done!("cudaEventRecord", runtime.event_record(event, stream));
    done!("cudaStreamWaitEvent", runtime.stream_wait_event(other, event));
    runtime.device_synchronize().unwrap();
    done!("cudaEventQuery", runtime.event_query(event));
    done!("cudaEventSynchronize", runtime.event_synchronize(event));
    done!("cudaEventElapsedTime", runtime.event_elapsed_time(event, event));
    done!("cudaEventDestroy", runtime.event_destroy(event));
    // Graphs.
    done!("cudaStreamBeginCapture", runtime.begin_capture(other, GLOBAL));
    runtime.memset_async(block, 1, 64, other).unwrap();
    let graph = made!("cudaStreamEndCapture", runtime.end_capture(other));
    done!("cudaGraphGetNodes", runtime.graph_node_count(graph));
    let exec = made!("cudaGraphInstantiateWithFlags", runtime.graph_instantiate(graph));
    done!("cudaGraphExecUpdate", runtime.graph_exec_update(exec, graph));
    done!("cudaGraphLaunch", runtime.graph_launch(exec, other));
    runtime.device_synchronize().unwrap();
    done!("cudaGraphExecDestroy", runtime.graph_exec_destroy(exec));
    done!("cudaGraphDestroy", runtime.graph_destroy(graph));
    done!("cudaStreamDestroy", runtime.stream_destroy(other));
    // Stream-ordered memory.
    let ordered = made!("cudaMallocAsync", runtime.malloc_async(SIZE, stream));
    done!("cudaFreeAsync", runtime.free_async(ordered, stream));
    let pool = made!("cudaDeviceGetDefaultMemPool", runtime.default_mem_pool(0));
    let threshold = made!("cudaMemPoolGetAttribute", runtime.mem_pool_attribute(pool, MemPoolAttribute::ReleaseThreshold));
    done!("cudaMemPoolSetAttribute", runtime.set_mem_pool_attribute(pool, MemPoolAttribute::ReleaseThreshold, threshold));
    let access = MemAccess { location: MemLocation { kind: 1, id: 0 }, flags: 3 };
    done!("cudaMemPoolSetAccess", runtime.mem_pool_set_access(pool, &[access]));
    done!("cudaMemPoolTrimTo", runtime.mem_pool_trim(pool, 0));
    // Virtual memory.
    let location = MemLocation { kind: 1, id: 0 };
    let properties = MemAllocationProp { kind: 1, handle_types: 1, location, ..Default::default() };
    done!("cuMemGetAllocationGranularity", runtime.granularity(&properties));
    let base = made!("cuMemAddressReserve", runtime.address_reserve(SIZE, 0));
    let handle = made!("cuMemCreate", runtime.mem_create(SIZE, &properties));
    done!("cuMemMap", runtime.mem_map(base, SIZE, handle));
    done!("cuMemSetAccess", runtime.mem_set_access(base, SIZE, &[MemAccess { location, flags: 3 }]));
    let file = made!("cuMemExportToShareableHandle", runtime.mem_export(handle));
    let imported = made!("cuMemImportFromShareableHandle", runtime.mem_import(std::os::fd::AsFd::as_fd(&file)));
    runtime.mem_release(imported).unwrap();
    done!("cuMemUnmap", runtime.mem_unmap(base, SIZE));
    done!("cuMemRelease", runtime.mem_release(handle));
    done!("cuMemAddressFree", runtime.address_free(base, SIZE));
    // Between processes.
    done!("cudaIpcGetMemHandle", runtime.ipc_mem_handle(block));
    let shared = runtime.event_create(6).unwrap();
    done!("cudaIpcGetEventHandle", runtime.ipc_event_handle(shared));
    runtime.event_destroy(shared).unwrap();
    done!("cudaFree", runtime.free(block));
    done!("cudaFreeHost", runtime.free_host(pinned));
    [stream, captured].into_iter().for_each(|stream| runtime.stream_destroy(stream).unwrap());
    refused.into_inner()
}

unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}

/// By CUDA 13.0 both are refused.
fn what_a_stream_is_not_asked_while_it_is_captured() {
    let runtime = runtime().unwrap();
    runtime.set_device(0).unwrap();
    let stream = runtime.stream_create(1, 0).unwrap();
    let is_refused = |ask: &dyn Fn() -> Result<()>| {
        runtime.begin_capture(stream, GLOBAL).unwrap();
        let answer = ask();
        let spoilt = runtime.end_capture(stream).map(|graph| runtime.graph_destroy(graph).unwrap()).is_err();
        assert_eq!(answer.map_err(|error| error.native).err(), spoilt.then_some(900));
        spoilt
    };
    assert!(!is_refused(&|| runtime.stream_priority(stream).map(drop)));
    let seen = [is_refused(&|| runtime.stream_flags(stream).map(drop)), is_refused(&|| runtime.stream_id(stream).map(drop))];
    assert!(backend() != "sim" || seen == [true; 2], "{seen:?}");
    runtime.stream_destroy(stream).unwrap();
}
