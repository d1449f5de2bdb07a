//! Settings that exist only in the configuration file, and hints for users who pass them elsewhere.

use std::ffi::OsString;

use oip_grpc::GrpcOutput;
#[cfg(feature = "onnx")]
use oip_types::ByteSize;
use oip_types::{HumanDuration, rest::NonFinite};
use serde::Deserialize;

use super::{capture_options::CaptureOptions, environment, merge::Merge};

/// Settings that exist only in the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct FileOptions {
    pub(crate) cpu_threads: Option<usize>,
    pub(crate) in_place_time: Option<HumanDuration>,
    pub(crate) json_nonfinite: Option<JsonNonFinite>,
    pub(crate) grpc_output: Option<GrpcForm>,
    #[cfg(feature = "onnx")]
    pub(crate) onnxruntime_memory: Option<ByteSize>,
    #[serde(skip)]
    pub(crate) capture: CaptureOptions,
    #[cfg(feature = "otlp")]
    #[serde(skip)]
    pub(crate) exports: oip_telemetry::ExportSettings,
}

/// How JSON responses write NaN and the infinities.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum JsonNonFinite {
    /// As null. This is valid JSON, but infinities are lost.
    Null,
    /// As NaN, Infinity and -Infinity, which is not valid JSON.
    Literal,
    /// As strings.
    String,
    /// Not at all: the request fails.
    Error,
}

impl From<JsonNonFinite> for NonFinite {
    fn from(form: JsonNonFinite) -> Self {
        match form {
            JsonNonFinite::Null => Self::Null,
            JsonNonFinite::Literal => Self::Literal,
            JsonNonFinite::String => Self::String,
            JsonNonFinite::Error => Self::Error,
        }
    }
}

/// The form of tensors in gRPC responses.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GrpcForm {
    /// In the same form as in the request.
    Mirror,
    /// As raw bytes, like Triton.
    Raw,
    /// As typed contents.
    Typed,
}

impl From<GrpcForm> for GrpcOutput {
    fn from(form: GrpcForm) -> Self {
        match form {
            GrpcForm::Mirror => Self::Mirror,
            GrpcForm::Raw => Self::Raw,
            GrpcForm::Typed => Self::Typed,
        }
    }
}

/// A setting, as shown in the help.
struct FileSetting {
    name: &'static str,
    /// Example value in TOML, which also shows the value's type.
    example: &'static str,
    /// Description of the setting, one line per element.
    about: Vec<&'static str>,
}

/// Describes all settings of [`FileOptions`]: an example line of the file, and below it a description of the
/// setting.
const FILE_SETTINGS: &[&str] = &[
    r#"cpu-threads = 4
    threads that parse, print and compress large bodies [default: the number of cores]
in-place-time = "100us"
    models that run for at most this long run on the thread of the request; "0s" for none [default: 100us]
json-nonfinite = "null"
    how JSON responses write NaN and the infinities: null, literal, string, error [default: null]
grpc-output = "mirror"
    the form of tensors in gRPC responses: mirror (as the request), raw, typed [default: mirror]"#,
    #[cfg(feature = "onnx")]
    r#"onnxruntime-memory = "4GiB"
    what values between the operators of all models may take in ONNX Runtime, without weights; a run that needs
    more is 429 [default: 3/8 of the machine's or the container's memory]"#,
    r#"capture = "captured"
    records requests and responses in this directory, for `tensor replay`. They contain clients' data
    [default: off]
capture-rate = 0.01
    the fraction of requests that is recorded [default: 0.01]
capture-models = ["digits*"]
    models whose requests are recorded; * matches any string [default: all]
capture-limit = "1GiB"
    the directory's largest size, beyond which recording ends [default: 1GiB]"#,
    #[cfg(feature = "otlp")]
    r#"otlp-endpoint = "http://127.0.0.1:4318"
    traces go to this collector (OTLP over HTTP) [default: by OTEL_EXPORTER_OTLP_ENDPOINT]
otlp-sample-ratio = 1.0
    the fraction of requests without a traceparent that is traced [default: by OTEL_TRACES_SAMPLER, else 1]
otlp-ca = "ca.pem"
    authorities (PEM) that collectors' certificates are checked with
    [default: by OTEL_EXPORTER_OTLP_CERTIFICATE]
otlp-attribute = ["team=shop"]
    resource attributes, in addition to OTEL_RESOURCE_ATTRIBUTES
otlp-metrics-endpoint = "http://127.0.0.1:4318"
    metrics are pushed to this collector [default: by OTEL_EXPORTER_OTLP_ENDPOINT]
otlp-metrics-interval = "1m"
    time between two pushes, from 1s to 1h [default: by OTEL_METRIC_EXPORT_INTERVAL, else 1m]"#,
];

