//! Crowds of connections and streams that each hold as much as they may, or nothing.

use std::time::Duration;

use attack_kit::rows::{
    crowded_heads_of_streams, idle_connections, long_heads, long_heads_of_streams, unread_conversations,
    unread_requests,
};

use super::Attacked;

/// How long such an attack lasts: its clients hold what they have for as long as they may.
const ATTACK: Duration = Duration::from_secs(6);

#[test]
fn heads_without_end() {
    Attacked::start(&[]).survives("heads without end", ATTACK, long_heads);
}

#[test]
fn streams_with_long_heads() {
    Attacked::start(&[]).survives("streams with long heads", ATTACK, long_heads_of_streams);
}

#[test]
fn streams_with_heads_of_many_headers() {
    Attacked::start(&[]).survives("heads of many headers", ATTACK, crowded_heads_of_streams);
}

#[test]
fn conversations_that_are_not_read() {
    Attacked::start(&[]).survives("unread conversations", ATTACK, unread_conversations);
}

#[test]
fn requests_that_wait_to_be_read() {
    Attacked::start(&[]).survives("requests that wait", ATTACK, unread_requests);
}

/// They make room for others: signs of life come on new connections.
#[test]
fn idle_connections_take_no_room_from_others() {
    let attacked = Attacked::start(&["--max-connections", "100"]);
    let (_, seen) = attacked.survives("idle connections", ATTACK, idle_connections);
    assert!(seen.right > 0, "{seen:?}");
}
