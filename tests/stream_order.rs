//! Memory between streams, on the simulated device with the progress of its streams shuffled: one stream produces, another consumes, the
//! block is freed at once, and a third takes memory meanwhile. What the consumer read must be what was produced, for every seed; and
//! where the program forgets to say that the consumer uses the block, some seeds must show it, else this test could not fail.

use std::process::Command;
use tcuda::base::config;
use tcuda::event;
use tcuda::memory;
use tcuda::runtime::{self, Address};
use tcuda::stream::{self, Stream};

const SEEDS: u64 = 50;
const ROUNDS: usize = 40;
const SIZE: usize = 4096;
const MODE: &str = "TCUDA_STREAM_ORDER_MODE";

/// How the program says that the consumer uses the block.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Record,
    FreeOn,
    Forgotten,
}

const WAYS: [(&str, Way); 3] = [("record", Way::Record), ("free_on", Way::FreeOn), ("forgotten", Way::Forgotten)];

fn fill(block: Address, value: i32, stream: Stream) {
    let entered = stream.enter().unwrap();
    entered.runtime.memset_async(block, value, SIZE, entered.raw).unwrap();
}

/// How many rounds read something else than what was produced.
fn wrong_rounds(way: Way) -> usize {
    let [producer, consumer, third] = [(); 3].map(|()| stream::create(0, 0).unwrap());
    let results = memory::allocate(ROUNDS * SIZE, 1, consumer).unwrap();
    let mut taken = Vec::new();
    for round in 0..ROUNDS {
        let block = memory::allocate(SIZE, 1, producer).unwrap();
        fill(block, round as i32 + 1, producer);
        event::wait_stream(consumer, producer).unwrap();
        // The table itself: tcuda's own copies would note the use.
        let entered = consumer.enter().unwrap();
        entered.runtime.memcpy_async(results + round * SIZE, block, SIZE, entered.raw).unwrap();
        drop(entered);
        match way {
            Way::Record => memory::record_stream(block, consumer).and_then(|()| memory::free(block)).unwrap(),
            Way::FreeOn => memory::free_on(block, consumer).unwrap(),
            Way::Forgotten => memory::free(block).unwrap(),
        }
        let other = memory::allocate(SIZE, 1, third).unwrap();
        fill(other, 0xee, third);
        taken.push(other);
        if round % 4 == 3 {
            taken.drain(..).for_each(|block| memory::free(block).unwrap());
        }
    }
    consumer.synchronize().unwrap();
    let mut found = vec![0u8; ROUNDS * SIZE];
    runtime::runtime().unwrap().memcpy(found.as_mut_ptr() as Address, results, found.len()).unwrap();
    memory::free(results).unwrap();
    memory::check(0);
    found.chunks(SIZE).enumerate().filter(|(round, bytes)| bytes.iter().any(|byte| *byte != *round as u8 + 1)).count()
}

/// A seed is of a whole process.
fn in_process(test: &str, way: &str, seed: u64, options: &str) -> usize {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(MODE, way);
    command.env("TCUDA_SIM_SEED", seed.to_string()).env("TCUDA_ALLOC_CONF", options);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let wrong = said.lines().find_map(|line| line.rsplit_once("wrong rounds: ")?.1.trim().parse().ok());
    wrong.unwrap_or_else(|| panic!("seed {seed}, {way}: {said}"))
}

/// True in a child, whose work is done then.
fn is_child() -> bool {
    let Ok(mode) = std::env::var(MODE) else { return false };
    config::set("TCUDA_BACKEND", "sim".into());
    let (_, way) = WAYS.into_iter().find(|(name, _)| *name == mode).unwrap();
    println!("\nwrong rounds: {}", wrong_rounds(way));
    true
}

#[test]
fn what_is_recorded_is_never_overwritten() {
    if is_child() {
        return;
    }
    for seed in 1..=SEEDS {
        for way in ["record", "free_on"] {
            let options = if seed % 5 == 0 { "expandable_segments:False" } else { "" };
            assert_eq!(in_process("what_is_recorded_is_never_overwritten", way, seed, options), 0, "seed {seed}, {way}");
        }
    }
}

#[test]
fn what_is_not_recorded_shows() {
    if is_child() {
        return;
    }
    let shown = (1..=SEEDS).filter(|seed| in_process("what_is_not_recorded_shows", "forgotten", *seed, "") > 0).count();
    assert!(shown >= 5, "only {shown} of {SEEDS} seeds show that the order was ignored");
}
