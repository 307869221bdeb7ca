//! What is generated, compiled by a real NVRTC, which needs no GPU for that. `make test SUITES=nvrtc` fetches the compilers of several
//! CUDA versions and runs this with each; by hand: `TCUDA_NVRTC_PATH=... cargo test --test nvrtc`. Each type is compiled by the compiler of one
//! CUDA version for one device, each function by all of them; with the argument `all` everything for every device by each.

use std::path::Path;
use std::process::ExitCode;
use tcuda::jit::generate::{Kind, Variant};
use tcuda::jit::walk::Layout;
use tcuda::runtime::compile::{Compiler, Failure, Image, Program};
use tcuda::runtime::cuda::nvrtc::{self, Nvrtc, Target};
use tcuda::runtime::kernels::element::Element;

const AXPY: &str = "template <typename T> T axpy(T x, T y, T a) { return a * x + y; }";

struct Case {
    what: String,
    name: &'static str,
    source: String,
    variant: Variant,
}

fn case(what: String, name: &'static str, source: impl Into<String>, variant: Variant) -> Case {
    Case { what, name, source: source.into(), variant }
}

fn variant(types: &[Element], common: Element, layout: Layout, scalars: &[Kind]) -> Variant {
    Variant { outputs: 1, by_reference: false, types: types.into(), common, layout, scalars: scalars.into() }
}

fn flat(pack: u8) -> Layout {
    Layout::Flat { pack, uniform: 0 }
}

/// Each type in each layout, and each conversion that promotion can ask for.
fn types() -> Vec<Case> {
    let mut cases = Vec::new();
    for element in Element::all() {
        let most = (16 / element.size()) as u8;
        for layout in [flat(most), flat(1), Layout::Flat { pack: most, uniform: 2 }, Layout::Strided] {
            let what = format!("{} {layout:?}", element.name());
            cases.push(case(what, "axpy", AXPY, variant(&[element; 3], element, layout, &[Kind::Real])));
        }
        for common in [Element::F16, Element::BF16, Element::F32, Element::F64, Element::C64, Element::C128] {
            if tcuda::jit::promote::promote(element, common) == Ok(common) {
                for layout in [flat(1), Layout::Strided] {
                    let what = format!("{} as {} {layout:?}", element.name(), common.name());
                    cases.push(case(what, "axpy", AXPY, variant(&[common, element, common], common, layout, &[Kind::Integer])));
                }
            }
        }
    }
    cases
}

/// Functions in one source.
const AT_ONCE: usize = 3;

/// What else a source may have.
fn functions() -> Vec<Case> {
    let mut cases = Vec::new();
    let all = "template <typename T> T f(T x, bool b, int64_t i, double d, std::complex<double> c) { return b ? x + T(i) + T(d) + T(c.imag()) : x; }";
    let kinds = [Kind::Bool, Kind::Integer, Kind::Real, Kind::Complex];
    cases.push(case("every kind of extra argument".into(), "f", all, variant(&[Element::F32; 2], Element::F32, flat(4), &kinds)));
    let parameters: Vec<String> = (0..8).map(|at| format!("T x{at}")).chain((0..8).map(|at| format!("T &y{at}"))).collect();
    let body: String = (0..8).map(|at| format!("y{at} = x{at};")).collect();
    let most = format!("template <typename T> void most({}) {{ {body} }}", parameters.join(", "));
    for layout in [flat(2), flat(4), Layout::Strided] {
        let variant = Variant { outputs: 8, by_reference: true, ..variant(&[Element::F16; 16], Element::F16, layout, &[]) };
        cases.push(case(format!("eight in, eight out {layout:?}"), "most", most.clone(), variant));
    }
    let limits = "template <typename T, std::enable_if_t<std::is_floating_point<T>::value, int> = 0> T kind(T) { return T(1); } \
                  template <typename T, typename std::enable_if<std::is_integral<T>::value, int>::type = 0> T kind(T) { return T(2); } \
                  template <typename T> inline T args(T x) { typedef std::numeric_limits<T> L; \
                  static_assert(L::max() > L::min() && std::is_same<std::conditional_t<std::is_signed<T>::value, int, float>, int>::value, \"\"); \
                  return kind(x) + L::lowest() + L::infinity() + L::quiet_NaN() + L::epsilon() + T(1'000); }";
    for element in [Element::I8, Element::I16, Element::I32, Element::I64, Element::F32, Element::F64] {
        cases.push(case(format!("limits of {}", element.name()), "args", limits, variant(&[element; 2], element, flat(1), &[])));
    }
    let reals = "exp(x) log(x) sqrt(x) rsqrt(x) sin(x) cos(x) tanh(x) erf(x) pow(x,x) fmod(x,x) max(x,x) min(x,x) sinpi(x) std::exp(x) std::abs(x) \
                 std::pow(x,x) std::max(x,x) std::hypot(x,x) std::isnan(x) std::floor(x) M_PI NAN INFINITY";
    let complexes = "exp(x) log(x) sqrt(x) std::abs(x) std::conj(x) std::sin(x) tanh(x) pow(x,x) asin(x) acosh(x) std::polar(x.real(),x.imag()) x*2.0f x/x \
                     std::log1p(x) log2(x) log10(x) rsqrt(x) cos(x) tan(x) sinh(x) cosh(x) acos(x) atan(x) asinh(x) std::atanh(x) pow(x,2) pow(2,x) \
                     std::pow(x,0.5) pow(x,std::complex<float>(1,2)) pow(x,std::complex<double>(1,2))";
    for (elements, terms) in [([Element::F32, Element::F64], reals), ([Element::C64, Element::C128], complexes)] {
        for element in elements {
            let terms: Vec<String> = terms.split_whitespace().map(|term| format!("T({term})")).collect();
            // Some at a time: all complex ones in one function take a compiler half a minute.
            for terms in terms.chunks(AT_ONCE) {
                let source = format!("template <typename T> T f(T x) {{ return {}; }}", terms.join(" + ").replace("2.0f", "x.real()"));
                let what = format!("functions of {}: {}", element.name(), terms.join(" "));
                cases.push(case(what, "f", source, variant(&[element; 2], element, flat(1), &[])));
            }
        }
    }
    cases
}

