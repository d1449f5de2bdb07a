//! The handshake of a connection that is to be encrypted.

use std::{future::poll_fn, io, pin::Pin, time::SystemTime};

use rustls::pki_types::CertificateDer;
use tokio::io::AsyncWrite;
use tokio_rustls::TlsAcceptor;

use super::{client_certificate::ClientCertificate, server::Tls, transport::Transport};
use crate::{activity::Activity, io::WatchedStream, protocol::Protocol};

/// A connection after its handshake.
pub(crate) struct Secured {
    pub(crate) transport: Transport,
    /// Its protocol.
    pub(crate) protocol: Protocol,
    /// The client's certificate, if one is asked for.
    pub(crate) certificate: Option<ClientCertificate>,
}

/// Why a connection has no handshake.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// Port scanners and load balancers connect and leave.
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

/// The first byte of TLS: a record of the handshake.
const HANDSHAKE: u8 = 22;

/// Whether the error means that the client has left.
const LEFT: [io::ErrorKind; 3] = [
    io::ErrorKind::UnexpectedEof,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::BrokenPipe,
];

/// The response to a client that speaks HTTP/1 on a port with TLS.
const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 57\r\nConnection: close\r\n\r\n\
    {\"error\":\"this port speaks TLS: use https:// to call it\"}";

/// Agrees with a client on keys, and on what to speak.
pub(crate) async fn secure(
    tls: &Tls,
    mut stream: Pin<Box<WatchedStream>>,
    protocol: Protocol,
    activity: &Activity,
) -> Result<Secured, Refused> {
    let mut first = [0];
    match poll_fn(|cx| stream.as_mut().poll_peek(cx, &mut first)).await {
        Ok(0) | Err(_) => return Err(Refused::Gone),
        Ok(_) if first[0] == HANDSHAKE => {}
        Ok(_) => {
            if protocol != Protocol::Http2 && first[0].is_ascii_uppercase() {
                activity.request_left_unread();
                // It is short: the system takes it at once or never.
                let _ = poll_fn(|cx| stream.as_mut().poll_write(cx, NOT_TLS)).await;
                let _ = poll_fn(|cx| stream.as_mut().poll_shutdown(cx)).await;
            }
            return Err(Refused::NotTls);
        }
    }
    let acceptor = TlsAcceptor::from(tls.config(protocol));
    let stream = match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => stream,
        Err((error, _)) if LEFT.contains(&error.kind()) => return Err(Refused::Gone),
        Err((error, mut stream)) => {
            // The client may have sent its first request already. Closed now, the system would tell it that its bytes were refused,
            // and it might drop the alert that says why.
            activity.request_left_unread();
            let _ = poll_fn(|cx| stream.as_mut().poll_shutdown(cx)).await;
            return Err(Refused::Failed(error));
        }
    };
    let (_, session) = stream.get_ref();
    let certificate = session
        .peer_certificates()
        .and_then(<[CertificateDer<'_>]>::first);
    let certificate = certificate.map(|certificate| ClientCertificate::read(certificate));
    let certificate = certificate.transpose().map_err(Refused::Certificate)?;
    // A session that goes on from an earlier one is not checked against the clock by anybody else.
    if certificate
        .as_ref()
        .is_some_and(|certificate| certificate.not_after() < SystemTime::now())
    {
        return Err(Refused::Expired);
    }
    let protocol = match session.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        // A client that chooses no protocol speaks HTTP/1; gRPC's clients always choose.
        _ if protocol == Protocol::Either => Protocol::Http1,
        _ => protocol,
    };
    Ok(Secured {
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
