//! Streams: what handles mean, own and pooled and foreign streams, current streams, order, waiting, host functions.

use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::collections::BTreeSet;
use std::ptr::null_mut;
use tcuda::capi::device::{tcuda_device_count, tcuda_device_of};
use tcuda::capi::event::{tcuda_event_create, tcuda_event_destroy, tcuda_event_query};
use tcuda::capi::memory::{tcuda_free_cached, tcuda_malloc_cached};
use tcuda::capi::stream::*;
use tcuda::capi::structs::{tcuda_event_t, tcuda_stream_t};
use tcuda::runtime::runtime;

tests![
    special_handles_name_default_streams,
    null_is_of_the_current_device: [TwoDevices],
    small_numbers_are_no_streams,
    a_null_output_is_refused_everywhere,
    a_bad_device_is_refused_everywhere,
    own_streams_come_and_go,
    a_destroyed_stream_is_refused_everywhere,
    what_is_not_ours_is_not_destroyed,
    priorities_are_cut_to_the_range,
    the_pool_has_32_streams_in_turn,
    the_pool_has_levels,
    the_pool_serves_many_threads,
    the_pool_is_of_each_device: [TwoDevices],
    a_new_thread_has_default_streams,
    set_stream_sets_one_device,
    set_stream_switches_the_device: [TwoDevices],
    exchange_saves_and_restores,
    exchange_saves_and_restores_two_devices: [TwoDevices],
    a_threads_own_stream_is_of_one_device: [TwoDevices],
    a_destroyed_stream_is_current_no_more,
    query_and_synchronize,
    work_runs_in_order,
    streams_do_not_wait_for_each_other,
    wait_event_holds_a_stream_up,
    an_event_never_recorded_holds_nothing_up,
    wait_stream_holds_a_stream_up,
    wait_stream_takes_every_handle,
    streams_of_two_devices_wait_for_each_other: [TwoDevices],
    record_event_makes_an_event_or_takes_one,
    host_functions_need_a_function,
    foreign_streams_are_taken_as_they_are,
    foreign_streams_of_another_device: [TwoDevices],
    the_per_thread_default_stream_works,
    many_streams_at_once,
    threads_make_use_and_destroy_streams,
];

fn device_of(stream: tcuda_stream_t) -> i32 {
    get!(-7, out => tcuda_stream_device(stream, out))
}

fn native_of(stream: tcuda_stream_t) -> tcuda_stream_t {
    get!(handle(7), out => tcuda_stream_native(stream, out))
}

fn priority_of(stream: tcuda_stream_t) -> i32 {
    get!(-77, out => tcuda_stream_priority(stream, out))
}

fn complete(stream: tcuda_stream_t) -> bool {
    get!(false, out => tcuda_stream_query(stream, out))
}

fn current(device: i32) -> tcuda_stream_t {
    get!(handle(7), out => tcuda_current_stream(out, device))
}

fn pooled(device: i32, priority: i32) -> tcuda_stream_t {
    get!(NULL, out => tcuda_stream_from_pool(out, device, priority))
}

fn range(device: i32) -> (i32, i32) {
    let (mut least, mut greatest) = (-77, -77);
    ok!(tcuda_stream_priority_range(&mut least, &mut greatest, device));
    (least, greatest)
}

/// TCUDA_STREAM_PER_THREAD
fn per_thread(device: i32) -> tcuda_stream_t {
    handle(0x500 + device as usize)
}

fn special_handles_name_default_streams() {
    for stream in [NULL, handle(1), handle(CURRENT_STREAM), default_of(0)] {
        assert_eq!((device_of(stream), native_of(stream)), (0, NULL));
        ok!(tcuda_stream_synchronize(stream));
        assert!(complete(stream));
    }
    assert_eq!((device_of(handle(2)), native_of(handle(2))), (0, handle(2)));
    for device in 0..device_count() {
        assert_eq!(get!(NULL, out => tcuda_default_stream(out, device)), default_of(device));
        assert_eq!(device_of(default_of(device)), device);
        ok!(tcuda_stream_synchronize(default_of(device)));
    }
    assert_eq!(get!(NULL, out => tcuda_default_stream(out, -1)), default_of(0));
    fails!(INVALID_DEVICE, tcuda_stream_synchronize(default_of(device_count())));
    fails!(INVALID_DEVICE, tcuda_stream_synchronize(default_of(0x3ff)));
}

