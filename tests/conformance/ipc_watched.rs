//! What is given to another process under poison and the stream sanitizer.

use crate::graph::G;
use crate::init::in_child;
use crate::ipc::{MIB, export, filled, import, passes_in_plain_segments};
use crate::ipc_other::Other;
use crate::kit::*;
use crate::{get, ok, tests};
use std::ffi::c_void;
use std::ptr::null;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tcuda::capi::copy::tcuda_memset_async;
use tcuda::capi::graph::tcuda_graph_replay;
use tcuda::capi::ipc::*;
use tcuda::capi::memory::*;
use tcuda::capi::sanitizer::*;
use tcuda::capi::structs::tcuda_stream_t;

tests![
    what_was_freed_is_not_filled,
    what_is_closed_counts_as_freed,
    what_no_import_has_any_more_counts_as_freed,
    what_is_imported_again_is_in_use,
    what_is_used_while_it_is_freed,
    what_lies_behind_an_import,
    in_plain_segments,
];

fn what_was_freed_is_not_filled() {
    in_child("ipc_poison", &[("TCUDA_MEMORY_POISON", "1")]);
}

pub fn scene_poison() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let block = filled(MIB, 6, stream.0);
    let there = other.import(&export(block, MIB, 0, stream.0));
    free(block);
    ok!(tcuda_synchronize_all());
    assert_eq!(other.did(&format!("value {there} {MIB}")), "6");
    other.did(&format!("fill {there} {MIB} 7"));
    other.did(&format!("close {there}"));
    other.end();
    ok!(tcuda_ipc_collect());
    assert_eq!(get!(1, out => tcuda_memory_check_poison(out, 0)), 0);
}

fn what_is_closed_counts_as_freed() {
    in_child("ipc_watched", &[("TCUDA_SANITIZER", "1")]);
}

pub fn scene_watched() {
    const READ: i32 = 1;
    let [stream, second] = [(); 2].map(|()| Own::on(0));
    let mut other = Other::new();
    let handles = [1, 2].map(|value| other.export(MIB, value, 0));
    let [here, beside] = [0, 1].map(|at| import(&handles[at], stream.0));
    let reports = |block: *mut c_void, stream: tcuda_stream_t| {
        ok!(tcuda_sanitizer_annotate_access(block, MIB, READ, stream, null()));
        get!(77, out => tcuda_sanitizer_report_count(out))
    };
    let close = |block: *mut c_void| ok!(tcuda_ipc_close(block, stream.0));
    assert_eq!([here, beside, here].map(|block| reports(block, stream.0)), [0; 3]);
    // Of two uses one is left.
    assert_eq!(import(&handles[0], stream.0), here);
    close(here);
    assert_eq!(reports(here, stream.0), 0);
    // Of two that may lie in one segment.
    close(here);
    assert_eq!([beside, here].map(|block| reports(block, stream.0)), [0, 1]);
    close(beside);
    assert_eq!([beside, here].map(|block| reports(block, stream.0)), [2, 3]);
    // What comes to be there is not what was.
    let here = import(&handles[0], stream.0);
    assert_eq!(reports(here, stream.0), 3);
    // A stream that nobody waits for.
    assert_eq!(reports(here, second.0), 3);
    close(here);
    assert_eq!(reports(here, stream.0), 5);
    tcuda::sanitizer::report::clear();
    other.end();
}

fn what_no_import_has_any_more_counts_as_freed() {
    in_child("ipc_watched_parts", &[("TCUDA_SANITIZER", "1"), ("TCUDA_ALLOC_CONF", "expandable_segments:False")]);
}

/// Of two imports that overlap, which they do in a segment of cudaMalloc's.
pub fn scene_watched_parts() {
    const READ: i32 = 1;
    let [stream, second] = [(); 2].map(|()| Own::on(0));
    let mut other = Other::new();
    other.export(3 * MIB, 1, 0);
    let handles = [0, MIB].map(|start| other.export_part(start, 2 * MIB));
    let [here, beside] = [0, 1].map(|at| import(&handles[at], stream.0));
    assert_eq!(beside as usize - here as usize, MIB);
    // New ones, of each of the three.
    let mut before = 0;
    let mut reports = |stream: tcuda_stream_t| {
        [0, 1, 2].map(|part| {
            let start = here.wrapping_byte_add(part * MIB);
            ok!(tcuda_sanitizer_annotate_access(start, MIB, READ, stream, null()));
            let count = get!(77, out => tcuda_sanitizer_report_count(out));
            count - std::mem::replace(&mut before, count)
        })
    };
    let close = |block: *mut c_void| ok!(tcuda_ipc_close(block, stream.0));
    assert_eq!(reports(stream.0), [0, 0, 0]);
    close(here);
    assert_eq!(reports(stream.0), [1, 0, 0]);
    assert_eq!(import(&handles[0], stream.0), here);
    assert_eq!(reports(stream.0), [0, 0, 0]);
    close(beside);
    assert_eq!(reports(stream.0), [0, 0, 1]);
    // A stream that nobody waits for, and what both had.
    assert_eq!(reports(second.0), [0, 0, 1]);
    close(here);
    assert_eq!(reports(stream.0), [2, 1, 1]);
    tcuda::sanitizer::report::clear();
    other.end();
}

