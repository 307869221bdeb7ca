//! The code around an element-wise function: loads, conversions, the call, stores, for one choice of types and layout.

use super::function::{MOST_SCALARS, Value};
use super::parse;
use super::walk::{Layout, MOST, Walk};
use crate::runtime::kernels::element::Element;
use crate::runtime::kernels::{Divider, MAX_DIMS};
use smallvec::SmallVec;
use std::fmt::Write;

pub const THREADS: u32 = 256;
/// Elements of a thread where each has to be looked for: enough loads in flight.
const STRIDED_WORK: u32 = 4;

/// What decides the code, beside the function.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Variant {
    pub outputs: usize,
    /// Whether the function has its outputs as parameters.
    pub by_reference: bool,
    /// Of the outputs, then of the inputs.
    pub types: SmallVec<[Element; MOST]>,
    /// The type that inputs become, and results are.
    pub common: Element,
    pub layout: Layout,
    pub scalars: SmallVec<[Kind; MOST_SCALARS]>,
}

/// What an extra argument is in C++.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    Bool,
    Integer,
    Real,
    Complex,
}

/// In memory.
fn stored(element: Element) -> &'static str {
    match element {
        Element::Bool => "tcuda::Bool",
        other => plain(other),
    }
}

/// As a type of C++.
fn plain(element: Element) -> &'static str {
    match element {
        Element::Bool => "bool",
        Element::U8 => "uint8_t",
        Element::I8 => "int8_t",
        Element::I16 => "int16_t",
        Element::U16 => "uint16_t",
        Element::I32 => "int32_t",
        Element::U32 => "uint32_t",
        Element::I64 => "int64_t",
        Element::U64 => "uint64_t",
        Element::F16 => "tcuda::Half",
        Element::BF16 => "tcuda::BFloat16",
        Element::F32 => "float",
        Element::F64 => "double",
        Element::C64 => "tcuda::complex<float>",
        Element::C128 => "tcuda::complex<double>",
    }
}

/// As in torch, the half types are computed with in float.
fn computed(element: Element) -> &'static str {
    match element {
        Element::F16 | Element::BF16 => "float",
        other => plain(other),
    }
}

impl Variant {
    fn inputs(&self) -> usize {
        self.types.len() - self.outputs
    }

    fn is_uniform(&self, input: usize) -> bool {
        matches!(self.layout, Layout::Flat { uniform, .. } if uniform >> input & 1 == 1)
    }

    /// Elements of a thread.
    fn work(&self) -> u32 {
        match self.layout {
            Layout::Strided => STRIDED_WORK,
            Layout::Flat { pack, .. } => {
                let largest = self.types.iter().map(|element| element.size()).max().unwrap_or(1);
                // 32 bytes of the widest tensor in flight.
                (32 / largest as u32).clamp(2, 16).max(u32::from(pack))
            }
        }
    }

    /// Elements of a block.
    pub fn block(&self) -> u32 {
        self.work() * THREADS
    }

    /// The whole text: what the compiler needs in front, the function, the kernel.
    pub fn text(&self, prelude: &str, name: &str, source: &str) -> String {
        let mut text = String::with_capacity(prelude.len() + source.len() + 16_000);
        // Messages name the function and count its own lines.
        let _ = write!(
            text,
            "#line 1 \"tcuda\"\n{prelude}\n{}\n#line 1 \"{name}\"\n{source}\n#line 1 \"tcuda\"\n",
            concat!(include_str!("complex.hpp"), include_str!("prelude.hpp"))
        );
        let macros = parse::macros(source);
        // What follows is meant as it is written; but what the function's name stands for may be made of all of them.
        if !macros.contains(&name) {
            for name in macros {
                let _ = writeln!(text, "#undef {name}");
            }
        }
        let _ = self.write_kernel(&mut text, name);
        text
    }

