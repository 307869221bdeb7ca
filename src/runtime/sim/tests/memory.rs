//! Memory of devices and of the host, plain and virtual.

use super::*;

#[test]
fn memory_keeps_its_bytes_and_its_account() {
    let m = Machine::new(1);
    let total = m.free_bytes();
    assert_eq!(m.malloc(0), Ok(0));
    let (a, b) = (m.malloc(100).unwrap(), m.malloc(3 << 20).unwrap());
    assert_eq!((a % 512, b % PAGE), (0, 0));
    assert_eq!(total - m.free_bytes(), 3 * PAGE);
    m.write(a, 7).unwrap();
    m.copy_now(b + (3 << 20) - 8, a, 8).unwrap();
    assert_eq!(m.read(b + (3 << 20) - 8), Ok(7));
    m.free(a).unwrap();
    m.free(b).unwrap();
    m.free(0).unwrap();
    assert_eq!(m.free_bytes(), total);
    assert_eq!(m.0.live(0..1), Live::default());
}

#[test]
fn what_is_out_of_range_or_freed_is_caught() {
    let m = Machine::new(1);
    let (a, b) = (m.malloc(100).unwrap(), m.malloc(2 * PAGE).unwrap());
    for (to, size) in [(a, 101), (a + 96, 8), (b + 2 * PAGE, 1), (b + 2 * PAGE - 4, 8), (b - 1, 1), (a, usize::MAX)] {
        assert_eq!(m.fill(to, 0, size, 0), Err(1), "{to:#x} {size}");
    }
    assert_eq!(m.free(a + 8), Err(1));
    m.free(a).unwrap();
    m.free(b).unwrap();
    assert_eq!((m.free(a), m.free(b)), (Err(1), Err(1)));
    assert_eq!((m.read(a), m.read(b)), (Err(1), Err(1)));
    let garbage = 0x1234_5000;
    assert_eq!((m.read(garbage), m.read(0), m.free(garbage)), (Err(1), Err(1), Err(1)));
    // None of this harmed the device.
    assert_eq!(m.synchronize(), Ok(()));
}

#[test]
fn a_freed_address_is_not_used_again_soon() {
    let m = Machine::new(1);
    let mut seen = std::collections::HashSet::new();
    for size in [512, 2 << 20, 40 << 20].repeat(60) {
        let address = m.malloc(size).unwrap();
        assert!(seen.insert(address));
        m.free(address).unwrap();
    }
}

/// Whoever keeps a table by address has one of some size then.
#[test]
fn addresses_come_again() {
    let m = Machine::new(1);
    let mut seen = std::collections::HashSet::new();
    // Some that stay keep what they lie in from being used again.
    let stay: Vec<Address> = [(); 8]
        .iter()
        .flat_map(|()| {
            (0..1000).for_each(|_| {
                let address = m.malloc(PAGE).unwrap();
                seen.insert(address);
                m.free(address).unwrap();
            });
            m.malloc(PAGE)
        })
        .collect();
    for _ in 0..20_000 {
        let address = m.malloc(PAGE).unwrap();
        seen.insert(address);
        m.free(address).unwrap();
    }
    assert!((4 << 30) / PAGE <= seen.len() && seen.len() <= (16 << 30) / PAGE, "{} addresses", seen.len());
    stay.into_iter().for_each(|address| m.free(address).unwrap());
}

#[test]
fn windows_go_round() {
    let m = Machine::new(1);
    m.0.memory.set_limit(0, 1 << 40);
    // Far more addresses than are kept.
    for _ in 0..40 {
        let address = m.malloc(6 << 30).unwrap();
        m.write(address + (6 << 30) - 8, 1).unwrap();
        m.free(address).unwrap();
    }
    assert_eq!(m.0.live(0..1), Live::default());
}

