//! Stream-ordered memory: what is in order works, what is not is caught, and the pool keeps its account.

use super::super::mem_pool::pool_of;
use super::*;

const MIB: usize = 1 << 20;
const THRESHOLD: i32 = 4;
const RESERVED: i32 = 5;
const RESERVED_HIGH: i32 = 6;
const USED: i32 = 7;
const USED_HIGH: i32 = 8;

impl Machine {
    fn malloc_async(self, size: usize, stream: RawStream) -> Result<Address, Code> {
        self.slot(Slot::cudaMallocAsync, |sim| sim.malloc_async(size, stream))
    }

    fn free_async(self, address: Address, stream: RawStream) -> Result<(), Code> {
        self.slot(Slot::cudaFreeAsync, |sim| sim.free_async(address, stream))
    }

    fn get(self, attribute: i32) -> u64 {
        self.call(|sim| sim.pool_attribute(pool_of(0), attribute)).unwrap()
    }

    fn set(self, attribute: i32, value: u64) -> Result<(), Code> {
        self.call(|sim| sim.set_pool_attribute(pool_of(0), attribute, value))
    }

    fn trim(self, keep: usize) -> Result<(), Code> {
        self.call(|sim| sim.trim_pool(pool_of(0), keep))
    }

    fn synchronize_stream(self, stream: RawStream) {
        self.call(|sim| sim.stream(stream).map(|found| sim.synchronize_stream(found.0))).unwrap();
    }
}

// ---- order

#[test]
fn work_behind_the_allocation_and_before_the_free_is_in_order() {
    let m = Machine::new(1);
    let (a, b, event) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING), m.event());
    let host = m.pinned::<u64>(1);
    let gate = m.gate(a);
    let p = m.malloc_async(MIB + 1, a).unwrap();
    assert_eq!((m.0.memory.attributes(p + MIB).kind, m.0.memory.range_of(p + 1)), (2, Some((p, MIB + 1))));
    m.fill(p, 3, MIB + 1, a).unwrap();
    m.record(event, a).unwrap();
    m.wait(b, event).unwrap();
    m.copy(host.as_ptr() as Address, p, 8, b).unwrap();
    m.record(event, b).unwrap();
    m.wait(a, event).unwrap();
    m.free_async(p, a).unwrap();
    gate.open();
    assert_eq!(m.synchronize(), Ok(()));
    assert_eq!((host[0], m.0.live(0..1).blocks, m.free_bytes()), (0x0303_0303_0303_0303, 0, 1 << 30));
}

#[test]
fn a_use_before_the_allocation_is_caught() {
    let m = Machine::new(1);
    let (a, b) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING));
    let gate = m.gate(a);
    let p = m.malloc_async(8, a).unwrap();
    // Asking for it is allowed; that it comes too early shows when it is done.
    assert_eq!(m.fill(p, 1, 8, b), Ok(()));
    gate.open();
    assert_eq!(m.synchronize(), Err(700));
}

#[test]
fn what_is_asked_for_after_the_free_is_caught_though_the_free_is_to_come() {
    for kernel in [false, true] {
        let m = Machine::new(1);
        let (a, b) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING));
        let p = m.malloc_async(8, a).unwrap();
        let gate = m.gate(a);
        m.free_async(p, a).unwrap();
        assert_eq!((m.fill(p, 1, 8, b), m.fill(p, 1, 8, a), m.copy_now(p, p, 8)), (Err(1), Err(1), Err(1)));
        assert_eq!((m.0.memory.attributes(p).kind, m.0.memory.range_of(p)), (0, None));
        if kernel {
            m.launch(b, vec![span(p, 8, true)], || panic!("must not run")).unwrap();
        }
        gate.open();
        assert_eq!(m.synchronize(), if kernel { Err(700) } else { Ok(()) });
    }
}

#[test]
fn a_use_that_comes_after_the_free_is_caught() {
    let m = Machine::new(1);
    let (a, b) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING));
    let p = m.malloc_async(8, a).unwrap();
    let gate = m.gate(b);
    m.fill(p, 1, 8, b).unwrap();
    m.free_async(p, a).unwrap();
    gate.open();
    assert_eq!(m.synchronize(), Err(700));
}

