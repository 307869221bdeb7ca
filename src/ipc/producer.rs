//! What this process exports, to whom, and the thread that answers those who import it. The thread and its socket are there while
//! something is exported.

use super::blob::{Blob, Secret, secret};
use super::event::Mark;
use super::socket::{self, Bell, MOST_FILES, Peer, Received, Socket};
use super::wire::{Answer, LONGEST, Opened, Request, Taken};
use super::{Stats, refuse_capture};
use crate::base::due::Due;
use crate::base::{Error, Result, Status, spared, watch};
use crate::device;
use crate::memory::{self, Backed, Hold, Part};
use crate::runtime::{self, Address, Runtime};
use crate::stream::Stream;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

struct Export {
    hold: Hold,
    address: Address,
    size: usize,
    taken: Taken,
    parts: Vec<Part>,
    /// What `taken.event` is a name for.
    mark: Option<Mark>,
    /// Imports for which the memory is kept though it was freed.
    owed: u32,
    /// Imports that are not closed.
    uses: u64,
    withdrawn: bool,
}

impl Export {
    /// True for as long as anybody may import it, and at any moment: a block may be freed while others are heard.
    fn is_open(&self) -> bool {
        !self.withdrawn && !self.hold.is_freed()
    }

    fn is_over(&self) -> bool {
        !self.is_open() && self.owed == 0 && self.uses == 0
    }
}

/// A process that imports.
struct Client {
    number: u64,
    socket: Arc<Socket>,
    peer: Arc<Peer>,
    uses: HashMap<Secret, u64>,
    /// What its last take used up a promise of.
    promised: Option<Secret>,
    /// Its connection broke while it used memory: as soon as the process is gone, and its work on devices with it, so are its uses.
    gone: bool,
}

struct Server {
    name: Secret,
    listener: Arc<Socket>,
    bell: Arc<Bell>,
}

struct State {
    server: Option<Server>,
    exports: BTreeMap<Secret, Export>,
    /// They, by the start of their block.
    by_block: BTreeSet<(Address, Secret)>,
    clients: Vec<Client>,
    last_client: u64,
    /// Of exports that are over: ended where the driver may be called.
    marks: Vec<Mark>,
    /// Exports with marks that were not past when somebody looked, and when it is looked again.
    marked: Vec<Secret>,
    looks: Due,
    /// Exports that may be over since somebody looked.
    changed: Vec<Secret>,
    /// Somebody waits to be accepted, and the process has no room for another file.
    refused: bool,
}

/// The number of a client for imports of the process itself.
const SELF: u64 = 0;

static STATE: Mutex<State> = Mutex::new(State {
    server: None,
    exports: BTreeMap::new(),
    by_block: BTreeSet::new(),
    clients: Vec::new(),
    last_client: SELF,
    marks: Vec::new(),
    marked: Vec::new(),
    looks: Due::new(),
    changed: Vec::new(),
    refused: false,
});
/// Taken with the state, and held on without it.
static ENDING: Mutex<()> = Mutex::new(());
/// Where the exported blocks start that were freed since somebody looked. For a moment, with or without the state.
static FREED: Mutex<Vec<Address>> = Mutex::new(Vec::new());

