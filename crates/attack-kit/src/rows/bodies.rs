//! HTTP bodies that expand when decompressed, or arrive slowly.

use std::{future::Future, rc::Rc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    grpc::gzip,
    http1::{Http, SMALL_ECHO, head, infer_path},
    models::ECHO,
    rows::{Scale, Tally},
    server::Target,
};

/// Returns a valid request padded with leading spaces to the size limit, which compresses a thousandfold.
fn padded_echo(size: usize) -> Vec<u8> {
    let mut body = vec![b' '; size - SMALL_ECHO.len()];
    body.extend_from_slice(SMALL_ECHO.as_bytes());
    gzip(&body)
}

/// Has many clients send valid bodies that expand a thousandfold, and wait for responses.
pub fn gzip_crowd(target: Target, scale: Scale, tally: Tally) -> impl Future<Output = ()> {
    crowd(target, scale, tally, || Duration::from_secs(120))
}

/// Like [`gzip_crowd`], but each client disconnects shortly after sending its body.
pub fn gzip_crowd_that_leaves(target: Target, scale: Scale, tally: Tally) -> impl Future<Output = ()> {
    let patience = || Duration::from_millis(fastrand::u64(5..500));
    crowd(target, scale, tally, patience)
}

fn crowd(
    target: Target,
    scale: Scale,
    tally: Tally,
    patience: impl Fn() -> Duration,
) -> impl Future<Output = ()> {
    let body = Rc::new(padded_echo(scale.request));
    async move {
        let mut clients = JoinSet::new();
        for _ in 0..scale.crowd {
            let (body, tally, patience) = (body.clone(), tally.clone(), patience());
            clients.spawn_local(async move {
                let Ok(mut http) = Http::connect(target.http).await else {
                    return tally.add("no connection");
                };
                // A server that refuses early may close the connection before the whole body is sent.
                let _ = http
                    .post(&infer_path(ECHO), "Content-Encoding: gzip\r\n", &body)
                    .await;
                match timeout(patience, http.receive()).await {
                    Ok(Ok(answer)) => tally.add(answer.status),
                    Ok(Err(_)) => tally.add("closed"),
                    Err(_) => tally.add("left"),
                }
            });
        }
        while clients.join_next().await.is_some() {}
    }
}

/// Has clients announce bodies of the maximum size and send them just fast enough not to be cut off. In total
/// they announce eight times the budget. Clients that are cut off reconnect.
pub async fn drip(target: Target, scale: Scale, tally: Tally) {
    let mut clients = JoinSet::new();
    for _ in 0..8 * scale.budget / scale.request {
        let tally = tally.clone();
        clients.spawn_local(async move {
            loop {
                let Ok(mut http) = Http::connect(target.http).await else {
                    return tally.add("no connection");
                };
                let mut is_open = http
                    .send(&head(&infer_path(ECHO), "", scale.request))
                    .await
                    .is_ok();
                while is_open {
                    sleep(Duration::from_millis(500)).await;
                    is_open = http.send(&[b' '; 1024]).await.is_ok()
                        && timeout(Duration::from_millis(1), http.peek()).await.is_err();
                }
                match timeout(Duration::from_secs(1), http.receive()).await {
                    Ok(Ok(answer)) => tally.add(answer.status),
                    _ => tally.add("closed"),
                }
                sleep(Duration::from_millis(200)).await;
            }
        });
    }
    while clients.join_next().await.is_some() {}
}
