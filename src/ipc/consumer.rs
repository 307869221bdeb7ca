//! What this process has imported: from whom, and where it is mapped.

use super::blob::{Blob, Secret};
use super::producer::{self, Own};
use super::socket::{self, MOST_FILES, Peer, Received, Socket};
use super::wire::{Answer, LONGEST, Opened, Request, Taken};
use super::{Stats, event, refuse_capture};
use crate::base::watch::{self, Happening};
use crate::base::{Error, Result, Status, insist};
use crate::device;
use crate::memory;
use crate::runtime::table::{IpcHandle, MemAccess};
use crate::runtime::{self, Address, Runtime};
use crate::stream::Stream;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A process that memory was imported from.
struct Producer {
    name: Secret,
    socket: Socket,
    peer: Peer,
    /// One talks, maps and unmaps at a time. The segments that are open, which are opened once.
    turn: Mutex<Vec<Segment>>,
}

struct Segment {
    handle: IpcHandle,
    base: Address,
    /// Of what was imported of it.
    end: Address,
    uses: usize,
}

/// How memory got here.
#[derive(Clone, Copy)]
enum Mapped {
    /// It is this process's own: start and size of the block.
    Own(Address, usize),
    /// By cudaIpcOpenMemHandle: the segment's start.
    Plain(Address),
    /// Start and size of addresses that pages of another process are mapped to.
    Virtual(Address, usize),
}

struct Import {
    /// None: this process.
    producer: Option<Arc<Producer>>,
    export: Secret,
    size: usize,
    device: i32,
    mapped: Mapped,
    uses: usize,
}

/// Of a producer, by the address of its record here, and of its export.
type Source = (usize, Secret);

fn source(producer: &Arc<Producer>, export: &Secret) -> Source {
    (Arc::as_ptr(producer).addr(), *export)
}

impl Import {
    /// None: it is of this process.
    fn source(&self) -> Option<Source> {
        self.producer.as_ref().map(|producer| source(producer, &self.export))
    }

