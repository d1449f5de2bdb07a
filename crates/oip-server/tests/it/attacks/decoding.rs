//! gRPC messages that are small on the wire, and large or slow to decode.

use std::time::Duration;

use attack_kit::{
    grpc::Method,
    rows::{BOMBS, bomb},
};

use super::TestServer;

fn assert_survives_bombs(method: Method) {
    let attacked = TestServer::start(&[]);
    for kind in BOMBS {
        attacked.survives(kind.name, Duration::from_secs(60), |target, scale, tally| {
            bomb(target, scale, tally, kind, method)
        });
    }
}

#[test]
fn messages_that_grow_when_they_are_decoded() {
    assert_survives_bombs(Method::Unary);
}

#[test]
fn messages_of_a_stream_that_grow_when_they_are_decoded() {
    assert_survives_bombs(Method::Stream);
}
