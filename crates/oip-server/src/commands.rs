//! The subcommands: `oip-server check`, `init`, `completions` and `man`.

use std::{
    ffi::OsString,
    io::{self, Write, stdout},
    iter::once,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Command, CommandFactory, FromArgMatches, Parser};
use clap_complete::Shell;

use crate::{
    check::{self, Check},
    failure::Failure,
    init::{self, Init},
    options::{
        AFTER_HELP_SHORT, Options, after_help, arranged,
        mistakes::{self, PROGRAM},
    },
};

const COMPLETIONS: &str = "\
Examples:
  oip-server completions bash > ~/.local/share/bash-completion/completions/oip-server
  oip-server completions zsh > ~/.zfunc/_oip-server
  oip-server completions fish > ~/.config/fish/completions/oip-server.fish";

/// Prints a script that completes options in your shell.
#[derive(Debug, Parser)]
#[command(name = "oip-server completions", after_help = COMPLETIONS)]
struct Completions {
    /// The shell
    shell: Shell,
}

/// Writes manual pages.
#[derive(Debug, Parser)]
#[command(
    name = "oip-server man",
    after_help = "Example: oip-server man ~/.local/share/man/man1"
)]
struct Man {
    /// The directory to write them to
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// The parsed command line.
pub(crate) enum Invocation {
    /// Run the server.
    Serve(Box<Options>),
    /// A subcommand ran and returned this exit code.
    Done(ExitCode),
}

/// Parses the command line, and runs a subcommand if it names one.
pub(crate) fn run(arguments: &[OsString]) -> Result<Invocation, Failure> {
    let rest = || arguments.iter().skip(1).cloned();
    let done = match arguments.first().and_then(|first| first.to_str()) {
        Some("check") => parse::<Check>("check", rest())?.map(check::run),
        Some("init") => parse::<Init>("init", rest())?.map(|init| init::run(&init)),
        Some("completions") => parse::<Completions>("completions", rest())?.map(|completions| {
            // A closed pipe is not an error.
            let _ = stdout().write_all(completing(completions.shell).as_bytes());
            Ok(ExitCode::SUCCESS)
        }),
        Some("man") => parse::<Man>("man", rest())?.map(|man| write_pages(&man.folder)),
        // Other programs have the command `help` too. A path called `help` takes precedence.
        Some("help") if arguments.len() > 1 || !Path::new("help").exists() => {
            return run(&rest().chain(once("--help".into())).collect::<Vec<_>>());
        }
        // `serve` is a common alias. A path called `serve` takes precedence.
        Some("serve") if arguments.len() > 1 || !Path::new("serve").exists() => {
            return serve(&arguments[1..]);
        }
        _ => return serve(arguments),
    };
    Ok(Invocation::Done(done.unwrap_or(Ok(ExitCode::SUCCESS))?))
}

fn serve(arguments: &[OsString]) -> Result<Invocation, Failure> {
    let all = once(OsString::from(PROGRAM)).chain(arguments.iter().cloned());
    let parsed = whole()
        .try_get_matches_from(all)
        .and_then(|matches| Options::from_arg_matches(&matches));
    match parsed {
        Ok(options) => {
            if let Some(path) = options.path.as_ref().filter(|path| !path.exists())
                && let Some(answer) = mistakes::told_of_path(path, arguments)
            {
                return Err(Failure::usage(answer));
            }
            Ok(Invocation::Serve(Box::new(options)))
        }
        Err(error) if error.use_stderr() => Err(Failure::usage(mistakes::told(&error, arguments))),
        // clap reports requests for help and for the version as errors.
        Err(error) => {
            let _ = error.print();
            Ok(Invocation::Done(ExitCode::SUCCESS))
        }
    }
}

/// Parses the arguments of a subcommand; `None` after printing help.
fn parse<T: Parser>(name: &str, arguments: impl Iterator<Item = OsString>) -> Result<Option<T>, Failure> {
    let program = OsString::from(format!("{PROGRAM} {name}"));
    let arguments: Vec<OsString> = arguments.collect();
    let matches = arranged(T::command()).try_get_matches_from(once(&program).chain(&arguments));
    match matches.and_then(|matches| T::from_arg_matches(&matches)) {
        Ok(parsed) => Ok(Some(parsed)),
        Err(error) if error.use_stderr() => Err(Failure::usage(mistakes::told_of_command(
            name, &error, &arguments,
        ))),
        Err(error) => {
            let _ = error.print();
            Ok(None)
        }
    }
}

/// Returns the complete command line for help, completions and manual pages. [`run`] parses without this
/// command, because the subcommands share the server's options and would contain themselves.
fn whole() -> Command {
    let commands = [
        arranged(Check::command()).name("check"),
        Init::command().name("init"),
        Completions::command().name("completions"),
        Man::command().name("man"),
    ];
    arranged(Options::command())
        .after_help(AFTER_HELP_SHORT)
        .after_long_help(after_help())
        .args_conflicts_with_subcommands(true)
        .disable_help_subcommand(true)
        .subcommands(commands.map(|command| command.version(env!("CARGO_PKG_VERSION"))))
}

/// Returns the completion script for a shell.
fn completing(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut whole(), PROGRAM, &mut script);
    let script = String::from_utf8_lossy(&script);
    // In bash scripts, clap_complete encodes the hyphen in the program's name differently when it sets the
    // command and when it looks up the command's options.
    let [sought, set] = ["__subcmd__", "__"].map(|hyphen| PROGRAM.replace('-', hyphen) + "__subcmd__");
    // bash completes file names only if there are no other candidates, so options are offered only after the
    // first character of a word.
    script.replace(&sought, &set).replace(
        r#"compgen -W "${opts}" --"#,
        r#"compgen -W "${opts}" -X "$([[ ${cur} == -* ]] || echo '-*')" --"#,
    )
}

