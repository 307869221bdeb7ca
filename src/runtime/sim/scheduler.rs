//! Threads for the streams. A stream without work costs nothing; a thread without work ends after a while.

use super::super::table::{Code, RawStream, code};
use super::Sim;
use super::capture::Action;
use super::stream::{self, Job, Point, State, Work};
use super::thread;
use crate::base::spared;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Release},
};
use std::time::{Duration, Instant};

pub struct Scheduler {
    line: Mutex<Line>,
    /// For the threads: something is ready, or to be waited for.
    work: Condvar,
    /// For the host's threads that synchronise: something was finished.
    done: Condvar,
    /// How many captures are under way, for those who have no lock yet.
    pub captures: AtomicUsize,
}

pub(super) struct Line {
    pub state: State,
    pub workers: usize,
    /// A worker was woken or started and has not come yet. One is enough: it calls the next.
    coming: bool,
    /// Workers at a task. Host functions and patient work are not counted: they may wait for anything.
    at_work: usize,
    waiting_hosts: usize,
    /// When the shuffled order goes on.
    hold: Option<Instant>,
}

/// Tasks at a time.
const MOST_TASKS: usize = 4;
const MOST_WORKERS: usize = 512;
const IDLE: Duration = Duration::from_millis(500);

impl Scheduler {
    pub fn new(devices: usize, seed: Option<u64>) -> Scheduler {
        let line = Line { state: State::new(devices, seed), workers: 0, coming: false, at_work: 0, waiting_hosts: 0, hold: None };
        Scheduler { line: Mutex::new(line), work: Condvar::new(), done: Condvar::new(), captures: AtomicUsize::new(0) }
    }

    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }
}

/// What became of work that was to be done at once.
pub enum Now<F> {
    Done(Point),
    /// Something is before it.
    Later(F),
}

