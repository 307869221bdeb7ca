//! The system's C++ compiler, which stands for NVRTC on the simulated device: element-wise sources become a shared object.

use crate::base::{Error, Result, Status, config};
use crate::runtime::compile::{Failure, Image, Program};
use once_cell::sync::OnceCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub struct HostCompiler {
    program: PathBuf,
    /// What decides what comes out.
    pub identity: String,
}

const NAMES: [&str; 3] = ["c++", "g++", "clang++"];
const OPTIONS: &[&str] = &["-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-w", "-fvisibility=hidden"];

/// The compiler, found at the first call. A failure is not kept.
pub fn find() -> Result<&'static HostCompiler> {
    static FOUND: OnceCell<HostCompiler> = OnceCell::new();
    FOUND.get_or_try_init(search)
}

fn search() -> Result<HostCompiler> {
    if let Some(given) = config::get("TCUDA_CXX") {
        return ask(Path::new(&given)).map_err(|found| {
            Error::not_supported(format!(
                "TCUDA_CXX names no C++ compiler: {found}. Correct it, or unset it: tcuda then searches by itself."
            ))
        });
    }
    let mut tried = Vec::new();
    for name in NAMES {
        match ask(Path::new(name)) {
            Ok(compiler) => return Ok(compiler),
            Err(found) => tried.push(found),
        }
    }
    Err(Error::not_supported(format!(
        "On the simulated device, functions are compiled by the system's C++ compiler, and there is none on PATH ({}). Install g++ or \
         clang++, or name one in TCUDA_CXX.",
        tried.join("; ")
    )))
}

/// The compiler of that name or path. Err says what it is instead.
fn ask(program: &Path) -> Result<HostCompiler, String> {
    let name = program.display();
    let answer = Command::new(program).arg("--version").stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if !answer.status.success() {
        return Err(format!("{name} --version ends with {}", answer.status));
    }
    let version = String::from_utf8_lossy(&answer.stdout).lines().next().unwrap_or_default().to_owned();
    let identity = format!("{version}, {name} {} for {}", OPTIONS.join(" "), std::env::consts::ARCH);
    Ok(HostCompiler { program: program.into(), identity })
}

impl HostCompiler {
    pub fn compile(&self, program: &Program) -> Result<Image, Failure> {
        let folder = Folder::new().map_err(Failure::Compiler)?;
        let system = |what: &str, error: std::io::Error| {
            let text = format!("{what} {}: {error}", folder.0.display());
            Failure::Compiler(Error::new(Status::TCUDA_ERROR_SYSTEM, text).with_native(error.raw_os_error().unwrap_or(0)))
        };
        let (source, object) = (folder.0.join("source.cpp"), folder.0.join("object.so"));
        std::fs::write(&source, program.text).map_err(|error| system("A source could not be written in", error))?;
        let mut command = Command::new(&self.program);
        command.args(OPTIONS).args(program.options).arg("-o").arg(&object).arg(&source);
        // Messages in English, which are looked into.
        let answer = command.stdin(Stdio::null()).env("LC_ALL", "C").output();
        let answer = answer.map_err(|error| system("The C++ compiler could not be started in", error))?;
        if !answer.status.success() {
            return Err(Failure::Source(String::from_utf8_lossy(&answer.stderr).into_owned()));
        }
        let code = std::fs::read(&object).map_err(|error| system("The C++ compiler left nothing in", error))?;
        Ok(Image { code, symbols: Vec::new() })
    }
}

/// A folder of its own, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        use std::os::unix::fs::DirBuilderExt;
        loop {
            let name = format!("tcuda-jit-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
            let path = std::env::temp_dir().join(name);
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Folder(path)),
                // Left by a process that had this number before.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let text = format!(
                        "There is no folder to compile in: {} cannot be made: {error}. TMPDIR names another place.",
                        path.display()
                    );
                    return Err(Error::new(Status::TCUDA_ERROR_SYSTEM, text).with_native(error.raw_os_error().unwrap_or(0)));
                }
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
