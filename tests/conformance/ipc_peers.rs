//! What fails between processes and is no call of the driver: peers that are gone, stand still or talk nonsense, and no room for files.

use crate::init::in_child;
use crate::ipc::{MIB, NO_HANDLE, export, filled, import, nothing_is_left, value};
use crate::ipc_other::{Other, hex, stats};
use crate::ipc_raw::{Name, Raw, blob, numbers, request};
use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tcuda::base::Status;
use tcuda::capi::ipc::*;
use tcuda::capi::sim::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::ipc::Blob;

tests![
    a_consumer_that_talks_nonsense,
    takes_that_come_to_nothing,
    what_is_freed_while_others_are_heard,
    a_consumer_that_never_listens,
    a_consumer_killed_between_two_messages,
    consumers_killed_at_any_moment,
    producers_killed_at_any_moment,
    a_producer_that_hears_late,
    a_producer_that_stands_still,
    a_producer_that_talks_nonsense: [Faults],
    a_consumer_without_room_for_files: [Faults],
    a_producer_without_room_for_files: [Faults],
    in_plain_segments,
];

/// Ends the connection, and costs the producer nothing.
fn a_consumer_that_talks_nonsense() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let block = filled(MIB, 6, stream.0);
    let handle = export(block, MIB, 0, stream.0);
    let Blob { producer, export: name, .. } = blob(&handle);
    const UNKNOWN: u64 = 2;
    for answered in [request(0, &[7; 16], 0), request(1, &[7; 16], 0), request(1, &name, 0), request(1, &name, u32::MAX.into())] {
        let raw = Raw::connect(&producer);
        // Nothing that it has, it gives back.
        assert!(raw.send(&request(2, &name, 0), 0) && raw.send(&answered, 0));
        assert_eq!(raw.receive(), Some(numbers(&[UNKNOWN])));
    }
    let take = request(0, &name, 0);
    let wrong = [
        (vec![0], 0),
        (take[..31].to_vec(), 0),
        ([&take[..], &[0]].concat(), 0),
        (request(4, &name, 0), 0),
        (vec![0; 4000], 0),
        (take.clone(), 60),
    ];
    for (bytes, files) in wrong {
        let raw = Raw::connect(&producer);
        assert!(raw.send(&bytes, files));
        assert_eq!(raw.receive(), None, "{} bytes, {files} files", bytes.len());
        ok!(tcuda_ipc_collect());
        assert_eq!((stats().taken, stats().consumers), (0, 0));
    }
    // Of one who has memory the connection ends too; what he has stays his until he ends.
    assert_eq!(other.did(&format!("raw_take {}", hex(&handle.bytes))), "taken");
    assert_eq!(stats().taken, 1);
    assert_eq!(other.did("raw_nonsense"), "ended");
    ok!(tcuda_ipc_collect());
    assert_eq!(stats().taken, 1);
    let there = other.import(&handle);
    assert_eq!(other.did(&format!("value {there} {MIB}")), "6");
    free(block);
    other.end();
    nothing_is_left();
}

