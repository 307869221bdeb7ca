//! The tests of collectives on other simulated machines: numbers of devices, who reaches whom, shuffled streams. Each in a process of its own.

use crate::tests;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

tests![
    numbers_of_devices: [Faults],
    without_access_to_peers: [Faults],
    shuffled_streams: [Faults],
    memory_that_is_filled_when_it_is_taken: [Faults],
    numbers_of_ranks: [Faults],
    shuffled_streams_of_ranks: [Faults],
];

fn passes(filter: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(filter).env("TCUDA_BACKEND", "sim").envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(" 0 failed"), "{variables:?}:\n{said}");
}

/// Two at a time: they compute long, and wait for nobody.
fn all_pass<const VARIABLES: usize>(machines: &[(&str, [(&str, &str); VARIABLES])]) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((filter, variables)) = machines.get(next.fetch_add(1, Relaxed)) {
            passes(filter, variables);
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
}

fn numbers_of_devices() {
    let machine = |filter, devices| (filter, [("TCUDA_SIM_DEVICES", devices), ("TCUDA_SIM_PEERS", "all")]);
    let machines = ["8", "3", "1"].map(|devices| [machine("comm.", devices), machine("comm_order.", devices)]);
    all_pass(machines.as_flattened());
}

fn without_access_to_peers() {
    let machine = |filter, devices, peers| (filter, [("TCUDA_SIM_DEVICES", devices), ("TCUDA_SIM_PEERS", peers)]);
    let machines = ["comm.", "comm_order."].map(|filter| [machine(filter, "4", "0-1,2-3,1-2"), machine(filter, "3", "none")]);
    all_pass(machines.as_flattened());
}

fn shuffled_streams() {
    let seeds = [("1", "3"), ("2", "4"), ("3", "2"), ("4", "3"), ("5", "4"), ("6", "2")];
    let filters = ["comm_order.", "comm.sums_of_every", "comm.pieces_come", "comm.broadcasts_of_many"];
    all_shuffled(&seeds, &filters);
}

fn all_shuffled(seeds: &[(&'static str, &'static str)], filters: &[&'static str]) {
    let of = |(seed, devices)| filters.iter().map(move |filter| (*filter, [("TCUDA_SIM_DEVICES", devices), ("TCUDA_SIM_SEED", seed)]));
    all_pass(&seeds.iter().copied().flat_map(of).collect::<Vec<_>>());
}

fn memory_that_is_filled_when_it_is_taken() {
    let of = |filter, devices, seed| (filter, [("TCUDA_MEMORY_POISON", "1"), ("TCUDA_SIM_DEVICES", devices), ("TCUDA_SIM_SEED", seed)]);
    all_pass(&[of("comm_order.", "2", "1"), of("comm_order.", "3", "2"), of("comm_order.", "4", "3"), of("graph_ends.", "2", "4")]);
}

fn numbers_of_ranks() {
    all_pass(&["1", "3", "8"].map(|devices| ("communicator", [("TCUDA_SIM_DEVICES", devices), ("TCUDA_SIM_PEERS", "none")])));
}

fn shuffled_streams_of_ranks() {
    let filters = ["communicator.every", "communicator.calls", "communicator.sends", "communicator.memory"];
    all_shuffled(&[("1", "3"), ("2", "3"), ("3", "3")], &filters);
}
