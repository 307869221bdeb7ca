//! What is free comes to rest: a round that comes again finds everything where the last one did.

use crate::plenty::hardly_calls;
use crate::runs::{Trace, random};
use crate::scarce::in_scarcity;
use crate::{MIB, Touched, calls, machine, memory_calls, replay, sim, waste, with_streams};
use tcuda::memory;
use tcuda::memory::stats::Family;
use tcuda::runtime::Address;
use tcuda::stream::Stream;

/// Several streams whose sizes do not come back within a round: when it comes again everything lies where it did, small blocks too, and nothing
/// asks the driver for memory any more. What such rounds hold is more than 1.05 of their peak in some.
#[test]
fn rounds_of_any_sizes_repeat_themselves() {
    const PASSES: usize = 12;
    for seed in 1..=3 {
        let of_streams = |streams| [Trace::graphs(seed, streams), Trace::any(seed, streams), Trace::experts(seed, streams, 30)];
        for trace in [1, 2, 4].into_iter().flat_map(of_streams) {
            let _turn = machine("");
            with_streams(|streams| {
                let touched: Vec<Touched> = (0..PASSES).map(|_| replay(&trace, streams, false)).collect();
                memory::check(0);
                let name = format!("{} {seed}: {touched:?}", trace.name);
                assert!(waste(&trace) <= 1.06, "{name}: {}", waste(&trace));
                assert!(touched[PASSES - 2..].iter().all(|touched| touched.memory == 0), "{name}");
                // What streams leave each other at a round's end is the same each time.
                assert!(trace.name != "experts" || touched[2].memory * 1000 < trace.events.len(), "{name}");
            });
        }
    }
}

/// The driver has the memory, but takes no more mappings: old ones end, and nobody else notices, be memory made at that moment or not.
#[test]
fn where_the_driver_takes_no_more_mappings_old_ones_end() {
    const OUT_OF_MEMORY: i32 = 2;
    let trace = Trace::long(6, |seed| Trace::graphs(seed, 4));
    for nth in (3000..8000).step_by(1000) {
        let _turn = machine("");
        with_streams(|streams| {
            let retries = memory::stats(0).num_alloc_retries;
            sim().faults().fail_at(Some("cuMemMap"), nth, OUT_OF_MEMORY).unwrap();
            let before = calls(Some("cuMemMap"));
            (0..2).for_each(|_| _ = replay(&trace, streams, true));
            assert!(calls(Some("cuMemMap")) >= before + nth, "one was refused");
            memory::check(0);
            // Half of those that there were then, beside the first of each handle.
            let live = sim().live(0..1);
            assert!(live.mappings <= live.handles + nth as usize / 2, "{nth}: {} mappings of {} handles", live.mappings, live.handles);
            assert_eq!(memory::stats(0).num_alloc_retries, retries);
            assert!(waste(&trace) <= 1.07, "{nth}: {}", waste(&trace));
        });
    }
}

/// With few mappings it is not for them that one is refused: then the rounds that follow come to rest as ever.
#[test]
fn a_mapping_that_is_refused_once_changes_no_later_round() {
    const OUT_OF_MEMORY: i32 = 2;
    let trace = Trace::graphs(1, 2);
    let _turn = machine("");
    with_streams(|streams| {
        for nth in [100, 101, 102, 900] {
            sim().faults().fail_at(Some("cuMemMap"), nth, OUT_OF_MEMORY).unwrap();
        }
        let touched: Vec<Touched> = (0..12).map(|_| replay(&trace, streams, true)).collect();
        memory::check(0);
        assert!(touched[10..].iter().all(|touched| touched.memory == 0), "{touched:?}");
    });
}

/// Programs whose weights are a third and a half of their peak: never is little in use while they run.
#[test]
fn rounds_over_weights_come_to_rest() {
    hardly_calls(&Trace::recorded("gan_steps"), 3);
    hardly_calls(&Trace::recorded("bert_requests"), 3);
}

