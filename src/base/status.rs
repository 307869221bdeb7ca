//! The status codes of the C interface: one list for the enum, the names and the texts.

/// What a call answers. 0 is success; numbers are never reused.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub enum tcuda_status_t {
    /// The call did what it says.
    TCUDA_SUCCESS = 0,
    /// An argument is NULL, out of range, or contradicts another.
    TCUDA_ERROR_INVALID_ARGUMENT = 1,
    /// A stream, event or other handle is not (or no longer) one.
    TCUDA_ERROR_INVALID_HANDLE = 2,
    /// There is no device of that index.
    TCUDA_ERROR_INVALID_DEVICE = 3,
    /// A pointer that tcuda did not hand out, or that was freed before.
    TCUDA_ERROR_INVALID_POINTER = 4,
    /// No driver, no CUDA runtime, or no device; the message says what was looked for and where.
    TCUDA_ERROR_NO_DEVICE = 5,
    /// The driver is older than every CUDA runtime that was found.
    TCUDA_ERROR_INSUFFICIENT_DRIVER = 6,
    /// The device (or the limit set for it) has no room for the request.
    TCUDA_ERROR_OUT_OF_MEMORY = 7,
    /// The host has no memory for the request.
    TCUDA_ERROR_OUT_OF_HOST_MEMORY = 8,
    /// This device, driver or backend cannot do it.
    TCUDA_ERROR_NOT_SUPPORTED = 9,
    /// The work asked about is not complete yet.
    TCUDA_ERROR_NOT_READY = 10,
    /// Not allowed while a stream is being captured.
    TCUDA_ERROR_CAPTURE = 11,
    /// The device failed in a way that only a new process can mend.
    TCUDA_ERROR_DEVICE_LOST = 12,
    /// Called in a child of `fork`, after the parent had used the device.
    TCUDA_ERROR_FORKED = 13,
    /// Called after `tcuda_shutdown`.
    TCUDA_ERROR_SHUT_DOWN = 14,
    /// The buffer given for a text or list is too small.
    TCUDA_ERROR_BUFFER_TOO_SMALL = 15,
    /// A struct is of a version that this library does not know.
    TCUDA_ERROR_VERSION_MISMATCH = 16,
    /// The call is right, but not now (already initialised, already owned, still in use).
    TCUDA_ERROR_INVALID_STATE = 17,
    /// The compiler refused a source; the message has its log.
    TCUDA_ERROR_COMPILATION = 18,
    /// The other ranks of a communicator did not come within its time; it was aborted.
    TCUDA_ERROR_TIMEOUT = 19,
    /// Another rank of a communicator ended, failed, or asked for something else; it was aborted.
    TCUDA_ERROR_REMOTE = 20,
    /// Any other error of the CUDA runtime or driver; `tcuda_last_error_native` has its code.
    TCUDA_ERROR_CUDA = 30,
    /// Any other error of the operating system.
    TCUDA_ERROR_SYSTEM = 31,
    /// Any other error of NCCL; `tcuda_last_error_native` has its code.
    TCUDA_ERROR_NCCL = 32,
    /// A defect of tcuda. Nothing is lost, but please report it.
    TCUDA_ERROR_INTERNAL = 999,
}

pub use tcuda_status_t as Status;
use tcuda_status_t::*;

const LIST: &[(Status, &str, &str)] = &[
    (TCUDA_SUCCESS, "TCUDA_SUCCESS", "success"),
    (TCUDA_ERROR_INVALID_ARGUMENT, "TCUDA_ERROR_INVALID_ARGUMENT", "invalid argument"),
    (TCUDA_ERROR_INVALID_HANDLE, "TCUDA_ERROR_INVALID_HANDLE", "invalid handle"),
    (TCUDA_ERROR_INVALID_DEVICE, "TCUDA_ERROR_INVALID_DEVICE", "invalid device index"),
    (TCUDA_ERROR_INVALID_POINTER, "TCUDA_ERROR_INVALID_POINTER", "invalid pointer"),
    (TCUDA_ERROR_NO_DEVICE, "TCUDA_ERROR_NO_DEVICE", "no usable CUDA device"),
    (TCUDA_ERROR_INSUFFICIENT_DRIVER, "TCUDA_ERROR_INSUFFICIENT_DRIVER", "driver too old"),
    (TCUDA_ERROR_OUT_OF_MEMORY, "TCUDA_ERROR_OUT_OF_MEMORY", "out of device memory"),
    (TCUDA_ERROR_OUT_OF_HOST_MEMORY, "TCUDA_ERROR_OUT_OF_HOST_MEMORY", "out of host memory"),
    (TCUDA_ERROR_NOT_SUPPORTED, "TCUDA_ERROR_NOT_SUPPORTED", "not supported"),
    (TCUDA_ERROR_NOT_READY, "TCUDA_ERROR_NOT_READY", "not ready"),
    (TCUDA_ERROR_CAPTURE, "TCUDA_ERROR_CAPTURE", "not allowed during capture"),
    (TCUDA_ERROR_DEVICE_LOST, "TCUDA_ERROR_DEVICE_LOST", "device lost"),
    (TCUDA_ERROR_FORKED, "TCUDA_ERROR_FORKED", "used in a forked child"),
    (TCUDA_ERROR_SHUT_DOWN, "TCUDA_ERROR_SHUT_DOWN", "already shut down"),
    (TCUDA_ERROR_BUFFER_TOO_SMALL, "TCUDA_ERROR_BUFFER_TOO_SMALL", "buffer too small"),
    (TCUDA_ERROR_VERSION_MISMATCH, "TCUDA_ERROR_VERSION_MISMATCH", "struct version not known"),
    (TCUDA_ERROR_INVALID_STATE, "TCUDA_ERROR_INVALID_STATE", "not possible in this state"),
    (TCUDA_ERROR_COMPILATION, "TCUDA_ERROR_COMPILATION", "source does not compile"),
    (TCUDA_ERROR_TIMEOUT, "TCUDA_ERROR_TIMEOUT", "other ranks did not come in time"),
    (TCUDA_ERROR_REMOTE, "TCUDA_ERROR_REMOTE", "another rank failed"),
    (TCUDA_ERROR_CUDA, "TCUDA_ERROR_CUDA", "CUDA error"),
    (TCUDA_ERROR_SYSTEM, "TCUDA_ERROR_SYSTEM", "system error"),
    (TCUDA_ERROR_NCCL, "TCUDA_ERROR_NCCL", "NCCL error"),
    (TCUDA_ERROR_INTERNAL, "TCUDA_ERROR_INTERNAL", "internal error"),
];

/// The constant's name, or None for a number that is no status.
pub fn name(code: i32) -> Option<&'static str> {
    LIST.iter().find(|entry| entry.0 as i32 == code).map(|entry| entry.1)
}

/// A few words in English, or None for a number that is no status.
pub fn text(code: i32) -> Option<&'static str> {
    LIST.iter().find(|entry| entry.0 as i32 == code).map(|entry| entry.2)
}

/// Every status, in the order of the numbers.
pub fn all() -> impl Iterator<Item = Status> {
    LIST.iter().map(|entry| entry.0)
}
