//! The synchronization debug mode: what makes the host wait is counted and told, or refused. Every call of CUDA that does so comes by here.

use super::{Error, Result, Status, annotation, config, log, process, watch};
use parking_lot::{Mutex, RwLock};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub const VARIABLE: &str = "TCUDA_SYNC_DEBUG";

/// torch's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(i32)]
pub enum Mode {
    Default = 0,
    Warn = 1,
    Error = 2,
}

/// As a thread's mode: that of the process.
pub const FOLLOW: i32 = -1;

/// A wait that was or would have been.
#[derive(Clone, Copy, Debug)]
pub struct Blocked {
    /// The C function that the program called.
    pub function: &'static str,
    /// What of CUDA it called.
    pub call: &'static str,
    /// The number of the thread's annotation.
    pub annotation: u32,
    /// Zero if it was refused.
    pub time: Duration,
    pub refused: bool,
}

/// Whether a call can be refused with nothing lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Wait,
    /// Takes something from the driver or gives it back, for which the driver may wait.
    Driver,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Figures {
    pub waits: u64,
    pub refused: u64,
    pub nanoseconds: u64,
    pub longest: u64,
}

static GLOBAL: AtomicI32 = AtomicI32::new(Mode::Default as i32);
/// Whether a program said what it is, which goes before the environment.
static SAID: AtomicBool = AtomicBool::new(false);
/// Threads whose own mode is not the default one.
static THREADS: AtomicUsize = AtomicUsize::new(0);

static WAITS: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);
static LONGEST: AtomicU64 = AtomicU64::new(0);

pub type Function = Arc<dyn Fn(&Blocked) + Send + Sync>;

static FUNCTION: RwLock<Option<Function>> = RwLock::new(None);

/// The mode of a thread, which ends with it.
struct Own(Cell<i32>);

impl Own {
    fn set(&self, mode: i32) {
        let counts = |mode: i32| mode > Mode::Default as i32;
        match (counts(self.0.replace(mode)), counts(mode)) {
            (false, true) => THREADS.fetch_add(1, Relaxed),
            (true, false) => THREADS.fetch_sub(1, Relaxed),
            _ => 0,
        };
        look();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.0.get() > 0 {
            self.set(FOLLOW);
        }
    }
}

/// How the thread stands: whether it is in a wait that is counted as one, and whether it does what cannot be refused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Plain,
    Must,
    Inside,
}

thread_local! {
    static OWN: Own = const { Own(Cell::new(FOLLOW)) };
    static STATE: Cell<State> = const { Cell::new(State::Plain) };
}

static LOOKING: Mutex<()> = Mutex::new(());

pub(super) fn is_locked() -> bool {
    LOOKING.is_locked() || FUNCTION.is_locked()
}

/// One thread at a time: who looked before another's mode changed may not have the last word. In the child of a fork, where that thread is
/// not, nothing waits.
fn look() {
    if process::is_forked() {
        return;
    }
    let _turn = LOOKING.lock();
    watch::set(watch::SYNC, GLOBAL.load(Relaxed) != Mode::Default as i32 || THREADS.load(Relaxed) != 0);
}

pub fn parse(mode: i32) -> Result<Mode> {
    known(mode, "")
}

/// A thread's; None: that of the process.
pub fn parse_own(mode: i32) -> Result<Option<Mode>> {
    if mode == FOLLOW { Ok(None) } else { known(mode, "-1 (follow), ").map(Some) }
}

fn known(mode: i32, or: &str) -> Result<Mode> {
    [Mode::Default, Mode::Warn, Mode::Error].into_iter().find(|known| *known as i32 == mode).ok_or_else(|| {
        let text = format!("invalid value of debug_mode, expected one of {or}0 (default), 1 (warn), 2 (error): {mode}.");
        Error::invalid_argument(text)
    })
}

pub fn set(mode: Mode) {
    SAID.store(true, Relaxed);
    GLOBAL.store(mode as i32, Relaxed);
    look();
}

