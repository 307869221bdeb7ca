//! include/tcuda.h is made from the sources: cbindgen's declarations, the sections' texts, the version, the initial values.
//! `TCUDA_BLESS=1 cargo test --test header` writes it; without that it is compared.

use std::path::Path;
use tcuda::base::dlpack;
use tcuda::runtime::kernels::element::Element;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The files of capi that have functions, in the order of `mod.rs`.
fn sections() -> Vec<String> {
    let modules = read("src/capi/mod.rs");
    let names = modules.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    names.map(|name| read(&format!("src/capi/{name}.rs"))).filter(|source| functions(source).next().is_some()).collect()
}

/// The functions that a file exports.
fn functions(source: &str) -> impl Iterator<Item = &str> {
    source.split("#[unsafe(no_mangle)]\n").skip(1).filter_map(|item| {
        let after = item.split_once("extern \"C")?.1.split_once("\" fn ")?.1;
        Some(&after[..after.find(['(', '<'])?])
    })
}

/// The `//!` lines of a file as a comment: a title, then the section's contract.
fn banner(source: &str) -> String {
    let mut lines = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let title = lines.next().unwrap_or_default();
    assert!(!title.is_empty() && !title.ends_with('.'), "a section's file starts with its title: '{title}'");
    let text: String = lines.filter(|line| !line.is_empty()).map(|line| format!(" * {line}\n")).collect();
    format!("/* ==== {title} {}\n{text} */\n\n", "=".repeat(120 - title.len()))
}

fn version() -> String {
    let (major, minor, patch) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH"));
    format!(
        "/* The version of this header; tcuda_version() is that of the library. */\n\
         #define TCUDA_VERSION_MAJOR ({major})\n\
         #define TCUDA_VERSION_MINOR ({minor})\n\
         #define TCUDA_VERSION_PATCH ({patch})\n\
         #define TCUDA_VERSION_NUMBER (TCUDA_VERSION_MAJOR * 10000 + TCUDA_VERSION_MINOR * 100 + TCUDA_VERSION_PATCH)\n\
         #define TCUDA_VERSION_STRING \"{major}.{minor}.{patch}\""
    )
}

/// The places of tensors that tcuda knows.
fn places() -> String {
    let known = [("CPU", dlpack::CPU), ("CUDA", dlpack::CUDA), ("PINNED", dlpack::CUDA_HOST), ("MANAGED", dlpack::CUDA_MANAGED)];
    known.map(|(name, number)| format!("#define TCUDA_PLACE_{name} ({number})")).join("\n")
}

/// The element types that tcuda computes with.
fn dtypes() -> String {
    let macros = Element::all().map(|element| {
        let (name, dtype) = (element.name().to_uppercase(), element.dtype());
        format!("#define TCUDA_DTYPE_{name} TCUDA_DTYPE({}, {})", dtype.code, dtype.bits)
    });
    macros.collect::<Vec<_>>().join("\n")
}

/// The fields of a struct of the header: type, `*` for any pointer, and name, which has `[` where it is an array.
fn fields<'a>(header: &'a str, name: &str) -> Option<Vec<(&'a str, &'a str)>> {
    let body = header.split_once(&format!("typedef struct {name} {{\n"))?.1;
    let body = &body[..body.find("\n}")?];
    let lines = body.lines().map(str::trim).filter(|line| !line.starts_with(['/', '*']));
    Some(
        lines
            .filter_map(|line| {
                let line = line.strip_suffix(';')?;
                Some(line.rsplit_once('*').map_or_else(|| line.rsplit_once(' ').unwrap(), |(_, name)| ("*", name)))
            })
            .collect(),
    )
}

/// A braced initial value with every field named, and pointers apart from numbers: compilers warn otherwise.
fn initial_value(header: &str, name: &str) -> String {
    if name == "*" || header.contains(&format!(" *{name};")) {
        return String::from("NULL");
    }
    let Some(fields) = fields(header, name.trim_start_matches("struct ").trim()) else { return String::from("0") };
    let values = fields.into_iter().enumerate().map(|(at, (kind, field))| match (at, field) {
        (0, "struct_size") => format!("sizeof({name})"),
        (_, field) if field.contains('[') => format!("{{{}}}", initial_value(header, kind)),
        _ => initial_value(header, kind),
    });
    format!("{{{}}}", values.collect::<Vec<_>>().join(", "))
}

/// A macro for every struct that carries its size.
fn initial_values(header: &str) -> String {
    let names = header.split("typedef struct ").skip(1).filter_map(|item| item.split_once(" {").map(|(name, _)| name));
    let sized =
        names.filter(|name| fields(header, name).is_some_and(|fields| fields.first().is_some_and(|field| field.1 == "struct_size")));
    let macros = sized.map(|name| {
        let short = name.strip_suffix("_t").unwrap_or(name).to_uppercase();
        format!("#define {short}_INIT {}", initial_value(header, name))
    });
    macros.collect::<Vec<_>>().join("\n")
}

fn generate() -> String {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(root()).with_config(config).generate().unwrap();
    let mut bytes = Vec::new();
    bindings.write(&mut bytes);
    let header = String::from_utf8(bytes).unwrap();

    let header = header.replace("@VERSION@", &version()).replace("@PLACES@", &places()).replace("@DTYPES@", &dtypes());
    let header = header.replace("@INITIAL_VALUES@", &initial_values(&header));
    let (types, mut declarations) = header.split_once("extern \"C\" {").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    // The typedefs are there: C programs need not write the tag.
    for start in ["(", " "] {
        declarations = declarations.replace(&format!("{start}struct tcuda_"), &format!("{start}tcuda_"));
    }
    for source in sections() {
        let first = functions(&source).next().unwrap().to_owned();
        let declared = [" ", "*"].iter().filter_map(|before| declarations.find(&format!("{before}{first}("))).min().unwrap();
        let comment = declarations[..declared].rfind("/**").unwrap();
        declarations.insert_str(comment, &banner(&source));
    }
    let header = format!("{types}extern \"C\" {{{declarations}").replace(
        "#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L",
        "#if defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)",
    );
    let lines: Vec<&str> = header.lines().map(str::trim_end).collect();
    let mut header = lines.join("\n") + "\n";
    while header.contains("\n\n\n") {
        header = header.replace("\n\n\n", "\n\n");
    }
    header
}

