//! The simulated device through the C API: configured first, then faults, counts, loss and what lives. One machine for all tests here,
//! so they take turns.

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, Once};
use tcuda::base::Status::{self, *};
use tcuda::capi::{device::*, error::*, event::*, init::*, memory::tcuda_empty_cache, sim::*, stream::*};
use tcuda::event::pool::Pooled;
use tcuda::runtime::table::Table;

static TURN: Mutex<()> = Mutex::new(());
static START: Once = Once::new();

fn options(devices: i32) -> tcuda_sim_options_t {
    let struct_size = size_of::<tcuda_sim_options_t>();
    tcuda_sim_options_t { struct_size, memory: 0, seed: 0, peers: null(), devices, launch_blocking: 0 }
}

/// The machine of all tests: four devices of 64 MiB, of which the first two reach each other; one test loses the last.
fn machine() -> MutexGuard<'static, ()> {
    let guard = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    START.call_once(|| {
        let configure = |options: tcuda_sim_options_t| unsafe { tcuda_sim_configure(&options) };
        assert_eq!(unsafe { tcuda_sim_configure(null()) }, TCUDA_ERROR_INVALID_ARGUMENT);
        assert_eq!(configure(tcuda_sim_options_t { struct_size: 0, ..options(1) }), TCUDA_ERROR_INVALID_ARGUMENT);
        for devices in [65, -1] {
            assert_eq!(configure(options(devices)), TCUDA_ERROR_INVALID_ARGUMENT);
        }
        assert_eq!(configure(tcuda_sim_options_t { memory: 1, ..options(0) }), TCUDA_ERROR_INVALID_ARGUMENT);
        assert_eq!(configure(tcuda_sim_options_t { peers: c"0-3".as_ptr(), ..options(3) }), TCUDA_ERROR_INVALID_ARGUMENT);
        assert_eq!(configure(tcuda_sim_options_t { memory: 64 << 20, peers: c"0-1".as_ptr(), ..options(4) }), TCUDA_SUCCESS);
        let init = tcuda_init_options_t {
            struct_size: size_of::<tcuda_init_options_t>(),
            backend: c"sim".as_ptr(),
            cudart_path: null(),
            alloc_conf: null(),
        };
        assert_eq!(unsafe { tcuda_init(&init) }, TCUDA_SUCCESS);
        assert_eq!(configure(options(1)), TCUDA_ERROR_INVALID_STATE);
    });
    assert_eq!(tcuda_sim_clear_faults(), TCUDA_SUCCESS);
    assert_eq!(tcuda_sim_reset_call_counts(), TCUDA_SUCCESS);
    guard
}

fn live(device: i32) -> Result<tcuda_sim_live_t, Status> {
    let mut live: tcuda_sim_live_t = unsafe { std::mem::zeroed() };
    live.struct_size = size_of::<tcuda_sim_live_t>();
    match unsafe { tcuda_sim_live(&mut live, device) } {
        TCUDA_SUCCESS => Ok(live),
        status => Err(status),
    }
}

fn count(call: &str) -> u64 {
    let (mut count, call) = (0, CString::new(call).unwrap());
    let name: *const c_char = if call.is_empty() { null() } else { call.as_ptr() };
    assert_eq!(unsafe { tcuda_sim_call_count(&mut count, name) }, TCUDA_SUCCESS);
    count
}

fn message() -> String {
    unsafe { CStr::from_ptr(tcuda_last_error_message()) }.to_string_lossy().into_owned()
}

#[test]
fn the_machine_is_as_configured() {
    let _turn = machine();
    let (mut devices, mut can) = (0, false);
    assert_eq!(unsafe { tcuda_device_count(&mut devices) }, TCUDA_SUCCESS);
    assert_eq!(devices, 4);
    for (device, peer, expected) in [(0, 1, true), (1, 0, true), (0, 2, false), (2, 1, false)] {
        assert_eq!(unsafe { tcuda_can_device_access_peer(&mut can, device, peer) }, TCUDA_SUCCESS);
        assert_eq!(can, expected, "{device} {peer}");
    }
}

