//! Requests that exceed a limit by themselves, and requests that do not fit into the memory budget while
//! others hold it, over both transports.

use attack_kit::{
    Scale,
    grpc::{FramedMessage, Grpc, Method, gzip},
    http1::{Http, binary_echo, head, infer_path},
    models::ECHO,
    protobuf::infer,
    run,
};

use super::TestServer;

/// Requests above the limit are rejected permanently: as sent, decompressed, and over gRPC.
#[test]
fn what_can_never_fit() {
    let attacked = TestServer::start(&[]);
    let target = attacked.target();
    run(async {
        let spaces = gzip(&vec![b' '; Scale::SMALL.request + 1]);
        let announced = head(&infer_path(ECHO), "", Scale::SMALL.request + 1);
        let grows = [
            head(&infer_path(ECHO), "Content-Encoding: gzip\r\n", spaces.len()),
            spaces,
        ];
        for request in [announced, grows.concat()] {
            let mut http = Http::connect(target.http).await.unwrap();
            http.send(&request).await.unwrap();
            let answer = http.receive().await.unwrap();
            assert_eq!(answer.status, 413, "{}", answer.text());
            assert_eq!(answer.header("retry-after"), None, "{}", answer.head);
        }
        let grpc = Grpc::connect(target.grpc).await.unwrap();
        let message = infer(ECHO, Some(("x", &vec![0; Scale::SMALL.request])));
        for framed in [FramedMessage::plain(&message), FramedMessage::gzip(&message)] {
            let answer = grpc.call(Method::Unary, &framed).await.unwrap();
            assert_eq!(answer.code, 8, "{}", answer.message);
            assert!(!may_come_again(&answer), "{:?}", answer.trailers);
        }
    })
    .unwrap();
}

/// A request that does not fit into the budget while others hold it gets an error that asks the client to
/// retry, and succeeds once they end.
#[test]
fn what_does_not_fit_now() {
    let attacked = TestServer::start(&[]);
    let target = attacked.target();
    run(async {
        let data = vec![7; Scale::SMALL.request / 4 * 3];
        let (headers, body) = binary_echo(&data);
        let mut holding = Vec::new();
        // Clients with unread responses hold the budget until it is used up.
        let refusal = loop {
            assert!(
                holding.len() < 40,
                "{} answers of {} bytes that are not read found room",
                holding.len(),
                data.len()
            );
            let mut http = Http::connect_small(target.http).await.unwrap();
            http.post(&infer_path(ECHO), &headers, &body).await.unwrap();
            let (status, head) = http.read_head().await.unwrap();
            match status {
                200 => holding.push(http),
                _ => break (status, head.to_lowercase()),
            }
        };
        assert_eq!(refusal.0, 429);
        assert!(refusal.1.contains("retry-after: "), "{}", refusal.1);
        let grpc = Grpc::connect(target.grpc).await.unwrap();
        let message = FramedMessage::plain(&infer(ECHO, Some(("x", &data))));
        let answer = grpc.call(Method::Unary, &message).await.unwrap();
        assert_eq!(answer.code, 8, "{}", answer.message);
        assert!(may_come_again(&answer), "{:?}", answer.trailers);

        drop(holding);
        attacked.assert_settles("answers that were not read");
        let answer = grpc.call(Method::Unary, &message).await.unwrap();
        assert_eq!(answer.code, 0, "{}", answer.message);
        let mut http = Http::connect(target.http).await.unwrap();
        http.post(&infer_path(ECHO), &headers, &body).await.unwrap();
        assert_eq!(http.receive().await.unwrap().status, 200);
    })
    .unwrap();
}

/// Returns whether the gRPC response asks the client to retry after a delay in milliseconds.
fn may_come_again(answer: &attack_kit::grpc::GrpcResponse) -> bool {
    let pause = answer.trailers.get("grpc-retry-pushback-ms");
    pause
        .and_then(|pause| pause.to_str().ok()?.parse::<u32>().ok())
        .is_some()
}
