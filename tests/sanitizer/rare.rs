//! What the sanitizer knows after calls that failed, and of graphs that were updated.

use crate::kit::*;
use crate::{kinds_of, turn};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tcuda::base::Status;
use tcuda::base::dlpack::{tcuda_place_t, tcuda_tensor_t};
use tcuda::base::dtype::tcuda_dtype_t;
use tcuda::capi::distributions::tcuda_random_permutation;
use tcuda::capi::graph::*;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::*;
use tcuda::capi::sanitizer::*;
use tcuda::capi::structs::tcuda_stream_t;

fn pinned() -> *mut c_void {
    let mut block = null_mut();
    ok(unsafe { tcuda_host_malloc_cached(&mut block, SIZE) });
    block
}

#[test]
fn pinned_memory_that_was_freed_twice_is_free_still() {
    let _turn = turn();
    let program = |_| {
        let [one] = streams();
        let (host, to) = (pinned(), block(one));
        ok(unsafe { tcuda_host_free_cached(host) });
        assert_eq!(unsafe { tcuda_host_free_cached(host) }, Status::TCUDA_ERROR_INVALID_POINTER);
        kernel(host, READ, one);
        free(to);
    };
    assert_eq!(kinds_of(program, true), ["use-after-free"]);
}

fn kept(stream: tcuda_stream_t, work: impl FnOnce()) -> tcuda_graph_t {
    let mut graph = null_mut();
    ok(unsafe { tcuda_graph_create(&mut graph, 1) });
    ok(tcuda_graph_capture_begin(graph, stream, tcuda_pool_id_t { first: 0, second: 0 }, 2));
    work();
    ok(tcuda_graph_capture_end(graph));
    ok(tcuda_graph_instantiate(graph));
    graph
}

#[test]
fn a_graph_does_what_it_was_updated_from_when_that_is_gone() {
    let _turn = turn();
    let program = |_| {
        let [one, two] = streams();
        let (before, after) = (block(one), block(one));
        let (graph, from) = (kept(one, || fill(before, one)), kept(one, || fill(after, one)));
        ok(tcuda_graph_update(graph, from));
        ok(tcuda_graph_destroy(from));
        ok(tcuda_graph_replay(graph, one));
        kernel(after, READ, two);
        kernel(before, READ, two);
        ok(tcuda_graph_destroy(graph));
    };
    assert_eq!(kinds_of(program, true), ["race"]);
}

#[test]
fn a_graph_comes_behind_itself_on_any_stream() {
    let _turn = turn();
    let program = |reads: bool| {
        let [one, two, three] = streams();
        let block = block(one);
        let graph = kept(one, || fill(block, one));
        ok(tcuda_graph_replay(graph, one));
        ok(tcuda_graph_replay(graph, two));
        if reads {
            kernel(block, READ, three);
        }
        synchronize(two);
        ok(tcuda_graph_destroy(graph));
    };
    assert_eq!(kinds_of(program, false), [""; 0]);
    assert_eq!(kinds_of(program, true), ["race"]);
}

/// Every second element, beside which another stream works.
#[test]
fn a_permutation_writes_its_own_elements_only() {
    let _turn = turn();
    let program = |bug: bool| {
        let [one, two] = streams();
        let block = block(one);
        let (mut shape, mut strides) = ([64i64], [2i64]);
        let tensor = tcuda_tensor_t {
            data: block,
            device: tcuda_place_t { device_type: 2, device_id: 0 },
            ndim: 1,
            dtype: tcuda_dtype_t { code: 0, bits: 64, lanes: 1 },
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        };
        ok(unsafe { tcuda_random_permutation(&tensor, null_mut(), one) });
        let at = if bug { block } else { block.wrapping_byte_add(8) };
        let name = c"beside".as_ptr();
        ok(unsafe { tcuda::capi::sanitizer::tcuda_sanitizer_annotate_access(at, 8, WRITE, two, name) });
    };
    assert_eq!((kinds_of(program, true), kinds_of(program, false)), (vec!["race".into()], vec![]));
}

/// What a graph kept is its own capture, whatever it was updated from: made ready again it does that, and so does what is updated from it.
#[test]
fn a_graph_keeps_what_it_captured() {
    let _turn = turn();
    let update = |again: bool| {
        let [one, two] = streams();
        let blocks = [(); 3].map(|()| block(one));
        let [graph, from, first] = blocks.map(|block| kept(one, || fill(block, one)));
        ok(tcuda_graph_update(from, first));
        if again {
            ok(tcuda_graph_instantiate(from));
            ok(tcuda_graph_replay(from, one));
        } else {
            ok(tcuda_graph_update(graph, from));
            ok(tcuda_graph_replay(graph, one));
        }
        // Only the second is written.
        [0, 2].into_iter().for_each(|at| kernel(blocks[at], READ, two));
        assert_eq!(crate::count(), 0);
        kernel(blocks[1], READ, two);
        [graph, from, first].into_iter().for_each(|graph| ok(tcuda_graph_destroy(graph)));
    };
    assert_eq!(kinds_of(update, true), ["race"]);
    assert_eq!(kinds_of(update, false), ["race"]);
}

