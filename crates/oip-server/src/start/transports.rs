//! The transports: a task for each listening socket, which ends when all its connections are closed.

use std::{convert::Infallible, error::Error, pin::pin, time::Duration};

use axum::http::{Request, Response};
use bytes::Buf;
use http_body::Body;
use oip_grpc::GrpcService;
use oip_listen::{ConnectionCap, ConnectionLimits, Peer, Protocol, RequestBody, Shutdown, Tls, serve_each};
use tokio::{task::JoinHandle, time::timeout};
use tower_service::Service;

use super::{lasting_calls::lasting, listening::BoundSocket, runtimes::Runtimes};
use crate::{metrics::ConnectionCaps, options::AddressProtocol};

/// Number of connections reserved for the admin address, which other clients cannot exhaust.
const ADMIN_CONNECTIONS: usize = 64;

/// Running transports.
pub(super) struct Transports {
    shutdown: Shutdown,
    tasks: Vec<JoinHandle<usize>>,
    calls: GrpcService,
}

impl Transports {
    /// Asks clients to reconnect, but still accepts requests.
    pub(super) fn leave(&self) {
        self.shutdown.leave();
    }

    /// Stops accepting connections. Open requests are finished.
    pub(super) fn drain(&self) {
        self.calls.drain_streams();
        self.shutdown.drain();
    }

    /// Waits until all connections are closed, and cuts off the remaining ones after `patience`. Returns how
    /// many were cut off.
    pub(super) async fn finish(self, patience: Duration) -> usize {
        let finishing = async {
            let mut cut = 0;
            for task in self.tasks {
                cut += task.await.unwrap_or(1);
            }
            cut
        };
        let mut finishing = pin!(finishing);
        match timeout(patience, &mut finishing).await {
            Ok(cut) => cut,
            Err(_) => {
                self.shutdown.cut();
                finishing.await
            }
        }
    }
}

/// Starts a transport for each socket.
pub(super) struct Acceptor<'a> {
    runtimes: &'a Runtimes,
    tls: Option<Tls>,
    limits: ConnectionLimits,
    admin: ConnectionCap,
    shutdown: Shutdown,
    tasks: Vec<JoinHandle<usize>>,
}

impl<'a> Acceptor<'a> {
    /// Creates an acceptor. All addresses share `limits`, except that the admin address has its own limit on
    /// connections.
    pub(super) fn new(runtimes: &'a Runtimes, tls: Option<&Tls>, limits: &ConnectionLimits) -> Self {
        Self {
            runtimes,
            tls: tls.cloned(),
            limits: limits.clone(),
            admin: ConnectionCap::new(ADMIN_CONNECTIONS),
            shutdown: Shutdown::new(),
            tasks: Vec::new(),
        }
    }

    /// Returns the limits on connections and streams of all addresses.
    pub(super) fn caps(&self) -> ConnectionCaps {
        ConnectionCaps {
            connections: vec![self.limits.connections.clone(), self.admin.clone()],
            streams: vec![self.limits.streams.clone()],
        }
    }

    /// Accepts connections on a socket. `make` creates the service of a connection.
    pub(super) fn serve<S, B>(
        &mut self,
        socket: BoundSocket,
        make: impl Fn(&Peer) -> S + Send + Sync + 'static,
    ) where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data: Buf + Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let protocol = match socket.speaks {
            AddressProtocol::Http => Protocol::Http1,
            AddressProtocol::Grpc => Protocol::Http2,
            AddressProtocol::Both => Protocol::Either,
        };
        let limits = self.limits.clone().with(|limits| {
            if socket.is_admin {
                limits.connections = self.admin.clone();
            }
            if socket.speaks != AddressProtocol::Http {
                limits.conversations = &[oip_grpc::MODEL_STREAM_INFER];
                limits.lasting = Some(lasting());
            }
        });
        let (tls, shutdown) = (self.tls.clone(), self.shutdown.clone());
        let serving = serve_each(socket.listener, protocol, tls, make, limits, shutdown);
        let runtime = self.runtimes.accepting(socket.speaks);
        self.tasks.push(runtime.spawn(serving));
    }

    /// Returns the running transports, with the gRPC services behind them.
    pub(super) fn running(self, calls: GrpcService) -> Transports {
        Transports {
            shutdown: self.shutdown,
            tasks: self.tasks,
            calls,
        }
    }
}