#[test]
fn capacity_is_a_limit_that_can_change() {
    let m = Machine::new(1);
    let a = m.malloc(1 << 30).unwrap();
    assert_eq!(m.free_bytes(), 0);
    assert_eq!((m.malloc(1), m.malloc(usize::MAX)), (Err(2), Err(2)));
    assert_eq!(m.call(|sim| sim.memory.create(PAGE, &on(0), 0)), Err(2));
    m.0.set_memory(0, (1 << 30) + PAGE);
    let b = m.malloc(1).unwrap();
    m.0.set_memory(0, 0);
    assert_eq!(m.free_bytes(), 0);
    assert_eq!(m.malloc(1 << 20), Err(2));
    m.0.set_memory(0, 1 << 30);
    m.free(a).unwrap();
    m.free(b).unwrap();
    assert_eq!(m.free_bytes(), 1 << 30);
}

#[test]
fn pinned_memory_has_attributes_and_rules() {
    let m = Machine::new(2);
    m.set_device(1);
    let block = m.pinned::<u8>(10_000);
    let address = block.as_ptr() as Address;
    let of = |address| m.0.memory.attributes(address);
    assert_eq!((of(address + 9_999).kind, of(address).device, of(address).host_address), (1, 1, address));
    let device = m.malloc(64).unwrap();
    assert_eq!((of(device).kind, of(device).device, of(device).host_address), (2, 1, 0));
    let mut own = vec![0u8; 8192];
    let own_address = own.as_mut_ptr() as Address;
    assert_eq!((of(own_address).kind, of(own_address).device), (0, -2));
    assert_eq!(of(0).kind, 0);
    let register = |address, size| m.call(|sim| sim.memory.host_register(0, address, size, 0));
    register(own_address, 8192).unwrap();
    assert_eq!(of(own_address + 100).kind, 1);
    assert_eq!(register(own_address + 4096, 8192), Err(712));
    assert_eq!(register(address, 1), Err(712));
    assert_eq!((register(0, 8), register(own_address, 0), register(device, 8)), (Err(1), Err(1), Err(1)));
    let give = |address, registered| m.call(|sim| sim.give_host(address, registered));
    assert_eq!((give(own_address, false), give(address, true), give(address + 8, false)), (Err(1), Err(713), Err(1)));
    assert_eq!((give(own_address, true), give(own_address, true)), (Ok(()), Err(713)));
    assert_eq!((give(address, false), give(address, false)), (Ok(()), Err(1)));
    assert_eq!(m.call(|sim| sim.memory.host_alloc(0, 8, 8)), Err(1));
    assert_eq!(m.call(|sim| sim.memory.host_alloc(0, 1 << 60, 0)), Err(2));
    assert_eq!(m.call(|sim| sim.memory.host_alloc(0, 0, 0)), Ok(0));
}

#[test]
fn copies_follow_kinds_and_pitches() {
    let m = Machine::new(1);
    let device = m.malloc(4096).unwrap();
    let host = [5u8; 4096];
    let at = host.as_ptr() as Address;
    let copy = |rows, kind| m.call(|sim| sim.copy(rows, kind, 0, true));
    assert_eq!(copy(Rows::line(device, at, 8), D2H), Err(1));
    assert_eq!(copy(Rows::line(device, at, 8), 3), Err(1));
    assert_eq!((copy(Rows::line(device, at, 8), 5), copy(Rows::line(device, at, 8), -1)), (Err(21), Err(21)));
    assert_eq!(copy(Rows::line(device, at, 8), 1), Ok(()));
    assert_eq!(copy(Rows::line(usize::MAX, 1, 0), 4), Ok(()));
    let rows = Rows { to: device, to_pitch: 64, from: at, from_pitch: 16, width: 8, height: 64 };
    assert_eq!(copy(rows, 4), Ok(()));
    assert_eq!(copy(Rows { width: 17, ..rows }, 4), Err(12));
    assert_eq!(copy(Rows { height: 65, ..rows }, 4), Err(1));
    assert_eq!(copy(Rows { height: usize::MAX, ..rows }, 4), Err(1));
    assert_eq!(m.read(device + 63 * 64), Ok(0x0505_0505_0505_0505));
    assert_eq!(m.read(device + 63 * 64 + 8), Ok(0));
}

// ---- virtual memory

