//! What a thread of the program's is spared while it is in tcuda: to be cancelled, and the signal of a pipe that nobody reads. What tcuda's
//! own threads are: all signals.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

const DISABLE: i32 = 1;

/// Gives the state before.
#[inline]
fn set_state(state: i32) -> i32 {
    // Not in the crate `libc`.
    unsafe extern "C" {
        fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
    }
    let mut before = state;
    unsafe { pthread_setcancelstate(state, &mut before) };
    before
}

/// Until it is dropped a pthread_cancel of the calling thread waits: the unwinding that it begins cannot pass through Rust.
#[must_use]
pub struct Uncancelled {
    before: i32,
    of_this_thread: PhantomData<*mut ()>,
}

impl Uncancelled {
    #[inline]
    pub fn enter() -> Uncancelled {
        Uncancelled { before: set_state(DISABLE), of_this_thread: PhantomData }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        if self.before != DISABLE {
            set_state(self.before);
        }
    }
}

/// A write to a pipe or socket that nobody reads is an error in here, and no SIGPIPE, which ends a program that does not expect it.
pub fn sigpipe<T>(write: impl FnOnce() -> T) -> T {
    /// Takes the signal that came meanwhile, and lets later ones come as before.
    struct Blocked {
        pipe: libc::sigset_t,
        before: libc::sigset_t,
    }
    impl Drop for Blocked {
        fn drop(&mut self) {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            unsafe {
                while libc::sigtimedwait(&self.pipe, null_mut(), &now) < 0 && *libc::__errno_location() == libc::EINTR {}
                libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, null_mut());
            }
        }
    }
    let _blocked = unsafe {
        let (mut pending, mut pipe, mut before) = (MaybeUninit::zeroed(), MaybeUninit::zeroed(), MaybeUninit::zeroed());
        libc::sigpending(pending.as_mut_ptr());
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        // One that waits already is the program's, and another would not be told from it.
        if libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1 {
            None
        } else {
            libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr());
            Some(Blocked { pipe: pipe.assume_init(), before: before.assume_init() })
        }
    };
    write()
}

/// Without the program's signals, and detached: it never holds up the end of the process.
pub fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    unsafe {
        let (mut every, mut before) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
        libc::sigfillset(every.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, every.as_ptr(), before.as_mut_ptr());
        let started = std::thread::Builder::new().name(name.into()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
        started.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_thread_of_its_own_gets_no_signals() {
        let blocked = || unsafe {
            let mut mask = MaybeUninit::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
            [libc::SIGINT, libc::SIGUSR1, libc::SIGCHLD].map(|signal| libc::sigismember(mask.as_ptr(), signal))
        };
        let before = blocked();
        let (tell, hear) = std::sync::mpsc::channel();
        start_thread("own", move || tell.send((blocked(), std::thread::current().name().map(String::from))).unwrap()).unwrap();
        assert_eq!(hear.recv().unwrap(), ([1; 3], Some("own".into())));
        assert_eq!(blocked(), before);
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_an_error_only() {
        // The tests themselves ignore it.
        let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (reader, mut writer) = std::io::pipe().unwrap();
        drop(reader);
        let written = sigpipe(|| writer.write(b"1").and(writer.write(b"2")));
        unsafe { libc::signal(libc::SIGPIPE, before) };
        assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_signal_that_waits_already_stays() {
        let pending = || unsafe {
            let mut pending = MaybeUninit::zeroed();
            libc::sigpending(pending.as_mut_ptr());
            libc::sigismember(pending.as_ptr(), libc::SIGPIPE)
        };
        std::thread::spawn(move || unsafe {
            let mut pipe = MaybeUninit::zeroed();
            libc::sigemptyset(pipe.as_mut_ptr());
            libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), null_mut());
            libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE);
            // An ignored one does not wait at all: it is so where the tests ignore it.
            let before = pending();
            sigpipe(|| assert_eq!(pending(), before));
            assert_eq!(pending(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn calls_lie_within_each_other() {
        let state = || {
            let state = set_state(DISABLE);
            set_state(state);
            state
        };
        let before = state();
        {
            let _outer = Uncancelled::enter();
            drop(Uncancelled::enter());
            assert_eq!(state(), DISABLE);
        }
        assert_eq!(state(), before);
        assert_ne!(before, DISABLE);
    }
}
