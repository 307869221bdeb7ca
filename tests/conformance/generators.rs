//! Generators: states, seeds, the default ones, what is set before the first use, geometries, what philox_state hands out.

use crate::init::{forked, in_child};
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ptr::null_mut;
use tcuda::capi::error::tcuda_set_log_callback;
use tcuda::capi::init::{tcuda_backend_name, tcuda_init, tcuda_is_initialized, tcuda_shutdown};
use tcuda::capi::random::*;
use tcuda::random::PhiloxState;

tests![
    a_new_generator_is_as_torch_makes_it,
    a_state_is_the_seed_and_the_offset,
    what_is_no_state_is_refused,
    a_clone_goes_its_own_way,
    each_device_has_one_default_generator,
    null_is_the_default_generator_in_question,
    seeds_are_set_on_one_device_or_on_all,
    states_of_all_devices_go_round,
    seeds_that_nobody_chose_differ,
    numbers_are_handed_out_once,
    a_generator_is_for_streams_of_its_device: [TwoDevices],
    a_geometry_is_kept_with_the_generator,
    handles_end_once,
    seeds_before_the_first_use_are_done_in_order,
    a_state_set_before_the_first_use_stands_behind_a_seed,
    a_seed_waits_beyond_a_fork,
    seeds_without_a_device_wait,
    a_shutdown_ends_generators_and_what_was_seeded,
];

const NONE: tcuda_generator_t = null_mut();

/// A generator for the length of a test.
struct Own(tcuda_generator_t);

impl Own {
    fn on(device: i32) -> Own {
        Own(get!(NONE, out => tcuda_generator_create(out, device)))
    }

    fn seeded(seed: u64) -> Own {
        let own = Own::on(-1);
        ok!(tcuda_generator_manual_seed(own.0, seed));
        own
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        tcuda_generator_destroy(self.0);
    }
}

fn default_of(device: i32) -> tcuda_generator_t {
    get!(NONE, out => tcuda_default_generator(out, device))
}

fn seed(generator: tcuda_generator_t) -> u64 {
    get!(1, out => tcuda_generator_initial_seed(generator, out))
}

fn offset(generator: tcuda_generator_t) -> u64 {
    get!(1, out => tcuda_generator_get_offset(generator, out))
}

fn state(generator: tcuda_generator_t) -> [u8; 16] {
    let mut state = [0xA5; 16];
    ok!(tcuda_generator_get_state(generator, state.as_mut_ptr(), state.len()));
    state
}

fn bytes(seed: u64, offset: u64) -> [u8; 16] {
    (u128::from(seed) | u128::from(offset) << 64).to_le_bytes()
}

fn philox(generator: tcuda_generator_t, increment: u64, stream: tcuda::capi::structs::tcuda_stream_t) -> PhiloxState {
    let start = PhiloxState { seed: 1, offset: 1, offset_intragraph: 1, captured: 1, reserved: 1 };
    get!(start, out => tcuda_generator_philox_state(out, generator, increment, stream))
}

fn a_new_generator_is_as_torch_makes_it() {
    for device in 0..device_count() {
        let own = Own::on(device);
        assert_eq!((seed(own.0), offset(own.0)), (67_280_421_310_721, 0));
        assert_eq!(get!(-1, out => tcuda_generator_device(own.0, out)), device);
    }
    let current = Own::on(-1);
    assert_eq!(get!(-1, out => tcuda_generator_device(current.0, out)), device());
    for bad in bad_devices() {
        fails!(INVALID_DEVICE, tcuda_generator_create(&mut { NONE }, bad));
        fails!(INVALID_DEVICE, tcuda_default_generator(&mut { NONE }, bad));
    }
}

fn a_state_is_the_seed_and_the_offset() {
    let own = Own::seeded(u64::MAX);
    ok!(tcuda_generator_set_offset(own.0, 1 << 40));
    assert_eq!(state(own.0), bytes(u64::MAX, 1 << 40));
    let earlier = state(own.0);
    philox(own.0, 9, NULL);
    assert_eq!(offset(own.0), (1 << 40) + 12);
    ok!(tcuda_generator_set_state(own.0, earlier.as_ptr(), 16));
    assert_eq!(state(own.0), earlier);
    // A seed begins at 0 again, also the same one.
    ok!(tcuda_generator_manual_seed(own.0, u64::MAX));
    assert_eq!(state(own.0), bytes(u64::MAX, 0));
    ok!(tcuda_generator_set_offset(own.0, 8));
    ok!(tcuda_generator_set_state(own.0, earlier.as_ptr(), 8));
    assert_eq!(state(own.0), bytes(u64::MAX, 0));
}

