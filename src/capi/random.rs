//! Generators of random numbers
//!
//! A generator is torch.Generator of a CUDA device: a seed and an offset, of which kernels make numbers by Philox 4x32-10. Each device has
//! a default one, and NULL means it: that of the tensor's or stream's device, or of the current device where there is neither. Nobody can
//! foretell its seed, unless it was given one before its first use.
//!
//! tcuda_manual_seed, tcuda_seed, tcuda_set_rng_state and their forms for all devices look for no device. Before the first call that does,
//! they succeed and wait for it; then they are done in the order in which they were called (torch does seeds last), and the current device
//! is the one that was current on the thread of that first call. Without a device they go on waiting. A child of fork has its own copy.
//!
//! Several threads may draw from one generator: each call gets numbers of its own, in the order in which the calls come. A host function
//! of a stream may not use generators. docs/RANDOM.md says more.

use super::guard::{Out, guard, guard_destroy, guard_out, null, slice, text};
use super::structs::tcuda_stream_t;
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result, Status};
use crate::random::{self, Change, Generator, Geometry, Handle, State, Wish, tcuda_philox_state_t};
use crate::{device, stream};
use std::ffi::c_char;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// A generator: an opaque handle.
#[allow(non_camel_case_types)]
pub type tcuda_generator_t = *mut tcuda_generator;
/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_generator {}

// The header has them by hand.
pub const TCUDA_GEOMETRY_DEVICE: i32 = 0;
pub const TCUDA_GEOMETRY_NAMED: i32 = 1;
pub const TCUDA_GEOMETRY_PORTABLE: i32 = 2;

/// What a program gave for a generator; NULL is none.
pub fn handle_of(generator: tcuda_generator_t) -> Option<Handle> {
    NonZeroUsize::new(generator as usize).map(Handle)
}

/// The generator itself, or the current device's default one.
fn named(generator: tcuda_generator_t) -> Result<Arc<Generator>> {
    random::named(handle_of(generator).as_ref(), device::CURRENT)
}

fn pointer(handle: Handle) -> tcuda_generator_t {
    handle.0.get() as tcuda_generator_t
}

/// Makes a generator with torch's first seed, 67280421310721, and the offset 0 (torch.Generator).
///
/// @param generator gets the handle; tcuda_generator_destroy ends it.
/// @param device    -1: the current one. It draws for work of this device only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_create(generator: *mut tcuda_generator_t, device: i32) -> tcuda_status_t {
    guard_out("tcuda_generator_create", generator, "generator", || Ok(pointer(random::create(device)?)))
}

/// Ends a generator. What was launched with its numbers is not concerned.
///
/// @return TCUDA_ERROR_INVALID_STATE: it is the default one of a device.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_generator_destroy(generator: tcuda_generator_t) -> tcuda_status_t {
    guard_destroy("tcuda_generator_destroy", generator, || handle_of(generator).map_or(Ok(()), random::destroy))
}

/// Makes a generator that goes on from where another one is, by itself: same device, seed, offset and geometry (torch: clone_state).
///
/// @param clone gets the handle; tcuda_generator_destroy ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_clone(clone: *mut tcuda_generator_t, generator: tcuda_generator_t) -> tcuda_status_t {
    guard_out("tcuda_generator_clone", clone, "clone", || Ok(pointer(random::enter(named(generator)?.duplicate()))))
}

/// The default generator of a device (torch.cuda.default_generators). It is not destroyed; its handle is always the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_default_generator(generator: *mut tcuda_generator_t, device: i32) -> tcuda_status_t {
    guard_out("tcuda_default_generator", generator, "generator", || Ok(pointer(random::default_handle(device)?)))
}

/// The device that a generator is of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_device(generator: tcuda_generator_t, device: *mut i32) -> tcuda_status_t {
    guard_out("tcuda_generator_device", device, "device", || Ok(named(generator)?.device()))
}

/// Sets the seed, and the offset to 0. A negative seed of Python is the same 64 bits.
///
/// @return TCUDA_ERROR_CAPTURE, here and for the state and the offset: a graph that draws from it is being captured, and this is not the seed
///         that it has, which changes nothing then.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_generator_manual_seed(generator: tcuda_generator_t, seed: u64) -> tcuda_status_t {
    guard("tcuda_generator_manual_seed", || named(generator)?.change(Change::Seed(seed)))
}

