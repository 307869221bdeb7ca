//! Texts that go out: `(text, capacity, &needed)`, or to a program's function.

use super::guard::null;
use crate::base::{Error, Result, Status};
use std::ffi::{CString, c_char};

/// As C has it: zero bytes become blanks.
pub fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// Where a caller wants a text. NULL and 0 ask for the size only.
pub struct TextOut {
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
}

impl TextOut {
    /// `needed` may be NULL when there is a buffer.
    pub fn new(text: *mut c_char, capacity: usize, needed: *mut usize) -> Result<TextOut> {
        if text.is_null() && capacity != 0 {
            return Err(Error::invalid_argument(format!(
                "'text' is NULL, but 'capacity' is {capacity}. Give a buffer, or NULL and 0 to ask for the size."
            )));
        }
        if text.is_null() && needed.is_null() {
            return Err(null("needed"));
        }
        Ok(TextOut { text, capacity, needed })
    }

    /// Writes the text with its terminating zero, which `needed` counts. Too small a buffer stays as it was.
    pub fn write(self, value: &str) -> Result<()> {
        let needed = value.len() + 1;
        if !self.needed.is_null() {
            unsafe { self.needed.write(needed) };
        }
        if self.text.is_null() {
            return Ok(());
        }
        if self.capacity < needed {
            return Err(Error::new(
                Status::TCUDA_ERROR_BUFFER_TOO_SMALL,
                format!("The text needs {needed} bytes with its terminating zero; the buffer has {}.", self.capacity),
            )
            .with_bytes(needed as u64));
        }
        unsafe {
            std::ptr::copy_nonoverlapping(value.as_ptr().cast(), self.text, value.len());
            self.text.add(value.len()).write(0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    fn give(buffer: &mut [u8], needed: &mut usize, value: &str) -> Result<()> {
        TextOut::new(buffer.as_mut_ptr().cast(), buffer.len(), needed)?.write(value)
    }

    #[test]
    fn the_size_is_asked_with_null_and_zero() {
        let mut needed = 0;
        TextOut::new(null_mut(), 0, &mut needed).unwrap().write("four").unwrap();
        assert_eq!(needed, 5);
        assert!(TextOut::new(null_mut(), 0, null_mut()).is_err());
        assert!(TextOut::new(null_mut(), 9, &mut needed).is_err());
    }

    #[test]
    fn a_buffer_is_filled_or_left_alone() {
        let (mut needed, mut buffer) = (0, [b'x'; 6]);
        for capacity in 0..5 {
            let error = give(&mut buffer[..capacity], &mut needed, "four").unwrap_err();
            assert_eq!((error.status, error.bytes, needed), (Status::TCUDA_ERROR_BUFFER_TOO_SMALL, 5, 5));
            assert_eq!(buffer, [b'x'; 6]);
        }
        give(&mut buffer[..5], &mut needed, "four").unwrap();
        assert_eq!(&buffer, b"four\0x");
        TextOut::new(buffer.as_mut_ptr().cast(), 6, null_mut()).unwrap().write("").unwrap();
        assert_eq!(buffer[0], 0);
    }
}
