//! One-line errors for wrong command lines, with suggestions.

use std::{
    env,
    error::Error as _,
    ffi::{OsStr, OsString},
    num::ParseIntError,
    path::Path,
};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{environment, file_options};
use crate::banner::quoted;

pub(crate) const PROGRAM: &str = "oip-server";

const COMMANDS: [&str; 4] = ["check", "init", "completions", "man"];

/// Formats an error in arguments that were parsed for serving.
pub(crate) fn told(error: &clap::Error, arguments: &[OsString]) -> String {
    moved(error, arguments)
        .or_else(|| misplaced(error, arguments))
        .or_else(|| two_paths(error, arguments))
        .unwrap_or_else(|| one_line(error))
}

/// Formats an error in the arguments of `command`.
pub(crate) fn told_of_command(command: &str, error: &clap::Error, arguments: &[OsString]) -> String {
    moved(error, arguments)
        .or_else(|| overwriting(command, error))
        .unwrap_or_else(|| one_line(error))
}

/// Returns the message that `init` has no option to overwrite files.
fn overwriting(command: &str, error: &clap::Error) -> Option<String> {
    let is_unknown = command == "init" && error.kind() == ErrorKind::UnknownArgument;
    match error.get(ContextKind::InvalidArg).filter(|_| is_unknown)? {
        ContextValue::String(option) if matches!(&option[..], "--force" | "--overwrite" | "-f") => {
            Some(format!(
                "unexpected argument '{option}' found; `{PROGRAM} init` never overwrites files: name a new directory, or empty this one first"
            ))
        }
        _ => None,
    }
}

/// Returns the hint for options that exist only in the configuration file.
fn moved(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let is_unknown = error.kind() == ErrorKind::UnknownArgument;
    is_unknown
        .then(|| file_options::on_command_line(arguments))
        .flatten()
}

/// Returns the hint for a misspelt or misplaced subcommand that was parsed as a path.
fn misplaced(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let at = arguments.iter().position(|word| read_as_path(word).is_some())?;
    let is_of_words = match error.kind() {
        ErrorKind::ArgumentConflict => true,
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => at == 0,
        _ => false,
    };
    is_of_words.then(|| command_first(arguments, at)).flatten()
}

/// Returns the hint for a nonexistent path that may be meant as a subcommand.
pub(crate) fn told_of_path(path: &Path, arguments: &[OsString]) -> Option<String> {
    let at = arguments.iter().position(|word| word == path.as_os_str())?;
    command_first(arguments, at)
}

/// Returns the command line with the subcommand at index `at` moved to the front.
fn command_first(arguments: &[OsString], at: usize) -> Option<String> {
    let word = arguments.get(at)?;
    let command = read_as_path(word)?;
    let (before, after) = (&arguments[..at], &arguments[at + 1..]);
    // Only `check` shares the serving options.
    let has_options = before
        .iter()
        .any(|argument| argument.as_encoded_bytes().starts_with(b"-"));
    let before = match has_options && command != "check" {
        true => &[],
        false => before,
    };
    let meant = call(command, before.iter().chain(after));
    Some(match word == command {
        true => format!("the command '{command}' comes before its arguments: did you mean `{meant}`?"),
        false => format!(
            "there is no file or directory '{}'; did you mean `{meant}`?",
            word.display()
        ),
    })
}

/// Returns the subcommand that a word equals or resembles, unless a file or directory has that name.
fn read_as_path(word: &OsStr) -> Option<&'static str> {
    meant(word).filter(|_| !Path::new(word).exists())
}

fn two_paths(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let is_path = |argument: &&OsString| Path::new(argument).exists();
    let mut paths = arguments
        .iter()
        .filter(is_path)
        .filter(|_| error.kind() == ErrorKind::ArgumentConflict);
    let (one, other) = (paths.next()?, paths.next()?);
    Some(format!(
        "found {} and {}, expected one directory or file; a directory with MODEL/1/model.onnx and the like serves several models \
         (--help shows all options)",
        one.display(),
        other.display()
    ))
}

/// Formats a command line that the user can paste. Omits URLs, since their query may contain a key.
fn call<'a>(command: &str, arguments: impl Iterator<Item = &'a OsString>) -> String {
    let mut call = format!("{PROGRAM} {command}");
    for argument in arguments {
        let text = argument.to_string_lossy();
        call.push(' ');
        match text.contains("://") {
            true => call.push_str("..."),
            false => call.push_str(&quoted(&text)),
        }
    }
    call
}