/// Sets a seed that nobody can foretell, and the offset to 0.
///
/// @param seed gets it: 53 bits, so that a double holds it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_seed(generator: tcuda_generator_t, seed: *mut u64) -> tcuda_status_t {
    guard_out("tcuda_generator_seed", seed, "seed", || {
        let generator = named(generator)?;
        let seed = random::fresh_seed()?;
        generator.change(Change::Seed(seed))?;
        Ok(seed)
    })
}

/// The seed that a generator has now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_initial_seed(generator: tcuda_generator_t, seed: *mut u64) -> tcuda_status_t {
    guard_out("tcuda_generator_initial_seed", seed, "seed", || Ok(named(generator)?.state().seed))
}

/// The state of a generator as torch writes it: 16 bytes, the seed and the offset as 64-bit integers in little endian. The geometry is no
/// part of it.
///
/// @param state gets the 16 bytes.
/// @param size  bytes that are there.
/// @return TCUDA_ERROR_BUFFER_TOO_SMALL: fewer than 16.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_get_state(generator: tcuda_generator_t, state: *mut u8, size: usize) -> tcuda_status_t {
    guard("tcuda_generator_get_state", || {
        let out = room(state, size, 1, "state")?;
        out.write([named(generator)?.state().to_bytes()]);
        Ok(())
    })
}

/// Sets the state of a generator.
///
/// @param state of tcuda_generator_get_state or of torch.
/// @param size  16; or 8 for the older form, which is the seed alone and means the offset 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_set_state(generator: tcuda_generator_t, state: *const u8, size: usize) -> tcuda_status_t {
    guard("tcuda_generator_set_state", || {
        let state = unsafe { read_state(state, size) }?;
        named(generator)?.change(Change::State(state))
    })
}

/// The offset: how many 32-bit numbers each thread of a launch has drawn since the seed was set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_get_offset(generator: tcuda_generator_t, offset: *mut u64) -> tcuda_status_t {
    guard_out("tcuda_generator_get_offset", offset, "offset", || named(generator)?.offset())
}

/// Sets the offset and keeps the seed.
///
/// @param offset a multiple of 4.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_generator_set_offset(generator: tcuda_generator_t, offset: u64) -> tcuda_status_t {
    guard("tcuda_generator_set_offset", || named(generator)?.change(Change::Offset(offset)))
}

/// The geometry that a generator draws by.
///
/// @param geometry        gets TCUDA_GEOMETRY_DEVICE, TCUDA_GEOMETRY_NAMED or TCUDA_GEOMETRY_PORTABLE.
/// @param multiprocessors gets what tcuda_generator_set_geometry takes to have the same numbers on another device; 0 where all have them.
/// @param threads         likewise: of each multiprocessor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_get_geometry(
    generator: tcuda_generator_t,
    geometry: *mut i32,
    multiprocessors: *mut i32,
    threads: *mut i32,
) -> tcuda_status_t {
    guard("tcuda_generator_get_geometry", || {
        let kind_out = Out::new(geometry, "geometry")?;
        let numbers_out = (Out::new(multiprocessors, "multiprocessors")?, Out::new(threads, "threads")?);
        let (kind, multiprocessors, threads) = match named(generator)?.geometry()? {
            Geometry::Device { multiprocessors, threads } => (TCUDA_GEOMETRY_DEVICE, multiprocessors, threads),
            Geometry::Named { multiprocessors, threads } => (TCUDA_GEOMETRY_NAMED, multiprocessors, threads),
            Geometry::Portable => (TCUDA_GEOMETRY_PORTABLE, 0, 0),
        };
        kind_out.write(kind);
        numbers_out.0.write(multiprocessors as i32);
        numbers_out.1.write(threads as i32);
        Ok(())
    })
}

