//! Memory and events of another process.

use super::*;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
const FILE: i32 = 1;

/// What is shared is a file of the process, also where CUDA does not say so: of its codes none means that there may be no more.
fn blame_files(error: Error) -> Error {
    /// As many as one such call may open.
    const FEW: usize = 4;
    let opened: Vec<_> = (0..FEW).map(|_| File::open("/dev/null")).collect();
    match opened.into_iter().find_map(Result::err) {
        Some(none) if none.raw_os_error() == Some(libc::EMFILE) && error.status != Status::TCUDA_ERROR_DEVICE_LOST => Error {
            status: Status::TCUDA_ERROR_SYSTEM,
            native: libc::EMFILE,
            ..error.context("This process has no room for more open files (ulimit -n), which what it shares with others takes")
        },
        _ => error,
    }
}

impl Runtime {
    /// For what `malloc` gave, from its start.
    pub fn ipc_mem_handle(&self, address: Address) -> Result<IpcHandle> {
        let mut handle = IpcHandle([0; 64]);
        call!(self.cudaIpcGetMemHandle(&mut handle, address)).map_err(blame_files)?;
        Ok(handle)
    }

    /// Where another process's memory is here, for the current device and those with access to its memory.
    pub fn ipc_open_mem_handle(&self, handle: IpcHandle) -> Result<Address> {
        const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
        let mut address = 0;
        call!(self.cudaIpcOpenMemHandle(&mut address, handle, LAZY_ENABLE_PEER_ACCESS)).map_err(blame_files)?;
        Ok(address)
    }

    pub fn ipc_close_mem_handle(&self, address: Address) -> Result<()> {
        call!(self.cudaIpcCloseMemHandle(address))
    }

    pub fn ipc_event_handle(&self, event: RawEvent) -> Result<IpcHandle> {
        let mut handle = IpcHandle([0; 64]);
        call!(self.cudaIpcGetEventHandle(&mut handle, event)).map_err(blame_files)?;
        Ok(handle)
    }

    /// An event here that is another process's too; `event_destroy` ends it here.
    pub fn ipc_open_event_handle(&self, handle: IpcHandle) -> Result<RawEvent> {
        let mut event = 0;
        call!(self.cudaIpcOpenEventHandle(&mut event, handle)).map_err(blame_files)?;
        Ok(event)
    }

    /// A file that stands for the memory of a handle in any process.
    pub fn mem_export(&self, handle: MemHandle) -> Result<OwnedFd> {
        let mut file = -1i32;
        call_if_there!(self.cuMemExportToShareableHandle((&raw mut file).cast(), handle, FILE, 0)).map_err(blame_files)?;
        if file < 0 {
            return Err(Error::internal("cuMemExportToShareableHandle succeeded and gave no file."));
        }
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    /// The file is not needed any more afterwards.
    pub fn mem_import(&self, file: BorrowedFd<'_>) -> Result<MemHandle> {
        let mut handle = 0;
        call_if_there!(self.cuMemImportFromShareableHandle(&mut handle, file.as_raw_fd() as usize, FILE)).map_err(blame_files)?;
        Ok(handle)
    }
}
