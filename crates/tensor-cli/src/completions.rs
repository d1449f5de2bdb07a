//! Generates shell completions and manual pages.

use std::{io, path::Path};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::options::Options;

/// Returns the completion script for a shell.
pub(crate) fn completing(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), "tensor", &mut script);
    let script = String::from_utf8_lossy(&script);
    // bash completes file names only if there are no other candidates, so options are offered only for a word
    // that begins with `-`.
    script.replace(
        r#"compgen -W "${opts}" --"#,
        r#"compgen -W "${opts}" -X "$([[ ${cur} == -* ]] || echo '-*')" --"#,
    )
}

/// Writes the manual pages of a command and its subcommands, which all name the program and its version.
pub(crate) fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_pages(command, folder)?;
    }
    let page = Man::new(command.clone()).source(concat!("tensor ", env!("CARGO_PKG_VERSION")));
    page.generate_to(folder).map(drop)
}
