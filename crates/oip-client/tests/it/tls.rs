//! Tests TLS with trusted and untrusted servers and with client certificates.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use oip_client::{Builder, ErrorKind, InferenceClient};
use oip_grpc::GrpcConfig;
use oip_http::HttpConfig;
use oip_listen::{ConnectionLimits, Protocol, Shutdown, Tls, TlsFiles, listen, serve_tls};
use oip_service::testing::TestService;
use oip_types::DataType;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use crate::support::{identity_request, some_values};

type Client = Builder<Box<dyn InferenceClient>>;

/// Both transports over TLS, and their certificate authority.
struct TestServers {
    urls: [String; 2],
    authority: CertifiedIssuer<'static, KeyPair>,
    _folder: TempDir,
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Issues a certificate with its key.
fn sign(authority: &CertifiedIssuer<'static, KeyPair>, host: &str) -> (String, String) {
    sign_as(authority, &CertificateParams::new(vec![host.to_owned()]).unwrap())
}

fn sign_as(authority: &CertifiedIssuer<'static, KeyPair>, params: &CertificateParams) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    (
        params.signed_by(&key, authority).unwrap().pem(),
        key.serialize_pem(),
    )
}

impl TestServers {
    /// Starts servers, with mandatory client certificates if `wants_certificates`.
    fn new(host: &str, wants_certificates: bool) -> Self {
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        Self::of(&params, wants_certificates)
    }

    fn of(params: &CertificateParams, wants_certificates: bool) -> Self {
        let (folder, authority) = (tempfile::tempdir().unwrap(), authority());
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (certificate, key) = sign_as(&authority, params);
        let mut files = TlsFiles::new(write("server.pem", &certificate), write("key.pem", &key));
        if wants_certificates {
            files = files.with_client_ca(write("ca.pem", &authority.pem()));
        }
        let tls = Tls::new(files).unwrap();
        let service = Arc::new(TestService::default());
        let http = oip_http::router(service.clone(), HttpConfig::default());
        let grpc = oip_grpc::service(service, GrpcConfig::default());
        let (limits, shutdown) = (ConnectionLimits::default(), Shutdown::new());
        let listeners = [(); 2].map(|()| listen("127.0.0.1:0".parse().unwrap()).unwrap());
        let ports = listeners
            .each_ref()
            .map(|listener| listener.local_addr().unwrap().port());
        let [http_listener, grpc_listener] = listeners;
        tokio::spawn(serve_tls(
            http_listener,
            Protocol::Http1,
            tls.clone(),
            http,
            limits.clone(),
            shutdown.clone(),
        ));
        tokio::spawn(serve_tls(
            grpc_listener,
            Protocol::Http2,
            tls,
            grpc,
            limits,
            shutdown,
        ));
        Self {
            urls: [
                format!("https://localhost:{}", ports[0]),
                format!("grpcs://localhost:{}", ports[1]),
            ],
            authority,
            _folder: folder,
        }
    }

    fn clients(&self, configure: impl Fn(Client) -> Client) -> [Box<dyn InferenceClient>; 2] {
        self.urls
            .each_ref()
            .map(|url| configure(oip_client::builder(url)).build().unwrap())
    }
}

#[tokio::test]
async fn requests_go_over_tls() {
    let served = TestServers::new("localhost", false);
    for client in served.clients(|builder| builder.authorities(served.authority.pem())) {
        assert!(client.server_live().await.unwrap());
        let request = identity_request(some_values(DataType::FP32, 100_000));
        let response = client.infer(&request).await.unwrap();
        assert_eq!(response.outputs[0].value, request.inputs[0].value);
    }
}

#[tokio::test]
async fn servers_of_strangers_and_of_other_names_are_not_believed() {
    let stranger = authority();
    let served = TestServers::new("localhost", false);
    for client in served.clients(|builder| builder.authorities(stranger.pem())) {
        let error = client.server_live().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect);
        assert!(
            error
                .to_string()
                .contains("signed by an authority that this client does not know"),
            "{error}"
        );
    }
    let served = TestServers::new("elsewhere", false);
    for client in served.clients(|builder| builder.authorities(served.authority.pem())) {
        let error = client.server_live().await.unwrap_err().to_string();
        assert!(
            error.contains("the server's certificate is for other names"),
            "{error}"
        );
    }
}

/// A server starts even with an expired certificate; clients report that the server's certificate has expired
/// or is not valid yet.
#[tokio::test]
async fn certificates_of_another_time_are_not_believed() {
    let hour = Duration::from_secs(60 * 60);
    let mut expired = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let mut early = expired.clone();
    expired.not_after = (SystemTime::now() - hour).into();
    early.not_before = (SystemTime::now() + hour).into();
    for (params, expected) in [
        (expired, "TLS: the server's certificate has expired"),
        (
            early,
            "TLS: the server's certificate is not valid yet: compare the clocks of both machines",
        ),
    ] {
        let served = TestServers::of(&params, false);
        for client in served.clients(|builder| builder.authorities(served.authority.pem())) {
            let error = client.server_live().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Connect);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}

#[tokio::test]
async fn a_certificate_is_shown_where_that_is_wanted() {
    let served = TestServers::new("localhost", true);
    let (certificate, key) = sign(&served.authority, "robot");
    let known = |builder: Client| builder.authorities(served.authority.pem());
    for client in served.clients(|builder| known(builder).certificate(&certificate, &key)) {
        assert!(client.server_live().await.unwrap());
    }
    let mut params = CertificateParams::new(vec!["robot".to_owned()]).unwrap();
    params.not_after = (SystemTime::now() - Duration::from_secs(60 * 60)).into();
    let (certificate, key) = sign_as(&served.authority, &params);
    let expired = served.clients(|builder| known(builder).certificate(&certificate, &key));
    for (clients, expected) in [
        (
            served.clients(known),
            "TLS: the server wants a certificate of the client",
        ),
        (expired, "TLS: the client's certificate has expired"),
    ] {
        for client in clients {
            let error = client.server_live().await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

#[test]
fn what_cannot_be_used_is_told_at_once() {
    let (certificate, key) = sign(&authority(), "robot");
    let (_, other) = sign(&authority(), "robot");
    let build = |url: &str, configure: &dyn Fn(Client) -> Client| {
        let error = configure(oip_client::builder(url)).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        error.to_string()
    };
    for (url, configure, expected) in [
        (
            "http://a",
            &(|builder: Client| builder.authorities("x")) as &dyn Fn(Client) -> Client,
            "expected https:// or grpcs:// with certificates",
        ),
        (
            "https://a",
            &|builder| builder.authorities("x"),
            "the authorities: expected certificates in PEM: found none",
        ),
        (
            "grpcs://a",
            &|builder| builder.authorities(&certificate).certificate(&certificate, "x"),
            "expected a private key in PEM",
        ),
        (
            "https://a",
            &|builder| {
                builder
                    .authorities(&certificate)
                    .certificate(&certificate, &other)
            },
            "certificate and key cannot be used",
        ),
    ] {
        let error = build(url, configure);
        assert!(error.contains(expected) && !error.contains(&key), "{error}");
    }
}
