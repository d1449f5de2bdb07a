//! Output for users on the console: addresses, models, and next steps.

mod examples;
mod table;
mod terminal_text;
pub(crate) mod urls;

use std::{
    fmt::Write as _,
    io::{Write, stdout},
    time::Duration,
};

use model_repository::PassedOver;
use oip_engine::ModelStatus;
use oip_listen::Address;
use oip_service::route::path_segment;
use oip_types::{Joining, ModelState, TensorMetadata};
use serde_json::{Value, json};

pub(crate) use self::examples::quoted;
use self::{
    examples::Example,
    table::{TerminalStyle, table},
    terminal_text::shown,
    urls::{ReachableAddresses, Way},
};
use crate::backends;

/// Prints to standard output and ignores errors.
fn print(text: &str) {
    let _ = stdout().write_all(text.as_bytes());
    let _ = stdout().flush();
}

/// Prints the addresses before models are loaded.
pub(crate) fn listening(addresses: &ReachableAddresses) {
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
    addresses: &ReachableAddresses,
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
fn next_steps(models: &[ModelStatus], addresses: &ReachableAddresses) -> String {
    let ready = || models.iter().filter(|model| model.state == ModelState::Ready);
    let example = ready().find_map(|model| Some((model, Example::of(model.metadata.as_ref()?)?)));
    let mut text = String::new();
    let begin = |text: &mut String, way: &Way| {
        text.push_str("\ntry:\n");
        // Notes are printed as shell comments, so that all lines can be pasted at once.
        for note in &way.notes {
            let _ = writeln!(text, "  # {note}");
        }
    };
    match (example, ready().next(), addresses.way()) {
        (Some((model, example)), _, Some(way)) => {
            begin(&mut text, &way);
            let _ = writeln!(text, "  {}", example.curl(&way.curl, &path_segment(&model.name)));
            if let Some(options) = &way.tensor {
                let _ = writeln!(text, "  {}", example.tensor(options));
            }
        }
        (None, Some(model), Some(way)) => {
            begin(&mut text, &way);
            let _ = writeln!(
                text,
                "  curl -s {}/v2/models/{}",
                way.curl,
                path_segment(&model.name)
            );
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use oip_listen::ServerCertificate;
    use oip_types::{DataType, ModelMetadata};

    use super::*;
    use crate::banner::urls::Encryption;

    #[test]
    fn what_can_be_pasted_is_for_this_server() {
        let x = TensorMetadata::new("x", DataType::FP32, &[-1, 2]);
        let metadata = Arc::new(ModelMetadata::new("m", "onnx_onnxv1", vec![x], Vec::new()));
        let ready = ModelStatus::new("m", None, ModelState::Ready, "").with_metadata(metadata);
        let addresses = |http: &str| ReachableAddresses {
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
        let socket = ReachableAddresses {
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

    /// Returns the next steps for a server whose certificate has these names. `set` changes the addresses and
    /// the TLS properties.
    fn next(names: &[&str], set: impl FnOnce(&mut ReachableAddresses, &mut Encryption)) -> String {
        let x = TensorMetadata::new("x", DataType::FP32, &[2]);
        let metadata = Arc::new(ModelMetadata::new("m", "onnx_onnxv1", vec![x], Vec::new()));
        let ready = ModelStatus::new("m", None, ModelState::Ready, "").with_metadata(metadata);
        let mut certificate = ServerCertificate::default();
        certificate.names = names.iter().copied().map(str::to_owned).collect();
        let mut encryption = Encryption {
            certificate,
            file: "my certificates/server.pem".into(),
            knows_clients: false,
        };
        let mut addresses = ReachableAddresses {
            http: vec![Address::Tcp("0.0.0.0:8443".parse().unwrap())],
            grpc: Vec::new(),
            admin: None,
            encryption: None,
            wants_token: false,
            has_console: true,
        };
        set(&mut addresses, &mut encryption);
        addresses.encryption = Some(encryption);
        next_steps(std::slice::from_ref(&ready), &addresses)
    }

    #[test]
    fn what_can_be_pasted_has_the_certificate_and_the_token() {
        // Clients trust a self-signed certificate directly, by one of its names.
        let text = next(
            &["*.example.com", "models.example.com", "localhost"],
            |addresses, tls| {
                addresses.wants_token = true;
                tls.certificate.is_self_signed = true;
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
        let text = next(&["127.0.0.1"], |_, tls| {
            (tls.certificate.is_self_signed, tls.certificate.is_authority) = (true, true);
        });
        assert!(
            text.contains(" https://127.0.0.1:8443/") && !text.contains("tensor"),
            "{text}"
        );
    }

    #[test]
    fn what_can_be_pasted_says_which_files_are_needed() {
        // With a CA and client certificates, users must supply the files themselves.
        let text = next(
            &["*.example.com", "x;y", "models.example.com"],
            |addresses, tls| {
                addresses.wants_token = true;
                tls.knows_clients = true;
            },
        );
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
