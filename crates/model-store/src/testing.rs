//! Local servers that imitate stores, for tests.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking"
)]

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    ops::Range,
    sync::Arc,
    thread,
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::name::hex;

/// A received request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// `GET`, `HEAD`, ...
    pub method: String,
    /// The decoded path, with its leading slash.
    pub path: String,
    /// The decoded query.
    pub query: BTreeMap<String, String>,
    /// Headers by lower-case name.
    pub headers: BTreeMap<String, String>,
    /// Number of requests that the server received before this request.
    pub number: usize,
}

/// A response to send.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Response {
    /// The HTTP status code.
    pub status: u16,
    /// Headers other than Content-Length.
    pub headers: Vec<(&'static str, String)>,
    /// The whole body, even if `cut_at` cuts it.
    pub body: Vec<u8>,
    /// Number of bytes after which the connection is closed early.
    pub cut_at: Option<usize>,
}

impl Response {
    /// Creates a response without headers.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            body: body.into(),
            ..Self::default()
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A server on a free port that runs until the process ends.
#[derive(Clone, Debug)]
pub struct FakeServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeServer {
    /// Starts a server that responds to each request with the result of `answer`.
    pub fn start(answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (answer, requests) = (Arc::new(answer), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                thread::spawn(move || converse(stream, &*answer, &seen));
            }
        });
        Self { address, requests }
    }

    /// Returns the server's URL without a trailing slash.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the methods and paths of the requests since the last call.
    #[must_use]
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock())
    }
}

/// Objects by key, shared between servers and the test.
#[derive(Clone, Debug, Default)]
pub struct Objects(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl Objects {
    /// Adds or replaces an object.
    pub fn put(&self, key: &str, content: impl Into<Vec<u8>>) {
        self.0.lock().insert(key.to_owned(), content.into());
    }

    /// Removes an object.
    pub fn remove(&self, key: &str) {
        self.0.lock().remove(key);
    }

    /// Responds like S3 for the bucket `bucket`, with `page` objects per list page.
    #[must_use]
    pub fn as_s3(&self, bucket: &str, page: usize, request: &Request) -> Response {
        let objects = self.0.lock();
        let Some(path) = request.path.strip_prefix(&format!("/{bucket}")) else {
            let error = "<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>";
            return Response::new(404, error);
        };
        let key = path.trim_start_matches('/');
        if !key.is_empty() {
            return match objects.get(key) {
                Some(content) => part(content, request),
                None => Response::new(404, "<Error><Code>NoSuchKey</Code></Error>"),
            };
        }
        let asked = |name: &str| request.query.get(name).cloned().unwrap_or_default();
        let (prefix, after) = (asked("prefix"), asked("continuation-token"));
        let mut found = objects
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix) && **key > after)
            .peekable();
        let mut list = String::new();
        let mut last = String::new();
        for (key, content) in found.by_ref().take(page) {
            let (etag, size) = (etag(content), content.len());
            let shown = key.replace('&', "&amp;").replace('<', "&lt;");
            let _ = write!(
                list,
                "<Contents><Key>{shown}</Key><LastModified>2026-11-01T00:00:00.000Z</LastModified>\
                 <ETag>{}</ETag><Size>{size}</Size></Contents>",
                etag.replace('"', "&quot;")
            );
            last.clone_from(key);
        }
        let more = match found.peek() {
            Some(_) => format!(
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
            ),
            None => "<IsTruncated>false</IsTruncated>".to_owned(),
        };
        Response::new(
            200,
            format!("<?xml version=\"1.0\"?><ListBucketResult>{more}{list}</ListBucketResult>"),
        )
    }

    /// Responds like the Hub for a model repository (`owner/name`), in which `.onnx` files are LFS files.
    /// File listings are paginated, two files per page.
    #[must_use]
    pub fn as_hub(&self, repository: &str, request: &Request) -> Response {
        let objects = self.0.lock();
        let mut hasher = Sha256::new();
        for (key, content) in objects.iter() {
            hasher.update(key);
            hasher.update(content);
        }
        let commit = &hex(&hasher.finalize())[..40];
        let api = format!("/api/models/{repository}/");
        if let Some(rest) = request.path.strip_prefix(&api) {
            if rest == "revision/main" {
                return Response::new(
                    200,
                    format!("{{\"id\": \"{repository}\", \"sha\": \"{commit}\"}}"),
                );
            }
            return match rest.strip_prefix(&format!("tree/{commit}")) {
                Some(folder) => tree_page(&objects, folder, request),
                None => Response::new(404, "{}").header("X-Error-Message", "Invalid rev id"),
            };
        }
        if let Some(path) = request
            .path
            .strip_prefix(&format!("/{repository}/resolve/{commit}/"))
        {
            return match objects.contains_key(path) {
                true => {
                    Response::new(302, "").header("Location", format!("/cdn/{}", path.replace(' ', "%20")))
                }
                false => Response::new(404, "").header("X-Error-Message", "Entry not found"),
            };
        }
        match request
            .path
            .strip_prefix("/cdn/")
            .and_then(|path| objects.get(path))
        {
            Some(content) => part(content, request),
            None => Response::new(401, "").header("X-Error-Message", "Invalid username or password."),
        }
    }

    /// Responds like a plain web server.
    #[must_use]
    pub fn as_files(&self, request: &Request) -> Response {
        match self.0.lock().get(request.path.trim_start_matches('/')) {
            Some(content) => part(content, request),
            None => Response::new(404, "no such file"),
        }
    }
}

