//! An HTTP/1.1 connection without pipelining, and the framing of responses.

use std::{
    io::{self, IoSlice},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING},
};
use httparse::Status;
use oip_types::rest::HEADER_LENGTH;
use rustix::{
    buffer::spare_capacity,
    io::Errno,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt},
};
use tensor_core::SpareBuffers;

use super::response::{HINT, Response};
use crate::{ClientError, ErrorKind, Result, connect, patience::Wait};

/// An open connection and its read buffer.
pub(super) struct Connection {
    socket: OwnedFd,
    /// The socket's read and write timeout.
    slice: Duration,
    buffer: Vec<u8>,
    /// Number of bytes of the buffer already consumed.
    at: usize,
}

/// Number of bytes per read, unless a body is known to be longer.
const READ: usize = 16 << 10;
/// Maximum size of a response head, of chunk headers and of trailers, in bytes.
const MAX_HEAD: usize = 256 << 10;
const MAX_HEADERS: usize = 100;
/// Maximum number of buffers in a vectored write (`IOV_MAX`).
const MAX_PIECES: usize = 1024;

/// How much of a request was sent.
pub(super) enum SendProgress {
    Whole,
    /// The server stopped reading after `bytes` bytes. If `why` is `None`, the server has already responded.
    Partly {
        bytes: usize,
        why: Option<io::Error>,
    },
}

