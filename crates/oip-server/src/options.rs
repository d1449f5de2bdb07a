//! The command line: every option of the server, with its help.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    ops::Range,
    path::PathBuf,
};

use clap::{CommandFactory, Parser, ValueEnum};
use serde::Deserialize;
use toml::de::DeTable;

#[cfg(feature = "python")]
use crate::python_options::PythonOptions;
use oip_types::{ByteSize, HumanDuration};

use crate::{
    access_options::AccessOptions,
    addresses::AddressOptions,
    file_options::{self, FILE_SETTINGS, FileOptions},
    source_options::SourceOptions,
    tls_options::TlsOptions,
    traffic::TrafficOptions,
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
  oip-server check models --json      loads everything, says what would fail, and opens no port
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
  oip-server check models             loads everything, says what would fail, and opens no port

--help has all options, also for the environment (OIP_PORT=8000) and the configuration file (port = 8000).";

/// The default log levels.
pub(crate) const DEFAULT_LOG: &str = "info";

/// Serves models over the Open Inference Protocol (KServe V2), HTTP and gRPC.
#[derive(Debug, Default, Parser, Deserialize)]
#[command(name = "oip-server", version, max_term_width = 110)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Options {
    /// A directory with models, a directory with one model, a model's file, or the URL of one of these. It
    /// overrides --model-repository
    #[arg(value_name = "PATH")]
    #[serde(skip)]
    pub(crate) path: Option<PathBuf>,

    // An attribute instead of a doc comment, in which the URLs would need markup.
    #[arg(
        long,
        env = "OIP_MODEL_REPOSITORY",
        hide_env = true,
        value_name = "DIR or URL",
        help = "The directory with the models, or the only model; or a URL: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, \
            az://CONTAINER/PREFIX, hf://OWNER/REPO@REVISION/DIR, https://HOST/MODEL.onnx. May be given several times"
    )]
    #[serde(deserialize_with = "one_or_more")]
    pub(crate) model_repository: Vec<PathBuf>,

    #[command(flatten)]
    #[serde(skip)]
    pub(crate) source: SourceOptions,

    /// The name of the model when there is only one [default: the name of its directory or file]
    #[arg(long, env = "OIP_MODEL_NAME", hide_env = true, value_name = "NAME")]
    pub(crate) model_name: Option<String>,

    /// Which models are loaded, and when [default: none]
    #[arg(long, env = "OIP_MODEL_CONTROL_MODE", hide_env = true, value_name = "MODE")]
    pub(crate) model_control_mode: Option<ControlMode>,

    /// Seconds between two polls of the repository, with --model-control-mode=poll [default: 15]
    #[arg(long, env = "OIP_REPOSITORY_POLL_SECS", hide_env = true, value_name = "N")]
    pub(crate) repository_poll_secs: Option<NonZeroU32>,

    /// A model to load at start, with --model-control-mode=explicit; * for all. May be given several times,
    /// or with commas
    #[arg(
        long,
        env = "OIP_LOAD_MODEL",
        hide_env = true,
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub(crate) load_model: Vec<String>,

    #[command(flatten)]
    #[serde(skip)]
    pub(crate) addresses: AddressOptions,

    /// Threads that compute models at a time; a request of a large ONNX model uses those that are idle
    /// [default: the number of cores]
    #[arg(long, env = "OIP_THREADS", hide_env = true, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,

    /// Threads per model version [default: --threads]
    #[arg(long, env = "OIP_INSTANCES", hide_env = true, value_name = "N")]
    pub(crate) instances: Option<usize>,

    /// Requests that may wait for one model version [default: 256]
    #[arg(long, env = "OIP_QUEUE_SIZE", hide_env = true, value_name = "N")]
    pub(crate) queue_size: Option<usize>,

    /// Whether a model that fails to load makes the server not ready [default: true]
    #[arg(long, env = "OIP_STRICT_READINESS", hide_env = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) strict_readiness: Option<bool>,

    /// Largest request, as sent and again once decompressed [default: 64MiB]
    #[arg(long, env = "OIP_MAX_REQUEST_SIZE", hide_env = true, value_name = "SIZE")]
    pub(crate) max_request_size: Option<ByteSize>,

    /// Maximum response size for models that are tensor files, where a small request can produce a large
    /// response [default: 64MiB]
    #[cfg(feature = "tensors")]
    #[arg(long, env = "OIP_MAX_ANSWER_SIZE", hide_env = true, value_name = "SIZE")]
    pub(crate) max_answer_size: Option<ByteSize>,

    /// Tokens of one run of a text model, padding included; texts of similar length run together [default:
    /// 256]
    #[cfg(feature = "text")]
    #[arg(long, env = "OIP_MAX_BATCH_TOKENS", hide_env = true, value_name = "COUNT")]
    pub(crate) max_batch_tokens: Option<NonZeroUsize>,

    /// Memory for requests and their responses, over both transports; beyond it new ones are refused. At
    /// least --max-request-size [default: 512MiB]
    #[arg(long, env = "OIP_MEMORY_BUDGET", hide_env = true, value_name = "SIZE")]
    pub(crate) memory_budget: Option<ByteSize>,

    /// Whether model files may be mapped instead of read, if their configuration asks for it. You promise
    /// that these files are not changed or truncated while the server runs: it would crash, or give wrong
    /// results [default: false]
    #[arg(long, env = "OIP_ALLOW_MAPPED_MODELS", hide_env = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_mapped_models: Option<bool>,

    /// Memory of the response cache, for models whose configuration enables it [default: no cache]
    #[arg(
        long,
        env = "OIP_RESPONSE_CACHE_BYTE_SIZE",
        hide_env = true,
        value_name = "SIZE"
    )]
    pub(crate) response_cache_byte_size: Option<ByteSize>,

    /// Open connections over both transports; further ones wait [default: 10240]
    #[arg(long, env = "OIP_MAX_CONNECTIONS", hide_env = true, value_name = "N")]
    pub(crate) max_connections: Option<usize>,

    /// Deadline of requests that set none [default: 30s]
    #[arg(long, env = "OIP_REQUEST_TIMEOUT", hide_env = true, value_name = "TIME")]
    pub(crate) request_timeout: Option<HumanDuration>,

    /// Longest deadline that a request may set [default: 5m]
    #[arg(long, env = "OIP_MAX_REQUEST_TIMEOUT", hide_env = true, value_name = "TIME")]
    pub(crate) max_request_timeout: Option<HumanDuration>,

    /// Time for loading one model [default: 2m]
    #[arg(long, env = "OIP_LOAD_TIMEOUT", hide_env = true, value_name = "TIME")]
    pub(crate) load_timeout: Option<HumanDuration>,

    /// Time for open requests to finish when the server is told to stop [default: 30s]
    #[arg(long, env = "OIP_DRAIN_TIMEOUT", hide_env = true, value_name = "TIME")]
    pub(crate) drain_timeout: Option<HumanDuration>,

    /// Whether the HTTP port shows metrics for Prometheus, at /metrics [default: true]
    #[arg(long, env = "OIP_ALLOW_METRICS", hide_env = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_metrics: Option<bool>,

    /// Whether browsers get a console at / on the HTTP port [default: true]
    #[arg(long, env = "OIP_ALLOW_CONSOLE", hide_env = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_console: Option<bool>,

    /// Whether the console shows the log's last lines, to every client that reaches the port [default: true
    /// on a loopback address; with --admin-address, if that is one]
    #[arg(long, env = "OIP_ALLOW_CONSOLE_LOG", hide_env = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_console_log: Option<bool>,

    /// Host names of this server, besides IP addresses and names without a dot. On a loopback address, and on
    /// any address if this is given, requests with other names in the header Host are refused, since a web
    /// page could have resolved them to this server. Web pages of these hosts may change the server. May be
    /// given several times, or with commas; * for all
    #[arg(
        long,
        env = "OIP_ALLOWED_HOSTS",
        hide_env = true,
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub(crate) allowed_hosts: Vec<String>,

    /// Whether clients may pass tensors in system shared memory. They can then read and write all shared
    /// memory that this server can [default: false]. An explicit `false` also refuses memory that a client
    /// shares over its Unix socket
    #[arg(long, env = "OIP_SYSTEM_SHARED_MEMORY", hide_env = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) system_shared_memory: Option<bool>,

    #[command(flatten)]
    #[serde(skip)]
    pub(crate) tls: TlsOptions,

    #[command(flatten)]
    #[serde(skip)]
    pub(crate) access: AccessOptions,

    #[command(flatten)]
    #[serde(skip)]
    pub(crate) traffic: TrafficOptions,

    /// How the log is written [default: text]
    #[arg(long, env = "OIP_LOG_FORMAT", hide_env = true, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,

    /// What is logged: a level, or levels by target such as `info,oip_engine=debug` [default: info]
    #[arg(long, env = "OIP_LOG", hide_env = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,

    /// The library of ONNX Runtime (libonnxruntime.so, 1.17 or newer) to run ONNX models with instead of the
    /// built-in runtime, or `auto` to look for one: next to the program, by `ORT_DYLIB_PATH`, in the active
    /// virtual environment, among python3's packages and the system's libraries. Without this option
    /// `ORT_DYLIB_PATH` in the environment names it
    #[arg(long, env = "OIP_ONNXRUNTIME", hide_env = true, value_name = "PATH")]
    pub(crate) onnxruntime: Option<PathBuf>,

    /// GPUs for ONNX models whose configuration does not say what they run on (`KIND_AUTO`): `all`, `none`,
    /// or numbers as CUDA has them (`0,1`). It needs a library of ONNX Runtime with a provider for GPUs
    /// [default: all that NVML shows; none without NVML]
    #[cfg(feature = "onnx")]
    #[arg(long, env = "OIP_GPUS", hide_env = true, value_name = "GPUS")]
    #[serde(deserialize_with = "from_text")]
    pub(crate) gpus: Option<backend_onnx::GpuChoice>,

    /// Whether ONNX models run in processes of their own, so that a crash affects only that model. The
    /// parameter `isolation` in a model's configuration decides for one model, also for boosters and tensor
    /// files [default: false]
    #[arg(long, env = "OIP_ISOLATE_MODELS", hide_env = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) isolate_models: Option<bool>,

    /// Memory that each such process may use, where the model's configuration has no parameter `memory_limit`
    /// [default: as much as there is]
    #[arg(long, env = "OIP_MODEL_MEMORY_LIMIT", hide_env = true, value_name = "SIZE")]
    pub(crate) model_memory_limit: Option<ByteSize>,

    #[cfg(feature = "python")]
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) python: PythonOptions,

    /// A TOML file with any of these options, and with those that only a file has, which are below
    #[arg(long, env = "OIP_CONFIG", hide_env = true, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,

    /// Settings that exist only in the configuration file.
    #[arg(skip)]
    #[serde(skip)]
    pub(crate) file: FileOptions,
}

