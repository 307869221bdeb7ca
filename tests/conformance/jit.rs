//! Functions compiled at run time.

use crate::jit_kit::*;
use crate::kit::*;
use crate::reference::{self, *};
use crate::{fails, get, ok, tests};
use std::ffi::CString;
use std::ptr::{null, null_mut};
use tcuda::base::dlpack::tcuda_tensor_t;
use tcuda::base::dtype::DType;
use tcuda::base::status::tcuda_status_t::*;
use tcuda::capi::copy::*;
use tcuda::capi::jit::*;
use tcuda::capi::sim::{tcuda_sim_call_count, tcuda_sim_clear_faults, tcuda_sim_fail_at};
use tcuda::capi::stream::tcuda_stream_synchronize;

tests![
    a_function_over_a_tensor: [Compiler],
    extra_arguments_have_names_and_defaults: [Compiler],
    several_outputs: [Compiler],
    types_are_promoted_as_by_torch: [Compiler],
    the_half_types_are_computed_in_float: [Compiler],
    the_functions_that_a_source_may_use: [Compiler],
    half_turns_are_exact: [Compiler],
    names_and_texts_of_any_kind: [Compiler],
    what_a_source_defines_ends_with_it: [Compiler],
    anything_that_stands_around_a_function: [Compiler],
    types_and_their_limits: [Compiler],
    any_layout_and_broadcasting: [Compiler],
    ends_and_misaligned_starts: [Compiler],
    outputs_keep_the_order_of_dimensions: [Compiler],
    given_outputs: [Compiler],
    empty_tensors_need_no_compiler,
    more_elements_than_one_launch: [Compiler],
    what_is_wrong_with_a_source_is_shown: [Compiler],
    bad_calls_are_refused_with_a_reason,
    first_calls_at_the_same_time: [Compiler],
    memory_is_kept_until_the_work_is_done: [Compiler, Unfilled],
    a_failing_launch_leaves_nothing: [Compiler, Faults],
];

const AXPY: &str = "template <typename T> T axpy(T x, T y, T a) { return a * x + y; }";
fn a_function_over_a_tensor() {
    let relu = Jit::new("template <typename T> T relu(T x) { return x > T(0) ? x : T(0); }", &[]);
    let values: Vec<f64> = (-500..500).map(f64::from).collect();
    let expected: Vec<f64> = values.iter().map(|value| value.max(0.0)).collect();
    for dtype in [F32, F64, I32, F16] {
        let made = relu.call(&[&Tensor::reals(0, dtype, &values)]);
        assert_eq!((made.tensor().dtype, made.shape(), made.strides()), (dtype, &[1000][..], &[1][..]));
        assert_eq!(made.reals(), expected, "{dtype:?}");
    }
    // A helper, and a name that comes up in it.
    let twice = "template <typename T> T relu_half(T x) { return x / T(2); }\n\
                 // The one that is called.\n template <typename T> T relu(T relu_x) { return relu_half(relu_x) + relu_half<T>(relu_x); }";
    let made = Jit::new(twice, &[]).call(&[&Tensor::reals(0, F32, &values)]);
    assert_eq!(made.reals(), values);
}

fn extra_arguments_have_names_and_defaults() {
    let axpy = Jit::new(AXPY, &[real(c"a", 2.0)]);
    let (x, y) = (Tensor::reals(0, F32, &[1.0, 2.0, 3.0]), Tensor::reals(0, F32, &[10.0, 20.0, 30.0]));
    assert_eq!(axpy.call(&[&x, &y]).reals(), [12.0, 24.0, 36.0]);
    assert_eq!(axpy.call_with(&[&x, &y], &[real(c"a", -1.0)]).reals(), [9.0, 18.0, 27.0]);
    // Of another kind, converted to the function's type.
    assert_eq!(axpy.call_with(&[&x, &y], &[scalar(c"a", TCUDA_SCALAR_INTEGER, 3, 0.0, 0.0)]).reals(), [13.0, 26.0, 39.0]);
    let whole = Tensor::reals(0, I64, &[1.0, 2.0]);
    assert_eq!(axpy.call_with(&[&whole, &whole], &[real(c"a", 2.9)]).reals(), [3.0, 6.0]);
    let mut out = [null_mut()];
    refused(
        axpy.try_call(&[&x, &y], &[real(c"b", 1.0)], &mut out),
        TCUDA_ERROR_INVALID_ARGUMENT,
        &["b is not declared", "'axpy'", "has a"],
    );
    assert!(out[0].is_null());

    let twice = [real(c"a", 1.0), real(c"a", 2.0)];
    refused(axpy.try_call(&[&x, &y], &twice, &mut out), TCUDA_ERROR_INVALID_ARGUMENT, &["'a' of 'axpy' is given twice"]);
    for name in [c"", c"2a", c"a b"] {
        let (mut jit, scalars, source) = (null_mut(), [real(name, 1.0)], CString::new(AXPY).unwrap());
        let text = fails!(INVALID_ARGUMENT, tcuda_jit_create(&mut jit, source.as_ptr(), scalars.as_ptr(), 1));
        assert!(text.contains("extra argument 0") && text.contains("no name") && jit.is_null(), "{text}");
    }

    let all = "template <typename T> T f(T x, bool b, int64_t i, double d, std::complex<double> c) { return b ? x + T(i) + T(d) + T(c.imag()) : x; }";
    let kinds = [
        scalar(c"b", TCUDA_SCALAR_BOOL, 1, 0.0, 0.0),
        scalar(c"i", TCUDA_SCALAR_INTEGER, -7, 0.0, 0.0),
        real(c"d", 0.25),
        scalar(c"c", TCUDA_SCALAR_COMPLEX, 0, 1.0, 100.0),
    ];
    let all = Jit::new(all, &kinds);
    assert_eq!(all.call(&[&x]).reals(), [94.25, 95.25, 96.25]);
    assert_eq!(all.call_with(&[&x], &[scalar(c"b", TCUDA_SCALAR_BOOL, 0, 0.0, 0.0)]).reals(), [1.0, 2.0, 3.0]);
}

