//! A key set at a URL. A background thread fetches the set, and keeps the old keys while the URL is
//! unreachable. It fetches the set again when the set expires or a token is signed with an unknown key.
//! Requests never wait for a fetch.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::RwLock;
use ureq::{
    Agent, Body,
    http::{HeaderMap, Response, StatusCode, Uri, header::CACHE_CONTROL, uri::Scheme},
    tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem},
};

use crate::key::{Key, read_set};

/// The location of a key set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeysLocation {
    pub(crate) url: String,
    /// CA certificates (PEM) that verify the server; `None` to use the built-in certificates.
    pub(crate) authorities: Option<Vec<u8>>,
}

/// Intervals for fetching keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Lifetime of the keys if the server's response declares none.
    usual: Duration,
    /// Minimum lifetime of the keys.
    least: Duration,
    most: Duration,
    /// Minimum interval between fetches caused by unknown keys, and maximum back-off after a failure.
    pause: Duration,
    /// Initial back-off after a failure. The back-off doubles with each failure.
    back_off: Duration,
    /// Timeout of a fetch.
    patience: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            usual: Duration::from_secs(600),
            least: Duration::from_secs(60),
            most: Duration::from_secs(24 * 3600),
            pause: Duration::from_secs(30),
            back_off: Duration::from_secs(1),
            patience: Duration::from_secs(10),
        }
    }
}

/// Maximum size of a key set, in bytes. Typical sets are a few thousand bytes long.
const MOST_BYTES: u64 = 1 << 20;

/// A key set that a background thread keeps up to date. Dropping the value ends the thread.
pub(crate) struct RemoteKeys {
    location: KeysLocation,
    held: Arc<CurrentKeys>,
    wake: SyncSender<()>,
}

#[derive(Default)]
struct CurrentKeys {
    /// The keys and the number of changes so far; `None` before the first fetch.
    keys: RwLock<Option<(Arc<Vec<Key>>, u64)>>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    fetched: AtomicU64,
    failed: AtomicU64,
}

/// The reason why keys could not be fetched.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) reason: String,
    /// Whether a retry may succeed without a change of the configuration.
    pub(crate) is_passing: bool,
}

impl Failure {
    fn lasting(reason: impl Into<String>) -> Self {
        let (reason, is_passing) = (reason.into(), false);
        Self { reason, is_passing }
    }
}

impl KeysLocation {
    /// Returns whether `keys` is a URL and not the path of a file.
    pub(crate) fn is_url(keys: &str) -> bool {
        keys.contains("://")
    }

    /// Checks that the connection to `url` protects the keys (HTTPS, or a server on this machine).
    pub(crate) fn check(url: &str) -> Result<(), String> {
        // Credentials in the URL would be logged.
        if url.contains('@') {
            return Err("the URL of keys has a password or an @, which is not supported".to_owned());
        }
        let parsed: Uri = url
            .parse()
            .map_err(|error| format!("expected the URL of a JSON Web Key Set: {error}"))?;
        let host = parsed.host().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let is_local = host == "localhost" || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        match parsed.scheme() {
            _ if host.is_empty() => Err(format!("expected a URL with a host, found '{url}'")),
            Some(scheme) if *scheme == Scheme::HTTPS => Ok(()),
            Some(scheme) if *scheme == Scheme::HTTP && is_local => Ok(()),
            Some(scheme) if *scheme == Scheme::HTTP => Err(format!(
                "keys are fetched by https:// only (http:// on this machine), since others could modify \
                 them in transit; \
                 found '{url}'"
            )),
            _ => Err(format!("expected a file or a URL with https://, found '{url}'")),
        }
    }

    fn agent(&self, pace: Pace) -> Result<Agent, String> {
        let mut tls = TlsConfig::builder();
        if let Some(pem) = &self.authorities {
            tls = tls.root_certs(RootCerts::from(certificates(pem)?));
        }
        let mut config = Agent::config_builder();
        if self
            .url
            .get(..5)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("http:"))
        {
            // The host is this machine, so proxies are bypassed.
            config = config.proxy(None);
        }
        Ok(config
            .tls_config(tls.build())
            .timeout_global(Some(pace.patience))
            .http_status_as_error(false)
            // A redirect could lead to a different scheme or host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .accept("application/jwk-set+json, application/json")
            .user_agent(concat!("oip-auth/", env!("CARGO_PKG_VERSION")))
            .build()
            .into())
    }
}