/// How the end of a body is detected.
enum Length {
    Known(u64),
    Chunked,
    /// The end of the connection ends the body.
    Open,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            slice: Duration::ZERO,
            buffer: Vec::with_capacity(READ),
            at: 0,
        }
    }

    /// Returns whether the connection is usable: not closed, and without unsolicited data.
    pub(super) fn is_open(&self) -> bool {
        let mut byte = [0; 1];
        let found = recv(&self.socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(found, Err(Errno::AGAIN))
    }

    /// Sends a request; unsent data remains in `parts`.
    pub(super) fn send(&mut self, parts: &mut &mut [IoSlice<'_>], wait: &Wait<'_>) -> Result<SendProgress> {
        let mut bytes = 0;
        while !parts.is_empty() {
            self.wait_in_slices(wait)?;
            let some = &parts[..parts.len().min(MAX_PIECES)];
            match sendmsg(
                &self.socket,
                some,
                &mut SendAncillaryBuffer::default(),
                no_signal(),
            ) {
                Ok(count) => {
                    bytes += count;
                    IoSlice::advance_slices(parts, count);
                }
                Err(Errno::INTR) => self.look_around(wait)?,
                Err(Errno::AGAIN) => {
                    self.look_around(wait)?;
                    if !self.is_open() {
                        return Ok(SendProgress::Partly { bytes, why: None });
                    }
                }
                Err(error) => {
                    let why = Some(error.into());
                    return Ok(SendProgress::Partly { bytes, why });
                }
            }
        }
        Ok(SendProgress::Whole)
    }

    /// Sends bytes together with a descriptor.
    #[cfg(target_os = "linux")]
    pub(super) fn send_with(&mut self, bytes: &[u8], descriptor: &OwnedFd, wait: &Wait<'_>) -> Result<()> {
        use std::os::fd::AsFd;

        use crate::shared_memory::descriptor;

        self.wait_in_slices(wait)?;
        let sent = loop {
            match descriptor::send(&self.socket, bytes, descriptor.as_fd()) {
                Ok(sent) => break sent,
                Err(error) if is_early(&error) => self.look_around(wait)?,
                Err(error) => return Err(broken(error)),
            }
        };
        match self.send(&mut &mut [IoSlice::new(&bytes[sent..])][..], wait)? {
            SendProgress::Whole => Ok(()),
            SendProgress::Partly { why, .. } => Err(broken(why.unwrap_or_else(closed))),
        }
    }

    /// Reads a whole response and returns it, and whether the connection can be reused. `most` returns the
    /// maximum body size, or `Err` with the number of bytes after which the rest of the body is ignored.
    /// Large bodies are read into a spare buffer, if available.
    pub(super) fn answer(
        &mut self,
        wait: &Wait<'_>,
        spare: &Arc<SpareBuffers>,
        most: impl FnOnce(StatusCode) -> std::result::Result<usize, usize>,
    ) -> Result<(Response, bool)> {
        let (status, headers, is_kept) = self.head(wait)?;
        let length = length(status, &headers)?;
        let most = most(status);
        if let (Length::Known(announced), Ok(limit)) = (&length, most)
            && *announced > limit as u64
        {
            return Err(ClientError::too_large(limit));
        }
        let may_stay = is_kept && !matches!(length, Length::Open);
        let known = match length {
            Length::Known(length) if most.is_ok() => usize::try_from(length).ok(),
            _ => None,
        };
        let large = known.filter(|length| *length >= SpareBuffers::LEAST_KEPT);
        let mut body = Body {
            bytes: Vec::new(),
            gap: large.map_or(0, |_| gap(&headers)),
            announced: match length {
                Length::Known(length) => Some(length),
                Length::Chunked | Length::Open => None,
            },
            most,
        };
        let warm = large.and_then(|length| spare.take(length.saturating_add(body.gap)));
        let is_whole = match (length, warm) {
            (Length::Known(length), Some(buffer)) => {
                body.bytes = buffer;
                self.refill(&mut body, length as usize, wait)?;
                true
            }
            (Length::Known(length), None) => self.read_body(&mut body, length, wait)?,
            (Length::Chunked, _) => self.read_chunks(&mut body, wait)?,
            (Length::Open, _) => self.read_rest(&mut body, wait)?,
        };
        let is_at_end = self.unread().is_empty();
        let answer = Response {
            status,
            headers,
            body: match large {
                Some(length) => spare.lend(body.bytes, body.gap + length).slice(body.gap..),
                None => body.bytes.into(),
            },
        };
        Ok((answer, may_stay && is_whole && is_at_end))
    }

    /// Reads the head of a response. Also returns whether the connection stays open after the response.
    fn head(&mut self, wait: &Wait<'_>) -> Result<(StatusCode, HeaderMap, bool)> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut head = httparse::Response::new(&mut headers);
            let used = match head.parse(&self.buffer[self.at..]) {
                Err(error) => return Err(unreadable(&error.to_string())),
                Ok(Status::Complete(used)) => used,
                Ok(Status::Partial) => {
                    self.fill_up_to(MAX_HEAD, wait)?;
                    continue;
                }
            };
            let code = head.code.unwrap_or_default();
            let status = StatusCode::from_u16(code).map_err(|error| unreadable(&error.to_string()))?;
            if status.is_informational() {
                if status == StatusCode::SWITCHING_PROTOCOLS {
                    return Err(unreadable("it changes to another protocol"));
                }
                self.at += used;
                continue;
            }
            let mut map = HeaderMap::with_capacity(head.headers.len());
            for header in &*head.headers {
                let name = HeaderName::from_bytes(header.name.as_bytes());
                let value = HeaderValue::from_bytes(header.value);
                let (Ok(name), Ok(value)) = (name, value) else {
                    return Err(unreadable("a header is malformed"));
                };
                map.append(name, value);
            }
            let is_closed = words(&map, &CONNECTION).any(|word| word.eq_ignore_ascii_case(b"close"));
            let is_kept = head.version == Some(1) && !is_closed;
            self.at += used;
            return Ok((status, map, is_kept));
        }
    }

    /// Reads a body of known length. Returns whether it is complete.
    fn read_body(&mut self, body: &mut Body, length: u64, wait: &Wait<'_>) -> Result<bool> {
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        let wanted = match body.most {
            Ok(_) => wanted,
            Err(beginning) => wanted.min(beginning),
        };
        self.read_into(body, wanted, wait)?;
        Ok(wanted as u64 == length)
    }

    /// Reads a body of known length into its buffer, overwriting the previous content.
    fn refill(&mut self, body: &mut Body, length: usize, wait: &Wait<'_>) -> Result<()> {
        let end = body.gap + length;
        if body.bytes.len() < end {
            body.bytes.resize(end, 0);
        }
        let mut filled = self.unread().len().min(length);
        body.bytes[body.gap..][..filled].copy_from_slice(&self.buffer[self.at..self.at + filled]);
        self.at += filled;
        while filled < length {
            self.wait_in_slices(wait)?;
            let rest = &mut body.bytes[body.gap + filled..end];
            match recv(&self.socket, rest, RecvFlags::WAITALL) {
                Ok((_, 0)) => return Err(body.broken_off_after(filled, closed())),
                Ok((_, count)) => filled += count,
                Err(Errno::INTR | Errno::AGAIN) => self.look_around(wait)?,
                Err(error) => return Err(body.broken_off_after(filled, error.into())),
            }
        }
        Ok(())
    }

    /// Appends `wanted` bytes to a body.
    fn read_into(&mut self, body: &mut Body, wanted: usize, wait: &Wait<'_>) -> Result<()> {
        let bytes = &mut body.bytes;
        // Reserving the announced length is safe: it is within the limit, and the system commits memory only
        // when it is written.
        let reserved = match bytes.is_empty() {
            true => bytes.try_reserve_exact(body.gap.saturating_add(wanted)),
            false => bytes.try_reserve(wanted),
        };
        if reserved.is_err() {
            let message = format!("not enough memory for {wanted} more bytes of a response");
            return Err(ClientError::new(ErrorKind::TooLarge, message));
        }
        if bytes.is_empty() {
            bytes.resize(body.gap, 0);
        }
        let end = body.bytes.len() + wanted;
        loop {
            let left = end - body.bytes.len();
            let take = self.unread().len().min(left);
            body.bytes.extend_from_slice(&self.unread()[..take]);
            self.at += take;
            if take == left {
                return Ok(());
            }
            let room = body.bytes.capacity() - body.bytes.len();
            if left - take < READ || room != left - take {
                self.receive_more(body, wait)?;
                continue;
            }
            // Reads directly into the destination, because the buffer is too small.
            self.wait_in_slices(wait)?;
            match recv(&self.socket, spare_capacity(&mut body.bytes), RecvFlags::WAITALL) {
                Ok((_, 0)) => return Err(body.broken_off(closed())),
                Ok(_) => {}
                Err(Errno::INTR | Errno::AGAIN) => self.look_around(wait)?,
                Err(error) => return Err(body.broken_off(error.into())),
            }
        }
    }

    /// Reads a chunked body. Returns whether it is complete.
    fn read_chunks(&mut self, body: &mut Body, wait: &Wait<'_>) -> Result<bool> {
        loop {
            let size = self.chunk_size(body, wait)?;
            if size == 0 {
                // Trailers may follow the last chunk; they are ignored.
                for _ in 0..=MAX_HEADERS {
                    if self.line(body, wait)? {
                        return Ok(true);
                    }
                }
                return Err(unreadable("the last chunk has no end"));
            }
            let room = body.room();
            let wanted = usize::try_from(size).unwrap_or(usize::MAX);
            if wanted > room {
                if let Ok(limit) = body.most {
                    return Err(ClientError::too_large(limit));
                }
                self.read_into(body, room, wait)?;
                return Ok(false);
            }
            self.read_into(body, wanted, wait)?;
            if !self.line(body, wait)? {
                return Err(unreadable("a chunk is longer than it says"));
            }
        }
    }

    fn chunk_size(&mut self, body: &Body, wait: &Wait<'_>) -> Result<u64> {
        loop {
            match httparse::parse_chunk_size(self.unread()) {
                Ok(Status::Complete((used, size))) => {
                    self.at += used;
                    return Ok(size);
                }
                Ok(Status::Partial) => self.more_of_lines(body, wait)?,
                Err(_) => return Err(unreadable("the size of a chunk is malformed")),
            }
        }
    }

    /// Skips a line. Returns whether it was empty.
    fn line(&mut self, body: &Body, wait: &Wait<'_>) -> Result<bool> {
        loop {
            let unread = self.unread();
            if let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let is_empty = unread[..end].trim_ascii().is_empty();
                self.at += end + 1;
                return Ok(is_empty);
            }
            self.more_of_lines(body, wait)?;
        }
    }

    fn more_of_lines(&mut self, body: &Body, wait: &Wait<'_>) -> Result<()> {
        if self.unread().len() > MAX_HEAD {
            return Err(unreadable("a line between chunks is too long"));
        }
        self.receive_more(body, wait)
    }

    /// Reads a body that ends with the connection. Returns whether it is complete.
    fn read_rest(&mut self, body: &mut Body, wait: &Wait<'_>) -> Result<bool> {
        loop {
            let take = self.unread().len().min(body.room());
            body.bytes.extend_from_slice(&self.unread()[..take]);
            self.at += take;
            let is_full = body.room() == 0 && body.most.is_err();
            if is_full || !self.unread().is_empty() {
                return body
                    .most
                    .map_or(Ok(false), |limit| Err(ClientError::too_large(limit)));
            }
            match self.receive(wait)? {
                Ok(0) => return Ok(true),
                Ok(_) => {}
                Err(error) => return Err(body.broken_off(error)),
            }
        }
    }

    fn unread(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    /// Reads more of a response head.
    fn fill_up_to(&mut self, most: usize, wait: &Wait<'_>) -> Result<()> {
        if self.unread().len() >= most {
            return Err(unreadable("its header is too long"));
        }
        match self.receive(wait)? {
            Ok(0) => Err(broken(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "connection closed before message completed",
            ))),
            Ok(_) => Ok(()),
            Err(error) => Err(broken(error)),
        }
    }

    /// Reads more of a response body.
    fn receive_more(&mut self, body: &Body, wait: &Wait<'_>) -> Result<()> {
        match self.receive(wait)? {
            Ok(0) => Err(body.broken_off(closed())),
            Ok(_) => Ok(()),
            Err(error) => Err(body.broken_off(error)),
        }
    }

    /// Reads the available bytes into the buffer, and blocks until at least one arrives. Returns 0 at the end
    /// of the connection.
    fn receive(&mut self, wait: &Wait<'_>) -> Result<io::Result<usize>> {
        if self.unread().is_empty() {
            self.buffer.clear();
            self.at = 0;
        }
        if self.buffer.capacity() == self.buffer.len() {
            self.buffer.drain(..self.at);
            self.at = 0;
            self.buffer.reserve(READ);
        }
        self.wait_in_slices(wait)?;
        loop {
            match recv(&self.socket, spare_capacity(&mut self.buffer), RecvFlags::empty()) {
                Ok((_, count)) => return Ok(Ok(count)),
                Err(Errno::INTR | Errno::AGAIN) => self.look_around(wait)?,
                Err(error) => return Ok(Err(error.into())),
            }
        }
    }

    fn look_around(&mut self, wait: &Wait<'_>) -> Result<()> {
        wait.go_on()?;
        self.wait_in_slices(wait)
    }

    /// Limits the socket timeout to the remaining time of the call.
    fn wait_in_slices(&mut self, wait: &Wait<'_>) -> Result<()> {
        let slice = wait.slice()?;
        if slice == self.slice {
            return Ok(());
        }
        for which in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&self.socket, which, Some(slice.max(Duration::from_micros(1))))
                .map_err(|error| broken(error.into()))?;
        }
        self.slice = slice;
        Ok(())
    }
}