#[test]
fn a_fault_strikes_the_call_it_was_made_for() {
    let _turn = machine();
    let mut event = null_mut();
    let create = |event: &mut _| unsafe { tcuda_event_create(event, 2) };
    assert_eq!(unsafe { tcuda_sim_fail_at(c"cudaEventCreateWithFlags".as_ptr(), 2, 2) }, TCUDA_SUCCESS);
    let mut events = Vec::new();
    let mut failed = 0;
    // tcuda may keep events: made until the fault has struck.
    for _ in 0..100 {
        match create(&mut event) {
            TCUDA_SUCCESS => events.push(event),
            status => {
                assert_eq!(status, TCUDA_ERROR_OUT_OF_MEMORY);
                assert!(message().contains("cudaEventCreateWithFlags"), "{}", message());
                failed += 1;
            }
        }
        // An event of tcuda may come to CUDA only when it is recorded.
        if let Some(last) = events.last() {
            failed += usize::from(unsafe { tcuda_event_record(*last, null_mut()) } == TCUDA_ERROR_OUT_OF_MEMORY);
        }
    }
    assert_eq!(failed, 1);
    for event in events {
        assert_eq!(unsafe { tcuda_event_destroy(event) }, TCUDA_SUCCESS);
    }
    // What the driver does not explain is no loss unless it stays.
    assert_eq!(unsafe { tcuda_sim_fail_at(c"cudaDeviceSynchronize".as_ptr(), 1, 999) }, TCUDA_SUCCESS);
    assert_eq!(tcuda_synchronize(1), TCUDA_ERROR_CUDA);
    assert!(message().contains("cudaErrorUnknown, 999") && message().contains("may be as good as before"), "{}", message());
    assert_eq!(tcuda_synchronize(1), TCUDA_SUCCESS);
    // Of the default stream of device 1.
    let stream = std::ptr::without_provenance_mut(0x101);
    assert_eq!(unsafe { tcuda_sim_fail_at(c"cudaStreamSynchronize".as_ptr(), 1, 999) }, TCUDA_SUCCESS);
    assert_eq!(unsafe { tcuda_stream_synchronize(stream) }, TCUDA_ERROR_CUDA);
    assert_eq!(unsafe { tcuda_stream_synchronize(stream) }, TCUDA_SUCCESS);
    assert_eq!(unsafe { tcuda_sim_fail_at(c"malloc".as_ptr(), 1, 2) }, TCUDA_ERROR_INVALID_ARGUMENT);
    assert!(message().contains("malloc"));
    assert_eq!(unsafe { tcuda_sim_fail_at(null(), 1, 0) }, TCUDA_ERROR_INVALID_ARGUMENT);
}

#[test]
fn calls_are_counted_and_streams_kept_busy() {
    let _turn = machine();
    let before = live(-3).unwrap();
    let mut stream = null_mut();
    assert_eq!(unsafe { tcuda_stream_create(&mut stream, 1, 0) }, TCUDA_SUCCESS);
    assert_eq!(count("cudaStreamCreateWithPriority"), 1);
    assert!(count("") >= 1);
    assert_eq!(live(-3).unwrap().streams, before.streams + 1);
    assert_eq!((0..4).map(|device| live(device).unwrap().streams).sum::<u64>(), before.streams + 1);
    assert_eq!(unsafe { tcuda_sim_delay(stream, 300_000_000) }, TCUDA_SUCCESS);
    let mut done = true;
    assert_eq!(unsafe { tcuda_stream_query(stream, &mut done) }, TCUDA_SUCCESS);
    assert!(!done);
    assert_eq!(unsafe { tcuda_stream_synchronize(stream) }, TCUDA_SUCCESS);
    assert_eq!(unsafe { tcuda_stream_query(stream, &mut done) }, TCUDA_SUCCESS);
    assert!(done);
    assert_eq!(unsafe { tcuda_sim_delay(stream, u64::MAX) }, TCUDA_ERROR_INVALID_ARGUMENT);
    assert_eq!(unsafe { tcuda_stream_destroy(stream) }, TCUDA_SUCCESS);
    // tcuda may keep it for the next who wants one.
    assert!(live(-3).unwrap().streams <= before.streams + 1);
    assert_eq!(unsafe { tcuda_sim_call_count(null_mut(), null()) }, TCUDA_ERROR_INVALID_ARGUMENT);
    assert_eq!(unsafe { tcuda_sim_live(null_mut(), 0) }, TCUDA_ERROR_INVALID_ARGUMENT);
    for device in [4, -2, i32::MAX, i32::MIN] {
        assert_eq!(live(device).err(), Some(TCUDA_ERROR_INVALID_DEVICE));
        assert_eq!(tcuda_sim_set_memory(0, device), TCUDA_ERROR_INVALID_DEVICE);
        assert_eq!(tcuda_sim_lose_device(device, 719), TCUDA_ERROR_INVALID_DEVICE);
    }
}

