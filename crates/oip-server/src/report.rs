use std::{
    fmt::Write as _,
    io::{Write, stdout},
    path::Path,
    time::Duration,
};

use oip_engine::ModelStatus;
use oip_listen::Address;
use oip_types::{ModelState, TensorMetadata};
use serde_json::{Value, json};

use crate::backends;

/// Prints to standard output; when nobody can read it, it is not printed.
fn print(text: &str) {
    let _ = stdout().write_all(text.as_bytes());
    let _ = stdout().flush();
}

/// Says where the server listens, before it loads anything.
pub(crate) fn listening(http: &[Address], grpc: &[Address]) {
    let mut text = format!("oip-server {}\n", env!("CARGO_PKG_VERSION"));
    for address in http {
        let scheme = match address {
            Address::Tcp(_) => "http://",
            _ => "",
        };
        let _ = writeln!(text, "  HTTP  {scheme}{address}");
    }
    for address in grpc {
        let _ = writeln!(text, "  gRPC  {address}");
    }
    print(&text);
}

/// Says what is served, once everything is loaded or has failed.
pub(crate) fn models(
    models: &[ModelStatus],
    misplaced: &[String],
    http: Option<&Address>,
    elapsed: Duration,
) {
    let mut text = summary(models, misplaced, elapsed);
    if let Some(model) = models.iter().find(|model| model.state == ModelState::Ready) {
        let model = in_url(&model.name);
        let _ = match http {
            Some(Address::Unix(path)) => writeln!(
                text,
                "try: curl --unix-socket {} http://localhost/v2/models/{model}",
                shown(&path.to_string_lossy())
            ),
            Some(address) => writeln!(text, "try: curl http://{address}/v2/models/{model}"),
            None => Ok(()),
        };
    }
    print(&text);
}

/// Says what would be served.
pub(crate) fn checked(models: &[ModelStatus], misplaced: &[String], elapsed: Duration) {
    print(summary(models, misplaced, elapsed).trim_start());
}

/// Says it to a program.
pub(crate) fn as_json(models: &[ModelStatus], misplaced: &[String]) {
    let tensors = |tensors: &[TensorMetadata]| -> Value {
        let tensors = tensors.iter().map(|tensor| {
            json!({
                "name": tensor.name,
                "datatype": tensor.datatype.name(),
                "shape": tensor.shape.to_wire().collect::<Vec<_>>(),
            })
        });
        tensors.collect()
    };
    let models: Vec<Value> = models
        .iter()
        .map(|model| {
            let metadata = model.metadata.as_ref();
            json!({
                "name": model.name,
                "version": model.version,
                "state": model.state.name(),
                "reason": model.reason,
                "inputs": metadata.map(|metadata| tensors(&metadata.inputs)),
                "outputs": metadata.map(|metadata| tensors(&metadata.outputs)),
            })
        })
        .collect();
    let report = json!({"models": models, "passed_over": misplaced});
    print(&format!("{report:#}\n"));
}

fn summary(models: &[ModelStatus], misplaced: &[String], elapsed: Duration) -> String {
    let mut text = String::from("\n");
    match models.is_empty() {
        true => text.push_str("No models are loaded.\n"),
        false => text.push_str(&table(models)),
    }
    for file in misplaced {
        let stem = Path::new(file).file_stem().unwrap_or_default().to_string_lossy();
        let extension = Path::new(file).extension().unwrap_or_default().to_string_lossy();
        let (shown_file, stem, extension) = (shown(file), shown(&stem), shown(&extension));
        let _ = writeln!(
            text,
            "passed over: {shown_file}, which would be a model as {stem}/1/model.{extension}"
        );
    }
    let failed = models
        .iter()
        .filter(|model| model.state != ModelState::Ready)
        .count();
    let outcome = match failed {
        0 if models.is_empty() => "ready, with nothing to serve,".to_owned(),
        0 => "ready".to_owned(),
        failed => format!("{failed} of {} model versions unavailable", models.len()),
    };
    let _ = writeln!(text, "\n{outcome} after {} ms", elapsed.as_millis());
    if let Some(advice) = backends::advice(models) {
        let _ = writeln!(text, "{advice}");
    }
    text
}

