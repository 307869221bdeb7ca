//! Statuses, the record of the last failure, log messages, versions.

use crate::kit::*;
use crate::{fails, get, ok, tests};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use tcuda::base::status;
use tcuda::capi::device::{tcuda_current_device, tcuda_device_count, tcuda_synchronize};
use tcuda::capi::error::*;
use tcuda::capi::graph::*;
use tcuda::capi::green::*;
use tcuda::capi::init::tcuda_config_dump;
use tcuda::capi::jit::*;
use tcuda::capi::nvtx::*;
use tcuda::capi::plugin::*;
use tcuda::capi::pool::*;
use tcuda::capi::random::*;
use tcuda::capi::snapshot::*;
use tcuda::capi::version::*;

tests![
    every_status_has_a_name_and_a_text,
    a_failure_is_recorded_for_its_thread,
    success_does_not_clear_the_record,
    the_record_of_an_older_and_a_newer_caller,
    log_messages_go_to_the_callback,
    versions_are_told,
    the_configuration_is_listed,
    what_the_kernels_are_compiled_for,
    no_handle_passes_for_one_of_another_kind,
];

fn every_status_has_a_name_and_a_text() {
    let mut count = 0;
    for status in status::all() {
        let name = text(tcuda_status_name(status as i32));
        assert!(name == "TCUDA_SUCCESS" || name.starts_with("TCUDA_ERROR_"), "{name}");
        assert!(text(tcuda_status_message(status as i32)).len() > 3);
        count += 1;
    }
    assert!(count > 20);
    for unknown in [-1, 29, 998, i32::MIN, i32::MAX] {
        assert_eq!(text(tcuda_status_name(unknown)), "TCUDA_ERROR_UNKNOWN");
        assert_eq!(text(tcuda_status_message(unknown)), "unknown status");
    }
}

fn info() -> tcuda_error_info_t {
    tcuda_error_info_t {
        struct_size: size_of::<tcuda_error_info_t>(),
        status: -1,
        native: -1,
        device: -7,
        reserved: 0,
        bytes: 0,
        function: null(),
        message: null(),
    }
}

fn a_failure_is_recorded_for_its_thread() {
    let fresh = std::thread::spawn(|| {
        let mut found = info();
        ok!(tcuda_last_error(&mut found));
        (found.status, text(found.function), text(found.message), message())
    });
    assert_eq!(fresh.join().unwrap(), (0, String::new(), String::new(), String::new()));
    fails!(INVALID_DEVICE, tcuda_synchronize(12345));
    let mut found = info();
    ok!(tcuda_last_error(&mut found));
    assert_eq!((found.status, found.device), (3, 12345));
    assert_eq!(text(found.function), "tcuda_synchronize");
    assert_eq!(text(found.message), message());
    assert!(message().contains("12345"));
    let other = std::thread::spawn(message);
    assert_eq!(other.join().unwrap(), "");
}

fn success_does_not_clear_the_record() {
    let before = fails!(INVALID_ARGUMENT, tcuda_device_count(null_mut()));
    get!(0, out => tcuda_current_device(out));
    assert_eq!(message(), before);
    assert_eq!(tcuda_last_error_native(), 0);
}

fn the_record_of_an_older_and_a_newer_caller() {
    fails!(INVALID_ARGUMENT, tcuda_last_error(null_mut()));
    for struct_size in [0, 4, usize::MAX] {
        let mut found = tcuda_error_info_t { struct_size, ..info() };
        fails!(INVALID_ARGUMENT, tcuda_last_error(&mut found));
        assert_eq!((found.struct_size, found.device), (struct_size, -7));
    }
    let mut older = tcuda_error_info_t { struct_size: 16, ..info() };
    ok!(tcuda_last_error(&mut older));
    assert_eq!((older.struct_size, older.status, older.native, older.device), (16, 1, 0, -7));
    #[repr(C)]
    struct Newer {
        known: tcuda_error_info_t,
        unknown: u64,
    }
    let mut newer = Newer { known: tcuda_error_info_t { struct_size: size_of::<Newer>(), ..info() }, unknown: 9 };
    ok!(tcuda_last_error(&mut newer.known));
    assert_eq!((newer.known.struct_size, newer.known.status, newer.unknown), (size_of::<tcuda_error_info_t>(), 1, 9));
}

fn log_messages_go_to_the_callback() {
    static HEARD: Mutex<Vec<(i32, String)>> = Mutex::new(Vec::new());
    unsafe extern "C" fn hear(level: i32, message: *const c_char, user_data: *mut c_void) {
        assert_eq!(user_data as usize, 77);
        HEARD.lock().unwrap().push((level, unsafe { CStr::from_ptr(message) }.to_str().unwrap().to_owned()));
    }
    ok!(tcuda_set_log_callback(Some(hear), 77 as *mut c_void));
    tcuda::base::log::warn("a warning");
    tcuda::base::log::info("a note");
    ok!(tcuda_set_log_callback(None, null_mut()));
    tcuda::base::log::info("nobody hears this");
    let heard = std::mem::take(&mut *HEARD.lock().unwrap());
    assert!(heard.contains(&(2, "a warning".into())) && heard.contains(&(3, "a note".into())), "{heard:?}");
    assert!(!heard.iter().any(|(_, text)| text.starts_with("nobody")));
}

