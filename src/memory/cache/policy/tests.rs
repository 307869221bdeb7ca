//! The balance by itself, with no cache.

use super::*;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

fn holding(reserved: usize) -> Holding {
    let used = Holding {
        reserved,
        active: reserved,
        most: reserved,
        active_small: 0,
        large: 8,
        pieces: 0,
        frees: 0,
        mean: GIB,
        new_sizes: 0.0,
        streams: 1,
        shared: false,
        limit: None,
        total: 0,
        granularity: 0,
        small: false,
    };
    Holding { total: 64 * GIB, granularity: 2 << 20, ..used }
}

#[test]
fn handles_are_finer_where_less_is_left() {
    let mut policy = Policy::default();
    let options = Options::default();
    let mut largest = |reserved: usize| policy.terms(&holding(reserved), GIB, &options).largest >> 20;
    assert_eq!([0, 32, 48, 54, 56].map(|held| largest(held * GIB)), [86, 32, 8, 4, 2]);
    // And on smaller devices.
    let mut least = |total: usize| policy.terms(&Holding { total: total * GIB, ..holding(0) }, GIB, &options).largest >> 20;
    assert_eq!([128, 64, 32, 16, 10, 8].map(&mut least), [86, 86, 32, 8, 4, 2]);
}

#[test]
fn handles_are_as_small_as_can_be_where_memory_is_scarce() {
    let options = Options { tight: true, ..Options::default() };
    let largest = |held: usize, need: usize| {
        Policy::default().terms(&Holding { total: 4096 * GIB, ..holding(held * GIB) }, need, &options).largest >> 20
    };
    assert_eq!([1, 64, 3000].map(|held| largest(held, 256 << 20)), [2, 2, 2]);
    assert_eq!(largest(1, 40 * GIB), 2);
}

#[test]
fn handles_of_a_large_program_are_larger() {
    let options = Options::default();
    let largest = |held: usize, streams: usize| {
        Policy::default().terms(&Holding { streams, total: 1024 * GIB, ..holding(held) }, MIB, &options).largest >> 20
    };
    assert_eq!([GIB, 2 * GIB, 7 * GIB, 12 * GIB].map(|held| largest(held, 1)), [10, 20, 204, 410]);
    assert_eq!([GIB, 2 * GIB, 7 * GIB, 12 * GIB].map(|held| largest(held, 2)), [2, 2, 8, 12]);
}

#[test]
fn handles_are_finer_with_several_streams() {
    let mut policy = Policy::default();
    let options = Options::default();
    let mut largest = |need: usize, streams: usize| {
        policy.terms(&Holding { streams, total: 1024 * GIB, ..holding(6 * GIB) }, need, &options).largest >> 20
    };
    assert_eq!([1, 2, 9].map(|streams| largest(4 << 20, streams)), [164, 6, 6]);
    // Those of a large request are not.
    assert_eq!([4, 8].map(|need| [1, 2].map(|streams| largest(need * GIB, streams))), [[342, 342], [512, 512]]);
    let mut of_small_blocks = |streams: usize| {
        policy.terms(&Holding { streams, mean: 10 << 20, total: 1024 * GIB, ..holding(16 * GIB) }, 4 << 20, &options).largest >> 20
    };
    assert_eq!([1, 2].map(&mut of_small_blocks), [80, 10]);
}

#[test]
fn free_memory_rests_at_steps_until_little_is_in_use() {
    let options = Options::default();
    let steps = |limit: Option<usize>, unrest: f64| {
        let mut policy = Policy { unrest, ..Policy::default() };
        let terms = policy.terms(&Holding { active: 8 * GIB, limit, total: 1024 * GIB, ..holding(8 * GIB) }, MIB, &options);
        assert_eq!(terms.scarce, limit.is_some());
        let first = policy.floor(8 * GIB);
        let next = |in_use: usize| if policy.is_over(in_use) { policy.floor_of_little(in_use) } else { policy.floor(in_use) };
        let floors = std::iter::successors(Some(first), |floor| Some(next(floor - 1)).filter(|next| *next > 0));
        (first, floors.count())
    };
    // A quarter less each time from 8 GiB to half a one, then a 16th down to nothing; a 48th where memory is scarce; and no round in a load
    // that has none.
    assert_eq!(steps(None, 0.0), (6 * GIB, 17));
    let (first, rests) = steps(Some(8 * GIB + 32 * MIB), 0.0);
    assert!(first == 8 * GIB - 8 * GIB / 48 && (138..148).contains(&rests), "{rests}");
    assert_eq!(steps(None, 0.05), (GIB / 2, 8));
    // With nothing known of the program there is nothing to wait for.
    assert!(Policy::default().is_over(0) && Policy::default().floor_of_little(0) == 0);
}

