//! The server while it reads its repositories and its identity table, which may take minutes for remote ones.
//! Meanwhile the server is live but not ready, and stops on a signal.

use std::{
    convert::Infallible,
    panic::resume_unwind,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::http::{Request, Response};
use model_repository::Repositories;
use oip_auth::{Guard, Transport};
use oip_grpc::{GrpcConfig, GrpcService};
use oip_http::HttpConfig;
use oip_listen::{ConnectionCap, ConnectionLimits, Peer, Protocol, Shutdown, Tls, serve_each};
use oip_service::{
    BoxFuture, InferenceService, Readiness, RequestContext,
    route::{Api, Route},
};
use oip_types::{
    ErrorCode, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError,
};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};
use tower_service::Service;

use crate::{
    access_options::{GRPC, HTTP},
    addresses::AddressProtocol,
    bound::{ADMIN_CONNECTIONS, BoundSocket},
    config::Config,
    failure::Failure,
    model_source, notify,
    one_port::OnePort,
    signals::{INTERRUPTED, Signals},
};

/// The sources that the server reads before it can start.
pub(crate) struct Sources {
    pub(crate) config: Config,
    pub(crate) repository: Repositories,
    pub(crate) guard: Guard,
}

/// The result of opening the repositories.
pub(crate) enum StartupOutcome {
    Read(Box<Sources>),
    /// A signal arrived before everything was read.
    Ended {
        /// Whether every request was completed before the server stopped.
        is_clean: bool,
    },
}

/// How long to read before serving health checks; local directories are read within this time. Meanwhile
/// clients wait in the listen backlog.
const PATIENCE: Duration = Duration::from_millis(100);

/// Opens the repositories and reads the identity table. If this takes long, serves health checks meanwhile,
/// and rejects other requests because the server is starting.
pub(crate) async fn read(
    mut config: Config,
    bound: &[BoundSocket],
    tls: Option<&Tls>,
    work: &Handle,
    signals: &mut Signals,
) -> Result<StartupOutcome, Failure> {
    let drain_timeout = config.drain_timeout;
    let (http, grpc, limits) = (
        config.http.clone(),
        config.grpc.clone(),
        config.connections.clone(),
    );
    let mut reading = spawn_blocking(move || {
        let repository = model_source::open(&mut config)?;
        let guard = config.access.guard(&config.http.cpu)?;
        Ok::<_, Failure>(Sources {
            config,
            repository,
            guard,
        })
    });
    let quick = tokio::select! {
        read = &mut reading => Some(read),
        () = sleep(PATIENCE) => None,
        signal = signals.next_end() => {
            tracing::info!(signal, "ended before models were read");
            return Ok(StartupOutcome::Ended { is_clean: true });
        }
    };
    if let Some(read) = quick {
        let read: Result<Sources, Failure> = read.unwrap_or_else(|lost| resume_unwind(lost.into_panic()));
        return read.map(Box::new).map(StartupOutcome::Read);
    }
    tracing::info!("reading repositories and identities; requests about health are answered meanwhile");
    let opening = Opening::start(bound, tls, http, grpc, &limits, work)?;
    tokio::select! {
        read = reading => match read.unwrap_or_else(|lost| resume_unwind(lost.into_panic())) {
            Ok(sources) => {
                opening.leave();
                Ok(StartupOutcome::Read(Box::new(sources)))
            }
            Err(failure) => {
                opening.end(Duration::ZERO).await;
                Err(failure)
            }
        },
        signal = signals.next_end() => {
            notify::tell("STOPPING=1");
            tracing::info!(signal, "draining");
            let is_clean = tokio::select! {
                is_clean = opening.end(drain_timeout) => is_clean,
                signal = signals.next_end() => {
                    tracing::warn!(signal, "ending at once");
                    std::process::exit(INTERRUPTED);
                }
            };
            Ok(StartupOutcome::Ended { is_clean })
        }
    }
}

/// The transports of a starting server.
struct Opening {
    shutdown: Shutdown,
    transports: Vec<JoinHandle<usize>>,
    calls: GrpcService,
}