/// Chooses which numbers a generator makes of a seed and an offset (torch has only its own device's). torch's kernels start as many threads
/// as the device runs at once, so that large tensors get other numbers on another kind of device.
///
/// @param geometry        TCUDA_GEOMETRY_DEVICE: torch's numbers on the generator's device, the default. TCUDA_GEOMETRY_NAMED: torch's
///                        numbers on a device that has so many multiprocessors with so many threads. TCUDA_GEOMETRY_PORTABLE: the same
///                        numbers everywhere, which are not torch's.
/// @param multiprocessors of the device that is named, 1 to 4096; with another geometry it does not matter.
/// @param threads         of each of its multiprocessors, 256 to 8192; likewise.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_generator_set_geometry(
    generator: tcuda_generator_t,
    geometry: i32,
    multiprocessors: i32,
    threads: i32,
) -> tcuda_status_t {
    guard("tcuda_generator_set_geometry", || {
        let geometry = match geometry {
            TCUDA_GEOMETRY_DEVICE => None,
            TCUDA_GEOMETRY_NAMED => Some(Geometry::named(multiprocessors, threads)?),
            TCUDA_GEOMETRY_PORTABLE => Some(Geometry::Portable),
            other => {
                return Err(Error::invalid_argument(format!(
                    "'geometry' is {other}; TCUDA_GEOMETRY_DEVICE (0), TCUDA_GEOMETRY_NAMED (1) and TCUDA_GEOMETRY_PORTABLE (2) are its values."
                )));
            }
        };
        named(generator)?.set_geometry(geometry);
        Ok(())
    })
}

/// The numbers of a well-known GPU for TCUDA_GEOMETRY_NAMED.
///
/// @param name A100, A10G, B200, H100 PCIe, H100 SXM, H200, L40S, T4 or V100, in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_geometry_of(multiprocessors: *mut i32, threads: *mut i32, name: *const c_char) -> tcuda_status_t {
    guard("tcuda_generator_geometry_of", || {
        let (multiprocessors_out, threads_out) = (Out::new(multiprocessors, "multiprocessors")?, Out::new(threads, "threads")?);
        let (multiprocessors, threads) = Geometry::known(unsafe { text(name, "name") }?)?;
        multiprocessors_out.write(multiprocessors as i32);
        threads_out.write(threads as i32);
        Ok(())
    })
}

/// Takes numbers for one launch of a program's own kernel, which makes them with tcuda/philox.cuh. Call it right before the launch: the
/// numbers are taken even if the launch fails.
///
/// @param state     gets what is passed to the kernel, by value.
/// @param generator NULL: the default one of the stream's device.
/// @param increment how many 32-bit numbers each thread of the launch draws at most; rounded up to a multiple of 4.
/// @param stream    where the kernel is launched, of the generator's device.
/// @return TCUDA_ERROR_CAPTURE: the stream is being captured by another library. TCUDA_ERROR_INVALID_ARGUMENT: the offset would not fit 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_philox_state(
    state: *mut tcuda_philox_state_t,
    generator: tcuda_generator_t,
    increment: u64,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard_out("tcuda_generator_philox_state", state, "state", || {
        let (generator, stream) = match handle_of(generator) {
            Some(handle) => {
                let generator = random::named(Some(&handle), device::CURRENT)?;
                let stream = stream::resolve_on(stream as usize, generator.device())?;
                (generator, stream)
            }
            None => {
                let stream = stream::resolve(stream as usize)?;
                (random::for_device(None, stream.device)?, stream)
            }
        };
        let mut draws = generator.draws(stream)?;
        let state = draws.take(increment)?;
        draws.commit();
        Ok(state)
    })
}

/// Whether states fit a buffer; they are written at the end.
fn room(states: *mut u8, size: usize, count: usize, parameter: &str) -> Result<States> {
    if states.is_null() {
        return Err(null(parameter));
    }
    let needed = count * State::BYTES;
    if size < needed {
        let text = format!("'{parameter}' has {size} bytes; {needed} are needed, {} for each state.", State::BYTES);
        return Err(Error::new(Status::TCUDA_ERROR_BUFFER_TOO_SMALL, text).with_bytes(needed as u64));
    }
    Ok(States(states))
}

struct States(*mut u8);

impl States {
    fn write(self, states: impl IntoIterator<Item = [u8; State::BYTES]>) {
        for (at, state) in states.into_iter().enumerate() {
            unsafe { std::ptr::copy_nonoverlapping(state.as_ptr(), self.0.add(at * State::BYTES), State::BYTES) };
        }
    }
}

unsafe fn read_state(state: *const u8, size: usize) -> Result<State> {
    State::check_size(size)?;
    State::from_bytes(unsafe { slice(state, size, "state") }?)
}

