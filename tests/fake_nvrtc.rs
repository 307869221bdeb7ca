//! Kernels from source over a fake NVRTC and a fake driver: which compiler is taken, what is said when none is, and that what a program
//! asks for reaches the driver. Each case runs in a process of its own, on a machine of tests/fake/mod.rs.

mod counting;
mod fake;

use fake::*;
use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use tcuda::base::Status::{self, *};
use tcuda::base::dlpack::{tcuda_place_t, tcuda_tensor_t};
use tcuda::base::dtype::tcuda_dtype_t;
use tcuda::capi::error::tcuda_last_error_native;
use tcuda::capi::init::{tcuda_init, tcuda_shutdown};
use tcuda::capi::jit::*;
use tcuda::capi::kernel::*;
use tcuda::capi::tensor::tcuda_tensor_fill;

const NVRTC: [(i32, &str); 3] = [(13000, "libnvrtc.so.13"), (12040, "libnvrtc.so.12"), (11080, "libnvrtc.so.11.2")];

fn compiler(version: i32, lacks: &[&str]) -> PathBuf {
    let (_, soname) = NVRTC.iter().find(|(v, _)| v / 1000 == version / 1000).unwrap();
    build("nvrtc.c", soname, &[&format!("-DVERSION={version}")], lacks)
}

/// A machine with a driver and a runtime, and no compiler yet.
fn plain(machine: Machine, version: i32) -> Machine {
    let loader = |name: &str| format!("loader/{name}");
    let soname = RUNTIMES.iter().find(|(v, _)| v / 1000 == version / 1000).unwrap().1;
    machine.with("loader/libcuda.so.1", &driver(version)).with(&loader(soname), &runtime_library(version))
}

const SOURCE: &CStr = c"template <typename T> __global__ void scale(T *x, int n) { x[n] *= N; }";

/// On device 1, with the options that the fake wants.
fn compile(source: &CStr, option: &CStr) -> (Status, tcuda_kernel_module_t) {
    let (options, names) = ([option.as_ptr()], [c"scale<int>".as_ptr()]);
    let chosen = tcuda_kernel_options_t {
        struct_size: size_of::<tcuda_kernel_options_t>(),
        name: c"some.cu".as_ptr(),
        options: options.as_ptr(),
        option_count: 1,
        names: names.as_ptr(),
        name_count: 1,
    };
    let mut module = null_mut();
    (unsafe { tcuda_kernel_compile(&mut module, source.as_ptr(), 1, &chosen) }, module)
}

fn nvrtc_calls(name: &str) -> i64 {
    calls("libnvrtc.so.13", "fake_nvrtc_calls", name)
}

fn driver_calls(name: &str) -> i64 {
    calls("libcuda.so.1", "fake_driver_calls", name)
}

fn bytes(value: &u64, size: usize) -> tcuda_argument_t {
    let value = tcuda_argument_value_t { pointer: std::ptr::from_ref(value).cast() };
    tcuda_argument_t { kind: TCUDA_ARGUMENT_BYTES, size, value }
}

fn whole(value: i32) -> tcuda_argument_t {
    tcuda_argument_t { kind: TCUDA_ARGUMENT_I32, size: 0, value: tcuda_argument_value_t { i32: value } }
}

