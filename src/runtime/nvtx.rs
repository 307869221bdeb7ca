//! Tools that take marks and ranges, by NVTX's injection protocol (version 3). The tool's library, which NVTX_INJECTION64_PATH names, is
//! loaded at the first call, and writes its functions into tables that it is given. Without a tool each call is a look at a flag. Written
//! from the protocol; nothing of NVTX is linked, and a program's own NVTX goes to the same tool beside it.

use super::cuda::library::Library;
use crate::base::{config, log, process};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst};

const VARIABLE: &str = "NVTX_INJECTION64_PATH";
const ENTRY: &str = "InitializeInjectionNvtx2";
const VERSION: u16 = 3;
/// What push and pop answer if nobody counts how deep they are: NVTX's number.
pub(crate) const NOT_TRACKED: i32 = -2;

const NOT_KNOWN: u8 = 0;
const NONE: u8 = 1;
const ATTACHED: u8 = 2;
const STARTING: u8 = 3;
static STATE: AtomicU8 = AtomicU8::new(NOT_KNOWN);

// ---- the tables

const MODULES: usize = 7;
/// The numbers of functions of the modules: none, CORE, CUDA, OPENCL, CUDART, CORE2, SYNC. Number 0 is no function.
const SIZES: [usize; MODULES] = [0, 16, 9, 15, 7, 16, 7];
const MOST: usize = 16;

/// A function by its module and its number there.
type Id = (usize, usize);
const MARK_EX: Id = (1, 1);
const MARK: Id = (1, 2);
const RANGE_START: Id = (1, 5);
const RANGE_START_EX: Id = (1, 4);
const RANGE_END: Id = (1, 7);
const RANGE_PUSH_EX: Id = (1, 8);
const RANGE_PUSH: Id = (1, 9);
const RANGE_POP: Id = (1, 11);
const NAME_CATEGORY: Id = (1, 12);
const DOMAIN_MARK_EX: Id = (5, 1);
const DOMAIN_RANGE_START_EX: Id = (5, 2);
const DOMAIN_RANGE_END: Id = (5, 3);
const DOMAIN_RANGE_PUSH_EX: Id = (5, 4);
const DOMAIN_RANGE_POP: Id = (5, 5);
const DOMAIN_NAME_CATEGORY: Id = (5, 8);
const DOMAIN_REGISTER_STRING: Id = (5, 10);
const DOMAIN_CREATE: Id = (5, 12);
const DOMAIN_DESTROY: Id = (5, 14);

/// The tool's functions; 0: it does not want to hear of it.
static FUNCTIONS: [[AtomicUsize; MOST]; MODULES] = [const { [const { AtomicUsize::new(0) }; MOST] }; MODULES];

/// As tools see them: for each module the places that they write their functions to, and NULL at the end.
struct Tables([[*const AtomicUsize; MOST + 1]; MODULES]);
unsafe impl Sync for Tables {}

static TABLES: Tables = {
    let mut tables = [[std::ptr::null(); MOST + 1]; MODULES];
    let mut module = 0;
    while module < MODULES {
        let mut number = 1;
        while number < SIZES[module] {
            tables[module][number] = &raw const FUNCTIONS[module][number];
            number += 1;
        }
        module += 1;
    }
    Tables(tables)
};

#[repr(C)]
struct Callbacks {
    struct_size: usize,
    functions_of: unsafe extern "C" fn(i32, *mut *const *const AtomicUsize, *mut u32) -> i32,
}

#[repr(C)]
struct VersionInfo {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_version_of_tool: extern "C" fn(u32),
}

unsafe extern "C" fn functions_of(module: i32, table: *mut *const *const AtomicUsize, size: *mut u32) -> i32 {
    let Some((functions, count)) = usize::try_from(module).ok().and_then(|module| Some((TABLES.0.get(module)?, SIZES[module]))) else {
        return 0;
    };
    if count == 0 {
        return 0;
    }
    if !table.is_null() {
        unsafe { table.write(functions.as_ptr()) };
    }
    if !size.is_null() {
        unsafe { size.write(count as u32) };
    }
    1
}

/// Nothing depends on it so far.
extern "C" fn set_version_of_tool(_version: u32) {}

