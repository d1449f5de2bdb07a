//! Loads certificates and keys from PEM files and validates them. Errors name the file, the position and the
//! reason.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use x509_cert::{Certificate, der::Decode};

/// A server's certificate files, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The server's certificate, followed by its chain.
    pub certificate: PathBuf,
    /// The private key of the server's certificate, unencrypted.
    pub key: PathBuf,
    /// File with the authorities that sign client certificates; `None` if clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Names the files of a server's certificate and its key.
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            certificate: certificate.into(),
            key: key.into(),
            client_ca: None,
        }
    }

    /// Requires client certificates signed by these authorities.
    #[must_use]
    pub fn with_client_ca(mut self, authorities: impl Into<PathBuf>) -> Self {
        self.client_ca = Some(authorities.into());
        self
    }
}

/// The purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFile {
    /// The server's certificate.
    Certificate,
    /// The private key of the server's certificate.
    Key,
    /// The authorities of client certificates.
    ClientCa,
}

/// The error of a certificate or key file that is unusable.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct TlsError {
    file: TlsFile,
    path: PathBuf,
    #[source]
    problem: Problem,
}

impl TlsError {
    pub(crate) fn new(file: TlsFile, path: &Path, problem: Problem) -> Self {
        Self {
            file,
            path: path.to_owned(),
            problem,
        }
    }

    /// Returns the purpose of the file that is unusable.
    #[must_use]
    pub fn file(&self) -> TlsFile {
        self.file
    }
}

/// The reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("expected a file, found something else, such as a directory or a pipe")]
    NotAFile,
    #[error("has more than {MAX_BYTES} bytes, which no certificate or key needs")]
    TooLarge,
    #[error("expected PEM text with {expected}, found {found}")]
    NotPem { expected: Kind, found: &'static str },
    #[error("line {line}: expected {expected}, found {found}")]
    WrongSection {
        line: usize,
        expected: Kind,
        found: String,
    },
    #[error("line {line}: the PEM section cannot be read: {reason}")]
    Broken { line: usize, reason: String },
    #[error("line {line}: not an X.509 certificate: {reason}")]
    NotX509 { line: usize, reason: String },
    #[error(
        "line {line}: the key is encrypted; expected one without a password (openssl pkey -in FILE -out NEW)"
    )]
    Encrypted { line: usize },
    #[error("line {line}: there is one key too many; expected exactly one")]
    SecondKey { line: usize },
    #[error("line {line}: not a certificate of an authority that can be used: {reason}")]
    NotAnAuthority { line: usize, reason: String },
    #[error("this key does not belong to the first certificate of {}", certificate.display())]
    Mismatch { certificate: PathBuf },
    #[error("this kind of key cannot be used: {0}")]
    UnsupportedKey(rustls::Error),
    #[error("cannot be used: {0}")]
    Unusable(String),
}

/// The expected kind of PEM section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Certificate,
    Key,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate => "a certificate (BEGIN CERTIFICATE)",
            Self::Key => "a private key (BEGIN PRIVATE KEY)",
        })
    }
}

/// Maximum size of a file, in bytes. The bundle of all public authorities is 220 KiB.
const MAX_BYTES: u64 = 1 << 20;

