//! A socket between every two ranks of a simulated communicator, whether they are threads of one process or processes of one machine. The
//! ranks find each other by names that only this machine's kernel knows; the end of a process is the end of its sockets.

use crate::base::{Error, Result, Status, few};
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// What each rank says first: its rank, how many it believes there are, the color of the ranks that it wants to be with, its key, and which
/// simulated device it is on, of all processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    pub rank: i32,
    pub size: i32,
    pub color: i32,
    pub key: i32,
    pub device: u64,
}

const HELLO: usize = 24;

impl Hello {
    fn bytes(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        for (to, number) in bytes.chunks_exact_mut(4).zip([self.rank, self.size, self.color, self.key]) {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        bytes[16..].copy_from_slice(&self.device.to_ne_bytes());
        bytes
    }

    fn of(bytes: [u8; HELLO]) -> Hello {
        let number = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let device = u64::from_ne_bytes(bytes[16..].try_into().unwrap_or_default());
        Hello { rank: number(0), size: number(4), color: number(8), key: number(12), device }
    }
}

/// The way to another rank, and what it said.
struct Peer {
    stream: UnixStream,
    hello: Option<Hello>,
    /// So many of its receives wait for a send of this rank's.
    met: usize,
}

/// On the way to being connected, then the ranks of one color.
pub struct Mesh {
    name: String,
    own: Hello,
    /// None: not yet there, or this rank.
    peers: Vec<Option<Peer>>,
    /// Until all are there.
    listener: Option<UnixListener>,
    /// Those that have yet to say who they are.
    strangers: Vec<UnixStream>,
}

/// Why an exchange did not come to its end.
#[derive(Debug)]
pub enum Broken {
    /// It was to stop.
    Stopped,
    /// This rank has gone.
    Gone(usize),
    /// It sent what has this tag, where this rank sends and the other has come to no receive.
    Unmet { peer: usize, sent: u64 },
    /// It sent something else: its tag and size, and what was expected.
    Differs { peer: usize, sent: (u64, u64), expected: (u64, u64) },
}

/// What goes to a rank, or is to come from it.
pub struct Frame {
    pub tag: u64,
    pub bytes: Vec<u8>,
}

/// The tag of what a rank says when it comes to a receive. It has no bytes, and comes before all else of that call.
const MET: u64 = u64::MAX;

impl Frame {
    /// A receive waits, or a send waits for one.
    pub fn met() -> Frame {
        Frame::wanted(MET, 0)
    }

    pub fn wanted(tag: u64, size: usize) -> Frame {
        Frame { tag, bytes: vec![0; size] }
    }
}

fn address(name: &str, rank: i32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("tcuda-{name}-{rank}"))
}

fn system(what: &str, error: &std::io::Error) -> Error {
    Error::new(Status::TCUDA_ERROR_SYSTEM, format!("{what}: {error}")).with_native(error.raw_os_error().unwrap_or(0))
}

