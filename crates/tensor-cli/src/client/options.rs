//! Options of the client commands.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use oip_types::ParameterValue;

use crate::units::{duration, size};

/// A server and connection options.
#[derive(Args, Debug)]
pub(crate) struct Connection {
    /// The server: http://host:port, or grpc://host:port; https:// and grpcs:// over TLS.
    #[arg(long, env = "TENSOR_URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// A header, or metadata of gRPC: NAME=VALUE, or 'NAME: VALUE'.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub(crate) headers: Vec<(String, String)>,
    /// The `--ca` option, which is global.
    #[arg(skip)]
    pub(crate) ca: Option<PathBuf>,
    /// A client certificate for servers that require one (PEM).
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// The private key of --cert (PEM, without a password).
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Time limit of one request: 5, 500ms or 2min; a plain number is in seconds.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Maximum response size in bytes, such as 512MiB or 1GB.
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = answer_size)]
    pub(crate) max_answer_size: usize,
}

/// A model on a server, and connection options.
#[derive(Args, Debug)]
pub(crate) struct Server {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The model.
    #[arg(long, short)]
    pub(crate) model: String,
    /// Version of the model [default: the server's choice].
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<String>,
    /// An input: NAME=FILE for a file with one tensor, NAME=FILE#TENSOR for one of several, NAME=FILE.csv or
    /// NAME=FILE.json for rows as text, NAME=[[1, 2], [3, 4]] for literal values, NAME=@FILE for a text file
    /// with one element per line (BYTES). Repeat it for each input.
    #[arg(long = "input", short = 'i', value_name = "NAME=FILE", value_parser = binding)]
    pub(crate) inputs: Vec<Binding>,
    /// Convert inputs to the datatypes of the model; a value out of range is an error.
    #[arg(long)]
    pub(crate) cast: bool,
    /// The outputs to request [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) outputs: Vec<String>,
    /// A parameter of the request. true and false are booleans, otherwise the value is parsed as an integer,
    /// a number or a string; "5" in double quotes is a string.
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = parameter)]
    pub(crate) parameters: Vec<(String, ParameterValue)>,
    /// Send tensors in binary form, raw over gRPC (the default).
    #[arg(long)]
    pub(crate) binary: bool,
    /// Send tensors as values: JSON over HTTP, typed contents over gRPC.
    #[arg(long, conflicts_with = "binary")]
    pub(crate) json_form: bool,
}

/// Examples in the help of `tensor infer`.
const INFER: &str = "\
Examples:
  tensor infer -m iris -i 'X=[[5.1, 3.5, 1.4, 0.2]]'
  tensor infer -m digits -i X=digits.npy --cast -o labels.zt
  tensor infer -m prices -i rows=houses.csv -o prices.csv
  tensor infer --url grpc://localhost:9000 -m m -i ids=batch.zt#ids -i text=@lines.txt -o label=@labels.txt";

/// Examples in the help of `tensor bench`.
const BENCH: &str = "\
Examples:
  tensor bench -m digits --concurrency 8 --plot
  tensor bench -m m --shape x=1,3,224,224 --duration 30s
  tensor bench --url grpc://localhost:9000 -m m -i x=images.npy --rate 500 --json > report.json";

/// Examples in the help of `tensor replay`.
const REPLAY: &str = "\
Examples:
  tensor replay captured --rtol 1e-4
  tensor replay captured --only digits --model digits_next --into answers
  tensor diff captured/NAME.answer.safetensors answers/NAME.answer.safetensors --rtol 1e-4";

