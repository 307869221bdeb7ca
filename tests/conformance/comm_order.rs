//! torch.cuda.comm: which streams wait for which, over all devices there are, and what the driver is asked for that.

use crate::comm::{Out, devices, made};
use crate::graph::{G, OWN};
use crate::kit::*;
use crate::reference::*;
use crate::tensor::{Managed, refused};
use crate::{get, ok, tests};
use std::ffi::CStr;
use std::ptr::{null, null_mut};
use tcuda::base::dlpack::tcuda_tensor_t;
use tcuda::base::status::tcuda_status_t::{self, *};
use tcuda::capi::comm::*;
use tcuda::capi::copy::tcuda_memset_async;
use tcuda::capi::device::tcuda_synchronize;
use tcuda::capi::graph::*;
use tcuda::capi::sim::{tcuda_sim_call_count, tcuda_sim_clear_faults, tcuda_sim_fail_at};
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;

tests![
    work_before_is_waited_for_and_work_after_waits: [Unfilled],
    streams_with_nothing_to_do_beside_one_that_works: [Unfilled],
    streams_that_block_bring_what_they_come_behind: [TwoDevices, Unfilled],
    other_types_come_behind_what_a_threads_own_stream_has: [TwoDevices, Unfilled],
    captured_streams_are_not_asked: [TwoDevices],
    large_sums_by_every_way_can_be_captured: [TwoDevices, Unfilled],
    broadcasts_by_every_way_can_be_captured: [TwoDevices],
    a_call_that_fails_at_once_ends_no_capture: [TwoDevices],
    lanes_of_streams_that_are_gone_are_not_asked_beside_a_capture: [TwoDevices],
    what_a_failed_call_gave_on_is_waited_for: [Faults, TwoDevices, Unfilled],
    a_call_waits_for_no_other_calls_streams: [TwoDevices, Unfilled],
    rings_of_two_threads_cross: [TwoDevices, Unfilled],
    what_a_call_read_and_wrote_may_be_overwritten_at_once: [TwoDevices, Unfilled],
    a_ring_uses_its_window_again: [TwoDevices],
    what_a_sum_read_may_be_overwritten_at_once: [TwoDevices, Unfilled],
    copies_that_stand_for_inputs_of_later_parts_are_waited_for: [TwoDevices, Unfilled],
    inputs_of_later_parts_are_packed_before_they_are_copied: [TwoDevices, Unfilled],
    large_calls_that_begin_early_are_in_order: [TwoDevices, Unfilled],
    parts_come_behind_what_makes_their_memory: [TwoDevices],
    small_calls_make_few_calls_of_the_driver: [Faults, TwoDevices, Unwatched, Unfilled],
    large_calls_begin_early: [Faults, TwoDevices, Unwatched, Unfilled],
];

pub fn all_are_peers() -> bool {
    let reaches = |a: i32, b: i32| a == b || tcuda::device::peer::can_access(a, b).unwrap();
    devices().into_iter().all(|a| devices().into_iter().all(|b| reaches(a, b)))
}

fn list_of(tensors: &[Managed]) -> Vec<*const tcuda_tensor_t> {
    tensors.iter().map(|tensor| std::ptr::from_ref(tensor.tensor())).collect()
}

fn synchronize() {
    devices().into_iter().for_each(|device| ok!(tcuda_synchronize(device)));
}

/// One tensor of 4099 bytes on every device, each with a stream of its own that is current.
struct Stage {
    tensors: Vec<Managed>,
    streams: Vec<Own>,
}

const SIZE: usize = 4099;

impl Stage {
    fn new() -> Stage {
        let streams: Vec<Own> = devices().into_iter().map(Own::on).collect();
        streams.iter().for_each(|stream| ok!(tcuda_set_stream(stream.0)));
        let tensors: Vec<Managed> = devices().into_iter().map(|device| Managed::empty(device, U8, &[SIZE as i64])).collect();
        let stage = Stage { tensors, streams };
        // They are the default streams' memory.
        synchronize();
        stage.fill(|_| 0);
        synchronize();
        stage
    }

    fn fill(&self, value: impl Fn(i32) -> i32) {
        devices().into_iter().for_each(|device| self.fill_on(device as usize, value(device), self.streams[device as usize].0));
    }

    fn fill_on(&self, at: usize, value: i32, stream: tcuda_stream_t) {
        ok!(tcuda_memset_async(self.tensors[at].tensor().data, value, SIZE, stream));
    }

    /// The bytes of outputs, read on their devices' streams.
    fn check(&self, outs: &[Managed], expected: &[Vec<u8>], scene: &str) {
        for (out, expected) in outs.iter().zip(expected) {
            let stream = self.streams[out.tensor().device.device_id as usize].0;
            assert!(bytes_of(out.tensor().data, expected.len(), stream) == *expected, "{scene}");
        }
    }

    fn list(&self) -> Vec<*const tcuda_tensor_t> {
        list_of(&self.tensors)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        devices().into_iter().for_each(|device| ok!(tcuda_set_stream(default_of(device))));
    }
}

/// What a call makes of tensors whose bytes are their device's number plus one: its outputs, and the bytes of each.
type Act = fn(&Stage) -> (Vec<Managed>, Vec<Vec<u8>>);

