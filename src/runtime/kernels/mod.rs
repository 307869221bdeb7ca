//! tcuda's own kernels: device code embedded as PTX, and the Rust twins that the simulated device runs.
//!
//! A family is one file of `kernels/` and one module on a device; kernels/build.py makes the PTX. Each kernel takes one struct by
//! value. Its twin takes the same struct and does the same work on the host; `launch` is the only place that knows which of the two
//! runs. To add a family: its `.cu` file, `kernels/build.py`, a file here with the struct, the kernels and the twins.

pub mod compiled;
pub mod element;
mod plan;
pub mod tensor;

pub use plan::{Dim, MAX_DIMS, Plan};
pub use tensor::Divider;

use super::api::Runtime;
use super::sim;
use super::table::{Address, RawStream};
use crate::base::{Error, Result};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::ffi::c_void;

/// One module a device, loaded when the first of its kernels is launched there.
pub struct Family {
    name: &'static str,
    /// PTX, compressed with zlib.
    image: &'static [u8],
    modules: Mutex<Vec<(i32, usize)>>,
}

/// A kernel that takes an `A` by value.
pub struct Kernel<A: 'static> {
    family: &'static Family,
    name: &'static str,
    /// The same work on the host.
    twin: unsafe fn(&A),
    /// The driver's handle for each device; 0 until the first launch there.
    handles: OnceCell<Box<[Handle]>>,
}

type Handle = std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Memory that a kernel touches: the simulated device checks it as a real one checks its pages.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub address: Address,
    pub size: usize,
    pub write: bool,
}

impl Family {
    pub const fn new(name: &'static str, image: &'static [u8]) -> Family {
        Family { name, image, modules: Mutex::new(Vec::new()) }
    }

    fn module(&self, runtime: &Runtime, device: i32) -> Result<usize> {
        let mut modules = self.modules.lock();
        if let Some((_, module)) = modules.iter().find(|(d, _)| *d == device) {
            return Ok(*module);
        }
        let damaged = || Error::internal(format!("the PTX of the kernel family '{}' does not decompress", self.name));
        let mut ptx = miniz_oxide::inflate::decompress_to_vec_zlib(self.image).map_err(|_| damaged())?;
        ptx.push(0);
        let module = runtime.outside_capture(|| runtime.module_load(&ptx)).map_err(|error| {
            let what = format!("The kernels '{}' of tcuda cannot be loaded on device {device}", self.name);
            error.context(what).on_device(device)
        })?;
        modules.push((device, module));
        Ok(module)
    }
}

impl<A> Kernel<A> {
    pub const fn new(family: &'static Family, name: &'static str, twin: unsafe fn(&A)) -> Kernel<A> {
        Kernel { family, name, twin, handles: OnceCell::new() }
    }

    fn handle(&self, runtime: &Runtime, device: i32) -> Result<usize> {
        let handles = self.handles.get_or_init(|| (0..runtime.device_count).map(|_| Handle::new(0)).collect());
        let slot = usize::try_from(device).ok().and_then(|device| handles.get(device)).ok_or_else(|| {
            Error::internal(format!("the kernel {} was asked for on device {device} of {}", self.name, runtime.device_count))
        })?;
        match slot.load(Acquire) {
            0 => {
                let module = self.family.module(runtime, device)?;
                let handle = runtime.outside_capture(|| runtime.module_function(module, self.name))?;
                slot.store(handle, Release);
                Ok(handle)
            }
            handle => Ok(handle),
        }
    }
}

/// Enqueues the kernel on a stream of `device`, which is current.
///
/// # Safety
/// `arguments` describe memory that the kernel may touch when the stream comes to it; `accesses` is all of it.
pub unsafe fn launch<A: Copy + Send + 'static>(
    runtime: &'static Runtime,
    device: i32,
    stream: RawStream,
    kernel: &'static Kernel<A>,
    (blocks, threads): (u32, u32),
    mut arguments: A,
    accesses: &[Access],
) -> Result<()> {
    if runtime.name == "sim" {
        let twin = kernel.twin;
        return sim::launch(stream, move || unsafe { twin(&arguments) }, accesses);
    }
    let handle = kernel.handle(runtime, device)?;
    let mut parameters = [std::ptr::from_mut(&mut arguments).cast::<c_void>()];
    unsafe { runtime.launch_kernel(handle, [blocks, 1, 1], [threads, 1, 1], 0, stream, &mut parameters) }
}
