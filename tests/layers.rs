//! Who may import whom, where `unsafe` may stand, and that every room says what it is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The rooms from the bottom to the top. A room uses only rooms of the lines above its own.
const LAYERS: &[&[&str]] = &[
    &["base"],
    &["runtime"],
    &["device"],
    &["stream"],
    &["event"],
    &["memory"],
    &["copy"],
    &["tensor"],
    &["random", "jit", "comm", "communicator", "ipc", "telemetry", "nvtx", "libs", "sanitizer"],
    &["graph"],
    &["capi"],
];

/// Where `unsafe` may stand: whole rooms, and single files with the reason.
const UNSAFE_ROOMS: &[&str] = &["capi", "runtime"];
const UNSAFE_FILES: &[&str] = &[
    "base/process.rs",         // pthread_atfork, membarrier
    "base/dlpack.rs",          // the type of a deleter
    "base/entropy.rs",         // getrandom
    "base/spared.rs",          // pthread_setcancelstate, signals
    "nvtx/stream.rs",          // host functions
    "ipc/socket.rs",           // sockets, and files that travel along
    "memory/history/clock.rs", // the processor's counter
    "memory/lookup.rs",        // tables read without a lock
    "memory/totals/shard.rs",  // counters that one thread writes
    "memory/sync/model.rs",    // in unit tests only
    "memory/cache/model.rs",
    "memory/cache/block.rs",
    "memory/cache/core.rs", // homes, under the device's lock
    "memory/cache/front.rs",
    "memory/cache/home.rs",
    "memory/cache/tls.rs",
];

const HEADINGS: &[&str] = &["# ", "Owns:", "Uses:", "Never:", "Locks:", "Tests:"];

struct Source {
    /// Below src/, with `/`.
    name: String,
    text: String,
    /// The text without comments and without what stands in string literals.
    code: String,
}

impl Source {
    /// The room, or None for lib.rs.
    fn room(&self) -> Option<&str> {
        self.name.split_once('/').map(|(room, _)| room)
    }

    /// How deep the file's module lies below the crate: runtime/mod.rs 1, runtime/sim/mod.rs and runtime/api.rs 2.
    fn depth(&self) -> usize {
        let parts = self.name.split('/').count();
        if self.name.ends_with("/mod.rs") { parts - 1 } else { parts }
    }
}

fn sources() -> Vec<Source> {
    fn walk(folder: &Path, base: &Path, found: &mut Vec<Source>) {
        let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                walk(&path, base, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = bare(&text);
                found.push(Source { name: path.strip_prefix(base).unwrap().to_str().unwrap().replace('\\', "/"), text, code });
            }
        }
    }
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&base, &base, &mut found);
    assert!(found.len() > 10, "only {} source files found", found.len());
    found
}

/// Takes comments and the contents of string and character literals out of Rust source; lines stay where they are.
fn bare(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let mut comment = 0;
    while at < bytes.len() {
        let two = &bytes[at..bytes.len().min(at + 2)];
        if comment > 0 {
            match two {
                b"*/" => (comment, at) = (comment - 1, at + 2),
                b"/*" => (comment, at) = (comment + 1, at + 2),
                _ => {
                    if bytes[at] == b'\n' {
                        out.push('\n');
                    }
                    at += 1;
                }
            }
            continue;
        }
        match bytes[at] {
            b'/' if two == b"//" => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
            }
            b'/' if two == b"/*" => (comment, at) = (1, at + 2),
            b'"' => {
                let hashes = bytes[..at].iter().rev().take_while(|b| **b == b'#').count();
                let raw = hashes < at && bytes[at - hashes - 1] == b'r';
                out.push('"');
                at += 1;
                while at < bytes.len() {
                    match bytes[at] {
                        b'\\' if !raw => at += 1,
                        b'"' if !raw || bytes[at + 1..].iter().take_while(|b| **b == b'#').count() >= hashes => break,
                        b'\n' => out.push('\n'),
                        _ => {}
                    }
                    at += 1;
                }
                out.push('"');
                at += 1;
            }
            // A character literal; a lifetime has no closing quote this near.
            b'\'' if bytes.get(at + 1) == Some(&b'\\') => {
                at += 3;
                while at < bytes.len() && bytes[at] != b'\'' {
                    at += 1;
                }
                at += 1;
            }
            b'\'' if bytes.get(at + 2) == Some(&b'\'') => at += 3,
            byte => {
                if byte.is_ascii() {
                    out.push(byte as char);
                }
                at += 1;
            }
        }
    }
    out
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !is_name(c)).filter(|word| !word.is_empty())
}

