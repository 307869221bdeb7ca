//! Whole kernels: compiled at run time, and before.

use crate::jit_kit::*;
use crate::kit::*;
use crate::reference::*;
use crate::{fails, get, ok, tests};
use std::ffi::CString;
use std::ptr::{null, null_mut};
use tcuda::base::status::tcuda_status_t::*;
use tcuda::capi::kernel::*;
use tcuda::capi::stream::tcuda_stream_synchronize;
use tcuda::capi::structs::tcuda_stream_t;

tests![
    whole_kernels: [Compiler],
    kernels_that_were_compiled_before,
    bad_launches_are_refused_with_a_reason: [Compiler],
    sources_of_kernels_that_do_not_compile: [Compiler],
];

const KERNELS: &str = r#"
extern "C" __global__ void axpy(const float *x, float *y, float a, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] += a * x[i];
}
struct Pair { double first; long long second; char third; };
template <typename T> __global__ void sum(T *out, long long n, double scale, Pair pair)
{
    extern __shared__ char memory[];
    T *parts = (T *)memory;
    T own = 0;
    for (long long i = threadIdx.x; i < n; i += blockDim.x)
        own += T(i * scale);
    parts[threadIdx.x] = own;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *out = parts[0] + T(pair.first + pair.second + pair.third) + T(N);
}
extern "C" __global__ void much(char *out)
{
    extern __shared__ char memory[];
    memory[65535 - threadIdx.x] = (char)threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = memory[65535 - (threadIdx.x ^ 1)];
}
"#;

struct Module(tcuda_kernel_module_t);

impl Drop for Module {
    fn drop(&mut self) {
        ok!(tcuda_kernel_module_destroy(self.0));
    }
}

/// None on the simulated device, which says so.
fn module(source: &str, options: &[*const std::ffi::c_char], names: &[*const std::ffi::c_char]) -> Option<Module> {
    let chosen = tcuda_kernel_options_t {
        struct_size: size_of::<tcuda_kernel_options_t>(),
        name: c"some.cu".as_ptr(),
        options: options.as_ptr(),
        option_count: options.len(),
        names: names.as_ptr(),
        name_count: names.len(),
    };
    let source = CString::new(source).unwrap();
    if backend() == "sim" {
        let mut out = null_mut();
        let text = fails!(NOT_SUPPORTED, tcuda_kernel_compile(&mut out, source.as_ptr(), 0, &chosen));
        assert!(text.contains("simulated device") && text.contains("tcuda_jit_create") && out.is_null(), "{text}");
        return None;
    }
    Some(Module(get!(null_mut(), out => tcuda_kernel_compile(out, source.as_ptr(), 0, &chosen))))
}

fn kernel(module: &Module, name: &std::ffi::CStr) -> tcuda_kernel_t {
    get!(null_mut(), out => tcuda_kernel_get(out, module.0, name.as_ptr()))
}

fn argument(kind: i32, value: tcuda_argument_value_t) -> tcuda_argument_t {
    tcuda_argument_t { kind, size: 0, value }
}

fn pointer(to: *const std::ffi::c_void) -> tcuda_argument_t {
    argument(TCUDA_ARGUMENT_POINTER, tcuda_argument_value_t { pointer: to })
}