/// What was mapped a second time goes back to where it was first when little is in use, and lies in a row again: the next that needs room
/// asks nobody.
#[test]
fn free_memory_comes_to_rest() {
    let _turn = machine("");
    memory::set_limit(Some(64 * MIB), 0).unwrap();
    with_streams(|streams| {
        let blocks: Vec<Address> = (0..16).map(|at| memory::allocate(4 * MIB, 1, streams[at % 2]).unwrap()).collect();
        let first = *blocks.iter().min().unwrap();
        let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at / 2 % 2 == 0);
        freed.into_iter().for_each(|(_, block)| memory::free(block).unwrap());
        let again = memory::allocate(32 * MIB, 1, streams[0]).unwrap();
        kept.into_iter().for_each(|(_, block)| memory::free(block).unwrap());
        memory::free(again).unwrap();
        // Where it was mapped anew it would fit too.
        assert_eq!(memory::allocate(32 * MIB, 1, streams[0]).unwrap(), first);
        memory::check(0);
        let before = calls(None);
        assert_eq!(memory::allocate(32 * MIB, 1, streams[0]).unwrap(), first + 32 * MIB);
        assert_eq!(calls(None), before);
        [first, first + 32 * MIB].into_iter().for_each(|block| memory::free(block).unwrap());
    });
}

/// Once little is in use, what streams are done with is everybody's, and the next one asks nobody.
#[test]
fn what_is_past_comes_to_rest() {
    for options in ["", "expandable_segments:False"] {
        let _turn = machine(options);
        let mut asked = 0;
        with_streams(|streams| {
            let allocate = |stream: Stream| memory::allocate(64 * MIB, 1, stream).unwrap();
            let free = |blocks: [Address; 2]| blocks.into_iter().for_each(|block| memory::free(block).unwrap());
            free([allocate(streams[0]), allocate(streams[1])]);
            // Who comes next finds it done.
            memory::free(allocate(streams[1])).unwrap();
            let before = calls(None);
            let blocks = [allocate(streams[1]), allocate(streams[1])];
            asked = calls(None) - before;
            free(blocks);
        });
        assert_eq!(asked, 0, "{options}");
    }
}

/// However much it is: more than goes home at once.
#[test]
fn thousands_of_handles_come_to_rest() {
    const BLOCKS: usize = 5000;
    let _turn = machine("tight:True");
    memory::set_limit(Some(BLOCKS * 2 * MIB), 0).unwrap();
    with_streams(|streams| {
        let blocks: Vec<Address> = (0..BLOCKS).map(|_| memory::allocate(2 * MIB, 1, streams[0]).unwrap()).collect();
        let first = *blocks.iter().min().unwrap();
        let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
        freed.into_iter().for_each(|(_, block)| memory::free(block).unwrap());
        let again = memory::allocate(BLOCKS * MIB, 1, streams[0]).unwrap();
        kept.into_iter().for_each(|(_, block)| memory::free(block).unwrap());
        memory::free(again).unwrap();
        let before = memory_calls();
        assert_eq!(memory::allocate(BLOCKS * 2 * MIB, 1, streams[0]).unwrap(), first);
        assert_eq!(memory_calls(), before);
        memory::check(0);
        memory::free(first).unwrap();
    });
}

