//! The real backend over fake libraries: which of them is taken, what is said when none is, and that each slot of the table reaches
//! its function with its arguments in place. tests/fake/*.c are the libraries; each case runs in a process of its own.

mod fake;

use fake::*;
use std::ffi::{CString, c_void};
use std::os::fd::AsFd;
use std::path::Path;
use tcuda::base::{Error, Status};
use tcuda::runtime::api::{CaptureStatus, MemPoolAttribute, Place};
use tcuda::runtime::table::{IpcHandle, MemAccess, MemAllocationProp, MemLocation, Table};
use tcuda::runtime::{self, Runtime, cuda};
use tcuda::stream::Stream;
use tcuda::{device, random};

// ---- in the case's own process

fn open() -> Result<Runtime, Error> {
    cuda::open_with_local(&root().join("local"))
}

#[track_caller]
fn opened() -> Runtime {
    open().unwrap_or_else(|error| panic!("{:?}: {error}", error.status))
}

#[track_caller]
fn refused(status: Status) -> String {
    match open() {
        Ok(runtime) => panic!("opened {}", runtime.reason),
        Err(error) => {
            assert_eq!(error.status, status, "{error}");
            error.message.into_owned()
        }
    }
}

fn is_loaded(library: &str) -> bool {
    let library = CString::new(library).unwrap();
    !unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) }.is_null()
}

fn properties() -> MemAllocationProp {
    MemAllocationProp {
        kind: 1,
        handle_types: 9,
        location: MemLocation { kind: 1, id: 1 },
        compression: 2,
        gpu_direct_rdma: 1,
        usage: 3,
        ..Default::default()
    }
}

unsafe extern "C" fn add_one(data: *mut c_void) {
    unsafe { *data.cast::<i32>() += 1 };
}

