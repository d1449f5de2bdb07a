//! Listening addresses: options, environment variables of hosting platforms, and their resolution.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use clap::Args;
use oip_listen::{ListenAddress, ListenAddressError, SocketMode};
use oip_types::HumanDuration;
use serde::Deserialize;

use super::{from_text::from_text, merge::Merge};
use crate::failure::Failure;

/// Options for addresses and shutdown.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct AddressOptions {
    /// One address that HTTP/1.1, HTTP/2 without TLS, and gRPC share. HTTP and gRPC then have no addresses of
    /// their own, unless they are given. HOST:PORT, :PORT for all of this machine's addresses, or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Option<String>,

    /// The port of one address for HTTP and gRPC, on --host: short for --address HOST:PORT
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,

    /// Where to listen for HTTP/1.1: HOST:PORT, :PORT for all of this machine's addresses, unix:PATH for a
    /// Unix socket, or none. Port 0 takes a free one. An IP address alone goes with --http-port [default:
    /// 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http_address: Option<String>,

    /// Where to listen for gRPC, in the same forms [default: 127.0.0.1:9000]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) grpc_address: Option<String>,

    /// The host, or IP address, for addresses without one [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,

    /// The port for HTTP, if --http-address has none [default: 8080]
    #[arg(long, value_name = "PORT")]
    pub(crate) http_port: Option<u16>,

    /// The port for gRPC, if --grpc-address has none [default: 9000]
    #[arg(long, value_name = "PORT")]
    pub(crate) grpc_port: Option<u16>,

    /// The permissions of Unix sockets, as for chmod: users with write permission may connect [default: 660]
    #[arg(long, value_name = "MODE")]
    #[serde(deserialize_with = "from_text")]
    pub(crate) unix_socket_mode: Option<SocketMode>,

    /// How long the server, after a signal to stop, reports that it is not ready but still takes requests, so
    /// that load balancers can notice. --drain-timeout begins after it [default: 0s]
    #[arg(long, value_name = "TIME")]
    pub(crate) shutdown_delay: Option<HumanDuration>,

    /// Time for open requests to finish after a signal to stop [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) drain_timeout: Option<HumanDuration>,
}

/// How long the shutdown may take.
#[derive(Clone, Copy)]
pub(crate) struct ShutdownTimes {
    /// How long the server still accepts requests after a termination signal.
    pub(crate) delay: Duration,
    /// How long open requests may take after that.
    pub(crate) drain_timeout: Duration,
}

impl Merge for AddressOptions {
    fn or(self, other: Self) -> Self {
        Self {
            // --port on the command line overrides the address in the file, and vice versa.
            port: self.port.or(other.port.filter(|_| self.address.is_none())),
            address: self.address.or(other.address.filter(|_| self.port.is_none())),
            http_address: self.http_address.or(other.http_address),
            grpc_address: self.grpc_address.or(other.grpc_address),
            host: self.host.or(other.host),
            http_port: self.http_port.or(other.http_port),
            grpc_port: self.grpc_port.or(other.grpc_port),
            unix_socket_mode: self.unix_socket_mode.or(other.unix_socket_mode),
            shutdown_delay: self.shutdown_delay.or(other.shutdown_delay),
            drain_timeout: self.drain_timeout.or(other.drain_timeout),
        }
    }
}

impl AddressOptions {
    /// Returns how long the shutdown may take.
    pub(super) fn shutdown(&self) -> ShutdownTimes {
        let or = |option: Option<HumanDuration>, seconds| {
            option.map_or(Duration::from_secs(seconds), |time| time.0)
        };
        ShutdownTimes {
            delay: or(self.shutdown_delay, 0),
            drain_timeout: or(self.drain_timeout, 30),
        }
    }

    /// Returns whether any option sets an address.
    fn say_where(&self) -> bool {
        let addresses = [&self.address, &self.http_address, &self.grpc_address, &self.host];
        let ports = [self.port, self.http_port, self.grpc_port];
        addresses.into_iter().any(Option::is_some) || ports.into_iter().any(|port| port.is_some())
    }
}

/// The protocols that an address serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressProtocol {
    Http,
    Grpc,
    Both,
}

