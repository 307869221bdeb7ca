//! NVRTC, CUDA's run-time compiler. It is looked up when the first source is to be compiled, in the places of the CUDA runtime.

use super::adapt;
use super::bind::{self, functions};
use super::library::{Library, file_of, text_at};
use super::report::dotted;
use super::search;
use crate::base::{Error, Result, Status};
use crate::runtime::compile::{Failure, Image, Program};
use once_cell::sync::OnceCell;
use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};

type Handle = *mut c_void;

functions! {
    nvrtcGetErrorString(i32) -> *const c_char;
    nvrtcVersion(*mut i32, *mut i32);
    nvrtcGetNumSupportedArchs(*mut i32);
    nvrtcGetSupportedArchs(*mut i32);
    nvrtcCreateProgram(*mut Handle, *const c_char, *const c_char, i32, *const *const c_char, *const *const c_char);
    nvrtcDestroyProgram(*mut Handle);
    nvrtcAddNameExpression(Handle, *const c_char);
    nvrtcCompileProgram(Handle, i32, *const *const c_char);
    nvrtcGetProgramLogSize(Handle, *mut usize);
    nvrtcGetProgramLog(Handle, *mut c_char);
    nvrtcGetLoweredName(Handle, *const c_char, *mut *const c_char);
    nvrtcGetCUBINSize(Handle, *mut usize);
    nvrtcGetCUBIN(Handle, *mut c_char);
    nvrtcGetPTXSize(Handle, *mut usize);
    nvrtcGetPTX(Handle, *mut c_char);
}

pub struct Nvrtc {
    functions: Functions,
    pub version: (i32, i32),
    pub file: PathBuf,
    /// Compute capabilities that it makes machine code for: 90 is 9.0.
    capabilities: Vec<i32>,
}

/// What a source is compiled to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Machine code for this capability.
    Cubin(i32),
    /// For devices that are newer than the compiler.
    Ptx(i32),
}

impl Target {
    pub fn option(self) -> String {
        match self {
            Target::Cubin(capability) => format!("--gpu-architecture=sm_{capability}"),
            Target::Ptx(capability) => format!("--gpu-architecture=compute_{capability}"),
        }
    }
}

const SOURCE_IS_WRONG: [i32; 2] = [6, 10]; // NVRTC_ERROR_COMPILATION, NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID
const OPTION_IS_WRONG: i32 = 5;

/// The compiler, found at the first call. A failure is not kept.
pub fn open(driver_version: i32) -> Result<&'static Nvrtc> {
    static FOUND: OnceCell<Nvrtc> = OnceCell::new();
    FOUND.get_or_try_init(|| search_in(Path::new("/usr/local"), driver_version))
}

/// A new search, with another folder for what the administrator installed.
pub fn search_in(local: &Path, driver_version: i32) -> Result<Nvrtc> {
    let found = bind::first(search::places(&search::COMPILER, local), driver_version, |library, name| load(library, name, driver_version));
    let package = match driver_version / 1000 {
        ..12 => "nvidia-cuda-nvrtc-cu11",
        12 => "nvidia-cuda-nvrtc-cu12",
        13.. => "nvidia-cuda-nvrtc",
    };
    found.map_err(|looked| {
        Error::not_supported(format!(
            "Functions are compiled at run time by CUDA's library NVRTC, and there is none that works with the driver (for CUDA {}). {} were \
             looked for in {looked}. Install it (pip install {package}, or the CUDA toolkit), or name it in TCUDA_NVRTC_PATH.",
            dotted(driver_version),
            adapt::COMPILERS.map(|(_, name)| name).join(", ")
        ))
    })
}

/// Err says what is wrong with it.
fn load(library: &Library, name: &Path, driver_version: i32) -> Result<Nvrtc, String> {
    let functions = Functions::of(library, name)?;
    let (mut major, mut minor, mut count) = (0, 0, 0);
    let asked = unsafe {
        (functions.nvrtcVersion)(&mut major, &mut minor) == 0 && (functions.nvrtcGetNumSupportedArchs)(&mut count) == 0 && count > 0
    };
    let mut capabilities = vec![0; usize::try_from(count).unwrap_or(0)];
    if !asked || unsafe { (functions.nvrtcGetSupportedArchs)(capabilities.as_mut_ptr()) } != 0 {
        return Err(format!("{} does not say what it can do", name.display()));
    }
    if !adapt::serves(driver_version, major) {
        return Err(format!("{} is of CUDA {major}.{minor}, for newer drivers", name.display()));
    }
    let file = file_of(functions.nvrtcVersion as usize).unwrap_or_else(|| name.into());
    Ok(Nvrtc { functions, version: (major, minor), file, capabilities })
}

