//! Kernels from source
//!
//! A whole source of CUDA, compiled at run time by NVRTC (torch.cuda._compile_kernel) or before, with any number of kernels, which are
//! launched with typed arguments. A module is for one device. Memory that a launch uses is the caller's to keep: a block of tcuda's cache
//! that another stream than its own uses is made known with tcuda_record_stream. The simulated device runs no whole kernels: there
//! tcuda_kernel_compile and tcuda_kernel_load answer TCUDA_ERROR_NOT_SUPPORTED.

use super::guard::{Out, guard, guard_destroy, guard_out, slice, text};
use super::structs::{self, Growing, StructOut, read, tcuda_stream_t};
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result};
use crate::jit::{self, Argument, Launch, Options};
use smallvec::smallvec;
use std::ffi::{c_char, c_void};

/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_kernel_module {}
/// A compiled source. Not a pointer to anything.
#[allow(non_camel_case_types)]
pub type tcuda_kernel_module_t = *mut tcuda_kernel_module;

/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_kernel {}
/// A kernel of a compiled source, which ends with it. Not a pointer to anything.
#[allow(non_camel_case_types)]
pub type tcuda_kernel_t = *mut tcuda_kernel;

/// How a source is compiled. All zero: as C++17, with the name "kernel.cu", and kernels that are extern "C".
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_kernel_options_t {
    pub struct_size: usize,
    /// As messages call the source; NULL: "kernel.cu".
    pub name: *const c_char,
    /// Options of NVRTC ("-DN=4", "-I/usr/local/cuda/include", "--use_fast_math"); the architecture is the device's.
    pub options: *const *const c_char,
    pub option_count: usize,
    /// Expressions that name kernels which are not extern "C" ("scale<float>", "space::kernel"); by them tcuda_kernel_get finds them.
    pub names: *const *const c_char,
    pub name_count: usize,
}
structs::input!(tcuda_kernel_options_t: name, options, option_count, names, name_count);

/// A value that a kernel takes.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub union tcuda_argument_value_t {
    /// Of TCUDA_ARGUMENT_POINTER: an address, which the kernel gets. Of TCUDA_ARGUMENT_BYTES: where the bytes are, which it gets.
    pub pointer: *const c_void,
    pub i32: i32,
    pub i64: i64,
    pub f32: f32,
    pub f64: f64,
}

/// An argument of a launch.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_argument_t {
    /// TCUDA_ARGUMENT_POINTER, _I32, _I64, _F32, _F64 or _BYTES.
    pub kind: i32,
    /// Of TCUDA_ARGUMENT_BYTES: how many, such as the size of a struct; else 0.
    pub size: usize,
    pub value: tcuda_argument_value_t,
}

// The header has them by hand.
pub const TCUDA_ARGUMENT_POINTER: i32 = 0;
pub const TCUDA_ARGUMENT_I32: i32 = 1;
pub const TCUDA_ARGUMENT_I64: i32 = 2;
pub const TCUDA_ARGUMENT_F32: i32 = 3;
pub const TCUDA_ARGUMENT_F64: i32 = 4;
pub const TCUDA_ARGUMENT_BYTES: i32 = 5;

/// What the compiler made of a kernel.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_kernel_attributes_t {
    pub struct_size: usize,
    /// Threads that a block can have at most.
    pub max_threads: i32,
    /// Registers of a thread.
    pub registers: i32,
    /// Bytes of shared memory of a block, without dynamic ones.
    pub shared: i32,
    /// Bytes of constant memory of the user's.
    pub constant: i32,
    /// Bytes of local memory of a thread: what did not fit its registers.
    pub local: i32,
    /// Bytes of dynamic shared memory that a launch can have so far. Above 48 KiB the driver is asked when that is first needed, for all that the
    /// device has.
    pub max_dynamic_shared: i32,
    /// 90 is 9.0.
    pub ptx_version: i32,
    /// 90 is 9.0.
    pub binary_version: i32,
}
unsafe impl Growing for tcuda_kernel_attributes_t {}

/// CUDA's limit on the arguments of a kernel, since 12.1; before it is 4 KiB.
const MOST_BYTES: usize = 32_764;
const MOST: usize = 4096;

unsafe fn texts<'a>(list: *const *const c_char, count: usize, parameter: &str) -> Result<Vec<&'a str>> {
    check_count(count, parameter)?;
    let list = unsafe { slice(list, count, parameter) }?;
    list.iter().enumerate().map(|(at, one)| unsafe { text(*one, format_args!("{parameter}[{at}]")) }).collect()
}

