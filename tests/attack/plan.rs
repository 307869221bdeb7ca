//! What a seed means: the machine, the features of the attack, and each random choice in it.

use std::fmt;
use tcuda::base::config;

pub const MIB: usize = 1 << 20;

/// Choices in a row. Each step of each thread has a row of its own, so that what one step met (memory that had run out, a stream that was done)
/// changes no other step's choices.
pub struct Random(u64);

/// SplitMix64's finaliser.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    pub fn of(seed: u64, thread: usize, step: usize) -> Random {
        Random(mix(mix(mix(seed) ^ thread as u64) ^ step as u64))
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (mix(self.0) % limit as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, among: &[T]) -> Option<T> {
        if among.is_empty() { None } else { Some(among[self.below(among.len())].clone()) }
    }
}

/// What an attack has beside memory and streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// Memory pools, open and by name, which lend and do not split.
    Pools,
    /// Pools that are paused and resumed.
    Pauses,
    /// Captures, replays, graphs that share a pool.
    Graphs,
    /// Streams that end.
    Ends,
    /// Allocators of the program's own, below the caches and below pools.
    Plugins,
    /// Pinned memory, of the cache and of the program.
    Pinned,
    /// The default streams that are one thread's.
    PerThread,
    /// Limits that come and go, and devices with less memory.
    Limits,
    /// Options of the caches that change.
    Options,
    /// Calls of CUDA that fail.
    Faults,
    /// Blocks of hundreds of MiB.
    Large,
    /// The history is recorded.
    History,
    /// Freed memory is watched.
    Poison,
    /// The order of all accesses is watched.
    Sanitizer,
    /// It ends with a shutdown over all that there is.
    Shutdown,
}

use Feature::*;

/// Each with how many of a hundred seeds have it.
const FEATURES: [(Feature, usize); 15] = [
    (Pools, 60),
    (Pauses, 50),
    (Graphs, 50),
    (Ends, 50),
    (Plugins, 30),
    (Pinned, 50),
    (PerThread, 30),
    (Limits, 40),
    (Options, 25),
    (Faults, 20),
    (Large, 40),
    (History, 20),
    (Poison, 15),
    (Sanitizer, 20),
    (Shutdown, 20),
];

/// Those that many seeds have together.
const CROWD: [Feature; 6] = [Pools, Pauses, Graphs, Ends, Plugins, Limits];

/// A defect on purpose: the attack has to find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// The device says of all work that it is done, so that memory goes to another stream too early.
    Done,
    /// The program does not say which streams use a block.
    Unrecorded,
    /// It does not say which streams use pinned memory.
    Unnoted,
    /// Streams do not wait for each other.
    Unordered,
    /// A block of the program is freed behind its back, so that its memory is handed out again.
    Freed,
    /// A block is forgotten.
    Lost,
}

pub const PLANTS: [Plant; 6] = [Plant::Done, Plant::Unrecorded, Plant::Unnoted, Plant::Unordered, Plant::Freed, Plant::Lost];

impl Plant {
    pub fn named(name: &str) -> Option<Plant> {
        PLANTS.into_iter().find(|plant| format!("{plant:?}") == name)
    }
}

pub struct Plan {
    pub seed: u64,
    pub features: Vec<Feature>,
    pub threads: usize,
    pub devices: usize,
    /// Of each device.
    pub memory: usize,
    /// Of each thread, between two rests.
    pub steps: usize,
    pub rests: usize,
    /// TCUDA_ALLOC_CONF at the start.
    pub options: &'static str,
    peers: &'static str,
    pub plant: Option<Plant>,
}

impl Plan {
    pub fn of(seed: u64, plant: Option<Plant>) -> Plan {
        let mut random = Random::of(seed, usize::MAX, 0);
        let mut features = Vec::new();
        // What goes wrong between many features does where there is little memory.
        let crowded = random.chance(35);
        for (feature, percent) in FEATURES {
            let percent = if crowded && CROWD.contains(&feature) { 85 } else { percent };
            if random.chance(percent) {
                features.push(feature);
            }
        }
        // Each of their bytes is looked at.
        if features.contains(&Poison) {
            features.retain(|feature| *feature != Large);
        }
        let (scarce, long) = (crowded || random.chance(70), random.chance(30));
        let most_steps = match () {
            // Whose allocations wait.
            _ if features.contains(&Poison) => 100,
            _ if long => 600,
            _ => 150,
        };
        Plan {
            seed,
            threads: if random.chance(60) { 1 } else { 2 + random.below(3) },
            devices: if random.chance(70) { 1 } else { 2 },
            memory: if scarce { (96 + random.below(if crowded { 200 } else { 700 })) * MIB } else { 4096 * MIB },
            steps: 40 + random.below(most_steps),
            rests: 1 + random.below(4),
            options: random.pick(&["", "", "", "", "expandable_segments:False", "backend:cudaMallocAsync"]).unwrap(),
            peers: random.pick(&["all", "none"]).unwrap(),
            features,
            plant,
        }
    }

    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    /// Before the first call.
    pub fn set_up(&self) {
        config::set("TCUDA_BACKEND", "sim".into());
        config::set("TCUDA_SIM_SEED", (self.seed + 1).to_string());
        config::set("TCUDA_SIM_DEVICES", self.devices.to_string());
        config::set("TCUDA_SIM_MEMORY", self.memory.to_string());
        config::set("TCUDA_SIM_PEERS", self.peers.into());
        config::set("TCUDA_ALLOC_CONF", self.options.into());
        config::set("TCUDA_MEMORY_POISON", u8::from(self.has(Poison)).to_string());
        config::set("TCUDA_SANITIZER", u8::from(self.has(Sanitizer)).to_string());
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        let Plan { seed, features, threads, devices, memory, steps, rests, options, peers, plant } = self;
        write!(
            to,
            "seed {seed}: {threads} threads, {devices} devices of {} MiB, peers {peers}, {steps} steps, {rests} rests",
            memory / MIB
        )?;
        write!(to, ", options '{options}', {features:?}{}", plant.map_or(String::new(), |plant| format!(", planted: {plant:?}")))
    }
}
