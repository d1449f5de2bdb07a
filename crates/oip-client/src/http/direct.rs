//! Requests over persistent connections, sent by the calling thread.

use std::{
    fmt,
    io::{self, IoSlice, Write},
    net::{TcpStream, ToSocketAddrs},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::mpsc::{RecvTimeoutError, sync_channel},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::header::ACCEPT_ENCODING;
use parking_lot::{Mutex, MutexGuard};
use rustix::net::sockopt;

use super::{
    connection::{Connection, SendProgress, broken},
    message::Message,
    response::{MAX_REFUSAL, Response},
};
use crate::{
    ClientError, ErrorKind, Result, connect, endpoint::Endpoint, patience::Wait, settings::Settings,
};

/// Idle connections, the most recently used last.
#[derive(Default)]
pub(super) struct Pool {
    idle: Mutex<Vec<(Connection, Instant)>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("idle", &self.idle().len()).finish()
    }
}

impl Pool {
    /// Sends a request and reads the whole response, with any status.
    pub(super) fn send(
        &self,
        endpoint: &Endpoint,
        settings: &Settings,
        message: &Message,
        wait: &Wait<'_>,
    ) -> Result<Response> {
        let head = head(endpoint, settings, message);
        let mut parts = parts(&head, message);
        let (mut connection, sent) = self.begin(endpoint, settings, &mut parts, wait)?;
        let (answer, may_stay) = receive(&mut connection, sent, settings, wait)?;
        if may_stay {
            self.keep(connection);
        }
        Ok(answer)
    }

    /// Sends a request over an idle connection or a new one, until everything is sent or the server stops
    /// reading.
    fn begin(
        &self,
        endpoint: &Endpoint,
        settings: &Settings,
        mut parts: &mut [IoSlice<'_>],
        wait: &Wait<'_>,
    ) -> Result<(Connection, SendProgress)> {
        while let Some(mut connection) = self.kept() {
            match connection.send(&mut parts, wait)? {
                // The server closed the idle connection before any part of the request was sent.
                SendProgress::Partly {
                    bytes: 0,
                    why: Some(_),
                } => {}
                sent => return Ok((connection, sent)),
            }
        }
        let mut connection = connect(endpoint, settings.connect_timeout, wait)?;
        let sent = connection.send(&mut parts, wait)?;
        Ok((connection, sent))
    }

    /// Returns a connection to the pool and closes those that have been idle for too long.
    fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        let old = idle.partition_point(|(_, since)| since.elapsed() > connect::IDLE);
        let old: Vec<_> = idle.drain(..old).collect();
        idle.push((connection, Instant::now()));
        // Close connections outside the lock.
        drop(idle);
        drop(old);
    }

