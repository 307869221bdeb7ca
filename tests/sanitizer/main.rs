//! The stream sanitizer on the simulated device: small programs with a bug each, which it has to find, and the same programs mended, of which
//! it has to say nothing.

mod gone;
mod kit;
mod programs;
mod rare;

use kit::*;
use programs::PROGRAMS;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use tcuda::base::{Status, config};
use tcuda::capi::device::{tcuda_set_device, tcuda_synchronize};
use tcuda::capi::history::tcuda_memory_annotate;
use tcuda::capi::memory::*;
use tcuda::capi::sanitizer::*;
use tcuda::capi::stream::*;
use tcuda::capi::structs::tcuda_stream_t;

/// One sanitizer for the process.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> std::sync::MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|turn| turn.into_inner());
    config::set("TCUDA_BACKEND", "sim".into());
    ok(tcuda_set_device(0));
    turn
}

fn count() -> u64 {
    let mut count = 0;
    ok(unsafe { tcuda_sanitizer_report_count(&mut count) });
    count
}

fn report(index: u64, format: i32) -> String {
    let mut needed = 0;
    ok(unsafe { tcuda_sanitizer_report_get(null_mut(), 0, &mut needed, index, format) });
    let mut text = vec![0u8; needed];
    ok(unsafe { tcuda_sanitizer_report_get(text.as_mut_ptr().cast(), needed, null_mut(), index, format) });
    CString::from_vec_with_nul(text).unwrap().into_string().unwrap()
}

unsafe extern "C" fn ignored(_: *const tcuda_sanitizer_report_t, _: *mut c_void) {}

/// The kinds of the reports of a program.
fn kinds_of(program: impl FnOnce(bool), bug: bool) -> Vec<String> {
    ok(tcuda_sanitizer_enable());
    ok(unsafe { tcuda_sanitizer_set_callback(Some(ignored), null_mut()) });
    program(bug);
    ok(unsafe { tcuda_sanitizer_set_callback(None, null_mut()) });
    let kinds = (0..count()).map(|index| report(index, 2).split('"').nth(3).unwrap().to_owned()).collect();
    ok(tcuda_sanitizer_disable());
    [0, 1].into_iter().for_each(|device| ok(tcuda_synchronize(device)));
    kinds
}

