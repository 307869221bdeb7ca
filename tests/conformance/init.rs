//! Start and end: options, no device, threads at once, fork, shutdown. What changes a whole process runs in a child process.

use crate::kit::*;
use crate::{fails, fault, generators, get, memory, ok, order, poison, statistics, tests};
use std::process::Command;
use std::ptr::{null, null_mut};
use tcuda::base::Status;
use tcuda::capi::device::*;
use tcuda::capi::event::{tcuda_event_create, tcuda_event_destroy};
use tcuda::capi::init::*;
use tcuda::capi::memory::{tcuda_get_memory_limit, tcuda_set_memory_limit};
use tcuda::capi::stream::*;
use tcuda::capi::version::tcuda_version_string;

tests![
    init_again_does_nothing,
    init_again_takes_nothing_away,
    options_are_checked,
    a_backend_is_named_and_explained,
    nothing_is_initialized_before_the_first_need,
    threads_that_start_together_get_one_backend,
    without_a_device_everything_says_why,
    after_fork_the_child_is_refused,
    fork_before_the_first_use_is_fine,
    shutdown_ends_and_init_starts_again,
    no_stray_context: [TwoDevices, ContextState],
];

fn options(backend: *const std::ffi::c_char) -> tcuda_init_options_t {
    tcuda_init_options_t { struct_size: size_of::<tcuda_init_options_t>(), backend, cudart_path: null(), alloc_conf: null() }
}

fn init_again_does_nothing() {
    ok!(tcuda_init(null()));
    ok!(tcuda_init(&options(null())));
    ok!(tcuda_init(&options(c"auto".as_ptr())));
    assert!(tcuda_is_initialized() && tcuda_is_available());
}

fn init_again_takes_nothing_away() {
    in_child("init_again", &[("TCUDA_ALLOC_CONF", "slack:0.25")]);
}

/// A program's limit and options before what a library of its asks for later.
fn scene_init_again() {
    let init = |alloc_conf: &std::ffi::CStr| ok!(tcuda_init(&tcuda_init_options_t { alloc_conf: alloc_conf.as_ptr(), ..options(null()) }));
    let limit = || get!(0, out => tcuda_get_memory_limit(out, 0));
    let has = |part: &str| assert!(statistics::configuration().contains(part), "{}", statistics::configuration());
    // Nothing given: the environment decides.
    ok!(tcuda_set_memory_limit(64 << 20, 0));
    has("slack:0.25");
    // The first one counts, though the backend is in use; the limit is not named.
    init(c"slack:0.5");
    has("slack:0.5");
    assert_eq!(limit(), 64 << 20);
    for again in [c"", c" ", c"slack:0.125", c"per_process_memory_fraction:1.0"] {
        init(again);
        ok!(tcuda_init(&tcuda_init_options_t { cudart_path: c"".as_ptr(), alloc_conf: again.as_ptr(), ..options(c"".as_ptr()) }));
        has("slack:0.5");
        assert_eq!(limit(), 64 << 20);
    }
    // After the end it is the first one again; limits of calls are gone.
    ok!(tcuda_shutdown());
    init(c"");
    has("slack:0.5");
    assert_eq!(limit(), u64::MAX);
    ok!(tcuda_shutdown());
    init(c"tight:True");
    has("slack:0.035");
    has("tight:True");
}