fn compile(nvrtc: &'static Nvrtc, capability: i32, case: &Case) -> Result<Image, String> {
    let compiler = Compiler::Nvrtc { nvrtc, capability };
    let text = case.variant.text(compiler.prelude(), case.name, &case.source);
    let program = Program { name: case.name, text: &text, source: &case.source, names: &[], options: compiler.elementwise_options() };
    compiler.compile(&program).map_err(|error| error.message.into_owned())
}

struct Checks {
    passed: usize,
    failed: usize,
}

impl Checks {
    fn check(&mut self, what: &str, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(text) => {
                println!("FAILED {what}: {text}");
                self.failed += 1;
            }
        }
    }
}

fn has(text: &str, words: &[&str]) -> Result<(), String> {
    words.iter().find(|word| !text.contains(**word)).map_or(Ok(()), |word| Err(format!("'{word}' is not in: {text}")))
}

/// The accesses that the speed rests on are 16 bytes wide.
fn wide_accesses(nvrtc: &'static Nvrtc, checks: &mut Checks) {
    for element in [Element::F32, Element::F16, Element::U8, Element::F64] {
        let variant = variant(&[element; 3], element, flat((16 / element.size()) as u8), &[Kind::Real]);
        let compiler = Compiler::Nvrtc { nvrtc, capability: 0 };
        let text = variant.text(compiler.prelude(), "axpy", AXPY);
        let program = Program { name: "axpy", text: &text, source: AXPY, names: &[], options: compiler.elementwise_options() };
        let outcome = match nvrtc.compile(&program, Target::Ptx(90)) {
            Ok(image) => {
                let ptx = String::from_utf8_lossy(&image.code).into_owned();
                let wide = |what: &str| {
                    ["v4.u32", "v4.b32", "v4.f32", "v2.u64", "v2.b64", "v2.f64"]
                        .map(|kind| ptx.matches(&format!("{what}.global.{kind}")).count())
                };
                let (loads, stores): (usize, usize) = (wide("ld").iter().sum(), wide("st").iter().sum());
                if loads >= 2 && stores >= 1 { Ok(()) } else { Err(format!("{loads} wide loads, {stores} wide stores")) }
            }
            Err(Failure::Source(log)) => Err(log),
            Err(Failure::Compiler(error)) => Err(error.message.into_owned()),
        };
        checks.check(&format!("wide accesses of {}", element.name()), outcome);
    }
}

/// tcuda/philox.cuh, by its text and by its place.
fn philox_header(nvrtc: &'static Nvrtc, checks: &mut Checks) {
    const KERNELS: &str = include_str!("../data/philox_kernels.cu");
    let text = concat!(include_str!("../../include/tcuda/philox.cuh"), include_str!("../data/philox_kernels.cu"));
    let included = format!("#include <tcuda/philox.cuh>\n#include <tcuda/philox.cuh>\n{KERNELS}");
    let folder = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    for capability in [75, 90, nvrtc.newest()] {
        for (what, text, options) in [("text", text, &["-std=c++17"][..]), ("place", &included, &[folder, "-std=c++11"])] {
            let program = Program { name: "philox.cu", text, source: text, names: &[], options };
            let outcome = Compiler::Nvrtc { nvrtc, capability }.compile(&program);
            checks.check(
                &format!("philox.cuh by its {what} for sm_{capability}"),
                outcome.map(drop).map_err(|error| error.message.into_owned()),
            );
        }
    }
}

