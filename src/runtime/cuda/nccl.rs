//! NCCL, which carries data between GPUs. It is looked up when the first communicator is made, in the places of the CUDA runtime. Communicators
//! are non-blocking ones unless they are told to be otherwise: no call waits for another rank.

use super::bind::{self, functions};
use super::library::{Library, file_of, text_at};
use super::search;
use crate::base::{Error, Result, Status};
use crate::runtime::collective::{Call, ID_BYTES, Id, Work};
use crate::runtime::table::{Address, RawStream};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// ncclComm_t.
type Handle = usize;

/// ncclUniqueId, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; ID_BYTES]);

/// ncclConfig_t as NCCL 2.14 has it, which newer ones fill up.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
    reserved: i32,
}

impl Config {
    fn new(blocking: bool) -> Config {
        Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 2_14_00, blocking: blocking.into(), reserved: 0 }
    }
}

functions! {
    optional
    ncclGetVersion(*mut i32);
    ncclGetErrorString(i32) -> *const c_char;
    ncclGetLastError(Handle) -> *const c_char;
    ncclGetUniqueId(*mut UniqueId);
    ncclCommInitRankConfig(*mut Handle, i32, UniqueId, i32, *mut Config);
    ncclCommSplit(Handle, i32, i32, *mut Handle, *mut Config);
    ncclCommGetAsyncError(Handle, *mut i32);
    ncclCommUserRank(Handle, *mut i32);
    ncclCommCount(Handle, *mut i32);
    ncclCommAbort(Handle);
    ncclCommDestroy(Handle);
    ncclGroupStart();
    ncclGroupEnd();
    ncclAllReduce(Address, Address, usize, i32, i32, Handle, RawStream);
    ncclAllGather(Address, Address, usize, i32, Handle, RawStream);
    ncclReduceScatter(Address, Address, usize, i32, i32, Handle, RawStream);
    ncclBroadcast(Address, Address, usize, i32, i32, Handle, RawStream);
    ncclReduce(Address, Address, usize, i32, i32, i32, Handle, RawStream);
    ncclSend(Address, usize, i32, i32, Handle, RawStream);
    ncclRecv(Address, usize, i32, i32, Handle, RawStream);
}

/// ncclResult_t.
mod answer {
    pub const SUCCESS: i32 = 0;
    pub const REMOTE_ERROR: i32 = 6;
    pub const IN_PROGRESS: i32 = 7;
    pub const TIMEOUT: i32 = 8;
}

/// Calls a function if there is one; an error names it.
macro_rules! call {
    ($nccl:expr, $name:ident($($argument:expr),*)) => {
        match $nccl.functions.$name {
            Some(function) => $nccl.check(stringify!($name), unsafe { function($($argument),*) }),
            None => Err($nccl.absent(stringify!($name))),
        }
    };
}

pub struct Nccl {
    functions: Functions,
    /// 22809 is 2.28.9.
    pub version: i32,
    file: PathBuf,
}

/// The library, found at the first call. A failure is not kept.
pub fn open(driver_version: i32) -> Result<&'static Nccl> {
    static FOUND: OnceCell<Nccl> = OnceCell::new();
    FOUND.get_or_try_init(|| {
        keep_multicast_off();
        let places = search::places(&search::COLLECTIVE, Path::new("/usr/local"));
        bind::first(places, driver_version, load).map_err(|looked| {
            Error::not_supported(format!(
                "Communicators need NCCL, and there is none that can be used. libnccl.so.2 was looked for in {looked}. Install it (pip \
                 install nvidia-nccl-cu{}, or the package of your system), or name it in TCUDA_NCCL_PATH.",
                (driver_version / 1000).clamp(12, 13)
            ))
        })
    })
}

/// Err says what is wrong with it.
fn load(library: &Library, name: &Path) -> Result<Nccl, String> {
    let functions = Functions::of(library);
    let mut version = 0;
    let ask = functions.ncclGetVersion.filter(|ask| unsafe { ask(&mut version) } == answer::SUCCESS);
    let Some(ask) = ask else { return Err(format!("{} does not tell its version", name.display())) };
    if functions.ncclCommInitRankConfig.is_none() {
        let known = format!("{} is NCCL {}", name.display(), dotted(version));
        return Err(format!("{known}, which has no ncclCommInitRankConfig; 2.14 is the first that has"));
    }
    Ok(Nccl { functions, version, file: file_of(ask as usize).unwrap_or_else(|| name.into()) })
}