#[test]
fn a_free_in_the_middle_of_a_use_is_caught() {
    for pooled in [true, false] {
        let m = Machine::new(1);
        let (a, b) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING));
        let p = if pooled { m.malloc_async(8, a) } else { m.malloc(8) }.unwrap();
        let (began, end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (begins, ends) = (began.clone(), end.clone());
        // The delay has a thread of the simulation do it.
        m.delay(b, 1);
        let work = move || {
            begins.store(true, SeqCst);
            until_set(Arc::as_ptr(&ends) as *mut c_void);
        };
        m.launch(b, vec![span(p, 8, true)], work).unwrap();
        until_set(Arc::as_ptr(&began) as *mut c_void);
        assert_eq!(m.free_async(p, a), Ok(()));
        end.store(true, SeqCst);
        assert_eq!(m.synchronize(), Err(700));
    }
}

#[test]
fn frees_of_anything_else_are_caught_and_harm_nothing() {
    let m = Machine::new(1);
    let (stream, p) = (m.stream(NON_BLOCKING), m.malloc_async(1000, 0).unwrap());
    let (host, own, space) = (m.pinned::<u64>(1).as_ptr() as Address, [0u64; 2], m.0.memory.reserve(PAGE, 0, 0).unwrap());
    for wrong in [0, p + 512, p - 512, host, own.as_ptr() as Address, space, 0x1234_5000, usize::MAX] {
        assert_eq!(m.free_async(wrong, stream), Err(1), "{wrong:#x}");
    }
    assert_eq!((m.free_async(p, stream + 8), m.malloc_async(8, stream + 8)), (Err(400), Err(400)));
    assert_eq!(m.get(USED), 1024);
    m.free_async(p, stream).unwrap();
    assert_eq!((m.free_async(p, stream), m.free(p)), (Err(1), Err(1)));
    let q = m.malloc_async(8, stream).unwrap();
    m.free(q).unwrap();
    assert_eq!((m.free_async(q, stream), m.free(q)), (Err(1), Err(1)));
    assert_eq!((m.synchronize(), m.get(USED), m.get(RESERVED)), (Ok(()), 0, 0));
}

#[test]
fn memory_of_either_kind_may_be_freed_either_way() {
    let m = Machine::new(1);
    let stream = m.stream(NON_BLOCKING);
    for size in [100, 5 * MIB] {
        let plain = m.malloc(size).unwrap();
        let gate = m.gate(stream);
        m.fill(plain, 1, size, stream).unwrap();
        m.free_async(plain, stream).unwrap();
        assert_eq!((m.fill(plain, 1, 8, stream), m.free(plain), m.0.live(0..1).blocks), (Err(1), Err(1), 0));
        assert!(m.free_bytes() < 1 << 30);
        gate.open();
        m.synchronize().unwrap();
        assert_eq!((m.free_bytes(), m.get(RESERVED_HIGH)), (1 << 30, 0));
    }
    // Small blocks of the two kinds do not share pages.
    let (plain, p) = (m.malloc(100).unwrap(), m.malloc_async(100, stream).unwrap());
    assert_eq!((m.get(RESERVED), m.free_bytes()), (2 << 20, (1 << 30) - 2 * PAGE));
    m.free(plain).unwrap();
    assert_eq!((m.get(RESERVED), m.free_bytes()), (2 << 20, (1 << 30) - PAGE));
    m.delay(stream, 20);
    m.fill(p, 1, 100, stream).unwrap();
    m.free(p).unwrap();
    // The free waited: nothing was lost, and nothing is held.
    assert_eq!((m.synchronize(), m.free_bytes(), m.get(USED)), (Ok(()), 1 << 30, 0));
}

// ---- the pool

#[test]
fn what_is_above_the_threshold_goes_back_at_a_synchronisation() {
    let m = Machine::new(1);
    let (stream, event) = (m.stream(NON_BLOCKING), m.event());
    let ways: [&dyn Fn(); 3] =
        [&|| m.synchronize_stream(stream), &|| m.call(|sim| sim.synchronize_event(event)).unwrap(), &|| m.synchronize().unwrap()];
    assert_eq!(m.get(THRESHOLD), 0);
    for synchronize in ways {
        let blocks = [100, 3 * MIB, 40 * MIB].map(|size| m.malloc_async(size, stream).unwrap());
        assert_eq!((m.get(USED), m.get(RESERVED)), (512 + (44 << 20), 46 << 20));
        for p in blocks {
            m.free_async(p, stream).unwrap();
        }
        m.record(event, stream).unwrap();
        // All is past, and still the pool's.
        assert_eq!((m.get(USED), m.get(RESERVED), m.free_bytes()), (0, 46 << 20, (1 << 30) - 46 * MIB));
        synchronize();
        assert_eq!((m.get(RESERVED), m.free_bytes(), m.0.live(0..1).blocks), (0, 1 << 30, 0));
    }
    m.set(THRESHOLD, 41 << 20).unwrap();
    let blocks = [100, 3 * MIB, 40 * MIB].map(|size| m.malloc_async(size, stream).unwrap());
    blocks.into_iter().for_each(|p| m.free_async(p, stream).unwrap());
    m.synchronize().unwrap();
    // The oldest went first, until it was enough.
    assert_eq!(m.get(RESERVED), 40 << 20);
    assert_eq!((m.trim(40 * MIB), m.get(RESERVED)), (Ok(()), 40 << 20));
    assert_eq!((m.trim(0), m.get(RESERVED), m.free_bytes()), (Ok(()), 0, 1 << 30));
}