fn options_are_checked() {
    let (same, other) = if backend() == "sim" { (c"sim", c"cuda") } else { (c"cuda", c"sim") };
    ok!(tcuda_init(&options(same.as_ptr())));
    let said = fails!(INVALID_STATE, tcuda_init(&options(other.as_ptr())));
    assert!(said.contains("cuda") && said.contains("sim"), "{said}");
    let said = fails!(INVALID_ARGUMENT, tcuda_init(&options(c"rocm".as_ptr())));
    assert!(said.contains("rocm"), "{said}");
    fails!(INVALID_ARGUMENT, tcuda_init(&options(c"\xff".as_ptr())));
    for struct_size in [0, 7, usize::MAX] {
        fails!(INVALID_ARGUMENT, tcuda_init(&tcuda_init_options_t { struct_size, ..options(null()) }));
    }
    let newer = [size_of::<tcuda_init_options_t>() + 8, 0, 0, 0, 0];
    ok!(tcuda_init(newer.as_ptr().cast()));
    let newer = [size_of::<tcuda_init_options_t>() + 8, 0, 0, 0, 1];
    fails!(VERSION_MISMATCH, tcuda_init(newer.as_ptr().cast()));
    // An older caller, whose struct had the backend only.
    ok!(tcuda_init([16usize, same.as_ptr() as usize].as_ptr().cast()));
}

fn a_backend_is_named_and_explained() {
    assert!(["cuda", "sim"].contains(&backend().as_str()));
    assert!(reason().len() > 10);
    assert_eq!(tcuda_backend_name(), tcuda_backend_name());
}

