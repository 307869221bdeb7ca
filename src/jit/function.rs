//! Element-wise functions: made from a source, and compiled for the tensors that they meet.

use super::generate::{Kind, Variant};
use super::parse;
use super::{Few, disk};
use crate::base::handles::Handles;
use crate::base::{Error, Result, room};
use crate::runtime::Runtime;
use crate::runtime::compile::{Compiler, Image, Program};
use crate::runtime::kernels::compiled::{self, ENTRY, Module};
use once_cell::sync::OnceCell;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, LazyLock};

/// torch's limits.
pub const MOST_INPUTS: usize = 8;
pub const MOST_OUTPUTS: usize = 8;
/// What one kernel's argument has room for.
pub const MOST_SCALARS: usize = 16;

/// The value of an extra argument.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    Bool(bool),
    Integer(i64),
    Real(f64),
    Complex(f64, f64),
}

impl Value {
    pub fn kind(self) -> Kind {
        match self {
            Value::Bool(_) => Kind::Bool,
            Value::Integer(_) => Kind::Integer,
            Value::Real(_) => Kind::Real,
            Value::Complex(..) => Kind::Complex,
        }
    }
}

/// An extra argument.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scalar<'a> {
    pub name: &'a str,
    pub value: Value,
}

pub struct Function {
    pub name: String,
    source: Arc<str>,
    pub inputs: usize,
    pub outputs: usize,
    pub by_reference: bool,
    /// The extra arguments in the order of the parameters.
    names: Vec<String>,
    defaults: Few<Value>,
    compiled: Table<(i32, Variant)>,
}

/// One entry for each thing to compile. Threads that want the same wait for the first of them.
struct Table<K>(RwLock<HashMap<K, Arc<OnceCell<compiled::Function>>>>);

impl<K: Eq + Hash> Table<K> {
    fn new() -> Table<K> {
        Table(RwLock::new(HashMap::new()))
    }

    fn cell(&self, key: K) -> Arc<OnceCell<compiled::Function>> {
        if let Some(cell) = self.0.read().get(&key) {
            return cell.clone();
        }
        self.0.write().entry(key).or_default().clone()
    }

    /// What fails leaves nothing: of wrong sources there may be many.
    fn get_or_try(&self, key: K, make: impl FnOnce() -> Result<compiled::Function>) -> Result<compiled::Function>
    where
        K: Clone,
    {
        let cell = self.cell(key.clone());
        let made = cell.get_or_try_init(make).copied();
        if made.is_err() {
            let mut cells = self.0.write();
            // Another thread may have had it since.
            if cells.get(&key).is_some_and(|known| known.get().is_none()) {
                cells.remove(&key);
            }
        }
        made
    }
}

static FUNCTIONS: Handles<Function> = Handles::new("compiled function", "tcuda_jit_create");

/// What is on a device: two functions of one source share it. For good, so the key is what the text is made of and not the text, which is
/// hundreds of times longer. A device's compiler does not change.
static LOADED: LazyLock<Table<(i32, Variant, Arc<str>)>> = LazyLock::new(Table::new);

/// That of functions, which are made without a device.
pub fn is_locked() -> bool {
    FUNCTIONS.is_locked()
}

