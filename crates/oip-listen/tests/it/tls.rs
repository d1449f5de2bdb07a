//! Tests TLS: valid clients, invalid certificates, files that change, and hostile clients.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Shutdown as Side, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use oip_listen::{ConnectionCap, ConnectionLimits, Lanes, Protocol, Tls, TlsFile, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
    date_time_ymd,
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    version::{TLS12, TLS13},
};
use tempfile::TempDir;
use tokio::runtime::Builder;

use crate::support::{PATIENCE, Server, eventually, limits, read_to_end, time_until_closed};

/// An authority that issues certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key in PEM.
struct Pair {
    certificate: String,
    key: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn sign(&self, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Pair {
            certificate: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    /// Issues a client certificate with the subject alternative names `names`.
    fn client(&self, names: Vec<SanType>) -> Pair {
        self.sign(|params| {
            params.subject_alt_names = names;
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        })
    }
}

/// The files of a server, which a test may change.
struct Files {
    folder: TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Self {
        let files = Self {
            folder: tempfile::tempdir().unwrap(),
            authority: Authority::new("of servers"),
        };
        files.write(&files.authority.sign(|_| {}));
        files
    }

    fn write(&self, pair: &Pair) {
        fs::write(self.folder.path().join("server.pem"), &pair.certificate).unwrap();
        fs::write(self.folder.path().join("key.pem"), &pair.key).unwrap();
    }

    fn paths(&self) -> TlsFiles {
        let folder = self.folder.path();
        TlsFiles::new(folder.join("server.pem"), folder.join("key.pem"))
    }

    fn tls(&self) -> Tls {
        Tls::new(self.paths()).unwrap()
    }

    /// Returns TLS settings that require client certificates of the authority `clients`.
    fn tls_for(&self, clients: &Authority) -> Tls {
        let path = self.folder.path().join("clients.pem");
        fs::write(&path, clients.pem()).unwrap();
        Tls::new(self.paths().with_client_ca(path)).unwrap()
    }
}

/// A client's trusted authorities and its certificate.
struct Client {
    config: ClientConfig,
}

impl Client {
    fn new(authority: &Authority) -> Self {
        Self::with(authority, &[&TLS13, &TLS12], None)
    }

    fn with(
        authority: &Authority,
        versions: &[&'static SupportedProtocolVersion],
        pair: Option<&Pair>,
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap())
            .unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match pair {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                builder
                    .with_client_auth_cert(chain.map(Result::unwrap).collect(), key)
                    .unwrap()
            }
        };
        Self { config }
    }

    fn speaking(mut self, protocols: &[&[u8]]) -> Self {
        self.config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        self
    }

    fn connect(&self, server: &Server) -> StreamOwned<ClientConnection, TcpStream> {
        let name = "localhost".try_into().unwrap();
        let session = ClientConnection::new(Arc::new(self.config.clone()), name).unwrap();
        StreamOwned::new(session, server.connect())
    }

    /// Requests `path` and returns the whole response.
    fn get(&self, server: &Server, path: &str) -> io::Result<String> {
        let mut stream = self.connect(server);
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

fn get(stream: &mut StreamOwned<ClientConnection, TcpStream>, path: &str, end: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    read_until(stream, end)
}

fn read_until(stream: &mut impl Read, end: &str) -> String {
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(end.as_bytes()) {
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    String::from_utf8(answer).unwrap()
}

#[test]
fn both_versions_of_tls_are_spoken() {
    let files = Files::new();
    let server = Server::start_with(Protocol::Http1, limits(), Some(files.tls()));
    for version in [&TLS12, &TLS13] {
        let client = Client::with(&files.authority, &[version], None);
        let mut stream = client.connect(&server);
        for _ in 0..2 {
            let answer = get(&mut stream, "/hello", "hello");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        assert_eq!(stream.conn.protocol_version(), Some(version.version));
    }
    server.shutdown.drain();
    assert_eq!(server.join(), 0);
}

#[test]
fn large_bodies_arrive_as_they_were_sent() {
    let files = Files::new();
    let server = Server::start_with(Protocol::Http1, limits(), Some(files.tls()));
    let mut stream = Client::new(&files.authority).connect(&server);
    let body: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    write!(
        stream,
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .unwrap();
    stream.write_all(&body).unwrap();
    assert!(read_until(&mut stream, "\r\n\r\n").starts_with("HTTP/1.1 200"));
    let mut answer = vec![0; body.len()];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer == body, "the body came back changed");
}

#[test]
fn clients_choose_what_is_spoken() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    const SETTINGS: u8 = 4;
    let files = Files::new();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let server = Server::start_with(protocol, limits(), Some(files.tls()));
        let mut stream = Client::new(&files.authority).speaking(&[b"h2"]).connect(&server);
        stream.write_all(PREFACE).unwrap();
        let mut frame = [0; 9];
        stream.read_exact(&mut frame).unwrap();
        assert_eq!(frame[3], SETTINGS);
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));

        let client = Client::new(&files.authority).speaking(&[b"http/1.1"]);
        match protocol {
            Protocol::Http1 => assert!(client.get(&server, "/hello").unwrap().ends_with("hello")),
            _ => {
                let error = client.get(&server, "/hello").unwrap_err();
                assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
            }
        }
    }
}

#[test]
fn clients_need_a_certificate_where_that_is_wanted() {
    let (files, clients) = (Files::new(), Authority::new("of clients"));
    let server = Server::start_with(Protocol::Http1, limits(), Some(files.tls_for(&clients)));
    let ask = |pair: Option<&Pair>| Client::with(&files.authority, &[&TLS13], pair).get(&server, "/who");
    let names = vec![
        SanType::URI("spiffe://example.com/robot".try_into().unwrap()),
        SanType::DnsName("robot.example.com".try_into().unwrap()),
        SanType::Rfc822Name("robot@example.com".try_into().unwrap()),
        SanType::IpAddress([10, 0, 0, 1].into()),
    ];
    let answer = ask(Some(&clients.client(names))).unwrap();
    let expected = "[uri:spiffe://example.com/robot dns:robot.example.com email:robot@example.com]";
    assert!(answer.ends_with(expected), "{answer}");
    // A certificate without names is still valid.
    assert!(ask(Some(&clients.client(Vec::new()))).unwrap().ends_with("[]"));

    let expired = clients.sign(|params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    });
    let of_servers = clients.sign(|params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let strangers = Authority::new("nobody knows").client(Vec::new());
    for (pair, alert) in [
        (None, "CertificateRequired"),
        (Some(&strangers), "UnknownCA"),
        (Some(&expired), "CertificateExpired"),
        (Some(&of_servers), "alert"),
    ] {
        let error = ask(pair).unwrap_err().to_string();
        assert!(error.contains(alert), "{alert}: {error}");
    }
}

#[test]
fn a_session_that_goes_on_has_its_identity() {
    let (files, clients) = (Files::new(), Authority::new("of clients"));
    let server = Server::start_with(Protocol::Http1, limits(), Some(files.tls_for(&clients)));
    let pair = clients.client(vec![SanType::DnsName("robot".try_into().unwrap())]);
    let client = Client::with(&files.authority, &[&TLS13], Some(&pair));
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let mut stream = client.connect(&server);
        assert!(get(&mut stream, "/who", "]").ends_with("[dns:robot]"));
        kinds.push(stream.conn.handshake_kind());
    }
    assert_eq!(kinds[1], Some(rustls::HandshakeKind::Resumed), "{kinds:?}");
}