/// A block that is made and freed in a capture, which uses its memory again.
#[test]
fn what_is_freed_in_a_capture_may_not_be_in_use_there() {
    let _turn = turn();
    let freed_in_use = |bug: bool| {
        let [one, two] = streams();
        let graph = captured(one, || {
            let mut blocks = [block(one); 2];
            after(two, one);
            kernel(blocks[0], WRITE, two);
            if !bug {
                after(one, two);
            }
            free(blocks[0]);
            blocks[1] = block(one);
            assert_eq!(blocks[0], blocks[1]);
            fill(blocks[1], one);
            after(one, two);
        });
        ok(tcuda_graph_destroy(graph));
    };
    let used_again = |bug: bool| {
        let [one, two] = streams();
        let graph = captured(one, || {
            after(two, one);
            let old = block(one);
            fill(old, one);
            free(old);
            let new = block(one);
            assert_eq!(old, new);
            if !bug {
                after(two, one);
            }
            fill(new, two);
            after(one, two);
        });
        ok(tcuda_graph_destroy(graph));
    };
    assert_eq!((kinds_of(freed_in_use, true), kinds_of(freed_in_use, false)), (vec!["free-in-use".into()], vec![]));
    assert_eq!((kinds_of(used_again, true), kinds_of(used_again, false)), (vec!["race".into()], vec![]));
}

/// A graph's output, which is freed behind the capture: the next graph of the pool has its memory.
#[test]
fn what_a_graph_left_may_be_in_use_when_the_next_one_has_it() {
    let _turn = turn();
    let program = |bug: bool| {
        let [one, two] = streams();
        let mut pool = tcuda_pool_id_t { first: 0, second: 0 };
        ok(unsafe { tcuda_graph_pool_handle(&mut pool) });
        let next = || {
            let mut graph = null_mut();
            ok(unsafe { tcuda_graph_create(&mut graph, 0) });
            ok(tcuda_graph_capture_begin(graph, one, pool, 2));
            let output = block(one);
            fill(output, one);
            ok(tcuda_graph_capture_end(graph));
            (graph, output)
        };
        let first = next();
        replay(first.0, one);
        after(two, one);
        kernel(first.1, READ, two);
        free(first.1);
        let second = next();
        assert_eq!(first.1, second.1);
        if !bug {
            after(one, two);
        }
        replay(second.0, one);
        [first, second].into_iter().for_each(|(graph, _)| ok(tcuda_graph_destroy(graph)));
    };
    assert_eq!((kinds_of(program, true), kinds_of(program, false)), (vec!["race".into()], vec![]));
}

/// CUDA keeps launches of one executable graph in order, whatever it does by then, and of no two.
#[test]
fn order_is_kept_by_what_is_launched() {
    let _turn = turn();
    let program = |between: fn(tcuda_graph_t, tcuda_graph_t) -> tcuda_graph_t| {
        move |first_too: bool| {
            let [one, two] = streams();
            let block = block(one);
            let [graph, from] = [(); 2].map(|()| kept(one, || fill(block, one)));
            if !first_too {
                ok(tcuda_graph_update(graph, from));
            }
            ok(tcuda_graph_replay(graph, one));
            ok(tcuda_graph_replay(between(graph, from), two));
            [graph, from].into_iter().for_each(|graph| ok(tcuda_graph_destroy(graph)));
        }
    };
    let updated = program(|graph, from| {
        ok(tcuda_graph_update(graph, from));
        graph
    });
    let anew = program(|graph, _| {
        ok(tcuda_graph_instantiate(graph));
        graph
    });
    let of_the_other = program(|_, from| from);
    assert_eq!(kinds_of(updated, true), [""; 0]);
    assert_eq!(kinds_of(anew, true), ["race"]);
    assert_eq!(kinds_of(of_the_other, false), ["race"]);
}

/// A kernel that touches two blocks, of which the second is freed.
#[test]
fn each_block_of_what_was_captured_has_to_be_there() {
    let _turn = turn();
    let program = |_| {
        let [one] = streams();
        let mut blocks = [(); 16].map(|()| block(one));
        blocks.sort();
        let beside = |at: &usize| blocks[at + 1] == blocks[*at].wrapping_byte_add(SIZE);
        let first = (0..blocks.len() - 1).find(beside).expect("of so many two lie side by side");
        let reach = || unsafe { tcuda_sanitizer_annotate_access(blocks[first], 2 * SIZE, WRITE, one, null()) };
        let graph = captured(one, || ok(reach()));
        free(blocks[first + 1]);
        replay(graph, one);
        ok(tcuda_graph_destroy(graph));
        (0..blocks.len()).filter(|at| *at != first + 1).for_each(|at| free(blocks[at]));
    };
    assert_eq!(kinds_of(program, true), ["stale-graph"]);
}

/// The cache has given it back to the driver.
#[test]
fn memory_that_left_is_not_what_was_captured() {
    let _turn = turn();
    let program = |_| {
        let [one] = streams();
        let mut block = null_mut();
        ok(unsafe { tcuda_malloc_cached(&mut block, 64 << 20, one) });
        let graph = captured(one, || kernel(block, WRITE, one));
        free(block);
        ok(tcuda_empty_cache(0));
        replay(graph, one);
        ok(tcuda_graph_destroy(graph));
    };
    assert_eq!(kinds_of(program, true), ["stale-graph"]);
}
