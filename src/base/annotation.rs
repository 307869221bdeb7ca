//! Annotations: what a thread says that it is doing, for those who look at its allocations and waits. A text is kept once, for as long as
//! the process, and has a number.

use super::{Error, Result, Status, room};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_char;

/// The number of no text.
pub const NONE: u32 = 0;
/// More are a mistake: texts that have a counter in them.
const MOST: usize = 1 << 20;

/// Texts by number, from 1, each with a zero byte behind it, and the numbers by text.
struct Texts {
    texts: Vec<&'static str>,
    numbers: Option<HashMap<&'static str, u32>>,
}

static TEXTS: Mutex<Texts> = Mutex::new(Texts { texts: Vec::new(), numbers: None });

thread_local!(static CURRENT: Cell<u32> = const { Cell::new(NONE) });

pub(super) fn is_locked() -> bool {
    TEXTS.is_locked()
}

/// The calling thread's annotation.
#[inline(always)]
pub fn current() -> u32 {
    CURRENT.get()
}

/// It is what is allocated for from now on; the number that was.
pub fn set_current(number: u32) -> u32 {
    CURRENT.replace(number)
}

/// The number of a text. The empty text has that of none.
pub fn number_of(text: &str) -> Result<u32> {
    if text.is_empty() {
        return Ok(NONE);
    }
    let mut texts = TEXTS.lock();
    if let Some(number) = texts.numbers.get_or_insert_default().get(text) {
        return Ok(*number);
    }
    if texts.texts.len() == MOST {
        let text = format!(
            "There are {MOST} different annotations, which are kept as long as the process. Leave out what changes with each, such as a counter."
        );
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_STATE, text));
    }
    let what = "another annotation";
    room::reserve(&mut texts.texts, 1, what)?;
    texts.numbers.get_or_insert_default().try_reserve(1).map_err(|_| room::lacking(text.len(), what))?;
    let kept: &'static str = format!("{text}\0").leak();
    texts.texts.push(kept);
    let number = texts.texts.len() as u32;
    texts.numbers.get_or_insert_default().insert(&kept[..text.len()], number);
    Ok(number)
}

/// The text of a number; empty: none.
pub fn text(number: u32) -> &'static str {
    kept(number).trim_end_matches('\0')
}

/// The same for C.
pub fn c_text(number: u32) -> *const c_char {
    kept(number).as_ptr().cast()
}

fn kept(number: u32) -> &'static str {
    match number {
        NONE => "\0",
        _ => TEXTS.lock().texts.get(number as usize - 1).copied().unwrap_or("\0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once() {
        let first = number_of("forward, layer 3").unwrap();
        assert_eq!(number_of(&String::from("forward, layer 3")).unwrap(), first);
        assert_ne!(number_of("backward").unwrap(), first);
        assert_eq!(text(first), "forward, layer 3");
        assert_eq!((kept(first), kept(NONE)), ("forward, layer 3\0", "\0"));
        assert_eq!(c_text(first).cast(), text(first).as_ptr());
        assert_eq!((number_of("").unwrap(), text(NONE), text(u32::MAX)), (NONE, "", ""));
    }

    #[test]
    fn each_thread_has_its_own() {
        let number = number_of("mine").unwrap();
        assert_eq!(set_current(number), NONE);
        std::thread::spawn(|| assert_eq!(current(), NONE)).join().unwrap();
        assert_eq!((current(), set_current(NONE), current()), (number, number, NONE));
    }
}
