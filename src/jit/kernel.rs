//! Whole kernels from CUDA source: compiled, looked up by name, launched with typed arguments.

use crate::base::handles::Handles;
use crate::base::{Error, Result, log, process, room};
use crate::runtime::Runtime;
use crate::runtime::compile::{Compiler, Image, Program};
use crate::runtime::kernels::compiled::{self, Shape};
use crate::{device, runtime, stream};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One value that a kernel takes, as its bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Argument {
    /// u64s for the alignment.
    pub words: SmallVec<[u64; 1]>,
    pub size: usize,
}

pub struct Options<'a> {
    /// As messages call the source.
    pub name: &'a str,
    pub options: Vec<&'a str>,
    /// Names that are no plain `extern "C"` ones: `scale<float>`.
    pub names: Vec<&'a str>,
}

pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: usize,
    pub arguments: SmallVec<[Argument; 8]>,
}

/// What the compiler made of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    pub max_threads: i32,
    pub registers: i32,
    pub shared: i32,
    pub constant: i32,
    pub local: i32,
    pub max_dynamic_shared: i32,
    pub ptx_version: i32,
    pub binary_version: i32,
}

/// An image on a device, unloaded when the last kernel of it is gone.
struct Module {
    device: i32,
    loaded: compiled::Module,
    name: String,
    /// Names as they were given, and the symbols that they became.
    symbols: Vec<(String, String)>,
    /// The handles of its kernels so far, by symbol: one for each function of the driver, which has one set of attributes.
    kernels: Mutex<BTreeMap<String, u64>>,
}

pub struct Kernel {
    name: String,
    module: Arc<Module>,
    function: compiled::Function,
    max_threads: i32,
    /// Bytes of each parameter, where the driver tells.
    parameters: Option<Vec<usize>>,
    /// Bytes of shared memory of its own.
    own_shared: i32,
    /// The most dynamic shared memory, once the driver was asked for it.
    most_shared: OnceCell<i32>,
}

static MODULES: Handles<Module> = Handles::new("module of kernels", "tcuda_kernel_compile");
static KERNELS: Handles<Kernel> = Handles::new("kernel", "tcuda_kernel_get");

// CUfunction_attribute
const MAX_THREADS_PER_BLOCK: i32 = 0;
const SHARED_SIZE: i32 = 1;
const CONST_SIZE: i32 = 2;
const LOCAL_SIZE: i32 = 3;
const REGISTERS: i32 = 4;
const PTX_VERSION: i32 = 5;
const BINARY_VERSION: i32 = 6;
const MAX_DYNAMIC_SHARED: i32 = 8;
/// cudaDevAttrMaxSharedMemoryPerBlockOptin.
const DEVICE_SHARED: i32 = 97;
/// A launch may have so much without asking.
const SHARED_FOR_ALL: i32 = 48 << 10;

impl Module {
    fn unload(&self) -> Result<()> {
        let _guard = device::Guard::new(self.device)?;
        self.loaded.unload(runtime::runtime()?)
    }
}

/// All modules and kernels are gone. Nothing of them runs any more.
pub(super) fn shutdown() {
    drop(KERNELS.clear());
    // What cannot be unloaded is lost with its device.
    MODULES.clear().iter().for_each(|module| drop(module.unload()));
}

impl Drop for Module {
    /// After a shutdown, and in a forked child, it is not there any more.
    fn drop(&mut self) {
        if process::is_running()
            && let Err(error) = self.unload()
        {
            log::warn(&format!("The module '{}' could not be unloaded: {error}", self.name));
        }
    }
}

/// For one device; the handle of the module.
pub fn compile(source: &str, options: &Options, device: i32) -> Result<u64> {
    let device = device::resolve(device)?;
    let runtime = runtime::runtime()?;
    let compiler = Compiler::of_kernels(runtime, device)?;
    let text = format!("#line 1 \"{}\"\n{source}", options.name);
    let mut all = vec!["--std=c++17"];
    if options.options.iter().any(|option| option.starts_with("-std") || option.starts_with("--std")) {
        all.clear();
    }
    all.extend(&options.options);
    let image = compiler.compile(&Program { name: options.name, text: &text, source, names: &options.names, options: &all })?;
    let symbols = options.names.iter().map(|name| name.to_string()).zip(image.symbols.iter().cloned()).collect();
    insert(&image, options.name, symbols, device)
}

