//! The command line: every option of the server, with its help.

mod access_options;
mod addresses;
mod capture_options;
mod config;
mod config_file;
mod connection_memory;
mod environment;
mod file_options;
mod from_text;
mod help;
mod log_options;
mod merge;
pub(crate) mod mistakes;
mod model_options;
mod page_options;
mod runtime_options;
mod source_options;
mod tls_options;
mod traffic_options;
mod transport_options;

use std::{ops::Range, path::PathBuf};

use clap::{CommandFactory, Parser};
use toml::de::DeTable;

pub(crate) use self::{
    access_options::Access,
    addresses::{AddressProtocol, Place, ShutdownTimes},
    config::Config,
    config_file::read_file,
    file_options::FileOptions,
    help::arranged,
    log_options::{DEFAULT_LOG, LogConfig},
    page_options::PageConfig,
    runtime_options::RuntimeOptions,
    source_options::SourceOptions,
    tls_options::read_tls,
    traffic_options::AccessLogConfig,
    transport_options::TransportConfig,
};
use self::{
    access_options::AccessOptions, addresses::AddressOptions, environment::nearest, log_options::LogOptions,
    merge::merged, model_options::ModelOptions, page_options::PageOptions, tls_options::TlsOptions,
    traffic_options::TrafficOptions, transport_options::TransportOptions,
};

/// Returns the help text after the options. Each paragraph is one line, which is wrapped to the terminal's
/// width.
pub(crate) fn after_help() -> String {
    format!("{SOURCES_HELP}\n{}\n{USE_HELP}", file_options::help())
}

/// Help on the sources of models and options.
const SOURCES_HELP: &str = "\
A repository holds models as <model>/<version>/model.onnx; the highest version is served, or those that the version \
policy in <model>/config.pbtxt wants. A directory with model.onnx right in it is one model without versions. A tensor file \
(model.safetensors, .zt, .tbuf, .btf, .npz, .npy, .gguf) in place of model.onnx is a model too: it serves its tensors, \
whole or by rows. A model's file alone, such as iris.onnx, is one model called iris. With --allow-python, model.py is a \
model in Python. Models at a URL are fetched into a cache first.

Every option can also be given in the environment, as OIP_ and its name in capitals (OIP_MODEL_REPOSITORY), and in the \
configuration file, by its name (model-repository = \"models\"). The command line wins over the environment, the \
environment over the file.
";

/// Help on starting and stopping the server.
const USE_HELP: &str = "\
Examples:
  oip-server init shop                writes an example repository
  oip-server shop                     serves it on http://127.0.0.1:8080 and grpc://127.0.0.1:9000
  oip-server iris.onnx                serves one file
  oip-server check models --json      loads everything, reports what would fail, and opens no port
  oip-server models --http-address 0.0.0.0:8080 --model-control-mode poll
  oip-server models --memory-budget 2GB --request-timeout 5s --log-format json

Sizes are bytes or have a unit (64MiB, 64Mi, 1GB), times are seconds or have one (5, 500ms, 2min).

SIGTERM or SIGINT: no new connections, open requests are finished, then the process ends with code 0, or 1 when some \
had to be cut after --drain-timeout. A second signal ends it at once with code 130. SIGHUP opens the access log's file \
again, and reads again: certificates, the table of --auth, the log's levels in the configuration file.";

/// The text after the options in the output of `-h`.
pub(crate) const AFTER_HELP_SHORT: &str = "\
Examples:
  oip-server init shop                writes an example repository
  oip-server shop                     serves it on http://127.0.0.1:8080 and grpc://127.0.0.1:9000
  oip-server iris.onnx --port 8000    serves one file, HTTP and gRPC on one port
  oip-server check models             loads everything, reports what would fail, and opens no port

--help has all options, also for the environment (OIP_PORT=8000) and the configuration file (port = 8000).";

/// Serves models over the Open Inference Protocol (KServe V2), HTTP and gRPC.
#[derive(Debug, Default, Parser)]
#[command(name = "oip-server", version, max_term_width = 110)]
pub(crate) struct Options {
    /// A directory with models, a directory with one model, a model's file, or the URL of one of these. It
    /// overrides --model-repository
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) models: ModelOptions,

    #[command(flatten)]
    pub(crate) source: SourceOptions,

    #[command(flatten)]
    pub(crate) addresses: AddressOptions,

    #[command(flatten)]
    pub(crate) transports: TransportOptions,

    #[command(flatten)]
    pub(crate) pages: PageOptions,

    #[command(flatten)]
    pub(crate) tls: TlsOptions,

    #[command(flatten)]
    pub(crate) access: AccessOptions,

    #[command(flatten)]
    pub(crate) traffic: TrafficOptions,

    #[command(flatten)]
    pub(crate) log: LogOptions,

    #[command(flatten)]
    pub(crate) runtimes: RuntimeOptions,

    /// A TOML file with any of these options, and with those that only a file has, which are below
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Settings that exist only in the configuration file.
    #[arg(skip)]
    pub(crate) file: FileOptions,
}

merged!(Options: path models source addresses transports pages tls access traffic log runtimes config file);