const ACTS: [(&str, Act); 5] = [
    ("broadcast", |stage| {
        let outs =
            made(devices().len(), |outs| unsafe { tcuda_comm_broadcast(outs, stage.list()[0], devices().as_ptr(), devices().len()) });
        (outs.into_iter().skip(1).collect(), vec![vec![1; SIZE]; devices().len() - 1])
    }),
    ("broadcast_coalesced", |stage| {
        let list = [stage.list()[0]; 3];
        let count = 3 * devices().len();
        let outs =
            made(count, |outs| unsafe { tcuda_comm_broadcast_coalesced(outs, list.as_ptr(), 3, devices().as_ptr(), devices().len(), 0) });
        (outs.into_iter().skip(3).collect(), vec![vec![1; SIZE]; count - 3])
    }),
    ("reduce_add", |stage| {
        // The last device's, so that a copy is made where there is only one.
        let list: Vec<_> = stage.list().into_iter().chain([stage.list()[0]]).collect();
        let sum = (1..=devices().len() as u8).sum::<u8>() + 1;
        (made(1, |out| unsafe { tcuda_comm_reduce_add(out, list.as_ptr(), list.len(), 0) }), vec![vec![sum; SIZE]])
    }),
    ("scatter", |stage| {
        let outs = made(devices().len(), |outs| unsafe {
            tcuda_comm_scatter(outs, stage.list()[0], devices().as_ptr(), devices().len(), null(), 0, null())
        });
        let expected = outs.iter().skip(1).map(|out| vec![1; out.shape()[0] as usize]).collect();
        (outs.into_iter().skip(1).collect(), expected)
    }),
    ("gather", |stage| {
        let list = stage.list();
        let expected = (1..=list.len() as u8).flat_map(|value| [value; SIZE]).collect();
        (made(1, |out| unsafe { tcuda_comm_gather(out, list.as_ptr(), list.len(), 0, 0) }), vec![expected])
    }),
];

/// Each act by each way, with the first and with the last device in mind.
fn for_every_way(scene: impl Fn(&str, Act, usize)) {
    let before = tcuda::base::config::get("TCUDA_COMM_WAY");
    let ways = match before.as_deref() {
        None => vec![None, Some("kernel"), Some("copies"), Some("both"), Some("ring"), Some("split")],
        way => vec![way],
    };
    for way in ways {
        tcuda::base::config::exchange("TCUDA_COMM_WAY", way.map(str::to_owned));
        for (name, act) in ACTS {
            [0, devices().len() - 1].into_iter().for_each(|device| scene(&format!("{name} by {way:?}, device {device}"), act, device));
        }
    }
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before);
}

/// Inputs that are still being written are read when they are; what overwrites them right afterwards comes later; outputs are read on
/// their device's current stream at once. The host waits for none of it.
fn work_before_is_waited_for_and_work_after_waits() {
    for_every_way(|name, act, late| {
        let stage = Stage::new();
        // The first use of a pair of devices, and of a kernel, may wait.
        drop(act(&stage));
        synchronize();
        let gates: Vec<Gate> = stage.streams.iter().map(|stream| Gate::on(stream.0)).collect();
        stage.fill(|device| device + 1);
        let (outs, expected) = act(&stage);
        stage.fill(|_| 99);
        assert!(gates.iter().all(|gate| !gate.was_passed()), "{name} waited on the host");
        // One device is later than all others: order must not depend on which goes on first.
        gates.iter().enumerate().filter(|(at, _)| *at != late).for_each(|(_, gate)| gate.open());
        let opener = gates[late].open_later();
        stage.check(&outs, &expected, name);
        opener.join().unwrap();
    });
}

/// One device works, the others have nothing to do: nobody needs to wait for those, and everybody for the one.
fn streams_with_nothing_to_do_beside_one_that_works() {
    for_every_way(|name, act, late| {
        let stage = Stage::new();
        drop(act(&stage));
        stage.fill(|device| device + 1);
        stage.fill_on(late, 77, stage.streams[late].0);
        synchronize();
        let gate = Gate::on(stage.streams[late].0);
        stage.fill_on(late, late as i32 + 1, stage.streams[late].0);
        let (outs, expected) = act(&stage);
        stage.fill(|_| 99);
        assert!(!gate.was_passed(), "{name} waited on the host");
        let opener = gate.open_later();
        stage.check(&outs, &expected, name);
        opener.join().unwrap();
    });
}

/// A stream that is in order with the legacy default one, as streams of other libraries may be; destroyed at the end.
struct Blocking(tcuda_stream_t);

impl Blocking {
    fn on(device: i32) -> Blocking {
        let _guard = tcuda::device::Guard::new(device).unwrap();
        Blocking(handle(tcuda::runtime::runtime().unwrap().stream_create(0, 0).unwrap()))
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        ok!(tcuda_stream_unregister(self.0));
        tcuda::runtime::runtime().unwrap().stream_destroy(self.0 as usize).unwrap();
    }
}

/// What the legacy default stream got a blocking one comes behind, and the other way round: the one that is current has no work itself.
fn streams_that_block_bring_what_they_come_behind() {
    for (name, act) in ACTS {
        for is_default in [false, true] {
            let stage = Stage::new();
            let blocking = Blocking::on(1);
            let (current, works) = if is_default { (default_of(1), blocking.0) } else { (blocking.0, default_of(1)) };
            drop(act(&stage));
            synchronize();
            stage.fill(|device| device + 1);
            ok!(tcuda_set_stream(current));
            synchronize();
            stage.fill_on(1, 77, current);
            synchronize();
            let gate = Gate::on(works);
            stage.fill_on(1, 2, works);
            let (outs, expected) = act(&stage);
            let opener = gate.open_later();
            // What reads comes behind all as well.
            ok!(tcuda_stream_wait_stream(stage.streams[1].0, current));
            stage.check(&outs, &expected, name);
            opener.join().unwrap();
            synchronize();
            ok!(tcuda_set_stream(stage.streams[1].0));
        }
    }
}

