//! Callers in a hurry: a handle in the hands of several threads, of which some end it, at any moment of the others' calls. Each call is done or
//! is told that there is no such handle; one thread ends it; nothing is left, and nobody waits.

use crate::graph::{OWN, THREAD_LOCAL, is_capturing};
use crate::jit_kit::*;
use crate::kit::*;
use crate::reference::F32;
use crate::tensor::Managed;
use crate::{fails, get, ok, tests};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};
use tcuda::base::dlpack::tcuda_tensor_t;
use tcuda::base::status::tcuda_status_t::{self, *};
use tcuda::capi::communicator::*;
use tcuda::capi::copy::tcuda_memset_async;
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::distributions::tcuda_random_uniform;
use tcuda::capi::graph::*;
use tcuda::capi::graphed::*;
use tcuda::capi::green::*;
use tcuda::capi::ipc::*;
use tcuda::capi::jit::*;
use tcuda::capi::memory::*;
use tcuda::capi::nvtx::*;
use tcuda::capi::pool::*;
use tcuda::capi::pressure::*;
use tcuda::capi::random::*;
use tcuda::capi::snapshot::*;
use tcuda::capi::stream::tcuda_stream_synchronize;
use tcuda::capi::structs::tcuda_stream_t;

tests![
    graphs_that_are_ended_beside_calls,
    graphed_callables_that_are_ended_beside_calls,
    generators_that_are_ended_beside_calls,
    functions_that_are_ended_beside_calls: [Compiler],
    communicators_that_are_ended_beside_calls: [Communicators],
    pools_that_are_ended_beside_calls,
    green_contexts_that_are_ended_beside_calls: [GreenContexts],
    snapshots_and_domains_that_are_ended_beside_calls,
    shared_memory_that_is_ended_beside_calls,
    a_graph_that_is_reset_while_it_gets_memory,
];

/// What may come of a call beside the end of its handle.
const FINE: [tcuda_status_t; 5] =
    [TCUDA_SUCCESS, TCUDA_ERROR_INVALID_HANDLE, TCUDA_ERROR_INVALID_STATE, TCUDA_ERROR_NOT_READY, TCUDA_ERROR_CAPTURE];

/// Threads that end a handle.
const ENDS: usize = 3;

type Call<'a> = &'a (dyn Fn(usize, tcuda_stream_t) -> tcuda_status_t + Sync);

/// Each call over and over on a thread and a stream of its own, until the handle is gone, and some threads that end it.
fn hurry(rounds: usize, make: impl Fn() -> usize, calls: &[Call], end: Call) {
    let streams: Vec<Own> = (0..calls.len() + ENDS).map(|_| Own::on(0)).collect();
    for round in 0..rounds {
        let handle = make();
        let (start, ended) = (Barrier::new(calls.len() + ENDS), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for (at, stream) in streams.iter().enumerate() {
                let (stream, start, ended) = (stream.0 as usize, &start, &ended);
                scope.spawn(move || {
                    let call = |call: Call| {
                        let status = call(handle, stream as tcuda_stream_t);
                        assert!(FINE.contains(&status), "call {at}: {status:?}: {}", message());
                        status
                    };
                    start.wait();
                    if at < calls.len() {
                        while call(calls[at]) != TCUDA_ERROR_INVALID_HANDLE {}
                        return;
                    }
                    // At another moment each time.
                    (0..round * 50).for_each(|_| std::hint::spin_loop());
                    loop {
                        match call(end) {
                            TCUDA_SUCCESS => {
                                ended.fetch_add(1, SeqCst);
                                return;
                            }
                            TCUDA_ERROR_INVALID_HANDLE => return,
                            _ => std::thread::yield_now(),
                        }
                    }
                });
            }
        });
        assert_eq!(ended.load(SeqCst), 1, "one ends it");
    }
    for stream in streams {
        assert!(!is_capturing(stream.0));
        ok!(tcuda_stream_synchronize(stream.0));
    }
}

/// Who captures in it or has it open, for which nobody else can end it, lets others come.
fn give_way() {
    std::thread::yield_now();
}