/// NCCL reads this when its first communicator is made. What is set already stays.
fn keep_multicast_off() {
    unsafe { libc::setenv(c"NCCL_NVLS_ENABLE".as_ptr(), c"0".as_ptr(), 0) };
}

/// 22809 is 2.28.9.
fn dotted(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

impl Nccl {
    pub fn unique_id(&self) -> Result<Id> {
        let mut id = UniqueId([0; ID_BYTES]);
        call!(self, ncclGetUniqueId(&mut id))?;
        Ok(id.0)
    }

    /// On the current device.
    pub fn begin(&'static self, id: &Id, size: i32, rank: i32, blocking: bool) -> Result<Arc<Comm>> {
        // NCCL writes it again when it is done, from a thread of its own.
        let mut place = Box::new(0);
        let mut config = Config::new(blocking);
        let begun = call!(self, ncclCommInitRankConfig(&mut *place, size, UniqueId(*id), rank, &mut config));
        let comm = Arc::new(Comm { nccl: self, handle: Mutex::new(Some(place)), parent: None, blocking });
        // What failed half way is there all the same; in the midst of a group, as blocking ones are made, NCCL ends it with the group.
        begun.inspect_err(|_| {
            if !blocking {
                drop(comm.abort())
            }
        })?;
        Ok(comm)
    }

    pub fn group_start(&self) -> Result<()> {
        call!(self, ncclGroupStart())
    }

    pub fn group_end(&self) -> Result<()> {
        call!(self, ncclGroupEnd())
    }

    /// What is under way is no failure.
    fn check(&self, call: &str, code: i32) -> Result<()> {
        if matches!(code, answer::SUCCESS | answer::IN_PROGRESS) { Ok(()) } else { Err(self.error(call, code)) }
    }

    #[cold]
    fn error(&self, call: &str, code: i32) -> Error {
        let text = |text: *const c_char| (!text.is_null()).then(|| unsafe { text_at(text) });
        let name = self.functions.ncclGetErrorString.and_then(|ask| text(unsafe { ask(code) })).unwrap_or_else(|| "unknown error".into());
        let more = self.functions.ncclGetLastError.and_then(|ask| text(unsafe { ask(0) })).filter(|text| !text.is_empty());
        let more = more.map_or(String::new(), |text| format!(" It says: {text}."));
        let status = match code {
            answer::REMOTE_ERROR => Status::TCUDA_ERROR_REMOTE,
            answer::TIMEOUT => Status::TCUDA_ERROR_TIMEOUT,
            _ => Status::TCUDA_ERROR_NCCL,
        };
        let library = format!("NCCL {}, {}", dotted(self.version), self.file.display());
        Error::new(status, format!("NCCL error: {name} ({code}) in {call}.{more} The library is {library}.")).with_native(code)
    }

    #[cold]
    fn absent(&self, call: &str) -> Error {
        let library = format!("NCCL {}, {}", dotted(self.version), self.file.display());
        Error::not_supported(format!("{call} is not available: the library in use ({library}) is too old for it."))
    }
}

/// A communicator of NCCL's.
pub struct Comm {
    nccl: &'static Nccl,
    /// None: it was ended. Boxed, because NCCL writes it after the call that makes it, too; 0 until then.
    handle: Mutex<Option<Box<Handle>>>,
    /// Of which it is a part.
    parent: Option<Arc<Comm>>,
    /// Calls wait within NCCL.
    blocking: bool,
}

impl Comm {
    fn with<T>(&self, body: impl FnOnce(Handle) -> Result<T>) -> Result<T> {
        let handle = self.handle.lock();
        match handle.as_deref().map(|place| unsafe { std::ptr::from_ref(place).read_volatile() }) {
            Some(handle) => body(handle),
            // By another thread; of a part it may be the one that it is split from.
            None => Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, "The communicator was ended while this call was under way.")),
        }
    }

    pub fn split(self: &Arc<Comm>, color: i32, key: i32) -> Result<Arc<Comm>> {
        let mut place = Box::new(0);
        let mut config = Config::new(self.blocking);
        let split = |handle| call!(self.nccl, ncclCommSplit(handle, color, key, &mut *place, &mut config));
        match self.blocking {
            // It waits for the other ranks, and an abort must not wait for it.
            true => self.with(Ok).and_then(split)?,
            false => self.with(split)?,
        }
        Ok(Arc::new(Comm { nccl: self.nccl, handle: Mutex::new(Some(place)), parent: Some(self.clone()), blocking: self.blocking }))
    }

    pub fn is_ready(&self) -> Result<bool> {
        let state = self.with(|handle| {
            let mut code = answer::SUCCESS;
            if handle != 0 {
                call!(self.nccl, ncclCommGetAsyncError(handle, &mut code))?;
            }
            self.nccl.check("ncclCommGetAsyncError", code)?;
            Ok((handle != 0, code == answer::SUCCESS))
        })?;
        match (&self.parent, state) {
            // A split is at first a thing of the communicator that it comes from.
            (Some(parent), (false, _)) => parent.is_ready().map(|_| false),
            (_, (made, done)) => Ok(made && done),
        }
    }

    /// (rank, size).
    pub fn place(&self) -> Result<(i32, i32)> {
        self.with(|handle| {
            let (mut rank, mut size) = (0, 0);
            call!(self.nccl, ncclCommUserRank(handle, &mut rank))?;
            call!(self.nccl, ncclCommCount(handle, &mut size))?;
            Ok((rank, size))
        })
    }

    pub fn post(&self, work: &Work) -> Result<()> {
        let (nccl, wire) = (self.nccl, work.wire as i32);
        let Work { call, count, input, output, stream, .. } = *work;
        self.with(|comm| match call {
            Call::AllReduce(reduction) => call!(nccl, ncclAllReduce(input, output, count, wire, reduction as i32, comm, stream)),
            Call::AllGather => call!(nccl, ncclAllGather(input, output, count, wire, comm, stream)),
            Call::ReduceScatter(reduction) => call!(nccl, ncclReduceScatter(input, output, count, wire, reduction as i32, comm, stream)),
            Call::Broadcast { root } => call!(nccl, ncclBroadcast(input, output, count, wire, root, comm, stream)),
            Call::Reduce { reduction, root } => call!(nccl, ncclReduce(input, output, count, wire, reduction as i32, root, comm, stream)),
            Call::Send { peer } => call!(nccl, ncclSend(input, count, wire, peer, comm, stream)),
            Call::Recv { peer } => call!(nccl, ncclRecv(output, count, wire, peer, comm, stream)),
            Call::AllToAll => {
                let mut size = 0;
                call!(nccl, ncclCommCount(comm, &mut size))?;
                let bytes = count * work.wire.size();
                (0..size).try_for_each(|peer| {
                    call!(nccl, ncclSend(input + peer as usize * bytes, count, wire, peer, comm, stream))?;
                    call!(nccl, ncclRecv(output + peer as usize * bytes, count, wire, peer, comm, stream))
                })
            }
        })
    }

    pub fn abort(&self) -> Result<()> {
        self.finish(|handle| call!(self.nccl, ncclCommAbort(handle)))
    }

    pub fn end(&self) -> Result<()> {
        self.finish(|handle| call!(self.nccl, ncclCommDestroy(handle)))
    }

    fn finish(&self, body: impl FnOnce(Handle) -> Result<()>) -> Result<()> {
        let Some(place) = self.handle.lock().take() else { return Ok(()) };
        // NCCL may write it yet, from a thread of its own: eight bytes stay.
        match *Box::leak(place) {
            0 => Ok(()),
            handle => body(handle),
        }
    }
}

const _: () = assert!(size_of::<Config>() == 24 && size_of::<*mut c_void>() == size_of::<Handle>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart() {
        assert_eq!([dotted(22_809), dotted(21_403), dotted(23_203)], ["2.28.9", "2.14.3", "2.32.3"]);
    }
}