    fn is_from(&self, producer: &Option<Arc<Producer>>) -> bool {
        match (&self.producer, producer) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

struct Imports {
    /// Several exports may lie at one address.
    by_address: BTreeMap<Address, Vec<Import>>,
    /// Where each is that is of another process: it is mapped once.
    by_source: BTreeMap<Source, Address>,
    producers: Vec<Weak<Producer>>,
}

static IMPORTS: Mutex<Imports> = Mutex::new(Imports { by_address: BTreeMap::new(), by_source: BTreeMap::new(), producers: Vec::new() });

/// Another process's memory: address, size and device here. What comes next on the stream waits for what came before the export.
pub fn import(blob: &Blob, stream: Stream) -> Result<(Address, usize, i32)> {
    super::begin();
    refuse_capture(stream, "tcuda_ipc_import")?;
    if let Some(Own { address, size, device, block }) = producer::take_own(&blob.export, stream)? {
        let import = Import { producer: None, export: blob.export, size, device, mapped: Mapped::Own(block.0, block.1), uses: 1 };
        IMPORTS.lock().insert(address, import);
        if is_freed(address) {
            watch::tell(|| Happening::Kept { address: block.0 });
        }
        return Ok((address, size, device));
    }
    let producer = producer_of(blob)?;
    let mut segments = producer.turn.lock();
    let taken = match producer.ask(Request::Take(blob.export))?.0 {
        Answer::Taken(taken) => taken,
        _ => return Err(stale(blob)),
    };
    let made = take(&producer, &mut segments, blob, &taken, stream);
    if made.is_err() {
        producer.tell(Request::Untake(blob.export), None);
    }
    made
}

/// What the producer gave is mapped, unless it is already.
fn take(
    producer: &Arc<Producer>,
    segments: &mut Vec<Segment>,
    blob: &Blob,
    taken: &Taken,
    stream: Stream,
) -> Result<(Address, usize, i32)> {
    let device = device_of(taken.uuid)?;
    if let Some(handle) = taken.event {
        event::wait(device, handle, stream)?;
    }
    let offset = taken.offset as usize;
    if let Some(address) = IMPORTS.lock().again(producer, &blob.export) {
        return Ok((address, taken.size as usize, device));
    }
    let (base, mapped) = match taken.memory {
        Opened::Plain(handle) => {
            let base = open(segments, handle, device, offset.saturating_add(taken.size as usize))?;
            (base, Mapped::Plain(base))
        }
        Opened::Virtual(count) => {
            let base = map(producer, blob.export, count, taken.span, device)?;
            (base, Mapped::Virtual(base, taken.span as usize))
        }
    };
    let address = base + offset;
    let import = Import { producer: Some(producer.clone()), export: blob.export, size: taken.size as usize, device, mapped, uses: 1 };
    IMPORTS.lock().insert(address, import);
    if let Err(error) = open_to_late_peers(mapped, device) {
        let import = IMPORTS.lock().take(address, &Some(producer.clone()));
        let runtime = runtime::runtime()?;
        // What stays mapped goes with the process.
        import.iter().for_each(|import| _ = insist(|| give(runtime, segments, import)));
        return Err(error.on_device(device));
    }
    watch::tell(|| Happening::Imported { address, size: taken.size as usize });
    Ok((address, taken.size as usize, device))
}

/// A peer may have come before the import was known.
fn open_to_late_peers(mapped: Mapped, device: i32) -> Result<()> {
    let Mapped::Virtual(base, size) = mapped else { return Ok(()) };
    let (runtime, access) = (runtime::runtime()?, memory::access_list(device));
    runtime.outside_capture(|| runtime.mem_set_access(base, size, &access))
}

/// A segment of another process's cudaMalloc, opened once. `reach`: where what is imported of it ends.
fn open(segments: &mut Vec<Segment>, handle: IpcHandle, device: i32, reach: usize) -> Result<Address> {
    if let Some(segment) = segments.iter_mut().find(|segment| segment.handle == handle) {
        segment.uses += 1;
        segment.end = segment.end.max(segment.base.saturating_add(reach));
        return Ok(segment.base);
    }
    let _guard = device::Guard::new(device)?;
    let runtime = runtime::runtime()?;
    let base = runtime.outside_capture(|| runtime.ipc_open_mem_handle(handle)).map_err(device::blame(device))?;
    segments.push(Segment { handle, base, end: base.saturating_add(reach), uses: 1 });
    Ok(base)
}

/// Pages of another process in a row at new addresses. All or nothing.
fn map(producer: &Producer, export: Secret, count: u32, span: u64, device: i32) -> Result<Address> {
    let runtime = runtime::runtime()?;
    if !runtime.has_virtual_memory() {
        return Err(Error::not_supported("The memory that was exported is virtual memory, which this process's driver does not have."));
    }
    let span = usize::try_from(span).ok().filter(|span| *span > 0 && count > 0).ok_or_else(|| producer.nonsense())?;
    let _guard = device::Guard::new(device)?;
    runtime.outside_capture(|| {
        let base = runtime.address_reserve(span, 0)?;
        let mut mapped = 0;
        let done = map_pages(runtime, producer, export, count, base, span, &mut mapped)
            .and_then(|()| runtime.mem_set_access(base, span, &memory::access_list(device)));
        match done {
            Ok(()) => Ok(base),
            Err(error) => {
                unmap(runtime, base, mapped);
                free_addresses(runtime, base, span);
                Err(error.on_device(device))
            }
        }
    })
}

fn map_pages(
    runtime: &Runtime,
    producer: &Producer,
    export: Secret,
    count: u32,
    base: Address,
    span: usize,
    mapped: &mut usize,
) -> Result<()> {
    let mut next = 0;
    while next < count {
        let (sizes, files) = match producer.ask(Request::Parts(export, next))? {
            (Answer::Parts(sizes), files) if sizes.len() == files.len() => (sizes, files),
            (Answer::Failed(text), _) => {
                return Err(Error::new(Status::TCUDA_ERROR_CUDA, format!("The producer of the memory failed: {text}")));
            }
            _ => return Err(producer.nonsense()),
        };
        next += sizes.len() as u32;
        for (size, file) in sizes.into_iter().zip(files) {
            let size = usize::try_from(size).ok().filter(|size| *size <= span - *mapped).ok_or_else(|| producer.nonsense())?;
            let handle = runtime.mem_import(file.as_fd())?;
            let done = runtime.mem_map(base + *mapped, size, handle);
            // The mapping keeps the memory.
            let released = insist(|| runtime.mem_release(handle));
            done?;
            *mapped += size;
            released?;
        }
    }
    if *mapped == span { Ok(()) } else { Err(producer.nonsense()) }
}

fn unmap(runtime: &Runtime, base: Address, size: usize) -> bool {
    size == 0 || insist(|| runtime.mem_unmap(base, size)).is_ok()
}

fn free_addresses(runtime: &Runtime, base: Address, size: usize) {
    let _ = insist(|| runtime.address_free(base, size));
}

/// A device that is lost does no work, and its memory goes with the process.
fn unless_lost(error: Error) -> Result<()> {
    if error.status == Status::TCUDA_ERROR_DEVICE_LOST { Ok(()) } else { Err(error) }
}

/// Ends one use of imported memory, when the work of the stream so far is done. The last gives it back.
pub fn close(address: Address, stream: Stream) -> Result<()> {
    refuse_capture(stream, "tcuda_ipc_close").or_else(unless_lost)?;
    let producer_here = || IMPORTS.lock().last(address).map(|import| import.producer.clone()).ok_or_else(|| not_imported(address));
    producer_here()?;
    runtime::runtime()?.outside_capture(|| stream.synchronize()).or_else(unless_lost)?;
    // Another thread may be quicker with one of several imports at this address.
    while !close_of(&producer_here()?, address)? {}
    Ok(())
}

/// Whether the sanitizer took a block for freed that is kept for an import of this process's own.
fn is_freed(address: Address) -> bool {
    watch::any(watch::SANITIZER) && memory::device_of(address).is_none()
}

/// A block of this process's own was freed; what it imported of that is in use until it is closed.
pub fn block_freed(place: Range<Address>) {
    let address = place.start;
    if watch::any(watch::SANITIZER) && IMPORTS.lock().has_own(place) {
        watch::tell(|| Happening::Kept { address });
    }
}

/// False: nothing of this producer is at the address.
fn close_of(producer: &Option<Arc<Producer>>, address: Address) -> Result<bool> {
    let Some(from) = producer else {
        let mut imports = IMPORTS.lock();
        let Some(import) = imports.take(address, producer) else { return Ok(false) };
        if let Mapped::Own(address, size) = import.mapped {
            let is_last = !imports.has_own(address..address + size);
            drop(imports);
            if is_last && is_freed(address) {
                watch::tell(|| Happening::Freeing { address, size, on: None });
            }
        }
        producer::give_own(&import.export);
        return Ok(true);
    };
    let mut segments = from.turn.lock();
    let mut imports = IMPORTS.lock();
    let Some(import) = imports.of(address, producer) else { return Ok(false) };
    let export = import.export;
    let is_last = import.uses == 1;
    import.uses -= usize::from(!is_last);
    let last = if is_last { imports.take(address, producer) } else { None };
    // What other imports are of stays in use.
    let gone = match &last {
        Some(import) if watch::any(watch::SANITIZER) => imports.leave(address..address.saturating_add(import.size)),
        _ => Vec::new(),
    };
    drop(imports);
    if let Some(import) = last {
        for part in &gone {
            watch::tell(|| Happening::Closing { address: part.start, size: part.len() });
        }
        if let Err(error) = give(runtime::runtime()?, &mut segments, &import).or_else(unless_lost) {
            IMPORTS.lock().insert(address, import);
            for part in &gone {
                watch::tell(|| Happening::Kept { address: part.start });
            }
            return Err(error);
        }
    }
    from.tell(Request::Give(export), None);
    Ok(true)
}

/// Nothing changes on failure.
fn give(runtime: &Runtime, segments: &mut Vec<Segment>, import: &Import) -> Result<()> {
    match import.mapped {
        Mapped::Own(..) => Ok(()),
        Mapped::Plain(base) => {
            let Some(at) = segments.iter().position(|segment| segment.base == base) else { return Ok(()) };
            if segments[at].uses == 1 {
                let _guard = device::Guard::new(import.device)?;
                runtime.outside_capture(|| runtime.ipc_close_mem_handle(base))?;
                let segment = segments.swap_remove(at);
                watch::tell(|| Happening::Unmapped { address: base, size: segment.end - base });
            } else {
                segments[at].uses -= 1;
            }
            Ok(())
        }
        Mapped::Virtual(base, size) => runtime.outside_capture(|| {
            runtime.mem_unmap(base, size)?;
            // While nobody else has the addresses.
            watch::tell(|| Happening::Unmapped { address: base, size });
            free_addresses(runtime, base, size);
            Ok(())
        }),
    }
}

/// False: the process that the memory is of has ended, or ended its use of tcuda; what is in the memory may go.
pub fn producer_lives(address: Address) -> Result<bool> {
    let producer = IMPORTS.lock().last(address).map(|import| import.producer.clone()).ok_or_else(|| not_imported(address))?;
    Ok(producer.is_none_or(|producer| producer.lives()))
}

pub fn is_imported(address: Address) -> bool {
    // Several that overlap may begin below.
    let imports = IMPORTS.lock();
    imports.by_address.range(..=address).any(|(start, here)| here.iter().any(|import| address - start < import.size))
}

pub fn count(stats: &mut Stats) {
    for import in IMPORTS.lock().by_address.values().flatten() {
        stats.imported += 1;
        stats.imported_bytes += import.size as u64;
    }
}

/// A hook of peers: pages are opened one by one.
pub fn peer_enabled(_device: i32, peer: i32) -> Result<()> {
    let here = |imports: &Imports| -> Vec<(Address, usize)> {
        let of_peer = imports.by_address.values().flatten().filter(|import| import.device == peer);
        of_peer.filter_map(|import| if let Mapped::Virtual(base, size) = import.mapped { Some((base, size)) } else { None }).collect()
    };
    let mapped = here(&IMPORTS.lock());
    let access: Vec<MemAccess> = memory::access_list(peer);
    let runtime = runtime::runtime()?;
    runtime.outside_capture(|| {
        mapped.into_iter().try_for_each(|(base, size)| {
            // One that another thread has closed meanwhile needs nothing.
            let is_here = || here(&IMPORTS.lock()).contains(&(base, size));
            runtime.mem_set_access(base, size, &access).or_else(|error| if is_here() { Err(error) } else { Ok(()) })
        })
    })
}

pub fn shutdown() {
    /// For a producer that does not listen: it takes back what is left once this process has ended.
    const PATIENCE: Duration = Duration::from_millis(500);
    let Ok(runtime) = runtime::runtime() else { return };
    let all = {
        let mut imports = IMPORTS.lock();
        imports.by_source.clear();
        std::mem::take(&mut imports.by_address)
    };
    let until = Instant::now() + PATIENCE;
    for import in all.into_values().flatten() {
        let Some(producer) = &import.producer else { continue };
        let mut segments = producer.turn.lock();
        // What ails the device does not matter any more.
        let _ = insist(|| give(runtime, &mut segments, &import));
        for _ in 0..import.uses {
            producer.tell(Request::Give(import.export), Some(until.saturating_duration_since(Instant::now())));
        }
    }
    IMPORTS.lock().producers.clear();
}

impl Imports {
    fn insert(&mut self, address: Address, import: Import) {
        self.by_source.extend(import.source().map(|source| (source, address)));
        self.by_address.entry(address).or_default().push(import);
    }

    fn last(&mut self, address: Address) -> Option<&mut Import> {
        self.by_address.get_mut(&address)?.last_mut()
    }

    /// What they leave of these bytes.
    fn leave(&self, place: Range<Address>) -> Vec<Range<Address>> {
        let (mut left, mut at) = (Vec::new(), place.start);
        for (start, here) in self.by_address.range(..place.end) {
            left.extend((at < *start).then_some(at..*start));
            let end = here.iter().map(|import| start.saturating_add(import.size)).max();
            at = at.max(end.unwrap_or(at));
        }
        left.extend((at < place.end).then_some(at..place.end));
        left
    }

    /// Whether something of this process's own is there.
    fn has_own(&self, place: Range<Address>) -> bool {
        self.by_address.range(place).flat_map(|(_, here)| here).any(|import| import.producer.is_none())
    }

    /// The last one of a producer: CUDA opens a segment at one address, also for two uses of tcuda by its process.
    fn of(&mut self, address: Address, producer: &Option<Arc<Producer>>) -> Option<&mut Import> {
        self.by_address.get_mut(&address)?.iter_mut().rfind(|import| import.is_from(producer))
    }

    fn take(&mut self, address: Address, producer: &Option<Arc<Producer>>) -> Option<Import> {
        let here = self.by_address.get_mut(&address)?;
        let at = here.iter().rposition(|import| import.is_from(producer))?;
        let import = here.remove(at);
        if let Some(source) = import.source() {
            self.by_source.remove(&source);
        }
        if here.is_empty() {
            self.by_address.remove(&address);
        }
        Some(import)
    }

    /// The connection to a process that lives.
    fn known(&mut self, name: &Secret) -> Option<Arc<Producer>> {
        self.producers.retain(|known| known.strong_count() > 0);
        self.producers.iter().filter_map(Weak::upgrade).find(|known| known.name == *name).filter(|known| known.lives())
    }

    /// One use more of what is here already: its address.
    fn again(&mut self, producer: &Arc<Producer>, export: &Secret) -> Option<Address> {
        let address = *self.by_source.get(&source(producer, export))?;
        let here = self.by_address.get_mut(&address)?;
        let import = here.iter_mut().find(|import| import.source() == Some(source(producer, export)))?;
        import.uses += 1;
        Some(address)
    }
}

/// The connection to the process that exported a blob, made at the first need.
fn producer_of(blob: &Blob) -> Result<Arc<Producer>> {
    if let Some(known) = IMPORTS.lock().known(&blob.producer) {
        return Ok(known);
    }
    let socket = Socket::connect(&blob.producer).map_err(|error| match error.native {
        libc::ECONNREFUSED => stale(blob),
        _ => error,
    })?;
    let peer = socket.peer().ok_or_else(|| {
        let text =
            format!("The memory is of a process of another user ({}): it is shared between processes of one user only.", blob.process);
        Error::new(Status::TCUDA_ERROR_NOT_SUPPORTED, text)
    })?;
    let producer = Arc::new(Producer { name: blob.producer, socket, peer, turn: Mutex::default() });
    if !producer.lives() {
        return Err(stale(blob));
    }
    // Another thread may have been quicker. Two connections would map the same memory twice.
    let mut imports = IMPORTS.lock();
    let known = imports.known(&blob.producer);
    if known.is_none() {
        imports.producers.push(Arc::downgrade(&producer));
    }
    Ok(known.unwrap_or(producer))
}

impl Producer {
    fn lives(&self) -> bool {
        self.socket.is_open() && !self.peer.has_ended()
    }

    /// False: it has ended, or did not listen for so long.
    fn tell(&self, request: Request, patience: Option<Duration>) -> bool {
        self.socket.deliver(&request.write(), &self.peer, patience)
    }

    /// Waits for the answer for as long as the producer lives.
    fn ask(&self, request: Request) -> Result<(Answer, Vec<OwnedFd>)> {
        if !self.tell(request, None) {
            return Err(self.ended());
        }
        let (mut bytes, mut files) = ([0; LONGEST], Vec::with_capacity(MOST_FILES));
        loop {
            // Asked first: what it said before it ended is there.
            let ended = self.peer.has_ended();
            match self.socket.receive(&mut bytes, &mut files) {
                Received::Bytes(size) => {
                    return Answer::read(&bytes[..size]).map(|answer| (answer, files)).ok_or_else(|| self.nonsense());
                }
                Received::Nothing if !ended => {
                    let watched: Vec<_> = [self.socket.as_fd()].into_iter().chain(self.peer.watch()).collect();
                    socket::wait(&watched);
                }
                Received::Cut => {
                    let text = "The files that stand for the memory could not come over: this process has no room for more open files \
                                (ulimit -n).";
                    return Err(Error::new(Status::TCUDA_ERROR_SYSTEM, text).with_native(libc::EMFILE));
                }
                Received::Nothing | Received::End => return Err(self.ended()),
            }
        }
    }

    fn ended(&self) -> Error {
        let text = format!("The process {} that exported the memory has ended, or ended its use of tcuda.", self.peer.process);
        Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text)
    }

    fn nonsense(&self) -> Error {
        let text = format!("The process {} answers what makes no sense: is its tcuda of another version?", self.peer.process);
        Error::new(Status::TCUDA_ERROR_VERSION_MISMATCH, text)
    }
}

fn stale(blob: &Blob) -> Error {
    let text = format!(
        "Nothing is exported by this handle (any more): the process {} that made it has ended, freed the memory, withdrew it, or all the \
         imports that it kept it for were taken. It may also run on another machine, or in a container with a network of its own.",
        blob.process
    );
    Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text)
}

fn not_imported(address: Address) -> Error {
    let text = format!("0x{address:x} was not imported by tcuda_ipc_import, or was closed as often as it was imported.");
    Error::new(Status::TCUDA_ERROR_INVALID_POINTER, text)
}

fn device_of(uuid: [u8; 16]) -> Result<i32> {
    for device in 0..device::count() {
        if device::properties(device)?.uuid == uuid {
            return Ok(device);
        }
    }
    let uuid: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!(
        "The memory is on the device with the UUID {uuid}, which this process does not see. CUDA_VISIBLE_DEVICES has to leave it visible here \
         too."
    );
    Err(Error::new(Status::TCUDA_ERROR_INVALID_DEVICE, text))
}