/// Also where elements are converted on the way, or go by memory beside an end, each device's order is that of its current stream.
fn other_types_come_behind_what_a_threads_own_stream_has() {
    const COUNT: usize = 1000;
    let stage = Stage::new();
    let per_thread = handle(2);
    set_device(1);
    ok!(tcuda_set_stream(per_thread));
    set_device(0);
    // Idle at first: what is done once only waits for devices.
    for (is_scatter, is_busy) in [(false, false), (true, false), (false, true), (true, true)] {
        let (here, there) = (Managed::empty(0, F32, &[COUNT as i64]), Managed::empty(1, I32, &[COUNT as i64]));
        let (source, target) = if is_scatter { (&here, &there) } else { (&there, &here) };
        let (writes, reads) = if is_scatter { (stage.streams[0].0, per_thread) } else { (per_thread, stage.streams[0].0) };
        for tensor in [&here, &there] {
            ok!(tcuda_memset_async(tensor.tensor().data, 0, 4 * COUNT, default_of(tensor.tensor().device.device_id)));
        }
        synchronize();
        set_device(source.tensor().device.device_id);
        let gate = Gate::on(writes);
        if !is_busy {
            gate.open();
        }
        ok!(tcuda_memset_async(source.tensor().data, 0x40, 4 * COUNT, writes));
        set_device(0);
        let [from, to] = [source, target].map(|tensor| std::ptr::from_ref(tensor.tensor()));
        ok!(if is_scatter { tcuda_comm_scatter_out(from, &to, 1, 0, null()) } else { tcuda_comm_gather_out(to, &from, 1, 0) });
        let opener = gate.open_later();
        set_device(target.tensor().device.device_id);
        // 0x40404040 as a number of the one type, and as the same number of the other.
        let expected = if is_scatter { 3i32.to_le_bytes() } else { (0x4040_4040i32 as f32).to_le_bytes() };
        assert_eq!(bytes_of(target.tensor().data, 4, reads), expected);
        set_device(0);
        opener.join().unwrap();
        synchronize();
    }
    ok!(tcuda_set_stream(stage.streams[1].0));
}

/// A query would end the capture. What is no part of it is refused, whether it is idle or not: a replay would not wait for it.
fn captured_streams_are_not_asked() {
    let stage = Stage::new();
    let out = Managed::empty(0, U8, &[(SIZE * devices().len()) as i64]);
    let gather = || unsafe { tcuda_comm_gather_out(out.tensor(), stage.list().as_ptr(), stage.list().len(), 0) };
    assert_eq!(gather(), TCUDA_SUCCESS, "{}", message());
    synchronize();
    let centre = stage.streams[0].0;
    let others = || stage.streams.iter().skip(1).map(|stream| stream.0);
    let graph = G::new();
    graph.capture(centre, || {
        others().for_each(|other| ok!(tcuda_stream_wait_stream(other, centre)));
        assert_eq!(gather(), TCUDA_SUCCESS, "{}", message());
        others().for_each(|other| ok!(tcuda_stream_wait_stream(centre, other)));
    });
    for value in [3, 8] {
        stage.fill(|device| device + value);
        others().for_each(|other| ok!(tcuda_stream_wait_stream(centre, other)));
        graph.replay(centre);
        let expected: Vec<u8> = devices().into_iter().flat_map(|device| [(device + value) as u8; SIZE]).collect();
        assert_eq!(bytes_of(out.tensor().data, expected.len(), centre), expected);
    }
    synchronize();
    let last = devices().len() - 1;
    let scenes = [(0, 1, true), (0, 1, false), (1, last, true), (1, last, false)];
    // By way of copies each source takes part by itself.
    for (origin, other, is_idle) in scenes.into_iter().filter(|_| all_are_peers()) {
        let graph = G::new();
        ok!(tcuda_graph_capture_begin(graph.0, stage.streams[origin].0, OWN, TCUDA_CAPTURE_GLOBAL));
        let gate = (!is_idle && origin != other).then(|| Gate::on(stage.streams[other].0));
        // With the only source the centre comes to take part, and the source waits for it.
        let all_take_part = origin == other;
        match all_take_part {
            true => assert_eq!(gather(), TCUDA_SUCCESS, "{}", message()),
            false => refused(gather(), TCUDA_ERROR_CAPTURE, ""),
        }
        drop(gate);
        assert_eq!(tcuda_graph_capture_end(graph.0) == TCUDA_SUCCESS, all_take_part);
        synchronize();
    }
    // Nor is one that the call has no part in.
    let graph = G::new();
    let apart = Own::on(1);
    graph.capture(apart.0, || assert_eq!(gather(), TCUDA_SUCCESS, "{}", message()));
    synchronize();
}

