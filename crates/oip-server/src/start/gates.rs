//! The gates in front of the services of each address: which calls an address accepts, and from whom.

use axum::http::Extensions;
use oip_auth::{AcceptedCalls, Door, Gate, Guard, Transport};
use oip_listen::ClientCertificate;

use super::listening::BoundSocket;
use crate::options::Access;

/// The settings of a gate for HTTP.
pub(super) const HTTP: Transport<axum::body::Body> = Transport {
    is_grpc: false,
    refuse: |error, route| oip_http::error_response_to(error, route.action()),
    certificate: names,
};

/// The settings of a gate for gRPC.
pub(super) const GRPC: Transport<oip_grpc::Body> = Transport {
    is_grpc: true,
    refuse: |error, _| oip_grpc::error_response(error),
    certificate: names,
};

/// Returns the names in a client's certificate.
fn names(extensions: &Extensions) -> Vec<String> {
    let certificate = extensions.get::<ClientCertificate>();
    let names = certificate.map_or(&[][..], ClientCertificate::names);
    names.iter().map(ToString::to_string).collect()
}

/// The access rules from which the gates are created.
pub(super) struct Gates {
    pub(super) access: Access,
    pub(super) guard: Guard,
}

impl Gates {
    /// Puts the gate of a socket in front of a service.
    pub(super) fn before<S, B>(
        &self,
        service: S,
        transport: Transport<B>,
        socket: &BoundSocket,
    ) -> Gate<S, B> {
        let restricted = match transport.is_grpc {
            true => &self.access.restricted_in_grpc,
            false => &self.access.restricted_in_http,
        };
        let door = Door {
            accepts: self.accepted_calls(socket),
            restricted: restricted.clone(),
        };
        Gate::new(service, self.guard.clone(), door, transport)
    }

    /// Returns which calls a socket accepts.
    fn accepted_calls(&self, socket: &BoundSocket) -> AcceptedCalls {
        const ADMIN: &str = "it is answered on the address of --admin-address";
        const ADVICE: &str = "set --admin-address to serve such calls on another address, --auth to \
                              restrict who may make them, or --allow-public-admin to allow everybody";
        const PUBLIC_ADMIN: &str = "set --admin-address to an address that only this machine reaches, \
                                    --auth to restrict who may make such calls, or --allow-public-admin to \
                                    allow everybody";
        let allows_all = self.access.allows_all || socket.is_local;
        match () {
            () if socket.is_admin && allows_all => AcceptedCalls::Everything,
            () if socket.is_admin => AcceptedCalls::NoChanges(PUBLIC_ADMIN),
            () if self.access.admin.is_some() => AcceptedCalls::NoAdministration(ADMIN),
            () if allows_all => AcceptedCalls::Everything,
            () => AcceptedCalls::NoChanges(ADVICE),
        }
    }
}
