//! A remote file: requests, redirects, retries.

#[cfg(feature = "s3")]
use std::time::SystemTime;
use std::{
    io::{self, Read},
    ops::Range,
    sync::Arc,
    thread,
    time::Duration,
};

use bytes::Bytes;
use fmt_core::{Error, ErrorKind};
use parking_lot::{Mutex, MutexGuard};
use ureq::{
    Agent, Body,
    http::{Response, header, response},
    tls::{RootCerts, TlsConfig},
};

use super::{
    RemoteOptions,
    options::certificates,
    response_check::{self, Ask, Failure, Identity},
    resume::{Reopen, ResumingBody},
    target::Target,
};
use crate::{IndexPlace, source::Fetch};

/// A remote file whose length and version are known from a first response.
pub(crate) struct HttpFile(Arc<FileState>);

/// Parts of a file with their offsets.
pub(crate) type Parts = Vec<(u64, Bytes)>;

/// A file's location and version.
pub(crate) struct FileState {
    server: Server,
    identity: Identity,
}

/// A URL, and the agent and options to access it.
pub(crate) struct Server {
    agent: Agent,
    options: RemoteOptions,
    target: Target,
    /// The last redirect target, used for further requests until the server refuses it. Such URLs often
    /// expire after an hour.
    leads_to: Mutex<Option<Target>>,
}

/// Maximum number of redirects per request.
const MOST_REDIRECTS: u32 = 10;
/// Maximum back-off between retries, unless the server asks for a longer delay.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(10);

impl HttpFile {
    /// Requests the beginning of the file, and also the end if the index is there. Returns the file and these
    /// parts with their offsets.
    pub(crate) fn open(
        target: Target,
        options: RemoteOptions,
        place: IndexPlace,
    ) -> Result<(Self, Parts), Error> {
        let server = Server::new(target, options)?;
        let first = server.ask(&Ask::Front(place.front()), None);
        let (range, identity, body) = first.map_err(Failure::into_error)?;
        let file = Self(Arc::new(FileState { server, identity }));
        let mut parts = vec![(range.start, file.part(range, body)?)];
        if let Some(range) = place.end(file.len()) {
            let body = file.0.body(range.clone())?;
            parts.push((range.start, file.part(range, body)?));
        }
        Ok((file, parts))
    }

    fn part(&self, range: Range<u64>, body: Body) -> Result<Bytes, Error> {
        let mut bytes = Vec::new();
        if !range.is_empty() {
            let start = range.start;
            let mut body = ResumingBody::new(self.0.clone(), range, body);
            body.read_to_end(&mut bytes)
                .map_err(|error| fmt_core::source_error(error, start, "the first part of the file"))?;
        }
        Ok(bytes.into())
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.identity.len
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.0.identity
    }
}

impl Fetch for HttpFile {
    fn fetch(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let body = self.0.body(range.clone()).map_err(io::Error::other)?;
        Ok(Box::new(ResumingBody::new(self.0.clone(), range, body)))
    }
}

impl Reopen for FileState {
    fn body(&self, range: Range<u64>) -> Result<Body, Error> {
        let answer = self.server.ask(&Ask::Range(range), Some(&self.identity));
        let (_, _, body) = answer.map_err(Failure::into_error)?;
        Ok(body)
    }

    fn options(&self) -> &RemoteOptions {
        &self.server.options
    }
}

impl Failure {
    fn into_error(self) -> Error {
        match self {
            Self::Passing { error, .. } | Self::Lasting(error) => error,
        }
    }
}

impl Server {
    pub(crate) fn new(target: Target, options: RemoteOptions) -> Result<Self, Error> {
        Ok(Self {
            agent: agent(&options)?,
            options,
            target,
            leads_to: Mutex::new(None),
        })
    }

    /// Returns the URL of the file, before redirects.
    #[cfg(feature = "hub")]
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Sends a request, with retries until it succeeds or fails permanently.
    fn ask(&self, ask: &Ask, known: Option<&Identity>) -> Result<(Range<u64>, Identity, Body), Failure> {
        self.until_lasting(|| self.ask_once(ask, known))
    }

    /// Fetches a document of at most `most` bytes, with its headers.
    ///
    /// # Errors
    /// When the request fails or the document is larger.
    #[cfg(feature = "hub")]
    pub(crate) fn document(&self, most: u64) -> Result<(ureq::http::HeaderMap, Vec<u8>), Error> {
        let once = || {
            let (_, head, mut body) = self.follow(None, None)?;
            response_check::check_document(head.status, &head.headers)?;
            let document = body.with_config().limit(most).read_to_vec();
            let document = document.map_err(|error| match error {
                ureq::Error::BodyExceedsLimit(_) => {
                    let error = Error::new(ErrorKind::TooLarge, "the server's answer");
                    Failure::Lasting(error.expected(format_args!("at most {most} bytes")))
                }
                error => no_answer(error, &self.target, true),
            })?;
            Ok((head.headers, document))
        };
        self.until_lasting(once).map_err(Failure::into_error)
    }