#[test]
fn from_source_to_launch() {
    case(
        "from_source_to_launch",
        |m| plain(m, 13000).with("loader/libnvrtc.so.13", &compiler(13000, &[])),
        || {
            let (status, module) = compile(SOURCE, c"-DN=4");
            assert_eq!(status, TCUDA_SUCCESS, "{}", message());
            assert_eq!((nvrtc_calls("nvrtcGetCUBIN"), nvrtc_calls("nvrtcDestroyProgram"), driver_calls("cuModuleLoadData")), (1, 1, 1));
            let mut kernel = null_mut();
            let get = |name: &CStr, kernel: &mut tcuda_kernel_t| unsafe { tcuda_kernel_get(kernel, module, name.as_ptr()) };
            assert_eq!(get(c"scale<int>", &mut kernel), TCUDA_SUCCESS, "{}", message());

            let mut attributes: tcuda_kernel_attributes_t = unsafe { std::mem::zeroed() };
            attributes.struct_size = size_of::<tcuda_kernel_attributes_t>();
            assert_eq!(unsafe { tcuda_kernel_attributes(kernel, &mut attributes) }, TCUDA_SUCCESS);
            let a = attributes;
            assert_eq!((a.max_threads, a.shared, a.constant, a.local, a.registers), (1024, 10, 20, 30, 40));
            assert_eq!((a.ptx_version, a.binary_version, a.max_dynamic_shared), (50, 60, 80));
            let (mut blocks, mut grid, mut block) = (0, 0, 0);
            assert_eq!(unsafe { tcuda_kernel_occupancy(kernel, &mut blocks, 256, 1024) }, TCUDA_SUCCESS);
            assert_eq!(unsafe { tcuda_kernel_best_block(kernel, &mut grid, &mut block, 2048, 512) }, TCUDA_SUCCESS);
            assert_eq!((blocks, grid, block), (3, 264, 384));

            let eight = 8u64;
            let launch = |grid: [u32; 3], block: [u32; 3], shared: usize, arguments: &[tcuda_argument_t]| unsafe {
                let (list, count) = (arguments.as_ptr(), arguments.len());
                tcuda_kernel_launch(kernel, grid.as_ptr(), block.as_ptr(), shared, list, count, STREAM as _)
            };
            let good = [bytes(&eight, 8), whole(1)];
            assert_eq!(launch([1, 2, 3], [4, 5, 6], 7, &good), TCUDA_SUCCESS, "{}", message());
            assert_eq!(driver_calls("cuFuncSetAttribute"), 0);
            // The driver is asked once, before it tells the occupancy, for all that there is: by whichever handle and name.
            for shared in [65536, 232_438, 100_000] {
                let mut same = null_mut();
                assert_eq!((get(c"kernel", &mut same), same), (TCUDA_SUCCESS, kernel));
                assert_eq!(unsafe { tcuda_kernel_occupancy(same, &mut blocks, 256, shared) }, TCUDA_SUCCESS, "{}", message());
                assert_eq!(blocks, 3, "{shared}");
                assert_eq!(unsafe { tcuda_kernel_best_block(same, &mut grid, &mut block, shared, 512) }, TCUDA_SUCCESS, "{}", message());
                assert_eq!(launch([1, 2, 3], [4, 5, 6], shared, &good), TCUDA_SUCCESS, "{}", message());
            }
            assert_eq!((driver_calls("cuFuncSetAttribute"), driver_calls("cuLaunchKernel")), (1, 4));
            assert_eq!(counting::allocations(|| assert_eq!(launch([1, 2, 3], [4, 5, 6], 65536, &good), TCUDA_SUCCESS)), 0);
            assert_eq!(driver_calls("cuModuleGetFunction"), 1);

            let bad = |status, words: &[&str]| refused(status, TCUDA_ERROR_INVALID_ARGUMENT, words);
            bad(launch([1, 2, 0], [4, 5, 6], 7, &good), &["'scale<int>'", "the grid is [1, 2, 0]"]);
            bad(launch([1, 2, 3], [0, 5, 6], 7, &good), &["the block is [0, 5, 6]"]);
            bad(launch([1, 2, 3], [32, 32, 2], 7, &good), &["2048 threads", "1024"]);
            bad(launch([1, 2, 3], [4, 5, 6], 7, &good[..1]), &["takes 2 arguments; 1 were given"]);
            bad(launch([1, 2, 3], [4, 5, 6], 7, &[bytes(&eight, 8), bytes(&eight, 8)]), &["argument 1 has 8 bytes", "has 4"]);
            let too_much = ["232439 bytes of dynamic shared memory", "232448 bytes", "takes 10"];
            bad(launch([1, 2, 3], [4, 5, 6], 232_439, &good), &too_much);
            bad(unsafe { tcuda_kernel_occupancy(kernel, &mut blocks, 256, 232_439) }, &too_much);
            bad(unsafe { tcuda_kernel_best_block(kernel, &mut grid, &mut block, 232_439, 512) }, &too_much);
            bad(launch([1, 2, 3], [4, 5, 6], 7, &[bytes(&eight, 0), whole(1)]), &["arguments[0].size"]);
            let odd = tcuda_argument_t { kind: 77, ..whole(1) };
            bad(launch([1, 2, 3], [4, 5, 6], 7, &[bytes(&eight, 8), odd]), &["arguments[1].kind"]);
            assert_eq!((driver_calls("cuLaunchKernel"), driver_calls("cuFuncSetAttribute")), (5, 1));
            // What the driver refuses.
            let wrong = launch([9, 9, 9], [4, 5, 6], 7, &good);
            refused(wrong, TCUDA_ERROR_INVALID_ARGUMENT, &["The launch of 'scale<int>'", "cuLaunchKernel"]);
            let mut other = null_mut();
            assert_ne!(get(c"absent", &mut other), TCUDA_SUCCESS);
            assert!(other.is_null());

            assert_eq!(tcuda_kernel_module_destroy(module), TCUDA_SUCCESS, "{}", message());
            assert_eq!(driver_calls("cuModuleUnload"), 1);
            assert_eq!(launch([1, 2, 3], [4, 5, 6], 7, &good), TCUDA_ERROR_INVALID_HANDLE);
            assert_eq!(tcuda_kernel_module_destroy(module), TCUDA_ERROR_INVALID_HANDLE);
        },
    );
}

