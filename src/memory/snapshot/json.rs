//! JSON, in UTF-8, each part of a list on its line so that a file can be looked at.

use super::form::Form;
use std::io::{Result, Write};

pub struct Json<'a> {
    out: &'a mut dyn Write,
    /// Whether a comma is due before the next value.
    comma: bool,
    keyed: bool,
    depth: u32,
}

/// A text in quotes. `<` is written as its number too, so that it cannot end the script of a page.
pub fn quote(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(b"\"")?;
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && ![b'"', b'\\', b'<', 0x7f].contains(&byte) {
            continue;
        }
        out.write_all(&text.as_bytes()[plain..at])?;
        match byte {
            b'"' => out.write_all(b"\\\"")?,
            b'\\' => out.write_all(b"\\\\")?,
            b'\n' => out.write_all(b"\\n")?,
            _ => write!(out, "\\u{byte:04x}")?,
        }
        plain = at + 1;
    }
    out.write_all(&text.as_bytes()[plain..])?;
    out.write_all(b"\"")
}

impl<'a> Json<'a> {
    pub fn new(out: &'a mut dyn Write) -> Json<'a> {
        Json { out, comma: false, keyed: false, depth: 0 }
    }

    fn separate(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.comma, true) { self.out.write_all(b",") } else { Ok(()) }
    }

    fn open(&mut self, bracket: u8) -> Result<()> {
        /// Deeper, a part stays on its line.
        const LINES: u32 = 5;
        self.separate()?;
        if !std::mem::take(&mut self.keyed) && (1..LINES).contains(&self.depth) {
            self.out.write_all(b"\n")?;
        }
        self.depth += 1;
        self.comma = false;
        self.out.write_all(&[bracket])
    }

    fn close(&mut self, bracket: u8) -> Result<()> {
        self.depth -= 1;
        self.comma = true;
        self.out.write_all(&[bracket])
    }
}

impl Form for Json<'_> {
    fn dictionary(&mut self) -> Result<()> {
        self.open(b'{')
    }

    fn end_dictionary(&mut self) -> Result<()> {
        self.close(b'}')
    }

    fn list(&mut self) -> Result<()> {
        self.open(b'[')
    }

    fn end_list(&mut self) -> Result<()> {
        self.close(b']')
    }

    fn key(&mut self, key: &str) -> Result<()> {
        self.separate()?;
        quote(self.out, key)?;
        (self.comma, self.keyed) = (false, true);
        self.out.write_all(b":")
    }

    fn text(&mut self, text: &str) -> Result<()> {
        self.separate()?;
        self.keyed = false;
        quote(self.out, text)
    }

    fn number(&mut self, number: i64) -> Result<()> {
        self.separate()?;
        self.keyed = false;
        write!(self.out, "{number}")
    }

    fn flag(&mut self, flag: bool) -> Result<()> {
        self.separate()?;
        self.keyed = false;
        write!(self.out, "{flag}")
    }

    fn pair(&mut self, first: i64, second: i64) -> Result<()> {
        self.separate()?;
        self.keyed = false;
        write!(self.out, "[{first},{second}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted() {
        let quoted = |text| {
            let mut bytes = Vec::new();
            quote(&mut bytes, text).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(quoted("plain \u{e9}"), "\"plain \u{e9}\"");
        assert_eq!(quoted("\"a\\b\"\n\t\0</script>"), r#""\"a\\b\"\n\u0009\u0000\u003c/script>""#);
        assert_eq!(quoted(""), "\"\"");
    }

    #[test]
    fn commas_stand_between() {
        let mut bytes = Vec::new();
        let mut json = Json::new(&mut bytes);
        (|| {
            json.dictionary()?;
            json.key("list")?;
            json.list()?;
            json.number(-1)?;
            json.pair(1, 2)?;
            json.list()?;
            json.end_list()?;
            json.end_list()?;
            json.key_flag("flag", false)?;
            json.end_dictionary()
        })()
        .unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap().replace('\n', ""), r#"{"list":[-1,[1,2],[]],"flag":false}"#);
    }
}