/// Recorded requests, and the server to send them to.
#[derive(Args, Debug)]
#[command(after_help = REPLAY)]
pub(crate) struct Replay {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The directory with requests that a server recorded (the setting `capture` of oip-server).
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Only requests for this model.
    #[arg(long, value_name = "MODEL")]
    pub(crate) only: Option<String>,
    /// Send all requests to this model instead of the recorded one.
    #[arg(long, short)]
    pub(crate) model: Option<String>,
    /// Version of that model, instead of the recorded one.
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<String>,
    /// Write the responses into this directory, under the names of the recorded ones.
    #[arg(long, value_name = "DIR")]
    pub(crate) into: Option<PathBuf>,
    /// Absolute tolerance for elements.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0)]
    pub(crate) atol: f64,
    /// Tolerance relative to the recorded element.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0)]
    pub(crate) rtol: f64,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The models of a server.
#[derive(Args, Debug)]
#[command(after_help = "Example: TENSOR_URL=grpc://localhost:9000 tensor ls --ready")]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Only ready models.
    #[arg(long)]
    pub(crate) ready: bool,
    /// Print JSON, one object per model and line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A model of a server.
#[derive(Args, Debug)]
#[command(after_help = "Example: tensor show digits")]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The model.
    pub(crate) model: String,
    /// Version of the model [default: the server's choice].
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<String>,
    /// Print its metadata and configuration as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A server's health and statistics.
#[derive(Args, Debug)]
#[command(after_help = "Example: tensor status || echo not ready")]
pub(crate) struct StatusOptions {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Models to load.
#[derive(Args, Debug)]
#[command(after_help = "Example: tensor load digits (the server needs --model-control-mode explicit)")]
pub(crate) struct Load {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The models.
    #[arg(required = true)]
    pub(crate) models: Vec<String>,
    /// A configuration in JSON that replaces the one of the repository.
    #[arg(long, value_name = "JSON")]
    pub(crate) config: Option<String>,
    /// Print JSON, one object per model and line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Models to unload.
#[derive(Args, Debug)]
#[command(after_help = "Example: tensor unload digits")]
pub(crate) struct Unload {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The models.
    #[arg(required = true)]
    pub(crate) models: Vec<String>,
    /// Also unload the models of a pipeline.
    #[arg(long)]
    pub(crate) dependents: bool,
    /// Print JSON, one object per model and line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = INFER)]
pub(crate) struct Infer {
    #[command(flatten)]
    pub(crate) server: Server,
    /// The output file: FILE for all outputs in one file of any format, NAME=FILE for one output, NAME=@FILE
    /// for one BYTES output with one element per line (.npy and .npz can hold BYTES too). FILE.json is the
    /// protocol's JSON, FILE.csv has rows with a column for each value. Without it the outputs are printed.
    #[arg(long = "output", short = 'o', value_name = "[NAME=]FILE", value_parser = target)]
    pub(crate) targets: Vec<Target>,
    /// Print the response as the protocol's JSON; with --output, the names of the written files.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print each response when it arrives, for models that send several over gRPC.
    #[arg(long, conflicts_with = "targets")]
    pub(crate) stream: bool,
}

#[derive(Args, Debug)]
#[command(after_help = BENCH)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Number of concurrent requests, each on a separate connection. Without --rate, the next one starts when
    /// a response arrives (closed loop).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: Option<u32>,
    /// Requests per second, sent on schedule whether or not earlier ones have completed (open loop). Latency
    /// counts from the scheduled time, so that a stall shows in all requests that it delayed.
    #[arg(long, value_name = "REQUESTS", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Time before the measurement starts.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub(crate) warm_up: Duration,
    /// How long to measure.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration, conflicts_with = "requests")]
    pub(crate) duration: Duration,
    /// Number of requests to measure.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,
    /// The shape of a generated input. By default, the first free dimension is 1.
    #[arg(long = "shape", value_name = "NAME=DIMS", value_parser = shape)]
    pub(crate) shapes: Vec<(String, Vec<u64>)>,
    /// Generate inputs of zeros instead of random values (floats from 0 to 1, integers from 0 to 99, words).
    #[arg(long)]
    pub(crate) zeros: bool,
    /// The seed of random values.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Number of client threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a chart of latencies.
    #[arg(long, conflicts_with = "json")]
    pub(crate) plot: bool,
}

/// An input and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) name: String,
    pub(crate) source: Source,
}

/// The source of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file, optionally with a tensor name after `#`.
    File(String),
    /// A text file whose lines are the elements.
    Lines(PathBuf),
    /// Values on the command line, in JSON.
    Literal(String),
    /// A JSON file.
    Json(PathBuf),
    /// A CSV file.
    Csv(PathBuf),
}

/// The destination of outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// All outputs into one file.
    All(PathBuf),
    /// One output into a file.
    One(String, PathBuf),
    /// One BYTES output into a text file, one element per line.
    Lines(String, PathBuf),
    /// All outputs, or one, as text.
    Text(Option<String>, PathBuf, TextForm),
}

/// A text format for numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextForm {
    /// The protocol's JSON response.
    Json,
    /// One line per row, with a column per value.
    Csv,
}

