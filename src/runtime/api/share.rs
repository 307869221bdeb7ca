//! Memory and events of another process.

use super::*;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
const FILE: i32 = 1;

impl Runtime {
    /// For what `malloc` gave, from its start.
    pub fn ipc_mem_handle(&self, address: Address) -> Result<IpcHandle> {
        let mut handle = IpcHandle([0; 64]);
        call!(self.cudaIpcGetMemHandle(&mut handle, address))?;
        Ok(handle)
    }

    /// Where another process's memory is here, for the current device and those with access to its memory.
    pub fn ipc_open_mem_handle(&self, handle: IpcHandle) -> Result<Address> {
        const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
        let mut address = 0;
        call!(self.cudaIpcOpenMemHandle(&mut address, handle, LAZY_ENABLE_PEER_ACCESS))?;
        Ok(address)
    }

    pub fn ipc_close_mem_handle(&self, address: Address) -> Result<()> {
        call!(self.cudaIpcCloseMemHandle(address))
    }

    pub fn ipc_event_handle(&self, event: RawEvent) -> Result<IpcHandle> {
        let mut handle = IpcHandle([0; 64]);
        call!(self.cudaIpcGetEventHandle(&mut handle, event))?;
        Ok(handle)
    }

    /// An event here that is another process's too; `event_destroy` ends it here.
    pub fn ipc_open_event_handle(&self, handle: IpcHandle) -> Result<RawEvent> {
        let mut event = 0;
        call!(self.cudaIpcOpenEventHandle(&mut event, handle))?;
        Ok(event)
    }

    /// A file that stands for the memory of a handle in any process.
    pub fn mem_export(&self, handle: MemHandle) -> Result<OwnedFd> {
        let mut file = -1i32;
        call_if_there!(self.cuMemExportToShareableHandle((&raw mut file).cast(), handle, FILE, 0))?;
        if file < 0 {
            return Err(Error::internal("cuMemExportToShareableHandle succeeded and gave no file."));
        }
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    /// The file is not needed any more afterwards.
    pub fn mem_import(&self, file: BorrowedFd<'_>) -> Result<MemHandle> {
        let mut handle = 0;
        call_if_there!(self.cuMemImportFromShareableHandle(&mut handle, file.as_raw_fd() as usize, FILE))?;
        Ok(handle)
    }
}
