//! Seeds side by side, each in a process of its own: options, seeds and the machine are read once in a process.

use crate::plan::Plant;
use std::ops::Range;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SEED: &str = "TCUDA_ATTACK_SEED";
const PLANT: &str = "TCUDA_ATTACK_PLANT";
/// What a process says whose attack went through.
pub const DONE: &str = "attacked";

/// The short form.
const SHORT: Range<u64> = 0..40;

/// What this process is to do, if it is a child.
pub fn given_seed() -> Option<(u64, Option<Plant>)> {
    let seed = std::env::var(SEED).ok()?.parse().expect(SEED);
    let plant = std::env::var(PLANT).ok().map(|name| Plant::named(&name).expect(PLANT));
    Some((seed, plant))
}

/// TCUDA_ATTACK_SEEDS as FIRST..END, or else the short form's.
pub fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("TCUDA_ATTACK_SEEDS") else { return SHORT };
    let number = |text: &str| text.parse::<u64>().ok();
    let range = text.split_once("..").and_then(|(first, end)| Some(number(first)?..number(end)?));
    range.expect("TCUDA_ATTACK_SEEDS is FIRST..END")
}

/// TCUDA_ATTACK_SECONDS: no seed begins later.
fn time() -> Duration {
    let seconds = std::env::var("TCUDA_ATTACK_SECONDS").ok().map(|text| text.parse().expect("TCUDA_ATTACK_SECONDS"));
    Duration::from_secs(seconds.unwrap_or(u64::MAX))
}

/// What the process of a seed said, if it failed.
fn failure(seed: u64, plant: Option<Plant>) -> Option<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "seeds", "--nocapture"]).env(SEED, seed.to_string());
    if let Some(plant) = plant {
        command.env(PLANT, format!("{plant:?}"));
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let went_through = output.status.success() && said.contains(DONE);
    (!went_through).then(|| format!("{}\n{said}", output.status))
}

/// Runs seeds, one a processor, until `is_enough` says so, which hears of each, in any order.
pub fn run(seeds: Range<u64>, plant: Option<Plant>, is_enough: impl Fn(u64, Option<String>) -> bool + Sync) {
    let (next, begun) = (AtomicU64::new(seeds.start), Instant::now());
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let ran = AtomicU64::new(0);
    let one_after_another = || {
        loop {
            let seed = next.fetch_add(1, SeqCst);
            if seed >= seeds.end || begun.elapsed() > time() {
                return;
            }
            ran.fetch_add(1, SeqCst);
            if is_enough(seed, failure(seed, plant)) {
                next.store(seeds.end, SeqCst);
            }
        }
    };
    std::thread::scope(|scope| (0..processors).for_each(|_| _ = scope.spawn(one_after_another)));
    println!("{} seeds from {} on", ran.load(SeqCst), seeds.start);
}

/// None may fail.
pub fn all_go_through(seeds: Range<u64>) {
    let failures = Mutex::new(Vec::new());
    run(seeds, None, |seed, failed| {
        let is_enough = failed.is_some();
        failures.lock().unwrap().extend(failed.map(|said| format!("seed {seed}: {said}")));
        is_enough
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A defect on purpose, which one of the short form's seeds has to find, by a failure with these words.
pub fn until_found(plant: Plant, words: &str) {
    let (is_found, others) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    run(SHORT, Some(plant), |seed, failed| {
        match failed {
            Some(said) if said.contains(words) => is_found.store(true, SeqCst),
            Some(said) => others.lock().unwrap().push(format!("seed {seed}: {said}")),
            None => {}
        }
        is_found.load(SeqCst)
    });
    assert!(is_found.load(SeqCst), "{plant:?} is not found by '{words}', but by:\n{}", others.lock().unwrap().join("\n"));
}
