//! Python's pickle, protocol 2: dictionaries, lists, pairs, texts, whole numbers, True and False. No opcode that names or calls anything,
//! and none that torch's page of its viewer does not know. Texts are written once and fetched after that.

use super::form::Form;
use std::collections::HashMap;
use std::io::{Result, Write};

const PROTO: u8 = 0x80;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const EMPTY_DICT: u8 = b'}';
const SETITEMS: u8 = b'u';
const EMPTY_LIST: u8 = b']';
const APPENDS: u8 = b'e';
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const BINUNICODE: u8 = b'X';
const NEWTRUE: u8 = 0x88;
const NEWFALSE: u8 = 0x89;
const TUPLE2: u8 = 0x86;
const BINPUT: u8 = b'q';
const LONG_BINPUT: u8 = b'r';
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';

pub struct Pickle<'a> {
    out: &'a mut dyn Write,
    /// Places of the texts in the reader's memo.
    memo: HashMap<Box<str>, u32>,
}

impl<'a> Pickle<'a> {
    pub fn new(out: &'a mut dyn Write) -> Result<Pickle<'a>> {
        out.write_all(&[PROTO, 2])?;
        Ok(Pickle { out, memo: HashMap::new() })
    }

    pub fn finish(self) -> Result<()> {
        self.out.write_all(&[STOP])
    }

    fn memoised(&mut self, short: u8, long: u8, place: u32) -> Result<()> {
        match u8::try_from(place) {
            Ok(place) => self.out.write_all(&[short, place]),
            Err(_) => {
                self.out.write_all(&[long])?;
                self.out.write_all(&place.to_le_bytes())
            }
        }
    }
}

impl Form for Pickle<'_> {
    fn dictionary(&mut self) -> Result<()> {
        self.out.write_all(&[EMPTY_DICT, MARK])
    }

    fn end_dictionary(&mut self) -> Result<()> {
        self.out.write_all(&[SETITEMS])
    }

    fn list(&mut self) -> Result<()> {
        self.out.write_all(&[EMPTY_LIST, MARK])
    }

    fn end_list(&mut self) -> Result<()> {
        self.out.write_all(&[APPENDS])
    }

    fn key(&mut self, key: &str) -> Result<()> {
        self.text(key)
    }

    fn text(&mut self, text: &str) -> Result<()> {
        if let Some(place) = self.memo.get(text) {
            return self.memoised(BINGET, LONG_BINGET, *place);
        }
        let length = u32::try_from(text.len()).map_err(std::io::Error::other)?;
        self.out.write_all(&[BINUNICODE])?;
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(text.as_bytes())?;
        let place = self.memo.len() as u32;
        let mut kept = String::new();
        kept.try_reserve_exact(text.len())?;
        kept.push_str(text);
        self.memo.try_reserve(1)?;
        self.memo.insert(kept.into(), place);
        self.memoised(BINPUT, LONG_BINPUT, place)
    }

    fn number(&mut self, number: i64) -> Result<()> {
        if let Ok(number) = u8::try_from(number) {
            self.out.write_all(&[BININT1, number])
        } else if let Ok(number) = u16::try_from(number) {
            self.out.write_all(&[BININT2])?;
            self.out.write_all(&number.to_le_bytes())
        } else if let Ok(number) = i32::try_from(number) {
            self.out.write_all(&[BININT])?;
            self.out.write_all(&number.to_le_bytes())
        } else {
            self.out.write_all(&[LONG1, 8])?;
            self.out.write_all(&number.to_le_bytes())
        }
    }

    fn flag(&mut self, flag: bool) -> Result<()> {
        self.out.write_all(&[if flag { NEWTRUE } else { NEWFALSE }])
    }

    fn pair(&mut self, first: i64, second: i64) -> Result<()> {
        self.number(first)?;
        self.number(second)?;
        self.out.write_all(&[TUPLE2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pickled(write: impl FnOnce(&mut Pickle) -> Result<()>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut pickle = Pickle::new(&mut bytes).unwrap();
        write(&mut pickle).unwrap();
        pickle.finish().unwrap();
        bytes
    }

    #[test]
    fn numbers_take_as_many_bytes_as_they_need() {
        let of = |number| pickled(|pickle| pickle.number(number)).len() - 3;
        let numbers = [0, 255, 256, 65_535, 65_536, -1, i64::from(i32::MAX), i64::from(i32::MIN), 1 << 31, i64::MAX, i64::MIN];
        assert_eq!(numbers.map(of), [2, 2, 3, 3, 5, 5, 5, 5, 10, 10, 10]);
    }

    #[test]
    fn a_text_is_written_once() {
        let bytes = pickled(|pickle| {
            pickle.list()?;
            (0..300).try_for_each(|at| pickle.text(&format!("text {at}")))?;
            pickle.text("text 0")?;
            pickle.text("text 299")?;
            pickle.end_list()
        });
        assert!(bytes.ends_with(&[BINGET, 0, LONG_BINGET, 43, 1, 0, 0, APPENDS, STOP]));
        assert_eq!(bytes.windows(6).filter(|part| part == b"text 7").count(), 11);
    }

    #[test]
    fn small_values_are_what_python_writes() {
        let bytes = pickled(|pickle| {
            pickle.dictionary()?;
            pickle.key_text("a", "\u{e9}\n")?;
            pickle.key_flag("b", true)?;
            pickle.key("c")?;
            pickle.pair(0, 7)?;
            pickle.end_dictionary()
        });
        let right: &[u8] = b"\x80\x02}(X\x01\0\0\0aq\0X\x03\0\0\0\xc3\xa9\nq\x01X\x01\0\0\0bq\x02\x88X\x01\0\0\0cq\x03K\0K\x07\x86u.";
        assert_eq!(bytes, right);
    }
}
