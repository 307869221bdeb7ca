//! Random programs against the library's memory, through its C functions, on the simulated device: several threads allocate, write, use on
//! other streams, hand on and free blocks, with memory pools that lend and are paused, graphs that share pools, allocators of their own, streams
//! that end, pinned memory, threads' own default streams, limits, options that change, and calls of CUDA that fail. What the library's own tests
//! put beside each other is what somebody thought of; here it is what a seed says.
//!
//! ```text
//! plan        what a seed means: the machine, the features, each choice
//! model       who owns a block, behind which work it may be touched, what is in it
//! program     one thread's program: what it has, and what its calls may answer
//! memory  pinned  streams  pools  graphs  plugins  trouble its actions
//! checks      contents in the order of work, statistics at each rest, nothing left at the end
//! trail       what each thread did last, which a failure prints
//! children    seeds side by side, each in a process of its own
//! ```
//!
//! A seed is one process, and the same each time as far as the machine's threads allow: each step's choices are its own, but whether a stream is
//! done, and so where memory lies and when it runs out, is up to them. `TCUDA_ATTACK_SEED=7 cargo test --test attack seeds -- --nocapture` runs
//! one, with TCUDA_ATTACK_VERBOSE=1 it tells each step. `make test-attack` runs as many as there is time for.
//!
//! The program keeps the rules that the header states, and does nothing that they leave open. What it believes is in `model`; it is less than a
//! program may, so that what fails is the library.

mod checks;
mod children;
mod graphs;
mod memory;
mod model;
mod pinned;
mod plan;
mod plugins;
mod pools;
mod program;
mod streams;
mod trail;
mod trouble;

use crate::checks::Slots;
use crate::model::{Kind, World};
use crate::plan::{Feature, PLANTS, Plan, Plant, Random};
use crate::program::{Program, ok};
use crate::trail::note;
use crate::trouble::ALL;
use std::sync::Barrier;
use std::time::Duration;
use tcuda::capi::device::tcuda_set_device;
use tcuda::capi::graph::tcuda_graph_destroy;
use tcuda::capi::history::tcuda_memory_record_history;
use tcuda::capi::init::*;
use tcuda::capi::pool::*;
use tcuda::capi::sanitizer::tcuda_sanitizer_set_callback;
use tcuda::capi::stream::*;
use tcuda::runtime::sim;

/// The whole attack of one seed, in a process that has done nothing yet.
fn attack(plan: &'static Plan) {
    trail::begin(plan);
    println!("{plan}");
    watch();
    plan.set_up();
    ok!(tcuda_init(std::ptr::null()));
    ok!(tcuda_set_device(0));
    let world: &World = Box::leak(Box::new(World::new(plan, Slots::new())));
    ok!(tcuda_sanitizer_set_callback(Some(checks::reported), std::ptr::null_mut()));
    if plan.has(Feature::History) {
        const EVERYTHING: i32 = 2;
        ok!(tcuda_memory_record_history(EVERYTHING, u64::MAX, true, ALL));
    }
    if plan.plant == Some(Plant::Done) {
        ["cudaStreamQuery", "cudaEventQuery"].into_iter().for_each(|call| sim::machine().unwrap().faults().pretend(call).unwrap());
    }
    let all = Barrier::new(plan.threads + 1);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 1..=plan.threads {
            let all = &all;
            threads.push(scope.spawn(move || one_thread(world, thread, all)));
        }
        for round in 1..=plan.rests {
            all.wait();
            all.wait();
            checks::rest(world, !plan.has(Feature::Faults));
            if round == plan.rests {
                checks::make_room(world);
            }
            all.wait();
        }
        // To its very end, with which a thread's own default streams go.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    if plan.has(Feature::Shutdown) {
        ok!(tcuda_shutdown());
        checks::nothing_lives(world);
    } else {
        checks::end(world);
    }
    println!("{}", children::DONE);
}

fn one_thread(world: &'static World, thread: usize, all: &Barrier) {
    trail::enter(thread);
    let mut program = Program::new(world, thread);
    for _ in 0..world.plan.rests {
        (0..world.plan.steps).for_each(|_| program.step());
        all.wait();
        checks::settle(world);
        all.wait();
        all.wait();
    }
    if !world.plan.has(Feature::Shutdown) {
        program.end();
    }
}

impl Program {
    /// Gives back what is this thread's alone, in any order.
    fn end(&mut self) {
        self.random = Random::of(self.world.plan.seed, usize::MAX, self.blocks.len());
        while let Some(pool) = self.open.pop() {
            ok!(tcuda_mem_pool_end(pool.raw()));
        }
        let mut parts = vec![0, 1, 2, 3];
        while !parts.is_empty() {
            match parts.swap_remove(self.random.below(parts.len())) {
                0 => {
                    while let Some(block) = self.blocks.pop() {
                        self.release(block);
                    }
                }
                1 => {
                    while let Some(pin) = self.pins.pop() {
                        self.release_pin(pin);
                    }
                }
                2 => {
                    note!("all graphs end");
                    while let Some(graph) = self.graphs.pop() {
                        ok!(tcuda_graph_destroy(graph.raw()));
                    }
                }
                _ => {
                    while let Some(pool) = self.pools.first().cloned() {
                        if pool.is_paused() {
                            self.resume(&pool);
                        }
                        note!("pool {} ends", pool.handle);
                        ok!(tcuda_mem_pool_destroy(pool.raw()));
                        self.forget_pool(&pool);
                    }
                }
            }
        }
        for stream in self.captured.drain(..) {
            assert_eq!(stream.kind, Kind::Captured);
            ok!(tcuda_stream_synchronize(stream.hold().raw()));
            ok!(tcuda_stream_destroy(stream.hold().raw()));
        }
    }
}

/// Ends a process in which nothing goes on for a minute.
fn watch() {
    const LONG: usize = 60;
    std::thread::spawn(|| {
        let (mut before, mut still) = (0, 0);
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = trail::length();
            (still, before) = if now == before { (still + 1, before) } else { (0, now) };
            if still == LONG {
                eprintln!("HANGS");
                trail::tell_all();
                unsafe { libc::_exit(1) }
            }
        }
    });
}

#[test]
fn seeds() {
    match children::given_seed() {
        Some((seed, plant)) => attack(Box::leak(Box::new(Plan::of(seed, plant)))),
        None => children::all_go_through(children::seeds()),
    }
}

/// Each defect on purpose, by the seeds of the short form, and by what it does.
#[test]
fn what_is_planted_is_found() {
    for plant in PLANTS {
        let words = match plant {
            Plant::Done | Plant::Unrecorded | Plant::Unnoted => "contents of",
            Plant::Unordered => "the sanitizer reports: Race",
            Plant::Freed => "overlaps",
            Plant::Lost => "blocks of device",
        };
        children::until_found(plant, words);
    }
}
