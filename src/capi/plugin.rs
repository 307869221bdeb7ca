//! Pluggable allocators
//!
//! An allocator of the program's own gives the caches their segments (torch.cuda.memory.CUDAPluggableAllocator): it is asked for whole segments
//! of 2 MiB and more, rarely; what torch leaves to such an allocator (blocks, order between streams, statistics, snapshots, limits, what happens
//! when memory runs out) stays with tcuda. Its functions run on the thread that allocates, or that gives memory back, with the device current,
//! one at a time for each device; they must not ask tcuda for memory, or for what waits for it, and get TCUDA_ERROR_INVALID_STATE. What they
//! return is checked: NULL means that there is no memory; memory of another place, crooked, too small, or in the first MiB of addresses of a
//! block of tcuda's goes back to them, and the request fails.

use super::guard::{Out, guard, guard_destroy, guard_value, null, text};
use super::structs::{UserData, tcuda_stream_t};
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Status, process};
use crate::memory;
use crate::memory::provider::{self, Provider};
use crate::runtime::cuda::library::Library;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

/// Only ever a pointer to it.
#[allow(non_camel_case_types)]
pub enum tcuda_pluggable_allocator {}
/// A pluggable allocator. Not a pointer to anything.
#[allow(non_camel_case_types)]
pub type tcuda_pluggable_allocator_t = *mut tcuda_pluggable_allocator;

/// Gives at least `size` bytes of a device, at a multiple of 512, for work on a stream and later on others; NULL: there is none.
#[allow(non_camel_case_types)]
pub type tcuda_segment_alloc_fn_t =
    Option<unsafe extern "C" fn(size: usize, device: i32, stream: tcuda_stream_t, user_data: *mut c_void) -> *mut c_void>;

/// Takes back what the other function gave, with the same size. All work on it is done. `stream` is that of the allocation, or NULL if it was
/// destroyed since, and in tcuda_shutdown.
#[allow(non_camel_case_types)]
pub type tcuda_segment_free_fn_t =
    Option<unsafe extern "C" fn(ptr: *mut c_void, size: usize, device: i32, stream: tcuda_stream_t, user_data: *mut c_void)>;

/// Makes a pluggable allocator of two functions.
///
/// @param allocator gets it; tcuda_pluggable_allocator_destroy ends it. It is used by tcuda_change_current_allocator or in the options of a pool.
/// @param alloc     not NULL.
/// @param free      not NULL.
/// @param user_data goes to each call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_pluggable_allocator_create(
    allocator: *mut tcuda_pluggable_allocator_t,
    alloc: tcuda_segment_alloc_fn_t,
    free: tcuda_segment_free_fn_t,
    user_data: *mut c_void,
) -> tcuda_status_t {
    guard("tcuda_pluggable_allocator_create", || {
        let out = Out::new(allocator, "allocator")?;
        let alloc = alloc.ok_or_else(|| null("alloc"))?;
        let free = free.ok_or_else(|| null("free"))?;
        let (for_alloc, for_free) = (UserData(user_data), UserData(user_data));
        let provider = Provider::new(
            format!("of the function at 0x{:x}", alloc as usize),
            Box::new(move |size, device, stream| {
                let user_data = &for_alloc;
                unsafe { alloc(size, device, stream as tcuda_stream_t, user_data.0) as usize }
            }),
            Box::new(move |address, size, device, stream| {
                let user_data = &for_free;
                unsafe { free(address as *mut c_void, size, device, stream as tcuda_stream_t, user_data.0) }
            }),
        );
        out.write(provider::add(provider) as usize as tcuda_pluggable_allocator_t);
        Ok(())
    })
}

type TorchAlloc = unsafe extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void;
type TorchFree = unsafe extern "C" fn(*mut c_void, isize, c_int, *mut c_void);