impl AddressProtocol {
    /// Returns the protocol's name for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Grpc => "gRPC",
            Self::Both => "HTTP and gRPC",
        }
    }
}

/// A listening address and the option that it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) speaks: AddressProtocol,
    /// The option that set the address, or the options that could set it, for messages.
    pub(crate) option: &'static str,
    /// The address as the user wrote it, for messages.
    pub(crate) text: String,
    pub(crate) at: ListenAddress,
}

/// All listening addresses, resolved and validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) places: Vec<Place>,
    pub(crate) unix_socket_mode: SocketMode,
    /// The environment variable that set the port, if any.
    pub(crate) from_variable: Option<&'static str>,
}

/// Environment variables that hosting platforms use to set the port, most specific first: Vertex AI's, then
/// the one that Knative, Cloud Run and many others use.
const PORT_VARIABLES: [&str; 2] = ["AIP_HTTP_PORT", "PORT"];

const DEFAULT_HOST: &str = "127.0.0.1";

impl Addresses {
    /// Resolves the options, with environment variables as a fallback.
    pub(crate) fn resolve(
        options: &AddressOptions,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        let unix_socket_mode = options.unix_socket_mode.unwrap_or_default();
        if !options.say_where()
            && let Some((variable, place)) = of_platform(environment)?
        {
            return Ok(Self {
                places: vec![place],
                unix_socket_mode,
                from_variable: Some(variable),
            });
        }
        if let (Some(port), Some(address)) = (options.port, &options.address) {
            return Err(Failure::usage(format!(
                "--port {port} and --address {address} both set the address of HTTP and gRPC: use one of them"
            )));
        }
        let reader = |speaks, option, port_option| Reader {
            option,
            port_option: Some(port_option),
            speaks,
            host: options.host.as_deref(),
        };
        let shared = reader(AddressProtocol::Both, "--address", "--port");
        let shared = shared.read(options.address.as_deref(), options.port, None)?;
        let default = |port| shared.is_none().then_some(port);
        let http = reader(AddressProtocol::Http, "--http-address", "--http-port");
        let http = http.read(options.http_address.as_deref(), options.http_port, default(8080))?;
        let grpc = reader(AddressProtocol::Grpc, "--grpc-address", "--grpc-port");
        let grpc = grpc.read(options.grpc_address.as_deref(), options.grpc_port, default(9000))?;
        let places: Vec<Place> = [shared, http, grpc].into_iter().flatten().collect();
        if places.is_empty() {
            return Err(Failure::usage(
                "no address to listen on: --http-address and --grpc-address are both none, and --address is \
                 not set",
            ));
        }
        Ok(Self {
            places,
            unix_socket_mode,
            from_variable: None,
        })
    }

    /// Parses `text`, the value of `option`, as an address for both protocols.
    pub(crate) fn read_one(option: &'static str, text: &str) -> Result<Option<Place>, Failure> {
        let reader = Reader {
            option,
            port_option: None,
            speaks: AddressProtocol::Both,
            host: None,
        };
        reader.read(Some(text), None, None)
    }

    /// Returns whether HTTP is disabled or reachable only from this machine.
    pub(crate) fn http_is_local(&self) -> bool {
        let mut http = self
            .places
            .iter()
            .filter(|place| place.speaks != AddressProtocol::Grpc);
        http.all(|place| place.at.is_local())
    }
}

/// Returns the address whose port a hosting platform sets, and the variable that sets it.
fn of_platform(
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<(&'static str, Place)>, Failure> {
    let value = |name| environment(name).filter(|value| !value.is_empty());
    let set = PORT_VARIABLES
        .into_iter()
        .find_map(|name| Some((name, value(name)?)));
    let Some((name, value)) = set else {
        return Ok(None);
    };
    let port = value.parse::<u16>().map_err(|_| {
        Failure::usage(format!(
            "{name} in the environment: expected a port, found '{value}' (--address overrides it)"
        ))
    })?;
    let place = Place {
        speaks: AddressProtocol::Both,
        option: "--address",
        text: format!(":{port}"),
        at: ListenAddress::everywhere(port),
    };
    Ok(Some((name, place)))
}

/// Parses the address options of one transport.
struct Reader<'a> {
    option: &'static str,
    port_option: Option<&'static str>,
    speaks: AddressProtocol,
    host: Option<&'a str>,
}

