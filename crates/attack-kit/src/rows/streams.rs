//! HTTP/2 streams that occupy slots, or block the other streams of their connection.

use std::{rc::Rc, time::Duration};

use tokio::{task::JoinSet, time::sleep};

use crate::{
    grpc::{FramedMessage, Grpc, Method},
    models::{ECHO, LARGE},
    protobuf::infer,
    rows::{Scale, Tally},
    server::Target,
};

/// Number of connections with the maximum number of silent streams.
const CONNECTIONS: usize = 11;
const STREAMS: usize = 100;

/// Number of concurrent calls of the well-behaved client.
const CALLS: usize = 96;

/// Pause of the well-behaved clients between calls.
const PAUSE: Duration = Duration::from_millis(200);

fn small() -> FramedMessage {
    FramedMessage::plain(&infer(ECHO, Some(("x", &[1, 2, 3, 4]))))
}

/// Opens connections with silent `ModelStreamInfer` streams, and one with many concurrent calls, all of which
/// must succeed.
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

/// Opens one connection with an unread stream and concurrent calls, all of which must succeed.
pub async fn unread_stream(target: Target, _: Scale, tally: Tally) {
    let Ok(grpc) = Grpc::connect(target.grpc).await else {
        return tally.add("no connection");
    };
    let grpc = Rc::new(grpc);
    loop {
        let Ok(response) = grpc
            .send(Method::Unary, &FramedMessage::plain(&infer(LARGE, None)))
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

/// Makes `count` small calls at once, and counts their outcomes.
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
