//! Sockets between processes of one machine, with files that travel along, and the end of a process.
//!
//! Their names are abstract: they lie in no folder, and go with the process.

use super::blob::Secret;
use crate::base::{Error, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Files that come with one message at most.
pub const MOST_FILES: usize = 32;

pub struct Socket(OwnedFd);

/// The process at the other end.
pub struct Peer {
    pub process: i32,
    /// Readable when it has ended. None: the kernel does not say, or it is in a container of its own.
    watch: Option<OwnedFd>,
    /// It had ended before it could be watched: a child of it has the socket.
    ended: bool,
}

pub enum Received {
    Bytes(usize),
    /// Nothing is there now.
    Nothing,
    /// A message that is too long, or files for which the process has no room.
    Cut,
    /// The other end is closed, or broken.
    End,
}

fn address(name: &Secret) -> (libc::sockaddr_un, u32) {
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let text: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("\0tcuda-ipc-{text}");
    for (to, from) in address.sun_path.iter_mut().zip(text.bytes()) {
        *to = from as libc::c_char;
    }
    (address, (size_of::<libc::sa_family_t>() + text.len()) as u32)
}

fn socket(flags: i32) -> Result<Socket> {
    let file = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags, 0) };
    if file < 0 {
        return Err(Error::system("Making a socket to share memory by"));
    }
    Ok(Socket(unsafe { OwnedFd::from_raw_fd(file) }))
}

/// One entry of a message's ancillary data, with room for `MOST_FILES`.
#[repr(C, align(8))]
struct Ancillary([u8; 16 + 4 * MOST_FILES + 8]);

impl Socket {
    /// Nothing of it waits.
    pub fn listen(name: &Secret) -> Result<Socket> {
        const BACKLOG: i32 = 128;
        let made = socket(libc::SOCK_NONBLOCK)?;
        let (address, length) = address(name);
        let file = made.0.as_raw_fd();
        if unsafe { libc::bind(file, (&raw const address).cast(), length) != 0 || libc::listen(file, BACKLOG) != 0 } {
            return Err(Error::system("Listening for processes to share memory with"));
        }
        Ok(made)
    }

    /// errno of `native` is ECONNREFUSED where nobody listens.
    pub fn connect(name: &Secret) -> Result<Socket> {
        let made = socket(0)?;
        let (address, length) = address(name);
        loop {
            if unsafe { libc::connect(made.0.as_raw_fd(), (&raw const address).cast(), length) } == 0 {
                return Ok(made);
            }
            let error = Error::system("Asking the process that exported the memory");
            if error.native != libc::EINTR {
                return Err(error);
            }
        }
    }