/// The raw contents of each file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Contents {
    pub(crate) fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let client_ca = files.client_ca.as_deref();
        Ok(Self {
            certificate: read(TlsFile::Certificate, &files.certificate)?,
            key: read(TlsFile::Key, &files.key)?,
            client_ca: client_ca.map(|path| read(TlsFile::ClientCa, path)).transpose()?,
        })
    }

    /// Returns the server's certificate and its chain.
    pub(crate) fn chain(&self, files: &TlsFiles) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let wrong = |problem| TlsError::new(TlsFile::Certificate, &files.certificate, problem);
        let certificates = certificates(&self.certificate).map_err(wrong)?;
        for (line, certificate) in &certificates {
            let parsed =
                parse(certificate).map_err(|reason| wrong(Problem::NotX509 { line: *line, reason }))?;
            warn_of_time(&files.certificate, *line, &parsed);
        }
        Ok(certificates
            .into_iter()
            .map(|(_, certificate)| certificate)
            .collect())
    }

    /// Returns the server's certificate without its chain.
    pub(crate) fn leaf(&self) -> Option<Certificate> {
        let certificates = certificates(&self.certificate).ok()?;
        parse(&certificates.first()?.1).ok()
    }

    /// Returns the private key.
    pub(crate) fn key(&self, files: &TlsFiles) -> Result<PrivateKeyDer<'static>, TlsError> {
        private_key(&self.key).map_err(|problem| TlsError::new(TlsFile::Key, &files.key, problem))
    }

    /// Returns the authorities of client certificates, if the server requires client certificates.
    pub(crate) fn client_authorities(&self, files: &TlsFiles) -> Result<Option<RootCertStore>, TlsError> {
        let (Some(contents), Some(path)) = (&self.client_ca, &files.client_ca) else {
            return Ok(None);
        };
        let wrong = |problem| TlsError::new(TlsFile::ClientCa, path, problem);
        let mut store = RootCertStore::empty();
        for (line, certificate) in certificates(contents).map_err(wrong)? {
            let parsed = parse(&certificate).map_err(|reason| wrong(Problem::NotX509 { line, reason }))?;
            warn_of_time(path, line, &parsed);
            store.add(certificate).map_err(|error| {
                let reason = error.to_string();
                wrong(Problem::NotAnAuthority { line, reason })
            })?;
        }
        Ok(Some(store))
    }
}

fn read(file: TlsFile, path: &Path) -> Result<Vec<u8>, TlsError> {
    let wrong = |problem| TlsError::new(file, path, problem);
    let unreadable = |error| wrong(Problem::Unreadable(error));
    // Opening a named pipe would block until it has a writer.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(wrong(Problem::NotAFile));
    }
    let mut contents = Vec::new();
    let opened = File::open(path).map_err(unreadable)?;
    opened
        .take(MAX_BYTES + 1)
        .read_to_end(&mut contents)
        .map_err(unreadable)?;
    if contents.len() as u64 > MAX_BYTES {
        return Err(wrong(Problem::TooLarge));
    }
    Ok(contents)
}

/// A section of a PEM file: its line number, its label, and its text up to the next section.
struct Section<'a> {
    line: usize,
    label: String,
    text: &'a [u8],
}

impl Section<'_> {
    fn is_certificate(&self) -> bool {
        self.label == "CERTIFICATE"
    }

    fn is_key(&self) -> bool {
        self.label.ends_with("PRIVATE KEY")
    }

    /// Returns the section's name for messages.
    fn name(&self) -> String {
        match () {
            () if self.is_certificate() => "a certificate".to_owned(),
            () if self.is_key() => "a private key".to_owned(),
            () => format!("BEGIN {}", self.label.escape_debug()),
        }
    }
}

fn sections(contents: &[u8]) -> Vec<Section<'_>> {
    const BEGIN: &[u8] = b"-----BEGIN ";
    let mut starts = Vec::new();
    let mut offset = 0;
    for (number, line) in contents.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if let Some(rest) = line.strip_prefix(BEGIN) {
            let label = String::from_utf8_lossy(rest)
                .trim_end()
                .trim_end_matches('-')
                .to_owned();
            starts.push((number + 1, label, offset));
        }
        offset += line.len();
    }
    let ends: Vec<usize> = starts
        .iter()
        .skip(1)
        .map(|(_, _, start)| *start)
        .chain([offset])
        .collect();
    let sections = starts.into_iter().zip(ends);
    sections
        .map(|((line, label, start), end)| Section {
            line,
            label,
            text: &contents[start..end],
        })
        .collect()
}

