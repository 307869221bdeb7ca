//! Complex numbers in compiled functions: operators, and functions beside those of mpmath and of Annex G of C's standard.

use crate::jit_kit::*;
use crate::kit::message;
use crate::reference::{self, *};
use crate::tests;
use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};
use std::ptr::null_mut;
use tcuda::base::dtype::DType;
use tcuda::base::status::tcuda_status_t::TCUDA_SUCCESS;

tests![
    operators_and_inverses: [Compiler],
    functions_are_right_to_a_few_places: [Compiler],
    functions_keep_their_symmetries: [Compiler],
    infinities_and_what_is_no_number: [Compiler],
    powers_of_any_type: [Compiler],
];

const C128: DType = reference::dtype(5, 128);

fn operators_and_inverses() {
    let pairs = [(1.0, 2.0), (-3.0, 0.5), (0.0, -1.0), (2.5, 0.0), (-4.0, -0.25)];
    let numbers: Vec<Number> = pairs.iter().map(|(real, imaginary)| Number::Complex(*real, *imaginary)).collect();
    for (dtype, tolerance) in [(C64, 1e-4), (reference::dtype(5, 128), 1e-12)] {
        let z = Tensor::of(0, dtype, &[5], &numbers);
        let of = |body: &str| Jit::new(&format!("template <typename T> T f(T z) {{ return {body}; }}"), &[]).call(&[&z]).read();
        let check = |body: &str, expected: &dyn Fn(f64, f64) -> (f64, f64)| {
            for (found, (re, im)) in of(body).into_iter().zip(pairs) {
                let (Number::Complex(a, b), (c, d)) = (found, expected(re, im)) else { unreachable!() };
                let near = |a: f64, b: f64| (a - b).abs() <= tolerance * (1.0 + c.hypot(d));
                assert!(near(a, c) && near(b, d), "{body} of {re}+{im}i in {dtype:?}: {a}+{b}i, expected {c}+{d}i");
            }
        };
        check("z * z - z / T(2)", &|re, im| (re * re - im * im - re / 2.0, 2.0 * re * im - im / 2.0));
        check("std::conj(z) + std::abs(z) * T(1) + z.real()", &|re, im| (2.0 * re + re.hypot(im), -im));
        check("exp(z)", &|re, im| (re.exp() * im.cos(), re.exp() * im.sin()));
        check("std::log(z)", &|re, im| (re.hypot(im).ln(), im.atan2(re)));
        // Inverses of each other, and the sum of squares.
        let itself: &dyn Fn(f64, f64) -> (f64, f64) = &|re, im| (re, im);
        for body in [
            "sqrt(z) * sqrt(z)",
            "std::sin(std::asin(z))",
            "cos(acos(z))",
            "tan(atan(z))",
            "sinh(asinh(z))",
            "cosh(acosh(z))",
            "tanh(atanh(z))",
            "T(1) / (T(1) / z)",
            "std::polar(std::abs(z), std::arg(z))",
            "pow(z, T(2)) / z",
        ] {
            check(body, itself);
        }
        check("sin(z) * sin(z) + cos(z) * cos(z)", &|_, _| (1.0, 0.0));
    }
    let mixed = Jit::new(ADD, &[]).call(&[&Tensor::of(0, C64, &[5], &numbers), &Tensor::reals(0, F32, &[1.0; 5])]);
    assert_eq!(mixed.read()[1], Number::Complex(-2.0, 0.5));
}

/// Up to eight functions of each point, compiled as one.
fn all_over(dtype: DType, bodies: &[&str], points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
    let numbers: Vec<Number> = points.iter().map(|(re, im)| Number::Complex(*re, *im)).collect();
    let z = Tensor::of(0, dtype, &[points.len() as i64], &numbers);
    let parameters: String = (0..bodies.len()).map(|at| format!(", T &y{at}")).collect();
    let lines: String = bodies.iter().enumerate().map(|(at, body)| format!("y{at} = {body}; ")).collect();
    let all = Jit::multi(&format!("template <typename T> void f(T z{parameters}) {{ {lines} }}"), bodies.len() as i32, &[]);
    let mut out = vec![null_mut(); bodies.len()];
    assert_eq!(all.try_call(&[&z], &[], &mut out), TCUDA_SUCCESS, "{}", message());
    let pair = |number| if let Number::Complex(re, im) = number { (re, im) } else { unreachable!("{number:?}") };
    out.into_iter().map(|made| Made(made).read().into_iter().map(pair).collect()).collect()
}