fn null_is_of_the_current_device() {
    for device in [1, 0] {
        set_device(device);
        for stream in [NULL, handle(1), handle(2), handle(CURRENT_STREAM)] {
            assert_eq!(device_of(stream), device);
            ok!(tcuda_stream_synchronize(stream));
        }
        assert_eq!(get!(NULL, out => tcuda_default_stream(out, -1)), default_of(device));
    }
}

fn small_numbers_are_no_streams() {
    for value in [3, 4, 0x7f, 0x81, 0xff, 0x900, 0xfff] {
        let said = fails!(INVALID_HANDLE, tcuda_stream_synchronize(handle(value)));
        assert!(said.contains(&format!("{value:#x}")), "{said}");
        fails!(INVALID_HANDLE, tcuda_set_stream(handle(value)));
    }
}

fn a_null_output_is_refused_everywhere() {
    let own = Own::new();
    let mut number = -7;
    fails!(INVALID_ARGUMENT, tcuda_stream_create(null_mut(), -1, 0));
    fails!(INVALID_ARGUMENT, tcuda_stream_from_pool(null_mut(), -1, 0));
    fails!(INVALID_ARGUMENT, tcuda_stream_native(own.0, null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_stream_device(own.0, null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_stream_priority(own.0, null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_stream_priority_range(null_mut(), &mut number, -1));
    fails!(INVALID_ARGUMENT, tcuda_stream_priority_range(&mut number, null_mut(), -1));
    fails!(INVALID_ARGUMENT, tcuda_current_stream(null_mut(), -1));
    fails!(INVALID_ARGUMENT, tcuda_default_stream(null_mut(), -1));
    fails!(INVALID_ARGUMENT, tcuda_exchange_stream(null_mut(), null_mut(), own.0));
    fails!(INVALID_ARGUMENT, tcuda_stream_query(own.0, null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_stream_record_event(own.0, null_mut()));
    assert_eq!((number, current(-1)), (-7, default_of(0)));
}

fn a_bad_device_is_refused_everywhere() {
    for bad in bad_devices() {
        let (mut stream, mut number, mut other) = (handle(7), -7, -7);
        let said = fails!(INVALID_DEVICE, tcuda_stream_create(&mut stream, bad, 0));
        assert!(said.contains(&format!("Device index value {bad} is out of index range [0, {})", device_count())), "{said}");
        fails!(INVALID_DEVICE, tcuda_stream_from_pool(&mut stream, bad, 0));
        fails!(INVALID_DEVICE, tcuda_stream_priority_range(&mut number, &mut other, bad));
        fails!(INVALID_DEVICE, tcuda_current_stream(&mut stream, bad));
        fails!(INVALID_DEVICE, tcuda_default_stream(&mut stream, bad));
        assert_eq!((stream, number, other), (handle(7), -7, -7));
    }
}

fn own_streams_come_and_go() {
    let (first, second) = (create_on(-1), create_on(-1));
    assert!(first != second && first as usize >= 0x1000);
    assert_eq!((device_of(first), native_of(first)), (0, first));
    ok!(tcuda_stream_destroy(first));
    ok!(tcuda_stream_destroy(NULL));
    ok!(tcuda_stream_synchronize(second));
    // Work given before still runs.
    let diary = Diary::default();
    let gate = Gate::on(second);
    diary.write_on(second, 1);
    ok!(tcuda_stream_destroy(second));
    gate.open();
    let third = Own::new();
    diary.write_on(third.0, 2);
    ok!(tcuda_synchronize_all());
    assert_eq!(BTreeSet::from_iter(diary.read()), BTreeSet::from([1, 2]));
}

fn tcuda_synchronize_all() -> tcuda::base::Status {
    tcuda::capi::device::tcuda_synchronize(-1)
}

fn a_destroyed_stream_is_refused_everywhere() {
    let (dead, own) = (create_on(-1), Own::new());
    ok!(tcuda_stream_destroy(dead));
    let (mut stream, mut number, mut truth) = (handle(7), -7, true);
    let event = get!(null_mut(), out => tcuda_event_create(out, 2));
    let mut none: tcuda_event_t = null_mut();
    let said = fails!(INVALID_HANDLE, tcuda_stream_destroy(dead));
    assert!(said.contains("destroyed"), "{said}");
    fails!(INVALID_HANDLE, tcuda_stream_native(dead, &mut stream));
    fails!(INVALID_HANDLE, tcuda_stream_device(dead, &mut number));
    fails!(INVALID_HANDLE, tcuda_stream_priority(dead, &mut number));
    fails!(INVALID_HANDLE, tcuda_set_stream(dead));
    fails!(INVALID_HANDLE, tcuda_exchange_stream(&mut stream, null_mut(), dead));
    fails!(INVALID_HANDLE, tcuda_stream_query(dead, &mut truth));
    fails!(INVALID_HANDLE, tcuda_stream_synchronize(dead));
    fails!(INVALID_HANDLE, tcuda_stream_record_event(dead, &mut none));
    fails!(INVALID_HANDLE, tcuda_stream_wait_event(dead, event));
    fails!(INVALID_HANDLE, tcuda_stream_wait_stream(dead, own.0));
    fails!(INVALID_HANDLE, tcuda_stream_wait_stream(own.0, dead));
    fails!(INVALID_HANDLE, tcuda_stream_add_host_function(dead, Some(never), null_mut()));
    fails!(INVALID_HANDLE, tcuda_stream_register(dead, -1));
    fails!(INVALID_HANDLE, tcuda_stream_unregister(dead));
    fails!(INVALID_HANDLE, tcuda::capi::event::tcuda_event_record(event, dead));
    fails!(INVALID_HANDLE, tcuda::capi::event::tcuda_event_wait(event, dead));
    assert_eq!((stream, number, truth, none), (handle(7), -7, true, null_mut()));
    ok!(tcuda_event_destroy(event));
}

unsafe extern "C" fn never(_: *mut std::ffi::c_void) {
    panic!("a host function of a refused call was called");
}

fn what_is_not_ours_is_not_destroyed() {
    for special in [handle(1), handle(2), handle(CURRENT_STREAM), default_of(0)] {
        fails!(INVALID_HANDLE, tcuda_stream_destroy(special));
        fails!(INVALID_HANDLE, tcuda_stream_register(special, -1));
        fails!(INVALID_HANDLE, tcuda_stream_unregister(special));
    }
    let pool = pooled(-1, 0);
    let said = fails!(INVALID_STATE, tcuda_stream_destroy(pool));
    assert!(said.contains("pool"), "{said}");
    fails!(INVALID_STATE, tcuda_stream_unregister(pool));
    ok!(tcuda_stream_synchronize(pool));
    let own = Own::new();
    fails!(INVALID_HANDLE, tcuda_stream_unregister(own.0));
    ok!(tcuda_stream_synchronize(own.0));
}

fn priorities_are_cut_to_the_range() {
    let (least, greatest) = range(-1);
    assert_eq!(least, 0);
    assert!((-3..=0).contains(&greatest), "{greatest}");
    let mut last = i32::MAX;
    for asked in [i32::MAX, 5, 1, 0, -1, -2, -3, -100, i32::MIN] {
        let stream = get!(NULL, out => tcuda_stream_create(out, -1, asked));
        let given = priority_of(stream);
        assert!(given <= 0 && given <= last, "{asked} gave {given}");
        assert!(!(greatest..=least).contains(&asked) || given == asked);
        last = given;
        ok!(tcuda_stream_destroy(stream));
        let given = priority_of(pooled(-1, asked));
        assert_eq!(given, asked.clamp(greatest, least));
    }
    assert!(last <= greatest);
}

fn the_pool_has_32_streams_in_turn() {
    let drawn: Vec<_> = (0..65).map(|_| pooled(-1, 0)).collect();
    assert_eq!(drawn[..32].iter().collect::<BTreeSet<_>>().len(), 32);
    assert_eq!((drawn[0], drawn[1], drawn[0]), (drawn[32], drawn[33], drawn[64]));
    for stream in &drawn[..32] {
        assert_eq!((device_of(*stream), complete(*stream)), (0, true));
        assert!(*stream as usize >= 0x1000);
    }
}

fn the_pool_has_levels() {
    let (least, greatest) = range(-1);
    let mut seen = BTreeSet::new();
    for priority in greatest..=least {
        let level: BTreeSet<_> = (0..32).map(|_| pooled(-1, priority)).collect();
        assert_eq!(level.len(), 32);
        assert!(level.iter().all(|stream| priority_of(*stream) == priority));
        assert!(level.is_disjoint(&seen));
        seen.extend(level);
    }
    for (beyond, priority) in [(i32::MAX, least), (i32::MIN, greatest)] {
        let level: BTreeSet<_> = (0..32).map(|_| pooled(-1, beyond)).collect();
        assert!(level.iter().all(|stream| priority_of(*stream) == priority && seen.contains(stream)));
    }
}

fn the_pool_serves_many_threads() {
    let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(|| (0..64).map(|_| pooled(0, 0) as usize).collect::<Vec<_>>())).collect();
    let mut drawn: Vec<usize> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    drawn.sort_unstable();
    // 512 draws are 16 rounds.
    assert!(drawn.chunks(16).all(|same| same.iter().all(|stream| *stream == same[0])));
    drawn.dedup();
    assert_eq!(drawn.len(), 32);
}

fn the_pool_is_of_each_device() {
    let (on_0, on_1) = (pooled(0, 0), pooled(1, 0));
    assert_eq!((device_of(on_0), device_of(on_1)), (0, 1));
    set_device(1);
    assert_eq!(device_of(pooled(-1, 0)), 1);
    ok!(tcuda_stream_synchronize(on_0));
    assert_eq!(device(), 1);
}

fn a_new_thread_has_default_streams() {
    let own = Own::new();
    ok!(tcuda_set_stream(own.0));
    assert_eq!((current(-1), current(0)), (own.0, own.0));
    std::thread::spawn(|| {
        for device in 0..device_count() {
            assert_eq!(current(device), default_of(device));
        }
    })
    .join()
    .unwrap();
    assert_eq!(current(-1), own.0);
}

fn set_stream_sets_one_device() {
    let (own, pool) = (Own::new(), pooled(-1, 0));
    for stream in [own.0, pool, per_thread(0)] {
        ok!(tcuda_set_stream(stream));
        assert_eq!(current(0), stream);
        assert_eq!((device_of(handle(CURRENT_STREAM)), native_of(handle(CURRENT_STREAM))), (0, native_of(stream)));
        ok!(tcuda_set_stream(handle(CURRENT_STREAM)));
        assert_eq!(current(0), stream);
        for other in 1..device_count() {
            assert_eq!(current(other), default_of(other));
        }
    }
    for back in [NULL, handle(1), default_of(0)] {
        ok!(tcuda_set_stream(own.0));
        ok!(tcuda_set_stream(back));
        assert_eq!(current(0), default_of(0));
    }
}

fn set_stream_switches_the_device() {
    let (on_0, on_1) = (Own::on(0), Own::on(1));
    ok!(tcuda_set_stream(on_0.0));
    ok!(tcuda_set_stream(on_1.0));
    assert_eq!((device(), current(-1), current(0), current(1)), (1, on_1.0, on_0.0, on_1.0));
    // NULL is the default stream of the device that is current.
    ok!(tcuda_set_stream(NULL));
    assert_eq!((device(), current(0), current(1)), (1, on_0.0, default_of(1)));
    ok!(tcuda_set_stream(default_of(0)));
    assert_eq!((device(), current(0)), (0, default_of(0)));
}

fn exchange_saves_and_restores() {
    let (first, second) = (Own::new(), Own::new());
    ok!(tcuda_set_stream(first.0));
    let (mut previous, mut replaced) = (NULL, NULL);
    ok!(tcuda_exchange_stream(&mut previous, &mut replaced, second.0));
    assert_eq!((previous, replaced, current(-1)), (first.0, first.0, second.0));
    assert_eq!(get!(NULL, out => tcuda_exchange_stream(out, null_mut(), handle(CURRENT_STREAM))), second.0);
    ok!(tcuda_set_stream(replaced));
    ok!(tcuda_set_stream(previous));
    assert_eq!(current(-1), first.0);
    fails!(INVALID_HANDLE, tcuda_exchange_stream(&mut previous, &mut replaced, handle(5)));
    // TCUDA_STREAM_DEFAULT(TCUDA_DEVICE_CURRENT)
    let said = fails!(INVALID_HANDLE, tcuda_exchange_stream(&mut previous, &mut replaced, handle(0xff)));
    assert!(said.contains("TCUDA_STREAM_DEFAULT(-1)") && said.contains("tcuda_default_stream"), "{said}");
    assert_eq!((previous, replaced, current(-1)), (first.0, first.0, first.0));
}

fn exchange_saves_and_restores_two_devices() {
    let (on_0, on_1, new) = (Own::on(0), Own::on(1), Own::on(1));
    ok!(tcuda_set_stream(on_1.0));
    ok!(tcuda_set_stream(on_0.0));
    let (mut previous, mut replaced) = (NULL, NULL);
    // What is current there could not come back.
    let said = fails!(INVALID_ARGUMENT, tcuda_exchange_stream(&mut previous, null_mut(), new.0));
    assert!(said.contains("'replaced' is NULL") && said.contains("device 1"), "{said}");
    assert_eq!((previous, device(), current(0), current(1)), (NULL, 0, on_0.0, on_1.0));
    ok!(tcuda_exchange_stream(&mut previous, &mut replaced, new.0));
    assert_eq!((previous, replaced), (on_0.0, on_1.0));
    assert_eq!((device(), current(0), current(1)), (1, on_0.0, new.0));
    ok!(tcuda_set_stream(replaced));
    ok!(tcuda_set_stream(previous));
    assert_eq!((device(), current(0), current(1)), (0, on_0.0, on_1.0));
}

fn a_destroyed_stream_is_current_no_more() {
    let stream = create_on(-1);
    ok!(tcuda_set_stream(stream));
    let address = stream as usize;
    std::thread::spawn(move || ok!(tcuda_stream_destroy(handle(address)))).join().unwrap();
    assert_eq!(current(-1), default_of(0));
    ok!(tcuda_stream_synchronize(handle(CURRENT_STREAM)));
    // Also when a new stream has the old one's handle.
    let again: Vec<_> = (0..4).map(|_| Own::new()).collect();
    assert_eq!(current(-1), default_of(0));
    drop(again);
}

fn query_and_synchronize() {
    let own = Own::new();
    assert!(complete(own.0));
    let gate = Gate::on(own.0);
    assert!(!complete(own.0));
    let opener = gate.open_later();
    ok!(tcuda_stream_synchronize(own.0));
    assert!(gate.was_passed() && complete(own.0));
    opener.join().unwrap();
}

fn work_runs_in_order() {
    let (own, diary) = (Own::new(), Diary::default());
    let gate = Gate::on(own.0);
    (0..100).for_each(|entry| diary.write_on(own.0, entry));
    assert!(diary.read().is_empty());
    gate.open();
    ok!(tcuda_stream_synchronize(own.0));
    assert_eq!(diary.read(), (0..100).collect::<Vec<_>>());
}

fn streams_do_not_wait_for_each_other() {
    let (busy, free) = (Own::new(), Own::new());
    let gate = Gate::on(busy.0);
    ok!(tcuda_stream_synchronize(free.0));
    assert!(complete(free.0) && !complete(busy.0));
    drop(gate);
    ok!(tcuda_stream_synchronize(busy.0));
}

fn wait_event_holds_a_stream_up() {
    let (first, second, diary) = (Own::new(), Own::new(), Diary::default());
    let gate = Gate::on(first.0);
    diary.write_on(first.0, 1);
    let event = get!(null_mut(), out => tcuda_stream_record_event(first.0, out));
    ok!(tcuda_stream_wait_event(second.0, event));
    // The wait holds when the event is gone.
    ok!(tcuda_event_destroy(event));
    diary.write_on(second.0, 2);
    assert!(!complete(second.0) && diary.read().is_empty());
    gate.open();
    ok!(tcuda_stream_synchronize(second.0));
    assert_eq!(diary.read(), [1, 2]);
}

fn an_event_never_recorded_holds_nothing_up() {
    let own = Own::new();
    let event = get!(null_mut(), out => tcuda_event_create(out, 2));
    ok!(tcuda_stream_wait_event(own.0, event));
    ok!(tcuda_stream_synchronize(own.0));
    ok!(tcuda_event_destroy(event));
    fails!(INVALID_HANDLE, tcuda_stream_wait_event(own.0, null_mut()));
}

fn wait_stream_holds_a_stream_up() {
    let (first, second, diary) = (Own::new(), Own::new(), Diary::default());
    for round in 0..50 {
        let gate = Gate::on(first.0);
        diary.write_on(first.0, 2 * round);
        ok!(tcuda_stream_wait_stream(second.0, first.0));
        diary.write_on(second.0, 2 * round + 1);
        gate.open();
        // And back, so that the next round starts when this one is over.
        ok!(tcuda_stream_wait_stream(first.0, second.0));
    }
    ok!(tcuda_stream_synchronize(first.0));
    assert_eq!(diary.read(), (0..100).collect::<Vec<_>>());
}

fn wait_stream_takes_every_handle() {
    let own = Own::new();
    for other in [NULL, handle(1), handle(2), handle(CURRENT_STREAM), default_of(0), pooled(-1, 0), own.0] {
        ok!(tcuda_stream_wait_stream(own.0, other));
        ok!(tcuda_stream_wait_stream(other, own.0));
        ok!(tcuda_stream_wait_stream(other, other));
    }
    ok!(tcuda_stream_synchronize(own.0));
}

fn streams_of_two_devices_wait_for_each_other() {
    let (on_0, on_1, diary) = (Own::on(0), Own::on(1), Diary::default());
    let gate = Gate::on(on_1.0);
    diary.write_on(on_1.0, 1);
    ok!(tcuda_stream_wait_stream(on_0.0, on_1.0));
    diary.write_on(on_0.0, 2);
    ok!(tcuda_stream_wait_stream(default_of(1), on_0.0));
    diary.write_on(default_of(1), 3);
    assert!(!complete(on_0.0));
    gate.open();
    ok!(tcuda_stream_synchronize(default_of(1)));
    assert_eq!((diary.read(), device()), (vec![1, 2, 3], 0));
}

fn record_event_makes_an_event_or_takes_one() {
    for device in 0..device_count() {
        let own = Own::on(device);
        let gate = Gate::on(own.0);
        let mut event = get!(null_mut(), out => tcuda_stream_record_event(own.0, out));
        let made = event;
        assert!(!get!(true, out => tcuda_event_query(event, out)));
        gate.open();
        ok!(tcuda_stream_synchronize(own.0));
        assert!(get!(false, out => tcuda_event_query(event, out)));
        ok!(tcuda_stream_record_event(own.0, &mut event));
        assert_eq!(event, made);
        ok!(tcuda_event_destroy(event));
    }
    assert_eq!(device(), 0);
}

fn host_functions_need_a_function() {
    let own = Own::new();
    let said = fails!(INVALID_ARGUMENT, tcuda_stream_add_host_function(own.0, None, null_mut()));
    assert!(said.contains("'function'"), "{said}");
    for stream in [NULL, handle(1), handle(2), handle(CURRENT_STREAM), default_of(device_count() - 1), pooled(-1, 0)] {
        let diary = Diary::default();
        diary.write_on(stream, 1);
        ok!(tcuda_stream_synchronize(stream));
        assert_eq!(diary.read(), [1]);
    }
    assert_eq!(device(), 0);
}

fn foreign_streams_are_taken_as_they_are() {
    let raw = runtime().unwrap().stream_create(0, 0).unwrap();
    let foreign = handle(raw);
    assert_eq!((device_of(foreign), native_of(foreign), complete(foreign)), (0, foreign, true));
    let diary = Diary::default();
    diary.write_on(foreign, 1);
    ok!(tcuda_stream_synchronize(foreign));
    assert_eq!(diary.read(), [1]);
    ok!(tcuda_set_stream(foreign));
    assert_eq!(current(-1), foreign);
    let said = fails!(INVALID_HANDLE, tcuda_stream_destroy(foreign));
    assert!(said.contains("owner"), "{said}");
    ok!(tcuda_stream_register(foreign, 0));
    ok!(tcuda_stream_register(foreign, -1));
    ok!(tcuda_stream_unregister(foreign));
    assert_eq!(current(-1), default_of(0));
    let said = fails!(INVALID_HANDLE, tcuda_stream_unregister(foreign));
    assert!(said.contains("no stream that tcuda knows"), "{said}");
    ok!(tcuda_stream_unregister(NULL));
    fails!(INVALID_DEVICE, tcuda_stream_register(foreign, device_count()));
    runtime().unwrap().stream_destroy(raw).unwrap();
}

fn foreign_streams_of_another_device() {
    set_device(1);
    let raw = runtime().unwrap().stream_create(1, 0).unwrap();
    set_device(0);
    let foreign = handle(raw);
    let said = fails!(INVALID_ARGUMENT, tcuda_stream_register(foreign, 0));
    assert!(said.contains("device 1"), "{said}");
    ok!(tcuda_stream_register(foreign, 1));
    assert_eq!(device_of(foreign), 1);
    ok!(tcuda_stream_wait_stream(foreign, NULL));
    ok!(tcuda_stream_synchronize(foreign));
    ok!(tcuda_stream_unregister(foreign));
    assert_eq!(device(), 0);
    runtime().unwrap().stream_destroy(raw).unwrap();
}

/// As what is current, too: it comes back to its device.
fn a_threads_own_stream_is_of_one_device() {
    let current = |device| get!(NULL, out => tcuda_current_stream(out, device));
    for device in [0, 1] {
        assert_eq!((device_of(per_thread(device)), native_of(per_thread(device))), (device, handle(2)));
        set_device(device);
        ok!(tcuda_set_stream(handle(2)));
        assert_eq!((current(-1), current(device)), (per_thread(device), per_thread(device)));
    }
    assert_eq!(device_of(current(0)), 0);
    let (own, other) = (Own::on(1), Own::on(1));
    ok!(tcuda_set_stream(own.0));
    for way in [handle(2), default_of(0)] {
        set_device(0);
        ok!(tcuda_set_stream(way));
        let (mut previous, mut replaced) = (NULL, NULL);
        ok!(tcuda_exchange_stream(&mut previous, &mut replaced, other.0));
        assert_eq!((previous, replaced), (current(0), own.0));
        ok!(tcuda_set_stream(replaced));
        ok!(tcuda_set_stream(previous));
        assert_eq!((device(), current(0), current(1)), (0, previous, own.0));
    }
    fails!(INVALID_DEVICE, tcuda_stream_synchronize(per_thread(device_count())));
    // Memory for it lies where it works.
    let block = get!(null_mut(), out => tcuda_malloc_cached(out, 512, per_thread(1)));
    assert_eq!(get!(-7, out => tcuda_device_of(out, block)), 1);
    ok!(tcuda_free_cached(block));
    (0..2).rev().for_each(|device| ok!(tcuda_set_stream(default_of(device))));
}

fn the_per_thread_default_stream_works() {
    let per_thread = handle(2);
    let diary = Diary::default();
    let gate = Gate::on(per_thread);
    diary.write_on(per_thread, 1);
    assert!(!complete(per_thread));
    // Another thread's is another stream.
    assert!(std::thread::spawn(|| complete(handle(2))).join().unwrap());
    gate.open();
    ok!(tcuda_stream_synchronize(per_thread));
    assert_eq!(diary.read(), [1]);
}

fn many_streams_at_once() {
    for _ in 0..2 {
        let streams: Vec<_> = (0..200).map(|_| Own::new()).collect();
        assert_eq!(streams.iter().map(|own| own.0).collect::<BTreeSet<_>>().len(), 200);
        let diary = Diary::default();
        streams.iter().enumerate().for_each(|(index, own)| diary.write_on(own.0, index as i32));
        streams.iter().for_each(|own| ok!(tcuda_stream_synchronize(own.0)));
        assert_eq!(diary.read().len(), 200);
    }
}

fn threads_make_use_and_destroy_streams() {
    let threads: Vec<_> = (0..8)
        .map(|index| {
            std::thread::spawn(move || {
                let mut count = 0;
                for round in 0..60 {
                    let stream = get!(NULL, out => tcuda_stream_create(out, index % device_count(), -(round % 4)));
                    ok!(tcuda_set_stream(stream));
                    assert_eq!(current(-1), stream);
                    ok!(tcuda_stream_wait_stream(stream, pooled(-1, 0)));
                    let diary = Diary::default();
                    diary.write_on(handle(CURRENT_STREAM), round);
                    ok!(tcuda_stream_synchronize(stream));
                    assert_eq!(diary.read(), [round]);
                    ok!(tcuda_stream_destroy(stream));
                    fails!(INVALID_HANDLE, tcuda_stream_destroy(handle(3)));
                    assert_eq!(current(-1), default_of(index % device_count()));
                    count += get!(0, out => tcuda_device_count(out));
                }
                count
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 60 * device_count()));
}
