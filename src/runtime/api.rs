//! The table with errors as values. One method a slot, CUDA's name in snake case; a failing call leaves no last error behind.

use super::table::*;
use crate::base::sync_debug::{Kind, blocking};
use crate::base::watch::{self, Access, Place as At};
use crate::base::{Error, Result, Status, config, insist, work};
use std::ffi::{CStr, CString, c_void};

/// A backend that is ready for use: at least the runtime slots are filled and a device count was had.
pub struct Runtime {
    pub table: Table,
    /// `cuda` or `sim`.
    pub name: &'static str,
    /// Which library was taken and why, one sentence.
    pub reason: String,
    /// cudaRuntimeGetVersion: 13000 for 13.0.
    pub version: i32,
    pub driver_version: i32,
    pub device_count: i32,
}

/// What `cudaPointerGetAttributes` knows of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Plain host memory, or unknown.
    Unregistered,
    /// Pinned host memory.
    Pinned {
        device: i32,
    },
    Device {
        device: i32,
    },
    Managed {
        device: i32,
    },
}

/// The stable prefix of cudaDeviceProp; the rest is asked by attribute.
#[derive(Clone, Debug, PartialEq)]
pub struct Properties {
    pub name: String,
    pub uuid: [u8; 16],
    pub total_memory: u64,
    pub major: i32,
    pub minor: i32,
}

/// cudaMemPoolAttr: those whose value is a u64, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemPoolAttribute {
    /// More than this is given back at the next synchronisation of a stream, an event or the device.
    ReleaseThreshold = 4,
    /// Held from the device.
    ReservedCurrent = 5,
    ReservedHigh = 6,
    /// Allocated and not freed.
    UsedCurrent = 7,
    UsedHigh = 8,
}

/// cudaStreamPerThread.
const PER_THREAD: RawStream = 2;

/// cudaMemcpyKind: the runtime infers the direction from the addresses.
pub const COPY_DEFAULT: i32 = 4;

/// cudaEventRecordExternal and cudaEventWaitExternal.
const EXTERNAL: u32 = 1;

/// Does the call; a code other than 0 becomes an Error that names the call.
macro_rules! call {
    ($self:ident . $slot:ident ( $($argument:expr),* $(,)? )) => {{
        let code = unsafe { ($self.table.$slot)($($argument),*) };
        $self.check(stringify!($slot), code)
    }};
}

/// The same for a slot that may be absent.
macro_rules! call_if_there {
    ($self:ident . $slot:ident ( $($argument:expr),* $(,)? )) => {
        match $self.table.$slot {
            Some(function) => {
                let code = unsafe { function($($argument),*) };
                $self.check(stringify!($slot), code)
            }
            None => Err($self.absent(stringify!($slot))),
        }
    };
}

