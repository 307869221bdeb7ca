//! Threads and their fronts: how a thread gets one, and what becomes of them when it ends or forks.

use super::block::{self, BlockId};
use super::front::{self, Front, NOBODY, Thread};
use super::slot::{COMMON, StreamKey, slot_of_block};
use super::{Cache, tls};
use crate::base::process;
use crate::base::spared::Uncancelled;
use crate::memory::pools::Id;
use crate::stream::{self, Stream};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Threads that ended; the next ones are they again.
static ENDED: Mutex<Vec<&'static Thread>> = Mutex::new(Vec::new());
static NUMBER: AtomicU32 = AtomicU32::new(1);

/// So many at once there were, at most.
pub fn made() -> u32 {
    NUMBER.load(Relaxed) - 1
}

/// Gives the thread's fronts back when it ends.
struct End(&'static Thread);

impl Drop for End {
    fn drop(&mut self) {
        let _whole = Uncancelled::enter();
        tls::set(&NOBODY);
        if process::is_running() {
            crate::memory::forget_thread(self.0);
        }
        if process::is_forked() {
            // Another thread of the parent may have held the lock.
            return;
        }
        self.0.forget_ways();
        ENDED.lock().push(self.0);
    }
}

thread_local!(static END: RefCell<Option<End>> = const { RefCell::new(None) });

/// The calling thread. None: it is ending.
fn this() -> Option<&'static Thread> {
    END.try_with(|end| {
        let mut end = end.borrow_mut();
        let End(thread) = end.get_or_insert_with(|| {
            process::at_end(|| drop(END.try_with(RefCell::take)));
            let thread = ENDED.lock().pop();
            End(thread.unwrap_or_else(|| Box::leak(Box::new(Thread::new(NUMBER.fetch_add(1, Relaxed))))))
        });
        tls::set(thread);
        *thread
    })
    .ok()
}

/// In the child of a fork: the thread has no fronts, so every call comes to where forks are refused.
pub fn forked() {
    tls::set(&NOBODY);
}

/// What the fronts of a pool's stream are found by; of no pool it is the stream's handle.
pub fn canonical_in(pool: &Cache, stream: Stream) -> usize {
    stream::handle_of(stream).wrapping_add((pool.number as usize) << front::ABOVE_ADDRESSES)
}

/// Makes the calling thread's front of a stream ready, so that its next call finds it by `canonical`, and at once by `key`: the handle as the
/// caller gives it. False: there is none to be had, or it was ready, and what the call wanted is not there.
pub fn arm(cache: &Cache, pool: Id, stream: Stream, canonical: usize, key: usize) -> bool {
    let Some(thread) = with_fronts() else { return false };
    let stream_key = StreamKey::of(stream);
    let mut core = cache.core.quiet();
    // Destroyed meanwhile, its cache may be another pool's.
    if !core.is_of(pool) || !core.may_have_fronts() {
        return false;
    }
    // A new one may have what threads keep come home, which takes the device's lock.
    let Ok(slot) = core.slot_of(stream_key) else { return false };
    let mut whole = core.whole();
    // Whoever takes fronts away has said so before he stopped them, be it under one lock only.
    if !crate::memory::may_have_fronts() {
        return false;
    }
    let Some(front) = core.arm(whole.as_deref_mut(), thread, slot, true) else { return false };
    thread.choose(front, canonical, key)
}

/// The same for a thread that frees a block.
pub fn arm_to_free(cache: &Cache, block: BlockId) -> bool {
    let Some(thread) = with_fronts() else { return false };
    let mut core = cache.core.quiet();
    let mut whole = core.whole();
    if !crate::memory::may_have_fronts() || !core.may_have_fronts() {
        return false;
    }
    // Freed meanwhile, it may be another cache's.
    if !core.handed_out(block) {
        return false;
    }
    let slot = slot_of_block(block);
    // Of a stream of this thread's that has ended, a destructor may use it on the one that there is now.
    let has_ended = core.slots[slot as usize].key.has_ended_here();
    let ordinary = slot != COMMON && !has_ended && block::at(block).mapped() && block::at(block).clean();
    ordinary && core.arm(whole.as_deref_mut(), thread, slot, false).map(|front| thread.take_for(front)).is_some()
}

fn with_fronts() -> Option<&'static Thread> {
    if front::can_stop() && crate::memory::may_have_fronts() { this() } else { None }
}

/// The calling thread's next call finds no front by its handle.
pub fn forget_choices() {
    let thread = tls::get();
    if !std::ptr::eq(thread, &NOBODY) {
        thread.forget_choices();
    }
}

/// Takes other threads' blocks home that a front of this thread holds.
pub fn bring_home(front: &Front) {
    if let Some(cache) = crate::memory::numbered(front.cache) {
        cache.core.quiet().bring_home(front);
    }
}
