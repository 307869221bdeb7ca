//! What the host's own memory is like.

use super::table::Address;

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

#[cfg(test)]
mod tests {
    use super::*;

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