fn several_outputs() {
    let source = "template <typename T> void both(T x, T y, T a, T &sum, T &difference) { sum = x + a * y; difference = x - y; }";
    let both = Jit::multi(source, 2, &[real(c"a", 1.0)]);
    let (x, y) = (Tensor::reals(0, F32, &[5.0, 6.0]), Tensor::reals(0, F16, &[1.0, 2.0]));
    let mut out = [null_mut(); 2];
    assert_eq!(both.try_call(&[&x, &y], &[real(c"a", 10.0)], &mut out), TCUDA_SUCCESS, "{}", message());
    let [sum, difference] = out.map(Made);
    assert_eq!((sum.reals(), difference.reals()), (vec![15.0, 26.0], vec![4.0, 4.0]));
    assert_eq!((sum.tensor().dtype, difference.tensor().dtype), (F32, F32));

    let parameters: Vec<String> = (0..8).map(|at| format!("T x{at}")).chain((0..8).map(|at| format!("T &y{at}"))).collect();
    let body: String = (0..8).map(|at| format!("y{at} = x{} * T({at});", 7 - at)).collect();
    let most = Jit::multi(&format!("template <typename T> void most({}) {{ {body} }}", parameters.join(", ")), 8, &[]);
    let inputs: Vec<Tensor> = (0..8).map(|at| Tensor::reals(0, F32, &vec![f64::from(at); 300])).collect();
    let mut out = [null_mut(); 8];
    assert_eq!(most.try_call(&inputs.iter().collect::<Vec<_>>(), &[], &mut out), TCUDA_SUCCESS, "{}", message());
    for (at, made) in out.map(Made).iter().enumerate() {
        assert_eq!(made.reals(), vec![((7 - at) * at) as f64; 300], "output {at}");
    }
}

/// Types, shapes with and without dimensions, and what torch.result_type says of them.
fn types_are_promoted_as_by_torch() {
    const I8: DType = dtype(0, 8);
    const U16: DType = dtype(1, 16);
    let add = Jit::new(ADD, &[]);
    let cases = [
        (BOOL, false, U8, false, U8),
        (U8, false, I8, false, dtype(0, 16)),
        (I64, false, F16, false, F16),
        (F16, false, BF16, false, F32),
        (U16, false, F32, false, F32),
        (F32, false, F64, false, F64),
        (C64, false, F64, false, dtype(5, 128)),
        (BF16, false, C64, false, C64),
        (F32, false, F64, true, F32),
        (I8, true, F16, false, F16),
        (I8, false, I64, true, I8),
        (I64, false, F32, true, F32),
        (BOOL, false, BOOL, false, BOOL),
    ];
    for (a, a_is_single, b, b_is_single, expected) in cases {
        let make = |dtype: DType, single: bool, value: f64| {
            let mut made = Tensor::reals(0, dtype, &vec![value; if single { 1 } else { 40 }]);
            if single {
                (made.shape, made.strides) = (Vec::new(), Vec::new());
            }
            made
        };
        let made = add.call(&[&make(a, a_is_single, 1.0), &make(b, b_is_single, 1.0)]);
        let sum = if expected == BOOL { 1.0 } else { 2.0 };
        assert_eq!((made.tensor().dtype, made.reals()), (expected, vec![sum; 40]), "{a:?} and {b:?}");
    }
    let mut out = [null_mut()];
    let (a, b) = (Tensor::reals(0, U16, &[1.0]), Tensor::reals(0, I32, &[1.0]));
    refused(add.try_call(&[&a, &b], &[], &mut out), TCUDA_ERROR_NOT_SUPPORTED, &["uint16 and int32"]);
}

fn the_half_types_are_computed_in_float() {
    let square = Jit::new("template <typename T> T through_the_square(T x) { return x * x / x; }", &[]);
    // The square of 300 is no float16.
    assert_eq!(square.call(&[&Tensor::reals(0, F16, &[300.0, 1.0, 40000.0])]).reals(), [300.0, 1.0, 40000.0]);
    let third = Jit::new("template <typename T> T third(T x) { return x / T(3); }", &[]);
    let values: Vec<f64> = (1..2000).map(f64::from).collect();
    for half in [F16, BF16] {
        let input = Tensor::reals(0, half, &values);
        let expected: Vec<Number> = input
            .read()
            .into_iter()
            .map(|number| {
                let Number::Real(value) = number else { unreachable!() };
                let result = f64::from(value as f32 / 3.0);
                reference::read(&reference::write(Number::Real(result), half).unwrap(), half)
            })
            .collect();
        assert_eq!(third.call(&[&input]).read(), expected, "{half:?}");
    }
}

