//! Configuration: one table of every environment variable, read once, and what `tcuda_init` puts over it.

use super::{Error, Result};
use parking_lot::RwLock;

/// A variable of the environment that tcuda reads. docs/ENVIRONMENT.md has the same table; a test compares.
pub struct Variable {
    pub name: &'static str,
    pub default: &'static str,
    pub meaning: &'static str,
}

pub const VARIABLES: &[Variable] = &[
    Variable { name: "TCUDA_BACKEND", default: "cuda", meaning: "cuda, sim, or auto (cuda where there is a device, else sim)" },
    Variable { name: "TCUDA_CUDART_PATH", default: "", meaning: "the CUDA runtime library to load before any other" },
    Variable { name: "TCUDA_NVRTC_PATH", default: "", meaning: "CUDA's run-time compiler (libnvrtc) to load before any other" },
    Variable {
        name: "TCUDA_NVML_PATH",
        default: "",
        meaning: "the driver's library for monitors (libnvidia-ml) to load instead of any other",
    },
    Variable { name: "TCUDA_CUBLAS_PATH", default: "", meaning: "the cuBLAS library (libcublas) to load instead of any other" },
    Variable { name: "TCUDA_CUFFT_PATH", default: "", meaning: "the cuFFT library (libcufft) to load instead of any other" },
    Variable { name: "TCUDA_NCCL_PATH", default: "", meaning: "the library of communicators (libnccl) to load instead of any other" },
    Variable {
        name: "TCUDA_CXX",
        default: "",
        meaning: "the C++ compiler that stands for it on the simulated device; else c++, g++ or clang++",
    },
    Variable { name: "TCUDA_JIT_CACHE", default: "1", meaning: "0: functions that were compiled at run time are not kept in files" },
    Variable {
        name: "TCUDA_JIT_CACHE_PATH",
        default: "",
        meaning: "the folder of these files; else tcuda/kernels in XDG_CACHE_HOME, or in ~/.cache",
    },
    Variable { name: "TCUDA_ALLOC_CONF", default: "", meaning: "options of the caches of memory, as key:value,key:value" },
    Variable {
        name: "TCUDA_COMM_WAY",
        default: "",
        meaning: "for measurements: kernel, copies, both, ring or split where a collective of one process has that way",
    },
    Variable {
        name: "TCUDA_COMMUNICATOR_PORT",
        default: "",
        meaning: "the port of rank 0 for tcuda_communicator_init_from_env, where MASTER_PORT is taken",
    },
    Variable {
        name: "TCUDA_MEMORY_POISON",
        default: "0",
        meaning: "1: fills freed and new memory with patterns and reports writes after a free; slow, and an allocation that uses memory again waits for its stream",
    },
    Variable {
        name: "TCUDA_SYNC_DEBUG",
        default: "default",
        meaning: "what is done about calls that make the host wait: default (nothing), warn, or error (they fail)",
    },
    Variable { name: "TCUDA_SANITIZER", default: "0", meaning: "1: finds accesses that race and memory that is used after its free; slow" },
    Variable { name: "TCUDA_SIM_DEVICES", default: "2", meaning: "number of simulated devices, 1 to 64" },
    Variable {
        name: "TCUDA_SIM_MEMORY",
        default: "16GiB",
        meaning: "memory of each simulated device: bytes, or with KiB, MiB, GiB or TiB",
    },
    Variable {
        name: "TCUDA_SIM_SEED",
        default: "",
        meaning: "shuffles the progress of simulated streams; without it an idle stream completes at once",
    },
    Variable {
        name: "TCUDA_SIM_PEERS",
        default: "all",
        meaning: "which simulated devices reach each other: all, none, or pairs as 0-1,2-3",
    },
    Variable { name: "TCUDA_LOG", default: "warning", meaning: "what goes to stderr without a log callback: error, warning or info" },
    Variable {
        name: "TCUDA_RECORD_WORK",
        default: "0",
        meaning: "1: what streams are given is kept, so that the error of a lost device says what it may come from",
    },
    Variable {
        name: "TCUDA_NVTX",
        default: "0",
        meaning: "1: a tool that takes marks and ranges sees each call of tcuda, in the domain tcuda",
    },
    Variable {
        name: "NVTX_INJECTION64_PATH",
        default: "",
        meaning: "NVTX's own: the library of a tool that takes marks and ranges; the tool sets it",
    },
    Variable {
        name: "CUBLAS_WORKSPACE_CONFIG",
        default: "",
        meaning: "cuBLAS's own: the workspace of each handle, as :KiB:count:KiB:count; else as torch has it",
    },
    Variable { name: "CUDA_VISIBLE_DEVICES", default: "", meaning: "CUDA's own; the simulated device honours it too" },
    Variable { name: "CUDA_LAUNCH_BLOCKING", default: "0", meaning: "CUDA's own; the simulated device honours it too" },
];

