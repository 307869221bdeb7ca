//! Memory and events that others open. What takes two processes is in tests/conformance/ipc.rs.

use super::*;
use crate::runtime::sim::os::PAGE;
use crate::runtime::sim::share::{Name, read_name, write_name};
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
        // In the middle of it: the same.
        assert_eq!(m.call(|sim| sim.share(block + size - 1)), Ok(handle));
        assert_ne!(m.call(|sim| sim.share(block + size)), Ok(handle));
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

/// A process that does nothing, and has what this one had open when it was made.
struct Twin(libc::pid_t);

impl Twin {
    fn new() -> Twin {
        match unsafe { libc::fork() } {
            0 => loop {
                unsafe { libc::pause() };
            },
            child => Twin(child),
        }
    }

    /// The handle as if it had made it.
    fn names(&self, kind: &[u8; 5], handle: &IpcHandle) -> IpcHandle {
        let name = read_name(kind, handle).unwrap();
        write_name(kind, Name { file: (self.0, name.file.1, name.file.2), ..name })
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn what_is_opened_twice_lies_at_one_address_and_is_closed_twice() {
    let m = Machine::new(2);
    let [block, small, next] = [2 * PAGE, 1000, 1000].map(|size| m.malloc(size).unwrap());
    let handles = [block, small, next].map(|block| m.call(|sim| sim.share(block)).unwrap());
    let twin = Twin::new();
    let [block_there, small_there, next_there] = handles.map(|handle| twin.names(b"block", &handle));
    let open = |handle: IpcHandle| m.call(|sim| sim.open_shared(&handle, 1));
    let close = |address| m.call(|sim| sim.close_shared(address));
    for flags in [0, 2] {
        assert_eq!(m.call(|sim| sim.open_shared(&block_there, flags)), Err(code::INVALID_VALUE));
    }
    let here = open(block_there).unwrap();
    assert_eq!((open(block_there), open(block_there)), (Ok(here), Ok(here)));
    let others = [small_there, next_there].map(|handle| open(handle).unwrap());
    assert_ne!(others[0], others[1]);
    m.write(block + PAGE, 5).unwrap();
    // Another device opens it for itself.
    m.set_device(1);
    let far = open(block_there).unwrap();
    assert!(far != here && open(block_there) == Ok(far));
    m.set_device(0);
    assert_eq!((close(far), close(far), close(far)), (Ok(()), Ok(()), Err(code::INVALID_VALUE)));
    for _ in 0..3 {
        assert_eq!(m.read(here + PAGE), Ok(5));
        // Only what was opened is closed, and none of it is freed.
        assert_eq!((close(here + 512), close(block), close(small)), (Err(1), Err(1), Err(1)));
        assert_eq!((m.free(here), m.call(|sim| sim.free_async(here, 0))), (Err(code::INVALID_VALUE), Err(code::INVALID_VALUE)));
        close(here).unwrap();
    }
    assert_eq!((close(here), m.read(here + PAGE)), (Err(code::INVALID_VALUE), Err(code::INVALID_VALUE)));
    others.into_iter().for_each(|other| close(other).unwrap());
    // The memory of a process that has ended opens no more; what is open stays.
    let here = open(block_there).unwrap();
    drop(twin);
    assert_eq!((open(block_there), m.read(here + PAGE)), (Err(code::INVALID_HANDLE), Ok(5)));
    close(here).unwrap();
}

#[test]
fn an_event_is_opened_by_others_and_only_if_it_is_made_for_them() {
    let m = Machine::new(1);
    let made = |flags| m.call(|sim| sim.create_event(flags));
    assert_eq!((made(4), made(5)), (Err(code::INVALID_VALUE), Err(code::INVALID_VALUE)));
    let [plain, shared] = [2, 6].map(|flags| made(flags).unwrap());
    assert_eq!(m.call(|sim| sim.event_handle(plain)), Err(code::INVALID_VALUE));
    let handle = m.call(|sim| sim.event_handle(shared)).unwrap();
    assert_eq!(m.call(|sim| sim.open_event(&handle)), Err(code::INVALID_CONTEXT));
    let twin = Twin::new();
    let there = twin.names(b"event", &handle);
    let here = m.call(|sim| sim.open_event(&there)).unwrap();
    assert_eq!(m.query_event(here), Ok(()));
    // It has no time, as the one that it stands for.
    assert!(m.call(|sim| sim.elapsed_time(here, here)).is_err());
    m.call(|sim| sim.destroy_event(here)).unwrap();
    drop(twin);
    assert_eq!(m.call(|sim| sim.open_event(&there)), Err(code::INVALID_HANDLE));
}
