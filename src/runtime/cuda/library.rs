//! A shared library, opened with the loader of the system.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Closed when dropped.
pub struct Library(*mut c_void);
// The loader is everybody's.
unsafe impl Send for Library {}
unsafe impl Sync for Library {}

impl Library {
    /// Loads by file name (found as the loader finds libraries) or path. Err is the loader's own text.
    pub fn open(name: &Path) -> Result<Library, String> {
        Library::with_flags(name, libc::RTLD_NOW | libc::RTLD_LOCAL)
    }

    /// The same, never to be unloaded: what was started in it lives on.
    pub fn open_for_good(name: &Path) -> Result<Library, String> {
        Library::with_flags(name, libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE)
    }

    /// The same by path, with its functions looked up when they are called.
    pub fn open_as_needed(path: &Path) -> Result<Library, String> {
        Library::with_flags(path, libc::RTLD_LAZY | libc::RTLD_LOCAL)
    }

    /// The library of that name if the process has it already.
    pub fn loaded(name: &Path) -> Option<Library> {
        Library::with_flags(name, libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NOLOAD).ok()
    }

    fn with_flags(name: &Path, flags: i32) -> Result<Library, String> {
        let c_name = CString::new(name.as_os_str().as_bytes()).map_err(|_| String::from("the name holds a zero byte"))?;
        let handle = unsafe { libc::dlopen(c_name.as_ptr(), flags) };
        if !handle.is_null() {
            return Ok(Library(handle));
        }
        let text = unsafe { libc::dlerror() };
        Err(if text.is_null() { String::from("it is not loaded") } else { unsafe { text_at(text) } })
    }

    /// The address of a function or variable, or 0.
    pub fn symbol(&self, name: &str) -> usize {
        CString::new(name).map_or(0, |name| unsafe { libc::dlsym(self.0, name.as_ptr()) } as usize)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        unsafe { libc::dlclose(self.0) };
    }
}

/// The file that the code at an address was loaded from.
pub fn file_of(address: usize) -> Option<PathBuf> {
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let known = unsafe { libc::dladdr(address as *const c_void, &mut info) } != 0 && !info.dli_fname.is_null();
    known.then(|| PathBuf::from(unsafe { text_at(info.dli_fname) }))
}

/// # Safety
/// `text` is a C string.
pub unsafe fn text_at(text: *const c_char) -> String {
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
