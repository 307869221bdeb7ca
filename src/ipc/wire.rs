//! What consumer and producer say to each other: one message each way, numbers in the order of the machine's bytes.

use super::blob::Secret;
use super::socket::MOST_FILES;
use crate::runtime::table::IpcHandle;

/// No message is longer.
pub const LONGEST: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// To use an export once more.
    Take(Secret),
    /// The pages of one that was taken, from a number on: `Answer::Parts`.
    Parts(Secret, u32),
    /// One use is over. There is no answer.
    Give(Secret),
    /// The last take came to nothing: as if it had not been. There is no answer.
    Untake(Secret),
}

/// What was exported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    pub uuid: [u8; 16],
    /// Of the memory that is opened, of which `size` bytes at `offset` are exported.
    pub span: u64,
    pub offset: u64,
    pub size: u64,
    pub memory: Opened,
    /// What the work on it that was given before is before.
    pub event: Option<IpcHandle>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opened {
    Plain(IpcHandle),
    /// So many pages.
    Virtual(u32),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Taken(Taken),
    /// Their sizes; a file for each comes along.
    Parts(Vec<u64>),
    /// There is no such export (any more).
    Unknown,
    /// The producer's driver failed.
    Failed(String),
}

/// Reads what a `Writer` wrote.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (found, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*found)
    }

    fn number(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_ne_bytes)
    }

    fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn bytes(mut self, bytes: &[u8]) -> Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    fn number(self, number: u64) -> Writer {
        self.bytes(&number.to_ne_bytes())
    }
}

impl Request {
    pub fn write(&self) -> Vec<u8> {
        let (kind, export, from) = match self {
            Request::Take(export) => (0, export, 0),
            Request::Parts(export, from) => (1, export, *from),
            Request::Give(export) => (2, export, 0),
            Request::Untake(export) => (3, export, 0),
        };
        Writer::default().number(kind).bytes(export).number(from.into()).0
    }

    pub fn read(bytes: &[u8]) -> Option<Request> {
        let mut reader = Reader(bytes);
        let (kind, export, from) = (reader.number()?, reader.bytes()?, reader.small()?);
        let request = match kind {
            0 => Request::Take(export),
            1 => Request::Parts(export, from),
            2 => Request::Give(export),
            3 => Request::Untake(export),
            _ => return None,
        };
        reader.end(request)
    }
}

impl Answer {
    pub fn write(&self) -> Vec<u8> {
        let writer = Writer::default();
        match self {
            Answer::Taken(taken) => {
                let writer = writer.number(0).bytes(&taken.uuid).number(taken.span).number(taken.offset).number(taken.size);
                let writer = match &taken.memory {
                    Opened::Plain(handle) => writer.number(0).bytes(&handle.0),
                    Opened::Virtual(count) => writer.number(1).number((*count).into()),
                };
                match &taken.event {
                    None => writer.number(0),
                    Some(handle) => writer.number(1).bytes(&handle.0),
                }
            }
            Answer::Parts(sizes) => {
                let writer = writer.number(1).number(sizes.len() as u64);
                sizes.iter().fold(writer, |writer, size| writer.number(*size))
            }
            Answer::Unknown => writer.number(2),
            Answer::Failed(text) => {
                let mut most = text.len().min(LONGEST - 64);
                while !text.is_char_boundary(most) {
                    most -= 1;
                }
                writer.number(3).bytes(&text.as_bytes()[..most])
            }
        }
        .0
    }

    /// None: it makes no sense.
    pub fn read(bytes: &[u8]) -> Option<Answer> {
        let mut reader = Reader(bytes);
        match reader.number()? {
            0 => {
                let (uuid, span, offset, size) = (reader.bytes()?, reader.number()?, reader.number()?, reader.number()?);
                let memory = match reader.number()? {
                    0 => Opened::Plain(IpcHandle(reader.bytes()?)),
                    1 => Opened::Virtual(reader.small()?),
                    _ => return None,
                };
                let event = match reader.number()? {
                    0 => None,
                    1 => Some(IpcHandle(reader.bytes()?)),
                    _ => return None,
                };
                let lies_inside = size > 0 && offset.checked_add(size).is_some_and(|end| end <= span);
                if lies_inside { reader.end(Answer::Taken(Taken { uuid, span, offset, size, memory, event })) } else { None }
            }
            1 => {
                let count = usize::try_from(reader.number()?).ok().filter(|count| (1..=MOST_FILES).contains(count))?;
                let sizes = (0..count).map(|_| reader.number()).collect::<Option<_>>()?;
                reader.end(Answer::Parts(sizes))
            }
            2 => reader.end(Answer::Unknown),
            3 => Some(Answer::Failed(String::from_utf8_lossy(reader.0).into_owned())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers() -> Vec<Answer> {
        let taken =
            |memory, event| Answer::Taken(Taken { uuid: [7; 16], span: 4 << 20, offset: 512, size: (4 << 20) - 512, memory, event });
        let handle = IpcHandle([9; 64]);
        vec![
            taken(Opened::Plain(handle), None),
            taken(Opened::Virtual(u32::MAX), Some(handle)),
            Answer::Parts((1..=MOST_FILES as u64).collect()),
            Answer::Unknown,
            Answer::Failed("no".into()),
        ]
    }

    #[test]
    fn all_comes_back_as_it_was_said() {
        for request in [Request::Take([1; 16]), Request::Parts([2; 16], u32::MAX), Request::Give([3; 16]), Request::Untake([4; 16])] {
            assert_eq!(Request::read(&request.write()), Some(request));
        }
        for answer in answers() {
            let bytes = answer.write();
            assert!(bytes.len() <= LONGEST);
            assert_eq!(Answer::read(&bytes), Some(answer));
        }
        let long = Answer::Failed("ä".repeat(LONGEST)).write();
        assert!(long.len() <= LONGEST && Answer::read(&long).is_some());
    }

    #[test]
    fn what_is_cut_or_makes_no_sense_is_nothing() {
        let request = Request::Take([1; 16]).write();
        assert!((0..request.len()).all(|length| Request::read(&request[..length]).is_none()));
        for bytes in &answers()[..4] {
            let bytes = bytes.write();
            assert!((0..bytes.len()).all(|length| Answer::read(&bytes[..length]).is_none()));
        }
        let beyond = Taken { uuid: [0; 16], span: 10, offset: u64::MAX, size: 11, memory: Opened::Virtual(1), event: None };
        assert_eq!(Answer::read(&Answer::Taken(beyond.clone()).write()), None);
        assert_eq!(Answer::read(&Answer::Taken(Taken { offset: 0, size: 0, ..beyond }).write()), None);
        assert_eq!(Answer::read(&Answer::Parts(vec![1; MOST_FILES + 1]).write()), None);
    }
}