/// What was compiled before, for one device; the handle of the module.
pub fn load(image: &[u8], device: i32) -> Result<u64> {
    let device = device::resolve(device)?;
    Compiler::refuse_simulated(runtime::runtime()?, device)?;
    // PTX is a text, whose end the driver looks for.
    let mut code = Vec::new();
    room::reserve(&mut code, image.len() + 1, "an image of kernels")?;
    code.extend_from_slice(image);
    code.push(0);
    insert(&Image { code, symbols: Vec::new() }, "the image", Vec::new(), device)
}

fn insert(image: &Image, name: &str, symbols: Vec<(String, String)>, device: i32) -> Result<u64> {
    let guard = device::Guard::new(device)?;
    let loaded = compiled::Module::load(runtime::runtime()?, image)
        .map_err(|error| error.context(format!("'{name}' cannot be loaded on device {device}")).on_device(device))?;
    let module = Module { device: guard.device, loaded, name: name.into(), symbols, kernels: Mutex::default() };
    Ok(MODULES.insert(Arc::new(module)) as u64)
}

/// Its kernels go with it.
pub fn destroy_module(id: u64) -> Result<()> {
    let module = MODULES.remove(id as usize)?;
    KERNELS.remove_where(|kernel| Arc::ptr_eq(&kernel.module, &module));
    Ok(())
}

/// The handle of a kernel: by the name that it was asked for in `compile`, else by its symbol. A kernel has one.
pub fn get(number: u64, name: &str) -> Result<u64> {
    let module = MODULES.get(number as usize)?;
    let symbol = module.symbols.iter().find(|(given, _)| given == name).map_or(name, |(_, symbol)| symbol);
    let mut kernels = module.kernels.lock();
    if let Some(known) = kernels.get(symbol) {
        return Ok(*known);
    }
    let runtime = runtime::runtime()?;
    let _guard = device::Guard::new(module.device)?;
    let function = module.loaded.function(runtime, symbol).map_err(|error| match error.native {
        runtime::code::NOT_FOUND => Error::invalid_argument(format!(
            "'{}' has no kernel '{name}'. Declare it extern \"C\" __global__, or give its name (as `scale<float>`) to tcuda_kernel_compile.",
            module.name
        ))
        .with_native(error.native),
        _ => error,
    })?;
    let handle = function.handle()?;
    let max_threads = runtime.function_attribute(handle, MAX_THREADS_PER_BLOCK)?;
    let parameters = runtime.function_parameters(handle)?;
    let own_shared = runtime.function_attribute(handle, SHARED_SIZE)?;
    let most_shared = OnceCell::new();
    let kernel = Kernel { name: name.into(), module: module.clone(), function, max_threads, parameters, own_shared, most_shared };
    let id = KERNELS.insert(Arc::new(kernel));
    // Destroyed meanwhile: who did that may not have seen this kernel.
    MODULES.get(number as usize).inspect_err(|_| drop(KERNELS.remove(id)))?;
    kernels.insert(symbol.into(), id as u64);
    Ok(id as u64)
}

pub fn kernel_numbered(id: u64) -> Result<Arc<Kernel>> {
    KERNELS.get(id as usize)
}

impl Kernel {
    pub fn launch(&self, launch: &Launch, handle: usize) -> Result<()> {
        let stream = stream::resolve_on(handle, self.module.device)?;
        self.check(launch)?;
        let runtime = runtime::runtime()?;
        let _guard = device::Guard::new(self.module.device)?;
        let shared = self.allow_shared(runtime, launch.shared)?;
        let shape = Shape { grid: launch.grid, block: launch.block, shared };
        let values = launch.arguments.iter().map(|argument| argument.words.as_slice());
        self.function.launch(runtime, &shape, stream.raw, values).map_err(|error| error.context(format!("The launch of '{}'", self.name)))
    }