/// Handles become small and are mapped anew, and that goes on: there are no more of them, no more mappings, and no more to do than when
/// all was new. Now and then the driver does not take something back.
#[test]
fn a_long_life_is_no_dearer_than_its_beginning() {
    let _turn = machine("");
    let trace = Trace::bursts(60);
    with_streams(|streams| {
        let (mut cold, mut early) = (0, 0);
        for pass in 0..100 {
            let before = calls(None);
            if pass % 5 == 4 {
                sim().faults().fail_at(Some("cuMemUnmap"), 50, tcuda::runtime::code::INVALID_VALUE).unwrap();
                sim().faults().fail_at(Some("cuMemRelease"), 5, tcuda::runtime::code::INVALID_VALUE).unwrap();
            }
            replay(&trace, streams, false);
            sim().faults().clear();
            let (made, live) = (calls(None) - before, sim().live(0..1));
            match pass {
                0 => cold = made,
                9 => early = live.handles,
                _ => {}
            }
            assert!(waste(&trace) <= 1.05, "pass {pass}: {}", waste(&trace));
            assert!(live.mappings <= 2 * live.handles + (33 << 10), "pass {pass}: {} mappings of {} handles", live.mappings, live.handles);
            assert!(made <= 2 * cold, "pass {pass}: {made} calls, {cold} in the first");
            assert!(pass < 10 || live.handles <= early + early / 4, "pass {pass}: {} handles, {early} in the tenth", live.handles);
            if pass % 10 == 0 {
                memory::check(0);
            }
        }
    });
}

/// Large requests of ever new sizes where memory is in many small handles: each maps hundreds of them, and as many old mappings end.
#[test]
fn mappings_stay_few_when_each_request_makes_many() {
    const HANDLE: usize = 2 << 20;
    let _turn = machine("");
    with_streams(|streams| {
        for streams in [&streams[..1], &streams[..2]] {
            let small: Vec<Address> = (0..2048).map(|_| memory::allocate(HANDLE, 1, streams[0]).unwrap()).collect();
            small.into_iter().for_each(|address| memory::free(address).unwrap());
            let (mut random, mut live) = (random(7), Vec::new());
            for turn in 0..900 {
                let stream = streams[turn % streams.len()];
                live.push(memory::allocate((60 + random(300)) * HANDLE, 1, stream).unwrap());
                if live.len() > 8 {
                    memory::free(live.swap_remove(random(live.len()))).unwrap();
                }
                let held = sim().live(0..1);
                assert!(held.mappings <= 2 * held.handles + (33 << 10), "{turn}: {} mappings of {} handles", held.mappings, held.handles);
            }
            live.into_iter().for_each(|address| memory::free(address).unwrap());
            memory::empty_cache(None).unwrap();
        }
    });
}

/// What a cache that was emptied went through, and what other threads did, changes nothing: the same run holds the same.
#[test]
fn a_run_repeats_itself() {
    let trace = Trace::serving().varied(2);
    let most_held = || {
        let _turn = machine("");
        with_streams(|streams| _ = replay(&trace, streams, false));
        memory::peak(Family::ReservedBytes, 0)
    };
    let first = most_held();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| in_scarcity(&Trace::pipeline(), 1.03, "", |bytes| sim().set_memory(0, bytes)));
        // One that allocates as well, and stays.
        let (tell, told) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            {
                let _turn = machine("");
                memory::free(memory::allocate(MIB, 1, Stream { device: 0, raw: 0 }).unwrap()).unwrap();
            }
            told.recv().unwrap_err();
        });
        other.join().unwrap();
        assert_eq!([most_held(), most_held()], [first; 2]);
        drop(tell);
    });
}

#[test]
fn what_is_past_is_taken_over_where_it_is() {
    let _turn = machine("");
    with_streams(|streams| {
        let block = memory::allocate(64 * MIB, 1, streams[0]).unwrap();
        memory::free(block).unwrap();
        let mappings = || ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"].map(|call| calls(Some(call)));
        let before = mappings();
        let taken = memory::allocate(60 * MIB, 1, streams[1]).unwrap();
        assert_eq!((taken, mappings()), (block, before));
        // The rest belongs to no stream, and a third one is asked nothing.
        let all = calls(None);
        assert_eq!(memory::allocate(4 * MIB, 1, streams[2]).unwrap(), block + 60 * MIB);
        assert_eq!(calls(None), all);
        memory::free(taken).unwrap();
        memory::free(block + 60 * MIB).unwrap();
    });
}