impl Reader<'_> {
    /// Combines address and port. Without either, uses the default port.
    fn read(
        &self,
        address: Option<&str>,
        port: Option<u16>,
        default: Option<u16>,
    ) -> Result<Option<Place>, Failure> {
        match address {
            None => self.read_port(port, default),
            Some(text) => match self.read_address(text, port)? {
                None => Ok(None),
                Some((text, at)) => Ok(Some(self.place(self.option, text, at))),
            },
        }
    }

    fn place(&self, option: &'static str, text: String, at: ListenAddress) -> Place {
        Place {
            speaks: self.speaks,
            option,
            text,
            at,
        }
    }

    /// Returns the address with the configured host and the port `port`, or else `default`; `None` if neither
    /// port is given.
    fn read_port(&self, port: Option<u16>, default: Option<u16>) -> Result<Option<Place>, Failure> {
        let (port, option) = match (port, default, self.speaks) {
            (Some(port), _, _) => (port, self.port_option.unwrap_or(self.option)),
            (None, Some(port), AddressProtocol::Http) => (port, "--port or --http-address"),
            (None, Some(port), AddressProtocol::Grpc) => (port, "--port or --grpc-address"),
            (None, Some(port), AddressProtocol::Both) => (port, self.option),
            (None, None, _) => return Ok(None),
        };
        let host = self.host.unwrap_or(DEFAULT_HOST);
        let at = look_up("--host", host, port)?;
        Ok(Some(self.place(option, with_port(host, port), at)))
    }

    /// Parses an address. Returns its form for messages, and its endpoint; `None` for the value `none`.
    fn read_address(
        &self,
        text: &str,
        port: Option<u16>,
    ) -> Result<Option<(String, ListenAddress)>, Failure> {
        // A host without a port, as in Triton: the port comes from another option, or is the default.
        if text.parse::<IpAddr>().is_ok() || text == "localhost" {
            let usual = match self.speaks {
                AddressProtocol::Grpc => 9000,
                AddressProtocol::Http | AddressProtocol::Both => 8080,
            };
            let port = port.unwrap_or(usual);
            return Ok(Some((with_port(text, port), look_up(self.option, text, port)?)));
        }
        if let (Some(port), Some(port_option)) = (port, self.port_option) {
            return Err(Failure::usage(format!(
                "{port_option} {port} needs an {} that is only an IP address, found '{text}'",
                self.option
            )));
        }
        if text == "none" {
            return Ok(None);
        }
        match text.parse() {
            // A Unix socket is shown in its short form.
            Ok(ListenAddress::Unix(path)) => Ok(Some((
                format!("unix:{}", path.display()),
                ListenAddress::Unix(path),
            ))),
            Ok(at) => Ok(Some((text.to_owned(), at))),
            Err(ListenAddressError::Form(_)) => Err(Failure::usage(format!(
                "{}: expected HOST:PORT, :PORT, unix:PATH or none, found '{text}'",
                self.option
            ))),
            Err(error) => Err(Failure::usage(format!("{}: {error}", self.option))),
        }
    }
}

