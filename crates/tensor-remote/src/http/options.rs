//! How servers are spoken to.

use std::{fmt, path::Path, time::Duration};

use fmt_core::{Error, ErrorKind};
use ureq::tls::{Certificate, PemItem, parse_pem};

use crate::IndexPlace;

/// How servers are spoken to.
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
    /// Of an object in a store that wants requests to be signed.
    #[cfg(feature = "s3")]
    pub(crate) signer: Option<super::signer::Signer>,
    pub(crate) plain_http: bool,
    pub(crate) retries: u32,
    pub(crate) back_off: Duration,
    pub(crate) patience: Duration,
    /// For a connection, where that is another one.
    pub(crate) connect_patience: Option<Duration>,
    pub(crate) index_place: Option<IndexPlace>,
}

/// A secret, which is not printed.
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
    /// Trust the certificates in a file (PEM) instead of the authorities that Mozilla trusts, which are built in.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when the file cannot be read; [`ErrorKind::Malformed`] when it has no certificate.
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

    /// Send this token (`Authorization: Bearer`), to the location's own origin only: never to where it redirects, and
    /// never over plain HTTP to another machine.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token(token.into()));
        self
    }

    /// Take `http://` for other machines than this one, too. Anybody on the way can read and change the file then.
    #[must_use]
    pub fn with_plain_http(mut self, is_allowed: bool) -> Self {
        self.plain_http = is_allowed;
        self
    }

    /// How often in a row a request is repeated after a failure that may pass: a broken connection, an answer that is
    /// too slow, the statuses 408, 429, 500, 502, 503 and 504. 5 unless said otherwise.
    #[must_use]
    pub fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// How long to wait before the first repetition, unless the server says; each further one waits twice as long. 250 ms
    /// unless said otherwise.
    #[must_use]
    pub fn with_back_off(mut self, back_off: Duration) -> Self {
        self.back_off = back_off;
        self
    }

    /// How long to wait for a connection, for an answer, and for more of one. An answer of which less than 1 KiB arrives
    /// per second, over that time, counts as broken. 30 s unless said otherwise.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// What to ask for first, instead of what [`IndexPlace::of_name`] says.
    #[must_use]
    pub fn with_index_place(mut self, place: IndexPlace) -> Self {
        self.index_place = Some(place);
        self
    }
}

/// The certificates in a text of PEM.
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
