//! What stands between a C caller and the rooms: panics and errors become a status and this thread's last error.

use super::snapshot;
use super::text::c_text;
use crate::base::spared::Uncancelled;
use crate::base::status::tcuda_status_t::{self, *};
use crate::base::{Error, Result, Status, annotation, log, process, room, sync_debug, watch, work};
use crate::nvtx::{self, own};
use crate::{device, graph, jit, memory, random, sanitizer, stream, telemetry};
use once_cell::race::OnceBox;
use parking_lot::{ReentrantMutex, const_reentrant_mutex};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// Runs the body of a C function. Refused in a forked child and after shutdown.
pub fn guard(function: &'static str, body: impl FnOnce() -> Result<()>) -> tcuda_status_t {
    guard_any(function, Kind::Checked, &mut once(body))
}

/// The same for a function with one output, which is looked at before anything is done and written when all is.
pub fn guard_out<T>(function: &'static str, out: *mut T, parameter: &str, body: impl FnOnce() -> Result<T>) -> tcuda_status_t {
    guard(function, || {
        let out = Out::new(out, parameter)?;
        out.write(body()?);
        Ok(())
    })
}

/// The same for what must work at any time: versions, texts, init, destroying NULL.
pub fn guard_always(function: &'static str, body: impl FnOnce() -> Result<()>) -> tcuda_status_t {
    guard_any(function, Kind::Always, &mut once(body))
}

/// The same for what says where the log goes: what is wrong with the environment is not told before.
pub fn guard_early(function: &'static str, body: impl FnOnce() -> Result<()>) -> tcuda_status_t {
    guard_any(function, Kind::Early, &mut once(body))
}

enum Kind {
    Checked,
    Always,
    Early,
}

/// There once for all functions: a copy in each is a tenth of the library, and of the time to compile it.
fn guard_any(function: &'static str, kind: Kind, body: &mut dyn FnMut() -> Result<()>) -> tcuda_status_t {
    match kind {
        Kind::Checked => guard_bytes(function, None, body),
        Kind::Always => caught(function, true, body),
        Kind::Early => caught(function, false, body),
    }
}

fn once(body: impl FnOnce() -> Result<()>) -> impl FnMut() -> Result<()> {
    let mut body = Some(body);
    move || body.take().map_or(Ok(()), |body| body())
}

/// The same for a function that asks for memory, which tools are told: inlined.
#[inline]
pub fn guard_bytes(function: &'static str, bytes: Option<usize>, body: impl FnOnce() -> Result<()>) -> tcuda_status_t {
    caught(function, true, || {
        process::check()?;
        let _shown = own::range(function, bytes);
        if watch::any(watch::WORK) {
            work::enter(function);
        }
        body()
    })
}

#[inline]
fn caught(function: &'static str, reads: bool, body: impl FnOnce() -> Result<()>) -> tcuda_status_t {
    let _whole = Uncancelled::enter();
    let scope = watch::Scope::enter(function);
    let work = || {
        if reads && watch::any(watch::UNREAD) {
            look_on();
        }
        let outcome = body();
        scope.tell();
        outcome
    };
    // Programs are told before the error becomes the thread's last one: their functions may fail too.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => TCUDA_SUCCESS,
        Ok(Err(error)) => fail(function, error),
        Err(panic) => fail(function, panicked(function, &*panic)),
    }
}

/// For what ends a handle: NULL is fine, and after shutdown everything is gone already.
pub fn guard_destroy<T>(function: &'static str, handle: *mut T, body: impl FnOnce() -> Result<()>) -> tcuda_status_t {
    if handle.is_null() || process::is_shut_down() {
        return TCUDA_SUCCESS;
    }
    guard(function, body)
}

/// For the functions that return no status: the body's value, or `otherwise` after an error or panic, which is recorded.
pub fn guard_value<T>(function: &'static str, otherwise: T, body: impl FnOnce() -> Result<T>) -> T {
    let mut value = None;
    guard_always(function, || {
        value = Some(body()?);
        Ok(())
    });
    value.unwrap_or(otherwise)
}

