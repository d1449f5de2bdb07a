//! How users reach the server: URLs, certificates and tokens.

use std::{net::SocketAddr, path::PathBuf};

use oip_listen::{Address, ServerCertificate};

use super::{examples::quoted, terminal_text::shown};

/// The server's addresses, to be shown to users.
#[derive(Clone)]
pub(crate) struct ReachableAddresses {
    pub(crate) http: Vec<Address>,
    pub(crate) grpc: Vec<Address>,
    /// The admin address, if separate.
    pub(crate) admin: Option<Address>,
    /// The TLS properties that clients need to know, if TLS is enabled.
    pub(crate) encryption: Option<Encryption>,
    /// Whether running models requires authentication.
    pub(crate) wants_token: bool,
    pub(crate) has_console: bool,
}

/// The properties of the server's TLS that clients need to know.
#[derive(Clone)]
pub(crate) struct Encryption {
    pub(crate) certificate: ServerCertificate,
    /// Path of the certificate file.
    pub(crate) file: PathBuf,
    /// Whether clients need certificates.
    pub(crate) knows_clients: bool,
}

impl Encryption {
    /// Returns a host name from the certificate, preferably one of this machine.
    fn host(&self, address: SocketAddr) -> String {
        let names = &self.certificate.names;
        let ip = address.ip().to_string();
        let has = |name: &str| names.iter().any(|one| one == name);
        // The name is printed in a shell command, so it must not need quoting.
        let is_plain = |name: &&String| {
            let is_part = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '.');
            !name.is_empty() && name.chars().all(is_part)
        };
        let name = match () {
            () if has(&ip) => None,
            () if address.ip().is_loopback() && has("localhost") => Some("localhost".to_owned()),
            () => names.iter().find(is_plain).cloned(),
        };
        match name {
            Some(name) => format!("{name}:{}", address.port()),
            None => address.to_string(),
        }
    }

    /// Adds options and notes about certificates to `way`, and options of the program `tensor` to `tensor`.
    /// Returns whether `tensor` can use the certificate.
    fn add_to(&self, way: &mut Way, tensor: &mut String) -> bool {
        if self.certificate.is_self_signed {
            let file = quoted(&shown(&self.file.to_string_lossy()));
            way.curl += &format!("--cacert {file} ");
            *tensor += &format!(" --ca {file}");
        } else {
            way.notes.push(
                "where this machine does not trust the certificate's authority: --cacert FILE (curl), --ca FILE (tensor)",
            );
        }
        if self.knows_clients {
            way.notes
                .push("with a client's certificate: --cert FILE --key FILE");
        }
        !(self.certificate.is_self_signed && self.certificate.is_authority)
    }
}

/// The parts of shell commands that reach the server.
pub(crate) struct Way {
    /// Options of `curl`, and the URL without the path.
    pub(crate) curl: String,
    /// Options of `tensor`; `None` if it cannot reach the server.
    pub(crate) tensor: Option<String>,
    /// Notes to print before the commands, one line each.
    pub(crate) notes: Vec<&'static str>,
}

impl ReachableAddresses {
    /// Returns the URL scheme.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.encryption.is_some() {
            "https://"
        } else {
            "http://"
        }
    }

    /// Returns the first HTTP address to which clients on this machine can connect: a wildcard address is
    /// replaced by the loopback address.
    fn http_port(&self) -> Option<SocketAddr> {
        let tcp = self.http.iter().find_map(|address| match address {
            Address::Tcp(address) => Some(*address),
            _ => None,
        });
        let mut address = tcp?;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        Some(address)
    }

    /// Returns the URL of the first reachable HTTP port, with a host name from the certificate.
    pub(crate) fn url(&self) -> Option<String> {
        let address = self.http_port()?;
        Some(match &self.encryption {
            None => format!("http://{address}"),
            Some(encryption) => format!("https://{}", encryption.host(address)),
        })
    }

    /// Returns how to reach the HTTP address from this machine; `None` if that is impossible.
    pub(crate) fn way(&self) -> Option<Way> {
        let mut way = Way {
            curl: String::new(),
            tensor: None,
            notes: Vec::new(),
        };
        let token = self.wants_token && self.encryption.as_ref().is_none_or(|one| !one.knows_clients);
        if token {
            way.notes
                .push("TOKEN is one of an identity in the table of --auth");
            way.curl += "-H \"Authorization: Bearer $TOKEN\" ";
        }
        let Some(url) = self.url() else {
            let socket = self.http.iter().find_map(|address| match address {
                Address::Unix(path) => Some(path),
                _ => None,
            })?;
            let socket = quoted(&shown(&socket.to_string_lossy()));
            way.curl += &format!("--unix-socket {socket} http://localhost");
            return Some(way);
        };
        let mut tensor = match url == TENSOR_URL {
            true => String::new(),
            false => format!(" --url {url}"),
        };
        let encryption = self.encryption.as_ref();
        let can_use_tensor = encryption.is_none_or(|encryption| encryption.add_to(&mut way, &mut tensor));
        if token {
            tensor += " --header \"authorization=Bearer $TOKEN\"";
        }
        way.curl += &url;
        way.tensor = can_use_tensor.then_some(tensor);
        Some(way)
    }
}

/// The URL that the program `tensor` uses by default.
const TENSOR_URL: &str = "http://127.0.0.1:8080";
