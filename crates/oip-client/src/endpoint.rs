//! Parses server URLs.

use std::path::PathBuf;

use http::{Uri, uri::Authority};

use crate::{ClientError, ErrorKind};

/// The address of a server and its protocol.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// The URL as the user wrote it, for error messages.
    pub(crate) url: String,
    pub(crate) transport: Transport,
    pub(crate) is_encrypted: bool,
    pub(crate) authority: Authority,
    /// The prefix of all paths, without a trailing slash.
    #[cfg_attr(
        not(feature = "http"),
        expect(dead_code, reason = "gRPC has no paths of its own")
    )]
    pub(crate) prefix: String,
    /// The path of the Unix socket, if the URL names one.
    pub(crate) socket: Option<PathBuf>,
}

/// The protocol named by a URL's scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Http,
    Grpc,
    /// The URL has no scheme.
    Open,
}

impl Endpoint {
    /// Parses `http://host:port/prefix`, `grpc://host:port`, their encrypted forms with `https://` and
    /// `grpcs://`, `host:port`, or the path of a Unix socket: `http+unix:///run/oip.sock` (or
    /// `unix:///run/oip.sock`), `grpc+unix:///run/oip.sock`.
    pub(crate) fn parse(url: &str) -> Result<Self, ClientError> {
        let wrong = |message: String| ClientError::new(ErrorKind::Usage, message).at(url);
        let (scheme, rest) = match url.split_once("://") {
            Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
            None => (String::new(), url),
        };
        if scheme.is_empty() && rest.starts_with("unix:") {
            // `unix:PATH` is the form in which servers are configured to listen on a socket.
            let expected = "expected http+unix:// or grpc+unix:// for a socket, and its absolute path";
            return Err(wrong(format!("{expected}, such as http+unix:///run/oip.sock")));
        }
        if let "unix" | "http+unix" | "grpc+unix" = &*scheme {
            return Self::of_socket(url, &scheme, rest).map_err(wrong);
        }
        let transport = match &*scheme {
            "http" | "https" => Transport::Http,
            "grpc" | "grpcs" => Transport::Grpc,
            "" => Transport::Open,
            other => {
                let expected = "expected http://, https://, grpc:// or grpcs://, or http+unix:// or grpc+unix:// for a socket";
                return Err(wrong(format!("{expected}, found {other}://")));
            }
        };
        // The `http` crate rejects unknown schemes, so parse with a known one.
        let uri = format!("http://{rest}").parse::<Uri>();
        let uri = uri.map_err(|error| wrong(format!("expected a URL such as http://host:8000: {error}")))?;
        let authority = authority_of(&uri).map_err(|message| wrong(message.to_owned()))?;
        if uri.query().is_some() {
            return Err(wrong("expected no query (?) in the URL".to_owned()));
        }
        let prefix = uri.path().trim_end_matches('/').to_owned();
        // Every path of the protocol starts with `v2`, so a trailing `/v2` is not part of the prefix.
        let prefix = match transport {
            Transport::Grpc => prefix,
            _ => prefix.strip_suffix("/v2").map_or(prefix.clone(), str::to_owned),
        };
        if transport == Transport::Grpc && !prefix.is_empty() {
            return Err(wrong("expected no path: gRPC has none".to_owned()));
        }
        Ok(Self {
            url: url.to_owned(),
            transport,
            is_encrypted: matches!(&*scheme, "https" | "grpcs"),
            authority,
            prefix,
            socket: None,
        })
    }

    /// Returns the endpoint of the Unix socket at `path`, or an error message.
    fn of_socket(url: &str, scheme: &str, path: &str) -> Result<Self, String> {
        if !cfg!(unix) {
            return Err("this system has no Unix sockets for it".to_owned());
        }
        if !path.starts_with('/') {
            let expected = "expected the absolute path of a socket";
            return Err(format!("{expected}, such as {scheme}:///run/oip.sock"));
        }
        Ok(Self {
            url: url.to_owned(),
            transport: match scheme {
                "grpc+unix" => Transport::Grpc,
                _ => Transport::Http,
            },
            is_encrypted: false,
            // The host name sent to servers on Unix sockets.
            authority: Authority::from_static("localhost"),
            prefix: String::new(),
            socket: Some(PathBuf::from(path)),
        })
    }
}