#[test]
fn a_kernel_ends_with_its_module() {
    // The driver of CUDA 12.3 does not tell what a kernel takes.
    case(
        "a_kernel_ends_with_its_module",
        |m| {
            let old = build("cuda.c", "libcuda.so.1", &["-DVERSION=12040"], &["cuFuncGetParamInfo"]);
            m.with("loader/libcuda.so.1", &old)
                .with("loader/libcudart.so.12", &runtime_library(12040))
                .with("loader/libnvrtc.so.12", &compiler(12040, &[]))
        },
        || {
            let (status, module) = compile(SOURCE, c"-DN=4");
            assert_eq!(status, TCUDA_SUCCESS, "{}", message());
            let mut kernel = null_mut();
            assert_eq!(unsafe { tcuda_kernel_get(&mut kernel, module, c"kernel".as_ptr()) }, TCUDA_SUCCESS, "{}", message());
            let (eight, grid, block) = (8u64, [1u32, 2, 3], [4u32, 5, 6]);
            let arguments = [bytes(&eight, 8)];
            let launch = || unsafe { tcuda_kernel_launch(kernel, grid.as_ptr(), block.as_ptr(), 7, arguments.as_ptr(), 1, STREAM as _) };
            assert_eq!(launch(), TCUDA_SUCCESS, "{}", message());
            assert_eq!(tcuda_kernel_module_destroy(module), TCUDA_SUCCESS);
            assert_eq!((launch(), driver_calls("cuModuleUnload")), (TCUDA_ERROR_INVALID_HANDLE, 1));
        },
    );
}

/// A kernel is looked up while another thread destroys its module: nothing is left of either.
#[test]
fn a_kernel_that_comes_too_late_goes_with_its_module() {
    case(
        "a_kernel_that_comes_too_late_goes_with_its_module",
        |m| plain(m, 13000).with("loader/libnvrtc.so.13", &compiler(13000, &[])).set("FAKE_GATE", "{}/gate"),
        || {
            let (status, module) = compile(SOURCE, c"-DN=4");
            assert_eq!(status, TCUDA_SUCCESS, "{}", message());
            let (gate, handle) = (root().join("gate"), module as usize);
            let late = std::thread::spawn(move || {
                let mut kernel = null_mut();
                let status = unsafe { tcuda_kernel_get(&mut kernel, handle as tcuda_kernel_module_t, c"kernel".as_ptr()) };
                (status, kernel.is_null())
            });
            while !gate.exists() {
                std::thread::yield_now();
            }
            assert_eq!(tcuda_kernel_module_destroy(module), TCUDA_SUCCESS, "{}", message());
            std::fs::remove_file(&gate).unwrap();
            assert_eq!(late.join().unwrap(), (TCUDA_ERROR_INVALID_HANDLE, true));
            assert_eq!(driver_calls("cuModuleUnload"), 1);
        },
    );
}