/// Each slot once, with arguments that the fake checks.
fn call_every_slot(r: &Runtime, soname: &str) {
    let t = &r.table;
    r.set_device(1).unwrap();
    assert_eq!(r.get_device().unwrap(), 1);
    r.device_synchronize().unwrap();
    assert_eq!(r.device_attribute(16, 1).unwrap(), 132);
    let p = r.device_properties(1).unwrap();
    assert_eq!((p.name.as_str(), &p.uuid, p.total_memory, p.major, p.minor), ("Fake", b"0123456789abcdef", SIZE as u64, 9, 1));
    assert_eq!(r.pci_bus_id(1).unwrap(), "0000:3b:00.0");
    assert_eq!(r.stream_priority_range().unwrap(), (0, -5));
    assert!(r.can_access_peer(0, 1).unwrap());
    r.enable_peer_access(1).unwrap();
    assert_eq!(unsafe { (t.cudaDeviceDisablePeerAccess)(1) }, 0);
    assert_eq!(r.mem_get_info().unwrap(), (SIZE, SIZE + 1));
    assert_eq!(r.has_primary_context(1), Some(true));

    assert_eq!(r.malloc(SIZE).unwrap(), TO);
    r.free(TO).unwrap();
    assert_eq!(r.host_alloc(SIZE, 1).unwrap(), FROM);
    r.free_host(FROM).unwrap();
    r.host_register(FROM, SIZE, 2).unwrap();
    r.host_unregister(FROM).unwrap();
    assert_eq!(r.place_of(TO).unwrap(), Place::Device { device: 1 });
    assert_eq!(r.place_of(FROM).unwrap(), Place::Pinned { device: 0 });
    assert_eq!(r.place_of(OTHER).unwrap(), Place::Managed { device: 0 });
    assert_eq!(r.place_of(8).unwrap(), Place::Unregistered);
    r.memcpy(TO, FROM, SIZE).unwrap();
    r.memcpy_async(TO, FROM, SIZE, STREAM).unwrap();
    r.memcpy_peer_async(TO, 1, FROM, 0, SIZE, STREAM).unwrap();
    r.memcpy_2d_async(TO, 32, FROM, 16, 8, 4, STREAM).unwrap();
    assert_eq!(unsafe { (t.cudaMemset)(TO, -7, SIZE) }, 0);
    r.memset_async(TO, -7, SIZE, STREAM).unwrap();

    assert!(r.has_async_allocations());
    assert_eq!(r.malloc_async(SIZE, STREAM).unwrap(), TO);
    r.free_async(TO, STREAM).unwrap();
    let pool = r.default_mem_pool(1).unwrap();
    assert_eq!(pool, OTHER);
    r.set_mem_pool_attribute(pool, MemPoolAttribute::ReleaseThreshold, SIZE as u64).unwrap();
    use MemPoolAttribute::*;
    for (number, attribute) in (4..).zip([ReleaseThreshold, ReservedCurrent, ReservedHigh, UsedCurrent, UsedHigh]) {
        assert_eq!(r.mem_pool_attribute(pool, attribute).unwrap(), SIZE as u64 + number);
    }
    let access = |id, flags| MemAccess { location: MemLocation { kind: 1, id }, flags };
    r.mem_pool_set_access(pool, &[access(0, 3), access(1, 1)]).unwrap();
    r.mem_pool_trim(pool, SIZE).unwrap();

    assert_eq!(r.stream_create(1, -3).unwrap(), STREAM);
    r.stream_synchronize(STREAM).unwrap();
    assert!(r.stream_query(STREAM).unwrap() && !r.stream_query(OTHER).unwrap());
    r.stream_wait_event(STREAM, EVENT).unwrap();
    r.stream_wait_event_external(STREAM, EVENT).unwrap();
    assert_eq!(r.stream_priority(STREAM).unwrap(), -3);
    assert_eq!(r.stream_flags(STREAM).unwrap(), 1);
    assert!(r.stream_is_capturing(STREAM).unwrap());
    assert_eq!(r.stream_device(STREAM).unwrap(), 1);
    let mut device = -1;
    if let Some(get_device) = t.cudaStreamGetDevice {
        assert_eq!((unsafe { get_device(STREAM, &mut device) }, device), (0, 1));
    }
    let mut id = 0;
    if let Some(get_id) = t.cudaStreamGetId {
        assert_eq!((unsafe { get_id(STREAM, &mut id) }, id), (0, HANDLE));
    }
    let mut data = 1;
    unsafe { r.launch_host_function(STREAM, add_one, (&raw mut data).cast()) }.unwrap();
    assert_eq!(data, 2);
    r.stream_destroy(STREAM).unwrap();
    let mut mode = 2;
    assert_eq!((unsafe { (t.cudaThreadExchangeStreamCaptureMode)(&mut mode) }, mode), (0, 0));

    assert_eq!(r.event_create(2).unwrap(), EVENT);
    r.event_record(EVENT, STREAM).unwrap();
    r.event_record_external(EVENT, STREAM).unwrap();
    assert!(r.event_query(EVENT).unwrap() && !r.event_query(OTHER).unwrap());
    r.event_synchronize(EVENT).unwrap();
    assert_eq!(r.event_elapsed_time(EVENT, OTHER).unwrap(), 1.5);
    r.event_destroy(EVENT).unwrap();

    let (block, event) = (r.ipc_mem_handle(TO).unwrap(), r.ipc_event_handle(EVENT).unwrap());
    assert_eq!((block, event), (IpcHandle([7; 64]), IpcHandle([8; 64])));
    assert_eq!((r.ipc_open_mem_handle(block).unwrap(), r.ipc_open_event_handle(event).unwrap()), (OTHER, EVENT));
    r.ipc_close_mem_handle(OTHER).unwrap();

    assert_eq!(r.granularity(&properties()).unwrap(), SIZE);
    assert_eq!(r.address_reserve(SIZE, 0x200000).unwrap(), TO);
    assert_eq!(r.mem_create(SIZE, &properties()).unwrap(), HANDLE);
    r.mem_map(TO, SIZE, HANDLE).unwrap();
    r.mem_set_access(TO, SIZE, &[access(0, 3), access(1, 1)]).unwrap();
    r.mem_unmap(TO, SIZE).unwrap();
    let file = r.mem_export(HANDLE).unwrap();
    assert_eq!(r.mem_import(file.as_fd()).unwrap(), HANDLE);
    r.mem_release(HANDLE).unwrap();
    r.address_free(TO, SIZE).unwrap();
    assert_eq!(r.address_range(FROM).unwrap(), (TO, SIZE));

    let mut context = 0;
    assert_eq!((unsafe { t.cuStreamGetCtx.unwrap()(STREAM, &mut context) }, context), (0, OTHER));
    assert_eq!(r.primary_context(1).unwrap().unwrap(), OTHER);
    r.context_push(context).unwrap();
    let mut out = 0;
    assert_eq!((unsafe { t.cuCtxGetDevice.unwrap()(&mut out) }, out), (0, 1));
    r.context_pop().unwrap();

    assert!(r.has_green_contexts());
    let whole = r.multiprocessors(1).unwrap();
    let part = r.split(&whole, 17).unwrap().unwrap();
    assert_eq!((whole.multiprocessors, part.multiprocessors), (132, 24));
    assert!([66, 67].iter().all(|least| r.split(&whole, *least).unwrap().is_none()));
    let green = r.green_context_create(1, part).unwrap();
    assert_eq!((green, r.green_context_stream(green).unwrap()), (OTHER, STREAM));
    r.green_context_destroy(green).unwrap();

    r.profiler_start().unwrap();
    r.profiler_stop().unwrap();

    let module = r.module_load(b"ptx\0").unwrap();
    let function = r.module_function(module, "kernel").unwrap();
    let mut argument = 8;
    let mut parameters = [(&raw mut argument).cast()];
    unsafe { r.launch_kernel(function, [1, 2, 3], [4, 5, 6], 7, STREAM, &mut parameters) }.unwrap();
    assert_eq!(r.function_attribute(function, 4).unwrap(), 40);
    r.set_function_attribute(function, 8, 65536).unwrap();
    assert_eq!(r.function_parameters(function).unwrap(), Some(vec![8, 4]));
    assert_eq!(r.occupancy(function, 256, 1024).unwrap(), 3);
    assert_eq!(r.best_block(function, 2048, 512).unwrap(), (264, 384));
    r.module_unload(module).unwrap();

    r.begin_capture(STREAM, 2).unwrap();
    assert_eq!(r.capture_status(STREAM).unwrap(), CaptureStatus::Active(HANDLE));
    let graph = r.end_capture(STREAM).unwrap();
    assert_eq!((graph, r.graph_node_count(graph).unwrap()), (OTHER, SIZE));
    r.graph_dot(graph, Path::new("graph.dot")).unwrap();
    let exec = r.graph_instantiate(graph).unwrap();
    assert_eq!(exec, TO);
    assert!(r.graph_exec_update(exec, graph).unwrap() && !r.graph_exec_update(exec, FROM).unwrap());
    r.graph_launch(exec, STREAM).unwrap();
    r.graph_exec_destroy(exec).unwrap();
    r.graph_destroy(graph).unwrap();

    let error = r.malloc(1).unwrap_err();
    assert_eq!((error.status, error.native, error.device), (Status::TCUDA_ERROR_OUT_OF_MEMORY, 2, 1));
    assert_says(&error.message, &["out of memory", "cudaErrorMemoryAllocation", "cudaMalloc"]);
    assert_eq!(unsafe { (t.cudaPeekAtLastError)() }, 0, "a failing call left its error behind");

    let since = |name: &str| match name {
        "cudaStreamGetId" => 12000,
        "cudaStreamGetDevice" => 12080,
        "cudaGraphInstantiateWithFlags" => 11040,
        _ => 11030,
    };
    let optional = Table::OPTIONAL.iter().filter(|name| r.version >= since(name));
    for name in Table::RUNTIME.iter().chain(optional) {
        assert!(calls(soname, "fake_runtime_calls", name) > 0, "{name} was never called: add it to tests/fake/cudart.c and here");
    }
    for name in Table::DRIVER {
        assert!(calls("libcuda.so.1", "fake_driver_calls", name) > 0, "{name} was never called: add it to tests/fake/cuda.c and here");
    }
}