#[test]
fn changed_files_are_for_new_connections_and_open_ones_stay() {
    let files = Files::new();
    let tls = files.tls();
    let server = Server::start_with(Protocol::Http1, limits().with(patient), Some(tls.clone()));
    let client = Client::new(&files.authority);
    let shown = |stream: &StreamOwned<ClientConnection, TcpStream>| {
        stream.conn.peer_certificates().unwrap()[0].as_ref().to_vec()
    };
    let mut before = client.connect(&server);
    get(&mut before, "/hello", "hello");
    assert!(!tls.reload().unwrap(), "nothing has changed");

    let next = files.authority.sign(|_| {});
    // Only one of the two files is replaced, as happens during every update.
    fs::write(files.folder.path().join("server.pem"), &next.certificate).unwrap();
    let error = tls.reload().unwrap_err();
    assert!(error.to_string().contains("does not belong"), "{error}");
    assert!(!tls.reload().unwrap(), "it was said already");
    for _ in 0..2 {
        let error = tls.reload_on_request().unwrap_err();
        assert!(error.to_string().contains("does not belong"), "{error}");
    }
    assert!(client.get(&server, "/hello").unwrap().ends_with("hello"));

    files.write(&next);
    assert!(tls.reload().unwrap());
    assert!(!tls.reload_on_request().unwrap(), "nothing has changed");
    let mut after = client.connect(&server);
    get(&mut after, "/hello", "hello");
    assert_ne!(shown(&before), shown(&after));
    let expected = CertificateDer::from_pem_slice(next.certificate.as_bytes()).unwrap();
    assert_eq!(shown(&after), expected.as_ref());
    get(&mut before, "/hello", "hello");

    fs::remove_file(files.folder.path().join("key.pem")).unwrap();
    assert!(tls.reload().is_err());
    assert!(client.get(&server, "/hello").unwrap().ends_with("hello"));
}

