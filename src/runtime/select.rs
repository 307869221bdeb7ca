//! Which backend is in use, and why. Decided at the first need; a failure is not kept, the next call tries again.

use super::api::Runtime;
use super::{cuda, sim};
use crate::base::{Error, Result, config, process};
use once_cell::sync::OnceCell;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    Cuda,
    Sim,
    Auto,
}

impl Choice {
    pub fn parse(text: &str) -> Result<Choice> {
        match text {
            "cuda" => Ok(Choice::Cuda),
            "sim" => Ok(Choice::Sim),
            "auto" => Ok(Choice::Auto),
            other => {
                Err(Error::invalid_argument(format!("The backend '{other}' is unknown. Known are cuda, sim and auto (TCUDA_BACKEND).")))
            }
        }
    }
}

static CELL: OnceCell<Runtime> = OnceCell::new();
static CURRENT: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());
/// Or -1.
static FIRST_DEVICE: AtomicI32 = AtomicI32::new(-1);

/// The backend, made at the first call. Threads that come at the same time wait for the first.
#[inline]
pub fn runtime() -> Result<&'static Runtime> {
    let current = CURRENT.load(Ordering::Acquire);
    if current.is_null() { initialise() } else { Ok(unsafe { &*current }) }
}

#[cold]
fn initialise() -> Result<&'static Runtime> {
    process::check()?;
    // Before: a child does not wait for a thread that is not there.
    process::refuse_forks();
    let runtime = CELL.get_or_try_init(|| {
        process::order_ends();
        // Before CUDA has threads, with which the first memory would have to wait for it.
        process::has_barrier();
        let choice = Choice::parse(config::get("TCUDA_BACKEND").as_deref().unwrap_or("cuda"))?;
        let opened = match choice {
            Choice::Sim => sim::open("TCUDA_BACKEND asks for the simulated device"),
            Choice::Cuda => cuda::open().map_err(|failure| {
                Error::new(
                    failure.status,
                    format!("{failure} To run without a GPU, set TCUDA_BACKEND=sim (the simulated device) or TCUDA_BACKEND=auto."),
                )
                .with_native(failure.native)
            }),
            Choice::Auto => {
                cuda::open().or_else(|failure| sim::open(&format!("TCUDA_BACKEND is auto and there is no real device: {failure}")))
            }
        };
        opened.inspect(|runtime| FIRST_DEVICE.store(runtime.get_device().unwrap_or(-1), Ordering::Relaxed))
    })?;
    CURRENT.store(std::ptr::from_ref(runtime).cast_mut(), Ordering::Release);
    Ok(runtime)
}

pub fn is_initialized() -> bool {
    is_chosen() && process::is_running()
}

/// Whether a backend was chosen, which stays for the life of the process, also after shutdown.
pub fn is_chosen() -> bool {
    !CURRENT.load(Ordering::Acquire).is_null()
}

/// The device that was current on the thread that chose the backend, when it did. If CUDA could not say, the calling thread's.
pub fn first_device() -> Result<i32> {
    match FIRST_DEVICE.load(Ordering::Relaxed) {
        -1 => runtime()?.get_device(),
        device => Ok(device),
    }
}

/// `cuda`, `sim`, or `none` when there is no usable backend.
pub fn backend_name() -> &'static str {
    runtime().map_or("none", |runtime| runtime.name)
}

/// Which backend, out of which library, and why; or why there is none, or none that can be used now.
pub fn backend_reason() -> String {
    match process::check().and_then(|()| runtime()) {
        Ok(runtime) => runtime.reason.clone(),
        Err(error) => error.message.into_owned(),
    }
}
