//! The frames between server and worker, on a socket. The module [`messages`](crate::messages) defines the
//! JSON of each kind of frame.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io::{self, ErrorKind, IoSlice, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Interval at which a call that waits for a worker checks whether to continue.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// The version of the protocol; increment it when messages change. Both sides are normally the same program,
/// so a mismatch means that the setup is wrong.
pub(crate) const VERSION: u32 = 6;

/// Size of a frame header in bytes.
const HEAD: usize = 24;

/// Alignment of a body's binary part, so that the first tensor is aligned for any element type.
pub(crate) const ALIGNMENT: usize = 16;

/// Maximum size of a frame's JSON, in bytes: enough for the metadata of about 100,000 tensors.
pub(crate) const MAX_JSON: u32 = 64 << 20;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Worker: the worker has started. JSON: `Hello`.
    Hello = 1,
    /// Server: load this model. JSON: `Load`; binary: the model file.
    Load = 2,
    /// Worker: the model is loaded. JSON: `LoadedModel`.
    Loaded = 3,
    /// Server: run this request. JSON and binary: the REST body of a request.
    Infer = 4,
    /// Worker: the response. JSON and binary: the REST body of a response.
    Outputs = 5,
    /// Worker: the request or loading failed. JSON: `Failure`.
    Failed = 6,
    /// Server, to a worker that uses regions: run this request. JSON: `Run`; binary: the inputs, empty if
    /// they are in a region.
    Run = 7,
    /// Worker: the response. JSON: `Results`; binary: the outputs, empty if they are in a region.
    Results = 8,
    /// Worker: the outputs of its response need a larger region. JSON: `Room`.
    Room = 9,
    /// Server: a region, whose file comes with the header. JSON: `NewRegion`.
    Region = 10,
    /// Worker: one of several responses, before `Results`. JSON: `Part`; binary: as in `Results`.
    Part = 11,
    /// Server, after each `Part`, and after each `Ask` with inputs in a region: the server has read the
    /// message. JSON: `PartReply`.
    Taken = 12,
    /// Worker: a request to another model, before `Results` or `Failed`. JSON: `Ask`; binary: its inputs, as
    /// in `Results`.
    Ask = 13,
    /// Server: a response to an `Ask`. JSON: `CallResponse`; binary: as in `Run`. A region's file comes with the
    /// header.
    CallResponse = 14,
    /// Worker, after a `CallResponse` that may not be the last: whether to send the next response. JSON: `Next`.
    Next = 15,
    /// Worker, before the end of several responses: it accepts another request on another connection while it
    /// continues with the current one.
    Free = 16,
}

/// The header of a frame, 24 bytes, all numbers little-endian: the kind (u32), bytes of JSON (u32), the
/// number of the request (u64), bytes of binary data (u64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) json: u32,
    pub(crate) binary: u64,
}

impl Head {
    fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.json.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..].copy_from_slice(&self.binary.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Self, Broken> {
        let mut rest = bytes;
        let mut number = |width: usize| {
            let (field, tail) = rest.split_at(width);
            rest = tail;
            field
                .iter()
                .rev()
                .fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let (kind, json, request, binary) = (number(4), number(4), number(8), number(8));
        let known = [
            Kind::Hello,
            Kind::Load,
            Kind::Loaded,
            Kind::Infer,
            Kind::Outputs,
            Kind::Failed,
            Kind::Run,
            Kind::Results,
            Kind::Room,
            Kind::Region,
            Kind::Part,
            Kind::Taken,
            Kind::Ask,
            Kind::CallResponse,
            Kind::Next,
            Kind::Free,
        ];
        let kind = known.into_iter().find(|known| *known as u64 == kind);
        Ok(Self {
            kind: kind.ok_or_else(|| Broken::wrong("a frame of an unknown kind"))?,
            number: request,
            json: u32::try_from(json)
                .ok()
                .filter(|json| *json <= MAX_JSON)
                .ok_or_else(|| {
                    Broken::wrong(format!("a frame with {json} bytes of JSON, more than {MAX_JSON}"))
                })?,
            binary,
        })
    }
}

/// The reason why a connection is unusable.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The other process closed the connection.
    Ended,
    /// The caller has given up waiting.
    GivenUp,
    /// The other side violated the protocol. The string describes the violation.
    Wrong(String),
    /// A system call failed on this side.
    System(io::Error),
}

