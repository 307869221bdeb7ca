//! Streams, events, host functions, and orders that a seed shuffles.

use super::*;

#[test]
fn an_idle_stream_is_done_at_once() {
    let m = Machine::new(1);
    let (stream, event) = (m.stream(NON_BLOCKING), m.event());
    let (device, host) = (m.malloc(8).unwrap(), m.pinned::<u64>(2));
    host[0] = 11;
    m.copy(device, host.as_ptr() as Address, 8, stream).unwrap();
    m.copy(host.as_ptr() as Address + 8, device, 8, stream).unwrap();
    m.record(event, stream).unwrap();
    assert_eq!(m.query_event(event), Ok(()));
    assert_eq!(host[1], 11);
}

#[test]
fn a_busy_stream_reads_pinned_memory_late_and_pageable_memory_early() {
    let m = Machine::new(1);
    let (stream, event) = (m.stream(NON_BLOCKING), m.event());
    let device = m.malloc(16).unwrap();
    let pinned = m.pinned::<u64>(1);
    let mut pageable = [1u64];
    pinned[0] = 1;
    let gate = m.gate(stream);
    m.copy(device, pinned.as_ptr() as Address, 8, stream).unwrap();
    m.copy(device + 8, pageable.as_ptr() as Address, 8, stream).unwrap();
    m.record(event, stream).unwrap();
    assert_eq!(m.query_event(event), Err(600));
    pinned[0] = 2;
    pageable[0] = 2;
    gate.open();
    assert_eq!(m.call(|sim| sim.synchronize_event(event)), Ok(()));
    assert_eq!((m.read(device), m.read(device + 8)), (Ok(2), Ok(1)));
    assert_eq!(pageable[0], 2);
}

#[test]
fn the_legacy_default_stream_and_blocking_streams_wait_for_each_other() {
    let m = Machine::new(1);
    let (blocking, free) = (m.stream(0), m.stream(NON_BLOCKING));
    let cell = m.malloc(8).unwrap();
    let gate = m.gate(blocking);
    m.fill(cell, 1, 8, blocking).unwrap();
    m.fill(cell, 2, 8, 0).unwrap(); // after the blocking stream
    m.fill(cell, 3, 8, blocking).unwrap(); // after the legacy stream
    let done = |raw| m.call(|sim| Ok(sim.stream_is_done(sim.stream(raw)?.0)));
    assert_eq!((done(0), done(blocking), done(free)), (Ok(false), Ok(false), Ok(true)));
    let of_thread = m.call(|sim| sim.stream(2)).unwrap();
    assert_eq!(m.call(|sim| sim.stream(2)), Ok(of_thread));
    assert_ne!(std::thread::spawn(move || m.call(|sim| sim.stream(2))).join().unwrap(), Ok(of_thread));
    m.fill(cell, 4, 8, 2).unwrap(); // a thread's own default stream blocks too
    assert_eq!(done(2), Ok(false));
    gate.open();
    m.call(|sim| sim.stream(0).map(|found| sim.synchronize_stream(found.0))).unwrap();
    m.synchronize().unwrap();
    let value = m.read(cell).unwrap();
    assert!(value == 0x0303_0303_0303_0303 || value == 0x0404_0404_0404_0404, "{value:#x}");
    // A non-blocking stream goes its own way.
    m.delay(0, 10_000);
    m.fill(cell, 5, 8, free).unwrap();
    assert_eq!((done(free), done(0)), (Ok(true), Ok(false)));
    m.0.lose(0, 719);
}

#[test]
fn events_of_every_state() {
    let m = Machine::new(2);
    let (stream, event) = (m.stream(NON_BLOCKING), m.event());
    assert_eq!(m.query_event(event), Ok(()));
    assert_eq!(m.wait(stream, event), Ok(()));
    assert_eq!(m.call(|sim| sim.create_event(8)), Err(1));
    assert_eq!(m.call(|sim| sim.create_event(4)), Err(1));
    let untimed = m.call(|sim| sim.create_event(2)).unwrap();
    let elapsed = |a, b| m.call(|sim| sim.elapsed_time(a, b));
    assert_eq!(elapsed(event, event), Err(400));
    m.record(event, stream).unwrap();
    m.record(untimed, stream).unwrap();
    assert_eq!((elapsed(event, event), elapsed(event, untimed)), (Ok(0.0), Err(400)));
    let end = m.event();
    let gate = m.gate(stream);
    m.record(end, stream).unwrap();
    assert_eq!(elapsed(event, end), Err(600));
    m.delay(stream, 1);
    gate.open();
    m.synchronize().unwrap();
    assert!(elapsed(event, end).unwrap() > 0.0);
    assert_eq!(elapsed(end, event), elapsed(event, end).map(|time| -time));
    for garbage in [0, 1, 0xdead_beef, stream, event + 1, event + 8, usize::MAX] {
        assert_eq!((m.record(garbage, stream), m.query_event(garbage), elapsed(garbage, event)), (Err(400), Err(400), Err(400)));
    }
    assert_eq!(m.record(event, event), Err(400));
    m.set_device(1);
    let other = m.event();
    assert_eq!(m.record(other, stream), Err(400));
    m.record(other, 0).unwrap();
    assert_eq!((elapsed(event, other), m.wait(stream, other)), (Err(400), Ok(())));
    m.call(|sim| sim.destroy_event(event)).unwrap();
    assert_eq!((m.query_event(event), m.call(|sim| sim.destroy_event(event))), (Err(400), Err(400)));
}

