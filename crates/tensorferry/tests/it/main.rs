//! Tests of servers for models that are defined in the program, through the crate's public functions.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tensorferry::{
    BoxFuture, Call, DataType, Engine, ErrorCode, InferOutput, InferRequest, InferResponse, InferenceService,
    Model, ModelMetadata, ModelRef, Outcome, Outputs, RequestContext, ServerMetadata, ServiceError, Shape,
    Tensor, TensorMetadata, serve,
};

/// A model that doubles `x`, with a delay if configured, and counts its runs.
struct Double {
    metadata: ModelMetadata,
    time: Duration,
    runs: Arc<AtomicUsize>,
}

impl Double {
    fn new(name: &str, time: Duration) -> Self {
        let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
        Self {
            metadata: ModelMetadata::new(name, "test", tensor("x"), tensor("y")),
            time,
            runs: Arc::default(),
        }
    }
}

impl Model for Double {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.time);
        let x = call.request.take::<f32>("x")?;
        assert!(x.len() != 13, "thirteen");
        Ok(Outcome::output("y", x.map(|x| 2.0 * x)))
    }
}

/// A model that panics when asked for its metadata.
struct Nothing;

impl Model for Nothing {
    fn metadata(&self) -> &ModelMetadata {
        panic!("there is none")
    }

    fn run(&self, _: Call<'_>) -> Result<Outcome, ServiceError> {
        Ok(Outputs::new(vec![]).into())
    }
}

fn request(model: &str, values: Vec<f32>) -> InferRequest {
    let model = oip_types::ModelRef::new(model, None).unwrap();
    let x = Tensor::from_vec(Shape::vector(values.len() as u64), values).unwrap();
    InferRequest::new(model).with_input("x", x)
}

fn anywhere() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_transports_answer_and_a_panic_is_one_requests_error() {
    let engine = Engine::builder()
        .model(Double::new("double", Duration::ZERO))
        .build()
        .unwrap();
    let server = serve(engine)
        .http(anywhere())
        .grpc(anywhere())
        .start()
        .await
        .unwrap();
    for url in [
        format!("http://{}", server.http().unwrap()),
        format!("grpc://{}", server.grpc().unwrap()),
    ] {
        let client = oip_client::builder(url).build().unwrap();
        assert!(client.server_ready().await.unwrap());
        let response = client.infer(&request("double", vec![1.5, -2.0])).await.unwrap();
        let y = response.output("y").unwrap().as_fixed().unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [3.0, -4.0]);
        let error = client.infer(&request("double", vec![0.0; 13])).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::Internal));
        let error = client.infer(&request("zz", vec![0.0])).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::NotFound));
    }
    assert!(server.drain().await);
}

/// A minimal service that returns `x`, and counts the steps of its shutdown.
struct Echo(Arc<ModelMetadata>, Arc<AtomicUsize>);

impl InferenceService for Echo {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata::new("echo", "1.0")
    }

    fn model_metadata(&self, _: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        Ok(self.0.clone())
    }

    fn infer(
        &self,
        mut request: InferRequest,
        _: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        Box::pin(async move {
            let y = InferOutput::new("y", request.take_input("x")?);
            Ok(InferResponse::new("echo", vec![y]))
        })
    }

    fn start_draining(&self) {
        assert_eq!(self.1.fetch_add(1, Ordering::SeqCst), 0);
    }

    fn stop(&self, _: std::time::Instant) -> bool {
        assert_eq!(self.1.fetch_add(1, Ordering::SeqCst), 1);
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_few_lines_is_a_right_one() {
    let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
    let metadata = Arc::new(ModelMetadata::new("echo", "test", tensor("x"), tensor("y")));
    let steps = Arc::new(AtomicUsize::new(0));
    let server = serve(Echo(metadata, steps.clone()));
    let server = server.http(anywhere()).grpc(anywhere()).start().await.unwrap();
    for url in [
        format!("http://{}", server.http().unwrap()),
        format!("grpc://{}", server.grpc().unwrap()),
    ] {
        let client = oip_client::builder(url).build().unwrap();
        assert!(client.server_ready().await.unwrap());
        let mut asked = request("echo", vec![1.5, -2.0]);
        asked.id = Some("seven".to_owned());
        let response = client.infer(&asked).await.unwrap();
        assert_eq!(response.get::<f32>("y").unwrap()[..], [1.5, -2.0]);
        assert_eq!(response.id.as_deref(), Some("seven"));
        for wrong in [
            asked.clone().with_input("z", Tensor::scalar(1u8)),
            asked.with_output("z"),
        ] {
            let error = client.infer(&wrong).await.unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::InvalidArgument), "{error}");
        }
    }
    assert!(server.drain().await);
    assert_eq!(steps.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_answers_what_runs_and_takes_nothing_new() {
    let model = Double::new("double", Duration::from_millis(300));
    let runs = model.runs.clone();
    let engine = Engine::builder().model(model).build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = serve(engine).http(anywhere()).start().await.unwrap();
    let url = format!("http://{}", server.http().unwrap());
    let running = {
        let url = url.clone();
        tokio::spawn(async move {
            let client = oip_client::builder(url).build().unwrap();
            client.infer(&request("double", vec![1.0])).await
        })
    };
    while runs.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let draining = tokio::spawn(async move {
        stopped.await.unwrap();
        server.drain().await
    });
    stop.send(()).unwrap();
    assert!(draining.await.unwrap());
    assert!(running.await.unwrap().is_ok());
    let client = oip_client::builder(url)
        .retry(oip_client::RetryPolicy::never())
        .build()
        .unwrap();
    assert!(client.infer(&request("double", vec![1.0])).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_server_is_shown_as_its_urls() {
    let engine = || Engine::builder().build().unwrap();
    let both = serve(engine())
        .http(anywhere())
        .grpc(anywhere())
        .start()
        .await
        .unwrap();
    let (http, grpc) = both.http().zip(both.grpc()).unwrap();
    assert_eq!(both.to_string(), format!("http://{http} grpc://{grpc}"));
    for url in both.to_string().split(' ') {
        assert!(
            oip_client::builder(url)
                .build()
                .unwrap()
                .server_live()
                .await
                .unwrap()
        );
    }
    let grpc = serve(engine()).grpc(anywhere()).start().await.unwrap();
    assert_eq!(grpc.to_string(), format!("grpc://{}", grpc.grpc().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_with_a_future_of_any_output() {
    let engine = Engine::builder().build().unwrap();
    let end = async { std::io::Result::Ok(7) };
    assert!(serve(engine).http(anywhere()).until(end).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_served_is_an_error() {
    let double = || Double::new("double", Duration::ZERO);
    let said = |result: Result<Engine, tensorferry::BuildError>| result.err().unwrap().to_string();
    assert_eq!(
        said(Engine::builder().model(double()).model(double()).build()),
        "there are two models with the name 'double'"
    );
    let error = said(Engine::builder().model(Nothing).build());
    assert!(error.contains("panicked"), "{error}");
    let error = said(
        Engine::builder()
            .model(Double::new("a/b", Duration::ZERO))
            .build(),
    );
    assert!(error.contains("model name"), "{error}");
    // An engine may have no models, but a server needs an address.
    let engine = Engine::builder().build().unwrap();
    let error = serve(engine).start().await.err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}