/// Values that others computed, to some places of the last: that of CUDA is its own.
fn the_functions_that_a_source_may_use() {
    let terms: [(&str, f64); 31] = [
        ("exp(x)", 4.4816890703380645),
        ("log(x)", 0.4054651081081644),
        ("sqrt(x)", 1.224744871391589),
        ("rsqrt(x)", 0.8164965809277261),
        ("sin(x)", 0.9974949866040544),
        ("cos(x)", 0.0707372016677029),
        ("tan(x)", 14.101419947171719),
        ("tanh(x)", 0.9051482536448664),
        ("erf(x)", 0.9661051464753108),
        ("pow(x, x)", 1.8371173070873836),
        ("floor(x) + ceil(x) * T(10) + round(-x) * T(100)", -179.0),
        ("fmod(-x, T(1)) + fabs(-x)", 1.0),
        ("fmin(x, T(2)) + fmax(x, T(2)) * T(10)", 21.5),
        ("max(x, T(2)) + min(x, T(2)) * T(10)", 17.0),
        ("atan2(x, -x)", 2.356194490192345),
        ("log1p(x)", 0.9162907318741551),
        ("expm1(x)", 3.4816890703380645),
        ("cbrt(x)", 1.1447142425533319),
        ("rcbrt(x)", 0.8735804647362989),
        ("hypot(x, T(2))", 2.5),
        ("copysign(x, T(-1))", -1.5),
        ("lgamma(x)", -0.1207822376352452),
        ("normcdf(x)", 0.9331927987311419),
        ("std::exp(x) / std::sqrt(x)", 3.659283802712189),
        ("std::abs(-x) + std::pow(x, T(2))", 3.75),
        ("std::max(x, T(2)) + std::min(x, T(2)) * T(10)", 17.0),
        ("std::tanh(x)", 0.9051482536448664),
        ("std::fmod(x, T(1)) + std::floor(x) * T(10)", 10.5),
        ("T(M_PI)", std::f64::consts::PI),
        ("x < INFINITY && NAN != NAN ? x : T(0)", 1.5),
        ("fma(x, x, T(-2))", 0.25),
    ];
    for part in terms.chunks(8) {
        let body: String = part.iter().enumerate().map(|(at, (term, _))| format!("y{at} = {term}; ")).collect();
        let outputs: String = (0..part.len()).map(|at| format!(", T &y{at}")).collect();
        let all = Jit::multi(&format!("template <typename T> inline void f(T x{outputs}) {{ {body} }}"), part.len() as i32, &[]);
        for (dtype, tolerance) in [(F64, 1e-14), (F32, 2e-6)] {
            let mut out = vec![null_mut(); part.len()];
            assert_eq!(all.try_call(&[&Tensor::reals(0, dtype, &[1.5])], &[], &mut out), TCUDA_SUCCESS, "{}", message());
            for (made, (term, expected)) in out.into_iter().map(Made).zip(part) {
                let found = made.reals()[0];
                assert!((found - expected).abs() <= tolerance * expected.abs(), "{term} in {dtype:?}: {found}, expected {expected}");
            }
        }
    }
    let bits = "template <typename T> T f(T x) { return T(__popc(__float_as_uint(__expf(x) * __logf(x) * 0.0f + __int_as_float(0x3f800000)))) \
                + T(__clz(1)) + T(__umulhi(1u << 31, 2u)); }";
    assert_eq!(Jit::new(bits, &[]).call(&[&Tensor::reals(0, F32, &[1.5])]).reals(), [39.0]);
    // Integers.
    let whole = "template <typename T> T f(T x) { return (x << 3 | T(1)) ^ max(x, T(2)) - min(x, T(5)); }";
    assert_eq!(Jit::new(whole, &[]).call(&[&Tensor::reals(0, I32, &[4.0, 9.0])]).reals(), [33.0, 77.0]);
}

/// The argument is taken to its turn before it is multiplied by what no number is.
fn half_turns_are_exact() {
    let turns = [0.0, 0.5, 1.0, -1.0, 1.5, 2.5, 1e6 + 0.5, -4194303.5, 8388607.0, 16777216.0];
    for dtype in [F32, F64] {
        let of = |body: &str| {
            Jit::new(&format!("template <typename T> T f(T x) {{ return {body}; }}"), &[]).call(&[&Tensor::reals(0, dtype, &turns)]).reals()
        };
        assert_eq!(of("sinpi(x)"), [0.0, 1.0, 0.0, 0.0, -1.0, 1.0, 1.0, 1.0, 0.0, 0.0], "{dtype:?}");
        assert_eq!(of("cospi(x)"), [1.0, 0.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0, -1.0, 1.0], "{dtype:?}");
        // An eighth of a turn from where there is no rest.
        let near = of("sinpi(x + T(0.25)) * cospi(x + T(0.25)) * T(2)");
        let expected = turns.map(|turn: f64| if turn.fract() == 0.0 { 1.0 } else { -1.0 });
        let rounded = |at: usize| dtype == F32 && turns[at].abs() > 1e6;
        assert!((0..turns.len()).all(|at| rounded(at) || (near[at] - expected[at]).abs() < 1e-6), "{near:?}");
    }
}

