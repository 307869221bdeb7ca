//! Each call of the backend fails once, in turn, during the replay of a whole recorded run on two streams, with little memory, so that
//! every rung of the ladder is climbed: whatever fails, no block is lost, nothing leaks, the statistics are right afterwards, and the next
//! replay works. All calls of the whole recording take long, so TCUDA_FAULT_TRACE=all asks for them (`make test-long`); without it every
//! few calls of its beginning, others for each code.

mod trace;

use std::collections::HashSet;
use std::process::Command;
use tcuda::base::{Status, config};
use tcuda::memory::{self, stats::FAMILIES, stats::Family};
use tcuda::runtime::{self, sim};
use tcuda::stream::{self, Stream};
use trace::Event;

const KIB: usize = 1 << 10;
/// CUDA's invalid value, out of memory, not supported.
const CODES: [i32; 3] = [1, 2, 801];
/// Sizes are this much smaller than recorded.
const SMALLER: usize = 32;
/// What the device says that it has; what can be had is less.
const MEMORY: usize = 8 << 30;
const MODE: &str = "TCUDA_FAULT_TRACE_MODE";

/// The beginning of a run, smaller. The blocks that live at its end are freed behind it, the youngest first.
fn beginning(name: &str, most: usize) -> Vec<Event> {
    let mut events = trace::recorded(name, most);
    events.iter_mut().for_each(|event| event.size = event.size.div_ceil(SMALLER));
    let freed: HashSet<usize> = events.iter().filter(|event| event.free).map(|event| event.block).collect();
    let left: Vec<Event> = events.iter().copied().filter(|event| !freed.contains(&event.block)).collect();
    events.extend(left.into_iter().rev().map(|event| Event { free: true, ..event }));
    events
}

fn peak(events: &[Event]) -> usize {
    let (mut held, mut most) = (0, 0);
    for event in events {
        held = if event.free { held - event.size } else { held + event.size };
        most = most.max(held);
    }
    most
}

struct Failure {
    status: Status,
    native: i32,
    text: String,
}

/// The run, as far as it goes: an allocation that fails leaves its block out. Every so often a stream is busy for a while, uses a block
/// of the other one, the cache is emptied, or a stream ends and another one takes its place.
fn replay(events: &[Event], blocks: usize) -> Vec<Failure> {
    let mut failures = Vec::new();
    let mut streams: Vec<Option<Stream>> = vec![None; 2];
    let mut places: Vec<usize> = vec![0; blocks];
    let machine = sim::machine().unwrap();
    let did = |failures: &mut Vec<Failure>, result: tcuda::base::Result<()>| {
        if let Err(error) = result {
            failures.push(Failure { status: error.status, native: error.native, text: error.to_string() });
        }
    };
    for (number, event) in events.iter().enumerate() {
        let stream = match streams[event.stream] {
            Some(stream) => stream,
            None => match stream::create(0, 0) {
                Ok(stream) => *streams[event.stream].insert(stream),
                Err(error) => {
                    did(&mut failures, Err(error));
                    Stream { device: 0, raw: 0 }
                }
            },
        };
        let place = &mut places[event.block];
        if event.free {
            // A free never fails.
            if number % 7 == 0
                && let Some(other) = streams[1 - event.stream].filter(|_| *place != 0)
            {
                memory::record_stream(*place, other).unwrap();
            }
            memory::free(std::mem::take(place)).unwrap();
        } else {
            match memory::allocate(event.size, 1, stream) {
                Ok(address) => *place = address,
                Err(error) => did(&mut failures, Err(error)),
            }
        }
        if number % 100 == 50 && stream.raw != 0 {
            machine.delay(stream.raw, std::time::Duration::from_micros(200));
        }
        // More than there is: from the first rung to the last.
        if number % 1000 == 400 {
            let error = memory::allocate(MEMORY / 2, 1, stream).unwrap_err();
            if error.status != Status::TCUDA_ERROR_OUT_OF_MEMORY {
                did(&mut failures, Err(error));
            }
        }
        if number % 1000 == 700 {
            did(&mut failures, memory::empty_cache(None));
        }
        if number % 1000 == 950
            && let Some(stream) = streams[0].take()
        {
            destroy(stream, &mut failures);
        }
    }
    for stream in streams.into_iter().flatten() {
        destroy(stream, &mut failures);
    }
    failures
}

fn destroy(stream: Stream, failures: &mut Vec<Failure>) {
    if let Err(error) = stream::destroy(stream.raw) {
        failures.push(Failure { status: error.status, native: error.native, text: error.to_string() });
        stream::destroy(stream.raw).unwrap();
    }
}

