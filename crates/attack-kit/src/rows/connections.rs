//! Many connections, each of which makes the server use as much memory as the limits allow.

use std::{future::Future, rc::Rc, time::Duration};

use anyhow::Result;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::{task::JoinSet, time::sleep};

use crate::{
    grpc::{FramedMessage, Grpc, Method, write_message},
    http1::{Http, SMALL_ECHO, infer_path},
    models::ECHO,
    protobuf::infer,
    rows::{Scale, Tally},
    server::Target,
};

/// Connection count for attacks that send a lot of data per connection.
const CONNECTIONS: usize = 200;

/// Connection count for attacks that send little data per connection.
const MANY: usize = 1000;

/// Sends endless HTTP/1 heads over many connections until the server accepts no more bytes, and then waits.
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

/// Opens HTTP/2 connections with 100 streams each, whose heads have the maximum size and whose messages do
/// not arrive.
pub async fn long_heads_of_streams(target: Target, _: Scale, tally: Tally) {
    let long = HeaderMap::from_iter([(HeaderName::from_static("x-filler"), value(&"y".repeat(7_000)))]);
    heads_of_streams(target, tally, Method::Unary, long).await;
}

/// Like [`long_heads_of_streams`], with the maximum number of one-byte headers.
pub async fn crowded_heads_of_streams(target: Target, _: Scale, tally: Tally) {
    let names = (0..200).filter_map(|number| HeaderName::try_from(format!("x{number}")).ok());
    let crowd = names.map(|name| (name, value("y"))).collect();
    heads_of_streams(target, tally, Method::Stream, crowd).await;
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

async fn heads_of_streams(target: Target, tally: Tally, method: Method, headers: HeaderMap) {
    let headers = Rc::new(headers);
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (headers, tally) = (headers.clone(), tally.clone());
        clients.spawn_local(async move {
            let Ok(grpc) = Grpc::connect(target.grpc).await else {
                return tally.add("no connection");
            };
            let mut streams = Vec::new();
            for _ in 0..100 {
                match grpc.begin_with(method, &headers).await {
                    Ok(stream) => streams.push(stream),
                    Err(_) => return tally.add("closed"),
                }
            }
            tally.add("100 streams");
            // The streams stay open, whatever the response.
            let answers = streams.iter_mut().map(|(response, _)| response);
            for answer in answers {
                match answer.await {
                    Ok(_) => tally.add("a response"),
                    Err(_) => return tally.add("closed"),
                }
            }
            sleep(Duration::from_secs(3600)).await;
        });
    }
    while clients.join_next().await.is_some() {}
}

/// Opens connections of both transports that send one request and then stay idle.
pub async fn idle_connections(target: Target, _: Scale, tally: Tally) {
    let mut clients = JoinSet::new();
    for number in 0..2 * MANY {
        let tally = tally.clone();
        clients.spawn_local(async move {
            let connected = match number % 2 {
                0 => idle_http(target).await.is_ok(),
                _ => idle_grpc(target).await.is_ok(),
            };
            tally.add(if connected { "closed" } else { "no response" });
        });
    }
    while clients.join_next().await.is_some() {}
}

/// Sends one request, then waits until the server closes the connection.
async fn idle_http(target: Target) -> Result<()> {
    let mut http = Http::connect(target.http).await?;
    http.post(&infer_path(ECHO), "", SMALL_ECHO.as_bytes()).await?;
    http.receive().await?;
    http.peek().await?;
    Ok(())
}

/// Sends one request over gRPC, then waits until the server closes the connection.
async fn idle_grpc(target: Target) -> Result<()> {
    let mut grpc = Grpc::connect(target.grpc).await?;
    let message = FramedMessage::plain(&infer(ECHO, Some(("x", &[1, 2, 3, 4]))));
    grpc.call(Method::Unary, &message).await?;
    grpc.closed().await;
    Ok(())
}

/// Opens connections that send small `ModelStreamInfer` requests until the server's flow-control windows are
/// full, and never read the responses.
pub async fn unread_requests(target: Target, _: Scale, tally: Tally) {
    let message = FramedMessage::plain(&infer(ECHO, Some(("x", &[7; 2000]))));
    let mut clients = JoinSet::new();
    for _ in 0..MANY {
        let (message, tally) = (message.clone(), tally.clone());
        clients.spawn_local(async move {
            let Ok(grpc) = Grpc::connect_with_window(target.grpc, 1).await else {
                return tally.add("no connection");
            };
            let Ok((response, mut stream)) = grpc.begin(Method::Stream, false).await else {
                return tally.add("closed");
            };
            let mut sent = 0u64;
            while write_message(&mut stream, &message).await.is_ok() {
                sent += 1;
                if sent == 100 {
                    tally.add("100 messages");
                }
            }
            drop(response);
            tally.add("reset");
        });
    }
    while clients.join_next().await.is_some() {}
}

/// Opens `ModelStreamInfer` streams that send large requests sequentially and never read the responses.
pub fn unread_conversations(target: Target, scale: Scale, tally: Tally) -> impl Future<Output = ()> {
    let data = vec![7; scale.request / 64];
    let message = FramedMessage::plain(&infer(ECHO, Some(("x", &data))));
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
                // Sends until the server closes the stream. Writing waits for the server's flow-control
                // window.
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