// ---- cases

#[test]
fn every_slot_of_cuda_13() {
    case(
        "every_slot_of_cuda_13",
        |m| m.with("loader/libcuda.so.1", &driver(13000)).with("loader/libcudart.so.13", &runtime_library(13000)),
        || {
            let r = opened();
            assert_eq!((r.name, r.version, r.driver_version, r.device_count), ("cuda", 13000, 13000, 2));
            assert_says(&r.reason, &["loader/libcudart.so.13", "CUDA runtime 13.0", "driver for CUDA 13.0", "2 devices"]);
            assert!(r.has_virtual_memory());
            call_every_slot(&r, "libcudart.so.13");
        },
    );
}

#[test]
fn every_slot_of_cuda_12() {
    case(
        "every_slot_of_cuda_12",
        |m| {
            m.with("loader/libcuda.so.1", &driver(12080))
                .with("loader/libcudart.so.12", &runtime_without(12040, &["cudaStreamGetDevice"]))
                .set("FAKE_DEVICES", "3")
        },
        || {
            let r = opened();
            assert_eq!((r.version, r.driver_version, r.device_count), (12040, 12080, 3));
            assert!(r.table.cudaStreamGetId.is_some() && r.table.cudaStreamGetDevice.is_none());
            call_every_slot(&r, "libcudart.so.12");
        },
    );
}

