//! Descriptors that clients pass over Unix sockets: one, with the first byte of a connection, if its first request asks for it.
//!
//! All other descriptors are closed. From the first request on the connection is read without room for any, and the system closes
//! them.

use std::{
    fmt,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use http::{Extensions, Method, Request};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use tokio::{
    io::{Interest, ReadBuf},
    net::UnixStream,
};

/// Receives a descriptor that a client passes with the first byte of its connection on a Unix socket: of its first request, or of
/// HTTP/2's preface before that.
#[derive(Clone)]
pub struct Descriptors {
    paths: &'static [&'static str],
    receive: Arc<dyn Fn(OwnedFd) -> Extensions + Send + Sync>,
}

impl Descriptors {
    /// A `POST` to one of these paths may come with a descriptor. `receive` makes extensions of it, which all requests of the
    /// connection have from then on.
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

    /// The extensions that the first request brings.
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

/// The descriptor that has come over a connection before its first request. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reception(Arc<Mutex<State>>);

#[derive(Debug)]
enum State {
    /// The first request has not come yet.
    Open(Option<OwnedFd>),
    Closed,
}

impl Default for State {
    fn default() -> Self {
        Self::Open(None)
    }
}

impl Reception {
    /// Receives no more, and gives what has come.
    pub(crate) fn close(&self) -> Option<OwnedFd> {
        match std::mem::replace(
            &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner),
            State::Closed,
        ) {
            State::Open(passed) => passed,
            State::Closed => None,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(
            &*self.0.lock().unwrap_or_else(PoisonError::into_inner),
            State::Open(_)
        )
    }

    /// Keeps the first descriptor; another one is closed.
    fn keep(&self, descriptor: OwnedFd) {
        if let State::Open(passed @ None) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            *passed = Some(descriptor);
        }
    }

    /// Reads as [`UnixStream`] does, and receives descriptors.
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
        // The system finds room for two in it, and closes more than that.
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
        // Of several, none is what was asked for. Those that are dropped are closed.
        if let (Some(one), None, true) = (passed.next(), passed.next(), is_whole) {
            self.keep(one);
        }
        passed.for_each(drop);
        Ok(received.bytes)
    }
}

/// Descriptors that are received are closed in programs that this process starts, where the system can promise it.
fn not_inherited() -> RecvFlags {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    RecvFlags::empty()
}
