//! What PyTorch's allocator needs of C++, by its binary interface (Itanium's, and libstdc++'s std::string and std::function): PyTorch
//! learns of an error by an exception only, and says by a std::function which streams it captures.

use crate::base::{Error, Result};
use crate::runtime::cuda::library::Library;
use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::path::Path;

/// std::string: up to 15 bytes would lie inside; here they never do.
#[repr(C)]
struct Text {
    start: *mut u8,
    length: usize,
    capacity: usize,
    unused: usize,
}

/// c10::SourceLocation.
#[repr(C)]
struct Place {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

type New = unsafe extern "C" fn(usize) -> *mut u8;
type Allocate = unsafe extern "C" fn(usize) -> *mut *const *const c_void;
type Construct = unsafe extern "C" fn(*mut *const *const c_void, Place, *mut Text);
type Throw = unsafe extern "C-unwind" fn(*mut *const *const c_void, *const c_void, *const c_void);
type Fail = unsafe extern "C-unwind" fn(*const c_char, *const c_char, u32, *const c_char);

/// c10::OutOfMemoryError has no more than its base; what it has today is 136 bytes.
const ROOM: usize = 1024;

struct OutOfMemory {
    new: New,
    allocate: Allocate,
    construct: Construct,
    throw: Throw,
    vtable: *const *const c_void,
    type_info: *const c_void,
}

fn loaded(name: &str) -> Option<Library> {
    Library::loaded(Path::new(name))
}

impl OutOfMemory {
    fn find(c10: &Library) -> Option<OutOfMemory> {
        let (standard, cuda) = (loaded("libstdc++.so.6")?, loaded("libc10_cuda.so")?);
        let of = |library: &Library, name: &str| Some(library.symbol(name)).filter(|address| *address != 0);
        let vtable = of(&cuda, "_ZTVN3c1016OutOfMemoryErrorE")? as *const *const c_void;
        // The functions of a table stand behind two words.
        let vtable = unsafe { vtable.add(2) };
        let constructor = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
        let type_info = of(&cuda, "_ZTIN3c1016OutOfMemoryErrorE")? as *const c_void;
        unsafe {
            Some(OutOfMemory {
                new: transmute::<usize, New>(of(&standard, "_Znwm")?),
                allocate: transmute::<usize, Allocate>(of(&standard, "__cxa_allocate_exception")?),
                construct: transmute::<usize, Construct>(of(c10, constructor)?),
                throw: transmute::<usize, Throw>(of(&standard, "__cxa_throw")?),
                vtable,
                type_info,
            })
        }
    }
}

/// What there is to throw with. The process has the libraries anyway, so they need not be held.
enum Way {
    OutOfMemory(OutOfMemory),
    Fail(Fail),
    None,
}

#[inline(never)]
fn way(is_out_of_memory: bool) -> Way {
    let Some(c10) = loaded("libc10.so") else { return Way::None };
    if is_out_of_memory && let Some(found) = OutOfMemory::find(&c10) {
        return Way::OutOfMemory(found);
    }
    match c10.symbol("_ZN3c106detail14torchCheckFailEPKcS2_jS2_") {
        0 => Way::None,
        fail => Way::Fail(unsafe { transmute::<usize, Fail>(fail) }),
    }
}

/// torch.OutOfMemoryError, or RuntimeError. Comes back only where PyTorch is not loaded, or is built with another library than libstdc++.
/// What is dropped here would not be: see `capi::torch::raise`.
#[inline(never)]
pub fn throw(is_out_of_memory: bool, function: *const c_char, message: *const c_char) {
    match way(is_out_of_memory) {
        Way::OutOfMemory(found) => unsafe { throw_out_of_memory(&found, function, message) },
        Way::Fail(fail) => unsafe { fail(function, c"tcuda".as_ptr(), 0, message) },
        Way::None => {}
    }
}

unsafe fn throw_out_of_memory(found: &OutOfMemory, function: *const c_char, message: *const c_char) {
    unsafe {
        let length = CStr::from_ptr(message).count_bytes();
        let capacity = length.max(16);
        let start = (found.new)(capacity + 1);
        message.cast::<u8>().copy_to_nonoverlapping(start, length + 1);
        let mut text = Text { start, length, capacity, unused: 0 };
        let error = (found.allocate)(ROOM);
        (found.construct)(error, Place { function, file: c"tcuda".as_ptr(), line: 0 }, &mut text);
        // It was moved from: what is left of it lies inside.
        *error = found.vtable;
        (found.throw)(error, found.type_info, *found.vtable);
    }
}

/// A copy of a `std::function<bool(cudaStream_t)>`.
pub struct Predicate(Function);

#[repr(C)]
struct Function {
    data: [usize; 2],
    manage: Option<unsafe extern "C" fn(*mut [usize; 2], *const [usize; 2], i32) -> bool>,
    call: Option<unsafe extern "C" fn(*const [usize; 2], *mut usize) -> bool>,
}
// torch asks its own from any thread.
unsafe impl Send for Predicate {}
unsafe impl Sync for Predicate {}

/// std::_Manager_operation.
const CLONE: i32 = 2;
const DESTROY: i32 = 3;

impl Predicate {
    /// # Safety
    /// `function` is NULL or a std::function.
    pub unsafe fn copy(function: *const c_void) -> Result<Predicate> {
        let empty = || Error::invalid_argument("'filter' is empty. It says which streams allocate from the pool.");
        let from = unsafe { function.cast::<Function>().as_ref() }.ok_or_else(empty)?;
        let (Some(manage), Some(_)) = (from.manage, from.call) else { return Err(empty()) };
        let mut copy = Function { data: [0; 2], manage: from.manage, call: from.call };
        unsafe { manage(&mut copy.data, &from.data, CLONE) };
        Ok(Predicate(copy))
    }

    /// What it throws ends the process: there is nothing here that could catch it.
    pub fn ask(&self, stream: usize) -> bool {
        let mut stream = stream;
        self.0.call.is_some_and(|call| unsafe { call(&self.0.data, &mut stream) })
    }
}

impl Drop for Predicate {
    fn drop(&mut self) {
        if let Some(manage) = self.0.manage {
            let data = &raw mut self.0.data;
            unsafe { manage(data, data, DESTROY) };
        }
    }
}