impl Opening {
    /// Serves on the sockets `bound`, which stay open for the complete server.
    fn start(
        bound: &[BoundSocket],
        tls: Option<&Tls>,
        http: HttpConfig,
        grpc: GrpcConfig,
        limits: &ConnectionLimits,
        work: &Handle,
    ) -> Result<Self, Failure> {
        let (shutdown, mut transports) = (Shutdown::new(), Vec::new());
        let service: Arc<dyn InferenceService> = Arc::new(StartingService);
        let calls = oip_grpc::service(service.clone(), grpc);
        let rest = HealthOnly::new(oip_http::service(service, http), HTTP);
        for bound in bound {
            let (mut limits, shutdown, tls) = (limits.clone(), shutdown.clone(), tls.cloned());
            if bound.is_admin {
                limits.connections = ConnectionCap::new(ADMIN_CONNECTIONS);
            }
            let of_work = (bound.speaks == AddressProtocol::Grpc).then(|| work.enter());
            let listener = bound.listener.share().map_err(|error| {
                Failure::run(format!("cannot listen on {} once more: {error}", bound.address))
            })?;
            drop(of_work);
            let (rest, calls) = (rest.clone(), HealthOnly::new(calls.clone(), GRPC));
            transports.push(match bound.speaks {
                AddressProtocol::Http => {
                    let make = move |_: &Peer| rest.clone();
                    tokio::spawn(serve_each(listener, Protocol::Http1, tls, make, limits, shutdown))
                }
                AddressProtocol::Grpc => {
                    let make = move |_: &Peer| calls.clone();
                    work.spawn(serve_each(listener, Protocol::Http2, tls, make, limits, shutdown))
                }
                AddressProtocol::Both => {
                    let both = OnePort::new(rest, calls);
                    let make = move |_: &Peer| both.clone();
                    tokio::spawn(serve_each(
                        listener,
                        Protocol::Either,
                        tls,
                        make,
                        limits,
                        shutdown,
                    ))
                }
            });
        }
        Ok(Self {
            shutdown,
            transports,
            calls,
        })
    }

    /// Stops serving, so that clients reconnect to the complete server.
    fn leave(self) {
        self.calls.drain_streams();
        self.shutdown.drain();
    }

    /// Waits until all connections are closed, and cuts them after a timeout. Returns true if no connection
    /// had to be cut.
    async fn end(self, drain_timeout: Duration) -> bool {
        self.calls.drain_streams();
        self.shutdown.drain();
        let finishing = async {
            let mut cut = 0;
            for transport in self.transports {
                cut += transport.await.unwrap_or(1);
            }
            cut
        };
        let mut finishing = std::pin::pin!(finishing);
        let cut = match timeout(drain_timeout, &mut finishing).await {
            Ok(cut) => cut,
            Err(_) => {
                self.shutdown.cut();
                finishing.await
            }
        };
        cut == 0
    }
}

const REASON: &str = "the server is starting: its repositories and identities are being read";

/// The service of a starting server, which has no models.
struct StartingService;

impl InferenceService for StartingService {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata::new("tensorferry", env!("CARGO_PKG_VERSION"))
    }

    fn readiness(&self) -> Readiness {
        Readiness::NotReady(REASON.to_owned())
    }

    fn model_metadata(&self, _: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        Err(starting())
    }

    fn infer(
        &self,
        _: InferRequest,
        _: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        Box::pin(async { Err(starting()) })
    }
}

fn starting() -> ServiceError {
    ServiceError::new(ErrorCode::Unavailable, REASON).retry_after(Duration::from_secs(1))
}

/// A layer that passes on health checks and rejects all other requests, because access rights are not known
/// yet.
struct HealthOnly<S, B> {
    service: S,
    transport: Transport<B>,
}

impl<S, B> HealthOnly<S, B> {
    fn new(service: S, transport: Transport<B>) -> Self {
        Self { service, transport }
    }
}

impl<S: Clone, B> Clone for HealthOnly<S, B> {
    fn clone(&self) -> Self {
        Self::new(self.service.clone(), self.transport)
    }
}

impl<S, B, R> Service<Request<R>> for HealthOnly<S, B>
where
    S: Service<Request<R>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<R>) -> Self::Future {
        self.transport.read_route(&mut request);
        if Route::of(&request).api() == Api::Health {
            return Box::pin(self.service.call(request));
        }
        let refused = (self.transport.refuse)(&starting());
        Box::pin(async move { Ok(refused) })
    }
}