/// Names of the generated code, of CUDA's functions and of C++'s, and what a source may have in it.
fn names_and_texts_of_any_kind() {
    for name in ["args", "x0", "y0", "r0", "first", "to", "exp", "max"] {
        let source = format!("template <typename T> __device__ T {name}(T x, T y) {{ return x + y * T(2); }}");
        let function = Jit::new(&source, &[]);
        let (x, y) = (Tensor::reals(0, F32, &[1.0, 2.0, 3.0]), Tensor::reals(0, F32, &[4.0]));
        assert_eq!(function.call(&[&x, &y]).reals(), [9.0, 10.0, 11.0], "{name}");
        let mut apart = Tensor::reals(0, F32, &[1.0, 0.0, 2.0, 0.0, 3.0]);
        (apart.shape, apart.strides) = (vec![3], vec![2]);
        assert_eq!(function.call(&[&apart, &y]).reals(), [9.0, 10.0, 11.0], "{name}");
    }
    // Helpers of complex numbers that are called as helpers here are.
    let helpers = "template <typename T> T add(T x, T y) { return x + y; } template <typename T> T sum(T x, T y) { return x + y; } \
                   template <typename T> T product(T x, T y) { return x * y; } template <typename T> bool is_finite(T x) { return true; } \
                   template <typename T> T arc(T x, T y) { return x - y; } template <typename T> T log_abs(T x, T y) { return x - y; } \
                   template <typename T> T f(T x) { T y = x; return is_finite(x) ? add(y, x) + sum(y, x) * product(x, y) + arc(x, y) + log_abs(y, x) : x; }";
    let made = Jit::new(helpers, &[]).call(&[&Tensor::of(0, C64, &[1], &[Number::Complex(2.0, 0.0)])]);
    assert_eq!(made.reals(), [20.0]);
    let texts = "template <typename T> static inline void f(T x, T &y) { \
                     const char *raw = R\"x(}\" \\)x\", c = '\\''; \
                     y = x * T(1'000) + T(0x1'0) + T(raw[0] == '}' && raw[1] == '\"' && raw[3] == '\\\\' && raw[4] == 0 && c == '\\''); }";
    let mut out = [null_mut()];
    let status = Jit::multi(texts, 1, &[]).try_call(&[&Tensor::reals(0, F32, &[2.0])], &[], &mut out);
    assert_eq!(status, TCUDA_SUCCESS, "{}", message());
    assert_eq!(Made(out[0]).reals(), [2017.0]);
}

/// The code around a source has plain names too.
fn what_a_source_defines_ends_with_it() {
    let names = "args first count data size u v i t at dims rest along quotient dim sizes strides scalars to x y z x0 y0 r0 u1 p0 q0 word \
                 magic shift integer real pair load store complex Divider Pack Scalar float int64_t uint32_t N blockIdx threadIdx";
    let defines: String = names.split_whitespace().map(|name| format!("#define {name} 3 +\n")).collect();
    let plain = format!(
        "{defines}#if 0\n#else\n  # define tensors(x) x\n#endif\n\
         template <typename T> T f(T a, T b, T c) {{ return a + T(args b) * tensors(c); }}\n#define const 3"
    );
    // The name is made of others, which stay then.
    let made =
        "#define JOIN(a) a##_here\n#define NAME JOIN(made)\ntemplate <typename T> T NAME(T a, T b, T c) { return a + T(3 + b) * c; }";
    for source in [&plain, made] {
        let function = Jit::new(source, &[real(c"c", 2.0)]);
        let (x, y) = (Tensor::reals(0, F32, &[1.0, 2.0, 3.0]), Tensor::reals(0, F32, &[4.0]));
        assert_eq!(function.call(&[&x, &y]).reals(), [15.0, 16.0, 17.0], "{source}");
        let mut apart = Tensor::reals(0, F32, &[1.0, 0.0, 2.0, 0.0, 3.0]);
        (apart.shape, apart.strides) = (vec![3], vec![2]);
        assert_eq!(function.call(&[&apart, &y]).reals(), [15.0, 16.0, 17.0], "{source}");
    }
}