/// Parses PEM certificates. Fails if there are none.
fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, String> {
    let mut found = Vec::new();
    for item in parse_pem(pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| format!("not PEM: {error}"))? {
            found.push(certificate);
        }
    }
    match found.is_empty() {
        true => Err("expected certificates in PEM, found none".to_owned()),
        false => Ok(found),
    }
}

/// Checks that the file content `pem` contains certificates.
pub(crate) fn check_authorities(pem: &[u8]) -> Result<(), String> {
    certificates(pem).map(drop)
}

impl RemoteKeys {
    /// Fetches the keys and starts the background thread. Waits for a slow server, but continues without keys
    /// if the server is unreachable: an outage of the issuer must not prevent this server from starting.
    pub(crate) fn start(location: KeysLocation) -> Result<Self, Failure> {
        Self::start_with(location, Pace::default())
    }

    fn start_with(location: KeysLocation, pace: Pace) -> Result<Self, Failure> {
        let (wake, wakes) = sync_channel(1);
        let held = Arc::new(CurrentKeys::default());
        let agent = location.agent(pace).map_err(Failure::lasting)?;
        let mut fetcher = Fetcher {
            url: location.url.clone(),
            agent,
            pace,
            held: held.clone(),
            wait: pace.back_off,
            is_failing: false,
        };
        let next = match fetcher.fetch() {
            Ok(good_for) => good_for,
            Err(failure) if failure.is_passing => fetcher.failed(&failure),
            Err(failure) => return Err(failure),
        };
        thread::Builder::new()
            .name("jwks".to_owned())
            .spawn(move || fetcher.run(&wakes, next))
            .map_err(|error| Failure::lasting(format!("cannot start a thread: {error}")))?;
        Ok(Self { location, held, wake })
    }

    pub(crate) fn location(&self) -> &KeysLocation {
        &self.location
    }

    /// Returns the keys with their version number.
    pub(crate) fn keys(&self) -> Option<(Arc<Vec<Key>>, u64)> {
        self.held.keys.read().clone()
    }

    /// Requests a fetch because a token is signed with an unknown key. Fetches are rate-limited, so that
    /// forged tokens cannot cause many fetches.
    pub(crate) fn ask(&self) {
        // A full channel means that a refetch is already requested.
        let _ = self.wake.try_send(());
    }

    /// Returns the numbers of successful and failed fetches.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let Counts { fetched, failed } = &self.held.counts;
        (fetched.load(Relaxed), failed.load(Relaxed))
    }
}

/// The state of the background thread.
struct Fetcher {
    url: String,
    agent: Agent,
    pace: Pace,
    held: Arc<CurrentKeys>,
    /// Back-off after the next failure.
    wait: Duration,
    /// Whether the last fetch failed. A failure is logged once, and so is the recovery.
    is_failing: bool,
}

