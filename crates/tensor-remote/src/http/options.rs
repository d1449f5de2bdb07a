//! Options for accessing servers.

use std::{fmt, path::Path, time::Duration};

use fmt_core::{Error, ErrorKind};
use ureq::tls::{Certificate, PemItem, parse_pem};

use crate::IndexPlace;

/// Options for accessing servers.
///
/// ```
/// use std::time::Duration;
/// use tensor_remote::RemoteOptions;
///
/// let options = RemoteOptions::default().with_retries(2).with_patience(Duration::from_secs(5));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemoteOptions {
    pub(crate) authorities: Option<Vec<u8>>,
    pub(crate) token: Option<Token>,
    /// Signs requests to an object store.
    #[cfg(feature = "s3")]
    pub(crate) signer: Option<super::signer::Signer>,
    pub(crate) plain_http: bool,
    pub(crate) retries: u32,
    pub(crate) back_off: Duration,
    pub(crate) patience: Duration,
    /// The timeout for connecting; `None` to use the general timeout.
    pub(crate) connect_patience: Option<Duration>,
    pub(crate) index_place: Option<IndexPlace>,
}

/// A secret, omitted from debug output.
#[derive(Clone)]
pub(crate) struct Token(pub(crate) String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            authorities: None,
            token: None,
            #[cfg(feature = "s3")]
            signer: None,
            plain_http: false,
            retries: 5,
            back_off: Duration::from_millis(250),
            patience: Duration::from_secs(30),
            connect_patience: None,
            index_place: None,
        }
    }
}

impl RemoteOptions {
    /// Trusts the CA certificates in a file (PEM) instead of Mozilla's, which are built in.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when the file is unreadable; [`ErrorKind::Malformed`] when it contains no
    /// certificate.
    pub fn with_authorities(mut self, path: &Path) -> Result<Self, Error> {
        let pem = std::fs::read(path)
            .map_err(|error| Error::io("the file of trusted certificates cannot be read", error))?;
        if certificates(&pem)?.is_empty() {
            let error = Error::new(ErrorKind::Malformed, "the file of trusted certificates");
            return Err(error.expected("certificates in PEM").found("none"));
        }
        self.authorities = Some(pem);
        Ok(self)
    }

    /// Sends this token (`Authorization: Bearer`) to the location's own origin only: never to redirect
    /// targets, and never over plain HTTP to another machine.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token(token.into()));
        self
    }

    /// Allows `http://` to other machines too. Anybody on the network path can then read and change the file.
    #[must_use]
    pub fn with_plain_http(mut self, is_allowed: bool) -> Self {
        self.plain_http = is_allowed;
        self
    }

    /// Sets how many times in a row a request is retried after a transient failure: a broken connection, a
    /// slow response, status 408, 429, 500, 502, 503 or 504 (default 5).
    #[must_use]
    pub fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets the delay before the first retry, unless the server gives one; the delay doubles with each retry
    /// (default 250 ms).
    #[must_use]
    pub fn with_back_off(mut self, back_off: Duration) -> Self {
        self.back_off = back_off;
        self
    }

    /// Sets the timeout for connecting, for the head of a response, and for each further part of the body. A
    /// response slower than 1 KiB/s over that time counts as broken (default 30 s).
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets where the index is expected and requested first, instead of the guess by [`IndexPlace::of_name`].
    #[must_use]
    pub fn with_index_place(mut self, place: IndexPlace) -> Self {
        self.index_place = Some(place);
        self
    }
}

/// Parses PEM certificates.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, Error> {
    let mut certificates = Vec::new();
    for item in parse_pem(pem) {
        let item = item.map_err(|error| {
            let what = format!("the file of trusted certificates: {error}");
            Error::new(ErrorKind::Malformed, what).expected("PEM")
        })?;
        if let PemItem::Certificate(certificate) = item {
            certificates.push(certificate);
        }
    }
    Ok(certificates)
}