    fn check(&self, launch: &Launch) -> Result<()> {
        let wrong = |text: String| Err(Error::invalid_argument(format!("The launch of '{}': {text}", self.name)));
        for (what, sizes) in [("grid", launch.grid), ("block", launch.block)] {
            if sizes.contains(&0) {
                return wrong(format!("the {what} is {sizes:?}; a size of 0 is none. One that is not needed is 1."));
            }
        }
        let threads = launch.block.iter().fold(1u64, |threads, size| threads.saturating_mul(u64::from(*size)));
        if threads > self.max_threads as u64 {
            return wrong(format!("a block of {:?} has {threads} threads; the kernel can have {}.", launch.block, self.max_threads));
        }
        let Some(parameters) = &self.parameters else { return Ok(()) };
        if parameters.len() != launch.arguments.len() {
            return wrong(format!("the kernel takes {} arguments; {} were given.", parameters.len(), launch.arguments.len()));
        }
        for (at, (size, argument)) in parameters.iter().zip(&launch.arguments).enumerate() {
            if *size != argument.size {
                return wrong(format!("argument {at} has {} bytes; the kernel's parameter has {size}.", argument.size));
            }
        }
        Ok(())
    }

    /// Above what all launches may have, the driver has to be asked: once, for all that the device has.
    fn allow_shared(&self, runtime: &Runtime, wanted: usize) -> Result<u32> {
        let size = i32::try_from(wanted).unwrap_or(i32::MAX);
        if size <= SHARED_FOR_ALL - self.own_shared {
            return Ok(size as u32);
        }
        let ask = || {
            let most = runtime.device_attribute(DEVICE_SHARED, self.module.device)? - self.own_shared;
            runtime.set_function_attribute(self.function.handle()?, MAX_DYNAMIC_SHARED, most)?;
            Ok(most)
        };
        let most = *self.most_shared.get_or_try_init(ask).map_err(|error: Error| {
            error.context(format!("'{}' cannot have {wanted} bytes of dynamic shared memory", self.name)).on_device(self.module.device)
        })?;
        if size > most {
            let text = format!(
                "'{}' cannot have {wanted} bytes of dynamic shared memory: a block of this device has {} bytes, of which the kernel itself \
                 takes {}.",
                self.name,
                most + self.own_shared,
                self.own_shared
            );
            return Err(Error::invalid_argument(text).on_device(self.module.device));
        }
        Ok(size as u32)
    }

    /// Blocks of so many threads that a multiprocessor runs at once.
    pub fn occupancy(&self, block: i32, shared: usize) -> Result<i32> {
        if block < 1 {
            return Err(Error::invalid_argument(format!("'block' is {block}; a block has at least one thread.")));
        }
        let runtime = runtime::runtime()?;
        let _guard = device::Guard::new(self.module.device)?;
        self.allow_shared(runtime, shared)?;
        runtime.occupancy(self.function.handle()?, block, shared)
    }

    /// (blocks that fill the device, threads of a block).
    pub fn best_block(&self, shared: usize, limit: i32) -> Result<(i32, i32)> {
        if limit < 0 {
            return Err(Error::invalid_argument(format!("'limit' is {limit}; 0 is no limit.")));
        }
        let runtime = runtime::runtime()?;
        let _guard = device::Guard::new(self.module.device)?;
        self.allow_shared(runtime, shared)?;
        runtime.best_block(self.function.handle()?, shared, limit)
    }

    pub fn attributes(&self) -> Result<Attributes> {
        let runtime = runtime::runtime()?;
        let _guard = device::Guard::new(self.module.device)?;
        let handle = self.function.handle()?;
        let of = |attribute| runtime.function_attribute(handle, attribute);
        Ok(Attributes {
            max_threads: of(MAX_THREADS_PER_BLOCK)?,
            registers: of(REGISTERS)?,
            shared: of(SHARED_SIZE)?,
            constant: of(CONST_SIZE)?,
            local: of(LOCAL_SIZE)?,
            max_dynamic_shared: of(MAX_DYNAMIC_SHARED)?,
            ptx_version: of(PTX_VERSION)?,
            binary_version: of(BINARY_VERSION)?,
        })
    }
}