static CALLBACKS: Callbacks = Callbacks { struct_size: size_of::<Callbacks>(), functions_of };
static VERSION_INFO: VersionInfo =
    VersionInfo { struct_size: size_of::<VersionInfo>(), version: VERSION as u32, reserved: 0, set_version_of_tool };

extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => std::ptr::null(),
    }
}

// ---- the tool

/// A tool that listens.
#[derive(Clone, Copy)]
pub struct Tool(());

/// The tool, if there is one; looked for at the first call.
#[inline(always)]
pub fn tool() -> Option<Tool> {
    match STATE.load(Acquire) {
        NONE => None,
        _ => attached(),
    }
}

#[cold]
fn attached() -> Option<Tool> {
    thread_local!(static SEARCHES: Cell<bool> = const { Cell::new(false) });
    static SEARCH: Once = Once::new();
    if STATE.load(Acquire) == ATTACHED {
        return Some(Tool(()));
    }
    // From inside the tool's start, or from a log callback that is told why there is none; or the thread that starts it is the parent's.
    if SEARCHES.get() || process::is_forked() {
        return None;
    }
    // Before: a child of fork is to know of it, and not to wait.
    let _ = STATE.compare_exchange(NOT_KNOWN, STARTING, SeqCst, Relaxed);
    SEARCH.call_once_force(|_| {
        SEARCHES.set(true);
        let state = if search() { ATTACHED } else { NONE };
        SEARCHES.set(false);
        STATE.store(state, Release);
    });
    (STATE.load(Acquire) == ATTACHED).then_some(Tool(()))
}

pub fn is_starting() -> bool {
    STATE.load(Relaxed) == STARTING
}

fn search() -> bool {
    let Some(path) = config::get(VARIABLE) else { return false };
    match start(Path::new(&path)) {
        // It stays for as long as the process.
        Ok(library) => {
            std::mem::forget(library);
            true
        }
        Err(why) => {
            FUNCTIONS.iter().flatten().for_each(|function| function.store(0, Relaxed));
            log::warn(&format!("No tool listens to marks and ranges: {VARIABLE} is {path}, and {why}."));
            false
        }
    }
}

fn start(path: &Path) -> Result<Library, String> {
    let library = Library::open_as_needed(path)?;
    let entry = match library.symbol(ENTRY) {
        0 => return Err(format!("the library has no {ENTRY}")),
        entry => unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> i32>(entry) },
    };
    match unsafe { entry(export_table) } {
        0 => Err(format!("its {ENTRY} says that it did not start")),
        _ => Ok(library),
    }
}

// ---- what it is told

/// What it calls a domain; `DEFAULT` is the one that needs none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Domain(usize);
pub(crate) const DEFAULT: Domain = Domain(0);

/// A text that a domain knows already.
#[derive(Clone, Copy, Debug)]
pub struct Registered(usize);

#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    Text(&'a CStr),
    Registered(Registered),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Payload {
    None,
    Unsigned(u64),
    Signed(i64),
    Double(f64),
}

/// Color is ARGB, 0: whatever the tool likes. Category 0 is none.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    pub message: Message<'a>,
    pub color: u32,
    pub category: u32,
    pub payload: Payload,
}

/// nvtxEventAttributes_t.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    padding: i32,
    message: usize,
}
const _: () = assert!(size_of::<Attributes>() == 48);

impl Attributes {
    fn of(event: &Event<'_>) -> Attributes {
        let (payload_type, payload) = match event.payload {
            Payload::None => (0, 0),
            Payload::Unsigned(value) => (1, value),
            Payload::Signed(value) => (2, value as u64),
            Payload::Double(value) => (3, value.to_bits()),
        };
        let (message_type, message) = match event.message {
            Message::Text(text) => (1, text.as_ptr() as usize),
            Message::Registered(Registered(handle)) => (3, handle),
        };
        Attributes {
            version: VERSION,
            size: size_of::<Attributes>() as u16,
            category: event.category,
            color_type: (event.color != 0).into(),
            color: event.color,
            payload_type,
            reserved: 0,
            payload,
            message_type,
            padding: 0,
            message,
        }
    }
}