/// Replayed, and called beside the graph while it is there.
fn broadcasts_by_every_way_can_be_captured() {
    let stage = Stage::new();
    let centre = stage.streams[0].0;
    let others = || stage.streams.iter().skip(1).map(|stream| stream.0);
    let outs: Vec<Managed> = devices().into_iter().skip(1).map(|device| Managed::empty(device, U8, &[SIZE as i64])).collect();
    let list: Vec<_> = outs.iter().map(|out| std::ptr::from_ref(out.tensor())).collect();
    let broadcast =
        || assert_eq!(unsafe { tcuda_comm_broadcast_out(stage.list()[0], list.as_ptr(), list.len()) }, TCUDA_SUCCESS, "{}", message());
    let check = |value: u8, scene: &str| {
        for (out, stream) in outs.iter().zip(others()) {
            assert!(bytes_of(out.tensor().data, SIZE, stream).iter().all(|byte| *byte == value), "{scene}");
        }
    };
    let before = tcuda::base::config::get("TCUDA_COMM_WAY");
    for way in ["kernel", "copies", "ring"] {
        tcuda::base::config::exchange("TCUDA_COMM_WAY", Some(way.into()));
        let graph = G::new();
        broadcast();
        synchronize();
        graph.capture(centre, || {
            others().for_each(|other| ok!(tcuda_stream_wait_stream(other, centre)));
            broadcast();
            others().for_each(|other| ok!(tcuda_stream_wait_stream(centre, other)));
        });
        for value in [3, 8] {
            stage.fill(|device| device + value);
            graph.replay(centre);
            others().for_each(|other| ok!(tcuda_stream_wait_stream(other, centre)));
            check(value as u8, way);
            stage.fill(|device| device + value + 1);
            broadcast();
            check(value as u8 + 1, way);
        }
        synchronize();
    }
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before);
}

/// 24 tensors of a MiB on each device: two parts, of 16 and of 8.
struct Many {
    tensors: Vec<Managed>,
    way: Option<String>,
}

const MANY: usize = 24;
const LARGE: usize = 1 << 20;

impl Many {
    fn new(way: &str) -> Many {
        let way = tcuda::base::config::exchange("TCUDA_COMM_WAY", Some(way.into()));
        let tensor = |device| Managed::empty(device, I64, &[LARGE as i64 / 8]);
        let many = Many { tensors: devices().into_iter().flat_map(|device| (0..MANY).map(move |_| tensor(device))).collect(), way };
        many.fill(|_| 0, &devices().into_iter().map(default_of).collect::<Vec<_>>());
        synchronize();
        many
    }

    fn fill(&self, value: impl Fn(i32) -> i32, streams: &[tcuda_stream_t]) {
        for (at, tensor) in self.tensors.iter().enumerate() {
            let device = at / MANY;
            ok!(tcuda_memset_async(tensor.tensor().data, value(device as i32), LARGE, streams[device]));
        }
    }

    /// The outputs, and the value of all of their bytes.
    fn calls(&self) -> [(&str, Vec<Managed>, u8); 2] {
        let list = list_of(&self.tensors);
        [("broadcast", self.broadcast(&list), 1), ("sum", self.sum(&list), (1..=devices().len() as u8).sum())]
    }

    fn broadcast(&self, list: &[*const tcuda_tensor_t]) -> Vec<Managed> {
        let all = devices();
        let call = |outs| unsafe { tcuda_comm_broadcast_coalesced(outs, list.as_ptr(), MANY, all.as_ptr(), all.len(), 0) };
        made(MANY * all.len(), call).into_iter().skip(MANY).collect()
    }

    fn sum(&self, list: &[*const tcuda_tensor_t]) -> Vec<Managed> {
        made(MANY, |outs| unsafe { tcuda_comm_reduce_add_coalesced(outs, list.as_ptr(), MANY, devices().len(), 0, 0) })
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        tcuda::base::config::exchange("TCUDA_COMM_WAY", self.way.take());
    }
}

/// Where a call has none of these it takes the table's.
fn large_calls_that_begin_early_are_in_order() {
    for way in ["kernel", "both", "ring", "split"] {
        let many = Many::new(way);
        let stage = Stage::new();
        let streams: Vec<_> = stage.streams.iter().map(|stream| stream.0).collect();
        drop(many.calls());
        synchronize();
        let gates: Vec<Gate> = streams.iter().map(|stream| Gate::on(*stream)).collect();
        many.fill(|device| device + 1, &streams);
        let results = many.calls();
        many.fill(|_| 99, &streams);
        assert!(gates.iter().all(|gate| !gate.was_passed()), "{way}: a call waited on the host");
        gates.iter().rev().for_each(Gate::open);
        for (name, outs, value) in &results {
            outs.iter().for_each(|out| {
                let stream = streams[out.tensor().device.device_id as usize];
                assert!(bytes_of(out.tensor().data, LARGE, stream) == vec![*value; LARGE], "{name} by {way}");
            });
        }
        synchronize();
    }
}

/// A broadcast of this kind makes memory on all devices, which no capture can.
fn large_sums_by_every_way_can_be_captured() {
    for way in ["kernel", "ring", "split"] {
        let many = Many::new(way);
        let stage = Stage::new();
        let streams: Vec<_> = stage.streams.iter().map(|stream| stream.0).collect();
        let (centre, others) = (streams[0], &streams[1..]);
        let list = list_of(&many.tensors);
        drop(many.sum(&list));
        synchronize();
        let graph = G::new();
        let sums = graph.capture(centre, || {
            others.iter().for_each(|other| ok!(tcuda_stream_wait_stream(*other, centre)));
            let sums = many.sum(&list);
            others.iter().for_each(|other| ok!(tcuda_stream_wait_stream(centre, *other)));
            sums
        });
        for round in [1, 5] {
            many.fill(|device| device + round, &streams);
            others.iter().for_each(|other| ok!(tcuda_stream_wait_stream(centre, *other)));
            graph.replay(centre);
            let value: i32 = devices().into_iter().map(|device| device + round).sum();
            assert!(
                sums.iter().all(|sum| bytes_of(sum.tensor().data, LARGE, centre) == vec![value as u8; LARGE]),
                "by {way}, round {round}"
            );
        }
        synchronize();
    }
}

