//! Generators beside a device: threads that draw from one, what a launch that failed took, captures, geometries, handles. One simulated
//! machine; the tests take turns.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use tcuda::base::{Status, config};
use tcuda::device;
use tcuda::random::{self, Geometry, Handle};
use tcuda::runtime::{self, sim};
use tcuda::stream::Stream;

const DEFAULT: Stream = Stream { device: 0, raw: 0 };

static TURN: Mutex<()> = Mutex::new(());

fn machine() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    config::set("TCUDA_BACKEND", "sim".into());
    runtime::runtime().unwrap();
    sim::machine().unwrap().faults().clear();
    turn
}

fn offset(handle: &Handle) -> u64 {
    random::named(Some(handle), -1).unwrap().state().offset
}

#[test]
fn threads_draw_from_one_generator_and_no_number_twice() {
    let _turn = machine();
    let handle = random::create(0).unwrap();
    let drawn: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let draw = |thread: u64| {
            let mut drawn = Vec::new();
            for round in 0..500 {
                let generator = random::for_device(Some(&handle), 0).unwrap();
                let mut draws = generator.draws(DEFAULT).unwrap();
                let mut ends = draws.take(0).unwrap().offset;
                for increment in [thread + 1, round % 7] {
                    let begins = draws.take(increment).unwrap().offset;
                    // What one call takes is in a row, whatever the others do.
                    assert_eq!(begins, ends);
                    ends = begins + increment.next_multiple_of(4);
                    // A third of the launches fails.
                    if round % 3 != 0 {
                        drawn.push((begins, ends));
                    }
                }
                if round % 3 != 0 {
                    draws.commit();
                }
            }
            drawn
        };
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || draw(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut drawn: Vec<_> = drawn.into_iter().filter(|(begins, ends)| begins < ends).collect();
    drawn.sort_unstable();
    assert_eq!(drawn[0].0, 0);
    assert!(drawn.windows(2).all(|pair| pair[0].1 == pair[1].0), "a gap or an overlap");
    assert_eq!(drawn.last().unwrap().1, offset(&handle));
    random::destroy(handle).unwrap();
}

#[test]
fn nothing_is_taken_on_a_stream_that_is_captured() {
    let _turn = machine();
    let handle = random::create(0).unwrap();
    let generator = random::for_device(Some(&handle), 0).unwrap();
    // A capture of somebody else.
    let stream = tcuda::stream::create(0, 0).unwrap();
    let runtime = tcuda::runtime::runtime().unwrap();
    runtime.begin_capture(stream.raw, 0).unwrap();
    let error = generator.draws(stream).err().unwrap();
    assert_eq!(error.status, Status::TCUDA_ERROR_CAPTURE, "{error}");
    assert!(error.message.contains("by another than tcuda"), "{error}");
    runtime.graph_destroy(runtime.end_capture(stream.raw).unwrap()).unwrap();
    tcuda::stream::destroy(stream.raw).unwrap();
    let mut draws = generator.draws(DEFAULT).unwrap();
    assert_eq!(draws.take(4).unwrap().offset, 0);
    drop(draws);
    random::destroy(handle).unwrap();
}

#[test]
fn the_geometry_is_the_devices_until_another_is_given() {
    let _turn = machine();
    let handle = random::create(1).unwrap();
    let generator = random::for_device(Some(&handle), 1).unwrap();
    let properties = device::properties(1).unwrap();
    let multiprocessors = properties.multi_processor_count as u32;
    let own = Geometry::Device { multiprocessors, threads: properties.max_threads_per_multi_processor as u32 };
    let on = Stream { device: 1, raw: 0 };
    let geometry = || generator.draws(on).unwrap().geometry();
    assert_eq!((geometry(), generator.geometry()), (own, Ok(own)));
    // Whoever holds the generator sees it.
    let other = Geometry::named(40, 1024).unwrap();
    random::named(Some(&handle), -1).unwrap().set_geometry(Some(other));
    assert_eq!(geometry(), other);
    generator.set_geometry(Some(Geometry::Portable));
    assert_eq!(geometry(), Geometry::Portable);
    generator.set_geometry(None);
    assert_eq!(geometry(), own);
    random::destroy(handle).unwrap();
}

#[test]
fn a_generator_is_for_its_device_and_none_is_the_default_one() {
    let _turn = machine();
    let handle = random::create(1).unwrap();
    assert_eq!(random::for_device(Some(&handle), 1).unwrap().device(), 1);
    let error = random::for_device(Some(&handle), 0).err().unwrap();
    assert!(error.message.contains("'cuda:0'") && error.message.contains("'cuda:1'"), "{error}");
    for device in [0, 1] {
        let default = random::default_handle(device).unwrap();
        assert_eq!(random::for_device(None, device).unwrap().device(), device);
        assert!(std::sync::Arc::ptr_eq(&random::for_device(None, device).unwrap(), &random::for_device(Some(&default), device).unwrap()));
        assert_eq!(random::destroy(default).unwrap_err().status, Status::TCUDA_ERROR_INVALID_STATE);
    }
    assert_ne!(random::for_device(None, 0).unwrap().state().seed, random::for_device(None, 1).unwrap().state().seed);
    assert_eq!(random::default_handle(2).unwrap_err().status, Status::TCUDA_ERROR_INVALID_DEVICE);
    random::destroy(handle).unwrap();
}

#[test]
fn a_handle_is_dead_after_its_end_and_its_users_are_not() {
    let _turn = machine();
    let handle = random::create(0).unwrap();
    let generator = random::for_device(Some(&handle), 0).unwrap();
    let mut draws = generator.draws(DEFAULT).unwrap();
    random::destroy(handle).unwrap();
    draws.take(12).unwrap();
    draws.commit();
    assert_eq!(generator.state().offset, 12);
    let dead = |handle: Handle| random::named(Some(&handle), 0).err().unwrap().status;
    assert_eq!(dead(handle), Status::TCUDA_ERROR_INVALID_HANDLE);
    assert_eq!(random::destroy(handle).unwrap_err().status, Status::TCUDA_ERROR_INVALID_HANDLE);
    for garbage in [5, 2 * i32::MAX as usize + 1, usize::MAX, usize::MAX - 1, 0x7fff_dead_beef, 0x7fff_dead_bee0] {
        assert_eq!(dead(Handle(garbage.try_into().unwrap())), Status::TCUDA_ERROR_INVALID_HANDLE, "{garbage:#x}");
    }
    assert_ne!(random::create(0).unwrap(), handle);
}

#[test]
fn all_devices_get_a_state_or_none_does() {
    let _turn = machine();
    let wish = |device, seed| random::Wish { device, change: random::Change::Seed(seed) };
    let seeds =
        || -> BTreeMap<i32, u64> { (0..2).map(|device| (device, random::for_device(None, device).unwrap().state().seed)).collect() };
    random::set_default(&[wish(device::ALL, 5)]).unwrap();
    assert_eq!(seeds(), BTreeMap::from([(0, 5), (1, 5)]));
    let error = random::set_default(&[wish(0, 6), wish(1, 7), wish(2, 8)]).unwrap_err();
    assert_eq!(error.status, Status::TCUDA_ERROR_INVALID_DEVICE);
    assert_eq!(seeds(), BTreeMap::from([(0, 5), (1, 5)]));
    random::set_default(&[wish(1, 7), wish(device::CURRENT, 6)]).unwrap();
    assert_eq!(seeds(), BTreeMap::from([(0, 6), (1, 7)]));
}
