//! HTTP/1 over a plain socket: unusual requests, and responses read at any pace.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpSocket, TcpStream},
};

/// An HTTP/1 connection.
pub struct Http {
    stream: BufReader<TcpStream>,
}

/// An HTTP/1 response.
#[derive(Debug)]
pub struct HttpResponse {
    /// The status code of the response.
    pub status: u16,
    /// The status line and the headers.
    pub head: String,
    /// The body of the response.
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// Returns the value of a header, if the response has it.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// Returns the body as a string.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Http {
    /// Connects to the server.
    ///
    /// # Errors
    /// When the server is unreachable.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Connects with a small receive buffer, so that unread data stays in the server.
    ///
    /// # Errors
    /// When the server is unreachable.
    pub async fn connect_small(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        let stream = socket.connect(address).await?;
        Ok(Self {
            stream: BufReader::with_capacity(1024, stream),
        })
    }

    /// Sends raw bytes.
    ///
    /// # Errors
    /// When the connection is closed.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes).await
    }

    /// Sends a POST, its head and body in one write each.
    ///
    /// # Errors
    /// When the connection is closed.
    pub async fn post(&mut self, path: &str, headers: &str, body: &[u8]) -> io::Result<()> {
        self.send(&head(path, headers, body.len())).await?;
        self.send(body).await
    }

    /// Reads a response's head: its status and text.
    ///
    /// # Errors
    /// When the connection is closed, or the data is not HTTP.
    pub async fn read_head(&mut self) -> io::Result<(u16, String)> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.ok_or(io::ErrorKind::InvalidData)?, head))
    }

    /// Reads a whole response.
    ///
    /// # Errors
    /// When the connection is closed early.
    pub async fn receive(&mut self) -> io::Result<HttpResponse> {
        let (status, head) = self.read_head().await?;
        let mut body = Vec::new();
        if header(&head, "transfer-encoding").is_some() {
            loop {
                let mut line = String::new();
                self.stream.read_line(&mut line).await?;
                let length =
                    usize::from_str_radix(line.trim(), 16).map_err(|_| io::ErrorKind::InvalidData)?;
                let start = body.len();
                body.resize(start + length + 2, 0);
                self.stream.read_exact(&mut body[start..]).await?;
                body.truncate(start + length);
                if length == 0 {
                    break;
                }
            }
        } else {
            let length = header(&head, "content-length").and_then(|length| length.parse().ok());
            body.resize(length.unwrap_or(0), 0);
            self.stream.read_exact(&mut body).await?;
        }
        Ok(HttpResponse { status, head, body })
    }

    /// Waits until data arrives or the server closes the connection.
    ///
    /// # Errors
    /// When the connection was reset.
    pub async fn peek(&mut self) -> io::Result<()> {
        self.stream.fill_buf().await.map(|_| ())
    }

    /// Reads at most `bytes` bytes; returns 0 when the server has closed the connection.
    ///
    /// # Errors
    /// When the connection was reset.
    pub async fn read_some(&mut self, bytes: usize) -> io::Result<usize> {
        let mut room = vec![0; bytes];
        self.stream.read(&mut room).await
    }
}

/// Returns the head of a POST; each line of `headers` ends with CR LF.
#[must_use]
pub fn head(path: &str, headers: &str, length: usize) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n{headers}\r\n")
        .into_bytes()
}

/// Returns the path for inference with a model.
#[must_use]
pub fn infer_path(model: &str) -> String {
    format!("/v2/models/{model}/infer")
}

/// Returns the headers and body of a binary echo request with UINT8 data.
#[must_use]
pub fn binary_echo(data: &[u8]) -> (String, Vec<u8>) {
    let length = data.len();
    let json = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"UINT8","shape":[{length}],"parameters":{{"binary_data_size":{length}}}}}],"parameters":{{"binary_data_output":true}}}}"#
    );
    let headers = format!("Inference-Header-Content-Length: {}\r\n", json.len());
    (headers, [json.as_bytes(), data].concat())
}

/// A small valid echo request in JSON.
pub const SMALL_ECHO: &str = r#"{"inputs":[{"name":"x","datatype":"UINT8","shape":[4],"data":[1,2,3,4]}]}"#;

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}
