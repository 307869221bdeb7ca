//! What the host's own memory is like: what can be read, pages, and the NUMA nodes that they lie on.

use super::table::Address;
use crate::base::{Error, Result};
use std::sync::OnceLock;

/// Whether the host can read the byte at an address. Asks the kernel, which answers instead of faulting.
pub fn is_readable(address: Address) -> bool {
    let mut byte = 0u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: address as *mut _, iov_len: 1 };
    if unsafe { libc::process_vm_readv(libc::getpid(), &here, 1, &there, 1, 0) } == 1 {
        return true;
    }
    // Forbidden in some containers, and blind to memory of devices that is mapped for the host. This one reads 8 bytes before it
    // refuses to do something unknown with them.
    const UNKNOWN: libc::c_int = -1;
    const SET: usize = 8;
    let set = address & !(SET - 1);
    let answer = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, UNKNOWN, set, 0usize, SET) };
    // With NULL, the lowest 8 bytes, there is nothing to read, and that succeeds.
    answer != 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// Pages of zeros, there when they are touched. None: the kernel has none.
pub fn map(size: usize) -> Option<Address> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at as Address)
}

/// Gives pages of `map` back. Nothing may use them any more.
pub fn unmap(address: Address, size: usize) {
    unsafe { libc::munmap(address as *mut _, size) };
}

/// Pages of `map` that nobody touched yet come from this node, as long as it has any.
pub fn prefer_node(address: Address, size: usize, node: u32) -> Result<()> {
    const PREFERRED: usize = 1;
    const BITS: usize = 1024;
    let mut nodes = [0u64; BITS / 64];
    let Some(word) = nodes.get_mut(node as usize / 64) else {
        return Err(Error::invalid_argument(format!("There is no NUMA node {node}.")));
    };
    *word = 1 << (node % 64);
    match unsafe { libc::syscall(libc::SYS_mbind, address, size, PREFERRED, nodes.as_ptr(), BITS + 1, 0usize) } {
        0 => Ok(()),
        _ => Err(Error::system(&format!("Binding memory to the NUMA node {node} (mbind)"))),
    }
}

/// Touches every page of `map`, on several threads, so that they are there.
pub fn touch(address: Address, size: usize, threads: usize) {
    const PAGE: usize = 4096;
    let part = size.div_ceil(threads.max(1)).next_multiple_of(PAGE);
    let touch_part = |from: usize| {
        for page in (from..size.min(from + part)).step_by(PAGE) {
            unsafe { ((address + page) as *mut u8).write_volatile(0) };
        }
    };
    std::thread::scope(|scope| {
        let mut rest = (0..size).step_by(part.max(1));
        let first = rest.next();
        for from in rest {
            // Where no thread can be had, this one does it.
            if std::thread::Builder::new().spawn_scoped(scope, move || touch_part(from)).is_err() {
                touch_part(from);
            }
        }
        first.into_iter().for_each(touch_part);
    });
}

/// The NUMA nodes of the machine; a single 0 where the kernel knows of none.
pub fn nodes() -> &'static [u32] {
    static NODES: OnceLock<Vec<u32>> = OnceLock::new();
    NODES.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
        parse_list(&text).filter(|nodes| !nodes.is_empty()).unwrap_or_else(|| vec![0])
    })
}

/// `0-1,4`.
fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        all.extend(first..=last);
    }
    Some(all)
}

/// The node that a PCI device (`0000:3b:00.0`) is at.
pub fn node_of_pci(id: &str) -> Option<u32> {
    let path = format!("/sys/bus/pci/devices/{}/numa_node", id.to_ascii_lowercase());
    // -1: none.
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Bytes of the host's memory that can be had, as the kernel estimates.
pub fn available() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|kilobytes| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_from_a_node_and_are_there_after_a_touch() {
        const SIZE: usize = (1 << 20) + 4096;
        for threads in [0, 1, 3, 1000] {
            let pages = map(SIZE).unwrap();
            prefer_node(pages, SIZE, nodes()[0]).unwrap();
            touch(pages, SIZE, threads);
            let mut seen = vec![0u8; SIZE / 4096];
            assert_eq!(unsafe { libc::mincore(pages as *mut _, SIZE, seen.as_mut_ptr()) }, 0);
            assert!(seen.iter().all(|page| page & 1 == 1), "{threads}");
            unmap(pages, SIZE);
            assert!(!is_readable(pages));
        }
        assert_eq!(map(usize::MAX / 2), None);
        let page = map(4096).unwrap();
        for node in [1000, 5000] {
            assert!(prefer_node(page, 4096, node).unwrap_err().message.contains("NUMA node"), "{node}");
        }
        unmap(page, 4096);
    }

    #[test]
    fn lists_of_nodes() {
        assert_eq!(parse_list("0\n"), Some(vec![0]));
        assert_eq!(parse_list("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!((parse_list(""), parse_list("x")), (Some(vec![]), None));
        assert!(!nodes().is_empty() && available().is_some_and(|bytes| bytes > 0));
        assert_eq!(node_of_pci("ffff:ff:ff.f"), None);
    }

    #[test]
    fn what_is_there_can_be_read() {
        let heap = vec![1u8; 100_000];
        let local = 0u8;
        let constant: &'static str = "constant";
        assert!(is_readable(heap.as_ptr() as usize) && is_readable(heap.as_ptr() as usize + heap.len() - 1));
        assert!(is_readable(&raw const local as usize) && is_readable(constant.as_ptr() as usize));
        for nothing in [1, 4095, usize::MAX, usize::MAX / 2 + 1] {
            assert!(!is_readable(nothing), "{nothing:#x}");
        }
    }

    #[test]
    fn pages_that_are_closed_or_gone_cannot() {
        const PAGE: usize = 1 << 16;
        let map =
            |protection| unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        let closed = map(libc::PROT_NONE);
        assert!(closed != libc::MAP_FAILED && !is_readable(closed as usize) && !is_readable(closed as usize + PAGE));
        let open = map(libc::PROT_READ);
        assert!(open != libc::MAP_FAILED && is_readable(open as usize) && is_readable(open as usize + 2 * PAGE - 1));
        unsafe { libc::mprotect(open.byte_add(PAGE), PAGE, libc::PROT_NONE) };
        assert!(is_readable(open as usize + PAGE - 1) && !is_readable(open as usize + PAGE));
        assert_eq!([closed, open].map(|pages| unsafe { libc::munmap(pages, 2 * PAGE) }), [0, 0]);
    }
}
