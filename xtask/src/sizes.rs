//! Measures how many dependencies the crates of the protocol have, and how long the crates take to build.

use std::{
    collections::BTreeSet,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{cargo, workspace};

/// A crate, with the features that a user would typically choose.
struct Choice {
    package: &'static str,
    features: &'static str,
}

const CHOICES: &[Choice] = &[
    Choice {
        package: "oip-types",
        features: "",
    },
    Choice {
        package: "oip-types",
        features: "rest",
    },
    Choice {
        package: "oip-http",
        features: "",
    },
    Choice {
        package: "oip-grpc",
        features: "client",
    },
    Choice {
        package: "oip-grpc",
        features: "server",
    },
    Choice {
        package: "oip-grpc",
        features: "default",
    },
];

/// Prints a table with one row per crate. Each crate is built in an empty target directory.
pub(crate) fn run() -> Result<()> {
    println!("| crate | features | crates below it | build from nothing | processor time of that |");
    println!("|---|---|---|---|---|");
    for choice in CHOICES {
        let before = children_time();
        let (count, time) = (choice.dependencies()?, choice.build()?);
        let worked = children_time().saturating_sub(before);
        let Choice { package, features } = choice;
        let (time, worked) = (time.as_secs_f64(), worked.as_secs_f64());
        println!("| {package} | {features} | {count} | {time:.0} s | {worked:.0} s |");
    }
    Ok(())
}

/// Returns the CPU time of all child processes that have ended. CPU time varies less than wall-clock time on
/// a busy machine. Returns 0 on systems other than Linux.
fn children_time() -> Duration {
    /// Clock ticks per second in /proc, on every Linux that Rust supports.
    const PER_SECOND: u64 = 100;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The process name may contain spaces, so fields are counted after it.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks: u64 = fields
        .skip(13)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 1000 / PER_SECOND)
}

impl Choice {
    fn selection(&self) -> [&'static str; 5] {
        [
            "--package",
            self.package,
            "--no-default-features",
            "--features",
            self.features,
        ]
    }

    /// Returns the number of crates that are compiled, including crates of this workspace, of build scripts
    /// and of macros.
    fn dependencies(&self) -> Result<usize> {
        let output = Command::new(env!("CARGO"))
            .arg("tree")
            .args(self.selection())
            .args(["--edges", "normal,build", "--prefix", "none", "--format", "{p}"])
            .current_dir(workspace::root())
            .output()
            .context("starting cargo")?;
        ensure!(
            output.status.success(),
            "`cargo tree` failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let tree = String::from_utf8(output.stdout)?;
        // An asterisk marks a crate that the tree has already listed, so it is removed.
        let crates: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
        Ok(crates.len().saturating_sub(1))
    }

    /// Measures an unoptimized build of the crate and all its dependencies.
    fn build(&self) -> Result<Duration> {
        let folder = tempfile::tempdir()?;
        let folder = folder
            .path()
            .to_str()
            .context("the temporary directory has no plain name")?;
        let start = Instant::now();
        let arguments = [
            &["build", "--quiet", "--target-dir", folder][..],
            &self.selection(),
        ]
        .concat();
        cargo::run(&arguments, &[])?;
        Ok(start.elapsed())
    }
}