#[test]
fn every_slot_of_cuda_11_on_a_newer_driver() {
    case(
        "every_slot_of_cuda_11_on_a_newer_driver",
        |m| {
            m.with("loader/libcuda.so.1", &driver(13000))
                .with("loader/libcudart.so.11.0", &runtime_without(11080, &["cudaStreamGetDevice", "cudaStreamGetId"]))
        },
        || {
            let r = opened();
            assert_eq!((r.version, r.driver_version), (11080, 13000));
            assert!(r.table.cudaStreamGetId.is_none() && r.table.cudaStreamGetDevice.is_none());
            call_every_slot(&r, "libcudart.so.11.0");
        },
    );
}

#[test]
fn a_driver_call_finds_the_current_devices_context() {
    fn load_on_each_device() {
        let r = opened();
        for device in [0, 1, 0] {
            r.set_device(device).unwrap();
            // The fake's module handles tell the context they were loaded into.
            assert_eq!(r.module_load(b"ptx\0").unwrap(), 0x7f0000006000 + device as usize);
        }
        // A thread that never called the runtime has no context yet.
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(r.module_load(b"ptx\0").unwrap(), 0x7f0000006000));
            scope.spawn(|| assert_eq!(r.address_range(FROM).unwrap(), (TO, SIZE)));
        });
    }
    let name = "a_driver_call_finds_the_current_devices_context";
    for (version, soname) in RUNTIMES {
        let place = format!("loader/{soname}");
        case(name, |m| m.with("loader/libcuda.so.1", &driver(13000)).with(&place, &runtime_library(version)), load_on_each_device);
    }
}

#[test]
fn no_numbers_are_drawn_on_a_stream_that_is_captured() {
    case(
        "no_numbers_are_drawn_on_a_stream_that_is_captured",
        |m| m.with("loader/libcuda.so.1", &driver(13000)).with("loader/libcudart.so.13", &runtime_library(13000)),
        || {
            let generator = std::sync::Arc::new(random::Generator::new(0, random::State::seeded(7)));
            let error = generator.draws(Stream { device: 0, raw: STREAM }).err().unwrap();
            assert_eq!(error.status, Status::TCUDA_ERROR_CAPTURE);
            assert_says(&error.message, &["being captured by another than tcuda", "draw them before"]);
            assert_eq!(generator.state(), random::State::seeded(7));
        },
    );
}

#[test]
fn seeds_before_the_first_use_are_for_the_device_that_is_current_then() {
    case(
        "seeds_before_the_first_use_are_for_the_device_that_is_current_then",
        |m| m.with("loader/libcuda.so.1", &driver(13000)).with("loader/libcudart.so.13", &runtime_library(13000)),
        || {
            // The program itself, not by way of tcuda.
            opened().set_device(1).unwrap();
            let wish = |device, seed| random::Wish { device, change: random::Change::Seed(seed) };
            random::set_default(&[wish(0, 1), wish(device::CURRENT, 2)]).unwrap();
            assert!(!runtime::is_initialized());
            // What needs a device first makes another one current.
            device::set(0).unwrap();
            assert_eq!([0, 1].map(|device| random::for_device(None, device).unwrap().state().seed), [1, 2]);
        },
    );
}

#[test]
fn a_runtime_newer_than_the_driver_gives_way() {
    case(
        "a_runtime_newer_than_the_driver_gives_way",
        |m| {
            m.with("loader/libcuda.so.1", &driver(12020))
                .with("loader/libcudart.so.13", &runtime_library(13000))
                .with("loader/libcudart.so.12", &runtime_library(12040))
        },
        || {
            assert_eq!(opened().version, 12040);
            assert!(!is_loaded("libcudart.so.13"), "the runtime that was not taken is still loaded");
        },
    );
}