    fn write_kernel(&self, text: &mut String, name: &str) -> std::fmt::Result {
        let (tensors, outputs, inputs) = (self.types.len(), self.outputs, self.inputs());
        let list = |count: usize, each: &dyn Fn(usize) -> String| (0..count).map(each).collect::<Vec<_>>().join(", ");
        let output = |at: usize| stored(self.types[at]);
        let input = |at: usize| stored(self.types[outputs + at]);

        writeln!(text, "typedef {} tcuda_common;\ntypedef {} tcuda_compute;", plain(self.common), computed(self.common))?;
        writeln!(text, "struct alignas(8) tcuda_arguments {{\n    char *data[{tensors}];\n    uint32_t count, dims;")?;
        if self.layout == Layout::Strided {
            writeln!(text, "    tcuda::Divider sizes[{MAX_DIMS}];\n    int64_t strides[{MAX_DIMS}][{tensors}];")?;
        }
        if !self.scalars.is_empty() {
            writeln!(text, "    tcuda::Scalar scalars[{}];", self.scalars.len())?;
        }
        writeln!(text, "}};")?;

        // One element. The function is found by its place: its name may be one that stands here too.
        let parameters =
            list(inputs, &|at| format!("const {} &x{at}", input(at))) + ", " + &list(outputs, &|at| format!("{} &y{at}", output(at)));
        writeln!(text, "inline void tcuda_apply(const tcuda_arguments &args, {parameters}) {{")?;
        let mut arguments = list(inputs, &|at| format!("tcuda::load<tcuda_common, tcuda_compute>(x{at})"));
        for (at, kind) in self.scalars.iter().enumerate() {
            let scalar = format!("args.scalars[{at}]");
            let _ = match kind {
                Kind::Bool => write!(arguments, ", (bool){scalar}.integer"),
                Kind::Integer => write!(arguments, ", {scalar}.integer"),
                Kind::Real => write!(arguments, ", {scalar}.real"),
                Kind::Complex => write!(arguments, ", tcuda::complex<double>({scalar}.pair[0], {scalar}.pair[1])"),
            };
        }
        if self.by_reference {
            let results = list(outputs, &|at| format!("r{at}"));
            writeln!(text, "    tcuda_compute {};", list(outputs, &|at| format!("r{at} = tcuda_compute()")))?;
            writeln!(text, "    ::{name}<tcuda_compute>({arguments}, {results});")?;
        } else {
            writeln!(text, "    const tcuda_compute r0 = ::{name}<tcuda_compute>({arguments});")?;
        }
        for at in 0..outputs {
            writeln!(text, "    tcuda::store<tcuda_common>(y{at}, r{at});")?;
        }
        writeln!(text, "}}\nTCUDA_KERNEL(tcuda_arguments) {{")?;
        match self.layout {
            Layout::Flat { pack, .. } => self.write_flat(text, u32::from(pack))?,
            Layout::Strided => self.write_strided(text)?,
        }
        writeln!(text, "}}")
    }

    /// The call for one element: `of` gives the text of an input, outputs are `to`.
    fn call(&self, of: &dyn Fn(usize) -> String, to: &dyn Fn(usize) -> String) -> String {
        let arguments: Vec<_> = (0..self.inputs()).map(of).chain((0..self.outputs).map(to)).collect();
        format!("tcuda_apply(args, {});", arguments.join(", "))
    }

    fn write_flat(&self, text: &mut String, pack: u32) -> std::fmt::Result {
        let (outputs, block, rounds) = (self.outputs, self.block(), self.work() / pack);
        let packed = |at: usize| format!("tcuda::Pack<{}, {pack}>", stored(self.types[at]));
        let uniform: Vec<usize> = (0..self.inputs()).filter(|at| self.is_uniform(*at)).collect();
        let moved: Vec<usize> = (0..self.inputs()).filter(|at| !self.is_uniform(*at)).collect();
        writeln!(text, "    const uint32_t first = blockIdx.x * {block}u;")?;
        for at in uniform {
            let kind = stored(self.types[outputs + at]);
            writeln!(text, "    const {kind} u{at} = *(const {kind} *)args.data[{}];", outputs + at)?;
        }
        let of = |element: &'static str| {
            move |at: usize| if self.is_uniform(at) { format!("u{at}") } else { element.replace('#', &at.to_string()) }
        };

        // A whole block: all loads, then the rest.
        writeln!(text, "    if (args.count - first >= {block}u) {{")?;
        for at in &moved {
            writeln!(text, "        {} p{at}[{rounds}];", packed(outputs + at))?;
        }
        writeln!(text, "        #pragma unroll\n        for (int u = 0; u < {rounds}; ++u) {{")?;
        for at in &moved {
            let (kind, data) = (packed(outputs + at), outputs + at);
            writeln!(text, "            p{at}[u] = ((const {kind} *)args.data[{data}])[first / {pack} + u * {THREADS} + threadIdx.x];")?;
        }
        writeln!(text, "        }}\n        #pragma unroll\n        for (int u = 0; u < {rounds}; ++u) {{")?;
        for at in 0..outputs {
            writeln!(text, "            {} q{at};", packed(at))?;
        }
        writeln!(text, "            #pragma unroll\n            for (int v = 0; v < {pack}; ++v)")?;
        writeln!(text, "                {}", self.call(&of("p#[u].at[v]"), &|at| format!("q{at}.at[v]")))?;
        for at in 0..outputs {
            writeln!(text, "            (({} *)args.data[{at}])[first / {pack} + u * {THREADS} + threadIdx.x] = q{at};", packed(at))?;
        }
        writeln!(text, "        }}\n        return;\n    }}")?;

