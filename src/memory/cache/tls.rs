//! One pointer for each thread, found with two instructions.
//!
//! A `thread_local!` of a shared library costs a call each time. With initial-exec storage the access is a load, and all that the library
//! has for each thread, not these eight bytes alone, lies in the room that the loader keeps for libraries that are opened late.

#[cfg(not(test))]
use super::front::{NOBODY, Thread};

#[cfg(all(not(test), target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod place {
    use super::*;

    std::arch::global_asm!(
        ".section .tdata.tcuda_front_thread, \"awT\", @progbits",
        ".globl tcuda_front_thread",
        ".hidden tcuda_front_thread",
        ".type tcuda_front_thread, @object",
        ".size tcuda_front_thread, 8",
        ".p2align 3",
        "tcuda_front_thread:",
        ".quad {nobody}",
        ".previous",
        nobody = sym NOBODY,
    );

    #[inline(always)]
    pub fn get() -> &'static Thread {
        let thread: *const Thread;
        unsafe {
            std::arch::asm!(
                "mov {thread}, qword ptr [rip + tcuda_front_thread@GOTTPOFF]",
                "mov {thread}, qword ptr fs:[{thread}]",
                thread = out(reg) thread,
                options(readonly, nostack, preserves_flags)
            );
            &*thread
        }
    }

    pub fn set(thread: &'static Thread) {
        unsafe {
            std::arch::asm!(
                "mov {offset}, qword ptr [rip + tcuda_front_thread@GOTTPOFF]",
                "mov qword ptr fs:[{offset}], {thread}",
                offset = out(reg) _,
                thread = in(reg) thread,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(all(not(test), not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))))]
mod place {
    use super::*;
    use std::cell::Cell;

    thread_local!(static THREAD: Cell<&'static Thread> = const { Cell::new(&NOBODY) });

    #[inline(always)]
    pub fn get() -> &'static Thread {
        THREAD.try_with(Cell::get).unwrap_or(&NOBODY)
    }

    pub fn set(thread: &'static Thread) {
        let _ = THREAD.try_with(|place| place.set(thread));
    }
}

/// Threads of the model share one of the system's.
#[cfg(test)]
pub use crate::memory::sync::model::{set_thread as set, thread as get};
#[cfg(not(test))]
pub use place::{get, set};
