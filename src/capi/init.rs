//! Start and end
//!
//! Nothing has to be called first: the first call that needs a device looks for one. tcuda_init does it at a time of the program's choice
//! and with its options. In a child of fork, once the parent has used a device, calls fail with TCUDA_ERROR_FORKED. After tcuda_shutdown they
//! fail with TCUDA_ERROR_SHUT_DOWN until tcuda_init, also those that otherwise need no device; destroying and freeing succeed and do
//! nothing. docs/THREADS.md lists what works all the same, as texts of errors, versions, snapshots and marks for tools.

use super::guard::{guard_always, guard_value, lasting, text};
use super::structs;
use super::text::TextOut;
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result, Status, config, log, process, sync_debug, work};
use crate::{communicator, device, event, graph, ipc, jit, libs, memory, random, runtime, sanitizer, stream};
use std::ffi::c_char;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How to start. Set it to TCUDA_INIT_OPTIONS_INIT; NULL, 0 and empty texts mean that the environment decides.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_init_options_t {
    pub struct_size: usize,
    /// `cuda`, `sim` or `auto` (cuda where there is a device, else sim); over TCUDA_BACKEND.
    pub backend: *const c_char,
    /// The CUDA runtime library to load before any other; over TCUDA_CUDART_PATH.
    pub cudart_path: *const c_char,
    /// Options of the caches; over TCUDA_ALLOC_CONF. See tcuda_set_alloc_conf.
    pub alloc_conf: *const c_char,
}
structs::input!(tcuda_init_options_t: backend, cudart_path, alloc_conf);
const _: () = assert!(size_of::<tcuda_init_options_t>() == 32);

/// Finds the backend and its devices (torch.cuda.init). No context is made and no memory taken on any device. The first call's options
/// hold, also if other calls found the backend before; its alloc_conf is put in effect as by tcuda_set_alloc_conf, so that a limit that was
/// set stays unless it is named. Called again it does nothing: its options are only checked, with a line in the log about an alloc_conf
/// that is not in effect (tcuda_set_alloc_conf changes options at any time). After tcuda_shutdown it starts again, with the options that it
/// is given over those from before.
///
/// @param options NULL: the environment decides.
/// @return TCUDA_ERROR_NO_DEVICE, TCUDA_ERROR_INSUFFICIENT_DRIVER: the message says what was looked for and where; a later call tries
///         again. TCUDA_ERROR_INVALID_STATE: another backend than the one asked for is in use already, or tcuda_shutdown is under way.
///         TCUDA_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_init(options: *const tcuda_init_options_t) -> tcuda_status_t {
    guard_always("tcuda_init", || {
        if process::is_forked() {
            process::check()?;
        }
        let wishes = match unsafe { structs::read(options, "options") }? {
            Some(options) => unsafe { wishes(&options) }?,
            None => Vec::new(),
        };
        if IS_ENDING.load(Relaxed) {
            let text = "tcuda_shutdown is under way: tcuda_init starts again when that is over.";
            return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
        }
        let was_shut_down = process::is_shut_down();
        process::set_shut_down(false);
        start(wishes, was_shut_down).inspect_err(|_| process::set_shut_down(was_shut_down))
    })
}

/// Somebody called tcuda_init already.
static CALLED: AtomicBool = AtomicBool::new(false);
/// tcuda_shutdown gives everything back, by functions of the program's too.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

struct End;

impl End {
    fn begin() -> End {
        IS_ENDING.store(true, Relaxed);
        End
    }
}

impl Drop for End {
    fn drop(&mut self) {
        IS_ENDING.store(false, Relaxed);
    }
}

type Wish = (&'static str, String);

unsafe fn wishes(options: &tcuda_init_options_t) -> Result<Vec<Wish>> {
    let fields = [
        ("TCUDA_BACKEND", options.backend, "options.backend"),
        ("TCUDA_CUDART_PATH", options.cudart_path, "options.cudart_path"),
        (memory::options::VARIABLE, options.alloc_conf, "options.alloc_conf"),
    ];
    let given = fields.into_iter().filter(|(_, pointer, _)| !pointer.is_null());
    let wishes = given.map(|(variable, pointer, field)| Ok((variable, unsafe { text(pointer, field) }?.to_owned())));
    wishes.filter(|wish| !wish.as_ref().is_ok_and(|(_, value)| value.trim().is_empty())).collect()
}

fn start(wishes: Vec<Wish>, again: bool) -> Result<()> {
    for (_, backend) in wishes.iter().filter(|(variable, _)| *variable == "TCUDA_BACKEND") {
        runtime::select::Choice::parse(backend)?;
        if runtime::is_initialized() && backend != "auto" && backend != runtime::backend_name() {
            return Err(Error::new(
                Status::TCUDA_ERROR_INVALID_STATE,
                format!(
                    "The backend '{backend}' is asked for, but '{}' is in use. A process has one; ask for it before anything uses a device.",
                    runtime::backend_name()
                ),
            ));
        }
    }
    let alloc_conf = wishes.iter().find(|(variable, _)| *variable == memory::options::VARIABLE).map(|(_, options)| options);
    let options = alloc_conf.map(|options| memory::options::parse(options)).transpose()?;
    if CALLED.load(Relaxed) && !again {
        runtime::runtime()?;
        if let Some(options) = alloc_conf.filter(|options| config::get(memory::options::VARIABLE).as_ref() != Some(options)) {
            let why = "tcuda_init was called before, and somebody may count on what is in effect; tcuda_set_alloc_conf changes it.";
            log::warn(&format!("The alloc_conf '{options}' of tcuda_init has no effect: {why}"));
        }
        return Ok(());
    }
    let configures = again || alloc_conf.is_some();
    let before: Vec<_> = wishes.into_iter().map(|(variable, value)| (variable, config::exchange(variable, Some(value)))).collect();
    let devices_are_there = |_| options.as_ref().map_or(Ok(()), memory::limits::check_devices);
    let configure = |()| if configures { memory::configure() } else { Ok(()) };
    runtime::runtime().and_then(devices_are_there).and_then(configure).inspect_err(|_| {
        for (variable, value) in before.into_iter().rev() {
            config::exchange(variable, value);
        }
    })?;
    CALLED.store(true, Relaxed);
    Ok(())
}

/// Whether this process has a backend in use (torch.cuda.is_initialized): false before the first need, in a forked child and after
/// tcuda_shutdown. Initialises nothing, never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_is_initialized() -> bool {
    runtime::is_initialized()
}

