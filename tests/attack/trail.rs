//! What each thread did last, which a failure prints.

use crate::plan::Plan;
use std::cell::Cell;
use std::panic;
use std::sync::{Mutex, OnceLock};

/// Of these are told so many.
const TOLD: usize = 40;

thread_local! {
    /// Which of the attack's threads this is; 0: the one that starts the others and looks at rests.
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

struct Trails {
    of: Vec<Mutex<Vec<String>>>,
    verbose: bool,
}

static TRAILS: OnceLock<Trails> = OnceLock::new();

/// From now on whatever panics, on whichever thread, tells what the attack is and what its threads did, and ends the process.
pub fn begin(plan: &'static Plan) {
    let verbose = std::env::var_os("TCUDA_ATTACK_VERBOSE").is_some();
    TRAILS.get_or_init(|| Trails { of: (0..=plan.threads).map(|_| Mutex::default()).collect(), verbose });
    enter(0);
    panic::set_hook(Box::new(move |panicked| {
        eprintln!("FAILED {plan}\n{panicked}");
        // A host function runs on a thread of the device: nobody knows whose it is.
        let threads = THREAD.get().map_or(0..=plan.threads, |thread| thread..=thread);
        threads.for_each(tell);
        unsafe { libc::_exit(1) }
    }));
}

fn tell(thread: usize) {
    let Some(trails) = TRAILS.get() else { return };
    eprintln!("thread {thread}, last:");
    // The thread itself holds it where it panics in the midst of noting.
    if let Ok(trail) = trails.of[thread].try_lock() {
        trail.iter().skip(trail.len().saturating_sub(TOLD)).for_each(|line| eprintln!("    {line}"));
    }
}

pub fn enter(thread: usize) {
    THREAD.set(Some(thread));
}

pub fn add(line: String) {
    let (Some(trails), Some(thread)) = (TRAILS.get(), THREAD.get()) else { return };
    if trails.verbose {
        eprintln!("[{thread}] {line}");
    }
    trails.of[thread].lock().unwrap().push(line);
}

/// All threads' trails, for one that stands still.
pub fn tell_all() {
    (0..TRAILS.get().map_or(0, |trails| trails.of.len())).for_each(tell);
}

/// How much was noted so far.
pub fn length() -> usize {
    TRAILS.get().map_or(0, |trails| trails.of.iter().map(|trail| trail.try_lock().map_or(0, |trail| trail.len())).sum())
}

macro_rules! note {
    ($($part:tt)*) => { crate::trail::add(format!($($part)*)) };
}
pub(crate) use note;
