//! The table's functions: CUDA's arguments in, CUDA's codes out.
#![allow(non_snake_case)]

use super::super::table::*;
use super::capture::Action;
use super::copy::Rows;
use super::device::PRIORITIES;
use super::fault::Slot;
use super::mem_pool;
use super::stream::{self, Work};
use super::{Sim, VERSION, errors, global, thread};
use std::ffi::{c_char, c_void};

mod graph;
mod green;
mod share;
pub use graph::*;
pub use green::*;
pub use share::*;

/// One call of a slot: counted, refused where it must be, with CUDA's last error kept.
fn call(slot: Slot, body: impl FnOnce(&'static Sim) -> Result<(), Code>) -> Code {
    match global() {
        Some(sim) => sim.call(slot, body),
        None => code::NOT_INITIALIZED,
    }
}

/// Writes an output; NULL is an invalid value.
fn put<T>(place: *mut T, value: T) -> Result<(), Code> {
    check(place)?;
    unsafe { place.write(value) };
    Ok(())
}

fn check<T>(place: *mut T) -> Result<(), Code> {
    if place.is_null() { Err(code::INVALID_VALUE) } else { Ok(()) }
}

// ---- versions, errors, devices

pub unsafe extern "C" fn cudaDriverGetVersion(version: *mut i32) -> Code {
    call(Slot::cudaDriverGetVersion, |_| put(version, VERSION))
}

pub unsafe extern "C" fn cudaRuntimeGetVersion(version: *mut i32) -> Code {
    call(Slot::cudaRuntimeGetVersion, |_| put(version, VERSION))
}

/// A lost device is never forgotten.
fn last_error(slot: Slot, clear: bool) -> Code {
    let Some(sim) = global() else { return code::NOT_INITIALIZED };
    let mut last = code::SUCCESS;
    let refused = sim.call(slot, |sim| {
        last = match sim.devices.get(thread::device()).map_or(0, |device| device.lost()) {
            0 => thread::last(),
            lost => lost,
        };
        if clear {
            thread::set_last(0);
        }
        Ok(())
    });
    if refused == 0 { last } else { refused }
}

pub unsafe extern "C" fn cudaGetLastError() -> Code {
    last_error(Slot::cudaGetLastError, true)
}

pub unsafe extern "C" fn cudaPeekAtLastError() -> Code {
    last_error(Slot::cudaPeekAtLastError, false)
}

pub unsafe extern "C" fn cudaGetErrorName(code: Code) -> *const c_char {
    errors::name(code).as_ptr()
}

pub unsafe extern "C" fn cudaGetErrorString(code: Code) -> *const c_char {
    errors::text(code).as_ptr()
}

pub unsafe extern "C" fn cudaGetDeviceCount(count: *mut i32) -> Code {
    call(Slot::cudaGetDeviceCount, |sim| put(count, sim.devices.len() as i32))
}

pub unsafe extern "C" fn cudaGetDevice(device: *mut i32) -> Code {
    call(Slot::cudaGetDevice, |_| put(device, thread::device() as i32))
}

/// Makes the context, as CUDA does since 12.0.
pub unsafe extern "C" fn cudaSetDevice(device: i32) -> Code {
    call(Slot::cudaSetDevice, |sim| {
        sim.device(device)?.activate()?;
        thread::set_device(device as usize);
        Ok(())
    })
}

pub unsafe extern "C" fn cudaDeviceSynchronize() -> Code {
    call(Slot::cudaDeviceSynchronize, |sim| {
        let device = sim.current()?;
        sim.scheduler.line().state.refuse_captured_device(device)?;
        sim.synchronize_device(device);
        sim.devices[device].check()
    })
}

pub unsafe extern "C" fn cudaDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) -> Code {
    call(Slot::cudaDeviceGetAttribute, |sim| {
        check(value)?;
        put(value, sim.device(device)?.attribute(attribute).ok_or(code::INVALID_VALUE)?)
    })
}

pub unsafe extern "C" fn cudaGetDeviceProperties(properties: *mut c_void, device: i32) -> Code {
    call(Slot::cudaGetDeviceProperties, |sim| {
        check(properties)?;
        put(properties.cast(), sim.device(device)?.properties(sim.options.memory))
    })
}