impl Broken {
    pub(crate) fn wrong(what: impl Into<String>) -> Self {
        Self::Wrong(what.into())
    }
}

/// One end of the socket between server and worker.
pub(crate) struct Connection {
    stream: UnixStream,
    /// Bytes that were read ahead while waiting for a response.
    ahead: RefCell<VecDeque<u8>>,
}

impl Connection {
    /// Maximum number of bytes to read ahead.
    #[cfg(target_os = "linux")]
    const AHEAD: usize = 16 << 10;

    /// Maximum number of bytes per read. The memory for a frame is touched in steps of this size, as its
    /// bytes arrive.
    const STEP: usize = 256 << 10;

    /// Creates a connection. Its calls check after every `tick`, and after each transfer, whether to
    /// continue. Without a tick they wait indefinitely.
    pub(crate) fn new(stream: UnixStream, tick: Option<Duration>) -> io::Result<Self> {
        stream.set_read_timeout(tick)?;
        stream.set_write_timeout(tick)?;
        Ok(Self {
            stream,
            ahead: RefCell::default(),
        })
    }

    /// Sends one frame: the JSON, padded with spaces, and the binary parts, without copying them.
    pub(crate) fn send(
        &self,
        kind: Kind,
        number: u64,
        json: &[u8],
        binary: &[Bytes],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        let padding = json.len().next_multiple_of(ALIGNMENT) - json.len();
        let length = u32::try_from(json.len() + padding)
            .ok()
            .filter(|length| *length <= MAX_JSON);
        let head = Head {
            kind,
            number,
            json: length.ok_or_else(|| Broken::wrong("too much JSON for one frame"))?,
            binary: binary.iter().map(|part| part.len() as u64).sum(),
        };
        let head = head.to_bytes();
        let parts = [&head[..], json, &[b' '; ALIGNMENT][..padding]].into_iter();
        let mut parts: Vec<IoSlice<'_>> = parts
            .chain(binary.iter().map(|part| &part[..]))
            .filter(|part| !part.is_empty())
            .map(IoSlice::new)
            .collect();
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            match (&self.stream).write_vectored(parts) {
                Ok(written) => IoSlice::advance_slices(&mut parts, written),
                Err(error) => wait_or_fail(error)?,
            }
            if !parts.is_empty() && !go_on() {
                return Err(Broken::GivenUp);
            }
        }
        Ok(())
    }

    /// Sends a frame that consists only of JSON.
    pub(crate) fn send_json<T: Serialize>(
        &self,
        kind: Kind,
        number: u64,
        message: &T,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        self.send(kind, number, &oip_types::rest::json_body(message), &[], go_on)
    }

    /// Closes the sending direction, which shows the other side that no further frames will follow.
    pub(crate) fn finish_sending(&self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)
    }

    /// Sends bytes outside a frame.
    pub(crate) fn send_bytes(&self, mut bytes: &[u8], go_on: &mut dyn FnMut() -> bool) -> Result<(), Broken> {
        while !bytes.is_empty() {
            match (&self.stream).write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) => wait_or_fail(error)?,
            }
            if !bytes.is_empty() && !go_on() {
                return Err(Broken::GivenUp);
            }
        }
        Ok(())
    }

    /// Returns the socket, for polling it together with other descriptors.
    pub(crate) fn socket(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.stream)
    }

    /// Returns whether bytes were read ahead and not consumed yet.
    pub(crate) fn has_read_ahead(&self) -> bool {
        !self.ahead.borrow().is_empty()
    }

    /// Waits until `until` for a frame that ends a request and contains all of its tensors. Returns whether
    /// such a frame has arrived; it can then be read without blocking. All other cases, including errors, are
    /// left to the next read.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_answer_by(&self, until: std::time::Instant) -> bool {
        use std::os::fd::AsRawFd;

        use nix::{
            errno::Errno,
            poll::{PollFd, PollFlags, ppoll},
            sys::{
                socket::{MsgFlags, recv},
                time::TimeSpec,
            },
        };

        let mut ahead = self.ahead.borrow_mut();
        let mut piece = [0; Self::AHEAD];
        loop {
            if let Some(is_answer) = is_answer(ahead.make_contiguous()) {
                return is_answer;
            }
            let left = until.saturating_duration_since(std::time::Instant::now());
            let mut files = [PollFd::new(self.socket(), PollFlags::POLLIN)];
            match ppoll(&mut files, Some(TimeSpec::from_duration(left)), None) {
                Ok(0) => return false,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return false,
            }
            match recv(self.stream.as_raw_fd(), &mut piece, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return false,
                Ok(count) => ahead.extend(&piece[..count]),
                Err(Errno::EINTR | Errno::EAGAIN) if !left.is_zero() => {}
                Err(_) => return false,
            }
        }
    }

    /// Reads the next `count` bytes of a frame and drops them.
    pub(crate) fn pass_over(&self, mut count: u64, go_on: &mut dyn FnMut() -> bool) -> Result<(), Broken> {
        while count > 0 {
            let step = count.min(Self::STEP as u64);
            self.bytes(step, go_on)?;
            count -= step;
        }
        Ok(())
    }

    /// Sends a frame that consists only of JSON, with the descriptor of a file.
    #[cfg(target_os = "linux")]
    pub(crate) fn send_file<T: Serialize>(
        &self,
        kind: Kind,
        number: u64,
        message: &T,
        file: std::os::fd::BorrowedFd<'_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        use std::os::fd::AsRawFd;

        use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

        let json = oip_types::rest::json_body(message);
        let head = Head {
            kind,
            number,
            json: u32::try_from(json.len()).map_err(|_| Broken::wrong("too much JSON for one frame"))?,
            binary: 0,
        };
        let bytes = [&head.to_bytes()[..], &json[..]].concat();
        let files = [file.as_raw_fd()];
        let with_file = [ControlMessage::ScmRights(&files)];
        loop {
            let part = [IoSlice::new(&bytes)];
            let socket = self.stream.as_raw_fd();
            match sendmsg::<()>(socket, &part, &with_file, MsgFlags::MSG_NOSIGNAL, None) {
                // The file was sent with the first byte.
                Ok(sent) => return self.send_bytes(&bytes[sent..], go_on),
                Err(error) => wait_or_fail(error.into())?,
            }
            if !go_on() {
                return Err(Broken::GivenUp);
            }
        }
    }

    /// Reads the header of the next frame.
    pub(crate) fn head(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Head, Broken> {
        let mut head = [0; HEAD];
        self.fill(&mut head, go_on)?;
        Head::read(&head)
    }

    /// Reads the next `count` bytes of a frame. The caller has checked the length. Even so, memory is touched
    /// only as bytes arrive.
    pub(crate) fn bytes(&self, count: u64, go_on: &mut dyn FnMut() -> bool) -> Result<Vec<u8>, Broken> {
        let no_room = || Broken::System(ErrorKind::OutOfMemory.into());
        let count = usize::try_from(count).map_err(|_| no_room())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(count).map_err(|_| no_room())?;
        while bytes.len() < count {
            let start = bytes.len();
            bytes.resize(count.min(start + Self::STEP), 0);
            self.fill(&mut bytes[start..], go_on)?;
        }
        Ok(bytes)
    }

    /// Skips the next `count` bytes of a frame.
    pub(crate) fn skip(&self, count: u64) -> Result<(), Broken> {
        match io::copy(&mut (&self.stream).take(count), &mut io::sink()) {
            Ok(skipped) if skipped == count => Ok(()),
            Ok(_) => Err(Broken::Ended),
            Err(error) => Err(Broken::System(error)),
        }
    }

    fn fill(&self, mut rest: &mut [u8], go_on: &mut dyn FnMut() -> bool) -> Result<(), Broken> {
        // Reading from memory cannot fail.
        let ahead = self.ahead.borrow_mut().read(rest).unwrap_or(0);
        rest = &mut rest[ahead..];
        while !rest.is_empty() {
            match (&self.stream).read(rest) {
                Ok(0) => return Err(Broken::Ended),
                Ok(read) => rest = &mut rest[read..],
                Err(error) => wait_or_fail(error)?,
            }
            // `go_on` is also checked after each read, because a worker could send one byte at a time.
            if !rest.is_empty() && !go_on() {
                return Err(Broken::GivenUp);
            }
        }
        Ok(())
    }
}

