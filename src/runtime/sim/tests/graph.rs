//! Capture and graphs: what becomes of work, what is refused to whom, and in which order replays go.

use super::*;
use crate::runtime::sim::graph::{Update, dot};
use std::sync::Mutex;

const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

impl Machine {
    fn begin(self, stream: RawStream, mode: i32) -> Result<(), Code> {
        self.slot(Slot::cudaStreamBeginCapture, |sim| sim.begin_capture(stream, mode))
    }

    fn end(self, stream: RawStream) -> Result<RawGraph, Code> {
        self.slot(Slot::cudaStreamEndCapture, |sim| Ok(sim.add_graph(sim.end_capture(stream)?)))
    }

    fn status(self, stream: RawStream) -> i32 {
        self.call(|sim| sim.capture_status(stream)).unwrap().0
    }

    fn exec(self, graph: RawGraph) -> RawGraphExec {
        self.call(|sim| sim.instantiate(graph, 9)).unwrap()
    }

    fn replay(self, exec: RawGraphExec, stream: RawStream) {
        self.call(|sim| sim.launch_graph(exec, stream)).unwrap();
    }

    fn work(self, stream: RawStream, work: impl Fn() + Send + Sync + 'static) -> Result<(), Code> {
        self.call(|sim| sim.launch(stream, work, Vec::new()))
    }

    fn done(self, stream: RawStream) {
        self.slot(Slot::cudaStreamSynchronize, |sim| {
            let (id, _) = sim.stream(stream)?;
            sim.synchronize_stream(id);
            Ok(())
        })
        .unwrap();
    }

    /// In a thread of its own.
    fn elsewhere<T: Send>(self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }
}

#[test]
fn captured_work_is_done_by_each_replay_and_not_before() {
    let m = Machine::new(1);
    let s = m.stream(NON_BLOCKING);
    let memory = m.malloc(64).unwrap();
    let host = m.pinned::<u8>(64);
    let calls = Arc::new(AtomicU64::new(0));
    unsafe extern "C" fn count(data: *mut c_void) {
        unsafe { &*data.cast::<AtomicU64>() }.fetch_add(100, SeqCst);
    }
    m.begin(s, GLOBAL).unwrap();
    m.fill(memory, 7, 64, s).unwrap();
    m.copy(host.as_ptr() as Address, memory, 64, s).unwrap();
    let own = calls.clone();
    m.work(s, move || {
        own.fetch_add(1, SeqCst);
    })
    .unwrap();
    let function = Action::Host { function: count, data: Arc::as_ptr(&calls) as usize };
    assert!(m.call(|sim| sim.keep_action(sim.stream(s)?.0, "HOST", || function)).unwrap());
    assert_eq!((m.status(s), m.status(0)), (1, 0));
    let graph = m.end(s).unwrap();
    assert_eq!((m.status(s), host[0], calls.load(SeqCst)), (0, 0, 0));
    let nodes = m.0.graph_nodes(graph).unwrap();
    assert_eq!(nodes.iter().map(|node| node.kind).collect::<Vec<_>>(), ["MEMSET", "MEMCPY", "KERNEL", "HOST"]);
    assert!(dot(&nodes).contains("\"graph_1_node_1\" -> \"graph_1_node_2\";"));
    let exec = m.exec(graph);
    m.call(|sim| sim.destroy_graph(graph)).unwrap();
    for round in 1..=3 {
        host.fill(0);
        m.replay(exec, s);
        m.done(s);
        assert_eq!((host[63], calls.load(SeqCst)), (7, 101 * round));
    }
    m.replay(exec, 0);
    m.call(|sim| sim.destroy_exec(exec)).unwrap();
    m.done(0);
    assert_eq!(calls.load(SeqCst), 404);
    assert_eq!(m.call(|sim| sim.destroy_exec(exec)), Err(code::INVALID_VALUE));
    assert_eq!((m.0.live(0..1).graphs, m.0.live(0..1).graph_execs, m.0.live(0..1).streams), (0, 0, 1));
}