pub unsafe extern "C" fn cudaDeviceGetPCIBusId(text: *mut c_char, length: i32, device: i32) -> Code {
    call(Slot::cudaDeviceGetPCIBusId, |sim| {
        check(text)?;
        let name = sim.device(device)?.pci_text();
        if usize::try_from(length).is_ok_and(|length| length > name.len()) {
            unsafe {
                std::ptr::copy_nonoverlapping(name.as_ptr(), text.cast(), name.len());
                *text.add(name.len()) = 0;
            }
            Ok(())
        } else {
            Err(code::INVALID_VALUE)
        }
    })
}

/// Either may be NULL.
pub unsafe extern "C" fn cudaDeviceGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> Code {
    call(Slot::cudaDeviceGetStreamPriorityRange, |sim| {
        sim.current()?;
        for (place, value) in [(least, PRIORITIES.0), (greatest, PRIORITIES.1)] {
            if !place.is_null() {
                put(place, value)?;
            }
        }
        Ok(())
    })
}

pub unsafe extern "C" fn cudaDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) -> Code {
    call(Slot::cudaDeviceCanAccessPeer, |sim| {
        check(can)?;
        sim.device(device)?;
        sim.device(peer)?;
        put(can, i32::from(sim.memory.peers.can(device as usize, peer as usize)))
    })
}

pub unsafe extern "C" fn cudaDeviceEnablePeerAccess(peer: i32, flags: u32) -> Code {
    call(Slot::cudaDeviceEnablePeerAccess, |sim| {
        let device = sim.current()?;
        sim.device(peer)?;
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        sim.memory.peers.enable(device, peer as usize)?;
        sim.devices[peer as usize].activate()
    })
}

pub unsafe extern "C" fn cudaDeviceDisablePeerAccess(peer: i32) -> Code {
    call(Slot::cudaDeviceDisablePeerAccess, |sim| {
        let device = sim.current()?;
        sim.device(peer)?;
        sim.memory.peers.disable(device, peer as usize)
    })
}

// ---- memory

pub unsafe extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> Code {
    call(Slot::cudaMemGetInfo, |sim| {
        check(free)?;
        check(total)?;
        let info = sim.memory.info(sim.current()?);
        put(free, info.0)?;
        put(total, info.1)
    })
}

pub unsafe extern "C" fn cudaMalloc(address: *mut Address, size: usize) -> Code {
    call(Slot::cudaMalloc, |sim| {
        check(address)?;
        put(address, sim.memory.malloc(sim.current()?, size)?)
    })
}

/// Waits for the work of the device that the memory lies on. Frees on a lost device too.
pub unsafe extern "C" fn cudaFree(address: Address) -> Code {
    call(Slot::cudaFree, |sim| sim.free(address))
}

pub unsafe extern "C" fn cudaHostAlloc(address: *mut Address, size: usize, flags: u32) -> Code {
    call(Slot::cudaHostAlloc, |sim| {
        check(address)?;
        put(address, sim.memory.host_alloc(sim.current()?, size, flags)?)
    })
}

/// Pinned memory is everybody's: waits for all devices.
pub unsafe extern "C" fn cudaFreeHost(address: Address) -> Code {
    call(Slot::cudaFreeHost, |sim| if address == 0 { Ok(()) } else { sim.give_host(address, false) })
}

pub unsafe extern "C" fn cudaHostRegister(address: Address, size: usize, flags: u32) -> Code {
    call(Slot::cudaHostRegister, |sim| sim.memory.host_register(sim.current()?, address, size, flags))
}

pub unsafe extern "C" fn cudaHostUnregister(address: Address) -> Code {
    call(Slot::cudaHostUnregister, |sim| sim.give_host(address, true))
}

pub unsafe extern "C" fn cudaPointerGetAttributes(attributes: *mut c_void, address: Address) -> Code {
    call(Slot::cudaPointerGetAttributes, |sim| {
        check(attributes)?;
        put(attributes.cast(), sim.memory.attributes(address))
    })
}

pub unsafe extern "C" fn cudaMemcpy(to: Address, from: Address, size: usize, kind: i32) -> Code {
    call(Slot::cudaMemcpy, |sim| sim.copy(Rows::line(to, from, size), kind, 0, true))
}

pub unsafe extern "C" fn cudaMemcpyAsync(to: Address, from: Address, size: usize, kind: i32, stream: RawStream) -> Code {
    call(Slot::cudaMemcpyAsync, |sim| sim.copy(Rows::line(to, from, size), kind, stream, false))
}

