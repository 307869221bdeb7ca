//! From the places where a library may be to its functions: how cuBLAS, cuFFT, NCCL, NVML and NVRTC are found when they are first needed.

use super::adapt;
use super::library::Library;
use super::search::{Candidate, How, Place};
use std::path::Path;

/// The first library that `bind` takes, given with its name. A text says what was there in each place.
pub fn first<T>(
    places: impl Iterator<Item = Place>,
    driver_version: i32,
    bind: impl Fn(&Library, &Path) -> Result<T, String>,
) -> Result<T, String> {
    let mut found = None;
    let mut places = places;
    let looked = walk(&mut places, driver_version, &mut |library, file| {
        found = Some(bind(library, file)?);
        Ok(())
    });
    found.ok_or(looked)
}

fn walk(
    places: &mut dyn Iterator<Item = Place>,
    driver_version: i32,
    take: &mut dyn FnMut(&Library, &Path) -> Result<(), String>,
) -> String {
    let mut looked = Vec::new();
    for place in places {
        let mut findings = Vec::new();
        for candidate in &place.candidates {
            let taken = too_new(candidate, driver_version).and_then(|()| {
                let library = open(candidate, Library::open_for_good)?;
                take(&library, &candidate.file)?;
                // It stays: its functions are in use from here on.
                std::mem::forget(library);
                Ok(())
            });
            match taken {
                Ok(()) => return String::new(),
                Err(finding) => findings.extend(finding),
            }
        }
        let found = if findings.is_empty() { String::from("nothing") } else { findings.join(", ") };
        looked.push(format!("{}: {found}", place.name));
    }
    looked.join("; ")
}

/// Err: it is there, and for other drivers. Err(None): it is not there either.
fn too_new(candidate: &Candidate, driver_version: i32) -> Result<(), Option<String>> {
    let Some(major) = candidate.major.filter(|major| !adapt::serves(driver_version, *major)) else { return Ok(()) };
    let there = candidate.how == How::Found || Library::loaded(&candidate.file).is_some();
    Err(there.then(|| format!("{} is for drivers of CUDA {major} and later", candidate.file.display())))
}

/// Err(None): there is nothing there.
pub fn open(candidate: &Candidate, opener: fn(&Path) -> Result<Library, String>) -> Result<Library, Option<String>> {
    if candidate.how == How::Loaded {
        return Library::loaded(&candidate.file).ok_or(None);
    }
    opener(&candidate.file).map_err(|text| {
        let absent = format!("{}: cannot open shared object file", candidate.file.display());
        (candidate.how != How::Named || !text.starts_with(&absent)).then_some(text)
    })
}

/// The functions of a library by name, all of which it has to have: `functions! { name(types) -> type; }`, where no type is an `i32`.
/// `optional name(types);` in front of all others makes them ones that may be missing.
macro_rules! functions {
    (@type $($argument:ty),*) => { unsafe extern "C" fn($($argument),*) -> i32 };
    (@type $($argument:ty),* => $result:ty) => { unsafe extern "C" fn($($argument),*) -> $result };
    (optional $($name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// Those that the library has.
        #[allow(non_snake_case)]
        struct Functions {
            $($name: Option<functions!(@type $($argument),* $(=> $result)?)>,)*
        }

        impl Functions {
            fn of(library: &super::library::Library) -> Functions {
                Functions {
                    $($name: unsafe {
                        std::mem::transmute::<usize, Option<functions!(@type $($argument),* $(=> $result)?)>>(library.symbol(stringify!($name)))
                    },)*
                }
            }
        }
    };
    ($($name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        #[allow(non_snake_case)]
        struct Functions {
            $($name: functions!(@type $($argument),* $(=> $result)?),)*
        }

        impl Functions {
            /// Err says which is missing.
            fn of(library: &super::library::Library, file: &std::path::Path) -> Result<Functions, String> {
                let find = |name: &str| match library.symbol(name) {
                    0 => Err(format!("{} has no {name}", file.display())),
                    address => Ok(address),
                };
                Ok(Functions {
                    $($name: unsafe {
                        std::mem::transmute::<usize, functions!(@type $($argument),* $(=> $result)?)>(find(stringify!($name))?)
                    },)*
                })
            }
        }
    };
}
pub(super) use functions;
