//! The ranks of a job as its launcher sets them in the environment (torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). Rank 0
//! listens and gives the id to each of the others; nothing of that stays behind.

use super::one::{Communicator, Options, init_rank, unique_id};
use super::patience::Deadline;
use crate::base::{Error, Result, Status, config};
use crate::runtime::collective::{ID_BYTES, Id};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Job {
    rank: i32,
    size: i32,
    device: i32,
    address: String,
    port: u16,
}

pub fn init_from_env(options: Options) -> Result<Arc<Communicator>> {
    super::group::refuse_inside("made")?;
    let job = Job::read(|name| {
        if config::VARIABLES.iter().any(|variable| variable.name == name) { config::get(name) } else { std::env::var(name).ok() }
    })?;
    // Before the others are kept waiting.
    crate::device::resolve(job.device).map_err(|error| error.context(format!("LOCAL_RANK={}", job.device)))?;
    let deadline = Deadline::after(options.timeout);
    let id = match (job.size, job.rank) {
        (1, _) => unique_id()?,
        (_, 0) => give(&job, &unique_id()?, deadline)?,
        _ => fetch(&job, deadline)?,
    };
    init_rank(job.size, &id, job.rank, job.device, options)
}

impl Job {
    fn read(get: impl Fn(&str) -> Option<String>) -> Result<Job> {
        const JOB: &str =
            "tcuda_communicator_init_from_env wants RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as torchrun sets them.";
        let given = |name: &str| get(name).filter(|value| !value.is_empty());
        let number =
            |name: &str, most: i32| {
                let text = given(name).ok_or_else(|| Error::invalid_argument(format!("{name} is not set. {JOB}")))?;
                text.trim().parse().ok().filter(|number| (0..=most).contains(number)).ok_or_else(|| {
                    Error::invalid_argument(format!("{name} is '{text}', which is not a whole number from 0 to {most}. {JOB}"))
                })
            };
        let size = number("WORLD_SIZE", Communicator::MOST)?;
        let rank = number("RANK", i32::MAX)?;
        if rank >= size {
            return Err(Error::invalid_argument(format!("RANK is {rank} and WORLD_SIZE {size}; ranks are numbered from 0 on. {JOB}")));
        }
        let device = number("LOCAL_RANK", i32::MAX)?;
        if size == 1 {
            return Ok(Job { rank, size, device, address: String::new(), port: 0 });
        }
        let address = given("MASTER_ADDR").ok_or_else(|| Error::invalid_argument(format!("MASTER_ADDR is not set. {JOB}")))?;
        let address = address.trim();
        // As in a URL.
        let inside = address.strip_prefix('[').and_then(|address| address.strip_suffix(']'));
        let address = inside.unwrap_or(address).to_owned();
        let port = if given("TCUDA_COMMUNICATOR_PORT").is_some() { "TCUDA_COMMUNICATOR_PORT" } else { "MASTER_PORT" };
        let number = number(port, u16::MAX.into())?;
        let port = u16::try_from(number)
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| Error::invalid_argument(format!("{port} is 0; rank 0 needs a port that the others know.")))?;
        Ok(Job { rank, size, device, address, port })
    }

    fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let found =
            (self.address.as_str(), self.port).to_socket_addrs().map_err(|error| format!("MASTER_ADDR={}: {error}", self.address))?;
        Ok(found.collect())
    }
}

// ---- what is said: a rank its mark, how many there are and which it is; rank 0 the mark, how many there are, the id

const MARK: &[u8; 8] = b"tcudaid2";
const ASKED: usize = 16;
const ANSWERED: usize = 12 + ID_BYTES;

fn question(job: &Job) -> [u8; ASKED] {
    let mut bytes = [0; ASKED];
    bytes[..8].copy_from_slice(MARK);
    bytes[8..12].copy_from_slice(&job.size.to_le_bytes());
    bytes[12..].copy_from_slice(&job.rank.to_le_bytes());
    bytes
}

fn answer(job: &Job, id: &Id) -> [u8; ANSWERED] {
    let mut bytes = [0; ANSWERED];
    bytes[..8].copy_from_slice(MARK);
    bytes[8..12].copy_from_slice(&job.size.to_le_bytes());
    bytes[12..].copy_from_slice(id);
    bytes
}

fn number_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn differ(rank: i32, theirs: i32, own: i32) -> Error {
    Error::invalid_argument(format!(
        "Rank {rank} has WORLD_SIZE={theirs}, and this one {own}. All ranks of a job have the same; two jobs need two ports."
    ))
}