pub unsafe extern "C" fn cudaMemcpyPeerAsync(
    to: Address,
    to_device: i32,
    from: Address,
    from_device: i32,
    size: usize,
    stream: RawStream,
) -> Code {
    call(Slot::cudaMemcpyPeerAsync, |sim| sim.copy_peer((to, to_device), (from, from_device), size, stream))
}

#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cudaMemcpy2DAsync(
    to: Address,
    to_pitch: usize,
    from: Address,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: i32,
    stream: RawStream,
) -> Code {
    let rows = Rows { to, to_pitch, from, from_pitch, width, height };
    call(Slot::cudaMemcpy2DAsync, |sim| sim.copy(rows, kind, stream, false))
}

pub unsafe extern "C" fn cudaMemset(address: Address, value: i32, size: usize) -> Code {
    call(Slot::cudaMemset, |sim| sim.fill(address, value, size, 0, true))
}

pub unsafe extern "C" fn cudaMemsetAsync(address: Address, value: i32, size: usize, stream: RawStream) -> Code {
    call(Slot::cudaMemsetAsync, |sim| sim.fill(address, value, size, stream, false))
}

// ---- streams

pub unsafe extern "C" fn cudaStreamCreateWithPriority(stream: *mut RawStream, flags: u32, priority: i32) -> Code {
    call(Slot::cudaStreamCreateWithPriority, |sim| {
        check(stream)?;
        let device = sim.current()?;
        if flags > 1 {
            return Err(code::INVALID_VALUE);
        }
        let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
        put(stream, stream::stream_handle(sim.make_stream(device, flags, priority, true)))
    })
}

/// Returns at once; the stream goes when its work is done.
pub unsafe extern "C" fn cudaStreamDestroy(stream: RawStream) -> Code {
    call(Slot::cudaStreamDestroy, |sim| {
        let id = stream::stream_id(stream).ok_or(code::INVALID_HANDLE)?;
        let line = sim.scheduler.line();
        let known = line.state.stream(id).filter(|stream| stream.counted).ok_or(code::INVALID_HANDLE)?;
        let device = known.device;
        line.state.refuse_detached(id)?;
        drop(line);
        sim.retire_stream(id);
        sim.devices[device].check()
    })
}

pub unsafe extern "C" fn cudaStreamSynchronize(stream: RawStream) -> Code {
    call(Slot::cudaStreamSynchronize, |sim| {
        let (id, device) = sim.stream_for_work(stream)?;
        sim.scheduler.line().state.refuse_captured(id)?;
        sim.synchronize_stream(id);
        sim.devices[device].check()
    })
}

pub unsafe extern "C" fn cudaStreamQuery(stream: RawStream) -> Code {
    call(Slot::cudaStreamQuery, |sim| {
        let (id, device) = sim.stream_for_work(stream)?;
        sim.scheduler.line().state.refuse_captured(id)?;
        let done = sim.stream_is_done(id);
        sim.devices[device].check()?;
        if done { Ok(()) } else { Err(code::NOT_READY) }
    })
}

pub unsafe extern "C" fn cudaStreamWaitEvent(stream: RawStream, event: RawEvent, flags: u32) -> Code {
    call(Slot::cudaStreamWaitEvent, |sim| sim.wait_event(stream, event, flags))
}

/// What a stream was made with, or is known as. CUDA (13.0) tells the priority of one that is captured; to ask for more ends the capture.
fn of_stream<T>(slot: Slot, stream: RawStream, out: *mut T, what: impl FnOnce(u64, &stream::Stream) -> T) -> Code {
    call(slot, |sim| {
        check(out)?;
        let is_at_any_time = matches!(slot, Slot::cudaStreamGetPriority);
        let (id, _) = if is_at_any_time { sim.stream(stream)? } else { sim.stream_for_work(stream)? };
        let mut line = sim.scheduler.line();
        if !is_at_any_time {
            line.state.refuse_captured(id)?;
        }
        put(out, what(id, line.state.stream(id).ok_or(code::INVALID_HANDLE)?))
    })
}

pub unsafe extern "C" fn cudaStreamGetPriority(stream: RawStream, priority: *mut i32) -> Code {
    of_stream(Slot::cudaStreamGetPriority, stream, priority, |_, stream| stream.priority)
}