static BEGUN: ReentrantMutex<Cell<bool>> = const_reentrant_mutex(Cell::new(false));

/// Whether a lock is held, or something begun, of those that calls without a device take and begin.
fn is_busy() -> bool {
    let rooms = [nvtx::is_busy, memory::is_locked, random::is_locked, jit::is_locked, sanitizer::is_locked, snapshot::is_locked];
    BEGUN.is_locked() || rooms.iter().any(|is| is())
}

/// Before the first lock is taken: a child of `fork` is not to wait for a thread that is not there.
pub fn mind_forks() {
    process::refuse_forks_while(&(is_busy as fn() -> bool));
}

/// What the environment wants to be watched, at the first call of all. Other threads wait for that: their calls are watched too.
#[cold]
fn look_on() {
    mind_forks();
    if process::is_forked() {
        return;
    }
    let begun = BEGUN.lock();
    // A tool that starts, and a function that hears the log, may call tcuda.
    if !begun.replace(true) {
        log::configure();
        jit::configure();
        sync_debug::configure();
        sanitizer::configure();
        work::configure();
        own::configure();
        telemetry::configure();
        watch::set(watch::UNREAD, false);
    }
}

#[cold]
fn panicked(function: &str, panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let error = Error::internal(format!("A defect of tcuda in {function}: {}. Please report it.", text.unwrap_or("panic without a text")));
    log::write(log::Level::Error, &error.message);
    error
}

#[cold]
fn fail(function: &'static str, mut error: Error) -> tcuda_status_t {
    let status = error.status;
    if status == TCUDA_ERROR_DEVICE_LOST
        && error.device >= 0
        && device::mark_lost(error.device, &error, function, || given_to(error.device))
    {
        error.message.to_mut().push_str(&device::given_to_lost(error.device));
    }
    remember(function, error);
    if status == TCUDA_ERROR_CAPTURE {
        graph::note_failure(function);
    }
    status
}

/// What a device may not have done, the newest last: a sentence, or nothing where that was not recorded.
fn given_to(device: i32) -> String {
    const MOST: usize = 8;
    let on_device = |work: &work::Work| {
        let of_stream = || stream::resolve(work.stream).map_or(device, |stream| stream.device);
        device == if work.device >= 0 { work.device } else { of_stream() }
    };
    let open: Vec<_> = if work::is_on() { work::open().into_iter().filter(on_device).collect() } else { Vec::new() };
    let newest = open[open.len().saturating_sub(MOST)..].iter().map(|work| {
        let stream = if work.stream <= stream::PER_THREAD { "its default stream".into() } else { format!("stream {:#x}", work.stream) };
        let annotation = match annotation::text(work.annotation) {
            "" => String::new(),
            text => format!(" ('{text}')"),
        };
        format!("#{} {} of {} on {stream}{annotation}", work.number, work.what, work.function)
    });
    match open.len() {
        0 => String::new(),
        count => format!(" It was given this, and may not have done it ({count} in all): {}.", newest.collect::<Vec<_>>().join("; ")),
    }
}

/// The last failure of a thread. Boxed at the first one, so that a thread without failures pays a few bytes only.
struct Record {
    status: Status,
    native: i32,
    device: i32,
    bytes: u64,
    /// Both end with a zero byte.
    function: Vec<u8>,
    message: Vec<u8>,
}

/// A copy of the numbers, and pointers that live until the thread's next failure.
pub struct LastError {
    pub status: Status,
    pub native: i32,
    pub device: i32,
    pub bytes: u64,
    pub function: *const c_char,
    pub message: *const c_char,
}

thread_local! {
    static LAST: RefCell<Option<Box<Record>>> = const { RefCell::new(None) };
}

fn remember(function: &str, error: Error) {
    // A thread that is ending has no place for it any more; the status still says what happened.
    let _ = LAST.try_with(|last| {
        let Ok(mut last) = last.try_borrow_mut() else { return };
        let record = last.get_or_insert_with(|| {
            Box::new(Record { status: TCUDA_SUCCESS, native: 0, device: -1, bytes: 0, function: Vec::new(), message: Vec::new() })
        });
        record.status = error.status;
        record.native = error.native;
        record.device = error.device;
        record.bytes = error.bytes;
        set_c_string(&mut record.function, function);
        set_c_string(&mut record.message, &error.message);
    });
}

