//! In-process servers over in-memory services.

use std::{
    fs,
    path::Path,
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use oip_grpc::GrpcConfig;
use oip_http::HttpConfig;
use oip_listen::{ConnectionLimits, Protocol, Shutdown, Tls, TlsFiles, listen, serve, serve_tls};
use oip_model::{BoxFuture, ResponseStream, Responses, StreamedResponse};
use oip_service::{InferenceService, Readiness, RequestContext, testing::TestService};
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// Servers for both transports; they end with the test process.
pub(crate) struct Server {
    pub(crate) http: String,
    pub(crate) grpc: String,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::of(Arc::new(TestService::default()))
    }

    /// Starts TLS servers with a CA whose certificate is in `ca.pem` of the directory. With
    /// `wants_certificates` they require client certificates of that CA, such as `robot.pem` with
    /// `robot-key.pem`.
    pub(crate) fn encrypted(
        folder: &Path,
        service: Arc<dyn InferenceService>,
        wants_certificates: bool,
    ) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
        for (name, host) in [("server", "localhost"), ("robot", "robot")] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &authority).unwrap();
            fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
            fs::write(folder.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
        }
        let mut files = TlsFiles::new(folder.join("server.pem"), folder.join("server-key.pem"));
        if wants_certificates {
            files = files.with_client_ca(folder.join("ca.pem"));
        }
        let tls = Tls::new(files).unwrap();
        let Self { http, grpc } = Self::start(service, Some(tls));
        // The URLs have the host name of the certificate.
        Self {
            http: http.replace("http://127.0.0.1", "https://localhost"),
            grpc: grpc.replace("grpc://127.0.0.1", "grpcs://localhost"),
        }
    }

    pub(crate) fn of(service: Arc<dyn InferenceService>) -> Self {
        Self::start(service, None)
    }

    fn start(service: Arc<dyn InferenceService>, tls: Option<Tls>) -> Self {
        let (tell, told) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let sockets = [0, 0].map(|_| listen("127.0.0.1:0".parse().unwrap()).unwrap());
                tell.send(sockets.each_ref().map(|socket| socket.local_addr().unwrap()))
                    .unwrap();
                let [http, grpc] = sockets;
                let router = oip_http::router(service.clone(), HttpConfig::default());
                let (limits, shutdown) = (ConnectionLimits::default(), Shutdown::new());
                let service = oip_grpc::service(service, GrpcConfig::default());
                let (http1, http2) = (Protocol::Http1, Protocol::Http2);
                let (more, also) = (limits.clone(), shutdown.clone());
                match tls {
                    None => {
                        tokio::spawn(serve(http, http1, router, more, also));
                        serve(grpc, http2, service, limits, shutdown).await
                    }
                    Some(tls) => {
                        tokio::spawn(serve_tls(http, http1, tls.clone(), router, more, also));
                        serve_tls(grpc, http2, tls, service, limits, shutdown).await
                    }
                }
            })
        });
        let [http, grpc] = told.recv().unwrap();
        Self {
            http: format!("http://{http}"),
            grpc: format!("grpc://{grpc}"),
        }
    }

    pub(crate) fn urls(&self) -> [&str; 2] {
        [&self.http, &self.grpc]
    }
}

/// An in-memory service with configurable failures.
pub(crate) struct FlakyService {
    inner: TestService,
    count: AtomicUsize,
    mood: fn(usize) -> Reaction,
}

impl FlakyService {
    /// Creates the service. `mood` receives the number of each request, counted from 1.
    pub(crate) fn new(mood: fn(usize) -> Reaction) -> Self {
        Self {
            inner: TestService::default(),
            count: AtomicUsize::new(0),
            mood,
        }
    }
}

pub(crate) enum Reaction {
    Good,
    Fails,
    Sleeps(Duration),
}

impl InferenceService for FlakyService {
    fn server_metadata(&self) -> ServerMetadata {
        self.inner.server_metadata()
    }

    fn readiness(&self) -> Readiness {
        self.inner.readiness()
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        self.inner.model_metadata(model)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        match (self.mood)(self.count.fetch_add(1, Ordering::SeqCst) + 1) {
            Reaction::Fails => {
                let error = ServiceError::new(oip_types::ErrorCode::Unavailable, "not now");
                Box::pin(async { Err(error) })
            }
            // Blocks the only worker thread of the runtime, so that all requests stall.
            Reaction::Sleeps(time) => {
                thread::sleep(time);
                self.inner.infer(request, cx)
            }
            Reaction::Good => self.inner.infer(request, cx),
        }
    }
}

/// A service whose models respond to each request three times.
#[derive(Default)]
pub(crate) struct TripleService(TestService);

impl InferenceService for TripleService {
    fn server_metadata(&self) -> ServerMetadata {
        self.0.server_metadata()
    }

    fn readiness(&self) -> Readiness {
        self.0.readiness()
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        self.0.model_metadata(model)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        self.0.infer(request, cx)
    }

    fn infer_stream(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
        let response = self.0.infer(request, cx);
        Box::pin(async {
            let response = response.await?;
            let mut left = 3;
            Ok(Responses::Several(ResponseStream::new(move |_| {
                let next = (left > 0).then(|| StreamedResponse {
                    response: response.clone(),
                    is_last: left == 1,
                });
                left -= 1;
                Poll::Ready(next.map(Ok))
            })))
        })
    }
}

pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn interrupt(child: &Child) {
    let killed = Command::new("kill")
        .args(["-s", "INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
}