impl Mesh {
    /// Begins to listen. `name` is that of the communicator.
    pub fn new(name: String, own: Hello) -> Result<Mesh> {
        let listener = address(&name, own.rank).and_then(|address| UnixListener::bind_addr(&address)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => Error::invalid_argument(format!("The rank {} of this communicator is there already.", own.rank)),
            _ => system("A simulated rank cannot listen for the others", &error),
        })?;
        let peers = (0..own.size).map(|_| None).collect();
        Ok(Mesh { name, own, peers, listener: Some(listener), strangers: Vec::new() })
    }

    /// True when all ranks are connected, and have said what they want.
    pub fn advance(&mut self) -> Result<bool> {
        if self.listener.is_none() {
            return Ok(true);
        }
        for rank in 0..self.own.rank {
            if self.peers[rank as usize].is_none() {
                self.call(rank)?;
            }
        }
        self.answer()?;
        let own = self.own;
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            if let Some(Peer { stream, hello: hello @ None, .. }) = peer
                && let Some(said) = hear(stream).map_err(|()| gone(rank))?
            {
                *hello = Some(agree(said, own)?);
            }
        }
        let there = self.peers.iter().flatten().filter(|peer| peer.hello.is_some()).count();
        if there + 1 < self.peers.len() {
            return Ok(false);
        }
        self.listener = None;
        Ok(true)
    }

    /// To a rank below, which may not listen yet.
    fn call(&mut self, rank: i32) -> Result<()> {
        let called = address(&self.name, rank).and_then(|address| UnixStream::connect_addr(&address));
        let stream = match called {
            Ok(stream) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(error) => return Err(system("A simulated rank cannot be reached", &error)),
        };
        stream.set_nonblocking(true).map_err(|error| system("A socket of a simulated rank", &error))?;
        if send(&stream, &self.own.bytes()) == Ok(HELLO) {
            self.peers[rank as usize] = Some(Peer { stream, hello: None, met: 0 });
        }
        Ok(())
    }

    /// Ranks above.
    fn answer(&mut self) -> Result<()> {
        while let Some(Ok((stream, _))) = self.listener.as_ref().map(UnixListener::accept) {
            stream.set_nonblocking(true).map_err(|error| system("A socket of a simulated rank", &error))?;
            self.strangers.push(stream);
        }
        for stream in std::mem::take(&mut self.strangers) {
            match hear(&stream) {
                // It went before it said who it is.
                Err(()) => {}
                Ok(None) => self.strangers.push(stream),
                Ok(Some(said)) => {
                    let place =
                        usize::try_from(said.rank).ok().and_then(|rank| self.peers.get_mut(rank)).filter(|_| said.rank > self.own.rank);
                    match place {
                        // First, so that the other side sees as well where they do not agree.
                        Some(place @ None) if send(&stream, &self.own.bytes()) == Ok(HELLO) => {
                            *place = Some(Peer { stream, hello: Some(agree(said, self.own)?), met: 0 })
                        }
                        Some(None) => {}
                        _ => return Err(Error::invalid_argument(format!("Two of the ranks say that they are rank {}.", said.rank))),
                    }
                }
            }
        }
        Ok(())
    }

    /// Goes on with the ranks of its own color only, in the order of their keys; (rank, size).
    pub fn settle(&mut self) -> (usize, usize) {
        let own = self.own.rank as usize;
        let said = |at: usize, peer: &Option<Peer>| if at == own { Some(self.own) } else { peer.as_ref().and_then(|peer| peer.hello) };
        let mut order: Vec<(i32, usize)> = self
            .peers
            .iter()
            .enumerate()
            .filter_map(|(at, peer)| Some((said(at, peer)?, at)))
            .filter(|(hello, _)| hello.color == self.own.color)
            .map(|(hello, at)| (hello.key, at))
            .collect();
        few::sort_by_key(&mut order, |known| *known);
        let mut all = std::mem::take(&mut self.peers);
        self.peers = order.iter().map(|(_, at)| all[*at].take()).collect();
        let rank = order.iter().position(|(_, at)| *at == own).unwrap_or(0);
        self.own.rank = rank as i32;
        (rank, order.len())
    }

    /// The others see that this rank has gone.
    pub fn close(&mut self) {
        self.listener = None;
        self.strangers.clear();
        self.peers.iter_mut().for_each(|peer| *peer = None);
    }

    /// Sends to each rank what is for it, and waits for what is to come from each; what it has met is counted, and not given out. What a rank
    /// sends to itself comes as well.
    pub fn exchange(&mut self, sent: Vec<Vec<Frame>>, wanted: Vec<Vec<Frame>>, stop: impl Fn() -> bool) -> Result<Vec<Vec<Frame>>, Broken> {
        let own = self.own.rank as usize;
        let mut lanes: Vec<Lane> = sent.into_iter().zip(wanted).map(|(sent, wanted)| Lane::new(sent, wanted)).collect();
        for (lane, peer) in lanes.iter_mut().zip(&mut self.peers) {
            lane.met = peer.as_mut().map_or(0, |peer| std::mem::take(&mut peer.met));
        }
        if let Some(lane) = lanes.get_mut(own) {
            lane.loop_back(own)?;
        }
        loop {
            let (mut moved, mut left) = (false, Vec::new());
            for (at, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| !lane.is_done()) {
                let stream = self.peers.get(at).and_then(|peer| Some(&peer.as_ref()?.stream)).ok_or(Broken::Gone(at))?;
                moved |= lane.push(stream).map_err(|()| Broken::Gone(at))? | lane.pull(stream, at)?;
                let events = if lane.is_sent() { 0 } else { libc::POLLOUT } | if lane.is_received() { 0 } else { libc::POLLIN };
                left.push(libc::pollfd { fd: stream.as_raw_fd(), events, revents: 0 });
            }
            if lanes.iter().all(Lane::is_done) {
                for (lane, peer) in lanes.iter().zip(&mut self.peers) {
                    peer.iter_mut().for_each(|peer| peer.met = lane.met - lane.meets);
                }
                return Ok(lanes.into_iter().map(|lane| lane.wanted).collect());
            }
            if stop() {
                return Err(Broken::Stopped);
            }
            if !moved {
                // Short, for the sake of `stop`.
                unsafe { libc::poll(left.as_mut_ptr(), left.len() as libc::nfds_t, 10) };
            }
        }
    }
}

