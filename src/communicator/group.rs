//! Groups: calls of a thread that go to their devices together, at the end of the group, and until then not at all.

use super::one::{self, Communicator, Held};
use super::patience::Deadline;
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, few, process};
use crate::runtime::collective::{Call, Group, Work};
use crate::stream::Stream;
use crate::{device, memory, runtime};
use std::cell::RefCell;
use std::sync::Arc;

/// A call that was checked.
pub struct Entry {
    pub communicator: Arc<Communicator>,
    pub work: Work,
    pub stream: Stream,
}

/// Groups begun and not ended, and what was called in them.
struct Open {
    depth: usize,
    entries: Vec<Entry>,
    /// `process::run`: a shutdown ends the groups of all threads.
    run: u32,
}

thread_local! {
    static OPEN: RefCell<Open> = const { RefCell::new(Open { depth: 0, entries: Vec::new(), run: 0 }) };
}

/// Groups may lie within each other; the outermost one counts.
pub fn start() -> Result<()> {
    let begin = |open: &RefCell<Open>| {
        let mut open = open.borrow_mut();
        let now = Open { depth: 1, entries: Vec::new(), run: process::run() };
        if open.run == now.run {
            open.depth += 1;
            return None;
        }
        Some(std::mem::replace(&mut *open, now))
    };
    // What is left of one before a shutdown ends when it is not borrowed any more.
    OPEN.try_with(begin).map(drop).map_err(|_| {
        let text = "The thread is ending: no group can be begun on it any more.";
        Error::new(Status::TCUDA_ERROR_INVALID_STATE, text)
    })
}

fn depth() -> usize {
    let begun = |open: &Open| if open.run == process::run() { open.depth } else { 0 };
    OPEN.try_with(|open| begun(&open.borrow())).unwrap_or(0)
}

pub fn end() -> Result<()> {
    if depth() == 0 {
        let text = "No group was begun on this thread. tcuda_communicator_group_start begins one.";
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
    }
    submit(OPEN.with_borrow_mut(|open| {
        open.depth -= 1;
        if open.depth == 0 { std::mem::take(&mut open.entries) } else { Vec::new() }
    }))
}

pub fn add(entry: Entry) -> Result<()> {
    if depth() == 0 {
        return submit(vec![entry]);
    }
    OPEN.with_borrow_mut(|open| open.entries.push(entry));
    Ok(())
}

pub fn refuse_inside(what: &str) -> Result<()> {
    if depth() == 0 {
        return Ok(());
    }
    Err(Error::new(
        Status::TCUDA_ERROR_INVALID_STATE,
        format!(
            "Within a group no communicator can be {what}: end the group first. One thread makes those of several ranks by \
             tcuda_communicator_init_all, or with the option non_blocking."
        ),
    ))
}

fn submit(entries: Vec<Entry>) -> Result<()> {
    let Some(first) = entries.first() else { return Ok(()) };
    let deadline = Deadline::after(first.communicator.timeout);
    let mut order: Vec<&Arc<Communicator>> = Vec::new();
    for Entry { communicator, .. } in &entries {
        if !order.iter().any(|known| Arc::ptr_eq(known, communicator)) {
            order.push(communicator);
        }
    }
    // Every thread takes the locks in one order.
    few::sort_by_key(&mut order, |communicator| Arc::as_ptr(communicator));
    if order.iter().any(|communicator| communicator.nccl_blocking != order[0].nccl_blocking) {
        return Err(Error::invalid_argument("The communicators of a group have to agree in nccl_blocking. Nothing was enqueued."));
    }
    let mut works = Vec::new();
    for communicator in &order {
        let own = entries.iter().filter(|entry| Arc::ptr_eq(&entry.communicator, communicator));
        let own: Vec<Work> = own.map(|entry| entry.work).collect();
        check_own(communicator.place()?.0, &own)?;
        works.push(own);
    }
    let mut held: Vec<Held> = order.iter().map(|communicator| communicator.hold()).collect();
    // The other ranks may count on all of it: what goes wrong with one ends what it was for.
    if let Some(error) = one::reason_of(&held).cloned() {
        return Err(one::fail(&mut held, error));
    }
    one::settle(&mut held, deadline, "before the call")?;
    // Before the calls: whatever becomes of them, they may use it.
    for entry in &entries {
        memory::record_stream_of(entry.work.input, entry.stream)?;
        memory::record_stream_of(entry.work.output, entry.stream)?;
    }
    let mut guard = device::Guard::new(device::CURRENT)?;
    // Of several streams NCCL lets each wait for all; a rank that is alone copies at once.
    for one in held.iter().filter(|one| one.is_alone()) {
        streams_of(&entries, one).try_for_each(|stream| one.calls.precede(stream))?;
    }
    post(&mut guard, &held, &works).map_err(|error| one::fail(&mut held, error))?;
    if watch::any(watch::SANITIZER) {
        held.iter().try_for_each(|one| tell(one, &entries))?;
    }
    one::settle(&mut held, deadline, "at the call")?;
    held.iter_mut().try_for_each(|one| mark(one, &entries)).map_err(|error| one::fail(&mut held, error))
}

/// For the sanitizer. All calls of a communicator are in one order, and those of a group begin when all of its streams are there, and end for all.
#[cold]
fn tell(one: &Held, entries: &[Entry]) -> Result<()> {
    let (communicator, place) = (one.communicator, std::ptr::from_ref(one.communicator) as usize);
    let (rank, size) = communicator.place()?;
    let meet = || streams_of(entries, one).for_each(|stream| watch::tell(|| Happening::Meets { place, on: stream.place() }));
    // Those that came first learn of the last ones at the second time.
    meet();
    meet();
    for entry in entries.iter().filter(|entry| std::ptr::eq(&*entry.communicator, communicator)) {
        watch::accessed(Some(entry.stream.place()), &entry.work.accesses(rank, size as usize));
    }
    meet();
    meet();
    Ok(())
}

/// Behind the calls of a communicator.
fn mark(one: &mut Held, entries: &[Entry]) -> Result<()> {
    let mut streams = streams_of(entries, one);
    if !one.is_alone() {
        return streams.last().map_or(Ok(()), |stream| one.calls.mark(stream));
    }
    streams.next().map_or(Ok(()), |stream| one.calls.mark(stream))?;
    for stream in streams {
        one.calls.precede(stream)?;
        one.calls.mark(stream)?;
    }
    Ok(())
}

fn streams_of<'a>(entries: &'a [Entry], one: &Held<'a>) -> impl Iterator<Item = Stream> + use<'a> {
    let communicator = one.communicator;
    entries.iter().filter(move |entry| std::ptr::eq(&*entry.communicator, communicator)).map(|entry| entry.stream)
}

/// What a rank sends to itself it receives in the same group: nothing else could.
fn check_own(rank: i32, works: &[Work]) -> Result<()> {
    let sizes =
        |own: Call| -> Vec<usize> { works.iter().filter(|work| work.call == own).map(|work| work.count * work.wire.size()).collect() };
    let (sent, received) = (sizes(Call::Send { peer: rank }), sizes(Call::Recv { peer: rank }));
    if sent == received {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "Rank {rank} sends {sent:?} bytes to itself and receives {received:?}. Both stand in one group, as many and of the same sizes; nothing \
         was enqueued."
    )))
}

fn post(guard: &mut device::Guard, held: &[Held], works: &[Vec<Work>]) -> Result<()> {
    let group = Group::begin(runtime::runtime()?)?;
    for (one, works) in held.iter().zip(works) {
        guard.go(one.communicator.device)?;
        one.communicator.post(works)?;
    }
    group.end()
}
