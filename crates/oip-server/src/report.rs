//! Output for users on the console: addresses, models, and next steps.

use std::{
    fmt::Write as _,
    io::{IsTerminal, Write, stdout},
    time::Duration,
};

use anstream::{AutoStream, ColorChoice};
use model_repository::PassedOver;
use oip_engine::ModelStatus;
use oip_listen::Address;
use oip_types::{Joining, ModelState, TensorMetadata};
use serde_json::{Value, json};

use crate::{
    backends,
    examples::Example,
    reach::{Addresses, Way},
    shown::shown,
};

/// Prints to standard output and ignores errors.
fn print(text: &str) {
    let _ = stdout().write_all(text.as_bytes());
    let _ = stdout().flush();
}

/// How to format output for the terminal.
#[derive(Clone, Copy)]
struct TerminalStyle {
    /// Number of columns; unlimited if standard output is not a terminal.
    width: usize,
    /// Whether colours are used: on a terminal, unless `NO_COLOR` is set.
    is_coloured: bool,
}

impl TerminalStyle {
    #[cfg(test)]
    const PLAIN: Self = Self {
        width: usize::MAX,
        is_coloured: false,
    };

    fn of_stdout() -> Self {
        let size = stdout()
            .is_terminal()
            .then(terminal_size::terminal_size)
            .flatten();
        Self {
            width: size.map_or(usize::MAX, |(width, _)| usize::from(width.0)),
            is_coloured: AutoStream::choice(&stdout()) != ColorChoice::Never,
        }
    }
}

/// Prints the addresses before models are loaded.
pub(crate) fn listening(addresses: &Addresses) {
    let mut text = format!("oip-server {}\n", env!("CARGO_PKG_VERSION"));
    let scheme = |address: &Address| match address {
        Address::Tcp(_) => addresses.scheme(),
        _ => "",
    };
    for address in &addresses.http {
        let _ = writeln!(text, "  HTTP     {}{address}", scheme(address));
    }
    for address in &addresses.grpc {
        let scheme = match address {
            Address::Tcp(_) if addresses.encryption.is_some() => "grpcs://",
            _ => "",
        };
        let _ = writeln!(text, "  gRPC     {scheme}{address}");
    }
    if let Some(admin) = &addresses.admin {
        let _ = writeln!(text, "  admin    {}{admin}", scheme(admin));
    }
    if let Some(url) = addresses.url().filter(|_| addresses.has_console) {
        let _ = writeln!(text, "  console  {url}/");
    }
    print(&text);
}

/// Prints the models once each is loaded or has failed.
pub(crate) fn models(
    models: &[ModelStatus],
    passed_over: &[PassedOver],
    addresses: &Addresses,
    elapsed: Duration,
) {
    let mut text = summary(models, passed_over, elapsed, TerminalStyle::of_stdout());
    text += &next_steps(models, addresses);
    print(&text);
}

/// Logs the files and models that are not served, for programs that read only the log.
pub(crate) fn log_passed_over(models: &[ModelStatus], passed_over: &[PassedOver]) {
    for PassedOver { file, advice, .. } in passed_over {
        tracing::warn!(file, advice, "a file is not served");
    }
    if models.is_empty() {
        tracing::warn!("ready, with nothing to serve");
    }
}

/// Returns commands for the user to paste next.
fn next_steps(models: &[ModelStatus], addresses: &Addresses) -> String {
    let ready = || models.iter().filter(|model| model.state == ModelState::Ready);
    let example = ready().find_map(|model| Some((model, Example::of(model.metadata.as_ref()?)?)));
    let mut text = String::new();
    let begin = |text: &mut String, way: &Way| {
        text.push_str("\ntry:\n");
        // Notes are comments, so that all lines can be pasted at once.
        for note in &way.notes {
            let _ = writeln!(text, "  # {note}");
        }
    };
    match (example, ready().next(), addresses.way()) {
        (Some((model, example)), _, Some(way)) => {
            begin(&mut text, &way);
            let _ = writeln!(text, "  {}", example.curl(&way.curl, &in_url(&model.name)));
            if let Some(options) = &way.tensor {
                let _ = writeln!(text, "  {}", example.tensor(options));
            }
        }
        (None, Some(model), Some(way)) => {
            begin(&mut text, &way);
            let _ = writeln!(text, "  curl -s {}/v2/models/{}", way.curl, in_url(&model.name));
        }
        (_, None, _) if models.is_empty() => {
            let _ = writeln!(text, "`oip-server init DIR` writes an example repository");
        }
        _ => {}
    }
    text
}