/// Makes part of a block known to other processes. What comes before on the stream comes before what they do with it.
pub fn export(address: Address, size: usize, owed: u32, stream: Stream) -> Result<Blob> {
    super::begin();
    if address == 0 || size == 0 {
        return Err(Error::invalid_argument("There is nothing to export: the pointer is NULL, or the size is 0."));
    }
    refuse_capture(stream, "tcuda_ipc_export")?;
    let hold = memory::hold(address)?.ok_or_else(|| {
        let hint = if super::consumer::is_imported(address) {
            "it was imported from another process: that process exports it to others too"
        } else {
            "export what tcuda_malloc_cached or a memory pool of tcuda gave"
        };
        let text = format!("0x{address:x} lies in no block of tcuda's device memory; {hint}.");
        Error::new(Status::TCUDA_ERROR_INVALID_POINTER, text)
    })?;
    let room = hold.size - (address - hold.address).min(hold.size);
    if size > room {
        return Err(Error::invalid_argument(format!(
            "{size} bytes at 0x{address:x} are more than the block at 0x{:x} has from there on: {room} of its {} bytes.",
            hold.address, hold.size
        )));
    }
    if stream.device != hold.device {
        return Err(Error::invalid_argument(format!(
            "The stream is on device {}, the memory at 0x{address:x} on device {}. Give a stream of the memory's own device.",
            stream.device, hold.device
        )));
    }
    let runtime = runtime::runtime()?;
    let uuid = device::properties(hold.device)?.uuid;
    let plain = |base: Address, span: usize| {
        let _guard = device::Guard::new(hold.device)?;
        let handle = runtime.outside_capture(|| runtime.ipc_mem_handle(base)).map_err(|error| cannot(error, "segment"))?;
        Ok((base, span, Opened::Plain(handle), Vec::new()))
    };
    let (base, span, memory, parts) = match hold.backing(address, address + size)? {
        Backed::Plain(base, span) => plain(base, span)?,
        Backed::Provided => {
            // A handle stands for the whole that the driver gave, from its start.
            let (base, span) = whole(runtime, &hold, address)?;
            if address + size > base + span {
                let text = "The block lies in several allocations of the driver, which has no handle for them together.";
                return Err(Error::not_supported(text).on_device(hold.device));
            }
            plain(base, span)?
        }
        Backed::Virtual(parts) => {
            let first = parts.first().ok_or_else(|| Error::internal("A block in use has no memory."))?;
            // Whether it can be done at all; each that imports it gets files of its own.
            runtime.outside_capture(|| runtime.mem_export(first.handle)).map_err(|error| cannot(error, "page"))?;
            let span = parts.iter().map(|part| part.size).sum();
            (first.address, span, Opened::Virtual(parts.len() as u32), parts)
        }
    };
    let name = secret()?;
    let mark = Mark::on(stream)?;
    let export = Export {
        taken: Taken {
            uuid,
            span: span as u64,
            offset: (address - base) as u64,
            size: size as u64,
            memory,
            event: mark.as_ref().and_then(|mark| mark.handle),
        },
        hold,
        address,
        size,
        parts,
        mark,
        owed,
        uses: 0,
        withdrawn: false,
    };
    let mut state = Locked::new();
    let producer = match state.serve() {
        Ok(producer) => producer,
        Err(error) => {
            state.marks.extend(export.mark);
            return Err(error);
        }
    };
    state.by_block.insert((export.hold.address, name));
    state.marked.extend(export.mark.is_some().then_some(name));
    state.exports.insert(name, export);
    state.end_past_marks();
    state.changed.push(name);
    drop(state);
    Ok(Blob { producer, export: name, process: std::process::id() as i32 })
}

/// What the driver gave, around an address: its start and size.
fn whole(runtime: &Runtime, hold: &Hold, address: Address) -> Result<(Address, usize)> {
    let _guard = device::Guard::new(hold.device)?;
    runtime.outside_capture(|| runtime.address_range(address)).map_err(|error| cannot(error, "allocation"))
}

fn cannot(error: Error, what: &str) -> Error {
    error.context(format!("The driver gives no handle for the {what} that the block lies in"))
}

/// No new imports; what is imported stays.
pub fn withdraw(blob: &Blob) -> Result<()> {
    let mut state = Locked::new();
    let Some(export) = state.exports.get_mut(&blob.export).filter(|export| export.is_open() || export.owed > 0) else {
        let text = "This process exports nothing by this handle: it was withdrawn, its memory was freed, or another process exported it.";
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text));
    };
    (export.owed, export.withdrawn) = (0, true);
    state.changed.push(blob.export);
    Ok(())
}

/// Learns which consumers gave back or ended. True: memory that was kept for them is free.
pub fn collect() -> bool {
    let mut state = Locked::new();
    let before = state.exports.len();
    state.hear_all();
    state.exports.len() < before
}