/// Runs a scene of `child` in a process of its own.
pub fn in_child(scene: &str, environment: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--child", scene]).env("TCUDA_BACKEND", backend()).envs(environment.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{scene}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "done", "{scene}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn child(scene: &str) {
    match scene {
        "advice" => crate::pressure::scene_advice(),
        "before_init" => scene_before_init(),
        "init_again" => scene_init_again(),
        "graphed_faults" => crate::graphed::scene_faults(),
        "graphed_end" => crate::graphed::scene_end(),
        "ipc_other" => crate::ipc_other::scene(),
        "ipc_faults_producer" => crate::ipc_faults::scene_producer(),
        "ipc_faults_consumer" => crate::ipc_faults::scene_consumer(),
        "ipc_nonsense" => crate::ipc_peers::scene_nonsense(),
        "ipc_files_consumer" => crate::ipc_peers::scene_files_consumer(),
        "ipc_files_producer" => crate::ipc_peers::scene_files_producer(),
        "ipc_faults_answer" => crate::ipc_faults::scene_answer(),
        "ipc_faults_events" => crate::ipc_faults::scene_events(),
        "ipc_faults_peer" => crate::ipc_faults::scene_peer(),
        "ipc_faults_end" => crate::ipc_faults::scene_end(),
        "ipc_lost" => crate::ipc_faults::scene_lost(),
        "ipc_poison" => crate::ipc_watched::scene_poison(),
        "ipc_watched" => crate::ipc_watched::scene_watched(),
        "ipc_watched_parts" => crate::ipc_watched::scene_watched_parts(),
        "ipc_watched_again" => crate::ipc_watched::scene_watched_again(),
        "ipc_watched_while" => crate::ipc_watched::scene_watched_while(),
        "ipc_watched_behind" => crate::ipc_watched::scene_watched_behind(),
        "ipc_end" => crate::ipc::scene_end(),
        "logging" => crate::graph_ends::scene_logging(),
        "capturing_peer" => crate::graph_ends::scene_capturing_peer(),
        "captured_by_another" => crate::graph_ends::scene_captured_by_another(),
        "captured_handles" => crate::libs::scene_captured_handles(),
        "capturing" => crate::graph_ends::scene_capturing(),
        "threads" => scene_threads(),
        "no_device" => scene_no_device(),
        "fork" => scene_fork(),
        "fork_first" => scene_fork_first(),
        "shutdown" => scene_shutdown(),
        "stray_context" => scene_stray_context(),
        "sweep" => fault::scene_sweep(),
        "lost_current" => fault::scene_lost_current(),
        "lost_heard" => fault::scene_lost_heard(),
        "lost" => fault::scene_lost(),
        "lost_by_a_fault" => fault::scene_lost_by_a_fault(),
        "lost_work" => fault::scene_lost_work(),
        "lost_without" => fault::scene_lost_without(),
        "launch_blocking" => fault::scene_launch_blocking(),
        "sanitizer" => crate::watch::scene_sanitizer(),
        "sanitizer_off" => crate::watch::scene_sanitizer_off(),
        "sync_debug" => crate::watch::scene_sync_debug(),
        "sync_debug_wrong" => crate::watch::scene_sync_debug_wrong(),
        "sync_debug_number" => crate::watch::scene_sync_debug_number(),
        "no_statistics" => statistics::scene_before_init(),
        "early_seeds" => generators::scene_early_seeds(),
        "early_states" => generators::scene_early_states(),
        "early_fork" => generators::scene_early_fork(),
        "early_no_device" => generators::scene_early_no_device(),
        "generators_over_shutdown" => generators::scene_over_shutdown(),
        "backend_behind_a_capture" => crate::backend::scene_behind_a_capture(),
        "backend_beside_a_capture" => crate::backend::scene_beside_a_capture(),
        "wrong_options" => memory::scene_wrong_options(),
        "backend" => crate::backend::scene_backend(),
        "green_over_shutdown" => crate::green::scene_over_shutdown(),
        "pools_over_shutdown" => crate::pauses::scene_over_shutdown(),
        "allocator_over_shutdown" => crate::plugin::scene_over_shutdown(),
        "backend_switch" => crate::backend::scene_backend_switch(),
        "contents" => memory::scene_contents(),
        "nvtx_end" => crate::nvtx::scene_end(),
        "peers" => memory::scene_peers(),
        "plain_order" => order::scene_plain_order(),
        "freed_too_late" => memory::scene_freed_after_shutdown(),
        "trace_fork" => crate::watch_ends::scene_trace_fork(),
        "log_fork" => crate::watch_ends::scene_log_fork(),
        "fork_early" => crate::watch_ends::scene_fork_early(),
        "fork_in_first" => crate::watch_ends::scene_fork_in_first(),
        "fork_beside" => crate::watch_ends::scene_fork_beside(),
        "log_again" => crate::watch_ends::scene_log_again(),
        "torch_late" => crate::watch_ends::scene_torch_late(),
        "telemetry_context" => crate::telemetry::scene_context(),
        "telemetry_lost" => crate::telemetry::scene_lost(),
        "telemetry_end" => crate::telemetry::scene_end(),
        "options" => statistics::scene_options(),
        "absent_device" => statistics::scene_absent_device(),
        "absent_device_early" => statistics::scene_absent_device_early(),
        "poison" => poison::scene_poison(),
        "shared_blocks" => poison::scene_shared_blocks(),
        "one_block" => poison::scene_one_block(),
        "paused_beside_requests" => crate::poison::scene_paused_beside_requests(),
        "ends_beside_frees" => poison::scene_ends_beside_frees(),
        "frees_behind_the_end" => poison::scene_frees_behind_the_end(),
        "poison_again" => poison::scene_again(),
        "poison_at_the_end" => poison::scene_at_the_end(),
        other => panic!("no scene is called {other}"),
    }
    // What the poison mode is tried with are uses of freed memory, and after a record that failed an event is waited for that has none.
    let on_purpose = scene.starts_with("poison") || scene == "sweep";
    assert!(on_purpose || reported(scene), "the sanitizer has reports");
    println!("done");
}

fn nothing_is_initialized_before_the_first_need() {
    in_child("before_init", &[]);
}

fn scene_before_init() {
    assert!(!tcuda_is_initialized());
    assert!(text(tcuda_version_string()).contains("not initialized"));
    ok!(tcuda_set_device(-1));
    ok!(tcuda_stream_destroy(null_mut()));
    assert!(!tcuda_is_initialized());
    assert_eq!(get!(-1, out => tcuda_current_device(out)), 0);
    assert!(tcuda_is_initialized());
}

fn threads_that_start_together_get_one_backend() {
    in_child("threads", &[]);
}

fn scene_threads() {
    let threads: Vec<_> = (0..16)
        .map(|_| {
            std::thread::spawn(|| {
                ok!(tcuda_init(null()));
                drop(Own::new());
                device_count()
            })
        })
        .collect();
    let counts: Vec<i32> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(counts.iter().all(|count| *count == counts[0] && *count > 0));
}

fn without_a_device_everything_says_why() {
    in_child("no_device", &[("TCUDA_BACKEND", "cuda"), ("CUDA_VISIBLE_DEVICES", "-1")]);
}

fn scene_no_device() {
    assert!(!tcuda_is_available());
    assert_eq!(device_count(), 0);
    assert_eq!(backend(), "none");
    assert!(reason().contains("TCUDA_BACKEND=sim"), "{}", reason());
    assert!(!tcuda_is_initialized());
    ok!(tcuda_set_device(-1));
    let no_device = |status: Status| {
        assert!([Status::TCUDA_ERROR_NO_DEVICE, Status::TCUDA_ERROR_INSUFFICIENT_DRIVER].contains(&status), "{status:?}: {}", message());
        assert!(message().contains("TCUDA_BACKEND=sim"), "{}", message());
    };
    let (mut device, mut stream, mut event) = (-7, handle(0x77), null_mut());
    unsafe {
        no_device(tcuda_init(null()));
        no_device(tcuda_current_device(&mut device));
        no_device(tcuda_set_device(0));
        no_device(tcuda_exchange_device(&mut device, 0));
        no_device(tcuda_synchronize(-1));
        no_device(tcuda_stream_create(&mut stream, -1, 0));
        no_device(tcuda_stream_from_pool(&mut stream, 0, 0));
        no_device(tcuda_current_stream(&mut stream, -1));
        no_device(tcuda_stream_synchronize(NULL));
        no_device(tcuda_event_create(&mut event, 0));
    }
    assert_eq!((device, stream, event), (-7, handle(0x77), null_mut()));
    // What failed can be asked for again, in another way.
    unsafe { std::env::remove_var("CUDA_VISIBLE_DEVICES") };
    ok!(tcuda_init(&options(c"sim".as_ptr())));
    assert!(tcuda_is_available() && backend() == "sim");
}

/// Forks; what the child does decides its exit code.
pub fn forked(child: impl FnOnce()) {
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            unsafe { libc::_exit(if done.is_ok() { 0 } else { 1 }) }
        }
        pid => {
            let mut status = -1;
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0, "the forked child failed");
        }
    }
}