fn late(deadline: Deadline, what: &str) -> Error {
    Error::new(Status::TCUDA_ERROR_TIMEOUT, format!("{what} within {}.", deadline.limit()))
}

/// What a rank says that has its answer.
const HEARD: u8 = 1;
const PAUSE: Duration = Duration::from_millis(5);
/// Of a connection that says nothing.
const SILENCE: Duration = Duration::from_secs(5);

// ---- rank 0

fn give(job: &Job, id: &Id, deadline: Deadline) -> Result<Id> {
    let listener = listen(job)?;
    let (mut strangers, mut told, mut served) = (Vec::new(), Vec::new(), BTreeSet::from([0]));
    while served.len() < job.size as usize {
        let mut idle = true;
        match listener.accept() {
            Ok((stream, _)) => {
                idle = false;
                if stream.set_nonblocking(true).is_ok() {
                    strangers.push(Stranger { stream, said: [0; ASKED], so_far: 0 });
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            Err(error) => return Err(system("Rank 0 cannot take connections", &error)),
        }
        let mut left = Vec::new();
        for mut stranger in strangers.drain(..) {
            match stranger.hear() {
                Some(true) => {
                    idle = false;
                    told.extend(tell(job, id, stranger)?);
                }
                Some(false) => left.push(stranger),
                None => idle = false,
            }
        }
        strangers = left;
        told.retain_mut(|(rank, stream): &mut (i32, TcpStream)| match stream.read(&mut [0]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => true,
            heard => {
                idle = false;
                // One that gave up before it had all comes again.
                served.extend(matches!(heard, Ok(1)).then_some(*rank));
                false
            }
        });
        if deadline.is_past() {
            let missing: Vec<String> = (0..job.size).filter(|rank| !served.contains(rank)).take(16).map(|rank| rank.to_string()).collect();
            return Err(late(
                deadline,
                &format!("Of the {} ranks of the job these did not come to rank 0: {}", job.size, missing.join(", ")),
            ));
        }
        if idle {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(*id)
}

fn listen(job: &Job) -> Result<TcpListener> {
    let named = job.addresses().map_err(Error::invalid_argument)?;
    // Of IPv6 first, which takes connections of IPv4 too.
    let everywhere = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)].map(|any| SocketAddr::new(any, job.port));
    let bound = if job.address == "localhost" || job.address.parse::<IpAddr>().is_ok() {
        TcpListener::bind(&named[..]).or_else(|error| match error.kind() {
            // The others reach this machine by an address that it does not know itself.
            ErrorKind::AddrNotAvailable => TcpListener::bind(&everywhere[..]),
            _ => Err(error),
        })
    } else {
        // As torch's store. A machine's own name may mean its loopback to itself, where nobody else comes.
        TcpListener::bind(&everywhere[..])
    };
    let listener = bound.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => {
                " Something else has the port; under torchrun that is its store. TCUDA_COMMUNICATOR_PORT names another one for all ranks."
            }
            _ => "",
        };
        let mut wrong = system(&format!("Rank 0 cannot listen on {} port {}", job.address, job.port), &error);
        wrong.message = format!("{}{hint}", wrong.message).into();
        wrong
    })?;
    listener.set_nonblocking(true).map_err(|error| system("Rank 0 cannot listen", &error))?;
    Ok(listener)
}

fn system(what: &str, error: &std::io::Error) -> Error {
    Error::new(Status::TCUDA_ERROR_SYSTEM, format!("{what}: {error}.")).with_native(error.raw_os_error().unwrap_or(0))
}

/// A connection that has not said yet who it is.
struct Stranger {
    stream: TcpStream,
    said: [u8; ASKED],
    so_far: usize,
}

impl Stranger {
    /// True: all is said. None: it has gone, or is no rank.
    fn hear(&mut self) -> Option<bool> {
        loop {
            match self.stream.read(&mut self.said[self.so_far..]) {
                Ok(0) => return None,
                Ok(size) => self.so_far += size,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Some(false),
                Err(_) => return None,
            }
            let known = self.so_far.min(MARK.len());
            if self.said[..known] != MARK[..known] {
                return None;
            }
            if self.so_far == ASKED {
                return Some(true);
            }
        }
    }
}

