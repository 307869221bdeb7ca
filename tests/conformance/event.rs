//! Events: flags, recording, waiting, times, events of somebody else, dead handles.

use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ptr::null_mut;
use tcuda::capi::event::*;
use tcuda::capi::stream::{tcuda_stream_synchronize, tcuda_stream_wait_event};
use tcuda::capi::structs::tcuda_event_t;
use tcuda::runtime::runtime;

tests![
    flags_are_cudas_bits,
    an_event_never_recorded_is_complete,
    an_event_follows_its_stream,
    a_later_record_replaces_an_earlier_one,
    synchronize_waits_for_the_record,
    wait_holds_a_stream_up,
    events_record_on_every_stream,
    elapsed_time_is_positive_between_records,
    elapsed_time_needs_timing,
    elapsed_time_needs_records,
    elapsed_time_needs_completion,
    elapsed_time_is_of_one_device: [TwoDevices],
    null_is_no_event,
    a_dead_event_is_refused_everywhere,
    an_event_of_another_device_is_not_recorded: [TwoDevices],
    an_event_of_another_device_is_waited_for: [TwoDevices],
    events_of_somebody_else_work,
    events_of_the_pool_come_back,
    many_events_at_once,
    threads_record_and_wait,
];

const TIMING: u32 = 0;
const NO_TIMING: u32 = 2;

struct Event(tcuda_event_t);

impl Event {
    fn new(flags: u32) -> Event {
        Event(get!(null_mut(), out => tcuda_event_create(out, flags)))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        unsafe { tcuda_event_destroy(self.0) };
    }
}

fn complete(event: tcuda_event_t) -> bool {
    get!(false, out => tcuda_event_query(event, out))
}

fn flags_are_cudas_bits() {
    for flags in [0, 1, 2, 3, 6, 7] {
        assert!(complete(Event::new(flags).0));
    }
    let mut event = null_mut();
    for flags in [8, 0x10, 0x8000_0000, u32::MAX] {
        let said = fails!(INVALID_ARGUMENT, tcuda_event_create(&mut event, flags));
        assert!(said.contains(&format!("{flags:#x}")), "{said}");
    }
    for flags in [4, 5] {
        let said = fails!(INVALID_ARGUMENT, tcuda_event_create(&mut event, flags));
        assert!(said.contains("DISABLE_TIMING"), "{said}");
    }
    fails!(INVALID_ARGUMENT, tcuda_event_create(null_mut(), 0));
    assert!(event.is_null());
}

fn an_event_never_recorded_is_complete() {
    let (event, own) = (Event::new(NO_TIMING), Own::new());
    assert!(complete(event.0));
    ok!(tcuda_event_synchronize(event.0));
    ok!(tcuda_event_wait(event.0, own.0));
    ok!(tcuda_stream_synchronize(own.0));
    fails!(INVALID_ARGUMENT, tcuda_event_query(event.0, null_mut()));
}

fn an_event_follows_its_stream() {
    let (event, own) = (Event::new(NO_TIMING), Own::new());
    let gate = Gate::on(own.0);
    ok!(tcuda_event_record(event.0, own.0));
    assert!(!complete(event.0));
    gate.open();
    ok!(tcuda_stream_synchronize(own.0));
    assert!(complete(event.0));
    // What the stream gets after the record does not matter.
    let gate = Gate::on(own.0);
    assert!(complete(event.0));
    drop(gate);
    ok!(tcuda_stream_synchronize(own.0));
}

fn a_later_record_replaces_an_earlier_one() {
    let (event, busy, free) = (Event::new(NO_TIMING), Own::new(), Own::new());
    let gate = Gate::on(busy.0);
    ok!(tcuda_event_record(event.0, busy.0));
    assert!(!complete(event.0));
    ok!(tcuda_event_record(event.0, free.0));
    ok!(tcuda_event_synchronize(event.0));
    assert!(complete(event.0));
    ok!(tcuda_event_record(event.0, busy.0));
    assert!(!complete(event.0));
    gate.open();
    ok!(tcuda_event_synchronize(event.0));
}