/// Which models are loaded, and when.
#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ControlMode {
    /// All at start, and no changes later
    None,
    /// All at start, then changes in the repository
    Poll,
    /// Models that --load-model or clients ask for
    Explicit,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

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
                options.chain(FILE_SETTINGS.iter().map(|setting| setting.name))
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
            addresses: toml::from_str(text)?,
            traffic: toml::from_str(text)?,
            file: FileOptions::from_file(text)?,
            tls: toml::from_str(text)?,
            access: toml::from_str(text)?,
            #[cfg(feature = "python")]
            python: toml::from_str(text)?,
            source: toml::from_str(text)?,
            ..toml::from_str(text)?
        })
    }

    /// Returns a warning for each unknown variable in `names` whose name starts with `OIP_`.
    ///
    /// Ignores variables such as `OIP_SERVER_SERVICE_HOST`, which Kubernetes sets for a service named
    /// `oip-server`.
    pub(crate) fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
        let command = Self::command();
        let known = || {
            let variables = command.get_arguments().filter_map(clap::Arg::get_env);
            variables.filter_map(|name| name.to_str())
        };
        let is_of_kubernetes = |name: &str| {
            name.ends_with("_PORT")
                || ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"]
                    .iter()
                    .any(|part| name.contains(part))
        };
        let names = names.filter(|name| name.starts_with("OIP_") && !known().any(|known| known == name));
        let mut warnings: Vec<String> = names
            .filter(|name| !is_of_kubernetes(name))
            .map(|name| match nearest(&name, known()) {
                Some(meant) => format!("{name} in the environment is no option; did you mean {meant}?"),
                None => format!("{name} in the environment is no option of this server"),
            })
            .collect();
        warnings.sort();
        warnings
    }

    /// Merges these options with `other`, the options of a configuration file. Options set in `self` take
    /// precedence.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            path: self.path.or(other.path),
            model_repository: if self.model_repository.is_empty() {
                other.model_repository
            } else {
                self.model_repository
            },
            model_name: self.model_name.or(other.model_name),
            source: self.source.or(other.source),
            model_control_mode: self.model_control_mode.or(other.model_control_mode),
            repository_poll_secs: self.repository_poll_secs.or(other.repository_poll_secs),
            load_model: if self.load_model.is_empty() {
                other.load_model
            } else {
                self.load_model
            },
            addresses: self.addresses.or(other.addresses),
            traffic: self.traffic.or(other.traffic),
            // These settings cannot be given on the command line.
            file: other.file,
            config: self.config.or(other.config),
            threads: self.threads.or(other.threads),
            instances: self.instances.or(other.instances),
            queue_size: self.queue_size.or(other.queue_size),
            strict_readiness: self.strict_readiness.or(other.strict_readiness),
            max_request_size: self.max_request_size.or(other.max_request_size),
            #[cfg(feature = "tensors")]
            max_answer_size: self.max_answer_size.or(other.max_answer_size),
            #[cfg(feature = "text")]
            max_batch_tokens: self.max_batch_tokens.or(other.max_batch_tokens),
            memory_budget: self.memory_budget.or(other.memory_budget),
            allow_mapped_models: self.allow_mapped_models.or(other.allow_mapped_models),
            response_cache_byte_size: self.response_cache_byte_size.or(other.response_cache_byte_size),
            max_connections: self.max_connections.or(other.max_connections),
            request_timeout: self.request_timeout.or(other.request_timeout),
            max_request_timeout: self.max_request_timeout.or(other.max_request_timeout),
            load_timeout: self.load_timeout.or(other.load_timeout),
            drain_timeout: self.drain_timeout.or(other.drain_timeout),
            allowed_hosts: if self.allowed_hosts.is_empty() {
                other.allowed_hosts
            } else {
                self.allowed_hosts
            },
            system_shared_memory: self.system_shared_memory.or(other.system_shared_memory),
            allow_metrics: self.allow_metrics.or(other.allow_metrics),
            allow_console: self.allow_console.or(other.allow_console),
            allow_console_log: self.allow_console_log.or(other.allow_console_log),
            onnxruntime: self.onnxruntime.or(other.onnxruntime),
            #[cfg(feature = "onnx")]
            gpus: self.gpus.or(other.gpus),
            isolate_models: self.isolate_models.or(other.isolate_models),
            model_memory_limit: self.model_memory_limit.or(other.model_memory_limit),
            tls: self.tls.or(other.tls),
            access: self.access.or(other.access),
            #[cfg(feature = "python")]
            python: self.python.or(other.python),
            log_format: self.log_format.or(other.log_format),
            log: self.log.or(other.log),
        }
    }
}