fn gone(rank: usize) -> Error {
    Error::new(Status::TCUDA_ERROR_REMOTE, format!("Rank {rank} ended while the communicator was being made."))
}

fn agree(said: Hello, own: Hello) -> Result<Hello> {
    if said.size != own.size {
        return Err(Error::invalid_argument(format!(
            "Rank {} was told that there are {} ranks, rank {} that there are {}. All ranks of a communicator give the same number.",
            said.rank, said.size, own.rank, own.size
        )));
    }
    if said.device == own.device {
        return Err(Error::invalid_argument(format!(
            "Rank {} and rank {} are on the same device. Each rank of a communicator has a device of its own.",
            said.rank.min(own.rank),
            said.rank.max(own.rank)
        )));
    }
    Ok(said)
}

/// Err: the other side has gone.
fn hear(mut stream: &UnixStream) -> Result<Option<Hello>, ()> {
    let mut bytes = [0; HELLO];
    match stream.read(&mut bytes) {
        Ok(HELLO) => Ok(Some(Hello::of(bytes))),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        _ => Err(()),
    }
}

/// As much as goes now. A socket that nobody reads any more raises no signal.
fn send(stream: &UnixStream, bytes: &[u8]) -> Result<usize, ()> {
    let sent = unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    match usize::try_from(sent) {
        Ok(sent) => Ok(sent),
        Err(_) if matches!(std::io::Error::last_os_error().kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        Err(_) => Err(()),
    }
}

/// Tag and size stand before the bytes of a frame.
const HEAD: usize = 16;

fn head(tag: u64, size: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&tag.to_ne_bytes());
    head[8..].copy_from_slice(&(size as u64).to_ne_bytes());
    head
}

/// An exchange with one rank.
struct Lane {
    out: Vec<u8>,
    sent: usize,
    wanted: Vec<Frame>,
    /// How many receives of the other rank there are to be, and how many there are.
    meets: usize,
    met: usize,
    /// Frames that came whole, and bytes of the next one, its head counted.
    whole: usize,
    part: usize,
    head: [u8; HEAD],
}

impl Lane {
    fn new(frames: Vec<Frame>, mut wanted: Vec<Frame>) -> Lane {
        let mut out = Vec::with_capacity(frames.iter().map(|frame| HEAD + frame.bytes.len()).sum());
        for frame in frames {
            out.extend(head(frame.tag, frame.bytes.len()));
            out.extend(frame.bytes);
        }
        let all = wanted.len();
        wanted.retain(|frame| frame.tag != MET);
        Lane { out, sent: 0, meets: all - wanted.len(), met: 0, wanted, whole: 0, part: 0, head: [0; HEAD] }
    }

    fn is_sent(&self) -> bool {
        self.sent == self.out.len()
    }

    fn is_received(&self) -> bool {
        self.whole == self.wanted.len() && self.met >= self.meets
    }

    /// Where the next bytes belong; empty behind a head without bytes.
    fn place(&mut self) -> &mut [u8] {
        match self.wanted.get_mut(self.whole) {
            Some(frame) if self.part >= HEAD => &mut frame.bytes[self.part - HEAD..],
            _ => &mut self.head[self.part.min(HEAD)..],
        }
    }

    fn is_done(&self) -> bool {
        self.is_sent() && self.is_received()
    }

    fn push(&mut self, stream: &UnixStream) -> Result<bool, ()> {
        if self.is_sent() {
            return Ok(false);
        }
        let sent = send(stream, &self.out[self.sent..])?;
        self.sent += sent;
        Ok(sent > 0)
    }

    /// True: something came.
    fn pull(&mut self, mut stream: &UnixStream, peer: usize) -> Result<bool, Broken> {
        let mut came = false;
        while !self.is_received() {
            let place = self.place();
            let size = match place.is_empty() {
                true => 0,
                false => match stream.read(place) {
                    Ok(0) => return Err(Broken::Gone(peer)),
                    Ok(size) => size,
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(came),
                    Err(_) => return Err(Broken::Gone(peer)),
                },
            };
            self.took(size, peer)?;
            came = true;
        }
        Ok(came)
    }

