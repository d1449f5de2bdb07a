//! Servers in this process, over services in memory.

use std::{
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
use oip_listen::{Limits, Protocol, Shutdown, listen, serve};
use oip_service::{
    AnswerStream, Answers, BoxFuture, InferenceService, Readiness, RequestContext, StreamedAnswer,
    testing::TestService,
};
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};

/// Both transports; they go with the test's process.
pub(crate) struct Server {
    pub(crate) http: String,
    pub(crate) grpc: String,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::of(Arc::new(TestService::default()))
    }

    pub(crate) fn of(service: Arc<dyn InferenceService>) -> Self {
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
                let (limits, shutdown) = (Limits::default(), Shutdown::new());
                tokio::spawn(serve(
                    http,
                    Protocol::Http1,
                    router,
                    limits.clone(),
                    shutdown.clone(),
                ));
                let service = oip_grpc::service(service, GrpcConfig::default());
                serve(grpc, Protocol::Http2, service, limits, shutdown).await
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

/// A service in memory that is not always at its best.
pub(crate) struct Moody {
    inner: TestService,
    count: AtomicUsize,
    mood: fn(usize) -> Mood,
}

impl Moody {
    /// `mood` is told the number of the request, from 1.
    pub(crate) fn new(mood: fn(usize) -> Mood) -> Self {
        Self {
            inner: TestService::default(),
            count: AtomicUsize::new(0),
            mood,
        }
    }
}

pub(crate) enum Mood {
    Good,
    Fails,
    Sleeps(Duration),
}

impl InferenceService for Moody {
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
            Mood::Fails => {
                let error = ServiceError::new(oip_types::ErrorCode::Unavailable, "not now");
                Box::pin(async { Err(error) })
            }
            // All of the server stands still.
            Mood::Sleeps(time) => {
                thread::sleep(time);
                self.inner.infer(request, cx)
            }
            Mood::Good => self.inner.infer(request, cx),
        }
    }
}

/// A service whose models answer each request three times.
#[derive(Default)]
pub(crate) struct Thrice(TestService);

impl InferenceService for Thrice {
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

    fn answers(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Answers, ServiceError>> {
        let response = self.0.infer(request, cx);
        Box::pin(async {
            let response = response.await?;
            let mut left = 3;
            Ok(Answers::Several(AnswerStream::new(move |_| {
                let next = (left > 0).then(|| StreamedAnswer {
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