fn synchronize_waits_for_the_record() {
    for flags in [NO_TIMING, NO_TIMING | 1, TIMING] {
        let (event, own) = (Event::new(flags), Own::new());
        let gate = Gate::on(own.0);
        ok!(tcuda_event_record(event.0, own.0));
        let opener = gate.open_later();
        ok!(tcuda_event_synchronize(event.0));
        assert!(gate.was_passed());
        opener.join().unwrap();
    }
}

fn wait_holds_a_stream_up() {
    let (event, first, second, diary) = (Event::new(NO_TIMING), Own::new(), Own::new(), Diary::default());
    let gate = Gate::on(first.0);
    diary.write_on(first.0, 1);
    ok!(tcuda_event_record(event.0, first.0));
    ok!(tcuda_event_wait(event.0, second.0));
    diary.write_on(second.0, 2);
    assert!(diary.read().is_empty());
    gate.open();
    ok!(tcuda_stream_synchronize(second.0));
    assert_eq!(diary.read(), [1, 2]);
}

fn events_record_on_every_stream() {
    let event = Event::new(NO_TIMING);
    for stream in [NULL, handle(1), handle(2), handle(CURRENT_STREAM), default_of(0)] {
        ok!(tcuda_event_record(event.0, stream));
        ok!(tcuda_event_wait(event.0, stream));
        ok!(tcuda_event_synchronize(event.0));
    }
    fails!(INVALID_HANDLE, tcuda_event_record(event.0, handle(3)));
    fails!(INVALID_HANDLE, tcuda_event_wait(event.0, handle(3)));
}

fn elapsed(start: tcuda_event_t, end: tcuda_event_t) -> f32 {
    get!(-7.0, out => tcuda_event_elapsed_time(out, start, end))
}

fn elapsed_time_is_positive_between_records() {
    let (start, end, own) = (Event::new(TIMING), Event::new(TIMING), Own::new());
    ok!(tcuda_event_record(start.0, own.0));
    let gate = Gate::on(own.0);
    ok!(tcuda_event_record(end.0, own.0));
    gate.open_later().join().unwrap();
    ok!(tcuda_event_synchronize(end.0));
    let time = elapsed(start.0, end.0);
    assert!(time > 0.0 && time.is_finite());
    assert!(elapsed(end.0, start.0) < 0.0);
    assert_eq!(elapsed(start.0, start.0), 0.0);
    fails!(INVALID_ARGUMENT, tcuda_event_elapsed_time(null_mut(), start.0, end.0));
}

fn elapsed_time_needs_timing() {
    let (with, without, own) = (Event::new(TIMING), Event::new(NO_TIMING), Own::new());
    ok!(tcuda_event_record(with.0, own.0));
    ok!(tcuda_event_record(without.0, own.0));
    ok!(tcuda_stream_synchronize(own.0));
    let mut time = -7.0;
    for (start, end) in [(with.0, without.0), (without.0, with.0), (without.0, without.0)] {
        let said = fails!(INVALID_STATE, tcuda_event_elapsed_time(&mut time, start, end));
        assert!(said.contains("enable_timing=True"), "{said}");
    }
    assert_eq!(time, -7.0);
}

fn elapsed_time_needs_records() {
    let (recorded, never, own) = (Event::new(TIMING), Event::new(TIMING), Own::new());
    ok!(tcuda_event_record(recorded.0, own.0));
    ok!(tcuda_event_synchronize(recorded.0));
    let mut time = -7.0;
    for (start, end) in [(recorded.0, never.0), (never.0, recorded.0), (never.0, never.0)] {
        let said = fails!(INVALID_STATE, tcuda_event_elapsed_time(&mut time, start, end));
        assert_eq!(said, "Both events must be recorded before calculating elapsed time.");
    }
    assert_eq!(time, -7.0);
}

