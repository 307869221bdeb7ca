//! Handles, and structs that can grow: their first field is `struct_size`.
#![allow(non_camel_case_types)]

use super::guard::null;
use crate::base::{Error, Result, Status};
use std::ffi::c_void;

/// Only ever a pointer to it: what CUDA calls by this name too.
pub enum CUstream_st {}
/// Only ever a pointer to it: what CUDA calls by this name too.
pub enum CUevent_st {}

/// cudaStream_t. The header declares it by hand, so that it goes together with CUDA's own.
pub type tcuda_stream_t = *mut CUstream_st;
/// cudaEvent_t, likewise.
pub type tcuda_event_t = *mut CUevent_st;

/// What a program wants to have back in its function.
pub struct UserData(pub *mut c_void);
// The program gave it to be used on any thread.
unsafe impl Send for UserData {}
unsafe impl Sync for UserData {}

/// A plain struct of the header whose first field is `size_t struct_size`.
///
/// # Safety
/// `repr(C)`, first field `struct_size: usize`, no padding, and any bytes are a valid value (so no `bool`, no enum).
pub unsafe trait Growing: Copy {}

/// One that comes in.
///
/// # Safety
/// `STARTS` has where all fields but the first begin.
pub unsafe trait Input: Growing {
    const STARTS: &[usize];
}

/// `Growing` and `Input`, from all fields but the first.
macro_rules! input {
    ($name:ident: $($field:ident),+) => {
        unsafe impl $crate::capi::structs::Growing for $name {}
        unsafe impl $crate::capi::structs::Input for $name {
            const STARTS: &[usize] = {
                let _all = |$name { struct_size: _, $($field: _),+ }: $name| {};
                &[$(std::mem::offset_of!($name, $field)),+]
            };
        }
    };
}
pub(super) use input;

/// An input struct. NULL gives None; an older caller's shorter struct is filled up with zeros, a newer one's longer struct is taken
/// if the part that is not known here is all zero. One that ends inside of a field is nobody's.
///
/// # Safety
/// `pointer` is NULL or has `struct_size` readable bytes.
pub unsafe fn read<T: Input>(pointer: *const T, parameter: &str) -> Result<Option<T>> {
    if pointer.is_null() {
        return Ok(None);
    }
    let size = unsafe { pointer.cast::<usize>().read() };
    check_size::<T>(size, parameter)?;
    if size < size_of::<T>() && !T::STARTS.contains(&size) {
        return Err(Error::invalid_argument(format!(
            "'{parameter}' has struct_size {size}, which ends inside of a field. Set it to sizeof of the struct ({} in this version).",
            size_of::<T>()
        )));
    }
    let bytes = pointer.cast::<u8>();
    if size > size_of::<T>() {
        let tail = unsafe { std::slice::from_raw_parts(bytes.add(size_of::<T>()), size - size_of::<T>()) };
        if let Some(at) = tail.iter().position(|byte| *byte != 0) {
            return Err(Error::new(
                Status::TCUDA_ERROR_VERSION_MISMATCH,
                format!(
                    "'{parameter}' has struct_size {size} and sets byte {}; this tcuda ({}) knows {} bytes. Update the library, or leave \
                     the new fields zero.",
                    size_of::<T>() + at,
                    env!("CARGO_PKG_VERSION"),
                    size_of::<T>()
                ),
            ));
        }
    }
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    unsafe {
        std::ptr::copy_nonoverlapping(bytes, value.as_mut_ptr().cast::<u8>(), size.min(size_of::<T>()));
        Ok(Some(value.assume_init()))
    }
}

/// An output struct: the caller's `struct_size` says how much may be written.
pub struct StructOut<T> {
    pointer: *mut T,
    size: usize,
}