fn over(dtype: DType, body: &str, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    all_over(dtype, &[body], points).remove(0)
}

/// How far two numbers are apart, in units of the last place of the second, which is exact to more than f64 has.
fn places(found: f64, expected: f64, dtype: DType) -> f64 {
    let (digits, least, most) = if dtype == C64 { (23, -126, f64::from(f32::MAX)) } else { (52, -1022, f64::MAX) };
    if expected.abs() > most {
        return if found.is_infinite() && (found > 0.0) == (expected > 0.0) { 0.0 } else { f64::INFINITY };
    }
    let exponent = if expected == 0.0 { least } else { expected.abs().log2().floor().max(f64::from(least)) as i32 };
    // In two steps: the unit may be a subnormal number.
    let apart = (found - expected).abs() / 2f64.powi(exponent) * 2f64.powi(digits);
    if apart.is_nan() { f64::INFINITY } else { apart }
}

fn functions_are_right_to_a_few_places() {
    let table = include_str!("../data/complex.txt");
    let mut lines: Vec<(&str, [f64; 4])> = Vec::new();
    for line in table.lines().skip(1) {
        let (name, numbers) = line.split_once(' ').unwrap();
        lines.push((name, numbers.split(' ').map(|number| number.parse().unwrap()).collect::<Vec<_>>().try_into().unwrap()));
    }
    let mut names: Vec<&str> = lines.iter().map(|line| line.0).collect();
    names.dedup();
    assert_eq!((names.len(), lines.len()), (10, 1533));
    for dtype in [C64, C128] {
        let fits = |part: f64| dtype == C128 || f64::from(part as f32) == part;
        for name in &names {
            let of_name = lines.iter().filter(|(of, [x, y, ..])| of == name && fits(*x) && fits(*y));
            let (points, expected): (Vec<_>, Vec<_>) = of_name.map(|(_, [x, y, re, im])| ((*x, *y), (*re, *im))).unzip();
            let mut worst = (0.0, String::new());
            for ((point, found), expected) in points.iter().zip(over(dtype, &format!("{name}(z)"), &points)).zip(&expected) {
                let apart = f64::max(places(found.0, expected.0, dtype), places(found.1, expected.1, dtype));
                if apart > worst.0 {
                    worst = (apart, format!("{name} of {point:?} in {dtype:?}: {found:?}, expected {expected:?}, {apart} places"));
                }
            }
            // Some of a device's own functions are off by four, and up to four of them meet.
            assert!(worst.0 <= 16.0, "{}", worst.1);
        }
    }
}

/// Each function is the same in all quarters of the plane, as far as it says so; also beside a branch cut, where the sign of a zero tells the
/// side.
fn functions_keep_their_symmetries() {
    let parts = [0.0, 0.25, 1.0, 1.5, 40.0];
    let signed = parts.into_iter().flat_map(|part: f64| [part, -part]);
    let points: Vec<(f64, f64)> = signed.clone().flat_map(|x| signed.clone().map(move |y| (x, y))).collect();
    // All have the mirror image of what they have of a number's mirror image; those that are odd also the half turn of that of its half turn.
    let names = [
        ("exp", false),
        ("log", false),
        ("sqrt", false),
        ("sin", true),
        ("cos", false),
        ("tan", true),
        ("sinh", true),
        ("cosh", false),
        ("tanh", true),
        ("asin", true),
        ("acos", false),
        ("atan", true),
        ("asinh", true),
        ("acosh", false),
        ("atanh", true),
    ];
    let bits = |numbers: &[(f64, f64)]| -> Vec<(u64, u64)> { numbers.iter().map(|(re, im)| (re.to_bits(), im.to_bits())).collect() };
    for (name, is_odd) in names {
        let bodies = [format!("{name}(z)"), format!("conj({name}(conj(z)))"), format!("-{name}(-z)")];
        let found = all_over(C128, &bodies.each_ref().map(String::as_str), &points);
        assert!(bits(&found[0]) == bits(&found[1]), "{name} and its mirror image");
        assert!(!is_odd || bits(&found[0]) == bits(&found[2]), "{name} and its half turn");
    }
    // Those that are not in the table, by those that are: -i f(iz).
    for (name, of) in [("sin", "sinh"), ("tan", "tanh"), ("asin", "asinh"), ("atan", "atanh")] {
        let turned = format!("{of}(T(-imag(z), real(z)))");
        let found = all_over(C128, &[&format!("{name}(z)"), &format!("T(imag({turned}), -real({turned}))")], &points);
        assert_eq!(found[0], found[1], "{name}");
    }
    let found = all_over(C128, &["cos(z)", "cosh(T(-imag(z), real(z)))", "abs(real(acosh(z)))", "abs(imag(acos(z)))"], &points);
    assert_eq!((&found[0], &found[2]), (&found[1], &found[3]));
}

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

