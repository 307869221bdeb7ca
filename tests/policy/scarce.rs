//! Where memory is scarce the run completes with hardly more than it has in use at once.

use crate::gate::Gate;
use crate::runs::Trace;
use crate::{MEMORY, MIB, calls, held, machine, replay, sim, waste, waste_beside, with_streams};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use tcuda::memory;
use tcuda::memory::stats::Family;
use tcuda::runtime::Address;
use tcuda::stream::Stream;

/// Three passes within `share` of what the run needs at most.
pub fn in_scarcity(trace: &Trace, share: f64, options: &str, restrict: impl FnOnce(usize)) {
    let _turn = machine(options);
    let bytes = (trace.peak as f64 * share) as usize / (2 * MIB) * (2 * MIB);
    with_streams(|streams| {
        restrict(bytes);
        for _ in 0..3 {
            replay(trace, streams, false);
            memory::check(0);
            assert!(held() <= bytes, "{}", trace.name);
        }
        assert!(waste(trace) <= share, "{}: {}", trace.name, waste(trace));
        sim().set_memory(0, MEMORY);
    });
}

/// Every run with the share of its need that it has to do with.
fn every_run(test: impl Fn(&Trace, f64)) {
    ["gpt_varlen", "resnet_varsize"].into_iter().for_each(|name| test(&Trace::recorded(name), 1.02));
    [Trace::recorded("prefetch_streams"), Trace::serving(), Trace::pipeline()].iter().for_each(|trace| test(trace, 1.03));
}

#[test]
fn a_limit_just_above_the_need_suffices() {
    let limit = |bytes| memory::set_limit(Some(bytes), 0).unwrap();
    every_run(|trace, share| in_scarcity(trace, share, "", limit));
}

/// TCUDA_POLICY_EFFORT=N: with so many times as many.
fn effort() -> u64 {
    std::env::var("TCUDA_POLICY_EFFORT").map_or(1, |text| text.parse().expect("TCUDA_POLICY_EFFORT is a number"))
}

#[test]
fn a_limit_just_above_the_need_of_other_sizes_suffices() {
    for seed in 1..=7 * effort() {
        every_run(|trace, share| in_scarcity(&trace.varied(seed), share, "", |bytes| memory::set_limit(Some(bytes), 0).unwrap()));
    }
}

/// What blocks of any size leave over at both ends of their handles has to serve others.
#[test]
fn a_limit_just_above_the_need_of_caches_of_any_size_suffices() {
    for seed in 1..=5 * effort() {
        in_scarcity(&Trace::caches(seed, 60), 1.02, "", |bytes| memory::set_limit(Some(bytes), 0).unwrap());
    }
    (1..=5).for_each(|seed| in_scarcity(&Trace::caches(seed, 60), 1.02, "tight:True", |_| ()));
}

/// Blocks of half a handle to three leave pieces of any size, of which a GiB or less has few that fit.
#[test]
fn limits_of_runs_that_need_more_suffice() {
    for (name, own, others) in [("gan_steps", 1.03, 1.08), ("pipeline_streams", 1.05, 1.1)] {
        let run = Trace::recorded(name);
        let limit = |bytes| memory::set_limit(Some(bytes), 0).unwrap();
        in_scarcity(&run, own, "", limit);
        (1..=7).for_each(|seed| in_scarcity(&run.varied(seed), others, "", limit));
    }
}

#[test]
fn a_device_just_above_the_need_suffices() {
    every_run(|trace, share| in_scarcity(trace, share, "", |bytes| sim().set_memory(0, bytes)));
}

#[test]
fn the_scarce_ways_can_be_asked_for() {
    every_run(|trace, share| in_scarcity(trace, share, "tight:True", |_| ()));
}

/// One stream is busy with memory that it freed, and another wants as much: the answer is how often streams and the host waited.
fn contended(options: &str, limit: Option<usize>) -> (u64, i64, usize) {
    let _turn = machine(options);
    memory::set_limit(limit, 0).unwrap();
    let mut counted = (0, 0, 0);
    with_streams(|streams| {
        let block = memory::allocate(64 * MIB, 1, streams[0]).unwrap();
        let gate = Gate::on(streams[0]);
        memory::free(block).unwrap();
        let (waits, syncs) = (calls(Some("cudaStreamWaitEvent")), memory::stats(0).num_sync_all_streams);
        let done = AtomicBool::new(false);
        let again = std::thread::scope(|scope| {
            // Where the host waits the stream goes on.
            scope.spawn(|| {
                while !done.load(SeqCst) && memory::stats(0).num_sync_all_streams == syncs {
                    std::thread::yield_now();
                }
                drop(gate);
            });
            let again = memory::allocate(60 * MIB, 1, streams[1]);
            counted = (calls(Some("cudaStreamWaitEvent")) - waits, memory::stats(0).num_sync_all_streams - syncs, held());
            done.store(true, SeqCst);
            again
        });
        memory::free(again.unwrap()).unwrap();
    });
    counted
}