/// Takes that are taken back use up nothing, and give nothing that was not taken.
fn takes_that_come_to_nothing() {
    const UNKNOWN: u64 = 2;
    let stream = Own::on(0);
    let exported = |keep_for: u32| {
        let block = filled(MIB, 6, stream.0);
        (block, export(block, MIB, keep_for, stream.0))
    };
    let connect = |handle: &tcuda_ipc_handle_t| {
        let Blob { producer, export: name, .. } = blob(handle);
        let raw = Raw::connect(&producer);
        let tell = move |kind: u64, name: [u8; 16]| {
            assert!(raw.send(&request(kind, &name, 0), 0));
            // 0 is answered.
            (kind == 0).then(|| raw.receive().unwrap() != numbers(&[UNKNOWN]))
        };
        (tell, name)
    };
    let counts = || {
        ok!(tcuda_ipc_collect());
        (stats().exported - 1, stats().kept, stats().taken)
    };
    // With nothing exported it would hear nobody.
    let (beside, _) = exported(0);
    // It is kept for one, who comes later.
    let (block, handle) = exported(1);
    let (tell, name) = connect(&handle);
    free(block);
    for _ in 0..3 {
        assert_eq!(tell(0, name), Some(true));
        assert_eq!(tell(0, name), Some(false));
        tell(3, name);
        assert_eq!(counts(), (1, 1, 0));
    }
    assert_eq!(tell(0, name), Some(true));
    tell(2, name);
    // Nothing is his to give any more.
    tell(3, name);
    assert_eq!(counts(), (0, 0, 0));
    // The take before the last stays, and one that another one's was is nobody's to take back.
    let (block, handle) = exported(2);
    let (tell, name) = connect(&handle);
    let (others, _) = connect(&handle);
    others(3, name);
    assert_eq!((tell(0, name), tell(0, name)), (Some(true), Some(true)));
    free(block);
    tell(3, name);
    tell(3, name);
    assert_eq!(counts(), (1, 1, 0));
    assert_eq!((tell(0, name), tell(0, name)), (Some(true), Some(false)));
    tell(3, name);
    assert_eq!(counts(), (1, 1, 0));
    ok!(tcuda_ipc_withdraw(&handle));
    assert_eq!(counts(), (0, 0, 0));
    // Kept for nobody, or withdrawn meanwhile: it is over.
    for keep_for in [0, 1] {
        let (block, handle) = exported(keep_for);
        let (tell, name) = connect(&handle);
        assert_eq!(tell(0, name), Some(true));
        if keep_for == 1 {
            ok!(tcuda_ipc_withdraw(&handle));
        }
        free(block);
        assert_eq!(counts(), (1, 1, 1));
        tell(3, name);
        assert_eq!(counts(), (0, 0, 0));
    }
    free(beside);
    nothing_is_left();
}

/// Nobody takes it any more, whoever the producer listens to meanwhile.
fn what_is_freed_while_others_are_heard() {
    const UNKNOWN: u64 = 2;
    let stream = Own::on(0);
    let beside = filled(MIB, 1, stream.0);
    let Blob { producer, .. } = blob(&export(beside, MIB, 0, stream.0));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Gives of what there never was, which nobody answers.
            let chatter = Raw::connect(&producer);
            while !done.load(Relaxed) {
                chatter.send(&request(2, &[9; 16], 0), 0);
            }
        });
        let asker = Raw::connect(&producer);
        let takes = |name: &Name| {
            assert!(asker.send(&request(0, name, 0), 0));
            asker.receive().unwrap() != numbers(&[UNKNOWN])
        };
        let late = (0..300).filter(|_| {
            let block = filled(MIB, 2, stream.0);
            let handle = export(block, MIB, 0, stream.0);
            let name = blob(&handle).export;
            assert!(takes(&name) && asker.send(&request(3, &name, 0), 0));
            free(block);
            takes(&name)
        });
        let late = late.count();
        done.store(true, Relaxed);
        assert_eq!(late, 0, "were taken after their free");
    });
    free(beside);
    nothing_is_left();
}

/// His answers pile up until the producer ends the connection; others do not wait for him.
fn a_consumer_that_never_listens() {
    let stream = Own::on(0);
    let block = filled(MIB, 6, stream.0);
    let handle = export(block, MIB, 0, stream.0);
    let mut other = Other::new();
    other.did(&format!("raw_flood {}", hex(&handle.bytes)));
    assert!(stats().taken > 1);
    let there = other.import(&handle);
    assert_eq!(other.did(&format!("value {there} {MIB}")), "6");
    free(block);
    other.kill();
    nothing_is_left();
}

fn a_consumer_killed_between_two_messages() {
    let stream = Own::on(0);
    let block = filled(MIB, 6, stream.0);
    let handle = export(block, MIB, 1, stream.0);
    let mut other = Other::new();
    assert_eq!(other.did(&format!("raw_take {}", hex(&handle.bytes))), "taken");
    free(block);
    assert_eq!((stats().kept, stats().taken), (1, 1));
    other.kill();
    nothing_is_left();
}