/// Formats host and port.
fn with_port(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

/// Resolves a host given without a port, the value of `option`.
fn look_up(option: &str, host: &str, port: u16) -> Result<ListenAddress, Failure> {
    ListenAddress::of_host(host, port).map_err(|error| Failure::usage(format!("{option}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resolves options to protocols and addresses, as strings.
    fn places(
        change: impl FnOnce(&mut AddressOptions),
        environment: &[(&str, &str)],
    ) -> Result<Vec<String>, String> {
        let mut options = AddressOptions::default();
        change(&mut options);
        let environment = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let addresses = Addresses::resolve(&options, &environment).map_err(|failure| failure.message)?;
        let shown = addresses.places.iter().map(|place| {
            let at = match &place.at {
                ListenAddress::Tcp(addresses) => addresses
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join("|"),
                ListenAddress::Unix(path) => format!("unix:{}", path.display()),
                _ => unreachable!("no other kind of address exists"),
            };
            format!("{} {at}", place.speaks.name())
        });
        Ok(shown.collect())
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn there_are_two_ports_unless_somebody_says_otherwise() {
        assert_eq!(
            places(|_| {}, &[]).unwrap(),
            ["HTTP 127.0.0.1:8080", "gRPC 127.0.0.1:9000"]
        );
        assert_eq!(
            places(|options| options.address = some("127.0.0.1:7000"), &[]).unwrap(),
            ["HTTP and gRPC 127.0.0.1:7000"]
        );
        assert_eq!(
            places(
                |options| {
                    options.address = some("127.0.0.1:7000");
                    options.grpc_port = Some(7001);
                },
                &[]
            )
            .unwrap(),
            ["HTTP and gRPC 127.0.0.1:7000", "gRPC 127.0.0.1:7001"]
        );
        assert_eq!(
            places(|options| options.grpc_address = some("none"), &[]).unwrap(),
            ["HTTP 127.0.0.1:8080"]
        );
    }

    #[test]
    fn hosts_ports_and_sockets_are_read() {
        for (address, expected) in [
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:1", "[::1]:1"),
            (":81", "[::]:81|0.0.0.0:81"),
            ("127.0.0.2", "127.0.0.2:8080"),
            ("::1", "[::1]:8080"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("unix:///run/a.sock", "unix:/run/a.sock"),
            ("unix:a.sock", "unix:a.sock"),
        ] {
            let found = places(|options| options.http_address = some(address), &[]).unwrap();
            assert_eq!(found[0], format!("HTTP {expected}"), "{address}");
        }
        // The options as Triton's users write them.
        let triton = |options: &mut AddressOptions| {
            options.http_address = some("0.0.0.0");
            options.http_port = Some(8000);
            options.grpc_port = Some(8001);
        };
        assert_eq!(
            places(triton, &[]).unwrap(),
            ["HTTP 0.0.0.0:8000", "gRPC 127.0.0.1:8001"]
        );
        let host = |options: &mut AddressOptions| options.host = some("127.0.0.3");
        assert_eq!(
            places(host, &[]).unwrap(),
            ["HTTP 127.0.0.3:8080", "gRPC 127.0.0.3:9000"]
        );
    }

    #[test]
    fn platforms_name_a_port_unless_the_operator_does() {
        assert_eq!(
            places(|_| {}, &[("PORT", "8123")]).unwrap(),
            ["HTTP and gRPC [::]:8123|0.0.0.0:8123"]
        );
        assert_eq!(
            places(|_| {}, &[("PORT", "8123"), ("AIP_HTTP_PORT", "8124")]).unwrap(),
            ["HTTP and gRPC [::]:8124|0.0.0.0:8124"]
        );
        let told = |options: &mut AddressOptions| options.http_port = Some(1);
        assert_eq!(
            places(told, &[("PORT", "8123")]).unwrap(),
            ["HTTP 127.0.0.1:1", "gRPC 127.0.0.1:9000"]
        );
        assert_eq!(places(|_| {}, &[("PORT", "")]).unwrap().len(), 2);
    }

    #[test]
    fn wrong_addresses_are_told() {
        let http =
            |address: &'static str| move |options: &mut AddressOptions| options.http_address = some(address);
        for address in [
            "nonsense",
            ":",
            ":99999",
            "unix:",
            "http://127.0.0.1:1",
            "127.0.0.1:x",
        ] {
            assert_eq!(
                places(http(address), &[]).unwrap_err(),
                format!("--http-address: expected HOST:PORT, :PORT, unix:PATH or none, found '{address}'")
            );
        }
        let twice = |options: &mut AddressOptions| {
            options.http_address = some("127.0.0.1:1");
            options.http_port = Some(2);
        };
        assert_eq!(
            places(twice, &[]).unwrap_err(),
            "--http-port 2 needs an --http-address that is only an IP address, found '127.0.0.1:1'"
        );
        let nowhere = |options: &mut AddressOptions| {
            options.http_address = some("none");
            options.grpc_address = some("none");
        };
        assert!(
            places(nowhere, &[])
                .unwrap_err()
                .starts_with("no address to listen on")
        );
        assert_eq!(
            places(|_| {}, &[("PORT", "http")]).unwrap_err(),
            "PORT in the environment: expected a port, found 'http' (--address overrides it)"
        );
    }
}