/// `outputs` 0: one, by value.
pub fn create(source: &str, outputs: usize, scalars: &[Scalar]) -> Result<u64> {
    if outputs > MOST_OUTPUTS {
        return Err(Error::invalid_argument(format!("A function has 1 to {MOST_OUTPUTS} outputs; {outputs} were asked for.")));
    }
    if scalars.len() > MOST_SCALARS {
        return Err(Error::invalid_argument(format!(
            "A function takes at most {MOST_SCALARS} extra arguments; {} were given.",
            scalars.len()
        )));
    }
    for (at, scalar) in scalars.iter().enumerate() {
        if !is_name(scalar.name) {
            return Err(Error::invalid_argument(format!(
                "The extra argument {at} is called '{}', which is no name: letters, digits and _, and no digit first.",
                scalar.name
            )));
        }
        if scalars[..at].iter().any(|before| before.name == scalar.name) {
            return Err(Error::invalid_argument(format!("The extra argument '{}' is given twice.", scalar.name)));
        }
    }
    // A byte order mark is for editors; within the generated text it would be a letter.
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let signature = parse::parse(source, outputs)?;
    let name = signature.name;
    let inputs = signature.parameters.checked_sub(scalars.len() + outputs).filter(|inputs| *inputs > 0).ok_or_else(|| {
        Error::invalid_argument(format!(
            "'{name}' has {} parameters; with {} extra arguments and {outputs} outputs among them none is left for a tensor.",
            signature.parameters,
            scalars.len()
        ))
    })?;
    if inputs > MOST_INPUTS {
        return Err(Error::invalid_argument(format!(
            "'{name}' takes {inputs} tensors, after {} extra arguments and {outputs} outputs; {MOST_INPUTS} are the most.",
            scalars.len()
        )));
    }
    let (by_reference, outputs) = (outputs > 0, outputs.max(1));
    let names = scalars.iter().map(|scalar| scalar.name.to_owned()).collect();
    let defaults = scalars.iter().map(|scalar| scalar.value).collect();
    let function = Function { name, source: source.into(), inputs, outputs, by_reference, names, defaults, compiled: Table::new() };
    Ok(FUNCTIONS.insert(Arc::new(function)) as u64)
}

fn is_name(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit()) && !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

pub fn destroy(id: u64) -> Result<()> {
    FUNCTIONS.remove(id as usize).map(drop)
}

/// All are gone; what was compiled is kept.
pub(super) fn clear() {
    drop(FUNCTIONS.clear());
}

pub fn numbered(id: u64) -> Result<Arc<Function>> {
    FUNCTIONS.get(id as usize)
}

impl Function {
    /// The extra arguments of one call: the defaults, and over them what is named.
    pub fn values(&self, given: &[Scalar]) -> Result<Few<Value>> {
        let mut values = self.defaults.clone();
        for (nth, scalar) in given.iter().enumerate() {
            if given[..nth].iter().any(|before| before.name == scalar.name) {
                return Err(Error::invalid_argument(format!("The extra argument '{}' of '{}' is given twice.", scalar.name, self.name)));
            }
            let at = self.names.iter().position(|known| known == scalar.name).ok_or_else(|| {
                let known = if self.names.is_empty() { String::from("none") } else { self.names.join(", ") };
                Error::invalid_argument(format!("{} is not declared in the definition of '{}', which has {known}.", scalar.name, self.name))
            })?;
            values[at] = scalar.value;
        }
        Ok(values)
    }

    /// Ready to run on a device, which is current.
    pub fn on_device(&self, runtime: &Runtime, device: i32, variant: &Variant) -> Result<compiled::Function> {
        let cell = self.compiled.cell((device, variant.clone()));
        if let Some(known) = cell.get() {
            return Ok(*known);
        }
        // Nobody waits here: who hears from the log that nothing can be kept may call this very function.
        let compiled = self.compile(runtime, device, variant)?;
        Ok(*cell.get_or_init(|| compiled))
    }

    fn compile(&self, runtime: &Runtime, device: i32, variant: &Variant) -> Result<compiled::Function> {
        let compiler = Compiler::of(runtime, device)?;
        let folder = disk::folder();
        let mut fresh = None;
        let function = LOADED.get_or_try((device, variant.clone(), self.source.clone()), || {
            /// In the text, in the key, and in a file.
            const COPIES: usize = 8;
            room::check(self.source.len().saturating_mul(COPIES), format_args!("compiling '{}'", self.name))?;
            let text = variant.text(compiler.prelude(), &self.name, &self.source);
            let options: &[&str] = compiler.elementwise_options();
            let key = format!("{}\n{}\n{text}", compiler.identity(), options.join(" "));
            let load = |image: &Image| -> Result<compiled::Function> {
                let loaded = Module::load(runtime, image).and_then(|module| {
                    let function = module.function(runtime, ENTRY).inspect_err(|_| drop(module.unload(runtime)))?;
                    // It stays on the device, as tcuda's own kernels do.
                    std::mem::forget(module);
                    Ok(function)
                });
                loaded.map_err(|error| error.context(format!("'{}' cannot be loaded on device {device}", self.name)).on_device(device))
            };
            if let Some(folder) = &folder
                && let Some(image) = disk::load(folder, &key)
            {
                match load(&image) {
                    // A file that this driver does not take is replaced; what else is wrong, compiling does not mend.
                    Err(error) if compiled::is_of_the_image(&error) => {}
                    done => return done,
                }
            }
            let image = compiler.compile(&Program { name: &self.name, text: &text, source: &self.source, names: &[], options })?;
            let function = load(&image)?;
            fresh = Some((key, image));
            Ok(function)
        });
        // Not before others may go on: what is wrong with the folder goes to the log, and its callback may call functions.
        if let (Some(folder), Some((key, image))) = (&folder, fresh) {
            disk::store(folder, &key, &image);
        }
        function
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(name: &str, value: f64) -> Scalar<'_> {
        Scalar { name, value: Value::Real(value) }
    }

