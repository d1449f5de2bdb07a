//! Many connections that each keep the server waiting with as much as they may send.

use std::{future::Future, rc::Rc, time::Duration};

use tokio::{task::JoinSet, time::sleep};

use crate::{
    grpc::{Framed, Grpc, Method, write_message},
    http1::Http,
    models::ECHO,
    protobuf::infer,
    rows::{Scale, Tally},
    server::Target,
};

/// How many connections there are.
const CONNECTIONS: usize = 200;

/// Connections that send heads of HTTP/1 without end, as long as the server takes, and then wait.
pub async fn long_heads(target: Target, _: Scale, tally: Tally) {
    let line = format!("x: {}\r\n", "y".repeat(4000));
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (line, tally) = (line.clone(), tally.clone());
        clients.spawn_local(async move {
            let Ok(mut http) = Http::connect(target.http).await else {
                return tally.add("no connection");
            };
            let mut sent = http.send(b"GET /v2 HTTP/1.1\r\nHost: 127.0.0.1\r\n").await;
            for _ in 0..100 {
                sent = sent.and(http.send(line.as_bytes()).await);
            }
            match http.read_head().await {
                Ok((status, _)) => tally.add(status),
                Err(_) => tally.add("closed"),
            }
        });
    }
    while clients.join_next().await.is_some() {}
}

/// Connections of HTTP/2 with 100 streams each, whose heads are as long as they may be and whose messages do not come.
pub async fn long_heads_of_streams(target: Target, _: Scale, tally: Tally) {
    let filler = Rc::new("y".repeat(15_000));
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (filler, tally) = (filler.clone(), tally.clone());
        clients.spawn_local(async move {
            let Ok(grpc) = Grpc::connect(target.grpc).await else {
                return tally.add("no connection");
            };
            let mut streams = Vec::new();
            for _ in 0..100 {
                match grpc.begin_with(Method::Unary, "x-filler", &filler).await {
                    Ok(stream) => streams.push(stream),
                    Err(_) => return tally.add("closed"),
                }
            }
            tally.add("100 streams");
            for (response, _) in streams {
                if response.await.is_err() {
                    return tally.add("closed");
                }
            }
        });
    }
    while clients.join_next().await.is_some() {}
}

/// Streams of `ModelStreamInfer` that send one large request after the other and never read an answer.
pub fn unread_conversations(target: Target, scale: Scale, tally: Tally) -> impl Future<Output = ()> {
    let data = vec![7; scale.request / 64];
    let message = Framed::plain(&infer(ECHO, Some(("x", &data))));
    async move {
        let mut clients = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (message, tally) = (message.clone(), tally.clone());
            clients.spawn_local(async move {
                let Ok(grpc) = Grpc::connect_with_window(target.grpc, 1).await else {
                    return tally.add("no connection");
                };
                let Ok((response, mut stream)) = grpc.begin(Method::Stream, false).await else {
                    return tally.add("closed");
                };
                // Sends as long as the server opens its window.
                while write_message(&mut stream, &message).await.is_ok() {
                    tally.add("message");
                }
                drop(response);
                tally.add("reset");
                sleep(Duration::from_millis(200)).await;
            });
        }
        while clients.join_next().await.is_some() {}
    }
}