/// The bytes of a body that have been read so far.
struct Body {
    bytes: Vec<u8>,
    /// Alignment padding before the body in the buffer, in bytes; 0 if the length of the body is unknown.
    gap: usize,
    announced: Option<u64>,
    most: std::result::Result<usize, usize>,
}

impl Body {
    /// Returns how many more bytes the body may have.
    fn room(&self) -> usize {
        let (Ok(most) | Err(most)) = self.most;
        most - self.bytes.len()
    }

    /// Creates the error for a truncated body.
    fn broken_off(&self, error: io::Error) -> ClientError {
        self.broken_off_after(self.bytes.len() - self.gap, error)
    }

    fn broken_off_after(&self, bytes: usize, error: io::Error) -> ClientError {
        let of = self
            .announced
            .map_or(String::new(), |announced| format!(" of {announced}"));
        let place = format!(" after {bytes}{of} bytes");
        let message = connect::incomplete(&place, &error.to_string());
        ClientError::new(ErrorKind::Broken, message).caused_by(error)
    }
}

/// Returns the padding that aligns the first binary tensor to 64 bytes relative to the buffer, so that its
/// elements can be read in place.
fn gap(headers: &HeaderMap) -> usize {
    let length = headers
        .get(HEADER_LENGTH)
        .filter(|_| !headers.contains_key(CONTENT_ENCODING));
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    length.map_or(0, |length| length.wrapping_neg() % 64)
}