impl Sim {
    /// Does the work on this thread if the stream is idle and nothing shuffles.
    pub(super) fn try_now<F>(&'static self, stream: u64, device: usize, task: F) -> Now<F>
    where
        F: FnOnce(&'static Sim) -> Result<(), Code>,
    {
        let begun = self.scheduler.line().state.begin_now(stream);
        let Some(point) = begun else { return Now::Later(task) };
        self.attempt(device, || task(self));
        let mut line = self.scheduler.line();
        line.state.finish(stream, Instant::now());
        self.went_on(&mut line);
        Now::Done(point)
    }

    /// At once, or when its turn comes. None: the stream is being captured, and the work is a node, called `kind`.
    pub(super) fn submit<F>(&'static self, stream: u64, device: usize, kind: &'static str, task: F) -> Result<Option<Point>, Code>
    where
        F: Fn(&'static Sim) -> Result<(), Code> + Send + Sync + 'static,
    {
        let Some(task) = self.keep(stream, kind, task)? else { return Ok(None) };
        match self.try_now(stream, device, task) {
            Now::Done(point) => Ok(Some(point)),
            Now::Later(task) => self.enqueue(stream, Work::Task(Box::new(task)), Vec::new()).map(Some),
        }
    }

    /// The work again, unless a capture took it.
    pub(super) fn keep<F>(&'static self, stream: u64, kind: &'static str, task: F) -> Result<Option<F>, Code>
    where
        F: Fn(&'static Sim) -> Result<(), Code> + Send + Sync + 'static,
    {
        if self.scheduler.captures.load(Acquire) == 0 {
            return Ok(Some(task));
        }
        let state = &mut self.scheduler.line().state;
        if state.capture_of(stream).is_none() {
            return Ok(Some(task));
        }
        state.keep(stream, kind, || Action::Task(Arc::new(task)))?;
        Ok(None)
    }

    /// False: the stream is not being captured.
    pub(super) fn keep_action(&'static self, stream: u64, kind: &'static str, action: impl FnOnce() -> Action) -> Result<bool, Code> {
        if self.scheduler.captures.load(Acquire) == 0 {
            return Ok(false);
        }
        self.scheduler.line().state.keep(stream, kind, action)
    }

    pub(super) fn enqueue(&'static self, stream: u64, work: Work, after: Vec<Point>) -> Result<Point, Code> {
        let mut line = self.scheduler.line();
        let point = line.state.push(stream, work, after, Instant::now()).ok_or(code::INVALID_HANDLE)?;
        self.went_on(&mut line);
        Ok(point)
    }

    /// After anything that may have let streams go on.
    pub(super) fn went_on(&'static self, line: &mut Line) {
        if line.waiting_hosts > 0 {
            self.scheduler.done.notify_all();
        }
        self.call_worker(line);
    }

    /// Wakes or starts a thread if there is something for one.
    fn call_worker(&'static self, line: &mut Line) {
        let wanted = (line.state.has_ready() && line.at_work < self.most_tasks()) || line.state.next_delay().is_some();
        if !wanted || line.coming {
            return;
        }
        line.coming = self.scheduler.work.notify_one();
        if !line.coming && line.workers < MOST_WORKERS {
            line.coming = spared::start_thread("tcuda-sim", move || self.worker()).is_ok();
            line.workers += usize::from(line.coming);
        }
    }

    /// In a shuffled order the turns alone decide.
    fn most_tasks(&self) -> usize {
        if self.options.seed.is_some() { 1 } else { MOST_TASKS }
    }

    fn worker(&'static self) {
        let mut line = self.scheduler.line();
        line.coming = false;
        loop {
            if self.work_once(&mut line) {
                continue;
            }
            let idle_until = Instant::now() + IDLE;
            let until = [line.state.next_delay(), line.hold].into_iter().flatten().min().unwrap_or(idle_until);
            let late = self.scheduler.work.wait_until(&mut line, until).timed_out();
            line.coming &= late;
            if late && until == idle_until && !line.state.has_ready() && line.state.next_delay().is_none() {
                line.workers -= 1;
                return;
            }
        }
    }

    /// False: nothing can be done now.
    fn work_once(&'static self, line: &mut MutexGuard<'_, Line>) -> bool {
        let now = Instant::now();
        line.state.end_delays(now);
        if line.waiting_hosts > 0 {
            self.scheduler.done.notify_all();
        }
        if !line.state.has_ready() || line.at_work >= self.most_tasks() || self.holds_still(line, now) {
            return false;
        }
        let Some(job) = line.state.take() else { return false };
        let counts = usize::from(matches!(job.work, Work::Task(_)));
        line.at_work += counts;
        self.call_worker(line);
        let stream = job.stream;
        MutexGuard::unlocked(line, || self.run(job));
        line.at_work -= counts;
        line.state.finish(stream, Instant::now());
        self.went_on(line);
        true
    }

    /// A shuffled order gives the host time to get ahead, unless the host waits.
    fn holds_still(&self, line: &mut Line, now: Instant) -> bool {
        let Some(shuffle) = &mut line.state.shuffle else { return false };
        let until = *line.hold.get_or_insert_with(|| now + shuffle.hold());
        let holds = now < until && line.waiting_hosts == 0;
        if !holds {
            line.hold = None;
        }
        holds
    }

    fn run(&'static self, job: Job) {
        match job.work {
            _ if job.void => {}
            Work::Task(task) | Work::Patient(task) => self.attempt(job.device, || task(self)),
            Work::Host { function, data } => thread::in_host_function(|| unsafe { function(data as *mut _) }),
            Work::Nothing | Work::Record { .. } | Work::Await { .. } | Work::Delay(_) => {}
        }
    }

    /// Work that fails takes its device with it, as on a GPU.
    fn attempt(&'static self, device: usize, task: impl FnOnce() -> Result<(), Code>) {
        if self.devices[device].check().is_err() {
            return;
        }
        let outcome = catch_unwind(AssertUnwindSafe(task)).unwrap_or(Err(code::LAUNCH_FAILURE));
        if let Err(code) = outcome {
            self.lose(device, code);
        }
    }

    /// From now on every call on the device answers the code.
    pub fn lose(&'static self, device: usize, code: Code) {
        self.devices[device].lose(code);
        let mut line = self.scheduler.line();
        line.state.lose(device, Instant::now());
        self.went_on(&mut line);
    }

    /// Waits on this thread until all points are reached.
    pub(super) fn wait_for(&'static self, points: &[Point]) {
        let mut line = self.scheduler.line();
        line.waiting_hosts += 1;
        if self.options.seed.is_some() {
            // Who holds still stops doing so.
            self.scheduler.work.notify_all();
        }
        while !points.iter().all(|point| line.state.has_reached(*point)) {
            // Where no thread could be started this one does the work.
            if line.workers > 0 || !self.work_once(&mut line) {
                let until = line.state.next_delay().filter(|_| line.workers == 0);
                match until {
                    Some(until) => drop(self.scheduler.done.wait_until(&mut line, until)),
                    None => self.scheduler.done.wait(&mut line),
                }
            }
        }
        line.waiting_hosts -= 1;
    }

    // ---- streams

    /// The stream that a handle means on this thread, and its device. Err: there is none, or its device is lost.
    pub(super) fn stream(&'static self, raw: RawStream) -> Result<(u64, usize), Code> {
        let id = match raw {
            0 | 1 => return self.current().map(|device| (self.scheduler.line().state.legacy[device], device)),
            2 => thread::default_stream(self, self.current()?),
            _ => stream::stream_id(raw).ok_or(code::INVALID_HANDLE)?,
        };
        let line = self.scheduler.line();
        let device = line.state.stream(id).map(|stream| stream.device).ok_or(code::INVALID_HANDLE)?;
        line.state.refuse_detached(id)?;
        drop(line);
        self.devices[device].activate()?;
        Ok((id, device))
    }

    pub(super) fn make_stream(&self, device: usize, flags: u32, priority: i32, counted: bool) -> u64 {
        self.scheduler.line().state.add_stream(device, flags, priority, counted)
    }

    pub(super) fn retire_stream(&self, id: u64) {
        let mut line = self.scheduler.line();
        line.state.destroy_stream(id);
        self.scheduler.captures.store(line.state.captures.len(), Release);
    }

    pub fn stream_is_done(&'static self, id: u64) -> bool {
        self.scheduler.line().state.end_of(id).is_empty()
    }

    pub fn synchronize_stream(&'static self, id: u64) {
        let line = self.scheduler.line();
        let (points, device) = (line.state.end_of(id), line.state.streams.get(&id).map(|stream| stream.device));
        drop(line);
        if !points.is_empty() {
            self.wait_for(&points);
        }
        if let Some(device) = device {
            self.memory.trim_to_threshold(device);
        }
    }

    pub fn synchronize_device(&'static self, device: usize) {
        self.wait_for_device(device);
        self.memory.trim_to_threshold(device);
    }

    /// As calls do that wait and are no synchronisation.
    pub fn wait_for_device(&'static self, device: usize) {
        let points = self.scheduler.line().state.end_of_device(device);
        if !points.is_empty() {
            self.wait_for(&points);
        }
    }
}
