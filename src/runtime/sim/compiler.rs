//! The system's C++ compiler, which stands for NVRTC on the simulated device: element-wise sources become a shared object.

use crate::base::{Error, Result, Status, config};
use crate::runtime::compile::{Failure, Image, Program};
use once_cell::sync::OnceCell;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub struct HostCompiler {
    program: PathBuf,
    /// What decides what comes out.
    pub identity: String,
}

const NAMES: [&str; 3] = ["c++", "g++", "clang++"];
/// As CUDA's compilers do, it refuses exceptions.
const OPTIONS: &[&str] = &["-std=c++17", "-O2", "-ffp-contract=off", "-fno-exceptions", "-fPIC", "-shared", "-w", "-fvisibility=hidden"];
/// For a look at what a source includes, with nothing there that it could.
const HEADLESS: &[&str] = &["-std=c++17", "-E", "-w", "-nostdinc", "-nostdinc++", "-D__CUDACC__", "-D__CUDACC_RTC__"];
/// What GCC and Clang say of a header then.
const MISSING: [&str; 3] = ["no include path in which to search for", "No such file or directory", "file not found"];

/// The compiler, found at the first call. A failure is not kept.
pub fn find() -> Result<&'static HostCompiler> {
    static FOUND: OnceCell<HostCompiler> = OnceCell::new();
    FOUND.get_or_try_init(search)
}

fn search() -> Result<HostCompiler> {
    if let Some(given) = config::get("TCUDA_CXX") {
        return ask(Path::new(&given)).map_err(|found| match found {
            Found::Other(found) => Error::not_supported(format!(
                "TCUDA_CXX names no C++ compiler: {found}. Correct it, or unset it: tcuda then searches by itself."
            )),
            Found::Failure(error) => error,
        });
    }
    let mut tried = Vec::new();
    for name in NAMES {
        match ask(Path::new(name)) {
            Ok(compiler) => return Ok(compiler),
            Err(Found::Other(found)) => tried.push(found),
            Err(Found::Failure(error)) => return Err(error),
        }
    }
    Err(Error::not_supported(format!(
        "On the simulated device, functions are compiled by the system's C++ compiler, and there is none on PATH ({}). Install g++ or \
         clang++, or name one in TCUDA_CXX.",
        tried.join("; ")
    )))
}

/// What is there instead of a compiler: something else, or a system that starts no program now.
enum Found {
    Other(String),
    Failure(Error),
}

/// The compiler of that name or path.
fn ask(program: &Path) -> Result<HostCompiler, Found> {
    let name = program.display();
    let start = |error: io::Error| match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
            Found::Failure(Error::io("The C++ compiler could not be started", &error))
        }
        _ => Found::Other(format!("{name}: {error}")),
    };
    let mut command = Command::new(program);
    command.arg("--version").stderr(Stdio::null());
    let (status, answer) = run(command, Command::stdout).map_err(start)?;
    match status {
        Some(status) if !status.success() => return Err(Found::Other(format!("{name} --version ends with {status}"))),
        None if answer.is_empty() => return Err(Found::Other(format!("{name} --version says nothing"))),
        _ => {}
    }
    let version = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
    let identity = format!("{version}, {name} {} for {}", OPTIONS.join(" "), std::env::consts::ARCH);
    Ok(HostCompiler { program: program.into(), identity })
}

/// Runs a program to its end: how that was, and what came out where it is listened to. None: nobody knows how it ended, since this process ignores
/// SIGCHLD, or has a handler that waits for all children.
fn run(mut command: Command, listens: fn(&mut Command, File) -> &mut Command) -> io::Result<(Option<ExitStatus>, Vec<u8>)> {
    // No pipe: a child that another thread forks meanwhile would hold it open for as long as it lives.
    let file = unsafe { libc::memfd_create(c"tcuda-compiler".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    let heard = unsafe { File::from_raw_fd(file) };
    listens(&mut command, heard.try_clone()?);
    command.stdin(Stdio::null());
    if ignores_children() {
        // It would inherit that, and has children of its own.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGCHLD, libc::SIG_DFL);
                Ok(())
            })
        };
    }
    let status = match command.spawn()?.wait() {
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => None,
        status => Some(status?),
    };
    // From its beginning, wherever the program was in it.
    let mut said = vec![0; heard.metadata()?.len() as usize];
    heard.read_exact_at(&mut said, 0)?;
    Ok((status, said))
}

fn ignores_children() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    unsafe {
        libc::sigaction(libc::SIGCHLD, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

impl HostCompiler {
    pub fn compile(&self, program: &Program) -> Result<Image, Failure> {
        let folder = Folder::new().map_err(Failure::Compiler)?;
        let system = |what: &str, error: io::Error| Failure::Compiler(Error::io(&format!("{what} {}", folder.0.display()), &error));
        let (source, object) = (folder.0.join("source.cpp"), folder.0.join("object.so"));
        let start = |text: &str, options: &[&[&str]], object: &Path| {
            std::fs::write(&source, text).map_err(|error| system("A source could not be written in", error))?;
            let start = |error| system("The C++ compiler could not be started in", error);
            let mut command = Command::new(&self.program);
            command.args(options.concat()).arg("-o").arg(object).arg(&source);
            // Messages in English, which are looked into.
            command.env("LC_ALL", "C").stdout(Stdio::null());
            let (status, said) = run(command, Command::stderr).map_err(start)?;
            Ok((status, String::from_utf8_lossy(&said).into_owned()))
        };
        // What is around the source includes some itself, so it is looked at alone. Hardly any has one.
        if program.source.contains("include") {
            let alone = format!("#line 1 \"{}\"\n{}", program.name, program.source);
            let (_, said) = start(&alone, &[HEADLESS], &folder.0.join("alone.cpp"))?;
            if MISSING.iter().any(|words| said.contains(words)) {
                return Err(Failure::Source(format!(
                    "{said}As for NVRTC, there are no headers to include: it cannot open the source file."
                )));
            }
        }
        let (status, said) = start(program.text, &[OPTIONS, program.options], &object)?;
        let killed = |how: &str| {
            let text = format!("The C++ compiler {} did not come to its end: {how}.", self.program.display());
            Failure::Compiler(Error::new(Status::TCUDA_ERROR_SYSTEM, text))
        };
        match status {
            Some(status) if status.signal().is_some() => return Err(killed(&status.to_string())),
            // Where it was a part of the compiler, which says so.
            Some(status) if !status.success() => {
                return Err(said
                    .lines()
                    .find(|line| line.contains(" signal terminated program "))
                    .map_or(Failure::Source(said.clone()), killed));
            }
            // A compiler that failed leaves no object.
            None if !object.exists() => return Err(if said.is_empty() { killed("it left nothing") } else { Failure::Source(said) }),
            _ => {}
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
