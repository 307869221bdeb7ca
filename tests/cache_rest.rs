//! Free memory that goes back to where it was mapped first is in nobody's way. On the simulated device.

mod gate;

use gate::Gate;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;
use tcuda::base::config;
use tcuda::memory::{self, pools, provider};
use tcuda::stream;

const MIB: usize = 1 << 20;

/// Some thread changes what is mapped on the device until it is told to end, or for long: whoever waits for it does not hang. Whether it was told.
fn growing(pool: u64) -> (Sender<()>, JoinHandle<bool>) {
    let ((holds, held), (end, ended)) = (mpsc::channel(), mpsc::channel());
    let thread = std::thread::spawn(move || {
        let pool = pools::numbered(pool).unwrap();
        let _growing = pool.cache.hold_growth();
        holds.send(()).unwrap();
        ended.recv_timeout(Duration::from_secs(20)).is_ok()
    });
    held.recv().unwrap();
    (end, thread)
}

#[test]
fn nobody_waits_or_goes_without() {
    for (name, value) in [("TCUDA_BACKEND", "sim"), ("TCUDA_SIM_MEMORY", "4GiB"), ("TCUDA_ALLOC_CONF", "throw_on_cudamalloc_oom:True")] {
        config::set(name, value.into());
    }
    what_could_not_rest_does_the_next_time();
    memory::empty_cache(None).unwrap();
    what_is_past_stays_everybodys();
    memory::set_limit(None, 0).unwrap();
    who_finds_free_memory_waits_for_nobody();
}

fn who_finds_free_memory_waits_for_nobody() {
    let own = stream::create(0, 0).unwrap();
    let first = [0; 2].map(|_| memory::allocate(64 * MIB, 1, own).unwrap());
    let pool = pools::create(0, pools::Options { source: provider::Source::Driver, use_on_oom: false, no_split: false }).unwrap();
    let last = memory::allocate(128 * MIB, 1, own).unwrap();
    let (end, growing) = growing(pool);
    first.into_iter().chain([last]).for_each(|block| memory::free(block).unwrap());
    let again = memory::allocate(32 * MIB, 1, own).unwrap();
    let _ = end.send(());
    assert!(growing.join().unwrap(), "the allocation waited");
    memory::free(again).unwrap();
}

/// Also where another part of the same handle may still be used by a stream that is busy.
fn what_is_past_stays_everybodys() {
    let [busy, idle, asks] = [0; 3].map(|_| stream::create(0, 0).unwrap());
    memory::set_limit(Some(64 * MIB), 0).unwrap();
    // Something is mapped a second time.
    let blocks: Vec<usize> = (0..16).map(|_| memory::allocate(4 * MIB, 1, busy).unwrap()).collect();
    let (mut kept, mut freed) = (Vec::new(), Vec::new());
    blocks.into_iter().enumerate().for_each(|(at, block)| if at / 2 % 2 == 0 { kept.push(block) } else { freed.push(block) });
    freed.into_iter().for_each(|block| memory::free(block).unwrap());
    memory::allocate(32 * MIB, 1, busy).unwrap();
    let whole = kept.pop().unwrap();
    memory::free(whole).unwrap();
    let past = memory::allocate(3 * MIB / 2, 1, idle).unwrap();
    let used = memory::allocate(5 * MIB / 2, 1, busy).unwrap();
    assert_eq!((past, used), (whole, whole + 3 * MIB / 2));
    let gate = Gate::on(busy);
    [used, past].into_iter().for_each(|block| memory::free(block).unwrap());
    let found = memory::allocate(3 * MIB / 2, 1, asks);
    drop(gate);
    memory::check(0);
    assert_eq!(found.map_err(|error| error.status), Ok(past));
}

/// As something else held up what is mapped.
fn what_could_not_rest_does_the_next_time() {
    let own = stream::create(0, 0).unwrap();
    let pool = pools::create(0, pools::Options { source: provider::Source::Driver, use_on_oom: false, no_split: false }).unwrap();
    memory::set_limit(Some(64 * MIB), 0).unwrap();
    let blocks: Vec<usize> = (0..16).map(|_| memory::allocate(4 * MIB, 1, own).unwrap()).collect();
    let first = *blocks.iter().min().unwrap();
    let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
    freed.into_iter().for_each(|(_, block)| memory::free(block).unwrap());
    let again = memory::allocate(32 * MIB, 1, own).unwrap();
    let (end, growing) = growing(pool);
    kept.into_iter().for_each(|(_, block)| memory::free(block).unwrap());
    memory::free(again).unwrap();
    let meanwhile = memory::allocate(32 * MIB, 1, own).unwrap();
    assert_ne!(meanwhile, first, "it came to rest beside who changes what is mapped");
    end.send(()).unwrap();
    growing.join().unwrap();
    memory::free(meanwhile).unwrap();
    assert_eq!(memory::allocate(32 * MIB, 1, own).unwrap(), first);
    memory::free(first).unwrap();
    pools::destroy(pool).unwrap();
    memory::check(0);
}