#[test]
fn a_missing_slot_leads_to_the_next_runtime() {
    case(
        "a_missing_slot_leads_to_the_next_runtime",
        |m| {
            m.with("loader/libcuda.so.1", &driver(13000))
                .with("loader/libcudart.so.13", &runtime_without(13000, &["cudaMemset"]))
                .with("loader/libcudart.so.12", &runtime_without(12040, &["cudaGetErrorName"]))
                .with("loader/libcudart.so.11.0", &runtime_library(11080))
        },
        || assert_eq!(opened().version, 11080),
    );
}

#[test]
fn missing_slots_in_all_are_named() {
    case(
        "missing_slots_in_all_are_named",
        |m| {
            m.with("loader/libcuda.so.1", &driver(12040)).with("loader/libcudart.so.12", &runtime_without(12040, &["cudaMemset"])).with(
                "home/.local/lib/python3.9/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12",
                &runtime_without(12040, &["cudaFree"]),
            )
        },
        || {
            let text = refused(Status::TCUDA_ERROR_NO_DEVICE);
            assert_says(&text, &["libcudart.so.12 has no cudaMemset", "libcudart.so.12 has no cudaFree", "CUDA up to 12.4"]);
            assert_says(&text, &["pip install nvidia-cuda-runtime-cu12", "TCUDA_CUDART_PATH"]);
        },
    );
}

#[test]
fn the_driver_is_older_than_every_runtime() {
    case(
        "the_driver_is_older_than_every_runtime",
        |m| {
            m.with("loader/libcuda.so.1", &driver(11040))
                .with("loader/libcudart.so.13", &runtime_library(13000))
                .with("local/cuda-12.4/lib64/libcudart.so.12", &runtime_library(12040))
        },
        || {
            let text = refused(Status::TCUDA_ERROR_INSUFFICIENT_DRIVER);
            assert_says(&text, &["CUDA up to 11.4", "(CUDA runtime 13.0) finds the driver too old", "nvidia-cuda-runtime-cu11"]);
            assert_says(&text, &["cuda-12.4/lib64/libcudart.so.12 is for drivers of CUDA 12 and later"]);
        },
    );
}

#[test]
fn no_driver() {
    case(
        "no_driver",
        |m| {
            m.with("loader/libcudart.so.12", &runtime_library(12040))
                .with("loader/libcudart.so.11.0", &runtime_library(11080))
                .set("CUDA_HOME", "{}/nowhere")
        },
        || {
            let text = refused(Status::TCUDA_ERROR_NO_DEVICE);
            let root = root();
            let root = root.to_str().unwrap();
            assert_says(&text, &["no NVIDIA driver", "libcuda.so.1", "Install the driver", "what the process has already: nothing"]);
            assert_says(&text, &["libcudart.so.12 (CUDA runtime 12.4) finds no driver", "libcudart.so.11.0 finds no driver"]);
            assert_says(&text, &[&format!("CUDA_HOME={root}/nowhere: nothing"), &format!("{root}/local/cuda*: nothing")]);
            assert_says(&text, &[&format!("{root}/home/.local: nothing")]);
        },
    );
}

#[test]
fn the_stub_of_a_toolkit_is_no_driver() {
    case(
        "the_stub_of_a_toolkit_is_no_driver",
        |m| m.with("loader/libcuda.so.1", &build("cuda.c", "libcuda.so.1", &["-DVERSION=13000", "-DSTUB"], &[])),
        || assert_says(&refused(Status::TCUDA_ERROR_NO_DEVICE), &["no NVIDIA driver works here (libcuda.so.1 answers 34"]),
    );
}

#[test]
fn no_visible_device() {
    case(
        "no_visible_device",
        |m| {
            m.with("loader/libcuda.so.1", &driver(13000))
                .with("loader/libcudart.so.13", &runtime_library(13000))
                .set("FAKE_DEVICES", "0")
                .set("CUDA_VISIBLE_DEVICES", "")
        },
        || assert_says(&refused(Status::TCUDA_ERROR_NO_DEVICE), &["see no device", "CUDA_VISIBLE_DEVICES is set to \"\""]),
    );
}

