//! TLS settings: trusted authorities and the client's certificate.

use std::{fmt, sync::Arc};

use rustls::{
    AlertDescription, ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::{ClientError, ErrorKind};

/// A client's TLS settings.
#[derive(Clone, Default)]
pub(crate) struct TlsSettings {
    /// Trusted authorities in PEM; `None` for those of the system.
    pub(crate) authorities: Option<Arc<[u8]>>,
    /// The client certificate, for servers that request one.
    pub(crate) identity: Option<Identity>,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: Arc<[u8]>,
    pub(crate) key: Arc<[u8]>,
}

impl fmt::Debug for TlsSettings {
    /// Omits the private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings")
            .field("has_authorities", &self.authorities.is_some())
            .field("has_identity", &self.identity.is_some())
            .finish()
    }
}

impl TlsSettings {
    pub(crate) fn is_empty(&self) -> bool {
        self.authorities.is_none() && self.identity.is_none()
    }

    /// Creates the TLS configuration for one ALPN protocol.
    pub(crate) fn config(&self, protocol: &[u8]) -> Result<ClientConfig, ClientError> {
        let wrong = |message: String| ClientError::new(ErrorKind::Usage, message);
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(error.to_string()))?
            .with_root_certificates(self.roots()?);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let chain = certificates("the client's certificate", certificate)?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
                    wrong(format!(
                        "the client's key: expected a private key in PEM without a password: {error}"
                    ))
                })?;
                builder.with_client_auth_cert(chain, key).map_err(|error| {
                    wrong(format!(
                        "the client's certificate and key cannot be used: {error}"
                    ))
                })?
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }

    fn roots(&self) -> Result<RootCertStore, ClientError> {
        let mut roots = RootCertStore::empty();
        match &self.authorities {
            Some(authorities) => {
                for certificate in certificates("the authorities", authorities)? {
                    roots.add(certificate).map_err(|error| {
                        ClientError::new(ErrorKind::Usage, format!("the authorities: {error}"))
                    })?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                // A system's store may contain unusable certificates; skip those.
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    let message = "the system has no certificates of authorities: name the server's";
                    return Err(ClientError::new(ErrorKind::Usage, message));
                }
            }
        }
        Ok(roots)
    }
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let wrong = |reason: String| {
        ClientError::new(
            ErrorKind::Usage,
            format!("{what}: expected certificates in PEM: {reason}"),
        )
    };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| wrong(error.to_string()))?;
    match found.is_empty() {
        true => Err(wrong("found none".to_owned())),
        false => Ok(found),
    }
}

/// Returns the message for a client certificate that the server rejected.
fn of_alert(alert: AlertDescription) -> Option<String> {
    let text = match alert {
        AlertDescription::CertificateRequired => "the server wants a certificate of the client",
        AlertDescription::UnknownCA => {
            "the server knows no authority that has signed the client's certificate"
        }
        AlertDescription::CertificateExpired => "the client's certificate has expired",
        _ => return None,
    };
    Some(text.to_owned())
}

/// Returns the message for a rejected client certificate, from the error string that the server's alert
/// caused.
pub(crate) fn explain_alert(text: &str) -> Option<String> {
    let known = [
        AlertDescription::CertificateRequired,
        AlertDescription::UnknownCA,
        AlertDescription::CertificateExpired,
    ];
    let alert = known
        .into_iter()
        .find(|alert| text.contains(&rustls::Error::AlertReceived(*alert).to_string()));
    of_alert(alert?)
}

/// Returns the message for a failed handshake.
pub(crate) fn explain(error: &rustls::Error) -> String {
    use rustls::{CertificateError, Error};
    match error {
        // `BadSignature` means that the certificate's authority has the same name as a trusted one, but a
        // different key.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "the server's certificate is signed by an authority that this client does not know; name that \
             authority"
                .to_owned()
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the server's certificate has expired".to_owned()
        }
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "the server's certificate is not valid yet: compare the clocks of both machines".to_owned(),
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!("the server's certificate is for other names: {error}"),
        Error::AlertReceived(alert) => of_alert(*alert).unwrap_or_else(|| error.to_string()),
        Error::InvalidMessage(_) => "the server does not speak TLS there".to_owned(),
        other => other.to_string(),
    }
}