/// Describes a file without PEM sections.
fn not_pem(contents: &[u8], expected: Kind) -> Problem {
    let found = match contents {
        [] => "an empty file",
        // An ASN.1 sequence whose length is in the long form: the start of DER certificates and keys.
        [0x30, 0x81..=0x84, ..] => {
            "binary data, perhaps DER (openssl x509 or openssl pkey, with -inform der, makes PEM of it)"
        }
        _ => "no section that begins with -----BEGIN",
    };
    Problem::NotPem { expected, found }
}

/// Returns all certificates of a file, with their line numbers.
fn certificates(contents: &[u8]) -> Result<Vec<(usize, CertificateDer<'static>)>, Problem> {
    let sections = sections(contents);
    if sections.is_empty() {
        return Err(not_pem(contents, Kind::Certificate));
    }
    let mut certificates = Vec::new();
    for section in sections {
        let line = section.line;
        if !section.is_certificate() {
            // Files that contain a key or parameters after the certificates are common.
            if section.is_key() && !certificates.is_empty() || section.label.ends_with("PARAMETERS") {
                continue;
            }
            return Err(Problem::WrongSection {
                line,
                expected: Kind::Certificate,
                found: section.name(),
            });
        }
        let certificate = CertificateDer::from_pem_slice(section.text);
        let certificate = certificate.map_err(|error| broken(line, &error))?;
        certificates.push((line, certificate));
    }
    if certificates.is_empty() {
        return Err(not_pem(b"?", Kind::Certificate));
    }
    Ok(certificates)
}

fn private_key(contents: &[u8]) -> Result<PrivateKeyDer<'static>, Problem> {
    let sections = sections(contents);
    if sections.is_empty() {
        return Err(not_pem(contents, Kind::Key));
    }
    let mut keys = sections.iter().filter(|section| section.is_key());
    let Some(section) = keys.next() else {
        let first = &sections[0];
        return Err(Problem::WrongSection {
            line: first.line,
            expected: Kind::Key,
            found: first.name(),
        });
    };
    let line = section.line;
    let is_encrypted = section.label.starts_with("ENCRYPTED")
        || section
            .text
            .windows(18)
            .any(|window| window == b"Proc-Type: 4,ENCRY");
    if is_encrypted {
        return Err(Problem::Encrypted { line });
    }
    if let Some(second) = keys.next() {
        return Err(Problem::SecondKey { line: second.line });
    }
    PrivateKeyDer::from_pem_slice(section.text).map_err(|error| broken(line, &error))
}

fn broken(line: usize, error: &rustls::pki_types::pem::Error) -> Problem {
    use rustls::pki_types::pem::Error;
    // The message is written here, because the library's messages print bytes as numbers.
    let reason = match error {
        Error::MissingSectionEnd { .. } => "its END line is missing".to_owned(),
        Error::IllegalSectionStart { .. } => "its BEGIN line does not end in -----".to_owned(),
        Error::NoItemsFound => "its kind is not known".to_owned(),
        other => other.to_string(),
    };
    Problem::Broken { line, reason }
}

fn parse(certificate: &[u8]) -> Result<Certificate, String> {
    Certificate::from_der(certificate).map_err(|error| error.to_string())
}

/// Logs a warning if a certificate has expired, is not yet valid, or expires soon.
fn warn_of_time(path: &Path, line: usize, certificate: &Certificate) {
    const SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);
    let validity = &certificate.tbs_certificate.validity;
    let (from, until) = (validity.not_before, validity.not_after);
    let file = path.display();
    let now = SystemTime::now();
    if until.to_system_time() < now {
        tracing::warn!(%file, line, expired = %until, "a certificate has expired");
    } else if from.to_system_time() > now {
        tracing::warn!(%file, line, begins = %from, "a certificate is not valid yet");
    } else if until.to_system_time() < now + SOON {
        tracing::warn!(%file, line, expires = %until, "a certificate expires soon");
    }
}