fn elapsed_time_needs_completion() {
    let (start, end, own) = (Event::new(TIMING), Event::new(TIMING), Own::new());
    ok!(tcuda_event_record(start.0, own.0));
    let gate = Gate::on(own.0);
    ok!(tcuda_event_record(end.0, own.0));
    let mut time = -7.0;
    let said = fails!(NOT_READY, tcuda_event_elapsed_time(&mut time, start.0, end.0));
    assert!(said.starts_with("Both events must be completed before calculating elapsed time."), "{said}");
    assert_eq!(time, -7.0);
    gate.open();
    ok!(tcuda_event_synchronize(end.0));
    elapsed(start.0, end.0);
}

fn elapsed_time_is_of_one_device() {
    let on_0 = Event::new(TIMING);
    set_device(1);
    let on_1 = Event::new(TIMING);
    ok!(tcuda_event_record(on_0.0, default_of(0)));
    ok!(tcuda_event_record(on_1.0, default_of(1)));
    ok!(tcuda_event_synchronize(on_0.0));
    ok!(tcuda_event_synchronize(on_1.0));
    let mut time = -7.0;
    let said = fails!(INVALID_ARGUMENT, tcuda_event_elapsed_time(&mut time, on_0.0, on_1.0));
    assert!(said.contains("device 0") && said.contains("device 1"), "{said}");
    assert_eq!((time, device()), (-7.0, 1));
}

fn null_is_no_event() {
    let (none, some, own) = (null_mut(), Event::new(TIMING), Own::new());
    let (mut truth, mut time) = (true, -7.0);
    ok!(tcuda_event_destroy(none));
    fails!(INVALID_HANDLE, tcuda_event_record(none, own.0));
    fails!(INVALID_HANDLE, tcuda_event_wait(none, own.0));
    fails!(INVALID_HANDLE, tcuda_event_query(none, &mut truth));
    fails!(INVALID_HANDLE, tcuda_event_synchronize(none));
    fails!(INVALID_HANDLE, tcuda_event_elapsed_time(&mut time, none, some.0));
    fails!(INVALID_HANDLE, tcuda_event_elapsed_time(&mut time, some.0, none));
    fails!(INVALID_HANDLE, tcuda_event_synchronize(5 as tcuda_event_t));
    fails!(INVALID_HANDLE, tcuda_event_destroy(5 as tcuda_event_t));
    assert_eq!((truth, time), (true, -7.0));
}

fn a_dead_event_is_refused_everywhere() {
    let (dead, some, own) = (Event::new(TIMING), Event::new(TIMING), Own::new());
    ok!(tcuda_event_record(dead.0, own.0));
    ok!(tcuda_event_record(some.0, own.0));
    ok!(tcuda_stream_synchronize(own.0));
    ok!(tcuda_event_destroy(dead.0));
    let (mut truth, mut time) = (true, -7.0);
    let said = fails!(INVALID_HANDLE, tcuda_event_destroy(dead.0));
    assert!(said.contains("destroyed"), "{said}");
    fails!(INVALID_HANDLE, tcuda_event_record(dead.0, own.0));
    fails!(INVALID_HANDLE, tcuda_event_wait(dead.0, own.0));
    fails!(INVALID_HANDLE, tcuda_stream_wait_event(own.0, dead.0));
    fails!(INVALID_HANDLE, tcuda_event_query(dead.0, &mut truth));
    fails!(INVALID_HANDLE, tcuda_event_synchronize(dead.0));
    fails!(INVALID_HANDLE, tcuda_event_elapsed_time(&mut time, dead.0, some.0));
    fails!(INVALID_HANDLE, tcuda_event_elapsed_time(&mut time, some.0, dead.0));
    assert_eq!((truth, time), (true, -7.0));
    // None of this harmed the device.
    ok!(tcuda::capi::device::tcuda_synchronize(-1));
    std::mem::forget(dead);
}

