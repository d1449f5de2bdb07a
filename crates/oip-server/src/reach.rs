//! How people reach the server: URLs, certificates, tokens.

use std::{net::SocketAddr, path::PathBuf};

use oip_listen::{Address, ServerCertificate};

use crate::{examples::quoted, shown::shown};

/// The server's addresses, for people.
#[derive(Clone)]
pub(crate) struct Addresses {
    pub(crate) http: Vec<Address>,
    pub(crate) grpc: Vec<Address>,
    /// The admin address, if there is one.
    pub(crate) admin: Option<Address>,
    /// TLS settings; `None` without TLS.
    pub(crate) encryption: Option<Encryption>,
    /// Whether clients need to authenticate.
    pub(crate) wants_token: bool,
    pub(crate) has_console: bool,
}

/// What clients need to know about the server's TLS.
#[derive(Clone)]
pub(crate) struct Encryption {
    pub(crate) certificate: ServerCertificate,
    /// File of the certificate.
    pub(crate) file: PathBuf,
    /// Whether clients need certificates.
    pub(crate) knows_clients: bool,
}

impl Encryption {
    /// Returns a host name for URLs: one that the certificate covers, preferring the machine's own names.
    fn host(&self, address: SocketAddr) -> String {
        let names = &self.certificate.names;
        let ip = address.ip().to_string();
        let has = |name: &str| names.iter().any(|one| one == name);
        // The name is printed into a shell command.
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
}

/// How pasted commands reach the server.
pub(crate) struct Way {
    /// Options of `curl` and the URL, before the path.
    pub(crate) curl: String,
    /// Options of `tensor`, if it can reach the server.
    pub(crate) tensor: Option<String>,
    /// Notes to print first.
    pub(crate) notes: Vec<&'static str>,
}

impl Addresses {
    /// Returns the URL scheme of TCP addresses.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.encryption.is_some() {
            "https://"
        } else {
            "http://"
        }
    }

    /// Returns the first HTTP port with an address that works on the server's machine: the wildcard address
    /// is not one to connect to.
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

    /// Returns a URL of that port, with a name that the certificate covers.
    pub(crate) fn url(&self) -> Option<String> {
        let address = self.http_port()?;
        Some(match &self.encryption {
            None => format!("http://{address}"),
            Some(encryption) => format!("https://{}", encryption.host(address)),
        })
    }

    /// Returns how a person on this machine reaches HTTP, if enabled.
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
        let mut can_use_tensor = true;
        if let Some(Encryption {
            certificate,
            file,
            knows_clients,
        }) = &self.encryption
        {
            if certificate.is_self_signed {
                let file = quoted(&shown(&file.to_string_lossy()));
                way.curl += &format!("--cacert {file} ");
                tensor += &format!(" --ca {file}");
                can_use_tensor = !certificate.is_authority;
            } else {
                way.notes.push(
                    "where this machine does not trust the certificate's authority: --cacert FILE (curl), --ca FILE (tensor)",
                );
            }
            if *knows_clients {
                way.notes
                    .push("with a client's certificate: --cert FILE --key FILE");
            }
        }
        if token {
            tensor += " --header \"authorization=Bearer $TOKEN\"";
        }
        way.curl += &url;
        way.tensor = can_use_tensor.then_some(tensor);
        Some(way)
    }
}

/// The default URL of the program `tensor`.
const TENSOR_URL: &str = "http://127.0.0.1:8080";
