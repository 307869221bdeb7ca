//! Communicators of simulated devices between processes: they find each other by what a launcher sets, and a process that is killed or
//! stopped is an error on the others. And what ends a process' own device. Every rank, and every case, is a process of its own.

use std::ffi::CStr;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::ptr::{null, null_mut};
use std::time::Duration;
use tcuda::base::dtype::tcuda_dtype_t;
use tcuda::base::{Status, config};
use tcuda::base::{Status::*, dlpack::*};
use tcuda::capi::communicator::*;
use tcuda::capi::copy::tcuda_copy;
use tcuda::capi::device::tcuda_set_device;
use tcuda::capi::error::tcuda_last_error_message;
use tcuda::capi::init::tcuda_shutdown;
use tcuda::capi::sim::*;
use tcuda::capi::stream::tcuda_stream_synchronize;
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::capi::tensor::*;

const SCENE: &str = "TCUDA_TEST_SCENE";
const COUNT: usize = 1000;

// ---- processes

/// The name of the running test.
fn name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

/// Whether this process is one that the test started; it is on the simulated device then.
fn is_child() -> bool {
    let child = std::env::var(SCENE).is_ok_and(|scene| scene == name());
    if child {
        config::set("TCUDA_BACKEND", "sim".into());
    }
    child
}

fn command(variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &name(), "--nocapture"]).env(SCENE, name()).env("TCUDA_SIM_DEVICES", "4").env_remove("TCUDA_SIM_SEED");
    command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// A process, ended at the latest with the test.
struct Process(Child, BufReader<std::process::ChildStdout>);

impl Process {
    fn start(mut command: Command) -> Process {
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Process(child, out)
    }

    /// Waits until it has said a line.
    fn wait_for(&mut self, line: &str) {
        let mut said = String::new();
        while self.1.read_line(&mut said).unwrap() > 0 {
            if said.trim() == line {
                return;
            }
            said.clear();
        }
        panic!("the process ended and never said {line}");
    }