/// What is wrong with the inputs is told before anything is enqueued.
fn a_call_that_fails_at_once_ends_no_capture() {
    let stage = Stage::new();
    let centre = stage.streams[0].0;
    let tensors: Vec<Managed> = devices().into_iter().map(|device| Managed::empty(device, F8, &[64])).collect();
    let list = list_of(&tensors);
    let graph = G::new();
    graph.capture(centre, || {
        let mut out = null_mut();
        refused(unsafe { tcuda_comm_reduce_add(&mut out, list.as_ptr(), list.len(), 0) }, TCUDA_ERROR_NOT_SUPPORTED, "");
        ok!(tcuda_memset_async(stage.tensors[0].tensor().data, 5, SIZE, centre));
    });
    graph.replay(centre);
    stage.check(&stage.tensors[..1], &[vec![5; SIZE]], "after a call that failed in the capture");
    synchronize();
}

fn lanes_of_streams_that_are_gone_are_not_asked_beside_a_capture() {
    let many = Many::new("both");
    let list = list_of(&many.tensors);
    let [owner, next, apart] = [(); 3].map(|()| Own::on(0));
    ok!(tcuda_set_stream(owner.0));
    drop(many.broadcast(&list));
    ok!(tcuda_set_stream(next.0));
    drop(owner);
    G::new().capture(apart.0, || drop(many.broadcast(&list)));
    synchronize();
    ok!(tcuda_set_stream(default_of(0)));
}

/// Also while another stream is captured, which hears nothing of it. The outputs' memory may be used again at once.
fn what_a_failed_call_gave_on_is_waited_for() {
    const OPERATING_SYSTEM: i32 = 304;
    let many = Many::new("both");
    let stage = Stage::new();
    let streams: Vec<_> = stage.streams.iter().map(|stream| stream.0).collect();
    let list = list_of(&many.tensors);
    let all = devices();
    drop(many.broadcast(&list));
    synchronize();
    let apart = Own::on(0);
    let acts = if all_are_peers() {
        [(c"cudaMemcpyAsync", 10), (c"cuLaunchKernel", 2)]
    } else {
        [(c"cudaMemcpyPeerAsync", 2), (c"cudaMemcpyPeerAsync", 20)]
    };
    for (function, nth) in acts {
        many.fill(|_| 1, &streams);
        let again = G::new().capture(apart.0, || {
            let mut outs = vec![null_mut(); MANY * all.len()];
            ok!(tcuda_sim_fail_at(function.as_ptr(), nth, OPERATING_SYSTEM));
            let status = unsafe { tcuda_comm_broadcast_coalesced(outs.as_mut_ptr(), list.as_ptr(), MANY, all.as_ptr(), all.len(), 0) };
            ok!(tcuda_sim_clear_faults());
            refused(status, TCUDA_ERROR_CUDA, "");
            let again: Vec<Managed> = (0..MANY).map(|_| Managed::empty(1, I64, &[LARGE as i64 / 8])).collect();
            again.iter().for_each(|tensor| ok!(tcuda_memset_async(tensor.tensor().data, 7, LARGE, streams[1])));
            again
        });
        synchronize();
        let is_kept = |tensor: &Managed| bytes_of(tensor.tensor().data, LARGE, streams[1]) == vec![7; LARGE];
        assert!(again.iter().all(is_kept), "after {function:?} failed");
    }
}

/// Memory that is filled when it is taken (TCUDA_MEMORY_POISON) is so before a part is written there.
fn parts_come_behind_what_makes_their_memory() {
    for way in ["kernel", "both", "ring", "split"] {
        let many = Many::new(way);
        let streams: Vec<_> = devices().into_iter().map(default_of).collect();
        many.fill(|device| device + 1, &streams);
        for _ in 0..2 {
            for (name, outs, value) in many.calls() {
                synchronize();
                outs.iter().for_each(|out| {
                    let stream = streams[out.tensor().device.device_id as usize];
                    assert!(bytes_of(out.tensor().data, LARGE, stream) == vec![value; LARGE], "{name} by {way}");
                });
            }
        }
    }
}

/// Neither by the streams that a ring has of its own.
fn a_call_waits_for_no_other_calls_streams() {
    let before = tcuda::base::config::exchange("TCUDA_COMM_WAY", Some("ring".into()));
    let call = |stage: &Stage| {
        made(devices().len(), |outs| unsafe { tcuda_comm_broadcast(outs, stage.list()[0], devices().as_ptr(), devices().len()) })
    };
    let [second, first] = [Stage::new(), Stage::new()];
    for stage in [&second, &first] {
        stage.streams.iter().for_each(|stream| ok!(tcuda_set_stream(stream.0)));
        drop(call(stage));
    }
    synchronize();
    let gates: Vec<Gate> = first.streams.iter().map(|stream| Gate::on(stream.0)).collect();
    let held = call(&first);
    second.streams.iter().for_each(|stream| ok!(tcuda_set_stream(stream.0)));
    let outs = call(&second);
    // Comes to an end before any gate is opened.
    second.streams.iter().for_each(|stream| ok!(tcuda_stream_synchronize(stream.0)));
    gates.iter().for_each(Gate::open);
    synchronize();
    drop((held, outs));
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before);
}

