//! Opens listening sockets for the configured addresses.

use oip_auth::Guard;
use oip_listen::{Address, Listener, SocketMode, Tls};
use oip_service::route::Api;

use super::runtimes::Runtimes;
use crate::{
    banner::urls::{Encryption, ReachableAddresses},
    failure::Failure,
    options::{AddressProtocol, Config, Place, read_tls},
};

/// All listening sockets and their TLS settings.
pub(super) struct Listening {
    pub(super) sockets: Vec<BoundSocket>,
    pub(super) tls: Option<Tls>,
}

impl Listening {
    /// Reads the TLS files and opens the sockets.
    pub(super) fn open(config: &mut Config, runtimes: &Runtimes) -> Result<Self, Failure> {
        let tls = read_tls(config.tls.take())?;
        let mode = config.addresses.unix_socket_mode;
        let places = config.addresses.places.iter().map(|place| (place, false));
        let admin = config.access.admin.iter().map(|place| (place, true));
        let sockets = places.chain(admin).map(|(place, is_admin)| {
            let _context = runtimes.accepting(place.speaks).enter();
            bind(place, is_admin, mode)
        });
        Ok(Self {
            sockets: sockets.collect::<Result<_, _>>()?,
            tls,
        })
    }

    /// Returns the addresses at which clients reach the server.
    pub(super) fn reachable(&self, guard: &Guard, has_console: bool) -> ReachableAddresses {
        let except = |other: AddressProtocol| {
            let sockets = self.sockets.iter();
            let sockets = sockets.filter(|socket| socket.speaks != other && !socket.is_admin);
            sockets.map(|socket| socket.address.clone()).collect()
        };
        let admin = self.sockets.iter().find(|socket| socket.is_admin);
        ReachableAddresses {
            http: except(AddressProtocol::Grpc),
            grpc: except(AddressProtocol::Http),
            admin: admin.map(|socket| socket.address.clone()),
            encryption: self.tls.as_ref().map(|tls| {
                let files = tls.files();
                Encryption {
                    certificate: tls.certificate().unwrap_or_default(),
                    file: files.certificate.clone(),
                    knows_clients: files.client_ca.is_some(),
                }
            }),
            wants_token: !guard.is_open_to_all(Api::Inference),
            has_console,
        }
    }
}

/// A listening socket with its actual address.
pub(super) struct BoundSocket {
    pub(super) listener: Listener,
    pub(super) address: Address,
    pub(super) speaks: AddressProtocol,
    /// Whether this is the address of `--admin-address`.
    pub(super) is_admin: bool,
    /// Whether the address is reachable only from this machine.
    pub(super) is_local: bool,
}

impl BoundSocket {
    /// Returns a second handle to the socket. Must run on the runtime that accepts its connections.
    pub(super) fn share(&self) -> Result<Self, Failure> {
        let listener = self
            .listener
            .share()
            .map_err(|error| Failure::run(format!("cannot listen on {} once more: {error}", self.address)))?;
        Ok(Self {
            listener,
            address: self.address.clone(),
            ..*self
        })
    }
}

/// Listens on an address; a Unix socket gets the permissions `unix_socket_mode`. Must run on the runtime that
/// accepts the connections.
fn bind(place: &Place, is_admin: bool, unix_socket_mode: SocketMode) -> Result<BoundSocket, Failure> {
    let listener = place.at.listen(unix_socket_mode);
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
            "cannot listen on {text} for {}: {error} ({option} sets another address)",
            speaks.name()
        ))
    })
}
