//! Clients that request large responses and read nothing, or a byte per second.

use std::{future::Future, rc::Rc, time::Duration};

use tokio::{task::JoinSet, time::sleep};

use crate::{
    grpc::{FramedMessage, Grpc, Method, read_slowly},
    http1::{Http, binary_echo, infer_path},
    models::{ECHO, LARGE},
    protobuf::infer,
    rows::{Scale, Tally},
    server::Target,
};

/// How long a refused client waits before it retries.
const PAUSE: Duration = Duration::from_millis(200);

/// Has clients request a large tensor as JSON with a body of 13 bytes, and read one byte per second.
pub async fn slow_json(target: Target, scale: Scale, tally: Tally) {
    let mut clients = JoinSet::new();
    for _ in 0..scale.readers {
        let tally = tally.clone();
        clients.spawn_local(async move {
            loop {
                match slow_answer(target, &tally).await {
                    Ok(200) => return,
                    Ok(_) | Err(_) => sleep(PAUSE).await,
                }
            }
        });
    }
    while clients.join_next().await.is_some() {}
}

/// Sends one request and reads slowly until the server closes the connection; returns the status.
async fn slow_answer(target: Target, tally: &Tally) -> std::io::Result<u16> {
    let mut http = Http::connect_small(target.http).await?;
    http.post(&infer_path(LARGE), "", br#"{"inputs":[]}"#).await?;
    let (status, _) = http.read_head().await.inspect_err(|_| tally.add("closed"))?;
    tally.add(status);
    while status == 200 && matches!(http.read_some(1).await, Ok(1)) {
        sleep(Duration::from_secs(1)).await;
    }
    Ok(status)
}

/// Opens one HTTP/2 connection with 100 streams that each request a large tensor and enlarge their
/// flow-control windows by one byte per second.
pub async fn slow_streams(target: Target, tally: Tally, method: Method) {
    let Ok(grpc) = Grpc::connect_with_window(target.grpc, 1).await else {
        return tally.add("no connection");
    };
    let grpc = Rc::new(grpc);
    let message = FramedMessage::plain(&infer(LARGE, None));
    let mut streams = JoinSet::new();
    for _ in 0..100 {
        let (grpc, message, tally) = (grpc.clone(), message.clone(), tally.clone());
        streams.spawn_local(async move {
            loop {
                let Ok(response) = grpc.send(method, &message).await else {
                    return tally.add("closed");
                };
                let Ok(response) = response.await else {
                    return tally.add("closed");
                };
                match response.headers().get("grpc-status") {
                    // For a response that is still being read, only the head is counted.
                    None => tally.add("a response"),
                    Some(code) => tally.add(format_args!("grpc {}", code.to_str().unwrap_or("?"))),
                }
                read_slowly(&mut response.into_body()).await;
                sleep(PAUSE).await;
            }
        });
    }
    while streams.join_next().await.is_some() {}
}

/// Has clients send large tensors in binary form to be echoed, and never read the responses.
pub fn unread_echoes(target: Target, scale: Scale, tally: Tally) -> impl Future<Output = ()> {
    let (headers, body) = binary_echo(&vec![7; scale.request / 4 * 3]);
    let (headers, body) = (Rc::new(headers), Rc::new(body));
    async move {
        let mut clients = JoinSet::new();
        for _ in 0..scale.readers {
            let (headers, body, tally) = (headers.clone(), body.clone(), tally.clone());
            let client = async move {
                let mut http = Http::connect_small(target.http).await?;
                http.post(&infer_path(ECHO), &headers, &body).await?;
                let (status, _) = http.read_head().await?;
                tally.add(status);
                Ok::<_, std::io::Error>((status, http))
            };
            // The clients start one after another, so that each gets memory while the server still has some.
            match client.await {
                Ok((200, http)) => {
                    clients.spawn_local(async move {
                        // The connections stay open until the attack ends.
                        std::future::pending::<()>().await;
                        drop(http);
                    });
                }
                Ok(_) | Err(_) => sleep(PAUSE).await,
            }
        }
        while clients.join_next().await.is_some() {}
    }
}