/// The rank that is sent the id, which says so once it has it.
fn tell(job: &Job, id: &Id, mut stranger: Stranger) -> Result<Option<(i32, TcpStream)>> {
    let (size, rank) = (number_at(&stranger.said, 8), number_at(&stranger.said, 12));
    // So little fits into a new connection at once. It hears what this one knows before it is refused.
    let told = stranger.stream.set_nonblocking(false).and_then(|()| {
        stranger.stream.set_write_timeout(Some(SILENCE))?;
        stranger.stream.write_all(&answer(job, id))?;
        stranger.stream.set_nonblocking(true)
    });
    if size != job.size {
        return Err(differ(rank, size, job.size));
    }
    Ok((told.is_ok() && (0..job.size).contains(&rank)).then_some((rank, stranger.stream)))
}

// ---- the other ranks

fn fetch(job: &Job, deadline: Deadline) -> Result<Id> {
    loop {
        let failed = match job.addresses().and_then(|all| try_all(job, &all, deadline)) {
            Ok(answered) => return read_answer(job, &answered),
            Err(failed) => failed,
        };
        if deadline.is_past() {
            return Err(late(
                deadline,
                &format!("Rank {} got no id from rank 0 at {} port {} ({failed})", job.rank, job.address, job.port),
            ));
        }
        std::thread::sleep(PAUSE.min(deadline.left()));
    }
}

fn try_all(job: &Job, all: &[SocketAddr], deadline: Deadline) -> Result<[u8; ANSWERED], String> {
    let mut failed = String::from("the address means nothing");
    for address in all {
        // No wait of zero: that is none at all.
        let left = deadline.left().clamp(Duration::from_millis(1), SILENCE);
        let asked = TcpStream::connect_timeout(address, left).and_then(|mut stream| {
            stream.set_read_timeout(Some(left))?;
            stream.set_write_timeout(Some(left))?;
            stream.write_all(&question(job))?;
            let mut answered = [0; ANSWERED];
            stream.read_exact(&mut answered)?;
            // One that is of another job has closed already, and is not to hear it.
            let _ = stream.write_all(&[HEARD]);
            Ok(answered)
        });
        match asked {
            Ok(answered) => return Ok(answered),
            Err(error) => failed = error.to_string(),
        }
    }
    Err(failed)
}