/// An exported block was freed.
pub fn block_freed(address: Address) {
    FREED.lock().push(address);
    // Who has the lock may have looked before, and another one may be freed while it is here.
    while has_notes()
        && let Some(mut state) = STATE.try_lock()
    {
        state.tidy();
        if let Some(server) = state.server.as_ref().filter(|_| !state.marks.is_empty()) {
            server.bell.ring();
        }
    }
}

fn has_notes() -> bool {
    !FREED.lock().is_empty()
}

/// The state; when it is let go, what was left to be done without it is done.
struct Locked(Option<MutexGuard<'static, State>>);

impl Locked {
    fn new() -> Locked {
        Locked(Some(STATE.lock()))
    }
}

impl std::ops::Deref for Locked {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_deref().expect("held until it is dropped")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_deref_mut().expect("held until it is dropped")
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        while let Some(mut state) = self.0.take() {
            state.tidy();
            let marks = std::mem::take(&mut state.marks);
            // Who comes next finds them ended.
            let ending = ENDING.lock();
            drop(state);
            marks.into_iter().for_each(Mark::end);
            drop(ending);
            // Freed while it was locked?
            if has_notes() {
                self.0 = STATE.try_lock();
            }
        }
    }
}

/// What this very process exported.
pub struct Own {
    pub address: Address,
    pub size: usize,
    pub device: i32,
    /// Start and size of the block.
    pub block: (Address, usize),
}

/// An import by this very process of what it exported itself.
pub fn take_own(name: &Secret, stream: Stream) -> Result<Option<Own>> {
    let mut state = Locked::new();
    let Some((export, promised)) = state.take(SELF, name) else { return Ok(None) };
    let Export { hold, address, size, .. } = export;
    let found = Own { address: *address, size: *size, device: hold.device, block: (hold.address, hold.size) };
    let waits = export.mark.as_ref().map_or(Ok(()), |mark| mark.holds_up(stream));
    if waits.is_err() {
        state.give(SELF, name, promised);
    }
    waits.map(|()| Some(found))
}

pub fn give_own(name: &Secret) {
    Locked::new().give(SELF, name, false);
}

pub fn count(stats: &mut Stats) {
    let mut state = Locked::new();
    state.tidy();
    for export in state.exports.values() {
        stats.exported += 1;
        stats.exported_bytes += export.size as u64;
        stats.taken += export.uses;
        if !export.is_open() {
            stats.kept += 1;
            stats.kept_bytes += export.size as u64;
        }
    }
    stats.consumers = state.clients.iter().filter(|client| !client.uses.is_empty()).count() as u64;
}

pub fn shutdown() {
    let mut state = Locked::new();
    let exports = std::mem::take(&mut state.exports);
    state.by_block.clear();
    state.marked.clear();
    state.stop();
    state.marks.extend(exports.into_values().filter_map(|export| export.mark));
}

impl State {
    /// The name under which this process listens, from now on at the latest.
    fn serve(&mut self) -> Result<Secret> {
        if let Some(server) = &self.server {
            return Ok(server.name);
        }
        let name = secret()?;
        let (listener, bell) = (Arc::new(Socket::listen(&name)?), Arc::new(Bell::new()?));
        let waits = bell.clone();
        spared::start_thread("tcuda-ipc", move || answer(name, &waits))
            .map_err(|error| Error::io("Starting the thread that answers processes which import memory", &error))?;
        self.server = Some(Server { name, listener, bell });
        Ok(name)
    }

    /// One use more of an export, and whether that used up one that it was kept for. None: there is no such export any more.
    fn take(&mut self, client: u64, name: &Secret) -> Option<(&Export, bool)> {
        let export = self.exports.get_mut(name).filter(|export| export.is_open() || export.owed > 0)?;
        let promised = export.owed > 0;
        export.owed -= u32::from(promised);
        export.uses += 1;
        if let Some(client) = self.clients.iter_mut().find(|known| known.number == client) {
            *client.uses.entry(*name).or_default() += 1;
            client.promised = promised.then_some(*name);
        }
        Some((export, promised))
    }