/// Returns the subcommand that a word may be a misspelling of.
fn meant(text: &OsStr) -> Option<&'static str> {
    let text = text.to_str()?;
    // Allowed typos: none in short words, one in words of at least four letters, two in long ones.
    let slips = |known: &str| match known.len() {
        0..=3 => 0,
        4..=9 => 1,
        _ => 2,
    };
    let is_near = |known: &&str| strsim::osa_distance(known, text) <= slips(known);
    COMMANDS.into_iter().find(is_near)
}

/// Formats clap's error in one line.
pub(crate) fn one_line(error: &clap::Error) -> String {
    if let Some((argument, field)) = field_of_configuration(error) {
        return format!(
            "unexpected argument '{argument}' found; {field} is a field of a model's config.pbtxt (--help shows all options)"
        );
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let wanted =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    // clap's tip to pass a path that starts with a hyphen is misleading here.
    let wanted = wanted.filter(|line| !line.starts_with("tip: to pass '"));
    let (mut joined, mut is_list) = (String::new(), false);
    for line in wanted {
        is_list |= joined.ends_with(':');
        joined += match &joined[..] {
            "" => "",
            start if start.ends_with(':') => " ",
            _ if is_list && !line.starts_with("tip:") => ", ",
            _ => "; ",
        };
        joined += line.trim_start_matches("error: ");
    }
    if let Some(wrong) = error
        .source()
        .and_then(|source| source.downcast_ref::<ParseIntError>())
    {
        joined = joined.replace(&wrong.to_string(), "expected an integer");
    }
    if let Some((option, variable)) = variable(error) {
        joined = joined.replace(&format!("'{option}'"), &format!("{variable} in the environment"));
    }
    format!("{joined} (--help shows all options)")
}

/// If an invalid value came from an environment variable, returns the option, as clap names it, and the
/// variable.
fn variable(error: &clap::Error) -> Option<(&str, String)> {
    let is_value = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg).filter(|_| is_value) else {
        return None;
    };
    let long = option.split([' ', '=']).next()?;
    let variable = environment::variable(long.strip_prefix("--")?);
    let is_given = |argument: OsString| {
        let argument = argument.to_string_lossy().into_owned();
        argument.split('=').next() == Some(long)
    };
    let is_set = env::var_os(&variable).is_some() && !env::args_os().any(is_given);
    is_set.then_some((option.as_str(), variable))
}

/// Returns an unknown option that is a field of model configurations, and cannot be set for the whole server.
fn field_of_configuration(error: &clap::Error) -> Option<(&str, &'static str)> {
    const FIELDS: [&str; 8] = [
        "dynamic_batching",
        "instance_group",
        "max_batch_size",
        "max_queue_delay_microseconds",
        "max_queue_size",
        "preferred_batch_size",
        "response_cache",
        "version_policy",
    ];
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = argument.strip_prefix("--")?.replace('-', "_");
    let field = FIELDS
        .into_iter()
        .find(|field| strsim::osa_distance(field, &name) <= 2)?;
    Some((argument.as_str(), field))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::Options;

    #[test]
    fn wrong_command_lines_are_told_in_one_line() {
        for (arguments, expected) in [
            (
                &["--htp-address", "x"][..],
                "unexpected argument '--htp-address' found; tip: a similar argument exists: '--http-address'",
            ),
            (
                &["--instances", "many"],
                "invalid value 'many' for '--instances <N>'",
            ),
            (&["models", "extra"], "unexpected argument 'extra' found"),
            (
                &["--log-format", "x"],
                "invalid value 'x' for '--log-format <FORMAT>'; [possible values: text, json]",
            ),
        ] {
            let error = Options::try_parse_from([&["oip-server"], arguments].concat()).unwrap_err();
            let line = one_line(&error);
            assert!(line.starts_with(expected) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn misspelt_commands_are_known() {
        let meant = |text: &str| super::meant(OsStr::new(text));
        assert_eq!(meant("chek"), Some("check"));
        assert_eq!(meant("completion"), Some("completions"));
        assert_eq!(meant("nit"), Some("init"));
        for path in ["models", "min", "iris.onnx", "in"] {
            assert_eq!(meant(path), None, "{path}");
        }
    }
}
