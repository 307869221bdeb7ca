//! What a device is. Asked once; the numbers that moved between CUDA versions come by attribute.

use crate::base::{Error, Result};
use crate::runtime::api::Properties;
use crate::runtime::{self, Runtime, code};
use parking_lot::Mutex;

/// torch's get_device_properties, and what allocators and launchers need besides. Sizes in bytes, clocks in kHz.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProperties {
    pub name: String,
    pub uuid: [u8; 16],
    pub total_memory: u64,
    pub major: i32,
    pub minor: i32,
    pub is_multi_gpu_board: bool,
    pub is_integrated: bool,
    pub multi_processor_count: i32,
    pub max_threads_per_multi_processor: i32,
    pub max_threads_per_block: i32,
    pub warp_size: i32,
    pub regs_per_multiprocessor: i32,
    pub shared_memory_per_block: u64,
    pub shared_memory_per_block_optin: u64,
    pub shared_memory_per_multiprocessor: u64,
    pub l2_cache_size: u64,
    pub clock_rate: i32,
    pub memory_clock_rate: i32,
    pub memory_bus_width: i32,
    pub pci_bus_id: i32,
    pub pci_device_id: i32,
    pub pci_domain_id: i32,
    pub async_engine_count: i32,
    pub concurrent_managed_access: bool,
    pub total_constant_memory: u64,
    pub max_block_dimensions: [i32; 3],
    pub max_grid_dimensions: [i32; 3],
    pub max_blocks_per_multi_processor: i32,
    pub regs_per_block: i32,
    pub max_texture_1d_linear: i32,
    /// cudaComputeMode.
    pub compute_mode: i32,
    pub single_to_double_precision_perf_ratio: i32,
    pub kernel_exec_timeout_enabled: bool,
    pub device_overlap: bool,
    pub cooperative_launch: bool,
    pub cooperative_multi_device_launch: bool,
    pub can_map_host_memory: bool,
    pub unified_addressing: bool,
    pub managed_memory: bool,
    pub pageable_memory_access: bool,
    pub memory_pools_supported: bool,
}

/// cudaDeviceAttr.
mod attribute {
    pub const MAX_THREADS_PER_BLOCK: i32 = 1;
    pub const MAX_BLOCK_DIMENSIONS: [i32; 3] = [2, 3, 4];
    pub const MAX_GRID_DIMENSIONS: [i32; 3] = [5, 6, 7];
    pub const SHARED_MEMORY_PER_BLOCK: i32 = 8;
    pub const TOTAL_CONSTANT_MEMORY: i32 = 9;
    pub const WARP_SIZE: i32 = 10;
    pub const REGS_PER_BLOCK: i32 = 12;
    pub const CLOCK_RATE: i32 = 13;
    pub const DEVICE_OVERLAP: i32 = 15;
    pub const MULTI_PROCESSOR_COUNT: i32 = 16;
    pub const KERNEL_EXEC_TIMEOUT: i32 = 17;
    pub const INTEGRATED: i32 = 18;
    pub const CAN_MAP_HOST_MEMORY: i32 = 19;
    pub const COMPUTE_MODE: i32 = 20;
    pub const PCI_BUS_ID: i32 = 33;
    pub const PCI_DEVICE_ID: i32 = 34;
    pub const MEMORY_CLOCK_RATE: i32 = 36;
    pub const MEMORY_BUS_WIDTH: i32 = 37;
    pub const L2_CACHE_SIZE: i32 = 38;
    pub const MAX_THREADS_PER_MULTI_PROCESSOR: i32 = 39;
    pub const ASYNC_ENGINE_COUNT: i32 = 40;
    pub const UNIFIED_ADDRESSING: i32 = 41;
    pub const PCI_DOMAIN_ID: i32 = 50;
    pub const MAX_TEXTURE_1D_LINEAR: i32 = 69;
    pub const SHARED_MEMORY_PER_MULTIPROCESSOR: i32 = 81;
    pub const REGS_PER_MULTIPROCESSOR: i32 = 82;
    pub const MANAGED_MEMORY: i32 = 83;
    pub const MULTI_GPU_BOARD: i32 = 84;
    pub const SINGLE_TO_DOUBLE: i32 = 87;
    pub const PAGEABLE_MEMORY_ACCESS: i32 = 88;
    pub const CONCURRENT_MANAGED_ACCESS: i32 = 89;
    pub const COOPERATIVE_LAUNCH: i32 = 95;
    /// No device of CUDA 13 says so.
    pub const COOPERATIVE_MULTI_DEVICE_LAUNCH: i32 = 96;
    pub const SHARED_MEMORY_PER_BLOCK_OPTIN: i32 = 97;
    pub const MAX_BLOCKS_PER_MULTI_PROCESSOR: i32 = 106;
    pub const MEMORY_POOLS: i32 = 115;
}