fn write_pages(folder: &Path) -> Result<ExitCode, Failure> {
    /// Writes manual pages. Each names the program and its version.
    fn write(command: &Command, folder: &Path) -> io::Result<()> {
        for command in command.get_subcommands() {
            write(command, folder)?;
        }
        let source = format!("{PROGRAM} {}", env!("CARGO_PKG_VERSION"));
        let page = clap_mangen::Man::new(command.clone()).source(source);
        page.generate_to(folder).map(drop)
    }
    let mut whole = whole();
    whole.build();
    std::fs::create_dir_all(folder)
        .and_then(|()| write(&whole, folder))
        .map_err(|error| {
            Failure::run(format!(
                "the manual pages cannot be written to {}: {error}",
                folder.display()
            ))
        })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn the_whole_command_line_is_sound() {
        whole().debug_assert();
    }

    /// Every command has its own examples, and each is a valid command line.
    #[test]
    fn every_command_has_examples_that_are_its_own() {
        let whole = whole();
        let commands = whole
            .get_subcommands()
            .map(|command| (Some(command.get_name()), command));
        for (name, command) in commands.chain([(None, &whole)]) {
            let help = command
                .get_after_long_help()
                .or(command.get_after_help())
                .map(ToString::to_string)
                .unwrap_or_default();
            let examples = examples(&help);
            assert!(!examples.is_empty(), "{name:?} has no example");
            for words in examples {
                assert!(
                    name.is_none_or(|name| words.first().is_some_and(|word| word == name)),
                    "{name:?}: {words:?}"
                );
                let words = words.into_iter().map(OsString::from);
                let first = words.clone().next();
                let taken = match first.as_deref().and_then(OsStr::to_str) {
                    Some("check") => Check::try_parse_from(words).map(drop),
                    Some("init") => Init::try_parse_from(words).map(drop),
                    Some("completions") => Completions::try_parse_from(words).map(drop),
                    Some("man") => Man::try_parse_from(words).map(drop),
                    _ => Options::try_parse_from(once(PROGRAM.into()).chain(words)).map(drop),
                };
                assert!(taken.is_ok(), "{name:?}: {}", taken.unwrap_err());
            }
        }
    }

    /// Extracts the arguments from the example lines of a help text, without shell syntax and comments.
    fn examples(help: &str) -> Vec<Vec<String>> {
        let call = format!("{PROGRAM} ");
        let lines = help
            .lines()
            .map(|line| line.strip_prefix("Example:").unwrap_or(line));
        let calls = lines.filter_map(|line| line.trim_start().strip_prefix(&call));
        let end = |call: &str| ["  ", " > "].iter().filter_map(|sign| call.find(sign)).min();
        calls
            .map(|call| &call[..end(call).unwrap_or(call.len())])
            .map(|call| call.split_whitespace().map(str::to_owned).collect())
            .collect()
    }
}