/// None: that of the process.
pub fn set_own(mode: Option<Mode>) -> Result<()> {
    let ending = |_| Error::new(Status::TCUDA_ERROR_INVALID_STATE, "This thread is ending; it has no mode of its own any more.");
    OWN.try_with(|own| own.set(mode.map_or(FOLLOW, |mode| mode as i32))).map_err(ending)
}

pub fn global() -> Mode {
    parse(GLOBAL.load(Relaxed)).unwrap_or(Mode::Default)
}

/// `FOLLOW`, or a mode.
pub fn own() -> i32 {
    OWN.try_with(|own| own.0.get()).unwrap_or(FOLLOW)
}

/// What the environment says, unless the program said something.
pub fn configure() {
    let Some(word) = config::get(VARIABLE) else { return };
    let mode = match word.as_str() {
        "default" | "0" => Mode::Default,
        "warn" | "1" => Mode::Warn,
        "error" | "2" => Mode::Error,
        _ => return log::warn(&format!("{VARIABLE} is '{word}'; it can be default, warn or error (0, 1 or 2). Nothing is watched.")),
    };
    if !SAID.load(Relaxed) {
        set(mode);
    }
}

/// None: the log is told.
pub fn set_function(function: Option<Function>) {
    *FUNCTION.write() = function;
}

pub fn figures() -> Figures {
    let get = |figure: &AtomicU64| figure.load(Relaxed);
    Figures { waits: get(&WAITS), refused: get(&REFUSED), nanoseconds: get(&NANOSECONDS), longest: get(&LONGEST) }
}

pub fn reset_figures() {
    [&WAITS, &REFUSED, &NANOSECONDS, &LONGEST].into_iter().for_each(|figure| figure.store(0, Relaxed));
}

/// Does what makes the host wait, or may. What waits inside it is a part of it.
#[inline]
pub fn blocking<T>(call: &'static str, kind: Kind, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let watched = if watch::any(watch::SYNC) { Watched::begin(call, kind)? } else { None };
    let outcome = work();
    drop(watched);
    outcome
}

/// Does what has to be done whatever the mode: waits in it are told and not refused.
pub fn unrefused<T>(work: impl FnOnce() -> T) -> T {
    let _state = Enter::of(if STATE.get() == State::Inside { State::Inside } else { State::Must });
    work()
}

/// Puts the state back, whatever happens.
struct Enter(State);

impl Enter {
    fn of(state: State) -> Enter {
        Enter(STATE.replace(state))
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        STATE.set(self.0);
    }
}

struct Watched {
    call: &'static str,
    began: Instant,
    _state: Enter,
}

impl Watched {
    #[cold]
    fn begin(call: &'static str, kind: Kind) -> Result<Option<Watched>> {
        let mode = if own() == FOLLOW { GLOBAL.load(Relaxed) } else { own() };
        let state = STATE.get();
        if mode == Mode::Default as i32 || state == State::Inside {
            return Ok(None);
        }
        if mode == Mode::Error as i32 && kind == Kind::Wait && state == State::Plain {
            return Err(refuse(call));
        }
        Ok(Some(Watched { call, began: Instant::now(), _state: Enter::of(State::Inside) }))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let time = self.began.elapsed();
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        WAITS.fetch_add(1, Relaxed);
        NANOSECONDS.fetch_add(nanoseconds, Relaxed);
        LONGEST.fetch_max(nanoseconds, Relaxed);
        let blocked = Blocked { function: name(), call: self.call, annotation: annotation::current(), time, refused: false };
        watch::later(move || tell(&blocked));
    }
}