/// What C++ has: a mark of the order of bytes, branches, comments in lines for the preprocessor, heads of all kinds.
fn anything_that_stands_around_a_function() {
    let source = "\u{feff}#if 0 // for nobody
        this isn't C++ {
        #endif
        #define ONE 1 /* one,
        and not two { */
        template <typename T> struct alignas(8) P { T a; T operator()(T b) const; };
        template <typename T> T P<T>::operator()(T b) const { return a + b; }
        template <typename T> P<T> operator+(P<T> a, P<T> b) { return {a.a + b.a}; }
        template <typename T, bool S = sizeof(T) >= 4> bool operator<(P<T> a, P<T> b) { return S && a.a < b.a; }
        template <typename T> P<T> operator<<(P<T> a, int b) noexcept { return {a.a * T(1 << b)}; }
        template <typename T> T kind() { return T(1); }
        template <> double kind<double>() { return 100; }
        template <typename T> __attribute__((always_inline)) decltype(T()) twice(T x) { return x + x; }
        // The next line too is a comment. \\
        template <typename T> T nothing(T x, T y) { return x; }
        template <typename T> [[nodiscard]] auto f(T x, T y = T(2) < T(1) ? T(0) : T(1)) noexcept(sizeof(T) > 1) -> T {
            P<T> p{x}, q{y};
        #ifdef SOMETHING_ELSE
            if (p < q) {
        #else
            if (!(p < q)) {
        #endif
                return T(0);
            }
            return ((p + q) << 2)(twice(kind<T>())) + T(ONE);
        }";
    let f = Jit::new(source, &[]);
    for (dtype, kind) in [(F32, 1.0), (F64, 100.0)] {
        let (x, y) = (Tensor::reals(0, dtype, &[1.0, 2.0, 3.0]), Tensor::reals(0, dtype, &[3.0]));
        assert_eq!(f.call(&[&x, &y]).reals(), [17.0 + 2.0 * kind, 21.0 + 2.0 * kind, 0.0], "{dtype:?}");
    }
    for head in ["void inline f(T x, T &y)", "auto f(T x, T &y) -> void"] {
        let mut out = [null_mut()];
        let copy = Jit::multi(&format!("template <typename T> {head} {{ y = x; }}"), 1, &[]);
        assert_eq!(copy.try_call(&[&Tensor::reals(0, F32, &[2.0])], &[], &mut out), TCUDA_SUCCESS, "{}", message());
        assert_eq!(Made(out[0]).reals(), [2.0]);
    }
}

/// <type_traits> and <limits>, as far as they are there.
fn types_and_their_limits() {
    let source = "
        template <typename T, std::enable_if_t<std::is_floating_point<T>::value, int> = 0> T kind(T) { return T(1); }
        template <typename T, typename std::enable_if<std::is_integral<T>::value, int>::type = 0> T kind(T) { return T(2); }
        template <typename T> void f(T x, T &least, T &most, T &tiny, T &answers) {
            typedef std::numeric_limits<T> Limits;
            least = Limits::lowest();
            most = std::is_same<T, float>::value || std::is_same_v<T, double> ? Limits::infinity() : Limits::max();
            tiny = Limits::epsilon();
            typename std::conditional<std::is_signed<T>::value, int, unsigned>::type sign = -1;
            static_assert(Limits::max() > Limits::min() && !std::is_same<T, void>::value, \"a limit is a constant\");
            answers = kind(x) + T(sign < 0 ? 10 : 20) + (Limits::quiet_NaN() != Limits::quiet_NaN() ? T(100) : T(0));
        }";
    let function = Jit::multi(source, 4, &[]);
    let cases = [
        (F32, [-f64::from(f32::MAX), f64::INFINITY, f64::from(f32::EPSILON), 111.0]),
        (F64, [f64::MIN, f64::INFINITY, f64::EPSILON, 111.0]),
        (I32, [f64::from(i32::MIN), f64::from(i32::MAX), 0.0, 12.0]),
        (U8, [0.0, 255.0, 0.0, 22.0]),
        (dtype(0, 8), [-128.0, 127.0, 0.0, 12.0]),
        (dtype(0, 16), [-32768.0, 32767.0, 0.0, 12.0]),
    ];
    for (dtype, expected) in cases {
        let mut out = [null_mut(); 4];
        assert_eq!(function.try_call(&[&Tensor::reals(0, dtype, &[3.0])], &[], &mut out), TCUDA_SUCCESS, "{}", message());
        assert_eq!(out.map(Made).map(|made| made.reals()[0]), expected, "{dtype:?}");
    }
}

/// xorshift64*: the same cases in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    /// A tensor of small numbers, its dimensions in any order, with gaps or without.
    fn tensor(&mut self, dtype: DType, shape: &[i64], may_repeat: bool) -> Tensor {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.below(at + 1));
        }
        let gaps = self.below(2) as i64;
        let mut strides = vec![0; shape.len()];
        let mut next = 1 + gaps * self.below(3) as i64;
        for dim in order {
            if !may_repeat || self.below(8) > 0 {
                strides[dim] = next;
                next = next * shape[dim].max(1) + gaps * self.below(3) as i64;
            }
        }
        let offset = gaps as usize * self.below(5);
        let numbers: Vec<_> = (0..offset + next as usize + 3).map(|_| Number::Real(self.below(1000) as f64 - 500.0)).collect();
        Tensor::laid_out(0, dtype, shape, &strides, offset, &numbers)
    }
}

fn as_real(number: Number) -> f64 {
    let Number::Real(value) = number else { panic!("{number:?} is no real number") };
    value
}

fn any_layout_and_broadcasting() {
    let axpy = Jit::new(AXPY, &[real(c"a", 2.0)]);
    for seed in 1..200 {
        let random = &mut Random(seed);
        let ndim = random.below(6);
        let shape: Vec<i64> = (0..ndim).map(|_| [1, 2, 3, 4, 5, 8, 33][random.below(7)]).collect();
        let part = |random: &mut Random| -> Vec<i64> {
            let from = if random.below(3) == 0 { random.below(ndim + 1) } else { 0 };
            shape[from..].iter().map(|size| if random.below(5) == 0 { 1 } else { *size }).collect()
        };
        let (x_shape, y_shape) = (part(random), part(random));
        let (x, y) = (random.tensor(F32, &x_shape, true), random.tensor(F32, &y_shape, true));
        let dims = x_shape.len().max(y_shape.len());
        let size = |shape: &[i64], dim: usize| (dim + shape.len()).checked_sub(dims).map_or(1, |at| shape[at]);
        let together: Vec<i64> = (0..dims).map(|dim| size(&x_shape, dim).max(size(&y_shape, dim))).collect();
        let (from_x, from_y) = (x.read(), y.read());
        let expected: Vec<f64> = x
            .positions(&together)
            .into_iter()
            .zip(y.positions(&together))
            .map(|(x, y)| 2.0 * as_real(from_x[x]) + as_real(from_y[y]))
            .collect();

        let made = axpy.call(&[&x, &y]);
        assert_eq!(made.shape(), together, "seed {seed}");
        let elements = made.reals();
        let mut at = vec![0i64];
        for (size, stride) in made.shape().iter().zip(made.strides()) {
            at = at.iter().flat_map(|from| (0..*size).map(move |index| from + index * stride)).collect();
        }
        assert_eq!(at.iter().map(|at| elements[*at as usize]).collect::<Vec<_>>(), expected, "seed {seed}");

        let out = random.tensor(F32, &together, false);
        let before = out.read();
        assert_eq!(axpy.call_out(&[&out], &[&x, &y]), TCUDA_SUCCESS, "seed {seed}: {}", message());
        let (after, positions) = (out.read(), out.positions(&together));
        for (at, is) in after.iter().enumerate() {
            let expected = positions.iter().position(|position| *position == at).map_or(before[at], |index| Number::Real(expected[index]));
            assert_eq!(*is, expected, "seed {seed}: element {at} of the output's memory");
        }
    }
}

