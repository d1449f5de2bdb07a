//! Protects against malicious web pages. A page in a browser on this machine or network can send requests to
//! any address that the browser reaches, including to this server under the page's own host name (DNS
//! rebinding).

use std::net::{IpAddr, Ipv4Addr};

use axum::http::{
    HeaderValue, Method, Request,
    header::{HOST, ORIGIN},
    uri::Authority,
};
use oip_service::route::{Action, Route};
use tensor_core::QuotedName;

/// The host names by which browsers may reach the server.
///
/// A page may send requests that change the server (anything but inference and reading) only if its origin is
/// the server itself or one of these hosts. Programs other than browsers send no `Origin` and are not
/// affected. With [`AllowedHosts::only`], the `Host` header must also be one of these names, or a name that a
/// web page cannot have: an IP address, a name without a dot, or a name under `localhost`.
///
/// ```
/// use oip_http::{AllowedHosts, HttpConfig};
///
/// let config = HttpConfig::default().with(|config| {
///     config.allowed_hosts = AllowedHosts::only(["models.example.com"]);
/// });
/// # let _ = config;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts {
    checks_host: bool,
    names: Vec<String>,
}

impl AllowedHosts {
    /// Accepts every `Host`. Suitable behind a proxy, or if the server's names are unknown.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// Accepts only `names` (without ports), and names that no web page can have. Suitable for loopback
    /// addresses: a page whose name resolves to 127.0.0.1 is rejected.
    pub fn only(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self {
            checks_host: true,
            names: names.into_iter().map(|name| canonical(name.as_ref())).collect(),
        }
    }

    /// Returns whether a `Host` header is acceptable.
    fn allow_host(&self, value: &HeaderValue) -> bool {
        if is_plainly_local(value.as_bytes()) {
            return true;
        }
        let Some(host) = authority(value.as_bytes()).map(|authority| canonical(authority.host())) else {
            return false;
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_local = bare.parse::<IpAddr>().is_ok() || !host.contains('.') || host.ends_with(".localhost");
        is_local || self.names.contains(&host)
    }

    /// Returns whether pages of this origin may change the server that was requested as `host`.
    fn allow_origin(&self, origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
        let Some((scheme, page)) = origin.to_str().ok().and_then(|origin| origin.split_once("://")) else {
            // The origin `null`, for example of a sandboxed page, has no host.
            return false;
        };
        let Some(page) = authority(page.as_bytes()) else {
            return false;
        };
        let default_port = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => return false,
        };
        let key = |authority: &Authority| {
            let port = authority.port_u16().filter(|port| Some(*port) != default_port);
            (canonical(authority.host()), port)
        };
        let own = host.and_then(|host| authority(host.as_bytes()));
        own.is_some_and(|own| key(&own) == key(&page)) || self.names.contains(&canonical(page.host()))
    }
}

/// Returns whether a host is an IPv4 address or a name without a dot, with or without a port. This common
/// case needs no allocation.
fn is_plainly_local(value: &[u8]) -> bool {
    let Ok(value) = std::str::from_utf8(value) else {
        return false;
    };
    let (host, port) = value.split_once(':').unwrap_or((value, ""));
    let is_name = !host.is_empty()
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_name || host.parse::<Ipv4Addr>().is_ok()) && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Normalizes a host name for comparison.
fn canonical(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

fn authority(bytes: &[u8]) -> Option<Authority> {
    Authority::try_from(bytes)
        .ok()
        .filter(|authority| !authority.host().is_empty())
}

/// Returns the reason for rejecting a request that comes from a web page; `None` if the request is allowed.
pub(crate) fn find_fault<B>(request: &Request<B>, allowed: &AllowedHosts) -> Option<String> {
    let headers = request.headers();
    // Over HTTP/2, the host is part of the target.
    let of_target = request
        .uri()
        .authority()
        .filter(|_| !headers.contains_key(HOST))
        .and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    let host = headers.get(HOST).or(of_target.as_ref());
    let shown = |value: &HeaderValue| QuotedName(&String::from_utf8_lossy(value.as_bytes())).to_string();
    if let Some(host) = host.filter(|host| allowed.checks_host && !allowed.allow_host(host)) {
        return Some(format!(
            "Host {}: expected an IP address, localhost, or one of the server's allowed hosts",
            shown(host)
        ));
    }
    let origin = headers.get(ORIGIN)?;
    if is_harmless(request) || allowed.allow_origin(origin, host) {
        return None;
    }
    Some(format!(
        "Origin {}: web pages of other hosts may not change the server; expected no Origin, or one of the server's allowed \
         hosts",
        shown(origin)
    ))
}

/// Returns whether a request changes nothing, as reading and inference do. Browsers hide the responses to
/// such requests from foreign pages.
fn is_harmless<B>(request: &Request<B>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
        || matches!(
            Route::of(request).action(),
            Action::Infer
                | Action::Generate
                | Action::GenerateStream
                | Action::PredictV1
                | Action::RepositoryIndex
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_a_page_could_have_are_refused() {
        let allowed = AllowedHosts::only(["Models.Example.com"]);
        for (host, is_allowed) in [
            ("127.0.0.1:8080", true),
            ("[::1]:8080", true),
            ("192.168.0.7", true),
            ("localhost", true),
            ("LocalHost.:8080", true),
            ("model-server:8080", true),
            ("app.localhost", true),
            ("models.example.com:8080", true),
            ("models.example.com.", true),
            ("evil.example", false),
            ("evil.example:8080", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example", false),
            ("xmodels.example.com", false),
            ("", false),
            ("a b", false),
        ] {
            let value = HeaderValue::from_str(host).unwrap();
            assert_eq!(allowed.allow_host(&value), is_allowed, "{host}");
        }
    }

    #[test]
    fn pages_of_the_server_itself_and_of_allowed_hosts_pass() {
        let allowed = AllowedHosts::only(["console.example.com"]);
        for (origin, host, is_allowed) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", true),
            ("http://localhost", "localhost:80", true),
            ("https://models.example.com", "models.example.com", true),
            ("https://models.example.com", "models.example.com:443", true),
            ("https://console.example.com:8443", "models.example.com", true),
            ("http://localhost:3000", "localhost:8080", false),
            ("http://evil.example", "127.0.0.1:8080", false),
            ("http://127.0.0.1:8080.evil.example", "127.0.0.1:8080", false),
            ("null", "127.0.0.1:8080", false),
            ("chrome-extension://abc", "abc", false),
            ("http://", "127.0.0.1:8080", false),
        ] {
            let [origin, host] = [origin, host].map(|text| HeaderValue::from_str(text).unwrap());
            assert_eq!(
                allowed.allow_origin(&origin, Some(&host)),
                is_allowed,
                "{origin:?}"
            );
        }
    }
}