/// The settings whose value is a list. On a command line, users separate the items of such a list with
/// commas.
const COMMA_LISTS: [&str; 1] = ["capture-models"];

fn settings() -> Vec<FileSetting> {
    let mut settings: Vec<FileSetting> = Vec::new();
    for line in FILE_SETTINGS.iter().flat_map(|part| part.lines()) {
        match (line.strip_prefix("    "), settings.last_mut()) {
            (Some(more), Some(setting)) => setting.about.push(more),
            _ => settings.extend(line.split_once(" = ").map(|(name, example)| FileSetting {
                name,
                example,
                about: Vec::new(),
            })),
        }
    }
    settings
}

/// Returns the names of all settings.
pub(super) fn names<'n>() -> impl Iterator<Item = &'n str> {
    settings().into_iter().map(|setting| setting.name)
}

/// Takes `other`, because only the configuration file contains these settings.
impl Merge for FileOptions {
    fn or(self, other: Self) -> Self {
        other
    }
}

impl FileOptions {
    /// Parses these settings from a configuration file, and ignores all others.
    pub(crate) fn from_file(text: &str) -> Result<Self, toml::de::Error> {
        Ok(Self {
            capture: toml::from_str(text)?,
            #[cfg(feature = "otlp")]
            exports: toml::from_str(text)?,
            ..toml::from_str(text)?
        })
    }
}

impl FileSetting {
    /// Formats a line of the configuration file with these values, or with the example if `values` is empty.
    fn line(&self, values: &[String]) -> String {
        // JSON strings are also valid TOML strings.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let value = match values {
            [] => self.example.to_owned(),
            all if self.example.starts_with('[') => {
                let separator = if COMMA_LISTS.contains(&self.name) {
                    ","
                } else {
                    "\n"
                };
                let items = all.iter().flat_map(|value| value.split(separator));
                format!("[{}]", items.map(quoted).collect::<Vec<_>>().join(", "))
            }
            [.., last] if self.example.starts_with('"') => quoted(last),
            [.., last] => match last.parse::<f64>() {
                Ok(_) => last.clone(),
                Err(_) => self.example.to_owned(),
            },
        };
        format!("{} = {value}", self.name)
    }
}

/// If the command line contains a setting of the configuration file, returns a hint with the lines to write
/// into the file.
pub(crate) fn on_command_line(arguments: &[OsString]) -> Option<String> {
    let words: Vec<&str> = arguments
        .iter()
        .map_while(|word| word.to_str().filter(|word| *word != "--"))
        .collect();
    let mut found = Vec::new();
    for setting in settings() {
        let option = format!("--{}", setting.name);
        let mut values = Vec::new();
        let mut is_given = false;
        for (index, word) in words.iter().enumerate() {
            let next = words.get(index + 1).filter(|next| !next.starts_with('-'));
            match word.strip_prefix(&option) {
                Some("") => values.extend(next.map(|next| (*next).to_owned())),
                Some(rest) if rest.starts_with('=') => values.push(rest[1..].to_owned()),
                _ => continue,
            }
            is_given = true;
        }
        if is_given {
            found.push((option, setting.line(&values)));
        }
    }
    answer(found)
}