/// Loads a pluggable allocator from a shared library, by the names of its functions, which have torch's signatures:
/// `void *alloc(ssize_t size, int device, cudaStream_t stream)` and
/// `void free(void *ptr, ssize_t size, int device, cudaStream_t stream)`. Libraries that were made for torch work as they are. It stays
/// loaded for the life of the process.
///
/// @param allocator  gets it; tcuda_pluggable_allocator_destroy ends it.
/// @param path       of the library, or a name that the loader finds.
/// @param alloc_name of the first of its functions.
/// @param free_name  of the second.
/// @return TCUDA_ERROR_SYSTEM: the loader cannot load it, with the loader's words; TCUDA_ERROR_INVALID_ARGUMENT: it has no such function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_pluggable_allocator_load(
    allocator: *mut tcuda_pluggable_allocator_t,
    path: *const c_char,
    alloc_name: *const c_char,
    free_name: *const c_char,
) -> tcuda_status_t {
    guard("tcuda_pluggable_allocator_load", || {
        let out = Out::new(allocator, "allocator")?;
        let path = unsafe { text(path, "path") }?;
        if path.is_empty() {
            return Err(Error::invalid_argument("'path' is empty. It names the allocator's library."));
        }
        let (alloc_name, free_name) = unsafe { (text(alloc_name, "alloc_name")?, text(free_name, "free_name")?) };
        let library = Library::open_for_good(Path::new(path))
            .map_err(|why| Error::new(Status::TCUDA_ERROR_SYSTEM, format!("The allocator's library {path} cannot be loaded: {why}.")))?;
        let symbol = |name: &str| match library.symbol(name) {
            0 => Err(Error::invalid_argument(format!("The library {path} has no function '{name}'."))),
            address => Ok(address),
        };
        // Torch's own types: the program says that the functions have them.
        let alloc = unsafe { std::mem::transmute::<usize, TorchAlloc>(symbol(alloc_name)?) };
        let free = unsafe { std::mem::transmute::<usize, TorchFree>(symbol(free_name)?) };
        let provider = Provider::new(
            format!("{alloc_name} of {path}"),
            Box::new(move |size, device, stream| unsafe { alloc(size as isize, device, stream as *mut c_void) as usize }),
            Box::new(move |address, size, device, stream| unsafe {
                free(address as *mut c_void, size as isize, device, stream as *mut c_void)
            }),
        );
        out.write(provider::add(provider) as usize as tcuda_pluggable_allocator_t);
        Ok(())
    })
}

/// Ends a pluggable allocator. Between tcuda_shutdown and tcuda_init it does nothing: the allocator lives on, as the current one if it was, and
/// needs its `user_data`.
///
/// @return TCUDA_ERROR_INVALID_STATE: it is the current one or a pool's, or some of its segments are held.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_pluggable_allocator_destroy(allocator: tcuda_pluggable_allocator_t) -> tcuda_status_t {
    guard_destroy("tcuda_pluggable_allocator_destroy", allocator, || provider::remove(allocator as usize as u64))
}

/// Says where the caches of all devices take their next segments from (torch.cuda.memory.change_current_allocator). Unlike torch's it may
/// be called at any time: blocks in use stay what they are, and what is held already goes back to where it came from. Pools keep their
/// own.
///
/// @param allocator NULL: the driver.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_change_current_allocator(allocator: tcuda_pluggable_allocator_t) -> tcuda_status_t {
    guard("tcuda_change_current_allocator", || {
        provider::set_current((!allocator.is_null()).then_some(allocator as usize as u64))?;
        memory::configure_sources()
    })
}

/// What the devices' caches take memory from (torch.cuda.get_allocator_backend): `native`, `cudaMallocAsync`, or `pluggable` for an
/// allocator of tcuda_change_current_allocator; empty in a child of fork that is refused. Never freed, never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_get_allocator_backend() -> *const c_char {
    guard_value("tcuda_get_allocator_backend", c"".as_ptr(), || {
        process::refuse_forked()?;
        Ok(memory::backend_name().as_ptr())
    })
}