#[test]
fn a_failing_runtime_is_quoted() {
    case(
        "a_failing_runtime_is_quoted",
        |m| {
            let failing = build("cudart.c", "libcudart.so.13", &["-DVERSION=13000", "-DANSWER=802"], &[]);
            m.with("loader/libcuda.so.1", &driver(13000)).with("loader/libcudart.so.13", &failing)
        },
        || {
            let error = open().err().unwrap();
            assert_eq!((error.status, error.native), (Status::TCUDA_ERROR_NO_DEVICE, 802));
            assert_says(&error.message, &["system not yet initialized (cudaErrorSystemNotReady, 802)"]);
        },
    );
}

#[test]
fn no_failing_call_leaves_its_error_behind() {
    case(
        "no_failing_call_leaves_its_error_behind",
        |m| {
            let m = m.with("loader/libcuda.so.1", &driver(13000)).with("loader/libcudart.so.13", &runtime_library(13000));
            m.set("FAKE_LOST", "1")
        },
        || {
            let r = opened();
            let error = r.malloc(1).unwrap_err();
            assert_eq!((error.native, error.device), (2, -1));
            assert_eq!(unsafe { (r.table.cudaGetLastError)() }, 0);
        },
    );
}

#[test]
fn a_driver_without_virtual_memory() {
    case(
        "a_driver_without_virtual_memory",
        |m| {
            let old =
                build("cuda.c", "libcuda.so.1", &["-DVERSION=13000"], &["cuMemCreate", "cuModuleLoadData", "cuMemExportToShareableHandle"]);
            m.with("loader/libcuda.so.1", &old).with("loader/libcudart.so.13", &runtime_library(13000))
        },
        || {
            let r = opened();
            assert!(!r.has_virtual_memory() && r.table.cuMemMap.is_some());
            for error in
                [r.mem_create(SIZE, &properties()).unwrap_err(), r.module_load(b"ptx\0").unwrap_err(), r.mem_export(HANDLE).unwrap_err()]
            {
                assert_eq!(error.status, Status::TCUDA_ERROR_NOT_SUPPORTED, "{error}");
                assert_says(&error.message, &["is not available", "libcudart.so.13"]);
            }
        },
    );
}

/// That of CUDA 12.4 lacks the last one.
#[test]
fn a_driver_without_green_contexts() {
    let slots = Table::DRIVER.iter().filter(|slot| slot.contains("DevRes") || slot.contains("SmResource") || slot.contains("GreenCtx"));
    let slots: Vec<&str> = slots.copied().collect();
    assert_eq!(slots.len(), 6);
    for lacks in slots {
        case(
            "a_driver_without_green_contexts",
            |m| {
                let old = build("cuda.c", "libcuda.so.1", &["-DVERSION=12040"], &[lacks]);
                m.with("loader/libcuda.so.1", &old).with("loader/libcudart.so.12", &runtime_library(12040)).set("LACKS", lacks)
            },
            || {
                let error = tcuda::stream::green::create(8, 1).unwrap_err();
                assert_eq!((error.status, error.device), (Status::TCUDA_ERROR_NOT_SUPPORTED, 1), "{error}");
                let missing = std::env::var("LACKS").unwrap();
                assert_says(&error.message, &[&format!("has no {missing}"), "12.5", "libcudart.so.12"]);
            },
        );
    }
}

