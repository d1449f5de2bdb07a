//! An HTTP client of the protocol with binary tensors, which also reads a server's metrics.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// A persistent connection.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
}

/// An input of a request.
pub(super) struct Input {
    pub(super) name: &'static str,
    pub(super) datatype: &'static str,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: Vec<u8>,
}

/// A response: its status, its headers and its body.
pub(super) struct Response {
    pub(super) status: u16,
    json_bytes: Option<usize>,
    pub(super) body: Vec<u8>,
}

impl Response {
    /// Returns the error message, or the beginning of the body if there is none.
    pub(super) fn reason(&self) -> String {
        let said = serde_json::from_slice::<Value>(&self.body).ok();
        let said = said.and_then(|said| Some(said.get("error")?.as_str()?.to_owned()));
        said.unwrap_or_else(|| String::from_utf8_lossy(&self.body[..self.body.len().min(300)]).into_owned())
    }

    /// Returns the elements of the only output.
    pub(super) fn numbers(&self) -> Result<Vec<f32>> {
        ensure!(self.status == 200, "{} {}", self.status, self.reason());
        let json = self.json_bytes.context("the response has no binary part")?;
        let bytes = self.body.get(json..).context("the response is too short")?;
        let numbers = bytes.chunks_exact(4);
        Ok(numbers
            .map(|number| f32::from_le_bytes([number[0], number[1], number[2], number[3]]))
            .collect())
    }
}

impl Client {
    pub(super) fn connect(address: &str, patience: Duration) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends one inference request.
    pub(super) fn infer(&mut self, model: &str, inputs: &[Input]) -> Result<Response> {
        let described: Vec<Value> = inputs
            .iter()
            .map(|input| {
                json!({"name": input.name, "datatype": input.datatype, "shape": input.shape,
                       "parameters": {"binary_data_size": input.bytes.len()}})
            })
            .collect();
        let json = json!({"inputs": described, "parameters": {"binary_data_output": true}}).to_string();
        let length = json.len() + inputs.iter().map(|input| input.bytes.len()).sum::<usize>();
        let head = format!(
            "POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: {}\r\n\
             Content-Length: {length}\r\n\r\n",
            json.len()
        );
        let stream = self.stream.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(json.as_bytes())?;
        for input in inputs {
            stream.write_all(&input.bytes)?;
        }
        self.response()
    }

    /// Sends any request with a text body, and reads the response.
    pub(super) fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<Response> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(head.as_bytes())?;
        self.response()
    }

    fn response(&mut self) -> Result<Response> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no response: {line:?}"))?;
        let (mut length, mut json_bytes, mut is_chunked) = (0, None, false);
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse()?,
                "inference-header-content-length" => json_bytes = Some(value.trim().parse()?),
                "transfer-encoding" => is_chunked = value.trim() == "chunked",
                _ => {}
            }
        }
        let body = match is_chunked {
            true => self.chunks()?,
            false => {
                let mut body = vec![0; length];
                self.stream.read_exact(&mut body)?;
                body
            }
        };
        Ok(Response {
            status,
            json_bytes,
            body,
        })
    }

    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            let length =
                usize::from_str_radix(line.trim(), 16).with_context(|| format!("a chunk of {line:?}"))?;
            let start = body.len();
            body.resize(start + length, 0);
            self.stream.read_exact(&mut body[start..])?;
            self.stream.read_line(&mut String::new())?;
            if length == 0 {
                return Ok(body);
            }
        }
    }
}

/// Returns the sum of a metric's samples in Prometheus' text format; `None` if it is missing.
pub(super) fn metric(text: &str, name: &str) -> Option<f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let values: Vec<f64> = samples
        .filter(|line| line.split(['{', ' ']).next() == Some(name))
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_found_by_their_whole_names() {
        let text = "# HELP a b\na 1\na_b{gpu_uuid=\"GPU-1\"} 2\na_b{gpu_uuid=\"GPU-2\"} 3e2\n";
        assert_eq!(metric(text, "a"), Some(1.0));
        assert_eq!(metric(text, "a_b"), Some(302.0));
        assert_eq!(metric(text, "b"), None);
    }
}