/// In opposite directions, from each device in turn.
fn rings_of_two_threads_cross() {
    const LONG: usize = 3 << 20;
    let before = tcuda::base::config::exchange("TCUDA_COMM_WAY", Some("ring".into()));
    let act = |reversed: bool| {
        let streams: Vec<Own> = devices().into_iter().map(Own::on).collect();
        streams.iter().for_each(|stream| ok!(tcuda_set_stream(stream.0)));
        let mut all = devices();
        for round in 1..=12 {
            let source = Managed::empty(all[0], U8, &[LONG as i64]);
            ok!(tcuda_memset_async(source.tensor().data, round, LONG, streams[all[0] as usize].0));
            let outs = made(all.len(), |outs| unsafe { tcuda_comm_broadcast(outs, source.tensor(), all.as_ptr(), all.len()) });
            for (device, out) in all.iter().zip(&outs) {
                let stream = streams[*device as usize].0;
                assert!(bytes_of(out.tensor().data, LONG, stream) == vec![round as u8; LONG], "round {round} on device {device}");
                ok!(tcuda_memset_async(out.tensor().data, 0xee, LONG, stream));
            }
            all.rotate_left(1);
            if reversed {
                all.reverse();
            }
        }
        all.iter().for_each(|device| ok!(tcuda_set_stream(default_of(*device))));
    };
    std::thread::scope(|scope| [false, true].map(|reversed| scope.spawn(move || act(reversed))).map(|thread| thread.join().unwrap()));
    synchronize();
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before);
}

/// While a later device has nothing of it yet.
fn what_a_call_read_and_wrote_may_be_overwritten_at_once() {
    const LONG: usize = 5 << 20;
    let before = tcuda::base::config::get("TCUDA_COMM_WAY");
    for way in ["kernel", "copies", "ring"] {
        tcuda::base::config::exchange("TCUDA_COMM_WAY", Some(way.into()));
        let stage = Stage::new();
        let tensors: Vec<Managed> = devices().into_iter().map(|device| Managed::empty(device, U8, &[LONG as i64])).collect();
        let outs: Vec<_> = tensors.iter().skip(1).map(|tensor| std::ptr::from_ref(tensor.tensor())).collect();
        let fill = |at: usize, value| ok!(tcuda_memset_async(tensors[at].tensor().data, value, LONG, stage.streams[at].0));
        let last = outs.len();
        let broadcast = || ok!(tcuda_comm_broadcast_out(tensors[0].tensor(), outs.as_ptr(), outs.len()));
        // The first use of a kernel may wait.
        broadcast();
        for late in [0, 1, last] {
            (0..=last).for_each(|at| fill(at, 0));
            synchronize();
            let gate = Gate::on(stage.streams[late].0);
            fill(0, 5);
            broadcast();
            (0..last).for_each(|at| fill(at, 9));
            let opener = gate.open_later();
            let found = bytes_of(tensors[last].tensor().data, LONG, stage.streams[last].0);
            assert!(found == vec![5; LONG], "by {way}, device {late} late");
            opener.join().unwrap();
            synchronize();
        }
    }
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before);
}

/// Several windows where there are three devices and more.
fn what_a_sum_read_may_be_overwritten_at_once() {
    const LONG: usize = 9 << 20;
    let before = tcuda::base::config::get("TCUDA_COMM_WAY");
    for way in ["kernel", "split", "ring"] {
        tcuda::base::config::exchange("TCUDA_COMM_WAY", Some(way.into()));
        let stage = Stage::new();
        let tensors: Vec<Managed> = devices().into_iter().map(|device| Managed::empty(device, I64, &[LONG as i64 / 8])).collect();
        let list = list_of(&tensors);
        let fill = |at: usize, value| ok!(tcuda_memset_async(tensors[at].tensor().data, value, LONG, stage.streams[at].0));
        let add = || made(1, |out| unsafe { tcuda_comm_reduce_add(out, list.as_ptr(), list.len(), 0) });
        // The first use of a kernel, and of memory, may wait.
        drop([add(), add()]);
        for late in [0, 1, list.len() - 1] {
            (0..list.len()).for_each(|at| fill(at, 0));
            synchronize();
            let gate = Gate::on(stage.streams[late].0);
            (0..list.len()).for_each(|at| fill(at, at as i32 + 1));
            let sum = add();
            (0..list.len()).for_each(|at| fill(at, 99));
            // The next one's memory is what this one gave back.
            let next = add();
            let opener = gate.open_later();
            let found = |sum: &Managed| bytes_of(sum.tensor().data, LONG, stage.streams[0].0);
            let expected = (1..=list.len() as u8).sum();
            assert!(found(&sum[0]) == vec![expected; LONG], "by {way}, device {late} late");
            let next = found(&next[0]);
            let expected = (0x6363_6363_6363_6363_u64.wrapping_mul(list.len() as u64)).to_ne_bytes();
            assert!(next.chunks_exact(8).all(|chunk| chunk == expected), "the next by {way}, device {late} late");
            opener.join().unwrap();
            synchronize();
        }
    }
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before);
}