    /// Takes an idle connection that is still open.
    fn kept(&self) -> Option<Connection> {
        loop {
            // Drop the connection outside the lock.
            let (connection, since) = self.idle().pop()?;
            if since.elapsed() > connect::IDLE {
                // All other connections have been idle for longer.
                let old = std::mem::take(&mut *self.idle());
                drop(old);
                return None;
            }
            if connection.is_open() {
                return Some(connection);
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Connection, Instant)>> {
        self.idle.lock()
    }
}

/// Sends a request over a connection, reads the whole response, and returns whether the connection can be
/// reused.
#[cfg(target_os = "linux")]
pub(super) fn exchange(
    connection: &mut Connection,
    endpoint: &Endpoint,
    settings: &Settings,
    message: &Message,
    wait: &Wait<'_>,
) -> Result<(Response, bool)> {
    let head = head(endpoint, settings, message);
    let sent = connection.send(&mut &mut parts(&head, message)[..], wait)?;
    receive(connection, sent, settings, wait)
}

/// Returns the non-empty parts of a request.
fn parts<'m>(head: &'m [u8], message: &'m Message) -> Vec<IoSlice<'m>> {
    let parts = [head, &message.body.json[..]];
    let parts = parts
        .into_iter()
        .chain(message.body.binary.iter().map(Bytes::as_ref));
    parts.filter(|part| !part.is_empty()).map(IoSlice::new).collect()
}

/// Reads the response to a request, and returns whether the connection can be reused. `sent` is how much of
/// the request was sent.
fn receive(
    connection: &mut Connection,
    sent: SendProgress,
    settings: &Settings,
    wait: &Wait<'_>,
) -> Result<(Response, bool)> {
    let outcome = connection.answer(wait, &settings.spare, |status| match status.is_success() {
        true => Ok(settings.max_answer_bytes),
        // An error body is a short message or a proxy's error page; the beginning is enough.
        false => Err(MAX_REFUSAL.min(settings.max_answer_bytes)),
    });
    match (outcome, sent) {
        (Ok((answer, may_stay)), sent) => Ok((answer, may_stay && matches!(sent, SendProgress::Whole))),
        // The reason why the request could not be sent is more specific than a missing response.
        (Err(error), SendProgress::Partly { why: Some(why), .. }) if error.kind() == ErrorKind::Broken => {
            Err(broken(why))
        }
        (Err(error), _) => Err(error),
    }
}

/// Formats the request line and headers.
pub(super) fn head(endpoint: &Endpoint, settings: &Settings, message: &Message) -> Vec<u8> {
    let Message {
        method,
        path,
        headers,
        body,
        ..
    } = message;
    let mut head = Vec::with_capacity(512);
    // Writing to a vector does not fail.
    let _ = write!(head, "{method} {}{path} HTTP/1.1\r\n", endpoint.prefix);
    add_header(&mut head, "host", endpoint.authority.as_str().as_bytes());
    for (name, value) in &settings.headers {
        // Requests whose responses may be compressed have `accept-encoding` among their own headers.
        if !(settings.accepts_compressed && name == ACCEPT_ENCODING) {
            add_header(&mut head, name.as_str(), value.as_bytes());
        }
    }
    for (name, value) in headers {
        add_header(&mut head, name.as_str(), value.as_bytes());
    }
    if method != http::Method::GET {
        let _ = write!(head, "content-length: {}\r\n", body.len());
    }
    head.extend_from_slice(b"\r\n");
    head
}

fn add_header(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}

/// Opens a connection on another thread, because name resolution can block indefinitely.
pub(super) fn connect(endpoint: &Endpoint, timeout: Duration, wait: &Wait<'_>) -> Result<Connection> {
    let endpoint = endpoint.clone();
    let (sender, opened) = sync_channel(1);
    let connecting = thread::Builder::new()
        .name("oip-connect".to_owned())
        .spawn(move || {
            // The caller may have given up waiting.
            let _ = sender.send(open(&endpoint, timeout));
        });
    connecting.map_err(not_connected)?;
    loop {
        match opened.recv_timeout(wait.slice()?) {
            Ok(socket) => return socket.map(Connection::new).map_err(not_connected),
            Err(RecvTimeoutError::Timeout) => wait.go_on()?,
            Err(RecvTimeoutError::Disconnected) => {
                let lost = io::Error::other("the thread that connects ended");
                return Err(not_connected(lost));
            }
        }
    }
}

fn not_connected(error: io::Error) -> ClientError {
    let message = connect::no_connection(Some(error.kind()), &error.to_string());
    ClientError::new(ErrorKind::Connect, message).caused_by(error)
}

/// Enables TCP keepalive with the settings of [`connect::pool`].
fn ask_whether_it_is_there(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, connect::SILENCE)?;
    sockopt::set_tcp_keepintvl(stream, connect::SILENCE)?;
    sockopt::set_tcp_keepcnt(stream, connect::PROBES)?;
    Ok(())
}

fn open(endpoint: &Endpoint, timeout: Duration) -> io::Result<OwnedFd> {
    if let Some(socket) = &endpoint.socket {
        return Ok(UnixStream::connect(socket)?.into());
    }
    let host = endpoint.authority.host().trim_matches(['[', ']']);
    let port = endpoint.authority.port_u16().unwrap_or(80);
    let addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    let start = Instant::now();
    for (index, address) in addresses.iter().enumerate() {
        // Each of the addresses not yet tried gets an equal share of the remaining time.
        let left = timeout.saturating_sub(start.elapsed());
        let share = left / u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        match TcpStream::connect_timeout(address, share.max(Duration::from_millis(1))) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                // If setting keepalive fails, the connection works without it.
                let _ = ask_whether_it_is_there(&stream);
                return Ok(stream.into());
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}