#[test]
fn what_is_left_of_handles_goes_first_beyond_the_slack() {
    let options = Options::default();
    let thrifty = |reserved: usize| {
        let of_8 = Holding { active: 8 * GIB, most: 8 * GIB, total: 1024 * GIB, ..holding(reserved) };
        Policy::default().terms(&of_8, MIB, &options).thrifty
    };
    assert_eq!([8 * GIB, 8 * GIB + 8 * GIB / 32, 8 * GIB + 8 * GIB / 25].map(thrifty), [false, false, true]);
}

#[test]
fn handles_are_large_again_when_small_ones_were_made_anew() {
    let mut policy = Policy::default();
    let options = Options::default();
    let terms = |policy: &mut Policy, reserved: usize, active: usize| {
        policy.terms(&Holding { active, most: 8 * GIB, total: 1024 * GIB, ..holding(reserved) }, 6 * GIB, &options)
    };
    let coarse = terms(&mut policy, 8 * GIB, 8 * GIB);
    assert!(!coarse.scarce && !coarse.coarsen && coarse.excess == 0);
    let fine = terms(&mut policy, 9 * GIB, 8 * GIB);
    assert_eq!((fine.largest, fine.scarce), (coarse.largest / 8, false));
    assert!((400..420).contains(&(fine.excess >> 20)));
    // A little more than the slack stays.
    assert_eq!(terms(&mut policy, 8 * GIB + GIB / 2, 8 * GIB).excess, 0);
    // Not near the peak.
    assert!(!fine.coarsen && terms(&mut policy, 8 * GIB, 7 * GIB).coarsen);
    assert!(!terms(&mut policy, 8 * GIB, 7 * GIB + 1).coarsen);
    for step in 1..=3 {
        policy.coarser(8 * GIB);
        assert_eq!(terms(&mut policy, 8 * GIB, 8 * GIB).largest, fine.largest << step);
    }
    assert!(!terms(&mut policy, 8 * GIB, 7 * GIB).coarsen);
    // As much as made them small is enough once more.
    assert_eq!(terms(&mut policy, 9 * GIB, 8 * GIB).largest, fine.largest);
}

#[test]
fn mappings_are_fewer_where_the_driver_takes_no_more() {
    let mut policy = Policy::default();
    assert_eq!([0, 1000].map(|handles| policy.most_mappings(handles)), [MAPPINGS, MAPPINGS + 2000]);
    // However many handles there are, some of what is beside their first ones may stay.
    assert_eq!(Policy::crowd_of(60_000, 50_000), Some(5000));
    assert_eq!(policy.set_crowd(Some(5000)), None);
    assert_eq!([0, 1000, 50_000].map(|handles| policy.most_mappings(handles)), [5000, 6000, 55_000]);
    // With hardly any it was something else.
    assert_eq!([(300, 280), (60_000, 59_000), (5, 5), (0, 9)].map(|(mappings, handles)| Policy::crowd_of(mappings, handles)), [None; 4]);
    policy.restart(0, 0);
    assert_eq!(policy.most_mappings(0), MAPPINGS);
}

#[test]
fn small_blocks_exceed_the_slack_by_a_little() {
    let mut policy = Policy::default();
    let options = Options::default();
    let mut excess = |reserved: usize, total: usize| {
        let of_small = Holding { active: 8 * GIB, most: 8 * GIB, small: true, total: total * GIB, ..holding(reserved) };
        policy.terms(&of_small, MIB, &options).excess
    };
    // 3.5 per cent and a little.
    let most = 8 * GIB + (8 * GIB) * 35 / 1000 + 8 * GIB / KEPT_FOR_SMALL;
    assert_eq!([8 * GIB, most - 3 * MIB].map(|reserved| excess(reserved, 1024)), [0, 0]);
    assert_eq!([most - MIB, most + GIB].map(|reserved| excess(reserved, 1024).div_ceil(MIB)), [1, 1026]);
    assert_eq!(excess(most + GIB, 9), 0);
}