fn versions_are_told() {
    assert!(tcuda_version() >= 100);
    let text = text(tcuda_version_string());
    assert!(text.starts_with(env!("CARGO_PKG_VERSION")) && text.contains(&backend()), "{text}");
    assert!(get!(0, out => tcuda_runtime_version(out)) >= 11000);
    assert!(get!(0, out => tcuda_driver_version(out)) >= 11000);
    fails!(INVALID_ARGUMENT, tcuda_runtime_version(null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_driver_version(null_mut()));
}

fn the_configuration_is_listed() {
    let needed = get!(0, out => tcuda_config_dump(null_mut(), 0, out));
    let mut buffer = vec![b'x'; needed + 1];
    let mut again = 0;
    fails!(BUFFER_TOO_SMALL, tcuda_config_dump(buffer.as_mut_ptr().cast(), needed - 1, &mut again));
    assert!(again == needed && buffer.iter().all(|byte| *byte == b'x'));
    ok!(tcuda_config_dump(buffer.as_mut_ptr().cast(), needed, null_mut()));
    assert_eq!((buffer[needed - 1], buffer[needed]), (0, b'x'));
    let lines = text(buffer.as_ptr().cast());
    for variable in tcuda::base::config::VARIABLES {
        let (value, _) = tcuda::base::config::in_effect(variable);
        let line = lines.lines().find(|line| line.starts_with(&format!("{}=", variable.name))).unwrap();
        assert!(line.starts_with(&format!("{}={value}  # ", variable.name)) && line.ends_with(variable.meaning), "{line}");
    }
    assert!(
        lines.contains("# tcuda 0.") && lines.contains("\n# backend ") && lines.contains("\n# options of the caches: backend:"),
        "{lines}"
    );
    assert!(lines.lines().any(|line| line.starts_with("TCUDA_JIT_CACHE=") && line.contains("  # program; ")), "{lines}");
    fails!(INVALID_ARGUMENT, tcuda_config_dump(null_mut(), 0, null_mut()));
    fails!(INVALID_ARGUMENT, tcuda_config_dump(null_mut(), 5, &mut again));
}

fn what_the_kernels_are_compiled_for() {
    let read = |call: unsafe extern "C" fn(*mut c_char, usize, *mut usize) -> tcuda::base::Status| {
        let needed = get!(0, out => call(null_mut(), 0, out));
        let mut buffer = vec![0; needed];
        ok!(call(buffer.as_mut_ptr(), needed, null_mut()));
        text(buffer.as_ptr())
    };
    let (list, flags) = (read(tcuda_get_arch_list), read(tcuda_get_gencode_flags));
    let numbers: Vec<i32> = list.split(' ').map(|name| name.strip_prefix("compute_").unwrap().parse().unwrap()).collect();
    assert!(numbers[0] == 75 && numbers.is_sorted() && numbers.len() > 1, "{list}");
    let right: Vec<_> = numbers.iter().map(|number| format!("-gencode arch=compute_{number},code=compute_{number}")).collect();
    assert_eq!(flags, right.join(" "));
    let mut small = [7; 4];
    fails!(BUFFER_TOO_SMALL, tcuda_get_arch_list(small.as_mut_ptr(), 4, null_mut()));
    assert_eq!(small, [7; 4]);
}

/// Several of each, so that small numbers are taken.
fn no_handle_passes_for_one_of_another_kind() {
    unsafe extern "C" fn none(_: usize, _: i32, _: tcuda::capi::structs::tcuda_stream_t, _: *mut c_void) -> *mut c_void {
        null_mut()
    }
    unsafe extern "C" fn nothing(_: *mut c_void, _: usize, _: i32, _: tcuda::capi::structs::tcuda_stream_t, _: *mut c_void) {}
    let source = c"template <typename T> T same(T x) { return x; }";
    type Make = dyn Fn() -> usize;
    type End = dyn Fn(usize) -> status::tcuda_status_t;
    let kinds: [(&Make, &End); 8] = [
        (&|| get!(null_mut(), out => tcuda_graph_create(out, 0)) as usize, &|handle| tcuda_graph_destroy(handle as _)),
        (&|| get!(null_mut(), out => tcuda_generator_create(out, 0)) as usize, &|handle| tcuda_generator_destroy(handle as _)),
        (&|| get!(null_mut(), out => tcuda_nvtx_domain_create(out, c"a".as_ptr())) as usize, &|handle| {
            tcuda_nvtx_domain_destroy(handle as _)
        }),
        (&|| get!(null_mut(), out => tcuda_mem_pool_create(out, 0, null())) as usize, &|handle| tcuda_mem_pool_destroy(handle as _)),
        (&|| get!(null_mut(), out => tcuda_jit_create(out, source.as_ptr(), null(), 0)) as usize, &|handle| tcuda_jit_destroy(handle as _)),
        (&|| get!(null_mut(), out => tcuda_memory_snapshot(out, 0)) as usize, &|handle| unsafe { tcuda_snapshot_destroy(handle as _) }),
        (&|| get!(null_mut(), out => tcuda_pluggable_allocator_create(out, Some(none), Some(nothing), null_mut())) as usize, &|handle| {
            tcuda_pluggable_allocator_destroy(handle as _)
        }),
        (&|| get!(null_mut(), out => tcuda_green_context_create(out, 1, 0)) as usize, &|handle| tcuda_green_context_destroy(handle as _)),
    ];
    // The last ones are not to be had of every driver.
    let kinds = &kinds[..kinds.len() - usize::from(!Capability::GreenContexts.is_there())];
    let made: Vec<Vec<usize>> = kinds.iter().map(|(make, _)| (0..10).map(|_| make()).collect()).collect();
    for (kind, handles) in made.iter().enumerate() {
        for (other, (_, end)) in kinds.iter().enumerate().filter(|(other, _)| *other != kind) {
            for handle in handles {
                assert_eq!(
                    end(*handle),
                    status::tcuda_status_t::TCUDA_ERROR_INVALID_HANDLE,
                    "{handle:#x} of kind {kind} as one of {other}"
                );
            }
        }
    }
    made.iter().zip(kinds).for_each(|(handles, (_, end))| handles.iter().for_each(|handle| ok!(end(*handle))));
}
