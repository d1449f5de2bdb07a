//! Opens listening sockets for the configured addresses.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
};

use oip_listen::{Address, Listener, listen};
use tokio::net::TcpListener;

use crate::{
    addresses::{AddressProtocol, Endpoint, Place},
    failure::Failure,
};

/// A listening socket with its actual address.
pub(crate) struct BoundSocket {
    pub(crate) listener: Listener,
    pub(crate) address: Address,
    pub(crate) speaks: AddressProtocol,
    /// Whether this is the address of `--admin-address`.
    pub(crate) is_admin: bool,
    /// Whether the address is reachable only from this machine.
    pub(crate) is_local: bool,
}

/// Number of connections reserved for the admin address, which other clients cannot exhaust.
pub(crate) const ADMIN_CONNECTIONS: usize = 64;

/// Listens at an address; a Unix socket gets the permissions `unix_socket_mode`. Must run on the runtime that
/// accepts the connections.
pub(crate) fn bind(place: &Place, is_admin: bool, unix_socket_mode: u32) -> Result<BoundSocket, Failure> {
    let listener = match &place.at {
        Endpoint::Tcp(addresses) => listen_on_first(addresses).map(Listener::from),
        #[cfg(unix)]
        Endpoint::Unix(path) => oip_listen::listen_unix(path, unix_socket_mode),
        #[cfg(not(unix))]
        Endpoint::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
    };
    #[cfg(not(unix))]
    let _ = unix_socket_mode;
    let bound = listener.and_then(|listener| {
        Ok(BoundSocket {
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

/// Listens on the first available address.
fn listen_on_first(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        match listen(*address) {
            // The error for missing IPv6 support differs between systems, but has neither of these two kinds.
            Err(error) if !matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) => {
                last = error;
            }
            listener => return listener,
        }
    }
    Err(last)
}
