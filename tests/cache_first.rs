//! What a program's first memory asks of the simulated device. A process of its own, since it is the first but once.

use tcuda::base::config;
use tcuda::runtime::sim;
use tcuda::{device, memory, stream};

/// The rate of a clock takes the driver half a millisecond, and a machine may have many devices.
#[test]
fn first_memory_asks_for_no_attribute_of_a_device() {
    for (name, value) in [("TCUDA_BACKEND", "sim"), ("TCUDA_SIM_DEVICES", "2")] {
        config::set(name, value.into());
    }
    let own = stream::create(0, 0).unwrap();
    let asked = || sim::machine().unwrap().faults().count(Some("cudaDeviceGetAttribute")).unwrap();
    let before = asked();
    let block = memory::allocate(512, 1, own).unwrap();
    assert_eq!(asked(), before);
    // All properties do, once, and have the size that was asked for before.
    let properties = device::properties(0).unwrap();
    let all = asked();
    assert!(all > before);
    assert_eq!((device::properties(0).unwrap(), device::total_memory(0).unwrap()), (properties, properties.total_memory));
    assert_eq!(asked(), all);
    memory::free(block).unwrap();
}