fn what_is_no_state_is_refused() {
    let own = Own::seeded(3);
    let mut buffer = [0u8; 64];
    for size in [0, 1, 7, 9, 15, 17, 24, 32, 64, usize::MAX / 2, usize::MAX] {
        let said = fails!(INVALID_ARGUMENT, tcuda_generator_set_state(own.0, buffer.as_ptr(), size));
        assert!(said.starts_with("RNG state is wrong size"), "{said}");
        let said = fails!(INVALID_ARGUMENT, tcuda_set_rng_state(buffer.as_ptr(), size, 0));
        assert!(said.starts_with("RNG state is wrong size"), "{said}");
    }
    fails!(INVALID_ARGUMENT, tcuda_generator_set_state(own.0, std::ptr::null(), 16));
    for wrong in [1, 2, 3, 5, u64::MAX] {
        let said = fails!(INVALID_ARGUMENT, tcuda_generator_set_offset(own.0, wrong));
        assert!(said.starts_with("offset must be a multiple of 4") && said.contains(&wrong.to_string()), "{said}");
        fails!(INVALID_ARGUMENT, tcuda_generator_set_state(own.0, bytes(3, wrong).as_ptr(), 16));
    }
    for size in 0..16 {
        fails!(BUFFER_TOO_SMALL, tcuda_generator_get_state(own.0, buffer.as_mut_ptr(), size));
        fails!(BUFFER_TOO_SMALL, tcuda_get_rng_state(buffer.as_mut_ptr(), size, 0));
        assert_eq!(last_error().bytes, 16);
    }
    fails!(INVALID_ARGUMENT, tcuda_generator_get_state(own.0, null_mut(), 16));
    assert_eq!(buffer, [0; 64]);
    assert_eq!(state(own.0), bytes(3, 0));
    // What there is to take is taken, and no more.
    ok!(tcuda_generator_set_offset(own.0, u64::MAX - 3));
    let said = fails!(INVALID_ARGUMENT, tcuda_generator_philox_state(&mut { philox(own.0, 0, NULL) }, own.0, 1, NULL));
    assert!(said.contains("64 bits"), "{said}");
    assert_eq!(state(own.0), bytes(3, u64::MAX - 3));
}

fn a_clone_goes_its_own_way() {
    let own = Own::seeded(3);
    philox(own.0, 4, NULL);
    ok!(tcuda_generator_set_geometry(own.0, TCUDA_GEOMETRY_PORTABLE, 0, 0));
    let clone = Own(get!(NONE, out => tcuda_generator_clone(out, own.0)));
    assert_eq!((state(clone.0), geometry(clone.0).0), (bytes(3, 4), TCUDA_GEOMETRY_PORTABLE));
    philox(clone.0, 4, NULL);
    assert_eq!((offset(own.0), offset(clone.0)), (4, 8));
    // Of the default one it is a generator as any other.
    let clone = Own(get!(NONE, out => tcuda_generator_clone(out, NONE)));
    assert_eq!(state(clone.0), state(NONE));
    ok!(tcuda_generator_manual_seed(clone.0, seed(NONE).wrapping_add(1)));
    assert_ne!(seed(clone.0), seed(NONE));
}

fn each_device_has_one_default_generator() {
    for device in 0..device_count() {
        let default = default_of(device);
        assert_eq!(default, default_of(device));
        assert_eq!(get!(-1, out => tcuda_generator_device(default, out)), device);
        ok!(tcuda_generator_manual_seed(default, 40 + device as u64));
        let mut state = [0u8; 16];
        ok!(tcuda_get_rng_state(state.as_mut_ptr(), 16, device));
        assert_eq!(state, bytes(40 + device as u64, 0));
        let said = fails!(INVALID_STATE, tcuda_generator_destroy(default));
        assert!(said.contains("default generator"), "{said}");
        ok!(tcuda_set_rng_state(bytes(6, 12).as_ptr(), 16, device));
        assert_eq!((seed(default), offset(default)), (6, 12));
    }
    assert_eq!(default_of(-1), default_of(device()));
}

