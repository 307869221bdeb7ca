//! A pool that does not split its segments hands out what is there as it is. On the simulated device.

use tcuda::base::config;
use tcuda::memory::{self, pools, provider};
use tcuda::stream;

const GIB: usize = 1 << 30;

/// An eighth more than was asked for may be more than a record of a block can tell of.
#[test]
fn what_was_asked_for_is_known_of_the_largest_blocks_too() {
    for (name, value) in [("TCUDA_BACKEND", "sim"), ("TCUDA_SIM_MEMORY", "256GiB")] {
        config::set(name, value.into());
    }
    let pool = pools::create(0, pools::Options { source: provider::Source::Driver, use_on_oom: false, no_split: true }).unwrap();
    let pool = pools::numbered(pool).unwrap();
    let own = stream::create(0, 0).unwrap();
    let requested = || pool.cache.stats.current(tcuda::memory::stats::Family::RequestedBytes) as usize;
    for (first, second, is_taken) in [(68 * GIB, 61 * GIB, false), (64 * GIB, 61 * GIB, true)] {
        let block = pools::allocate(&pool, first, 1, own).unwrap();
        assert_eq!(requested(), first);
        memory::free(block).unwrap();
        let again = pools::allocate(&pool, second, 1, own).unwrap();
        assert_eq!((requested(), again == block), (second, is_taken));
        memory::free(again).unwrap();
        assert_eq!(requested(), 0);
        pool.cache.empty().unwrap();
    }
}
