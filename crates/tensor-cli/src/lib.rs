//! The program `tensor`: inspects, verifies, converts, compares and edits tensor files, and exchanges them
//! with models on servers. As a library it can be embedded as a command of another program.

#[cfg(feature = "client")]
mod client;
mod completions;
mod convert;
mod diff;
mod edit;
mod extract;
mod failure;
mod files;
mod heads;
mod histogram;
mod index;
mod inspect;
mod manifest;
mod mistakes;
mod named;
mod options;
mod pieces;
mod progress;
mod put;
#[cfg(feature = "remote")]
mod remote;
mod report;
mod selection;
mod sources;
mod stats;
mod table;
mod units;
mod verify;

use std::{
    ffi::OsString,
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser as _};

use crate::{
    failure::Outcome,
    options::{Command, Options},
};

/// Runs the program with `arguments`, the first of which is its name, and returns the exit code. Wrong
/// arguments, `--help` and `--version` end the process immediately.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    #[cfg_attr(not(feature = "client"), expect(unused_mut, reason = "nothing is handed on"))]
    let mut options = parse(arguments);
    let mut out = BufWriter::new(io::stdout());
    files::read_with(options.reading.options());
    #[cfg(feature = "client")]
    if let Some(connection) = options.command.connection() {
        connection.ca.clone_from(&options.servers.ca);
    }
    #[cfg(feature = "remote")]
    remote::read_with(options.servers);
    let (is_diff, is_json) = (
        matches!(options.command, Command::Diff(_)),
        options.command.is_json(),
    );
    let outcome = progress::listen_for_interrupts(options.command.is_reading_only())
        .and_then(|()| execute(options.command, &mut out))
        .and_then(|()| Ok(out.flush()?));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Print the results that were produced before the failure.
            if is_json {
                let _ = failure.to_json(&mut out);
            }
            let _ = out.flush();
            failure.report();
            failure.code(is_diff)
        }
    }
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Options {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    Options::try_parse_from(&arguments).unwrap_or_else(|error| mistakes::with_tip(error, &arguments).exit())
}

fn execute(command: Command, out: &mut (impl Write + Send)) -> Outcome {
    match command {
        Command::Inspect(options) => inspect::run(&options, out),
        Command::Verify(options) => verify::run(&options, out),
        Command::Convert(options) => convert::run(&options, out),
        Command::Diff(options) => diff::run(&options, out),
        Command::Merge(options) => convert::merge(&options, out),
        Command::Split(options) => convert::split(&options, out),
        Command::Manifest(options) => manifest::run(&options, out),
        Command::Extract(options) => extract::run(&options, out),
        Command::Rename(options) => edit::rename(&options, out),
        Command::Set(options) => edit::set(&options, out),
        Command::Put(options) => put::put(&options, out),
        Command::Append(options) => put::append(&options, out),
        Command::Index(options) => index::run(&options, out),
        #[cfg(feature = "client")]
        Command::Infer(options) => client::infer::run(&options, out),
        #[cfg(feature = "client")]
        Command::Replay(options) => client::replay::run(&options, out),
        #[cfg(feature = "client")]
        Command::Bench(options) => client::bench::run(&options, out),
        #[cfg(feature = "client")]
        Command::Ls(options) => client::servers::list(&options, out),
        #[cfg(feature = "client")]
        Command::Show(options) => client::servers::show(&options, out),
        #[cfg(feature = "client")]
        Command::Status(options) => client::servers::status(&options, out),
        #[cfg(feature = "client")]
        Command::Load(options) => client::servers::load(&options, out),
        #[cfg(feature = "client")]
        Command::Unload(options) => client::servers::unload(&options, out),
        Command::Completions { shell } => Ok(out.write_all(completions::completing(shell).as_bytes())?),
        Command::Man { folder } => {
            std::fs::create_dir_all(&folder)?;
            let mut whole = Options::command().disable_help_subcommand(true);
            whole.build();
            Ok(completions::write_pages(&whole, &folder)?)
        }
    }
}