    /// One use less. `promised`: it came to nothing, and what it used up is owed again.
    fn give(&mut self, client: u64, name: &Secret, promised: bool) {
        if client != SELF {
            let Some(client) = self.clients.iter_mut().find(|known| known.number == client) else { return };
            let Some(uses) = client.uses.get_mut(name) else { return };
            *uses -= 1;
            if *uses == 0 {
                client.uses.remove(name);
            }
        }
        if let Some(export) = self.exports.get_mut(name) {
            export.uses = export.uses.saturating_sub(1);
            export.owed += u32::from(promised && !export.withdrawn);
            self.changed.push(*name);
        }
    }

    /// A mark that is past holds nobody up: what is exported time and again, and never freed, does not keep them all.
    fn end_past_marks(&mut self) {
        // Of order within this process the sanitizer knows by them.
        if watch::any(watch::SANITIZER) || !self.looks.is_due(self.marked.len()) {
            return;
        }
        let mut marked = std::mem::take(&mut self.marked);
        marked.retain(|name| {
            let Some(export) = self.exports.get_mut(name) else { return false };
            // Who uses it may be about to open its mark.
            let Some(mark) = export.mark.take_if(|mark| export.uses == 0 && mark.is_past()) else { return export.mark.is_some() };
            export.taken.event = None;
            self.marks.push(mark);
            false
        });
        self.looks = Due::looked(marked.len());
        self.marked = marked;
    }

    /// Drops what is over.
    fn tidy(&mut self) {
        let freed = std::mem::take(&mut *FREED.lock());
        for block in freed {
            let there = self.by_block.range((block, Secret::default())..=(block, [u8::MAX; 16]));
            self.changed.extend(there.map(|(_, name)| *name));
        }
        if self.changed.is_empty() {
            return;
        }
        for name in std::mem::take(&mut self.changed) {
            if self.exports.get(&name).is_some_and(Export::is_over)
                && let Some(export) = self.exports.remove(&name)
            {
                self.by_block.remove(&(export.hold.address, name));
                self.marks.extend(export.mark);
            }
        }
        // Its thread ends it, unless there is another export by then.
        if self.exports.is_empty()
            && let Some(server) = &self.server
        {
            server.bell.ring();
        }
    }