fn run() -> Result<Checks, String> {
    let nvrtc = nvrtc::open(i32::MAX).map_err(|error| error.message.into_owned())?;
    let newest = nvrtc.newest();
    println!("NVRTC {}.{} ({}), newest capability {newest}", nvrtc.version.0, nvrtc.version.1, nvrtc.file.display());
    let mut checks = Checks { passed: 0, failed: 0 };
    let (types, functions) = (types(), functions());
    let all = match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [] => false,
        [word] if word == "all" => true,
        words => return Err(format!("the only argument may be 'all', not {words:?}")),
    };
    let capabilities = [75, 90, newest];
    let turns = capabilities.len();
    // Major versions follow each other, so that each type has one.
    let version = nvrtc.version.0 as usize;
    let types = types.iter().enumerate().map(|(at, case)| (case, at / turns, (at + version) % turns == 0));
    let functions = functions.iter().enumerate().map(|(at, case)| (case, at + version, true));
    for (case, turn, is_taken) in types.chain(functions) {
        for (at, capability) in capabilities.into_iter().enumerate() {
            if !all && (!is_taken || turn % turns != at) {
                continue;
            }
            // ELF: machine code.
            let outcome = compile(nvrtc, capability, case).and_then(|image| match image.code.starts_with(b"\x7fELF") {
                true => Ok(()),
                false => Err("no machine code came out".into()),
            });
            checks.check(&format!("{} for sm_{capability}", case.what), outcome);
        }
    }
    // A device that the compiler does not know.
    let axpy = case(String::new(), "axpy", AXPY, variant(&[Element::F32; 3], Element::F32, flat(4), &[Kind::Real]));
    let unknown = compile(nvrtc, 999, &axpy)
        .and_then(|image| has(&String::from_utf8_lossy(&image.code), &[".visible .entry tcuda_jit", &format!(".target sm_{newest}")]));
    checks.check("PTX for a device that is not known", unknown);
    wide_accesses(nvrtc, &mut checks);
    philox_header(nvrtc, &mut checks);

    let f32 = || variant(&[Element::F32; 2], Element::F32, flat(4), &[]);
    let wrong = case(String::new(), "wrong", "template <typename T>\nT wrong(T x) {\n    return x + missing;\n}", f32());
    let text = compile(nvrtc, 90, &wrong).err().unwrap_or_default();
    checks.check(
        "a wrong source is shown",
        has(&text, &["'wrong' does not compile at line 3: `return x + missing;`", "wrong(3): error", "missing"]),
    );

    let whole = "template <typename T> __global__ void scale(T *x) { *x *= N; }\nextern \"C\" __global__ void plain() {}";
    let program = Program { name: "some.cu", text: whole, source: whole, names: &["scale<float>", "scale<double>"], options: &["-DN=3"] };
    let image = Compiler::Nvrtc { nvrtc, capability: 90 }.compile(&program).map_err(|error| error.message.into_owned())?;
    let right = image.symbols.len() == 2 && image.symbols.iter().all(|symbol| symbol.starts_with("_Z5scaleI"));
    checks.check("names of templates", if right { Ok(()) } else { Err(format!("{:?}", image.symbols)) });
    for (options, names, word) in [
        (&["--nothing-such"][..], &[][..], "--nothing-such"),
        (&["-DN=3"], &["absent<int>"], "absent"),
        (&[], &["scale<float>"], "\"N\" is undefined"),
    ] {
        let outcome = Compiler::Nvrtc { nvrtc, capability: 90 }.compile(&Program { options, names, ..program });
        checks.check(word, has(&outcome.err().map(|error| error.message.into_owned()).unwrap_or_default(), &[word]));
    }

    let old = nvrtc::search_in(Path::new("/nowhere"), 10_000).err().map(|error| error.message.into_owned()).unwrap_or_default();
    checks.check(
        "a driver that is older than the compiler",
        has(&old, &["TCUDA_NVRTC_PATH", "for newer drivers", "pip install nvidia-cuda-nvrtc-cu11"]),
    );
    Ok(checks)
}

fn main() -> ExitCode {
    match run() {
        Ok(checks) => {
            println!("nvrtc: {} passed, {} failed", checks.passed, checks.failed);
            if checks.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(text) => {
            println!("nvrtc: {text}");
            ExitCode::FAILURE
        }
    }
}