fn null_is_the_default_generator_in_question() {
    for device in 0..device_count() {
        set_device(device);
        ok!(tcuda_manual_seed(70 + device as u64));
        assert_eq!(seed(NONE), 70 + device as u64);
        assert_eq!(get!(-1, out => tcuda_generator_device(NONE, out)), device);
        assert_eq!(get!(0, out => tcuda_initial_seed(out)), seed(NONE));
    }
    set_device(0);
    // With a stream it is that of the stream's device, whatever device is current.
    for device in 0..device_count() {
        let taken = philox(NONE, 4, crate::kit::default_of(device));
        assert_eq!((taken.seed, taken.offset), (70 + device as u64, 0));
        assert_eq!(offset(default_of(device)), 4);
    }
}

fn seeds_are_set_on_one_device_or_on_all() {
    ok!(tcuda_manual_seed_all(5));
    ok!(tcuda_manual_seed(6));
    let all: Vec<u64> = (0..device_count()).map(|device| seed(default_of(device))).collect();
    assert_eq!(all[0], 6);
    assert!(all[1..].iter().all(|seed| *seed == 5), "{all:?}");
    let one = get!(0, out => tcuda_seed(out));
    assert!(seed(NONE) == one && one < 1 << 53);
    let common = get!(0, out => tcuda_seed_all(out));
    assert!((0..device_count()).all(|device| seed(default_of(device)) == common));
    // A state for all, which torch has by a loop.
    ok!(tcuda_set_rng_state(bytes(8, 4).as_ptr(), 16, -3));
    assert!((0..device_count()).all(|device| state(default_of(device)) == bytes(8, 4)));
    for bad in bad_devices().into_iter().filter(|bad| *bad != -3) {
        fails!(INVALID_DEVICE, tcuda_set_rng_state(bytes(8, 4).as_ptr(), 16, bad));
    }
    for bad in bad_devices() {
        fails!(INVALID_DEVICE, tcuda_get_rng_state([0u8; 16].as_mut_ptr(), 16, bad));
    }
}

fn states_of_all_devices_go_round() {
    let count = device_count() as usize;
    let wanted: Vec<u8> = (0..count as u64).flat_map(|device| bytes(100 + device, 4 * device)).collect();
    ok!(tcuda_set_rng_state_all(wanted.as_ptr(), wanted.len()));
    let mut found = vec![0xA5; wanted.len() + 1];
    ok!(tcuda_get_rng_state_all(found.as_mut_ptr(), found.len()));
    assert_eq!(found, [&wanted[..], &[0xA5]].concat());
    fails!(BUFFER_TOO_SMALL, tcuda_get_rng_state_all(found.as_mut_ptr(), wanted.len() - 1));
    assert_eq!(last_error().bytes, wanted.len() as u64);
    // One state more than there are devices, half a state, a wrong one at the end: none is set.
    let other: Vec<u8> = (0..=count as u64).flat_map(|device| bytes(200 + device, 0)).collect();
    let said = fails!(INVALID_ARGUMENT, tcuda_set_rng_state_all(other.as_ptr(), other.len()));
    assert!(said.contains(&format!("{}", count + 1)), "{said}");
    fails!(INVALID_ARGUMENT, tcuda_set_rng_state_all(other.as_ptr(), 8));
    fails!(INVALID_ARGUMENT, tcuda_set_rng_state_all(other.as_ptr(), usize::MAX - 15));
    let odd = [&other[..16 * (count - 1)], &bytes(1, 1)].concat();
    fails!(INVALID_ARGUMENT, tcuda_set_rng_state_all(odd.as_ptr(), odd.len()));
    fails!(INVALID_ARGUMENT, tcuda_set_rng_state_all(std::ptr::null(), 16));
    let mut after = vec![0; wanted.len()];
    ok!(tcuda_get_rng_state_all(after.as_mut_ptr(), after.len()));
    assert_eq!(after, wanted);
    // Those that none is left for keep theirs.
    ok!(tcuda_set_rng_state_all(other.as_ptr(), 16));
    assert_eq!(state(default_of(0)), bytes(200, 0));
    if count > 1 {
        assert_eq!(state(default_of(1)), bytes(101, 4));
    }
    ok!(tcuda_set_rng_state_all(std::ptr::null(), 0));
}