fn check_count(count: usize, parameter: &str) -> Result<()> {
    match count {
        0..=MOST => Ok(()),
        _ => Err(Error::invalid_argument(format!("The count of '{parameter}' is {count}; {MOST} are the most."))),
    }
}

unsafe fn argument(at: usize, argument: &tcuda_argument_t) -> Result<Argument> {
    let value = argument.value;
    let word = |bits: u64, size| Ok(Argument { words: smallvec![bits], size });
    unsafe {
        match argument.kind {
            TCUDA_ARGUMENT_POINTER => word(value.pointer as u64, 8),
            TCUDA_ARGUMENT_I32 => word(u64::from(value.i32 as u32), 4),
            TCUDA_ARGUMENT_I64 => word(value.i64 as u64, 8),
            TCUDA_ARGUMENT_F32 => word(u64::from(value.f32.to_bits()), 4),
            TCUDA_ARGUMENT_F64 => word(value.f64.to_bits(), 8),
            TCUDA_ARGUMENT_BYTES if (1..=MOST_BYTES).contains(&argument.size) => {
                let bytes = slice(value.pointer.cast::<u8>(), argument.size, format_args!("arguments[{at}].value.pointer"))?;
                let word = |chunk: &[u8]| u64::from_ne_bytes(std::array::from_fn(|at| chunk.get(at).copied().unwrap_or(0)));
                Ok(Argument { words: bytes.chunks(8).map(word).collect(), size: argument.size })
            }
            TCUDA_ARGUMENT_BYTES => {
                Err(Error::invalid_argument(format!("'arguments[{at}].size' is {}; 1 to {MOST_BYTES} bytes are possible.", argument.size)))
            }
            other => Err(Error::invalid_argument(format!("'arguments[{at}].kind' is {other}; 0 to 5 are its values (TCUDA_ARGUMENT_*)."))),
        }
    }
}

/// Compiles a source of CUDA for a device (torch.cuda._compile_kernel).
///
/// @param module   gets the module; tcuda_kernel_module_destroy ends it.
/// @param source   CUDA C++. NVRTC has no headers of its own; those of an installed toolkit are reached by an option "-I".
/// @param device   -1 for the current one.
/// @param options  NULL for all zero.
/// @return TCUDA_ERROR_COMPILATION: the message has the compiler's log and the line. TCUDA_ERROR_NOT_SUPPORTED: there is no NVRTC (the
/// message says what was looked for and where), or the device is simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_kernel_compile(
    module: *mut tcuda_kernel_module_t,
    source: *const c_char,
    device: i32,
    options: *const tcuda_kernel_options_t,
) -> tcuda_status_t {
    guard_out("tcuda_kernel_compile", module, "module", || {
        let source = unsafe { text(source, "source") }?;
        let mut chosen = Options { name: "kernel.cu", options: Vec::new(), names: Vec::new() };
        if let Some(options) = unsafe { read(options, "options") }? {
            if !options.name.is_null() {
                chosen.name = unsafe { text(options.name, "options->name") }?;
            }
            chosen.options = unsafe { texts(options.options, options.option_count, "options->options") }?;
            chosen.names = unsafe { texts(options.names, options.name_count, "options->names") }?;
        }
        if chosen.name.contains(['"', '\n', '\\']) {
            return Err(Error::invalid_argument("'options->name' holds a quote, a backslash or a new line."));
        }
        Ok(jit::compile(source, &chosen, device)? as usize as tcuda_kernel_module_t)
    })
}

/// Loads kernels that were compiled before (cuModuleLoadData): what nvcc, Triton or NVRTC made.
///
/// @param module   gets the module; tcuda_kernel_module_destroy ends it.
/// @param image    PTX, a cubin or a fat binary; copied.
/// @param size     its bytes; of PTX with or without a zero byte at the end.
/// @param device   -1 for the current one.
/// @return TCUDA_ERROR_CUDA: the driver cannot load it, for this device or at all. TCUDA_ERROR_NOT_SUPPORTED: the device is simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_kernel_load(
    module: *mut tcuda_kernel_module_t,
    image: *const c_void,
    size: usize,
    device: i32,
) -> tcuda_status_t {
    guard_out("tcuda_kernel_load", module, "module", || {
        if size == 0 || size > isize::MAX as usize {
            return Err(Error::invalid_argument(format!("'size' is {size}: no image has so many bytes.")));
        }
        let image = unsafe { slice(image.cast::<u8>(), size, "image") }?;
        Ok(jit::load(image, device)? as usize as tcuda_kernel_module_t)
    })
}

/// Ends a module and its kernels. Their launches must be done.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_kernel_module_destroy(module: tcuda_kernel_module_t) -> tcuda_status_t {
    guard_destroy("tcuda_kernel_module_destroy", module, || jit::destroy_module(module as usize as u64))
}