    /// So many more bytes of the next frame are there.
    fn took(&mut self, size: usize, peer: usize) -> Result<(), Broken> {
        let before = self.part;
        self.part += size;
        let frame = self.wanted.get(self.whole);
        if before < HEAD && self.part >= HEAD {
            let number = |at: usize| u64::from_ne_bytes(self.head[at..at + 8].try_into().unwrap_or_default());
            let sent = (number(0), number(8));
            if sent.0 == MET {
                (self.met, self.part) = (self.met + 1, 0);
                return Ok(());
            }
            let Some(frame) = frame else { return Err(Broken::Unmet { peer, sent: sent.0 }) };
            let expected = (frame.tag, frame.bytes.len() as u64);
            if sent != expected {
                return Err(Broken::Differs { peer, sent, expected });
            }
        }
        if frame.is_some_and(|frame| self.part == HEAD + frame.bytes.len()) {
            (self.whole, self.part) = (self.whole + 1, 0);
        }
        Ok(())
    }

    /// What is sent to this rank itself has come.
    fn loop_back(&mut self, own: usize) -> Result<(), Broken> {
        let out = std::mem::take(&mut self.out);
        let mut rest = &out[..];
        while !self.is_received() {
            let room = self.place();
            let size = room.len().min(rest.len());
            if size == 0 && !room.is_empty() {
                // Nothing is sent that could come.
                let expected = self.wanted.get(self.whole).map_or((MET, 0), |frame| (frame.tag, frame.bytes.len() as u64));
                return Err(Broken::Differs { peer: own, sent: (0, 0), expected });
            }
            room[..size].copy_from_slice(&rest[..size]);
            rest = &rest[size..];
            self.took(size, own)?;
        }
        if rest.is_empty() { Ok(()) } else { Err(Broken::Differs { peer: own, sent: (0, rest.len() as u64), expected: (0, 0) }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn name() -> String {
        format!("{:016x}", crate::base::entropy::bits().unwrap())
    }

    fn all(hellos: &[Hello]) -> Vec<Mesh> {
        let name = name();
        let mut meshes: Vec<Mesh> = hellos.iter().map(|hello| Mesh::new(name.clone(), *hello).unwrap()).collect();
        let start = Instant::now();
        while meshes.iter_mut().filter_map(|mesh| (!mesh.advance().unwrap()).then_some(())).count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        meshes
    }

    fn hello(rank: i32, size: i32) -> Hello {
        Hello { rank, size, color: 0, key: rank, device: rank as u64 }
    }

    fn frames(of: &[(u64, usize)]) -> Vec<Frame> {
        of.iter().map(|(tag, size)| Frame { tag: *tag, bytes: vec![*tag as u8; *size] }).collect()
    }

    #[test]
    fn all_to_all_with_more_than_a_socket_holds() {
        const SIZE: usize = 1 << 20;
        let meshes = all(&[0, 1, 2].map(|rank| hello(rank, 3)));
        let threads: Vec<_> = meshes
            .into_iter()
            .enumerate()
            .map(|(own, mut mesh)| {
                std::thread::spawn(move || {
                    assert_eq!(mesh.settle(), (own, 3));
                    let sent = (0..3).map(|peer| frames(&[(10 * own as u64 + peer, SIZE), (7, 0)])).collect();
                    let wanted = (0..3).map(|peer| vec![Frame::wanted(10 * peer + own as u64, SIZE), Frame::wanted(7, 0)]).collect();
                    for (peer, came) in mesh.exchange(sent, wanted, || false).unwrap().iter().enumerate() {
                        assert!(came[0].bytes.iter().all(|byte| *byte == (10 * peer + own) as u8) && came[0].bytes.len() == SIZE);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn ranks_of_a_color_in_the_order_of_their_keys() {
        let hellos = [(0, 5), (1, 0), (0, 4), (0, 5)].iter().enumerate().map(|(rank, (color, key))| Hello {
            rank: rank as i32,
            size: 4,
            color: *color,
            key: *key,
            device: rank as u64,
        });
        let mut meshes = all(&hellos.collect::<Vec<_>>());
        let places: Vec<_> = meshes.iter_mut().map(Mesh::settle).collect();
        assert_eq!(places, [(1, 3), (0, 1), (0, 3), (2, 3)]);
        let [a, _, b, _] = &mut meshes[..] else { panic!() };
        let none = |rank: usize, one: Vec<Frame>| {
            let mut all: Vec<Vec<Frame>> = (0..3).map(|_| Vec::new()).collect();
            all[rank] = one;
            all
        };
        a.exchange(none(0, frames(&[(9, 4)])), none(0, Vec::new()), || false).unwrap();
        let came = b.exchange(none(1, Vec::new()), none(1, vec![Frame::wanted(9, 4)]), || false).unwrap();
        assert_eq!(came[1][0].bytes, [9; 4]);
    }

    #[test]
    fn what_goes_wrong_is_told() {
        let mut meshes = all(&[0, 1].map(|rank| hello(rank, 2)));
        assert_eq!(meshes.iter_mut().map(Mesh::settle).collect::<Vec<_>>(), [(0, 2), (1, 2)]);
        let mut second = meshes.pop().unwrap();
        let mut first = meshes.pop().unwrap();
        let pair = |one: Vec<Frame>, two: Vec<Frame>| vec![one, two];
        first.exchange(pair(vec![], frames(&[(1, 3)])), pair(vec![], vec![]), || false).unwrap();
        let differs = second.exchange(pair(vec![], vec![]), pair(vec![Frame::wanted(1, 4)], vec![]), || false);
        assert!(matches!(differs, Err(Broken::Differs { peer: 0, sent: (1, 3), expected: (1, 4) })));
        let itself = first.exchange(pair(vec![], vec![]), pair(vec![Frame::wanted(1, 4)], vec![]), || false);
        assert!(matches!(itself, Err(Broken::Differs { peer: 0, .. })));
        let stopped = first.exchange(pair(vec![], vec![]), pair(vec![], vec![Frame::wanted(1, 4)]), || true);
        assert!(matches!(stopped, Err(Broken::Stopped)));
        second.close();
        let gone = first.exchange(pair(vec![], vec![]), pair(vec![], vec![Frame::wanted(1, 4)]), || false);
        assert!(matches!(gone, Err(Broken::Gone(1))));
        let gone = first.exchange(pair(vec![], frames(&[(1, 1 << 20)])), pair(vec![], vec![]), || false);
        assert!(matches!(gone, Err(Broken::Gone(1))));
    }

    #[test]
    fn ranks_that_contradict_each_other_are_refused() {
        let name = name();
        let mut first = Mesh::new(name.clone(), hello(0, 2)).unwrap();
        assert!(Mesh::new(name.clone(), hello(0, 2)).err().unwrap().message.contains("rank 0"));
        let mut other = Mesh::new(name, hello(1, 3)).unwrap();
        assert!(!other.advance().unwrap());
        let error = first.advance().unwrap_err();
        assert!(error.message.contains("Rank 1 was told that there are 3"), "{error}");
    }

    /// Both hear of it.
    #[test]
    fn ranks_on_one_device_are_refused() {
        let name = name();
        let mut meshes = [0, 1].map(|rank| Mesh::new(name.clone(), Hello { device: 7, ..hello(rank, 2) }).unwrap());
        assert!(!meshes[1].advance().unwrap());
        for mesh in &mut meshes {
            let error = mesh.advance().unwrap_err();
            assert!(error.message.contains("Rank 0 and rank 1 are on the same device"), "{error}");
        }
    }

    /// What comes to a receive is counted, also while something else is waited for.
    #[test]
    fn a_send_waits_until_it_is_met() {
        let mut meshes = all(&[0, 1].map(|rank| hello(rank, 2)));
        assert_eq!(meshes.iter_mut().map(Mesh::settle).collect::<Vec<_>>(), [(0, 2), (1, 2)]);
        let [first, second] = &mut meshes[..] else { panic!() };
        let of = |rank: usize, frames: Vec<Frame>| if rank == 0 { vec![frames, vec![]] } else { vec![vec![], frames] };
        let waits = |mesh: &mut Mesh| {
            let begun = Instant::now();
            mesh.exchange(of(1, frames(&[(3, 8)])), of(1, vec![Frame::met()]), || begun.elapsed() > Duration::from_millis(30))
        };
        assert!(matches!(waits(first), Err(Broken::Stopped)));
        // It has come by now, and is met twice.
        let got = second.exchange(of(0, vec![Frame::met()]), of(0, vec![Frame::wanted(3, 8)]), || false).unwrap();
        assert_eq!(got[0][0].bytes, [3; 8]);
        second.exchange(of(0, [Frame::met()].into_iter().chain(frames(&[(4, 2)])).collect()), of(0, vec![]), || false).unwrap();
        let got = first.exchange(of(1, vec![]), of(1, vec![Frame::wanted(4, 2)]), || false).unwrap();
        assert_eq!(got[1][0].bytes, [4; 2]);
        [(); 2].into_iter().for_each(|()| drop(first.exchange(of(1, frames(&[(3, 8)])), of(1, vec![Frame::met()]), || false).unwrap()));
        // A third is not; and who sends as well never is.
        second.exchange(of(0, frames(&[(5, 1)])), of(0, vec![]), || false).unwrap();
        assert!(matches!(waits(first), Err(Broken::Unmet { peer: 1, sent: 5 })));
    }
}
