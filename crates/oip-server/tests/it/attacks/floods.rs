//! Frames of HTTP/2 and requests of HTTP/1 that cost their sender less than the server.

use std::time::Duration;

use attack_kit::rows::{FLOODS, flood};

use super::Attacked;

#[test]
fn floods() {
    let attacked = Attacked::start(&[]);
    for kind in FLOODS {
        let (tally, _) = attacked.survives(kind.name, Duration::from_secs(2), |target, _, tally| {
            flood(target, tally, kind)
        });
        if kind.is_ended {
            assert!(tally.count("closed") > 0, "{}: {tally}", kind.name);
        }
    }
}