#[test]
fn of_streams_that_are_as_one_ever_new_sizes_and_many_pieces_may_not_come_to_rest() {
    let load = |streams: usize, new_sizes: f64, large: usize, pieces: usize| {
        let of_these = Holding { streams, new_sizes, large, pieces, frees: 1 << 20, ..holding(8 * GIB) };
        Policy::default().terms(&of_these, GIB, &Options::default()).load
    };
    // Hundreds, or three quarters of the blocks in use, which are not among them. Of several streams hundreds.
    let pieces = [(8, 63), (8, 64), (100, 74), (100, 75), (5000, 255), (5000, 256)];
    let of_one = [None, Some(Load::Pieces), None, Some(Load::Pieces), None, Some(Load::Pieces)];
    assert_eq!(pieces.map(|(large, pieces)| load(1, 0.41, large, pieces)), of_one);
    let of_two = [0, 1, 2, 3, 4, 5].map(|at| Some(if at == 5 { Load::Pieces } else { Load::AsOne }));
    assert_eq!(pieces.map(|(large, pieces)| load(2, 0.41, large, pieces)), of_two);
    assert_eq!(pieces.map(|(large, pieces)| load(1, 0.39, large, pieces)), [None; 6]);
    assert_eq!(pieces.map(|(large, pieces)| load(2, 0.39, large, pieces)), [None; 6]);
}

#[test]
fn what_is_shattered_from_the_first_gets_a_tenth_at_once() {
    let slack = |mut policy: Policy, streams: usize, new_sizes: f64, pieces: usize, frees: u64| {
        let of_these = Holding { streams, new_sizes, large: 5000, pieces, frees, total: 1024 * GIB, ..holding(8 * GIB) };
        policy.terms(&of_these, GIB, &Options::default());
        policy.unrest_of_one
    };
    let begins = [(63, 100), (64, 63), (64, 64), (64, 512), (64, 513), (256, 2048), (255, 2048)];
    let of_one = begins.map(|(pieces, frees)| slack(Policy::default(), 1, 1.0, pieces, frees));
    assert_eq!(of_one, [0.0, 0.0, 0.1, 0.1, 0.0, 0.1, 0.0]);
    assert_eq!([(2, 1.0), (1, 0.4)].map(|(streams, new)| slack(Policy::default(), streams, new, 64, 64)), [0.0; 2]);
    assert_eq!([255, 256].map(|pieces| slack(Policy::default(), 2, 1.0, pieces, 256)), [0.0, 0.1]);
    // What was freed before the last rest does not count, nor what is counted anew; with fewer frees than pieces some are older.
    type Begin = fn(&mut Policy);
    let begins: [Begin; 2] = [|policy| policy.rests(10_000), |policy| policy.restart(0, 10_000)];
    for begin in begins {
        let since = |frees: u64| {
            let mut policy = Policy::default();
            begin(&mut policy);
            slack(policy, 1, 1.0, 64, frees)
        };
        assert_eq!([0, 10_000, 10_063, 10_064, 10_512, 10_513].map(since), [0.0, 0.0, 0.0, 0.1, 0.1, 0.0]);
    }
}

#[test]
fn what_streams_as_one_need_says_nothing_of_others() {
    let mut policy = Policy::default();
    let terms = |policy: &mut Policy, streams: usize, shared: bool| {
        let of_these = Holding { streams, shared, new_sizes: 1.0, pieces: 64, frees: 300, total: 1024 * GIB, ..holding(8 * GIB) };
        policy.terms(&of_these, 64 * MIB, &Options::default())
    };
    terms(&mut policy, 1, false);
    assert!(policy.unrest_of_one > 0.0 && !policy.is_restless());
    assert!(terms(&mut policy, 2, false).budget > terms(&mut Policy::default(), 2, false).budget);
    let (of_two, usual) = (terms(&mut policy, 2, true), terms(&mut Policy::default(), 2, true));
    assert_eq!((of_two.budget, of_two.largest, of_two.at_once), (usual.budget, usual.largest, false));
    // Seldom enough that those whose sizes come back rest.
    (1..100).for_each(|times| policy.does_not_rest(Load::Old, times * 50_000));
    assert!(!policy.is_restless());
}

