//! CUDA's libraries that compute (cuBLAS, cuFFT): found where the CUDA runtime is, when they are first needed.

use super::bind;
use super::library::Library;
use super::search::{self, Wanted};
use crate::base::{Error, Result, Status, few};
use crate::runtime::Runtime;
use std::path::Path;

/// What there is to know of a library before it is found.
pub struct Component {
    /// As messages call it.
    pub name: &'static str,
    pub wanted: &'static Wanted,
    /// Of Python.
    pub package: &'static str,
    /// Names of what it answers.
    pub answers: &'static [(i32, &'static str)],
    /// The answer that means that there is no memory.
    pub no_memory: i32,
}

impl Component {
    /// The first that can be used. Those of the runtime's major version come first in each place.
    pub fn find<T>(&self, runtime: &Runtime, bind: impl Fn(&Library, &Path) -> Result<T, String>) -> Result<T> {
        let places = search::places(self.wanted, Path::new("/usr/local")).map(|mut place| {
            few::sort_by_key(&mut place.candidates, |candidate| candidate.major != Some(runtime.version / 1000));
            place
        });
        bind::first(places, runtime.driver_version, bind).map_err(|looked| {
            Error::not_supported(format!(
                "{} is not there. It was looked for in {looked}. Install it (pip install {}, or the CUDA toolkit), or name it in {}.",
                self.name, self.package, self.wanted.variable
            ))
        })
    }

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