fn seeds_that_nobody_chose_differ() {
    let own = Own::on(-1);
    let seeds: std::collections::BTreeSet<u64> = (0..20).map(|_| get!(0, out => tcuda_generator_seed(own.0, out))).collect();
    assert!(seeds.len() == 20 && seeds.iter().all(|seed| *seed < 1 << 53), "{seeds:?}");
    assert!(seeds.contains(&seed(own.0)) && offset(own.0) == 0);
}

fn numbers_are_handed_out_once() {
    let own = Own::seeded(9);
    let increments = [1, 4, 5, 0, 3, 1 << 50];
    let taken: Vec<PhiloxState> = increments.iter().map(|increment| philox(own.0, *increment, NULL)).collect();
    let offsets: Vec<u64> = taken.iter().map(|state| state.offset).collect();
    assert_eq!(offsets, [0, 4, 8, 16, 16, 20]);
    assert!(taken.iter().all(|state| (state.seed, state.offset_intragraph, state.captured, state.reserved) == (9, 0, 0, 0)));
    assert_eq!(offset(own.0), (1 << 50) + 20);
    ok!(tcuda_generator_manual_seed(own.0, 9));
    let drawn: Vec<u64> = std::thread::scope(|scope| {
        let generator = own.0 as usize;
        let draw = move || (0..200).map(|_| philox(generator as tcuda_generator_t, 5, NULL).offset).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut sorted = drawn;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..800).map(|at| at * 8).collect::<Vec<u64>>());
}

fn a_generator_is_for_streams_of_its_device() {
    let own = Own::on(1);
    let before = state(own.0);
    let said = fails!(INVALID_ARGUMENT, tcuda_generator_philox_state(&mut { philox(own.0, 0, NULL) }, own.0, 4, crate::kit::default_of(0)));
    assert!(said.contains("device 0") && said.contains("device 1"), "{said}");
    assert_eq!(state(own.0), before);
    // NULL is the default stream of the generator's device, also where another one is current.
    assert_eq!(device(), 0);
    assert_eq!(philox(own.0, 4, NULL).offset, 0);
}

fn geometry(generator: tcuda_generator_t) -> (i32, i32, i32) {
    let (mut kind, mut multiprocessors, mut threads) = (-1, -1, -1);
    ok!(tcuda_generator_get_geometry(generator, &mut kind, &mut multiprocessors, &mut threads));
    (kind, multiprocessors, threads)
}

fn a_geometry_is_kept_with_the_generator() {
    let own = Own::on(-1);
    let (kind, multiprocessors, threads) = geometry(own.0);
    assert!(kind == TCUDA_GEOMETRY_DEVICE && multiprocessors > 0 && threads >= 1024);
    ok!(tcuda_generator_set_geometry(own.0, TCUDA_GEOMETRY_NAMED, 108, 2048));
    ok!(tcuda_generator_manual_seed(own.0, 3));
    ok!(tcuda_generator_set_state(own.0, bytes(4, 4).as_ptr(), 16));
    assert_eq!(geometry(own.0), (TCUDA_GEOMETRY_NAMED, 108, 2048));
    for (kind, multiprocessors, threads) in [(1, 0, 2048), (1, 4097, 2048), (1, 1, 255), (1, 1, 8193), (1, i32::MIN, i32::MAX)] {
        let said = fails!(INVALID_ARGUMENT, tcuda_generator_set_geometry(own.0, kind, multiprocessors, threads));
        assert!(said.contains(&multiprocessors.to_string()) && said.contains(&threads.to_string()), "{said}");
    }
    for kind in [-1, 3, i32::MAX, i32::MIN] {
        fails!(INVALID_ARGUMENT, tcuda_generator_set_geometry(own.0, kind, 108, 2048));
    }
    assert_eq!(geometry(own.0), (TCUDA_GEOMETRY_NAMED, 108, 2048));
    // The numbers of another geometry than a named one do not matter.
    ok!(tcuda_generator_set_geometry(own.0, TCUDA_GEOMETRY_PORTABLE, -5, -5));
    assert_eq!(geometry(own.0), (TCUDA_GEOMETRY_PORTABLE, 0, 0));
    ok!(tcuda_generator_set_geometry(own.0, TCUDA_GEOMETRY_DEVICE, -5, -5));
    assert_eq!(geometry(own.0), (kind, multiprocessors, threads));
    let (mut multiprocessors, mut threads) = (-1, -1);
    ok!(tcuda_generator_geometry_of(&mut multiprocessors, &mut threads, c"h100 sxm".as_ptr()));
    assert_eq!((multiprocessors, threads), (132, 2048));
    let said = fails!(INVALID_ARGUMENT, tcuda_generator_geometry_of(&mut multiprocessors, &mut threads, c"H100".as_ptr()));
    assert!(said.contains("'H100'") && said.contains("H100 PCIe"), "{said}");
}