fn whole_kernels() {
    let name = c"sum<float>";
    let Some(module) = module(KERNELS, &[c"-DN=5".as_ptr()], &[name.as_ptr()]) else { return };
    let (x, y) = (Tensor::reals(0, F32, &[1.0; 1000]), Tensor::reals(0, F32, &[2.0; 1000]));
    let axpy = kernel(&module, c"axpy");
    let arguments = [
        pointer(x.start()),
        pointer(y.start()),
        argument(TCUDA_ARGUMENT_F32, tcuda_argument_value_t { f32: 3.0 }),
        argument(TCUDA_ARGUMENT_I32, tcuda_argument_value_t { i32: 999 }),
    ];
    let launch = |kernel, grid: [u32; 3], block: [u32; 3], shared, arguments: &[tcuda_argument_t], stream: tcuda_stream_t| unsafe {
        tcuda_kernel_launch(kernel, grid.as_ptr(), block.as_ptr(), shared, arguments.as_ptr(), arguments.len(), stream)
    };
    ok!(launch(axpy, [8, 1, 1], [128, 1, 1], 0, &arguments, null_mut()));
    let found = y.read();
    assert!(found[..999].iter().all(|value| *value == Number::Real(5.0)) && found[999] == Number::Real(2.0));

    let pair: [u64; 3] = [0.5f64.to_bits(), 100, 7];
    let bytes = tcuda_argument_t {
        kind: TCUDA_ARGUMENT_BYTES,
        size: size_of_val(&pair),
        value: tcuda_argument_value_t { pointer: pair.as_ptr().cast() },
    };
    let side = Own::on(0);
    let arguments = [
        pointer(y.start()),
        argument(TCUDA_ARGUMENT_I64, tcuda_argument_value_t { i64: 101 }),
        argument(TCUDA_ARGUMENT_F64, tcuda_argument_value_t { f64: 2.0 }),
        bytes,
    ];
    let sum = kernel(&module, name);
    assert_eq!(sum, kernel(&module, name));
    ok!(launch(sum, [1; 3], [64, 1, 1], 64 * 4, &arguments, side.0));
    ok!(tcuda_stream_synchronize(side.0));
    assert_eq!(y.read()[0], Number::Real(2.0 * 5050.0 + 107.5 + 5.0));

    // More than 48 KiB of shared memory, each time, and the occupancy before it.
    let much = kernel(&module, c"much");
    let out = Tensor::reals(0, U8, &[0.0; 64]);
    assert!(get!(0, out => tcuda_kernel_occupancy(much, out, 64, 65536)) > 0);
    for shared in [65536, 100 << 10, 65536] {
        let much = kernel(&module, c"much");
        ok!(launch(much, [1; 3], [64, 1, 1], shared, &[pointer(out.start())], null_mut()));
    }
    assert_eq!(out.read(), (0..64).map(|at| Number::Integer(at ^ 1)).collect::<Vec<_>>());

    let mut attributes: tcuda_kernel_attributes_t = unsafe { std::mem::zeroed() };
    attributes.struct_size = size_of::<tcuda_kernel_attributes_t>();
    ok!(tcuda_kernel_attributes(much, &mut attributes));
    assert!(attributes.max_threads >= 64 && attributes.registers > 0 && attributes.max_dynamic_shared >= 65536);
    assert!(get!(0, out => tcuda_kernel_occupancy(axpy, out, 128, 0)) > 0);
    let (mut grid, mut block) = (0, 0);
    ok!(tcuda_kernel_best_block(axpy, &mut grid, &mut block, 0, 256));
    assert!(grid > 0 && block > 0 && block <= 256);
}

fn bad_launches_are_refused_with_a_reason() {
    let Some(module) = module(KERNELS, &[c"-DN=5".as_ptr()], &[c"sum<double>".as_ptr()]) else { return };
    let much = kernel(&module, c"much");
    let out = Tensor::reals(0, U8, &[0.0; 64]);
    let arguments = [pointer(out.start())];
    let bad = |grid: [u32; 3], block: [u32; 3], shared: usize, count: usize, words: &[&str]| {
        let status = unsafe { tcuda_kernel_launch(much, grid.as_ptr(), block.as_ptr(), shared, arguments.as_ptr(), count, null_mut()) };
        refused(status, TCUDA_ERROR_INVALID_ARGUMENT, words);
    };
    bad([1, 0, 1], [64, 1, 1], 0, 1, &["the grid is [1, 0, 1]"]);
    bad([1; 3], [64, 64, 1], 0, 1, &["4096 threads"]);
    bad([1; 3], [64, 1, 1], 1 << 30, 1, &["1073741824 bytes of dynamic shared memory"]);
    bad([1; 3], [64, 1, 1], usize::MAX, 1, &["dynamic shared memory"]);
    if tcuda::runtime::runtime().unwrap().table.cuFuncGetParamInfo.is_some() {
        bad([1; 3], [64, 1, 1], 65536, 0, &["takes 1 arguments; 0 were given"]);
        let wrong = [argument(TCUDA_ARGUMENT_I32, tcuda_argument_value_t { i32: 1 })];
        let (grid, block) = ([1u32; 3], [64u32, 1, 1]);
        let text = fails!(INVALID_ARGUMENT, tcuda_kernel_launch(much, grid.as_ptr(), block.as_ptr(), 65536, wrong.as_ptr(), 1, null_mut()));
        assert!(text.contains("argument 0 has 4 bytes") && text.contains("has 8"), "{text}");
    }
    let text = fails!(INVALID_ARGUMENT, tcuda_kernel_get(&mut null_mut(), module.0, c"nothing".as_ptr()));
    assert!(text.contains("no kernel 'nothing'") && text.contains("extern \"C\""), "{text}");
    drop(module);
    let (grid, block) = ([1u32; 3], [64u32, 1, 1]);
    fails!(INVALID_HANDLE, tcuda_kernel_launch(much, grid.as_ptr(), block.as_ptr(), 0, arguments.as_ptr(), 1, null_mut()));
}