impl Nvrtc {
    /// The newest capability that it knows.
    pub fn newest(&self) -> i32 {
        self.capabilities.iter().copied().max().unwrap_or(0)
    }

    /// Machine code where it knows the device, else PTX for the newest below it.
    pub fn target(&self, capability: i32) -> Target {
        if self.capabilities.contains(&capability) {
            return Target::Cubin(capability);
        }
        let below = self.capabilities.iter().copied().filter(|known| *known < capability).max();
        Target::Ptx(below.unwrap_or_else(|| self.newest()))
    }

    pub fn compile(&self, program: &Program, target: Target) -> Result<Image, Failure> {
        let f = &self.functions;
        let c = |text: &str| CString::new(text).map_err(|_| Failure::Source("the source, a name or an option holds a zero byte".into()));
        let (name, text) = (c(program.name)?, c(program.text)?);
        let options = program.options.iter().map(|option| c(option)).chain([c(&target.option())]).collect::<Result<Vec<_>, _>>()?;
        let names = program.names.iter().map(|name| c(name)).collect::<Result<Vec<_>, _>>()?;

        let mut session = Session { nvrtc: self, handle: std::ptr::null_mut() };
        let none = std::ptr::null();
        let made = unsafe { (f.nvrtcCreateProgram)(&mut session.handle, text.as_ptr(), name.as_ptr(), 0, none, none) };
        self.check("nvrtcCreateProgram", made)?;
        let handle = session.handle;
        for name in &names {
            self.check("nvrtcAddNameExpression", unsafe { (f.nvrtcAddNameExpression)(handle, name.as_ptr()) })?;
        }
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let code = unsafe { (f.nvrtcCompileProgram)(handle, pointers.len() as i32, pointers.as_ptr()) };
        match code {
            0 => {}
            _ if SOURCE_IS_WRONG.contains(&code) => return Err(Failure::Source(session.log())),
            OPTION_IS_WRONG => {
                let text = format!(
                    "NVRTC {}.{} does not take these options: {:?}. {}",
                    self.version.0,
                    self.version.1,
                    program.options,
                    session.log()
                );
                return Err(Failure::Compiler(Error::invalid_argument(text).with_native(code)));
            }
            _ => self.check("nvrtcCompileProgram", code).map_err(|failure| match failure {
                Failure::Compiler(error) => Failure::Compiler(Error { message: format!("{error} {}", session.log()).into(), ..error }),
                other => other,
            })?,
        }
        let symbols = names.iter().map(|name| {
            let mut symbol = std::ptr::null();
            self.check("nvrtcGetLoweredName", unsafe { (f.nvrtcGetLoweredName)(handle, name.as_ptr(), &mut symbol) })?;
            Ok(unsafe { text_at(symbol) })
        });
        let symbols = symbols.collect::<Result<_, _>>()?;
        let (size_of, get) = match target {
            Target::Cubin(_) => (f.nvrtcGetCUBINSize, f.nvrtcGetCUBIN),
            Target::Ptx(_) => (f.nvrtcGetPTXSize, f.nvrtcGetPTX),
        };
        let mut size = 0;
        self.check("nvrtcGetCUBINSize", unsafe { size_of(handle, &mut size) })?;
        // One more: PTX is read up to a zero byte.
        let mut code = vec![0u8; size + 1];
        self.check("nvrtcGetCUBIN", unsafe { get(handle, code.as_mut_ptr().cast()) })?;
        Ok(Image { code, symbols })
    }

    fn check(&self, call: &str, code: i32) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let text = unsafe { (self.functions.nvrtcGetErrorString)(code) };
        let text = if text.is_null() { String::from("unknown error") } else { unsafe { text_at(text) } };
        let text = format!("NVRTC error: {text} ({code}) in {call}. The library is {}.", self.file.display());
        Err(Failure::Compiler(Error::new(Status::TCUDA_ERROR_CUDA, text).with_native(code)))
    }
}

/// One program of NVRTC's, ended when dropped.
struct Session<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
}

impl Session<'_> {
    fn log(&self) -> String {
        let f = &self.nvrtc.functions;
        let mut size = 0;
        if unsafe { (f.nvrtcGetProgramLogSize)(self.handle, &mut size) } != 0 {
            return String::new();
        }
        let mut log = vec![0u8; size + 1];
        unsafe { (f.nvrtcGetProgramLog)(self.handle, log.as_mut_ptr().cast()) };
        String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned()
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            unsafe { (self.nvrtc.functions.nvrtcDestroyProgram)(&mut self.handle) };
        }
    }
}
