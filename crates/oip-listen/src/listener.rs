//! Where connections come from: TCP ports and Unix sockets.

use std::{fmt, io, net::SocketAddr, path::PathBuf};

#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::stream::Stream;

/// Connections that wait to be accepted at most. Beyond that the system drops what clients send to connect, and they try
/// again after a second. It may allow less.
const QUEUE: u32 = 4096;

/// Opens a listening socket.
///
/// The system may queue more connections for it than the standard library asks for, so that a burst of clients is not
/// made to try again. Needs a Tokio runtime.
///
/// # Errors
/// When the address is taken, or not one of this machine's.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    // A server that was just stopped leaves its address in use for a while, unless the next one says that this is fine.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(QUEUE)
}

/// Opens a listening Unix socket at a path, with these permission bits. Its file is removed when the listener is dropped.
///
/// Clients need the permission to write to the socket's file. It has its permissions before the first client can connect.
/// A socket that a server left behind when it was killed is replaced; one that a process listens on is not.
/// Needs a Tokio runtime.
///
/// # Errors
/// When a process listens at the path, something other than a socket is there, or the folder cannot be written to.
#[cfg(unix)]
pub fn listen_unix(path: &std::path::Path, mode: u32) -> io::Result<Listener> {
    use std::{fs, os::unix::fs::PermissionsExt};

    use tokio::net::UnixSocket;

    let bind = || {
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        io::Result::Ok(socket)
    };
    let socket = match bind() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path)?;
            bind()?
        }
        bound => bound?,
    };
    let file = SocketFile::new(path)?.into();
    // Until `listen` the system refuses clients.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(Listener(Inner::Unix(socket.listen(QUEUE)?, file)))
}

/// Removes a socket that nobody listens on.
#[cfg(unix)]
fn remove_stale(path: &std::path::Path) -> io::Result<()> {
    use std::{
        fs,
        os::unix::{fs::FileTypeExt, net::UnixStream},
    };

    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket is in its place",
        ));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process listens there",
        )),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // Another user's socket, for example: whether somebody listens is not known.
        Err(error) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("a socket is in its place, and connecting to it fails: {error}"),
        )),
    }
}

/// A listening socket, of TCP or a Unix socket's.
#[derive(Debug)]
pub struct Listener(Inner);

#[derive(Debug)]
enum Inner {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener, std::sync::Arc<SocketFile>),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self(Inner::Tcp(listener))
    }
}

/// Where a listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// A port of TCP.
    Tcp(SocketAddr),
    /// A Unix socket's path.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    /// As `127.0.0.1:8080` or `unix:/run/server.sock`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The client of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its address; none over a Unix socket, whose clients have none.
    pub address: Option<SocketAddr>,
}

impl Listener {
    /// Where it is; of port 0, the port that the system has chosen.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> io::Result<Address> {
        match &self.0 {
            Inner::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            #[cfg(unix)]
            Inner::Unix(_, file) => Ok(Address::Unix(file.path.clone())),
        }
    }

    /// Another listener on the same socket: each connection is accepted by one of them. The socket is closed, and a Unix socket's file
    /// removed, with the last of them. Needs the Tokio runtime that accepts its connections.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    #[cfg(unix)]
    pub fn share(&self) -> io::Result<Self> {
        use std::os::fd::AsFd;

        Ok(Self(match &self.0 {
            Inner::Tcp(listener) => {
                let copy = listener.as_fd().try_clone_to_owned()?;
                Inner::Tcp(TcpListener::from_std(copy.into())?)
            }
            Inner::Unix(listener, file) => {
                let copy = listener.as_fd().try_clone_to_owned()?;
                Inner::Unix(UnixListener::from_std(copy.into())?, file.clone())
            }
        }))
    }

    /// Accepts the next connection.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match &self.0 {
            Inner::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((Stream::Tcp(stream), Peer::tcp(address)))
            }
            #[cfg(unix)]
            Inner::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream, None), Peer::unix()))
            }
        }
    }

    /// Stops to listen, but for connections that wait to be accepted. A Unix socket's file is gone from now on, unless another
    /// listener shares the socket.
    pub(crate) fn into_queued(self) -> Option<Queued> {
        match self.0 {
            Inner::Tcp(listener) => listener.into_std().ok().map(Queued::Tcp),
            #[cfg(unix)]
            Inner::Unix(listener, _) => listener.into_std().ok().map(Queued::Unix),
        }
    }
}

impl Peer {
    fn tcp(address: SocketAddr) -> Self {
        // On a socket for both kinds the older addresses look like newer ones.
        let ip = address.ip().to_canonical();
        Self {
            address: Some(SocketAddr::new(ip, address.port())),
        }
    }

    #[cfg(unix)]
    fn unix() -> Self {
        Self { address: None }
    }
}

/// Connections that wait to be accepted, asked for directly: the runtime may not have heard of them yet.
pub(crate) enum Queued {
    Tcp(std::net::TcpListener),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener),
}

impl Queued {
    /// The next one, if there is one.
    pub(crate) fn next(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok((Stream::Tcp(TcpStream::from_std(stream)?), Peer::tcp(address)))
            }
            #[cfg(unix)]
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                let stream = tokio::net::UnixStream::from_std(stream)?;
                Ok((Stream::Unix(stream, None), Peer::unix()))
            }
        }
    }
}

/// The file of a Unix socket, removed when this is dropped, unless another one has taken its place.
#[cfg(unix)]
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

#[cfg(unix)]
impl SocketFile {
    fn new(path: &std::path::Path) -> io::Result<Self> {
        // The working folder may change.
        let path = std::path::absolute(path)?;
        let identity = Self::identity(&path)?;
        Ok(Self { path, identity })
    }

    fn identity(path: &std::path::Path) -> io::Result<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        let metadata = std::fs::symlink_metadata(path)?;
        Ok((metadata.dev(), metadata.ino()))
    }
}

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