#[test]
fn where_nothing_is_to_spare_no_load_says_anything() {
    for load in [Load::Old, Load::New, Load::Pieces, Load::AsOne, Load::Small] {
        let mut policy = Policy::default();
        policy.does_not_rest(load, 0);
        policy.terms(&Holding { new_sizes: 1.0, pieces: 64, frees: 300, ..holding(60 * GIB) }, GIB, &Options::default());
        assert!(policy.is_short());
        (0..1 << 20).step_by(8).for_each(|frees| policy.does_not_rest(load, frees));
        assert_eq!((policy.unrest, policy.unrest_of_one, policy.unrest_of_small, policy.asks_ahead()), (0.0, 0.0, 0.0, false));
        // And what was before is forgotten.
        assert!(!policy.terms(&Holding { total: 1024 * GIB, ..holding(60 * GIB) }, GIB, &Options::default()).scarce);
        policy.does_not_rest(load, 1 << 20);
        assert_eq!((policy.unrest, policy.unrest_of_one), (0.0, 0.0));
    }
}

#[test]
fn one_stream_that_does_not_come_to_rest_gets_a_tenth() {
    let Unrest { each, all, long, .. } = OF_PIECES;
    let map = |policy: &mut Policy, frees: &mut dyn Iterator<Item = u64>| frees.for_each(|at| policy.does_not_rest(Load::Pieces, at));
    let terms = |policy: &mut Policy, reserved: usize, total: usize| {
        let of_one = Holding { active: 8 * GIB, most: 8 * GIB, total: total * GIB, ..holding(reserved) };
        policy.terms(&Holding { new_sizes: 1.0, pieces: PIECES, frees: 1 << 30, ..of_one }, GIB, &Options::default())
    };
    let budget = |policy: &mut Policy, total: usize| terms(policy, 8 * GIB, total).budget >> 20;
    let mut policy = Policy::default();
    let usual = budget(&mut policy, 1024);
    // Not a burst, and not with gaps.
    map(&mut policy, &mut (0..long - 1));
    map(&mut policy, &mut (long + all..long + all + 64 * each).step_by(each as usize + 1));
    assert_eq!(policy.unrest_of_one, 0.0);
    // Now it lasts. That fewer blocks are counted than before is no matter, nor is work: a stream's own memory is past for it.
    policy.maps_anew(true, false);
    let start = 1 << 20;
    map(&mut policy, &mut [start, start - 9, start + 9].into_iter());
    assert_eq!(policy.unrest_of_one, 0.0);
    let coarse = terms(&mut policy, 8 * GIB, 1024).largest;
    map(&mut policy, &mut (start + each / 2..=start + long).step_by(each as usize / 2));
    assert_eq!(budget(&mut policy, 1024), usual + 410);
    // Handles are as large as can be now, and free memory in its place is still looked for first.
    let of_restless = terms(&mut policy, 8 * GIB, 1024);
    assert!(of_restless.largest > coarse && !of_restless.at_once);
    map(&mut policy, &mut (start + long..start + 2 * long));
    assert_eq!(budget(&mut policy, 1024), usual + 818);
    // A quarter of the device is left, and nothing comes of it where memory is scarce.
    assert_eq!([11, 9].map(|total| budget(&mut policy, total)), [usual, 40]);
    policy.rests(0);
    assert_eq!(budget(&mut policy, 1024), usual);
    map(&mut policy, &mut (start + 2 * long..start + 2 * long + 1));
    assert_eq!(policy.unrest_of_one, 0.0);
}