/// Returns whether `bytes` begin with a frame that ends a request and can be received without blocking;
/// `None` if more bytes are needed to decide.
#[cfg(target_os = "linux")]
fn is_answer(bytes: &[u8]) -> Option<bool> {
    /// Longer frames are left to threads that may block.
    const LONGEST: u64 = 256 << 10;
    /// JSON fields that show that tensors are outside the frame and have to be copied from a region.
    const ELSEWHERE: [&[u8]; 2] = [br#""region""#, br#""inputs""#];
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let Ok(head) = Head::read(head) else {
        return Some(false);
    };
    let length = u64::from(head.json).saturating_add(head.binary);
    if !matches!(head.kind, Kind::Results | Kind::Outputs | Kind::Failed) || length > LONGEST {
        return Some(false);
    }
    if (rest.len() as u64) < length {
        return None;
    }
    let json = &rest[..head.json as usize];
    let is_in = |name: &[u8]| json.windows(name.len()).any(|text| text == name);
    Some(!ELSEWHERE.into_iter().any(is_in))
}

/// Maps an I/O error: timeouts and interruptions are ignored, all other errors are failures.
fn wait_or_fail(error: io::Error) -> Result<(), Broken> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => Err(Broken::Ended),
        _ => Err(Broken::System(error)),
    }
}