/// Reuses the buffer. Without memory the text is cut to what fits.
fn set_c_string(buffer: &mut Vec<u8>, text: &str) {
    buffer.clear();
    let room = if buffer.try_reserve(text.len() + 1).is_ok() { text.len() } else { buffer.capacity().saturating_sub(1) };
    if buffer.capacity() == 0 {
        return;
    }
    let end = (0..=room.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    buffer.extend(text.as_bytes()[..end].iter().map(|byte| if *byte == 0 { b' ' } else { *byte }));
    buffer.push(0);
}

fn c_string(buffer: &[u8]) -> *const c_char {
    if buffer.is_empty() { c"".as_ptr() } else { buffer.as_ptr().cast() }
}

/// This thread's last failure; empty texts and success where there was none.
pub fn last_error() -> LastError {
    let none = || LastError { status: TCUDA_SUCCESS, native: 0, device: -1, bytes: 0, function: c"".as_ptr(), message: c"".as_ptr() };
    LAST.try_with(|last| match last.try_borrow().ok().as_deref() {
        Some(Some(record)) => LastError {
            status: record.status,
            native: record.native,
            device: record.device,
            bytes: record.bytes,
            function: c_string(&record.function),
            message: c_string(&record.message),
        },
        _ => none(),
    })
    .unwrap_or_else(|_| none())
}

/// A text that stays for as long as the process: for the few texts that C gets as a plain pointer. Each is kept once. No lock: it works in
/// the child of a fork.
pub fn lasting(text: &str) -> *const c_char {
    struct Text {
        text: CString,
        next: OnceBox<Text>,
    }
    static FIRST: OnceBox<Text> = OnceBox::new();
    let text = c_text(text);
    let mut place = &FIRST;
    loop {
        // Another thread's may be there first, and is looked at next.
        let known = place.get_or_init(|| Box::new(Text { text: text.clone(), next: OnceBox::new() }));
        if known.text == text {
            return known.text.as_ptr();
        }
        place = &known.next;
    }
}

/// An output that the caller gave; written once, when everything else went well.
pub struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// NULL is an error that names the parameter.
    pub fn new(pointer: *mut T, parameter: &str) -> Result<Out<T>> {
        NonNull::new(pointer).map(Out).ok_or_else(|| null(parameter))
    }

    pub fn write(self, value: T) {
        unsafe { self.0.as_ptr().write(value) }
    }

    /// Of a list that has room for all of them.
    pub fn write_all(self, values: impl Iterator<Item = T>) {
        for (at, value) in values.enumerate() {
            unsafe { self.0.as_ptr().add(at).write(value) }
        }
    }
}

#[cold]
pub fn null(parameter: impl Display) -> Error {
    Error::invalid_argument(format!("'{parameter}' is NULL. It has to point to something."))
}

/// `count` elements; NULL is fine where count is 0.
///
/// # Safety
/// `pointer` holds `count` elements that stay as they are while the slice is used.
pub unsafe fn slice<'a, T>(pointer: *const T, count: usize, parameter: impl Display) -> Result<&'a [T]> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(parameter)),
        (false, _) if count > isize::MAX as usize / size_of::<T>().max(1) => {
            Err(Error::invalid_argument(format!("The count of '{parameter}' is {count}, which is more than memory can hold.")))
        }
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

/// A longer text comes in only where the host has memory for its copies: in keys, paths, sources, messages.
const LONG: usize = 16 << 10;
const COPIES: usize = 8;

