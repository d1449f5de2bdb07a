//! Requests that the calling thread sends and waits for: kept connections, and what goes over them.

use std::{
    fmt,
    io::{self, IoSlice, Write},
    net::{TcpStream, ToSocketAddrs},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::header::ACCEPT_ENCODING;
use rustix::net::sockopt;

use super::{
    answer::{Answer, MAX_REFUSAL},
    connection::{Connection, Sent, broken},
    message::Message,
};
use crate::{
    ClientError, ErrorKind, Result, connect, endpoint::Endpoint, patience::Wait, settings::Settings,
};

/// Connections that wait for their next request, the last used at the end.
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
    /// Sends a request and reads all of its answer, whatever its status.
    pub(super) fn send(
        &self,
        endpoint: &Endpoint,
        settings: &Settings,
        message: &Message,
        wait: &Wait<'_>,
    ) -> Result<Answer> {
        let head = head(endpoint, settings, message);
        let mut parts = parts(&head, message);
        let (mut connection, sent) = self.begin(endpoint, settings, &mut parts, wait)?;
        let (answer, may_stay) = receive(&mut connection, sent, settings, wait)?;
        if may_stay {
            self.keep(connection);
        }
        Ok(answer)
    }

    /// Sends as much of a request as the server takes.
    fn begin(
        &self,
        endpoint: &Endpoint,
        settings: &Settings,
        mut parts: &mut [IoSlice<'_>],
        wait: &Wait<'_>,
    ) -> Result<(Connection, Sent)> {
        while let Some(mut connection) = self.kept() {
            match connection.send(&mut parts, wait)? {
                // It was closed just now, and nothing of the request has left.
                Sent::Partly {
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

    /// Keeps a connection for later requests, and closes those that have been idle for too long.
    fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        let old = idle.partition_point(|(_, since)| since.elapsed() > connect::IDLE);
        let old: Vec<_> = idle.drain(..old).collect();
        idle.push((connection, Instant::now()));
        // Closed without the lock.
        drop(idle);
        drop(old);
    }

    /// Returns a connection that was used before and is still open.
    fn kept(&self) -> Option<Connection> {
        loop {
            // Dropped without the lock.
            let (connection, since) = self.idle().pop()?;
            if since.elapsed() > connect::IDLE {
                // All others are older.
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
        // Each change is complete.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a request over a connection and reads all of its answer, and says whether the connection can be used again.
#[cfg(target_os = "linux")]
pub(super) fn exchange(
    connection: &mut Connection,
    endpoint: &Endpoint,
    settings: &Settings,
    message: &Message,
    wait: &Wait<'_>,
) -> Result<(Answer, bool)> {
    let head = head(endpoint, settings, message);
    let sent = connection.send(&mut &mut parts(&head, message)[..], wait)?;
    receive(connection, sent, settings, wait)
}

/// What of a request is not empty.
fn parts<'m>(head: &'m [u8], message: &'m Message) -> Vec<IoSlice<'m>> {
    let parts = [head, &message.body.json[..]];
    let parts = parts
        .into_iter()
        .chain(message.body.binary.iter().map(Bytes::as_ref));
    parts.filter(|part| !part.is_empty()).map(IoSlice::new).collect()
}

/// Reads the answer to a request of which so much was sent, and says whether the connection can be used again.
fn receive(
    connection: &mut Connection,
    sent: Sent,
    settings: &Settings,
    wait: &Wait<'_>,
) -> Result<(Answer, bool)> {
    let outcome = connection.answer(wait, &settings.spare, |status| match status.is_success() {
        true => Ok(settings.max_answer_bytes),
        // A refusal is a message; of a page that somebody else answers with, its beginning will do.
        false => Err(MAX_REFUSAL.min(settings.max_answer_bytes)),
    });
    match (outcome, sent) {
        (Ok((answer, may_stay)), sent) => Ok((answer, may_stay && matches!(sent, Sent::Whole))),
        // Why the request could not be sent says more than that no answer came.
        (Err(error), Sent::Partly { why: Some(why), .. }) if error.kind() == ErrorKind::Broken => {
            Err(broken(why))
        }
        (Err(error), _) => Err(error),
    }
}

/// Returns the lines before a request's body.
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
        // This one is sent with each request that may have it.
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

/// Returns a new connection. Another thread makes it, since names can take any time to resolve.
pub(super) fn connect(endpoint: &Endpoint, timeout: Duration, wait: &Wait<'_>) -> Result<Connection> {
    let endpoint = endpoint.clone();
    let (sender, opened) = sync_channel(1);
    let connecting = thread::Builder::new()
        .name("oip-connect".to_owned())
        .spawn(move || {
            // Its caller may have given up.
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

/// Returns a host that is gone without a word is noticed as by [`connect::pool`].
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
        // Each has its share of the time that is left.
        let left = timeout.saturating_sub(start.elapsed());
        let share = left / u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        match TcpStream::connect_timeout(address, share.max(Duration::from_millis(1))) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                // A system that refuses this serves the connection all the same.
                let _ = ask_whether_it_is_there(&stream);
                return Ok(stream.into());
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}
