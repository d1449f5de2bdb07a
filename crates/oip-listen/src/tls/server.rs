//! A server's certificate, reloaded when its files change.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use rustls::{ServerConfig, crypto::ring, server::WebPkiClientVerifier};
use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    files::{Contents, Problem, TlsError, TlsFile, TlsFiles},
    server_certificate::ServerCertificate,
};
use crate::protocol::Protocol;

/// A server's TLS 1.2 and 1.3 settings: its certificate, and its requirements for clients. Clones share one
/// state.
///
/// A connection uses the certificate that is current when it starts.
///
/// ```no_run
/// use oip_listen::{Tls, TlsFiles};
/// use std::time::Duration;
///
/// # async fn example() -> Result<(), oip_listen::TlsError> {
/// let tls = Tls::new(TlsFiles::new("server.pem", "server-key.pem").with_client_ca("clients.pem"))?;
/// tokio::spawn(tls.clone().watch(Duration::from_secs(5)));
/// // oip_listen::serve_tls(listener, Protocol::Http1, tls, service, limits, shutdown)
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tls(Arc<SharedState>);

struct SharedState {
    files: TlsFiles,
    current: RwLock<Current>,
    /// Contents of the files at the last check.
    seen: Mutex<Option<FileSnapshot>>,
    started: Instant,
    /// Time at which a failed handshake was last logged as a warning, in milliseconds since `started` plus
    /// one; 0 if no warning was logged.
    warned: AtomicU64,
    /// Number of failed handshakes since the last warning.
    refused: AtomicU64,
}

/// The contents of the files at one check.
struct FileSnapshot {
    contents: Contents,
    /// Whether the server could use these contents.
    is_used: bool,
}

/// A configuration for each protocol. The configurations differ in ALPN.
#[derive(Clone)]
struct Current {
    http1: Arc<ServerConfig>,
    http2: Arc<ServerConfig>,
}

impl Tls {
    /// Loads the certificates and keys in `files`.
    ///
    /// # Errors
    /// When a file is unreadable or invalid.
    pub fn new(files: TlsFiles) -> Result<Self, TlsError> {
        let contents = Contents::read(&files)?;
        let current = Current::new(&files, &contents)?;
        Ok(Self(Arc::new(SharedState {
            files,
            current: RwLock::new(current),
            seen: Mutex::new(Some(FileSnapshot {
                contents,
                is_used: true,
            })),
            started: Instant::now(),
            warned: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })))
    }

    /// Returns the paths of the certificate and key files.
    #[must_use]
    pub fn files(&self) -> &TlsFiles {
        &self.0.files
    }

    /// Returns facts about the certificate in the file; `None` while the files cannot be used.
    #[must_use]
    pub fn certificate(&self) -> Option<ServerCertificate> {
        let seen = self.0.seen.lock();
        Some(ServerCertificate::of(&seen.as_ref()?.contents.leaf()?))
    }

    /// Reloads the files for new connections. Returns whether the files changed.
    ///
    /// # Errors
    /// When a file is unusable. The current certificate stays in use. Unusable contents are reported only
    /// once.
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.look(false)
    }

    /// Reloads like [`Tls::reload`], on explicit request: unusable files are reported every time.
    ///
    /// # Errors
    /// When a file is unusable. The current certificate stays in use.
    pub fn reload_on_request(&self) -> Result<bool, TlsError> {
        self.look(true)
    }

    fn look(&self, is_requested: bool) -> Result<bool, TlsError> {
        let mut seen = self.0.seen.lock();
        let contents = Contents::read(&self.0.files).inspect_err(|_| *seen = None)?;
        if let Some(last) = &*seen
            && last.contents == contents
            && (last.is_used || !is_requested)
        {
            return Ok(false);
        }
        let made = Current::new(&self.0.files, &contents);
        let is_used = made.is_ok();
        *seen = Some(FileSnapshot { contents, is_used });
        *self.0.current.write() = made?;
        Ok(true)
    }

    /// Checks the files every `period` and logs changes. Never returns; needs a Tokio runtime.
    pub async fn watch(self, period: Duration) {
        // `Guard::watch` of `oip-auth` has the same loop; the two crates share no dependency that could hold it.
        let mut ticks = interval(period.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Message of the last failure, so that a failure is logged only once.
        let mut said = None;
        loop {
            ticks.tick().await;
            let tls = self.clone();
            match spawn_blocking(move || tls.reload()).await {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => {
                    said = None;
                    tracing::info!("new connections use the changed certificate");
                }
                Ok(Err(error)) => {
                    let text = error.to_string();
                    if said.as_ref() != Some(&text) {
                        let error = &text;
                        tracing::error!(
                            error,
                            "the changed certificate cannot be used; the previous one stays in use"
                        );
                        said = Some(text);
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Returns the configuration for a new connection.
    pub(super) fn config(&self, protocol: Protocol) -> Arc<ServerConfig> {
        let current = self.0.current.read();
        match protocol {
            Protocol::Http1 | Protocol::Either => current.http1.clone(),
            Protocol::Http2 => current.http2.clone(),
        }
    }

    /// Logs the reason why a handshake failed. Logs at most one warning per ten seconds, so that clients
    /// cannot flood the log.
    pub(crate) fn note_refused(&self, reason: &dyn fmt::Display) {
        const EVERY: u64 = 10_000;
        let now = u64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(u64::MAX) + 1;
        let warned = self.0.warned.load(Ordering::Relaxed);
        let is_due = warned == 0 || now.saturating_sub(warned) >= EVERY;
        let relaxed = Ordering::Relaxed;
        if is_due
            && self
                .0
                .warned
                .compare_exchange(warned, now, relaxed, relaxed)
                .is_ok()
        {
            let others = self.0.refused.swap(0, relaxed);
            tracing::warn!(%reason, others, "a TLS handshake failed");
        } else {
            self.0.refused.fetch_add(1, relaxed);
            tracing::debug!(%reason, "a TLS handshake failed");
        }
    }
}

impl fmt::Debug for Tls {
    /// Formats the paths only, never the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

impl Current {
    fn new(files: &TlsFiles, contents: &Contents) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = contents.chain(files)?;
        let key = contents.key(files)?;
        let authorities = contents.client_authorities(files)?;
        let wrong_key = |problem| TlsError::new(TlsFile::Key, &files.key, problem);
        let unusable = |error: &dyn fmt::Display| {
            let problem = Problem::Unusable(error.to_string());
            TlsError::new(TlsFile::Certificate, &files.certificate, problem)
        };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?;
        let builder = match authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider.clone());
                builder.with_client_cert_verifier(verifier.build().map_err(|error| unusable(&error))?)
            }
        };
        provider
            .key_provider
            .load_private_key(key.clone_key())
            .map_err(|error| wrong_key(Problem::UnsupportedKey(error)))?;
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => wrong_key(Problem::Mismatch {
                    certificate: files.certificate.clone(),
                }),
                error => unusable(&error),
            })?;
        config.ticketer = ring::Ticketer::new().map_err(|error| unusable(&error))?;
        // A client needs one ticket to resume a session; each further ticket costs a message.
        config.send_tls13_tickets = 1;
        let speaking = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(config)
        };
        Ok(Self {
            http1: speaking(&[b"h2", b"http/1.1", b"http/1.0"]),
            http2: speaking(&[b"h2"]),
        })
    }
}