fn patient(limits: &mut ConnectionLimits) {
    limits.idle_timeout = Duration::from_secs(60);
}

#[test]
fn files_are_looked_at_from_time_to_time() {
    let files = Files::new();
    let tls = files.tls();
    let server = Server::start_with(Protocol::Http1, limits(), Some(tls.clone()));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let watching = std::thread::spawn(move || {
        runtime.block_on(async {
            let watching = tls.watch(Duration::from_millis(10));
            tokio::time::timeout(Duration::from_secs(5), watching).await
        })
    });
    let next = Authority::new("another");
    files.write(&next.sign(|_| {}));
    let client = Client::new(&next);
    eventually("the new certificate is never shown", || {
        client.get(&server, "/hello").is_ok()
    });
    assert!(watching.join().unwrap().is_err(), "it ended by itself");
}

#[test]
fn handshakes_that_do_not_go_on_are_ended() {
    let files = Files::new();
    let server = Server::start_with(Protocol::Http1, limits(), Some(files.tls()));
    // The client sends nothing, the start of a record, or a truncated record, and then stalls.
    for start in [&[][..], &[22], &[22, 3, 1, 2, 0, 1, 0]] {
        let begin = Instant::now();
        let mut stream = server.connect();
        stream.write_all(start).unwrap();
        time_until_closed(stream);
        assert!(begin.elapsed() >= PATIENCE, "{:?}", begin.elapsed());
    }
    // Data that is not a handshake closes the connection at once, without a response: the client could
    // mistake a response for a handshake.
    let mut stream = server.connect();
    stream.write_all(&[0; 64]).unwrap();
    assert_eq!(read_to_end(&mut stream), "");
    assert!(Client::new(&files.authority).get(&server, "/hello").is_ok());
}

#[test]
fn a_client_without_tls_is_told_so() {
    let files = Files::new();
    let server = Server::start_with(Protocol::Http1, limits(), Some(files.tls()));
    let mut stream = server.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    let answer = read_to_end(&mut stream);
    assert!(
        answer.starts_with("HTTP/1.1 400")
            && answer.ends_with("{\"error\":\"this port speaks TLS: use https:// to call it\"}"),
        "{answer}"
    );
    let server = Server::start_with(Protocol::Http2, limits(), Some(files.tls()));
    let mut stream = server.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(read_to_end(&mut stream), "");
}

