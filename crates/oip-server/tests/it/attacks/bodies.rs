//! HTTP bodies that expand when decompressed, or arrive slowly.

use std::time::Duration;

use attack_kit::{
    Scale,
    rows::{drip, gzip_crowd, gzip_crowd_that_leaves},
};

use super::TestServer;

/// All bodies of this attack are valid: each request succeeds or gets an error that asks the client to retry,
/// and none is rejected as malformed.
#[test]
fn bodies_that_grow_a_thousandfold() {
    let attacked = TestServer::start(&[]);
    let (tally, _) = attacked.survives("gzip bodies", Duration::from_secs(120), gzip_crowd);
    let accounted: usize = ["200", "429", "503", "504"]
        .iter()
        .map(|status| tally.count(status))
        .sum();
    assert_eq!(accounted, Scale::SMALL.crowd, "{tally}");
    assert!(tally.count("200") > 0, "{tally}");
}

#[test]
fn bodies_that_grow_a_thousandfold_of_clients_that_leave() {
    let attacked = TestServer::start(&[]);
    attacked.survives(
        "gzip bodies of clients that leave",
        Duration::from_secs(60),
        gzip_crowd_that_leaves,
    );
}

/// No memory is allocated for announced lengths: well-behaved clients succeed alongside bodies that announce
/// eight times the budget.
#[test]
fn announced_bodies_that_drip() {
    let attacked = TestServer::start(&[]);
    let (_, seen) = attacked.survives("announced bodies", Duration::from_secs(4), drip);
    assert!(seen.right > 10 * seen.refused, "{seen:?}");
}
