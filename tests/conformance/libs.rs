//! Handles of cuBLAS and plans of cuFFT: what holds where there are none, and with the libraries that they compute.

use crate::graph::G;
use crate::init::in_child;
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use tcuda::capi::copy::tcuda_copy_async;
use tcuda::capi::libs::*;
use tcuda::capi::stream::{tcuda_stream_synchronize, tcuda_stream_wait_stream};

tests![
    the_size_of_the_plan_cache_is_set,
    wrong_devices_and_transforms_are_refused,
    the_simulated_device_has_no_such_library: [Faults],
    a_product_of_matrices: [Cublas],
    handles_from_before_a_capture: [Cublas],
    a_transform_and_back: [Cufft],
];

fn transform(n: i64) -> tcuda_cufft_transform_t {
    let zero = tcuda_cufft_transform_t { struct_size: size_of::<tcuda_cufft_transform_t>(), ..unsafe { std::mem::zeroed() } };
    tcuda_cufft_transform_t { kind: TCUDA_CUFFT_C2C, rank: 1, n: [n, 0, 0], batch: 1, ..zero }
}

fn the_size_of_the_plan_cache_is_set() {
    for device in [-1, device_count() - 1] {
        assert_eq!(get!(-7, out => tcuda_cufft_plan_cache_max_size(out, device)), 4096);
        ok!(tcuda_cufft_plan_cache_set_max_size(0, device));
        ok!(tcuda_cufft_plan_cache_set_max_size(i64::MAX, device));
        assert_eq!(get!(-7, out => tcuda_cufft_plan_cache_max_size(out, device)), i64::MAX);
        ok!(tcuda_cufft_plan_cache_set_max_size(4096, device));
        ok!(tcuda_cufft_plan_cache_clear(device));
        assert_eq!(get!(-7, out => tcuda_cufft_plan_cache_size(out, device)), 0);
    }
    let said = fails!(INVALID_ARGUMENT, tcuda_cufft_plan_cache_set_max_size(-1, 0));
    assert!(said.contains("-1"), "{said}");
}

fn wrong_devices_and_transforms_are_refused() {
    let mut value = -7;
    for bad in bad_devices() {
        fails!(INVALID_DEVICE, tcuda_cufft_plan_cache_size(&mut value, bad));
        fails!(INVALID_DEVICE, tcuda_cufft_plan_cache_max_size(&mut value, bad));
        fails!(INVALID_DEVICE, tcuda_cufft_plan_cache_set_max_size(1, bad));
        fails!(INVALID_DEVICE, tcuda_cufft_plan_cache_clear(bad));
    }
    fails!(INVALID_ARGUMENT, tcuda_cufft_plan_cache_size(null_mut(), 0));
    fails!(INVALID_ARGUMENT, tcuda_current_blas_handle(null_mut()));
    let (mut plan, good) = (-7, transform(8));
    fails!(INVALID_ARGUMENT, tcuda_cufft_plan_cache_get(null_mut(), &good, NULL));
    fails!(INVALID_ARGUMENT, tcuda_cufft_plan_cache_get(&mut plan, null_mut(), NULL));
    for wrong in [
        tcuda_cufft_transform_t { kind: 0, ..good },
        tcuda_cufft_transform_t { rank: 4, ..good },
        tcuda_cufft_transform_t { rank: -1, ..good },
        tcuda_cufft_transform_t { n: [0; 3], ..good },
        tcuda_cufft_transform_t { batch: -1, ..good },
        tcuda_cufft_transform_t { input_embed: [-1, 0, 0], ..good },
        tcuda_cufft_transform_t { output_embed: [8, 0, 0], output_stride: -1, ..good },
    ] {
        let said = fails!(INVALID_ARGUMENT, tcuda_cufft_plan_cache_get(&mut plan, &wrong, NULL));
        assert!(said.contains("'transform"), "{said}");
    }
    fails!(INVALID_HANDLE, tcuda_cufft_plan_cache_put(-7));
    assert_eq!((value, plan), (-7, -7));
}

fn the_simulated_device_has_no_such_library() {
    let stream = Own::new();
    let (mut handle, mut plan, mut needed) = (null_mut(), -7, 0);
    let said = [
        fails!(NOT_SUPPORTED, tcuda_current_blas_handle(&mut handle)),
        fails!(NOT_SUPPORTED, tcuda_blas_handle(&mut handle, stream.0)),
        fails!(NOT_SUPPORTED, tcuda_cufft_plan_cache_get(&mut plan, &transform(8), stream.0)),
        fails!(NOT_SUPPORTED, tcuda_blas_library(null_mut(), 0, &mut needed)),
        fails!(NOT_SUPPORTED, tcuda_cufft_library(null_mut(), 0, &mut needed)),
    ];
    assert!(said.iter().all(|text| text.contains("simulated device")), "{said:?}");
    assert_eq!((handle, plan, needed), (null_mut(), -7, 0));
    ok!(tcuda_blas_clear());
}