/// Lengths around a block and its parts, and data that is aligned to no more than an element.
fn ends_and_misaligned_starts() {
    let add = Jit::new(ADD, &[]);
    for dtype in [U8, F16, F32, F64] {
        for offset in [0, 1, 2, 4, 8] {
            let lengths: &[usize] = if offset == 0 { &[1, 2, 255, 256, 257, 2047, 2048, 4095, 4096, 4097, 9999] } else { &[1, 5000] };
            for length in lengths {
                let numbers: Vec<Number> = (0..length + offset)
                    .map(|at| if dtype == U8 { Number::Integer(at as i128 % 100) } else { Number::Real((at % 100) as f64) })
                    .collect();
                let x = Tensor::laid_out(0, dtype, &[*length as i64], &[1], offset, &numbers);
                let expected: Vec<f64> = (offset..length + offset).map(|at| 2.0 * (at % 100) as f64).collect();
                assert_eq!(add.call(&[&x, &x]).reals(), expected, "{dtype:?}, {length} from {offset}");
            }
        }
    }
}

fn outputs_keep_the_order_of_dimensions() {
    let add = Jit::new(ADD, &[]);
    let numbers: Vec<Number> = (0..24).map(|at| Number::Real(f64::from(at))).collect();
    let turned = Tensor::laid_out(0, F32, &[2, 3, 4], &[1, 2, 6], 0, &numbers);
    let plain = Tensor::of(0, F32, &[2, 3, 4], &numbers);
    assert_eq!(add.call(&[&turned, &turned]).strides(), [1, 2, 6]);
    assert_eq!(add.call(&[&plain, &turned]).strides(), [12, 4, 1]);
    assert_eq!(add.call(&[&turned, &plain]).strides(), [1, 2, 6]);
}

fn given_outputs() {
    let axpy = Jit::new(AXPY, &[real(c"a", 2.0)]);
    let (x, y) = (Tensor::reals(0, F32, &[1.0, 2.5, 3.0]), Tensor::reals(0, F32, &[10.0, 20.0, 30.0]));
    for (dtype, expected) in [(F64, [12.0, 25.0, 36.0]), (F16, [12.0, 25.0, 36.0]), (C64, [12.0, 25.0, 36.0])] {
        let out = Tensor::reals(0, dtype, &[0.0; 3]);
        assert_eq!(axpy.call_out(&[&out], &[&x, &y]), TCUDA_SUCCESS, "{}", message());
        let number = |value| if dtype == C64 { Number::Complex(value, 0.0) } else { Number::Real(value) };
        assert_eq!(out.read(), expected.map(number), "{dtype:?}");
    }
    // In place.
    assert_eq!(axpy.call_out(&[&y], &[&x, &y]), TCUDA_SUCCESS, "{}", message());
    assert_eq!(y.read(), [12.0, 25.0, 36.0].map(Number::Real));

    let bad = |out: &Tensor, words: &[&str]| refused(axpy.call_out(&[out], &[&x, &x]), TCUDA_ERROR_INVALID_ARGUMENT, words);
    bad(&Tensor::reals(0, I32, &[0.0; 3]), &["float32 can't be cast", "int32"]);
    bad(&Tensor::reals(0, BOOL, &[0.0; 3]), &["can't be cast", "bool"]);
    bad(&Tensor::reals(0, F32, &[0.0; 4]), &["outputs[0]", "[4]", "[3]"]);
    let one = [Number::Real(0.0); 8];
    bad(&Tensor::laid_out(0, F32, &[3], &[0], 0, &one), &["single memory location"]);
    let whole = Tensor::laid_out(0, F32, &[3], &[1], 0, &one);
    let (whole_tensor, stream) = (whole.tensor(), handle(CURRENT_STREAM));
    let shifted_tensor = tcuda_tensor_t { byte_offset: 4, ..whole_tensor };
    let (to, from) = ([&raw const shifted_tensor], [&raw const whole_tensor; 2]);
    let text = fails!(INVALID_ARGUMENT, tcuda_jit_call_out(axpy.0, to.as_ptr(), 1, from.as_ptr(), 2, null(), 0, stream));
    assert!(text.contains("inputs[0]") && text.contains("single memory location"), "{text}");
    let copy = Jit::multi("template <typename T> void f(T x, T &a, T &b) { a = b = x; }", 2, &[]);
    refused(copy.call_out(&[&whole, &whole], &[&x]), TCUDA_ERROR_INVALID_ARGUMENT, &["outputs[0]", "outputs[1]"]);
    refused(copy.call_out(&[&whole], &[&x]), TCUDA_ERROR_INVALID_ARGUMENT, &["2 outputs", "1 were given"]);
    assert_eq!(whole.read(), one);
}