/// As the way back of a step whose sizes do not come back, a thousand blocks long.
#[test]
fn what_ends_with_a_round_is_no_load_that_does_not_rest() {
    const ROUND: u64 = 2000;
    let long = OF_PIECES.long;
    let map = |policy: &mut Policy, from: u64, until: u64| (from..until).for_each(|at| policy.does_not_rest(Load::Pieces, at));
    let mut policy = Policy::default();
    policy.ebbs(ROUND);
    // For half of each round, in which there are shorter ones too.
    for round in 1..4 {
        map(&mut policy, round * ROUND, round * ROUND + ROUND / 2);
        policy.ebbs(round * ROUND + ROUND / 2);
        policy.ebbs((round + 1) * ROUND);
    }
    assert_eq!(policy.unrest_of_one, 0.0);
    // It goes on for longer than any did; what came before a rest does not count.
    let start = 4 * ROUND;
    map(&mut policy, start, start + ROUND);
    assert_eq!(policy.unrest_of_one, 0.0);
    map(&mut policy, start + ROUND, start + ROUND + 1);
    assert_eq!(policy.unrest_of_one, STEP_OF_UNREST);
    // What was before the cache was emptied is no measure.
    policy.restart(0, start + 2 * ROUND);
    map(&mut policy, start + 2 * ROUND, start + 2 * ROUND + long);
    assert_eq!(policy.unrest_of_one, 0.0);
    policy.ebbs(start + 2 * ROUND + long);
    map(&mut policy, start + 3 * ROUND, start + 3 * ROUND + long + 1);
    assert_eq!(policy.unrest_of_one, STEP_OF_UNREST);
}

#[test]
fn threads_that_do_not_come_to_rest_get_more_slack() {
    let mut policy = Policy::default();
    let options = Options::default();
    let budget = |policy: &mut Policy, total: usize| {
        policy.terms(&Holding { new_sizes: 1.0, total: total * GIB, ..holding(8 * GIB) }, GIB, &options).budget >> 20
    };
    let at_first = budget(&mut policy, 1024);
    let at_once = |policy: &mut Policy, new_sizes: f64, shared: bool, total: usize| {
        let of_these = Holding { new_sizes, shared, streams: 2, total: total * GIB, ..holding(8 * GIB) };
        policy.terms(&of_these, MIB, &options).at_once
    };
    assert!(!at_once(&mut policy, 1.0, true, 1024));
    // At first it says nothing yet.
    let Unrest { each, long, .. } = OF_RESTLESS;
    [0, long - 1].into_iter().for_each(|frees| policy.does_not_rest(Load::New, frees));
    assert!(!policy.is_restless());
    policy.does_not_rest(Load::New, long);
    assert!(policy.is_restless());
    assert_eq!(budget(&mut policy, 1024), at_first + 410);
    // Then, but not where memory is scarce, for sizes that come back or when one thread is left.
    let loads = [(1.0, true, 9), (0.0, true, 1024), (1.0, false, 1024), (1.0, true, 1024)];
    assert_eq!(loads.map(|(new, shared, total)| at_once(&mut policy, new, shared, total)), [false, false, false, true]);
    // Each counts for long.
    [each, 2 * each].into_iter().for_each(|frees| policy.does_not_rest(Load::New, frees));
    assert_eq!(budget(&mut policy, 1024), at_first + 1228);
    (2 * each + long..).take(100).for_each(|frees| policy.does_not_rest(Load::Old, frees));
    assert_eq!(budget(&mut policy, 1024), at_first + (16 << 10));
    // A quarter of the device is left, and where it is scarce there is nothing to be had.
    assert_eq!([24, 16, 11, 10].map(|total| budget(&mut policy, total)), [10 << 10, 4 << 10, at_first, 40]);
    assert!(policy.is_short());
    policy.rests(0);
    assert_eq!(budget(&mut policy, 1024), at_first);
    assert!(!policy.is_short());
    // Where sizes come back it has to be often, and for longer.
    let Unrest { each, all, long, .. } = OF_OLD;
    let every = |gap: u64, from: u64| (from..from + long + all).step_by(gap as usize);
    every(each + 1, 0).for_each(|frees| policy.does_not_rest(Load::Old, frees));
    every(1, 4 * long).take(long as usize).for_each(|frees| policy.does_not_rest(Load::Old, frees));
    assert!(!policy.is_restless());
    // One of new sizes between them does not make up for gaps.
    policy.does_not_rest(Load::New, 6 * long);
    policy.does_not_rest(Load::Old, 6 * long + OF_OLD.long + 1);
    assert!(!policy.is_restless());
    every(each, 8 * long).for_each(|frees| policy.does_not_rest(Load::Old, frees));
    assert!(policy.is_restless());
    policy.restart(8 * GIB, 0);
    assert!(!policy.is_restless());
    // One stream has nobody to keep from its memory, and of one thread's that had work time says whether it is too dear.
    let load = |policy: &Policy, streams: usize, shared: bool, new_sizes: f64| {
        policy.load(&Holding { streams, shared, new_sizes, ..holding(8 * GIB) })
    };
    let several = [1.0, 0.0].map(|new| load(&policy, 2, true, new));
    assert_eq!(several, [Some(Load::New), Some(Load::Old)]);
    let one_thread = [(1, true, 1.0), (2, false, 1.0), (2, false, 0.0)].map(|(streams, shared, new)| load(&policy, streams, shared, new));
    assert_eq!(one_thread, [None, Some(Load::AsOne), None]);
    policy.maps_anew(true, true);
    assert_eq!([true, false].map(|shared| load(&policy, 2, shared, 1.0)), [Some(Load::New), None]);
}