#[test]
fn two_mappings_of_a_handle_share_its_bytes() {
    let m = Machine::new(1);
    let total = m.free_bytes();
    let memory = &m.0.memory;
    m.synchronize().unwrap();
    let space = memory.reserve(1 << 42, 0, 0).unwrap();
    let handle = memory.create(2 * PAGE, &on(0), 0).unwrap();
    let (a, b) = (space + PAGE, space + 100 * PAGE);
    memory.map(a, 2 * PAGE, 0, handle, 0).unwrap();
    memory.map(b, 2 * PAGE, 0, handle, 0).unwrap();
    memory.set_access(a, 2 * PAGE, &[access(0, 3)]).unwrap();
    memory.set_access(b, 2 * PAGE, &[access(0, 3)]).unwrap();
    m.write(a + PAGE, 42).unwrap();
    assert_eq!(m.read(b + PAGE), Ok(42));
    assert_eq!(total - m.free_bytes(), 2 * PAGE);
    memory.release_handle(handle).unwrap();
    assert_eq!(memory.release_handle(handle), Err(1));
    assert_eq!(memory.map(space, 2 * PAGE, 0, handle, 0), Err(1));
    memory.unmap(a, 2 * PAGE).unwrap();
    // The memory lives with the last mapping.
    assert_eq!(m.read(b + PAGE), Ok(42));
    assert_eq!(m.read(a), Err(1));
    assert_eq!(memory.unreserve(space, 1 << 42), Err(1));
    memory.unmap(b, 2 * PAGE).unwrap();
    assert_eq!(m.free_bytes(), total);
    let again = memory.create(2 * PAGE, &on(0), 0).unwrap();
    memory.map(a, 2 * PAGE, 0, again, 0).unwrap();
    memory.set_access(a, 2 * PAGE, &[access(0, 3)]).unwrap();
    assert_eq!(m.read(a + PAGE), Ok(0));
    memory.unmap(a, 2 * PAGE).unwrap();
    memory.release_handle(again).unwrap();
    memory.unreserve(space, 1 << 42).unwrap();
    assert_eq!(m.0.live(0..1), Live::default());
}

#[test]
fn virtual_memory_has_rules() {
    let m = Machine::new(2);
    let memory = &m.0.memory;
    assert_eq!(memory.granularity(&on(1), 0), Ok(PAGE));
    assert_eq!((memory.granularity(&on(2), 0), memory.granularity(&on(0), 2)), (Err(101), Err(1)));
    assert_eq!((memory.reserve(PAGE + 1, 0, 0), memory.reserve(0, 0, 0), memory.reserve(PAGE, 3, 0)), (Err(1), Err(1), Err(1)));
    assert_eq!(memory.reserve(1 << 62, 0, 0), Err(2));
    assert_eq!(memory.create(100, &on(0), 0), Err(1));
    assert_eq!(memory.create(0, &on(0), 0), Err(1));
    assert_eq!(memory.create(PAGE, &MemAllocationProp { handle_types: 8, ..on(0) }, 0), Err(801));
    assert_eq!(memory.create(PAGE, &MemAllocationProp { kind: 0, ..on(0) }, 0), Err(1));
    let aligned = memory.reserve(4 * PAGE, 1 << 30, 0).unwrap();
    assert_eq!(aligned % (1 << 30), 0);
    let space = memory.reserve(4 * PAGE, 0, 0).unwrap();
    let handle = memory.create(2 * PAGE, &on(0), 0).unwrap();
    for (address, size, offset) in
        [(space + 1, 2 * PAGE, 0), (space, PAGE, 0), (space, 2 * PAGE, PAGE), (space + 3 * PAGE, 2 * PAGE, 0), (0, 2 * PAGE, 0)]
    {
        assert_eq!(memory.map(address, size, offset, handle, 0), Err(1), "{address:#x} {size} {offset}");
    }
    memory.map(space + PAGE, 2 * PAGE, 0, handle, 0).unwrap();
    for at in [0, PAGE, 2 * PAGE] {
        assert_eq!(memory.map(space + at, 2 * PAGE, 0, handle, 0), Err(1));
    }
    for (address, size) in [(space, 2 * PAGE), (space + PAGE, PAGE), (space + 2 * PAGE, PAGE), (space + PAGE, 3 * PAGE), (space, 0)] {
        assert_eq!(memory.unmap(address, size), Err(1));
        assert_eq!(memory.set_access(address, size, &[access(0, 3)]), Err(1));
    }
    let whole = |access: &[MemAccess]| memory.set_access(space + PAGE, 2 * PAGE, access);
    assert_eq!((whole(&[]), whole(&[access(0, 2)]), whole(&[access(5, 3)])), (Err(1), Err(1), Err(101)));
    assert_eq!((memory.unreserve(space, PAGE), memory.unreserve(space + PAGE, PAGE)), (Err(1), Err(1)));
    memory.unmap(space + PAGE, 2 * PAGE).unwrap();
    memory.release_handle(handle).unwrap();
    memory.unreserve(space, 4 * PAGE).unwrap();
    assert_eq!(memory.unreserve(space, 4 * PAGE), Err(1));
    memory.unreserve(aligned, 4 * PAGE).unwrap();
    assert_eq!(m.0.live(0..2), Live::default());
}