#[test]
fn silent_clients_after_the_handshake_are_as_silent_ones_before() {
    let files = Files::new();
    let server = Server::start_with(Protocol::Http1, limits(), Some(files.tls()));
    let mut stream = Client::new(&files.authority).connect(&server);
    stream.conn.complete_io(&mut stream.sock).unwrap();
    let mut nothing = Vec::new();
    let _ = stream.read_to_end(&mut nothing);
    assert!(nothing.is_empty());
}

#[test]
fn a_client_that_does_not_read_is_cut() {
    let files = Files::new();
    let server = Server::start_with(Protocol::Http1, limits(), Some(files.tls()));
    let mut stream = Client::new(&files.authority).connect(&server);
    write!(stream, "GET /big HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    stream.flush().unwrap();
    eventually("the response is never given up", || {
        server.abandoned.load(std::sync::atomic::Ordering::SeqCst) > 0
    });
}

#[test]
fn a_client_that_closes_its_side_is_answered() {
    let files = Files::new();
    let server = Server::start_with(Protocol::Http1, limits(), Some(files.tls()));
    for says_goodbye in [true, false] {
        let mut stream = Client::new(&files.authority).connect(&server);
        write!(stream, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        if says_goodbye {
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        }
        stream.sock.shutdown(Side::Write).unwrap();
        assert!(read_until(&mut stream, "hello").starts_with("HTTP/1.1 200"));
    }
}

#[test]
fn a_handshake_makes_room_for_another_connection() {
    let files = Files::new();
    let limits = limits().with(|limits| {
        limits.connections = ConnectionCap::new(1);
        limits.head_timeout = Duration::from_secs(60);
    });
    let server = Server::start_with(Protocol::Http1, limits, Some(files.tls()));
    let mut holding = server.connect();
    holding.write_all(&[22, 3, 1]).unwrap();
    assert!(
        Client::new(&files.authority)
            .get(&server, "/hello")
            .unwrap()
            .ends_with("hello")
    );
}

#[test]
fn a_shutdown_cuts_handshakes_and_drains_what_is_idle() {
    let files = Files::new();
    let server = Server::start_with(Protocol::Http1, limits().with(patient), Some(files.tls()));
    let mut idle = Client::new(&files.authority).connect(&server);
    get(&mut idle, "/hello", "hello");
    server.shutdown.drain();
    let mut rest = Vec::new();
    let _ = idle.read_to_end(&mut rest);
    assert_eq!(server.join(), 0);

    let slow = limits().with(|limits| limits.head_timeout = Duration::from_secs(60));
    let server = Server::start_with(Protocol::Http1, slow, Some(files.tls()));
    let mut half = server.connect();
    half.write_all(&[22, 3, 1]).unwrap();
    eventually("the connection is never accepted", || {
        Client::new(&files.authority).get(&server, "/hello").is_ok()
    });
    server.shutdown.drain();
    server.shutdown.cut();
    assert_eq!(server.join(), 1);
}

#[test]
fn handshakes_have_threads_of_their_own_and_requests_go_where_plain_ones_do() {
    let files = Files::new();
    let thread = |name: &str| {
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(1)
            .thread_name(name)
            .enable_all()
            .build()
            .unwrap()
    };
    let (work, busy) = (thread("work"), thread("busy"));
    let with_lanes = limits().with(|limits| {
        limits.lanes = Some(Lanes::new(work.handle().clone(), busy.handle().clone()));
    });
    let server = Server::start_with(Protocol::Http1, with_lanes, Some(files.tls()));
    let mut stream = Client::new(&files.authority).connect(&server);
    let answer = get(&mut stream, "/thread", "!");
    assert!(
        !answer.ends_with("work!") && !answer.ends_with("busy!"),
        "{answer}"
    );
    write!(
        stream,
        "POST /thread HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
    )
    .unwrap();
    let answer = read_until(&mut stream, "!");
    assert!(answer.ends_with("work!"), "{answer}");
    // Handshakes need the threads of the busy lane.
    busy.shutdown_background();
    assert!(Client::new(&files.authority).get(&server, "/hello").is_err());
    drop(work);
}

#[test]
fn files_that_cannot_be_used_are_told_with_the_place() {
    let files = Files::new();
    let folder = files.folder.path();
    let (good, other) = (files.authority.sign(|_| {}), files.authority.sign(|_| {}));
    let write = |name: &str, text: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let certificate = write("good.pem", good.certificate.as_bytes());
    let key = write("good-key.pem", good.key.as_bytes());
    let der = CertificateDer::from_pem_slice(good.certificate.as_bytes()).unwrap();
    let half = &good.certificate[..good.certificate.len() / 2];
    let not_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let second_is_wrong = [&good.certificate[..], not_x509].concat();
    let lines = good.certificate.lines().count();
    let cases: Vec<(TlsFile, std::path::PathBuf, String)> = vec![
        (
            TlsFile::Certificate,
            folder.join("nowhere.pem"),
            "cannot be read: No such file".into(),
        ),
        (
            TlsFile::Certificate,
            folder.to_owned(),
            "expected a file, found something else".into(),
        ),
        (
            TlsFile::Certificate,
            write("empty", b""),
            "expected PEM text with a certificate (BEGIN CERTIFICATE), found an empty file".into(),
        ),
        (
            TlsFile::Certificate,
            write("text", b"hello"),
            "found no section that begins with -----BEGIN".into(),
        ),
        (
            TlsFile::Certificate,
            write("der", &der),
            "found binary data, perhaps DER".into(),
        ),
        (
            TlsFile::Certificate,
            write("long", &vec![b'x'; (1 << 20) + 1]),
            "has more than 1048576 bytes".into(),
        ),
        (
            TlsFile::Certificate,
            key.clone(),
            "line 1: expected a certificate (BEGIN CERTIFICATE), found a private key".into(),
        ),
        (
            TlsFile::Certificate,
            write("half", half.as_bytes()),
            "line 1: the PEM section cannot be read: its END line is missing".into(),
        ),
        (
            TlsFile::Certificate,
            write("second", second_is_wrong.as_bytes()),
            format!("line {}: not an X.509 certificate", lines + 1),
        ),
        (
            TlsFile::Key,
            write("other-key.pem", other.key.as_bytes()),
            format!(
                "does not belong to the first certificate of {}",
                certificate.display()
            ),
        ),
        (
            TlsFile::Key,
            certificate.clone(),
            "line 1: expected a private key (BEGIN PRIVATE KEY), found a certificate".into(),
        ),
        (
            TlsFile::Key,
            write("encrypted", encrypted.as_bytes()),
            "line 1: the key is encrypted".into(),
        ),
        (
            TlsFile::Key,
            write("keys", good.key.repeat(2).as_bytes()),
            "there is one key too many".into(),
        ),
        (
            TlsFile::ClientCa,
            write("ca", not_x509.as_bytes()),
            "line 1: not an X.509 certificate".into(),
        ),
        (
            TlsFile::ClientCa,
            key.clone(),
            "line 1: expected a certificate (BEGIN CERTIFICATE), found a private key".into(),
        ),
    ];
    for (file, path, message) in cases {
        let mut paths = TlsFiles::new(&certificate, &key);
        match file {
            TlsFile::Certificate => paths.certificate.clone_from(&path),
            TlsFile::Key => paths.key.clone_from(&path),
            TlsFile::ClientCa => paths.client_ca = Some(path.clone()),
        }
        let error = Tls::new(paths).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(&*path.to_string_lossy()) && text.contains(&message),
            "{message}: {text}"
        );
        assert_eq!(error.file(), file);
    }
    // One file with the certificate and the key can be given as both files.
    let both = write("both", [&good.certificate[..], &good.key].concat().as_bytes());
    assert!(Tls::new(TlsFiles::new(&both, &both)).is_ok());
    assert!(!format!("{:?}", Tls::new(TlsFiles::new(&both, &both)).unwrap()).contains("BEGIN"));
}