    #[test]
    fn parameters_are_counted() {
        let of = |source, outputs, scalars: &[Scalar]| create(source, outputs, scalars).and_then(numbered);
        let axpy = "template <typename T> T axpy(T x, T y, T a) { return a * x + y; }";
        let function = of(axpy, 0, &[scalar("a", 1.0)]).unwrap();
        assert_eq!((function.inputs, function.outputs, function.by_reference), (2, 1, false));
        assert_eq!(of(axpy, 0, &[]).unwrap().inputs, 3);
        let two = "template <typename T> void two(T x, T &a, T &b) { a = b = x; }";
        assert_eq!(of(two, 2, &[]).unwrap().inputs, 1);
        let refused = |source, outputs, scalars: &[Scalar], word: &str| {
            let error = of(source, outputs, scalars).err().unwrap();
            assert!(error.message.contains(word), "{error}");
        };
        refused(two, 2, &[scalar("x", 1.0)], "none is left");
        refused(two, 3, &[], "has 3 outputs");
        refused(axpy, 0, &[scalar("a", 1.0), scalar("b", 1.0), scalar("c", 1.0)], "none is left");
        refused(axpy, 0, &[scalar("a", 1.0), scalar("a", 2.0)], "'a' is given twice");
        for name in ["", "1a", "a b", "a-b", "ä", "a\n"] {
            refused(axpy, 0, &[scalar(name, 1.0)], &format!("called '{name}', which is no name"));
        }
        assert!(of(axpy, 0, &[scalar("_aB9", 1.0)]).is_ok());
        let marked = of("\u{feff}template <class T> T f(T x) { return x; }", 0, &[]).unwrap();
        assert_eq!((&*marked.name, &*marked.source), ("f", "template <class T> T f(T x) { return x; }"));
        refused(two, 9, &[], "1 to 8 outputs");
        refused("template <class T> T f(T a, T b, T c, T d, T e, T f, T g, T h, T i) { return a; }", 0, &[], "takes 9 tensors");
    }

    #[test]
    fn what_does_not_compile_leaves_nothing() {
        let table = Table::new();
        let wrong = || Err(Error::internal("on purpose"));
        assert!(table.get_or_try("a", wrong).is_err() && table.0.read().is_empty());
        // Another thread makes it while this one fails.
        let failing = table.get_or_try("a", || {
            table.0.write().insert("a", Arc::new(OnceCell::with_value(compiled::Function::Driver(7))));
            wrong()
        });
        assert!(failing.is_err());
        assert!(matches!(table.get_or_try("a", wrong), Ok(compiled::Function::Driver(7))));
    }

    #[test]
    fn what_is_named_replaces_the_default() {
        let id = create("template <class T> T f(T x, T a, T b) { return x; }", 0, &[scalar("a", 1.0), scalar("b", 2.0)]).unwrap();
        let function = numbered(id).unwrap();
        assert_eq!(function.values(&[]).unwrap()[..], [Value::Real(1.0), Value::Real(2.0)]);
        assert_eq!(function.values(&[scalar("b", 3.0)]).unwrap()[..], [Value::Real(1.0), Value::Real(3.0)]);
        let error = function.values(&[scalar("c", 3.0)]).unwrap_err();
        assert!(error.message.starts_with("c is not declared") && error.message.contains("a, b"), "{error}");
        let twice = function.values(&[scalar("b", 3.0), scalar("a", 1.0), scalar("b", 3.0)]).unwrap_err();
        assert!(twice.message.contains("'b' of 'f' is given twice"), "{twice}");
        destroy(id).unwrap();
        assert!(numbered(id).is_err() && destroy(id).is_err());
    }
}