/// Prints the models that would be served.
pub(crate) fn checked(models: &[ModelStatus], passed_over: &[PassedOver], elapsed: Duration) {
    print(summary(models, passed_over, elapsed, TerminalStyle::of_stdout()).trim_start());
}

/// Prints as JSON the models that would be served.
pub(crate) fn as_json(models: &[ModelStatus], passed_over: &[PassedOver]) {
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
                "batched": model.joining.as_ref().map(Joining::to_string),
                "inputs": metadata.map(|metadata| tensors(&metadata.inputs)),
                "outputs": metadata.map(|metadata| tensors(&metadata.outputs)),
            })
        })
        .collect();
    let passed_over: Vec<Value> = passed_over
        .iter()
        .map(|PassedOver { file, advice, .. }| json!({"file": file, "advice": advice}))
        .collect();
    let report = json!({"models": models, "passed_over": passed_over});
    print(&format!("{report:#}\n"));
}

fn summary(
    models: &[ModelStatus],
    passed_over: &[PassedOver],
    elapsed: Duration,
    look: TerminalStyle,
) -> String {
    let mut text = String::from("\n");
    match models.is_empty() {
        true => text.push_str("No models are loaded.\n"),
        false => text.push_str(&table(models, look)),
    }
    for PassedOver { file, advice, .. } in passed_over {
        let _ = writeln!(text, "not served: {}: {}", shown(file), shown(advice));
    }
    let failed = models
        .iter()
        .filter(|model| model.state != ModelState::Ready)
        .count();
    let outcome = match failed {
        0 if models.is_empty() => "ready, with nothing to serve,".to_owned(),
        0 => "ready".to_owned(),
        failed => format!("{failed} of {} models failed", models.len()),
    };
    let _ = writeln!(text, "\n{outcome} after {} ms", elapsed.as_millis());
    if let Some(advice) = backends::advice(models) {
        let _ = writeln!(text, "{advice}");
    }
    text
}

/// Formats a table with a row per version, and additional rows for further inputs and outputs.
fn table(models: &[ModelStatus], look: TerminalStyle) -> String {
    let titles = [
        "MODEL",
        "VERSION",
        "STATE",
        "LOADED IN",
        "BATCHED",
        "INPUTS",
        "OUTPUTS",
    ];
    let mut rows = vec![titles.map(str::to_owned)];
    let mut reasons = Vec::new();
    for model in models {
        let name = shown(&model.name);
        let version = model.version.as_deref().map_or("-".to_owned(), shown);
        let which = match model.version {
            Some(_) => format!("{name} {version}"),
            None => name.clone(),
        };
        if !model.reason.is_empty() {
            reasons.push(format!("{which}: {}\n", shown(&model.reason)));
        }
        if let Some(joining) = model.joining.as_ref().filter(|joining| !joining.is_joined()) {
            reasons.push(format!("{which}: batched: {}\n", shown(&joining.to_string())));
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
            model.joining.as_ref().map_or("", Joining::word).to_owned(),
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
            rows.push([
                empty(),
                empty(),
                empty(),
                empty(),
                empty(),
                more(inputs),
                more(outputs),
            ]);
        }
    }
    let width = |column: usize| {
        rows.iter()
            .map(|row: &[String; 7]| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let mut widths: [usize; 7] = std::array::from_fn(width);
    // Inputs and outputs share the remaining width. If one of the two columns needs less than half, the other
    // column gets the rest.
    let fixed = widths[..5].iter().sum::<usize>() + 2 * 6;
    let left = look.width.saturating_sub(fixed).max(2 * LEAST);
    if widths[5].saturating_add(widths[6]) > left {
        let half = left / 2;
        (widths[5], widths[6]) = match (widths[5], widths[6]) {
            (inputs, _) if inputs <= half => (inputs, left - inputs),
            (_, outputs) if outputs <= half => (left - outputs, outputs),
            _ => (half, left - half),
        };
    }
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{:<width$}", shortened(cell, *width)))
            .collect();
        let line = cells.join("  ");
        let line = match look.is_coloured {
            true => coloured(line.trim_end(), &row[2]),
            false => line.trim_end().to_owned(),
        };
        let _ = writeln!(text, "{line}");
    }
    if !reasons.is_empty() {
        text.push('\n');
        text.extend(reasons);
    }
    text
}

/// Minimum width of the columns for inputs and outputs.
const LEAST: usize = 16;

/// Truncates a string to `width` columns, and marks the truncation.
fn shortened(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        None => text.to_owned(),
        Some(_) => text.chars().take(width - 1).chain(['…']).collect(),
    }
}