static OVERRIDES: RwLock<Vec<(&'static str, String)>> = RwLock::new(Vec::new());

pub(super) fn is_locked() -> bool {
    OVERRIDES.is_locked()
}

/// The value in effect: what `tcuda_init` was given, else the environment's, else None. Empty counts as unset.
pub fn get(name: &str) -> Option<String> {
    debug_assert!(VARIABLES.iter().any(|v| v.name == name), "{name} is missing in VARIABLES");
    if let Some((_, value)) = OVERRIDES.read().iter().find(|(n, _)| *n == name) {
        return Some(value.clone());
    }
    beneath(name)
}

/// The value that is in effect with none put over the environment's.
pub fn beneath(name: &str) -> Option<String> {
    environment(name).filter(|v| !v.is_empty())
}

/// What is no UTF-8 is not as good as unset: whoever reads it finds that it is wrong.
fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Where a value in effect is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    Default,
    Environment,
    /// tcuda_init and other calls.
    Program,
}

/// The value in effect and where it is from.
pub fn in_effect(variable: &Variable) -> (String, Source) {
    if let Some((_, value)) = OVERRIDES.read().iter().find(|(name, _)| *name == variable.name) {
        return (value.clone(), Source::Program);
    }
    // Empty, this one hides every device.
    let counts = |value: &String| !value.is_empty() || variable.name == "CUDA_VISIBLE_DEVICES";
    match environment(variable.name).filter(counts) {
        Some(value) => (value, Source::Environment),
        None => (variable.default.into(), Source::Default),
    }
}

/// Puts a value over the environment's.
pub fn set(name: &'static str, value: String) {
    exchange(name, Some(value));
}

/// The same, None takes it away again; the answer is what lay over the environment's before.
pub fn exchange(name: &'static str, value: Option<String>) -> Option<String> {
    let mut overrides = OVERRIDES.write();
    let previous = overrides.iter().position(|(n, _)| *n == name).map(|at| overrides.swap_remove(at).1);
    overrides.extend(value.map(|value| (name, value)));
    previous
}

/// Undoes an `exchange` whose value was `ours`, unless somebody has put another one there.
pub fn put_back(name: &'static str, ours: Option<String>, before: Option<String>) {
    let mut overrides = OVERRIDES.write();
    let at = overrides.iter().position(|(n, _)| *n == name);
    if at.map(|at| &overrides[at].1) == ours.as_ref() {
        at.map(|at| overrides.swap_remove(at));
        overrides.extend(before.map(|before| (name, before)));
    }
}

/// Bytes: a number, or a number with KiB, MiB, GiB or TiB. GB and its like are taken for nothing, since they mean one thing to some and another
/// to others.
pub fn parse_bytes(name: &str, text: &str) -> Result<u64> {
    let bad = || {
        Error::invalid_argument(format!(
            "{name} is '{text}', which is no number of bytes. Write a whole number, alone or with KiB, MiB, GiB or TiB: 16GiB."
        ))
    };
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| bad())?;
    let shift = match text[digits..].trim() {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(bad()),
    };
    number.checked_mul(1 << shift).ok_or_else(bad)
}

/// A whole number in a range.
pub fn parse_number(name: &str, text: &str, least: u64, most: u64) -> Result<u64> {
    text.trim()
        .parse()
        .ok()
        .filter(|n| (least..=most).contains(n))
        .ok_or_else(|| Error::invalid_argument(format!("{name} is '{text}', which is not a whole number from {least} to {most}.")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes() {
        assert_eq!(parse_bytes("X", "16GiB").unwrap(), 16 << 30);
        assert_eq!(parse_bytes("X", "512").unwrap(), 512);
        assert_eq!(parse_bytes("X", "3 MiB").unwrap(), 3 << 20);
        for bad in ["", "GiB", "1.5GiB", "-1", "1XB", "12GB", "12gb", "12G", "1B", "99999999999GiB", "18446744073709551616"] {
            assert!(parse_bytes("X", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_set_lies_over_the_environment_until_it_is_taken_away() {
        let before = get("TCUDA_CUDART_PATH");
        let known = VARIABLES.iter().find(|variable| variable.name == "TCUDA_CUDART_PATH").unwrap();
        assert_ne!(in_effect(known).1, Source::Program);
        assert_eq!(exchange("TCUDA_CUDART_PATH", Some("a".into())), None);
        assert_eq!(in_effect(known), ("a".into(), Source::Program));
        assert_eq!(get("TCUDA_CUDART_PATH").as_deref(), Some("a"));
        assert_eq!(exchange("TCUDA_CUDART_PATH", Some("b".into())).as_deref(), Some("a"));
        assert_eq!(exchange("TCUDA_CUDART_PATH", None).as_deref(), Some("b"));
        assert_eq!(get("TCUDA_CUDART_PATH"), before);
    }

    #[test]
    fn numbers() {
        assert_eq!(parse_number("X", "64", 1, 64).unwrap(), 64);
        for bad in ["", "0", "65", "2abc", "-1"] {
            assert!(parse_number("X", bad, 1, 64).is_err(), "{bad}");
        }
    }
}