impl TextForm {
    /// Returns the text format for the path's extension.
    fn of(path: &str) -> Option<Self> {
        let extension = Path::new(path).extension()?.to_str()?;
        match &*extension.to_ascii_lowercase() {
            "json" => Some(Self::Json),
            "csv" => Some(Self::Csv),
            _ => None,
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Parses a header in either spelling. Names contain neither `=` nor `:`, so the first of them ends the name.
fn header(text: &str) -> Result<(String, String), String> {
    let is_end = |c| c == '=' || c == ':';
    match text.split_once(is_end).map(|(name, value)| (name, value.trim())) {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE or 'NAME: VALUE'".to_owned()),
    }
}

fn binding(text: &str) -> Result<Binding, String> {
    let (name, value) = pair(text).map_err(|_| "expected NAME=FILE".to_owned())?;
    let source = match (value.strip_prefix('@'), TextForm::of(&value)) {
        (Some(path), _) => Source::Lines(path.into()),
        (None, _) if value.trim_start().starts_with('[') => Source::Literal(value),
        (None, Some(TextForm::Json)) => Source::Json(value.into()),
        (None, Some(TextForm::Csv)) => Source::Csv(value.into()),
        (None, None) => Source::File(value),
    };
    Ok(Binding { name, source })
}

fn target(text: &str) -> Result<Target, String> {
    if !text.contains('=') {
        return match text.strip_prefix('@') {
            None => Ok(match TextForm::of(text) {
                Some(form) => Target::Text(None, text.into(), form),
                None => Target::All(text.into()),
            }),
            Some(_) => Err("expected NAME=@FILE: text holds one output".to_owned()),
        };
    }
    let (name, value) = pair(text).map_err(|_| "expected FILE or NAME=FILE".to_owned())?;
    Ok(match (value.strip_prefix('@'), TextForm::of(&value)) {
        (Some(path), _) => Target::Lines(name, path.into()),
        (None, Some(form)) => Target::Text(Some(name), value.into(), form),
        (None, None) => Target::One(name, value.into()),
    })
}

fn parameter(text: &str) -> Result<(String, ParameterValue), String> {
    let (name, value) = pair(text).map_err(|_| "expected KEY=VALUE".to_owned())?;
    let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    let value = if let Some(text) = quoted {
        ParameterValue::String(text.to_owned())
    } else if let Ok(value) = value.parse() {
        ParameterValue::Bool(value)
    } else if let Ok(value) = value.parse() {
        ParameterValue::Int64(value)
    } else {
        let number = value.parse().ok().filter(|number: &f64| number.is_finite());
        number.map_or(ParameterValue::String(value), ParameterValue::Double)
    };
    Ok((name, value))
}

fn shape(text: &str) -> Result<(String, Vec<u64>), String> {
    let wrong = || "expected NAME=DIMS such as x=1,64".to_owned();
    let (name, dims) = text.split_once('=').ok_or_else(wrong)?;
    let dims = dims
        .split(',')
        .filter(|dim| !dim.is_empty())
        .map(|dim| dim.trim().parse());
    let dims = dims.collect::<Result<_, _>>().map_err(|_| wrong())?;
    Ok((name.to_owned(), dims))
}

fn answer_size(text: &str) -> Result<usize, String> {
    let bytes = size(text)?;
    usize::try_from(bytes).map_err(|_| "more than this machine can address".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e7 => Ok(rate),
        _ => Err("expected a number above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_and_targets() {
        let file = |name: &str, file: &str| Binding {
            name: name.into(),
            source: Source::File(file.into()),
        };
        assert_eq!(binding("x=a.npy"), Ok(file("x", "a.npy")));
        assert_eq!(binding("x=a=b.zt#w"), Ok(file("x", "a=b.zt#w")));
        assert_eq!(binding("s=@l.txt").unwrap().source, Source::Lines("l.txt".into()));
        for wrong in ["x", "=a", "x="] {
            assert!(binding(wrong).is_err(), "{wrong}");
        }
        assert_eq!(target("o.zt"), Ok(Target::All("o.zt".into())));
        assert_eq!(target("y=o.npy"), Ok(Target::One("y".into(), "o.npy".into())));
        assert_eq!(target("y=@o.txt"), Ok(Target::Lines("y".into(), "o.txt".into())));
        assert!(target("@o.txt").is_err());
    }

    #[test]
    fn parameters_have_the_type_that_they_look_like() {
        for (text, value) in [
            ("k=true", ParameterValue::Bool(true)),
            ("k=-7", ParameterValue::Int64(-7)),
            ("k=1e3", ParameterValue::Double(1000.0)),
            ("k=abc", ParameterValue::String("abc".into())),
            ("k=\"5\"", ParameterValue::String("5".into())),
            ("k=inf", ParameterValue::String("inf".into())),
        ] {
            assert_eq!(parameter(text), Ok(("k".to_owned(), value)));
        }
    }

    #[test]
    fn text_is_known_by_its_extension() {
        assert_eq!(binding("x=a.CSV").unwrap().source, Source::Csv("a.CSV".into()));
        assert_eq!(binding("x=r.json").unwrap().source, Source::Json("r.json".into()));
        assert_eq!(
            binding("x=[[1, 2]]").unwrap().source,
            Source::Literal("[[1, 2]]".into())
        );
        assert_eq!(
            target("o.csv"),
            Ok(Target::Text(None, "o.csv".into(), TextForm::Csv))
        );
        assert_eq!(
            target("y=o.json"),
            Ok(Target::Text(Some("y".into()), "o.json".into(), TextForm::Json))
        );
    }

    #[test]
    fn shapes() {
        assert_eq!(shape("x=1,64"), Ok(("x".into(), vec![1, 64])));
        assert_eq!(shape("x="), Ok(("x".into(), vec![])));
        assert!(shape("x=1,-1").is_err());
    }

    /// Headers can be spelled `NAME=VALUE`, or `NAME: VALUE` as for curl. A value may contain `=`, as tokens
    /// do.
    #[test]
    fn headers_are_read_in_both_spellings() {
        for (text, name, value) in [
            ("triton-grpc-protocol-key=abc", "triton-grpc-protocol-key", "abc"),
            ("authorization: Bearer ab==", "authorization", "Bearer ab=="),
            ("authorization=Bearer a:b", "authorization", "Bearer a:b"),
        ] {
            assert_eq!(header(text), Ok((name.to_owned(), value.to_owned())));
        }
        for text in ["a", "a=", ": b", "a:  "] {
            assert!(header(text).is_err(), "{text}");
        }
    }
}