#[test]
fn a_trim_leaves_what_is_in_use_or_still_to_be_freed() {
    let m = Machine::new(1);
    let stream = m.stream(NON_BLOCKING);
    let (p, q) = (m.malloc_async(2 * MIB, stream).unwrap(), m.malloc_async(2 * MIB, stream).unwrap());
    let gate = m.gate(stream);
    m.fill(p, 1, 2 * MIB, stream).unwrap();
    m.free_async(p, stream).unwrap();
    assert_eq!((m.trim(0), m.get(RESERVED)), (Ok(()), 4 << 20));
    gate.open();
    m.synchronize().unwrap();
    assert_eq!((m.get(RESERVED), m.write(q, 5), m.read(q)), (2 << 20, Ok(()), Ok(5)));
}

#[test]
fn freed_memory_is_used_again_where_that_is_in_order() {
    let m = Machine::new(1);
    m.set(THRESHOLD, u64::MAX).unwrap();
    let (a, b, c, event) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING), m.stream(NON_BLOCKING), m.event());
    let p = m.malloc_async(600, a).unwrap();
    let early = m.event();
    m.wait(c, early).unwrap();
    let gate = m.gate(a);
    m.fill(p, 1, 600, a).unwrap();
    m.record(early, a).unwrap();
    m.wait(c, early).unwrap();
    m.free_async(p, a).unwrap();
    // Not for another stream, not for one that waits for what was before the free, and not for another size.
    assert_ne!(m.malloc_async(600, b).unwrap(), p);
    assert_ne!(m.malloc_async(600, c).unwrap(), p);
    assert_ne!(m.malloc_async(2000, a).unwrap(), p);
    // Its own stream; what it had before may still touch all of the old size.
    assert_eq!(m.malloc_async(520, a), Ok(p));
    assert_eq!((m.fill(p, 2, 521, a), m.fill(p, 2, 520, a)), (Err(1), Ok(())));
    m.free_async(p, a).unwrap();
    m.record(event, a).unwrap();
    m.wait(b, event).unwrap();
    assert_eq!(m.malloc_async(600, b), Ok(p));
    m.fill(p, 3, 600, b).unwrap();
    m.free_async(p, b).unwrap();
    assert_ne!(m.malloc_async(600, a).unwrap(), p);
    gate.open();
    m.synchronize_stream(b);
    // Past for everybody.
    assert_eq!(m.malloc_async(600, c), Ok(p));
    assert_eq!((m.synchronize(), m.read(p)), (Ok(()), Ok(0x0303_0303_0303_0303)));
}

#[test]
fn the_pool_counts_towards_the_device_and_gives_way_to_itself() {
    let m = Machine::new(1);
    m.set(THRESHOLD, u64::MAX).unwrap();
    let stream = m.stream(NON_BLOCKING);
    assert_eq!((m.malloc_async(0, stream), m.malloc_async(usize::MAX, stream)), (Ok(0), Err(2)));
    let p = m.malloc_async(1 << 30, stream).unwrap();
    assert_eq!((m.malloc(8), m.malloc_async(8, stream), m.free_bytes()), (Err(2), Err(2), 0));
    let gate = m.gate(stream);
    m.free_async(p, stream).unwrap();
    // Until the free is past its memory is no other size's.
    assert_eq!(m.malloc_async(8, stream), Err(2));
    gate.open();
    m.synchronize().unwrap();
    assert_eq!((m.get(RESERVED), m.malloc(8)), (1 << 30, Err(2)));
    let q = m.malloc_async(8, stream).unwrap();
    assert_eq!((m.get(RESERVED), m.get(USED), m.write(q, 1)), (2 << 20, 512, Ok(())));
}