fn consumers_killed_at_any_moment() {
    let stream = Own::on(0);
    for round in 0..8 {
        let mut other = Other::new();
        let block = filled(5 * MIB, round, stream.0);
        let handle = export(block, 5 * MIB, 0, stream.0);
        other.import(&handle);
        other.tell(&format!("meet {} 10000", hex(&handle.bytes)));
        std::thread::sleep(Duration::from_micros(900 * round as u64));
        other.kill();
        ok!(tcuda_ipc_collect());
        assert_eq!((stats().exported, stats().taken, stats().consumers), (1, 0, 0));
        assert_eq!(value(block, 5 * MIB, stream.0), round);
        free(block);
        nothing_is_left();
    }
}

fn producers_killed_at_any_moment() {
    let stream = Own::on(0);
    for round in 0..8 {
        let mut other = Other::new();
        let handle = other.export(5 * MIB, round as u8, 0);
        let first = import(&handle, stream.0);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(900 * round));
            other.kill();
        });
        loop {
            let mut here = null_mut();
            match unsafe { tcuda_ipc_import(&mut here, null_mut(), null_mut(), &handle, stream.0) } {
                Status::TCUDA_SUCCESS => ok!(tcuda_ipc_close(here, stream.0)),
                _ => break assert!(here.is_null() && message().len() > 20),
            }
        }
        killer.join().unwrap();
        assert!(!get!(true, out => tcuda_ipc_producer_is_alive(out, first)));
        fails!(INVALID_HANDLE, tcuda_ipc_import(&mut null_mut(), null_mut(), null_mut(), &handle, stream.0));
        ok!(tcuda_ipc_close(first, stream.0));
        nothing_is_left();
    }
}

/// What is given back while the producer takes nothing in arrives all the same.
fn a_producer_that_hears_late() {
    const IMPORTS: usize = 500;
    let stream = Own::on(0);
    let mut other = Other::new();
    let handle = other.export(MIB, 5, 0);
    let here = import(&handle, stream.0) as usize;
    (1..IMPORTS).for_each(|_| assert_eq!(import(&handle, stream.0) as usize, here));
    other.did("free");
    assert_eq!(other.did("collect"), "1");
    other.signal(libc::SIGSTOP);
    let on = stream.0 as usize;
    let closer = std::thread::spawn(move || {
        (0..IMPORTS).for_each(|_| ok!(tcuda_ipc_close(here as *mut c_void, crate::kit::handle(on))));
    });
    std::thread::sleep(Duration::from_millis(50));
    other.signal(libc::SIGCONT);
    closer.join().unwrap();
    assert_eq!(other.did("collect"), "0");
    other.end();
    nothing_is_left();
}

