//! Streams of HTTP/2 that take places from others, or hold up the connection that they share with them.

use std::{rc::Rc, time::Duration};

use tokio::{task::JoinSet, time::sleep};

use crate::{
    grpc::{Framed, Grpc, Method},
    models::{ECHO, LARGE},
    protobuf::infer,
    rows::{Scale, Tally},
    server::Target,
};

/// Connections with as many silent streams as they may have.
const CONNECTIONS: usize = 11;
const STREAMS: usize = 100;

/// Calls that the good client makes at a time.
const CALLS: usize = 96;

/// How long the good clients wait between their calls.
const PAUSE: Duration = Duration::from_millis(200);

fn small() -> Framed {
    Framed::plain(&infer(ECHO, Some(("x", &[1, 2, 3, 4]))))
}

/// Connections whose streams of `ModelStreamInfer` say nothing, and one with many calls at once, all of which are to be answered.
pub async fn silent_streams(target: Target, _: Scale, tally: Tally) {
    let (mut connections, mut silent) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let Ok(grpc) = Grpc::connect(target.grpc).await else {
            return tally.add("no connection");
        };
        for _ in 0..STREAMS {
            match grpc.begin(Method::Stream, false).await {
                Ok(stream) => silent.push(stream),
                Err(_) => return tally.add("closed"),
            }
        }
        connections.push(grpc);
    }
    let Ok(grpc) = Grpc::connect(target.grpc).await else {
        return tally.add("no connection");
    };
    let grpc = Rc::new(grpc);
    loop {
        sleep(PAUSE).await;
        call_many(&grpc, CALLS, &tally).await;
    }
}

/// One connection with a stream that is not read, and calls beside it, all of which are to be answered.
pub async fn unread_stream(target: Target, _: Scale, tally: Tally) {
    let Ok(grpc) = Grpc::connect(target.grpc).await else {
        return tally.add("no connection");
    };
    let grpc = Rc::new(grpc);
    loop {
        let Ok(response) = grpc
            .send(Method::Unary, &Framed::plain(&infer(LARGE, None)))
            .await
        else {
            return tally.add("closed");
        };
        let Ok(response) = response.await else {
            return tally.add("closed");
        };
        let mut unread = response.into_body();
        let ended = async { while let Some(Ok(_)) = unread.data().await {} };
        let calls = async {
            loop {
                call_many(&grpc, 1, &tally).await;
                sleep(PAUSE).await;
            }
        };
        tokio::select! {
            () = ended => tally.add("reset"),
            () = calls => {}
        }
    }
}

/// Makes so many small calls at once, and counts their outcomes.
async fn call_many(grpc: &Rc<Grpc>, count: usize, tally: &Tally) {
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let (grpc, tally) = (grpc.clone(), tally.clone());
        calls.spawn_local(async move {
            match grpc.call(Method::Unary, &small()).await {
                Ok(answer) if answer.code == 0 => tally.add("a call answered"),
                Ok(answer) => tally.add(format_args!("a call failed: grpc {}", answer.code)),
                Err(_) => tally.add("a call lost"),
            }
        });
    }
    while calls.join_next().await.is_some() {}
}
