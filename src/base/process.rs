//! What becomes of the process: fork and shutdown; the numbers of its threads, and the barrier that all of them pass.

use super::spared::Uncancelled;
use super::{Error, Result, Status, annotation, config, log, sync_debug, trace};
use once_cell::race::{OnceNonZeroUsize, OnceRef};
use std::cell::Cell;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const RUNNING: u32 = 0;
const FORKED: u32 = 1;
const SHUT_DOWN: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(RUNNING);
static RUN: AtomicU32 = AtomicU32::new(0);
/// Whether forks are minded. Nothing here waits for another thread: in a child that thread may not be there.
static MINDED: AtomicBool = AtomicBool::new(false);
/// Whether a device was looked for.
static USED: AtomicBool = AtomicBool::new(false);
/// Whether a thread does what it does without a device and is not done with.
static BUSY: OnceRef<'static, fn() -> bool> = OnceRef::new();

static IN_CHILD: OnceRef<'static, fn()> = OnceRef::new();

/// Who held a lock then holds it for ever, unless it was the thread that forked, which is inside of a call then.
extern "C" fn in_child() {
    let locked =
        || [log::is_locked, config::is_locked, annotation::is_locked, sync_debug::is_locked, trace::is_locked].iter().any(|is| is());
    if !USED.load(Ordering::Relaxed) && !locked() && !BUSY.get().is_some_and(|busy| busy()) {
        return;
    }
    STATE.store(FORKED, Ordering::Relaxed);
    if let Some(hook) = IN_CHILD.get() {
        hook();
    }
}

/// What has to happen in the child of a fork, where nearly nothing may be done. One hook: the first given.
pub fn in_child_of_fork(hook: &'static fn()) {
    let _ = IN_CHILD.set(hook);
}

/// Called when the device is first used: from here on, a child of `fork` is refused.
pub fn refuse_forks() {
    // Before anything is held that a child might wait for.
    USED.store(true, Ordering::SeqCst);
    mind_forks();
}

/// The same for what needs no device, as far as `busy` says that it is under way. Called before any of it is.
pub fn refuse_forks_while(busy: &'static fn() -> bool) {
    let _ = BUSY.set(busy);
    mind_forks();
}

/// Threads that come at the same time each ask for it: told twice, a child does the same twice.
fn mind_forks() {
    if !MINDED.load(Ordering::Acquire) {
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        MINDED.store(true, Ordering::Release);
    }
}

pub fn set_shut_down(down: bool) {
    if down {
        RUN.fetch_add(1, Ordering::Relaxed);
    }
    let _ = STATE.compare_exchange(
        if down { RUNNING } else { SHUT_DOWN },
        if down { SHUT_DOWN } else { RUNNING },
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
}

/// The number of shutdowns so far: tells what was made in this run from what went with an earlier one.
pub fn run() -> u32 {
    RUN.load(Ordering::Relaxed)
}

pub fn is_running() -> bool {
    STATE.load(Ordering::Relaxed) == RUNNING
}

pub fn is_shut_down() -> bool {
    STATE.load(Ordering::Relaxed) == SHUT_DOWN
}

pub fn is_forked() -> bool {
    STATE.load(Ordering::Relaxed) == FORKED
}

/// An error in a forked child. For what works after shutdown, but may wait for threads that are not there.
pub fn refuse_forked() -> Result<()> {
    if is_forked() { check() } else { Ok(()) }
}

/// An error in a forked child and after shutdown.
pub fn check() -> Result<()> {
    match STATE.load(Ordering::Relaxed) {
        RUNNING => Ok(()),
        FORKED => Err(Error::new(
            Status::TCUDA_ERROR_FORKED,
            "Cannot re-initialize CUDA in a forked child. The parent used the device before fork, or was in a call of tcuda; start the \
             child with exec (posix_spawn, or multiprocessing's 'spawn') instead.",
        )),
        _ => Err(Error::new(
            Status::TCUDA_ERROR_SHUT_DOWN,
            "tcuda_shutdown was called. Nothing that needs the device works after it; tcuda_init starts again.",
        )),
    }
}

/// The effective user's number.
pub fn user() -> u32 {
    unsafe { libc::geteuid() }
}

/// What the process has open by a number, once more: it is written on from where it is.
pub fn open_file(number: RawFd) -> io::Result<File> {
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { File::from_raw_fd(copy) }) }
}

/// The calling thread's number, which no other has had.
pub fn thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
    if NUMBER.get() == 0 {
        NUMBER.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    }
    NUMBER.get()
}

/// What each of them does at its end, the last first: there is room for all that tcuda has.
type Ends = [Option<fn()>; 12];
thread_local!(static ENDS: Cell<Ends> = const { Cell::new([None; 12]) });

/// Has `end` called after the calling thread's own values were dropped: those that the destructor of a pthread key is the first to make never are.
/// Where the system has no key left it is not called.
pub fn at_end(end: fn()) {
    let mut ends = ENDS.get();
    if ends.contains(&Some(end)) {
        return;
    }
    debug_assert!(ends.contains(&None));
    if let (Some(place), Some(key)) = (ends.iter_mut().find(|place| place.is_none()), end_key()) {
        *place = Some(end);
        ENDS.set(ends);
        // Any value but NULL.
        unsafe { libc::pthread_setspecific(key, (&raw const ENDED).cast()) };
    }
}

static ENDED: u8 = 0;

unsafe extern "C" fn ended(_: *mut c_void) {
    let _whole = Uncancelled::enter();
    ENDS.take().into_iter().flatten().rev().for_each(|end| end());
}

/// To be called before CUDA is there: of keys the one made first comes first, so that what a thread had of tcuda's ends before what it had of CUDA's.
pub fn order_ends() {
    end_key();
}

/// Made at the first need; of two threads that make one the second gives its own back.
fn end_key() -> Option<libc::pthread_key_t> {
    static KEY: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let known = KEY.get().or_else(|| {
        let mut key = 0;
        let made = unsafe { libc::pthread_key_create(&mut key, Some(ended)) } == 0;
        let made = NonZeroUsize::new(key as usize + 1).filter(|_| made)?;
        let first = KEY.get_or_init(|| made);
        if first != made {
            unsafe { libc::pthread_key_delete(key) };
        }
        Some(first)
    });
    known.map(|key| (key.get() - 1) as libc::pthread_key_t)
}

/// Registers the process for `barrier`. False: the kernel has none. In a process of several threads the first call takes milliseconds, since the
/// kernel waits for all processors.
pub fn has_barrier() -> bool {
    const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED))
}

/// Every thread of the process that runs passes a full barrier. False: it failed.
pub fn barrier() -> bool {
    const PRIVATE_EXPEDITED: i32 = 1 << 3;
    membarrier(PRIVATE_EXPEDITED)
}

#[cfg(target_os = "linux")]
fn membarrier(command: i32) -> bool {
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn membarrier(_command: i32) -> bool {
    false
}
