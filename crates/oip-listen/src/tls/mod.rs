//! TLS: certificates and keys, the handshake, and encrypted connections.

mod client_certificate;
mod files;
mod handshake;
mod server;
mod server_certificate;
mod transport;

pub use client_certificate::{CertificateName, ClientCertificate};
pub use files::{TlsError, TlsFile, TlsFiles};
pub(crate) use handshake::{HandshakeError, SecureConnection, secure};
pub use server::Tls;
pub use server_certificate::ServerCertificate;
pub(crate) use transport::Transport;
