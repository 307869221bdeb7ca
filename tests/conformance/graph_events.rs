//! Events that replays record for others, and wait for.

use crate::graph::*;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ptr::null_mut;
use tcuda::capi::copy::*;
use tcuda::capi::event::*;
use tcuda::capi::pinned::*;
use tcuda::capi::stream::*;

tests![
    a_part_of_a_replay_is_waited_for,
    a_replay_times_its_parts,
    a_replay_waits_for_what_is_outside,
    outside_of_a_capture_an_external_event_is_like_any,
];

/// An event that a replay records is past before the replay is.
fn a_part_of_a_replay_is_waited_for() {
    let (stream, other) = (Own::new(), Own::new());
    let (first, second) = (event(), event());
    let block = allocate(64, stream.0);
    let (graph, seen) = (G::new(), pinned(64));
    let gate = graph.capture(stream.0, || {
        fill(block, 1, 64, stream.0);
        ok!(tcuda_event_record_external(first, stream.0));
        let gate = Gate::on(stream.0);
        fill(block, 2, 64, stream.0);
        ok!(tcuda_event_record_external(second, stream.0));
        gate
    });
    graph.replay(stream.0);
    ok!(tcuda_stream_wait_event(other.0, first));
    copy(seen, block, 64, other.0);
    ok!(tcuda_event_synchronize(first));
    synchronize(other.0);
    assert_eq!(unsafe { *seen }, 1);
    assert!(!get!(true, out => tcuda_event_query(second, out)));
    gate.open();
    ok!(tcuda_event_synchronize(second));
    assert_eq!(bytes_of(block, 1, stream.0), [2]);
    drop(graph);
    [first, second].into_iter().for_each(|event| ok!(tcuda_event_destroy(event)));
    free(block);
    ok!(tcuda_host_free_cached(seen.cast()));
}

fn a_replay_times_its_parts() {
    let stream = Own::new();
    let [start, end] = [0; 2].map(|flags| get!(null_mut(), out => tcuda_event_create(out, flags)));
    let block = allocate(MIB, stream.0);
    let graph = G::captured(stream.0, || {
        ok!(tcuda_event_record_external(start, stream.0));
        fill(block, 1, MIB, stream.0);
        ok!(tcuda_event_record_external(end, stream.0));
    });
    let mut milliseconds = -1.0;
    fails!(INVALID_STATE, tcuda_event_elapsed_time(&mut milliseconds, start, end));
    for _ in 0..2 {
        graph.replay(stream.0);
        synchronize(stream.0);
        ok!(tcuda_event_elapsed_time(&mut milliseconds, start, end));
        assert!(milliseconds >= 0.0, "{milliseconds}");
    }
    drop(graph);
    [start, end].into_iter().for_each(|event| ok!(tcuda_event_destroy(event)));
    free(block);
}

/// Each replay waits for what the event stands for by then.
fn a_replay_waits_for_what_is_outside() {
    let (stream, other) = (Own::new(), Own::new());
    let ready = event();
    let (from, to) = (allocate(64, other.0), allocate(64, stream.0));
    synchronize(stream.0);
    let graph = G::captured(stream.0, || {
        ok!(tcuda_event_wait_external(ready, stream.0));
        ok!(tcuda_copy_async(to, from, 64, stream.0));
    });
    // What is recorded after the replay was enqueued is no wait for it.
    let (own, others) = (Gate::on(stream.0), Gate::on(other.0));
    graph.replay(stream.0);
    ok!(tcuda_event_record(ready, other.0));
    own.open();
    synchronize(stream.0);
    others.open();
    for value in 1..4 {
        let gate = Gate::on(other.0);
        fill(from, value, 64, other.0);
        ok!(tcuda_event_record(ready, other.0));
        graph.replay(stream.0);
        assert!(!get!(true, out => tcuda_stream_query(stream.0, out)));
        gate.open();
        assert_eq!(bytes_of(to, 1, stream.0), [value as u8]);
        // The next round writes what this one has read.
        ok!(tcuda_stream_wait_stream(other.0, stream.0));
    }
    drop(graph);
    ok!(tcuda_event_destroy(ready));
    free(to);
    synchronize(other.0);
    free(from);
}

fn outside_of_a_capture_an_external_event_is_like_any() {
    let (stream, other) = (Own::new(), Own::new());
    let (mark, seen) = (event(), pinned(64));
    let block = allocate(64, stream.0);
    let gate = Gate::on(stream.0);
    fill(block, 3, 64, stream.0);
    ok!(tcuda_event_record_external(mark, stream.0));
    ok!(tcuda_event_wait_external(mark, other.0));
    copy(seen, block, 64, other.0);
    assert!(!get!(true, out => tcuda_event_query(mark, out)));
    gate.open();
    synchronize(other.0);
    assert_eq!(unsafe { *seen }, 3);
    fails!(INVALID_HANDLE, tcuda_event_record_external(null_mut(), stream.0));
    fails!(INVALID_HANDLE, tcuda_event_wait_external(null_mut(), stream.0));
    ok!(tcuda_event_destroy(mark));
    free(block);
    ok!(tcuda_host_free_cached(seen.cast()));
}