    /// No consumer is heard any more: all see the end at once, though the thread may still wait on their sockets.
    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.listener.end();
            self.clients.drain(..).for_each(|client| client.socket.end());
            server.bell.ring();
        }
    }

    /// What gave back or ended is known then, and what is over has gone.
    fn hear_all(&mut self) {
        self.tidy();
        self.attend();
        self.tidy();
    }

    /// Hears all who have something to say, and misses those who are gone.
    fn attend(&mut self) {
        let accept = |server: &Server| server.listener.accept();
        while let Some(socket) = self.server.as_ref().map_or(Ok(None), accept).unwrap_or_else(|()| {
            self.refused = true;
            None
        }) {
            // Of another user: closed at once.
            let Some(peer) = socket.peer() else { continue };
            self.last_client += 1;
            let client = Client {
                number: self.last_client,
                socket: Arc::new(socket),
                peer: Arc::new(peer),
                uses: HashMap::new(),
                promised: None,
                gone: false,
            };
            self.clients.push(client);
            // Its thread listens to it as well, whoever let it in.
            if let Some(server) = &self.server {
                server.bell.ring();
            }
        }
        let numbers: Vec<u64> = self.clients.iter().map(|client| client.number).collect();
        numbers.into_iter().for_each(|number| self.hear(number));
        let mut over = Vec::new();
        self.clients.retain(|client| {
            let stays = if client.gone { client.peer.watch().is_some() && !client.uses.is_empty() } else { true };
            let stays = stays && !client.peer.has_ended();
            if !stays {
                over.extend(client.uses.iter().map(|(name, uses)| (*name, *uses)));
            }
            stays
        });
        for (name, uses) in over {
            if let Some(export) = self.exports.get_mut(&name) {
                export.uses = export.uses.saturating_sub(uses);
                self.changed.push(name);
            }
        }
    }

    /// What is there of one client, who may say more for as long as he likes.
    fn hear(&mut self, number: u64) {
        /// The kernel keeps fewer messages of one.
        const MOST: usize = 1024;
        let Some(client) = self.clients.iter().find(|client| client.number == number && !client.gone) else { return };
        let socket = client.socket.clone();
        let (mut bytes, mut files) = ([0; LONGEST], Vec::new());
        for _ in 0..MOST {
            let heard = match socket.receive(&mut bytes, &mut files) {
                Received::Bytes(size) => Request::read(&bytes[..size]),
                Received::Nothing => return,
                Received::End | Received::Cut => None,
            };
            // Nobody sends files here.
            files.clear();
            let answered = match heard {
                Some(Request::Take(name)) => {
                    let answer = self.take(number, &name).map_or(Answer::Unknown, |(export, _)| Answer::Taken(export.taken.clone()));
                    socket.send(&answer.write(), &[])
                }
                Some(Request::Parts(name, from)) => {
                    let (answer, files) = self.parts(number, &name, from as usize);
                    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                    // The kernel lets only so many files be under way.
                    socket.send(&answer.write(), &files) || {
                        let why = Error::system("Sending the files that stand for the memory").message;
                        socket.send(&Answer::Failed(why.into_owned()).write(), &[])
                    }
                }
                Some(Request::Give(name)) => {
                    self.give(number, &name, false);
                    true
                }
                Some(Request::Untake(name)) => {
                    let client = self.clients.iter_mut().find(|client| client.number == number);
                    let promised = client.and_then(|client| client.promised.take());
                    self.give(number, &name, promised == Some(name));
                    true
                }
                None => false,
            };
            if !answered {
                // Who still listens hears of it, and does not wait for an answer.
                socket.end();
                if let Some(client) = self.clients.iter_mut().find(|client| client.number == number) {
                    client.gone = true;
                }
                return;
            }
        }
    }

    /// Files for some pages of an export that the client uses.
    fn parts(&self, client: u64, name: &Secret, from: usize) -> (Answer, Vec<OwnedFd>) {
        let uses = self.clients.iter().any(|known| known.number == client && known.uses.contains_key(name));
        let Some(export) = self.exports.get(name).filter(|export| uses && from < export.parts.len()) else {
            return (Answer::Unknown, Vec::new());
        };
        let parts: Vec<&Part> = export.parts[from..].iter().take(MOST_FILES).collect();
        // This thread may never have had a device.
        let files = device::Guard::new(export.hold.device).and_then(|_guard| {
            let runtime = runtime::runtime()?;
            runtime.outside_capture(|| parts.iter().map(|part| runtime.mem_export(part.handle)).collect())
        });
        match files {
            Ok(files) => (Answer::Parts(parts.iter().map(|part| part.size as u64).collect()), files),
            Err(error) => (Answer::Failed(error.message.into_owned()), Vec::new()),
        }
    }
}

/// The thread.
fn answer(name: Secret, bell: &Bell) {
    const PATIENCE: Duration = Duration::from_millis(20);
    loop {
        let (sockets, peers, refused) = {
            let mut state = Locked::new();
            state.hear_all();
            // A shutdown ended it; another one may have begun since.
            if state.server.as_ref().is_none_or(|server| server.name != name) {
                return;
            }
            if state.exports.is_empty() {
                return state.stop();
            }
            let Some(server) = &state.server else { return };
            let heard = state.clients.iter().filter(|client| !client.gone).map(|client| client.socket.clone());
            let sockets: Vec<Arc<Socket>> = std::iter::once(server.listener.clone()).chain(heard).collect();
            let peers: Vec<Arc<Peer>> = state.clients.iter().map(|client| client.peer.clone()).collect();
            (sockets, peers, std::mem::take(&mut state.refused))
        };
        if refused {
            std::thread::sleep(PATIENCE);
        }
        let watched = sockets.iter().map(|socket| socket.as_fd()).chain(peers.iter().filter_map(|peer| peer.watch()));
        socket::wait(&watched.chain([bell.as_fd()]).collect::<Vec<_>>());
        bell.silence();
    }
}