#[test]
fn every_planted_bug_is_found_and_the_mended_programs_are_left_in_peace() {
    let _turn = turn();
    let mut wrong = Vec::new();
    for (name, kind, program) in PROGRAMS {
        for bug in [true, false] {
            let found = kinds_of(*program, bug);
            let is_right = if bug { !found.is_empty() && found.iter().all(|found| found == kind) } else { found.is_empty() };
            if !is_right {
                wrong.push(format!("{name}, {}: {found:?}", if bug { "planted" } else { "mended" }));
            }
        }
    }
    assert!(PROGRAMS.len() >= 30 && wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn while_it_is_off_nothing_is_found() {
    let _turn = turn();
    let before = count();
    for (_, _, program) in PROGRAMS {
        program(true);
        [0, 1].into_iter().for_each(|device| ok(tcuda_synchronize(device)));
    }
    assert_eq!(count(), before);
}

#[test]
fn a_report_names_both_sides() {
    let _turn = turn();
    ok(tcuda_sanitizer_enable());
    let [one, two] = streams();
    let (from, to) = (block(one), block(two));
    ok(unsafe { tcuda_memory_annotate(c"the \"first\" layer".as_ptr()) });
    fill(from, one);
    ok(unsafe { tcuda_memory_annotate(null()) });
    ok(unsafe { tcuda_sanitizer_set_callback(Some(keep), null_mut()) });
    copy(to, from, two);
    kernel(to, WRITE, one);
    ok(unsafe { tcuda_sanitizer_set_callback(None, null_mut()) });
    assert_eq!(count(), 2);
    let text = report(0, 1);
    let (at, one, two) = (format!("4096 bytes at {from:?}"), format!("stream {one:?} of device 0"), format!("stream {two:?} of device 0"));
    for part in [&at, &one, &two, "Race", "read of", "by tcuda_copy_async", "write of", "by tcuda_memset_async", "in 'the \"first\" layer'"]
    {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    assert!(report(1, 1).contains("by my_kernel on"), "{}", report(1, 1));
    let json = report(0, 2);
    for part in [
        "{\"kind\":\"race\",\"current\":{\"does\":\"read\"",
        "\"previous\":{\"does\":\"write\"",
        "\"annotation\":\"the \\\"first\\\" layer\"",
        "\"allocation\":{\"does\":\"allocation\",\"call\":\"tcuda_malloc_cached\"",
    ] {
        assert!(json.contains(part), "{json}");
    }
    let numbers: Vec<u64> = json.split("\"sequence\":").skip(1).map(|rest| rest.split(',').next().unwrap().parse().unwrap()).collect();
    assert!(numbers.len() == 3 && numbers[0] > numbers[1] && numbers[1] > numbers[2], "{json}");
    assert!(text.contains("The block: allocation of 4096 bytes"), "{text}");
    let told = std::mem::take(&mut *TOLD.lock().unwrap());
    assert_eq!(told, [(1, report(0, 1), json), (1, report(1, 1), report(1, 2))]);
    ok(tcuda_sanitizer_disable());
    // They stay until it is on again.
    assert_eq!(count(), 2);
    ok(tcuda_sanitizer_enable());
    assert_eq!(count(), 0);
    ok(tcuda_sanitizer_disable());
}

static TOLD: Mutex<Vec<(i32, String, String)>> = Mutex::new(Vec::new());

unsafe extern "C" fn keep(report: *const tcuda_sanitizer_report_t, _: *mut c_void) {
    let report = unsafe { &*report };
    assert_eq!(report.struct_size, size_of::<tcuda_sanitizer_report_t>());
    let text = |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned();
    TOLD.lock().unwrap().push((report.kind, text(report.text), text(report.json)));
    // No lock is held.
    let own = stream_on(0);
    free(block(own));
    ok(unsafe { tcuda_stream_destroy(own) });
}

#[test]
fn many_are_counted_and_the_first_are_kept() {
    let _turn = turn();
    ok(tcuda_sanitizer_enable());
    ok(unsafe { tcuda_sanitizer_set_callback(Some(ignored), null_mut()) });
    let [one, two] = streams();
    let block = block(one);
    fill(block, one);
    for round in 0..1200 {
        kernel(block, WRITE, if round % 2 == 0 { two } else { one });
    }
    ok(unsafe { tcuda_sanitizer_set_callback(None, null_mut()) });
    assert_eq!(count(), 1200);
    assert!(!report(999, 1).is_empty());
    let mut needed = 0;
    let status = unsafe { tcuda_sanitizer_report_get(null_mut(), 0, &mut needed, 1000, 1) };
    assert_eq!((status, said().contains("no report 1000")), (Status::TCUDA_ERROR_INVALID_ARGUMENT, true));
    ok(tcuda_sanitizer_disable());
}

#[test]
fn wrong_arguments_are_refused() {
    let _turn = turn();
    let invalid = |status: Status| assert_eq!(status, Status::TCUDA_ERROR_INVALID_ARGUMENT, "{}", said());
    ok(tcuda_sanitizer_enable());
    ok(tcuda_sanitizer_enable());
    let [one] = streams();
    let block = block(one);
    unsafe {
        for mode in [0, 4, -1] {
            invalid(tcuda_sanitizer_annotate_access(block, 1, mode, one, null()));
        }
        invalid(tcuda_sanitizer_annotate_access(null(), 1, 1, one, null()));
        invalid(tcuda_sanitizer_annotate_access(block, usize::MAX, 1, one, null()));
        invalid(tcuda_sanitizer_annotate_access(block, 1, 1, one, c"\xff".as_ptr()));
        assert_eq!(tcuda_sanitizer_annotate_access(block, 1, 1, 7 as tcuda_stream_t, null()), Status::TCUDA_ERROR_INVALID_HANDLE);
        ok(tcuda_sanitizer_annotate_access(null(), 0, 1, one, null()));
        invalid(tcuda_sanitizer_report_count(null_mut()));
        invalid(tcuda_sanitizer_report_get(null_mut(), 0, &mut 0, 0, 1));
        fill(block, one);
        free(block);
        ok(tcuda_sanitizer_set_callback(Some(ignored), null_mut()));
        kernel(block, READ, one);
        invalid(tcuda_sanitizer_report_get(null_mut(), 0, &mut 0, 0, 3));
        let mut small = [7u8; 4];
        let mut needed = 0;
        let status = tcuda_sanitizer_report_get(small.as_mut_ptr().cast(), 4, &mut needed, 0, 1);
        assert_eq!((status, small, needed > 4), (Status::TCUDA_ERROR_BUFFER_TOO_SMALL, [7; 4], true));
        ok(tcuda_sanitizer_set_callback(None, null_mut()));
    }
    ok(tcuda_sanitizer_disable());
}

/// Threads that hand blocks on in order, each with a stream of its own.
#[test]
fn threads_that_keep_order_are_left_in_peace() {
    let _turn = turn();
    ok(tcuda_sanitizer_enable());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                let [one, two] = streams();
                for _ in 0..200 {
                    let (from, to) = (block(one), block(two));
                    fill(from, one);
                    after(two, one);
                    copy(to, from, two);
                    free(from);
                    after(one, two);
                    kernel(to, WRITE, one);
                    ok(unsafe { tcuda_free_cached_on(to, one) });
                }
                synchronize(two);
                [one, two].into_iter().for_each(|stream| ok(unsafe { tcuda_stream_destroy(stream) }));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(count(), 0, "{}", report(0, 1));
    ok(tcuda_sanitizer_disable());
}
