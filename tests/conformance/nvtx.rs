//! Marks and ranges where no tool listens, or one that happens to: what is told to a tool is in tests/nvtx.rs.

use crate::init::in_child;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ptr::{null, null_mut};
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::init::tcuda_shutdown;
use tcuda::capi::nvtx::*;
use tcuda::capi::sim::{tcuda_sim_call_count, tcuda_sim_fail_at};

tests![
    push_and_pop_say_how_deep,
    ranges_that_any_thread_ends,
    domains_and_their_events,
    what_is_wrong_is_refused,
    a_range_of_a_stream,
    a_range_over_two_streams,
    they_work_without_a_device,
    a_profiler_is_told_when: [Faults],
];

fn event(message: *const std::ffi::c_char) -> tcuda_nvtx_event_t {
    tcuda_nvtx_event_t { struct_size: size_of::<tcuda_nvtx_event_t>(), message, ..unsafe { std::mem::zeroed() } }
}

fn domain() -> tcuda_nvtx_domain_t {
    get!(null_mut(), out => tcuda_nvtx_domain_create(out, c"of a test".as_ptr()))
}

fn push_and_pop_say_how_deep() {
    let depths: Vec<i32> = (0..3).map(|_| unsafe { tcuda_nvtx_range_push(c"a range".as_ptr()) }).collect();
    let popped: Vec<i32> = (0..3).map(|_| tcuda_nvtx_range_pop()).collect();
    let right = if tcuda_nvtx_is_attached() { [0, 1, 2] } else { [-2; 3] };
    assert_eq!(depths, right);
    assert!(popped.iter().rev().eq(depths.iter()), "{popped:?}");
}

fn ranges_that_any_thread_ends() {
    let id = get!(7, out => tcuda_nvtx_range_start(out, c"a range".as_ptr()));
    assert!(tcuda_nvtx_is_attached() || id == 0);
    std::thread::spawn(move || ok!(tcuda_nvtx_range_end(id))).join().unwrap();
    ok!(tcuda_nvtx_mark(c"a mark".as_ptr()));
}

fn domains_and_their_events() {
    let (own, other) = (domain(), domain());
    assert_ne!(own, other);
    let event =
        tcuda_nvtx_event_t { color: 0xFF00FF00, category: 1, payload: TCUDA_NVTX_PAYLOAD_DOUBLE, real: 0.5, ..event(c"x".as_ptr()) };
    for domain in [own, other, null_mut()] {
        ok!(tcuda_nvtx_domain_name_category(domain, 1, c"one".as_ptr()));
        ok!(tcuda_nvtx_domain_mark(domain, &event));
        let depth = unsafe { tcuda_nvtx_domain_range_push(domain, &event) };
        assert!([-2, 0].contains(&depth) && tcuda_nvtx_domain_range_pop(domain) == depth);
        let id = get!(0, out => tcuda_nvtx_domain_range_start(domain, out, &event));
        ok!(tcuda_nvtx_domain_range_end(domain, id));
    }
    ok!(tcuda_nvtx_domain_destroy(own));
    ok!(tcuda_nvtx_domain_destroy(other));
    ok!(tcuda_nvtx_domain_destroy(null_mut()));
}

fn what_is_wrong_is_refused() {
    let own = domain();
    let good = event(c"x".as_ptr());
    fails!(INVALID_ARGUMENT, tcuda_nvtx_mark(null()));
    fails!(INVALID_ARGUMENT, tcuda_nvtx_range_start(&mut 0, null()));
    fails!(INVALID_ARGUMENT, tcuda_nvtx_range_start(null_mut(), c"x".as_ptr()));
    fails!(INVALID_ARGUMENT, tcuda_nvtx_domain_create(null_mut(), c"x".as_ptr()));
    fails!(INVALID_ARGUMENT, tcuda_nvtx_domain_mark(own, null()));
    fails!(INVALID_ARGUMENT, tcuda_nvtx_domain_mark(own, &event(null())));
    let kind = fails!(INVALID_ARGUMENT, tcuda_nvtx_domain_mark(own, &tcuda_nvtx_event_t { payload: -1, ..good }));
    assert!(kind.contains("'event.payload' is -1"), "{kind}");
    fails!(INVALID_ARGUMENT, tcuda_nvtx_domain_range_start(own, null_mut(), &good));
    fails!(INVALID_ARGUMENT, tcuda_nvtx_domain_name_category(own, 1, null()));
    ok!(tcuda_nvtx_domain_destroy(own));
    for dead in [own, &raw const good as tcuda_nvtx_domain_t] {
        fails!(INVALID_HANDLE, tcuda_nvtx_domain_destroy(dead));
        fails!(INVALID_HANDLE, tcuda_nvtx_domain_mark(dead, &good));
        fails!(INVALID_HANDLE, tcuda_nvtx_domain_range_start(dead, &mut 0, &good));
        fails!(INVALID_HANDLE, tcuda_nvtx_domain_range_end(dead, 1));
        fails!(INVALID_HANDLE, tcuda_nvtx_domain_name_category(dead, 1, c"x".as_ptr()));
    }
}

fn a_range_of_a_stream() {
    let stream = Own::new();
    for stream in [stream.0, NULL, handle(CURRENT_STREAM)] {
        let range = get!(0, out => tcuda_nvtx_stream_range_start(out, c"work".as_ptr(), stream));
        ok!(tcuda_nvtx_stream_range_end(range, stream));
        fails!(INVALID_HANDLE, tcuda_nvtx_stream_range_end(range, stream));
    }
    fails!(INVALID_HANDLE, tcuda_nvtx_stream_range_end(u64::MAX, stream.0));
    fails!(INVALID_ARGUMENT, tcuda_nvtx_stream_range_start(null_mut(), c"work".as_ptr(), stream.0));
    fails!(INVALID_ARGUMENT, tcuda_nvtx_stream_range_start(&mut 0, null(), stream.0));
    ok!(tcuda_synchronize(-1));
}

fn a_range_over_two_streams() {
    let (first, second) = (Own::new(), Own::new());
    let range = get!(0, out => tcuda_nvtx_stream_range_start(out, c"work".as_ptr(), first.0));
    ok!(tcuda_nvtx_stream_range_end(range, second.0));
    ok!(tcuda_synchronize(-1));
}

fn they_work_without_a_device() {
    in_child("nvtx_end", &[]);
}

pub fn scene_end() {
    push_and_pop_say_how_deep();
    ok!(tcuda_shutdown());
    push_and_pop_say_how_deep();
    ranges_that_any_thread_ends();
    domains_and_their_events();
    fails!(SHUT_DOWN, tcuda_nvtx_stream_range_start(&mut 0, c"work".as_ptr(), NULL));
    fails!(SHUT_DOWN, tcuda_profiler_start());
}

fn a_profiler_is_told_when() {
    let told = || [c"cudaProfilerStart", c"cudaProfilerStop"].map(|call| get!(0, out => tcuda_sim_call_count(out, call.as_ptr())));
    let before = told();
    ok!(tcuda_profiler_start());
    assert_eq!(told(), [before[0] + 1, before[1]]);
    ok!(tcuda_profiler_stop());
    assert_eq!(told(), [before[0] + 1, before[1] + 1]);
    ok!(tcuda_sim_fail_at(c"cudaProfilerStart".as_ptr(), 1, 36));
    assert!(fails!(CUDA, tcuda_profiler_start()).contains("cudaProfilerStart"));
}