fn graphs_that_are_ended_beside_calls() {
    let block = allocate(4096, default_of(0)) as usize;
    let graph = |handle: usize| handle as tcuda_graph_t;
    let capture = |handle: usize, stream: tcuda_stream_t| {
        let begun = tcuda_graph_capture_begin(graph(handle), stream, OWN, THREAD_LOCAL);
        if begun != TCUDA_SUCCESS {
            return begun;
        }
        ok!(tcuda_memset_async(block as *mut c_void, 1, 4096, stream));
        let ended = tcuda_graph_capture_end(graph(handle));
        assert_ne!(ended, TCUDA_ERROR_INVALID_HANDLE, "it is nobody else's to end");
        give_way();
        ended
    };
    hurry(
        100,
        || get!(null_mut(), out => tcuda_graph_create(out, 0)) as usize,
        &[
            &capture,
            &capture,
            &|handle, stream| tcuda_graph_replay(graph(handle), stream),
            &|handle, _| tcuda_graph_reset(graph(handle)),
            &|handle, _| tcuda_graph_instantiate(graph(handle)),
        ],
        &|handle, _| tcuda_graph_destroy(graph(handle)),
    );
    free(block as *mut c_void);
    empty_caches();
}

unsafe extern "C" fn fills(
    _: *const tcuda_tensor_t,
    _: usize,
    _: *const tcuda_tensor_t,
    _: usize,
    stream: tcuda_stream_t,
    block: *mut c_void,
) -> i32 {
    unsafe { tcuda_memset_async(block, 1, 4096, stream) as i32 }
}

fn graphed_callables_that_are_ended_beside_calls() {
    let block = allocate(4096, default_of(0));
    let callable =
        tcuda_callable_t { function: Some(fills), user_data: block, inputs: null(), input_count: 0, outputs: null(), output_count: 0 };
    let call = |handle: usize, stream| unsafe { tcuda_graphed_callable_call(handle as tcuda_graphed_callable_t, 0, null(), 0, stream) };
    hurry(
        50,
        || {
            // The one before writes there too, and nothing orders the two.
            ok!(tcuda_synchronize(0));
            get!(null_mut(), out => tcuda_graphed_callable_create(out, &callable, 1, 0, OWN, NULL)) as usize
        },
        &[&call, &call],
        &|handle, _| tcuda_graphed_callable_destroy(handle as tcuda_graphed_callable_t),
    );
    free(block);
    empty_caches();
}

fn generators_that_are_ended_beside_calls() {
    let out = Managed::empty(0, F32, &[1000]);
    let tensor = out.tensor() as *const tcuda_tensor_t as usize;
    let generator = |handle: usize| handle as tcuda_generator_t;
    hurry(
        100,
        || get!(null_mut(), out => tcuda_generator_create(out, 0)) as usize,
        &[
            &|handle, stream| unsafe { tcuda_random_uniform(tensor as *const _, 0.0, 1.0, generator(handle), stream) },
            &|handle, _| tcuda_generator_manual_seed(generator(handle), 7),
            &|handle, _| unsafe { tcuda_generator_get_state(generator(handle), [0; 16].as_mut_ptr(), 16) },
            &|handle, _| {
                let mut clone = null_mut();
                let status = unsafe { tcuda_generator_clone(&mut clone, generator(handle)) };
                ok!(tcuda_generator_destroy(clone));
                status
            },
        ],
        &|handle, _| tcuda_generator_destroy(generator(handle)),
    );
}

fn functions_that_are_ended_beside_calls() {
    let source = std::ffi::CString::new(ADD).unwrap();
    let tensor = Managed::empty(0, F32, &[100]);
    let tensor = tensor.tensor() as *const tcuda_tensor_t as usize;
    // All on one stream: they write the same.
    let call = |handle: usize, _| {
        let list = [tensor as *const tcuda_tensor_t; 2];
        unsafe { tcuda_jit_call_out(handle as tcuda_jit_t, list.as_ptr(), 1, list.as_ptr(), 2, null(), 0, NULL) }
    };
    hurry(
        100,
        || get!(null_mut(), out => tcuda_jit_create(out, source.as_ptr(), null(), 0)) as usize,
        &[&call, &call, &call],
        &|handle, _| tcuda_jit_destroy(handle as tcuda_jit_t),
    );
}