/// A text that came in: not NULL, ends with a zero byte, UTF-8.
///
/// # Safety
/// `pointer` is NULL or a C string that stays as it is while the text is used.
pub unsafe fn text<'a>(pointer: *const c_char, parameter: impl Display) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(null(parameter));
    }
    let text = unsafe { CStr::from_ptr(pointer) }
        .to_str()
        .map_err(|error| Error::invalid_argument(format!("'{parameter}' is not UTF-8 at byte {}.", error.valid_up_to())))?;
    if text.len() > LONG {
        room::check(text.len().saturating_mul(COPIES), format_args!("'{parameter}'"))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        unsafe { CStr::from_ptr(last_error().message) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_failure_leaves_a_record_and_success_does_not_clear_it() {
        std::thread::spawn(|| {
            assert_eq!(message(), "");
            let status = guard_always("tcuda_x", || Err(Error::invalid_argument("first\0part").with_native(7).on_device(3).with_bytes(11)));
            assert_eq!(status, TCUDA_ERROR_INVALID_ARGUMENT);
            assert_eq!(guard_always("tcuda_y", || Ok(())), TCUDA_SUCCESS);
            let last = last_error();
            assert_eq!((last.status, last.native, last.device, last.bytes), (TCUDA_ERROR_INVALID_ARGUMENT, 7, 3, 11));
            assert_eq!(unsafe { CStr::from_ptr(last.function) }.to_str(), Ok("tcuda_x"));
            assert_eq!(message(), "first part");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn records_belong_to_their_thread() {
        guard_always("tcuda_x", || Err(Error::internal("mine")));
        std::thread::spawn(|| assert_eq!(message(), "")).join().unwrap();
        assert_eq!(message(), "mine");
    }

    #[test]
    fn a_panic_becomes_an_internal_error() {
        assert_eq!(guard_always("tcuda_x", || panic!("oh {}", "no")), TCUDA_ERROR_INTERNAL);
        assert!(message().contains("oh no") && message().contains("tcuda_x"), "{}", message());
        assert_eq!(guard_value("tcuda_x", -1, || panic!("plain")), -1);
        assert!(message().contains("plain"));
    }

    #[test]
    fn lasting_texts_are_kept_once() {
        let first = lasting("a sentence");
        assert_eq!(first, lasting("a sentence"));
        assert_ne!(first, lasting("another"));
        assert_eq!(unsafe { CStr::from_ptr(first) }.to_str(), Ok("a sentence"));
    }

    #[test]
    fn destroying_nothing_succeeds() {
        assert_eq!(guard_destroy("tcuda_x", std::ptr::null_mut::<u8>(), || Err(Error::internal("never"))), TCUDA_SUCCESS);
        assert_eq!(guard_destroy("tcuda_x", &mut 1u8, || Err(Error::internal("now"))), TCUDA_ERROR_INTERNAL);
    }

    #[test]
    fn outputs_and_inputs_are_checked() {
        assert!(Out::new(std::ptr::null_mut::<i32>(), "count").err().unwrap().message.contains("'count'"));
        let mut value = 1;
        Out::new(&mut value, "count").unwrap().write(2);
        assert_eq!(value, 2);
        assert!(unsafe { slice::<u64>(std::ptr::null(), 0, "list") }.unwrap().is_empty());
        assert!(unsafe { slice::<u64>(std::ptr::null(), 1, "list") }.is_err());
        assert!(unsafe { slice::<u64>(&7, usize::MAX, "list") }.is_err());
        assert!(unsafe { text(std::ptr::null(), "key") }.is_err());
        assert!(unsafe { text(c"\xff".as_ptr(), "key") }.is_err());
        assert_eq!(unsafe { text(c"ok".as_ptr(), "key") }, Ok("ok"));
    }

    #[test]
    fn a_failure_while_the_thread_ends_is_only_a_status() {
        struct Late;
        impl Drop for Late {
            fn drop(&mut self) {
                assert_eq!(guard_always("tcuda_x", || Err(Error::internal("late"))), TCUDA_ERROR_INTERNAL);
                assert!(!last_error().message.is_null());
            }
        }
        thread_local! { static LATE: RefCell<Option<Late>> = const { RefCell::new(None) }; }
        std::thread::spawn(|| {
            LATE.with(|late| *late.borrow_mut() = Some(Late));
            guard_always("tcuda_x", || Err(Error::internal("early")));
        })
        .join()
        .unwrap();
    }
}
