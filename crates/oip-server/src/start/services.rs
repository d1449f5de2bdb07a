//! The services of both transports, with the gates of each address.

use std::sync::Arc;

use axum::{Router, body::Body};
use oip_auth::Gate;
use oip_grpc::GrpcService;
use oip_http::HttpService;
use oip_listen::Peer;
use oip_service::InferenceService;
use oip_telemetry::requests::{ObservedService, Traffic, Transport};
use tower::{Layer, util::Either};
use tower_http::cors::Cors;

use super::{
    gates::{GRPC, Gates, HTTP},
    listening::BoundSocket,
    one_port::OnePort,
    transports::{Acceptor, Transports},
};
use crate::options::{AddressProtocol, TransportConfig};

/// The services of all addresses.
pub(super) struct Services {
    rest: HttpService,
    /// The same service, but with the host names of the admin address.
    admin_rest: HttpService,
    calls: GrpcService,
    gates: Gates,
    traffic: Arc<Traffic>,
}

/// The REST API of an address. The CORS layer is outside the gate, because browsers send preflight requests
/// without a token.
type GuardedRest = Either<Cors<Gate<HttpService, Body>>, Gate<HttpService, Body>>;

impl Services {
    /// Creates the services. `pages` are served next to the REST API.
    pub(super) fn new(
        service: Arc<dyn InferenceService>,
        config: TransportConfig,
        pages: Router,
        gates: Gates,
        traffic: Arc<Traffic>,
    ) -> Self {
        let admin = config
            .http
            .clone()
            .with(|http| http.allowed_hosts = config.admin_hosts);
        Self {
            admin_rest: oip_http::service_with(service.clone(), admin, pages.clone()),
            rest: oip_http::service_with(service.clone(), config.http, pages),
            calls: oip_grpc::service(service, config.grpc),
            gates,
            traffic,
        }
    }

    /// Serves on all sockets.
    pub(super) fn serve(self, sockets: Vec<BoundSocket>, mut acceptor: Acceptor<'_>) -> Transports {
        for socket in sockets {
            self.serve_at(socket, &mut acceptor);
        }
        acceptor.running(self.calls)
    }

    fn serve_at(&self, socket: BoundSocket, acceptor: &mut Acceptor<'_>) {
        let (rest, calls) = (self.rest_at(&socket), self.calls_at(&socket));
        let traffic = self.traffic.clone();
        match socket.speaks {
            AddressProtocol::Http => acceptor.serve(socket, move |peer: &Peer| {
                let transport = Some(Transport::Http);
                ObservedService::new(rest.clone(), traffic.clone(), transport, peer.address)
            }),
            AddressProtocol::Grpc => acceptor.serve(socket, move |peer: &Peer| {
                let transport = Some(Transport::Grpc);
                ObservedService::new(calls.clone(), traffic.clone(), transport, peer.address)
            }),
            AddressProtocol::Both => {
                let both = OnePort::new(rest, calls);
                acceptor.serve(socket, move |peer: &Peer| {
                    ObservedService::new(both.clone(), traffic.clone(), None, peer.address)
                });
            }
        }
    }

    fn rest_at(&self, socket: &BoundSocket) -> GuardedRest {
        let rest = if socket.is_admin {
            &self.admin_rest
        } else {
            &self.rest
        };
        let gate = self.gates.before(rest.clone(), HTTP, socket);
        match &self.gates.access.cors {
            Some(cors) => Either::Left(cors.layer(gate)),
            None => Either::Right(gate),
        }
    }

    fn calls_at(&self, socket: &BoundSocket) -> Gate<GrpcService, oip_grpc::Body> {
        self.gates.before(self.calls.clone(), GRPC, socket)
    }
}
