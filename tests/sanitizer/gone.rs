//! Streams and memory that come from elsewhere, or go.

use crate::kit::*;
use crate::{kinds_of, report, turn};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tcuda::capi::copy::tcuda_memset_async;
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::event::*;
use tcuda::capi::ipc::*;
use tcuda::capi::memory::*;
use tcuda::capi::plugin::*;
use tcuda::capi::pool::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::runtime::runtime;

const THREADS_OWN: tcuda_stream_t = 2 as tcuda_stream_t;

/// Of another library, and in order with the default stream.
fn blocking() -> tcuda_stream_t {
    runtime().unwrap().stream_create(0, 0).unwrap() as tcuda_stream_t
}

#[test]
fn whenever_a_stream_is_seen_first_it_is_known_whether_it_blocks() {
    let _turn = turn();
    let captured_first = |_| {
        let (stream, [own]) = (blocking(), streams());
        let block = block(own);
        let graph = captured(stream, || fill(block, stream));
        ok(tcuda::capi::graph::tcuda_graph_destroy(graph));
        fill(block, stream);
        kernel(block, READ, NULL);
    };
    fn freed_on(stream: tcuda_stream_t) {
        let [own] = streams();
        let (freed, block) = (block(own), block(own));
        ok(unsafe { tcuda_free_cached_on(freed, stream) });
        fill(block, stream);
        kernel(block, READ, NULL);
    }
    let freed_first = |_| freed_on(blocking());
    let a_thread_frees_first = |_| std::thread::spawn(|| freed_on(THREADS_OWN)).join().unwrap();
    for program in [captured_first as fn(bool), freed_first, a_thread_frees_first] {
        assert_eq!(kinds_of(program, true), [""; 0]);
    }
}

static REGION: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn gives(_: usize, _: i32, _: tcuda_stream_t, _: *mut c_void) -> *mut c_void {
    REGION.load(Relaxed) as *mut c_void
}

unsafe extern "C" fn takes(_: *mut c_void, _: usize, _: i32, _: tcuda_stream_t, _: *mut c_void) {}

/// All of its blocks were freed, and what they lay in is the program's again.
#[test]
fn memory_that_the_cache_gave_back_is_free_no_more() {
    const LENT: usize = 32 << 20;
    let _turn = turn();
    let program = |_| {
        let [one] = streams();
        let lent = runtime().unwrap().malloc(LENT).unwrap();
        REGION.store(lent, Relaxed);
        let (mut plugin, mut pool) = (null_mut(), null_mut());
        unsafe {
            ok(tcuda_pluggable_allocator_create(&mut plugin, Some(gives), Some(takes), null_mut()));
            let mut options: tcuda_mem_pool_options_t = std::mem::zeroed();
            (options.struct_size, options.allocator) = (size_of::<tcuda_mem_pool_options_t>(), plugin);
            ok(tcuda_mem_pool_create(&mut pool, 0, &options));
            let blocks = [(); 3].map(|()| {
                let mut block = null_mut();
                ok(tcuda_mem_pool_malloc(&mut block, SIZE, one, pool));
                block
            });
            blocks.into_iter().for_each(free);
            synchronize(one);
            ok(tcuda_mem_pool_trim(pool));
            ok(tcuda_memset_async(lent as *mut c_void, 1, LENT, one));
            synchronize(one);
            ok(tcuda_mem_pool_destroy(pool));
            ok(tcuda_pluggable_allocator_destroy(plugin));
        }
        runtime().unwrap().free(lent).unwrap();
    };
    assert_eq!(kinds_of(program, true), [""; 0]);
}

/// The first one was recorded and is gone; the second has its clock's place.
#[test]
fn a_stream_that_was_recorded_is_not_the_next_one() {
    let _turn = turn();
    let program = |bug: bool| {
        let ([one, first], block) = filled();
        after(first, one);
        fill(block, first);
        ok(tcuda_synchronize(0));
        ok(unsafe { tcuda_stream_destroy(first) });
        let [second] = streams();
        after(second, one);
        kernel(block, WRITE, second);
        if !bug {
            ok(unsafe { tcuda_record_stream(block, second) });
        }
        free(block);
    };
    assert_eq!((kinds_of(program, true), kinds_of(program, false)), (vec!["free-in-use".into()], vec![]));
}

/// It is waited for by the cache, though nobody has waited for it here.
#[test]
fn a_stream_that_was_recorded_stays_so_when_it_is_gone() {
    let _turn = turn();
    let program = |_| {
        let ([one, first], block) = filled();
        after(first, one);
        fill(block, first);
        ok(unsafe { tcuda_stream_destroy(first) });
        free(block);
    };
    assert_eq!(kinds_of(program, true), [""; 0]);
}

/// Whether the stream is idle when it is asked, or not.
#[test]
fn an_export_asks_for_itself() {
    let _turn = turn();
    let program = |bug: bool| {
        let ([one, two], target) = filled();
        let other = block(one);
        std::thread::sleep(Duration::from_millis(20));
        let (mut handle, mut here) = (tcuda_ipc_handle_t { bytes: [0; 64] }, null_mut());
        ok(unsafe { tcuda_ipc_export(&mut handle, other, SIZE, 1, one) });
        let behind = if bug { one } else { two };
        ok(unsafe { tcuda_ipc_import(&mut here, null_mut(), null_mut(), &handle, behind) });
        kernel(target, READ, two);
        ok(unsafe { tcuda_ipc_close(here, behind) });
    };
    assert_eq!((kinds_of(program, true), kinds_of(program, false)), (vec!["race".into()], vec![]));
}

/// Another process may have recorded it by now, behind all that is done here.
#[test]
fn an_event_that_others_can_open_may_be_recorded_by_them() {
    let _turn = turn();
    let program = |bug: bool| {
        let ([_, two], block) = filled();
        let (mut event, mut handle) = (null_mut(), tcuda_ipc_event_handle_t { bytes: [0; 64] });
        ok(unsafe { tcuda_event_create(&mut event, 6) });
        if !bug {
            record(event, two);
            ok(unsafe { tcuda_event_ipc_handle(&mut handle, event) });
            record(event, two);
        }
        wait(event, two);
        ok(unsafe { tcuda_event_synchronize(event) });
        if !bug {
            kernel(block, READ, two);
        }
        ok(unsafe { tcuda_event_destroy(event) });
    };
    assert_eq!((kinds_of(program, true), kinds_of(program, false)), (vec!["event-never-recorded".to_owned(); 2], vec![]));
}

#[test]
fn freed_memory_is_of_its_device_still() {
    let _turn = turn();
    let program = |_| {
        let one = stream_on(1);
        let block = block(one);
        free(block);
        kernel(block, READ, NULL);
        assert!(report(0, 1).contains("the default stream of device 1"), "{}", report(0, 1));
    };
    assert_eq!(kinds_of(program, true), ["use-after-free"]);
}