        // The last block.
        writeln!(text, "    for (uint32_t i = first + threadIdx.x; i < args.count; i += {THREADS}) {{")?;
        for at in moved {
            let kind = stored(self.types[outputs + at]);
            writeln!(text, "        const {kind} x{at} = ((const {kind} *)args.data[{}])[i];", outputs + at)?;
        }
        self.write_single(text, "        ", &of("x#"), &|_| "[i]".into())
    }

    /// Calls for one element and stores what came out.
    fn write_single(
        &self,
        text: &mut String,
        indent: &str,
        of: &dyn Fn(usize) -> String,
        to: &dyn Fn(usize) -> String,
    ) -> std::fmt::Result {
        for at in 0..self.outputs {
            writeln!(text, "{indent}{} y{at};", stored(self.types[at]))?;
        }
        writeln!(text, "{indent}{}", self.call(of, &|at| format!("y{at}")))?;
        for at in 0..self.outputs {
            let kind = stored(self.types[at]);
            match self.layout {
                Layout::Flat { .. } => writeln!(text, "{indent}(({kind} *)args.data[{at}]){} = y{at};", to(at))?,
                Layout::Strided => writeln!(text, "{indent}*({kind} *)(args.data[{at}] + {}) = y{at};", to(at))?,
            }
        }
        writeln!(text, "{}}}", &indent[4..])
    }

    fn write_strided(&self, text: &mut String) -> std::fmt::Result {
        let (tensors, outputs, block) = (self.types.len(), self.outputs, self.block());
        writeln!(text, "    const uint32_t first = blockIdx.x * {block}u + threadIdx.x;")?;
        writeln!(text, "    int64_t to[{STRIDED_WORK}][{outputs}];")?;
        for at in 0..self.inputs() {
            writeln!(text, "    {} x{at}[{STRIDED_WORK}];", stored(self.types[outputs + at]))?;
        }
        let rounds = format!("    #pragma unroll\n    for (int u = 0; u < {STRIDED_WORK}; ++u) {{");
        writeln!(text, "{rounds}\n        uint32_t rest = first + u * {THREADS};\n        if (rest < args.count) {{")?;
        writeln!(text, "            int64_t at[{tensors}] = {{}};\n            #pragma unroll 1")?;
        writeln!(text, "            for (uint32_t dim = 0; dim < args.dims; ++dim) {{")?;
        writeln!(text, "                const tcuda::Divider size = args.sizes[dim];")?;
        writeln!(text, "                const uint32_t quotient = (__umulhi(rest, size.magic) + rest) >> size.shift;")?;
        writeln!(text, "                const int64_t along = rest - quotient * size.size;\n                rest = quotient;")?;
        writeln!(text, "                #pragma unroll\n                for (int t = 0; t < {tensors}; ++t)")?;
        writeln!(text, "                    at[t] += along * args.strides[dim][t];\n            }}")?;
        for at in 0..outputs {
            writeln!(text, "            to[u][{at}] = at[{at}];")?;
        }
        for at in 0..self.inputs() {
            let (kind, data) = (stored(self.types[outputs + at]), outputs + at);
            writeln!(text, "            x{at}[u] = *(const {kind} *)(args.data[{data}] + at[{data}]);")?;
        }
        writeln!(text, "        }}\n    }}\n{rounds}\n        if (first + u * {THREADS} < args.count) {{")?;
        self.write_single(text, "            ", &|at| format!("x{at}[u]"), &|at| format!("to[u][{at}]"))?;
        writeln!(text, "    }}")
    }

    /// The kernel's argument, as `tcuda_arguments` has it. Only for pieces: sizes and their product fit 31 bits.
    pub fn arguments(&self, piece: &Walk, scalars: &[Value]) -> SmallVec<[u64; 32]> {
        let mut words: SmallVec<[u64; 32]> = piece.addresses.iter().map(|address| *address as u64).collect();
        words.push(piece.count() | (piece.dims.len() as u64) << 32);
        if self.layout == Layout::Strided {
            let tensors = self.types.len();
            words.reserve(MAX_DIMS * (2 + tensors) + 2 * scalars.len());
            for at in 0..MAX_DIMS {
                let divider = Divider::new(piece.dims.get(at).map_or(1, |dim| dim.size as u32));
                words.extend([u64::from(divider.size) | u64::from(divider.magic) << 32, u64::from(divider.shift)]);
            }
            let strides = piece.dims.iter().flat_map(|dim| dim.strides[..tensors].iter().map(|stride| *stride as u64));
            words.extend(strides.chain(std::iter::repeat(0)).take(MAX_DIMS * tensors));
        }
        for scalar in scalars {
            words.extend(match *scalar {
                Value::Bool(value) => [u64::from(value), 0],
                Value::Integer(value) => [value as u64, 0],
                Value::Real(value) => [value.to_bits(), 0],
                Value::Complex(real, imaginary) => [real.to_bits(), imaginary.to_bits()],
            });
        }
        words
    }
}