/// Whether there is a device to work with (torch.cuda.is_available): tcuda_device_count is not 0. By default only real devices count;
/// a simulated one is available when the program or its user asked for it (TCUDA_BACKEND=sim or auto). tcuda_backend_name tells which.
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_is_available() -> bool {
    guard_value("tcuda_is_available", false, || Ok(device::count() > 0))
}

/// Waits for all devices, gives back all memory, and destroys what tcuda made, for the program too: streams, green contexts, events, memory
/// pools, graphs, graphed callables, generators, compiled functions, modules of kernels, communicators, imported memory. Snapshots, pluggable
/// allocators, domains of NVTX, tensors of the CPU and registered functions live on. No other thread may be inside a call of tcuda. Called again it does
/// nothing. TCUDA_ERROR_INVALID_STATE: it is called from inside of a call, by a function that hears the log, is asked for memory, is
/// captured, or is told by the trace, the debug mode or the sanitizer. Programs need not call it before they exit; leak checkers like it.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_shutdown() -> tcuda_status_t {
    guard_always("tcuda_shutdown", || sync_debug::unrefused(shutdown))
}

fn shutdown() -> Result<()> {
    if process::is_shut_down() {
        return Ok(());
    }
    process::check()?;
    memory::provider::refuse_inside()?;
    work::refuse_aside("tcuda_shutdown")?;
    let in_use = runtime::is_initialized();
    if in_use && let Err(error) = device::current() {
        // Nothing can be given back from inside a host function; what ails the device otherwise does not matter here.
        if error.native == runtime::code::NOT_PERMITTED {
            return Err(Error { status: Status::TCUDA_ERROR_INVALID_STATE, ..error });
        }
    }
    let _end = End::begin();
    if in_use {
        // Captures end before they are waited for.
        graph::shutdown();
        // Their work may wait for ranks that never come.
        communicator::shutdown();
    }
    process::set_shut_down(true);
    let end = || {
        if in_use {
            // One of whose streams is captured waits for no other as a whole.
            device::synchronize_all().into_iter().for_each(stream::drain_all);
            graph::forget_replays();
        }
        jit::shutdown();
        if in_use {
            libs::shutdown();
            ipc::shutdown();
            memory::shutdown();
            event::shutdown();
            stream::shutdown();
        }
        random::shutdown();
        sanitizer::shutdown();
        Ok(())
    };
    // A capture may be left that only its own thread can end.
    if in_use { runtime::runtime()?.outside_capture(end) } else { end() }
}

/// One stable word: `cuda`, `sim` (the simulated device), or `none` when there is no usable backend. Looks for one if that was not done
/// yet. Never freed, never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_backend_name() -> *const c_char {
    guard_value("tcuda_backend_name", c"none".as_ptr(), || Ok(lasting(runtime::backend_name())))
}

/// A sentence: which library the backend is and why it was taken, or what was looked for and where; in a forked child and after tcuda_shutdown,
/// that this is why there are no devices. Never freed, never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_backend_reason() -> *const c_char {
    guard_value("tcuda_backend_reason", c"".as_ptr(), || Ok(lasting(&runtime::backend_reason())))
}

/// What is in effect: every variable that tcuda reads, a line each, `NAME=value  # default, environment or program; meaning`; and in lines that begin
/// with `#`, the version, the backend once there is one, and the options of the caches (tcuda_get_alloc_conf).
///
/// @param text     gets the lines with a terminating zero; NULL with capacity 0 asks for the size only.
/// @param needed   gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
/// @return TCUDA_ERROR_BUFFER_TOO_SMALL: nothing but `needed` was written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_config_dump(text: *mut c_char, capacity: usize, needed: *mut usize) -> tcuda_status_t {
    guard_always("tcuda_config_dump", || {
        let out = TextOut::new(text, capacity, needed)?;
        process::refuse_forked()?;
        let mut lines = format!("# tcuda {}\n", env!("CARGO_PKG_VERSION"));
        // Writing to a String cannot fail.
        if runtime::is_initialized() {
            let _ = writeln!(lines, "# backend {}: {}", runtime::backend_name(), runtime::backend_reason().replace('\n', " "));
        }
        let _ = writeln!(lines, "# options of the caches: {}", memory::options::show(&memory::limits::in_effect()));
        for variable in config::VARIABLES {
            let (value, source) = config::in_effect(variable);
            let from = match source {
                config::Source::Default => "default",
                config::Source::Environment => "environment",
                config::Source::Program => "program",
            };
            let _ = writeln!(lines, "{}={value}  # {from}; {}", variable.name, variable.meaning);
        }
        out.write(&lines)
    })
}
