//! Listening sockets for the addresses that the options name.

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

/// A listening socket, and where it really listens.
pub(crate) struct Bound {
    pub(crate) listener: Listener,
    pub(crate) address: Address,
    pub(crate) speaks: Speaks,
    /// Whether it is the address for what changes the server.
    pub(crate) is_admin: bool,
    /// Whether only programs on this machine reach it.
    pub(crate) is_local: bool,
}

/// Connections of the admin address, which other clients cannot use up.
pub(crate) const ADMIN_CONNECTIONS: usize = 64;

/// Listens at a place, with these permissions of a Unix socket. Needs the runtime that accepts its connections.
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

/// Listens on the first address that this machine has.
fn listen_on_first(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        match listen(*address) {
            // A machine without IPv6 has other words for it, but these two are not among them.
            Err(error) if !matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) => {
                last = error;
            }
            listener => return listener,
        }
    }
    Err(last)
}