impl Runtime {
    /// A code of any slot as a value. Clears CUDA's last error, so that it does not surface in somebody's next call.
    #[inline]
    pub fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == code::SUCCESS { Ok(()) } else { Err(self.error(call, code)) }
    }

    #[cold]
    pub fn error(&self, call: &'static str, code: Code) -> Error {
        unsafe { (self.table.cudaGetLastError)() };
        let name = self.error_text(self.table.cudaGetErrorName, code);
        let text = self.error_text(self.table.cudaGetErrorString, code);
        let stays = code::is_sticky(code) && self.has_error();
        let (status, hint) = match code {
            code::UNKNOWN if !stays => (Status::TCUDA_ERROR_CUDA, UNEXPLAINED),
            _ => classify(code),
        };
        // The current device, unless the error is one that stays and this device does not have it: then it is another's, whose
        // stream, event or memory was named in the call.
        let mut device = -1;
        let is_current = stays || status != Status::TCUDA_ERROR_DEVICE_LOST;
        if is_current && unsafe { (self.table.cudaGetDevice)(&mut device) } != code::SUCCESS {
            unsafe { (self.table.cudaGetLastError)() };
        }
        Error::new(status, format!("CUDA error: {text} ({name}, {code}) in {call}.{hint}")).with_native(code).on_device(device)
    }

    /// Whether the current device has an error that stays, or the thread one that nobody was told of.
    pub fn has_error(&self) -> bool {
        unsafe { (self.table.cudaPeekAtLastError)() != code::SUCCESS }
    }

    /// A stream is about to be given work: for the errors of devices.
    #[inline(always)]
    pub fn note(&self, what: &'static str, stream: RawStream) {
        if work::is_on() {
            self.noted(what, stream);
        }
    }

    #[cold]
    fn noted(&self, what: &'static str, stream: RawStream) {
        // To ask the legacy stream would end a capture beside it.
        let is_captured = stream >= PER_THREAD && self.stream_is_capturing(stream).unwrap_or(false);
        // What is captured is not given yet.
        if !is_captured {
            let device = if stream <= PER_THREAD { self.get_device() } else { self.stream_device(stream) };
            work::note(what, stream, device.unwrap_or(-1));
        }
    }

    fn error_text(&self, function: unsafe extern "C" fn(Code) -> *const std::ffi::c_char, code: Code) -> String {
        let text = unsafe { function(code) };
        if text.is_null() { String::from("unknown error") } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }
    }

    #[cold]
    fn absent(&self, call: &'static str) -> Error {
        Error::not_supported(format!(
            "{call} is not available: neither the CUDA runtime nor the driver in use exports it ({}).",
            self.reason
        ))
    }

    /// Virtual memory management: all of it or nothing.
    pub fn has_virtual_memory(&self) -> bool {
        let t = &self.table;
        t.cuMemGetAllocationGranularity.is_some()
            && t.cuMemAddressReserve.is_some()
            && t.cuMemAddressFree.is_some()
            && t.cuMemCreate.is_some()
            && t.cuMemRelease.is_some()
            && t.cuMemMap.is_some()
            && t.cuMemUnmap.is_some()
            && t.cuMemSetAccess.is_some()
    }

    /// Stream-ordered memory: all of it or nothing. Whether a device has a pool is its attribute 115.
    pub fn has_async_allocations(&self) -> bool {
        let t = &self.table;
        t.cudaMallocAsync.is_some()
            && t.cudaFreeAsync.is_some()
            && t.cudaDeviceGetDefaultMemPool.is_some()
            && t.cudaMemPoolSetAttribute.is_some()
            && t.cudaMemPoolGetAttribute.is_some()
            && t.cudaMemPoolSetAccess.is_some()
            && t.cudaMemPoolTrimTo.is_some()
    }

    // ---- devices

    pub fn get_device(&self) -> Result<i32> {
        let mut device = 0;
        call!(self.cudaGetDevice(&mut device))?;
        Ok(device)
    }

    pub fn set_device(&self, device: i32) -> Result<()> {
        call!(self.cudaSetDevice(device))
    }

    pub fn device_synchronize(&self) -> Result<()> {
        let newest = work::newest();
        blocking("cudaDeviceSynchronize", Kind::Wait, || call!(self.cudaDeviceSynchronize()))?;
        if work::is_on() {
            let device = self.get_device()?;
            work::done(newest, |work| work.device == device);
        }
        Ok(())
    }

    /// cudaDeviceAttr by number.
    pub fn device_attribute(&self, attribute: i32, device: i32) -> Result<i32> {
        let mut value = 0;
        call!(self.cudaDeviceGetAttribute(&mut value, attribute, device))?;
        Ok(value)
    }

    pub fn device_properties(&self, device: i32) -> Result<Properties> {
        // u64s for the alignment; 4 KiB is more than any version writes.
        let mut buffer = [0u64; OVERSIZED / 8];
        call!(self.cudaGetDeviceProperties(buffer.as_mut_ptr().cast(), device))?;
        let bytes: [u8; OVERSIZED] = unsafe { std::mem::transmute(buffer) };
        let i32_at = |at: usize| i32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let end = bytes[..256].iter().position(|b| *b == 0).unwrap_or(256);
        Ok(Properties {
            name: String::from_utf8_lossy(&bytes[..end]).into_owned(),
            uuid: bytes[256..272].try_into().unwrap(),
            total_memory: u64::from_ne_bytes(bytes[288..296].try_into().unwrap()),
            major: i32_at(360),
            minor: i32_at(364),
        })
    }

    /// `0000:3b:00.0`.
    pub fn pci_bus_id(&self, device: i32) -> Result<String> {
        let mut text = [0u8; 32];
        call!(self.cudaDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, device))?;
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// (least, greatest) of the current device; the greatest priority is the smallest number.
    pub fn stream_priority_range(&self) -> Result<(i32, i32)> {
        let (mut least, mut greatest) = (0, 0);
        call!(self.cudaDeviceGetStreamPriorityRange(&mut least, &mut greatest))?;
        Ok((least, greatest))
    }

    pub fn can_access_peer(&self, device: i32, peer: i32) -> Result<bool> {
        let mut can = 0;
        call!(self.cudaDeviceCanAccessPeer(&mut can, device, peer))?;
        Ok(can != 0)
    }

    /// From the current device to `peer`. Enabled before is success.
    pub fn enable_peer_access(&self, peer: i32) -> Result<()> {
        match call!(self.cudaDeviceEnablePeerAccess(peer, 0)) {
            Err(error) if error.native == code::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            other => other,
        }
    }

    /// (free, total) bytes of the current device.
    pub fn mem_get_info(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        call!(self.cudaMemGetInfo(&mut free, &mut total))?;
        Ok((free, total))
    }

    /// Whether the device has a context, asked without making one. None: the driver cannot tell.
    pub fn has_primary_context(&self, device: i32) -> Option<bool> {
        let (mut flags, mut active) = (0, 0);
        let function = self.table.cuDevicePrimaryCtxGetState?;
        (unsafe { function(device, &mut flags, &mut active) } == code::SUCCESS).then_some(active != 0)
    }

    /// The device's primary context, made if need be and kept from now on. None: the driver has no such function.
    pub fn primary_context(&self, device: i32) -> Option<Result<usize>> {
        let function = self.table.cuDevicePrimaryCtxRetain?;
        let mut context = 0;
        let code = unsafe { function(&mut context, device) };
        Some(self.check("cuDevicePrimaryCtxRetain", code).map(|()| context))
    }

    /// Puts a context on top of the calling thread's; its device is the current one until `context_pop`.
    pub fn context_push(&self, context: usize) -> Result<()> {
        call_if_there!(self.cuCtxPushCurrent_v2(context))
    }

    pub fn context_pop(&self) -> Result<()> {
        let mut context = 0;
        call_if_there!(self.cuCtxPopCurrent_v2(&mut context))
    }

    // ---- memory

    /// On the current device.
    pub fn malloc(&self, size: usize) -> Result<Address> {
        let mut address = 0;
        blocking("cudaMalloc", Kind::Driver, || call!(self.cudaMalloc(&mut address, size)))?;
        Ok(address)
    }

    pub fn free(&self, address: Address) -> Result<()> {
        blocking("cudaFree", Kind::Driver, || call!(self.cudaFree(address)))
    }

    /// Pinned, and mapped into every context (flags 1: portable).
    pub fn host_alloc(&self, size: usize, flags: u32) -> Result<Address> {
        let mut address = 0;
        blocking("cudaHostAlloc", Kind::Driver, || call!(self.cudaHostAlloc(&mut address, size, flags)))?;
        Ok(address)
    }

    pub fn free_host(&self, address: Address) -> Result<()> {
        blocking("cudaFreeHost", Kind::Driver, || call!(self.cudaFreeHost(address)))
    }

    pub fn host_register(&self, address: Address, size: usize, flags: u32) -> Result<()> {
        blocking("cudaHostRegister", Kind::Driver, || call!(self.cudaHostRegister(address, size, flags)))
    }

    pub fn host_unregister(&self, address: Address) -> Result<()> {
        blocking("cudaHostUnregister", Kind::Driver, || call!(self.cudaHostUnregister(address)))
    }

    pub fn place_of(&self, address: Address) -> Result<Place> {
        let mut buffer = [0i32; OVERSIZED / 4];
        match call!(self.cudaPointerGetAttributes(buffer.as_mut_ptr().cast(), address)) {
            // CUDA 10 answered unknown host memory with an error; libcudart 11 and later answer type 0.
            Err(error) if error.native == code::INVALID_VALUE => return Ok(Place::Unregistered),
            other => other?,
        }
        let device = buffer[1];
        Ok(match buffer[0] {
            1 => Place::Pinned { device },
            2 => Place::Device { device },
            3 => Place::Managed { device },
            _ => Place::Unregistered,
        })
    }

    pub fn memcpy(&self, to: Address, from: Address, size: usize) -> Result<()> {
        blocking("cudaMemcpy", Kind::Wait, || call!(self.cudaMemcpy(to, from, size, COPY_DEFAULT)))
    }

    pub fn memcpy_async(&self, to: Address, from: Address, size: usize, stream: RawStream) -> Result<()> {
        self.note("cudaMemcpyAsync", stream);
        call!(self.cudaMemcpyAsync(to, from, size, COPY_DEFAULT, stream))?;
        self.tell_copy(stream, to, from, size);
        Ok(())
    }

    pub fn memcpy_peer_async(
        &self,
        to: Address,
        to_device: i32,
        from: Address,
        from_device: i32,
        size: usize,
        stream: RawStream,
    ) -> Result<()> {
        self.note("cudaMemcpyPeerAsync", stream);
        call!(self.cudaMemcpyPeerAsync(to, to_device, from, from_device, size, stream))?;
        self.tell_copy(stream, to, from, size);
        Ok(())
    }

    /// `height` rows of `width` bytes, rows `*_pitch` bytes apart.
    #[allow(clippy::too_many_arguments)]
    pub fn memcpy_2d_async(
        &self,
        to: Address,
        to_pitch: usize,
        from: Address,
        from_pitch: usize,
        width: usize,
        height: usize,
        stream: RawStream,
    ) -> Result<()> {
        self.note("cudaMemcpy2DAsync", stream);
        call!(self.cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, COPY_DEFAULT, stream))?;
        if watch::any(watch::SANITIZER) {
            let rows = |start, pitch, write| {
                (0..height).take(watch::MOST_STRETCHES).map(move |row| Access { address: start + row * pitch, size: width, write })
            };
            let accesses: Vec<Access> = rows(from, from_pitch, false).chain(rows(to, to_pitch, true)).collect();
            self.tell_accesses(stream, &accesses);
        }
        Ok(())
    }

    pub fn memset_async(&self, address: Address, value: i32, size: usize, stream: RawStream) -> Result<()> {
        self.note("cudaMemsetAsync", stream);
        call!(self.cudaMemsetAsync(address, value, size, stream))?;
        self.tell_accesses(stream, &[Access { address, size, write: true }]);
        Ok(())
    }

    /// For the sanitizer: work was given to a stream.
    #[inline]
    pub fn tell_accesses(&self, stream: RawStream, accesses: &[Access]) {
        if watch::any(watch::SANITIZER) {
            // A default stream is the current device's; others say where they are.
            let device = if stream <= 2 { self.get_device().unwrap_or(-1) } else { -1 };
            watch::accessed(Some(At { device, raw: stream }), accesses);
        }
    }

    #[inline]
    fn tell_copy(&self, stream: RawStream, to: Address, from: Address, size: usize) {
        self.tell_accesses(stream, &[Access { address: from, size, write: false }, Access { address: to, size, write: true }]);
    }

    // ---- stream-ordered memory

    /// From the pool of the stream's device, for work that is ordered behind this on the stream.
    pub fn malloc_async(&self, size: usize, stream: RawStream) -> Result<Address> {
        let mut address = 0;
        call_if_there!(self.cudaMallocAsync(&mut address, size, stream))?;
        Ok(address)
    }

    /// Every use must be ordered before this, and none may be enqueued from now on. `free` takes such memory too.
    pub fn free_async(&self, address: Address, stream: RawStream) -> Result<()> {
        call_if_there!(self.cudaFreeAsync(address, stream))
    }

    /// The pool that the device's stream-ordered memory comes from.
    pub fn default_mem_pool(&self, device: i32) -> Result<RawMemPool> {
        let mut pool = 0;
        call_if_there!(self.cudaDeviceGetDefaultMemPool(&mut pool, device))?;
        Ok(pool)
    }

    pub fn mem_pool_attribute(&self, pool: RawMemPool, attribute: MemPoolAttribute) -> Result<u64> {
        let mut value = 0u64;
        call_if_there!(self.cudaMemPoolGetAttribute(pool, attribute as i32, (&raw mut value).cast()))?;
        Ok(value)
    }

    /// The threshold; or 0 to a high mark, which becomes what is current.
    pub fn set_mem_pool_attribute(&self, pool: RawMemPool, attribute: MemPoolAttribute, mut value: u64) -> Result<()> {
        call_if_there!(self.cudaMemPoolSetAttribute(pool, attribute as i32, (&raw mut value).cast()))
    }

    /// Which other devices reach the pool's memory, all that it has and will have: enabling peer access does not say so.
    pub fn mem_pool_set_access(&self, pool: RawMemPool, access: &[MemAccess]) -> Result<()> {
        call_if_there!(self.cudaMemPoolSetAccess(pool, access.as_ptr(), access.len()))
    }

    /// Gives unused memory back until no more than `keep` bytes are reserved. What is freed but not past stays.
    pub fn mem_pool_trim(&self, pool: RawMemPool, keep: usize) -> Result<()> {
        blocking("cudaMemPoolTrimTo", Kind::Driver, || call_if_there!(self.cudaMemPoolTrimTo(pool, keep)))
    }

    // ---- virtual memory (driver)

    /// The multiple of which sizes and addresses must be: 2 MiB on the devices of today.
    pub fn granularity(&self, properties: &MemAllocationProp) -> Result<usize> {
        let mut granularity = 0;
        call_if_there!(self.cuMemGetAllocationGranularity(&mut granularity, properties, 0))?;
        Ok(granularity)
    }

    pub fn address_reserve(&self, size: usize, alignment: usize) -> Result<Address> {
        let mut address = 0;
        call_if_there!(self.cuMemAddressReserve(&mut address, size, alignment, 0, 0))?;
        Ok(address)
    }

    pub fn address_free(&self, address: Address, size: usize) -> Result<()> {
        call_if_there!(self.cuMemAddressFree(address, size))
    }

    pub fn mem_create(&self, size: usize, properties: &MemAllocationProp) -> Result<MemHandle> {
        let mut handle = 0;
        call_if_there!(self.cuMemCreate(&mut handle, size, properties, 0))?;
        Ok(handle)
    }

    pub fn mem_release(&self, handle: MemHandle) -> Result<()> {
        call_if_there!(self.cuMemRelease(handle))
    }

    /// The whole handle, at offset 0: CUDA allows nothing else.
    pub fn mem_map(&self, address: Address, size: usize, handle: MemHandle) -> Result<()> {
        call_if_there!(self.cuMemMap(address, size, 0, handle, 0))
    }

    pub fn mem_unmap(&self, address: Address, size: usize) -> Result<()> {
        call_if_there!(self.cuMemUnmap(address, size))
    }

    pub fn mem_set_access(&self, address: Address, size: usize, access: &[MemAccess]) -> Result<()> {
        call_if_there!(self.cuMemSetAccess(address, size, access.as_ptr(), access.len()))
    }

    /// Where the allocation or mapping around an address begins, and how large it is.
    pub fn address_range(&self, address: Address) -> Result<(Address, usize)> {
        let (mut base, mut size) = (0, 0);
        call_if_there!(self.cuMemGetAddressRange_v2(&mut base, &mut size, address))?;
        Ok((base, size))
    }

    // ---- streams

    pub fn stream_create(&self, flags: u32, priority: i32) -> Result<RawStream> {
        let mut stream = 0;
        call!(self.cudaStreamCreateWithPriority(&mut stream, flags, priority))?;
        Ok(stream)
    }

    pub fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        call!(self.cudaStreamDestroy(stream))
    }

    pub fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
        let newest = work::newest();
        blocking("cudaStreamSynchronize", Kind::Wait, || call!(self.cudaStreamSynchronize(stream)))?;
        // The per-thread default stream is another one in each thread.
        if work::is_on() && stream != PER_THREAD {
            let device = self.get_device()?;
            work::done(newest, |work| work.stream == stream && (stream > PER_THREAD || work.device == device));
        }
        Ok(())
    }

    /// Whether all work of the stream is done.
    pub fn stream_query(&self, stream: RawStream) -> Result<bool> {
        self.ready("cudaStreamQuery", unsafe { (self.table.cudaStreamQuery)(stream) })
    }

    pub fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        call!(self.cudaStreamWaitEvent(stream, event, 0))
    }

    /// Of a stream that is captured: a node, at which each launch waits for what the event stands for then.
    pub fn stream_wait_event_external(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        call!(self.cudaStreamWaitEvent(stream, event, EXTERNAL))
    }

    pub fn stream_priority(&self, stream: RawStream) -> Result<i32> {
        let mut priority = 0;
        call!(self.cudaStreamGetPriority(stream, &mut priority))?;
        Ok(priority)
    }

    pub fn stream_flags(&self, stream: RawStream) -> Result<u32> {
        let mut flags = 0;
        call!(self.cudaStreamGetFlags(stream, &mut flags))?;
        Ok(flags)
    }

    /// None: this CUDA has no such call.
    pub fn stream_id(&self, stream: RawStream) -> Result<Option<u64>> {
        let mut id = 0;
        match self.table.cudaStreamGetId {
            Some(function) => self.check("cudaStreamGetId", unsafe { function(stream, &mut id) }).map(|()| Some(id)),
            None => Ok(None),
        }
    }

    pub fn stream_is_capturing(&self, stream: RawStream) -> Result<bool> {
        let mut status = 0;
        call!(self.cudaStreamIsCapturing(stream, &mut status))?;
        Ok(status != 0)
    }

    /// The device of a stream that tcuda did not make. By way of its context where the driver can: cudaStreamGetDevice (seen in CUDA
    /// 13.0) spoils the capture of a stream that is being captured.
    pub fn stream_device(&self, stream: RawStream) -> Result<i32> {
        let mut device = 0;
        let mut context = 0;
        if self.table.cuStreamGetCtx.is_none()
            && let Some(function) = self.table.cudaStreamGetDevice
        {
            self.check("cudaStreamGetDevice", unsafe { function(stream, &mut device) })?;
            return Ok(device);
        }
        call_if_there!(self.cuStreamGetCtx(stream, &mut context))?;
        call_if_there!(self.cuCtxPushCurrent_v2(context))?;
        let answer = call_if_there!(self.cuCtxGetDevice(&mut device));
        call_if_there!(self.cuCtxPopCurrent_v2(&mut context))?;
        answer.map(|()| device)
    }

    /// # Safety
    /// `function` is called once with `data` on a thread of the runtime, unless this returns an error.
    pub unsafe fn launch_host_function(&self, stream: RawStream, function: HostFn, data: *mut c_void) -> Result<()> {
        self.note("cudaLaunchHostFunc", stream);
        call!(self.cudaLaunchHostFunc(stream, function, data))
    }

    // ---- events

    pub fn event_create(&self, flags: u32) -> Result<RawEvent> {
        let mut event = 0;
        call!(self.cudaEventCreateWithFlags(&mut event, flags))?;
        Ok(event)
    }

    pub fn event_destroy(&self, event: RawEvent) -> Result<()> {
        call!(self.cudaEventDestroy(event))
    }

    pub fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        call!(self.cudaEventRecord(event, stream))
    }

    /// On a stream that is captured: a node, at which each launch records it.
    pub fn event_record_external(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        call_if_there!(self.cudaEventRecordWithFlags(event, stream, EXTERNAL))
    }

    pub fn event_query(&self, event: RawEvent) -> Result<bool> {
        self.ready("cudaEventQuery", unsafe { (self.table.cudaEventQuery)(event) })
    }

    pub fn event_synchronize(&self, event: RawEvent) -> Result<()> {
        blocking("cudaEventSynchronize", Kind::Wait, || call!(self.cudaEventSynchronize(event)))
    }

    pub fn event_elapsed_time(&self, start: RawEvent, end: RawEvent) -> Result<f32> {
        let mut milliseconds = 0.0;
        call!(self.cudaEventElapsedTime(&mut milliseconds, start, end))?;
        Ok(milliseconds)
    }

    // ---- profilers

    pub fn profiler_start(&self) -> Result<()> {
        call_if_there!(self.cudaProfilerStart())
    }

    pub fn profiler_stop(&self) -> Result<()> {
        call_if_there!(self.cudaProfilerStop())
    }

    // ---- modules (driver)

    /// Does what a capture would forbid, of this thread or in the global mode of another one, though it takes no part in it, as loading a
    /// module. It is done in any case: where the mode cannot be had, on a lost device, it says itself what ails it.
    pub fn outside_capture<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        /// Puts the mode back, whatever happens, if need be by a second try: it guards the thread's captures.
        struct Mode<'a>(&'a Runtime, i32);
        impl Drop for Mode<'_> {
            fn drop(&mut self) {
                let Mode(runtime, mode) = self;
                let _ = insist(|| call!(runtime.cudaThreadExchangeStreamCaptureMode(mode)));
            }
        }
        const RELAXED: i32 = 2;
        let mut mode = RELAXED;
        let exchanged = insist(|| call!(self.cudaThreadExchangeStreamCaptureMode(&mut mode)));
        let _mode = exchanged.is_ok().then(|| Mode(self, mode));
        work()
    }

    /// PTX (which ends with a zero byte) or a cubin, into the current context.
    pub fn module_load(&self, image: &[u8]) -> Result<usize> {
        let mut module = 0;
        blocking("cuModuleLoadData", Kind::Driver, || call_if_there!(self.cuModuleLoadData(&mut module, image.as_ptr().cast())))?;
        Ok(module)
    }

    /// What runs of it must be done.
    pub fn module_unload(&self, module: usize) -> Result<()> {
        blocking("cuModuleUnload", Kind::Driver, || call_if_there!(self.cuModuleUnload(module)))
    }

    pub fn module_function(&self, module: usize, name: &str) -> Result<usize> {
        let name = CString::new(name).map_err(|_| Error::internal("a kernel's name holds a zero byte"))?;
        let mut function = 0;
        call_if_there!(self.cuModuleGetFunction(&mut function, module, name.as_ptr()))?;
        Ok(function)
    }

    /// # Safety
    /// `parameters` point to values of the types that the kernel takes.
    pub unsafe fn launch_kernel(
        &self,
        function: usize,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        stream: RawStream,
        parameters: &mut [*mut c_void],
    ) -> Result<()> {
        let none = std::ptr::null_mut();
        call_if_there!(self.cuLaunchKernel(
            function,
            grid[0],
            grid[1],
            grid[2],
            block[0],
            block[1],
            block[2],
            shared,
            stream,
            parameters.as_mut_ptr(),
            none
        ))
    }

    /// CUfunction_attribute by number.
    pub fn function_attribute(&self, function: usize, attribute: i32) -> Result<i32> {
        let mut value = 0;
        call_if_there!(self.cuFuncGetAttribute(&mut value, attribute, function))?;
        Ok(value)
    }

    pub fn set_function_attribute(&self, function: usize, attribute: i32, value: i32) -> Result<()> {
        call_if_there!(self.cuFuncSetAttribute(function, attribute, value))
    }

    /// Bytes of each parameter. None: the driver is older than CUDA 12.4.
    pub fn function_parameters(&self, function: usize) -> Result<Option<Vec<usize>>> {
        let Some(ask) = self.table.cuFuncGetParamInfo else { return Ok(None) };
        let mut sizes = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            match unsafe { ask(function, sizes.len(), &mut offset, &mut size) } {
                code::SUCCESS => sizes.push(size),
                // There is no such parameter.
                code::INVALID_VALUE => return Ok(Some(sizes)),
                other => return Err(self.error("cuFuncGetParamInfo", other)),
            }
        }
    }

    /// Blocks of so many threads that a multiprocessor runs at once.
    pub fn occupancy(&self, function: usize, block: i32, shared: usize) -> Result<i32> {
        let mut blocks = 0;
        call_if_there!(self.cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, block, shared))?;
        Ok(blocks)
    }

    /// (blocks that fill the device, threads of a block with which it is fullest), with at most `limit` threads; 0 is no limit.
    pub fn best_block(&self, function: usize, shared: usize, limit: i32) -> Result<(i32, i32)> {
        let (mut grid, mut block) = (0, 0);
        call_if_there!(self.cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, function, 0, shared, limit))?;
        Ok((grid, block))
    }

    fn ready(&self, call: &'static str, code: Code) -> Result<bool> {
        match code {
            code::SUCCESS => Ok(true),
            code::NOT_READY => {
                unsafe { (self.table.cudaGetLastError)() };
                Ok(false)
            }
            other => Err(self.error(call, other)),
        }
    }
}

