//! Compares models on a release build of the server with ONNX Runtime: real ONNX models from public Python
//! packages, exports of models that are trained here, randomly generated graphs, and single operators
//! including ONNX Runtime's own. Also tests malicious models. The scripts are in `xtask/zoo`.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, venv, workspace};

/// Options of `zoo`.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that creates the virtual environment
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// Download and run only models whose names match this regular expression; a name begins with the
    /// package's
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// The directory of the models
    #[arg(long, default_value = "target/zoo", value_name = "FOLDER")]
    folder: PathBuf,
    /// Write the verdicts into docs/measured/zoo.md, with exports as its last section; verdicts of operators
    /// are written into docs/measured/operators.md
    #[arg(long)]
    page: bool,
    /// A file that stores the verdicts: models that it contains are not run again
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Instead of downloaded models: train about 140 models of scikit-learn, XGBoost, LightGBM and CatBoost
    /// and run their exports
    #[arg(long, conflicts_with = "results")]
    exports: bool,
    /// Instead of comparing responses: apply this many random changes to the structure of small models, and
    /// observe the server with the results
    #[arg(long, value_name = "N", conflicts_with_all = ["exports", "results", "page"])]
    mutations: Option<u32>,
    /// Instead of downloaded models: this many small randomly generated graphs
    #[arg(long, value_name = "N", conflicts_with_all = ["exports", "results", "page", "mutations", "only"])]
    graphs: Option<u32>,
    /// Instead of downloaded models: single operators, and the time of each compared with ONNX Runtime
    #[arg(long, conflicts_with_all = ["exports", "results", "mutations", "graphs"])]
    operators: bool,
    /// Instead of downloaded models: ONNX Runtime's own operators (com.microsoft), in all their forms
    #[arg(long, conflicts_with_all = ["exports", "results", "page", "mutations", "graphs", "operators"])]
    contrib: bool,
    /// Instead of downloaded models: operators with empty inputs, on a server with ONNX Runtime (some would
    /// crash ONNX Runtime without the server's rewrites)
    #[arg(long, conflicts_with_all = ["exports", "results", "page", "mutations", "graphs", "operators", "contrib"])]
    empties: bool,
    /// Instead of downloaded models: small malicious files and requests, and their resource cost to a server
    #[arg(long, conflicts_with_all = ["exports", "results", "page", "mutations", "graphs", "operators", "contrib", "empties"])]
    hostile: bool,
    /// Instead of downloaded models: single operators with extreme values, in processes that ONNX Runtime may
    /// crash, and the server's results for the same
    #[arg(long, conflicts_with_all = ["exports", "results", "page", "mutations", "graphs", "operators", "hostile"])]
    extremes: bool,
    /// Instead of downloaded models: operators of ai.onnx.ml with all their options, with invented parameters
    #[arg(long, conflicts_with_all = ["exports", "results", "page", "mutations", "graphs", "operators", "hostile", "extremes"])]
    learned: bool,
    /// Give each model a separate server with the built-in runtime and one with ONNX Runtime, and compare
    /// verdicts, times and memory; fail on any verdict other than equal, random or noise. Also works with
    /// --exports and --operators
    #[arg(long, conflicts_with_all = ["page", "mutations", "graphs", "contrib", "empties", "hostile", "extremes", "learned"])]
    both: bool,
    /// The seed for random changes or graphs
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u32,
    /// A server that is already built, instead of building one
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
}

/// Directory in which generated models are kept if a server returns a wrong response or no response for them.
const KEPT: &str = "target/mutants";

/// Packages that the script imports.
const REQUIREMENTS: &[&str] = &[
    "numpy==2.4.6",
    "onnx==1.18.0",
    "onnxruntime==1.31.1",
    "tritonclient[http]==2.73.0",
];

