//! Devices
//!
//! A device is an index from 0. -1 (TCUDA_DEVICE_CURRENT) is the calling thread's current device, which is CUDA's own: cudaSetDevice and
//! tcuda_set_device are the same. An index that is out of range is TCUDA_ERROR_INVALID_DEVICE. Every call leaves the current device as it
//! found it, but for those that are there to change it.

use super::guard::{Out, guard, guard_always, guard_out};
use super::structs::{Growing, StructOut};
use super::text::TextOut;
use crate::base::status::tcuda_status_t;
use crate::device::{self, DeviceProperties, peer};
use crate::{memory, runtime};
use std::ffi::{c_char, c_void};

/// What a device is (torch.cuda.get_device_properties). Sizes in bytes, clocks in kHz. Set `struct_size` before the call
/// (TCUDA_DEVICE_PROPERTIES_INIT).
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tcuda_device_properties_t {
    pub struct_size: usize,
    pub total_memory: u64,
    pub shared_memory_per_block: u64,
    /// What a kernel can have if it asks for more than the default.
    pub shared_memory_per_block_optin: u64,
    pub shared_memory_per_multiprocessor: u64,
    pub l2_cache_size: u64,
    /// Compute capability.
    pub major: i32,
    pub minor: i32,
    pub multi_processor_count: i32,
    pub max_threads_per_multi_processor: i32,
    pub max_threads_per_block: i32,
    pub warp_size: i32,
    pub regs_per_multiprocessor: i32,
    /// Kilohertz, the highest; telemetry has the present one, in megahertz.
    pub clock_rate: i32,
    /// Kilohertz.
    pub memory_clock_rate: i32,
    /// Bits.
    pub memory_bus_width: i32,
    pub pci_bus_id: i32,
    pub pci_device_id: i32,
    pub pci_domain_id: i32,
    /// Copies that can run beside kernels.
    pub async_engine_count: i32,
    /// The following are 0 or 1.
    pub is_multi_gpu_board: i32,
    pub is_integrated: i32,
    pub concurrent_managed_access: i32,
    pub is_simulated: i32,
    pub uuid: [u8; 16],
    /// Ends with a zero byte.
    pub name: [c_char; 256],
    pub total_constant_memory: u64,
    /// Threads in x, y, z.
    pub max_block_dimensions: [i32; 3],
    /// Blocks in x, y, z.
    pub max_grid_dimensions: [i32; 3],
    pub max_blocks_per_multi_processor: i32,
    pub regs_per_block: i32,
    /// Elements.
    pub max_texture_1d_linear: i32,
    /// cudaComputeMode: 0 default, 2 prohibited, 3 exclusive to a process.
    pub compute_mode: i32,
    /// How many times faster single precision is.
    pub single_to_double_precision_perf_ratio: i32,
    /// The following are 0 or 1.
    pub kernel_exec_timeout_enabled: i32,
    pub device_overlap: i32,
    pub cooperative_launch: i32,
    pub cooperative_multi_device_launch: i32,
    pub can_map_host_memory: i32,
    pub unified_addressing: i32,
    pub managed_memory: i32,
    pub pageable_memory_access: i32,
    pub memory_pools_supported: i32,
}
unsafe impl Growing for tcuda_device_properties_t {}
const _: () = assert!(size_of::<tcuda_device_properties_t>() == 48 + 18 * 4 + 16 + 256 + 8 + 20 * 4);