#[test]
fn the_pool_has_attributes() {
    let m = Machine::new(2);
    let stream = m.stream(NON_BLOCKING);
    let p = m.malloc_async(3 * MIB, stream).unwrap();
    m.free_async(p, stream).unwrap();
    m.synchronize().unwrap();
    let q = m.malloc_async(10, stream).unwrap();
    let values = || [RESERVED, RESERVED_HIGH, USED, USED_HIGH].map(|attribute| m.get(attribute));
    assert_eq!(values(), [2 << 20, 4 << 20, 512, 4 << 20]);
    assert_eq!((m.set(RESERVED_HIGH, 1), m.set(USED_HIGH, 1), m.set(RESERVED, 0), m.set(USED, 0)), (Err(1), Err(1), Err(1), Err(1)));
    assert_eq!((m.set(USED_HIGH, 0), m.set(RESERVED_HIGH, 0), values()), (Ok(()), Ok(()), [2 << 20, 2 << 20, 512, 512]));
    assert_eq!((m.set(0, 0), m.set(9, 0), m.set(1, 0)), (Err(1), Err(1), Err(801)));
    let of = |pool, attribute| m.call(|sim| sim.pool_attribute(pool, attribute));
    assert_eq!((of(pool_of(1), USED), of(pool_of(0), 2), of(pool_of(0), 9)), (Ok(0), Err(801), Err(1)));
    for pool in [0, pool_of(2), pool_of(0) + 8, stream, usize::MAX] {
        assert_eq!((of(pool, USED), m.call(|sim| sim.trim_pool(pool, 0))), (Err(1), Err(1)));
    }
    m.free(q).unwrap();
}

#[test]
fn the_pool_is_that_of_the_streams_device_and_peers_are_let_in_by_name() {
    let m = Machine::new(3);
    let (stream, cell) = (m.stream(NON_BLOCKING), m.malloc(8).unwrap());
    m.set_device(1);
    let p = m.malloc_async(8, stream).unwrap();
    assert_eq!((m.0.memory.attributes(p).device, m.get(USED)), (0, 512));
    m.synchronize_stream(stream);
    m.0.memory.peers.enable(1, 0).unwrap();
    assert_eq!((m.fill(p, 1, 8, 0), m.fill(cell, 1, 8, 0)), (Err(1), Ok(())));
    // Copies go through the owner.
    assert_eq!(m.copy_now(cell, p, 8), Ok(()));
    let set = |access: &[MemAccess]| m.call(|sim| sim.set_pool_access(pool_of(0), access));
    assert_eq!((set(&[access(3, 3)]), set(&[access(1, 2)]), set(&[access(0, 0)])), (Err(101), Err(1), Err(1)));
    assert_eq!((set(&[access(1, 3), access(-1, 3)]), m.fill(p, 1, 8, 0)), (Err(101), Err(1)));
    assert_eq!((set(&[access(1, 3), access(0, 3)]), m.fill(p, 1, 8, 0)), (Ok(()), Ok(())));
    assert_eq!((set(&[access(1, 0)]), m.fill(p, 1, 8, 0)), (Ok(()), Err(1)));
    m.launch(0, vec![span(p, 8, false)], || panic!("must not run")).unwrap();
    assert_eq!(m.synchronize(), Err(700));
}

#[test]
fn a_lost_device_frees_no_memory_in_order() {
    let m = Machine::new(2);
    let stream = m.stream(NON_BLOCKING);
    m.delay(stream, 60_000);
    let (p, q) = (m.malloc_async(8, stream).unwrap(), m.malloc_async(8, stream).unwrap());
    m.free_async(q, stream).unwrap();
    m.0.lose(0, 719);
    assert_eq!((m.malloc_async(8, stream), m.free_async(p, stream), m.trim(0)), (Err(719), Err(719), Err(719)));
    // As on a device that works, cudaFree gives it back, once.
    assert_eq!((m.free(p), m.0.live(0..1).blocks), (Err(719), 0));
    m.set_device(1);
    assert_eq!(m.free(p), Err(1));
}

// ---- shuffled order and threads

/// Memory that one stream allocates and writes, and another reads; `waits` puts the wait between them.
fn hand_over(seed: u64, waits: bool) -> Result<(), Code> {
    let m = Machine::with(1, Some(seed));
    let (a, b, event) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING), m.event());
    let p = m.malloc_async(8, a).unwrap();
    m.record(event, a).unwrap();
    if waits {
        m.wait(b, event).unwrap();
    }
    m.fill(p, 1, 8, b).unwrap();
    m.synchronize()
}