fn read_answer(job: &Job, answered: &[u8; ANSWERED]) -> Result<Id> {
    if &answered[..8] != MARK {
        return Err(Error::invalid_argument(format!(
            "What listens at {} port {} is not rank 0 of this job. TCUDA_COMMUNICATOR_PORT names another port for all ranks.",
            job.address, job.port
        )));
    }
    let size = number_at(answered, 8);
    if size != job.size {
        return Err(differ(0, size, job.size));
    }
    let mut id = [0; ID_BYTES];
    id.copy_from_slice(&answered[12..]);
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(rank: i32, size: i32, port: u16) -> Job {
        Job { rank, size, device: 0, address: "127.0.0.1".into(), port }
    }

    /// One that was free a moment ago.
    fn port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    const ID: Id = [7; ID_BYTES];

    fn soon() -> Deadline {
        Deadline::after(Duration::from_millis(100))
    }

    fn far() -> Deadline {
        Deadline::after(Duration::from_secs(60))
    }

    #[test]
    fn the_environment_is_read_and_checked() {
        let good = [("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "host"), ("MASTER_PORT", "29500")];
        let read = |changed: &[(&str, &str)]| {
            Job::read(|name| changed.iter().chain(&good).find(|(known, _)| *known == name).map(|(_, value)| value.to_string()))
        };
        assert_eq!(read(&[]), Ok(Job { rank: 1, size: 4, device: 1, address: "host".into(), port: 29500 }));
        assert_eq!(read(&[("TCUDA_COMMUNICATOR_PORT", "7")]).unwrap().port, 7);
        assert!(read(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", ""), ("MASTER_PORT", "")]).is_ok());
        let address = |text: &str| read(&[("MASTER_ADDR", text)]).unwrap().address;
        assert_eq!([" host\n", "[::1]", " ::1 "].map(address), ["host", "::1", "::1"]);
        for (name, value, word) in [
            ("RANK", "", "RANK is not set"),
            ("RANK", "4", "RANK is 4 and WORLD_SIZE 4"),
            ("RANK", "-1", "RANK is '-1'"),
            ("WORLD_SIZE", "0", "WORLD_SIZE 0"),
            ("WORLD_SIZE", "2000000", "from 0 to 1048576"),
            ("WORLD_SIZE", "99999999999", "WORLD_SIZE is '99999999999'"),
            ("LOCAL_RANK", "x", "LOCAL_RANK is 'x'"),
            ("MASTER_ADDR", "", "MASTER_ADDR is not set"),
            ("MASTER_PORT", "", "MASTER_PORT is not set"),
            ("MASTER_PORT", "0", "MASTER_PORT is 0"),
            ("MASTER_PORT", "65536", "from 0 to 65535"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.message.contains(word), "{name}={value}: {error}");
        }
    }

    #[test]
    fn every_rank_gets_the_id_whoever_comes_first_and_whatever_else_calls() {
        let port = port();
        let others: Vec<_> = (1..4).map(|rank| std::thread::spawn(move || fetch(&job(rank, 4, port), far()))).collect();
        std::thread::sleep(Duration::from_millis(30));
        let first = std::thread::spawn(move || give(&job(0, 4, port), &ID, far()));
        // One that says nothing, one that says something else, one that leaves.
        let silent = TcpStream::connect(("127.0.0.1", port));
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
        }
        assert_eq!(first.join().unwrap(), Ok(ID));
        others.into_iter().for_each(|other| assert_eq!(other.join().unwrap(), Ok(ID)));
        drop(silent);
        // The port is free again at once.
        drop(listen(&job(0, 4, port)).unwrap());
    }

    /// As one that waited for longer than it wanted to, and comes again.
    #[test]
    fn a_rank_that_left_without_its_answer_is_waited_for() {
        let port = port();
        let first = std::thread::spawn(move || give(&job(0, 2, port), &ID, far()));
        let mut leaves = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(PAUSE),
            }
        };
        leaves.write_all(&question(&job(1, 2, port))).unwrap();
        leaves.read_exact(&mut [0; ANSWERED - 1]).unwrap();
        drop(leaves);
        std::thread::sleep(10 * PAUSE);
        assert!(!first.is_finished());
        assert_eq!(fetch(&job(1, 2, port), far()), Ok(ID));
        assert_eq!(first.join().unwrap(), Ok(ID));
    }

    /// 127.1 is no address in Rust's eyes, and to the system a name for 127.0.0.1.
    #[test]
    fn a_name_that_means_the_loopback_is_listened_for_everywhere() {
        let port = port();
        let at = |rank: i32, address: &str| Job { address: address.into(), ..job(rank, 2, port) };
        let first = at(0, "127.1");
        assert!(first.addresses().unwrap().iter().all(|address| address.ip().is_loopback()));
        let first = std::thread::spawn(move || give(&first, &ID, far()));
        assert_eq!(fetch(&at(1, "127.0.0.2"), far()), Ok(ID));
        assert_eq!(first.join().unwrap(), Ok(ID));
        // An address is meant as it is.
        for only in ["127.0.0.1", "localhost"] {
            assert!(listen(&at(0, only)).unwrap().local_addr().unwrap().ip().is_loopback());
        }
    }

    #[test]
    fn ranks_that_do_not_come_are_named() {
        let free = port();
        let error = give(&job(0, 3, free), &ID, soon()).unwrap_err();
        assert!(error.status == Status::TCUDA_ERROR_TIMEOUT && error.message.contains("1, 2"), "{error}");
        let error = fetch(&job(1, 2, free), soon()).unwrap_err();
        assert!(error.status == Status::TCUDA_ERROR_TIMEOUT && error.message.contains("refused"), "{error}");
    }

    #[test]
    fn jobs_that_differ_are_told_apart() {
        let port = port();
        let first = std::thread::spawn(move || give(&job(0, 2, port), &ID, far()));
        let error = fetch(&job(1, 3, port), far()).unwrap_err();
        assert!(error.message.contains("Rank 0 has WORLD_SIZE=2, and this one 3"), "{error}");
        assert!(first.join().unwrap().unwrap_err().message.contains("Rank 1 has WORLD_SIZE=3"));
    }

    #[test]
    fn a_port_that_is_taken_is_told() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = give(&job(0, 2, port), &ID, soon()).unwrap_err();
        assert!(error.status == Status::TCUDA_ERROR_SYSTEM && error.message.contains("TCUDA_COMMUNICATOR_PORT"), "{error}");
        // Another server, which answers.
        let other = std::thread::spawn(move || {
            let (mut stream, _) = taken.accept().unwrap();
            stream.write_all(&[b'?'; ANSWERED]).unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
        });
        assert!(fetch(&job(1, 2, port), far()).unwrap_err().message.contains("is not rank 0"));
        other.join().unwrap();
    }
}