#[test]
fn small_blocks_of_threads_get_slack_by_what_there_is_of_them() {
    let mut policy = Policy::default();
    let terms = |policy: &mut Policy, active_small: usize, total: usize| {
        let of_these = Holding { active_small, shared: true, streams: 2, total: total * GIB, ..holding(8 * GIB) };
        policy.terms(&of_these, MIB, &Options::default())
    };
    let at_first = terms(&mut policy, 256 * MIB, 1024);
    let Unrest { each, long, .. } = OF_RESTLESS;
    [0, long - 1].into_iter().for_each(|frees| policy.does_not_rest(Load::Small, frees));
    assert_eq!(terms(&mut policy, 0, 1024).budget, at_first.budget);
    policy.does_not_rest(Load::Small, long);
    let then = terms(&mut policy, 0, 1024);
    assert_eq!(then.budget, at_first.budget + 64 * MIB);
    // It says nothing of large ones.
    assert_eq!((then.largest, then.at_once, policy.is_restless()), (at_first.largest, false, false));
    (1..100).for_each(|times| policy.does_not_rest(Load::Small, long + times * each));
    assert_eq!(terms(&mut policy, 0, 1024).budget, at_first.budget + 512 * MIB);
    // Where memory is scarce there is none, and after a rest there is none yet.
    assert_eq!(terms(&mut policy, 0, 9).budget, 40 * MIB);
    policy.rests(0);
    assert_eq!(terms(&mut policy, 0, 1024).budget, at_first.budget);
    // Nor do large ones say anything of it that are mapped anew while streams have work.
    policy.maps_anew(true, true);
    for frees in (0..=long).step_by(512) {
        policy.does_not_rest(Load::Small, frees);
        policy.does_not_rest(Load::New, frees);
    }
    assert_eq!(terms(&mut policy, 0, 1024).budget, at_first.budget + 64 * MIB);
    assert!(!policy.is_restless());
}