fn refuse(call: &'static str) -> Error {
    REFUSED.fetch_add(1, Relaxed);
    let blocked = Blocked { function: name(), call, annotation: annotation::current(), time: Duration::ZERO, refused: true };
    watch::later(move || {
        // The log need not repeat the error.
        let function = FUNCTION.read().clone();
        if let Some(function) = function {
            function(&blocked);
        }
    });
    let text = format!(
        "called a synchronizing CUDA operation: {} would make the host wait ({call}){}. The synchronization debug mode is error: leave the \
         call out here, or set another mode (tcuda_set_sync_debug_mode).",
        blocked.function,
        annotated(&blocked)
    );
    Error::new(Status::TCUDA_ERROR_INVALID_STATE, text)
}

fn name() -> &'static str {
    match watch::function() {
        "" => "tcuda",
        function => function,
    }
}

fn annotated(blocked: &Blocked) -> String {
    match annotation::text(blocked.annotation) {
        "" => String::new(),
        text => format!(", in '{text}'"),
    }
}

fn tell(blocked: &Blocked) {
    let function = FUNCTION.read().clone();
    if let Some(function) = function {
        return function(blocked);
    }
    let time = blocked.time.as_secs_f64() * 1e3;
    log::warn(&format!(
        "called a synchronizing CUDA operation: {} made the host wait for {time:.3} ms ({}){}",
        blocked.function,
        blocked.call,
        annotated(blocked)
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    type Told = (&'static str, &'static str, bool);
    static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());

    /// One test: the mode of the process and the figures are the process's. Only this thread has a mode.
    #[test]
    fn what_waits_is_counted_told_or_refused() {
        set_function(Some(Arc::new(|blocked| TOLD.lock().push((blocked.function, blocked.call, blocked.refused)))));
        let call = |call: &'static str, kind| blocking(call, kind, || Ok(1));
        let told = || {
            watch::deliver();
            std::mem::take(&mut *TOLD.lock())
        };
        assert_eq!(call("a", Kind::Wait), Ok(1));
        assert!(told().is_empty());

        set_own(Some(Mode::Warn)).unwrap();
        let before = figures();
        assert_eq!(call("a", Kind::Wait), Ok(1));
        // What waits in it is a part of it.
        assert_eq!(blocking("b", Kind::Wait, || call("c", Kind::Wait)), Ok(1));
        assert_eq!(told(), [("tcuda", "a", false), ("tcuda", "b", false)]);
        assert_eq!((figures().waits - before.waits, figures().refused), (2, before.refused));
        assert!(figures().nanoseconds > before.nanoseconds && figures().longest > 0);

        set_own(Some(Mode::Error)).unwrap();
        let error = call("a", Kind::Wait).unwrap_err();
        assert!(error.message.starts_with("called a synchronizing CUDA operation") && error.message.contains("(a)"), "{error}");
        assert_eq!(call("d", Kind::Driver), Ok(1));
        assert_eq!(unrefused(|| call("e", Kind::Wait)), Ok(1));
        assert!(call("a", Kind::Wait).is_err());
        assert_eq!(told().iter().map(|told| told.2).collect::<Vec<_>>(), [true, false, false, true]);
        // Another thread has no mode of its own, and the process has the default one.
        std::thread::spawn(|| assert_eq!(blocking("x", Kind::Wait, || Ok(2)), Ok(2))).join().unwrap();
        // One that ends with a mode leaves nothing behind.
        std::thread::spawn(|| set_own(Some(Mode::Error)).unwrap()).join().unwrap();
        set_own(None).unwrap();
        assert_eq!((own(), call("a", Kind::Wait), THREADS.load(Relaxed)), (FOLLOW, Ok(1), 0));
        assert!(told().is_empty() && !watch::any(watch::SYNC));
        set_function(None);
        reset_figures();
        assert_eq!(figures(), Figures::default());
    }

    #[test]
    fn words_and_numbers_of_modes() {
        assert_eq!([0, 1, 2].map(|mode| parse(mode).unwrap()), [Mode::Default, Mode::Warn, Mode::Error]);
        for wrong in [-1, 3, i32::MAX] {
            assert!(parse(wrong).unwrap_err().message.starts_with("invalid value of debug_mode"));
        }
    }
}