/// The state of a device's default generator (torch.cuda.get_rng_state), as of tcuda_generator_get_state.
///
/// @param state  gets 16 bytes.
/// @param size   bytes that are there.
/// @param device -1: the current one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_rng_state(state: *mut u8, size: usize, device: i32) -> tcuda_status_t {
    guard("tcuda_get_rng_state", || {
        let out = room(state, size, 1, "state")?;
        out.write([random::named(None, device)?.state().to_bytes()]);
        Ok(())
    })
}

/// Sets the state of a device's default generator (torch.cuda.set_rng_state). Before the first use it waits, and the state is copied; an
/// index that no device turns out to have is reported in the log then.
///
/// @param size   16, or 8 for the older form: see tcuda_generator_set_state.
/// @param device -1: the current one; TCUDA_DEVICE_ALL: all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_set_rng_state(state: *const u8, size: usize, device: i32) -> tcuda_status_t {
    guard("tcuda_set_rng_state", || random::set_default(&[Wish { device, change: Change::State(unsafe { read_state(state, size) }?) }]))
}

/// The states of all default generators (torch.cuda.get_rng_state_all).
///
/// @param states gets 16 bytes for each device, one behind the other.
/// @param size   bytes that are there.
/// @return TCUDA_ERROR_BUFFER_TOO_SMALL: fewer than 16 for each of tcuda_device_count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_rng_state_all(states: *mut u8, size: usize) -> tcuda_status_t {
    guard("tcuda_get_rng_state_all", || {
        // Starts what there is to start, or says why not.
        device::current()?;
        let count = device::count();
        let out = room(states, size, count as usize, "states")?;
        let read = (0..count).map(|device| Ok(random::default_of(device)?.state().to_bytes()));
        out.write(read.collect::<Result<Vec<_>>>()?);
        Ok(())
    })
}

/// Sets the states of the default generators of devices 0, 1 and so on, of all or none (torch.cuda.set_rng_state_all).
///
/// @param states of tcuda_get_rng_state_all.
/// @param size   16 for each device; those that none is left for keep theirs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_set_rng_state_all(states: *const u8, size: usize) -> tcuda_status_t {
    guard("tcuda_set_rng_state_all", || {
        if !size.is_multiple_of(State::BYTES) {
            let text = format!("RNG state is wrong size: {size} bytes, which is no multiple of {}, the size of each state.", State::BYTES);
            return Err(Error::invalid_argument(text));
        }
        random::check_count(size / State::BYTES)?;
        let bytes = unsafe { slice(states, size, "states") }?;
        let wishes = (0..)
            .zip(bytes.chunks(State::BYTES))
            .map(|(device, state)| Ok(Wish { device, change: Change::State(State::from_bytes(state)?) }));
        random::set_default(&wishes.collect::<Result<Vec<Wish>>>()?)
    })
}

/// Sets the seed of the current device's default generator, and its offset to 0 (torch.cuda.manual_seed). Before the first use it waits.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_manual_seed(seed: u64) -> tcuda_status_t {
    guard("tcuda_manual_seed", || set_seed(device::CURRENT, seed))
}

/// The same for the default generators of all devices (torch.cuda.manual_seed_all).
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_manual_seed_all(seed: u64) -> tcuda_status_t {
    guard("tcuda_manual_seed_all", || set_seed(device::ALL, seed))
}

/// Sets a seed that nobody can foretell (torch.cuda.seed). Before the first use it waits.
///
/// @param seed gets it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_seed(seed: *mut u64) -> tcuda_status_t {
    guard("tcuda_seed", || seed_freshly(device::CURRENT, seed))
}

/// Sets one such seed for the default generators of all devices (torch.cuda.seed_all).
///
/// @param seed gets it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_seed_all(seed: *mut u64) -> tcuda_status_t {
    guard("tcuda_seed_all", || seed_freshly(device::ALL, seed))
}

fn set_seed(device: i32, seed: u64) -> Result<()> {
    random::set_default(&[Wish { device, change: Change::Seed(seed) }])
}

fn seed_freshly(device: i32, seed: *mut u64) -> Result<()> {
    let out = Out::new(seed, "seed")?;
    let fresh = random::fresh_seed()?;
    set_seed(device, fresh)?;
    out.write(fresh);
    Ok(())
}

/// The seed that the current device's default generator has now (torch.cuda.initial_seed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_initial_seed(seed: *mut u64) -> tcuda_status_t {
    guard_out("tcuda_initial_seed", seed, "seed", || Ok(random::named(None, device::CURRENT)?.state().seed))
}
