//! Serves both transports for a service, from the first connection to the last response.

use std::{
    fmt, io,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use oip_grpc::GrpcConfig;
use oip_http::HttpConfig;
use oip_listen::{ConnectionLimits, Protocol, Shutdown, listen};
use oip_resources::ByteBudget;
use oip_service::{ExtendedService, InferenceService};
use tokio::{
    task::{AbortHandle, JoinHandle, spawn_blocking},
    time::{interval, timeout},
};

use crate::lasting_calls::lasting;

/// Creates a server for an engine's models, or for your own service. It needs at least one address: see
/// [`Serve::http`] and [`Serve::grpc`].
pub fn serve<S: InferenceService>(service: S) -> Serve<S> {
    Serve {
        service: Arc::new(service),
        http: None,
        grpc: None,
        http_config: HttpConfig::default(),
        grpc_config: GrpcConfig::default(),
        limits: ConnectionLimits::default(),
        drain_timeout: Duration::from_secs(30),
    }
}

/// The options of a server, created by [`serve`]. Starting the server needs a Tokio runtime with I/O and
/// timers.
#[must_use]
pub struct Serve<S> {
    service: Arc<S>,
    http: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
    http_config: HttpConfig,
    grpc_config: GrpcConfig,
    limits: ConnectionLimits,
    drain_timeout: Duration,
}

impl<S: InferenceService> Serve<S> {
    /// Serves HTTP/1 at this address; port 0 selects a free port.
    pub fn http(mut self, address: SocketAddr) -> Self {
        self.http = Some(address);
        self
    }

    /// Serves gRPC (HTTP/2) at this address; port 0 selects a free port.
    pub fn grpc(mut self, address: SocketAddr) -> Self {
        self.grpc = Some(address);
        self
    }

    /// Sets the configuration of HTTP.
    pub fn http_config(mut self, config: HttpConfig) -> Self {
        self.http_config = config;
        self
    }

    /// Sets the configuration of gRPC. The memory budget and the thread pool in `config` are ignored: gRPC
    /// shares those of HTTP.
    pub fn grpc_config(mut self, config: GrpcConfig) -> Self {
        self.grpc_config = config;
        self
    }

    /// Sets the limits for connections.
    pub fn limits(mut self, limits: ConnectionLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how long running requests may take after the drain begins (default 30 s).
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Starts serving in the background.
    ///
    /// # Errors
    /// When listening fails; [`io::ErrorKind::InvalidInput`] without an address.
    pub async fn start(self) -> io::Result<Running<S>> {
        let Self {
            service: served,
            http,
            grpc,
            http_config,
            grpc_config,
            limits,
            drain_timeout,
        } = self;
        if http.is_none() && grpc.is_none() {
            let message = "the server has no address: give it one by `http` or `grpc`";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        // Listens on all addresses before serving any, so that the server starts completely or not at all.
        let http = http.map(listen).transpose()?;
        let grpc = grpc.map(listen).transpose()?;
        let address = |listener: &Option<tokio::net::TcpListener>| {
            listener
                .as_ref()
                .map(tokio::net::TcpListener::local_addr)
                .transpose()
        };
        let (http_address, grpc_address) = (address(&http)?, address(&grpc)?);

        let service: Arc<dyn InferenceService> = Arc::new(ExtendedService::new(served.clone()));
        let (shutdown, budget) = (Shutdown::new(), http_config.budget.clone());
        let grpc_config = grpc_config.with(|config| {
            config.budget = budget.clone();
            config.cpu = http_config.cpu.clone();
        });
        let mut transports = Vec::new();
        let mut beside = Vec::new();
        if let Some(listener) = http {
            let rest = oip_http::service(service.clone(), http_config);
            let serving =
                oip_listen::serve(listener, Protocol::Http1, rest, limits.clone(), shutdown.clone());
            transports.push(tokio::spawn(serving));
        }
        if let Some(listener) = grpc {
            let (serving, draining) = serve_grpc(listener, service, grpc_config, limits, &shutdown);
            transports.push(serving);
            beside.push(draining);
        }
        beside.push(tokio::spawn(trim(budget)).abort_handle());
        Ok(Running {
            service: served,
            http: http_address,
            grpc: grpc_address,
            shutdown,
            transports,
            beside,
            drain_timeout,
        })
    }

    /// Serves until the future `end` completes, such as `tokio::signal::ctrl_c()`, and then drains the
    /// server. Ignores the output of `end`. Returns the result of [`Running::drain`].
    ///
    /// # Errors
    /// See [`Serve::start`].
    pub async fn until(self, end: impl Future) -> io::Result<bool> {
        let running = self.start().await?;
        drop(end.await);
        Ok(running.drain().await)
    }
}

/// Starts serving gRPC. Also returns the task that ends streams when the drain begins.
fn serve_grpc(
    listener: tokio::net::TcpListener,
    service: Arc<dyn InferenceService>,
    config: GrpcConfig,
    limits: ConnectionLimits,
    shutdown: &Shutdown,
) -> (JoinHandle<usize>, AbortHandle) {
    let calls = oip_grpc::service(service, config);
    let draining = {
        let (calls, shutdown) = (calls.clone(), shutdown.clone());
        async move {
            shutdown.draining().await;
            calls.drain_streams();
        }
    };
    let limits = limits.with(|limits| {
        limits.conversations = &[oip_grpc::MODEL_STREAM_INFER];
        limits.lasting = Some(lasting());
    });
    let serving = oip_listen::serve(listener, Protocol::Http2, calls, limits, shutdown.clone());
    (tokio::spawn(serving), tokio::spawn(draining).abort_handle())
}

/// Returns unused memory of finished requests to the system every 5 seconds.
async fn trim(budget: ByteBudget) {
    let mut ticks = interval(Duration::from_secs(5));
    loop {
        ticks.tick().await;
        let budget = budget.clone();
        if spawn_blocking(move || budget.trim()).await.is_err() {
            return;
        }
    }
}

/// A running server. `Display` writes the URLs for clients, `http://127.0.0.1:8080 grpc://127.0.0.1:9000`.
/// Dropping this value cuts all connections.
pub struct Running<S: InferenceService> {
    service: Arc<S>,
    http: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
    shutdown: Shutdown,
    transports: Vec<JoinHandle<usize>>,
    beside: Vec<AbortHandle>,
    drain_timeout: Duration,
}

impl<S: InferenceService> Running<S> {
    /// Returns the HTTP address, with the port that is actually used.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Returns the gRPC address, with the port that is actually used.
    #[must_use]
    pub fn grpc(&self) -> Option<SocketAddr> {
        self.grpc
    }

    /// Returns the service, such as the engine that runs the models.
    #[must_use]
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Drains: accepts no new connections, reports the server as not ready, finishes running requests, and
    /// stops the service with its models' threads. At the timeout, the remaining connections are cut.
    /// Returns true if no connection was cut and the service stopped in time.
    pub async fn drain(mut self) -> bool {
        let start = Instant::now();
        let (patience, service, shutdown) = (self.drain_timeout, self.service.clone(), self.shutdown.clone());
        service.start_draining();
        shutdown.drain();
        let transports = std::mem::take(&mut self.transports);
        let finishing = async {
            let mut cut = 0;
            for transport in transports {
                cut += transport.await.unwrap_or(1);
            }
            cut
        };
        let mut finishing = pin!(finishing);
        let cut = match timeout(patience, &mut finishing).await {
            Ok(cut) => cut,
            Err(_) => {
                shutdown.cut();
                finishing.await
            }
        };
        // If the deadline overflows `Instant`, waits for at most a year.
        let end = start
            .checked_add(patience)
            .unwrap_or_else(|| start + Duration::from_secs(365 * 24 * 3600));
        let stopping = spawn_blocking(move || service.stop(end));
        stopping.await.unwrap_or(false) && cut == 0
    }
}

impl<S: InferenceService> fmt::Display for Running<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let http = self.http.map(|address| format!("http://{address}"));
        let grpc = self.grpc.map(|address| format!("grpc://{address}"));
        let urls: Vec<String> = http.into_iter().chain(grpc).collect();
        f.write_str(&urls.join(" "))
    }
}

impl<S: InferenceService> Drop for Running<S> {
    fn drop(&mut self) {
        self.shutdown.cut();
        self.beside.iter().for_each(AbortHandle::abort);
    }
}
