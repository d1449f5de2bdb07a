//! File descriptors that clients pass over Unix sockets. A connection may pass at most one descriptor, with
//! its first byte, and only if its first request asks for that.
//!
//! All other descriptors are closed. After the first request, the connection is read without space for
//! ancillary data, so the kernel closes any further descriptors.

use std::{
    fmt,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Extensions, Method, Request};
use parking_lot::Mutex;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use tokio::{
    io::{Interest, ReadBuf},
    net::UnixStream,
};

/// Receives a descriptor that a client passes with the first byte of its connection over a Unix socket, which
/// is the first byte of its request or of the HTTP/2 preface.
#[derive(Clone)]
pub struct Descriptors {
    paths: &'static [&'static str],
    receive: Arc<dyn Fn(OwnedFd) -> Extensions + Send + Sync>,
}

impl Descriptors {
    /// Accepts a descriptor that arrives with a `POST` request to one of `paths`. `receive` turns the
    /// descriptor into extensions for all requests of the connection.
    #[must_use]
    pub fn new(
        paths: &'static [&'static str],
        receive: impl Fn(OwnedFd) -> Extensions + Send + Sync + 'static,
    ) -> Self {
        Self {
            paths,
            receive: Arc::new(receive),
        }
    }

    /// Returns the extensions made from the descriptor that was passed with the connection's first request.
    pub(crate) fn of_first<B>(&self, request: &Request<B>, passed: Option<OwnedFd>) -> Option<Extensions> {
        let is_for_it = *request.method() == Method::POST && self.paths.contains(&request.uri().path());
        let passed = passed.filter(|_| is_for_it)?;
        Some((self.receive)(passed))
    }
}

impl fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptors")
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

/// The descriptor received before a connection's first request. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reception(Arc<Mutex<State>>);

#[derive(Debug)]
enum State {
    /// The first request has not arrived. Contains the descriptor, if one has been received.
    Open(Option<OwnedFd>),
    Closed,
}

impl Default for State {
    fn default() -> Self {
        Self::Open(None)
    }
}

impl Reception {
    /// Stops receiving, and returns the descriptor if one arrived.
    pub(crate) fn close(&self) -> Option<OwnedFd> {
        match std::mem::replace(&mut *self.0.lock(), State::Closed) {
            State::Open(passed) => passed,
            State::Closed => None,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(&*self.0.lock(), State::Open(_))
    }

    /// Keeps the first descriptor that arrives, and closes all further ones.
    fn keep(&self, descriptor: OwnedFd) {
        if let State::Open(passed @ None) = &mut *self.0.lock() {
            *passed = Some(descriptor);
        }
    }

    /// Reads like [`UnixStream`], and receives descriptors.
    pub(crate) fn poll_read(
        &self,
        stream: &UnixStream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(stream.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            match stream.try_io(Interest::READABLE, || self.receive(stream, room)) {
                Ok(read) => {
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn receive(&self, stream: &UnixStream, room: &mut [u8]) -> io::Result<usize> {
        // Because of alignment, the buffer has space for two descriptors; the kernel closes any further ones.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            stream,
            &mut [IoSliceMut::new(room)],
            &mut control,
            not_inherited(),
        )?;
        let is_whole = !received.flags.contains(ReturnFlags::CTRUNC);
        let passed = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let mut passed = passed.flatten();
        // Several descriptors at once are ambiguous, so none of them is kept. Dropping the descriptors closes
        // them.
        if let (Some(one), None, true) = (passed.next(), passed.next(), is_whole) {
            self.keep(one);
        }
        passed.for_each(drop);
        Ok(received.bytes)
    }
}

/// Returns the flag that makes received descriptors close-on-exec, where supported.
fn not_inherited() -> RecvFlags {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    RecvFlags::empty()
}
