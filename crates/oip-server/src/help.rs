//! The order of the help: options under headings, and the few of `-h`.

use clap::Command;

/// The headings with their options, in the order of the help. Every option that serving has is in one of them.
const HEADINGS: [(&str, &[&str]); 7] = [
    (
        "Models",
        &[
            "model-repository",
            "model-name",
            "model-control-mode",
            "repository-poll-secs",
            "load-model",
            "load-timeout",
            "strict-readiness",
            "instances",
            "response-cache-byte-size",
            "repository-cache",
            "repository-cache-limit",
            "repository-ca",
            "repository-also",
            "require-digests",
            "allow-mapped-models",
        ],
    ),
    (
        "Addresses",
        &[
            "port",
            "host",
            "address",
            "http-address",
            "grpc-address",
            "http-port",
            "grpc-port",
            "admin-address",
            "unix-socket-mode",
            "shutdown-delay",
            "drain-timeout",
        ],
    ),
    (
        "Limits",
        &[
            "memory-budget",
            "max-request-size",
            "max-answer-size",
            "max-connections",
            "queue-size",
            "request-timeout",
            "max-request-timeout",
            "model-memory-limit",
        ],
    ),
    (
        "Access",
        &[
            "tls-certificate",
            "tls-key",
            "tls-client-ca",
            "auth",
            "allowed-hosts",
            "cors-origin",
            "http-restricted-api",
            "grpc-restricted-protocol",
            "allow-public-admin",
            "allow-console",
            "allow-console-log",
            "allow-metrics",
            "system-shared-memory",
        ],
    ),
    ("Logs", &["log", "log-format", "access-log", "access-log-file"]),
    (
        "Runtimes",
        &[
            "onnxruntime",
            "isolate-models",
            "allow-python",
            "allow-pickle",
            "python",
        ],
    ),
    (
        "Advanced",
        &[
            "config",
            "cpu-threads",
            "in-place-time",
            "json-nonfinite",
            "grpc-output",
            "capture",
            "capture-rate",
            "capture-models",
            "capture-limit",
            "otlp-endpoint",
            "otlp-sample-ratio",
            "otlp-ca",
            "otlp-attribute",
            "otlp-metrics-endpoint",
            "otlp-metrics-interval",
        ],
    ),
];

/// The options of `-h`.
const SHORT: [&str; 14] = [
    "model-repository",
    "model-name",
    "model-control-mode",
    "port",
    "host",
    "http-address",
    "grpc-address",
    "memory-budget",
    "request-timeout",
    "auth",
    "log",
    "onnxruntime",
    "allow-python",
    "config",
];

/// The same command with its options under headings, and most of them in the long help only. Options that serving has not stay as
/// they are.
pub(crate) fn arranged(command: Command) -> Command {
    command.mut_args(|argument| {
        let long = argument.get_long().unwrap_or_default().to_owned();
        let place = HEADINGS
            .iter()
            .enumerate()
            .find_map(|(group, (heading, options))| {
                let index = options.iter().position(|option| *option == long)?;
                Some((*heading, group * 100 + index))
            });
        match place {
            None => argument,
            Some((heading, order)) => argument
                .help_heading(heading)
                .display_order(order)
                .hide_short_help(!SHORT.contains(&&*long)),
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::options::Options;

    #[test]
    fn every_option_has_a_heading() {
        let command = Options::command();
        let options = command.get_arguments().filter_map(clap::Arg::get_long);
        for option in options {
            let headings = HEADINGS.iter().filter(|(_, options)| options.contains(&option));
            assert_eq!(headings.count(), 1, "--{option}");
        }
        assert!(
            SHORT
                .iter()
                .all(|option| HEADINGS.iter().any(|(_, options)| options.contains(option)))
        );
    }
}