/// Who imports waits for as long as the producer is there.
fn a_producer_that_stands_still() {
    let stream = Own::on(0);
    for goes_on in [true, false] {
        let mut other = Other::new();
        let handle = other.export(MIB, 5, 0);
        other.signal(libc::SIGSTOP);
        let on = stream.0 as usize;
        let importer = std::thread::spawn(move || {
            let mut here = null_mut();
            let status = unsafe { tcuda_ipc_import(&mut here, null_mut(), null_mut(), &handle, crate::kit::handle(on)) };
            (status, here as usize)
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!importer.is_finished());
        // Nobody else is held up.
        let block = filled(MIB, 1, stream.0);
        let mut own = export(block, MIB, 0, stream.0);
        let here = import(&own, stream.0);
        ok!(tcuda_ipc_close(here, stream.0));
        ok!(tcuda_ipc_withdraw(&own));
        own.bytes = [0; 64];
        free(block);
        other.signal(if goes_on { libc::SIGCONT } else { libc::SIGKILL });
        let (status, here) = importer.join().unwrap();
        if goes_on {
            assert_eq!(status, Status::TCUDA_SUCCESS);
            assert_eq!(value(here as *mut c_void, MIB, stream.0), 5);
            ok!(tcuda_ipc_close(here as *mut c_void, stream.0));
            other.end();
        } else {
            assert_eq!((status, here), (Status::TCUDA_ERROR_INVALID_HANDLE, 0));
            other.kill();
        }
        nothing_is_left();
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn living() -> [u64; 5] {
    let mut live: tcuda_sim_live_t = unsafe { std::mem::zeroed() };
    live.struct_size = size_of::<tcuda_sim_live_t>();
    ok!(tcuda_sim_live(&mut live, -3));
    [live.blocks, live.handles, live.mappings, live.reservations, live.events]
}

/// An answer to the first question, and one to each further one.
struct Script {
    name: &'static str,
    status: Status,
    answers: Vec<(Vec<u8>, usize)>,
}

fn scripts(uuid: &[u8; 16]) -> Vec<Script> {
    use Status::*;
    const SPAN: u64 = 2 << 20;
    let taken = |uuid: &[u8; 16], lies: [u64; 3], rest: Vec<u8>| [numbers(&[0]), uuid.to_vec(), numbers(&lies), rest].concat();
    let pages = |count: u64, span: u64| taken(uuid, [span, 0, span], numbers(&[1, count, 0]));
    let plain = [numbers(&[0]), vec![7; 64], numbers(&[0])].concat();
    let one = |name, status, bytes: Vec<u8>| Script { name, status, answers: vec![(bytes, 0)] };
    let two = |name, status, parts: Vec<u8>, files| Script { name, status, answers: vec![(pages(1, SPAN), 0), (parts, files)] };
    vec![
        Script { name: "nothing", status: TCUDA_ERROR_INVALID_HANDLE, answers: vec![] },
        one("a byte", TCUDA_ERROR_VERSION_MISMATCH, vec![1]),
        one("an answer that is none", TCUDA_ERROR_VERSION_MISMATCH, numbers(&[9])),
        one("too much", TCUDA_ERROR_SYSTEM, vec![0; 4000]),
        one("no such export", TCUDA_ERROR_INVALID_HANDLE, numbers(&[2])),
        one("files for nothing", TCUDA_ERROR_INVALID_HANDLE, numbers(&[1, 1, SPAN])),
        one("beyond its span", TCUDA_ERROR_VERSION_MISMATCH, taken(uuid, [SPAN, 1, SPAN], numbers(&[1, 1, 0]))),
        one("an end past all numbers", TCUDA_ERROR_VERSION_MISMATCH, taken(uuid, [SPAN, u64::MAX, 2], numbers(&[1, 1, 0]))),
        one("a device that is not there", TCUDA_ERROR_INVALID_DEVICE, taken(&[9; 16], [SPAN, 0, SPAN], numbers(&[1, 1, 0]))),
        one("no page", TCUDA_ERROR_VERSION_MISMATCH, pages(0, SPAN)),
        one("all memory there is", TCUDA_ERROR_OUT_OF_MEMORY, pages(1, 1 << 60)),
        one("half a page", TCUDA_ERROR_INVALID_ARGUMENT, pages(1, 5000)),
        one("a segment that is none", TCUDA_ERROR_INVALID_HANDLE, taken(uuid, [SPAN, 0, SPAN], plain)),
        one("an event that is none", TCUDA_ERROR_INVALID_HANDLE, taken(uuid, [SPAN, 0, SPAN], [numbers(&[1, 1, 1]), vec![7; 64]].concat())),
        one("an end after the first answer", TCUDA_ERROR_INVALID_HANDLE, pages(1, SPAN)),
        two("no file", TCUDA_ERROR_VERSION_MISMATCH, numbers(&[1, 1, SPAN]), 0),
        two("a file too many", TCUDA_ERROR_VERSION_MISMATCH, numbers(&[1, 1, SPAN]), 2),
        two("more files than there is room for", TCUDA_ERROR_SYSTEM, numbers(&[1, 1, SPAN]), 60),
        two("sizes of nothing", TCUDA_ERROR_VERSION_MISMATCH, numbers(&[1, 0]), 0),
        two("a size beyond the span", TCUDA_ERROR_VERSION_MISMATCH, numbers(&[1, 1, SPAN + 1]), 1),
        two("a file that is no memory", TCUDA_ERROR_INVALID_ARGUMENT, numbers(&[1, 1, SPAN]), 1),
        two("what it took, gone", TCUDA_ERROR_VERSION_MISMATCH, numbers(&[2]), 0),
        two("a failure", TCUDA_ERROR_CUDA, [numbers(&[3]), b"so it failed".to_vec()].concat(), 0),
    ]
}

fn a_producer_that_talks_nonsense() {
    in_child("ipc_nonsense", &[]);
}

pub fn scene_nonsense() {
    let stream = Own::on(0);
    let uuid = tcuda::device::properties(0).unwrap().uuid;
    ok!(tcuda_stream_synchronize(stream.0));
    let export_name: Name = [5; 16];
    let (before, mut files) = (living(), 0);
    for (at, script) in scripts(&uuid).into_iter().enumerate() {
        let name: Name = std::array::from_fn(|byte| (at * 31 + byte) as u8 ^ std::process::id() as u8);
        let listener = Raw::listen(&name);
        let handle = tcuda_ipc_handle_t { bytes: Blob { producer: name, export: export_name, process: 77 }.bytes() };
        let what = script.name;
        let producer = std::thread::spawn(move || {
            let consumer = listener.accept();
            for (bytes, files) in script.answers {
                if consumer.receive().is_none() {
                    return;
                }
                assert!(consumer.send(&bytes, files));
            }
            // What was taken is given back, if the connection lasts.
            if what != "nothing" && what != "an end after the first answer" {
                while consumer.receive().is_some() {}
            }
        });
        let (mut here, mut size, mut device) = (null_mut(), 7, -7);
        let status = unsafe { tcuda_ipc_import(&mut here, &mut size, &mut device, &handle, stream.0) };
        assert_eq!((status, here, size, device), (script.status, null_mut(), 7, -7), "{what}: {}", message());
        assert!(message().len() > 20 && (what != "a failure" || message().contains("so it failed")), "{what}: {}", message());
        producer.join().unwrap();
        assert_eq!((living(), stats().imported), (before, 0), "{what}");
        // The first round opens some for good.
        assert!(at == 0 || open_files() == files, "{what}: {} files, {files} before", open_files());
        files = open_files();
    }
    // The real ones are as good as before.
    let mut other = Other::new();
    let here = import(&other.export(MIB, 3, 0), stream.0);
    assert_eq!(value(here, MIB, stream.0), 3);
    ok!(tcuda_ipc_close(here, stream.0));
    other.end();
    nothing_is_left();
}

/// So many more files may be opened from now on, in the lowest numbers that are free; None: as many as before.
fn room_for_files(more: Option<u64>) {
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    limit.rlim_cur = match more {
        None => limit.rlim_max,
        Some(more) => {
            let is_free = |file: &u64| unsafe { libc::fcntl(*file as i32, libc::F_GETFD) } < 0;
            (0..).filter(is_free).nth(more as usize).unwrap_or(0)
        }
    };
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

fn a_consumer_without_room_for_files() {
    in_child("ipc_files_consumer", &[]);
    in_child("ipc_files_consumer", &[("TCUDA_ALLOC_CONF", "expandable_segments:False")]);
}

pub fn scene_files_consumer() {
    const SIZE: usize = 20 * MIB;
    let stream = Own::on(0);
    let mut other = Other::new();
    ok!(tcuda_stream_synchronize(stream.0));
    let mut failures = 0;
    for more in 0.. {
        // With an event that has to be opened too.
        other.did("gate");
        // What was freed is kept for one import: one that fails is none.
        let handle = other.export(SIZE, 5, 1);
        other.did("free");
        let (before, files) = (living(), open_files());
        let mut here = null_mut();
        room_for_files(Some(more));
        let status = unsafe { tcuda_ipc_import(&mut here, null_mut(), null_mut(), &handle, stream.0) };
        room_for_files(None);
        let failed = status != Status::TCUDA_SUCCESS;
        if failed {
            failures += 1;
            assert!(here.is_null() && message().contains("ulimit -n"), "{status:?}: {}", message());
            assert_eq!(last_error().native, libc::EMFILE);
            assert_eq!((living(), stats().imported), (before, 0), "room for {more}: {}", message());
        }
        other.did("open");
        ok!(tcuda_stream_synchronize(stream.0));
        if failed {
            // Where the wait was enqueued, it had files open.
            assert_eq!(open_files(), files, "room for {more}");
            here = import(&handle, stream.0);
        }
        assert_eq!(value(here, SIZE, stream.0), 5);
        fails!(INVALID_HANDLE, tcuda_ipc_import(&mut null_mut(), null_mut(), null_mut(), &handle, stream.0));
        ok!(tcuda_ipc_close(here, stream.0));
        assert_eq!(other.did("collect"), "0");
        if !failed {
            break;
        }
    }
    assert!(failures > 2, "{failures}");
    other.end();
    nothing_is_left();
}

fn a_producer_without_room_for_files() {
    in_child("ipc_files_producer", &[]);
    in_child("ipc_files_producer", &[("TCUDA_ALLOC_CONF", "expandable_segments:False")]);
}

pub fn scene_files_producer() {
    let stream = Own::on(0);
    let mut other = Other::new();
    let export_now = |block: *mut c_void, handle: &mut tcuda_ipc_handle_t, stream: tcuda_stream_t| unsafe {
        tcuda_ipc_export(handle, block, 5 * MIB, 0, stream)
    };
    let mut failures = 0;
    for more in 0.. {
        // Room for the export, with an event.
        let block = filled(5 * MIB, 5, stream.0);
        ok!(tcuda_sim_delay(stream.0, 2_000_000));
        let mut handle = NO_HANDLE;
        room_for_files(Some(more));
        let status = export_now(block, &mut handle, stream.0);
        room_for_files(None);
        let failed = status != Status::TCUDA_SUCCESS;
        if failed {
            assert!(handle.bytes == NO_HANDLE.bytes && message().contains("ulimit -n"), "{status:?}: {}", message());
            assert_eq!(stats().exported, 0);
            ok!(export_now(block, &mut handle, stream.0));
        }
        // Room for a new consumer, who waits until there is some, or is told that there is none.
        room_for_files(Some(more));
        other.tell(&format!("import {}", hex(&handle.bytes)));
        std::thread::sleep(Duration::from_millis(10));
        room_for_files(None);
        let mut answer = other.answer();
        if !answer.starts_with("ok") {
            assert!(answer.starts_with("TCUDA_ERROR_CUDA") && answer.contains("ulimit -n"), "room for {more}: {answer}");
            failures += 1;
            answer = other.ask(&format!("import {}", hex(&handle.bytes)));
        }
        let there = answer.split(' ').nth(1).unwrap();
        assert_eq!(other.did(&format!("value {there} {}", 5 * MIB)), "5");
        free(block);
        assert_eq!((stats().kept, stats().taken), (1, 1));
        other.did(&format!("close {there}"));
        ok!(tcuda_ipc_collect());
        assert_eq!(stats().exported, 0);
        if more > 12 && !failed {
            break;
        }
    }
    let plain = std::env::var_os("TCUDA_ALLOC_CONF").is_some();
    assert!(plain || failures > 0);
    other.kill();
    nothing_is_left();
}

fn in_plain_segments() {
    crate::ipc::passes_in_plain_segments("ipc_peers.");
}
