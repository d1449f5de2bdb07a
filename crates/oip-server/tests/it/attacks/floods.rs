//! Frames of HTTP/2 and requests of HTTP/1 that cost their sender less than the server.

use std::time::Duration;

use attack_kit::rows::{FLOODS, flood};

use super::Attacked;

#[test]
fn floods() {
    let attacked = Attacked::start(&[]);
    for kind in FLOODS {
        attacked.survives(kind.name, Duration::from_secs(2), |target, _, tally| {
            flood(target, tally, kind)
        });
    }
}
