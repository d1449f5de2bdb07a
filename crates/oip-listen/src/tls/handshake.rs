//! The TLS handshake of a connection.

use std::{future::poll_fn, io, pin::Pin, time::SystemTime};

use rustls::pki_types::CertificateDer;
use tokio::io::AsyncWrite;
use tokio_rustls::TlsAcceptor;

use super::{client_certificate::ClientCertificate, server::Tls, transport::Transport};
use crate::{activity::Activity, io::WatchedStream, protocol::Protocol};

/// A connection after its handshake.
pub(crate) struct SecureConnection {
    pub(crate) transport: Transport,
    /// The negotiated protocol.
    pub(crate) protocol: Protocol,
    /// The client's certificate, if one is required.
    pub(crate) certificate: Option<ClientCertificate>,
}

/// The reason why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The client disconnected, as port scanners and load balancers do.
    #[error("the client left")]
    Gone,
    #[error("the client does not speak TLS")]
    NotTls,
    #[error("{0}")]
    Failed(io::Error),
    #[error("the client's certificate cannot be read: {0}")]
    Certificate(String),
    #[error("the client's certificate has expired")]
    Expired,
}

/// The content type of a TLS handshake record, which is the first byte of a connection.
const HANDSHAKE: u8 = 22;

/// Errors that mean that the client disconnected.
const LEFT: [io::ErrorKind; 3] = [
    io::ErrorKind::UnexpectedEof,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::BrokenPipe,
];

/// The response to a client that speaks plain HTTP/1 to a TLS port.
const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 57\r\nConnection: close\r\n\r\n\
    {\"error\":\"this port speaks TLS: use https:// to call it\"}";

/// Performs the handshake and determines the protocol.
pub(crate) async fn secure(
    tls: &Tls,
    mut stream: Pin<Box<WatchedStream>>,
    protocol: Protocol,
    activity: &Activity,
) -> Result<SecureConnection, HandshakeError> {
    let mut first = [0];
    match poll_fn(|cx| stream.as_mut().poll_peek(cx, &mut first)).await {
        Ok(0) | Err(_) => return Err(HandshakeError::Gone),
        Ok(_) if first[0] == HANDSHAKE => {}
        Ok(_) => {
            if protocol != Protocol::Http2 && first[0].is_ascii_uppercase() {
                activity.request_left_unread();
                // The response is short: the kernel either accepts all of it at once or none of it.
                let _ = poll_fn(|cx| stream.as_mut().poll_write(cx, NOT_TLS)).await;
                let _ = poll_fn(|cx| stream.as_mut().poll_shutdown(cx)).await;
            }
            return Err(HandshakeError::NotTls);
        }
    }
    let acceptor = TlsAcceptor::from(tls.config(protocol));
    let stream = match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => stream,
        Err((error, _)) if LEFT.contains(&error.kind()) => return Err(HandshakeError::Gone),
        Err((error, mut stream)) => {
            // The client may have sent its first request already. Closing now would make the kernel send a
            // reset, and the client might drop the alert that explains the failure.
            activity.request_left_unread();
            let _ = poll_fn(|cx| stream.as_mut().poll_shutdown(cx)).await;
            return Err(HandshakeError::Failed(error));
        }
    };
    let (_, session) = stream.get_ref();
    let certificate = session
        .peer_certificates()
        .and_then(<[CertificateDer<'_>]>::first);
    let certificate = certificate.map(|certificate| ClientCertificate::read(certificate));
    let certificate = certificate.transpose().map_err(HandshakeError::Certificate)?;
    // rustls does not check validity for resumed sessions.
    if certificate
        .as_ref()
        .is_some_and(|certificate| certificate.not_after() < SystemTime::now())
    {
        return Err(HandshakeError::Expired);
    }
    let protocol = match session.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        // Clients without ALPN speak HTTP/1; gRPC clients always use ALPN.
        _ if protocol == Protocol::Either => Protocol::Http1,
        _ => protocol,
    };
    Ok(SecureConnection {
        transport: Transport::tls(stream, protocol, activity.clone()),
        protocol,
        certificate,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_in_plain_text_is_as_long_as_it_says() {
        let text = String::from_utf8(NOT_TLS.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("Content-Length: {}\r\n", body.len())),
            "{head}"
        );
    }
}
