//! Listeners on TCP ports and Unix sockets.

use std::{fmt, io, net::SocketAddr, path::PathBuf};

#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::stream::Stream;

/// Length of the listen backlog; the system may use a shorter one. When the backlog is full, the kernel drops
/// SYNs, and clients retry after 1 s.
const BACKLOG: u32 = 4096;

/// Opens a listening TCP socket.
///
/// The listen backlog is longer than the standard library's, so that a burst of clients does not have to
/// retry. Must be called within a Tokio runtime.
///
/// # Errors
/// When the address is in use, or does not belong to this machine.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    // A server that just stopped leaves its port in TIME_WAIT; with this option the next server can bind the
    // port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Opens a listening Unix socket at `path` with the permission bits `mode`. The socket's file is removed when
/// the listener is dropped.
///
/// Clients need write permission on the socket's file. The permissions are set before the first client can
/// connect. A stale socket, left behind by a killed server, is replaced; a socket with a listening process is
/// not. Must be called within a Tokio runtime.
///
/// # Errors
/// When a process listens at the path, the path is not a socket, or the directory is not writable.
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
    // Until `listen` is called, the kernel refuses clients.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(Listener(Inner::Unix(socket.listen(BACKLOG)?, file)))
}

/// Removes a socket without a listening process.
#[cfg(unix)]
fn remove_stale(path: &std::path::Path) -> io::Result<()> {
    use std::{
        fs,
        os::unix::{fs::FileTypeExt, net::UnixStream},
    };

    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket has this path",
        ));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process listens there",
        )),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // The socket may belong to another user, so it is unknown whether a process listens on it.
        Err(error) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("a socket has this path, and connecting to it fails: {error}"),
        )),
    }
}

/// A listening TCP or Unix socket.
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

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// A TCP address and port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    /// Formats as `127.0.0.1:8080` or `unix:/run/server.sock`.
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
    /// The client's address; `None` over a Unix socket, where clients have no address.
    pub address: Option<SocketAddr>,
}

impl Listener {
    /// Returns the listener's address. For port 0, the address contains the port that the system chose.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn address(&self) -> io::Result<Address> {
        match &self.0 {
            Inner::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            #[cfg(unix)]
            Inner::Unix(_, file) => Ok(Address::Unix(file.path.clone())),
        }
    }

    /// Creates another listener on the same socket; each connection is accepted by one of the listeners.
    /// Dropping the last listener closes the socket and removes a Unix socket's file. Must be called within
    /// the Tokio runtime that accepts the new listener's connections.
    ///
    /// # Errors
    /// When the system is out of descriptors.
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

    /// Closes the listener and returns the connections that are waiting to be accepted. Removes a Unix
    /// socket's file, unless another listener shares the socket.
    pub(crate) fn into_queued(self) -> Option<Backlog> {
        match self.0 {
            Inner::Tcp(listener) => listener.into_std().ok().map(Backlog::Tcp),
            #[cfg(unix)]
            Inner::Unix(listener, _) => listener.into_std().ok().map(Backlog::Unix),
        }
    }
}

impl Peer {
    fn tcp(address: SocketAddr) -> Self {
        // A dual-stack socket reports IPv4 addresses as IPv6-mapped ones.
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

/// The connections in the listen backlog. They are accepted directly, because the runtime may not have been
/// notified of them yet.
pub(crate) enum Backlog {
    Tcp(std::net::TcpListener),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener),
}

impl Backlog {
    /// Returns the next connection, if one is pending.
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

/// The file of a Unix socket. Dropping the value removes the file, unless another socket has replaced it.
#[cfg(unix)]
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

#[cfg(unix)]
impl SocketFile {
    fn new(path: &std::path::Path) -> io::Result<Self> {
        // The path is made absolute, because the working directory may change.
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