impl<T: Growing> StructOut<T> {
    /// # Safety
    /// `pointer` is NULL or has `struct_size` writable bytes.
    pub unsafe fn new(pointer: *mut T, parameter: &str) -> Result<StructOut<T>> {
        if pointer.is_null() {
            return Err(null(parameter));
        }
        let size = unsafe { pointer.cast::<usize>().read() };
        check_size::<T>(size, parameter)?;
        Ok(StructOut { pointer, size })
    }

    /// Fills the fields that both sides know; `struct_size` becomes the number of bytes filled. Nothing beyond is touched.
    pub fn write(self, value: &T) {
        let filled = self.size.min(size_of::<T>());
        unsafe {
            std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), self.pointer.cast::<u8>(), filled);
            self.pointer.cast::<usize>().write(filled);
        }
    }
}

fn check_size<T>(size: usize, parameter: &str) -> Result<()> {
    // 64 KiB is more than any version will have: larger is a struct that was never initialised.
    if (size_of::<usize>()..=1 << 16).contains(&size) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "'{parameter}' has struct_size {size}. Set it to sizeof of the struct ({} in this version) before the call.",
        size_of::<T>()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Default, PartialEq, Debug)]
    struct New {
        struct_size: usize,
        first: u64,
        second: u64,
    }
    input!(New: first, second);

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Old {
        struct_size: usize,
        first: u64,
    }
    input!(Old: first);

    #[test]
    fn input_of_an_older_and_a_newer_caller() {
        let old = Old { struct_size: size_of::<Old>(), first: 5 };
        let read_as_new = unsafe { read(std::ptr::from_ref(&old).cast::<New>(), "options") }.unwrap().unwrap();
        assert_eq!(read_as_new, New { struct_size: 16, first: 5, second: 0 });
        let mut new = New { struct_size: size_of::<New>(), first: 5, second: 0 };
        assert_eq!(unsafe { read(std::ptr::from_ref(&new).cast::<Old>(), "options") }.unwrap().unwrap().first, 5);
        new.second = 1;
        let error = unsafe { read(std::ptr::from_ref(&new).cast::<Old>(), "options") }.err().unwrap();
        assert_eq!(error.status, Status::TCUDA_ERROR_VERSION_MISMATCH);
        assert!(unsafe { read::<New>(std::ptr::null(), "options") }.unwrap().is_none());
    }

    #[test]
    fn a_field_that_is_cut_is_refused() {
        for (struct_size, fits) in [(8, true), (9, false), (12, false), (15, false), (16, true), (20, false), (23, false), (24, true)] {
            let value = New { struct_size, first: 1 << 40 | 1, second: 0 };
            let status = unsafe { read(&value, "options") }.map_err(|error| error.status);
            let expected = if fits {
                Ok(1 << 40 | 1).map(|first| if struct_size == 8 { 0 } else { first })
            } else {
                Err(Status::TCUDA_ERROR_INVALID_ARGUMENT)
            };
            assert_eq!(status.map(|value| value.unwrap().first), expected, "{struct_size}");
        }
    }

    #[test]
    fn output_of_an_older_and_a_newer_library() {
        let mut new = New { struct_size: size_of::<Old>(), first: 0, second: 9 };
        unsafe { StructOut::new(&mut new, "info") }.unwrap().write(&New { struct_size: 0, first: 3, second: 4 });
        assert_eq!(new, New { struct_size: 16, first: 3, second: 9 });
        new.struct_size = size_of::<New>();
        unsafe { StructOut::new(std::ptr::from_mut(&mut new).cast::<Old>(), "info") }.unwrap().write(&Old { struct_size: 0, first: 7 });
        assert_eq!(new, New { struct_size: 16, first: 7, second: 9 });
    }

    #[test]
    fn a_size_that_nobody_set_is_refused() {
        for struct_size in [0, 7, usize::MAX] {
            let mut value = New { struct_size, ..New::default() };
            assert!(unsafe { read(&value, "options") }.is_err());
            assert!(unsafe { StructOut::new(&mut value, "info") }.is_err());
        }
        assert!(unsafe { StructOut::<New>::new(std::ptr::null_mut(), "info") }.is_err());
    }
}
