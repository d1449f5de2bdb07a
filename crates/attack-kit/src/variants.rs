//! A server with various options that operators enable: TLS, identities, logs, traces, recording. This module
//! also creates what the options need: certificates, a token, a collector that accepts everything.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::Arc,
    thread,
};

use anyhow::Result;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ClientConfig, RootCertStore, crypto::ring};

/// The token that requests carry, and its SHA-256.
pub(crate) const TOKEN: &str = "s3cret";
const DIGEST: &str = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";

/// A server with certain options.
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) options: Vec<String>,
    /// TLS settings of connections, if any.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// Whether requests carry the token.
    pub(crate) has_token: bool,
}

impl Variant {
    fn new(name: &'static str, options: &[String]) -> Self {
        Self {
            name,
            options: options.to_vec(),
            tls: None,
            has_token: false,
        }
    }
}

/// Returns all variants; their files are created in `folder`.
pub(crate) fn all(folder: &Path) -> Result<Vec<Variant>> {
    let files = OptionFiles {
        folder,
        collector: collector()?,
    };
    let (client, encrypted) = files.tls()?;
    let known = files.identities()?;
    let everything = [
        &encrypted[..],
        &known,
        &files.access_log("all.log"),
        &files.traces(0.01)?,
    ];
    Ok(vec![
        Variant::new("nothing", &[]),
        Variant::new("nothing, once more", &[]),
        Variant {
            tls: Some(client.clone()),
            ..Variant::new("TLS 1.3", &encrypted)
        },
        Variant {
            has_token: true,
            ..Variant::new("a token with a rate", &known)
        },
        Variant::new("access log, JSON", &files.access_log("access.log")),
        Variant::new("traces, one of a hundred", &files.traces(0.01)?),
        Variant::new("traces, all", &files.traces(1.0)?),
        Variant::new("metrics pushed each second", &files.metrics()?),
        Variant::new("recorded, one of a hundred", &files.capture("some", 0.01)?),
        Variant {
            tls: Some(client),
            has_token: true,
            ..Variant::new("TLS, token, log, traces of 0.01", &everything.concat())
        },
    ])
}

/// Creates the files that server options name, and returns the options.
struct OptionFiles<'f> {
    folder: &'f Path,
    /// The URL of the collector of traces and metrics.
    collector: String,
}

impl OptionFiles<'_> {
    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Creates a certificate; also returns the settings of clients that trust it.
    fn tls(&self) -> Result<(Arc<ClientConfig>, [String; 2])> {
        let (certificate, key) = (self.path("cert.pem"), self.path("key.pem"));
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()])?;
        fs::write(&certificate, cert.pem())?;
        fs::write(&key, signing_key.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone())?;
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let options = [
            format!("--tls-certificate={certificate}"),
            format!("--tls-key={key}"),
        ];
        Ok((Arc::new(client), options))
    }

    /// Creates an identity with the token.
    fn identities(&self) -> Result<[String; 1]> {
        let file = self.path("auth.toml");
        let table =
            format!("[identities.bench]\ntoken-sha256 = [\"{DIGEST}\"]\napis = [\"*\"]\nrate = 1e9\n");
        fs::write(&file, table)?;
        Ok([format!("--auth={file}")])
    }

    fn access_log(&self, name: &str) -> [String; 2] {
        [
            "--access-log=json".to_owned(),
            format!("--access-log-file={}", self.path(name)),
        ]
    }

    /// Creates a configuration file, for settings without a command line option.
    fn config(&self, name: &str, settings: String) -> Result<[String; 1]> {
        let file = self.path(&format!("{name}.toml"));
        fs::write(&file, settings)?;
        Ok([format!("--config={file}")])
    }

    fn traces(&self, ratio: f64) -> Result<[String; 1]> {
        let collector = &self.collector;
        self.config(
            &format!("traces-{ratio}"),
            format!("otlp-endpoint = {collector:?}\notlp-sample-ratio = {ratio:?}\n"),
        )
    }

    fn metrics(&self) -> Result<[String; 1]> {
        let collector = &self.collector;
        self.config(
            "metrics",
            format!("otlp-metrics-endpoint = {collector:?}\notlp-metrics-interval = \"1s\"\n"),
        )
    }

    /// Creates a configuration that records the fraction `rate` of requests in the directory `name`.
    fn capture(&self, name: &str, rate: f64) -> Result<[String; 1]> {
        let path = self.path(name);
        self.config(name, format!("capture = {path:?}\ncapture-rate = {rate:?}\n"))
    }
}

/// Starts an in-process collector that accepts everything; returns its URL.
fn collector() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || take(stream));
        }
    });
    Ok(url)
}

/// Responds to each request of a connection after its body; returns when the connection is closed.
fn take(stream: TcpStream) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok()?;
            }
        }
        std::io::copy(&mut stream.by_ref().take(length), &mut std::io::sink()).ok()?;
        out.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .ok()?;
    }
}
