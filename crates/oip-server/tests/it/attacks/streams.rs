//! Clients that open streams and stay silent, to use up all streams or connections of the server.

use std::{net::SocketAddr, time::Duration};

use attack_kit::{
    grpc::{FramedMessage, Grpc, Method},
    http1::Http,
    models::ECHO,
    protobuf::infer,
    rows::silent_streams,
    run,
};

use super::TestServer;

#[test]
fn streams_that_say_nothing_take_no_place_that_others_need() {
    let attacked = TestServer::start(&[]);
    let (tally, _) = attacked.survives("silent streams", Duration::from_secs(8), silent_streams);
    assert!(tally.count("a call answered") > 300, "{tally}");
    let failed = tally.to_string();
    assert!(!failed.contains("lost") && !failed.contains("failed"), "{tally}");
}

/// When silent clients occupy all connections, other clients still get through.
#[test]
fn connections_of_silent_streams_keep_nobody_out() {
    let attacked = TestServer::start(&["--max-connections", "4"]);
    let target = attacked.target();
    run(async {
        let mut silent = Vec::new();
        for _ in 0..6 {
            let grpc = Grpc::connect(target.grpc).await.unwrap();
            let stream = grpc.begin(Method::Stream, false).await.unwrap();
            silent.push((grpc, stream));
        }
        let grpc = Grpc::connect(target.grpc).await.unwrap();
        let message = FramedMessage::plain(&infer(ECHO, Some(("x", &[1, 2, 3, 4]))));
        let answer = grpc.call(Method::Unary, &message).await.unwrap();
        assert_eq!(answer.code, 0, "{}", answer.message);
        let metrics = metrics(target.http).await;
        let value = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<u64>().ok()).unwrap()
        };
        assert!(value("oip_connections_evicted_total ") >= 2, "{metrics}");
        assert!((1..=5).contains(&value("oip_connections_open ")), "{metrics}");
        assert!(value("oip_streams_evicted_total ") >= 2, "{metrics}");
        assert!(value("oip_streams_open ") >= 1, "{metrics}");
        assert_eq!(value("oip_streams_refused_total "), 0);
        assert_eq!(value("oip_streams_unread_total "), 0);
    })
    .unwrap();
}

async fn metrics(address: SocketAddr) -> String {
    let mut http = Http::connect(address).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    http.send(request).await.unwrap();
    let answer = http.receive().await.unwrap();
    String::from_utf8(answer.body).unwrap()
}
