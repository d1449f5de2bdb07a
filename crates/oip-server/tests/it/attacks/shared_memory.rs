//! Small requests with tensors in shared memory.

use std::time::Duration;

use attack_kit::{
    Scale,
    rows::{Region, shared_memory},
    run,
};

use super::TestServer;

#[test]
fn requests_for_more_shared_memory_than_there_is_memory_for() {
    let attacked = TestServer::start(&["--system-shared-memory"]);
    let (tally, _) = attacked.survives("shared memory", Duration::from_secs(60), shared_memory);
    // A quarter of the requests exceed the whole budget.
    assert_eq!(tally.count("413"), Scale::SMALL.readers / 4, "{tally}");
    assert!(tally.count("200") > 0, "{tally}");
    let accounted = ["200", "413", "429", "504"].map(|status| tally.count(status));
    assert_eq!(accounted.iter().sum::<usize>(), Scale::SMALL.readers, "{tally}");
}

/// The response distinguishes a request that can never fit from one that may be retried.
#[test]
fn a_request_that_can_never_fit_is_not_told_to_come_again() {
    let attacked = TestServer::start(&["--system-shared-memory"]);
    run(async {
        let bytes = 2 * Scale::SMALL.budget;
        let region = Region::register(attacked.target(), bytes).await.unwrap();
        let answer = region.echo(attacked.target(), bytes).await.unwrap();
        assert_eq!(answer.status, 413, "{}", answer.text());
        assert_eq!(answer.header("retry-after"), None, "{}", answer.head);
        let answer = region.echo(attacked.target(), 1000).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    })
    .unwrap();
}