fn communicators_that_are_ended_beside_calls() {
    let tensor = Managed::empty(0, F32, &[100]);
    let tensor = tensor.tensor() as *const tcuda_tensor_t as usize;
    // The default stream may still use that memory.
    ok!(tcuda_synchronize(0));
    let comm = |handle: usize| handle as tcuda_communicator_t;
    let reduce = |handle: usize, stream| unsafe {
        tcuda_communicator_all_reduce(comm(handle), tensor as *const _, tensor as *const _, TCUDA_REDUCE_SUM, stream)
    };
    let calls: [Call; 6] = [
        &reduce,
        &|handle, stream| {
            ok!(tcuda_communicator_group_start());
            let called = reduce(handle, stream);
            let ended = tcuda_communicator_group_end();
            if called == TCUDA_SUCCESS { ended } else { called }
        },
        &|handle, _| unsafe { tcuda_communicator_query(comm(handle), &mut false) },
        &|handle, stream| unsafe { tcuda_communicator_synchronize(comm(handle), stream, 10_000) },
        &|handle, _| {
            let mut part = null_mut();
            let status = unsafe { tcuda_communicator_split(&mut part, comm(handle), 0, 0, null()) };
            ok!(tcuda_communicator_destroy(part));
            status
        },
        &|handle, _| tcuda_communicator_abort(comm(handle)),
    ];
    // With one that aborts, and without.
    for count in [5, 6] {
        hurry(
            20,
            || {
                let mut id = tcuda_communicator_id_t { bytes: [0; 128] };
                ok!(tcuda_communicator_unique_id(&mut id));
                get!(null_mut(), out => tcuda_communicator_init_rank(out, 1, &id, 0, 0, null())) as usize
            },
            &calls[..count],
            // It ends in any case, also where it is told that it was aborted; then nobody has waited for what it did to the tensor.
            &|handle, _| match tcuda_communicator_destroy(comm(handle)) {
                TCUDA_SUCCESS | TCUDA_ERROR_INVALID_STATE => tcuda_synchronize(0),
                status => status,
            },
        );
    }
}

fn pools_that_are_ended_beside_calls() {
    let pool = |handle: usize| handle as tcuda_mem_pool_t;
    hurry(
        100,
        || get!(null_mut(), out => tcuda_mem_pool_create(out, 0, null())) as usize,
        &[
            &|handle, stream| {
                let mut block = null_mut();
                let status = unsafe { tcuda_mem_pool_malloc(&mut block, 5000, stream, pool(handle)) };
                ok!(tcuda_free_cached(block));
                status
            },
            &|handle, stream| {
                let begun = tcuda_mem_pool_begin(pool(handle));
                if begun == TCUDA_SUCCESS {
                    free(allocate(100, stream));
                    ok!(tcuda_mem_pool_end(pool(handle)));
                }
                give_way();
                begun
            },
            &|handle, _| tcuda_mem_pool_trim(pool(handle)),
        ],
        &|handle, _| tcuda_mem_pool_destroy(pool(handle)),
    );
    empty_caches();
}

fn green_contexts_that_are_ended_beside_calls() {
    let green = |handle: usize| handle as tcuda_green_context_t;
    hurry(
        50,
        || get!(null_mut(), out => tcuda_green_context_create(out, 1, 0)) as usize,
        &[&|handle, _| unsafe { tcuda_green_context_stream(&mut null_mut(), green(handle)) }, &|handle, _| unsafe {
            tcuda_green_context_num_sms(green(handle), &mut 0)
        }],
        &|handle, _| tcuda_green_context_destroy(green(handle)),
    );
    empty_caches();
}