    fn until_lasting<T>(&self, mut once: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
        let mut failures = 0;
        loop {
            let failure = match once() {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let Failure::Passing { after, .. } = &failure else {
                return Err(failure);
            };
            if failures >= self.options.retries {
                return Err(failure);
            }
            thread::sleep(after.unwrap_or_else(|| self.options.pause(failures)));
            failures += 1;
        }
    }

    fn ask_once(&self, ask: &Ask, known: Option<&Identity>) -> Result<(Range<u64>, Identity, Body), Failure> {
        let (target, head, body) = self.follow(Some(&ask.header()), known)?;
        let (range, identity) = response_check::check(head.status, &head.headers, ask, known)?;
        if target.uri() != self.target.uri() {
            *self.leads_to() = Some(target);
        }
        Ok((range, identity, body))
    }

    /// Sends a request and follows redirects. Returns the final response, which may be an error, with its
    /// URL.
    fn follow(
        &self,
        range: Option<&str>,
        known: Option<&Identity>,
    ) -> Result<(Target, response::Parts, Body), Failure> {
        let shortcut = self.leads_to().clone();
        let mut is_shortcut = shortcut.is_some();
        let mut target = shortcut.unwrap_or_else(|| self.target.clone());
        for _ in 0..=MOST_REDIRECTS {
            let response = self.send(&target, range, known)?;
            let (head, body) = response.into_parts();
            match head.status.as_u16() {
                301 | 302 | 303 | 307 | 308 => {
                    let location = head.headers.get(header::LOCATION);
                    let location = location
                        .and_then(|location| location.to_str().ok())
                        .ok_or_else(|| response_check::leads_nowhere(&head.headers))?;
                    let next = target.join(location)?;
                    target.check_redirect(&next, &self.options)?;
                    target = next;
                    is_shortcut = false;
                }
                400 | 401 | 403 | 404 | 410 if is_shortcut => {
                    *self.leads_to() = None;
                    target = self.target.clone();
                    is_shortcut = false;
                }
                _ => return Ok((target, head, body)),
            }
        }
        Err(Error::new(ErrorKind::Io, "the server redirects too often")
            .expected(format_args!("at most {MOST_REDIRECTS} times"))
            .into())
    }

    fn send(
        &self,
        target: &Target,
        range: Option<&str>,
        known: Option<&Identity>,
    ) -> Result<Response<Body>, Failure> {
        let mut request = self.agent.get(target.uri());
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        if let Some(condition) = known.and_then(Identity::condition) {
            request = request.header(header::IF_RANGE, condition);
        }
        let is_own = target.has_origin_of(&self.target);
        #[cfg(feature = "s3")]
        if let Some(signer) = self.options.signer.as_ref().filter(|_| is_own) {
            for (name, value) in signer.sign(
                target.authority(),
                target.uri().path(),
                range.unwrap_or_default(),
                SystemTime::now(),
            ) {
                request = request.header(name, value);
            }
        }
        if let Some(token) = &self.options.token
            && is_own
            && target.is_private()
        {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.0));
        }
        request
            .call()
            .map_err(|error| no_answer(error, target, known.is_some()))
    }

    fn leads_to(&self) -> MutexGuard<'_, Option<Target>> {
        self.leads_to.lock()
    }
}

impl RemoteOptions {
    /// Returns the back-off after `failures` failures in a row.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        let factor = 2_u32.saturating_pow(failures);
        self.back_off.saturating_mul(factor).min(LONGEST_BACK_OFF)
    }
}

fn no_answer(error: ureq::Error, target: &Target, is_open: bool) -> Failure {
    let what = format!("no response from {}", target.host());
    let lasting = match &error {
        // ureq reports TLS errors with this kind, among others.
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => true,
        // No server listens at this address, which is probably mistyped, so there is no retry.
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => !is_open,
        ureq::Error::ConnectionFailed => !is_open,
        ureq::Error::Io(_) | ureq::Error::Timeout(_) => false,
        // Errors such as unresolvable names, invalid settings and responses that are not HTTP.
        _ => true,
    };
    let text = error.to_string();
    let error = match error {
        ureq::Error::Timeout(_) => Error::io(what, io::ErrorKind::TimedOut.into()),
        error => Error::io(what, error.into_io()),
    };
    if text.contains("certificate") {
        return Failure::Lasting(error.expected(
            "a certificate from an authority that browsers trust, or from one of the file given (--ca)",
        ));
    }
    if lasting {
        Failure::Lasting(error)
    } else {
        Failure::Passing { error, after: None }
    }
}

pub(crate) fn agent(options: &RemoteOptions) -> Result<Agent, Error> {
    let mut tls = TlsConfig::builder();
    if let Some(pem) = &options.authorities {
        tls = tls.root_certs(RootCerts::from(certificates(pem)?));
    }
    let patience = Some(options.patience);
    let config = Agent::config_builder()
        .tls_config(tls.build())
        .http_status_as_error(false)
        // Redirects are followed by this module, because it decides which hosts may receive the token.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("tensorferry/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity")
        .timeout_resolve(patience)
        .timeout_connect(options.connect_patience.or(patience))
        .timeout_send_request(patience)
        .timeout_recv_response(patience)
        .timeout_per_read(patience)
        .timeout_per_write(patience);
    Ok(config.build().new_agent())
}