#[test]
fn a_seed_shows_a_use_before_the_allocation() {
    let caught = (0..40).filter(|seed| hand_over(*seed, false) == Err(700)).count();
    assert!(caught > 1, "{caught} of 40 orders show it");
    assert!((0..40).all(|seed| hand_over(seed, true) == Ok(())));
}

#[test]
fn a_seed_shows_a_use_after_the_free() {
    let caught = |waits: bool| {
        let seeds = (0..40).filter(|seed| {
            let m = Machine::with(1, Some(*seed));
            let (a, b, event) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING), m.event());
            let p = m.malloc_async(8, a).unwrap();
            m.record(event, a).unwrap();
            m.wait(b, event).unwrap();
            m.fill(p, 1, 8, b).unwrap();
            m.record(event, b).unwrap();
            if waits {
                m.wait(a, event).unwrap();
            }
            m.free_async(p, a).unwrap();
            m.synchronize() == Err(700)
        });
        seeds.count()
    };
    assert!(caught(false) > 1);
    assert_eq!(caught(true), 0);
}

/// Each thread has a stream; blocks are stamped, go to a stream that all share, and are looked at before that frees them.
fn share(m: Machine, rounds: u64) {
    m.set(THRESHOLD, 8 << 20).unwrap();
    let shared = m.stream(NON_BLOCKING);
    let wrong = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..6u64)
        .map(|number| {
            let wrong = wrong.clone();
            std::thread::spawn(move || {
                let (stream, event) = (m.stream(NON_BLOCKING), m.event());
                for turn in 0..rounds {
                    let size = [8, 600, 3 * MIB][(turn % 3) as usize];
                    let p = m.malloc_async(size, stream).unwrap();
                    let stamp = number << 32 | turn;
                    m.launch(stream, vec![span(p, 8, true)], move || unsafe { *(p as *mut u64) = stamp }).unwrap();
                    let on = if turn % 2 == 0 { shared } else { stream };
                    if on == shared {
                        m.record(event, stream).unwrap();
                        m.wait(shared, event).unwrap();
                    }
                    let wrong = wrong.clone();
                    let look = move || {
                        wrong.fetch_add(u64::from(unsafe { *(p as *const u64) } != stamp), SeqCst);
                    };
                    m.launch(on, vec![span(p, 8, false)], look).unwrap();
                    m.free_async(p, on).unwrap();
                    // What is freed but not past is bounded: the device is no larger.
                    if turn % 16 == 7 {
                        m.synchronize_stream(stream);
                        m.synchronize_stream(shared);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    m.set(THRESHOLD, 0).unwrap();
    assert_eq!((m.synchronize(), wrong.load(SeqCst)), (Ok(()), 0));
    assert_eq!((m.get(USED), m.get(RESERVED), m.free_bytes(), m.0.live(0..1).blocks), (0, 0, 1 << 30, 0));
}

#[test]
fn many_threads_share_the_pool() {
    share(Machine::new(1), 400);
}

#[test]
fn many_threads_share_the_pool_in_any_order() {
    for seed in 0..3 {
        share(Machine::with(1, Some(seed)), 60);
    }
}

// ---- ranges

#[test]
fn an_address_leads_to_what_it_lies_in() {
    let m = Machine::new(1);
    let memory = &m.0.memory;
    let (plain, pinned) = (m.malloc(1000).unwrap(), m.pinned::<u64>(4).as_ptr() as Address);
    let space = memory.reserve(4 * PAGE, 0, 0).unwrap();
    let handle = memory.create(2 * PAGE, &on(0), 0).unwrap();
    memory.map(space + PAGE, 2 * PAGE, 0, handle, 0).unwrap();
    assert_eq!((memory.range_of(plain), memory.range_of(plain + 999)), (Some((plain, 1000)), Some((plain, 1000))));
    assert_eq!((memory.range_of(plain + 1000), memory.range_of(pinned + 31)), (None, Some((pinned, 32))));
    assert_eq!(memory.range_of(space + 2 * PAGE), Some((space + PAGE, 2 * PAGE)));
    assert_eq!([space, space + 3 * PAGE, 0, 0x1234_5000, usize::MAX].map(|wrong| memory.range_of(wrong)), [None; 5]);
    m.free(plain).unwrap();
    assert_eq!(memory.range_of(plain), None);
}
