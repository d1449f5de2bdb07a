//! A scripted HTTP server.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use fmt_core::ByteSource;
use tensor_remote::RemoteOptions;

/// The head of a received request.
pub(crate) struct Request {
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    /// Number of requests that the server received before this request.
    pub(crate) number: u64,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(known, _)| known == name)?;
        Some(value)
    }

    /// Returns the requested range of a file of `len` bytes.
    pub(crate) fn range(&self, len: u64) -> Range<u64> {
        let text = self.header("range").expect("every request asks for a range");
        let (first, last) = text.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        if first.is_empty() {
            let count: u64 = last.parse().unwrap();
            return len.saturating_sub(count)..len;
        }
        let end = last.parse::<u64>().unwrap() + 1;
        first.parse().unwrap()..end.min(len)
    }
}

/// A server on a free port that runs until the process ends.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Arc<AtomicU64>,
}

impl Server {
    /// Serves plain HTTP. The script writes the response; if it fails, the connection is closed.
    pub(crate) fn start(
        script: impl Fn(&Request, &mut dyn Write) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(script, None)
    }

    pub(crate) fn start_with(
        script: impl Fn(&Request, &mut dyn Write) -> io::Result<()> + Send + Sync + 'static,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicU64::new(0));
        let (script, count) = (Arc::new(script), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, count, tls) = (Arc::clone(&script), Arc::clone(&count), tls.clone());
                thread::spawn(move || match tls {
                    None => converse(stream, &*script, &count),
                    Some(tls) => {
                        let session = rustls::ServerConnection::new(tls).unwrap();
                        converse(rustls::StreamOwned::new(session, stream), &*script, &count)
                    }
                });
            }
        });
        Self { address, requests }
    }

    /// Starts a server that correctly serves one file.
    pub(crate) fn of(content: impl ByteSource + 'static) -> Self {
        Self::start(move |request, out| serve(request, &content, "\"one\"", out))
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    pub(crate) fn count(&self) -> u64 {
        self.requests.load(Relaxed)
    }
}

fn converse<S: Read + Write>(
    stream: S,
    script: &dyn Fn(&Request, &mut dyn Write) -> io::Result<()>,
    count: &AtomicU64,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_owned());
        }
        let path = lines[0].split(' ').nth(1).unwrap().to_owned();
        let headers = lines[1..].iter().map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        });
        let request = Request {
            path,
            headers: headers.collect(),
            number: count.fetch_add(1, Relaxed),
        };
        script(&request, stream.get_mut())?;
        stream.get_mut().flush()?;
    }
}

/// Responds with the requested range.
pub(crate) fn serve(
    request: &Request,
    content: &dyn ByteSource,
    etag: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let len = content.len();
    let range = request.range(len);
    if request.header("if-range").is_some_and(|known| known != etag) {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nETag: {etag}\r\n\r\n");
        out.write_all(head.as_bytes())?;
        return Err(io::ErrorKind::Other.into());
    }
    if range.is_empty() {
        let head = format!("HTTP/1.1 416 None\r\nContent-Length: 0\r\nContent-Range: bytes */{len}\r\n\r\n");
        return out.write_all(head.as_bytes());
    }
    head(&range, len, &format!("ETag: {etag}\r\n"), out)?;
    body(content, range, out)
}

/// Writes the head of a correct response to a range request.
pub(crate) fn head(range: &Range<u64>, len: u64, more: &str, out: &mut dyn Write) -> io::Result<()> {
    let (first, last, length) = (range.start, range.end - 1, range.end - range.start);
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-{last}/{len}\r\nContent-Length: {length}\r\n{more}\r\n"
    );
    out.write_all(head.as_bytes())
}

pub(crate) fn body(content: &dyn ByteSource, range: Range<u64>, out: &mut dyn Write) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at + (64 << 10));
        out.write_all(&content.read(at..end)?)?;
        at = end;
    }
    Ok(())
}

/// Returns bytes that encode their offsets.
pub(crate) fn content(len: usize) -> tensor_core::Bytes {
    (0..len).map(|at| (at / 251 + at) as u8).collect()
}

/// Returns options with short timeouts and back-offs, so that failing tests end quickly.
pub(crate) fn quick() -> RemoteOptions {
    RemoteOptions::default()
        .with_retries(2)
        .with_back_off(Duration::from_millis(1))
        .with_patience(Duration::from_millis(500))
}

/// Creates a private CA and a server certificate for `localhost`.
pub(crate) fn throwaway_tls(folder: &Path) -> Arc<rustls::ServerConfig> {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&authority_key).unwrap();
    fs::write(folder.join("ca.pem"), certificate.pem()).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let own = own.signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    Arc::new(
        config
            .with_single_cert(vec![own.der().clone()], key.into())
            .unwrap(),
    )
}

/// Returns an address where nothing listens.
pub(crate) fn unused_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    assert!(TcpStream::connect(address).is_err());
    address
}