#[test]
fn streams_as_one_are_asked_ahead_once_they_exceed_the_slack_or_do_not_come_to_rest() {
    let exceeds = |reserved: usize, streams: usize, shared: bool, small: bool, total: usize| {
        let mut policy = Policy::default();
        let of_8 = Holding { active: 8 * GIB, most: 8 * GIB, total, streams, shared, small, ..holding(reserved) };
        policy.terms(&of_8, MIB, &Options::default());
        policy.asks_ahead()
    };
    let [within, beyond] = [8 * GIB + 8 * GIB / 24, 8 * GIB + 8 * GIB / 21];
    assert_eq!([8 * GIB, within, beyond].map(|reserved| exceeds(reserved, 2, false, false, 1024 * GIB)), [false, false, true]);
    // Blocks of few handles each leave pieces: then from half of the slack on.
    let of_fine = |reserved: usize, mean: usize| {
        let mut policy = Policy::default();
        let of_8 = Holding { active: 8 * GIB, most: 8 * GIB, total: 1024 * GIB, streams: 2, mean, ..holding(reserved) };
        policy.terms(&of_8, MIB, &Options::default());
        policy.asks_ahead()
    };
    let half = 8 * GIB + 8 * GIB / 56;
    assert_eq!(
        [(half, 8 * MIB), (half, 9 * MIB), (8 * GIB + 8 * GIB / 59, 8 * MIB)].map(|(held, mean)| of_fine(held, mean)),
        [true, false, false]
    );
    // Not of one stream, where they are not as one, for small blocks, which may, and where memory is scarce.
    let others = [(1, false, false, 1024), (2, true, false, 1024), (2, false, true, 1024), (2, false, false, 9)];
    assert!(others.iter().all(|&(streams, shared, small, total)| !exceeds(beyond, streams, shared, small, total * GIB)));
    let Unrest { each, all, long, .. } = OF_AS_ONE;
    let mut policy = Policy::default();
    let mut map = |frees: std::ops::RangeInclusive<u64>, gap: u64| {
        frees.step_by(gap as usize).for_each(|frees| policy.does_not_rest(Load::AsOne, frees));
        policy.asks_ahead()
    };
    // Neither seldom nor for a while is enough.
    assert!(!map(0..=2 * long, each + 1));
    assert!(!map(4 * long..=5 * long - each, each));
    assert!(!map(5 * long + all..=6 * long + all - each, each));
    assert!(map(6 * long + all..=6 * long + all, each));
    assert_eq!((policy.unrest, policy.unrest_of_one), (0.0, 0.0));
    policy.rests(0);
    assert!(policy.asks_ahead());
    policy.restart(0, 0);
    assert!(!policy.asks_ahead());
}

#[test]
fn streams_with_work_say_nothing_of_rest_until_they_rest() {
    let Unrest { each, long, .. } = OF_OLD;
    let lasts = |policy: &mut Policy, frees: std::ops::RangeInclusive<u64>| {
        frees.step_by(each as usize).for_each(|frees| policy.does_not_rest(Load::Old, frees));
    };
    let mut policy = Policy::default();
    lasts(&mut policy, 0..=long - each);
    policy.maps_anew(true, true);
    policy.maps_anew(false, true);
    lasts(&mut policy, long..=3 * long);
    assert!(!policy.is_restless());
    policy.rests(0);
    lasts(&mut policy, 3 * long + each..=4 * long + each);
    assert!(policy.is_restless());
    // Nor for longer than they have it, and what was before is forgotten.
    let mut policy = Policy::default();
    let start = Instant::now();
    lasts(&mut policy, 0..=long - each);
    policy.maps_anew(true, true);
    policy.took(start, start + WINDOW, true);
    lasts(&mut policy, long..=2 * long);
    assert!(!policy.is_restless());
    policy.maps_anew(false, true);
    policy.took(start + WINDOW, start + 2 * WINDOW, false);
    lasts(&mut policy, 2 * long + each..=3 * long);
    assert!(!policy.is_restless());
    lasts(&mut policy, 3 * long + each..=3 * long + each);
    assert!(policy.is_restless());
}

#[test]
fn streams_keep_apart_once_they_had_work_and_until_memory_is_short() {
    let mut policy = Policy::default();
    let options = Options::default();
    let room = |policy: &mut Policy, total: usize, need: usize| {
        policy.terms(&Holding { streams: 2, total: total * GIB, ..holding(4 * GIB) }, need, &options);
        policy.has_room_apart(4 * GIB, need)
    };
    policy.maps_anew(true, false);
    policy.maps_anew(false, true);
    assert!(!policy.is_apart());
    policy.maps_anew(true, true);
    policy.rests(0);
    assert!(policy.is_apart());
    assert_eq!([1 << 20, GIB, 2 * GIB].map(|need| room(&mut policy, 64, need)), [true, true, false]);
    assert!(!room(&mut policy, 5, 1 << 20));
    policy.restart(0, 0);
    assert!(!policy.is_apart());
}

