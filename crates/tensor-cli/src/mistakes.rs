//! Adds tips to the error messages for wrong command lines.

use std::ffi::OsString;

use clap::{
    CommandFactory,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::options::Options;

/// Adds a tip to the error for an unknown option: replaces clap's advice, to pass the option as a value, with
/// the right option of this command.
pub(crate) fn with_tip(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let tip = tip(unknown, arguments);
    error.remove(ContextKind::Suggested);
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn tip(unknown: &str, arguments: &[OsString]) -> Option<String> {
    let whole = Options::command();
    let words = arguments.iter().skip(1).filter_map(|argument| argument.to_str());
    let command = words.into_iter().find_map(|word| whole.find_subcommand(word))?;
    let (name, has) = (command.get_name(), |option: &str| {
        let mut options = command.get_arguments();
        options.any(|argument| argument.get_long() == Some(option))
    });
    if unknown.contains("://") && has("url") {
        return Some(format!(
            "the server's URL has an option: 'tensor {name} --url {unknown}'"
        ));
    }
    match unknown {
        "--model" | "-m" if matches!(name, "show" | "load" | "unload") => {
            Some(format!("the model's name needs no option: 'tensor {name} MODEL'"))
        }
        "--force" | "--overwrite" | "-f" if has("no-clobber") => {
            Some("an existing file is replaced, unless '--no-clobber' is given".to_owned())
        }
        _ => None,
    }
}