fn tcuda_synchronize_all() -> tcuda::base::Status {
    tcuda::capi::device::tcuda_synchronize(-1)
}

fn what_is_imported_again_is_in_use() {
    in_child("ipc_watched_again", &[("TCUDA_SANITIZER", "1"), ("TCUDA_ALLOC_CONF", "expandable_segments:False")]);
}

/// By an export of its own, which has the same address in a segment of cudaMalloc's.
pub fn scene_watched_again() {
    let (read, write) = (1, 2);
    let [stream, second, third] = [(); 3].map(|()| Own::on(0));
    let mut other = Other::new();
    other.export(MIB, 1, 0);
    let handles = [(); 2].map(|()| other.export_part(0, MIB));
    let here = import(&handles[0], stream.0);
    ok!(tcuda_sanitizer_annotate_access(here, MIB, write, stream.0, null()));
    // Who captured it before has it still.
    let graph = G::captured(stream.0, || ok!(tcuda_memset_async(here, 1, MIB, stream.0)));
    assert_eq!(import(&handles[1], third.0), here);
    ok!(tcuda_graph_replay(graph.0, stream.0));
    assert_eq!(get!(77, out => tcuda_sanitizer_report_count(out)), 0);
    ok!(tcuda_sanitizer_annotate_access(here, MIB, read, second.0, null()));
    assert_eq!(get!(77, out => tcuda_sanitizer_report_count(out)), 1);
    drop(graph);
    ok!(tcuda_synchronize_all());
    [stream.0, third.0].into_iter().for_each(|stream| ok!(tcuda_ipc_close(here, stream)));
    tcuda::sanitizer::report::clear();
    other.end();
}

fn what_is_used_while_it_is_freed() {
    in_child("ipc_watched_while", &[("TCUDA_SANITIZER", "1")]);
    in_child("ipc_watched_while", &[("TCUDA_SANITIZER", "1"), ("TCUDA_MEMORY_POISON", "1")]);
}

/// A thread uses what it imported while another one frees it.
pub fn scene_watched_while() {
    const ROUNDS: usize = 300;
    const READ: i32 = 1;
    let [stream, second] = [(); 2].map(|()| Own::on(0));
    let address = second.0 as usize;
    for _ in 0..ROUNDS {
        let block = filled(MIB, 1, stream.0);
        let here = import(&export(block, MIB, 0, stream.0), second.0) as usize;
        let (begun, freed) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                while !freed.load(Relaxed) {
                    ok!(tcuda_sanitizer_annotate_access(here as *const c_void, MIB, READ, address as tcuda_stream_t, null()));
                }
            });
            begun.wait();
            free(block);
            freed.store(true, Relaxed);
        });
        ok!(tcuda_ipc_close(here as *mut c_void, second.0));
    }
    assert_eq!(get!(77, out => tcuda_sanitizer_report_count(out)), 0);
    crate::ipc::nothing_is_left();
}

fn what_lies_behind_an_import() {
    in_child("ipc_watched_behind", &[("TCUDA_SANITIZER", "1")]);
}

/// A use that runs from what is imported into another block is one of both.
pub fn scene_watched_behind() {
    const READ: i32 = 1;
    let [stream, second, third] = [(); 3].map(|()| Own::on(0));
    // A segment of its own has room for more than three of this size.
    const SIZE: usize = 2 * MIB;
    let mut blocks = [(); 8].map(|()| filled(SIZE, 1, stream.0));
    blocks.sort_unstable();
    let at = (0..6).find(|at| blocks[at + 2] as usize - blocks[*at] as usize == 2 * SIZE).expect("three side by side");
    let [first, gone, in_use] = [0, 1, 2].map(|more| blocks[at + more]);
    let here = import(&export(first, SIZE, 0, stream.0), second.0);
    let reads = |blocks: usize, stream: tcuda_stream_t| {
        ok!(tcuda_sanitizer_annotate_access(here, blocks * SIZE, READ, stream, null()));
    };
    let reports = || get!(77, out => tcuda_sanitizer_report_count(out));
    free(gone);
    reads(1, second.0);
    assert_eq!(reports(), 0);
    reads(2, second.0);
    assert_eq!(reports(), 1);
    ok!(tcuda_synchronize_all());
    reads(3, third.0);
    let before = reports();
    free(in_use);
    assert_eq!(reports(), before + 1);
    ok!(tcuda_ipc_close(here, second.0));
    blocks.into_iter().filter(|block| ![gone, in_use].contains(block)).for_each(free);
    tcuda::sanitizer::report::clear();
}

/// All of this once more where segments are cudaMalloc's.
fn in_plain_segments() {
    passes_in_plain_segments("ipc_watched.");
}