/// An error in a configuration file, and its position.
#[derive(Debug)]
pub(crate) struct FileError {
    pub(crate) message: String,
    /// The byte range of the error in the file.
    pub(crate) span: Option<Range<usize>>,
}

impl From<toml::de::Error> for FileError {
    fn from(error: toml::de::Error) -> Self {
        Self {
            message: error.message().to_owned(),
            span: error.span(),
        }
    }
}

impl Options {
    /// Parses the text of a configuration file.
    pub(crate) fn from_file(text: &str) -> Result<Self, FileError> {
        // Each struct is parsed separately, because flattening them would lose the positions of errors.
        let table = DeTable::parse(text)?;
        let command = Self::command();
        for key in table.get_ref().keys() {
            let name = &**key.get_ref();
            let known = || {
                let options = command.get_arguments().filter_map(clap::Arg::get_long);
                options.chain(file_options::names())
            };
            if name == "config" || !known().any(|option| option == name) {
                let meant = nearest(name, known().filter(|option| *option != "config"));
                let meant = meant.map_or(String::new(), |meant| format!("; did you mean `{meant}`?"));
                return Err(FileError {
                    message: format!("unknown field `{name}`{meant}"),
                    span: Some(key.span()),
                });
            }
        }
        Ok(Self {
            path: None,
            models: toml::from_str(text)?,
            source: toml::from_str(text)?,
            addresses: toml::from_str(text)?,
            transports: toml::from_str(text)?,
            pages: toml::from_str(text)?,
            tls: toml::from_str(text)?,
            access: toml::from_str(text)?,
            traffic: toml::from_str(text)?,
            log: toml::from_str(text)?,
            runtimes: toml::from_str(text)?,
            config: None,
            file: FileOptions::from_file(text)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{merge::Merge, *};

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn every_option_has_its_place_in_environment_file_and_merging() {
        // Every kind of option accepts at least two of these values.
        const VALUES: [&str; 19] = [
            "1", "2", "true", "false", "\"1s\"", "\"2s\"", "\"1KiB\"", "\"2KiB\"", "\"json\"", "\"text\"",
            "\"poll\"", "\"none\"", "\"660\"", "\"600\"", "\"auto\"", "\"x\"", "\"y\"", "[\"x\"]", "[\"y\"]",
        ];
        let debug = |options: &Options| format!("{options:?}");
        let none = debug(&Options::default());
        for argument in arranged(Options::command()).get_arguments() {
            let Some(name) = argument.get_long() else {
                continue;
            };
            let variable = format!("OIP_{}", name.to_uppercase().replace('-', "_"));
            assert_eq!(
                argument.get_env().and_then(|name| name.to_str()),
                Some(&*variable),
                "{name}"
            );
            // A configuration file cannot refer to another one.
            if name == "config" {
                continue;
            }
            let parse = |value: &str| Options::from_file(&format!("{name} = {value}"));
            let mut accepted = VALUES.iter().filter(|value| parse(value).is_ok());
            let (first, second) = (accepted.next(), accepted.next());
            let (Some(first), Some(second)) = (first, second) else {
                panic!("the file does not accept two of the values for {name}");
            };
            let parse = |value| parse(value).unwrap();
            let (one, other) = (debug(&parse(first)), debug(&parse(second)));
            assert!(one != none && one != other, "{name}");
            let merged = parse(first).or(parse(second));
            assert_eq!(debug(&merged), one, "the first {name} does not win");
            let merged = parse(first).or(Options::default());
            assert_eq!(debug(&merged), one, "{name} is lost without another");
            let merged = Options::default().or(parse(second));
            assert_eq!(debug(&merged), other, "{name} is not merged");
        }
        let unknown = Options::from_file("log = \"off\"\nhtp-address = \"x\"").unwrap_err();
        assert_eq!(
            unknown.message,
            "unknown field `htp-address`; did you mean `http-address`?"
        );
        assert_eq!(unknown.span, Some(12..23));
    }

    /// Checks that the options in deployment manifests exist.
    #[test]
    fn options_in_manifests_are_known() {
        use std::{fs, path::Path};

        let mut names: Vec<String> = Vec::new();
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deploy")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let is_text = path.extension().is_none_or(|extension| extension != "md");
                if path.is_dir() {
                    folders.push(path);
                } else if is_text {
                    let text = fs::read_to_string(path).unwrap();
                    // Comments, and lines with options of Docker or cargo, are skipped.
                    let lines = text.lines().filter(|line| {
                        !["#", "RUN", "COPY"]
                            .iter()
                            .any(|start| line.trim().starts_with(start))
                    });
                    for piece in lines.flat_map(|line| line.split("--").skip(1)) {
                        let is_part = |character: char| character.is_ascii_lowercase() || character == '-';
                        let end = piece.find(|character| !is_part(character)).unwrap_or(piece.len());
                        let is_name = piece.starts_with(|first: char| first.is_ascii_lowercase());
                        names.extend(is_name.then(|| piece[..end].to_owned()));
                    }
                }
            }
        }
        let command = Options::command();
        for name in &names {
            let mut options = command.get_arguments();
            assert!(
                options.any(|option| option.get_long() == Some(name)),
                "--{name} is in docs/deploy, but no option"
            );
        }
        assert!(names.len() > 10, "{names:?}");
    }
}
