//! The conformance suite: one set of tests through the C interface, for the simulated device and for a real one.
//!
//!     cargo test --test conformance                          whatever is there (TCUDA_BACKEND, else auto)
//!     cargo test --test conformance -- stream.               the tests whose names hold this
//!     conformance --backend-required cuda                    fails unless this is the backend
//!
//!     TCUDA_SANITIZER=1 cargo test --test conformance        a report of the stream sanitizer fails the test that it is of
//!
//! names.txt beside this file lists every test with the capabilities it needs. A test that is not in the list, or listed and not there, is
//! a failure; a test runs unless the backend lacks a capability that the list names for it.

mod backend;
mod capture_rules;
mod comm;
mod comm_order;
mod communicator;
mod communicator_ends;
mod complex;
mod copy;
mod device;
mod error;
mod event;
mod fault;
mod fault_memory;
mod generators;
mod graph;
mod graph_ends;
mod graph_events;
mod graph_random;
mod graphed;
mod green;
mod hurry;
mod init;
mod ipc;
mod ipc_faults;
mod ipc_other;
mod ipc_peers;
mod ipc_raw;
mod ipc_watched;
mod jit;
mod jit_kit;
mod kernels;
mod kit;
mod libs;
mod memory;
mod nvtx;
mod order;
mod pauses;
mod philox;
mod pinned;
mod plugin;
mod poison;
mod pools;
mod pressure;
mod random;
mod ranks;
mod reference;
mod snapshot;
mod statistics;
mod stream;
mod telemetry;
mod tensor;
mod watch;
mod watch_ends;

use kit::{Capability, Test};
use std::process::ExitCode;

/// The tests, by file.
const GROUPS: &[(&str, &[Test])] = &[
    ("error", error::TESTS),
    ("init", init::TESTS),
    ("device", device::TESTS),
    ("stream", stream::TESTS),
    ("event", event::TESTS),
    ("green", green::TESTS),
    ("memory", memory::TESTS),
    ("order", order::TESTS),
    ("statistics", statistics::TESTS),
    ("pressure", pressure::TESTS),
    ("pools", pools::TESTS),
    ("pauses", pauses::TESTS),
    ("plugin", plugin::TESTS),
    ("backend", backend::TESTS),
    ("snapshot", snapshot::TESTS),
    ("poison", poison::TESTS),
    ("pinned", pinned::TESTS),
    ("copy", copy::TESTS),
    ("tensor", tensor::TESTS),
    ("generators", generators::TESTS),
    ("graph", graph::TESTS),
    ("graph_ends", graph_ends::TESTS),
    ("graph_events", graph_events::TESTS),
    ("capture_rules", capture_rules::TESTS),
    ("hurry", hurry::TESTS),
    ("graph_random", graph_random::TESTS),
    ("graphed", graphed::TESTS),
    ("jit", jit::TESTS),
    ("kernels", kernels::TESTS),
    ("complex", complex::TESTS),
    ("comm", comm::TESTS),
    ("comm_order", comm_order::TESTS),
    ("communicator", communicator::TESTS),
    ("communicator_ends", communicator_ends::TESTS),
    ("random", random::TESTS),
    ("philox", philox::TESTS),
    ("ipc", ipc::TESTS),
    ("ipc_peers", ipc_peers::TESTS),
    ("ipc_watched", ipc_watched::TESTS),
    ("ipc_faults", ipc_faults::TESTS),
    ("telemetry", telemetry::TESTS),
    ("nvtx", nvtx::TESTS),
    ("libs", libs::TESTS),
    ("watch", watch::TESTS),
    ("watch_ends", watch_ends::TESTS),
    ("fault", fault::TESTS),
    ("fault_memory", fault_memory::TESTS),
];

struct Arguments {
    /// Parts of names; with none, all tests.
    filters: Vec<String>,
    required: Option<String>,
    child: Option<String>,
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments { filters: Vec::new(), required: None, child: None };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--backend-required" => found.required = Some(value()?),
            "--child" => found.child = Some(value()?),
            // What cargo test hands to every test binary.
            "--nocapture" | "-q" | "--quiet" | "--show-output" => {}
            "--test-threads" => drop(value()?),
            other if other.starts_with('-') => return Err(format!("{other} is not known")),
            filter => found.filters.push(filter.to_owned()),
        }
    }
    Ok(found)
}

/// The tests of names.txt and of the code are the same, in the same order, with the same needs. TCUDA_BLESS=1 writes the list.
fn compare_with_list() -> Result<(), String> {
    const HEAD: &str = "# Every test and the capabilities it needs. `TCUDA_BLESS=1 cargo test --test conformance` writes this list.\n";
    let line = |(name, test): (String, &Test)| test.needs.iter().fold(name, |line, need| line + " " + need.name());
    let there: Vec<String> = all().map(line).collect();
    if std::env::var_os("TCUDA_BLESS").is_some() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/names.txt");
        return std::fs::write(path, format!("{HEAD}{}\n", there.join("\n"))).map_err(|error| error.to_string());
    }
    let listed: Vec<&str> = include_str!("names.txt").lines().filter(|line| !line.starts_with('#')).collect();
    if listed == there {
        return Ok(());
    }
    let missing: Vec<_> = listed.iter().filter(|line| !there.iter().any(|name| name == *line)).collect();
    let unlisted: Vec<_> = there.iter().filter(|name| !listed.contains(&name.as_str())).collect();
    Err(format!("names.txt is not the list of the tests. Listed and not there: {missing:?}. There and not listed: {unlisted:?}."))
}

fn all() -> impl Iterator<Item = (String, &'static Test)> {
    GROUPS.iter().flat_map(|(group, tests)| tests.iter().map(move |test| (format!("{group}.{}", test.name), test)))
}

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("conformance: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<usize, String> {
    let arguments = arguments()?;
    if let Some(scene) = arguments.child {
        init::child(&scene);
        return Ok(0);
    }
    compare_with_list()?;
    let backend = kit::start()?;
    println!("{}", kit::reason());
    if let Some(required) = arguments.required.filter(|required| *required != backend) {
        return Err(format!("the backend is {backend}, {required} is required"));
    }
    let filters = &arguments.filters;
    let chosen: Vec<_> = all().filter(|(name, _)| filters.is_empty() || filters.iter().any(|filter| name.contains(filter))).collect();
    let (mut passed, mut absent, mut failed) = (0, 0, 0);
    for (name, test) in chosen {
        if let Some(need) = test.needs.iter().find(|need| !need.is_there()) {
            println!("{name}: absent, this backend has no {}", Capability::name(*need));
            absent += 1;
            continue;
        }
        // What ends or holds up a process on a machine that is lent for minutes has a name so.
        if backend == "cuda" {
            println!("{name}");
        }
        // A thread of its own: current device, current streams and last error start afresh.
        match std::thread::Builder::new().name(name.clone()).spawn(test.run).map(|thread| thread.join()) {
            Ok(Ok(())) if kit::reported(&name) => passed += 1,
            _ => {
                println!("{name}: FAILED");
                failed += 1;
            }
        }
    }
    println!("conformance ({backend}): {passed} passed, {absent} absent by capability, {failed} failed");
    if passed + failed == 0 {
        return Err(format!("no test has {} in its name", arguments.filters.join(" or ")));
    }
    Ok(failed)
}
