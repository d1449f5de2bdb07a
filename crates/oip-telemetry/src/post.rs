//! Sends one message to a collector over HTTP/1.

use prost::Message as _;
use ureq::{Agent, http::StatusCode, tls::TlsConfig};

use crate::{
    collector::CollectorConfig,
    message::{CollectorResponse, PartialSuccess},
};

/// Sends messages to one URL of a collector.
pub(crate) struct Poster {
    agent: Agent,
    url: String,
    headers: Vec<(String, String)>,
}

/// The reason why a message was not accepted.
pub(crate) struct Refusal {
    pub(crate) reason: String,
    /// Whether a retry may succeed.
    pub(crate) is_passing: bool,
}

/// Maximum number of bytes to read from a response, and of characters to show from an error.
const MOST_ANSWER: u64 = 64 << 10;
const MOST_SHOWN: usize = 200;

impl Poster {
    /// Creates a sender to `url`, the collector's address for one kind of messages.
    pub(crate) fn new(url: &str, collector: &CollectorConfig) -> Self {
        let mut tls = TlsConfig::builder();
        if let Some(authorities) = &collector.authorities {
            tls = tls.root_certs(authorities.roots());
        }
        let agent = Agent::config_builder()
            .tls_config(tls.build())
            .timeout_global(Some(collector.timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("oip-telemetry/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Self {
            agent,
            url: url.to_owned(),
            headers: collector.headers.clone(),
        }
    }

    /// Sends a message, and returns what the collector rejected, if anything.
    pub(crate) fn post(&self, message: &[u8]) -> Result<Option<PartialSuccess>, Refusal> {
        let mut request = self
            .agent
            .post(&self.url)
            .header("content-type", "application/x-protobuf");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut answer = request.send(message).map_err(|error| Refusal {
            is_passing: !matches!(error, ureq::Error::BadUri(_) | ureq::Error::Http(_)),
            reason: match error {
                ureq::Error::Protocol(error) => {
                    format!(
                        "it does not answer in HTTP/1 ({error}); the port for OTLP over HTTP is usually 4318"
                    )
                }
                error if error.to_string().contains("peer certificate") => format!(
                    "{error}: expected a certificate by an authority that browsers trust, or by one of those that are named \
                     for collectors"
                ),
                error => error.to_string(),
            },
        })?;
        // Reads the body to its end, so that the connection is reusable.
        let body = answer.body_mut().with_config().limit(MOST_ANSWER).read_to_vec();
        let status = answer.status();
        if !status.is_success() {
            let said = body.ok().and_then(|body| String::from_utf8(body).ok());
            let said: String = said.unwrap_or_default().trim().chars().take(MOST_SHOWN).collect();
            let is_text = !said.is_empty() && !said.chars().any(|c| c.is_control() && !c.is_whitespace());
            let said = match is_text {
                true => format!(": '{}'", said.escape_debug()),
                false => String::new(),
            };
            return Err(Refusal {
                reason: format!("it answers {status}{said}"),
                // The statuses that the OTLP specification calls retryable.
                is_passing: [
                    StatusCode::TOO_MANY_REQUESTS,
                    StatusCode::BAD_GATEWAY,
                    StatusCode::SERVICE_UNAVAILABLE,
                    StatusCode::GATEWAY_TIMEOUT,
                ]
                .contains(&status),
            });
        }
        let partial = body
            .ok()
            .and_then(|body| CollectorResponse::decode(&body[..]).ok()?.partial_success);
        Ok(partial.filter(|partial| partial.rejected > 0))
    }
}
