//! Memory of the host for as much as a program asks for: where there is none, an error, and not the end of the process.

use super::{Error, Result, Status};
use std::fmt::Display;

/// Room for so many more.
pub fn reserve<T>(list: &mut Vec<T>, more: usize, what: impl Display) -> Result<()> {
    list.try_reserve(more).map_err(|_| lacking(more.saturating_mul(size_of::<T>()), what))
}

/// One more.
pub fn push<T>(list: &mut Vec<T>, value: T, what: impl Display) -> Result<()> {
    reserve(list, 1, what)?;
    list.push(value);
    Ok(())
}

/// That so many bytes can be had, for what is made of them in parts that cannot do without. Another thread may be quicker.
pub fn check(bytes: usize, what: impl Display) -> Result<()> {
    let mut probe = Vec::<u8>::new();
    let has_room = reserve(&mut probe, bytes, what);
    // What nobody looks at the compiler need not ask for.
    std::hint::black_box(&probe);
    has_room
}

#[cold]
pub fn lacking(bytes: usize, what: impl Display) -> Error {
    let text = format!("The host has no memory for {what}, which takes {bytes} bytes.");
    Error::new(Status::TCUDA_ERROR_OUT_OF_HOST_MEMORY, text).with_bytes(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_cannot_have_is_an_error() {
        let mut list = vec![1u64];
        assert_eq!(reserve(&mut list, 1000, "a list"), Ok(()));
        assert!(list.capacity() > 1000);
        let error = reserve(&mut list, usize::MAX / 16, "a list").unwrap_err();
        assert_eq!((error.status, error.bytes, &list[..]), (Status::TCUDA_ERROR_OUT_OF_HOST_MEMORY, u64::MAX / 2 - 7, &[1][..]));
        assert!(error.message.contains("for a list, which"), "{error}");
        assert!(check(usize::MAX, "all").is_err() && check(0, "nothing").is_ok());
    }
}