/// Where a NaN is expected the sign of the other part may be open: such are given as positive and compared without it.
fn infinities_and_what_is_no_number() {
    type Lines<'a> = &'a [(f64, f64, f64, f64)];
    let of = |name: &str, lines: Lines| {
        let points: Vec<(f64, f64)> = lines.iter().map(|line| (line.0, line.1)).collect();
        for dtype in [C64, C128] {
            for (found, (x, y, re, im)) in over(dtype, &format!("{name}(z)"), &points).into_iter().zip(lines) {
                let is_open = re.is_nan() || im.is_nan();
                let is = |found: f64, expected: f64| {
                    let near = found == expected || (found - expected).abs() < 1e-6 || found.is_nan() && expected.is_nan();
                    near || is_open && found.abs() == expected.abs()
                };
                let signs =
                    is_open || (found.0.is_sign_negative(), found.1.is_sign_negative()) == (re.is_sign_negative(), im.is_sign_negative());
                assert!(is(found.0, *re) && is(found.1, *im) && signs, "{name} of {x}, {y} in {dtype:?}: {found:?}, expected {re}, {im}");
            }
        }
    };
    of(
        "exp",
        &[
            (0.0, 0.0, 1.0, 0.0),
            (1.0, INF, NAN, NAN),
            (INF, 0.0, INF, 0.0),
            (-INF, 1.0, 0.0, 0.0),
            (INF, 2.0, -INF, INF),
            (-INF, INF, 0.0, 0.0),
            (INF, INF, INF, NAN),
            (INF, NAN, INF, NAN),
            (NAN, 0.0, NAN, 0.0),
            (NAN, 1.0, NAN, NAN),
        ],
    );
    of(
        "log",
        &[
            (0.0, 0.0, -INF, 0.0),
            (-0.0, 0.0, -INF, PI),
            (1.0, INF, INF, FRAC_PI_2),
            (1.0, NAN, NAN, NAN),
            (-INF, 1.0, INF, PI),
            (INF, 1.0, INF, 0.0),
            (-INF, INF, INF, 3.0 * FRAC_PI_4),
            (INF, NAN, INF, NAN),
            (NAN, INF, INF, NAN),
            (NAN, 1.0, NAN, NAN),
        ],
    );
    of(
        "sqrt",
        &[
            (-0.0, 0.0, 0.0, 0.0),
            (0.0, -0.0, 0.0, -0.0),
            (1.0, INF, INF, INF),
            (NAN, INF, INF, INF),
            (-INF, INF, INF, INF),
            (1.0, NAN, NAN, NAN),
            (-INF, 1.0, 0.0, INF),
            (INF, -1.0, INF, -0.0),
            (-INF, NAN, NAN, INF),
            (INF, NAN, INF, NAN),
            (NAN, 1.0, NAN, NAN),
        ],
    );
    of(
        "sinh",
        &[
            (-0.0, 0.0, -0.0, 0.0),
            (0.0, INF, 0.0, NAN),
            (1.0, INF, NAN, NAN),
            (INF, 0.0, INF, 0.0),
            (INF, 2.0, -INF, INF),
            (INF, INF, INF, NAN),
            (NAN, 0.0, NAN, 0.0),
            (NAN, 1.0, NAN, NAN),
        ],
    );
    of(
        "cosh",
        &[
            (0.0, 0.0, 1.0, 0.0),
            (0.0, INF, NAN, 0.0),
            (1.0, INF, NAN, NAN),
            (INF, 0.0, INF, 0.0),
            (INF, 2.0, -INF, INF),
            (-INF, 2.0, -INF, -INF),
            (INF, INF, INF, NAN),
            (NAN, 0.0, NAN, 0.0),
        ],
    );
    of(
        "tanh",
        &[
            (0.0, -0.0, 0.0, -0.0),
            (1.0, INF, NAN, NAN),
            (0.0, INF, 0.0, NAN),
            (INF, 1.0, 1.0, 0.0),
            (-INF, 2.0, -1.0, -0.0),
            (INF, INF, 1.0, 0.0),
            (INF, NAN, 1.0, 0.0),
            (NAN, 0.0, NAN, 0.0),
            (NAN, 1.0, NAN, NAN),
        ],
    );
    of(
        "acos",
        &[
            (0.0, 0.0, FRAC_PI_2, -0.0),
            (-0.0, NAN, FRAC_PI_2, NAN),
            (1.0, INF, FRAC_PI_2, -INF),
            (1.0, NAN, NAN, NAN),
            (-INF, 1.0, PI, -INF),
            (INF, 1.0, 0.0, -INF),
            (-INF, INF, 3.0 * FRAC_PI_4, -INF),
            (INF, INF, FRAC_PI_4, -INF),
            (INF, NAN, NAN, INF),
            (NAN, 1.0, NAN, NAN),
            (NAN, INF, NAN, INF),
        ],
    );
    of(
        "asinh",
        &[
            (-0.0, 0.0, -0.0, 0.0),
            (1.0, INF, INF, FRAC_PI_2),
            (1.0, NAN, NAN, NAN),
            (INF, 1.0, INF, 0.0),
            (INF, INF, INF, FRAC_PI_4),
            (INF, NAN, INF, NAN),
            (NAN, 0.0, NAN, 0.0),
            (NAN, 1.0, NAN, NAN),
            (NAN, INF, INF, NAN),
        ],
    );
    of(
        "acosh",
        &[
            (-0.0, 0.0, 0.0, FRAC_PI_2),
            (1.0, INF, INF, FRAC_PI_2),
            (-INF, 1.0, INF, PI),
            (INF, -1.0, INF, -0.0),
            (-INF, INF, INF, 3.0 * FRAC_PI_4),
            (INF, NAN, INF, NAN),
            (NAN, INF, INF, NAN),
            (NAN, 1.0, NAN, NAN),
        ],
    );
    of(
        "atanh",
        &[
            (-0.0, 0.0, -0.0, 0.0),
            (0.0, NAN, 0.0, NAN),
            (1.0, 0.0, INF, 0.0),
            (-1.0, -0.0, -INF, -0.0),
            (1.0, INF, 0.0, FRAC_PI_2),
            (-1.0, NAN, NAN, NAN),
            (INF, 1.0, 0.0, FRAC_PI_2),
            (INF, -INF, 0.0, -FRAC_PI_2),
            (INF, NAN, 0.0, NAN),
            (NAN, 1.0, NAN, NAN),
            (NAN, INF, 0.0, FRAC_PI_2),
        ],
    );
}

