//! A communicator: from the search for the other ranks to its end.

use super::patience::{Deadline, Waited, wait};
use super::siblings::{self, Family};
use crate::base::sync_debug::{Kind, blocking};
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status};
use crate::event::pool::Pooled;
use crate::memory::captures;
use crate::runtime::collective::{self, Group, Id, Link, Work};
use crate::stream::Stream;
use crate::{device, event, runtime};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long any call waits for other ranks.
    pub timeout: Duration,
    /// A new communicator is given out while it still looks for the others.
    pub non_blocking: bool,
    /// Calls wait within NCCL, which knows no limit of time and is faster so.
    pub nccl_blocking: bool,
}

pub struct Communicator {
    link: Link,
    pub device: i32,
    pub timeout: Duration,
    pub nccl_blocking: bool,
    pub(super) family: Family,
    /// Splits that were begun.
    splits: AtomicU32,
    /// (rank, size), once it is known.
    place: OnceLock<(i32, i32)>,
    /// All ranks have found each other.
    complete: AtomicBool,
    /// Held by who calls the link.
    calls: Mutex<Calls>,
    /// How many have it, or wait for it, to wait for other ranks.
    busy: AtomicUsize,
    /// Why it can no longer be used, from the moment on in which that is so: who is in a call of it waits no longer.
    ended: OnceLock<Error>,
    /// What a sibling that has ended told: nothing that is under way can be believed.
    heard: OnceLock<Error>,
    /// It ended as the program wanted, with all its work done: nobody hears of it.
    is_over: AtomicBool,
}

/// What was given to streams.
#[derive(Default)]
pub(super) struct Calls {
    /// Recorded behind its last call.
    pub last: Option<Pooled>,
}

impl Calls {
    /// What a stream is given from here on comes behind the last call. A capture keeps its own order.
    pub fn precede(&self, stream: Stream) -> Result<()> {
        match &self.last {
            Some(last) if !stream.is_capturing().unwrap_or(true) => event::wait(last.raw(), stream),
            _ => Ok(()),
        }
    }

    /// After calls on a stream. Captured ones are done whenever their graph is replayed.
    pub fn mark(&mut self, stream: Stream) -> Result<()> {
        let _steady = captures::steady();
        if !stream.is_capturing().unwrap_or(true) {
            let event = self.last.take().map_or_else(|| Pooled::take(stream.device), Ok)?;
            event::record(event.raw(), stream)?;
            self.last = Some(event);
        }
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        watch::tell(|| Happening::MeetsNoMore { place: std::ptr::from_ref(self) as usize });
    }
}

/// A communicator, and the right to call its link.
pub(super) struct Held<'a> {
    pub communicator: &'a Communicator,
    pub calls: MutexGuard<'a, Calls>,
}

impl<'a> Held<'a> {
    fn of(communicator: &'a Communicator) -> Held<'a> {
        communicator.busy.fetch_add(1, Ordering::Relaxed);
        Held { communicator, calls: communicator.calls.lock() }
    }

    pub fn is_alone(&self) -> bool {
        self.communicator.place().is_ok_and(|(_, size)| size == 1)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.communicator.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until all links have done what they were told. They are asked in turn: those of one thread find each other only so. What goes
/// wrong with one of them ends all.
pub(super) fn settle(held: &mut [Held], deadline: Deadline, when: &str) -> Result<()> {
    let ask = || held.iter().try_fold(true, |ready, one| Ok(one.communicator.link.is_ready()? && ready));
    let error = match wait(deadline, || reason_of(held).is_some(), ask) {
        Ok(Waited::Done) => match held.iter().try_for_each(|one| one.communicator.learn_place()) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        },
        Ok(_) => late(deadline, when),
        Err(error) => error,
    };
    Err(fail(held, error))
}

/// Why they can no longer be used. A group that is cut off by the program says that, and not what its other ranks hear of it.
pub(super) fn reason_of<'a>(held: &'a [Held]) -> Option<&'a Error> {
    let ended = held.iter().find_map(|one| one.communicator.ended.get());
    ended.or_else(|| held.iter().find_map(|one| one.communicator.heard.get()))
}

/// Ends all with a reason: the one that there is, or this.
pub(super) fn fail(held: &mut [Held], error: Error) -> Error {
    let error = reason_of(held).cloned().unwrap_or(error);
    // All of them before their siblings hear of any.
    held.iter().for_each(|one| drop(one.communicator.say_ended(error.clone())));
    let ended = held.iter_mut().map(|one| one.communicator.fail(&mut one.calls, error.clone()));
    ended.reduce(|first, _| first).unwrap_or(error)
}