/// A kernel of a module (cuModuleGetFunction). It is not destroyed: it ends with its module.
///
/// @param kernel   gets the kernel: the same for a name each time.
/// @param module   the module.
/// @param name     of an extern "C" kernel, or one of options->names as it was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_kernel_get(
    kernel: *mut tcuda_kernel_t,
    module: tcuda_kernel_module_t,
    name: *const c_char,
) -> tcuda_status_t {
    guard_out("tcuda_kernel_get", kernel, "kernel", || {
        let name = unsafe { text(name, "name") }?;
        Ok(jit::get(module as usize as u64, name)? as usize as tcuda_kernel_t)
    })
}

/// Enqueues a kernel (cuLaunchKernel), on its module's device, whatever device is current.
///
/// @param kernel           the kernel.
/// @param grid             three numbers of blocks; those not needed are 1.
/// @param block            three numbers of threads.
/// @param shared           bytes of dynamic shared memory; above 48 KiB too, as far as the device has it.
/// @param arguments        the kernel's, in order; read before the call returns. Their number and sizes are checked where the driver knows them
///                         (CUDA 12.4).
/// @param argument_count   their number.
/// @param stream           of the module's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_kernel_launch(
    kernel: tcuda_kernel_t,
    grid: *const u32,
    block: *const u32,
    shared: usize,
    arguments: *const tcuda_argument_t,
    argument_count: usize,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_kernel_launch", || {
        let kernel = jit::kernel_numbered(kernel as usize as u64)?;
        let three = |list: *const u32, name| unsafe { slice(list, 3, name) }.map(|list| [list[0], list[1], list[2]]);
        let (grid, block) = (three(grid, "grid")?, three(block, "block")?);
        check_count(argument_count, "arguments")?;
        let arguments = unsafe { slice(arguments, argument_count, "arguments") }?;
        let arguments = arguments.iter().enumerate().map(|(at, one)| unsafe { argument(at, one) }).collect::<Result<_>>()?;
        kernel.launch(&Launch { grid, block, shared, arguments }, stream as usize)
    })
}

/// How many blocks of a kernel a multiprocessor runs at once (cuOccupancyMaxActiveBlocksPerMultiprocessor). Dynamic shared memory that a
/// launch could not have is TCUDA_ERROR_INVALID_ARGUMENT, here and in tcuda_kernel_best_block.
///
/// @param kernel   the kernel.
/// @param blocks   gets the number.
/// @param block    threads of a block.
/// @param shared   bytes of dynamic shared memory of a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_kernel_occupancy(kernel: tcuda_kernel_t, blocks: *mut i32, block: i32, shared: usize) -> tcuda_status_t {
    guard_out("tcuda_kernel_occupancy", blocks, "blocks", || jit::kernel_numbered(kernel as usize as u64)?.occupancy(block, shared))
}

/// The size of a block with which the device is fullest (cuOccupancyMaxPotentialBlockSize).
///
/// @param kernel   the kernel.
/// @param grid     gets the number of such blocks that fill the device.
/// @param block    gets the threads of a block.
/// @param shared   bytes of dynamic shared memory of a block.
/// @param limit    the most threads that a block may have; 0: no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_kernel_best_block(
    kernel: tcuda_kernel_t,
    grid: *mut i32,
    block: *mut i32,
    shared: usize,
    limit: i32,
) -> tcuda_status_t {
    guard("tcuda_kernel_best_block", || {
        let (grid, block) = (Out::new(grid, "grid")?, Out::new(block, "block")?);
        let best = jit::kernel_numbered(kernel as usize as u64)?.best_block(shared, limit)?;
        grid.write(best.0);
        block.write(best.1);
        Ok(())
    })
}

/// What the compiler made of a kernel (cuFuncGetAttribute).
///
/// @param kernel      the kernel.
/// @param attributes  its struct_size is set before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_kernel_attributes(kernel: tcuda_kernel_t, attributes: *mut tcuda_kernel_attributes_t) -> tcuda_status_t {
    guard("tcuda_kernel_attributes", || {
        let out = unsafe { StructOut::new(attributes, "attributes") }?;
        let found = jit::kernel_numbered(kernel as usize as u64)?.attributes()?;
        out.write(&tcuda_kernel_attributes_t {
            struct_size: 0,
            max_threads: found.max_threads,
            registers: found.registers,
            shared: found.shared,
            constant: found.constant,
            local: found.local,
            max_dynamic_shared: found.max_dynamic_shared,
            ptx_version: found.ptx_version,
            binary_version: found.binary_version,
        });
        Ok(())
    })
}
