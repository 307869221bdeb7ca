//! What a compiler made at run time: loaded, and launched. On the simulated device it is a shared object, whose function runs every
//! thread of an element-wise kernel in turn.

use super::Access;
use crate::base::{Error, Result};
use crate::runtime::api::Runtime;
use crate::runtime::compile::Image;
use crate::runtime::cuda::library::Library;
use crate::runtime::sim;
use crate::runtime::table::{Code, RawStream, code};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// An image on a device. `unload` gives it back; otherwise it stays for the life of the process.
pub struct Module(Loaded);

enum Loaded {
    Driver(usize),
    Host(Library),
}

/// A kernel of a module, which must outlive it.
#[derive(Clone, Copy, Debug)]
pub enum Function {
    Driver(usize),
    Host(HostKernel),
}

/// (the kernel's one argument, blocks, threads of a block).
type HostKernel = unsafe extern "C" fn(*const c_void, u32, u32);

/// The kernel of an element-wise image, and the host's form of it.
pub const ENTRY: &str = "tcuda_jit";
const HOST_ENTRY: &str = "tcuda_jit_run";

impl Module {
    /// Onto the device that is current.
    pub fn load(runtime: &Runtime, image: &Image) -> Result<Module> {
        let loaded = match runtime.name {
            "sim" => Loaded::Host(load_object(&image.code)?),
            _ => Loaded::Driver(runtime.outside_capture(|| runtime.module_load(&image.code))?),
        };
        Ok(Module(loaded))
    }

    /// By symbol.
    pub fn function(&self, runtime: &Runtime, name: &str) -> Result<Function> {
        match &self.0 {
            Loaded::Driver(module) => runtime.outside_capture(|| runtime.module_function(*module, name)).map(Function::Driver),
            Loaded::Host(library) => match library.symbol(HOST_ENTRY) {
                0 => Err(Error::internal(format!("a compiled function has no {HOST_ENTRY}"))),
                address => Ok(Function::Host(unsafe { std::mem::transmute::<usize, HostKernel>(address) })),
            },
        }
    }

    /// Its device is current, and nothing of it runs any more.
    pub fn unload(&self, runtime: &Runtime) -> Result<()> {
        match self.0 {
            Loaded::Driver(module) => runtime.outside_capture(|| runtime.module_unload(module)),
            Loaded::Host(_) => Ok(()),
        }
    }
}

/// The loader takes files only: this one is in memory.
fn load_object(code: &[u8]) -> Result<Library> {
    let fd = unsafe { libc::memfd_create(c"tcuda-jit".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::system("A compiled function could not be kept in memory (memfd_create)"));
    }
    let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
    file.write_all(code).map_err(|_| Error::system("A compiled function could not be kept in memory"))?;
    // The loader takes one name for one file, and numbers of files come again: so each name is written in a way of its own, one step
    // to the same folder for each bit that is set.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    let spelling: String = (0..u32::BITS).map(|bit| if number >> bit & 1 == 1 { "./" } else { "/" }).collect();
    Library::open(&PathBuf::from(format!("/proc/self/fd/{spelling}{}", file.as_raw_fd()))).map_err(|text| {
        Error::not_supported(format!("What the C++ compiler made cannot be loaded: {text}")).with_native(code::INVALID_IMAGE)
    })
}

/// Whether it was the image that could not be loaded, and not that the device or the process is short of something.
pub fn is_of_the_image(error: &Error) -> bool {
    const INVALID_PTX: Code = 218;
    const UNSUPPORTED_PTX_VERSION: Code = 222;
    const NO_BINARY_FOR_GPU: Code = 209;
    [code::INVALID_IMAGE, INVALID_PTX, UNSUPPORTED_PTX_VERSION, NO_BINARY_FOR_GPU, code::NOT_FOUND].contains(&error.native)
}

/// Enqueues an element-wise kernel on a stream of the current device. `arguments` is what it takes, by value; `accesses` is all the
/// memory that it touches.
pub fn run_elements(
    runtime: &'static Runtime,
    function: Function,
    stream: RawStream,
    (blocks, threads): (u32, u32),
    arguments: &mut [u64],
    accesses: &[Access],
) -> Result<()> {
    runtime.note("a compiled function", stream);
    match function {
        Function::Driver(handle) => {
            let mut parameters = [arguments.as_mut_ptr().cast::<c_void>()];
            unsafe { runtime.launch_kernel(handle, [blocks, 1, 1], [threads, 1, 1], 0, stream, &mut parameters) }?
        }
        Function::Host(kernel) => {
            let arguments: Box<[u64]> = arguments.into();
            let run = move || unsafe { kernel(arguments.as_ptr().cast(), blocks, threads) };
            sim::launch(stream, run, accesses)?
        }
    }
    runtime.tell_accesses(stream, accesses);
    Ok(())
}

/// What a launch of a whole kernel takes.
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

impl Function {
    /// The driver's handle, for what only a whole kernel has.
    pub fn handle(self) -> Result<usize> {
        match self {
            Function::Driver(handle) => Ok(handle),
            Function::Host(_) => Err(Error::internal("a function of the host was taken for a kernel")),
        }
    }

    /// `arguments` are the values, each of the size that the kernel takes there.
    pub fn launch<'a>(self, runtime: &Runtime, shape: &Shape, stream: RawStream, arguments: impl Iterator<Item = &'a [u64]>) -> Result<()> {
        runtime.note("a compiled kernel", stream);
        let mut parameters: SmallVec<[*mut c_void; 16]> = arguments.map(|words| words.as_ptr().cast_mut().cast()).collect();
        unsafe { runtime.launch_kernel(self.handle()?, shape.grid, shape.block, shape.shared, stream, &mut parameters) }
    }
}