#[test]
fn forks_join_and_replays_keep_their_order() {
    // A diamond: 0 before 1 and 2, both before 3; what comes behind the launch sees all, and launches do not overlap.
    let mut orders = std::collections::HashSet::new();
    for seed in 0..40 {
        let m = Machine::with(1, Some(seed));
        let (s, t) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING));
        let (fork, join) = (m.event(), m.event());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = |number: u32| {
            let seen = seen.clone();
            move || seen.lock().unwrap().push(number)
        };
        m.begin(s, GLOBAL).unwrap();
        m.work(s, note(0)).unwrap();
        m.record(fork, s).unwrap();
        m.wait(t, fork).unwrap();
        assert_eq!(m.status(t), 1);
        m.work(t, note(1)).unwrap();
        m.work(s, note(2)).unwrap();
        m.record(join, t).unwrap();
        m.wait(s, join).unwrap();
        m.work(s, note(3)).unwrap();
        let exec = m.exec(m.end(s).unwrap());
        assert_eq!(m.status(t), 0);
        m.work(s, note(10)).unwrap();
        m.replay(exec, s);
        m.work(s, note(11)).unwrap();
        m.replay(exec, t);
        m.done(s);
        m.done(t);
        let mut seen = seen.lock().unwrap().clone();
        let after = seen.iter().position(|number| *number == 11).unwrap();
        assert!(after >= 5, "{seen:?}");
        seen.remove(after);
        orders.insert(seen[2]);
        for diamond in [&seen[1..5], &seen[5..9]] {
            let mut inner = diamond[1..3].to_vec();
            inner.sort_unstable();
            assert_eq!((seen[0], diamond[0], inner, diamond[3]), (10, 0, vec![1, 2], 3), "{seen:?}");
        }
    }
    assert_eq!(orders.len(), 2, "what is not ordered always went in one order");
}

#[test]
fn an_event_is_a_node_in_a_capture_only() {
    let m = Machine::new(1);
    let (s, event) = (m.stream(NON_BLOCKING), m.event());
    let record = |flags| m.call(|sim| sim.record_event(event, s, flags));
    let wait = |flags| m.call(|sim| sim.wait_event(s, event, flags));
    assert_eq!((record(1), wait(1)), (Err(code::ILLEGAL_STATE), Err(code::ILLEGAL_STATE)));
    m.begin(s, GLOBAL).unwrap();
    assert_eq!((record(2), wait(3)), (Err(code::INVALID_VALUE), Err(code::INVALID_VALUE)));
    record(1).unwrap();
    wait(1).unwrap();
    // It stands for no point of the capture.
    m.call(|sim| sim.query_event(event)).unwrap();
    let graph = m.end(s).unwrap();
    let kinds: Vec<_> = m.0.graph_nodes(graph).unwrap().iter().map(|node| node.kind).collect();
    assert_eq!(kinds, ["EVENT_RECORD", "WAIT_EVENT"]);
    let exec = m.exec(graph);
    m.call(|sim| sim.destroy_event(event)).unwrap();
    m.replay(exec, s);
    m.done(s);
}

#[test]
fn a_fork_that_is_not_joined_ends_in_an_error() {
    let m = Machine::new(1);
    let (s, t) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING));
    let event = m.event();
    m.begin(s, GLOBAL).unwrap();
    m.record(event, s).unwrap();
    m.wait(t, event).unwrap();
    // Nothing was done there: nothing has to be joined.
    let empty = m.end(s).unwrap();
    assert_eq!(m.0.graph_nodes(empty).unwrap().len(), 0);
    m.begin(s, GLOBAL).unwrap();
    m.record(event, s).unwrap();
    m.wait(t, event).unwrap();
    m.work(t, || ()).unwrap();
    assert_eq!(m.end(t), Err(code::CAPTURE_UNMATCHED));
    assert_eq!((m.status(s), m.end(s)), (2, Err(code::CAPTURE_INVALIDATED)));
    m.begin(s, GLOBAL).unwrap();
    m.record(event, s).unwrap();
    m.wait(t, event).unwrap();
    m.work(t, || ()).unwrap();
    assert_eq!(m.end(s), Err(code::CAPTURE_UNJOINED));
    // Both are usable at once.
    assert_eq!((m.status(s), m.status(t)), (0, 0));
    m.replay(m.exec(empty), s);
    m.done(s);
    m.done(t);
}