/// More than two windows, the last of which is neither full nor of whole tiles: on a GPU kernels wait for what the next one has taken.
fn a_ring_uses_its_window_again() {
    const PIECE: usize = 1 << 20;
    let bytes = if backend() == "sim" { 20 } else { 1280 } * PIECE + 48;
    let before = tcuda::base::config::get("TCUDA_COMM_WAY");
    tcuda::base::config::exchange("TCUDA_COMM_WAY", Some("ring".into()));
    let stage = Stage::new();
    let tensors: Vec<Managed> = devices().into_iter().map(|device| Managed::empty(device, I32, &[bytes as i64 / 4])).collect();
    let pieces = bytes.div_ceil(PIECE);
    let size = |piece: usize| PIECE.min(bytes - piece * PIECE);
    let list = list_of(&tensors);
    // What fills new memory does it on default streams.
    synchronize();
    for round in 0..2 {
        let value = |at: usize, piece: usize| ((piece + round) * (at + 3) % 61 + at) as u8;
        for (at, tensor) in tensors.iter().enumerate() {
            for piece in 0..pieces {
                let place = tensor.tensor().data.wrapping_byte_add(piece * PIECE);
                ok!(tcuda_memset_async(place, i32::from(value(at, piece)), size(piece), stage.streams[at].0));
            }
        }
        let sum = made(1, |out| unsafe { tcuda_comm_reduce_add(out, list.as_ptr(), list.len(), 0) });
        let found = bytes_of(sum[0].tensor().data, bytes, stage.streams[0].0);
        for (piece, found) in found.chunks(PIECE).enumerate() {
            let expected = (0..tensors.len()).map(|at| u32::from(value(at, piece))).sum::<u32>();
            let expected = expected.wrapping_mul(0x0101_0101).to_ne_bytes();
            assert!(found.chunks_exact(4).all(|word| word == expected), "round {round}, piece {piece}");
        }
    }
    synchronize();
    tcuda::base::config::exchange("TCUDA_COMM_WAY", before);
}

/// From the second part on the inputs are columns, which are put in order before they are copied beside the source's stream.
fn inputs_of_later_parts_are_packed_before_they_are_copied() {
    let many = Many::new("both");
    let stage = Stage::new();
    let streams: Vec<_> = stage.streams.iter().map(|stream| stream.0).collect();
    const ROWS: i64 = 256;
    let (mut shape, mut strides) = ([ROWS, LARGE as i64 / 8 / ROWS], [1, ROWS]);
    let columns: Vec<tcuda_tensor_t> = many.tensors[16..MANY]
        .iter()
        .map(|plain| tcuda_tensor_t { ndim: 2, shape: shape.as_mut_ptr(), strides: strides.as_mut_ptr(), ..*plain.tensor() })
        .collect();
    let list: Vec<*const tcuda_tensor_t> =
        many.tensors[..16].iter().map(|tensor| std::ptr::from_ref(tensor.tensor())).chain(columns.iter().map(std::ptr::from_ref)).collect();
    drop(many.broadcast(&list));
    for value in [40, 1] {
        synchronize();
        let gate = Gate::on(streams[0]);
        many.fill(|device| device + value, &streams);
        let outs = many.broadcast(&list);
        many.fill(|_| 99, &streams);
        let opener = gate.open_later();
        for (at, out) in outs.iter().enumerate() {
            let stream = streams[out.tensor().device.device_id as usize];
            assert!(bytes_of(out.tensor().data, LARGE, stream) == vec![value as u8; LARGE], "tensor {at}");
        }
        opener.join().unwrap();
    }
    synchronize();
}

/// From the second part on the last device's inputs lie where no kernel reads them.
fn copies_that_stand_for_inputs_of_later_parts_are_waited_for() {
    let many = Many::new("split");
    let stage = Stage::new();
    let streams: Vec<_> = stage.streams.iter().map(|stream| stream.0).collect();
    let last = devices().len() - 1;
    let room: Vec<Managed> = (0..MANY).map(|_| Managed::empty(last as i32, U8, &[LARGE as i64 + 8])).collect();
    let odd: Vec<tcuda_tensor_t> = room
        .iter()
        .zip(&many.tensors[last * MANY..])
        .enumerate()
        .map(|(at, (room, plain))| {
            let mut tensor = *plain.tensor();
            if at >= 16 {
                tensor.data = room.tensor().data.wrapping_byte_add(4);
            }
            tensor
        })
        .collect();
    let plain = many.tensors[..last * MANY].iter().map(|tensor| std::ptr::from_ref(tensor.tensor()));
    let list: Vec<*const tcuda_tensor_t> = plain.chain(odd.iter().map(std::ptr::from_ref)).collect();
    let fill = |value: i32| {
        many.fill(|device| device + value, &streams);
        odd.iter().for_each(|tensor| ok!(tcuda_memset_async(tensor.data, last as i32 + value, LARGE, streams[last])));
    };
    for late in [0, last] {
        fill(50);
        drop(many.sum(&list));
        synchronize();
        let gates: Vec<Gate> = streams.iter().map(|stream| Gate::on(*stream)).collect();
        fill(1);
        let outs = many.sum(&list);
        fill(99);
        gates.iter().enumerate().filter(|(at, _)| *at != late).for_each(|(_, gate)| gate.open());
        let opener = gates[late].open_later();
        let value = (1..=devices().len() as u8).sum::<u8>();
        for (at, out) in outs.iter().enumerate() {
            let found = bytes_of(out.tensor().data, LARGE, streams[0]);
            assert!(found == vec![value; LARGE], "tensor {at}, device {late} late");
        }
        opener.join().unwrap();
        synchronize();
    }
}

