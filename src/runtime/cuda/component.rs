//! CUDA's libraries that compute (cuBLAS, cuFFT): found where the CUDA runtime is, when they are first needed.

use super::adapt;
use super::library::{Library, file_of};
use super::search::{self, Candidate, How, Wanted};
use crate::base::{Error, Result, Status};
use crate::runtime::Runtime;
use std::path::{Path, PathBuf};

/// What there is to know of a library before it is found.
pub struct Component {
    /// As messages call it.
    pub name: &'static str,
    pub wanted: &'static Wanted,
    /// The variable that names a file, and the package of Python.
    pub variable: &'static str,
    pub package: &'static str,
    /// Names of what it answers.
    pub answers: &'static [(i32, &'static str)],
    /// The answer that means that there is no memory.
    pub no_memory: i32,
}

/// The functions of a library, and its file. Those of the runtime's major version come first in each place.
pub fn find<T>(
    component: &Component,
    runtime: &Runtime,
    bind: impl Fn(&Library) -> Result<(T, usize), &'static str>,
) -> Result<(T, PathBuf)> {
    let mut looked = Vec::new();
    for mut place in search::places(component.wanted, Path::new("/usr/local")) {
        place.candidates.sort_by_key(|candidate| candidate.major != Some(runtime.version / 1000));
        let mut findings = Vec::new();
        for candidate in &place.candidates {
            match open(candidate, runtime.driver_version) {
                Ok(library) => match bind(&library) {
                    Ok((functions, address)) => {
                        let file = file_of(address).unwrap_or_else(|| candidate.file.clone());
                        // It stays: its functions are in use from here on.
                        std::mem::forget(library);
                        return Ok((functions, file));
                    }
                    Err(missing) => findings.push(format!("{} has no {missing}", candidate.file.display())),
                },
                Err(finding) => findings.extend(finding),
            }
        }
        let found = if findings.is_empty() { String::from("nothing") } else { findings.join(", ") };
        looked.push(format!("{}: {found}", place.name));
    }
    Err(Error::not_supported(format!(
        "{} is not there. It was looked for in {}. Install it (pip install {}, or the CUDA toolkit), or name it in {}.",
        component.name,
        looked.join("; "),
        component.package,
        component.variable
    )))
}

/// Err(None): there is nothing there.
fn open(candidate: &Candidate, driver_version: i32) -> Result<Library, Option<String>> {
    let name = candidate.file.display();
    if let Some(major) = candidate.major
        && !adapt::serves(driver_version, major)
    {
        let there = candidate.how == How::Found || Library::loaded(&candidate.file).is_some();
        return Err(there.then(|| format!("{name} is for drivers of CUDA {major} and later")));
    }
    match candidate.how {
        How::Loaded => Library::loaded(&candidate.file).ok_or(None),
        how => Library::open_for_good(&candidate.file).map_err(|text| {
            let absent = format!("{name}: cannot open shared object file");
            (how != How::Named || !text.starts_with(&absent)).then_some(text)
        }),
    }
}

impl Component {
    /// An answer other than 0 is an error.
    pub fn check(&self, call: &str, answer: i32) -> Result<()> {
        if answer == 0 {
            return Ok(());
        }
        let name = self.answers.iter().find(|(code, _)| *code == answer).map_or("an unknown status", |(_, name)| name);
        let status = if answer == self.no_memory { Status::TCUDA_ERROR_OUT_OF_MEMORY } else { Status::TCUDA_ERROR_CUDA };
        Err(Error::new(status, format!("{call} of {} answered {answer} ({name}).", self.name)).with_native(answer))
    }
}

/// The functions of a library by name: `functions! { name(types); }` makes `struct Functions` and `Functions::of`.
macro_rules! functions {
    ($first:ident($($first_argument:ty),* $(,)?); $($name:ident($($argument:ty),* $(,)?);)*) => {
        #[allow(non_snake_case)]
        struct Functions {
            $first: unsafe extern "C" fn($($first_argument),*) -> i32,
            $($name: unsafe extern "C" fn($($argument),*) -> i32,)*
        }

        impl Functions {
            /// And the address of the first. Err names one that is missing.
            fn of(library: &super::library::Library) -> Result<(Functions, usize), &'static str> {
                let find = |name: &'static str| match library.symbol(name) {
                    0 => Err(name),
                    address => Ok(address),
                };
                let first = find(stringify!($first))?;
                let functions = Functions {
                    $first: unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($first_argument),*) -> i32>(first) },
                    $($name: unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($argument),*) -> i32>(find(stringify!($name))?) },)*
                };
                Ok((functions, first))
            }
        }
    };
}
pub(super) use functions;