pub unsafe extern "C" fn cudaStreamGetFlags(stream: RawStream, flags: *mut u32) -> Code {
    of_stream(Slot::cudaStreamGetFlags, stream, flags, |_, stream| stream.flags)
}

pub unsafe extern "C" fn cudaStreamGetId(stream: RawStream, id: *mut u64) -> Code {
    of_stream(Slot::cudaStreamGetId, stream, id, |id, _| id)
}

pub unsafe extern "C" fn cudaStreamGetDevice(stream: RawStream, device: *mut i32) -> Code {
    of_stream(Slot::cudaStreamGetDevice, stream, device, |_, stream| stream.device as i32)
}

/// Always on a thread of the simulation: the caller may hold locks that the function takes.
pub unsafe extern "C" fn cudaLaunchHostFunc(stream: RawStream, function: HostFn, data: *mut c_void) -> Code {
    call(Slot::cudaLaunchHostFunc, |sim| {
        let (id, _) = sim.stream_for_work(stream)?;
        if sim.keep_action(id, "HOST", || Action::Host { function, data: data as usize })? {
            return Ok(());
        }
        sim.enqueue(id, Work::Host { function, data: data as usize }, Vec::new()).map(|_| ())
    })
}

// ---- events

pub unsafe extern "C" fn cudaEventCreateWithFlags(event: *mut RawEvent, flags: u32) -> Code {
    call(Slot::cudaEventCreateWithFlags, |sim| {
        check(event)?;
        put(event, sim.create_event(flags)?)
    })
}

pub unsafe extern "C" fn cudaEventDestroy(event: RawEvent) -> Code {
    call(Slot::cudaEventDestroy, |sim| sim.destroy_event(event))
}

pub unsafe extern "C" fn cudaEventRecord(event: RawEvent, stream: RawStream) -> Code {
    call(Slot::cudaEventRecord, |sim| sim.record_event(event, stream, 0))
}

pub unsafe extern "C" fn cudaEventRecordWithFlags(event: RawEvent, stream: RawStream, flags: u32) -> Code {
    call(Slot::cudaEventRecordWithFlags, |sim| sim.record_event(event, stream, flags))
}

pub unsafe extern "C" fn cudaEventQuery(event: RawEvent) -> Code {
    call(Slot::cudaEventQuery, |sim| sim.query_event(event))
}

pub unsafe extern "C" fn cudaEventSynchronize(event: RawEvent) -> Code {
    call(Slot::cudaEventSynchronize, |sim| sim.synchronize_event(event))
}

pub unsafe extern "C" fn cudaEventElapsedTime(milliseconds: *mut f32, start: RawEvent, end: RawEvent) -> Code {
    call(Slot::cudaEventElapsedTime, |sim| {
        check(milliseconds)?;
        put(milliseconds, sim.elapsed_time(start, end)?)
    })
}

// ---- profilers: there is none

pub unsafe extern "C" fn cudaProfilerStart() -> Code {
    call(Slot::cudaProfilerStart, |_| Ok(()))
}

pub unsafe extern "C" fn cudaProfilerStop() -> Code {
    call(Slot::cudaProfilerStop, |_| Ok(()))
}

// ---- stream-ordered memory

pub unsafe extern "C" fn cudaMallocAsync(address: *mut Address, size: usize, stream: RawStream) -> Code {
    call(Slot::cudaMallocAsync, |sim| {
        check(address)?;
        put(address, sim.malloc_async(size, stream)?)
    })
}

pub unsafe extern "C" fn cudaFreeAsync(address: Address, stream: RawStream) -> Code {
    call(Slot::cudaFreeAsync, |sim| sim.free_async(address, stream))
}

pub unsafe extern "C" fn cudaDeviceGetDefaultMemPool(pool: *mut RawMemPool, device: i32) -> Code {
    call(Slot::cudaDeviceGetDefaultMemPool, |sim| {
        check(pool)?;
        sim.device(device)?.activate()?;
        put(pool, mem_pool::pool_of(device as usize))
    })
}

pub unsafe extern "C" fn cudaMemPoolSetAttribute(pool: RawMemPool, attribute: i32, value: *mut c_void) -> Code {
    call(Slot::cudaMemPoolSetAttribute, |sim| {
        check(value)?;
        // The first three are an i32, and refused.
        let value = if attribute < 4 { 0 } else { unsafe { *value.cast() } };
        sim.set_pool_attribute(pool, attribute, value)
    })
}

