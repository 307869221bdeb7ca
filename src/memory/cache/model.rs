//! Fronts, homes, the lock of a device and the statistics, the real ones, on the machine of `memory::sync::model`: in every order of steps
//! that is tried no two live blocks overlap, no block is lost, and the figures are right afterwards. On a machine with a defect each of
//! these programs fails, so they can.

use super::block::{self, BlockId, MAPPED, SMALL, State};
use super::core::{Core, Lock, Request, SMALL_LIMIT};
use super::front::{self, Thread};
use super::policy::Load;
use super::segment::Area;
use super::slot::{COMMON, StreamKey, slot_of_block};
use super::{StreamSlot, tls};
use crate::memory::history::{Action, History, Mode};
use crate::memory::lookup;
use crate::memory::marks::Known;
use crate::memory::stats::Family;
use crate::memory::sync::Mutex;
use crate::memory::sync::model::{Defect, explore};
use crate::memory::totals::Totals;
use shuttle::rand::{Rng, thread_rng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Times as many orders as in a short run, by the environment.
fn effort() -> usize {
    std::env::var("TCUDA_MODEL_EFFORT").map_or(1, |text| text.parse().expect("TCUDA_MODEL_EFFORT is a number"))
}

const STREAMS: usize = 2;
const LARGE_BLOCK: usize = SMALL_LIMIT + (512 << 10);
/// Bytes of each stream for small and for large blocks: so few that they run out.
const SMALL_AREA: usize = 6 << 10;
const LARGE_AREA: usize = 3 << 20;

/// In the mail: so far is the thread.
const READY: usize = 0;
const DONE: usize = 1;

/// A device without a driver: two streams with some memory each, or what is everybody's between them too, and threads that come anew in every round.
struct World {
    core: Lock,
    totals: &'static Totals,
    threads: [&'static Thread; 4],
    slots: [StreamSlot; STREAMS],
    /// Whose the parts of an area are, from left to right.
    parts: Vec<StreamSlot>,
    /// What the program holds. It gives a block up before it frees it.
    live: std::sync::Mutex<BTreeMap<usize, usize>>,
    /// On the way to another thread.
    mail: Mutex<Vec<usize>>,
    /// It is a pool of another one, whose streams have handles of their own here.
    is_pool: bool,
}

impl World {
    fn new() -> World {
        World::with(false)
    }

    fn with(common: bool) -> World {
        assert!(block::reserve());
        let totals = Box::leak(Box::new(Totals::new(1 << 30)));
        let core = Core::new(1000, 1000, totals, Box::leak(Box::new(History::idle()))).unwrap();
        World::of(core, common)
    }

    fn pool_of(device: &'static World) -> World {
        let mut core = Core::new(1001, 1000, Totals::part_of(device.totals, 1 << 30), device.core.quiet().history).unwrap();
        core.whole = Some(&device.core);
        World { threads: device.threads, is_pool: true, ..World::of(core, false) }
    }

    fn of(mut core: Core, common: bool) -> World {
        static BASE: AtomicUsize = AtomicUsize::new(0x5c00_0000_0000);
        let totals = core.stats;
        let slots = std::array::from_fn(|raw| core.slot_of(StreamKey { raw: raw + 1, thread: 0 }).unwrap());
        let parts = if common { vec![slots[0], COMMON, slots[1]] } else { slots.to_vec() };
        for (part, small) in [(SMALL_AREA, SMALL), (LARGE_AREA, 0)] {
            let (base, size) = (BASE.fetch_add(16 << 20, Relaxed), part * parts.len());
            let first = core.shelf(parts[0]).pool.insert(base, size, MAPPED | small, State::Free, parts[0]).unwrap();
            core.areas.insert(base, Area { base, size, small: small == SMALL, plain: false, stream: 0, first });
            deal(&mut core, first, &parts);
        }
        slots.iter().for_each(|slot| core.note_wants(*slot));
        let thread = |number| &*Box::leak(Box::new(Thread::new(number as u32 + 1)));
        let threads = std::array::from_fn(thread);
        let (live, mail) = (Default::default(), Mutex::new(Vec::new()));
        World { core: Lock::new(core), totals, threads, slots, parts, live, mail, is_pool: false }
    }

    /// As the stream is called by programs; no address.
    fn handle(&self, stream: usize) -> usize {
        16 + 16 * stream + usize::from(self.is_pool) * 256
    }

    /// As `memory::allocate`. None: there is no room.
    fn malloc(&self, size: usize, stream: usize) -> Option<usize> {
        let address = self.at_once(size, stream).or_else(|| self.take(size, stream)).or_else(|| self.climb(size, self.slots[stream]))?;
        let mut live = self.live.lock().unwrap();
        let end = address + size.next_multiple_of(512);
        let before = live.range(..end).next_back().map_or(0, |(start, size)| start + size);
        assert!(before <= address, "live blocks overlap at 0x{address:x}");
        live.insert(address, end - address);
        Some(address)
    }

    /// What the thread finds at hand.
    fn at_once(&self, size: usize, stream: usize) -> Option<usize> {
        let mut address = 0;
        unsafe { front::malloc(&mut address, size, self.handle(stream)) }.then_some(address)
    }

    /// What it finds there once it has a front.
    fn take(&self, size: usize, stream: usize) -> Option<usize> {
        let (thread, handle) = (tls::get(), self.handle(stream));
        let mut core = self.core.quiet();
        let mut whole = core.whole();
        let front = core.arm(whole.as_deref_mut(), thread, self.slots[stream], true);
        let armed = front.is_some_and(|front| thread.choose(front, handle, handle));
        drop((core, whole));
        if armed { front::take(size, handle, handle) } else { None }
    }

    fn climb(&self, size: usize, slot: StreamSlot) -> Option<usize> {
        let mut core = self.core.lock();
        core.collect();
        core.allocate(slot, &Request::new(size, 1).unwrap(), true)
    }

    /// As `memory::free`. False: it was no block in use.
    fn free(&self, address: usize) -> bool {
        self.live.lock().unwrap().remove(&address);
        if front::free(address) {
            return true;
        }
        let found = lookup::find(address).filter(|found| self.arm_to_free(*found));
        found.is_some() && front::free(address) || self.free_locked(address)
    }

    fn arm_to_free(&self, id: BlockId) -> bool {
        let thread = tls::get();
        let mut core = self.core.quiet();
        let mut whole = core.whole();
        let slot = slot_of_block(id);
        block::at(id).clean() && core.arm(whole.as_deref_mut(), thread, slot, false).map(|front| thread.take_for(front)).is_some()
    }

    fn free_locked(&self, address: usize) -> bool {
        let Some(found) = lookup::find(address) else { return false };
        let mut core = self.core.quiet();
        core.allocated_at(found, address).is_some_and(|id| core.free(id, None))
    }

    /// It is another stream's from now on.
    fn free_on(&self, address: usize, stream: usize) {
        self.live.lock().unwrap().remove(&address);
        let mut core = self.core.quiet();
        let id = core.allocated_at(lookup::find(address).unwrap(), address).expect("the block is in use");
        assert!(core.free(id, Some(self.slots[stream])));
    }

    fn record(&self, address: usize, stream: usize) {
        let mut core = self.core.quiet();
        let id = core.allocated_at(lookup::find(address).unwrap(), address).expect("the block is in use");
        assert!(core.record_use(id, self.slots[stream]));
    }

    /// All work is done, and what is free is everybody's.
    fn share(&self) {
        let mut core = self.core.lock();
        core.collect();
        core.slots.iter_mut().for_each(|slot| slot.known = Known::past(u32::MAX));
        core.advanced = true;
        core.finish_pending();
        core.share_past();
        core.slots.iter_mut().for_each(|slot| slot.known = Known::past(0));
    }

    /// What the calling thread freed for others goes home.
    fn bring_home(&self) {
        let mut core = self.core.quiet();
        for slot in self.slots {
            if let Some(front) = core.fronts.known(tls::get(), slot) {
                core.bring_home(front);
            }
        }
    }

    /// Waits until all that is on the way is what is waited for.
    fn receive(&self, is_it: impl Fn(&[usize]) -> bool) -> Vec<usize> {
        loop {
            let mut mail = self.mail.lock();
            if is_it(&mail) {
                return std::mem::take(&mut *mail);
            }
            drop(mail);
            shuttle::thread::yield_now();
        }
    }

    /// Runs so many threads, and waits for them.
    fn run<const N: usize>(self: &Arc<World>, part: impl Fn(&World, usize) + Send + Sync + 'static) {
        let part = Arc::new(part);
        let start = |number: usize| {
            let (world, part) = (self.clone(), part.clone());
            shuttle::thread::spawn(move || {
                tls::set(world.threads[number]);
                part(&world, number);
            })
        };
        let threads: [_; N] = std::array::from_fn(start);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    /// The entries since the last time, one after the other, lead to what is in use; then they are forgotten.
    fn check_history(&self) {
        let mut core = self.core.lock();
        let trace = core.history.draft(core.fronts.all().filter_map(|front| front.writer())).unwrap().finish().unwrap();
        let mut blocks: BTreeMap<usize, usize> = BTreeMap::new();
        for entry in &trace.entries {
            let (address, size) = (entry.record.address as usize, (entry.record.size as usize).next_multiple_of(512));
            match entry.record.action {
                Action::Alloc => {
                    let before = blocks.range(..address + size).next_back().map_or(0, |(start, size)| start + size);
                    assert!(before <= address, "entries of two blocks in one place");
                    blocks.insert(address, size);
                }
                Action::FreeRequested => assert_eq!(blocks.get(&address), Some(&size), "an entry of a free of no block"),
                Action::FreeCompleted => assert_eq!(blocks.remove(&address), Some(size), "an entry of the end of no block"),
                other => panic!("an entry of {other:?}"),
            }
        }
        assert_eq!(trace.lost, 0);
        // What other streams use is freed, and has no end yet.
        core.pending.iter().for_each(|pending| _ = blocks.remove(&block::at(pending.block).address()));
        assert_eq!(blocks, *self.live.lock().unwrap(), "entries of what is in use");
        core.gather_history();
        core.record_history(Mode::All, usize::MAX, true);
    }

    /// Everything is freed, every thread ends: then all of each area is free and joined, and nothing is counted.
    fn end(&self) {
        let left: Vec<usize> = self.live.lock().unwrap().keys().copied().collect();
        self.mail.lock().clear();
        let mut core = self.core.lock();
        let figures = self.totals.stats();
        assert_eq!(figures.current(Family::Allocation), left.len() as i64, "blocks in use");
        assert_eq!(figures.current(Family::AllocatedBytes), self.live.lock().unwrap().values().sum::<usize>() as i64);
        for address in left {
            assert!(core.free(lookup::find(address).unwrap(), None));
        }
        for thread in self.threads {
            core.forget_thread(thread);
            thread.forget_ways();
        }
        core.collect();
        core.check_slots();
        core.slots.iter_mut().for_each(|slot| slot.known = Known::past(u32::MAX));
        core.advanced = true;
        core.finish_pending();
        core.slots.iter_mut().for_each(|slot| slot.known = Known::past(0));
        core.collect();
        for area in core.areas.values().map(|area| (area.first, area.size)).collect::<Vec<_>>() {
            let blocks: Vec<BlockId> = block::chain(area.0).collect();
            core.check_borders(blocks[0]);
            let free = |id: &BlockId| block::at(*id).state() == State::Free;
            assert!(
                blocks.iter().all(free),
                "an area is not free: {:?}",
                blocks.iter().map(|id| block::at(*id).state()).collect::<Vec<_>>()
            );
            let joined = |pair: &[BlockId]| block::at(pair[0]).owner() != block::at(pair[1]).owner();
            assert!(blocks.windows(2).all(joined), "free neighbours of a stream are one block");
            blocks.iter().for_each(|id| core.list_remove(*id));
            blocks.iter().skip(1).for_each(|_| core.join(blocks[0]));
            assert_eq!(block::at(blocks[0]).size(), area.1, "an area is not whole");
            deal(&mut core, blocks[0], &self.parts);
        }
        core.forget_work();
        for (slot, small) in self.parts.iter().flat_map(|slot| [(*slot, false), (*slot, true)]) {
            assert_eq!(core.list(slot, small).iter().count(), 1, "free blocks that are in no area");
        }
        let figures = self.totals.stats();
        for family in [Family::Allocation, Family::AllocatedBytes, Family::Active, Family::ActiveBytes, Family::RequestedBytes] {
            assert_eq!(figures.current(family), 0, "{family:?}");
        }
        let _whole = core.whole_stopped();
        core.stats.clear();
        self.live.lock().unwrap().clear();
    }
}

/// Each has an equal part of an area, side by side.
fn deal(core: &mut Core, mut id: BlockId, slots: &[StreamSlot]) {
    let size = block::at(id).size() / slots.len();
    for slot in slots {
        let rest = (block::at(id).size() > size).then(|| core.split(id, size));
        let part = core.hand_over(id, *slot);
        core.list_insert(part);
        id = rest.unwrap_or(part);
    }
}

/// Three threads on two streams: each allocates, frees, hands blocks to the others or to the other stream, frees theirs, brings them home,
/// and now and then takes everything into one hand.
fn churn(world: &World, _number: usize) {
    let mut own = Vec::new();
    for _ in 0..8 {
        let any = thread_rng().gen_range(0..17);
        let stream = thread_rng().gen_range(0..4) / 3;
        match any {
            0..=5 => own.extend(world.malloc([512, 512, 700, 1024, 512, LARGE_BLOCK][any], stream)),
            6..=8 => assert!(own.pop().is_none_or(|address| world.free(address))),
            9 | 10 => world.mail.lock().extend(own.pop()),
            11 | 12 => {
                let theirs = world.mail.lock().pop();
                assert!(theirs.is_none_or(|address| world.free(address)));
            }
            13 => world.bring_home(),
            14 => own.last().iter().for_each(|address| world.record(**address, stream)),
            15 => own.pop().into_iter().for_each(|address| world.free_on(address, stream)),
            _ => world.core.lock().collect(),
        }
    }
    world.mail.lock().extend(own);
}

fn all_threads_at_once(rounds: usize, defect: Defect) -> Result<(), String> {
    let world = Arc::new(World::new());
    explore(rounds, 1, defect, move || {
        world.run::<3>(churn);
        world.end();
    })
}

/// What the threads do that do not allocate while streams are as one.
#[derive(Clone, Copy, PartialEq)]
enum Others {
    /// They free blocks where they are.
    Free,
    /// Half of them on the other stream.
    Hand,
    /// They allocate too, so that it is over with that.
    Allocate,
}

/// One thread allocates on both streams, and takes what is everybody's where that fits closer, or nothing else does; others free.
fn as_one(rounds: usize, others: Others) {
    let world = Arc::new(World::with(true));
    let program = move || {
        world.run::<3>(move |world, number| {
            let mut own = Vec::new();
            for _ in 0..10 {
                // What is small is soon used up too.
                const SIZES: [usize; 7] = [LARGE_BLOCK, 1 << 20 | 512, LARGE_BLOCK + 512, 1 << 21, 512, 700, 4000];
                let any = thread_rng().gen_range(0..14);
                let stream = thread_rng().gen_range(0..2);
                match any {
                    0..=6 if number == 0 || others == Others::Allocate && any < 3 => own.extend(world.malloc(SIZES[any], stream)),
                    7 | 8 => assert!(own.pop().is_none_or(|address| world.free(address))),
                    0..=6 | 9 => {
                        let theirs = world.mail.lock().pop();
                        match theirs {
                            Some(address) if others != Others::Free && any < 4 => world.free_on(address, stream),
                            theirs => assert!(theirs.is_none_or(|address| world.free(address))),
                        }
                    }
                    10 => world.share(),
                    11 => world.bring_home(),
                    _ => world.mail.lock().extend(own.pop()),
                }
            }
            world.mail.lock().extend(own);
        });
        world.end();
    };
    explore(rounds, 5 + others as u64, Defect::None, program).unwrap();
}

/// A device and a pool of it. The first is the one that `run` is of.
fn device_and_pool() -> (&'static Arc<World>, &'static World) {
    let device: &'static Arc<World> = Box::leak(Box::new(Arc::new(World::new())));
    (device, Box::leak(Box::new(World::pool_of(device))))
}

/// Threads use a device and its pool, whose figures are a part of the device's.
fn beside_a_pool(rounds: usize, defect: Defect) -> Result<(), String> {
    let (device, pool) = device_and_pool();
    let of = move |address: &usize| if pool.live.lock().unwrap().contains_key(address) { pool } else { &**device };
    let free = move |address: Option<usize>| assert!(address.is_none_or(|address| of(&address).free(address)));
    explore(rounds, 8, defect, move || {
        device.run::<3>(move |_, _| {
            let mut own = Vec::new();
            for _ in 0..8 {
                let any = thread_rng().gen_range(0..15);
                let world = [device, pool][thread_rng().gen_range(0..2)];
                match any {
                    0..=5 => own.extend(world.malloc([512, 512, 700, 1024, 512, LARGE_BLOCK][any], 0)),
                    6..=8 => free(own.pop()),
                    9 => device.mail.lock().extend(own.pop()),
                    10 => {
                        let theirs = device.mail.lock().pop();
                        free(theirs);
                    }
                    11 => world.bring_home(),
                    12 => world.core.lock().collect(),
                    13 => drop((pool.totals.stats(), device.totals.stats())),
                    _ => device.core.lock().reset_peak(),
                }
            }
            device.mail.lock().extend(own);
        });
        // While one thread allocates from here on, peaks are exact.
        tls::set(device.threads[0]);
        [device, pool].into_iter().for_each(|world| world.core.lock().collect());
        [device, pool].into_iter().for_each(|world| world.core.lock().reset_peak());
        let figure = |world: &World, peak: bool| {
            let stats = world.totals.stats();
            if peak { stats.peak(Family::AllocatedBytes) } else { stats.current(Family::AllocatedBytes) }
        };
        let before = [device, pool].map(|world| figure(world, false));
        let more: Vec<usize> = [device, pool, device].into_iter().filter_map(|world| world.malloc(512, 0)).collect();
        let in_pool = more.iter().filter(|block| of(block).is_pool).count();
        more.iter().for_each(|block| free(Some(*block)));
        let had = [more.len(), in_pool].map(|count| 512 * count as i64);
        assert_eq!([device, pool].map(|world| figure(world, true)), [before[0] + had[0], before[1] + had[1]], "peaks");
        pool.end();
        device.end();
    })
}

/// The same while the history is recorded.
fn all_threads_record(rounds: usize, defect: Defect) -> Result<(), String> {
    let world = Arc::new(World::new());
    explore(rounds, 4, defect, move || {
        let mut core = world.core.lock();
        core.gather_history();
        core.record_history(Mode::All, usize::MAX, true);
        drop(core);
        world.run::<3>(churn);
        world.check_history();
        world.end();
    })
}

/// Two threads free one block at the same instant, by the ways there are; then both allocate, and free once more.
fn freed_twice(rounds: usize, defect: Defect) -> Result<(), String> {
    let world = Arc::new(World::new());
    explore(rounds, 2, defect, move || {
        let size = [512, LARGE_BLOCK][thread_rng().gen_range(0..2)];
        let locked = thread_rng().gen_range(0..4) == 0;
        world.run::<2>(move |world, number| {
            if number == 0 {
                let blocks = [512, size].map(|size| world.malloc(size, 0).unwrap());
                world.mail.lock().extend(blocks);
                world.receive(|mail| mail == [READY]);
                // That has stopped this thread's front, which here it gets back.
                let more = world.malloc(512, 0).unwrap();
                world.mail.lock().push(more);
                world.free(blocks[1]);
                world.receive(|mail| mail == [DONE]);
                let again = world.malloc(size, 0).into_iter().chain(world.malloc(512, 0));
                let again: Vec<usize> = again.chain([DONE]).collect();
                world.mail.lock().extend(again);
            } else {
                let blocks = world.receive(|mail| mail.len() == 2);
                // The first gets it a front, so that it can free the second without the lock.
                assert!(world.free(blocks[0]));
                world.mail.lock().push(READY);
                let more = world.receive(|mail| mail.iter().any(|address| *address > DONE));
                if locked {
                    world.free_locked(blocks[1])
                } else {
                    world.free(blocks[1])
                };
                world.mail.lock().push(DONE);
                let again = world.receive(|mail| mail.len() > 1 && mail.ends_with(&[DONE]));
                again.into_iter().filter(|address| *address != DONE).chain(more).for_each(|address| assert!(world.free(address)));
                world.bring_home();
                world.malloc(size, 0);
            }
        });
        world.end();
    })
}

/// One thread allocates and another reads the statistics: no peak is higher than what was ever in use.
fn read_meanwhile(rounds: usize, defect: Defect) -> Result<(), String> {
    let world = Arc::new(World::new());
    explore(rounds, 3, defect, move || {
        world.run::<2>(|world, number| {
            for _ in 0..3 {
                if number == 1 {
                    world.totals.stats();
                } else {
                    let blocks = [world.malloc(1024, 0).unwrap(), world.malloc(512, 0).unwrap()];
                    blocks.into_iter().for_each(|block| assert!(world.free(block)));
                }
            }
        });
        let figures = world.totals.stats();
        assert_eq!((figures.peak(Family::AllocatedBytes), figures.peak(Family::Allocation)), (1536, 2), "peaks");
        world.end();
    })
}

#[test]
fn no_order_of_steps_gives_a_block_to_two() {
    all_threads_at_once(3000 * effort(), Defect::None).unwrap();
}

#[test]
fn no_order_of_steps_gives_what_is_everybodys_to_two() {
    [Others::Free, Others::Hand, Others::Allocate].into_iter().for_each(|others| as_one(1000 * effort(), others));
}

#[test]
fn what_is_everybodys_is_taken_by_the_thread_whose_it_is() {
    explore(1, 6, Defect::None, || {
        let world = Arc::new(World::with(true));
        world.run::<2>(|world, number| {
            let sizes = [LARGE_BLOCK, 3 << 10];
            if number == 0 {
                // The stream has two of either; the third is a part of what is everybody's.
                let all = [sizes[0], sizes[0], sizes[0], sizes[1], sizes[1]];
                assert!(all.iter().all(|size| world.malloc(*size, 0).is_some()));
                // Of which it takes as much as two small ones need at a time.
                let left = || world.core.lock().list(COMMON, true).iter().map(|id| block::at(id).size()).sum::<usize>();
                let left = [(); 4].map(|()| world.malloc(512, 0).map(|_| left()));
                assert_eq!(left, [5 << 10, 5 << 10, 4 << 10, 4 << 10].map(Some));
                world.mail.lock().push(READY);
            } else {
                world.receive(|mail| mail == [READY]);
                assert_eq!((world.take(sizes[0], 0), world.at_once(sizes[1], 0)), (None, None));
                assert!(sizes.iter().all(|size| world.climb(*size, world.slots[0]).is_some_and(|block| world.free(block))));
            }
        });
        world.end();
    })
    .unwrap();
}

#[test]
fn what_is_everybodys_is_joined_with_what_its_stream_has_free_beside_it() {
    explore(1, 7, Defect::None, || {
        let world = World::with(true);
        tls::set(world.threads[0]);
        let at_once = |size: usize| world.at_once(size, 0);
        let first = world.malloc(2 << 20, 0).unwrap();
        // The first that comes under the lock finds that streams are as one.
        assert!(world.malloc(LARGE_BLOCK, 0).is_some_and(|block| world.free(block)));
        world.share();
        // The second time its front is ready.
        assert!((0..2).all(|_| world.malloc(700, 0).is_some()));
        let end = first + (2 << 20);
        assert_eq!(at_once(LARGE_BLOCK), Some(end));
        assert!(world.free(end));
        assert_eq!(at_once(LARGE_BLOCK + 512), Some(end), "its stream's and what is everybody's, in one block");
        assert!(world.free(end));
        // Its stream's own comes first, also what another thread brought home.
        let own = [LARGE_BLOCK, 1 << 21].map(|size| world.malloc(size, 0).unwrap());
        tls::set(world.threads[1]);
        assert!(world.free(own[0]));
        world.bring_home();
        tls::set(world.threads[0]);
        assert_eq!(world.malloc(LARGE_BLOCK, 0), Some(own[0]), "what was brought");
        // Where streams are asked ahead they are before it is torn.
        (0..1 << 15).step_by(64).for_each(|frees| world.core.lock().policy.does_not_rest(Load::AsOne, frees));
        assert!((0..2).all(|_| world.malloc(700, 0).is_some()));
        assert_eq!(at_once(LARGE_BLOCK + 1024), None, "asked first");
        world.share();
        assert!((0..2).all(|_| world.malloc(700, 0).is_some()));
        assert!(at_once(LARGE_BLOCK + 1024).is_some(), "nothing was freed since they were");
        // What another thread gives to another stream may have what is everybody's beside it.
        world.free_on(first, 1);
        assert_eq!(at_once(700), None, "who takes from that was stopped");
    })
    .unwrap();
}

/// By what a pool's own threads do, whatever becomes of its device's.
#[test]
fn who_allocates_from_a_pool_is_known_by_its_own_stops() {
    explore(1, 11, Defect::None, || {
        const MANY: usize = 100;
        let (device, pool) = device_and_pool();
        let allocates = |number: usize| {
            tls::set(pool.threads[number]);
            assert!(pool.malloc(512, 0).is_some_and(|block| pool.free(block)));
        };
        let threads = || pool.core.lock().fronts.threads();
        [0, 1].into_iter().for_each(allocates);
        assert_eq!(threads(), 2);
        for _ in 0..MANY {
            assert!(device.malloc(512, 0).is_some_and(|block| device.free(block)));
            device.core.lock().collect();
        }
        [0, 1].into_iter().for_each(allocates);
        assert_eq!(threads(), 2, "the device's fronts were stopped often");
        (0..MANY).for_each(|_| {
            allocates(0);
            threads();
        });
        assert_eq!(threads(), 1, "the pool's were, and the other thread is at rest");
        pool.end();
        device.end();
    })
    .unwrap();
}

#[test]
fn no_order_of_steps_is_wrong_beside_a_pool() {
    beside_a_pool(3000 * effort(), Defect::None).unwrap();
}

/// One thread allocates here and there, at hand: each peak is that of what it had, to the byte.
#[test]
fn peaks_of_a_device_and_its_pool_are_exact() {
    let round = || {
        let (device, pool) = device_and_pool();
        tls::set(device.threads[0]);
        let worlds = [device, pool];
        let mut live: [Vec<(usize, usize)>; 2] = Default::default();
        let mut peaks = [0; 2];
        for _ in 0..200 {
            let which = thread_rng().gen_range(0..2);
            match thread_rng().gen_range(0..8) {
                0..=3 => {
                    let size = [512, LARGE_BLOCK][thread_rng().gen_range(0..2)];
                    live[which].extend(worlds[which].malloc(size, 0).map(|block| (block, size)));
                }
                4..=6 => assert!(live[which].pop().is_none_or(|(block, _)| worlds[which].free(block))),
                _ => drop(worlds[which].core.lock()),
            }
            // Reading the figures would raise the peaks.
            let [of_device, of_pool] = [0, 1].map(|at| live[at].iter().map(|(_, size)| *size as i64).sum::<i64>());
            peaks = [(of_device + of_pool).max(peaks[0]), of_pool.max(peaks[1])];
        }
        assert_eq!(worlds.map(|world| world.totals.stats().peak(Family::AllocatedBytes)), peaks);
        pool.end();
        device.end();
    };
    explore(1, 10, Defect::None, move || (0..5).for_each(|_| round())).unwrap();
}

#[test]
fn no_order_of_steps_loses_an_entry_of_the_history() {
    all_threads_record(2000 * effort(), Defect::None).unwrap();
}

#[test]
fn a_block_that_is_freed_twice_at_one_instant_is_free_once() {
    freed_twice(3000 * effort(), Defect::None).unwrap();
}

#[test]
fn a_reader_sees_no_peak_that_was_not() {
    read_meanwhile(3000 * effort(), Defect::None).unwrap();
}

/// In a process of its own: what a defect does to the tables of the process would be found by other tests.
#[test]
fn a_machine_with_a_defect_is_found_out() {
    const ALONE: &str = "TCUDA_MODEL_DEFECTS";
    if std::env::var_os(ALONE).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let name = concat!(module_path!(), "::a_machine_with_a_defect_is_found_out").split_once("::").unwrap().1;
        let output = command.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.matches(", found: ").count() == 7, "{said}");
        return;
    }
    for (name, program, defect) in [
        ("a stopper without a barrier", all_threads_at_once as fn(usize, Defect) -> Result<(), String>, Defect::NoBarrier),
        ("a free with a store", freed_twice, Defect::TornExchange),
        ("a home taken by two", all_threads_at_once, Defect::TornSwap),
        ("a region that ends too early", all_threads_at_once, Defect::NoRelease),
        ("an entry that nobody stopped for", all_threads_record, Defect::NoBarrier),
        ("a figure that overtakes another", read_meanwhile, Defect::NoRelease),
        ("a pool's thread that nobody stopped", beside_a_pool, Defect::NoBarrier),
    ] {
        let found = program(20_000, defect).expect_err(name);
        println!("{name}, found: {found}");
    }
}

thread_local!(static BEFORE_THE_CHANGE: std::cell::RefCell<Option<Box<dyn FnOnce()>>> = const { std::cell::RefCell::new(None) });

/// What another thread does while a block is about to be freed on another stream.
pub fn before_the_change() {
    if let Some(work) = BEFORE_THE_CHANGE.take() {
        work();
    }
}

/// Its own thread frees it at that instant, and gets the same address again, now the last of its stream's memory.
#[test]
fn a_block_that_is_freed_twice_at_a_border() {
    explore(1, 9, Defect::None, || {
        let world = Arc::new(World::new());
        tls::set(world.threads[0]);
        let block = world.malloc(512, 0).unwrap();
        let found = lookup::find(block).unwrap();
        let inner = world.clone();
        BEFORE_THE_CHANGE.set(Some(Box::new(move || {
            tls::set(inner.threads[0]);
            assert!(front::free(block), "by its own thread, without the lock");
            let mut address = 0;
            assert!(unsafe { front::malloc(&mut address, SMALL_AREA, inner.handle(0)) });
            assert_eq!(address, block);
            tls::set(inner.threads[1]);
        })));
        tls::set(world.threads[1]);
        world.live.lock().unwrap().remove(&block);
        {
            let mut core = world.core.quiet();
            let id = core.allocated_at(found, block).unwrap();
            assert!(core.free(id, Some(world.slots[1])));
        }
        let mut core = world.core.lock();
        core.collect();
        core.check_borders(core.areas.values().next().unwrap().first);
    })
    .unwrap();
}