/// Parses the JSON of a frame.
pub(crate) fn read_json<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<T, Broken> {
    serde_json::from_slice(json).map_err(|error| Broken::wrong(format!("JSON that cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_as_they_were_sent_and_tensors_are_aligned() {
        let (one, other) = UnixStream::pair().unwrap();
        let [one, other] = [one, other].map(|stream| Connection::new(stream, None).unwrap());
        let parts = [
            Bytes::from_static(b"abc"),
            Bytes::new(),
            Bytes::from(vec![7; 100]),
        ];
        one.send(Kind::Infer, 9, b"{}", &parts, &mut || true).unwrap();
        let head = other.head(&mut || true).unwrap();
        assert_eq!(
            (head.kind, head.number, head.json, head.binary),
            (Kind::Infer, 9, 16, 103)
        );
        let body = other.bytes(16 + 103, &mut || true).unwrap();
        assert_eq!(body[..16].trim_ascii_end(), b"{}");
        assert_eq!(body[16..], [b"abc".as_slice(), &[7; 100]].concat());
        drop(one);
        assert!(matches!(other.head(&mut || true), Err(Broken::Ended)));
    }

    #[test]
    fn heads_that_are_none() {
        let mut head = [0; HEAD];
        assert!(matches!(Head::read(&head), Err(Broken::Wrong(_))));
        head[0] = 3;
        assert!(Head::read(&head).is_ok());
        head[7] = 0xff;
        assert!(matches!(Head::read(&head), Err(Broken::Wrong(_))));
    }

    #[test]
    fn whoever_waits_can_give_up_whatever_comes() {
        let (one, other) = UnixStream::pair().unwrap();
        let connection = Connection::new(one, Some(Duration::from_millis(1))).unwrap();
        let mut left = 3;
        let mut go_on = || {
            left -= 1;
            left > 0
        };
        assert!(matches!(connection.head(&mut go_on), Err(Broken::GivenUp)));
        (&other).write_all(&[3]).unwrap();
        assert!(matches!(connection.head(&mut || false), Err(Broken::GivenUp)));
        // The frame does not fit into the socket buffer, so sending has to wait, and can be given up too.
        let parts = [Bytes::from(vec![0; 8 << 20])];
        let sent = connection.send(Kind::Load, 0, b"{}", &parts, &mut || false);
        assert!(matches!(sent, Err(Broken::GivenUp)));
    }
}