impl tcuda_device_properties_t {
    fn new(p: &DeviceProperties, is_simulated: bool) -> Self {
        let mut name = [0; 256];
        for (to, from) in name[..255].iter_mut().zip(p.name.bytes()) {
            *to = from as c_char;
        }
        tcuda_device_properties_t {
            struct_size: 0,
            total_memory: p.total_memory,
            shared_memory_per_block: p.shared_memory_per_block,
            shared_memory_per_block_optin: p.shared_memory_per_block_optin,
            shared_memory_per_multiprocessor: p.shared_memory_per_multiprocessor,
            l2_cache_size: p.l2_cache_size,
            major: p.major,
            minor: p.minor,
            multi_processor_count: p.multi_processor_count,
            max_threads_per_multi_processor: p.max_threads_per_multi_processor,
            max_threads_per_block: p.max_threads_per_block,
            warp_size: p.warp_size,
            regs_per_multiprocessor: p.regs_per_multiprocessor,
            clock_rate: p.clock_rate,
            memory_clock_rate: p.memory_clock_rate,
            memory_bus_width: p.memory_bus_width,
            pci_bus_id: p.pci_bus_id,
            pci_device_id: p.pci_device_id,
            pci_domain_id: p.pci_domain_id,
            async_engine_count: p.async_engine_count,
            is_multi_gpu_board: p.is_multi_gpu_board.into(),
            is_integrated: p.is_integrated.into(),
            concurrent_managed_access: p.concurrent_managed_access.into(),
            is_simulated: is_simulated.into(),
            uuid: p.uuid,
            name,
            total_constant_memory: p.total_constant_memory,
            max_block_dimensions: p.max_block_dimensions,
            max_grid_dimensions: p.max_grid_dimensions,
            max_blocks_per_multi_processor: p.max_blocks_per_multi_processor,
            regs_per_block: p.regs_per_block,
            max_texture_1d_linear: p.max_texture_1d_linear,
            compute_mode: p.compute_mode,
            single_to_double_precision_perf_ratio: p.single_to_double_precision_perf_ratio,
            kernel_exec_timeout_enabled: p.kernel_exec_timeout_enabled.into(),
            device_overlap: p.device_overlap.into(),
            cooperative_launch: p.cooperative_launch.into(),
            cooperative_multi_device_launch: p.cooperative_multi_device_launch.into(),
            can_map_host_memory: p.can_map_host_memory.into(),
            unified_addressing: p.unified_addressing.into(),
            managed_memory: p.managed_memory.into(),
            pageable_memory_access: p.pageable_memory_access.into(),
            memory_pools_supported: p.memory_pools_supported.into(),
        }
    }
}

/// How many devices there are (torch.cuda.device_count). 0, and success, where there is no backend, in a forked child and after
/// tcuda_shutdown; tcuda_backend_reason says why.
///
/// @return TCUDA_ERROR_INVALID_ARGUMENT: `count` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_device_count(count: *mut i32) -> tcuda_status_t {
    guard_always("tcuda_device_count", || {
        Out::new(count, "count")?.write(device::count());
        Ok(())
    })
}

/// The calling thread's current device (torch.cuda.current_device, cudaGetDevice).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_current_device(device: *mut i32) -> tcuda_status_t {
    guard_out("tcuda_current_device", device, "device", device::current)
}

/// Makes a device current for the calling thread (torch.cuda.set_device, cudaSetDevice). A negative index does nothing, and succeeds
/// also where there is no device. Since CUDA 12 this makes the device's context, but not on the way back from tcuda_exchange_device or
/// tcuda_exchange_stream to a device that had none.
///
/// @return TCUDA_ERROR_INVALID_DEVICE: the index is not below tcuda_device_count.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_set_device(device: i32) -> tcuda_status_t {
    guard("tcuda_set_device", || device::set(device))
}

/// Makes a device current and says which one was: the two halves of torch's `with torch.cuda.device(d)`. A negative index changes
/// nothing, so what tcuda_device_of says of host memory can be given as it is.
///
/// @param previous gets the device to give to tcuda_set_device in the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_exchange_device(previous: *mut i32, device: i32) -> tcuda_status_t {
    guard_out("tcuda_exchange_device", previous, "previous", || device::exchange(device))
}