/// New ones, which nobody else has.
fn wait_until_made(new: &[Arc<Communicator>], timeout: Duration) -> Result<()> {
    let mut held: Vec<Held> = new.iter().map(|one| one.hold()).collect();
    settle(&mut held, Deadline::after(timeout), "while the communicator was being made")
}

pub fn unique_id() -> Result<Id> {
    collective::unique_id(runtime::runtime()?)
}

pub fn version() -> Result<i32> {
    collective::version(runtime::runtime()?)
}

/// One rank of `size`, on a device (-1: the current one). The other ranks are made by other threads, processes or machines.
pub fn init_rank(size: i32, id: &Id, rank: i32, device: i32, options: Options) -> Result<Arc<Communicator>> {
    super::group::refuse_inside("made")?;
    let begun = Communicator::begin(size, id, rank, device, options)?;
    if !options.non_blocking {
        wait_until_made(std::slice::from_ref(&begun), options.timeout)?;
    }
    Ok(begun)
}

/// All ranks of a communicator, on different devices of this process.
pub fn init_all(devices: &[i32], options: Options) -> Result<Vec<Arc<Communicator>>> {
    super::group::refuse_inside("made")?;
    let mut resolved = Vec::new();
    for index in devices {
        let index = device::listed(*index)?;
        if resolved.contains(&index) {
            return Err(
                Error::invalid_argument(format!("Device {index} is there twice; every rank has a device of its own.")).on_device(index)
            );
        }
        resolved.push(index);
    }
    if resolved.is_empty() {
        return Ok(Vec::new());
    }
    let (id, size) = (unique_id()?, resolved.len() as i32);
    let mut all = Vec::new();
    // NCCL's blocking communicators of one thread are made in a group, in which nothing but NCCL may fail: it would wait for the rest.
    resolved.iter().try_for_each(|device| device::Guard::new(*device).map(drop))?;
    let group = if options.nccl_blocking { Some(Group::begin(runtime::runtime()?)?) } else { None };
    let begun = resolved.iter().enumerate().try_for_each(|(rank, device)| {
        all.push(Communicator::begin(size, &id, rank as i32, *device, options)?);
        Ok(())
    });
    let begun = begun.and_then(|()| group.map_or(Ok(()), Group::end));
    let made = begun.and_then(|()| if options.non_blocking { Ok(()) } else { wait_until_made(&all, options.timeout) });
    if made.is_err() {
        all.iter().for_each(|one| drop(one.abort()));
    }
    made.map(|()| all)
}

fn late(deadline: Deadline, when: &str) -> Error {
    Error::new(
        Status::TCUDA_ERROR_TIMEOUT,
        format!(
            "The other ranks did not come within {}, {when}. Each rank has to make the same calls in the same order; one that ended makes none. \
             The communicator was aborted.",
            deadline.limit()
        ),
    )
}

/// Of ranks that want none: they get a part together, which ends at once. NCCL has a color for them, and crashes where their split is cut off:
/// it fails the part that they do not have.
const NO_COLOR: i32 = i32::MAX;

impl Communicator {
    /// How many ranks there may be: more than any machine room has.
    pub const MOST: i32 = 1 << 20;

    fn begin(size: i32, id: &Id, rank: i32, device: i32, options: Options) -> Result<Arc<Communicator>> {
        let most = Communicator::MOST;
        if !(1..=most).contains(&size) || !(0..size).contains(&rank) {
            return Err(Error::invalid_argument(format!(
                "Rank {rank} of {size}: there are 1 to {most} ranks, and they are numbered from 0."
            )));
        }
        let guard = device::Guard::new(device)?;
        let link = Link::begin(runtime::runtime()?, id, (size, rank), guard.device, options.nccl_blocking)?;
        let place = OnceLock::from((rank, size));
        Ok(Communicator::over(link, guard.device, options, Family::new(id), place))
    }

    fn over(link: Link, device: i32, options: Options, family: Family, place: OnceLock<(i32, i32)>) -> Arc<Communicator> {
        let Options { timeout, nccl_blocking, .. } = options;
        let new = Arc::new(Communicator {
            link,
            device,
            timeout,
            nccl_blocking,
            family,
            splits: AtomicU32::new(0),
            place,
            complete: AtomicBool::new(false),
            calls: Mutex::default(),
            busy: AtomicUsize::new(0),
            ended: OnceLock::new(),
            heard: OnceLock::new(),
            is_over: AtomicBool::new(false),
        });
        siblings::add(&new);
        // Who ended before it was known told others only.
        for other in siblings::of(&new).iter().filter(|other| !other.is_over.load(Ordering::Acquire)) {
            other.ended.get().into_iter().for_each(|error| new.hear(other, error));
        }
        new
    }