#[test]
fn a_stream_that_is_destroyed_finishes_its_work() {
    let m = Machine::new(1);
    let (stream, cell) = (m.stream(NON_BLOCKING), m.malloc(8).unwrap());
    let gate = m.gate(stream);
    m.fill(cell, 9, 8, stream).unwrap();
    let id = m.call(|sim| sim.stream(stream)).unwrap().0;
    m.0.retire_stream(id);
    assert_eq!((m.fill(cell, 1, 8, stream), m.call(|sim| sim.stream(stream))), (Err(400), Err(400)));
    assert_eq!(m.0.live(0..1).streams, 0);
    gate.open();
    m.synchronize().unwrap();
    assert_eq!(m.read(cell), Ok(0x0909_0909_0909_0909));
}

static CALLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn ask_cuda(data: *mut c_void) {
    let m = Machine(unsafe { &*(data as *const Sim) });
    assert_eq!(m.malloc(8), Err(800));
    CALLED.fetch_add(1, SeqCst);
}

#[test]
fn host_functions_run_in_order_and_may_not_call() {
    let m = Machine::new(1);
    let stream = m.stream(NON_BLOCKING);
    for _ in 0..3 {
        m.host(stream, ask_cuda, std::ptr::from_ref(m.0) as usize);
    }
    m.synchronize().unwrap();
    assert_eq!(CALLED.load(SeqCst), 3);
    assert!(m.malloc(8).is_ok());
}

#[test]
fn blocked_host_functions_do_not_hold_up_other_streams() {
    let m = Machine::new(1);
    let cell = m.malloc(8).unwrap();
    let gates: Vec<Gate> = (0..12).map(|_| m.gate(m.stream(NON_BLOCKING))).collect();
    let (stream, event) = (m.stream(NON_BLOCKING), m.event());
    m.delay(stream, 1);
    m.fill(cell, 1, 8, stream).unwrap();
    m.record(event, stream).unwrap();
    m.call(|sim| sim.synchronize_event(event)).unwrap();
    gates.into_iter().for_each(Gate::open);
    m.synchronize().unwrap();
}

// ---- shuffled order

/// Writer and reader on two streams; `waits` puts the wait between them. Returns whether the reader saw what was written.
fn hand_over(seed: u64, waits: bool) -> bool {
    let m = Machine::with(1, Some(seed));
    let (writer, reader, event) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING), m.event());
    let (from, to) = (m.malloc(8).unwrap(), m.malloc(8).unwrap());
    let source = m.pinned::<u64>(1);
    source[0] = 77;
    m.copy(from, source.as_ptr() as Address, 8, writer).unwrap();
    m.record(event, writer).unwrap();
    if waits {
        m.wait(reader, event).unwrap();
    }
    m.copy(to, from, 8, reader).unwrap();
    m.synchronize().unwrap();
    m.read(to).unwrap() == 77
}

#[test]
fn a_seed_shows_a_missing_wait() {
    let wrong = (0..40).filter(|seed| !hand_over(*seed, false)).count();
    assert!(wrong > 1, "{wrong} of 40 orders show it");
    assert!((0..40).all(|seed| hand_over(seed, true)));
}

#[test]
fn a_seed_shows_a_host_that_does_not_wait() {
    let early = (0..40).filter(|seed| {
        let m = Machine::with(1, Some(*seed));
        let (stream, device, host) = (m.stream(NON_BLOCKING), m.malloc(8).unwrap(), m.pinned::<u64>(2));
        host[0] = 5;
        m.copy(device, host.as_ptr() as Address, 8, stream).unwrap();
        m.copy(host.as_ptr() as Address + 8, device, 8, stream).unwrap();
        let early = unsafe { std::ptr::read_volatile(&host[1]) } != 5;
        m.synchronize().unwrap();
        assert_eq!(host[1], 5);
        early
    });
    assert!(early.count() > 1);
}