/// Nothing is computed, so that nothing has to be compiled.
fn empty_tensors_need_no_compiler() {
    let add = Jit::new("template <typename T> T add(T x, T y) { this is never compiled }", &[]);
    let empty = Tensor::of(0, F32, &[3, 0, 2], &[]);
    let row = Tensor::of(0, F64, &[3, 1, 2], &[Number::Real(1.0); 6]);
    let made = add.call(&[&empty, &row]);
    assert_eq!((made.shape(), made.tensor().dtype), (&[3, 0, 2][..], F64));
    assert_eq!(add.call_out(&[&empty], &[&empty, &row]), TCUDA_SUCCESS, "{}", message());
}

fn more_elements_than_one_launch() {
    const COUNT: usize = (1 << 30) + 4099;
    let fill = Jit::new("template <typename T> T add_one(T x) { return x + T(1); }", &[]);
    let mut one = Tensor::reals(0, U8, &[41.0]);
    (one.shape, one.strides) = (vec![COUNT as i64], vec![0]);
    let made = fill.call(&[&one]);
    assert_eq!(made.shape(), [COUNT as i64]);
    for from in [0, (1 << 29) - 4096, (1 << 30) - 4096, COUNT - 8192] {
        let mut bytes = vec![0u8; 8192];
        ok!(tcuda_copy(bytes.as_mut_ptr().cast(), unsafe { made.tensor().data.add(from) }, bytes.len(), false));
        assert!(bytes.iter().all(|byte| *byte == 42), "from {from}");
    }
}

fn what_is_wrong_with_a_source_is_shown() {
    let source = c"int x;";
    let mut jit = null_mut();
    let text = fails!(INVALID_ARGUMENT, tcuda_jit_create(&mut jit, source.as_ptr(), null(), 0));
    assert!(text.contains("line 1, column 1") && text.contains("`int x;`"), "{text}");
    // A number of outputs that is not the source's.
    let both = c"template <typename T> void both(T x, T y, T &s, T &d) { s = x + y; d = x - y; }";
    let text = fails!(INVALID_ARGUMENT, tcuda_jit_create_multi_output(&mut jit, both.as_ptr(), 3, null(), 0));
    assert!(text.contains("line 1, column 38") && text.contains("'both' has 3 outputs"), "{text}");
    let text = fails!(INVALID_ARGUMENT, tcuda_jit_create_multi_output(&mut jit, both.as_ptr(), 1, null(), 0));
    assert!(text.contains("line 1, column 43") && text.contains("none of its outputs"), "{text}");
    let written = c"template <typename T> T f(T x, T &y) { return y = x; }";
    assert!(fails!(INVALID_ARGUMENT, tcuda_jit_create(&mut jit, written.as_ptr(), null(), 0)).contains("line 1, column 32"));
    assert!(jit.is_null());

    let wrong = Jit::new("template <typename T>\nT wrong(T x) {\n    return x + missing;\n}", &[]);
    let x = Tensor::reals(0, F32, &[1.0]);
    // Each time, and with nothing left behind.
    for _ in 0..2 {
        let mut out = [null_mut()];
        refused(wrong.try_call(&[&x], &[], &mut out), TCUDA_ERROR_COMPILATION, &["'wrong'", "at line 3: `return x + missing;`", "missing"]);
        assert!(out[0].is_null());
    }
    // There are no headers, on any device; what is for another compiler is not looked for.
    for header in ["<vector>", "<cmath>", "<stdio.h>", "\"mine.h\""] {
        let includes = Jit::new(&format!("#include {header}\ntemplate <typename T> T includes(T x) {{ return x; }}"), &[]);
        let name = header.trim_matches(['<', '>', '"']);
        refused(includes.try_call(&[&x], &[], &mut [null_mut()]), TCUDA_ERROR_COMPILATION, &["'includes'", "at line 1: `#include", name]);
    }
    let elsewhere = "#ifndef __CUDACC_RTC__\n#include <cmath>\n#endif\ntemplate <typename T> T include(T x) { return x; }";
    assert_eq!(Jit::new(elsewhere, &[]).call(&[&x]).reals(), [1.0]);
    // Wrong for some types only.
    let shift = Jit::new("template <typename T> T shift(T x) { return x << 1; }", &[]);
    assert_eq!(shift.call(&[&Tensor::reals(0, I32, &[4.0])]).reals(), [8.0]);
    refused(shift.try_call(&[&x], &[], &mut [null_mut()]), TCUDA_ERROR_COMPILATION, &["at line 1"]);
    assert_eq!(shift.call(&[&Tensor::reals(0, I32, &[5.0])]).reals(), [10.0]);
}