/// Returns the known name that `name` may be a misspelling of.
fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    /// The threshold that clap uses for options.
    const ALIKE: f64 = 0.8;
    let rated = known.map(|known| (strsim::jaro(name, known), known));
    let best = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(alike, _)| *alike > ALIKE).map(|(_, known)| known)
}

/// Deserializes a value from a string.
#[cfg(feature = "onnx")]
fn from_text<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// Deserializes a path, or a list of paths.
fn one_or_more<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a path or URL, or a list of them")]
    enum Written {
        One(PathBuf),
        More(Vec<PathBuf>),
    }
    Ok(match Written::deserialize(from)? {
        Written::One(path) => vec![path],
        Written::More(paths) => paths,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn every_option_has_its_place_in_environment_file_and_merging() {
        let command = Options::command();
        for argument in command
            .get_arguments()
            .filter(|argument| !argument.is_positional())
            .filter(|argument| argument.get_id() != "help" && argument.get_id() != "version")
        {
            let name = argument.get_long().unwrap();
            let variable = argument.get_env().unwrap().to_str().unwrap();
            let expected = format!("OIP_{}", name.replace('-', "_").to_uppercase());
            assert_eq!(variable, expected);
            if name == "config" {
                continue;
            }
            // Values such that every kind of option accepts at least one.
            let accepted = [
                "1", "true", "\"1s\"", "\"1KiB\"", "\"json\"", "\"poll\"", "\"660\"", "\"x\"", "[\"x\"]",
            ];
            let parsed = accepted
                .iter()
                .find_map(|value| Options::from_file(&format!("{name} = {value}")).ok());
            let merged =
                Options::default().or(parsed.unwrap_or_else(|| panic!("{name} is not known to the file")));
            assert_ne!(
                format!("{merged:?}"),
                format!("{:?}", Options::default()),
                "{name} is not merged"
            );
        }
        let unknown = Options::from_file("log = \"off\"\nhtp-address = \"x\"").unwrap_err();
        assert_eq!(
            unknown.message,
            "unknown field `htp-address`; did you mean `http-address`?"
        );
        assert_eq!(unknown.span, Some(12..23));
    }

    /// Options named in deployment manifests and in the operators' page exist.
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
