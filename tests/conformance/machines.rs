//! The tests of collectives on other simulated machines: numbers of devices, who reaches whom, shuffled streams. Each in a process of its own.

use crate::tests;
use std::process::Command;

tests![
    numbers_of_devices: [Faults],
    without_access_to_peers: [Faults],
    shuffled_streams: [Faults],
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

fn numbers_of_devices() {
    for devices in ["1", "3", "8"] {
        passes("comm.", &[("TCUDA_SIM_DEVICES", devices)]);
    }
}

fn without_access_to_peers() {
    passes("comm.", &[("TCUDA_SIM_DEVICES", "3"), ("TCUDA_SIM_PEERS", "none")]);
    passes("comm.", &[("TCUDA_SIM_DEVICES", "4"), ("TCUDA_SIM_PEERS", "0-1,2-3,1-2")]);
}

fn shuffled_streams() {
    for seed in 1..=6 {
        let devices = ["2", "3", "4"][seed % 3];
        let seed = seed.to_string();
        for filter in ["comm.work_before", "comm.sums_of_every", "comm.pieces_come", "comm.broadcasts_of_many"] {
            passes(filter, &[("TCUDA_SIM_DEVICES", devices), ("TCUDA_SIM_SEED", &seed)]);
        }
    }
}

fn numbers_of_ranks() {
    for devices in ["1", "3", "8"] {
        passes("communicator.", &[("TCUDA_SIM_DEVICES", devices), ("TCUDA_SIM_PEERS", "none")]);
    }
}

fn shuffled_streams_of_ranks() {
    for seed in ["1", "2", "3"] {
        for filter in ["communicator.every", "communicator.calls", "communicator.sends", "communicator.memory"] {
            passes(filter, &[("TCUDA_SIM_DEVICES", "3"), ("TCUDA_SIM_SEED", seed)]);
        }
    }
}
