//! Memory and events of several processes.

use super::*;

pub unsafe extern "C" fn cudaIpcGetMemHandle(handle: *mut IpcHandle, address: Address) -> Code {
    call(Slot::cudaIpcGetMemHandle, |sim| {
        check(handle)?;
        sim.current()?;
        put(handle, sim.share(address)?)
    })
}

pub unsafe extern "C" fn cudaIpcOpenMemHandle(address: *mut Address, handle: IpcHandle, flags: u32) -> Code {
    call(Slot::cudaIpcOpenMemHandle, |sim| {
        check(address)?;
        put(address, sim.open_shared(&handle, flags)?)
    })
}

pub unsafe extern "C" fn cudaIpcCloseMemHandle(address: Address) -> Code {
    call(Slot::cudaIpcCloseMemHandle, |sim| sim.close_shared(address))
}

pub unsafe extern "C" fn cudaIpcGetEventHandle(handle: *mut IpcHandle, event: RawEvent) -> Code {
    call(Slot::cudaIpcGetEventHandle, |sim| {
        check(handle)?;
        put(handle, sim.event_handle(event)?)
    })
}

pub unsafe extern "C" fn cudaIpcOpenEventHandle(event: *mut RawEvent, handle: IpcHandle) -> Code {
    call(Slot::cudaIpcOpenEventHandle, |sim| {
        check(event)?;
        put(event, sim.open_event(&handle)?)
    })
}

pub unsafe extern "C" fn cuMemExportToShareableHandle(shareable: *mut c_void, handle: MemHandle, kind: i32, flags: u64) -> Code {
    call(Slot::cuMemExportToShareableHandle, |sim| {
        check(shareable)?;
        put(shareable.cast(), sim.export(handle, kind, flags)?)
    })
}

pub unsafe extern "C" fn cuMemImportFromShareableHandle(handle: *mut MemHandle, shareable: usize, kind: i32) -> Code {
    call(Slot::cuMemImportFromShareableHandle, |sim| {
        check(handle)?;
        put(handle, sim.import(shareable, kind)?)
    })
}
