//! tcuda's own kernels: device code embedded as PTX, and the Rust twins that the simulated device runs.
//!
//! A family is one file of `kernels/`; kernels/build.py makes the PTX. A kernel is loaded when it is first launched on a device, and takes
//! one struct by value. Its twin takes the same struct and does the same work on the host; `launch` is the only place that knows which of
//! the two runs. To add a family: its `.cu` file, `kernels/build.py`, a file here with the struct, the kernels and the twins.

pub mod comm;
pub mod compiled;
mod divider;
pub mod element;
mod image;
mod plan;
pub mod random;
pub mod tensor;

pub use divider::Divider;
pub use image::Family;
pub use plan::{Dim, MAX_DIMS, Plan, accesses, check_dims, stretches};

use super::api::Runtime;
use super::sim;
use super::table::RawStream;
use crate::base::{Error, Result};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::ffi::c_void;

/// A kernel that takes an `A` by value.
pub struct Kernel<A: 'static> {
    family: &'static Family,
    name: &'static str,
    /// The same work on the host.
    twin: unsafe fn(&A),
    /// The driver's handle for each device; 0 until the first launch there.
    handles: OnceCell<Box<[Handle]>>,
    /// Held while it is loaded, so that it is loaded once.
    loading: Mutex<()>,
}

/// cudaDevAttrComputeCapabilityMajor and -Minor.
const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;

type Handle = std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Memory that a kernel touches: the simulated device checks it as a real one checks its pages, and the sanitizer who else touches it.
pub use crate::base::watch::Access;

impl<A> Kernel<A> {
    pub const fn new(family: &'static Family, name: &'static str, twin: unsafe fn(&A)) -> Kernel<A> {
        Kernel { family, name, twin, handles: OnceCell::new(), loading: Mutex::new(()) }
    }

    fn handle(&self, runtime: &Runtime, device: i32) -> Result<usize> {
        let handles = self.handles.get_or_init(|| (0..runtime.device_count).map(|_| Handle::new(0)).collect());
        let slot = usize::try_from(device).ok().and_then(|device| handles.get(device)).ok_or_else(|| {
            Error::internal(format!("the kernel {} was asked for on device {device} of {}", self.name, runtime.device_count))
        })?;
        match slot.load(Acquire) {
            0 => {}
            handle => return Ok(handle),
        }
        let _loading = self.loading.lock();
        match slot.load(Acquire) {
            0 => {}
            handle => return Ok(handle),
        }
        let load = || {
            let architecture =
                10 * runtime.device_attribute(CAPABILITY_MAJOR, device)? + runtime.device_attribute(CAPABILITY_MINOR, device)?;
            let module = runtime.module_load(self.family.ptx(self.name, architecture)?.as_bytes_with_nul())?;
            runtime.module_function(module, self.name).inspect_err(|_| drop(runtime.module_unload(module)))
        };
        let handle = runtime.outside_capture(load).map_err(|error| {
            let what = format!("The kernel {} of tcuda cannot be loaded on device {device}", self.name);
            error.context(what).on_device(device)
        })?;
        slot.store(handle, Release);
        Ok(handle)
    }
}

/// The architectures whose PTX is embedded, the oldest first: 75 is compute capability 7.5. What runs on one runs on all later ones.
pub fn architectures() -> &'static [i32] {
    image::ARCHITECTURES
}

/// Loads the kernel, if that was not done: launches do it too, but who holds a lock when he launches should not wait for a compiler.
pub fn prepare<A>(runtime: &Runtime, device: i32, kernel: &'static Kernel<A>) -> Result<()> {
    if runtime.name == "sim" { Ok(()) } else { kernel.handle(runtime, device).map(drop) }
}

/// Enqueues the kernel on a stream of `device`, which is current.
///
/// # Safety
/// `arguments` describe memory that the kernel may touch when the stream comes to it; `accesses` is all of it.
pub unsafe fn launch<A: Copy + Send + Sync + 'static>(
    runtime: &'static Runtime,
    device: i32,
    stream: RawStream,
    kernel: &'static Kernel<A>,
    (blocks, threads): (u32, u32),
    mut arguments: A,
    accesses: &[Access],
) -> Result<()> {
    runtime.note(kernel.name, stream);
    if runtime.name == "sim" {
        let twin = kernel.twin;
        sim::launch(stream, move || unsafe { twin(&arguments) }, accesses)?;
        runtime.tell_accesses(stream, accesses);
        return Ok(());
    }
    let handle = kernel.handle(runtime, device)?;
    let mut parameters = [std::ptr::from_mut(&mut arguments).cast::<c_void>()];
    unsafe { runtime.launch_kernel(handle, [blocks, 1, 1], [threads, 1, 1], 0, stream, &mut parameters) }?;
    runtime.tell_accesses(stream, accesses);
    Ok(())
}
