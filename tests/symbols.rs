//! The list of exported functions (tests/tcuda.symbols) is what the header declares and what the source defines, in both directions.
//! `TCUDA_BLESS=1 cargo test --test symbols` rewrites it. That the built library exports exactly this list is the suite `artefacts`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rust_files(folder: PathBuf, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            rust_files(entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
}

/// Names followed by `(` that start a declaration: `... tcuda_x(` outside comments and preprocessor lines.
fn declared(header: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut text = String::new();
    let mut rest = header;
    while let Some(start) = rest.find("/*") {
        text.push_str(&rest[..start]);
        rest = rest[start..].find("*/").map_or("", |end| &rest[start + end + 2..]);
    }
    text.push_str(rest);
    let code: String =
        text.lines().filter(|l| !l.trim_start().starts_with('#')).map(|l| l.split("//").next().unwrap()).collect::<Vec<_>>().join("\n");
    for statement in code.split([';', '{', '}']).filter(|s| !s.trim_start().starts_with("typedef")) {
        if let Some((before, _)) = statement.split_once('(') {
            let name: String = before.trim_end().chars().rev().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let name: String = name.chars().rev().collect();
            if name.starts_with("tcuda_") {
                names.insert(name);
            }
        }
    }
    names
}

/// Functions under `#[unsafe(no_mangle)]`.
fn defined() -> BTreeSet<String> {
    let mut files = Vec::new();
    rust_files(root().join("src"), &mut files);
    let mut names = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for piece in text.split("#[unsafe(no_mangle)]").skip(1) {
            let (_, after) = piece.split_once("fn ").unwrap_or_else(|| panic!("{}: no function after no_mangle", file.display()));
            names.insert(after.split(['(', '<']).next().unwrap().trim().to_string());
        }
    }
    names
}

fn committed() -> BTreeSet<String> {
    read("tests/tcuda.symbols").lines().map(str::to_string).collect()
}

#[test]
fn header_and_list_agree() {
    let header = declared(&read("include/tcuda.h"));
    if std::env::var_os("TCUDA_BLESS").is_some() {
        let text: String = header.iter().map(|name| format!("{name}\n")).collect();
        std::fs::write(root().join("tests/tcuda.symbols"), text).unwrap();
    }
    let list = committed();
    let missing: Vec<_> = header.difference(&list).collect();
    let extra: Vec<_> = list.difference(&header).collect();
    assert!(missing.is_empty() && extra.is_empty(), "not in tests/tcuda.symbols: {missing:?}; not in include/tcuda.h: {extra:?}");
}

#[test]
fn source_and_header_agree() {
    let (source, header) = (defined(), declared(&read("include/tcuda.h")));
    let undeclared: Vec<_> = source.difference(&header).collect();
    let undefined: Vec<_> = header.difference(&source).collect();
    assert!(
        undeclared.is_empty() && undefined.is_empty(),
        "exported but not in the header: {undeclared:?}; declared but not defined: {undefined:?}"
    );
}

#[test]
fn every_name_is_ours_and_the_list_is_sorted() {
    let text = read("tests/tcuda.symbols");
    let names: Vec<&str> = text.lines().collect();
    assert!(names.is_sorted(), "tests/tcuda.symbols is not sorted");
    let foreign: Vec<_> = defined().into_iter().filter(|name| !name.starts_with("tcuda_")).collect();
    assert!(foreign.is_empty(), "exported without the prefix tcuda_: {foreign:?}");
}

#[test]
fn the_parser_sees_what_a_header_can_hold() {
    let text = "/* tcuda_no(void); */ // tcuda_neither(void);\n#define tcuda_macro(x) x\n\
                typedef void (*tcuda_fn_t)(void *user_data);\ntypedef struct tcuda_s { int a; } tcuda_s;\n\
                extern \"C\" {\nconst char *tcuda_a(void);\ntcuda_status_t tcuda_b(int32_t *count,\n   tcuda_fn_t f);\n}\n";
    assert_eq!(declared(text).into_iter().collect::<Vec<_>>(), ["tcuda_a", "tcuda_b"]);
}