#[test]
fn a_runtime_without_stream_ordered_memory() {
    let name = "a_runtime_without_stream_ordered_memory";
    let of_memory = |slot: &&str| ["cudaMalloc", "cudaFree", "cudaMemPool", "cudaDevice"].iter().any(|start| slot.starts_with(start));
    let slots = Table::OPTIONAL.iter().copied().filter(of_memory);
    for lacks in slots.map(|slot| vec![slot]).chain([vec!["cudaMallocAsync", "cudaMemPoolTrimTo"]]) {
        case(
            name,
            |m| {
                let old = build("cuda.c", "libcuda.so.1", &["-DVERSION=13000"], &["cuMemGetAddressRange_v2"]);
                m.with("loader/libcuda.so.1", &old)
                    .with("loader/libcudart.so.11.0", &runtime_without(11080, &lacks))
                    .set("LACKS", &lacks.join(","))
            },
            || {
                let r = opened();
                assert!(!r.has_async_allocations() && r.has_virtual_memory());
                let (threshold, missing) = (MemPoolAttribute::ReleaseThreshold, std::env::var("LACKS").unwrap());
                for (slot, outcome) in [
                    ("cudaMallocAsync", r.malloc_async(SIZE, STREAM).map(|_| ())),
                    ("cudaFreeAsync", r.free_async(TO, STREAM)),
                    ("cudaDeviceGetDefaultMemPool", r.default_mem_pool(1).map(|_| ())),
                    ("cudaMemPoolSetAttribute", r.set_mem_pool_attribute(OTHER, threshold, SIZE as u64)),
                    ("cudaMemPoolGetAttribute", r.mem_pool_attribute(OTHER, threshold).map(|_| ())),
                    ("cudaMemPoolSetAccess", r.mem_pool_set_access(OTHER, &[]).map(|_| ())),
                    ("cudaMemPoolTrimTo", r.mem_pool_trim(OTHER, SIZE)),
                    ("cuMemGetAddressRange_v2", r.address_range(FROM).map(|_| ())),
                ] {
                    let absent = slot.starts_with("cuMem") || missing.split(',').any(|name| name == slot);
                    let status = outcome.as_ref().err().map(|error| error.status);
                    assert_eq!(status == Some(Status::TCUDA_ERROR_NOT_SUPPORTED), absent, "{slot}: {outcome:?}");
                    if absent {
                        assert_says(&outcome.unwrap_err().message, &[slot, "is not available", "libcudart.so.11.0"]);
                    }
                }
            },
        );
    }
}

#[test]
fn a_runtime_without_graphs_as_they_are_today() {
    case(
        "a_runtime_without_graphs_as_they_are_today",
        |m| {
            let old = build("cuda.c", "libcuda.so.1", &["-DVERSION=13000"], &["cuStreamGetCaptureInfo_v2", "cuGraphExecUpdate"]);
            let lacks = ["cudaGraphInstantiateWithFlags", "cudaGraphDebugDotPrint", "cudaEventRecordWithFlags", "cudaProfilerStart"];
            let runtime = runtime_without(11080, &lacks);
            m.with("loader/libcuda.so.1", &old).with("loader/libcudart.so.11.0", &runtime)
        },
        || {
            let r = opened();
            for (slot, outcome) in [
                ("cudaGraphInstantiateWithFlags", r.graph_instantiate(OTHER).map(|_| ())),
                ("cudaGraphDebugDotPrint", r.graph_dot(OTHER, Path::new("graph.dot"))),
                ("cudaEventRecordWithFlags", r.event_record_external(EVENT, STREAM)),
                ("cudaProfilerStart", r.profiler_start()),
                ("cuStreamGetCaptureInfo_v2", r.capture_status(STREAM).map(|_| ())),
                ("cuGraphExecUpdate", r.graph_exec_update(TO, OTHER).map(|_| ())),
            ] {
                let error = outcome.unwrap_err();
                assert_eq!(error.status, Status::TCUDA_ERROR_NOT_SUPPORTED);
                assert_says(&error.message, &[slot, "is not available"]);
            }
            r.begin_capture(STREAM, 2).unwrap();
        },
    );
}

#[test]
fn a_runtime_of_the_process_comes_first() {
    case(
        "a_runtime_of_the_process_comes_first",
        |m| {
            m.with("loader/libcuda.so.1", &driver(13000))
                .with("loader/libcudart.so.13", &runtime_library(13000))
                .with("elsewhere/renamed.so", &runtime_library(12040))
        },
        || {
            let file = CString::new(root().join("elsewhere/renamed.so").to_str().unwrap()).unwrap();
            assert!(!unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }.is_null());
            let r = opened();
            assert_eq!(r.version, 12040);
            assert_says(&r.reason, &["elsewhere/renamed.so", "what the process has already"]);
        },
    );
}

#[test]
fn the_path_given_comes_before_all() {
    case(
        "the_path_given_comes_before_all",
        |m| {
            m.with("loader/libcuda.so.1", &driver(13000))
                .with("loader/libcudart.so.13", &runtime_library(13000))
                .with("mine/libcudart-of-mine.so", &runtime_library(12040))
                .set("TCUDA_CUDART_PATH", "{}/mine/libcudart-of-mine.so")
        },
        || {
            let r = opened();
            assert_eq!(r.version, 12040);
            assert_says(&r.reason, &["mine/libcudart-of-mine.so", "TCUDA_CUDART_PATH"]);
        },
    );
}