#[test]
fn handles_are_coarse_where_streams_have_work() {
    let mut policy = Policy::default();
    let options = Options::default();
    let largest = |policy: &mut Policy, total: usize, reserved: usize| {
        policy.terms(&Holding { streams: 2, total: total * GIB, ..holding(reserved) }, 64 << 20, &options).largest >> 20
    };
    assert_eq!(largest(&mut policy, 64, 2 * GIB), 6);
    policy.maps_anew(true, true);
    assert_eq!(largest(&mut policy, 64, 2 * GIB), 16);
    let alone = policy.terms(&Holding { total: 64 * GIB, ..holding(GIB / 2) }, 64 << 20, &options).largest;
    assert_eq!(alone >> 20, 6);
    // With more in use, where less is left, and where there is hardly any.
    assert_eq!([64, 16, 8].map(|total| largest(&mut policy, total, 7 * GIB / 4)), [16, 8, 2]);
    policy.rests(0);
    assert_eq!(largest(&mut policy, 64, 2 * GIB), 6);
}

#[test]
fn the_driver_is_asked_seldom_until_it_is_short() {
    let mut policy = Policy::default();
    let options = Options::default();
    assert!(policy.asks(0));
    policy.left(0, 32 * GIB);
    assert!(!policy.asks(4 * GIB - 1) && policy.asks(4 * GIB));
    policy.left(4 * GIB, 8 * GIB);
    assert!(!policy.terms(&holding(4 * GIB), GIB, &options).scarce);
    assert!(!policy.asks(5 * GIB - 1));
    assert!(policy.terms(&holding(11 * GIB), GIB, &options).scarce);
    assert!(policy.asks(0));
    policy.left(11 * GIB, 50 * GIB);
    assert!(!policy.terms(&holding(11 * GIB), GIB, &options).scarce && !policy.asks(11 * GIB));
}

#[test]
fn who_is_held_up_for_long_gets_more_slack() {
    let start = Instant::now();
    let at = |parts: u64| start + WINDOW * parts as u32 / 250;
    let mut policy = Policy::default();
    let map = |policy: &mut Policy, from: u64, to: u64, (before, after): (bool, bool)| {
        policy.maps_anew(before, true);
        policy.took(at(from), at(to), after);
    };
    const HELD_UP: (bool, bool) = (true, false);
    // Half of the time, but for a moment only.
    (0..12).for_each(|step| map(&mut policy, step * 20, step * 20 + 10, HELD_UP));
    assert_eq!(policy.hurry, 0.0);
    map(&mut policy, 250, 251, (false, false));
    assert_eq!(policy.hurry, STEP_OF_TIME);
    // One per cent is no matter.
    (0..100).for_each(|step| map(&mut policy, 251 + step * 100, 252 + step * 100, HELD_UP));
    assert_eq!(policy.hurry, STEP_OF_TIME);
    // Nor are eight in one window among others, unless they stay.
    let eight = |policy: &mut Policy, from: u64| map(policy, from, from + 20, HELD_UP);
    eight(&mut policy, 10_260);
    map(&mut policy, 10_520, 10_521, HELD_UP);
    assert_eq!(policy.hurry, STEP_OF_TIME);
    (0..2).for_each(|step| eight(&mut policy, 10_600 + step * 260));
    assert_eq!(policy.hurry, 2.0 * STEP_OF_TIME);
    // Nor is half of the time of a host that is ahead of its device.
    (0..200).for_each(|step| map(&mut policy, 12_000 + step * 20, 12_010 + step * 20, (true, true)));
    assert_eq!(policy.hurry, 2.0 * STEP_OF_TIME);
    (0..2000).for_each(|step| map(&mut policy, 20_000 + step * 20, 20_010 + step * 20, (step % 10 == 0, false)));
    assert_eq!(policy.hurry, MOST_OF_TIME);
    // What was before any work is no matter, and a replay with none is no hurry.
    policy.restart(0, 0);
    (0..12).for_each(|step| map(&mut policy, 65_000 + step * 20, 65_010 + step * 20, (false, false)));
    map(&mut policy, 65_250, 65_251, (true, true));
    assert_eq!(policy.hurry, 0.0);
    policy.restart(0, 0);
    (0..2000).for_each(|step| map(&mut policy, 70_000 + step * 20, 70_010 + step * 20, (false, false)));
    assert_eq!(policy.hurry, 0.0);
}
