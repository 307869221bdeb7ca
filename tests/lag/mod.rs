//! Streams that are as far behind the host as a test says, however fast the machine is.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tcuda::stream::Stream;

/// Who waits for longer waits for ever.
const LONG: Duration = Duration::from_secs(60);

/// Work of streams, numbered by the host's steps.
pub struct Lag {
    clock: Arc<Clock>,
    streams: Vec<Stream>,
    /// Of each stream, the steps that enqueued work on it.
    enqueued: Vec<Vec<u64>>,
    step: u64,
}

#[derive(Default)]
struct Clock(Mutex<Times>, Condvar);

#[derive(Default)]
struct Times {
    /// Work of steps up to this one may be done, and how much of each stream is.
    open: Vec<u64>,
    done: Vec<usize>,
}

/// One piece of work.
struct Work {
    clock: Arc<Clock>,
    stream: usize,
    step: u64,
}

unsafe extern "C" fn do_work(work: *mut c_void) {
    let Work { clock, stream, step } = *unsafe { Box::from_raw(work.cast::<Work>()) };
    let (mut times, _) = clock.1.wait_timeout_while(clock.0.lock().unwrap(), LONG, |times| times.open[stream] < step).unwrap();
    times.done[stream] += 1;
    clock.1.notify_all();
}

impl Lag {
    pub fn of(streams: &[Stream]) -> Lag {
        let times = Times { open: vec![0; streams.len()], done: vec![0; streams.len()] };
        let clock = Arc::new(Clock(Mutex::new(times), Condvar::new()));
        Lag { clock, streams: streams.to_vec(), enqueued: vec![Vec::new(); streams.len()], step: 1 }
    }

    /// A piece of work of this step, that only the next ones may let be done.
    pub fn enqueue(&mut self, stream: usize) {
        let entered = self.streams[stream].enter().unwrap();
        let work = Work { clock: self.clock.clone(), stream, step: self.step };
        unsafe { entered.runtime.launch_host_function(entered.raw, do_work, Box::into_raw(Box::new(work)).cast()) }.unwrap();
        self.enqueued[stream].push(self.step);
    }

    /// The host's next step. Comes back when each stream has done its work up to the step of its own that `done` gives for that.
    pub fn next(&mut self, done: impl Fn(u64, usize) -> u64) {
        let open: Vec<u64> = (0..self.streams.len()).map(|stream| done(self.step, stream)).collect();
        self.step += 1;
        self.open(open);
    }

    fn open(&self, open: Vec<u64>) {
        let goal: Vec<usize> = self.enqueued.iter().zip(&open).map(|(steps, open)| steps.partition_point(|step| step <= open)).collect();
        let mut times = self.clock.0.lock().unwrap();
        times.open = open;
        self.clock.1.notify_all();
        let behind = |times: &mut Times| times.done.iter().zip(&goal).any(|(done, goal)| done < goal);
        let (times, waited) = self.clock.1.wait_timeout_while(times, LONG, behind).unwrap();
        drop(times);
        assert!(!waited.timed_out() || std::thread::panicking(), "streams wait for each other");
    }
}

impl Drop for Lag {
    fn drop(&mut self) {
        self.open(vec![u64::MAX; self.streams.len()]);
    }
}