#[test]
fn what_a_capture_cannot_hold_ends_it() {
    let m = Machine::new(2);
    let s = m.stream(NON_BLOCKING);
    let (memory, event, past) = (m.malloc(64).unwrap(), m.event(), m.event());
    m.record(past, s).unwrap();
    let pageable = [0u8; 64];
    type Attempt<'a> = Box<dyn Fn() -> Result<(), Code> + 'a>;
    let synchronize =
        |raw: RawStream| m.slot(Slot::cudaStreamSynchronize, |sim| sim.scheduler.line().state.refuse_captured(sim.stream(raw)?.0));
    let attempts: Vec<(Code, Attempt)> = vec![
        (900, Box::new(move || synchronize(s))),
        (900, Box::new(|| m.copy(memory, pageable.as_ptr() as Address, 64, s))),
        (900, Box::new(move || m.call(|sim| sim.malloc_async(64, s)).map(|_| ()))),
        (905, Box::new(move || m.wait(s, past))),
        (907, Box::new(move || m.record(event, s).and_then(|()| m.call(|sim| sim.query_event(event))))),
        (907, Box::new(move || m.record(event, s).and_then(|()| m.call(|sim| sim.synchronize_event(event))))),
        (900, Box::new(move || m.slot(Slot::cudaDeviceSynchronize, |_| Ok(())))),
        (900, Box::new(move || m.malloc(64).map(|_| ()))),
    ];
    for (number, (code, attempt)) in attempts.iter().enumerate() {
        m.begin(s, THREAD_LOCAL).unwrap();
        assert_eq!(attempt(), Err(*code), "{number}");
        assert_eq!((m.status(s), m.work(s, || ())), (2, Err(code::CAPTURE_INVALIDATED)), "{number}");
        assert_eq!((m.end(s), m.status(s)), (Err(code::CAPTURE_INVALIDATED), 0), "{number}");
    }
    m.work(s, || ()).unwrap();
    // A device is concerned by its own captures only, whatever the mode.
    m.begin(s, RELAXED).unwrap();
    assert_eq!(m.call(|sim| sim.scheduler.line().state.refuse_captured_device(1)), Ok(()));
    assert_eq!(m.call(|sim| sim.scheduler.line().state.refuse_captured_device(0)), Err(900));
    assert_eq!(m.end(s), Err(901));
    assert_eq!((m.begin(0, GLOBAL), m.begin(s, 3), m.end(s)), (Err(900), Err(1), Err(401)));
    // An event of a capture that is over is nothing to wait for.
    m.begin(s, GLOBAL).unwrap();
    m.record(event, s).unwrap();
    m.end(s).unwrap();
    assert_eq!((m.wait(s, event), m.call(|sim| sim.query_event(event))), (Err(907), Err(907)));
    m.record(event, s).unwrap();
    m.wait(s, event).unwrap();
    m.call(|sim| sim.query_event(event)).unwrap();
}

#[test]
fn the_mode_says_whose_calls_are_forbidden() {
    let m = Machine::new(1);
    let s = m.stream(NON_BLOCKING);
    let allocate = || m.malloc(64).map(|_| ());
    let relaxed = || {
        m.set_device(0);
        thread::exchange_capture_mode(RELAXED);
        m.malloc(64).map(|_| ())
    };
    for (mode, own, other) in [(GLOBAL, false, false), (THREAD_LOCAL, false, true), (RELAXED, true, true)] {
        for (is_own, allowed) in [(true, own), (false, other)] {
            m.begin(s, mode).unwrap();
            // A thread that says that it knows what it does may.
            assert_eq!(m.elsewhere(relaxed), Ok(()));
            let outcome = if is_own { allocate() } else { m.elsewhere(allocate) };
            assert_eq!(outcome, if allowed { Ok(()) } else { Err(900) }, "{mode} {is_own}");
            assert_eq!(m.end(s).map(|_| ()), if allowed { Ok(()) } else { Err(901) }, "{mode} {is_own}");
        }
        m.begin(s, mode).unwrap();
        let ended = m.elsewhere(|| m.end(s).map(|_| ()));
        assert_eq!(ended, if mode == RELAXED { Ok(()) } else { Err(908) });
        assert_eq!(m.end(s).is_ok(), mode != RELAXED);
    }
}

