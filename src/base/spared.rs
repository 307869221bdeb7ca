//! What a thread of the program's is spared while it is in tcuda: to be cancelled.

use std::marker::PhantomData;

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

#[cfg(test)]
mod tests {
    use super::*;

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
