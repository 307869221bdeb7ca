//! An error is a value: a status, a message for people, the native code.

use super::status::Status;
use std::borrow::Cow;
use std::{fmt, io};

#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    pub status: Status,
    /// What was asked, what was found, what to do. One or a few sentences.
    pub message: Cow<'static, str>,
    /// The code of the CUDA runtime or driver, or errno for system errors; 0 where there is none.
    pub native: i32,
    /// The device it happened on, or -1.
    pub device: i32,
    /// The bytes asked for, where that means something.
    pub bytes: u64,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(status: Status, message: impl Into<Cow<'static, str>>) -> Error {
        Error { status, message: message.into(), native: 0, device: -1, bytes: 0 }
    }

    pub fn invalid_argument(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Status::TCUDA_ERROR_INVALID_ARGUMENT, message)
    }

    pub fn not_supported(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Status::TCUDA_ERROR_NOT_SUPPORTED, message)
    }

    pub fn internal(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Status::TCUDA_ERROR_INTERNAL, message)
    }

    /// errno of the calling thread, with what was tried.
    pub fn system(what: &str) -> Error {
        Error::io(what, &io::Error::last_os_error())
    }

    pub fn io(what: &str, error: &io::Error) -> Error {
        let native = error.raw_os_error().unwrap_or(0);
        let cure = if native == libc::EMFILE { "; ulimit -n is how many this process may have" } else { "" };
        Error::new(Status::TCUDA_ERROR_SYSTEM, format!("{what}: {error}{cure}")).with_native(native)
    }

    pub fn with_native(mut self, native: i32) -> Error {
        self.native = native;
        self
    }

    pub fn on_device(mut self, device: i32) -> Error {
        self.device = device;
        self
    }

    pub fn with_bytes(mut self, bytes: u64) -> Error {
        self.bytes = bytes;
        self
    }

    /// Puts a sentence in front of the message.
    pub fn context(mut self, before: impl fmt::Display) -> Error {
        self.message = format!("{before}: {}", self.message).into();
        self
    }

    /// Whether a second try would hear the same: the device is lost, or what is meant is not there (any more).
    pub fn stays(&self) -> bool {
        use Status::*;
        matches!(
            self.status,
            TCUDA_ERROR_DEVICE_LOST | TCUDA_ERROR_INVALID_HANDLE | TCUDA_ERROR_INVALID_POINTER | TCUDA_ERROR_SHUT_DOWN | TCUDA_ERROR_FORKED
        )
    }
}

/// What undoes something is tried once more before it is given up: a leak is worse than a second call. Not where the first may have done it, or a
/// second cannot.
pub fn insist<T>(mut undo: impl FnMut() -> Result<T>) -> Result<T> {
    undo().or_else(|error| if error.stays() { Err(error) } else { undo() })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_not_tried_again() {
        let tries = |answer: Option<Status>| {
            let mut tries = 0;
            let done = insist(|| {
                tries += 1;
                answer.map_or(Ok(()), |status| Err(Error::new(status, "")))
            });
            assert_eq!(done.map_err(|error| error.status), answer.map_or(Ok(()), Err));
            tries
        };
        assert_eq!([None, Some(Status::TCUDA_ERROR_CUDA), Some(Status::TCUDA_ERROR_CAPTURE)].map(tries), [1, 2, 2]);
        assert_eq!([Status::TCUDA_ERROR_DEVICE_LOST, Status::TCUDA_ERROR_INVALID_HANDLE].map(|status| tries(Some(status))), [1, 1]);
    }
}