fn snapshots_and_domains_that_are_ended_beside_calls() {
    let snapshot = |handle: usize| handle as tcuda_snapshot_t;
    hurry(
        100,
        || get!(null_mut(), out => tcuda_memory_snapshot(out, 0)) as usize,
        &[&|handle, _| unsafe { tcuda_snapshot_write(snapshot(handle), c"/dev/null".as_ptr()) }],
        &|handle, _| unsafe { tcuda_snapshot_destroy(snapshot(handle)) },
    );
    let domain = |handle: usize| handle as tcuda_nvtx_domain_t;
    hurry(
        100,
        || get!(null_mut(), out => tcuda_nvtx_domain_create(out, c"a".as_ptr())) as usize,
        &[&|handle, _| unsafe { tcuda_nvtx_domain_name_category(domain(handle), 1, c"b".as_ptr()) }],
        &|handle, _| tcuda_nvtx_domain_destroy(domain(handle)),
    );
}

fn shared_memory_that_is_ended_beside_calls() {
    let block = allocate(5000, default_of(0));
    let handle = get!(tcuda_ipc_handle_t { bytes: [0; 64] }, out => tcuda_ipc_export(out, block, 5000, 0, default_of(0)));
    let threads: Vec<Own> = (0..3).map(|_| Own::on(0)).collect();
    std::thread::scope(|scope| {
        for stream in &threads {
            let (stream, handle) = (stream.0 as usize, &handle);
            scope.spawn(move || {
                for _ in 0..300 {
                    let here = get!(null_mut(), out => tcuda_ipc_import(out, null_mut(), null_mut(), handle, stream as tcuda_stream_t));
                    assert!(get!(false, out => tcuda_ipc_producer_is_alive(out, here)));
                    ok!(tcuda_ipc_close(here, stream as tcuda_stream_t));
                    ok!(tcuda_ipc_collect());
                }
            });
        }
    });
    // Of those who withdraw it at once, each is told the truth.
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(|| assert!(FINE.contains(&unsafe { tcuda_ipc_withdraw(&handle) })))));
    });
    free(block);
    ok!(tcuda_ipc_collect());
    empty_caches();
}

static GRAPH: AtomicUsize = AtomicUsize::new(0);
static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

unsafe extern "C" fn resets(_: *const tcuda_pressure_t, _: *mut c_void) -> bool {
    ok!(tcuda_graph_reset(GRAPH.load(SeqCst) as tcuda_graph_t));
    KEPT.lock().unwrap().drain(..).for_each(|block| free(block as *mut c_void));
    true
}

/// A generator that draws in a capture needs memory, and who is asked for it ends the capture: nothing of it is left with the generator.
fn a_graph_that_is_reset_while_it_gets_memory() {
    empty_caches();
    let stream = Own::on(0);
    let out = Managed::empty(0, F32, &[1000]);
    let graph = get!(null_mut(), out => tcuda_graph_create(out, 0));
    let generator = get!(null_mut(), out => tcuda_generator_create(out, 0));
    GRAPH.store(graph as usize, SeqCst);
    let limit = Limit::of(0, stat(0, "reserved_bytes.all.current") as u64);
    let mut block = null_mut();
    while unsafe { tcuda_malloc_cached(&mut block, 512, NULL) } == TCUDA_SUCCESS {
        KEPT.lock().unwrap().push(block as usize);
    }
    let id = get!(0, out => tcuda_register_pressure_callback(out, Some(resets), null_mut()));
    ok!(tcuda_graph_capture_begin(graph, stream.0, OWN, THREAD_LOCAL));
    let said = fails!(CAPTURE, tcuda_random_uniform(out.tensor(), 0.0, 1.0, generator, stream.0));
    assert!(said.contains("ended"), "{said}");
    ok!(tcuda_unregister_pressure_callback(id));
    drop(limit);
    ok!(tcuda_generator_manual_seed(generator, 7));
    ok!(tcuda_random_uniform(out.tensor(), 0.0, 1.0, generator, stream.0));
    ok!(tcuda_stream_synchronize(stream.0));
    ok!(tcuda_graph_destroy(graph));
    ok!(tcuda_generator_destroy(generator));
    drop(out);
    empty_caches();
}