    /// None: nobody waits for it. Err: somebody does, and has to.
    pub fn accept(&self) -> Result<Option<Socket>, ()> {
        let file = unsafe { libc::accept4(self.0.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
        match file {
            0.. => Ok(Some(Socket(unsafe { OwnedFd::from_raw_fd(file) }))),
            _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            _ => Err(()),
        }
    }

    /// None: a process of another user, which is not spoken to.
    pub fn peer(&self) -> Option<Peer> {
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as u32;
        let asked =
            unsafe { libc::getsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast(), &mut length) };
        if asked != 0 || (found.uid != unsafe { libc::geteuid() } && found.uid != 0) {
            return None;
        }
        let watch = match found.pid {
            0 => -1,
            process => unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) as i32 },
        };
        let ended = watch < 0 && found.pid != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        Some(Peer { process: found.pid, watch: (watch >= 0).then(|| unsafe { OwnedFd::from_raw_fd(watch) }), ended })
    }

    /// Never waits. False: it did not go, which the last error of the system tells of.
    pub fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> bool {
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut ancillary = Ancillary([0; 16 + 4 * MOST_FILES + 8]);
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if !files.is_empty() {
            let length = size_of_val(files) as u32;
            message.msg_control = (&raw mut ancillary).cast();
            unsafe {
                message.msg_controllen = libc::CMSG_SPACE(length) as _;
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(length) as _;
                // A BorrowedFd is an int.
                std::ptr::copy_nonoverlapping(files.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), length as usize);
            }
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, flags) == bytes.len() as isize }
    }

    /// Waits while the other end is slow: as long as its process lives, or so long. False: it did not go.
    pub fn deliver(&self, bytes: &[u8], peer: &Peer, patience: Option<Duration>) -> bool {
        /// Where the kernel does not tell of the end of a process.
        const LOOK: Duration = Duration::from_secs(1);
        let until = patience.map(|patience| Instant::now() + patience);
        loop {
            if self.send(bytes, &[]) {
                return true;
            }
            let is_full = std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock;
            let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()).min(LOOK));
            if !is_full || left.is_zero() || peer.has_ended() || !self.is_open() {
                return false;
            }
            let room = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
            let end = libc::pollfd { fd: peer.watch().map_or(-1, |watch| watch.as_raw_fd()), events: libc::POLLIN, revents: 0 };
            unsafe { libc::poll([room, end].as_mut_ptr(), 2, left.as_millis() as i32 + 1) };
        }
    }

    /// What is there of one message, without waiting, and the files that came with it.
    pub fn receive(&self, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> Received {
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut ancillary = Ancillary([0; 16 + 4 * MOST_FILES + 8]);
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut ancillary).cast();
        message.msg_controllen = size_of::<Ancillary>() as _;
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        let got = unsafe { libc::recvmsg(self.0.as_raw_fd(), &mut message, flags) };
        if got < 0 {
            let again = [libc::EAGAIN, libc::EINTR].contains(&std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
            return if again { Received::Nothing } else { Received::End };
        }
        let mut header = unsafe { libc::CMSG_FIRSTHDR(&message) };
        while let Some(found) = unsafe { header.as_ref() } {
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = unsafe { libc::CMSG_DATA(header) };
                let count = (found.cmsg_len - (data as usize - header as usize)) / size_of::<i32>();
                for at in 0..count {
                    let file = unsafe { data.cast::<i32>().add(at).read_unaligned() };
                    files.push(unsafe { OwnedFd::from_raw_fd(file) });
                }
            }
            header = unsafe { libc::CMSG_NXTHDR(&message, header) };
        }
        let cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        match (got, cut) {
            (_, true) => Received::Cut,
            (0, _) => Received::End,
            _ => Received::Bytes(got as usize),
        }
    }

    /// The other end sees the end at once, whoever else has this one.
    pub fn end(&self) {
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Whether the other end is there, as far as the kernel tells at once.
    pub fn is_open(&self) -> bool {
        let mut watched = [libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
        let ready = unsafe { libc::poll(watched.as_mut_ptr(), 1, 0) };
        ready <= 0 || watched[0].revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) == 0
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Peer {
    pub fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// True only if the kernel says so.
    pub fn has_ended(&self) -> bool {
        self.ended
            || self.watch().is_some_and(|watch| {
                let mut watched = libc::pollfd { fd: watch.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                unsafe { libc::poll(&mut watched, 1, 0) == 1 }
            })
    }
}

/// Until one of the files can be read, or for no reason.
pub fn wait(files: &[BorrowedFd<'_>]) {
    let watched = |file: &BorrowedFd<'_>| libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut watched: Vec<libc::pollfd> = files.iter().map(watched).collect();
    unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, -1) };
}

/// Wakes a thread that waits for it.
pub struct Bell(File);

impl Bell {
    pub fn new() -> Result<Bell> {
        let file = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if file < 0 {
            return Err(Error::system("Making an eventfd"));
        }
        Ok(Bell(unsafe { File::from_raw_fd(file) }))
    }

    pub fn ring(&self) {
        // It can only be full, and then it rings already.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    pub fn silence(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::blob::secret;
    use super::*;

    #[test]
    fn messages_keep_their_bounds_and_files_come_along() {
        let name = secret().unwrap();
        let listener = Socket::listen(&name).unwrap();
        assert!(Socket::listen(&name).is_err());
        assert!(listener.accept().unwrap().is_none());
        let here = Socket::connect(&name).unwrap();
        let there = listener.accept().unwrap().unwrap();
        assert_eq!((here.peer().unwrap().process, there.peer().unwrap().process), (std::process::id() as i32, std::process::id() as i32));
        assert!(!here.peer().unwrap().has_ended());
        let bell = Bell::new().unwrap();
        assert!(here.send(b"first", &[]) && here.send(b"second", &[bell.as_fd(), bell.as_fd()]));
        let (mut bytes, mut files) = ([0; 64], Vec::new());
        assert!(matches!(there.receive(&mut bytes, &mut files), Received::Bytes(5)));
        assert!(files.is_empty());
        assert!(matches!(there.receive(&mut bytes, &mut files), Received::Bytes(6)));
        assert_eq!((&bytes[..6], files.len()), (&b"second"[..], 2));
        assert!(matches!(there.receive(&mut bytes, &mut files), Received::Nothing));
        bell.ring();
        // It is the same bell.
        wait(&[files[0].as_fd()]);
        assert!(here.send(&[7; 100], &[]));
        assert!(matches!(there.receive(&mut bytes, &mut files), Received::Cut));
        assert!(there.is_open());
        drop(here);
        assert!(!there.is_open());
        assert!(matches!(there.receive(&mut bytes, &mut files), Received::End));
        assert!(!there.send(b"x", &[]));
        drop(listener);
        assert_eq!(Socket::connect(&name).err().unwrap().native, libc::ECONNREFUSED);
    }

    #[test]
    fn what_a_slow_reader_has_no_room_for_waits_for_it() {
        const MORE: usize = 300;
        let name = secret().unwrap();
        let listener = Socket::listen(&name).unwrap();
        let here = Socket::connect(&name).unwrap();
        let there = listener.accept().unwrap().unwrap();
        let peer = here.peer().unwrap();
        let sent = (0..100_000).take_while(|_| here.send(&[1; 32], &[])).count();
        assert!(sent < 100_000 && here.is_open());
        assert!(!here.deliver(&[2; 32], &peer, Some(Duration::from_millis(2))));
        std::thread::scope(|scope| {
            let late = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                let mut heard = 0;
                while heard < sent + MORE {
                    match there.receive(&mut [0; 64], &mut Vec::new()) {
                        Received::Bytes(32) => heard += 1,
                        Received::Nothing => std::thread::yield_now(),
                        _ => break,
                    }
                }
                heard
            });
            assert!((0..MORE).all(|_| here.deliver(&[3; 32], &peer, None)));
            assert_eq!(late.join().unwrap(), sent + MORE);
        });
        // Nobody will read any more.
        while here.send(&[1; 32], &[]) {}
        there.end();
        assert!(!here.deliver(&[2; 32], &peer, None));
    }

    #[test]
    fn most_files_at_once_come_over() {
        let name = secret().unwrap();
        let listener = Socket::listen(&name).unwrap();
        let here = Socket::connect(&name).unwrap();
        let there = listener.accept().unwrap().unwrap();
        let bell = Bell::new().unwrap();
        assert!(here.send(b"all", &[bell.as_fd(); MOST_FILES]));
        let mut files = Vec::new();
        assert!(matches!(there.receive(&mut [0; 8], &mut files), Received::Bytes(3)));
        assert_eq!(files.len(), MOST_FILES);
    }
}