#[test]
fn a_correct_program_is_right_for_every_seed() {
    for seed in 0..12 {
        let m = Machine::with(2, Some(seed));
        let streams: Vec<RawStream> = (0..6).map(|at| m.stream(at % 2)).collect();
        let event = m.event();
        let cell = m.malloc(8).unwrap();
        m.fill(cell, 0, 8, streams[0]).unwrap();
        for turn in 0..40usize {
            let (last, next) = (streams[turn % 6], streams[(turn * 5 + 1) % 6]);
            m.record(event, last).unwrap();
            m.wait(next, event).unwrap();
            let add = move || unsafe { *(cell as *mut u64) += 1 };
            m.launch(next, vec![span(cell, 8, true)], add).unwrap();
            m.record(event, next).unwrap();
            m.wait(streams[(turn + 1) % 6], event).unwrap();
        }
        m.synchronize().unwrap();
        assert_eq!(m.read(cell), Ok(40), "seed {seed}");
    }
}

#[test]
fn work_that_comes_after_free_is_caught() {
    let m = Machine::new(2);
    let stream = m.stream(NON_BLOCKING);
    let host = m.pinned::<u64>(1);
    m.set_device(1);
    let far = m.malloc(8).unwrap();
    m.set_device(0);
    let gate = m.gate(stream);
    // cudaFree waits for the memory's own device only.
    m.copy(host.as_ptr() as Address, far, 8, stream).unwrap();
    m.free(far).unwrap();
    gate.open();
    assert_eq!(m.synchronize(), Err(700));
}

#[test]
fn a_green_context_is_cut_from_a_device_and_takes_its_streams_along() {
    let m = Machine::new(2);
    let (whole, split) = (m.call(|sim| sim.device_resource(1, 1)).unwrap(), |whole: &DevResource, wanted, least| {
        m.call(|sim| sim.split_resource(whole, wanted, 0, least))
            .map(|(part, made, rest)| (part.multiprocessors, made, rest.multiprocessors))
    });
    assert_eq!(whole.multiprocessors, 132);
    // As a GH200 does with as many, and an H200.
    let cut = [(2, 72), (6, 11), (2, 7), (1, 0), (1, 8), (1, 128)].map(|(wanted, least)| split(&whole, wanted, least).unwrap());
    assert_eq!(cut, [(72, 1, 60), (16, 6, 36), (8, 2, 116), (8, 1, 124), (8, 1, 124), (128, 1, 4)]);
    assert_eq!([129, 132, 133].map(|least| split(&whole, 1, least)), [Ok((132, 1, 0)), Ok((132, 1, 0)), Err(915)]);
    let part = m.call(|sim| sim.split_resource(&whole, 1, 0, 8)).unwrap().0;
    assert_eq!((split(&part, 1, 8), split(&DevResource::NONE, 1, 8)), (Err(915), Err(914)));
    assert_eq!(m.call(|sim| sim.device_resource(0, 2)).err(), Some(914));

    let description = m.call(|sim| sim.describe_resource(&part)).unwrap();
    let create = |device, flags| m.call(|sim| sim.create_green_context(description, device, flags));
    assert_eq!([create(1, 0), create(0, 1), create(7, 1)], [Err(1), Err(1), Err(1)]);
    let context = create(1, 1).unwrap();
    let stream = |flags| m.call(|sim| sim.create_green_stream(context, flags, -99));
    assert_eq!(stream(0), Err(1));
    let (first, second) = (stream(1).unwrap(), stream(1).unwrap());
    assert_eq!(m.call(|sim| sim.stream(first)).map(|found| found.1), Ok(1));
    assert_eq!((m.0.live(0..1).green_contexts, m.0.live(1..2).green_contexts, m.0.live(0..2).streams), (0, 1, 2));
    let gate = m.gate(first);
    m.call(|sim| sim.begin_capture(second, 0)).unwrap();
    assert_eq!(m.call(|sim| sim.destroy_green_context(context)), Ok(()));
    gate.open();
    // Work goes on; the streams are good for nothing, and stay.
    for left in [first, second] {
        assert_eq!(m.call(|sim| sim.stream(left)), Err(709));
    }
    assert_eq!(m.call(|sim| sim.scheduler.line().state.refuse_detached(stream::stream_id(first).unwrap())), Err(709));
    assert_eq!([stream(1).err(), m.call(|sim| sim.destroy_green_context(context)).err()], [Some(201); 2]);
    assert_eq!((m.0.live(0..2).green_contexts, m.0.live(0..2).streams), (0, 2));
}
