//! The simulated device
//!
//! With TCUDA_BACKEND=sim, or auto on a machine without a GPU, tcuda runs on a simulated machine of H100s (torch has none). It keeps
//! CUDA's rules and catches what a real device leaves undefined, so a program can be tested on it, with faults on demand. Kernels in CUDA
//! binaries do not run. These functions start the backend if need be; with another one they fail with TCUDA_ERROR_NOT_SUPPORTED. All but
//! tcuda_sim_configure and tcuda_sim_delay work after tcuda_shutdown too.

use super::guard::{Out, guard, guard_always, text};
use super::structs::{self, Growing, StructOut, tcuda_stream_t};
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result, Status, config, process};
use crate::runtime::{self, select, sim};
use crate::stream;
use std::ffi::c_char;
use std::ops::Range;
use std::time::Duration;

/// What the simulated machine looks like. Set it to TCUDA_SIM_OPTIONS_INIT; NULL and 0 mean that the environment decides.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_sim_options_t {
    pub struct_size: usize,
    /// Bytes of each device, from 2 MiB on; over TCUDA_SIM_MEMORY. Host memory is taken only where it is touched.
    pub memory: u64,
    /// Shuffles the order in which streams go on, so that a missing synchronisation shows; over TCUDA_SIM_SEED.
    pub seed: u64,
    /// Which devices reach each other: `all`, `none`, or pairs as `0-1,2-3`; over TCUDA_SIM_PEERS.
    pub peers: *const c_char,
    /// 1 to 64; over TCUDA_SIM_DEVICES.
    pub devices: i32,
    /// 1: work is done when the call returns; over CUDA_LAUNCH_BLOCKING.
    pub launch_blocking: i32,
}
structs::input!(tcuda_sim_options_t: memory, seed, peers, devices, launch_blocking);
const _: () = assert!(size_of::<tcuda_sim_options_t>() == 40);

/// What lives on the simulated machine: CUDA's objects, not tcuda's. Set it to TCUDA_SIM_LIVE_INIT before the call.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_sim_live_t {
    pub struct_size: usize,
    /// Of cudaMalloc.
    pub blocks: u64,
    pub block_bytes: u64,
    /// Physical memory of cuMemCreate that is not given back: its handle is not released, or it is mapped.
    pub handles: u64,
    pub handle_bytes: u64,
    pub mappings: u64,
    /// Without the default streams.
    pub streams: u64,
    pub events: u64,
    /// The following are those of the whole machine: address ranges, pinned memory by cudaHostAlloc and cudaHostRegister, and graphs, as
    /// captured and ready for launches.
    pub reservations: u64,
    pub pinned_blocks: u64,
    pub registered_blocks: u64,
    pub graphs: u64,
    pub graph_execs: u64,
    /// Of the devices asked for.
    pub green_contexts: u64,
}
unsafe impl Growing for tcuda_sim_live_t {}
const _: () = assert!(size_of::<tcuda_sim_live_t>() == 112);

fn machine() -> Result<&'static sim::Sim> {
    if process::is_forked() {
        process::check()?;
    }
    sim::machine()
}

/// The devices that an index means, of those there are; lost ones too. -1 is the current one, -3 all.
fn devices(machine: &'static sim::Sim, device: i32) -> Result<Range<usize>> {
    const CURRENT: i32 = -1;
    const ALL: i32 = -3;
    let count = machine.device_count();
    match device {
        ALL => Ok(0..count),
        CURRENT => Ok(machine.current_device()..machine.current_device() + 1),
        _ => usize::try_from(device).ok().filter(|device| *device < count).map(|device| device..device + 1).ok_or_else(|| {
            let message = format!("Device {device} is out of range: there are {count} simulated devices, from 0 on.");
            Error::new(Status::TCUDA_ERROR_INVALID_DEVICE, message).on_device(device)
        }),
    }
}

/// The name of a CUDA function; NULL is any.
unsafe fn call_name<'a>(call: *const c_char) -> Result<Option<&'a str>> {
    if call.is_null() { Ok(None) } else { unsafe { text(call, "call") }.map(Some) }
}

/// Says what the simulated machine is to look like; before the first call that needs a device. It does not choose the backend.
///
/// @return TCUDA_ERROR_INVALID_ARGUMENT: a value is out of range; nothing changed. TCUDA_ERROR_INVALID_STATE: a backend is in use already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sim_configure(options: *const tcuda_sim_options_t) -> tcuda_status_t {
    guard("tcuda_sim_configure", || {
        let options = unsafe { structs::read(options, "options") }?.ok_or_else(|| super::guard::null("options"))?;
        if select::is_chosen() {
            let message = format!(
                "The simulated machine is built at the first call that needs a device, and the backend '{}' is in use already. Call \
                 tcuda_sim_configure first.",
                runtime::backend_name()
            );
            return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, message));
        }
        let mut wishes = Vec::new();
        let numbers = [
            ("TCUDA_SIM_MEMORY", options.memory.to_string(), options.memory != 0),
            ("TCUDA_SIM_SEED", options.seed.to_string(), options.seed != 0),
            ("TCUDA_SIM_DEVICES", options.devices.to_string(), options.devices != 0),
            ("CUDA_LAUNCH_BLOCKING", options.launch_blocking.to_string(), options.launch_blocking != 0),
        ];
        wishes.extend(numbers.into_iter().filter(|(_, _, given)| *given).map(|(name, value, _)| (name, value)));
        if !options.peers.is_null() {
            wishes.push(("TCUDA_SIM_PEERS", unsafe { text(options.peers, "options.peers") }?.to_owned()));
        }
        let before: Vec<_> = wishes.into_iter().map(|(name, value)| (name, config::exchange(name, Some(value)))).collect();
        sim::Options::read().map(|_| ()).inspect_err(|_| {
            for (name, value) in before.into_iter().rev() {
                config::exchange(name, value);
            }
        })
    })
}