fn after_fork_the_child_is_refused() {
    in_child("fork", &[]);
}

fn scene_fork() {
    let stream = create_on(-1);
    ok!(tcuda_stream_synchronize(stream));
    forked(|| {
        assert!(!tcuda_is_available() && !tcuda_is_initialized());
        assert_eq!(device_count(), 0);
        assert!(reason().contains("forked child"), "{}", reason());
        let said = fails!(FORKED, tcuda_init(null()));
        assert!(said.contains("fork"), "{said}");
        let (mut device, mut complete) = (-7, true);
        fails!(FORKED, tcuda_current_device(&mut device));
        fails!(FORKED, tcuda_set_device(0));
        fails!(FORKED, tcuda_stream_query(stream, &mut complete));
        fails!(FORKED, tcuda_stream_destroy(stream));
        fails!(FORKED, tcuda_shutdown());
        assert!(device == -7 && complete);
    });
    // The parent goes on.
    ok!(tcuda_stream_synchronize(stream));
    ok!(tcuda_stream_destroy(stream));
}

fn fork_before_the_first_use_is_fine() {
    in_child("fork_first", &[]);
}

fn scene_fork_first() {
    forked(|| {
        assert!(tcuda_is_available());
        drop(Own::new());
    });
    drop(Own::new());
}

fn shutdown_ends_and_init_starts_again() {
    in_child("shutdown", &[]);
}