fn handles_end_once() {
    let own = get!(NONE, out => tcuda_generator_create(out, -1));
    ok!(tcuda_generator_destroy(own));
    let said = fails!(INVALID_HANDLE, tcuda_generator_destroy(own));
    assert!(said.contains("tcuda_generator_create"), "{said}");
    let mut local = 0u64;
    for dead in [own, (&raw mut local).cast(), handle(0x7fff_0001).cast(), usize::MAX as tcuda_generator_t] {
        fails!(INVALID_HANDLE, tcuda_generator_initial_seed(dead, &mut local));
        fails!(INVALID_HANDLE, tcuda_generator_manual_seed(dead, 1));
        fails!(INVALID_HANDLE, tcuda_generator_set_geometry(dead, TCUDA_GEOMETRY_PORTABLE, 0, 0));
        fails!(INVALID_HANDLE, tcuda_generator_clone(&mut { NONE }, dead));
        fails!(INVALID_HANDLE, tcuda_generator_philox_state(&mut { philox(NONE, 0, NULL) }, dead, 4, NULL));
        fails!(INVALID_HANDLE, tcuda_generator_destroy(dead));
    }
    assert_eq!(local, 0);
    ok!(tcuda_generator_destroy(NONE));
    // Handles are not used again.
    assert!((0..10).all(|_| Own::on(-1).0 != own));
}

// ---- before the first use, after the last

fn seeds_before_the_first_use_are_done_in_order() {
    in_child("early_seeds", &[]);
}

pub fn scene_early_seeds() {
    ok!(tcuda_set_rng_state(bytes(1, 4).as_ptr(), 16, 0));
    ok!(tcuda_manual_seed_all(2));
    ok!(tcuda_manual_seed(3));
    let said = fails!(INVALID_ARGUMENT, tcuda_set_rng_state(bytes(1, 5).as_ptr(), 16, 0));
    assert!(said.contains("multiple of 4"), "{said}");
    fails!(INVALID_DEVICE, tcuda_set_rng_state(bytes(1, 4).as_ptr(), 16, -2));
    // No such device: nobody can know yet.
    ok!(tcuda_set_rng_state(bytes(9, 4).as_ptr(), 16, 4000));
    ok!(tcuda_set_log_callback(Some(hear), std::ptr::null_mut()));
    assert!(!tcuda_is_initialized());
    ok!(tcuda_init(std::ptr::null()));
    assert_eq!(seed(NONE), 3);
    let heard = HEARD.lock().unwrap().clone();
    assert!(heard.contains("device 4000") && heard.contains("left out"), "{heard}");
    assert!((1..device_count()).all(|device| seed(default_of(device)) == 2));
}

static HEARD: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());

/// Uses what it is told of.
unsafe extern "C" fn hear(_: i32, message: *const std::ffi::c_char, _: *mut std::ffi::c_void) {
    assert_eq!(get!(0, out => tcuda_initial_seed(out)), 3);
    HEARD.lock().unwrap().push_str(&text(message));
}

fn a_state_set_before_the_first_use_stands_behind_a_seed() {
    in_child("early_states", &[(LAST_DEVICE, &(device_count() - 1).to_string())]);
}

const LAST_DEVICE: &str = "TCUDA_TEST_LAST_DEVICE";