/// A row per version; more rows where it has several inputs or outputs.
fn table(models: &[ModelStatus]) -> String {
    let mut rows = vec![["MODEL", "VERSION", "STATE", "LOADED IN", "INPUTS", "OUTPUTS"].map(str::to_owned)];
    let mut reasons = Vec::new();
    for model in models {
        let name = shown(&model.name);
        let version = model.version.as_deref().map_or("-".to_owned(), shown);
        if !model.reason.is_empty() {
            reasons.push(format!("{name} {version}: {}\n", shown(&model.reason)));
        }
        let load_time = model
            .load_time
            .map_or(String::new(), |time| format!("{} ms", time.as_millis()));
        let (inputs, outputs) = model.metadata.as_ref().map_or((&[][..], &[][..]), |metadata| {
            (&metadata.inputs, &metadata.outputs)
        });
        let cell =
            |tensors: &[TensorMetadata], line: usize| tensors.get(line).map(tensor).unwrap_or_default();
        rows.push([
            name,
            version,
            model.state.name().to_owned(),
            load_time,
            cell(inputs, 0),
            cell(outputs, 0),
        ]);
        let lines = inputs.len().max(outputs.len());
        let empty = String::new;
        for line in 1..lines.min(SHOWN) {
            rows.push([
                empty(),
                empty(),
                empty(),
                empty(),
                cell(inputs, line),
                cell(outputs, line),
            ]);
        }
        if lines > SHOWN {
            let more = |tensors: &[TensorMetadata]| match tensors.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!("and {more} more"),
            };
            rows.push([empty(), empty(), empty(), empty(), more(inputs), more(outputs)]);
        }
    }
    let width = |column: usize| {
        rows.iter()
            .map(|row: &[String; 6]| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..6).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    if !reasons.is_empty() {
        text.push('\n');
        text.extend(reasons);
    }
    text
}

/// Inputs or outputs of one version that are shown; tensor files have thousands.
const SHOWN: usize = 8;

fn tensor(tensor: &TensorMetadata) -> String {
    format!("{} {}{}", shown(&tensor.name), tensor.datatype, tensor.shape)
}

/// Text from folders and files as it may go to a terminal: without what would move the cursor, change colours or turn
/// the direction of what follows.
fn shown(text: &str) -> String {
    let harmless = |character: char| match character {
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            char::REPLACEMENT_CHARACTER
        }
        control if control.is_control() => char::REPLACEMENT_CHARACTER,
        other => other,
    };
    text.chars().map(harmless).collect()
}

/// A model's name in a URL that is to be pasted into a shell.
fn in_url(name: &str) -> String {
    let mut url = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => url.push(char::from(byte)),
            other => url.push_str(&format!("%{other:02X}")),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use oip_types::{DataType, ModelMetadata};

    use super::*;

    #[test]
    fn many_tensors_are_counted_and_names_are_harmless() {
        let outputs = (0..20).map(|index| TensorMetadata::new(format!("t\x1b{index}"), DataType::UINT8, &[]));
        let metadata = ModelMetadata::new(
            "many",
            "tensorferry_ztensor",
            vec![TensorMetadata::new("x", DataType::UINT8, &[])],
            outputs.collect(),
        );
        let ready = ModelStatus::new("many", None, ModelState::Ready, "").with_metadata(Arc::new(metadata));
        let text = table(&[ready]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + SHOWN + 1);
        assert!(lines[2].ends_with("t\u{fffd}1 UINT8[]"), "{text}");
        assert!(
            lines[SHOWN + 1].trim() == "and 12 more" && !text.contains('\x1b'),
            "{text}"
        );
    }

    #[test]
    fn names_of_folders_are_harmless_too() {
        let name = "evil\u{1b}[2J\u{202e}x";
        let failed = ModelStatus::new(name, Some("1\n2"), ModelState::Unavailable, "no\rgood\u{7}");
        let text = table(&[failed]);
        assert!(
            text.contains("evil\u{fffd}[2J\u{fffd}x 1\u{fffd}2: no\u{fffd}good\u{fffd}"),
            "{text:?}"
        );
        assert_eq!(text.lines().count(), 4);
        assert_eq!(in_url("a b;$(x)/ü"), "a%20b%3B%24%28x%29%2F%C3%BC");
    }

    #[test]
    fn the_table_shows_everything_once() {
        let metadata = ModelMetadata::new(
            "digits",
            "onnx_onnxv1",
            vec![TensorMetadata::new("X", DataType::FP32, &[-1, 64])],
            vec![
                TensorMetadata::new("label", DataType::INT64, &[-1]),
                TensorMetadata::new("probabilities", DataType::FP32, &[-1, 10]),
            ],
        )
        .with_versions(["1"]);
        let ready = ModelStatus::new("digits", Some("1"), ModelState::Ready, "")
            .with_metadata(Arc::new(metadata))
            .with_load_time(Duration::from_millis(12));
        let failed = ModelStatus::new("broken", Some("3"), ModelState::Unavailable, "it is cut off");
        assert_eq!(
            table(&[ready, failed]),
            "\
MODEL   VERSION  STATE        LOADED IN  INPUTS          OUTPUTS
digits  1        READY        12 ms      X FP32[-1, 64]  label INT64[-1]
                                                         probabilities FP32[-1, 10]
broken  3        UNAVAILABLE

broken 3: it is cut off
"
        );
    }
}