/// What a program did not destroy is not left on the device by the end of everything.
#[test]
fn a_shutdown_unloads_modules() {
    case(
        "a_shutdown_unloads_modules",
        |m| plain(m, 13000).with("loader/libnvrtc.so.13", &compiler(13000, &[])),
        || {
            for round in 1..=2 {
                let (status, module) = compile(SOURCE, c"-DN=4");
                assert_eq!(status, TCUDA_SUCCESS, "{}", message());
                let mut kernel = null_mut();
                assert_eq!(unsafe { tcuda_kernel_get(&mut kernel, module, c"kernel".as_ptr()) }, TCUDA_SUCCESS, "{}", message());
                assert_eq!(tcuda_shutdown(), TCUDA_SUCCESS, "{}", message());
                assert_eq!((driver_calls("cuModuleLoadData"), driver_calls("cuModuleUnload")), (round, round));
                assert_eq!(tcuda_kernel_module_destroy(module), TCUDA_SUCCESS);
                assert_eq!(unsafe { tcuda_init(null()) }, TCUDA_SUCCESS, "{}", message());
                assert_eq!(tcuda_kernel_module_destroy(module), TCUDA_ERROR_INVALID_HANDLE);
            }
            assert_eq!(driver_calls("cuModuleUnload"), 2);
        },
    );
}

/// The launch of an element-wise function: what NVRTC gets, the shape of the grid, and the kernel's one argument.
#[test]
fn a_function_over_a_tensor() {
    case(
        "a_function_over_a_tensor",
        |m| plain(m, 13000).with("loader/libnvrtc.so.13", &compiler(13000, &[])),
        || {
            let scalar = tcuda_jit_scalar_t { name: c"a".as_ptr(), kind: TCUDA_SCALAR_REAL, integer: 0, real: 2.5, imag: 0.0 };
            let source = c"template <typename T> T axpy(T x, T y, T a) { return a * x + y; }";
            let mut shape = [5000i64];
            let tensor = floats(&mut shape);
            let list = [&raw const tensor; 2];
            // Two of one source: it is compiled and loaded once.
            for _ in 0..2 {
                let mut jit = null_mut();
                assert_eq!(unsafe { tcuda_jit_create(&mut jit, source.as_ptr(), &scalar, 1) }, TCUDA_SUCCESS, "{}", message());
                let call = || unsafe { tcuda_jit_call_out(jit, list.as_ptr(), 1, list.as_ptr(), 2, &scalar, 1, STREAM as _) };
                assert_eq!(call(), TCUDA_SUCCESS, "{}", message());
                // The way that each call goes.
                assert_eq!(counting::allocations(|| assert_eq!(call(), TCUDA_SUCCESS)), 0);
                assert_eq!(tcuda_jit_destroy(jit), TCUDA_SUCCESS);
            }
            assert_eq!((nvrtc_calls("nvrtcCompileProgram"), driver_calls("cuModuleLoadData"), driver_calls("cuLaunchKernel")), (1, 1, 4));
            // And it is kept for the next process.
            let kept = std::fs::read_dir(root().join("home/.cache/tcuda/kernels")).unwrap().count();
            assert_eq!(kept, 1);
        },
    );
}

