//! Checks the conventions of this repository that a program can check.

use std::{fs, path::PathBuf};

use anyhow::{Result, bail};

use crate::{circles, crate_pages, dependencies, documents, layers, workspace};

/// Files and directories that may be at the top of the repository, in addition to dotfiles.
const TOP_LEVEL: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "clippy.toml",
    "crates",
    "deny.toml",
    "docs",
    "proto",
    "rustfmt.toml",
    "schemas",
    "target",
    "xtask",
];

/// Number of lines, without tests, above which a file is reported, because it may cover two subjects.
const LARGE_FILE: usize = 500;

/// Checks all rules and prints the report.
pub(crate) fn run() -> Result<()> {
    let broken = broken_rules()?;
    for (path, lines) in large_files()? {
        println!(
            "large: {} has {lines} lines before its tests",
            workspace::display(&path)
        );
    }
    if broken.is_empty() {
        println!("no rule is broken");
        return Ok(());
    }
    bail!(
        "{}:\n  {}",
        if broken.len() == 1 {
            "a rule is broken"
        } else {
            "rules are broken"
        },
        broken.join("\n  ")
    )
}

fn broken_rules() -> Result<Vec<String>> {
    let mut broken = Vec::new();
    check_layout(&mut broken)?;
    dependencies::check(&mut broken)?;
    check_sources(&mut broken)?;
    check_circles(&mut broken)?;
    broken.extend(layers::broken()?);
    documents::check(&mut broken)?;
    broken.extend(crate_pages::lacking()?);
    Ok(broken)
}

fn check_layout(broken: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(workspace::root())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && !TOP_LEVEL.contains(&name.as_str()) {
            broken.push(format!("{name}: not a part of the top level"));
        }
    }
    Ok(())
}

fn check_sources(broken: &mut Vec<String>) -> Result<()> {
    for path in workspace::sources()? {
        let text = fs::read_to_string(&path)?;
        let name = workspace::display(&path);
        if !says_what_it_is(&text) {
            broken.push(format!("{name}: its first lines do not describe its subject"));
        }
        if has_numeric_flags(&text) && !name.ends_with("xtask/src/tidy.rs") {
            broken.push(format!(
                "{name}: has flags of `open` as numbers; use rustix::fs::OFlags, since they differ between processors"
            ));
        }
        // The words are concatenated here, so that this file does not match.
        for unfinished in [
            concat!("todo", "!("),
            concat!("unimplemented", "!("),
            concat!("FIX", "ME"),
            concat!("#[ig", "nore"),
        ] {
            if text.contains(unfinished) {
                broken.push(format!("{name}: contains `{unfinished}`"));
            }
        }
    }
    Ok(())
}

/// Checks that no two files of a crate depend on each other.
fn check_circles(broken: &mut Vec<String>) -> Result<()> {
    let mut folders = vec![workspace::root().join("xtask")];
    for entry in fs::read_dir(workspace::root().join("crates"))? {
        folders.push(entry?.path());
    }
    folders.sort();
    for folder in folders {
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        for root in ["src/lib.rs", "src/main.rs"].map(|root| folder.join(root)) {
            if root.exists() {
                for circle in circles::of_crate(&root)? {
                    let circle = circle.replace(&format!("{}/", folder.display()), "");
                    broken.push(format!("{name}: files in a circle: {circle}"));
                }
            }
        }
    }
    Ok(())
}

/// Returns whether code passes flags of `open` as numbers, which differ between processors: `O_NOFOLLOW` on
/// x86 is `O_DIRECT` on ARM.
fn has_numeric_flags(text: &str) -> bool {
    let mut lines = text.lines();
    lines.any(|line| {
        let is_constant = line.contains("const O_") && line.contains('=');
        let argument = line.split("custom_flags(").nth(1);
        let is_number =
            argument.is_some_and(|argument| argument.starts_with(|first: char| first.is_ascii_digit()));
        is_constant || is_number
    })
}

/// Returns whether a file starts with its own documentation, or its first item is documented.
fn says_what_it_is(text: &str) -> bool {
    let mut in_use = false;
    for line in text.lines() {
        if line.starts_with("//!") || line.starts_with("///") || line.starts_with("// Generated") {
            return true;
        }
        let skipped = line.is_empty()
            || line.starts_with("use ")
            || line.starts_with("pub use ")
            || line.starts_with("mod ");
        in_use = (in_use || line.starts_with("use ")) && !line.ends_with(';');
        if !skipped && !in_use && line != "};" {
            return false;
        }
    }
    false
}

fn large_files() -> Result<Vec<(PathBuf, usize)>> {
    let mut large = Vec::new();
    for path in workspace::sources()? {
        let text = fs::read_to_string(&path)?;
        let lines = text.lines().take_while(|line| *line != "#[cfg(test)]").count();
        if lines > LARGE_FILE && !text.starts_with("// Generated") {
            large.push((path, lines));
        }
    }
    large.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
    Ok(large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_tidy() {
        assert_eq!(broken_rules().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn files_say_what_they_are() {
        assert!(says_what_it_is(
            "use a::{\n    b,\n    c,\n};\n\n/// A thing.\nstruct Thing;\n"
        ));
        assert!(says_what_it_is("//! A subject.\n"));
        assert!(!says_what_it_is("use a;\n\nstruct Thing;\n"));
        assert!(!says_what_it_is(""));
    }

    #[test]
    fn flags_of_open_are_names() {
        assert!(has_numeric_flags("    const O_NOFOLLOW: i32 = 0o400_000;\n"));
        assert!(has_numeric_flags("options.custom_flags(0x800)"));
        assert!(!has_numeric_flags(
            "options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed())"
        ));
    }
}
