//! The identity of a client, from its certificate.

use std::{fmt, sync::Arc, time::SystemTime};

use x509_cert::{
    Certificate,
    der::Decode,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

/// A client certificate that is signed by one of the server's trusted authorities, stored as an extension of
/// each request of its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate(Arc<CertificateInner>);

#[derive(Debug, PartialEq, Eq)]
struct CertificateInner {
    names: Vec<CertificateName>,
    not_after: SystemTime,
}

/// A subject alternative name of a certificate.
///
/// ```
/// use oip_listen::CertificateName;
///
/// let name = CertificateName::Uri("spiffe://example.com/robot".into());
/// assert_eq!(name.to_string(), "uri:spiffe://example.com/robot");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CertificateName {
    /// A URI, such as a SPIFFE id.
    Uri(String),
    /// A host name.
    Dns(String),
    /// An email address.
    Email(String),
}

impl ClientCertificate {
    /// Parses a DER certificate. The error is a message for the log.
    pub(crate) fn read(certificate: &[u8]) -> Result<Self, String> {
        let certificate = Certificate::from_der(certificate).map_err(|error| error.to_string())?;
        let certificate = certificate.tbs_certificate;
        let names = certificate
            .get::<SubjectAltName>()
            .map_err(|error| format!("subject alternative names: {error}"))?;
        let names = names.map_or_else(Vec::new, |(_, SubjectAltName(names))| names);
        let names = names.into_iter().filter_map(|name| match name {
            GeneralName::UniformResourceIdentifier(uri) => Some(CertificateName::Uri(uri.to_string())),
            GeneralName::DnsName(name) => Some(CertificateName::Dns(name.to_string())),
            GeneralName::Rfc822Name(address) => Some(CertificateName::Email(address.to_string())),
            _ => None,
        });
        Ok(Self(Arc::new(CertificateInner {
            names: names.collect(),
            not_after: certificate.validity.not_after.to_system_time(),
        })))
    }

    /// Returns the subject alternative names of the certificate.
    #[must_use]
    pub fn names(&self) -> &[CertificateName] {
        &self.0.names
    }

    /// Returns the time at which the certificate expires.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.0.not_after
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(uri) => write!(f, "uri:{uri}"),
            Self::Dns(name) => write!(f, "dns:{name}"),
            Self::Email(address) => write!(f, "email:{address}"),
        }
    }
}
