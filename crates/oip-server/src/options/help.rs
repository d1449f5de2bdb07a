//! Arranges the help: groups options under headings, and selects the short list for `-h`.

use clap::Command;

use super::environment::variable;

/// The headings with their options, in order. Every option for serving has a heading.
const HEADINGS: [(&str, &str); 7] = [
    (
        "Models",
        "model-repository model-name model-control-mode repository-poll-secs load-model \
         load-timeout strict-readiness threads instances response-cache-byte-size \
         repository-cache repository-cache-limit repository-ca repository-also \
         require-digests allow-mapped-models",
    ),
    (
        "Addresses",
        "port host address http-address grpc-address http-port grpc-port admin-address \
         unix-socket-mode shutdown-delay drain-timeout",
    ),
    (
        "Limits",
        "memory-budget max-request-size max-answer-size max-batch-tokens max-connections \
         queue-size request-timeout max-request-timeout model-memory-limit",
    ),
    (
        "Access",
        "tls-certificate tls-key tls-client-ca auth allowed-hosts cors-origin \
         http-restricted-api grpc-restricted-protocol allow-public-admin allow-console \
         allow-console-log allow-metrics system-shared-memory",
    ),
    ("Logs", "log log-format access-log access-log-file"),
    (
        "Runtimes",
        "onnxruntime gpus isolate-models allow-python allow-pickle python",
    ),
    ("Advanced", "config"),
];

/// The options shown by `-h`, each with one line.
const SHORT: &str = "\
model-repository: A repository, or its URL: s3://, gs://, az://, hf://, https://; several if given again
model-name: The name of the only model [default: that of its directory or file]
model-control-mode: Which models are loaded, and when [default: none]
port: One port for HTTP and gRPC [default: 8080 and 9000]
host: The host or IP address to listen on [default: 127.0.0.1]
memory-budget: Memory for requests and their responses [default: 512MiB]
request-timeout: Deadline of requests that set none [default: 30s]
auth: A TOML file with identities and what they may do
log: What is logged: error, warn, info, debug, or levels by target [default: info]
onnxruntime: The library of ONNX Runtime to use instead of the built-in one, or `auto` to look for one
allow-python: Whether models in Python are run, which are programs [default: false]
config: A TOML file with any of the options";

/// Returns the heading of an option, and its position among all options.
fn place(option: &str) -> Option<(&'static str, usize)> {
    HEADINGS
        .iter()
        .enumerate()
        .find_map(|(group, (heading, options))| {
            let index = options.split(' ').position(|known| known == option)?;
            Some((*heading, group * 100 + index))
        })
}

/// Arranges a command's options under headings, hides most of them from the short help, and makes them
/// settable by environment variables. Options without a heading are unchanged.
pub(crate) fn arranged(command: Command) -> Command {
    command.mut_args(|argument| {
        let long = argument.get_long().unwrap_or_default().to_owned();
        let Some((heading, order)) = place(&long) else {
            return argument;
        };
        let short = SHORT
            .lines()
            .find_map(|line| line.strip_prefix(&long)?.strip_prefix(": "));
        let long_help = argument.get_long_help().or(argument.get_help()).cloned();
        let argument = argument.help_heading(heading).display_order(order);
        let argument = argument.env(variable(&long)).hide_env(true);
        match (short, long_help) {
            (Some(line), Some(text)) => argument.help(line).long_help(text),
            _ => argument.hide_short_help(true),
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
        for option in command.get_arguments().filter_map(clap::Arg::get_long) {
            let all = HEADINGS.iter().flat_map(|(_, options)| options.split(' '));
            assert_eq!(all.filter(|known| *known == option).count(), 1, "--{option}");
        }
        let mut short = SHORT.lines().filter_map(|line| line.split_once(": "));
        assert!(short.all(|(option, _)| place(option).is_some()));
    }
}