#[test]
fn a_stream_waits_only_where_it_was_allowed() {
    const LIMIT: Option<usize> = Some(64 * MIB);
    assert_eq!(contended("", None), (0, 0, 124 * MIB));
    assert_eq!(contended("", LIMIT), (1, 0, 64 * MIB));
    assert_eq!(contended("stream_wait:never", LIMIT), (0, 1, 64 * MIB));
    assert_eq!(contended("stream_wait:at_budget", None), (1, 0, 64 * MIB));
}

#[test]
fn a_mapping_that_fails_half_way_is_undone() {
    let _turn = machine("");
    const ALL: usize = 64 * MIB;
    memory::set_limit(Some(ALL), 0).unwrap();
    with_streams(|streams| {
        let stream = streams[0];
        // Every other block is free, so that half of the memory is in pieces.
        let blocks: Vec<Address> = (0..16).map(|_| memory::allocate(4 * MIB, 1, stream).unwrap()).collect();
        let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
        freed.into_iter().for_each(|(_, block)| memory::free(block).unwrap());
        let before = sim().live(0..1);
        let state = || (held(), memory::current(Family::Segment, 0), sim().live(0..1).handles, sim().live(0..1).mappings);
        let at_first = state();
        assert_eq!((at_first.0, before.handle_bytes), (ALL, ALL));
        let mut failed = 0;
        for call in ["cuMemMap", "cuMemSetAccess"] {
            for nth in 1.. {
                sim().faults().fail_at(Some(call), nth, tcuda::runtime::code::INVALID_VALUE).unwrap();
                let made = memory::allocate(32 * MIB, 1, stream);
                sim().faults().clear();
                memory::check(0);
                match made {
                    Err(_) => assert_eq!(state(), at_first, "{call} {nth}"),
                    Ok(block) => {
                        memory::free(block).unwrap();
                        assert!(nth > 1, "{call} was not called");
                        break;
                    }
                }
                failed += 1;
            }
            // What was mapped anew goes, so that the next kind of failure finds the same.
            if call == "cuMemMap" {
                assert_eq!(held(), ALL);
                memory::empty_cache(Some(0)).unwrap();
                memory::check(0);
                assert_eq!(held(), ALL / 2);
                let again: Vec<Address> = (0..8).map(|_| memory::allocate(4 * MIB, 1, stream).unwrap()).collect();
                again.into_iter().for_each(|block| memory::free(block).unwrap());
                assert_eq!(state().0, ALL);
            }
        }
        assert!(failed >= 2, "{failed} failures");
        kept.into_iter().for_each(|(_, block)| memory::free(block).unwrap());
    });
}

#[test]
fn with_the_pressure_its_price_goes() {
    let _turn = machine("");
    let makes = |limit: Option<usize>| {
        memory::set_limit(limit, 0).unwrap();
        let before = calls(Some("cuMemCreate"));
        let block = memory::allocate(1024 * MIB, 1, Stream { device: 0, raw: 0 }).unwrap();
        memory::free(block).unwrap();
        memory::empty_cache(Some(0)).unwrap();
        calls(Some("cuMemCreate")) - before
    };
    // The first asks the device what it offers.
    makes(None);
    let (plenty, scarce, again) = (makes(None), makes(Some(1050 * MIB)), makes(None));
    assert!(scarce > 4 * plenty, "{plenty} handles in plenty, {scarce} in scarcity");
    assert_eq!(again, plenty);
}

#[test]
fn what_others_take_and_give_back_is_noticed() {
    let _turn = machine("");
    with_streams(|streams| {
        let makes = |size: usize| {
            let before = calls(Some("cuMemCreate"));
            let block = memory::allocate(size, 1, streams[0]).unwrap();
            (calls(Some("cuMemCreate")) - before, block)
        };
        let (plenty, first) = makes(8192 * MIB);
        sim().set_memory(0, 8320 * MIB);
        // What there was is used by an eighth, so the driver is asked, and nothing is refused.
        let (scarce, second) = makes(64 * MIB);
        assert_eq!(scarce, 32, "handles of 2 MiB");
        sim().set_memory(0, MEMORY);
        let (again, third) = makes(8192 * MIB);
        assert!(again < 2 * plenty, "{plenty} handles, then {again}");
        [first, second, third].into_iter().for_each(|block| memory::free(block).unwrap());
    });
}

/// At its limit every run is mapped anew all the time. That says nothing about the time when there is no limit; a block that stays keeps
/// the cache from seeing an end of a round.
#[test]
fn a_run_at_its_limit_is_not_taken_for_one_that_does_not_rest() {
    let _turn = machine("");
    let trace = Trace::recorded("prefetch_streams");
    with_streams(|streams| {
        let resident = trace.peak / 8;
        let block = memory::allocate(resident, 1, streams[0]).unwrap();
        memory::set_limit(Some(trace.peak * 103 / 100 + resident), 0).unwrap();
        for _ in 0..20 {
            replay(&trace, streams, false);
        }
        memory::set_limit(None, 0).unwrap();
        memory::reset_peak_stats(0);
        for _ in 0..3 {
            replay(&trace, streams, false);
        }
        memory::free(block).unwrap();
        let waste = waste_beside(&trace, resident);
        assert!(waste <= 1.05, "{waste}");
    });
}