pub unsafe extern "C" fn cudaMemPoolGetAttribute(pool: RawMemPool, attribute: i32, value: *mut c_void) -> Code {
    call(Slot::cudaMemPoolGetAttribute, |sim| {
        check(value)?;
        put(value.cast(), sim.pool_attribute(pool, attribute)?)
    })
}

pub unsafe extern "C" fn cudaMemPoolSetAccess(pool: RawMemPool, access: *const MemAccess, count: usize) -> Code {
    call(Slot::cudaMemPoolSetAccess, |sim| sim.set_pool_access(pool, accesses(sim, access, count)?))
}

pub unsafe extern "C" fn cudaMemPoolTrimTo(pool: RawMemPool, keep: usize) -> Code {
    call(Slot::cudaMemPoolTrimTo, |sim| sim.trim_pool(pool, keep))
}

// ---- virtual memory

/// One entry for each device is the most that makes sense.
fn accesses<'a>(sim: &Sim, access: *const MemAccess, count: usize) -> Result<&'a [MemAccess], Code> {
    check(access.cast_mut())?;
    if count > sim.devices.len() {
        return Err(code::INVALID_VALUE);
    }
    Ok(unsafe { std::slice::from_raw_parts(access, count) })
}

fn properties_at(properties: *const MemAllocationProp) -> Result<MemAllocationProp, Code> {
    check(properties.cast_mut())?;
    Ok(unsafe { *properties })
}

pub unsafe extern "C" fn cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const MemAllocationProp, option: i32) -> Code {
    call(Slot::cuMemGetAllocationGranularity, |sim| {
        check(granularity)?;
        put(granularity, sim.memory.granularity(&properties_at(properties)?, option)?)
    })
}

pub unsafe extern "C" fn cuMemAddressReserve(address: *mut Address, size: usize, alignment: usize, _wish: Address, flags: u64) -> Code {
    call(Slot::cuMemAddressReserve, |sim| {
        check(address)?;
        put(address, sim.memory.reserve(size, alignment, flags)?)
    })
}

pub unsafe extern "C" fn cuMemAddressFree(address: Address, size: usize) -> Code {
    call(Slot::cuMemAddressFree, |sim| sim.memory.unreserve(address, size))
}

pub unsafe extern "C" fn cuMemCreate(handle: *mut MemHandle, size: usize, properties: *const MemAllocationProp, flags: u64) -> Code {
    call(Slot::cuMemCreate, |sim| {
        check(handle)?;
        let properties = properties_at(properties)?;
        if let Ok(device) = sim.device(properties.location.id) {
            device.check()?;
        }
        put(handle, sim.memory.create(size, &properties, flags)?)
    })
}

pub unsafe extern "C" fn cuMemRelease(handle: MemHandle) -> Code {
    call(Slot::cuMemRelease, |sim| sim.memory.release_handle(handle))
}

pub unsafe extern "C" fn cuMemMap(address: Address, size: usize, offset: usize, handle: MemHandle, flags: u64) -> Code {
    call(Slot::cuMemMap, |sim| sim.memory.map(address, size, offset, handle, flags))
}

pub unsafe extern "C" fn cuMemUnmap(address: Address, size: usize) -> Code {
    call(Slot::cuMemUnmap, |sim| sim.memory.unmap(address, size))
}

pub unsafe extern "C" fn cuMemSetAccess(address: Address, size: usize, access: *const MemAccess, count: usize) -> Code {
    call(Slot::cuMemSetAccess, |sim| sim.memory.set_access(address, size, accesses(sim, access, count)?))
}

/// Either output may be NULL.
pub unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut Address, size: *mut usize, address: Address) -> Code {
    call(Slot::cuMemGetAddressRange_v2, |sim| {
        let range = sim.memory.range_of(address).ok_or(code::NOT_FOUND)?;
        for (place, value) in [(base, range.0), (size, range.1)] {
            if !place.is_null() {
                put(place, value)?;
            }
        }
        Ok(())
    })
}

// ---- contexts and modules

/// A context's handle: there is one for each device.
const CONTEXTS: usize = 0x5300_0000_0000;

