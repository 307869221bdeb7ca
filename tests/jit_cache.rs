//! What is compiled at run time is kept in files: found by the next process, made anew where it is damaged, by several processes at
//! once, and done without where the folder cannot be. Each process is this program again, on the simulated device.

mod counting;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tcuda::base::dlpack::tcuda_tensor_t;
use tcuda::base::status::tcuda_status_t::TCUDA_SUCCESS;
use tcuda::capi::copy::tcuda_copy;
use tcuda::capi::jit::*;
use tcuda::capi::tensor::*;

/// Set in the processes that are started.
const CHILD: &str = "TCUDA_TEST_CHILD";
const FACTOR: &str = "TCUDA_TEST_FACTOR";

/// A folder for one test, with a compiler that notes each time it is called.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("jit-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let place = Place(root);
        // The pause makes sure that processes which start together meet in it.
        let script =
            format!("#!/bin/sh\ncase \"$*\" in *-shared*) echo once >>'{}'; sleep 0.2;; esac\nexec c++ \"$@\"\n", place.log().display());
        std::fs::write(place.compiler(), script).unwrap();
        std::fs::set_permissions(place.compiler(), std::fs::Permissions::from_mode(0o755)).unwrap();
        place
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    fn compiler(&self) -> PathBuf {
        self.0.join("compiler")
    }

    fn cache(&self) -> PathBuf {
        self.0.join("cache")
    }

    fn compilations(&self) -> usize {
        std::fs::read_to_string(self.log()).unwrap_or_default().lines().count()
    }

    /// What is in the cache, by name.
    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = std::fs::read_dir(self.cache()).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    fn start(&self, variables: &[(&str, &Path)]) -> Child {
        self.start_test("a_process_gets_its_function", variables)
    }

    /// Another test than the usual one.
    #[track_caller]
    fn only(&self, test: &str) {
        finish(self.start_test(test, &[]));
    }

    fn start_test(&self, test: &str, variables: &[(&str, &Path)]) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
            .env_remove("TCUDA_JIT_CACHE")
            .env(CHILD, "1")
            .env("TCUDA_BACKEND", "sim")
            .env("TCUDA_CXX", self.compiler())
            .env("TCUDA_JIT_CACHE_PATH", self.cache());
        for (name, value) in variables {
            command.env(name, value);
        }
        command.spawn().unwrap()
    }

    #[track_caller]
    fn run(&self, variables: &[(&str, &Path)]) -> String {
        finish(self.start(variables))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn finish(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

/// The process that the other tests start; on its own it is the simplest of them.
#[test]
fn a_process_gets_its_function() {
    if std::env::var_os(CHILD).is_none() {
        return drop(Place::new("simple").run(&[]));
    }
    let factor: f32 = std::env::var(FACTOR).map_or(3.0, |text| text.parse().unwrap());
    // Another source for each factor.
    let source = std::ffi::CString::new(format!("template <typename T> T times(T x) {{ return x * T({factor}); }}")).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let source = source.clone();
            std::thread::spawn(move || unsafe {
                let mut jit = null_mut();
                assert_eq!(tcuda_jit_create(&mut jit, source.as_ptr(), null(), 0), TCUDA_SUCCESS);
                let (mut x, mut out, shape, mut found) = (null_mut(), null_mut(), [3i64], [0f32; 3]);
                let dtype = tcuda::base::dtype::DType { code: 2, bits: 32, lanes: 1 };
                assert_eq!(tcuda_tensor_empty(&mut x, 0, dtype, 1, shape.as_ptr(), null_mut()), TCUDA_SUCCESS);
                assert_eq!(tcuda_copy((*x).tensor.data, [1f32, 2.0, 4.0].as_ptr().cast(), 12, false), TCUDA_SUCCESS);
                let inputs: [*const tcuda_tensor_t; 1] = [&raw const (*x).tensor];
                let status = tcuda_jit_call(jit, &mut out, inputs.as_ptr(), 1, null(), 0, null_mut());
                let message = std::ffi::CStr::from_ptr(tcuda::capi::error::tcuda_last_error_message());
                assert_eq!(status, TCUDA_SUCCESS, "{message:?}");
                assert_eq!(tcuda_copy(found.as_mut_ptr().cast(), (*out).tensor.data, 12, false), TCUDA_SUCCESS);
                assert_eq!(found, [factor, 2.0 * factor, 4.0 * factor]);
                assert_eq!(
                    (tcuda_tensor_destroy(x), tcuda_tensor_destroy(out), tcuda_jit_destroy(jit)),
                    (TCUDA_SUCCESS, TCUDA_SUCCESS, TCUDA_SUCCESS)
                );
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn the_next_process_finds_what_the_first_compiled() {
    let place = Place::new("next");
    place.run(&[]);
    // Four threads came at the same time.
    assert_eq!((place.compilations(), place.files().len()), (1, 1));
    assert_eq!(place.cache().metadata().unwrap().permissions().mode() & 0o777, 0o700);
    place.run(&[]);
    assert_eq!(place.compilations(), 1);
    place.run(&[(FACTOR, Path::new("5"))]);
    assert_eq!((place.compilations(), place.files().len()), (2, 2));
    place.run(&[(FACTOR, Path::new("5"))]);
    assert_eq!(place.compilations(), 2);
}

#[test]
fn a_damaged_file_is_made_anew() {
    let place = Place::new("damaged");
    place.run(&[]);
    let file = place.files().pop().unwrap();
    let whole = std::fs::read(&file).unwrap();
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let broken = [
        Vec::new(),
        whole[..whole.len() / 2].to_vec(),
        changed(whole.len() / 2),
        changed(whole.len() - 1),
        changed(3),
        b"not at all".to_vec(),
    ];
    for (at, bytes) in broken.iter().enumerate() {
        std::fs::write(&file, bytes).unwrap();
        place.run(&[]);
        assert_eq!(place.compilations(), at + 2, "damage {at}");
        assert!(std::fs::read(&file).unwrap().len() > whole.len() / 2 && place.files().len() == 1);
        place.run(&[]);
        assert_eq!(place.compilations(), at + 2, "damage {at} was not mended");
    }
    // The file of another function under this name: its own key is in it.
    place.run(&[(FACTOR, Path::new("7"))]);
    let other = place.files().into_iter().find(|path| *path != file).unwrap();
    std::fs::copy(&other, &file).unwrap();
    let before = place.compilations();
    place.run(&[]);
    assert_eq!(place.compilations(), before + 1);
}

/// Code that another could have written is not run: it is compiled and replaced.
#[test]
fn a_file_that_others_could_write_is_made_anew() {
    let place = Place::new("others");
    place.run(&[]);
    let file = place.files().pop().unwrap();
    let aside = place.0.join("aside");
    let permit = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    let turn_into = |what: &str| {
        std::fs::rename(&file, &aside).unwrap();
        match what {
            "a link" => std::os::unix::fs::symlink(&aside, &file).unwrap(),
            _ => assert!(Command::new("mkfifo").arg(&file).status().unwrap().success()),
        }
    };
    let plants: [&dyn Fn(); 5] = [
        &|| permit(0o620),
        &|| permit(0o602),
        &|| turn_into("a link"),
        &|| turn_into("a pipe"),
        // Only root can give a file away; for others it is one more that may be written.
        &|| std::os::unix::fs::chown(&file, Some(65534), None).unwrap_or_else(|_| permit(0o666)),
    ];
    for (at, plant) in plants.iter().enumerate() {
        plant();
        place.run(&[]);
        assert_eq!(place.compilations(), at + 2, "plant {at}");
        let found = std::fs::symlink_metadata(&file).unwrap();
        assert!(found.is_file() && found.permissions().mode() & 0o777 == 0o600, "plant {at}");
        place.run(&[]);
        assert_eq!(place.compilations(), at + 2, "plant {at} was not replaced");
    }
    permit(0o444);
    place.run(&[]);
    assert_eq!(place.compilations(), plants.len() + 1);
}

#[test]
fn processes_at_the_same_time() {
    let place = Place::new("together");
    let children: Vec<Child> = (0..6).map(|_| place.start(&[])).collect();
    children.into_iter().for_each(|child| drop(finish(child)));
    assert!((1..=6).contains(&place.compilations()));
    // Each file that was on its way has arrived.
    assert_eq!(place.files().len(), 1, "{:?}", place.files());
    let before = place.compilations();
    place.run(&[]);
    assert_eq!(place.compilations(), before);
}

#[test]
fn a_folder_that_cannot_be_is_done_without() {
    let place = Place::new("no-folder");
    let file = place.0.join("file");
    std::fs::write(&file, "in the way").unwrap();
    let text = place.run(&[("TCUDA_JIT_CACHE_PATH", &file.join("below")), ("TCUDA_LOG", Path::new("info"))]);
    assert!(text.contains("cannot be kept in") && text.contains("file/below"), "{text}");
    place.run(&[("TCUDA_JIT_CACHE_PATH", Path::new("/proc/nowhere"))]);
    assert_eq!(place.compilations(), 2);
}

/// Who hears that it cannot be kept may call functions, that one too.
#[test]
fn the_log_may_compile() {
    if std::env::var_os(CHILD).is_none() {
        let place = Place::new("log");
        return drop(finish(place.start_test("the_log_may_compile", &[("TCUDA_JIT_CACHE_PATH", Path::new("/proc/nowhere"))])));
    }
    static JIT: AtomicUsize = AtomicUsize::new(0);
    static HEARD: AtomicUsize = AtomicUsize::new(0);
    fn call(jit: tcuda_jit_t) {
        let (mut x, mut out, shape) = (null_mut(), null_mut(), [3i64]);
        let dtype = tcuda::base::dtype::DType { code: 2, bits: 32, lanes: 1 };
        assert_eq!(unsafe { tcuda_tensor_empty(&mut x, 0, dtype, 1, shape.as_ptr(), null_mut()) }, TCUDA_SUCCESS);
        let inputs: [*const tcuda_tensor_t; 1] = [unsafe { &raw const (*x).tensor }];
        assert_eq!(unsafe { tcuda_jit_call(jit, &mut out, inputs.as_ptr(), 1, null(), 0, null_mut()) }, TCUDA_SUCCESS);
        assert_eq!(unsafe { (tcuda_tensor_destroy(x), tcuda_tensor_destroy(out)) }, (TCUDA_SUCCESS, TCUDA_SUCCESS));
    }
    fn create(source: &std::ffi::CStr) -> tcuda_jit_t {
        let mut jit = null_mut();
        assert_eq!(unsafe { tcuda_jit_create(&mut jit, source.as_ptr(), null(), 0) }, TCUDA_SUCCESS);
        jit
    }
    unsafe extern "C" fn hear(_: i32, _: *const std::ffi::c_char, _: *mut std::ffi::c_void) {
        HEARD.fetch_add(1, Ordering::Relaxed);
        call(JIT.load(Ordering::Relaxed) as tcuda_jit_t);
        call(create(c"template <typename T> T twice(T x) { return x + x; }"));
    }
    assert_eq!(unsafe { tcuda::capi::error::tcuda_set_log_callback(Some(hear), null_mut()) }, TCUDA_SUCCESS);
    JIT.store(create(c"template <typename T> T same(T x) { return x; }") as usize, Ordering::Relaxed);
    call(JIT.load(Ordering::Relaxed) as tcuda_jit_t);
    assert_eq!(HEARD.load(Ordering::Relaxed), 1);
}

#[test]
fn the_option_and_the_usual_folders() {
    let place = Place::new("usual");
    place.run(&[("TCUDA_JIT_CACHE", Path::new("0"))]);
    assert!(place.files().is_empty());
    let (xdg, home) = (place.0.join("xdg"), place.0.join("home"));
    let empty = Path::new("");
    place.run(&[("TCUDA_JIT_CACHE_PATH", empty), ("XDG_CACHE_HOME", &xdg)]);
    place.run(&[("TCUDA_JIT_CACHE_PATH", empty), ("XDG_CACHE_HOME", empty), ("HOME", &home)]);
    place.run(&[("TCUDA_JIT_CACHE_PATH", empty), ("XDG_CACHE_HOME", Path::new("relative")), ("HOME", &home)]);
    let count = |folder: PathBuf| std::fs::read_dir(folder).unwrap().count();
    assert_eq!((count(xdg.join("tcuda/kernels")), count(home.join(".cache/tcuda/kernels"))), (1, 1));
    assert_eq!(place.compilations(), 3);
}

#[test]
fn another_compiler_is_another_key() {
    let place = Place::new("compiler");
    place.run(&[]);
    let script = std::fs::read_to_string(place.compiler()).unwrap();
    let newer = script.replace("exec c++", "case \"$*\" in --version) echo 'another compiler 2.0'; exit;; esac\nexec c++");
    std::fs::write(place.compiler(), newer).unwrap();
    place.run(&[]);
    assert_eq!((place.compilations(), place.files().len()), (2, 2));
}

/// It holds open what the compiler says, as a child does that another thread forks meanwhile.
#[test]
fn a_process_that_a_compiler_leaves_is_not_waited_for() {
    let place = Place::new("leaves");
    let gate = place.0.join("gate");
    let path = std::ffi::CString::new(gate.as_os_str().as_bytes()).unwrap();
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let script = format!("#!/bin/sh\n(read line <'{}') &\nexec c++ \"$@\"\n", gate.display());
    std::fs::write(place.compiler(), script).unwrap();
    place.run(&[]);
    // It goes with this.
    drop(std::fs::OpenOptions::new().read(true).write(true).open(&gate).unwrap());
}

#[test]
fn no_compiler_says_what_helps() {
    let place = Place::new("none");
    let refused = |variables: &[(&str, &Path)], words: &[&str]| {
        let output = place.start(variables).wait_with_output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success() && words.iter().all(|word| text.contains(word)), "{text}");
    };
    let nothing = place.0.join("nothing");
    refused(&[("TCUDA_CXX", &nothing)], &["TCUDA_CXX names no C++ compiler", "nothing", "TCUDA_ERROR_NOT_SUPPORTED"]);
    refused(&[("TCUDA_CXX", Path::new("false"))], &["TCUDA_CXX names no C++ compiler"]);
    refused(&[("TCUDA_CXX", Path::new("")), ("PATH", &nothing)], &["no", "c++", "clang++", "Install g++"]);
    // Without a place to compile in.
    refused(&[("TMPDIR", &nothing)], &["TMPDIR", "TCUDA_ERROR_SYSTEM"]);
}

/// What a process leaves that is killed while it writes does no harm, and goes after an hour.
#[test]
fn what_was_left_half_written_goes() {
    let place = Place::new("left");
    place.run(&[]);
    let file = place.files().pop().unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let hours_ago = |path: &Path| std::fs::File::open(path).unwrap().set_modified(SystemTime::now() - Duration::from_secs(7200)).unwrap();
    let [young, old, of_another] = [format!(".{name}.1"), format!(".{name}.2"), ".profile".into()].map(|name| place.cache().join(name));
    for path in [&young, &old, &of_another] {
        std::fs::write(path, "half").unwrap();
    }
    [&file, &old, &of_another].into_iter().for_each(|path| hours_ago(path));
    place.run(&[]);
    assert_eq!((place.compilations(), place.files().len()), (1, 4));
    // The next that writes looks for it.
    place.run(&[(FACTOR, Path::new("5"))]);
    assert_eq!((place.compilations(), place.files().len()), (2, 4));
    assert!(file.exists() && young.exists() && of_another.exists() && !old.exists());
}

/// Beside what the loader has of it, which cannot go: its text is some 30 KiB.
#[test]
fn what_is_loaded_keeps_little() {
    if std::env::var_os(CHILD).is_none() {
        return Place::new("little").only("what_is_loaded_keeps_little");
    }
    let dtype = tcuda::base::dtype::DType { code: 2, bits: 32, lanes: 1 };
    let (mut x, mut out, shape) = (null_mut(), null_mut(), [3i64]);
    assert_eq!(unsafe { tcuda_tensor_empty(&mut x, 0, dtype, 1, shape.as_ptr(), null_mut()) }, TCUDA_SUCCESS);
    let inputs: [*const tcuda_tensor_t; 1] = [unsafe { &raw const (*x).tensor }];
    let mut compile = |at: usize| {
        let source = std::ffi::CString::new(format!("template <typename T> T plus(T x) {{ return x + T({at}); }}")).unwrap();
        let mut jit = null_mut();
        assert_eq!(unsafe { tcuda_jit_create(&mut jit, source.as_ptr(), null(), 0) }, TCUDA_SUCCESS);
        assert_eq!(unsafe { tcuda_jit_call(jit, &mut out, inputs.as_ptr(), 1, null(), 0, null_mut()) }, TCUDA_SUCCESS);
        assert_eq!(unsafe { (tcuda_tensor_destroy(out), tcuda_jit_destroy(jit)) }, (TCUDA_SUCCESS, TCUDA_SUCCESS));
        let found = unsafe { libc::mallinfo2() };
        found.uordblks + found.hblkhd
    };
    let before = [compile(0), compile(1)][1];
    let after = [2, 3, 4, 5, 6].map(&mut compile)[4];
    assert!(after < before + 5 * (15 << 10), "{before}, {after}");
}

/// What a call allocates beyond one with given outputs, of which only the simulated driver's part does, is the handle of what it makes.
#[test]
fn a_call_allocates_its_output() {
    if std::env::var_os(CHILD).is_none() {
        return Place::new("allocations").only("a_call_allocates_its_output");
    }
    let dtype = tcuda::base::dtype::DType { code: 2, bits: 32, lanes: 1 };
    let (mut jit, mut x, mut made, shape) = (null_mut(), null_mut(), null_mut(), [3i64, 1, 5]);
    let source = c"template <typename T> T f(T x, T y, T a, T b) { return x * a + y * b; }";
    let scalar = |name: &'static std::ffi::CStr| tcuda_jit_scalar_t {
        name: name.as_ptr(),
        kind: TCUDA_SCALAR_REAL,
        integer: 0,
        real: 2.0,
        imag: 0.0,
    };
    let scalars = [scalar(c"a"), scalar(c"b")];
    assert_eq!(unsafe { tcuda_jit_create(&mut jit, source.as_ptr(), scalars.as_ptr(), 2) }, TCUDA_SUCCESS);
    assert_eq!(unsafe { tcuda_tensor_empty(&mut x, 0, dtype, 3, shape.as_ptr(), null_mut()) }, TCUDA_SUCCESS);
    let inputs: [*const tcuda_tensor_t; 2] = [unsafe { &raw const (*x).tensor }; 2];
    let mut call = || {
        let status = unsafe { tcuda_jit_call(jit, &mut made, inputs.as_ptr(), 2, scalars.as_ptr(), 2, null_mut()) };
        assert_eq!((status, unsafe { tcuda_tensor_destroy(made) }), (TCUDA_SUCCESS, TCUDA_SUCCESS));
    };
    let call_out = || {
        let status = unsafe { tcuda_jit_call_out(jit, inputs.as_ptr(), 1, inputs.as_ptr(), 2, scalars.as_ptr(), 2, null_mut()) };
        assert_eq!(status, TCUDA_SUCCESS);
    };
    // Any one of them may be the one for which a table grows.
    let least = |work: &mut dyn FnMut()| (0..20).map(|_| counting::allocations(&mut *work)).min().unwrap();
    let (with_output, without) = (least(&mut call), least(&mut { call_out }));
    assert!(with_output == without + 1 && without < 10, "{with_output}, {without}");
}