/// PTX that was made before, for any device of these days.
const IMAGE: &str = ".version 6.0
.target sm_50
.address_size 64
.visible .entry set(.param .u64 to, .param .u32 value)
{
    .reg .b32 %value;
    .reg .b64 %to, %global;
    ld.param.u64 %to, [to];
    ld.param.u32 %value, [value];
    cvta.to.global.u64 %global, %to;
    st.global.u32 [%global], %value;
    ret;
}
";

fn kernels_that_were_compiled_before() {
    let mut out = null_mut();
    for size in [0, usize::MAX] {
        fails!(INVALID_ARGUMENT, tcuda_kernel_load(&mut out, IMAGE.as_ptr().cast(), size, 0));
    }
    fails!(INVALID_ARGUMENT, tcuda_kernel_load(&mut out, std::ptr::null(), 8, 0));
    fails!(INVALID_DEVICE, tcuda_kernel_load(&mut out, IMAGE.as_ptr().cast(), IMAGE.len(), 1000));
    if backend() == "sim" {
        let text = fails!(NOT_SUPPORTED, tcuda_kernel_load(&mut out, IMAGE.as_ptr().cast(), IMAGE.len(), 0));
        assert!(text.contains("simulated device") && out.is_null(), "{text}");
        return;
    }
    let text = fails!(CUDA, tcuda_kernel_load(&mut out, c"no image".as_ptr().cast(), 9, 0));
    assert!(text.contains("the image") && text.contains("device 0"), "{text}");
    let module = Module(get!(null_mut(), out => tcuda_kernel_load(out, IMAGE.as_ptr().cast(), IMAGE.len(), 0)));
    fails!(INVALID_ARGUMENT, tcuda_kernel_get(&mut null_mut(), module.0, c"other".as_ptr()));
    let stream = Own::on(0);
    let block = allocate(4, stream.0);
    let arguments = [pointer(block), argument(TCUDA_ARGUMENT_I32, tcuda_argument_value_t { i32: 0x0707_0707 })];
    let one = [1u32; 3];
    ok!(tcuda_kernel_launch(kernel(&module, c"set"), one.as_ptr(), one.as_ptr(), 0, arguments.as_ptr(), 2, stream.0));
    assert_eq!(bytes_of(block, 4, stream.0), [7; 4]);
    free(block);
}

fn sources_of_kernels_that_do_not_compile() {
    if module(KERNELS, &[c"-DN=5".as_ptr()], &[]).is_none() {
        return;
    }
    let compile = |source: &std::ffi::CStr, options: *const tcuda_kernel_options_t| {
        let mut out = null_mut();
        let status = unsafe { tcuda_kernel_compile(&mut out, source.as_ptr(), 0, options) };
        assert!(out.is_null());
        status
    };
    let wrong = c"extern \"C\" __global__ void f(int *x)\n{\n    *x = missing;\n}";
    refused(compile(wrong, null()), TCUDA_ERROR_COMPILATION, &["'kernel.cu'", "at line 3: `*x = missing;`", "identifier"]);
    let names = [c"absent<int>".as_ptr()];
    let mut options: tcuda_kernel_options_t = unsafe { std::mem::zeroed() };
    options.struct_size = size_of::<tcuda_kernel_options_t>();
    (options.names, options.name_count) = (names.as_ptr(), 1);
    refused(compile(c"extern \"C\" __global__ void f() {}", &options), TCUDA_ERROR_COMPILATION, &["absent"]);
    let flags = [c"--no-such-option".as_ptr()];
    (options.options, options.option_count, options.name_count) = (flags.as_ptr(), 1, 0);
    refused(compile(c"extern \"C\" __global__ void f() {}", &options), TCUDA_ERROR_INVALID_ARGUMENT, &["--no-such-option"]);
}