/// The first names of the paths that follow: `a::b` gives a, `{a::b, c::{d, e}}` gives a and c.
fn heads(after: &str) -> Vec<String> {
    let after = after.trim_start();
    if !after.starts_with('{') {
        return vec![after.chars().take_while(|c| is_name(*c)).collect()];
    }
    let (mut depth, mut names, mut name, mut fresh) = (0, Vec::new(), String::new(), true);
    for c in after.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if depth == 1 && fresh && is_name(c) => name.push(c),
            _ => {}
        }
        if depth == 1 && c == ':' {
            fresh = false;
        }
        if (depth == 1 && c == ',') || depth == 0 {
            names.push(std::mem::take(&mut name));
            fresh = true;
        }
        if depth == 0 {
            break;
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// The rooms that a file names, by `crate::room` or by enough `super::`.
fn imports(source: &Source) -> BTreeSet<String> {
    let rooms: Vec<&str> = LAYERS.iter().flat_map(|layer| layer.iter().copied()).collect();
    let mut found = BTreeSet::new();
    for piece in source.code.split("crate::").skip(1) {
        found.extend(heads(piece));
    }
    let up = "super::".repeat(source.depth());
    for (at, _) in source.code.match_indices(&up) {
        let after = source.code[at + up.len()..].trim_start_matches("super::");
        found.extend(heads(after));
    }
    found.retain(|name| rooms.contains(&name.as_str()));
    found
}

fn level(room: &str) -> usize {
    LAYERS.iter().position(|layer| layer.contains(&room)).unwrap_or_else(|| panic!("the room {room} has no place in tests/layers.rs"))
}

#[test]
fn a_room_uses_only_rooms_below_it() {
    let mut wrong = Vec::new();
    for source in &sources() {
        let Some(room) = source.room() else { continue };
        for used in imports(source) {
            if used != room && level(&used) >= level(room) {
                wrong.push(format!("src/{} uses {used}, which is not below {room}", source.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_two_backends_do_not_know_each_other() {
    for source in &sources() {
        let other = match source.name.get(..12) {
            Some("runtime/cuda") => "sim",
            Some("runtime/sim/") => "cuda",
            _ => continue,
        };
        for path in [format!("runtime::{other}::"), format!("super::{other}::"), format!("runtime::{other};")] {
            assert!(!source.code.contains(&path), "src/{} names {path}", source.name);
        }
    }
}

#[test]
fn every_room_opens_with_six_lines() {
    for room in LAYERS.iter().flat_map(|layer| layer.iter()) {
        let name = format!("{room}/mod.rs");
        let sources = sources();
        let source = sources.iter().find(|source| source.name == name).unwrap_or_else(|| panic!("src/{name} is missing"));
        let mut lines = source.text.lines();
        for heading in HEADINGS {
            // A heading's text may run over several lines, indented.
            let line = lines.by_ref().find(|line| !line.starts_with("//!  ")).unwrap_or_default();
            let text = line.strip_prefix("//! ").unwrap_or_default();
            assert!(text.starts_with(heading) && text.len() > heading.len(), "src/{name}: expected '//! {heading} ...', found '{line}'");
        }
    }
}

#[test]
fn the_line_uses_names_what_is_used() {
    let sources = sources();
    let mut wrong = Vec::new();
    for room in LAYERS.iter().flat_map(|layer| layer.iter()) {
        let head = &sources.iter().find(|source| source.name == format!("{room}/mod.rs")).unwrap().text;
        let start = head.find("//! Uses:").unwrap_or(head.len());
        let end = head.find("//! Never:").unwrap_or(head.len());
        let listed: BTreeSet<&str> = words(&head[start.min(end)..end]).collect();
        for source in sources.iter().filter(|source| source.room() == Some(room)) {
            for used in imports(source).iter().filter(|used| used.as_str() != *room && !listed.contains(used.as_str())) {
                wrong.push(format!("src/{} uses {used}, which the line 'Uses:' of src/{room}/mod.rs does not name", source.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_stands_only_where_it_may() {
    for source in &sources() {
        let free = source.room().is_some_and(|room| UNSAFE_ROOMS.contains(&room)) || UNSAFE_FILES.contains(&source.name.as_str());
        assert!(free || !words(&source.code).any(|word| word == "unsafe"), "src/{} has unsafe code and is not on the list", source.name);
    }
    for file in UNSAFE_FILES {
        let needed = sources().iter().any(|source| source.name == *file && words(&source.code).any(|word| word == "unsafe"));
        assert!(needed, "src/{file} is on the list of files with unsafe code and has none");
    }
}

#[test]
fn no_marks_of_unfinished_work_and_no_giant_file() {
    for source in &sources() {
        for mark in ["todo!(", "unimplemented!(", "dbg!("] {
            assert!(!source.code.contains(mark), "src/{} has {mark})", source.name);
        }
        for mark in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")] {
            assert!(!words(&source.text).any(|word| word == mark), "src/{} has {mark}", source.name);
        }
        let lines = source.text.lines().count();
        assert!(lines <= 900, "src/{} has {lines} lines; 900 is the most", source.name);
    }
}

/// Calls of CUDA that do not make the host wait, though their names are like those of calls that do.
const NO_WAIT: &[(&str, &str)] = &[
    ("cudaMallocAsync", "ordered by its stream"),
    ("cudaFreeAsync", "ordered by its stream"),
    ("cudaMemcpyAsync", "of pageable memory only, which the room of copies knows"),
    ("cudaMemcpyPeerAsync", "between devices"),
    ("cudaMemcpy2DAsync", "between memory of devices"),
    ("cudaMemset", "not called"),
    ("cudaMemsetAsync", "ordered by its stream"),
    ("cuMemAddressFree", "addresses only"),
];

/// A new function of the table that may wait is wrapped where it is called, or stands above with the reason why not.
#[test]
fn every_call_that_may_wait_is_watched() {
    let sources = sources();
    let text = |name: &str| &sources.iter().find(|source| source.name == name).unwrap().text;
    let (table, calls) = (text("runtime/table.rs"), text("runtime/api.rs"));
    let slots: BTreeSet<&str> =
        table.lines().filter_map(|line| line.trim().split_once('(')).map(|(name, _)| name).filter(|name| name.starts_with("cu")).collect();
    let waits = |name: &&str| {
        let like = ["Synchronize", "Malloc", "Free", "HostAlloc", "HostRegister", "HostUnregister", "TrimTo", "ModuleLoad", "ModuleUnload"];
        like.iter().any(|part| name.contains(part)) || name.starts_with("cudaMemcpy") || name.starts_with("cudaMemset")
    };
    let found: BTreeSet<&str> = slots.into_iter().filter(waits).collect();
    assert!(found.len() > 15, "{found:?}");
    for name in &found {
        let watched = calls.contains(&format!("blocking(\"{name}\""));
        let exempt = NO_WAIT.iter().any(|known| known.0 == *name);
        assert!(watched != exempt, "{name}: src/runtime/api.rs wraps it in `blocking`, or NO_WAIT says why not");
    }
    assert!(NO_WAIT.iter().all(|known| found.contains(known.0)));
}

#[test]
fn the_reader_of_sources_can_fail() {
    let code = bare(
        "use crate::capi; // crate::tensor\nlet s = \"crate::copy \\\" unsafe\"; /* crate::event */ let c = '\"'; r#\"crate::x\"#; 'a",
    );
    assert_eq!(code, "use crate::capi; \nlet s = \"\";  let c = ; r#\"\"#; 'a");
    let source = |name: &str, code: &str| Source { name: name.into(), text: String::new(), code: code.into() };
    assert_eq!(
        imports(&source("base/x.rs", "use crate::{capi::y, memory, tensor::{copy, z}};")).into_iter().collect::<Vec<_>>(),
        ["capi", "memory", "tensor"]
    );
    assert_eq!(imports(&source("base/x.rs", "super::super::stream::f()")).into_iter().collect::<Vec<_>>(), ["stream"]);
    assert_eq!(imports(&source("base/mod.rs", "super::stream::f()")).into_iter().collect::<Vec<_>>(), ["stream"]);
    assert!(imports(&source("base/x.rs", "super::stream::f()")).is_empty());
}
