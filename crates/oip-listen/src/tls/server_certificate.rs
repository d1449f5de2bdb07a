//! Facts about a server's certificate, for messages that tell people how to call the server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use x509_cert::{
    Certificate,
    ext::pkix::{BasicConstraints, SubjectAltName, name::GeneralName},
};

/// Facts about a server's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCertificate {
    /// The certificate's host names and IP addresses, as written in URLs but without the brackets of IPv6.
    pub names: Vec<String>,
    /// Whether the certificate is self-signed, so that clients can trust it directly.
    pub is_self_signed: bool,
    /// Whether this is a CA certificate. Some clients (such as those based on rustls) reject a CA certificate
    /// as the server's certificate.
    pub is_authority: bool,
}

impl ServerCertificate {
    pub(crate) fn of(certificate: &Certificate) -> Self {
        let certificate = &certificate.tbs_certificate;
        let names = certificate.get::<SubjectAltName>().ok().flatten();
        let names = names.map_or_else(Vec::new, |(_, SubjectAltName(names))| names);
        let names = names.into_iter().filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.to_string()),
            GeneralName::IpAddress(bytes) => ip(bytes.as_bytes()).map(|ip| ip.to_string()),
            _ => None,
        });
        let constraints = certificate.get::<BasicConstraints>().ok().flatten();
        Self {
            names: names.collect(),
            is_self_signed: certificate.issuer == certificate.subject,
            is_authority: constraints.is_some_and(|(_, constraints)| constraints.ca),
        }
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes)
            .ok()
            .map(|bytes| Ipv4Addr::from(bytes).into()),
        _ => <[u8; 16]>::try_from(bytes)
            .ok()
            .map(|bytes| Ipv6Addr::from(bytes).into()),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use x509_cert::der::Decode;

    use super::*;

    fn of(certificate: &rcgen::Certificate) -> ServerCertificate {
        ServerCertificate::of(&Certificate::from_der(certificate.der()).unwrap())
    }

    #[test]
    fn names_addresses_and_the_issuer_are_read() {
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "a server");
        let key = KeyPair::generate().unwrap();
        let own = of(&params.self_signed(&key).unwrap());
        assert_eq!(own.names, ["localhost", "127.0.0.1", "::1"]);
        assert!(own.is_self_signed && !own.is_authority);

        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let signed = of(&params.signed_by(&key, &authority).unwrap());
        assert!(!signed.is_self_signed && !signed.is_authority);
        let itself = of(authority.as_ref());
        assert!(itself.is_self_signed && itself.is_authority && itself.names.is_empty());
    }
}
