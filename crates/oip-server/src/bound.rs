//! Binds listening sockets.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
};

use oip_listen::{Address, Listener, listen};
use tokio::net::TcpListener;

use crate::{
    addresses::{At, Place, Speaks},
    failure::Failure,
};

/// A listening socket and its actual address.
pub(crate) struct Bound {
    pub(crate) listener: Listener,
    pub(crate) address: Address,
    pub(crate) speaks: Speaks,
    /// Whether it is the admin address.
    pub(crate) is_admin: bool,
    /// Whether only programs on this machine reach it.
    pub(crate) is_local: bool,
}

/// Maximum connections of the admin address, which other addresses cannot use up.
pub(crate) const ADMIN_CONNECTIONS: usize = 64;

/// Binds an address; `unix_socket_mode` are the permissions of a Unix socket. Call within the runtime that
/// accepts.
pub(crate) fn bind(place: &Place, is_admin: bool, unix_socket_mode: u32) -> Result<Bound, Failure> {
    let listener = match &place.at {
        At::Tcp(addresses) => listen_on_first(addresses).map(Listener::from),
        #[cfg(unix)]
        At::Unix(path) => oip_listen::listen_unix(path, unix_socket_mode),
        #[cfg(not(unix))]
        At::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
    };
    #[cfg(not(unix))]
    let _ = unix_socket_mode;
    let bound = listener.and_then(|listener| {
        Ok(Bound {
            address: listener.address()?,
            listener,
            speaks: place.speaks,
            is_admin,
            is_local: place.at.is_local(),
        })
    });
    bound.map_err(|error| {
        let Place {
            speaks, option, text, ..
        } = place;
        Failure::run(format!(
            "cannot listen on {text} for {}: {error} ({option} takes another one)",
            speaks.name()
        ))
    })
}

/// Binds the first address that the machine has.
fn listen_on_first(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        match listen(*address) {
            // Errors for a missing IPv6 differ by system, but are neither of these.
            Err(error) if !matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) => {
                last = error;
            }
            listener => return listener,
        }
    }
    Err(last)
}
