//! Prints the responses at `/` for browsers and programs.
//!
//! ```sh
//! cargo run --package oip-console --example page -- text/html
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use axum::{body::Body, http::Request};
use http_body_util::BodyExt;
use oip_console::{LogTail, router};
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let accept = std::env::args().nth(1).unwrap_or_else(|| "*/*".to_owned());
    let log = LogTail::new(500);
    log.push("the last line of the log\n");
    // A server merges these routes into its own.
    let request = Request::get("/").header("accept", accept).body(Body::empty())?;
    let answer = router(Some(log)).oneshot(request).await?;
    let body = answer.into_body().collect().await?.to_bytes();
    println!("{}", String::from_utf8_lossy(&body));
    Ok(())
}