#[test]
fn the_legacy_stream_does_not_come_behind_a_captured_one() {
    let m = Machine::new(1);
    let (blocking, apart) = (m.stream(0), m.stream(NON_BLOCKING));
    let event = m.event();
    m.begin(apart, GLOBAL).unwrap();
    m.work(0, || ()).unwrap();
    m.record(event, apart).unwrap();
    assert_eq!((m.wait(0, event), m.end(apart)), (Err(906), Err(901)));
    m.begin(blocking, RELAXED).unwrap();
    assert_eq!(m.call(|sim| sim.capture_status(0)), Err(906));
    assert_eq!(m.status(blocking), 1);
    assert_eq!((m.work(0, || ()), m.end(blocking)), (Err(906), Err(901)));
    m.work(0, || ()).unwrap();
}

#[test]
fn captures_do_not_mix_and_streams_that_go_take_theirs_along() {
    let m = Machine::new(1);
    let (s, t) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING));
    let event = m.event();
    m.begin(s, RELAXED).unwrap();
    m.begin(t, RELAXED).unwrap();
    m.record(event, s).unwrap();
    assert_eq!((m.wait(t, event), m.end(s), m.end(t)), (Err(902), Err(901), Err(901)));
    // A stream that joined goes: the capture cannot be whole. The first one goes: it is over.
    for (goes, status) in [(t, 2), (s, 0)] {
        let (s, t) = (m.stream(NON_BLOCKING), m.stream(NON_BLOCKING));
        m.begin(s, RELAXED).unwrap();
        m.record(event, s).unwrap();
        m.wait(t, event).unwrap();
        m.0.retire_stream(stream::stream_id(if status == 2 { t } else { s }).unwrap());
        assert_eq!(m.status(if status == 2 { s } else { t }), status, "{goes}");
        if status == 2 {
            assert_eq!(m.end(s), Err(901));
        }
        assert_eq!(m.0.scheduler.captures.load(SeqCst), 0);
    }
    m.malloc(64).unwrap();
}

#[test]
fn launches_while_capturing_and_updates() {
    let m = Machine::new(1);
    let s = m.stream(NON_BLOCKING);
    let memory = m.malloc(64).unwrap();
    let host = m.pinned::<u8>(64);
    let capture = |value: i32, twice: bool| {
        m.begin(s, GLOBAL).unwrap();
        m.fill(memory, value, 64, s).unwrap();
        if twice {
            m.fill(memory, value, 64, s).unwrap();
        }
        m.end(s).unwrap()
    };
    let exec = m.exec(capture(1, false));
    m.begin(s, GLOBAL).unwrap();
    assert_eq!(m.call(|sim| sim.launch_graph(exec, s)), Err(code::CAPTURE_UNSUPPORTED));
    assert_eq!(m.end(s), Err(code::CAPTURE_INVALIDATED));
    let update = |graph| m.call(|sim| sim.update_exec(exec, graph)).unwrap();
    assert_eq!((update(capture(2, true)), update(capture(2, false))), (Update::TopologyChanged, Update::Done));
    m.begin(s, GLOBAL).unwrap();
    m.work(s, || ()).unwrap();
    assert_eq!(update(m.end(s).unwrap()), Update::NodeTypeChanged);
    m.replay(exec, s);
    m.copy(host.as_ptr() as Address, memory, 64, s).unwrap();
    m.done(s);
    assert_eq!(host[9], 2);
}

#[test]
fn a_replay_of_freed_memory_loses_the_device() {
    let m = Machine::new(1);
    let s = m.stream(NON_BLOCKING);
    let memory = m.malloc(4 << 20).unwrap();
    m.begin(s, GLOBAL).unwrap();
    m.fill(memory, 1, 64, s).unwrap();
    let exec = m.exec(m.end(s).unwrap());
    m.free(memory).unwrap();
    m.replay(exec, s);
    m.done(s);
    assert_eq!(m.0.devices[0].lost(), code::ILLEGAL_ADDRESS);
    assert_eq!(m.call(|sim| sim.launch_graph(exec, s)), Err(code::ILLEGAL_ADDRESS));
}