#[test]
fn stream_ordered_memory_goes_by_the_table() {
    use tcuda::runtime::api::MemPoolAttribute::*;
    use tcuda::runtime::table::{MemAccess, MemLocation};
    let _turn = machine();
    let r = tcuda::runtime::runtime().unwrap();
    assert!(r.has_async_allocations());
    assert_eq!((r.device_attribute(115, 1).unwrap(), r.set_device(1)), (1, Ok(())));
    let pool = r.default_mem_pool(1).unwrap();
    assert_ne!(pool, r.default_mem_pool(0).unwrap());
    let (before, stream) = (live(1).unwrap(), r.stream_create(1, 0).unwrap());
    r.set_mem_pool_attribute(pool, ReleaseThreshold, u64::MAX).unwrap();
    let address = r.malloc_async(5 << 20, stream).unwrap();
    r.memset_async(address, 7, 5 << 20, stream).unwrap();
    assert_eq!(r.address_range(address + 12345).unwrap(), (address, 5 << 20));
    let values = || [UsedCurrent, UsedHigh, ReservedCurrent, ReservedHigh].map(|one| r.mem_pool_attribute(pool, one).unwrap());
    assert_eq!(values(), [6 << 20; 4]);
    assert_eq!(live(1).unwrap().blocks, before.blocks + 1);
    r.free_async(address, stream).unwrap();
    r.stream_synchronize(stream).unwrap();
    assert_eq!((values(), live(1).unwrap().blocks), ([0, 6 << 20, 6 << 20, 6 << 20], before.blocks));
    assert_eq!(r.mem_get_info().unwrap().0, 58 << 20);
    r.mem_pool_trim(pool, 0).unwrap();
    r.set_mem_pool_attribute(pool, UsedHigh, 0).unwrap();
    r.set_mem_pool_attribute(pool, ReservedHigh, 0).unwrap();
    assert_eq!((values(), r.mem_get_info().unwrap().0), ([0; 4], 64 << 20));
    let access = |id, flags| MemAccess { location: MemLocation { kind: 1, id }, flags };
    assert_eq!(r.mem_pool_set_access(pool, &[access(0, 3)]), Ok(()));
    assert_eq!(r.mem_pool_set_access(pool, &[access(2, 3)]).unwrap_err().status, TCUDA_ERROR_INVALID_DEVICE);

    // Every call can fail on demand, says its name and changes nothing.
    let address = r.malloc_async(1, stream).unwrap();
    let (at_first, live_at_first) = (values(), live(1).unwrap().blocks);
    for call in Table::OPTIONAL.iter().filter(|name| !name.starts_with("cudaStream")).chain(&["cuMemGetAddressRange_v2"]) {
        let name = CString::new(*call).unwrap();
        assert_eq!(unsafe { tcuda_sim_fail_at(name.as_ptr(), 1, 2) }, TCUDA_SUCCESS);
        let outcome = match *call {
            "cudaMallocAsync" => r.malloc_async(1, stream).map(|_| ()),
            "cudaFreeAsync" => r.free_async(address, stream),
            "cudaDeviceGetDefaultMemPool" => r.default_mem_pool(1).map(|_| ()),
            "cudaMemPoolSetAttribute" => r.set_mem_pool_attribute(pool, ReleaseThreshold, 0),
            "cudaMemPoolGetAttribute" => r.mem_pool_attribute(pool, UsedHigh).map(|_| ()),
            "cudaMemPoolSetAccess" => r.mem_pool_set_access(pool, &[]),
            "cudaMemPoolTrimTo" => r.mem_pool_trim(pool, 0),
            "cudaGraphInstantiateWithFlags" => r.graph_instantiate(1).map(|_| ()),
            "cudaEventRecordWithFlags" => r.event_record_external(1, stream),
            "cudaProfilerStart" => r.profiler_start(),
            "cudaProfilerStop" => r.profiler_stop(),
            "cudaGraphDebugDotPrint" => r.graph_dot(1, std::path::Path::new("never")),
            _ => r.address_range(address).map(|_| ()),
        };
        let error = outcome.expect_err(call);
        assert!(error.status == TCUDA_ERROR_OUT_OF_MEMORY && error.message.contains(call), "{call}: {error}");
        assert_eq!(
            (values(), live(1).unwrap().blocks, r.mem_pool_attribute(pool, ReleaseThreshold).unwrap()),
            (at_first, live_at_first, u64::MAX)
        );
    }
    r.free_async(address, stream).unwrap();
    r.stream_synchronize(stream).unwrap();
    r.set_mem_pool_attribute(pool, ReleaseThreshold, 0).unwrap();
    r.stream_synchronize(stream).unwrap();
    assert_eq!((values()[2], r.mem_get_info().unwrap().0), (0, 64 << 20));
    r.mem_pool_set_access(pool, &[access(0, 0)]).unwrap();
    r.stream_destroy(stream).unwrap();
    r.set_device(0).unwrap();
}

