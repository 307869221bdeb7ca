//! Warnings and notes: to the program's callback, else to stderr as far as TCUDA_LOG asks for them.

use super::{config, process, spared, work};
use once_cell::race::OnceNonZeroUsize;
use parking_lot::RwLock;
use std::fs::File;
use std::io::{Write, stderr};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(i32)]
pub enum Level {
    Error = 1,
    Warning = 2,
    Info = 3,
}

pub type Sink = std::sync::Arc<dyn Fn(Level, &str) + Send + Sync>;

static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// None puts the default back (stderr).
pub fn set_sink(sink: Option<Sink>) {
    *SINK.write() = sink;
}

pub(super) fn is_locked() -> bool {
    SINK.is_locked()
}

/// No lock is held while the sink runs, so it may call back. In the child of a fork that is refused nothing is written: another thread of the
/// parent may have held a lock.
pub fn write(level: Level, text: &str) {
    if process::is_forked() {
        return;
    }
    let sink = SINK.read().clone();
    match sink {
        Some(sink) => work::aside(|| sink(level, text)),
        None if level as usize <= threshold() => {
            let line = format!("tcuda: {text}\n");
            // Past std's lock, which a child of fork may find held. stderr may be closed: a log line is not worth a panic.
            let _ = spared::sigpipe(|| match stderr().as_fd().try_clone_to_owned() {
                Ok(stderr) => File::from(stderr).write_all(line.as_bytes()),
                Err(_) => stderr().write_all(line.as_bytes()),
            });
        }
        None => {}
    }
}

const VARIABLE: &str = "TCUDA_LOG";

fn parse(word: &str) -> Option<Level> {
    match word {
        "error" => Some(Level::Error),
        "warning" => Some(Level::Warning),
        "info" => Some(Level::Info),
        _ => None,
    }
}

/// The least important level that goes to stderr. A word that is none counts as the default.
fn threshold() -> usize {
    static THRESHOLD: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let read = || config::get(VARIABLE).and_then(|word| parse(&word)).unwrap_or(Level::Warning);
    THRESHOLD.get_or_init(|| NonZeroUsize::new(read() as usize).expect("no level is 0")).get()
}

/// Says which word is none.
pub fn configure() {
    if let Some(word) = config::get(VARIABLE).filter(|word| parse(word).is_none()) {
        warn(&format!("{VARIABLE} is '{word}'; it can be error, warning or info. It counts as warning."));
    }
}

pub fn warn(text: &str) {
    write(Level::Warning, text);
}

pub fn info(text: &str) {
    write(Level::Info, text);
}