mod graph;
mod green;
mod share;
pub use graph::CaptureStatus;

/// The status of a native code, and what a person can do about it.
fn classify(code: Code) -> (Status, &'static str) {
    use Status::*;
    match code {
        code::OUT_OF_MEMORY => (TCUDA_ERROR_OUT_OF_MEMORY, ""),
        code::INVALID_DEVICE => (TCUDA_ERROR_INVALID_DEVICE, ""),
        code::INVALID_HANDLE => (TCUDA_ERROR_INVALID_HANDLE, " The stream or event was destroyed, or never was one."),
        code::INVALID_VALUE => (TCUDA_ERROR_INVALID_ARGUMENT, ""),
        code::NO_DEVICE => (TCUDA_ERROR_NO_DEVICE, ""),
        code::INSUFFICIENT_DRIVER => (TCUDA_ERROR_INSUFFICIENT_DRIVER, ""),
        code::NOT_READY => (TCUDA_ERROR_NOT_READY, ""),
        code::NOT_PERMITTED => {
            (TCUDA_ERROR_CUDA, " A host function (tcuda_stream_add_host_function) must not call CUDA, nor what of tcuda calls it.")
        }
        code::NOT_SUPPORTED | code::PEER_ACCESS_UNSUPPORTED => (TCUDA_ERROR_NOT_SUPPORTED, ""),
        900..=909 => (TCUDA_ERROR_CAPTURE, ""),
        other if code::is_sticky(other) => (TCUDA_ERROR_DEVICE_LOST, if launches_block() { LOST_AT_ONCE } else { LOST_LATE }),
        _ => (TCUDA_ERROR_CUDA, ""),
    }
}

/// An unknown error, once it is known that it stays.
pub fn lost(error: Error) -> Error {
    let (status, hint) = classify(code::UNKNOWN);
    Error { status, message: error.message.replace(UNEXPLAINED, hint).into(), ..error }
}

const UNEXPLAINED: &str = " The driver does not say what it is, and the device may be as good as before. What comes again at each call, only a new \
     process mends; the system's log may have a line of the driver's (Xid).";
const LOST_LATE: &str = " The device is lost to this process: every later call on it fails, and only a new process can use it again. CUDA reports \
     such errors late, at some other call than the one that caused them; CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer shows where, and \
     TCUDA_RECORD_WORK=1 what may have.";
const LOST_AT_ONCE: &str = " The device is lost to this process: every later call on it fails, and only a new process can use it again. \
     CUDA_LAUNCH_BLOCKING is set, so a kernel that failed is one that this call launched, or that the program launched by another library.";

/// Whether a launch waits until its kernel is done.
fn launches_block() -> bool {
    config::get("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value != "0")
}