#[test]
fn memory_shrinks_and_comes_back() {
    let _turn = machine();
    let info = || {
        let (mut free, mut total) = (0, 0);
        assert_eq!(unsafe { tcuda_mem_get_info(&mut free, &mut total, 1) }, TCUDA_SUCCESS);
        (free, total)
    };
    assert_eq!(info(), (64 << 20, 64 << 20));
    assert_eq!(tcuda_sim_set_memory(5 << 20, 1), TCUDA_SUCCESS);
    assert_eq!(info(), (4 << 20, 64 << 20));
    for all in [64 << 20, 65 << 20, u64::MAX] {
        assert_eq!(tcuda_sim_set_memory(all, -3), TCUDA_SUCCESS);
        assert_eq!(info(), (64 << 20, 64 << 20));
    }
}

/// Who gives an event back may hold a lock that other threads' frees need.
#[test]
fn events_are_destroyed_by_who_takes_one() {
    const SHARED: u64 = 1024;
    let _turn = machine();
    let take = |count: u64| (0..count).map(|_| Pooled::take(1).unwrap()).collect::<Vec<_>>();
    let (before, destroyed) = (live(1).unwrap().events, count("cudaEventDestroy"));
    drop(take(SHARED + 200));
    assert_eq!((live(1).unwrap().events - before, count("cudaEventDestroy")), (SHARED + 200, destroyed));
    // One of the surplus for each.
    (0..20).for_each(|_| drop(take(100)));
    let left = live(1).unwrap().events - before;
    assert!((SHARED..=SHARED + 20).contains(&left), "{left} events");
    // All of it where caches are emptied.
    drop(take(SHARED + 200));
    assert_eq!(tcuda_empty_cache(0), TCUDA_SUCCESS);
    assert_eq!(live(1).unwrap().events - before, SHARED + 200);
    assert_eq!(tcuda_empty_cache(1), TCUDA_SUCCESS);
    let left = live(1).unwrap().events - before;
    assert!((SHARED..=SHARED + 20).contains(&left), "{left} events");
}

#[test]
fn a_lost_device_stays_lost_and_the_others_work() {
    let _turn = machine();
    assert_eq!(tcuda_sim_lose_device(3, 0), TCUDA_ERROR_INVALID_ARGUMENT);
    assert_eq!(tcuda_sim_lose_device(3, 999), TCUDA_SUCCESS);
    for _ in 0..2 {
        assert_eq!(tcuda_synchronize(3), TCUDA_ERROR_DEVICE_LOST);
        assert!(!message().contains("may be as good"), "{}", message());
    }
    assert_eq!(tcuda_synchronize(0), TCUDA_SUCCESS);
    assert!(live(3).is_ok());
}
