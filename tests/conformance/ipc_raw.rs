//! The sockets by which memory is shared, by hand: peers that say what tcuda never would.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use tcuda::capi::ipc::tcuda_ipc_handle_t;
use tcuda::ipc::Blob;

pub struct Raw(OwnedFd);

/// 128 bits: of a producer or of an export.
pub type Name = [u8; 16];

pub fn blob(handle: &tcuda_ipc_handle_t) -> Blob {
    Blob::read(&handle.bytes).unwrap()
}

/// A request: 0 takes, 1 wants files from a number on, 2 gives back, 3 takes the last take back.
pub fn request(kind: u64, export: &Name, from: u64) -> Vec<u8> {
    [&kind.to_ne_bytes()[..], export, &from.to_ne_bytes()].concat()
}

pub fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn address(name: &Name) -> (libc::sockaddr_un, u32) {
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let text = format!("\0tcuda-ipc-{}", crate::ipc_other::hex(name));
    address.sun_path.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
    (address, (size_of::<libc::sa_family_t>() + text.len()) as u32)
}

impl Raw {
    fn new() -> Raw {
        let file = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
        assert!(file >= 0);
        Raw(unsafe { OwnedFd::from_raw_fd(file) })
    }

    pub fn connect(name: &Name) -> Raw {
        let (made, (address, length)) = (Raw::new(), address(name));
        assert_eq!(unsafe { libc::connect(made.0.as_raw_fd(), (&raw const address).cast(), length) }, 0);
        made
    }

    pub fn listen(name: &Name) -> Raw {
        let (made, (address, length)) = (Raw::new(), address(name));
        assert_eq!(unsafe { libc::bind(made.0.as_raw_fd(), (&raw const address).cast(), length) }, 0);
        assert_eq!(unsafe { libc::listen(made.0.as_raw_fd(), 8) }, 0);
        made
    }

    pub fn accept(&self) -> Raw {
        let file = unsafe { libc::accept4(self.0.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
        assert!(file >= 0);
        Raw(unsafe { OwnedFd::from_raw_fd(file) })
    }

    /// Without waiting, with so many copies of a file. False: it did not go.
    pub fn send(&self, bytes: &[u8], files: usize) -> bool {
        let null = std::fs::File::open("/dev/null").unwrap();
        let files = vec![null.as_raw_fd(); files];
        let mut ancillary = [0u64; 256];
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
        if !files.is_empty() {
            let length = size_of_val(&files[..]);
            message.msg_control = ancillary.as_mut_ptr().cast();
            unsafe {
                message.msg_controllen = libc::CMSG_SPACE(length as u32) as _;
                let header = libc::CMSG_FIRSTHDR(&message);
                ((*header).cmsg_level, (*header).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
                (*header).cmsg_len = libc::CMSG_LEN(length as u32) as _;
                std::ptr::copy_nonoverlapping(files.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), length);
            }
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, flags) == bytes.len() as isize }
    }

    pub fn is_open(&self) -> bool {
        let mut watched = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        unsafe { libc::poll(&mut watched, 1, 0) == 0 }
    }

    /// The next message; None: the other end is closed. Files that come along are closed by the kernel.
    pub fn receive(&self) -> Option<Vec<u8>> {
        const PATIENCE: i32 = 20_000;
        let mut watched = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        assert_eq!(unsafe { libc::poll(&mut watched, 1, PATIENCE) }, 1, "neither an answer nor an end");
        let mut bytes = vec![0u8; 4096];
        let got = unsafe { libc::recv(self.0.as_raw_fd(), bytes.as_mut_ptr().cast::<c_void>(), bytes.len(), 0) };
        (got > 0).then(|| bytes[..got as usize].to_vec())
    }
}