fn bad_calls_are_refused_with_a_reason() {
    let add = Jit::new(ADD, &[]);
    let x = Tensor::of(0, F32, &[2, 3], &[Number::Real(1.0); 6]);
    let y = Tensor::of(0, F32, &[4, 3], &[Number::Real(1.0); 12]);
    let bad = |inputs: &[&Tensor], words: &[&str]| {
        let mut out = [null_mut()];
        refused(add.try_call(inputs, &[], &mut out), TCUDA_ERROR_INVALID_ARGUMENT, words);
        assert!(out[0].is_null());
    };
    bad(&[&x, &y], &["[2, 3]", "[4, 3]", "inputs[0]", "inputs[1]", "dimension -2", "have 2 and 4"]);
    bad(&[&x], &["'add' takes 2 tensors", "1 were given"]);
    bad(&[&x, &x, &x], &["3 were given"]);
    bad(&[&x, &Tensor::reals(-2, F32, &[1.0])], &["inputs[1]", "host memory"]);
    bad(&[&Tensor::reals(-2, F32, &[1.0]), &x], &["inputs[0]"]);
    if device_count() > 1 {
        bad(&[&x, &Tensor::reals(1, F32, &[1.0])], &["at least two devices", "0", "1"]);
    }
    let mut odd = Tensor::reals(0, U8, &[1.0]);
    odd.dtype = dtype(7, 8);
    refused(add.try_call(&[&x, &odd], &[], &mut [null_mut()]), TCUDA_ERROR_NOT_SUPPORTED, &["inputs[1]", "code 7"]);
    let (tensor, stream) = (x.tensor(), handle(CURRENT_STREAM));
    let inputs = [&raw const tensor, null()];
    let mut out = null_mut();
    assert!(fails!(INVALID_ARGUMENT, tcuda_jit_call(add.0, &mut out, inputs.as_ptr(), 2, null(), 0, stream)).contains("inputs[1]"));
    let nobody = handle(0x7777_0000);
    fails!(INVALID_HANDLE, tcuda_jit_call(nobody.cast(), &mut out, inputs.as_ptr(), 1, null(), 0, stream));
    let gone = Jit::new(ADD, &[]).0;
    fails!(INVALID_HANDLE, tcuda_jit_destroy(gone));
    let kind = [scalar(c"a", 9, 0, 0.0, 0.0)];
    assert!(fails!(INVALID_ARGUMENT, tcuda_jit_create(&mut null_mut(), c"x".as_ptr(), kind.as_ptr(), 1)).contains("kind' is 9"));
    for outputs in [-1, 0, 9] {
        let source = c"template <class T> void f(T x, T &y) { y = x; }".as_ptr();
        fails!(INVALID_ARGUMENT, tcuda_jit_create_multi_output(&mut null_mut(), source, outputs, null(), 0));
    }
}

fn first_calls_at_the_same_time() {
    let source = "template <typename T> T at_the_same_time(T x, T a) { return x * a - T(1); }";
    let jit = Jit::new(source, &[real(c"a", 3.0)]);
    let address = jit.0 as usize;
    let threads: Vec<_> = (0..8)
        .map(|at| {
            std::thread::spawn(move || {
                let own = std::mem::ManuallyDrop::new(Jit(address as tcuda_jit_t));
                for round in 0..5 {
                    let x = Tensor::reals(0, F32, &[f64::from(at), f64::from(round)]);
                    let expected = [f64::from(at) * 3.0 - 1.0, f64::from(round) * 3.0 - 1.0];
                    assert_eq!(own.call(&[&x]).reals(), expected);
                    assert_eq!(Jit::new(source, &[real(c"a", 3.0)]).call(&[&x]).reals(), expected);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn memory_is_kept_until_the_work_is_done() {
    let add = Jit::new(ADD, &[]);
    // Compiled before, so that the call below only enqueues.
    let _ = add.call(&[&Tensor::reals(0, F32, &[1.0; 1000]), &Tensor::reals(0, F32, &[1.0; 1000])]);
    let (side, other) = (Own::on(0), Own::on(0));
    let gate = Gate::on(side.0);
    let mut out = null_mut();
    {
        let (x, y) = (Tensor::reals(0, F32, &[20.0; 1000]), Tensor::reals(0, F32, &[3.0; 1000]));
        let (a, b) = (x.tensor(), y.tensor());
        let inputs = [&raw const a, &raw const b];
        ok!(tcuda_jit_call(add.0, &mut out, inputs.as_ptr(), 2, null(), 0, side.0));
        // The inputs are freed here, while the call waits at the gate.
    }
    let made = Made(out);
    let greedy: Vec<_> = (0..64).map(|_| allocate(4096, default_of(0))).collect();
    for block in &greedy {
        ok!(tcuda_memset_async(*block, 0x7f, 4096, other.0));
    }
    ok!(tcuda_stream_synchronize(other.0));
    assert!(!gate.was_passed());
    gate.open();
    ok!(tcuda_stream_synchronize(side.0));
    assert_eq!(made.reals(), vec![23.0; 1000]);
    greedy.into_iter().for_each(free);
}

fn a_failing_launch_leaves_nothing() {
    let both = Jit::multi("template <typename T> void fail(T x, T &a, T &b) { a = x; b = x; }", 2, &[]);
    let x = Tensor::reals(0, F32, &[1.0; 100]);
    let mut warm = [null_mut(); 2];
    assert_eq!(both.try_call(&[&x], &[], &mut warm), TCUDA_SUCCESS, "{}", message());
    drop(warm.map(Made));
    let before = stat(0, "allocation.all.current");
    // Each call of the driver once.
    let calls = || get!(0, out => tcuda_sim_call_count(out, null()));
    let (mut nth, mut struck) = (1, 0);
    loop {
        let first = calls();
        ok!(tcuda_sim_fail_at(null(), nth, 304));
        let mut out = [null_mut(); 2];
        let status = both.try_call(&[&x], &[], &mut out);
        let made = calls() - first;
        ok!(tcuda_sim_clear_faults());
        if status == TCUDA_SUCCESS {
            drop(out.map(Made));
        } else {
            assert_eq!((status, out), (TCUDA_ERROR_CUDA, [null_mut(); 2]));
            struck += 1;
        }
        assert_eq!(stat(0, "allocation.all.current"), before, "fault {nth}");
        if made < nth {
            break;
        }
        nth += 1;
    }
    assert!(struck > 0);
}

// ---- whole kernels