/// Writes the file, or compares it with what is there.
fn check(path: &str, made: &str) {
    if std::env::var_os("TCUDA_BLESS").is_some() {
        let path = root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, made).unwrap();
    }
    let found = std::fs::read_to_string(root().join(path)).unwrap_or_default();
    let differs = made.lines().chain([""]).zip(found.lines().chain([""])).position(|(a, b)| a != b);
    if let Some(line) = differs {
        panic!(
            "{path} is not that of the sources, from line {} on. TCUDA_BLESS=1 cargo test --test header writes it.\n made: {:?}\nfound: {:?}",
            line + 1,
            made.lines().nth(line),
            found.lines().nth(line)
        );
    }
}

#[test]
fn the_header_is_that_of_the_sources() {
    check("include/tcuda.h", &generate());
}

#[test]
fn every_exported_function_has_a_section_and_a_text() {
    let header = generate();
    let lines: Vec<&str> = header.lines().collect();
    let mut count = 0;
    for source in sections() {
        for name in functions(&source) {
            let declares = |line: &&str| line.contains(&format!("{name}(")) && !line.starts_with([' ', '/', '#']);
            let at = lines.iter().position(declares).unwrap_or_else(|| panic!("{name} is not in the header"));
            assert!(lines[at - 1] == " */", "{name} has no text");
            assert!(name.starts_with("tcuda_"), "{name}");
            count += 1;
        }
    }
    assert!(count > 40, "{count} functions");
    let mut types = 0;
    for line in header.lines().filter(|line| line.starts_with("typedef ")) {
        // A function pointer's name stands in (*...), another's at the end; a struct's end is not on this line.
        let name = match (line.split_once("(*"), line.strip_suffix(" {")) {
            (Some((_, rest)), _) => rest.split(')').next(),
            (None, Some(start)) => start.split(' ').next_back(),
            (None, None) => line.trim_end_matches(';').split([' ', '*']).next_back(),
        };
        assert!(name.is_some_and(|name| name.starts_with("tcuda_")), "{line} got into the header");
        types += 1;
    }
    assert!(types > 8, "{types} types");
    assert!(!header.contains("# Safety"));
}

/// Each `@param` has one name, that of a parameter, in the order of the parameters: what documentation tools take.
#[test]
fn every_documented_parameter_is_one_of_its_function() {
    let header = generate();
    let mut count = 0;
    for item in header.split("/**\n").skip(1) {
        let (comment, declaration) = item.split_once("*/\n").unwrap();
        let Some((name, parameters)) = declaration.split_once(';').and_then(|(one, _)| one.split_once('(')) else { continue };
        let mut rest: Vec<&str> = parameters.split([' ', '*', ',', ')', '\n']).filter(|word| !word.is_empty()).collect();
        for documented in comment.split("@param ").skip(1).map(|text| text.split_whitespace().next().unwrap()) {
            let at = rest.iter().position(|word| *word == documented);
            let at = at.unwrap_or_else(|| panic!("{name}: '@param {documented}' is no parameter, or not in their order"));
            rest.drain(..=at);
            count += 1;
        }
    }
    assert!(count > 300, "{count} parameters");
}

#[test]
fn what_ends_a_handle_is_said_where_it_is_made() {
    let header = generate();
    let mut count = 0;
    for name in header.split("tcuda_status_t ").skip(1).filter_map(|item| item.split_once('(').map(|(name, _)| name)) {
        if name.ends_with("_destroy") {
            assert!(header.contains(&format!("; {name} ends")), "no function that makes one says that {name} ends it");
            count += 1;
        }
    }
    assert!(count > 10, "{count} functions");
}

/// What a call tells of a handle comes behind it; what it makes comes first.
#[test]
fn outputs_stand_behind_the_handle_that_a_call_is_of() {
    let header = generate();
    let mut count = 0;
    for item in header.split("tcuda_status_t tcuda_").skip(1) {
        let Some((name, parameters)) = item.split_once(';').and_then(|(one, _)| one.strip_suffix(')')?.split_once('(')) else { continue };
        let parameters: Vec<String> = parameters.split(',').map(|one| one.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let is_handle = |one: &String| {
            let kind = one.strip_prefix("tcuda_").and_then(|rest| rest.split_once("_t "));
            kind.is_some_and(|(kind, of)| !of.starts_with('*') && name.starts_with(kind) && header.contains(&format!("*tcuda_{kind}_t;")))
        };
        let Some(handle) = parameters.iter().position(is_handle) else { continue };
        let is_output = |one: &String| one.contains('*') && !one.starts_with("const ") && !one.starts_with("void ");
        for (at, output) in parameters.iter().enumerate().filter(|(_, one)| is_output(one)) {
            let makes = output.split(" *").next().is_some_and(|kind| kind.ends_with("_handle_t") || header.contains(&format!("*{kind};")));
            let in_order = if makes && name != "stream_native" && name != "stream_record_event" { at == 0 } else { at > handle };
            assert!(in_order || ["event_elapsed_time", "generator_philox_state"].contains(&name), "tcuda_{name}: {output}");
            count += 1;
        }
    }
    assert!(count > 30, "{count} outputs");
}
