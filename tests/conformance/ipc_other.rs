//! A second process with tcuda in it, which does what it is told line by line.

use crate::ipc_raw::{self, Raw};
use crate::kit::*;
use crate::{get, ok};
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::null_mut;
use std::sync::{Barrier, Mutex};
use tcuda::base::Status;
use tcuda::capi::copy::*;
use tcuda::capi::event::*;
use tcuda::capi::init::tcuda_shutdown;
use tcuda::capi::ipc::*;
use tcuda::capi::structs::{tcuda_event_t, tcuda_stream_t};

pub struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    pub fn new() -> Other {
        Other::with(&[])
    }

    pub fn with(environment: &[(&str, &str)]) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--child", "ipc_other"]).env("TCUDA_BACKEND", backend()).envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Other { child, input, output }
    }

    /// To be answered later.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    /// The answer of what succeeds.
    #[track_caller]
    pub fn did(&mut self, line: &str) -> String {
        let answer = self.ask(line);
        answer.strip_prefix("ok").unwrap_or_else(|| panic!("{line}: {answer}")).trim_start().to_owned()
    }

    /// Its address.
    #[track_caller]
    pub fn import(&mut self, handle: &tcuda_ipc_handle_t) -> String {
        let answer = self.did(&format!("import {}", hex(&handle.bytes)));
        answer.split(' ').next().unwrap().to_owned()
    }

    /// A block of so many bytes of a value there.
    pub fn export(&mut self, size: usize, value: u8, keep_for: u32) -> tcuda_ipc_handle_t {
        tcuda_ipc_handle_t { bytes: bytes(&self.did(&format!("export {size} {value} {keep_for}"))) }
    }

    /// Some of its last block.
    pub fn export_part(&mut self, start: usize, size: usize) -> tcuda_ipc_handle_t {
        tcuda_ipc_handle_t { bytes: bytes(&self.did(&format!("part {start} {size}"))) }
    }

    /// kill -9, and nothing of it is left.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// One that stops it has done so when this returns.
    pub fn signal(&self, signal: i32) {
        let process = self.child.id() as i32;
        assert_eq!(unsafe { libc::kill(process, signal) }, 0);
        if signal == libc::SIGSTOP {
            assert_eq!(unsafe { libc::waitpid(process, &mut 0, libc::WUNTRACED) }, process);
        }
    }

    pub fn end(mut self) {
        self.tell("end");
        assert!(self.child.wait().unwrap().success());
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn bytes(hex: &str) -> [u8; 64] {
    let all: Vec<u8> = (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap()).collect();
    all.try_into().unwrap()
}

pub fn stats() -> tcuda_ipc_stats_t {
    let mut stats: tcuda_ipc_stats_t = unsafe { std::mem::zeroed() };
    stats.struct_size = size_of::<tcuda_ipc_stats_t>();
    ok!(tcuda_ipc_stats(&mut stats));
    stats
}

/// What the process has.
struct Scene {
    stream: tcuda_stream_t,
    blocks: Vec<*mut c_void>,
    handles: Vec<tcuda_ipc_handle_t>,
    events: HashMap<String, tcuda_event_t>,
    gate: Option<Gate>,
    raw: Option<Raw>,
}

/// "ok" and what came out, or the status and the message.
fn told(status: Status, out: impl FnOnce() -> String) -> String {
    match status {
        Status::TCUDA_SUCCESS => format!("ok {}", out()),
        other => format!("{other:?} {}", message().replace('\n', " ")),
    }
}

impl Scene {
    fn block(&mut self, size: usize, value: i32) -> *mut c_void {
        let block = allocate(size, self.stream);
        ok!(tcuda_memset_async(block, value, size, self.stream));
        self.blocks.push(block);
        block
    }

    fn does(&mut self, words: &[&str]) -> String {
        let number = |at: usize| words[at].parse::<i64>().unwrap();
        let pointer = |at: usize| usize::from_str_radix(words[at], 16).unwrap() as *mut c_void;
        let handle = |at: usize| tcuda_ipc_handle_t { bytes: bytes(words[at]) };
        unsafe {
            match words[0] {
                "import" => {
                    let (mut address, mut size, mut device) = (null_mut(), 0, -7);
                    let status = tcuda_ipc_import(&mut address, &mut size, &mut device, &handle(1), self.stream);
                    assert!(status == Status::TCUDA_SUCCESS || (address.is_null() && size == 0 && device == -7));
                    told(status, || format!("{:x} {size} {device}", address as usize))
                }
                // Every byte is the same: that, else -1.
                "value" => {
                    let all = bytes_of(pointer(1), number(2) as usize, self.stream);
                    format!("ok {}", if all.iter().all(|byte| *byte == all[0]) { i32::from(all[0]) } else { -1 })
                }
                "fill" => {
                    let status = tcuda_memset_async(pointer(1), number(3) as i32, number(2) as usize, self.stream);
                    told(status, String::new)
                }
                "close" => told(tcuda_ipc_close(pointer(1), self.stream), String::new),
                "alive" => {
                    let mut alive = false;
                    told(tcuda_ipc_producer_is_alive(&mut alive, pointer(1)), || alive.to_string())
                }
                "export" => {
                    let (size, mut handle) = (number(1) as usize, tcuda_ipc_handle_t { bytes: [0; 64] });
                    let block = self.block(size, number(2) as i32);
                    let status = tcuda_ipc_export(&mut handle, block, size, number(3) as u32, self.stream);
                    self.handles.push(handle);
                    told(status, || hex(&handle.bytes))
                }
                "part" => {
                    let mut handle = tcuda_ipc_handle_t { bytes: [0; 64] };
                    let start = self.blocks.last().unwrap().byte_add(number(1) as usize);
                    told(tcuda_ipc_export(&mut handle, start, number(2) as usize, 0, self.stream), || hex(&handle.bytes))
                }
                "free" => {
                    self.blocks.drain(..).for_each(free);
                    "ok".into()
                }
                "withdraw" => told(tcuda_ipc_withdraw(&self.handles[number(1) as usize]), String::new),
                "collect" => told(tcuda_ipc_collect(), || stats().exported.to_string()),
                "gate" => {
                    self.gate = Some(Gate::on(self.stream));
                    "ok".into()
                }
                "open" => {
                    self.gate = None;
                    "ok".into()
                }
                "event" => {
                    let event = get!(null_mut(), out => tcuda_event_create(out, 6));
                    let mut handle = tcuda_ipc_event_handle_t { bytes: [0; 64] };
                    let status = tcuda_event_ipc_handle(&mut handle, event);
                    self.events.insert(words[1].into(), event);
                    told(status, || hex(&handle.bytes))
                }
                "open_event" => {
                    let mut event = null_mut();
                    let status = tcuda_event_from_ipc_handle(&mut event, 0, &tcuda_ipc_event_handle_t { bytes: bytes(words[2]) });
                    self.events.insert(words[1].into(), event);
                    told(status, String::new)
                }
                "record" => told(tcuda_event_record(self.events[words[1]], self.stream), String::new),
                "wait" => told(tcuda_event_wait(self.events[words[1]], self.stream), String::new),
                "query" => {
                    let mut done = false;
                    told(tcuda_event_query(self.events[words[1]], &mut done), || done.to_string())
                }
                "destroy" => told(tcuda_event_destroy(self.events[words[1]]), String::new),
                // Threads that take and give back the same memory all the time.
                "threads" => {
                    let (handle, stream) = (handle(1), self.stream as usize);
                    let work = move || {
                        for _ in 0..25 {
                            let address =
                                get!(null_mut(), out => tcuda_ipc_import(out, null_mut(), null_mut(), &handle, crate::kit::handle(stream)));
                            ok!(tcuda_ipc_close(address, crate::kit::handle(stream)));
                        }
                    };
                    let threads: Vec<_> = (0..6).map(|_| std::thread::spawn(work)).collect();
                    threads.into_iter().for_each(|thread| thread.join().unwrap());
                    "ok".into()
                }
                // Threads that take the same memory at the same moment: how many addresses it has at most.
                "meet" => {
                    const THREADS: usize = 4;
                    let (handle, stream) = (handle(1), self.stream as usize);
                    let (barrier, found) = (Barrier::new(THREADS), Mutex::new(BTreeSet::new()));
                    let mut most = 0;
                    for _ in 0..number(2) {
                        let work = || {
                            let stream = crate::kit::handle(stream);
                            barrier.wait();
                            let here = get!(null_mut(), out => tcuda_ipc_import(out, null_mut(), null_mut(), &handle, stream));
                            found.lock().unwrap().insert(here as usize);
                            barrier.wait();
                            ok!(tcuda_ipc_close(here, stream));
                        };
                        std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
                        most = most.max(std::mem::take(&mut *found.lock().unwrap()).len());
                    }
                    format!("ok {most}")
                }
                // By hand, and no more said.
                "raw_take" => {
                    let blob = ipc_raw::blob(&handle(1));
                    let raw = self.raw.insert(Raw::connect(&blob.producer));
                    assert!(raw.send(&ipc_raw::request(0, &blob.export, 0), 0));
                    format!("ok {}", raw.receive().map_or("ended", |_| "taken"))
                }
                "raw_nonsense" => {
                    let raw = self.raw.take().unwrap();
                    assert!(raw.send(b"?", 0));
                    format!("ok {}", raw.receive().map_or("ended", |_| "answered"))
                }
                // More questions than answers are read.
                "raw_flood" => {
                    let blob = ipc_raw::blob(&handle(1));
                    let raw = Raw::connect(&blob.producer);
                    let start = std::time::Instant::now();
                    while raw.is_open() {
                        assert!(start.elapsed().as_secs() < 20, "nobody ends it");
                        raw.send(&ipc_raw::request(0, &blob.export, 0), 0);
                    }
                    "ok".into()
                }
                // A child of it that has all its files open, and outlives it.
                "fork" => match libc::fork() {
                    0 => loop {
                        libc::pause();
                    },
                    child => format!("ok {child}"),
                },
                "shutdown" => told(tcuda_shutdown(), String::new),
                other => panic!("'{other}' is nothing that it can do"),
            }
        }
    }
}

pub fn scene() {
    let mut scene = Scene { stream: create_on(0), blocks: Vec::new(), handles: Vec::new(), events: HashMap::new(), gate: None, raw: None };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        if line == "end" {
            break;
        }
        println!("{}", scene.does(&line.split(' ').collect::<Vec<_>>()));
    }
    std::process::exit(0);
}