pub fn scene_early_states() {
    // torch does the seed last.
    ok!(tcuda_manual_seed(1));
    let mut states = bytes(2, 8);
    ok!(tcuda_set_rng_state_all(states.as_ptr(), 16));
    states.fill(0xFF);
    let fresh = get!(0, out => tcuda_seed_all(out));
    ok!(tcuda_set_rng_state(bytes(4, 12).as_ptr(), 16, -1));
    assert!(!tcuda_is_initialized());
    // What needs a device first makes another one current.
    set_device(std::env::var(LAST_DEVICE).unwrap().parse().unwrap());
    assert_eq!(state(default_of(0)), bytes(4, 12));
    assert!((1..device_count()).all(|device| state(default_of(device)) == bytes(fresh, 0)));
}

fn a_seed_waits_beyond_a_fork() {
    in_child("early_fork", &[]);
}

pub fn scene_early_fork() {
    ok!(tcuda_manual_seed_all(5));
    forked(|| assert_eq!(get!(0, out => tcuda_initial_seed(out)), 5));
    forked(|| {
        ok!(tcuda_manual_seed(6));
        assert_eq!(seed(NONE), 6);
    });
    assert_eq!(get!(0, out => tcuda_initial_seed(out)), 5);
    forked(|| {
        fails!(FORKED, tcuda_manual_seed(7));
        fails!(FORKED, tcuda_generator_create(&mut { NONE }, 0));
    });
    assert_eq!(seed(NONE), 5);
}

fn seeds_without_a_device_wait() {
    in_child("early_no_device", &[("TCUDA_BACKEND", "cuda"), ("CUDA_VISIBLE_DEVICES", "-1")]);
}

pub fn scene_early_no_device() {
    assert_eq!(text(tcuda_backend_name()), "none");
    ok!(tcuda_manual_seed(1));
    ok!(tcuda_manual_seed_all(2));
    get!(0, out => tcuda_seed(out));
    ok!(tcuda_set_rng_state(bytes(3, 4).as_ptr(), 16, 0));
    ok!(tcuda_set_rng_state_all(bytes(4, 8).as_ptr(), 16));
    let (mut seed, mut state) = (7, [0u8; 16]);
    for status in unsafe {
        [
            tcuda_initial_seed(&mut seed),
            tcuda_get_rng_state(state.as_mut_ptr(), 16, 0),
            tcuda_get_rng_state_all(state.as_mut_ptr(), 16),
            tcuda_generator_create(&mut { NONE }, 0),
            tcuda_generator_manual_seed(NONE, 1),
        ]
    } {
        assert!(format!("{status:?}").contains("NO_DEVICE") || format!("{status:?}").contains("INSUFFICIENT_DRIVER"), "{status:?}");
        assert!(message().contains("TCUDA_BACKEND=sim"), "{}", message());
    }
    assert_eq!((seed, state), (7, [0; 16]));
    // They waited.
    unsafe { std::env::remove_var("CUDA_VISIBLE_DEVICES") };
    unsafe { std::env::set_var("TCUDA_BACKEND", "sim") };
    assert_eq!(self::state(default_of(0)), bytes(4, 8));
    assert_eq!(self::seed(default_of(1)), 2);
}

fn a_shutdown_ends_generators_and_what_was_seeded() {
    in_child("generators_over_shutdown", &[]);
}

pub fn scene_over_shutdown() {
    // What waits goes too.
    ok!(tcuda_manual_seed_all(5));
    ok!(tcuda_shutdown());
    fails!(SHUT_DOWN, tcuda_manual_seed(5));
    ok!(tcuda_init(std::ptr::null()));
    assert_ne!(seed(NONE), 5);
    let own = get!(NONE, out => tcuda_generator_create(out, 0));
    ok!(tcuda_manual_seed_all(6));
    ok!(tcuda_generator_set_geometry(NONE, TCUDA_GEOMETRY_PORTABLE, 0, 0));
    let default = default_of(0);
    ok!(tcuda_shutdown());
    fails!(SHUT_DOWN, tcuda_generator_initial_seed(own, &mut 0));
    ok!(tcuda_generator_destroy(own));
    ok!(tcuda_init(std::ptr::null()));
    fails!(INVALID_HANDLE, tcuda_generator_initial_seed(own, &mut 0));
    fails!(INVALID_HANDLE, tcuda_generator_destroy(own));
    assert!(default == default_of(0) && seed(default) != 6);
    assert_eq!(geometry(NONE).0, TCUDA_GEOMETRY_DEVICE);
}
