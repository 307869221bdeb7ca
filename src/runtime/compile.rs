//! Compilers of run-time sources: NVRTC for a real device, the system's C++ compiler for the simulated one. What is above gives a
//! source and gets an image that `kernels::compiled` loads, and does not know which of the two it was.

use super::api::Runtime;
use super::cuda::nvrtc::{self, Nvrtc};
use super::sim::compiler::{self, HostCompiler};
use crate::base::{Error, Result, Status};

/// A source with all that a compiler needs.
pub struct Program<'a> {
    /// As messages call it; `#line` in the text says the same.
    pub name: &'a str,
    /// What is compiled.
    pub text: &'a str,
    /// The part that the program's author wrote, which messages quote.
    pub source: &'a str,
    /// Expressions that name kernels, such as `scale<float>`.
    pub names: &'a [&'a str],
    pub options: &'a [&'a str],
}

/// What came out: a cubin, PTX or a shared object, and the symbols of the names.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Image {
    pub code: Vec<u8>,
    pub symbols: Vec<String>,
}

/// Why there is no image.
pub enum Failure {
    /// The source is wrong: the compiler's log.
    Source(String),
    /// The compiler is.
    Compiler(Error),
}

/// A compiler and what it compiles for.
pub enum Compiler {
    Nvrtc { nvrtc: &'static Nvrtc, capability: i32 },
    Host(&'static HostCompiler),
}

const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;

impl Compiler {
    /// For element-wise functions on a device.
    pub fn of(runtime: &Runtime, device: i32) -> Result<Compiler> {
        if runtime.name == "sim" { compiler::find().map(Compiler::Host) } else { Compiler::of_kernels(runtime, device) }
    }

    /// For whole kernels, which the simulated device does not run.
    pub fn of_kernels(runtime: &Runtime, device: i32) -> Result<Compiler> {
        Compiler::refuse_simulated(runtime, device)?;
        let nvrtc = nvrtc::open(runtime.driver_version)?;
        let part = |attribute| runtime.device_attribute(attribute, device);
        Ok(Compiler::Nvrtc { nvrtc, capability: part(CAPABILITY_MAJOR)? * 10 + part(CAPABILITY_MINOR)? })
    }

    pub fn refuse_simulated(runtime: &Runtime, device: i32) -> Result<()> {
        if runtime.name == "sim" {
            return Err(Error::not_supported(
                "The simulated device runs no kernels of CUDA, only element-wise functions (tcuda_jit_create). A whole kernel needs a real \
                 device: TCUDA_BACKEND=cuda.",
            )
            .on_device(device));
        }
        Ok(())
    }

    /// What stands in front of a source, so that the same text means the same.
    pub fn prelude(&self) -> &'static str {
        match self {
            Compiler::Nvrtc { .. } => concat!(include_str!("cuda/prelude.cuh"), include_str!("cuda/std.cuh")),
            Compiler::Host(_) => include_str!("sim/prelude.hpp"),
        }
    }

    /// With which element-wise functions are compiled.
    pub fn elementwise_options(&self) -> &'static [&'static str] {
        match self {
            Compiler::Nvrtc { .. } => &["--std=c++17", "-default-device"],
            Compiler::Host(_) => &[],
        }
    }

    /// All about the compiler that decides what comes out.
    pub fn identity(&self) -> String {
        match self {
            Compiler::Nvrtc { nvrtc, capability } => {
                format!("nvrtc {}.{} {}", nvrtc.version.0, nvrtc.version.1, nvrtc.target(*capability).option())
            }
            Compiler::Host(host) => host.identity.clone(),
        }
    }

    pub fn compile(&self, program: &Program) -> Result<Image> {
        let outcome = match self {
            Compiler::Nvrtc { nvrtc, capability } => nvrtc.compile(program, nvrtc.target(*capability)),
            Compiler::Host(host) => host.compile(program),
        };
        outcome.map_err(|failure| match failure {
            Failure::Compiler(error) => error,
            Failure::Source(log) => refused(program, &log),
        })
    }
}

/// Longer logs are cut: the first errors are those that matter.
const LONGEST_LOG: usize = 16 << 10;

#[cold]
fn refused(program: &Program, log: &str) -> Error {
    let log = log.trim_end_matches(['\0', '\n', ' ']);
    let end = (0..=log.len().min(LONGEST_LOG)).rev().find(|at| log.is_char_boundary(*at)).unwrap_or(0);
    let cut = if end < log.len() { "\n..." } else { "" };
    let place = place_in(log, program.name).and_then(|line| Some((line, program.source.lines().nth(line.checked_sub(1)?)?)));
    let place = place.map_or(String::new(), |(line, text)| format!(" at line {line}: `{}`", text.trim()));
    let text = format!("The source of '{}' does not compile{place}. The compiler says:\n{}{cut}", program.name, &log[..end]);
    Error::new(Status::TCUDA_ERROR_COMPILATION, text)
}

/// The line of the first error: `name(3): error` by NVRTC, `name:3:5: error` by the others.
fn place_in(log: &str, name: &str) -> Option<usize> {
    log.lines().filter(|line| line.contains("error")).find_map(|line| {
        let after = line.strip_prefix(name)?;
        let digits = after.strip_prefix(['(', ':'])?;
        digits[..digits.find(|c: char| !c.is_ascii_digit())?].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_shows_the_place() {
        let program = Program { name: "f", text: "", source: "one\n  two(x);\nthree", names: &[], options: &[] };
        for log in ["f(2): error: identifier \"x\" is undefined\n", "f: In function 'a':\nf:2:7: error: 'x' was not declared"] {
            let error = refused(&program, log);
            assert_eq!(error.status, Status::TCUDA_ERROR_COMPILATION);
            assert!(error.message.contains("at line 2: `two(x);`") && error.message.contains(log.trim()), "{error}");
        }
        assert!(refused(&program, "f(9): error: past the end").message.contains("compile. The"));
        assert!(refused(&program, "g(2): error").message.contains("compile. The"));
        assert!(refused(&program, &"é".repeat(LONGEST_LOG)).message.ends_with("\n..."));
    }
}