/// Colours the state in a table row. Formats the heading in bold.
fn coloured(line: &str, state: &str) -> String {
    let code = match state {
        "STATE" => return format!("\x1b[1m{line}\x1b[0m"),
        "READY" => "32",
        "UNAVAILABLE" => "31",
        _ => return line.to_owned(),
    };
    line.replacen(&format!(" {state}"), &format!(" \x1b[{code}m{state}\x1b[0m"), 1)
}

/// Maximum number of inputs or outputs shown per version; tensor files have thousands.
const SHOWN: usize = 8;

fn tensor(tensor: &TensorMetadata) -> String {
    format!("{} {}{}", shown(&tensor.name), tensor.datatype, tensor.shape)
}

/// Encodes a model's name for a URL in a shell command.
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

    use oip_listen::ServerCertificate;
    use oip_types::{DataType, ModelMetadata};

    use super::*;
    use crate::reach::Encryption;

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
        let text = table(&[ready], TerminalStyle::PLAIN);
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
        let text = table(&[failed], TerminalStyle::PLAIN);
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
            .with_joining(Joining::Proven)
            .with_load_time(Duration::from_millis(12));
        let failed = ModelStatus::new("broken", Some("3"), ModelState::Unavailable, "it is cut off");
        let causal = Joining::alone("CumSum 'y' runs along axis 0").advising("write max_batch_size: 8");
        let alone = ModelStatus::new("sums", None, ModelState::Ready, "").with_joining(causal);
        assert_eq!(
            table(&[ready, failed, alone], TerminalStyle::PLAIN),
            "\
MODEL   VERSION  STATE        LOADED IN  BATCHED  INPUTS          OUTPUTS
digits  1        READY        12 ms      proven   X FP32[-1, 64]  label INT64[-1]
                                                                  probabilities FP32[-1, 10]
broken  3        UNAVAILABLE
sums    -        READY                   no

broken 3: it is cut off
sums: batched: no (CumSum 'y' runs along axis 0; to promise that rows are independent, write max_batch_size: 8)
"
        );
    }

    #[test]
    fn narrow_terminals_have_whole_lines() {
        let long = |name: &str| TensorMetadata::new(name.repeat(20), DataType::FP32, &[-1, 64]);
        let metadata = ModelMetadata::new("m", "onnx_onnxv1", vec![long("in")], vec![long("out")]);
        let model = ModelStatus::new("m", Some("1"), ModelState::Ready, "").with_metadata(Arc::new(metadata));
        let look = TerminalStyle {
            width: 80,
            is_coloured: false,
        };
        let text = table(std::slice::from_ref(&model), look);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(text.matches('…').count(), 2, "{text}");
        let look = TerminalStyle {
            is_coloured: true,
            ..TerminalStyle::PLAIN
        };
        let text = table(&[model], look);
        assert!(
            text.starts_with("\x1b[1mMODEL") && text.contains(" \x1b[32mREADY\x1b[0m "),
            "{text:?}"
        );
    }

    #[test]
    fn what_can_be_pasted_is_for_this_server() {
        let x = TensorMetadata::new("x", DataType::FP32, &[-1, 2]);
        let metadata = Arc::new(ModelMetadata::new("m", "onnx_onnxv1", vec![x], Vec::new()));
        let ready = ModelStatus::new("m", None, ModelState::Ready, "").with_metadata(metadata);
        let addresses = |http: &str| Addresses {
            http: vec![Address::Tcp(http.parse().unwrap())],
            grpc: Vec::new(),
            admin: None,
            encryption: None,
            wants_token: false,
            has_console: true,
        };
        let text = next_steps(std::slice::from_ref(&ready), &addresses("0.0.0.0:8080"));
        assert!(
            text.contains("  curl -s http://127.0.0.1:8080/v2/models/m/infer -d '{"),
            "{text}"
        );
        assert!(
            text.ends_with("  tensor infer --model m -i 'x=[[0,0]]'\n"),
            "{text}"
        );
        let text = next_steps(std::slice::from_ref(&ready), &addresses("[::1]:1"));
        assert!(
            text.contains("tensor infer --url http://[::1]:1 --model m"),
            "{text}"
        );
        assert!(next_steps(&[], &addresses("0.0.0.0:8080")).contains("oip-server init"));
        let socket = Addresses {
            http: vec![Address::Unix("/run/oip.sock".into())],
            ..addresses("[::1]:1")
        };
        let text = next_steps(std::slice::from_ref(&ready), &socket);
        assert!(
            text.contains("  curl -s --unix-socket /run/oip.sock http://localhost/v2/models/m/infer -d '{"),
            "{text}"
        );
        assert!(!text.contains("tensor infer"), "{text}");
    }

    #[test]
    fn what_can_be_pasted_has_the_certificate_and_the_token() {
        let x = TensorMetadata::new("x", DataType::FP32, &[2]);
        let metadata = Arc::new(ModelMetadata::new("m", "onnx_onnxv1", vec![x], Vec::new()));
        let ready = ModelStatus::new("m", None, ModelState::Ready, "").with_metadata(metadata);
        let next = |names: &[&str], set: &dyn Fn(&mut Addresses)| {
            let mut certificate = ServerCertificate::default();
            certificate.names = names.iter().copied().map(str::to_owned).collect();
            let mut addresses = Addresses {
                http: vec![Address::Tcp("0.0.0.0:8443".parse().unwrap())],
                grpc: Vec::new(),
                admin: None,
                encryption: Some(Encryption {
                    certificate,
                    file: "my certificates/server.pem".into(),
                    knows_clients: false,
                }),
                wants_token: false,
                has_console: true,
            };
            set(&mut addresses);
            next_steps(std::slice::from_ref(&ready), &addresses)
        };
        let edit = |addresses: &mut Addresses, edit: &dyn Fn(&mut Encryption)| {
            edit(addresses.encryption.as_mut().unwrap());
        };

        // Clients trust a self-signed certificate directly, by one of its names.
        let text = next(
            &["*.example.com", "models.example.com", "localhost"],
            &|addresses| {
                addresses.wants_token = true;
                edit(addresses, &|tls| tls.certificate.is_self_signed = true);
            },
        );
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[2], "# TOKEN is one of an identity in the table of --auth");
        let curl = "curl -s -H \"Authorization: Bearer $TOKEN\" --cacert 'my certificates/server.pem' https://localhost:8443/v2/models/m/infer -d ";
        assert!(lines[3].starts_with(curl), "{text}");
        let tensor = "tensor infer --url https://localhost:8443 --ca 'my certificates/server.pem' \
                      --header \"authorization=Bearer $TOKEN\" --model m ";
        assert!(lines[4].starts_with(tensor), "{text}");
        // rustls rejects a CA certificate as a server certificate.
        let text = next(&["127.0.0.1"], &|addresses| {
            edit(addresses, &|tls| {
                (tls.certificate.is_self_signed, tls.certificate.is_authority) = (true, true);
            });
        });
        assert!(
            text.contains(" https://127.0.0.1:8443/") && !text.contains("tensor"),
            "{text}"
        );

        // With a CA and client certificates, users must supply the files themselves.
        let text = next(&["*.example.com", "x;y", "models.example.com"], &|addresses| {
            addresses.wants_token = true;
            edit(addresses, &|tls| tls.knows_clients = true);
        });
        assert!(text.contains("# where this machine does not trust"), "{text}");
        assert!(
            text.contains("# with a client's certificate: --cert FILE --key FILE"),
            "{text}"
        );
        assert!(
            text.contains("\n  curl -s https://models.example.com:8443/v2/models/m/infer -d "),
            "{text}"
        );
        assert!(
            text.contains("tensor infer --url https://models.example.com:8443 --model"),
            "{text}"
        );
    }
}