/// A function of a library that tcuda has loaded.
unsafe fn function(library: unsafe extern "C" fn(*mut c_char, usize, *mut usize) -> tcuda::base::Status, name: &str) -> *mut c_void {
    let mut path = [0; 4096];
    ok!(library(path.as_mut_ptr(), path.len(), null_mut()));
    let name = CString::new(name).unwrap();
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        let found = libc::dlsym(library, name.as_ptr());
        assert!(!found.is_null());
        found
    }
}

fn upload(values: &[f32], stream: tcuda::capi::structs::tcuda_stream_t) -> *mut c_void {
    let block = allocate(size_of_val(values), stream);
    ok!(tcuda_copy_async(block, values.as_ptr().cast(), size_of_val(values), stream));
    block
}

fn floats(block: *mut c_void, count: usize, stream: tcuda::capi::structs::tcuda_stream_t) -> Vec<f32> {
    bytes_of(block, 4 * count, stream).chunks(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect()
}

fn a_product_of_matrices() {
    type Sgemm = unsafe extern "C" fn(
        tcuda_blas_handle_t,
        i32,
        i32,
        i32,
        i32,
        i32,
        *const f32,
        *const c_void,
        i32,
        *const c_void,
        i32,
        *const f32,
        *mut c_void,
        i32,
    ) -> i32;
    let sgemm = unsafe { std::mem::transmute::<*mut c_void, Sgemm>(function(tcuda_blas_library, "cublasSgemm_v2")) };
    let streams = [Own::new(), Own::new()];
    for own in &streams {
        let stream = own.0;
        let handle = get!(null_mut(), out => tcuda_blas_handle(out, stream));
        assert_eq!(get!(null_mut(), out => tcuda_blas_handle(out, stream)), handle);
        // By columns: (1 2; 3 4) times (5 6; 7 8).
        let (a, b, c) = (upload(&[1.0, 3.0, 2.0, 4.0], stream), upload(&[5.0, 7.0, 6.0, 8.0], stream), allocate(16, stream));
        let answer = unsafe { sgemm(handle, 0, 0, 2, 2, 2, &1.0, a, 2, b, 2, &0.0, c, 2) };
        assert_eq!((answer, floats(c, 4, stream)), (0, vec![19.0, 43.0, 22.0, 50.0]));
        [a, b, c].into_iter().for_each(free);
    }
    let handles = [0, 1].map(|at| get!(null_mut(), out => tcuda_blas_handle(out, streams[at].0)));
    assert_ne!(handles[0], handles[1]);
    ok!(tcuda_blas_clear());
}

/// Graphs may use their workspaces, also those of streams that join.
fn handles_from_before_a_capture() {
    in_child("captured_handles", &[]);
}

pub fn scene_captured_handles() {
    let streams = [Own::new(), Own::new(), Own::new()];
    let allocated = || stat(0, "allocated_bytes.all.current");
    let handle = |stream: &Own| get!(null_mut(), out => tcuda_blas_handle(out, stream.0));
    let handles = streams.each_ref().map(handle);
    let held = allocated();
    let graph = G::captured(streams[0].0, || {
        ok!(tcuda_stream_wait_stream(streams[1].0, streams[0].0));
        ok!(tcuda_stream_wait_stream(streams[0].0, streams[1].0));
    });
    ok!(tcuda_blas_clear());
    assert_eq!(3 * allocated(), 2 * held);
    // That of the third is given out again.
    let again = streams.each_ref().map(handle);
    assert!(handles[..2].iter().all(|handle| !again.contains(handle)) && again.contains(&handles[2]));
    drop(graph);
}

fn a_transform_and_back() {
    type Execute = unsafe extern "C" fn(i32, *mut c_void, *mut c_void, i32) -> i32;
    const N: usize = 1000;
    let execute = unsafe { std::mem::transmute::<*mut c_void, Execute>(function(tcuda_cufft_library, "cufftExecC2C")) };
    let own = Own::new();
    let stream = own.0;
    let values: Vec<f32> = (0..2 * N).map(|at| (at % 7) as f32).collect();
    let block = upload(&values, stream);
    for direction in [-1, 1] {
        let plan = get!(-7, out => tcuda_cufft_plan_cache_get(out, &transform(N as i64), stream));
        assert_eq!(unsafe { execute(plan, block, block, direction) }, 0);
        ok!(tcuda_cufft_plan_cache_put(plan));
    }
    let back = floats(block, 2 * N, stream);
    assert!(back.iter().zip(&values).all(|(back, value)| (back / N as f32 - value).abs() < 1e-4));
    assert_eq!(get!(-7, out => tcuda_cufft_plan_cache_size(out, -1)), 1);
    ok!(tcuda_stream_synchronize(stream));
    free(block);
    ok!(tcuda_cufft_plan_cache_clear(-1));
    assert_eq!(get!(-7, out => tcuda_cufft_plan_cache_size(out, -1)), 0);
}
