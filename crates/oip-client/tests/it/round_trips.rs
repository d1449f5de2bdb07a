//! Round trips to this workspace's servers.

use oip_client::{Compression, InferenceClient, TensorForm};
use oip_service::testing::datatypes;
use oip_types::{
    DataType, ErrorCode, InferRequest, LoadOptions, LogSetting, LogSettings, ModelRef, ModelState,
    ParameterValue, SharedMemoryRegion, UnloadOptions,
};
use tensor_core::{Shape, Tensor};

use crate::support::{TestServers, identity_request, some_values, stream_of};

fn model(name: &str) -> ModelRef<'_> {
    ModelRef::new(name, None).unwrap()
}

#[tokio::test]
async fn every_datatype_survives_in_every_form() {
    let served = TestServers::new();
    for form in [TensorForm::Raw, TensorForm::Typed] {
        for compression in [None, Some(Compression::Gzip), Some(Compression::Deflate)] {
            let clients = served.clients(|builder| {
                let builder = builder.tensor_form(form).accept_compressed(true);
                match compression {
                    Some(compression) => builder.compress_requests(compression),
                    None => builder,
                }
            });
            for client in &clients {
                for datatype in datatypes() {
                    // Requests of this size are encoded as JSON on another thread.
                    let large = if compression.is_none() { 20_000 } else { 300 };
                    for count in [0, 1, large] {
                        let request = identity_request(some_values(datatype, count));
                        let response = client.infer(&request).await.unwrap();
                        let what = format!("{client:?}: {datatype} x {count}, {form:?}, {compression:?}");
                        assert_eq!(response.output("y"), request.input("x"), "{what}");
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn names_versions_ids_and_parameters_go_along() {
    let served = TestServers::new();
    for client in served.clients(|builder| builder) {
        let a = Tensor::from_vec(Shape::new(&[2, 2]).unwrap(), vec![1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let b = Tensor::from_vec(Shape::vector(1), vec![7i64]).unwrap();
        let request = InferRequest::new(ModelRef::new("matrix", Some("1")).unwrap())
            .with_input("a", a)
            .with_input("b", b);
        let mut request = request.with_output("sum");
        request.id = Some("42".into());
        request
            .parameters
            .insert("mine".into(), ParameterValue::Double(0.5));
        let response = client.infer(&request).await.unwrap();
        assert_eq!(
            (&*response.model_name, response.model_version.as_deref()),
            ("matrix", Some("1"))
        );
        assert_eq!(response.id.as_deref(), Some("42"));
        assert_eq!(response.outputs.len(), 1);
        let sum = response.output("sum").unwrap().as_fixed().unwrap();
        assert_eq!(sum.to_vec::<f32>().unwrap(), [3.0, 7.0]);

        let error = client
            .model_metadata(ModelRef::new("matrix", Some("9")).unwrap())
            .await
            .unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::NotFound));
    }
}

#[tokio::test]
async fn health_and_metadata() {
    let served = TestServers::new();
    let clients = served.clients(|builder| builder);
    for client in &clients {
        assert!(client.server_live().await.unwrap());
        assert!(client.server_ready().await.unwrap());
        let server = client.server_metadata().await.unwrap();
        assert_eq!((&*server.name, &*server.version), ("test", "1.2.3"));
        assert!(client.model_ready(model("matrix")).await.unwrap());
        assert!(!client.model_ready(model("loading")).await.unwrap());
        let unknown = client.model_ready(model("zz")).await.unwrap_err();
        assert_eq!(unknown.code(), Some(ErrorCode::NotFound));
        let metadata = client.model_metadata(model("matrix")).await.unwrap();
        assert_eq!(
            (&*metadata.platform, metadata.versions),
            ("test_test", vec!["1".to_owned(), "2".to_owned()])
        );
        assert_eq!(metadata.inputs[0].to_string(), "'a' (FP32[-1, 2])");
        assert_eq!(metadata.outputs[1].to_string(), "'b' (INT64[1])");
    }
    served
        .service
        .is_not_ready
        .store(true, std::sync::atomic::Ordering::SeqCst);
    for client in &clients {
        assert!(!client.server_ready().await.unwrap());
    }
}

/// The client reports every error of the servers identically over both transports.
#[tokio::test]
async fn refusals_mean_the_same_over_both_transports() {
    let served = TestServers::new();
    let never = || oip_client::RetryPolicy::never();
    let clients = served.clients(|builder| builder.retry(never()).max_answer_bytes(1 << 20));
    let x = |name: &str, datatype| InferRequest::new(model(name)).with_input("x", some_values(datatype, 2));
    for (request, code) in [
        (x("zz", DataType::FP32), ErrorCode::NotFound),
        (x("identity_fp32", DataType::FP64), ErrorCode::InvalidArgument),
        (x("busy", DataType::FP32), ErrorCode::Overloaded),
        (x("loading", DataType::FP32), ErrorCode::Unavailable),
        (x("failing", DataType::FP32), ErrorCode::Internal),
    ] {
        let mut messages = Vec::new();
        for client in &clients {
            let error = client.infer(&request).await.unwrap_err();
            assert_eq!(error.code(), Some(code), "{error}");
            messages.push(error.message().to_owned());
        }
        // HTTP messages, which people read, also list the existing models.
        let names = "; there are 'loading', 'matrix', 'never'";
        let over_http = match code {
            ErrorCode::NotFound => format!("{}{names}", messages[1]),
            _ => messages[1].clone(),
        };
        assert_eq!(messages[0], over_http);
    }
    // A request that is too large for the server is not retried.
    let large = identity_request(some_values(DataType::UINT8, 65 << 20));
    for client in &clients {
        let error = client.infer(&large).await.unwrap_err();
        assert!(
            error.code() == Some(ErrorCode::TooLarge) || error.kind() == oip_client::ErrorKind::Broken,
            "{error}"
        );
    }
}

/// A tensor of 16 MiB survives the round trip.
#[tokio::test]
async fn a_large_tensor_comes_whole() {
    let served = TestServers::new();
    let value = some_values(DataType::FP32, 4 << 20);
    let request = identity_request(value.clone());
    for client in served.clients(|builder| builder) {
        assert_eq!(client.infer(&request).await.unwrap().output("y"), Some(&value));
    }
}

#[tokio::test]
async fn values_without_a_json_form_are_refused_before_they_are_sent() {
    let served = TestServers::new();
    let [http, _] = served.clients(|builder| builder.tensor_form(TensorForm::Typed));
    let nan = Tensor::from_vec(Shape::vector(2), vec![1.0, f32::INFINITY]).unwrap();
    let not_text = oip_types::BytesTensor::from_elements(Shape::vector(1), [b"\xff"]).unwrap();
    for value in [nan.into(), not_text.into()] {
        let error = http.infer(&identity_request(value)).await.unwrap_err();
        assert_eq!(error.kind(), oip_client::ErrorKind::Request);
        assert!(error.message().starts_with("input 'x': "), "{error}");
    }
}

#[tokio::test]
async fn many_calls_at_once_share_a_client() {
    let served = TestServers::new();
    for client in served.clients(|builder| builder) {
        let client: std::sync::Arc<dyn InferenceClient> = client.into();
        let calls: Vec<_> = (0..64u64)
            .map(|number| {
                let client = client.clone();
                tokio::spawn(async move {
                    let request = identity_request(some_values(DataType::INT64, number));
                    client.infer(&request).await.unwrap().output("y") == request.input("x")
                })
            })
            .collect();
        for call in calls {
            assert!(call.await.unwrap());
        }
    }
}

/// The calls of every extension return the same results over both transports.
#[tokio::test]
async fn the_extensions() {
    let mut seen = Vec::new();
    for transport in 0..2 {
        // Each transport gets its own server, because the calls change the server's state.
        let served = TestServers::new();
        let client = &served.clients(|builder| builder.retry(oip_client::RetryPolicy::never()))[transport];
        let extensions = client.server_metadata().await.unwrap().extensions;
        assert!(
            extensions.contains(&"model_repository".to_owned()),
            "{extensions:?}"
        );

        let index = client.repository_index(false).await.unwrap();
        let ready = client.repository_index(true).await.unwrap();
        assert!(ready.len() < index.len(), "{ready:?}");
        assert!(
            ready.iter().all(|entry| entry.state == Some(ModelState::Ready)),
            "{ready:?}"
        );
        assert!(
            index
                .iter()
                .any(|entry| entry.name == "never" && entry.state.is_none()),
            "{index:?}"
        );
        let options = LoadOptions::default().with(|options| options.config = Some("{}".into()));
        client.load_model("identity_bool", &options).await.unwrap();
        client
            .unload_model(
                "identity_int8",
                UnloadOptions::default().with(|options| options.unload_dependents = true),
            )
            .await
            .unwrap();
        let changed = client.repository_index(false).await.unwrap();
        let of = |name: &str| changed.iter().find(|entry| entry.name == name).unwrap();
        assert_eq!(
            (of("identity_bool").state, &*of("identity_bool").reason),
            (Some(ModelState::Ready), "{}")
        );
        assert_eq!(&*of("identity_int8").reason, "unloaded with dependents");
        let locked = client
            .load_model("locked", &LoadOptions::default())
            .await
            .unwrap_err();
        assert_eq!(locked.code(), Some(ErrorCode::Unavailable));

        let config = client.model_config(model("matrix")).await.unwrap();
        assert_eq!((config.max_batch_size, &config.input[0].dims[..]), (4, &[2][..]));
        let statistics = client.statistics(None).await.unwrap();
        let one = client
            .statistics(Some(ModelRef::new("matrix", Some("2")).unwrap()))
            .await
            .unwrap();
        assert_eq!(one[..], statistics[1..]);
        assert!(client.statistics(Some(model("zz"))).await.is_err());

        let settings = client.log_settings(&LogSettings::new()).await.unwrap();
        assert_eq!(settings["log_info"], LogSetting::Bool(true));
        let changes = LogSettings::from([("log_verbose_level".to_owned(), LogSetting::Uint32(3))]);
        let settings = client.log_settings(&changes).await.unwrap();
        assert_eq!(settings["log_verbose_level"], LogSetting::Uint32(3));

        served.service.share("/key", vec![0; 64]);
        let region = SharedMemoryRegion {
            name: "r 1".into(),
            key: "/key".into(),
            offset: 8,
            byte_size: 16,
        };
        client.register_shared_memory(&region).await.unwrap();
        assert!(
            client.register_shared_memory(&region).await.is_err(),
            "the name is taken"
        );
        assert_eq!(
            client.shared_memory_status(Some("r 1")).await.unwrap(),
            std::slice::from_ref(&region)
        );
        assert_eq!(client.shared_memory_status(None).await.unwrap(), [region]);
        client.unregister_shared_memory(Some("r 1")).await.unwrap();
        client.unregister_shared_memory(None).await.unwrap();
        assert!(client.shared_memory_status(None).await.unwrap().is_empty());
        seen.push((extensions, index, changed, config, statistics, settings));
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn a_stream_with_a_failure_in_the_middle() {
    let served = TestServers::new();
    let [_, grpc] = served.clients(|builder| builder);
    let mut requests: Vec<InferRequest> = (0..3u64)
        .map(|number| identity_request(some_values(DataType::INT64, number)))
        .collect();
    requests[1] = InferRequest::new(model("zz"));
    let mut answers = grpc.infer_stream(stream_of(requests.clone())).await.unwrap();
    let mut good = 0;
    let mut failed = 0;
    while let Some(answer) = std::future::poll_fn(|cx| answers.as_mut().poll_next(cx)).await {
        match answer {
            Ok(answer) => {
                good += usize::from(
                    requests
                        .iter()
                        .any(|request| request.input("x") == answer.output("y")),
                );
            }
            Err(error) => {
                assert_eq!(error.message(), "model 'zz' does not exist");
                failed += 1;
            }
        }
    }
    assert_eq!((good, failed), (2, 1));
}