/// Returns a Python with the packages that the script imports. Its environment is created with the
/// interpreter `python`.
pub(crate) fn environment(python: &str) -> Result<PathBuf> {
    venv::environment(python, &workspace::root().join("target/zoo-venv"), REQUIREMENTS)
}

/// Packages that the script for extreme values imports, and the versions of ONNX Runtime that it tests.
const EXTREMES: &[&str] = &["numpy==2.4.6", "onnx==1.18.0"];
const VERSIONS: &[&str] = &["1.31.1", "1.32.0"];

/// Packages that the script for `ai.onnx.ml` operators imports; it tests the same versions of ONNX Runtime.
const LEARNED: &[&str] = &["numpy==2.4.6", "onnx==1.18.0", "tritonclient[http]==2.73.0"];

/// Additional packages that the training script imports.
const TRAINING: &[&str] = &[
    "catboost==1.2.10",
    "lightgbm==4.7.0",
    "onnxmltools==1.16.0",
    "scikit-learn==1.9.1",
    "skl2onnx==1.20.0",
    "xgboost-cpu==3.2.0",
];

/// Downloads the models and runs them. Returns an error if a response is wrong, a request fails, or the
/// server crashes.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = workspace::root();
    if options.extremes {
        let wrong = "values crash a server, or a process in an unknown way";
        return with_each_version(options, "extremes", EXTREMES, wrong);
    }
    if options.learned {
        return with_each_version(options, "learned", LEARNED, "some cases are answered otherwise");
    }
    let by_chance = options.mutations.or(options.graphs);
    let script_name = script_name(options);
    let python = match options.exports {
        true => {
            let requirements = [REQUIREMENTS, TRAINING].concat();
            venv::environment(&options.python, &root.join("target/exports-venv"), &requirements)?
        }
        false => environment(&options.python)?,
    };
    let server = server(options)?;
    let mut script_run = Command::new(python);
    let script = script_run.arg(root.join("xtask/zoo").join(script_name));
    script.arg("--server").arg(server);
    let folder = root.join(&options.folder);
    let keeps_nothing = options.hostile || options.contrib || options.empties;
    if options.graphs.is_none() && !keeps_nothing {
        script.arg("--folder").arg(match script_name {
            "exports.py" => folder.join("exports"),
            "operators.py" => folder.join("operators"),
            _ => folder,
        });
    }
    if let Some(only) = &options.only {
        script.args(["--only", only]);
    }
    if let Some(results) = &options.results {
        script.arg("--results").arg(results);
    }
    if options.both {
        script.arg("--both");
    }
    if let Some(count) = by_chance {
        let (count, seed) = (count.to_string(), options.seed.to_string());
        script.args(["--count", &count, "--seed", &seed]);
        script.arg("--keep").arg(root.join(KEPT));
    }
    if options.page {
        let page = match options.operators {
            true => "docs/measured/operators.md",
            false => "docs/measured/zoo.md",
        };
        script.arg("--page").arg(root.join(page));
    }
    let status = script.status().context("starting the script")?;
    ensure!(status.success(), failure(options));
    Ok(())
}

/// Returns the script of the chosen task.
fn script_name(options: &Options) -> &'static str {
    match options {
        Options { exports: true, .. } => "exports.py",
        Options {
            mutations: Some(_), ..
        } => "mutate.py",
        Options { graphs: Some(_), .. } => "graphs.py",
        Options { operators: true, .. } => "operators.py",
        Options { contrib: true, .. } => "contrib.py",
        Options { empties: true, .. } => "empties.py",
        Options { hostile: true, .. } => "hostile.py",
        _ => "zoo.py",
    }
}

/// Returns the error message for a task whose script failed.
fn failure(options: &Options) -> String {
    if options.hostile {
        return "the server failed some cases".to_owned();
    }
    if options.contrib || options.empties {
        let what =
            "some forms are answered wrongly, or refused for a reason that does not name their operator";
        return what.to_owned();
    }
    match options.mutations.or(options.graphs) {
        Some(_) => {
            format!("the server failed with some of the models in {KEPT}, or answers them wrongly")
        }
        None => "some models are answered wrongly, or fail".to_owned(),
    }
}