/// Returns the same hint as [`on_command_line`], for environment variables.
pub(crate) fn in_environment(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let found = settings().into_iter().filter_map(|setting| {
        let name = environment::variable(setting.name);
        let value = variable(&name)?;
        Some((name, setting.line(&[value])))
    });
    answer(found.collect())
}

fn answer(found: Vec<(String, String)>) -> Option<String> {
    let (names, lines): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let (is, it) = match names.len() {
        0 => return None,
        1 => ("is", "this line"),
        _ => ("are", "these lines"),
    };
    let lines = lines.iter().map(|line| format!("`{line}`")).collect::<Vec<_>>();
    Some(format!(
        "{} {is} set in the configuration file only: put {it} into a file that --config FILE names: {}",
        names.join(", "),
        lines.join(", ")
    ))
}

/// Returns the help section about the configuration file.
pub(crate) fn help() -> String {
    let mut text = "Only in the configuration file (--config FILE), one line each:\n".to_owned();
    for setting in settings() {
        text += &format!("  {}\n          {}\n", setting.line(&[]), setting.about.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::options::Options;

    #[test]
    fn every_setting_of_the_file_is_read_listed_and_no_option() {
        let lines: Vec<String> = settings().iter().map(|setting| setting.line(&[])).collect();
        let read = Options::from_file(&lines.join("\n")).unwrap();
        let shown = format!("{:?}", read.file);
        assert!(!shown.contains("None") && !shown.contains("[]"), "{shown}");
        let command = Options::command();
        for (setting, line) in settings().iter().zip(&lines) {
            let mut options = command.get_arguments().filter_map(clap::Arg::get_long);
            assert!(!options.any(|option| option == setting.name), "{}", setting.name);
            let alone = format!("{:?}", Options::from_file(line).unwrap().file);
            assert_ne!(alone, format!("{:?}", FileOptions::default()), "{line}");
        }
    }

    /// The example in the operators' page contains every setting and is a valid file.
    #[test]
    fn the_page_for_operators_has_every_setting_of_the_file() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, section) = page.split_once("\n## The configuration file\n").unwrap();
        let (_, example) = section.split_once("```toml\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        for setting in settings() {
            let line = setting.line(&[]);
            assert!(example.lines().any(|found| found == line), "{line}");
        }
        #[cfg(feature = "otlp")]
        assert!(Options::from_file(example).is_ok());
    }

    #[test]
    fn lines_to_write_have_the_values_that_were_given() {
        let told = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            on_command_line(&words)
        };
        let line = told(&["models", "--capture", "a \"b\"", "--log=warn"]).unwrap();
        assert_eq!(
            line,
            "--capture is set in the configuration file only: put this line into a file that --config FILE names: \
             `capture = \"a \\\"b\\\"\"`"
        );
        let lines = told(&[
            "--capture-rate=0.5",
            "--capture-models",
            "a*,b",
            "--capture-models=c",
        ])
        .unwrap();
        assert!(
            lines.starts_with("--capture-rate, --capture-models are set")
                && lines.ends_with("`capture-rate = 0.5`, `capture-models = [\"a*\", \"b\", \"c\"]`"),
            "{lines}"
        );
        // Without a value, the hint shows the example. Arguments after `--` are paths.
        assert!(
            told(&["--cpu-threads", "--log=warn"])
                .unwrap()
                .ends_with("`cpu-threads = 4`")
        );
        assert_eq!(told(&["--", "--capture"]), None);
        assert_eq!(told(&["--captured", "--capture-r=1"]), None);
        let variable = |name: &str| (name == "OIP_GRPC_OUTPUT").then(|| "raw".to_owned());
        let line = in_environment(variable).unwrap();
        assert!(
            line.starts_with("OIP_GRPC_OUTPUT is set") && line.ends_with("`grpc-output = \"raw\"`"),
            "{line}"
        );
    }
}