/// Calls a function of the tool, which has this type by the protocol; else the value where it has none.
macro_rules! tell {
    ($id:expr, fn($($kind:ty),*) $(-> $result:ty)?, ($($argument:expr),*), $otherwise:expr) => {
        match FUNCTIONS[$id.0][$id.1].load(Relaxed) {
            0 => $otherwise,
            function => unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($kind),*) $(-> $result)?>(function)($($argument),*) },
        }
    };
}

impl Tool {
    pub fn mark(self, message: &CStr) {
        tell!(MARK, fn(*const c_char), (message.as_ptr()), ());
    }

    /// How deep the range lies, from 0.
    pub fn push(self, message: &CStr) -> i32 {
        tell!(RANGE_PUSH, fn(*const c_char) -> i32, (message.as_ptr()), NOT_TRACKED)
    }

    /// How deep the range lay.
    pub fn pop(self) -> i32 {
        tell!(RANGE_POP, fn() -> i32, (), NOT_TRACKED)
    }

    pub fn start(self, message: &CStr) -> u64 {
        tell!(RANGE_START, fn(*const c_char) -> u64, (message.as_ptr()), 0)
    }

    pub fn end(self, id: u64) {
        tell!(RANGE_END, fn(u64), (id), ());
    }

    pub fn domain(self, name: &CStr) -> Domain {
        Domain(tell!(DOMAIN_CREATE, fn(*const c_char) -> usize, (name.as_ptr()), 0))
    }

    pub fn destroy_domain(self, domain: Domain) {
        tell!(DOMAIN_DESTROY, fn(usize), (domain.0), ());
    }

    /// None: the tool keeps no texts.
    pub fn register(self, domain: Domain, text: &CStr) -> Option<Registered> {
        let handle = tell!(DOMAIN_REGISTER_STRING, fn(usize, *const c_char) -> usize, (domain.0, text.as_ptr()), 0);
        (handle != 0).then_some(Registered(handle))
    }

    pub fn name_category(self, domain: Domain, category: u32, name: &CStr) {
        if domain == DEFAULT {
            tell!(NAME_CATEGORY, fn(u32, *const c_char), (category, name.as_ptr()), ());
        } else {
            tell!(DOMAIN_NAME_CATEGORY, fn(usize, u32, *const c_char), (domain.0, category, name.as_ptr()), ());
        }
    }

    pub fn mark_in(self, domain: Domain, event: &Event<'_>) {
        let attributes = Attributes::of(event);
        if domain == DEFAULT {
            tell!(MARK_EX, fn(*const Attributes), (&attributes), ());
        } else {
            tell!(DOMAIN_MARK_EX, fn(usize, *const Attributes), (domain.0, &attributes), ());
        }
    }

    pub fn push_in(self, domain: Domain, event: &Event<'_>) -> i32 {
        let attributes = Attributes::of(event);
        if domain == DEFAULT {
            tell!(RANGE_PUSH_EX, fn(*const Attributes) -> i32, (&attributes), NOT_TRACKED)
        } else {
            tell!(DOMAIN_RANGE_PUSH_EX, fn(usize, *const Attributes) -> i32, (domain.0, &attributes), NOT_TRACKED)
        }
    }

    pub fn pop_in(self, domain: Domain) -> i32 {
        if domain == DEFAULT { self.pop() } else { tell!(DOMAIN_RANGE_POP, fn(usize) -> i32, (domain.0), NOT_TRACKED) }
    }

    pub fn start_in(self, domain: Domain, event: &Event<'_>) -> u64 {
        let attributes = Attributes::of(event);
        if domain == DEFAULT {
            tell!(RANGE_START_EX, fn(*const Attributes) -> u64, (&attributes), 0)
        } else {
            tell!(DOMAIN_RANGE_START_EX, fn(usize, *const Attributes) -> u64, (domain.0, &attributes), 0)
        }
    }

    pub fn end_in(self, domain: Domain, id: u64) {
        if domain == DEFAULT { self.end(id) } else { tell!(DOMAIN_RANGE_END, fn(usize, u64), (domain.0, id), ()) }
    }
}
