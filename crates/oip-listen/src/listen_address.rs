//! Addresses to listen on, as operators write them.

use std::{
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    path::PathBuf,
    str::FromStr,
};

use tokio::net::TcpListener;

use crate::listener::{Listener, listen};

/// An address to listen on. It is parsed from `HOST:PORT`, `:PORT` for all addresses of this machine, or
/// `unix:PATH`.
///
/// ```
/// use oip_listen::ListenAddress;
///
/// let address: ListenAddress = "127.0.0.1:8080".parse().unwrap();
/// assert!(address.is_local());
/// assert!(!":8080".parse::<ListenAddress>().unwrap().is_local());
/// assert_eq!("unix:///run/a.sock".parse(), Ok(ListenAddress::Unix("/run/a.sock".into())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenAddress {
    /// Candidate addresses; the first one that is available on this machine is used.
    Tcp(Vec<SocketAddr>),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Returns a port of all addresses of this machine: dual-stack if IPv6 is available, otherwise IPv4.
    #[must_use]
    pub fn everywhere(port: u16) -> Self {
        Self::Tcp(vec![
            (Ipv6Addr::UNSPECIFIED, port).into(),
            (Ipv4Addr::UNSPECIFIED, port).into(),
        ])
    }

    /// Returns the port of a host, which is an IP address, with or without brackets, or a name.
    ///
    /// # Errors
    /// When the name is unknown.
    pub fn of_host(host: &str, port: u16) -> Result<Self, ListenAddressError> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let found = (bare, port).to_socket_addrs().ok();
        let found = found.and_then(|mut found| found.next());
        let address = found.ok_or_else(|| ListenAddressError::Host(host.to_owned()))?;
        Ok(Self::Tcp(vec![address]))
    }

    /// Returns whether only this machine can reach the address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(addresses) => addresses.iter().all(|address| address.ip().is_loopback()),
            Self::Unix(_) => true,
        }
    }

    /// Listens on the address. A Unix socket gets the permissions `mode`. Must be called within a Tokio
    /// runtime.
    ///
    /// # Errors
    /// When no candidate is available, or the system has no Unix sockets. See also
    /// [`listen_unix`](crate::listen_unix).
    pub fn listen(&self, mode: SocketMode) -> io::Result<Listener> {
        #[cfg(not(unix))]
        let _ = mode;
        match self {
            Self::Tcp(addresses) => listen_on_first(addresses).map(Listener::from),
            #[cfg(unix)]
            Self::Unix(path) => crate::listen_unix(path, mode.0),
            #[cfg(not(unix))]
            Self::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        let wrong = || ListenAddressError::Form(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            // A URL with an empty host has two extra slashes.
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(wrong()),
                _ if cfg!(not(unix)) => Err(ListenAddressError::NoUnixSockets(text.to_owned())),
                path => Ok(Self::Unix(path.into())),
            };
        }
        if let Some(port) = text.strip_prefix(':') {
            return port.parse().map(Self::everywhere).map_err(|_| wrong());
        }
        // A host cannot contain a slash, so such text is not looked up.
        let found = (!text.contains('/')).then(|| text.to_socket_addrs().ok());
        let address = found.flatten().and_then(|mut found| found.next());
        address.map(|address| Self::Tcp(vec![address])).ok_or_else(wrong)
    }
}

/// An address to listen on that cannot be parsed. Each variant holds the text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenAddressError {
    /// The text has none of the forms, or the name of its host is unknown.
    Form(String),
    /// The host is neither an IP address nor a known name.
    Host(String),
    /// This system has no Unix sockets.
    NoUnixSockets(String),
}

impl fmt::Display for ListenAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form(text) => write!(f, "expected HOST:PORT, :PORT or unix:PATH, found '{text}'"),
            Self::Host(text) => {
                write!(f, "expected an IP address or the name of a host, found '{text}'")
            }
            Self::NoUnixSockets(text) => write!(f, "this system has no Unix sockets, found '{text}'"),
        }
    }
}

impl std::error::Error for ListenAddressError {}

/// Permission bits of a Unix socket, written in octal: users with write permission may connect. The default
/// is read and write for owner and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

impl SocketMode {
    /// Creates a mode from permission bits. Returns `None` if other bits are set.
    #[must_use]
    pub fn new(bits: u32) -> Option<Self> {
        (bits <= 0o777).then_some(Self(bits))
    }
}

impl Default for SocketMode {
    fn default() -> Self {
        Self(0o660)
    }
}

impl FromStr for SocketMode {
    type Err = SocketModeError;

    fn from_str(text: &str) -> Result<Self, SocketModeError> {
        let bits = u32::from_str_radix(text, 8).ok();
        bits.and_then(Self::new).ok_or(SocketModeError(()))
    }
}

/// Permission bits of a Unix socket that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketModeError(());

impl fmt::Display for SocketModeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected octal digits up to 777, such as 660")
    }
}

impl std::error::Error for SocketModeError {}

/// Listens on the first available address.
fn listen_on_first(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};

    let mut last = AddrNotAvailable.into();
    for address in addresses {
        match listen(*address) {
            // The error for missing IPv6 support differs between systems, but has neither of these two kinds.
            Err(error) if !matches!(error.kind(), AddrInUse | PermissionDenied) => last = error,
            listener => return listener,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form() {
        let tcp = |addresses: &[&str]| {
            ListenAddress::Tcp(addresses.iter().map(|address| address.parse().unwrap()).collect())
        };
        for (text, expected) in [
            ("0.0.0.0:1", tcp(&["0.0.0.0:1"])),
            ("[::1]:1", tcp(&["[::1]:1"])),
            (":81", tcp(&["[::]:81", "0.0.0.0:81"])),
            ("unix:/run/a.sock", ListenAddress::Unix("/run/a.sock".into())),
            ("unix:///run/a.sock", ListenAddress::Unix("/run/a.sock".into())),
            ("unix:a.sock", ListenAddress::Unix("a.sock".into())),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in [
            "nonsense",
            "",
            ":",
            ":99999",
            "unix:",
            "http://127.0.0.1:1",
            "127.0.0.1:x",
        ] {
            assert_eq!(
                text.parse::<ListenAddress>(),
                Err(ListenAddressError::Form(text.to_owned()))
            );
        }
        assert_eq!(ListenAddress::of_host("[::1]", 1), Ok(tcp(&["[::1]:1"])));
        assert!(ListenAddress::of_host("a b", 1).is_err());
    }

    #[test]
    fn modes_are_octal() {
        for mode in ["", "8", "1000", "rw", "-1"] {
            assert!(mode.parse::<SocketMode>().is_err(), "{mode}");
        }
        assert_eq!("0600".parse(), Ok(SocketMode(0o600)));
    }
}