fn calls() -> u64 {
    sim::machine().unwrap().faults().count(None).unwrap()
}

/// Everything was freed: the cache agrees with itself, and empty it holds nothing.
fn nothing_is_left(when: &str) {
    memory::check(0);
    assert_eq!(memory::current(Family::AllocatedBytes, 0), 0, "{when}");
    memory::empty_cache(None).unwrap();
    memory::check(0);
    let stats = memory::stats(0);
    for (family, name) in FAMILIES {
        assert_eq!(stats.current(family), 0, "{name} {when}");
    }
    let live = sim::machine().unwrap().live(0..1);
    assert_eq!((live.blocks, live.handles, live.mappings, live.reservations), (0, 0, 0, 0), "{when}");
}

fn judge(failures: &[Failure], code: i32, when: &str) {
    use Status::*;
    for Failure { status, native, text } in failures {
        let known = [TCUDA_ERROR_CUDA, TCUDA_ERROR_OUT_OF_MEMORY, TCUDA_ERROR_NOT_SUPPORTED, TCUDA_ERROR_INVALID_ARGUMENT];
        assert!(known.contains(status) && text.len() > 20 && !text.contains("defect"), "{when}: {status:?}: {text}");
        assert!(*native == code || *status == TCUDA_ERROR_OUT_OF_MEMORY, "{when}: native code {native}: {text}");
    }
}

fn sweep(name: &str, plain: bool) {
    let all = std::env::var("TCUDA_FAULT_TRACE").is_ok_and(|value| value == "all");
    let events = beginning(name, if all { 10_000 } else { 3000 });
    let blocks = events.len();
    let machine = sim::machine().unwrap();
    // Room for what lives, and a third more: too little to keep everything. The whole recording wants twice as much of plain segments.
    let thirds = if all && plain { 6 } else { 4 };
    machine.set_memory(0, (peak(&events) * thirds / 3).next_multiple_of(2048 * KIB) + 4096 * KIB);
    let works = |when: &str| {
        let failures = replay(&events, blocks);
        assert!(failures.is_empty(), "{when}: {}: {}", failures.len(), failures[0].text);
        nothing_is_left(when);
    };
    works("before all faults");
    let stats = memory::stats(0);
    assert!(stats.num_sync_all_streams > 0 && stats.num_alloc_retries > 0, "{name}: memory was never short");
    let before = calls();
    works("once more");
    let made = calls() - before;
    // In CI about sixty faults a code, at other calls for each; else each call once, with the codes in turn.
    let step = if all { CODES.len() as u64 } else { (made / 60).max(1) };
    let mut struck = 0;
    let mut faults = 0;
    for (turn, code) in CODES.into_iter().enumerate() {
        let mut nth = 1 + turn as u64 * step / CODES.len() as u64;
        while nth <= made {
            let when = format!("{name}: with code {code} at call {nth} of about {made}");
            machine.faults().fail_at(None, nth, code).unwrap();
            let failures = replay(&events, blocks);
            machine.faults().clear();
            judge(&failures, code, &when);
            nothing_is_left(&when);
            faults += 1;
            struck += u64::from(!failures.is_empty());
            nth += step;
        }
        works(&format!("{name}: after the faults with code {code}"));
    }
    println!("{name}: {faults} faults at {made} calls, {struck} of them failed a function");
    assert!(made > 100 && struck > 0, "{name}: {made} calls, {struck} of {faults} faults struck");
}

/// In a process of its own for each kind of memory.
fn in_mode(test: &str, trace: &str, options: &str) {
    if std::env::var(MODE).is_ok_and(|mode| mode == test) {
        config::set("TCUDA_BACKEND", "sim".into());
        config::set("TCUDA_SIM_MEMORY", MEMORY.to_string());
        config::set("TCUDA_ALLOC_CONF", options.to_owned());
        runtime::runtime().unwrap();
        sweep(trace, !options.is_empty());
        println!("{test}: swept");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(MODE, test).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(&format!("{test}: swept")), "{test}:\n{said}");
    print!("{said}");
}

#[test]
fn two_streams() {
    in_mode("two_streams", "prefetch_streams", "");
}

#[test]
fn two_streams_of_plain_segments() {
    in_mode("two_streams_of_plain_segments", "prefetch_streams", "expandable_segments:False");
}

#[test]
fn one_stream() {
    in_mode("one_stream", "resnet_varsize", "");
}