fn scene_shutdown() {
    let before = reason();
    for _ in 0..3 {
        let own = create_on(-1);
        let pooled = get!(NULL, out => tcuda_stream_from_pool(out, -1, 0));
        let event = get!(null_mut(), out => tcuda_event_create(out, 0));
        ok!(tcuda_stream_wait_stream(own, pooled));
        ok!(tcuda_set_stream(pooled));
        let diary = Diary::default();
        diary.write_on(own, 1);
        ok!(tcuda_shutdown());
        assert_eq!(diary.read(), [1]);
        if backend() == "sim" {
            assert_eq!(fault::living(), (0, 0));
        }
        ok!(tcuda_shutdown());
        assert!(!tcuda_is_initialized() && !tcuda_is_available());
        assert_eq!(device_count(), 0);
        assert!(reason().contains("tcuda_shutdown was called"), "{}", reason());
        let said = fails!(SHUT_DOWN, tcuda_stream_synchronize(NULL));
        assert!(said.contains("tcuda_init"), "{said}");
        fails!(SHUT_DOWN, tcuda_set_device(0));
        ok!(tcuda_stream_destroy(own));
        ok!(tcuda_event_destroy(event));
        fails!(INVALID_ARGUMENT, tcuda_init(&options(c"rocm".as_ptr())));
        fails!(SHUT_DOWN, tcuda_synchronize(-1));
        ok!(tcuda_init(null()));
        assert!(tcuda_is_initialized() && tcuda_is_available());
        assert_eq!(reason(), before);
        assert_eq!(get!(NULL, out => tcuda_current_stream(out, 0)), default_of(0));
        ok!(tcuda_synchronize(-1));
    }
}

fn no_stray_context() {
    in_child("stray_context", &[]);
}

/// Work on device 1 makes no context on device 0, which is current all the time.
fn scene_stray_context() {
    let runtime = tcuda::runtime::runtime().unwrap();
    let has_context = || runtime.has_primary_context(0).unwrap();
    assert!(!has_context());
    let (stream, other) = (create_on(1), get!(NULL, out => tcuda_stream_from_pool(out, 1, 0)));
    let event = get!(null_mut(), out => tcuda_stream_record_event(stream, out));
    ok!(tcuda_stream_wait_event(other, event));
    ok!(tcuda_stream_wait_stream(stream, other));
    Diary::default().write_on(stream, 1);
    ok!(tcuda_stream_synchronize(default_of(1)));
    ok!(tcuda_stream_synchronize(stream));
    ok!(tcuda_synchronize(1));
    let (mut unused, mut total) = (0, 0);
    ok!(tcuda_mem_get_info(&mut unused, &mut total, 1));
    ok!(tcuda_event_destroy(event));
    ok!(tcuda_stream_destroy(stream));
    assert_eq!(device(), 0);
    assert!(!has_context());
    // Guards of the program's: of a device, of a stream, and one within another.
    let on_1 = || {
        let own = Own::new();
        assert_eq!((device(), get!(-1, out => tcuda_stream_device(own.0, out))), (1, 1));
        Diary::default().write_on(own.0, 1);
        free(allocate(512, own.0));
        ok!(tcuda_stream_synchronize(own.0));
    };
    let with_stream = |stream, within: &dyn Fn()| {
        let (mut previous, mut replaced) = (NULL, NULL);
        ok!(tcuda_exchange_stream(&mut previous, &mut replaced, stream));
        within();
        ok!(tcuda_set_stream(replaced));
        ok!(tcuda_set_stream(previous));
    };
    let with_device = |other, within: &dyn Fn()| {
        let before = get!(-1, out => tcuda_exchange_device(out, other));
        within();
        ok!(tcuda_set_device(before));
    };
    for _ in 0..2 {
        with_device(1, &on_1);
        with_stream(default_of(1), &on_1);
        with_device(1, &|| with_device(1, &|| with_stream(default_of(1), &on_1)));
        assert_eq!(device(), 0);
    }
    assert!(!has_context());
    // Within one the other device comes to have a context, and is gone back to as usual.
    with_device(1, &|| {
        with_device(0, &|| drop(Own::new()));
        on_1();
    });
    assert_eq!(device(), 0);
    assert!(has_context());
    with_device(1, &on_1);
    assert_eq!(device(), 0);
}
