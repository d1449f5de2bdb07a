//! Clients that request large responses and read nothing, or a byte per second.

use std::time::{Duration, Instant};

use attack_kit::{
    Scale,
    grpc::{FramedMessage, Grpc, Method, read_slowly},
    http1::{Http, binary_echo, infer_path},
    models::{ECHO, LARGE},
    protobuf::infer,
    rows::{slow_json, slow_streams, unread_echoes},
    run,
};

use super::{PATIENCE, TestServer};

/// Duration of attacks by slow readers, which hold memory as long as the server allows.
const ATTACK: Duration = Duration::from_secs(8);

#[test]
fn readers_of_large_json_answers_who_read_a_byte_a_second() {
    let attacked = TestServer::start(&[]);
    attacked.survives("slow readers of JSON", ATTACK, slow_json);
}

#[test]
fn streams_of_one_connection_whose_windows_open_by_a_byte_a_second() {
    let attacked = TestServer::start(&[]);
    for method in [Method::Unary, Method::Stream] {
        attacked.survives("slow streams", ATTACK, |target, _, tally| {
            slow_streams(target, tally, method)
        });
    }
}

#[test]
fn binary_answers_that_are_not_read() {
    let attacked = TestServer::start(&[]);
    attacked.survives("unread echoes", ATTACK, unread_echoes);
}

/// The server closes the connection of a client that reads nothing, or so slowly that its response would take
/// a day.
#[test]
fn connections_that_are_not_read_are_closed() {
    let attacked = TestServer::start(&[]);
    let idle = attacked.server.descriptors().unwrap();
    let (headers, body) = binary_echo(&vec![7; Scale::SMALL.request / 4 * 3]);
    run(async {
        let connect = || async { Http::connect_small(attacked.target().http).await.unwrap() };
        let (mut json, mut binary) = (connect().await, connect().await);
        json.post(&infer_path(LARGE), "", br#"{"inputs":[]}"#)
            .await
            .unwrap();
        binary.post(&infer_path(ECHO), &headers, &body).await.unwrap();
        assert_eq!(json.read_head().await.unwrap().0, 200);
        assert_eq!(binary.read_head().await.unwrap().0, 200);
        let reading = async {
            loop {
                json.read_some(256).await.unwrap();
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        let closing = async {
            let start = Instant::now();
            while attacked.server.descriptors().unwrap() > idle {
                assert!(start.elapsed() < PATIENCE, "the connections stay open");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            () = reading => {}
            () = closing => {}
        }
    })
    .unwrap();
    attacked.assert_settles("closed connections");
}

/// The server resets a stream whose flow-control window grows by a byte per second; the connection and its
/// other streams continue.
#[test]
fn streams_that_are_not_read_are_reset() {
    let attacked = TestServer::start(&[]);
    run(async {
        let grpc = Grpc::connect_with_window(attacked.target().grpc, 1)
            .await
            .unwrap();
        let response = grpc
            .send(Method::Unary, &FramedMessage::plain(&infer(LARGE, None)))
            .await
            .unwrap();
        let mut body = response.await.unwrap().into_body();
        let ended = tokio::time::timeout(PATIENCE, read_slowly(&mut body)).await;
        assert!(ended.is_ok(), "the stream stays open");
    })
    .unwrap();
    attacked.assert_settles("reset streams");
}