/// What a device said, which never changes.
struct Known {
    device: i32,
    prefix: Properties,
    all: Option<&'static DeviceProperties>,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

fn with_known<T>(device: i32, read: impl FnOnce(&mut Known) -> Result<T>) -> Result<T> {
    let device = super::index(device)?;
    let mut known = KNOWN.lock();
    let at = match known.iter().position(|known| known.device == device) {
        Some(at) => at,
        None => {
            known.push(Known { device, prefix: runtime::runtime()?.device_properties(device)?, all: None });
            known.len() - 1
        }
    };
    read(&mut known[at])
}

/// The properties of a device, lost or not; -1 is the current one. They live as long as the process.
pub fn properties(device: i32) -> Result<&'static DeviceProperties> {
    with_known(device, |known| match known.all {
        Some(all) => Ok(all),
        None => Ok(*known.all.insert(Box::leak(Box::new(ask(runtime::runtime()?, known.device, &known.prefix)?)))),
    })
}

/// Of a device, lost or not, by itself: to ask for the rate of a clock takes half a millisecond, for which nobody's first memory has to wait.
pub fn total_memory(device: i32) -> Result<u64> {
    with_known(device, |known| Ok(known.prefix.total_memory))
}

fn ask(runtime: &Runtime, device: i32, prefix: &Properties) -> Result<DeviceProperties> {
    use attribute::*;
    // An attribute that this version does not know is 0, not a failure.
    let get = |attribute: i32| match runtime.device_attribute(attribute, device) {
        Err(error) if matches!(error.native, code::INVALID_VALUE | code::NOT_SUPPORTED) => Ok(0),
        other => other,
    };
    let bytes = |attribute: i32| get(attribute).map(|value| value.max(0) as u64);
    let is = |attribute: i32| get(attribute).map(|value| value != 0);
    let three = |[x, y, z]: [i32; 3]| Ok::<_, Error>([get(x)?, get(y)?, get(z)?]);
    Ok(DeviceProperties {
        name: prefix.name.clone(),
        uuid: prefix.uuid,
        total_memory: prefix.total_memory,
        major: prefix.major,
        minor: prefix.minor,
        is_multi_gpu_board: is(MULTI_GPU_BOARD)?,
        is_integrated: is(INTEGRATED)?,
        multi_processor_count: get(MULTI_PROCESSOR_COUNT)?,
        max_threads_per_multi_processor: get(MAX_THREADS_PER_MULTI_PROCESSOR)?,
        max_threads_per_block: get(MAX_THREADS_PER_BLOCK)?,
        warp_size: get(WARP_SIZE)?,
        regs_per_multiprocessor: get(REGS_PER_MULTIPROCESSOR)?,
        shared_memory_per_block: bytes(SHARED_MEMORY_PER_BLOCK)?,
        shared_memory_per_block_optin: bytes(SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_memory_per_multiprocessor: bytes(SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        l2_cache_size: bytes(L2_CACHE_SIZE)?,
        clock_rate: get(CLOCK_RATE)?,
        memory_clock_rate: get(MEMORY_CLOCK_RATE)?,
        memory_bus_width: get(MEMORY_BUS_WIDTH)?,
        pci_bus_id: get(PCI_BUS_ID)?,
        pci_device_id: get(PCI_DEVICE_ID)?,
        pci_domain_id: get(PCI_DOMAIN_ID)?,
        async_engine_count: get(ASYNC_ENGINE_COUNT)?,
        concurrent_managed_access: is(CONCURRENT_MANAGED_ACCESS)?,
        total_constant_memory: bytes(TOTAL_CONSTANT_MEMORY)?,
        max_block_dimensions: three(MAX_BLOCK_DIMENSIONS)?,
        max_grid_dimensions: three(MAX_GRID_DIMENSIONS)?,
        max_blocks_per_multi_processor: get(MAX_BLOCKS_PER_MULTI_PROCESSOR)?,
        regs_per_block: get(REGS_PER_BLOCK)?,
        max_texture_1d_linear: get(MAX_TEXTURE_1D_LINEAR)?,
        compute_mode: get(COMPUTE_MODE)?,
        single_to_double_precision_perf_ratio: get(SINGLE_TO_DOUBLE)?,
        kernel_exec_timeout_enabled: is(KERNEL_EXEC_TIMEOUT)?,
        device_overlap: is(DEVICE_OVERLAP)?,
        cooperative_launch: is(COOPERATIVE_LAUNCH)?,
        cooperative_multi_device_launch: is(COOPERATIVE_MULTI_DEVICE_LAUNCH)?,
        can_map_host_memory: is(CAN_MAP_HOST_MEMORY)?,
        unified_addressing: is(UNIFIED_ADDRESSING)?,
        managed_memory: is(MANAGED_MEMORY)?,
        pageable_memory_access: is(PAGEABLE_MEMORY_ACCESS)?,
        memory_pools_supported: is(MEMORY_POOLS)?,
    })
}

/// Whether it reads and writes pageable host memory by itself, so that CUDA need not wait for a copy.
pub fn reaches_pageable(device: i32) -> bool {
    runtime::runtime().and_then(|runtime| runtime.device_attribute(attribute::PAGEABLE_MEMORY_ACCESS, device)).is_ok_and(|it| it != 0)
}

/// Any attribute of a device by CUDA's number.
pub fn attribute(attribute: i32, device: i32) -> Result<i32> {
    let device = super::resolve(device)?;
    runtime::runtime()?.device_attribute(attribute, device).map_err(|error| match error.native {
        code::INVALID_VALUE => error.context(format_args!("The CUDA in use knows no attribute {attribute} of a device (cudaDeviceAttr)")),
        _ => error,
    })
}
