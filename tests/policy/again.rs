//! What was before is no matter.

use crate::runs::Trace;
use crate::{MIB, machine, replay, waste, with_streams};
use tcuda::memory;

/// Other ways to have memory, ended by emptying the cache.
fn between(trace: &Trace, options: &str, limit: Option<usize>) {
    let _turn = machine(options);
    memory::set_limit(limit, 0).unwrap();
    with_streams(|streams| {
        replay(trace, streams, false);
        memory::reset_peak_stats(0);
    });
}

fn run(trace: &Trace) -> (Vec<(usize, usize)>, f64) {
    let _turn = machine("");
    let mut touched = Vec::new();
    let mut held = 0.0;
    with_streams(|streams| {
        for _ in 0..3 {
            let made = replay(trace, streams, false);
            touched.push((made.all, made.memory));
        }
        held = waste(trace);
    });
    (touched, held)
}

#[test]
fn what_was_before_is_no_matter() {
    let traces: Vec<Trace> = vec![
        Trace::recorded("gan_steps"),
        Trace::recorded("prefetch_streams"),
        Trace::recorded("pipeline_streams"),
        Trace::recorded("bert_requests"),
        Trace::serving().scaled(8),
        Trace::bursts(40),
        Trace::pipeline(),
        Trace::sampled(11, 1500, 300 * MIB),
        Trace::sampled(4, 1500, 0),
        Trace::batches(),
        Trace::graphs(1, 4),
        Trace::graphs(2, 1),
        Trace::experts(1, 4, 50),
        Trace::any(1, 4),
        Trace::any(2, 1),
        Trace::caches(1, 60),
        Trace::turns(960 * MIB, 2 * MIB),
    ];
    let first: Vec<_> = traces.iter().map(run).collect();
    let mut wrong = Vec::new();
    for step in [1, 5, 12] {
        for at in 0..traces.len() {
            let at = (at * step + step) % traces.len();
            let limit = Some(traces[at].peak * 11 / 10);
            match at % 5 {
                0 => between(&traces[at], "tight:True", None),
                1 => between(&traces[at], "", limit),
                2 => between(&traces[at], "expandable_segments:False", None),
                3 => between(&traces[at], "backend:cudaMallocAsync", None),
                _ => between(&traces[at], "stream_wait:at_budget,slack:0.2", None),
            }
            let now =
                if step == 5 { std::thread::scope(|scope| scope.spawn(|| run(&traces[at])).join().unwrap()) } else { run(&traces[at]) };
            if now != first[at] {
                wrong.push(format!("{step} {}: {:?} {:?}", traces[at].name, first[at], now));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