impl Fetcher {
    fn run(mut self, wakes: &Receiver<()>, next: Duration) {
        let mut last = Instant::now();
        let mut next = last + next;
        loop {
            match wakes.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(()) => {
                    next = next.min(last + self.pace.pause);
                    if Instant::now() < next {
                        continue;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let wait = match self.fetch() {
                Ok(good_for) => {
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!(url = self.url, "the keys of tokens are fetched again");
                    }
                    good_for
                }
                Err(failure) => self.failed(&failure),
            };
            last = Instant::now();
            next = last + wait;
        }
    }

    /// Logs a failure. Returns how long to wait before the next fetch.
    fn failed(&mut self, failure: &Failure) -> Duration {
        self.held.counts.failed.fetch_add(1, Relaxed);
        if !std::mem::replace(&mut self.is_failing, true) {
            let (url, reason) = (&self.url, &failure.reason);
            let has_keys = self.held.keys.read().is_some();
            match has_keys {
                true => tracing::error!(
                    url,
                    reason,
                    "the keys of tokens cannot be fetched; the known ones stay in use"
                ),
                false => {
                    tracing::error!(
                        url,
                        reason,
                        "the keys of tokens cannot be fetched; JSON Web Tokens are refused"
                    );
                }
            }
        }
        let wait = self.wait;
        self.wait = (wait * 2).min(self.pace.pause);
        wait
    }

    /// Fetches keys once and returns their lifetime.
    fn fetch(&mut self) -> Result<Duration, Failure> {
        let answer = self
            .agent
            .get(&self.url)
            .call()
            .map_err(|error| of_agent(&error))?;
        let good_for = self.good_for(answer.headers());
        let set = body(answer)?;
        let (keys, complaint) = read_set(&set).map_err(Failure::lasting)?;
        if let Some(reason) = complaint {
            tracing::warn!(url = self.url, reason, "a key of tokens cannot be used");
        }
        let mut held = self.held.keys.write();
        let changes = match &*held {
            Some((known, changes)) if **known == keys => *changes,
            Some((_, changes)) => changes + 1,
            None => 1,
        };
        *held = Some((Arc::new(keys), changes));
        drop(held);
        self.held.counts.fetched.fetch_add(1, Relaxed);
        self.wait = self.pace.back_off;
        Ok(good_for)
    }

    fn good_for(&self, headers: &HeaderMap) -> Duration {
        let control = headers.get(CACHE_CONTROL).and_then(|value| value.to_str().ok());
        let said = control.and_then(max_age).unwrap_or(self.pace.usual);
        said.clamp(self.pace.least, self.pace.most)
    }
}

/// Parses the lifetime from a `cache-control` header.
fn max_age(control: &str) -> Option<Duration> {
    let mut parts = control.split(',').map(str::trim);
    parts.find_map(|part| {
        if part.eq_ignore_ascii_case("no-cache") || part.eq_ignore_ascii_case("no-store") {
            return Some(Duration::ZERO);
        }
        let (name, seconds) = part.split_once('=')?;
        let seconds = seconds.trim_matches('"').parse().ok()?;
        name.eq_ignore_ascii_case("max-age")
            .then_some(Duration::from_secs(seconds))
    })
}

fn body(mut answer: Response<Body>) -> Result<Vec<u8>, Failure> {
    let status = answer.status();
    if status.is_redirection() {
        let to = answer.headers().get("location").and_then(|to| to.to_str().ok());
        let to = to.unwrap_or("nowhere").escape_debug();
        return Err(Failure::lasting(format!(
            "it answers {status} to '{to}'; redirects are not followed: give the URL where the keys are"
        )));
    }
    if status != StatusCode::OK {
        let is_passing = status.is_server_error()
            || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
        let reason = format!("it answers {status}");
        return Err(Failure { reason, is_passing });
    }
    answer
        .body_mut()
        .with_config()
        .limit(MOST_BYTES)
        .read_to_vec()
        .map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(limit) => Failure::lasting(format!(
                "expected a JSON Web Key Set of at most {limit} bytes, found more"
            )),
            error => of_agent(&error),
        })
}