/// On device 1, at an address that the fake knows.
fn floats(shape: &mut [i64; 1]) -> tcuda_tensor_t {
    tcuda_tensor_t {
        data: TO as _,
        device: tcuda_place_t { device_type: 2, device_id: 1 },
        ndim: 1,
        dtype: tcuda_dtype_t { code: 2, bits: 32, lanes: 1 },
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

fn function() -> tcuda_jit_t {
    let mut jit = null_mut();
    let source = c"template <typename T> T axpy(T x) { return x; }";
    ok(unsafe { tcuda_jit_create(&mut jit, source.as_ptr(), null(), 0) });
    jit
}

/// A file that the driver could not load is lost only if it was the file: a device that is short of memory says nothing of it.
#[test]
fn a_file_that_cannot_be_loaded() {
    let name = "a_file_that_cannot_be_loaded";
    case(
        name,
        |m| plain(m, 13000).with("loader/libnvrtc.so.13", &compiler(13000, &[])),
        || {
            let jit = function();
            let mut shape = [5000i64];
            let tensor = floats(&mut shape);
            let list = [&raw const tensor];
            // The launch is not one that the fake knows; the file is there before it.
            let status = unsafe { tcuda_jit_call_out(jit, list.as_ptr(), 1, list.as_ptr(), 1, null(), 0, STREAM as _) };
            let compilations = nvrtc_calls("nvrtcCompileProgram");
            let files = || std::fs::read_dir(root().join("home/.cache/tcuda/kernels")).unwrap().count();
            match std::env::var("FAKE_LOAD").as_deref() {
                Ok("2") => {
                    refused(status, TCUDA_ERROR_OUT_OF_MEMORY, &["'axpy' cannot be loaded on device 1"]);
                    assert_eq!((compilations, files()), (0, 1));
                }
                Ok(_) => {
                    refused(status, TCUDA_ERROR_CUDA, &["'axpy' cannot be loaded on device 1", "cuModuleLoadData"]);
                    assert_eq!((compilations, files()), (1, 1));
                }
                Err(_) => {
                    assert_eq!((compilations, files()), (1, 1));
                    for code in ["2", "200"] {
                        let mut other = std::process::Command::new(std::env::current_exe().unwrap());
                        let output = other.args(["--exact", name, "--nocapture"]).env("FAKE_LOAD", code).output().unwrap();
                        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                    }
                }
            }
        },
    );
}

/// What was loaded for a function and cannot be used is not left on the device, call by call.
#[test]
fn a_module_without_its_function_is_unloaded() {
    case(
        "a_module_without_its_function_is_unloaded",
        |m| plain(m, 13000).with("loader/libnvrtc.so.13", &compiler(13000, &[])).set("FAKE_FUNCTION", "2"),
        || {
            let jit = function();
            let mut shape = [5000i64];
            let tensor = floats(&mut shape);
            let list = [&raw const tensor];
            for round in 1..=3 {
                let status = unsafe { tcuda_jit_call_out(jit, list.as_ptr(), 1, list.as_ptr(), 1, null(), 0, STREAM as _) };
                refused(status, TCUDA_ERROR_OUT_OF_MEMORY, &["'axpy' cannot be loaded on device 1", "cuModuleGetFunction"]);
                assert_eq!((driver_calls("cuModuleLoadData"), driver_calls("cuModuleUnload")), (round, round));
            }
        },
    );
}

/// Nor is what was loaded for a kernel of tcuda's own.
#[test]
fn a_module_without_tcudas_own_kernel_is_unloaded() {
    case(
        "a_module_without_tcudas_own_kernel_is_unloaded",
        |m| plain(m, 13000).set("FAKE_FUNCTION", "2"),
        || {
            let mut shape = [5000i64];
            let mut tensor = floats(&mut shape);
            // With gaps: no fill of CUDA's.
            let mut strides = [2i64];
            tensor.strides = strides.as_mut_ptr();
            let value = 1.5f32;
            for round in 1..=3 {
                let status = unsafe { tcuda_tensor_fill(&tensor, (&raw const value).cast(), tensor.dtype, STREAM as _) };
                refused(status, TCUDA_ERROR_OUT_OF_MEMORY, &["of tcuda cannot be loaded on device 1", "cuModuleGetFunction"]);
                assert_eq!((driver_calls("cuModuleLoadData"), driver_calls("cuModuleUnload")), (round, round));
            }
        },
    );
}

#[test]
fn what_the_compiler_says() {
    case(
        "what_the_compiler_says",
        |m| plain(m, 13000).with("loader/libnvrtc.so.13", &compiler(13000, &[])),
        || {
            let (status, module) = compile(c"first\nthis is wrong;\nlast", c"-DN=4");
            refused(status, TCUDA_ERROR_COMPILATION, &["'some.cu'", "at line 2: `this is wrong;`", "some.cu(2): error: it is wrong"]);
            assert!(module.is_null());
            refused(compile(SOURCE, c"--none").0, TCUDA_ERROR_INVALID_ARGUMENT, &["--none", "unrecognized option"]);
            assert_eq!((nvrtc_calls("nvrtcCreateProgram"), nvrtc_calls("nvrtcDestroyProgram")), (2, 2));
            let none: *const c_char = null();
            assert_eq!(unsafe { tcuda_kernel_compile(&mut null_mut(), none, 1, null()) }, TCUDA_ERROR_INVALID_ARGUMENT);
        },
    );
}

#[test]
fn a_compiler_that_fails_itself() {
    case(
        "a_compiler_that_fails_itself",
        |m| plain(m, 13000).with("loader/libnvrtc.so.13", &compiler(13000, &[])).set("FAKE_BUILTINS", "1"),
        || {
            refused(compile(SOURCE, c"-DN=4").0, TCUDA_ERROR_CUDA, &["some other error (7) in nvrtcCompileProgram", "libnvrtc.so.13"]);
            assert_eq!(tcuda_last_error_native(), 7);
        },
    );
}

#[test]
fn no_compiler_that_works() {
    let name = "no_compiler_that_works";
    let places = ["what the process has already", "the loader's path", "CUDA_HOME", "Python environments"];
    case(
        name,
        |m| plain(m, 12040),
        || {
            let words = [&["NVRTC", "libnvrtc.so.12", "pip install nvidia-cuda-nvrtc-cu12", "TCUDA_NVRTC_PATH"], &places[..]].concat();
            // Each call looks again.
            for _ in 0..2 {
                refused(compile(SOURCE, c"-DN=4").0, TCUDA_ERROR_NOT_SUPPORTED, &words);
            }
        },
    );
}

#[test]
fn compilers_that_do_not_fit_are_passed_over() {
    let name = "compilers_that_do_not_fit_are_passed_over";
    case(
        name,
        |m| {
            plain(m, 12040)
                .with("toolkit/lib64/libnvrtc.so.13", &compiler(13000, &[]))
                .with("toolkit/lib64/libnvrtc.so.12", &compiler(12040, &["nvrtcGetCUBIN"]))
                .set("CUDA_HOME", "{}/toolkit")
        },
        || {
            let words = ["libnvrtc.so.13 is for drivers of CUDA 13 and later", "libnvrtc.so.12 has no nvrtcGetCUBIN", "CUDA_HOME"];
            refused(compile(SOURCE, c"-DN=4").0, TCUDA_ERROR_NOT_SUPPORTED, &words);
        },
    );
}

#[test]
fn a_compiler_of_a_wheel() {
    let wheel = "venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2";
    case(
        "a_compiler_of_a_wheel",
        |m| plain(m, 12040).with(wheel, &compiler(11080, &[])).set("VIRTUAL_ENV", "{}/venv"),
        || assert_eq!(compile(SOURCE, c"-DN=4").0, TCUDA_SUCCESS, "{}", message()),
    );
}

#[test]
fn a_compiler_that_is_given_is_the_only_one() {
    case(
        "a_compiler_that_is_given_is_the_only_one",
        |m| plain(m, 12040).with("loader/libnvrtc.so.12", &compiler(12040, &[])).set("TCUDA_NVRTC_PATH", "{}/none.so"),
        || refused(compile(SOURCE, c"-DN=4").0, TCUDA_ERROR_NOT_SUPPORTED, &["looked for in TCUDA_NVRTC_PATH", "none.so"]),
    );
}
