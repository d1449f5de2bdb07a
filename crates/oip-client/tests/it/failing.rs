//! Tests calls to servers that are down, slow or silent.

use std::time::{Duration, Instant};

use oip_client::{ErrorKind, GrpcClient, HttpClient, InferenceClient, RetryOn, RetryPolicy};
use oip_types::ErrorCode;

use crate::support::{
    ScriptedServer, Step, TestServers, answer, data, grpc_answer, grpc_client, scripted_grpc, to_model,
    trailers,
};

/// Waits until the server has noticed that the client gave up.
async fn until_given_up(served: &TestServers) {
    let start = Instant::now();
    while served.service.waiting() > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the server still works"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn time_is_over_here_and_at_the_server() {
    let served = TestServers::new();
    for sends in [true, false] {
        let clients = served.clients(|builder| {
            builder
                .request_timeout(Duration::from_millis(100))
                .send_timeout(sends)
        });
        for client in clients {
            let start = Instant::now();
            let error = client.infer(&to_model("slow")).await.unwrap_err();
            assert!(error.is_timeout(), "{error}");
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
            if !sends {
                assert_eq!(error.kind(), ErrorKind::Timeout);
                assert!(error.message().contains("no response within 100ms"), "{error}");
            }
            until_given_up(&served).await;
        }
    }
}

/// The client sends its timeout, so that the server enforces the timeout even if the client does not.
#[tokio::test]
async fn the_server_is_told_how_long() {
    let served = TestServers::new();
    let request = |client: Box<dyn InferenceClient>| async move {
        let mut request = to_model("slow");
        request
            .parameters
            .insert("timeout".into(), oip_types::ParameterValue::Int64(50_000));
        client.infer(&request).await.unwrap_err()
    };
    for client in served.clients(oip_client::Builder::no_request_timeout) {
        let error = request(client).await;
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Refused, Some(ErrorCode::DeadlineExceeded))
        );
        assert!(error.is_timeout());
    }
}

#[tokio::test]
async fn a_dropped_call_is_cancelled() {
    let served = TestServers::new();
    for client in served.clients(|builder| builder) {
        let request = to_model("slow");
        let mut call = client.infer(&request);
        tokio::select! {
            _ = &mut call => panic!("it answers"),
            () = async { while served.service.waiting() == 0 { tokio::time::sleep(Duration::from_millis(5)).await; } } => {}
        }
        drop(call);
        until_given_up(&served).await;
    }
}

#[tokio::test]
async fn nobody_listens() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    for url in [
        format!("http://127.0.0.1:{port}"),
        format!("grpc://127.0.0.1:{port}"),
    ] {
        let client = oip_client::builder(&url)
            .retry(RetryPolicy::never())
            .build()
            .unwrap();
        let error = client.server_live().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect);
        assert_eq!(
            error.to_string(),
            format!("{url}: connection refused: nothing listens there")
        );
    }
    let client = oip_client::builder("http://no-such-host.invalid")
        .build()
        .unwrap();
    let error = client.server_live().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
}

/// Connecting to a listener with a full backlog times out, as with an unreachable host.
#[tokio::test]
async fn connecting_takes_too_long() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut crowd = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(
        Duration::from_millis(300),
        tokio::net::TcpStream::connect(address),
    )
    .await
    {
        crowd.push(stream);
    }
    for url in [format!("http://{address}"), format!("grpc://{address}")] {
        let client = oip_client::builder(url)
            .connect_timeout(Duration::from_millis(100))
            .retry(RetryPolicy::never())
            .build()
            .unwrap();
        let error = client.infer(&to_model("m")).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Connect, "connecting timed out")
        );
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_told_and_not_asked_for_again() {
    let whole = answer(
        "200 OK",
        &[("Content-Type", "application/json")],
        r#"{"model_name":"m","outputs":[]}"#,
    );
    for (cut, message) in [
        (0, "the connection broke ("),
        (10, "the connection broke ("),
        (whole.len() - 40, "the connection broke ("),
        (
            whole.len() - 10,
            "the response is incomplete: it ended early after 21 of 31 bytes",
        ),
    ] {
        let server = ScriptedServer::new(vec![Step::Cut(whole[..cut].to_vec())]);
        let error = server.client().infer(&to_model("m")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{cut}: {error}");
        assert!(error.message().starts_with(message), "{cut}: {error}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_grpc_answer_that_breaks_off_is_told() {
    let message = || data(&oip_grpc::proto::ModelInferResponse::default());
    let broken = || Err(std::io::Error::other("cut"));
    for cut in 0..4 {
        let url = scripted_grpc(move |_, _, _| {
            grpc_answer(match cut {
                0 => vec![],
                1 => vec![message()],
                2 => vec![broken()],
                _ => vec![message(), broken()],
            })
        });
        let error = grpc_client(&url).infer(&to_model("m")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{cut}: {error}");
    }
    let url = scripted_grpc(|_, _, _| grpc_answer(vec![trailers(&[("grpc-status", "0")])]));
    let error = grpc_client(&url).infer(&to_model("m")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
}

/// The server closes an idle connection just before the client reuses it; the request, which was not sent
/// yet, is sent on a new connection.
#[tokio::test]
async fn kept_connections_that_are_gone_do_no_harm() {
    let body = r#"{"name":"s","version":"1","extensions":[]}"#;
    let server = ScriptedServer::new(vec![Step::Cut(answer("200 OK", &[], body))]);
    let client = server.client();
    for _ in 0..20 {
        assert_eq!(client.server_metadata().await.unwrap().name, "s");
    }
    assert_eq!(server.requests().len(), 20);
}

#[tokio::test]
async fn each_transport_recognises_the_other() {
    let served = TestServers::new();
    let swap = |url: &str, from: &str, to: &str| url.replace(from, to);
    let http = HttpClient::builder(swap(&served.grpc, "grpc", "http"))
        .build()
        .unwrap();
    let error = http.server_live().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(
        error
            .message()
            .ends_with("if this is a gRPC port, use grpc:// instead of http://"),
        "{error}"
    );

    // This workspace's server closes connections that are not HTTP/1; other servers send a response.
    let answering = ScriptedServer::answering("400 Bad Request", &[], "");
    for (url, kind) in [
        (&served.http, ErrorKind::Broken),
        (&answering.url, ErrorKind::Protocol),
    ] {
        let grpc = GrpcClient::builder(swap(url, "http", "grpc")).build().unwrap();
        let error = grpc.infer(&to_model("m")).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        let hint = "if this is an HTTP port, use http:// instead of grpc://";
        assert!(error.message().ends_with(hint), "{error}");
    }
}

/// The timeout of a call covers all attempts.
#[tokio::test]
async fn time_is_for_all_attempts_together() {
    let server = ScriptedServer::new(vec![Step::Cut(vec![]), Step::Hang]);
    let client = HttpClient::builder(&server.url)
        .request_timeout(Duration::from_millis(300))
        .retry(RetryPolicy::default().with(|policy| {
            policy.on = RetryOn::Broken;
            policy.first_delay = Duration::from_millis(10);
        }))
        .build()
        .unwrap();
    let start = Instant::now();
    let error = client.infer(&to_model("m")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(
        (250..2000).contains(&start.elapsed().as_millis()),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(server.requests().len(), 2);
}

/// A model's name may also be a segment of the protocol's paths.
#[tokio::test]
async fn models_may_have_any_name() {
    let served = TestServers::new();
    for client in served.clients(|builder| builder) {
        for name in ["ready", "live", "infer"] {
            let model = oip_types::ModelRef::new(name, None).unwrap();
            let error = client.model_metadata(model).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{name}: {error}");
        }
    }
}