fn context_of(device: usize) -> usize {
    CONTEXTS + device * 16
}

pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> Code {
    call(Slot::cuDevicePrimaryCtxGetState, |sim| {
        let device = sim.device(device)?;
        check(flags)?;
        put(active, i32::from(device.is_active()))?;
        put(flags, 0)
    })
}

/// One context a device, which lives as long as the machine.
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) -> Code {
    call(Slot::cuDevicePrimaryCtxRetain, |sim| {
        check(context)?;
        sim.device(device)?.activate()?;
        put(context, context_of(device as usize))
    })
}

/// Streams of green contexts have two, which only a later version of it tells.
pub unsafe extern "C" fn cuStreamGetCtx(stream: RawStream, context: *mut usize) -> Code {
    call(Slot::cuStreamGetCtx, |sim| {
        check(context)?;
        let (id, device) = sim.stream(stream)?;
        if sim.scheduler.line().state.is_green(id) {
            return Err(code::NOT_SUPPORTED);
        }
        put(context, context_of(device))
    })
}

pub unsafe extern "C" fn cuCtxPushCurrent_v2(context: usize) -> Code {
    call(Slot::cuCtxPushCurrent_v2, |sim| {
        let device = context.checked_sub(CONTEXTS).filter(|at| at.is_multiple_of(16)).map(|at| at / 16);
        let pushed = device.filter(|device| *device < sim.devices.len()).ok_or(code::INVALID_CONTEXT)?;
        let current = thread::device();
        thread::push_context(pushed, sim.devices[current].is_active().then_some(current));
        Ok(())
    })
}

pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> Code {
    call(Slot::cuCtxPopCurrent_v2, |_| {
        let device = thread::pop_context()?;
        if context.is_null() { Ok(()) } else { put(context, context_of(device)) }
    })
}

pub unsafe extern "C" fn cuCtxGetDevice(device: *mut i32) -> Code {
    call(Slot::cuCtxGetDevice, |sim| {
        check(device)?;
        let current = thread::device();
        if !sim.devices[current].is_active() {
            return Err(code::INVALID_CONTEXT);
        }
        put(device, current as i32)
    })
}

/// The CPU cannot run a CUDA binary: refused.
fn refuse(slot: Slot) -> Code {
    call(slot, |_| Err(code::NOT_SUPPORTED))
}

pub unsafe extern "C" fn cuModuleLoadData(_module: *mut usize, _image: *const c_void) -> Code {
    refuse(Slot::cuModuleLoadData)
}

pub unsafe extern "C" fn cuModuleGetFunction(_function: *mut usize, _module: usize, _name: *const c_char) -> Code {
    refuse(Slot::cuModuleGetFunction)
}

pub unsafe extern "C" fn cuModuleUnload(_module: usize) -> Code {
    refuse(Slot::cuModuleUnload)
}

#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuLaunchKernel(
    _function: usize,
    _grid_x: u32,
    _grid_y: u32,
    _grid_z: u32,
    _block_x: u32,
    _block_y: u32,
    _block_z: u32,
    _shared: u32,
    _stream: RawStream,
    _parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Code {
    refuse(Slot::cuLaunchKernel)
}

pub unsafe extern "C" fn cuFuncGetAttribute(_value: *mut i32, _attribute: i32, _function: usize) -> Code {
    refuse(Slot::cuFuncGetAttribute)
}

pub unsafe extern "C" fn cuFuncSetAttribute(_function: usize, _attribute: i32, _value: i32) -> Code {
    refuse(Slot::cuFuncSetAttribute)
}

pub unsafe extern "C" fn cuFuncGetParamInfo(_function: usize, _index: usize, _offset: *mut usize, _size: *mut usize) -> Code {
    refuse(Slot::cuFuncGetParamInfo)
}

pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    _blocks: *mut i32,
    _function: usize,
    _block: i32,
    _shared: usize,
) -> Code {
    refuse(Slot::cuOccupancyMaxActiveBlocksPerMultiprocessor)
}

pub unsafe extern "C" fn cuOccupancyMaxPotentialBlockSize(
    _grid: *mut i32,
    _block: *mut i32,
    _function: usize,
    _shared_of_block: usize,
    _shared: usize,
    _limit: i32,
) -> Code {
    refuse(Slot::cuOccupancyMaxPotentialBlockSize)
}
