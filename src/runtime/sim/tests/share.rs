//! Memory and events that others open. What takes two processes is in tests/conformance/ipc.rs.

use super::*;
use crate::runtime::sim::os::PAGE;
use crate::runtime::table::{IpcHandle, MemAccess, MemAllocationProp, MemLocation};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const ON_DEVICE_0: MemLocation = MemLocation { kind: 1, id: 0 };
const FILE: i32 = 1;

fn properties(handle_types: i32) -> MemAllocationProp {
    MemAllocationProp { kind: 1, handle_types, location: ON_DEVICE_0, ..Default::default() }
}

#[test]
fn a_handle_goes_by_a_file_and_stays_when_its_own_is_gone() {
    let m = Machine::new(1);
    let memory = &m.0.memory;
    memory.create(PAGE, &properties(FILE), 0).unwrap();
    let handle = memory.create(2 * PAGE, &properties(FILE), 0).unwrap();
    let file = unsafe { OwnedFd::from_raw_fd(m.0.export(handle, FILE, 0).unwrap()) };
    let other = m.0.import(file.as_raw_fd() as usize, FILE).unwrap();
    drop(file);
    let space = memory.reserve(4 * PAGE, 0, 0).unwrap();
    for (address, handle) in [(space, handle), (space + 2 * PAGE, other)] {
        memory.map(address, 2 * PAGE, 0, handle, 0).unwrap();
        memory.set_access(address, 2 * PAGE, &[MemAccess { location: ON_DEVICE_0, flags: 3 }]).unwrap();
    }
    unsafe { *((space + PAGE) as *mut u8) = 9 };
    assert_eq!(unsafe { *((space + 3 * PAGE) as *const u8) }, 9);
    // Charged once.
    assert_eq!(memory.used(0), 3 * PAGE);
    memory.unmap(space + 2 * PAGE, 2 * PAGE).unwrap();
    memory.release_handle(other).unwrap();
    assert_eq!((memory.used(0), m.0.export(other, FILE, 0)), (3 * PAGE, Err(code::INVALID_VALUE)));
    assert_eq!(unsafe { *((space + PAGE) as *const u8) }, 9);
}

#[test]
fn what_is_no_such_file_or_handle() {
    let m = Machine::new(1);
    let (plain, good) = [0, FILE].map(|kinds| m.0.memory.create(PAGE, &properties(kinds), 0).unwrap()).into();
    assert_eq!(m.0.export(plain, FILE, 0), Err(code::INVALID_VALUE));
    assert_eq!((m.0.export(good, 8, 0), m.0.export(good, FILE, 1), m.0.export(77, FILE, 0)), (Err(1), Err(1), Err(1)));
    let null = std::fs::File::open("/dev/null").unwrap();
    for (file, kind) in [(null.as_raw_fd() as usize, FILE), (usize::MAX, FILE), (9999, FILE), (null.as_raw_fd() as usize, 8)] {
        assert_eq!(m.0.import(file, kind), Err(code::INVALID_VALUE), "{file} {kind}");
    }
    let opened = |bytes| m.call(|sim| sim.open_shared(&IpcHandle(bytes), 1));
    assert_eq!(opened([0; 64]), Err(code::INVALID_HANDLE));
    assert_eq!(m.call(|sim| sim.open_event(&IpcHandle([7; 64]))), Err(code::INVALID_HANDLE));
    assert_eq!(m.call(|sim| sim.close_shared(PAGE)), Err(code::INVALID_VALUE));
}

#[test]
fn a_block_keeps_its_bytes_when_it_is_shared_and_is_not_opened_at_home() {
    let m = Machine::new(1);
    for size in [1000, 3 * PAGE] {
        let (block, neighbour) = (m.malloc(size).unwrap(), m.malloc(size).unwrap());
        let bytes = unsafe { std::slice::from_raw_parts_mut(block as *mut u8, size) };
        bytes.fill(5);
        unsafe { *(neighbour as *mut u8) = 6 };
        let handle = m.call(|sim| sim.share(block)).unwrap();
        assert_eq!(m.call(|sim| sim.share(block)), Ok(handle));
        assert!(bytes.iter().all(|byte| *byte == 5));
        assert_eq!(unsafe { *(neighbour as *const u8) }, 6);
        assert_eq!(m.call(|sim| sim.open_shared(&handle, 1)), Err(code::INVALID_CONTEXT));
        assert_eq!(m.call(|sim| sim.share(block + 512)), Err(code::INVALID_VALUE));
        m.free(block).unwrap();
        m.free(neighbour).unwrap();
        assert_eq!(m.call(|sim| sim.share(block)), Err(code::INVALID_VALUE));
        // What comes there next is zero, and nobody else's.
        let again = m.malloc(size).unwrap();
        assert_eq!(unsafe { *(again as *const u8) }, 0);
        m.free(again).unwrap();
    }
    assert_eq!(m.0.memory.used(0), 0);
}
