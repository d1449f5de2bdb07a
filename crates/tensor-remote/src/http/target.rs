//! URLs of requests, and which redirects between them are allowed.

use std::net::IpAddr;

use fmt_core::{Error, ErrorKind};
use ureq::http::{Uri, uri::Authority};

use super::RemoteOptions;

/// The URL of a file, without a fragment.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    uri: Uri,
    authority: Authority,
}

impl Target {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let malformed = |what: &str| {
            let error = Error::new(ErrorKind::Malformed, "the address of the file");
            error
                .expected("https://HOST/PATH, with %20 for a space")
                .found(what)
        };
        let text = text.split('#').next().unwrap_or_default();
        let uri: Uri = text.parse().map_err(|error| malformed(&format!("{error}")))?;
        let authority = uri.authority().ok_or_else(|| malformed("no host"))?.clone();
        if !matches!(uri.scheme_str(), Some("https" | "http")) {
            return Err(malformed("another scheme"));
        }
        if authority.as_str().contains('@') {
            return Err(malformed("a password, which would end up in logs"));
        }
        Ok(Self { uri, authority })
    }

    /// Resolves a `Location` header against this URL.
    pub(crate) fn join(&self, location: &str) -> Result<Self, Error> {
        if location.contains("://") {
            return Self::parse(location);
        }
        let scheme = self.uri.scheme_str().unwrap_or("https");
        if location.starts_with("//") {
            return Self::parse(&format!("{scheme}:{location}"));
        }
        let authority = &self.authority;
        let folder = match location.starts_with('/') {
            true => "",
            false => self.uri.path().rsplit_once('/').map_or("", |(folder, _)| folder),
        };
        let slash = if location.starts_with('/') { "" } else { "/" };
        Self::parse(&format!("{scheme}://{authority}{folder}{slash}{location}"))
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Returns host and port as written in the URL.
    #[cfg(feature = "s3")]
    pub(crate) fn authority(&self) -> &str {
        self.authority.as_str()
    }

    pub(crate) fn host(&self) -> &str {
        self.authority.host()
    }

    /// Returns the part of the path after the last slash.
    pub(crate) fn name(&self) -> String {
        let path = self.uri.path();
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        percent_encoding::percent_decode_str(name)
            .decode_utf8_lossy()
            .into_owned()
    }

    fn is_https(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    /// Returns whether the host is this machine, by name or address.
    fn is_loopback(&self) -> bool {
        let host = self.host().trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    fn port(&self) -> u16 {
        let usual = if self.is_https() { 443 } else { 80 };
        self.authority.port_u16().unwrap_or(usual)
    }

    /// Returns whether both URLs have the same scheme, host and port.
    pub(crate) fn has_origin_of(&self, other: &Self) -> bool {
        self.is_https() == other.is_https()
            && self.port() == other.port()
            && self.host().eq_ignore_ascii_case(other.host())
    }

    /// Returns whether the connection is encrypted or local.
    pub(crate) fn is_private(&self) -> bool {
        self.is_https() || self.is_loopback()
    }

    pub(crate) fn check_scheme(&self, options: &RemoteOptions) -> Result<(), Error> {
        if self.is_private() || options.plain_http {
            return Ok(());
        }
        let error = Error::new(
            ErrorKind::Unsupported,
            "the address uses plain HTTP: anybody on the network path could modify the file",
        );
        Err(error.expected("https://, or plain HTTP to be allowed (--allow-http)"))
    }

    /// Checks that a redirect from this URL to `to` is allowed.
    pub(crate) fn check_redirect(&self, to: &Self, options: &RemoteOptions) -> Result<(), Error> {
        if self.is_https() && !to.is_https() {
            let error = Error::new(
                ErrorKind::Unsupported,
                "the server redirects from HTTPS to plain HTTP",
            );
            return Err(error.found(to.host()));
        }
        to.check_scheme(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_lead_on_from_where_they_were_given() {
        let from = Target::parse("https://a.example:8443/x/y/model.zt?v=1#part").unwrap();
        for (location, leads_to) in [
            ("https://b.example/z", "https://b.example/z"),
            ("//b.example/z?q", "https://b.example/z?q"),
            ("/z", "https://a.example:8443/z"),
            ("z", "https://a.example:8443/x/y/z"),
        ] {
            assert_eq!(from.join(location).unwrap().uri().to_string(), leads_to);
        }
        assert_eq!(from.name(), "model.zt");
        assert_eq!(from.uri().to_string(), "https://a.example:8443/x/y/model.zt?v=1");
        assert!(from.join("ftp://b.example/z").is_err());
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let target = |text| Target::parse(text).unwrap();
        let one = target("https://Host.example/a");
        assert!(one.has_origin_of(&target("https://host.example:443/b")));
        for other in [
            "http://host.example/",
            "https://host.example:444/",
            "https://other.example/",
        ] {
            assert!(!one.has_origin_of(&target(other)), "{other}");
        }
    }

    #[test]
    fn plain_http_is_for_this_machine() {
        let check =
            |text, options: &RemoteOptions| Target::parse(text).unwrap().check_scheme(options).is_ok();
        let default = RemoteOptions::default();
        for own in [
            "http://127.0.0.1:80/",
            "http://[::1]/",
            "http://localhost/",
            "https://a.example/",
        ] {
            assert!(check(own, &default), "{own}");
        }
        for other in [
            "http://a.example/",
            "http://localhost.example/",
            "http://10.0.0.1/",
        ] {
            assert!(!check(other, &default), "{other}");
            assert!(check(other, &default.clone().with_plain_http(true)), "{other}");
        }
    }

    #[test]
    fn addresses_that_cannot_be() {
        for wrong in [
            "https://",
            "https:///x",
            "/x",
            "https://user:word@a.example/x",
            "https://a b/x",
        ] {
            assert_eq!(
                Target::parse(wrong).unwrap_err().kind(),
                ErrorKind::Malformed,
                "{wrong}"
            );
        }
    }
}
