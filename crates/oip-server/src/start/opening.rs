//! The server while it reads its repositories and its identity table, which may take minutes for remote ones.
//! Meanwhile the server is live but not ready, and stops on a signal.

use std::{convert::Infallible, panic::resume_unwind, sync::Arc, time::Duration};

use axum::http::{Request, Response};
use model_repository::Repositories;
use oip_auth::{Guard, Transport};
use oip_listen::RequestBody;
use oip_model::BoxFuture;
use oip_service::{
    InferenceService, Readiness, RequestContext,
    route::{Api, Route},
};
use oip_types::{
    ErrorCode, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError,
};
use tokio::{
    task::{JoinError, spawn_blocking},
    time::sleep,
};
use tower::service_fn;
use tower_service::Service;

use super::{
    context::StartContext,
    gates::{GRPC, HTTP},
    listening::Listening,
    notify,
    one_port::OnePort,
    runtimes::Runtimes,
    signals::Signals,
    transports::{Acceptor, Transports},
};
use crate::{
    failure::Failure,
    model_source,
    options::{AddressProtocol, Config, TransportConfig},
    telemetry::LIFE_CYCLE,
};

/// The sources that the server reads before it can start.
pub(super) struct Sources {
    pub(super) config: Config,
    pub(super) repository: Repositories,
    pub(super) guard: Guard,
}

/// The result of opening the repositories.
pub(super) enum StartupOutcome {
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

/// Opens the repositories and reads the identity table. If this takes long, serves health checks in the
/// meantime, and rejects all other requests because the server is still starting.
pub(super) async fn read(
    config: Config,
    listening: &Listening,
    context: &StartContext<'_>,
    signals: &mut Signals,
) -> Result<StartupOutcome, Failure> {
    let drain_timeout = config.shutdown.drain_timeout;
    let transports = config.transports.clone();
    let mut reading = spawn_blocking(move || Sources::read(config));
    tokio::select! {
        read = &mut reading => return joined(read).map(StartupOutcome::Read),
        () = sleep(PATIENCE) => {}
        signal = signals.next_end() => {
            tracing::info!(target: LIFE_CYCLE, signal, "ended before models were read");
            return Ok(StartupOutcome::Ended { is_clean: true });
        }
    }
    tracing::info!(
        target: LIFE_CYCLE,
        "reading repositories and identities; health requests are answered meanwhile"
    );
    let opening = serve_health(listening, transports, context.runtimes)?;
    tokio::select! {
        read = reading => {
            // Clients reconnect to the complete server.
            opening.drain();
            match joined(read) {
                Ok(sources) => Ok(StartupOutcome::Read(sources)),
                Err(failure) => {
                    opening.finish(Duration::ZERO).await;
                    Err(failure)
                }
            }
        }
        signal = signals.next_end() => {
            notify::tell("STOPPING=1");
            tracing::info!(target: LIFE_CYCLE, signal, "draining");
            opening.drain();
            let ending = opening.finish(drain_timeout);
            let cut = signals.or_exit(ending, context.log, || {}).await;
            Ok(StartupOutcome::Ended { is_clean: cut == 0 })
        }
    }
}

impl Sources {
    fn read(mut config: Config) -> Result<Box<Self>, Failure> {
        let repository = model_source::open(&mut config.models, &config.engine.control)?;
        let guard = config.access.guard(&config.transports.http.cpu)?;
        Ok(Box::new(Self {
            config,
            repository,
            guard,
        }))
    }
}

/// Returns the result of a blocking task, or resumes its panic.
fn joined<T>(result: Result<T, JoinError>) -> T {
    result.unwrap_or_else(|lost| resume_unwind(lost.into_panic()))
}

/// Serves health checks on the sockets, which stay open for the complete server.
fn serve_health(
    listening: &Listening,
    config: TransportConfig,
    runtimes: &Runtimes,
) -> Result<Transports, Failure> {
    let service: Arc<dyn InferenceService> = Arc::new(StartingService);
    let grpc = oip_grpc::service(service.clone(), config.grpc);
    let rest = health_only(oip_http::service(service, config.http), HTTP);
    let mut acceptor = Acceptor::new(runtimes, listening.tls.as_ref(), &config.connections);
    for socket in &listening.sockets {
        let shared = {
            let _context = runtimes.accepting(socket.speaks).enter();
            socket.share()?
        };
        let (rest, calls) = (rest.clone(), health_only(grpc.clone(), GRPC));
        match socket.speaks {
            AddressProtocol::Http => acceptor.serve(shared, move |_| rest.clone()),
            AddressProtocol::Grpc => acceptor.serve(shared, move |_| calls.clone()),
            AddressProtocol::Both => {
                let both = OnePort::new(rest, calls);
                acceptor.serve(shared, move |_| both.clone());
            }
        }
    }
    Ok(acceptor.running(grpc))
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

/// Returns a service that passes on health checks and rejects all other requests, because access rights are
/// not known yet.
fn health_only<S, B>(
    mut service: S,
    transport: Transport<B>,
) -> impl Service<Request<RequestBody>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send,
{
    service_fn(move |mut request| {
        transport.read_route(&mut request);
        let route = Route::of(&request).clone();
        let is_health = route.api() == Api::Health;
        let answer = is_health.then(|| service.call(request));
        async move {
            match answer {
                Some(answer) => answer.await,
                None => Ok((transport.refuse)(&starting(), &route)),
            }
        }
    })
}