fn powers_of_any_type() {
    let points = [(1.0, 2.0), (-3.0, 0.5), (0.0, -1.0), (2.5, 0.0)];
    for dtype in [C64, C128] {
        let same = [
            ("pow(z, 2)", "z * z"),
            ("std::pow(z, 3u)", "z * z * z"),
            ("pow(z, -1)", "T(1) / z"),
            ("pow(z, 0.5f)", "sqrt(z)"),
            ("pow(z, 1.5)", "pow(z, T(1.5))"),
            ("pow(2, z)", "exp(z * T(0.6931471805599453))"),
            ("pow(z, std::complex<float>(0.5f, 0.25f))", "exp(log(z) * T(0.5, 0.25))"),
            ("pow(std::complex<double>(2, 1), z)", "exp(z * T(log(std::complex<double>(2, 1))))"),
            ("pow(z, int64_t(0))", "T(1)"),
        ];
        for part in same.chunks(4) {
            let bodies: Vec<&str> = part.iter().flat_map(|(one, other)| [*one, *other]).collect();
            let near = |(a, b): (&(f64, f64), &(f64, f64))| (a.0 - b.0).hypot(a.1 - b.1) <= 1e-5 * (1.0 + b.0.hypot(b.1));
            for (found, (one, other)) in all_over(dtype, &bodies, &points).chunks(2).zip(part) {
                assert!(found[0].iter().zip(&found[1]).all(near), "{one} and {other}: {found:?}");
            }
        }
    }
}