/// Returns the host and port of a URL, or an error message.
fn authority_of(uri: &Uri) -> Result<Authority, &'static str> {
    let authority = uri.authority().cloned();
    let authority = authority.filter(|authority| !authority.host().is_empty());
    let authority = authority.ok_or("the URL names no host")?;
    if authority.as_str().contains('@') {
        return Err("names and passwords in URLs are not supported; send a header instead");
    }
    let has_port = authority.as_str().len() > authority.host().len();
    if has_port && authority.port_u16().is_none() {
        return Err("expected a port up to 65535 after the host");
    }
    Ok(authority)
}

impl Endpoint {
    /// Returns the URL scheme of requests to this endpoint.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_encrypted { "https" } else { "http" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let parsed = |url: &str| {
            let endpoint = Endpoint::parse(url).unwrap();
            (
                endpoint.transport,
                endpoint.authority.to_string(),
                endpoint.prefix,
            )
        };
        let expected =
            |transport, authority: &str, prefix: &str| (transport, authority.to_owned(), prefix.to_owned());
        assert_eq!(parsed("http://a:8000"), expected(Transport::Http, "a:8000", ""));
        assert_eq!(parsed("HTTP://a/"), expected(Transport::Http, "a", ""));
        assert_eq!(parsed("https://a"), expected(Transport::Http, "a", ""));
        assert_eq!(parsed("grpcs://a:1"), expected(Transport::Grpc, "a:1", ""));
        for (url, is_encrypted) in [
            ("http://a", false),
            ("HTTPS://a", true),
            ("grpcs://a", true),
            ("a", false),
        ] {
            assert_eq!(Endpoint::parse(url).unwrap().is_encrypted, is_encrypted, "{url}");
        }
        assert_eq!(
            parsed("http://a/serving/x/"),
            expected(Transport::Http, "a", "/serving/x")
        );
        assert_eq!(parsed("http://a/v2/"), expected(Transport::Http, "a", ""));
        assert_eq!(
            parsed("grpc://[::1]:8001"),
            expected(Transport::Grpc, "[::1]:8001", "")
        );
        assert_eq!(
            parsed("localhost:9000"),
            expected(Transport::Open, "localhost:9000", "")
        );
    }

    #[cfg(unix)]
    #[test]
    fn sockets() {
        for (url, transport) in [
            ("http+unix:///run/a b.sock", Transport::Http),
            ("grpc+unix:///run/a b.sock", Transport::Grpc),
            ("unix:///run/a b.sock", Transport::Http),
        ] {
            let endpoint = Endpoint::parse(url).unwrap();
            assert_eq!(
                (endpoint.transport, endpoint.is_encrypted, &*endpoint.prefix),
                (transport, false, "")
            );
            assert_eq!(endpoint.socket, Some(PathBuf::from("/run/a b.sock")));
        }
        let error = Endpoint::parse("http+unix://run/a.sock").unwrap_err();
        assert!(
            error.to_string().contains("expected the absolute path"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_url_is_refused_with_a_reason() {
        for (url, reason) in [
            (
                "ftp://a",
                "expected http://, https://, grpc:// or grpcs://, or http+unix:// or grpc+unix:// for a socket, found ftp://",
            ),
            ("http://", "expected a URL such as"),
            ("http://a b", "expected a URL such as"),
            ("http://a:99999", "expected a port up to 65535"),
            (
                "unix:/run/oip.sock",
                "expected http+unix:// or grpc+unix:// for a socket",
            ),
            ("http://user:secret@a", "send a header instead"),
            ("http://a?x=1", "expected no query"),
            ("grpc://a:1/b", "gRPC has none"),
            ("", "expected a URL such as"),
        ] {
            let error = Endpoint::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}