    fn signal(&self, signal: i32) {
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// It ended well, and said this.
    fn ends_with(mut self, line: &str) {
        let mut rest = String::new();
        self.1.read_to_string(&mut rest).unwrap();
        assert!(rest.lines().any(|said| said == line) && self.0.wait().unwrap().success(), "'{line}' is not in:\n{rest}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ranks as a launcher starts them; of `size` the first `started`.
fn start(size: usize, started: usize) -> Vec<Process> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let start = |rank: usize| {
        let mut command = command(&[("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
        Process::start(command)
    };
    (0..started).map(start).collect()
}

/// Runs the body in a process of its own.
fn alone(variables: &[(&str, &str)], body: fn()) {
    if is_child() {
        body();
        println!("\nfine");
    } else {
        Process::start(command(variables)).ends_with("fine");
    }
}

// ---- ranks

fn message() -> String {
    unsafe { CStr::from_ptr(tcuda_last_error_message()) }.to_str().unwrap().to_owned()
}

#[track_caller]
fn ok(status: Status) {
    assert_eq!(status, TCUDA_SUCCESS, "{}", message());
}

fn options(timeout_ms: u32) -> tcuda_communicator_options_t {
    tcuda_communicator_options_t { timeout_ms, ..Default::default() }
}

fn init_from_env(timeout_ms: u32) -> (tcuda_communicator_t, i32) {
    let (mut comm, mut rank, mut device) = (null_mut(), -1, -1);
    unsafe {
        ok(tcuda_communicator_init_from_env(&mut comm, &options(timeout_ms)));
        ok(tcuda_communicator_rank(comm, &mut rank));
        ok(tcuda_communicator_device(comm, &mut device));
    }
    ok(tcuda_set_device(device));
    (comm, rank)
}

fn init_all(count: usize, timeout_ms: u32) -> Vec<tcuda_communicator_t> {
    let devices: Vec<i32> = (0..count as i32).collect();
    let mut all = vec![null_mut(); count];
    ok(unsafe { tcuda_communicator_init_all(all.as_mut_ptr(), devices.as_ptr(), count, &options(timeout_ms)) });
    all
}

/// Packed 32-bit integers on a device.
struct Tensor(*mut tcuda_managed_tensor_t, usize);

impl Tensor {
    fn of(device: i32, value: i32, count: usize) -> Tensor {
        let i32 = tcuda_dtype_t { code: 0, bits: 32, lanes: 1 };
        let mut out = null_mut();
        unsafe {
            ok(tcuda_tensor_empty(&mut out, device, i32, 1, [count as i64].as_ptr(), null_mut()));
            ok(tcuda_copy((*out).tensor.data, vec![value; count].as_ptr().cast(), 4 * count, false));
        }
        Tensor(out, count)
    }

    fn get(&self) -> *const tcuda_tensor_t {
        unsafe { &raw const (*self.0).tensor }
    }

    fn read(&self) -> Vec<i32> {
        let mut numbers = vec![0i32; self.1];
        ok(unsafe { tcuda_copy(numbers.as_mut_ptr().cast(), (*self.0).tensor.data, 4 * self.1, false) });
        numbers
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        ok(unsafe { tcuda_tensor_destroy(self.0) });
    }
}

fn sum(comm: tcuda_communicator_t, output: &Tensor, input: &Tensor) -> Status {
    unsafe { tcuda_communicator_all_reduce(comm, output.get(), input.get(), TCUDA_REDUCE_SUM, null_mut()) }
}

fn wait(comm: tcuda_communicator_t, timeout_ms: u32) -> Status {
    unsafe { tcuda_communicator_synchronize(comm, null_mut(), timeout_ms) }
}

fn default_of(device: usize) -> tcuda_stream_t {
    (0x100 + device) as tcuda_stream_t
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

// ---- the tests

#[test]
fn processes_find_each_other() {
    const SIZE: usize = 4;
    if !is_child() {
        // Backwards, the last one first to end.
        start(SIZE, SIZE).into_iter().rev().for_each(|rank| rank.ends_with("fine"));
        return;
    }
    let before = threads();
    let (comm, rank) = init_from_env(120_000);
    assert_eq!(threads(), before);
    for count in [1, COUNT, 500_000] {
        let input = Tensor::of(rank, rank + 1, count);
        let output = Tensor::of(rank, 0, count);
        ok(sum(comm, &output, &input));
        ok(wait(comm, 0));
        assert!(output.read() == vec![10; count]);
        let all = Tensor::of(rank, 0, count * SIZE);
        ok(unsafe { tcuda_communicator_all_gather(comm, all.get(), input.get(), null_mut()) });
        ok(wait(comm, 0));
        assert!(all.read().chunks(count).enumerate().all(|(from, part)| part.iter().all(|number| *number == from as i32 + 1)));
    }
    // A part of a part, of processes.
    let (mut half, mut one, mut size) = (null_mut(), null_mut(), 0);
    unsafe {
        ok(tcuda_communicator_split(&mut half, comm, rank % 2, 0, null()));
        ok(tcuda_communicator_split(&mut one, half, rank, 0, null()));
        ok(tcuda_communicator_size(half, &mut size));
        assert_eq!(size, 2);
        ok(tcuda_communicator_size(one, &mut size));
        assert_eq!(size, 1);
    }
    for comm in [one, half, comm] {
        ok(tcuda_communicator_destroy(comm));
    }
    // Again, by the same port.
    let (comm, _) = init_from_env(120_000);
    ok(tcuda_communicator_destroy(comm));
    ok(tcuda_shutdown());
    println!("\nfine");
}

#[test]
fn a_process_that_is_killed() {
    if !is_child() {
        let mut ranks = start(3, 3);
        let mut last = ranks.pop().unwrap();
        last.wait_for("ready");
        last.signal(libc::SIGKILL);
        ranks.into_iter().for_each(|rank| rank.ends_with("fine"));
        return;
    }
    let (comm, rank) = init_from_env(120_000);
    let (input, output) = (Tensor::of(rank, 1, COUNT), Tensor::of(rank, 7, COUNT));
    ok(sum(comm, &input, &input));
    ok(wait(comm, 0));
    println!("\nready");
    if rank == 2 {
        std::thread::sleep(Duration::from_secs(3600));
    }
    // It may be known at the call.
    let called = sum(comm, &output, &input);
    let waited = if called == TCUDA_SUCCESS { wait(comm, 0) } else { called };
    assert_eq!(waited, TCUDA_ERROR_REMOTE, "{}", message());
    assert!(message().contains("has gone"), "{}", message());
    // The stream goes on, with nothing half written; the reason stays.
    ok(unsafe { tcuda_stream_synchronize(default_of(rank as usize)) });
    assert_eq!(output.read(), [7; COUNT]);
    assert_eq!(sum(comm, &output, &input), TCUDA_ERROR_REMOTE);
    ok(tcuda_communicator_destroy(comm));
    println!("\nfine");
}

#[test]
fn a_process_that_is_stopped() {
    if !is_child() {
        let mut ranks = start(3, 3);
        let mut last = ranks.pop().unwrap();
        last.wait_for("ready");
        last.signal(libc::SIGSTOP);
        for rank in &mut ranks {
            // They are given work when the other one does nothing for sure.
            rank.wait_for("ready");
        }
        ranks.into_iter().for_each(|rank| rank.ends_with("fine"));
        return;
    }
    let (comm, rank) = init_from_env(120_000);
    let input = Tensor::of(rank, 1, COUNT);
    ok(sum(comm, &input, &input));
    ok(wait(comm, 0));
    println!("\nready");
    if rank == 2 {
        std::thread::sleep(Duration::from_secs(3600));
    }
    ok(sum(comm, &input, &input));
    let status = wait(comm, 300);
    // Who comes second may hear that the first has given up.
    assert!([TCUDA_ERROR_TIMEOUT, TCUDA_ERROR_REMOTE].contains(&status), "{}", message());
    ok(tcuda_communicator_destroy(comm));
    println!("\nfine");
}

#[test]
fn a_process_that_never_comes() {
    if !is_child() {
        start(3, 2).into_iter().for_each(|rank| rank.ends_with("fine"));
        return;
    }
    let mut comm = null_mut();
    assert_eq!(unsafe { tcuda_communicator_init_from_env(&mut comm, &options(1500)) }, TCUDA_ERROR_TIMEOUT, "{}", message());
    let of_rank_0 = std::env::var("RANK").unwrap() == "0";
    assert!(comm.is_null() && message().contains(if of_rank_0 { "these did not come to rank 0: " } else { "1500 ms" }), "{}", message());
    println!("\nfine");
}

/// Each gives to the others what these do not want, or wants what nobody gives.
#[test]
fn ranks_that_name_different_roots() {
    alone(&[], || {
        let tensors = [Tensor::of(0, 1, COUNT), Tensor::of(1, 1, COUNT)];
        let broadcast =
            |comm, tensor: &Tensor, root| unsafe { tcuda_communicator_broadcast(comm, tensor.get(), tensor.get(), root, null_mut()) };
        let reduce = |comm, tensor: &Tensor, root| unsafe {
            tcuda_communicator_reduce(comm, tensor.get(), tensor.get(), TCUDA_REDUCE_SUM, root, null_mut())
        };
        type Call<'a> = &'a dyn Fn(tcuda_communicator_t, &Tensor) -> Status;
        let calls: [(&str, [Call; 2]); 3] = [
            ("broadcasts", [&|comm, tensor| broadcast(comm, tensor, 0), &|comm, tensor| broadcast(comm, tensor, 1)]),
            ("reductions", [&|comm, tensor| reduce(comm, tensor, 0), &|comm, tensor| reduce(comm, tensor, 1)]),
            ("both", [&|comm, tensor| broadcast(comm, tensor, 0), &|comm, tensor| reduce(comm, tensor, 0)]),
        ];
        for (name, calls) in calls {
            let all = init_all(2, 60_000);
            ok(tcuda_communicator_group_start());
            (0..2).for_each(|rank| ok(calls[rank](all[rank], &tensors[rank])));
            // One of them may have met the other one by then.
            let ended = tcuda_communicator_group_end();
            assert!([TCUDA_SUCCESS, TCUDA_ERROR_REMOTE].contains(&ended), "{name}: {}", message());
            for (rank, comm) in all.iter().enumerate() {
                let status = unsafe { tcuda_communicator_synchronize(*comm, default_of(rank), 0) };
                assert_eq!(status, TCUDA_ERROR_REMOTE, "{name}, rank {rank}: {}", message());
            }
            all.iter().for_each(|comm| ok(tcuda_communicator_destroy(*comm)));
        }
    });
}

#[test]
fn a_device_that_is_lost() {
    alone(&[], || {
        let all = init_all(2, 60_000);
        let tensors = [Tensor::of(0, 1, COUNT), Tensor::of(1, 1, COUNT)];
        // The first rank waits for the second one, which never comes to its call.
        ok(unsafe { tcuda_sim_delay(default_of(1), 3_600_000_000_000) });
        ok(tcuda_communicator_group_start());
        for (comm, tensor) in all.iter().zip(&tensors) {
            ok(sum(*comm, tensor, tensor));
        }
        ok(tcuda_communicator_group_end());
        ok(tcuda_sim_lose_device(1, 719));
        let status = unsafe { tcuda_communicator_synchronize(all[1], default_of(1), 0) };
        assert_eq!(status, TCUDA_ERROR_DEVICE_LOST, "{}", message());
        // It has ended with its device, and the other one hears of it.
        let status = unsafe { tcuda_communicator_synchronize(all[0], default_of(0), 0) };
        assert_eq!(status, TCUDA_ERROR_REMOTE, "{}", message());
        assert_eq!(tensors[0].read(), [1; COUNT]);
        assert_eq!(sum(all[1], &tensors[1], &tensors[1]), TCUDA_ERROR_DEVICE_LOST);
        all.iter().for_each(|comm| ok(tcuda_communicator_destroy(*comm)));
        std::mem::forget(tensors);
    });
}

#[test]
fn memory_that_was_freed() {
    alone(&[], || {
        let all = init_all(2, 60_000);
        let (good, bad) = (Tensor::of(0, 1, COUNT), Tensor::of(1, 1, 1 << 20));
        // Freed by CUDA's own function behind the cache's back, before the stream comes to the call.
        let mut free: [*mut std::ffi::c_void; 1] = [null_mut()];
        let runtime = tcuda::runtime::runtime().unwrap();
        ok(tcuda_set_device(1));
        let block = runtime.malloc(4 * COUNT).unwrap();
        free[0] = block as *mut _;
        let wild = tcuda_tensor_t { data: free[0], shape: [COUNT as i64].as_mut_ptr(), ..unsafe { *bad.get() } };
        runtime.free(block).unwrap();
        let status = unsafe { tcuda_communicator_all_reduce(all[1], &wild, &wild, TCUDA_REDUCE_SUM, null_mut()) };
        assert!(status != TCUDA_SUCCESS && message().contains("'input'"), "{}", message());
        // Nothing has happened.
        ok(tcuda_communicator_group_start());
        let small = Tensor::of(1, 1, COUNT);
        ok(sum(all[0], &good, &good));
        ok(sum(all[1], &small, &small));
        ok(tcuda_communicator_group_end());
        ok(wait(all[1], 0));
        assert_eq!(small.read(), [2; COUNT]);
        all.iter().for_each(|comm| ok(tcuda_communicator_destroy(*comm)));
    });
}

#[test]
fn shutdown_with_work_that_waits() {
    alone(&[], || {
        let all = init_all(3, 200);
        let tensor = Tensor::of(0, 1, COUNT);
        ok(sum(all[0], &tensor, &tensor));
        drop(tensor);
        ok(tcuda_shutdown());
        let mut live: tcuda_sim_live_t = unsafe { std::mem::zeroed() };
        live.struct_size = size_of::<tcuda_sim_live_t>();
        ok(unsafe { tcuda_sim_live(&mut live, -3) });
        assert_eq!((live.blocks, live.handles, live.streams, live.events), (0, 0, 0, 0));
        // What runs late is harmless.
        all.iter().for_each(|comm| ok(tcuda_communicator_destroy(*comm)));
        assert_eq!(wait(all[0], 0), TCUDA_ERROR_SHUT_DOWN);
    });
}

#[test]
fn work_that_is_done_at_once() {
    alone(&[("CUDA_LAUNCH_BLOCKING", "1")], || {
        let all = init_all(4, 60_000);
        let tensors: Vec<Tensor> = (0..4).map(|device| Tensor::of(device, 1, COUNT)).collect();
        for _ in 0..300 {
            ok(tcuda_communicator_group_start());
            for (comm, tensor) in all.iter().zip(&tensors) {
                ok(sum(*comm, tensor, tensor));
                ok(unsafe { tcuda_communicator_all_reduce(*comm, tensor.get(), tensor.get(), TCUDA_REDUCE_AVERAGE, null_mut()) });
            }
            ok(tcuda_communicator_group_end());
        }
        for (device, (comm, tensor)) in all.iter().zip(&tensors).enumerate() {
            ok(unsafe { tcuda_communicator_synchronize(*comm, default_of(device), 0) });
            assert_eq!(tensor.read(), [1; COUNT]);
            ok(tcuda_communicator_destroy(*comm));
        }
    });
}

#[test]
fn ids_and_ranks_that_are_wrong() {
    alone(&[], || unsafe {
        let mut id = tcuda_communicator_id_t { bytes: [0; 128] };
        let init = |id, size, rank, timeout_ms| {
            let mut comm = null_mut();
            let status = tcuda_communicator_init_rank(&mut comm, size, id, rank, rank, &options(timeout_ms));
            assert!(comm.is_null() == (status != TCUDA_SUCCESS));
            (status, message())
        };
        let (status, text) = init(&id, 2, 0, 100);
        assert!(status == TCUDA_ERROR_INVALID_ARGUMENT && text.contains("tcuda_communicator_unique_id"), "{text}");
        // A rank that is there already.
        ok(tcuda_communicator_unique_id(&mut id));
        let mut first = null_mut();
        let early = tcuda_communicator_options_t { non_blocking: 1, ..options(60_000) };
        ok(tcuda_communicator_init_rank(&mut first, 2, &id, 0, 0, &early));
        let (status, text) = init(&id, 2, 0, 100);
        assert!(status == TCUDA_ERROR_INVALID_ARGUMENT && text.contains("rank 0"), "{text}");
        // Another number of ranks: both are told.
        let other = std::thread::spawn(move || init(&id, 3, 1, 5000).0);
        let mut ready = false;
        let status = loop {
            match tcuda_communicator_query(first, &mut ready) {
                TCUDA_SUCCESS => assert!(!ready),
                status => break status,
            }
        };
        // By itself, or by the end of the other, whichever it hears of first.
        let is_told = |status| [TCUDA_ERROR_INVALID_ARGUMENT, TCUDA_ERROR_REMOTE].contains(&status);
        assert!(is_told(status) && message().contains("that there are 3"), "{}", message());
        let status = other.join().unwrap();
        assert!(is_told(status), "{status:?}");
        ok(tcuda_communicator_destroy(first));
    });
}