fn of_agent(error: &ureq::Error) -> Failure {
    let text = error.to_string();
    // An unknown CA stays unknown until the files change, so retrying does not help.
    if text.contains("certificate") {
        return Failure::lasting(format!(
            "{text}: expected a certificate by an authority that browsers trust, or by one of the file `ca`"
        ));
    }
    let is_lasting = matches!(
        error,
        ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::InvalidProxyUrl
    );
    Failure {
        reason: text,
        is_passing: !is_lasting,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Read, Write},
        net::{SocketAddr, TcpListener},
        time::SystemTime,
    };

    use parking_lot::Mutex;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::{ServerConfig, ServerConnection, StreamOwned, pki_types::PrivateKeyDer};
    use serde_json::json;

    use super::*;
    use crate::jwt::{Keys, TokenError, Verifier, tests::Issuer};

    const FAST: Pace = Pace {
        usual: Duration::from_secs(3600),
        least: Duration::from_millis(10),
        most: Duration::from_secs(3600),
        pause: Duration::from_millis(200),
        back_off: Duration::from_millis(20),
        patience: Duration::from_secs(20),
    };

    /// Returns a CA certificate, and a TLS configuration for `localhost` with a certificate signed by this
    /// CA.
    fn certified() -> (String, Arc<ServerConfig>) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .unwrap();
        (authority.pem(), Arc::new(config))
    }

    type ServedResponse = Arc<Mutex<(String, String)>>;

    /// Responds to every request with the head and body in `answer`, which the test may change. Returns the
    /// number of requests so far.
    fn serve(
        listener: TcpListener,
        tls: Option<Arc<ServerConfig>>,
        answer: ServedResponse,
    ) -> Arc<AtomicU64> {
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, answer, count) = (stream.unwrap(), answer.clone(), counted.clone());
                let tls = tls.clone();
                thread::spawn(move || match tls {
                    None => converse(stream, &answer, &count),
                    Some(tls) => {
                        converse(
                            StreamOwned::new(ServerConnection::new(tls).unwrap(), stream),
                            &answer,
                            &count,
                        );
                    }
                });
            }
        });
        count
    }

    fn converse(stream: impl Read + Write, answer: &ServedResponse, count: &AtomicU64) {
        let mut stream = BufReader::new(stream);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if stream.read_line(&mut head).unwrap_or(0) == 0 {
                    return;
                }
            }
            count.fetch_add(1, Relaxed);
            let (status, body) = answer.lock().clone();
            let length = body.len();
            let text = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
            if stream.get_mut().write_all(text.as_bytes()).is_err() || stream.get_mut().flush().is_err() {
                return;
            }
        }
    }

    fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn answer(status: &str, body: &str) -> ServedResponse {
        Arc::new(Mutex::new((status.to_owned(), body.to_owned())))
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < end, "{what}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn token(issuer: &Issuer, kid: &str) -> String {
        let header = json!({"alg": "EdDSA", "kid": kid});
        issuer.sign(
            &header,
            &json!({"iss": "i", "aud": "a", "sub": "ci", "exp": u64::MAX}),
        )
    }

    #[test]
    fn keys_come_over_tls_and_new_ones_when_a_token_wants_them() {
        let (ca, tls) = certified();
        let (listener, address) = listen();
        let (first, second) = (Issuer::new(), Issuer::new());
        let served = answer("200 OK", &first.set().to_string());
        let count = serve(listener, Some(tls), served.clone());
        let url = format!("https://localhost:{}/keys", address.port());
        let location = |authorities: Option<&str>| KeysLocation {
            url: url.clone(),
            authorities: authorities.map(|pem| pem.as_bytes().to_vec()),
        };
        let refused = RemoteKeys::start_with(location(None), FAST).err().unwrap();
        assert!(
            !refused.is_passing && refused.reason.contains("or by one of the file `ca`"),
            "{refused:?}"
        );
        let fetched = Arc::new(RemoteKeys::start_with(location(Some(&ca)), FAST).unwrap());
        let verifier = Verifier::new(
            Keys::Server(fetched.clone()),
            "i".to_owned(),
            "a".to_owned(),
            "sub".to_owned(),
        );
        let verify = |token: &str| verifier.verify(token, SystemTime::now());
        let known = verify(&token(&first, "ed")).unwrap();
        assert_eq!(known.keys, verifier.keys().unwrap());
        // A thousand tokens with unknown keys cause one or two fetches.
        let (before, start) = (count.load(Relaxed), Instant::now());
        for _ in 0..1000 {
            let unknown = verify(&token(&second, "made-up")).unwrap_err();
            assert_eq!(
                unknown,
                TokenError::Token("the token is not signed by a known key")
            );
        }
        let looks = start.elapsed().as_millis() / FAST.pause.as_millis() + 2;
        assert!(u128::from(count.load(Relaxed) - before) <= looks);
        // The issuer has another key, with another id. A token that is signed with this key causes a fetch.
        let changed = second.set().to_string().replace("\"ed\"", "\"new\"");
        served.lock().1 = changed;
        until("the new key is known", || verify(&token(&second, "new")).is_ok());
        assert!(verify(&token(&first, "ed")).is_err(), "the old key is gone");
        assert_ne!(verifier.keys().unwrap(), known.keys, "tokens are verified anew");

        // A response that is not a key set is rejected, and the old keys stay in use.
        let (_, failed) = fetched.counts();
        *served.lock() = ("200 OK".to_owned(), "<html>".to_owned());
        until("it fails", || {
            let _ = verify(&token(&first, "ed"));
            fetched.counts().1 > failed
        });
        verify(&token(&second, "new")).unwrap();
    }

    #[test]
    fn a_server_that_cannot_be_reached_is_tried_again() {
        let (listener, address) = listen();
        drop(listener);
        let location = KeysLocation {
            url: format!("http://{address}/keys"),
            authorities: None,
        };
        let fetched = RemoteKeys::start_with(location, FAST).unwrap();
        assert!(fetched.keys().is_none());
        until("it is tried again", || fetched.counts().1 >= 3);
        let listener = TcpListener::bind(address).unwrap();
        let mut set = Issuer::new().set();
        // An unsupported key does not make the set unusable.
        set["keys"]
            .as_array_mut()
            .unwrap()
            .push(json!({"kty": "oct", "k": "AAAA"}));
        let served = answer("200 OK\r\ncache-control: public, max-age=0", &set.to_string());
        serve(listener, None, served.clone());
        until("keys are there", || fetched.keys().is_some());
        // The lifetime is the one in the server's response, but at least the minimum.
        let (before, _) = fetched.counts();
        until("it is fetched again and again", || {
            fetched.counts().0 > before + 2
        });
        served.lock().0 = "503 Service Unavailable".to_owned();
        let (_, failed) = fetched.counts();
        until("it fails", || fetched.counts().1 > failed + 1);
        assert!(fetched.keys().is_some());
    }

    #[test]
    fn answers_that_are_no_keys_are_told_at_start() {
        let (listener, address) = listen();
        let served = answer("200 OK", "");
        serve(listener, None, served.clone());
        let huge = format!("{{\"keys\": [], \"x\": \"{}\"}}", "x".repeat(2 << 20));
        for (status, body, expected) in [
            ("404 Not Found", "", "it answers 404 Not Found"),
            (
                "302 Found\r\nlocation: http://other/",
                "",
                "it answers 302 Found to 'http://other/'; redirects are not followed",
            ),
            ("200 OK", "[]", "not a JSON Web Key Set"),
            ("200 OK", "{\"keys\": []}", "found none"),
            ("200 OK", &huge, "of at most 1048576 bytes, found more"),
        ] {
            *served.lock() = (status.to_owned(), body.to_owned());
            let location = KeysLocation {
                url: format!("http://{address}/"),
                authorities: None,
            };
            let failure = RemoteKeys::start_with(location, FAST).err().unwrap();
            assert!(
                !failure.is_passing && failure.reason.contains(expected),
                "{failure:?}"
            );
        }
    }

    #[test]
    fn urls_that_anybody_could_answer_are_refused() {
        for url in [
            "https://login.example.com/keys?x=1",
            "http://127.0.0.1:1/",
            "http://[::1]/k",
            "http://localhost/k",
        ] {
            assert_eq!(KeysLocation::check(url), Ok(()), "{url}");
        }
        for (url, expected) in [
            ("http://login.example.com/keys", "by https:// only"),
            ("http://127.0.0.1.example.com/", "by https:// only"),
            ("https://user:secret@host/", "has a password"),
            ("ftp://host/keys", "expected a file or a URL with https://"),
            ("https://", "expected the URL of a JSON Web Key Set"),
        ] {
            let error = KeysLocation::check(url).unwrap_err();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn cache_control_says_how_long_keys_are_good() {
        for (control, seconds) in [
            ("max-age=300", Some(300)),
            ("public, Max-Age=\"60\", must-revalidate", Some(60)),
            ("no-store", Some(0)),
            ("no-cache, max-age=5", Some(0)),
            ("max-age=x", None),
            ("s-maxage=5", None),
            ("", None),
        ] {
            assert_eq!(max_age(control), seconds.map(Duration::from_secs), "{control}");
        }
    }
}