/// Responds with one page of a directory's file list.
fn tree_page(objects: &BTreeMap<String, Vec<u8>>, folder: &str, request: &Request) -> Response {
    const PAGE: usize = 2;
    let folder = match folder.trim_matches('/') {
        "" => String::new(),
        folder => format!("{folder}/"),
    };
    let after = request.query.get("cursor").cloned().unwrap_or_default();
    let mut found = objects
        .iter()
        .filter(|(key, _)| key.starts_with(&folder) && **key > after)
        .peekable();
    if found.peek().is_none() {
        return Response::new(404, "{}").header("X-Error-Message", "no such directory");
    }
    let page: Vec<_> = found.by_ref().take(PAGE).collect();
    let items: Vec<String> = page
        .iter()
        .map(|(key, content)| tree_item(key, content))
        .collect();
    let answer = Response::new(200, format!("[{}]", items.join(",")));
    match (found.peek(), page.last()) {
        (Some(_), Some((last, _))) => {
            let next = format!("<{}?recursive=true&cursor={last}>; rel=\"next\"", request.path);
            answer.header("Link", next)
        }
        _ => answer,
    }
}

fn tree_item(key: &str, content: &[u8]) -> String {
    let (size, digest) = (content.len(), hex(&Sha256::digest(content)));
    let large = match key.ends_with(".onnx") {
        true => format!(",\"lfs\":{{\"oid\":\"{digest}\",\"size\":{size},\"pointerSize\":134}}"),
        false => String::new(),
    };
    format!(
        "{{\"type\":\"file\",\"oid\":\"{}\",\"size\":{size},\"path\":\"{key}\"{large}}}",
        &digest[..40]
    )
}

fn etag(content: &[u8]) -> String {
    format!("\"{}\"", &hex(&Sha256::digest(content))[..32])
}

/// Returns the requested range of an object, if its version still matches the request's condition.
fn part(content: &[u8], request: &Request) -> Response {
    let (etag, len) = (etag(content), content.len());
    let is_other = |name: &str| request.headers.get(name).is_some_and(|known| *known != etag);
    if is_other("if-match") {
        return Response::new(412, "<Error><Code>PreconditionFailed</Code></Error>");
    }
    let range = request.headers.get("range").filter(|_| !is_other("if-range"));
    let range = range.and_then(|range| range_of(range, len));
    let dated = |response: Response| {
        response
            .header("ETag", etag.clone())
            .header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
    };
    match range {
        None => dated(Response::new(200, content)),
        Some(range) if range.is_empty() => {
            Response::new(416, "").header("Content-Range", format!("bytes */{len}"))
        }
        Some(range) => {
            let shown = format!("bytes {}-{}/{len}", range.start, range.end - 1);
            dated(Response::new(206, &content[range])).header("Content-Range", shown)
        }
    }
}

fn range_of(text: &str, len: usize) -> Option<Range<usize>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let first: usize = first.parse().ok()?;
    let end = last
        .parse::<usize>()
        .map_or(len, |last| last.saturating_add(1))
        .min(len);
    Some(first.min(end)..end)
}

fn converse(
    stream: TcpStream,
    answer: &dyn Fn(&Request) -> Response,
    seen: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(lines) = read_head(&mut stream)? {
        let mut words = lines[0].split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers: BTreeMap<_, _> = lines[1..]
            .iter()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let length = headers
            .get("content-length")
            .and_then(|length| length.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body)?;
        let query = query.split('&').filter_map(|pair| pair.split_once('='));
        let number = {
            let mut seen = seen.lock();
            seen.push(format!("{method} {target}"));
            seen.len() - 1
        };
        let request = Request {
            method: method.to_owned(),
            path: decoded(path),
            query: query
                .map(|(name, value)| (decoded(name), decoded(value)))
                .collect(),
            headers,
            number,
        };
        let response = answer(&request);
        if !write_response(stream.get_mut(), &response, method != "HEAD")? {
            break;
        }
    }
    Ok(())
}

/// Reads the lines of a request's head; `None` at the end of the stream.
fn read_head(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Vec<String>>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if line.trim().is_empty() {
            return Ok(Some(lines));
        }
        lines.push(line.trim().to_owned());
    }
}

/// Writes a response; returns false if its body is cut off, which ends the connection.
fn write_response(stream: &mut TcpStream, response: &Response, has_body: bool) -> io::Result<bool> {
    let len = response.body.len();
    let mut head = format!("HTTP/1.1 {} Answer\r\nContent-Length: {len}\r\n", response.status);
    for (name, value) in &response.headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if has_body {
        let end = response.cut_at.unwrap_or(len).min(len);
        stream.write_all(&response.body[..end])?;
        if end < len {
            return Ok(false);
        }
    }
    stream.flush()?;
    Ok(true)
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = text
            .get(at + 1..at + 3)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (bytes[at], code) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