#[test]
fn without_access_a_mapping_faults() {
    let m = Machine::new(2);
    let memory = &m.0.memory;
    let space = memory.reserve(PAGE, 0, 0).unwrap();
    let handle = memory.create(PAGE, &on(0), 0).unwrap();
    memory.map(space, PAGE, 0, handle, 0).unwrap();
    memory.set_access(space, PAGE, &[access(0, 1), access(1, 3)]).unwrap();
    // Device 0 may read only; device 1 may write, and so may a copy that runs there.
    assert_eq!(m.read(space), Ok(0));
    m.set_device(1);
    assert_eq!(m.fill(space, 1, 8, 0), Ok(()));
    assert_eq!(m.read(space), Ok(0x0101_0101_0101_0101));
    m.set_device(0);
    // The driver looks before, a kernel finds out.
    assert_eq!(m.fill(space, 1, 8, 0), Err(1));
    m.launch(0, vec![span(space, 8, true)], || {}).unwrap();
    assert_eq!(m.synchronize(), Err(700));
    assert_eq!(m.malloc(8), Err(700));
    m.set_device(1);
    assert_eq!(m.synchronize(), Ok(()));
}

#[test]
fn a_mapping_nobody_may_touch_is_out_of_reach() {
    let m = Machine::new(1);
    let memory = &m.0.memory;
    let space = memory.reserve(PAGE, 0, 0).unwrap();
    assert_eq!(m.read(space), Err(1));
    let handle = memory.create(PAGE, &on(0), 0).unwrap();
    memory.map(space, PAGE, 0, handle, 0).unwrap();
    assert_eq!((m.read(space), m.fill(space, 1, 8, 0)), (Err(1), Err(1)));
    assert_eq!(m.synchronize(), Ok(()));
}

#[test]
fn tens_of_thousands_of_mappings_are_few_for_the_kernel() {
    let m = Machine::new(1);
    let memory = &m.0.memory;
    m.0.set_memory(0, 128 << 30);
    const COUNT: usize = 40_000;
    let space = memory.reserve(COUNT * PAGE, 0, 0).unwrap();
    // Of the range alone: other tests map as well.
    let inside = |line: &&str| {
        let start = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        (space..space + COUNT * PAGE).contains(&start)
    };
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(inside).count();
    for at in 0..COUNT {
        let handle = memory.create(PAGE, &on(0), 0).unwrap();
        memory.map(space + at * PAGE, PAGE, 0, handle, 0).unwrap();
        memory.release_handle(handle).unwrap();
        memory.set_access(space + at * PAGE, PAGE, &[access(0, 3)]).unwrap();
    }
    assert!((1..1000).contains(&maps()), "{} mappings", maps());
    m.write(space + 39_999 * PAGE, 3).unwrap();
    assert_eq!(m.read(space + 39_999 * PAGE), Ok(3));
    m.copy(space, space + 20_000 * PAGE, 3 * PAGE, 0).unwrap();
    memory.unmap(space, COUNT * PAGE).unwrap();
    memory.unreserve(space, COUNT * PAGE).unwrap();
    assert_eq!(m.0.live(0..1), Live::default());
}