/// Returns the server that the options name, or builds one.
fn server(options: &Options) -> Result<PathBuf> {
    if let Some(server) = &options.server {
        return Ok(server.clone());
    }
    cargo::run(&["build", "--release", "--package", "oip-server"], &[])?;
    Ok(workspace::built("release").join("oip-server"))
}

/// Runs a script once for each version of ONNX Runtime.
fn with_each_version(options: &Options, name: &str, requirements: &[&str], wrong: &str) -> Result<()> {
    let root = workspace::root();
    let server = server(options)?;
    let mut failed = Vec::new();
    for version in VERSIONS {
        let library = format!("onnxruntime=={version}");
        let requirements = [requirements, &[&library]].concat();
        let environment = root.join(format!("target/{name}-venv-{version}"));
        let python = venv::environment(&options.python, &environment, &requirements)?;
        let mut script = Command::new(python);
        script
            .arg(root.join(format!("xtask/zoo/{name}.py")))
            .arg("--server")
            .arg(&server);
        if let Some(only) = &options.only {
            script.args(["--only", only]);
        }
        if options.learned {
            script.args(["--seed", &options.seed.to_string()]);
            script.arg("--keep").arg(root.join(KEPT));
        }
        let status = script.status().context("starting the script")?;
        if !status.success() {
            failed.push(*version);
        }
    }
    ensure!(
        failed.is_empty(),
        "{wrong}, with ONNX Runtime {}",
        failed.join(" and ")
    );
    Ok(())
}

/// Returns the README's sentence about the results in docs/measured/zoo.md, generated from that page's
/// summary of the built-in runtime.
pub(crate) fn summary(page: &str) -> Result<String> {
    let line = page.lines().find_map(|line| line.strip_prefix("Built-in, of "));
    let summary = line.context("docs/measured/zoo.md has no line that begins with \"Built-in, of\"")?;
    let (total, kinds) = summary
        .split_once(" models: ")
        .context("docs/measured/zoo.md: its summary names no number of models")?;
    let kinds = kinds.split(" (").next().unwrap_or_default();
    let count = |kind: &str| -> Result<usize> {
        let found = kinds
            .split(", ")
            .find_map(|part| part.strip_suffix(kind)?.strip_suffix(' '));
        found.map_or(Ok(0), |count| Ok(count.parse()?))
    };
    let (equal, noise) = (count("equal")?, count("noise")?);
    let rest = match total.parse::<usize>()?.checked_sub(equal + noise) {
        Some(0) => "it refuses none".to_owned(),
        rest => format!(
            "{} differ by more or are refused",
            rest.context("docs/measured/zoo.md: its summary counts too many")?
        ),
    };
    Ok(format!(
        "For {equal} of {total} ONNX models from public packages the built-in runtime gives the same results as \
         ONNX Runtime; {noise} differ within ONNX Runtime's own noise, and {rest}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_a_sentence_of_the_readme() {
        let all = "x\nBuilt-in, of 127 models: 115 equal, 12 noise (100.0 % equal): half below 2.\n";
        let sentence = summary(all).unwrap();
        assert!(sentence.starts_with("For 115 of 127 ONNX models"), "{sentence}");
        assert!(
            sentence.ends_with("; 12 differ within ONNX Runtime's own noise, and it refuses none"),
            "{sentence}"
        );
        let some = "Built-in, of 20 models: 1 differs, 10 equal, 6 noise, 3 refused (80 %)\n";
        assert!(
            summary(some)
                .unwrap()
                .ends_with("; 6 differ within ONNX Runtime's own noise, and 4 differ by more or are refused")
        );
        assert!(summary("Built-in, of 1 models: 2 equal (200 %)").is_err());
        assert!(summary("nothing").is_err());
    }
}