#[test]
fn a_broken_path_given_is_an_error() {
    let name = "a_broken_path_given_is_an_error";
    for path in ["{}/none.so", "{}/loader/libcudart.so.11.0", "{}/loader"] {
        case(
            name,
            |m| {
                m.with("loader/libcuda.so.1", &driver(13000))
                    .with("loader/libcudart.so.13", &runtime_library(13000))
                    .set("TCUDA_CUDART_PATH", path)
            },
            || {
                let text = refused(Status::TCUDA_ERROR_NO_DEVICE);
                let given = std::env::var("TCUDA_CUDART_PATH").unwrap();
                assert_says(&text, &["looked for in TCUDA_CUDART_PATH: ", &given, "Correct TCUDA_CUDART_PATH"]);
            },
        );
    }
}

#[test]
fn every_folder_is_searched() {
    let name = "every_folder_is_searched";
    let wheel = "lib/python3.12/site-packages/nvidia";
    for (place, variable, value) in [
        ("toolkit/lib64/libcudart.so.12".into(), "CUDA_HOME", "{}/toolkit"),
        ("toolkit/lib/libcudart.so.12".into(), "CUDA_PATH", "{}/toolkit"),
        ("local/cuda-12.4/lib64/libcudart.so.12".into(), "UNUSED", ""),
        (format!("venv/{wheel}/cuda_runtime/lib/libcudart.so.12"), "VIRTUAL_ENV", "{}/venv"),
        (format!("local/{wheel}/cuda_runtime/lib/libcudart.so.12"), "UNUSED", ""),
        ("local/lib/python3.12/dist-packages/nvidia/cuda_runtime/lib/libcudart.so.12".into(), "UNUSED", ""),
        ("conda/lib/libcudart.so.12".into(), "CONDA_PREFIX", "{}/conda"),
    ] {
        case(
            name,
            |m| {
                m.with("loader/libcuda.so.1", &driver(12040))
                    .with(&place, &runtime_library(12040))
                    .set(variable, value)
                    .set("PLACE", &place)
            },
            || assert_says(&opened().reason, &[&std::env::var("PLACE").unwrap()]),
        );
    }
}

#[test]
fn the_wheels_of_a_python_on_the_path_are_found() {
    case(
        "the_wheels_of_a_python_on_the_path_are_found",
        |m| {
            let python = m.root.join("base/bin/python3.12");
            std::fs::create_dir_all(python.parent().unwrap()).unwrap();
            std::fs::create_dir_all(m.root.join("bin")).unwrap();
            std::fs::write(&python, "").unwrap();
            std::os::unix::fs::symlink(&python, m.root.join("bin/python3")).unwrap();
            m.with("loader/libcuda.so.1", &driver(13000))
                .with("base/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13", &runtime_library(13000))
        },
        || assert_says(&opened().reason, &["base/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13"]),
    );
}

#[test]
fn many_threads_start_at_once() {
    case(
        "many_threads_start_at_once",
        |m| m.with("loader/libcuda.so.1", &driver(13000)).with("loader/libcudart.so.13", &runtime_library(13000)),
        || {
            std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..8).map(|_| scope.spawn(|| std::ptr::from_ref(tcuda::runtime::runtime().unwrap()) as usize)).collect();
                let runtimes: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
                assert!(runtimes.iter().all(|runtime| *runtime == runtimes[0]));
            });
            assert_eq!(tcuda::runtime::backend_name(), "cuda");
            assert_eq!(calls("libcudart.so.13", "fake_runtime_calls", "cudaGetDeviceCount"), 1);
        },
    );
}

#[test]
fn without_a_device_the_simulated_one_is_offered_not_taken() {
    case(
        "without_a_device_the_simulated_one_is_offered_not_taken",
        |m| m,
        || {
            assert_eq!(tcuda::runtime::backend_name(), "none");
            assert_says(&tcuda::runtime::backend_reason(), &["no NVIDIA driver", "TCUDA_BACKEND=sim"]);
        },
    );
}