/// Makes a call of CUDA fail and do nothing else. Several such faults may wait at once. Calls for the last error are never struck.
///
/// @param call The CUDA function as tcuda calls it (cudaMalloc, cuMemMap, cudaEventRecord); NULL: whichever.
/// @param nth  1: the next call; 0: every call until tcuda_sim_clear_faults.
/// @param code What it answers, of CUDA's codes (2: out of memory); above 0. One that CUDA cannot recover from (719, 700, 214; not 999) also
///             loses the calling thread's current device, as tcuda_sim_lose_device does.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: no function is called so, or the code is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sim_fail_at(call: *const c_char, nth: u64, code: i32) -> tcuda_status_t {
    guard_always("tcuda_sim_fail_at", || machine()?.faults().fail_at(unsafe { call_name(call) }?, nth, code))
}

/// Forgets every fault that still waits for its call. Devices that are lost stay lost.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_sim_clear_faults() -> tcuda_status_t {
    guard_always("tcuda_sim_clear_faults", || {
        machine()?.faults().clear();
        Ok(())
    })
}

/// How often tcuda (and a program that shares its table) has called a CUDA function.
///
/// @param call NULL: all together, without those that ask for the last error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sim_call_count(count: *mut u64, call: *const c_char) -> tcuda_status_t {
    guard_always("tcuda_sim_call_count", || {
        let out = Out::new(count, "count")?;
        out.write(machine()?.faults().count(unsafe { call_name(call) }?)?);
        Ok(())
    })
}

/// Sets all counts to 0.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_sim_reset_call_counts() -> tcuda_status_t {
    guard_always("tcuda_sim_reset_call_counts", || {
        machine()?.faults().reset_counts();
        Ok(())
    })
}

/// A device goes bad for good: its work stops where it is, and every later call on it answers the code, until the process ends.
///
/// @param device -1: the current one; TCUDA_DEVICE_ALL: all.
/// @param code   Of CUDA's codes: 719 is a launch failure, 700 an illegal address, 214 an ECC error.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_sim_lose_device(device: i32, code: i32) -> tcuda_status_t {
    guard_always("tcuda_sim_lose_device", || {
        let machine = machine()?;
        let devices = devices(machine, device)?;
        if code == 0 {
            return Err(Error::invalid_argument(
                "The code of a lost device is 0, which is success. Give 719, a launch failure, for instance.",
            ));
        }
        devices.for_each(|device| machine.lose(device, code));
        Ok(())
    })
}

/// Changes how much memory can be had on a device, as if another process took or gave it. What is in use stays; below that nothing more can
/// be had. The total stays as it is; more than that is the total.
///
/// @param device -1: the current one; TCUDA_DEVICE_ALL: each.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_sim_set_memory(bytes: u64, device: i32) -> tcuda_status_t {
    guard_always("tcuda_sim_set_memory", || {
        let machine = machine()?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(machine.memory_of_each());
        devices(machine, device)?.for_each(|device| machine.set_memory(device, bytes));
        Ok(())
    })
}

/// What lives: so that a program can prove that nothing leaked.
///
/// @param device -1: the current one; TCUDA_DEVICE_ALL: all together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sim_live(live: *mut tcuda_sim_live_t, device: i32) -> tcuda_status_t {
    guard_always("tcuda_sim_live", || {
        let out = unsafe { StructOut::new(live, "live") }?;
        let machine = machine()?;
        let found = machine.live(devices(machine, device)?);
        out.write(&tcuda_sim_live_t {
            struct_size: 0,
            blocks: found.blocks as u64,
            block_bytes: found.block_bytes as u64,
            handles: found.handles as u64,
            handle_bytes: found.handle_bytes as u64,
            mappings: found.mappings as u64,
            streams: found.streams as u64,
            events: found.events as u64,
            reservations: found.reservations as u64,
            pinned_blocks: found.pinned_blocks as u64,
            registered_blocks: found.registered_blocks as u64,
            graphs: found.graphs as u64,
            graph_execs: found.graph_execs as u64,
            green_contexts: found.green_contexts as u64,
        });
        Ok(())
    })
}

/// Keeps a stream busy (torch.cuda._sleep, in time instead of cycles), so that a test can see what happens meanwhile.
///
/// @param nanoseconds At most an hour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sim_delay(stream: tcuda_stream_t, nanoseconds: u64) -> tcuda_status_t {
    const MOST: Duration = Duration::from_secs(3600);
    guard("tcuda_sim_delay", || {
        let machine = machine()?;
        let duration = Duration::from_nanos(nanoseconds);
        if duration > MOST {
            let message = format!("{nanoseconds} nanoseconds are more than an hour, which is the longest delay.");
            return Err(Error::invalid_argument(message));
        }
        let entered = stream::resolve(stream as usize)?.enter()?;
        let code = machine.delay(entered.raw, duration);
        entered.runtime.check("tcuda_sim_delay", code)
    })
}
