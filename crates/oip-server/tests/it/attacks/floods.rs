//! HTTP/2 frames and HTTP/1 requests that cost the sender less than the server.

use std::time::Duration;

use attack_kit::rows::{FLOODS, flood};

use super::TestServer;

#[test]
fn floods() {
    let attacked = TestServer::start(&[]);
    for kind in FLOODS {
        let (tally, _) = attacked.survives(kind.name, Duration::from_secs(2), |target, _, tally| {
            flood(target, tally, kind)
        });
        if kind.is_ended {
            assert!(tally.count("closed") > 0, "{}: {tally}", kind.name);
        }
    }
}