/// The device that an address belongs to (torch.cuda.device_of): TCUDA_DEVICE_CPU for host memory, pinned or not, and for NULL. Any
/// memory of CUDA is known, also what tcuda did not allocate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_device_of(device: *mut i32, ptr: *const c_void) -> tcuda_status_t {
    guard_out("tcuda_device_of", device, "device", || device::of_pointer(ptr as usize))
}

/// The name of a device (torch.cuda.get_device_name).
///
/// @param text     gets the name with a terminating zero; NULL with capacity 0 asks for the size only.
/// @param needed   gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
/// @return TCUDA_ERROR_BUFFER_TOO_SMALL, TCUDA_ERROR_INVALID_DEVICE (torch long promised that a negative index did nothing here; it is
///         an error there too).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_device_name(text: *mut c_char, capacity: usize, needed: *mut usize, device: i32) -> tcuda_status_t {
    guard("tcuda_get_device_name", || {
        let out = TextOut::new(text, capacity, needed)?;
        out.write(&device::properties(device)?.name)
    })
}

/// The compute capability of a device (torch.cuda.get_device_capability): 9 and 0 for an H100.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_device_capability(major: *mut i32, minor: *mut i32, device: i32) -> tcuda_status_t {
    guard("tcuda_get_device_capability", || {
        let (out_major, out_minor) = (Out::new(major, "major")?, Out::new(minor, "minor")?);
        let properties = device::properties(device)?;
        out_major.write(properties.major);
        out_minor.write(properties.minor);
        Ok(())
    })
}

/// What a device is (torch.cuda.get_device_properties). Asked of the driver once. What CUDA 13 took out of cudaDeviceProp (clocks, the compute
/// mode and others) is there with every CUDA; what the one in use does not know is 0.
///
/// @return TCUDA_ERROR_INVALID_ARGUMENT: `properties` is NULL or its struct_size is not set. TCUDA_ERROR_INVALID_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_device_properties(properties: *mut tcuda_device_properties_t, device: i32) -> tcuda_status_t {
    guard("tcuda_get_device_properties", || {
        let out = unsafe { StructOut::new(properties, "properties") }?;
        let known = device::properties(device)?;
        out.write(&tcuda_device_properties_t::new(known, runtime::backend_name() == "sim"));
        Ok(())
    })
}

/// Any attribute of a device by CUDA's number (cudaDeviceGetAttribute, cudaDeviceAttr), for what tcuda_device_properties_t lacks.
///
/// @return TCUDA_ERROR_INVALID_ARGUMENT: the CUDA in use knows no such attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_get_device_attribute(value: *mut i32, attribute: i32, device: i32) -> tcuda_status_t {
    guard_out("tcuda_get_device_attribute", value, "value", || device::attribute(attribute, device))
}

/// Whether a device could read and write the memory of another directly (torch.cuda.can_device_access_peer). False for a device and
/// itself. It enables nothing: copies and the caches do so when they need it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_can_device_access_peer(can_access: *mut bool, device: i32, peer: i32) -> tcuda_status_t {
    guard_out("tcuda_can_device_access_peer", can_access, "can_access", || peer::can_access(device, peer))
}

/// Waits for all work of a device, on all its streams (torch.cuda.synchronize, cudaDeviceSynchronize). Errors of work given to it before
/// show here.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_synchronize(device: i32) -> tcuda_status_t {
    guard("tcuda_synchronize", || memory::synchronize(device))
}

/// Free and total bytes of a device as the driver sees them, other processes counted (torch.cuda.mem_get_info, cudaMemGetInfo). Memory
/// that tcuda's cache keeps is not free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_mem_get_info(free_bytes: *mut usize, total_bytes: *mut usize, device: i32) -> tcuda_status_t {
    guard("tcuda_mem_get_info", || {
        let (out_free, out_total) = (Out::new(free_bytes, "free_bytes")?, Out::new(total_bytes, "total_bytes")?);
        let (free, total) = device::mem_get_info(device)?;
        out_free.write(free);
        out_total.write(total);
        Ok(())
    })
}