/// Determines the body's framing from the headers.
fn length(status: StatusCode, headers: &HeaderMap) -> Result<Length> {
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Ok(Length::Known(0));
    }
    if let Some(last) = words(headers, &TRANSFER_ENCODING).last() {
        return Ok(match last.eq_ignore_ascii_case(b"chunked") {
            true => Length::Chunked,
            false => Length::Open,
        });
    }
    let mut lengths = words(headers, &CONTENT_LENGTH);
    let Some(first) = lengths.next() else {
        return Ok(Length::Open);
    };
    let is_number = first.iter().all(u8::is_ascii_digit) && lengths.all(|other| other == first);
    let number = str::from_utf8(first).ok().filter(|_| is_number);
    let number = number.and_then(|number| number.parse().ok());
    number
        .map(Length::Known)
        .ok_or_else(|| unreadable("the content-length is malformed"))
}

/// Splits a list header into its items.
fn words<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h [u8]> + use<'h> {
    let values = headers.get_all(name).into_iter();
    let parts = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    parts.map(<[u8]>::trim_ascii)
}

/// Returns the flag that makes a write to a closed connection an error instead of a signal.
fn no_signal() -> SendFlags {
    // On other systems the standard library sets the flag when it creates the socket.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return SendFlags::NOSIGNAL;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    SendFlags::empty()
}

/// Returns whether a signal or the socket's timeout ended the wait before the socket was writable.
#[cfg(target_os = "linux")]
fn is_early(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
    )
}

fn closed() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "end of file before message length reached",
    )
}

fn unreadable(what: &str) -> ClientError {
    ClientError::new(ErrorKind::Protocol, connect::unreadable(what, HINT))
}

/// Creates the error for a connection that broke before the response was complete.
pub(super) fn broken(error: io::Error) -> ClientError {
    ClientError::new(ErrorKind::Broken, connect::broke(&error.to_string(), HINT)).caused_by(error)
}