    /// (rank, size).
    pub fn place(&self) -> Result<(i32, i32)> {
        self.place.get().copied().ok_or_else(|| {
            let text = "The communicator still looks for its other ranks, and does not know its own yet. tcuda_communicator_query tells when it does.";
            Error::new(Status::TCUDA_ERROR_NOT_READY, text)
        })
    }

    /// The link is ready.
    fn learn_place(&self) -> Result<()> {
        self.complete.store(true, Ordering::Relaxed);
        if self.place.get().is_none() {
            let place = self.link.place()?;
            self.place.get_or_init(|| place);
        }
        Ok(())
    }

    pub(super) fn hold(&self) -> Held<'_> {
        Held::of(self)
    }

    /// The right to call the link for a moment. None: another thread waits for other ranks, or ends it.
    fn glance(&self) -> Option<MutexGuard<'_, Calls>> {
        loop {
            if let Some(calls) = self.calls.try_lock() {
                return Some(calls);
            }
            if self.busy.load(Ordering::Relaxed) > 0 || self.ended.get().is_some() {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// For a call of the link. An error if it has ended.
    fn usable(&self) -> Result<Held<'_>> {
        let mut held = self.hold();
        self.check_ended(&mut held.calls)?;
        Ok(held)
    }

    /// Why it can no longer be used.
    pub(super) fn reason(&self) -> Option<&Error> {
        self.ended.get().or(self.heard.get())
    }

    /// An error if it can no longer be used; then it ends.
    fn check_ended(&self, calls: &mut Calls) -> Result<()> {
        match (self.ended.get(), self.heard.get()) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(error)) => Err(self.fail(calls, error.clone())),
            (None, None) => Ok(()),
        }
    }

    /// It can no longer be used. The first reason stays; every later call hears it.
    fn say_ended(&self, error: Error) -> Error {
        self.ended.get_or_init(|| error.on_device(self.device)).clone()
    }

    /// Ends it with a reason; the one that stays. What NCCL says of a sibling's end is less than what that told.
    fn fail(&self, calls: &mut Calls, error: Error) -> Error {
        let error = self.say_ended(self.heard.get().cloned().unwrap_or(error));
        calls.last = None;
        self.let_go(&error);
        error
    }

    /// Whatever it is at comes to an end, as if it were done.
    fn let_go(&self, why: &Error) {
        if self.is_over.load(Ordering::Acquire) {
            return;
        }
        self.tell(why);
        // It ends in any case; what NCCL has to say of it is less than the reason.
        let _ = self.link.abort();
    }

    /// Its siblings.
    fn tell(&self, why: &Error) {
        siblings::of(self).iter().for_each(|other| other.hear(self, why));
    }

    /// That a sibling has ended. What that one heard itself it hands on.
    fn hear(&self, from: &Communicator, why: &Error) {
        self.heard.get_or_init(|| {
            let error = from.heard.get().cloned().unwrap_or_else(|| {
                let rank = from.place().map_or_else(|_| "A rank".into(), |(rank, _)| format!("Rank {rank}"));
                let text = format!("{rank} of the communicator, on device {}, has ended: {}", from.device, why.message);
                Error::new(Status::TCUDA_ERROR_REMOTE, text)
            });
            error.on_device(self.device)
        });
    }

    /// Within a group of the link's, with the device current.
    pub(super) fn post(&self, works: &[Work]) -> Result<()> {
        self.link.post(works)
    }

    /// Whether it is at nothing: false while it looks for the others, or another thread waits in a call of it. Err: what went wrong.
    pub fn query(&self) -> Result<bool> {
        let Some(mut calls) = self.glance() else { return self.look_aside() };
        self.check_ended(&mut calls)?;
        match self.link.is_ready() {
            Ok(true) => self.learn_place().map(|()| true),
            Ok(false) => Ok(false),
            Err(error) => Err(self.fail(&mut calls, error)),
        }
    }

    /// While another thread waits for the other ranks: in a loop that hears, or within NCCL.
    fn look_aside(&self) -> Result<bool> {
        match (self.ended.get(), self.heard.get().filter(|_| self.nccl_blocking)) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(error)) => Err(self.cut(error.clone())),
            (None, None) => Ok(false),
        }
    }

    /// Waits for a stream; what keeps it from going on ends the communicator, and lets it go on. So does the loss of its device.
    pub fn synchronize(&self, stream: Stream, timeout: Option<Duration>) -> Result<()> {
        let deadline = Deadline::after(timeout.unwrap_or(self.timeout));
        // The state is asked last too: work that failed may have let the stream go on.
        let ask = || {
            let lost = |error: Error| if error.status == Status::TCUDA_ERROR_DEVICE_LOST { self.cut(error) } else { error };
            let done = stream.query().map_err(lost)?;
            let Some(mut calls) = self.glance() else { return self.look_aside() };
            self.check_ended(&mut calls)?;
            match self.link.is_ready() {
                Ok(ready) => Ok(done && ready),
                Err(error) => Err(self.fail(&mut calls, error)),
            }
        };
        match blocking("cudaStreamQuery", Kind::Wait, || wait(deadline, || false, ask))? {
            Waited::Done => Ok(()),
            _ => Err(self.cut(late(deadline, "while the stream was waited for"))),
        }
    }

    /// Fails it, whatever another thread waits for in it; also where that is within NCCL, which lets it go then.
    fn cut(&self, error: Error) -> Error {
        let error = self.say_ended(error);
        if !self.nccl_blocking {
            return self.fail(&mut self.hold().calls, error);
        }
        match self.calls.try_lock() {
            Some(mut calls) => self.fail(&mut calls, error),
            None => {
                self.let_go(&error);
                error
            }
        }
    }

    /// Ends it and whatever it is at, also what another thread waits for.
    pub fn abort(&self) -> Result<()> {
        self.cut(aborted());
        Ok(())
    }

    /// Waits for its work, then ends it.
    pub(super) fn destroy(&self) -> Result<()> {
        let mut held = self.hold();
        if self.ended.get().is_some() {
            return Ok(());
        }
        // Nobody may have asked it since it found the others. Before that it made no call.
        let has_found = || self.heard.get().is_none() && matches!(self.link.is_ready(), Ok(true));
        if !self.complete.load(Ordering::Relaxed) && !has_found() {
            self.fail(&mut held.calls, destroyed());
            return Ok(());
        }
        self.check_ended(&mut held.calls)?;
        let deadline = Deadline::after(self.timeout);
        settle(std::slice::from_mut(&mut held), deadline, "for what it still had to do")?;
        if let Some(last) = held.calls.last.take() {
            // On a device that is lost nothing is waited for, and what others wait for does not come.
            let is_over = || match runtime::runtime()?.outside_capture(|| event::query(last.raw())) {
                Err(error) if device::is_lost(self.device, &error) => {
                    self.tell(&error);
                    Ok(true)
                }
                asked => asked,
            };
            let ask = || Ok(self.link.is_ready()? && is_over()?);
            let waited = blocking("cudaEventQuery", Kind::Driver, || wait(deadline, || self.reason().is_some(), ask));
            let error = match waited {
                Ok(Waited::Done) => None,
                Ok(_) => Some(late(deadline, "for what it still had to do")),
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                return Err(self.fail(&mut held.calls, error));
            }
            // What let it come to its end may be that.
            self.check_ended(&mut held.calls)?;
        }
        self.is_over.store(true, Ordering::Release);
        self.say_ended(destroyed());
        self.link.end()
    }

    /// A communicator of the ranks with the same color, in the order of their keys. None: no color, and the rank is in none of them.
    pub fn split(&self, color: Option<i32>, key: i32, non_blocking: bool) -> Result<Option<Arc<Communicator>>> {
        super::group::refuse_inside("split")?;
        if color.is_none() && non_blocking {
            return Err(Error::invalid_argument(
                "A rank without a color gets no communicator that could be asked whether the split is over, so it cannot go on before. Give it a \
                 color of its own.",
            ));
        }
        if color == Some(NO_COLOR) {
            return Err(Error::invalid_argument(format!("The color {NO_COLOR} stands for ranks without one: colors end before it.")));
        }
        let mut held = self.usable()?;
        settle(std::slice::from_mut(&mut held), Deadline::after(self.timeout), "before the split")?;
        let guard = device::Guard::new(self.device)?;
        let of_color = color.unwrap_or(NO_COLOR);
        let link = match self.link.split(of_color, key) {
            Ok(link) => link,
            Err(error) if error.status == Status::TCUDA_ERROR_NOT_SUPPORTED => return Err(error),
            Err(error) => return Err(self.fail(&mut held.calls, error)),
        };
        let family = self.family.part(self.splits.fetch_add(1, Ordering::Relaxed), of_color);
        drop((guard, held));
        let options = Options { timeout: self.timeout, non_blocking, nccl_blocking: self.nccl_blocking };
        let part = Communicator::over(link, self.device, options, family, OnceLock::new());
        if !non_blocking {
            // This one has counted it, those that did not come have not: they would never come to another one together.
            wait_until_made(std::slice::from_ref(&part), self.timeout).map_err(|error| self.cut(error))?;
        }
        match color {
            Some(_) => Ok(Some(part)),
            None => part.destroy().map(|()| None).map_err(|error| self.cut(error)),
        }
    }
}

fn destroyed() -> Error {
    Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, "The communicator was destroyed.")
}

fn aborted() -> Error {
    Error::new(Status::TCUDA_ERROR_INVALID_STATE, "The communicator was aborted; only tcuda_communicator_destroy takes it now.")
}