fn large_calls_begin_early() {
    let many = Many::new("kernel");
    let stage = Stage::new();
    let watched = [c"cuLaunchKernel", c"cudaEventRecord", c"cudaStreamWaitEvent", c"cudaStreamQuery"];
    let calls = || watched.map(|name| get!(0, out => tcuda_sim_call_count(out, name.as_ptr())));
    let list = list_of(&many.tensors);
    let all = devices().len();
    let acts: [(&dyn Fn() -> Vec<Managed>, usize); 2] = [(&|| many.broadcast(&list), all - 1), (&|| many.sum(&list), all)];
    for (act, addresses) in acts {
        drop(act());
        synchronize();
        let before = calls();
        let outs = act();
        let made: Vec<u64> = calls().iter().zip(before).map(|(after, before)| after - before).collect();
        drop(outs);
        let others = all as u64 - 1;
        // What the arguments of a launch hold.
        let launches: usize = [16, MANY - 16].iter().map(|part| part.div_ceil(240 / (addresses + 3))).sum();
        // Each part comes behind what the devices got before it, of which there is nothing.
        if all_are_peers() {
            assert_eq!(made, [launches as u64, 1, others, 2 * others], "{watched:?}");
        }
    }
    synchronize();
    drop(stage);
}

/// What the runtime is asked for by one call on all devices, when everything was used before: heavy calls first.
fn small_calls_make_few_calls_of_the_driver() {
    const WATCHED: [&CStr; 8] = [
        c"cudaEventCreateWithFlags",
        c"cudaEventRecord",
        c"cudaStreamWaitEvent",
        c"cudaStreamQuery",
        c"cudaSetDevice",
        c"cudaStreamIsCapturing",
        c"cudaThreadExchangeStreamCaptureMode",
        c"cudaGetDevice",
    ];
    let calls = |name: *const std::ffi::c_char| get!(0, out => tcuda_sim_call_count(out, name));
    let all = devices();
    let number = all.len() as u64;
    let tensors: Vec<Managed> = all.iter().map(|device| Managed::empty(*device, F32, &[1024])).collect();
    let list = list_of(&tensors);
    let acts: [(&str, &dyn Fn(*mut Out) -> tcuda_status_t); 4] = [
        ("broadcast", &|outs| unsafe { tcuda_comm_broadcast(outs, list[0], all.as_ptr(), all.len()) }),
        ("reduce_add", &|outs| unsafe { tcuda_comm_reduce_add(outs, list.as_ptr(), all.len(), 0) }),
        ("scatter", &|outs| unsafe { tcuda_comm_scatter(outs, list[0], all.as_ptr(), all.len(), null(), 0, null()) }),
        ("gather", &|outs| unsafe { tcuda_comm_gather(outs, list.as_ptr(), all.len(), 0, 0) }),
    ];
    let have_peers = all_are_peers();
    let own: Vec<Own> = all.iter().map(|device| Own::on(*device)).collect();
    for has_own in [false, true] {
        let streams: Vec<_> = all.iter().map(|device| if has_own { own[*device as usize].0 } else { default_of(*device) }).collect();
        streams.iter().rev().for_each(|stream| ok!(tcuda_set_stream(*stream)));
        for (name, act) in acts {
            for _ in 0..3 {
                drop(made(all.len(), act));
            }
            for is_busy in [false, true] {
                synchronize();
                let gates: Vec<Gate> = streams.iter().filter(|_| is_busy).map(|stream| Gate::on(*stream)).collect();
                let before = (calls(null()), WATCHED.map(|name| calls(name.as_ptr())));
                let outs = made(all.len(), act);
                let after = (calls(null()), WATCHED.map(|name| calls(name.as_ptr())));
                drop((outs, gates));
                let made: Vec<u64> = after.1.iter().zip(before.1).map(|(after, before)| after - before).collect();
                // One event in each direction for each other device, but for those that are idle; the device is set to each of them, to the
                // centre, to each again, and back, where streams are known by it.
                let others = number - 1;
                let most = match (have_peers, has_own, is_busy) {
                    (true, false, false) => vec![0, 1, others, others, 2 * number, 0, 2, 1],
                    (true, false, true) => vec![0, number, 2 * others, others, 2 * number, 0, 2, 1],
                    (true, true, false) => vec![0, 1, others, others, 0, number, 2, 1],
                    (true, true, true) => vec![0, number, 2 * others, others, 0, number, 2, 1],
                    // By way of copies, a few more.
                    (false, ..) => vec![0, 2 * number, 4 * others, others, 6 * number],
                };
                let scene = format!("{name}, streams of their own: {has_own}, busy: {is_busy}");
                let fits = if have_peers { made == most } else { made.iter().zip(&most).all(|(made, most)| made <= most) };
                assert!(fits, "{scene}: {made:?} of {WATCHED:?}, not {most:?}");
                assert!(after.0 - before.0 <= 12 * number, "{scene}: {} calls", after.0 - before.0);
            }
        }
    }
    synchronize();
    all.iter().rev().for_each(|device| ok!(tcuda_set_stream(default_of(*device))));
}
