//! Machines with fake libraries of CUDA, each for a case in a process of its own.
#![allow(dead_code)] // no test uses all of it

use std::ffi::{CStr, CString, c_char, c_void};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use tcuda::base::Status;
use tcuda::capi::error::tcuda_last_error_message;

const CASE: &str = "TCUDA_TEST_CASE";
const ROOT: &str = "TCUDA_TEST_ROOT";
pub const RUNTIMES: [(i32, &str); 3] = [(13000, "libcudart.so.13"), (12040, "libcudart.so.12"), (11080, "libcudart.so.11.0")];

/// A machine for one case: a folder with the fake libraries in it, and the variables of the environment.
pub struct Machine {
    pub root: PathBuf,
    variables: Vec<(String, String)>,
}

impl Machine {
    /// Puts a library there. Below `loader/` the loader finds it by name.
    pub fn with(self, place: &str, library: &Path) -> Machine {
        let to = self.root.join(place);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(library, to).unwrap();
        self
    }

    /// `{}` in the value stands for the machine's folder.
    pub fn set(mut self, name: &str, value: &str) -> Machine {
        let value = value.replace("{}", self.root.to_str().unwrap());
        self.variables.push((name.into(), value));
        self
    }
}

/// Runs `body` in a new process, on the machine that `build` makes. `name` is the test's own.
pub fn case(name: &str, build: impl FnOnce(Machine) -> Machine, body: impl FnOnce()) {
    if std::env::var(CASE).is_ok_and(|case| case == name) {
        return body();
    }
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-{}-{name}", std::process::id()));
    std::fs::create_dir_all(root.join("loader")).unwrap();
    let machine = build(Machine { root: root.clone(), variables: Vec::new() });
    // What the case does not bring must not come from the machine that the test runs on.
    for library in ["libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2"].into_iter().chain(RUNTIMES.map(|(_, soname)| soname)) {
        let file = root.join("loader").join(library);
        if !file.exists() {
            std::fs::write(file, "no library").unwrap();
        }
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(CASE, name).env(ROOT, &root);
    command.env("LD_LIBRARY_PATH", root.join("loader")).env("PATH", root.join("bin")).env("HOME", root.join("home"));
    for variable in [
        "TCUDA_BACKEND",
        "TCUDA_CUDART_PATH",
        "TCUDA_NVRTC_PATH",
        "TCUDA_NVML_PATH",
        "TCUDA_CUBLAS_PATH",
        "TCUDA_CUFFT_PATH",
        "CUBLAS_WORKSPACE_CONFIG",
        "TCUDA_NVTX",
        "NVTX_INJECTION64_PATH",
        "TCUDA_NCCL_PATH",
        "NCCL_NVLS_ENABLE",
        "TCUDA_JIT_CACHE",
        "TCUDA_JIT_CACHE_PATH",
        "XDG_CACHE_HOME",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
    ] {
        command.env_remove(variable);
    }
    let output = command.envs(machine.variables).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{name}, in its own process ({}):\n{text}", output.status);
    std::fs::remove_dir_all(root).unwrap();
}

// ---- the libraries

pub fn runtime_library(version: i32) -> PathBuf {
    let (_, soname) = RUNTIMES.iter().find(|(v, _)| v / 1000 == version / 1000).unwrap();
    build("cudart.c", soname, &[&format!("-DVERSION={version}")], &[])
}

pub fn runtime_without(version: i32, lacks: &[&str]) -> PathBuf {
    let (_, soname) = RUNTIMES.iter().find(|(v, _)| v / 1000 == version / 1000).unwrap();
    build("cudart.c", soname, &[&format!("-DVERSION={version}")], lacks)
}

pub fn driver(version: i32) -> PathBuf {
    build("cuda.c", "libcuda.so.1", &[&format!("-DVERSION={version}")], &[])
}

/// Compiles a library, unless that was done before. As NVIDIA's, it has a SONAME and its symbols carry a version; `lacks` are not
/// exported.
pub fn build(source: &str, soname: &str, defines: &[&str], lacks: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake");
    let mut hasher = std::hash::DefaultHasher::new();
    (source, soname, defines, lacks).hash(&mut hasher);
    for file in [source, "fake.h"] {
        std::fs::read(folder.join(file)).unwrap().hash(&mut hasher);
    }
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-{:016x}.so", hasher.finish()));
    if library.exists() {
        return library;
    }
    // Made under a name of this thread's own: others may want the same one now.
    let own = format!("{}-{:?}", std::process::id(), std::thread::current().id());
    let (made, script) = (library.with_extension(format!("{own}.so")), library.with_extension(format!("{own}.map")));
    let hidden: String = lacks.iter().map(|name| format!("{name};")).collect();
    let local = if lacks.is_empty() { String::new() } else { format!("local: {hidden}") };
    std::fs::write(
        &script,
        format!("{} {{ global: cuda*; cu*; nvrtc*; nvml*; nccl*; Initialize*; fake_*; {local} }};\n", soname.replace('-', "_")),
    )
    .unwrap();
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let compiler = cc::Build::new().target(&target).host(&target).opt_level(1).cargo_metadata(false).get_compiler();
    let output = compiler
        .to_command()
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&made)
        .args(defines)
        .arg(folder.join(source))
        .arg(format!("-Wl,-soname,{soname}"))
        .arg(format!("-Wl,--version-script={}", script.display()))
        .arg("-ldl")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(made, &library).unwrap();
    std::fs::remove_file(script).unwrap();
    library
}

/// Two devices that work, with plain segments.
pub fn working(machine: Machine) -> Machine {
    let machine = machine.with("loader/libcuda.so.1", &build("works.c", "libcuda.so.1", &["-DDRIVER"], &[]));
    machine
        .with("loader/libcudart.so.13", &build("works.c", "libcudart.so.13", &[], &[]))
        .set("TCUDA_ALLOC_CONF", "expandable_segments:False")
}

pub fn root() -> PathBuf {
    PathBuf::from(std::env::var_os(ROOT).unwrap())
}

pub fn message() -> String {
    unsafe { CStr::from_ptr(tcuda_last_error_message()) }.to_str().unwrap().to_owned()
}

#[track_caller]
pub fn ok(status: Status) {
    assert_eq!(status, Status::TCUDA_SUCCESS, "{}", message());
}

#[track_caller]
pub fn refused(status: Status, expected: Status, parts: &[&str]) {
    assert_eq!(status, expected, "{}", message());
    assert_says(&message(), parts);
}

#[track_caller]
pub fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
}

/// How often a function of the loaded fake was called.
pub fn calls(library: &str, counter: &str, name: &str) -> i64 {
    let (library, counter, name) = (CString::new(library).unwrap(), CString::new(counter).unwrap(), CString::new(name).unwrap());
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!handle.is_null());
        let counter = libc::dlsym(handle, counter.as_ptr());
        assert!(!counter.is_null());
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> i64>(counter)(name.as_ptr())
    }
}

// The values that the fakes expect.
pub const TO: usize = 0x7f0000001000;
pub const FROM: usize = 0x7f0000002000;
pub const SIZE: usize = 0x500000003;
pub const STREAM: usize = 0x7f0000003000;
pub const EVENT: usize = 0x7f0000004000;
pub const OTHER: usize = 0x7f0000005000;
pub const HANDLE: u64 = 0x123456789abcdef;