fn an_event_of_another_device_is_not_recorded() {
    let event = Event::new(NO_TIMING);
    let on_1 = Own::on(1);
    for stream in [on_1.0, default_of(1)] {
        let said = fails!(INVALID_ARGUMENT, tcuda_event_record(event.0, stream));
        assert!(said.starts_with("Event device 0 does not match recording stream's device 1. "), "{said}");
        assert!(said.ends_with("made while device 1 was current."), "{said}");
    }
    assert!(complete(event.0));
    ok!(tcuda_event_record(event.0, default_of(0)));
    ok!(tcuda_event_synchronize(event.0));
    assert_eq!(device(), 0);
}

fn an_event_of_another_device_is_waited_for() {
    let (event, on_0, on_1, diary) = (Event::new(NO_TIMING), Own::on(0), Own::on(1), Diary::default());
    let gate = Gate::on(on_0.0);
    diary.write_on(on_0.0, 1);
    ok!(tcuda_event_record(event.0, on_0.0));
    ok!(tcuda_event_wait(event.0, on_1.0));
    diary.write_on(on_1.0, 2);
    gate.open();
    ok!(tcuda_stream_synchronize(on_1.0));
    assert_eq!(diary.read(), [1, 2]);
    set_device(1);
    assert!(complete(event.0));
    ok!(tcuda_event_synchronize(event.0));
    assert_eq!(device(), 1);
}

fn events_of_somebody_else_work() {
    let own = Own::new();
    let foreign = runtime().unwrap().event_create(TIMING).unwrap() as tcuda_event_t;
    let ours = Event::new(TIMING);
    ok!(tcuda_event_record(foreign, own.0));
    ok!(tcuda_event_record(ours.0, own.0));
    ok!(tcuda_event_wait(foreign, NULL));
    ok!(tcuda_event_synchronize(ours.0));
    assert!(complete(foreign) && elapsed(foreign, ours.0) >= 0.0);
    ok!(tcuda_event_destroy(foreign));
    let untimed = runtime().unwrap().event_create(NO_TIMING).unwrap() as tcuda_event_t;
    ok!(tcuda_event_record(untimed, own.0));
    ok!(tcuda_event_synchronize(untimed));
    let mut time = -7.0;
    let said = fails!(INVALID_HANDLE, tcuda_event_elapsed_time(&mut time, untimed, ours.0));
    assert!(said.contains("timing") && time == -7.0, "{said}");
    ok!(tcuda_event_destroy(untimed));
}

fn events_of_the_pool_come_back() {
    use tcuda::event::pool;
    for device in 0..device_count() {
        let taken: Vec<_> = (0..40).map(|_| pool::take(device).unwrap()).collect();
        let mut distinct = taken.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 40);
        taken.iter().for_each(|event| pool::give(device, *event));
        let again = pool::take(device).unwrap();
        assert!(taken.contains(&again));
        pool::give(device, again);
        // What one thread left behind, another one gets.
        let from_thread = std::thread::spawn(move || {
            let event = pool::take(device).unwrap();
            pool::give(device, event);
            event
        });
        assert!(from_thread.join().unwrap() >= 0x1000);
    }
    assert_eq!(device(), 0);
}

fn many_events_at_once() {
    let own = Own::new();
    let events: Vec<_> = (0..1000).map(|index| Event::new(if index % 2 == 0 { TIMING } else { NO_TIMING })).collect();
    let gate = Gate::on(own.0);
    events.iter().for_each(|event| ok!(tcuda_event_record(event.0, own.0)));
    assert!(events.iter().all(|event| !complete(event.0)));
    gate.open();
    ok!(tcuda_stream_synchronize(own.0));
    assert!(events.iter().all(|event| complete(event.0)));
}

fn threads_record_and_wait() {
    let shared = Event::new(NO_TIMING);
    let address = shared.0 as usize;
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                let (shared, own) = (address as tcuda_event_t, Own::on(0));
                for _ in 0..100 {
                    let event = Event::new(NO_TIMING);
                    ok!(tcuda_event_record(event.0, own.0));
                    ok!(tcuda_event_record(shared, own.0));
                    ok!(tcuda_event_wait(shared, own.0));
                    complete(shared);
                    ok!(tcuda_event_synchronize(event.0));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    ok!(tcuda_event_synchronize(shared.0));
}
